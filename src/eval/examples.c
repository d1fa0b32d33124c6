/* What a decoder here and a model elsewhere have in common: how an example is read, and how it is scored. */
#include "eval/examples.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

rosa_status example_prompt(const tokenizer *tokenizer, const struct eval_example *example, size_t most,
			   struct tokens *tokens, rosa_error *err)
{
	const size_t half = most / 2;
	rosa_status status = tokenizer_encode_text(tokenizer, example->prompt, strlen(example->prompt), tokens, err);

	if (status != ROSA_OK || !most || tokens->count <= most)
		return status;
	memmove(tokens->ids + half, tokens->ids + tokens->count - half, half * sizeof(*tokens->ids));
	tokens->count = 2 * half;
	return ROSA_OK;
}

static struct eval_record record_of(const struct eval_task *task, size_t i, const char *condition)
{
	const struct eval_example *example = &task->examples[i];

	return (struct eval_record){.task = task->name,
				    .example = i,
				    .sum = example->sum,
				    .condition = condition,
				    .metric = task->metric,
				    .normed = NAN,
				    .loss = NAN,
				    .length = example->length,
				    .depth = example->depth};
}

rosa_status example_answered(const struct eval_task *task, size_t i, const char *condition, const char *answer,
			     struct eval_record *record, rosa_error *err)
{
	const struct eval_example *example = &task->examples[i];
	char *line = task->first_line ? answer_line(answer) : NULL;
	rosa_status status;

	if (task->first_line && !line)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for an answer");
	*record = record_of(task, i, condition);
	status =
	    answer_score(task->metric, line ? line : answer, &example->answers, &example->classes, &record->score, err);
	free(line);
	return status;
}

struct eval_record example_chosen(const struct eval_task *task, size_t i, const char *condition,
				  const struct choice_result *result)
{
	const size_t gold = task->examples[i].gold;
	struct eval_record record = record_of(task, i, condition);

	record.score = task->metric == METRIC_WORD ? result->written : result->picked == gold;
	if (task->metric == METRIC_CHOICE)
		record.normed = result->picked_long == gold;
	record.loss = -result->logarithms[gold];
	return record;
}
