/*
 * Token shards: that what is written is read, and that nothing else is.
 *
 * Bad files are good ones with one thing changed and the checksum made right again, so that it is not the checksum that
 * finds the fault. A good file is cut at every byte and altered at every byte as well.
 */
#include "train/tokens_file.h"

#include "support_checkpoint.h"
#include "support_test.h"
#include "support_tokens.h"
#include "support_trial.h"

#define NAME "some.tokens"

static const size_t lengths[] = {3, 1, 70, 9};

static const struct shard_plan plans[] = {
    {COUNT(lengths), lengths, 5, 100, 77, false},
    {COUNT(lengths), lengths, 5, 100, 77, true},
    {COUNT(lengths), lengths, 65453, 65536, 0, false},
    {COUNT(lengths), lengths, 65454, 65537, 1, true},
    {1, lengths, 0, 3, UINT64_MAX, true},
    {1, lengths, UINT32_MAX - 2, (uint64_t)1 << 32, 5, false},
};

/* ---------------------------------------------------------------------------------------------------------- good -- */

static void check_content(const struct tokens_file *file, const struct shard_plan *plan)
{
	size_t total = 0;
	uint32_t *tokens;
	float *weight;

	assert_int_equal(file->documents, plan->documents);
	for (size_t i = 0; i < plan->documents; i++) {
		assert_int_equal(file->starts[i], total);
		total += plan->lengths[i];
	}
	assert_int_equal(file->starts[plan->documents], total);
	assert_int_equal(file->tokens, total);
	assert_int_equal(file->vocabulary, plan->vocabulary);
	assert_int_equal(file->tokenizer, plan->tokenizer);
	assert_int_equal(file->width, plan->vocabulary <= 65536 ? 2 : 4);
	assert_int_equal(file->counts != NULL, plan->answers);
	tokens = test_zeros(total, sizeof(*tokens));
	weight = test_zeros(total, sizeof(*weight));
	assert_true(tokens && weight);
	tokens_file_read(file, 0, total, tokens, weight);
	for (size_t i = 0; i < total; i++) {
		assert_int_equal(tokens[i], plan->first + i);
		assert_true(weight[i] == (!plan->answers || shard_counts(i) ? 1.0f : 0.0f));
	}
	tokens_file_read(file, total - 1, 1, tokens, NULL);
	assert_int_equal(tokens[0], plan->first + total - 1);
}

TEST(reads_what_was_written)
{
	for (size_t i = 0; i < COUNT(plans); i++) {
		struct bytes bytes = shard_make(&plans[i]);
		uint8_t *data = bytes_copy(&bytes, bytes.size);
		struct tokens_file file;
		rosa_error err = {ROSA_OK, ""};

		if (tokens_file_parse(data, bytes.size, NAME, true, &file, &err))
			fail_msg("plan %zu: %s", i, err.message);
		check_content(&file, &plans[i]);
		tokens_file_close(&file);
		tokens_file_close(&file); /* twice does no harm */
	}
}

/* More tokens than the writer's block, in pieces of all sizes. */
TEST(writes_long_documents_in_pieces)
{
	enum { TOKENS = 70001 };
	uint32_t *tokens = test_alloc(TOKENS * sizeof(*tokens));
	uint8_t *counts = test_alloc(TOKENS);
	struct tokens_writer writer;
	struct tokens_file file;
	struct bytes bytes = {0};
	size_t done = 0;

	assert_true(tokens && counts);
	for (size_t i = 0; i < TOKENS; i++) {
		tokens[i] = (uint32_t)(i * 2654435761u) % 50000;
		counts[i] = i % 11 == 3;
	}
	must(tokens_writer_begin(&writer, shard_sink, &bytes, 50000, 1, true, &err));
	for (size_t piece = 0; done < TOKENS; piece++) {
		size_t count = piece * piece < TOKENS - done ? piece * piece : TOKENS - done;
		must(tokens_writer_add(&writer, tokens + done, counts + done, count, &err));
		done += count;
	}
	tokens_writer_end_document(&writer);
	tokens_writer_end_document(&writer); /* not another document */
	must(tokens_writer_finish(&writer, &err));
	memcpy(bytes.data, &writer.header, sizeof(writer.header));
	tokens_writer_free(&writer);
	must(tokens_file_parse(bytes.data, bytes.size, NAME, true, &file, &err));
	assert_int_equal(file.documents, 1);
	assert_int_equal(file.tokens, TOKENS);
	for (size_t i = 0; i < TOKENS; i++) {
		uint32_t token;
		float weight;
		tokens_file_read(&file, i, 1, &token, &weight);
		assert_int_equal(token, tokens[i]);
		assert_true(weight == (float)counts[i]);
	}
}

