/* The key that clients must show. A file, not an option: others can see the options of a running program. */
#include "serve/api_key.h"

#include "base/file.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

rosa_status api_key_load(const char *path, char **key, rosa_error *err)
{
	uint8_t *data;
	size_t size, length = 0;
	rosa_status status = file_read(path, NULL, &data, &size, err);

	*key = NULL;
	if (status != ROSA_OK)
		return status;
	while (length < size && data[length] > ' ' && data[length] < 0x7f)
		length++;
	if (length == 0 || (length < size && data[length] != '\n' && data[length] != '\r'))
		status = rosa_fail(err, ROSA_EFORMAT,
				   "%s: the first line must be a key of printable characters without spaces", path);
	else if (!(*key = strndup((const char *)data, length)))
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for the key in %s", path);
	free(data);
	return status;
}

bool api_key_fits(const char *key, const char *authorization)
{
	static const char scheme[] = "Bearer ";
	const size_t size = strlen(key), skip = sizeof(scheme) - 1;

	if (!authorization || strncasecmp(authorization, scheme, skip) != 0)
		return false;
	const char *given = authorization + skip;
	const size_t length = strlen(given);
	volatile unsigned char difference = length != size;

	for (size_t i = 0; i < length; i++)
		difference |= (unsigned char)(given[i] ^ key[i % (size + 1)]);
	return difference == 0;
}
