/* The web page: files embedded in the program (src/serve/page/). */
#pragma once

#include <stddef.h>

struct page_file {
	const char *path, *type; /* of a request, and of the content */
	const unsigned char *data;
	size_t size;
};

/* NULL: there is no such file. */
const struct page_file *page_find(const char *path);
