/*
 * rosa_layer_forward and rosa_layer_backward: the layer (layer.h) with its norm, as one call on the caller's memory.
 *
 * All is computed in float32. Activations of another type are widened first; q, k and v are rounded to that type before
 * their symbols are taken, so that symbols and slopes are those of the numbers that the tape keeps.
 *
 * What is kept. Of the input, H: U alone does not give H where a weight of the norm is 0, and U is made again from H in
 * little time. q, k and v, since it would take a product each to make them again; with a shared projection q and k are
 * the same rows, and where no rule reads them neither is kept. The places, in as few bytes as hold them. Not y, which
 * layer_read_batch reads again. So the tape takes 4 C numbers per token (3 C if shared, 2 C if q and k do not learn),
 * and per link and route of each source a destination, with gain a match length, and with counterfactuals M + 1 more
 * per query run.
 *
 * Gradients are added to the caller's. So that a call that fails changes none of them, all that can fail comes before
 * the first addition; once the arguments are checked, that is memory alone.
 */
#include "backend/convert.h"
#include "backend/cpu_parts.h"
#include "base/status.h"
#include "retrieval/rules.h"
#include "rosa/arguments.h"
#include "rosa/destinations.h"
#include "rosa/layer.h"
#include "rosa/scratch.h"

struct rosa_tape {
	rosa_options options;
	rosa_learning learning;
	rosa_fusion fusion;
	rosa_dtype dtype;
	bool shared; /* wq == wk */
	size_t batch, steps, channels;
	/* Each [batch][steps][channels]. k is q if shared; both are NULL if no rule reads them. */
	void *h, *q, *k, *v;
	size_t sources;
	struct lookup lookups[ROSA_MAX_SOURCES];
};

/* One call: its arguments, checked and complete, and its memory. */
struct call {
	rosa_options options;
	rosa_learning learning;
	rosa_layer layer;
	size_t batch, steps, numbers; /* numbers: batch * steps * channels */
	rosa_workers *workers;        /* the call's own; NULL: the caller's are used */
	struct scratch scratch;
	struct cpu_backend cpu;
	struct rosa_setup setup;
	struct rosa_weights weights;
	struct rosa_batch sequences;
	size_t sources;
	struct lookup_shape shapes[ROSA_MAX_SOURCES];
	size_t own;     /* which source is the layer's own; `sources`: none */
	size_t *routes; /* [links of all sources] */
	size_t rows;    /* of gain */
};

/* ----------------------------------------------------------------------------------------------------- arguments -- */

static bool has_own(const struct call *call)
{
	return call->own < call->sources;
}

static rosa_status check_parameters(const struct call *call, rosa_error *err)
{
	const rosa_layer *layer = &call->layer;
	const bool own = has_own(call);
	const struct {
		const char *name;
		const float *pointer;
		bool needed;
	} parameters[] = {{"norm", layer->norm, true}, {"wq", layer->wq, own},
			  {"wk", layer->wk, own},      {"wv", layer->wv, true},
			  {"e0", layer->e0, true},     {"e1", layer->e1, true},
			  {"wout", layer->wout, true}, {"a0", layer->a0, layer->fusion == ROSA_PRE}};

	for (size_t i = 0; i < sizeof(parameters) / sizeof(*parameters); i++)
		if (parameters[i].needed && !parameters[i].pointer)
			return rosa_fail(err, ROSA_EINVAL, "layer.%s is NULL; %s fusion needs it", parameters[i].name,
					 layer->fusion == ROSA_POST ? "post" : "pre");
	if (!layer->gate_w != !layer->gate_b)
		return rosa_fail(err, ROSA_EINVAL, "layer.%s is NULL; give both gate_w and gate_b, or neither",
				 layer->gate_w ? "gate_b" : "gate_w");
	if (!(layer->scale >= 0 && layer->scale < 1e30f))
		return rosa_fail(err, ROSA_EINVAL, "layer.scale is %g; it must be 0 (for 1) or more",
				 (double)layer->scale);
	return ROSA_OK;
}

