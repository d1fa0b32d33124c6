/*
 * Tiny models, and the decoder written out plainly.
 *
 * The oracle holds all of a text's activations as [steps][width] and computes one equation after the other with loops
 * over numbers. It shares nothing with the decoder but the tensors and the rotary frequencies.
 */
#include "support_decoder.h"
#include "support_test.h"

#include "model/token_symbols.h"

#include "oracle.h"
#include "support_weights.h"

#include <math.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------------- models -- */

static void add(struct weights_writer *writer, enum format format, uint64_t *state, size_t rows, size_t columns,
		const char *name, ...) __attribute__((format(printf, 6, 7)));

/* A matrix [rows][columns] of about unit gain, or where rows is 0 a vector of about 1. */
static void add(struct weights_writer *writer, enum format format, uint64_t *state, size_t rows, size_t columns,
		const char *name, ...)
{
	const size_t shape[2] = {rows, columns};
	char text[128];
	va_list args;

	va_start(args, name);
	vsnprintf(text, sizeof(text), name, args);
	va_end(args);
	if (rows)
		weights_add_random(writer, text, format, 2, shape, state, 0, 1 / sqrt((double)columns));
	else
		weights_add_random(writer, text, FORMAT_F32, 1, shape + 1, state, 1, 0.2);
}

static void set(struct weights_writer *writer, const struct tiny_model *model, const char *key, size_t value)
{
	char text[128];

	snprintf(text, sizeof(text), "%s.%s", architectures[model->architecture].name, key);
	weights_set_integer(writer, text, GGUF_UINT32, (int64_t)value);
}

void tiny_model_save(const struct tiny_model *m, const char *path)
{
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	const char *name = architectures[m->architecture].name;
	const size_t queries = m->heads * m->head_size, keys = m->kv_heads * m->head_size;
	uint64_t state = m->seed;
	char key[128];

	weights_set_string(writer, "general.architecture", name);
	set(writer, m, "block_count", m->layers);
	set(writer, m, "embedding_length", m->width);
	set(writer, m, "feed_forward_length", m->mlp_width);
	set(writer, m, "attention.head_count", m->heads);
	set(writer, m, "attention.head_count_kv", m->kv_heads);
	set(writer, m, "attention.key_length", m->head_size);
	set(writer, m, "attention.value_length", m->head_size);
	set(writer, m, "vocab_size", m->vocabulary);
	set(writer, m, "context_length", 4096);
	snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", name);
	weights_set_number(writer, key, GGUF_FLOAT32, 1e-5);
	snprintf(key, sizeof(key), "%s.rope.freq_base", name);
	weights_set_number(writer, key, GGUF_FLOAT32, 1e4);
	add(writer, m->format, &state, m->vocabulary, m->width, "token_embd.weight");
	add(writer, FORMAT_F32, &state, 0, m->width, "output_norm.weight");
	if (!m->tied)
		add(writer, m->format, &state, m->vocabulary, m->width, "output.weight");
	for (size_t i = 0; i < m->layers; i++) {
		add(writer, m->format, &state, queries, m->width, "blk.%zu.attn_q.weight", i);
		add(writer, m->format, &state, keys, m->width, "blk.%zu.attn_k.weight", i);
		add(writer, m->format, &state, keys, m->width, "blk.%zu.attn_v.weight", i);
		add(writer, m->format, &state, m->width, queries, "blk.%zu.attn_output.weight", i);
		add(writer, m->format, &state, m->mlp_width, m->width, "blk.%zu.ffn_gate.weight", i);
		add(writer, m->format, &state, m->mlp_width, m->width, "blk.%zu.ffn_up.weight", i);
		add(writer, m->format, &state, m->width, m->mlp_width, "blk.%zu.ffn_down.weight", i);
		add(writer, FORMAT_F32, &state, 0, m->width, "blk.%zu.attn_norm.weight", i);
		add(writer, FORMAT_F32, &state, 0, m->width, "blk.%zu.ffn_norm.weight", i);
		if (architectures[m->architecture].qkv_biases) {
			add(writer, FORMAT_F32, &state, 0, queries, "blk.%zu.attn_q.bias", i);
			add(writer, FORMAT_F32, &state, 0, keys, "blk.%zu.attn_k.bias", i);
			add(writer, FORMAT_F32, &state, 0, keys, "blk.%zu.attn_v.bias", i);
		}
		if (architectures[m->architecture].head_norms) {
			add(writer, FORMAT_F32, &state, 0, m->head_size, "blk.%zu.attn_q_norm.weight", i);
			add(writer, FORMAT_F32, &state, 0, m->head_size, "blk.%zu.attn_k_norm.weight", i);
		}
	}
	weights_save(writer, path);
}

