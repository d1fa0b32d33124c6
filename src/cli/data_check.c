/*
 * rosatune data check: whether the shards are still what was packed.
 *
 * Training maps its shards and checks little of them before it begins (tokens_file.c); a disk, a copy or a crash may
 * have changed the rest. This command reads everything. It reports the first fault whose place is known; a change that
 * leaves all numbers in range shows in the checksum alone. All files are checked, even after a bad one.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/text_input.h"
#include "train/shard_names.h"
#include "train/tokens_writer.h"

#include <inttypes.h>
#include <stdio.h>

#define COMMAND "data check"

struct job {
	struct arg_words paths;
	const char *model;
	bool json;

	uint64_t tokenizer; /* of the model */
	struct shard_names names;
	uint64_t documents, tokens, bad; /* of all; `bad` counts files */
};

/* Counts of one shard. */
struct tally {
	uint64_t longest, longest_document; /* tokens and number of the longest document */
	uint64_t answers;                   /* tokens that count in the loss */
};

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    OPTION_TEXT("model", &job->model, "PATH", "the shards must be of this model's tokenizer",
			.short_name = 'm'),
	    OPTION_FLAG("json", &job->json, "print a JSON object for each file"),
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "FILE... [--model PATH]",
	    .summary =
		"Reads token shards whole and checks them: sizes, documents, tokens, marks of answers, checksum.",
	    ARGS_OPTIONS(options),
	    .operands = &job->paths,
	    .operand_name = "FILE",
	    .notes =
		"FILE is a shard that 'rosatune data pack' wrote, or a folder of them. Exit code 1: one has a fault,\n"
		"the first of which is reported with its place.",
	};

	return args_parse(&args, count, words);
}

/* The fingerprint of the tokenizer that all shards must have. */
static bool open_model(struct job *job, rosa_error *why)
{
	tokenizer *tokenizer = NULL;
	bool good;

	if (!job->model)
		return true;
	good = tokenizer_open(job->model, &tokenizer, why) == ROSA_OK &&
	       tokens_fingerprint(tokenizer, &job->tokenizer, why) == ROSA_OK;
	tokenizer_free(tokenizer);
	return good;
}

/* A conversation without an answer teaches nothing; packing refuses it. */
static bool count(const struct tokens_file *file, struct tally *tally, rosa_error *why)
{
	for (size_t i = 0; i < file->documents; i++) {
		const uint64_t length = file->starts[i + 1] - file->starts[i];
		const uint64_t before = tally->answers;

		for (uint64_t at = file->starts[i]; file->counts && at < file->starts[i + 1]; at++)
			tally->answers += tokens_file_counts(file, (size_t)at);
		if (file->counts && tally->answers == before)
			return refuse(
			    why, "%s: document %zu has no answer to learn from (byte %zu of the file)", file->path, i,
			    (size_t)(file->counts + file->starts[i] / 8 - (const uint8_t *)file->mapping.data));
		if (length > tally->longest) {
			tally->longest = length;
			tally->longest_document = i;
		}
	}
	return true;
}

static void print(const struct tokens_file *file, const struct tally *tally)
{
	printf("%s: %zu document%s, %zu tokens", file->path, file->documents, file->documents == 1 ? "" : "s",
	       file->tokens);
	if (file->counts)
		printf(" (%" PRIu64 " of answers)", tally->answers);
	printf(", the longest document %" PRIu64 " (number %" PRIu64 ")", tally->longest, tally->longest_document);
	printf("; tokenizer %016" PRIx64 " of %zu tokens\n", file->tokenizer, file->vocabulary);
}

static bool print_json(const struct tokens_file *file, const struct tally *tally, rosa_error *why)
{
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_string(&text, "path", file->path);
	json_text_put_size(&text, "documents", file->documents);
	json_text_put_size(&text, "tokens", file->tokens);
	json_text_put_size(&text, "longest", tally->longest);
	json_text_put_size(&text, "longest_document", tally->longest_document);
	if (file->counts)
		json_text_put_size(&text, "answers", tally->answers);
	else
		json_text_put_string(&text, "answers", NULL);
	json_text_put_size(&text, "vocabulary", file->vocabulary);
	json_text_put(&text, "tokenizer", "\"%016" PRIx64 "\"", file->tokenizer);
	json_text_add(&text, "}\n");
	return json_print(&text, why);
}

static bool check(struct job *job, const char *path, rosa_error *why)
{
	struct tokens_file file;
	struct tally tally = {0};
	bool good;

	if (tokens_file_open(path, true, &file, why) != ROSA_OK)
		return false;
	good = count(&file, &tally, why);
	if (good && job->model && file.tokenizer != job->tokenizer)
		good = refuse(why, "%s: was packed with another tokenizer than that of %s; pack it again", path,
			      job->model);
	if (good && job->json)
		good = print_json(&file, &tally, why);
	else if (good)
		print(&file, &tally);
	if (good) {
		job->documents += file.documents;
		job->tokens += file.tokens;
	}
	tokens_file_close(&file);
	return good;
}

static bool run(struct job *job, rosa_error *why)
{
	size_t files;
	rosa_error error;

	if (!open_model(job, why))
		return false;
	for (size_t i = 0; i < job->paths.count; i++) {
		if (shard_names_add(&job->names, job->paths.all[i], &error) == ROSA_OK)
			continue;
		job->bad++;
		complain(COMMAND, "%s", error.message);
	}
	files = job->names.count + job->bad;
	for (size_t i = 0; i < job->names.count && !interrupted(); i++) {
		rosa_error fault = {0};

		if (check(job, job->names.all[i], &fault))
			continue;
		job->bad++;
		complain(COMMAND, "%s", fault.message);
	}
	if (interrupted())
		return refuse(why, "interrupted");
	if (files > 1 && !job->json)
		printf("%zu files, %" PRIu64 " bad; %" PRIu64 " documents, %" PRIu64 " tokens in good ones\n", files,
		       job->bad, job->documents, job->tokens);
	return true;
}

int data_check_command(int count, char **words)
{
	struct job job = {0};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);
	bool done;

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	done = run(&job, &why);
	shard_names_free(&job.names);
	if (!done)
		complain(COMMAND, "%s", why.message);
	if (interrupted())
		return interrupted();
	return done && !job.bad ? DONE : FAILED;
}
