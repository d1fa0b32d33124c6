/*
 * Byte pair encoding of one piece of text.
 *
 * The rule: as long as two neighbours have a merge, merge the pair of the lowest rank, the leftmost of equal ones.
 * Searching all pairs for each merge would be quadratic, and a text may hold a million letters without a space. So the
 * candidates are kept in a heap, ordered by rank and then by place, and symbols are a linked list, so that a merge
 * touches only its two neighbours. A candidate stays in the heap when its symbols change; when it comes to the top, it
 * is skipped unless the pair at its place still has its rank.
 *
 * Words repeat. A call caches the tokens of the short pieces it has seen, one piece per slot, newer ones replacing
 * older ones. A hit costs a hash and a comparison, and nine words of ten in a novel are hits. The cache belongs to the
 * call and not to the tokenizer, which several threads may use at once.
 */
#include "model/bpe.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define NO_PAIR UINT64_MAX /* ids are below TOKEN_ID_LIMIT */

/* ------------------------------------------------------------------------------------------------------- merges -- */

static uint64_t pair_of(uint32_t left, uint32_t right)
{
	return (uint64_t)left << 32 | right;
}

/* The merge of a pair, or the free place where it belongs; NULL: neither is near enough (see MOST_PROBES). */
static struct merge *find_merge(const struct bpe *bpe, uint64_t pair)
{
	size_t mask = bpe->merges_room - 1, at = hash_pair(pair) & mask;

	for (int probes = 0; probes < MOST_PROBES; probes++, at = (at + 1) & mask) {
		if (bpe->merges[at].pair == pair || bpe->merges[at].pair == NO_PAIR)
			return &bpe->merges[at];
	}
	return NULL;
}

static rosa_status too_many_alike(rosa_error *err)
{
	return rosa_fail(err, ROSA_EFORMAT,
			 "more than %d merges have nearly the same hash; the file was made to be slow", MOST_PROBES);
}

static rosa_status widen(struct bpe *bpe, rosa_error *err)
{
	struct bpe wider = *bpe;

	if (bpe->merges_count * 2 < bpe->merges_room)
		return ROSA_OK;
	wider.merges_room = bpe->merges_room ? bpe->merges_room * 2 : 4096;
	wider.merges = malloc(wider.merges_room * sizeof(*wider.merges));
	if (!wider.merges)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the merges");
	memset(wider.merges, 0xff, wider.merges_room * sizeof(*wider.merges));
	for (size_t i = 0; i < bpe->merges_room; i++) {
		const struct merge *merge = &bpe->merges[i];
		struct merge *place = merge->pair == NO_PAIR ? NULL : find_merge(&wider, merge->pair);
		if (merge->pair != NO_PAIR && !place) {
			free(wider.merges);
			return too_many_alike(err);
		}
		if (place)
			*place = *merge;
	}
	free(bpe->merges);
	*bpe = wider;
	return ROSA_OK;
}

/* Whether a token is `left` and `right` in a row. */
static bool is_joined(const struct vocabulary *vocabulary, uint32_t id, const struct token *left,
		      const struct token *right)
{
	const struct token *token = &vocabulary->tokens[id];
	const char *bytes = vocabulary->bytes + token->key;

	return token->key_length && token->key_length == left->key_length + right->key_length &&
	       memcmp(bytes, vocabulary->bytes + left->key, left->key_length) == 0 &&
	       memcmp(bytes + left->key_length, vocabulary->bytes + right->key, right->key_length) == 0;
}

/* The token that a merge makes. Vocabularies are mostly numbered in the order of their merges, so `guess`, the id after
 * that of the last merge, is tried first. */
static uint32_t find_joined(const struct vocabulary *vocabulary, uint32_t left, uint32_t right, uint32_t guess)
{
	const struct token *a = &vocabulary->tokens[left], *b = &vocabulary->tokens[right];
	size_t size = (size_t)a->key_length + b->key_length;
	uint32_t id = NO_TOKEN;

	if (guess < vocabulary->size && is_joined(vocabulary, guess, a, b))
		return guess;
	char some[256], *joined = size <= sizeof(some) ? some : malloc(size);
	if (joined) {
		memcpy(joined, vocabulary->bytes + a->key, a->key_length);
		memcpy(joined + a->key_length, vocabulary->bytes + b->key, b->key_length);
		id = vocabulary_find(vocabulary, joined, size);
	}
	if (joined != some)
		free(joined);
	return id;
}

/* As much of a spelling as a message holds. */
#define SHOWN(text, size) (int)((size) < 48 ? (size) : 48), text

