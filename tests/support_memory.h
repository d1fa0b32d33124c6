/* An allocator that counts, fills what it gives with rubbish, and fails on request. */
#pragma once

#include "rosatune.h"

#include <stdatomic.h>

struct test_memory {
	atomic_long blocks;  /* live */
	atomic_size_t bytes; /* live */
	atomic_long calls;   /* that asked for memory, since the last test_memory_arm */
	atomic_long refused; /* of these */
	long refuse_from;    /* the first call that is refused; -1: none */
	long refuse_count;   /* how many are refused from there on; -1: all */
};

/* All zero and refusing nothing. */
void test_memory_init(struct test_memory *memory);

/* Refuse calls from the n-th (from 0) on; n = -1 refuses none. Not while another thread allocates. */
void test_memory_arm(struct test_memory *memory, long from, long count);

rosa_allocator test_memory_allocator(struct test_memory *memory);
