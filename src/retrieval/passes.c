/*
 * Long batches in passes over parts.
 *
 * In a long history every look-up goes to memory that no cache holds: to the roots, to nodes, to the steps that five
 * answers lead to. Asking ahead hides some of the waiting (scout.h), but what is asked for still has to come. A batch
 * knows all its steps beforehand, and so need not take them in turn. Contexts and queries are sorted into parts by the
 * symbols before the last one, and each part is worked off by itself, in the order of time, with an index so small that
 * it stays in the cache. A query and its flips differ in the last symbol alone, so they are in one part, and so is
 * every context that shares more symbols with them than a part is told by. All memory beyond the part is read and
 * written in order.
 *
 *   1. Count: fold both streams into runs, and count what each part will get.
 *   2. Scatter: fold again, and write every event, a context that can be found from now on or a query that begins a
 *      run, to the end of its part.
 *   3. Parts: one after the other, each with an index of its own (part.h).
 *   4. Give: fold once more, pull the answer of every query from its part's next place, and write it where it belongs.
 *      Scattering answers from 3 would cost more than all it saves; pulling asks for a line of each part at a time.
 *
 * A match that is shorter than what a part is told by may lie in any part. It is only asked for where the part has none
 * that is longer, which in a long history is rare, and is answered in pass 4 by tables of such short strings. They are
 * small, and filled in the order of time as that pass goes along.
 *
 * Answers take the place of events that have been worked off: those of a part begin where those of the part before
 * end, never beyond where the part's own events begin. For this the events are moved up by a gap as wide as the answers
 * will ever be ahead.
 *
 * What parts are bad at is long matches. Comparing them goes on from where the last comparison on the same diagonal
 * ended, and that was, in a part, long ago. Work is counted as in route.c, and above an allowance the passes are
 * abandoned and the route is taken step by step. So that not much is lost by then, a sample of the events is worked off
 * before the scatter, and streams that parts would not divide are told by the first steps of the count.
 */
#include "retrieval/part.h"
#include "retrieval/widths.h"

/* Contexts that a part is to have: with its tables it fits into half a megabyte. More parts than MAX_PARTS would make
 * scattering slow, which writes to all of them at once. */
#define PART          ((size_t)1 << 12)
#define MAX_PART_BITS 10
#define MAX_PARTS     ((size_t)1 << MAX_PART_BITS)
/* Contexts from which on a route is worth it, without and with flips. */
#define LONG       ((size_t)3 << 17)
#define LONG_FLIPS ((size_t)3 << 16)
/* So few parts, were they of one size, are not worth it: such streams ask for the same places again and again. */
#define FEW_PARTS       32
#define FEW_PARTS_FLIPS 20
/* Nodes and words that a look-up may take on average, and all of a part beside that, or of the sample. */
#define WORK        8
#define WORK_FLIPS  2
#define FREE        4096
#define FREE_SAMPLE 256
/* Events worked off before the scatter. */
#define SAMPLE ((size_t)2048)

struct ledger {
	uint32_t contexts[MAX_PARTS], queries[MAX_PARTS];
	size_t place[MAX_PARTS]; /* of its next event, or where the next answer of the part begins */
	struct event sample[SAMPLE];
	size_t sampled;
	uint32_t sample_answers[SAMPLE * (TREE_MAX_LANES + 2)];
};

/* Both streams, folded into runs. */
struct fold {
	uint64_t key_word, ready_word, query_word;
	uint32_t key_runs, query_runs, ready_runs;
	unsigned key_symbol, query_symbol;
	bool ready; /* context ready_runs, of ready_word, can be found from now on */
};

/* Does this symbol of the query begin a run? */
ALWAYS_INLINE bool fold_query(struct fold *fold, unsigned bits, unsigned symbol)
{
	if (fold->query_runs && symbol == fold->query_symbol)
		return false;
	fold->query_symbol = symbol;
	fold->query_word = packed_push(fold->query_word, bits, symbol);
	fold->query_runs++;
	return true;
}

