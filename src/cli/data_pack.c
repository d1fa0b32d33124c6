/*
 * rosatune data pack: texts into token shards.
 *
 * A document is a text file or a line of JSON. Lines are read one after the other; texts are gathered up to a piece
 * that is worth encoding by itself, cut where that changes no token (pack_text.c). Pieces and lines go into a batch,
 * the batch through the tokenizer on all threads (pack_batch.c), and the tokens in order into shards (pack_shards.c).
 * Memory is that of a batch and of the longest line, or of a text that has no place to cut, however much is packed.
 *
 * A line that cannot be used is left out, reported, and counted, and the exit code says that there was one: a corpus
 * with a hole is still a corpus, but nobody should have to find the hole later.
 *
 * Documents end with the token that ended them when the model was first trained. Models that were made to chat name
 * another as the end of what they generate, that of an answer; so a known end-of-text token of the tokenizer goes
 * before what the configuration says.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "model/checkpoint.h"
#include "cli/interrupt.h"
#include "model/json.h"
#include "cli/pack_batch.h"
#include "cli/pack_inputs.h"
#include "cli/pack_lines.h"
#include "cli/pack_shards.h"
#include "cli/pack_text.h"
#include "base/pool.h"
#include "cli/progress.h"
#include "cli/text_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND        "data pack"
#define PIECE          ((size_t)1 << 18) /* bytes of text that are encoded at once */
#define MOST_ITEMS     4096              /* of a batch */
#define MOST_REPORTS   10
#define DEFAULT_SHARD  100000000
#define SMALLEST_SHARD 16

static const char *const format_names[] = {[PACK_BY_NAME] = "auto", [PACK_TEXT] = "text", [PACK_JSONL] = "jsonl", NULL};

struct job {
	const char *model, *out, *field, *end_name;
	struct arg_words paths;
	int format;
	bool chat, no_end, special, lossy, replace, allow_bad, json;
	uint64_t shard_tokens, threads;

