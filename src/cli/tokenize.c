/*
 * rosatune tokenize: the tokens of a text, and the text of tokens.
 *
 * Without options the result is that of Hugging Face's tokenizers for the same text: special tokens are recognised
 * where they are written out, and a begin-of-text token comes first where the model has one. With --null a file holds
 * several texts, since loading a tokenizer takes longer than encoding most texts. With --chat the text is a
 * conversation in JSON, and the tokens are those of transformers' apply_chat_template.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "base/words.h"
#include "model/conversation.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/screen.h"
#include "model/json.h"
#include "cli/text_input.h"
#include "model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
	const char *model, *file, *words;
	bool json, count, plain, nul, lossy, decode, special;
	bool chat, no_answer, no_think;

	tokenizer *tokenizer;
	struct text text;
	struct tokens tokens;
	size_t printed; /* texts */
};

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    OPTION_TEXT("model", &job->model, "PATH",
			"a GGUF file, a folder with a tokenizer.json, or the tokenizer.json itself", .short_name = 'm',
			.required = true),
	    OPTION_TEXT("file", &job->file, "FILE", "the text, UTF-8, plain or .gz, .xz, .zst; - is standard input",
			.short_name = 'f'),
	    OPTION_TEXT("text", &job->words, "TEXT", "the text itself"),
	    OPTION_FLAG("json", &job->json, "print JSON: {\"ids\": [...]}"),
	    OPTION_FLAG("count", &job->count, "print the number of tokens only"),
	    OPTION_FLAG("plain", &job->plain, "special tokens in the text are text; no begin-of-text token"),
	    OPTION_FLAG("null", &job->nul, "several texts, with a NUL byte between: a line or an array for each"),
	    OPTION_FLAG("chat", &job->chat,
			"the text is a conversation: [{\"role\": \"user\", \"content\": \"Hello\"}, ...]"),
	    OPTION_FLAG("no-answer", &job->no_answer, "with --chat: without the beginning of the model's answer"),
	    OPTION_FLAG("no-think", &job->no_think, "with --chat: ask for an answer without thoughts (Qwen3)"),
	    OPTION_FLAG("lossy", &job->lossy, "read bytes that are not UTF-8 as U+FFFD"),
	    OPTION_FLAG("decode", &job->decode,
			"turn ids into text: --file or --text holds ids, as this command prints them"),
	    OPTION_FLAG("special", &job->special, "with --decode: write special tokens too"),
	};
	struct args args = {
	    .command = "tokenize",
	    .usage = "--model PATH (--file FILE | --text TEXT) [options]",
	    .summary = "Prints the tokens of a text as a model reads it, or the text of tokens.",
	    ARGS_OPTIONS(options),
	    .notes = "Ids are those of Hugging Face's tokenizers.",
	};
	enum args_result result = args_parse(&args, count, words);

	if (result == ARGS_OK && !job->file == !job->words) {
		complain("tokenize", "give the text by --file or by --text%s", job->file ? ", not by both" : "");
		return ARGS_WRONG;
	}
	if (result == ARGS_OK && job->decode && (job->json || job->count || job->plain || job->nul || job->chat)) {
		complain("tokenize", "--decode prints text: leave out --json, --count, --plain, --null and --chat");
		return ARGS_WRONG;
	}
	return result;
}

/* ----------------------------------------------------------------------------------------------------- encoding -- */

static bool add_message(struct conversation *conversation, struct json message, rosa_error *why)
{
	const char *role, *content;

	if (json_get_string(message, "role", JSON_NEEDED, &role, why) != ROSA_OK ||
	    json_get_string(message, "content", JSON_NEEDED, &content, why) != ROSA_OK)
		return false;
	return conversation_add(conversation, role, strlen(role), content, strlen(content), why) == ROSA_OK;
}

static bool encode_conversation(struct job *job, const struct conversation *conversation, rosa_error *why)
{
	struct chat_format format = {0};
	rosa_status status = chat_format_of(job->tokenizer, &format, why);

	if (!status)
		status = chat_encode(job->tokenizer, &format, conversation->all, conversation->count, !job->no_answer,
				     !job->no_think, &job->tokens, why);
	chat_format_free(&format);
	return !status;
}

static bool encode_chat(struct job *job, const char *text, size_t size, rosa_error *why)
{
	struct conversation conversation = {0};
	struct json root = {0};
	bool done = true;

	if (json_read(text, size, "the conversation", &root, why) != ROSA_OK)
		return false;
	if (json_kind(root) != JSON_IS_ARRAY)
		done = refuse(why, "the conversation is not a JSON array of messages");
	for (size_t i = 0; done && i < json_count(root); i++)
		done = add_message(&conversation, json_at(root, i), why);
	done = done && encode_conversation(job, &conversation, why);
	conversation_free(&conversation);
	json_free(&root);
	return done;
}

