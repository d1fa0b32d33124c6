/* A request and its answer, without the transport. */
#pragma once

#include "base/json_text.h"
#include "serve/engine.h"

/* How much of a task was streamed. */
struct sent {
	size_t text, scores, places;
	size_t read; /* 1 + the number of tokens last reported as read; 0: not reported yet */
	bool opened, ended;
};

struct exchange {
	const struct served *model;
	struct request request;
	struct serve_task **tasks; /* one per prompt */
	size_t count;
	struct sent *sent; /* [count] */
	bool closed;       /* the stream has ended */
	char id[40];
	int64_t created; /* seconds since 1970 */
};

/* Parses the body and makes its tasks. On failure there is nothing to release. */
bool exchange_new(const struct served *model, enum request_kind kind, const char *body, size_t size,
		  struct exchange *exchange, struct api_error *error);
void exchange_free(struct exchange *exchange); /* safe on a zeroed one; the engine no longer uses the tasks */

/* The following functions read the tasks: the caller holds the engine's lock. */

/* Whether all tasks are over. */
bool exchange_over(const struct exchange *exchange);
/* The first failure; NULL: there is none. */
const struct api_error *exchange_error(const struct exchange *exchange);
/* The whole answer, once over. */
void exchange_whole(const struct exchange *exchange, struct json_text *text);
/* Appends the server-sent events that are due, perhaps none. The last of them sets `closed`. */
void exchange_stream(struct exchange *exchange, struct json_text *text);

/* OpenAI's error object. */
void answer_error(struct json_text *text, const struct api_error *error);
