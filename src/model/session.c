/*
 * Sessions on disk.
 *
 * The state of a model after a book is not much larger than the book, and loading it takes milliseconds where reading
 * the book again takes minutes. The tokens are saved besides the state: a repetition penalty needs them, whatever its
 * options are this time, and a conversation compares them with its next turn.
 *
 * All numbers are little-endian u64 unless said otherwise; every part is filled up with zeros to a multiple of 8.
 *
 *     8 bytes   "ROSASESS"
 *               version, 4
 *               flags: 1 if the model has ended its answer
 *               draws of the sampler
 *               number of tokens, number of messages
 *               bytes of the messages
 *               window, sinks, first global layers; bytes of the adapter's path, and of the pointer's (0: none)
 *     bytes     the adapter's path
 *     bytes     the pointer's path
 *     u32       tokens
 *               for each message: bytes of the role, bytes of the content, role, content (filled up together)
 *               XXH64 of all before it
 *               the sequence, as sequence_save has it, with a checksum of its own, to the end of the file
 *
 * The checksum protects against accidents, not against malice: every number is still compared with the bytes that are
 * there before it is used.
 */
#include "model/session.h"

#include "base/checksum.h"
#include "base/mapping.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "sessions are written as they lie in memory, which has to be little-endian"
#endif

#define MAGIC   "ROSASESS"
#define VERSION 4 /* 1 had another checksum, 2 no settings, 3 no pointer */
#define ENDED   UINT64_C(1)

struct header {
	char magic[8];
	uint64_t version, flags, draws, tokens, messages, messages_bytes;
	uint64_t window, sinks, first_global_layers, adapter_bytes, pointer_bytes;
};

static size_t padded(size_t size)
{
	return (size + 7) / 8 * 8;
}

/* ------------------------------------------------------------------------------------------------------- writing -- */

struct saving {
	struct file_writer writer;
	struct checksum sum;
};

/* Writes a part and fills it up. */
static rosa_status put(struct saving *saving, const void *data, size_t size, rosa_error *err)
{
	static const char zeros[8];
	const size_t filling = padded(size) - size;
	rosa_status status = file_write(&saving->writer, data, size, err);

	checksum_add(&saving->sum, data, size);
	checksum_add(&saving->sum, zeros, filling);
	return status == ROSA_OK ? file_write(&saving->writer, zeros, filling, err) : status;
}

static size_t message_bytes(const struct chat_message *message)
{
	return 16 + padded(strlen(message->role) + strlen(message->content));
}

static rosa_status put_message(struct saving *saving, const struct chat_message *message, rosa_error *err)
{
	uint64_t sizes[2] = {strlen(message->role), strlen(message->content)};
	char *joined = malloc(sizes[0] + sizes[1] + 1);
	rosa_status status;

	if (!joined)
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory to save a message of %zu bytes",
				 (size_t)sizes[1]);
	memcpy(joined, message->role, sizes[0]);
	memcpy(joined + sizes[0], message->content, sizes[1]);
	status = put(saving, sizes, sizeof(sizes), err);
	if (status == ROSA_OK)
		status = put(saving, joined, sizes[0] + sizes[1], err);
	free(joined);
	return status;
}

