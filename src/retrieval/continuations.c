/*
 * What followed a context: places of the last token and of the last two, each a list of steps, newest first.
 *
 * Retrieval proper answers with one place, the newest of the longest matches. Here many are wanted, to count what
 * followed them, and short matches will do. So each step keeps the step before it with the same token, and the one with
 * the same two tokens, and two hash tables keep the newest step of each. A look-up walks the two lists, at most 96
 * steps in all, and compares tokens directly; that bounds its cost by a constant. A step is
 * added to the lists only once it is older than the delay, so every list starts with an eligible step.
 *
 * Rewinding must remove steps from the lists. Steps before the new end can remain listed, because walks skip entries
 * younger than the delay. Otherwise the tables are built again, as they are when they grow. The running mean is kept
 * for every step.
 */
#include "base/memory.h"
#include "base/status.h"
#include "retrieval/rules.h"

#define REACH_TWO 64 /* places that share the last two tokens */
#define REACH_ONE 32 /* steps that are looked at for those that share only the last one */
#define PLACES    (REACH_TWO + REACH_ONE)
#define LONGEST   32 /* of a match */
#define ALIGNED   16 /* tokens that alignment looks at */
#define WHOLE     65535
#define NONE      (-1)

struct rosa_contexts {
	rosa_allocator allocator;
	size_t delay, steps;
	size_t listed;      /* steps 0 .. listed-1 are in the lists */
	size_t room;        /* of the arrays below */
	uint32_t *tokens;   /* [room] */
	int32_t *older[2];  /* [room]: the step before with the same token, or the same two; NONE */
	uint16_t *success;  /* [room]: after the step */
	size_t slots;       /* of each table, a power of two, more than twice the listed steps */
	int32_t *newest[2]; /* [slots]: hash tables; NONE: empty */
	uint32_t expected;  /* the first candidate of the last step, if `expects` */
	int expects;
};

struct place {
	uint32_t step;
	uint8_t length, alignment;
};

/* -------------------------------------------------------------------------------------------------------- lists -- */

/* The slot of the context that ends with step e: one token (order 0) or two. It may be empty. */
static size_t find_slot(const rosa_contexts *c, int order, size_t e)
{
	const uint32_t *x = c->tokens;
	uint64_t hash = x[e] * UINT64_C(0x9e3779b97f4a7c15);
	size_t slot;

	if (order)
		hash = (hash ^ x[e - 1]) * UINT64_C(0xd6e8feb86659fd93);
	for (slot = (size_t)(hash >> 20) & (c->slots - 1);; slot = (slot + 1) & (c->slots - 1)) {
		const int32_t there = c->newest[order][slot];

		if (there == NONE || (x[there] == x[e] && (!order || x[there - 1] == x[e - 1])))
			return slot;
	}
}

/* Steps enter the lists up to the one that step `last` may find. */
static void list_steps(rosa_contexts *c, size_t last)
{
	for (; c->listed + c->delay + 1 < last; c->listed++) {
		for (int order = 0; order < 2; order++) {
			if (order && !c->listed)
				continue; /* there are no two tokens */
			const size_t slot = find_slot(c, order, c->listed);

			c->older[order][c->listed] = c->newest[order][slot];
			c->newest[order][slot] = (int32_t)c->listed;
		}
	}
}

static void list_again(rosa_contexts *c)
{
	for (int order = 0; order < 2; order++)
		memset(c->newest[order], 0xff, c->slots * sizeof(int32_t)); /* NONE */
	c->listed = 0;
	if (c->steps)
		list_steps(c, c->steps - 1);
}

/* ------------------------------------------------------------------------------------------------------- search -- */

static struct place compare(const rosa_contexts *c, size_t t, size_t e)
{
	const uint32_t *x = c->tokens;
	struct place place = {(uint32_t)e, 0, 0};

	while (place.length < LONGEST && place.length <= e && x[e - place.length] == x[t - place.length])
		place.length++;
	place.alignment = place.length < ALIGNED ? place.length : ALIGNED;
	for (size_t back = place.length; back < ALIGNED && back <= e; back++)
		place.alignment = (uint8_t)(place.alignment + (x[e - back] == x[t - back]));
	return place;
}

/* Puts a place where it belongs: longest first, then newest. */
static void put(struct place *places, size_t count, struct place place)
{
	size_t at = count;

	while (at && (places[at - 1].length < place.length ||
		      (places[at - 1].length == place.length && places[at - 1].step < place.step))) {
		places[at] = places[at - 1];
		at--;
	}
	places[at] = place;
}

