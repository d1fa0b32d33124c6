/*
 * Sequences as bytes.
 *
 * Saved are the keys and values that attention still sees, as numbers, and the adapter's past. The header says what
 * they belong to: the fingerprints of model and adapter, and the window. A sequence of another model, adapter or window
 * is refused: it would continue from a state that means something else, unnoticed.
 *
 * The checksum protects against accidents only. A file may still claim anything, so every count is compared with what
 * the options imply or with the bytes that are there before memory is taken for it.
 *
 * All numbers are little-endian. The bytes are
 *
 *     8 bytes   "ROSASEQU"
 *     u64       version, 2
 *     u64       fingerprint of the model, u64 of the adapter (0: none)
 *     u64       window, u64 sinks, u64 global layers, u64 steps
 *     for each layer:
 *         u64       positions kept
 *         float32   keys [kept][heads * head_size], and as many values
 *         where the layer has an adapter:
 *             u64       bytes of the saved stream, and these, filled up with zeros to a multiple of 8
 *             u16       value symbols [routes][steps], filled up likewise
 *     u64       XXH64 of all before it
 */
#include "model/decoder_parts.h"

#include "base/checksum.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC   "ROSASEQU"
#define VERSION 2 /* 1 had another checksum */

struct header {
	char magic[8];
	uint64_t version, model, adapter, window, sinks, global_layers, steps;
};

static size_t padded(size_t bytes)
{
	return (bytes + 7) / 8 * 8;
}

static struct header header_of(const decoder *d, size_t steps)
{
	struct header header = {.version = VERSION,
				.model = d->checkpoint->fingerprint,
				.window = d->options.window,
				.sinks = d->options.sinks,
				.global_layers = d->options.first_global_layers,
				.steps = steps};

	memcpy(header.magic, MAGIC, sizeof(header.magic));
	if (d->adapter) {
		const char *digest = safetensors_metadata(&d->adapter->file, "tensors");

		header.adapter = checksum_of(digest, digest ? strlen(digest) : 0);
	}
	return header;
}

static size_t row_numbers(const decoder *d)
{
	return d->checkpoint->config.kv_heads * d->checkpoint->config.head_size;
}

/* ------------------------------------------------------------------------------------------------------- saving -- */

struct saving {
	sequence_writer write;
	void *context;
	struct checksum sum;
};

/* Write bytes, filled up to whole words. */
static rosa_status put(struct saving *saving, const void *data, size_t size, rosa_error *err)
{
	static const char zeros[8];
	const size_t filling = padded(size) - size;

	checksum_add(&saving->sum, data, size);
	checksum_add(&saving->sum, zeros, filling);
	if (saving->write(saving->context, data, size) != 0 ||
	    (filling && saving->write(saving->context, zeros, filling) != 0))
		return rosa_fail(err, ROSA_EIO, "the sequence could not be written");
	return ROSA_OK;
}

static rosa_status put_number(struct saving *saving, uint64_t number, rosa_error *err)
{
	return put(saving, &number, sizeof(number), err);
}

static rosa_status save_cache(const sequence *s, size_t number, struct saving *saving, rosa_error *err)
{
	const struct backend_ops *ops = s->decoder->backend->ops;
	struct backend *backend = s->decoder->backend;
	const size_t kept = ops->cache_kept(backend, &s->caches[number]), numbers = kept * row_numbers(s->decoder);
	float *keys = malloc((2 * numbers + 1) * sizeof(*keys)), *values = keys + numbers;
	rosa_status status;

	if (!keys)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to save %zu positions", kept);
	ops->cache_save(backend, &s->caches[number], keys, values);
	status = put_number(saving, kept, err);
	if (status == ROSA_OK)
		status = put(saving, keys, 2 * numbers * sizeof(*keys), err);
	free(keys);
	return status;
}

static rosa_status save_values(const struct past *past, struct saving *saving, rosa_error *err)
{
	uint16_t *values = malloc((past->routes * past->steps + 1) * sizeof(*values));
	rosa_status status;

	if (!values)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to save the values of %zu steps", past->steps);
	for (size_t r = 0; r < past->routes; r++)
		past_values(past, r, values + r * past->steps);
	status = put(saving, values, past->routes * past->steps * sizeof(*values), err);
	free(values);
	return status;
}