/* Does this symbol of the key? Then the context before it can be found from the next step on. */
ALWAYS_INLINE bool fold_key(struct fold *fold, unsigned bits, unsigned symbol)
{
	fold->ready = false;
	if (fold->key_runs && symbol == fold->key_symbol)
		return false;
	fold->ready_word = fold->key_word;
	fold->ready_runs = fold->key_runs;
	fold->key_symbol = symbol;
	fold->key_word = packed_push(fold->key_word, bits, symbol);
	fold->ready = fold->key_runs++ != 0;
	return true;
}

ALWAYS_INLINE struct event context_event(const struct fold *fold, uint64_t mask, size_t t)
{
	return (struct event){fold->ready_word & mask, fold->ready_runs | CONTEXT, (uint32_t)t};
}

ALWAYS_INLINE struct event query_event(const struct fold *fold, uint64_t mask)
{
	return (struct event){fold->query_word & mask, fold->query_runs, 0};
}

ALWAYS_INLINE void take_sample(struct ledger *ledger, struct event event)
{
	if (ledger->sampled < SAMPLE)
		ledger->sample[ledger->sampled++] = event;
}

/* Pass 1, for steps first .. last-1. */
ALWAYS_INLINE void count_events(struct passes *passes, unsigned bits, const struct division *division,
				struct fold *state, size_t first, size_t last, const uint16_t *query,
				const uint16_t *key)
{
	struct ledger *const ledger = passes->ledger;
	struct packed key_symbols = passes->contexts.key, query_symbols = passes->contexts.query;
	const uint64_t mask = passes->contexts.mask;
	const unsigned sample_bits = division->sample_bits, less = sample_bits - division->part_bits;
	const size_t sample = division->sample;
	struct fold fold = *state;

	for (size_t t = first; t < last; t++) {
		if (fold.ready) {
			const size_t cell = part_of(bits, sample_bits, fold.ready_word);

			ledger->contexts[cell >> less]++;
			if (UNLIKELY(cell == sample))
				take_sample(ledger, context_event(&fold, mask, t));
		}
		if (fold_query(&fold, bits, query[t])) {
			const size_t cell = part_of(bits, sample_bits, fold.query_word);

			packed_put(&query_symbols, bits, fold.query_runs - 1, fold.query_word);
			ledger->queries[cell >> less]++;
			if (UNLIKELY(cell == sample))
				take_sample(ledger, query_event(&fold, mask));
		}
		if (fold_key(&fold, bits, key[t]))
			packed_put(&key_symbols, bits, fold.key_runs - 1, fold.key_word);
	}
	*state = fold;
}

#if defined(__GNUC__)
#define PREFETCH_WRITE(p) __builtin_prefetch(p, 1)
#else
#define PREFETCH_WRITE(p) ((void)(p))
#endif

/* The next place of a part. The line after it will be written to soon. */
#define LINE (64 / sizeof(struct event))

ALWAYS_INLINE struct event *next_place(struct event *events, size_t *place, size_t part)
{
	struct event *const next = events + place[part]++;

	PREFETCH_WRITE(next + LINE);
	return next;
}

/* Pass 2. */
ALWAYS_INLINE void scatter_events(struct passes *passes, unsigned bits, const struct division *division, size_t steps,
				  const uint16_t *query, const uint16_t *key)
{
	struct event *const events = passes->events;
	size_t *const place = passes->ledger->place;
	const uint64_t mask = passes->contexts.mask;
	const unsigned part_bits = division->part_bits;
	struct fold fold = {0};

	for (size_t t = 0; t < steps; t++) {
		if (fold.ready)
			*next_place(events, place, part_of(bits, part_bits, fold.ready_word)) =
			    context_event(&fold, mask, t);
		if (fold_query(&fold, bits, query[t]))
			*next_place(events, place, part_of(bits, part_bits, fold.query_word)) =
			    query_event(&fold, mask);
		fold_key(&fold, bits, key[t]);
	}
}

/*
 * An answer, in words of 32 bits: the length of the match, and what the lanes lead to. Of wide symbols most flips never
 * occurred; there a set says which lanes have one, and the others are left out.
 */
