/* The chain index, where speed matters less: layout, memory, removal. The overview is in chain_index.h. */
#include "retrieval/chain_index.h"
#include "retrieval/widths.h"

#define PAD 4      /* links are read and written four bytes at a time */
#define FAR 200000 /* contexts from which on a large table is beyond the caches */

#define DIGIT(x)  ((x) ? (x)-1 : 0)
#define DIGITS(x) DIGIT((x) >> 6) + DIGIT((x) >> 4 & 3) * 3 + DIGIT((x) >> 2 & 3) * 9 + DIGIT((x)&3) * 27
#define FOUR(x)   DIGITS(x), DIGITS((x) + 1), DIGITS((x) + 2), DIGITS((x) + 3)
#define MANY(x)   FOUR(x), FOUR((x) + 4), FOUR((x) + 8), FOUR((x) + 12)
#define ALL(x)    MANY(x), MANY((x) + 16), MANY((x) + 32), MANY((x) + 48)

const uint8_t chain_digits[256] = {ALL(0), ALL(64), ALL(128), ALL(192)};

/* ---- layout ---- */

/* Entries of the tables of up to `levels` symbols. */
static size_t table_entries(unsigned bits, struct chain_layout layout, unsigned levels)
{
	return chain_level(bits, layout.distinct, levels + 1);
}

static size_t root_entries(unsigned bits, struct chain_layout layout)
{
	return layout.distinct ? chain_level_size(bits, true, layout.levels + 1)
			       : (size_t)(layout.deeper + 1) << layout.root_bits;
}

static size_t entries(unsigned bits, struct chain_layout layout)
{
	return table_entries(bits, layout, layout.levels) + root_entries(bits, layout);
}

/* As many roots as there are strings. */
static struct chain_layout distinct_layout(const struct contexts *ctx, unsigned levels)
{
	struct chain_layout layout = {2, levels, 0, true};

	while ((size_t)1 << layout.root_bits < root_entries(ctx->bits, layout))
		layout.root_bits++;
	return layout;
}

/* As many levels as have tables no larger than half the roots; roots are picked by one more symbol. */
static struct chain_layout layout_of(const struct contexts *ctx, unsigned root_bits)
{
	unsigned levels = (root_bits - 1) / ctx->bits;

	if (levels >= ctx->max_match)
		levels = ctx->max_match - 1;
	return (struct chain_layout){root_bits, levels, 0, false};
}

bool chain_layout_longer(const struct contexts *ctx, size_t most, struct chain_layout *layout)
{
	const unsigned levels = layout->levels + 1;

	if (levels >= ctx->max_match || levels * ctx->bits > CHAIN_MAX_ROOTS ||
	    chain_level_size(ctx->bits, layout->distinct, levels + layout->distinct) > most)
		return false;
	*layout = layout->distinct ? distinct_layout(ctx, levels)
				   : (struct chain_layout){layout->root_bits, levels, 0, false};
	return true;
}

bool chain_layout_deeper(const struct contexts *ctx, struct chain_layout *layout)
{
	const unsigned symbols = layout->levels + layout->deeper + 2;

	/* the symbols that pick a root come from one word */
	if (ctx->bits <= CHAIN_NARROW || layout->deeper == CHAIN_MAX_DEEPER || symbols > ctx->word)
		return false;
	layout->deeper++;
	return true;
}

/* Entries of tables and roots that a stream may have for so many contexts: 5/4 for each, five bytes. Memory per key run
 * may be half a byte more, an eighth of an entry, for each bit of a symbol, and narrow codes leave most of that to the
 * index. Wide codes take it for the symbols themselves but for 7/4 entries. As long as links are a byte shorter, that
 * is another quarter of an entry, but no more than there may be when they no longer are. */
static size_t entries_allowed(unsigned bits, unsigned symbol_bits, size_t contexts)
{
	const unsigned narrow = 8 + symbol_bits - (bits + 1) / 2, usual = narrow < 10 ? 10 : narrow;
	const unsigned eighths = bits > CHAIN_NARROW ? 14 : usual;
	const size_t allowed = contexts / 8 * eighths, shorter = contexts / 8 * (eighths + 2);
	const size_t most = ((size_t)1 << CHAIN_SHORTEST) / 8 * eighths;

	return allowed >= most ? allowed : shorter < most ? shorter : most;
}

