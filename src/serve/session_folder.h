/* The folder in which kept texts outlive the server: names, sizes and files, one text in each. */
#ifndef ROSATUNE_SESSION_FOLDER_H
#define ROSATUNE_SESSION_FOLDER_H

#include "model/session.h"

/* Says that a file is of no use. */
typedef void (*session_folder_say)(const char *message);

struct session_folder_options {
	const char *path;
	uint64_t limit;                   /* bytes of all files; one that is being written comes on top */
	struct session_settings settings; /* of the model, for other programs that read the files */
	session_folder_say say;
};

/* A kept text in its file. */
struct session_file {
	uint64_t number;      /* of the file's name */
	uint64_t bytes;       /* of the file */
	struct tokens tokens; /* empty: the file is of no use here, but takes room */
	size_t steps;         /* tokens that the sequence has read */
};

typedef struct session_folder session_folder;

/* Makes the folder if it is missing. One that another server uses is refused. `options` is copied, but not the strings;
 * `decoder` must outlive the folder. */
rosa_status session_folder_open(const struct session_folder_options *options, decoder *decoder, session_folder **made,
				rosa_error *err);
void session_folder_close(session_folder *folder); /* safe on NULL */
/* Bytes for the files of kept texts: what those with names of their own leave. */
uint64_t session_folder_limit(const session_folder *folder);
void session_folder_tell(const session_folder *folder, const char *message);

/* The texts that are there, the one used last at the end. What is damaged, or of another model, is told. */
rosa_status session_folder_list(session_folder *folder, struct session_file **files, size_t *count, rosa_error *err);

/* A number that no file has. */
uint64_t session_folder_number(session_folder *folder);

/* Replaces the file with this number, or makes it. `tokens` has the token after those that were read, too. */
rosa_status session_folder_save(const session_folder *folder, uint64_t number, const struct tokens *tokens,
				sequence *sequence, const struct file_hooks *hooks, uint64_t *bytes, rosa_error *err);
rosa_status session_folder_load(const session_folder *folder, uint64_t number, struct session *session, sequence **made,
				rosa_error *err);
void session_folder_remove(const session_folder *folder, uint64_t number);

/* The same for a file with a name of its own, which is never dropped. Of a text that may not fit beside the others of
 * that kind, which has about `bytes`, none is made. */
rosa_status session_folder_save_named(session_folder *folder, const char *name, const struct tokens *tokens,
				      sequence *sequence, uint64_t *bytes, rosa_error *err);
rosa_status session_folder_load_named(const session_folder *folder, const char *name, struct session *session,
				      sequence **made, uint64_t *bytes, rosa_error *err);
/* Notes that the text was used, for the order in which a later server finds them. */
void session_folder_touch(const session_folder *folder, uint64_t number);

#endif
