/*
 * The files that are packed.
 *
 * All of them are found before the first is read: a name that is not there is noticed at once and not after an hour,
 * and the bar knows how much there is. The order is that of the bytes of the names, folder by folder, which does not
 * depend on the machine, so that the same files give the same shards.
 */
#include "cli/pack_inputs.h"

#include "cli/interrupt.h"
#include "base/paths.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEEPEST 32 /* folders in folders; more is a link to itself */

static bool ends_with(const char *name, size_t length, const char *end)
{
	size_t end_length = strlen(end);

	return length >= end_length && strncmp(name + length - end_length, end, end_length) == 0;
}

static bool is_jsonl(const char *path)
{
	static const char *const packed[] = {".xz", ".zst", ".gz"}, *const lines[] = {".jsonl", ".ndjson", ".json"};
	size_t length = strlen(path);

	for (size_t i = 0; i < sizeof(packed) / sizeof(packed[0]); i++) {
		if (ends_with(path, length, packed[i])) {
			length -= strlen(packed[i]);
			break;
		}
	}
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		if (ends_with(path, length, lines[i]))
			return true;
	}
	return false;
}

static bool add_file(struct pack_inputs *inputs, const char *path, enum pack_format format, const struct stat *about,
		     rosa_error *why)
{
	struct pack_input input = {strdup(path), format == PACK_BY_NAME ? is_jsonl(path) : format == PACK_JSONL};

	if (inputs->count == inputs->room) {
		size_t room = 2 * inputs->room + 64;
		struct pack_input *larger = realloc(inputs->all, room * sizeof(*larger));
		if (larger) {
			inputs->all = larger;
			inputs->room = room;
		}
	}
	if (!input.path || inputs->count == inputs->room) {
		free(input.path);
		return refuse(why, "not enough memory for the names of %zu files", inputs->count + 1);
	}
	inputs->all[inputs->count++] = input;
	if (about && S_ISREG(about->st_mode))
		inputs->bytes += (uint64_t)about->st_size;
	else
		inputs->endless = true;
	return true;
}

static bool add(struct pack_inputs *inputs, const char *path, enum pack_format format, int depth, rosa_error *why);

static int visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **left, const struct dirent **right)
{
	return strcmp((*left)->d_name, (*right)->d_name);
}

static bool add_folder(struct pack_inputs *inputs, const char *path, enum pack_format format, int depth,
		       rosa_error *why)
{
	struct dirent **entries;
	int count = depth < DEEPEST ? scandir(path, &entries, visible, by_bytes) : -1;
	bool good = true;

	if (depth == DEEPEST)
		return refuse(why, "%s: more than %d folders in each other; is one a link to itself?", path, DEEPEST);
	if (count < 0)
		return refuse(why, "cannot open %s: %s", path, strerror(errno));
	for (int i = 0; i < count; i++) {
		char *name = good ? path_join(path, entries[i]->d_name) : NULL;
		if (good)
			good = name ? add(inputs, name, format, depth + 1, why) : refuse(why, "not enough memory");
		free(name);
		free(entries[i]);
	}
	free(entries);
	return good;
}

static bool add(struct pack_inputs *inputs, const char *path, enum pack_format format, int depth, rosa_error *why)
{
	struct stat about;

	if (interrupted())
		return refuse(why, "interrupted");
	if (strcmp(path, "-") == 0)
		return add_file(inputs, path, format, NULL, why);
	if (stat(path, &about) != 0)
		return refuse(why, "cannot open %s: %s", path, strerror(errno));
	if (S_ISDIR(about.st_mode))
		return add_folder(inputs, path, format, depth, why);
	if (depth > 0 && !S_ISREG(about.st_mode))
		return true; /* a pipe in a folder is not meant */
	return add_file(inputs, path, format, &about, why);
}

bool pack_inputs_add(struct pack_inputs *inputs, const char *path, enum pack_format format, rosa_error *why)
{
	size_t before = inputs->count;

	if (!add(inputs, path, format, 0, why))
		return false;
	return inputs->count > before || refuse(why, "%s: there are no files in it", path);
}

void pack_inputs_free(struct pack_inputs *inputs)
{
	for (size_t i = 0; i < inputs->count; i++)
		free(inputs->all[i].path);
	free(inputs->all);
	memset(inputs, 0, sizeof(*inputs));
}
