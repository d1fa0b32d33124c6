/* Records in memory and as JSON lines; means over groups of them. */
#include "eval/results.h"

#include "base/array.h"
#include "base/json_text.h"
#include "base/status.h"
#include "train/pack_lines.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONDITION_BYTES ((size_t)40)      /* at most in its name */
#define SETTINGS        "{\"settings\": " /* how the first line of a file begins */

/* ---------------------------------------------------------------------------------------------------- in memory -- */

/* The results' own copy of a task's name, or NULL without memory. */
static const char *name_in(struct eval_results *results, const char *name)
{
	char **more;

	for (size_t i = results->name_count; i-- > 0;) {
		if (strcmp(results->names[i], name) == 0)
			return results->names[i];
	}
	more = realloc(results->names, (results->name_count + 1) * sizeof(*more));
	if (!more)
		return NULL;
	results->names = more;
	more[results->name_count] = strdup(name);
	return more[results->name_count] ? more[results->name_count++] : NULL;
}

/* The place of a name among those of recall_names; that after them for others. */
static size_t condition_rank(const char *name)
{
	size_t rank = 0;

	while (recall_names[rank] && strcmp(recall_names[rank], name) != 0)
		rank++;
	return rank;
}

/* The same of a condition. */
static const char *condition_in(struct eval_results *results, const char *name)
{
	const size_t rank = condition_rank(name);
	size_t place = results->condition_count;
	char **more;

	for (size_t i = 0; i < results->condition_count; i++) {
		if (strcmp(results->conditions[i], name) == 0)
			return results->conditions[i];
	}
	more = realloc(results->conditions, (results->condition_count + 1) * sizeof(*more));
	if (!more)
		return NULL;
	results->conditions = more;
	char *copy = strdup(name);
	if (!copy)
		return NULL;
	for (; place > 0 && condition_rank(more[place - 1]) > rank; place--)
		more[place] = more[place - 1];
	more[place] = copy;
	results->condition_count++;
	return copy;
}

bool condition_name_fits(const char *name)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 +-_.:()";
	const size_t size = strlen(name);

	return size > 0 && size <= CONDITION_BYTES && strspn(name, letters) == size;
}

rosa_status results_add(struct eval_results *results, const struct eval_record *record, rosa_error *err)
{
	const char *name = name_in(results, record->task);
	const char *condition = condition_in(results, record->condition);

	if (!name || !condition || !ARRAY_RESERVE(results->all, results->room, results->count + 1))
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu results", results->count + 1);
	results->all[results->count] = *record;
	results->all[results->count].condition = condition;
	results->all[results->count++].task = name;
	return ROSA_OK;
}

void results_free(struct eval_results *results)
{
	for (size_t i = 0; i < results->name_count; i++)
		free(results->names[i]);
	free(results->names);
	for (size_t i = 0; i < results->condition_count; i++)
		free(results->conditions[i]);
	free(results->conditions);
	free(results->all);
	free(results->settings);
	memset(results, 0, sizeof(*results));
}

rosa_status results_done(const struct eval_results *results, const char *path, const struct eval_task *task,
			 const char *condition, bool *done, rosa_error *err)
{
	memset(done, 0, task->count * sizeof(*done));
	for (size_t i = 0; i < results->count; i++) {
		const struct eval_record *record = &results->all[i];

		if (record->example >= task->count || strcmp(record->condition, condition) != 0 ||
		    strcmp(record->task, task->name) != 0)
			continue;
		if (record->sum != task->examples[record->example].sum || record->metric != task->metric)
			return rosa_fail(err, ROSA_EINVAL,
					 "%s: example %zu of %s was another one, or scored in another way; "
					 "write to another file",
					 path, record->example, task->name);
		done[record->example] = true;
	}
	return ROSA_OK;
}

/* ------------------------------------------------------------------------------------------------------ reading -- */

/* A word of a list by its number. */
static rosa_status get_word(struct json line, const char *field, const char *const *words, int *place, rosa_error *err)
{
	const char *word;
	rosa_status status = json_get_string(line, field, JSON_NEEDED, &word, err);

	if (status != ROSA_OK)
		return status;
	for (*place = 0; words[*place]; ++*place) {
		if (strcmp(words[*place], word) == 0)
			return ROSA_OK;
	}
	return json_refuse(json_find(line, field), err, "is \"%s\", which is not known", word);
}

/* An optional number from `least` to `most`; *value stays where it is missing. */
static rosa_status get_number(struct json line, const char *field, double least, double most, double *value,
			      rosa_error *err)
{
	rosa_status status = json_get_number(line, field, JSON_OPTIONAL, value, err);

	if (status == ROSA_OK && (*value < least || *value > most))
		return json_refuse(json_find(line, field), err, "is %g; it must be from %g to %g", *value, least, most);
	return status;
}

