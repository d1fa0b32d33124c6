/*
 * Losses of texts.
 *
 * A row of logits is as wide as the vocabulary, so logits are computed for some positions at a time and each row is
 * reduced at once to one number. How many positions at a time changes the memory and nothing else: a decoder's result
 * does not depend on how a text is split. Each loss is computed in double by one thread. A pointer needs no second
 * reading: the same logits give the losses with it and without.
 */
#include "eval/scoring.h"

#include "base/pool.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define LOGITS_BYTES ((size_t)64 << 20) /* of logits in memory, about */

/* One of the texts that are being read. */
struct reader {
	sequence *sequence;
	pointer_past *past; /* NULL without a pointer */
	size_t at;          /* tokens read */
};

/* Texts that are being read side by side. */
struct reading {
	const struct scoring *scoring;
	size_t vocabulary, stride;   /* positions of a text whose logits are in memory at once */
	float *logits;               /* [batch][stride][vocabulary] */
	struct reader *readers;      /* [batch] */
	struct piece *pieces;        /* [batch]; those that are read now come first */
	struct scored_text *results; /* [batch]: of each piece, from its first prediction on; mixed: with a pointer */
	struct pointer_links *links; /* [batch][stride] */
	uint8_t *seen;               /* [batch][stride][vocabulary]; NULL: the pointer has no table */
	rosa_progress progress;
	void *context;
	uint64_t done, all; /* tokens, of all texts */
};

/* How far the next read of a text goes: at once over what is not scored, since that takes no logits. */
static size_t due(const struct reading *reading, size_t at, size_t count, enum logits_wanted *wanted)
{
	const size_t unscored = reading->scoring->first - 1; /* positions whose next token is not scored */
	const size_t last = count ? count - 1 : 0;           /* its next token does not exist */
	const size_t until = at < unscored ? unscored : at + reading->stride;

	*wanted = at < unscored ? LOGITS_NONE : LOGITS_ALL;
	return (until < last ? until : last) - (at < last ? at : last);
}

/* Whether the token is the argmax. Ties go to the lowest id, as in greedy generation. */
static bool is_likeliest(const float *logits, size_t vocabulary, uint32_t token)
{
	for (size_t v = 0; v < vocabulary; v++) {
		if (logits[v] > logits[token] || (logits[v] == logits[token] && v < token))
			return false;
	}
	return true;
}

static void reduce_row(void *context, size_t i, unsigned worker)
{
	const struct reading *reading = context;
	const size_t row = i % reading->stride;
	const size_t text = i / reading->stride;
	const struct piece *piece = &reading->pieces[text];
	const struct scored_text *to = &reading->results[text];
	const struct pointer *pointer = reading->scoring->pointer;
	const struct pointer_links none = {.count = 0};
	const uint8_t *seen = reading->seen ? reading->seen + i * reading->vocabulary : NULL;

	(void)worker;
	if (piece->wanted != LOGITS_ALL || row >= piece->count)
		return;
	float *logits = piece->logits + row * reading->vocabulary;
	const uint32_t target = piece->tokens[row + 1];
	const struct pointer_sample sample =
	    pointer_sample(pointer ? &reading->links[i] : &none, seen, logits, reading->vocabulary, target);

	to->losses[row] = -sample.target;
	if (pointer)
		to->mixed[row] = pointer_loss(pointer, &sample);
	if (to->samples)
		to->samples[row] = sample;
	if (!to->likeliest)
		return;
	to->likeliest[row] = is_likeliest(logits, reading->vocabulary, target) ? SCORED_LIKELIEST : 0;
	if (!pointer)
		return;
	pointer_mix(pointer, &reading->links[i], seen, logits, reading->vocabulary);
	if (is_likeliest(logits, reading->vocabulary, target))
		to->likeliest[row] |= SCORED_MIXED_LIKELIEST;
}

static rosa_status reduce(struct reading *reading, size_t pieces, rosa_error *err)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	struct pool *pool;

	options.workers = reading->scoring->workers;
	pool = pool_for(&options, 1);
	if (!pool)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for threads");
	pool_run(pool, pieces * reading->stride, reduce_row, reading, NULL);
	pool_done(&options, pool);
	return ROSA_OK;
}

