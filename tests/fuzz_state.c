/*
 * Bytes as a saved state: refused, or good for going on.
 *
 * An input is used in two ways. First it is taken for an image, as it stands and with a good checksum. Then it tells
 * how to make one: its first bytes are options, all of it symbols, and what remains is a list of changes to the image,
 * which is tried as it is and sealed again. A change of nothing must load; anything else may be refused or must give a
 * stream that takes steps, can be wound back and saved, and frees all its memory.
 */
#include "rosatune.h"

#include "retrieval/engine.h"
#include "retrieval/symbol_array.h"
#include "support_fuzz.h"
#include "support_image.h"
#include "support_memory.h"

#include <stdio.h>

#define MOST_STEPS 64
#define MORE_STEPS 8

static void complain(const char *what)
{
	fprintf(stderr, "%s\n", what);
	abort();
}

/* Whatever was accepted must work like any other stream. */
static void use_stream(rosa_stream *stream)
{
	rosa_stream_info info = {.size = sizeof(info)};
	rosa_stream *copy = NULL;
	uint32_t *zeros; /* room for the widest symbols */
	int32_t *tau;
	void *data;
	size_t size;

	if (rosa_stream_describe(stream, &info, NULL) != ROSA_OK)
		complain("a loaded stream cannot be described");
	zeros = calloc(info.routes * MORE_STEPS, sizeof(*zeros));
	tau = calloc(info.routes * MORE_STEPS, sizeof(*tau));
	if (!zeros || !tau)
		complain("out of memory");
	if (rosa_stream_push(stream, MORE_STEPS, zeros, zeros, 0, tau, NULL, NULL, NULL) != ROSA_OK)
		complain("a loaded stream takes no steps");
	for (size_t i = 0; i < info.routes * MORE_STEPS; i++) {
		if (tau[i] < -1 || (tau[i] >= 0 && (size_t)tau[i] >= info.steps + MORE_STEPS))
			complain("a loaded stream leads out of its history");
	}
	if (rosa_stream_rewind(stream, info.steps / 2, NULL) != ROSA_OK)
		complain("a loaded stream cannot be wound back");
	if (rosa_stream_fork(stream, &copy, NULL) != ROSA_OK)
		complain("a loaded stream cannot be forked");
	rosa_stream_free(copy);
	if (rosa_stream_save_memory(stream, &data, &size, NULL) != ROSA_OK)
		complain("a loaded stream cannot be saved");
	rosa_stream_free_memory(stream, data);
	free(zeros);
	free(tau);
}

static rosa_status load(const uint8_t *image, size_t size)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	struct test_memory memory;
	rosa_stream *stream = NULL;
	rosa_status status;

	test_memory_init(&memory);
	options.allocator = test_memory_allocator(&memory);
	status = rosa_stream_load_memory(&options, image, size, &stream, NULL);
	if (status == ROSA_OK)
		use_stream(stream);
	else if (status != ROSA_EFORMAT)
		complain("neither loaded nor refused for its format");
	rosa_stream_free(stream);
	if (atomic_load(&memory.blocks) != 0)
		complain("memory was leaked");
	return status;
}

/* A copy, `size` bytes of it, with a good checksum. */
static void load_sealed(const uint8_t *image, size_t size)
{
	uint8_t *copy;

	if (size < IMAGE_SEAL)
		return;
	copy = malloc(size);
	if (!copy)
		complain("out of memory");
	memcpy(copy, image, size);
	image_seal(copy, size);
	load(copy, size);
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum { BITS, RULES, DELAY, ENGINE, ROUTES, STEPS, HEADER };
	rosa_options options = ROSA_OPTIONS_INIT;
	uint32_t symbols[2][4 * MOST_STEPS]; /* with room for the widest */
	uint8_t *image;
	rosa_stream *stream = NULL;
	size_t routes, steps, image_size, changes = 0;
	void *saved;

	load(data, size);
	load_sealed(data, size);
	if (size < HEADER)
		return 0;
	options.bits = ROSA_MIN_BITS + data[BITS] % ROSA_MAX_SYMBOL_BITS;
	options.policy = (rosa_policy)(data[RULES] % 3);
	options.fold = data[RULES] / 3 % 2;
	options.max_match = data[RULES] / 6 % 4;
	options.delay = data[DELAY] % 2 ? 0 : data[DELAY] / 2;
	routes = 1 + data[ROUTES] % 4;
	steps = data[STEPS] % MOST_STEPS;
	for (size_t i = 0; i < routes * steps; i++) {
		const uint32_t byte = data[i % size] * 0x010101u, mask = (1u << options.bits) - 1;

		symbol_set(symbols[0], (unsigned)options.bits, i, byte & mask);
		symbol_set(symbols[1], (unsigned)options.bits, i, byte >> 2 & mask);
	}
	if (rosa_stream_new(&options, routes, &stream, NULL) != ROSA_OK)
		complain("no stream");
	rosa_stream_set_engine(stream, (rosa_engine)(data[ENGINE] % 4));
	if (steps && rosa_stream_push(stream, steps, symbols[0], symbols[1], 0, NULL, NULL, NULL, NULL) != ROSA_OK)
		complain("no push");
	if (rosa_stream_save_memory(stream, &saved, &image_size, NULL) != ROSA_OK)
		complain("no image");
	image = malloc(image_size);
	if (!image)
		complain("out of memory");
	memcpy(image, saved, image_size);
	if (load(image, image_size) != ROSA_OK)
		complain("a good image is refused");
	/* Each change: two bytes of place, one of value. */
	for (size_t i = HEADER; i + 3 <= size; i += 3) {
		size_t place = (data[i] | (size_t)data[i + 1] << 8) % image_size;

		changes += image[place] != data[i + 2];
		image[place] = data[i + 2];
	}
	if (changes)
		load(image, image_size);
	load_sealed(image, image_size);
	if (size > HEADER)
		load_sealed(image, image_size * data[HEADER] / 256);
	free(image);
	rosa_stream_free_memory(stream, saved);
	rosa_stream_free(stream);
	return 0;
}
