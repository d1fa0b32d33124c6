/*
 * The read-out: from destinations and value symbols to y.
 *
 * y_c is e0_c or e1_c, by the bit that was read, or 0 where nothing was found. It is picked, not computed: e0 + (e1 -
 * e0) would round, and so at a bit of 1 not give e1. Picking also makes bfloat16 as easy as float32: both are patterns.
 *
 * Work is cut into blocks of steps. Within one, symbols are collected route by route, which reads destinations in the
 * order they lie in, and then written out row by row, which writes y in the order it lies in.
 */
#include "backend/convert.h"
#include "rosa/destinations.h"
#include "base/memory.h"
#include "rosa/pass.h"
#include "base/pool.h"
#include "retrieval/rules.h"
#include "base/status.h"

#include <stdatomic.h>

#define BLOCK 64 /* steps */

struct reading {
	const rosa_options *options;
	rosa_dtype dtype;
	size_t batch, steps, channels, routes, value_steps;
	int width;
	const uint16_t *value;
	const void *read;
	void *y;
	void *e0, *e1;      /* [channels] in the dtype of y */
	uint32_t *found;    /* [workers][BLOCK][routes] */
	atomic_uint broken; /* a destination is out of range */
};

#define NOTHING UINT32_MAX

/* The symbol read by each route in each step of a block. */
static bool collect(const struct reading *reading, size_t b, size_t first, size_t count, uint32_t *found)
{
	bool good = true;

	for (size_t r = 0; r < reading->routes; r++) {
		const size_t row = b * reading->routes + r;
		const uint16_t *value = reading->value + row * reading->value_steps;
		int32_t tau[BLOCK];

		destinations_load(tau, reading->read, row * reading->steps + first, count, reading->width);
		for (size_t i = 0; i < count; i++) {
			uint32_t at = (uint32_t)tau[i];

			if (at < reading->value_steps) {
				found[i * reading->routes + r] = value[at];
			} else {
				found[i * reading->routes + r] = NOTHING;
				good &= tau[i] == -1;
			}
		}
	}
	return good;
}

/* Write one row of y from the symbols read. Inlined with `bits` a constant for the usual widths. */
#define EXPAND(NAME, TYPE)                                                                                             \
	static inline void NAME(TYPE *y, const TYPE *e0, const TYPE *e1, const uint32_t *found, size_t routes,         \
				unsigned bits)                                                                         \
	{                                                                                                              \
		for (size_t r = 0; r < routes; r++) {                                                                  \
			const uint32_t symbol = found[r];                                                              \
			const TYPE mask = (TYPE)(symbol == NOTHING ? 0 : ~(TYPE)0);                                    \
                                                                                                                       \
			for (unsigned j = 0; j < bits; j++) {                                                          \
				const size_t c = r * bits + j;                                                         \
				const TYPE bit = (TYPE)(0 - (TYPE)(symbol >> j & 1));                                  \
                                                                                                                       \
				y[c] = (TYPE)((e0[c] ^ ((e0[c] ^ e1[c]) & bit)) & mask);                               \
			}                                                                                              \
		}                                                                                                      \
	}
EXPAND(expand_32, uint32_t)
EXPAND(expand_16, uint16_t)

static void expand_row(const struct reading *reading, size_t row, const uint32_t *found)
{
	const unsigned bits = (unsigned)reading->options->bits;

#define FOR_BITS(M)                                                                                                    \
	case M:                                                                                                        \
		if (reading->dtype == ROSA_FLOAT32)                                                                    \
			expand_32((uint32_t *)reading->y + row * reading->channels, reading->e0, reading->e1, found,   \
				  reading->routes, M);                                                                 \
		else                                                                                                   \
			expand_16((uint16_t *)reading->y + row * reading->channels, reading->e0, reading->e1, found,   \
				  reading->routes, M);                                                                 \
		break
	switch (bits) {
		FOR_BITS(4);
		FOR_BITS(8);
		FOR_BITS(16);
	default:
		if (reading->dtype == ROSA_FLOAT32)
			expand_32((uint32_t *)reading->y + row * reading->channels, reading->e0, reading->e1, found,
				  reading->routes, bits);
		else
			expand_16((uint16_t *)reading->y + row * reading->channels, reading->e0, reading->e1, found,
				  reading->routes, bits);
	}
#undef FOR_BITS
}

