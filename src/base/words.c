/*
 * What people type and read.
 *
 * Command lines and configurations are both written by hand. Both suggest the nearest name for a misspelt one, 16k
 * means the same in both, and the help texts of both are broken at the same column.
 */
#include "base/words.h"

#include <string.h>

#define LONGEST_NAME 32

/* ------------------------------------------------------------------------------------------------ did you mean? -- */

/* The edit distance: letters to insert, remove, replace or swap with a neighbour to turn one word into the other. */
static unsigned distance(const char *a, const char *b)
{
	unsigned rows[3][LONGEST_NAME + 1];
	size_t m = strlen(a), n = strlen(b);

	if (m > LONGEST_NAME || n > LONGEST_NAME)
		return LONGEST_NAME;
	for (size_t j = 0; j <= n; j++)
		rows[0][j] = (unsigned)j;
	for (size_t i = 1; i <= m; i++) {
		unsigned *now = rows[i % 3], *above = rows[(i + 2) % 3], *twice = rows[(i + 1) % 3];
		now[0] = (unsigned)i;
		for (size_t j = 1; j <= n; j++) {
			unsigned best = above[j - 1] + (a[i - 1] != b[j - 1]);
			if (above[j] + 1 < best)
				best = above[j] + 1;
			if (now[j - 1] + 1 < best)
				best = now[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && twice[j - 2] + 1 < best)
				best = twice[j - 2] + 1;
			now[j] = best;
		}
	}
	return rows[m % 3][n];
}

const char *words_nearest(const char *word, const char *const *names)
{
	const char *nearest = NULL;
	unsigned least = 3; /* more than two edits make it another word */

	for (; *names; names++) {
		unsigned d = distance(word, *names);
		bool begins = strlen(word) >= 3 && strncmp(word, *names, strlen(word)) == 0;
		if (begins)
			d = 1;
		if (d < least && d < strlen(*names) && (d < 2 || strlen(*names) > 4)) { /* short names: one edit */
			least = d;
			nearest = *names;
		}
	}
	return nearest;
}

/* ------------------------------------------------------------------------------------------------------ numbers -- */

bool words_number(const char *text, bool units, uint64_t *number)
{
	static const char letters[] = "kmg";
	uint64_t value = 0;

	if (*text < '0' || *text > '9')
		return false;
	for (; *text >= '0' && *text <= '9'; text++) {
		if (__builtin_mul_overflow(value, 10u, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
			return false;
	}
	if (units && *text) {
		const char *unit = strchr(letters, *text | 0x20);
		if (!unit)
			return false;
		for (const char *letter = letters; letter <= unit; letter++) {
			if (__builtin_mul_overflow(value, 1024u, &value))
				return false;
		}
		text++;
	}
	*number = value;
	return *text == '\0';
}

size_t words_line(const char *text, size_t indent)
{
	size_t size = strlen(text), end = SCREEN_COLUMNS - indent;

	if (size <= end)
		return size;
	while (end && text[end] != ' ')
		end--;
	return end ? end : size;
}
