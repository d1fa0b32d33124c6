/*
 * rosatune bench train: how many tokens per second a model learns from.
 *
 * A step is what it is in training: forward, backward, the norm of the gradient, one step of AdamW. The weights of a
 * new adapter are random, which makes no difference to products and attention. Tokens are random too unless a text is
 * given; an adapter that matches token ids finds next to nothing in random ones, so give it a text. Median of repeats,
 * after one step that is not counted. With --beside a network without the adapter takes turns with it, and the median
 * of the ratios is reported: what else the machine does for longer than a step disturbs it little.
 */
#include "cli/commands.h"

#include "base/clock.h"
#include "cli/bench.h"
#include "base/draw.h"
#include "cli/interrupt.h"
#include "cli/option_args.h"
#include "cli/progress.h"
#include "cli/text_input.h"
#include "cli/trainable.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Who takes turns: what was asked for, and with --beside the same without an adapter. */
enum runner { ASKED, WINDOW, RUNNERS };

struct job {
	struct model_args args;
	const char *file;
	uint64_t batch, length, repeat;
	struct adapter_options adapter; /* of a new one */
	bool rosa, freeze, keep, beside, json;

	struct trainable trainables[RUNNERS];
	uint32_t *tokens;
	double *ns[RUNNERS]; /* [repeat + 1], nanoseconds of a step */
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
	    OPTION_NUMBER("batch", &job->batch, "B", 1, 65536, "sequences per step (default 4)"),
	    OPTION_SIZE("length", &job->length, "T", 1, 1 << 24, "tokens per sequence (default 512)"),
	    OPTION_TEXT("file", &job->file, "FILE", "learn from the beginning of this text (default: random tokens)",
			.short_name = 'f'),
	    OPTION_FLAG("rosa", &job->rosa, "with a new adapter in every layer"),
	    OPTION_FLAG("freeze", &job->freeze, "train the adapter alone"),
	    OPTION_FLAG("beside", &job->beside, "take turns with the window alone, and print the ratio"),
	    OPTION_FLAG("keep", &job->keep, "keep all activations instead of computing them again"),
	    OPTION_NUMBER("repeat", &job->repeat, "R", 1, 1000, "steps that are timed (default 5)"),
	    OPTION_FLAG("json", &job->json, "print the result as JSON"),
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

static bool open_networks(struct job *job, rosa_error *why)
{
	struct network_options options = network_options_default();
	struct model_args plain = job->args;
	const struct adapter_options *attention;

	options.rosa = job->args.adapter || job->rosa;
	options.adapter = job->adapter;
	options.recompute = !job->keep;
	if (job->beside && (!options.rosa || job->freeze))
		return refuse(why, "--beside compares an adapter with the window alone, all being trained; %s",
			      job->freeze ? "leave out --freeze" : "add --rosa or --adapter");
	if (!trainable_open(&job->trainables[ASKED], &job->args, &options, !job->freeze, why))
		return false;
	if (!job->beside)
		return true;
	attention = &network_settings(job->trainables[ASKED].network)->adapter;
	plain.adapter = NULL;
	plain.window = attention->window;
	plain.sinks = attention->sinks;
	plain.global_layers = attention->first_global_layers;
	options.rosa = false;
	return trainable_open(&job->trainables[WINDOW], &plain, &options, true, why);
}

/* Tokens and targets of a step, [2][batch][length]. */
static bool read_tokens(struct job *job, rosa_error *why)
{
	const struct trainable *asked = &job->trainables[ASKED];
	const size_t cells = job->batch * job->length, vocabulary = network_config(asked->network)->vocabulary;
	tokenizer *tokenizer = NULL;
	struct tokens text = {0};
	bool good = true;

	job->tokens = get_memory(2 * cells, sizeof(*job->tokens), "the tokens", why);
	if (!job->tokens)
		return false;
	for (size_t i = 0; i < 2 * cells; i++)
		job->tokens[i] = (uint32_t)(draw_long(1, 0, i) % vocabulary);
	if (!job->file)
		return true;
	good = tokenizer_open(job->args.model, &tokenizer, why) == ROSA_OK &&
	       model_encode_file(tokenizer, job->file, false, &text, why);
	if (good && text.count < cells + 1)
		good = refuse(why,
			      "%s has %zu tokens, and %zu are needed; give a longer text, or less with --batch or "
			      "--length",
			      job->file, text.count, cells + 1);
	for (size_t i = 0; i < cells && good; i++) {
		job->tokens[i] = text.ids[i];
		job->tokens[cells + i] = text.ids[i + 1];
	}
	tokenizer_free(tokenizer);
	tokens_free(&text);
	return good;
}

static bool train_step(network *network, const struct batch *batch, uint64_t step, double *ns, rosa_error *why)
{
	struct parameters *parameters = network_parameters(network);
	const double tokens = (double)(batch->count * batch->steps);
	struct step_rates rates = {.backbone = 1e-6,
				   .adapter = 1e-5,
				   .vectors = 5e-5,
				   .beta1 = 0.9,
				   .beta2 = 0.95,
				   .eps = 1e-8,
				   .decay = 0.1,
				   .step = step};
	const uint64_t begin = clock_ns();
	struct batch_result result;
	double norm;

	parameters_clear_gradients(parameters);
	if (network_learn(network, batch, (float)(1 / tokens), &result, why) != ROSA_OK)
		return false;
	norm = parameters_gradient_norm(parameters);
	rates.scale = norm > 1 ? (float)(1 / norm) : 1;
	parameters_step(parameters, &rates);
	*ns = (double)(clock_ns() - begin);
	return true;
}

/* Tokens per second: the median over steps. Sorts their times. */
static double speed(const struct job *job, double *ns)
{
	return 1e9 * (double)(job->batch * job->length) / bench_median(ns, job->repeat);
}

static void print(const struct job *job)
{
	const network *network = job->trainables[ASKED].network;
	const struct network_options *options = network_settings(network);
	double *asked = job->ns[ASKED] + 1, *window = job->ns[WINDOW] + 1; /* the first step is not counted */
	char source[SOURCE_TEXT];
	struct rusage usage;

	sources_text(&options->adapter.source, source);
	getrusage(RUSAGE_SELF, &usage);
	const double ratio = job->beside ? bench_ratio(asked, window, job->repeat) : 0, learning = speed(job, asked),
		     alone = job->beside ? speed(job, window) : 0;
	const struct bench_row setting[] = {
	    {.key = "version", .label = "version", .text = rosa_version()},
	    {.key = "model", .label = "model", .text = job->args.model},
	    {.key = "text", .label = "text", .text = job->file ? job->file : "random tokens"},
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
	    {"tokens_per_second", "learning", NULL, "tokens/s", learning, 1},
	    {"activation_bytes", "activations", NULL, "bytes", (double)network_activation_bytes(network), 0},
	    {"peak_bytes", "peak memory", NULL, "bytes", (double)usage.ru_maxrss * 1024, 0},
	    {job->beside ? "window_per_second" : NULL, "the window alone", NULL, "tokens/s", alone, 1},
	    {"ratio", "  as fast as the window", NULL, "times", ratio, 3},
	    {.key = NULL},
	};

	bench_print_rows(job->json, setting, rows);
}

static bool measure(struct job *job, rosa_error *why)
{
	const size_t cells = job->batch * job->length;
	const struct batch batch = {job->batch, job->length, job->tokens, job->tokens + cells, NULL, NULL};
	const int runners = job->beside ? RUNNERS : WINDOW;
	struct progress progress;
	bool good = true;

	for (int runner = 0; runner < RUNNERS && good; runner++) {
		job->ns[runner] = get_memory(job->repeat + 1, sizeof(double), "the samples", why);
		good = job->ns[runner] != NULL;
	}
	progress_begin(&progress, "timing", 0);
	for (uint64_t i = 0; i <= job->repeat && good; i++) {
		for (int runner = 0; runner < runners && good; runner++)
			good = train_step(job->trainables[runner].network, &batch, i + 1, &job->ns[runner][i], why);
		if (good && progress_tick(&progress, i + 1, job->repeat + 1) && i < job->repeat)
			good = refuse(why, "interrupted");
	}
	progress_end(&progress);
	if (good)
		print(job);
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
	bool done = open_networks(&job, &why) && read_tokens(&job, &why) && measure(&job, &why);
	for (int runner = 0; runner < RUNNERS; runner++) {
		trainable_close(&job.trainables[runner]);
		free(job.ns[runner]);
	}
	free(job.tokens);
	return command_end("bench train", done, &why);
}
