/* The cache of cosines and sines; angles.h has the design. */
#include "backend/angles.h"
#include "backend/backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS   ((size_t)1 << 18) /* of all rows: at least 64 rows, since the size of a head is bounded */
#define MOST_ROWS ((size_t)4096)

struct angles {
	size_t half, rows;
	float frequencies[BACKEND_MOST_HEAD / 2];
	size_t taken[MOST_ROWS]; /* the position in each slot, counted from 1; 0: none */
	float number[NUMBERS];   /* [rows][2][half] */
};

struct angles *angles_new(void)
{
	return calloc(1, sizeof(struct angles));
}

void angles_free(struct angles *angles)
{
	free(angles);
}

static void make_row(struct angles *angles, size_t position)
{
	float *row = angles->number + position % angles->rows * 2 * angles->half;

	for (size_t i = 0; i < angles->half; i++) {
		const float angle = (float)position * angles->frequencies[i];

		row[i] = (float)cos((double)angle);
		row[angles->half + i] = (float)sin((double)angle);
	}
	angles->taken[position % angles->rows] = position + 1;
}

size_t angles_prepare(struct angles *angles, size_t half, const float *frequencies, size_t first, size_t count)
{
	const size_t bytes = half * sizeof(*frequencies);

	/* Compared by value: the same address may hold other frequencies in a later call. */
	if (angles->half != half || memcmp(angles->frequencies, frequencies, bytes) != 0) {
		angles->half = half;
		angles->rows = NUMBERS / (2 * half) < MOST_ROWS ? NUMBERS / (2 * half) : MOST_ROWS;
		memcpy(angles->frequencies, frequencies, bytes);
		memset(angles->taken, 0, sizeof(angles->taken));
	}
	if (count > angles->rows)
		count = angles->rows;
	for (size_t t = first; t < first + count; t++)
		if (angles->taken[t % angles->rows] != t + 1)
			make_row(angles, t);
	return count;
}

const float *angles_row(const struct angles *angles, size_t position)
{
	return angles->number + position % angles->rows * 2 * angles->half;
}