/* The options that a tiny adapter has. */
static struct adapter_options options_of(const struct tiny_adapter *a)
{
	struct adapter_options options = adapter_options_paper();
	const struct key_place place = {.key = "source"};

	if (a->source && keys_set(&adapter_option_keys, &options, a->source, &place, NULL) != ROSA_OK)
		abort();
	options.bits = (uint64_t)a->bits;
	options.fusion = a->fusion;
	options.qk = a->shared ? QK_SHARED : QK_ALIGNED;
	options.window = a->window;
	options.sinks = a->sinks;
	options.first_global_layers = a->first_global_layers;
	if (a->source) {
		options.chain = a->chain;
		options.delay = a->late ? KEY_UNSET : 0;
		options.gain = a->gain;
		options.gate = a->gate;
		options.units = a->units ? 0.3f : 0;
		options.seen = a->seen;
	}
	return options;
}

static bool has_adapter(const struct adapter_options *options, size_t layer)
{
	return layer >= options->first_global_layers && adapter_links(options, layer) > 0;
}

static void add_vector(struct weights_writer *writer, uint64_t *state, double mean, size_t rows, size_t columns,
		       size_t layer, const char *name)
{
	const size_t shape[2] = {rows, columns};
	char text[64];

	snprintf(text, sizeof(text), "layers.%zu.%s", layer, name);
	weights_add_random(writer, text, FORMAT_F32, columns ? 2 : 1, shape, state, mean, 0.3);
}

static void add_adapter_layer(struct weights_writer *writer, const struct tiny_model *m,
			      const struct adapter_options *o, size_t layer, uint64_t *state)
{
	const char *matrices[] = {"k_proj", "v_proj", "out_proj", "q_proj"};
	const bool qk = adapter_learns_qk(o, layer);
	const size_t links = adapter_links(o, layer), rows = links > 1 ? links : m->width,
		     columns = links > 1 ? m->width : 0;

	for (int i = 0; i < 4; i++)
		if ((i != 0 || qk) && (i != 3 || (qk && o->qk != QK_SHARED)))
			add(writer, FORMAT_F32, state, m->width, m->width, "layers.%zu.%s.weight", layer, matrices[i]);
	add_vector(writer, state, 0, rows, columns, layer, "e0");
	add_vector(writer, state, 0, rows, columns, layer, "e1");
	if (o->fusion == ROSA_PRE)
		add_vector(writer, state, 0, m->width, 0, layer, "a0");
	if (o->gain)
		add_vector(writer, state, 1, adapter_gain_rows(o, layer, m->width), ADAPTER_GAINS, layer, "gain");
	if (o->gate) {
		add_vector(writer, state, 0, m->width, 0, layer, "gate.weight");
		add_vector(writer, state, 0, 1, 0, layer, "gate.bias");
	}
}

