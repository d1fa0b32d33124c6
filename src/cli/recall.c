/*
 * rosatune recall: does a model know what lies beyond its window?
 *
 * Every text is cut into pieces, and every piece is read once under each condition, by a decoder of its own over the
 * same files. Positions from four windows on are scored. The controls tell memory from style: with the same adapter
 * nothing is injected ("off"), or every destination is replaced by a random one ("random"). A pointer works on logits,
 * so the reading of "window" also gives "pointer", and that of "adapter" gives "adapter+pointer".
 */
#include "cli/commands.h"

#include "base/json_text.h"
#include "cli/gnuplot.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "cli/text_input.h"
#include "train/far.h"
#include "eval/conditions.h"
#include "eval/scoring.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND   "recall"
#define NO_WINDOW "recall compares a window with what lies beyond it; add --window W"

/* One file. */
struct book {
	const char *path;
	struct tokens tokens;
	size_t pieces;
	uint32_t *distance; /* [pieces * context] */
};

struct recall {
	struct model_args args;
	struct arg_words files;
	uint64_t context, pieces, batch;
	bool lossy, json;
	const char *plot;

	struct book *books;
	size_t book_count, used;          /* files, and those that have a whole piece */
	struct recall_sums *sums;         /* [RECALL_CONDITIONS][book_count] */
	bool measured[RECALL_CONDITIONS]; /* what applies */
	struct model model;
	struct progress progress;
};

/* -------------------------------------------------------------------------------------------------------- texts -- */

/* Cuts a book into whole pieces and looks for their far tokens. */
static bool cut(struct recall *job, struct book *book, rosa_error *why)
{
	const size_t context = (size_t)job->context;

	book->pieces = book->tokens.count / context;
	if (job->pieces && book->pieces > job->pieces)
		book->pieces = (size_t)job->pieces;
	if (!book->pieces) {
		complain(COMMAND, "%s has %zu tokens, less than one piece of %zu; it is left out", book->path,
			 book->tokens.count, context);
		return true;
	}
	book->distance = get_memory(book->pieces * context, sizeof(*book->distance), "distances", why);
	if (!book->distance)
		return false;
	job->used++;
	for (size_t i = 0; i < book->pieces; i++) {
		if (far_distances(book->tokens.ids + i * context, context, book->distance + i * context, why) !=
		    ROSA_OK)
			return false;
	}
	return true;
}

static bool read_books(struct recall *job, rosa_error *why)
{
	tokenizer *tokenizer = NULL;
	bool good = checkpoint_tokenizer(&job->model.checkpoint, &tokenizer, why) == ROSA_OK;

	for (size_t i = 0; i < job->book_count && good; i++) {
		job->books[i].path = job->files.all[i];
		good = model_encode_file(tokenizer, job->books[i].path, job->lossy, &job->books[i].tokens, why) &&
		       cut(job, &job->books[i], why);
	}
	tokenizer_free(tokenizer);
	if (good && !job->used)
		return refuse(why, "no text has a whole piece of %llu tokens; lower --context",
			      (unsigned long long)job->context);
	return good;
}

/* --------------------------------------------------------------------------------------------------- conditions -- */

/* The first token that is scored. */
static size_t first_scored(const struct recall *job)
{
	return far_first(job->model.options.window);
}

static void add_losses(struct recall *job, enum recall_condition condition, size_t b, const double *losses)
{
	const struct book *book = &job->books[b];
	const size_t context = (size_t)job->context;

	for (size_t i = 0; i < book->pieces; i++)
		recall_add(&job->sums[(size_t)condition * job->book_count + b], losses + i * context,
			   book->distance + i * context, first_scored(job), context, job->model.options.window);
}

static bool score_book(struct recall *job, enum recall_condition condition, const struct scoring *scoring, size_t b,
		       rosa_error *why)
{
	const struct book *book = &job->books[b];
	const size_t context = (size_t)job->context, all = book->pieces * context;
	struct scored_text *texts = get_memory(book->pieces, sizeof(*texts), "pieces", why);
	double *losses = texts ? get_memory(2 * all, sizeof(*losses), "losses", why) : NULL;
	bool good = losses != NULL;

	for (size_t i = 0; i < book->pieces && good; i++)
		texts[i] = (struct scored_text){book->tokens.ids + i * context, context, losses + i * context,
						losses + all + i * context,     NULL,    NULL};
	good = good && score_texts(scoring, texts, book->pieces, progress_tick, &job->progress, why) == ROSA_OK;
	if (good) {
		progress_advance(&job->progress, score_tokens(texts, book->pieces));
		add_losses(job, condition, b, losses);
	}
	if (good && scoring->pointer)
		add_losses(job, condition_with_pointer(&job->model, condition), b, losses + all);
	free(losses);
	free(texts);
	return good;
}

