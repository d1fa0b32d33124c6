/* Comparing contexts beyond the first word. The overview is in contexts.h. */
#include "retrieval/contexts.h"

struct contexts contexts_for(unsigned bits, uint32_t max_match, bool folded)
{
	const unsigned word = least(packed_word_symbols(bits), max_match);

	return (struct contexts){
	    .bits = bits, .max_match = max_match, .folded = folded, .word = word, .mask = packed_mask(bits, word)};
}

void contexts_forget(struct contexts *ctx)
{
	memset(ctx->diagonal, 0, sizeof(ctx->diagonal));
}

uint32_t contexts_shared_long(struct contexts *ctx, uint32_t a, uint32_t b, uint32_t from, bool remember)
{
	const unsigned bits = ctx->bits;
	struct diagonal *last = &ctx->diagonal[(a - b) % CONTEXTS_DIAGONALS];
	const uint32_t limit = least(least(a, b), ctx->max_match);
	uint32_t shared = from, known = UINT32_MAX;

	/* where the earlier comparison on this diagonal began, counted from here */
	if (last->a - last->b == a - b && last->a < a)
		known = a - last->a;
	while (shared < limit) {
		uint64_t difference;

		if (shared >= known) {
			shared = known + last->length;
			break;
		}
		difference =
		    (packed_word(&ctx->key, bits, a - shared) ^ packed_word(&ctx->query, bits, b - shared)) & ctx->mask;
		ctx->work++;
		if (difference) {
			shared += leading_zeros(difference) / bits;
			break;
		}
		shared += ctx->word;
	}
	shared = least(shared, limit);
	if (remember)
		*last = (struct diagonal){a, b, shared};
	return shared;
}
