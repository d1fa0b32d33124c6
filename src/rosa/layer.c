/*
 * The operator as a layer: the order of its steps, and what is kept between the two passes.
 *
 * What is rounded and when. The rows that steps hand to each other and that the tape keeps (q, k, v, y, and on the way
 * back their gradients) are of the dtype of the activations, so that symbols and slopes are those of the numbers kept.
 * Everything in between is float32: U, inj and every product live for one chunk of rows only, and rounding them would
 * lose something and save nothing.
 *
 * What is kept. Of the input, H: U alone does not tell H where a weight of the norm is 0, and U is made again from H in
 * one pass over the row. q, k and v, since it would take a product each to make them again; with a shared projection q
 * and k are the same rows, and where no rule reads them neither is kept. The destinations, in as few bytes as hold
 * them. Not y: it is the value bits at the destinations, and rosa_read makes it again in far less time than a product
 * takes. So a token costs 4 C numbers (3 C if shared, 2 C if q and k do not learn) and C/M destinations, and with
 * counterfactuals M + 1 more for every query run.
 *
 * Gradients are added to the caller's. So that a call that fails changes none of them, all that can fail comes before
 * the first addition; once the arguments are checked, that is memory alone.
 */
#include "convert.h"
#include "fusion.h"
#include "learning.h"
#include "memory.h"
#include "norm.h"
#include "pass.h"
#include "projection.h"
#include "rows.h"
#include "rules.h"
#include "status.h"

struct rosa_tape {
	rosa_options options;
	rosa_learning learning;
	rosa_fusion fusion;
	rosa_dtype dtype;
	bool shared; /* wq == wk */
	size_t batch, steps, channels;
	/* Each [batch][steps][channels]. k is q if shared; both are NULL if no rule reads them. */
	void *h, *q, *k, *v;
	void *read, *flips; /* as rosa_find fills them; flips NULL without counterfactuals */
	size_t bytes;       /* all of it */
};

/* One call: its arguments, checked and in full, its memory, and the rows it is at. */
struct call {
	rosa_options options;
	rosa_learning learning;
	rosa_layer layer;
	size_t batch, steps;
	size_t routes; /* of one batch entry */
	bool shared;
	struct rows rows;
	struct products products;
	const void *h;
	float *room[3];    /* [a chunk of rows][channels] */
	float *scale;      /* [a chunk of rows], 1 / rms */
	float *worker_row; /* [workers][2][channels] */
	float *gate;       /* [channels], a; ROSA_PRE only */
	unsigned workers;
	void *block[24]; /* all memory of the call */
	size_t blocks;
	bool short_of_memory;
};

/* ------------------------------------------------------------------------------------------------------ arguments --
 */

static rosa_status check_parameters(const rosa_layer *layer, rosa_error *err)
{
	const struct {
		const char *name;
		const float *pointer;
	} parameters[] = {{"norm", layer->norm}, {"wq", layer->wq}, {"wk", layer->wk},     {"wv", layer->wv},
			  {"e0", layer->e0},     {"e1", layer->e1}, {"wout", layer->wout}, {"a0", layer->a0}};
	const size_t needed = sizeof(parameters) / sizeof(*parameters) - (layer->fusion == ROSA_POST);

	for (size_t i = 0; i < needed; i++)
		if (!parameters[i].pointer)
			return rosa_fail(err, ROSA_EINVAL, "layer.%s is NULL; %s fusion needs it", parameters[i].name,
					 layer->fusion == ROSA_POST ? "post" : "pre");
	return ROSA_OK;
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
	return check_parameters(layer, err);
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
		status = pass_check(call->layer.dtype, batch, steps, call->layer.channels, rules.bits, err);
	if (status)
		return status;
	call->routes = call->layer.channels / (size_t)call->options.bits;
	call->shared = call->layer.wq == call->layer.wk;
	call->rows = (struct rows){
	    .dtype = call->layer.dtype, .channels = call->layer.channels, .all = batch * steps, .first = 0};
	return ROSA_OK;
}

/* Bytes of an array of all rows. */
static size_t all_rows(const struct call *call)
{
	return call->rows.all * call->rows.channels * activation_size(call->rows.dtype);
}

