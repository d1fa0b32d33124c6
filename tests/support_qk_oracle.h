/* The rules by which q and k learn, computed the slow way in double precision: what the library is compared with. */
#pragma once

#include "rosatune.h"

/* One batch entry; rows are [steps][channels]. Of `learning` all but explore and seed is used. */
struct qk_case {
	rosa_learning learning;
	size_t steps, channels;
	int bits, fold;
	const double *q, *k;     /* a bit is 1 where the number is > 0 */
	const double *theta, *p; /* gy * (e1 - e0), and sigmoid(v) */
	const int32_t *flips;    /* ROSA_QK_FLIPS only: [query runs, route after route][bits + 1], from rosa_find */
};

/* Overwrites gq and gk, both [steps][channels]. */
void qk_oracle(const struct qk_case *c, double *gq, double *gk);
