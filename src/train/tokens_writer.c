/*
 * Token shards, written.
 *
 * Tokens are written as they come, in blocks large enough that the cost of a write does not matter. Kept until the end
 * are eight bytes per document and one bit per token. The header is complete only at the end, but comes first in the
 * file, where a reader expects it; hence the checksum takes it last.
 *
 * The bytes go to a function, which writes them to a file, or to memory in tests.
 */
#include "train/tokens_writer.h"

#include "base/array.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK ((size_t)1 << 16) /* a multiple of the width of a token */

static rosa_status no_memory(rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "no memory for the documents of a token shard");
}

static rosa_status put(struct tokens_writer *writer, const void *data, size_t size, rosa_error *err)
{
	checksum_add(&writer->sum, data, size);
	return writer->sink(writer->context, data, size, err);
}

rosa_status tokens_writer_begin(struct tokens_writer *writer, tokens_sink *sink, void *context, uint64_t vocabulary,
				uint64_t tokenizer, bool answers, rosa_error *err)
{
	static const struct tokens_header nothing;

	memset(writer, 0, sizeof(*writer));
	if (vocabulary == 0 || vocabulary > TOKENS_VOCABULARY)
		return rosa_fail(err, ROSA_EINVAL, "a vocabulary of %llu tokens cannot be written",
				 (unsigned long long)vocabulary);
	writer->sink = sink;
	writer->context = context;
	memcpy(writer->header.magic, TOKENS_MAGIC, sizeof(writer->header.magic));
	writer->header.version = TOKENS_VERSION;
	writer->header.width = (uint32_t)tokens_width(vocabulary);
	writer->header.vocabulary = vocabulary;
	writer->header.tokenizer = tokenizer;
	writer->header.flags = answers ? TOKENS_ANSWERS : 0;
	checksum_begin(&writer->sum, 0);
	writer->block = malloc(BLOCK);
	if (!writer->block)
		return no_memory(err);
	return sink(context, &nothing, sizeof(nothing), err);
}

/* Begins a document. Makes room for its start and for the total, which is written after the last start. */
static rosa_status begin_document(struct tokens_writer *writer, rosa_error *err)
{
	size_t documents = (size_t)writer->header.documents;

	if (!ARRAY_RESERVE(writer->starts, writer->starts_room, documents + 2))
		return no_memory(err);
	writer->starts[documents] = writer->header.tokens;
	writer->header.documents++;
	writer->open = true;
	return ROSA_OK;
}

static rosa_status add_counts(struct tokens_writer *writer, const uint8_t *counts, size_t count, rosa_error *err)
{
	const size_t before = (size_t)writer->header.tokens, had = writer->counts_room;

	if (!ARRAY_RESERVE(writer->counts, writer->counts_room, (before + count) / 8 + 8))
		return no_memory(err);
	if (writer->counts_room > had)
		memset(writer->counts + had, 0, writer->counts_room - had);
	for (size_t i = 0; i < count; i++) {
		if (!counts || counts[i])
			writer->counts[(before + i) / 8] |= (uint8_t)(1u << (before + i) % 8);
	}
	return ROSA_OK;
}

static rosa_status add_token(struct tokens_writer *writer, uint32_t token, rosa_error *err)
{
	uint16_t half = (uint16_t)token;

	memcpy(writer->block + writer->filled, writer->header.width == 2 ? (void *)&half : (void *)&token,
	       writer->header.width);
	writer->filled += writer->header.width;
	writer->header.tokens++;
	if (writer->filled < BLOCK)
		return ROSA_OK;
	writer->filled = 0;
	return put(writer, writer->block, BLOCK, err);
}

rosa_status tokens_writer_add(struct tokens_writer *writer, const uint32_t *tokens, const uint8_t *counts, size_t count,
			      rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < count; i++) {
		if (tokens[i] >= writer->header.vocabulary)
			return rosa_fail(err, ROSA_EINVAL, "token %u is beyond the vocabulary of %llu", tokens[i],
					 (unsigned long long)writer->header.vocabulary);
	}
	if (count && !writer->open)
		status = begin_document(writer, err);
	if (!status && writer->header.flags & TOKENS_ANSWERS)
		status = add_counts(writer, counts, count, err);
	for (size_t i = 0; i < count && !status; i++)
		status = add_token(writer, tokens[i], err);
	return status;
}

void tokens_writer_end_document(struct tokens_writer *writer)
{
	writer->open = false;
}

rosa_status tokens_writer_finish(struct tokens_writer *writer, rosa_error *err)
{
	struct tokens_header *header = &writer->header;
	struct tokens_places places;
	rosa_status status = ROSA_OK;

	if (header->tokens == 0)
		return rosa_fail(err, ROSA_EINVAL, "a token shard cannot be empty");
	if (!tokens_places(header, &places))
		return rosa_fail(err, ROSA_EINVAL, "too many tokens for one shard");
	while (writer->filled % 8 != 0)
		writer->block[writer->filled++] = 0;
	if (writer->filled)
		status = put(writer, writer->block, writer->filled, err);
	writer->filled = 0;
	writer->starts[header->documents] = header->tokens;
	if (!status)
		status = put(writer, writer->starts, (size_t)(places.counts - places.starts), err);
	if (!status && header->flags & TOKENS_ANSWERS)
		status = put(writer, writer->counts, (size_t)(places.end - places.counts), err);
	header->checksum = 0;
	checksum_add(&writer->sum, header, sizeof(*header));
	header->checksum = checksum_value(&writer->sum);
	return status;
}

void tokens_writer_free(struct tokens_writer *writer)
{
	free(writer->block);
	free(writer->starts);
	free(writer->counts);
	memset(writer, 0, sizeof(*writer));
}

/* --------------------------------------------------------------------------------------------------- fingerprint -- */

/* Whether an id is padding: some files pad the vocabulary, and others of the same model do not. */
static bool is_filler(const tokenizer *tokenizer, uint32_t id)
{
	size_t length;
	const char *bytes = tokenizer_bytes(tokenizer, id, &length);

	return length == 0 || (length > 5 && memcmp(bytes, "[PAD", 4) == 0 && bytes[length - 1] == ']');
}

rosa_status tokens_fingerprint(const tokenizer *tokenizer, uint64_t *fingerprint, rosa_error *err)
{
	static const char probe[] = "The 1984 edition's 3.14159;  it'll (not) CHANGE\n\n\tx = y_1[0] != \"z\";\r\n"
				    "\xc3\x9c"
				    "ber na\xc3\xafve e\xcc\x81 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x99\x82   end ";
	uint64_t size = tokenizer_size(tokenizer);
	struct checksum sum;
	struct tokens tokens = {0};
	rosa_status status = tokenizer_encode(tokenizer, probe, sizeof(probe) - 1, false, &tokens, err);

	if (status)
		return status;
	while (size > 0 && is_filler(tokenizer, (uint32_t)size - 1))
		size--;
	checksum_begin(&sum, 0);
	for (uint32_t id = 0; id < size; id++) {
		size_t length;
		const char *bytes = tokenizer_bytes(tokenizer, id, &length);
		uint64_t word = length;
		checksum_add(&sum, &word, sizeof(word));
		checksum_add(&sum, bytes, length);
	}
	checksum_add(&sum, tokens.ids, tokens.count * sizeof(*tokens.ids));
	*fingerprint = checksum_value(&sum);
	tokens_free(&tokens);
	return ROSA_OK;
}
