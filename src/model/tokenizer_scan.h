/* The two large parts of a tokenizer.json, read without building a tree of them. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* A place in JSON text. */
struct scan {
	const char *start, *at, *end;
	char *buffer[2]; /* of strings with escapes */
	size_t room[2];
	rosa_error *err;
};

struct scan_span {
	size_t start, end; /* in the text; both 0: not there */
};

/* Where the values of some fields lie, of the object that begins at `at`; those of fields that are not there stay as
 * they are. What is passed over is not checked. */
struct scan_wish {
	const char *name;
	struct scan_span *field;
};
void scan_fields(const char *text, size_t size, size_t at, const struct scan_wish *wishes, size_t count);
/* Where the value of one field begins; false if there is none. Looks no further, so a large one costs nothing. */
bool scan_field(const char *text, size_t size, size_t at, const char *name, size_t *value);

void scan_free(struct scan *scan);

/* The next character that is no space, if it is `what`; false, and nowhere moved, otherwise. */
bool scan_character(struct scan *scan, char what);
/* Whether there is nothing more but spaces. */
bool scan_at_end(const struct scan *scan);
/* A string, which stays until the next one with the same `which` (0 or 1) is read. */
rosa_status scan_string(struct scan *scan, int which, const char **text, size_t *size);
/* A whole number that is not negative. */
rosa_status scan_number(struct scan *scan, uint64_t *number);

/* "... at byte 17" */
rosa_status scan_fail(const struct scan *scan, const char *why);
