/* Places of whole sequences. */
#include "rosa/lookup.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "retrieval/links.h"
#include "retrieval/symbol_array.h"
#include "rosa/destinations.h"

static rosa_status reserve(const rosa_options *options, void **block, size_t *have, size_t need, const char *what,
			   size_t steps, rosa_error *err)
{
	void *grown;

	if (need <= *have)
		return ROSA_OK;
	memory_free(&options->allocator, *block);
	*block = NULL;
	*have = 0;
	grown = memory_resize(&options->allocator, NULL, need);
	if (!grown)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the %s of %zu steps", what, steps);
	*block = grown;
	*have = need;
	return ROSA_OK;
}

/* Places of one link. */
static size_t link_cells(const struct lookup_shape *shape)
{
	return shape->count * shape->routes * shape->steps;
}

rosa_status lookup_reserve(const rosa_options *options, const struct lookup_shape *shape, struct lookup *lookup,
			   rosa_error *err)
{
	const size_t cells = shape->links * link_cells(shape);
	void *length = lookup->length;
	rosa_status status;

	lookup->shape = *shape;
	lookup->width = rosa_width(shape->steps);
	status = reserve(options, &lookup->read, &lookup->read_bytes, cells * (size_t)lookup->width, "destinations",
			 shape->steps, err);
	if (status == ROSA_OK && shape->lengths)
		status = reserve(options, &length, &lookup->length_bytes, cells, "match lengths", shape->steps, err);
	lookup->length = length;
	return status;
}

void lookup_free(const rosa_options *options, struct lookup *lookup)
{
	memory_free(&options->allocator, lookup->read);
	memory_free(&options->allocator, lookup->length);
	memory_free(&options->allocator, lookup->flips);
	*lookup = (struct lookup){0};
}

size_t lookup_bytes(const struct lookup *lookup)
{
	return lookup->read_bytes + lookup->length_bytes + lookup->flips_bytes;
}

/* The first links, with the counterfactual tables where they are wanted. */
static rosa_status find_first(const rosa_options *options, const rosa_learning *learning, const uint64_t *seeds,
			      const void *query, const void *key, struct lookup *lookup, rosa_error *err)
{
	const struct lookup_shape *shape = &lookup->shape;
	const size_t steps = shape->steps, width = (size_t)lookup->width;
	const unsigned bits = (unsigned)options->bits;
	const size_t row_bytes = (size_t)(options->bits + 1) * width;
	const bool flips = learning && learning->qk_grad == ROSA_QK_FLIPS;
	const bool draws = learning && (learning->explore > 0 || (flips && learning->flip_share < 1));
	const bool by_sequence = draws && seeds;
	const size_t calls = by_sequence ? shape->count : 1, routes = shape->count / calls * shape->routes;
	rosa_learning mine = learning ? *learning : (rosa_learning)ROSA_LEARNING_INIT;
	rosa_status status = ROSA_OK;
	char *tables;

	if (flips)
		status =
		    reserve(options, &lookup->flips, &lookup->flips_bytes,
			    rosa_count_runs(shape->count * shape->routes, steps, query, options->bits, options->fold) *
				row_bytes,
			    "counterfactual tables", steps, err);
	tables = lookup->flips;
	for (size_t i = 0; i < calls && status == ROSA_OK; i++) {
		const size_t at = i * routes * steps;

		if (by_sequence)
			mine.seed = seeds[i];
		status = rosa_find(options, learning ? &mine : NULL, routes, steps, symbols_from(query, bits, at),
				   symbols_from(key, bits, at), (char *)lookup->read + at * width,
				   shape->lengths ? lookup->length + at : NULL, tables, err);
		if (flips && i + 1 < calls)
			tables += rosa_count_runs(routes, steps, symbols_from(query, bits, at), options->bits,
						  options->fold) *
				  row_bytes;
	}
	return status;
}

/* ----------------------------------------------------------------------------------------------------- the chain -- */

struct following {
	struct lookup *lookup;
	const void *tau0; /* [count * routes][steps] what is found without delay */
	const uint8_t *length0;
};

/* The further links of one route. */
static void follow_row(void *context, size_t row, unsigned worker)
{
	const struct following *following = context;
	struct lookup *lookup = following->lookup;
	const size_t steps = lookup->shape.steps, cells = link_cells(&lookup->shape);
	const int width = lookup->width;

	(void)worker;
	for (size_t i = 1; i < lookup->shape.links; i++) {
		for (size_t t = 0; t < steps; t++) {
			const size_t at = i * cells + row * steps + t;
			const bool lengths = lookup->shape.lengths;
			const struct link last = {destination_at(lookup->read, at - cells, width),
						  lengths ? lookup->length[at - cells] : 0};
			struct link found = {-1, 0}, link;

			if (last.place > 0) {
				const size_t before = row * steps + (size_t)last.place - 1;

				found.place = destination_at(following->tau0, before, width);
				found.length = lengths ? following->length0[before] : 0;
			}
			link = link_next(last, found);
			destinations_store(lookup->read, &link.place, at, 1, width);
			if (lengths)
				lookup->length[at] = (uint8_t)link.length;
		}
	}
}

static rosa_status follow(const rosa_options *options, const rosa_learning *learning, const void *query,
			  const void *key, struct lookup *lookup, rosa_error *err)
{
	const struct lookup_shape *shape = &lookup->shape;
	struct following following = {lookup, lookup->read, lookup->length};
	struct lookup undelayed = {0};
	rosa_status status = ROSA_OK;

	/* what was found at d - 1, which explored steps are not */
	if (options->delay || (learning && learning->explore > 0)) {
		struct lookup_shape first = *shape;
		rosa_options plain = *options;

		first.links = 1;
		plain.delay = 0;
		status = lookup_reserve(options, &first, &undelayed, err);
		if (status == ROSA_OK)
			status = find_first(&plain, NULL, NULL, query, key, &undelayed, err);
		following.tau0 = undelayed.read;
		following.length0 = undelayed.length;
	}
	if (status == ROSA_OK)
		pool_run(pool_for(options, 0), shape->count * shape->routes, follow_row, &following, NULL);
	lookup_free(options, &undelayed);
	return status;
}

rosa_status lookup_find(const rosa_options *options, const rosa_learning *learning, const uint64_t *seeds,
			const void *query, const void *key, struct lookup *lookup, rosa_error *err)
{
	rosa_status status = find_first(options, learning, seeds, query, key, lookup, err);

	if (status == ROSA_OK && lookup->shape.links > 1)
		status = follow(options, learning, query, key, lookup, err);
	return status;
}

bool lookup_places(const struct lookup *lookup, size_t sequence, struct places *places)
{
	const size_t rows = lookup->shape.routes, steps = lookup->shape.steps, cells = link_cells(&lookup->shape);
	bool good = true;

	for (size_t link = 0; link < lookup->shape.links; link++) {
		const size_t from = link * cells + sequence * rows * steps, to = link * rows * steps;

		destinations_load(places->tau + to, lookup->read, from, rows * steps, lookup->width);
		if (lookup->shape.lengths)
			memcpy(places->length + to, lookup->length + from, rows * steps);
	}
	for (size_t i = 0; i < lookup->shape.links * rows * steps; i++)
		good &= places->tau[i] >= -1 && places->tau[i] < (int64_t)steps;
	return good;
}
