/*
 * rosatune gradients: the gradient of the loss with respect to every parameter.
 *
 * This is the command through which training is compared with other frameworks, tensor by tensor. The loss is the mean
 * over all tokens but the first of each text; the gradients come as a safetensors file, under the names that Hugging
 * Face and the adapter folder give the parameters.
 */
#include "cli/commands.h"

#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/option_args.h"
#include "train/safetensors_write.h"
#include "cli/trainable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
	struct model_args args;
	const char *tokens_path, *out_path;
	struct adapter_options adapter; /* only how it learns is used */
	bool keep;

	struct npy_rows tokens;
	struct trainable trainable;
};

static enum args_result parse(struct job *job, int count, char **words)
{
	const struct arg own[] = {
	    MODEL_ARGS(&job->args),
	    OPTION_TEXT("tokens", &job->tokens_path, "IDS.npy", "token ids: integers, shape [T] or [N,T]",
			.required = true),
	    OPTION_TEXT("out", &job->out_path, "G.safetensors", "the gradients, float32", .short_name = 'o',
			.required = true),
	    OPTION_FLAG("keep", &job->keep, "keep all activations instead of computing them again (the same result)"),
	};
	const size_t count_own = sizeof(own) / sizeof(own[0]);
	struct arg options[sizeof(own) / sizeof(own[0]) + OPTION_ARGS_MOST];
	struct option_args room = {.count = 0};

	job->adapter = adapter_options_default();
	memcpy(options, own, sizeof(own));
	struct args args = {
	    .command = "gradients",
	    .usage = "--model PATH --tokens IDS.npy --out G.safetensors [options]",
	    .summary = "Computes the gradient of the mean loss with respect to every parameter.",
	    .options = options,
	    .count = count_own + option_args_add(&room, &learning_option_table, &job->adapter, options + count_own),
	    .notes = "Prints the loss. With --adapter the window is the adapter's.",
	};

	return args_parse(&args, count, words);
}

static bool open_network(struct job *job, rosa_error *why)
{
	struct network_options options = {.adapter = job->adapter};

	options.rosa = job->args.adapter != NULL;
	options.recompute = !job->keep;
	return trainable_open(&job->trainable, &job->args, &options, true, why);
}

/* Tokens in, and the same moved by one. */
static bool learn(struct job *job, rosa_error *why)
{
	const size_t texts = job->tokens.rows, steps = job->tokens.steps - 1;
	uint32_t *tokens = get_memory(2 * texts * steps, sizeof(*tokens), "the tokens", why);
	struct batch batch = {texts, steps, tokens, tokens + texts * steps, NULL, NULL};
	struct batch_result result;
	rosa_status status;

	if (!tokens)
		return false;
	for (size_t i = 0; i < texts; i++) {
		const uint32_t *text = job->tokens.values + i * job->tokens.steps;

		memcpy(tokens + i * steps, text, steps * sizeof(*tokens));
		memcpy(tokens + (texts + i) * steps, text + 1, steps * sizeof(*tokens));
	}
	status = network_learn(job->trainable.network, &batch, (float)(1.0 / (double)(texts * steps)), &result, why);
	free(tokens);
	if (status != ROSA_OK)
		return false;
	printf("loss %.9g\n", result.loss / result.weight);
	return true;
}

static bool write_gradients(struct job *job, rosa_error *why)
{
	static const char *const metadata[] = {"format", "pt", NULL};
	const struct parameters *parameters = network_parameters(job->trainable.network);
	struct tensor_source *sources = get_memory(parameters->count, sizeof(*sources), "the list", why);
	struct file_writer file;
	rosa_status status;

	if (!sources)
		return false;
	for (size_t i = 0; i < parameters->count; i++) {
		const struct parameter *parameter = &parameters->all[i];

		sources[i] = (struct tensor_source){
		    parameter->name, parameter->dims, {parameter->shape[0], parameter->shape[1]}, parameter->grad};
	}
	status = file_create(&file, job->out_path, &program_files, why);
	if (status == ROSA_OK)
		status = safetensors_write(&file, sources, parameters->count, FORMAT_F32, metadata, fetch_from_backend,
					   job->trainable.model.backend, why);
	free(sources);
	return file_finish(&file, status, why) == ROSA_OK;
}

static bool run(struct job *job, rosa_error *why)
{
	if (!npy_load(job->tokens_path, NPY_TOKENS, &job->tokens, why))
		return false;
	if (job->tokens.steps < 2)
		return refuse(why, "%s: texts of one token have nothing to predict", job->tokens_path);
	return open_network(job, why) && learn(job, why) && write_gradients(job, why);
}

int gradients_command(int count, char **words)
{
	struct job job = {.args = MODEL_ARGS_INIT};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	bool done = run(&job, &why);
	trainable_close(&job.trainable);
	free(job.tokens.values);
	return command_end("gradients", done, &why);
}
