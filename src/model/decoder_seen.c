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
 * A text has few of a vocabulary's tokens: the first 64k of a novel are some 8,000 different ones of 49,152. So a step
 * goes through a list of the tokens seen. key e_x is computed when x enters the list, and a sequence keeps its keys in
 * the order of the list. The products of all keys with query h are then a matrix-vector product that reads memory in
 * order.
 *
 * Each logit gets one sum of its own, in a fixed order: neither chunks nor threads nor other sequences change a bit.
 */
#include "model/decoder_parts.h"

#include "base/array.h"
#include "base/sizes.h"
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
	s->host_g = calloc(LOGITS_ROWS, sizeof(*s->host_g));
	s->host_scores = calloc(config->vocabulary, sizeof(*s->host_scores));
	s->rows = ops->take(d->backend, KEY_ROWS * config->width * sizeof(*s->rows));
	s->q = ops->take(d->backend, LOGITS_ROWS * s->rank * sizeof(*s->q));
	s->g = ops->take(d->backend, LOGITS_ROWS * sizeof(*s->g));
	s->scores = ops->take(d->backend, config->vocabulary * sizeof(*s->scores));
	if (!s->gate_numbers || !s->table || !s->host_g || !s->host_scores || !s->rows || !s->q || !s->g || !s->scores)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a seen-token head, %zu tokens of rank %zu",
				 config->vocabulary, s->rank);
	return load_weights(d, err);
}

