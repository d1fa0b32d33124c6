/*
 * The rules by which q and k learn, as docs/design.md states them, one pair of steps after the other. Nothing here is
 * shared with the library and nothing is fast: a rule is a few lines that can be held against its formula.
 */
#include "support_qk_oracle.h"

#include "oracle.h"
#include "support_trial.h"

#include <math.h>
#include <stdlib.h>

/* One stream of one route. */
struct side {
	size_t runs;
	size_t *start;    /* [runs], first steps */
	size_t *run;      /* [steps], the run a step lies in */
	uint16_t *symbol; /* [steps] */
};

static void side_make(struct side *side, const struct qk_case *c, const double *x, size_t route)
{
	const size_t bits = (size_t)c->bits;
	uint16_t *of_runs = test_alloc(c->steps * sizeof(*of_runs));

	side->start = test_alloc(c->steps * sizeof(*side->start));
	side->run = test_alloc(c->steps * sizeof(*side->run));
	side->symbol = test_alloc(c->steps * sizeof(*side->symbol));
	for (size_t t = 0; t < c->steps; t++) {
		side->symbol[t] = 0;
		for (size_t j = 0; j < bits; j++)
			side->symbol[t] |= (uint16_t)((x[t * c->channels + route * bits + j] > 0) << j);
	}
	side->runs = oracle_runs(side->symbol, c->steps, c->fold, side->start, of_runs);
	for (size_t i = 0; i < side->runs; i++)
		for (size_t t = side->start[i]; t < (i + 1 < side->runs ? side->start[i + 1] : c->steps); t++)
			side->run[t] = i;
}

/* s'(x), the slope of the sigmoid */
static double sigmoid_slope(double x)
{
	const double s = 1 / (1 + exp(-x));

	return s * (1 - s);
}

/* sum over channels first .. first+count-1 of theta_t P[d] */
static double worth(const struct qk_case *c, size_t t, size_t d, size_t first, size_t count)
{
	double sum = 0;

	for (size_t i = first; i < first + count; i++)
		sum += c->theta[t * c->channels + i] * c->p[d * c->channels + i];
	return sum;
}

static int hamming(unsigned a, unsigned b)
{
	int count = 0;

	for (unsigned x = a ^ b; x; x >>= 1)
		count += x & 1;
	return count;
}

/* to[j] += x * sgn(bit j of symbol) */
static void add_signs(double *to, double x, unsigned symbol, size_t bits)
{
	for (size_t j = 0; j < bits; j++)
		to[j] += symbol >> j & 1 ? x : -x;
}

/* soft and linear */
static void weigh_candidates(const struct qk_case *c, size_t route, const struct side *q, const struct side *k,
			     double *gq, double *gk)
{
	const rosa_learning *learning = &c->learning;
	const int soft = learning->qk_grad == ROSA_QK_SOFT;
	const double slope = soft ? learning->slope : 1;
	const size_t bits = (size_t)c->bits, all = learning->credit == ROSA_CREDIT_ALL;
	double *score = test_alloc(k->runs * sizeof(*score)), *value = test_alloc(k->runs * sizeof(*value));

	for (size_t t = 0; t < c->steps; t++) {
		const size_t before = q->run[t] > 0; /* the query has a run before this one */
		const size_t t1 = before ? q->start[q->run[t] - 1] : 0;
		double most = -INFINITY, total = 0, mean = 0;
		size_t end = 1; /* candidates are the starts of key runs 1 .. end-1 */

		while (end < k->runs && k->start[end] < t)
			end++;
		for (size_t i = 1; i < end; i++) {
			score[i] = hamming(q->symbol[t], k->symbol[k->start[i - 1]]);
			if (before && i >= 2)
				score[i] += learning->suffix * hamming(q->symbol[t1], k->symbol[k->start[i - 2]]);
			score[i] = soft ? -slope * score[i] : 0;
			most = fmax(most, score[i]);
			value[i] = worth(c, t, k->start[i], all ? 0 : route * bits, all ? c->channels : bits);
		}
		for (size_t i = 1; i < end; i++)
			total += exp(score[i] - most);
		for (size_t i = 1; i < end; i++)
			mean += exp(score[i] - most) / total * value[i];
		for (size_t i = 1; i < end; i++) {
			const double g = slope * exp(score[i] - most) / total * (value[i] - mean);
			const size_t p = k->start[i - 1];

			add_signs(gq + t * c->channels, g, k->symbol[p], bits);
			add_signs(gk + p * c->channels, g, q->symbol[t], bits);
			if (before && i >= 2) {
				const size_t p1 = k->start[i - 2];

				add_signs(gq + t1 * c->channels, g * learning->suffix, k->symbol[p1], bits);
				add_signs(gk + p1 * c->channels, g * learning->suffix, q->symbol[t1], bits);
			}
		}
	}
}

/* The paper's rule. `rows` are the table of this route's query runs. */
static void follow_flips(const struct qk_case *c, size_t route, const struct side *q, const struct side *k,
			 const int32_t *rows, double *gq, double *gk)
{
	const size_t bits = (size_t)c->bits;

	for (size_t t = 0; t < c->steps; t++) {
		const int32_t *row = rows + q->run[t] * (bits + 1);

		for (size_t j = 0; j < bits; j++) {
			const int bit = q->symbol[t] >> j & 1;

			for (int branch = 0; branch < 2; branch++) {
				const int32_t d = branch == bit ? row[0] : row[1 + j];
				const double sign = branch ? 1 : -1;
				double amount;
				size_t run;

				if (d < 0)
					continue;
				amount = sign / c->learning.flip_share * worth(c, t, (size_t)d, route * bits, bits);
				run = k->run[d] - (c->learning.key_credit == ROSA_KEY_MATCH);
				gq[t * c->channels + j] += amount;
				gk[k->start[run] * c->channels + j] += amount;
			}
		}
	}
}

void qk_oracle(const struct qk_case *c, double *gq, double *gk)
{
	const size_t cells = c->steps * c->channels, bits = (size_t)c->bits;
	const int32_t *rows = c->flips;

	for (size_t i = 0; i < cells; i++)
		gq[i] = gk[i] = 0;
	for (size_t r = 0; r < c->channels / bits; r++) {
		struct side q, k;

		side_make(&q, c, c->q, r);
		side_make(&k, c, c->k, r);
		if (c->learning.qk_grad == ROSA_QK_FLIPS)
			follow_flips(c, r, &q, &k, rows, gq + r * bits, gk + r * bits);
		else if (c->learning.qk_grad != ROSA_QK_NONE)
			weigh_candidates(c, r, &q, &k, gq + r * bits, gk + r * bits);
		if (rows)
			rows += q.runs * (bits + 1);
	}
	for (size_t i = 0; i < cells; i++) {
		gq[i] *= sigmoid_slope(c->q[i]);
		gk[i] *= sigmoid_slope(c->k[i]);
	}
}
