/*
 * Results of tasks: one record for each example under each condition, kept as JSON lines.
 *
 * A file of results begins with a line of settings ({"settings": {...}}: model, window and all else that scores depend
 * on). Every line after it is a record, appended when its example is done. So a run that was stopped loses one example
 * at most, and goes on with the same file.
 */
#pragma once

#include "eval/recall.h"
#include "eval/tasks.h"

#include <stdio.h>

struct eval_record {
	const char *task;      /* in results->names */
	size_t example;        /* its number in the task, from 0 */
	uint64_t sum;          /* of its texts */
	const char *condition; /* in results->conditions */
	enum eval_metric metric;
	double score;  /* from 0 to 1 */
	double normed; /* of a choice: the score if log-probabilities are divided by the characters of continuations; or
			  NAN */
	double loss;   /* of a choice: -ln p(right continuation); or NAN */
	size_t length; /* 0: not known */
	double depth;  /* NAN: not known */
};

struct eval_results {
	struct eval_record *all;
	size_t count, room;
	char **names; /* of tasks, in the order of their first records */
	size_t name_count;
	char **conditions; /* those of recall_names first, in their order; then others as they came */
	size_t condition_count;
	char *settings; /* the JSON object; NULL: none was read */
};

/* Whether a condition may be called so: a line of a file and the title of a picture have to hold it. Beside those of
 * recall_names others may be named, of models that were arranged or trained elsewhere. */
bool condition_name_fits(const char *name);

/* What a record is written with, for those who want to see why. */
struct eval_detail {
	const char *answer;                  /* of a generation; NULL: none */
	const struct eval_strings *expected; /* likewise */
	const struct eval_strings *classes;  /* likewise; none: no classification */
	const double *logarithms;            /* of a choice: ln p of each continuation; NULL: none */
	size_t count;                        /* of them */
};

/* Copies the record; its names of the task and of the condition may go away then. */
rosa_status results_add(struct eval_results *results, const struct eval_record *record, rosa_error *err);
void results_free(struct eval_results *results); /* safe on a zeroed one */

/* Adds the records of a file; whatever is not a record is refused, naming file, line and field. A last line without its
 * end is what a killed run left, and is passed over. Several files may be added; the settings are those of the last.
 * *whole (may be NULL) is how many bytes of the file are whole lines. */
rosa_status results_read(struct eval_results *results, const char *path, const struct file_hooks *hooks,
			 uint64_t *whole, rosa_error *err);

/* Replaces *settings (NULL, or from malloc) by those in a line, which is JSON: what stands between the name of its
 * field and its last brace, as it is. `where` is for messages. */
rosa_status results_settings(const char *line, size_t size, const char *where, char **settings, rosa_error *err);

/* Appends the line of a record, or of settings (a JSON object), to a file opened for it. */
rosa_status results_write(FILE *file, const char *path, const struct eval_record *record,
			  const struct eval_detail *detail, rosa_error *err);
rosa_status results_write_settings(FILE *file, const char *path, const char *settings, rosa_error *err);
/* Whether a file is empty or begins as results do, even if it ends within its first line. results_read() also accepts
 * compressed files and files without a complete line; to those nothing may be appended. */
bool results_can_append(const char *path);

/* done[i] says whether example i < count of a task has its record under a condition. A record of another example with
 * the same number is refused. */
rosa_status results_done(const struct eval_results *results, const char *path, const struct eval_task *task,
			 const char *condition, bool *done, rosa_error *err);

/* Lengths are grouped by the power of two that they fill, 4096 for 2049 to 4096; depths by tenths, 0 to 9. */
size_t length_group(size_t length); /* 0: not known */
int depth_group(double depth);      /* -1: not known */

/* What belongs to one entry of a table. */
struct eval_group {
	const char *task, *condition;
	size_t length; /* a group; 0: all */
	int depth;     /* a group; -1: all */
};

/* Means over the records of a group, with their standard errors (the sample's deviation by the root of the number; NAN
 * for fewer than two). `normed` and `perplexity` are NAN where they do not apply. */
struct eval_summary {
	size_t count;
	enum eval_metric metric;
	double score, error, normed, normed_error, perplexity;
};
struct eval_summary results_summary(const struct eval_results *results, const struct eval_group *group);
