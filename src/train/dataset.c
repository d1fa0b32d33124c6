/*
 * What training reads.
 *
 * The order of samples is not stored: sample n is a function of n. Its source is chosen by weight (mixing.c), its place
 * in the source's current epoch is a permutation of the numbers of that epoch (permutation.h), and the rest is a lookup
 * in mapped files. So a checkpoint holds nothing but n, nothing has to be replayed after a crash, and several processes
 * share a batch by reading different n.
 *
 * A source is two lists of shards. Shards of text form one long text, cut into samples of equal length: every token but
 * the first is a target once per epoch, and a sample begins with the last target of the one before. Shards of
 * conversations are documents, each of which is a sample: an answer without its question teaches nothing.
 */
#include "train/dataset.h"

#include "base/checksum.h"
#include "train/mixing.h"
#include "train/permutation.h"
#include "train/shard_names.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* Shards of one kind, one after the other: shard i begins at item items[i] (a token or a document), and items[count] is
 * the number of items of all. */
struct row {
	const struct tokens_file **files;
	uint64_t *items;
	size_t count;
};

struct source {
	struct tokens_file *files;
	size_t count;
	struct row text, conversations;
	uint64_t text_samples, samples;
};

struct dataset {
	struct source *sources;
	size_t count, length;
	uint64_t seed;
	struct dataset_facts facts;
	struct checksum sum; /* of the shards' checksums */
	double *sums;        /* of weights, for mixing; NULL: all in one */
};

/* -------------------------------------------------------------------------------------------------------- shards -- */

static rosa_status no_memory(const char *path, rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for its list of shards", path);
}

/* ---------------------------------------------------------------------------------------------------------- rows -- */

static bool row_make(struct row *row, size_t room)
{
	row->files = malloc((room + 1) * sizeof(*row->files));
	row->items = calloc(room + 1, sizeof(*row->items));
	return row->files && row->items;
}

static void row_add(struct row *row, const struct tokens_file *file, uint64_t items)
{
	row->files[row->count] = file;
	row->items[row->count + 1] = row->items[row->count] + items;
	row->count++;
}

static uint64_t row_all(const struct row *row)
{
	return row->items[row->count];
}

