/*
 * Saved streams.
 *
 * What is saved is the streams themselves, not the index: where runs begin, and their symbols, packed. That is a few
 * bytes per run, it is the same on every machine, and it leaves nothing in the file that could be wrong in a way that
 * matters: the index is built anew from checked symbols, so an altered file can be refused or can be another stream,
 * but never a broken one. Loading costs what retrieving the streams without counterfactuals costs.
 *
 * All numbers are little-endian. A file is
 *
 *     8 bytes   "ROSASTRM"
 *     u32       version, 3
 *     u32       bits | policy << 8 | fold << 16 | flips << 17
 *     u32       max_match, 0 for none
 *     u32       delay
 *     u64       routes
 *     u64       steps
 *     for each route:
 *         u32       key runs, u32 query runs
 *         steps rounded up to 64, bits: does a key run begin at this step?
 *         the same for query runs
 *         key runs * bits, bits, rounded up to 64: the symbols of the key's runs
 *         the same for the query
 *     u64       XXH64 of all before it
 *
 * Version 2 is the same without a delay.
 */
#include "base/checksum.h"
#include "base/file.h"
#include "base/status.h"
#include "retrieval/stream.h"

#define MAGIC   "ROSASTRM"
#define VERSION 3 /* 1 had another checksum */
#define OLDEST  2
#define HEADER  40
#define CHUNK   1024 /* steps rebuilt at a time */

static size_t bitmap_bytes(size_t bits)
{
	return (bits + 63) / 64 * 8;
}

static size_t route_size(size_t steps, size_t key_runs, size_t query_runs, unsigned bits)
{
	return 8 + 2 * bitmap_bytes(steps) + bitmap_bytes(key_runs * bits) + bitmap_bytes(query_runs * bits);
}

static uint8_t *put(uint8_t *at, const void *value, size_t size)
{
	memcpy(at, value, size);
	return at + size;
}

/* The first `bits` bits of `from`, padded with zeros to a multiple of 64. */
static uint8_t *put_bits(uint8_t *at, const void *from, size_t bits)
{
	size_t whole = bits / 8;

	memset(at, 0, bitmap_bytes(bits));
	if (whole)
		memcpy(at, from, whole);
	if (bits % 8)
		at[whole] = ((const uint8_t *)from)[whole] & ((1u << bits % 8) - 1);
	return at + bitmap_bytes(bits);
}

/* The symbols of a stream's runs; a route may keep them as codes. */
static uint8_t *put_symbols(uint8_t *at, const struct route *route, const struct packed *packed, size_t runs,
			    unsigned bits)
{
	memset(at, 0, bitmap_bytes(runs * bits));
	for (size_t i = 0; i < runs; i++) {
		const unsigned code = packed_get(packed, route->contexts.bits, i);
		const size_t bit = i * bits;
		const uint32_t symbol = (uint32_t)alphabet_symbol(&route->alphabet, code) << bit % 8;

		for (size_t byte = 0; byte * 8 < bit % 8 + bits; byte++)
			at[bit / 8 + byte] |= (uint8_t)(symbol >> byte * 8);
	}
	return at + bitmap_bytes(runs * bits);
}

static uint8_t *put_route(uint8_t *at, const struct route *route, size_t steps, unsigned bits)
{
	at = put(at, &route->at.key_runs, 4);
	at = put(at, &route->at.query_runs, 4);
	at = put_bits(at, route->key_starts.bits, steps);
	at = put_bits(at, route->query_starts.bits, steps);
	if (!steps)
		return at;
	at = put_symbols(at, route, &route->contexts.key, route->at.key_runs, bits);
	return put_symbols(at, route, &route->contexts.query, route->at.query_runs, bits);
}

