/*
 * What every description of a model must satisfy.
 *
 * The bounds are far above the sizes of real models and far below where a product of a few sizes would overflow, so no
 * other code has to check for overflow. They do not keep a hostile file from asking for much memory; that is done by
 * the rule that each tensor must be in the file, in the size that the configuration implies.
 */
#include "model/config.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

const char *const rope_scaling_names[] = {[ROPE_PLAIN] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3"};

const struct architecture_info architectures[ARCHITECTURES] = {
    [LLAMA] = {.name = "llama", .class_name = "LlamaForCausalLM", .gguf_pairs = ROTARY_NEIGHBOURS},
    [QWEN3] = {.name = "qwen3",
	       .class_name = "Qwen3ForCausalLM",
	       .head_norms = true,
	       .head_size = 128,
	       .gguf_pairs = ROTARY_HALVES},
    [QWEN2] = {.name = "qwen2", .class_name = "Qwen2ForCausalLM", .qkv_biases = true, .gguf_pairs = ROTARY_HALVES},
};

struct model_config config_blank(void)
{
	struct model_config config = {
	    .norm_eps = 1e-6f, .rope_base = 10000, .rope_scaling = ROPE_PLAIN, .rope_factor = 1, .bos = -1};

	return config;
}

rosa_status config_architecture(const char *file, const char *field, const char *name, size_t length,
				enum architecture *architecture, rosa_error *err)
{
	for (int i = 0; i < ARCHITECTURES; i++) {
		if (strlen(architectures[i].name) == length && memcmp(architectures[i].name, name, length) == 0) {
			*architecture = (enum architecture)i;
			return ROSA_OK;
		}
	}
	return rosa_fail(err, ROSA_EINVAL, "%s: %s is %.*s; supported are llama, qwen2 and qwen3", file, field,
			 (int)(length < 40 ? length : 40), name);
}

static bool has_token(const struct model_config *config, int64_t token)
{
	return token >= 0 && (uint64_t)token < config->vocabulary;
}

void config_set_bos(struct model_config *config, int64_t token)
{
	config->bos = has_token(config, token) ? token : -1;
}

void config_add_eos(struct model_config *config, int64_t token)
{
	if (!has_token(config, token) || config->eos_count == sizeof(config->eos) / sizeof(config->eos[0]))
		return;
	for (size_t i = 0; i < config->eos_count; i++) {
		if (config->eos[i] == token)
			return;
	}
	config->eos[config->eos_count++] = token;
}

static rosa_status check_sizes(const struct model_config *config, const char *file, rosa_error *err)
{
	const struct {
		const char *name;
		size_t value, least, most;
	} sizes[] = {
	    {"number of layers", config->layers, 1, 1 << 16},
	    {"width", config->width, 1, 1 << 20},
	    {"number of attention heads", config->heads, 1, 1 << 16},
	    {"number of key and value heads", config->kv_heads, 1, 1 << 16},
	    {"size of a head", config->head_size, 2, 1 << 16},
	    {"width of the feed-forward part", config->mlp_width, 1, 1 << 22},
	    {"vocabulary", config->vocabulary, 1, 1 << 28},
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
			return rosa_fail(err, ROSA_EFORMAT, "%s: the %s is %zu; it must be %zu to %zu", file,
					 sizes[i].name, sizes[i].value, sizes[i].least, sizes[i].most);
	}
	if (config->heads % config->kv_heads != 0)
		return rosa_fail(err, ROSA_EFORMAT,
				 "%s: %zu attention heads cannot share %zu key and value heads evenly", file,
				 config->heads, config->kv_heads);
	if (config->head_size % 2 != 0)
		return rosa_fail(err, ROSA_EFORMAT, "%s: the size of a head is %zu; rotary positions need it even",
				 file, config->head_size);
	return ROSA_OK;
}

/* Positive, and finite as a float too. */
static bool is_scale(double x)
{
	return x >= 1e-30 && x <= 1e30;
}

rosa_status config_check(const struct model_config *config, const char *file, rosa_error *err)
{
	rosa_status status = check_sizes(config, file, err);

	if (status != ROSA_OK)
		return status;
	if (!(config->norm_eps >= 0 && config->norm_eps < 1))
		return rosa_fail(err, ROSA_EFORMAT, "%s: the norms' epsilon is %g; it must be 0 to 1", file,
				 (double)config->norm_eps);
	if (!(config->rope_base >= 1 && is_scale(config->rope_base)))
		return rosa_fail(err, ROSA_EFORMAT, "%s: the base of rotary positions is %g; it must be 1 or more",
				 file, config->rope_base);
	if (!is_scale(config->rope_factor))
		return rosa_fail(err, ROSA_EFORMAT, "%s: the factor of rotary scaling is %g; it must be positive", file,
				 config->rope_factor);
	if (config->rope_scaling == ROPE_LLAMA3 &&
	    !(is_scale(config->rope_low) && is_scale(config->rope_high) && is_scale(config->rope_context) &&
	      config->rope_high > config->rope_low))
		return rosa_fail(
		    err, ROSA_EFORMAT,
		    "%s: rotary scaling llama3 has low_freq_factor %g, high_freq_factor %g and %g original "
		    "positions; they must be positive, and the high factor above the low one",
		    file, config->rope_low, config->rope_high, config->rope_context);
	return ROSA_OK;
}
