/*
 * rosatune bench retrieve: how fast and how small retrieval is, on this machine and on given or made streams.
 *
 * The kinds of stream are listed in two forms, with explanations in the help for people, and bare for scripts that want
 * to measure them all.
 */
#include "cli/bench.h"
#include "cli/commands.h"

#include "cli/interrupt.h"
#include "eval/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KINDS 64

struct request {
	struct bench bench;
	const char *query_path, *key_path;
	uint64_t routes, tokens, alphabet;
	int device;
	bool no_flips, decode, list;
	bool made;    /* at least one option for made streams was given */
	bool singles; /* a number of them was given */
};

#define NOTES                                                                                                          \
	"With --decode a made history of more than 128k tokens is several streams of the kind, from other seeds, "     \
	"one\n"                                                                                                        \
	"after the other. Sizes may end in k, M or G (powers of 1024).\n\nstreams:"

/* The kinds there are, as choices of an option and as lines of the help. */
static void list_kinds(const char *names[MAX_KINDS + 1], char *notes, size_t room)
{
	int count = stream_count() < MAX_KINDS ? stream_count() : MAX_KINDS;
	size_t used = (size_t)snprintf(notes, room, NOTES);

	for (int i = 0; i < count; i++) {
		names[i] = stream_name(i);
		if (used < room)
			used +=
			    (size_t)snprintf(notes + used, room - used, "\n  %-24s %s", stream_name(i), stream_what(i));
	}
	names[count] = NULL;
}

static enum args_result parse(struct request *request, int count, char **words)
{
	const char *kinds[MAX_KINDS + 1];
	char notes[8192];
	struct bench *bench = &request->bench;
	struct arg options[] = {
	    OPTION_CHOICE("stream", &bench->kind, "KIND", kinds, "kind of made streams, see below (default uniform)"),
	    OPTION_SIZE("routes", &request->routes, "N", 1, 1u << 24,
			"number of made streams (default 8; with --decode 512)"),
	    OPTION_SIZE("tokens", &request->tokens, "T", 1, ROSA_MAX_STEPS, "tokens per route (default 16k)"),
	    OPTION_SIZE("alphabet", &request->alphabet, "A", 2, 1u << 16,
			"made streams use A of the 2^bits values, a power of two (default all)"),
	    OPTION_NUMBER("seed", &bench->seed, "S", 0, UINT32_MAX, "other symbols of the same kind (default 1)"),
	    OPTION_FLAG("list-streams", &request->list, "only list the kinds of made streams, one per line"),
	    OPTION_TEXT("query", &request->query_path, "Q.npy",
			"instead of made streams: query symbols, uint8, uint16 or uint32"),
	    OPTION_TEXT("key", &request->key_path, "K.npy", "and key symbols, of the same shape"),
	    RETRIEVAL_ARGS(&bench->retrieval, false, "bits per symbol, 1 to 20 (default 4; above 16 without tables)",
			   "worker threads (default 1; 0: one per processor)"),
	    OPTION_FLAG("no-flips", &request->no_flips, "without counterfactual tables"),
	    OPTION_NUMBER("repeat", &bench->repeat, "R", 1, 100000,
			  "timed runs, after one that is not timed (default 5)"),
	    OPTION_SIZE("chunk", &bench->chunk, "N", 1, ROSA_MAX_STEPS,
			"read through a stream, N tokens at a time, without tables"),
	    OPTION_FLAG("decode", &request->decode,
			"time single steps at the end of a history of T tokens (made ones: see below)"),
	    OPTION_NUMBER("steps", &bench->singles, "N", 1, 1u << 20, "with --decode: steps to time (default 256)"),
	    OPTION_CHOICE("device", &request->device, "D", device_names,
			  "cpu (default), or cuda: a device beside the CPU"),
	    OPTION_FLAG("json", &bench->json, "print JSON"),
	};
	struct args args = {
	    .command = "bench retrieve",
	    .usage = "[--stream KIND --routes N --tokens T | --query Q.npy --key K.npy] [options]",
	    .summary = "Measures retrieval: nanoseconds per token and route, bytes per key run, share of hits.",
	    ARGS_OPTIONS(options),
	    .notes = notes,
	};