static rosa_status put_session(struct saving *saving, const struct session *session, rosa_error *err)
{
	const struct conversation *conversation = &session->conversation;
	const struct session_settings *settings = &session->settings;
	struct header header = {.version = VERSION,
				.flags = session->ended ? ENDED : 0,
				.draws = session->draws,
				.tokens = session->tokens.count,
				.messages = conversation->count,
				.window = settings->window,
				.sinks = settings->sinks,
				.first_global_layers = settings->first_global_layers,
				.adapter_bytes = settings->adapter ? strlen(settings->adapter) : 0,
				.pointer_bytes = settings->pointer ? strlen(settings->pointer) : 0};
	uint64_t sum;
	rosa_status status;

	memcpy(header.magic, MAGIC, sizeof(header.magic));
	for (size_t i = 0; i < conversation->count; i++)
		header.messages_bytes += message_bytes(&conversation->all[i]);
	status = put(saving, &header, sizeof(header), err);
	if (status == ROSA_OK && header.adapter_bytes > 0)
		status = put(saving, settings->adapter, (size_t)header.adapter_bytes, err);
	if (status == ROSA_OK && header.pointer_bytes > 0)
		status = put(saving, settings->pointer, (size_t)header.pointer_bytes, err);
	if (status == ROSA_OK)
		status = put(saving, session->tokens.ids, session->tokens.count * sizeof(uint32_t), err);
	for (size_t i = 0; i < conversation->count && status == ROSA_OK; i++)
		status = put_message(saving, &conversation->all[i], err);
	sum = checksum_value(&saving->sum);
	return status == ROSA_OK ? put(saving, &sum, sizeof(sum), err) : status;
}

static rosa_status write_sequence(void *context, const void *data, size_t size, rosa_error *err)
{
	return file_write(context, data, size, err);
}

static rosa_status put_state(struct saving *saving, struct session_state state, rosa_error *err)
{
	return state.sequence ? sequence_save(state.sequence, write_sequence, &saving->writer, err)
			      : file_write(&saving->writer, state.data, state.size, err);
}

