/* Things are opened in the order of their dependencies and closed in the reverse order; after a failure, what was
 * opened is closed. */
#include "model/model.h"

#include "backend/cpu_backend.h"

#include <stdlib.h>

rosa_status model_load(struct model *model, const char *path, const char *adapter,
		       const struct decoder_options *options, int threads, rosa_error *err)
{
	rosa_status status;

	*model = (struct model){.options = *options};
	status = checkpoint_open(path, &model->checkpoint, err);
	if (status == ROSA_OK && adapter) {
		status = adapter_open(adapter, &model->checkpoint, &model->adapter, err);
		model->adapted = status == ROSA_OK;
	}
	if (status == ROSA_OK)
		status = decoder_options_settle(&model->options, &model->checkpoint,
						model->adapted ? &model->adapter : NULL, err);
	if (status == ROSA_OK)
		status = rosa_workers_new(threads, NULL, &model->workers, err);
	if (status == ROSA_OK)
		status = cpu_backend_new(model->workers, &model->backend, err);
	if (status != ROSA_OK)
		model_close(model);
	return status;
}

void model_close(struct model *model)
{
	decoder_free(model->decoder);
	cpu_backend_free(model->backend);
	rosa_workers_free(model->workers);
	adapter_close(&model->adapter);
	checkpoint_close(&model->checkpoint);
	free(model->pointer_path);
	*model = (struct model){0};
}

rosa_status model_decoder(const struct model *model, bool adapted, const struct decoder_options *options,
			  decoder **made, rosa_error *err)
{
	return decoder_new(&model->checkpoint, adapted ? &model->adapter : NULL, options, model->backend,
			   model->workers, made, err);
}
