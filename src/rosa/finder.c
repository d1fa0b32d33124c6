/* A source that grows: streams, and the chain through what was found before. */
#include "rosa/finder.h"
#include "base/status.h"
#include "retrieval/links.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* What was found without delay at some steps. Within a block the steps of a route are neighbours. */
#define BLOCK ((size_t)4096)

struct finder_block {
	int32_t *tau;     /* [routes][BLOCK] */
	uint8_t length[]; /* [routes][BLOCK] */
};

static rosa_status no_memory(size_t steps, rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "no memory for what was found in %zu steps", steps);
}

/* The options of the stream that finds without delay. */
static rosa_options without_delay(const rosa_options *options)
{
	rosa_options undelayed = *options;

	undelayed.delay = 0;
	return undelayed;
}

rosa_status finder_new(struct finder *finder, const rosa_options *options, size_t routes, size_t links, rosa_error *err)
{
	const rosa_options undelayed = without_delay(options);
	rosa_status status;

	*finder = (struct finder){.options = *options, .routes = routes, .links = links};
	status = rosa_stream_new(options, routes, &finder->stream, err);
	if (status == ROSA_OK && links > 1 && finder->options.delay)
		status = rosa_stream_new(&undelayed, routes, &finder->undelayed, err);
	if (status != ROSA_OK)
		finder_free(finder);
	return status;
}

static void block_free(struct finder_block *block)
{
	if (block)
		free(block->tau);
	free(block);
}

void finder_free(struct finder *finder)
{
	rosa_stream_free(finder->stream);
	rosa_stream_free(finder->undelayed);
	for (size_t i = 0; i < finder->block_count; i++)
		block_free(finder->blocks[i]);
	free(finder->blocks);
	free(finder->scratch);
	*finder = (struct finder){0};
}

static struct finder_block *block_new(size_t routes)
{
	struct finder_block *block = malloc(sizeof(*block) + routes * BLOCK);

	if (!block)
		return NULL;
	block->tau = malloc(routes * BLOCK * sizeof(*block->tau));
	if (block->tau)
		return block;
	free(block);
	return NULL;
}

/* Memory to keep `steps` steps in all, and scratch memory for `more` of them at once. */
static rosa_status reserve(struct finder *finder, size_t steps, size_t more, rosa_error *err)
{
	const size_t need = finder->links > 1 ? (steps + BLOCK - 1) / BLOCK : 0;

	if (need > finder->block_count) {
		struct finder_block **blocks = realloc(finder->blocks, need * sizeof(*blocks));

		if (!blocks)
			return no_memory(steps, err);
		finder->blocks = blocks;
	}
	for (; finder->block_count < need; finder->block_count++) {
		struct finder_block *block = block_new(finder->routes);

		if (!block)
			return no_memory(steps, err);
		finder->blocks[finder->block_count] = block;
	}
	if (more > finder->scratch_steps) {
		int32_t *scratch = malloc(2 * finder->routes * more * sizeof(*scratch));

		if (!scratch)
			return no_memory(steps, err);
		free(finder->scratch);
		finder->scratch = scratch;
		finder->scratch_steps = more;
	}
	return ROSA_OK;
}

static inline uint8_t cut(int32_t length)
{
	return (uint8_t)(length < PLACES_LONGEST ? length : PLACES_LONGEST);
}

/* Keep what was found without delay at the steps that are being appended. */
static void keep(struct finder *finder, size_t steps, const int32_t *tau, const int32_t *length)
{
	for (size_t r = 0; r < finder->routes; r++) {
		for (size_t i = 0; i < steps; i++) {
			const size_t t = finder->steps + i, at = r * BLOCK + t % BLOCK;
			struct finder_block *block = finder->blocks[t / BLOCK];

			block->tau[at] = tau[r * steps + i];
			block->length[at] = cut(length[r * steps + i]);
		}
	}
}

/* The further links. */
static void follow(const struct finder *finder, struct places *places)
{
	const size_t steps = places->steps, cells = finder->routes * steps;

	for (size_t i = cells; i < finder->links * cells; i++) {
		const struct link last = {places->tau[i - cells], places->length[i - cells]};
		struct link found = {-1, 0}, link;

		if (last.place > 0) {
			const size_t before = (size_t)last.place - 1, r = i / steps % finder->routes;
			const struct finder_block *block = finder->blocks[before / BLOCK];
			const size_t at = r * BLOCK + before % BLOCK;

			found = (struct link){block->tau[at], block->length[at]};
		}
		link = link_next(last, found);
		places->tau[i] = link.place;
		places->length[i] = (uint8_t)link.length;
	}
}

