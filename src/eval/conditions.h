/* What a model needs for the conditions under which it is measured, and the decoder of each. */
#pragma once

#include "eval/recall.h"
#include "model/model.h"

/* Whether a condition can be measured: it may need a window, an adapter or a pointer. */
bool condition_applies(const struct model *model, enum recall_condition condition);

/* What a condition becomes with the model's pointer, which needs no further reading; RECALL_CONDITIONS: it is not
 * measured with it. */
enum recall_condition condition_with_pointer(const struct model *model, enum recall_condition condition);

/* A decoder for a condition over the model's files. With a pointer it is that of the condition without. */
rosa_status condition_decoder(const struct model *model, enum recall_condition condition, decoder **made,
			      rosa_error *err);