rosa_status rosa_stream_save_memory(const rosa_stream *stream, void **data, size_t *size, rosa_error *err)
{
	uint32_t numbers[4];
	uint64_t sizes[2], sum;
	size_t total = HEADER + sizeof(sum);
	uint8_t *image, *at;
	rosa_status status;

	if (!stream || !data || !size)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", !stream ? "stream" : data ? "size" : "data");
	status = stream_check_idle(stream, err);
	if (status)
		return status;
	for (size_t r = 0; r < stream->routes; r++)
		total += route_size(stream->steps, stream->route[r].at.key_runs, stream->route[r].at.query_runs,
				    stream->rules.bits);
	image = memory_resize(&stream->allocator, NULL, total);
	if (!image)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a saved state of %zu bytes", total);
	numbers[0] = VERSION;
	numbers[1] = stream->rules.bits | (uint32_t)stream->rules.policy << 8 | (uint32_t)stream->rules.fold << 16 |
		     (uint32_t)stream->flips << 17;
	numbers[2] = stream->rules.max_match == UINT32_MAX ? 0 : stream->rules.max_match;
	numbers[3] = stream->rules.delay;
	sizes[0] = stream->routes;
	sizes[1] = stream->steps;
	at = put(image, MAGIC, 8);
	at = put(at, numbers, sizeof(numbers));
	at = put(at, sizes, sizeof(sizes));
	for (size_t r = 0; r < stream->routes; r++)
		at = put_route(at, &stream->route[r], stream->steps, stream->rules.bits);
	sum = checksum_of(image, total - sizeof(sum));
	put(at, &sum, sizeof(sum));
	*data = image;
	*size = total;
	return ROSA_OK;
}

void rosa_stream_free_memory(const rosa_stream *stream, void *data)
{
	if (stream)
		memory_free(&stream->allocator, data);
}

/* ---- loading ---- */

/* One route's part of an image, checked. */
struct saved {
	const uint8_t *key_starts, *query_starts;
	struct packed key, query; /* read only, and without the padding that words need */
	uint32_t key_runs, query_runs;
};

static bool bit(const uint8_t *bitmap, size_t i)
{
	return bitmap[i / 8] >> (i % 8) & 1;
}

static unsigned symbol_at(const uint8_t *symbols, unsigned bits, size_t i)
{
	unsigned symbol = 0;

	for (unsigned j = 0; j < bits; j++)
		symbol |= (unsigned)bit(symbols, i * bits + j) << j;
	return symbol;
}

static bool zero_from(const uint8_t *bitmap, size_t bits)
{
	for (size_t i = bits; i < bitmap_bytes(bits) * 8; i++)
		if (bit(bitmap, i))
			return false;
	return true;
}

/* Do the starts and the symbols of a stream fit each other? */
static bool sound(const uint8_t *starts, const uint8_t *symbols, size_t steps, size_t runs, unsigned bits, bool fold)
{
	size_t count = 0;

	for (size_t i = 0; i < bitmap_bytes(steps); i++)
		count += (size_t)__builtin_popcount(starts[i]);
	if (count != runs || !zero_from(starts, steps) || !zero_from(symbols, runs * bits))
		return false;
	if (steps && !bit(starts, 0))
		return false;
	if (!fold)
		return runs == steps;
	for (size_t run = 1; run < runs; run++)
		if (symbol_at(symbols, bits, run) == symbol_at(symbols, bits, run - 1))
			return false;
	return true;
}

struct load {
	rosa_stream *stream;
	struct saved *saved;
};

/* Give codes to all symbols of a route, and make room for its steps. */
static bool prepare(rosa_stream *stream, const struct saved *saved, size_t steps, struct route *route)
{
	const unsigned bits = stream->rules.bits;
	uint32_t query[CHUNK], key[CHUNK]; /* with room for the widest symbols */
	const size_t most = saved->key_runs > saved->query_runs ? saved->key_runs : saved->query_runs;

	for (size_t run = 0; run < most; run += CHUNK) {
		size_t n = 0;

		for (; n < CHUNK && run + n < most; n++) {
			/* where one stream has no more runs its first is as good */
			symbol_set(query, bits, n,
				   symbol_at(saved->query.bytes, bits, run + n < saved->query_runs ? run + n : 0));
			symbol_set(key, bits, n,
				   symbol_at(saved->key.bytes, bits, run + n < saved->key_runs ? run + n : 0));
		}
		if (!route_learn(route, &stream->allocator, n, query, key))
			return false;
	}
	return route_reserve_runs(route, &stream->rules, &stream->allocator, steps, saved->key_runs, saved->query_runs,
				  true, 0);
}

