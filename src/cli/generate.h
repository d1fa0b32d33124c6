/* What the two ways to generate share: a text that is continued, and a conversation. */
#ifndef ROSATUNE_GENERATE_H
#define ROSATUNE_GENERATE_H

#include "cli/generate_run.h"
#include "cli/session_file.h"

struct generate {
	struct model_args args;
	const char *prompt, *file; /* NULL: not given */
	const char *system;
	const char *save, *load; /* session files */
	uint64_t tokens;         /* most of an answer */
	struct sampler_options sampling;
	uint64_t top_k, repeat_last;
	struct arg_texts stops;
	bool chat, no_think, lossy, json;

	struct model model;
	tokenizer *tokenizer;
	struct run run;
};

/* Each returns the exit code, or -1 with a reason. The run is open. */
int generate_text(struct generate *job, rosa_error *why);
int generate_chat(struct generate *job, rosa_error *why);

#endif
