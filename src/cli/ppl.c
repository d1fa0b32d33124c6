/*
 * rosatune ppl: how well a model predicts a text.
 *
 * The text's tokens are cut into pieces, each read from an empty state, several at a time with --batch. A row of logits
 * has as many numbers as the vocabulary, so rows are computed for a few positions at a time, and each is reduced at
 * once to one number: the log-probability of the token that follows. How many rows are computed at a time changes only
 * the memory, since a decoder's result does not depend on how a text is cut. Sums are in double and in the order of the
 * text, so they do not depend on threads either.
 */
#include "cli/commands.h"

#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "base/pool.h"
#include "cli/progress.h"
#include "cli/text_input.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOGITS_BYTES ((size_t)64 << 20) /* memory for logits, about */

struct ppl {
	struct model_args args;
	const char *file;
	uint64_t context, skip, most, batch;
	bool lossy, json;

	struct model model;
	struct tokens tokens;
	size_t piece_tokens, pieces; /* of the text; the last piece may be shorter */
	size_t stride;               /* positions of a piece whose logits are computed at once */
	float *logits;               /* [batch][stride][vocabulary] */
	double *losses;              /* [batch][stride] */

	struct progress progress;
	uint64_t read, scored;
	double sum;
	double seconds;
};

/* ------------------------------------------------------------------------------------------------------ pieces -- */

/* One of the pieces that are being read. */
struct reader {
	const uint32_t *tokens;
	size_t count, at;
	sequence *sequence;
	const struct piece *now; /* the part being read; NULL: none */
	double sum;              /* of its losses */
};

/* The number of tokens that the next read takes. What is not scored needs no logits and is read at once. */
static size_t due(const struct ppl *job, const struct reader *reader, enum logits_wanted *wanted)
{
	size_t unscored = (size_t)job->skip - 1; /* positions whose next token is not scored */
	size_t last = reader->count - 1;         /* the last position has no next token */

	if (reader->at < unscored) {
		*wanted = LOGITS_NONE;
		return (unscored < last ? unscored : last) - reader->at;
	}
	*wanted = LOGITS_ALL;
	return last - reader->at < job->stride ? last - reader->at : job->stride;
}

/* -ln p(token) from a row of logits. */
static double loss(const float *logits, size_t vocabulary, uint32_t token)
{
	double greatest = (double)logits[0], sum = 0;

	for (size_t i = 1; i < vocabulary; i++)
		greatest = (double)logits[i] > greatest ? (double)logits[i] : greatest;
	for (size_t i = 0; i < vocabulary; i++)
		sum += exp((double)logits[i] - greatest);
	return greatest + log(sum) - (double)logits[token];
}

/* Rows of logits to be reduced by the thread pool. */
struct rows {
	struct ppl *job;
	const struct piece *pieces;
	size_t stride;
};

static void reduce_row(void *context, size_t i, unsigned worker)
{
	const struct rows *rows = context;
	const struct piece *piece = &rows->pieces[i / rows->stride];
	size_t row = i % rows->stride, vocabulary = decoder_vocabulary(rows->job->model.decoder);

	(void)worker;
	if (piece->wanted == LOGITS_ALL && row < piece->count)
		rows->job->losses[i] = loss(piece->logits + row * vocabulary, vocabulary, piece->tokens[row + 1]);
}

static bool reduce(struct ppl *job, size_t count, const struct piece *pieces, rosa_error *why)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	struct rows rows = {job, pieces, job->stride};

	options.workers = job->model.workers;
	struct pool *pool = pool_for(&options, 1);
	if (!pool)
		return refuse(why, "not enough memory for threads");
	pool_run(pool, count * job->stride, reduce_row, &rows, NULL);
	pool_done(&options, pool);
	return true;
}

/* The losses of what was read are added up piece by piece, so that the sum is the same for every batch. */
static void add_up(struct ppl *job, struct reader *reader, const struct piece *pieces)
{
	const struct piece *piece = reader->now;

	if (!piece || piece->wanted != LOGITS_ALL)
		return;
	for (size_t row = 0; row < piece->count; row++)
		reader->sum += job->losses[(size_t)(piece - pieces) * job->stride + row];
	job->scored += piece->count;
}

