/*
 * Sequences that go back, and second ones that continue from where another was.
 *
 * Everything a sequence keeps is a function of the tokens it has read, so both amount to cutting each part at the same
 * step. Keys and values that a window has dropped are gone; all else can be cut anywhere. Values that wait are made
 * first: then every part ends at the same step.
 */
#include "model/decoder_parts.h"

#include "base/status.h"

#include <stdlib.h>

size_t sequence_floor(const sequence *s)
{
	const decoder *d = s->decoder;
	size_t floor = 0;

	for (size_t i = 0; i < d->checkpoint->config.layers; i++) {
		const size_t here = d->backend->ops->cache_floor(d->backend, &s->caches[i]);

		floor = here > floor ? here : floor;
	}
	return floor;
}

static rosa_status check(const sequence *s, size_t steps, rosa_error *err)
{
	const size_t floor = sequence_floor(s);

	if (steps >= floor && steps <= s->steps)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EINVAL, "a sequence of %zu tokens can go back to %zu or more, not to %zu", s->steps,
			 floor, steps);
}

rosa_status sequence_rewind(sequence *s, size_t steps, rosa_error *err)
{
	const decoder *d = s->decoder;
	const size_t layers = d->checkpoint->config.layers;
	rosa_status status = check(s, steps, err);

	if (status != ROSA_OK)
		return status;
	status = sequence_settle(s, err);
	for (size_t i = 0; i < d->source_count && status == ROSA_OK; i++)
		if (source_is_shared(&d->sources[i]))
			status = finder_rewind(&s->finders[i], steps, err);
	for (size_t i = 0; i < layers && status == ROSA_OK; i++) {
		if (s->own && s->own[i].stream)
			status = finder_rewind(&s->own[i], steps, err);
		if (d->blocks[i].has_rosa)
			values_rewind(&s->values[i], steps);
		d->backend->ops->cache_rewind(d->backend, &s->caches[i], steps);
	}
	sequence_seen_rewind(s, steps);
	s->steps = steps;
	s->last_tau[0] = -1;
	return status;
}

/* Replaces an empty finder, if there is one, by a copy. */
static rosa_status fork_finder(const struct finder *from, size_t steps, struct finder *to, rosa_error *err)
{
	if (!from->stream)
		return ROSA_OK;
	finder_free(to);
	return finder_fork(from, steps, to, err);
}

static rosa_status fork_parts(const sequence *from, size_t steps, sequence *to, rosa_error *err)
{
	const decoder *d = from->decoder;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < d->checkpoint->config.layers && status == ROSA_OK; i++) {
		d->backend->ops->cache_free(d->backend, &to->caches[i]);
		status = d->backend->ops->cache_fork(d->backend, &from->caches[i], steps, &to->caches[i], err);
		if (status == ROSA_OK && from->own)
			status = fork_finder(&from->own[i], steps, &to->own[i], err);
		if (status == ROSA_OK && d->blocks[i].has_rosa) {
			values_free(&to->values[i]);
			status = values_fork(&from->values[i], steps, &to->values[i], err);
		}
	}
	for (size_t i = 0; i < d->source_count && status == ROSA_OK; i++)
		status = fork_finder(&from->finders[i], steps, &to->finders[i], err);
	if (status == ROSA_OK)
		status = sequence_seen_fork(from, steps, to, err);
	to->steps = steps;
	to->reads = from->reads;
	return status;
}

rosa_status sequence_fork(sequence *s, size_t steps, sequence **made, rosa_error *err)
{
	rosa_status status = check(s, steps, err);

	*made = NULL;
	if (status == ROSA_OK)
		status = sequence_settle(s, err);
	if (status == ROSA_OK)
		status = sequence_new(s->decoder, made, err);
	if (status != ROSA_OK)
		return status;
	status = fork_parts(s, steps, *made, err);
	if (status != ROSA_OK) {
		sequence_free(*made);
		*made = NULL;
	}
	return status;
}
