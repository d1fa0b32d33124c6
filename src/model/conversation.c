/* Messages are few, but each may be as long as a book: each is kept once, in the form the tokenizer takes. */
#include "model/conversation.h"

#include "base/array.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

rosa_status conversation_add(struct conversation *conversation, const char *role, size_t role_size, const char *content,
			     size_t size, rosa_error *err)
{
	char *own_role = strndup(role, role_size), *own_content = malloc(size + 1);

	if (!own_role || !own_content ||
	    !ARRAY_RESERVE(conversation->all, conversation->room, conversation->count + 1)) {
		free(own_role);
		free(own_content);
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory for a message of %zu bytes", size);
	}
	if (size)
		memcpy(own_content, content, size);
	own_content[size] = '\0';
	conversation->all[conversation->count++] = (struct chat_message){own_role, own_content};
	return ROSA_OK;
}

void conversation_drop(struct conversation *conversation)
{
	const struct chat_message *last = &conversation->all[--conversation->count];

	free((char *)last->role);
	free((char *)last->content);
}

void conversation_free(struct conversation *conversation)
{
	while (conversation->count > 0)
		conversation_drop(conversation);
	free(conversation->all);
	memset(conversation, 0, sizeof(*conversation));
}
