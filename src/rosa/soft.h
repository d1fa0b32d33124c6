/* The rule `soft` with the instruction set named by the caller, for the tests to try every variant. */
#pragma once

#include "base/cpu.h"
#include "rosa/backward.h"

/* grad_qk_soft, its rows made by a variant that is available here. */
rosa_status grad_qk_soft_with(rosa_isa isa, const struct backward *call, rosa_error *err);