/* The number of the shard that has this item. */
static size_t row_find(const struct row *row, uint64_t item)
{
	size_t low = 0, high = row->count;

	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;
		if (row->items[middle] <= item)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static void row_free(struct row *row)
{
	free(row->files);
	free(row->items);
}

/* ------------------------------------------------------------------------------------------------------- sources -- */

/* Whether one of `count` tokens counts. */
static bool any_counts(const struct tokens_file *file, uint64_t first, size_t count)
{
	for (uint64_t at = first; at < first + count; at++) {
		if (tokens_file_counts(file, (size_t)at))
			return true;
	}
	return false;
}

static void count_cut(struct dataset *dataset, const struct tokens_file *file)
{
	for (size_t i = 0; i < file->documents; i++) {
		if (file->starts[i + 1] - file->starts[i] <= dataset->length + 1)
			continue;
		dataset->facts.cut++;
		dataset->facts.no_answer += !any_counts(file, file->starts[i] + 1, dataset->length);
	}
}

/* All shards must be those of one tokenizer. */
static rosa_status admit(struct dataset *dataset, const struct tokens_file *file, rosa_error *err)
{
	const struct tokens_file *first = &dataset->sources[0].files[0];
	struct dataset_facts *facts = &dataset->facts;

	if (file->tokenizer != first->tokenizer)
		return rosa_fail(err, ROSA_EINVAL,
				 "%s was packed with another tokenizer than %s; pack both with the same model",
				 file->path, first->path);
	facts->tokenizer = file->tokenizer;
	facts->vocabulary = file->vocabulary > facts->vocabulary ? file->vocabulary : facts->vocabulary;
	facts->tokens += file->tokens;
	facts->changed = file->changed > facts->changed ? file->changed : facts->changed;
	checksum_add(&dataset->sum, &file->checksum, sizeof(file->checksum));
	facts->checksum = checksum_value(&dataset->sum);
	if (file->counts)
		count_cut(dataset, file);
	else
		facts->no_mask = file->path;
	return ROSA_OK;
}

static rosa_status open_shards(struct dataset *dataset, struct source *source, const struct shard_names *names,
			       rosa_error *err)
{
	rosa_status status = ROSA_OK;

	source->files = calloc(names->count, sizeof(*source->files));
	if (!source->files || !row_make(&source->text, names->count) || !row_make(&source->conversations, names->count))
		return no_memory(names->all[0], err);
	for (size_t i = 0; i < names->count && !status; i++) {
		struct tokens_file *file = &source->files[i];
		status = tokens_file_open(names->all[i], false, file, err);
		if (status)
			break;
		source->count++;
		status = admit(dataset, file, err);
		row_add(file->counts ? &source->conversations : &source->text, file,
			file->counts ? file->documents : file->tokens);
	}
	return status;
}

static rosa_status open_source(struct dataset *dataset, struct source *source, const char *path, rosa_error *err)
{
	struct shard_names names = {0};
	rosa_status status = shard_names_add(&names, path, err);
	uint64_t tokens;

	if (!status)
		status = open_shards(dataset, source, &names, err);
	shard_names_free(&names);
	if (status)
		return status;
	tokens = row_all(&source->text);
	source->text_samples = tokens ? (tokens - 1 + dataset->length - 1) / dataset->length : 0;
	source->samples = source->text_samples + row_all(&source->conversations);
	dataset->facts.samples += source->samples;
	if (source->samples == 0)
		return rosa_fail(err, ROSA_EINVAL, "%s: has one token, and nothing to learn from", path);
	return ROSA_OK;
}

static void close_source(struct source *source)
{
	for (size_t i = 0; i < source->count; i++)
		tokens_file_close(&source->files[i]);
	free(source->files);
	row_free(&source->text);
	row_free(&source->conversations);
}

/* ------------------------------------------------------------------------------------------------------- dataset -- */

static rosa_status set_weights(struct dataset *dataset, const struct dataset_source *sources, rosa_error *err)
{
	size_t weighted = 0;

	for (size_t i = 0; i < dataset->count; i++) {
		double weight = sources[i].weight;
		if (!(weight >= 0 && weight <= 1e30))
			return rosa_fail(err, ROSA_EINVAL, "%s: a weight of %g; it must be a number above 0",
					 sources[i].path, weight);
		weighted += weight > 0;
	}
	if (weighted == 0)
		return ROSA_OK;
	dataset->sums = calloc(dataset->count + 1, sizeof(*dataset->sums));
	if (!dataset->sums)
		return no_memory(sources[0].path, err);
	for (size_t i = 0; i < dataset->count; i++) {
		if (sources[i].weight == 0)
			return rosa_fail(err, ROSA_EINVAL, "%s has no weight, and others have; give all one, or none",
					 sources[i].path);
		dataset->sums[i + 1] = dataset->sums[i] + sources[i].weight;
	}
	return ROSA_OK;
}

rosa_status dataset_open(const struct dataset_source *sources, size_t count, size_t length, uint64_t seed,
			 dataset **made, rosa_error *err)
{
	struct dataset *dataset = calloc(1, sizeof(*dataset));
	rosa_status status;

	*made = NULL;
	if (dataset)
		dataset->sources = calloc(count ? count : 1, sizeof(*dataset->sources));
	if (!dataset || !dataset->sources) {
		free(dataset);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a dataset of %zu sources", count);
	}
	dataset->length = length;
	dataset->seed = seed;
	checksum_begin(&dataset->sum, 0);
	status = count && length ? ROSA_OK
				 : rosa_fail(err, ROSA_EINVAL, "%s",
					     count ? "samples must have at least one token" : "no data was given");
	for (size_t i = 0; i < count && !status; i++) {
		dataset->count++;
		status = open_source(dataset, &dataset->sources[i], sources[i].path, err);
	}
	if (!status && dataset->facts.no_answer == dataset->facts.samples)
		status = rosa_fail(err, ROSA_EINVAL,
				   "%s: not one answer of its conversations begins within %zu tokens; give a larger "
				   "length",
				   sources[0].path, length);
	if (!status)
		status = set_weights(dataset, sources, err);
	if (status)
		dataset_free(dataset);
	else
		*made = dataset;
	return status;
}

void dataset_free(dataset *dataset)
{
	if (!dataset)
		return;
	for (size_t i = 0; i < dataset->count; i++)
		close_source(&dataset->sources[i]);
	free(dataset->sources);
	free(dataset->sums);
	free(dataset);
}

const struct dataset_facts *dataset_facts(const dataset *dataset)
{
	return &dataset->facts;
}

rosa_status dataset_verify(const dataset *dataset, uint64_t since, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < dataset->count; i++) {
		const struct source *source = &dataset->sources[i];

		for (size_t f = 0; f < source->count && status == ROSA_OK; f++)
			if (source->files[f].changed > since)
				status = tokens_file_verify(&source->files[f], err);
	}
	return status;
}

