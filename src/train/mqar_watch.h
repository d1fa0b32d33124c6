/* What the adapters of a network do with examples of associative recall. */
#pragma once

#include "train/network.h"

/* Of one layer, over all examples looked at. Shares are from 0 to 1. */
struct mqar_layer {
	bool adapted; /* else the rest is 0 */
	double right; /* routes whose destination, where a value is asked for, is that value */
	double found; /* routes that found something there */
	/* of the layer's own q and k, 0 where it has none: */
	double meets;   /* routes whose query symbol there is the key symbol of the key asked for */
	double agree;   /* route-steps whose query and key symbols are equal */
	double queries; /* different query symbols in use, the mean over routes */
	double keys;    /* different key symbols likewise */
};

struct mqar_watch {
	size_t layers, routes;
	int bits;
	const int32_t *answer; /* of the batch that is being looked at */
	struct mqar_tally {
		uint64_t asked, right, meets, found, steps, agree;
		uint64_t *seen[2]; /* one bit per symbol, [routes][2^bits / 64 or 1]: queries, keys */
	} * tallies;
};

rosa_status mqar_watch_new(struct mqar_watch *watch, size_t layers, size_t width, int bits, rosa_error *err);
void mqar_watch_free(struct mqar_watch *watch); /* safe on a zeroed one */
void mqar_watch_clear(struct mqar_watch *watch);

/* A network_observer; the context is a struct mqar_watch. */
void mqar_watch_batch(void *context, const struct network_view *view);

void mqar_watch_layer(const struct mqar_watch *watch, size_t layer, struct mqar_layer *report);