static rosa_status get_sum(struct json line, uint64_t *sum, rosa_error *err)
{
	const char *digits;
	int used = 0;
	rosa_status status = json_get_string(line, "sum", JSON_NEEDED, &digits, err);

	if (status != ROSA_OK)
		return status;
	if (strlen(digits) != 16 || strspn(digits, "0123456789abcdef") != 16 ||
	    sscanf(digits, "%" SCNx64 "%n", sum, &used) != 1)
		return json_refuse(json_find(line, "sum"), err, "is not 16 hexadecimal digits");
	return ROSA_OK;
}

static rosa_status read_record(struct eval_results *results, struct json line, rosa_error *err)
{
	struct eval_record record = {.score = NAN, .normed = NAN, .loss = NAN, .depth = NAN};
	int metric = 0;
	rosa_status status = json_get_string(line, "task", JSON_NEEDED, &record.task, err);

	if (status == ROSA_OK)
		status = json_get_size(line, "example", JSON_NEEDED, &record.example, err);
	if (status == ROSA_OK)
		status = get_sum(line, &record.sum, err);
	if (status == ROSA_OK)
		status = json_get_string(line, "condition", JSON_NEEDED, &record.condition, err);
	if (status == ROSA_OK && !condition_name_fits(record.condition))
		status = json_refuse(json_find(line, "condition"), err, "is no name of a condition");
	if (status == ROSA_OK)
		status = get_word(line, "metric", eval_metric_names, &metric, err);
	if (status == ROSA_OK)
		status = get_number(line, "score", 0, 1, &record.score, err);
	if (status == ROSA_OK && isnan(record.score))
		status = json_refuse(line, err, "has no field score");
	if (status == ROSA_OK)
		status = get_number(line, "normed", 0, 1, &record.normed, err);
	if (status == ROSA_OK)
		status = get_number(line, "loss", -1e-6, 1e9, &record.loss, err);
	if (status == ROSA_OK)
		status = json_get_size(line, "length", JSON_OPTIONAL, &record.length, err);
	if (status == ROSA_OK)
		status = get_number(line, "depth", 0, 1, &record.depth, err);
	record.metric = (enum eval_metric)metric;
	return status == ROSA_OK ? results_add(results, &record, err) : status;
}

rosa_status results_settings(const char *line, size_t size, const char *where, char **settings, rosa_error *err)
{
	static const char before[] = "{\"settings\": ";
	const size_t begin = sizeof(before) - 1;
	char *copy;

	while (size > 0 && line[size - 1] != '}')
		size--;
	if (size <= begin || strncmp(line, before, begin) != 0)
		return rosa_fail(err, ROSA_EFORMAT, "%s: settings: begin in another way than this program's", where);
	copy = strndup(line + begin, size - 1 - begin);
	if (!copy)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for settings", where);
	free(*settings);
	*settings = copy;
	return ROSA_OK;
}

static rosa_status read_line(struct eval_results *results, const char *line, size_t size, const char *path,
			     uint64_t number, rosa_error *err)
{
	char where[512];
	struct json root = {0};
	rosa_status status;

	if (pack_line_blank(line, size))
		return ROSA_OK;
	snprintf(where, sizeof(where), "%.480s:%llu", path, (unsigned long long)number);
	status = json_read(line, size, where, &root, err);
	if (status == ROSA_OK && json_there(json_find(root, "settings")))
		status = results_settings(line, size, where, &results->settings, err);
	else if (status == ROSA_OK)
		status = read_record(results, root, err);
	json_free(&root);
	return status;
}

rosa_status results_read(struct eval_results *results, const char *path, const struct file_hooks *hooks,
			 uint64_t *whole, rosa_error *err)
{
	struct pack_lines lines;
	const char *line = NULL;
	uint64_t bytes = 0;
	size_t size = 0;
	rosa_status status = pack_lines_open(&lines, path, hooks, err);

	while (status == ROSA_OK) {
		status = pack_lines_next(&lines, &line, &size, err);
		if (status != ROSA_OK || !line || line[size - 1] != '\n')
			break;
		bytes += size;
		status = read_line(results, line, size, path, lines.number, err);
	}
	pack_lines_close(&lines);
	if (whole)
		*whole = bytes;
	return status;
}

/* ------------------------------------------------------------------------------------------------------ writing -- */