/* A rosa_progress: one read is a part of all. */
static int tick(void *context, uint64_t done, uint64_t total)
{
	const struct reading *reading = context;

	(void)total;
	return reading->progress ? reading->progress(reading->context, reading->done + done, reading->all) : 0;
}

/* What the pointer finds and has seen after each token of piece number `used`, which goes on with text i. The past
 * knows what was seen for its last token alone, so rows with a table are looked up one at a time. */
static rosa_status look_up(struct reading *reading, size_t used, size_t i, rosa_error *err)
{
	const struct piece *piece = &reading->pieces[used];
	const size_t vocabulary = reading->vocabulary, first = used * reading->stride;
	struct pointer_links *found = piece->wanted == LOGITS_ALL ? reading->links + first : NULL;
	pointer_past *past = reading->readers[i].past;
	rosa_status status = ROSA_OK;

	if (!found || !reading->seen)
		return pointer_past_add(past, piece->tokens, piece->count, found, err);
	for (size_t n = 0; n < piece->count && status == ROSA_OK; n++) {
		status = pointer_past_add(past, piece->tokens + n, 1, &found[n], err);
		const uint8_t *seen = pointer_past_seen(past);
		uint8_t *to = reading->seen + (first + n) * vocabulary;

		if (seen)
			memcpy(to, seen, vocabulary);
		else
			memset(to, 0, vocabulary);
	}
	return status;
}

/* Reads on in all texts that are not at their end. *over: none is left. */
static rosa_status read_on(struct reading *reading, struct scored_text *texts, size_t count, bool *over,
			   rosa_error *err)
{
	size_t used = 0, tokens = 0;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		const struct scored_text *text = &texts[i];
		const bool pointed = reading->scoring->pointer != NULL;
		struct reader *reader = &reading->readers[i];
		struct piece *piece = &reading->pieces[used];
		const size_t next = reader->at + 1;

		piece->count = due(reading, reader->at, text->count, &piece->wanted);
		if (!piece->count)
			continue;
		piece->sequence = reader->sequence;
		piece->tokens = text->tokens + reader->at;
		piece->logits = reading->logits + used * reading->stride * reading->vocabulary;
		reading->results[used] =
		    (struct scored_text){.losses = text->losses + next,
					 .mixed = pointed ? text->mixed + next : NULL,
					 .samples = pointed && text->samples ? text->samples + next : NULL,
					 .likeliest = text->likeliest ? text->likeliest + next : NULL};
		if (pointed)
			status = look_up(reading, used, i, err);
		reader->at += piece->count;
		tokens += piece->count;
		used++;
	}
	*over = used == 0;
	if (*over || status != ROSA_OK)
		return status;
	/* decoder_read does not ask at its end, and a short piece has nothing before that */
	if (tick(reading, 0, 0))
		return rosa_fail(err, ROSA_ECANCELLED, "interrupted");
	status = decoder_read(reading->scoring->decoder, used, reading->pieces, tick, reading, err);
	if (status == ROSA_OK)
		status = reduce(reading, used, err);
	reading->done += tokens;
	return status;
}

/* Reads what all texts begin with, once, and lets all of them go on from there. */
static rosa_status read_shared(struct reading *reading, const struct scored_text *texts, size_t count, rosa_error *err)
{
	const size_t shared = reading->scoring->shared;
	struct reader *first = &reading->readers[0];
	struct piece piece = {.sequence = first->sequence, .tokens = texts[0].tokens, .count = shared};
	rosa_status status = decoder_read(reading->scoring->decoder, 1, &piece, tick, reading, err);

	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		struct reader *reader = &reading->readers[i];

		if (i > 0) {
			sequence_free(reader->sequence);
			status = sequence_fork(first->sequence, shared, &reader->sequence, err);
		}
		reader->at = shared;
		if (status == ROSA_OK && reader->past)
			status = pointer_past_add(reader->past, texts[i].tokens, shared, NULL, err);
	}
	reading->done += shared;
	return status;
}

