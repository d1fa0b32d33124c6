/*
 * The chain index: which earlier context shares the longest suffix with the query, and which of those is the newest?
 *
 * Contexts that share their last `levels` + 1 symbols are chained, newest first. A hash of these symbols picks the root
 * of the chain, so other contexts may be in it too. The longest match is found by comparing the query with every
 * context of its chain; the first that shares the most symbols is the newest that does. For matches of at most `levels`
 * symbols there are tables: for each l up to `levels`, the newest context that ends with each string of l symbols.
 *
 * How many symbols pick a root is what this index adapts. The number of roots follows the number of contexts, and
 * `levels` is as large as tables no larger than the roots allow. If chains still turn out long, because some strings
 * are far more frequent than others, one more symbol is taken (chain_layout_longer()), as long as its table is not out
 * of proportion.
 *
 * Wide codes leave room for only a few tables, and tables for longer strings cannot be added. If their chains become
 * long, like those of frequent pairs of words in a long text, further sets of chains are added instead
 * (chain_layout_deeper()), each picked by one more symbol. The set with the most symbols is searched first. If it has
 * no match, no match of that length exists, so in each set with fewer symbols the first context that shares them is the
 * answer: only the set with the most symbols is ever walked to the end of a chain.
 *
 * Adding a context takes one entry in each table and one link in each set: no comparison is made. Taking the newest
 * away is as simple. Where the layout changes, all is filled again from the packed symbols, in the order of time.
 *
 * Most walks would find nothing: no context of the chain shares more symbols than are known to be shared already. So
 * each root has marks, a small Bloom filter in the bits that its newest context leaves: 16 bits below 2^16 contexts,
 * then eight. Each context of the chain sets one of them, picked by its last symbols. Where every string of levels + 1
 * symbols has a root of its own, the newest context of the root shares so many, and marks are picked by one symbol
 * more. Where strings share roots, they are picked by the levels + 1 symbols themselves. A query whose mark is not set
 * needs no walk: neither contexts nor links are touched.
 *
 * Tables and roots are laid out in rows. A row is picked by what precedes the last symbol, and the last symbol picks
 * the entry in the row. A query and its flips differ in the last symbol alone, so they share a row: one cache line for
 * symbols of up to four bits.
 *
 * Rows are numbered by the bits of their symbols, except in streams of two-bit codes that are folded. There no symbol
 * follows itself: of the 4^l strings of l symbols only 4 * 3^(l - 1) occur, an eighth of them for l = 8. Their rows are
 * numbered without the others, by the newest symbol and, for each older one, which of three it is. So the same memory
 * knows longer strings, and chains are a third as long. A batch, whose memory is soon given back, does without.
 *
 * The chains of places that are read, those of rosa_chain(), are something else (links.h).
 *
 * No bound can be promised: a stream that repeats a long string has as many contexts in one chain. The work done is
 * counted (struct contexts), and the route moves to the ordered index when it is too much.
 */
#pragma once

#include "retrieval/contexts.h"

#define CHAIN_MAX_ROOTS 24 /* bits */
#define CHAIN_HASH      UINT64_C(0x9e3779b97f4a7c15)

/* 2^root_bits roots, picked by levels + 1 symbols, and `deeper` further sets, each picked by a symbol more. Where rows
 * are numbered without strings in which a symbol follows itself, there are as many roots as strings, and root_bits is
 * what their number takes. */
struct chain_layout {
	unsigned root_bits, levels, deeper;
	bool distinct;
};

/* Codes of at most this many bits have enough tables; their hot paths are compiled without further sets. */
#define CHAIN_NARROW     6
#define CHAIN_MAX_DEEPER 3

#define CHAIN_SHORTEST 16

/* Bits of a context where there is room for so many: 16, 24 or 32. Links are of as many, and marks have what is left of
 * the 32 bits of a root. */
static inline unsigned chain_id_bits(size_t capacity)
{
	return capacity >> CHAIN_SHORTEST == 0 ? CHAIN_SHORTEST : capacity >> 24 == 0 ? 24 : 32;
}

