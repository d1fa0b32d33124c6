/* The files that are packed. */
#pragma once

#include "base/file.h"

/* What a file holds: one text, or a document in JSON on every line. */
enum pack_format { PACK_BY_NAME, PACK_TEXT, PACK_JSONL };

struct pack_input {
	char *path; /* "-": standard input */
	bool jsonl;
};

/* A zeroed one is empty. */
struct pack_inputs {
	struct pack_input *all;
	size_t count, room;
	uint64_t bytes; /* of all of them, as they are on the disk */
	bool endless;   /* one is a pipe, whose size is not known */
};

/* Adds a file, standard input, or all files of a folder and of those in it, by name; hidden ones are left out. By name,
 * *.jsonl, *.ndjson and *.json hold lines of JSON, also with .xz, .zst or .gz behind. `hooks` may be NULL. */
rosa_status pack_inputs_add(struct pack_inputs *inputs, const char *path, enum pack_format format,
			    const struct file_hooks *hooks, rosa_error *err);
void pack_inputs_free(struct pack_inputs *inputs);
