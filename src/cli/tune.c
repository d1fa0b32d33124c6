/*
 * rosatune tune: training.
 *
 * The command reads the configuration and shows what happens; the work is done in src/train. Under mpirun every process
 * runs this, and only the first one prints, except for a failure that another process has alone.
 */
#include "cli/commands.h"

#include "base/clock.h"
#include "cli/args.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "cli/text_input.h"
#include "base/status.h"
#include "train/trainer.h"
#include "cli/tune_plan.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_AFTER 30000000000u /* nanoseconds between two lines where there is no terminal */

struct tune {
	const char *config_path, *out;
	struct arg_texts set;
	uint64_t threads;
	bool resume, json, dry;

	struct ranks ranks;
	struct tune_config config;
	struct trainer_outcome outcome;

	struct progress progress;
	char detail[96];
	uint64_t last_line, stage_step, stage_steps;
	char announced[2][160];
	unsigned turn; /* the text in use */
};

/* -------------------------------------------------------------------------------------------------------- hooks -- */

/* What Ctrl-C is answered with from now on, since it may be long until the step ends; `step` is the one being taken. 0:
 * nothing, the program ends at once. A signal may come at any time, so the text in use is not changed. */
static void announce(struct tune *job, uint64_t step)
{
	char *text = job->announced[job->turn ^= 1];

	snprintf(text, sizeof(job->announced[0]),
		 "%srosatune tune: finishing step %" PRIu64 ", with its validation if one is due, then saving; Ctrl-C "
		 "again ends without saving\n",
		 job->progress.shown ? "\r\033[K" : "", step);
	interrupt_announce(step ? text : NULL);
}

static void on_begin(void *context, const struct trainer_report *report, uint64_t trained, uint64_t parameters)
{
	struct tune *job = context;
	const struct tune_stage *stage = &job->config.stages[report->stage];

	progress_end(&job->progress);
	progress_begin(&job->progress, stage->name, report->stage_steps);
	job->progress.skipped = report->stage_step;
	job->progress.detail = NULL;
	job->stage_step = report->stage_step;
	job->stage_steps = report->stage_steps;
	job->last_line = clock_ns();
	/* a first validation and the fit of a pointer are not finished: there is nothing to save */
	announce(job, stage->kind != TUNE_POINTER && (report->entry.step || !stage->valid.count)
			  ? report->entry.step + 1
			  : 0);
	if (job->json)
		return;
	if (stage->kind == TUNE_POINTER) {
		printf("stage %zu of %zu, %s: fitted to %" PRIu64 " positions at most\n", report->stage + 1,
		       report->stages, stage->name, stage->pointer.positions);
		fflush(stdout);
		return;
	}
	printf("stage %zu of %zu, %s: %" PRIu64 " steps of %" PRIu64 " x %" PRIu64 " tokens, %s of %s parameters",
	       report->stage + 1, report->stages, stage->name, report->stage_steps, stage->batch, stage->length,
	       quantity_short((double)trained).text, quantity_short((double)parameters).text);
	if (job->ranks.count > 1)
		printf(", %d processes", job->ranks.count);
	if (report->stage_step)
		printf("; continuing after step %" PRIu64, report->stage_step);
	putchar('\n');
	fflush(stdout);
}

/* A batch of conversations whose answers were all cut off has no loss. */
static const char *write_loss(double loss, char text[24])
{
	snprintf(text, 24, isnan(loss) ? "no loss" : "loss %.4f", loss);
	return text;
}

/* "valid 3.1022, far 1.59 (random 1.97, off 1.91)", as far as it was measured. */
static void print_valid(const struct training_entry *entry)
{
	printf("valid %.4f", entry->valid_loss);
	if (isnan(entry->far_loss))
		return;
	printf(", far %.3f", entry->far_loss);
	if (!isnan(entry->far_random_loss))
		printf(" (random %.3f, off %.3f)", entry->far_random_loss, entry->far_off_loss);
}

