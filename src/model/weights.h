/* The tensors of a model by their part in the decoder. */
#pragma once

#include "model/checkpoint.h"

/* Finds every part of the model among checkpoint->tensors, by the names that GGUF or Hugging Face give them, and checks
 * its shape against the configuration. Tensors without a part are refused but for those known to be harmless. */
rosa_status weights_bind(struct checkpoint *checkpoint, rosa_error *err);