/* In a root beside the ordered index: it had another context before. */
#define CHAIN_SEVERAL (UINT32_C(1) << 31)

struct chain_index {
	uint32_t *table; /* the tables, those of fewer symbols first; then the roots, set by set */
	size_t room;     /* entries that there is memory for */
	struct chain_layout layout;
	/* [capacity + 1][link_sets] of the next older context in the chain, 0: none. NULL beside the ordered index:
	 * there the roots only tell which strings have occurred, and whether more than once (CHAIN_SEVERAL). */
	uint8_t *link;
	unsigned link_sets;  /* that there is room for, at least as many as the layout has */
	unsigned link_bytes; /* 2 to 4, as contexts need; 4 where memory does not matter */
	size_t capacity;     /* contexts */
	uint64_t patience;   /* maximum work per look-up */
	bool gave_up;        /* a look-up exceeded it, and its result must be discarded */
};

/* The layout for so many contexts of symbols of `symbol_bits` bits. `scratch`: memory that is soon given back, worth
 * more roots. */
struct chain_layout chain_layout_for(const struct contexts *ctx, unsigned symbol_bits, size_t contexts, bool scratch);
/* The same with one more symbol; false if its table would have more than `most` entries. */
bool chain_layout_longer(const struct contexts *ctx, size_t most, struct chain_layout *layout);
/* The same with one more set of chains; false if there are as many as there can be. */
bool chain_layout_deeper(const struct contexts *ctx, struct chain_layout *layout);

/* Lay the index out, empty, or with the first `contexts` contexts of the key in it. False if memory is short; then
 * nothing has changed. */
bool chain_lay_out(struct chain_index *index, const rosa_allocator *allocator, const struct contexts *ctx,
		   struct chain_layout layout, uint32_t contexts, bool scratch);
/* Room for links of so many contexts in all, of which `indexed` have theirs. */
bool chain_reserve(struct chain_index *index, const rosa_allocator *allocator, const struct contexts *ctx,
		   uint32_t indexed, size_t contexts, bool scratch);
/* No contexts; the memory stays. */
void chain_clear(struct chain_index *index, const struct contexts *ctx);
/* Fill an index with the first `contexts` contexts, whatever was in it. */
void chain_fill(struct chain_index *index, const struct contexts *ctx, uint32_t contexts);
/* Take the newest of `contexts` contexts away, until `kept` are left. */
void chain_shrink(struct chain_index *index, const struct contexts *ctx, uint32_t contexts, uint32_t kept);
/* Copy the arrays of `from` into `to`, which has none. */
bool chain_copy(struct chain_index *to, const struct chain_index *from, const rosa_allocator *allocator);
void chain_free(struct chain_index *index, const rosa_allocator *allocator);
void chain_free_links(struct chain_index *index, const rosa_allocator *allocator);
size_t chain_bytes(const struct chain_index *index);

/* ---- hot paths, compiled for each number of bits ---- */

/* What the hot paths read and never change, copied out of the index for some steps, so that the compiler can keep it in
 * registers. */
struct chain_view {
	uint32_t *table, *root;
	uint8_t *link;
	const uint8_t *key;
	uint64_t mask;
	unsigned root_bits, levels, deeper, link_bytes;
	size_t link_stride;  /* from a context to the next */
	uint64_t row_factor; /* how the symbols before the last pick a row */
	unsigned row_shift;
	bool distinct;       /* as in the layout */
	bool exact;          /* every string of levels + 1 symbols has a root of its own */
	unsigned mark_shift; /* what it leaves of a word picks the mark */
	uint32_t first_mark; /* in a root; its bit is next to those of the context */
	unsigned marks;      /* how many there are, a power of two, less one */
	uint32_t id_mask;    /* the context in a root or a link */
	uint32_t unmarked;   /* all marks, where none are kept */
};

/* Powers of three, of as many digits as a string can have. */
static const uint32_t chain_threes[CHAIN_MAX_ROOTS / 2] = {1, 3, 9, 27, 81, 243, 729, 2187, 6561, 19683, 59049, 177147};

