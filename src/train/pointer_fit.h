/* The weights of a pointer by maximum likelihood, with the model frozen. */
#pragma once

#include "model/keys.h"
#include "model/pointer.h"

/* What pointer to fit. */
struct pointer_choice {
	uint64_t links;             /* of a chain; 0: a pointer by contexts */
	uint64_t delay;             /* KEY_UNSET: the window */
	uint64_t positions;         /* to fit to */
	bool confidence, agreement; /* of a chain */
	bool seen;                  /* by contexts: with the table of tokens seen */
};
#define POINTER_CHOICE_INIT                                                                                            \
	{                                                                                                              \
		.delay = KEY_UNSET, .positions = 40960, .confidence = true, .agreement = true, .seen = true            \
	}

/* The pointer of that choice beside a window, its numbers 0. */
struct pointer pointer_chosen(const struct pointer_choice *choice, size_t window);

/* Positions of texts that the model was not trained on: where it has learnt a text by heart it needs no pointer, and
 * the weights would come out too small. */
struct pointer_positions {
	struct pointer_sample *samples; /* [count] */
	bool *far;                      /* [count]: the next token is far (far.h) */
	size_t count, room, far_room;
};

rosa_status pointer_positions_add(struct pointer_positions *positions, const struct pointer_sample *sample, bool far,
				  rosa_error *err);
void pointer_positions_free(struct pointer_positions *positions); /* safe on a zeroed one */

/* Mean losses of positions first .. end-1, without a pointer (NULL) or with one. A mean of nothing is NaN. */
struct pointer_losses {
	double far, rest, all;
	size_t far_count, count;
};
struct pointer_losses pointer_judge(const struct pointer_positions *positions, size_t first, size_t end,
				    const struct pointer *pointer);

/* Sets theta, the slopes if pointer->confident, the agreement if pointer->agreeing, the slopes of features if
 * pointer->contexts, and the table if pointer->seeing, to what makes the mean loss of positions 0 .. count-1 least; all
 * else is given. Lengths and links that hardly occur stay near where they start, classes of tokens near their
 * neighbours. */
rosa_status pointer_fit(const struct pointer_positions *positions, size_t count, struct pointer *pointer,
			rosa_progress progress, void *context, rosa_error *err);

/* pointer_fit on the first four fifths, and what the last fifth loses without the pointer and with it. Too few
 * positions (POINTER_FEWEST) are refused. */
#define POINTER_FEWEST 1000
struct pointer_fitted {
	struct pointer pointer;
	struct pointer_losses before, after;
	size_t fitted; /* positions that were fitted to */
};
rosa_status pointer_fit_and_judge(const struct pointer_positions *positions, struct pointer_fitted *fitted,
				  rosa_progress progress, void *context, rosa_error *err);
