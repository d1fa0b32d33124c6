/*
 * Fitting a pointer.
 *
 * The loss of a position is ln(1 + sum a_i) - ln(p + sum over hits a_i), and every ln a_i is linear in the variables,
 * so the gradient is a difference of two shares: that of link i in the whole mixture, and that in the probability of
 * the token that came. The seen table changes p to p_0, and the gradient of -ln p_0 is a difference of that kind
 * too: the class's share of the raised probabilities, less 1 if the token is of the class. Some ten thousand positions
 * and some dozen variables: seconds on one core.
 *
 * A weak L2 penalty towards the initial values, weighted like a fraction of one position, determines parameters for
 * which there is no data. In the seen table many classes are rare, so it has a smoothness penalty between adjacent
 * entries instead, and a small L2 penalty.
 */
#include "train/pointer_fit.h"

#include "base/array.h"
#include "base/status.h"
#include "train/minimise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PULL        0.3 /* weight of the penalty, in positions */
#define SEEN        (SEEN_COUNTS * SEEN_RANKS)
#define SEEN_SMOOTH 1.0  /* nats per squared difference between adjacent entries of the table */
#define SEEN_SHRINK 0.05 /* nats per square of an entry */
#define STEPS       300  /* at most */
#define GAIN        1e-8 /* of the loss: steps that gain less end the search */

struct pointer pointer_chosen(const struct pointer_choice *choice, size_t window)
{
	const bool chain = choice->links != 0;

	return (struct pointer){.delay = choice->delay == KEY_UNSET ? window : (size_t)choice->delay,
				.links = chain ? (size_t)choice->links : POINTER_LINKS,
				.contexts = !chain,
				.confident = chain && choice->confidence,
				.agreeing = chain && choice->agreement,
				.seeing = !chain && choice->seen};
}

rosa_status pointer_positions_add(struct pointer_positions *positions, const struct pointer_sample *sample, bool far,
				  rosa_error *err)
{
	if (!ARRAY_RESERVE(positions->samples, positions->room, positions->count + 1) ||
	    !ARRAY_RESERVE(positions->far, positions->far_room, positions->count + 1))
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu positions; take fewer", positions->count + 1);
	positions->samples[positions->count] = *sample;
	positions->far[positions->count++] = far;
	return ROSA_OK;
}

void pointer_positions_free(struct pointer_positions *positions)
{
	free(positions->samples);
	free(positions->far);
	memset(positions, 0, sizeof(*positions));
}

struct pointer_losses pointer_judge(const struct pointer_positions *positions, size_t first, size_t end,
				    const struct pointer *pointer)
{
	struct pointer_losses losses = {.count = end - first};

	for (size_t n = first; n < end; n++) {
		const struct pointer_sample *sample = &positions->samples[n];
		const double loss = pointer ? pointer_loss(pointer, sample) : -sample->target;

		*(positions->far[n] ? &losses.far : &losses.rest) += loss;
		losses.far_count += positions->far[n];
	}
	losses.all = (losses.far + losses.rest) / (double)losses.count; /* 0 / 0 is the NaN that is wanted */
	losses.far /= (double)losses.far_count;
	losses.rest /= (double)(losses.count - losses.far_count);
	return losses;
}

/* ---------------------------------------------------------------------------------------------------- variables -- */

struct fit {
	const struct pointer_positions *positions;
	size_t count;
	struct pointer start, here; /* here: the variables, as a pointer */
	double factors[SEEN_CLASSES];
};

static size_t rows(const struct pointer *pointer)
{
	return pointer->contexts ? 1 : pointer->links;
}

/* Where variable number i of a pointer is: theta link by link, then the slopes, the agreement, the features and the
 * table, as far as they are used. NULL: there are fewer. */
static double *variable(struct pointer *pointer, size_t i)
{
	const struct {
		double *numbers;
		size_t count;
	} parts[] = {{pointer->theta[0], rows(pointer) * POINTER_LENGTHS},
		     {pointer->slope[0], pointer->confident ? pointer->links * 2 : 0},
		     {pointer->agreement, pointer->agreeing ? pointer->links : 0},
		     {pointer->feature, pointer->contexts ? POINTER_FEATURES : 0},
		     {pointer->seen[0], pointer->seeing ? SEEN : 0}};

	for (size_t p = 0; p < sizeof(parts) / sizeof(parts[0]); p++) {
		if (i < parts[p].count)
			return parts[p].numbers + i;
		i -= parts[p].count;
	}
	return NULL;
}

static size_t variables(const struct pointer *pointer)
{
	return rows(pointer) * POINTER_LENGTHS +
	       pointer->links * ((pointer->confident ? 2 : 0) + (pointer->agreeing ? 1 : 0)) +
	       (pointer->contexts ? POINTER_FEATURES : 0) + (pointer->seeing ? SEEN : 0);
}

static void take_variables(struct pointer *pointer, const double *x)
{
	for (size_t i = 0; i < variables(pointer); i++)
		*variable(pointer, i) = x[i];
}

/* Adds the gradient of the table. `slope` is that of the loss by ln p_0(next token). */
static void learn_seen(const struct pointer_sample *sample, const double *factors, double raised, double slope,
		       double *gradient)
{
	const double scale = slope / raised;

	for (size_t k = 1; k < SEEN_CLASSES; k++)
		gradient[k - 1] -= scale * (double)sample->mass[k] * factors[k];
	if (sample->target_class)
		gradient[sample->target_class - 1] += slope;
}

