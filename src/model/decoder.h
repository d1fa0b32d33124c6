/* The decoder: a checkpoint, perhaps with an adapter, on a backend. */
#pragma once

#include "model/adapter.h"
#include "backend/backend.h"
#include "rosa/places.h"

#define DECODER_CHUNK 256 /* rows of one forward pass, by default */

struct decoder_options {
	size_t window, sinks;       /* of attention; window 0: global */
	size_t first_global_layers; /* the first layers, which stay global */
	size_t chunk;               /* most rows of one forward pass; 0: DECODER_CHUNK */
	enum past_reads reads;      /* of the adapter: what was found, or a control */
};

/* Settles the attention of a model with an adapter (NULL: none): what is SIZE_MAX in the options becomes what the
 * adapter was trained with, since it works badly with another, or global. What does not go together is refused. */
rosa_status decoder_options_settle(struct decoder_options *options, const struct checkpoint *checkpoint,
				   const struct adapter *adapter, rosa_error *err);

typedef struct decoder decoder;

/* `checkpoint` and `adapter` (NULL: none) must outlive the decoder; so must the backend and the workers, on which
 * retrieval runs. */
rosa_status decoder_new(const struct checkpoint *checkpoint, const struct adapter *adapter,
			const struct decoder_options *options, struct backend *backend, rosa_workers *workers,
			decoder **made, rosa_error *err);
void decoder_free(decoder *decoder); /* safe on NULL */

/* What a sequence has read so far: keys and values that attention still sees; of the adapter, retrieval's index and the
 * value bits of each layer. */
typedef struct sequence sequence;

rosa_status sequence_new(decoder *decoder, sequence **made, rosa_error *err);
void sequence_free(sequence *sequence); /* safe on NULL */
size_t sequence_steps(const sequence *sequence);

/* From now on the adapter reads nothing (READS_NOTHING). To be called before the first token; copies of the sequence
 * are silent too, and it is not saved. */
void sequence_silence(sequence *sequence);

/* A place that the last token found through the source `tokens`, of whatever decoder_read read last. */
struct token_place {
	int32_t step;
	uint8_t length; /* of the match */
	float gain;     /* by its length, the mean over the layers that read it */
};
#define TOKEN_PLACES 16 /* at most: the longest chain */

/* Returns how many there are, in the order of the chain. 0: nothing was found, or the adapter has no such source. */
size_t sequence_places(const sequence *sequence, struct token_place places[TOKEN_PLACES]);

/* Going back to the first `steps` tokens, as if no more had been read: in place, or in a second sequence. The floor is
 * the least number that this can be done to: 0 unless a window has lost what the tokens after that would see. Fewer
 * than that, or more than were read, are refused. A sequence that could not be rewound for another reason must be
 * freed. */
size_t sequence_floor(const sequence *sequence);
rosa_status sequence_rewind(sequence *sequence, size_t steps, rosa_error *err);
rosa_status sequence_fork(sequence *from, size_t steps, sequence **made, rosa_error *err);

/* Values of the last tokens may still have to be computed, which only the decoder's own thread can do. Afterwards a
 * sequence can be saved, and copies of it be made, by any thread. */
rosa_status sequence_settle(sequence *sequence, rosa_error *err);

/* Bytes in use: those that do not grow with the text (once the window is full), those of the retrieval index, and those
 * of the value bits. */
struct sequence_memory {
	uint64_t attention, retrieval, values;
};
struct sequence_memory sequence_memory(const sequence *sequence);

enum logits_wanted { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL };

/* The next tokens of one sequence. */
struct piece {
	sequence *sequence;
	const uint32_t *tokens;
	size_t count;
	enum logits_wanted wanted;
	float *logits; /* [1 or count][vocabulary] */
};

/* Read the pieces, each of another sequence. The result is the same, bit for bit, however texts are divided into pieces
 * and pieces are combined in calls. On failure (memory, a token that is not below the vocabulary) sequences may have
 * read a part: free them. `progress` (may be NULL) is called between chunks with the number of tokens read; nonzero
 * stops the call with ROSA_ECANCELLED, and what was read is kept (sequence_steps). */
rosa_status decoder_read(decoder *decoder, size_t count, struct piece *pieces, rosa_progress progress, void *context,
			 rosa_error *err);

size_t decoder_vocabulary(const decoder *decoder);
bool decoder_adapted(const decoder *decoder); /* it has an adapter */

/* A sequence as bytes, and back into a new sequence of a decoder with the same model, adapter and options; others are
 * refused. `write` returns how it went. The bytes are checksummed. */
typedef rosa_status (*sequence_writer)(void *context, const void *data, size_t size, rosa_error *err);
rosa_status sequence_save(sequence *sequence, sequence_writer write, void *context, rosa_error *err);
rosa_status sequence_load(decoder *decoder, const void *data, size_t size, sequence **made, rosa_error *err);
/* How many tokens such bytes have read, and whether they are of this decoder, by their header alone. */
rosa_status sequence_look(decoder *decoder, const void *data, size_t size, size_t *steps, rosa_error *err);

/* A sequence as bytes in memory, from which several texts can go on. A zeroed one is empty. */
struct kept_sequence {
	uint8_t *data; /* from malloc */
	size_t size, room;
	size_t steps;
};
/* Replaces what was kept. On failure nothing is kept: size 0. */
rosa_status sequence_keep(sequence *sequence, struct kept_sequence *kept, rosa_error *err);
