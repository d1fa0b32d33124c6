/* From a caller's rosa_learning, of any size, to a full and checked one. */
#ifndef ROSATUNE_LEARNING_H
#define ROSATUNE_LEARNING_H

#include "rosatune.h"

/* `given` NULL: the defaults. */
rosa_status learning_from_options(const rosa_learning *given, rosa_learning *full, rosa_error *err);

#endif
