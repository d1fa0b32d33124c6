/* Tiny models on disk, right or wrong in one thing: for tests of what opens them. */
#pragma once

#include "model/checkpoint.h"
#include "support_weights.h"

/* A folder of this test's own, removed with all that is in it. Paths inside it are good until the next eight. */
int scratch_enter(void **state); /* setup and teardown of tests */
int scratch_leave(void **state);
const char *scratch_path(const char *name);
void scratch_write(const char *name, const char *text);

/* One thing that is not as it should be. Fields that are NULL or 0 change nothing. */
struct flaw {
	const char *key;    /* of the metadata or the configuration: */
	const char *value;  /* what it is instead, as JSON writes it; NULL: it is missing */
	const char *absent; /* a tensor that is not there */
	const char *odd;    /* a tensor with one row more */
	const char *extra;  /* a tensor that has no place */
};

/* The model these files are of: 2 layers of width 8, 2 heads of 4 with one for keys, 12 wide inside, 10 tokens. Random
 * weights by the seed. */
struct files {
	enum architecture architecture;
	bool untied, head_too; /* head_too: tied, and the head is in the file all the same */
	uint64_t seed;
	const float *rope_factors; /* [2]: GGUF's divisors of the frequencies; NULL: none */
	const char *const *tokens; /* [10]: what a GGUF file calls them; NULL: it does not */
	const struct flaw *flaws;
	size_t flaw_count;
};

void files_save_gguf(const struct files *files, const char *name); /* a file in the scratch folder */
/* A folder there; with shards above 1, so many files and an index. Needs JSON. */
void files_save_folder(const struct files *files, const char *name, size_t shards);

/* Ends a test here, as skipped, if the build has no JSON reader. */
void need_json(void);

/* Whether what it is given can be opened; it is closed again. */
typedef bool files_open(const char *path, rosa_error *err);

/* That it cannot, and that the message has these words. */
void files_refused(files_open *open, const char *path, const char *says);

/* Changes a file at one place, or cuts it there, and tries `open`, for every place of the first `size` bytes: it must
 * not crash, leak, or fail without a message. The file is then as it was. Returns how often it was refused. */
size_t files_damage(const char *path, size_t size, files_open *open, const char *argument);
