/*
 * The decoder: weights on a backend, memory for a chunk of rows, and the division of texts into forward passes.
 *
 * Texts of any length are processed in passes of at most `chunk` rows, so the memory for activations is fixed at the
 * start. A pass takes rows from as many sequences as fit: prompts fill it one after the other, and the next tokens of
 * many sequences are computed together, so that the weights are read once for all of them.
 *
 * Logits are the only result as wide as the vocabulary. They are computed for the requested rows only, a few at a time.
 */
#include "model/decoder_parts.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define MOST_CHUNK 65536

/* ------------------------------------------------------------------------------------------------------ weights -- */

rosa_status decoder_matrix_new(decoder *d, const struct tensor *tensor, struct matrix *matrix, rosa_error *err)
{
	return d->backend->ops->matrix_new(d->backend, tensor->format, tensor->shape[0], tensor->shape[1], tensor->data,
					   matrix, err);
}

static rosa_status load_vector(decoder *d, const struct tensor *tensor, float **vector, rosa_error *err)
{
	const struct backend_ops *ops = d->backend->ops;
	const size_t count = tensor_numbers(tensor);
	float *wide = malloc(count * sizeof(*wide));

	*vector = ops->take(d->backend, count * sizeof(**vector));
	if (!wide || !*vector) {
		free(wide);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %s (%zu numbers)", tensor->name, count);
	}
	format_widen(tensor->format, tensor->data, count, wide);
	ops->put(d->backend, *vector, wide, count * sizeof(*wide));
	free(wide);
	return ROSA_OK;
}

struct wanted {
	const struct tensor *tensor; /* NULL: not there, nothing to do */
	struct matrix *matrix;       /* either this */
	float **vector;              /* or that */
};

static rosa_status load_all(decoder *d, const struct wanted *wanted, size_t count, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		if (!wanted[i].tensor)
			continue;
		status = wanted[i].matrix ? decoder_matrix_new(d, wanted[i].tensor, wanted[i].matrix, err)
					  : load_vector(d, wanted[i].tensor, wanted[i].vector, err);
	}
	return status;
}

static rosa_status load_block(decoder *d, size_t number, rosa_error *err)
{
	const struct layer_weights *from = &d->checkpoint->layers[number];
	struct block *to = &d->blocks[number];
	const bool global = number < d->options.first_global_layers;
	const struct wanted wanted[] = {
	    {from->attention_norm, NULL, &to->attention_norm},
	    {from->q, &to->q, NULL},
	    {from->k, &to->k, NULL},
	    {from->v, &to->v, NULL},
	    {from->o, &to->o, NULL},
	    {from->q_norm, NULL, &to->q_norm},
	    {from->k_norm, NULL, &to->k_norm},
	    {from->q_bias, NULL, &to->q_bias},
	    {from->k_bias, NULL, &to->k_bias},
	    {from->v_bias, NULL, &to->v_bias},
	    {from->mlp_norm, NULL, &to->mlp_norm},
	    {from->gate, &to->gate, NULL},
	    {from->up, &to->up, NULL},
	    {from->down, &to->down, NULL},
	};

	to->window = global ? 0 : d->options.window;
	to->sinks = global ? 0 : d->options.sinks;
	return load_all(d, wanted, sizeof(wanted) / sizeof(wanted[0]), err);
}

static rosa_status load_rosa(decoder *d, size_t number, rosa_error *err)
{
	const struct adapter_layer *from = &d->adapter->layers[number];
	struct rosa_weights *to = &d->blocks[number].rosa;
	float *vectors[5] = {NULL, NULL, NULL, NULL, NULL};
	const struct wanted wanted[] = {
	    {from->k, &to->k, NULL},         {from->q == from->k ? NULL : from->q, &to->q, NULL},
	    {from->v, &to->v, NULL},         {from->out, &to->out, NULL},
	    {from->e0, NULL, &vectors[0]},   {from->e1, NULL, &vectors[1]},
	    {from->a0, NULL, &vectors[2]},   {from->gate, NULL, &vectors[3]},
	    {from->bias, NULL, &vectors[4]},
	};
	rosa_status status;

	d->blocks[number].has_rosa = adapter_has(d->adapter, number);
	if (!d->blocks[number].has_rosa)
		return ROSA_OK;
	status = load_all(d, wanted, sizeof(wanted) / sizeof(wanted[0]), err);
	if (from->q == from->k)
		to->q = to->k;
	to->e0 = vectors[0];
	to->e1 = vectors[1];
	to->a0 = vectors[2];
	to->gate_w = vectors[3];
	to->gate_b = vectors[4];
	return status == ROSA_OK ? decoder_reads_new(d, number, err) : status;
}

