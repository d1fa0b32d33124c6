/* What the two ways to generate share: a text that is continued, and a conversation. */
#pragma once

#include "cli/generate_run.h"
#include "cli/generate_sampling.h"
#include "cli/text_input.h"
#include "model/session.h"

struct generate {
	const char *command; /* for messages: "generate" or "chat" */
	struct model_args args;
	const char *prompt, *file; /* NULL: not given */
	const char *system;
	const char *save, *load; /* session files */
	uint64_t tokens;         /* most of an answer */
	struct sampling_args sampling;
	struct arg_texts stops;
	bool chat, no_think, lossy, json;

	struct session_settings settings; /* of the session that is resumed, or that is made */

	struct model model;
	tokenizer *tokenizer;
	struct run run;
};

/* What a line of a chat that begins with '/' can be, for the help. */
#define CHAT_COMMANDS                                                                                                  \
	"  /help        list these commands\n"                                                                         \
	"  /reset       forget the conversation and begin again\n"                                                     \
	"  /save FILE   save the session, for --load-session\n"                                                        \
	"  /quit        end, as Ctrl-D does\n"

/* Each returns the exit code, or -1 with a reason. The run is open. */
int generate_text(struct generate *job, rosa_error *why);
int generate_chat(struct generate *job, rosa_error *why);
