/*
 * Adapter folders: read as the Python package writes them, refused where they are torn, damaged, of a later version or
 * made for another model.
 */
#include "support_checkpoint.h"
#include "support_test.h"

#include "model/adapter.h"

#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------------- folders -- */

/* The model is that of support_checkpoint.h: 2 layers of width 8. */
struct folder {
	const char *source;      /* of format 2; NULL: format 1 */
	size_t chain;            /* of format 2 */
	bool gain, gate;         /* likewise */
	bool pre, shared, brain; /* brain: bfloat16 */
	size_t first;            /* the first layer that has an adapter */
	const char *digest;      /* of the tensors' file; NULL: as in the configuration */
	const char *seen;        /* the rank of its seen-token head, whose tensors have rank 3; NULL: neither */
	const char *key, *value; /* one line of the configuration that is other; value NULL: missing */
	const char *absent, *odd, *extra;
};

struct line {
	const char *key, *value;
};

static void put_lines(struct bytes *text, const struct folder *folder, const struct line *lines, size_t count)
{
	bool first = true;

	for (size_t i = 0; i < count; i++) {
		bool other = folder->key && strcmp(lines[i].key, folder->key) == 0;
		const char *value = other ? folder->value : lines[i].value;
		char line[512];

		if (!value)
			continue;
		snprintf(line, sizeof(line), "%s\"%s\": %s", first ? "" : ", ", lines[i].key, value);
		bytes_words(text, line);
		first = false;
	}
}

static void save_config(const struct folder *folder)
{
	char source[64], chain[24];
	const bool two = folder->source != NULL;
	const struct line head[] = {{"format", two ? "2" : "1"},       {"scales", two ? "[0.5, 3]" : NULL},
				    {"rosatune_version", "\"0.1.0\""}, {"tensors", "\"0123abcd\""},
				    {"base_model_name_or_path", NULL}, {"steps", NULL}};
	const struct line base[] = {
	    {"model_type", "\"llama\""}, {"hidden_size", "8"}, {"num_hidden_layers", "2"}, {"heads", NULL}};
	const struct line options[] = {
	    {"window", "16"},
	    {"sinks", "2"},
	    {"bits", "4"},
	    {"fusion", folder->pre ? "\"pre\"" : "\"post\""},
	    {"layers", folder->first ? "[1]" : "[0, 1]"},
	    {"first_global_layers", folder->first ? "1" : "0"},
	    {"qk", folder->shared ? "\"shared\"" : "\"aligned\""},
	    {"e_start", "0.0"},
	    {"policy", "\"readable\""},
	    {"fold", "true"},
	    {"max_match", "null"},
	    {"qk_grad", "\"linear\""},
	    {"slope", "1.0"},
	    {"temperature", NULL},
	    {"source", two ? source : NULL},
	    {"chain", two ? chain : NULL},
	    {"gain", two ? (folder->gain ? "true" : "false") : NULL},
	    {"gate", two ? (folder->gate ? "true" : "false") : NULL},
	    {"delay", NULL},
	    {"seen", folder->seen},
	};
	struct bytes text = {0};

	snprintf(source, sizeof(source), "\"%s\"", two ? folder->source : "");
	snprintf(chain, sizeof(chain), "%zu", folder->chain);
	bytes_words(&text, "{");
	put_lines(&text, folder, head, COUNT(head));
	bytes_words(&text, ", \"base_model\": {");
	put_lines(&text, folder, base, COUNT(base));
	bytes_words(&text, "}, \"options\": {");
	put_lines(&text, folder, options, COUNT(options));
	bytes_words(&text, "}}");
	bytes_save(&text, scratch_path("adapter/adapter_config.json"));
}

static void add(struct weights_writer *writer, const struct folder *folder, const char *name, size_t rows,
		size_t columns, uint64_t *state)
{
	const size_t shape[2] = {rows + (folder->odd && strcmp(folder->odd, name) == 0), columns};

	if (!folder->absent || strcmp(folder->absent, name) != 0)
		weights_add_random(writer, name, folder->brain ? FORMAT_BF16 : FORMAT_F32, columns ? 2 : 1, shape,
				   state, 0, 0.5);
}

