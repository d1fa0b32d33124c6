/*
 * The operations of training on a CPU.
 *
 * Products use gemm.h, in tiles that do not depend on the number of threads. What is computed row by row is divided as
 * in cpu_backend.c. Sums over rows, the gradients of norms and embeddings, are divided by columns instead: each column
 * is summed by one worker from the first row to the last, so that the order is always the same.
 */
#include "backend/attention_train.h"
#include "backend/cpu_parts.h"
#include "backend/gemm.h"
#include "backend/lanes.h"
#include "backend/sigmoid.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------ products -- */

static void cpu_training_multiply(struct backend *backend, size_t steps, const float *x, size_t count,
				  const struct product *products)
{
	for (size_t i = 0; i < count; i++) {
		const struct matrix *w = products[i].weight;

		gemm_parallel(cpu_of(backend)->pool, false, true, steps, w->rows, w->columns, 1, x, w->columns, w->data,
			      w->columns, products[i].add, products[i].y, w->rows);
	}
}

static void cpu_multiply_back(struct backend *backend, size_t steps, const struct matrix *w, const float *gy, bool add,
			      float *gx)
{
	gemm_parallel(cpu_of(backend)->pool, false, false, steps, w->columns, w->rows, 1, gy, w->rows, w->data,
		      w->columns, add, gx, w->columns);
}

static void cpu_multiply_grad(struct backend *backend, size_t steps, size_t rows, size_t columns, const float *x,
			      const float *gy, float *gw)
{
	gemm_parallel(cpu_of(backend)->pool, true, false, rows, columns, steps, 1, gy, rows, x, columns, 1, gw,
		      columns);
}

/* --------------------------------------------------------------------------------------------------------- norms -- */

static double dot(size_t count, const float *a, const float *b)
{
	double lane[LANES] = {0};
	size_t i = 0;

	for (; i + LANES <= count; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += (double)a[i + j] * (double)b[i + j];
	for (size_t j = 0; i + j < count; j++)
		lane[j] += (double)a[i + j] * (double)b[i + j];
	return lanes_sum(lane);
}

struct norm_back_call {
	size_t rows, width;
	const float *x, *weight, *gy;
	float eps, *scales, *gx, *gweight;
};

/* With n = x * scale: gx += scale (weight gy - n mean(weight gy n)). */
static void norm_back_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct norm_back_call *call = arguments;
	const size_t width = call->width;

	(void)cpu;
	for (size_t t = row; t < row + count; t++) {
		const float *x = call->x + t * width, *gy = call->gy + t * width;
		const float scale = rms_scale(dot(width, x, x), width, call->eps);
		float *gx = call->gx + t * width;
		double lane[LANES] = {0};

		for (size_t c = 0; c < width; c++)
			lane[c % LANES] += (double)(call->weight ? call->weight[c] * gy[c] : gy[c]) * (double)x[c];
		const float part = (float)(lanes_sum(lane) * (double)scale * (double)scale / (double)width);

		for (size_t c = 0; c < width; c++)
			gx[c] += scale * ((call->weight ? call->weight[c] * gy[c] : gy[c]) - x[c] * part);
		call->scales[t] = scale;
	}
}

/* gweight += sum over the rows of gy n, for `count` columns. */
static void norm_back_columns(struct cpu_backend *cpu, const void *arguments, size_t column, size_t count)
{
	const struct norm_back_call *call = arguments;

	(void)cpu;
	for (size_t t = 0; t < call->rows; t++) {
		const size_t at = t * call->width;

		for (size_t c = column; c < column + count; c++)
			call->gweight[c] += call->gy[at + c] * (call->x[at + c] * call->scales[t]);
	}
}

static void cpu_rms_norm_back(struct backend *backend, size_t rows, size_t width, const float *x, const float *weight,
			      float eps, const float *gy, float *scales, float *gx, float *gweight)
{
	const struct norm_back_call call = {rows, width, x, weight, gy, eps, scales, gx, gweight};

	cpu_each_rows(cpu_of(backend), rows, width, norm_back_rows, &call);
	if (gweight)
		cpu_each_rows(cpu_of(backend), width, rows, norm_back_columns, &call);
}

struct bias_back_call {
	size_t rows, width;
	const float *gy;
	float *gbias;
};

#define BIAS_COLUMNS 64 /* sums in double precision at once */

