/*
 * Token shards, read.
 *
 * A shard is mapped: a corpus is larger than memory, and only the samples of the next few steps have to be in it. So
 * opening one reads the header and the documents, which are few, and not the tokens, which are gigabytes. A thorough
 * look, which `rosatune data check` takes, reads everything.
 *
 * The file may come from anywhere. Sizes are computed without overflow and must add up to the file's own; after that,
 * nothing that is read lies outside. A token may still have been altered on the disk, so it is compared with the
 * vocabulary whenever it is read: it becomes an index into the embedding.
 */
#include "train/tokens_file.h"

#include "base/checksum.h"
#include "base/status.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert(sizeof(struct tokens_header) == 64, "the header has no gaps");

#define MOST ((uint64_t)1 << 56) /* tokens or documents: eight bytes each can still be added up */

static uint64_t whole_words(uint64_t bytes)
{
	return (bytes + 7) & ~UINT64_C(7);
}

bool tokens_places(const struct tokens_header *header, struct tokens_places *places)
{
	if ((header->width != 2 && header->width != 4) || header->tokens > MOST || header->documents > MOST)
		return false;
	places->data = sizeof(*header);
	places->starts = places->data + whole_words(header->tokens * header->width);
	places->counts = places->starts + (header->documents + 1) * sizeof(uint64_t);
	places->end = places->counts;
	if (header->flags & TOKENS_ANSWERS)
		places->end += whole_words((header->tokens + 7) / 8);
	return true;
}

int tokens_width(uint64_t vocabulary)
{
	return vocabulary <= (uint64_t)1 << 16 ? 2 : 4;
}

/* ------------------------------------------------------------------------------------------------------ checking -- */

static rosa_status check_header(const struct tokens_header *header, const char *name, rosa_error *err)
{
	if (header->version != TOKENS_VERSION)
		return rosa_fail(err, ROSA_EFORMAT,
				 "%s: token shard of version %u, this program reads %d; pack the data again", name,
				 header->version, TOKENS_VERSION);
	if (header->width != 2 && header->width != 4)
		return rosa_fail(err, ROSA_EFORMAT, "%s: %u bytes per token; it must be 2 or 4", name, header->width);
	if (header->flags & ~TOKENS_ANSWERS)
		return rosa_fail(err, ROSA_EFORMAT, "%s: unknown flags 0x%llx", name,
				 (unsigned long long)header->flags);
	if (header->vocabulary == 0 || header->vocabulary > TOKENS_VOCABULARY ||
	    (header->width == 2 && header->vocabulary > (uint64_t)1 << 16))
		return rosa_fail(err, ROSA_EFORMAT, "%s: a vocabulary of %llu does not go with %u bytes per token",
				 name, (unsigned long long)header->vocabulary, header->width);
	if (header->documents == 0 || header->documents > header->tokens)
		return rosa_fail(err, ROSA_EFORMAT, "%s: %llu documents of %llu tokens in all", name,
				 (unsigned long long)header->documents, (unsigned long long)header->tokens);
	return ROSA_OK;
}

/* The place of something in the file; the header always comes before the tokens. */
static size_t offset_of(const struct tokens_file *file, const void *place)
{
	return sizeof(struct tokens_header) + (size_t)((const uint8_t *)place - (const uint8_t *)file->data);
}

static rosa_status check_starts(const struct tokens_file *file, const char *name, rosa_error *err)
{
	if (file->starts[0] != 0 || file->starts[file->documents] != file->tokens)
		return rosa_fail(err, ROSA_EFORMAT, "%s: its documents do not reach from the first token to the last",
				 name);
	for (size_t i = 0; i < file->documents; i++) {
		if (file->starts[i] >= file->starts[i + 1])
			return rosa_fail(err, ROSA_EFORMAT,
					 "%s: document %zu ends before it begins (byte %zu of the file)", name, i,
					 offset_of(file, &file->starts[i + 1]));
	}
	return ROSA_OK;
}

static inline uint32_t token_at(const struct tokens_file *file, size_t i)
{
	return file->width == 2 ? ((const uint16_t *)file->data)[i] : ((const uint32_t *)file->data)[i];
}

static rosa_status check_tokens(const struct tokens_file *file, const char *name, rosa_error *err)
{
	for (size_t i = 0; i < file->tokens; i++) {
		if (token_at(file, i) >= file->vocabulary)
			return rosa_fail(err, ROSA_EFORMAT,
					 "%s: token %zu is %u, beyond the vocabulary of %zu (byte %zu of the file)",
					 name, i, token_at(file, i), file->vocabulary,
					 sizeof(struct tokens_header) + i * (size_t)file->width);
	}
	return ROSA_OK;
}

/* The zeros from the end of one part to the beginning of the next. */
static rosa_status check_filling(const struct tokens_file *file, const uint8_t *from, const uint8_t *to,
				 const char *name, rosa_error *err)
{
	for (; from < to; from++) {
		if (*from)
			return rosa_fail(err, ROSA_EFORMAT,
					 "%s: something stands after the end of a part (byte %zu of the file)", name,
					 offset_of(file, from));
	}
	return ROSA_OK;
}

