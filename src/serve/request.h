/* A parsed request: the JSON of OpenAI's API, validated, as plain numbers and strings. */
#pragma once

#include "model/conversation.h"
#include "model/generation_config.h"
#include "model/sampler.h"
#include "serve/api_error.h"

enum request_kind {
	REQUEST_COMPLETION,
	REQUEST_CHAT,
	REQUEST_EITHER /* to request_parse only: a chat if it has messages */
};

#define REQUEST_PROMPTS 256 /* at most */
#define REQUEST_STOPS   32
#define REQUEST_TOP     20 /* likeliest tokens reported besides the chosen one, at most */

/* A prompt: text, or token ids. */
struct prompt {
	char *text; /* NULL: `tokens` */
	size_t size;
	struct tokens tokens;
};

struct request {
	enum request_kind kind;
	char *model;            /* NULL: not said */
	struct prompt *prompts; /* of a completion */
	size_t prompt_count;
	struct conversation conversation; /* of a chat */
	bool think;
	size_t most; /* tokens to generate */
	struct sampler_options sampling;
	bool seeded; /* the request has a seed */
	char *stops[REQUEST_STOPS];
	size_t stop_count;
	bool echo;         /* the answer begins with the prompt */
	bool scored;       /* logarithms of probabilities are wanted */
	size_t top;        /* and those of so many likeliest tokens */
	bool stream;       /* by server-sent events */
	bool stream_usage; /* with the usage at the end */
	bool places;       /* report the places that were read for each token of the answer */
	bool silent;       /* memory is off: neither adapter nor pointer read anything */
	bool progress;     /* a stream reports how much of the prompt was read */
};

/* Defaults for fields that a request does not set. */
struct request_defaults {
	struct generation_config sampling; /* the model's own settings */
	size_t chat_tokens;                /* most tokens of an answer in a chat; of a completion it is 16 */
};

/* On failure there is nothing to release. */
bool request_parse(enum request_kind kind, const char *body, size_t size, const struct request_defaults *defaults,
		   struct request *request, struct api_error *error);
void request_free(struct request *request); /* safe on a zeroed one */
