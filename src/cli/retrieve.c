/*
 * rosatune retrieve: destinations of symbol files.
 *
 * This command serves to check every backend, so it offers both interfaces of the library, whole streams and streams in
 * chunks, and writes the same files with both. All outputs are computed, written and closed before the first one gets
 * its name: after a failure or Ctrl-C the old files are unchanged.
 *
 * Counterfactual tables are the largest result by far (bits times the destinations). For whole streams the library
 * returns one table per run, and they are expanded to steps one route at a time while writing. In chunks the tables of
 * all routes come step by step, but the file has one route after the other, so the whole table is kept in memory.
 */
#include "cli/commands.h"

#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/progress.h"
#include "retrieval/symbol_array.h"

#include <stdlib.h>
#include <string.h>

/* Steps of one push, whatever --chunk allows: Ctrl-C is noticed between two pushes. Many more would take seconds, and
 * with many fewer, many routes would be read at half the speed. */
#define PUSH_MOST ((size_t)1 << 16)

struct job {
	const char *query_path, *key_path, *out_path, *length_path, *flips_path;
	struct retrieval_args retrieval;
	uint64_t chunk; /* as a stream, at most so many steps at a time; 0: all at once */
	int device;

	struct symbol_pair pair;
	int32_t *tau, *length; /* [routes][steps] */
	rosa_flips flips;      /* all at once: by runs */
	int32_t *table;        /* in chunks, or on a device: [routes][steps][bits] */
};

/* -------------------------------------------------------------------------------------------------- the command -- */

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    OPTION_TEXT("query", &job->query_path, "Q.npy",
			"query symbols: uint8, uint16 or uint32, shape [T] or [N,T]", .required = true),
	    OPTION_TEXT("key", &job->key_path, "K.npy", "key symbols, of the same shape", .required = true),
	    OPTION_TEXT("out", &job->out_path, "TAU.npy",
			"destinations: int32, of the same shape; -1 where nothing matches", .short_name = 'o',
			.required = true),
	    OPTION_TEXT("length", &job->length_path, "L.npy",
			"also write the match lengths (in runs): int32, of the same shape"),
	    OPTION_TEXT("flips", &job->flips_path, "F.npy",
			"also write the counterfactual tables: int32, shape [...,T,M]"),
	    RETRIEVAL_ARGS(&job->retrieval, true, "bits per symbol, 1 to 20 (with --flips 1 to 16)",
			   "worker threads (default 0: one per processor)"),
	    OPTION_SIZE("chunk", &job->chunk, "N", 1, ROSA_MAX_STEPS,
			"read as streams, at most N steps at a time (default: all at once)"),
	    OPTION_CHOICE("device", &job->device, "D", device_names,
			  "cpu (default) or cuda: a GPU; in chunks without --flips"),
	};
	struct args args = {
	    .command = "retrieve",
	    .usage = "--query Q.npy --key K.npy --bits M --out TAU.npy [options]",
	    .summary = "Finds, for every step, the place in the key's past that best continues the query's context.",
	    ARGS_OPTIONS(options),
	    .notes = "The result does not depend on --chunk or --threads. Sizes may end in k, M or G (powers of 1024).",
	};

	return args_parse(&args, count, words);
}

#define OUTPUTS(job)                                                                                                   \
	{                                                                                                              \
		(job)->out_path, (job)->length_path, (job)->flips_path                                                 \
	}

static bool names_differ(const struct job *job)
{
	const char *paths[] = OUTPUTS(job);

	for (int i = 1; i < 3; i++) {
		for (int j = 0; j < i; j++) {
			if (paths[i] && paths[j] && strcmp(paths[i], paths[j]) == 0) {
				complain("retrieve", "%s is named for two outputs; give each its own file", paths[i]);
				return false;
			}
		}
	}
	return true;
}

static bool can_write(const struct job *job, rosa_error *why)
{
	const char *paths[] = OUTPUTS(job);

	for (int i = 0; i < 3; i++) {
		if (paths[i] && file_can_create(paths[i], why) != ROSA_OK)
			return false;
	}
	return true;
}

/* ----------------------------------------------------------------------------------------------------- the work -- */

