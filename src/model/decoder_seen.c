/*
 * The seen-token head: adds a bias to the logits of tokens that already occurred in the text. The bias depends on the
 * hidden state.
 *
 * With h the normed last state, the input of the output head, and e_x row x of that head, a token x that was seen n > 0
 * times (seen.h) gets
 *
 *     logit(x) += table[class of n and x] + gate . h + (query h) . (key e_x)
 *
 * A window does not show that a token occurred before it, and the adapters read only places that matched. Here the text
 * is treated as a set of tokens, and the hidden state h scores which of them should come next.
 *
 * key e_x is computed once, when a text of this decoder first contains the token, and kept for all texts, because texts
 * contain few of the vocabulary's tokens. Only decoder_read computes keys, so a single thread does. Each logit gets one
 * sum of its own, in a fixed order: neither chunks nor threads nor other sequences change a bit.
 */
#include "model/decoder_parts.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------- making -- */

static rosa_status load_weights(decoder *d, rosa_error *err)
{
	const struct adapter_seen *from = &d->adapter->seen;
	struct decoder_seen *s = &d->seen;
	const size_t width = d->checkpoint->config.width;
	rosa_status status = decoder_matrix_new(d, from->query, &s->query, err);

	if (status == ROSA_OK)
		status = decoder_matrix_new(d, from->key, &s->key, err);
	if (status != ROSA_OK)
		return status;
	format_widen(from->table->format, from->table->data, SEEN_CLASSES - 1, s->table + 1);
	format_widen(from->gate->format, from->gate->data, width, s->gate_numbers);
	return d->backend->ops->matrix_new(d->backend, FORMAT_F32, 1, width, s->gate_numbers, &s->gate, err);
}

rosa_status decoder_seen_new(decoder *d, rosa_error *err)
{
	const struct model_config *config = &d->checkpoint->config;
	const struct backend_ops *ops = d->backend->ops;
	struct decoder_seen *s = &d->seen;

	s->rank = (size_t)d->adapter->options.seen;
	if (!s->rank)
		return ROSA_OK;
	s->gate_numbers = calloc(config->width, sizeof(*s->gate_numbers));
	s->table = calloc(SEEN_CLASSES, sizeof(*s->table));
	s->keys = calloc(config->vocabulary, s->rank * sizeof(*s->keys));
	s->known = calloc(config->vocabulary, sizeof(*s->known));
	s->host_q = calloc(LOGITS_ROWS, s->rank * sizeof(*s->host_q));
	s->host_g = calloc(LOGITS_ROWS, sizeof(*s->host_g));
	s->rows = ops->take(d->backend, KEY_ROWS * config->width * sizeof(*s->rows));
	s->made = ops->take(d->backend, KEY_ROWS * s->rank * sizeof(*s->made));
	s->q = ops->take(d->backend, LOGITS_ROWS * s->rank * sizeof(*s->q));
	s->g = ops->take(d->backend, LOGITS_ROWS * sizeof(*s->g));
	if (!s->gate_numbers || !s->table || !s->keys || !s->known || !s->host_q || !s->host_g || !s->rows ||
	    !s->made || !s->q || !s->g)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a seen-token head, %zu tokens of rank %zu",
				 config->vocabulary, s->rank);
	return load_weights(d, err);
}

void decoder_seen_free(decoder *d)
{
	const struct backend_ops *ops = d->backend->ops;
	struct decoder_seen *s = &d->seen;
	float *const taken[] = {s->rows, s->made, s->q, s->g};

	ops->matrix_free(d->backend, &s->query);
	ops->matrix_free(d->backend, &s->key);
	ops->matrix_free(d->backend, &s->gate);
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		ops->give(d->backend, taken[i]);
	free(s->gate_numbers);
	free(s->table);
	free(s->keys);
	free(s->known);
	free(s->host_q);
	free(s->host_g);
}

