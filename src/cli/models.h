/* What the commands that run a model have in common: their options, and the model opened from them. */
#ifndef ROSATUNE_MODELS_H
#define ROSATUNE_MODELS_H

#include "cli/args.h"
#include "model/decoder.h"
#include "model/pointer.h"
#include "cli/report.h"
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
	{.name = "model",                                                                                              \
	 .short_name = 'm',                                                                                            \
	 .kind = ARG_TEXT,                                                                                             \
	 .target = &(a)->model,                                                                                        \
	 .value = "PATH",                                                                                              \
	 .required = true,                                                                                             \
	 .help = "a .gguf file, or a folder with config.json and safetensors"},                                        \
	    {.name = "adapter",                                                                                        \
	     .kind = ARG_TEXT,                                                                                         \
	     .target = &(a)->adapter,                                                                                  \
	     .value = "DIR",                                                                                           \
	     .help = "a ROSA adapter for it: a run of rosatune tune, or a folder of save_adapter"},                    \
	    {.name = "window",                                                                                         \
	     .kind = ARG_SIZE,                                                                                         \
	     .target = &(a)->window,                                                                                   \
	     .value = "W",                                                                                             \
	     .max = ROSA_MAX_STEPS,                                                                                    \
	     .help = "attend to the last W positions (default: the adapter's; 0: to all)"},                            \
	    {.name = "sinks",                                                                                          \
	     .kind = ARG_SIZE,                                                                                         \
	     .target = &(a)->sinks,                                                                                    \
	     .value = "S",                                                                                             \
	     .max = ROSA_MAX_STEPS,                                                                                    \
	     .help = "and to the first S (default: the adapter's, or 0)"},                                             \
	    {.name = "global-layers",                                                                                  \
	     .kind = ARG_NUMBER,                                                                                       \
	     .target = &(a)->global_layers,                                                                            \
	     .value = "N",                                                                                             \
	     .max = UINT32_MAX,                                                                                        \
	     .help = "the first N layers attend to all (default: the adapter's, or 0)"},                               \
	    {.name = "chunk",                                                                                          \
	     .kind = ARG_SIZE,                                                                                         \
	     .target = &(a)->chunk,                                                                                    \
	     .value = "N",                                                                                             \
	     .min = 1,                                                                                                 \
	     .max = 65536,                                                                                             \
	     .help = "tokens computed at once while reading (default 256)"},                                           \
	{                                                                                                              \
		.name = "threads", .kind = ARG_NUMBER, .target = &(a)->threads, .value = "N", .max = 1024,             \
		.help = "worker threads (default 0: one per processor)"                                                \
	}

#define POINTER_NONE "none"

/* A row for commands that can use a pointer. */
#define POINTER_ARG(a)                                                                                                 \
	{                                                                                                              \
		.name = "pointer", .kind = ARG_TEXT, .target = &(a)->pointer, .value = "FILE|DIR|none",                \
		.help = "a pointer of 'rosatune pointer fit' (default: the one in the adapter's folder)"               \
	}

/* Rows for commands that score texts in pieces: a uint64_t and a bool. */
#define PIECE_ARGS(batch, lossy)                                                                                       \
	{.name = "batch",                                                                                              \
	 .kind = ARG_NUMBER,                                                                                           \
	 .target = (batch),                                                                                            \
	 .value = "B",                                                                                                 \
	 .min = 1,                                                                                                     \
	 .max = 65536,                                                                                                 \
	 .help = "pieces read at a time (default 1)"},                                                                 \
	{                                                                                                              \
		.name = "lossy", .kind = ARG_FLAG, .target = (lossy),                                                  \
		.help = "read bytes that are not UTF-8 as U+FFFD instead of refusing them"                             \
	}

/* A model ready to read. */
struct model {
	struct checkpoint checkpoint;
	struct adapter adapter;
	bool adapted; /* there is an adapter */
	struct pointer pointer;
	char *pointer_path; /* as given, or the adapter's folder; NULL: there is no pointer */
	struct decoder_options options;
	rosa_workers *workers;
	struct backend *backend;
	decoder *decoder;
};

/* Opens checkpoint, adapter, workers, backend and decoder, but no pointer. Attention that the arguments do not set is
 * the adapter's, or global. On failure nothing is left open. */
bool model_open(struct model *model, const struct model_args *args, rosa_error *why);
/* The same but for the decoder. */
bool model_open_files(struct model *model, const struct model_args *args, rosa_error *why);
void model_close(struct model *model); /* safe on a zeroed one */

/* The adapter that the arguments name. Prints a note where it was trained with another model. */
bool model_adapter(const struct model_args *args, const struct checkpoint *checkpoint, struct adapter *adapter,
		   rosa_error *why);

/* The pointer that the arguments name, or that lies in the adapter's folder, which is then said on stderr. The window
 * must be known (model->options). */
bool model_pointer(struct model *model, const struct model_args *args, rosa_error *why);

/* Prints a field of a JSON object that names it: , "pointer": "PATH" or null. */
void model_print_pointer(const struct model *model);

/* Attention as the arguments and the adapter (NULL: none) say. */
bool model_attention(const struct model_args *args, const struct checkpoint *checkpoint, const struct adapter *adapter,
		     struct decoder_options *options, rosa_error *why);

/* Prints a warning if a text of so many tokens is longer than the model was trained for and some attention sees more
 * than that. Returns whether it did. */
bool model_warn_length(const struct model *model, size_t tokens, const char *command);

/* Opens the tokenizer that came with the model. One with more tokens than the model has is refused. */
bool model_tokenizer(const struct model *model, tokenizer **made, rosa_error *why);

/* Appends the tokens of a text file (text_add_file), after the token that begins every text where the tokenizer has
 * one. `tokens` is empty before. */
bool model_encode_file(const tokenizer *tokenizer, const char *path, bool lossy, struct tokens *tokens,
		       rosa_error *why);

#endif
