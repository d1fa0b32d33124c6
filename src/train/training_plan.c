/*
 * What a run would do and take.
 *
 * The model is loaded and the data opened by the very functions that training uses, so what they would refuse is
 * refused here. Memory is counted rather than used where it is much: gradients and moments, which are three numbers for
 * each that is trained. Activations are really allocated, and hardly touched, since what they take is known nowhere
 * else.
 */
#include "train/training_plan.h"

#include "base/clock.h"
#include "train/pointer_stage.h"
#include "train/resume.h"
#include "train/stage_data.h"
#include "base/status.h"
#include "train/training_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Parameters of a group. */
static uint64_t count_parameters(network *network, enum parameter_group group)
{
	const struct parameters *parameters = network_parameters(network);
	uint64_t count = 0;

	for (size_t i = 0; i < parameters->count; i++)
		count += parameters->all[i].group == group ? parameters->all[i].count : 0;
	return count;
}

static void plan_data(const struct tune_stage *stage, const struct stage_data *data, struct stage_plan *plan)
{
	const struct dataset_facts *facts = dataset_facts(data->data);

	plan->data_tokens = facts->tokens;
	plan->data_samples = facts->samples;
	plan->cut = facts->cut;
	plan->no_answer = facts->no_answer;
	if (data->valid) {
		plan->valid_tokens = dataset_facts(data->valid)->tokens;
		plan->valid_samples = dataset_facts(data->valid)->samples;
		if (stage->valid_samples < plan->valid_samples)
			plan->valid_samples = stage->valid_samples;
	}
}

/* Numbers are float32: values, plus a gradient and two moments for what is trained. Checkpoints have no gradients. */
static rosa_status plan_memory(const struct training_plan *whole, const struct tune_stage *stage, bool backbone_saved,
			       const struct ranks *ranks, network *network, struct stage_plan *plan, rosa_error *err)
{
	const uint64_t share = (stage->batch + (uint64_t)ranks->count - 1) / (uint64_t)ranks->count;
	const uint64_t together = share < stage->micro_batch ? share : stage->micro_batch;
	rosa_status status = network_reserve(network, (size_t)together, (size_t)stage->length, true, err);

	plan->memory = 4 * whole->parameters + 12 * plan->trained + network_activation_bytes(network);
	plan->checkpoint = 4 * (backbone_saved ? whole->parameters : whole->adapter) + 8 * plan->trained;
	return status;
}

/* ---------------------------------------------------------------------------------------------------------- time -- */

#define MEASURED                                                                                                       \
	512 /* Seconds of one sequence forward and backward, and of one update of what is trained (with rates of 0).   \
	     */
static rosa_status time_parts(network *network, const struct batch *batch, double *learn, double *update,
			      rosa_error *err)
{
	const struct step_rates rates = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .scale = 1, .step = 1};
	struct parameters *parameters = network_parameters(network);
	rosa_status status = ROSA_OK;

	*learn = *update = INFINITY;
	/* The first turn also pays for page faults; a second one is taken unless it would take long. */
	for (int turn = 0; turn < 2 && status == ROSA_OK && (turn == 0 || *learn + *update < 5); turn++) {
		struct batch_result result;
		const double begun = clock_now();
		double learnt;

		parameters_clear_gradients(parameters);
		status = network_learn(network, batch, 1, &result, err);
		learnt = clock_now();
		parameters_step(parameters, &rates);
		*learn = fmin(*learn, learnt - begun);
		*update = fmin(*update, clock_now() - learnt);
	}
	return status;
}

