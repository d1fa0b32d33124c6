/* Shards come from the real writer; tests that want a wrong one change its bytes. */
#include "support_tokens.h"

#include "base/checksum.h"

#include <stdlib.h>
#include <string.h>

bool shard_counts(size_t i)
{
	return i * 7 % 5 < 2;
}

rosa_status shard_sink(void *bytes, const void *data, size_t size, rosa_error *err)
{
	bytes_put(bytes, data, size);
	return ROSA_OK;
}

static void must(rosa_status status)
{
	if (status)
		abort();
}

static void add(struct tokens_writer *writer, const struct shard_plan *plan, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		size_t at = (size_t)writer->header.tokens;
		uint32_t token = plan->first + (uint32_t)at;
		uint8_t counts = shard_counts(at);
		must(tokens_writer_add(writer, &token, plan->answers ? &counts : NULL, 1, NULL));
	}
}

struct bytes shard_make(const struct shard_plan *plan)
{
	struct bytes bytes = {0};
	struct tokens_writer writer;

	must(tokens_writer_begin(&writer, shard_sink, &bytes, plan->vocabulary, plan->tokenizer, plan->answers, NULL));
	for (size_t i = 0; i < plan->documents; i++) {
		add(&writer, plan, plan->lengths[i]);
		tokens_writer_end_document(&writer);
	}
	must(tokens_writer_finish(&writer, NULL));
	memcpy(bytes.data, &writer.header, sizeof(writer.header));
	tokens_writer_free(&writer);
	return bytes;
}

void shard_seal(uint8_t *data, size_t size)
{
	struct tokens_header header;
	struct checksum sum;

	memcpy(&header, data, sizeof(header));
	header.checksum = 0;
	checksum_begin(&sum, 0);
	checksum_add(&sum, data + sizeof(header), size - sizeof(header));
	checksum_add(&sum, &header, sizeof(header));
	header.checksum = checksum_value(&sum);
	memcpy(data, &header, sizeof(header));
}