/* All books under one condition, and with the pointer where that applies. */
static bool measure(struct recall *job, enum recall_condition condition, rosa_error *why)
{
	const enum recall_condition pointed = condition_with_pointer(&job->model, condition);
	decoder *decoder = NULL;
	bool good = condition_decoder(&job->model, condition, &decoder, why) == ROSA_OK;
	const struct scoring scoring = {.decoder = decoder,
					.workers = job->model.workers,
					.batch = (size_t)job->batch,
					.first = first_scored(job),
					.pointer = pointed < RECALL_CONDITIONS ? &job->model.pointer : NULL};
	for (size_t b = 0; b < job->book_count && good; b++)
		good = !job->books[b].pieces || score_book(job, condition, &scoring, b, why);
	decoder_free(decoder);
	job->measured[condition] = good;
	if (pointed < RECALL_CONDITIONS)
		job->measured[pointed] = good;
	return good;
}

/* What the window is, and whether anything can be scored. */
static bool prepare(struct recall *job, rosa_error *why)
{
	job->book_count = job->files.count;
	job->books = get_memory(job->book_count, sizeof(*job->books), "texts", why);
	job->sums =
	    job->books ? get_memory(RECALL_CONDITIONS * job->book_count, sizeof(*job->sums), "sums", why) : NULL;
	if (!job->sums)
		return false;
	memset(job->books, 0, job->book_count * sizeof(*job->books));
	memset(job->sums, 0, RECALL_CONDITIONS * job->book_count * sizeof(*job->sums));
	/* only the files, workers and backend: the conditions have their own decoders */
	if (!model_open_files(&job->model, &job->args, why))
		return false;
	if (!job->model.options.window)
		return refuse(why, NO_WINDOW); /* the adapter has none */
	if (job->context <= first_scored(job))
		return refuse(why, "--context %llu: positions from four windows (%zu) on are scored; give more",
			      (unsigned long long)job->context, first_scored(job));
	return model_pointer(&job->model, &job->args, why) && read_books(job, why);
}

/* The bar is that of all readings, so that it tells when the result comes. */
static bool measure_all(struct recall *job, rosa_error *why)
{
	unsigned readings = 0, reading = 0;
	uint64_t tokens = 0;
	char label[64];
	bool good = true;

	for (int condition = 0; condition < RECALL_POINTER; condition++)
		readings += condition_applies(&job->model, (enum recall_condition)condition);
	for (size_t b = 0; b < job->book_count; b++)
		tokens += job->books[b].pieces * (job->context - 1);
	progress_begin(&job->progress, label, readings * tokens);
	job->progress.unit = "tokens";
	for (int condition = 0; condition < RECALL_POINTER && good; condition++) {
		if (!condition_applies(&job->model, (enum recall_condition)condition))
			continue;
		snprintf(label, sizeof(label), "%s, %u of %u", recall_names[condition], ++reading, readings);
		good = measure(job, (enum recall_condition)condition, why);
	}
	progress_end(&job->progress);
	return good;
}

/* ------------------------------------------------------------------------------------------------------- output -- */

static const struct recall_sums *sums_of(const struct recall *job, int condition)
{
	return &job->sums[(size_t)condition * job->book_count];
}

static struct recall_sums total(const struct recall *job, int condition)
{
	struct recall_sums all = {0};

	for (size_t b = 0; b < job->book_count; b++)
		recall_join(&all, &sums_of(job, condition)[b]);
	return all;
}

static void add_means(struct json_text *text, const struct recall_sums *sums)
{
	const struct recall_means means = recall_means(sums);

	json_text_put_number(text, "ppl", means.ppl);
	json_text_put_number(text, "far", means.far);
	json_text_put_number(text, "rest", means.rest);
}

