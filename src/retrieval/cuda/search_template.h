/*
 * All look-ups of one route, by a team of threads. Included once for each type of NUMBER (search.h).
 *
 * The processor's engine takes one step after the other. Here many steps are known beforehand, so look-ups are
 * independent of each other as long as each looks at contexts that were candidates at its own step. As there (see
 * docs/design.md), context c is the key's runs 0 to c-1 read backwards: a greater number is newer, its destination is
 * the start of run c, and the candidates of a step are the contexts 1 to some bound, which only grows with time.
 *
 * The index
 *
 *   For each of a few lengths, the rungs, contexts that end with the same string of that length are chained, newest
 *   first: a table leads from the string to the newest context, and a link from each context to the one before it.
 * Where there are more strings than slots in the table, strings share slots, and a chain holds contexts of several.
 *   Contexts go into the chains a chunk of steps at a time: one warp per rung takes 32 contexts together, finds equal
 *   slots among its lanes, and so keeps the chains in order of time without any waiting between threads. Then all
 *   threads answer the look-ups of that chunk, whose walks pass over contexts that are newer than their bound.
 *
 *   A look-up begins on the highest rung. A context that shares the string is in the chain; the walk compares every
 *   context in it and keeps the longest match, of equal ones the first, which is the newest. If none is as long as the
 *   rung, the next rung is asked, whose matches can only be shorter than the rung above it: a walk ends as soon as it
 *   has found that length. On rungs whose lengths follow each other, that is the first context that has the string.
 *   A context of c symbols shares at most c, so walks also end at contexts shorter than the best match.
 *
 *   How many rungs a route needs depends on its symbols: few where symbols are many and alike in frequency, more where
 *   they are few. It is measured first: the highest rung is the shortest length for which chains have at most
 *   SEARCH_CROWD contexts on average. For a stream, the average is extrapolated to all steps that there is room for.
 *
 * Long matches
 *
 *   Symbols are packed into cells of 4, 8, 16 or 32 bits, and the leading zeros of the difference of two words count
 *   the symbols they share; longer matches are compared word by word. A long match continues one of earlier steps: the
 *   answer of the chunk's last step is remembered for the next chunk, and a comparison on the same diagonal, that is,
 *   with both ends moved by as many runs, ends when it has reached the part that was compared then.
 *
 * Hostile streams
 *
 *   A string that is longer than the highest rung and occurs all the time makes one long chain, and comparing with all
 *   of it may be quadratic in the number of steps. Therefore work is counted, PLAN_VISIT for a context and 1 for a
 *   further word. A look-up above SEARCH_LEAP, or a route above the average that its plan allows, ends the team's
 *   work on the route: the caller gives it to the processor's engine, which no stream makes slow. A queued
 *   search cannot hand routes to the CPU, so its work is not limited and its running time is unbounded.
 *
 * Streams
 *
 *   All of this goes on from one call to the next: symbols, starts and chains are appended to. A call first takes its
 *   steps, NAME(take)(), which writes only behind what is there, and then answers them, NAME(serve)(). A symbol that is
 *   out of range is known in between; the call then ends, and the route's state is that of before.
 *
 * Nothing is left to the order in which threads happen to run: every array is written in one phase and read in the
 * next, with the team waiting in between, and sums are of whole numbers.
 */

/* The rungs of one route: how many there are, and where. The highest may lie in the multiprocessor's own memory. */
struct NAME(index) {
	uint32_t top; /* the highest rung */
	NUMBER *high; /* its table and links */
	NUMBER *low;  /* those of the others, one after the other */
	size_t stride;
	size_t slots;
};

struct NAME(route) {
	const struct search_plan *plan;
	uint64_t *query_words, *key_words;
	NUMBER *key_start, *key_count;
	NUMBER *query_start, *query_count; /* by the steps of this call; query_start only where there are tables */
	struct NAME(index) index;
};

