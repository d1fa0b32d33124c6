/* Models opened for training, from the same arguments as those that are only read. */
#include "cli/trainable.h"

#include <string.h>

bool trainable_open(struct trainable *trainable, const struct model_args *args, const struct network_options *options,
		    bool backbone, rosa_error *why)
{
	const struct adapter *adapter = args->adapter ? &trainable->adapter : NULL;
	struct network_options full = *options;
	struct decoder_options attention;

	if (checkpoint_open(args->model, &trainable->checkpoint, why) != ROSA_OK ||
	    (adapter && !model_adapter(args, &trainable->checkpoint, &trainable->adapter, why)))
		return false;
	if (!model_attention(args, &trainable->checkpoint, adapter, &attention, why))
		return false;
	full.adapter.window = attention.window;
	full.adapter.sinks = attention.sinks;
	full.adapter.first_global_layers = attention.first_global_layers;
	if (rosa_workers_new((int)args->threads, NULL, &trainable->workers, why) != ROSA_OK ||
	    cpu_backend_new(trainable->workers, &trainable->backend, why) != ROSA_OK ||
	    network_load(&trainable->checkpoint, adapter, &full, trainable->backend, trainable->workers,
			 &trainable->network, why) != ROSA_OK ||
	    parameters_train(network_parameters(trainable->network), backbone, true, why) != ROSA_OK)
		return false;
	return true;
}

void trainable_close(struct trainable *trainable)
{
	network_free(trainable->network);
	cpu_backend_free(trainable->backend);
	rosa_workers_free(trainable->workers);
	adapter_close(&trainable->adapter);
	checkpoint_close(&trainable->checkpoint);
	memset(trainable, 0, sizeof(*trainable));
}