static rosa_status load_weights(decoder *d, rosa_error *err)
{
	const struct checkpoint *from = d->checkpoint;
	const struct wanted wanted[] = {
	    {from->embedding, &d->embedding, NULL},
	    {from->norm, NULL, &d->norm},
	    {from->head == from->embedding ? NULL : from->head, &d->head, NULL},
	};
	rosa_status status = load_all(d, wanted, sizeof(wanted) / sizeof(wanted[0]), err);

	for (size_t i = 0; i < from->config.layers && status == ROSA_OK; i++) {
		status = load_block(d, i, err);
		if (status == ROSA_OK && d->adapter)
			status = load_rosa(d, i, err);
	}
	return status;
}

/* ---------------------------------------------------------------------------------------------------- workspace -- */

static rosa_status take_rows(decoder *d, float **rows, size_t count, size_t width, rosa_error *err)
{
	size_t numbers, bytes;

	if (!__builtin_mul_overflow(count, width, &numbers) && !__builtin_mul_overflow(numbers, sizeof(float), &bytes))
		*rows = d->backend->ops->take(d->backend, bytes);
	if (!*rows)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu rows of %zu numbers; use a smaller chunk", count,
				 width);
	return ROSA_OK;
}

/* Whether some layer's adapter projects q and k. */
static bool learns_qk(const decoder *d)
{
	for (size_t i = 0; i < d->checkpoint->config.layers; i++)
		if (d->blocks[i].has_rosa && layer_own(&d->blocks[i].rosa))
			return true;
	return false;
}

static rosa_status make_workspace(decoder *d, rosa_error *err)
{
	const struct model_config *config = &d->checkpoint->config;
	const size_t chunk = d->options.chunk, queries = config->heads * config->head_size,
		     keys = config->kv_heads * config->head_size;
	struct workspace *work = &d->work;
	const bool rosa = d->adapter != NULL, qk = rosa && learns_qk(d);
	const struct {
		float **rows;
		size_t count, width;
		bool wanted;
	} parts[] = {
	    {&work->h, chunk, config->width, true},
	    {&work->u, chunk, config->width, true},
	    {&work->q, chunk, queries, true},
	    {&work->attended, chunk, queries, true},
	    {&work->k, chunk, keys, true},
	    {&work->v, chunk, keys, true},
	    {&work->gate, chunk, config->mlp_width, true},
	    {&work->up, chunk, config->mlp_width, true},
	    {&work->logits, chunk < LOGITS_ROWS ? chunk : LOGITS_ROWS, config->vocabulary, true},
	    {&work->rosa.q, chunk, config->width, qk},
	    {&work->rosa.k, chunk, config->width, qk},
	    {&work->rosa.v, chunk, config->width, rosa},
	    {&work->rosa_y, chunk, config->width, rosa},
	    {&work->rosa_z, chunk, 1, rosa},
	    {&work->embedded, chunk, config->width, rosa && d->adapter->options.v_from == V_EMBEDDINGS},
	    {&work->late_u, WAITING_ROWS, config->width, rosa},
	    {&work->late_v, WAITING_ROWS, config->width, rosa},
	};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == ROSA_OK; i++) {
		if (parts[i].wanted)
			status = take_rows(d, parts[i].rows, parts[i].count, parts[i].width, err);
	}
	return status == ROSA_OK && rosa ? decoder_sources_reserve(d, err) : status;
}

