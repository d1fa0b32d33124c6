/*
 * Fitting a pointer to a network.
 *
 * The positions are those that recall judges: from four windows on, of texts read from an empty state. A sample's text
 * is its tokens and its last target. What does not count in training, such as the filling of a last sample, does not
 * count here.
 */
#include "train/pointer_stage.h"

#include "base/status.h"
#include "model/pointer_past.h"
#include "train/far.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct reading {
	network *network;
	const struct tune_stage *stage;
	size_t length, window, vocabulary;
	uint32_t *text, *targets, *distance; /* [length + 1], [length], [length + 1] */
	float *weight;                       /* [length] */
	pointer_past *past;                  /* of the sample that is read */
	struct pointer_positions positions;
	rosa_status status; /* of looking up and of keeping positions */
	rosa_error *err;
};

rosa_status pointer_stage_check(const struct tune_stage *stage, uint64_t window, rosa_error *err)
{
	if (!window)
		return rosa_fail(err, ROSA_EINVAL,
				 "stage %.40s: a pointer finds what a window no longer sees, and the window is 0: set "
				 "adapter.window",
				 stage->name);
	if (stage->pointer.delay && pointer_chosen(&stage->pointer, window).delay < window)
		return rosa_fail(err, ROSA_EINVAL,
				 "stage %.40s: pointer.delay is %" PRIu64 ", and attention still sees what would be "
				 "found; give the window (%" PRIu64 ") or more, 0 or null",
				 stage->name, stage->pointer.delay, window);
	if (stage->length > far_first(window))
		return ROSA_OK;
	return rosa_fail(err, ROSA_EINVAL,
			 "stage %.40s: length is %" PRIu64 "; positions from four windows (%zu) on are used: give more",
			 stage->name, stage->length, far_first(window));
}

static void keep_positions(void *context, size_t first, size_t rows, const float *logits)
{
	struct reading *r = context;

	for (size_t i = 0; i < rows && r->status == ROSA_OK; i++) {
		const size_t t = first + i; /* the token at t + 1 is predicted */
		struct pointer_links found;

		r->status = pointer_past_add(r->past, r->text + t, 1, &found, r->err);
		if (r->status != ROSA_OK || t + 1 < far_first(r->window) || r->weight[t] == 0 ||
		    r->positions.count >= r->stage->pointer.positions)
			continue;
		const struct pointer_sample sample = pointer_sample(
		    &found, pointer_past_seen(r->past), logits + i * r->vocabulary, r->vocabulary, r->targets[t]);

		r->status = pointer_positions_add(&r->positions, &sample, r->distance[t + 1] >= r->window, r->err);
	}
}

/* One sample: forward pass, look-up, positions. */
static rosa_status read_one(struct reading *r, const dataset *data, uint64_t n, const struct pointer *pointer)
{
	const struct batch batch = {1, r->length, r->text, r->targets, r->weight, NULL};
	const struct network_judging judging = {.logits = keep_positions, .context = r};
	struct batch_result result;
	rosa_status status;

	dataset_sample(data, n, r->text, r->targets, r->weight);
	r->text[r->length] = r->targets[r->length - 1];
	status = far_distances(r->text, r->length + 1, r->distance, r->err);
	if (status == ROSA_OK)
		status = pointer_past_new(pointer, r->vocabulary, &r->past, r->err);
	if (status == ROSA_OK)
		status = network_judge(r->network, &batch, &judging, &result, r->err);
	pointer_past_free(r->past);
	r->past = NULL;
	return status == ROSA_OK ? r->status : status;
}

static rosa_status read_all(struct reading *r, const dataset *data, const struct pointer *pointer,
			    rosa_progress progress, void *context)
{
	const uint64_t samples = dataset_facts(data)->samples, wanted = r->stage->pointer.positions;
	rosa_status status = ROSA_OK;

	for (uint64_t n = 0; n < samples && r->positions.count < wanted && status == ROSA_OK; n++) {
		if (progress && progress(context, r->positions.count, wanted) != 0)
			return rosa_fail(r->err, ROSA_ECANCELLED, "stopped");
		status = read_one(r, data, n, pointer);
	}
	return status;
}

rosa_status pointer_stage_run(network *network, const dataset *data, const struct tune_stage *stage,
			      struct pointer_fitted *fitted, rosa_progress progress, void *context, rosa_error *err)
{
	const size_t length = (size_t)stage->length, window = (size_t)network_settings(network)->adapter.window;
	struct reading r = {.network = network,
			    .stage = stage,
			    .length = length,
			    .window = window,
			    .vocabulary = network_config(network)->vocabulary,
			    .err = err};
	rosa_status status = pointer_stage_check(stage, window, err);

	memset(fitted, 0, sizeof(*fitted));
	if (status != ROSA_OK)
		return status;
	fitted->pointer = pointer_chosen(&stage->pointer, window);
	r.text = calloc(3 * (length + 1), sizeof(*r.text));
	r.distance = r.text ? r.text + length + 1 : NULL;
	r.targets = r.text ? r.text + 2 * (length + 1) : NULL;
	r.weight = calloc(length, sizeof(*r.weight));
	if (!r.text || !r.weight)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for a sequence of %zu tokens", length);
	if (status == ROSA_OK)
		status = read_all(&r, data, &fitted->pointer, progress, context);
	if (status == ROSA_OK)
		status = pointer_fit_and_judge(&r.positions, fitted, progress, context, err);
	pointer_positions_free(&r.positions);
	free(r.text);
	free(r.weight);
	return status;
}