	tokenizer *tokenizer;
	int64_t first, end; /* tokens around every text; -1: none */
	struct pack_rules rules;
	struct pack_inputs inputs;
	struct pack_shards shards;
	struct pack_batch batch;
	rosa_workers *workers;
	struct progress progress;
	uint64_t bytes;                    /* read of files that are done */
	const struct byte_source *reading; /* the one that is not; NULL: none */
	uint64_t document_tokens;          /* of the document that is being written */
	uint64_t documents, bad, empty, shard_count;
};

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    {.name = "model",
	     .kind = ARG_TEXT,
	     .target = &job->model,
	     .value = "PATH",
	     .required = true,
	     .help = "whose tokenizer: a GGUF file, a model's folder, or a tokenizer.json"},
	    {.name = "out",
	     .kind = ARG_TEXT,
	     .target = &job->out,
	     .value = "PATH",
	     .required = true,
	     .help = "a folder for shards, or one file NAME.tokens"},
	    {.name = "format",
	     .kind = ARG_CHOICE,
	     .target = &job->format,
	     .value = "F",
	     .choices = format_names,
	     .help = "text, jsonl or auto (default): jsonl if a name ends in .jsonl, .ndjson or .json"},
	    {.name = "field",
	     .kind = ARG_TEXT,
	     .target = &job->field,
	     .value = "NAME",
	     .help = "of a line of JSON that holds the text (default text; with --chat: messages)"},
	    {.name = "chat",
	     .kind = ARG_FLAG,
	     .target = &job->chat,
	     .help = "lines of JSON hold conversations; only the answers count in the loss"},
	    {.name = "end",
	     .kind = ARG_TEXT,
	     .target = &job->end_name,
	     .value = "TOKEN",
	     .help = "the token after every text (default: the model's end-of-text token)"},
	    {.name = "no-end", .kind = ARG_FLAG, .target = &job->no_end, .help = "no such token"},
	    {.name = "special",
	     .kind = ARG_FLAG,
	     .target = &job->special,
	     .help = "recognise special tokens that are written out in texts"},
	    {.name = "lossy",
	     .kind = ARG_FLAG,
	     .target = &job->lossy,
	     .help = "read bytes that are not UTF-8 as U+FFFD instead of leaving the line out"},
	    {.name = "shard-tokens",
	     .kind = ARG_SIZE,
	     .target = &job->shard_tokens,
	     .value = "N",
	     .min = SMALLEST_SHARD,
	     .max = UINT64_C(1) << 40,
	     .help = "tokens a shard at most (default 100000000)"},
	    {.name = "replace",
	     .kind = ARG_FLAG,
	     .target = &job->replace,
	     .help = "take the place of the shards that the folder has"},
	    {.name = "allow-bad",
	     .kind = ARG_FLAG,
	     .target = &job->allow_bad,
	     .help = "exit with 0 even if lines had to be left out"},
	    {.name = "threads",
	     .kind = ARG_NUMBER,
	     .target = &job->threads,
	     .value = "N",
	     .max = 1024,
	     .help = "worker threads (default 0: one a processor)"},
	    {.name = "json", .kind = ARG_FLAG, .target = &job->json, .help = "print the result as a JSON object"},
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "--model PATH --out DIR INPUT...",
	    .summary = "Turns texts into token shards, which training reads.",
	    .options = options,
	    .count = sizeof(options) / sizeof(options[0]),
	    .operands = &job->paths,
	    .operand_name = "INPUT",
	    .notes = "INPUT is a file, a folder with all that is in it, or - for standard input; plain, .gz, .xz or "
		     ".zst,\n"
		     "which is seen from the content. A text file is one document, and so is a line of JSON:\n"
		     "{\"text\": \"...\"}, or {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}.\n"
		     "Lines that cannot be used are reported and counted, and the exit code is then 1.",
	};
	enum args_result result = args_parse(&args, count, words);

	if (result == ARGS_OK && job->no_end && job->end_name) {
		complain(COMMAND, "--end and --no-end exclude each other");
		return ARGS_WRONG;
	}
	if (result == ARGS_OK && job->chat && (job->format == PACK_TEXT || job->end_name || job->special)) {
		complain(COMMAND, "--chat takes lines of JSON and the model's own template: leave out --format text, "
				  "--end and --special");
		return ARGS_WRONG;
	}
	return result;
}

/* --------------------------------------------------------------------------------------------------- the tokenizer --
 */

/* What the model's configuration names; -1 if there is none to ask. */
static int64_t configured_end(const char *model)
{
	struct checkpoint checkpoint = {0};
	int64_t end = -1;

	if (checkpoint_open(model, &checkpoint, NULL) == ROSA_OK && checkpoint.config.eos_count > 0)
		end = checkpoint.config.eos[0];
	checkpoint_close(&checkpoint);
	return end;
}

static bool choose_end(struct job *job, rosa_error *why)
{
	static const char *const known[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};

	job->end = -1;
	if (job->no_end || job->chat)
		return true;
	if (job->end_name) {
		job->end = tokenizer_find(job->tokenizer, job->end_name);
		return job->end >= 0 || refuse(why, "--end %s: the tokenizer has no such token", job->end_name);
	}
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]) && job->end < 0; i++)
		job->end = tokenizer_find(job->tokenizer, known[i]);
	if (job->end < 0)
		job->end = configured_end(job->model);
	if (job->end >= 0 && (uint64_t)job->end < tokenizer_size(job->tokenizer))
		return true;
	return refuse(why, "%s: which token ends a text is not known; name it with --end, or use --no-end", job->model);
}

