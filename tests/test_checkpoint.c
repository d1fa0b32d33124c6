/*
 * Opening models: that what is right is read right from both kinds of files, and that each thing wrong is refused with
 * a message that names it.
 */
#include "base/file.h"
#include "support_checkpoint.h"
#include "support_test.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static bool opens(const char *path, rosa_error *err)
{
	struct checkpoint checkpoint;

	if (checkpoint_open(path, &checkpoint, err) != ROSA_OK)
		return false;
	checkpoint_close(&checkpoint);
	return true;
}

static void assert_opens(const char *path)
{
	if (!opens(path, &err))
		fail_msg("%s", err.message);
}

static void assert_refused(const char *path, const char *says)
{
	files_refused(opens, path, says);
}

static void close_checkpoint(void *checkpoint)
{
	checkpoint_close(checkpoint);
	checkpoint_close(checkpoint); /* twice does no harm */
}

static const struct checkpoint *opened(const char *path)
{
	struct checkpoint *checkpoint = test_zeros(1, sizeof(*checkpoint));

	must(checkpoint_open(path, checkpoint, &err));
	test_later(close_checkpoint, checkpoint);
	return checkpoint;
}

/* The path of a model with flaws: a GGUF file, or a folder. */
static const char *save(bool gguf, const struct flaw *flaws, size_t count)
{
	const struct files files = {.flaws = flaws, .flaw_count = count};

	if (gguf)
		files_save_gguf(&files, "model.gguf");
	else
		files_save_folder(&files, "model", 1);
	return scratch_path(gguf ? "model.gguf" : "model");
}

/* ------------------------------------------------------------------------------------------------ what is right -- */

static void check_config(const struct checkpoint *checkpoint, const struct files *files)
{
	const struct model_config *config = &checkpoint->config;

	assert_int_equal(config->architecture, files->architecture);
	assert_int_equal(config->layers, 2);
	assert_int_equal(config->width, 8);
	assert_int_equal(config->heads, 2);
	assert_int_equal(config->kv_heads, 1);
	assert_int_equal(config->head_size, 4);
	assert_int_equal(config->mlp_width, 12);
	assert_int_equal(config->vocabulary, 10);
	assert_int_equal(config->context, 64);
	assert_true(config->norm_eps == 1e-5f);
	assert_true(config->rope_base == 10000);
	assert_int_equal(config->rope_scaling, ROPE_PLAIN);
	assert_int_equal(config->tied, !files->untied);
	assert_int_equal(config->bos, 1);
	assert_int_equal(config->eos_count, 1);
	assert_int_equal(config->eos[0], 2);
	assert_int_equal(config->rotary_pairs,
			 checkpoint->is_gguf && config->architecture == LLAMA ? ROTARY_NEIGHBOURS : ROTARY_HALVES);
}

static void check_name(const struct tensor *tensor, const char *name)
{
	assert_non_null(tensor);
	assert_string_equal(tensor->name, name);
}

static void check_weights(const struct checkpoint *checkpoint, const struct files *files)
{
	const struct layer_weights *layer = &checkpoint->layers[1];
	bool gguf = checkpoint->is_gguf;

	check_name(checkpoint->embedding, gguf ? "token_embd.weight" : "model.embed_tokens.weight");
	check_name(checkpoint->norm, gguf ? "output_norm.weight" : "model.norm.weight");
	if (files->untied)
		check_name(checkpoint->head, gguf ? "output.weight" : "lm_head.weight");
	else
		assert_ptr_equal(checkpoint->head, checkpoint->embedding);
	check_name(layer->attention_norm, gguf ? "blk.1.attn_norm.weight" : "model.layers.1.input_layernorm.weight");
	check_name(layer->q, gguf ? "blk.1.attn_q.weight" : "model.layers.1.self_attn.q_proj.weight");
	check_name(layer->k, gguf ? "blk.1.attn_k.weight" : "model.layers.1.self_attn.k_proj.weight");
	check_name(layer->v, gguf ? "blk.1.attn_v.weight" : "model.layers.1.self_attn.v_proj.weight");
	check_name(layer->o, gguf ? "blk.1.attn_output.weight" : "model.layers.1.self_attn.o_proj.weight");
	check_name(layer->mlp_norm, gguf ? "blk.1.ffn_norm.weight" : "model.layers.1.post_attention_layernorm.weight");
	check_name(layer->gate, gguf ? "blk.1.ffn_gate.weight" : "model.layers.1.mlp.gate_proj.weight");
	check_name(layer->up, gguf ? "blk.1.ffn_up.weight" : "model.layers.1.mlp.up_proj.weight");
	check_name(layer->down, gguf ? "blk.1.ffn_down.weight" : "model.layers.1.mlp.down_proj.weight");
	if (files->architecture == QWEN3) {
		check_name(layer->q_norm, gguf ? "blk.1.attn_q_norm.weight" : "model.layers.1.self_attn.q_norm.weight");
		check_name(layer->k_norm, gguf ? "blk.1.attn_k_norm.weight" : "model.layers.1.self_attn.k_norm.weight");
	} else {
		assert_null(layer->q_norm);
		assert_null(layer->k_norm);
	}
	if (files->architecture == QWEN2) {
		check_name(layer->q_bias, gguf ? "blk.1.attn_q.bias" : "model.layers.1.self_attn.q_proj.bias");
		check_name(layer->k_bias, gguf ? "blk.1.attn_k.bias" : "model.layers.1.self_attn.k_proj.bias");
		check_name(layer->v_bias, gguf ? "blk.1.attn_v.bias" : "model.layers.1.self_attn.v_proj.bias");
	} else {
		assert_null(layer->q_bias);
		assert_null(layer->k_bias);
		assert_null(layer->v_bias);
	}
}