static void free_workspace(decoder *d)
{
	const struct backend_ops *ops = d->backend->ops;
	struct workspace *work = &d->work;
	float *parts[] = {work->h,      work->u,      work->q,      work->attended, work->k,       work->v,
			  work->gate,   work->up,     work->logits, work->rosa.q,   work->rosa.k,  work->rosa.v,
			  work->rosa_y, work->rosa_z, work->late_u, work->late_v,   work->embedded};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		ops->give(d->backend, parts[i]);
	decoder_sources_free(d);
}

/* --------------------------------------------------------------------------------------------- making and ending -- */

static rosa_status check_options(const struct checkpoint *checkpoint, const struct decoder_options *options,
				 rosa_error *err)
{
	if (options->chunk > MOST_CHUNK)
		return rosa_fail(err, ROSA_EINVAL, "a chunk of %zu rows is too large; use up to %d", options->chunk,
				 MOST_CHUNK);
	if (options->sinks && !options->window)
		return rosa_fail(err, ROSA_EINVAL,
				 "%zu sinks without a window: global attention sees all positions; give a window",
				 options->sinks);
	if (options->first_global_layers > checkpoint->config.layers)
		return rosa_fail(err, ROSA_EINVAL, "%zu global layers are asked for, the model has %zu",
				 options->first_global_layers, checkpoint->config.layers);
	return ROSA_OK;
}

static void settle(size_t *option, uint64_t otherwise)
{
	if (*option == SIZE_MAX)
		*option = (size_t)otherwise;
}

rosa_status decoder_options_settle(struct decoder_options *options, const struct checkpoint *checkpoint,
				   const struct adapter *adapter, rosa_error *err)
{
	settle(&options->window, adapter ? adapter->options.window : 0);
	settle(&options->sinks, adapter && options->window ? adapter->options.sinks : 0);
	settle(&options->first_global_layers, adapter ? adapter->options.first_global_layers : 0);
	return check_options(checkpoint, options, err);
}

static rosa_status make(decoder *d, rosa_error *err)
{
	const struct model_config *config = &d->checkpoint->config;
	rosa_status status;

	d->blocks = calloc(config->layers, sizeof(*d->blocks));
	d->frequencies = calloc(config->head_size / 2, sizeof(*d->frequencies));
	if (!d->blocks || !d->frequencies)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu layers", config->layers);
	checkpoint_frequencies(d->checkpoint, d->frequencies);
	d->rotary = (struct rotary){config->head_size, config->rotary_pairs, d->frequencies};
	status = d->adapter ? decoder_sources_new(d, err) : ROSA_OK;
	if (status == ROSA_OK)
		status = load_weights(d, err);
	if (status == ROSA_OK)
		status = make_workspace(d, err);
	return status == ROSA_OK && d->adapter ? decoder_seen_new(d, err) : status;
}

rosa_status decoder_new(const struct checkpoint *checkpoint, const struct adapter *adapter,
			const struct decoder_options *options, struct backend *backend, rosa_workers *workers,
			decoder **made, rosa_error *err)
{
	rosa_status status = check_options(checkpoint, options, err);
	decoder *d;

	*made = NULL;
	if (status != ROSA_OK)
		return status;
	d = calloc(1, sizeof(*d));
	if (!d)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a decoder");
	d->checkpoint = checkpoint;
	d->adapter = adapter;
	d->options = *options;
	d->options.chunk = options->chunk ? options->chunk : DECODER_CHUNK;
	d->backend = backend;
	d->workers = workers;
	status = make(d, err);
	if (status != ROSA_OK) {
		decoder_free(d);
		return status;
	}
	*made = d;
	return ROSA_OK;
}

