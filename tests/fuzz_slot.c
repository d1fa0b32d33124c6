/*
 * Any bytes as a request about a slot: the rest of the path, the action and the body, each ended by a NUL.
 *
 * Whatever is accepted must name a slot that there is, and a file that is no path and none of the server's own.
 */
#include "base/utf8.h"
#include "serve/slot_request.h"
#include "support_fuzz.h"

#define SLOTS 4

/* The next string of the input, which is terminated. */
static const char *next(const char **at, const char *end)
{
	const char *text = *at;

	*at += strlen(text);
	*at += *at < end;
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = malloc(size + 1);
	struct slot_request request;
	struct api_error error = {0};

	check(copy != NULL);
	memcpy(copy, data, size);
	copy[size] = '\0';
	const char *at = copy, *end = copy + size, *slot = next(&at, end), *action = next(&at, end);

	if (slot_request_parse(slot, action, at, (size_t)(end - at), SLOTS, &request, &error)) {
		check(request.slot < SLOTS && (request.action == SLOT_ERASE) == !*request.name);
		check(strlen(request.name) <= SLOT_NAME && !strchr(request.name, '/') && request.name[0] != '.');
		check(strncmp(request.name, "kept-", 5) != 0 && strcmp(request.name, "lock") != 0);
	} else {
		check((error.status == 400 || error.status == 404) && *error.message);
		check(utf8_valid(error.message, strlen(error.message)) == strlen(error.message));
	}
	free(copy);
	return 0;
}
