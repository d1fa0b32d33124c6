/*
 * Tokens become text in three steps. The decoding of tokens returns whole characters only; the stop strings hold back
 * text that may turn out to be the beginning of one; the rest is the answer. The first two may still hold something
 * when an answer ends, which then is a part of it.
 */
#include "model/answer.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>

const char *const answer_end_names[] = {[ANSWER_OPEN] = "open",
					[ANSWER_LENGTH] = "length",
					[ANSWER_END] = "end",
					[ANSWER_STOP] = "stop",
					[ANSWER_INTERRUPTED] = "interrupted"};

rosa_status answer_open(struct answer *answer, const struct answer_options *options, rosa_error *err)
{
	const size_t room = tokenizer_longest(options->tokenizer);
	rosa_status status;

	*answer = (struct answer){.options = *options};
	status = stopping_new(options->stops, options->stop_count, &answer->stopping, err);
	answer->options.stops = NULL;
	if (status == ROSA_OK)
		status = answer_restart(answer, 0, err);
	if (status == ROSA_OK) {
		answer->decoded = malloc(room);
		answer->passed = malloc(room + stopping_longest(answer->stopping));
		if (!answer->decoded || !answer->passed)
			status = rosa_fail(err, ROSA_ENOMEM, "not enough memory for the text of a token");
	}
	if (status != ROSA_OK)
		answer_close(answer);
	return status;
}

void answer_strip(struct answer *answer)
{
	sampler_free(answer->sampler);
	stopping_free(answer->stopping);
	free(answer->decoded);
	free(answer->passed);
	answer->sampler = NULL;
	answer->stopping = NULL;
	answer->decoded = answer->passed = NULL;
}

void answer_close(struct answer *answer)
{
	answer_strip(answer);
	text_free(&answer->text);
	*answer = (struct answer){0};
}

void answer_begin(struct answer *answer)
{
	stopping_finish(answer->stopping, answer->passed); /* of an answer that failed */
	answer->decoding = (struct decoding){0};
	text_free(&answer->text);
	answer->made = answer->characters = 0;
	answer->end = ANSWER_OPEN;
}

rosa_status answer_restart(struct answer *answer, uint64_t draws, rosa_error *err)
{
	sampler *made;
	const rosa_status status =
	    sampler_new(&answer->options.sampling, answer->options.config->vocabulary, &made, err);

	if (status != ROSA_OK)
		return status;
	sampler_free(answer->sampler);
	answer->sampler = made;
	sampler_set_draws(made, draws);
	return ROSA_OK;
}

rosa_status answer_read(struct answer *answer, struct tokens *tokens, const uint32_t *ids, size_t count,
			rosa_error *err)
{
	rosa_status status;

	if (count > ROSA_MAX_STEPS - tokens->count)
		return rosa_fail(err, ROSA_EINVAL,
				 "the text has more than %zu tokens, which is the most that can be read",
				 ROSA_MAX_STEPS);
	status = tokens_add(tokens, ids, count, err);
	for (size_t i = 0; i < count && status == ROSA_OK; i++)
		sampler_saw(answer->sampler, ids[i]);
	return status;
}

/* Decodes one more token and returns the size of its text. */
static size_t decode(struct answer *answer, uint32_t token, bool special)
{
	const size_t size = decode_token(answer->options.tokenizer, &answer->decoding, token, special, answer->decoded);

	answer->characters += utf8_characters(answer->decoded, size);
	return size;
}

static rosa_status put(struct answer *answer, const char *text, size_t size, rosa_error *err)
{
	return text_append(&answer->text, "the answer", text, size, true, err);
}

/* Puts what the stop strings let through of a decoded text. */
static rosa_status put_decoded(struct answer *answer, size_t size, rosa_error *err)
{
	return put(answer, answer->passed, stopping_take(answer->stopping, answer->decoded, size, answer->passed), err);
}

rosa_status answer_echo(struct answer *answer, uint32_t token, rosa_error *err)
{
	return put(answer, answer->decoded, decode(answer, token, true), err);
}

bool answer_is_end(const struct answer *answer, uint32_t token)
{
	const struct model_config *config = answer->options.config;

	for (size_t i = 0; i < config->eos_count; i++) {
		if (config->eos[i] == (int64_t)token)
			return true;
	}
	return answer->options.end == (int64_t)token;
}

rosa_status answer_take(struct answer *answer, uint32_t token, rosa_error *err)
{
	answer->made++;
	if (answer_is_end(answer, token))
		return answer_finish(answer, ANSWER_END, err);
	const rosa_status status = put_decoded(answer, decode(answer, token, false), err);

	return status == ROSA_OK && stopping_done(answer->stopping) ? answer_finish(answer, ANSWER_STOP, err) : status;
}

rosa_status answer_step(struct answer *answer, float *logits, struct tokens *tokens, rosa_error *err)
{
	const uint32_t token = sampler_choose(answer->sampler, logits);
	const rosa_status status = answer_read(answer, tokens, &token, 1, err);

	return status == ROSA_OK ? answer_take(answer, token, err) : status;
}

rosa_status answer_finish(struct answer *answer, enum answer_end end, rosa_error *err)
{
	rosa_status status = put_decoded(answer, decode_finish(&answer->decoding, answer->decoded), err);

	answer->end = stopping_done(answer->stopping) ? ANSWER_STOP : end;
	const size_t held = stopping_finish(answer->stopping, answer->passed);

	return status == ROSA_OK ? put(answer, answer->passed, held, err) : status;
}
