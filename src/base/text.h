/* A text in memory that grows and is always valid UTF-8. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* Terminated by a zero besides. A zeroed one is empty. */
struct text {
	char *data;
	size_t size, room;
};

/* Appends bytes that must be UTF-8: others are refused with `name` and their place, or become U+FFFD if `lossy`. A
 * place is a byte counted from 0, as hex dumps count. */
rosa_status text_append(struct text *text, const char *name, const char *bytes, size_t size, bool lossy,
			rosa_error *err);

void text_free(struct text *text); /* safe on a zeroed one */
