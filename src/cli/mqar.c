/*
 * rosatune mqar: how well a small decoder learns to recall.
 *
 * The task is made as it goes, the network is new, and nothing is kept: it is an experiment, and what comes out is its
 * numbers. The modes see the same examples in the same order from the same weights, so that what differs between them
 * is attention and the adapter and nothing else. Ctrl-C ends the experiment after the step at hand, with the epochs
 * there are.
 */
#include "commands.h"

#include "args.h"
#include "file.h"
#include "inputs.h"
#include "interrupt.h"
#include "mqar_result.h"
#include "progress.h"
#include "training_log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
	uint64_t pairs, length, vocabulary, names, name_tokens, data_seed;
	float power;
	int filler;
	bool rename;

	int mode; /* MQAR_MODES: all */
	uint64_t layers, heads, width, mlp_width, window, sinks, bits, max_match;
	float deviation, e_start, slope, suffix, explore;
	int policy, fusion, qk, qk_grad, credit, key_credit;
	bool no_fold, tied, unit_values;
	const char *adapter_layers;
	struct arg_texts frozen;

	uint64_t examples, epochs, batch, held_out, warmup, seed, threads;
	float rate, adapter_rate, decay, clip;
	const char *log, *plot;
	bool json;

	struct mqar_result result;
	struct training_log logged;
	uint64_t steps; /* of the modes before */
};

/* ------------------------------------------------------------------------------------------------------- options -- */

static const char *const filler_names[] = {"none", "random", "without-keys", NULL};
static const char *const mode_names[] = {"global", "window", "rosa", "all", NULL};
static const char *const fusion_names[] = {"post", "pre", NULL};
static const char *const qk_names[] = {"aligned", "separate", "shared", NULL};
static const char *const qk_grad_names[] = {"linear", "soft", "flips", "none", NULL};
static const char *const credit_names[] = {"all", "route", NULL};
static const char *const key_credit_names[] = {"match", "destination", NULL};

#define NUMBER(field, word, what, low, high, text)                                                                     \
	{                                                                                                              \
		.name = word, .kind = ARG_SIZE, .target = &job->field, .value = what, .min = low, .max = high,         \
		.help = text                                                                                           \
	}
#define DECIMAL(field, word, what, low, high, text)                                                                    \
	{                                                                                                              \
		.name = word, .kind = ARG_DECIMAL, .target = &job->field, .value = what, .least = low, .most = high,   \
		.help = text                                                                                           \
	}
#define CHOICE(field, word, what, names, text)                                                                         \
	{                                                                                                              \
		.name = word, .kind = ARG_CHOICE, .target = &job->field, .value = what, .choices = names, .help = text \
	}