static void bias_back_columns(struct cpu_backend *cpu, const void *arguments, size_t column, size_t count)
{
	const struct bias_back_call *call = arguments;

	(void)cpu;
	while (count) {
		const size_t some = count < BIAS_COLUMNS ? count : BIAS_COLUMNS;
		double sums[BIAS_COLUMNS] = {0};

		for (size_t t = 0; t < call->rows; t++)
			for (size_t c = 0; c < some; c++)
				sums[c] += (double)call->gy[t * call->width + column + c];
		for (size_t c = 0; c < some; c++)
			call->gbias[column + c] += (float)sums[c];
		column += some;
		count -= some;
	}
}

static void cpu_add_bias_back(struct backend *backend, size_t rows, size_t width, const float *gy, float *gbias)
{
	const struct bias_back_call call = {rows, width, gy, gbias};

	cpu_each_rows(cpu_of(backend), width, rows, bias_back_columns, &call);
}

/* ----------------------------------------------------------------------------------------------------- attention -- */

/* The rotation by an angle and that by its opposite differ in the sign of the sine. */
struct turn_call {
	const struct rotary *rotary;
	const float *cosine; /* [steps][head_size]: cosines, then sines */
	size_t steps, heads;
	float sign, *x;
};

static void turn_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct turn_call *call = arguments;
	const size_t size = call->rotary->head_size, half = size / 2;
	const bool halves = call->rotary->pairs == ROTARY_HALVES;
	const size_t step = halves ? 1 : 2, other = halves ? half : 1;

	(void)cpu;
	for (size_t t = row; t < row + count; t++) {
		const float *cosine = call->cosine + t % call->steps * size, *sine = cosine + half;

		for (size_t h = 0; h < call->heads; h++) {
			float *x = call->x + (t * call->heads + h) * size;

			for (size_t i = 0; i < half; i++) {
				float *a = x + step * i, *b = a + other;
				const float real = *a, imaginary = *b, s = call->sign * sine[i];

				*a = real * cosine[i] - imaginary * s;
				*b = imaginary * cosine[i] + real * s;
			}
		}
	}
}

/* The angles of the first `steps` positions are kept, since every layer of every batch uses them. They are followed by
 * the frequencies they were made from. */
static const float *angles_of(struct cpu_backend *cpu, const struct rotary *rotary, size_t steps)
{
	const size_t size = rotary->head_size, half = size / 2;
	struct training_angles *kept = &cpu->training_angles;

	if (kept->head_size == size && kept->steps >= steps &&
	    memcmp(kept->table + kept->steps * size, rotary->frequencies, half * sizeof(float)) == 0)
		return kept->table;
	float *table = realloc(kept->table, (steps * size + half) * sizeof(*table));

	if (!table)
		return NULL;
	for (size_t t = 0; t < steps; t++) {
		for (size_t i = 0; i < half; i++) {
			const double angle = (double)((float)t * rotary->frequencies[i]);

			table[t * size + i] = (float)cos(angle);
			table[t * size + half + i] = (float)sin(angle);
		}
	}
	memcpy(table + steps * size, rotary->frequencies, half * sizeof(*table));
	*kept = (struct training_angles){size, steps, table};
	return table;
}

static void cpu_rotate_back(struct backend *backend, const struct rotary *rotary, size_t batch, size_t steps,
			    size_t heads, bool back, float *x)
{
	const struct turn_call call = {rotary, cpu_of(backend)->training_angles.table, steps, heads, back ? -1 : 1, x};

	cpu_each_rows(cpu_of(backend), batch * steps, heads * rotary->head_size, turn_rows, &call);
}

static rosa_status cpu_attention_reserve(struct backend *backend, const struct rotary *rotary,
					 const struct attention_shape *shape, rosa_error *err)
{
	struct cpu_backend *cpu = cpu_of(backend);
	const size_t need = attention_train_scratch(shape) * cpu->threads;
	float *scratch;

	if (!angles_of(cpu, rotary, shape->steps))
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the angles of %zu positions", shape->steps);
	if (need <= cpu->attention_room)
		return ROSA_OK;
	scratch = realloc(cpu->attention_scratch, need * sizeof(*scratch));
	if (!scratch)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for attention over %zu steps", shape->steps);
	cpu->attention_scratch = scratch;
	cpu->attention_room = need;
	return ROSA_OK;
}

static void cpu_attention(struct backend *backend, const struct attention_shape *shape, const float *q, const float *k,
			  const float *v, float *y, float *level)
{
	struct cpu_backend *cpu = cpu_of(backend);

	attention_train(cpu->pool, cpu->attention_scratch, shape, q, k, v, y, level);
}

