/*
 * Reading a text and generating its continuation.
 *
 * Generated tokens become output in three steps. The decoding of tokens returns whole characters only; the stop strings
 * hold back text that may turn out to be the beginning of one; the rest is written and flushed at once, since a user is
 * waiting. The first two may still hold something when the answer ends, which is then written.
 */
#include "cli/generate_run.h"

#include "base/array.h"
#include "base/clock.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_FROM ((size_t)64) /* tokens; fewer are read without a progress bar */

const char *const answer_end_names[] = {
    [ANSWER_LENGTH] = "length", [ANSWER_END] = "end", [ANSWER_STOP] = "stop", [ANSWER_INTERRUPTED] = "interrupted"};

/* ------------------------------------------------------------------------------------------------ open and close -- */

void run_add_end(struct run *run, int64_t token)
{
	if (token >= 0 && run->ends_count < sizeof(run->ends) / sizeof(run->ends[0]))
		run->ends[run->ends_count++] = token;
}

static bool start(struct run *run, const struct arg_texts *stops, rosa_error *why)
{
	const struct model_config *config = &run->model->checkpoint.config;

	if (sampler_new(&run->sampling, config->vocabulary, &run->sampler, why) != ROSA_OK ||
	    stopping_new(stops->all, stops->count, &run->stopping, why) != ROSA_OK ||
	    sequence_new(run->model->decoder, &run->sequence, why) != ROSA_OK ||
	    (run->model->pointer_path &&
	     pointer_past_new(&run->model->pointer, config->vocabulary, &run->past, why) != ROSA_OK))
		return false;
	for (size_t i = 0; i < config->eos_count; i++)
		run_add_end(run, config->eos[i]);
	run->logits = get_memory(config->vocabulary, sizeof(float), "logits", why);
	return run->logits != NULL;
}

bool run_open(struct run *run, struct model *model, tokenizer *tokenizer, const struct sampler_options *sampling,
	      const struct arg_texts *stops, rosa_error *why)
{
	*run = (struct run){.model = model, .tokenizer = tokenizer, .sampling = *sampling, .label = "reading"};
	if (start(run, stops, why))
		return true;
	run_close(run);
	return false;
}

void run_close(struct run *run)
{
	sampler_free(run->sampler);
	stopping_free(run->stopping);
	sequence_free(run->sequence);
	pointer_past_free(run->past);
	tokens_free(&run->tokens);
	free(run->kept.data);
	free(run->logits);
	memset(run, 0, sizeof(*run));
}

/* ------------------------------------------------------------------------------------------------------- tokens -- */

bool run_append(struct run *run, const uint32_t *ids, size_t count, rosa_error *why)
{
	if (count > ROSA_MAX_STEPS - run->tokens.count)
		return refuse(why, "the text has more than %zu tokens, which is the most that can be read",
			      ROSA_MAX_STEPS);
	if (tokens_add(&run->tokens, ids, count, why) != ROSA_OK)
		return false;
	for (size_t i = 0; i < count; i++)
		sampler_saw(run->sampler, ids[i]);
	return true;
}

/* Replaces the run's sequence. */
static void take_sequence(struct run *run, sequence *sequence)
{
	sequence_free(run->sequence);
	run->sequence = sequence;
}

/* A new sampler that has seen no tokens and continues with draw number `draws`. */
static bool renew_sampler(struct run *run, uint64_t draws, rosa_error *why)
{
	sampler *made;

	if (sampler_new(&run->sampling, run->model->checkpoint.config.vocabulary, &made, why) != ROSA_OK)
		return false;
	sampler_free(run->sampler);
	run->sampler = made;
	sampler_set_draws(made, draws);
	return true;
}

/* Makes sure that the sequence has read no more than the first `common` tokens: it stays as it is, or is replaced by
 * the kept one, or by an empty one. */
static bool go_back(struct run *run, size_t common, rosa_error *why)
{
	const struct kept_sequence *kept = &run->kept;
	rosa_status status;
	sequence *made;

	if (sequence_steps(run->sequence) <= common)
		return true;
	if (kept->size && kept->steps <= common) {
		status = sequence_load(run->model->decoder, kept->data, kept->size, &made, why);
	} else {
		run->kept.size = 0;
		status = sequence_new(run->model->decoder, &made, why);
	}
	if (status != ROSA_OK)
		return false;
	take_sequence(run, made);
	return true;
}

