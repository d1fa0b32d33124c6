/*
 * The links of a chain of places: from a place that was found to the one that it had itself found.
 *
 * Where query and key are the same stream, what was found at the step before a place d is a place with the same symbols
 * before it, older than d. So further matches come from answers that are there already, without a further search.
 */
#pragma once

#include "rosatune.h"

/* A link: a place, and the length of its match. Place -1: the chain has ended, and the length is 0. */
struct link {
	int32_t place, length;
};

/* The link after another; `found` is what was found without delay at the step before its place. */
static inline struct link link_next(struct link link, struct link found)
{
	if (found.place < 0)
		return (struct link){-1, 0};
	return (struct link){found.place, found.length < link.length ? found.length : link.length};
}
