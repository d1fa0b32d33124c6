/* The internals of a decoder and of a sequence, shared by their files. */
#ifndef ROSATUNE_DECODER_PARTS_H
#define ROSATUNE_DECODER_PARTS_H

#include "model/decoder.h"
#include "rosa/layer.h"
#include "rosa/past.h"

/* One layer of the decoder. Vectors are in the backend's memory. */
struct block {
	float *attention_norm, *q_norm, *k_norm, *mlp_norm; /* q_norm, k_norm NULL: none */
	struct matrix q, k, v, o, gate, up, down;
	size_t window, sinks;
	bool has_rosa;
	struct rosa_weights rosa;
};

/* The activations of `chunk` rows, in the backend's memory except for what retrieval works on. */
struct workspace {
	float *h, *u;          /* [chunk][width] */
	float *q, *attended;   /* [chunk][heads * head_size] */
	float *k, *v;          /* [chunk][kv_heads * head_size] */
	float *gate, *up;      /* [chunk][mlp_width] */
	float *logits;         /* [LOGITS_ROWS][vocabulary] */
	struct rosa_rows rosa; /* [chunk][width] */
	float *rosa_y;         /* [chunk][width] */
	uint16_t *symbols[3];  /* host, [routes][chunk]: q, k, v */
	uint32_t *found;       /* host, the same */
};

#define LOGITS_ROWS ((size_t)32) /* rows whose logits are computed at once: a vocabulary is wide */

struct decoder {
	const struct checkpoint *checkpoint;
	const struct adapter *adapter; /* NULL: none */
	struct decoder_options options;
	struct backend *backend;
	rosa_workers *workers;

	struct matrix embedding, head; /* head is the embedding's where tied */
	float *norm;
	struct block *blocks;
	float *frequencies; /* host */
	struct rotary rotary;
	struct rosa_setup rosa; /* of the adapter, if there is one */
	struct workspace work;
};

struct sequence {
	decoder *decoder;
	size_t steps;
	struct kv_cache *caches; /* one per layer */
	struct past *pasts;      /* one per layer, used where it has an adapter; NULL without one */
};

/* Some rows of a pass: those of one sequence. */
struct segment {
	struct sequence *sequence;
	size_t row, count;
};

/* One forward pass through all layers: rows of `tokens` (host), which belong to the segments in order. Their last
 * hidden states, normed, are left in work.u. The sequences have then read these tokens. */
rosa_status decoder_pass(decoder *decoder, const uint32_t *tokens, size_t rows, const struct segment *segments,
			 size_t count, rosa_error *err);

#endif