/* One source: its shape, checked. */
static rosa_status check_source(struct call *call, size_t i, unsigned bits, rosa_error *err)
{
	const rosa_layer *layer = &call->layer;
	const rosa_places own = {.routes = layer->channels / bits, .links = 1},
			  places = layer->sources ? layer->places[i] : own;

	if (places.routes == 0 || layer->channels % places.routes)
		return rosa_fail(err, ROSA_EINVAL,
				 "layer.places[%zu].routes is %zu; give a divisor of the %zu channels", i,
				 places.routes, layer->channels);
	if (places.links == 0 || places.links > ROSA_MAX_LINKS)
		return rosa_fail(err, ROSA_EINVAL, "layer.places[%zu].links is %zu; give 1 to %d", i, places.links,
				 ROSA_MAX_LINKS);
	if (places.tau && layer->gain && !places.length)
		return rosa_fail(err, ROSA_EINVAL, "layer.places[%zu].length is NULL; gain needs the lengths", i);
	if (!places.tau) {
		if (has_own(call))
			return rosa_fail(err, ROSA_EINVAL, "layer.places[%zu].tau is NULL; a layer has one own source",
					 i);
		if (places.routes != layer->channels / bits)
			return rosa_fail(err, ROSA_EINVAL,
					 "layer.places[%zu].routes is %zu; a layer's own source has channels / bits, "
					 "%zu",
					 i, places.routes, layer->channels / bits);
		if (places.links > 1 && layer->wq != layer->wk)
			return rosa_fail(err, ROSA_EINVAL,
					 "layer.places[%zu].links is %zu; a chain needs a query that is the key: give "
					 "wq as wk, or 1 link",
					 i, places.links);
		call->own = i;
	}
	call->shapes[i] =
	    (struct lookup_shape){call->batch, places.routes, call->steps, places.links, layer->gain != NULL};
	return ROSA_OK;
}

static rosa_status check_sources(struct call *call, unsigned bits, rosa_error *err)
{
	const rosa_layer *layer = &call->layer;
	rosa_status status = ROSA_OK;

	if (layer->sources > ROSA_MAX_SOURCES)
		return rosa_fail(err, ROSA_EINVAL, "layer.sources is %zu; a layer has at most %d", layer->sources,
				 ROSA_MAX_SOURCES);
	if (layer->sources && !layer->places)
		return rosa_fail(err, ROSA_EINVAL, "layer.places is NULL; give %zu sources, or set layer.sources to 0",
				 layer->sources);
	call->own = call->sources = layer->sources ? layer->sources : 1;
	for (size_t i = 0; i < call->sources && !status; i++)
		status = check_source(call, i, bits, err);
	return status;
}

static rosa_status check_layer(const rosa_layer *given, rosa_layer *layer, rosa_error *err)
{
	if (!given)
		return rosa_fail(err, ROSA_EINVAL, "layer is NULL");
	if (given->size < offsetof(rosa_layer, wout) + sizeof(given->wout))
		return rosa_fail(err, ROSA_EINVAL, "layer.size is %zu; set it to sizeof(rosa_layer), which is %zu",
				 given->size, sizeof(*given));
	*layer = (rosa_layer){.size = 0};
	memcpy(layer, given, given->size < sizeof(*layer) ? given->size : sizeof(*layer));
	if ((int)layer->fusion != ROSA_POST && (int)layer->fusion != ROSA_PRE)
		return rosa_fail(err, ROSA_EINVAL, "layer.fusion is %d; use ROSA_POST (0) or ROSA_PRE (1)",
				 (int)layer->fusion);
	/* written so that NaN fails too */
	if (!(layer->norm_eps >= 0 && layer->norm_eps < 1e30f))
		return rosa_fail(err, ROSA_EINVAL, "layer.norm_eps is %g; it must be 0 or more",
				 (double)layer->norm_eps);
	if (layer->channels > SIZE_MAX / 64 / (layer->channels ? layer->channels : 1))
		return rosa_fail(err, ROSA_EINVAL, "layer.channels is %zu; its matrices do not fit into memory",
				 layer->channels);
	return ROSA_OK;
}

