/*
 * What a run would do and take.
 *
 * The model is loaded and the data opened by the very functions that training uses, so what they would refuse is
 * refused here. Memory is counted rather than used where it is much: gradients and moments, which are three numbers for
 * each that is trained. Activations are really allocated, and hardly touched, since what they take is known nowhere
 * else.
 */
#include "train/training_plan.h"

#include "train/resume.h"
#include "train/stage_data.h"
#include "base/status.h"
#include "train/training_model.h"

#include <stdlib.h>
#include <string.h>

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
	plan->data_tokens = dataset_tokens(data->data);
	plan->data_samples = dataset_samples(data->data);
	plan->cut = dataset_cut(data->data);
	plan->silent = dataset_silent(data->data);
	if (data->valid) {
		plan->valid_tokens = dataset_tokens(data->valid);
		plan->valid_samples = dataset_samples(data->valid);
		if (stage->valid_samples < plan->valid_samples)
			plan->valid_samples = stage->valid_samples;
	}
}

/* Numbers are float32: values, and for what is trained a gradient and two moments. Checkpoints have no gradients. */
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

/* From the state of a checkpoint on, or all if that is of the beginning: what is done has neither steps nor data. */
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
		const bool backbone = stage->kind != TUNE_ADAPTER;
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
		stage_data_close(&data);
		status = plan_memory(plan, stage, backbone_saved, ranks, network, mine, err);
		plan->steps += mine->steps;
		plan->tokens += mine->tokens;
		plan->memory = mine->memory > plan->memory ? mine->memory : plan->memory;
	}
	return status;
}

/* Whether the folder is one that could be written to, and the checkpoint that the run would go on from. */
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
	if (status == ROSA_OK && found.path)
		status = resume_check(&found, config, model.checkpoint.fingerprint, NULL, NULL, err);
	plan->resumed = found.path ? found.state.step : UINT64_MAX;
	if (status == ROSA_OK) {
		plan->adapter = count_parameters(model.network, ADAPTER);
		plan->parameters = plan->adapter + count_parameters(model.network, BACKBONE);
		status = plan_stages(config, &found.state, ranks, model.network, plan, err);
	}
	checkpoint_found_free(&found);
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
