/* The ordered index. The essay is in order_index.h. */
#include "retrieval/order_index.h"

#define NOBODY UINT32_MAX

enum direction { LEFT, RIGHT };

/* A place in the list. */
struct place {
	uint32_t leaf;
	unsigned entry;
};

/* A symbol's bit in a set. Up to ORDER_EXACT bits are told apart; wider symbols share bits, spread so that a query and
 * its flips, or symbols with equal low ends, do not. */
static uint64_t symbol_bit(unsigned symbol)
{
	return UINT64_C(1) << (symbol < 1u << ORDER_EXACT ? symbol : symbol * 0x9e3779b1u >> 26);
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t greatest(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static inline unsigned lowest(uint32_t mask)
{
	return (unsigned)__builtin_ctz(mask);
}

static inline unsigned highest(uint32_t mask)
{
	return 31 - (unsigned)__builtin_clz(mask);
}

/* The bits below the lowest of a mask; all, if it has none. */
static inline uint32_t below_lowest(uint32_t mask)
{
	return ~mask & (mask - 1);
}

/* The bits up to the highest of a mask; none, if it has none. */
static inline uint32_t up_to_highest(uint32_t mask)
{
	/* a bit below the mask, so that there always is one: no branch */
	return first_bits(63 - (unsigned)__builtin_clzll((uint64_t)mask << 1 | 1));
}

static uint32_t least_of(const uint32_t *low, unsigned from, unsigned to, uint32_t so_far)
{
	for (unsigned i = from; i < to; i++)
		so_far = least(so_far, low[i]);
	return so_far;
}

/* What a search finds: a context, the shared length, and on which side it lies. */
struct nearest {
	uint32_t context; /* NOBODY: none */
	uint32_t run;
	enum direction side;
};

/* ---- asking for memory ---- */

/* Long matches go on: what a step found will be followed, a step later, by what lies behind it. So that is asked for
 * AHEAD steps before. */
#define AHEAD 2

/* Bring a context's leaf near. */
static inline void ask_leaf(const struct order_index *order, uint32_t context)
{
	const char *leaf = (const char *)&order->leaf[order->leaf_of[context]];

	for (size_t line = 0; line < sizeof(*order->leaf); line += MEMORY_LINE)
		PREFETCH(leaf + line);
}

/* Its leaf has come: bring near what the node above knows of that. */
static inline void ask_parent(const struct order_index *order, uint32_t context)
{
	const struct order_leaf *leaf = &order->leaf[order->leaf_of[context]];
	const struct order_inner *inner = &order->inner[leaf->parent];

	PREFETCH(&inner->low[leaf->place]);
	PREFETCH(&inner->newest[leaf->place]);
	PREFETCH(&inner->symbols[leaf->place]);
}

/* ---- memory ---- */

/* Leaves split in half when full, so that many are enough; the same holds of inner nodes a level up. */
static size_t leaves_for(size_t contexts)
{
	return contexts / (ORDER_FANOUT / 2) + 2;
}

static size_t inners_for(size_t leaves)
{
	size_t inners = 2;

	for (; leaves > 1; leaves = leaves / (ORDER_FANOUT / 2) + 1) {
		inners += leaves / (ORDER_FANOUT / 2) + 2;
		if (leaves < ORDER_FANOUT / 2)
			break;
	}
	return inners;
}

static bool reserve(const rosa_allocator *allocator, void **array, size_t *capacity, size_t need, size_t size)
{
	size_t grown;
	void *more;

	if (*array && need <= *capacity)
		return true;
	grown = *array ? memory_grown(*capacity, need) : need;
	more = memory_resize_lines(allocator, *array, grown * size);
	if (!more)
		return false;
	*array = more;
	*capacity = grown;
	return true;
}

bool order_reserve(struct order_index *order, const rosa_allocator *allocator, size_t contexts)
{
	size_t leaves = leaves_for(contexts + 1) + order->sparse;

	return reserve(allocator, (void **)&order->leaf, &order->leaf_capacity, leaves, sizeof(*order->leaf)) &&
	       reserve(allocator, (void **)&order->inner, &order->inner_capacity, inners_for(leaves),
		       sizeof(*order->inner)) &&
	       reserve(allocator, (void **)&order->leaf_of, &order->context_capacity, contexts + 1,
		       sizeof(*order->leaf_of));
}

void order_free(struct order_index *order, const rosa_allocator *allocator)
{
	if (!order)
		return;
	memory_free(allocator, order->leaf);
	memory_free(allocator, order->inner);
	memory_free(allocator, order->leaf_of);
	memory_free(allocator, order);
}

struct order_index *order_new(const rosa_allocator *allocator)
{
	struct order_index *order = memory_resize(allocator, NULL, sizeof(*order));

	if (!order)
		return NULL;
	memset(order, 0, sizeof(*order));
	if (!order_reserve(order, allocator, 0)) {
		order_free(order, allocator);
		return NULL;
	}
	order_use(order, rosa_isa_best());
	order_clear(order);
	return order;
}

void order_clear(struct order_index *order)
{
	order->leaves = order->inners = 1;
	order->root = order->count = order->sparse = 0;
	order->place = 0;
	order->symbols = 0;
	memset(order->leaf, 0, sizeof(*order->leaf));
	memset(order->inner, 0, sizeof(*order->inner));
	order->leaf[0].count = 1;
	order->inner[0].parent = NOBODY;
	order->inner[0].count = 1;
	order->inner[0].height = 1;
	order->leaf_of[0] = 0;
}

struct order_index *order_copy(const struct order_index *from, const rosa_allocator *allocator)
{
	struct order_index *order = order_new(allocator);

	if (!order)
		return NULL;
	order->sparse = from->sparse;
	if (!order_reserve(order, allocator, from->context_capacity - 1)) {
		order_free(order, allocator);
		return NULL;
	}
	memcpy(order->leaf, from->leaf, from->leaves * sizeof(*from->leaf));
	memcpy(order->inner, from->inner, from->inners * sizeof(*from->inner));
	memcpy(order->leaf_of, from->leaf_of, ((size_t)from->count + 1) * sizeof(*from->leaf_of));
	order->leaves = from->leaves;
	order->inners = from->inners;
	order->root = from->root;
	order->count = from->count;
	order->place = from->place;
	order->symbols = from->symbols;
	return order;
}

size_t order_bytes(const struct order_index *order)
{
	return order ? sizeof(*order) + order->leaf_capacity * sizeof(*order->leaf) +
			   order->inner_capacity * sizeof(*order->inner) +
			   order->context_capacity * sizeof(*order->leaf_of)
		     : 0;
}

/* ---- change ---- */

/* Sum up child `place` of an inner node anew. */
static void sum_up(struct order_index *order, uint32_t node, unsigned place)
{
	struct order_inner *inner = &order->inner[node];
	uint32_t low = NOBODY, newest = 0;
	uint64_t symbols = 0;

	if (inner->height == 1) {
		const struct order_leaf *leaf = &order->leaf[inner->id[place]];

		for (unsigned i = 0; i < leaf->count; i++) {
			low = least(low, leaf->low[i]);
			newest = greatest(newest, leaf->id[i]);
			if (leaf->id[i] != order->count)
				symbols |= symbol_bit(leaf->symbol[i]);
		}
	} else {
		const struct order_inner *child = &order->inner[inner->id[place]];

		for (unsigned i = 0; i < child->count; i++) {
			low = least(low, child->low[i]);
			newest = greatest(newest, child->newest[i]);
			symbols |= child->symbols[i];
		}
	}
	inner->low[place] = low;
	inner->newest[place] = newest;
	inner->symbols[place] = symbols;
}

static void sum_up_path(struct order_index *order, uint32_t leaf)
{
	uint32_t node = order->leaf[leaf].parent;
	unsigned place = order->leaf[leaf].place;

	while (node != NOBODY) {
		sum_up(order, node, place);
		place = order->inner[node].place;
		node = order->inner[node].parent;
	}
}

static void set_parent(struct order_index *order, uint32_t height, uint32_t id, uint32_t parent, unsigned place)
{
	if (height == 1) {
		order->leaf[id].parent = parent;
		order->leaf[id].place = (uint16_t)place;
	} else {
		order->inner[id].parent = parent;
		order->inner[id].place = (uint16_t)place;
	}
}

static void split_inner(struct order_index *order, uint32_t node);

/* Hang node `id` into `parent` as child `place`, which must have room, and sum it up. */
static void hang_in(struct order_index *order, uint32_t parent, unsigned place, uint32_t id)
{
	struct order_inner *inner = &order->inner[parent];

	for (unsigned i = inner->count; i > place; i--) {
		inner->id[i] = inner->id[i - 1];
		inner->low[i] = inner->low[i - 1];
		inner->newest[i] = inner->newest[i - 1];
		inner->symbols[i] = inner->symbols[i - 1];
		set_parent(order, inner->height, inner->id[i], parent, i);
	}
	inner->id[place] = id;
	inner->count++;
	set_parent(order, inner->height, id, parent, place);
	sum_up(order, parent, place);
}

/* Hang the new right half `id` beside the node that was split, child `place` of `parent`. */
static void hang_beside(struct order_index *order, uint32_t parent, unsigned place, uint32_t id)
{
	sum_up(order, parent, place);
	hang_in(order, parent, place + 1, id);
	if (order->inner[parent].count == ORDER_FANOUT)
		split_inner(order, parent);
}

/* Nodes are split as soon as they are full, so that there is always room for one more. */
static void split_inner(struct order_index *order, uint32_t node)
{
	const unsigned half = ORDER_FANOUT / 2;
	struct order_inner *left = &order->inner[node], *right;
	uint32_t id = order->inners++;

	right = &order->inner[id];
	right->height = left->height;
	right->count = (uint16_t)(left->count - half);
	for (unsigned i = 0; i < right->count; i++) {
		right->id[i] = left->id[half + i];
		right->low[i] = left->low[half + i];
		right->newest[i] = left->newest[half + i];
		right->symbols[i] = left->symbols[half + i];
		set_parent(order, right->height, right->id[i], id, i);
	}
	left->count = (uint16_t)half;
	if (left->parent == NOBODY) {
		struct order_inner *root = &order->inner[order->inners];

		order->root = order->inners++;
		root->parent = NOBODY;
		root->place = 0;
		root->count = 0;
		root->height = left->height + 1;
		hang_in(order, order->root, 0, node);
	}
	hang_beside(order, left->parent, left->place, id);
}

static void split_leaf(struct order_index *order, uint32_t leaf)
{
	const unsigned half = ORDER_FANOUT / 2;
	struct order_leaf *left = &order->leaf[leaf], *right;
	uint32_t id = order->leaves++;

	right = &order->leaf[id];
	right->count = (uint16_t)(left->count - half);
	memcpy(right->id, left->id + half, right->count * sizeof(*right->id));
	memcpy(right->low, left->low + half, right->count * sizeof(*right->low));
	memcpy(right->symbol, left->symbol + half, right->count * sizeof(*right->symbol));
	for (unsigned i = 0; i < right->count; i++)
		order->leaf_of[right->id[i]] = id;
	left->count = (uint16_t)half;
	hang_beside(order, left->parent, left->place, id);
}

/* The first entry right of a place, or false. */
static bool right_of(const struct order_index *order, struct place at, struct place *next)
{
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t node = leaf->parent;
	unsigned place = leaf->place;

	if (at.entry + 1 < leaf->count) {
		*next = (struct place){at.leaf, at.entry + 1};
		return true;
	}
	for (; node != NOBODY; place = order->inner[node].place, node = order->inner[node].parent) {
		const struct order_inner *inner = &order->inner[node];

		for (unsigned i = place + 1; i < inner->count; i++) {
			uint32_t id = inner->id[i];

			if (inner->low[i] == NOBODY)
				continue; /* emptied by removals */
			for (uint32_t height = inner->height; height > 1; height--) {
				const struct order_inner *child = &order->inner[id];
				unsigned first = 0;

				while (child->low[first] == NOBODY)
					first++;
				id = child->id[first];
			}
			*next = (struct place){id, 0};
			return true;
		}
	}
	return false;
}

/* Change what an entry shares with its left neighbour, up to where it makes no difference. */
static void set_low(struct order_index *order, struct place at, uint32_t low)
{
	struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t node = leaf->parent;
	unsigned place = leaf->place;

	leaf->low[at.entry] = low;
	low = least_of(leaf->low, 0, leaf->count, NOBODY);
	while (node != NOBODY && order->inner[node].low[place] != low) {
		struct order_inner *inner = &order->inner[node];

		inner->low[place] = low;
		low = least_of(inner->low, 0, inner->count, NOBODY);
		place = inner->place;
		node = inner->parent;
	}
}

/* The place behind all entries. */
static struct place last_place(const struct order_index *order)
{
	uint32_t id = order->root;

	for (uint32_t height = order->inner[id].height; height > 0; height--)
		id = order->inner[id].id[order->inner[id].count - 1];
	return (struct place){id, order->leaf[id].count};
}

/* ---- variants ---- */

static inline uint32_t below_plain(const uint32_t *v, uint32_t x)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		mask |= (uint32_t)(v[i] < x) << i;
	return mask;
}

static inline uint32_t equal_plain(const uint32_t *v, uint32_t x)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		mask |= (uint32_t)(v[i] == x) << i;
	return mask;
}

