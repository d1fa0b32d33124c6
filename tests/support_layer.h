/* A layer computed the slow way, in double precision, and the same layer as the library takes it. */
#pragma once

#include "support_operator.h"

#include <stdbool.h>

#define LAYER_READS 8 /* of a layer, at most */

enum { NORM, WQ, WK, WV, E0, E1, WOUT, A0, GAIN, GATE_W, GATE_B, WEIGHTS };

extern const char *const weight_names[WEIGHTS];

/* Whether wq and wk are apart, equal, or the same array. */
enum sharing { SEPARATE, ALIGNED, SHARED };

/* All rows are [batch * steps][channels]. */
struct layer_scene {
	/* Set by the caller, who begins with layer_start. */
	struct operator_case c;
	uint64_t seed;
	rosa_fusion fusion;
	enum sharing sharing;
	size_t sources;                       /* 0: the layer's own alone, which is then not listed */
	rosa_places places[ROSA_MAX_SOURCES]; /* routes and links; tau NULL: the layer's own */
	bool gain, gate;
	double scale;

	/* Made by layer_make. */
	bool listed;
	size_t links, rows, own; /* reads, rows of gain, the source that is the layer's own or `sources` */
	size_t routes[LAYER_READS];
	int32_t *tau[LAYER_READS], *length[LAYER_READS]; /* of each read, [batch * routes][steps] */
	int32_t *flips;                                  /* of the own source, as rosa_find lays them out */
	double *w[WEIGHTS], *h, *gout;
	double *u, *q, *k, *v;
	double margin; /* the least distance of q, k and v from where a bit or a slope changes */
	char text[320];

	/* The same for the library. */
	float *floats[WEIGHTS];
	void *h_rows, *gout_rows;
	rosa_places given[ROSA_MAX_SOURCES];
	rosa_layer layer;

	/* What oracle_layer_forward and oracle_layer_backward compute. */
	double *y, *z, *inj, *out;
	double *gh, *g[WEIGHTS];
};

struct layer_scene layer_start(uint64_t seed);
/* Draws inputs until no sign is a matter of rounding, and looks up what the own source finds. */
void layer_make(struct layer_scene *s);
size_t layer_weight_size(const struct layer_scene *s, int which);
size_t layer_row_bytes(const struct layer_scene *s);

void oracle_layer_forward(struct layer_scene *s);
void oracle_layer_backward(struct layer_scene *s);

/* What the library makes of a scene. Gradients are added to what is there: at first layer_before(start, i). */
struct layer_result {
	void *out, *gh;
	float *g[WEIGHTS];
	rosa_layer_grads grads;
};

float layer_before(float start, size_t i);
struct layer_result layer_result_make(const struct layer_scene *s, float start);
rosa_status layer_run_forward(const struct layer_scene *s, void *out, rosa_tape **tape, rosa_error *err);
struct layer_result layer_run(const struct layer_scene *s, float start);

/* Fails the test unless the library's result is that of the equations, within `limit` of its norm. */
void layer_compare(struct layer_scene *s, float start, double limit);
/* Fails the test unless two results have the same bits. */
void layer_expect_same(const struct layer_scene *s, const struct layer_result *a, const struct layer_result *b);
