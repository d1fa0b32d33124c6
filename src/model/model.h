/* A model ready to read: its files, what it runs on, and a decoder. */
#pragma once

#include "model/decoder.h"
#include "model/pointer.h"

struct model {
	struct checkpoint checkpoint;
	struct adapter adapter;
	bool adapted; /* there is an adapter */
	struct pointer pointer;
	char *pointer_path; /* from malloc; NULL: there is no pointer */
	struct decoder_options options;
	rosa_workers *workers;
	struct backend *backend;
	decoder *decoder;
};

/* Opens checkpoint, adapter (NULL: none), workers and backend, but neither a pointer nor a decoder. The options are
 * settled (decoder_options_settle). On failure nothing is left open. */
rosa_status model_load(struct model *model, const char *path, const char *adapter,
		       const struct decoder_options *options, int threads, rosa_error *err);
void model_close(struct model *model); /* safe on a zeroed one */

/* A decoder over the model's files, with the adapter or without. */
rosa_status model_decoder(const struct model *model, bool adapted, const struct decoder_options *options,
			  decoder **made, rosa_error *err);