static rosa_status check_call(const rosa_options *options, const rosa_learning *learning, const rosa_layer *layer,
			      size_t batch, size_t steps, struct call *call, rosa_error *err)
{
	struct route_rules rules;
	rosa_status status;

	*call = (struct call){.batch = batch, .steps = steps};
	if (!options)
		return rosa_fail(err, ROSA_EINVAL, "options is NULL");
	status = rules_from_options(options, &call->options, &rules, err);
	if (!status)
		status = learning_from_options(learning, &call->learning, err);
	if (!status)
		status = check_layer(layer, &call->layer, err);
	if (!status)
		status = activations_check(call->layer.dtype, batch, steps, call->layer.channels, rules.bits, err);
	if (!status)
		status = check_sources(call, rules.bits, err);
	if (!status)
		status = check_parameters(call, err);
	if (!status)
		call->numbers = batch * steps * call->layer.channels;
	return status;
}

static size_t rows_bytes(const struct call *call)
{
	return call->numbers * activation_size(call->layer.dtype);
}

static rosa_status check_apart(const struct call *call, const char *a_name, const void *a, const char *b_name,
			       const void *b, rosa_error *err)
{
	const uintptr_t bytes = rows_bytes(call);

	if ((uintptr_t)a < (uintptr_t)b + bytes && (uintptr_t)b < (uintptr_t)a + bytes)
		return rosa_fail(err, ROSA_EINVAL, "%s and %s overlap; give each an array of its own", a_name, b_name);
	return ROSA_OK;
}

static rosa_status check_same_layer(const rosa_tape *tape, const struct call *call, rosa_error *err)
{
	const struct {
		const char *name;
		size_t now, then;
	} fields[] = {{"channels", call->layer.channels, tape->channels},
		      {"dtype", (size_t)call->layer.dtype, (size_t)tape->dtype},
		      {"fusion", (size_t)call->layer.fusion, (size_t)tape->fusion},
		      {"wq == layer.wk", call->layer.wq == call->layer.wk, tape->shared},
		      {"sources", call->sources, tape->sources}};

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (fields[i].now != fields[i].then)
			return rosa_fail(err, ROSA_EINVAL,
					 "layer.%s is %zu and was %zu in the forward pass; give the same layer to both",
					 fields[i].name, fields[i].now, fields[i].then);
	for (size_t i = 0; i < call->sources; i++)
		if (!lookup_shape_same(&call->shapes[i], &tape->lookups[i].shape))
			return rosa_fail(
			    err, ROSA_EINVAL,
			    "layer.places[%zu] or layer.gain is another than in the forward pass; give the "
			    "same layer to both",
			    i);
	return ROSA_OK;
}

/* -------------------------------------------------------------------------------------------------------- memory -- */

static rosa_status out_of_memory(const struct call *call, rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM,
			 "no memory for a layer of %zu channels over %zu batch entries of %zu steps; use fewer of them",
			 call->layer.channels, call->batch, call->steps);
}

static float *take_rows(struct call *call)
{
	return scratch_floats(&call->scratch, call->numbers);
}

/* Float32 rows in place of an array of the caller's: the array itself, or memory to convert it in. */
static float *rows_for(struct call *call, const void *array)
{
	return array && call->layer.dtype == ROSA_FLOAT32 ? (float *)array : take_rows(call);
}

