/*
 * rosatune bench train: how many tokens per second a model learns from.
 *
 * A step is what it is in training: forward, backward, the norm of the gradient, one step of AdamW. Tokens are random,
 * and so are the weights of a new adapter; neither makes a difference to products and attention, and random symbols are
 * no favour to retrieval. Median of repeats, after one step that is not counted.
 */
#include "cli/commands.h"

#include "cli/bench.h"
#include "base/draw.h"
#include "cli/interrupt.h"
#include "cli/option_args.h"
#include "cli/progress.h"
#include "cli/trainable.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct job {
	struct model_args args;
	uint64_t batch, length, repeat;
	struct adapter_options adapter; /* of a new one */
	bool rosa, freeze, keep, json;

	struct trainable trainable;
};

/* The options of an adapter, but for those of attention, which the arguments of a model have. */
static struct key_table adapter_rows(struct key rows[OPTION_ARGS_MOST])
{
	static const char *const elsewhere[] = {"window", "sinks", "first_global_layers"};
	struct key_table table = {rows, 0};

	for (size_t i = 0; i < adapter_option_table.count; i++) {
		bool there = false;

		for (size_t j = 0; j < sizeof(elsewhere) / sizeof(elsewhere[0]); j++)
			there |= strcmp(adapter_option_table.rows[i].name, elsewhere[j]) == 0;
		if (!there)
			rows[table.count++] = adapter_option_table.rows[i];
	}
	return table;
}

static enum args_result parse(struct job *job, int count, char **words)
{
	const struct arg own[] = {
	    MODEL_ARGS(&job->args),
	    {.name = "batch",
	     .kind = ARG_NUMBER,
	     .target = &job->batch,
	     .value = "B",
	     .min = 1,
	     .max = 65536,
	     .help = "sequences per step (default 4)"},
	    {.name = "length",
	     .kind = ARG_SIZE,
	     .target = &job->length,
	     .value = "T",
	     .min = 1,
	     .max = 1 << 24,
	     .help = "tokens per sequence (default 512)"},
	    {.name = "rosa", .kind = ARG_FLAG, .target = &job->rosa, .help = "with a new adapter in every layer"},
	    {.name = "freeze", .kind = ARG_FLAG, .target = &job->freeze, .help = "train the adapter alone"},
	    {.name = "keep",
	     .kind = ARG_FLAG,
	     .target = &job->keep,
	     .help = "keep all activations instead of computing them again"},
	    {.name = "repeat",
	     .kind = ARG_NUMBER,
	     .target = &job->repeat,
	     .value = "R",
	     .min = 1,
	     .max = 1000,
	     .help = "steps that are timed (default 5)"},
	    {.name = "json", .kind = ARG_FLAG, .target = &job->json, .help = "print the result as JSON"},
	};
	const size_t count_own = sizeof(own) / sizeof(own[0]);
	struct arg options[sizeof(own) / sizeof(own[0]) + OPTION_ARGS_MOST];
	struct key rows[OPTION_ARGS_MOST];
	const struct key_table table = adapter_rows(rows);
	struct option_args room = {.count = 0};
	rosa_error why;

	memcpy(options, own, sizeof(own));
	struct args args = {
	    .command = "bench train",
	    .usage = "--model PATH [--rosa [options of an adapter]] [options]",
	    .summary = "Measures how many tokens per second a model learns from.",
	    .options = options,
	    .count = count_own + option_args_add(&room, &table, &job->adapter, options + count_own),
	};
	enum args_result parsed = args_parse(&args, count, words);

	if (parsed == ARGS_OK && option_args_apply(&room, &why) != ROSA_OK) {
		complain("bench train", "%s", why.message);
		return ARGS_WRONG;
	}
	return parsed;
}

static bool open_network(struct job *job, rosa_error *why)
{
	struct network_options options = network_options_default();

	options.rosa = job->args.adapter || job->rosa;
	options.adapter = job->adapter;
	options.recompute = !job->keep;
	return trainable_open(&job->trainable, &job->args, &options, !job->freeze, why);
}

