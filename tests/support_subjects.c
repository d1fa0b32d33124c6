/* The backends under test. */
#include "support_subjects.h"
#include "backend/cpu_backend.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

static bool cpu_available(int kind)
{
	return cpu_backend_available((rosa_isa)kind);
}

static rosa_status cpu_make(int kind, rosa_workers *workers, struct backend **backend, rosa_error *err)
{
	return cpu_backend_new_on((rosa_isa)kind, workers, backend, err);
}

static const struct maker makers[] = {
    {"cpu, plain", 0, cpu_available, cpu_make, cpu_backend_free, ROSA_ISA_PLAIN},
    {"cpu, avx2", 1, cpu_available, cpu_make, cpu_backend_free, ROSA_ISA_AVX2},
    {"cpu, avx512", 1, cpu_available, cpu_make, cpu_backend_free, ROSA_ISA_AVX512},
};

struct subject subjects[SUBJECTS_MOST];
size_t subject_count;

int subjects_set_up(void **state)
{
	for (size_t m = 0; m < COUNT(makers); m++) {
		for (int threads = 1; threads <= SUBJECT_THREADS; threads++) {
			struct subject *s = &subjects[subject_count];

			if (!makers[m].available(makers[m].kind))
				continue;
			s->maker = &makers[m];
			s->threads = threads;
			must(rosa_workers_new(threads, NULL, &s->workers, &err));
			must_for(s->maker->name, s->maker->make(s->maker->kind, s->workers, &s->backend, &err));
			s->ops = s->backend->ops;
			subject_count++;
		}
	}
	return 0;
}

int subjects_tear_down(void **state)
{
	EACH_SUBJECT(s)
	{
		s->maker->free(s->backend);
		rosa_workers_free(s->workers);
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------------ checking -- */

float *put_floats(struct subject *s, const float *host, size_t count)
{
	float *there = s->ops->take(s->backend, count * sizeof(*host));

	assert_non_null(there);
	if (host)
		s->ops->put(s->backend, there, host, count * sizeof(*host));
	return there;
}

float *get_floats(struct subject *s, float *there, size_t count)
{
	float *host = test_alloc(count * sizeof(*host));

	s->ops->get(s->backend, host, there, count * sizeof(*host));
	s->ops->give(s->backend, there);
	return host;
}

void give_floats(struct subject *s, size_t count, float *const *all)
{
	for (size_t i = 0; i < count; i++)
		s->ops->give(s->backend, all[i]);
}

void expect_close(struct subject *s, const char *what, size_t count, const float *got, const double *want,
		  double tolerance)
{
	for (size_t i = 0; i < count; i++) {
		const double error = fabs((double)got[i] - want[i]) / fmax(1, fabs(want[i]));

		if (!(error <= tolerance))
			fail_msg("%s, %d threads: %s: number %zu is %.9g, want %.9g", s->maker->name, s->threads, what,
				 i, (double)got[i], want[i]);
		s->worst = fmax(s->worst, error);
	}
}

void expect_bits(struct subject *s, const char *what, const char *how, size_t count, const float *got,
		 const float *want)
{
	for (size_t i = 0; i < count; i++)
		if (memcmp(&got[i], &want[i], sizeof(*got)))
			fail_msg("%s, %d threads: %s: %s: number %zu is %.9g, and was %.9g", s->maker->name, s->threads,
				 what, how, i, (double)got[i], (double)want[i]);
}

void report(const char *what)
{
	for (size_t m = 0; m < COUNT(makers); m++) {
		double worst = -1;

		EACH_SUBJECT(s)
		{
			if (s->maker == &makers[m]) {
				worst = fmax(worst, s->worst);
				s->worst = 0;
			}
		}
		if (worst >= 0)
			print_message("%s: %s: greatest error %.2g\n", what, makers[m].name, worst);
	}
}

void expect_family(struct firsts *firsts, struct subject *s, const char *what, const char *how, size_t count,
		   float *got)
{
	float **first = &firsts->of[s->maker->family];

	if (!*first) {
		*first = got;
		return;
	}
	expect_bits(s, what, how, count, got, *first);
}
