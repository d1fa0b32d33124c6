/* The arguments of the operator's public functions, checked once so that nothing below has to ask. */
#pragma once

#include "rosatune.h"

/* A caller's rosa_learning, of any size, as a complete one; `given` NULL: the defaults. */
rosa_status learning_from_options(const rosa_learning *given, rosa_learning *full, rosa_error *err);

/* Can the operator take activations of this type and shape? */
rosa_status activations_check(rosa_dtype dtype, size_t batch, size_t steps, size_t channels, unsigned bits,
			      rosa_error *err);
