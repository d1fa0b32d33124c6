/* Memory for places, and the controls that replace them. */
#include "rosa/places.h"
#include "base/draw.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

rosa_status places_reserve(struct places *places, size_t links, size_t routes, size_t steps, rosa_error *err)
{
	const size_t count = links * routes * steps;

	if (count > places->room) {
		places_free(places);
		places->tau = malloc(count * sizeof(*places->tau));
		places->length = malloc(count * sizeof(*places->length));
		if (!places->tau || !places->length)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the places of %zu steps", steps);
		places->room = count;
	}
	places->links = links;
	places->routes = routes;
	places->steps = steps;
	return ROSA_OK;
}

void places_free(struct places *places)
{
	free(places->tau);
	free(places->length);
	*places = (struct places){0};
}

void places_control(struct places *places, struct past_control control, size_t first, uint32_t delay)
{
	const size_t rows = places->links * places->routes, steps = places->steps;

	if (control.reads == READS_FOUND)
		return;
	if (control.reads == READS_NOTHING) {
		memset(places->tau, 0xff, rows * steps * sizeof(*places->tau)); /* -1 */
		memset(places->length, 0, rows * steps * sizeof(*places->length));
		return;
	}
	for (size_t row = 0; row < rows; row++) {
		for (size_t i = 0; i < steps; i++) {
			int32_t *tau = places->tau + row * steps + i;

			/* where something was found, there is an older step than the delay */
			if (*tau >= 0)
				*tau = (int32_t)(draw_long(control.seed, row, first + i) % (first + i - delay));
		}
	}
}