static rosa_status check_apart(const struct call *call, const char *a_name, const void *a, const char *b_name,
			       const void *b, rosa_error *err)
{
	const uintptr_t bytes = all_rows(call);

	if ((uintptr_t)a < (uintptr_t)b + bytes && (uintptr_t)b < (uintptr_t)a + bytes)
		return rosa_fail(err, ROSA_EINVAL, "%s and %s overlap; give each an array of its own", a_name, b_name);
	return ROSA_OK;
}

/* --------------------------------------------------------------------------------------------------------- memory --
 */

/* Memory until the end of the call. Failure is noted, so that it need not be looked for after each. */
static void *take(struct call *call, size_t size)
{
	void *block = memory_scratch(&call->options.allocator, size);

	if (block)
		call->block[call->blocks++] = block;
	else
		call->short_of_memory = true;
	return block;
}

static rosa_status out_of_memory(const struct call *call, rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM,
			 "no memory for a layer of %zu channels over %zu batch entries of %zu steps; use fewer of them",
			 call->rows.channels, call->batch, call->steps);
}

/* Workers, and room for as many chunks of rows as the pass has in hand at once. */
static rosa_status call_begin(struct call *call, size_t rooms, rosa_error *err)
{
	const size_t channels = call->rows.channels, row = channels * sizeof(float);
	const size_t chunk = rows_chunk(&call->rows);

	call->workers = pool_threads(call->options.threads);
	if (call->workers > call->rows.all)
		call->workers = (unsigned)call->rows.all;
	for (size_t i = 0; i < rooms; i++)
		call->room[i] = take(call, chunk * row);
	call->scale = take(call, chunk * sizeof(*call->scale));
	call->worker_row = take(call, call->workers * 2 * row);
	if (call->layer.fusion == ROSA_PRE)
		call->gate = take(call, row);
	if (call->short_of_memory)
		return out_of_memory(call, err);
	call->rows.pool = pool_new(&call->options.allocator, call->workers);
	if (!call->rows.pool)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %u threads", call->workers);
	call->products = (struct products){.pool = call->rows.pool, .channels = channels};
	if (call->gate)
		fusion_gate(channels, call->layer.a0, call->gate);
	return ROSA_OK;
}

static void call_end(struct call *call)
{
	pool_free(call->rows.pool, &call->options.allocator);
	for (size_t i = 0; i < call->blocks; i++)
		memory_free(&call->options.allocator, call->block[i]);
}

/* Two rows that belong to a worker. */
static float *row_of_worker(const struct call *call, unsigned worker, size_t which)
{
	return call->worker_row + (worker * 2 + which) * call->rows.channels;
}

/* Row `row`, counted from the first of all, of an array that holds the chunk alone. */
static float *row_of_chunk(const struct call *call, float *chunk, size_t row)
{
	return chunk + (row - call->rows.first) * call->rows.channels;
}

/* ---------------------------------------------------------------------------------------------- steps of both ways --
 */

/* room[0] = U of the chunk */
static void norm_block(void *context, size_t block, unsigned worker)
{
	struct call *call = context;
	size_t first, last;

	(void)worker;
	rows_block(&call->rows, block, &first, &last);
	for (size_t row = first; row < last; row++) {
		float *u = row_of_chunk(call, call->room[0], row);
		const float *h = rows_floats(&call->rows, call->h, row, u);

		call->scale[row - call->rows.first] =
		    rmsnorm(call->rows.channels, h, call->layer.norm, call->layer.norm_eps, u);
	}
}

struct packing {
	const struct call *call;
	const float *wide; /* the chunk's rows before rounding; NULL: they are there */
	char *narrow;      /* the chunk's rows */
	uint16_t *symbols; /* [batch][routes][steps] */
};

/* Round the chunk's rows to the dtype of the activations and take the symbols of what they have become. */
static void pack_block(void *context, size_t block, unsigned worker)
{
	const struct packing *packing = context;
	const struct call *call = packing->call;
	const struct rows *rows = &call->rows;
	const size_t steps = call->steps, element = activation_size(rows->dtype);
	size_t first, last, count, done;

	(void)worker;
	rows_block(rows, block, &first, &last);
	done = (first - rows->first) * rows->channels;
	if (packing->wide)
		activations_store(packing->narrow, rows->dtype, packing->wide + done, done,
				  (last - first) * rows->channels);
	for (size_t row = first; row < last; row += count) {
		const size_t entry = row / steps, t = row % steps;

		count = steps - t < last - row ? steps - t : last - row;
		/* all that this could refuse has been checked */
		(void)rosa_pack(rows->dtype, packing->narrow + (row - rows->first) * rows->channels * element, 0, count,
				rows->channels, call->options.bits, packing->symbols + entry * call->routes * steps + t,
				steps, NULL);
	}
}