static bool open_tokenizer(struct job *job, rosa_error *why)
{
	rosa_error error;

	if (tokenizer_open(job->model, &job->tokenizer, &error) != ROSA_OK)
		return refuse(why, "%s", error.message);
	job->rules.tokenizer = job->tokenizer;
	job->rules.chat = job->chat;
	job->rules.special = job->special;
	job->rules.field = job->field ? job->field : job->chat ? "messages" : "text";
	job->first = job->chat ? -1 : tokenizer_bos(job->tokenizer);
	if (job->chat && answers_init(&job->rules.answers, job->tokenizer, &error) != ROSA_OK)
		return refuse(why, "%s: %s", job->model, error.message);
	return choose_end(job, why);
}

/* --------------------------------------------------------------------------------------------------------- writing --
 */

static void report(struct job *job, const char *reason)
{
	progress_end(&job->progress);
	if (job->bad++ < MOST_REPORTS)
		complain(COMMAND, "%s", reason);
}

static bool write_one(struct job *job, int64_t token, rosa_error *why)
{
	uint32_t id = (uint32_t)token;

	return token < 0 || pack_shards_add(&job->shards, &id, NULL, 1, false, why);
}

static bool write_conversation(struct job *job, const struct pack_item *item, rosa_error *why)
{
	char reason[400];

	if (item->tokens.count > job->shards.most) {
		snprintf(reason, sizeof(reason), "%s:%llu: has %zu tokens, more than a shard (--shard-tokens)",
			 item->file, (unsigned long long)item->line, item->tokens.count);
		report(job, reason);
		return true;
	}
	job->documents++;
	if (!pack_shards_add(&job->shards, item->tokens.ids, item->counts, item->tokens.count, true, why))
		return false;
	pack_shards_end_document(&job->shards);
	return true;
}

/* A text, or the next piece of it. */
static bool write_text(struct job *job, const struct pack_item *item, rosa_error *why)
{
	if (item->begins)
		job->document_tokens = 0;
	if (job->document_tokens == 0 && item->tokens.count > 0 && !write_one(job, job->first, why))
		return false;
	if (!pack_shards_add(&job->shards, item->tokens.ids, NULL, item->tokens.count, false, why))
		return false;
	job->document_tokens += item->tokens.count;
	if (!item->ends)
		return true;
	if (job->document_tokens == 0) {
		job->empty += !item->bad;
		return true;
	}
	job->documents++;
	if (!write_one(job, job->end, why))
		return false;
	pack_shards_end_document(&job->shards);
	return true;
}

static bool write_item(struct job *job, struct pack_item *item, rosa_error *why)
{
	if (item->bad && item->error.status == ROSA_ENOMEM)
		return refuse(why, "%s", item->error.message);
	if (item->bad)
		report(job, item->error.message);
	if (item->bad && item->json)
		return true;
	return (item->json && job->chat ? write_conversation : write_text)(job, item, why);
}

static int tick(void *context)
{
	struct job *job = context;
	uint64_t done = job->bytes + (job->reading ? job->reading->taken : 0), whole = job->inputs.bytes;

	return progress_tick(&job->progress, (done < whole ? done : whole) >> 10, whole >> 10);
}

/* Everything that was gathered goes through the tokenizer and into the shards. */
static bool flush(struct job *job, rosa_error *why)
{
	if (!pack_batch_encode(&job->batch, &job->rules, job->workers, tick, job, why))
		return false;
	if (interrupted())
		return refuse(why, "interrupted");
	for (size_t i = 0; i < job->batch.count; i++) {
		if (!write_item(job, &job->batch.items[i], why))
			return false;
	}
	pack_batch_clear(&job->batch);
	return true;
}

/* --------------------------------------------------------------------------------------------------------- reading --
 */

static bool add(struct job *job, const struct pack_item *item, const char *bytes, rosa_error *why)
{
	size_t pieces = 4 * (size_t)pool_kept_threads(job->workers) + 4;

	if (!pack_batch_add(&job->batch, item, bytes, why))
		return false;
	return (job->batch.used < pieces * PIECE && job->batch.count < MOST_ITEMS) || flush(job, why);
}

