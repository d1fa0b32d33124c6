/*
 * A grid of settings over which a form of retrieval is compared.
 *
 * Kinds of stream, policies and folding are tried in full. The other settings are drawn for each cell from the seed, so
 * that another seed is another test. Streams of more steps than the oracle can take are compared with the library's
 * engine alone, which the oracle has checked on the others.
 */
#include "support_grid.h"

#include "eval/streams.h"
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORACLE_STEPS  300
#define SHOWN         8 /* differences that are printed */
#define ELEMENTS(set) (sizeof(set) / sizeof((set)[0]))

static const int bits_tried[] = {1, 2, 3, 4, 4, 5, 7, 8, 9, 12, 16, 16, 17, 18, 20};
static const uint32_t cuts_tried[] = {0, 0, 0, 1, 2, 3, 5, 17, 40};
static const uint32_t delays_tried[] = {0, 0, 0, 1, 2, 7, 100, 100000};
static const size_t steps_tried[] = {1,   2,   3,   5,   17,  31,  32,   33,   100,  255,
				     256, 257, 300, 511, 512, 513, 1000, 2000, 3001, 5000};

struct cell {
	rosa_options options;
	int kind;
	uint64_t seed;
	size_t routes, steps;
	bool flips, length;
	void *query, *key;
	int32_t *tau[2], *lengths[2], *tables[2]; /* of the retrieval under test, and as they should be */
};

struct tally {
	size_t cells, oracle, steps, handed, failed;
};

static uint64_t draw(uint64_t *state, uint64_t below)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return (x ^ (x >> 31)) % below;
}

static void *room(size_t size)
{
	void *memory = malloc(size + 1);

	if (!memory)
		abort();
	memset(memory, 0x5a, size + 1);
	return memory;
}

/* One route's symbols. Wide ones are narrow ones spread over the range; so are some of the narrow ones. */
static void fill(const struct cell *cell, size_t r, bool few)
{
	const int bits = cell->options.bits, width = bits > 16 ? 16 : bits;
	const int made = few && width > 2 ? 2 : width;
	const size_t size = bits > 16 ? 4 : 2, steps = cell->steps;
	uint16_t *query = room(steps * 2), *key = room(steps * 2);

	stream_fill(cell->kind, made, cell->seed + r, steps, query, key);
	if (made < width) {
		stream_spread(width, steps, query);
		stream_spread(width, steps, key);
	}
	for (size_t t = 0; t < steps; t++) {
		if (size == 2) {
			((uint16_t *)cell->query)[r * steps + t] = query[t];
			((uint16_t *)cell->key)[r * steps + t] = key[t];
		} else {
			const uint32_t mask = (UINT32_C(1) << bits) - 1;

			((uint32_t *)cell->query)[r * steps + t] = query[t] * 0x9e3779b1u & mask;
			((uint32_t *)cell->key)[r * steps + t] = key[t] * 0x9e3779b1u & mask;
		}
	}
	free(query);
	free(key);
}

static const char *policy_word(rosa_policy policy)
{
	return policy == ROSA_READABLE ? "readable" : policy == ROSA_LITERAL ? "literal" : "inclusive";
}

static void describe(const struct cell *cell)
{
	printf("  %s: bits %d, %s, fold %d, max_match %u, delay %u, routes %zu, steps %zu, seed %llu\n",
	       stream_name(cell->kind), cell->options.bits, policy_word(cell->options.policy), cell->options.fold,
	       cell->options.max_match, cell->options.delay, cell->routes, cell->steps, (unsigned long long)cell->seed);
}

static bool same(const struct cell *cell, const char *what, const char *by, size_t width, const int32_t *got,
		 const int32_t *want, bool quiet)
{
	for (size_t i = 0; i < cell->routes * cell->steps * width; i++) {
		if (got[i] == want[i])
			continue;
		if (!quiet) {
			describe(cell);
			printf("    %s at route %zu, step %zu (%zu): %d, but the %s says %d\n", what,
			       i / width / cell->steps, i / width % cell->steps, i % width, got[i], by, want[i]);
		}
		return false;
	}
	return true;
}

/* The answers as they should be, by the oracle or by the engine. */
static bool solve(const struct cell *cell, bool oracle)
{
	const size_t size = cell->options.bits > 16 ? 4 : 2, bits = (size_t)cell->options.bits;
	const bool narrow = cell->options.bits <= ROSA_MAX_BITS;
	rosa_flips flips = {0};
	rosa_error err;

	if (oracle) {
		for (size_t r = 0; r < cell->routes; r++) {
			const size_t at = r * cell->steps;

			oracle_route(&cell->options, cell->steps, (const char *)cell->query + at * size,
				     (const char *)cell->key + at * size, cell->tau[1] + at, cell->lengths[1] + at,
				     narrow ? cell->tables[1] + at * bits : NULL);
		}
		return true;
	}
	if (rosa_retrieve(&cell->options, cell->routes, cell->steps, cell->query, cell->key, cell->tau[1],
			  cell->lengths[1], narrow ? &flips : NULL, &err)) {
		printf("  the engine failed: %s\n", err.message);
		return false;
	}
	for (size_t r = 0; r < cell->routes && narrow; r++)
		rosa_flips_expand(&flips, r, cell->steps, cell->tables[1] + r * cell->steps * bits, &err);
	rosa_flips_free(&flips);
	return true;
}

