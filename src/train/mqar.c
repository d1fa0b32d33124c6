/*
 * Examples of associative recall.
 *
 *     k1 v1 k2 v2 ... kP vP   .  . k2 .  . .  k7 .  k1 ...
 *                                  v2         v7    v1        what is asked for
 *
 * The recipe is Zoology's. Keys and values are drawn without repetition, from different halves of the vocabulary. What
 * follows the pairs is cut into slots as long as a pair; each key is asked for once, at the beginning of a slot, and
 * which slots they are is drawn without repetition too, slot g (from 0) with a chance in proportion to
 * (g + 1)^(power - 1). The value itself does not follow the query: it would be one more place to read it from.
 *
 * Drawing without repetition by such weights is a race: slot g arrives after a time that is exponential with the rate
 * of its weight, and the first P to arrive are those that one draw after the other would have given, in that order.
 * Keys and values are the first so many of a random permutation, and then the tokens that are none of the example's
 * keys are the rest of it, so that a filler without keys needs no search.
 *
 * An example is a function of its number: nothing has to be kept or shuffled, and every mode and every thread sees the
 * same ones. Where keys have second names, one permutation of the task gives them, the same in all examples; otherwise
 * there would be nothing to learn.
 */
#include "train/mqar.h"

#include "base/draw.h"
#include "train/permutation.h"
#include "base/status.h"

#include <math.h>

/* What is drawn, each from numbers of its own. */
enum { DRAW_KEYS, DRAW_VALUES, DRAW_SLOTS, DRAW_FILLER, DRAW_NAMES };

/* ----------------------------------------------------------------------------------------------------- the words -- */

struct mqar_words mqar_words(const struct mqar *task)
{
	struct mqar_words words = {.names = task->names, .slot = task->name_tokens + 1};
	const size_t kinds = task->rename ? 2 : 1;
	size_t i;

	if (!words.names && task->vocabulary)
		words.names = task->rename ? (task->vocabulary - 1) / 3 : task->vocabulary / 2 - 1;
	words.first_value = 1 + kinds * words.names;
	/* stop once the product is large enough, so that it cannot overflow */
	for (words.keys = words.names, i = 1; i < task->name_tokens && words.keys < UINT32_MAX; i++)
		words.keys *= words.names;
	words.context = words.slot * task->pairs;
	words.places = task->length > words.context ? (task->length - words.context) / words.slot : 0;
	return words;
}

rosa_status mqar_check(const struct mqar *task, rosa_error *err)
{
	struct mqar_words words;

	if (task->name_tokens < 1 || task->name_tokens > MQAR_NAME_TOKENS)
		return rosa_fail(err, ROSA_EINVAL, "names of %zu tokens: use 1 to %d", task->name_tokens,
				 MQAR_NAME_TOKENS);
	if (task->vocabulary < 4 || task->vocabulary > UINT32_MAX / 2)
		return rosa_fail(err, ROSA_EINVAL, "a vocabulary of %zu: use 4 to 2147483647", task->vocabulary);
	if (task->names > UINT32_MAX / 4)
		return rosa_fail(err, ROSA_EINVAL, "%zu names do not fit a vocabulary", task->names);
	if (!task->pairs)
		return rosa_fail(err, ROSA_EINVAL, "0 pairs: use 1 or more");
	if (task->length > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "a length of %zu: the most is %zu", task->length,
				 (size_t)ROSA_MAX_STEPS);
	if (!(task->power > 0 && task->power <= 1))
		return rosa_fail(err, ROSA_EINVAL, "the power of gaps is %g; it must be above 0 and at most 1",
				 task->power);
	words = mqar_words(task);
	if (task->pairs > task->length || words.places < task->pairs)
		return rosa_fail(err, ROSA_EINVAL,
				 "%zu pairs and as many queries do not fit a length of %zu: it takes at least %zu",
				 task->pairs, task->length, 2 * words.context);
	if (words.keys < task->pairs)
		return rosa_fail(err, ROSA_EINVAL, "%zu pairs need as many keys, and there are %zu: use more %s",
				 task->pairs, words.keys, task->names ? "names" : "vocabulary");
	if (words.first_value + task->pairs > task->vocabulary)
		return rosa_fail(err, ROSA_EINVAL,
				 "%zu names leave no %zu values in a vocabulary of %zu: use more of it, or fewer names",
				 words.names, task->pairs, task->vocabulary);
	return ROSA_OK;
}

