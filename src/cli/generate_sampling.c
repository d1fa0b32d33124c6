/*
 * How tokens are drawn.
 *
 * A text is continued with the likeliest tokens unless options say otherwise: the result is then a function of model
 * and text alone, which scripts rely on. In a chat that would fall into loops with most small models, so a chat draws,
 * as the model's makers advise or, where they say nothing, with values that are usual for chats. An explicit
 * --temperature 0 turns drawing off, and with it the default repetition penalty: who asks for the likeliest token wants
 * it unaltered.
 */
#include "cli/generate_sampling.h"

#include "model/generation_config.h"

static const struct generation_config text_defaults = {0, 0, 1, 0, 1}, chat_defaults = {0.6, 40, 0.9, 0, 1.05};

static float choose(float given, double advised, double otherwise)
{
	return given != NOT_SET ? given : (float)(advised >= 0 ? advised : otherwise);
}

bool sampling_choose(const struct sampling_args *args, bool chat, const struct checkpoint *checkpoint,
		     struct sampler_options *options, rosa_error *why)
{
	struct generation_config advised = {-1, -1, -1, -1, -1}, otherwise = text_defaults;

	if (chat && generation_config_read(checkpoint, &advised, why) != ROSA_OK)
		return false;
	if (chat && args->temperature != 0)
		otherwise = chat_defaults;
	/* What is advised for drawing does not fit the likeliest token. */
	if (args->temperature == 0)
		advised = (struct generation_config){-1, -1, -1, -1, -1};
	*options = (struct sampler_options){
	    .temperature = choose(args->temperature, advised.temperature, otherwise.temperature),
	    .top_k = args->top_k != NOT_GIVEN ? (size_t)args->top_k
					      : (size_t)(advised.top_k >= 0 ? advised.top_k : otherwise.top_k),
	    .top_p = choose(args->top_p, advised.top_p, otherwise.top_p),
	    .min_p = choose(args->min_p, advised.min_p, otherwise.min_p),
	    .repetition = choose(args->repetition, advised.repetition, otherwise.repetition),
	    .repeat_last = (size_t)args->repeat_last,
	    .seed = args->seed,
	};
	return true;
}
