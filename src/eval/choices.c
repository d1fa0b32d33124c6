/*
 * Scoring choices.
 *
 * A text is encoded as a whole, since the tokens at the seam depend on both sides. Which of them belong to the
 * continuation is the convention of lm-evaluation-harness, so that accuracies can be compared with those it reports.
 */
#include "eval/choices.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* The texts of an example. */
struct texts {
	size_t count;
	struct tokens *tokens;
	size_t *first; /* the first token of each continuation */
	struct scored_text *scored;
};

static void texts_free(struct texts *texts)
{
	for (size_t i = 0; i < texts->count && texts->tokens; i++)
		tokens_free(&texts->tokens[i]);
	for (size_t i = 0; i < texts->count && texts->scored; i++) {
		free(texts->scored[i].losses);
		free(texts->scored[i].mixed);
		free(texts->scored[i].likeliest);
	}
	free(texts->tokens);
	free(texts->first);
	free(texts->scored);
}

static rosa_status no_memory(rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "no memory for the continuations of an example");
}

rosa_status choice_encode(const tokenizer *tokenizer, const char *context, const char *continuation,
			  struct tokens *tokens, size_t *first, rosa_error *err)
{
	const size_t before = strlen(context), after = strlen(continuation);
	size_t alone = before;
	struct tokens beginning = {0};
	char *whole = malloc(before + after + 1);
	rosa_status status;

	if (!whole)
		return no_memory(err);
	memcpy(whole, context, before);
	memcpy(whole + before, continuation, after + 1);
	while (alone > 0 && (context[alone - 1] == ' ' || (context[alone - 1] >= '\t' && context[alone - 1] <= '\r')))
		alone--;
	status = tokenizer_encode_text(tokenizer, whole, before + after, tokens, err);
	if (status == ROSA_OK)
		status = tokenizer_encode_text(tokenizer, whole, alone, &beginning, err);
	*first = beginning.count;
	if (status == ROSA_OK && (!*first || *first >= tokens->count))
		status =
		    rosa_fail(err, ROSA_EINVAL, "a %s has no token of its own", *first ? "continuation" : "context");
	if (status != ROSA_OK)
		tokens_free(tokens);
	tokens_free(&beginning);
	free(whole);
	return status;
}

static rosa_status prepare(const tokenizer *tokenizer, const struct eval_example *example, struct texts *texts,
			   rosa_error *err)
{
	rosa_status status = ROSA_OK;

	texts->count = example->continuations.count;
	texts->tokens = calloc(texts->count, sizeof(*texts->tokens));
	texts->first = calloc(texts->count, sizeof(*texts->first));
	texts->scored = calloc(texts->count, sizeof(*texts->scored));
	if (!texts->tokens || !texts->first || !texts->scored)
		return no_memory(err);
	for (size_t i = 0; i < texts->count && status == ROSA_OK; i++) {
		struct scored_text *scored = &texts->scored[i];

		status = choice_encode(tokenizer, example->contexts.all[i], example->continuations.all[i],
				       &texts->tokens[i], &texts->first[i], err);
		if (status != ROSA_OK)
			break;
		scored->tokens = texts->tokens[i].ids;
		scored->count = texts->tokens[i].count;
		scored->losses = calloc(scored->count, sizeof(*scored->losses));
		scored->mixed = calloc(scored->count, sizeof(*scored->mixed));
		scored->likeliest = calloc(scored->count, sizeof(*scored->likeliest));
		if (!scored->losses || !scored->mixed || !scored->likeliest)
			status = no_memory(err);
	}
	return status;
}

/* How many tokens all texts begin with, at most `most`. */
static size_t in_common(const struct texts *texts, size_t most)
{
	size_t common = 0;

	for (; common < most; common++) {
		for (size_t i = 1; i < texts->count; i++) {
			if (texts->tokens[i].ids[common] != texts->tokens[0].ids[common])
				return common;
		}
	}
	return common;
}

void choice_pick(const struct eval_example *example, struct choice_result *result)
{
	double best = 0;

	result->picked = result->picked_long = 0;
	for (size_t i = 0; i < example->continuations.count; i++) {
		const char *continuation = example->continuations.all[i];
		const size_t characters = utf8_characters(continuation, strlen(continuation));
		const bool space = continuation[0] == ' ' && continuation[1];
		const double each = result->logarithms[i] / (double)(characters - space);

		if (result->logarithms[i] > result->logarithms[result->picked])
			result->picked = i;
		if (i == 0 || each > best) {
			best = each;
			result->picked_long = i;
		}
	}
}

/* Which continuation is best, from losses without the pointer or with it. */
static rosa_status pick(const struct eval_example *example, const struct texts *texts, bool mixed,
			struct choice_result *result, rosa_error *err)
{
	const uint8_t flag = mixed ? SCORED_MIXED_LIKELIEST : SCORED_LIKELIEST;

	*result = (struct choice_result){.logarithms = calloc(texts->count, sizeof(double)), .written = true};
	if (!result->logarithms)
		return no_memory(err);
	for (size_t i = 0; i < texts->count; i++) {
		const struct scored_text *scored = &texts->scored[i];

		for (size_t t = texts->first[i]; t < scored->count; t++) {
			result->logarithms[i] -= (mixed ? scored->mixed : scored->losses)[t];
			if (i == 0 && !(scored->likeliest[t] & flag))
				result->written = false;
		}
	}
	choice_pick(example, result);
	return ROSA_OK;
}

rosa_status choice_score(const struct scoring *scoring, const tokenizer *tokenizer, const struct eval_example *example,
			 struct choice_result *plain, struct choice_result *mixed, rosa_progress progress,
			 void *context, rosa_error *err)
{
	struct scoring here = *scoring;
	struct texts texts = {0};
	rosa_status status = prepare(tokenizer, example, &texts, err);

	if (status == ROSA_OK) {
		here.batch = texts.count;
		here.first = texts.first[0];
		for (size_t i = 1; i < texts.count; i++)
			here.first = texts.first[i] < here.first ? texts.first[i] : here.first;
		here.shared = texts.count > 1 ? in_common(&texts, here.first - 1) : 0;
		status = score_texts(&here, texts.scored, texts.count, progress, context, err);
	}
	if (status == ROSA_OK)
		status = pick(example, &texts, false, plain, err);
	if (status == ROSA_OK && scoring->pointer)
		status = pick(example, &texts, true, mixed, err);
	texts_free(&texts);
	return status;
}

void choice_free(struct choice_result *result)
{
	free(result->logarithms);
	memset(result, 0, sizeof(*result));
}