/* Opens and checks. */
static const struct checkpoint *check(const char *path, const struct files *files)
{
	/* two layers, the embedding, the last norm */
	const uint64_t layer = 8 + 64 + 32 + 32 + 64 + 8 + 3 * 96 + (files->architecture == QWEN3 ? 8 : 0) +
			       (files->architecture == QWEN2 ? 16 : 0);
	const struct checkpoint *checkpoint = opened(path);

	check_config(checkpoint, files);
	check_weights(checkpoint, files);
	assert_string_equal(checkpoint->path.text, path);
	assert_int_equal(checkpoint_parameters(checkpoint),
			 2 * layer + 80 + 8 + (files->untied || files->head_too ? 80 : 0));
	return checkpoint;
}

TEST(reads_gguf)
{
	for (int i = 0; i < 2 * ARCHITECTURES; i++) {
		struct files files = {.architecture = (enum architecture)(i / 2), .untied = i & 1};
		files_save_gguf(&files, "model.gguf");
		check(scratch_path("model.gguf"), &files);
	}
}

TEST(reads_folders)
{
	for (int i = 0; i < 4 * ARCHITECTURES; i++) {
		struct files files = {.architecture = (enum architecture)(i / 4), .untied = i & 1};
		files_save_folder(&files, "model", i & 2 ? 3 : 1);
		check(scratch_path("model"), &files);
	}
}

TEST(reads_a_file_beside_its_config)
{
	struct files files = {.untied = true};

	files_save_folder(&files, "model", 1);
	check(scratch_path("model/model.safetensors"), &files);
}

TEST(a_tied_model_may_carry_its_head)
{
	struct files files = {.head_too = true};

	files_save_folder(&files, "model", 1);
	check(scratch_path("model"), &files);
}

TEST(fingerprints_tell_models_apart)
{
	const struct flaw base = {.key = "rope.freq_base", .value = "20000.0"};
	const struct files all[] = {{0}, {0}, {.seed = 5}, {.flaws = &base, .flaw_count = 1}};
	uint64_t fingerprints[COUNT(all)];

	for (size_t i = 0; i < COUNT(all); i++) {
		const char *name[] = {"one.gguf", "same.gguf", "other.gguf", "third.gguf"};

		files_save_gguf(&all[i], name[i]);
		fingerprints[i] =
		    (i < 3 ? check(scratch_path(name[i]), &all[i]) : opened(scratch_path(name[i])))->fingerprint;
		assert_true((fingerprints[i] == fingerprints[0]) == (i < 2));
	}
}

/* Turns one bit in the middle of the largest tensor, in the file. */
static void turn_a_bit(const char *path)
{
	const struct checkpoint *checkpoint = opened(path);
	const struct tensor *tensor = checkpoint->embedding;
	const size_t place = (size_t)((const uint8_t *)tensor->data - checkpoint->mappings[0].data) + tensor->bytes / 2;
	uint8_t *data;
	size_t size;

	assert_true(tensor->bytes / 2 > 64);
	must(file_read(path, NULL, &data, &size, &err));
	data[place] ^= 1;
	must(file_save(path, data, size, NULL, &err));
	free(data);
}