static bool allocate(struct job *job, rosa_error *why)
{
	size_t cells = job->pair.routes * job->pair.steps; /* fits: it is the size of a file */
	size_t row = job->retrieval.bits * sizeof(int32_t);

	job->tau = get_memory(cells, sizeof(int32_t), "the destinations", why);
	if (!job->tau)
		return false;
	if (job->length_path) {
		job->length = get_memory(cells, sizeof(int32_t), "the match lengths", why);
		if (!job->length)
			return false;
	}
	if (job->flips_path && (job->chunk || job->device == DEVICE_CUDA)) {
		job->table = get_memory(cells, row, "the counterfactual tables", why);
		if (!job->table)
			return false;
	}
	return true;
}

static bool retrieve_at_once(struct job *job, struct progress *progress, rosa_error *why)
{
	rosa_options options = retrieval_options(&job->retrieval);
	const struct symbol_pair *pair = &job->pair;

	options.progress = progress_tick;
	options.progress_context = progress;
	if (rosa_retrieve(&options, pair->routes, pair->steps, pair->query, pair->key, job->tau, job->length,
			  job->flips_path ? &job->flips : NULL, why) != ROSA_OK)
		return false;
	return true;
}

/* The table of one push, [routes][steps][bits], into its place in the whole. */
static void place_table(struct job *job, const int32_t *table, size_t from, size_t steps)
{
	size_t bits = job->retrieval.bits;

	for (size_t r = 0; r < job->pair.routes; r++)
		memcpy(job->table + (r * job->pair.steps + from) * bits, table + r * steps * bits,
		       steps * bits * sizeof(int32_t));
}

static bool push_chunks(struct job *job, rosa_stream *stream, size_t most, int32_t *table, struct progress *progress,
			rosa_error *why)
{
	const struct symbol_pair *pair = &job->pair;

	for (size_t t = 0; t < pair->steps; t += most) {
		size_t steps = pair->steps - t < most ? pair->steps - t : most;
		if (symbol_pair_push(pair, stream, t, steps, job->tau, job->length, table, why) != ROSA_OK)
			return false;
		if (table)
			place_table(job, table, t, steps);
		if (progress_tick(progress, (t + steps) * pair->routes, pair->steps * pair->routes))
			return refuse(why, "interrupted");
	}
	return true;
}

static bool retrieve_in_chunks(struct job *job, struct progress *progress, rosa_error *why)
{
	rosa_options options = retrieval_options(&job->retrieval);
	size_t most = job->chunk < job->pair.steps ? job->chunk : job->pair.steps;
	rosa_stream *stream = NULL;
	int32_t *table = NULL;
	bool done;

	most = most < PUSH_MOST ? most : PUSH_MOST;
	if (job->table) {
		table = get_memory(job->pair.routes * most, job->retrieval.bits * sizeof(int32_t),
				   "the tables of one push", why);
		if (!table)
			return false;
	}
	done = rosa_stream_new(&options, job->pair.routes, &stream, why) == ROSA_OK &&
	       push_chunks(job, stream, most, table, progress, why);
	rosa_stream_free(stream);
	free(table);
	return done;
}

static bool push_chunks_to_device(struct job *job, rosa_cuda *cuda, rosa_error *why)
{
	const rosa_options options = retrieval_options(&job->retrieval);
	const struct symbol_pair *pair = &job->pair;
	rosa_cuda_stream *stream = NULL;
	bool done = rosa_cuda_stream_new(cuda, &options, pair->routes, &stream, why) == ROSA_OK;

	for (size_t t = 0; t < pair->steps && done && !interrupted(); t += job->chunk)
		done = rosa_cuda_stream_push(stream, pair->steps - t < job->chunk ? pair->steps - t : job->chunk,
					     symbols_from(pair->query, pair->bits, t),
					     symbols_from(pair->key, pair->bits, t), pair->steps, job->tau + t,
					     job->length ? job->length + t : NULL, why) == ROSA_OK;
	rosa_cuda_stream_free(stream);
	return done;
}