ALWAYS_INLINE size_t answer_put(unsigned bits, unsigned lanes, uint32_t length, const uint32_t *found, uint32_t *answer)
{
	uint32_t set = 0;
	size_t size = 2;

	answer[0] = length;
	if (bits <= TREE_NARROW || lanes == 1) {
		for (unsigned lane = 0; lane < lanes; lane++)
			answer[1 + lane] = found[lane];
		return 1 + lanes;
	}
	for (unsigned lane = 0; lane < lanes; lane++)
		set |= (uint32_t)(found[lane] != 0) << lane;
	answer[1] = set;
	for (unsigned lane = 0; set && lane < lanes; lane++) {
		answer[size] = found[lane];
		size += found[lane] != 0;
	}
	return size;
}

ALWAYS_INLINE size_t answer_get(unsigned bits, unsigned lanes, uint32_t *length, uint32_t *found,
				const uint32_t *answer)
{
	size_t size = 2;

	*length = answer[0];
	if (bits <= TREE_NARROW || lanes == 1) {
		for (unsigned lane = 0; lane < lanes; lane++)
			found[lane] = answer[1 + lane];
		return 1 + lanes;
	}
	for (unsigned lane = 0; lane < lanes; lane++) {
		const bool there = answer[1] >> lane & 1;

		found[lane] = there ? answer[size] : 0;
		size += there;
	}
	return size;
}

/* Events by which the index is asked ahead. */
#define AHEAD 8

/* Pass 3, for one part. How many words of answers there are; they are of no use if the work went over its limit. */
ALWAYS_INLINE size_t take_part(struct passes *passes, const struct part *empty, unsigned bits, bool flips,
			       const struct event *events, size_t count, uint32_t *answers)
{
	const unsigned lanes = flips ? bits + 1 : 1;
	struct part part = *empty;
	size_t size = 0;

	for (size_t i = 0; i < count && LIKELY(passes->compared.work <= passes->limit); i++) {
		if (i + AHEAD < count)
			part_prefetch(&part, bits, lanes, events[i + AHEAD].word);
		if (events[i].number & CONTEXT) {
			part_insert(passes, &part, bits, events + i);
		} else {
			uint32_t found[TREE_MAX_LANES];
			const uint32_t length = part_find(passes, &part, bits, events + i, lanes, found);

			size += answer_put(bits, lanes, length, found, answers + size);
		}
	}
	return size;
}

/* The query stands still and a context came: how many symbols do they share? */
ALWAYS_INLINE uint32_t challenge(struct passes *passes, unsigned bits, const struct fold *fold)
{
	const struct contexts *const ctx = &passes->contexts;
	const uint32_t cap = fold->query_runs < ctx->max_match ? fold->query_runs : ctx->max_match;
	const uint64_t difference = (fold->ready_word ^ fold->query_word) & ctx->mask;
	uint32_t shared;
	int sign;

	if (difference) {
		shared = leading_zeros(difference) / bits;
		shared = shared < fold->ready_runs ? shared : fold->ready_runs;
	} else {
		shared = tree_compare_long(&passes->compared, passes->compared.with_query, true, ctx, fold->ready_runs,
					   &ctx->query, fold->query_runs, ctx->word, &sign);
	}
	return shared < cap ? shared : cap;
}

/* What answers short matches in pass 4: the tables of tree_index.h, but of answers. */
ALWAYS_INLINE void note_brief(struct tree_view *brief, unsigned bits, unsigned most, const struct fold *fold, size_t t)
{
	/* the first contexts are too short for some tables */
	brief->levels = fold->ready_runs < most ? fold->ready_runs : most;
	tree_note(brief, bits, fold->ready_word, (uint32_t)t);
}

