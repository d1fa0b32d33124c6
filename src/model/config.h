/* The shape of a model, from either kind of description. Shared by the files that make a checkpoint. */
#pragma once

#include "model/checkpoint.h"

/* From the metadata of a GGUF file; `file` names it in messages. */
rosa_status config_from_gguf(const struct gguf *gguf, const char *file, struct model_config *config, rosa_error *err);

/* From a folder's config.json and, for the tokens that end a text, its generation_config.json where there is one. */
rosa_status config_from_folder(const char *folder, struct model_config *config, rosa_error *err);

/* --------------------------------------------------------------------------------------------- for both -- */

/* What a configuration is before anything is read. */
struct model_config config_blank(void);

/* One of `architectures` by name; others are refused. `field` is what the file calls it. */
rosa_status config_architecture(const char *file, const char *field, const char *name, size_t length,
				enum architecture *architecture, rosa_error *err);

/* A token that begins or ends a text. An id outside of the vocabulary is ignored. */
void config_set_bos(struct model_config *config, int64_t token);
void config_add_eos(struct model_config *config, int64_t token);

/* The final check: sizes are positive, bounded and consistent, and no number leads to an infinity or NaN. */
rosa_status config_check(const struct model_config *config, const char *file, rosa_error *err);
