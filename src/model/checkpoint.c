/*
 * Opening a model.
 *
 * A path is one of three things: a folder, a GGUF file, or a safetensors file with its config.json beside it. A GGUF
 * file is recognised by its first four bytes, whatever its name. weights.c then looks up the tensors that the
 * configuration calls for; it is the same for both formats.
 *
 * Only headers are read, so a model of any size opens in milliseconds. The weights are mapped into memory and read from
 * disk when they are used.
 */
#include "model/checkpoint.h"

#include "base/checksum.h"
#include "base/paths.h"
#include "base/status.h"
#include "model/config.h"
#include "model/shards.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------------------- fingerprint -- */

/* The first bytes of each tensor tell apart models that were trained apart, and are quick to read. */
#define FINGERPRINT_BYTES ((size_t)64)

static void add_tensor(struct checksum *sum, const struct tensor *tensor, size_t most)
{
	const uint64_t format = (uint64_t)tensor->format;

	checksum_add(sum, tensor->name, strlen(tensor->name) + 1);
	checksum_add(sum, &format, sizeof(format));
	checksum_add(sum, tensor->shape, (size_t)tensor->dims * sizeof(*tensor->shape));
	checksum_add(sum, tensor->data, tensor->bytes < most ? tensor->bytes : most);
}

/* Of the configuration and at most so many bytes of each tensor. */
static uint64_t fingerprint(const struct checkpoint *checkpoint, size_t most)
{
	const struct model_config *config = &checkpoint->config;
	const uint64_t numbers[] = {config->architecture, config->layers,        config->width,
				    config->heads,        config->kv_heads,      config->head_size,
				    config->mlp_width,    config->vocabulary,    config->rope_scaling,
				    config->rotary_pairs, (uint64_t)config->tied};
	const double reals[] = {config->norm_eps, config->rope_base, config->rope_factor,
				config->rope_low, config->rope_high, config->rope_context};
	struct checksum sum;

	checksum_begin(&sum, 0);
	checksum_add(&sum, numbers, sizeof(numbers));
	checksum_add(&sum, reals, sizeof(reals));
	for (size_t i = 0; i < checkpoint->tensors.count; i++)
		add_tensor(&sum, &checkpoint->tensors.all[i], most);
	return checksum_value(&sum);
}

uint64_t checkpoint_checksum(const struct checkpoint *checkpoint)
{
	return fingerprint(checkpoint, SIZE_MAX);
}

uint64_t checkpoint_parameters(const struct checkpoint *checkpoint)
{
	uint64_t count = 0;

	for (size_t i = 0; i < checkpoint->tensors.count; i++)
		count += tensor_numbers(&checkpoint->tensors.all[i]);
	return count;
}

/* -------------------------------------------------------------------------------------------------------- kinds -- */

static rosa_status open_gguf(struct checkpoint *checkpoint, struct mapping *mapping, rosa_error *err)
{
	const struct tensors *part = &checkpoint->gguf.tensors;
	rosa_status status = shards_make_room(checkpoint, 1, err);

	if (status != ROSA_OK)
		return status;
	checkpoint->is_gguf = true;
	checkpoint->mappings[0] = *mapping;
	*mapping = (struct mapping){NULL, 0};
	checkpoint->files[0] = checkpoint->path;
	status = gguf_read(checkpoint->mappings[0].data, checkpoint->mappings[0].size, checkpoint->files[0].text,
			   &checkpoint->gguf, err);
	if (status == ROSA_OK)
		status = config_from_gguf(&checkpoint->gguf, checkpoint->files[0].text, &checkpoint->config, err);
	return status == ROSA_OK ? tensors_join(&part, 1, &checkpoint->tensors, err) : status;
}

static rosa_status open_beside_config(struct checkpoint *checkpoint, rosa_error *err)
{
	rosa_status status = config_from_folder(path_folder(checkpoint->path.text).text, &checkpoint->config, err);

	return status == ROSA_OK ? shards_open_file(checkpoint, checkpoint->path.text, err) : status;
}

static rosa_status open_folder(struct checkpoint *checkpoint, rosa_error *err)
{
	rosa_status status;

	if (!path_exists(path_join(checkpoint->path.text, "config.json").text))
		return rosa_fail(err, ROSA_EIO, "%s: has no config.json; a GGUF file is named itself, not its folder",
				 checkpoint->path.text);
	status = config_from_folder(checkpoint->path.text, &checkpoint->config, err);
	return status == ROSA_OK ? shards_open_folder(checkpoint, checkpoint->path.text, err) : status;
}

static rosa_status open_kind(struct checkpoint *checkpoint, rosa_error *err)
{
	struct mapping mapping = {NULL, 0};
	rosa_status status;

	if (path_is_folder(checkpoint->path.text))
		return open_folder(checkpoint, err);
	status = mapping_open(&mapping, checkpoint->path.text, err);
	if (status != ROSA_OK)
		return status;
	if (mapping.size >= 4 && memcmp(mapping.data, "GGUF", 4) == 0)
		status = open_gguf(checkpoint, &mapping, err);
	else if (path_ends_in(checkpoint->path.text, ".safetensors"))
		status = open_beside_config(checkpoint, err);
	else
		status = rosa_fail(err, ROSA_EFORMAT,
				   "%s: is neither a GGUF nor a .safetensors file; name one, or a model's folder",
				   checkpoint->path.text);
	mapping_close(&mapping);
	return status;
}

rosa_status checkpoint_open(const char *path, struct checkpoint *checkpoint, rosa_error *err)
{
	rosa_status status;

	memset(checkpoint, 0, sizeof(*checkpoint));
	checkpoint->path = path_of(path);
	status = open_kind(checkpoint, err);
	if (status == ROSA_OK)
		status = weights_bind(checkpoint, err);
	if (status == ROSA_OK)
		checkpoint->fingerprint = fingerprint(checkpoint, FINGERPRINT_BYTES);
	else
		checkpoint_close(checkpoint);
	return status;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
	free(checkpoint->layers);
	tensors_free(&checkpoint->tensors);
	gguf_free(&checkpoint->gguf);
	for (size_t i = 0; i < checkpoint->files_count; i++) {
		safetensors_free(&checkpoint->shards[i]);
		mapping_close(&checkpoint->mappings[i]);
	}
	free(checkpoint->shards);
	free(checkpoint->mappings);
	free(checkpoint->files);
	memset(checkpoint, 0, sizeof(*checkpoint));
}