/* Entries of the table for l symbols. */
ALWAYS_INLINE size_t chain_level_size(unsigned bits, bool distinct, unsigned l)
{
	if (bits == 2 && distinct && l > 1)
		return (size_t)16 * chain_threes[l - 2];
	return (size_t)1 << l * bits;
}

/* Where the table for l symbols starts: those for fewer symbols come before it. */
ALWAYS_INLINE size_t chain_level(unsigned bits, bool distinct, unsigned l)
{
	if (bits == 2 && distinct && l > 1)
		return (size_t)8 * chain_threes[l - 2] - 4;
	return ((((size_t)1 << (l * bits)) - 1) / (((size_t)1 << bits) - 1)) - 1;
}

ALWAYS_INLINE struct chain_view chain_look(const struct chain_index *index, const struct contexts *ctx)
{
	const unsigned symbols = index->layout.levels + 1, root_bits = index->layout.root_bits;
	const bool distinct = index->layout.distinct;
	const bool exact = distinct || symbols * ctx->bits <= root_bits;
	const unsigned id_bits = index->link ? chain_id_bits(index->capacity) : 32;
	const unsigned marks = 32 - id_bits;

	return (struct chain_view){.table = index->table,
				   .root = index->table + chain_level(ctx->bits, distinct, symbols),
				   .link = index->link,
				   .key = ctx->key.bytes,
				   .mask = ctx->mask,
				   .root_bits = index->layout.root_bits,
				   .levels = index->layout.levels,
				   .deeper = index->layout.deeper,
				   .link_bytes = index->link_bytes,
				   .link_stride = (size_t)index->link_bytes * index->link_sets,
				   .row_factor = exact ? UINT64_C(1) << ctx->bits : CHAIN_HASH,
				   .row_shift = exact ? 0 : 64 - root_bits,
				   .distinct = distinct,
				   .exact = exact,
				   .mark_shift = 64 - (symbols + exact) * ctx->bits,
				   .first_mark = marks ? UINT32_C(1) << id_bits : 1,
				   .marks = marks ? marks - 1 : 0,
				   .id_mask = UINT32_MAX >> marks,
				   .unmarked = !marks};
}

/* The next context of the chain of set number `set`; 0 is the one of the fewest symbols. */
ALWAYS_INLINE uint32_t chain_next(const struct chain_view *view, uint32_t c, unsigned set)
{
	uint32_t next;

	memcpy(&next, view->link + (size_t)c * view->link_stride + set * view->link_bytes, sizeof(next));
	return next & view->id_mask;
}

/* The link of c, the newest: what lies behind it is not in use, so sets are written in order. */
ALWAYS_INLINE void chain_set_next(const struct chain_view *view, uint32_t c, unsigned set, uint32_t next)
{
	memcpy(view->link + (size_t)c * view->link_stride + set * view->link_bytes, &next, sizeof(next));
}

ALWAYS_INLINE uint64_t chain_word(const struct chain_view *view, unsigned bits, uint32_t c)
{
	struct packed key = {(uint8_t *)view->key, 0};

	return packed_word(&key, bits, c) & view->mask;
}

/* Four differences of neighbours, which are 1 to 3, as a number of base three, the one in the highest bits being the
 * least digit. A difference of 0 counts as 1: it is behind the first symbol, and takes part in no match. */
extern const uint8_t chain_digits[256];

/* The row of the table for l symbols; `past` is the word without the last. */
ALWAYS_INLINE size_t chain_table_row(unsigned bits, bool distinct, unsigned l, uint64_t past)
{
	if (l < 2)
		return 0;
	if (bits == 2 && distinct) {
		const uint64_t all = past ^ past << 2, some = l > 2 ? all >> (68 - 2 * l) << (68 - 2 * l) : 0;

		return (((chain_digits[some >> 56] + 81 * chain_digits[some >> 48 & 255] +
			  (size_t)6561 * chain_digits[some >> 40 & 255])
			 << 2) |
			past >> 62)
		       << 2;
	}
	return past >> (64 - (l - 1) * bits) << bits;
}