TEAM_CODE struct NAME(route) NAME(place)(const struct search_plan *plan, char *history, char *scratch)
{
	struct NAME(route) route = {plan,
				    (uint64_t *)(history + plan->query_words),
				    (uint64_t *)(history + plan->key_words),
				    (NUMBER *)(history + plan->key_start),
				    (NUMBER *)(history + plan->key_count),
				    plan->flips ? (NUMBER *)(scratch + plan->query_start) : NULL,
				    (NUMBER *)(scratch + plan->query_count),
				    {0, NULL, NULL, plan->index_bytes / sizeof(NUMBER), (size_t)1 << plan->slot_bits}};

	return route;
}

TEAM_CODE NUMBER *NAME(table)(const struct NAME(index) * index, uint32_t rung)
{
	return rung == index->top ? index->high : index->low + rung * index->stride;
}

/* ---- runs ---- */

/* Find the runs among new symbols, which come after `runs` of them: their symbols, packed; their starts, unless that is
 * NULL; and for each new step how many have begun. Returns the number of runs. */
TEAM_CODE uint32_t NAME(fold)(const struct search_plan *plan, const struct team *team, const void *symbols,
			      size_t first, uint32_t runs, unsigned long long *bad, uint64_t *words, NUMBER *start,
			      NUMBER *count)
{
	const size_t steps = plan->steps;
	const uint64_t end = ((uint64_t)runs << plan->cell_shift) + 64; /* of the runs that are there, in bits */
	const size_t room = (((runs + steps) << plan->cell_shift) + 63) / 64 + 2;
	const uint32_t limit = 1u << plan->bits;
	uint32_t last = 0;

	/* what a call that was refused has left */
	if (team->rank == 0 && end % 64)
		words[end / 64] &= ((uint64_t)1 << end % 64) - 1;
	for (size_t i = (runs ? (end + 63) / 64 : 0) + team->rank; i < room; i += team->size)
		words[i] = 0;
	team_wait();
	if (runs)
		last = (uint32_t)(search_word(plan, words, runs) >> (64 - plan->cell));
	for (size_t from = 0; from < steps; from += team->size) {
		const size_t t = from + team->rank;
		uint32_t symbol = 0, run, all;
		bool begins = false;

		if (t < steps) {
			symbol = search_symbol(plan, symbols, first + t);
			if (!plan->fold)
				begins = true;
			else if (t)
				begins = symbol != search_symbol(plan, symbols, first + t - 1);
			else
				begins = !runs || symbol != last;
			if (symbol >= limit)
				team_least(bad, first + t);
		}
		run = runs + team_count(team, begins, &all);
		if (begins) {
			const uint64_t bit = ((uint64_t)run << plan->cell_shift) + 64;

			if (start)
				start[run] = (NUMBER)(plan->done + t);
			team_or(&words[bit / 64], (uint64_t)(symbol & (limit - 1)) << bit % 64);
		}
		if (t < steps)
			count[t] = (NUMBER)(run + begins);
		runs += all;
	}
	team_wait();
	return runs;
}

/* ---- the index ---- */

/* Choose the highest rung of a route with `runs` key runs. `counts` has room for one per slot. */
TEAM_CODE uint32_t NAME(choose)(const struct search_plan *plan, const struct team *team, const uint64_t *key_words,
				uint32_t runs, uint32_t *counts)
{
	const double share = (double)(plan->done + plan->steps) / (double)plan->room; /* of the steps there will be */
	const double crowd = (SEARCH_CROWD - 1) * share + 1;
	unsigned long long *sum = &team->board->sum;
	uint32_t rung = 0;

	for (; rung + 1 < plan->rungs; rung++) {
		const uint32_t slots = search_slots(plan, rung);
		unsigned long long mine = 0;
		bool enough;

		if (slots * crowd < runs)
			continue; /* they could not even if all were equally frequent */
		for (uint32_t i = team->rank; i < slots; i += team->size)
			counts[i] = 0;
		if (team->rank == 0)
			*sum = 0;
		team_wait();
		for (uint32_t c = team->rank + 1; c <= runs; c += team->size)
			team_increment(&counts[search_slot(plan, key_words, rung, c, 0)]);
		team_wait();
		for (uint32_t c = team->rank + 1; c <= runs; c += team->size)
			mine += counts[search_slot(plan, key_words, rung, c, 0)];
		team_add(sum, mine);
		team_wait();
		enough = (double)*sum <= crowd * runs;
		team_wait();
		if (enough)
			break;
	}
	return rung;
}