/* Adds the gradient of one position's loss to `gradient`; returns the loss. */
static double learn(const struct pointer *pointer, const double *factors, const struct pointer_sample *sample,
		    struct pointer *gradient)
{
	const size_t links = sample->count < pointer->links ? sample->count : pointer->links;
	double weights[POINTER_LINKS], whole = pointer_weigh(pointer, sample, weights), share = sample->target;
	double features[POINTER_FEATURES], base = sample->target, raised = 1;

	if (pointer->seeing)
		share = base = pointer_base(sample, factors, &raised);
	for (size_t i = 0; i < links; i++)
		share = sample->hit[i] ? log_add(share, weights[i]) : share;
	for (size_t i = 0; i < links; i++) {
		const size_t length = sample->length[i] < POINTER_LENGTHS ? sample->length[i] : POINTER_LENGTHS - 1;
		const double slope = exp(weights[i] - whole) - (sample->hit[i] ? exp(weights[i] - share) : 0);

		gradient->theta[pointer->contexts ? 0 : i][length] += slope;
		gradient->slope[i][0] += slope * sample->token[i];
		gradient->slope[i][1] += slope * sample->greatest;
		gradient->agreement[sample->different - 1] += slope;
		if (!pointer->contexts)
			continue;
		pointer_features(sample, i, features);
		for (size_t f = 0; f < POINTER_FEATURES; f++)
			gradient->feature[f] += slope * features[f];
	}
	if (pointer->seeing)
		learn_seen(sample, factors, raised, -exp(base - share), gradient->seen[0]);
	return whole - share;
}

/* Neighbours of the table prefer to be equal. */
static double attract(const double *seen, size_t i, size_t j, double *gradient)
{
	const double apart = seen[i] - seen[j];

	gradient[i] += 2 * SEEN_SMOOTH * apart;
	gradient[j] -= 2 * SEEN_SMOOTH * apart;
	return SEEN_SMOOTH * apart * apart;
}

/* What the table costs by itself; adds the gradient. */
static double smooth_seen(const double *seen, double *gradient)
{
	double cost = 0;

	for (size_t k = 0; k < SEEN; k++) {
		cost += SEEN_SHRINK * seen[k] * seen[k];
		gradient[k] += 2 * SEEN_SHRINK * seen[k];
		if (k % SEEN_RANKS)
			cost += attract(seen, k, k - 1, gradient);
		if (k >= SEEN_RANKS)
			cost += attract(seen, k, k - SEEN_RANKS, gradient);
	}
	return cost;
}

static double loss_of(void *context, const double *x, double *gradient)
{
	struct fit *fit = context;
	struct pointer sums = {.links = fit->here.links,
			       .contexts = fit->here.contexts,
			       .confident = fit->here.confident,
			       .agreeing = fit->here.agreeing,
			       .seeing = fit->here.seeing};
	const size_t pulled = variables(&fit->here) - (fit->here.seeing ? SEEN : 0); /* the table is last */
	double loss = 0;

	take_variables(&fit->here, x);
	for (size_t i = 0; i < variables(&fit->here); i++)
		if (!(fabs(x[i]) <= POINTER_LARGEST))
			return INFINITY; /* the file could not hold it */
	pointer_factors(&fit->here, fit->factors);
	for (size_t n = 0; n < fit->count; n++)
		loss += learn(&fit->here, fit->factors, &fit->positions->samples[n], &sums);
	if (fit->here.seeing)
		loss += smooth_seen(fit->here.seen[0], sums.seen[0]);
	for (size_t i = 0; i < variables(&fit->here); i++) {
		const double away = i < pulled ? x[i] - *variable(&fit->start, i) : 0;

		gradient[i] = (*variable(&sums, i) + PULL * away) / (double)fit->count;
		loss += PULL / 2 * away * away;
	}
	return loss / (double)fit->count;
}

/* --------------------------------------------------------------------------------------------------------- whole -- */

rosa_status pointer_fit(const struct pointer_positions *positions, size_t count, struct pointer *pointer,
			rosa_progress progress, void *context, rosa_error *err)
{
	double x[POINTER_LINKS * (POINTER_LENGTHS + 3)];
	struct fit fit = {.positions = positions, .count = count};
	rosa_status status;

	memset(pointer->theta, 0, sizeof(pointer->theta));
	memset(pointer->slope, 0, sizeof(pointer->slope));
	memset(pointer->agreement, 0, sizeof(pointer->agreement));
	memset(pointer->feature, 0, sizeof(pointer->feature));
	memset(pointer->seen, 0, sizeof(pointer->seen));
	for (size_t i = 0; i < rows(pointer); i++)
		for (size_t l = 0; l < POINTER_LENGTHS; l++)
			pointer->theta[i][l] = -5 + 0.35 * (double)l; /* longer matches are right more often */
	fit.start = fit.here = *pointer;
	for (size_t i = 0; i < variables(pointer); i++)
		x[i] = *variable(pointer, i);
	status = minimise(variables(pointer), x, loss_of, &fit, STEPS, GAIN, progress, context, err);
	if (status == ROSA_OK)
		take_variables(pointer, x);
	return status;
}

rosa_status pointer_fit_and_judge(const struct pointer_positions *positions, struct pointer_fitted *fitted,
				  rosa_progress progress, void *context, rosa_error *err)
{
	const size_t count = positions->count, fit = count - count / 5;
	rosa_status status;

	if (count < POINTER_FEWEST)
		return rosa_fail(err, ROSA_EINVAL,
				 "there are %zu positions to fit a pointer to; give more text, for %d or more", count,
				 POINTER_FEWEST);
	status = pointer_fit(positions, fit, &fitted->pointer, progress, context, err);
	fitted->fitted = fit;
	fitted->before = pointer_judge(positions, fit, count, NULL);
	fitted->after = pointer_judge(positions, fit, count, &fitted->pointer);
	return status;
}
