/*
 * A run on disk.
 *
 *     out/lock                             locked while a run is active
 *     out/log.jsonl                        see training_log.c
 *     out/checkpoints/step-00001234/       a checkpoint
 *     out/checkpoints/.writing-00001234/   one being written, or what a killed run left of it
 *     out/checkpoints/.removing-00001200/  one being removed
 *
 * A checkpoint is several files that are useless alone, so it is a folder. It is written under another name,
 * synchronised with the disk, and renamed. A rename happens or does not, even if the power fails, so a folder named
 * step-... was complete once. Later damage shows in the checksums in state.json, which ends with a checksum of itself.
 * The names tell which checkpoint is the newest; a file that told it could contradict them.
 *
 * A checkpoint is renamed before it is removed, so that half of one is never taken for a whole one.
 */
#include "train/run_folder.h"

#include "base/array.h"
#include "base/checksum.h"
#include "base/folders.h"
#include "base/json_text.h"
#include "base/mapping.h"
#include "base/paths.h"
#include "base/status.h"
#include "model/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE   "state.json"
#define VERSION 2 /* of the format of checkpoints; 1 had another checksum */

#define NO_MEMORY "%s: no memory for the names of files"

/* -------------------------------------------------------------------------------------------------------- names -- */

enum name_kind { NAME_STEP, NAME_WRITING, NAME_REMOVING, NAME_DAMAGED };

static const char *const prefixes[] = {"step-", ".writing-", ".removing-", "damaged-step-"};

/* The path of a checkpoint with a name of this kind. */
static struct path path_to(const struct run_folder *folder, enum name_kind kind, uint64_t step)
{
	char name[64];

	snprintf(name, sizeof(name), "%s%08" PRIu64, prefixes[kind], step);
	return path_join(folder->checkpoints.text, name);
}

/* Whether a name is of this kind; if so, *step is its step. */
static bool is_named(const char *name, enum name_kind kind, uint64_t *step)
{
	const size_t length = strlen(prefixes[kind]);
	uint64_t number = 0;

	if (strncmp(name, prefixes[kind], length) != 0 || strlen(name) < length + 8 || strlen(name) > length + 18)
		return false;
	for (name += length; *name; name++) {
		if (*name < '0' || *name > '9')
			return false;
		number = 10 * number + (uint64_t)(*name - '0');
	}
	*step = number;
	return true;
}

