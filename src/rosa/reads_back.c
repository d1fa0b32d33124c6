/*
 * The gradients of the reads. With w = scale * gain of a read at step t and d its place there,
 *
 *     e1 += w b Gy,  e0 += w (1 - b) Gy,  gain += scale * Gy . (e0 or e1 by the bits),
 *     v at d += slope(v) w (e1 - e0) Gy
 *
 * where the slope is s'(v), or 1 where |v| < 1 and 0 elsewhere.
 *
 * A worker takes a strip of neighbouring channels through all batch entries, reads and steps. So every sum over time is
 * made by one thread in one order, and the number of threads does not change it. A gain is a sum over channels too;
 * each strip has sums of its own, and these are added in the order of the strips.
 */
#include "rosa/reads_back.h"
#include "base/compiler.h"
#include "base/memory.h"
#include "base/status.h"
#include "rosa/destinations.h"
#include "rosa/strips.h"

#include <math.h>
#include <stdatomic.h>

#define STRIP ((size_t)64) /* channels */
#define BLOCK 256          /* steps summed in float32 before they are added in double precision */

struct read_grads {
	const struct reads_pass *pass;
	size_t rows;    /* of gain */
	size_t links;   /* of all sources */
	float *scratch; /* [workers][scratch_size] */
	size_t scratch_size;
	double *gains;      /* [strips][rows][ROSA_GAINS]; NULL: not wanted */
	double *ends;       /* [workers][links][2][STRIP]: e0's and e1's */
	atomic_uint broken; /* a destination is out of range */
};

/* The channels of a strip that belong to one route of one read. Rows are `stride` numbers apart; pointers are to the
 * first of these channels. */
struct segment {
	size_t steps, stride;
	const int32_t *tau;
	const uint8_t *column; /* of gain, by step */
	float strength[ROSA_GAINS];
	const float *gy, *v, *e0, *e1;
	float *gv; /* NULL: not wanted */
	double *ge0, *ge1;
	double *gains; /* [ROSA_GAINS]; NULL: not wanted */
};

/* Inlined with `width` a constant for the usual widths. */
ALWAYS_INLINE void grad_segment(const struct segment *s, size_t width)
{
	float delta[STRIP];

	for (size_t j = 0; j < width; j++)
		delta[j] = s->e1[j] - s->e0[j];
	for (size_t first = 0; first < s->steps; first += BLOCK) {
		const size_t end = s->steps - first < BLOCK ? s->steps : first + BLOCK;
		float zero[STRIP] = {0}, one[STRIP] = {0}, by_length[ROSA_GAINS][STRIP];

		if (s->gains)
			memset(by_length, 0, sizeof(by_length));
		for (size_t t = first; t < end; t++) {
			const float *g = s->gy + t * s->stride, *x;
			float w;

			if (s->tau[t] < 0)
				continue;
			x = s->v + (size_t)s->tau[t] * s->stride;
			w = s->strength[s->column[t]];
			for (size_t j = 0; j < width; j++) {
				zero[j] += x[j] > 0 ? 0 : w * g[j];
				one[j] += x[j] > 0 ? w * g[j] : 0;
			}
			if (s->gv) {
				float *to = s->gv + (size_t)s->tau[t] * s->stride;

				for (size_t j = 0; j < width; j++)
					to[j] += w * g[j] * delta[j];
			}
			if (s->gains) {
				float *sum = by_length[s->column[t]];

				for (size_t j = 0; j < width; j++)
					sum[j] += g[j] * (x[j] > 0 ? s->e1[j] : s->e0[j]);
			}
		}
		for (size_t j = 0; j < width; j++) {
			s->ge0[j] += (double)zero[j];
			s->ge1[j] += (double)one[j];
			for (size_t i = 0; s->gains && i < ROSA_GAINS; i++)
				s->gains[i] += (double)by_length[i][j];
		}
	}
}

/* One route of one read of one batch entry, as far as it lies in the strip. False: a destination is out of range. */
static bool load_segment(const struct reads_pass *pass, const struct lookup *lookup, size_t row, int32_t *tau,
			 uint8_t *column)
{
	const size_t steps = pass->steps;
	bool good = true;

	destinations_load(tau, lookup->read, row * steps, steps, lookup->width);
	for (size_t t = 0; t < steps; t++) {
		good &= tau[t] >= -1 && tau[t] < (int64_t)steps;
		column[t] = pass->gain ? (uint8_t)gain_column(lookup->length[row * steps + t]) : 0;
	}
	return good;
}

/* All reads of one batch entry on a strip of channels first .. first + width - 1. */
static void grad_entry(struct read_grads *work, size_t strip, size_t b, size_t width, struct segment *segment,
		       int32_t *tau, uint8_t *column, double *ends)
{
	const struct reads_pass *pass = work->pass;
	const size_t first = strip * STRIP;
	const struct segment whole = *segment;
	size_t link = 0, row = 0;

	segment->tau = tau;
	segment->column = column;
	for (size_t s = 0; s < pass->sources; s++) {
		const struct lookup *lookup = pass->lookups[s];
		const size_t routes = lookup->shape.routes, bits = pass->channels / routes;

		for (size_t i = 0; i < lookup->shape.links; i++, link++, row += routes) {
			for (size_t c = first, some; c < first + width; c += some) {
				const size_t route = c / bits, end = (route + 1) * bits;

				some = (end < first + width ? end : first + width) - c;
				if (!load_segment(pass, lookup, (i * pass->batch + b) * routes + route, tau, column)) {
					atomic_store(&work->broken, 1);
					return;
				}
				strength_table(pass->gain, pass->scale, row + route, segment->strength);
				segment->gy = whole.gy + (c - first);
				segment->v = whole.v + (c - first);
				segment->gv = whole.gv ? whole.gv + (c - first) : NULL;
				segment->e0 = pass->e0 + link * pass->channels + c;
				segment->e1 = pass->e1 + link * pass->channels + c;
				segment->ge0 = ends + 2 * link * STRIP + (c - first);
				segment->ge1 = segment->ge0 + STRIP;
				segment->gains =
				    work->gains ? work->gains + (strip * work->rows + row + route) * ROSA_GAINS : NULL;
				if (some == STRIP)
					grad_segment(segment, STRIP);
				else if (some == 16)
					grad_segment(segment, 16);
				else if (some == 4)
					grad_segment(segment, 4);
				else
					grad_segment(segment, some);
			}
		}
	}
	*segment = whole;
}