static inline uint32_t equal16_plain(const uint16_t *v, uint16_t x)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		mask |= (uint32_t)(v[i] == x) << i;
	return mask;
}

static inline uint32_t holds_plain(const uint64_t *v, uint64_t set)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		mask |= (uint32_t)((v[i] & set) != 0) << i;
	return mask;
}

typedef uint32_t vector_plain;

static inline vector_plain all_plain(uint32_t x)
{
	return x;
}

static inline vector_plain lower_plain(vector_plain so_far, const uint32_t *v, uint32_t mask)
{
	for (; mask; mask &= mask - 1)
		so_far = least(so_far, v[lowest(mask)]);
	return so_far;
}

static inline vector_plain higher_plain(vector_plain so_far, const uint32_t *v, uint32_t mask)
{
	for (; mask; mask &= mask - 1)
		so_far = greatest(so_far, v[lowest(mask)]);
	return so_far;
}

static inline bool under_plain(vector_plain so_far, uint32_t x)
{
	return so_far < x;
}

static inline uint32_t least_plain(vector_plain so_far)
{
	return so_far;
}

static inline uint32_t most_plain(vector_plain so_far)
{
	return so_far;
}

static inline void put_plain(uint32_t *v, unsigned place, uint32_t x)
{
	memmove(v + place + 1, v + place, (ORDER_FANOUT - 1 - place) * sizeof(*v));
	v[place] = x;
}

