/*
 * What a checkpoint holds of a network.
 *
 * Each file has a format that other programs read: the adapter is what the Python package and `rosatune generate
 * --adapter` load, and a trained backbone is a model folder beside it. So a checkpoint can be used without being
 * exported. The optimiser's moments are safetensors as well, with the names of the parameters behind "first." and
 * "second.".
 *
 * All numbers are float32, as in training, so that they are read back bit for bit.
 */
#include "train/snapshot.h"

#include "base/json_text.h"
#include "base/paths.h"
#include "model/safetensors.h"
#include "train/adapter_config.h"
#include "train/safetensors_write.h"
#include "base/status.h"
#include "train/tokenizer_copy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADAPTER_PREFIX "rosa." /* of parameters' names, not of tensors' in the file */

/* The files of a model folder besides weights and configuration: tokenizer, chat template, defaults. */
static const char *const companions[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt",     "added_tokens.json",     "chat_template.jinja",     "generation_config.json"};

/* ------------------------------------------------------------------------------------------- tensors of a file -- */

/* A tensor of a file: its name there, and its numbers on the backend. */
struct entry {
	char name[128];
	float *numbers;
};

/* What a file holds of a parameter. Returns how many tensors. */
static size_t entries_of(const struct parameter *parameter, const char *file, struct entry entries[2])
{
	const enum parameter_group group = strcmp(file, SNAPSHOT_ADAPTER) == 0 ? ADAPTER : BACKBONE;
	const char *name = parameter->name;

	if (strcmp(file, SNAPSHOT_MOMENTS) == 0) {
		snprintf(entries[0].name, sizeof(entries[0].name), "first.%s", name);
		snprintf(entries[1].name, sizeof(entries[1].name), "second.%s", name);
		entries[0].numbers = parameter->first;
		entries[1].numbers = parameter->second;
		return parameter->trained ? 2 : 0;
	}
	if (parameter->group != group)
		return 0;
	snprintf(entries[0].name, sizeof(entries[0].name), "%s",
		 name + (group == ADAPTER ? strlen(ADAPTER_PREFIX) : 0));
	entries[0].numbers = parameter->value;
	return 1;
}

/* ------------------------------------------------------------------------------------------------------ writing -- */

/* The tensors of a file. */
struct tensor_list {
	struct tensor_source *all;
	struct entry *entries; /* which the sources name */
	size_t count;
};

static rosa_status list_new(struct tensor_list *list, const struct parameters *parameters, const char *file,
			    rosa_error *err)
{
	const size_t most = 2 * parameters->count;

	list->count = 0;
	list->all = calloc(most + 1, sizeof(*list->all));
	list->entries = calloc(most + 1, sizeof(*list->entries));
	if (!list->all || !list->entries)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the names of %zu tensors", most);
	for (size_t i = 0; i < parameters->count; i++) {
		const struct parameter *p = &parameters->all[i];
		const size_t end = list->count + entries_of(p, file, list->entries + list->count);

		for (; list->count < end; list->count++) {
			const struct entry *entry = &list->entries[list->count];

			list->all[list->count] =
			    (struct tensor_source){entry->name, p->dims, {p->shape[0], p->shape[1]}, entry->numbers};
		}
	}
	return ROSA_OK;
}

static void list_free(struct tensor_list *list)
{
	free(list->all);
	free(list->entries);
}

static rosa_status write_list(struct checkpoint_writer *writer, const char *name, const struct tensor_list *list,
			      const char *const *metadata, struct backend *backend, rosa_error *err)
{
	struct file_writer file;
	rosa_status status = checkpoint_file_open(writer, name, &file, err);

	if (status == ROSA_OK)
		status = safetensors_write(&file, list->all, list->count, FORMAT_F32, metadata, fetch_from_backend,
					   backend, err);
	return checkpoint_file_done(writer, &file, status, err);
}

static rosa_status write_tensors(const struct snapshot *snapshot, struct checkpoint_writer *writer, const char *name,
				 rosa_error *err)
{
	static const char *const metadata[] = {"format", "pt", NULL};
	struct tensor_list list;
	rosa_status status = list_new(&list, snapshot->parameters, name, err);

	if (status == ROSA_OK)
		status = write_list(writer, name, &list, metadata, snapshot->parameters->backend, err);
	list_free(&list);
	return status;
}

/* Saves a text as a file, and frees it. */
static rosa_status write_text(struct checkpoint_writer *writer, const char *name, struct json_text *text,
			      rosa_error *err)
{
	rosa_status status;

	if (text->failed)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to write %s", name);
	else
		status = checkpoint_file_save(writer, name, text->data, text->size, err);
	json_text_free(text);
	return status;
}

/* ------------------------------------------------------------------------------------------------------ adapter -- */

static rosa_status write_adapter_config(const struct snapshot *snapshot, struct checkpoint_writer *writer,
					const char *digest, rosa_error *err)
{
	const struct model_config *config = snapshot->config;
	const struct adapter_description description = {architectures[config->architecture].name,
							snapshot->model ? snapshot->model->path.text : NULL,
							config->width,
							config->layers,
							&snapshot->options->adapter,
							writer->step,
							digest,
							snapshot->scales};
	struct json_text text = {0};

	adapter_config_write(&description, &text);
	return write_text(writer, SNAPSHOT_ADAPTER_CONFIG, &text, err);
}

static rosa_status write_adapter(const struct snapshot *snapshot, struct checkpoint_writer *writer, rosa_error *err)
{
	struct backend *backend = snapshot->parameters->backend;
	struct tensor_list list;
	char digest[SAFETENSORS_DIGEST] = "";
	rosa_status status = list_new(&list, snapshot->parameters, SNAPSHOT_ADAPTER, err);

	if (status == ROSA_OK)
		status = safetensors_digest(list.all, list.count, FORMAT_F32, fetch_from_backend, backend, digest, err);
	if (status == ROSA_OK) {
		const char *const metadata[] = {"format", "pt", "tensors", digest, NULL};

		status = write_list(writer, SNAPSHOT_ADAPTER, &list, metadata, backend, err);
	}
	if (status == ROSA_OK)
		status = write_adapter_config(snapshot, writer, digest, err);
	list_free(&list);
	return status;
}

/* ----------------------------------------------------------------------------------------------------- backbone -- */

static void write_rope(const struct model_config *c, struct json_text *text)
{
	const struct {
		const char *name;
		double value;
	} numbers[] = {{"low_freq_factor", c->rope_low},
		       {"high_freq_factor", c->rope_high},
		       {"original_max_position_embeddings", c->rope_context}};

	json_text_add(text, "  \"rope_theta\": ");
	json_text_number(text, c->rope_base);
	json_text_add(text, ",\n");
	if (c->rope_scaling == ROPE_PLAIN)
		return;
	json_text_add(text,
		      "  \"rope_scaling\": {\"rope_type\": \"%s\", \"factor\": ", rope_scaling_names[c->rope_scaling]);
	json_text_number(text, c->rope_factor);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]) && c->rope_scaling == ROPE_LLAMA3; i++) {
		json_text_add(text, ", \"%s\": ", numbers[i].name);
		json_text_number(text, numbers[i].value);
	}
	json_text_add(text, "},\n");
}

