/* The internals of a decoder and of a sequence, shared by their files. */
#pragma once

#include "model/decoder.h"
#include "model/seen.h"
#include "model/token_symbols.h"
#include "rosa/finder.h"
#include "rosa/layer.h"

#include <stdatomic.h>

/* One layer of the decoder. Vectors are in the backend's memory. */
struct block {
	float *attention_norm, *mlp_norm;
	float *q_norm, *k_norm, *q_bias, *k_bias, *v_bias; /* NULL: none */
	struct matrix q, k, v, o, gate, up, down;
	size_t window, sinks;
	bool has_rosa;
	struct rosa_weights rosa; /* its `routes` and `gain` are from malloc */
};

/* One source of the adapter. */
struct decoder_source {
	struct adapter_source source;
	rosa_options options; /* of retrieval */
	size_t routes, links;
	int32_t *tau; /* [chunk][links * routes]: the places that were found in the current pass, segment by segment */
	uint8_t *length; /* the same */
};

/* The activations of `chunk` rows, in the backend's memory except for what retrieval works on. */
struct workspace {
	float *h, *u;           /* [chunk][width] */
	float *q, *attended;    /* [chunk][heads * head_size] */
	float *k, *v;           /* [chunk][kv_heads * head_size] */
	float *gate, *up;       /* [chunk][mlp_width] */
	float *logits;          /* [LOGITS_ROWS][vocabulary] */
	struct rosa_rows rosa;  /* [chunk][width]; q and k only where a source learns them */
	float *rosa_y;          /* [chunk][width] */
	float *rosa_z;          /* [chunk]: the gate */
	float *embedded;        /* [chunk][width]: normed embeddings; NULL: values are made of u */
	float *late_u, *late_v; /* [WAITING_ROWS][width]: rows whose values are made now */
	void *symbols[2];       /* host: of q and k, or of tokens */
	uint64_t *bits;         /* host, [chunk or WAITING_ROWS][words]: of v */
	struct rosa_room room;  /* host */
};

#define LOGITS_ROWS ((size_t)32) /* rows whose logits are computed at once: a vocabulary is wide */

/* The adapter's seen-token head (decoder_seen.c). */
struct decoder_seen {
	size_t rank; /* 0: there is none */
	struct matrix query, gate, key;
	float *gate_numbers; /* host, [width]: those of the matrix `gate`, which has one row */
	float *table;        /* host, [SEEN_CLASSES]: of each class; 0 for tokens that were not seen */
	float *rows;         /* [KEY_ROWS][width]: rows of the head whose keys are made now */
	float *q, *g;        /* [LOGITS_ROWS][rank], [LOGITS_ROWS]: query h and gate . h */
	float *host_g;       /* the same on the host */
	float *scores;       /* [vocabulary]: (query h) . key of the tokens of a list */
	float *host_scores;  /* the same on the host */
};

#define KEY_ROWS ((size_t)32) /* keys that are made at once */

/* The keys of the tokens that a sequence has seen, in the order of its list (seen.h). */
struct seen_keys {
	float **blocks; /* each [KEY_BLOCK][rank], in the backend's memory */
	size_t count, room;
	size_t made; /* keys */
};

#define KEY_BLOCK ((size_t)128) /* keys of a block */

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
	struct decoder_source sources[SOURCES_MOST];
	size_t source_count;
	struct token_symbols token_symbols; /* of the source `embeddings` */
	struct decoder_seen seen;
	struct workspace work;

	/* Of all weights; 0: not made yet (sequence_file.c). */
	_Atomic uint64_t model_checksum, adapter_checksum;
};

/* Rows of U, or of embeddings, on the host, whose values are computed later, together (decoder_adapter.c). */
#define WAITING_ROWS ((size_t)16)

struct waiting {
	float *rows; /* [WAITING_ROWS][width] */
	size_t count;
};

struct sequence {
	decoder *decoder;
	size_t steps;
	enum past_reads reads;               /* of its adapter */
	struct kv_cache *caches;             /* [layers] */
	struct finder finders[SOURCES_MOST]; /* of the sources that layers share */
	struct finder *own;                  /* [layers]: of the source `own`, where a layer has an adapter */
	struct values *values;               /* [layers]: where a layer has an adapter; NULL: no adapter */
	struct waiting *waiting;             /* [layers]: NULL where values are computed at once */
	int32_t last_tau[TOKEN_PLACES]; /* places that the source `tokens` found for the last token; -1 ends the list */
	uint8_t last_length[TOKEN_PLACES];
	struct seen seen; /* of the seen-token head, if there is one */
	struct seen_keys seen_keys;
};