/* The first step of a list that step t may find. */
static int32_t list_begin(const rosa_contexts *c, int order, size_t t)
{
	int32_t e = c->newest[order][find_slot(c, order, t)];

	while (e != NONE && (size_t)e + c->delay + 1 >= t)
		e = c->older[order][e];
	return e;
}

static size_t find_places(const rosa_contexts *c, size_t t, struct place *places)
{
	const uint32_t *x = c->tokens;
	size_t count = 0, seen = 0;

	if (!c->slots)
		return 0;
	if (t)
		for (int32_t e = list_begin(c, 1, t); e != NONE && count < REACH_TWO; e = c->older[1][e], count++)
			put(places, count, compare(c, t, (size_t)e));
	for (int32_t e = list_begin(c, 0, t); e != NONE && seen < REACH_ONE; e = c->older[0][e], seen++) {
		if (t && e && x[e - 1] == x[t - 1])
			continue; /* the other list has it */
		put(places, count, compare(c, t, (size_t)e));
		count++;
	}
	return count;
}

static int is_among(const rosa_contexts *c, const struct place *places, size_t count, uint32_t token)
{
	for (size_t i = 0; i < count; i++)
		if (c->tokens[places[i].step + 1] == token)
			return 1;
	return 0;
}

static void search(const rosa_contexts *c, size_t t, rosa_continuation *found)
{
	struct place places[PLACES];
	const size_t count = find_places(c, t, places);

	memset(found, 0, sizeof(*found));
	found->places = (uint8_t)count;
	found->success = c->success[t];
	for (size_t i = 0, as_long = 0; i < count; i++) {
		const uint32_t token = c->tokens[places[i].step + 1];
		const uint8_t k = found->count;

		if (is_among(c, places, i, token))
			continue;
		found->different++;
		if (k == ROSA_CANDIDATES)
			continue;
		while (as_long < count && places[as_long].length >= places[i].length)
			as_long++;
		found->token[k] = token;
		found->place[k] = (int32_t)places[i].step + 1;
		found->length[k] = places[i].length;
		found->alignment[k] = places[i].alignment;
		found->as_long[k] = (uint8_t)as_long;
		for (size_t j = i; j < as_long; j++)
			found->followed_by[k] =
			    (uint8_t)(found->followed_by[k] + (c->tokens[places[j].step + 1] == token));
		found->count++;
	}
}

/* The state after step t: what is expected next. */
static void look(rosa_contexts *c, size_t t, rosa_continuation *found)
{
	search(c, t, found);
	c->expects = found->count > 0;
	c->expected = found->token[0];
}

/* -------------------------------------------------------------------------------------------------------- state -- */

rosa_status rosa_contexts_new(const rosa_options *options, rosa_contexts **made, rosa_error *err)
{
	struct route_rules rules;
	rosa_options full;
	rosa_contexts *c;
	rosa_status status;

	if (!options || !made)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", options ? "made" : "options");
	*made = NULL;
	status = rules_from_options(options, &full, &rules, err);
	if (status != ROSA_OK)
		return status;
	c = memory_resize(&full.allocator, NULL, sizeof(*c));
	if (!c)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the contexts of a text");
	*c = (rosa_contexts){.allocator = full.allocator, .delay = full.delay};
	*made = c;
	return ROSA_OK;
}

void rosa_contexts_free(rosa_contexts *c)
{
	if (!c)
		return;
	const rosa_allocator allocator = c->allocator;

	for (int order = 0; order < 2; order++) {
		memory_free(&allocator, c->older[order]);
		memory_free(&allocator, c->newest[order]);
	}
	memory_free(&allocator, c->tokens);
	memory_free(&allocator, c->success);
	memory_free(&allocator, c);
}

