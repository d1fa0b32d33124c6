/*
 * rosatune generate: the command.
 *
 * Reads the options, opens the model and hands over to one of two ways to use it: generate_text.c continues a text,
 * generate_chat.c holds a conversation. Nothing that can be known to be wrong is left for later: the place of the
 * session file is tried before a book is read for an hour.
 */
#include "cli/commands.h"

#include "cli/generate.h"

#include "base/paths.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 512

#define ATTENTION_NOTES                                                                                                \
	"Attention is global unless --window or an adapter says otherwise. With a window, memory stays the same\n"     \
	"however long the text is; an adapter adds its retrieval index, and a pointer its own.\n"

#define CHAT_NOTES                                                                                                     \
	"Each line of standard input is a message. --prompt is the first one, and --file a document before it.\n"      \
	"While the model answers, Ctrl-C stops the answer; at the prompt, Ctrl-C twice ends. An answer that was\n"     \
	"cut at --tokens is marked. Lines that begin with '/' are commands:\n" CHAT_COMMANDS "\n"                      \
	"At a terminal, lines can be edited, and the arrow keys bring back earlier ones, which are kept in\n"          \
	"$XDG_STATE_HOME/rosatune/chat_history (default ~/.local/state).\n"                                            \
	"\n"                                                                                                           \
	"Sampling follows the model's own settings (generation_config.json, or general.sampling.* in a GGUF file);\n"  \
	"settings that it lacks have the defaults of a chat above."

static const char text_notes[] = ATTENTION_NOTES
    "\n"
    "The text goes to standard output as it is made, progress and messages to standard error. Ctrl-C ends it; with\n"
    "--save-session the session is saved even then. A session is resumed with the same model and brings its own\n"
    "window, sinks and adapter; with the same sampling options the text continues as if it had never stopped:\n"
    "  rosatune generate --model M --window 512 --file book.txt --tokens 0 --save-session book.session\n"
    "  rosatune generate --model M --load-session book.session --prompt 'The end of the story is'\n"
    "\n"
    "With --chat this is 'rosatune chat'.\n" CHAT_NOTES;

static const char chat_notes[] = ATTENTION_NOTES "\n" CHAT_NOTES;

#define TEXT_ARGS(job, tokens_help)                                                                                    \
	OPTION_TEXT("prompt", &(job)->prompt, "TEXT",                                                                  \
		    "the text to continue, after that of --file; in a chat the first message", .short_name = 'p'),     \
	    OPTION_TEXT("file", &(job)->file, "FILE",                                                                  \
			"read a text, of any length, plain or .gz, .xz, .zst (-: standard input)", .short_name = 'f'), \
	    OPTION_FLAG("lossy", &(job)->lossy, "read bytes that are not UTF-8 as U+FFFD instead of refusing them"),   \
	    OPTION_SIZE("tokens", &(job)->tokens, "N", 0, ROSA_MAX_STEPS, tokens_help, .short_name = 'n'),             \
	    SAMPLING_ARGS(&(job)->sampling),                                                                           \
	    OPTION_TEXTS("stop", &(job)->stops, "TEXT", "end before this text; may be given several times"),           \
	    OPTION_TEXT("save-session", &(job)->save, "FILE",                                                          \
			"at the end, save the state, to continue from it later"),                                      \
	    OPTION_TEXT("load-session", &(job)->load, "FILE",                                                          \
			"continue from a saved state, with the text of --file and --prompt after it")

#define CHAT_ARGS(job)                                                                                                 \
	OPTION_TEXT("system", &(job)->system, "TEXT", "in a chat: the system message, before the conversation"),       \
	    OPTION_FLAG("no-think", &(job)->no_think,                                                                  \
			"in a chat: ask a model with a thinking mode to answer directly")

static enum args_result parse_text(struct generate *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    POINTER_ARG(&job->args),
	    TEXT_ARGS(job, "make at most N tokens, in a chat per answer (default 512; 0: only read)"),
	    OPTION_FLAG("json", &job->json, "print one JSON object at the end instead of the text"),
	    OPTION_FLAG("chat", &job->chat, "hold a conversation: 'rosatune chat'"),
	    CHAT_ARGS(job),
	};
	struct args args = {
	    .command = job->command,
	    .usage = "--model PATH [--prompt TEXT] [--file FILE] [options]",
	    .summary = "Reads a text with a model and continues it.",
	    ARGS_OPTIONS(options),
	    .notes = text_notes,
	};

	return args_parse(&args, count, words);
}

static enum args_result parse_chat(struct generate *job, int count, char **words)
{
	struct arg options[] = {MODEL_ARGS(&job->args), POINTER_ARG(&job->args),
				TEXT_ARGS(job, "make at most N tokens per answer (default 512)"), CHAT_ARGS(job)};
	struct args args = {
	    .command = job->command,
	    .usage = "--model PATH [--system TEXT] [--prompt TEXT] [--file FILE] [options]",
	    .summary = "Holds a conversation with a model.",
	    ARGS_OPTIONS(options),
	    .notes = chat_notes,
	};

