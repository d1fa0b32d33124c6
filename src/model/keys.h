/*
 * Options, described by tables.
 *
 * Each row describes one option: its name, type and range, default value, offset in the structure, and help text.
 * Configuration files, --set, adapter files, command-line options and help texts all use these rows, so that a new
 * option is one new row.
 */
#pragma once

#include "base/json_text.h"
#include "model/json.h"

enum key_type {
	KEY_TEXT,   /* char *, from malloc; NULL: none */
	KEY_SIZE,   /* uint64_t, from least to most; 16k is understood */
	KEY_NUMBER, /* double, from least to most */
	KEY_FLOAT,  /* float, likewise */
	KEY_BOOL,   /* bool */
	KEY_CHOICE, /* int or an enumeration: the index of a word */
	KEY_CUSTOM  /* what the row's `custom` says */
};

enum key_marks {
	KEY_FIXED = 1,  /* a run that has begun cannot continue with another value */
	KEY_START = 2,  /* used only when something new is made, not when it is continued */
	KEY_NULL_0 = 4, /* 0 means none, and is written as null */
	KEY_NULL = 8,   /* a KEY_SIZE that may be KEY_UNSET, which is written and read as null */
};

#define KEY_UNSET UINT64_MAX /* of a KEY_NULL: what the row's help says; its fallback is -1 */

#define KEY_ABOVE_0 1e-30              /* a least number for what must not be 0 */
#define KEY_EXACT   9007199254740992.0 /* 2^53: up to here JSON's numbers are exact */

struct key_custom;

struct key {
	const char *name; /* "adapter_rate.max" is the field max of an object adapter_rate; rows of one object stand
			   * together */
	enum key_type type;
	size_t offset;
	double least, most;
	double fallback;            /* the default value; for a choice, the index of the default word */
	const char *const *choices; /* ends with NULL */
	unsigned marks;
	const char *help;
	const struct key_custom *custom;
};

struct key_table {
	const struct key *rows;
	size_t count;
};

/* A table in use: "adapter." stands before the names of its rows, and their values are in a structure at `offset`. */
struct key_section {
	const struct key_table *table;
	const char *prefix; /* "": none */
	size_t offset;
	unsigned marks; /* added to those of each row */
};

#define KEYS_MOST 64 /* rows of all sections together */

struct keys {
	const struct key_section *sections;
	size_t count;
	const char *also;    /* the name of a field that is no key and is ignored; NULL: none */
	const char *unknown; /* the hint in the message on a field that resembles no key */
	size_t start_offset; /* of a const char * that receives the name of a KEY_START that was given; 0: none */
};

/* Where a value comes from, for messages: "small.json: stage.1.tokens", "--set stage.1.tokens" or "--tokens". */
struct key_place {
	const char *file;   /* NULL: the command line */
	size_t stage;       /* from 1; 0: none */
	const char *key;    /* NULL: none */
	const char *object; /* the object in the file that holds the keys, "options."; NULL: none */
	const char *option; /* the option of the command line, without dashes, instead of all these; NULL: none */
};

/* Values of a type that only one user of this file has. */
struct key_custom {
	rosa_status (*set)(void *target, const char *text, const struct key_place *place, rosa_error *err);
	rosa_status (*read)(void *target, struct json value, const struct key_place *place, rosa_error *err);
	void (*write)(const void *target, struct json_text *text);
	void (*free)(void *target);
	const char *type;     /* what lists of options call it; NULL: it is in none */
	const char *fallback; /* the value unless told, as text; NULL: zero bytes */
};

/* ROSA_EINVAL, with a message that begins with the place. */
rosa_status keys_refuse(const struct key_place *place, rosa_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

bool keys_known(const struct keys *keys, const char *name);

/* Sets every key to its fallback. What was there is not freed. */
void keys_defaults(const struct keys *keys, void *base);
/* Sets the key that `place` names from text. One that is not in a table is refused with the nearest that is. */
rosa_status keys_set(const struct keys *keys, void *base, const char *text, const struct key_place *place,
		     rosa_error *err);
/* Sets keys from the fields of an object; null counts as missing, except for a KEY_NULL. */
rosa_status keys_read(const struct keys *keys, void *base, struct json object, const struct key_place *place,
		      rosa_error *err);
/* Writes all fields of an object except those with one of the marks `without`. Fields of the object itself have a line
 * each, those of objects within it share one. */
void keys_write(const struct keys *keys, const void *base, unsigned without, const char *indent,
		struct json_text *text);
void keys_free(const struct keys *keys, void *base);

/* One value as JSON. */
void key_write(const struct key *row, const void *base, struct json_text *text);
/* A line of help for each key: its name, its fallback in brackets, what it is for. */
void keys_help(const struct keys *keys, const char *indent, struct json_text *text);

/* Receives what differs. */
struct key_listener {
	void (*note)(void *context, const char *message); /* NULL: differences are not reported */
	void *context;
};

/* Reports every difference; one in a KEY_FIXED is refused. `stage` as in a place. */
rosa_status keys_compare(const struct keys *keys, const void *was, const void *now, size_t stage,
			 const struct key_listener *listener, rosa_error *err);