static void cpu_attention_back(struct backend *backend, const struct attention_shape *shape, const float *q,
			       const float *k, const float *v, const float *y, const float *level, const float *gy,
			       float *gq, float *gk, float *gv)
{
	struct cpu_backend *cpu = cpu_of(backend);

	attention_train_back(cpu->pool, cpu->attention_scratch, shape, q, k, v, y, level, gy, gq, gk, gv);
}

/* --------------------------------------------------------------------------------------------- gates, embeddings -- */

struct swiglu_back_call {
	const float *gate, *up, *gy;
	float *ggate, *gup;
};

/* y = gate s(gate) up: ggate = gy up s (1 + gate (1 - s)), gup = gy gate s */
static void swiglu_back_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct swiglu_back_call *call = arguments;

	(void)cpu;
	for (size_t i = row; i < row + count; i++) {
		const float gate = call->gate[i], s = sigmoid(gate), gy = call->gy[i], up = call->up[i];

		call->gup[i] = gy * gate * s;
		call->ggate[i] = gy * up * s * (1 + gate * (1 - s));
	}
}

static void cpu_swiglu_back(struct backend *backend, size_t count, const float *gate, const float *up, const float *gy,
			    float *ggate, float *gup)
{
	const struct swiglu_back_call call = {gate, up, gy, ggate, gup};

	cpu_each_rows(cpu_of(backend), count, 1, swiglu_back_rows, &call);
}

struct mix_back_call {
	size_t steps, channels;
	const float *a0, *h, *x, *gy;
	float *gh, *gx, *ga0;
};

static void mix_back_columns(struct cpu_backend *cpu, const void *arguments, size_t column, size_t count)
{
	const struct mix_back_call *call = arguments;

	(void)cpu;
	for (size_t t = 0; t < call->steps; t++) {
		const size_t at = t * call->channels;

		for (size_t c = column; c < column + count; c++) {
			const float a = sigmoid(call->a0[c]), gy = call->gy[at + c];

			call->gh[at + c] += (1 - a) * gy;
			call->gx[at + c] = a * gy;
			if (call->ga0)
				call->ga0[c] += (call->x[at + c] - call->h[at + c]) * gy * (a * (1 - a));
		}
	}
}

static void cpu_mix_back(struct backend *backend, size_t steps, size_t channels, const float *a0, const float *h,
			 const float *x, const float *gy, float *gh, float *gx, float *ga0)
{
	const struct mix_back_call call = {steps, channels, a0, h, x, gy, gh, gx, ga0};

	cpu_each_rows(cpu_of(backend), channels, steps, mix_back_columns, &call);
}

struct gate_back_call {
	size_t channels;
	const float *w, *z, *y;
	float *gy, *ga, *gu;
};

static void gate_back_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct gate_back_call *call = arguments;

	(void)cpu;
	for (size_t t = row; t < row + count; t++) {
		const float *y = call->y + t * call->channels;
		float *gy = call->gy + t * call->channels, *gu = call->gu ? call->gu + t * call->channels : NULL, ga;
		double lane[LANES] = {0};

		for (size_t c = 0; c < call->channels; c++)
			lane[c % LANES] += (double)gy[c] * (double)y[c];
		call->ga[t] = ga = (float)(lanes_sum(lane) * (1 - (double)call->z[t] / 2));
		for (size_t c = 0; c < call->channels; c++)
			gy[c] *= call->z[t];
		for (size_t c = 0; gu && c < call->channels; c++)
			gu[c] += ga * call->w[c];
	}
}

static void cpu_gate_back(struct backend *backend, size_t steps, size_t channels, const float *w, const float *z,
			  const float *y, float *gy, float *ga, float *gu)
{
	const struct gate_back_call call = {channels, w, z, y, gy, ga, gu};

	cpu_each_rows(cpu_of(backend), steps, channels, gate_back_rows, &call);
}

struct embed_back_call {
	size_t steps, width;
	const uint32_t *tokens;
	const float *gy;
	float *gweight;
};

static void embed_back_columns(struct cpu_backend *cpu, const void *arguments, size_t column, size_t count)
{
	const struct embed_back_call *call = arguments;

	(void)cpu;
	for (size_t t = 0; t < call->steps; t++) {
		float *to = call->gweight + call->tokens[t] * call->width;

		for (size_t c = column; c < column + count; c++)
			to[c] += call->gy[t * call->width + c];
	}
}

static void cpu_embed_back(struct backend *backend, size_t steps, size_t width, const uint32_t *tokens, const float *gy,
			   float *gweight)
{
	const struct embed_back_call call = {steps, width, tokens, gy, gweight};

	cpu_each_rows(cpu_of(backend), width, steps, embed_back_columns, &call);
}

/* ---------------------------------------------------------------------------------------------------------- loss -- */

