/*
 * A whole training run.
 *
 * The state of a run is the parameters, the optimiser's moments, and the number of steps taken; the order of the data,
 * the rates and all random draws are functions of the step. So a checkpoint holds those numbers, and a resumed run
 * takes exactly the steps that it would have taken.
 *
 * Every process opens the model and the data; only the first one touches the run's folder. What it reads there it
 * sends to the others, so the folder need not be visible to them. Whatever may fail on one process alone ends in
 * ranks_agree, so that all of them stop together.
 *
 * The optimiser starts again with each stage: what is trained changes, and the rates warm up again.
 */
#include "train/trainer.h"

#include "base/clock.h"
#include "base/draw.h"
#include "base/folders.h"
#include "model/adapter_find.h"
#include "train/adapter_export.h"
#include "train/pointer_stage.h"
#include "base/paths.h"
#include "train/resume.h"
#include "train/schedule.h"
#include "train/snapshot.h"
#include "train/stage_data.h"
#include "base/status.h"
#include "train/training_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trainer {
	const struct tune_config *config;
	const struct ranks *ranks;
	const struct trainer_hooks *hooks;
	struct trainer_outcome *outcome;
	bool first; /* of the processes: the one that writes */

	struct training_model model;
	struct data_rules rules;

	struct run_folder folder;
	struct training_log log;
	struct run_state state;
	bool resumed;   /* the moments were read for the stage that continues */
	uint64_t steps; /* of the whole run */
	uint64_t begun; /* the step this process began at */
	double before;  /* seconds trained by earlier processes */
	double started; /* the clock when it began */
	uint64_t fresh; /* tokens trained on since this process began, over all processes */
	double busy;    /* seconds spent on that, without validation and saving */
	uint64_t saved; /* the step of the newest checkpoint; UINT64_MAX: there is none */
};

/* A stage under way. */
struct stage_run {
	const struct tune_stage *stage;
	uint64_t steps;
	struct stage_data data;
	struct samples valid_samples;
	learner *learner;
};

static void note(void *context, const char *message)
{
	const struct trainer *t = context;

	if (t->first && t->hooks->note)
		t->hooks->note(t->hooks->context, message);
}

/* -------------------------------------------------------------------------------------------------------- model -- */

/* Threads of this process: as configured, or its share of the machine. */
static int choose_threads(struct trainer *t)
{
	int bound, share = ranks_processors(t->ranks, &bound);
	char message[160];

	if (t->config->threads)
		return (int)t->config->threads;
	if (t->ranks->count == 1)
		return 0;
	if (bound < share) {
		snprintf(message, sizeof(message),
			 "every process is bound to %d of the %d processors it could have: use mpirun --bind-to none",
			 bound, share);
		note(t, message);
	}
	return bound < share ? bound : share;
}

/* Whether the backbone is trained in any stage up to this one. */
static bool backbone_trained(const struct tune_config *config, size_t stage)
{
	for (size_t i = 0; i <= stage && i < config->stage_count; i++)
		if (tune_trains_backbone(&config->stages[i]))
			return true;
	return false;
}

/* --------------------------------------------------------------------------------------------------------- save -- */

static rosa_status write_checkpoint(struct trainer *t, struct checkpoint_writer *writer, size_t keep, rosa_error *err)
{
	const struct snapshot snapshot = {
	    .parameters = network_parameters(t->model.network),
	    .config = network_config(t->model.network),
	    .options = network_settings(t->model.network),
	    .scales = network_scales(t->model.network),
	    .backbone = backbone_trained(t->config, t->state.stage),
	    .model = &t->model.checkpoint,
	};
	struct json_text echo = {0};
	rosa_status status = snapshot_write(&snapshot, writer, err);

	tune_config_write(t->config, &echo);
	if (status == ROSA_OK && echo.failed)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to save the configuration");
	if (status == ROSA_OK)
		status = checkpoint_file_save(writer, RESUME_CONFIG, echo.data, echo.size, err);
	json_text_free(&echo);
	if (status == ROSA_OK)
		return checkpoint_commit(writer, &t->state, keep, err);
	checkpoint_abandon(writer);
	return status;
}