/* The sources of a folder of format 2 here: some of tokens, embeddings and layer 1. 8 channels of 4 bits are 2 routes.
 */
static bool has_source(const struct folder *folder, const char *word)
{
	return folder->source && strstr(folder->source, word);
}

static size_t links_of(const struct folder *folder, size_t layer)
{
	return folder->source
		   ? folder->chain * (size_t)(has_source(folder, "tokens") + has_source(folder, "embed")) +
			 (has_source(folder, "layer 1") && layer == 1 ? folder->shared ? folder->chain : 1 : 0)
		   : 1;
}

static size_t gain_rows_of(const struct folder *folder, size_t layer)
{
	return folder->chain * (size_t)(has_source(folder, "tokens") + 2 * has_source(folder, "embed")) +
	       (has_source(folder, "layer 1") && layer == 1 ? 2 * (folder->shared ? folder->chain : 1) : 0);
}

static void save_tensors(const struct folder *folder)
{
	struct weights_writer *writer = weights_new(WEIGHTS_SAFETENSORS);
	uint64_t state = 1;

	weights_set_string(writer, "format", "pt");
	weights_set_string(writer, "tensors", folder->digest ? folder->digest : "0123abcd");
	for (size_t layer = folder->first; layer < 2; layer++) {
		const size_t links = links_of(folder, layer), rows = links > 1 ? links : 8, columns = links > 1 ? 8 : 0;
		const bool qk = !folder->source || (has_source(folder, "layer 1") && layer == 1);
		const struct {
			const char *name;
			size_t rows, columns;
			bool there;
		} parts[] = {
		    {"k_proj.weight", 8, 8, qk},         {"v_proj.weight", 8, 8, true},
		    {"out_proj.weight", 8, 8, true},     {"e0", rows, columns, true},
		    {"e1", rows, columns, true},         {"q_proj.weight", 8, 8, qk && !folder->shared},
		    {"a0", 8, 0, folder->pre},           {"gain", gain_rows_of(folder, layer), 10, folder->gain},
		    {"gate.weight", 8, 0, folder->gate}, {"gate.bias", 1, 0, folder->gate},
		};

		for (size_t i = 0; i < COUNT(parts); i++) {
			char name[64];

			snprintf(name, sizeof(name), "layers.%zu.%s", layer, parts[i].name);
			if (parts[i].there)
				add(writer, folder, name, parts[i].rows, parts[i].columns, &state);
		}
	}
	for (size_t i = 0; folder->seen && i < 4; i++) {
		static const char *const names[] = {"seen.table", "seen.gate", "seen.query", "seen.key"};

		add(writer, folder, names[i], i == 0 ? 4 : i == 1 ? 8 : 3, i == 0 ? 15 : i == 1 ? 0 : 8, &state);
	}
	if (folder->extra)
		add(writer, folder, folder->extra, 8, 0, &state);
	weights_save(writer, scratch_path("adapter/adapter_model.safetensors"));
}

static void save(const struct folder *folder)
{
	need_json();
	mkdir(scratch_path("adapter"), 0777);
	save_config(folder);
	save_tensors(folder);
}

/* ------------------------------------------------------------------------------------------------------ opening -- */

static struct checkpoint model;

static bool opens(const char *path, rosa_error *err)
{
	struct adapter adapter;

	if (adapter_open(path, &model, &adapter, err) != ROSA_OK)
		return false;
	adapter_close(&adapter);
	return true;
}

static void assert_refused(const char *says)
{
	files_refused(opens, scratch_path("adapter"), says);
}

static void close_adapter(void *adapter)
{
	adapter_close(adapter);
	adapter_close(adapter); /* twice does no harm */
}

static const struct adapter *opened(const char *path, const struct checkpoint *its)
{
	struct adapter *adapter = test_zeros(1, sizeof(*adapter));

	must(adapter_open(path, its, adapter, &err));
	test_later(close_adapter, adapter);
	return adapter;
}

