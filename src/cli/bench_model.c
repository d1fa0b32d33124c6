/*
 * rosatune bench model: how fast a model reads and writes, how soon it is there, and what it keeps.
 *
 * Reading is a prompt at once, writing one token after the other, as in generation but for the choice of tokens: those
 * are random, which makes no difference to attention and is no favour to retrieval. Both are timed with nothing before
 * them, and writing also with a history, since that is where windows and global attention part. Medians of repeats.
 */
#include "cli/commands.h"

#include "base/clock.h"
#include "cli/bench.h"
#include "base/draw.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

struct job {
	struct model_args args;
	uint64_t prompt, tokens, context, repeat;
	bool json;

	struct model model;
	struct progress progress;
	uint32_t *ids; /* as many as are ever read */
	float *logits;
	double start_ns;
};

struct samples {
	double *read, *write, *later; /* [repeat], nanoseconds per token */
	double history;               /* nanoseconds per token of the history */
	struct sequence_memory memory;
};

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    OPTION_SIZE("prompt", &job->prompt, "N", 1, ROSA_MAX_STEPS / 4, "tokens of the prompt (default 512)"),
	    OPTION_SIZE("tokens", &job->tokens, "N", 1, ROSA_MAX_STEPS / 4, "tokens written (default 64)"),
	    OPTION_SIZE("context", &job->context, "N", 0, ROSA_MAX_STEPS / 4,
			"also write after a history of N tokens (default 0: do not)"),
	    OPTION_NUMBER("repeat", &job->repeat, "R", 1, 1000, "how often each is timed (default 3)"),
	    OPTION_FLAG("json", &job->json, "print the result as JSON"),
	};
	struct args args = {
	    .command = "bench model",
	    .usage = "--model PATH [options]",
	    .summary = "Measures how fast a model reads a prompt and writes tokens.",
	    ARGS_OPTIONS(options),
	};

	return args_parse(&args, count, words);
}

/* Read `count` tokens at once, or one after the other; nanoseconds per token. */
static bool feed(struct job *job, sequence *s, size_t count, bool singly, double *ns, rosa_error *why)
{
	const size_t first = sequence_steps(s), step = singly ? 1 : count;
	uint64_t begin = clock_ns();

	for (size_t i = 0; i < count; i += step) {
		struct piece piece = {s, job->ids + first + i, step, LOGITS_LAST, job->logits};

		if (decoder_read(job->model.decoder, 1, &piece, singly ? NULL : progress_tick, &job->progress, why) !=
		    ROSA_OK)
			return false;
		if (singly && progress_tick(&job->progress, i, 0))
			return refuse(why, "interrupted");
	}
	if (ns)
		*ns = (double)(clock_ns() - begin) / (double)count;
	progress_advance(&job->progress, count);
	return !interrupted() || refuse(why, "interrupted");
}

static bool measure_empty(struct job *job, struct samples *samples, rosa_error *why)
{
	for (uint64_t i = 0; i <= job->repeat; i++) { /* the first is not counted: it warms things up */
		double read, write;
		sequence *s, *fresh = NULL;
		bool good;

		if (sequence_new(job->model.decoder, &s, why) != ROSA_OK)
			return false;
		good = feed(job, s, job->prompt, false, &read, why);
		sequence_free(s);
		good = good && sequence_new(job->model.decoder, &fresh, why) == ROSA_OK &&
		       feed(job, fresh, job->tokens, true, &write, why);
		sequence_free(fresh);
		if (!good)
			return false;
		if (i) {
			samples->read[i - 1] = read;
			samples->write[i - 1] = write;
		}
	}
	return true;
}

static bool measure_later(struct job *job, struct samples *samples, rosa_error *why)
{
	sequence *s;
	bool good;

	if (sequence_new(job->model.decoder, &s, why) != ROSA_OK)
		return false;
	good = feed(job, s, job->context, false, &samples->history, why);
	for (uint64_t i = 0; i < job->repeat && good; i++)
		good = feed(job, s, job->tokens, true, &samples->later[i], why);
	samples->memory = sequence_memory(s);
	sequence_free(s);
	return good;
}