/* Bytes of memory of this machine; 0: not known. */
static uint64_t machine_memory(void)
{
	const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

static rosa_status plan_time(const struct tune_config *config, const struct tune_stage *stage, const dataset *data,
			     const struct ranks *ranks, network *network, struct stage_plan *plan, rosa_error *err)
{
	const size_t length = (size_t)stage->length, taken = length < MEASURED ? length : MEASURED;
	uint32_t *tokens = calloc(2 * length, sizeof(*tokens));
	float *weight = calloc(length, sizeof(*weight));
	double learn, update, step;
	rosa_status status;

	plan->seconds = plan->tokens_per_second = NAN;
	if (!tokens || !weight) {
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for a sequence of %zu tokens", length);
	} else if (plan->memory > machine_memory() || !plan->steps) {
		status = ROSA_OK;
	} else {
		const struct batch batch = {1, taken, tokens, tokens + length, weight, NULL};

		dataset_sample(data, 0, tokens, tokens + length, weight);
		status = parameters_train(network_parameters(network), tune_trains_backbone(stage), config->rosa, err);
		if (status == ROSA_OK)
			status = time_parts(network, &batch, &learn, &update, err);
		if (status == ROSA_OK) {
			step = learn * (double)(stage->batch * stage->length) / (double)taken / ranks->count + update;
			plan->seconds = step * (double)plan->steps;
			plan->tokens_per_second = (double)(stage->batch * stage->length) / step;
			plan->measured = taken;
		}
	}
	free(tokens);
	free(weight);
	return status;
}

/* ------------------------------------------------------------------------------------------------------- stages -- */

/* A stage that fits a pointer: one sequence at a time, forward only. */
static rosa_status plan_pointer(const struct training_plan *whole, const struct tune_stage *stage, network *network,
				struct stage_plan *plan, rosa_error *err)
{
	rosa_status status = pointer_stage_check(stage, network_settings(network)->adapter.window, err);

	if (status == ROSA_OK)
		status = network_reserve(network, 1, (size_t)stage->length, false, err);
	plan->positions = stage->pointer.positions;
	plan->memory =
	    4 * whole->parameters + network_activation_bytes(network) + plan->positions * sizeof(struct pointer_sample);
	plan->trained = 0;
	return status;
}

/* The stages from the state of a checkpoint on. Those that are done have neither steps nor data. */
static rosa_status plan_stages(const struct tune_config *config, const struct run_state *from,
			       const struct ranks *ranks, network *network, struct training_plan *plan, rosa_error *err)
{
	const size_t first = resume_stage(config, from);
	const struct data_rules rules = data_rules_of(config->model, network_config(network)->vocabulary);
	bool backbone_saved = false;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < config->stage_count && status == ROSA_OK; i++) {
		const struct tune_stage *stage = &config->stages[i];
		struct stage_plan *mine = &plan->stages[i];
		const bool backbone = tune_trains_backbone(stage);
		struct stage_data data;

		backbone_saved = backbone_saved || backbone;
		if (i < first)
			continue;
		mine->steps = tune_stage_steps(stage) - (i == from->stage ? from->stage_step : 0);
		mine->tokens = mine->steps * stage->batch * stage->length;
		mine->trained = plan->adapter + (backbone ? plan->parameters - plan->adapter : 0);
		status = stage_data_open(config, i, &rules, &data, err);
		if (status != ROSA_OK)
			break;
		plan_data(stage, &data, mine);
		status = resume_check_data(from, i, data.data, err);
		if (status == ROSA_OK && stage->kind == TUNE_POINTER)
			status = plan_pointer(plan, stage, network, mine, err);
		else if (status == ROSA_OK)
			status = plan_memory(plan, stage, backbone_saved, ranks, network, mine, err);
		if (status == ROSA_OK && stage->kind != TUNE_POINTER)
			status = plan_time(config, stage, data.data, ranks, network, mine, err);
		stage_data_close(&data);
		plan->seconds += mine->seconds;
		plan->steps += mine->steps;
		plan->tokens += mine->tokens;
		plan->memory = mine->memory > plan->memory ? mine->memory : plan->memory;
	}
	return status;
}

/* Whether the folder is one that could be written to, and the checkpoint that the run would continue from. */
static rosa_status plan_folder(const struct tune_config *config, bool resume, struct checkpoint_found *found,
			       rosa_error *err)
{
	struct run_folder folder;
	rosa_status status = run_folder_look(config->out, &folder, err);

	if (status != ROSA_OK)
		return status;
	if (resume)
		status = run_folder_latest(&folder, NULL, NULL, found, err);
	else
		status = run_folder_check_new(&folder, err);
	run_folder_close(&folder);
	return status;
}

rosa_status training_plan_make(const struct tune_config *config, bool resume, const struct ranks *ranks,
			       struct training_plan *plan, rosa_error *err)
{
	struct training_model model = {0};
	struct checkpoint_found found = {0};
	rosa_status status;

	memset(plan, 0, sizeof(*plan));
	plan->stages = calloc(config->stage_count, sizeof(*plan->stages));
	if (!plan->stages)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a plan of %zu stages", config->stage_count);
	status = plan_folder(config, resume, &found, err);
	if (status == ROSA_OK)
		status = training_model_open(config, (int)config->threads, &model, err);
	if (status == ROSA_OK && *found.path.text)
		status = resume_check(&found, config, model.checkpoint.fingerprint, NULL, NULL, err);
	plan->resumed = *found.path.text ? found.state.step : UINT64_MAX;
	if (status == ROSA_OK) {
		plan->adapter = count_parameters(model.network, ADAPTER);
		plan->parameters = plan->adapter + count_parameters(model.network, BACKBONE);
		status = plan_stages(config, &found.state, ranks, model.network, plan, err);
	}
	training_model_close(&model);
	if (status != ROSA_OK)
		training_plan_free(plan);
	return status;
}

void training_plan_free(struct training_plan *plan)
{
	free(plan->stages);
	memset(plan, 0, sizeof(*plan));
}
