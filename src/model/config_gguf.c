/*
 * The shape of a model from the metadata of a GGUF file.
 *
 * Keys begin with the name of the architecture. Not every file has all of them. A size that follows from others (that
 * of a head, the number of key heads) may be missing; any other missing key is an error. Some keys are only checked:
 * those of parts that are not supported, such as experts, and those that change a computation, such as a scale of the
 * logits. They are refused unless they have their neutral value.
 *
 * In files of architecture llama the rows of q and k were reordered so that the rotation pairs neighbours; in files of
 * qwen2 and qwen3 they were left as Hugging Face has them.
 */
#include "model/config.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

struct source {
	const struct gguf *gguf;
	const char *file;
	const char *prefix; /* the architecture */
};

struct key {
	char text[96];
};

static struct key key_of(const struct source *source, const char *name)
{
	struct key key;

	snprintf(key.text, sizeof(key.text), "%s.%s", source->prefix, name);
	return key;
}

static const struct gguf_entry *find(const struct source *source, const char *name)
{
	return gguf_find(source->gguf, key_of(source, name).text);
}

static rosa_status missing(const struct source *source, const char *name, rosa_error *err)
{
	return rosa_fail(err, ROSA_EFORMAT, "%s: the metadata have no %s", source->file, key_of(source, name).text);
}

/* ------------------------------------------------------------------------------------------------------- values -- */

/* A size. Some files have one per layer: they must all be the same. *value is unchanged if the key is missing. */
static rosa_status get_size(const struct source *source, const char *name, size_t *value, rosa_error *err)
{
	const struct gguf_entry *entry = find(source, name);
	int64_t first = 0, next;

	if (!entry)
		return ROSA_OK;
	if (entry->count == 0)
		return missing(source, name, err);
	for (size_t i = 0; i < entry->count; i++) {
		if (!gguf_integer(entry, i, &next) || next < 0)
			return rosa_fail(err, ROSA_EFORMAT, "%s: %s is not a whole number, 0 or more", source->file,
					 entry->key);
		if (i > 0 && next != first)
			return rosa_fail(err, ROSA_EINVAL,
					 "%s: %s is %lld in layer 0 and %lld in layer %zu; layers that differ are not "
					 "supported",
					 source->file, entry->key, (long long)first, (long long)next, i);
		first = next;
	}
	*value = (size_t)first;
	return ROSA_OK;
}

static rosa_status get_number(const struct source *source, const char *name, double *value, rosa_error *err)
{
	const struct gguf_entry *entry = find(source, name);
	int64_t truth; /* a bool is an integer, but not a number */

	if (!entry || (entry->type != GGUF_ARRAY && gguf_number(entry, 0, value)))
		return ROSA_OK;
	if (entry->type != GGUF_BOOL || !gguf_integer(entry, 0, &truth))
		return rosa_fail(err, ROSA_EFORMAT, "%s: %s is not a number", source->file, entry->key);
	*value = (double)truth;
	return ROSA_OK;
}

/* ------------------------------------------------------------------------------------------------------- checks -- */

static rosa_status check_unsupported(const struct source *source, rosa_error *err)
{
	static const struct {
		const char *name, *what;
		double neutral[2]; /* values that change nothing */
	} keys[] = {
	    {"expert_count", "a mixture of experts", {0, 0}},
	    {"attention.sliding_window", "attention with a window of the model's own", {0, 0}},
	    {"attention.causal", "attention to later positions", {1, 1}},
	    {"attention.scale", "a scale of attention's scores", {0, 0}},
	    {"attention.clamp_kqv", "clamped attention", {0, 0}},
	    {"attention.max_alibi_bias", "positions by bias", {0, 0}},
	    {"attn_logit_softcapping", "soft-capped attention", {0, 0}},
	    {"final_logit_softcapping", "soft-capped logits", {0, 0}},
	    {"logit_scale", "a scale of the logits", {0, 1}},
	    {"residual_scale", "a scale of the residual stream", {0, 1}},
	    {"embedding_scale", "a scale of the embedding", {0, 1}},
	};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && status == ROSA_OK; i++) {
		double value = keys[i].neutral[0];
		status = get_number(source, keys[i].name, &value, err);
		if (status == ROSA_OK && value != keys[i].neutral[0] && value != keys[i].neutral[1])
			status = rosa_fail(err, ROSA_EINVAL, "%s: %s is %g: %s is not supported", source->file,
					   key_of(source, keys[i].name).text, value, keys[i].what);
	}
	return status;
}