static rosa_status save_here(struct trainer *t, size_t keep, rosa_error *err)
{
	struct checkpoint_writer writer;
	rosa_error error = {ROSA_OK, ""};
	rosa_status status = training_log_sync(&t->log, &error);

	if (status == ROSA_OK)
		status = checkpoint_begin(&writer, &t->folder, t->state.step, &error);
	if (status == ROSA_OK)
		status = write_checkpoint(t, &writer, keep, &error);
	if (status == ROSA_OK) {
		t->outcome->checkpoint = run_folder_checkpoint(&t->folder, t->state.step);
		t->saved = t->state.step;
		if (t->hooks->saved)
			t->hooks->saved(t->hooks->context, t->outcome->checkpoint.text);
		return ROSA_OK;
	}
	if (t->saved == UINT64_MAX)
		return rosa_fail(err, status, "step %" PRIu64 " could not be saved: %s", t->state.step, error.message);
	return rosa_fail(err, status,
			 "step %" PRIu64 " could not be saved, the checkpoint of step %" PRIu64
			 " is still good (continue with --resume): %.140s",
			 t->state.step, t->saved, error.message);
}

/* All processes wait for the first to have saved. */
static rosa_status save(struct trainer *t, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	t->state.seconds = t->before + clock_now() - t->started;
	if (t->first && t->saved != t->state.step)
		status = save_here(t, t->config->stages[t->state.stage].keep, err);
	return ranks_agree(t->ranks, status, err);
}

/* ------------------------------------------------------------------------------------------------------- resume -- */

/* What is trained in a stage, with moments of 0. */
static rosa_status choose_trained(struct trainer *t, size_t stage, rosa_error *err)
{
	return parameters_train(network_parameters(t->model.network), tune_trains_backbone(&t->config->stages[stage]),
				t->config->rosa, err);
}

/* The scales that were measured in the first step; nothing before it. */
static rosa_status read_scales(struct trainer *t, const struct checkpoint_found *found, rosa_error *err)
{
	network *network = t->model.network;
	const size_t layers = network_config(network)->layers;
	float *scales = calloc(layers, sizeof(*scales));
	rosa_status status = ROSA_OK;

	if (!scales)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the scales of %zu layers", layers);
	if (found->state.step)
		status = snapshot_read_scales(found, layers, scales, err);
	if (found->state.step && status == ROSA_OK)
		network_set_scales(network, scales);
	free(scales);
	return status;
}

static rosa_status read_checkpoint(struct trainer *t, struct checkpoint_found *found, rosa_error *err)
{
	rosa_status status = resume_check(found, t->config, t->model.checkpoint.fingerprint, note, t, err);

	if (status == ROSA_OK)
		status = snapshot_read_values(found, network_parameters(t->model.network), err);
	if (status == ROSA_OK)
		status = read_scales(t, found, err);
	if (status == ROSA_OK)
		status = choose_trained(t, (size_t)found->state.stage, err);
	if (status == ROSA_OK)
		status = snapshot_read_moments(found, network_parameters(t->model.network), err);
	if (status == ROSA_OK) {
		t->state = found->state;
		t->resumed = true;
		t->saved = found->state.step;
		t->outcome->checkpoint = found->path;
	}
	return status;
}

/* The first process: opens the folder and reads the newest checkpoint, if the run is to continue. */
static rosa_status open_folder(struct trainer *t, bool resume, rosa_error *err)
{
	struct checkpoint_found found = {0};
	rosa_status status = run_folder_open(t->config->out, &t->folder, err);

	if (status == ROSA_OK && !resume)
		status = run_folder_check_new(&t->folder, err);
	if (status == ROSA_OK && resume)
		status = run_folder_latest(&t->folder, note, t, &found, err);
	if (status == ROSA_OK && resume && !*found.path.text)
		note(t, "there is no checkpoint to continue from: beginning");
	if (status == ROSA_OK && *found.path.text)
		status = read_checkpoint(t, &found, err);
	if (status == ROSA_OK && *found.path.text) /* it may have been killed before it did so itself */
		status = run_folder_keep(&t->folder, t->config->stages[t->state.stage].keep, err);
	return status;
}

