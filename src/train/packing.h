/* Packing: texts into token shards. */
#pragma once

#include "train/pack_inputs.h"

#define PACKING_SHARD          UINT64_C(100000000) /* tokens per shard, unless said otherwise */
#define PACKING_SMALLEST_SHARD 16

/* What to pack and how. Texts may be NULL where it says so. */
struct packing {
	const char *model;   /* whose tokenizer: a GGUF file, a model's folder, or a tokenizer.json */
	const char *out;     /* a folder for shards, or one file NAME.tokens */
	char *const *inputs; /* files, folders, or "-" for standard input */
	size_t count;
	enum pack_format format;
	const char *field;     /* of a line of JSON that holds the text; NULL: "text", or "messages" with `chat` */
	bool chat;             /* lines of JSON are conversations, of which only the answers count */
	const char *end;       /* the token after every text; NULL: the model's end-of-text token */
	bool no_end;           /* no such token */
	bool special;          /* special tokens that are written out in texts are recognised */
	bool lossy;            /* bytes that are not UTF-8 are read as U+FFFD */
	bool replace;          /* shards that are there are replaced */
	uint64_t shard_tokens; /* per shard at most */
	int threads;           /* 0: one per processor */

	const struct file_hooks *hooks; /* NULL: none */
	void (*report)(void *context,
		       const char *message); /* of a line that cannot be used; NULL: it is only counted */
	rosa_progress progress; /* in kB of the inputs, of 0 if that is not known; not 0: give up. NULL: none */
	void *context;          /* for both */
};

struct packing_result {
	uint64_t documents, tokens, shards;
	uint64_t bad;   /* lines that could not be used */
	uint64_t empty; /* documents without a token, which are left out */
	int64_t end;    /* the token after every text; -1: none */
};

/* Either all shards are written, or nothing is. The counts of *result are valid after a failure, too. */
rosa_status packing_run(const struct packing *packing, struct packing_result *result, rosa_error *err);