struct loss_call {
	size_t vocabulary;
	float *logits, scale;
	const uint32_t *targets;
	const float *weight;
	uint8_t *correct;
	double *losses; /* one per row */
};

static void loss_row(const struct loss_call *call, size_t t)
{
	float *x = call->logits + t * call->vocabulary, greatest = x[0];
	const float weight = call->weight ? call->weight[t] : 1, aim = x[call->targets[t]];
	double lane[LANES] = {0}, sum;

	if (call->correct)
		call->correct[t] = weight != 0;
	for (size_t i = 0; i < call->vocabulary; i++) {
		greatest = x[i] > greatest ? x[i] : greatest;
		if (call->correct && (x[i] > aim || (x[i] == aim && i < call->targets[t])))
			call->correct[t] = 0;
	}
	for (size_t i = 0; i < call->vocabulary; i++) {
		x[i] = exp_minus(x[i] - greatest);
		lane[i % LANES] += (double)x[i];
	}
	sum = lanes_sum(lane);
	const float factor = (float)((double)(weight * call->scale) / sum);

	for (size_t i = 0; i < call->vocabulary; i++)
		x[i] *= factor;
	x[call->targets[t]] -= weight * call->scale;
	call->losses[t] = (double)weight * (log(sum) + (double)greatest - (double)aim);
}

static void loss_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct loss_call *call = arguments;

	(void)cpu;
	for (size_t t = row; t < row + count; t++) {
		if (call->weight && call->weight[t] == 0) {
			memset(call->logits + t * call->vocabulary, 0, call->vocabulary * sizeof(float));
			call->losses[t] = 0;
			if (call->correct)
				call->correct[t] = 0;
		} else {
			loss_row(call, t);
		}
	}
}

#define LOSS_ROWS ((size_t)256)

static double cpu_cross_entropy(struct backend *backend, size_t rows, size_t vocabulary, float *logits,
				const uint32_t *targets, const float *weight, float scale, uint8_t *correct,
				double *losses)
{
	double some[LOSS_ROWS], sum = 0;

	for (size_t first = 0; first < rows; first += LOSS_ROWS) {
		const size_t count = rows - first < LOSS_ROWS ? rows - first : LOSS_ROWS;
		const struct loss_call call = {vocabulary,
					       logits + first * vocabulary,
					       scale,
					       targets + first,
					       weight ? weight + first : NULL,
					       correct ? correct + first : NULL,
					       some};

		cpu_each_rows(cpu_of(backend), count, vocabulary, loss_rows, &call);
		for (size_t t = 0; t < count; t++)
			sum += some[t];
		if (losses)
			memcpy(losses + first, some, count * sizeof(*some));
	}
	return sum;
}

/* ------------------------------------------------------------------------------------------------- tokens seen -- */

struct seen_call {
	const struct seen_rows *seen;
	const float *table, *g, *s, *glogits;
	float *logits, *gs, *gg;
};

static void seen_some(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct seen_call *call = arguments;
	const struct seen_rows *seen = call->seen;

	(void)cpu;
	for (size_t t = row; t < row + count; t++) {
		for (size_t j = 0; j < seen->count; j++) {
			const size_t at = t * seen->count + j;

			if (seen->classes[at])
				call->logits[t * seen->vocabulary + seen->tokens[j]] +=
				    call->table[seen->classes[at] - 1] + call->g[t] + call->s[at];
		}
	}
}

static void cpu_seen(struct backend *backend, const struct seen_rows *seen, const float *table, const float *g,
		     const float *s, float *logits)
{
	const struct seen_call call = {.seen = seen, .table = table, .g = g, .s = s, .logits = logits};

	cpu_each_rows(cpu_of(backend), seen->rows, seen->count, seen_some, &call);
}

static void seen_back_some(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct seen_call *call = arguments;
	const struct seen_rows *seen = call->seen;

	(void)cpu;
	for (size_t t = row; t < row + count; t++) {
		double sum = 0;

		for (size_t j = 0; j < seen->count; j++) {
			const size_t at = t * seen->count + j;

			call->gs[at] = seen->classes[at] ? call->glogits[t * seen->vocabulary + seen->tokens[j]] : 0;
			sum += (double)call->gs[at];
		}
		call->gg[t] = (float)sum;
	}
}