	list_kinds(kinds, notes, sizeof(notes));
	enum args_result result = args_parse(&args, count, words);
	request->made = args_given(&args, "stream") || args_given(&args, "routes") || args_given(&args, "tokens") ||
			args_given(&args, "seed") || args_given(&args, "alphabet");
	request->singles = args_given(&args, "steps");
	return result;
}

/* Options that do not go together. */
static bool consistent(const struct request *request)
{
	bool files = request->query_path || request->key_path;

	if (files && !(request->query_path && request->key_path))
		complain("bench retrieve", "--query and --key go together; give both files");
	else if (files && request->made)
		complain("bench retrieve", "--query and --key replace made streams; leave out --stream, --routes, "
					   "--tokens, --seed and --alphabet");
	else if (request->alphabet && (request->alphabet & (request->alphabet - 1) ||
				       request->alphabet > (uint64_t)1 << request->bench.retrieval.bits))
		complain("bench retrieve",
			 "--alphabet %llu: give a power of two, at most the 2^%llu values of a symbol",
			 (unsigned long long)request->alphabet, (unsigned long long)request->bench.retrieval.bits);
	else if (request->bench.chunk && request->decode)
		complain("bench retrieve", "--chunk reads in pieces, --decode takes single steps; give one of the two");
	else if (request->device == DEVICE_CUDA && request->decode)
		complain("bench retrieve", "--decode times single steps of the CPU; for a device's give --chunk 1");
	else if (request->singles && !request->decode)
		complain("bench retrieve", "--steps counts single steps; give --decode too");
	else if (request->decode && !files && request->tokens <= request->bench.singles)
		complain("bench retrieve", "--tokens %llu: --decode times the last %llu steps; give more than these",
			 (unsigned long long)request->tokens, (unsigned long long)request->bench.singles);
	else
		return true;
	return false;
}

static bool make_streams(struct request *request, rosa_error *why)
{
	struct bench *bench = &request->bench;
	size_t steps = request->decode ? bench_decode_room(request->tokens, request->bench.singles) : request->tokens;

	bench->steps = request->tokens;
	bench->stream = stream_name(bench->kind);
	if (!symbol_pair_new(&bench->pair, request->routes, steps, (int)bench->retrieval.bits, why))
		return false;
	return request->decode || bench_make(bench, 0, steps, why);
}

static bool load_streams(struct request *request, rosa_error *why)
{
	struct bench *bench = &request->bench;

	bench->kind = BENCH_FILE;
	bench->stream = "file";
	bench->seed = 0;
	if (!symbol_pair_load(&bench->pair, request->query_path, request->key_path, (int)bench->retrieval.bits, why))
		return false;
	bench->steps = bench->pair.steps;
	if (request->decode && bench->steps <= bench->singles)
		return refuse(why, "%s has %zu steps: --decode times the last %llu; give a longer file",
			      request->query_path, bench->steps, (unsigned long long)bench->singles);
	return true;
}

static void list_streams(void)
{
	for (int kind = 0; kind < stream_count(); kind++)
		puts(stream_name(kind));
}

static bool run(struct request *request, rosa_error *why)
{
	if (!(request->query_path ? load_streams(request, why) : make_streams(request, why)))
		return false;
	if (request->device == DEVICE_CUDA)
		return bench_device(&request->bench, why);
	return request->decode ? bench_decode(&request->bench, why) : bench_throughput(&request->bench, why);
}

int bench_retrieve_command(int count, char **words)
{
	struct request request = {
	    .bench = {.retrieval = {.bits = 4, .threads = 1}, .seed = 1, .repeat = 5, .singles = 256}, .tokens = 16384};
	rosa_error why = {0};
	int uniform = stream_find("uniform");

	request.bench.kind = uniform < 0 ? 0 : uniform;
	enum args_result parsed = parse(&request, count, words);
	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (!consistent(&request))
		return MISUSED;
	if (request.list) {
		list_streams();
		return DONE;
	}
	if (request.routes == 0)
		request.routes = request.decode ? 512 : 8;
	while ((uint64_t)1 << request.bench.alphabet_bits < request.alphabet)
		request.bench.alphabet_bits++;
	request.bench.flips =
	    !request.no_flips && !request.bench.chunk && request.bench.retrieval.bits <= ROSA_MAX_BITS;
	interrupt_watch();
	bool done = run(&request, &why);
	symbol_pair_free(&request.bench.pair);
	return command_end("bench retrieve", done, &why);
}