uint32_t mqar_second_name(const struct mqar *task, uint32_t token)
{
	const struct mqar_words words = mqar_words(task);

	if (!task->rename)
		return token;
	return (uint32_t)(1 + words.names +
			  permutation_place(draw_long(task->seed, DRAW_NAMES, 0), words.names, token - 1));
}

/* ------------------------------------------------------------------------------------------------------ examples -- */

/* An example in the making. */
struct example {
	const struct mqar *task;
	struct mqar_words words;
	uint64_t keys, values, slots, filler; /* what its draws begin with */
};

static void put_name(const struct example *e, size_t pair, bool query, uint32_t *to)
{
	uint64_t key = permutation_place(e->keys, e->words.keys, pair);

	for (size_t i = 0; i < e->task->name_tokens; i++, key /= e->words.names) {
		const uint32_t part = (uint32_t)(1 + key % e->words.names);

		to[i] = query ? mqar_second_name(e->task, part) : part;
	}
}

static uint32_t value_of(const struct example *e, size_t pair)
{
	const uint64_t values = e->task->vocabulary - e->words.first_value;

	return (uint32_t)(e->words.first_value + permutation_place(e->values, values, pair));
}

/* A token that is no name of a key of this example. Of names that are several tokens, none is taken. */
static uint32_t without_keys(const struct example *e, uint64_t random)
{
	const struct mqar_words *w = &e->words;
	const size_t kinds = e->task->rename ? 2 : 1;
	const size_t unused = e->task->name_tokens == 1 ? w->names - e->task->pairs : 0;
	const uint64_t others = e->task->vocabulary - kinds * w->names, r = random % (others + kinds * unused);

	if (r >= others) {
		const uint64_t place = e->task->pairs + (r - others) % unused;
		const uint32_t name = (uint32_t)(1 + permutation_place(e->keys, w->keys, place));

		return r - others < unused ? name : mqar_second_name(e->task, name);
	}
	return r == 0 ? 0 : (uint32_t)(w->first_value - 1 + r);
}

static uint32_t filler(const struct example *e, size_t t)
{
	const uint64_t random = draw_long(e->filler, 0, t);

	if (e->task->filler == MQAR_NONE)
		return 0;
	return e->task->filler == MQAR_RANDOM ? (uint32_t)(random % e->task->vocabulary) : without_keys(e, random);
}

/* When each slot arrives. */
static void race(const struct example *e, float *times)
{
	for (size_t g = 0; g < e->words.places; g++) {
		const double random = ((double)(draw_long(e->slots, 0, g) >> 11) + 0.5) / 9007199254740992.0;

		times[g] = (float)(-log(random) * pow((double)(g + 1), 1 - e->task->power));
	}
}

/* Returns the place with the smallest arrival time, and removes it. */
static size_t arrive(size_t places, float *times)
{
	size_t first = 0;

	for (size_t g = 1; g < places; g++)
		if (times[g] < times[first])
			first = g;
	times[first] = INFINITY;
	return first;
}

void mqar_example(const struct mqar *task, uint64_t n, uint32_t *tokens, uint32_t *targets, float *weight,
		  int32_t *answer)
{
	const struct example e = {.task = task,
				  .words = mqar_words(task),
				  .keys = draw_long(task->seed, DRAW_KEYS, n + 1),
				  .values = draw_long(task->seed, DRAW_VALUES, n + 1),
				  .slots = draw_long(task->seed, DRAW_SLOTS, n + 1),
				  .filler = draw_long(task->seed, DRAW_FILLER, n + 1)};
	const size_t slot = e.words.slot, size = task->name_tokens;

	for (size_t t = 0; t < task->length; t++) {
		tokens[t] = filler(&e, t);
		targets[t] = 0;
		if (answer)
			answer[t] = -1;
	}
	race(&e, weight); /* which has room for it, and is not in use yet */
	for (size_t i = 0; i < task->pairs; i++) {
		const size_t first = e.words.context + slot * arrive(e.words.places, weight), asked = first + size - 1;

		put_name(&e, i, false, tokens + slot * i);
		tokens[slot * i + size] = value_of(&e, i);
		put_name(&e, i, true, tokens + first);
		targets[asked] = value_of(&e, i);
		if (answer)
			answer[asked] = (int32_t)(slot * i + size);
	}
	/* No target is 0 where one is asked for: values are from above the names. */
	for (size_t t = 0; t < task->length; t++)
		weight[t] = targets[t] != 0;
}
