/* Tensors taken out of a file by name and shape. */
#pragma once

#include "model/tensors.h"

/* Which tensors of a file have been taken. */
struct claims {
	const struct tensors *tensors;
	const char *where; /* the file or folder, for messages */
	bool *taken;       /* [tensors->count] */
};

rosa_status claims_new(struct claims *claims, const struct tensors *tensors, const char *where, rosa_error *err);
void claims_free(struct claims *claims); /* safe on a zeroed one */

/* The tensor of that name, which must be [rows][columns], or [rows] where columns is 0. Missing is an error, or NULL if
 * it is `optional`. */
rosa_status claims_take(struct claims *claims, const char *name, size_t rows, size_t columns, bool optional,
			const struct tensor **tensor, rosa_error *err);

/* The first tensor that was not taken and is not `harmless`; NULL: there is none. */
const struct tensor *claims_left(const struct claims *claims, bool (*harmless)(const char *name));
