/* The CPU backend on a given instruction set, for tests and measurements. */
#pragma once

#include "backend/backend.h"
#include "base/cpu.h"

/* Whether all of its operations run on this machine. AVX2 needs FMA and float16 conversion too. */
bool cpu_backend_available(rosa_isa isa);

/* cpu_backend_new with the instruction set given instead of the best available. AVX-512 and AVX2 give equal bits. */
rosa_status cpu_backend_new_on(rosa_isa isa, rosa_workers *workers, struct backend **backend, rosa_error *err);
