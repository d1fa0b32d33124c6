/*
 * Any bytes as a token shard.
 *
 * What is accepted must hold what tokens_file.h promises, and all of it is read once, so that a sanitizer sees what
 * lies outside. An input is used twice: as a file, and as a list of changes to a good one, which gets further.
 */
#include "support_fuzz.h"
#include "support_tokens.h"

static void check_content(const struct tokens_file *file)
{
	uint32_t tokens[64];
	float weight[64];

	check(file->documents > 0 && file->starts[0] == 0 && file->starts[file->documents] == file->tokens);
	for (size_t i = 0; i < file->documents; i++)
		check(file->starts[i] < file->starts[i + 1]);
	for (size_t first = 0; first < file->tokens; first += 64) {
		size_t left = file->tokens - first, count = left < 64 ? left : 64;
		tokens_file_read(file, first, count, tokens, weight);
		for (size_t i = 0; i < count; i++)
			check(tokens[i] < file->vocabulary && (weight[i] == 0 || weight[i] == 1));
	}
}

static bool try(const uint8_t *data, size_t size, bool thorough)
{
	struct tokens_file file;
	rosa_error err = {ROSA_OK, ""};

	if (tokens_file_parse(data, size, "file", thorough, &file, &err)) {
		check(err.status == ROSA_EFORMAT && !strncmp(err.message, "file: ", 6) && !file.starts);
		return false;
	}
	check_content(&file);
	tokens_file_close(&file);
	return true;
}

/* Each change: one byte of place, one of value; then the checksum is made right. */
static void try_changes(const uint8_t *data, size_t size)
{
	static const size_t lengths[] = {5, 1, 9};
	const struct shard_plan plan = {3, lengths, 7, 50, 3, size % 2 == 0};
	struct bytes good = shard_make(&plan);
	uint8_t *file = bytes_copy(&good, good.size);

	for (size_t i = 0; i + 2 <= size; i += 2)
		file[data[i] % good.size] = data[i + 1];
	try(file, good.size, false);
	shard_seal(file, good.size);
	if (try(file, good.size, true))
		check(try(file, good.size, false));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* aligned, as a mapping is */
	struct bytes bytes = {0};
	uint8_t *copy;

	bytes_put(&bytes, data, size);
	copy = bytes_copy(&bytes, size);
	try(copy, size, false);
	try(copy, size, true);
	try_changes(data, size);
	test_release(0);
	return 0;
}