	return args_parse(&args, count, words);
}

/* What the table cannot say of options together. */
static bool sensible(const struct generate *job, rosa_error *why)
{
	if (!job->chat && job->system)
		return refuse(why, "--system belongs to a conversation; add --chat");
	if (!job->chat && job->no_think)
		return refuse(why, "--no-think belongs to a conversation; add --chat");
	if (job->chat && job->json)
		return refuse(why, "--json prints one answer; leave out --chat");
	if (job->chat && job->tokens == 0)
		return refuse(why, "--tokens 0: a conversation needs answers; give at least 1");
	if (job->chat && job->load && job->system)
		return refuse(why, "--system: the session has its own beginning; leave one of them out");
	if (!job->chat && !job->prompt && !job->file && !job->load)
		return refuse(
		    why, "there is nothing to read; give --prompt TEXT, --file FILE (-: standard input) or --chat");
	return true;
}

/* An option that the session has a value for: that is what counts, and another one is refused. */
static bool settle(const char *name, uint64_t *given, size_t saved, const struct generate *job, rosa_error *why)
{
	if (*given != NOT_GIVEN && *given != saved)
		return refuse(why, "--%s %llu: the session %s was made with %zu; leave the option out", name,
			      (unsigned long long)*given, job->load, saved);
	*given = saved;
	return true;
}

/* A session brings the window, the sinks, the adapter and the pointer that it was made with. A pointer has no part in
 * what was read, so another one may be given. */
static bool take_settings(struct generate *job, rosa_error *why)
{
	struct session_settings *saved = &job->settings;

	if (session_settings_read(job->load, saved, why) != ROSA_OK ||
	    !settle("window", &job->args.window, saved->window, job, why) ||
	    !settle("sinks", &job->args.sinks, saved->sinks, job, why) ||
	    !settle("global-layers", &job->args.global_layers, saved->first_global_layers, job, why))
		return false;
	if (job->args.adapter && !saved->adapter)
		return refuse(why, "--adapter %s: the session %s was made without an adapter; leave the option out",
			      job->args.adapter, job->load);
	if (!job->args.adapter && saved->adapter && !path_is_folder(saved->adapter))
		return refuse(why,
			      "the session %s was made with the adapter %s, which is not there; name it by --adapter",
			      job->load, saved->adapter);
	if (!job->args.adapter)
		job->args.adapter = saved->adapter;
	if (!job->args.pointer && saved->pointer && !path_exists(saved->pointer))
		return refuse(why,
			      "the session %s was made with the pointer %s, which is not there; name it by --pointer, "
			      "or give --pointer none",
			      job->load, saved->pointer);
	if (!job->args.pointer)
		job->args.pointer = saved->pointer ? saved->pointer : POINTER_NONE;
	return true;
}

static int run(struct generate *job, rosa_error *why)
{
	struct sampler_options sampling;

	if (job->load && !take_settings(job, why))
		return -1;
	if ((job->save && file_can_create(job->save, why) != ROSA_OK) || !model_open(&job->model, &job->args, why) ||
	    !model_pointer(&job->model, &job->args, why) ||
	    checkpoint_tokenizer(&job->model.checkpoint, &job->tokenizer, why) != ROSA_OK ||
	    !model_settings(&job->model, &job->settings, why) ||
	    !sampling_choose(&job->sampling, job->chat, &job->model.checkpoint, &sampling, why) ||
	    !run_open(&job->run, &job->model, job->tokenizer, &sampling, &job->stops, why))
		return -1;
	return job->chat ? generate_chat(job, why) : generate_text(job, why);
}

static int perform(struct generate *job, enum args_result parsed)
{
	rosa_error why = {0};

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (!sensible(job, &why)) {
		complain(job->command, "%s", why.message);
		return MISUSED;
	}
	interrupt_watch();
	int code = run(job, &why);
	run_close(&job->run);
	tokenizer_free(job->tokenizer);
	model_close(&job->model);
	session_settings_free(&job->settings);
	if (code >= 0)
		return code;
	complain(job->command, "%s", interrupted() ? "interrupted" : why.message);
	return interrupted() ? interrupted() : FAILED;
}

static struct generate beginning(const char *command, bool chat)
{
	return (struct generate){.command = command,
				 .args = MODEL_ARGS_INIT,
				 .tokens = TOKENS,
				 .sampling = SAMPLING_ARGS_INIT,
				 .chat = chat};
}

int generate_command(int count, char **words)
{
	struct generate job = beginning("generate", false);

	return perform(&job, parse_text(&job, count, words));
}

int chat_command(int count, char **words)
{
	struct generate job = beginning("chat", true);

	return perform(&job, parse_chat(&job, count, words));
}
