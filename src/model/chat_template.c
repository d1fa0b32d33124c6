/*
 * What a chat template says, found without running it.
 *
 * Special tokens stand in templates as string literals, and a message that is always the same is one literal from its
 * first token to its last: '<|im_start|>system\nYou are ...<|im_end|>\n'. So the default system message is what lies
 * between, unless the literal ends before. A line end in a literal is either the two characters "\n" (as in
 * tokenizer_config.json) or the character itself (as in some GGUF files); both are read.
 */
#include "model/chat_template.h"

#include "model/chat.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------------- text -- */

/* Python's str.isspace. */
static bool is_space(uint32_t point)
{
	return (point >= 9 && point <= 13) || (point >= 0x1c && point <= 0x20) || point == 0x85 || point == 0xa0 ||
	       point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
	       point == 0x202f || point == 0x205f || point == 0x3000;
}

void chat_trim(const char **text, size_t *size)
{
	size_t end = 0, length;

	while (*size && is_space(utf8_next(*text, *size, &length))) {
		*text += length;
		*size -= length;
	}
	for (size_t at = 0; at < *size; at += length) {
		if (!is_space(utf8_next(*text + at, *size - at, &length)))
			end = at + length;
	}
	*size = end;
}

static bool begins_with(const char *text, const char *start)
{
	return strncmp(text, start, strlen(start)) == 0;
}

bool chat_is_tool_response(const char *content)
{
	const char *close = "</tool_response>";
	size_t size = strlen(content), end = strlen(close);

	return begins_with(content, "<tool_response>") && size >= end && strcmp(content + size - end, close) == 0;
}

/* ----------------------------------------------------------------------------------------------------- literals -- */

/* The length of the line end at `at`, written in either way; 0: there is none. */
static size_t line_end(const char *at)
{
	return *at == '\n' ? 1 : begins_with(at, "\\n") ? 2 : 0;
}

/* Copies a literal's text up to `stop` and undoes its escapes; NULL if there is no memory. */
static char *unescaped(const char *at, const char *stop)
{
	static const char names[] = "nt'\"\\", values[] = "\n\t'\"\\";
	char *made = malloc((size_t)(stop - at) + 1), *to = made;

	while (made && at < stop) {
		const char *name = *at == '\\' && at + 1 < stop ? strchr(names, at[1]) : NULL;
		if (name && *name) {
			*to++ = values[name - names];
			at += 2;
		} else {
			*to++ = *at++;
		}
	}
	if (made)
		*to = '\0';
	return made;
}

/* The next place that begins with a text; NULL: none. Unlike strstr it reads no further, also where a sanitizer wraps
 * it, so that many calls in a row take linear time. */
static const char *find(const char *at, const char *text)
{
	while (*at && !begins_with(at, text))
		at++;
	return *at ? at : NULL;
}

/* What a text stands in: a literal in one of two kinds of quotes, or the template outside of any literal. */
enum surroundings { SINGLE_QUOTES, DOUBLE_QUOTES, NO_LITERAL, SURROUNDINGS };

static enum surroundings surroundings_of(const char *template, const char *at)
{
	char before = at > template ? at[-1] : '\0';

	return before == '\'' ? SINGLE_QUOTES : before == '"' ? DOUBLE_QUOTES : NO_LITERAL;
}

/* Reads from `at` on to `stop`, to the end of the literal or to where something is computed, whichever comes first.
 * Returns where that is, and in *reached whether it is `stop`. */
static const char *read_on(const char *at, enum surroundings in, const char *stop, bool *reached)
{
	const char quote = in == SINGLE_QUOTES ? '\'' : '"';

	for (; *at && !begins_with(at, stop); at++) {
		if (in != NO_LITERAL && *at == '\\' && at[1])
			at++;
		else if (in == NO_LITERAL ? begins_with(at, "{{") || begins_with(at, "{%") : *at == quote)
			break;
	}
	*reached = begins_with(at, stop);
	return at;
}

