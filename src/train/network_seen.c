/*
 * The seen-token head (model/decoder_seen.c), over whole sequences: forward and backward.
 *
 * The tokens that any sequence of the batch can have seen are listed once. Their rows e of the output head and their
 * keys K = e key^T are made once, too. For some rows of h at a time, as logits are,
 *
 *     Q = h query^T,  g = h gate,  S = Q K^T,        logit_t(x) += table[class] + g_t + S_tx   where x was seen
 *
 * and with G the gradient of the logits, 0 where x was not seen,
 *
 *     gtable += G by class,  gg_t = sum over x of G_tx,  gQ = G K,  gK += G^T Q
 *     ggate += gg^T h,  gquery += gQ^T h,  gh += gg gate + gQ query
 *     and after the last rows  gkey += gK^T e,  ge = gK key
 *
 * S has columns for tokens that a row has not seen, which are not used. They are few products beside those of the
 * logits, and one product of matrices is much faster than many of vectors.
 */
#include "train/network_parts.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------- memory -- */

rosa_status network_seen_new(network *n, rosa_error *err)
{
	struct network_seen *s = &n->seen;
	const size_t vocabulary = n->config.vocabulary;
	rosa_status status;

	s->rank = n->options.rosa ? (size_t)n->options.adapter.seen : 0;
	if (!s->rank)
		return ROSA_OK;
	status = seen_new(&s->counts, vocabulary, adapter_delay(&n->options.adapter), true, err);
	s->listed = status == ROSA_OK ? calloc(vocabulary, sizeof(*s->listed)) : NULL;
	if (status == ROSA_OK && !s->listed)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to count %zu tokens", vocabulary);
	return status;
}

/*
 * Hidden states have the size of the final norm's weights, whose sum is 1,045 in SmolLM2-135M, where the rates were
 * found, and 7,101 in Qwen2.5-Coder-1.5B. AdamW moves each number by about its rate whatever the gradient, so with
 * larger states a step of the query and the gate moves logits by as much more.
 */
#define USUAL_NORM 1045.0

rosa_status network_seen_pace(network *n, rosa_error *err)
{
	const size_t width = n->config.width;
	float *norm = malloc(width * sizeof(*norm));
	double sum = 0;

	if (!norm)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the %zu weights of the final norm", width);
	n->ops->get(n->backend, norm, n->norm.value, width * sizeof(*norm));
	for (size_t c = 0; c < width; c++)
		sum += fabs((double)norm[c]);
	free(norm);
	if (sum > USUAL_NORM)
		n->parameters.all[n->seen.query.index].pace = n->parameters.all[n->seen.gate.index].pace =
		    USUAL_NORM / sum;
	return ROSA_OK;
}

void network_seen_free(network *n)
{
	seen_free(&n->seen.counts);
	free(n->seen.listed);
}

void network_seen_take(network *n, bool learning, bool *good)
{
	struct network_seen *s = &n->seen;
	const size_t rows = n->count * n->steps, most = rows < n->config.vocabulary ? rows : n->config.vocabulary,
		     block = rows < NETWORK_LOGITS_ROWS ? rows : NETWORK_LOGITS_ROWS;
	const struct {
		float **place;
		size_t rows, width;
		bool learning;
	} parts[] = {
	    {&s->e, most, n->config.width, false}, {&s->k, most, s->rank, false},
	    {&s->q, block, s->rank, false},        {&s->g, block, 1, false},
	    {&s->s, block, most, false},           {&s->gk, most, s->rank, true},
	    {&s->gq, block, s->rank, true},        {&s->gg, block, 1, true},
	};

	if (!s->rank)
		return;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		*parts[i].place = !parts[i].learning || learning
				      ? network_take(n, parts[i].rows, parts[i].width, sizeof(float), good)
				      : NULL;
	s->tokens = calloc(most, sizeof(*s->tokens));
	s->classes = calloc(block, most * sizeof(*s->classes));
	n->bytes += most * sizeof(*s->tokens) + block * most * sizeof(*s->classes);
	*good &= s->tokens && s->classes;
}

void network_seen_release(network *n)
{
	free(n->seen.tokens);
	free(n->seen.classes);
	n->seen.tokens = NULL;
	n->seen.classes = NULL;
}

/* ------------------------------------------------------------------------------------------------------ forward -- */

/* Counts in another sequence of the batch from now on. */
static rosa_status enter(network *n, const uint32_t *tokens, rosa_error *err)
{
	seen_rewind(&n->seen.counts, 0);
	return seen_add(&n->seen.counts, tokens, n->steps, err);
}

static void list_tokens(struct network_seen *s)
{
	seen_count(&s->counts, s->counts.steps);
	for (size_t i = 0; i < s->counts.counted; i++) {
		const uint32_t token = seen_counted(&s->counts, i);

		if (!s->listed[token])
			s->tokens[s->count++] = token;
		s->listed[token] = true;
	}
}