/* gradient <- slope(x) gradient */
static void slope_back(rosa_v_grad rule, float *restrict gradient, const float *restrict x, size_t count)
{
	if (rule == ROSA_V_SIGMOID)
		strip_chain(gradient, x, count);
	else
		for (size_t i = 0; i < count; i++)
			gradient[i] = fabsf(x[i]) < 1 ? gradient[i] : 0;
}

static void grad_strip(void *context, size_t strip, unsigned worker)
{
	struct read_grads *work = context;
	const struct reads_pass *pass = work->pass;
	const size_t first = strip * STRIP, left = pass->channels - first, width = left < STRIP ? left : STRIP;
	const size_t spacing = strips_spacing(pass->steps, STRIP), stride = strips_stride((unsigned)width);
	struct strips strips = {.dtype = pass->dtype,
				.bits = (unsigned)width,
				.steps = pass->steps,
				.channels = pass->channels,
				.routes = 1};
	float *gy = work->scratch + worker * work->scratch_size, *v = gy + spacing, *gv = v + spacing;
	int32_t *tau = (int32_t *)(gv + spacing);
	double *ends = work->ends + worker * work->links * 2 * STRIP;
	struct segment segment = {.steps = pass->steps,
				  .stride = stride,
				  .gy = strips_at(gy, &strips, 0),
				  .v = strips_at(v, &strips, 0),
				  .gv = pass->gv ? strips_at(gv, &strips, 0) : NULL};

	memset(ends, 0, work->links * 2 * STRIP * sizeof(*ends));
	for (size_t b = 0; b < pass->batch; b++) {
		strips.first = b * pass->steps * pass->channels + first;
		strips_load(gy, pass->gy, &strips);
		strips_load(v, pass->v, &strips);
		if (pass->gv)
			memset(segment.gv, 0, pass->steps * stride * sizeof(*gv));
		grad_entry(work, strip, b, width, &segment, tau, (uint8_t *)(tau + pass->steps), ends);
		if (pass->gv) {
			slope_back(pass->v_grad, segment.gv, segment.v, pass->steps * stride);
			strips_store(pass->gv, gv, &strips);
		}
	}
	for (size_t link = 0; link < work->links; link++) {
		for (size_t j = 0; j < width; j++) {
			if (pass->ge0)
				pass->ge0[link * pass->channels + first + j] = (float)ends[2 * link * STRIP + j];
			if (pass->ge1)
				pass->ge1[link * pass->channels + first + j] = (float)ends[(2 * link + 1) * STRIP + j];
		}
	}
}

rosa_status grad_reads(const struct backward *call, const struct reads_pass *pass, rosa_error *err)
{
	const size_t strips = (pass->channels + STRIP - 1) / STRIP;
	struct read_grads work = {.pass = pass,
				  .scratch_size = 3 * strips_spacing(pass->steps, STRIP) + 2 * pass->steps};
	rosa_status status = ROSA_OK;
	bool good;

	for (size_t s = 0; s < pass->sources; s++) {
		work.links += pass->lookups[s]->shape.links;
		work.rows += pass->lookups[s]->shape.links * pass->lookups[s]->shape.routes;
	}
	work.scratch = memory_scratch(call->allocator, call->workers * work.scratch_size * sizeof(*work.scratch));
	work.ends = memory_scratch(call->allocator, call->workers * work.links * 2 * STRIP * sizeof(*work.ends));
	if (pass->ggain)
		work.gains = memory_scratch(call->allocator, strips * work.rows * ROSA_GAINS * sizeof(*work.gains));
	good = work.scratch && work.ends && (work.gains || !pass->ggain);
	if (good) {
		if (work.gains)
			memset(work.gains, 0, strips * work.rows * ROSA_GAINS * sizeof(*work.gains));
		backward_run(call, strips, grad_strip, &work);
	} else {
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for the gradients of %zu steps", pass->steps);
	}
	if (atomic_load(&work.broken))
		status =
		    rosa_fail(err, ROSA_EINVAL, "read has a destination that is not below the %zu steps", pass->steps);
	for (size_t i = 0; work.gains && status == ROSA_OK && i < work.rows * ROSA_GAINS; i++) {
		double sum = 0;

		for (size_t strip = 0; strip < strips; strip++)
			sum += work.gains[strip * work.rows * ROSA_GAINS + i];
		pass->ggain[i] = (float)((double)pass->scale * sum);
	}
	memory_free(call->allocator, work.gains);
	memory_free(call->allocator, work.ends);
	memory_free(call->allocator, work.scratch);
	return status;
}
