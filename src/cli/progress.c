/*
 * Progress.
 *
 * Drawn on stderr, so that results can be piped, and only if that is a terminal: in a log a bar is noise. Nothing is
 * drawn in the first half second, since most jobs take less; after that the bar is drawn ten times per second, with an
 * estimate of the time that is left once something is done. At the end the line is erased.
 */
#include "cli/progress.h"

#include "base/clock.h"
#include "cli/interrupt.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH   24
#define FIRST_AFTER 500000000u
#define NEXT_AFTER  100000000u

void progress_begin(struct progress *progress, const char *label, uint64_t whole)
{
	memset(progress, 0, sizeof(*progress));
	progress->shown = isatty(STDERR_FILENO);
	progress->label = label;
	progress->whole = whole;
	progress->began = clock_ns();
	progress->last = progress->began + FIRST_AFTER - NEXT_AFTER;
}

/* A time in a readable unit. */
static void write_time(double seconds, char *text, size_t room)
{
	if (seconds < 600)
		snprintf(text, room, "%.0f s", seconds);
	else if (seconds < 36000)
		snprintf(text, room, "%.0f min", seconds / 60);
	else if (seconds < 864000)
		snprintf(text, room, "%.0f h", seconds / 3600);
	else
		snprintf(text, room, "%.0f days", seconds / 86400);
}

static void draw(const struct progress *progress, uint64_t now, uint64_t done, uint64_t total)
{
	static const char bar[] = "########################";
	double share = total ? (double)done / (double)total : 1.0;
	double seconds = (double)(now - progress->began) * 1e-9;
	double rate = (double)(done - progress->skipped) / seconds;
	int filled = (int)(share * BAR_WIDTH);
	char left[32] = "";

	fprintf(stderr, "\r%s [%-*.*s] %3.0f%%  ", progress->label, BAR_WIDTH, filled, bar, share * 100.0);
	if (progress->detail)
		fprintf(stderr, "%s  ", progress->detail);
	else if (progress->unit)
		fprintf(stderr, "%llu of %llu %s, %.0f/s  ", (unsigned long long)done, (unsigned long long)total,
			progress->unit, rate);
	else
		fprintf(stderr, "%.2f M steps/s  ", rate * 1e-6);
	if (rate > 0 || done == total) {
		write_time(rate > 0 ? (double)(total - done) / rate : 0.0, left, sizeof(left));
		fprintf(stderr, "%s left", left);
	}
	fputs("\033[K", stderr);
	fflush(stderr);
}

int progress_tick(void *context, uint64_t done, uint64_t total)
{
	struct progress *progress = context;

	if (progress->shown) {
		uint64_t now = clock_ns();
		if (now > progress->last && now - progress->last >= NEXT_AFTER) {
			progress->last = now;
			progress->drawn = true;
			draw(progress, now, progress->before + done, progress->whole ? progress->whole : total);
		}
	}
	return interrupted();
}

void progress_advance(struct progress *progress, uint64_t done)
{
	progress->before += done;
}

void progress_end(struct progress *progress)
{
	if (progress->drawn) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
	}
	progress->drawn = false;
}