static void read_block(void *context, size_t i, unsigned worker)
{
	struct reading *reading = context;
	const size_t blocks = (reading->steps + BLOCK - 1) / BLOCK, b = i / blocks, first = i % blocks * BLOCK;
	const size_t left = reading->steps - first, count = left < BLOCK ? left : BLOCK;
	uint32_t *found = reading->found + worker * BLOCK * reading->routes;

	if (!collect(reading, b, first, count, found))
		atomic_store(&reading->broken, 1);
	for (size_t t = 0; t < count; t++)
		expand_row(reading, b * reading->steps + first + t, found + t * reading->routes);
}

/* e0 and e1 as y has them. */
static void convert_patterns(const struct reading *reading, const float *e0, const float *e1)
{
	for (size_t c = 0; c < reading->channels; c++) {
		if (reading->dtype == ROSA_FLOAT32) {
			((float *)reading->e0)[c] = e0[c];
			((float *)reading->e1)[c] = e1[c];
		} else {
			((uint16_t *)reading->e0)[c] = float_to_bfloat16(e0[c]);
			((uint16_t *)reading->e1)[c] = float_to_bfloat16(e1[c]);
		}
	}
}

rosa_status rosa_read(const rosa_options *options, rosa_dtype dtype, size_t batch, size_t steps, size_t channels,
		      const uint16_t *value, size_t value_steps, const void *read, const float *e0, const float *e1,
		      void *y, rosa_error *err)
{
	struct route_rules rules;
	rosa_options full;
	struct reading reading;
	struct pool *pool;
	unsigned workers;
	void *scratch;
	rosa_status status;

	if (!options)
		return rosa_fail(err, ROSA_EINVAL, "options is NULL");
	status = rules_from_options(options, &full, &rules, err);
	if (!status)
		status = pass_check(dtype, batch, steps, channels, rules.bits, err);
	if (status)
		return status;
	if (!value || !read || !e0 || !e1 || !y)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL",
				 !value  ? "value"
				 : !read ? "read"
				 : !e0   ? "e0"
				 : !e1   ? "e1"
					 : "y");
	if (!value_steps || value_steps > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "%zu value steps; there must be 1 to %zu", value_steps,
				 ROSA_MAX_STEPS);
	workers = pool_threads(full.threads);
	reading = (struct reading){.options = &full,
				   .dtype = dtype,
				   .batch = batch,
				   .steps = steps,
				   .channels = channels,
				   .routes = channels / rules.bits,
				   .value_steps = value_steps,
				   .width = rosa_width(value_steps),
				   .value = value,
				   .read = read,
				   .y = y};
	scratch =
	    memory_resize(&full.allocator, NULL, (2 * channels + workers * BLOCK * reading.routes) * sizeof(uint32_t));
	pool = scratch ? pool_for(&full, workers) : NULL;
	if (!pool) {
		memory_free(&full.allocator, scratch);
		return rosa_fail(err, ROSA_ENOMEM, "no memory to read %zu channels on %u threads", channels, workers);
	}
	reading.e0 = scratch;
	reading.e1 = (uint32_t *)scratch + channels;
	reading.found = (uint32_t *)scratch + 2 * channels;
	convert_patterns(&reading, e0, e1);
	pool_run(pool, batch * ((steps + BLOCK - 1) / BLOCK), read_block, &reading, NULL);
	pool_done(&full, pool);
	memory_free(&full.allocator, scratch);
	if (atomic_load(&reading.broken))
		return rosa_fail(err, ROSA_EINVAL, "read has a destination that is not below the %zu value steps",
				 value_steps);
	return ROSA_OK;
}