static int by_number(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The steps of all checkpoints with names of this kind, ascending, from malloc. False: no memory. */
static bool list(const struct run_folder *folder, enum name_kind kind, uint64_t **steps, size_t *count)
{
	DIR *directory = opendir(folder->checkpoints.text);
	struct dirent *entry;
	size_t room = 0;
	uint64_t step;

	*steps = NULL;
	*count = 0;
	while (directory && (entry = readdir(directory)) != NULL) {
		if (!is_named(entry->d_name, kind, &step))
			continue;
		if (!ARRAY_RESERVE(*steps, room, *count + 1)) {
			free(*steps);
			closedir(directory);
			return false;
		}
		(*steps)[(*count)++] = step;
	}
	if (directory)
		closedir(directory);
	if (*count)
		qsort(*steps, *count, sizeof(**steps), by_number);
	return true;
}

/* ------------------------------------------------------------------------------------------------------- folder -- */

/* Locks the folder. Without `make` a missing lock file is not made: then no other run has the folder. */
static rosa_status take_lock(struct run_folder *folder, bool make, rosa_error *err)
{
	const struct path path = path_join(folder->path.text, "lock");

	folder->lock = open(path.text, make ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666);
	if (folder->lock < 0)
		return make ? rosa_fail(err, ROSA_EIO, "cannot write %s: %s", path.text, strerror(errno)) : ROSA_OK;
	folder->locked = true;
	if (flock(folder->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return ROSA_OK; /* some file systems have no locks */
	return rosa_fail(err, ROSA_EIO, "%s: another run is writing there; wait for its end, or name another folder",
			 folder->path.text);
}

/* Removes what a killed run was writing or removing. */
static void sweep(const struct run_folder *folder)
{
	static const enum name_kind kinds[] = {NAME_WRITING, NAME_REMOVING};

	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		uint64_t *steps;
		size_t count;

		if (!list(folder, kinds[k], &steps, &count))
			continue;
		for (size_t i = 0; i < count; i++)
			folder_remove(path_to(folder, kinds[k], steps[i]).text);
		free(steps);
	}
}

static void name_folder(const char *path, struct run_folder *folder)
{
	*folder = (struct run_folder){.path = path_of(path), .checkpoints = path_join(path, "checkpoints")};
}

/* Whether the folder or, if it is missing, its nearest existing parent can be written to. */
static rosa_status check_writable(const char *path, rosa_error *err)
{
	struct path here = path_of(path);

	while (access(here.text, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR) && strcmp(here.text, ".") != 0)
		here = path_folder(here.text);
	if (access(here.text, F_OK) != 0)
		return rosa_fail(err, ROSA_EIO, "cannot make the folder %s: %s: %s", path, here.text, strerror(errno));
	if (!path_is_folder(here.text))
		return rosa_fail(err, ROSA_EIO, "cannot make the folder %s: %s is not a folder", path, here.text);
	if (access(here.text, W_OK | X_OK) != 0)
		return rosa_fail(err, ROSA_EIO, "cannot write to the folder %s: %s", here.text, strerror(errno));
	return ROSA_OK;
}

rosa_status run_folder_look(const char *path, struct run_folder *folder, rosa_error *err)
{
	rosa_status status;

	name_folder(path, folder);
	status = check_writable(folder->checkpoints.text, err);
	if (status == ROSA_OK)
		status = take_lock(folder, false, err);
	if (folder->locked) /* it was only to be tested */
		close(folder->lock);
	folder->locked = false;
	return status;
}

rosa_status run_folder_open(const char *path, struct run_folder *folder, rosa_error *err)
{
	rosa_status status;

	name_folder(path, folder);
	status = folder_make(folder->checkpoints.text, err);
	if (status == ROSA_OK)
		status = take_lock(folder, true, err);
	if (status == ROSA_OK)
		sweep(folder);
	else
		run_folder_close(folder);
	return status;
}

void run_folder_close(struct run_folder *folder)
{
	if (folder->locked)
		close(folder->lock);
	memset(folder, 0, sizeof(*folder));
}

struct path run_folder_checkpoint(const struct run_folder *folder, uint64_t step)
{
	return path_to(folder, NAME_STEP, step);
}

uint64_t run_folder_newest(const struct run_folder *folder)
{
	uint64_t *steps, newest = UINT64_MAX;
	size_t count;

	if (!list(folder, NAME_STEP, &steps, &count))
		return 0; /* there may be checkpoints, so no new run may begin here */
	if (count)
		newest = steps[count - 1];
	free(steps);
	return newest;
}

rosa_status run_folder_check_new(const struct run_folder *folder, rosa_error *err)
{
	if (run_folder_newest(folder) == UINT64_MAX)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EINVAL,
			 "%.180s: there are checkpoints; continue with --resume, or name another folder",
			 folder->checkpoints.text);
}

/* ------------------------------------------------------------------------------------------------------ writing -- */

rosa_status checkpoint_begin(struct checkpoint_writer *writer, struct run_folder *folder, uint64_t step,
			     rosa_error *err)
{
	const struct path path = path_to(folder, NAME_WRITING, step);

	*writer = (struct checkpoint_writer){.folder = folder, .step = step};
	folder_remove(path.text);
	if (mkdir(path.text, 0777) != 0)
		return rosa_fail(err, ROSA_EIO, "cannot make the folder %s: %s", path.text, strerror(errno));
	writer->path = path;
	return ROSA_OK;
}

rosa_status checkpoint_file_open(struct checkpoint_writer *writer, const char *name, struct file_writer *file,
				 rosa_error *err)
{
	const struct file_options options = {.durable = true, .sum = &writer->sum};
	const struct path path = path_join(writer->path.text, name);
	rosa_status status;

	*file = (struct file_writer)FILE_WRITER_INIT;
	checksum_begin(&writer->sum, 0);
	if (writer->count == CHECKPOINT_FILES || strlen(name) >= sizeof(writer->files[0].name))
		status = rosa_fail(err, ROSA_EINVAL, "%s: a checkpoint has no place for it", path.text);
	else
		status = file_create(file, path.text, &options, err);
	if (status == ROSA_OK)
		snprintf(writer->files[writer->count].name, sizeof(writer->files[0].name), "%s", name);
	return status;
}

rosa_status checkpoint_file_done(struct checkpoint_writer *writer, struct file_writer *file, rosa_status written,
				 rosa_error *err)
{
	rosa_status status = file_finish(file, written, err);

	if (status != ROSA_OK)
		return status;
	writer->files[writer->count].bytes = writer->sum.bytes;
	writer->files[writer->count++].checksum = checksum_value(&writer->sum);
	return ROSA_OK;
}

rosa_status checkpoint_file_save(struct checkpoint_writer *writer, const char *name, const void *data, size_t size,
				 rosa_error *err)
{
	struct file_writer file;
	rosa_status status = checkpoint_file_open(writer, name, &file, err);

	if (status == ROSA_OK)
		status = file_write(&file, data, size, err);
	return checkpoint_file_done(writer, &file, status, err);
}

/* The end of state.json: a checksum of all that comes before it. */
#define TAIL      ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n"
#define TAIL_SIZE (sizeof(",\n  \"checksum\": \"0123456789abcdef\"\n}\n") - 1)

static void write_state(const struct checkpoint_writer *writer, const struct run_state *state, struct json_text *text)
{
	json_text_add(text, "{\n  \"format\": %d,\n  \"rosatune_version\": \"%s\",\n", VERSION, rosa_version());
	json_text_add(text, "  \"step\": %" PRIu64 ",\n  \"stage\": %" PRIu64 ",\n  \"stage_step\": %" PRIu64 ",\n",
		      state->step, state->stage + 1, state->stage_step);
	json_text_add(text, "  \"tokens\": %" PRIu64 ",\n  \"seconds\": ", state->tokens);
	json_text_number(text, state->seconds);
	json_text_add(text,
		      ",\n  \"model\": \"%016" PRIx64 "\",\n  \"data\": \"%016" PRIx64
		      "\",\n  \"data_time\": \"%016" PRIx64 "\",\n  \"files\": {",
		      state->model, state->data, state->data_time);
	for (size_t i = 0; i < writer->count; i++) {
		const struct checkpoint_file *file = &writer->files[i];

		json_text_add(text, "%s\n    ", i ? "," : "");
		json_text_string(text, file->name);
		json_text_add(text, ": {\"bytes\": %" PRIu64 ", \"checksum\": \"%016" PRIx64 "\"}", file->bytes,
			      file->checksum);
	}
	json_text_add(text, "\n  }");
	if (!text->failed)
		json_text_add(text, TAIL, checksum_of(text->data, text->size));
}

static rosa_status save_state(struct checkpoint_writer *writer, const struct run_state *state, rosa_error *err)
{
	struct json_text text = {0};

	write_state(writer, state, &text);
	return json_text_save(&text, path_join(writer->path.text, STATE).text, &(struct file_options){.durable = true},
			      err);
}

/* Renames a checkpoint; one that is renamed to NAME_REMOVING is then removed. */
static rosa_status put_away(struct run_folder *folder, uint64_t step, enum name_kind as, rosa_error *err)
{
	const struct path old = run_folder_checkpoint(folder, step), new = path_to(folder, as, step);

	folder_remove(new.text);
	if (rename(old.text, new.text) != 0 && errno != ENOENT)
		return rosa_fail(err, ROSA_EIO, "cannot rename %s: %s", old.text, strerror(errno));
	if (as == NAME_REMOVING)
		folder_remove(new.text);
	return ROSA_OK;
}

rosa_status run_folder_keep(struct run_folder *folder, size_t keep, rosa_error *err)
{
	uint64_t *steps;
	size_t count;
	rosa_status status = ROSA_OK;

	if (!keep)
		return ROSA_OK;
	if (!list(folder, NAME_STEP, &steps, &count))
		return rosa_fail(err, ROSA_ENOMEM, NO_MEMORY, folder->path.text);
	for (size_t i = 0; i + keep < count && status == ROSA_OK; i++)
		status = put_away(folder, steps[i], NAME_REMOVING, err);
	free(steps);
	return status;
}

static rosa_status give_name(struct checkpoint_writer *writer, rosa_error *err)
{
	const struct path name = run_folder_checkpoint(writer->folder, writer->step);
	rosa_status status = ROSA_OK;

	if (path_is_folder(name.text)) /* this run was here before and was resumed from an earlier step */
		status = put_away(writer->folder, writer->step, NAME_REMOVING, err);
	if (status == ROSA_OK && rename(writer->path.text, name.text) != 0)
		status = rosa_fail(err, ROSA_EIO, "cannot give %s its name: %s", writer->path.text, strerror(errno));
	return status == ROSA_OK ? folder_sync(writer->folder->checkpoints.text, err) : status;
}

rosa_status checkpoint_commit(struct checkpoint_writer *writer, const struct run_state *state, size_t keep,
			      rosa_error *err)
{
	rosa_status status = save_state(writer, state, err);

	if (status == ROSA_OK)
		status = folder_sync(writer->path.text, err);
	if (status == ROSA_OK)
		status = give_name(writer, err);
	if (status != ROSA_OK) {
		checkpoint_abandon(writer);
		return status;
	}
	*writer->path.text = '\0';
	return run_folder_keep(writer->folder, keep, err);
}

void checkpoint_abandon(struct checkpoint_writer *writer)
{
	if (*writer->path.text)
		folder_remove(writer->path.text);
	*writer->path.text = '\0';
}

/* ------------------------------------------------------------------------------------------------------ reading -- */

/* Sixteen hexadecimal digits. */
static rosa_status get_hex(struct json object, const char *name, uint64_t *number, rosa_error *err)
{
	const char *text;
	char *end;
	rosa_status status = json_get_string(object, name, JSON_NEEDED, &text, err);

	if (status != ROSA_OK)
		return status;
	*number = strtoull(text, &end, 16);
	if (strlen(text) != 16 || *end)
		return json_refuse(json_find(object, name), err, "is not a checksum");
	return ROSA_OK;
}

static rosa_status get_count(struct json object, const char *name, uint64_t *number, rosa_error *err)
{
	size_t value = 0;
	rosa_status status = json_get_size(object, name, JSON_NEEDED, &value, err);

	*number = value;
	return status;
}

static rosa_status read_position(struct json root, struct run_state *state, rosa_error *err)
{
	const struct {
		const char *name;
		uint64_t *number;
	} counts[] = {{"step", &state->step},
		      {"stage", &state->stage},
		      {"stage_step", &state->stage_step},
		      {"tokens", &state->tokens}};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]) && status == ROSA_OK; i++)
		status = get_count(root, counts[i].name, counts[i].number, err);
	if (status == ROSA_OK)
		status = json_get_number(root, "seconds", JSON_NEEDED, &state->seconds, err);
	if (status == ROSA_OK)
		status = get_hex(root, "model", &state->model, err);
	if (status == ROSA_OK)
		status = get_hex(root, "data", &state->data, err);
	if (status == ROSA_OK)
		status = get_hex(root, "data_time", &state->data_time, err);
	if (status == ROSA_OK && state->stage == 0)
		return json_refuse(json_find(root, "stage"), err, "is 0; stages count from 1");
	state->stage--;
	return status;
}