static rosa_status reserve(rosa_contexts *c, size_t steps, rosa_error *err)
{
	const size_t listed = steps > c->delay ? steps - c->delay : 0;
	size_t slots = c->slots ? c->slots : 64;

	if (steps > c->room) {
		size_t room[] = {c->room, c->room, c->room, c->room};

		if (!MEMORY_RESERVE(&c->allocator, c->tokens, room[0], steps) ||
		    !MEMORY_RESERVE(&c->allocator, c->success, room[1], steps) ||
		    !MEMORY_RESERVE(&c->allocator, c->older[0], room[2], steps) ||
		    !MEMORY_RESERVE(&c->allocator, c->older[1], room[3], steps))
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the contexts of %zu tokens", steps);
		c->room = room[0];
	}
	while (slots <= 2 * listed)
		slots *= 2;
	if (slots == c->slots)
		return ROSA_OK;
	int32_t *tables[2] = {NULL, NULL};

	for (int order = 0; order < 2; order++)
		tables[order] = memory_resize(&c->allocator, NULL, slots * sizeof(int32_t));
	if (!tables[0] || !tables[1]) {
		memory_free(&c->allocator, tables[0]);
		memory_free(&c->allocator, tables[1]);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the contexts of %zu tokens", steps);
	}
	for (int order = 0; order < 2; order++) {
		memory_free(&c->allocator, c->newest[order]);
		c->newest[order] = tables[order];
	}
	c->slots = slots;
	list_again(c);
	return ROSA_OK;
}

rosa_status rosa_contexts_push(rosa_contexts *c, size_t steps, const uint32_t *tokens, rosa_continuation *found,
			       rosa_error *err)
{
	rosa_continuation one;
	rosa_status status;

	if (!c || (steps && !tokens))
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", c ? "tokens" : "contexts");
	if (steps > ROSA_MAX_STEPS - c->steps)
		return rosa_fail(err, ROSA_EINVAL, "%zu tokens after %zu; a text has at most %zu", steps, c->steps,
				 ROSA_MAX_STEPS);
	status = reserve(c, c->steps + steps, err);
	if (status != ROSA_OK)
		return status;
	for (size_t i = 0; i < steps; i++) {
		const size_t t = c->steps++;
		const unsigned before = t ? c->success[t - 1] : 0;

		c->tokens[t] = tokens[i];
		c->success[t] = (uint16_t)(c->expects && c->expected == tokens[i] ? before + (WHOLE - before) / 32
										  : before - before / 32);
		list_steps(c, t);
		look(c, t, found ? &found[i] : &one);
	}
	return ROSA_OK;
}

rosa_status rosa_contexts_rewind(rosa_contexts *c, size_t steps, rosa_error *err)
{
	rosa_continuation found;

	if (!c)
		return rosa_fail(err, ROSA_EINVAL, "contexts is NULL");
	if (steps > c->steps)
		return rosa_fail(err, ROSA_EINVAL, "cannot go back to %zu tokens; there are %zu", steps, c->steps);
	if (steps == c->steps)
		return ROSA_OK;
	c->steps = steps;
	if (c->listed + 1 > steps) /* what follows a listed step must stay as it is */
		list_again(c);
	c->expects = 0;
	if (steps)
		look(c, steps - 1, &found);
	return ROSA_OK;
}

/* A copy of an array, with the room that it has. */
static void *copied(const rosa_contexts *c, const void *array, size_t size)
{
	void *copy = size ? memory_resize(&c->allocator, NULL, size) : NULL;

	if (copy)
		memcpy(copy, array, size);
	return copy;
}

rosa_status rosa_contexts_fork(const rosa_contexts *c, rosa_contexts **copy, rosa_error *err)
{
	rosa_contexts *fork;

	if (!c || !copy)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", c ? "copy" : "contexts");
	*copy = NULL;
	fork = memory_resize(&c->allocator, NULL, sizeof(*fork));
	if (!fork)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the contexts of a text");
	*fork = *c;
	fork->tokens = copied(c, c->tokens, c->room * sizeof(*c->tokens));
	fork->success = copied(c, c->success, c->room * sizeof(*c->success));
	for (int order = 0; order < 2; order++) {
		fork->older[order] = copied(c, c->older[order], c->room * sizeof(int32_t));
		fork->newest[order] = copied(c, c->newest[order], c->slots * sizeof(int32_t));
	}
	if ((c->room && (!fork->tokens || !fork->success || !fork->older[0] || !fork->older[1])) ||
	    (c->slots && (!fork->newest[0] || !fork->newest[1]))) {
		rosa_contexts_free(fork);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a copy of the contexts of %zu tokens", c->steps);
	}
	*copy = fork;
	return ROSA_OK;
}

size_t rosa_contexts_steps(const rosa_contexts *c)
{
	return c ? c->steps : 0;
}

uint64_t rosa_contexts_bytes(const rosa_contexts *c)
{
	return c ? sizeof(*c) + c->room * (sizeof(*c->tokens) + sizeof(*c->success) + 2 * sizeof(int32_t)) +
		       2 * c->slots * sizeof(int32_t)
		 : 0;
}
