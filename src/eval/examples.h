/* An example under a condition: the tokens that are read, and the record of the result. */
#pragma once

#include "eval/choices.h"
#include "eval/results.h"

/* The tokens of a prompt. Of one with more than `most` (0: any number) the first and the last half of them, as
 * LongBench does. */
rosa_status example_prompt(const tokenizer *tokenizer, const struct eval_example *example, size_t most,
			   struct tokens *tokens, rosa_error *err);

/* The record of what a model answered, with its score. */
rosa_status example_answered(const struct eval_task *task, size_t i, const char *condition, const char *answer,
			     struct eval_record *record, rosa_error *err);
/* The record of a choice. */
struct eval_record example_chosen(const struct eval_task *task, size_t i, const char *condition,
				  const struct choice_result *result);