static void print_step(const struct trainer_report *report)
{
	const struct training_entry *entry = &report->entry;
	char loss[24];

	if (entry->step == 0) {
		printf("before training: ");
		print_valid(entry);
		putchar('\n');
		fflush(stdout);
		return;
	}
	printf("step %" PRIu64 " of %" PRIu64 ": %s, ", entry->step, report->steps, write_loss(entry->loss, loss));
	if (entry->has_valid) {
		print_valid(entry);
		printf(", ");
	}
	printf("rate %.2g, %.0f tokens/s\n", entry->rate > 0 ? entry->rate : entry->backbone_rate,
	       entry->tokens_per_second);
	fflush(stdout);
}

static void on_step(void *context, const struct trainer_report *report)
{
	struct tune *job = context;
	const struct training_entry *entry = &report->entry;
	const uint64_t clock = clock_ns();
	char loss[24];

	announce(job, report->stage_step < report->stage_steps ? entry->step + 1 : 0);
	if (entry->step == 0) {
		progress_end(&job->progress);
		if (!job->json)
			print_step(report);
		return;
	}
	snprintf(job->detail, sizeof(job->detail), "%s, rate %.2g, %.0f tokens/s", write_loss(entry->loss, loss),
		 entry->rate > 0 ? entry->rate : entry->backbone_rate, entry->tokens_per_second);
	job->progress.detail = job->detail;
	if (!job->json && (entry->has_valid || (!job->progress.shown && clock - job->last_line >= LINE_AFTER))) {
		progress_end(&job->progress);
		print_step(report);
		job->last_line = clock;
	}
	job->stage_step = report->stage_step;
	progress_tick(&job->progress, job->stage_step, job->stage_steps);
}

static void on_judging(void *context, uint64_t done, uint64_t total, uint64_t samples)
{
	struct tune *job = context;

	if (samples == total)
		snprintf(job->detail, sizeof(job->detail), "validation, %" PRIu64 " of %" PRIu64 " samples", done,
			 total);
	else
		snprintf(job->detail, sizeof(job->detail),
			 "validation, %" PRIu64 " of %" PRIu64 " (%" PRIu64 " samples, once per control)", done, total,
			 samples);
	job->progress.detail = job->detail;
	progress_tick(&job->progress, job->stage_step, job->stage_steps);
}

static void on_saved(void *context, const char *path)
{
	struct tune *job = context;

	/* on a terminal the last one is named at the end; a log may have to do without an end */
	if (job->json || job->progress.shown)
		return;
	printf("saved %s\n", path);
	fflush(stdout);
}

static void on_note(void *context, const char *message)
{
	struct tune *job = context;

	progress_end(&job->progress);
	complain("tune", "note: %s", message);
}

static bool on_stop(void *context)
{
	(void)context;
	return interrupted() != 0;
}

static void on_fitting(void *context, uint64_t done, uint64_t total)
{
	struct tune *job = context;

	progress_tick(&job->progress, done, total);
}

static void on_fitted(void *context, const struct pointer_fitted *fitted)
{
	struct tune *job = context;
	const struct pointer_losses *before = &fitted->before, *after = &fitted->after;

	progress_end(&job->progress);
	if (!job->json)
		printf("pointer fitted to %zu positions; on %zu others: far %.4f (without %.4f), rest %.4f (%.4f), all "
		       "%.4f (%.4f)\n",
		       fitted->fitted, before->count, after->far, before->far, after->rest, before->rest, after->all,
		       before->all);
	fflush(stdout);
}

/* ----------------------------------------------------------------------------------------------------- the rest -- */

/* The file, then --set, then the options that have a name of their own. */
static rosa_status load(struct tune *job, bool threads, rosa_error *err)
{
	const char *settings[ARG_TEXTS_MOST + 2];
	char out[4096], number[64];
	size_t count = job->set.count;

	memcpy(settings, job->set.all, count * sizeof(*settings));
	if (job->out) {
		snprintf(out, sizeof(out), "out=%s", job->out);
		settings[count++] = out;
	}
	if (threads) {
		snprintf(number, sizeof(number), "threads=%" PRIu64, job->threads);
		settings[count++] = number;
	}
	return tune_config_load(job->config_path, settings, count, &job->config, err);
}