static void rebuild(void *context, size_t r, unsigned worker)
{
	const struct load *load = context;
	rosa_stream *stream = load->stream;
	const struct saved *saved = &load->saved[r];
	const unsigned bits = stream->rules.bits;
	size_t key_run = 0, query_run = 0, last_run = stream->steps;
	uint32_t query[CHUNK], key[CHUNK]; /* with room for the widest symbols */
	int32_t flips[CHUNK * ROSA_MAX_BITS];

	(void)worker;
	/* Counterfactuals are needed of the run that is under way, if at all. */
	while (stream->flips && last_run && !bit(saved->query_starts, --last_run))
		;
	for (size_t t = 0; t < stream->steps;) {
		bool with_flips = stream->flips && t >= last_run;
		size_t end = with_flips || last_run > stream->steps ? stream->steps : last_run, n = 0;
		struct route_output output = {.step_flips = with_flips ? flips : NULL};

		for (; n < CHUNK && t + n < end; n++) {
			key_run += bit(saved->key_starts, t + n);
			query_run += bit(saved->query_starts, t + n);
			symbol_set(key, bits, n, symbol_at(saved->key.bytes, bits, key_run - 1));
			symbol_set(query, bits, n, symbol_at(saved->query.bytes, bits, query_run - 1));
		}
		route_push(&stream->route[r], &stream->rules, &stream->allocator, n, query, key, &output);
		t += n;
	}
}

/* Find and check every route of the image; `at` is where the first begins, `end` where the checksum is. */
static rosa_status find_routes(const rosa_stream *stream, const uint8_t *at, const uint8_t *end, size_t steps,
			       struct saved *saved, rosa_error *err)
{
	const unsigned bits = stream->rules.bits;

	for (size_t r = 0; r < stream->routes; r++) {
		struct saved *s = &saved[r];
		size_t left = (size_t)(end - at);

		if (left < 8)
			return rosa_fail(err, ROSA_EFORMAT, "the saved state ends within route %zu", r);
		memcpy(&s->key_runs, at, 4);
		memcpy(&s->query_runs, at + 4, 4);
		if (s->key_runs > steps || s->query_runs > steps)
			return rosa_fail(err, ROSA_EFORMAT, "route %zu of the saved state has more runs than steps", r);
		if (left < route_size(steps, s->key_runs, s->query_runs, bits))
			return rosa_fail(err, ROSA_EFORMAT, "the saved state ends within route %zu", r);
		s->key_starts = at + 8;
		s->query_starts = s->key_starts + bitmap_bytes(steps);
		s->key.bytes = (uint8_t *)s->query_starts + bitmap_bytes(steps);
		s->query.bytes = s->key.bytes + bitmap_bytes((size_t)s->key_runs * bits);
		at += route_size(steps, s->key_runs, s->query_runs, bits);
		if (!sound(s->key_starts, s->key.bytes, steps, s->key_runs, bits, stream->rules.fold) ||
		    !sound(s->query_starts, s->query.bytes, steps, s->query_runs, bits, stream->rules.fold))
			return rosa_fail(err, ROSA_EFORMAT,
					 "the runs of route %zu of the saved state contradict each other", r);
	}
	if (at != end)
		return rosa_fail(err, ROSA_EFORMAT, "%zu bytes too many in the saved state", (size_t)(end - at));
	return ROSA_OK;
}

static rosa_status load_routes(rosa_stream *stream, const uint8_t *image, size_t size, size_t steps, rosa_error *err)
{
	struct load load = {stream, NULL};
	rosa_status status;

	load.saved = memory_resize(&stream->allocator, NULL, stream->routes * sizeof(*load.saved));
	if (!load.saved)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu routes", stream->routes);
	status = find_routes(stream, image + HEADER, image + size - 8, steps, load.saved, err);
	for (size_t r = 0; r < stream->routes && !status && steps; r++)
		if (!prepare(stream, &load.saved[r], steps, &stream->route[r]))
			status = rosa_fail(err, ROSA_ENOMEM, "no memory for %zu steps of route %zu", steps, r);
	if (!status) {
		stream->steps = steps;
		stream_for_routes(stream, rebuild, &load);
	}
	memory_free(&stream->allocator, load.saved);
	return status;
}

