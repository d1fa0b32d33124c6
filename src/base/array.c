/* Arrays grow by half, so that adding one element after the other takes linear time, whatever they hold. */
#include "base/array.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool array_reserve(void *all, size_t *room, size_t need, size_t size)
{
	const size_t half = *room + *room / 2 + 16, wanted = need > half ? need : half;
	void *array;

	if (need <= *room)
		return true;
	if (wanted > SIZE_MAX / size)
		return false;
	memcpy(&array, all, sizeof(array)); /* `all` points to a pointer of another type */
	array = realloc(array, wanted * size);
	if (!array)
		return false;
	memcpy(all, &array, sizeof(array));
	*room = wanted;
	return true;
}
