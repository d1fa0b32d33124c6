/* Models opened for training, from the same arguments as those that are only read. */
#include "cli/trainable.h"

#include <string.h>

bool trainable_open(struct trainable *trainable, const struct model_args *args, const struct network_options *options,
		    bool backbone, rosa_error *why)
{
	struct model *model = &trainable->model;
	struct network_options full = *options;

	if (!model_open_files(model, args, why))
		return false;
	full.adapter.window = model->options.window;
	full.adapter.sinks = model->options.sinks;
	full.adapter.first_global_layers = model->options.first_global_layers;
	return network_load(&model->checkpoint, model->adapted ? &model->adapter : NULL, &full, model->backend,
			    model->workers, &trainable->network, why) == ROSA_OK &&
	       parameters_train(network_parameters(trainable->network), backbone, true, why) == ROSA_OK;
}

void trainable_close(struct trainable *trainable)
{
	network_free(trainable->network);
	model_close(&trainable->model);
	trainable->network = NULL;
}
