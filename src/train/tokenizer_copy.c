/*
 * The tokenizer of a GGUF model.
 *
 * A trained backbone is saved as a Hugging Face folder. A model from a GGUF file has no tokenizer.json to go with it,
 * and the two formats describe a tokenizer differently. So the metadata about tokens is copied, byte for byte, into a
 * GGUF file of its own.
 */
#include "train/tokenizer_copy.h"

#include "base/status.h"

#include <string.h>

static bool is_wanted(const struct gguf_entry *entry)
{
	return strncmp(entry->key, "tokenizer.", 10) == 0 || strcmp(entry->key, "general.architecture") == 0;
}

static rosa_status put_number(struct file_writer *file, uint64_t number, size_t width, rosa_error *err)
{
	uint8_t bytes[8];

	for (size_t i = 0; i < width; i++)
		bytes[i] = (uint8_t)(number >> 8 * i);
	return file_write(file, bytes, width, err);
}

static rosa_status put_text(struct file_writer *file, const char *text, size_t length, rosa_error *err)
{
	rosa_status status = put_number(file, length, 8, err);

	return status == ROSA_OK ? file_write(file, text, length, err) : status;
}

static rosa_status put_entry(struct file_writer *file, const struct gguf_entry *entry, rosa_error *err)
{
	const bool array = entry->type == GGUF_ARRAY;
	const enum gguf_type type = array ? entry->element : entry->type;
	rosa_status status = put_text(file, entry->key, strlen(entry->key), err);

	if (status == ROSA_OK)
		status = put_number(file, entry->type, 4, err);
	if (status == ROSA_OK && array)
		status = put_number(file, entry->element, 4, err);
	if (status == ROSA_OK && array)
		status = put_number(file, entry->count, 8, err);
	if (type != GGUF_STRING)
		return status == ROSA_OK ? file_write(file, entry->data, entry->count * gguf_value_bytes(type), err)
					 : status;
	for (size_t i = 0; i < entry->count && status == ROSA_OK; i++)
		status = put_text(file, entry->texts[i].at, entry->texts[i].length, err);
	return status;
}

rosa_status tokenizer_copy(const struct gguf *gguf, struct file_writer *file, rosa_error *err)
{
	uint64_t wanted = 0;
	rosa_status status;

	for (size_t i = 0; i < gguf->count; i++)
		wanted += is_wanted(&gguf->entries[i]);
	status = file_write(file, "GGUF", 4, err);
	if (status == ROSA_OK)
		status = put_number(file, 3, 4, err);
	if (status == ROSA_OK)
		status = put_number(file, 0, 8, err);
	if (status == ROSA_OK)
		status = put_number(file, wanted, 8, err);
	for (size_t i = 0; i < gguf->count && status == ROSA_OK; i++)
		if (is_wanted(&gguf->entries[i]))
			status = put_entry(file, &gguf->entries[i], err);
	return status;
}