static inline void put2_plain(uint32_t *v, unsigned place, uint32_t x, uint32_t y)
{
	put_plain(v, place, x);
	if (place + 1 < ORDER_FANOUT)
		v[place + 1] = y;
}

static inline void put16_plain(uint16_t *v, unsigned place, uint16_t x)
{
	memmove(v + place + 1, v + place, (ORDER_FANOUT - 1 - place) * sizeof(*v));
	v[place] = x;
}

#define ORDER_NAME plain
#define ORDER_TARGET
#include "retrieval/order_template.h"

#if ROSA_X86_VARIANTS
#include <immintrin.h>

#define TARGET_AVX2   __attribute__((target("avx2,bmi,lzcnt")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,bmi,bmi2,lzcnt")))

/* A vector whose lanes are all ones where the mask has a bit, from bit `from` on. */
TARGET_AVX2 static inline __m256i spread_avx2(uint32_t mask, unsigned from)
{
	const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);

	return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)(mask >> from)), bits), bits);
}

TARGET_AVX2 static inline uint32_t bits_avx2(__m256i lanes)
{
	return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(lanes));
}

TARGET_AVX2 static inline uint32_t below_avx2(const uint32_t *v, uint32_t x)
{
	const __m256i most = _mm256_set1_epi32((int)(x - 1));
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_LANES; i += 8) {
		__m256i lanes = _mm256_loadu_si256((const __m256i *)(v + i));

		mask |= bits_avx2(_mm256_cmpeq_epi32(_mm256_min_epu32(lanes, most), lanes)) << i;
	}
	return x ? mask : 0;
}