static rosa_status read_files(struct json root, struct checkpoint_found *found, rosa_error *err)
{
	struct json files, value;
	struct json_walk walk = {0};
	const char *name;
	rosa_status status = json_get_object(root, "files", JSON_NEEDED, &files, err);

	while (status == ROSA_OK && json_next(files, &walk, &name, &value)) {
		struct checkpoint_file *file = &found->files[found->count];

		if (found->count == CHECKPOINT_FILES || strlen(name) >= sizeof(file->name) || strchr(name, '/'))
			return json_refuse(files, err, "has too many files, or one with a bad name (%.60s)", name);
		snprintf(file->name, sizeof(file->name), "%s", name);
		found->count++;
		status = get_count(value, "bytes", &file->bytes, err);
		if (status == ROSA_OK)
			status = get_hex(value, "checksum", &file->checksum, err);
	}
	return status;
}

/* Maps a file of a checkpoint. One that is missing is damage (ROSA_EFORMAT); one that cannot be opened is not. */
static rosa_status map_file(const char *path, struct mapping *mapping, rosa_error *err)
{
	struct stat about;

	if (lstat(path, &about) != 0 && errno == ENOENT)
		return rosa_fail(err, ROSA_EFORMAT, "%s: is missing", path);
	return mapping_open(mapping, path, err);
}

