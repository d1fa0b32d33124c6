/*
 * The memory of a route: room for steps, codes for symbols, copies, and going back to an earlier step.
 *
 * A route can be undone to an earlier step and can be rebuilt from its symbols. Both are done by the same means: the
 * index is brought back to before the query run in question, and the steps from there on are taken again.
 */
#include "retrieval/route.h"

/* Steps taken again at a time when a route is undone. */
#define REPLAY 256

void route_init(struct route *route, const struct route_rules *rules)
{
	memset(route, 0, sizeof(*route));
	route->alphabet = alphabet_for(rules->bits);
	route->contexts = contexts_for(route->alphabet.width, rules->max_match, rules->fold);
	route->at.answer = -1;
}

/* No steps, whatever is in the index. */
static void forget(struct route *route)
{
	contexts_forget(&route->contexts);
	route->contexts.work = 0;
	starts_truncate(&route->key_starts, 0);
	starts_truncate(&route->query_starts, 0);
	route->steps = 0;
	route->at = (struct cursor){.answer = -1};
	route->has_flips = route->ordered = false;
	route->laid_out_until = 0;
	route->work_laid_out = route->asked_laid_out = 0;
	route->room = 0; /* on the ordered index the memory for chains was freed */
}

/* Forget all steps, keep the memory. */
static void route_clear(struct route *route)
{
	forget(route);
	chain_clear(&route->chains, &route->contexts);
}

/* Two streams without symbols, of codes of `width` bits. The memory stays, which may hold more of them or fewer; the
 * index has to be laid out again. */
static void set_width(struct route *route, unsigned width)
{
	struct contexts next = contexts_for(width, route->contexts.max_match, route->contexts.folded);

	next.key = route->contexts.key;
	next.query = route->contexts.query;
	next.key.capacity = next.key.capacity * route->contexts.bits / width;
	next.query.capacity = next.query.capacity * route->contexts.bits / width;
	route->contexts = next;
	route->chains.layout = (struct chain_layout){0, 0, 0, false};
	route->ordered = false;
}

void route_renew(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator)
{
	alphabet_free(&route->alphabet, allocator);
	route->alphabet = alphabet_for(rules->bits);
	forget(route);
	set_width(route, route->alphabet.width);
}

/* The last symbols, from the packed ones. */
static void read_words(struct route *route)
{
	const struct contexts *const ctx = &route->contexts;

	route->at.key_word = packed_word(&ctx->key, ctx->bits, route->at.key_runs);
	route->at.ready_word = packed_word(&ctx->key, ctx->bits, route->at.key_runs ? route->at.key_runs - 1 : 0);
	route->at.query_word = packed_word(&ctx->query, ctx->bits, route->at.query_runs);
	route->at.key_symbol = (uint32_t)(route->at.key_word >> (64 - ctx->bits));
	route->at.query_symbol = (uint32_t)(route->at.query_word >> (64 - ctx->bits));
}

/* The symbols of a stream in other codes. */
static bool recode(const struct packed *from, unsigned bits, const struct alphabet *old, struct packed *to,
		   const struct alphabet *new, uint32_t runs, const rosa_allocator *allocator)
{
	uint64_t word = 0;

	*to = (struct packed){NULL, 0};
	if (!packed_reserve(to, allocator, new->width, from->capacity))
		return false;
	for (uint32_t i = 0; i < runs; i++) {
		const unsigned symbol = alphabet_symbol(old, packed_get(from, bits, i));

		word = packed_push(word, new->width, alphabet_code(new, symbol));
		packed_put(to, new->width, i, word);
	}
	return true;
}

/* The layout for so many contexts. The ordered index needs a table of single symbols. */
static struct chain_layout layout_for(const struct route *route, const struct contexts *ctx, size_t contexts,
				      bool scratch)
{
	struct chain_layout layout = chain_layout_for(ctx, route->alphabet.symbol_bits, contexts, scratch);

	if (route->ordered && !layout.levels)
		layout.levels = 1;
	return layout;
}

/* Codes of more bits, and all that is made of them. */
static bool widen(struct route *route, const rosa_allocator *allocator)
{
	struct contexts *const ctx = &route->contexts;
	struct contexts next;
	struct chain_index chains = route->chains;
	struct alphabet alphabet;
	bool ready;

	if (!alphabet_widen(&route->alphabet, &alphabet, allocator))
		return false;
	if (!route->steps) {
		alphabet_free(&route->alphabet, allocator);
		route->alphabet = alphabet;
		set_width(route, alphabet.width);
		route->room = 0;
		return true;
	}
	next = contexts_for(alphabet.width, ctx->max_match, ctx->folded);
	next.work = ctx->work;
	chains.table = NULL;
	ready = recode(&ctx->key, ctx->bits, &route->alphabet, &next.key, &alphabet, route->at.key_runs, allocator);
	if (ready)
		ready = recode(&ctx->query, ctx->bits, &route->alphabet, &next.query, &alphabet, route->at.query_runs,
			       allocator);
	if (ready)
		ready = chain_lay_out(&chains, allocator, &next, layout_for(route, &next, route->at.indexed, false), 0,
				      false);
	if (!ready) {
		memory_free(allocator, next.key.bytes);
		memory_free(allocator, next.query.bytes);
		alphabet_free(&alphabet, allocator);
		return false;
	}
	memory_free(allocator, ctx->key.bytes);
	memory_free(allocator, ctx->query.bytes);
	memory_free(allocator, route->chains.table);
	alphabet_free(&route->alphabet, allocator);
	route->alphabet = alphabet;
	route->chains = chains;
	*ctx = next;
	read_words(route);
	route_refill(route, route->at.indexed);
	route->laid_out_until = 0;
	return true;
}

