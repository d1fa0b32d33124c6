/*
 * Models for commands.
 *
 * An adapter was trained together with attention of a certain window and works badly with another. So its window, sinks
 * and global layers are used unless options say otherwise. Without an adapter attention is global, as in the model's
 * training. Things are opened in the order of their dependencies and closed in the reverse order; after a failure, what
 * was opened is closed.
 */
#include "cli/models.h"

#include "base/paths.h"
#include "cli/text_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `given`, or the default if it was not given. */
static size_t choose(uint64_t given, size_t otherwise)
{
	return given == NOT_GIVEN ? otherwise : (size_t)given;
}

/* Attention as the arguments say, or the adapter, or global. */
static bool choose_attention(struct model *model, const struct model_args *args, rosa_error *why)
{
	const struct adapter *adapter = model->adapted ? &model->adapter : NULL;
	const size_t layers = model->checkpoint.config.layers;
	struct decoder_options *options = &model->options;

	options->window = choose(args->window, adapter ? (size_t)adapter->options.window : 0);
	options->sinks = choose(args->sinks, adapter && options->window ? (size_t)adapter->options.sinks : 0);
	options->first_global_layers =
	    choose(args->global_layers, adapter ? (size_t)adapter->options.first_global_layers : 0);
	options->chunk = (size_t)args->chunk;
	options->reads = args->reads;
	if (options->sinks && !options->window)
		return refuse(why, "--sinks %zu: attention is global and sees the first positions anyway; add --window",
			      options->sinks);
	if (options->first_global_layers > layers)
		return refuse(why, "--global-layers %zu: the model has %zu layers", options->first_global_layers,
			      layers);
	return true;
}

bool model_pointer(struct model *model, const struct model_args *args, rosa_error *why)
{
	const size_t window = model->options.window;
	const bool beside = model->adapted && path_exists(path_join(model->adapter.path.text, POINTER_FILE).text);
	const char *path = args->pointer ? args->pointer : beside ? model->adapter.path.text : NULL;

	if (!path || strcmp(path, POINTER_NONE) == 0)
		return true;
	model->pointer_path = strdup(path);
	if (!model->pointer_path)
		return refuse(why, "not enough memory for the name of a pointer");
	if (!args->pointer)
		complain(NULL, "note: using the pointer in %s (--pointer none: without)", model->pointer_path);
	if (!path_exists(path))
		return refuse(why, "--pointer %s: there is no such file; name one that 'rosatune pointer fit' wrote",
			      path);
	if (pointer_load(model->pointer_path, &model->pointer, why) != ROSA_OK)
		return false;
	if (!window)
		return refuse(why,
			      "--pointer %s: attention is global and sees all that a pointer could find; "
			      "add --window W, or --pointer none",
			      model->pointer_path);
	if (model->pointer.delay != window)
		complain(NULL,
			 "note: the pointer in %s was fitted beside a window of %zu, the window is %zu; fit one for it "
			 "with 'rosatune pointer fit'",
			 model->pointer_path, model->pointer.delay, window);
	return true;
}

void model_print_pointer(const struct model *model)
{
	printf(", \"pointer\": ");
	if (model->pointer_path)
		text_print_json(model->pointer_path, strlen(model->pointer_path));
	else
		printf("null");
}

static bool open_files(struct model *model, const struct model_args *args, rosa_error *why)
{
	char text[1024];

	if (checkpoint_open(args->model, &model->checkpoint, why) != ROSA_OK)
		return false;
	if (!args->adapter)
		return true;
	if (!path_exists(args->adapter))
		return refuse(why, "--adapter %s: there is no such folder; name a run or a folder of save_adapter",
			      args->adapter);
	if (adapter_open(args->adapter, &model->checkpoint, &model->adapter, why) != ROSA_OK)
		return false;
	if (adapter_notice(&model->adapter, args->model, text, sizeof(text)))
		complain(NULL, "note: %s", text);
	model->adapted = true;
	return true;
}

bool model_open_files(struct model *model, const struct model_args *args, rosa_error *why)
{
	memset(model, 0, sizeof(*model));
	if (open_files(model, args, why) && choose_attention(model, args, why) &&
	    rosa_workers_new((int)args->threads, NULL, &model->workers, why) == ROSA_OK &&
	    cpu_backend_new(model->workers, &model->backend, why) == ROSA_OK)
		return true;
	model_close(model);
	return false;
}

bool model_open(struct model *model, const struct model_args *args, rosa_error *why)
{
	if (!model_open_files(model, args, why))
		return false;
	if (decoder_new(&model->checkpoint, model->adapted ? &model->adapter : NULL, &model->options, model->backend,
			model->workers, &model->decoder, why) == ROSA_OK)
		return true;
	model_close(model);
	return false;
}

void model_close(struct model *model)
{
	decoder_free(model->decoder);
	cpu_backend_free(model->backend);
	rosa_workers_free(model->workers);
	adapter_close(&model->adapter);
	checkpoint_close(&model->checkpoint);
	free(model->pointer_path);
	memset(model, 0, sizeof(*model));
}

bool model_warn_length(const struct model *model, size_t tokens, const char *command)
{
	const struct decoder_options *options = &model->options;
	size_t context = model->checkpoint.config.context;
	bool global = options->window == 0 || options->first_global_layers > 0 || options->window > context;

	if (context == 0 || tokens <= context || !global)
		return false;
	complain(command,
		 "warning: the text has %zu tokens, the model was trained for %zu; beyond them it may read badly "
		 "(--window W, at most %zu, bounds attention)",
		 tokens, context, context);
	return true;
}

bool model_tokenizer(const struct model *model, tokenizer **made, rosa_error *why)
{
	const struct checkpoint *checkpoint = &model->checkpoint;
	size_t ids;

	if (tokenizer_open(checkpoint->path.text, made, why) != ROSA_OK)
		return false;
	ids = tokenizer_size(*made);
	if (ids <= checkpoint->config.vocabulary)
		return true;
	tokenizer_free(*made);
	*made = NULL;
	return refuse(why, "%s: the tokenizer has %zu tokens, the model %zu; is it another model's?",
		      checkpoint->path.text, ids, checkpoint->config.vocabulary);
}

bool model_encode_file(const tokenizer *tokenizer, const char *path, bool lossy, struct tokens *tokens, rosa_error *why)
{
	struct text text = {0};
	bool good = text_add_file(&text, path, lossy, why) &&
		    tokenizer_encode_text(tokenizer, text.data, text.size, tokens, why) == ROSA_OK;

	text_free(&text);
	return good;
}

/* The full path of `path` (NULL: none). */
static bool note_path(const char *path, char **full, rosa_error *why)
{
	*full = path ? realpath(path, NULL) : NULL;
	return !path || *full || refuse(why, "%s: %s", path, strerror(errno));
}

bool model_settings(const struct model *model, struct session_settings *settings, rosa_error *why)
{
	struct session_settings made = {model->options.window, model->options.sinks, model->options.first_global_layers,
					NULL, NULL};
	const bool good = note_path(model->adapted ? model->adapter.path.text : NULL, &made.adapter, why) &&
			  note_path(model->pointer_path, &made.pointer, why);

	session_settings_free(settings); /* the model's paths may be those in it */
	*settings = made;
	return good;
}