/* The same where that of the table for l - 1 symbols is `shorter`. */
ALWAYS_INLINE size_t chain_next_row(unsigned bits, bool distinct, unsigned l, uint64_t past, size_t shorter)
{
	if (bits == 2 && distinct && l > 2) {
		const uint64_t all = past ^ past << 2, digits = all - ((all | all >> 1) & UINT64_C(0x5555555555555555));

		return shorter + (digits >> (68 - 2 * l) & 3) * 16 * chain_threes[l - 3];
	}
	return chain_table_row(bits, distinct, l, past);
}

/* The part of a root's place that the symbols before the last one decide; `past` is the word without the last. */
ALWAYS_INLINE size_t chain_row(const struct chain_view *view, unsigned bits, uint64_t past)
{
	if (bits == 2 && view->distinct)
		return chain_table_row(bits, true, view->levels + 1, past);
	return view->levels ? (past >> (64 - view->levels * bits)) * view->row_factor >> view->row_shift : 0;
}

/* The part that the last symbol decides. Where it has more bits than there are roots, they are hashed. */
ALWAYS_INLINE size_t chain_entry(const struct chain_view *view, unsigned bits, unsigned symbol)
{
	return view->root_bits >= bits ? symbol : symbol * CHAIN_HASH >> (64 - view->root_bits);
}

ALWAYS_INLINE uint32_t *chain_root(const struct chain_view *view, unsigned bits, uint64_t word)
{
	return view->root +
	       (chain_row(view, bits, word << bits) ^ chain_entry(view, bits, (unsigned)(word >> (64 - bits))));
}

/* The root in a set; those of more symbols are always hashed. */
ALWAYS_INLINE uint32_t *chain_root_of(const struct chain_view *view, unsigned bits, uint64_t word, unsigned set)
{
	uint64_t row;

	if (!set)
		return chain_root(view, bits, word);
	row = ((word << bits) >> (64 - (view->levels + set) * bits)) * CHAIN_HASH >> (64 - view->root_bits);
	return view->root + ((size_t)set << view->root_bits) +
	       (row ^ chain_entry(view, bits, (unsigned)(word >> (64 - bits))));
}

/* The bit of a root that tells whether the symbols of a word that are marked may be those of a context in its chain. */
ALWAYS_INLINE uint32_t chain_mark(const struct chain_view *view, uint64_t word)
{
	return view->first_mark << ((word >> view->mark_shift) * CHAIN_HASH >> 32 & view->marks);
}

/* Insert the newest context c, whose word is `word`, into the tables. */
ALWAYS_INLINE void chain_note_by(const struct chain_view *view, unsigned bits, bool distinct, uint64_t word, uint32_t c)
{
	const unsigned symbol = (unsigned)(word >> (64 - bits));
	uint32_t *level = view->table;
	size_t row = 0;

	/* unrolled in full, so that shifts are by constants */
#pragma GCC unroll 25
	for (unsigned l = 1; l <= CHAIN_MAX_ROOTS / bits; l++) {
		if (l > view->levels)
			break;
		row = chain_next_row(bits, distinct, l, word << bits, row);
		level[row + symbol] = c;
		level += chain_level_size(bits, distinct, l);
	}
}

ALWAYS_INLINE void chain_note(const struct chain_view *view, unsigned bits, uint64_t word, uint32_t c)
{
	if (bits == 2 && view->distinct)
		chain_note_by(view, bits, true, word, c);
	else
		chain_note_by(view, bits, false, word, c);
}

/* Link the newest context c into its chains. */
ALWAYS_INLINE void chain_hang(const struct chain_view *view, unsigned bits, uint64_t word, uint32_t c)
{
	uint32_t *const root = chain_root(view, bits, word);

	if (!view->link) {
		*root = c | (*root ? CHAIN_SEVERAL : 0);
		return;
	}
	chain_set_next(view, c, 0, *root);
	*root = ((*root | chain_mark(view, word)) & ~view->id_mask) | c;
	for (unsigned set = 1; bits > CHAIN_NARROW && UNLIKELY(set <= view->deeper); set++) {
		uint32_t *const deeper = chain_root_of(view, bits, word, set);

		chain_set_next(view, c, set, *deeper);
		*deeper = c;
	}
}