#define FLAG(field, word, text)                                                                                        \
	{                                                                                                              \
		.name = word, .kind = ARG_FLAG, .target = &job->field, .help = text                                    \
	}

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    NUMBER(pairs, "pairs", "N", 1, 1 << 24, "pairs of key and value (default 32)"),
	    NUMBER(length, "length", "T", 4, ROSA_MAX_STEPS, "tokens of an example (default 256)"),
	    NUMBER(vocabulary, "vocabulary", "V", 4, 1 << 24, "tokens there are (default 1024)"),
	    CHOICE(filler, "filler", "F", filler_names,
		   "between queries: without-keys (default), random, or none (token 0)"),
	    DECIMAL(power, "power", "P", 1e-6, 1, "of the power law of gaps (default 0.01)"),
	    FLAG(rename, "rename", "queries use a second name of each key"),
	    NUMBER(name_tokens, "name-tokens", "N", 1, 2, "tokens of a name (default 1)"),
	    NUMBER(names, "names", "N", 0, 1 << 24, "tokens that names are made of (default 0: a half or a third)"),
	    NUMBER(data_seed, "data-seed", "S", 0, UINT64_MAX, "of the examples (default 1)"),
	    CHOICE(mode, "mode", "M", mode_names,
		   "attention: global, window, rosa (a window and adapters) or all (default)"),
	    NUMBER(window, "window", "W", 1, ROSA_MAX_STEPS, "positions that a window sees (default 16)"),
	    NUMBER(sinks, "sinks", "S", 0, ROSA_MAX_STEPS, "first positions that it sees too (default 0)"),
	    NUMBER(width, "dim", "D", 2, 65536, "width of the decoder (default 64)"),
	    NUMBER(layers, "layers", "L", 1, MQAR_MOST_LAYERS, "its layers (default 2)"),
	    NUMBER(heads, "heads", "H", 1, 1024, "heads of attention (default 2)"),
	    NUMBER(mlp_width, "mlp", "D", 0, 1 << 20, "width of its MLPs (default 0: twice the decoder's)"),
	    FLAG(tied, "tied", "the embedding serves as the head"),
	    DECIMAL(deviation, "deviation", "X", 0, 100,
		    "of the weights it starts with (default 0: 1 / sqrt of its width)"),
	    NUMBER(bits, "bits", "M", ROSA_MIN_BITS, ROSA_MAX_BITS, "bits of a symbol (default 16)"),
	    CHOICE(policy, "policy", "P", policy_names, "readable (default), literal or inclusive"),
	    FLAG(no_fold, "no-fold", "every step is a run of its own"),
	    NUMBER(max_match, "max-match", "L", 0, UINT32_MAX, "compare matches up to this length (default 0: no cut)"),
	    CHOICE(fusion, "fusion", "F", fusion_names, "post (default) or pre: beside attention, or before it"),
	    {.name = "adapter-layers",
	     .kind = ARG_TEXT,
	     .target = &job->adapter_layers,
	     .value = "LIST",
	     .help = "layers with an adapter, from 0: 0,1 (default: all)"},
	    CHOICE(qk, "qk", "S", qk_names,
		   "projections of q and k: shared (default), aligned at the start, or separate"),
	    DECIMAL(e_start, "e-start", "A", 0, 1000, "start of the read-out: e0 = -A, e1 = A (default 0.5)"),
	    FLAG(unit_values, "unit-values", "value projections start as unit matrices"),
	    CHOICE(qk_grad, "qk-grad", "G", qk_grad_names,
		   "gradient of q and k: linear (default), soft, flips or none"),
	    CHOICE(credit, "credit", "C", credit_names,
		   "linear, soft: judged over all channels (default) or the route's"),
	    CHOICE(key_credit, "key-credit", "C", key_credit_names, "flips: match (default) or destination"),
	    DECIMAL(slope, "slope", "X", 1e-6, 1000, "soft: of the softmax (default 1)"),
	    DECIMAL(suffix, "suffix", "X", 0, 1000, "linear, soft: weight of the symbols one run earlier (default 0)"),
	    DECIMAL(explore, "explore", "X", 0, 1, "share of reads at random while learning (default 0)"),
	    NUMBER(examples, "examples", "N", 1, UINT32_MAX, "of an epoch (default 1024)"),
	    NUMBER(epochs, "epochs", "E", 1, 100000, "how often they are gone through (default 4)"),
	    NUMBER(batch, "batch", "B", 1, 1 << 20, "examples of a step (default 32)"),
	    NUMBER(held_out, "held-out", "N", 1, 1 << 24, "examples that are judged after an epoch (default 128)"),
	    DECIMAL(rate, "rate", "R", 0, 10, "of learning (default 0.01)"),
	    DECIMAL(adapter_rate, "adapter-rate", "R", 0, 10, "the adapters' (default: the same)"),
	    NUMBER(warmup, "warmup", "N", 0, UINT32_MAX, "steps until the rate is reached (default 10)"),
	    DECIMAL(decay, "decay", "X", 0, 10, "of weights (default 0.01)"),
	    DECIMAL(clip, "clip", "X", 0, 1e9, "gradients of a greater norm are scaled down (default 1; 0: none)"),
	    {.name = "freeze",
	     .kind = ARG_TEXTS,
	     .target = &job->frozen,
	     .value = "WORD",
	     .help = "parameters with this word in their name do not learn; may be repeated"},
	    NUMBER(seed, "seed", "S", 0, UINT64_MAX, "of the weights and the order (default 1)"),
	    {.name = "log",
	     .kind = ARG_TEXT,
	     .target = &job->log,
	     .value = "FILE",
	     .help = "write a line a step, JSON"},
	    {.name = "plot",
	     .kind = ARG_TEXT,
	     .target = &job->plot,
	     .value = "FILE",
	     .help = "draw accuracy by epoch, .png or .svg (takes gnuplot)"},
	    NUMBER(threads, "threads", "N", 0, 1024, "worker threads (default 0: one a processor)"),
	    FLAG(json, "json", "print one JSON object instead of text"),
	};
	struct args args = {
	    .command = "mqar",
	    .usage = "[--pairs N] [--length T] [--window W] [--dim D] [--bits M] [--mode M] [options]",
	    .summary = "Trains a small decoder on associative recall (MQAR): pairs of key and value, then keys again,\n"
		       "whose values are asked for. Reports accuracy on held-out examples after every epoch, and of\n"
		       "adapters: the share of routes that read the right value where one is asked for, how often the\n"
		       "symbol of a query is that of the key it asks for (meets) and of its own step's key (agrees),\n"
		       "and how many different symbols are in use.",
	    .options = options,
	    .count = sizeof(options) / sizeof(options[0]),
	    .notes =
		"Everything is a function of the options: two runs give the same numbers, with any number of threads.",
	};
	enum args_result parsed = args_parse(&args, count, words);

	if (parsed == ARGS_OK && !args_given(&args, "adapter-rate"))
		job->adapter_rate = job->rate;
	return parsed;
}