/* ------------------------------------------------------------------------------------------------------- samples -- */

/* Tokens of a row of text, from one shard to the next. */
static void read_text(const struct row *row, uint64_t first, size_t count, uint32_t *tokens, float *weight)
{
	for (size_t i = row_find(row, first), done = 0; done < count; i++) {
		size_t at = (size_t)(first + done - row->items[i]), left = row->files[i]->tokens - at;
		size_t piece = left < count - done ? left : count - done;
		tokens_file_read(row->files[i], at, piece, tokens + done, weight ? weight + done : NULL);
		done += piece;
	}
}

/* The tokens of a sample: of `file`, or of a row of text. */
struct span {
	const struct tokens_file *file;
	const struct row *text; /* where file is NULL */
	uint64_t first;
	size_t count; /* up to length + 1 */
};

static void read_span(const struct span *span, size_t from, size_t count, uint32_t *tokens, float *weight)
{
	if (count == 0)
		return;
	if (span->file)
		tokens_file_read(span->file, (size_t)span->first + from, count, tokens, weight);
	else
		read_text(span->text, span->first + from, count, tokens, weight);
}

static struct span span_of(const struct source *source, size_t length, uint64_t sample)
{
	struct span span = {NULL, &source->text, sample * length, length + 1};
	uint64_t end = row_all(&source->text), document;
	size_t shard;

	if (sample >= source->text_samples) {
		sample -= source->text_samples;
		shard = row_find(&source->conversations, sample);
		document = sample - source->conversations.items[shard];
		span.file = source->conversations.files[shard];
		span.first = span.file->starts[document];
		end = span.file->starts[document + 1];
	}
	if (end - span.first < span.count)
		span.count = (size_t)(end - span.first);
	return span;
}

static void fill(size_t from, size_t length, uint32_t token, uint32_t *tokens, float *weight)
{
	for (size_t i = from; i < length; i++) {
		tokens[i] = token;
		if (weight)
			weight[i] = 0;
	}
}

/* A short sample is filled up with its last token: a valid token that comes after all that count. */
static void read_sample(const struct source *source, size_t length, uint64_t sample, uint32_t *tokens,
			uint32_t *targets, float *weight)
{
	struct span span = span_of(source, length, sample);
	size_t inputs = span.count < length ? span.count : length;

	read_span(&span, 0, inputs, tokens, NULL);
	read_span(&span, 1, span.count - 1, targets, weight);
	fill(inputs, length, tokens[inputs - 1], tokens, NULL);
	fill(span.count - 1, length, tokens[inputs - 1], targets, weight);
}

void dataset_sample(const dataset *dataset, uint64_t n, uint32_t *tokens, uint32_t *targets, float *weight)
{
	size_t chosen = 0;
	uint64_t counter = n, samples = dataset->facts.samples, place;

	if (dataset->sums) {
		mixing_place(dataset->sums, dataset->count, n, &chosen, &counter);
		samples = dataset->sources[chosen].samples;
	}
	place = permutation_place(draw_long(dataset->seed, chosen, counter / samples), samples, counter % samples);
	if (!dataset->sums) {
		for (; place >= dataset->sources[chosen].samples; chosen++)
			place -= dataset->sources[chosen].samples;
	}
	read_sample(&dataset->sources[chosen], dataset->length, place, tokens, targets, weight);
}
