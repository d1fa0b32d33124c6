/*
 * Tiny models on disk.
 *
 * One list of tensors serves both kinds of files, with two names in each row. Configurations are lists of keys with
 * values as JSON writes them, so that a flaw is a replaced line; for GGUF they are turned into its types.
 */
#include "support_checkpoint.h"
#include "support_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------------ scratch -- */

static char scratch[64];

int scratch_enter(void **state)
{
	snprintf(scratch, sizeof(scratch), "rosatune-test-XXXXXX");
	return mkdtemp(scratch) ? 0 : -1;
}

static void remove_folder(const char *path)
{
	DIR *folder = opendir(path);
	struct dirent *entry;
	char inner[512];

	while (folder && (entry = readdir(folder)) != NULL) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name);
		if (unlink(inner) != 0)
			remove_folder(inner);
	}
	if (folder)
		closedir(folder);
	rmdir(path);
}

int scratch_leave(void **state)
{
	remove_folder(scratch);
	return 0;
}

const char *scratch_path(const char *name)
{
	static char paths[8][512];
	static int turn;
	char *path = paths[turn++ % 8];

	snprintf(path, sizeof(paths[0]), "%s/%s", scratch, name);
	return path;
}

static void make_folder(const char *name)
{
	remove_folder(scratch_path(name));
	assert_int_equal(mkdir(scratch_path(name), 0777), 0);
}

void scratch_write(const char *name, const char *text)
{
	struct bytes bytes = {0};

	bytes_words(&bytes, text);
	bytes_save(&bytes, scratch_path(name));
}

void need_json(void)
{
#ifndef ROSATUNE_JANSSON
	print_message("this build has no JSON reader; skipped\n");
	skip();
#endif
}

/* ------------------------------------------------------------------------------------------------------ tensors -- */

struct row {
	const char *gguf, *hf;
	int layer; /* -1: outside of layers */
	size_t shape[2];
	bool norm, bias; /* of q, k or v: not in every architecture */
};

static const struct row outer[] = {
    {"token_embd.weight", "model.embed_tokens.weight", -1, {10, 8}, false, false},
    {"output_norm.weight", "model.norm.weight", -1, {8, 0}, false, false},
};

static const struct row head = {"output.weight", "lm_head.weight", -1, {10, 8}, false, false};

static const struct row inner[] = {
    {"attn_norm.weight", "input_layernorm.weight", 0, {8, 0}, false, false},
    {"attn_q.weight", "self_attn.q_proj.weight", 0, {8, 8}, false, false},
    {"attn_k.weight", "self_attn.k_proj.weight", 0, {4, 8}, false, false},
    {"attn_v.weight", "self_attn.v_proj.weight", 0, {4, 8}, false, false},
    {"attn_q.bias", "self_attn.q_proj.bias", 0, {8, 0}, false, true},
    {"attn_k.bias", "self_attn.k_proj.bias", 0, {4, 0}, false, true},
    {"attn_v.bias", "self_attn.v_proj.bias", 0, {4, 0}, false, true},
    {"attn_output.weight", "self_attn.o_proj.weight", 0, {8, 8}, false, false},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", 0, {4, 0}, true, false},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", 0, {4, 0}, true, false},
    {"ffn_norm.weight", "post_attention_layernorm.weight", 0, {8, 0}, false, false},
    {"ffn_gate.weight", "mlp.gate_proj.weight", 0, {12, 8}, false, false},
    {"ffn_up.weight", "mlp.up_proj.weight", 0, {12, 8}, false, false},
    {"ffn_down.weight", "mlp.down_proj.weight", 0, {8, 12}, false, false},
};

/* Files in the making, among which tensors are dealt out by turns, and the index of a sharded model. */
struct making {
	const struct files *files;
	bool gguf;
	struct weights_writer **writers;
	size_t count, turn;
	struct bytes index;
	uint64_t state;
};

static bool has_flaw(const struct files *files, size_t offset, const char *name)
{
	for (size_t i = 0; i < files->flaw_count; i++) {
		const char *named = *(const char *const *)((const char *)&files->flaws[i] + offset);
		if (named && strcmp(named, name) == 0)
			return true;
	}
	return false;
}

static void add_named(struct making *making, const char *name, size_t rows, size_t columns)
{
	const size_t shape[2] = {rows + has_flaw(making->files, offsetof(struct flaw, odd), name), columns};
	char line[256];

	if (has_flaw(making->files, offsetof(struct flaw, absent), name))
		return;
	snprintf(line, sizeof(line), "%s\"%s\": \"model-%zu.safetensors\"", making->index.size ? ", " : "", name,
		 making->turn);
	bytes_words(&making->index, line);
	weights_add_random(making->writers[making->turn], name, FORMAT_F32, columns ? 2 : 1, shape, &making->state, 0,
			   0.5);
	making->turn = (making->turn + 1) % making->count;
}