/* ------------------------------------------------------------------------------------------------------- the tape --
 */

static void *tape_take(rosa_tape *tape, size_t size)
{
	void *block = memory_resize(&tape->options.allocator, NULL, size);

	if (block)
		tape->bytes += size;
	return block;
}

static rosa_status tape_new(const struct call *call, rosa_tape **made, rosa_error *err)
{
	const size_t bytes = all_rows(call);
	rosa_tape *tape = memory_resize(&call->options.allocator, NULL, sizeof(*tape));
	bool whole;

	if (!tape)
		return out_of_memory(call, err);
	*tape = (rosa_tape){.options = call->options,
			    .learning = call->learning,
			    .fusion = call->layer.fusion,
			    .dtype = call->layer.dtype,
			    .shared = call->shared,
			    .batch = call->batch,
			    .steps = call->steps,
			    .channels = call->rows.channels,
			    .bytes = sizeof(*tape)};
	tape->h = tape_take(tape, bytes);
	tape->v = tape_take(tape, bytes);
	tape->read = tape_take(tape, call->batch * call->routes * call->steps * (size_t)rosa_width(call->steps));
	whole = tape->h && tape->v && tape->read;
	if (call->learning.qk_grad != ROSA_QK_NONE) {
		tape->q = tape_take(tape, bytes);
		tape->k = call->shared ? tape->q : tape_take(tape, bytes);
		whole = whole && tape->q && tape->k;
	}
	*made = tape;
	return whole ? ROSA_OK : out_of_memory(call, err);
}

size_t rosa_tape_bytes(const rosa_tape *tape)
{
	return tape ? tape->bytes : 0;
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
	memory_free(&allocator, tape->read);
	memory_free(&allocator, tape->flips);
	memory_free(&allocator, tape);
}

/* -------------------------------------------------------------------------------------------------------- forward --
 */

struct forward {
	struct call call;
	rosa_tape *tape; /* NULL: none wanted */
	void *out;
	void *narrow;         /* the chunk's rows of q, k or v in their dtype, where no tape keeps them */
	uint16_t *symbols[3]; /* of q, k, v */
	void *read, *y;
	float *mixed; /* the chunk's inj, then out; ROSA_PRE only */
};

/* The chunk's rows of q, k or v, their symbols and, with `kept`, the rows themselves for the way back. */
static void forward_project(struct forward *pass, const float *w, void *kept, uint16_t *symbols)
{
	struct call *call = &pass->call;
	struct packing packing = {.call = call, .symbols = symbols};

	packing.narrow = kept ? rows_at(&call->rows, kept, call->rows.first) : pass->narrow;
	if (call->rows.dtype == ROSA_FLOAT32) {
		project(&call->products, call->rows.count, call->room[0], w, (float *)(void *)packing.narrow);
	} else {
		project(&call->products, call->rows.count, call->room[0], w, call->room[1]);
		packing.wide = call->room[1];
	}
	rows_each(&call->rows, pack_block, &packing);
}

/* U = norm(H); q, k, v = U Wq, U Wk, U Wv */
static void forward_symbols(struct forward *pass)
{
	struct call *call = &pass->call;
	rosa_tape *tape = pass->tape;

	for (bool more = rows_begin(&call->rows); more; more = rows_next(&call->rows)) {
		rows_each(&call->rows, norm_block, call);
		forward_project(pass, call->layer.wq, tape ? tape->q : NULL, pass->symbols[0]);
		if (!call->shared)
			forward_project(pass, call->layer.wk, tape ? tape->k : NULL, pass->symbols[1]);
		forward_project(pass, call->layer.wv, tape ? tape->v : NULL, pass->symbols[2]);
	}
}

