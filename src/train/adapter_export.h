/* An adapter as it is used: without the optimiser, in bfloat16 or float32. */
#pragma once

#include "model/adapter.h"

/* Writes the adapter that `from` means (a folder or a run: adapter_find) to the folder `to`, which is made if need be,
 * with numbers of `format`: FORMAT_F32 or FORMAT_BF16. Where the backbone was trained too, the model beside the adapter
 * goes with it, tokenizer included. Without `replace` a folder that has an adapter is refused. */
rosa_status adapter_export(const char *from, const char *to, enum format format, bool replace, rosa_error *err);