TEST(checksums_see_every_bit)
{
	struct files files = {0};
	const struct checkpoint *before, *after;

	files_save_gguf(&files, "one.gguf");
	files_save_gguf(&files, "altered.gguf");
	turn_a_bit(scratch_path("altered.gguf"));
	before = opened(scratch_path("one.gguf"));
	after = opened(scratch_path("altered.gguf"));
	assert_true(before->fingerprint == after->fingerprint);
	assert_true(checkpoint_checksum(before) != checkpoint_checksum(after));
	assert_true(checkpoint_checksum(before) == checkpoint_checksum(before));
}

/* Configurations that say the same in other words, or say what does not matter. */
TEST(accepts_other_words)
{
	static const struct flaw jsons[][2] = {
	    {{.key = "use_sliding_window", .value = "false"}, {.key = "sliding_window", .value = "4096"}},
	    {{.key = "sliding_window", .value = "null"}},
	    {{.key = "layer_types", .value = "[\"full_attention\", \"full_attention\"]"}},
	    {{.key = "rope_theta"}, {.key = "rope_parameters", .value = "{\"rope_theta\": 10000.0}"}},
	    {{.key = "rope_scaling", .value = "null"}},
	    {{.key = "rope_scaling", .value = "{\"type\": \"default\"}"}},
	    {{.key = "eos_token_id", .value = "[2, 2, 99]"}},
	    {{.key = "rms_norm_eps", .value = "0.00001"}, {.key = "hidden_act"}},
	    {{.key = "mlp_bias", .value = "false"}, {.key = "partial_rotary_factor", .value = "1.0"}},
	    {{.extra = "model.layers.0.self_attn.rotary_emb.inv_freq"}},
	};
	static const struct files plain = {0};
	static const struct flaw keys[][2] = {
	    {{.key = "rope.scaling.type", .value = "\"none\""}, {.key = "rope.scaling.factor", .value = "0.0"}},
	    {{.key = "attention.key_length", .value = "4"}, {.key = "attention.value_length", .value = "4"}},
	    {{.key = "attention.head_count_kv", .value = "[1, 1]"}, {.key = "vocab_size"}},
	    {{.key = "attention.causal", .value = "true"}, {.key = "expert_count", .value = "0"}},
	    {{.key = "logit_scale", .value = "1.0"}, {.key = "attention.sliding_window", .value = "0"}},
	    {{.key = "tokenizer.ggml.eot_token_id", .value = "2"}, {.key = "split.count", .value = "1"}},
	};

	for (size_t i = 0; i < COUNT(keys); i++)
		check(save(true, keys[i], 2), &plain);
	for (size_t i = 0; i + 1 < COUNT(jsons); i++)
		check(save(false, jsons[i], 2), &plain);
	assert_opens(save(false, jsons[COUNT(jsons) - 1], 1));
}

TEST(generation_config_names_the_ends)
{
	const char *path;
	const struct checkpoint *checkpoint;

	path = save(false, NULL, 0);
	scratch_write("model/generation_config.json", "{\"eos_token_id\": [7, 3]}");
	checkpoint = opened(path);
	assert_int_equal(checkpoint->config.eos_count, 2);
	assert_int_equal(checkpoint->config.eos[0], 7);
	assert_int_equal(checkpoint->config.eos[1], 3);
	scratch_write("model/generation_config.json", "{\"eos_token_id\": \"x\"}");
	assert_refused(path, "generation_config.json: eos_token_id");
	scratch_write("model/generation_config.json", "{\"eos_token_id\": null}");
	assert_int_equal(opened(path)->config.eos_count, 1);
}

/* -------------------------------------------------------------------------------------------------- frequencies -- */

static void expect_frequencies(const char *path, float first, double second, double tolerance)
{
	float frequencies[2];

	checkpoint_frequencies(opened(path), frequencies);
	assert_true(frequencies[0] == first && fabs(frequencies[1] / second - 1) <= tolerance);
}

#define LLAMA3(original)                                                                                               \
	"\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "                  \
	"\"original_max_position_embeddings\": " original "}"