/* tau, and with counterfactuals the table that the tape keeps */
static rosa_status forward_find(struct forward *pass, rosa_error *err)
{
	struct call *call = &pass->call;
	rosa_learning learning = call->learning;
	const size_t routes = call->batch * call->routes;
	void *flips = NULL;

	/* nobody will ask for the table */
	if (!pass->tape && learning.qk_grad == ROSA_QK_FLIPS)
		learning.qk_grad = ROSA_QK_NONE;
	if (learning.qk_grad == ROSA_QK_FLIPS) {
		size_t runs = rosa_count_runs(routes, call->steps, pass->symbols[0], call->options.fold);

		flips =
		    tape_take(pass->tape, runs * (size_t)(call->options.bits + 1) * (size_t)rosa_width(call->steps));
		if (!flips)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the tables of %zu query runs", runs);
		pass->tape->flips = flips;
	}
	return rosa_find(&call->options, &learning, routes, call->steps, pass->symbols[0], pass->symbols[1], pass->read,
			 flips, err);
}

static void mix_block(void *context, size_t block, unsigned worker)
{
	struct forward *pass = context;
	struct call *call = &pass->call;
	size_t first, last;

	rows_block(&call->rows, block, &first, &last);
	for (size_t row = first; row < last; row++) {
		const float *h = rows_floats(&call->rows, call->h, row, row_of_worker(call, worker, 0));
		float *out = row_of_chunk(call, pass->mixed, row);

		fusion_pre(call->rows.channels, call->gate, h, out, out);
	}
}

/* inj = Wout y; out = inj or Mix */
static void forward_fuse(struct forward *pass)
{
	struct call *call = &pass->call;

	for (bool more = rows_begin(&call->rows); more; more = rows_next(&call->rows)) {
		const float *y = rows_widen(&call->rows, pass->y, call->room[0]);
		float *target = rows_target(&call->rows, pass->out, call->room[1]);

		inject(&call->products, call->rows.count, y, call->layer.wout, target);
		if (call->layer.fusion == ROSA_PRE) {
			pass->mixed = target;
			rows_each(&call->rows, mix_block, pass);
		}
		rows_narrow(&call->rows, target, pass->out);
	}
}

static rosa_status forward_run(struct forward *pass, rosa_error *err)
{
	struct call *call = &pass->call;
	const rosa_layer *layer = &call->layer;
	const size_t cells = call->batch * call->routes * call->steps;
	rosa_status status;

	for (int i = 0; i < 3; i++)
		pass->symbols[i] =
		    i == 1 && call->shared ? pass->symbols[0] : take(call, cells * sizeof(**pass->symbols));
	pass->read = pass->tape ? pass->tape->read : take(call, cells * (size_t)rosa_width(call->steps));
	pass->y = take(call, all_rows(call));
	if (!pass->tape || !pass->tape->q)
		pass->narrow = take(call, rows_chunk(&call->rows) * layer->channels * activation_size(layer->dtype));
	status = call_begin(call, 2, err);
	if (status)
		return status;
	forward_symbols(pass);
	status = forward_find(pass, err);
	if (!status)
		status = rosa_read(&call->options, layer->dtype, call->batch, call->steps, layer->channels,
				   pass->symbols[2], call->steps, pass->read, layer->e0, layer->e1, pass->y, err);
	if (status)
		return status;
	forward_fuse(pass);
	if (pass->tape)
		memcpy(pass->tape->h, call->h, all_rows(call));
	return ROSA_OK;
}

rosa_status rosa_layer_forward(const rosa_options *options, const rosa_learning *learning, const rosa_layer *layer,
			       size_t batch, size_t steps, const void *h, void *out, rosa_tape **tape, rosa_error *err)
{
	struct forward pass = {.out = out};
	rosa_status status;

	if (tape)
		*tape = NULL;
	status = check_call(options, learning, layer, batch, steps, &pass.call, err);
	if (status)
		return status;
	if (!h || !out)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", h ? "out" : "h");
	status = check_apart(&pass.call, "h", h, "out", out, err);
	if (status)
		return status;
	pass.call.h = h;
	if (tape)
		status = tape_new(&pass.call, &pass.tape, err);
	if (!status)
		status = forward_run(&pass, err);
	call_end(&pass.call);
	if (status)
		rosa_tape_free(pass.tape);
	else if (tape)
		*tape = pass.tape;
	return status;
}

/* ------------------------------------------------------------------------------------------------------- backward --
 */

