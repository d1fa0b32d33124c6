/* The paths of shards. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* Whether a file of this name is a shard: NAME.tokens, and not hidden. */
bool shard_name(const char *name);

struct shard_names {
	char **all; /* paths */
	size_t count, room;
};

/* Adds the path of a shard, or those of all shards in a folder, sorted by name. A folder without shards is refused. */
rosa_status shard_names_add(struct shard_names *names, const char *path, rosa_error *err);
void shard_names_free(struct shard_names *names); /* safe on a zeroed one */
