/* Keys of a configuration, described by a table that reading, setting, writing and comparing all walk over. */
#ifndef ROSATUNE_KEYS_H
#define ROSATUNE_KEYS_H

#include "train/dataset.h"
#include "model/json.h"
#include "base/json_text.h"

/* Where training data comes from. */
struct key_data {
	struct dataset_source *sources; /* paths are from malloc */
	size_t count;
};

enum key_type {
	KEY_TEXT,   /* char *, from malloc; NULL: none */
	KEY_SIZE,   /* uint64_t, from least to most; 16k is understood */
	KEY_NUMBER, /* double, from least to most */
	KEY_BOOL,   /* bool */
	KEY_CHOICE, /* int, the place of a word */
	KEY_DATA    /* struct key_data */
};

enum key_marks {
	KEY_FIXED = 1, /* what has begun cannot go on with another value */
	KEY_START = 2, /* only says how something new begins */
};

#define KEY_ABOVE_0 1e-30              /* a least number for what must not be 0 */
#define KEY_MANY    9007199254740992.0 /* 2^53: what JSON's numbers tell apart */

/* "adapter.bits" is the field bits of an object adapter; rows of one object stand together. */
struct key {
	const char *name;
	enum key_type type;
	size_t offset;
	double least, most;
	const char *const *choices; /* ends with NULL */
	unsigned marks;
};

#define KEYS_MOST 64 /* of a table */

struct keys {
	const struct key *all;
	size_t count;
	const char *also;    /* the name of a field that is no key, and is passed over; NULL: none */
	size_t start_offset; /* of a const char * that receives the name of a KEY_START that was given */
};

/* Where a value comes from, for messages: "small.json: stage.1.tokens" or "--set stage.1.tokens". */
struct key_place {
	const char *file; /* NULL: the command line */
	size_t stage;     /* from 1; 0: none */
	const char *key;  /* NULL: none */
};

rosa_status keys_refuse(const struct key_place *place, rosa_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets the key that `place` names from text. One that is not in the table is refused with the nearest that is. */
rosa_status keys_set(const struct keys *keys, void *base, const char *text, const struct key_place *place,
		     rosa_error *err);
/* Sets keys from the fields of an object; fields that are null count as missing. */
rosa_status keys_read(const struct keys *keys, void *base, struct json object, const struct key_place *place,
		      rosa_error *err);
/* Writes all fields of an object but those with one of the marks `without`, a line each. */
void keys_write(const struct keys *keys, const void *base, unsigned without, const char *indent,
		struct json_text *text);
void keys_free(const struct keys *keys, void *base);

/* Who wants to know what differs. */
struct key_listener {
	void (*note)(void *context, const char *message); /* NULL: nobody */
	void *context;
};

/* Tells of every difference; one in a KEY_FIXED is refused. `stage` as in a place. */
rosa_status keys_compare(const struct keys *keys, const void *was, const void *now, size_t stage,
			 const struct key_listener *listener, rosa_error *err);

#endif
