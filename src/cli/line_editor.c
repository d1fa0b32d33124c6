/*
 * Lines with libedit.
 *
 * libedit's own function that reads a character restarts after a signal, so Ctrl-C would have no effect until the next
 * key. So characters are read here, as in line_input.c: in short waits, with a check for an interrupt in between.
 * Between two lines the terminal is in its usual mode, so that Ctrl-C stops an answer.
 *
 * The history is a file of plain lines. Each line is appended as soon as it was typed, so that it is not lost if the
 * program is killed, and several processes may share the file.
 */
#include "cli/line_editor.h"

#ifdef ROSATUNE_LIBEDIT

#include "base/file.h"
#include "base/folders.h"
#include "base/paths.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define KEPT         1000 /* lines of the history */
#define LONGEST_WAIT 100  /* milliseconds between two checks for an interrupt */

struct line_editor {
	EditLine *edit;
	History *history;
	struct path path; /* of the history; empty: it is not kept */
	const char *prompt;
	char *line;
};

/* ------------------------------------------------------------------------------------------------------ history -- */

/* Where the XDG base directory specification puts state, which is neither configuration nor worth a backup. Empty: the
 * folder is not there and cannot be made. */
static struct path find_history(void)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	struct path folder = path_of("");

	/* The specification wants relative paths to be ignored. */
	if (state && state[0] == '/')
		folder = path_join(state, "rosatune");
	else if (home && home[0] == '/')
		folder = path_join(home, ".local/state/rosatune");
	if (!*folder.text || folder_make(folder.text, NULL) != ROSA_OK)
		return path_of("");
	return path_join(folder.text, "chat_history");
}

static void remember(line_editor *editor, const char *line)
{
	HistEvent event;

	history(editor->history, &event, H_ENTER, line);
}

/* Cuts the file to its last lines once it has twice as many. What cannot be written stays as it is. */
static void shorten(const char *path, const char *text, size_t size, size_t lines)
{
	const char *from = text;

	for (size_t skipped = lines - KEPT; skipped > 0; skipped--)
		from = (const char *)memchr(from, '\n', size - (size_t)(from - text)) + 1;
	file_save(path, from, size - (size_t)(from - text), NULL, NULL);
}

static void load_history(line_editor *editor)
{
	uint8_t *data;
	size_t size, lines = 0;

	if (!path_is_file(editor->path.text) || file_read(editor->path.text, NULL, &data, &size, NULL) != ROSA_OK)
		return;
	for (size_t i = 0; i < size; i++)
		lines += data[i] == '\n';
	if (lines > 2 * KEPT)
		shorten(editor->path.text, (const char *)data, size, lines);
	for (char *from = (char *)data, *end; (end = memchr(from, '\n', size - (size_t)(from - (char *)data)));
	     from = end + 1) {
		*end = '\0';
		remember(editor, from);
	}
	free(data);
}