static rosa_status score_batch(struct reading *reading, struct scored_text *texts, size_t count, rosa_error *err)
{
	rosa_status status = ROSA_OK;
	bool over = false;

	memset(reading->readers, 0, count * sizeof(*reading->readers));
	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		struct reader *reader = &reading->readers[i];

		status = sequence_new(reading->scoring->decoder, &reader->sequence, err);
		if (status == ROSA_OK && reading->scoring->pointer)
			status = pointer_past_new(reading->scoring->pointer, reading->vocabulary, &reader->past, err);
	}
	if (status == ROSA_OK && reading->scoring->shared)
		status = read_shared(reading, texts, count, err);
	while (status == ROSA_OK && !over)
		status = read_on(reading, texts, count, &over, err);
	for (size_t i = 0; i < count; i++) {
		sequence_free(reading->readers[i].sequence);
		pointer_past_free(reading->readers[i].past);
	}
	return status;
}

uint64_t score_tokens(const struct scored_text *texts, size_t count)
{
	uint64_t tokens = 0;

	for (size_t i = 0; i < count; i++)
		tokens += texts[i].count ? texts[i].count - 1 : 0;
	return tokens;
}

rosa_status score_texts(const struct scoring *scoring, struct scored_text *texts, size_t count, rosa_progress progress,
			void *context, rosa_error *err)
{
	const size_t batch = scoring->batch < count ? scoring->batch : count;
	const bool has_table = scoring->pointer && scoring->pointer->seeing;
	struct reading reading = {.scoring = scoring,
				  .vocabulary = decoder_vocabulary(scoring->decoder),
				  .progress = progress,
				  .context = context,
				  .all = score_tokens(texts, count)};
	size_t longest = 1;
	rosa_status status = ROSA_OK;

	if (!scoring->batch || !scoring->first)
		return rosa_fail(err, ROSA_EINVAL, "a batch of 0 texts, or token 0 to be scored; both begin with 1");
	if (scoring->shared >= scoring->first)
		return rosa_fail(err, ROSA_EINVAL, "%zu shared tokens, of which token %zu is to be scored",
				 scoring->shared, scoring->first);
	if (!count)
		return ROSA_OK;
	for (size_t i = 0; i < count; i++) {
		longest = texts[i].count > longest ? texts[i].count : longest;
		if (texts[i].count <= scoring->shared)
			return rosa_fail(err, ROSA_EINVAL, "a text of %zu tokens cannot share %zu and go on",
					 texts[i].count, scoring->shared);
	}
	reading.all -= (count - (count + batch - 1) / batch) * scoring->shared;
	reading.stride = LOGITS_BYTES / sizeof(float) / reading.vocabulary / batch;
	reading.stride = reading.stride < 1 ? 1 : reading.stride < longest ? reading.stride : longest;
	reading.logits = calloc(batch * reading.stride, reading.vocabulary * sizeof(float));
	reading.readers = calloc(batch, sizeof(*reading.readers));
	reading.pieces = calloc(batch, sizeof(*reading.pieces));
	reading.results = calloc(batch, sizeof(*reading.results));
	reading.links = scoring->pointer ? calloc(batch * reading.stride, sizeof(*reading.links)) : NULL;
	reading.seen = has_table ? calloc(batch * reading.stride, reading.vocabulary) : NULL;
	if (!reading.logits || !reading.readers || !reading.pieces || !reading.results ||
	    (scoring->pointer && !reading.links) || (has_table && !reading.seen))
		status =
		    rosa_fail(err, ROSA_ENOMEM, "no memory for the logits of %zu texts; read fewer at a time", batch);
	for (size_t first = 0; first < count && status == ROSA_OK; first += batch)
		status = score_batch(&reading, texts + first, count - first < batch ? count - first : batch, err);
	free(reading.logits);
	free(reading.readers);
	free(reading.pieces);
	free(reading.results);
	free(reading.links);
	free(reading.seen);
	return status;
}