static void cpu_seen_back(struct backend *backend, const struct seen_rows *seen, const float *glogits, float *gs,
			  float *gg, float *gtable)
{
	const struct seen_call call = {.seen = seen, .glogits = glogits, .gs = gs, .gg = gg};
	double sums[UINT8_MAX + 1] = {0};

	cpu_each_rows(cpu_of(backend), seen->rows, seen->count, seen_back_some, &call);
	for (size_t at = 0; gtable && at < seen->rows * seen->count; at++)
		sums[seen->classes[at]] += (double)gs[at];
	for (size_t c = 0; gtable && c < seen->classes_most; c++)
		gtable[c] += (float)sums[c + 1];
}

/* ----------------------------------------------------------------------------------------------------- optimiser -- */

#define SQUARE_BLOCK ((size_t)65536)
#define SQUARE_MOST  ((size_t)64) /* blocks between two additions to the total */

struct square_call {
	const float *x;
	size_t count;
	double *sums;
};

static void square_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct square_call *call = arguments;

	(void)cpu;
	for (size_t b = row; b < row + count; b++) {
		const size_t at = b * SQUARE_BLOCK, left = call->count - at,
			     some = left < SQUARE_BLOCK ? left : SQUARE_BLOCK;

		call->sums[b] = dot(some, call->x + at, call->x + at);
	}
}

static double cpu_square_sum(struct backend *backend, size_t count, const float *x)
{
	const size_t most = SQUARE_BLOCK * SQUARE_MOST;
	double sums[SQUARE_MOST], total = 0;

	for (size_t at = 0; at < count; at += most) {
		const size_t some = count - at < most ? count - at : most,
			     blocks = (some + SQUARE_BLOCK - 1) / SQUARE_BLOCK;
		const struct square_call call = {x + at, some, sums};

		cpu_each_rows(cpu_of(backend), blocks, SQUARE_BLOCK, square_rows, &call);
		for (size_t b = 0; b < blocks; b++)
			total += sums[b];
	}
	return total;
}

struct adamw_call {
	float beta1, beta2, scale, rate, eps, keep; /* keep: the share of a value that decay leaves */
	float correction;                           /* of the second moment, applied to its root */
	const float *grad;
	float *value, *first, *second;
};

static void adamw_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct adamw_call *c = arguments;

	(void)cpu;
	for (size_t i = row; i < row + count; i++) {
		const float g = c->grad[i] * c->scale;

		c->first[i] = c->beta1 * c->first[i] + (1 - c->beta1) * g;
		c->second[i] = c->beta2 * c->second[i] + (1 - c->beta2) * g * g;
		c->value[i] =
		    c->value[i] * c->keep - c->rate * c->first[i] / (sqrtf(c->second[i]) * c->correction + c->eps);
	}
}

static void cpu_adamw(struct backend *backend, const struct adamw *adamw, size_t count, float scale, const float *grad,
		      float *value, float *first, float *second)
{
	const double left1 = 1 - pow(adamw->beta1, (double)adamw->step),
		     left2 = 1 - pow(adamw->beta2, (double)adamw->step);
	const struct adamw_call call = {.beta1 = (float)adamw->beta1,
					.beta2 = (float)adamw->beta2,
					.scale = scale,
					.rate = (float)(adamw->rate / left1),
					.eps = (float)adamw->eps,
					.keep = (float)(1 - adamw->rate * adamw->decay),
					.correction = (float)(1 / sqrt(left2)),
					.grad = grad,
					.value = value,
					.first = first,
					.second = second};

	cpu_each_rows(cpu_of(backend), count, 1, adamw_rows, &call);
}

struct clear_call {
	float *x;
};

static void clear_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	(void)cpu;
	memset(((const struct clear_call *)arguments)->x + row, 0, count * sizeof(float));
}

static void cpu_clear(struct backend *backend, size_t count, float *x)
{
	const struct clear_call call = {x};

	cpu_each_rows(cpu_of(backend), count, 1, clear_rows, &call);
}

const struct training_ops cpu_training_ops = {
    .multiply = cpu_training_multiply,
    .multiply_back = cpu_multiply_back,
    .multiply_grad = cpu_multiply_grad,
    .add_bias_back = cpu_add_bias_back,
    .rms_norm_back = cpu_rms_norm_back,
    .rotate = cpu_rotate_back,
    .attention_reserve = cpu_attention_reserve,
    .attention = cpu_attention,
    .attention_back = cpu_attention_back,
    .swiglu_back = cpu_swiglu_back,
    .mix_back = cpu_mix_back,
    .gate_back = cpu_gate_back,
    .embed_back = cpu_embed_back,
    .seen = cpu_seen,
    .seen_back = cpu_seen_back,
    .cross_entropy = cpu_cross_entropy,
    .square_sum = cpu_square_sum,
    .adamw = cpu_adamw,
    .clear = cpu_clear,
};