/* Texts of Qwen's models end with a token that their GGUF files have only as the one to begin with. */
TEST(end_of_text_by_name)
{
	const char *tokens[] = {"a", NULL, "<|im_end|>", "b", "c", "d", "e", "f", "g", "h"};

	for (int named = 0; named < 2; named++) {
		struct files files = {.architecture = QWEN2, .tokens = tokens};
		const struct model_config *config;

		tokens[1] = named ? "<|endoftext|>" : "<s>";
		files_save_gguf(&files, "model.gguf");
		config = &opened(scratch_path("model.gguf"))->config;
		assert_int_equal(config->bos, 1);
		assert_int_equal(config->eos_count, 1 + named);
		assert_int_equal(config->eos[0], 2);
		assert_int_equal(config->eos[named], 2 - named);
	}
}

TEST(frequencies_plain_and_linear)
{
	const struct flaw linear[] = {{.key = "rope.scaling.type", .value = "\"linear\""},
				      {.key = "rope.scaling.factor", .value = "4.0"}};
	const struct flaw old = {.key = "rope.scale_linear", .value = "4.0"};

	expect_frequencies(save(true, NULL, 0), 1.0f, 0.01f, 0);
	expect_frequencies(save(true, linear, 2), 0.25f, 0.0025f, 0);
	expect_frequencies(save(true, &old, 1), 0.25f, 0.0025f, 0);
}

TEST(frequencies_of_llama3)
{
	/* Waves of 2 pi and 200 pi = 628.3. Short is below 32/4 = 8, long above 32; with 1000, 628.3 is in between. */
	const struct flaw slow = {.key = "rope_scaling", .value = "{" LLAMA3("32")};
	const struct flaw mixed = {.key = "rope_parameters", .value = "{\"rope_theta\": 10000.0, " LLAMA3("1000")};
	const double share = (1000 / (200 * 3.14159265358979) - 1) / 3;

	expect_frequencies(save(false, &slow, 1), 1.0f, 0.00125f, 0);
	expect_frequencies(save(false, &mixed, 1), 1.0f, (1 - share) * 0.01 / 8 + share * 0.01, 1e-6);
}

TEST(frequencies_by_the_file)
{
	static const float good[2] = {1, 8}, bad[2] = {1, 0};
	const struct files right = {.rope_factors = good}, wrong = {.rope_factors = bad};
	const char *path = scratch_path("model.gguf");

	files_save_gguf(&right, "model.gguf");
	check_name(opened(path)->rope_factors, "rope_freqs.weight");
	expect_frequencies(path, 1.0f, 0.00125f, 0);
	files_save_gguf(&wrong, "model.gguf");
	assert_refused(path, "number 1 of rope_freqs.weight is 0");
}

/* ------------------------------------------------------------------------------------------------- what is wrong -- */

struct wrong {
	const char *key, *value;
	const char *says;
};

static void refuse_wrongs(bool gguf, const struct wrong *wrongs, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct flaw flaw = {.key = wrongs[i].key, .value = wrongs[i].value};

		assert_refused(save(gguf, &flaw, 1), wrongs[i].says);
	}
}