/* Threads, a backend, and the scratch memory that both passes need; the rest is taken afterwards. */
static rosa_status call_begin(struct call *call, rosa_error *err)
{
	const rosa_layer *layer = &call->layer;
	const size_t n = layer->channels;
	const struct matrix matrix = {.format = FORMAT_F32, .rows = n, .columns = n};
	rosa_options options = call->options;
	rosa_status status;

	call->scratch.allocator = &call->options.allocator;
	if (!options.workers) {
		status = rosa_workers_new(options.threads, &options.allocator, &call->workers, err);
		if (status)
			return status;
		options.workers = call->workers;
	}
	cpu_backend_borrow(options.workers, &call->cpu);
	call->setup = layer_setup(&call->cpu.backend, cpu_training_ops.multiply, n, &options);
	call->weights = (struct rosa_weights){.q = matrix,
					      .k = matrix,
					      .v = matrix,
					      .out = matrix,
					      .e0 = layer->e0,
					      .e1 = layer->e1,
					      .a0 = layer->a0,
					      .gain = layer->gain,
					      .gate_w = layer->gate_w,
					      .gate_b = layer->gate_b,
					      .scale = layer->scale > 0 ? layer->scale : 1};
	call->weights.q.data = has_own(call) ? layer->wq : NULL;
	call->weights.k.data = has_own(call) ? layer->wk : NULL;
	call->weights.v.data = layer->wv;
	call->weights.out.data = layer->wout;
	call->weights.routes = call->routes =
	    scratch_take(&call->scratch, ROSA_MAX_SOURCES * ROSA_MAX_LINKS, sizeof(*call->routes));
	for (size_t i = 0; i < call->sources && call->routes; i++) {
		for (size_t link = 0; link < call->shapes[i].links; link++)
			call->routes[call->weights.links++] = call->shapes[i].routes;
		call->rows += call->shapes[i].links * call->shapes[i].routes;
	}
	call->sequences = (struct rosa_batch){.count = call->batch, .steps = call->steps};
	layer_batch_take(&call->setup, call->sources, call->shapes, has_own(call), &call->scratch, &call->sequences);
	if (layer->gate_w)
		call->sequences.z = scratch_floats(&call->scratch, call->batch * call->steps);
	return ROSA_OK;
}

static void call_end(struct call *call)
{
	scratch_free(&call->scratch);
	rosa_workers_free(call->workers);
}

static void widen(struct call *call, const void *from, float *to)
{
	if (from != to)
		cpu_widen(&call->cpu, call->layer.dtype, call->numbers, from, to);
}

static void narrow(struct call *call, const float *from, void *to)
{
	if (from != to)
		cpu_narrow(&call->cpu, call->layer.dtype, call->numbers, from, to);
}

/* U = norm(H) */
static void norm(struct call *call, const float *h, float *u)
{
	const size_t n = call->layer.channels;

	call->cpu.backend.ops->rms_norm(&call->cpu.backend, call->numbers / n, n, h, call->layer.norm,
					call->layer.norm_eps, u);
}

/* ------------------------------------------------------------------------------------------------------ the tape -- */

static rosa_status tape_new(const struct call *call, rosa_tape **made, rosa_error *err)
{
	const rosa_allocator *allocator = &call->options.allocator;
	const bool learns = has_own(call) && call->learning.qk_grad != ROSA_QK_NONE;
	rosa_tape *tape = memory_resize(allocator, NULL, sizeof(*tape));

	if (!tape)
		return out_of_memory(call, err);
	*tape = (rosa_tape){.options = call->options,
			    .learning = call->learning,
			    .fusion = call->layer.fusion,
			    .dtype = call->layer.dtype,
			    .shared = call->layer.wq == call->layer.wk,
			    .batch = call->batch,
			    .steps = call->steps,
			    .channels = call->layer.channels,
			    .sources = call->sources};
	*made = tape;
	tape->h = memory_resize(allocator, NULL, rows_bytes(call));
	tape->v = memory_resize(allocator, NULL, rows_bytes(call));
	if (learns) {
		tape->q = memory_resize(allocator, NULL, rows_bytes(call));
		tape->k = tape->shared ? tape->q : memory_resize(allocator, NULL, rows_bytes(call));
	}
	if (!tape->h || !tape->v || (learns && (!tape->q || !tape->k)))
		return out_of_memory(call, err);
	return ROSA_OK;
}

size_t rosa_tape_bytes(const rosa_tape *tape)
{
	size_t lookups = 0;

	if (!tape)
		return 0;
	for (size_t i = 0; i < tape->sources; i++)
		lookups += lookup_bytes(&tape->lookups[i]);
	return sizeof(*tape) + lookups +
	       (2 + (size_t)(tape->q != NULL) + (size_t)(tape->k != tape->q)) * tape->batch * tape->steps *
		   tape->channels * activation_size(tape->dtype);
}

void rosa_tape_free(rosa_tape *tape)
{
	rosa_allocator allocator;

	if (!tape)
		return;
	allocator = tape->options.allocator;
	if (!tape->shared)
		memory_free(&allocator, tape->k);
	memory_free(&allocator, tape->q);
	memory_free(&allocator, tape->v);
	memory_free(&allocator, tape->h);
	for (size_t i = 0; i < tape->sources; i++)
		lookup_free(&tape->options, &tape->lookups[i]);
	memory_free(&allocator, tape);
}

