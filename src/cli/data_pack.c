/*
 * rosatune data pack: texts into token shards (train/packing.c).
 *
 * A line that cannot be used is reported, and the exit code says that there was one: otherwise the gap would be found
 * much later, or never.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/text_input.h"
#include "train/packing.h"

#include <inttypes.h>
#include <stdio.h>

#define COMMAND      "data pack"
#define MOST_REPORTS 10

static const char *const format_names[] = {[PACK_BY_NAME] = "auto", [PACK_TEXT] = "text", [PACK_JSONL] = "jsonl", NULL};

struct job {
	struct packing packing;
	struct arg_words paths;
	int format;
	uint64_t threads;
	bool allow_bad, json;

	struct packing_result result;
	struct progress progress;
	uint64_t reports;
};

static enum args_result parse(struct job *job, int count, char **words)
{
	struct packing *packing = &job->packing;
	struct arg options[] = {
	    OPTION_TEXT("model", &packing->model, "PATH",
			"whose tokenizer: a GGUF file, a model's folder, or a tokenizer.json", .short_name = 'm',
			.required = true),
	    OPTION_TEXT("out", &packing->out, "PATH",
			"a folder for shards, or one file NAME.tokens; missing folders are made", .short_name = 'o',
			.required = true),
	    OPTION_CHOICE("format", &job->format, "F", format_names,
			  "text, jsonl or auto (default): jsonl if a name ends in .jsonl, .ndjson or .json"),
	    OPTION_TEXT("field", &packing->field, "NAME",
			"of a line of JSON that holds the text (default text; with --chat: messages)"),
	    OPTION_FLAG("chat", &packing->chat, "lines of JSON hold conversations; only the answers count in the loss"),
	    OPTION_TEXT("end", &packing->end, "TOKEN",
			"the token after every text (default: the model's end-of-text token)"),
	    OPTION_FLAG("no-end", &packing->no_end, "no such token"),
	    OPTION_FLAG("special", &packing->special, "recognise special tokens that are written out in texts"),
	    OPTION_FLAG("lossy", &packing->lossy,
			"read bytes that are not UTF-8 as U+FFFD instead of leaving the line out"),
	    OPTION_SIZE("shard-tokens", &packing->shard_tokens, "N", PACKING_SMALLEST_SHARD, UINT64_C(1) << 40,
			"tokens per shard at most (default 100000000)"),
	    OPTION_FLAG("force", &packing->replace, "replace the shards that are there"),
	    OPTION_FLAG("allow-bad", &job->allow_bad, "exit with 0 even if lines had to be left out"),
	    OPTION_NUMBER("threads", &job->threads, "N", 0, 1024, "worker threads (default 0: one per processor)"),
	    OPTION_FLAG("json", &job->json, "print the result as a JSON object"),
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "--model PATH --out PATH INPUT...",
	    .summary = "Turns texts into token shards, which training reads.",
	    ARGS_OPTIONS(options),
	    .operands = &job->paths,
	    .operand_name = "INPUT",
	    .notes = "INPUT is a file, a folder with everything in it, or - for standard input; plain, .gz, .xz or\n"
		     ".zst, which the content tells. A text file is one document, and so is a line of JSON:\n"
		     "{\"text\": \"...\"}, or {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}.\n"
		     "Lines that cannot be used are reported and counted, and the exit code is then 1; so are\n"
		     "binary files, each as one line.",
	};
	enum args_result result = args_parse(&args, count, words);

	if (result == ARGS_OK && packing->no_end && packing->end) {
		complain(COMMAND, "--end and --no-end exclude each other");
		return ARGS_WRONG;
	}
	if (result == ARGS_OK && packing->chat && (job->format == PACK_TEXT || packing->end || packing->special)) {
		complain(COMMAND, "--chat takes lines of JSON and the model's own template: leave out --format text, "
				  "--end and --special");
		return ARGS_WRONG;
	}
	return result;
}

static void report(void *context, const char *message)
{
	struct job *job = context;

	progress_end(&job->progress);
	if (job->reports++ < MOST_REPORTS)
		complain(COMMAND, "%s", message);
}

static int tick(void *context, uint64_t done, uint64_t total)
{
	struct job *job = context;

	job->progress.shown = job->progress.shown && total > 0;
	return progress_tick(&job->progress, done, total);
}

static bool run(struct job *job, rosa_error *why)
{
	struct packing *packing = &job->packing;
	bool done;

	packing->inputs = job->paths.all;
	packing->count = job->paths.count;
	packing->format = (enum pack_format)job->format;
	packing->threads = (int)job->threads;
	packing->hooks = &interrupt_hooks;
	packing->report = report;
	packing->progress = tick;
	packing->context = job;
	progress_begin(&job->progress, "packing", 0);
	job->progress.unit = "kB";
	done = packing_run(packing, &job->result, why) == ROSA_OK;
	progress_end(&job->progress);
	return done;
}

static bool print_json(const struct packing_result *result, rosa_error *why)
{
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_size(&text, "documents", result->documents);
	json_text_put_size(&text, "tokens", result->tokens);
	json_text_put_size(&text, "bad_lines", result->bad);
	json_text_put_size(&text, "empty_documents", result->empty);
	json_text_put_size(&text, "shards", result->shards);
	json_text_put(&text, "end", "%" PRId64, result->end);
	json_text_add(&text, "}\n");
	return json_print(&text, why);
}

static void print(const struct job *job)
{
	const struct packing_result *result = &job->result;

	printf("%llu document%s, %llu tokens, %llu bad line%s", (unsigned long long)result->documents,
	       result->documents == 1 ? "" : "s", (unsigned long long)result->tokens, (unsigned long long)result->bad,
	       result->bad == 1 ? "" : "s");
	if (result->empty)
		printf(", %llu empty document%s left out", (unsigned long long)result->empty,
		       result->empty == 1 ? "" : "s");
	printf("; %llu shard%s: %s\n", (unsigned long long)result->shards, result->shards == 1 ? "" : "s",
	       job->packing.out);
}

int data_pack_command(int count, char **words)
{
	struct job job = {.packing = {.shard_tokens = PACKING_SHARD}};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);
	uint64_t bad;

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = run(&job, &why);
	bad = job.result.bad;
	if (done && job.json)
		done = print_json(&job.result, &why);
	else if (done)
		print(&job);
	if (bad > MOST_REPORTS)
		complain(COMMAND, "and %llu bad lines more", (unsigned long long)(bad - MOST_REPORTS));
	if (!done || bad == 0 || job.allow_bad)
		return command_end_file(COMMAND, done, &why);
	complain(COMMAND, "%llu bad line%s left out of what was written; --allow-bad takes that for success",
		 (unsigned long long)bad, bad == 1 ? " was" : "s were");
	return FAILED;
}
