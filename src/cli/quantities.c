/* Numbers for people, with three significant digits. Programs read the JSON output instead. */
#include "cli/quantities.h"

#include <stddef.h>
#include <stdio.h>

struct quantity quantity_grouped(uint64_t number)
{
	struct quantity words;
	char digits[24];
	size_t length = (size_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number), used = 0;

	for (size_t i = 0; i < length; i++) {
		if (i > 0 && (length - i) % 3 == 0)
			words.text[used++] = ',';
		words.text[used++] = digits[i];
	}
	words.text[used] = '\0';
	return words;
}

/* A number with a unit, each `step` times the one before. */
static struct quantity scaled(double number, double step, const char *const *units)
{
	struct quantity words;
	int unit = 0, digits;

	for (; number >= step && units[unit + 1]; number /= step)
		unit++;
	digits = unit == 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
	snprintf(words.text, sizeof(words.text), "%.*f%s%s", digits, number, units[unit][0] ? " " : "", units[unit]);
	return words;
}

struct quantity quantity_bytes(double number)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", NULL};

	return scaled(number, 1024, units);
}

struct quantity quantity_short(double number)
{
	static const char *const units[] = {"", "k", "M", "G", "T", NULL};

	return scaled(number, 1000, units);
}

struct quantity quantity_time(double seconds)
{
	struct quantity words;
	const double minutes = seconds / 60, hours = seconds / 3600, days = seconds / 86400;

	if (seconds < 0.1)
		snprintf(words.text, sizeof(words.text), "less than 0.1 s");
	else if (seconds < 100)
		snprintf(words.text, sizeof(words.text), "%.*f s", seconds < 9.5 ? 1 : 0, seconds);
	else if (minutes < 100)
		snprintf(words.text, sizeof(words.text), "%.0f min", minutes);
	else if (hours < 48)
		snprintf(words.text, sizeof(words.text), "%.1f hours", hours);
	else
		snprintf(words.text, sizeof(words.text), "%.*f days", days < 9.5 ? 1 : 0, days);
	return words;
}
