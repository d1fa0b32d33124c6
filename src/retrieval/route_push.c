/* Pushing: steps are taken in pieces, their symbols given as codes, and between pieces the index is adapted. */
#include "retrieval/route.h"

/* Steps of a piece. Hostile streams can make every step of one expensive, so it is short. */
#define PIECE 128

/* Contexts from which on an index is beyond the caches. What a piece will need is then prefetched before it. */
#define FAR       120000
#define FAR_PIECE 32

/* Steps between two questions whether to go on. */
#define BETWEEN ((size_t)4096)

/* Symbols as codes. Which of the two are wide are constants, so that the loops have no branches. */
ALWAYS_INLINE void encode_by(const struct alphabet *alphabet, const void *symbols, unsigned symbol_bits, size_t steps,
			     void *codes, unsigned width)
{
	for (size_t i = 0; i < steps; i++)
		symbol_set(codes, width, i, *alphabet_slot(alphabet, symbol_get(symbols, symbol_bits, i)) - 1);
}

/* Symbols as codes. The symbols themselves, where these are the codes. */
static const void *encode(const struct route *route, const void *symbols, size_t steps, uint32_t *codes)
{
	const struct alphabet *const alphabet = &route->alphabet;

	if (alphabet_is_plain(alphabet))
		return symbols;
	if (alphabet->symbol_bits <= 16)
		encode_by(alphabet, symbols, 16, steps, codes, 16);
	else if (alphabet->width <= 16)
		encode_by(alphabet, symbols, 20, steps, codes, 16);
	else
		encode_by(alphabet, symbols, 20, steps, codes, 20);
	return codes;
}

static void advance(int32_t **output, size_t by)
{
	if (*output)
		*output += by;
}

bool route_push(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		const void *query, const void *key, const struct route_output *output)
{
	const bool flips = output->step_flips || output->run_flips;
	struct route_output rest;
	const size_t usual = rules->engine == ROSA_ENGINE_EAGER ? 7 : PIECE;

	for (size_t done = 0, asked = 0, piece; done < steps; done += piece) {
		const uint32_t runs = route->at.query_runs;
		const bool far = route->at.indexed >= FAR && !route->ordered && steps > 1;
		const size_t most = far ? FAR_PIECE : usual;
		uint32_t queries[PIECE], keys[PIECE]; /* with room for the widest codes */
		const void *piece_query, *piece_key;
		size_t new_runs;

		piece = steps - done < most ? steps - done : most;
		if (output->between && done - asked >= BETWEEN) {
			asked = done;
			if (output->between(output->context, done))
				return false;
		}
		route_allow(route, rules, piece);
		piece_query = encode(route, symbols_from(query, rules->bits, done), piece, queries);
		piece_key = encode(route, symbols_from(key, rules->bits, done), piece, keys);
		if (far)
			route_prefetch_steps(route, rules, flips, piece, piece_query, piece_key);
		piece = route_take(route, rules, allocator, piece, piece_query, piece_key, done ? &rest : output);
		route_adapt(route, rules, allocator);
		if (done + piece == steps)
			break;
		/* A single step has no rest: a copy of what has just been written would wait for all stores. */
		if (!done)
			rest = *output;
		new_runs = route->at.query_runs - runs;
		advance(&rest.tau, piece);
		advance(&rest.length, piece);
		advance(&rest.step_flips, piece * rules->bits);
		advance(&rest.run_start, new_runs);
		advance(&rest.run_tau, new_runs);
		advance(&rest.run_flips, new_runs * rules->bits);
	}
	return true;
}