/* The same for what the pointer searches. */
static bool point_back(struct run *run, size_t common, rosa_error *why)
{
	return !run->past || pointer_past_steps(run->past) <= common ||
	       pointer_past_rewind(run->past, common, why) == ROSA_OK;
}

bool run_become(struct run *run, const uint32_t *ids, size_t count, rosa_error *why)
{
	size_t common = 0;

	while (common < count && common < run->tokens.count && run->tokens.ids[common] == ids[common])
		common++;
	if (!go_back(run, common, why) || !point_back(run, common, why) ||
	    !renew_sampler(run, sampler_draws(run->sampler), why))
		return false;
	run->tokens.count = 0;
	return run_append(run, ids, count, why);
}

bool run_resume(struct run *run, sequence *sequence, const struct tokens *tokens, uint64_t draws, rosa_error *why)
{
	take_sequence(run, sequence);
	run->kept.size = 0;
	run->tokens.count = 0;
	return point_back(run, 0, why) && renew_sampler(run, draws, why) &&
	       run_append(run, tokens->ids, tokens->count, why);
}

/* -------------------------------------------------------------------------------------------------------- state -- */

bool run_remember(struct run *run, rosa_error *why)
{
	return sequence_keep(run->sequence, &run->kept, why) == ROSA_OK;
}

/* ------------------------------------------------------------------------------------------------------ reading -- */

static bool read_tokens(struct run *run, size_t count, enum logits_wanted wanted, rosa_error *why)
{
	size_t steps = sequence_steps(run->sequence), due = count - steps;
	struct piece piece = {run->sequence, run->tokens.ids + steps, due, wanted, run->logits};
	struct progress progress;

	progress_begin(&progress, run->label, 0);
	progress.unit = "tokens";
	rosa_status status = decoder_read(run->model->decoder, 1, &piece,
					  due >= BAR_FROM ? progress_tick : interrupt_progress, &progress, why);
	progress_end(&progress);
	return status == ROSA_OK || status == ROSA_ECANCELLED;
}

bool run_read(struct run *run, size_t count, rosa_error *why)
{
	size_t before = sequence_steps(run->sequence);
	uint64_t began = clock_ns();

	if (count <= before)
		return true;
	bool good = read_tokens(run, count, LOGITS_NONE, why);
	run->read += sequence_steps(run->sequence) - before;
	run->reading_time += clock_ns() - began;
	return good;
}

/* Reads all tokens that are left and computes the logits of the next one. */
static bool read_rest(struct run *run, rosa_error *why)
{
	return read_tokens(run, run->tokens.count, LOGITS_LAST, why);
}

/* --------------------------------------------------------------------------------------------------- generating -- */

/* Where the text of generated tokens goes. */
struct outlet {
	struct run *run;
	struct answer *answer;
	struct decoding decoding;
	char *decoded, *out;
};

static bool put(struct outlet *outlet, size_t size, rosa_error *why)
{
	if (size == 0)
		return true;
	if (outlet->answer->printed && !screen_print(outlet->out, size, why))
		return false;
	return text_add(&outlet->answer->text, "the answer", outlet->out, size, true, why);
}

static bool put_token(struct outlet *outlet, uint32_t token, rosa_error *why)
{
	struct run *run = outlet->run;
	size_t size = decode_token(run->tokenizer, &outlet->decoding, token, false, outlet->decoded);

	return put(outlet, stopping_take(run->stopping, outlet->decoded, size, outlet->out), why);
}

/* Writes what was held back, at the end of the answer. */
static bool put_rest(struct outlet *outlet, rosa_error *why)
{
	struct run *run = outlet->run;
	size_t size = decode_finish(&outlet->decoding, outlet->decoded);

	size = stopping_take(run->stopping, outlet->decoded, size, outlet->out);
	if (stopping_done(run->stopping))
		outlet->answer->end = ANSWER_STOP;
	bool good = put(outlet, size, why);
	size = stopping_finish(run->stopping, outlet->out);
	return good && put(outlet, size, why);
}

static bool is_end(const struct run *run, uint32_t token)
{
	for (size_t i = 0; i < run->ends_count; i++) {
		if (run->ends[i] == (int64_t)token)
			return true;
	}
	return false;
}