static bool train_step(struct job *job, const struct batch *batch, uint64_t step, double *ns, rosa_error *why)
{
	struct parameters *parameters = network_parameters(job->trainable.network);
	const double tokens = (double)(batch->count * batch->steps);
	struct step_rates rates = {.backbone = 1e-6,
				   .adapter = 1e-5,
				   .vectors = 5e-5,
				   .beta1 = 0.9,
				   .beta2 = 0.95,
				   .eps = 1e-8,
				   .decay = 0.1,
				   .step = step};
	const uint64_t begin = progress_clock();
	struct batch_result result;
	double norm;

	parameters_clear_gradients(parameters);
	if (network_learn(job->trainable.network, batch, (float)(1 / tokens), &result, why) != ROSA_OK)
		return false;
	norm = parameters_gradient_norm(parameters);
	rates.scale = norm > 1 ? (float)(1 / norm) : 1;
	parameters_step(parameters, &rates);
	*ns = (double)(progress_clock() - begin);
	return true;
}

static void print(const struct job *job, double *ns)
{
	const struct network_options *options = network_settings(job->trainable.network);
	char source[SOURCE_TEXT];
	struct rusage usage;

	sources_text(&options->adapter.source, source);
	getrusage(RUSAGE_SELF, &usage);
	bench_sort(ns, job->repeat);
	const struct bench_row setting[] = {
	    {.key = "version", .label = "version", .text = rosa_version()},
	    {.key = "model", .label = "model", .text = job->args.model},
	    {.key = "source", .label = "source", .text = options->rosa ? source : "no adapter"},
	    {.key = "bits",
	     .label = "bits per symbol (0: no adapter)",
	     .number = options->rosa ? (double)options->adapter.bits : 0},
	    {.key = "window", .label = "window (0: global)", .number = (double)options->adapter.window},
	    {.key = "batch", .label = "sequences per step", .number = (double)job->batch},
	    {.key = "length", .label = "tokens per sequence", .number = (double)job->length},
	    {.key = "threads", .label = "threads (0: all)", .number = (double)job->args.threads},
	    {.key = NULL},
	};
	const struct bench_row rows[] = {
	    {.key = "tokens_per_second",
	     .label = "learning",
	     .unit = "tokens/s",
	     .number = 1e9 * (double)(job->batch * job->length) / bench_quantile(ns, job->repeat, 0.5),
	     .digits = 1},
	    {.key = "activation_bytes",
	     .label = "activations",
	     .unit = "bytes",
	     .number = (double)network_activation_bytes(job->trainable.network)},
	    {.key = "peak_bytes", .label = "peak memory", .unit = "bytes", .number = (double)usage.ru_maxrss * 1024},
	    {.key = NULL},
	};

	bench_print_rows(job->json, setting, rows);
}

static bool measure(struct job *job, rosa_error *why)
{
	const size_t cells = job->batch * job->length, vocabulary = network_config(job->trainable.network)->vocabulary;
	uint32_t *tokens = get_memory(2 * cells, sizeof(*tokens), "the tokens", why);
	double *ns = tokens ? get_memory(job->repeat + 1, sizeof(*ns), "the samples", why) : NULL;
	const struct batch batch = {job->batch, job->length, tokens, tokens ? tokens + cells : NULL, NULL, NULL};
	struct progress progress;
	bool good = ns != NULL;

	for (size_t i = 0; good && i < 2 * cells; i++)
		tokens[i] = (uint32_t)(draw_long(1, 0, i) % vocabulary);
	progress_begin(&progress, "timing", 0);
	for (uint64_t i = 0; i <= job->repeat && good; i++) {
		good = train_step(job, &batch, i + 1, &ns[i], why);
		if (good && progress_tick(&progress, i + 1, job->repeat + 1) && i < job->repeat)
			good = refuse(why, "interrupted");
	}
	progress_end(&progress);
	if (good)
		print(job, ns + 1);
	free(ns);
	free(tokens);
	return good;
}

int bench_train_command(int count, char **words)
{
	struct job job = {
	    .args = MODEL_ARGS_INIT, .batch = 4, .length = 512, .repeat = 5, .adapter = adapter_options_default()};
	rosa_error why = {0};
	enum args_result parsed;

	job.adapter.e_start = 0.1f; /* something is read from the first step on */
	parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = open_network(&job, &why) && measure(&job, &why);
	trainable_close(&job.trainable);
	if (!done && !interrupted())
		complain("bench train", "%s", why.message);
	return done ? DONE : interrupted() ? interrupted() : FAILED;
}