static void write_ends(const struct model_config *c, struct json_text *text)
{
	if (c->bos >= 0)
		json_text_add(text, "  \"bos_token_id\": %" PRId64 ",\n", c->bos);
	if (!c->eos_count)
		return;
	json_text_add(text, "  \"eos_token_id\": %s", c->eos_count > 1 ? "[" : "");
	for (size_t i = 0; i < c->eos_count; i++)
		json_text_add(text, "%s%" PRId64, i ? ", " : "", c->eos[i]);
	json_text_add(text, "%s,\n", c->eos_count > 1 ? "]" : "");
}

static rosa_status write_model_config(const struct snapshot *snapshot, struct checkpoint_writer *writer,
				      rosa_error *err)
{
	const struct model_config *c = snapshot->config;
	const struct architecture_info *architecture = &architectures[c->architecture];
	struct json_text text = {0};

	json_text_add(&text, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", architecture->class_name,
		      architecture->name);
	json_text_add(&text, "  \"vocab_size\": %zu,\n  \"hidden_size\": %zu,\n  \"intermediate_size\": %zu,\n",
		      c->vocabulary, c->width, c->mlp_width);
	json_text_add(&text,
		      "  \"num_hidden_layers\": %zu,\n  \"num_attention_heads\": %zu,\n"
		      "  \"num_key_value_heads\": %zu,\n  \"head_dim\": %zu,\n",
		      c->layers, c->heads, c->kv_heads, c->head_size);
	if (c->context)
		json_text_add(&text, "  \"max_position_embeddings\": %zu,\n", c->context);
	json_text_add(&text, "  \"rms_norm_eps\": ");
	json_text_float(&text, c->norm_eps);
	json_text_add(&text, ",\n");
	write_rope(c, &text);
	write_ends(c, &text);
	json_text_add(&text,
		      "  \"hidden_act\": \"silu\",\n  \"attention_bias\": %s,\n  \"mlp_bias\": false,\n"
		      "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"float32\"\n}\n",
		      architecture->qkv_biases ? "true" : "false", c->tied ? "true" : "false");
	return write_text(writer, SNAPSHOT_MODEL_CONFIG, &text, err);
}

static rosa_status copy_companion(const char *model, const char *name, struct checkpoint_writer *writer,
				  rosa_error *err)
{
	struct mapping mapping = {0};
	const struct path path = path_beside(model, name);
	rosa_status status;

	if (!path_is_file(path.text))
		return ROSA_OK;
	status = mapping_open(&mapping, path.text, err);
	if (status == ROSA_OK)
		status = checkpoint_file_save(writer, name, mapping.data, mapping.size, err);
	mapping_close(&mapping);
	return status;
}

