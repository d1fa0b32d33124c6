/* Unicode's normal form C, as Hugging Face's tokenizers computes it. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* Whether this build can. */
rosa_status nfc_check(rosa_error *err);

/* The normal form of a text in UTF-8. *made is NULL where the text is in it already, else memory to free, with its
 * size. */
rosa_status nfc(const char *text, size_t size, char **made, size_t *made_size, rosa_error *err);