/* Adds a line to a text. One that cannot be goes into the batch as what it is, so that reports come in order. */
static bool take_line(struct job *job, struct text *text, const struct pack_lines *lines, const char *line, size_t size,
		      bool json, bool *taken, rosa_error *why)
{
	struct pack_item bad = {.json = json, .bad = true, .file = lines->source.name, .line = lines->number};
	char where[160];
	rosa_error reason;

	snprintf(where, sizeof(where), "%.120s:%llu", bad.file, (unsigned long long)bad.line);
	*taken = text_add(text, where, line, size, job->lossy, &reason);
	if (*taken)
		return true;
	bad.error.status = ROSA_EFORMAT;
	snprintf(bad.error.message, sizeof(bad.error.message), "%.*s", (int)sizeof(bad.error.message) - 1,
		 reason.message);
	return add(job, &bad, "", why);
}

static bool pack_jsonl(struct job *job, struct pack_lines *lines, struct text *text, rosa_error *why)
{
	struct pack_item item = {.json = true, .begins = true, .ends = true, .file = lines->source.name};
	const char *line;
	size_t size;
	bool taken;

	for (;;) {
		if (!pack_lines_next(lines, &line, &size, why))
			return false;
		if (!line)
			return true;
		while (size > 0 && strchr(" \t\r\n", line[size - 1]) && line[size - 1])
			size--;
		if (size == 0)
			continue;
		text->size = 0;
		if (!take_line(job, text, lines, line, size, true, &taken, why))
			return false;
		item.line = lines->number;
		item.size = text->size;
		if (taken && !add(job, &item, text->data, why))
			return false;
	}
}

/* Takes the first bytes of a text away into the batch. */
static bool add_piece(struct job *job, struct pack_item *item, struct text *text, size_t size, rosa_error *why)
{
	item->size = size;
	if (!add(job, item, text->data, why))
		return false;
	item->begins = false;
	text->size -= size;
	if (text->size)
		memmove(text->data, text->data + size, text->size);
	return true;
}

static bool pack_text(struct job *job, struct pack_lines *lines, struct text *text, rosa_error *why)
{
	struct pack_item item = {.begins = true, .file = lines->source.name};
	size_t enough = PIECE, size, cut;
	const char *line;
	bool taken;

	text->size = 0;
	for (;;) {
		if (!pack_lines_next(lines, &line, &size, why))
			return false;
		if (!line)
			break;
		if (!take_line(job, text, lines, line, size, false, &taken, why))
			return false;
		item.line = lines->number;
		if (text->size < enough)
			continue;
		cut = pack_text_cut(job->tokenizer, text->data, text->size, job->special);
		enough = cut ? PIECE : 2 * text->size;
		if (cut && !add_piece(job, &item, text, cut, why))
			return false;
		if (tick(job))
			return refuse(why, "interrupted");
	}
	item.ends = true;
	return add_piece(job, &item, text, text->size, why);
}

static bool pack_file(struct job *job, const struct pack_input *input, struct text *text, rosa_error *why)
{
	struct pack_lines lines;
	bool good = pack_lines_open(&lines, input->path, why);

	job->reading = &lines.source;
	good = good && (input->jsonl ? pack_jsonl : pack_text)(job, &lines, text, why);
	job->reading = NULL;
	job->bytes += lines.source.taken;
	pack_lines_close(&lines);
	return good;
}

static bool pack_files(struct job *job, rosa_error *why)
{
	struct text text = {0};
	bool good = true;

	progress_begin(&job->progress, "packing", job->inputs.bytes >> 10);
	job->progress.unit = "kB";
	job->progress.shown = job->progress.shown && !job->inputs.endless;
	for (size_t i = 0; i < job->inputs.count && good; i++)
		good = pack_file(job, &job->inputs.all[i], &text, why);
	good = good && flush(job, why);
	progress_end(&job->progress);
	text_free(&text);
	return good;
}

