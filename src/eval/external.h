/*
 * Tasks for an external model, which runs on another machine or in another program.
 *
 * `eval --prepare` writes the prompts as token ids, and `eval --answers` reads token ids or log-probabilities, so that
 * the other side needs nothing but the model: tasks, tokenizer, scores and results stay here. Both files have one JSON
 * object on every line.
 *
 * Prompts begin with {"prompts": {"vocabulary", "ends": [...], "pieces": [...]}}: the tokens that end an answer, and
 * the bytes of every token, each written as the character of that number, so that answers can be read. The
 * lines after it have "task", "example", "sum" and "metric" of a record, perhaps "length" and "depth", and
 *
 *     "tokens", "ids": [...], "expected"      a prompt, how many tokens its answer has at most, what is expected
 *     "first": [...], "texts": [[...], ...]   a choice: each continuation after its context, and its first token
 *
 * Answers begin with {"settings": {...}}, which become those of the results, and have lines with "task", "example",
 * "sum", "condition", and
 *
 *     "ids": [...]                            the answer
 *     "logarithms": [...], "written"          ln p of each continuation; whether each token of the first is likeliest
 */
#pragma once

#include "eval/examples.h"
#include "model/answer.h"

/* Appends the first line of prompts, and the lines of a task. */
rosa_status external_write_head(struct file_writer *file, const struct model_config *config, const tokenizer *tokenizer,
				rosa_error *err);
rosa_status external_write_task(struct file_writer *file, const struct eval_task *task, const tokenizer *tokenizer,
				size_t prompt_tokens, rosa_error *err);

/* How answers computed outside this program are scored. */
struct external {
	const struct eval_task *tasks;
	size_t count;
	struct answer *answer; /* open, with what ends an answer */
	/* Both are called in the order of the lines, and refuse by returning a status. */
	rosa_status (*settings)(void *context, const char *settings, rosa_error *err);
	rosa_status (*take)(void *context, const struct eval_task *task, const struct eval_record *record,
			    const struct eval_detail *detail, rosa_error *err);
	void *context;
};

/* Reads a file of answers, which may be compressed. Lines of unknown tasks are ignored, as is a truncated last line; an
 * example whose checksum differs from ours is an error. */
rosa_status external_read(const char *path, const struct file_hooks *hooks, const struct external *external,
			  rosa_error *err);

/* The same for one line; `where` is for messages, *begun whether a line with settings was there. */
rosa_status external_read_line(const struct external *external, const char *line, size_t size, const char *where,
			       bool *begun, rosa_error *err);
