/*
 * The log of a run.
 *
 * A killed run has logged steps after its last checkpoint; when it is resumed, they are taken again. So the log is
 * first replaced by its lines up to the checkpoint, and has every step once. A line begins with its step, and nothing
 * else of it is read here.
 */
#include "train/training_log.h"

#include "base/file.h"
#include "base/json_text.h"
#include "base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether a line is complete and one of this log's; if so, *step is its step. */
static bool line_step(const char *line, ssize_t length, uint64_t *step)
{
	return length > 0 && line[length - 1] == '\n' && sscanf(line, "{\"step\": %" SCNu64 ",", step) == 1;
}

/* Copies the lines up to `step`. A missing log has none. */
static rosa_status copy_lines(const char *path, uint64_t step, struct file_writer *to, rosa_error *err)
{
	FILE *from = fopen(path, "r");
	char *line = NULL;
	size_t room = 0;
	uint64_t here;
	ssize_t length;
	rosa_status status = ROSA_OK;

	if (!from && errno != ENOENT)
		return rosa_fail(err, ROSA_EIO, "cannot read %s: %s", path, strerror(errno));
	while (from && status == ROSA_OK && (length = getline(&line, &room, from)) > 0) {
		if (line_step(line, length, &here) && here <= step)
			status = file_write(to, line, (size_t)length, err);
	}
	free(line);
	if (from)
		fclose(from);
	return status;
}

static rosa_status cut_back(const char *path, uint64_t step, rosa_error *err)
{
	struct file_writer file;
	struct stat about;
	rosa_status status;

	/* a pipe would block, and could not be read again after the next kill */
	if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
		return rosa_fail(err, ROSA_EIO, "cannot write %s: it is not a regular file; move it away", path);
	status = file_create(&file, path, &(struct file_options){.durable = true}, err);
	if (status == ROSA_OK && step > 0)
		status = copy_lines(path, step, &file, err);
	return file_finish(&file, status, err);
}

rosa_status training_log_open(struct training_log *log, const char *path, uint64_t step, rosa_error *err)
{
	rosa_status status;

	memset(log, 0, sizeof(*log));
	log->path = strdup(path);
	if (!log->path)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory to write it", path);
	status = cut_back(path, step, err);
	if (status == ROSA_OK) {
		log->file = fopen(path, "a");
		if (!log->file)
			status = rosa_fail(err, ROSA_EIO, "cannot write %s: %s", path, strerror(errno));
	}
	if (status != ROSA_OK)
		training_log_close(log);
	return status;
}

rosa_status training_log_add(struct training_log *log, const struct training_entry *entry, rosa_error *err)
{
	struct json_text line = {0};
	bool written;

	json_text_open(&line, NULL, '{');
	json_text_put_size(&line, "step", entry->step);
	json_text_put_string(&line, "stage", entry->stage);
	json_text_put_number(&line, "loss", entry->loss);
	json_text_put_number(&line, "rate", entry->rate);
	json_text_put_number(&line, "backbone_rate", entry->backbone_rate);
	json_text_put_number(&line, "grad_norm", entry->grad_norm);
	json_text_put_size(&line, "tokens", entry->tokens);
	json_text_put(&line, "seconds", "%.3f", entry->seconds);
	json_text_put(&line, "tokens_per_second", "%.1f", entry->tokens_per_second);
	if (entry->has_valid)
		json_text_put_number(&line, "valid_loss", entry->valid_loss);
	for (size_t i = 0; i < 3 && entry->has_valid; i++) {
		const struct {
			const char *name;
			double loss;
		} far[] = {{"far_loss", entry->far_loss},
			   {"far_random_loss", entry->far_random_loss},
			   {"far_off_loss", entry->far_off_loss}};

		if (!isnan(far[i].loss))
			json_text_put_number(&line, far[i].name, far[i].loss);
	}
	json_text_add(&line, "}\n");
	if (line.failed) {
		json_text_free(&line);
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for a line", log->path);
	}
	written = fwrite(line.data, 1, line.size, log->file) == line.size && fflush(log->file) == 0;
	json_text_free(&line);
	return written ? ROSA_OK : rosa_fail(err, ROSA_EIO, "error while writing %s: %s", log->path, strerror(errno));
}

rosa_status training_log_sync(struct training_log *log, rosa_error *err)
{
	if (fflush(log->file) == 0 && (fsync(fileno(log->file)) == 0 || errno == EINVAL || errno == EINTR))
		return ROSA_OK;
	return rosa_fail(err, ROSA_EIO, "error while writing %s: %s", log->path, strerror(errno));
}

void training_log_close(struct training_log *log)
{
	if (log->file)
		fclose(log->file);
	free(log->path);
	memset(log, 0, sizeof(*log));
}