static rosa_status write_line(FILE *file, const char *path, struct json_text *line, rosa_error *err)
{
	const bool failed = line->failed;
	const bool written = !failed && fwrite(line->data, 1, line->size, file) == line->size && fflush(file) == 0;

	json_text_free(line);
	if (failed)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for a line", path);
	return written ? ROSA_OK : rosa_fail(err, ROSA_EIO, "error while writing %s: %s", path, strerror(errno));
}

rosa_status results_write_settings(FILE *file, const char *path, const char *settings, rosa_error *err)
{
	struct json_text line = {0};

	json_text_add(&line, SETTINGS "%s}\n", settings);
	return write_line(file, path, &line, err);
}

bool results_can_append(const char *path)
{
	char begin[sizeof(SETTINGS) - 1];
	FILE *file = fopen(path, "r");
	const size_t size = file ? fread(begin, 1, sizeof(begin), file) : 0;

	if (file)
		fclose(file);
	return memcmp(begin, SETTINGS, size) == 0;
}

static void add_number(struct json_text *line, const char *name, double number)
{
	if (!isnan(number))
		json_text_put_number(line, name, number);
}

static void add_strings(struct json_text *line, const char *name, const struct eval_strings *strings)
{
	json_text_open(line, name, '[');
	for (size_t i = 0; i < strings->count; i++)
		json_text_put_string(line, NULL, strings->all[i]);
	json_text_close(line, ']');
}

rosa_status results_write(FILE *file, const char *path, const struct eval_record *record,
			  const struct eval_detail *detail, rosa_error *err)
{
	struct json_text line = {0};

	json_text_open(&line, NULL, '{');
	json_text_put_string(&line, "task", record->task);
	json_text_put_size(&line, "example", record->example);
	json_text_put(&line, "sum", "\"%016" PRIx64 "\"", record->sum);
	json_text_put_string(&line, "condition", record->condition);
	json_text_put_string(&line, "metric", eval_metric_names[record->metric]);
	add_number(&line, "score", record->score);
	add_number(&line, "normed", record->normed);
	add_number(&line, "loss", record->loss);
	if (record->length)
		json_text_put_size(&line, "length", record->length);
	add_number(&line, "depth", record->depth);
	if (detail->answer) {
		json_text_put_string(&line, "answer", detail->answer);
		add_strings(&line, "expected", detail->expected);
		if (detail->classes->count)
			add_strings(&line, "all_classes", detail->classes);
	}
	if (detail->count) {
		json_text_open(&line, "logarithms", '[');
		for (size_t i = 0; i < detail->count; i++)
			json_text_put_number(&line, NULL, detail->logarithms[i]);
		json_text_close(&line, ']');
	}
	json_text_add(&line, "}\n");
	return write_line(file, path, &line, err);
}

/* -------------------------------------------------------------------------------------------------------- means -- */

size_t length_group(size_t length)
{
	size_t group = length ? 1 : 0;

	while (group < length && group <= SIZE_MAX / 2)
		group *= 2;
	return group;
}

int depth_group(double depth)
{
	return isnan(depth) ? -1 : depth >= 1 ? 9 : (int)(10 * depth);
}

struct sums {
	double sum, squares;
	size_t count;
};

static void add(struct sums *sums, double value)
{
	sums->sum += value;
	sums->squares += value * value;
	sums->count++;
}

static double mean(const struct sums *sums)
{
	return sums->count ? sums->sum / (double)sums->count : NAN;
}

static double error(const struct sums *sums)
{
	const double count = (double)sums->count, variance = (sums->squares - sums->sum * mean(sums)) / (count - 1);

	return sums->count < 2 ? NAN : sqrt((variance > 0 ? variance : 0) / count);
}

struct eval_summary results_summary(const struct eval_results *results, const struct eval_group *group)
{
	struct eval_summary summary = {.metric = METRICS};
	struct sums score = {0}, normed = {0}, loss = {0};

	for (size_t i = 0; i < results->count; i++) {
		const struct eval_record *record = &results->all[i];

		if (strcmp(record->condition, group->condition) != 0 || strcmp(record->task, group->task) != 0 ||
		    (group->length && length_group(record->length) != group->length) ||
		    (group->depth >= 0 && depth_group(record->depth) != group->depth))
			continue;
		summary.metric = record->metric;
		add(&score, record->score);
		if (!isnan(record->normed))
			add(&normed, record->normed);
		if (!isnan(record->loss))
			add(&loss, record->loss);
	}
	summary.count = score.count;
	summary.score = mean(&score);
	summary.error = error(&score);
	summary.normed = mean(&normed);
	summary.normed_error = error(&normed);
	summary.perplexity = summary.metric == METRIC_WORD ? exp(mean(&loss)) : NAN;
	return summary;
}
