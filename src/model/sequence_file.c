/*
 * Sequences as bytes.
 *
 * Saved are the keys and values that attention still sees, as numbers; of the adapter, the index of each source and the
 * value bits of each layer. The header says what they belong to: checksums of model and adapter, and the window. A
 * sequence of another model, adapter or window is refused: it would continue from a state that means something else,
 * unnoticed. The checksums are of every byte of the weights, since two stages of one training may differ in few of
 * them. They are made when the first sequence is saved or loaded, and once: reading the weights takes a fraction of the
 * time that the first tokens take.
 *
 * The checksum protects against accidents only. A file may still claim anything, so every count is compared with what
 * the options imply or with the bytes that are there before memory is taken for it.
 *
 * All numbers are little-endian. The bytes are
 *
 *     8 bytes   "ROSASEQU"
 *     u64       version, 4
 *     u64       checksum of the model, u64 of the adapter (0: none)
 *     u64       window, u64 sinks, u64 global layers, u64 steps
 *     for each layer:
 *         u64       positions kept
 *         float32   keys [kept][heads * head_size], and as many values
 *         where the layer has an adapter:
 *             the finder of the source `own`, if the adapter has that: u64 its bytes, and these, filled up with zeros
 *             to a multiple of 8
 *             value bits (values_save), filled up likewise
 *     for each source that layers share: its finder, in the same form
 *     with a seen-token head: u32 tokens [steps], filled up likewise
 *     u64       XXH64 of all before it
 */
#include "model/decoder_parts.h"

#include "base/array.h"
#include "base/checksum.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC   "ROSASEQU"
#define VERSION 4 /* 1 had another checksum, 2 value symbols and streams for each layer, 3 the model's fingerprint */

struct header {
	char magic[8];
	uint64_t version, model, adapter, window, sinks, global_layers, steps;
};

static size_t padded(size_t bytes)
{
	return (bytes + 7) / 8 * 8;
}

/* Of an adapter: its file, the options that say what is computed with it, and the scales. The option `seen` shows in
 * the file, and without it sequences from before there was that option are still taken. */
static uint64_t adapter_checksum(const struct adapter *adapter)
{
	struct json_text options = {0};
	struct checksum sum;

	checksum_begin(&sum, 0);
	checksum_add(&sum, adapter->mapping.data, adapter->mapping.size);
	for (size_t i = 0; i < adapter_option_table.count; i++)
		if (adapter_option_table.rows[i].offset != offsetof(struct adapter_options, seen))
			key_write(&adapter_option_table.rows[i], &adapter->options, &options);
	checksum_add(&sum, options.data, options.size);
	json_text_free(&options);
	for (size_t i = 0; i < adapter->layer_count; i++)
		checksum_add(&sum, &adapter->layers[i].scale, sizeof(adapter->layers[i].scale));
	return checksum_value(&sum);
}

/* Makes the checksums if they are not there yet. Two threads may do it at the same time; they find the same. */
static void make_checksums(decoder *d)
{
	if (!atomic_load(&d->model_checksum))
		atomic_store(&d->model_checksum, checkpoint_checksum(d->checkpoint));
	if (d->adapter && !atomic_load(&d->adapter_checksum))
		atomic_store(&d->adapter_checksum, adapter_checksum(d->adapter));
}

static struct header header_of(decoder *d, size_t steps)
{
	make_checksums(d);
	struct header header = {.version = VERSION,
				.model = atomic_load(&d->model_checksum),
				.adapter = atomic_load(&d->adapter_checksum),
				.window = d->options.window,
				.sinks = d->options.sinks,
				.global_layers = d->options.first_global_layers,
				.steps = steps};

	memcpy(header.magic, MAGIC, sizeof(header.magic));
	return header;
}

static size_t row_numbers(const decoder *d)
{
	return d->checkpoint->config.kv_heads * d->checkpoint->config.head_size;
}