/* Put contexts from .. until-1 into the chains of a rung, by one warp. */
TEAM_CODE void NAME(insert)(const struct NAME(route) * route, const struct team *team, uint32_t rung, uint32_t from,
			    uint32_t until)
{
	NUMBER *const table = NAME(table)(&route->index, rung), *const link = table + route->index.slots;

	for (uint32_t base = from; base < until; base += TEAM_LANES) {
		const uint32_t c = base + team->lane;
		const bool active = c < until;
		const uint32_t slot = active ? search_slot(route->plan, route->key_words, rung, c, 0) : 0;
		unsigned back;
		bool last;

		team_equals(team, active, slot, &back, &last);
		if (active)
			link[c] = back ? (NUMBER)(c - back) : table[slot];
		team_wait_warp();
		if (last)
			table[slot] = (NUMBER)c;
		team_wait_warp();
	}
}

/* ---- look-ups ---- */

/* The first `runs` query runs, the last symbol changed by `flip`, want the best context up to `bound`. */
struct NAME(question) {
	uint32_t runs, bound;
	uint64_t flip; /* in the highest cell */
	bool continues;
	uint32_t diagonal_context, diagonal_back, diagonal_length; /* where `continues` */
};

/* How many symbols the question shares with context c. */
TEAM_CODE uint32_t NAME(shared)(const struct NAME(route) * route, const struct NAME(question) * question,
				uint64_t query_word, uint32_t c, uint32_t *work)
{
	const struct search_plan *plan = route->plan;
	const uint32_t runs = question->runs;
	uint32_t limit = runs < c ? runs : c, same = 0;
	uint64_t differ = query_word ^ search_word(plan, route->key_words, c);

	if (limit > plan->max_match)
		limit = plan->max_match;
	while (!differ) {
		same += plan->word;
		if (same >= limit)
			return limit;
		if (question->continues && c == question->diagonal_context && same >= question->diagonal_back) {
			same = question->diagonal_back + question->diagonal_length;
			return same < limit ? same : limit;
		}
		*work += plan->further;
		differ =
		    search_word(plan, route->query_words, runs - same) ^ search_word(plan, route->key_words, c - same);
	}
	same += team_leading_zeros(differ) >> plan->cell_shift;
	return same < limit ? same : limit;
}

/* The longest match, and of those the newest: its context (0: there is none) and *length. More work than SEARCH_LEAP is
 * not done; the answer is then worthless. */
TEAM_CODE uint32_t NAME(look_up)(const struct NAME(route) * route, const struct NAME(question) * question,
				 uint32_t *length, uint32_t *work)
{
	const struct search_plan *plan = route->plan;
	const uint32_t limit = question->runs < plan->max_match ? question->runs : plan->max_match;
	const uint64_t word = search_word(plan, route->query_words, question->runs) ^ question->flip;
	uint32_t most = limit;

	for (uint32_t rung = route->index.top + 1; rung-- > 0;) {
		const uint32_t least = plan_rung(rung);
		const NUMBER *const table = NAME(table)(&route->index, rung), *const link = table + route->index.slots;
		uint32_t best = least - 1, at = 0, c;

		if (least > limit)
			continue;
		c = table[search_slot(plan, route->query_words, rung, question->runs, question->flip)];
		for (; c > best && *work < SEARCH_LEAP; c = link[c]) {
			*work += plan->visit;
			if (c <= question->bound) {
				const uint32_t same = NAME(shared)(route, question, word, c, work);

				if (same > best) {
					best = same;
					at = c;
					if (best >= most)
						break;
				}
			}
		}
		if (at) {
			*length = best;
			return at;
		}
		most = least - 1;
	}
	*length = 0;
	return 0;
}

