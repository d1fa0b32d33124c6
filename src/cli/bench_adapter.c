/*
 * rosatune bench adapter: what an adapter costs, beside the window alone.
 *
 * Two decoders of the same model, with the adapter and without it, read the same text, taking turns: a chunk each, then
 * some tokens each, one by one. The ratio of a turn is not disturbed by what else the machine does for longer than
 * that, and the median over turns is reported. A turn of writing has several tokens because some of an adapter's work
 * is done only once in 16 of them (model/decoder_adapter.c): a median over single tokens would not see it. A third text
 * that has become long takes part in the turns of writing, so that writing late is compared with writing early in the
 * same way.
 */
#include "cli/commands.h"

#include "base/clock.h"
#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/progress.h"

#include <stdlib.h>

/* Who takes turns: without the adapter, with it, and with it after a long text. */
enum runner { WINDOW, ADAPTER, LATE, RUNNERS };

#define TURN ((size_t)16) /* tokens of a turn of writing, which have their share of all work */

struct job {
	struct model_args args;
	const char *file;
	uint64_t prompt, tokens, context;
	bool json, processor;

	struct model models[2]; /* without and with the adapter */
	struct tokens text;
	sequence *sequences[RUNNERS];
	float *logits;
	struct progress progress;

	size_t turns[2];             /* of reading and of writing */
	double *times[2][RUNNERS];   /* [turns], seconds per token */
	struct sequence_memory kept; /* by the longest text with the adapter */
	size_t steps;                /* of that text */
};

enum phase { READING, WRITING };

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    OPTION_TEXT("file", &job->file, "FILE", "the text that is read, plain or .gz, .xz, .zst", .short_name = 'f',
			.required = true),
	    OPTION_SIZE("prompt", &job->prompt, "N", 1, ROSA_MAX_STEPS / 4,
			"tokens that are read in turns (default 2048)"),
	    OPTION_SIZE("tokens", &job->tokens, "N", 1, ROSA_MAX_STEPS / 4,
			"tokens that are then written in turns of 16 (default 256)"),
	    OPTION_SIZE("context", &job->context, "N", 0, ROSA_MAX_STEPS / 4,
			"also write after N tokens (default 0: do not)"),
	    OPTION_FLAG("processor-time", &job->processor,
			"count processor time, of all threads, instead of elapsed time"),
	    OPTION_FLAG("json", &job->json, "print the result as JSON"),
	};
	struct args args = {
	    .command = "bench adapter",
	    .usage = "--model PATH --adapter DIR --file TEXT [options]",
	    .summary = "Measures what an adapter costs: a model with it and without it read the same text in turns.",
	    ARGS_OPTIONS(options),
	};

	return args_parse(&args, count, words);
}

/* ------------------------------------------------------------------------------------------------------- set-up -- */

static bool open_models(struct job *job, rosa_error *why)
{
	struct model_args plain = job->args;
	const struct decoder_options *attention = &job->models[1].options;

	if (!job->args.adapter)
		return refuse(why, "--adapter is missing; name the folder of an adapter");
	if (!model_open(&job->models[1], &job->args, why))
		return false;
	plain.adapter = NULL;
	plain.window = attention->window;
	plain.sinks = attention->sinks;
	plain.global_layers = attention->first_global_layers;
	return model_open(&job->models[0], &plain, why);
}

static bool read_text(struct job *job, rosa_error *why)
{
	const size_t longest = job->context > job->prompt ? job->context : job->prompt, need = longest + job->tokens;
	tokenizer *tokenizer = NULL;
	const bool good = checkpoint_tokenizer(&job->models[0].checkpoint, &tokenizer, why) == ROSA_OK &&
			  model_encode_file(tokenizer, job->file, false, &job->text, why);

	tokenizer_free(tokenizer);
	if (good && job->text.count < need)
		return refuse(why, "%s has %zu tokens, and %zu are needed; give a longer text, or fewer tokens",
			      job->file, job->text.count, need);
	return good;
}

static bool make_room(struct job *job, rosa_error *why)
{
	const size_t chunk = job->models[1].options.chunk ? job->models[1].options.chunk : 256;

	job->turns[READING] = (job->prompt + chunk - 1) / chunk;
	job->turns[WRITING] = (job->tokens + TURN - 1) / TURN;
	job->tokens = job->turns[WRITING] * TURN;
	for (int phase = 0; phase < 2; phase++) {
		for (int runner = 0; runner < RUNNERS; runner++) {
			job->times[phase][runner] = get_memory(job->turns[phase], sizeof(double), "the times", why);
			if (!job->times[phase][runner])
				return false;
		}
	}
	job->logits = get_memory(decoder_vocabulary(job->models[0].decoder), sizeof(*job->logits), "the logits", why);
	for (int runner = 0; job->logits && runner < RUNNERS; runner++)
		if (sequence_new(job->models[runner != WINDOW].decoder, &job->sequences[runner], why) != ROSA_OK)
			return false;
	return job->logits != NULL;
}

/* ---------------------------------------------------------------------------------------------------- measuring -- */

/* A runner reads the next tokens; `time` (NULL: not wanted) receives the seconds per token. */
static bool feed(struct job *job, enum runner runner, size_t count, double *time, rosa_error *why)
{
	sequence *s = job->sequences[runner];
	struct piece piece = {s, job->text.ids + sequence_steps(s), count, LOGITS_LAST, job->logits};
	uint64_t (*clock)(void) = job->processor ? clock_processor_ns : clock_ns;
	const uint64_t begin = clock();

	if (decoder_read(job->models[runner != WINDOW].decoder, 1, &piece, time ? NULL : progress_tick, &job->progress,
			 why) != ROSA_OK)
		return false;
	if (time)
		*time = (double)(clock() - begin) * 1e-9 / (double)count;
	progress_advance(&job->progress, count);
	return !progress_tick(&job->progress, 0, 0) || refuse(why, "interrupted");
}