rosa_status bpe_add_merge(struct bpe *bpe, const char *left, size_t left_size, const char *right, size_t right_size,
			  rosa_error *err)
{
	uint32_t a = vocabulary_find_spelled(&bpe->vocabulary, left, left_size);
	uint32_t b = vocabulary_find_spelled(&bpe->vocabulary, right, right_size);

	if (a == NO_TOKEN || b == NO_TOKEN)
		return rosa_fail(err, ROSA_EFORMAT, "merge %u ('%.*s' with '%.*s'): '%.*s' is not in the vocabulary",
				 (unsigned)bpe->next_rank, SHOWN(left, left_size), SHOWN(right, right_size),
				 SHOWN(a == NO_TOKEN ? left : right, a == NO_TOKEN ? left_size : right_size));
	uint32_t joined = find_joined(&bpe->vocabulary, a, b, bpe->last_joined + 1);
	if (joined == NO_TOKEN)
		return rosa_fail(err, ROSA_EFORMAT, "merge %u: '%.*s' with '%.*s' is not in the vocabulary",
				 (unsigned)bpe->next_rank, SHOWN(left, left_size), SHOWN(right, right_size));
	rosa_status status = widen(bpe, err);
	if (status)
		return status;
	bpe->last_joined = joined;
	struct merge *merge = find_merge(bpe, pair_of(a, b));
	if (!merge)
		return too_many_alike(err);
	bpe->merges_count += merge->pair == NO_PAIR;
	*merge = (struct merge){pair_of(a, b), bpe->next_rank++, joined};
	return ROSA_OK;
}

void bpe_find_letters(struct bpe *bpe)
{
	for (int byte = 0; byte < 256; byte++) {
		char letter = (char)byte;
		bpe->letters[byte] = vocabulary_find(&bpe->vocabulary, &letter, 1);
	}
}

void bpe_free(struct bpe *bpe)
{
	vocabulary_free(&bpe->vocabulary);
	free(bpe->merges);
	*bpe = (struct bpe){0};
}

/* ------------------------------------------------------------------------------------------------------- memory -- */

struct bpe_symbol {
	uint32_t id; /* NO_TOKEN: merged into the one before */
	uint32_t before, after;
};

#define NOWHERE UINT32_MAX

#define WORD_BYTES  22
#define WORD_TOKENS 8

/* One cache line. */
struct bpe_word {
	uint64_t hash;
	uint8_t size, count; /* size 0: free */
	char bytes[WORD_BYTES];
	uint32_t ids[WORD_TOKENS];
};

rosa_status bpe_scratch_new(struct bpe_scratch *scratch, size_t size, rosa_error *err)
{
	*scratch = (struct bpe_scratch){0};
	scratch->words_room = 64;
	while (scratch->words_room < 1 << 15 && scratch->words_room < size / 16)
		scratch->words_room *= 2;
	scratch->words = calloc(scratch->words_room, sizeof(*scratch->words));
	return scratch->words ? ROSA_OK : rosa_fail(err, ROSA_ENOMEM, "no memory to encode a text");
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
	free(scratch->symbols);
	free(scratch->heap);
	free(scratch->words);
	*scratch = (struct bpe_scratch){0};
}

static rosa_status make_room(struct bpe_scratch *scratch, size_t size, rosa_error *err)
{
	if (size <= scratch->room)
		return ROSA_OK;
	free(scratch->symbols);
	free(scratch->heap);
	scratch->room = size < 256 ? 256 : size;
	scratch->symbols = malloc(scratch->room * sizeof(*scratch->symbols));
	/* a candidate for every pair at the start, and up to two for every merge */
	scratch->heap = malloc(3 * scratch->room * sizeof(*scratch->heap));
	if (!scratch->symbols || !scratch->heap) {
		scratch->room = 0;
		return rosa_fail(err, ROSA_ENOMEM, "no memory to encode a piece of %zu bytes", size);
	}
	return ROSA_OK;
}

/* --------------------------------------------------------------------------------------------------------- heap -- */

/* Rank and place in one number: the lowest comes first. */
static uint64_t candidate(uint32_t rank, size_t place)
{
	return (uint64_t)rank << 32 | place;
}

static void sift_down(uint64_t *heap, size_t count, size_t at)
{
	uint64_t moving = heap[at];

	for (size_t child; (child = 2 * at + 1) < count; at = child) {
		child += child + 1 < count && heap[child + 1] < heap[child];
		if (heap[child] >= moving)
			break;
		heap[at] = heap[child];
	}
	heap[at] = moving;
}

static void push(uint64_t *heap, size_t *count, uint64_t moving)
{
	size_t at = (*count)++;

	for (; at > 0 && heap[(at - 1) / 2] > moving; at = (at - 1) / 2)
		heap[at] = heap[(at - 1) / 2];
	heap[at] = moving;
}

static uint64_t pop(uint64_t *heap, size_t *count)
{
	uint64_t top = heap[0];

	heap[0] = heap[--*count];
	if (*count)
		sift_down(heap, *count, 0);
	return top;
}

/* ------------------------------------------------------------------------------------------------------ merging -- */