/* The source of which every layer has one of its own; NULL: the adapter has none. */
static const struct decoder_source *own_source(const decoder *d)
{
	for (size_t i = 0; i < d->source_count; i++)
		if (!source_is_shared(&d->sources[i]))
			return &d->sources[i];
	return NULL;
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
	rosa_status status = saving->write(saving->context, data, size, err);

	checksum_add(&saving->sum, data, size);
	checksum_add(&saving->sum, zeros, filling);
	return status == ROSA_OK && filling ? saving->write(saving->context, zeros, filling, err) : status;
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

static rosa_status save_values(const struct values *values, struct saving *saving, rosa_error *err)
{
	const size_t size = values_image_bytes(values->channels, values->steps);
	void *image = malloc(size + 1);
	rosa_status status;

	if (!image)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to save the values of %zu steps", values->steps);
	values_save(values, image);
	status = put(saving, image, size, err);
	free(image);
	return status;
}

static rosa_status save_finder(const struct finder *finder, struct saving *saving, rosa_error *err)
{
	void *image = NULL;
	size_t size;
	rosa_status status = finder_save(finder, &image, &size, err);

	if (status == ROSA_OK)
		status = put_number(saving, size, err);
	if (status == ROSA_OK)
		status = put(saving, image, size, err);
	free(image);
	return status;
}

rosa_status sequence_save(sequence *s, sequence_writer write, void *context, rosa_error *err)
{
	decoder *d = s->decoder;
	struct saving saving = {.write = write, .context = context};
	const struct header header = header_of(d, s->steps);
	rosa_status status = s->reads == d->options.reads
				 ? sequence_settle(s, err)
				 : rosa_fail(err, ROSA_EINVAL, "a sequence whose memory was switched off is not saved");

	checksum_begin(&saving.sum, 0);
	if (status == ROSA_OK)
		status = put(&saving, &header, sizeof(header), err);
	for (size_t i = 0; i < d->checkpoint->config.layers && status == ROSA_OK; i++) {
		status = save_cache(s, i, &saving, err);
		if (status == ROSA_OK && d->blocks[i].has_rosa && own_source(d))
			status = save_finder(&s->own[i], &saving, err);
		if (status == ROSA_OK && d->blocks[i].has_rosa)
			status = save_values(&s->values[i], &saving, err);
	}
	for (size_t i = 0; i < d->source_count && status == ROSA_OK; i++)
		if (source_is_shared(&d->sources[i]))
			status = save_finder(&s->finders[i], &saving, err);
	if (status == ROSA_OK && d->seen.rank && s->steps)
		status = put(&saving, s->seen.tokens, s->steps * sizeof(*s->seen.tokens), err);
	return status == ROSA_OK ? put_number(&saving, checksum_value(&saving.sum), err) : status;
}

static rosa_status keep_bytes(void *context, const void *data, size_t size, rosa_error *err)
{
	struct kept_sequence *kept = context;

	if (!ARRAY_RESERVE(kept->data, kept->room, kept->size + size))
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory to keep the state of the text");
	memcpy(kept->data + kept->size, data, size);
	kept->size += size;
	return ROSA_OK;
}

rosa_status sequence_keep(sequence *sequence, struct kept_sequence *kept, rosa_error *err)
{
	rosa_status status;

	kept->size = 0;
	kept->steps = sequence_steps(sequence);
	status = sequence_save(sequence, keep_bytes, kept, err);
	if (status != ROSA_OK)
		kept->size = 0;
	return status;
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

static rosa_status check_header(decoder *d, const struct header *found, rosa_error *err)
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

/* Replaces an empty finder by the one saved. */
static rosa_status load_finder(const sequence *s, const struct decoder_source *source, struct finder *finder,
			       struct loading *loading, rosa_error *err)
{
	const uint8_t *data;
	size_t size;

	if (!next_number(loading, &size) || !(data = next(loading, size)))
		return cut_short(err);
	finder_free(finder);
	return finder_load(finder, &source->options, source->routes, source->links, s->steps, data, size, err);
}

static rosa_status load_values(const sequence *s, struct values *values, struct loading *loading, rosa_error *err)
{
	const size_t channels = values->channels, step = values_image_bytes(channels, 1);
	const uint8_t *data;

	if (s->steps > loading->left / step || !(data = next(loading, values_image_bytes(channels, s->steps))))
		return cut_short(err);
	values_free(values);
	return values_load(values, channels, s->steps, data, err);
}

static rosa_status load_tokens(sequence *s, struct loading *loading, rosa_error *err)
{
	const uint8_t *data = next(loading, s->steps * sizeof(*s->seen.tokens));
	uint32_t some[256];
	rosa_status status = data ? ROSA_OK : cut_short(err);

	for (size_t at = 0, count; status == ROSA_OK && at < s->steps; at += count) {
		count = s->steps - at < 256 ? s->steps - at : 256;
		memcpy(some, data + at * sizeof(*some), count * sizeof(*some)); /* the bytes need not be aligned */
		for (size_t i = 0; i < count; i++)
			if (some[i] >= decoder_vocabulary(s->decoder))
				return cut_short(err);
		status = seen_add(&s->seen, some, count, err);
	}
	return status;
}

static rosa_status load(sequence *s, struct loading *loading, rosa_error *err)
{
	const decoder *d = s->decoder;
	const struct decoder_source *own = own_source(d);
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < d->checkpoint->config.layers && status == ROSA_OK; i++) {
		status = load_cache(s, i, loading, err);
		if (status == ROSA_OK && d->blocks[i].has_rosa && own)
			status = load_finder(s, own, &s->own[i], loading, err);
		if (status == ROSA_OK && d->blocks[i].has_rosa)
			status = load_values(s, &s->values[i], loading, err);
	}
	for (size_t i = 0; i < d->source_count && status == ROSA_OK; i++)
		if (source_is_shared(&d->sources[i]))
			status = load_finder(s, &d->sources[i], &s->finders[i], loading, err);
	if (status == ROSA_OK && d->seen.rank)
		status = load_tokens(s, loading, err);
	return status == ROSA_OK && loading->left ? cut_short(err) : status;
}

static rosa_status take_header(decoder *d, const void *data, size_t size, struct header *header, rosa_error *err)
{
	if (size < sizeof(*header) + sizeof(uint64_t) || size % 8 != 0)
		return cut_short(err);
	memcpy(header, data, sizeof(*header));
	return check_header(d, header, err);
}

rosa_status sequence_look(decoder *d, const void *data, size_t size, size_t *steps, rosa_error *err)
{
	struct header header;
	const rosa_status status = take_header(d, data, size, &header, err);

	*steps = status == ROSA_OK ? (size_t)header.steps : 0;
	return status;
}

rosa_status sequence_load(decoder *d, const void *data, size_t size, sequence **made, rosa_error *err)
{
	struct loading loading = {data, 0};
	struct header header;
	uint64_t sum;
	rosa_status status = take_header(d, data, size, &header, err);

	*made = NULL;
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
