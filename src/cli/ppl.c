/*
 * rosatune ppl: how well a model predicts a text.
 *
 * The text's tokens are cut into pieces, each read from an empty state, several at a time if asked (eval/scoring.h).
 * Losses are added up in double and in the order of the text, so the sum depends neither on the batch nor on threads.
 */
#include "cli/commands.h"

#include "base/clock.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "cli/text_input.h"
#include "eval/scoring.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STRETCHES 64

/* Some tokens that were scored: all, or those at some positions of their pieces. */
struct score {
	uint64_t tokens;
	double sum;
};

struct ppl {
	struct model_args args;
	const char *file;
	uint64_t context, skip, most, batch, stretches;
	bool lossy, json;

	struct model model;
	struct tokens tokens;
	size_t piece_tokens, pieces; /* of the text; the last piece may be shorter */

	struct progress progress;
	uint64_t read;
	struct score all, stretch[MOST_STRETCHES];
	double seconds;
};

/* ----------------------------------------------------------------------------------------------------- the text -- */

static bool encode(struct ppl *job, rosa_error *why)
{
	tokenizer *tokenizer = NULL;
	const bool good = checkpoint_tokenizer(&job->model.checkpoint, &tokenizer, why) == ROSA_OK &&
			  model_encode_file(tokenizer, job->file, job->lossy, &job->tokens, why);

	tokenizer_free(tokenizer);
	return good;
}

