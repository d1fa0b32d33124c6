/* The operator computed the slow way, in double precision: what the library's is compared with. */
#pragma once

#include "rosatune.h"

#include "support_memory.h"

/* All rows are [batch][steps][channels], symbols and destinations [batch * routes][steps]. */
struct operator_case {
	rosa_options options;
	rosa_learning learning;
	rosa_dtype dtype; /* what is handed from step to step is rounded to bfloat16 if it is that */
	size_t batch, steps, channels;
};

struct operator_size {
	int bits, threads; /* threads 0: as they are */
	size_t batch, steps, channels;
};

void operator_resize(struct operator_case *c, struct operator_size size);

/* Numbers in an array of rows; route-steps. */
size_t operator_cells(const struct operator_case *c);
size_t operator_route_steps(const struct operator_case *c);

/* The nearest number of a dtype. */
double operator_round(rosa_dtype dtype, double x);
/* Rounding where a step hands rows on; float32 is near enough to double to be left alone. */
void operator_hand_on(const struct operator_case *c, double *rows);

void operator_symbols(const struct operator_case *c, const double *rows, uint16_t *symbols);

/* tau, and the counterfactuals as rosa_find lays them out, room for route-steps * (bits + 1); either may be NULL.
 * Returns the number of query runs. */
size_t operator_find(const struct operator_case *c, const double *q, const double *k, int32_t *tau, int32_t *flips);

/* The read-out and its backward pass, by the equations. */
struct operator_read {
	const double *q, *k, *v;
	const double *e0, *e1;
	const int32_t *read, *flips; /* destinations really read, and the table; as operator_find gives them */
	const double *gy;
	double *y;
	double *gq, *gk, *gv, *ge0, *ge1;
};

void operator_read(const struct operator_case *c, const struct operator_read *at);
void operator_read_backward(const struct operator_case *c, const struct operator_read *at);

/* --------------------------------------------------------------------------------------- to and from the library -- */

/* Random numbers: about normal, and of any dtype exactly. */
double *random_rows(uint64_t *state, rosa_dtype dtype, size_t count, double scale);

/* Rows whose symbols are `symbols`, with zeros among the numbers that mean 0. */
double *rows_of_symbols(const struct operator_case *c, uint64_t *state, const uint16_t *symbols);

/* New arrays of the same numbers in the library's form. */
void *to_dtype(rosa_dtype dtype, const double *numbers, size_t count);
float *to_floats(const double *numbers, size_t count);

/* Destinations from the library's form, `steps` telling their width, and into it. */
int32_t *from_destinations(const void *kept, size_t steps, size_t count);
void *to_destinations(const int32_t *tau, size_t steps, size_t count);

double norm_of(const double *numbers, size_t count);

/* Fail the running test unless the norm of the difference is at most `limit` times the norm of `want`, or times `least`
 * where that is more: about the norm of what was summed, where the sum may cancel. */
void expect_near(const char *how, const char *what, rosa_dtype dtype, const void *got, const double *want, size_t count,
		 double limit, double least);

/* Call `operation` with every request for memory refused in turn, alone and with all that follow, until it needs no
 * more. It must say ROSA_ENOMEM or succeed, and leave no more blocks than before. */
void refuse_each_request(const char *how, struct test_memory *memory,
			 rosa_status (*operation)(void *context, rosa_error *err), void *context);