/* Numbers of the size of logits, so that each part of a sum shows. */
static void add_seen(struct weights_writer *writer, const struct tiny_model *m, size_t rank, uint64_t *state)
{
	const size_t table[2] = {4, 15}, matrix[2] = {rank, m->width};

	weights_add_random(writer, "seen.table", FORMAT_F32, 2, table, state, 0.5, 1);
	weights_add_random(writer, "seen.gate", FORMAT_F32, 1, &m->width, state, 0, 0.2);
	weights_add_random(writer, "seen.query", FORMAT_BF16, 2, matrix, state, 0, 0.2);
	weights_add_random(writer, "seen.key", FORMAT_F32, 2, matrix, state, 0, 0.5);
}

/* The configuration of format 2: what format 1 has not. */
static void add_sources(const struct tiny_model *m, const struct tiny_adapter *a, const struct adapter_options *o,
			struct json_text *text)
{
	json_text_add(text,
		      ", \"source\": \"%s\", \"chain\": %zu, \"delay\": %s, \"gain\": %s, \"gate\": %s, "
		      "\"units\": %g, \"seen\": %zu, \"source_seed\": 9}, \"scales\": [",
		      a->source, a->chain, a->late ? "null" : "0", a->gain ? "true" : "false",
		      a->gate ? "true" : "false", (double)o->units, a->seen);
	for (size_t i = 0; i < m->layers; i++)
		json_text_add(text, "%s%g", i ? ", " : "", a->units ? 0.5 + (double)i : 1.0);
	json_text_add(text, "]");
}

void tiny_adapter_save(const struct tiny_model *m, const struct tiny_adapter *a, const char *folder)
{
	const struct adapter_options options = options_of(a);
	struct weights_writer *writer = weights_new(WEIGHTS_SAFETENSORS);
	struct json_text text = {0};
	const char *between = "";
	struct bytes config = {0};
	uint64_t state = a->seed;
	char path[512];

	weights_set_string(writer, "tensors", "0123456789abcdef");
	json_text_add(&text,
		      "{\"format\": %d, \"rosatune_version\": \"0\", \"base_model\": {\"model_type\": \"%s\", "
		      "\"hidden_size\": %zu, \"num_hidden_layers\": %zu}, \"options\": {\"window\": %zu, \"sinks\": "
		      "%zu, \"bits\": %d, \"fusion\": \"%s\", \"qk\": \"%s\", \"first_global_layers\": %zu, "
		      "\"layers\": [",
		      a->source ? 2 : 1, architectures[m->architecture].name, m->width, m->layers, a->window, a->sinks,
		      a->bits, a->fusion == ROSA_PRE ? "pre" : "post", a->shared ? "shared" : "aligned",
		      a->first_global_layers);
	for (size_t i = 0; i < m->layers; i++) {
		if (!has_adapter(&options, i))
			continue;
		add_adapter_layer(writer, m, &options, i, &state);
		json_text_add(&text, "%s%zu", between, i);
		between = ", ";
	}
	if (a->seen)
		add_seen(writer, m, a->seen, &state);
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", folder);
	weights_save(writer, path);
	json_text_add(&text, "]");
	if (a->source)
		add_sources(m, a, &options, &text);
	else
		json_text_add(&text, "}");
	json_text_add(&text, ", \"tensors\": \"0123456789abcdef\"}");
	bytes_put(&config, text.data, text.size);
	snprintf(path, sizeof(path), "%s/adapter_config.json", folder);
	bytes_save(&config, path);
	json_text_free(&text);
}

/* -------------------------------------------------------------------------------------------------------- bench -- */

TEST_CLOSER(close_workers, rosa_workers_free)
TEST_CLOSER(close_backend, cpu_backend_free)
TEST_CLOSER(close_decoder, decoder_free)
TEST_CLOSER(close_sequence, sequence_free)

void bench_start(struct bench *b, size_t chunk, int threads)
{
	b->options.chunk = chunk;
	must(rosa_workers_new(threads, NULL, &b->workers, &err));
	test_later(close_workers, b->workers);
	must(cpu_backend_new(b->workers, &b->backend, &err));
	test_later(close_backend, b->backend);
	must(decoder_new(&b->checkpoint, b->adapted ? &b->adapter : NULL, &b->options, b->backend, b->workers,
			 &b->decoder, &err));
	test_later(close_decoder, b->decoder);
}