/* A path, or null where there is none. */
static void put_path(struct json_text *text, const char *key, const char *path)
{
	json_text_put_string(text, key, *path ? path : NULL);
}

static void print_result(const struct tune *job)
{
	const struct trainer_report *last = &job->outcome.last;
	const bool none = last->entry.step == 0;
	char loss[24];

	if (job->json) {
		struct json_text text = {0};
		rosa_error why;

		json_text_open(&text, NULL, '{');
		json_text_put_size(&text, "steps", last->entry.step);
		json_text_put_size(&text, "taken", last->entry.step - last->begun);
		json_text_put_size(&text, "tokens", last->entry.tokens);
		json_text_put_number(&text, "loss", none ? NAN : last->entry.loss);
		json_text_put_number(&text, "valid_loss", job->outcome.valid_loss);
		json_text_put_number(&text, "seconds", last->entry.seconds);
		json_text_put_number(&text, "tokens_per_second", last->entry.tokens_per_second);
		json_text_put_bool(&text, "stopped", job->outcome.stopped);
		put_path(&text, "checkpoint", job->outcome.checkpoint.text);
		put_path(&text, "adapter", job->outcome.final.text);
		put_path(&text, "pointer", job->outcome.pointer.text);
		json_text_add(&text, "}\n");
		if (!json_print(&text, &why))
			complain("tune", "%s", why.message);
		return;
	}
	if (none && *job->outcome.pointer.text)
		printf("done\n");
	else if (none && job->outcome.stopped)
		printf("stopped before the first step\n");
	else if (none)
		printf("nothing left to do: the run in %s is at its end\n", job->config.out);
	else
		printf("%s after step %" PRIu64 " of %" PRIu64 ": %s, %" PRIu64 " tokens in %.0f s\n",
		       job->outcome.stopped ? "stopped" : "done", last->entry.step, last->steps,
		       write_loss(last->entry.loss, loss), last->entry.tokens, last->entry.seconds);
	if (*job->outcome.checkpoint.text)
		printf("checkpoint: %s\n", job->outcome.checkpoint.text);
	if (*job->outcome.final.text)
		printf("adapter: %s\n", job->outcome.final.text);
	if (*job->outcome.pointer.text)
		printf("pointer: %s\n", job->outcome.pointer.text);
	if (job->outcome.stopped)
		printf(*job->outcome.checkpoint.text ? "to continue, give the same command with --resume\n"
						     : "nothing was trained, and nothing is saved\n");
}

/* A failure that all processes share is reported by the first; one that another process has alone, by that one. */
static void explain(const struct tune *job, rosa_status status, const rosa_error *error)
{
	const bool own = status != ROSA_ECANCELLED;
	const bool told = ranks_any(&job->ranks, job->ranks.rank == 0 && own);

	if (job->ranks.rank == 0 && own)
		complain("tune", "%s", error->message);
	else if (own && !told)
		complain("tune", "process %d: %s", job->ranks.rank, error->message);
}

static rosa_status train(struct tune *job, rosa_error *err)
{
	const struct trainer_hooks hooks = {job,     on_begin,   on_step,    on_saved, on_note,
					    on_stop, on_judging, on_fitting, on_fitted};
	rosa_status status;

	interrupt_watch();
	status = trainer_run(&job->config, job->resume, &job->ranks, &hooks, &job->outcome, err);
	interrupt_announce(NULL);
	progress_end(&job->progress);
	if (status == ROSA_OK && job->ranks.rank == 0)
		print_result(job);
	return status;
}

/* --dry-run. One process is enough. */
static rosa_status plan(struct tune *job, rosa_error *err)
{
	struct training_plan plan = {0};
	rosa_status status = ROSA_OK;

	if (job->ranks.rank == 0)
		status = training_plan_make(&job->config, job->resume, &job->ranks, &plan, err);
	if (job->ranks.rank == 0 && status == ROSA_OK && job->json)
		status = tune_plan_print_json(&job->config, &plan, err) ? ROSA_OK : ROSA_EIO;
	else if (job->ranks.rank == 0 && status == ROSA_OK)
		tune_plan_print(&job->config, &plan, &job->ranks);
	training_plan_free(&plan);
	return ranks_agree(&job->ranks, status, err);
}