static bool try_cell(grid_retrieve *retrieve, void *context, struct cell *cell, bool few, struct tally *tally,
		     bool quiet)
{
	const size_t cells = cell->routes * cell->steps, size = cell->options.bits > 16 ? 4 : 2;
	const size_t bits = (size_t)cell->options.bits;
	const bool oracle = cell->steps <= ORACLE_STEPS;
	const char *by = oracle ? "oracle" : "engine";
	size_t handed = 0;
	rosa_error err;
	bool well;

	cell->query = room(cells * size);
	cell->key = room(cells * size);
	for (int i = 0; i < 2; i++) {
		cell->tau[i] = room(cells * sizeof(int32_t));
		cell->lengths[i] = room(cells * sizeof(int32_t));
		cell->tables[i] = room(cells * bits * sizeof(int32_t));
	}
	for (size_t r = 0; r < cell->routes; r++)
		fill(cell, r, few);
	well = solve(cell, oracle);
	if (retrieve(context, &cell->options, cell->routes, cell->steps, cell->query, cell->key, cell->tau[0],
		     cell->length ? cell->lengths[0] : NULL, cell->flips ? cell->tables[0] : NULL, &handed, &err)) {
		if (!quiet) {
			describe(cell);
			printf("    failed: %s\n", err.message);
		}
		well = false;
	}
	well = well && same(cell, "tau", by, 1, cell->tau[0], cell->tau[1], quiet) &&
	       (!cell->length || same(cell, "length", by, 1, cell->lengths[0], cell->lengths[1], quiet)) &&
	       (!cell->flips || same(cell, "flip", by, bits, cell->tables[0], cell->tables[1], quiet));
	tally->cells++;
	tally->oracle += oracle;
	tally->steps += cells;
	tally->handed += handed;
	tally->failed += !well;
	for (int i = 0; i < 2; i++) {
		free(cell->tau[i]);
		free(cell->lengths[i]);
		free(cell->tables[i]);
	}
	free(cell->query);
	free(cell->key);
	return well;
}

#define PICK(set) (set)[draw(&random, ELEMENTS(set))]

size_t grid_run(grid_retrieve *retrieve, void *context, uint64_t seed, size_t rounds, size_t longest, bool tables)
{
	struct tally all = {0};
	uint64_t random = seed;

	printf("%-24s %6s %9s %10s %13s %7s\n", "stream", "cells", "by oracle", "steps", "routes handed", "failed");
	for (int kind = 0; kind < stream_count(); kind++) {
		struct tally tally = {0};

		for (size_t i = 0; i < 6 * rounds; i++) {
			struct cell cell = {.options = ROSA_OPTIONS_INIT, .kind = kind};
			bool few = draw(&random, 4) == 0;

			cell.options.policy = (rosa_policy)(i % 3);
			cell.options.fold = i / 3 % 2 == 0;
			cell.options.bits = PICK(bits_tried);
			cell.options.max_match = PICK(cuts_tried);
			cell.options.delay = PICK(delays_tried);
			cell.options.threads = 0;
			cell.seed = draw(&random, UINT32_MAX);
			do
				cell.steps = PICK(steps_tried);
			while (cell.steps > longest);
			cell.routes = 1 + draw(&random, cell.steps < 400 ? 9 : 3);
			cell.flips = tables && cell.options.bits <= ROSA_MAX_BITS && draw(&random, 2);
			cell.length = draw(&random, 2);
			try_cell(retrieve, context, &cell, few, &tally, all.failed + tally.failed >= SHOWN);
		}
		printf("%-24s %6zu %9zu %10zu %13zu %7zu\n", stream_name(kind), tally.cells, tally.oracle, tally.steps,
		       tally.handed, tally.failed);
		all.cells += tally.cells;
		all.oracle += tally.oracle;
		all.steps += tally.steps;
		all.handed += tally.handed;
		all.failed += tally.failed;
	}
	printf("%-24s %6zu %9zu %10zu %13zu %7zu\n", "all", all.cells, all.oracle, all.steps, all.handed, all.failed);
	return all.failed;
}

rosa_status grid_pieces(void *context, const rosa_options *options, size_t routes, size_t steps, const void *query,
			const void *key, int32_t *tau, int32_t *length, int32_t *flips, size_t *handed, rosa_error *err)
{
	static const size_t sizes[] = {1, 2, 3, 31, 64, 255, 256, 257, 600, 1024};
	const size_t size = options->bits > 16 ? 4 : 2;
	uint64_t random = steps * 31 + routes * 7 + options->delay + (uint64_t)options->bits;
	const uint64_t how = draw(&random, 4);
	const size_t drawn = PICK(sizes), fixed = drawn > steps / 50 ? drawn : steps / 50;
	rosa_stream_info info = {.size = sizeof(info)};
	rosa_cuda_stream *stream = NULL;
	rosa_status status = rosa_cuda_stream_new(context, options, routes, &stream, err);

	(void)flips;
	for (size_t t = 0, piece; t < steps && !status; t += piece) {
		piece = how == 0 ? steps : how == 1 && steps <= 100 ? 1 : how == 2 ? fixed : PICK(sizes);
		if (piece > steps - t)
			piece = steps - t;
		status =
		    rosa_cuda_stream_push(stream, piece, (const char *)query + t * size, (const char *)key + t * size,
					  steps, tau + t, length ? length + t : NULL, err);
	}
	if (!status)
		status = rosa_cuda_stream_describe(stream, &info, err);
	*handed = info.ordered;
	rosa_cuda_stream_free(stream);
	return status;
}