static bool cut(struct ppl *job, rosa_error *why)
{
	struct tokens *tokens = &job->tokens;

	if (tokens->count <= 1)
		return refuse(why, "%s: has %s; a loss needs a token and the one after it", job->file,
			      tokens->count ? "one token" : "no tokens");
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

static void add(struct score *score, double loss)
{
	score->tokens++;
	score->sum += loss;
}

static double mean(const struct score *score)
{
	return score->sum / (double)score->tokens;
}

/* The stretch of a piece that a position lies in, and the first position of a stretch. */
static size_t stretch_of(const struct ppl *job, size_t position)
{
	return position * job->stretches / job->piece_tokens;
}

static size_t stretch_begin(const struct ppl *job, size_t stretch)
{
	return (stretch * job->piece_tokens + job->stretches - 1) / job->stretches;
}

static bool score(struct ppl *job, struct scored_text *texts, double *losses, rosa_error *why)
{
	const bool pointed = job->model.pointer_path != NULL;
	double *mixed = pointed ? losses + job->tokens.count : NULL;
	const struct scoring scoring = {job->model.decoder,
					job->model.workers,
					(size_t)job->batch,
					(size_t)job->skip,
					pointed ? &job->model.pointer : NULL,
					0};
	const uint64_t began = clock_ns();

	for (size_t i = 0; i < job->pieces; i++) {
		const size_t from = i * job->piece_tokens, left = job->tokens.count - from;

		texts[i] = (struct scored_text){job->tokens.ids + from,
						left < job->piece_tokens ? left : job->piece_tokens,
						losses + from,
						pointed ? mixed + from : NULL,
						NULL,
						NULL};
	}
	job->read = score_tokens(texts, job->pieces);
	progress_begin(&job->progress, "reading", job->read);
	job->progress.unit = "tokens";
	const rosa_status status = score_texts(&scoring, texts, job->pieces, progress_tick, &job->progress, why);
	progress_end(&job->progress);
	job->seconds = (double)(clock_ns() - began) * 1e-9;
	for (size_t i = 0; i < job->pieces && status == ROSA_OK; i++) {
		for (size_t t = (size_t)job->skip; t < texts[i].count; t++) {
			const double loss = pointed ? texts[i].mixed[t] : texts[i].losses[t];

			add(&job->all, loss);
			if (job->stretches)
				add(&job->stretch[stretch_of(job, t)], loss);
		}
	}
	return status == ROSA_OK;
}

static bool measure(struct ppl *job, rosa_error *why)
{
	model_warn_length(&job->model, job->piece_tokens, "ppl");
	struct scored_text *texts = get_memory(job->pieces, sizeof(*texts), "pieces", why);
	const size_t kinds = job->model.pointer_path ? 2 : 1; /* without the pointer, and with it */
	double *losses = texts ? get_memory(kinds * job->tokens.count, sizeof(*losses), "losses", why) : NULL;
	const bool good = losses && score(job, texts, losses, why);

	free(losses);
	free(texts);
	return good;
}

/* -------------------------------------------------------------------------------------------------- the command -- */

static bool print_json(const struct ppl *job, rosa_error *why)
{
	const struct decoder_options *options = &job->model.options;
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_number(&text, "perplexity", exp(mean(&job->all)));
	json_text_put_number(&text, "nll", mean(&job->all));
	json_text_put_size(&text, "tokens", job->all.tokens);
	json_text_put_size(&text, "pieces", job->pieces);
	json_text_put_size(&text, "context", job->piece_tokens);
	json_text_put_size(&text, "window", options->window);
	json_text_put_size(&text, "sinks", options->sinks);
	json_text_put_size(&text, "skip", job->skip);
	json_text_put_size(&text, "batch", job->batch);
	json_text_put_size(&text, "tokens_read", job->read);
	json_text_put_number(&text, "seconds", job->seconds);
	json_text_put_number(&text, "tokens_per_second", (double)job->read / job->seconds);
	if (job->stretches)
		json_text_open(&text, "positions", '[');
	for (size_t i = 0; i < job->stretches; i++) {
		const struct score *score = &job->stretch[i];

		if (!score->tokens)
			continue;
		json_text_open(&text, NULL, '{');
		json_text_put_size(&text, "from", stretch_begin(job, i));
		json_text_put_size(&text, "to", stretch_begin(job, i + 1));
		json_text_put_size(&text, "tokens", score->tokens);
		json_text_put_number(&text, "perplexity", exp(mean(score)));
		json_text_put_number(&text, "nll", mean(score));
		json_text_close(&text, '}');
	}
	if (job->stretches)
		json_text_close(&text, ']');
	json_text_put_string(&text, "pointer", job->model.pointer_path);
	json_text_add(&text, "}\n");
	return json_print(&text, why);
}

static void print(const struct ppl *job)
{
	const double nll = mean(&job->all);
	const struct decoder_options *options = &job->model.options;

	printf("perplexity  %.4f  (%.5f nats per token)\n", exp(nll), nll);
	printf("tokens      %llu scored, in %zu piece%s of %zu\n", (unsigned long long)job->all.tokens, job->pieces,
	       job->pieces == 1 ? "" : "s", job->piece_tokens);
	if (options->window)
		printf("attention   the last %zu positions, and the first %zu\n", options->window, options->sinks);
	else
		printf("attention   global\n");
	if (job->model.pointer_path)
		printf("pointer     %s\n", job->model.pointer_path);
	if (job->stretches)
		printf("positions\n");
	for (size_t i = 0; i < job->stretches; i++) {
		const struct score *score = &job->stretch[i];

		if (score->tokens)
			printf("  %7zu to %7zu  %9.4f  (%llu tokens)\n", stretch_begin(job, i),
			       stretch_begin(job, i + 1) - 1, exp(mean(score)), (unsigned long long)score->tokens);
	}
	printf("speed       %.0f tokens/s\n", (double)job->read / job->seconds);
}

static enum args_result parse(struct ppl *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    POINTER_ARG(&job->args),
	    OPTION_TEXT("file", &job->file, "FILE", "the text, UTF-8, plain or .gz, .xz, .zst (-: standard input)",
			.short_name = 'f', .required = true),
	    OPTION_SIZE("context", &job->context, "N", 0, ROSA_MAX_STEPS,
			"cut the text into pieces of N tokens, each read on its own (default 0: one piece)"),
	    OPTION_SIZE("skip", &job->skip, "K", 1, ROSA_MAX_STEPS,
			"do not score the first K tokens of a piece (default 1)"),
	    OPTION_SIZE("tokens", &job->most, "MAX", 0, ROSA_MAX_STEPS,
			"take only the first MAX tokens of the text (default 0: all)", .short_name = 'n'),
	    OPTION_SIZE("positions", &job->stretches, "P", 0, MOST_STRETCHES,
			"perplexity also of each of P equal stretches of the pieces (default 0: none)"),
	    PIECE_ARGS(&job->batch, &job->lossy),
	    OPTION_FLAG("json", &job->json, "print one JSON object"),
	};
	struct args args = {
	    .command = "ppl",
	    .usage = "--model PATH --file FILE [--context N] [options]",
	    .summary =
		"Measures how well a model predicts a text: its perplexity, the exponential of the mean negative\n"
		"log-likelihood of the tokens.",
	    ARGS_OPTIONS(options),
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
	bool good = model_open(&job.model, &job.args, &why) && model_pointer(&job.model, &job.args, &why) &&
		    encode(&job, &why) && cut(&job, &why) && measure(&job, &why);
	if (good && job.json)
		good = print_json(&job, &why);
	else if (good)
		print(&job);
	tokens_free(&job.tokens);
	model_close(&job.model);
	return command_end("ppl", good, &why);
}