/* A checkpoint of another version is not damaged, and falling back to an older one would throw work away. Versions
 * differ in their checksums, so the version is read before the checksum is compared. */
static rosa_status check_version(const struct mapping *mapping, const char *path, bool *other, rosa_error *err)
{
	char begin[64] = "";
	unsigned version = VERSION;

	memcpy(begin, mapping->data, mapping->size < sizeof(begin) - 1 ? mapping->size : sizeof(begin) - 1);
	*other = sscanf(begin, "{ \"format\": %u", &version) == 1 && version != VERSION;
	if (!*other)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EFORMAT,
			 "%s: format: is %u; this is rosatune %s, which reads %d: resume with the version that wrote "
			 "it, or begin a new run",
			 path, version, rosa_version(), VERSION);
}

static rosa_status open_state(const char *path, struct checkpoint_found *found, bool *other, rosa_error *err)
{
	struct mapping mapping = {0};
	struct json root = {0};
	char tail[TAIL_SIZE + 1] = "";
	rosa_status status = map_file(path, &mapping, err);

	if (status != ROSA_OK)
		return status;
	status = check_version(&mapping, path, other, err);
	if (mapping.size > TAIL_SIZE)
		snprintf(tail, sizeof(tail), TAIL, checksum_of(mapping.data, mapping.size - TAIL_SIZE));
	if (status == ROSA_OK &&
	    (mapping.size <= TAIL_SIZE || memcmp(tail, mapping.data + mapping.size - TAIL_SIZE, TAIL_SIZE) != 0))
		status = rosa_fail(err, ROSA_EFORMAT, "%s: does not have the checksum it ends with", path);
	if (status == ROSA_OK)
		status = json_read((const char *)mapping.data, mapping.size, path, &root, err);
	if (status == ROSA_OK)
		status = read_position(root, &found->state, err);
	if (status == ROSA_OK)
		status = read_files(root, found, err);
	json_free(&root);
	mapping_close(&mapping);
	return status;
}