static rosa_status open_log(struct trainer *t, rosa_error *err)
{
	return training_log_open(&t->log, path_join(t->folder.path.text, TRAINING_LOG).text, t->state.step, err);
}

/* Sends numbers in the backend's memory from the first process to the others. */
static rosa_status share_numbers(struct trainer *t, float *numbers, size_t count, float *room, rosa_error *err)
{
	struct backend *backend = t->model.backend;

	if (!numbers)
		return ROSA_OK;
	backend->ops->get(backend, room, numbers, count * sizeof(*room));
	rosa_status status = ranks_share(t->ranks, room, count * sizeof(*room), err);
	backend->ops->put(backend, numbers, room, count * sizeof(*room));
	return status;
}

static rosa_status share_parameter(struct trainer *t, const struct parameter *parameter, rosa_error *err)
{
	float *room = malloc(parameter->count * sizeof(*room));
	float *const all[] = {parameter->value, parameter->first, parameter->second};
	rosa_status status = room ? ROSA_OK : rosa_fail(err, ROSA_ENOMEM, "no memory for %s", parameter->name);

	status = ranks_agree(t->ranks, status, err);
	for (size_t i = 0; i < 3 && status == ROSA_OK; i++)
		status = share_numbers(t, all[i], parameter->count, room, err);
	free(room);
	return status;
}

/* Sends the state of the run to all processes. */
static rosa_status share_state(struct trainer *t, rosa_error *err)
{
	struct parameters *parameters = network_parameters(t->model.network);
	rosa_status status = ROSA_OK;

	if (t->ranks->count == 1)
		return ROSA_OK;
	ranks_share(t->ranks, &t->state, sizeof(t->state), err);
	ranks_share(t->ranks, &t->resumed, sizeof(t->resumed), err);
	if (t->resumed && !t->first)
		status = choose_trained(t, (size_t)t->state.stage, err);
	status = ranks_agree(t->ranks, status, err);
	for (size_t i = 0; i < parameters->count && t->resumed && status == ROSA_OK; i++)
		status = share_parameter(t, &parameters->all[i], err);
	return status;
}

/* -------------------------------------------------------------------------------------------------------- stage -- */

static void read_sample(const void *context, uint64_t n, uint32_t *tokens, uint32_t *targets, float *weight)
{
	dataset_sample(context, n, tokens, targets, weight);
}

/* Reports what of the data is not used. */
static void tell_cut(struct trainer *t, const struct stage_run *run)
{
	const uint64_t cut = dataset_facts(run->data.data)->cut, silent = dataset_facts(run->data.data)->no_answer;
	char message[240];

	if (!cut)
		return;
	snprintf(message, sizeof(message),
		 "%" PRIu64 " conversations of stage %.40s are longer than %" PRIu64 " tokens and are cut; %" PRIu64
		 " of them lose all answers and teach nothing",
		 cut, run->stage->name, run->stage->length, silent);
	note(t, message);
}

static rosa_status open_stage(struct trainer *t, struct stage_run *run, rosa_error *err)
{
	const struct tune_stage *stage = run->stage;
	const struct learner_options options = {.batch = stage->batch,
						.micro_batch = stage->micro_batch,
						.beta1 = stage->beta1,
						.beta2 = stage->beta2,
						.eps = stage->eps,
						.decay = stage->weight_decay,
						.vector_factor = stage->vector_factor,
						.qk_factor = stage->qk_factor,
						.clip = stage->clip,
						.seed = draw_long(t->config->seed, t->state.stage, 2)};
	struct samples samples = {read_sample, NULL, (size_t)stage->length};
	rosa_status status = ROSA_OK;

	if (!t->resumed)
		status = choose_trained(t, (size_t)t->state.stage, err);
	t->resumed = false;
	if (status == ROSA_OK)
		status = stage_data_open(t->config, (size_t)t->state.stage, &t->rules, &run->data, err);
	if (status == ROSA_OK) {
		t->state.data = dataset_facts(run->data.data)->checksum;
		t->state.data_time = dataset_facts(run->data.data)->changed;
		tell_cut(t, run);
	}
	samples.context = run->data.valid;
	run->valid_samples = samples;
	samples.context = run->data.data;
	if (status == ROSA_OK)
		status = learner_new(t->model.network, t->ranks, &samples, &options, &run->learner, err);
	return ranks_agree(t->ranks, status, err);
}