/* Reads the next part of every piece that is not at its end. *over: all are at their end. */
static bool read_on(struct ppl *job, struct reader *readers, struct piece *pieces, size_t count, bool *over,
		    rosa_error *why)
{
	size_t vocabulary = decoder_vocabulary(job->model.decoder), used = 0, tokens = 0;

	for (size_t i = 0; i < count; i++) {
		struct reader *reader = &readers[i];
		struct piece *piece = &pieces[used];
		piece->count = due(job, reader, &piece->wanted);
		reader->now = piece->count ? piece : NULL;
		if (!reader->now)
			continue;
		piece->sequence = reader->sequence;
		piece->tokens = reader->tokens + reader->at;
		piece->logits = job->logits + used++ * job->stride * vocabulary;
		reader->at += piece->count;
		tokens += piece->count;
	}
	*over = used == 0;
	if (*over)
		return true;
	if (decoder_read(job->model.decoder, used, pieces, progress_tick, &job->progress, why) != ROSA_OK)
		return false;
	progress_advance(&job->progress, tokens);
	job->read += tokens;
	if (interrupted())
		return refuse(why, "interrupted");
	if (!reduce(job, used, pieces, why))
		return false;
	for (size_t i = 0; i < count; i++)
		add_up(job, &readers[i], pieces);
	return true;
}

/* Reads pieces first .. first + count - 1 as one batch. */
static bool read_batch(struct ppl *job, size_t first, size_t count, struct reader *readers, struct piece *pieces,
		       rosa_error *why)
{
	bool good = true, over = false;
	rosa_error error;

	memset(readers, 0, count * sizeof(*readers));
	for (size_t i = 0; i < count && good; i++) {
		size_t from = (first + i) * job->piece_tokens, left = job->tokens.count - from;
		readers[i].tokens = job->tokens.ids + from;
		readers[i].count = left < job->piece_tokens ? left : job->piece_tokens;
		if (sequence_new(job->model.decoder, &readers[i].sequence, &error) != ROSA_OK)
			good = refuse(why, "%s", error.message);
	}
	while (good && !over)
		good = read_on(job, readers, pieces, count, &over, why);
	for (size_t i = 0; i < count; i++) {
		job->sum += readers[i].sum;
		sequence_free(readers[i].sequence);
	}
	return good;
}

static bool read_pieces(struct ppl *job, struct reader *readers, struct piece *pieces, rosa_error *why)
{
	size_t batch = (size_t)job->batch;
	uint64_t began = progress_clock();
	bool good = true;

	progress_begin(&job->progress, "reading",
		       job->tokens.count - job->pieces); /* the last token of each is not read */
	job->progress.unit = "tokens";
	for (size_t first = 0; first < job->pieces && good; first += batch) {
		size_t left = job->pieces - first;
		good = read_batch(job, first, left < batch ? left : batch, readers, pieces, why);
	}
	progress_end(&job->progress);
	job->seconds = (double)(progress_clock() - began) * 1e-9;
	return good;
}

/* ----------------------------------------------------------------------------------------------------- the text -- */

static bool encode(struct ppl *job, rosa_error *why)
{
	struct text text = {0};
	tokenizer *tokenizer = NULL;
	rosa_error error;
	bool good = text_add_file(&text, job->file, job->lossy, why) && model_tokenizer(&job->model, &tokenizer, why);
	int64_t first = good ? tokenizer_bos(tokenizer) : -1;

	if (first >= 0) {
		job->tokens.ids = malloc(sizeof(uint32_t));
		job->tokens.room = job->tokens.ids != NULL;
		good = job->tokens.ids ? true : refuse(why, "not enough memory for the text");
		if (good)
			job->tokens.ids[job->tokens.count++] = (uint32_t)first;
	}
	if (good && tokenizer_encode(tokenizer, text.data, text.size, true, false, &job->tokens, &error) != ROSA_OK)
		good = refuse(why, "%s", error.message);
	tokenizer_free(tokenizer);
	text_free(&text);
	return good;
}

/* Limits the text to what is scored and cuts it into pieces. */
static bool cut(struct ppl *job, rosa_error *why)
{
	struct tokens *tokens = &job->tokens;

	if (job->most && tokens->count > job->most)
		tokens->count = (size_t)job->most;
	job->piece_tokens = job->context ? (size_t)job->context : tokens->count;
	if (job->piece_tokens <= job->skip)
		return refuse(why, "pieces of %zu tokens of which %llu are not scored leave nothing to score",
			      job->piece_tokens, (unsigned long long)job->skip);
	size_t rest = tokens->count % job->piece_tokens;
	if (rest <= job->skip)
		tokens->count -= rest; /* nothing of it would be scored */
	job->pieces = (tokens->count + job->piece_tokens - 1) / job->piece_tokens;
	if (job->pieces == 0)
		return refuse(why, "%s has too few tokens to score any; give a longer text", job->file);
	if (job->batch > job->pieces)
		job->batch = job->pieces;
	return true;
}

