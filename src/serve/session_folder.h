/* The folder that stores cached texts for later servers: names, sizes and files, one text in each. */
#pragma once

#include "model/session.h"

#include <time.h>

/* Reports a file that cannot be used. */
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
	struct tokens tokens; /* empty: the file cannot be used here, but takes space */
	size_t steps;         /* tokens that the sequence has read */
	struct timespec changed;
};

typedef struct session_folder session_folder;

/* Makes the folder if it is missing. One that another server uses is an error. `options` is copied, but not the
 * strings; `decoder` must outlive the folder. */
rosa_status session_folder_open(const struct session_folder_options *options, decoder *decoder, session_folder **made,
				rosa_error *err);
void session_folder_close(session_folder *folder); /* safe on NULL */
/* Bytes for the files of cached texts: the limit minus the files that clients saved under a name. */
uint64_t session_folder_limit(const session_folder *folder);
void session_folder_tell(const session_folder *folder, const char *message);

/* The texts that are there, the one used last at the end. Damaged files and those of another model are reported. */
rosa_status session_folder_list(session_folder *folder, struct session_file **files, size_t *count, rosa_error *err);

/* A number that no file has, and the name of the file with a number. */
uint64_t session_folder_number(session_folder *folder);
#define SESSION_NAME 160 /* bytes of a file's name, at most */
const char *session_folder_name(uint64_t number, char name[SESSION_NAME]);
void session_folder_remove(const session_folder *folder, uint64_t number);
/* Notes that the text was used, for the order in which a later server finds them. */
void session_folder_touch(const session_folder *folder, uint64_t number);

/* Replaces a file, or makes it, and reads one. `tokens` has the token after those that were read, too. Neither changes
 * the folder's own numbers, so that another thread may do it meanwhile. */
rosa_status session_folder_save(const session_folder *folder, const char *name, const struct tokens *tokens,
				sequence *sequence, const struct file_hooks *hooks, uint64_t *bytes, rosa_error *err);
rosa_status session_folder_load(const session_folder *folder, const char *name, struct session *session,
				sequence **made, uint64_t *bytes, rosa_error *err);

/* Files that clients saved under a name are never dropped. Fails if the text may not fit together with the others of
 * that kind; else *bytes is the present size of the file with this name, to be passed on when it has been written. */
rosa_status session_folder_admit(const session_folder *folder, const char *name, const sequence *sequence,
				 uint64_t *bytes, rosa_error *err);
void session_folder_resized(session_folder *folder, uint64_t before, uint64_t after);
