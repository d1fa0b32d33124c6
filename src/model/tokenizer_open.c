/*
 * The tokenizer of a model, wherever it is.
 *
 * A GGUF file contains everything and is recognised by its first four bytes, whatever its name. In a Hugging Face
 * folder the tokenizer is one file and the chat template another: chat_template.jinja in newer models, a field of
 * tokenizer_config.json in older ones. A model may have no chat template; then it can only continue texts.
 */
#include "model/tokenizer_parts.h"

#include "model/checkpoint.h"
#include "model/json.h"
#include "base/mapping.h"
#include "base/paths.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------- templates -- */

static rosa_status template_from_file(tokenizer *tokenizer, const char *path, rosa_error *err)
{
	struct mapping mapping;
	rosa_status status = mapping_open(&mapping, path, err);

	if (!status)
		status = tokenizer_set_template(tokenizer, (const char *)mapping.data, mapping.size, err);
	mapping_close(&mapping);
	return status;
}

/* A string, or a list of named ones, of which the default counts. */
static struct json pick_template(struct json field)
{
	const char *name;

	for (size_t i = 0; json_kind(field) == JSON_IS_ARRAY && i < json_count(field); i++) {
		struct json entry = json_at(field, i);
		if (json_get_string(entry, "name", JSON_NEEDED, &name, NULL) == ROSA_OK && strcmp(name, "default") == 0)
			return json_find(entry, "template");
	}
	return field;
}

static rosa_status template_from_config(tokenizer *tokenizer, const char *path, rosa_error *err)
{
	struct json root = {0};
	const char *text;
	size_t size;
	rosa_status status = json_load(path, &root, err);

	if (!status) {
		struct json field = pick_template(json_find(root, "chat_template"));
		if (json_kind(field) == JSON_IS_STRING)
			status = json_as_text(field, &text, &size, err);
		if (!status && json_kind(field) == JSON_IS_STRING)
			status = tokenizer_set_template(tokenizer, text, size, err);
	}
	json_free(&root);
	return status;
}

static rosa_status find_template(tokenizer *tokenizer, const char *folder, rosa_error *err)
{
	static const struct {
		const char *name;
		rosa_status (*read)(struct tokenizer *tokenizer, const char *path, rosa_error *err);
	} places[] = {{"chat_template.jinja", template_from_file}, {"tokenizer_config.json", template_from_config}};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; !status && !tokenizer->template && i < sizeof(places) / sizeof(places[0]); i++) {
		const struct path path = path_join(folder, places[i].name);

		if (path_exists(path.text))
			status = places[i].read(tokenizer, path.text, err);
	}
	return status;
}

/* ------------------------------------------------------------------------------------------------------ opening -- */

static rosa_status open_json(const struct mapping *mapping, const char *path, tokenizer **made, rosa_error *err)
{
	const char *text = (const char *)mapping->data;
	size_t at = 0;
	rosa_status status;

	while (at < mapping->size && strchr(" \t\r\n", text[at]) && text[at])
		at++;
	if (at == mapping->size || text[at] != '{') /* an error of the JSON reader would not say what is wanted */
		return rosa_fail(err, ROSA_EFORMAT,
				 "%s: is not a GGUF file and not a tokenizer.json; name one, or a model's folder",
				 path);
	status = tokenizer_from_json(text, mapping->size, path, made, err);

	return status ? status : find_template(*made, path_folder(path).text, err);
}

static rosa_status open_gguf(const struct mapping *mapping, const char *path, tokenizer **made, rosa_error *err)
{
	struct gguf gguf = {0};
	rosa_status status = gguf_read(mapping->data, mapping->size, path, &gguf, err);

	if (!status)
		status = tokenizer_from_gguf(&gguf, path, made, err);
	gguf_free(&gguf);
	return status;
}

static rosa_status open_file(const char *path, tokenizer **made, rosa_error *err)
{
	struct mapping mapping;
	rosa_status status = mapping_open(&mapping, path, err);

	if (!status && mapping.size >= 4 && memcmp(mapping.data, "GGUF", 4) == 0)
		status = open_gguf(&mapping, path, made, err);
	else if (!status)
		status = open_json(&mapping, path, made, err);
	mapping_close(&mapping);
	if (status) {
		tokenizer_free(*made);
		*made = NULL;
	}
	return status;
}

/* The tokenizer.json of a folder, or the tokenizer.gguf of one that was trained from a GGUF file. */
static rosa_status open_in(const char *folder, tokenizer **made, rosa_error *err)
{
	static const char *const names[] = {"tokenizer.json", "tokenizer.gguf"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct path path = path_join(folder, names[i]);

		if (path_exists(path.text))
			return open_file(path.text, made, err);
	}
	return rosa_fail(err, ROSA_EIO, "%s: there is no tokenizer.json, which the model's tokenizer is read from",
			 folder);
}

rosa_status tokenizer_open(const char *path, tokenizer **made, rosa_error *err)
{
	*made = NULL;
	if (path_is_folder(path))
		return open_in(path, made, err);
	return path_ends_in(path, ".safetensors") ? open_in(path_folder(path).text, made, err)
						  : open_file(path, made, err);
}

rosa_status checkpoint_tokenizer(const struct checkpoint *checkpoint, tokenizer **made, rosa_error *err)
{
	const rosa_status status = tokenizer_open(checkpoint->path.text, made, err);
	const size_t size = status == ROSA_OK ? tokenizer_size(*made) : 0, vocabulary = checkpoint->config.vocabulary;

	if (size <= vocabulary)
		return status;
	tokenizer_free(*made);
	*made = NULL;
	return rosa_fail(err, ROSA_EFORMAT, "%s: the tokenizer has %zu tokens, the model %zu; is it another model's?",
			 checkpoint->path.text, size, vocabulary);
}