static void add_distances(struct json_text *text, const struct recall_sums *sums)
{
	json_text_open(text, "distance", '{');
	for (unsigned bin = 0; bin < RECALL_BINS; bin++) {
		char distance[16];

		if (!sums->distance_count[bin])
			continue;
		snprintf(distance, sizeof(distance), "%u", 1u << bin);
		json_text_open(text, distance, '{');
		json_text_put_size(text, "tokens", sums->distance_count[bin]);
		json_text_put_number(text, "loss", sums->by_distance[bin] / (double)sums->distance_count[bin]);
		json_text_close(text, '}');
	}
	json_text_close(text, '}');
}

static double far_share(const struct recall_sums *sums)
{
	return (double)sums->far_count / (double)(sums->far_count + sums->rest_count);
}

static bool print_json(const struct recall *job, rosa_error *why)
{
	const struct recall_sums window = total(job, RECALL_WINDOW);
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_size(&text, "window", job->model.options.window);
	json_text_put_size(&text, "sinks", job->model.options.sinks);
	json_text_put_size(&text, "context", job->context);
	json_text_put_size(&text, "tokens", window.far_count + window.rest_count);
	json_text_put_number(&text, "far_share", far_share(&window));
	json_text_put_string(&text, "pointer", job->model.pointer_path);
	json_text_open(&text, "conditions", '{');
	for (int c = 0; c < RECALL_CONDITIONS; c++) {
		const struct recall_sums all = total(job, c);

		if (!job->measured[c])
			continue;
		json_text_open(&text, recall_names[c], '{');
		add_means(&text, &all);
		json_text_put_number(&text, "far_error", recall_error(sums_of(job, c), job->book_count, true));
		json_text_put_number(&text, "loss_error", recall_error(sums_of(job, c), job->book_count, false));
		add_distances(&text, &all);
		json_text_close(&text, '}');
	}
	json_text_close(&text, '}');
	json_text_open(&text, "books", '{');
	for (size_t b = 0; b < job->book_count; b++) {
		if (!job->books[b].pieces)
			continue;
		json_text_open(&text, job->books[b].path, '{');
		for (int c = 0; c < RECALL_CONDITIONS; c++) {
			if (!job->measured[c])
				continue;
			json_text_open(&text, recall_names[c], '{');
			add_means(&text, &sums_of(job, c)[b]);
			json_text_close(&text, '}');
		}
		json_text_close(&text, '}');
	}
	json_text_add(&text, "}}\n");
	return json_print(&text, why);
}

/* What a condition returns of the loss that the window costs. */
static void print_recovered(const struct recall *job, int condition, const char *what)
{
	const struct recall_sums sums[] = {total(job, RECALL_GLOBAL), total(job, RECALL_WINDOW), total(job, condition)};
	const struct recall_means global = recall_means(&sums[0]), window = recall_means(&sums[1]),
				  here = recall_means(&sums[2]);

	if (job->measured[condition])
		printf("%-28s %5.1f %% on far tokens, %5.1f %% of all loss\n", what,
		       100 * (window.far - here.far) / (window.far - global.far),
		       100 * log(window.ppl / here.ppl) / log(window.ppl / global.ppl));
}

static void print_table(const struct recall *job)
{
	const struct recall_sums window = total(job, RECALL_WINDOW);

	printf("%llu tokens of %zu text%s, from position %zu of pieces of %llu; %.2f %% are far: the same three\n"
	       "tokens last stood %zu or more before.\n\n",
	       (unsigned long long)(window.far_count + window.rest_count), job->used, job->used == 1 ? "" : "s",
	       first_scored(job), (unsigned long long)job->context, 100 * far_share(&window),
	       job->model.options.window);
	printf("%-15s %10s %20s %20s\n", "", "perplexity", "loss on far tokens", "on all others");
	for (int c = 0; c < RECALL_CONDITIONS; c++) {
		const struct recall_sums all = total(job, c);
		const struct recall_means means = recall_means(&all);
		const double error = recall_error(sums_of(job, c), job->book_count, true);
		char far[32];

		if (!job->measured[c])
			continue;
		if (isnan(error))
			snprintf(far, sizeof(far), "%.4f", means.far);
		else
			snprintf(far, sizeof(far), "%.4f +- %.4f", means.far, error);
		printf("%-15s %10.3f %20s %20.4f\n", recall_names[c], means.ppl, far, means.rest);
	}
	if (!job->measured[RECALL_ADAPTER] && !job->measured[RECALL_POINTER])
		return;
	printf("\nOf what the window loses against global attention, this returns:\n");
	print_recovered(job, RECALL_ADAPTER, "the adapter");
	print_recovered(job, RECALL_RANDOM, "the same, reading at random");
	print_recovered(job, RECALL_POINTER, "the pointer");
	print_recovered(job, RECALL_BOTH, "the adapter and the pointer");
	if (job->measured[RECALL_RANDOM])
		printf(
		    "What random reads keep is style, not memory. A trained adapter has to be compared with a window\n"
		    "and with global attention trained alike.\n");
}