struct chain_layout chain_layout_for(const struct contexts *ctx, unsigned symbol_bits, size_t contexts, bool scratch)
{
	const size_t most = entries_allowed(ctx->bits, symbol_bits, contexts);
	unsigned root_bits = 4;
	struct chain_layout layout;

	if (scratch) {
		/* marks keep most look-ups from chains that have nothing for them, so more roots only cost cache */
		while (root_bits < CHAIN_MAX_ROOTS && (size_t)1 << root_bits < 2 * contexts)
			root_bits++;
		layout = layout_of(ctx, root_bits);
		/* A chain that is not empty costs more than a table that has to be emptied, unless that is beyond the
		 * caches. */
		while (chain_layout_longer(ctx, (contexts < FAR ? 16 : 4) * contexts, &layout))
			;
		return layout;
	}
	if (ctx->folded && ctx->bits == 2) {
		struct chain_layout longer = distinct_layout(ctx, 0);

		do
			layout = longer;
		while (chain_layout_longer(ctx, most, &longer) && entries(ctx->bits, longer) <= most);
		return layout;
	}
	while (root_bits < CHAIN_MAX_ROOTS && entries(ctx->bits, layout_of(ctx, root_bits + 1)) <= most)
		root_bits++;
	return layout_of(ctx, root_bits);
}

void chain_clear(struct chain_index *index, const struct contexts *ctx)
{
	if (index->table)
		memset(index->table, 0, entries(ctx->bits, index->layout) * sizeof(*index->table));
	index->gave_up = false;
}

/* Put the first `contexts` contexts in: into the tables of more than `known` symbols, which is one mostly, and into the
 * chains. */
ALWAYS_INLINE void fill_by(struct chain_view view, struct packed key, unsigned bits, uint32_t contexts, unsigned known)
{
	for (unsigned l = known + 1; l <= view.levels; l++) {
		uint32_t *const level = view.table + chain_level(bits, view.distinct, l);

		for (uint32_t c = 1; c <= contexts; c++) {
			const uint64_t word = packed_word(&key, bits, c);

			level[chain_table_row(bits, view.distinct, l, word << bits) + (word >> (64 - bits))] = c;
		}
	}
	for (uint32_t c = 1; c <= contexts; c++)
		chain_hang(&view, bits, packed_word(&key, bits, c), c);
}

#define FILL(M)                                                                                                        \
	static void fill_##M(const struct chain_view *view, const struct contexts *ctx, uint32_t contexts,             \
			     unsigned known)                                                                           \
	{                                                                                                              \
		fill_by(*view, ctx->key, M, contexts, known);                                                          \
	}
FOR_EACH_WIDTH(FILL)

static void fill_any(const struct chain_view *view, const struct contexts *ctx, uint32_t contexts, unsigned known)
{
	fill_by(*view, ctx->key, ctx->bits, contexts, known);
}

/* Index and layout stay, and tables of up to `known` symbols; what else is in it does not. */
static void fill(struct chain_index *index, const struct contexts *ctx, uint32_t contexts, unsigned known)
{
	static void (*const versions[ROSA_MAX_SYMBOL_BITS + 1])(const struct chain_view *, const struct contexts *,
								uint32_t, unsigned) = EACH_WIDTH(fill);
	const struct chain_view view = chain_look(index, ctx);
	const size_t stay = table_entries(ctx->bits, index->layout, known);

	memset(index->table + stay, 0, (entries(ctx->bits, index->layout) - stay) * sizeof(*index->table));
	index->gave_up = false;
	(versions[ctx->bits] ? versions[ctx->bits] : fill_any)(&view, ctx, contexts, known);
}

void chain_fill(struct chain_index *index, const struct contexts *ctx, uint32_t contexts)
{
	fill(index, ctx, contexts, 0);
}

static size_t link_size(const struct chain_index *index)
{
	return (index->capacity + 1) * index->link_bytes * index->link_sets + PAD;
}

