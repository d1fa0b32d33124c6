/*
 * Parameters: one list, in the order in which they were added.
 *
 * Checkpoints and sums over processes use this order, so it must depend on the model alone. Every parameter has its own
 * memory: a model is loaded once, and frozen parameters need neither gradients nor moments.
 */
#include "train/parameters.h"

#include "base/array.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rosa_status parameters_add(struct parameters *parameters, const char *name, int dims, const size_t *shape, bool vector,
			   enum parameter_group group, float **place, rosa_error *err)
{
	struct parameter *parameter;

	if (!ARRAY_RESERVE(parameters->all, parameters->room, parameters->count + 1))
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu parameters", parameters->count + 1);
	parameter = &parameters->all[parameters->count];
	*parameter = (struct parameter){.dims = dims, .count = 1, .group = group, .vector = vector, .pace = 1};
	snprintf(parameter->name, sizeof(parameter->name), "%s", name);
	for (int i = 0; i < dims; i++) {
		parameter->shape[i] = shape[i];
		parameter->count *= shape[i];
	}
	parameter->value = parameters->backend->ops->take(parameters->backend, parameter->count * sizeof(float));
	if (!parameter->value)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %s (%zu numbers)", name, parameter->count);
	*place = parameter->value;
	parameters->count++;
	return ROSA_OK;
}

static rosa_status take_cleared(struct parameters *parameters, const struct parameter *parameter, float **place,
				rosa_error *err)
{
	struct backend *backend = parameters->backend;

	if (!*place)
		*place = backend->ops->take(backend, parameter->count * sizeof(float));
	if (!*place)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to train %s (%zu numbers)", parameter->name,
				 parameter->count);
	backend->ops->training->clear(backend, parameter->count, *place);
	return ROSA_OK;
}

static void give(struct parameters *parameters, float **place)
{
	parameters->backend->ops->give(parameters->backend, *place);
	*place = NULL;
}

void parameters_freeze(struct parameters *parameters, struct parameter *parameter)
{
	parameter->trained = false;
	give(parameters, &parameter->grad);
	give(parameters, &parameter->first);
	give(parameters, &parameter->second);
}

rosa_status parameters_train(struct parameters *parameters, bool backbone, bool adapter, rosa_error *err)
{
	for (size_t i = 0; i < parameters->count; i++) {
		struct parameter *parameter = &parameters->all[i];
		float **places[] = {&parameter->grad, &parameter->first, &parameter->second};

		parameter->trained = parameter->group == ADAPTER ? adapter : backbone;
		if (!parameter->trained)
			parameters_freeze(parameters, parameter);
		for (int j = 0; j < 3 && parameter->trained; j++) {
			rosa_status status = take_cleared(parameters, parameter, places[j], err);

			if (status != ROSA_OK)
				return status;
		}
	}
	return ROSA_OK;
}

void parameters_free(struct parameters *parameters)
{
	for (size_t i = 0; i < parameters->count; i++) {
		struct parameter *parameter = &parameters->all[i];

		give(parameters, &parameter->value);
		give(parameters, &parameter->grad);
		give(parameters, &parameter->first);
		give(parameters, &parameter->second);
	}
	free(parameters->all);
	memset(parameters, 0, sizeof(*parameters));
}

struct parameter *parameters_find(const struct parameters *parameters, const char *name)
{
	for (size_t i = 0; i < parameters->count; i++)
		if (strcmp(parameters->all[i].name, name) == 0)
			return &parameters->all[i];
	return NULL;
}

void parameters_clear_gradients(struct parameters *parameters)
{
	for (size_t i = 0; i < parameters->count; i++)
		if (parameters->all[i].grad)
			parameters->backend->ops->training->clear(parameters->backend, parameters->all[i].count,
								  parameters->all[i].grad);
}

double parameters_gradient_norm(const struct parameters *parameters)
{
	double sum = 0;

	for (size_t i = 0; i < parameters->count; i++)
		if (parameters->all[i].grad)
			sum += parameters->backend->ops->training->square_sum(
			    parameters->backend, parameters->all[i].count, parameters->all[i].grad);
	return sqrt(sum);
}

void parameters_step(struct parameters *parameters, const struct step_rates *rates)
{
	for (size_t i = 0; i < parameters->count; i++) {
		const struct parameter *parameter = &parameters->all[i];
		const double adapter = parameter->vector ? rates->vectors : rates->adapter;
		const struct adamw adamw = {.rate = parameter->pace *
						    (parameter->group == ADAPTER ? adapter : rates->backbone),
					    .beta1 = rates->beta1,
					    .beta2 = rates->beta2,
					    .eps = rates->eps,
					    .decay = parameter->vector ? 0 : rates->decay,
					    .step = rates->step};

		if (parameter->grad)
			parameters->backend->ops->training->adamw(parameters->backend, &adamw, parameter->count,
								  rates->scale, parameter->grad, parameter->value,
								  parameter->first, parameter->second);
	}
}
