/* What the commands that run a model have in common: their options, and the model opened from them. */
#pragma once

#include "cli/args.h"
#include "cli/report.h"
#include "model/model.h"
#include "model/session.h"
#include "model/tokenizer.h"

/* Marks an option that was not given; no option accepts this value. */
#define NOT_GIVEN UINT64_MAX

struct model_args {
	const char *model, *adapter; /* paths; adapter NULL: none */
	uint64_t window, sinks, global_layers, chunk, threads;
	enum past_reads reads;
	const char *pointer; /* a file, a folder or POINTER_NONE; NULL: the adapter's, if it has one */
};

#define MODEL_ARGS_INIT                                                                                                \
	{                                                                                                              \
		NULL, NULL, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, 0, 0, READS_FOUND, NULL                                   \
	}

/* Rows of an option table for them. */
#define MODEL_ARGS(a)                                                                                                  \
	OPTION_TEXT("model", &(a)->model, "PATH", "a .gguf file, or a folder with config.json and safetensors",        \
		    .short_name = 'm', .required = true),                                                              \
	    OPTION_TEXT("adapter", &(a)->adapter, "DIR",                                                               \
			"a ROSA adapter for it: a run of rosatune tune, or a folder of save_adapter"),                 \
	    OPTION_SIZE("window", &(a)->window, "W", 0, ROSA_MAX_STEPS,                                                \
			"attend to the last W positions (default: the adapter's; 0: global attention)"),               \
	    OPTION_SIZE("sinks", &(a)->sinks, "S", 0, ROSA_MAX_STEPS,                                                  \
			"always attend to the first S positions too (default: the adapter's, or 0)"),                  \
	    OPTION_NUMBER("global-layers", &(a)->global_layers, "N", 0, UINT32_MAX,                                    \
			  "the first N layers have global attention (default: the adapter's, or 0)"),                  \
	    OPTION_SIZE("chunk", &(a)->chunk, "N", 1, 65536, "tokens computed at once while reading (default 256)"),   \
	    OPTION_NUMBER("threads", &(a)->threads, "N", 0, 1024, "worker threads (default 0: one per processor)")

#define POINTER_NONE "none"

/* A row for commands that can use a pointer. */
#define POINTER_ARG(a)                                                                                                 \
	OPTION_TEXT("pointer", &(a)->pointer, "FILE|DIR|none",                                                         \
		    "a pointer made by 'rosatune pointer fit' (default: the one in the adapter's folder)")

/* Rows for commands that score texts in pieces: a uint64_t and a bool. */
#define PIECE_ARGS(batch, lossy)                                                                                       \
	OPTION_NUMBER("batch", (batch), "B", 1, 65536, "pieces read at a time (default 1)"),                           \
	    OPTION_FLAG("lossy", (lossy), "read bytes that are not UTF-8 as U+FFFD instead of refusing them")

/* Opens checkpoint, adapter, workers, backend and decoder, but no pointer. Attention that the arguments do not set is
 * the adapter's, or global. On failure nothing is left open. */
bool model_open(struct model *model, const struct model_args *args, rosa_error *why);
/* The same but for the decoder. */
bool model_open_files(struct model *model, const struct model_args *args, rosa_error *why);

/* The pointer that the arguments name, or that lies in the adapter's folder, which is then said on stderr. The window
 * must be known (model->options). */
bool model_pointer(struct model *model, const struct model_args *args, rosa_error *why);

/* Prints a warning if a text of so many tokens is longer than the model was trained for and some attention sees more
 * than that. Returns whether it did. */
bool model_warn_length(const struct model *model, size_t tokens, const char *command);

/* The tokens of a text file (text_add_file), by tokenizer_encode_text. */
bool model_encode_file(const tokenizer *tokenizer, const char *path, bool lossy, struct tokens *tokens,
		       rosa_error *why);

/* What a session that is saved says of the model. Replaces what was there; to be freed also after a failure. */
bool model_settings(const struct model *model, struct session_settings *settings, rosa_error *why);
