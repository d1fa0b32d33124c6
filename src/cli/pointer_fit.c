/*
 * rosatune pointer fit: the weights of a pointer, from texts.
 *
 * The texts are cut into pieces, which are taken in turn: the first of every file, then the second of every file, until
 * there are enough positions. Every piece is read once; of each position a few numbers are kept, not the logits. The
 * last fifth of the positions is held back, to say what the pointer is worth.
 */
#include "cli/commands.h"

#include "base/folders.h"
#include "base/json_text.h"
#include "base/paths.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "cli/text_input.h"
#include "eval/scoring.h"
#include "train/far.h"
#include "train/pointer_fit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND   "pointer fit"
#define NO_WINDOW "a pointer finds what a window no longer sees; add --window W"

struct fit {
	struct model_args args;
	struct arg_words files;
	const char *out;
	struct pointer_choice choice;
	uint64_t context;
	bool plain, no_seen, lossy, json;

	struct model model;
	struct tokens *texts; /* [files.count] */
	struct pointer_positions positions;
	struct pointer_fitted fitted;
	size_t pieces, wanted; /* read, and to read */
	struct progress progress;
};

/* -------------------------------------------------------------------------------------------------------- texts -- */

static size_t first_scored(const struct fit *job)
{
	return far_first(job->model.options.window);
}

static bool read_texts(struct fit *job, rosa_error *why)
{
	tokenizer *tokenizer = NULL;
	bool good = checkpoint_tokenizer(&job->model.checkpoint, &tokenizer, why) == ROSA_OK;
	size_t pieces = 0;

	for (size_t i = 0; i < job->files.count && good; i++) {
		good = model_encode_file(tokenizer, job->files.all[i], job->lossy, &job->texts[i], why);
		pieces += job->texts[i].count / job->context;
	}
	tokenizer_free(tokenizer);
	if (good && !pieces)
		return refuse(why, "no text has a whole piece of %" PRIu64 " tokens; lower --context", job->context);
	job->wanted = (size_t)(job->choice.positions / (job->context - first_scored(job)) + 1);
	job->wanted = job->wanted < pieces ? job->wanted : pieces;
	return good;
}

/* The tokens of piece number n, the files taking turns; NULL: there are not as many. */
static const uint32_t *piece_at(const struct fit *job, size_t n)
{
	for (size_t round = 0, left = n, any = 1; any; round++) {
		any = 0;
		for (size_t i = 0; i < job->files.count; i++) {
			if (job->texts[i].count / job->context <= round)
				continue;
			any = 1;
			if (left-- == 0)
				return job->texts[i].ids + round * job->context;
		}
	}
	return NULL;
}

/* Reads a piece and keeps its positions. */
static bool read_piece(struct fit *job, const struct scoring *scoring, size_t n, rosa_error *why)
{
	const size_t context = (size_t)job->context;
	struct scored_text text = {.tokens = piece_at(job, n), .count = context};
	uint32_t *distance = get_memory(context, sizeof(*distance), "distances", why);
	bool good = distance && far_distances(text.tokens, context, distance, why) == ROSA_OK;

	text.losses = good ? get_memory(2 * context, sizeof(*text.losses), "losses", why) : NULL;
	text.mixed = text.losses ? text.losses + context : NULL;
	text.samples = text.losses ? get_memory(context, sizeof(*text.samples), "positions", why) : NULL;
	good = text.samples && score_texts(scoring, &text, 1, progress_tick, &job->progress, why) == ROSA_OK;
	if (good)
		progress_advance(&job->progress, score_tokens(&text, 1));
	for (size_t t = scoring->first; t < context && good; t++)
		good = pointer_positions_add(&job->positions, &text.samples[t],
					     distance[t] && distance[t] >= job->model.options.window, why) == ROSA_OK;
	job->pieces += good;
	free(distance);
	free(text.losses);
	free(text.samples);
	return good;
}