rosa_status finder_find(struct finder *finder, size_t steps, const void *query, const void *key,
			struct past_control control, struct places *places, rosa_error *err)
{
	const size_t cells = finder->routes * steps;
	int32_t *tau, *length;
	rosa_status status = reserve(finder, finder->steps + steps, steps, err);

	if (status != ROSA_OK)
		return status;
	tau = finder->scratch;
	length = finder->scratch + cells;
	if (finder->undelayed) {
		status = rosa_stream_push(finder->undelayed, steps, query, key, steps, tau, length, NULL, err);
		if (status != ROSA_OK)
			return status;
		keep(finder, steps, tau, length);
	}
	status = rosa_stream_push(finder->stream, steps, query, key, steps, places->tau, length, NULL, err);
	if (status != ROSA_OK) {
		if (finder->undelayed)
			rosa_stream_rewind(finder->undelayed, finder->steps, NULL);
		return status;
	}
	if (finder->links > 1 && !finder->undelayed)
		keep(finder, steps, places->tau, length);
	for (size_t i = 0; i < cells; i++)
		places->length[i] = cut(length[i]);
	follow(finder, places);
	places_control(places, control, finder->steps, finder->options.delay);
	finder->steps += steps;
	return ROSA_OK;
}

rosa_status finder_rewind(struct finder *finder, size_t steps, rosa_error *err)
{
	rosa_status status = rosa_stream_rewind(finder->stream, steps, err);

	if (status == ROSA_OK && finder->undelayed)
		status = rosa_stream_rewind(finder->undelayed, steps, err);
	if (status == ROSA_OK)
		finder->steps = steps;
	return status;
}

rosa_status finder_fork(const struct finder *finder, size_t steps, struct finder *copy, rosa_error *err)
{
	rosa_status status;

	*copy = (struct finder){
	    .options = finder->options, .routes = finder->routes, .links = finder->links, .steps = finder->steps};
	status = rosa_stream_fork(finder->stream, &copy->stream, err);
	if (status == ROSA_OK && finder->undelayed)
		status = rosa_stream_fork(finder->undelayed, &copy->undelayed, err);
	if (status == ROSA_OK)
		status = reserve(copy, steps, 0, err);
	if (status == ROSA_OK)
		status = finder_rewind(copy, steps, err);
	if (status != ROSA_OK) {
		finder_free(copy);
		return status;
	}
	for (size_t i = 0; i < copy->block_count; i++) {
		memcpy(copy->blocks[i]->tau, finder->blocks[i]->tau, finder->routes * BLOCK * sizeof(int32_t));
		memcpy(copy->blocks[i]->length, finder->blocks[i]->length, finder->routes * BLOCK);
	}
	return ROSA_OK;
}

static uint64_t stream_bytes(const rosa_stream *stream)
{
	rosa_stream_info info = {.size = sizeof(info)};

	return stream && rosa_stream_describe(stream, &info, NULL) == ROSA_OK ? info.bytes : 0;
}

uint64_t finder_bytes(const struct finder *finder)
{
	return stream_bytes(finder->stream) + stream_bytes(finder->undelayed) +
	       finder->block_count * (sizeof(*finder->blocks) + sizeof(struct finder_block) +
				      finder->routes * BLOCK * (sizeof(int32_t) + sizeof(uint8_t)));
}

/* -------------------------------------------------------------------------------------------------------- images -- */

/*
 * Each stream as rosa_stream_save_memory writes it, after its size (u64); then, with a chain, what was found without
 * delay: destinations [routes][steps] (i32) and lengths [routes][steps] (u8).
 */

struct image {
	char *data;
	size_t size;
};

static rosa_status append(struct image *image, const void *data, size_t size, rosa_error *err)
{
	char *grown = realloc(image->data, image->size + size);

	if (!grown)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to save %zu bytes", image->size + size);
	memcpy(grown + image->size, data, size);
	image->data = grown;
	image->size += size;
	return ROSA_OK;
}

static rosa_status append_stream(struct image *image, const rosa_stream *stream, rosa_error *err)
{
	void *data = NULL;
	size_t size = 0;
	uint64_t bytes;
	rosa_status status = rosa_stream_save_memory(stream, &data, &size, err);

	bytes = size;
	if (status == ROSA_OK)
		status = append(image, &bytes, sizeof(bytes), err);
	if (status == ROSA_OK)
		status = append(image, data, size, err);
	rosa_stream_free_memory(stream, data);
	return status;
}