/* The contexts that are candidates at step t; `readable`: those whose destination is before it. */
TEAM_CODE uint32_t NAME(bound)(const struct NAME(route) * route, uint64_t t, rosa_policy policy)
{
	const uint64_t late = (uint64_t)route->plan->delay + (policy == ROSA_READABLE);

	if (t < late)
		return 0;
	return route->key_count[t - late] - (policy == ROSA_LITERAL ? 0u : 1u);
}

/* Look-up `lane` of step t: the actual one (0), or that of flipped bit lane-1. Returns the work it took. */
TEAM_CODE uint32_t NAME(answer)(const struct NAME(route) * route, const struct team *team, size_t r, uint32_t t,
				uint32_t lane, unsigned parity, bool last)
{
	const struct search_plan *plan = route->plan;
	const uint32_t run = route->query_count[t - plan->done];
	const uint32_t known = team->board->diagonal[parity].context, known_run = team->board->diagonal[parity].run;
	struct NAME(question) question = {run, NAME(bound)(route, t, plan->policy), 0, false, 0, 0, 0};
	const size_t at = r * plan->stride + (t - plan->done);
	uint32_t length, context, work = 0;
	int32_t tau;

	if (lane) {
		if (route->query_start[run - 1] != t)
			return 0; /* the table is that of the run's first step */
		question.flip = (uint64_t)1 << (64 - plan->cell + lane - 1);
	} else if (known) {
		question.continues = true;
		question.diagonal_back = run - known_run;
		question.diagonal_context = known + question.diagonal_back;
		question.diagonal_length = team->board->diagonal[parity].length;
	}
	context = NAME(look_up)(route, &question, &length, &work);
	if (!lane && last) {
		team->board->diagonal[!parity].context = context;
		team->board->diagonal[!parity].run = run;
		team->board->diagonal[!parity].length = length;
	}
	if (plan->policy == ROSA_LITERAL && context > NAME(bound)(route, t, ROSA_READABLE))
		context = length = 0;
	tau = context ? (int32_t)route->key_start[context] : -1;
	if (lane) {
		plan->flips[at * plan->bits + lane - 1] = tau;
	} else {
		plan->tau[at] = tau;
		if (plan->length)
			plan->length[at] = (int32_t)length;
	}
	return work;
}

/* Steps that begin no run have the table of their run's first step. */
TEAM_CODE void NAME(repeat_tables)(const struct NAME(route) * route, const struct team *team, size_t r, size_t from,
				   size_t until)
{
	const struct search_plan *plan = route->plan;
	int32_t *const table = plan->flips + r * plan->steps * plan->bits;

	for (size_t t = from + team->rank; t < until; t += team->size) {
		const size_t begin = route->query_start[route->query_count[t] - 1];

		for (uint32_t j = 0; j < plan->bits && begin != t; j++)
			table[t * plan->bits + j] = table[begin * plan->bits + j];
	}
}

/* Take the steps of route r: fold them and, where the index is to be built, choose its rungs. */
TEAM_CODE void NAME(take)(const struct NAME(route) * route, const struct team *team, size_t r,
			  struct search_state *state, uint32_t *counts)
{
	const struct search_plan *plan = route->plan;
	const size_t first = r * plan->stride;

	state->new_query_runs = NAME(fold)(plan, team, plan->query, first, state->query_runs, plan->bad_query,
					   route->query_words, route->query_start, route->query_count);
	state->new_key_runs = NAME(fold)(plan, team, plan->key, first, state->key_runs, plan->bad_key, route->key_words,
					 route->key_start, route->key_count + plan->done);
	if (plan->build) {
		state->top = NAME(choose)(plan, team, route->key_words, state->new_key_runs, counts);
		state->indexed = 0;
	}
}

