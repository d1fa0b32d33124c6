/*
 * rosatune generate: the command.
 *
 * Reads the options, opens the model and hands over to one of two ways to use it: generate_text.c continues a text,
 * generate_chat.c holds a conversation. Nothing that can be known to be wrong is left for later: the place of the
 * session file is tried before a book is read for an hour.
 */
#include "cli/commands.h"

#include "cli/generate.h"

#include "cli/file.h"
#include "cli/interrupt.h"

#include <stdio.h>
#include <string.h>

#define TOKENS      512
#define LARGEST     1e6
#define SEEN_TOKENS 64

static const char notes[] =
    "Attention is global unless --window or an adapter says otherwise. With a window, memory stays flat however long\n"
    "the text is; an adapter adds its retrieval index.\n"
    "\n"
    "The answer goes to standard output as it is made, progress and messages to standard error. Ctrl-C ends the "
    "answer;\n"
    "with --save-session the session is saved even then. A session is resumed with the same model, adapter and "
    "window;\n"
    "with the same sampling options the text goes on as if it had never stopped:\n"
    "  rosatune generate --model M --window 512 --file book.txt --tokens 0 --save-session book.session\n"
    "  rosatune generate --model M --window 512 --load-session book.session --prompt 'The end of the story is'\n"
    "\n"
    "With --chat each line of standard input is a turn. --prompt is the first one, and --file a document that stands\n"
    "before it. While answering, Ctrl-C stops the answer; at the prompt, twice ends. Lines that begin with '/':\n"
    "  /quit (or Ctrl-D) ends, /reset begins again, /save FILE saves the session.";

#define SAMPLING_ARGS(job)                                                                                             \
	{.name = "temperature",                                                                                        \
	 .kind = ARG_DECIMAL,                                                                                          \
	 .target = &(job)->sampling.temperature,                                                                       \
	 .value = "T",                                                                                                 \
	 .most = LARGEST,                                                                                              \
	 .help = "how freely tokens are drawn (default 0: always the likeliest)"},                                     \
	    {.name = "top-k",                                                                                          \
	     .kind = ARG_NUMBER,                                                                                       \
	     .target = &(job)->top_k,                                                                                  \
	     .value = "K",                                                                                             \
	     .max = UINT32_MAX,                                                                                        \
	     .help = "draw from the K likeliest tokens (default 0: all)"},                                             \
	    {.name = "top-p",                                                                                          \
	     .kind = ARG_DECIMAL,                                                                                      \
	     .target = &(job)->sampling.top_p,                                                                         \
	     .value = "P",                                                                                             \
	     .most = 1,                                                                                                \
	     .help = "then from the fewest whose probability reaches P (default 1: all)"},                             \
	    {.name = "min-p",                                                                                          \
	     .kind = ARG_DECIMAL,                                                                                      \
	     .target = &(job)->sampling.min_p,                                                                         \
	     .value = "P",                                                                                             \
	     .most = 1,                                                                                                \
	     .help = "then from those at least P times as likely as the likeliest (default 0)"},                       \
	    {.name = "repetition-penalty",                                                                             \
	     .kind = ARG_DECIMAL,                                                                                      \
	     .target = &(job)->sampling.repetition,                                                                    \
	     .value = "R",                                                                                             \
	     .least = 0.01,                                                                                            \
	     .most = 100,                                                                                              \
	     .help = "make tokens seen less likely (default 1: no; 1.1 is mild)"},                                     \
	    {.name = "repeat-last",                                                                                    \
	     .kind = ARG_SIZE,                                                                                         \
	     .target = &(job)->repeat_last,                                                                            \
	     .value = "N",                                                                                             \
	     .max = ROSA_MAX_STEPS,                                                                                    \
	     .help = "how many of the last tokens count as seen (default 64; 0: all)"},                                \
	{                                                                                                              \
		.name = "seed", .kind = ARG_NUMBER, .target = &(job)->sampling.seed, .value = "S", .max = UINT64_MAX,  \
		.help = "the same seed gives the same text (default 0)"                                                \
	}

