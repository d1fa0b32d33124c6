/* Sessions: what a model has read, saved to a file and resumed from it without reading again. */
#pragma once

#include "base/file.h"
#include "model/conversation.h"
#include "model/decoder.h"

/* What the text was read with. */
struct session_settings {
	size_t window, sinks, first_global_layers;
	char *adapter; /* the path of its folder; NULL: none */
	char *pointer; /* the path of a pointer's file or folder; NULL: none. Its look-up follows from the tokens. */
};

struct session {
	struct session_settings settings;
	struct tokens
	    tokens;     /* the text; the sequence has read its beginning, and the last token is still to be read */
	uint64_t draws; /* of the sampler */
	bool ended;     /* the last token is one with which the model ended its answer */
	struct conversation conversation; /* empty: none */
};

/* The sequence to save: as it is, or as bytes that sequence_save gave. */
struct session_state {
	sequence *sequence; /* NULL: `data` */
	const uint8_t *data;
	size_t size;
};

/* The name shows the old content, or nothing, until everything is written. `files` may be NULL. */
rosa_status session_save(const char *path, const struct session *session, struct session_state state,
			 const struct file_options *files, rosa_error *err);

/* Reads only the settings, with which a decoder for the session can be made. */
rosa_status session_settings_read(const char *path, struct session_settings *settings, rosa_error *err);

/* Reads a session for a decoder of the same model, adapter and window. *made is the sequence. A file that was cut or
 * altered, or of another model, is refused, with nothing to release. */
rosa_status session_load(const char *path, decoder *decoder, struct session *session, sequence **made, rosa_error *err);
/* The same from memory; `name` is for messages. */
rosa_status session_parse(const void *data, size_t size, const char *name, decoder *decoder, struct session *session,
			  sequence **made, rosa_error *err);
/* Reads all but the sequence, of which only the header is looked at: it is of this decoder and has read `steps` tokens.
 * Damage in the rest shows when the session is loaded. */
rosa_status session_look(const char *path, decoder *decoder, struct session *session, size_t *steps, rosa_error *err);
void session_settings_free(struct session_settings *settings); /* safe on a zeroed one */
void session_free(struct session *session);                    /* likewise */
