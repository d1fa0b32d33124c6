/*
 * Texts into token shards.
 *
 * A document is a text file or a line of JSON. Lines of JSON are read one after the other; a text is gathered up to a
 * piece worth encoding by itself and cut where that changes no token (pack_text.c). Pieces and lines go into a batch,
 * the batch through the tokenizer on all threads (pack_batch.c), and the tokens in order into shards (pack_shards.c).
 * Memory is that of a batch and of the longest line, or of a text that has no place to cut, however much is packed.
 *
 * A line that cannot be used is left out, reported and counted: a corpus with a gap is still useful, but the user has
 * to know of the gap.
 *
 * Documents end with the token that ended them when the model was pretrained. Chat models name another one as the end
 * of what they generate, that of an answer; so a known end-of-text token of the tokenizer is preferred to the model's
 * configuration.
 */
#include "train/packing.h"

#include "base/file_wait.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/text.h"
#include "model/checkpoint.h"
#include "model/json.h"
#include "train/pack_batch.h"
#include "train/pack_lines.h"
#include "train/pack_shards.h"
#include "train/pack_text.h"

#include <stdio.h>
#include <string.h>

#define PIECE      ((size_t)1 << 18) /* bytes of text that are encoded at once */
#define MOST_ITEMS 4096              /* of a batch */

struct job {
	const struct packing *packing;
	struct packing_result *result;
	tokenizer *tokenizer;
	int64_t first; /* the token before every text; -1: none */
	struct pack_rules rules;
	struct pack_inputs inputs;
	struct pack_shards shards;
	struct pack_batch batch;
	rosa_workers *workers;
	uint64_t bytes;                    /* read from files that are done */
	const struct byte_source *reading; /* the file that is not; NULL: none */
	uint64_t document_tokens;          /* of the document that is being written */
};

/* ----------------------------------------------------------------------------------------------------- tokenizer -- */

/* What the model's configuration names; -1 if it names none. */
static int64_t configured_end(const char *model)
{
	struct checkpoint checkpoint = {0};
	int64_t end = -1;

	if (checkpoint_open(model, &checkpoint, NULL) == ROSA_OK && checkpoint.config.eos_count > 0)
		end = checkpoint.config.eos[0];
	checkpoint_close(&checkpoint);
	return end;
}

static rosa_status choose_end(struct job *job, rosa_error *err)
{
	static const char *const known[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
	const struct packing *packing = job->packing;
	int64_t *end = &job->result->end;

	if (packing->no_end || packing->chat)
		return ROSA_OK;
	if (packing->end) {
		*end = tokenizer_find(job->tokenizer, packing->end);
		return *end >= 0
			   ? ROSA_OK
			   : rosa_fail(err, ROSA_EINVAL, "--end %s: the tokenizer has no such token", packing->end);
	}
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]) && *end < 0; i++)
		*end = tokenizer_find(job->tokenizer, known[i]);
	if (*end < 0)
		*end = configured_end(packing->model);
	if (*end >= 0 && (uint64_t)*end < tokenizer_size(job->tokenizer))
		return ROSA_OK;
	return rosa_fail(err, ROSA_EINVAL,
			 "%s: which token ends a text is not known; name it with --end, or use --no-end",
			 packing->model);
}

static rosa_status open_tokenizer(struct job *job, rosa_error *err)
{
	const struct packing *packing = job->packing;
	rosa_error error;
	rosa_status status = tokenizer_open(packing->model, &job->tokenizer, err);

	if (status != ROSA_OK)
		return status;
	job->rules.tokenizer = job->tokenizer;
	job->rules.chat = packing->chat;
	job->rules.special = packing->special;
	job->rules.field = packing->field ? packing->field : packing->chat ? "messages" : "text";
	job->first = packing->chat ? -1 : tokenizer_bos(job->tokenizer);
	if (packing->chat)
		status = answers_init(&job->rules.answers, job->tokenizer, &error);
	if (status != ROSA_OK)
		return rosa_fail(err, status, "%s: %s", packing->model, error.message);
	return choose_end(job, err);
}

/* ------------------------------------------------------------------------------------------------------- writing -- */

static void report(struct job *job, const char *message)
{
	job->result->bad++;
	if (job->packing->report)
		job->packing->report(job->packing->context, message);
}

static rosa_status write_one(struct job *job, int64_t token, rosa_error *err)
{
	const uint32_t id = (uint32_t)token;

	return token < 0 ? ROSA_OK : pack_shards_add(&job->shards, &id, NULL, 1, false, err);
}

static rosa_status write_conversation(struct job *job, const struct pack_item *item, rosa_error *err)
{
	char message[400];
	rosa_status status;

	if (item->tokens.count > job->shards.most) {
		snprintf(message, sizeof(message), "%s:%llu: has %zu tokens, more than a shard (--shard-tokens)",
			 item->file, (unsigned long long)item->line, item->tokens.count);
		report(job, message);
		return ROSA_OK;
	}
	job->result->documents++;
	status = pack_shards_add(&job->shards, item->tokens.ids, item->counts, item->tokens.count, true, err);
	pack_shards_end_document(&job->shards);
	return status;
}

