/*
 * rosatune logits: the logits of every position of token files.
 *
 * This command serves to compare the decoder with others. Logits are large (one number per token and vocabulary entry),
 * so those of a single text are written while it is read. With several texts at a time (--batch), logits are computed
 * position by position for all of them, but the file has one text after the other; they are kept in memory until the
 * texts are read.
 */
#include "cli/commands.h"

#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/npy.h"
#include "cli/progress.h"

#include <stdlib.h>

#define STRIDE ((size_t)64) /* tokens between two writes, for a single text */

struct job {
	struct model_args args;
	const char *tokens_path, *out_path;
	uint64_t batch;

	struct model model;
	struct npy_rows tokens;
	struct file_writer writer;
	struct progress progress;
};

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    OPTION_TEXT("tokens", &job->tokens_path, "IDS.npy", "token ids: integers, shape [T] or [N,T]",
			.required = true),
	    OPTION_TEXT("out", &job->out_path, "L.npy", "logits: float32, shape [T,V] or [N,T,V]", .short_name = 'o',
			.required = true),
	    OPTION_NUMBER("batch", &job->batch, "B", 1, 65536, "texts read at a time (default 1)"),
	};
	struct args args = {
	    .command = "logits",
	    .usage = "--model PATH --tokens IDS.npy --out L.npy [options]",
	    .summary = "Computes the logits of the next token at every position of texts that are given as token ids.",
	    ARGS_OPTIONS(options),
	    .notes = "The result does not depend on --chunk, --batch or --threads, bit for bit.",
	};

	return args_parse(&args, count, words);
}

/* Reads the texts of a batch, with the given sequences, and writes their logits. */
static bool read_group(struct job *job, size_t first, size_t count, sequence **sequences, struct piece *pieces,
		       float *logits, size_t stride, rosa_error *why)
{
	const size_t steps = job->tokens.steps, vocabulary = decoder_vocabulary(job->model.decoder);

	for (size_t t = 0; t < steps; t += stride) {
		const size_t some = steps - t < stride ? steps - t : stride;

		for (size_t i = 0; i < count; i++)
			pieces[i] = (struct piece){sequences[i], job->tokens.values + (first + i) * steps + t, some,
						   LOGITS_ALL, logits + i * some * vocabulary};
		if (decoder_read(job->model.decoder, count, pieces, progress_tick, &job->progress, why) != ROSA_OK)
			return false;
		progress_advance(&job->progress, count * some);
		if (file_write(&job->writer, logits, count * some * vocabulary * sizeof(*logits), why) != ROSA_OK)
			return false;
		if (interrupted())
			return refuse(why, "interrupted");
	}
	return true;
}

static bool run_group(struct job *job, size_t first, size_t count, float *logits, size_t stride, rosa_error *why)
{
	sequence **sequences = calloc(count, sizeof(*sequences));
	struct piece *pieces = calloc(count, sizeof(*pieces));
	bool good = sequences && pieces ? true : refuse(why, "not enough memory for %zu texts", count);

	for (size_t i = 0; i < count && good; i++)
		good = sequence_new(job->model.decoder, &sequences[i], why) == ROSA_OK;
	good = good && read_group(job, first, count, sequences, pieces, logits, stride, why);
	for (size_t i = 0; sequences && i < count; i++)
		sequence_free(sequences[i]);
	free(sequences);
	free(pieces);
	return good;
}

static bool read_all(struct job *job, rosa_error *why)
{
	const size_t texts = job->tokens.rows, steps = job->tokens.steps,
		     vocabulary = decoder_vocabulary(job->model.decoder);
	const size_t batch = job->batch < texts ? (size_t)job->batch : texts, whole = batch > 1 ? steps : STRIDE,
		     stride = whole < steps ? whole : steps;
	float *logits = get_memory(batch * stride, vocabulary * sizeof(*logits), "the logits", why);
	bool good = logits != NULL;

	for (size_t first = 0; first < texts && good; first += batch)
		good = run_group(job, first, texts - first < batch ? texts - first : batch, logits, stride, why);
	free(logits);
	return good;
}

static bool run(struct job *job, rosa_error *why)
{
	bool good = file_can_create(job->out_path, why) == ROSA_OK &&
		    npy_load(job->tokens_path, NPY_TOKENS, &job->tokens, why) &&
		    model_open(&job->model, &job->args, why);

	if (!good)
		return false;
	const size_t shape[3] = {job->tokens.rows, job->tokens.steps, decoder_vocabulary(job->model.decoder)};

	if (!npy_create(&job->writer, job->out_path, "<f4", job->tokens.dims + 1, shape + (2 - job->tokens.dims), why))
		return false;
	progress_begin(&job->progress, "reading", job->tokens.rows * job->tokens.steps);
	good = read_all(job, why);
	progress_end(&job->progress);
	return good && !interrupted() && file_finish(&job->writer, ROSA_OK, why) == ROSA_OK;
}

int logits_command(int count, char **words)
{
	struct job job = {.args = MODEL_ARGS_INIT, .batch = 1, .writer = FILE_WRITER_INIT};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = run(&job, &why);
	file_discard(&job.writer);
	free(job.tokens.values);
	model_close(&job.model);
	return command_end_file("logits", done, &why);
}