/* The adapter of a folder that is made for it. */
static const struct adapter *saved(const struct folder *folder)
{
	save(folder);
	return opened(scratch_path("adapter"), &model);
}

/* ------------------------------------------------------------------------------------------------ what is right -- */

static void check(const struct folder *folder, const struct adapter *adapter)
{
	size_t layers = 2 - folder->first, a_layer = (folder->shared ? 3 : 4) * 64 + 16 + (folder->pre ? 8 : 0);

	assert_int_equal(adapter->options.bits, 4);
	assert_int_equal(adapter->options.fusion, folder->pre ? ROSA_PRE : ROSA_POST);
	assert_int_equal(adapter->options.policy, ROSA_READABLE);
	assert_true(adapter->options.fold);
	assert_int_equal(adapter->options.max_match, 0);
	assert_int_equal(adapter->options.window, 16);
	assert_int_equal(adapter->options.sinks, 2);
	assert_int_equal(adapter->options.first_global_layers, folder->first);
	assert_int_equal(adapter->layer_count, 2);
	assert_int_equal(adapter->parameters, layers * a_layer);
	for (size_t i = 0; i < 2; i++) {
		const struct adapter_layer *layer = &adapter->layers[i];
		if (i < folder->first) {
			assert_null(layer->k);
			assert_null(layer->e0);
			continue;
		}
		assert_string_equal(layer->v->name, i ? "layers.1.v_proj.weight" : "layers.0.v_proj.weight");
		assert_string_equal(layer->e1->name, i ? "layers.1.e1" : "layers.0.e1");
		assert_int_equal(layer->out->format, folder->brain ? FORMAT_BF16 : FORMAT_F32);
		assert_int_equal(layer->q == layer->k, folder->shared);
		assert_int_equal(layer->a0 != NULL, folder->pre);
	}
}

TEST(reads_all_kinds)
{
	for (int i = 0; i < 16; i++) {
		struct folder folder = {.pre = i & 1, .shared = i & 2, .first = i & 4 ? 1 : 0, .brain = i & 8};
		const struct adapter *adapter = saved(&folder);

		check(&folder, adapter);
	}
}

/* Folders of format 2: every tensor that the options call for, and no other. */
TEST(reads_format_2)
{
	static const char *const sources[] = {"tokens", "embeddings", "tokens+embeddings", "tokens+layer 1"};

	for (size_t i = 0; i < COUNT(sources); i++) {
		for (int kind = 0; kind < 16; kind++) {
			const struct folder folder = {.source = sources[i],
						      .chain = kind & 1 ? 4 : 1,
						      .gain = kind & 2,
						      .gate = kind & 4,
						      .shared = kind & 8,
						      .pre = kind & 8};
			const struct adapter *adapter = saved(&folder);

			assert_int_equal(adapter->format, 2);
			for (size_t l = 0; l < 2; l++) {
				const struct adapter_layer *layer = &adapter->layers[l];

				assert_true(adapter_has(adapter, l));
				assert_true(layer->scale == (l ? 3.0f : 0.5f));
				assert_int_equal(tensor_numbers(layer->e0), 8 * links_of(&folder, l));
				assert_int_equal(layer->gain != NULL, folder.gain);
				assert_int_equal(layer->gate != NULL && layer->bias != NULL, folder.gate);
				assert_int_equal(layer->k != NULL, i == 3 && l == 1);
				assert_int_equal(layer->q != NULL, i == 3 && l == 1);
				assert_int_equal(layer->q == layer->k, folder.shared || !(i == 3 && l == 1));
			}
		}
	}
}