/* Context 0, the end of every chain, leads to itself. */
static void end_of_chains(struct chain_index *index)
{
	memset(index->link, 0, (size_t)index->link_bytes * index->link_sets);
}

/* Room for the links of more sets; what was there is lost. */
static bool reserve_sets(struct chain_index *index, const rosa_allocator *allocator, unsigned sets)
{
	struct chain_index next = *index;

	if (!index->link || sets <= index->link_sets)
		return true;
	next.link_sets = sets;
	next.link = memory_resize(allocator, NULL, link_size(&next));
	if (!next.link)
		return false;
	memory_free(allocator, index->link);
	*index = next;
	end_of_chains(index);
	return true;
}

bool chain_lay_out(struct chain_index *index, const rosa_allocator *allocator, const struct contexts *ctx,
		   struct chain_layout layout, uint32_t contexts, bool scratch)
{
	const size_t room = entries(ctx->bits, layout), size = room * sizeof(*index->table);
	const bool same = contexts && index->table && index->layout.distinct == layout.distinct;
	const unsigned had = same ? index->layout.levels : 0;
	const unsigned known = had < layout.levels ? had : layout.levels;
	uint32_t *table = index->table;

	/* what is scratch memory may as well be too large */
	if (!scratch || !table || room > index->room) {
		table = scratch ? memory_scratch(allocator, size) : memory_resize_lines(allocator, NULL, size);
		if (!table)
			return false;
		if (!reserve_sets(index, allocator, layout.deeper + 1)) {
			memory_free(allocator, table);
			return false;
		}
		if (known)
			memcpy(table, index->table, table_entries(ctx->bits, layout, known) * sizeof(*table));
		memory_free(allocator, index->table);
		index->table = table;
		index->room = room;
	} else if (!reserve_sets(index, allocator, layout.deeper + 1)) {
		return false;
	}
	index->layout = layout;
	fill(index, ctx, contexts, known);
	return true;
}

/* ---- memory ---- */

/* Contexts need `bits` bits of a root and had `was`. Of 16 marks and of 8 the last bits of a hash pick one, so that
 * each of the 8 stands for two. */
static void widen_roots(uint32_t *root, size_t roots, unsigned was, unsigned bits)
{
	for (size_t i = 0; i < roots; i++) {
		const uint32_t marks = root[i] >> was, id = root[i] & ((UINT32_C(1) << was) - 1);

		root[i] = bits < 32 ? id | (marks | marks >> 8) << bits : id;
	}
}

/* The same for links, from an array into another one. */
static void widen_links(const uint8_t *from, unsigned from_bytes, unsigned was, uint8_t *to, unsigned to_bytes,
			size_t links)
{
	for (size_t i = 0; i < links; i++) {
		uint32_t link;

		memcpy(&link, from + i * from_bytes, sizeof(link));
		link &= (UINT32_C(1) << was) - 1;
		memcpy(to + i * to_bytes, &link, sizeof(link));
	}
}

bool chain_reserve(struct chain_index *index, const rosa_allocator *allocator, const struct contexts *ctx,
		   uint32_t indexed, size_t contexts, bool scratch)
{
	const unsigned bits = chain_id_bits(contexts), was = index->link ? chain_id_bits(index->capacity) : bits;
	struct chain_index next = *index;

	if (index->link && contexts <= index->capacity)
		return true;
	if (!index->link)
		next.link_sets = index->layout.deeper + 1;
	next.capacity = memory_grown(index->capacity, contexts);
	/* room to spare is not worth longer links */
	if (chain_id_bits(next.capacity) > bits)
		next.capacity = ((size_t)1 << bits) - 1;
	next.link_bytes = scratch ? 4 : bits / 8;
	next.link = memory_resize(allocator, bits == was ? index->link : NULL, link_size(&next));
	if (!next.link)
		return false;
	if (bits != was) {
		widen_links(index->link, index->link_bytes, was, next.link, next.link_bytes,
			    ((size_t)indexed + 1) * index->link_sets);
		if (index->table)
			widen_roots(chain_look(index, ctx).root, root_entries(ctx->bits, index->layout), was, bits);
		memory_free(allocator, index->link);
	}
	*index = next;
	end_of_chains(index);
	return true;
}