bool route_learn(struct route *route, const rosa_allocator *allocator, size_t steps, const void *query, const void *key)
{
	const void *const streams[2] = {query, key};

	for (int i = 0; i < 2; i++) {
		size_t done = 0;

		while ((done = alphabet_learn(&route->alphabet, streams[i], done, steps)) < steps)
			if (!widen(route, allocator))
				return false;
	}
	return true;
}

/* Room for a list of first steps of `runs` runs. */
static bool reserve_list(struct route *route, const rosa_allocator *allocator, size_t runs)
{
	if (!MEMORY_RESERVE(allocator, route->start, route->start_capacity, runs + 1))
		return false;
	route->start[0] = -1;
	return true;
}

/* An index to put the first contexts in. */
static bool reserve_table(struct route *route, const rosa_allocator *allocator, size_t total)
{
	const struct chain_layout layout = layout_for(route, &route->contexts, total, total != 0);
	const struct chain_index *const chains = &route->chains;
	const bool usable = chains->table && chains->layout.root_bits;

	if (usable &&
	    (!total || (chains->layout.root_bits == layout.root_bits && chains->layout.levels == layout.levels)))
		return true;
	return chain_lay_out(&route->chains, allocator, &route->contexts, layout, route->at.indexed, total != 0);
}

bool route_reserve_runs(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator,
			size_t steps, size_t key_runs, size_t query_runs, bool keep_starts, size_t total)
{
	struct contexts *const ctx = &route->contexts;

	steps += route->steps;
	key_runs += route->at.key_runs;
	query_runs += route->at.query_runs;
	if (keep_starts) {
		if (!starts_reserve(&route->key_starts, allocator, steps, key_runs, true) ||
		    !starts_reserve(&route->query_starts, allocator, steps, query_runs, false))
			return false;
	} else if (!reserve_list(route, allocator, key_runs)) {
		return false;
	}
	if (!packed_reserve(&ctx->key, allocator, ctx->bits, key_runs) ||
	    !packed_reserve(&ctx->query, allocator, ctx->bits, query_runs) || !reserve_table(route, allocator, total))
		return false;
	if (!route->ordered && rules->engine == ROSA_ENGINE_ORDERED && !route_move(route, allocator))
		return false;
	if (!(route->ordered ? order_reserve(route->order, allocator, ctx->key.capacity)
			     : chain_reserve(&route->chains, allocator, ctx, route->at.indexed, key_runs, total != 0)))
		return false;
	if (steps > route->room)
		route->room = steps;
	return true;
}

bool route_reserve(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		   bool keep_starts, size_t total)
{
	return route_reserve_runs(route, rules, allocator, steps, steps, steps, keep_starts, total);
}

/* ---- going back ---- */

/* Bring the index back to its first `indexed` contexts: undo one by one, or fill it again where that is less. */
static void shrink_index(struct route *route, uint32_t indexed)
{
	if (!route->ordered) {
		chain_shrink(&route->chains, &route->contexts, route->at.indexed, indexed);
	} else if (route->at.indexed - indexed > indexed) {
		route_refill(route, indexed);
	} else {
		for (uint32_t left = route->at.indexed; left > indexed; left--)
			order_remove(route->order);
		/* without chains the previous entry of a table slot is not stored, so the tables must be rebuilt */
		chain_fill(&route->chains, &route->contexts, indexed);
	}
	route->at.indexed = indexed;
	contexts_forget(&route->contexts);
}

/* The contexts that are candidates after the first `steps` steps, which are all that the route has. */
static uint32_t admitted(const struct route *route, const struct route_rules *rules)
{
	const uint64_t lag = (uint64_t)rules->delay + (rules->policy == ROSA_READABLE);
	const uint32_t runs = route->steps > lag ? starts_count(&route->key_starts, (uint32_t)(route->steps - lag)) : 0;

	return runs - (rules->policy != ROSA_LITERAL && runs);
}

