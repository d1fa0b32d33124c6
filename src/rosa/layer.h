/*
 * What the two passes of a layer share: a call with its arguments and memory, the tape, and the steps that both take.
 *
 * layer.c has the reasons.
 */
#ifndef ROSATUNE_LAYER_H
#define ROSATUNE_LAYER_H

#include "rosatune.h"

#include "rosa/projection.h"
#include "rosa/rows.h"

struct rosa_tape {
	rosa_options options;
	rosa_learning learning;
	rosa_fusion fusion;
	rosa_dtype dtype;
	bool shared; /* wq == wk */
	size_t batch, steps, channels;
	/* Each [batch][steps][channels]. k is q if shared; both are NULL if no rule reads them. */
	void *h, *q, *k, *v;
	void *read, *flips; /* as rosa_find fills them; flips NULL without counterfactuals */
	size_t bytes;       /* all of it */
};

/* One call: its arguments, checked and in full, its memory, and the rows it is at. */
struct call {
	rosa_options options;
	rosa_learning learning;
	rosa_layer layer;
	size_t batch, steps;
	size_t routes; /* of one batch entry */
	bool shared;
	struct rows rows;
	struct products products;
	const void *h;
	float *room[3];    /* [a chunk of rows][channels] */
	float *scale;      /* [a chunk of rows], 1 / rms */
	float *worker_row; /* [workers][2][channels] */
	float *gate;       /* [channels], a; ROSA_PRE only */
	unsigned workers;
	void *block[24]; /* all memory of the call */
	size_t blocks;
	bool short_of_memory;
};

/* Take the arguments of a pass, those that both have, and check them. */
rosa_status call_check(const rosa_options *options, const rosa_learning *learning, const rosa_layer *layer,
		       size_t batch, size_t steps, struct call *call, rosa_error *err);

/* Bytes of an array of all rows, and whether two of them have none in common. */
size_t call_bytes(const struct call *call);
rosa_status call_check_apart(const struct call *call, const char *a_name, const void *a, const char *b_name,
			     const void *b, rosa_error *err);

/* Memory until the end of the call. NULL is noted for call_begin, so that it need not be looked for after each. */
void *call_take(struct call *call, size_t size);

/* Workers, and room for as many chunks of rows as the pass has in hand at once. Fails if any memory taken so far was
 * not there. */
rosa_status call_begin(struct call *call, size_t rooms, rosa_error *err);

/* Give back workers and memory; also after a call_begin that failed or never came. */
void call_end(struct call *call);

/* One of the two rows that belong to a worker. */
float *row_of_worker(const struct call *call, unsigned worker, size_t which);

/* Row `row`, counted from the first of all, of an array that holds the chunk alone. */
float *row_of_chunk(const struct call *call, float *chunk, size_t row);

/* Work on a block of the chunk, the context being the call: room[0] = U, and the scale of its rows. */
pool_work norm_block;

struct packing {
	const struct call *call;
	const float *wide; /* the chunk's rows before rounding; NULL: they are there */
	char *narrow;      /* the chunk's rows */
	uint16_t *symbols; /* [batch][routes][steps] */
};

/* ... the context being a packing: round the rows to the dtype of the activations and take the symbols of what they
 * have become. */
pool_work pack_block;

/* A tape with room for all but the counterfactuals. What is there at a failure is put into *made too, to be freed. */
rosa_status tape_new(const struct call *call, rosa_tape **made, rosa_error *err);

/* Memory that the tape's account includes. */
void *tape_take(rosa_tape *tape, size_t size);

#endif