static void store(const line_editor *editor, const char *line)
{
	int descriptor = open(editor->path.text, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	size_t size = strlen(line);
	char *whole = descriptor >= 0 ? malloc(size + 2) : NULL;

	if (whole) {
		/* One write, since another process may append at the same time. A failure is ignored. */
		memcpy(whole, line, size);
		memcpy(whole + size, "\n", 2);
		if (write(descriptor, whole, size + 1) < 0)
			errno = 0;
	}
	free(whole);
	if (descriptor >= 0)
		close(descriptor);
}

/* --------------------------------------------------------------------------------------------------- characters -- */

/* One byte: 1, or 0 at the end of input, or -1 after a signal or an error. */
static int read_byte(char *byte)
{
	struct pollfd wait = {STDIN_FILENO, POLLIN, 0};

	for (;;) {
		if (interrupted()) {
			errno = EINTR;
			return -1;
		}
		if (poll(&wait, 1, LONGEST_WAIT) <= 0)
			continue;
		ssize_t got = read(STDIN_FILENO, byte, 1);
		if (got >= 0 || (errno != EINTR && errno != EAGAIN))
			return (int)got;
	}
}

/* Reads one character; bytes that are not UTF-8 become U+FFFD. */
static int read_character(EditLine *edit, wchar_t *character)
{
	mbstate_t state = {0};
	char byte;
	int got;

	(void)edit;
	while ((got = read_byte(&byte)) == 1) {
		size_t used = mbrtowc(character, &byte, 1, &state);
		if (used == (size_t)-2)
			continue;
		if (used == (size_t)-1)
			*character = 0xfffd;
		return 1;
	}
	return got;
}

static char *show_prompt(EditLine *edit)
{
	line_editor *editor;

	el_get(edit, EL_CLIENTDATA, &editor);
	return (char *)editor->prompt;
}

/* ------------------------------------------------------------------------------------------------------- editor -- */

/* mbrtowc and libedit depend on the locale. If that has single-byte characters only, UTF-8 is the better guess. */
static void set_locale(void)
{
	if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
		setlocale(LC_CTYPE, "C.UTF-8");
}

static bool start(line_editor *editor)
{
	HistEvent event;

	set_locale();
	editor->edit = el_init("rosatune", stdin, stderr, stderr);
	editor->history = history_init();
	if (!editor->edit || !editor->history)
		return false;
	history(editor->history, &event, H_SETSIZE, KEPT);
	history(editor->history, &event, H_SETUNIQUE, 1);
	el_set(editor->edit, EL_CLIENTDATA, editor);
	el_set(editor->edit, EL_PROMPT, show_prompt);
	el_set(editor->edit, EL_EDITOR, "emacs");
	el_set(editor->edit, EL_SIGNAL, 0);
	el_set(editor->edit, EL_HIST, history, editor->history);
	el_set(editor->edit, EL_GETCFN, read_character);
	el_set(editor->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
	return true;
}

line_editor *line_editor_new(const char *prompt)
{
	const char *terminal = getenv("TERM");
	bool useful =
	    isatty(STDIN_FILENO) && isatty(STDERR_FILENO) && terminal && *terminal && strcmp(terminal, "dumb") != 0;
	line_editor *editor = useful ? calloc(1, sizeof(*editor)) : NULL;

	if (!editor)
		return NULL;
	editor->prompt = prompt;
	editor->path = find_history();
	if (!start(editor)) {
		line_editor_free(editor);
		return NULL;
	}
	load_history(editor);
	return editor;
}

enum line_result line_editor_read(line_editor *editor, char **line, size_t *size, rosa_error *why)
{
	int count = 0;

	el_resize(editor->edit);
	/* Raw mode before the prompt is shown: otherwise what is typed at once would be handled in the usual mode. */
	el_set(editor->edit, EL_PREP_TERM, 1);
	const char *typed = el_gets(editor->edit, &count);
	if (interrupted())
		return LINE_INTERRUPTED;
	if (!typed || count <= 0)
		return LINE_ENDED;
	free(editor->line);
	editor->line = strndup(typed, strcspn(typed, "\r\n"));
	if (!editor->line) {
		refuse(why, "not enough memory for a line of %d bytes", count);
		return LINE_FAILED;
	}
	if (editor->line[strspn(editor->line, " \t")]) {
		remember(editor, editor->line);
		store(editor, editor->line);
	}
	*line = editor->line;
	*size = strlen(editor->line);
	return LINE_READ;
}

void line_editor_free(line_editor *editor)
{
	if (!editor)
		return;
	if (editor->edit)
		el_end(editor->edit);
	if (editor->history)
		history_end(editor->history);
	free(editor->line);
	free(editor);
}

#else

line_editor *line_editor_new(const char *prompt)
{
	(void)prompt;
	return NULL;
}

enum line_result line_editor_read(line_editor *editor, char **line, size_t *size, rosa_error *why)
{
	(void)editor;
	(void)line;
	(void)size;
	refuse(why, "this build has no libedit");
	return LINE_FAILED;
}

void line_editor_free(line_editor *editor)
{
	(void)editor;
}

#endif