TEST(reads_a_head_of_tokens_seen)
{
	for (int brain = 0; brain < 2; brain++) {
		const struct folder folder = {.source = "tokens", .chain = 1, .seen = "3", .brain = brain};
		struct folder without = folder;
		const struct adapter *adapter = saved(&folder);

		assert_int_equal(adapter->options.seen, 3);
		assert_string_equal(adapter->seen.table->name, "seen.table");
		assert_string_equal(adapter->seen.gate->name, "seen.gate");
		assert_string_equal(adapter->seen.query->name, "seen.query");
		assert_string_equal(adapter->seen.key->name, "seen.key");
		assert_int_equal(adapter->parameters, 2 * (64 + 64 + 16) + 60 + 8 + 24 + 24);
		without.seen = NULL;
		adapter = saved(&without);
		assert_true(adapter->options.seen == 0 && !adapter->seen.table);
	}
}

TEST(refuses_another_head_of_tokens_seen)
{
	const struct {
		const char *seen, *absent, *odd, *says;
	} cases[] = {
	    {"9", NULL, NULL, "adapter_config.json: options.seen: is 9; it is at most the model's width, 8"},
	    {"4", NULL, NULL, "the tensor seen.query has shape [3, 8]; the configuration wants [4, 8]"},
	    {"0", NULL, NULL, "has no place"},
	    {"-1", NULL, NULL, "options.seen"},
	    {"2.5", NULL, NULL, "options.seen"},
	    {"3", "seen.table", NULL, "seen.table is missing"},
	    {"3", "seen.gate", NULL, "seen.gate is missing"},
	    {"3", "seen.query", NULL, "seen.query is missing"},
	    {"3", "seen.key", NULL, "seen.key is missing"},
	    {"3", NULL, "seen.table", "seen.table has shape [5, 15]"},
	    {"3", NULL, "seen.gate", "seen.gate has shape [9]"},
	    {"3", NULL, "seen.query", "seen.query has shape [4, 8]"},
	    {"3", NULL, "seen.key", "seen.key has shape [4, 8]"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct folder folder = {.source = "tokens",
					      .chain = 1,
					      .seen = cases[i].seen,
					      .absent = cases[i].absent,
					      .odd = cases[i].odd};

		save(&folder);
		assert_refused(cases[i].says);
	}
}

/* A file of format 1 means what it meant before there were sources. */
TEST(format_1_is_the_paper)
{
	const struct folder folder = {.key = "sinks", .value = NULL};
	const struct adapter *adapter = saved(&folder);

	assert_int_equal(adapter->format, 1);
	assert_int_equal(adapter->options.source.count, 1);
	assert_int_equal(adapter->options.source.all[0].kind, SOURCE_OWN);
	assert_int_equal(adapter->options.delay, 0);
	assert_int_equal(adapter->options.chain, 1);
	assert_int_equal(adapter->options.sinks, 0);
	assert_false(adapter->options.gain || adapter->options.gate || adapter->options.units > 0);
	assert_int_equal(adapter->options.v_start, V_XAVIER);
	assert_int_equal(adapter->options.learning.v_grad, ROSA_V_SIGMOID);
	assert_true(adapter->layers[0].scale == 1);
}

TEST(reads_options)
{
	static const struct line lines[] = {{"policy", "\"inclusive\""},
					    {"fold", "false"},
					    {"max_match", "7"},
					    {"sinks", NULL},
					    {"policy", NULL},
					    {"fold", NULL},
					    {"slope", "3"},
					    {"qk", NULL}};

	for (size_t i = 0; i < COUNT(lines); i++) {
		struct folder folder = {.key = lines[i].key, .value = lines[i].value};
		const struct adapter *adapter = saved(&folder);

		assert_int_equal(adapter->options.policy, i == 0 ? ROSA_INCLUSIVE : ROSA_READABLE);
		assert_int_equal(adapter->options.fold, i != 1);
		assert_int_equal(adapter->options.max_match, i == 2 ? 7 : 0);
		assert_int_equal(adapter->options.sinks, i == 3 ? 0 : 2);
	}
}

/* Without a model its own shape counts. */
TEST(opens_without_a_model)
{
	struct folder folder = {0};
	struct adapter none;

	save(&folder);
	const struct adapter *adapter = opened(scratch_path("adapter"), NULL);

	assert_int_equal(adapter->width, 8);
	assert_int_equal(adapter->layer_count, 2);
	assert_string_equal(adapter->model_type, "llama");
	assert_null(adapter->base_name);
	folder = (struct folder){.key = "num_hidden_layers", .value = "0"};
	save(&folder);
	assert_int_not_equal(adapter_open(scratch_path("adapter"), NULL, &none, &err), ROSA_OK);
	must_say("num_hidden_layers: is 0; it must be 1 to");
}

/* A run's folder means its final adapter, or its newest checkpoint where that is newer. */
TEST(finds_adapters_of_runs)
{
	static const struct {
		const char *folder, *steps, *found; /* made one after the other */
	} turns[] = {
	    {"run/checkpoints/step-00000009", "9", "run/checkpoints/step-00000009"},
	    {"run/checkpoints/step-00000100", "100", "run/checkpoints/step-00000100"},
	    {"run/checkpoints/step-00000020.part", "20", "run/checkpoints/step-00000100"},
	    {"run/final", "100", "run/final"},
	    {"run/checkpoints/step-00000101", "101", "run/checkpoints/step-00000101"},
	    {"run", "1", "run"},
	};

	mkdir(scratch_path("run"), 0777);
	mkdir(scratch_path("run/checkpoints"), 0777);
	mkdir(scratch_path("run/checkpoints/step-00000500"), 0777); /* without an adapter */
	assert_false(opens(scratch_path("run"), &err));
	must_say("run: has no adapter_config.json");
	for (size_t i = 0; i < COUNT(turns); i++) {
		const struct folder folder = {.key = "steps", .value = turns[i].steps};
		char from[512], to[512];

		save(&folder);
		mkdir(scratch_path(turns[i].folder), 0777);
		for (int file = 0; file < 2; file++) {
			const char *name = file ? ADAPTER_CONFIG : ADAPTER_TENSORS;

			snprintf(from, sizeof(from), "%s/%s", scratch_path("adapter"), name);
			snprintf(to, sizeof(to), "%s/%s", scratch_path(turns[i].folder), name);
			assert_int_equal(rename(from, to), 0);
		}
		assert_string_equal(opened(scratch_path("run"), &model)->path.text, scratch_path(turns[i].found));
	}
}

/* Which models an adapter was trained with, by name. */
TEST(knows_its_model)
{
	static const struct {
		const char *trained, *model;
		bool others;
	} names[] = {
	    {"HuggingFaceTB/SmolLM2-135M-Instruct", "models/SmolLM2-135M-Instruct.Q4_1.gguf", false},
	    {"models/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct", false},
	    {"HuggingFaceTB/SmolLM2-135M-Instruct",
	     "/home/x/.cache/hub/models--HuggingFaceTB--SmolLM2-135M-Instruct/snapshots/12fd25f77366/", false},
	    {"smollm2_135m_instruct", "SmolLM2-135M-Instruct/", false},
	    {"HuggingFaceTB/SmolLM2-135M", "other/Llama-135M", true},
	    {"Qwen/Qwen3-0.6B", "models/Qwen3-1.7B", true},
	    {"Qwen/Qwen3-0.6B", "adapter/here", false}, /* its own folder: a trained backbone */
	    {NULL, "anything", false},
	};

	for (size_t i = 0; i < COUNT(names); i++) {
		const struct adapter adapter = {.path = path_of("adapter/here"),
						.base_name = (char *)(uintptr_t)names[i].trained};
		char text[256] = "";

		if (adapter_notice(&adapter, names[i].model, text, sizeof(text)) != names[i].others)
			fail_msg("%s beside %s", names[i].trained, names[i].model);
		assert_true(!names[i].others || (strstr(text, names[i].trained) && strstr(text, names[i].model)));
	}
}

TEST(reads_its_origin)
{
	const struct folder folder = {.key = "base_model_name_or_path", .value = "\"Qwen/Qwen3-0.6B\""};
	const struct adapter *adapter = saved(&folder);

	assert_string_equal(adapter->base_name, "Qwen/Qwen3-0.6B");
	assert_int_equal(adapter->steps, 0);
}

/* ------------------------------------------------------------------------------------------------- what is wrong -- */

TEST(refuses_other_adapters)
{
	struct folder folder = {0};

	save(&folder);
	scratch_write("adapter/adapter_config.json",
		      "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"m\", \"r\": 8}");
	assert_refused("adapter_config.json: peft_type: this is a PEFT adapter (LORA), which is not read here");
}

TEST(refuses_configurations)
{
	static const struct {
		const char *key, *value, *says;
	} wrongs[] = {
	    {"format", NULL, "format"},
	    {"format", "\"1\"", "format"},
	    {"format", "0", "format: is 0"},
	    {"format", "3", "format: is 3, written by rosatune 0.1.0; this is rosatune"},
	    {"model_type", "\"qwen3\"", "base_model.model_type: the adapter was trained for a qwen3 model"},
	    {"model_type", NULL, "model_type"},
	    {"hidden_size", "16",
	     "base_model.hidden_size: the adapter was trained for a model with 16, this one has 8"},
	    {"num_hidden_layers", "3", "num_hidden_layers: the adapter was trained for a model with 3"},
	    {"heads", "4", "base_model: has heads"},
	    {"temperature", "1", "options.temperature: is not a known key; was it written by a later version?"},
	    {"bits", NULL, "bits"},
	    {"bits", "0", "options.bits: is 0; it must be a whole number from 1 to 16"},
	    {"bits", "17", "options.bits: is 17"},
	    {"bits", "3", "options.bits: is 3, of which the model's width 8 is no multiple"},
	    {"bits", "true", "bits"},
	    {"fusion", "\"mid\"", "options.fusion: is mid"},
	    {"fusion", "\"pre\"", "layers.0.a0 is missing"},
	    {"policy", "\"greedy\"", "options.policy: is greedy"},
	    {"qk", "\"none\"", "options.qk: is none"},
	    {"qk", "\"shared\"", "layers.0.q_proj.weight has no place"},
	    {"fold", "1", "fold"},
	    {"max_match", "-1", "max_match"},
	    {"max_match", "4294967296", "max_match: is 4294967296"},
	    {"window", NULL, "window"},
	    {"window", "99999999999", "window: is 99999999999"},
	    {"first_global_layers", "3", "first_global_layers: is 3"},
	    {"first_global_layers", "1", "options.layers: names layer 0, which first_global_layers (1) leaves without"},
	    {"layers", NULL, "options: has no layers"},
	    {"layers", "\"some\"", "options.layers: is some; give all, or numbers of layers such as 0,3,6"},
	    {"layers", "0", "options.layers: must be \"all\", or a list of layers such as [0, 3, 6]"},
	    {"layers", "[0, 2]", "options.layers: names layer 2; the model has layers 0 to 1"},
	    {"layers", "[0, 0]", "options.layers: names layer 0 twice"},
	    {"layers", "[-1]", "options.layers: has an entry that is no number of a layer"},
	    {"layers", "[0.5]", "no number of a layer"},
	    {"layers", "[true]", "no number of a layer"},
	    {"layers", "[0]", "layers.1."},
	    {"tensors", "\"feed\"",
	     "belongs to another adapter_config.json (its digest is 0123abcd, the one named there feed"},
	    {"tensors", NULL, "tensors"},
	    {"tensors", "4", "tensors"},
	};

	for (size_t i = 0; i < COUNT(wrongs); i++) {
		struct folder folder = {.key = wrongs[i].key, .value = wrongs[i].value};
		save(&folder);
		assert_refused(wrongs[i].says);
	}
}

TEST(refuses_tensors)
{
	static const struct {
		struct folder folder;
		const char *says;
	} wrongs[] = {
	    {{.digest = "feed"}, "its digest is feed"},
	    {{.absent = "layers.1.e0"}, "the tensor layers.1.e0 is missing"},
	    {{.absent = "layers.0.q_proj.weight"}, "the tensor layers.0.q_proj.weight is missing"},
	    {{.odd = "layers.1.out_proj.weight"},
	     "layers.1.out_proj.weight has shape [9, 8]; the configuration wants [8, 8]"},
	    {{.odd = "layers.0.e1"}, "layers.0.e1 has shape [9]"},
	    {{.extra = "layers.0.bias"}, "the tensor layers.0.bias has no place in this adapter"},
	    {{.extra = "layers.0.a0"}, "the tensor layers.0.a0 has no place in this adapter"},
	    {{.source = "tokens", .chain = 4, .odd = "layers.0.e0"}, "layers.0.e0 has shape [5, 8]"},
	    {{.source = "tokens", .chain = 4, .gain = true, .odd = "layers.0.gain"}, "layers.0.gain has shape [5, 10]"},
	    {{.source = "tokens", .chain = 1, .gate = true, .absent = "layers.1.gate.bias"},
	     "the tensor layers.1.gate.bias is missing"},
	    {{.source = "tokens", .chain = 1, .extra = "layers.1.gate.bias"},
	     "the tensor layers.1.gate.bias has no place"},
	    {{.source = "tokens", .chain = 1, .extra = "layers.0.k_proj.weight"},
	     "the tensor layers.0.k_proj.weight has no place"},
	    {{.source = "layer 1", .chain = 1}, "options.layers: names layer 0, which has nothing to read"},
	    {{.source = "layer 2", .chain = 1}, "options.source: is layer 2; the model has layers 0 to 1"},
	    {{.source = "tokens", .chain = 17}, "options.chain: is 17; it must be a whole number from 1 to 16"},
	    {{.source = "tokens", .chain = 1, .key = "delay", .value = "3"},
	     "options.delay: is 3 beside a window of 16"},
	    {{.source = "tokens", .chain = 1, .key = "scales", .value = "[1]"}, "scales: has 1 numbers"},
	    {{.source = "tokens", .chain = 1, .key = "scales"}, "has no scales, which options.units (0.3) needs"},
	    {{.source = "tokens", .chain = 1, .key = "scales", .value = "[1, 0]"}, "scales[1]: is 0; it must be above"},
	    {{.source = "tokens", .chain = 1, .key = "scales", .value = "[1, true]"}, "scales[1]"},
	};

	for (size_t i = 0; i < COUNT(wrongs); i++) {
		save(&wrongs[i].folder);
		assert_refused(wrongs[i].says);
	}
}

TEST(refuses_folders)
{
	struct folder folder = {0};

	save(&folder);
	assert_false(opens(scratch_path("nothing"), &err));
	must_say("nothing: No such file or directory");
	assert_false(opens(scratch_path("."), &err));
	must_say("has no adapter_config.json; name the folder of a run");
	scratch_write("adapter/adapter_config.json", "{");
	assert_refused("adapter_config.json: ");
	save(&folder);
	scratch_write("adapter/adapter_model.safetensors", "oh");
	assert_refused("adapter_model.safetensors: ");
	assert_int_equal(unlink(scratch_path("adapter/adapter_model.safetensors")), 0);
	assert_refused("adapter_model.safetensors: No such file");
}

TEST(damage_does_no_harm)
{
	struct folder folder = {.pre = true, .source = "tokens+embeddings", .chain = 2, .gain = true, .gate = true};

	save(&folder);
	assert_true(opens(scratch_path("adapter"), NULL));
	assert_true(files_damage(scratch_path("adapter/adapter_config.json"), 2000, opens, scratch_path("adapter")) >
		    300);
	assert_true(files_damage(scratch_path("adapter/adapter_model.safetensors"), 1500, opens,
				 scratch_path("adapter")) > 1500);
	assert_true(opens(scratch_path("adapter"), NULL));
}

static int make(void **state)
{
	struct files files = {0};

	scratch_enter(NULL);
	files_save_gguf(&files, "model.gguf");
	return checkpoint_open(scratch_path("model.gguf"), &model, NULL) == ROSA_OK ? 0 : -1;
}

static int clean(void **state)
{
	checkpoint_close(&model);
	return scratch_leave(state);
}

TEST_GROUP(make, clean)