/* Lanes to which the part has no answer get one from the tables; the length of the query's match is returned. */
ALWAYS_INLINE uint32_t add_brief(const struct tree_view *brief, unsigned bits, const struct fold *fold,
				 uint32_t max_match, unsigned lanes, uint32_t length, uint32_t *found)
{
	const uint32_t cap = fold->query_runs < max_match ? fold->query_runs : max_match;
	uint32_t other[TREE_MAX_LANES], missing = 0, matched;

	for (unsigned lane = 0; lane < lanes; lane++)
		missing |= found[lane] == 0;
	if (!missing)
		return length;
	matched = tree_recall(brief, bits, fold->query_word, cap, lanes, other, NULL);
	length = found[0] ? length : matched;
	for (unsigned lane = 0; lane < lanes; lane++)
		found[lane] = found[lane] ? found[lane] : other[lane];
	return length;
}

/* Pass 4. False if comparisons took too long. */
ALWAYS_INLINE bool give_answers(struct passes *passes, unsigned bits, bool flips, const struct division *division,
				size_t steps, const uint16_t *query, const uint16_t *key,
				const struct route_output *output)
{
	const struct route_output out = *output;
	const unsigned lanes = flips ? bits + 1 : 1, part_bits = division->part_bits, shallow = division->shallow;
	const uint32_t max_match = passes->contexts.max_match;
	const uint32_t *const answers = (const uint32_t *)passes->events;
	size_t *const place = passes->ledger->place;
	struct tree_view brief = {.table = passes->shallow, .rows = true};
	struct fold fold = {0};
	uint32_t ready = 0, length = 0;
	size_t run = 0;

	for (size_t t = 0; t < steps; t++) {
		const bool news = fold.ready;

		if (news)
			note_brief(&brief, bits, shallow, &fold, t);
		if (fold_query(&fold, bits, query[t])) {
			const size_t part = part_of(bits, part_bits, fold.query_word);
			const uint32_t *answer = answers + place[part];
			uint32_t found[TREE_MAX_LANES];

			PREFETCH(answer + 64 / sizeof(*answer));
			place[part] += answer_get(bits, lanes, &length, found, answer);
			length = add_brief(&brief, bits, &fold, max_match, lanes, length, found);
			ready = found[0];
			if (flips) {
				for (unsigned j = 0; j < bits; j++)
					out.run_flips[run * bits + j] = (int32_t)found[j + 1] - 1;
				out.run_start[run] = (int32_t)t;
				out.run_tau[run++] = (int32_t)ready - 1;
			}
		} else if (news) {
			const uint32_t shared = challenge(passes, bits, &fold);

			/* as the newest of all it wins with as long a match */
			if (shared && shared >= length) {
				length = shared;
				ready = (uint32_t)t;
			}
			if (UNLIKELY(passes->compared.work > passes->limit))
				return false;
		}
		out.tau[t] = (int32_t)ready - 1;
		fold_key(&fold, bits, key[t]);
	}
	return true;
}

/* One compiled version a number of bits. */
struct version {
	void (*count)(struct passes *, const struct division *, struct fold *, size_t, size_t, const uint16_t *,
		      const uint16_t *);
	void (*scatter)(struct passes *, const struct division *, size_t, const uint16_t *, const uint16_t *);
	/* without and with flips */
	size_t (*take[2])(struct passes *, const struct part *, const struct event *, size_t, uint32_t *);
	bool (*give[2])(struct passes *, const struct division *, size_t, const uint16_t *, const uint16_t *,
			const struct route_output *);
};

#define WITH_FLIPS(M, NAME, FLIPS)                                                                                     \
	static size_t take_##NAME(struct passes *p, const struct part *part, const struct event *e, size_t n,          \
				  uint32_t *answers)                                                                   \
	{                                                                                                              \
		return take_part(p, part, M, FLIPS, e, n, answers);                                                    \
	}                                                                                                              \
	static bool give_##NAME(struct passes *p, const struct division *d, size_t n, const uint16_t *q,               \
				const uint16_t *k, const struct route_output *o)                                       \
	{                                                                                                              \
		return give_answers(p, M, FLIPS, d, n, q, k, o);                                                       \
	}