static rosa_status copy_gguf_tokenizer(const struct gguf *gguf, struct checkpoint_writer *writer, rosa_error *err)
{
	struct file_writer file;
	rosa_status status = checkpoint_file_open(writer, SNAPSHOT_TOKENIZER, &file, err);

	if (status == ROSA_OK)
		status = tokenizer_copy(gguf, &file, err);
	return checkpoint_file_done(writer, &file, status, err);
}

/* Saves what a model needs besides its weights. */
static rosa_status copy_tokenizer(const struct checkpoint *model, struct checkpoint_writer *writer, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	if (model->is_gguf)
		return gguf_find(&model->gguf, "tokenizer.ggml.model") ? copy_gguf_tokenizer(&model->gguf, writer, err)
								       : ROSA_OK;
	for (size_t i = 0; i < sizeof(companions) / sizeof(companions[0]) && status == ROSA_OK; i++)
		status = copy_companion(model->path.text, companions[i], writer, err);
	return status;
}

static rosa_status write_backbone(const struct snapshot *snapshot, struct checkpoint_writer *writer, rosa_error *err)
{
	rosa_status status = write_tensors(snapshot, writer, SNAPSHOT_MODEL, err);

	if (status == ROSA_OK)
		status = write_model_config(snapshot, writer, err);
	if (status == ROSA_OK && snapshot->model)
		status = copy_tokenizer(snapshot->model, writer, err);
	return status;
}

rosa_status snapshot_write(const struct snapshot *snapshot, struct checkpoint_writer *writer, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	if (snapshot->options->rosa)
		status = write_adapter(snapshot, writer, err);
	if (status == ROSA_OK && snapshot->backbone)
		status = write_backbone(snapshot, writer, err);
	return status == ROSA_OK ? write_tensors(snapshot, writer, SNAPSHOT_MOMENTS, err) : status;
}

/* ------------------------------------------------------------------------------------------------------ reading -- */

static rosa_status read_tensor(const struct safetensors *file, const char *path, const struct parameter *parameter,
			       const struct entry *entry, struct backend *backend, rosa_error *err)
{
	const struct tensor *tensor = tensors_find(&file->tensors, entry->name);

	if (!tensor)
		return rosa_fail(err, ROSA_EFORMAT, "%.150s: has no %.80s; is it another model's?", path, entry->name);
	if (tensor->format != FORMAT_F32 || tensor->dims != parameter->dims ||
	    memcmp(tensor->shape, parameter->shape, (size_t)tensor->dims * sizeof(*tensor->shape)) != 0)
		return rosa_fail(err, ROSA_EFORMAT, "%.150s: %.80s has another shape; is it another model's?", path,
				 entry->name);
	backend->ops->put(backend, entry->numbers, tensor->data, tensor->bytes);
	return ROSA_OK;
}

static rosa_status read_tensors(const struct checkpoint_found *found, const char *name, struct parameters *parameters,
				rosa_error *err)
{
	const struct path path = path_join(found->path.text, name);
	struct mapping mapping = {0};
	struct safetensors file = {0};
	rosa_status status = mapping_open(&mapping, path.text, err);

	if (status == ROSA_OK)
		status = safetensors_read(mapping.data, mapping.size, path.text, &file, err);
	for (size_t i = 0; i < parameters->count && status == ROSA_OK; i++) {
		struct entry entries[2];
		const size_t count = entries_of(&parameters->all[i], name, entries);

		for (size_t j = 0; j < count && status == ROSA_OK; j++)
			status =
			    read_tensor(&file, path.text, &parameters->all[i], &entries[j], parameters->backend, err);
	}
	safetensors_free(&file);
	mapping_close(&mapping);
	return status;
}

rosa_status snapshot_read_values(const struct checkpoint_found *found, struct parameters *parameters, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	if (checkpoint_has(found, SNAPSHOT_ADAPTER))
		status = read_tensors(found, SNAPSHOT_ADAPTER, parameters, err);
	if (status == ROSA_OK && checkpoint_has(found, SNAPSHOT_MODEL))
		status = read_tensors(found, SNAPSHOT_MODEL, parameters, err);
	return status;
}

rosa_status snapshot_read_scales(const struct checkpoint_found *found, size_t layers, float *scales, rosa_error *err)
{
	struct adapter adapter = {0};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < layers; i++)
		scales[i] = 1;
	if (!checkpoint_has(found, SNAPSHOT_ADAPTER))
		return ROSA_OK;
	status = adapter_open(found->path.text, NULL, &adapter, err);
	for (size_t i = 0; i < layers && status == ROSA_OK; i++)
		if (adapter_has(&adapter, i))
			scales[i] = adapter.layers[i].scale;
	adapter_close(&adapter);
	return status;
}

rosa_status snapshot_read_moments(const struct checkpoint_found *found, struct parameters *parameters, rosa_error *err)
{
	return read_tensors(found, SNAPSHOT_MOMENTS, parameters, err);
}