struct backward {
	struct call call;
	const rosa_tape *tape;
	rosa_layer_grads grads;
	const void *gout;
	void *gh;
	/* [batch][steps][channels]; NULL where nobody asks. y takes the place of gy once that has been used. */
	void *gy, *gq, *gk, *gv, *y;
	float *ge0, *ge1;  /* [channels] */
	uint16_t *symbols; /* of v */
	struct row_sums norm, gate;
};

/* room[0] = ginj = a gout */
static void gate_block(void *context, size_t block, unsigned worker)
{
	struct backward *pass = context;
	struct call *call = &pass->call;
	size_t first, last;

	(void)worker;
	rows_block(&call->rows, block, &first, &last);
	for (size_t row = first; row < last; row++) {
		float *ginj = row_of_chunk(call, call->room[0], row);

		fusion_pre_backward_inj(call->rows.channels, call->gate,
					rows_floats(&call->rows, pass->gout, row, ginj), ginj);
	}
}

/* The chunk's ginj: gout itself in post fusion. */
static const float *backward_fuse(struct backward *pass)
{
	struct call *call = &pass->call;

	if (call->layer.fusion == ROSA_POST)
		return rows_widen(&call->rows, pass->gout, call->room[0]);
	rows_each(&call->rows, gate_block, pass);
	return call->room[0];
}

/* gy = Wout^T ginj, of all rows */
static void backward_inject(struct backward *pass)
{
	struct call *call = &pass->call;

	for (bool more = rows_begin(&call->rows); more; more = rows_next(&call->rows)) {
		const float *ginj = backward_fuse(pass);
		float *target = rows_target(&call->rows, pass->gy, call->room[1]);

		inject_backward_rows(&call->products, call->rows.count, ginj, call->layer.wout, target);
		rows_narrow(&call->rows, target, pass->gy);
	}
}

/* From gy to gradients of q, k, v, e0 and e1. */
static rosa_status backward_read(struct backward *pass, rosa_error *err)
{
	const rosa_tape *tape = pass->tape;
	const struct call *call = &pass->call;
	/* where no rule reads q and k, v stands in for what must be there */
	const rosa_read_pass args = {.size = sizeof(args),
				     .dtype = tape->dtype,
				     .batch = tape->batch,
				     .steps = tape->steps,
				     .channels = tape->channels,
				     .q = tape->q ? tape->q : tape->v,
				     .k = tape->k ? tape->k : tape->v,
				     .v = tape->v,
				     .e0 = call->layer.e0,
				     .e1 = call->layer.e1,
				     .read = tape->read,
				     .flips = tape->flips,
				     .gy = pass->gy,
				     .gq = pass->gq,
				     .gk = pass->gk,
				     .gv = pass->gv,
				     .ge0 = pass->ge0,
				     .ge1 = pass->ge1};

	return rosa_read_backward(&call->options, &call->learning, &args, err);
}

/* y once more, from v and the destinations. */
static rosa_status backward_reread(struct backward *pass, rosa_error *err)
{
	const rosa_tape *tape = pass->tape;
	struct call *call = &pass->call;
	struct packing packing = {.call = call, .symbols = pass->symbols};

	for (bool more = rows_begin(&call->rows); more; more = rows_next(&call->rows)) {
		packing.narrow = rows_at(&call->rows, tape->v, call->rows.first);
		rows_each(&call->rows, pack_block, &packing);
	}
	return rosa_read(&call->options, tape->dtype, tape->batch, tape->steps, tape->channels, pass->symbols,
			 tape->steps, tape->read, call->layer.e0, call->layer.e1, pass->y, err);
}

/* What the chunk gives to the gate's gradient; room[2] holds inj. */
static void gate_sum_block(void *context, size_t block, unsigned worker)
{
	struct backward *pass = context;
	struct call *call = &pass->call;
	float *sum = row_sums_of_block(&pass->gate, block);
	size_t first, last;

	rows_block(&call->rows, block, &first, &last);
	for (size_t row = first; row < last; row++) {
		const float *h = rows_floats(&call->rows, call->h, row, row_of_worker(call, worker, 0));
		const float *gout = rows_floats(&call->rows, pass->gout, row, row_of_worker(call, worker, 1));

		fusion_pre_backward_gate(call->rows.channels, gout, row_of_chunk(call, call->room[2], row), h, sum);
	}
}