static void free_block(decoder *d, struct block *block)
{
	const struct backend_ops *ops = d->backend->ops;
	struct matrix *matrices[] = {&block->q,      &block->k,      &block->v,       &block->o,
				     &block->gate,   &block->up,     &block->down,    &block->rosa.q,
				     &block->rosa.k, &block->rosa.v, &block->rosa.out};
	float *vectors[] = {block->attention_norm,
			    block->q_norm,
			    block->k_norm,
			    block->mlp_norm,
			    block->q_bias,
			    block->k_bias,
			    block->v_bias,
			    (float *)block->rosa.e0,
			    (float *)block->rosa.e1,
			    (float *)block->rosa.a0,
			    (float *)block->rosa.gate_w,
			    (float *)block->rosa.gate_b};

	if (layer_shared(&block->rosa))
		block->rosa.q = (struct matrix){0};
	for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
		ops->matrix_free(d->backend, matrices[i]);
	for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
		ops->give(d->backend, vectors[i]);
	decoder_reads_free(&block->rosa);
}

void decoder_free(decoder *d)
{
	if (!d)
		return;
	for (size_t i = 0; d->blocks && i < d->checkpoint->config.layers; i++)
		free_block(d, &d->blocks[i]);
	free(d->blocks);
	free(d->frequencies);
	d->backend->ops->matrix_free(d->backend, &d->embedding);
	d->backend->ops->matrix_free(d->backend, &d->head);
	d->backend->ops->give(d->backend, d->norm);
	decoder_seen_free(d);
	free_workspace(d);
	free(d);
}

size_t decoder_vocabulary(const decoder *decoder)
{
	return decoder->checkpoint->config.vocabulary;
}

bool decoder_adapted(const decoder *decoder)
{
	return decoder->adapter != NULL;
}

/* ------------------------------------------------------------------------------------------------------ reading -- */

/* How far the pieces have been read. */
struct reading {
	struct piece *pieces;
	size_t count;
	size_t piece, done; /* the next piece, and how many of its tokens have been read */
};

static rosa_status check_pieces(const decoder *d, size_t count, const struct piece *pieces, uint64_t *total,
				rosa_error *err)
{
	const size_t vocabulary = decoder_vocabulary(d);

	*total = 0;
	for (size_t i = 0; i < count; i++) {
		const struct piece *piece = &pieces[i];

		if (piece->sequence->decoder != d)
			return rosa_fail(err, ROSA_EINVAL, "piece %zu continues a sequence of another decoder", i);
		for (size_t j = 0; j < i; j++)
			if (pieces[j].sequence == piece->sequence)
				return rosa_fail(err, ROSA_EINVAL, "pieces %zu and %zu continue the same sequence", j,
						 i);
		for (size_t t = 0; t < piece->count; t++)
			if (piece->tokens[t] >= vocabulary)
				return rosa_fail(err, ROSA_EINVAL,
						 "token %u at place %zu is not below the model's vocabulary of %zu",
						 piece->tokens[t], t, vocabulary);
		if (piece->sequence->steps > ROSA_MAX_STEPS - piece->count)
			return rosa_fail(err, ROSA_EINVAL, "a sequence may have %zu tokens at most", ROSA_MAX_STEPS);
		*total += piece->count;
	}
	return ROSA_OK;
}

/* A row of a pass whose logits are to be written, and where. */
struct wanted_row {
	size_t row;
	float *to;
	sequence *sequence;
	size_t steps; /* that the sequence had read with this row */
};

/* What a piece wants of rows `row` .. of the last pass, which are its tokens from `done` on. Returns how many it adds.
 */
static size_t add_wanted(const decoder *d, const struct piece *piece, size_t row, size_t done, size_t count,
			 struct wanted_row *wanted)
{
	const size_t vocabulary = decoder_vocabulary(d), before = piece->sequence->steps - count;

	if (piece->wanted == LOGITS_NONE || (piece->wanted == LOGITS_LAST && done + count < piece->count))
		return 0;
	if (piece->wanted == LOGITS_LAST) {
		*wanted = (struct wanted_row){row + count - 1, piece->logits, piece->sequence, before + count};
		return 1;
	}
	for (size_t i = 0; i < count; i++)
		wanted[i] = (struct wanted_row){row + i, piece->logits + (done + i) * vocabulary, piece->sequence,
						before + i + 1};
	return count;
}

