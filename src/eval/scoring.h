/* The loss of each token of some texts under a decoder. */
#pragma once

#include "model/decoder.h"
#include "model/pointer_past.h"

enum { SCORED_LIKELIEST = 1, SCORED_MIXED_LIKELIEST = 2 }; /* without and with the pointer */

/* One text, read from an empty state. */
struct scored_text {
	const uint32_t *tokens;
	size_t count;
	double *losses;                 /* [count]: -ln p(tokens[t] | tokens[0..t-1]), filled in from `first` on */
	double *mixed;                  /* the same with the pointer; not used without one */
	struct pointer_sample *samples; /* [count]: what the losses were made from, likewise; NULL: not wanted */
	uint8_t *likeliest;             /* [count]: SCORED_* where no token is likelier, likewise; NULL: not wanted */
};

struct scoring {
	decoder *decoder;
	rosa_workers *workers;
	size_t batch;                  /* texts read side by side, at least 1 */
	size_t first;                  /* the first token that is scored, at least 1 */
	const struct pointer *pointer; /* NULL: none */
	size_t shared; /* tokens, less than `first`, that all texts begin with; a batch reads them once */
};

/* Scores the texts. The losses do not depend on the batch or on the number of threads. `progress` (may be NULL) is told
 * the number of tokens read, of all there are to read; nonzero from it stops with ROSA_ECANCELLED. */
rosa_status score_texts(const struct scoring *scoring, struct scored_text *texts, size_t count, rosa_progress progress,
			void *context, rosa_error *err);

/* How many tokens score_texts reads where nothing is shared: the last token of a text is scored but not read. */
uint64_t score_tokens(const struct scored_text *texts, size_t count);