/* Some rows of a pass: those of one sequence. */
struct segment {
	struct sequence *sequence;
	size_t row, count;
};

/* One forward pass. */
struct pass {
	struct decoder *decoder;
	struct workspace *work;
	struct backend *backend;
	const struct backend_ops *ops;
	const struct model_config *config;
	const uint32_t *tokens;
	const struct segment *segments;
	size_t count, rows;
	bool values_wait; /* the values of these rows are computed later */
};

/* A weight from a file. */
rosa_status decoder_matrix_new(decoder *decoder, const struct tensor *tensor, struct matrix *matrix, rosa_error *err);

/* ------------------------------------------------------------------------------------------- decoder_adapter.c -- */

/* Whether layers share a source; else each has its own. */
bool source_is_shared(const struct decoder_source *source);

/* The sources, from the adapter's options. */
rosa_status decoder_sources_new(decoder *decoder, rosa_error *err);
/* Memory for what retrieval needs in a pass, once the layers are loaded. */
rosa_status decoder_sources_reserve(decoder *decoder, rosa_error *err);
void decoder_sources_free(decoder *decoder);

/* The shape of a layer's reads, and its gain: what of its adapter is in ordinary memory. */
rosa_status decoder_reads_new(decoder *decoder, size_t layer, rosa_error *err);
void decoder_reads_free(struct rosa_weights *weights);

/* What a sequence keeps for the adapter. */
rosa_status sequence_sources_new(sequence *sequence, rosa_error *err);
void sequence_sources_free(sequence *sequence);

/* Whether the values of a pass of so many rows can be computed later. */
bool decoder_values_wait(const decoder *decoder, size_t rows);
/* The products that project U in this pass, without v if that is computed later. Returns how many, at most three. */
size_t decoder_projections(const struct pass *pass, size_t layer, struct product *products);
/* Bytes of the buffered rows, which do not grow with the text. */
uint64_t sequence_waiting_bytes(const sequence *sequence);

/* Find the places of all rows for the sources that need only tokens. Before the first layer. */
rosa_status decoder_find(const struct pass *pass, rosa_error *err);
/* work.rosa_y: what the adapter of a layer reads, for every row. work.u and work.rosa are those of the layer. */
rosa_status decoder_retrieve(const struct pass *pass, size_t layer, rosa_error *err);

/* ----------------------------------------------------------------------------------------------- decoder_seen.c -- */

/* The seen-token head, if the adapter has one: its weights, its memory. */
rosa_status decoder_seen_new(decoder *decoder, rosa_error *err);
void decoder_seen_free(decoder *decoder);
rosa_status sequence_seen_new(sequence *sequence, rosa_error *err);
void sequence_seen_free(sequence *sequence);
uint64_t sequence_seen_bytes(const sequence *sequence);
/* As seen_rewind() and seen_fork(); `to` is a new sequence of the same decoder. */
void sequence_seen_rewind(sequence *sequence, size_t steps);
rosa_status sequence_seen_fork(const sequence *from, size_t steps, sequence *to, rosa_error *err);

/* Keep the tokens of a pass, and make the keys that are new. */
rosa_status decoder_seen_read(const struct pass *pass, rosa_error *err);
/* The products of h that it needs beside the logits; returns how many, at most two. */
size_t decoder_seen_products(const decoder *decoder, struct product *products);
/* Fetch their results, of `rows` rows. */
void decoder_seen_fetch(decoder *decoder, size_t rows);
/* Adds the seen-token head to a sequence's logits (host) after its first `steps` tokens. `row` is the row of the query
 * and gate products. */
void decoder_seen_add(decoder *decoder, sequence *sequence, size_t steps, size_t row, float *logits);

/* ---------------------------------------------------------------------------------------------------- forward.c -- */

/* One forward pass through all layers: rows of `tokens` (host), which belong to the segments in order. Their last
 * hidden states, normed, are left in work.u. The sequences have then read these tokens. */
rosa_status decoder_pass(decoder *decoder, const uint32_t *tokens, size_t rows, const struct segment *segments,
			 size_t count, rosa_error *err);
