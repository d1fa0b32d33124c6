/*
 * The forward pass of a layer, in three strides: rows to symbols, symbols to y, y to what the layer gives.
 *
 * The first and the last go through the rows in chunks; in between, retrieval wants whole streams, and so all symbols
 * are there at once. They are a small part of what the rows were: without a tape, q, k and v are gone by then.
 */
#include "backend/convert.h"
#include "rosa/fusion.h"
#include "rosa/layer.h"
#include "base/memory.h"
#include "base/status.h"

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
		    i == 1 && call->shared ? pass->symbols[0] : call_take(call, cells * sizeof(**pass->symbols));
	pass->read = pass->tape ? pass->tape->read : call_take(call, cells * (size_t)rosa_width(call->steps));
	pass->y = call_take(call, call_bytes(call));
	if (!pass->tape || !pass->tape->q)
		pass->narrow =
		    call_take(call, rows_chunk(&call->rows) * layer->channels * activation_size(layer->dtype));
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
		memcpy(pass->tape->h, call->h, call_bytes(call));
	return ROSA_OK;
}

rosa_status rosa_layer_forward(const rosa_options *options, const rosa_learning *learning, const rosa_layer *layer,
			       size_t batch, size_t steps, const void *h, void *out, rosa_tape **tape, rosa_error *err)
{
	struct forward pass = {.out = out};
	rosa_status status;

	if (tape)
		*tape = NULL;
	status = call_check(options, learning, layer, batch, steps, &pass.call, err);
	if (status)
		return status;
	if (!h || !out)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", h ? "out" : "h");
	status = call_check_apart(&pass.call, "h", h, "out", out, err);
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
