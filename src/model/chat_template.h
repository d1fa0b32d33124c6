/* What a chat template says, found without running it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Takes spaces off both ends, as Jinja's trim does. */
void chat_trim(const char **text, size_t *size);

/* A message in the user's name that a tool wrote: Qwen3's template knows it by the marks around it. */
bool chat_is_tool_response(const char *content);