/* Forget the steps from `steps` on, the first of which began a query run. */
static void undo(struct route *route, const struct route_rules *rules, uint32_t steps)
{
	starts_truncate(&route->key_starts, steps);
	starts_truncate(&route->query_starts, steps);
	route->at.key_runs = route->key_starts.runs;
	route->at.query_runs = route->query_starts.runs;
	route->steps = steps;
	route->at.ready = rules->policy == ROSA_READABLE && !rules->delay && route->at.key_runs > 1 &&
			  starts_begins(&route->key_starts, steps - 1);
	read_words(route);
	route->at.best = (struct match){0, ROUTE_UNKNOWN};
	route->at.answered = 0;
	route->at.answer = -1;
	route->has_flips = false;
	shrink_index(route, admitted(route, rules));
	route->room = 0; /* the steps to come may begin more runs than those undone */
	if (route->ordered)
		route->at.best = route_match_anew(route, route->at.query_runs);
}

void route_rewind(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		  bool with_flips)
{
	const unsigned bits = route->contexts.bits;
	uint32_t query[REPLAY], key[REPLAY]; /* with room for the widest symbols */
	int32_t flips[REPLAY * ROSA_MAX_BITS];
	struct route_output output = {.step_flips = with_flips ? flips : NULL};
	uint32_t from = (uint32_t)steps, run;
	unsigned symbol;

	if (steps == route->steps)
		return;
	if (!steps) {
		route_clear(route);
		return;
	}
	/* Back to before the query run that the last step kept lies in, then forward again over the run. */
	do
		from--;
	while (!starts_begins(&route->query_starts, from));
	undo(route, rules, from);
	run = route->at.key_runs;
	symbol = alphabet_symbol(&route->alphabet, packed_get(&route->contexts.query, bits, route->at.query_runs));
	while (from < steps) {
		const uint32_t n = least((uint32_t)steps - from, REPLAY);
		uint8_t *behind;
		uint64_t kept;

		for (uint32_t i = 0; i < n; i++) {
			run += starts_begins(&route->key_starts, from + i);
			symbol_set(query, rules->bits, i, symbol);
			symbol_set(key, rules->bits, i,
				   alphabet_symbol(&route->alphabet, packed_get(&route->contexts.key, bits, run - 1)));
		}
		/* A symbol is written with whole words: those behind the last are saved for the next turn. */
		behind = route->contexts.key.bytes + PACKED_PAD + (size_t)run * bits / 8;
		memcpy(&kept, behind, sizeof(kept));
		route_push(route, rules, allocator, n, query, key, &output);
		memcpy(behind, &kept, sizeof(kept));
		from += n;
	}
}

/* ---- copies ---- */

/* A copy of `size` bytes. */
static void *duplicate(const rosa_allocator *allocator, const void *from, size_t size)
{
	void *to = memory_resize(allocator, NULL, size);

	if (to)
		memcpy(to, from, size);
	return to;
}

bool route_copy(struct route *to, const struct route *from, const struct route_rules *rules,
		const rosa_allocator *allocator)
{
	const struct contexts *const ctx = &from->contexts;
	bool copied;

	if (!from->steps) {
		route_init(to, rules);
		return true;
	}
	*to = *from;
	to->contexts.key.bytes = to->contexts.query.bytes = NULL;
	to->chains.link = NULL;
	to->chains.table = NULL;
	to->order = NULL;
	to->alphabet.symbol = NULL;
	copied = starts_copy(&to->key_starts, &from->key_starts, allocator);
	copied &= starts_copy(&to->query_starts, &from->query_starts, allocator);
	to->contexts.key.bytes = duplicate(allocator, ctx->key.bytes, packed_bytes(ctx->key.capacity, ctx->bits));
	to->contexts.query.bytes = duplicate(allocator, ctx->query.bytes, packed_bytes(ctx->query.capacity, ctx->bits));
	if (from->ordered)
		to->order = order_copy(from->order, allocator);
	copied &= to->contexts.key.bytes && to->contexts.query.bytes && (!from->ordered || to->order);
	copied &= alphabet_copy(&to->alphabet, &from->alphabet, allocator);
	copied &= chain_copy(&to->chains, &from->chains, allocator);
	if (!copied)
		route_free(to, allocator);
	return copied;
}

void route_free(struct route *route, const rosa_allocator *allocator)
{
	memory_free(allocator, route->contexts.key.bytes);
	memory_free(allocator, route->contexts.query.bytes);
	memory_free(allocator, route->start);
	alphabet_free(&route->alphabet, allocator);
	starts_free(&route->key_starts, allocator);
	starts_free(&route->query_starts, allocator);
	chain_free(&route->chains, allocator);
	order_free(route->order, allocator);
	memset(route, 0, sizeof(*route));
}

size_t route_bytes(const struct route *route)
{
	const struct contexts *const ctx = &route->contexts;

	return sizeof(*route) + chain_bytes(&route->chains) + order_bytes(route->order) +
	       alphabet_bytes(&route->alphabet) + route->start_capacity * sizeof(*route->start) +
	       starts_bytes(&route->key_starts) + starts_bytes(&route->query_starts) +
	       (ctx->key.bytes ? packed_bytes(ctx->key.capacity, ctx->bits) : 0) +
	       (ctx->query.bytes ? packed_bytes(ctx->query.capacity, ctx->bits) : 0);
}