/* "0,1,3" as bits. */
static bool read_layers(const char *text, uint32_t *bits, struct failure *why)
{
	const char *at = text;

	*bits = 0;
	while (*at) {
		char *end;
		const unsigned long layer = strtoul(at, &end, 10);

		if (end == at || *at < '0' || *at > '9' || layer >= MQAR_MOST_LAYERS || (*end && *end != ',') ||
		    (*end && !end[1]))
			return refuse(why, "--adapter-layers %s: give numbers of layers, from 0, with commas between",
				      text);
		*bits |= (uint32_t)1 << layer;
		at = *end ? end + 1 : end;
	}
	return *bits ? true : refuse(why, "--adapter-layers is empty; give numbers of layers, or leave it out");
}

static bool set_up(struct job *job, struct failure *why)
{
	struct mqar_setup *setup = &job->result.setup;
	struct network_options network = NETWORK_OPTIONS_INIT;

	network.bits = (int)job->bits;
	network.fusion = (rosa_fusion)job->fusion;
	network.policy = (rosa_policy)job->policy;
	network.fold = !job->no_fold;
	network.max_match = (uint32_t)job->max_match;
	network.qk = (enum qk_start)job->qk;
	network.e_start = job->e_start;
	network.window = (size_t)job->window;
	network.sinks = (size_t)job->sinks;
	network.learning.qk_grad = (rosa_qk_grad)job->qk_grad;
	network.learning.credit = (rosa_credit)job->credit;
	network.learning.key_credit = (rosa_key_credit)job->key_credit;
	network.learning.slope = job->slope;
	network.learning.suffix = job->suffix;
	network.learning.explore = job->explore;
	*setup = (struct mqar_setup){
	    .task = {(size_t)job->vocabulary, (size_t)job->pairs, (size_t)job->length, (size_t)job->name_tokens,
		     (size_t)job->names, (double)job->power, (enum mqar_filler)job->filler, job->rename,
		     job->data_seed},
	    .layers = (size_t)job->layers,
	    .heads = (size_t)job->heads,
	    .width = (size_t)job->width,
	    .mlp_width = (size_t)job->mlp_width,
	    .deviation = job->deviation,
	    .tied = job->tied,
	    .network = network,
	    .unit_values = job->unit_values,
	    .frozen = job->frozen.all,
	    .frozen_count = job->frozen.count,
	    .examples = (size_t)job->examples,
	    .epochs = (size_t)job->epochs,
	    .batch = (size_t)job->batch,
	    .held_out = (size_t)job->held_out,
	    .rate = (double)job->rate,
	    .adapter_rate = (double)job->adapter_rate,
	    .decay = (double)job->decay,
	    .clip = (double)job->clip,
	    .warmup = job->warmup,
	    .seed = job->seed,
	};
	return !job->adapter_layers || read_layers(job->adapter_layers, &setup->adapters, why);
}

/* ---------------------------------------------------------------------------------------------------- one network --
 */

static bool judge(struct mqar_run *run, mqar_trainer *trainer, uint64_t steps, struct failure *why)
{
	struct mqar_epoch *epoch = &run->epochs[run->count];
	rosa_error error;

	if (mqar_trainer_judge(trainer, epoch, &error) != ROSA_OK)
		return refuse(why, "%s", error.message);
	epoch->epoch = run->count++;
	epoch->steps = steps;
	return true;
}

static bool write_log(struct job *job, const struct mqar_run *run, const mqar_trainer *trainer, uint64_t step,
		      const struct learner_result *learnt, bool judged, struct failure *why)
{
	const uint64_t tokens = (step + 1) * job->batch * job->length;
	struct training_entry entry = {.step = job->steps + step + 1,
				       .stage = mqar_mode_names[run->mode],
				       .loss = learnt->loss,
				       .grad_norm = learnt->norm,
				       .tokens = tokens,
				       .seconds = run->seconds,
				       .tokens_per_second = (double)tokens / run->seconds,
				       .has_valid = judged};
	rosa_error error;

	if (!job->log)
		return true;
	mqar_trainer_rates(trainer, step, &entry.backbone_rate, &entry.rate);
	if (judged)
		entry.valid_loss = run->epochs[run->count - 1].loss;
	return training_log_add(&job->logged, &entry, &error) == ROSA_OK ? true : refuse(why, "%s", error.message);
}

/* One step, and at the end of an epoch what it led to. */
static bool advance(struct job *job, struct mqar_run *run, mqar_trainer *trainer, uint64_t step,
		    struct progress *progress, struct failure *why)
{
	const uint64_t began = progress_clock();
	const bool last = (step + 1) % mqar_epoch_steps(trainer) == 0;
	struct learner_result learnt;
	rosa_error error;