bool chain_copy(struct chain_index *to, const struct chain_index *from, const rosa_allocator *allocator)
{
	const size_t tables = from->room * sizeof(*from->table);

	to->link = from->link ? memory_resize(allocator, NULL, link_size(from)) : NULL;
	to->table = from->table ? memory_resize_lines(allocator, NULL, tables) : NULL;
	if ((from->link && !to->link) || (from->table && !to->table)) {
		memory_free(allocator, to->link);
		memory_free(allocator, to->table);
		to->link = NULL;
		to->table = NULL;
		return false;
	}
	if (from->link)
		memcpy(to->link, from->link, link_size(from));
	if (from->table)
		memcpy(to->table, from->table, tables);
	return true;
}

void chain_free(struct chain_index *index, const rosa_allocator *allocator)
{
	memory_free(allocator, index->link);
	memory_free(allocator, index->table);
	memset(index, 0, sizeof(*index));
}

void chain_free_links(struct chain_index *index, const rosa_allocator *allocator)
{
	memory_free(allocator, index->link);
	index->link = NULL;
	index->capacity = 0;
}

size_t chain_bytes(const struct chain_index *index)
{
	return (index->link ? link_size(index) : 0) + (index->table ? index->room * sizeof(*index->table) : 0);
}

/* ---- removal ---- */

/* The newest context that ends with the `levels` symbols of a word. It is among those that have any one symbol before
 * these, each of which has a root of its own. */
static uint32_t newest_of_chains(const struct chain_view *view, unsigned bits, uint64_t word)
{
	const unsigned top = view->levels * bits;
	const uint64_t string = word >> (64 - top) << (64 - top);
	uint32_t newest = 0;

	for (uint64_t before = 0; before >> bits == 0; before++) {
		uint32_t c = *chain_root(view, bits, string | before << (64 - top - bits)) & view->id_mask;

		while (c > newest && packed_word(&(struct packed){(uint8_t *)view->key, 0}, bits, c) >> (64 - top) !=
					 word >> (64 - top))
			c = chain_next(view, c, 0);
		newest = c > newest ? c : newest;
	}
	return newest;
}

/* Take the newest context away. The newest of a string is then the newest of its extensions by one symbol. */
static void take_out(struct chain_index *index, const struct contexts *ctx, uint32_t c)
{
	const struct chain_view view = chain_look(index, ctx);
	const unsigned bits = ctx->bits;
	const uint64_t word = packed_word(&ctx->key, bits, c), past = word << bits;
	const unsigned symbol = (unsigned)(word >> (64 - bits));

	for (unsigned set = 0; set <= view.deeper; set++) {
		uint32_t *const root = chain_root_of(&view, bits, word, set);

		*root = (*root & ~view.id_mask) | chain_next(&view, c, set);
	}
	for (unsigned l = view.levels; l > 0; l--) {
		uint32_t *const level = view.table + chain_level(bits, view.distinct, l), newest = 0;

		if (l == view.levels) {
			newest = newest_of_chains(&view, bits, word);
		} else {
			const uint32_t *longer = view.table + chain_level(bits, view.distinct, l + 1);
			const uint64_t string = l > 1 ? past >> (64 - (l - 1) * bits) : 0;

			for (uint64_t before = 0; before >> bits == 0; before++) {
				const uint64_t extended = (string << bits | before) << (64 - l * bits);
				const uint32_t c =
				    longer[chain_table_row(bits, view.distinct, l + 1, extended) + symbol];

				newest = c > newest ? c : newest;
			}
		}
		level[chain_table_row(bits, view.distinct, l, past) + symbol] = newest;
	}
}

/* Symbols of more bits have so many extensions that filling the tables again is less work. */
#define FEW_EXTENSIONS 8

void chain_shrink(struct chain_index *index, const struct contexts *ctx, uint32_t contexts, uint32_t kept)
{
	if (contexts - kept > kept || (index->layout.levels && ctx->bits > FEW_EXTENSIONS)) {
		chain_fill(index, ctx, kept);
		return;
	}
	for (; contexts > kept; contexts--)
		take_out(index, ctx, contexts);
}