static bool retrieve_on_device(struct job *job, rosa_error *why)
{
	const rosa_options options = retrieval_options(&job->retrieval);
	const struct symbol_pair *pair = &job->pair;
	rosa_cuda *cuda = NULL;
	bool done = rosa_cuda_open(0, NULL, &cuda, why) == ROSA_OK;

	if (done && job->chunk)
		done = push_chunks_to_device(job, cuda, why);
	else if (done)
		done = rosa_cuda_retrieve(cuda, &options, pair->routes, pair->steps, pair->query, pair->key, job->tau,
					  job->length, job->table, why) == ROSA_OK;
	rosa_cuda_close(cuda);
	return done;
}

static bool compute(struct job *job, rosa_error *why)
{
	struct progress progress;

	if (job->device == DEVICE_CUDA)
		return retrieve_on_device(job, why) && !interrupted();

	progress_begin(&progress, "retrieving", 0);
	bool done = job->chunk ? retrieve_in_chunks(job, &progress, why) : retrieve_at_once(job, &progress, why);
	progress_end(&progress);
	return done && !interrupted();
}

/* ------------------------------------------------------------------------------------------------------- output -- */

static bool write_cells(const struct job *job, struct file_writer *writer, const char *path, const int32_t *values,
			rosa_error *why)
{
	size_t routes = job->pair.routes, steps = job->pair.steps;
	size_t shape[2] = {routes, steps};

	return npy_create(writer, path, "<i4", job->pair.dims, shape + (2 - job->pair.dims), why) &&
	       file_write(writer, values, routes * steps * sizeof(*values), why) == ROSA_OK;
}

static bool write_expanded(const struct job *job, struct file_writer *writer, rosa_error *why)
{
	size_t steps = job->pair.steps, bits = job->retrieval.bits;
	int32_t *table = get_memory(steps, bits * sizeof(int32_t), "one route's tables", why);
	bool done = table != NULL;

	for (size_t r = 0; r < job->pair.routes && done; r++)
		done = rosa_flips_expand(&job->flips, r, steps, table, why) == ROSA_OK &&
		       file_write(writer, table, steps * bits * sizeof(*table), why) == ROSA_OK;
	free(table);
	return done;
}

static bool write_flips(const struct job *job, struct file_writer *writer, rosa_error *why)
{
	size_t routes = job->pair.routes, steps = job->pair.steps, bits = job->retrieval.bits;
	size_t shape[3] = {routes, steps, bits};

	if (!npy_create(writer, job->flips_path, "<i4", job->pair.dims + 1, shape + (2 - job->pair.dims), why))
		return false;
	if (job->table)
		return file_write(writer, job->table, routes * steps * bits * sizeof(*job->table), why) == ROSA_OK;
	return write_expanded(job, writer, why);
}

static bool write_outputs(const struct job *job, rosa_error *why)
{
	struct file_writer files[3] = {FILE_WRITER_INIT, FILE_WRITER_INIT, FILE_WRITER_INIT};
	int count = 0;
	bool done = write_cells(job, &files[count++], job->out_path, job->tau, why);

	if (done && job->length_path)
		done = write_cells(job, &files[count++], job->length_path, job->length, why);
	if (done && job->flips_path)
		done = write_flips(job, &files[count++], why);
	for (int i = 0; i < count && done; i++)
		done = file_close(&files[i], why) == ROSA_OK;
	done = done && !interrupted();
	for (int i = 0; i < count && done; i++)
		done = file_commit(&files[i], why) == ROSA_OK;
	for (int i = 0; i < count; i++)
		file_discard(&files[i]);
	return done;
}

static bool run(struct job *job, rosa_error *why)
{
	return can_write(job, why) &&
	       symbol_pair_load(&job->pair, job->query_path, job->key_path, (int)job->retrieval.bits, why) &&
	       allocate(job, why) && compute(job, why) && write_outputs(job, why);
}

int retrieve_command(int count, char **words)
{
	struct job job = {0};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (!names_differ(&job))
		return MISUSED;
	if (job.chunk && job.flips_path && job.device == DEVICE_CUDA) {
		complain("retrieve", "--flips: a device has tables only for whole streams, and the CPU for streams in "
				     "chunks too; leave out --chunk, --flips or --device cuda");
		return MISUSED;
	}
	interrupt_watch();
	bool done = run(&job, &why);
	rosa_flips_free(&job.flips);
	free(job.table);
	free(job.length);
	free(job.tau);
	symbol_pair_free(&job.pair);
	return command_end_file("retrieve", done, &why);
}
