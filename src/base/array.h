/* Arrays that grow, from malloc. Those of the library, which have the caller's allocator, grow by base/memory.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Makes room for `need` elements in the array `all`, which has it for `room`; both are variables or members. False
 * without memory: both are as they were then. */
#define ARRAY_RESERVE(all, room, need) array_reserve(&(all), &(room), (need), sizeof(*(all)))

bool array_reserve(void *all, size_t *room, size_t need, size_t size);
