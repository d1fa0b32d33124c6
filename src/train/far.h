/* Which tokens of a text only a memory beyond the window can know: section 6b of the specification. */
#pragma once

#include "rosatune.h"

/* distance[t] is how many tokens before t the three tokens t-2, t-1, t last stood in that order; 0 if they never did.
 * The token at t is far for a window W if distance[t] >= W. */
rosa_status far_distances(const uint32_t *tokens, size_t count, uint32_t *distance, rosa_error *err);
