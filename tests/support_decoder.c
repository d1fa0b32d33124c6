/*
 * Tiny models, and the decoder written out plainly.
 *
 * The oracle holds all of a text's activations as [steps][width] and computes one equation after the other with loops
 * over numbers. It shares nothing with the decoder but the tensors and the rotary frequencies.
 */
#include "support_decoder.h"

#include "oracle.h"
#include "support_weights.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

	snprintf(text, sizeof(text), "%s.%s", architecture_names[model->architecture], key);
	weights_set_integer(writer, text, GGUF_UINT32, (int64_t)value);
}

void tiny_model_save(const struct tiny_model *m, const char *path)
{
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	const char *name = architecture_names[m->architecture];
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
		if (m->architecture == QWEN3) {
			add(writer, FORMAT_F32, &state, 0, m->head_size, "blk.%zu.attn_q_norm.weight", i);
			add(writer, FORMAT_F32, &state, 0, m->head_size, "blk.%zu.attn_k_norm.weight", i);
		}
	}
	weights_save(writer, path);
}

static void add_adapter_layer(struct weights_writer *writer, const struct tiny_model *m, const struct tiny_adapter *a,
			      size_t layer, uint64_t *state)
{
	const char *matrices[] = {"k_proj", "v_proj", "out_proj", "q_proj"};
	const size_t shape[1] = {m->width};
	char name[64];

	for (int i = 0; i < (a->shared ? 3 : 4); i++)
		add(writer, FORMAT_F32, state, m->width, m->width, "layers.%zu.%s.weight", layer, matrices[i]);
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "layers.%zu.e%d", layer, i);
		weights_add_random(writer, name, FORMAT_F32, 1, shape, state, 0, 0.3);
	}
	if (a->fusion == ROSA_PRE) {
		snprintf(name, sizeof(name), "layers.%zu.a0", layer);
		weights_add_random(writer, name, FORMAT_F32, 1, shape, state, 0, 0.3);
	}
}

void tiny_adapter_save(const struct tiny_model *m, const struct tiny_adapter *a, const char *folder)
{
	struct weights_writer *writer = weights_new(WEIGHTS_SAFETENSORS);
	struct bytes config = {0};
	uint64_t state = a->seed;
	char path[512], text[1024];

	weights_set_string(writer, "tensors", "0123456789abcdef");
	for (size_t i = a->first_global_layers; i < m->layers; i++)
		add_adapter_layer(writer, m, a, i, &state);
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", folder);
	weights_save(writer, path);
	snprintf(text, sizeof(text),
		 "{\"format\": 1, \"rosatune_version\": \"0\", \"base_model\": {\"model_type\": \"%s\", "
		 "\"hidden_size\": %zu, \"num_hidden_layers\": %zu}, \"options\": {\"window\": %zu, \"sinks\": %zu, "
		 "\"bits\": %d, \"fusion\": \"%s\", \"qk\": \"%s\", \"first_global_layers\": %zu, \"layers\": [",
		 architecture_names[m->architecture], m->width, m->layers, a->window, a->sinks, a->bits,
		 a->fusion == ROSA_PRE ? "pre" : "post", a->shared ? "shared" : "aligned", a->first_global_layers);
	bytes_put(&config, text, strlen(text));
	for (size_t i = a->first_global_layers; i < m->layers; i++) {
		snprintf(text, sizeof(text), "%s%zu", i > a->first_global_layers ? ", " : "", i);
		bytes_put(&config, text, strlen(text));
	}
	snprintf(text, sizeof(text), "]}, \"tensors\": \"0123456789abcdef\"}");
	bytes_put(&config, text, strlen(text));
	snprintf(path, sizeof(path), "%s/adapter_config.json", folder);
	bytes_save(&config, path);
	bytes_free(&config);
}

/* ------------------------------------------------------------------------------------------------------- oracle -- */

static void *need(size_t count, size_t size)
{
	void *memory = calloc(count ? count : 1, size);

	if (!memory)
		abort();
	return memory;
}

/* Row `row` of a tensor, widened. */
static float *row_of(const struct tensor *tensor, size_t row)
{
	const size_t columns = tensor->shape[tensor->dims - 1];
	float *numbers = need(columns, sizeof(*numbers));

	format_widen(tensor->format, (const char *)tensor->data + row * format_row_bytes(tensor->format, columns),
		     columns, numbers);
	return numbers;
}

/* y = x W^T, [steps][rows]. */
static double *product(const struct tensor *weight, const double *x, size_t steps)
{
	const size_t rows = weight->shape[0], columns = weight->shape[1];
	double *y = need(steps * rows, sizeof(*y));

	for (size_t r = 0; r < rows; r++) {
		float *w = row_of(weight, r);

		for (size_t t = 0; t < steps; t++)
			for (size_t c = 0; c < columns; c++)
				y[t * rows + r] += w[c] * x[t * columns + c];
		free(w);
	}
	return y;
}

static double *norm(const struct tensor *weight, double eps, const double *x, size_t rows)
{
	const size_t width = weight->shape[0];
	double *y = need(rows * width, sizeof(*y));
	float *w = row_of(weight, 0);

	for (size_t i = 0; i < rows; i++) {
		double square = 0;

		for (size_t c = 0; c < width; c++)
			square += x[i * width + c] * x[i * width + c] / (double)width;
		for (size_t c = 0; c < width; c++)
			y[i * width + c] = x[i * width + c] / sqrt(square + eps) * w[c];
	}
	free(w);
	return y;
}

/* y += x, and the end of x */
static void add_to(double *y, double *x, size_t count)
{
	for (size_t i = 0; i < count; i++)
		y[i] += x[i];
	free(x);
}