/* Loss against distance, a curve per condition. */
static void put_curves(FILE *script, const void *context)
{
	const struct recall *job = context;
	const char *comma = "plot";

	fprintf(script,
		"set logscale x 2\nset xlabel 'tokens since the same three tokens last stood there'\n"
		"set ylabel 'loss, nats per token'\nset key outside right top\nset grid\n"
		"set arrow from %zu, graph 0 to %zu, graph 1 nohead dashtype 2\n",
		job->model.options.window, job->model.options.window);
	for (int c = 0; c < RECALL_CONDITIONS; c++) {
		if (!job->measured[c])
			continue;
		fprintf(script, "%s '-' with linespoints title '%s'", comma, recall_names[c]);
		comma = ",";
	}
	fputs("\n", script);
	for (int c = 0; c < RECALL_CONDITIONS; c++) {
		const struct recall_sums all = total(job, c);

		if (!job->measured[c])
			continue;
		for (unsigned bin = 0; bin < RECALL_BINS; bin++) {
			/* The middle of a bin on the logarithmic axis. */
			if (all.distance_count[bin])
				fprintf(script, "%g %.9g\n", 1.414 * (double)((uint64_t)1 << bin),
					all.by_distance[bin] / (double)all.distance_count[bin]);
		}
		fputs("e\n", script);
	}
}

/* -------------------------------------------------------------------------------------------------- the command -- */

static enum args_result parse(struct recall *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    POINTER_ARG(&job->args),
	    OPTION_SIZE("context", &job->context, "N", 8, ROSA_MAX_STEPS,
			"cut each text into pieces of N tokens, each read from an empty state (default 4096)"),
	    OPTION_SIZE("pieces", &job->pieces, "P", 0, ROSA_MAX_STEPS,
			"take only the first P pieces of each text (default 0: all)"),
	    PIECE_ARGS(&job->batch, &job->lossy),
	    OPTION_TEXT("plot", &job->plot, "PICTURE",
			"draw loss against distance to a .png, .svg or .pdf file (needs gnuplot)"),
	    OPTION_FLAG("json", &job->json, "print one JSON object"),
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "--model PATH [--adapter DIR] [--pointer FILE] --window W [--sinks S] [--context N] FILE...",
	    .summary =
		"Measures a model's memory beyond its window: the loss on far tokens, which repeat something outside\n"
		"the window, and on all others. It does so for global attention and for the window; with --adapter\n"
		"also for the adapter and two controls, the adapter switched off and the adapter reading random\n"
		"places; with --pointer also for the window with the pointer, without and with the adapter.",
	    ARGS_OPTIONS(options),
	    .notes =
		"A token is far if the same three tokens (it and the two before it) occurred before, the last time W\n"
		"or more tokens ago. Positions from 4 W on are scored. An improvement that remains with random reads\n"
		"is adaptation of style, not memory.",
	    .operands = &job->files,
	    .operand_name = "FILE",
	};

	enum args_result result = args_parse(&args, count, words);

	if (result == ARGS_OK && (!job->args.window || (job->args.window == NOT_GIVEN && !job->args.adapter))) {
		complain(COMMAND, NO_WINDOW);
		return ARGS_WRONG;
	}
	return result;
}

int recall_command(int count, char **words)
{
	struct recall job = {.args = MODEL_ARGS_INIT, .context = 4096, .batch = 1};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool good = (!job.plot || picture_can_be(job.plot, &why)) && prepare(&job, &why) && measure_all(&job, &why);
	if (good && job.json)
		good = print_json(&job, &why);
	else if (good)
		print_table(&job);
	const struct picture picture = {.path = job.plot, .width = 900, .height = 560};
	if (good && job.plot)
		good = picture_draw(&picture, put_curves, &job, &why);
	for (size_t b = 0; b < job.book_count && job.books; b++) {
		tokens_free(&job.books[b].tokens);
		free(job.books[b].distance);
	}
	free(job.books);
	free(job.sums);
	model_close(&job.model);
	return command_end(COMMAND, good, &why);
}
