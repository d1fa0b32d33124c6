/* The store of keys and values; kv_store.h has the design. */
#include "backend/kv_store.h"
#include "base/status.h"
#include "base/sizes.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_POSITIONS ((size_t)KV_PANELS * KV_LANES)
#define ALIGNMENT       ((size_t)64)

struct block {
	void *memory; /* what to free */
	float *keys, *values;
};

struct store {
	size_t ring;       /* panels; 0: all positions are kept */
	size_t lost;       /* positions before this one are not in the ring, beside those that `steps` tells of */
	size_t blocks;     /* allocated */
	size_t block_room; /* of the array */
	struct block *block;
	struct block sinks;
	size_t sink_panels;
};

/* a * b, or SIZE_MAX where that overflows: no allocation of that size succeeds. */
static size_t times(size_t a, size_t b)
{
	return b && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

static size_t plus(size_t a, size_t b)
{
	return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static size_t panels_of(size_t positions)
{
	return positions / KV_LANES + (positions % KV_LANES != 0);
}

/* Zeroed, so that lanes without a position hold numbers too; calloc does not touch the pages. */
static bool take_block(const struct kv_cache *cache, size_t panels, struct block *block)
{
	const size_t lanes = times(times(cache->heads, panels), KV_LANES), keys = times(lanes, cache->head_size),
		     values = times(lanes, kv_row(cache->head_size)),
		     bytes = plus(times(plus(keys, values), sizeof(float)), ALIGNMENT);
	char *memory = bytes < SIZE_MAX / 2 ? calloc(bytes, 1) : NULL;

	if (!memory)
		return false;
	block->memory = memory;
	memory += ALIGNMENT - (uintptr_t)memory % ALIGNMENT;
	block->keys = (float *)(void *)memory;
	block->values = block->keys + keys;
	return true;
}

static rosa_status no_memory(const struct kv_cache *cache, size_t positions, rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM,
			 "no memory for keys and values of %zu more positions (%zu heads of %zu numbers, window %zu)",
			 positions, cache->heads, cache->head_size, cache->window);
}

/* Panels of the ring. Blocks are whole, and so is the ring. */
static size_t ring_of(size_t window, size_t chunk)
{
	return window ? (panels_of(plus(window, chunk) - 1) + KV_PANELS - 1) / KV_PANELS * KV_PANELS : 0;
}

/* Blocks for so many positions. */
static size_t blocks_for(size_t ring, size_t positions)
{
	const size_t panels = panels_of(positions);

	return ((ring ? smaller(panels, ring) : panels) + KV_PANELS - 1) / KV_PANELS;
}

size_t kv_room(size_t window, size_t sinks, size_t chunk, size_t steps)
{
	return (blocks_for(ring_of(window, chunk), steps) * KV_PANELS + (window ? panels_of(sinks) : 0)) * KV_LANES;
}

rosa_status kv_new(size_t heads, size_t head_size, size_t window, size_t sinks, size_t chunk, struct kv_cache *cache,
		   rosa_error *err)
{
	struct store *store;

	memset(cache, 0, sizeof(*cache));
	if (!heads || !head_size || !chunk)
		return rosa_fail(err, ROSA_EINVAL,
				 "a cache of %zu heads of %zu numbers, %zu steps at once: none may be 0", heads,
				 head_size, chunk);
	if (head_size > BACKEND_MOST_HEAD)
		return rosa_fail(err, ROSA_EINVAL, "heads of %zu numbers; this program takes up to %d", head_size,
				 BACKEND_MOST_HEAD);
	if (!window)
		sinks = 0; /* all positions are seen anyway */
	*cache =
	    (struct kv_cache){.heads = heads, .head_size = head_size, .window = window, .sinks = sinks, .chunk = chunk};
	store = calloc(1, sizeof(*store));
	if (!store)
		return no_memory(cache, 0, err);
	cache->place = store;
	store->ring = ring_of(window, chunk);
	store->sink_panels = panels_of(sinks);
	if (times(times(heads, kv_row(head_size)), BLOCK_POSITIONS) >= SIZE_MAX / 16 ||
	    (sinks && !take_block(cache, store->sink_panels, &store->sinks))) {
		rosa_status status = no_memory(cache, plus(sinks, window), err);

		kv_free(cache);
		return status;
	}
	return ROSA_OK;
}

void kv_free(struct kv_cache *cache)
{
	struct store *store = cache->place;

	if (store) {
		for (size_t i = 0; i < store->blocks; i++)
			free(store->block[i].memory);
		free(store->block);
		free(store->sinks.memory);
		free(store);
	}
	memset(cache, 0, sizeof(*cache));
}

static rosa_status make_room(struct kv_cache *cache, size_t steps, rosa_error *err)
{
	struct store *store = cache->place;
	const size_t need = steps > SIZE_MAX - cache->steps ? SIZE_MAX : blocks_for(store->ring, cache->steps + steps);

	if (need > store->block_room) {
		const size_t room = need > SIZE_MAX / 2 ? need : 2 * need;
		struct block *grown =
		    room < SIZE_MAX / sizeof(*grown) ? realloc(store->block, room * sizeof(*grown)) : NULL;

		if (!grown)
			return no_memory(cache, steps, err);
		store->block = grown;
		store->block_room = room;
	}
	while (store->blocks < need) {
		if (!take_block(cache, KV_PANELS, &store->block[store->blocks]))
			return no_memory(cache, steps, err);
		store->blocks++;
		cache->room = (store->blocks * KV_PANELS + store->sink_panels) * KV_LANES;
	}
	return ROSA_OK;
}

rosa_status kv_reserve(struct kv_cache *cache, size_t steps, rosa_error *err)
{
	if (steps > cache->chunk)
		return rosa_fail(err, ROSA_EINVAL, "%zu steps at once; this cache was made for up to %zu", steps,
				 cache->chunk);
	return make_room(cache, steps, err);
}

size_t kv_most_panels(const struct kv_cache *cache, size_t steps)
{
	const struct store *store = cache->place;
	const size_t all = panels_of(plus(cache->steps, steps));

	/* A full ring begins and ends within the same panel, which counts twice. */
	return store->ring ? smaller(all, store->ring + 1) + store->sink_panels : all;
}

/* Where panel `panel` is. */
static size_t slot_of(const struct store *store, size_t panel)
{
	return store->ring ? panel % store->ring : panel;
}

static float *panel_keys(const struct kv_cache *cache, const struct block *block, size_t panels, size_t head,
			 size_t panel)
{
	return block->keys + (head * panels + panel) * cache->head_size * KV_LANES;
}

static float *panel_values(const struct kv_cache *cache, const struct block *block, size_t panels, size_t head,
			   size_t panel)
{
	return block->values + (head * panels + panel) * kv_row(cache->head_size) * KV_LANES;
}

/* Store `count` positions in a panel, from lane `lane` on. Channels are the outer loop: a row of the panel is written
 * at once, and sixteen rows of k stay in the cache. */
static void fill_panel(const struct kv_cache *cache, float *keys, float *values, size_t lane, size_t count,
		       const float *k, const float *v, size_t stride)
{
	const size_t row = kv_row(cache->head_size);

	for (size_t c = 0; c < cache->head_size; c++)
		for (size_t i = 0; i < count; i++)
			keys[c * KV_LANES + lane + i] = k[i * stride + c];
	for (size_t i = 0; i < count; i++)
		memcpy(values + (lane + i) * row, v + i * stride, cache->head_size * sizeof(*v));
}

/* Into the ring, or the blocks that stand for it. */
static void store_at(struct kv_cache *cache, size_t head, size_t position, size_t steps, const float *k, const float *v,
		     size_t stride)
{
	const struct store *store = cache->place;

	for (size_t i = 0; i < steps;) {
		const size_t lane = (position + i) % KV_LANES, count = smaller(steps - i, KV_LANES - lane),
			     slot = slot_of(store, (position + i) / KV_LANES), panel = slot % KV_PANELS;
		const struct block *block = &store->block[slot / KV_PANELS];

		fill_panel(cache, panel_keys(cache, block, KV_PANELS, head, panel),
			   panel_values(cache, block, KV_PANELS, head, panel), lane, count, k + i * stride,
			   v + i * stride, stride);
		i += count;
	}
}

static void store_sinks(struct kv_cache *cache, size_t head, size_t position, size_t steps, const float *k,
			const float *v, size_t stride)
{
	const struct store *store = cache->place;

	for (size_t i = 0; i < steps && position + i < cache->sinks; i++) {
		const size_t panel = (position + i) / KV_LANES;

		fill_panel(cache, panel_keys(cache, &store->sinks, store->sink_panels, head, panel),
			   panel_values(cache, &store->sinks, store->sink_panels, head, panel),
			   (position + i) % KV_LANES, 1, k + i * stride, v + i * stride, stride);
	}
}

void kv_store(struct kv_cache *cache, size_t head, size_t steps, const float *k, const float *v, size_t stride)
{
	store_at(cache, head, cache->steps, steps, k, v, stride);
	store_sinks(cache, head, cache->steps, steps, k, v, stride);
}

struct kv_run kv_run_at(const struct kv_cache *cache, size_t head, size_t panel, size_t most)
{
	const struct store *store = cache->place;
	const size_t slot = slot_of(store, panel), in_block = slot % KV_PANELS;
	const struct block *block = &store->block[slot / KV_PANELS];

	return (struct kv_run){panel_keys(cache, block, KV_PANELS, head, in_block),
			       panel_values(cache, block, KV_PANELS, head, in_block),
			       smaller(most, KV_PANELS - in_block)};
}

struct kv_run kv_sinks(const struct kv_cache *cache, size_t head)
{
	const struct store *store = cache->place;

	return (struct kv_run){panel_keys(cache, &store->sinks, store->sink_panels, head, 0),
			       panel_values(cache, &store->sinks, store->sink_panels, head, 0), store->sink_panels};
}

/* ----------------------------------------------------------------------------------------------- saving, loading -- */

/* What is kept is what the next position, number `steps`, will see besides itself: sinks, then a window. */
size_t kv_kept(const struct kv_cache *cache)
{
	return kv_sinks_end(cache, cache->steps) + cache->steps - kv_begin(cache, cache->steps);
}

static void fetch(const struct kv_cache *cache, struct kv_run run, size_t lane, float *key, float *value)
{
	for (size_t c = 0; c < cache->head_size; c++)
		key[c] = run.keys[c * KV_LANES + lane];
	memcpy(value, run.values + lane * kv_row(cache->head_size), cache->head_size * sizeof(*value));
}

void kv_save(const struct kv_cache *cache, float *keys, float *values)
{
	const size_t sinks = kv_sinks_end(cache, cache->steps), begin = kv_begin(cache, cache->steps),
		     size = cache->head_size, kept = kv_kept(cache);

	for (size_t i = 0; i < kept; i++) {
		const size_t position = i < sinks ? i : begin + i - sinks, panel = position / KV_LANES;

		for (size_t h = 0; h < cache->heads; h++) {
			struct kv_run run = i < sinks ? kv_sinks(cache, h) : kv_run_at(cache, h, panel, 1);

			if (i < sinks) {
				run.keys += panel * size * KV_LANES;
				run.values += panel * kv_row(size) * KV_LANES;
			}
			fetch(cache, run, position % KV_LANES, keys + (i * cache->heads + h) * size,
			      values + (i * cache->heads + h) * size);
		}
	}
}

rosa_status kv_load(struct kv_cache *cache, size_t steps, const float *keys, const float *values, rosa_error *err)
{
	const size_t stride = cache->heads * cache->head_size;
	size_t sinks, begin;
	rosa_status status;

	if (steps > SIZE_MAX / 4)
		return no_memory(cache, steps, err);
	if (cache->steps)
		return rosa_fail(err, ROSA_EINVAL, "the cache to load into has %zu positions already; use a new one",
				 cache->steps);
	status = make_room(cache, steps, err);
	if (status)
		return status;
	sinks = kv_sinks_end(cache, steps);
	begin = kv_begin(cache, steps);
	for (size_t h = 0; h < cache->heads; h++) {
		const float *k = keys + h * cache->head_size, *v = values + h * cache->head_size;

		store_sinks(cache, h, 0, sinks, k, v, stride);
		store_sinks(cache, h, begin, steps - begin, k + sinks * stride, v + sinks * stride, stride);
		store_at(cache, h, begin, steps - begin, k + sinks * stride, v + sinks * stride, stride);
	}
	((struct store *)cache->place)->lost = begin;
	cache->steps = steps;
	return ROSA_OK;
}

/* --------------------------------------------------------------------------------------------------- going back -- */

/* The oldest position in the ring. Positions that were undone have overwritten older ones too, which `lost` tells. */
static size_t oldest(const struct kv_cache *cache)
{
	const struct store *store = cache->place;
	const size_t ring = store->ring * KV_LANES, gone = ring && cache->steps > ring ? cache->steps - ring : 0;

	return gone > store->lost ? gone : store->lost;
}

/* The position after the last one kept, number `steps`, must find its window. */
size_t kv_floor(const struct kv_cache *cache)
{
	const size_t first = cache->window ? oldest(cache) : 0;

	return first ? first + cache->window - 1 : 0;
}

void kv_rewind(struct kv_cache *cache, size_t steps)
{
	struct store *store = cache->place;

	store->lost = cache->window ? oldest(cache) : 0;
	cache->steps = steps;
}

static void copy_block(const struct kv_cache *cache, size_t panels, const struct block *from, struct block *to)
{
	const size_t lanes = cache->heads * panels * KV_LANES;

	memcpy(to->keys, from->keys, lanes * cache->head_size * sizeof(float));
	memcpy(to->values, from->values, lanes * kv_row(cache->head_size) * sizeof(float));
}

rosa_status kv_fork(const struct kv_cache *cache, size_t steps, struct kv_cache *copy, rosa_error *err)
{
	const struct store *from = cache->place;
	struct store *to;
	rosa_status status =
	    kv_new(cache->heads, cache->head_size, cache->window, cache->sinks, cache->chunk, copy, err);

	if (status == ROSA_OK)
		status = make_room(copy, from->ring ? cache->steps : steps, err);
	if (status != ROSA_OK) {
		kv_free(copy);
		return status;
	}
	to = copy->place;
	for (size_t i = 0; i < to->blocks; i++)
		copy_block(cache, KV_PANELS, &from->block[i], &to->block[i]);
	if (cache->sinks)
		copy_block(cache, from->sink_panels, &from->sinks, &to->sinks);
	to->lost = cache->window ? oldest(cache) : 0;
	copy->steps = steps;
	return ROSA_OK;
}