static void close_stage(struct stage_run *run)
{
	learner_free(run->learner);
	stage_data_close(&run->data);
}

/* Whether something done every `every` steps is due after this one; 0: never. */
static bool due(uint64_t every, uint64_t step)
{
	return every && step % every == 0;
}

/* A validation as it goes on. What is measured after a step is measured to its end, since the log of a run must not
 * depend on when it was stopped; before the first step there is nothing to lose. */
struct validation {
	const struct trainer *trainer;
	uint64_t samples, before, all; /* readings: of a condition, of those judged before this one, of all */
	bool may_stop;
};

/* A rosa_progress. */
static int tell_judging(void *context, uint64_t done, uint64_t total)
{
	const struct validation *v = context;
	const struct trainer_hooks *hooks = v->trainer->hooks;

	(void)total;
	if (v->trainer->first && hooks->judging)
		hooks->judging(hooks->context, v->before + done, v->all, v->samples);
	return v->may_stop && hooks->stop && hooks->stop(hooks->context);
}

/* The loss, and that on far tokens with its controls: a run shows early whether it remembers. */
static rosa_status validate(struct trainer *t, struct stage_run *run, struct training_entry *entry, rosa_error *err)
{
	const uint64_t all = dataset_facts(run->data.valid)->samples, wanted = run->stage->valid_samples;
	const uint64_t count = wanted < all ? wanted : all;
	const struct {
		enum past_reads reads;
		double *far;
	} controls[] = {{READS_RANDOM, &entry->far_random_loss}, {READS_NOTHING, &entry->far_off_loss}};
	struct validation validation = {t, count, 0, t->config->rosa ? 3 * count : count, t->state.step == 0};
	struct learner_judging judging = {&run->valid_samples, count, READS_FOUND, tell_judging, &validation};
	struct learner_result result;
	rosa_status status = learner_judge(run->learner, &judging, &result, err);

	entry->has_valid = status == ROSA_OK;
	entry->valid_loss = result.loss;
	entry->far_loss = result.far;
	t->outcome->valid_loss = result.loss;
	for (size_t i = 0; i < 2; i++) {
		result.far = NAN;
		validation.before += count;
		judging.reads = controls[i].reads;
		if (status == ROSA_OK && t->config->rosa && !isnan(entry->far_loss))
			status = learner_judge(run->learner, &judging, &result, err);
		*controls[i].far = result.far;
	}
	return status;
}

static void fill_report(const struct trainer *t, const struct stage_run *run, struct trainer_report *report)
{
	report->stage = (size_t)t->state.stage;
	report->stages = t->config->stage_count;
	report->steps = t->steps;
	report->stage_step = t->state.stage_step;
	report->stage_steps = run->steps;
	report->begun = t->begun;
	report->elapsed = clock_now() - t->started;
	report->entry.step = t->state.step;
	report->entry.stage = run->stage->name;
	report->entry.tokens = t->state.tokens;
	report->entry.seconds = t->before + report->elapsed;
	report->entry.tokens_per_second = t->busy > 0 ? (double)t->fresh / t->busy : 0;
}

/* Puts the step before the error it met. */
static rosa_status name_step(const struct trainer *t, const struct stage_run *run, rosa_status status, rosa_error *err)
{
	if (status == ROSA_OK || status == ROSA_ECANCELLED || !err)
		return status;
	return rosa_fail(err, status, "step %" PRIu64 " (stage %.30s, step %" PRIu64 "): %s", t->state.step + 1,
			 run->stage->name, t->state.stage_step + 1, err->message);
}