/* Add context c, the newest, whose word is `word`. */
ALWAYS_INLINE void chain_insert(const struct chain_view *view, unsigned bits, uint64_t word, uint32_t c)
{
	chain_note(view, bits, word, c);
	chain_hang(view, bits, word, c);
}

/*
 * Look up, in the tables, `lanes` queries that differ only in their last symbol, symbols[lane]. `past` is their common
 * word without that symbol, and `cap` symbols may match. found[] gets the newest contexts of the longest matches that
 * tables can tell; the length of lane 0's is returned. *deep gets a bit for each lane whose match is as long as tables
 * go, or as `cap`: for these there may be a longer one.
 */
ALWAYS_INLINE uint32_t chain_recall_by(const struct chain_view *view, unsigned bits, bool distinct, uint64_t past,
				       uint32_t cap, unsigned lanes, const uint32_t *symbols, uint32_t *found,
				       uint32_t *deep)
{
	const unsigned levels = view->levels < cap ? view->levels : cap;
	const uint32_t *level = view->table, *last = level;
	uint32_t matched = 0;
	size_t place = 0;

	/* A single query is mostly answered by the longest strings; several share the cache lines of all levels. */
	if (lanes == 1) {
		*deep = 0;
		found[0] = 0;
		level += chain_level(bits, distinct, levels + 1);
		for (matched = levels; matched > 0; matched--) {
			uint32_t c;

			level -= chain_level_size(bits, distinct, matched);
			c = level[chain_table_row(bits, distinct, matched, past) + symbols[0]];
			if (c >= matched) {
				found[0] = c;
				break;
			}
		}
		*deep = matched == levels;
		return matched;
	}
	for (unsigned lane = 0; lane < lanes; lane++)
		found[lane] = 0;
#pragma GCC unroll 6
	for (unsigned l = 1; l <= CHAIN_MAX_ROOTS / bits; l++) {
		const uint32_t *row;

		if (l > levels)
			break;
		place = chain_next_row(bits, distinct, l, past, place);
		row = level + place;
		for (unsigned lane = 0; lane < lanes; lane++) {
			const uint32_t c = row[symbols[lane]];
			const bool good = c >= l; /* a context of fewer symbols only seems to have l */

			found[lane] = good ? c : found[lane];
			if (lane == 0)
				matched += good;
		}
		last = row;
		level += chain_level_size(bits, distinct, l);
	}
	/* a context that shares l symbols also shares fewer, so checking the longest table is enough */
	*deep = levels ? 0 : first_bits(lanes);
	for (unsigned lane = 0; lane < lanes && levels; lane++)
		*deep |= (uint32_t)(last[symbols[lane]] >= levels) << lane;
	return matched;
}

ALWAYS_INLINE uint32_t chain_recall(const struct chain_view *view, unsigned bits, uint64_t past, uint32_t cap,
				    unsigned lanes, const uint32_t *symbols, uint32_t *found, uint32_t *deep)
{
	if (bits == 2 && view->distinct)
		return chain_recall_by(view, bits, true, past, cap, lanes, symbols, found, deep);
	return chain_recall_by(view, bits, false, past, cap, lanes, symbols, found, deep);
}

/* Of the chain of a set that begins with c, the newest context with the longest match, if that is longer than `best`.
 * `v` is the query's word and `length` its symbols; no match is longer than `bound`. */
ALWAYS_INLINE struct match chain_walk(struct chain_index *index, const struct chain_view *view, struct contexts *ctx,
				      unsigned bits, uint64_t v, uint32_t length, uint32_t bound, bool remember,
				      struct match best, uint32_t c, unsigned set)
{
	const uint64_t limit = ctx->work + index->patience;

