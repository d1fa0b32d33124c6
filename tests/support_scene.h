/* Settings of the operator made by rule, and what the library computes for them. */
#pragma once

#include "support_operator.h"

/* One setting, its numbers, and the same in the library's form. */
struct scene {
	struct operator_case c;
	uint64_t seed;
	int kind; /* of the first route's streams */

	size_t routes; /* of all batch entries */
	size_t width;  /* of a row of the table */
	size_t runs;   /* rows of the table */
	uint16_t *query, *key, *value;
	double *q, *k, *v, *gy, *e0, *e1;
	void *q_rows, *k_rows, *v_rows, *gy_rows;
	float *e0_floats, *e1_floats;
	int32_t *tau, *table; /* the truth */
	char text[320];
};

/* A scene of default options, to be changed and then made. */
struct scene scene_start(uint64_t seed);
/* A small one with everything on; i % 4 is the rule. */
struct scene scene_usual(int i);
void scene_make(struct scene *scene);

/* What the library makes of it. */
enum { READ, FLIPS, Y, GQ, GK, GV, GE0, GE1, OUTPUTS };

extern const char *const output_names[OUTPUTS];

struct outputs {
	void *at[OUTPUTS];
	size_t bytes[OUTPUTS];
};

void outputs_make(const struct scene *scene, struct outputs *outputs);
rosa_read_pass pass_of(const struct scene *scene, const struct outputs *outputs);

/* The three parts, one after the other. */
rosa_status scene_run(const struct scene *scene, struct outputs *outputs, rosa_error *err);
/* The same with outputs made, and no failure. */
void scene_run_checked(const struct scene *scene, struct outputs *outputs);
void expect_same_outputs(const struct scene *scene, const struct outputs *a, const struct outputs *b);