/* Neighbours are one product, whosoever they are: the weights are read once for all sequences that write. */
static void write_logits(decoder *d, const struct wanted_row *wanted, size_t count)
{
	const struct backend_ops *ops = d->backend->ops;
	const size_t vocabulary = decoder_vocabulary(d), width = d->checkpoint->config.width;
	const struct matrix *head = d->head.data ? &d->head : &d->embedding;
	struct product products[3] = {{head, d->work.logits, false}};
	const size_t more = decoder_seen_products(d, products + 1);

	for (size_t i = 0, some; i < count; i += some) {
		for (some = 1; some < LOGITS_ROWS && i + some < count && wanted[i + some].row == wanted[i].row + some;)
			some++;
		ops->multiply(d->backend, some, d->work.u + wanted[i].row * width, 1 + more, products);
		decoder_seen_fetch(d, some);
		for (size_t j = 0; j < some; j++) {
			ops->get(d->backend, wanted[i + j].to, d->work.logits + j * vocabulary,
				 vocabulary * sizeof(float));
			decoder_seen_add(d, wanted[i + j].sequence, wanted[i + j].steps, j, wanted[i + j].to);
		}
	}
}

/* Fill one pass with rows of the pieces, in order. Returns the number of rows. */
static size_t fill_pass(const decoder *d, const struct reading *reading, uint32_t *tokens, struct segment *segments,
			size_t *count)
{
	size_t rows = 0, done = reading->done;

	*count = 0;
	for (size_t i = reading->piece; i < reading->count && rows < d->options.chunk; i++, done = 0) {
		const struct piece *piece = &reading->pieces[i];
		const size_t left = piece->count - done, room = d->options.chunk - rows,
			     some = left < room ? left : room;

		if (!some)
			continue;
		memcpy(tokens + rows, piece->tokens + done, some * sizeof(*tokens));
		segments[(*count)++] = (struct segment){piece->sequence, rows, some};
		rows += some;
	}
	return rows;
}

/* Write the logits of a pass and advance by its rows. */
static void finish_pass(decoder *d, struct reading *reading, size_t rows, struct wanted_row *wanted)
{
	size_t row = 0, count = 0;

	while (row < rows) {
		struct piece *piece = &reading->pieces[reading->piece];
		const size_t left = piece->count - reading->done, some = left < rows - row ? left : rows - row;

		if (some)
			count += add_wanted(d, piece, row, reading->done, some, wanted + count);
		row += some;
		reading->done += some;
		if (reading->done == piece->count) {
			reading->piece++;
			reading->done = 0;
		}
	}
	write_logits(d, wanted, count);
}

rosa_status decoder_read(decoder *d, size_t count, struct piece *pieces, rosa_progress progress, void *context,
			 rosa_error *err)
{
	struct reading reading = {pieces, count, 0, 0};
	uint64_t total, read = 0;
	rosa_status status = check_pieces(d, count, pieces, &total, err);
	uint32_t *tokens;
	struct segment *segments;
	struct wanted_row *wanted;

	if (status != ROSA_OK)
		return status;
	tokens = malloc(d->options.chunk * sizeof(*tokens));
	segments = malloc(d->options.chunk * sizeof(*segments));
	wanted = malloc(d->options.chunk * sizeof(*wanted));
	if (!tokens || !segments || !wanted)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for %zu rows", d->options.chunk);
	while (status == ROSA_OK && read < total) {
		size_t segment_count, rows = fill_pass(d, &reading, tokens, segments, &segment_count);

		status = decoder_pass(d, tokens, rows, segments, segment_count, err);
		if (status != ROSA_OK)
			break;
		finish_pass(d, &reading, rows, wanted);
		read += rows;
		if (progress && progress(context, read, total) && read < total)
			status = rosa_fail(err, ROSA_ECANCELLED, "cancelled after %llu of %llu tokens",
					   (unsigned long long)read, (unsigned long long)total);
	}
	free(tokens);
	free(segments);
	free(wanted);
	return status;
}