/* Turn the heads of x [steps][heads * size] by their positions. */
static void rotate(const struct checkpoint *c, double *x, size_t steps, size_t heads)
{
	const size_t size = c->config.head_size;
	const bool halves = c->config.rotary_pairs == ROTARY_HALVES;
	float *frequencies = need(size / 2, sizeof(*frequencies));

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
	free(frequencies);
}

static bool sees(size_t t, size_t s, size_t window, size_t sinks)
{
	return s <= t && (!window || t - s < window || s < sinks);
}

static double *attend(const struct model_config *c, size_t window, size_t sinks, const double *q, const double *k,
		      const double *v, size_t steps)
{
	const size_t size = c->head_size, group = c->heads / c->kv_heads;
	double *y = need(steps * c->heads * size, sizeof(*y)), *weight = need(steps, sizeof(*weight));

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
	free(weight);
	return y;
}

/* The symbols of one route, [steps]. */
static void symbols_of(const double *x, size_t steps, size_t width, int bits, size_t route, uint16_t *symbols)
{
	for (size_t t = 0; t < steps; t++) {
		symbols[t] = 0;
		for (int j = 0; j < bits; j++)
			symbols[t] |= (uint16_t)((x[t * width + route * (size_t)bits + (size_t)j] > 0) << j);
	}
}

/* inj = Wout y, from U */
static double *injection(const struct adapter *a, const struct adapter_layer *layer, const double *u, size_t steps,
			 size_t width)
{
	const struct tensor *projections[3] = {layer->q, layer->k, layer->v};
	double *x[3], *y = need(steps * width, sizeof(*y)), *result;
	float *e[2] = {row_of(layer->e0, 0), row_of(layer->e1, 0)};
	uint16_t *symbols[3];
	int32_t *tau = need(steps, sizeof(*tau));
	const rosa_options options = adapter_options_retrieval(&a->options);

	for (int i = 0; i < 3; i++) {
		x[i] = product(projections[i], u, steps);
		symbols[i] = need(steps, sizeof(*symbols[i]));
	}
	for (size_t r = 0; r < width / (size_t)options.bits; r++) {
		for (int i = 0; i < 3; i++)
			symbols_of(x[i], steps, width, options.bits, r, symbols[i]);
		oracle_route(&options, steps, symbols[0], symbols[1], tau, NULL, NULL);
		for (size_t t = 0; t < steps; t++) {
			for (int j = 0; j < options.bits && tau[t] >= 0; j++) {
				const size_t c = r * (size_t)options.bits + (size_t)j;

				y[t * width + c] = e[symbols[2][tau[t]] >> j & 1][c];
			}
		}
	}
	result = product(layer->out, y, steps);
	for (int i = 0; i < 3; i++) {
		free(x[i]);
		free(symbols[i]);
	}
	free(e[0]);
	free(e[1]);
	free(tau);
	free(y);
	return result;
}

/* (1 - a) H + a inj */
static double *mixed(const struct tensor *a0, const double *h, const double *inj, size_t steps, size_t width)
{
	double *y = need(steps * width, sizeof(*y));
	float *share = row_of(a0, 0);

	for (size_t i = 0; i < steps * width; i++) {
		const double a = 1 / (1 + exp(-(double)share[i % width]));

		y[i] = (1 - a) * h[i] + a * inj[i];
	}
	free(share);
	return y;
}

static void head_norm(const struct model_config *c, const struct tensor *weight, double **x, size_t heads, size_t steps)
{
	double *y;

	if (!weight)
		return;
	y = norm(weight, c->norm_eps, *x, steps * heads);
	free(*x);
	*x = y;
}

static void layer(const struct checkpoint *c, const struct adapter *a, const struct decoder_options *o, size_t number,
		  double *h, size_t steps)
{
	const struct model_config *config = &c->config;
	const struct layer_weights *w = &c->layers[number];
	const struct adapter_layer *rosa = a && a->layers[number].q ? &a->layers[number] : NULL;
	const bool global = number < o->first_global_layers;
	const size_t numbers = steps * config->width;
	double *u = norm(w->attention_norm, config->norm_eps, h, steps), *inj = NULL, *q, *k, *v, *y, *gate, *up;

	if (rosa)
		inj = injection(a, rosa, u, steps, config->width);
	if (rosa && a->options.fusion == ROSA_PRE) {
		double *mix = mixed(rosa->a0, h, inj, steps, config->width);

		free(u);
		u = norm(w->attention_norm, config->norm_eps, mix, steps);
		free(mix);
		free(inj);
		inj = NULL;
	}
	q = product(w->q, u, steps);
	k = product(w->k, u, steps);
	v = product(w->v, u, steps);
	free(u);
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
	free(u);
	free(q);
	free(k);
	free(v);
	free(y);
	free(gate);
	free(up);
}

void oracle_decoder(const struct checkpoint *c, const struct adapter *a, const struct decoder_options *o,
		    const uint32_t *tokens, size_t steps, double *logits)
{
	const size_t width = c->config.width;
	double *h = need(steps * width, sizeof(*h)), *u, *last;

	for (size_t t = 0; t < steps; t++) {
		float *row = row_of(c->embedding, tokens[t]);

		for (size_t i = 0; i < width; i++)
			h[t * width + i] = row[i];
		free(row);
	}
	for (size_t i = 0; i < c->config.layers; i++)
		layer(c, a, o, i, h, steps);
	u = norm(c->norm, c->config.norm_eps, h, steps);
	last = product(c->head, u, steps);
	memcpy(logits, last, steps * c->config.vocabulary * sizeof(*logits));
	free(last);
	free(u);
	free(h);
}