static rosa_status end_text(struct job *job, bool bad, rosa_error *err)
{
	rosa_status status;

	if (job->document_tokens == 0) {
		job->result->empty += !bad;
		return ROSA_OK;
	}
	job->result->documents++;
	status = write_one(job, job->result->end, err);
	pack_shards_end_document(&job->shards);
	return status;
}

/* A text, or the next piece of it. */
static rosa_status write_text(struct job *job, const struct pack_item *item, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	if (item->begins)
		job->document_tokens = 0;
	if (job->document_tokens == 0 && item->tokens.count > 0)
		status = write_one(job, job->first, err);
	if (status == ROSA_OK)
		status = pack_shards_add(&job->shards, item->tokens.ids, NULL, item->tokens.count, false, err);
	job->document_tokens += item->tokens.count;
	return status == ROSA_OK && item->ends ? end_text(job, item->bad, err) : status;
}

static rosa_status write_item(struct job *job, const struct pack_item *item, rosa_error *err)
{
	if (item->bad && item->error.status == ROSA_ENOMEM)
		return rosa_fail(err, ROSA_ENOMEM, "%s", item->error.message);
	if (item->bad)
		report(job, item->error.message);
	if (item->bad && item->json)
		return ROSA_OK;
	return (item->json && job->packing->chat ? write_conversation : write_text)(job, item, err);
}

/* Tells how far the packing has got. Not 0: it is to be given up. */
static int tick(void *context)
{
	const struct job *job = context;
	const struct file_options options = {.hooks = job->packing->hooks};
	const uint64_t done = job->bytes + (job->reading ? job->reading->taken : 0), whole = job->inputs.bytes;
	int stop = file_cancelled(&options);

	if (job->packing->progress)
		stop |= job->packing->progress(job->packing->context, (done < whole ? done : whole) >> 10,
					       job->inputs.endless ? 0 : whole >> 10);
	return stop;
}

static rosa_status interrupted(rosa_error *err)
{
	return rosa_fail(err, ROSA_ECANCELLED, "interrupted");
}

/* Everything that was gathered goes through the tokenizer and into the shards. */
static rosa_status flush(struct job *job, rosa_error *err)
{
	rosa_status status = pack_batch_encode(&job->batch, &job->rules, job->workers, tick, job, err);

	if (status == ROSA_OK && tick(job))
		status = interrupted(err);
	for (size_t i = 0; i < job->batch.count && status == ROSA_OK; i++)
		status = write_item(job, &job->batch.items[i], err);
	pack_batch_clear(&job->batch);
	return status;
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

static rosa_status add(struct job *job, const struct pack_item *item, const char *bytes, rosa_error *err)
{
	const size_t pieces = 4 * (size_t)pool_kept_threads(job->workers) + 4;
	rosa_status status = pack_batch_add(&job->batch, item, bytes, err);

	if (status != ROSA_OK || (job->batch.used < pieces * PIECE && job->batch.count < MOST_ITEMS))
		return status;
	return flush(job, err);
}

/* Appends a line to a text. One that is not UTF-8 goes into the batch as a bad item, so that reports come in order. */
static rosa_status take_line(struct job *job, struct text *text, const struct pack_lines *lines, const char *line,
			     size_t size, bool json, bool *taken, rosa_error *err)
{
	struct pack_item bad = {.json = json, .bad = true, .file = lines->source.name, .line = lines->number};
	char where[160];

	snprintf(where, sizeof(where), "%.120s:%llu", bad.file, (unsigned long long)bad.line);
	*taken = text_append(text, where, line, size, job->packing->lossy, &bad.error) == ROSA_OK;
	return *taken ? ROSA_OK : add(job, &bad, "", err);
}

static rosa_status pack_jsonl(struct job *job, struct pack_lines *lines, struct text *text, rosa_error *err)
{
	struct pack_item item = {.json = true, .begins = true, .ends = true, .file = lines->source.name};
	const char *line;
	size_t size;
	bool taken;
	rosa_status status;

	while ((status = pack_lines_next(lines, &line, &size, err)) == ROSA_OK && line) {
		while (size > 0 && strchr(" \t\r\n", line[size - 1]) && line[size - 1])
			size--;
		if (size == 0)
			continue;
		text->size = 0;
		status = take_line(job, text, lines, line, size, true, &taken, err);
		item.line = lines->number;
		item.size = text->size;
		if (status == ROSA_OK && taken)
			status = add(job, &item, text->data, err);
		if (status != ROSA_OK)
			break;
	}
	return status;
}

/* Moves the first bytes of a text into the batch. */
static rosa_status add_piece(struct job *job, struct pack_item *item, struct text *text, size_t size, rosa_error *err)
{
	rosa_status status;

	item->size = size;
	status = add(job, item, text->data, err);
	item->begins = false;
	text->size -= size;
	if (text->size)
		memmove(text->data, text->data + size, text->size);
	return status;
}

static rosa_status pack_text(struct job *job, struct pack_lines *lines, struct text *text, rosa_error *err)
{
	struct pack_item item = {.begins = true, .file = lines->source.name};
	size_t enough = PIECE, size, cut;
	const char *line;
	bool taken;
	rosa_status status;

	text->size = 0;
	while ((status = pack_lines_next(lines, &line, &size, err)) == ROSA_OK && line) {
		status = take_line(job, text, lines, line, size, false, &taken, err);
		item.line = lines->number;
		if (status == ROSA_OK && text->size >= enough) {
			cut = pack_text_cut(job->tokenizer, text->data, text->size, job->packing->special);
			enough = cut ? PIECE : 2 * text->size;
			if (cut)
				status = add_piece(job, &item, text, cut, err);
			if (status == ROSA_OK && tick(job))
				status = interrupted(err);
		}
		if (status != ROSA_OK)
			break;
	}
	item.ends = true;
	return status == ROSA_OK ? add_piece(job, &item, text, text->size, err) : status;
}

/* A file that is not text has as many bad lines as it has line ends, or packs as nonsense. It counts as one. */
static rosa_status leave_out(struct job *job, const char *name, rosa_error *err)
{
	struct pack_item bad = {.json = true, .bad = true, .file = name};

	rosa_fail(&bad.error, ROSA_EFORMAT,
		  "%.120s: is binary (there are NUL bytes in it) and is left out; name files of text, in UTF-8", name);
	return add(job, &bad, "", err);
}

static rosa_status pack_file(struct job *job, const struct pack_input *input, struct text *text, rosa_error *err)
{
	struct pack_lines lines;
	bool binary = false;
	rosa_status status = pack_lines_open(&lines, input->path, job->packing->hooks, err);

	job->reading = &lines.source;
	if (status == ROSA_OK)
		status = pack_lines_binary(&lines, &binary, err);
	if (status == ROSA_OK && binary)
		status = leave_out(job, lines.source.name, err);
	else if (status == ROSA_OK)
		status = (input->jsonl ? pack_jsonl : pack_text)(job, &lines, text, err);
	job->reading = NULL;
	job->bytes += lines.source.taken;
	pack_lines_close(&lines);
	return status;
}

static rosa_status pack_files(struct job *job, rosa_error *err)
{
	struct text text = {0};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < job->inputs.count && status == ROSA_OK; i++)
		status = pack_file(job, &job->inputs.all[i], &text, err);
	if (status == ROSA_OK)
		status = flush(job, err);
	text_free(&text);
	return status;
}