TEST(refuses_configurations)
{
	static const struct wrong wrongs[] = {
	    {"model_type", "\"mistral\"", "config.json: model_type is mistral; supported are llama, qwen2 and qwen3"},
	    {"model_type", NULL, "model_type"},
	    {"model_type", "3", "model_type"},
	    {"hidden_act", "\"gelu\"", "hidden_act: is gelu; only silu"},
	    {"attention_bias", "true", "attention_bias: is true"},
	    {"mlp_bias", "true", "mlp_bias: is true"},
	    {"sliding_window", "4096", "sliding_window: is 4096"},
	    {"layer_types", "[\"full_attention\", \"sliding_attention\"]", "sliding_attention"},
	    {"layer_types", "7", "layer_types"},
	    {"quantization_config", "{}", "quantization_config"},
	    {"rosatune", "{}", "rosatune"},
	    {"hidden_size", NULL, "hidden_size"},
	    {"hidden_size", "0", "the width is 0"},
	    {"hidden_size", "-8", "hidden_size"},
	    {"hidden_size", "1e30", "hidden_size"},
	    {"hidden_size", "18446744073709551615", "hidden_size"},
	    {"hidden_size", "9223372036854775807", "the width is 9223372036854775807"},
	    {"hidden_size", "\"8\"", "hidden_size"},
	    {"num_hidden_layers", "4000000000", "number of layers is 4000000000"},
	    {"num_hidden_layers", "3", "model.layers.2.input_layernorm.weight is missing"},
	    {"num_hidden_layers", "1", "model.layers.1."},
	    {"num_attention_heads", "0", "attention heads is 0"},
	    {"num_attention_heads", "3", "q_proj.weight has shape [8, 8]; the configuration wants [12, 8]"},
	    {"num_key_value_heads", "0", "key and value heads is 0"},
	    {"num_key_value_heads", "3", "2 attention heads cannot share 3"},
	    {"head_dim", "3", "the size of a head is 3"},
	    {"head_dim", "1000000", "size of a head is 1000000"},
	    {"intermediate_size", "13", "mlp.gate_proj.weight has shape [12, 8]; the configuration wants [13, 8]"},
	    {"vocab_size", "11", "model.embed_tokens.weight has shape [10, 8]; the configuration wants [11, 8]"},
	    {"vocab_size", "null", "vocab_size"},
	    {"rms_norm_eps", "-1", "epsilon is -1"},
	    {"rms_norm_eps", "\"a\"", "rms_norm_eps"},
	    {"rms_norm_eps", "2", "epsilon is 2"},
	    {"rope_theta", "0", "base of rotary positions is 0"},
	    {"rope_theta", "1e300", "base of rotary positions is 1e+300"},
	    {"rope_theta", "[1]", "rope_theta"},
	    {"partial_rotary_factor", "0.5", "partial_rotary_factor: is 0.5"},
	    {"rope_parameters", "{\"partial_rotary_factor\": 0.25}", "partial_rotary_factor: is 0.25"},
	    {"rope_parameters", "[]", "rope_parameters"},
	    {"rope_scaling", "{\"type\": \"yarn\", \"factor\": 4}", "rope_scaling.type: is yarn"},
	    {"rope_scaling", "{\"rope_type\": \"dynamic\"}", "rope_type: is dynamic"},
	    {"rope_scaling", "{\"rope_type\": \"linear\"}", "factor"},
	    {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 0}", "factor of rotary scaling is 0"},
	    {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": -2}", "factor of rotary scaling is -2"},
	    {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}", "low_freq_factor"},
	    {"rope_scaling",
	     "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4, "
	     "\"original_max_position_embeddings\": 32}",
	     "the high factor above the low one"},
	    {"tie_word_embeddings", "false", "lm_head.weight is missing"},
	    {"tie_word_embeddings", "1", "tie_word_embeddings"},
	    {"eos_token_id", "\"</s>\"", "eos_token_id"},
	    {"eos_token_id", "[2, null]", "eos_token_id"},
	    {"bos_token_id", "1.5", "bos_token_id"},
	};

	refuse_wrongs(false, wrongs, COUNT(wrongs));
}

TEST(refuses_metadata)
{
	static const struct wrong wrongs[] = {
	    {"general.architecture", "\"gemma\"",
	     "general.architecture is gemma; supported are llama, qwen2 and qwen3"},
	    {"general.architecture", NULL, "no general.architecture"},
	    {"general.architecture", "5", "no general.architecture"},
	    {"block_count", NULL, "no llama.block_count"},
	    {"block_count", "\"two\"", "llama.block_count is not a whole number"},
	    {"block_count", "-1", "llama.block_count is not a whole number"},
	    {"block_count", "3", "blk.2.attn_norm.weight is missing"},
	    {"block_count", "1", "blk.1.attn_k.weight has no place"},
	    {"embedding_length", "0", "the width is 0"},
	    {"attention.head_count", "[2, 1]", "llama.attention.head_count is 2 in layer 0 and 1 in layer 1"},
	    {"attention.head_count", "0", "attention heads is 0"},
	    {"attention.key_length", "6", "rope.dimension_count is 4"},
	    {"attention.value_length", "6", "llama.attention.value_length is 6"},
	    {"rope.dimension_count", "2", "llama.rope.dimension_count is 2"},
	    {"feed_forward_length", NULL, "no llama.feed_forward_length"},
	    {"vocab_size", "9", "token_embd.weight has shape [10, 8]; the configuration wants [9, 8]"},
	    {"attention.layer_norm_rms_epsilon", NULL, "no llama.attention.layer_norm_rms_epsilon"},
	    {"attention.layer_norm_rms_epsilon", "nan", "epsilon is "},
	    {"rope.freq_base", "\"big\"", "llama.rope.freq_base is not a number"},
	    {"rope.freq_base", "inf", "base of rotary positions is inf"},
	    {"rope.scaling.type", "\"yarn\"", "llama.rope.scaling.type is yarn"},
	    {"rope.scaling.type", "1", "llama.rope.scaling.type is not a string"},
	    {"rope.scaling.factor", "-1.0", "factor of rotary scaling is -1"},
	    {"expert_count", "8", "llama.expert_count is 8: a mixture of experts"},
	    {"attention.sliding_window", "32", "llama.attention.sliding_window is 32"},
	    {"attention.causal", "false", "llama.attention.causal is 0"},
	    {"logit_scale", "0.5", "llama.logit_scale is 0.5"},
	    {"split.count", "4", "is one of 4 pieces"},
	};

	refuse_wrongs(true, wrongs, COUNT(wrongs));
}