/* Marks of answers: none after the last token. */
static rosa_status check_marks(const struct tokens_file *file, const uint8_t *end, const char *name, rosa_error *err)
{
	const size_t whole = file->tokens / 8, rest = file->tokens % 8;

	if (!file->counts)
		return ROSA_OK;
	if (rest && file->counts[whole] >> rest)
		return rosa_fail(err, ROSA_EFORMAT, "%s: marks an answer behind the last token (byte %zu of the file)",
				 name, offset_of(file, file->counts + whole));
	return check_filling(file, file->counts + whole + (rest > 0), end, name, err);
}

static rosa_status check_sum(const uint8_t *data, size_t size, const char *name, rosa_error *err)
{
	struct tokens_header header;
	struct checksum sum;
	uint64_t stored;

	memcpy(&header, data, sizeof(header));
	stored = header.checksum;
	header.checksum = 0;
	checksum_begin(&sum, 0);
	checksum_add(&sum, data + sizeof(header), size - sizeof(header));
	checksum_add(&sum, &header, sizeof(header));
	if (checksum_value(&sum) == stored)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EFORMAT,
			 "%s: is damaged: the checksum of its %zu bytes is not that of its header (byte %zu of the "
			 "file); pack the data again",
			 name, size, offsetof(struct tokens_header, checksum));
}

/* The checks that read everything. Those that can name a place go first; the checksum can only tell that something is
 * wrong. */
static rosa_status check_all(const struct tokens_file *file, const uint8_t *bytes, size_t size, const char *name,
			     rosa_error *err)
{
	const uint8_t *filling = (const uint8_t *)file->data + file->tokens * (size_t)file->width;
	rosa_status status = check_tokens(file, name, err);

	if (!status)
		status = check_filling(file, filling, (const uint8_t *)file->starts, name, err);
	if (!status)
		status = check_marks(file, bytes + size, name, err);
	return status ? status : check_sum(bytes, size, name, err);
}

rosa_status tokens_file_parse(const void *data, size_t size, const char *name, bool thorough, struct tokens_file *file,
			      rosa_error *err)
{
	const uint8_t *bytes = data;
	struct tokens_header header;
	struct tokens_places places;
	rosa_status status;

	memset(file, 0, sizeof(*file));
	if (size < sizeof(header) || memcmp(bytes, TOKENS_MAGIC, sizeof(header.magic)) != 0)
		return rosa_fail(err, ROSA_EFORMAT, "%s: is not a token shard; `rosatune data pack` makes them", name);
	memcpy(&header, bytes, sizeof(header));
	status = check_header(&header, name, err);
	if (status)
		return status;
	if (!tokens_places(&header, &places) || places.end != size)
		return rosa_fail(err, ROSA_EFORMAT,
				 "%s: has %zu bytes, which is not what its %llu tokens and %llu documents take; was it "
				 "cut short?",
				 name, size, (unsigned long long)header.tokens, (unsigned long long)header.documents);
	file->tokens = (size_t)header.tokens;
	file->documents = (size_t)header.documents;
	file->width = (int)header.width;
	file->data = bytes + places.data;
	file->starts = (const uint64_t *)(const void *)(bytes + places.starts);
	file->counts = header.flags & TOKENS_ANSWERS ? bytes + places.counts : NULL;
	file->tokenizer = header.tokenizer;
	file->checksum = header.checksum;
	file->vocabulary = (size_t)header.vocabulary;
	status = check_starts(file, name, err);
	if (!status && thorough)
		status = check_all(file, bytes, size, name, err);
	if (status)
		memset(file, 0, sizeof(*file));
	return status;
}

/* ------------------------------------------------------------------------------------------------------- opening -- */

rosa_status tokens_file_open(const char *path, bool thorough, struct tokens_file *file, rosa_error *err)
{
	struct mapping mapping;
	struct stat about;
	rosa_status status = mapping_open(&mapping, path, err);

	memset(file, 0, sizeof(*file));
	if (status)
		return status;
	status = tokens_file_parse(mapping.data, mapping.size, path, thorough, file, err);
	file->mapping = mapping;
	if (stat(path, &about) == 0)
		file->changed = (uint64_t)about.st_mtim.tv_sec * 1000000000u + (uint64_t)about.st_mtim.tv_nsec;
	if (!status) {
		file->path = strdup(path);
		if (!file->path)
			status = rosa_fail(err, ROSA_ENOMEM, "%s: no memory for its name", path);
	}
	if (status)
		tokens_file_close(file);
	return status;
}

rosa_status tokens_file_verify(const struct tokens_file *file, rosa_error *err)
{
	return check_all(file, file->mapping.data, file->mapping.size, file->path, err);
}

void tokens_file_close(struct tokens_file *file)
{
	mapping_close(&file->mapping);
	free(file->path);
	memset(file, 0, sizeof(*file));
}

bool tokens_file_counts(const struct tokens_file *file, size_t at)
{
	return !file->counts || (file->counts[at / 8] >> at % 8 & 1);
}

void tokens_file_read(const struct tokens_file *file, size_t first, size_t count, uint32_t *tokens, float *weight)
{
	for (size_t i = 0; i < count; i++) {
		size_t at = first + i;
		uint32_t token = token_at(file, at);
		bool good = token < file->vocabulary;
		tokens[i] = good ? token : 0;
		if (weight)
			weight[i] = good && tokens_file_counts(file, at) ? 1 : 0;
	}
}