rosa_status network_seen_begin(network *n, const uint32_t *tokens, enum past_reads reads, rosa_error *err)
{
	struct network_seen *s = &n->seen;
	const struct product keys = {&s->key.matrix, s->k, false};
	rosa_status status = ROSA_OK;

	s->count = 0;
	if (!s->rank || reads == READS_NOTHING)
		return ROSA_OK;
	seen_rewind(&s->counts, 0);
	s->counts.moved = reads == READS_RANDOM;
	for (size_t b = 0; b < n->count && status == ROSA_OK; b++) {
		status = enter(n, tokens + b * n->steps, err);
		if (status == ROSA_OK)
			list_tokens(s);
	}
	for (size_t j = 0; j < s->count; j++)
		s->listed[s->tokens[j]] = false;
	if (status != ROSA_OK || !s->count)
		return status;
	n->ops->embed(n->backend, &n->head.matrix, s->count, s->tokens, s->e);
	n->training->multiply(n->backend, s->count, s->e, 1, &keys);
	if (s->gk)
		n->training->clear(n->backend, s->count * s->rank, s->gk);
	return ROSA_OK;
}

/* The classes of the listed tokens for some rows of the batch, which come in order. */
static struct seen_rows rows_of(const network *n, size_t rows)
{
	const struct network_seen *s = &n->seen;

	return (struct seen_rows){rows, n->config.vocabulary, s->count, SEEN_CLASSES - 1, s->tokens, s->classes};
}

static struct matrix keys_of(const network *n)
{
	return (struct matrix){FORMAT_F32, n->seen.count, n->seen.rank, n->seen.k};
}

/* The gate as a matrix of one row. */
static struct matrix gate_of(const network *n)
{
	return (struct matrix){FORMAT_F32, 1, n->config.width, n->seen.gate.value};
}

static void find_classes(network *n, const uint32_t *tokens, size_t first, size_t rows)
{
	struct network_seen *s = &n->seen;

	for (size_t i = 0; i < rows; i++) {
		const size_t t = (first + i) % n->steps;

		if (t == 0) /* it fits: as many tokens of each sequence have been there before */
			(void)enter(n, tokens + first + i, NULL);
		seen_count(&s->counts, t + 1);
		for (size_t j = 0; j < s->count; j++)
			s->classes[i * s->count + j] = s->counts.classes[s->tokens[j]];
	}
}

void network_seen_add(network *n, const uint32_t *tokens, size_t first, size_t rows, const float *h)
{
	struct network_seen *s = &n->seen;
	const struct matrix keys = keys_of(n), gate = gate_of(n);
	const struct product of_h[] = {{&s->query.matrix, s->q, false}, {&gate, s->g, false}},
			     of_q = {&keys, s->s, false};
	const struct seen_rows seen = rows_of(n, rows);

	if (!s->count)
		return;
	find_classes(n, tokens, first, rows);
	n->training->multiply(n->backend, rows, h, 2, of_h);
	n->training->multiply(n->backend, rows, s->q, 1, &of_q);
	n->training->seen(n->backend, &seen, s->table.value, s->g, s->s, n->logits);
}

/* ----------------------------------------------------------------------------------------------------- backward -- */

void network_seen_back(network *n, size_t rows, const float *h, float *gh)
{
	struct network_seen *s = &n->seen;
	const struct training_ops *training = n->training;
	const struct matrix keys = keys_of(n), gate = gate_of(n);
	const struct seen_rows seen = rows_of(n, rows);
	float *gquery = network_grad(n, &s->query), *ggate = network_grad(n, &s->gate);

	if (!s->count)
		return;
	training->seen_back(n->backend, &seen, n->logits, s->s, s->gg, network_grad(n, &s->table));
	training->multiply_back(n->backend, rows, &keys, s->s, false, s->gq);
	training->multiply_grad(n->backend, rows, s->count, s->rank, s->q, s->s, s->gk);
	training->multiply_back(n->backend, rows, &gate, s->gg, true, gh);
	training->multiply_back(n->backend, rows, &s->query.matrix, s->gq, true, gh);
	if (gquery)
		training->multiply_grad(n->backend, rows, s->rank, n->config.width, h, s->gq, gquery);
	if (ggate)
		training->multiply_grad(n->backend, rows, 1, n->config.width, h, s->gg, ggate);
}

void network_seen_finish(network *n)
{
	struct network_seen *s = &n->seen;
	float *gkey = network_grad(n, &s->key), *ghead = network_grad(n, &n->head);

	if (!s->count)
		return;
	if (gkey)
		n->training->multiply_grad(n->backend, s->count, s->rank, n->config.width, s->e, s->gk, gkey);
	if (!ghead)
		return;
	n->training->multiply_back(n->backend, s->count, &s->key.matrix, s->gk, false, n->gx);
	n->training->embed_back(n->backend, s->count, n->config.width, s->tokens, n->gx, ghead);
}
