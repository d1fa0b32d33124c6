/*
 * The destination of every step: retrieval as the operator needs it.
 *
 * A worker retrieves a route into its own scratch memory, in the engine's 32-bit form, and packs it into the caller's
 * arrays before it takes the next. Explored steps are replaced then: the draw is a function of seed, route and step, so
 * that neither threads nor the order of routes matter.
 */
#include "retrieval/batch.h"
#include "rosa/destinations.h"
#include "base/draw.h"
#include "rosa/arguments.h"
#include "base/memory.h"
#include "base/status.h"

int rosa_width(size_t steps)
{
	return steps < UINT16_MAX ? 2 : 4;
}

size_t rosa_count_runs(size_t routes, size_t steps, const void *symbols, int bits, int fold)
{
	size_t runs = 0;

	if (!symbols || !steps)
		return 0;
	for (size_t r = 0; r < routes; r++)
		runs += batch_count_runs(symbols_from(symbols, (unsigned)bits, r * steps), (unsigned)bits, steps,
					 fold != 0);
	return runs;
}

struct finding {
	size_t steps;
	unsigned bits;
	bool fold;
	int width;
	const void *key;
	uint32_t delay;
	void *read, *flips;
	uint8_t *length;  /* NULL: not wanted */
	size_t *first;    /* [routes] the route's first row of flips; NULL without them */
	int32_t *scratch; /* [workers][scratch_size] */
	size_t scratch_size;
	uint64_t explored; /* how many of 2^32 route-steps are explored; 0: none */
	uint64_t seed;
};

/* A worker's scratch: tau and length of every step, then of every run start, tau and flips. */
static void into_scratch(void *context, size_t r, unsigned worker, struct route_output *output)
{
	const struct finding *finding = context;

	(void)r;
	output->tau = finding->scratch + worker * finding->scratch_size;
	if (finding->length)
		output->length = output->tau + finding->steps;
	if (finding->first) {
		output->run_start = output->tau + 2 * finding->steps;
		output->run_tau = output->run_start + finding->steps;
		output->run_flips = output->run_tau + finding->steps;
	}
}

/* On a share of steps, read at a random past run start instead. Candidates are the starts, before the step less the
 * delay, of all key runs except the first; `starts` is scratch memory for them. */
static void explore(const struct finding *finding, size_t r, int32_t *tau, int32_t *length, int32_t *starts)
{
	const unsigned bits = finding->bits;
	const void *key = symbols_from(finding->key, bits, r * finding->steps);
	size_t candidates = 0;

	for (size_t t = 0; t < finding->steps; t++) {
		uint64_t drawn = draw_long(finding->seed, r, t);

		if (candidates && drawn >> 32 < finding->explored) {
			tau[t] = starts[(draw_mix(drawn) >> 32) * candidates >> 32];
			length[t] = 0;
		}
		if (t > finding->delay) {
			const size_t at = t - finding->delay;

			if (!finding->fold || symbol_get(key, bits, at) != symbol_get(key, bits, at - 1))
				starts[candidates++] = (int32_t)at;
		}
	}
}

static void keep(void *context, size_t r, unsigned worker)
{
	const struct finding *finding = context;
	const size_t steps = finding->steps, bits = finding->bits;
	int32_t *tau = finding->scratch + worker * finding->scratch_size, *length = tau + steps,
		*run_start = length + steps, *run_tau = run_start + steps, *run_flips = run_tau + steps;

	if (finding->first) {
		for (size_t row = finding->first[r], run = 0; row < finding->first[r + 1]; row++, run++) {
			destinations_store(finding->flips, run_tau + run, row * (bits + 1), 1, finding->width);
			destinations_store(finding->flips, run_flips + run * bits, row * (bits + 1) + 1, bits,
					   finding->width);
		}
	}
	/* run_start is not needed any more and serves as scratch memory */
	if (finding->explored)
		explore(finding, r, tau, length, run_start);
	destinations_store(finding->read, tau, r * steps, steps, finding->width);
	for (size_t t = 0; finding->length && t < steps; t++)
		finding->length[r * steps + t] = (uint8_t)(length[t] < UINT8_MAX ? length[t] : UINT8_MAX);
}

static rosa_status run_finding(const rosa_options *full, struct route_rules *rules, const rosa_learning *learning,
			       size_t routes, const void *query, struct finding *finding, rosa_error *err)
{
	const struct batch_sink sink = {.context = finding, .begin = into_scratch, .end = keep};
	const rosa_allocator *allocator = &full->allocator;
	const size_t steps = finding->steps;
	const unsigned workers = batch_workers(full, routes);
	rosa_status status;

	if (learning && learning->qk_grad == ROSA_QK_FLIPS) {
		finding->first = memory_resize(allocator, NULL, (routes + 1) * sizeof(*finding->first));
		if (!finding->first)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the tables of %zu routes", routes);
		finding->first[0] = 0;
		for (size_t r = 0; r < routes; r++)
			finding->first[r + 1] =
			    finding->first[r] + batch_count_runs(symbols_from(query, finding->bits, r * steps),
								 finding->bits, steps, finding->fold);
		rules->flips_skipped = (uint64_t)((1 - (double)learning->flip_share) * 4294967296.0);
		/* unrelated to what exploration draws */
		rules->draw_seed = draw_mix(learning->seed ^ 0x666c697073);
	}
	finding->scratch_size = steps * (finding->first ? 4 + (size_t)finding->bits : 3);
	finding->scratch = memory_scratch(allocator, workers * finding->scratch_size * sizeof(*finding->scratch));
	if (finding->scratch)
		status = batch_run(full, rules, routes, steps, query, finding->key, workers, &sink, err);
	else
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for the destinations of %zu steps", steps);
	memory_free(allocator, finding->scratch);
	memory_free(allocator, finding->first);
	return status;
}

rosa_status rosa_find(const rosa_options *options, const rosa_learning *learning, size_t routes, size_t steps,
		      const void *query, const void *key, void *read, uint8_t *length, void *flips, rosa_error *err)
{
	struct finding finding = {
	    .steps = steps, .width = rosa_width(steps), .key = key, .read = read, .flips = flips, .length = length};
	struct route_rules rules;
	rosa_options full;
	rosa_learning rule;
	rosa_status status;

	if (!options)
		return rosa_fail(err, ROSA_EINVAL, "options is NULL");
	status = rules_from_options(options, &full, &rules, err);
	if (!status)
		status = learning_from_options(learning, &rule, err);
	if (!status)
		status = batch_check(&full, routes, steps, query, key, err);
	if (status)
		return status;
	if (!read)
		return rosa_fail(err, ROSA_EINVAL, "read is NULL");
	if (learning && rule.qk_grad == ROSA_QK_FLIPS) {
		status = rules_check_flips(&rules, err);
		if (status)
			return status;
	}
	if (learning && rule.qk_grad == ROSA_QK_FLIPS && !flips)
		return rosa_fail(err, ROSA_EINVAL, "flips is NULL; ROSA_QK_FLIPS needs rosa_count_runs() rows of %d",
				 full.bits + 1);
	finding.bits = rules.bits;
	finding.fold = rules.fold;
	finding.delay = rules.delay;
	if (learning) {
		finding.explored = (uint64_t)((double)rule.explore * 4294967296.0);
		finding.seed = rule.seed;
	}
	return run_finding(&full, &rules, learning ? &rule : NULL, routes, query, &finding, err);
}