	/* With narrow codes most chains have one context or two, and which it is is hard to predict: the first two are
	 * compared without a branch. Context 0 shares nothing. */
	for (int hop = 0; bits <= CHAIN_NARROW && hop < 2; hop++) {
		const uint64_t difference = chain_word(view, bits, c) ^ (v & view->mask);
		const uint32_t shared = least(contexts_shared(ctx, bits, difference, c, length, remember), bound);
		const bool longer = shared > best.length;

		best.context = longer ? c : best.context;
		best.length = longer ? shared : best.length;
		ctx->work += c != 0;
		c = chain_next(view, c, set);
	}
	while (c && best.length < bound) {
		const uint64_t difference = chain_word(view, bits, c) ^ (v & view->mask);
		const uint32_t shared = least(contexts_shared(ctx, bits, difference, c, length, remember), bound);

		if (shared > best.length)
			best = (struct match){c, shared};
		c = chain_next(view, c, set);
		if (UNLIKELY(++ctx->work > limit)) {
			index->gave_up = true;
			break;
		}
	}
	return best;
}

/* The same where there are several sets. A match that is shorter than the symbols of a set does not count there: of
 * such contexts only those that happen to share its chain are seen. */
ALWAYS_INLINE struct match chain_walk_sets(struct chain_index *index, const struct chain_view *view,
					   struct contexts *ctx, unsigned bits, uint64_t v, uint32_t length,
					   uint32_t bound, bool remember, struct match best)
{
	for (unsigned set = view->deeper + 1; set-- > 0 && !index->gave_up;) {
		const uint32_t symbols = view->levels + 1 + set;
		struct match longer = {0, symbols - 1};

		if (symbols > bound)
			continue;
		longer = chain_walk(index, view, ctx, bits, v, length, bound, remember, longer,
				    *chain_root_of(view, bits, v, set) & view->id_mask, set);
		if (longer.length >= symbols)
			return longer;
		bound = symbols - 1;
	}
	return best;
}

/* Look up `lanes` queries at once, as chain_recall() has them; the first has word `word`, and all have `length`
 * symbols. No match is longer than `bound`. Chains are walked for the lanes of the set `wanted`. found[] gets the
 * contexts; the length of lane 0's match is returned. */
ALWAYS_INLINE uint32_t chain_find(struct chain_index *index, const struct chain_view *view, struct contexts *ctx,
				  unsigned bits, uint64_t word, uint32_t length, uint32_t bound, uint32_t wanted,
				  unsigned lanes, const uint32_t *symbols, uint32_t *found)
{
	const uint64_t past = word << bits;
	const uint32_t *const row = view->root;
	const size_t place = chain_row(view, bits, past);
	uint32_t at[MAX_LANES], deep, any = 0;
	uint32_t matched = chain_recall(view, bits, past, bound, lanes, symbols, found, &deep);

	if (bound <= view->levels)
		return matched;
	deep &= wanted;
	for (unsigned lane = 0; lane < lanes; lane++) {
		const uint32_t root = row[place ^ chain_entry(view, bits, symbols[lane])];
		const uint64_t v = past >> bits | (uint64_t)symbols[lane] << (64 - bits);
		const uint32_t c = deep >> lane & 1 ? root & view->id_mask : 0;
		const bool first = view->exact && c > view->levels; /* ... of its string, and long enough */

		at[lane] = (root | view->unmarked) & chain_mark(view, v) ? c : 0;
		any |= at[lane];
		found[lane] = first ? c : found[lane];
		if (lane == 0)
			matched += first;
	}
	if (!any)
		return matched;
	for (unsigned lane = 0; lane < lanes; lane++) {
		const uint64_t v = past >> bits | (uint64_t)symbols[lane] << (64 - bits);
		struct match best = {found[lane], view->levels};

		if (!at[lane])
			continue;
		if (bits > CHAIN_NARROW && UNLIKELY(view->deeper))
			best = chain_walk_sets(index, view, ctx, bits, v, length, bound, lane == 0, best);
		else
			best = chain_walk(index, view, ctx, bits, v, length, bound, lane == 0, best, at[lane], 0);
		found[lane] = best.context;
		if (lane == 0)
			matched = best.length;
	}
	return matched;
}