static rosa_status save_past(const struct past *past, struct saving *saving, rosa_error *err)
{
	void *data = NULL;
	size_t size;
	rosa_status status = rosa_stream_save_memory(past->stream, &data, &size, err);

	if (status == ROSA_OK)
		status = put_number(saving, size, err);
	if (status == ROSA_OK)
		status = put(saving, data, size, err);
	rosa_stream_free_memory(past->stream, data);
	return status == ROSA_OK ? save_values(past, saving, err) : status;
}

rosa_status sequence_save(const sequence *s, sequence_writer write, void *context, rosa_error *err)
{
	const decoder *d = s->decoder;
	struct saving saving = {.write = write, .context = context};
	const struct header header = header_of(d, s->steps);
	rosa_status status;

	checksum_begin(&saving.sum, 0);
	status = put(&saving, &header, sizeof(header), err);
	for (size_t i = 0; i < d->checkpoint->config.layers && status == ROSA_OK; i++) {
		status = save_cache(s, i, &saving, err);
		if (status == ROSA_OK && d->blocks[i].has_rosa)
			status = save_past(&s->pasts[i], &saving, err);
	}
	return status == ROSA_OK ? put_number(&saving, checksum_value(&saving.sum), err) : status;
}

/* ------------------------------------------------------------------------------------------------------ loading -- */

/* What is left of the bytes. */
struct loading {
	const uint8_t *at;
	size_t left;
};

static rosa_status cut_short(rosa_error *err)
{
	return rosa_fail(err, ROSA_EFORMAT, "the saved sequence is cut short or damaged");
}

/* The next `size` bytes and their filling, or NULL if there are not as many. */
static const uint8_t *next(struct loading *loading, size_t size)
{
	const uint8_t *at = loading->at;

	if (size > loading->left || padded(size) > loading->left)
		return NULL;
	loading->at += padded(size);
	loading->left -= padded(size);
	return at;
}

static bool next_number(struct loading *loading, size_t *number)
{
	const uint8_t *at = next(loading, sizeof(uint64_t));
	uint64_t value;

	if (!at)
		return false;
	memcpy(&value, at, sizeof(value));
	*number = (size_t)value;
	return value <= SIZE_MAX / 16;
}

static rosa_status check_header(const decoder *d, const struct header *found, rosa_error *err)
{
	const struct header here = header_of(d, 0);
	const struct {
		const char *what;
		uint64_t found, here;
	} fields[] = {
	    {"window", found->window, here.window},
	    {"sinks", found->sinks, here.sinks},
	    {"global layers", found->global_layers, here.global_layers},
	};

	if (memcmp(found->magic, MAGIC, sizeof(found->magic)) != 0)
		return rosa_fail(err, ROSA_EFORMAT, "these bytes are not a saved sequence");
	if (found->version != VERSION)
		return rosa_fail(err, ROSA_EFORMAT,
				 "the saved sequence is of version %llu; this program reads %d: read the text again",
				 (unsigned long long)found->version, VERSION);
	if (found->model != here.model)
		return rosa_fail(err, ROSA_EFORMAT, "the sequence was read by another model");
	if (found->adapter != here.adapter)
		return rosa_fail(err, ROSA_EFORMAT, "the sequence was read %s; %s",
				 found->adapter ? (here.adapter ? "with another adapter" : "with an adapter")
						: "without an adapter",
				 here.adapter ? "give the same" : "name it");
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (fields[i].found != fields[i].here)
			return rosa_fail(err, ROSA_EFORMAT,
					 "the sequence was read with %s %llu, not %llu; use the same", fields[i].what,
					 (unsigned long long)fields[i].found, (unsigned long long)fields[i].here);
	}
	if (found->steps > ROSA_MAX_STEPS)
		return cut_short(err);
	return ROSA_OK;
}

static rosa_status load_cache(sequence *s, size_t number, struct loading *loading, rosa_error *err)
{
	const decoder *d = s->decoder;
	const size_t numbers = row_numbers(d);
	struct kv_cache probe = s->caches[number];
	const uint8_t *data;
	float *keys;
	size_t kept;
	rosa_status status;

	/* Window, sinks and steps imply how many positions are kept. Fewer would be read beyond their end, and room for
	 * all steps would be taken. */
	probe.steps = s->steps;
	if (!next_number(loading, &kept) || kept != d->backend->ops->cache_kept(d->backend, &probe) ||
	    kept > loading->left / (2 * numbers * sizeof(*keys)))
		return cut_short(err);
	data = next(loading, 2 * kept * numbers * sizeof(*keys));
	if (!data)
		return cut_short(err);
	keys = malloc((2 * kept * numbers + 1) * sizeof(*keys)); /* the bytes need not be aligned */
	if (!keys)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to load %zu positions", kept);
	memcpy(keys, data, 2 * kept * numbers * sizeof(*keys));
	status =
	    d->backend->ops->cache_load(d->backend, &s->caches[number], s->steps, keys, keys + kept * numbers, err);
	free(keys);
	return status;
}

