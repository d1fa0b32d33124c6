/* Models for commands: from options, with notices on stderr. */
#include "cli/models.h"

#include "base/paths.h"
#include "cli/text_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool model_open_files(struct model *model, const struct model_args *args, rosa_error *why)
{
	/* NOT_GIVEN is SIZE_MAX: the adapter's, or that of global attention */
	const struct decoder_options options = {.window = (size_t)args->window,
						.sinks = (size_t)args->sinks,
						.first_global_layers = (size_t)args->global_layers,
						.chunk = (size_t)args->chunk,
						.reads = args->reads};
	char text[1024];

	*model = (struct model){0};
	if (args->adapter && !path_exists(args->adapter))
		return refuse(why, "--adapter %s: there is no such folder; name a run or a folder of save_adapter",
			      args->adapter);
	if (model_load(model, args->model, args->adapter, &options, (int)args->threads, why) != ROSA_OK)
		return false;
	if (model->adapted && adapter_notice(&model->adapter, args->model, text, sizeof(text)))
		complain(NULL, "note: %s", text);
	return true;
}

bool model_open(struct model *model, const struct model_args *args, rosa_error *why)
{
	if (!model_open_files(model, args, why))
		return false;
	if (model_decoder(model, model->adapted, &model->options, &model->decoder, why) == ROSA_OK)
		return true;
	model_close(model);
	return false;
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