/* Mixes what the pointer finds for the next token into the logits. */
static bool point(struct run *run, rosa_error *why)
{
	const size_t vocabulary = run->model->checkpoint.config.vocabulary, last = run->tokens.count - 1;
	struct pointer_links found;
	size_t steps;

	if (!run->past)
		return true;
	if (!point_back(run, last, why))
		return false;
	steps = pointer_past_steps(run->past);
	if (pointer_past_add(run->past, run->tokens.ids + steps, last - steps, NULL, why) != ROSA_OK ||
	    pointer_past_add(run->past, run->tokens.ids + last, 1, &found, why) != ROSA_OK)
		return false;
	pointer_mix(&run->model->pointer, &found, pointer_past_seen(run->past), run->logits, vocabulary);
	return true;
}

/* Chooses one token from the logits and writes its text. False after a failure; *over: the answer has ended. */
static bool generate_one(struct outlet *outlet, bool *over, rosa_error *why)
{
	struct run *run = outlet->run;
	uint32_t token;

	if (!point(run, why))
		return false;
	token = sampler_choose(run->sampler, run->logits);
	if (!run_append(run, &token, 1, why))
		return false;
	outlet->answer->made++;
	if (is_end(run, token)) {
		outlet->answer->end = ANSWER_END;
		*over = true;
		return true;
	}
	bool good = put_token(outlet, token, why);
	if (stopping_done(run->stopping)) {
		outlet->answer->end = ANSWER_STOP;
		*over = true;
	}
	return good;
}

static bool generate_tokens(struct outlet *outlet, size_t most, rosa_error *why)
{
	struct run *run = outlet->run;
	bool over = false, good = true;

	while (good && !over && outlet->answer->made < most) {
		run->read += outlet->answer->made == 0; /* the last token of the prompt */
		good = read_rest(run, why);
		if (good && sequence_steps(run->sequence) < run->tokens.count) {
			outlet->answer->end = ANSWER_INTERRUPTED;
			break;
		}
		good = good && generate_one(outlet, &over, why);
		if (good && !over && interrupted()) {
			outlet->answer->end = ANSWER_INTERRUPTED;
			break;
		}
	}
	/* What was held back belongs to the answer, however that ended. */
	return put_rest(outlet, why) && good;
}

bool run_answer(struct run *run, size_t most, struct answer *answer, rosa_error *why)
{
	size_t room = tokenizer_longest(run->tokenizer) + 8;
	struct outlet outlet = {.run = run, .answer = answer};

	answer->end = ANSWER_LENGTH;
	answer->made = 0;
	if (run->tokens.count == 0)
		return refuse(why, "there is no text to continue; give one");
	/* All but the last token are read with a progress bar; the time from the last one on counts as generation. */
	if (!run_read(run, run->tokens.count - 1, why))
		return false;
	if (interrupted()) {
		answer->end = ANSWER_INTERRUPTED;
		return true;
	}
	outlet.decoded = get_memory(room, 1, "a token's text", why);
	outlet.out =
	    outlet.decoded ? get_memory(room + stopping_longest(run->stopping), 1, "a token's text", why) : NULL;
	uint64_t began = clock_ns();
	bool good = outlet.out && generate_tokens(&outlet, most, why);
	run->making_time += clock_ns() - began;
	run->made += answer->made;
	free(outlet.decoded);
	free(outlet.out);
	return good;
}

/* ------------------------------------------------------------------------------------------------------ reports -- */

double per_second(uint64_t count, uint64_t nanoseconds)
{
	return nanoseconds ? (double)count * 1e9 / (double)nanoseconds : 0;
}

void run_report(const struct run *run)
{
	struct sequence_memory memory = sequence_memory(run->sequence);

	if (!isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "read %llu token%s (%.0f/s), made %llu (%.1f/s); memory: attention %.1f MiB",
		(unsigned long long)run->read, run->read == 1 ? "" : "s", per_second(run->read, run->reading_time),
		(unsigned long long)run->made, per_second(run->made, run->making_time),
		(double)memory.attention / 1048576.0);
	if (run->model->adapted)
		fprintf(stderr, ", index %.1f MiB, values %.1f MiB", (double)memory.retrieval / 1048576.0,
			(double)memory.values / 1048576.0);
	if (run->past)
		fprintf(stderr, ", pointer %.1f MiB", (double)pointer_past_bytes(run->past) / 1048576.0);
	fputc('\n', stderr);
}

void run_warn_length(struct run *run, size_t tokens, const char *command)
{
	run->warned = run->warned || model_warn_length(run->model, tokens, command);
}