/* ------------------------------------------------------------------------------------------------------- forward -- */

/* Rows as the tape keeps them, rounded to the type of the activations. `kept` NULL: no tape keeps them. */
static void keep(struct call *call, float *rows, void *kept)
{
	if (kept) {
		narrow(call, rows, kept);
		widen(call, kept, rows);
	} else if (call->layer.dtype != ROSA_FLOAT32) {
		for (size_t i = 0; i < call->numbers; i++)
			rows[i] = bfloat16_to_float(float_to_bfloat16(rows[i]));
	}
}

/* Places that the caller gives, as a lookup keeps them. */
static rosa_status keep_places(const struct call *call, size_t i, struct lookup *lookup, rosa_error *err)
{
	const rosa_places *places = &call->layer.places[i];
	const size_t cells = places->links * call->batch * places->routes * call->steps;

	for (size_t at = 0; at < cells; at++)
		if (places->tau[at] < -1 || places->tau[at] >= (int64_t)call->steps)
			return rosa_fail(err, ROSA_EINVAL,
					 "layer.places[%zu].tau has a place %d; it must be -1 or below the %zu steps",
					 i, places->tau[at], call->steps);
	destinations_store(lookup->read, places->tau, 0, cells, lookup->width);
	for (size_t at = 0; lookup->shape.lengths && at < cells; at++) {
		const int32_t length = places->length[at];

		lookup->length[at] = (uint8_t)(length < 0 ? 0 : length < PLACES_LONGEST ? length : PLACES_LONGEST);
	}
	return ROSA_OK;
}

/* The layer's sources, the own one not yet looked up. */
static rosa_status begin_sources(const struct call *call, struct lookup *lookups, struct rosa_source *sources,
				 rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < call->sources && !status; i++) {
		status = lookup_reserve(&call->options, &call->shapes[i], &lookups[i], err);
		if (!status && i != call->own)
			status = keep_places(call, i, &lookups[i], err);
		sources[i] = (struct rosa_source){.lookup = &lookups[i]};
	}
	return status;
}

static rosa_status forward(struct call *call, const void *h, void *out, rosa_tape *tape, struct lookup *lookups,
			   rosa_error *err)
{
	const size_t rows = call->batch * call->steps;
	const bool pre = call->layer.fusion == ROSA_PRE, own = has_own(call),
		   apart = own && !layer_shared(&call->weights);
	rosa_learning learning = call->learning;
	float *wide_h = rows_for(call, h), *u = take_rows(call), *wide_out = rows_for(call, out);
	struct rosa_rows x = {.q = own ? rows_for(call, tape ? tape->q : NULL) : NULL,
			      .k = apart ? rows_for(call, tape ? tape->k : NULL) : NULL,
			      .v = rows_for(call, tape ? tape->v : NULL)};
	struct rosa_source sources[ROSA_MAX_SOURCES];
	struct product projections[3];
	rosa_status status;

	/* the gate takes U after y has been read */
	call->sequences.y = call->layer.gate_w ? take_rows(call) : u;
	if (call->scratch.short_of_memory)
		return out_of_memory(call, err);
	status = begin_sources(call, lookups, sources, err);
	if (status)
		return status;
	widen(call, h, wide_h);
	norm(call, wide_h, u);
	call->setup.multiply(call->setup.backend, rows, u, layer_projections(&call->weights, &x, projections),
			     projections);
	if (own)
		keep(call, x.q, tape ? tape->q : NULL);
	if (apart)
		keep(call, x.k, tape ? tape->k : NULL);
	keep(call, x.v, tape ? tape->v : NULL);
	/* without a backward pass no counterfactuals are needed */
	if (!tape && learning.qk_grad == ROSA_QK_FLIPS)
		learning.qk_grad = ROSA_QK_NONE;
	if (own)
		status =
		    layer_find(&call->setup, &call->weights, &call->sequences, &learning, &x, &lookups[call->own], err);
	if (status)
		return status;
	layer_read_batch(&call->setup, &call->weights, &call->sequences,
			 &(struct rosa_inputs){call->sources, sources, x.v, u, u});
	layer_inject(&call->setup, &call->weights, rows, call->sequences.y, false, wide_out);
	if (pre)
		layer_mix(&call->setup, &call->weights, rows, wide_h, wide_out, wide_out);
	narrow(call, wide_out, out);
	if (tape)
		memcpy(tape->h, h, rows_bytes(call));
	return ROSA_OK;
}