static void close_files(void *bench)
{
	struct bench *b = bench;

	adapter_close(&b->adapter);
	checkpoint_close(&b->checkpoint);
}

struct bench *bench_open(const struct tiny_model *model, const struct tiny_adapter *adapter)
{
	struct bench *b = test_zeros(1, sizeof(*b));
	char folder[] = "decoder-test-XXXXXX", path[64];

	test_later(close_files, b);
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/model.gguf", folder);
	tiny_model_save(model, path);
	must(checkpoint_open(path, &b->checkpoint, &err));
	unlink(path);
	if (adapter) {
		tiny_adapter_save(model, adapter, folder);
		must(adapter_open(folder, &b->checkpoint, &b->adapter, &err));
		b->adapted = true;
		b->options.window = b->adapter.options.window;
		b->options.sinks = b->adapter.options.sinks;
		b->options.first_global_layers = b->adapter.options.first_global_layers;
	}
	/* what is open stays readable, and a test that fails leaves nothing behind */
	snprintf(path, sizeof(path), "%s/adapter_config.json", folder);
	unlink(path);
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", folder);
	unlink(path);
	rmdir(folder);
	return b;
}

struct bench *bench_tiny(const struct tiny_adapter *adapter, size_t chunk, int threads)
{
	struct tiny_model model = TINY_MODEL;
	struct bench *b = bench_open(&model, adapter);

	bench_start(b, chunk, threads);
	return b;
}

sequence *bench_sequence(struct bench *b)
{
	sequence *s;

	must(sequence_new(b->decoder, &s, &err));
	test_later(close_sequence, s);
	return s;
}

/* ------------------------------------------------------------------------------------------------------- oracle -- */

/* Row `row` of a tensor, widened. */
static float *row_of(const struct tensor *tensor, size_t row)
{
	const size_t columns = tensor->shape[tensor->dims - 1];
	float *numbers = test_zeros(columns, sizeof(*numbers));

	format_widen(tensor->format, (const char *)tensor->data + row * format_row_bytes(tensor->format, columns),
		     columns, numbers);
	return numbers;
}

/* y = x W^T, [steps][rows]. */
static double *product(const struct tensor *weight, const double *x, size_t steps)
{
	const size_t rows = weight->shape[0], columns = weight->shape[1];
	double *y = test_zeros(steps * rows, sizeof(*y));

	for (size_t r = 0; r < rows; r++) {
		float *w = row_of(weight, r);

		for (size_t t = 0; t < steps; t++)
			for (size_t c = 0; c < columns; c++)
				y[t * rows + r] += w[c] * x[t * columns + c];
	}
	return y;
}

static double *norm(const struct tensor *weight, double eps, const double *x, size_t rows)
{
	const size_t width = weight->shape[0];
	double *y = test_zeros(rows * width, sizeof(*y));
	float *w = row_of(weight, 0);

	for (size_t i = 0; i < rows; i++) {
		double square = 0;

		for (size_t c = 0; c < width; c++)
			square += x[i * width + c] * x[i * width + c] / (double)width;
		for (size_t c = 0; c < width; c++)
			y[i * width + c] = x[i * width + c] / sqrt(square + eps) * w[c];
	}
	return y;
}

/* y += x */
static void add_to(double *y, double *x, size_t count)
{
	for (size_t i = 0; i < count; i++)
		y[i] += x[i];
}