/* Answer the steps that were taken; route->index leads to memory for the rungs. */
TEAM_CODE void NAME(serve)(const struct NAME(route) * route, const struct team *team, size_t r,
			   struct search_state *state)
{
	const struct search_plan *plan = route->plan;
	const uint32_t lanes = plan->flips ? plan->bits + 1 : 1;
	const uint32_t end = (uint32_t)(plan->done + plan->steps);
	const uint32_t chunk = team->size > SEARCH_CHUNK ? team->size : SEARCH_CHUNK;
	struct team_board *const board = team->board;
	unsigned parity = 0;

	for (uint32_t rung = 0; rung <= route->index.top && plan->build; rung++) {
		NUMBER *const table = NAME(table)(&route->index, rung);

		for (uint32_t i = team->rank; i < search_slots(plan, rung); i += team->size)
			table[i] = 0;
	}
	if (team->rank == 0) {
		board->sum = state->work;
		board->gave_up = 0;
		board->diagonal[0].context = state->diagonal.context;
		board->diagonal[0].run = state->diagonal.run;
		board->diagonal[0].length = state->diagonal.length;
	}
	team_wait();
	for (uint32_t from = (uint32_t)plan->done; from < end && !board->gave_up; from += chunk, parity = !parity) {
		const uint32_t steps = end - from < chunk ? end - from : chunk;
		const uint32_t bound = NAME(bound)(route, from + steps - 1, plan->policy);
		unsigned long long mine = 0;

		for (uint32_t rung = team->warp; rung <= route->index.top; rung += team->warps)
			NAME(insert)(route, team, rung, state->indexed + 1, bound + 1);
		state->indexed = bound;
		team_wait();
		for (uint32_t i = team->rank; i < steps * lanes; i += team->size) {
			const uint32_t t = i / lanes;
			const uint32_t work = NAME(answer)(route, team, r, from + t, i % lanes, parity, t == steps - 1);

			mine += work;
			if (work >= SEARCH_LEAP)
				team_or(&board->gave_up, 1);
		}
		team_add(&board->sum, mine);
		team_wait();
		if (team->rank == 0 && board->sum > SEARCH_LEAP + (uint64_t)(from + steps) * lanes * plan->effort)
			board->gave_up = 1;
		if (plan->flips)
			NAME(repeat_tables)(route, team, r, from, from + steps);
		team_wait();
	}
	state->gone = board->gave_up != 0;
	if (!state->gone) {
		state->query_runs = state->new_query_runs;
		state->key_runs = state->new_key_runs;
	}
	state->work = board->sum;
	state->diagonal.context = board->diagonal[parity].context;
	state->diagonal.run = board->diagonal[parity].run;
	state->diagonal.length = board->diagonal[parity].length;
	if (team->rank == 0)
		plan->given_up[r] = (uint8_t)state->gone;
}

/* All of route r of a batch. `memory` is the team's (plan->bytes); `near`, if not NULL, is faster memory for one rung.
 */
TEAM_CODE void NAME(search)(const struct search_plan *plan, const struct team *team, size_t r, char *memory, char *near)
{
	char *const scratch = memory + plan->history_bytes, *const index = scratch + plan->scratch_bytes;
	struct NAME(route) route = NAME(place)(plan, memory, scratch);
	struct search_state state = {0, 0, 0, 0, 0, 0, 0, {0, 0, 0}, 0, 0};

	team_wait(); /* the route before is done with */
	NAME(take)(&route, team, r, &state, (uint32_t *)(near ? near : index));
	route.index.top = state.top;
	route.index.low = (NUMBER *)index;
	route.index.high = near ? (NUMBER *)near : route.index.low + state.top * route.index.stride;
	NAME(serve)(&route, team, r, &state);
}