rosa_status rosa_layer_forward(const rosa_options *options, const rosa_learning *learning, const rosa_layer *layer,
			       size_t batch, size_t steps, const void *h, void *out, rosa_tape **tape, rosa_error *err)
{
	struct call call;
	struct lookup lookups[ROSA_MAX_SOURCES];
	rosa_tape *made = NULL;
	rosa_status status;

	memset(lookups, 0, sizeof(lookups));
	if (tape)
		*tape = NULL;
	status = check_call(options, learning, layer, batch, steps, &call, err);
	if (status)
		return status;
	if (!h || !out)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", h ? "out" : "h");
	status = check_apart(&call, "h", h, "out", out, err);
	if (status)
		return status;
	status = call_begin(&call, err);
	if (!status && tape)
		status = tape_new(&call, &made, err);
	if (!status)
		status = forward(&call, h, out, made, made ? made->lookups : lookups, err);
	for (size_t i = 0; i < call.sources; i++)
		lookup_free(&call.options, &lookups[i]);
	call_end(&call);
	if (status)
		rosa_tape_free(made);
	else if (tape)
		*tape = made;
	return status;
}

/* ------------------------------------------------------------------------------------------------------ backward -- */

/* The float32 rows of a backward pass. */
struct backward_rows {
	float *h, *u, *gout, *gu, *gh, *inj, *ginj; /* gu NULL: nothing is wanted of U; inj, ginj: pre fusion */
	struct rosa_rows x;
	struct rosa_back back;
	float *scales, *ga0;
};

/* Memory for what the wanted gradients need, and the rows that the tape has. */
static rosa_status take_backward(struct call *call, const rosa_tape *tape, const void *gout,
				 const rosa_layer_grads *wanted, void *gh, struct backward_rows *at, rosa_error *err)
{
	const size_t n = call->layer.channels;
	const bool pre = call->layer.fusion == ROSA_PRE, through = gh || wanted->norm;
	const size_t links = call->weights.links;
	float *vectors = scratch_floats(&call->scratch, (2 * links + 1) * n);

	at->h = rows_for(call, tape->h);
	at->u = take_rows(call);
	at->gout = rows_for(call, gout);
	at->gu = through ? take_rows(call) : NULL;
	at->gh = through || pre ? rows_for(call, gh) : NULL;
	at->inj = pre ? take_rows(call) : NULL;
	at->ginj = pre ? take_rows(call) : at->gout;
	at->x.v = rows_for(call, tape->v);
	at->x.q = tape->q ? rows_for(call, tape->q) : NULL;
	at->x.k = tape->k && !tape->shared ? rows_for(call, tape->k) : NULL;
	at->back.gy = take_rows(call);
	at->back.gv = take_rows(call);
	at->back.gq = tape->q ? take_rows(call) : NULL;
	at->back.gk = tape->q ? take_rows(call) : NULL;
	at->back.ggain = call->layer.gain ? scratch_floats(&call->scratch, call->rows * ROSA_GAINS) : NULL;
	at->back.ga = call->layer.gate_w ? scratch_floats(&call->scratch, call->batch * call->steps) : NULL;
	at->scales = scratch_floats(&call->scratch, call->batch * call->steps);
	call->sequences.y = take_rows(call);
	if (call->scratch.short_of_memory)
		return out_of_memory(call, err);
	at->back.ge0 = vectors;
	at->back.ge1 = vectors + links * n;
	at->ga0 = pre && wanted->a0 ? vectors + 2 * links * n : NULL;
	widen(call, tape->h, at->h);
	widen(call, tape->v, at->x.v);
	if (at->x.q)
		widen(call, tape->q, at->x.q);
	if (at->x.k)
		widen(call, tape->k, at->x.k);
	widen(call, gout, at->gout);
	return ROSA_OK;
}