/* Turn the heads of x [steps][heads * size] by their positions. */
static void rotate(const struct checkpoint *c, double *x, size_t steps, size_t heads)
{
	const size_t size = c->config.head_size;
	const bool halves = c->config.rotary_pairs == ROTARY_HALVES;
	float *frequencies = test_zeros(size / 2, sizeof(*frequencies));

	checkpoint_frequencies(c, frequencies);
	for (size_t t = 0; t < steps; t++) {
		for (size_t h = 0; h < heads; h++) {
			for (size_t i = 0; i < size / 2; i++) {
				double *head = x + (t * heads + h) * size, angle = (double)t * frequencies[i];
				double *a = head + (halves ? i : 2 * i), *b = halves ? a + size / 2 : a + 1;
				const double real = *a, imaginary = *b;

				*a = real * cos(angle) - imaginary * sin(angle);
				*b = imaginary * cos(angle) + real * sin(angle);
			}
		}
	}
}

static bool sees(size_t t, size_t s, size_t window, size_t sinks)
{
	return s <= t && (!window || t - s < window || s < sinks);
}

static double *attend(const struct model_config *c, size_t window, size_t sinks, const double *q, const double *k,
		      const double *v, size_t steps)
{
	const size_t size = c->head_size, group = c->heads / c->kv_heads;
	double *y = test_zeros(steps * c->heads * size, sizeof(*y)), *weight = test_zeros(steps, sizeof(*weight));

	for (size_t t = 0; t < steps; t++) {
		for (size_t h = 0; h < c->heads; h++) {
			const double *query = q + (t * c->heads + h) * size;
			double greatest = -INFINITY, sum = 0;

			for (size_t s = 0; s <= t; s++) {
				const double *key = k + (s * c->kv_heads + h / group) * size;

				weight[s] = 0;
				for (size_t i = 0; i < size; i++)
					weight[s] += query[i] * key[i] / sqrt((double)size);
				if (!sees(t, s, window, sinks))
					weight[s] = -INFINITY;
				greatest = fmax(greatest, weight[s]);
			}
			for (size_t s = 0; s <= t; s++)
				sum += weight[s] = exp(weight[s] - greatest);
			for (size_t s = 0; s <= t; s++)
				for (size_t i = 0; i < size; i++)
					y[(t * c->heads + h) * size + i] +=
					    weight[s] / sum * v[(s * c->kv_heads + h / group) * size + i];
		}
	}
	return y;
}

/* Places of one source, [links][routes][steps]. */
struct oracle_places {
	size_t links, routes;
	int32_t *tau, *length;
};

/* What layers share while a text is computed. */
struct oracle_state {
	const uint32_t *tokens;
	struct oracle_places shared[SOURCES_MOST]; /* of all sources but `own`, once they are known */
};

/* The symbols of x, [routes][steps]. */
static uint16_t *symbols_of(const double *x, size_t steps, size_t width, size_t bits)
{
	uint16_t *symbols = test_zeros(width / bits * steps, sizeof(*symbols));

	for (size_t t = 0; t < steps; t++)
		for (size_t c = 0; c < width; c++)
			symbols[c / bits * steps + t] |= (uint16_t)((x[t * width + c] > 0) << c % bits);
	return symbols;
}

/* Retrieval and the chain by their definitions. Symbols have 2 or 4 bytes, by the options. */
static struct oracle_places places_of(rosa_options options, size_t routes, size_t links, size_t steps,
				      const void *query, const void *key)
{
	const size_t cells = routes * steps, symbol = options.bits > 16 ? 4 : 2;
	struct oracle_places found = {links, routes, test_zeros(links * cells, sizeof(int32_t)),
				      test_zeros(links * cells, sizeof(int32_t))};
	int32_t *tau0 = test_zeros(steps, sizeof(*tau0)), *length0 = test_zeros(steps, sizeof(*length0));

	for (size_t r = 0; r < routes; r++) {
		const char *q = (const char *)query + r * steps * symbol, *k = (const char *)key + r * steps * symbol;
		rosa_options plain = options;

		plain.delay = 0;
		oracle_route(&options, steps, q, k, found.tau + r * steps, found.length + r * steps, NULL);
		oracle_route(&plain, steps, q, k, tau0, length0, NULL);
		for (size_t i = 1; i < links; i++) {
			for (size_t t = 0; t < steps; t++) {
				const size_t at = i * cells + r * steps + t;
				const int32_t d = found.tau[at - cells], longest = found.length[at - cells];

				found.tau[at] = d > 0 ? tau0[d - 1] : -1;
				found.length[at] = d <= 0 ? 0 : length0[d - 1] < longest ? length0[d - 1] : longest;
			}
		}
	}
	return found;
}