/* The chunk's share in the gradients of Wout and a0. */
static void backward_wout(struct backward *pass)
{
	struct call *call = &pass->call;
	const float *y = rows_widen(&call->rows, pass->y, call->room[1]);

	if (pass->grads.wout)
		inject_backward_weight(&call->products, call->rows.count, backward_fuse(pass), y, pass->grads.wout);
	if (pass->gate.total) {
		inject(&call->products, call->rows.count, y, call->layer.wout, call->room[2]);
		rows_each(&call->rows, gate_sum_block, pass);
		row_sums_gather(&pass->gate, &call->rows);
	}
}

/* room[1] = the sum of two arrays of the chunk's rows */
static void add_block(void *context, size_t block, unsigned worker)
{
	struct backward *pass = context;
	struct call *call = &pass->call;
	size_t first, last;

	rows_block(&call->rows, block, &first, &last);
	for (size_t row = first; row < last; row++) {
		float *sum = row_of_chunk(call, call->room[1], row);
		const float *a = rows_floats(&call->rows, pass->gq, row, sum);
		const float *b = rows_floats(&call->rows, pass->gk, row, row_of_worker(call, worker, 0));

		for (size_t c = 0; c < call->rows.channels; c++)
			sum[c] = a[c] + b[c];
	}
}

/* Through one projection: room[0] is U, gx the chunk's gradient of what was projected, room[2] sums what U gets. */
static void backward_project(struct backward *pass, const float *gx, const float *w, float *gw, bool *begun)
{
	struct call *call = &pass->call;

	if (gw)
		project_backward_weight(&call->products, call->rows.count, call->room[0], gx, gw);
	if (pass->gh || pass->norm.total)
		project_backward_rows(&call->products, call->rows.count, gx, w, *begun, call->room[2]);
	*begun = true;
}

/* gU in room[2] becomes gh; in pre fusion h also flows by the gate. */
static void norm_backward_block(void *context, size_t block, unsigned worker)
{
	struct backward *pass = context;
	struct call *call = &pass->call;
	const size_t channels = call->rows.channels;
	float *gnorm = pass->norm.total ? row_sums_of_block(&pass->norm, block) : NULL;
	size_t first, last;

	rows_block(&call->rows, block, &first, &last);
	for (size_t row = first; row < last; row++) {
		const float *h = rows_floats(&call->rows, call->h, row, row_of_worker(call, worker, 0));
		float *gh = row_of_chunk(call, call->room[2], row);

		rmsnorm_backward(channels, h, call->layer.norm, call->scale[row - call->rows.first], gh, gh, gnorm);
		if (!pass->gh)
			continue;
		if (call->layer.fusion == ROSA_PRE)
			fusion_pre_backward_h(channels, call->gate,
					      rows_floats(&call->rows, pass->gout, row, row_of_worker(call, worker, 0)),
					      gh);
		activations_store(pass->gh, call->layer.dtype, gh, row * channels, channels);
	}
}

/* The chunk's share in the gradients of Wq, Wk, Wv and the norm, and gh. */
static void backward_projections(struct backward *pass)
{
	struct call *call = &pass->call;
	const rosa_layer *layer = &call->layer;
	bool begun = false;

	rows_each(&call->rows, norm_block, call);
	if (pass->gq && call->shared) {
		rows_each(&call->rows, add_block, pass);
		backward_project(pass, call->room[1], layer->wq, pass->grads.wq, &begun);
	} else {
		if (pass->gq)
			backward_project(pass, rows_widen(&call->rows, pass->gq, call->room[1]), layer->wq,
					 pass->grads.wq, &begun);
		if (pass->gk)
			backward_project(pass, rows_widen(&call->rows, pass->gk, call->room[1]), layer->wk,
					 pass->grads.wk, &begun);
	}
	if (pass->gv)
		backward_project(pass, rows_widen(&call->rows, pass->gv, call->room[1]), layer->wv, pass->grads.wv,
				 &begun);
	if (pass->gh || pass->norm.total) {
		rows_each(&call->rows, norm_backward_block, pass);
		if (pass->norm.total)
			row_sums_gather(&pass->norm, &call->rows);
	}
}

static struct row_sums take_sums(struct call *call)
{
	const size_t channels = call->rows.channels;
	const size_t blocks = (rows_chunk(&call->rows) + ROWS_BLOCK - 1) / ROWS_BLOCK;
	struct row_sums sums = {.channels = channels,
				.total = take(call, channels * (sizeof(double) + blocks * sizeof(float)))};

