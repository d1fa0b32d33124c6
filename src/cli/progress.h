/* A progress bar on the terminal, and the place where long work notices Ctrl-C. */
#ifndef ROSATUNE_PROGRESS_H
#define ROSATUNE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
	bool shown;         /* stderr is a terminal */
	bool drawn;         /* there is something to wipe */
	const char *label;  /* a word or two */
	const char *unit;   /* of work, counted one by one; NULL: steps, counted in millions */
	const char *detail; /* instead of the speed; NULL: none */
	uint64_t before;    /* work done in earlier calls */
	uint64_t skipped;   /* of that, work that this process did not do: it tells nothing of the time left */
	uint64_t whole;     /* work of all calls; 0: that of the one call */
	uint64_t began, last;
};

void progress_begin(struct progress *progress, const char *label, uint64_t whole);

/* A rosa_progress; the context is a struct progress. Nonzero after Ctrl-C. */
int progress_tick(void *progress, uint64_t done, uint64_t total);

/* One call is over; the next one goes on from there. */
void progress_advance(struct progress *progress, uint64_t done);

/* Wipes the bar. Messages come after it. */
void progress_end(struct progress *progress);

/* Nanoseconds of a clock that never goes back. */
uint64_t progress_clock(void);

#endif
