/* A text that was read, on disk: resumed at once, and as if it had never stopped. */
#ifndef ROSATUNE_SESSION_FILE_H
#define ROSATUNE_SESSION_FILE_H

#include "cli/conversation.h"
#include "model/decoder.h"

struct session {
	struct tokens
	    tokens;     /* the text; the sequence has read the first ones, at least the last is still to be read */
	uint64_t draws; /* of the sampler */
	bool ended;     /* the last token is one with which the model ended its answer */
	struct conversation conversation; /* empty: none */
};

/* The sequence to save: as it is, or as bytes that sequence_save gave. */
struct session_state {
	const sequence *sequence; /* NULL: `data` */
	const uint8_t *data;
	size_t size;
};

/* The name shows the old content, or nothing, until all is written. */
bool session_save(const char *path, const struct session *session, struct session_state state, rosa_error *why);

/* Reads a session for a decoder of the same model, adapter and window. *made is the sequence. What is cut, altered or
 * another model's is refused, with nothing to release. */
bool session_load(const char *path, decoder *decoder, struct session *session, sequence **made, rosa_error *why);
void session_free(struct session *session); /* safe on a zeroed one */

#endif