static void add_row(struct making *making, const struct row *row, int layer)
{
	const struct architecture_info *architecture = &architectures[making->files->architecture];
	char name[128];

	if ((row->norm && !architecture->head_norms) || (row->bias && !architecture->qkv_biases))
		return;
	if (layer < 0)
		snprintf(name, sizeof(name), "%s", making->gguf ? row->gguf : row->hf);
	else
		snprintf(name, sizeof(name), "%s.%d.%s", making->gguf ? "blk" : "model.layers", layer,
			 making->gguf ? row->gguf : row->hf);
	add_named(making, name, row->shape[0], row->shape[1]);
}

static void add_tensors(struct making *making)
{
	const struct files *files = making->files;

	making->state = files->seed + 1;
	for (size_t i = 0; i < COUNT(outer); i++)
		add_row(making, &outer[i], -1);
	if (files->untied || files->head_too)
		add_row(making, &head, -1);
	for (int layer = 0; layer < 2; layer++) {
		for (size_t i = 0; i < COUNT(inner); i++)
			add_row(making, &inner[i], layer);
	}
	if (files->rope_factors)
		weights_add_floats(making->writers[0], "rope_freqs.weight", FORMAT_F32, 1, (const size_t[]){2},
				   files->rope_factors);
	for (size_t i = 0; i < files->flaw_count; i++) {
		if (files->flaws[i].extra)
			add_named(making, files->flaws[i].extra, 2, 0);
	}
}

/* ------------------------------------------------------------------------------------------------ configurations -- */

struct line {
	const char *key, *value;
};

static const struct line gguf_lines[] = {
    {"block_count", "2"},
    {"embedding_length", "8"},
    {"feed_forward_length", "12"},
    {"attention.head_count", "2"},
    {"attention.head_count_kv", "1"},
    {"attention.layer_norm_rms_epsilon", "1e-5"},
    {"rope.freq_base", "10000.0"},
    {"rope.dimension_count", "4"},
    {"context_length", "64"},
    {"vocab_size", "10"},
    {"tokenizer.ggml.bos_token_id", "1"},
    {"tokenizer.ggml.eos_token_id", "2"},
};

static const struct line json_lines[] = {
    {"hidden_size", "8"},         {"intermediate_size", "12"},
    {"num_hidden_layers", "2"},   {"num_attention_heads", "2"},
    {"num_key_value_heads", "1"}, {"head_dim", "4"},
    {"vocab_size", "10"},         {"rms_norm_eps", "1e-5"},
    {"rope_theta", "10000.0"},    {"max_position_embeddings", "64"},
    {"hidden_act", "\"silu\""},   {"attention_bias", "false"},
    {"bos_token_id", "1"},        {"eos_token_id", "2"},
};

/* The value of a key under the flaws; NULL: it is missing. */
static const char *value_of(const struct files *files, const char *key, const char *value)
{
	for (size_t i = 0; i < files->flaw_count; i++) {
		if (files->flaws[i].key && strcmp(files->flaws[i].key, key) == 0)
			return files->flaws[i].value;
	}
	return value;
}

static bool is_among(const char *key, const struct line *lines, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(lines[i].key, key) == 0)
			return true;
	}
	return false;
}

/* A value in the GGUF type that its look suggests: a string, two whole numbers, a truth, a fraction, a whole number. */
static void set_gguf(struct weights_writer *writer, const char *key, const char *value)
{
	char text[64];
	long long pair[2];

	if (sscanf(value, "\"%63[^\"]\"", text) == 1) {
		weights_set_string(writer, key, text);
	} else if (sscanf(value, "[%lld, %lld]", &pair[0], &pair[1]) == 2) {
		const int64_t numbers[2] = {pair[0], pair[1]};
		weights_set_integers(writer, key, GGUF_INT32, 2, numbers);
	} else if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) {
		weights_set_integer(writer, key, GGUF_BOOL, *value == 't');
	} else if (strpbrk(value, ".en")) {
		weights_set_number(writer, key, GGUF_FLOAT32, strtod(value, NULL));
	} else {
		weights_set_integer(writer, key, *value == '-' ? GGUF_INT32 : GGUF_UINT32, strtoll(value, NULL, 10));
	}
}

static void set_gguf_key(struct weights_writer *writer, const struct files *files, const char *key, const char *value)
{
	bool plain =
	    strncmp(key, "tokenizer.", 10) == 0 || strncmp(key, "general.", 8) == 0 || strncmp(key, "split.", 6) == 0;
	char full[128];

	if (!value)
		return;
	snprintf(full, sizeof(full), "%s%s%s", plain ? "" : architectures[files->architecture].name, plain ? "" : ".",
		 key);
	set_gguf(writer, full, value);
}

void files_save_gguf(const struct files *files, const char *name)
{
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	struct making making = {.files = files, .gguf = true, .writers = &writer, .count = 1};
	const size_t lines = COUNT(gguf_lines);
	char quoted[32];

	snprintf(quoted, sizeof(quoted), "\"%s\"", architectures[files->architecture].name);
	set_gguf_key(writer, files, "general.architecture", value_of(files, "general.architecture", quoted));
	for (size_t i = 0; i < lines; i++)
		set_gguf_key(writer, files, gguf_lines[i].key, value_of(files, gguf_lines[i].key, gguf_lines[i].value));
	for (size_t i = 0; i < files->flaw_count; i++) {
		const char *key = files->flaws[i].key;
		if (key && strcmp(key, "general.architecture") != 0 && !is_among(key, gguf_lines, lines))
			set_gguf_key(writer, files, key, files->flaws[i].value);
	}
	if (files->tokens)
		weights_set_strings(writer, "tokenizer.ggml.tokens", 10, files->tokens);
	add_tensors(&making);
	weights_save(writer, scratch_path(name));
}