static bool measure(struct ppl *job, rosa_error *why)
{
	size_t row = decoder_vocabulary(job->model.decoder) * sizeof(float), batch = (size_t)job->batch;

	model_warn_length(&job->model, job->piece_tokens, "ppl");
	job->stride = LOGITS_BYTES / row / batch;
	job->stride = job->stride < 1 ? 1 : job->stride < job->piece_tokens ? job->stride : job->piece_tokens;
	struct reader *readers = get_memory(batch, sizeof(*readers), "pieces", why);
	struct piece *pieces = readers ? get_memory(batch, sizeof(*pieces), "pieces", why) : NULL;
	job->losses = pieces ? get_memory(batch * job->stride, sizeof(double), "losses", why) : NULL;
	job->logits = job->losses ? get_memory(batch * job->stride, row, "logits", why) : NULL;
	bool good = job->logits && read_pieces(job, readers, pieces, why);
	free(readers);
	free(pieces);
	return good;
}

/* -------------------------------------------------------------------------------------------------- the command -- */

static void print(const struct ppl *job)
{
	double nll = job->sum / (double)job->scored, speed = (double)job->read / job->seconds;
	const struct decoder_options *options = &job->model.options;

	if (job->json) {
		printf("{\"perplexity\": %.9g, \"nll\": %.9g, \"tokens\": %llu, \"pieces\": %zu, \"context\": %zu, "
		       "\"window\": %zu, \"sinks\": %zu, \"skip\": %llu, \"batch\": %llu, \"tokens_read\": %llu, "
		       "\"seconds\": %.6f, \"tokens_per_second\": %.6g}\n",
		       exp(nll), nll, (unsigned long long)job->scored, job->pieces, job->piece_tokens, options->window,
		       options->sinks, (unsigned long long)job->skip, (unsigned long long)job->batch,
		       (unsigned long long)job->read, job->seconds, speed);
		return;
	}
	printf("perplexity  %.4f  (%.5f nats per token)\n", exp(nll), nll);
	printf("tokens      %llu scored, in %zu piece%s of %zu\n", (unsigned long long)job->scored, job->pieces,
	       job->pieces == 1 ? "" : "s", job->piece_tokens);
	if (options->window)
		printf("attention   the last %zu positions, and the first %zu\n", options->window, options->sinks);
	else
		printf("attention   global\n");
	printf("speed       %.0f tokens/s\n", speed);
}

static enum args_result parse(struct ppl *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    {.name = "file",
	     .short_name = 'f',
	     .kind = ARG_TEXT,
	     .target = &job->file,
	     .value = "FILE",
	     .required = true,
	     .help = "the text, UTF-8, plain or .gz, .xz, .zst (-: standard input)"},
	    {.name = "context",
	     .kind = ARG_SIZE,
	     .target = &job->context,
	     .value = "N",
	     .max = ROSA_MAX_STEPS,
	     .help = "cut the text into pieces of N tokens, each read on its own (default 0: one piece)"},
	    {.name = "skip",
	     .kind = ARG_SIZE,
	     .target = &job->skip,
	     .value = "K",
	     .min = 1,
	     .max = ROSA_MAX_STEPS,
	     .help = "do not score the first K tokens of a piece (default 1)"},
	    {.name = "tokens",
	     .short_name = 'n',
	     .kind = ARG_SIZE,
	     .target = &job->most,
	     .value = "MAX",
	     .max = ROSA_MAX_STEPS,
	     .help = "take only the first MAX tokens of the text (default 0: all)"},
	    {.name = "batch",
	     .kind = ARG_NUMBER,
	     .target = &job->batch,
	     .value = "B",
	     .min = 1,
	     .max = 65536,
	     .help = "pieces read at a time (default 1)"},
	    {.name = "lossy",
	     .kind = ARG_FLAG,
	     .target = &job->lossy,
	     .help = "read bytes that are not UTF-8 as U+FFFD instead of refusing them"},
	    {.name = "json", .kind = ARG_FLAG, .target = &job->json, .help = "print one JSON object"},
	};
	struct args args = {
	    .command = "ppl",
	    .usage = "--model PATH --file FILE [--context N] [options]",
	    .summary =
		"Measures how well a model predicts a text: its perplexity, the exponential of the mean negative\n"
		"log-likelihood of the tokens.",
	    .options = options,
	    .count = sizeof(options) / sizeof(options[0]),
	    .notes = "A last piece that is shorter counts with the tokens it has. Attention is global unless --window "
		     "or an\n"
		     "adapter says otherwise. Perplexity does not depend on --chunk, --batch or --threads.",
	};

	return args_parse(&args, count, words);
}

int ppl_command(int count, char **words)
{
	struct ppl job = {.args = MODEL_ARGS_INIT, .skip = 1, .batch = 1};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool good =
	    model_open(&job.model, &job.args, &why) && encode(&job, &why) && cut(&job, &why) && measure(&job, &why);
	if (good)
		print(&job);
	free(job.logits);
	free(job.losses);
	tokens_free(&job.tokens);
	model_close(&job.model);
	if (good)
		return DONE;
	complain("ppl", "%s", interrupted() ? "interrupted" : why.message);
	return interrupted() ? interrupted() : FAILED;
}