static bool encode_text(struct job *job, const char *text, size_t size, rosa_error *why)
{
	if (tokenizer_encode(job->tokenizer, text, size, !job->plain, &job->tokens, why) != ROSA_OK)
		return false;
	return true;
}

/* Prints the ids of one text, or their number. */
static bool encode(struct job *job, const char *text, size_t size, rosa_error *why)
{
	int64_t first = job->plain || job->chat ? -1 : tokenizer_bos(job->tokenizer);
	const char *between = job->json ? ", " : " ", *before = "";

	job->tokens.count = 0;
	if (!(job->chat ? encode_chat : encode_text)(job, text, size, why))
		return false;
	if (job->count) {
		printf("%zu\n", job->tokens.count + (first >= 0));
		return true;
	}
	/* printed only now, so that nothing is printed of a text that fails */
	if (job->json)
		fputs(job->printed ? ", [" : job->nul ? "{\"ids\": [[" : "{\"ids\": [", stdout);
	job->printed++;
	if (first >= 0) {
		printf("%lld", (long long)first);
		before = between;
	}
	for (size_t i = 0; i < job->tokens.count; i++, before = between)
		printf("%s%u", before, (unsigned)job->tokens.ids[i]);
	fputs(job->json ? "]" : "\n", stdout);
	return true;
}

/* Every text of a file; each ends at a NUL or at the end of the file. */
static bool encode_each(struct job *job, rosa_error *why)
{
	const char *at = job->text.data, *end = at + job->text.size;

	for (bool more = true; more;) {
		const char *stop = memchr(at, '\0', (size_t)(end - at));
		more = stop != NULL;
		if (!encode(job, at, (size_t)((more ? stop : end) - at), why))
			return false;
		at = more ? stop + 1 : end;
		if (interrupted())
			return refuse(why, "interrupted");
	}
	return true;
}

static bool print_tokens(struct job *job, rosa_error *why)
{
	bool done = job->nul ? encode_each(job, why) : encode(job, job->text.data, job->text.size, why);

	if (done && job->json && !job->count)
		fputs(job->nul ? "]}\n" : "}\n", stdout);
	return done;
}

/* ----------------------------------------------------------------------------------------------------- decoding -- */

/* The next id of a list in any form that this command prints: 1 2 3, or {"ids": [1, 2, 3]}. False at the end, and at
 * anything else; then *at does not point at the end. */
static bool next_id(const char **at, uint64_t *id)
{
	size_t digits;
	char number[24];

	*at += strspn(*at, " \t\r\n,[]{}:");
	if (strncmp(*at, "\"ids\"", 5) == 0)
		*at += 5 + strspn(*at + 5, " \t\r\n,[]{}:");
	digits = strspn(*at, "0123456789");
	if (digits == 0 || digits >= sizeof(number))
		return false;
	memcpy(number, *at, digits);
	number[digits] = '\0';
	*at += digits;
	return words_number(number, false, id);
}

static bool print_text(const struct job *job, rosa_error *why)
{
	char *out = get_memory(tokenizer_longest(job->tokenizer), 1, "a token's text", why);
	struct decoding decoding = {{0}, 0};
	const char *at = job->text.data;
	struct text text = {0};
	bool good = true;
	uint64_t id;

	if (!out)
		return false;
	while (good && next_id(&at, &id)) {
		if (id >= tokenizer_size(job->tokenizer))
			good = refuse(why, "there is no token %llu; ids are below %zu", (unsigned long long)id,
				      tokenizer_size(job->tokenizer));
		else
			good = text_add(&text, "a token", out,
					decode_token(job->tokenizer, &decoding, (uint32_t)id, job->special, out), true,
					why);
	}
	if (good && *at != '\0')
		good = refuse(why, "byte %zu of the ids is not part of a number", (size_t)(at - job->text.data));
	good = good && text_add(&text, "a token", out, decode_finish(&decoding, out), true, why) &&
	       screen_print(text.data, text.size, why);
	text_free(&text);
	free(out);
	return good;
}

/* -------------------------------------------------------------------------------------------------- the command -- */

static bool run(struct job *job, rosa_error *why)
{
	if (tokenizer_open(job->model, &job->tokenizer, why) != ROSA_OK)
		return false;
	if (job->file ? !text_add_file(&job->text, job->file, job->lossy, why)
		      : !text_add(&job->text, "--text", job->words, strlen(job->words), job->lossy, why))
		return false;
	return job->decode ? print_text(job, why) : print_tokens(job, why);
}

int tokenize_command(int count, char **words)
{
	struct job job = {0};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = run(&job, &why);
	tokens_free(&job.tokens);
	text_free(&job.text);
	tokenizer_free(job.tokenizer);
	return command_end("tokenize", done, &why);
}
