/*
 * Finding the n-th bit set, and the memory for it. The overview is in starts.h.
 *
 * Counting bits and finding the n-th are single instructions on most x86-64, and missing from the least. So the way to
 * a run is compiled twice. In plain C bits are counted by adding neighbouring fields of a word; the same sums, kept,
 * are what a search for the n-th bit within a word descends, in six steps without a branch, whatever the word.
 */
#include "retrieval/starts.h"

#include "base/compiler.h"
#include "base/cpu.h"

#include <string.h>

/* Samples no further apart than this are cheaper crossed by counting than by a search in rank. */
#define SCAN 4096

#define LEVELS 6 /* a word of 2^6 bits */

/* Every second field of 2^level bits. */
static const uint64_t even_fields[LEVELS] = {
    UINT64_C(0x5555555555555555), UINT64_C(0x3333333333333333), UINT64_C(0x0f0f0f0f0f0f0f0f),
    UINT64_C(0x00ff00ff00ff00ff), UINT64_C(0x0000ffff0000ffff), UINT64_C(0x00000000ffffffff),
};

static inline uint32_t count_ones(uint64_t word)
{
	word -= word >> 1 & even_fields[0];
	word = (word & even_fields[1]) + (word >> 2 & even_fields[1]);
	word = (word + (word >> 4)) & even_fields[2];
	return (uint32_t)(word * UINT64_C(0x0101010101010101) >> 56);
}

/* Where bit number n of those set is, n from 0; there must be more than n. */
static inline uint32_t select_in_word(uint64_t word, uint32_t n)
{
	uint64_t sums[LEVELS]; /* fields of 2^level bits, each the number of ones in it */
	uint32_t at = 0;

	for (unsigned level = 0; level < LEVELS; level++) {
		sums[level] = word;
		word = (word & even_fields[level]) + (word >> (1u << level) & even_fields[level]);
	}
	for (unsigned level = LEVELS; level-- > 0;) {
		uint32_t here = (uint32_t)(sums[level] >> at & ((UINT64_C(1) << (1u << level)) - 1));
		uint32_t beyond = n >= here;

		n -= here & -beyond;
		at += beyond << level;
	}
	return at;
}

static uint64_t below(uint32_t step)
{
	return (UINT64_C(1) << (step % STARTS_WORD)) - 1;
}

/* Where runs are long: count from the sample on, or from the block that a search in rank finds. */
ALWAYS_INLINE uint32_t select_far(const struct starts *starts, uint32_t run, uint32_t (*count)(uint64_t),
				  uint32_t (*select)(uint64_t, uint32_t))
{
	const uint32_t mark = run / STARTS_SAMPLE, from = starts->sample[mark];
	const uint32_t end =
	    mark < (starts->runs - 1) / STARTS_SAMPLE ? starts->sample[mark + 1] : starts->steps; /* not reached */
	size_t word = from / STARTS_WORD;
	/* runs to pass from the beginning of the word on */
	uint32_t pass = run % STARTS_SAMPLE + count(starts->bits[word] & below(from)), ones;

	if (end - from > SCAN) {
		size_t low = from / STARTS_BLOCK, high = (end - 1) / STARTS_BLOCK;

		/* the last block that begins with no more than `run` runs behind it */
		while (low < high) {
			size_t middle = high - (high - low) / 2;

			if (starts->rank[middle] <= run)
				low = middle;
			else
				high = middle - 1;
		}
		word = low * (STARTS_BLOCK / STARTS_WORD);
		pass = run - starts->rank[low];
	}
	for (; (ones = count(starts->bits[word])) <= pass; word++)
		pass -= ones;
	return (uint32_t)(word * STARTS_WORD) + select(starts->bits[word], pass);
}

/* The body of both versions. Short runs begin within the word of the sample. */
ALWAYS_INLINE uint32_t select_run(const struct starts *starts, uint32_t run, uint32_t (*count)(uint64_t),
				  uint32_t (*select)(uint64_t, uint32_t))
{
	const uint32_t from = starts->sample[run / STARTS_SAMPLE];
	uint64_t word;

	memcpy(&word, (const uint8_t *)starts->bits + from / 8, sizeof(word));
	word >>= from % 8;
	if (count(word) <= run % STARTS_SAMPLE)
		return select_far(starts, run, count, select);
	return from + select(word, run % STARTS_SAMPLE);
}

#if ROSA_X86_VARIANTS
#include <immintrin.h>

#define TARGET_BITS __attribute__((target("popcnt,bmi,bmi2")))

