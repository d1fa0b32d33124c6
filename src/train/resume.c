/*
 * Resuming a run.
 *
 * A resumed run takes the steps that the first one would have taken. So what they depend on must be the same: the
 * model, the keys of the configuration that are fixed, and the shards of a stage that has begun.
 */
#include "train/resume.h"

#include "base/paths.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

static bool same_data(const struct key_data *a, const struct key_data *b)
{
	if (a->count != b->count)
		return false;
	for (size_t i = 0; i < a->count; i++)
		if (strcmp(a->sources[i].path, b->sources[i].path) != 0)
			return false;
	return true;
}

rosa_status resume_check(struct checkpoint_found *found, const struct tune_config *config, uint64_t fingerprint,
			 void (*note)(void *context, const char *message), void *context, rosa_error *err)
{
	const size_t stage = (size_t)found->state.stage;
	struct tune_config was;
	rosa_status status;

	if (found->state.model != fingerprint)
		return rosa_fail(err, ROSA_EINVAL, "%.120s: was begun with another model than %.80s", found->path.text,
				 config->model);
	status = tune_config_load(path_join(found->path.text, RESUME_CONFIG).text, NULL, 0, &was, err);
	if (status != ROSA_OK)
		return status;
	status = tune_config_compare(&was, config, stage, note, context, err);
	if (status == ROSA_OK && !same_data(&was.stages[stage].data, &config->stages[stage].data))
		found->state.data = 0;
	tune_config_free(&was);
	return status;
}

rosa_status resume_check_data(const struct run_state *state, size_t stage, const dataset *data, rosa_error *err)
{
	if (stage != state->stage || state->stage_step == 0 || state->data == 0)
		return ROSA_OK;
	if (dataset_facts(data)->checksum != state->data)
		return rosa_fail(err, ROSA_EINVAL,
				 "stage.%zu.data: the shards are not those that the run has been reading; put those "
				 "back, or give the new ones another name to train on them from here on",
				 stage + 1);
	return dataset_verify(data, state->data_time, err);
}

size_t resume_stage(const struct tune_config *config, const struct run_state *state)
{
	const size_t stage = (size_t)state->stage;

	return state->stage_step >= tune_stage_steps(&config->stages[stage]) ? stage + 1 : stage;
}