/* One step, with validation and logging, but without saving. */
static rosa_status take_step(struct trainer *t, struct stage_run *run, rosa_error *err)
{
	const struct tune_stage *stage = run->stage;
	const uint64_t step = t->state.stage_step;
	const struct schedule adapter = {stage->adapter_max, stage->adapter_min, stage->warmup, run->steps},
			      backbone = {stage->backbone_max, stage->backbone_min, stage->warmup, run->steps};
	const double rate = t->config->rosa ? schedule_rate(&adapter, step) : 0;
	const double backbone_rate = tune_trains_backbone(stage) ? schedule_rate(&backbone, step) : 0;
	struct trainer_report report = {.entry = {.rate = rate, .backbone_rate = backbone_rate}};
	struct learner_result result;
	const double before = clock_now();
	rosa_status status = learner_step(run->learner, step, rate, backbone_rate, &result, err);

	t->busy += clock_now() - before;
	if (status != ROSA_OK)
		return name_step(t, run, status, err);
	t->state.step++;
	t->state.stage_step++;
	t->state.tokens += stage->batch * stage->length;
	t->fresh += stage->batch * stage->length;
	report.entry.loss = result.loss;
	report.entry.grad_norm = result.norm;
	if (run->data.valid && (due(stage->valid_every, step + 1) || step + 1 == run->steps))
		status = validate(t, run, &report.entry, err);
	fill_report(t, run, &report);
	t->outcome->last = report;
	if (t->first && status == ROSA_OK &&
	    (due(stage->log_every, step + 1) || step + 1 == run->steps || report.entry.has_valid))
		status = training_log_add(&t->log, &report.entry, err);
	if (t->first && status == ROSA_OK && t->hooks->step)
		t->hooks->step(t->hooks->context, &report);
	return ranks_agree(t->ranks, status, err);
}

static bool must_stop(const struct trainer *t)
{
	return ranks_any(t->ranks, t->hooks->stop && t->hooks->stop(t->hooks->context));
}

/* What the model is worth before anything is learnt: without it the first validation has nothing to be compared with. A
 * run that is resumed has it in its log. One that is stopped here has nothing to save, and begins anew. */
static rosa_status validate_first(struct trainer *t, struct stage_run *run, rosa_error *err)
{
	struct trainer_report report = {.entry = {.loss = NAN, .grad_norm = NAN}};
	rosa_status status;

	if (t->state.step > 0 || !run->data.valid)
		return ROSA_OK;
	status = validate(t, run, &report.entry, err);
	t->outcome->stopped = must_stop(t);
	if (status == ROSA_ECANCELLED && t->outcome->stopped)
		return ROSA_OK;
	fill_report(t, run, &report);
	if (t->first && status == ROSA_OK)
		status = training_log_add(&t->log, &report.entry, err);
	if (t->first && status == ROSA_OK && t->hooks->step)
		t->hooks->step(t->hooks->context, &report);
	return ranks_agree(t->ranks, status, err);
}

static void tell_begin(const struct trainer *t, const struct stage_run *run)
{
	const struct parameters *parameters = network_parameters(t->model.network);
	struct trainer_report report = {0};
	uint64_t trained = 0, all = 0;

	if (!t->first || !t->hooks->begin)
		return;
	for (size_t i = 0; i < parameters->count; i++) {
		all += parameters->all[i].count;
		trained += parameters->all[i].trained ? parameters->all[i].count : 0;
	}
	fill_report(t, run, &report);
	t->hooks->begin(t->hooks->context, &report, trained, all);
}

static rosa_status run_stage(struct trainer *t, struct stage_run *run, rosa_error *err)
{
	rosa_status status = open_stage(t, run, err);

	if (status == ROSA_OK)
		tell_begin(t, run);
	if (status == ROSA_OK)
		status = validate_first(t, run, err);
	while (status == ROSA_OK && t->state.stage_step < run->steps && !t->outcome->stopped) {
		status = take_step(t, run, err);
		if (status != ROSA_OK)
			break;
		t->outcome->stopped = must_stop(t);
		if (due(run->stage->save_every, t->state.stage_step) || t->state.stage_step == run->steps ||
		    t->outcome->stopped)
			status = save(t, err);
	}
	return status;
}

