/*
 * Retrieval on a CUDA device, of whole streams and of streams that grow, against the library's engine and the oracle.
 *
 *   cuda_retrieve [SEED [ROUNDS [LONGEST]]]
 *
 * Prints a table and exits with 1 if anything differed, with 77 (a skipped test) where there is no device. It needs
 * nothing but the library, so that it can be built on machines that have little else.
 */
#include "rosatune.h"

#include "eval/streams.h"
#include "support_grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rosa_status on_device(void *context, const rosa_options *options, size_t routes, size_t steps, const void *query,
			     const void *key, int32_t *tau, int32_t *length, int32_t *flips, size_t *handed,
			     rosa_error *err)
{
	rosa_cuda_info info = {.size = sizeof(info)};
	rosa_status status = rosa_cuda_retrieve(context, options, routes, steps, query, key, tau, length, flips, err);

	if (!status)
		status = rosa_cuda_describe(context, &info, err);
	*handed = info.handed;
	return status;
}

/* Many long routes, with and without tables, against the engine. */
static size_t check_large(rosa_cuda *cuda, uint64_t seed, const char *stream, int bits, size_t routes, size_t steps)
{
	const size_t cells = routes * steps, width = bits <= 4 ? (size_t)bits : 0;
	rosa_options options = ROSA_OPTIONS_INIT;
	uint16_t *query = malloc(cells * 2), *key = malloc(cells * 2);
	int32_t *tau = malloc(cells * 4), *want = malloc(cells * 4), *table = malloc(cells * 4 * (width + 1));
	int32_t *want_table = malloc(steps * 4 * (width + 1));
	rosa_cuda_info info = {.size = sizeof(info)};
	rosa_flips flips = {0};
	rosa_error err = {ROSA_OK, ""};
	size_t wrong = 0;

	options.bits = bits;
	options.threads = 0;
	for (size_t r = 0; r < routes; r++)
		stream_fill(stream_find(stream), bits, seed + r, steps, query + r * steps, key + r * steps);
	if (rosa_cuda_retrieve(cuda, &options, routes, steps, query, key, tau, NULL, width ? table : NULL, &err) ||
	    rosa_retrieve(&options, routes, steps, query, key, want, NULL, width ? &flips : NULL, &err)) {
		printf("  failed: %s\n", err.message);
		wrong = 1;
	} else {
		for (size_t i = 0; i < cells; i++)
			wrong += tau[i] != want[i];
		for (size_t r = 0; r < routes && width; r++) {
			rosa_flips_expand(&flips, r, steps, want_table, &err);
			wrong += memcmp(want_table, table + r * steps * width, steps * width * 4) != 0;
		}
	}
	rosa_cuda_describe(cuda, &info, &err);
	printf("%-24s bits %2d, tables %d, routes %3zu, steps %6zu: %zu differences, %llu routes handed, %.3f ms\n",
	       stream, bits, width != 0, routes, steps, wrong, (unsigned long long)info.handed, info.milliseconds);
	rosa_flips_free(&flips);
	free(query);
	free(key);
	free(tau);
	free(want);
	free(table);
	free(want_table);
	return wrong != 0;
}

