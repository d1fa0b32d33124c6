/*
 * Where keys and values of the positions that attention may still see are kept, on a CPU.
 *
 * Positions are numbered as in the text. Sixteen neighbours, from a multiple of sixteen on, are a panel. Within a panel
 * keys are transposed, [head_size][16]: one number of a query times the numbers of sixteen keys in the same channel is
 * one vector operation, and sixteen scores result without a sum across lanes. Values stay rows, since there a weight
 * multiplies a whole row.
 *
 * Panels are stored in blocks, which are allocated as the text grows: nothing is ever moved, and a short text in a
 * large window takes the memory of the text. With a window, no more blocks are allocated once the ring is complete. Its
 * capacity is a window plus the steps of one call, so that a whole call can be stored before its first step attends.
 * Position p is stored at p modulo the capacity, which is a multiple of sixteen, so that in the ring too the lane of p
 * is p modulo sixteen. Sinks are stored twice: in the ring, where they are read while they are in the window, and in an
 * array of their own, where they are read afterwards.
 */
#pragma once

#include "backend/backend.h"

#define KV_LANES  16 /* positions of a panel */
#define KV_PANELS 8  /* of a block */

/* A cache without positions; `kv_free` is safe on a zeroed one. */
rosa_status kv_new(size_t heads, size_t head_size, size_t window, size_t sinks, size_t chunk, struct kv_cache *cache,
		   rosa_error *err);
void kv_free(struct kv_cache *cache);

/* The positions that such a cache has memory for once it has stored `steps`: its cache->room. */
size_t kv_room(size_t window, size_t sinks, size_t chunk, size_t steps);

/* Memory for `steps` more positions, at most cache->chunk. */
rosa_status kv_reserve(struct kv_cache *cache, size_t steps, rosa_error *err);

/* The most panels that a position may see once `steps` more have been stored. */
size_t kv_most_panels(const struct kv_cache *cache, size_t steps);

/* Store rows of one head as positions cache->steps and after, for which memory was reserved; k and v have `stride`
 * numbers from one position to the next. cache->steps is not changed. */
void kv_store(struct kv_cache *cache, size_t head, size_t steps, const float *k, const float *v, size_t stride);

/* Neighbouring panels in one block: keys [panels][head_size][16], values [panels * 16][kv_row]. */
struct kv_run {
	const float *keys, *values;
	size_t panels;
};

/* The run that begins with this panel, of at most `most` panels. */
struct kv_run kv_run_at(const struct kv_cache *cache, size_t head, size_t panel, size_t most);
/* The sinks' own array, from panel 0 on. */
struct kv_run kv_sinks(const struct kv_cache *cache, size_t head);

/* Numbers from one row of values to the next: head_size, padded with zeros to a multiple of 16. */
static inline size_t kv_row(size_t head_size)
{
	return (head_size + KV_LANES - 1) / KV_LANES * KV_LANES;
}

/* The first position that position t sees through the window. */
static inline size_t kv_begin(const struct kv_cache *cache, size_t t)
{
	return cache->window && t >= cache->window ? t + 1 - cache->window : 0;
}

/* And the end of the sinks that it sees beside that. */
static inline size_t kv_sinks_end(const struct kv_cache *cache, size_t t)
{
	const size_t begin = kv_begin(cache, t);

	return cache->sinks < begin ? cache->sinks : begin;
}

/* As in backend.h. */
size_t kv_kept(const struct kv_cache *cache);
void kv_save(const struct kv_cache *cache, float *keys, float *values);
rosa_status kv_load(struct kv_cache *cache, size_t steps, const float *keys, const float *values, rosa_error *err);
size_t kv_floor(const struct kv_cache *cache);
void kv_rewind(struct kv_cache *cache, size_t steps);
rosa_status kv_fork(const struct kv_cache *cache, size_t steps, struct kv_cache *copy, rosa_error *err);
