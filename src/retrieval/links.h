/*
 * The links of a chain of places: from a place that was found to the one that it had itself found.
 *
 * Where query and key are the same stream, what was found at the step before a place d is a place with the same symbols
 * before it, older than d. So further matches come from answers that are there already, without a further search.
 */
#pragma once

#include "rosatune.h"

/* A link: a place, and the length of its match. Place -1: the chain has ended, and the length is 0. */
struct chain_link {
	int32_t place, length;
};

/* The link after another; `found` is what was found without delay at the step before its place. */
static inline struct chain_link link_next(struct chain_link link, struct chain_link found)
{
	if (found.place < 0)
		return (struct chain_link){-1, 0};
	return (struct chain_link){found.place, found.length < link.length ? found.length : link.length};
}

/* One route: link i of step t goes to places[i * stride + t], and its length to lengths, which may be NULL along with
 * the lengths given. Link 0 is tau. tau0 and length0 are what was found without a delay at all steps of the route, of
 * which there are `history`. Returns `steps`, or the first step whose tau is not -1 and not from 1 to history - 1. */
size_t links_follow(int links, size_t steps, const int32_t *tau, const int32_t *length, size_t history,
		    const int32_t *tau0, const int32_t *length0, size_t stride, int32_t *places, int32_t *lengths);
