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
#include "rosa/layer.h"
#include "backend/convert.h"
#include "rosa/fusion.h"
#include "rosa/learning.h"
#include "base/memory.h"
#include "rosa/norm.h"
#include "rosa/pass.h"
#include "retrieval/rules.h"
#include "base/status.h"

/* ----------------------------------------------------------------------------------------------------- arguments -- */

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

rosa_status call_check(const rosa_options *options, const rosa_learning *learning, const rosa_layer *layer,
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

size_t call_bytes(const struct call *call)
{
	return call->rows.all * call->rows.channels * activation_size(call->rows.dtype);
}

rosa_status call_check_apart(const struct call *call, const char *a_name, const void *a, const char *b_name,
			     const void *b, rosa_error *err)
{
	const uintptr_t bytes = call_bytes(call);

	if ((uintptr_t)a < (uintptr_t)b + bytes && (uintptr_t)b < (uintptr_t)a + bytes)
		return rosa_fail(err, ROSA_EINVAL, "%s and %s overlap; give each an array of its own", a_name, b_name);
	return ROSA_OK;
}

/* -------------------------------------------------------------------------------------------------------- memory -- */

void *call_take(struct call *call, size_t size)
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

rosa_status call_begin(struct call *call, size_t rooms, rosa_error *err)
{
	const size_t channels = call->rows.channels, row = channels * sizeof(float);
	const size_t chunk = rows_chunk(&call->rows);

	call->workers = pool_threads(call->options.threads);
	if (call->workers > call->rows.all && !call->options.workers)
		call->workers = (unsigned)call->rows.all;
	for (size_t i = 0; i < rooms; i++)
		call->room[i] = call_take(call, chunk * row);
	call->scale = call_take(call, chunk * sizeof(*call->scale));
	call->worker_row = call_take(call, call->workers * 2 * row);
	if (call->layer.fusion == ROSA_PRE)
		call->gate = call_take(call, row);
	if (call->short_of_memory)
		return out_of_memory(call, err);
	call->rows.pool = pool_for(&call->options, call->workers);
	if (!call->rows.pool)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %u threads", call->workers);
	call->products = (struct products){.pool = call->rows.pool, .channels = channels};
	if (call->gate)
		fusion_gate(channels, call->layer.a0, call->gate);
	return ROSA_OK;
}

void call_end(struct call *call)
{
	pool_done(&call->options, call->rows.pool);
	for (size_t i = 0; i < call->blocks; i++)
		memory_free(&call->options.allocator, call->block[i]);
}

float *row_of_worker(const struct call *call, unsigned worker, size_t which)
{
	return call->worker_row + (worker * 2 + which) * call->rows.channels;
}

float *row_of_chunk(const struct call *call, float *chunk, size_t row)
{
	return chunk + (row - call->rows.first) * call->rows.channels;
}

/* -------------------------------------------------------------------------------------------- steps of both ways -- */

void norm_block(void *context, size_t block, unsigned worker)
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

void pack_block(void *context, size_t block, unsigned worker)
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

/* ------------------------------------------------------------------------------------------------------ the tape -- */

void *tape_take(rosa_tape *tape, size_t size)
{
	void *block = memory_resize(&tape->options.allocator, NULL, size);

	if (block)
		tape->bytes += size;
	return block;
}

rosa_status tape_new(const struct call *call, rosa_tape **made, rosa_error *err)
{
	const size_t bytes = call_bytes(call);
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
