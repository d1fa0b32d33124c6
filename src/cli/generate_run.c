/*
 * Reading a text and generating its continuation.
 *
 * Text is written and flushed as soon as it is known, since a user is waiting.
 */
#include "cli/generate_run.h"

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

/* ------------------------------------------------------------------------------------------------ open and close -- */

bool run_open(struct run *run, struct model *model, const tokenizer *tokenizer, const struct sampler_options *sampling,
	      const struct arg_texts *stops, rosa_error *why)
{
	const struct model_config *config = &model->checkpoint.config;
	const struct answer_options options = {.tokenizer = tokenizer,
					       .config = config,
					       .end = -1,
					       .stops = stops->all,
					       .stop_count = stops->count,
					       .sampling = *sampling};

	*run = (struct run){.model = model, .label = "reading"};
	if (answer_open(&run->answer, &options, why) == ROSA_OK &&
	    sequence_new(model->decoder, &run->sequence, why) == ROSA_OK &&
	    (!model->pointer_path || pointer_past_new(&model->pointer, config->vocabulary, &run->past, why) == ROSA_OK))
		run->logits = get_memory(config->vocabulary, sizeof(float), "logits", why);
	if (run->logits)
		return true;
	run_close(run);
	return false;
}

void run_close(struct run *run)
{
	answer_close(&run->answer);
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
	return answer_read(&run->answer, &run->tokens, ids, count, why) == ROSA_OK;
}

/* Replaces the run's sequence. */
static void take_sequence(struct run *run, sequence *sequence)
{
	sequence_free(run->sequence);
	run->sequence = sequence;
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
	const size_t common = tokens_common(&run->tokens, ids, count);

	if (!go_back(run, common, why) || !point_back(run, common, why) ||
	    answer_restart(&run->answer, sampler_draws(run->answer.sampler), why) != ROSA_OK)
		return false;
	run->tokens.count = 0;
	return run_append(run, ids, count, why);
}

bool run_resume(struct run *run, sequence *sequence, const struct tokens *tokens, uint64_t draws, rosa_error *why)
{
	take_sequence(run, sequence);
	run->kept.size = 0;
	run->tokens.count = 0;
	return point_back(run, 0, why) && answer_restart(&run->answer, draws, why) == ROSA_OK &&
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

/* Writes the part of the answer that is new, from *shown on. */
static bool show(const struct run *run, size_t *shown, rosa_error *why)
{
	const struct text *text = &run->answer.text;
	const size_t from = *shown;

	*shown = text->size;
	return !run->printed || from == text->size || screen_print(text->data + from, text->size - from, why);
}

/* Mixes what the pointer finds for the next token into the logits, and chooses it. */
static bool generate_one(struct run *run, rosa_error *why)
{
	return (!run->past || pointer_past_mix(run->past, &run->model->pointer, run->tokens.ids, run->tokens.count - 1,
					       run->logits, NULL, NULL, why) == ROSA_OK) &&
	       answer_step(&run->answer, run->logits, &run->tokens, why) == ROSA_OK;
}

static bool generate_tokens(struct run *run, size_t most, rosa_error *why)
{
	struct answer *answer = &run->answer;
	size_t shown = 0;
	bool good = true;

	while (good && !interrupted() && answer->end == ANSWER_OPEN && answer->made < most) {
		run->read += answer->made == 0; /* the last token of the prompt */
		good = read_rest(run, why);
		if (sequence_steps(run->sequence) == run->tokens.count)
			good = good && generate_one(run, why) && show(run, &shown, why);
	}
	/* What was held back belongs to the answer, however that ended. */
	if (answer->end == ANSWER_OPEN &&
	    answer_finish(answer, interrupted() ? ANSWER_INTERRUPTED : ANSWER_LENGTH, why) != ROSA_OK)
		return false;
	return show(run, &shown, why) && good;
}

bool run_answer(struct run *run, size_t most, rosa_error *why)
{
	struct answer *answer = &run->answer;

	answer_begin(answer);
	if (run->tokens.count == 0)
		return refuse(why, "there is no text to continue; give one");
	/* All but the last token are read with a progress bar; the time from the last one on counts as generation. */
	if (!run_read(run, run->tokens.count - 1, why))
		return false;
	const uint64_t began = clock_ns();
	const bool good = generate_tokens(run, most, why);

	run->making_time += clock_ns() - began;
	run->made += answer->made;
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
