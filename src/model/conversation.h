/* The messages of a conversation. */
#pragma once

#include "model/chat.h"

/* A zeroed one is empty. Roles and contents belong to it. */
struct conversation {
	struct chat_message *all;
	size_t count, room;
};

/* Adds a copy; the strings need not be terminated. */
rosa_status conversation_add(struct conversation *conversation, const char *role, size_t role_size, const char *content,
			     size_t size, rosa_error *err);
void conversation_drop(struct conversation *conversation); /* the last one */
void conversation_free(struct conversation *conversation); /* safe on a zeroed one */