/* --------------------------------------------------------------------------------------------------------- begin -- */

static rosa_status find_inputs(struct job *job, rosa_error *err)
{
	const struct packing *packing = job->packing;
	struct json nothing = {0};
	bool jsonl = false;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < packing->count && status == ROSA_OK; i++)
		status = pack_inputs_add(&job->inputs, packing->inputs[i], packing->chat ? PACK_JSONL : packing->format,
					 packing->hooks, err);
	for (size_t i = 0; i < job->inputs.count; i++)
		jsonl = jsonl || job->inputs.all[i].jsonl;
	/* a build that reads no JSON says so once, and not for every line */
	if (status == ROSA_OK && jsonl)
		status = json_read("{}", 2, job->inputs.all[0].path, &nothing, err);
	json_free(&nothing);
	return status;
}

static rosa_status begin(struct job *job, rosa_error *err)
{
	const struct packing *packing = job->packing;
	rosa_status status = find_inputs(job, err);

	if (status == ROSA_OK)
		status = open_tokenizer(job, err);
	if (status == ROSA_OK)
		status = pack_shards_begin(&job->shards, packing->out, packing->replace, packing->shard_tokens,
					   packing->hooks, err);
	if (status != ROSA_OK)
		return status;
	job->shards.vocabulary = tokenizer_size(job->tokenizer);
	job->shards.answers = packing->chat;
	status = tokens_fingerprint(job->tokenizer, &job->shards.tokenizer, err);
	return status == ROSA_OK ? rosa_workers_new(packing->threads, NULL, &job->workers, err) : status;
}

rosa_status packing_run(const struct packing *packing, struct packing_result *result, rosa_error *err)
{
	struct job job = {.packing = packing, .result = result};
	rosa_status status;

	*result = (struct packing_result){.end = -1};
	status = begin(&job, err);
	if (status == ROSA_OK)
		status = pack_files(&job, err);
	result->tokens = job.shards.tokens;
	result->shards = job.shards.count;
	if (status == ROSA_OK && result->tokens == 0)
		status = rosa_fail(err, ROSA_EINVAL,
				   "there is nothing to pack; empty documents: %llu, lines that cannot be used: %llu",
				   (unsigned long long)result->empty, (unsigned long long)result->bad);
	if (status == ROSA_OK)
		status = pack_shards_commit(&job.shards, err);
	pack_shards_free(&job.shards);
	pack_batch_free(&job.batch);
	pack_inputs_free(&job.inputs);
	answers_free(&job.rules.answers);
	tokenizer_free(job.tokenizer);
	rosa_workers_free(job.workers);
	return status;
}
