/* The sizes and kinds of activations that the operator takes, checked in one place. */
#include "rosa/pass.h"
#include "base/status.h"

rosa_status pass_check(rosa_dtype dtype, size_t batch, size_t steps, size_t channels, unsigned bits, rosa_error *err)
{
	if (dtype != ROSA_FLOAT32 && dtype != ROSA_BFLOAT16)
		return rosa_fail(err, ROSA_EINVAL,
				 "dtype is %d; the operator takes ROSA_FLOAT32 (%d) and ROSA_BFLOAT16 (%d)", (int)dtype,
				 ROSA_FLOAT32, ROSA_BFLOAT16);
	if (!batch || !steps || !channels)
		return rosa_fail(err, ROSA_EINVAL,
				 "batch %zu, %zu steps, %zu channels; there must be at least one of each", batch, steps,
				 channels);
	if (channels % bits)
		return rosa_fail(err, ROSA_EINVAL, "%zu channels are not a multiple of %u bits", channels, bits);
	if (steps > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "%zu steps; a stream holds at most %zu", steps, ROSA_MAX_STEPS);
	/* with room for a few floats a number in scratch */
	if (batch > SIZE_MAX / steps / channels / 64)
		return rosa_fail(err, ROSA_EINVAL, "batch %zu of %zu steps and %zu channels does not fit into memory",
				 batch, steps, channels);
	return ROSA_OK;
}
