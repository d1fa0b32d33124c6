/* A progress bar on the terminal. Its callback also checks for Ctrl-C. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
	bool shown;         /* stderr is a terminal */
	bool drawn;         /* the bar is on the screen */
	const char *label;  /* a word or two */
	const char *unit;   /* of the work, "tokens"; NULL: steps, shown in millions */
	const char *detail; /* instead of the speed; NULL: none */
	uint64_t before;    /* work done in earlier calls */
	uint64_t skipped;   /* of that, work not done by this process, which the speed must not count */
	uint64_t whole;     /* work of all calls; 0: there is one call */
	uint64_t began, last;
};

void progress_begin(struct progress *progress, const char *label, uint64_t whole);

/* A rosa_progress; the context is a struct progress. Nonzero after Ctrl-C. */
int progress_tick(void *progress, uint64_t done, uint64_t total);

/* To be called between two calls: `done` is the work of the first. */
void progress_advance(struct progress *progress, uint64_t done);

/* Erases the bar. To be called before messages are printed. */
void progress_end(struct progress *progress);