/* Many long routes in pieces, on the device and by the processor's stream: `single` steps in the end, one at a time. */
static size_t check_pieces(rosa_cuda *cuda, uint64_t seed, const char *stream, int bits, size_t routes, size_t steps,
			   size_t piece, size_t single)
{
	const size_t cells = routes * steps;
	rosa_options options = ROSA_OPTIONS_INIT;
	uint16_t *query = malloc(cells * 2), *key = malloc(cells * 2);
	int32_t *tau = malloc(cells * 4), *length = malloc(cells * 4), *want = malloc(cells * 8);
	rosa_stream_info info = {.size = sizeof(info)};
	rosa_cuda_info last = {.size = sizeof(last)};
	rosa_cuda_stream *there = NULL;
	rosa_stream *here = NULL;
	rosa_error err = {ROSA_OK, ""};
	double all = 0, one = 0;
	size_t wrong = 0;
	rosa_status status;

	options.bits = bits;
	options.threads = 0;
	options.delay = piece / 3;
	for (size_t r = 0; r < routes; r++)
		stream_fill(stream_find(stream), bits, seed + r, steps, query + r * steps, key + r * steps);
	status = rosa_cuda_stream_new(cuda, &options, routes, &there, &err);
	if (!status)
		status = rosa_stream_new(&options, routes, &here, &err);
	for (size_t t = 0, n; t < steps && !status; t += n) {
		n = t >= steps - single ? 1 : piece < steps - single - t ? piece : steps - single - t;
		status = rosa_cuda_stream_push(there, n, query + t, key + t, steps, tau + t, length + t, &err);
		if (!status)
			status = rosa_cuda_describe(cuda, &last, &err);
		*(n > 1 ? &all : &one) += last.milliseconds;
		if (!status)
			status = rosa_stream_push(here, n, query + t, key + t, steps, want + t, want + cells + t, NULL,
						  &err);
	}
	if (!status)
		status = rosa_cuda_stream_describe(there, &info, &err);
	if (status)
		printf("  failed: %s\n", err.message);
	for (size_t i = 0; i < cells && !status; i++)
		wrong += tau[i] != want[i] || length[i] != want[cells + i];
	printf("%-16s bits %2d, routes %3zu, steps %6zu by %4zu: %zu differences, %llu routes handed, %.3f ms, "
	       "%.1f bytes per step; %.3f ms a single step\n",
	       stream, bits, routes, steps, piece, wrong, (unsigned long long)info.ordered, all,
	       (double)info.bytes / (double)cells, single ? one / (double)single : 0);
	rosa_cuda_stream_free(there);
	rosa_stream_free(here);
	free(query);
	free(key);
	free(tau);
	free(length);
	free(want);
	return wrong != 0 || status != ROSA_OK;
}

/* A symbol that does not fit is refused, and the message says where it is. */
static size_t check_refusal(rosa_cuda *cuda)
{
	uint16_t query[40] = {0}, key[40] = {0};
	rosa_options options = ROSA_OPTIONS_INIT;
	int32_t tau[40];
	rosa_error err;

	options.bits = 3;
	key[27] = 8;
	if (rosa_cuda_retrieve(cuda, &options, 2, 20, query, key, tau, NULL, NULL, &err) != ROSA_ESYMBOL ||
	    !strstr(err.message, "key") || !strstr(err.message, "route 1, step 7")) {
		printf("a symbol out of range was not refused as it should be\n");
		return 1;
	}
	return 0;
}

int main(int count, char **words)
{
	const uint64_t seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
	const size_t rounds = count > 2 ? strtoul(words[2], NULL, 10) : 4;
	const size_t longest = count > 3 ? strtoul(words[3], NULL, 10) : 5000;
	static const char *const streams[] = {"uniform", "sticky", "correlated", "text-like", "skewed", "halves"};
	rosa_cuda *cuda = NULL;
	rosa_error err;
	rosa_cuda_info info = {.size = sizeof(info)};
	size_t failed;

	if (rosa_cuda_open(0, NULL, &cuda, &err)) {
		printf("skipped: %s\n", err.message);
		return 77;
	}
	rosa_cuda_describe(cuda, &info, &err);
	printf("device: %s, seed %llu\n", info.name, (unsigned long long)seed);
	failed = check_refusal(cuda) + grid_run(on_device, cuda, seed, rounds, longest, true);
	puts("\nstreams, in pieces");
	failed += grid_run(grid_pieces, cuda, seed + 1, rounds, longest, false);
	for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]) && longest >= 5000; i++) {
		failed += check_large(cuda, seed, streams[i], 4, 64, 16384);
		failed += check_large(cuda, seed, streams[i], 16, 64, 16384);
		failed += check_large(cuda, seed, streams[i], 4, 4, 70000);
		failed += check_large(cuda, seed, streams[i], 16, 8, 131072);
		failed += check_pieces(cuda, seed, streams[i], 4, 64, 20000, 512, 100);
		failed += check_pieces(cuda, seed, streams[i], 16, 16, 140000, 4096, 100);
	}
	if (longest >= 5000) {
		failed += check_pieces(cuda, seed, "uniform", 4, 512, 20000, 4096, 50);
		failed += check_pieces(cuda, seed, "uniform", 16, 128, 70000, 4096, 50);
	}
	rosa_cuda_close(cuda);
	if (failed)
		printf("%zu settings failed\n", failed);
	else
		puts("all equal");
	return failed != 0;
}