/* The places of the sources that need only tokens. */
static void find_tokens(const struct checkpoint *c, const struct adapter *a, struct oracle_state *state, size_t steps)
{
	const struct adapter_options *o = &a->options;

	for (size_t i = 0; i < o->source.count; i++) {
		const rosa_options options = adapter_source_retrieval(o, i, c->config.vocabulary);
		const size_t routes = adapter_source_routes(o, i, c->config.width);
		uint16_t *symbols = test_zeros(routes * steps, sizeof(*symbols));
		struct token_symbols made = {0};

		if (o->source.all[i].kind == SOURCE_EMBEDDINGS) {
			if (token_symbols_new(&made, c->embedding, (int)o->bits, o->source_seed, NULL) != ROSA_OK)
				abort();
			token_symbols_get(&made, steps, state->tokens, symbols);
			token_symbols_free(&made);
		} else if (o->source.all[i].kind == SOURCE_TOKENS) {
			for (size_t t = 0; t < steps; t++)
				symbols[t] = (uint16_t)state->tokens[t];
		}
		if (o->source.all[i].kind == SOURCE_EMBEDDINGS || o->source.all[i].kind == SOURCE_TOKENS)
			state->shared[i] = places_of(options, routes, (size_t)o->chain, steps, symbols, symbols);
	}
}

/* y of one source added; `first` is its first read, `row` the first row of its gain. */
static void add_reads(const struct adapter_layer *layer, const struct oracle_places *places, size_t first, size_t row,
		      const double *v, size_t steps, size_t width, double *y)
{
	const size_t routes = places->routes, channels = width / routes;
	float *gain = layer->gain ? test_zeros(tensor_numbers(layer->gain), sizeof(*gain)) : NULL;
	float *e[2] = {test_zeros(tensor_numbers(layer->e0), sizeof(float)),
		       test_zeros(tensor_numbers(layer->e1), sizeof(float))};

	format_widen(layer->e0->format, layer->e0->data, tensor_numbers(layer->e0), e[0]);
	format_widen(layer->e1->format, layer->e1->data, tensor_numbers(layer->e1), e[1]);
	if (gain)
		format_widen(layer->gain->format, layer->gain->data, tensor_numbers(layer->gain), gain);
	for (size_t i = 0; i < places->links * routes * steps; i++) {
		const size_t t = i % steps, r = i / steps % routes, link = i / steps / routes;
		const int32_t tau = places->tau[i], length = places->length[i];

		for (size_t c = r * channels; tau >= 0 && c < (r + 1) * channels; c++) {
			const int bit = v[(size_t)tau * width + c] > 0;
			const double g =
			    gain ? gain[(row + link * routes + r) * 10 + (size_t)(length < 9 ? length : 9)] : 1;

			y[t * width + c] += layer->scale * g * e[bit][(first + link) * width + c];
		}
	}
}

static void apply_gate(const struct adapter_layer *layer, const double *u, size_t steps, size_t width, double *y)
{
	float *w = row_of(layer->gate, 0), *b = row_of(layer->bias, 0);

	for (size_t t = 0; t < steps; t++) {
		double sum = b[0];

		for (size_t c = 0; c < width; c++)
			sum += u[t * width + c] * w[c];
		for (size_t c = 0; c < width; c++)
			y[t * width + c] *= 2 / (1 + exp(-sum));
	}
}