/* Copy what is kept of all routes between the blocks and an image. */
static void copy_kept(const struct finder *finder, char *tau, char *length, bool in)
{
	for (size_t r = 0; r < finder->routes; r++) {
		for (size_t t = 0; t < finder->steps; t += BLOCK) {
			const size_t left = finder->steps - t, some = left < BLOCK ? left : BLOCK;
			struct finder_block *block = finder->blocks[t / BLOCK];
			char *kept = (char *)(block->tau + r * BLOCK), *lengths = (char *)(block->length + r * BLOCK);

			memcpy(in ? kept : tau, in ? tau : kept, some * sizeof(*block->tau));
			memcpy(in ? lengths : length, in ? length : lengths, some);
			tau += some * sizeof(*block->tau);
			length += some;
		}
	}
}

/* Bytes of what is kept of all steps. */
static size_t kept_bytes(const struct finder *finder)
{
	return finder->links > 1 ? finder->routes * finder->steps * (sizeof(int32_t) + 1) : 0;
}

rosa_status finder_save(const struct finder *finder, void **data, size_t *size, rosa_error *err)
{
	const size_t kept = kept_bytes(finder);
	struct image image = {0};
	rosa_status status = append_stream(&image, finder->stream, err);

	if (status == ROSA_OK && finder->undelayed)
		status = append_stream(&image, finder->undelayed, err);
	if (status == ROSA_OK && kept) {
		char *bytes = malloc(kept);

		if (bytes) {
			copy_kept(finder, bytes, bytes + finder->routes * finder->steps * sizeof(int32_t), false);
			status = append(&image, bytes, kept, err);
		} else {
			status = no_memory(finder->steps, err);
		}
		free(bytes);
	}
	if (status != ROSA_OK)
		free(image.data);
	*data = status == ROSA_OK ? image.data : NULL;
	*size = status == ROSA_OK ? image.size : 0;
	return status;
}

static rosa_status misfit(rosa_error *err)
{
	return rosa_fail(err, ROSA_EFORMAT, "the saved retrieval does not fit the adapter, or has been altered");
}

/* The next stream of an image, made with these options. */
static rosa_status take_stream(const struct finder *finder, const rosa_options *options, const char **data,
			       size_t *left, rosa_stream **stream, rosa_error *err)
{
	rosa_stream_info info = {.size = sizeof(info)};
	uint64_t size = 0;
	rosa_status status;

	if (*left < sizeof(size))
		return misfit(err);
	memcpy(&size, *data, sizeof(size));
	*data += sizeof(size);
	*left -= sizeof(size);
	if (size > *left)
		return misfit(err);
	status = rosa_stream_load_memory(options, *data, size, stream, err);
	if (status == ROSA_OK)
		status = rosa_stream_describe(*stream, &info, err);
	if (status != ROSA_OK)
		return status;
	*data += size;
	*left -= size;
	if (info.routes != finder->routes || info.steps != finder->steps || info.bits != options->bits ||
	    info.policy != options->policy || !info.fold != !options->fold || info.max_match != options->max_match ||
	    info.delay != options->delay)
		return misfit(err);
	return ROSA_OK;
}

/* Every place is an earlier step or none, and none has no length: else follow() could leave the text. */
static bool kept_is_sound(const struct finder *finder)
{
	for (size_t r = 0; r < finder->routes; r++) {
		for (size_t t = 0; t < finder->steps; t++) {
			const int32_t tau = finder->blocks[t / BLOCK]->tau[r * BLOCK + t % BLOCK];

			if (tau < -1 || tau > (int32_t)t)
				return false;
		}
	}
	return true;
}

rosa_status finder_load(struct finder *finder, const rosa_options *options, size_t routes, size_t links, size_t steps,
			const void *image, size_t size, rosa_error *err)
{
	const rosa_options undelayed = without_delay(options);
	const char *data = image;
	rosa_status status;

	*finder = (struct finder){.options = *options, .routes = routes, .links = links, .steps = steps};
	status = take_stream(finder, options, &data, &size, &finder->stream, err);
	if (status == ROSA_OK && links > 1 && finder->options.delay)
		status = take_stream(finder, &undelayed, &data, &size, &finder->undelayed, err);
	if (status == ROSA_OK && size != kept_bytes(finder))
		status = misfit(err);
	if (status == ROSA_OK)
		status = reserve(finder, steps, 0, err);
	if (status == ROSA_OK && size) {
		copy_kept(finder, (char *)data, (char *)data + routes * steps * sizeof(int32_t), true);
		if (!kept_is_sound(finder))
			status = misfit(err);
	}
	if (status != ROSA_OK)
		finder_free(finder);
	return status;
}
