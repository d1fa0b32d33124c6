/*
 * A network: its parameters, from a checkpoint or at random, and the memory for a batch.
 *
 * Parameters have the names that Hugging Face gives them, so that saved models can be read everywhere; those of the
 * adapter begin with "rosa.", which is left out in an adapter folder. Matrices are [out][in]. GGUF files of the Llama
 * architecture store the rows of q and k in another order; they are reordered, so that there is one kind of rotation
 * here and in what is saved.
 */
#include "train/network_parts.h"

#include "base/array.h"
#include "base/draw.h"
#include "base/status.h"
#include "base/sizes.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------- parameters -- */

/* How a parameter begins: from a tensor, or at random. */
struct start {
	const struct tensor *tensor; /* NULL: at random */
	size_t heads;                /* the rows are in Llama's own order, for so many heads; 0: they are not */
	double deviation;            /* of normal numbers around `mean` */
	double mean;
	double limit;              /* uniform between -limit and limit instead; 0: normal */
	bool unit;                 /* the unit matrix instead */
	const struct weight *same; /* the numbers of another parameter instead */
	bool vector;               /* several vectors, not a matrix of a product */
};

static double uniform(uint64_t seed, uint64_t row, uint64_t i)
{
	return ((double)(draw_long(seed, row, i) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(uint64_t seed, uint64_t row, uint64_t i)
{
	return sqrt(-2 * log(uniform(seed, row, 2 * i))) * cos(6.283185307179586 * uniform(seed, row, 2 * i + 1));
}

static void draw_numbers(const network *n, const struct parameter *parameter, const struct start *start, float *to)
{
	const size_t columns = parameter->shape[parameter->dims - 1];
	const uint64_t row = n->parameters.count; /* every parameter has numbers of its own */

	for (size_t i = 0; i < parameter->count; i++) {
		if (start->unit)
			to[i] = i / columns == i % columns;
		else if (start->limit > 0)
			to[i] = (float)(start->limit * (2 * uniform(n->options.seed, row, i) - 1));
		else if (start->deviation > 0)
			to[i] = (float)(start->mean + start->deviation * normal(n->options.seed, row, i));
		else
			to[i] = (float)start->mean;
	}
}

/* Rows (head, pair, half) to (head, half, pair). */
static void put_back(const struct parameter *parameter, size_t heads, const float *from, float *to)
{
	const size_t columns = parameter->shape[1], size = parameter->shape[0] / heads, half = size / 2;

	for (size_t h = 0; h < heads; h++)
		for (size_t i = 0; i < half; i++)
			for (size_t j = 0; j < 2; j++)
				memcpy(to + (h * size + j * half + i) * columns,
				       from + (h * size + 2 * i + j) * columns, columns * sizeof(*to));
}

static void read_tensor(const struct parameter *parameter, const struct start *start, float *room, float *to)
{
	const struct tensor *tensor = start->tensor;

	format_widen(tensor->format, tensor->data, parameter->count, start->heads ? room : to);
	if (start->heads)
		put_back(parameter, start->heads, room, to);
}

static rosa_status fill(network *n, const struct parameter *parameter, const struct start *start, rosa_error *err)
{
	const size_t bytes = parameter->count * sizeof(float);
	float *numbers = malloc(bytes), *room = start->tensor && start->heads ? malloc(bytes) : NULL;
	rosa_status status = ROSA_OK;

	if (!numbers || (start->tensor && start->heads && !room))
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for %s", parameter->name);
	else if (start->tensor)
		read_tensor(parameter, start, room, numbers);
	else if (start->same)
		n->ops->get(n->backend, numbers, start->same->value, bytes);
	else
		draw_numbers(n, parameter, start, numbers);
	if (status == ROSA_OK)
		n->ops->put(n->backend, parameter->value, numbers, bytes);
	free(numbers);
	free(room);
	return status;
}

static rosa_status add(network *n, struct weight *weight, const struct start *start, enum parameter_group group,
		       size_t rows, size_t columns, rosa_error *err, const char *name, ...)
    __attribute__((format(printf, 8, 9)));

/* A parameter [rows][columns], or where rows is 0 a vector [columns]. */
static rosa_status add(network *n, struct weight *weight, const struct start *start, enum parameter_group group,
		       size_t rows, size_t columns, rosa_error *err, const char *name, ...)
{
	const bool vector = !rows || start->vector;
	const size_t shape[2] = {rows, columns};
	char text[96];
	va_list args;
	rosa_status status;

	va_start(args, name);
	vsnprintf(text, sizeof(text), name, args);
	va_end(args);
	weight->index = n->parameters.count;
	status = parameters_add(&n->parameters, text, rows ? 2 : 1, rows ? shape : shape + 1, vector, group,
				&weight->value, err);
	if (!vector)
		weight->matrix = (struct matrix){FORMAT_F32, rows, columns, weight->value};
	return status == ROSA_OK ? fill(n, &n->parameters.all[weight->index], start, err) : status;
}

/* What a network is made from. */
struct making {
	const struct checkpoint *checkpoint; /* NULL: at random, with this deviation */
	const struct adapter *adapter;       /* NULL: a new one */
	double deviation;
};

static rosa_status add_layer(network *n, const struct making *making, size_t i, rosa_error *err)
{
	static const struct layer_weights none;
	const struct model_config *c = &n->config;
	const struct layer_weights *from = making->checkpoint ? &making->checkpoint->layers[i] : &none;
	const bool turned = making->checkpoint && making->checkpoint->config.rotary_pairs == ROTARY_NEIGHBOURS;
	const size_t queries = c->heads * c->head_size, keys = c->kv_heads * c->head_size;
	const bool norms = architectures[c->architecture].head_norms,
		   biases = architectures[c->architecture].qkv_biases;
	struct network_layer *to = &n->layers[i];
	const struct {
		struct weight *weight;
		const struct tensor *tensor;
		size_t heads, rows, columns;
		double mean; /* of a network at random */
		const char *name;
		bool there;
	} parts[] = {
	    {&to->attention_norm, from->attention_norm, 0, 0, c->width, 1, "input_layernorm.weight", true},
	    {&to->q, from->q, turned ? c->heads : 0, queries, c->width, 0, "self_attn.q_proj.weight", true},
	    {&to->k, from->k, turned ? c->kv_heads : 0, keys, c->width, 0, "self_attn.k_proj.weight", true},
	    {&to->v, from->v, 0, keys, c->width, 0, "self_attn.v_proj.weight", true},
	    {&to->q_bias, from->q_bias, 0, 0, queries, 0, "self_attn.q_proj.bias", biases},
	    {&to->k_bias, from->k_bias, 0, 0, keys, 0, "self_attn.k_proj.bias", biases},
	    {&to->v_bias, from->v_bias, 0, 0, keys, 0, "self_attn.v_proj.bias", biases},
	    {&to->o, from->o, 0, c->width, queries, 0, "self_attn.o_proj.weight", true},
	    {&to->q_norm, from->q_norm, 0, 0, c->head_size, 1, "self_attn.q_norm.weight", norms},
	    {&to->k_norm, from->k_norm, 0, 0, c->head_size, 1, "self_attn.k_norm.weight", norms},
	    {&to->mlp_norm, from->mlp_norm, 0, 0, c->width, 1, "post_attention_layernorm.weight", true},
	    {&to->gate, from->gate, 0, c->mlp_width, c->width, 0, "mlp.gate_proj.weight", true},
	    {&to->up, from->up, 0, c->mlp_width, c->width, 0, "mlp.up_proj.weight", true},
	    {&to->down, from->down, 0, c->width, c->mlp_width, 0, "mlp.down_proj.weight", true},
	};
	rosa_status status = ROSA_OK;

	for (size_t j = 0; j < sizeof(parts) / sizeof(parts[0]) && status == ROSA_OK; j++) {
		const struct start start = {.tensor = parts[j].tensor,
					    .heads = parts[j].heads,
					    .deviation = parts[j].rows ? making->deviation : 0,
					    .mean = parts[j].mean};

		if (parts[j].there)
			status = add(n, parts[j].weight, &start, BACKBONE, parts[j].rows, parts[j].columns, err,
				     "model.layers.%zu.%s", i, parts[j].name);
	}
	return status;
}

/* The adapter of a layer as the ROSA layer takes it. */
static void set_rosa(network *n, const struct adapter_layer *from, size_t number)
{
	struct network_layer *to = &n->layers[number];
	struct rosa_weights *rosa = &to->rosa;

	rosa->q = to->rosa_q.matrix;
	rosa->k = to->rosa_k.matrix;
	rosa->v = to->rosa_v.matrix;
	rosa->out = to->rosa_out.matrix;
	rosa->e0 = to->e0.value;
	rosa->e1 = to->e1.value;
	rosa->a0 = to->a0.value;
	rosa->gain = to->gain.value;
	rosa->gate_w = to->gate_w.value;
	rosa->gate_b = to->gate_b.value;
	rosa->scale = n->scales[number] = from->v ? from->scale : 1;
}

/* q_proj comes after k_proj: aligned, it begins as its copy. */
static rosa_status add_adapter(network *n, const struct making *making, size_t i, rosa_error *err)
{
	static const struct adapter_layer none;
	const struct adapter_options *options = &n->options.adapter;
	const struct adapter_layer *from = making->adapter ? &making->adapter->layers[i] : &none;
	const size_t width = n->config.width, links = adapter_links(options, i), ends = links > 1 ? links : 0;
	const double xavier = sqrt(6.0 / (double)(2 * width));
	const bool aligned = options->qk == QK_ALIGNED, own = adapter_learns_qk(options, i);
	struct network_layer *to = &n->layers[i];
	const struct start matrix = {.limit = xavier}, unit = {.unit = true},
			   value = options->v_start == V_IDENTITY ? unit : matrix,
			   query = {.limit = aligned ? 0 : xavier, .same = aligned ? &to->rosa_k : NULL},
			   low = {.mean = -(double)options->e_start, .vector = true},
			   high = {.mean = (double)options->e_start, .vector = true}, one = {.mean = 1, .vector = true};
	const struct {
		struct weight *weight;
		const struct tensor *tensor;
		struct start start;
		size_t rows, columns;
		const char *name;
		bool there;
	} parts[] = {
	    {&to->rosa_k, from->k, matrix, width, width, "k_proj.weight", own},
	    {&to->rosa_v, from->v, value, width, width, "v_proj.weight", true},
	    {&to->rosa_out, from->out, unit, width, width, "out_proj.weight", true},
	    {&to->rosa_q, from->q, query, width, width, "q_proj.weight", own && options->qk != QK_SHARED},
	    {&to->e0, from->e0, low, ends, width, "e0", true},
	    {&to->e1, from->e1, high, ends, width, "e1", true},
	    {&to->a0, from->a0, {.mean = 0}, 0, width, "a0", options->fusion == ROSA_PRE},
	    {&to->gain, from->gain, one, adapter_gain_rows(options, i, width), ROSA_GAINS, "gain", options->gain},
	    {&to->gate_w, from->gate, {.mean = 0}, 0, width, "gate.weight", options->gate},
	    {&to->gate_b, from->bias, {.mean = 0}, 0, 1, "gate.bias", options->gate},
	};
	rosa_status status = network_reads_new(n, i, err);

	for (size_t j = 0; j < sizeof(parts) / sizeof(parts[0]) && status == ROSA_OK; j++) {
		struct start start = parts[j].start;

		start.tensor = parts[j].tensor;
		if (parts[j].there)
			status = add(n, parts[j].weight, &start, ADAPTER, parts[j].rows, parts[j].columns, err,
				     "rosa.layers.%zu.%s", i, parts[j].name);
	}
	if (options->qk == QK_SHARED)
		to->rosa_q = to->rosa_k;
	set_rosa(n, from, i);
	return status;
}

/* New ones begin with nothing but a query at random: they change no logit, and the key learns first. */
static rosa_status add_seen(network *n, const struct making *making, rosa_error *err)
{
	static const struct adapter_seen none;
	const struct adapter_seen *from = making->adapter ? &making->adapter->seen : &none;
	struct network_seen *to = &n->seen;
	const size_t width = n->config.width;
	rosa_status status = network_seen_new(n, err);
	const struct start table = {.tensor = from->table, .vector = true}, gate = {.tensor = from->gate},
			   query = {.tensor = from->query, .limit = sqrt(6.0 / (double)(to->rank + width))},
			   key = {.tensor = from->key};

	if (!to->rank)
		return status;
	if (status == ROSA_OK)
		status = add(n, &to->table, &table, ADAPTER, SEEN_COUNTS, SEEN_RANKS, err, "rosa.seen.table");
	if (status == ROSA_OK)
		status = add(n, &to->gate, &gate, ADAPTER, 0, width, err, "rosa.seen.gate");
	if (status == ROSA_OK)
		status = add(n, &to->query, &query, ADAPTER, to->rank, width, err, "rosa.seen.query");
	if (status == ROSA_OK)
		status = add(n, &to->key, &key, ADAPTER, to->rank, width, err, "rosa.seen.key");
	if (status == ROSA_OK)
		status = network_seen_pace(n, err);
	return status;
}

static rosa_status add_all(network *n, const struct making *making, rosa_error *err)
{
	const struct checkpoint *from = making->checkpoint;
	const struct model_config *c = &n->config;
	const struct start embedding = {.tensor = from ? from->embedding : NULL, .deviation = making->deviation},
			   head = {.tensor = from ? from->head : NULL, .deviation = making->deviation},
			   norm = {.tensor = from ? from->norm : NULL, .mean = 1};
	rosa_status status =
	    add(n, &n->embedding, &embedding, BACKBONE, c->vocabulary, c->width, err, "model.embed_tokens.weight");

	if (status == ROSA_OK && n->options.rosa)
		status = network_sources_new(n, err);
	for (size_t i = 0; i < c->layers && status == ROSA_OK; i++) {
		struct network_layer *layer = &n->layers[i];
		const bool global = i < n->options.adapter.first_global_layers;

		layer->window = global ? 0 : n->options.adapter.window;
		layer->sinks = layer->window ? n->options.adapter.sinks : 0;
		layer->has_rosa = n->options.rosa && adapter_covers(&n->options.adapter, i);
		status = add_layer(n, making, i, err);
		if (status == ROSA_OK && layer->has_rosa)
			status = add_adapter(n, making, i, err);
	}
	if (status == ROSA_OK)
		status = add(n, &n->norm, &norm, BACKBONE, 0, c->width, err, "model.norm.weight");
	if (status == ROSA_OK && !c->tied)
		status = add(n, &n->head, &head, BACKBONE, c->vocabulary, c->width, err, "lm_head.weight");
	if (c->tied)
		n->head = n->embedding;
	/* last, so that nothing else begins with other numbers because of it */
	return status == ROSA_OK ? add_seen(n, making, err) : status;
}

float *network_grad(const network *n, const struct weight *weight)
{
	return weight->value ? n->parameters.all[weight->index].grad : NULL;
}

/* ------------------------------------------------------------------------------------------------------- making -- */

static rosa_status check(const struct model_config *config, const struct network_options *options, rosa_error *err)
{
	const struct adapter_options *adapter = &options->adapter;

	if (options->rosa && (adapter->bits < ROSA_MIN_BITS || adapter->bits > ROSA_MAX_BITS))
		return rosa_fail(err, ROSA_EINVAL, "bits is %" PRIu64 "; use 1 to 16", adapter->bits);
	if (adapter->first_global_layers > config->layers)
		return rosa_fail(err, ROSA_EINVAL, "first_global_layers is %" PRIu64 ", the model has %zu layers",
				 adapter->first_global_layers, config->layers);
	if (options->rosa) {
		const struct adapter_shape shape = {config->width, config->layers, config->vocabulary};

		return adapter_options_check(adapter, &shape, "adapter.", err);
	}
	return ROSA_OK;
}

static rosa_status make(network *n, const struct making *making, rosa_error *err)
{
	struct checkpoint shape = {.config = n->config};

	n->layers = calloc(n->config.layers, sizeof(*n->layers));
	n->frequencies = calloc(n->config.head_size / 2, sizeof(*n->frequencies));
	n->scales = calloc(n->config.layers, sizeof(*n->scales));
	if (!n->layers || !n->frequencies || !n->scales)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu layers", n->config.layers);
	checkpoint_frequencies(making->checkpoint ? making->checkpoint : &shape, n->frequencies);
	n->config.rotary_pairs = ROTARY_HALVES;
	n->rotary = (struct rotary){n->config.head_size, ROTARY_HALVES, n->frequencies};
	for (size_t i = 0; i < n->config.layers; i++)
		n->scales[i] = 1;
	n->lacks_units = n->options.rosa && !making->adapter && n->options.adapter.units > 0;
	return add_all(n, making, err);
}

static rosa_status network_make(const struct model_config *config, const struct making *making,
				const struct network_options *options, struct backend *backend, rosa_workers *workers,
				network **made, rosa_error *err)
{
	rosa_status status = check(config, options, err);
	network *n;

	*made = NULL;
	if (status != ROSA_OK)
		return status;
	if (!backend->ops->training)
		return rosa_fail(err, ROSA_EINVAL, "the backend %s cannot train; use the cpu", backend->ops->name);
	n = calloc(1, sizeof(*n));
	if (!n)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a network");
	n->config = *config;
	n->options = *options;
	n->backend = n->parameters.backend = backend;
	n->ops = backend->ops;
	n->training = backend->ops->training;
	n->workers = workers;
	status = make(n, making, err);
	if (status != ROSA_OK) {
		network_free(n);
		return status;
	}
	*made = n;
	return ROSA_OK;
}

rosa_status network_load(const struct checkpoint *checkpoint, const struct adapter *adapter,
			 const struct network_options *options, struct backend *backend, rosa_workers *workers,
			 network **made, rosa_error *err)
{
	const struct making making = {.checkpoint = checkpoint, .adapter = adapter};
	struct network_options full = *options;

	if (adapter) {
		full.rosa = true;
		full.adapter = adapter->options;
		/* how it learns from now on does not come from the folder */
		full.adapter.learning = options->adapter.learning;
	}
	return network_make(&checkpoint->config, &making, &full, backend, workers, made, err);
}

rosa_status network_new(const struct model_config *config, float deviation, const struct network_options *options,
			struct backend *backend, rosa_workers *workers, network **made, rosa_error *err)
{
	const struct making making = {.deviation = (double)deviation};

	return network_make(config, &making, options, backend, workers, made, err);
}

struct network_options network_options_default(void)
{
	return (struct network_options){.rosa = true, .adapter = adapter_options_default(), .recompute = true};
}

struct parameters *network_parameters(network *network)
{
	return &network->parameters;
}

const struct model_config *network_config(const network *network)
{
	return &network->config;
}

const struct network_options *network_settings(const network *network)
{
	return &network->options;
}

void network_set_seed(network *network, uint64_t seed)
{
	network->options.adapter.learning.seed = seed;
}

void network_pace_qk(network *n, double pace)
{
	for (size_t i = 0; i < n->config.layers; i++) {
		const struct weight *both[] = {&n->layers[i].rosa_q, &n->layers[i].rosa_k};

		for (size_t j = 0; j < 2; j++)
			if (both[j]->value)
				n->parameters.all[both[j]->index].pace = pace;
	}
}

/* ---------------------------------------------------------------------------------------------- room for a batch -- */

static size_t tape_count(const network *n)
{
	return n->tapes_full ? n->config.layers : 1;
}

static void release_batch(network *n)
{
	for (size_t i = 0; n->tapes && i < tape_count(n); i++)
		lookup_free(&n->rosa.options, &n->tapes[i].lookup);
	free(n->tapes);
	free(n->inputs);
	for (size_t i = 0; i < n->block_count; i++)
		n->ops->give(n->backend, n->blocks[i]);
	network_sources_release(n);
	network_seen_release(n);
	n->tapes = NULL;
	n->inputs = NULL;
	n->block_count = 0;
	n->bytes = 0;
	n->count = n->steps = 0;
}

void network_free(network *n)
{
	if (!n)
		return;
	release_batch(n);
	free(n->blocks);
	network_sources_free(n);
	network_seen_free(n);
	parameters_free(&n->parameters);
	for (size_t i = 0; n->layers && i < n->config.layers; i++)
		free(n->layers[i].routes);
	free(n->layers);
	free(n->frequencies);
	free(n->scales);
	free(n);
}

void *network_take(network *n, size_t rows, size_t width, size_t size, bool *good)
{
	size_t bytes;
	void *block = NULL;

	if (*good && !__builtin_mul_overflow(rows, width, &bytes) && !__builtin_mul_overflow(bytes, size, &bytes) &&
	    ARRAY_RESERVE(n->blocks, n->block_room, n->block_count + 1))
		block = n->ops->take(n->backend, bytes);
	if (!block) {
		*good = false;
		return NULL;
	}
	n->blocks[n->block_count++] = block;
	n->bytes += bytes;
	return block;
}

static void take_tape(network *n, struct layer_tape *tape, bool own_input, bool *good)
{
	const struct model_config *c = &n->config;
	const size_t rows = n->count * n->steps, queries = c->heads * c->head_size, keys = c->kv_heads * c->head_size;
	const bool rosa = n->options.rosa, own = rosa && network_has_own(n),
		   pre = rosa && n->options.adapter.fusion == ROSA_PRE,
		   normed = architectures[c->architecture].head_norms;
	const struct {
		float **place;
		size_t width;
		bool there;
	} parts[] = {
	    {&tape->h, c->width, own_input},
	    {&tape->u, c->width, true},
	    {&tape->q_raw, queries, normed},
	    {&tape->k_raw, keys, normed},
	    {&tape->q, queries, true},
	    {&tape->k, keys, true},
	    {&tape->v, keys, true},
	    {&tape->attended, queries, true},
	    {&tape->level, c->heads, true},
	    {&tape->middle, c->width, true},
	    {&tape->u2, c->width, true},
	    {&tape->gate, c->mlp_width, true},
	    {&tape->up, c->mlp_width, true},
	    {&tape->act, c->mlp_width, true},
	    {&tape->rosa_u, c->width, pre},
	    {&tape->inj, c->width, pre},
	    {&tape->mix, c->width, pre},
	    {&tape->rosa.q, c->width, own},
	    {&tape->rosa.k, c->width, own && n->options.adapter.qk != QK_SHARED},
	    {&tape->rosa.v, c->width, rosa},
	};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (parts[i].there)
			*parts[i].place = network_take(n, rows, parts[i].width, sizeof(float), good);
	if (rosa && *good)
		*good = network_take_lookup(n, &tape->lookup);
}

static void take_gradients(network *n, bool *good)
{
	const struct model_config *c = &n->config;
	const size_t rows = n->count * n->steps, queries = c->heads * c->head_size, keys = c->kv_heads * c->head_size;
	const struct {
		float **place;
		size_t width;
	} parts[] = {
	    {&n->gh, c->width},
	    {&n->gu, c->width},
	    {&n->gx, c->width},
	    {&n->gq, larger(queries, c->width)},
	    {&n->gk, larger(keys, c->width)},
	    {&n->gv, larger(keys, c->width)},
	    {&n->gattended, larger(larger(queries, keys), n->options.rosa ? c->width : 0)},
	    {&n->ggate, c->mlp_width},
	    {&n->gup, c->mlp_width},
	    {&n->scratch_scales, c->heads},
	};
	size_t links = 0, gains = 0;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		*parts[i].place = network_take(n, rows, parts[i].width, sizeof(float), good);
	for (size_t i = 0; i < c->layers && n->options.rosa; i++) {
		links = larger(links, adapter_links(&n->options.adapter, i));
		gains = larger(gains, adapter_gain_rows(&n->options.adapter, i, c->width) * ROSA_GAINS);
	}
	for (int i = 0; i < 2; i++)
		n->ge[i] = network_take(n, links, c->width, sizeof(float), good);
	n->ggain = n->options.adapter.gain ? network_take(n, gains, 1, sizeof(float), good) : NULL;
	n->ga = n->options.adapter.gate ? network_take(n, rows, 1, sizeof(float), good) : NULL;
}

static void take_batch(network *n, bool learning, bool *good)
{
	const struct model_config *c = &n->config;
	const size_t rows = n->count * n->steps;

	n->tapes_full = learning && !n->options.recompute;
	n->tapes = calloc(tape_count(n), sizeof(*n->tapes));
	n->inputs = calloc(c->layers + 1, sizeof(*n->inputs));
	*good = n->tapes && n->inputs;
	for (size_t i = 0; i <= c->layers && *good; i++) {
		/* without learning two states are enough, used alternately */
		n->inputs[i] =
		    learning || i < 2 ? network_take(n, rows, c->width, sizeof(float), good) : n->inputs[i % 2];
	}
	for (size_t i = 0; i < tape_count(n) && *good; i++)
		take_tape(n, &n->tapes[i], false, good);
	n->u = network_take(n, rows, c->width, sizeof(float), good);
	n->embedded = n->gembedded = NULL;
	if (n->options.rosa && n->options.adapter.v_from == V_EMBEDDINGS) {
		n->embedded = network_take(n, rows, c->width, sizeof(float), good);
		n->gembedded = learning ? network_take(n, rows, c->width, sizeof(float), good) : NULL;
	}
	n->logits = network_take(n, NETWORK_LOGITS_ROWS, c->vocabulary, sizeof(float), good);
	network_seen_take(n, learning, good);
	if (learning)
		take_gradients(n, good);
	if (n->options.rosa && *good)
		network_sources_take(n, learning, good);
}

rosa_status network_reserve(network *n, size_t count, size_t steps, bool learning, rosa_error *err)
{
	const struct model_config *c = &n->config;
	bool good = true;

	if (!count || !steps)
		return rosa_fail(err, ROSA_EINVAL, "a batch of %zu sequences of %zu steps is empty", count, steps);
	for (size_t i = 0; i < c->layers; i++) {
		const struct attention_shape shape = {
		    count, steps, c->heads, c->kv_heads, c->head_size, n->layers[i].window, n->layers[i].sinks};
		rosa_status status = n->training->attention_reserve(n->backend, &n->rotary, &shape, err);

		if (status != ROSA_OK)
			return status;
	}
	if (n->count == count && n->steps == steps && (!learning || n->gh) &&
	    (!learning || n->tapes_full == !n->options.recompute))
		return ROSA_OK;
	release_batch(n);
	n->gh = NULL;
	n->count = count;
	n->steps = steps;
	take_batch(n, learning, &good);
	if (good)
		return ROSA_OK;
	release_batch(n);
	return rosa_fail(err, ROSA_ENOMEM,
			 "no memory for a batch of %zu sequences of %zu steps; use a smaller micro batch", count,
			 steps);
}

uint64_t network_activation_bytes(const network *network)
{
	uint64_t bytes = network->bytes;

	for (size_t i = 0; network->tapes && i < tape_count(network); i++)
		bytes += lookup_bytes(&network->tapes[i].lookup);
	return bytes + network_sources_bytes(network);
}
