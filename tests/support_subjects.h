/*
 * The backends under test, each on several numbers of threads.
 *
 * The tests know a backend by its table alone and touch its memory only through the table, so that any backend can be
 * put through them: it needs a line in `makers`. Those of one family promise equal bits. Within one backend the promise
 * is stronger, and tested with everything: a row has the same bits whatever rows come with it, however the steps before
 * it were cut into calls, and on any number of threads.
 */
#pragma once

#include "backend/backend.h"

#include <stdbool.h>

struct maker {
	const char *name;
	int family; /* of equal bits */
	bool (*available)(int kind);
	rosa_status (*make)(int kind, rosa_workers *workers, struct backend **backend, rosa_error *err);
	void (*free)(struct backend *backend);
	int kind;
};

enum { FAMILIES = 2, SUBJECT_THREADS = 3, SUBJECTS_MOST = 9 };

/* A backend on some number of threads, and the greatest error seen. */
struct subject {
	const struct maker *maker;
	int threads;
	rosa_workers *workers;
	struct backend *backend;
	const struct backend_ops *ops;
	double worst;
};

extern struct subject subjects[SUBJECTS_MOST];
extern size_t subject_count;

#define EACH_SUBJECT(s) for (struct subject *s = subjects; (s) < subjects + subject_count; (s)++)

/* Of a group of tests. */
int subjects_set_up(void **state);
int subjects_tear_down(void **state);

/* Numbers in the backend's memory; `host` NULL: any. */
float *put_floats(struct subject *s, const float *host, size_t count);
/* And back, giving up the backend's. */
float *get_floats(struct subject *s, float *there, size_t count);
void give_floats(struct subject *s, size_t count, float *const *all);

/* Within `tolerance`, relative to numbers of size 1 and more. */
void expect_close(struct subject *s, const char *what, size_t count, const float *got, const double *want,
		  double tolerance);
void expect_bits(struct subject *s, const char *what, const char *how, size_t count, const float *got,
		 const float *want);
/* Say the greatest error of each kind of backend since the last time. */
void report(const char *what);

/* The first result of each family, to which the others of the family must be equal. */
struct firsts {
	float *of[FAMILIES];
};

/* Takes over `got`. */
void expect_family(struct firsts *firsts, struct subject *s, const char *what, const char *how, size_t count,
		   float *got);
