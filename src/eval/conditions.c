/* Each condition has a decoder of its own over the same files, so nothing but the condition differs. */
#include "eval/conditions.h"

/* Whether the adapter takes no part. */
static bool is_plain(enum recall_condition condition)
{
	return condition == RECALL_GLOBAL || condition == RECALL_WINDOW || condition == RECALL_POINTER;
}

bool condition_applies(const struct model *model, enum recall_condition condition)
{
	const bool pointed = condition == RECALL_POINTER || condition == RECALL_BOTH;

	return (condition == RECALL_GLOBAL || model->options.window) && (!pointed || model->pointer_path) &&
	       (is_plain(condition) || model->adapted);
}

enum recall_condition condition_with_pointer(const struct model *model, enum recall_condition condition)
{
	if (!model->pointer_path || (condition != RECALL_WINDOW && condition != RECALL_ADAPTER))
		return RECALL_CONDITIONS;
	return condition == RECALL_WINDOW ? RECALL_POINTER : RECALL_BOTH;
}

rosa_status condition_decoder(const struct model *model, enum recall_condition condition, decoder **made,
			      rosa_error *err)
{
	struct decoder_options options = model->options;

	if (condition == RECALL_GLOBAL)
		options.window = options.sinks = options.first_global_layers = 0;
	options.reads = condition == RECALL_OFF      ? READS_NOTHING
			: condition == RECALL_RANDOM ? READS_RANDOM
						     : READS_FOUND;
	return model_decoder(model, !is_plain(condition), &options, made, err);
}
