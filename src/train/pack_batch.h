/* A batch of documents, or pieces of them, that are tokenized in parallel. */
#pragma once

#include "train/answers.h"

struct pack_rules {
	const tokenizer *tokenizer;
	struct answers answers;
	bool chat;         /* lines are conversations */
	bool special;      /* special tokens in texts are recognised */
	const char *field; /* of lines of JSON */
};

/* A line of JSON, or a piece of a text. */
struct pack_item {
	size_t at, size; /* in the batch's bytes */
	bool json;
	bool begins, ends; /* the piece is the first or the last of its document */
	const char *file;  /* for messages */
	uint64_t line;     /* its last one */
	struct tokens tokens;
	uint8_t *counts; /* of a conversation; else NULL */
	bool bad;        /* `error` says why; an item may be added as bad */
	rosa_error error;
};

/* A zeroed one is empty. */
struct pack_batch {
	char *bytes;
	size_t used, room;
	struct pack_item *items;
	size_t count, items_room;
};

/* Adds an item with a copy of its bytes, which must be valid UTF-8 unless it is JSON. */
rosa_status pack_batch_add(struct pack_batch *batch, const struct pack_item *item, const char *bytes, rosa_error *err);

/* Fills in the tokens of all items, or their errors. `between` as in pool_run, with `context`. */
rosa_status pack_batch_encode(struct pack_batch *batch, const struct pack_rules *rules, rosa_workers *workers,
			      int (*between)(void *context), void *context, rosa_error *err);

void pack_batch_clear(struct pack_batch *batch);
void pack_batch_free(struct pack_batch *batch);
