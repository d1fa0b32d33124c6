#include "train/resume.h"

#include "base/paths.h"
#include "base/status.h"

#include <stdlib.h>

rosa_status resume_check(const struct checkpoint_found *found, const struct tune_config *config, uint64_t fingerprint,
			 void (*note)(void *context, const char *message), void *context, rosa_error *err)
{
	char *path = path_join(found->path, RESUME_CONFIG);
	struct tune_config was;
	rosa_status status;

	if (!path)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory to read it", found->path);
	if (found->state.model != fingerprint)
		status = rosa_fail(err, ROSA_EINVAL, "%.120s: was begun with another model than %.80s", found->path,
				   config->model);
	else
		status = tune_config_load(path, NULL, 0, &was, err);
	if (status == ROSA_OK) {
		status = tune_config_compare(&was, config, (size_t)found->state.stage, note, context, err);
		tune_config_free(&was);
	}
	free(path);
	return status;
}

size_t resume_stage(const struct tune_config *config, const struct run_state *state)
{
	const size_t stage = (size_t)state->stage;

	return state->stage_step >= tune_stage_steps(&config->stages[stage]) ? stage + 1 : stage;
}