TARGET_AVX2 static inline uint32_t equal_avx2(const uint32_t *v, uint32_t x)
{
	const __m256i wanted = _mm256_set1_epi32((int)x);
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_LANES; i += 8)
		mask |= bits_avx2(_mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *)(v + i)), wanted)) << i;
	return mask;
}

TARGET_AVX2 static inline uint32_t equal16_avx2(const uint16_t *v, uint16_t x)
{
	const __m256i wanted = _mm256_set1_epi16((short)x);
	__m256i low = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)v), wanted);
	__m256i high = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)(v + 16)), wanted);

	/* packing works within halves of 128 bits, so the quarters are put in order after it */
	return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8));
}

TARGET_AVX2 static inline uint32_t holds_avx2(const uint64_t *v, uint64_t set)
{
	const __m256i wanted = _mm256_set1_epi64x((long long)set), zero = _mm256_setzero_si256();
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_LANES; i += 4) {
		__m256i lanes = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(v + i)), wanted);

		mask |= (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(lanes, zero))) << i;
	}
	return ~mask;
}

typedef __m256i vector_avx2;

TARGET_AVX2 static inline vector_avx2 all_avx2(uint32_t x)
{
	return _mm256_set1_epi32((int)x);
}

TARGET_AVX2 static inline vector_avx2 lower_avx2(vector_avx2 so_far, const uint32_t *v, uint32_t mask)
{
	const __m256i none = _mm256_set1_epi32(-1);

	for (unsigned i = 0; i < ORDER_LANES; i += 8) {
		__m256i absent = _mm256_andnot_si256(spread_avx2(mask, i), none);

		so_far =
		    _mm256_min_epu32(so_far, _mm256_or_si256(_mm256_loadu_si256((const __m256i *)(v + i)), absent));
	}
	return so_far;
}

