/*
 * The parts that passes divide a route into, and the index of one of them.
 *
 * It is that of tree_index.h in small: tables, and trees ordered by context and heaped by age. It is not the same code,
 * for contexts are numbered within the part and a node has all that is asked of it in one line of the cache: word,
 * number, links, and the answer itself, so that there is nothing left to be looked up elsewhere. Tables hold answers
 * too.
 */
#ifndef ROSATUNE_PART_H
#define ROSATUNE_PART_H

#include "retrieval/passes.h"

/* A context that can be found from now on, or a query that begins a run. */
struct event {
	uint64_t word;   /* its last symbols */
	uint32_t number; /* its runs, and CONTEXT if it is one */
	uint32_t ready;  /* of a context: this step. It leads to the one before. */
};

#define CONTEXT (UINT32_C(1) << 31)

struct node {
	uint64_t word;
	uint32_t context, ready;
	uint32_t child[2]; /* the lesser, the greater; 0: none */
};

/* How streams are divided. */
struct division {
	unsigned part_bits;
	unsigned shallow;     /* symbols of a match that may lie in any part, at most */
	unsigned sample_bits; /* so many like part_bits tell the sample, ... */
	size_t sample;        /* ... namely these */
};

/*
 * The part of a word, by the first bits of what precedes its last symbol. A wide symbol gives these alone, and is
 * hashed: its first bits may be skewed.
 */
ALWAYS_INLINE size_t part_of(unsigned bits, unsigned part_bits, uint64_t word)
{
	uint64_t past = word << bits;

	if (bits > TREE_NARROW)
		past = (past >> (64 - bits)) * UINT64_C(0x9e3779b97f4a7c15);
	return past >> 1 >> (63 - part_bits);
}

/*
 * The index of one part. Of symbols that are not wide there is a table for each number of symbols from `first` on: a
 * row is picked by what of the past the part is not told by, the last symbol picks the entry in it. The last table has
 * the roots of trees, in place of answers, and need not end with a whole symbol. Of wide symbols there are only roots,
 * picked by a hash of two symbols.
 */
struct part {
	struct node *nodes;
	uint32_t *tables, *roots;
	unsigned part_bits;
	unsigned first, levels; /* symbols of the first table, and how many there are beside the roots */
	unsigned extra;         /* bits that pick a row of the first table */
	unsigned root_bits;     /* bits that pick a row of the roots, or a root */
	uint32_t count;         /* contexts so far */
};

/* What of a word's past the part is not told by. */
ALWAYS_INLINE uint64_t rest_of(const struct part *part, unsigned bits, uint64_t word)
{
	return word << bits << part->part_bits;
}

ALWAYS_INLINE size_t row_of(uint64_t rest, unsigned bits, unsigned extra)
{
	return rest >> 1 >> (63 - extra) << bits;
}

ALWAYS_INLINE uint32_t *root_of(const struct part *part, unsigned bits, uint64_t word)
{
	if (bits > TREE_NARROW)
		return part->roots +
		       ((word >> (64 - 2 * bits)) * UINT64_C(0xd6e8feb86659fd93) >> 1 >> (63 - part->root_bits));
	return part->roots + row_of(rest_of(part, bits, word), bits, part->root_bits) + (word >> (64 - bits));
}

/* Ask for what an event to come will need. */
ALWAYS_INLINE void part_prefetch(const struct part *part, unsigned bits, unsigned lanes, uint64_t word)
{
	PREFETCH(root_of(part, bits, word));
	/* the first four flips of a row are in the query's line */
	for (unsigned lane = bits > TREE_NARROW ? 1 : 5; lane < lanes; lane++)
		PREFETCH(root_of(part, bits, tree_flip(word, bits, lane)));
}

/* Let the tables know a context, but for strings that it is too short for. */
ALWAYS_INLINE void part_note(const struct part *part, unsigned bits, uint64_t word, uint32_t context, uint32_t ready)
{
	const uint64_t rest = rest_of(part, bits, word);
	const unsigned symbol = (unsigned)(word >> (64 - bits));
	uint32_t *level = part->tables;
	unsigned extra = part->extra;

	for (unsigned i = 0; i < part->levels && LIKELY(part->first + i <= context); i++, extra += bits) {
		level[row_of(rest, bits, extra) + symbol] = ready;
		level += (size_t)1 << (extra + bits);
	}
}

/* Cut the tree `at` in two along the way to context `id`, whose subtrees the halves become. */
static inline void part_cut(struct passes *passes, struct node *nodes, uint32_t at, uint32_t id)
{
	const uint64_t word = nodes[id].word;
	uint32_t *lesser = &nodes[id].child[0], *greater = &nodes[id].child[1];
	unsigned hops = 0;

	while (at && LIKELY(passes->compared.work + hops <= passes->limit)) {
		const uint64_t other = nodes[at].word;
		bool below = other < word;

		if (UNLIKELY(other == word)) {
			int sign;

			tree_compare_long(&passes->compared, passes->compared.with_key, true, &passes->contexts,
					  nodes[at].context, &passes->contexts.key, nodes[id].context,
					  passes->contexts.word, &sign);
			below = sign < 0;
		}
		if (below) {
			*lesser = at;
			lesser = &nodes[at].child[1];
			at = *lesser;
		} else {
			*greater = at;
			greater = &nodes[at].child[0];
			at = *greater;
		}
		hops++;
	}
	*lesser = 0;
	*greater = 0;
	passes->compared.work += hops;
}