static rosa_status check_stream(const decoder *d, const rosa_stream *stream, size_t steps, rosa_error *err)
{
	rosa_stream_info info = {.size = sizeof(info)};
	const rosa_options wanted = adapter_options_retrieval(&d->adapter->options);
	rosa_status status = rosa_stream_describe(stream, &info, err);

	if (status != ROSA_OK)
		return status;
	if (info.routes != d->rosa.routes || info.steps != steps || info.bits != wanted.bits ||
	    info.policy != wanted.policy || !info.fold != !wanted.fold || info.max_match != wanted.max_match)
		return rosa_fail(err, ROSA_EFORMAT, "the saved sequence's retrieval does not fit the adapter");
	return ROSA_OK;
}

/* Value symbols from bytes that may not be aligned. */
static rosa_status load_values(struct past *past, int bits, const uint8_t *from, rosa_error *err)
{
	const size_t bytes = past->steps * sizeof(uint16_t);
	uint16_t *values = malloc(bytes + 1);
	unsigned all = 0;

	if (!values)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to load the values of %zu steps", past->steps);
	for (size_t r = 0; r < past->routes && !(all >> bits); r++) {
		memcpy(values, from + r * bytes, bytes);
		for (size_t t = 0; t < past->steps; t++)
			all |= values[t];
		past_set_values(past, r, values);
	}
	free(values);
	return all >> bits ? cut_short(err) : ROSA_OK;
}

static rosa_status load_past(sequence *s, size_t number, struct loading *loading, rosa_error *err)
{
	const decoder *d = s->decoder;
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_stream *stream = NULL;
	const uint8_t *data, *values;
	size_t size;
	rosa_status status;

	options.workers = d->workers;
	if (!next_number(loading, &size) || !(data = next(loading, size)) ||
	    s->steps > loading->left / (d->rosa.routes * sizeof(uint16_t)) ||
	    !(values = next(loading, d->rosa.routes * s->steps * sizeof(uint16_t))))
		return cut_short(err);
	status = rosa_stream_load_memory(&options, data, size, &stream, err);
	if (status == ROSA_OK)
		status = check_stream(d, stream, s->steps, err);
	if (status != ROSA_OK) {
		rosa_stream_free(stream);
		return status;
	}
	past_free(&s->pasts[number]);
	status = past_restore(&s->pasts[number], stream, d->rosa.routes, s->steps, err);
	return status == ROSA_OK ? load_values(&s->pasts[number], (int)d->adapter->options.bits, values, err) : status;
}

static rosa_status load(sequence *s, struct loading *loading, rosa_error *err)
{
	const decoder *d = s->decoder;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < d->checkpoint->config.layers && status == ROSA_OK; i++) {
		status = load_cache(s, i, loading, err);
		if (status == ROSA_OK && d->blocks[i].has_rosa)
			status = load_past(s, i, loading, err);
	}
	return status == ROSA_OK && loading->left ? cut_short(err) : status;
}

rosa_status sequence_load(decoder *d, const void *data, size_t size, sequence **made, rosa_error *err)
{
	struct loading loading = {data, 0};
	struct header header;
	uint64_t sum;
	rosa_status status;

	*made = NULL;
	if (size < sizeof(header) + sizeof(sum) || size % 8 != 0)
		return cut_short(err);
	memcpy(&header, data, sizeof(header));
	status = check_header(d, &header, err);
	if (status != ROSA_OK)
		return status;
	memcpy(&sum, (const uint8_t *)data + size - sizeof(sum), sizeof(sum));
	if (sum != checksum_of(data, size - sizeof(sum)))
		return rosa_fail(err, ROSA_EFORMAT, "the saved sequence is damaged: its checksum is wrong");
	loading.at = (const uint8_t *)data + sizeof(header);
	loading.left = size - sizeof(header) - sizeof(sum);
	status = sequence_new(d, made, err);
	if (status != ROSA_OK)
		return status;
	(*made)->steps = (size_t)header.steps;
	status = load(*made, &loading, err);
	if (status != ROSA_OK) {
		sequence_free(*made);
		*made = NULL;
	}
	return status;
}
