/*
 * Requests about slots.
 *
 * A name is all that a client can say about the disk. Letters, digits, '.', '_' and '-' make no path, and names that
 * the server uses itself are not given away.
 */
#include "serve/slot_request.h"

#include "model/json.h"

#include <string.h>

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

static bool take_slot(const char *text, size_t slots, size_t *slot, struct api_error *error)
{
	const size_t digits = strspn(text, "0123456789");

	*slot = 0;
	for (size_t i = 0; i < digits && *slot < slots; i++)
		*slot = *slot * 10 + (size_t)(text[i] - '0');
	if (digits && !text[digits] && *slot < slots)
		return true;
	return api_fail(error, 404, NULL, "not_found", "there is no slot %.40s; give a number from 0 to %zu", text,
			slots - 1);
}

static bool take_action(const char *text, enum slot_action *action, struct api_error *error)
{
	static const char *const names[] = {[SLOT_SAVE] = "save", [SLOT_RESTORE] = "restore", [SLOT_ERASE] = "erase"};

	for (size_t i = 0; text && i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(text, names[i]) == 0) {
			*action = (enum slot_action)i;
			return true;
		}
	}
	return api_fail(error, 400, "action", NULL, "the action must be save, restore or erase, as in ?action=save");
}

static bool take_name(struct json root, char *name, struct api_error *error)
{
	const char *text;
	rosa_error why;

	if (json_kind(root) != JSON_IS_OBJECT)
		return api_fail(error, 400, NULL, NULL, "the body must be a JSON object");
	if (json_get_string(root, "filename", JSON_NEEDED, &text, &why) != ROSA_OK)
		return api_fail(error, 400, "filename", NULL, "%s", why.message);
	const size_t size = strlen(text);

	if (!size || size > SLOT_NAME || strspn(text, letters) != size || text[0] == '.' ||
	    strncmp(text, "kept-", 5) == 0 || strcmp(text, "lock") == 0)
		return api_fail(error, 400, "filename", NULL,
				"filename must be a name of up to %d letters, digits, '.', '_' and '-', which does not "
				"begin with '.' or 'kept-' and is not 'lock'",
				SLOT_NAME);
	memcpy(name, text, size + 1);
	return true;
}

bool slot_request_parse(const char *slot, const char *action, const char *body, size_t size, size_t slots,
			struct slot_request *request, struct api_error *error)
{
	struct json root;
	rosa_error why;

	*request = (struct slot_request){0};
	if (!take_slot(slot, slots, &request->slot, error) || !take_action(action, &request->action, error))
		return false;
	if (request->action == SLOT_ERASE)
		return true;
	if (json_read(body, size, "the request", &root, &why) != ROSA_OK)
		return api_refuse(error, NULL, &why);
	const bool good = take_name(root, request->name, error);

	json_free(&root);
	return good;
}