ALWAYS_INLINE void part_insert(struct passes *passes, struct part *part, unsigned bits, const struct event *event)
{
	const uint32_t id = ++part->count, context = event->number & ~CONTEXT;
	uint32_t *root = root_of(part, bits, event->word), at = *root;

	if (bits <= TREE_NARROW)
		part_note(part, bits, event->word, context, event->ready);
	*root = id;
	part->nodes[id] = (struct node){event->word, context, event->ready, {0, 0}};
	if (UNLIKELY(at))
		part_cut(passes, part->nodes, at, id);
}

/* What the tables know of `lanes` queries, as in tree_recall(). */
ALWAYS_INLINE uint32_t part_recall(const struct part *part, unsigned bits, uint64_t word, uint32_t cap, unsigned lanes,
				   uint32_t *found)
{
	const uint64_t rest = rest_of(part, bits, word);
	const unsigned symbol = (unsigned)(word >> (64 - bits));
	const uint32_t *level = part->tables;
	unsigned extra = part->extra;
	uint32_t matched = 0;

	for (unsigned i = 0; i < part->levels && LIKELY(part->first + i <= cap); i++, extra += bits) {
		const uint32_t *row = level + row_of(rest, bits, extra);

		for (unsigned lane = 0; lane < lanes; lane++) {
			const uint32_t ready = row[lane ? symbol ^ 1u << (lane - 1) : symbol];

			found[lane] = ready ? ready : found[lane];
			if (lane == 0)
				matched = ready ? part->first + i : matched;
		}
		level += (size_t)1 << (extra + bits);
	}
	return matched;
}

/*
 * Look in the trees for longer matches than `known`, lanes as in tree_find(): at[] has the roots. The length of lane
 * 0's match is returned, 0 if there is none.
 */
ALWAYS_INLINE uint32_t part_walk(struct passes *passes, const struct node *nodes, unsigned bits,
				 const struct event *event, uint32_t known, uint32_t cap, unsigned lanes, uint32_t *at,
				 uint32_t *found)
{
	const struct contexts *const ctx = &passes->contexts;
	uint32_t most[TREE_MAX_LANES];
	uint8_t active[TREE_MAX_LANES];
	unsigned busy = 0, hops = 0;

	known = known < cap ? known : cap;
	for (unsigned lane = 0; lane < lanes; lane++) {
		active[busy] = (uint8_t)lane;
		busy += at[lane] != 0;
		most[lane] = known;
	}
	while (busy && LIKELY(passes->compared.work + hops <= passes->limit)) {
		unsigned still = 0;

		hops += busy;
		for (unsigned i = 0; i < busy; i++) {
			const unsigned lane = active[i];
			const uint64_t v = tree_flip(event->word, bits, lane);
			const struct node *node = nodes + at[lane];
			bool greater = v > node->word, better;
			uint32_t shared;

			if (UNLIKELY(v == node->word)) {
				int sign = 0;

				shared =
				    tree_compare_long(&passes->compared, passes->compared.with_query, lane == 0, ctx,
						      node->context, &ctx->query, event->number, ctx->word, &sign);
				greater = sign < 0;
			} else {
				shared = leading_zeros(v ^ node->word) / bits;
				shared = shared < node->context ? shared : node->context;
			}
			shared = shared < cap ? shared : cap;
			better = shared > most[lane];
			found[lane] = better ? node->ready : found[lane];
			most[lane] = better ? shared : most[lane];
			at[lane] = node->child[greater];
			active[still] = (uint8_t)lane;
			still += at[lane] != 0;
		}
		busy = still;
	}
	passes->compared.work += hops;
	return most[0] > known ? most[0] : 0;
}

/* The answers to a query and its flips, 0 where the part has none; the length of the query's match is returned. */
ALWAYS_INLINE uint32_t part_find(struct passes *passes, const struct part *part, unsigned bits,
				 const struct event *event, unsigned lanes, uint32_t *found)
{
	const uint32_t max_match = passes->contexts.max_match;
	const uint32_t cap = event->number < max_match ? event->number : max_match;
	uint32_t at[TREE_MAX_LANES], any = 0, matched = 0;

	for (unsigned lane = 0; lane < lanes; lane++)
		found[lane] = 0;
	if (bits <= TREE_NARROW)
		matched = part_recall(part, bits, event->word, cap, lanes, found);
	for (unsigned lane = 0; lane < lanes; lane++) {
		at[lane] = *root_of(part, bits, tree_flip(event->word, bits, lane));
		any |= at[lane];
	}
	if (any) {
		const uint32_t longer =
		    part_walk(passes, part->nodes, bits, event, part->first + part->levels - 1, cap, lanes, at, found);

		matched = longer ? longer : matched;
	}
	return matched;
}

/* Entries of the largest table for a context of the part: few enough to be near, many enough for few hops. */
#define ROOTS 16

/* Lay out the index of a part of so many contexts. How many entries the tables have; where the roots begin among them
 * goes to *roots. */
static inline size_t part_lay_out(struct part *part, const struct route_rules *rules, const struct division *division,
				  size_t contexts, size_t *roots)
{
	const bool wide = rules->bits > TREE_NARROW;
	const unsigned row = wide ? 0 : rules->bits;
	const uint64_t most = wide ? TREE_MAX_ROOTS : (uint64_t)(rules->max_match - 1) * row - division->part_bits;

	*part = (struct part){.part_bits = division->part_bits, .first = division->shallow + 1};
	while (part->root_bits < most && part->root_bits + row < TREE_MAX_ROOTS &&
	       (size_t)1 << (part->root_bits + row) < ROOTS * contexts)
		part->root_bits++;
	part->extra = wide ? 0 : division->shallow * row - division->part_bits;
	*roots = 0;
	for (unsigned extra = part->extra; !wide && extra < part->root_bits; extra += row) {
		*roots += (size_t)1 << (extra + row);
		part->levels++;
	}
	return *roots + ((size_t)1 << (part->root_bits + row));
}

#endif