rosa_status rosa_stream_load_memory(const rosa_options *options, const void *data, size_t size, rosa_stream **stream,
				    rosa_error *err)
{
	const uint8_t *image = data;
	uint32_t numbers[4];
	uint64_t sizes[2], sum;
	struct route_rules rules;
	rosa_options full, saved;
	rosa_status status;

	if (!data || !stream)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", data ? "stream" : "data");
	*stream = NULL;
	status = rules_from_options(options, &full, &rules, err);
	if (status)
		return status;
	if (size < HEADER + sizeof(sum))
		return rosa_fail(err, ROSA_EFORMAT, "%zu bytes are too few for a saved state", size);
	if (memcmp(image, MAGIC, 8))
		return rosa_fail(err, ROSA_EFORMAT, "not a saved rosatune stream: it does not begin with " MAGIC);
	memcpy(numbers, image + 8, sizeof(numbers));
	memcpy(sizes, image + 24, sizeof(sizes));
	if (numbers[0] < OLDEST || numbers[0] > VERSION)
		return rosa_fail(
		    err, ROSA_EFORMAT,
		    "saved state of version %u; this library reads versions %d to %d: read the text again and "
		    "save the state anew",
		    numbers[0], OLDEST, VERSION);
	memcpy(&sum, image + size - sizeof(sum), sizeof(sum));
	if (sum != checksum_of(image, size - sizeof(sum)))
		return rosa_fail(err, ROSA_EFORMAT, "the saved state is damaged: its checksum is wrong");
	saved = full;
	saved.bits = (int)(numbers[1] & 0xff);
	saved.policy = (rosa_policy)(numbers[1] >> 8 & 0xff);
	saved.fold = (int)(numbers[1] >> 16 & 1);
	saved.max_match = numbers[2];
	saved.delay = numbers[3];
	if (numbers[1] >> 18 || (numbers[0] == 2 && numbers[3]) || rules_from_options(&saved, &full, &rules, NULL))
		return rosa_fail(err, ROSA_EFORMAT, "the saved state has options that this library does not know");
	/* A route takes at least its two counts, which bounds what is believed before it is seen. */
	if (!sizes[0] || sizes[0] > (size - HEADER) / 8 || sizes[1] > ROSA_MAX_STEPS || sizes[1] / 8 > size)
		return rosa_fail(err, ROSA_EFORMAT, "the saved state is too short for its %llu routes of %llu steps",
				 (unsigned long long)sizes[0], (unsigned long long)sizes[1]);
	status = stream_new(&rules, &full, (size_t)sizes[0], stream, err);
	if (status)
		return status;
	(*stream)->flips = numbers[1] >> 17 & 1;
	status = load_routes(*stream, image, size, (size_t)sizes[1], err);
	if (status) {
		rosa_stream_free(*stream);
		*stream = NULL;
	}
	return status;
}

/* ---- files ---- */

rosa_status rosa_stream_save(const rosa_stream *stream, const char *path, rosa_error *err)
{
	size_t size;
	void *data;
	rosa_status status;

	if (!stream || !path)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", stream ? "path" : "stream");
	status = rosa_stream_save_memory(stream, &data, &size, err);
	if (status)
		return status;
	status =
	    file_save(path, data, size, &(struct file_options){.durable = true, .allocator = &stream->allocator}, err);
	rosa_stream_free_memory(stream, data);
	return status;
}

rosa_status rosa_stream_load(const rosa_options *options, const char *path, rosa_stream **stream, rosa_error *err)
{
	struct route_rules rules;
	rosa_options full;
	rosa_error inner = {ROSA_OK, ""};
	rosa_status status;
	uint8_t *data;
	size_t size;

	if (!path || !stream)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", path ? "stream" : "path");
	*stream = NULL;
	status = rules_from_options(options, &full, &rules, err);
	if (status)
		return status;
	status = file_read(path, &(struct file_options){.allocator = &full.allocator}, &data, &size, err);
	if (!status) {
		status = rosa_stream_load_memory(options, data, size, stream, &inner);
		if (status)
			rosa_fail(err, status, "%.120s: %.130s", path, inner.message);
	}
	memory_free(&full.allocator, data);
	return status;
}