TARGET_BITS static inline uint32_t count_ones_bits(uint64_t word)
{
	return (uint32_t)_mm_popcnt_u64(word);
}

TARGET_BITS static inline uint32_t select_in_word_bits(uint64_t word, uint32_t n)
{
	return (uint32_t)_tzcnt_u64(_pdep_u64(UINT64_C(1) << n, word));
}

TARGET_BITS static uint32_t select_bits(const struct starts *starts, uint32_t run)
{
	return select_run(starts, run, count_ones_bits, select_in_word_bits);
}
#endif

static uint32_t select_plain(const struct starts *starts, uint32_t run)
{
	return select_run(starts, run, count_ones, select_in_word);
}

uint32_t starts_select(const struct starts *starts, uint32_t run)
{
#if ROSA_X86_VARIANTS
	if (starts->fast)
		return select_bits(starts, run);
#endif
	return select_plain(starts, run);
}

uint32_t starts_count(const struct starts *starts, uint32_t steps)
{
	const uint32_t block = steps / STARTS_BLOCK;
	uint32_t runs;

	if (steps == starts->steps)
		return starts->runs;
	runs = starts->rank[block];
	for (size_t word = block * (STARTS_BLOCK / STARTS_WORD); word < steps / STARTS_WORD; word++)
		runs += count_ones(starts->bits[word]);
	return runs + count_ones(starts->bits[steps / STARTS_WORD] & below(steps));
}

void starts_truncate(struct starts *starts, uint32_t steps)
{
	uint32_t given_up = 0;

	if (steps >= starts->steps)
		return;
	for (size_t word = steps / STARTS_WORD; word <= (starts->steps - 1) / STARTS_WORD; word++) {
		uint64_t bits = starts->bits[word];

		if (word == steps / STARTS_WORD)
			bits &= ~below(steps);
		if (word == starts->steps / STARTS_WORD)
			bits &= below(starts->steps);
		given_up += count_ones(bits);
	}
	starts->runs -= given_up;
	starts->steps = steps;
}

/* One more than there are bits for, since a word may be read from any byte on. */
static size_t words_of(size_t steps)
{
	return (steps + STARTS_WORD - 1) / STARTS_WORD + 1;
}

static size_t blocks_of(size_t steps)
{
	return (steps + STARTS_BLOCK - 1) / STARTS_BLOCK;
}

static size_t samples_of(size_t runs)
{
	return (runs + STARTS_SAMPLE - 1) / STARTS_SAMPLE;
}

bool starts_reserve(struct starts *starts, const rosa_allocator *allocator, size_t steps, size_t runs, bool select)
{
	const size_t had = starts->bits_capacity;

	if (!MEMORY_RESERVE(allocator, starts->bits, starts->bits_capacity, words_of(steps)))
		return false;
	starts->fast = rosa_isa_available(ROSA_ISA_AVX2);
	/* A step changes its own bit only, so there must be something to change. */
	if (starts->bits_capacity > had)
		memset(starts->bits + had, 0, (starts->bits_capacity - had) * sizeof(*starts->bits));
	return !select || (MEMORY_RESERVE(allocator, starts->rank, starts->rank_capacity, blocks_of(steps)) &&
			   MEMORY_RESERVE(allocator, starts->sample, starts->sample_capacity, samples_of(runs)));
}

bool starts_copy(struct starts *to, const struct starts *from, const rosa_allocator *allocator)
{
	*to = (struct starts){.steps = from->steps, .runs = from->runs};
	if (!from->bits)
		return true;
	if (!starts_reserve(to, allocator, (from->bits_capacity - 1) * STARTS_WORD,
			    from->sample_capacity * STARTS_SAMPLE, from->sample != NULL)) {
		starts_free(to, allocator);
		return false;
	}
	memcpy(to->bits, from->bits, from->bits_capacity * sizeof(*from->bits));
	if (from->sample) {
		memcpy(to->rank, from->rank, blocks_of(from->steps) * sizeof(*from->rank));
		memcpy(to->sample, from->sample, samples_of(from->runs) * sizeof(*from->sample));
	}
	return true;
}

void starts_free(struct starts *starts, const rosa_allocator *allocator)
{
	memory_free(allocator, starts->bits);
	memory_free(allocator, starts->rank);
	memory_free(allocator, starts->sample);
	*starts = (struct starts){.bits = NULL};
}

size_t starts_bytes(const struct starts *starts)
{
	return starts->bits_capacity * sizeof(*starts->bits) + starts->rank_capacity * sizeof(*starts->rank) +
	       starts->sample_capacity * sizeof(*starts->sample);
}
