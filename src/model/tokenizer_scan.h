/* The two large parts of a tokenizer.json, read without building a tree of them. */
#ifndef ROSATUNE_TOKENIZER_SCAN_H
#define ROSATUNE_TOKENIZER_SCAN_H

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

/* Where a field of an object lies, the object being between `within`. False if it is not there. What is passed over is
 * not checked. */
bool scan_field(const char *text, struct scan_span within, const char *name, struct scan_span *field);

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

#endif
