/* A parsed slot request: POST /slots/ID?action=ACTION. */
#pragma once

#include "serve/api_error.h"

enum slot_action { SLOT_SAVE, SLOT_RESTORE, SLOT_ERASE };

#define SLOT_NAME 128 /* bytes of a file's name, at most */

struct slot_request {
	size_t slot;
	enum slot_action action;
	char name[SLOT_NAME + 1]; /* of a file in the folder of sessions; empty: to erase */
};

/* `slot` is the rest of the path, `action` may be NULL. The body of an erase request is ignored. */
bool slot_request_parse(const char *slot, const char *action, const char *body, size_t size, size_t slots,
			struct slot_request *request, struct api_error *error);
