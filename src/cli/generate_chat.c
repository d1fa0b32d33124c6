/*
 * A conversation.
 *
 * A turn reads what is new of the conversation (model/chat_turns.c) and generates the answer. Where later turns may
 * have other tokens for the answer, the state before it is kept, and the next turn continues from there.
 */
#include "cli/generate.h"

#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/screen.h"
#include "model/chat_turns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CTRL_C    130 /* its exit code */
#define PROMPT    "> "
#define UNSETTLED ((size_t)16) /* tokens at the end of a document that may change with the text after it */

struct chat {
	struct generate *job;
	struct run *run;
	struct chat_format format;
	struct chat_turns turns;
	struct text document; /* empty: none */
	bool document_due;    /* it will be put before the next message */
	bool terminal;        /* stdin is one: a user types */
	bool shown;           /* stderr is a terminal */
};

/* -------------------------------------------------------------------------------------------------------- turns -- */

/* After an answer: says that it was cut, if so, and on a terminal how fast the turn was. `before` is the run before it.
 */
static void comment_answer(const struct chat *chat, const struct answer *answer, const struct run *before)
{
	const struct run *run = chat->run;

	if (answer->end == ANSWER_LENGTH && chat->shown)
		fprintf(stderr, "[cut after %zu tokens; --tokens N allows more]\n", answer->made);
	else if (answer->end == ANSWER_LENGTH)
		complain(chat->job->command, "the answer was cut after %zu tokens; --tokens N allows more",
			 answer->made);
	else if (answer->end == ANSWER_INTERRUPTED && chat->shown)
		fprintf(stderr, "[stopped after %zu tokens]\n", answer->made);
	if (chat->shown)
		fprintf(stderr, "[read %llu token%s, %.0f/s; wrote %zu, %.1f/s]\n",
			(unsigned long long)(run->read - before->read), run->read - before->read == 1 ? "" : "s",
			per_second(run->read - before->read, run->reading_time - before->reading_time), answer->made,
			per_second(run->made - before->made, run->making_time - before->making_time));
}

/* Reads the conversation, which ends with a user's message, and generates an answer. *made is false if there is none,
 * after Ctrl-C while reading. */
static bool answer_turn(struct chat *chat, bool *made, rosa_error *why)
{
	const struct answer *answer = &chat->run->answer;
	struct tokens wanted;
	const struct run before = *chat->run; /* for its counters */
	size_t lasting;

	*made = false;
	if (chat_turns_next(&chat->turns, &wanted, &lasting, why) != ROSA_OK)
		return false;
	bool whole = lasting == wanted.count, go_back = chat_turns_rewrite(&chat->turns) || chat->job->stops.count > 0;
	bool good = run_become(chat->run, wanted.ids, wanted.count, why);
	if (good)
		run_warn_length(chat->run, chat->run->tokens.count, chat->job->command);
	if (good && go_back)
		good = run_read(chat->run, lasting < wanted.count ? lasting : lasting - 1, why) &&
		       (interrupted() || run_remember(chat->run, why));
	tokens_free(&wanted);
	good = good && run_answer(chat->run, (size_t)chat->job->tokens, why);
	good = good && (answer->made == 0 || screen_print("\n", 1, why));
	if (good && answer->made > 0) {
		*made = true;
		run_warn_length(chat->run, sequence_steps(chat->run->sequence), chat->job->command);
		comment_answer(chat, answer, &before);
		good = chat_turns_answer(&chat->turns, answer, &chat->run->tokens, whole, why) == ROSA_OK;
	}
	return good;
}

/* Adds a user's message, with the document before it if that is due. */
static bool add_message(struct chat *chat, const char *line, rosa_error *why)
{
	struct text text = {0};
	bool good =
	    (!chat->document_due ||
	     (text_add(&text, "the document", chat->document.data, chat->document.size, true, why) &&
	      text_add(&text, "the document", "\n\n", 2, true, why))) &&
	    text_add(&text, "the message", line, strlen(line), chat->job->lossy, why) &&
	    conversation_add(&chat->turns.conversation, "user", strlen("user"), text.data, text.size, why) == ROSA_OK;

	text_free(&text);
	return good;
}

static bool take_turn(struct chat *chat, const char *line, rosa_error *why)
{
	bool made;

	if (!add_message(chat, line, why))
		return false;
	if (!answer_turn(chat, &made, why))
		return false;
	if (made)
		chat->document_due = false;
	else
		conversation_drop(&chat->turns.conversation);
	return true;
}

/* Reads a document before the first question is asked: all but its end, whose tokens may change with the question. */
static bool read_document(struct chat *chat, rosa_error *why)
{
	struct tokens wanted;
	size_t lasting;

	if (!chat->document_due)
		return true;
	if (!add_message(chat, "?", why) || chat_turns_next(&chat->turns, &wanted, &lasting, why) != ROSA_OK)
		return false;
	conversation_drop(&chat->turns.conversation);
	bool good = run_become(chat->run, wanted.ids, wanted.count, why) &&
		    (wanted.count <= UNSETTLED || run_read(chat->run, wanted.count - UNSETTLED, why));
	if (good && interrupted() && chat->shown)
		fprintf(stderr, "[stopped at %zu of %zu tokens; the rest is read with your next message]\n",
			sequence_steps(chat->run->sequence), wanted.count);
	tokens_free(&wanted);
	return good;
}

