/* The backward pass of what a layer reads: e0, e1, the gains and v. */
#pragma once

#include "rosa/backward.h"
#include "rosa/lookup.h"
#include "rosa/strength.h"

/* Rows are [batch][steps][channels]. The reads are those of the sources in order, link by link. */
struct reads_pass {
	rosa_dtype dtype; /* of rows */
	size_t batch, steps, channels;
	size_t sources;
	const struct lookup *const *lookups; /* [sources] */
	const void *v;
	const void *gy;       /* of the sum of the reads */
	const float *e0, *e1; /* [links][channels] */
	const float *gain;    /* [rows][ROSA_GAINS]; NULL: 1 */
	float scale;
	rosa_v_grad v_grad;
	/* Overwritten; any may be NULL. */
	void *gv;
	float *ge0, *ge1, *ggain;
};

/* Fails if there is no memory (ROSA_ENOMEM) or a destination is out of range (ROSA_EINVAL). */
rosa_status grad_reads(const struct backward *call, const struct reads_pass *pass, rosa_error *err);