/* ------------------------------------------------------------------------------------------------------- refused -- */

static void check_refused(const uint8_t *data, size_t size, bool thorough, const char *what, const char *words)
{
	static const struct tokens_file nothing;
	struct tokens_file file;
	rosa_error err = {ROSA_OK, ""};
	rosa_status status = tokens_file_parse(data, size, NAME, thorough, &file, &err);

	if (!status)
		fail_msg("accepted: %s", what);
	expect_status(what, status, ROSA_EFORMAT, &err);
	if (!strstr(err.message, words) || !strstr(err.message, NAME))
		fail_msg("%s: the reason is '%s', without '%s'", what, err.message, words);
	assert_memory_equal(&file, &nothing, sizeof(file));
}

/* A number of the file that is something else. */
static const struct change {
	const char *what;
	size_t at, width;
	uint64_t value;
	bool thorough; /* is seen by a thorough look only */
	const char *words;
} changes[] = {
    {"magic", 0, 1, 'R', false, "not a token shard"},
    {"version", 8, 4, 1, false, "version 1"},
    {"other end", 8, 4, 0x01000000, false, "version 16777216"},
    {"width 1", 12, 4, 1, false, "1 bytes per token"},
    {"width 4", 12, 4, 4, false, "cut short"},
    {"one token more", 16, 8, 85, false, "cut short"},
    {"2^61 tokens", 16, 8, (uint64_t)1 << 61, false, "cut short"},
    {"2^64 - 1 tokens", 16, 8, UINT64_MAX, false, "cut short"},
    {"no tokens", 16, 8, 0, false, "4 documents of 0 tokens"},
    {"no documents", 24, 8, 0, false, "0 documents"},
    {"one document less", 24, 8, 3, false, "cut short"},
    {"2^63 documents", 24, 8, (uint64_t)1 << 63, false, "documents of 83"},
    {"no vocabulary", 32, 8, 0, false, "a vocabulary of 0"},
    {"a wide vocabulary", 32, 8, 65537, false, "a vocabulary of 65537"},
    {"a flag", 48, 8, 3, false, "unknown flags 0x3"},
    {"bits that are not there", 48, 8, 1, false, "cut short"},
    {"a first document that begins late", 64 + 168, 8, 1, false, "from the first token to the last"},
    {"an end too late", 64 + 168 + 32, 8, 84, false, "from the first token to the last"},
    {"an empty document", 64 + 168 + 8, 8, 0, false, "document 0 ends before"},
    {"documents in disorder", 64 + 168 + 16, 8, 2, false, "document 1 ends before it begins (byte 248 of"},
    {"a document beyond the end", 64 + 168 + 24, 8, UINT64_MAX, false, "document 3 ends before"},
    {"a token", 64 + 20, 2, 100, true, "vocabulary of 100 (byte 84 of"},
    {"something after the tokens", 64 + 166, 2, 7, true, "end of a part (byte 230 of"},
};

TEST(refuses_changes)
{
	for (size_t i = 0; i < COUNT(changes); i++) {
		const struct change *change = &changes[i];
		struct bytes bytes = shard_make(&plans[0]);
		uint8_t *data = bytes_copy(&bytes, bytes.size);
		struct tokens_file file;

		memcpy(data + change->at, &change->value, change->width);
		shard_seal(data, bytes.size);
		check_refused(data, bytes.size, true, change->what, change->words);
		if (change->thorough)
			must(tokens_file_parse(data, bytes.size, NAME, false, &file, &err));
		else
			check_refused(data, bytes.size, false, change->what, change->words);
	}
}

