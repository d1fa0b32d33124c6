/*
 * Symbol files of the commands that retrieve.
 *
 * The library checks symbols as well, but does not know their file; here the message names the file and the place in
 * it, with NumPy's indices.
 */
#include "cli/inputs.h"

#include "cli/npy.h"
#include "retrieval/symbol_array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const device_names[] = {[DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda", NULL};

rosa_options retrieval_options(const struct retrieval_args *args)
{
	rosa_options options = ROSA_OPTIONS_INIT;

	options.bits = (int)args->bits;
	options.policy = (rosa_policy)args->policy;
	options.fold = !args->no_fold;
	options.max_match = (uint32_t)args->max_match;
	options.delay = (uint32_t)args->delay;
	options.threads = (int)args->threads;
	return options;
}

void *get_memory(size_t count, size_t size, const char *what, rosa_error *why)
{
	size_t bytes;
	void *memory = NULL;

	if (!__builtin_mul_overflow(count, size, &bytes))
		memory = malloc(bytes ? bytes : 1);
	if (!memory)
		refuse(why, "not enough memory for %s (%zu x %zu bytes); use fewer routes or steps", what, count, size);
	return memory;
}

/* "[N,T]" or "[T]": a shape, or a place in an array, in NumPy's notation. */
struct bracket {
	char text[64];
};

static struct bracket bracket(int dims, size_t route, size_t step)
{
	struct bracket result;

	if (dims == 1)
		snprintf(result.text, sizeof(result.text), "[%zu]", step);
	else
		snprintf(result.text, sizeof(result.text), "[%zu,%zu]", route, step);
	return result;
}

static bool check_symbols(const char *path, const struct npy_rows *file, int bits, rosa_error *why)
{
	for (size_t i = 0; i < file->rows * file->steps; i++) {
		if (file->values[i] >> bits != 0)
			return refuse(why, "%s: symbol %u at %s is not below 2^%d; raise --bits or check the file",
				      path, file->values[i], bracket(file->dims, i / file->steps, i % file->steps).text,
				      bits);
	}
	return true;
}

/* As the library takes symbols of `bits` bits, in the same memory. */
static void narrow(struct npy_rows *file, int bits)
{
	for (size_t i = 0; i < file->rows * file->steps && bits <= 16; i++) {
		const uint16_t symbol = (uint16_t)file->values[i];

		memcpy((char *)file->values + i * sizeof(symbol), &symbol, sizeof(symbol));
	}
}

static bool check_shapes(const char *const paths[2], const struct npy_rows files[2], rosa_error *why)
{
	const struct npy_rows *query = &files[0], *key = &files[1];

	if (query->dims == key->dims && query->rows == key->rows && query->steps == key->steps)
		return true;
	return refuse(why, "query %s has shape %s, key %s has shape %s; they must be the same", paths[0],
		      bracket(query->dims, query->rows, query->steps).text, paths[1],
		      bracket(key->dims, key->rows, key->steps).text);
}

bool symbol_pair_load(struct symbol_pair *pair, const char *query, const char *key, int bits, rosa_error *why)
{
	const char *const paths[2] = {query, key};
	struct npy_rows files[2] = {{0}, {0}};
	bool good = true;

	memset(pair, 0, sizeof(*pair));
	for (int i = 0; i < 2 && good; i++)
		good = npy_load(paths[i], NPY_SYMBOLS, &files[i], why);
	good = good && check_shapes(paths, files, why);
	for (int i = 0; i < 2 && good; i++)
		good = check_symbols(paths[i], &files[i], bits, why);
	*pair = (struct symbol_pair){files[0].dims,  files[0].rows,   files[0].steps,
				     (unsigned)bits, files[0].values, files[1].values};
	if (good) {
		narrow(&files[0], bits);
		narrow(&files[1], bits);
	} else {
		symbol_pair_free(pair);
	}
	return good;
}

bool symbol_pair_new(struct symbol_pair *pair, size_t routes, size_t steps, int bits, rosa_error *why)
{
	const size_t size = symbol_size((unsigned)bits);
	size_t count;

	memset(pair, 0, sizeof(*pair));
	if (__builtin_mul_overflow(routes, steps, &count))
		return refuse(why, "%zu routes of %zu steps do not fit in memory", routes, steps);
	pair->dims = 2;
	pair->routes = routes;
	pair->steps = steps;
	pair->bits = (unsigned)bits;
	pair->query = get_memory(count, size, "the queries", why);
	pair->key = pair->query ? get_memory(count, size, "the keys", why) : NULL;
	if (!pair->key)
		symbol_pair_free(pair);
	return pair->key != NULL;
}

rosa_status symbol_pair_push(const struct symbol_pair *pair, rosa_stream *stream, size_t at, size_t steps, int32_t *tau,
			     int32_t *length, int32_t *table, rosa_error *why)
{
	return rosa_stream_push(stream, steps, symbols_from(pair->query, pair->bits, at),
				symbols_from(pair->key, pair->bits, at), pair->steps, tau ? tau + at : NULL,
				length ? length + at : NULL, table, why);
}

void symbol_pair_free(struct symbol_pair *pair)
{
	free(pair->query);
	free(pair->key);
	memset(pair, 0, sizeof(*pair));
}