static rosa_status check_whole(const struct source *source, rosa_error *err)
{
	const struct gguf_entry *entry = gguf_find(source->gguf, "split.count");
	int64_t pieces;

	if (!entry || !gguf_integer(entry, 0, &pieces) || pieces <= 1)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EINVAL, "%s: is one of %lld pieces; put them together with llama-gguf-split --merge",
			 source->file, (long long)pieces);
}

/* -------------------------------------------------------------------------------------------------------- parts -- */

static rosa_status read_sizes(const struct source *source, struct model_config *config, rosa_error *err)
{
	struct {
		const char *name;
		size_t *value;
		bool needed;
	} sizes[] = {
	    {"block_count", &config->layers, true},
	    {"embedding_length", &config->width, true},
	    {"feed_forward_length", &config->mlp_width, true},
	    {"attention.head_count", &config->heads, true},
	    {"attention.head_count_kv", &config->kv_heads, false},
	    {"attention.key_length", &config->head_size, false},
	    {"context_length", &config->context, false},
	    {"vocab_size", &config->vocabulary, false},
	};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && status == ROSA_OK; i++) {
		if (sizes[i].needed && !find(source, sizes[i].name))
			return missing(source, sizes[i].name, err);
		status = get_size(source, sizes[i].name, sizes[i].value, err);
	}
	return status;
}

/* What follows from other sizes where the file does not say it. */
static void fill_sizes(const struct source *source, struct model_config *config)
{
	const struct tensor *embedding = tensors_find(&source->gguf->tensors, "token_embd.weight");

	if (!find(source, "attention.head_count_kv"))
		config->kv_heads = config->heads;
	if (!find(source, "attention.key_length"))
		config->head_size = config->heads ? config->width / config->heads : 0;
	if (!find(source, "vocab_size") && embedding && embedding->dims == 2)
		config->vocabulary = embedding->shape[0];
}

/* Sizes that could differ from a head's, and must not. */
static rosa_status check_heads(const struct source *source, const struct model_config *config, rosa_error *err)
{
	static const char *const names[] = {"attention.value_length", "rope.dimension_count"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		size_t value = config->head_size;
		rosa_status status = get_size(source, names[i], &value, err);
		if (status != ROSA_OK)
			return status;
		if (value != config->head_size)
			return rosa_fail(err, ROSA_EINVAL,
					 "%s: %s is %zu; only the size of a key head, %zu, is supported", source->file,
					 key_of(source, names[i]).text, value, config->head_size);
	}
	return ROSA_OK;
}

/* The kind of scaling; a factor without a kind is linear. */
static rosa_status read_scaling_kind(const struct source *source, struct model_config *config, rosa_error *err)
{
	const struct gguf_entry *entry = find(source, "rope.scaling.type");
	struct gguf_text kind;

	config->rope_scaling = ROPE_LINEAR;
	if (!entry)
		return ROSA_OK;
	if (entry->type == GGUF_ARRAY || !gguf_string(entry, 0, &kind))
		return rosa_fail(err, ROSA_EFORMAT, "%s: %s is not a string", source->file, entry->key);
	if (kind.length == 6 && memcmp(kind.at, "linear", 6) == 0)
		return ROSA_OK;
	if (kind.length == 4 && memcmp(kind.at, "none", 4) == 0) {
		config->rope_scaling = ROPE_PLAIN;
		return ROSA_OK;
	}
	return rosa_fail(err, ROSA_EINVAL, "%s: %s is %.*s; supported are none and linear", source->file, entry->key,
			 (int)(kind.length < 40 ? kind.length : 40), kind.at);
}