/* inj = Wout y, from U */
static double *injection(const struct adapter *a, size_t number, struct oracle_state *state, const double *u,
			 size_t steps, size_t width)
{
	const struct adapter_options *o = &a->options;
	const struct adapter_layer *layer = &a->layers[number];
	double *y = test_zeros(steps * width, sizeof(*y)), *v = product(layer->v, u, steps), *result;
	size_t first = 0, row = 0;

	for (size_t i = 0; i < o->source.count; i++) {
		const struct adapter_source *source = &o->source.all[i];
		const bool own = source->kind == SOURCE_OWN;
		struct oracle_places *places = &state->shared[i];

		if (number < source->layer)
			continue;
		if (own || (source->kind == SOURCE_LAYER && source->layer == number)) {
			double *q = product(layer->q, u, steps), *k = product(layer->k, u, steps);
			uint16_t *query = symbols_of(q, steps, width, (size_t)o->bits);
			uint16_t *key = symbols_of(k, steps, width, (size_t)o->bits);

			*places = places_of(adapter_options_retrieval(o), width / (size_t)o->bits,
					    adapter_source_links(o, i, number), steps, query, key);
		}
		add_reads(layer, places, first, row, v, steps, width, y);
		first += places->links;
		row += places->links * places->routes;
	}
	if (layer->gate)
		apply_gate(layer, u, steps, width, y);
	result = product(layer->out, y, steps);
	return result;
}

/* (1 - a) H + a inj */
static double *mixed(const struct tensor *a0, const double *h, const double *inj, size_t steps, size_t width)
{
	double *y = test_zeros(steps * width, sizeof(*y));
	float *share = row_of(a0, 0);

	for (size_t i = 0; i < steps * width; i++) {
		const double a = 1 / (1 + exp(-(double)share[i % width]));

		y[i] = (1 - a) * h[i] + a * inj[i];
	}
	return y;
}

static void head_norm(const struct model_config *c, const struct tensor *weight, double **x, size_t heads, size_t steps)
{
	double *y;

	if (!weight)
		return;
	y = norm(weight, c->norm_eps, *x, steps * heads);
	*x = y;
}

/* x[t] += the bias; nothing without one */
static void add_bias(const struct tensor *bias, double *x, size_t steps)
{
	float *b;

	if (!bias)
		return;
	b = row_of(bias, 0);
	for (size_t t = 0; t < steps; t++)
		for (size_t i = 0; i < bias->shape[0]; i++)
			x[t * bias->shape[0] + i] += b[i];
}

static void layer(const struct checkpoint *c, const struct adapter *a, const struct decoder_options *o, size_t number,
		  struct oracle_state *state, double *h, size_t steps)
{
	const struct model_config *config = &c->config;
	const struct layer_weights *w = &c->layers[number];
	const struct adapter_layer *rosa = a && adapter_has(a, number) ? &a->layers[number] : NULL;
	const bool global = number < o->first_global_layers;
	const size_t numbers = steps * config->width;
	double *u = norm(w->attention_norm, config->norm_eps, h, steps), *inj = NULL, *q, *k, *v, *y, *gate, *up;

	if (rosa)
		inj = injection(a, number, state, u, steps, config->width);
	if (rosa && a->options.fusion == ROSA_PRE) {
		double *mix = mixed(rosa->a0, h, inj, steps, config->width);

		u = norm(w->attention_norm, config->norm_eps, mix, steps);
		inj = NULL;
	}
	q = product(w->q, u, steps);
	k = product(w->k, u, steps);
	v = product(w->v, u, steps);
	add_bias(w->q_bias, q, steps);
	add_bias(w->k_bias, k, steps);
	add_bias(w->v_bias, v, steps);
	head_norm(config, w->q_norm, &q, config->heads, steps);
	head_norm(config, w->k_norm, &k, config->kv_heads, steps);
	rotate(c, q, steps, config->heads);
	rotate(c, k, steps, config->kv_heads);
	y = attend(config, global ? 0 : o->window, global ? 0 : o->sinks, q, k, v, steps);
	add_to(h, product(w->o, y, steps), numbers);
	if (inj)
		add_to(h, inj, numbers);
	u = norm(w->mlp_norm, config->norm_eps, h, steps);
	gate = product(w->gate, u, steps);
	up = product(w->up, u, steps);
	for (size_t i = 0; i < steps * config->mlp_width; i++)
		gate[i] *= up[i] / (1 + exp(-gate[i]));
	add_to(h, product(w->down, gate, steps), numbers);
}