void decoder_seen_free(decoder *d)
{
	const struct backend_ops *ops = d->backend->ops;
	struct decoder_seen *s = &d->seen;
	float *const taken[] = {s->rows, s->q, s->g, s->scores};

	ops->matrix_free(d->backend, &s->query);
	ops->matrix_free(d->backend, &s->key);
	ops->matrix_free(d->backend, &s->gate);
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		ops->give(d->backend, taken[i]);
	free(s->gate_numbers);
	free(s->table);
	free(s->host_g);
	free(s->host_scores);
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

void sequence_seen_free(sequence *s)
{
	const decoder *d = s->decoder;
	struct seen_keys *keys = &s->seen_keys;

	for (size_t i = 0; i < keys->count; i++)
		d->backend->ops->give(d->backend, keys->blocks[i]);
	free(keys->blocks);
	*keys = (struct seen_keys){0};
	seen_free(&s->seen);
}

static size_t block_bytes(const decoder *d)
{
	return KEY_BLOCK * d->seen.rank * sizeof(float);
}

uint64_t sequence_seen_bytes(const sequence *s)
{
	return seen_bytes(&s->seen) + s->seen_keys.count * block_bytes(s->decoder);
}

/* Memory for `need` keys in all. */
static rosa_status reserve(const decoder *d, struct seen_keys *keys, size_t need, rosa_error *err)
{
	const size_t blocks = (need + KEY_BLOCK - 1) / KEY_BLOCK;
	bool good = ARRAY_RESERVE(keys->blocks, keys->room, blocks);

	while (good && keys->count < blocks) {
		keys->blocks[keys->count] = d->backend->ops->take(d->backend, block_bytes(d));
		good = keys->blocks[keys->count] != NULL;
		keys->count += good;
	}
	return good ? ROSA_OK : rosa_fail(err, ROSA_ENOMEM, "no memory for the keys of %zu tokens seen", need);
}

void sequence_seen_rewind(sequence *s, size_t steps)
{
	if (!s->decoder->seen.rank)
		return;
	seen_rewind(&s->seen, steps);
	s->seen_keys.made = smaller(s->seen_keys.made, s->seen.listed);
}

rosa_status sequence_seen_fork(const sequence *from, size_t steps, sequence *to, rosa_error *err)
{
	const decoder *d = from->decoder;
	const struct seen_keys *old = &from->seen_keys;
	struct seen_keys *new = &to->seen_keys;
	float *host = NULL;
	rosa_status status;

	if (!d->seen.rank)
		return ROSA_OK;
	seen_free(&to->seen);
	status = seen_fork(&from->seen, steps, &to->seen, err);
	new->made = smaller(old->made, to->seen.listed);
	if (status == ROSA_OK)
		status = reserve(d, new, new->made, err);
	if (status == ROSA_OK) {
		host = malloc(block_bytes(d));
		status = host ? ROSA_OK : rosa_fail(err, ROSA_ENOMEM, "no memory to copy keys of tokens seen");
	}
	for (size_t i = 0; status == ROSA_OK && i < new->count; i++) {
		d->backend->ops->get(d->backend, host, old->blocks[i], block_bytes(d));
		d->backend->ops->put(d->backend, new->blocks[i], host, block_bytes(d));
	}
	free(host);
	return status;
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

/* key e_x of the tokens that are new in the list. */
static rosa_status make_keys(decoder *d, sequence *sequence, rosa_error *err)
{
	const struct backend_ops *ops = d->backend->ops;
	const struct seen *seen = &sequence->seen;
	struct seen_keys *keys = &sequence->seen_keys;
	rosa_status status = reserve(d, keys, seen->listed, err);

	if (status != ROSA_OK)
		return status;
	while (keys->made < seen->listed) {
		const size_t at = keys->made % KEY_BLOCK, left = smaller(seen->listed - keys->made, KEY_BLOCK - at),
			     some = smaller(left, KEY_ROWS);
		const struct product product = {&d->seen.key, keys->blocks[keys->made / KEY_BLOCK] + at * d->seen.rank,
						false};

		ops->embed(d->backend, d->head.data ? &d->head : &d->embedding, some, seen->list + keys->made,
			   d->seen.rows);
		ops->multiply(d->backend, some, d->seen.rows, 1, &product);
		keys->made += some;
	}
	return ROSA_OK;
}

rosa_status decoder_seen_read(const struct pass *pass, rosa_error *err)
{
	decoder *d = pass->decoder;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; d->seen.rank && i < pass->count && status == ROSA_OK; i++) {
		const struct segment *segment = &pass->segments[i];
		sequence *s = segment->sequence;

		status = seen_add(&s->seen, pass->tokens + segment->row, segment->count, err);
		if (status != ROSA_OK || s->reads == READS_NOTHING)
			continue;
		seen_count(&s->seen, s->seen.steps);
		status = make_keys(d, s, err);
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
	d->backend->ops->get(d->backend, s->host_g, s->g, rows * sizeof(*s->host_g));
}

#define SCORED_BLOCKS 32 /* blocks in one call, which shares their rows out to the workers */

/* (query h) . key of the tokens of a sequence's list, for one row. */
static void score(decoder *d, const sequence *sequence, size_t row)
{
	struct decoder_seen *s = &d->seen;
	const size_t count = sequence->seen.listed;
	struct matrix keys[SCORED_BLOCKS];
	struct product products[SCORED_BLOCKS];
	size_t blocks = 0;

	for (size_t at = 0; at < count; at += KEY_BLOCK) {
		keys[blocks] = (struct matrix){FORMAT_F32, smaller(count - at, KEY_BLOCK), s->rank,
					       sequence->seen_keys.blocks[at / KEY_BLOCK]};
		products[blocks] = (struct product){&keys[blocks], s->scores + at, false};
		if (++blocks < SCORED_BLOCKS && at + KEY_BLOCK < count)
			continue;
		d->backend->ops->multiply(d->backend, 1, s->q + row * s->rank, blocks, products);
		blocks = 0;
	}
	d->backend->ops->get(d->backend, s->host_scores, s->scores, count * sizeof(*s->scores));
}

void decoder_seen_add(decoder *d, sequence *sequence, size_t steps, size_t row, float *logits)
{
	const struct decoder_seen *s = &d->seen;
	struct seen *seen = &sequence->seen;

	if (!s->rank || sequence->reads == READS_NOTHING)
		return;
	seen_count(seen, steps);
	score(d, sequence, row);
	for (size_t i = 0; i < seen->listed; i++) {
		const uint32_t x = seen->list[i];
		const float more = s->table[seen->classes[x]] + s->host_g[row] + s->host_scores[i];

		if (more != 0) /* adding it would turn a logit of -0 into 0 */
			logits[x] += more;
	}
}
