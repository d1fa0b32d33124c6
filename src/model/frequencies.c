/*
 * Rotary frequencies.
 *
 * Pair i rotates by base^(-2i/size) radians per position. transformers computes this in float32, and the rounding error
 * is multiplied by the position: at position 100,000 one bit is a hundredth of a radian in the first pairs. So the same
 * operations are done here in the same precision.
 *
 * Llama 3 slows down the slow pairs: a pair whose wavelength is above a multiple of the old context rotates `factor`
 * times slower, one with a short wavelength is unchanged, and between the two it is interpolated.
 */
#include "model/checkpoint.h"

#include <math.h>

#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif

static float stretch(const struct model_config *config, float frequency)
{
	float factor = (float)config->rope_factor, low = (float)config->rope_low, high = (float)config->rope_high;
	float context = (float)config->rope_context;
	float wave = (float)(2 * M_PI) / frequency, share;

	if (wave > (float)(config->rope_context / config->rope_low))
		return frequency / factor;
	if (wave < (float)(config->rope_context / config->rope_high))
		return frequency;
	share = (context / wave - low) / (high - low);
	return (1 - share) * frequency / factor + share * frequency;
}

void checkpoint_frequencies(const struct checkpoint *checkpoint, float *frequencies)
{
	const struct model_config *config = &checkpoint->config;
	const float *factors = checkpoint->rope_factors ? checkpoint->rope_factors->data : NULL;

	for (size_t i = 0; i < config->head_size / 2; i++) {
		/* pow in double precision, rounded once, equals a correctly rounded powf */
		float exponent = (float)(2 * i) / (float)config->head_size;
		float frequency = 1 / (float)pow((float)config->rope_base, exponent);

		if (config->rope_scaling == ROPE_LINEAR)
			frequency /= (float)config->rope_factor;
		else if (config->rope_scaling == ROPE_LLAMA3)
			frequency = stretch(config, frequency);
		if (factors)
			frequency /= factors[i];
		frequencies[i] = frequency;
	}
}
