/*
 * The backward pass of a layer.
 *
 * gy of all rows comes first, since a key or a value gets its gradient from any later step; then the read-out's own way
 * back, and y once more; then, in chunks, everything that is a sum over rows or belongs to a row alone. Only what the
 * caller asks for is computed.
 */
#include "backend/convert.h"
#include "rosa/fusion.h"
#include "rosa/layer.h"
#include "base/memory.h"
#include "rosa/norm.h"
#include "base/status.h"

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
	const rosa_read_pass args = {.size = sizeof(args),
				     .dtype = tape->dtype,
				     .batch = tape->batch,
				     .steps = tape->steps,
				     .channels = tape->channels,
				     .q = tape->q,
				     .k = tape->k,
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
				.total = call_take(call, channels * (sizeof(double) + blocks * sizeof(float)))};

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
	const size_t bytes = call_bytes(call);
	const bool through = pass->gh || grads->norm, learns = call->learning.qk_grad != ROSA_QK_NONE;
	const bool gate = call->layer.fusion == ROSA_PRE && grads->a0;

	pass->gy = call_take(call, bytes);
	if (learns && (through || grads->wq))
		pass->gq = call_take(call, bytes);
	if (learns && (through || (call->shared ? grads->wq : grads->wk)))
		pass->gk = call_take(call, bytes);
	if (through || grads->wv)
		pass->gv = call_take(call, bytes);
	if (gate || grads->wout) {
		pass->symbols = call_take(call, call->batch * call->routes * call->steps * sizeof(*pass->symbols));
		pass->y = pass->gy;
	}
	if (grads->e0)
		pass->ge0 = call_take(call, call->rows.channels * sizeof(float));
	if (grads->e1)
		pass->ge1 = call_take(call, call->rows.channels * sizeof(float));
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
	status = call_check(&tape->options, &tape->learning, layer, tape->batch, tape->steps, &pass.call, err);
	if (!status)
		status = check_same_layer(tape, &pass.call, err);
	if (!status && gh)
		status = call_check_apart(&pass.call, "gout", gout, "gh", gh, err);
	if (status)
		return status;
	pass.call.h = tape->h;
	status = backward_run(&pass, err);
	call_end(&pass.call);
	return status;
}