/* ----------------------------------------------------------------------------------------------------- the command --
 */

static bool find_inputs(struct job *job, rosa_error *why)
{
	enum pack_format format = job->chat ? PACK_JSONL : (enum pack_format)job->format;
	struct json nothing = {0};
	bool jsonl = false;

	for (size_t i = 0; i < job->paths.count; i++) {
		if (!pack_inputs_add(&job->inputs, job->paths.all[i], format, why))
			return false;
	}
	for (size_t i = 0; i < job->inputs.count; i++)
		jsonl = jsonl || job->inputs.all[i].jsonl;
	/* a build that reads no JSON says so once, and not for every line */
	if (jsonl && json_read("{}", 2, job->inputs.all[0].path, &nothing, why) != ROSA_OK)
		return false;
	json_free(&nothing);
	return true;
}

static bool run(struct job *job, rosa_error *why)
{
	if (!find_inputs(job, why) || !open_tokenizer(job, why) ||
	    !pack_shards_begin(&job->shards, job->out, job->replace, job->shard_tokens, why))
		return false;
	job->shards.vocabulary = tokenizer_size(job->tokenizer);
	job->shards.answers = job->chat;
	if (tokens_fingerprint(job->tokenizer, &job->shards.tokenizer, why) != ROSA_OK ||
	    rosa_workers_new((int)job->threads, NULL, &job->workers, why) != ROSA_OK)
		return false;
	if (!pack_files(job, why))
		return false;
	job->shard_count = job->shards.count;
	if (job->shards.tokens == 0)
		return refuse(why, "there is nothing to pack: %llu documents are empty, %llu lines cannot be used",
			      (unsigned long long)job->empty, (unsigned long long)job->bad);
	return pack_shards_commit(&job->shards, why);
}

static void print(const struct job *job)
{
	if (job->json) {
		printf("{\"documents\": %llu, \"tokens\": %llu, \"bad_lines\": %llu, \"empty_documents\": %llu, "
		       "\"shards\": %llu, \"end\": %lld}\n",
		       (unsigned long long)job->documents, (unsigned long long)job->shards.tokens,
		       (unsigned long long)job->bad, (unsigned long long)job->empty,
		       (unsigned long long)job->shard_count, (long long)job->end);
		return;
	}
	printf("%llu document%s, %llu tokens, %llu bad line%s", (unsigned long long)job->documents,
	       job->documents == 1 ? "" : "s", (unsigned long long)job->shards.tokens, (unsigned long long)job->bad,
	       job->bad == 1 ? "" : "s");
	if (job->empty)
		printf(", %llu empty document%s left out", (unsigned long long)job->empty, job->empty == 1 ? "" : "s");
	printf("; %llu shard%s: %s\n", (unsigned long long)job->shard_count, job->shard_count == 1 ? "" : "s",
	       job->out);
}

static void release(struct job *job)
{
	pack_shards_free(&job->shards);
	pack_batch_free(&job->batch);
	pack_inputs_free(&job->inputs);
	answers_free(&job->rules.answers);
	tokenizer_free(job->tokenizer);
	rosa_workers_free(job->workers);
}

int data_pack_command(int count, char **words)
{
	struct job job = {.shard_tokens = DEFAULT_SHARD};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = run(&job, &why);
	if (done)
		print(&job);
	if (job.bad > MOST_REPORTS)
		complain(COMMAND, "and %llu bad lines more", (unsigned long long)(job.bad - MOST_REPORTS));
	release(&job);
	if (!done) {
		complain(COMMAND, "%s", interrupted() ? "interrupted; nothing was written" : why.message);
		return interrupted() ? interrupted() : FAILED;
	}
	if (job.bad == 0 || job.allow_bad)
		return DONE;
	complain(COMMAND, "%llu bad line%s left out of what was written; --allow-bad takes that for success",
		 (unsigned long long)job.bad, job.bad == 1 ? " was" : "s were");
	return FAILED;
}
