/* The model that a run trains. */
#include "train/training_model.h"

#include "base/paths.h"
#include "base/status.h"

#include <string.h>

/* Frequencies that a GGUF file gives one by one have no words in a config.json. */
static rosa_status check_backbone(const struct tune_config *config, const struct checkpoint *checkpoint,
				  rosa_error *err)
{
	for (size_t i = 0; i < config->stage_count; i++)
		if (tune_trains_backbone(&config->stages[i]) && checkpoint->rope_factors)
			return rosa_fail(err, ROSA_EINVAL,
					 "%s: has rotary factors of its own, with which a trained backbone cannot be "
					 "saved; use the Hugging Face folder of this model",
					 config->model);
	return ROSA_OK;
}

static rosa_status check_paths(const struct tune_config *config, rosa_error *err)
{
	if (!path_exists(config->model))
		return rosa_fail(err, ROSA_EIO,
				 "model: there is no %s; name a GGUF file or a model's folder with --set model=PATH",
				 config->model);
	if (config->adapter && !path_exists(config->adapter))
		return rosa_fail(err, ROSA_EIO,
				 "adapter.path: there is no %s; name an adapter's folder with --set adapter.path=DIR",
				 config->adapter);
	return ROSA_OK;
}

rosa_status training_model_open(const struct tune_config *config, int threads, struct training_model *model,
				rosa_error *err)
{
	struct network_options options = tune_config_network(config);
	struct adapter adapter = {0};
	rosa_status status = check_paths(config, err);

	if (status == ROSA_OK)
		status = checkpoint_open(config->model, &model->checkpoint, err);
	if (status == ROSA_OK)
		status = check_backbone(config, &model->checkpoint, err);
	if (status == ROSA_OK && config->adapter)
		status = adapter_open(config->adapter, &model->checkpoint, &adapter, err);
	if (status == ROSA_OK && config->adapter)
		adapter_notice(&adapter, config->model, model->notice, sizeof(model->notice));
	if (status == ROSA_OK)
		status = rosa_workers_new(threads, NULL, &model->workers, err);
	if (status == ROSA_OK)
		status = cpu_backend_new(model->workers, &model->backend, err);
	if (status == ROSA_OK)
		status = network_load(&model->checkpoint, config->adapter ? &adapter : NULL, &options, model->backend,
				      model->workers, &model->network, err);
	adapter_close(&adapter);
	return status;
}

void training_model_close(struct training_model *model)
{
	network_free(model->network);
	cpu_backend_free(model->backend);
	rosa_workers_free(model->workers);
	checkpoint_close(&model->checkpoint);
	memset(model, 0, sizeof(*model));
}