/* ------------------------------------------------------------------------------------------------------ pointer -- */

/* A rosa_progress. */
static int tell_fitting(void *context, uint64_t done, uint64_t total)
{
	const struct trainer *t = context;

	if (t->hooks->fitting)
		t->hooks->fitting(t->hooks->context, done, total);
	return t->hooks->stop && t->hooks->stop(t->hooks->context);
}

/* Warns of a pointer that would be fitted to text that the model has learnt. */
static void tell_learnt(struct trainer *t, const struct tune_stage *stage)
{
	const struct tune_config *config = t->config;

	for (size_t i = 0; i < config->stage_count; i++) {
		const struct tune_stage *other = &config->stages[i];

		for (size_t j = 0; j < other->data.count && other != stage; j++) {
			for (size_t k = 0; k < stage->data.count; k++) {
				if (strcmp(other->data.sources[j].path, stage->data.sources[k].path) != 0)
					continue;
				note(t,
				     "the pointer is fitted to data that the model was trained on, where the model is "
				     "surer than elsewhere; hold some text back for it");
				return;
			}
		}
	}
}

/* Fits the pointer and writes it into `final`, a folder. */
static rosa_status fit_pointer(struct trainer *t, struct stage_run *run, const char *final, rosa_error *err)
{
	const struct path path = path_join(final, POINTER_FILE);
	struct pointer_fitted fitted;
	rosa_status status = stage_data_open(t->config, (size_t)t->state.stage, &t->rules, &run->data, err);

	if (status == ROSA_OK) {
		tell_begin(t, run);
		tell_learnt(t, run->stage);
		status = pointer_stage_run(t->model.network, run->data.data, run->stage, &fitted, tell_fitting, t, err);
	}
	if (status == ROSA_OK)
		status = folder_make(final, err);
	if (status == ROSA_OK)
		status = pointer_save(path.text, &fitted.pointer, &(struct file_options){.durable = true}, err);
	if (status == ROSA_OK) {
		t->outcome->pointer = path;
		if (t->hooks->fitted)
			t->hooks->fitted(t->hooks->context, &fitted);
	}
	if (status == ROSA_ECANCELLED) {
		t->outcome->stopped = true;
		status = ROSA_OK;
	}
	return status;
}

/* The last stage of a run that has one for a pointer. The first process reads and fits, after the final adapter has
 * been written, which replaces the folder. A run that is resumed at its end and has its pointer is left alone. */
static rosa_status point(struct trainer *t, rosa_error *err)
{
	const struct path final = path_join(t->folder.path.text, RUN_FINAL);
	struct stage_run run = {.stage = &t->config->stages[t->config->stage_count - 1]};
	rosa_status status = ROSA_OK;

	if (!t->first || t->outcome->stopped || run.stage->kind != TUNE_POINTER)
		return ROSA_OK;
	t->state.stage = t->config->stage_count - 1;
	if (t->saved != t->state.step || t->begun != t->state.step ||
	    !path_exists(path_join(final.text, POINTER_FILE).text))
		status = fit_pointer(t, &run, final.text, err);
	close_stage(&run);
	return status;
}

static rosa_status run_stages(struct trainer *t, rosa_error *err)
{
	const size_t count = t->config->stage_count;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < count; i++)
		t->steps += tune_stage_steps(&t->config->stages[i]);
	while (status == ROSA_OK && !t->outcome->stopped) {
		struct stage_run run = {.stage = &t->config->stages[t->state.stage]};

		run.steps = tune_stage_steps(run.stage);
		if (t->state.stage_step < run.steps)
			status = run_stage(t, &run, err);
		close_stage(&run);
		if (status != ROSA_OK || t->outcome->stopped || t->state.stage + 1 == count)
			break;
		t->resumed = false;
		t->state.stage++;
		t->state.stage_step = 0;
	}
	return status;
}

/* ---------------------------------------------------------------------------------------------------------- end -- */

