/* A few seconds of computing whose results are known. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Each writes what was compared, or what differs, to `detail`. */
bool doctor_test_retrieval(char *detail, size_t size); /* rosa_retrieve and a search by brute force */
bool doctor_test_products(char *detail, size_t size);  /* the backend's products and sums in double */
