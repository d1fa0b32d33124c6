/*
 * rosatune mqar: how well a small decoder learns to recall.
 *
 * Examples are generated, the network is new, and nothing is saved: it is an experiment, and its result is numbers. The
 * modes see the same examples in the same order. Ctrl-C ends the experiment after the current step and shows the epochs
 * so far.
 */
#include "cli/commands.h"

#include "base/clock.h"
#include "cli/gnuplot.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/mqar_options.h"
#include "cli/mqar_result.h"
#include "cli/progress.h"
#include "train/training_log.h"

#include <stdio.h>
#include <stdlib.h>

struct job {
	struct mqar_options options;
	struct mqar_result result;
	struct training_log logged;
	uint64_t steps; /* of the modes before */
};

/* --------------------------------------------------------------------------------------------------- one network -- */

/* Tokens per step. */
static uint64_t job_tokens(const struct job *job)
{
	return (uint64_t)job->result.setup.batch * job->result.setup.task.length;
}

static bool judge(struct mqar_run *run, mqar_trainer *trainer, uint64_t steps, rosa_error *why)
{
	if (mqar_trainer_judge(trainer, steps, &run->epochs[run->count], why) != ROSA_OK)
		return false;
	run->count++;
	return true;
}

static bool write_log(struct job *job, const struct mqar_run *run, const mqar_trainer *trainer, uint64_t step,
		      const struct learner_result *learnt, bool judged, rosa_error *why)
{
	const uint64_t tokens = (step + 1) * job_tokens(job);
	struct training_entry entry = {.step = job->steps + step + 1,
				       .stage = mqar_mode_names[run->mode],
				       .loss = learnt->loss,
				       .grad_norm = learnt->norm,
				       .tokens = tokens,
				       .seconds = run->seconds,
				       .tokens_per_second = (double)tokens / run->seconds,
				       .has_valid = judged};

	if (!job->options.log)
		return true;
	mqar_trainer_rates(trainer, step, &entry.backbone_rate, &entry.rate);
	if (judged)
		entry.valid_loss = run->epochs[run->count - 1].loss;
	return training_log_add(&job->logged, &entry, why) == ROSA_OK;
}

/* One step, and at the end of an epoch what it led to. */
static bool advance(struct job *job, struct mqar_run *run, mqar_trainer *trainer, uint64_t step,
		    struct progress *progress, rosa_error *why)
{
	const uint64_t began = clock_ns();
	const bool last = (step + 1) % mqar_epoch_steps(trainer) == 0;
	struct learner_result learnt;

	if (mqar_trainer_step(trainer, step, &learnt, why) != ROSA_OK)
		return refuse(why, "step %llu: %s", (unsigned long long)step + 1, why->message);
	run->seconds += (double)(clock_ns() - began) * 1e-9;
	run->tokens_per_second = (double)((step + 1) * job_tokens(job)) / run->seconds;
	if (last && !judge(run, trainer, step + 1, why))
		return false;
	if (last && !job->options.json) {
		progress_end(progress);
		mqar_print_epoch(&job->result, run);
	}
	return write_log(job, run, trainer, step, &learnt, last, why);
}

static bool train(struct job *job, struct mqar_run *run, mqar_trainer *trainer, rosa_error *why)
{
	const uint64_t steps = mqar_trainer_steps(trainer);
	struct progress progress;
	bool good = judge(run, trainer, 0, why);

	if (good && !job->options.json)
		mqar_print_epoch(&job->result, run);
	progress_begin(&progress, mqar_mode_names[run->mode], steps);
	progress.unit = "steps";
	for (uint64_t step = 0; step < steps && good && !progress_tick(&progress, step, steps); step++)
		good = advance(job, run, trainer, step, &progress, why);
	progress_end(&progress);
	job->steps += steps;
	return good;
}

static bool run_mode(struct job *job, enum mqar_mode mode, rosa_workers *workers, rosa_error *why)
{
	struct mqar_run *run = &job->result.runs[job->result.count++];
	mqar_trainer *trainer = NULL;
	bool good;

	run->mode = job->result.setup.mode = mode;
	run->epochs = get_memory(job->result.setup.epochs + 1, sizeof(*run->epochs), "epochs", why);
	if (!run->epochs)
		return false;
	if (mqar_trainer_new(&job->result.setup, workers, &trainer, why) != ROSA_OK)
		return false;
	run->parameters = mqar_trainer_parameters(trainer);
	good = train(job, run, trainer, why);
	mqar_trainer_free(trainer);
	return good;
}

/* --------------------------------------------------------------------------------------------------- the command -- */

static bool wanted(const struct job *job, int mode)
{
	return job->options.mode == mode || job->options.mode == MQAR_MODES;
}

/* Refuses what cannot be trained before the first mode begins. */
static bool check_modes(struct job *job, rosa_error *why)
{
	for (int mode = 0; mode < MQAR_MODES; mode++) {
		job->result.setup.mode = (enum mqar_mode)mode;
		if (wanted(job, mode) && mqar_setup_check(&job->result.setup, why) != ROSA_OK)
			return false;
	}
	return true;
}

static bool run_modes(struct job *job, rosa_error *why)
{
	rosa_workers *workers = NULL;
	bool good = true;

	if (rosa_workers_new((int)job->options.threads, NULL, &workers, why) != ROSA_OK)
		return false;
	for (int mode = 0; mode < MQAR_MODES && good && !interrupted(); mode++)
		if (wanted(job, mode))
			good = run_mode(job, (enum mqar_mode)mode, workers, why);
	rosa_workers_free(workers);
	job->result.interrupted = interrupted() != 0;
	return good;
}

static bool open_outputs(struct job *job, rosa_error *why)
{
	if (job->options.plot && !picture_can_be(job->options.plot, why))
		return false;
	if (job->options.log && training_log_open(&job->logged, job->options.log, 0, why) != ROSA_OK)
		return false;
	return true;
}

/* Numbers first, so that they are shown even if the picture cannot be drawn. */
static bool show(const struct job *job, rosa_error *why)
{
	if (job->options.json && !mqar_print_json(&job->result, why))
		return false;
	if (!job->options.json)
		mqar_print_table(&job->result);
	if (!job->options.plot)
		return true;
	if (!mqar_plot(&job->result, job->options.plot, why))
		return false;
	if (!job->options.json)
		printf("drawn to %s\n", job->options.plot);
	return true;
}

int mqar_command(int count, char **words)
{
	struct job job = {0};
	rosa_error why = {0};
	enum args_result parsed = mqar_parse(&job.options, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	job.result.setup = job.options.setup;
	bool good = check_modes(&job, &why) && open_outputs(&job, &why) && run_modes(&job, &why);
	const int signalled = interrupted();
	interrupt_forget(); /* results so far are still shown */
	good = good && show(&job, &why);
	training_log_close(&job.logged);
	for (size_t i = 0; i < job.result.count; i++)
		free(job.result.runs[i].epochs);
	if (!good)
		complain("mqar", "%s", why.message);
	return signalled ? signalled : good ? DONE : FAILED;
}