/* A reader that does not check thoroughly never gets a token beyond the vocabulary. */
TEST(hides_tokens_beyond_the_vocabulary)
{
	struct bytes bytes = shard_make(&plans[0]);
	uint16_t wrong = 100;
	struct tokens_file file;
	uint32_t tokens[3];
	float weight[3];

	memcpy(bytes.data + 64 + 20, &wrong, sizeof(wrong));
	must(tokens_file_parse(bytes.data, bytes.size, NAME, false, &file, &err));
	tokens_file_read(&file, 9, 3, tokens, weight);
	assert_int_equal(tokens[0], 14);
	assert_int_equal(tokens[1], 0);
	assert_int_equal(tokens[2], 16);
	assert_true(weight[0] == 1 && weight[1] == 0 && weight[2] == 1);
}

TEST(refuses_every_truncation_and_change)
{
	struct bytes bytes = shard_make(&plans[1]);

	for (size_t size = 0; size < bytes.size; size++) {
		uint8_t *data = bytes_copy(&bytes, size);
		check_refused(data, size, false, "a beginning", "");
	}
	for (size_t i = 0; i < bytes.size; i++) {
		uint8_t *data = bytes_copy(&bytes, bytes.size);
		data[i] ^= (uint8_t)(1u << i % 8);
		check_refused(data, bytes.size, true, "a change", "");
	}
	bytes_put(&bytes, "", 1);
	check_refused(bytes.data, bytes.size, false, "a byte more", "cut short");
}

/* -------------------------------------------------------------------------------------------------------- writer -- */

static rosa_status failing_sink(void *left, const void *data, size_t size, rosa_error *err)
{
	if ((*(int *)left)-- > 0)
		return ROSA_OK;
	err->status = ROSA_EIO;
	snprintf(err->message, sizeof(err->message), "the disk is full");
	return ROSA_EIO;
}

/* Writes that fail are told, whichever it is: the header, a block, the rest, the documents or the bits. */
TEST(passes_failures_on)
{
	static uint32_t tokens[40000];
	int fails = 0, allowed = 0;

	for (rosa_status status = ROSA_EIO; status; allowed++) {
		struct tokens_writer writer;
		rosa_error err = {ROSA_OK, ""};
		int left = allowed;

		status = tokens_writer_begin(&writer, failing_sink, &left, 10, 0, true, &err);
		if (!status)
			status = tokens_writer_add(&writer, tokens, NULL, COUNT(tokens), &err);
		if (!status)
			status = tokens_writer_finish(&writer, &err);
		tokens_writer_free(&writer);
		if (status) {
			fails++;
			must_refuse(status, ROSA_EIO);
			assert_string_equal(err.message, "the disk is full");
		}
	}
	assert_int_equal(fails, 5);
}

TEST(writer_refuses_nonsense)
{
	struct tokens_writer writer;
	struct bytes bytes = {0};
	uint32_t token = 10;

	assert_int_equal(tokens_writer_begin(&writer, shard_sink, &bytes, 0, 0, false, &err), ROSA_EINVAL);
	must(tokens_writer_begin(&writer, shard_sink, &bytes, 10, 0, false, &err));
	must_fail(tokens_writer_add(&writer, &token, NULL, 1, &err), ROSA_EINVAL,
		  "token 10 is beyond the vocabulary of 10");
	must(tokens_writer_add(&writer, &token, NULL, 0, &err));
	tokens_writer_end_document(&writer);
	must_fail(tokens_writer_finish(&writer, &err), ROSA_EINVAL, "empty");
	tokens_writer_free(&writer);
	tokens_writer_free(&writer);
}

/* --------------------------------------------------------------------------------------------------------- files -- */

TEST(opens_files)
{
	struct bytes bytes = shard_make(&plans[3]);
	struct tokens_file file;

	scratch_enter(NULL);
	bytes_save(&bytes, scratch_path("a.tokens"));
	must(tokens_file_open(scratch_path("a.tokens"), true, &file, &err));
	assert_string_equal(file.path, scratch_path("a.tokens"));
	check_content(&file, &plans[3]);
	tokens_file_close(&file);
	bytes.size--;
	bytes_save(&bytes, scratch_path("a.tokens"));
	must_fail(tokens_file_open(scratch_path("a.tokens"), false, &file, &err), ROSA_EFORMAT, "a.tokens");
	must_fail(tokens_file_open(scratch_path("b.tokens"), false, &file, &err), ROSA_EIO, "b.tokens");
	tokens_file_close(&file);
	scratch_leave(NULL);
}
