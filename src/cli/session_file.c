/*
 * Sessions on disk.
 *
 * The state of a model after a book is not much larger than the book, and reading it takes milliseconds where reading
 * the book again takes minutes. Besides the state there are the tokens themselves: they tell a repetition penalty what
 * has been seen, whatever its options are this time, and a conversation what its next turn has in common with the last.
 *
 * All numbers are little-endian u64 unless said otherwise; every part is filled up with zeros to a multiple of 8.
 *
 *     8 bytes   "ROSASESS"
 *               version, 1
 *               flags: 1 if the model has ended its answer
 *               draws of the sampler
 *               number of tokens, number of messages
 *               bytes of the messages
 *     u32       tokens
 *               for each message: bytes of the role, bytes of the content, role, content (filled up together)
 *               checksum of all before it
 *               the sequence, as sequence_save has it, with a checksum of its own, to the end of the file
 *
 * Nothing is believed before the checksum is right, and then every number is still compared with what is there: a
 * checksum is a protection against accidents, not against malice.
 */
#include "cli/session_file.h"

#include "base/checksum.h"
#include "cli/file.h"
#include "base/mapping.h"

#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "sessions are written as they lie in memory, which has to be little-endian"
#endif

#define MAGIC   "ROSASESS"
#define VERSION 1
#define ENDED   UINT64_C(1)

struct header {
	char magic[8];
	uint64_t version, flags, draws, tokens, messages, messages_bytes;
};

static size_t padded(size_t size)
{
	return (size + 7) / 8 * 8;
}

/* ------------------------------------------------------------------------------------------------------- writing -- */

struct saving {
	struct file_writer writer;
	uint64_t sum;
	rosa_error *why;
};

/* Writes a part and fills it up. */
static bool put(struct saving *saving, const void *data, size_t size)
{
	const size_t whole = size / 8 * 8;
	char last[8] = {0};

	if (size > whole)
		memcpy(last, (const char *)data + whole, size - whole);
	if (whole > 0) {
		saving->sum = checksum_add(saving->sum, data, whole);
		if (!file_write(&saving->writer, data, whole, saving->why))
			return false;
	}
	if (size == whole)
		return true;
	saving->sum = checksum_add(saving->sum, last, sizeof(last));
	return file_write(&saving->writer, last, sizeof(last), saving->why);
}

static size_t message_bytes(const struct chat_message *message)
{
	return 16 + padded(strlen(message->role) + strlen(message->content));
}

static bool put_message(struct saving *saving, const struct chat_message *message)
{
	uint64_t sizes[2] = {strlen(message->role), strlen(message->content)};
	char *joined = malloc(sizes[0] + sizes[1] + 1);

	if (!joined)
		return refuse(saving->why, "not enough memory to save a message of %zu bytes", (size_t)sizes[1]);
	memcpy(joined, message->role, sizes[0]);
	memcpy(joined + sizes[0], message->content, sizes[1]);
	bool good = put(saving, sizes, sizeof(sizes)) && put(saving, joined, sizes[0] + sizes[1]);
	free(joined);
	return good;
}

static bool put_session(struct saving *saving, const struct session *session)
{
	const struct conversation *conversation = &session->conversation;
	struct header header = {.version = VERSION,
				.flags = session->ended ? ENDED : 0,
				.draws = session->draws,
				.tokens = session->tokens.count,
				.messages = conversation->count};
	bool good;

	memcpy(header.magic, MAGIC, sizeof(header.magic));
	for (size_t i = 0; i < conversation->count; i++)
		header.messages_bytes += message_bytes(&conversation->all[i]);
	good = put(saving, &header, sizeof(header)) &&
	       put(saving, session->tokens.ids, session->tokens.count * sizeof(uint32_t));
	for (size_t i = 0; i < conversation->count && good; i++)
		good = put_message(saving, &conversation->all[i]);
	uint64_t sum = saving->sum;
	return good && put(saving, &sum, sizeof(sum));
}

static int write_sequence(void *context, const void *data, size_t size)
{
	struct saving *saving = context;

	return !file_write(&saving->writer, data, size, saving->why);
}

static bool put_state(struct saving *saving, struct session_state state)
{
	rosa_error none = {0};
	rosa_error error;

	if (!state.sequence)
		return file_write(&saving->writer, state.data, state.size, saving->why);
	*saving->why = none;
	if (sequence_save(state.sequence, write_sequence, saving, &error) == ROSA_OK)
		return true;
	return saving->why->message[0] ? false : refuse(saving->why, "%s", error.message);
}

