/* The arguments of the operator's public functions. */
#include "rosa/arguments.h"
#include "base/status.h"

#include <string.h>

static rosa_status check_share(const char *name, float value, int zero, rosa_error *err)
{
	/* written so that NaN fails too */
	if (!(value >= 0 && value <= 1) || (!zero && value == 0))
		return rosa_fail(err, ROSA_EINVAL, "learning.%s is %g; it is a share, %s 1", name, (double)value,
				 zero ? "from 0 to" : "above 0 and at most");
	return ROSA_OK;
}

static rosa_status check_choice(const char *name, int value, int last, rosa_error *err)
{
	if (value < 0 || value > last)
		return rosa_fail(err, ROSA_EINVAL, "learning.%s is %d; it is one of 0 to %d (see rosatune.h)", name,
				 value, last);
	return ROSA_OK;
}

rosa_status learning_from_options(const rosa_learning *given, rosa_learning *full, rosa_error *err)
{
	rosa_status status;

	*full = (rosa_learning)ROSA_LEARNING_INIT;
	if (!given)
		return ROSA_OK;
	if (given->size < offsetof(rosa_learning, qk_grad) + sizeof(given->qk_grad))
		return rosa_fail(err, ROSA_EINVAL,
				 "learning.size is %zu; start from ROSA_LEARNING_INIT, which sets it to %zu",
				 given->size, sizeof(*given));
	memcpy(full, given, given->size < sizeof(*full) ? given->size : sizeof(*full));
	status = check_choice("qk_grad", (int)full->qk_grad, ROSA_QK_NONE, err);
	if (!status)
		status = check_choice("credit", (int)full->credit, ROSA_CREDIT_ROUTE, err);
	if (!status)
		status = check_choice("key_credit", (int)full->key_credit, ROSA_KEY_DESTINATION, err);
	if (!status)
		status = check_choice("v_grad", (int)full->v_grad, ROSA_V_STRAIGHT, err);
	if (!status)
		status = check_share("explore", full->explore, 1, err);
	if (!status)
		status = check_share("flip_share", full->flip_share, 0, err);
	if (!status && !(full->slope > 0 && full->slope < 1e30f))
		status = rosa_fail(err, ROSA_EINVAL, "learning.slope is %g; it must be above 0", (double)full->slope);
	if (!status && !(full->suffix >= 0 && full->suffix < 1e30f))
		status =
		    rosa_fail(err, ROSA_EINVAL, "learning.suffix is %g; it must be 0 or more", (double)full->suffix);
	return status;
}

rosa_status activations_check(rosa_dtype dtype, size_t batch, size_t steps, size_t channels, unsigned bits,
			      rosa_error *err)
{
	if (dtype != ROSA_FLOAT32 && dtype != ROSA_BFLOAT16)
		return rosa_fail(err, ROSA_EINVAL,
				 "dtype is %d; the operator takes ROSA_FLOAT32 (%d) and ROSA_BFLOAT16 (%d)", (int)dtype,
				 ROSA_FLOAT32, ROSA_BFLOAT16);
	if (!batch || !steps || !channels)
		return rosa_fail(err, ROSA_EINVAL,
				 "batch %zu, %zu steps, %zu channels; there must be at least one of each", batch, steps,
				 channels);
	if (bits > ROSA_MAX_BITS)
		return rosa_fail(err, ROSA_EINVAL, "bits is %u; symbols made of channels have at most %d", bits,
				 ROSA_MAX_BITS);
	if (channels % bits)
		return rosa_fail(err, ROSA_EINVAL, "%zu channels are not a multiple of %u bits", channels, bits);
	if (steps > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "%zu steps; a stream holds at most %zu", steps, ROSA_MAX_STEPS);
	/* with room for a few floats per number in scratch memory */
	if (batch > SIZE_MAX / steps / channels / 64)
		return rosa_fail(err, ROSA_EINVAL, "batch %zu of %zu steps and %zu channels does not fit into memory",
				 batch, steps, channels);
	return ROSA_OK;
}