static bool collect(struct fit *job, rosa_error *why)
{
	const struct scoring scoring = {job->model.decoder, job->model.workers,   1,
					first_scored(job),  &job->fitted.pointer, 0};
	bool good = true;

	progress_begin(&job->progress, "reading", job->wanted * (job->context - 1));
	job->progress.unit = "tokens";
	for (size_t n = 0; n < job->wanted && good; n++)
		good = read_piece(job, &scoring, n, why);
	progress_end(&job->progress);
	return good;
}

/* ---------------------------------------------------------------------------------------------------------- fit -- */

static bool prepare(struct fit *job, rosa_error *why)
{
	const size_t window = job->model.options.window;
	struct pointer_choice *choice = &job->choice;

	if (!window)
		return refuse(why, NO_WINDOW); /* the adapter has none */
	if (!job->context)
		job->context = 16 * window;
	if (job->context <= first_scored(job))
		return refuse(why, "--context %" PRIu64 ": positions from four windows (%zu) on are used; give more",
			      job->context, first_scored(job));
	choice->confidence = choice->agreement = !job->plain;
	choice->seen = !job->no_seen;
	job->fitted.pointer = pointer_chosen(choice, window);
	if (choice->delay && job->fitted.pointer.delay < window)
		return refuse(why,
			      "--delay %" PRIu64
			      ": attention still sees what would be found; give the window (%zu) or more, or 0",
			      choice->delay, window);
	job->texts = get_memory(job->files.count, sizeof(*job->texts), "texts", why);
	if (job->texts)
		memset(job->texts, 0, job->files.count * sizeof(*job->texts));
	return job->texts && read_texts(job, why);
}

static bool fit(struct fit *job, rosa_error *why)
{
	bool good;

	progress_begin(&job->progress, "fitting", 0);
	job->progress.unit = "steps";
	good = pointer_fit_and_judge(&job->positions, &job->fitted, progress_tick, &job->progress, why) == ROSA_OK;
	progress_end(&job->progress);
	return good && pointer_save(job->out, &job->fitted.pointer, &program_files, why) == ROSA_OK;
}

static void print_losses(const char *name, const struct pointer_losses *losses)
{
	printf("%-16s %10.3f %20.4f %20.4f\n", name, exp(losses->all), losses->far, losses->rest);
}

static void add_losses(struct json_text *text, const char *name, const struct pointer_losses *losses)
{
	json_text_open(text, name, '{');
	json_text_put_number(text, "ppl", exp(losses->all));
	json_text_put_number(text, "far", losses->far);
	json_text_put_number(text, "rest", losses->rest);
	json_text_close(text, '}');
}

static bool print(const struct fit *job, rosa_error *why)
{
	const struct pointer_fitted *fitted = &job->fitted;
	struct json_text text = {0};

	if (!job->json) {
		printf("fitted to %zu positions of %zu pieces of %" PRIu64 " tokens; on %zu others, of which %.2f %% "
		       "are far:\n\n",
		       fitted->fitted, job->pieces, job->context, fitted->before.count,
		       100 * (double)fitted->before.far_count / (double)fitted->before.count);
		printf("%-16s %10s %20s %20s\n", "", "perplexity", "loss on far tokens", "on all others");
		print_losses("without", &fitted->before);
		print_losses("with the pointer", &fitted->after);
		printf("\nwritten to %s\n", job->out);
		return true;
	}
	json_text_open(&text, NULL, '{');
	json_text_put_string(&text, "out", job->out);
	json_text_put_size(&text, "window", job->model.options.window);
	json_text_put_size(&text, "delay", fitted->pointer.delay);
	json_text_put_size(&text, "links", fitted->pointer.links);
	json_text_put_size(&text, "pieces", job->pieces);
	json_text_put_size(&text, "context", job->context);
	json_text_put_size(&text, "fitted", fitted->fitted);
	json_text_put_size(&text, "held_back", fitted->before.count);
	add_losses(&text, "before", &fitted->before);
	add_losses(&text, "after", &fitted->after);
	json_text_add(&text, "}\n");
	return json_print(&text, why);
}