/* floor(log2(x)) */
static size_t log2_of(size_t x)
{
	size_t result = 0;

	while (x >>= 1)
		result++;
	return result;
}

/* How often x stands at places below `end`; with random reads, how often the token half of its class away does. */
static size_t times_seen(const uint32_t *tokens, ptrdiff_t end, size_t x, bool random, size_t vocabulary)
{
	const size_t k = log2_of(x + 64) - 6, low = ((size_t)1 << (k + 6)) - 64, next = ((size_t)1 << (k + 7)) - 64,
		     size = (next < vocabulary ? next : vocabulary) - low,
		     wanted = random ? low + (x - low + size / 2) % size : x;
	size_t count = 0;

	for (ptrdiff_t p = 0; p < end; p++)
		count += tokens[p] == wanted;
	return count;
}

/* logit_t(x) += table[c][k] + gate . h_t + (query h_t) . (key e_x) where n(x, t) > 0 */
static void seen(const struct checkpoint *c, const struct adapter *a, const struct decoder_options *o,
		 const uint32_t *tokens, const double *h, size_t steps, double *logits)
{
	const size_t vocabulary = c->config.vocabulary, width = c->config.width, rank = (size_t)a->options.seen;
	const size_t delay = a->options.delay == KEY_UNSET ? o->window : (size_t)a->options.delay;
	double *query = product(a->seen.query, h, steps), *e = test_zeros(vocabulary * width, sizeof(*e)), *key;
	float *gate = row_of(a->seen.gate, 0), *table[4];

	for (size_t i = 0; i < 4; i++)
		table[i] = row_of(a->seen.table, i);
	for (size_t x = 0; x < vocabulary; x++) {
		float *row = row_of(c->head, x);

		for (size_t i = 0; i < width; i++)
			e[x * width + i] = row[i];
	}
	key = product(a->seen.key, e, vocabulary);
	for (size_t i = 0; i < steps * vocabulary; i++) {
		const size_t t = i / vocabulary, x = i % vocabulary;
		const size_t n =
		    times_seen(tokens, (ptrdiff_t)t - (ptrdiff_t)delay, x, o->reads == READS_RANDOM, vocabulary);

		if (!n || o->reads == READS_NOTHING)
			continue;
		logits[i] += table[log2_of(n) < 3 ? log2_of(n) : 3][log2_of(x + 64) - 6];
		for (size_t j = 0; j < width; j++)
			logits[i] += gate[j] * h[t * width + j];
		for (size_t j = 0; j < rank; j++)
			logits[i] += query[t * rank + j] * key[x * rank + j];
	}
}

void oracle_decoder(const struct checkpoint *c, const struct adapter *a, const struct decoder_options *o,
		    const uint32_t *tokens, size_t steps, double *logits)
{
	const size_t width = c->config.width;
	double *h = test_zeros(steps * width, sizeof(*h)), *u, *last;
	struct oracle_state state = {.tokens = tokens};

	if (a)
		find_tokens(c, a, &state, steps);
	for (size_t t = 0; t < steps; t++) {
		float *row = row_of(c->embedding, tokens[t]);

		for (size_t i = 0; i < width; i++)
			h[t * width + i] = row[i];
	}
	for (size_t i = 0; i < c->config.layers; i++)
		layer(c, a, o, i, &state, h, steps);
	u = norm(c->norm, c->config.norm_eps, h, steps);
	last = product(c->head, u, steps);
	if (a && a->options.seen)
		seen(c, a, o, tokens, u, steps, last);
	memcpy(logits, last, steps * c->config.vocabulary * sizeof(*logits));
}