/* A run that fits a pointer and trains nothing has an adapter to go with it all the same. */
static rosa_status save_untrained(struct trainer *t, rosa_error *err)
{
	const struct tune_stage *last = &t->config->stages[t->config->stage_count - 1];
	const bool saved = t->steps > 0 || t->state.step > 0 || (t->first && t->saved != UINT64_MAX);
	rosa_status status;

	if (ranks_any(t->ranks, saved) || !t->config->rosa || last->kind != TUNE_POINTER || t->outcome->stopped)
		return ROSA_OK;
	status = ranks_agree(t->ranks, choose_trained(t, (size_t)t->state.stage, err), err);
	return status == ROSA_OK ? save(t, err) : status;
}

/* The adapter as it is used, once all steps are taken. A run that was killed before this gets it when it is resumed. */
static rosa_status write_final(struct trainer *t, rosa_error *err)
{
	const struct path path = path_join(t->folder.path.text, RUN_FINAL);
	rosa_status status;

	if (!t->first || t->outcome->stopped || !t->config->rosa || !*t->outcome->checkpoint.text)
		return ROSA_OK;
	status = adapter_export(t->outcome->checkpoint.text, path.text, FORMAT_BF16, true, err);
	if (status == ROSA_OK)
		t->outcome->final = path;
	return status;
}

/* ---------------------------------------------------------------------------------------------------------- run -- */

/* Opens the data of all remaining stages: a mistake in the last one is reported now, not after days. */
static rosa_status check_stages(const struct trainer *t, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = resume_stage(t->config, &t->state); i < t->config->stage_count && status == ROSA_OK; i++) {
		struct stage_data data;

		status = stage_data_open(t->config, i, &t->rules, &data, err);
		if (status == ROSA_OK && t->config->stages[i].kind == TUNE_POINTER)
			status = pointer_stage_check(&t->config->stages[i],
						     network_settings(t->model.network)->adapter.window, err);
		if (status == ROSA_OK && t->first)
			status = resume_check_data(&t->state, i, data.data, err);
		stage_data_close(&data);
	}
	return status;
}

static rosa_status begin(struct trainer *t, bool resume, rosa_error *err)
{
	rosa_status status = training_model_open(t->config, choose_threads(t), &t->model, err);

	status = ranks_agree(t->ranks, status, err);
	if (status != ROSA_OK)
		return status;
	if (*t->model.notice)
		note(t, t->model.notice);
	t->rules = data_rules_of(t->config->model, network_config(t->model.network)->vocabulary);
	t->state.model = t->model.checkpoint.fingerprint;
	if (t->first) {
		status = open_folder(t, resume, err);
		if (status == ROSA_OK)
			status = open_log(t, err);
	}
	status = ranks_agree(t->ranks, status, err);
	if (status == ROSA_OK)
		status = share_state(t, err);
	if (status == ROSA_OK)
		status = ranks_agree(t->ranks, check_stages(t, err), err);
	t->before = t->state.seconds;
	t->begun = t->state.step;
	t->started = clock_now();
	return status;
}

rosa_status trainer_run(const struct tune_config *config, bool resume, const struct ranks *ranks,
			const struct trainer_hooks *hooks, struct trainer_outcome *outcome, rosa_error *err)
{
	struct trainer t = {.config = config,
			    .ranks = ranks,
			    .hooks = hooks,
			    .outcome = outcome,
			    .first = ranks->rank == 0,
			    .saved = UINT64_MAX};
	rosa_status status;

	memset(outcome, 0, sizeof(*outcome));
	outcome->valid_loss = NAN;
	status = begin(&t, resume, err);
	if (status == ROSA_OK)
		status = run_stages(&t, err);
	if (status == ROSA_OK)
		status = save_untrained(&t, err);
	if (status == ROSA_OK)
		status = ranks_agree(ranks, write_final(&t, err), err);
	if (status == ROSA_OK)
		status = ranks_agree(ranks, point(&t, err), err);
	training_log_close(&t.log);
	run_folder_close(&t.folder);
	training_model_close(&t.model);
	return status;
}