static int run(struct tune *job, bool threads)
{
	rosa_error error = {ROSA_OK, ""};
	rosa_status status = ranks_agree(&job->ranks, load(job, threads, &error), &error);
	const bool misused = status == ROSA_EINVAL || status == ROSA_EFORMAT;

	if (status == ROSA_OK)
		status = job->dry ? plan(job, &error) : train(job, &error);
	if (status != ROSA_OK)
		explain(job, status, &error);
	tune_config_free(&job->config);
	if (status != ROSA_OK)
		return misused ? MISUSED : FAILED;
	return !job->outcome.stopped ? DONE : interrupted() ? interrupted() : 130;
}

static enum args_result parse(struct tune *job, bool *threads, int count, char **words)
{
	struct arg options[] = {
	    OPTION_TEXTS("set", &job->set, "KEY=VALUE",
			 "change a value of the configuration, as stage.1.tokens=1M; may be repeated"),
	    OPTION_FLAG("resume", &job->resume, "continue from the newest intact checkpoint; begin if there is none"),
	    OPTION_FLAG("dry-run", &job->dry,
			"check model, data and folder, say what would be done and what it needs, and stop"),
	    OPTION_TEXT("out", &job->out, "DIR", "the run's folder (key: out)", .short_name = 'o'),
	    OPTION_NUMBER("threads", &job->threads, "N", 0, 1024,
			  "worker threads per process (key: threads; 0: one per processor)"),
	    OPTION_FLAG("json", &job->json, "print one JSON object at the end"),
	};
	struct json_text notes = {0};

	json_text_add(&notes, "Keys of CONFIG, with their defaults in brackets (sizes may be written \"16k\"):\n");
	tune_config_help(&notes);
	json_text_add(&notes,
		      "\nWith --set stages are named by number, by name, or all at once: stage.*.batch=4.\n"
		      "Ctrl-C finishes the step, saves and ends with 130; --resume continues as if nothing had\n"
		      "happened. 'mpirun -np N rosatune tune ...' divides the sequences of each step among N\n"
		      "processes.");
	struct args args = {
	    .command = "tune",
	    .usage = "CONFIG [--set KEY=VALUE]... [--resume] [--dry-run] [options]",
	    .summary = "Trains a ROSA adapter for a model, and the model itself if asked, as CONFIG (JSON) says.",
	    ARGS_OPTIONS(options),
	    .notes = notes.failed ? NULL : notes.data,
	    .operand = &job->config_path,
	    .operand_name = "CONFIG",
	};
	enum args_result result = args_parse(&args, count, words);

	*threads = result == ARGS_OK && args_given(&args, "threads");
	json_text_free(&notes);
	return result;
}

/* All processes read the same command line; only the first reports a mistake in it. */
static enum args_result parse_once(struct tune *job, bool *threads, int count, char **words)
{
	enum args_result result;
	int nowhere, before;

	if (job->ranks.rank == 0)
		return parse(job, threads, count, words);
	fflush(stdout);
	nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
	before = dup(STDERR_FILENO);
	if (nowhere >= 0 && before >= 0) {
		dup2(nowhere, STDOUT_FILENO); /* for good */
		dup2(nowhere, STDERR_FILENO);
	}
	result = parse(job, threads, count, words);
	if (nowhere >= 0 && before >= 0)
		dup2(before, STDERR_FILENO);
	if (nowhere >= 0)
		close(nowhere);
	if (before >= 0)
		close(before);
	return result;
}

int tune_command(int count, char **words)
{
	struct tune job = {.ranks = RANKS_ALONE};
	rosa_error error = {ROSA_OK, ""};
	bool threads = false;
	enum args_result parsed;
	int code;

	if (ranks_begin(&job.ranks, &error) != ROSA_OK) {
		complain("tune", "%s", error.message);
		return FAILED;
	}
	parsed = parse_once(&job, &threads, count, words);
	if (parsed == ARGS_OK)
		code = run(&job, threads);
	else
		code = parsed == ARGS_HELP ? DONE : MISUSED;
	ranks_end(&job.ranks);
	return code;
}