/* The system message that the template has whole, in *found; NULL: it has none. False if there is no memory.
 *
 * Where an earlier attempt with the same surroundings has failed, one that begins within the text it covered would fail
 * at the same place. Skipping it keeps the work linear in the template, which comes from a file and may repeat the
 * opening any number of times. */
static bool find_system(const char *template, char **found)
{
	static const char open[] = "<|im_start|>system", close[] = "<|im_end|>";
	const char *failed[SURROUNDINGS] = {template, template, template};

	*found = NULL;
	for (const char *at = find(template, open); at; at = find(at + 1, open)) {
		const char *name_end = at + strlen(open), *text = name_end + line_end(name_end), *stop;
		enum surroundings in = surroundings_of(template, at);
		bool reached;
		if (text == name_end || text < failed[in])
			continue;
		stop = read_on(text, in, close, &reached);
		if (reached && stop > text) {
			*found = unescaped(text, stop);
			return *found != NULL;
		}
		if (!reached)
			failed[in] = stop;
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------------ Llama 3 -- */

/* The value of `date_string = "..."`, where the template sets one itself. */
static const char *find_date(const char *template, size_t *size)
{
	const char *names[] = {"date_string = \"", "date_string = '"};

	for (int i = 0; i < 2; i++) {
		const char *at = strstr(template, names[i]);
		if (at) {
			at += strlen(names[i]);
			*size = strcspn(at, "\"'");
			return at;
		}
	}
	return NULL;
}

/* "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n" */
static rosa_status find_dates(const char *template, char **preamble, rosa_error *err)
{
	static const char cutting[] = "Cutting Knowledge Date: ", today[] = "\nToday Date: ";
	const char *knowledge = strstr(template, cutting), *date;
	size_t until, date_size = 0;
	char *to;

	*preamble = NULL;
	date = find_date(template, &date_size);
	if (!knowledge || !date)
		return ROSA_OK;
	until = strcspn(knowledge, "\\\n\"'");
	to = *preamble = malloc(until + sizeof(today) + date_size + 3);
	if (!to)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the chat template");
	memcpy(to, knowledge, until);
	to += until;
	memcpy(to, today, sizeof(today) - 1);
	to += sizeof(today) - 1;
	memcpy(to, date, date_size);
	memcpy(to + date_size, "\n\n", 3);
	return ROSA_OK;
}

/* -------------------------------------------------------------------------------------------------------- style -- */

static bool knows(const tokenizer *tokenizer, const char *token)
{
	return strstr(tokenizer_template(tokenizer), token) && tokenizer_find(tokenizer, token) >= 0;
}

static enum chat_style style_of(const tokenizer *tokenizer)
{
	const char *template = tokenizer_template(tokenizer);

	if (!template)
		return CHAT_NONE;
	if (knows(tokenizer, "<|start_header_id|>") && knows(tokenizer, "<|eot_id|>"))
		return CHAT_LLAMA3;
	if (!knows(tokenizer, "<|im_start|>") || !knows(tokenizer, "<|im_end|>"))
		return CHAT_NONE;
	return strstr(template, "</think>") ? CHAT_QWEN3 : CHAT_ML;
}

rosa_status chat_format_of(const tokenizer *tokenizer, struct chat_format *format, rosa_error *err)
{
	const char *template = tokenizer_template(tokenizer);
	rosa_status status = ROSA_OK;
	bool done = true;

	*format = (struct chat_format){.style = style_of(tokenizer)};
	if (format->style == CHAT_LLAMA3) {
		status = find_dates(template, &format->preamble, err);
	} else if (format->style != CHAT_NONE) {
		done = find_system(template, &format->system);
		format->opens_think = strstr(template, "<|im_start|>assistant\\n<think>\\n'") != NULL ||
				      strstr(template, "<|im_start|>assistant\n<think>\n'") != NULL;
	}
	if (!status && !done)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for the chat template");
	if (status)
		chat_format_free(format);
	return status;
}

void chat_format_free(struct chat_format *format)
{
	free(format->system);
	free(format->preamble);
	*format = (struct chat_format){0};
}
