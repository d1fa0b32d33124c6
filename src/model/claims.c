/*
 * Taking tensors out of a file by name and shape.
 *
 * A tensor that is not used is as wrong as one that is missing: a model whose biases are silently ignored still
 * answers, but wrongly. So each tensor that is taken is marked, and the caller can ask at the end whether any are left.
 */
#include "model/claims.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

rosa_status claims_new(struct claims *claims, const struct tensors *tensors, const char *where, rosa_error *err)
{
	*claims = (struct claims){tensors, where, calloc(tensors->count + 1, sizeof(bool))};
	if (!claims->taken)
		return rosa_fail(err, ROSA_ENOMEM, "%s: not enough memory for a list of %zu tensors", where,
				 tensors->count);
	return ROSA_OK;
}

void claims_free(struct claims *claims)
{
	free(claims->taken);
	memset(claims, 0, sizeof(*claims));
}

rosa_status claims_take(struct claims *claims, const char *name, size_t rows, size_t columns, bool optional,
			const struct tensor **tensor, rosa_error *err)
{
	const struct tensor *found = tensors_find(claims->tensors, name);
	const struct tensor wanted = {.dims = columns ? 2 : 1, .shape = {rows, columns}};
	char have[TENSOR_SHAPE_TEXT], want[TENSOR_SHAPE_TEXT];

	*tensor = found;
	if (!found && optional)
		return ROSA_OK;
	if (!found)
		return rosa_fail(err, ROSA_EFORMAT, "%s: the tensor %s is missing", claims->where, name);
	claims->taken[found - claims->tensors->all] = true;
	if (found->dims == wanted.dims && found->shape[0] == rows && (!columns || found->shape[1] == columns))
		return ROSA_OK;
	return rosa_fail(err, ROSA_EFORMAT, "%s: the tensor %s has shape %s; the configuration wants %s", found->file,
			 name, tensor_shape_text(found, have), tensor_shape_text(&wanted, want));
}

const struct tensor *claims_left(const struct claims *claims, bool (*harmless)(const char *name))
{
	for (size_t i = 0; i < claims->tensors->count; i++) {
		const struct tensor *tensor = &claims->tensors->all[i];
		if (!claims->taken[i] && !(harmless && harmless(tensor->name)))
			return tensor;
	}
	return NULL;
}