bool session_save(const char *path, const struct session *session, struct session_state state, rosa_error *why)
{
	struct saving saving = {.sum = CHECKSUM_START, .why = why};
	bool good = file_create(&saving.writer, path, why) && put_session(&saving, session) &&
		    put_state(&saving, state) && file_close(&saving.writer, why) && file_commit(&saving.writer, why);

	file_discard(&saving.writer);
	return good;
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

struct loading {
	const uint8_t *at, *end;
	const char *path;
	rosa_error *why;
};

static bool damaged(const struct loading *loading)
{
	return refuse(loading->why, "%s was cut short or altered; the session cannot be resumed", loading->path);
}

/* The next `size` bytes, which may not be aligned, and what fills them up; NULL if there are not so many. */
static const uint8_t *take(struct loading *loading, uint64_t size)
{
	const uint8_t *from = loading->at;
	size_t left = (size_t)(loading->end - loading->at);

	if (size > left || padded((size_t)size) > left)
		return NULL;
	loading->at += padded((size_t)size);
	return from;
}

static bool take_header(struct loading *loading, struct header *header)
{
	const uint8_t *from = loading->at;
	size_t size = (size_t)(loading->end - loading->at);

	if (size < sizeof(header->magic) || memcmp(from, MAGIC, sizeof(header->magic)) != 0)
		return refuse(loading->why, "%s is not a session of rosatune", loading->path);
	if (!take(loading, sizeof(*header)))
		return damaged(loading);
	memcpy(header, from, sizeof(*header));
	if (header->version != VERSION)
		return refuse(loading->why, "%s is a session of version %llu; this program reads version %d",
			      loading->path, (unsigned long long)header->version, VERSION);
	if (header->tokens == 0 || header->tokens > ROSA_MAX_STEPS || header->messages > header->messages_bytes)
		return damaged(loading);
	return true;
}

/* Whether the checksum after tokens and messages is right. */
static bool check_sum(const struct loading *loading, const struct header *header)
{
	struct loading whole = *loading;
	const uint8_t *from = loading->at - sizeof(*header), *sum;
	uint64_t wanted;

	if (!take(&whole, header->tokens * sizeof(uint32_t)) || !take(&whole, header->messages_bytes) ||
	    !(sum = take(&whole, sizeof(wanted))))
		return damaged(loading);
	memcpy(&wanted, sum, sizeof(wanted));
	return checksum_add(CHECKSUM_START, from, (size_t)(sum - from)) == wanted ? true : damaged(loading);
}

static bool take_tokens(struct loading *loading, size_t count, struct session *session)
{
	const uint8_t *from = take(loading, count * sizeof(uint32_t));

	session->tokens.ids = malloc(count * sizeof(uint32_t));
	if (!session->tokens.ids)
		return refuse(loading->why, "not enough memory for the %zu tokens of %s", count, loading->path);
	memcpy(session->tokens.ids, from, count * sizeof(uint32_t));
	session->tokens.count = session->tokens.room = count;
	return true;
}

static bool take_message(struct loading *loading, struct session *session)
{
	const uint8_t *from = take(loading, 2 * sizeof(uint64_t)), *texts;
	uint64_t sizes[2];

	if (!from)
		return damaged(loading);
	memcpy(sizes, from, sizeof(sizes));
	uint64_t left = (uint64_t)(loading->end - loading->at);
	if (sizes[0] > left || sizes[1] > left || !(texts = take(loading, sizes[0] + sizes[1])) ||
	    memchr(texts, 0, (size_t)(sizes[0] + sizes[1])))
		return damaged(loading);
	return conversation_add(&session->conversation, (const char *)texts, (size_t)sizes[0],
				(const char *)texts + sizes[0], (size_t)sizes[1], loading->why);
}

static bool take_messages(struct loading *loading, const struct header *header, struct session *session)
{
	const uint8_t *end = loading->at + header->messages_bytes;
	struct loading messages = *loading;

	messages.end = end;
	for (uint64_t i = 0; i < header->messages; i++) {
		if (!take_message(&messages, session))
			return false;
	}
	if (messages.at != end)
		return damaged(loading);
	loading->at = end + sizeof(uint64_t); /* the checksum, which was looked at before */
	return true;
}

static bool take_session(struct loading *loading, struct session *session)
{
	struct header header;

	if (!take_header(loading, &header) || !check_sum(loading, &header))
		return false;
	session->draws = header.draws;
	session->ended = header.flags & ENDED;
	return take_tokens(loading, (size_t)header.tokens, session) && take_messages(loading, &header, session);
}

static bool take_sequence(struct loading *loading, decoder *decoder, const struct session *session, sequence **made)
{
	rosa_error error;

	for (size_t i = 0; i < session->tokens.count; i++) {
		if (session->tokens.ids[i] >= decoder_vocabulary(decoder))
			return refuse(loading->why, "%s: token %zu is not one of this model's; was it another model?",
				      loading->path, i);
	}
	if (sequence_load(decoder, loading->at, (size_t)(loading->end - loading->at), made, &error) != ROSA_OK)
		return refuse(loading->why, "%s: %s", loading->path, error.message);
	if (sequence_steps(*made) < session->tokens.count)
		return true;
	sequence_free(*made);
	*made = NULL;
	return damaged(loading);
}

bool session_load(const char *path, decoder *decoder, struct session *session, sequence **made, rosa_error *why)
{
	struct mapping mapping;

	memset(session, 0, sizeof(*session));
	*made = NULL;
	if (mapping_open(&mapping, path, why) != ROSA_OK)
		return false;
	struct loading loading = {mapping.data, mapping.data + mapping.size, path, why};
	bool good = take_session(&loading, session) && take_sequence(&loading, decoder, session, made);
	mapping_close(&mapping);
	if (!good)
		session_free(session);
	return good;
}

void session_free(struct session *session)
{
	tokens_free(&session->tokens);
	conversation_free(&session->conversation);
	memset(session, 0, sizeof(*session));
}
