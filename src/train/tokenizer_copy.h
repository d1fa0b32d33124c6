/* The tokenizer of a GGUF model, for a folder that has its weights but not itself. */
#pragma once

#include "base/file.h"
#include "model/gguf.h"

/* Writes a GGUF file without tensors that has all of another's metadata that is about tokens; tokenizer_open reads it.
 */
rosa_status tokenizer_copy(const struct gguf *gguf, struct file_writer *file, rosa_error *err);