	if (mqar_trainer_step(trainer, step, &learnt, &error) != ROSA_OK)
		return refuse(why, "step %llu: %s", (unsigned long long)step + 1, error.message);
	run->seconds += (double)(progress_clock() - began) * 1e-9;
	run->tokens_per_second = (double)((step + 1) * job->batch * job->length) / run->seconds;
	if (last && !judge(run, trainer, step + 1, why))
		return false;
	if (last && !job->json) {
		progress_end(progress);
		mqar_print_epoch(&job->result, run);
	}
	return write_log(job, run, trainer, step, &learnt, last, why);
}

static bool train(struct job *job, struct mqar_run *run, mqar_trainer *trainer, struct failure *why)
{
	const uint64_t steps = mqar_trainer_steps(trainer);
	struct progress progress;
	bool good = judge(run, trainer, 0, why);

	if (good && !job->json)
		mqar_print_epoch(&job->result, run);
	progress_begin(&progress, mqar_mode_names[run->mode], steps);
	progress.unit = "steps";
	for (uint64_t step = 0; step < steps && good && !progress_tick(&progress, step, steps); step++)
		good = advance(job, run, trainer, step, &progress, why);
	progress_end(&progress);
	job->steps += steps;
	return good;
}

static bool run_mode(struct job *job, enum mqar_mode mode, rosa_workers *workers, struct failure *why)
{
	struct mqar_run *run = &job->result.runs[job->result.count++];
	mqar_trainer *trainer = NULL;
	rosa_error error;
	bool good;

	run->mode = job->result.setup.mode = mode;
	run->epochs = get_memory((size_t)job->epochs + 1, sizeof(*run->epochs), "epochs", why);
	if (!run->epochs)
		return false;
	if (mqar_trainer_new(&job->result.setup, workers, &trainer, &error) != ROSA_OK)
		return refuse(why, "%s", error.message);
	run->parameters = mqar_trainer_parameters(trainer);
	good = train(job, run, trainer, why);
	mqar_trainer_free(trainer);
	return good;
}

/* --------------------------------------------------------------------------------------------------- the command -- */

static bool run_modes(struct job *job, struct failure *why)
{
	rosa_workers *workers = NULL;
	rosa_error error;
	bool good = true;

	if (rosa_workers_new((int)job->threads, NULL, &workers, &error) != ROSA_OK)
		return refuse(why, "%s", error.message);
	for (int mode = 0; mode < MQAR_MODES && good && !interrupted(); mode++)
		if (job->mode == mode || job->mode == MQAR_MODES)
			good = run_mode(job, (enum mqar_mode)mode, workers, why);
	rosa_workers_free(workers);
	job->result.interrupted = interrupted() != 0;
	return good;
}

static bool open_outputs(struct job *job, struct failure *why)
{
	rosa_error error;

	if (job->plot && !file_can_create(job->plot, why))
		return false;
	if (job->log && training_log_open(&job->logged, job->log, 0, &error) != ROSA_OK)
		return refuse(why, "%s", error.message);
	return true;
}

/* Numbers first: a picture that cannot be drawn takes nothing from them. */
static bool show(const struct job *job, struct failure *why)
{
	if (job->json && !mqar_print_json(&job->result, why))
		return false;
	if (!job->json)
		mqar_print_table(&job->result);
	if (!job->plot)
		return true;
	if (!mqar_plot(&job->result, job->plot, why))
		return false;
	if (!job->json)
		printf("drawn to %s\n", job->plot);
	return true;
}

int mqar_command(int count, char **words)
{
	struct job job = {.pairs = 32,
			  .length = 256,
			  .vocabulary = 1024,
			  .name_tokens = 1,
			  .data_seed = 1,
			  .power = 0.01f,
			  .filler = MQAR_WITHOUT_KEYS,
			  .mode = MQAR_MODES,
			  .layers = 2,
			  .heads = 2,
			  .width = 64,
			  .window = 16,
			  .bits = 16,
			  .e_start = 0.5f,
			  .slope = 1,
			  .examples = 1024,
			  .epochs = 4,
			  .batch = 32,
			  .held_out = 128,
			  .warmup = 10,
			  .seed = 1,
			  .qk = QK_SHARED,
			  .rate = 0.01f,
			  .decay = 0.01f,
			  .clip = 1};
	struct failure why = {""};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool good = set_up(&job, &why) && open_outputs(&job, &why) && run_modes(&job, &why);
	const int signalled = interrupted();
	interrupt_forget(); /* what there is, is still shown */
	good = good && show(&job, &why);
	training_log_close(&job.logged);
	for (size_t i = 0; i < job.result.count; i++)
		free(job.result.runs[i].epochs);
	if (!good)
		complain("mqar", "%s", why.text);
	return signalled ? signalled : good ? DONE : FAILED;
}