static enum args_result parse(struct generate *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    {.name = "prompt",
	     .kind = ARG_TEXT,
	     .target = &job->prompt,
	     .value = "TEXT",
	     .help = "the text to go on from; with --file, what stands after the file's"},
	    {.name = "file",
	     .kind = ARG_TEXT,
	     .target = &job->file,
	     .value = "F",
	     .help = "read a text, of any length, from a file (-: standard input)"},
	    {.name = "lossy",
	     .kind = ARG_FLAG,
	     .target = &job->lossy,
	     .help = "read bytes that are not UTF-8 as U+FFFD instead of refusing them"},
	    {.name = "tokens",
	     .kind = ARG_SIZE,
	     .target = &job->tokens,
	     .value = "N",
	     .max = ROSA_MAX_STEPS,
	     .help = "make at most N tokens, in a chat each answer (default 512; 0: only read)"},
	    SAMPLING_ARGS(job),
	    {.name = "stop",
	     .kind = ARG_TEXTS,
	     .target = &job->stops,
	     .value = "TEXT",
	     .help = "end before this text; may be given several times"},
	    {.name = "chat", .kind = ARG_FLAG, .target = &job->chat, .help = "hold a conversation (see below)"},
	    {.name = "system",
	     .kind = ARG_TEXT,
	     .target = &job->system,
	     .value = "TEXT",
	     .help = "with --chat: what the model is told before the conversation"},
	    {.name = "no-think",
	     .kind = ARG_FLAG,
	     .target = &job->no_think,
	     .help = "with --chat: ask a model that thinks aloud to answer at once"},
	    {.name = "save-session",
	     .kind = ARG_TEXT,
	     .target = &job->save,
	     .value = "FILE",
	     .help = "at the end, save the state, to go on from it later"},
	    {.name = "load-session",
	     .kind = ARG_TEXT,
	     .target = &job->load,
	     .value = "FILE",
	     .help = "go on from a saved state; --prompt and --file continue it"},
	    {.name = "json",
	     .kind = ARG_FLAG,
	     .target = &job->json,
	     .help = "print one JSON object at the end instead of the text"},
	};
	struct args args = {
	    .command = "generate",
	    .usage = "--model PATH [--prompt TEXT] [--file F] [--chat] [options]",
	    .summary = "Reads a text with a model and goes on with it, or holds a conversation.",
	    .options = options,
	    .count = sizeof(options) / sizeof(options[0]),
	    .notes = notes,
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
		return refuse(why, "what shall be read? give --prompt TEXT, --file F (-: standard input) or --chat");
	return true;
}

static int run(struct generate *job, rosa_error *why)
{
	if ((job->save && !file_can_create(job->save, why)) || !model_open(&job->model, &job->args, why) ||
	    !model_tokenizer(&job->model, &job->tokenizer, why) ||
	    !run_open(&job->run, &job->model, job->tokenizer, &job->sampling, &job->stops, why))
		return -1;
	return job->chat ? generate_chat(job, why) : generate_text(job, why);
}

int generate_command(int count, char **words)
{
	struct generate job = {
	    .args = MODEL_ARGS_INIT, .tokens = TOKENS, .sampling = SAMPLER_OPTIONS_INIT, .repeat_last = SEEN_TOKENS};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (!sensible(&job, &why)) {
		complain("generate", "%s", why.message);
		return MISUSED;
	}
	job.sampling.top_k = (size_t)job.top_k;
	job.sampling.repeat_last = (size_t)job.repeat_last;
	interrupt_watch();
	int code = run(&job, &why);
	run_close(&job.run);
	tokenizer_free(job.tokenizer);
	model_close(&job.model);
	if (code >= 0)
		return code;
	complain("generate", "%s", interrupted() ? "interrupted" : why.message);
	return interrupted() ? interrupted() : FAILED;
}
