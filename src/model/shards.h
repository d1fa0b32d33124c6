/* The safetensors files of a Hugging Face folder. */
#pragma once

#include "model/checkpoint.h"

/* Room for the names, mappings and headers of so many files, all empty. */
rosa_status shards_make_room(struct checkpoint *checkpoint, size_t count, rosa_error *err);

/* Opens one safetensors file, or the one or several that the folder has. */
rosa_status shards_open_file(struct checkpoint *checkpoint, const char *path, rosa_error *err);
rosa_status shards_open_folder(struct checkpoint *checkpoint, const char *folder, rosa_error *err);
