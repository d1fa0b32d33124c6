/* Models opened for training, from the same arguments as those that are only read. */
#include "cli/trainable.h"

#include <string.h>

bool trainable_open(struct trainable *trainable, const struct model_args *args, const struct network_options *options,
		    bool backbone, struct failure *why)
{
	const struct adapter *adapter = args->adapter ? &trainable->adapter : NULL;
	struct network_options full = *options;
	struct decoder_options attention;
	rosa_error error;

	if (checkpoint_open(args->model, &trainable->checkpoint, &error) != ROSA_OK ||
	    (adapter && adapter_open(args->adapter, &trainable->checkpoint, &trainable->adapter, &error) != ROSA_OK))
		return refuse(why, "%s", error.message);
	if (!model_attention(args, &trainable->checkpoint, adapter, &attention, why))
		return false;
	full.window = attention.window;
	full.sinks = attention.sinks;
	full.first_global_layers = attention.first_global_layers;
	if (rosa_workers_new((int)args->threads, NULL, &trainable->workers, &error) != ROSA_OK ||
	    cpu_backend_new(trainable->workers, &trainable->backend, &error) != ROSA_OK ||
	    network_load(&trainable->checkpoint, adapter, &full, trainable->backend, trainable->workers,
			 &trainable->network, &error) != ROSA_OK ||
	    parameters_train(network_parameters(trainable->network), backbone, true, &error) != ROSA_OK)
		return refuse(why, "%s", error.message);
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
