/* Documents, or pieces of them, that are turned into tokens side by side. */
#ifndef ROSATUNE_PACK_BATCH_H
#define ROSATUNE_PACK_BATCH_H

#include "train/answers.h"
#include "cli/report.h"

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
	bool begins, ends; /* the document does, with this piece */
	const char *file;  /* for messages */
	uint64_t line;     /* the last one of it */
	struct tokens tokens;
	uint8_t *counts; /* of a conversation; else NULL */
	bool bad;        /* then: (an item may be added as bad) */
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
bool pack_batch_add(struct pack_batch *batch, const struct pack_item *item, const char *bytes, rosa_error *why);

/* Fills in the tokens of all items, or what is wrong with them. `between` as pool_run has it, with `context`. */
bool pack_batch_encode(struct pack_batch *batch, const struct pack_rules *rules, rosa_workers *workers,
		       int (*between)(void *context), void *context, rosa_error *why);

void pack_batch_clear(struct pack_batch *batch);
void pack_batch_free(struct pack_batch *batch);

#endif