TEST(refuses_tensors)
{
	static const struct {
		struct flaw gguf, hf;
		const char *says[2];
	} wrongs[] = {
	    {{.absent = "token_embd.weight"},
	     {.absent = "model.embed_tokens.weight"},
	     {"token_embd.weight is missing", "model.embed_tokens.weight is missing"}},
	    {{.absent = "blk.1.attn_v.weight"},
	     {.absent = "model.layers.1.self_attn.v_proj.weight"},
	     {"blk.1.attn_v.weight is missing", "v_proj.weight is missing"}},
	    {{.odd = "blk.0.attn_q_norm.weight"},
	     {.odd = "model.layers.0.self_attn.q_norm.weight"},
	     {"attn_q_norm.weight has shape [5]; the configuration wants [4]", "q_norm.weight has shape [5]"}},
	    {{.odd = "output_norm.weight"},
	     {.odd = "model.norm.weight"},
	     {"output_norm.weight has shape [9]", "model.norm.weight has shape [9]"}},
	    {{.extra = "blk.0.attn_q.bias"}, /* Qwen2 has it */
	     {.extra = "model.layers.0.self_attn.q_proj.bias"},
	     {"attn_q.bias has no place in a qwen3 model", "q_proj.bias has no place in a qwen3 model"}},
	};

	for (size_t i = 0; i < COUNT(wrongs); i++) {
		struct files files = {.architecture = QWEN3, .flaws = &wrongs[i].gguf, .flaw_count = 1};
		files_save_gguf(&files, "model.gguf");
		assert_refused(scratch_path("model.gguf"), wrongs[i].says[0]);
	}
	for (size_t i = 0; i < COUNT(wrongs); i++) {
		struct files files = {.architecture = QWEN3, .flaws = &wrongs[i].hf, .flaw_count = 1};
		files_save_folder(&files, "model", 1);
		assert_refused(scratch_path("model"), wrongs[i].says[1]);
	}
}

#define INDEX "model/model.safetensors.index.json"

TEST(refuses_indexes)
{
	static const struct {
		const char *text, *says;
	} wrongs[] = {
	    {"{}", "weight_map"},
	    {"[]", "index.json"},
	    {"{\"weight_map\": []}", "weight_map"},
	    {"{\"weight_map\": {}}", "weight_map: is empty"},
	    {"{\"weight_map\": {\"a\": 1}}", "index.json"},
	    {"{\"weight_map\": {\"a\": \"../model-0.safetensors\"}}", "is not the name of a file beside the index"},
	    {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "is not the name of a file beside the index"},
	    {"{\"weight_map\": {\"a\": \"\"}}", "is not the name of a file beside the index"},
	    {"{\"weight_map\": {\"a\": \"..\"}}", "is not the name of a file beside the index"},
	    {"{\"weight_map\": {\"a\": \"x\\ny\"}}", "is not the name of a file beside the index"},
	    {"{\"weight_map\": {\"a\": \"model-9.safetensors\"}}", "model-9.safetensors: No such file"},
	    {"{\"weight_map\": {\"a\": \"model-0.safetensors\"}}", "the tensor a is said to be in model-0.safetensors"},
	    {"{\"weight_map\": {\"model.embed_tokens.weight\": \"model-0.safetensors\"}}", "is missing"},
	};
	struct files files = {0};

	files_save_folder(&files, "model", 2);
	assert_opens(scratch_path("model"));
	for (size_t i = 0; i < COUNT(wrongs); i++) {
		scratch_write(INDEX, wrongs[i].text);
		assert_refused(scratch_path("model"), wrongs[i].says);
	}
}