static rosa_status read_rope(const struct source *source, struct model_config *config, rosa_error *err)
{
	double factor = 0;
	rosa_status status = get_number(source, "rope.freq_base", &config->rope_base, err);

	if (status == ROSA_OK)
		status = get_number(source, "rope.scale_linear", &factor, err); /* its name in old files */
	if (status == ROSA_OK)
		status = get_number(source, "rope.scaling.factor", &factor, err);
	if (status == ROSA_OK)
		status = read_scaling_kind(source, config, err);
	if (status != ROSA_OK)
		return status;
	if (factor == 0 || factor == 1 || config->rope_scaling == ROPE_PLAIN) /* 0 is written where there is none */
		config->rope_scaling = ROPE_PLAIN;
	else
		config->rope_factor = factor;
	return ROSA_OK;
}

static rosa_status read_norm(const struct source *source, struct model_config *config, rosa_error *err)
{
	double eps = 0;
	rosa_status status;

	if (!find(source, "attention.layer_norm_rms_epsilon"))
		return missing(source, "attention.layer_norm_rms_epsilon", err);
	status = get_number(source, "attention.layer_norm_rms_epsilon", &eps, err);
	config->norm_eps = (float)eps;
	return status;
}

/* Whether a token is called so. */
static bool is_called(const struct source *source, int64_t token, const char *name)
{
	const struct gguf_entry *tokens = gguf_find(source->gguf, "tokenizer.ggml.tokens");
	struct gguf_text text;

	return tokens && token >= 0 && gguf_string(tokens, (size_t)token, &text) && text.length == strlen(name) &&
	       memcmp(text.at, name, text.length) == 0;
}

/* Three tokens may end a text: that of the text, of a turn, and of a message. Files of Qwen's models have the first one
 * only as the token that texts begin with, which they do not. */
static void read_tokens(const struct source *source, struct model_config *config)
{
	static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
					   "tokenizer.ggml.eom_token_id"};
	int64_t token;

	if (gguf_integer(gguf_find(source->gguf, "tokenizer.ggml.bos_token_id"), 0, &token))
		config_set_bos(config, token);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		if (gguf_integer(gguf_find(source->gguf, ends[i]), 0, &token))
			config_add_eos(config, token);
	}
	if (is_called(source, config->bos, "<|endoftext|>"))
		config_add_eos(config, config->bos);
}

static rosa_status read_architecture(const struct gguf *gguf, const char *file, enum architecture *architecture,
				     rosa_error *err)
{
	const struct gguf_entry *entry = gguf_find(gguf, "general.architecture");
	struct gguf_text name;

	if (!entry || entry->type == GGUF_ARRAY || !gguf_string(entry, 0, &name))
		return rosa_fail(err, ROSA_EFORMAT, "%s: the metadata have no general.architecture", file);
	return config_architecture(file, "general.architecture", name.at, name.length, architecture, err);
}

rosa_status config_from_gguf(const struct gguf *gguf, const char *file, struct model_config *config, rosa_error *err)
{
	struct source source = {gguf, file, NULL};
	rosa_status status;

	*config = config_blank();
	status = read_architecture(gguf, file, &config->architecture, err);
	if (status != ROSA_OK)
		return status;
	source.prefix = architectures[config->architecture].name;
	config->rotary_pairs = architectures[config->architecture].gguf_pairs;
	config->tied = !tensors_find(&gguf->tensors, "output.weight");
	status = check_whole(&source, err);
	if (status == ROSA_OK)
		status = check_unsupported(&source, err);
	if (status == ROSA_OK)
		status = read_sizes(&source, config, err);
	fill_sizes(&source, config);
	if (status == ROSA_OK)
		status = read_norm(&source, config, err);
	if (status == ROSA_OK)
		status = read_rope(&source, config, err);
	read_tokens(&source, config);
	if (status == ROSA_OK)
		status = config_check(config, file, err);
	return status == ROSA_OK ? check_heads(&source, config, err) : status;
}