rosa_status sequence_seen_new(sequence *s, rosa_error *err)
{
	const decoder *d = s->decoder;
	rosa_status status;

	if (!d->seen.rank)
		return ROSA_OK;
	status = seen_new(&s->seen, decoder_vocabulary(d), d->rosa.options.delay, true, err);
	s->seen.moved = s->reads == READS_RANDOM;
	return status;
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

rosa_status decoder_seen_read(const struct pass *pass, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; pass->decoder->seen.rank && i < pass->count && status == ROSA_OK; i++) {
		const struct segment *segment = &pass->segments[i];

		status = seen_add(&segment->sequence->seen, pass->tokens + segment->row, segment->count, err);
	}
	return status;
}

size_t decoder_seen_products(const decoder *d, struct product *products)
{
	const struct decoder_seen *s = &d->seen;

	if (!s->rank)
		return 0;
	products[0] = (struct product){&s->query, s->q, false};
	products[1] = (struct product){&s->gate, s->g, false};
	return 2;
}

void decoder_seen_fetch(decoder *d, size_t rows)
{
	struct decoder_seen *s = &d->seen;

	if (!s->rank)
		return;
	d->backend->ops->get(d->backend, s->host_q, s->q, rows * s->rank * sizeof(*s->host_q));
	d->backend->ops->get(d->backend, s->host_g, s->g, rows * sizeof(*s->host_g));
}

/* key e_x of some tokens. */
static void make_keys(decoder *d, size_t count, const uint32_t *tokens)
{
	struct decoder_seen *s = &d->seen;
	const struct product product = {&s->key, s->made, false};

	if (!count)
		return;
	d->backend->ops->embed(d->backend, d->head.data ? &d->head : &d->embedding, count, tokens, s->rows);
	d->backend->ops->multiply(d->backend, count, s->rows, 1, &product);
	for (size_t i = 0; i < count; i++)
		d->backend->ops->get(d->backend, s->keys + tokens[i] * s->rank, s->made + i * s->rank,
				     s->rank * sizeof(*s->keys));
}

/* Counts what a sequence has seen after its first `steps` tokens, and makes the keys that are new. */
static void count(decoder *d, struct seen *seen, size_t steps)
{
	const size_t before = seen->counted;
	uint32_t tokens[KEY_ROWS];
	size_t new = 0;

	seen_count(seen, steps);
	for (size_t i = before; i < seen->counted; i++) {
		const uint32_t token = seen_counted(seen, i);

		if (d->seen.known[token])
			continue;
		d->seen.known[token] = true;
		tokens[new ++] = token;
		if (new == KEY_ROWS) {
			make_keys(d, new, tokens);
			new = 0;
		}
	}
	make_keys(d, new, tokens);
}

#define DOT_LANES ((size_t)8) /* sums side by side, which a compiler can take at once */

static float dot(size_t size, const float *a, const float *b)
{
	float lane[DOT_LANES] = {0};
	size_t i = 0;

	for (; i + DOT_LANES <= size; i += DOT_LANES)
		for (size_t j = 0; j < DOT_LANES; j++)
			lane[j] += a[i + j] * b[i + j];
	for (size_t j = 0; i + j < size; j++)
		lane[j] += a[i + j] * b[i + j];
	for (size_t half = DOT_LANES / 2; half; half /= 2)
		for (size_t j = 0; j < half; j++)
			lane[j] += lane[j + half];
	return lane[0];
}

void decoder_seen_add(decoder *d, sequence *sequence, size_t steps, size_t row, float *logits)
{
	const struct decoder_seen *s = &d->seen;
	const size_t vocabulary = decoder_vocabulary(d);

	if (!s->rank || sequence->reads == READS_NOTHING)
		return;
	count(d, &sequence->seen, steps);
	for (size_t x = 0; sequence->seen.counted && x < vocabulary; x++) {
		const uint8_t class = sequence->seen.classes[x];

		if (!class)
			continue;
		const float more =
		    s->table[class] + s->host_g[row] + dot(s->rank, s->host_q + row * s->rank, s->keys + x * s->rank);

		if (more != 0) /* adding it would turn a logit of -0 into 0 */
			logits[x] += more;
	}
}