static rosa_status backward(struct call *call, const rosa_tape *tape, const void *gout, const rosa_layer_grads *wanted,
			    void *gh, rosa_error *err)
{
	struct backend *backend = &call->cpu.backend;
	const size_t n = call->layer.channels, rows = call->batch * call->steps;
	const struct rosa_grads grads = {.q = wanted->wq,
					 .k = wanted->wk,
					 .v = wanted->wv,
					 .out = wanted->wout,
					 .e0 = wanted->e0,
					 .e1 = wanted->e1,
					 .gain = call->layer.gain ? wanted->gain : NULL,
					 .gate_w = call->layer.gate_w ? wanted->gate_w : NULL,
					 .gate_b = call->layer.gate_w ? wanted->gate_b : NULL};
	struct rosa_source sources[ROSA_MAX_SOURCES];
	struct backward_rows at = {0};
	struct rosa_inputs inputs;
	rosa_status status = take_backward(call, tape, gout, wanted, gh, &at, err);

	if (status)
		return status;
	norm(call, at.h, at.u);
	for (size_t i = 0; i < call->sources; i++)
		sources[i] = (struct rosa_source){.lookup = &tape->lookups[i],
						  .q = i == call->own ? at.x.q : NULL,
						  .k = i == call->own ? at.x.k : NULL};
	inputs = (struct rosa_inputs){call->sources, sources, at.x.v, at.u, at.u};
	layer_read_batch(&call->setup, &call->weights, &call->sequences, &inputs);
	if (at.gh)
		cpu_training_ops.clear(backend, call->numbers, at.gh);
	if (at.gu)
		cpu_training_ops.clear(backend, call->numbers, at.gu);
	if (at.ga0)
		cpu_training_ops.clear(backend, n, at.ga0);
	if (at.inj) {
		layer_inject(&call->setup, &call->weights, rows, call->sequences.y, false, at.inj);
		cpu_training_ops.mix_back(backend, rows, n, call->layer.a0, at.h, at.inj, at.gout, at.gh, at.ginj,
					  at.ga0);
	}
	status = layer_backward(&(struct rosa_backward){.setup = &call->setup,
							.weights = &call->weights,
							.batch = &call->sequences,
							.learning = &call->learning,
							.inputs = &inputs,
							.ginj = at.ginj,
							.back = &at.back,
							.grads = &grads,
							.gu = at.gu,
							.gx = at.gu},
				err);
	if (status)
		return status;
	/* nothing fails any more */
	if (at.ga0)
		backend->ops->add(backend, n, at.ga0, wanted->a0);
	if (at.gu)
		cpu_training_ops.rms_norm_back(backend, rows, n, at.h, call->layer.norm, call->layer.norm_eps, at.gu,
					       at.scales, at.gh, wanted->norm);
	if (gh)
		narrow(call, at.gh, gh);
	return ROSA_OK;
}

rosa_status rosa_layer_backward(const rosa_tape *tape, const rosa_layer *layer, const void *gout,
				const rosa_layer_grads *grads, void *gh, rosa_error *err)
{
	rosa_layer_grads full = {.size = sizeof(full)};
	struct call call;
	rosa_status status;

	if (!tape || !gout)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", tape ? "gout" : "tape");
	if (grads) {
		if (grads->size < offsetof(rosa_layer_grads, norm) + sizeof(grads->norm))
			return rosa_fail(err, ROSA_EINVAL,
					 "grads.size is %zu; set it to sizeof(rosa_layer_grads), which is %zu",
					 grads->size, sizeof(*grads));
		memcpy(&full, grads, grads->size < sizeof(*grads) ? grads->size : sizeof(*grads));
	}
	status = check_call(&tape->options, &tape->learning, layer, tape->batch, tape->steps, &call, err);
	if (!status)
		status = check_same_layer(tape, &call, err);
	if (!status && gh)
		status = check_apart(&call, "gout", gout, "gh", gh, err);
	if (status)
		return status;
	status = call_begin(&call, err);
	if (!status)
		status = backward(&call, tape, gout, &full, gh, err);
	call_end(&call);
	return status;
}