TARGET_AVX2 static inline vector_avx2 higher_avx2(vector_avx2 so_far, const uint32_t *v, uint32_t mask)
{
	for (unsigned i = 0; i < ORDER_LANES; i += 8)
		so_far = _mm256_max_epu32(
		    so_far, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(v + i)), spread_avx2(mask, i)));
	return so_far;
}

TARGET_AVX2 static inline bool under_avx2(vector_avx2 so_far, uint32_t x)
{
	return x && bits_avx2(_mm256_cmpeq_epi32(_mm256_min_epu32(so_far, _mm256_set1_epi32((int)(x - 1))), so_far));
}

TARGET_AVX2 static inline uint32_t least_avx2(vector_avx2 so_far)
{
	__m128i fold = _mm_min_epu32(_mm256_castsi256_si128(so_far), _mm256_extracti128_si256(so_far, 1));

	fold = _mm_min_epu32(fold, _mm_shuffle_epi32(fold, 0x4e));
	fold = _mm_min_epu32(fold, _mm_shuffle_epi32(fold, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(fold);
}

TARGET_AVX2 static inline uint32_t most_avx2(vector_avx2 so_far)
{
	__m128i fold = _mm_max_epu32(_mm256_castsi256_si128(so_far), _mm256_extracti128_si256(so_far, 1));

	fold = _mm_max_epu32(fold, _mm_shuffle_epi32(fold, 0x4e));
	fold = _mm_max_epu32(fold, _mm_shuffle_epi32(fold, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(fold);
}

TARGET_AVX2 static inline void put_avx2(uint32_t *v, unsigned place, uint32_t x)
{
	put_plain(v, place, x);
}

TARGET_AVX2 static inline void put2_avx2(uint32_t *v, unsigned place, uint32_t x, uint32_t y)
{
	put2_plain(v, place, x, y);
}

TARGET_AVX2 static inline void put16_avx2(uint16_t *v, unsigned place, uint16_t x)
{
	put16_plain(v, place, x);
}

#define ORDER_NAME   avx2
#define ORDER_TARGET TARGET_AVX2
#include "retrieval/order_template.h"

TARGET_AVX512 static inline uint32_t below_avx512(const uint32_t *v, uint32_t x)
{
	const __m512i limit = _mm512_set1_epi32((int)x);
	uint32_t mask = _mm512_cmplt_epu32_mask(_mm512_loadu_si512(v), limit);

	return mask | (uint32_t)_mm512_cmplt_epu32_mask(_mm512_loadu_si512(v + 16), limit) << 16;
}

TARGET_AVX512 static inline uint32_t equal_avx512(const uint32_t *v, uint32_t x)
{
	const __m512i wanted = _mm512_set1_epi32((int)x);

	return _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(v), wanted) |
	       (uint32_t)_mm512_cmpeq_epi32_mask(_mm512_loadu_si512(v + 16), wanted) << 16;
}

TARGET_AVX512 static inline uint32_t equal16_avx512(const uint16_t *v, uint16_t x)
{
	return _mm512_cmpeq_epi16_mask(_mm512_loadu_si512(v), _mm512_set1_epi16((short)x));
}

TARGET_AVX512 static inline uint32_t holds_avx512(const uint64_t *v, uint64_t set)
{
	const __m512i wanted = _mm512_set1_epi64((long long)set);

	return _mm512_test_epi64_mask(_mm512_loadu_si512(v), wanted) |
	       (uint32_t)_mm512_test_epi64_mask(_mm512_loadu_si512(v + 8), wanted) << 8 |
	       (uint32_t)_mm512_test_epi64_mask(_mm512_loadu_si512(v + 16), wanted) << 16 |
	       (uint32_t)_mm512_test_epi64_mask(_mm512_loadu_si512(v + 24), wanted) << 24;
}

typedef __m512i vector_avx512;

TARGET_AVX512 static inline vector_avx512 all_avx512(uint32_t x)
{
	return _mm512_set1_epi32((int)x);
}

TARGET_AVX512 static inline vector_avx512 lower_avx512(vector_avx512 so_far, const uint32_t *v, uint32_t mask)
{
	so_far = _mm512_mask_min_epu32(so_far, (__mmask16)mask, so_far, _mm512_loadu_si512(v));
	return _mm512_mask_min_epu32(so_far, (__mmask16)(mask >> 16), so_far, _mm512_loadu_si512(v + 16));
}

TARGET_AVX512 static inline vector_avx512 higher_avx512(vector_avx512 so_far, const uint32_t *v, uint32_t mask)
{
	so_far = _mm512_mask_max_epu32(so_far, (__mmask16)mask, so_far, _mm512_loadu_si512(v));
	return _mm512_mask_max_epu32(so_far, (__mmask16)(mask >> 16), so_far, _mm512_loadu_si512(v + 16));
}

TARGET_AVX512 static inline bool under_avx512(vector_avx512 so_far, uint32_t x)
{
	return _mm512_cmplt_epu32_mask(so_far, _mm512_set1_epi32((int)x)) != 0;
}

TARGET_AVX512 static inline uint32_t least_avx512(vector_avx512 so_far)
{
	return _mm512_reduce_min_epu32(so_far);
}

TARGET_AVX512 static inline uint32_t most_avx512(vector_avx512 so_far)
{
	return _mm512_reduce_max_epu32(so_far);
}

/* Whole vectors are read and written, so that reading them back the next moment need not wait for parts. */
TARGET_AVX512 static inline void put_avx512(uint32_t *v, unsigned place, uint32_t x)
{
	const uint32_t behind = first_bits(ORDER_FANOUT) & ~first_bits(place + 1), here = 1u << place;
	const __m512i low = _mm512_loadu_si512(v), high = _mm512_loadu_si512(v + 16);
	const __m512i a = _mm512_mask_alignr_epi32(low, (__mmask16)behind, low, low, 15);
	const __m512i b = _mm512_mask_alignr_epi32(high, (__mmask16)(behind >> 16), high, low, 15);

	_mm512_storeu_si512(v, _mm512_mask_set1_epi32(a, (__mmask16)here, (int)x));
	_mm512_storeu_si512(v + 16, _mm512_mask_set1_epi32(b, (__mmask16)(here >> 16), (int)x));
}

TARGET_AVX512 static inline void put2_avx512(uint32_t *v, unsigned place, uint32_t x, uint32_t y)
{
	const uint32_t behind = first_bits(ORDER_FANOUT) & ~first_bits(place + 1), here = 1u << place;
	const __m512i low = _mm512_loadu_si512(v), high = _mm512_loadu_si512(v + 16), next = _mm512_set1_epi32((int)y);
	__m512i a = _mm512_mask_alignr_epi32(low, (__mmask16)behind, low, low, 15);
	__m512i b = _mm512_mask_alignr_epi32(high, (__mmask16)(behind >> 16), high, low, 15);

	a = _mm512_mask_mov_epi32(a, (__mmask16)(here << 1 & behind), next);
	b = _mm512_mask_mov_epi32(b, (__mmask16)((here << 1 & behind) >> 16), next);
	_mm512_storeu_si512(v, _mm512_mask_set1_epi32(a, (__mmask16)here, (int)x));
	_mm512_storeu_si512(v + 16, _mm512_mask_set1_epi32(b, (__mmask16)(here >> 16), (int)x));
}

TARGET_AVX512 static inline void put16_avx512(uint16_t *v, unsigned place, uint16_t x)
{
	const __m512i old = _mm512_loadu_si512(v),
		      back = _mm512_set_epi16(30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13,
					      12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0);
	const __m512i moved = _mm512_mask_permutexvar_epi16(old, (__mmask32)~first_bits(place + 1), back, old);

	_mm512_storeu_si512(v, _mm512_mask_mov_epi16(moved, (__mmask32)(1u << place), _mm512_set1_epi16((short)x)));
}

#define ORDER_NAME   avx512
#define ORDER_TARGET TARGET_AVX512
#include "retrieval/order_template.h"
#endif

void order_use(struct order_index *order, rosa_isa isa)
{
	order->find = find_plain;
	order->insert = insert_plain;
	order->insert_into = insert_into_plain;
	order->few = few_plain;
	order->shared = shared_plain;
#if ROSA_X86_VARIANTS
	if (isa == ROSA_ISA_AVX2) {
		order->find = find_avx2;
		order->insert = insert_avx2;
		order->insert_into = insert_into_avx2;
		order->few = few_avx2;
		order->shared = shared_avx2;
	} else if (isa == ROSA_ISA_AVX512) {
		order->find = find_avx512;
		order->insert = insert_avx512;
		order->insert_into = insert_into_avx512;
		order->few = few_avx512;
		order->shared = shared_avx512;
	}
#else
	(void)isa;
#endif
}

uint32_t order_find(const struct order_index *order, struct match past, unsigned symbol, uint32_t cap, uint32_t known,
		    uint32_t deep, uint32_t *found)
{
	return order->find(order, past, symbol, cap, known, deep, found);
}

unsigned order_few(const struct order_index *order, uint32_t context, uint32_t length, uint32_t *members)
{
	return order->few(order, context, length, members);
}

void order_insert(struct order_index *order, unsigned symbol, uint32_t relative)
{
	order->insert(order, symbol, relative);
}

void order_insert_into(struct order_index *order, unsigned symbol, struct order_gap gap)
{
	order->insert_into(order, symbol, gap);
}

void order_remove(struct order_index *order)
{
	struct place at = place_of_plain(order, order->count), next;
	struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t low = leaf->low[at.entry];
	unsigned behind;

	if (right_of(order, at, &next))
		set_low(order, next, least(low, order->leaf[next.leaf].low[next.entry]));
	behind = leaf->count - at.entry - 1;
	memmove(leaf->id + at.entry, leaf->id + at.entry + 1, behind * sizeof(*leaf->id));
	memmove(leaf->low + at.entry, leaf->low + at.entry + 1, behind * sizeof(*leaf->low));
	memmove(leaf->symbol + at.entry, leaf->symbol + at.entry + 1, behind * sizeof(*leaf->symbol));
	order->sparse += leaf->count == ORDER_FANOUT / 2;
	leaf->count--;
	order->count--;
	order->place = ORDER_NOT_KNOWN;
	sum_up_path(order, at.leaf);
}

/* ---- two contexts ---- */

bool order_before(const struct order_index *order, uint32_t a, uint32_t b)
{
	uint32_t left = order->leaf_of[a], right = order->leaf_of[b];
	unsigned i, j;

	if (left == right)
		return place_of_plain(order, a).entry < place_of_plain(order, b).entry;
	i = order->leaf[left].place;
	j = order->leaf[right].place;
	left = order->leaf[left].parent;
	right = order->leaf[right].parent;
	while (left != right) {
		i = order->inner[left].place;
		j = order->inner[right].place;
		left = order->inner[left].parent;
		right = order->inner[right].parent;
	}
	return i < j;
}

uint32_t order_shared(const struct order_index *order, uint32_t a, uint32_t b)
{
	return order->shared(order, a, b);
}
