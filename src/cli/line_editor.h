/* A line typed at a terminal, with editing and a history. */
#pragma once

#include "cli/line_input.h"

typedef struct line_editor line_editor;

/* NULL where lines cannot be edited: the build has no libedit, or standard input or standard error is not a terminal
 * that can move its cursor. Earlier lines are kept in $XDG_STATE_HOME/rosatune/chat_history, where XDG_STATE_HOME is
 * ~/.local/state by default. */
line_editor *line_editor_new(const char *prompt);

/* Shows the prompt and reads a line. It stays until the next call. */
enum line_result line_editor_read(line_editor *editor, char **line, size_t *size, rosa_error *why);
void line_editor_free(line_editor *editor); /* safe on NULL */