#define VERSION(M)                                                                                                     \
	static void count_##M(struct passes *p, const struct division *d, struct fold *f, size_t first, size_t last,   \
			      const uint16_t *q, const uint16_t *k)                                                    \
	{                                                                                                              \
		count_events(p, M, d, f, first, last, q, k);                                                           \
	}                                                                                                              \
	static void scatter_##M(struct passes *p, const struct division *d, size_t n, const uint16_t *q,               \
				const uint16_t *k)                                                                     \
	{                                                                                                              \
		scatter_events(p, M, d, n, q, k);                                                                      \
	}                                                                                                              \
	WITH_FLIPS(M, M, false)                                                                                        \
	WITH_FLIPS(M, flips_##M, true)                                                                                 \
	static const struct version version_##M = {                                                                    \
	    count_##M, scatter_##M, {take_##M, take_flips_##M}, {give_##M, give_flips_##M}};
FOR_EACH_WIDTH(VERSION)

static const struct version *const versions[] = EACH_WIDTH(&version);

/* An array with room for `count` elements; what was in it is lost. NULL if memory is short. */
static void *reserve(const rosa_allocator *allocator, void *array, size_t *room, size_t count, size_t size)
{
	if (array && count <= *room)
		return array;
	memory_free(allocator, array);
	array = memory_scratch(allocator, count * size);
	*room = array ? count : 0;
	return array;
}

/* How many words of 32 bits an answer has at most. */
static size_t answer_most(const struct route_rules *rules, bool flips)
{
	return flips ? rules->bits + 2 + (rules->bits > TREE_NARROW) : 2;
}

/* Begin to count work anew: so much is spare, and the rest is for the look-ups of so many contexts and queries. */
static void allow(struct passes *passes, const struct route_rules *rules, bool flips, uint64_t spare, size_t contexts,
		  size_t queries)
{
	const uint64_t lanes = flips ? rules->bits + 1 : 1;

	passes->compared.work = 0;
	passes->limit = rules->engine == ROSA_ENGINE_AUTO
			    ? (flips ? WORK_FLIPS : WORK) * (contexts + queries * lanes) + spare
			    : UINT64_MAX / 2;
}

/* A cell that some query of the middle is in: likelier a large one than a small one. */
static size_t cell_of_middle(unsigned bits, unsigned cell_bits, size_t steps, const uint16_t *query)
{
	struct fold fold = {0};

	for (size_t t = steps / 2; t < steps && t < steps / 2 + 64; t++)
		fold_query(&fold, bits, query[t]);
	return part_of(bits, cell_bits, fold.query_word);
}

static struct division divide(const struct route_rules *rules, size_t steps, const uint16_t *query)
{
	const unsigned bits = rules->bits;
	const bool wide = bits > TREE_NARROW;
	const uint64_t most = wide ? bits : (uint64_t)(rules->max_match - 1) * bits;
	const size_t part = rules->engine == ROSA_ENGINE_AUTO ? PART : 8;
	struct division division = {0};

	while (division.part_bits < MAX_PART_BITS && division.part_bits < most && steps >> division.part_bits > part)
		division.part_bits++;
	division.shallow = wide ? 1 : (division.part_bits + bits - 1) / bits;
	division.sample_bits = division.part_bits;
	while (steps >> division.sample_bits > SAMPLE / 2)
		division.sample_bits++;
	division.sample = cell_of_middle(bits, division.sample_bits, steps, query);
	return division;
}

static size_t worth_from(bool flips)
{
	return flips ? LONG_FLIPS : LONG;
}

/* Are there enough contexts, and are they spread over parts? */
static bool worth_dividing(const struct ledger *ledger, bool flips, size_t least)
{
	uint64_t all = 0, squares = 0;

	for (size_t i = 0; i < MAX_PARTS; i++) {
		all += ledger->contexts[i];
		squares += (uint64_t)ledger->contexts[i] * ledger->contexts[i];
	}
	return all >= least && squares / all < all / (flips ? FEW_PARTS_FLIPS : FEW_PARTS);
}

#define GAVE_UP SIZE_MAX

/* Work off the events of a part. How many words of answers there are, or GAVE_UP. */
static size_t work_off(struct passes *passes, const struct route_rules *rules, const struct division *division,
		       const rosa_allocator *allocator, bool flips, uint64_t spare, const struct event *events,
		       size_t contexts, size_t queries, uint32_t *answers)
{
	struct part part;
	size_t roots, size = part_lay_out(&part, rules, division, contexts, &roots);

	passes->nodes = reserve(allocator, passes->nodes, &passes->node_room, contexts + 1, sizeof(*passes->nodes));
	passes->tables = reserve(allocator, passes->tables, &passes->table_room, size, sizeof(*passes->tables));
	if (!passes->nodes || !passes->tables)
		return GAVE_UP;
	memset(passes->tables, 0, size * sizeof(*passes->tables));
	part.nodes = passes->nodes;
	part.tables = passes->tables;
	part.roots = passes->tables + roots;
	allow(passes, rules, flips, spare, contexts, queries);
	size = versions[rules->bits]->take[flips](passes, &part, events, contexts + queries, answers);
	return passes->compared.work <= passes->limit ? size : GAVE_UP;
}

/* Work off the sample. False if all of it is not worth beginning. */
static bool sample_is_good(struct passes *passes, const struct route_rules *rules, const struct division *division,
			   const rosa_allocator *allocator, bool flips)
{
	struct ledger *const ledger = passes->ledger;
	size_t contexts = 0;

	for (size_t i = 0; i < ledger->sampled; i++)
		contexts += (ledger->sample[i].number & CONTEXT) != 0;
	return work_off(passes, rules, division, allocator, flips, FREE_SAMPLE, ledger->sample, contexts,
			ledger->sampled - contexts, ledger->sample_answers) != GAVE_UP;
}

/* Pass 1: count, and ask again and again whether to go on. A stream that parts are no good for mostly shows it soon. */
static bool count(struct passes *passes, const struct route_rules *rules, const struct division *division,
		  const rosa_allocator *allocator, bool flips, size_t steps, const uint16_t *query, const uint16_t *key)
{
	static const unsigned stops[] = {1, 6, 11, 16}; /* sixteenths */
	struct ledger *const ledger = passes->ledger;
	struct fold fold = {0};
	size_t at = 0;

	memset(ledger->contexts, 0, sizeof(ledger->contexts));
	memset(ledger->queries, 0, sizeof(ledger->queries));
	ledger->sampled = 0;
	for (size_t i = 0; i < sizeof(stops) / sizeof(*stops); i++) {
		const size_t stop = stops[i] == 16 ? steps : steps / 16 * stops[i];
		/* at first a little less than its share is enough */
		const size_t least = worth_from(flips) / 16 * stops[i] / 8 * (stops[i] == 16 ? 8 : 7);

		versions[rules->bits]->count(passes, division, &fold, at, stop, query, key);
		at = stop;
		if (rules->engine == ROSA_ENGINE_AUTO && !worth_dividing(ledger, flips, least))
			return false;
		if (!sample_is_good(passes, rules, division, allocator, flips))
			return false;
	}
	return true;
}

/* Where each part's events go: behind each other, and all behind a gap for answers. How many there are, gap and all. */
static size_t place_events(struct ledger *ledger, size_t answer, size_t *gap)
{
	size_t events = 0, queries = 0;

	*gap = 0;
	for (size_t i = 0; i < MAX_PARTS; i++) {
		size_t ahead;

		queries += ledger->queries[i];
		ahead = (queries * answer * sizeof(uint32_t) + sizeof(struct event) - 1) / sizeof(struct event);
		if (ahead > events + *gap)
			*gap = ahead - events;
		ledger->place[i] = events;
		events += ledger->contexts[i] + ledger->queries[i];
	}
	for (size_t i = 0; i < MAX_PARTS; i++)
		ledger->place[i] += *gap;
	return events + *gap;
}

/* Where the tests have the passes abandoned: after so many parts, or, where there are fewer, at the first long
 * comparison of pass 4. */
#define EAGER_PARTS 8

/* Pass 3: all parts. */
static bool take_parts(struct passes *passes, const struct route_rules *rules, const struct division *division,
		       const rosa_allocator *allocator, bool flips, size_t gap)
{
	struct ledger *const ledger = passes->ledger;
	const struct event *events = passes->events + gap;
	uint32_t *const answers = (uint32_t *)passes->events;
	size_t at = 0;

	for (size_t i = 0; i < (size_t)1 << division->part_bits; i++) {
		const size_t size = work_off(passes, rules, division, allocator, flips, FREE, events,
					     ledger->contexts[i], ledger->queries[i], answers + at);

		if (size == GAVE_UP || (rules->engine == ROSA_ENGINE_EAGER && i == EAGER_PARTS))
			return false;
		ledger->place[i] = at;
		at += size;
		events += ledger->contexts[i] + ledger->queries[i];
	}
	return true;
}

/* Do the rules and outputs suit? They are those of the lean loop of route.c. */
static bool suits(const struct route_rules *rules, size_t steps, const struct route_output *output)
{
	if (rules->engine == ROSA_ENGINE_AUTO ? steps < worth_from(output->run_flips)
					      : rules->engine < ROSA_ENGINE_EAGER)
		return false;
	return rules->policy == ROSA_READABLE && rules->fold && rules->max_match > 1 && output->tau &&
	       !output->length && !output->step_flips &&
	       (!output->run_flips || (output->run_start && !rules->flips_skipped));
}

/* What is needed before the count. */
static bool prepare(struct passes *passes, const struct route_rules *rules, const rosa_allocator *allocator,
		    size_t steps)
{
	const struct packed key = passes->contexts.key, query = passes->contexts.query;

	passes->contexts = contexts_for(rules->bits, rules->max_match);
	passes->contexts.key = key;
	passes->contexts.query = query;
	memset(&passes->compared, 0, sizeof(passes->compared));
	if (!passes->ledger)
		passes->ledger = memory_scratch(allocator, sizeof(*passes->ledger));
	return passes->ledger && packed_reserve(&passes->contexts.key, allocator, rules->bits, steps) &&
	       packed_reserve(&passes->contexts.query, allocator, rules->bits, steps);
}

bool passes_take(struct passes *passes, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		 const uint16_t *query, const uint16_t *key, const struct route_output *output)
{
	const bool flips = output->run_flips;
	const struct version *const version = versions[rules->bits];
	struct division division;
	size_t events, gap, brief;

	if (!suits(rules, steps, output) || !prepare(passes, rules, allocator, steps))
		return false;
	division = divide(rules, steps, query);
	if (!count(passes, rules, &division, allocator, flips, steps, query, key))
		return false;
	events = place_events(passes->ledger, answer_most(rules, flips), &gap);
	passes->events =
	    reserve(allocator, passes->events, &passes->event_room, events + LINE, sizeof(*passes->events));
	brief = tree_level(rules->bits, division.shallow + 1) + 1;
	passes->shallow = reserve(allocator, passes->shallow, &passes->shallow_room, brief, sizeof(*passes->shallow));
	if (!passes->events || !passes->shallow)
		return false;
	version->scatter(passes, &division, steps, query, key);
	if (!take_parts(passes, rules, &division, allocator, flips, gap))
		return false;
	memset(passes->shallow, 0, brief * sizeof(*passes->shallow));
	allow(passes, rules, flips, FREE, steps, steps);
	if (rules->engine == ROSA_ENGINE_EAGER)
		passes->limit = 0;
	return version->give[flips](passes, &division, steps, query, key, output);
}

void passes_free(struct passes *passes, const rosa_allocator *allocator)
{
	memory_free(allocator, passes->contexts.key.bytes);
	memory_free(allocator, passes->contexts.query.bytes);
	memory_free(allocator, passes->events);
	memory_free(allocator, passes->nodes);
	memory_free(allocator, passes->tables);
	memory_free(allocator, passes->shallow);
	memory_free(allocator, passes->ledger);
	memset(passes, 0, sizeof(*passes));
}