/* ----------------------------------------------------------------------------------------------------- sessions -- */

/* Saves a state that has read nothing but tokens of `said`: the present one, the kept one, or an empty one. */
static bool save_state(const struct chat *chat, const struct session *session, const char *path, rosa_error *why)
{
	const struct run *run = chat->run;
	size_t steps = sequence_steps(run->sequence),
	       common = tokens_common(&run->tokens, session->tokens.ids, session->tokens.count);
	struct session_state state = {.sequence = run->sequence};
	sequence *none = NULL;

	if (steps > common || steps >= session->tokens.count) {
		state = (struct session_state){NULL, run->kept.data, run->kept.size};
		if (!run->kept.size || run->kept.steps > common || run->kept.steps >= session->tokens.count) {
			if (sequence_new(chat->job->model.decoder, &none, why) != ROSA_OK)
				return false;
			state = (struct session_state){.sequence = none};
		}
	}
	bool good = session_save(path, session, state, &program_files, why) == ROSA_OK;
	sequence_free(none);
	return good;
}

static bool save(const struct chat *chat, const char *path, rosa_error *why)
{
	struct session session = {.settings = chat->job->settings,
				  .tokens = chat->turns.said,
				  .draws = sampler_draws(chat->run->answer.sampler),
				  .ended = true,
				  .conversation = chat->turns.conversation};

	if (chat->turns.said.count == 0)
		return refuse(why, "nothing has been said yet, so there is no session to save in %s", path);
	return save_state(chat, &session, path, why);
}

static bool resume(struct chat *chat, rosa_error *why)
{
	struct session session;
	sequence *sequence;

	if (session_load(chat->job->load, chat->job->model.decoder, &session, &sequence, why) != ROSA_OK)
		return false;
	chat->turns.conversation = session.conversation;
	session.conversation = (struct conversation){0};
	chat->turns.answered = chat->turns.conversation.count > 0;
	if (session.ended && !chat->turns.answered)
		session.tokens.count--; /* the model had ended this text: the conversation replaces the end token */
	bool good = run_resume(chat->run, sequence, &session.tokens, session.draws, why) &&
		    tokens_add(&chat->turns.said, session.tokens.ids, session.tokens.count, why) == ROSA_OK;
	session_free(&session);
	return good;
}

/* ----------------------------------------------------------------------------------------------------- commands -- */

static bool begin(struct chat *chat, rosa_error *why)
{
	const char *system = chat->job->system;

	chat->document_due = chat->document.size > 0;
	return !system || conversation_add(&chat->turns.conversation, "system", strlen("system"), system,
					   strlen(system), why) == ROSA_OK;
}

static bool reset(struct chat *chat, rosa_error *why)
{
	chat_turns_clear(&chat->turns);
	return begin(chat, why) && run_become(chat->run, NULL, 0, why) && read_document(chat, why);
}

enum order { NONE, MESSAGE, HELP, QUIT, RESET, SAVE, UNKNOWN };

/* Only "/" and letters are a command: a path is a message. */
static enum order order_of(const char *line)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
	static const struct {
		const char *word;
		enum order order;
	} orders[] = {{"/help", HELP}, {"/quit", QUIT}, {"/reset", RESET}, {"/save", SAVE}};
	size_t length = line[0] == '/' ? 1 + strspn(line + 1, letters) : 0;

	if (line[strspn(line, " \t\r")] == '\0')
		return NONE;
	if (length < 2 || (line[length] && line[length] != ' '))
		return MESSAGE;
	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		if (strlen(orders[i].word) == length && strncmp(line, orders[i].word, length) == 0)
			return orders[i].order;
	}
	return UNKNOWN;
}

static void save_to(const struct chat *chat, const char *line)
{
	const char *path = line + strlen("/save");
	rosa_error why;

	path += strspn(path, " ");
	if (*path == '\0')
		complain(chat->job->command, "/save needs a file: /save FILE");
	else if (!save(chat, path, &why))
		complain(chat->job->command, "%s", why.message);
	else if (chat->terminal)
		fprintf(stderr, "saved in %s\n", path);
}

/* False after a failure that ends the conversation. *over: the user has ended it. */
static bool do_line(struct chat *chat, const char *line, bool *over, rosa_error *why)
{
	switch (order_of(line)) {
	case MESSAGE:
		return take_turn(chat, line, why);
	case RESET:
		return reset(chat, why);
	case SAVE:
		save_to(chat, line);
		break;
	case HELP:
		fputs(CHAT_COMMANDS "Any other line is a message. Ctrl-C stops an answer.\n", stderr);
		break;
	case QUIT:
		*over = true;
		break;
	case UNKNOWN:
		complain(chat->job->command,
			 "%.*s is not known, /help lists the commands; a message may begin with a space",
			 (int)strcspn(line, " "), line);
		break;
	case NONE:
		break;
	}
	return true;
}