static double per_second(double *ns, uint64_t count)
{
	return 1e9 / bench_median(ns, count);
}

static void print(const struct job *job, struct samples *samples)
{
	const struct decoder_options *options = &job->model.options;
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	const struct bench_row setting[] = {
	    {.key = "version", .label = "version", .text = rosa_version()},
	    {.key = "model", .label = "model", .text = job->args.model},
	    {.key = "adapter", .label = "adapter", .text = job->args.adapter ? job->args.adapter : "none"},
	    {.key = "window", .label = "window (0: global)", .number = (double)options->window},
	    {.key = "sinks", .label = "sinks", .number = (double)options->sinks},
	    {.key = "threads", .label = "threads (0: all)", .number = (double)job->args.threads},
	    {.key = "prompt", .label = "tokens of the prompt", .number = (double)job->prompt},
	    {.key = "tokens", .label = "tokens written", .number = (double)job->tokens},
	    {.key = "context", .label = "tokens of the history", .number = (double)job->context},
	    {.key = NULL},
	};
	const struct bench_row rows[] = {
	    {"start_ms", "start", NULL, "ms", job->start_ns / 1e6, 1},
	    {"read_per_second", "reading", NULL, "tokens/s", per_second(samples->read, job->repeat), 1},
	    {"write_per_second", "writing", NULL, "tokens/s", per_second(samples->write, job->repeat), 1},
	    {"peak_bytes", "peak memory", NULL, "bytes", (double)usage.ru_maxrss * 1024, 0},
	    {job->context ? "history_per_second" : NULL, "reading the history", NULL, "tokens/s",
	     1e9 / samples->history, 1},
	    {"later_per_second", "writing after it", NULL, "tokens/s",
	     job->context ? per_second(samples->later, job->repeat) : 0, 1},
	    {"attention_bytes", "kept for attention", NULL, "bytes", (double)samples->memory.attention, 0},
	    {"retrieval_bytes", "kept for retrieval", NULL, "bytes", (double)samples->memory.retrieval, 0},
	    {"value_bytes", "kept of values", NULL, "bytes", (double)samples->memory.values, 0},
	    {.key = NULL},
	};

	bench_print_rows(job->json, setting, rows);
}

static bool make_tokens(struct job *job, rosa_error *why)
{
	const size_t vocabulary = decoder_vocabulary(job->model.decoder),
		     most = job->prompt + job->context + (job->repeat + 1) * job->tokens;

	job->ids = get_memory(most, sizeof(*job->ids), "the tokens", why);
	job->logits = job->ids ? get_memory(vocabulary, sizeof(*job->logits), "the logits", why) : NULL;
	for (size_t i = 0; job->logits && i < most; i++)
		job->ids[i] = (uint32_t)(draw_long(1, 0, i) % vocabulary);
	return job->logits != NULL;
}

static bool run(struct job *job, rosa_error *why)
{
	uint64_t begin = clock_ns();
	struct samples samples = {0};
	bool good = model_open(&job->model, &job->args, why);

	job->start_ns = (double)(clock_ns() - begin);
	good = good && make_tokens(job, why);
	samples.read = get_memory(job->repeat, sizeof(double), "the samples", why);
	samples.write = get_memory(job->repeat, sizeof(double), "the samples", why);
	samples.later = get_memory(job->repeat, sizeof(double), "the samples", why);
	good = good && samples.read && samples.write && samples.later;
	if (good) {
		progress_begin(&job->progress, "timing",
			       (job->repeat + 1) * (job->prompt + job->tokens) +
				   (job->context ? job->context + job->repeat * job->tokens : 0));
		good = measure_empty(job, &samples, why) && (!job->context || measure_later(job, &samples, why));
		progress_end(&job->progress);
	}
	if (good)
		print(job, &samples);
	free(samples.read);
	free(samples.write);
	free(samples.later);
	return good;
}

int bench_model_command(int count, char **words)
{
	struct job job = {.args = MODEL_ARGS_INIT, .prompt = 512, .tokens = 64, .repeat = 3};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = run(&job, &why);
	free(job.ids);
	free(job.logits);
	model_close(&job.model);
	return command_end("bench model", done, &why);
}