/* -------------------------------------------------------------------------------------------------- the command -- */

static enum args_result parse(struct fit *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    OPTION_TEXT("out", &job->out, "FILE",
			"write the pointer here; as DIR/" POINTER_FILE
			" in an adapter's folder it is used with the adapter",
			.short_name = 'o', .required = true),
	    OPTION_NUMBER("links", &job->choice.links, "N", 0, POINTER_LINKS,
			  "use a chain of N places per token (default 0: recent places of the last two tokens)"),
	    OPTION_SIZE("delay", &job->choice.delay, "D", 0, ROSA_MAX_STEPS,
			"use only places at least D tokens back (default: the window)"),
	    OPTION_FLAG(
		"plain", &job->plain,
		"weights depend on match length alone, not on the model's confidence and the places' agreement"),
	    OPTION_FLAG("no-seen", &job->no_seen,
			"without the repetition table, which raises tokens that already occurred, by count and rarity"),
	    OPTION_SIZE("context", &job->context, "N", 0, ROSA_MAX_STEPS,
			"cut each text into pieces of N tokens, each read from an empty state (default: 16 windows)"),
	    OPTION_SIZE("positions", &job->choice.positions, "N", POINTER_FEWEST, ROSA_MAX_STEPS,
			"read pieces until there are this many positions (default 40k)"),
	    OPTION_FLAG("lossy", &job->lossy, "read bytes that are not UTF-8 as U+FFFD instead of refusing them"),
	    OPTION_FLAG("json", &job->json, "print one JSON object"),
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "--model PATH [--adapter DIR] --window W [--sinks S] --out FILE TEXT...",
	    .summary = "Fits a pointer: how much probability the tokens get that followed earlier occurrences of the\n"
		       "current context, depending on the match length. The model is not changed.",
	    ARGS_OPTIONS(options),
	    .notes =
		"Give texts like those that the pointer will be used for, but that the model was not trained on: it\n"
		"predicts memorised text without a pointer, so the weights would become too small. Positions from\n"
		"4 W of a piece on are used; the last fifth of them is held out to measure the result. Use the\n"
		"pointer with --pointer FILE of 'rosatune generate', 'chat', 'serve', 'ppl', 'recall' and 'eval', and\n"
		"with the same window. Missing folders of --out are made.",
	    .operands = &job->files,
	    .operand_name = "TEXT",
	};

	enum args_result result = args_parse(&args, count, words);
	const char *mistake = NULL;

	if (result != ARGS_OK)
		return result;
	if (!job->args.window || (job->args.window == NOT_GIVEN && !job->args.adapter))
		mistake = NO_WINDOW;
	else if (job->plain && !job->choice.links)
		mistake = "--plain is for chains; add --links N, such as 8";
	else if (job->no_seen && job->choice.links)
		mistake = "--no-seen leaves out a table that chains do not have; drop it or --links";
	if (mistake)
		complain(COMMAND, "%s", mistake);
	return mistake ? ARGS_WRONG : ARGS_OK;
}

int pointer_fit_command(int count, char **words)
{
	struct fit job = {.args = MODEL_ARGS_INIT, .choice = POINTER_CHOICE_INIT};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool good = model_open(&job.model, &job.args, &why) && prepare(&job, &why) &&
		    folder_make(path_folder(job.out).text, &why) == ROSA_OK &&
		    file_can_create(job.out, &why) == ROSA_OK && collect(&job, &why) && fit(&job, &why) &&
		    print(&job, &why);
	for (size_t i = 0; i < job.files.count && job.texts; i++)
		tokens_free(&job.texts[i]);
	free(job.texts);
	pointer_positions_free(&job.positions);
	model_close(&job.model);
	return command_end(COMMAND, good, &why);
}