TEST(refuses_a_tensor_in_two_shards)
{
	struct files files = {0};

	files_save_folder(&files, "model", 2);
	assert_int_equal(link(scratch_path("model/model-0.safetensors"), scratch_path("model/model-2.safetensors")), 0);
	scratch_write(INDEX, "{\"weight_map\": {\"model.embed_tokens.weight\": \"model-0.safetensors\", "
			     "\"model.layers.0.input_layernorm.weight\": \"model-2.safetensors\"}}");
	assert_refused(scratch_path("model"), "model-2.safetensors");
}

TEST(refuses_paths)
{
	struct files files = {0};

	assert_refused(scratch_path("nothing"), "nothing: No such file");
	scratch_write("text.bin", "not a model");
	assert_refused(scratch_path("text.bin"), "text.bin: is neither a GGUF nor a .safetensors file");
	scratch_write("empty.gguf", "");
	assert_refused(scratch_path("empty.gguf"), "empty.gguf: is empty");
	scratch_write("short.gguf", "GGUF");
	assert_refused(scratch_path("short.gguf"), "short.gguf: ");
	assert_int_equal(mkdir(scratch_path("bare"), 0777), 0);
	assert_refused(scratch_path("bare"), "has no config.json");
	files_save_folder(&files, "model", 1);
	assert_int_equal(unlink(scratch_path("model/model.safetensors")), 0);
	assert_refused(scratch_path("model"), "has neither model.safetensors nor model.safetensors.index.json");
	scratch_write("model/model.safetensors", "x");
	assert_refused(scratch_path("model"), "model.safetensors: ");
	scratch_write("model/config.json", "{\"model_type\": ");
	assert_refused(scratch_path("model"), "config.json: ");
	scratch_write("model/config.json", "[]");
	assert_refused(scratch_path("model"), "config.json: ");
}

/* ------------------------------------------------------------------------------------------------------- damage -- */

/* Reading a pipe that no one writes to would wait forever. */
TEST(refuses_pipes_by_name)
{
	static const struct {
		const char *name;
		size_t shards;
	} cases[] = {{"config.json", 1},
		     {"model.safetensors", 1},
		     {"generation_config.json", 1},
		     {"model.safetensors.index.json", 2},
		     {"model-1.safetensors", 2}};
	struct files files = {.architecture = LLAMA};

	assert_int_equal(mkfifo(scratch_path("pipe.gguf"), 0600), 0);
	assert_refused(scratch_path("pipe.gguf"), "pipe.gguf: is not a regular file");
	for (size_t i = 0; i < COUNT(cases); i++) {
		char folder[16], file[64], says[96];

		snprintf(folder, sizeof(folder), "pipes%zu", i);
		snprintf(file, sizeof(file), "%s/%s", folder, cases[i].name);
		snprintf(says, sizeof(says), "%s: is not a regular file", file);
		files_save_folder(&files, folder, cases[i].shards);
		assert_opens(scratch_path(folder));
		remove(scratch_path(file));
		assert_int_equal(mkfifo(scratch_path(file), 0600), 0);
		assert_refused(scratch_path(folder), says);
	}
}

TEST(damaged_gguf_does_no_harm)
{
	struct files files = {.architecture = QWEN3};

	files_save_gguf(&files, "model.gguf");
	assert_true(files_damage(scratch_path("model.gguf"), 2600, opens, scratch_path("model.gguf")) > 2600);
	assert_opens(scratch_path("model.gguf"));
}

TEST(damaged_folders_do_no_harm)
{
	static const char *const names[] = {"model/config.json", "model/generation_config.json",
					    "model/model.safetensors.index.json", "model/model-1.safetensors"};
	struct flaw rope = {.key = "rope_scaling", .value = "{" LLAMA3("32")};
	struct files files = {.architecture = QWEN3, .untied = true, .flaws = &rope, .flaw_count = 1};

	files_save_folder(&files, "model", 2);
	scratch_write("model/generation_config.json", "{\"eos_token_id\": [7, 3]}");
	for (size_t i = 0; i < COUNT(names); i++)
		assert_true(files_damage(scratch_path(names[i]), 1400, opens, scratch_path("model")) > 10);
	assert_opens(scratch_path("model"));
}

TEST_GROUP(scratch_enter, scratch_leave)
