/*
 * Documents into tokens.
 *
 * Parsing JSON and tokenizing take nearly all of the time and treat each document by itself, so a batch of documents is
 * done on all threads; reading before and writing after keep the order. The error of a bad document is kept in its item
 * and does not stop the others.
 */
#include "train/pack_batch.h"

#include "base/array.h"
#include "model/json.h"
#include "base/pool.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------------------- the batch -- */

rosa_status pack_batch_add(struct pack_batch *batch, const struct pack_item *item, const char *bytes, rosa_error *err)
{
	if (!ARRAY_RESERVE(batch->bytes, batch->room, batch->used + item->size + 1) ||
	    !ARRAY_RESERVE(batch->items, batch->items_room, batch->count + 1))
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory for a batch of %zu bytes",
				 batch->used + item->size);
	if (item->size)
		memcpy(batch->bytes + batch->used, bytes, item->size);
	batch->items[batch->count] = *item;
	batch->items[batch->count].at = batch->used;
	batch->used += item->size;
	batch->count++;
	return ROSA_OK;
}

void pack_batch_clear(struct pack_batch *batch)
{
	for (size_t i = 0; i < batch->count; i++) {
		tokens_free(&batch->items[i].tokens);
		free(batch->items[i].counts);
	}
	batch->count = batch->used = 0;
}

void pack_batch_free(struct pack_batch *batch)
{
	pack_batch_clear(batch);
	free(batch->items);
	free(batch->bytes);
	memset(batch, 0, sizeof(*batch));
}

/* ------------------------------------------------------------------------------------------------------ encoding -- */

static rosa_status encode_messages(const struct pack_rules *rules, struct json list, struct pack_item *item)
{
	size_t count = json_count(list);
	struct chat_message *messages = calloc(count ? count : 1, sizeof(*messages));
	rosa_status status = ROSA_OK;

	if (!messages)
		return rosa_fail(&item->error, ROSA_ENOMEM, "no memory for a conversation");
	for (size_t i = 0; i < count && !status; i++) {
		struct json message = json_at(list, i);
		status = json_get_string(message, "role", JSON_NEEDED, &messages[i].role, &item->error);
		if (!status)
			status = json_get_string(message, "content", JSON_NEEDED, &messages[i].content, &item->error);
	}
	if (!status)
		status = answers_encode(&rules->answers, messages, count, &item->tokens, &item->counts, &item->error);
	free(messages);
	return status;
}

static rosa_status encode_text(const struct pack_rules *rules, const char *text, size_t size, struct pack_item *item)
{
	return tokenizer_encode(rules->tokenizer, text, size, rules->special, &item->tokens, &item->error);
}

static rosa_status encode_field(const struct pack_rules *rules, struct json root, struct pack_item *item)
{
	struct json list;
	const char *text;
	size_t size;
	rosa_status status;

	if (rules->chat) {
		status = json_get_array(root, rules->field, JSON_NEEDED, &list, &item->error);
		return status ? status : encode_messages(rules, list, item);
	}
	if (json_kind(root) != JSON_IS_OBJECT)
		return json_refuse(root, &item->error, "is not a JSON object");
	status = json_as_text(json_find(root, rules->field), &text, &size, &item->error);
	return status ? status : encode_text(rules, text, size, item);
}

/* `where` is the file and the line. */
static rosa_status encode_json(const struct pack_rules *rules, const char *bytes, const char *where,
			       struct pack_item *item)
{
	struct json root = {0};
	rosa_status status = json_read(bytes, item->size, where, &root, &item->error);

	if (!status)
		status = encode_field(rules, root, item);
	json_free(&root);
	return status;
}

/* Puts the file and the line before a message that does not have them. */
static void name_place(struct pack_item *item, const char *where)
{
	if (strncmp(item->error.message, where, strlen(where)) != 0)
		rosa_fail(&item->error, item->error.status, "%s: %s", where, item->error.message);
}

struct work {
	struct pack_batch *batch;
	const struct pack_rules *rules;
	int (*between)(void *context);
	void *context;
};

static void encode_item(void *context, size_t i, unsigned worker)
{
	const struct work *work = context;
	struct pack_item *item = &work->batch->items[i];
	const char *bytes = work->batch->bytes + item->at;
	char where[128];
	int tail;

	(void)worker;
	if (item->bad)
		return;
	/* the end of a long path tells more than its beginning */
	tail = (int)strlen(item->file) - 96;
	snprintf(where, sizeof(where), "%s%s:%llu", tail > 0 ? "..." : "", item->file + (tail > 0 ? tail : 0),
		 (unsigned long long)item->line);
	item->bad = (item->json ? encode_json(work->rules, bytes, where, item)
				: encode_text(work->rules, bytes, item->size, item)) != ROSA_OK;
	if (item->bad)
		name_place(item, where);
}

static int between_items(void *context)
{
	const struct work *work = context;

	return work->between(work->context);
}

rosa_status pack_batch_encode(struct pack_batch *batch, const struct pack_rules *rules, rosa_workers *workers,
			      int (*between)(void *context), void *context, rosa_error *err)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	struct work work = {batch, rules, between, context};
	struct pool *pool;

	options.workers = workers;
	pool = pool_for(&options, 1);
	if (!pool)
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory for threads");
	pool_run(pool, batch->count, encode_item, &work, between_items);
	pool_done(&options, pool);
	return ROSA_OK;
}
