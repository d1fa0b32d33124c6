/* Where the adapter is that a path means. */
#pragma once

#include "base/paths.h"
#include "rosatune.h"

/* What a run of `rosatune tune` leaves: OUT/checkpoints/step-00000100 and the like, and OUT/final at its end. */
#define RUN_CHECKPOINTS "checkpoints"
#define RUN_FINAL       "final"

/* `path` itself if it is an adapter folder. If it is the folder of a run: its final adapter, or the newest checkpoint
 * where that is newer (or there is no final one). */
rosa_status adapter_find(const char *path, struct path *found, rosa_error *err);
