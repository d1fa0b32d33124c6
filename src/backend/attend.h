/* Attention of some query steps over what a cache keeps, on a CPU. */
#pragma once

#include "backend/backend.h"
#include "base/cpu.h"
#include "base/pool.h"

/* Scratch memory for scores, for every worker. */
struct attend_scratch;

rosa_status attend_scratch_new(unsigned workers, struct attend_scratch **made, rosa_error *err);
void attend_scratch_free(struct attend_scratch *scratch); /* safe on NULL */

/* Make it large enough for a call of `steps` steps on this cache. */
rosa_status attend_scratch_reserve(struct attend_scratch *scratch, const struct kv_cache *cache, size_t steps,
				   rosa_error *err);

/* AVX2 is used with FMA only. AVX-512 and AVX2 give equal bits; without them there is no fused multiplication, and
 * results differ in their last bits. */
bool attend_isa_available(rosa_isa isa);

/* backend_ops.attend; cache and scratch must have been reserved. */
void attend(rosa_isa isa, struct pool *pool, struct attend_scratch *scratch, struct kv_cache *cache, size_t steps,
	    size_t heads, const float *q, const float *k, const float *v, float *y);