static void put_line(struct bytes *text, const char *key, const char *value)
{
	char line[1024];

	if (!value)
		return;
	snprintf(line, sizeof(line), "%s\"%s\": %s", text->size > 1 ? ",\n" : "", key, value);
	bytes_words(text, line);
}

static void save_config(const struct files *files, const char *name)
{
	const size_t lines = COUNT(json_lines);
	struct bytes text = {0};
	char quoted[32], path[256];

	bytes_put(&text, "{", 1);
	snprintf(quoted, sizeof(quoted), "\"%s\"", architectures[files->architecture].name);
	put_line(&text, "model_type", value_of(files, "model_type", quoted));
	put_line(&text, "tie_word_embeddings",
		 value_of(files, "tie_word_embeddings", files->untied ? "false" : "true"));
	for (size_t i = 0; i < lines; i++)
		put_line(&text, json_lines[i].key, value_of(files, json_lines[i].key, json_lines[i].value));
	for (size_t i = 0; i < files->flaw_count; i++) {
		const char *key = files->flaws[i].key;
		if (key && strcmp(key, "model_type") != 0 && strcmp(key, "tie_word_embeddings") != 0 &&
		    !is_among(key, json_lines, lines))
			put_line(&text, key, files->flaws[i].value);
	}
	bytes_put(&text, "}\n", 2);
	snprintf(path, sizeof(path), "%s/config.json", name);
	bytes_save(&text, scratch_path(path));
}

static void save_index(const struct making *making, const char *name)
{
	struct bytes text = {0};
	char path[256];

	bytes_put(&text, "{\"weight_map\": {", 16);
	bytes_put(&text, making->index.data, making->index.size);
	bytes_put(&text, "}}", 2);
	snprintf(path, sizeof(path), "%s/model.safetensors.index.json", name);
	bytes_save(&text, scratch_path(path));
}

void files_save_folder(const struct files *files, const char *name, size_t shards)
{
	struct weights_writer *writers[8];
	struct making making = {.files = files, .writers = writers, .count = shards};
	char path[256];

	need_json();
	assert_in_range(shards, 1, 8);
	make_folder(name);
	save_config(files, name);
	for (size_t i = 0; i < shards; i++)
		writers[i] = weights_new(WEIGHTS_SAFETENSORS);
	add_tensors(&making);
	for (size_t i = 0; i < shards; i++) {
		snprintf(path, sizeof(path), shards > 1 ? "%s/model-%zu.safetensors" : "%s/model.safetensors", name, i);
		weights_save(writers[i], scratch_path(path));
	}
	if (shards > 1)
		save_index(&making, name);
}

/* ------------------------------------------------------------------------------------------------------- damage -- */

static struct bytes load(const char *path)
{
	struct bytes bytes = {0};
	FILE *file = fopen(path, "rb");
	uint8_t block[4096];
	size_t got;

	assert_non_null(file);
	while ((got = fread(block, 1, sizeof(block), file)) > 0)
		bytes_put(&bytes, block, got);
	fclose(file);
	return bytes;
}

void files_refused(files_open *open, const char *path, const char *says)
{
	rosa_error err = {ROSA_OK, ""};

	if (open(path, &err))
		fail_msg("%s was accepted; wanted: %s", path, says);
	assert_int_not_equal(err.status, ROSA_OK);
	must_say(says);
}

static bool is_refused(files_open *open, const char *argument)
{
	rosa_error err = {ROSA_OK, ""};

	if (open(argument, &err))
		return false;
	assert_int_not_equal(err.status, ROSA_OK);
	assert_true(strlen(err.message) > 10);
	return true;
}

static void put_back(int file, const struct bytes *whole, size_t from, size_t count)
{
	assert_int_equal(pwrite(file, whole->data + from, count, (off_t)from), count);
}

size_t files_damage(const char *path, size_t size, files_open *open_it, const char *argument)
{
	static const uint8_t changes[] = {0x01, 0x80, 0xff, 0x10, 0x02, 0x08, 0x40};
	struct bytes whole = load(path);
	int file = open(path, O_RDWR); /* changed in place: to write it anew each time takes most of a minute */
	size_t refused = 0;

	assert_true(file >= 0);
	for (size_t at = 0; at < whole.size && at < size; at++) {
		uint8_t changed = whole.data[at] ^ changes[at % sizeof(changes)];
		assert_int_equal(pwrite(file, &changed, 1, (off_t)at), 1);
		refused += is_refused(open_it, argument);
		put_back(file, &whole, at, 1);
		assert_int_equal(ftruncate(file, (off_t)at), 0);
		refused += is_refused(open_it, argument);
		put_back(file, &whole, at, whole.size - at);
	}
	close(file);
	return refused;
}