/* The symbols of a piece before any merge. Returns their number. */
static size_t spell(const struct bpe *bpe, struct bpe_symbol *symbols, const char *piece, size_t size)
{
	bool unknown_before = false;
	size_t count = 0;

	for (size_t i = 0; i < size; i++) {
		uint32_t id = bpe->letters[(uint8_t)piece[i]];
		bool unknown = id == NO_TOKEN;
		if (unknown && (bpe->unknown == NO_TOKEN || (bpe->fuse_unknown && unknown_before)))
			continue;
		symbols[count] =
		    (struct bpe_symbol){unknown ? bpe->unknown : id, (uint32_t)count - 1, (uint32_t)count + 1};
		unknown_before = unknown;
		count++;
	}
	if (count) {
		symbols[0].before = NOWHERE;
		symbols[count - 1].after = NOWHERE;
	}
	return count;
}

/* The merge of a symbol with the next; NULL: none. */
static const struct merge *merge_at(const struct bpe *bpe, const struct bpe_symbol *symbols, uint32_t place)
{
	const struct bpe_symbol *symbol = &symbols[place];

	if (symbol->id == NO_TOKEN || symbol->after == NOWHERE)
		return NULL;
	const struct merge *merge = find_merge(bpe, pair_of(symbol->id, symbols[symbol->after].id));
	return !merge || merge->pair == NO_PAIR ? NULL : merge;
}

static void add_candidate(const struct bpe *bpe, struct bpe_scratch *scratch, size_t *count, uint32_t place)
{
	const struct merge *merge = place == NOWHERE ? NULL : merge_at(bpe, scratch->symbols, place);

	if (merge)
		push(scratch->heap, count, candidate(merge->rank, place));
}

static void join(struct bpe_symbol *symbols, uint32_t place, uint32_t id)
{
	uint32_t gone = symbols[place].after;

	symbols[place].id = id;
	symbols[place].after = symbols[gone].after;
	if (symbols[gone].after != NOWHERE)
		symbols[symbols[gone].after].before = place;
	symbols[gone].id = NO_TOKEN;
}

static void merge_all(const struct bpe *bpe, struct bpe_scratch *scratch, size_t symbols)
{
	uint64_t *heap = scratch->heap;
	size_t waiting = 0;

	if (!bpe->merges_room)
		return;
	for (uint32_t place = 0; place + 1 < symbols; place++) {
		const struct merge *merge = merge_at(bpe, scratch->symbols, place);
		if (merge)
			heap[waiting++] = candidate(merge->rank, place);
	}
	for (size_t i = waiting / 2; i > 0; i--)
		sift_down(heap, waiting, i - 1);
	while (waiting) {
		uint64_t best = pop(heap, &waiting);
		uint32_t place = (uint32_t)best;
		const struct merge *merge = merge_at(bpe, scratch->symbols, place);
		if (!merge || merge->rank != best >> 32)
			continue;
		join(scratch->symbols, place, merge->id);
		add_candidate(bpe, scratch, &waiting, scratch->symbols[place].before);
		add_candidate(bpe, scratch, &waiting, place);
	}
}

static rosa_status encode_anew(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t size,
			       struct tokens *tokens, rosa_error *err)
{
	uint32_t whole = bpe->ignore_merges ? vocabulary_find(&bpe->vocabulary, piece, size) : NO_TOKEN;
	rosa_status status = tokens_reserve(tokens, size, err);

	if (!status && whole != NO_TOKEN) {
		tokens->ids[tokens->count++] = whole;
		return ROSA_OK;
	}
	if (!status)
		status = make_room(scratch, size, err);
	if (status)
		return status;
	size_t count = spell(bpe, scratch->symbols, piece, size);
	merge_all(bpe, scratch, count);
	for (uint32_t place = 0; count && place != NOWHERE; place = scratch->symbols[place].after)
		tokens->ids[tokens->count++] = scratch->symbols[place].id;
	return ROSA_OK;
}

/* -------------------------------------------------------------------------------------------------------- cache -- */

static void remember(struct bpe_word *word, uint64_t hash, const char *piece, size_t size, const uint32_t *ids,
		     size_t count)
{
	if (count > WORD_TOKENS)
		return;
	word->hash = hash;
	word->size = (uint8_t)size;
	word->count = (uint8_t)count;
	memcpy(word->bytes, piece, size);
	memcpy(word->ids, ids, count * sizeof(*ids));
}

rosa_status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t size,
		       struct tokens *tokens, rosa_error *err)
{
	size_t before = tokens->count;
	rosa_status status;

	if (size > WORD_BYTES)
		return encode_anew(bpe, scratch, piece, size, tokens, err);
	uint64_t hash = hash_bytes(piece, size);
	struct bpe_word *word = &scratch->words[hash & (scratch->words_room - 1)];
	if (word->hash == hash && word->size == size && memcmp(word->bytes, piece, size) == 0) {
		status = tokens_reserve(tokens, word->count, err);
		if (!status && word->count) {
			memcpy(tokens->ids + tokens->count, word->ids, word->count * sizeof(*word->ids));
			tokens->count += word->count;
		}
		return status;
	}
	status = encode_anew(bpe, scratch, piece, size, tokens, err);
	if (!status && size)
		remember(word, hash, piece, size, tokens->ids + before, tokens->count - before);
	return status;
}