static rosa_status check_file(const char *folder, const struct checkpoint_file *file, rosa_error *err)
{
	const struct path path = path_join(folder, file->name);
	struct mapping mapping = {0};
	rosa_status status = map_file(path.text, &mapping, err);

	if (status == ROSA_OK && mapping.size != file->bytes)
		status = rosa_fail(err, ROSA_EFORMAT, "%s: has %zu bytes, %" PRIu64 " were written", path.text,
				   mapping.size, file->bytes);
	else if (status == ROSA_OK && checksum_of(mapping.data, mapping.size) != file->checksum)
		status = rosa_fail(err, ROSA_EFORMAT, "%s: is not what was written: its checksum differs", path.text);
	mapping_close(&mapping);
	return status;
}

/* Opens a checkpoint and checks its files. */
static rosa_status open_checkpoint(const struct run_folder *folder, uint64_t step, struct checkpoint_found *found,
				   bool *other, rosa_error *err)
{
	rosa_status status;

	*found = (struct checkpoint_found){.path = run_folder_checkpoint(folder, step)};
	status = open_state(path_join(found->path.text, STATE).text, found, other, err);
	for (size_t i = 0; i < found->count && status == ROSA_OK; i++)
		status = check_file(found->path.text, &found->files[i], err);
	if (status != ROSA_OK)
		*found = (struct checkpoint_found){0};
	return status;
}

rosa_status run_folder_latest(struct run_folder *folder, void (*note)(void *context, const char *message),
			      void *context, struct checkpoint_found *found, rosa_error *err)
{
	uint64_t *steps;
	size_t count;
	rosa_error error = {ROSA_OK, ""};
	bool other = false;
	rosa_status status = ROSA_OK;

	memset(found, 0, sizeof(*found));
	if (!list(folder, NAME_STEP, &steps, &count))
		return rosa_fail(err, ROSA_ENOMEM, NO_MEMORY, folder->path.text);
	for (size_t i = count; i-- > 0;) {
		status = open_checkpoint(folder, steps[i], found, &other, &error);
		/* One that could not be opened (no permission, no memory) may be whole. To fall back to an older one
		 * would throw work away. */
		if (status != ROSA_EFORMAT || other)
			break;
		if (note)
			note(context, error.message);
		/* The last one keeps its name, so that no new run begins here by mistake. Without the lock nothing is
		 * renamed. */
		if (i > 0 && folder->locked)
			put_away(folder, steps[i], NAME_DAMAGED, NULL);
	}
	free(steps);
	if (status == ROSA_EFORMAT && !other)
		return rosa_fail(err, status, "%s: none of its %zu checkpoints is whole; the last problem: %.120s",
				 folder->checkpoints.text, count, error.message);
	return status == ROSA_OK ? ROSA_OK : rosa_fail(err, status, "%s", error.message);
}

bool checkpoint_has(const struct checkpoint_found *found, const char *name)
{
	for (size_t i = 0; i < found->count; i++)
		if (strcmp(found->files[i].name, name) == 0)
			return true;
	return false;
}
