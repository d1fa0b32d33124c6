/* The model that is served, with all that reading and answering takes. Nothing in it changes while requests run but
 * what the decoder keeps, which one thread uses. */
#pragma once

#include "model/chat.h"
#include "model/decoder.h"
#include "model/pointer.h"
#include "serve/request.h"

struct served {
	const char *name; /* for clients */
	const char *path; /* for people */
	const struct model_config *config;
	struct decoder_options options; /* its chunk is not 0 */
	decoder *decoder;
	const tokenizer *tokenizer;
	const struct pointer *pointer; /* NULL: none */
	struct chat_format chat;       /* CHAT_NONE: it cannot chat */
	struct request_defaults defaults;
};