rosa_status session_save(const char *path, const struct session *session, struct session_state state,
			 const struct file_options *files, rosa_error *err)
{
	struct saving saving;
	rosa_status status = file_create(&saving.writer, path, files, err);

	if (status != ROSA_OK)
		return status;
	checksum_begin(&saving.sum, 0);
	status = put_session(&saving, session, err);
	if (status == ROSA_OK)
		status = put_state(&saving, state, err);
	return file_finish(&saving.writer, status, err);
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

struct loading {
	const uint8_t *at, *end;
	const char *path;
	rosa_error *err;
};

static rosa_status damaged(const struct loading *loading)
{
	return rosa_fail(loading->err, ROSA_EFORMAT, "%s was cut short or altered; the session cannot be resumed",
			 loading->path);
}

/* The next `size` bytes, which may not be aligned, and the zeros that fill them up; NULL if there are not as many. */
static const uint8_t *take(struct loading *loading, uint64_t size)
{
	const uint8_t *from = loading->at;
	const size_t left = (size_t)(loading->end - loading->at);

	if (size > left || padded((size_t)size) > left)
		return NULL;
	loading->at += padded((size_t)size);
	return from;
}

static rosa_status take_header(struct loading *loading, struct header *header)
{
	const uint8_t *from = loading->at;
	const size_t size = (size_t)(loading->end - loading->at);

	if (size < sizeof(header->magic) || memcmp(from, MAGIC, sizeof(header->magic)) != 0)
		return rosa_fail(loading->err, ROSA_EFORMAT, "%s is not a session of rosatune", loading->path);
	if (!take(loading, sizeof(*header)))
		return damaged(loading);
	memcpy(header, from, sizeof(*header));
	if (header->version != VERSION)
		return rosa_fail(loading->err, ROSA_EFORMAT,
				 "%s is a session of version %llu; this program reads version %d: begin a new one",
				 loading->path, (unsigned long long)header->version, VERSION);
	if (header->tokens == 0 || header->tokens > ROSA_MAX_STEPS || header->messages > header->messages_bytes ||
	    header->window > ROSA_MAX_STEPS || header->sinks > ROSA_MAX_STEPS ||
	    header->first_global_layers > UINT32_MAX)
		return damaged(loading);
	return ROSA_OK;
}

/* Whether the checksum after the paths, tokens and messages is right. */
static rosa_status check_sum(const struct loading *loading, const struct header *header)
{
	struct loading whole = *loading;
	const uint8_t *from = loading->at - sizeof(*header), *sum;
	uint64_t wanted;

	if (!take(&whole, header->adapter_bytes) || !take(&whole, header->pointer_bytes) ||
	    !take(&whole, header->tokens * sizeof(uint32_t)) || !take(&whole, header->messages_bytes) ||
	    !(sum = take(&whole, sizeof(wanted))))
		return damaged(loading);
	memcpy(&wanted, sum, sizeof(wanted));
	return checksum_of(from, (size_t)(sum - from)) == wanted ? ROSA_OK : damaged(loading);
}

/* A path of `size` bytes; 0: there is none. */
static rosa_status take_path(struct loading *loading, uint64_t size, char **made)
{
	const char *path = (const char *)take(loading, size);

	if (!path || memchr(path, 0, (size_t)size))
		return damaged(loading);
	if (size > 0 && !(*made = strndup(path, (size_t)size)))
		return rosa_fail(loading->err, ROSA_ENOMEM, "not enough memory for a path of %zu bytes", (size_t)size);
	return ROSA_OK;
}

static rosa_status take_settings(struct loading *loading, const struct header *header,
				 struct session_settings *settings)
{
	rosa_status status;

	*settings = (struct session_settings){(size_t)header->window, (size_t)header->sinks,
					      (size_t)header->first_global_layers, NULL, NULL};
	status = take_path(loading, header->adapter_bytes, &settings->adapter);
	if (status == ROSA_OK)
		status = take_path(loading, header->pointer_bytes, &settings->pointer);
	if (status != ROSA_OK)
		session_settings_free(settings);
	return status;
}

static rosa_status take_tokens(struct loading *loading, size_t count, struct session *session)
{
	const uint8_t *from = take(loading, count * sizeof(uint32_t));

	session->tokens.ids = malloc(count * sizeof(uint32_t));
	if (!session->tokens.ids)
		return rosa_fail(loading->err, ROSA_ENOMEM, "not enough memory for the %zu tokens of %s", count,
				 loading->path);
	memcpy(session->tokens.ids, from, count * sizeof(uint32_t));
	session->tokens.count = session->tokens.room = count;
	return ROSA_OK;
}

static rosa_status take_message(struct loading *loading, struct session *session)
{
	const uint8_t *from = take(loading, 2 * sizeof(uint64_t)), *texts;
	uint64_t sizes[2], left;

	if (!from)
		return damaged(loading);
	memcpy(sizes, from, sizeof(sizes));
	left = (uint64_t)(loading->end - loading->at);
	if (sizes[0] > left || sizes[1] > left || !(texts = take(loading, sizes[0] + sizes[1])) ||
	    memchr(texts, 0, (size_t)(sizes[0] + sizes[1])))
		return damaged(loading);
	return conversation_add(&session->conversation, (const char *)texts, (size_t)sizes[0],
				(const char *)texts + sizes[0], (size_t)sizes[1], loading->err);
}

static rosa_status take_messages(struct loading *loading, const struct header *header, struct session *session)
{
	const uint8_t *end = loading->at + header->messages_bytes;
	struct loading messages = *loading;
	rosa_status status = ROSA_OK;

	messages.end = end;
	for (uint64_t i = 0; i < header->messages && status == ROSA_OK; i++)
		status = take_message(&messages, session);
	if (status == ROSA_OK && messages.at != end)
		status = damaged(loading);
	loading->at = end + sizeof(uint64_t); /* past the checksum, which was compared before */
	return status;
}

/* The header and what it says of the model, all of it checked. */
static rosa_status take_beginning(struct loading *loading, struct header *header, struct session_settings *settings)
{
	rosa_status status = take_header(loading, header);

	if (status == ROSA_OK)
		status = check_sum(loading, header);
	return status == ROSA_OK ? take_settings(loading, header, settings) : status;
}

static rosa_status take_session(struct loading *loading, struct session *session)
{
	struct header header;
	rosa_status status = take_beginning(loading, &header, &session->settings);

	if (status != ROSA_OK)
		return status;
	session->draws = header.draws;
	session->ended = header.flags & ENDED;
	status = take_tokens(loading, (size_t)header.tokens, session);
	return status == ROSA_OK ? take_messages(loading, &header, session) : status;
}

static rosa_status check_tokens(const struct loading *loading, const decoder *decoder, const struct session *session)
{
	for (size_t i = 0; i < session->tokens.count; i++) {
		if (session->tokens.ids[i] >= decoder_vocabulary(decoder))
			return rosa_fail(loading->err, ROSA_EFORMAT,
					 "%s: token %zu is not one of this model's; was it another model?",
					 loading->path, i);
	}
	return ROSA_OK;
}

static rosa_status take_sequence(struct loading *loading, decoder *decoder, const struct session *session,
				 sequence **made)
{
	rosa_error error;
	rosa_status status = check_tokens(loading, decoder, session);

	if (status != ROSA_OK)
		return status;
	status = sequence_load(decoder, loading->at, (size_t)(loading->end - loading->at), made, &error);
	if (status != ROSA_OK)
		return rosa_fail(loading->err, status, "%s: %s", loading->path, error.message);
	if (sequence_steps(*made) < session->tokens.count)
		return ROSA_OK;
	sequence_free(*made);
	*made = NULL;
	return damaged(loading);
}

rosa_status session_settings_read(const char *path, struct session_settings *settings, rosa_error *err)
{
	struct mapping mapping;
	struct header header;
	rosa_status status = mapping_open(&mapping, path, err);

	memset(settings, 0, sizeof(*settings));
	if (status != ROSA_OK)
		return status;
	struct loading loading = {mapping.data, mapping.data + mapping.size, path, err};

	status = take_beginning(&loading, &header, settings);
	mapping_close(&mapping);
	return status;
}

rosa_status session_parse(const void *data, size_t size, const char *name, decoder *decoder, struct session *session,
			  sequence **made, rosa_error *err)
{
	struct loading loading = {data, (const uint8_t *)data + size, name, err};
	rosa_status status;

	memset(session, 0, sizeof(*session));
	*made = NULL;
	status = take_session(&loading, session);
	if (status == ROSA_OK)
		status = take_sequence(&loading, decoder, session, made);
	if (status != ROSA_OK)
		session_free(session);
	return status;
}

rosa_status session_load(const char *path, decoder *decoder, struct session *session, sequence **made, rosa_error *err)
{
	struct mapping mapping;
	rosa_status status = mapping_open(&mapping, path, err);

	memset(session, 0, sizeof(*session));
	*made = NULL;
	if (status == ROSA_OK)
		status = session_parse(mapping.data, mapping.size, path, decoder, session, made, err);
	mapping_close(&mapping);
	return status;
}

/* As session_look, of bytes. */
static rosa_status look(struct loading *loading, decoder *decoder, struct session *session, size_t *steps)
{
	rosa_error error;
	rosa_status status = take_session(loading, session);

	if (status == ROSA_OK)
		status = check_tokens(loading, decoder, session);
	if (status != ROSA_OK)
		return status;
	status = sequence_look(decoder, loading->at, (size_t)(loading->end - loading->at), steps, &error);
	if (status != ROSA_OK)
		return rosa_fail(loading->err, status, "%s: %s", loading->path, error.message);
	return *steps < session->tokens.count ? ROSA_OK : damaged(loading);
}

rosa_status session_look(const char *path, decoder *decoder, struct session *session, size_t *steps, rosa_error *err)
{
	struct mapping mapping;
	rosa_status status = mapping_open(&mapping, path, err);

	memset(session, 0, sizeof(*session));
	if (status != ROSA_OK)
		return status;
	struct loading loading = {mapping.data, mapping.data + mapping.size, path, err};

	status = look(&loading, decoder, session, steps);
	if (status != ROSA_OK)
		session_free(session);
	mapping_close(&mapping);
	return status;
}

void session_settings_free(struct session_settings *settings)
{
	free(settings->adapter);
	free(settings->pointer);
	memset(settings, 0, sizeof(*settings));
}

void session_free(struct session *session)
{
	session_settings_free(&session->settings);
	tokens_free(&session->tokens);
	conversation_free(&session->conversation);
	memset(session, 0, sizeof(*session));
}
