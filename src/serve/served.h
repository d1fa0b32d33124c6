/* The model that is served, with everything that tasks need. It does not change while requests run, except the
 * decoder's own memory, which a single thread uses. */
#pragma once

#include "model/chat.h"
#include "model/decoder.h"
#include "model/pointer.h"
#include "serve/request.h"

struct served {
	const char *name; /* for clients */
	const char *path; /* for messages */
	const struct model_config *config;
	struct decoder_options options; /* its chunk is not 0 */
	decoder *decoder;
	const tokenizer *tokenizer;
	const struct pointer *pointer; /* NULL: none */
	struct chat_format chat;       /* CHAT_NONE: it cannot chat */
	struct request_defaults defaults;
};