/* -------------------------------------------------------------------------------------------------------- lines -- */

/* Whether a line can be a message. If not, the reason is printed and the conversation continues. */
static bool acceptable(const struct chat *chat, const char *line, size_t size)
{
	struct text text = {0};
	rosa_error why;
	bool good = strlen(line) == size ? true : refuse(&why, "the message has a byte 0, which is not text");

	good = good && text_add(&text, "the message", line, size, chat->job->lossy, &why);
	if (!good)
		complain(chat->job->command, "%s", why.message);
	text_free(&text);
	return good;
}

/* After a signal at the prompt: the exit code, or 0 to continue. A first Ctrl-C only gives a warning, since it may have
 * been meant for an answer that had just ended. */
static int after_signal(const struct chat *chat, bool *warned)
{
	int code = interrupted();

	interrupt_forget();
	if (*warned || !chat->terminal || code != CTRL_C)
		return code;
	fputs("\n(Ctrl-C again, Ctrl-D or /quit ends)\n", stderr);
	*warned = true;
	return 0;
}

/* After a turn: the exit code, or 0. Ctrl-C has stopped the answer and does not end the conversation. */
static int after_turn(void)
{
	int code = interrupted();

	interrupt_forget();
	return code == CTRL_C ? 0 : code;
}

/* Reads the next line, with line editing where that is possible. */
static enum line_result next_line(const struct chat *chat, line_editor *editor, struct line_input *input, char **line,
				  size_t *size, rosa_error *why)
{
	if (editor)
		return line_editor_read(editor, line, size, why);
	if (chat->terminal)
		fputs(PROMPT, stderr);
	return line_read(input, line, size, why);
}

/* Takes turns until standard input ends. Returns the exit code, or -1 with a reason. */
static int talk(struct chat *chat, rosa_error *why)
{
	struct line_input input = {0};
	line_editor *editor = chat->terminal ? line_editor_new(PROMPT) : NULL;
	bool over = false, good = true, warned = false;
	int code = 0;

	while (good && !over && code == 0) {
		char *line;
		size_t size;
		enum line_result result = next_line(chat, editor, &input, &line, &size, why);
		if (result == LINE_INTERRUPTED) {
			code = after_signal(chat, &warned);
			continue;
		}
		if (result != LINE_READ) {
			good = result == LINE_ENDED;
			break;
		}
		warned = false;
		if (acceptable(chat, line, size))
			good = do_line(chat, line, &over, why);
		code = after_turn();
	}
	if (chat->terminal && !over)
		fputc('\n', stderr);
	line_editor_free(editor);
	line_input_free(&input);
	return good ? code : -1;
}

/* --------------------------------------------------------------------------------------------- the conversation -- */

static bool prepare(struct chat *chat, rosa_error *why)
{
	if (chat_format_of(chat->job->tokenizer, &chat->format, why) != ROSA_OK)
		return false;
	chat->turns.tokenizer = chat->job->tokenizer;
	chat->turns.format = &chat->format;
	chat->turns.think = !chat->job->no_think;
	const int64_t end = chat_end(chat->job->tokenizer, &chat->format);

	if (end < 0)
		return refuse(why, "%s has no chat template that is known here; use 'rosatune generate'",
			      chat->job->args.model);
	chat->run->answer.options.end = end;
	chat->run->printed = true;
	if (chat->job->load && !resume(chat, why))
		return false;
	if (chat->job->file && !text_add_file(&chat->document, chat->job->file, chat->job->lossy, why))
		return false;
	if (chat->document.size > 0 && strlen(chat->document.data) != chat->document.size)
		return refuse(why, "%s has a byte 0 at %zu, which is not text", chat->job->file,
			      strlen(chat->document.data));
	return begin(chat, why) && read_document(chat, why);
}

/* The exit code, or -1 with a reason. */
static int converse(struct chat *chat, rosa_error *why)
{
	if (!prepare(chat, why))
		return -1;
	if (chat->terminal && chat->shown)
		fputs("Ctrl-D ends, /help lists the commands.\n", stderr);
	if (!interrupted() && chat->job->prompt && !take_turn(chat, chat->job->prompt, why))
		return -1;
	/* After Ctrl-C while a document is read a question can still be asked; the rest is then read with it. Other
	 * signals end the program. */
	const int code = after_turn();

	return code ? code : talk(chat, why);
}

int generate_chat(struct generate *job, rosa_error *why)
{
	struct chat chat = {
	    .job = job, .run = &job->run, .terminal = isatty(STDIN_FILENO), .shown = isatty(STDERR_FILENO)};

	interrupt_hold(); /* a second Ctrl-C while an answer ends must not end the program */
	int code = converse(&chat, why);
	if (code >= 0) {
		run_report(&job->run);
		if (job->save && chat.turns.said.count > 0 && !save(&chat, job->save, why))
			code = -1;
	}
	interrupt_release();
	chat_turns_clear(&chat.turns);
	text_free(&chat.document);
	chat_format_free(&chat.format);
	return code;
}