/* A runner writes the tokens of a turn, one by one. */
static bool write_turn(struct job *job, enum runner runner, double *time, rosa_error *why)
{
	double sum = 0, one;

	for (size_t i = 0; i < TURN; i++) {
		if (!feed(job, runner, 1, &one, why))
			return false;
		sum += one;
	}
	*time = sum / (double)TURN;
	return true;
}

static bool measure(struct job *job, rosa_error *why)
{
	const size_t chunk = (job->prompt + job->turns[READING] - 1) / job->turns[READING];
	bool good = !job->context || feed(job, LATE, job->context, NULL, why);

	for (size_t i = 0; i < job->turns[READING] && good; i++) {
		const size_t left = job->prompt - i * chunk, some = left < chunk ? left : chunk;

		for (int runner = WINDOW; runner <= ADAPTER && good; runner++)
			good = feed(job, (enum runner)runner, some, &job->times[READING][runner][i], why);
	}
	for (size_t i = 0; i < job->turns[WRITING] && good; i++)
		for (int runner = WINDOW; runner < (job->context ? RUNNERS : LATE) && good; runner++)
			good = write_turn(job, (enum runner)runner, &job->times[WRITING][runner][i], why);
	if (good) {
		const sequence *longest = job->sequences[job->context > job->prompt ? LATE : ADAPTER];

		job->kept = sequence_memory(longest);
		job->steps = sequence_steps(longest);
	}
	return good;
}

/* -------------------------------------------------------------------------------------------------------- result -- */

/* How fast `a` is beside `b`; 1: as fast. */
static double ratio(const struct job *job, enum phase phase, enum runner a, enum runner b)
{
	return bench_ratio(job->times[phase][a], job->times[phase][b], job->turns[phase]);
}

/* Tokens per second: the median over turns. Sorts them. */
static double speed(struct job *job, enum phase phase, enum runner runner)
{
	return 1 / bench_median(job->times[phase][runner], job->turns[phase]);
}

static void print(struct job *job)
{
	const struct model_config *config = &job->models[0].checkpoint.config;
	const struct decoder_options *options = &job->models[1].options;
	const double kv = 2.0 * 2 * (double)(config->layers * config->kv_heads * config->head_size);
	const double read = ratio(job, READING, ADAPTER, WINDOW), write = ratio(job, WRITING, ADAPTER, WINDOW),
		     late = job->context ? ratio(job, WRITING, LATE, ADAPTER) : 0;
	const struct bench_row setting[] = {
	    {.key = "version", .label = "version", .text = rosa_version()},
	    {.key = "model", .label = "model", .text = job->args.model},
	    {.key = "adapter", .label = "adapter", .text = job->args.adapter},
	    {.key = "window", .label = "window (0: global)", .number = (double)options->window},
	    {.key = "sinks", .label = "sinks", .number = (double)options->sinks},
	    {.key = "threads", .label = "threads (0: all)", .number = (double)job->args.threads},
	    {.key = "clock", .label = "clock", .text = job->processor ? "processor" : "elapsed"},
	    {.key = "prompt", .label = "tokens read in turns", .number = (double)job->prompt},
	    {.key = "tokens", .label = "tokens written", .number = (double)job->tokens},
	    {.key = "context", .label = "tokens of the long text", .number = (double)job->context},
	    {.key = NULL},
	};
	const struct bench_row rows[] = {
	    {"window_read_per_second", "reading, window", NULL, "tokens/s", speed(job, READING, WINDOW), 1},
	    {"read_per_second", "reading, adapter", NULL, "tokens/s", speed(job, READING, ADAPTER), 1},
	    {"read_ratio", "  as fast as the window", NULL, "times", read, 3},
	    {"window_write_per_second", "writing, window", NULL, "tokens/s", speed(job, WRITING, WINDOW), 1},
	    {"write_per_second", "writing, adapter", NULL, "tokens/s", speed(job, WRITING, ADAPTER), 1},
	    {"write_ratio", "  as fast as the window", NULL, "times", write, 3},
	    {"index_bytes", "index", NULL, "bytes per token", (double)job->kept.retrieval / (double)job->steps, 1},
	    {"value_bytes", "values", NULL, "bytes per token", (double)job->kept.values / (double)job->steps, 1},
	    {"kv_bytes", "a KV cache in float16", NULL, "bytes per token", kv, 1},
	    {job->context ? "late_per_second" : NULL, "writing after the long text", NULL, "tokens/s",
	     job->context ? speed(job, WRITING, LATE) : 0, 1},
	    {"late_ratio", "  as fast as early", NULL, "times", late, 3},
	    {.key = NULL},
	};

	bench_print_rows(job->json, setting, rows);
}

int bench_adapter_command(int count, char **words)
{
	struct job job = {.args = MODEL_ARGS_INIT, .prompt = 2048, .tokens = 256};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = open_models(&job, &why) && make_room(&job, &why) && read_text(&job, &why);
	if (done) {
		progress_begin(&job.progress, "timing", 2 * job.prompt + job.context + 3 * job.tokens);
		done = measure(&job, &why);
		progress_end(&job.progress);
	}
	if (done)
		print(&job);
	for (int runner = 0; runner < RUNNERS; runner++) {
		sequence_free(job.sequences[runner]);
		free(job.times[READING][runner]);
		free(job.times[WRITING][runner]);
	}
	free(job.logits);
	tokens_free(&job.text);
	model_close(&job.models[0]);
	model_close(&job.models[1]);
	return command_end("bench adapter", done, &why);
}