	if (sums.total) {
		memset(sums.total, 0, channels * sizeof(*sums.total));
		sums.partial = (float *)(sums.total + channels);
	}
	return sums;
}

/* Memory for what the asked-for gradients need, and for nothing else. */
static void backward_take(struct backward *pass)
{
	struct call *call = &pass->call;
	const rosa_layer_grads *grads = &pass->grads;
	const size_t bytes = all_rows(call);
	const bool through = pass->gh || grads->norm, learns = call->learning.qk_grad != ROSA_QK_NONE;
	const bool gate = call->layer.fusion == ROSA_PRE && grads->a0;

	pass->gy = take(call, bytes);
	if (learns && (through || grads->wq))
		pass->gq = take(call, bytes);
	if (learns && (through || (call->shared ? grads->wq : grads->wk)))
		pass->gk = take(call, bytes);
	if (through || grads->wv)
		pass->gv = take(call, bytes);
	if (gate || grads->wout) {
		pass->symbols = take(call, call->batch * call->routes * call->steps * sizeof(*pass->symbols));
		pass->y = pass->gy;
	}
	if (grads->e0)
		pass->ge0 = take(call, call->rows.channels * sizeof(float));
	if (grads->e1)
		pass->ge1 = take(call, call->rows.channels * sizeof(float));
	if (grads->norm)
		pass->norm = take_sums(call);
	if (gate)
		pass->gate = take_sums(call);
}

/* The sums that are not products. */
static void backward_vectors(const struct backward *pass)
{
	const rosa_layer_grads *grads = &pass->grads;

	for (size_t c = 0; c < pass->call.rows.channels; c++) {
		if (grads->e0)
			grads->e0[c] += pass->ge0[c];
		if (grads->e1)
			grads->e1[c] += pass->ge1[c];
		if (grads->norm)
			grads->norm[c] += (float)pass->norm.total[c];
		if (pass->gate.total)
			grads->a0[c] += (float)fusion_gate_backward(pass->call.gate[c], pass->gate.total[c]);
	}
}

static rosa_status backward_run(struct backward *pass, rosa_error *err)
{
	struct call *call = &pass->call;
	rosa_status status;

	backward_take(pass);
	status = call_begin(call, 3, err);
	if (status)
		return status;
	backward_inject(pass);
	status = backward_read(pass, err);
	if (!status && pass->y)
		status = backward_reread(pass, err);
	if (status)
		return status;
	/* nothing fails any more */
	for (bool more = rows_begin(&call->rows); more; more = rows_next(&call->rows)) {
		if (pass->y)
			backward_wout(pass);
		if (pass->gq || pass->gk || pass->gv)
			backward_projections(pass);
	}
	backward_vectors(pass);
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
		      {"wq == layer.wk", call->shared, tape->shared}};

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (fields[i].now != fields[i].then)
			return rosa_fail(err, ROSA_EINVAL,
					 "layer.%s is %zu and was %zu in the forward pass; give the same layer to both",
					 fields[i].name, fields[i].now, fields[i].then);
	return ROSA_OK;
}

rosa_status rosa_layer_backward(const rosa_tape *tape, const rosa_layer *layer, const void *gout,
				const rosa_layer_grads *grads, void *gh, rosa_error *err)
{
	struct backward pass = {.tape = tape, .gout = gout, .gh = gh};
	rosa_status status;

	if (!tape || !gout)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", tape ? "gout" : "tape");
	if (grads) {
		if (grads->size < offsetof(rosa_layer_grads, norm) + sizeof(grads->norm))
			return rosa_fail(err, ROSA_EINVAL,
					 "grads.size is %zu; set it to sizeof(rosa_layer_grads), which is %zu",
					 grads->size, sizeof(*grads));
		memcpy(&pass.grads, grads, grads->size < sizeof(*grads) ? grads->size : sizeof(*grads));
	}
	status = check_call(&tape->options, &tape->learning, layer, tape->batch, tape->steps, &pass.call, err);
	if (!status)
		status = check_same_layer(tape, &pass.call, err);
	if (!status && gh)
		status = check_apart(&pass.call, "gout", gout, "gh", gh, err);
	if (status)
		return status;
	pass.call.h = tape->h;
	status = backward_run(&pass, err);
	call_end(&pass.call);
	return status;
}
