/*
 * Text from outside.
 *
 * Everything is checked here, once, before a tokenizer sees it: only here the name of the file and the place in it are
 * still known. A place is a byte counted from 0, as editors and hex dumps count.
 *
 * Text goes out without stdio, which takes a signal in the middle of a write for an error and forgets the rest.
 */
#include "cli/text_input.h"

#include "cli/file.h"
#include "base/utf8.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Adds bytes as they are. There is always room for the terminator. */
static bool add(struct text *text, const char *bytes, size_t size, rosa_error *why)
{
	size_t wanted = text->size + size + 1;

	if (wanted > text->room) {
		size_t room = wanted + wanted / 4;
		char *bigger = room > size ? realloc(text->data, room) : NULL;
		if (!bigger)
			return refuse(why, "not enough memory for a text of %zu bytes", wanted);
		text->data = bigger;
		text->room = room;
	}
	if (size)
		memcpy(text->data + text->size, bytes, size);
	text->size += size;
	text->data[text->size] = '\0';
	return true;
}

bool text_add(struct text *text, const char *name, const char *bytes, size_t size, bool lossy, rosa_error *why)
{
	for (size_t at = 0;;) {
		size_t good = utf8_valid(bytes + at, size - at), bad;
		if (at + good < size && !lossy)
			return refuse(why,
				      "%s: byte %zu (0x%02x) is not UTF-8; convert the text, or read such bytes as "
				      "U+FFFD with --lossy",
				      name, at + good, (unsigned char)bytes[at + good]);
		if (!add(text, bytes + at, good, why))
			return false;
		at += good;
		if (at == size)
			return true;
		utf8_next(bytes + at, size - at, &bad);
		if (!add(text, UTF8_REPLACEMENT, strlen(UTF8_REPLACEMENT), why))
			return false;
		at += bad;
	}
}

bool text_add_file(struct text *text, const char *path, bool lossy, rosa_error *why)
{
	bool standard = strcmp(path, "-") == 0;
	uint8_t *data;
	size_t size;

	if (!file_read(standard ? "/dev/stdin" : path, &data, &size, why))
		return false;
	bool good = text_add(text, standard ? "standard input" : path, (const char *)data, size, lossy, why);
	free(data);
	return good;
}

void text_free(struct text *text)
{
	free(text->data);
	memset(text, 0, sizeof(*text));
}

bool text_print(const char *data, size_t size, rosa_error *why)
{
	struct pollfd wait = {STDOUT_FILENO, POLLOUT, 0};

	fflush(stdout);
	while (size > 0) {
		ssize_t put = write(STDOUT_FILENO, data, size);
		if (put >= 0) {
			data += put;
			size -= (size_t)put;
		} else if (errno == EAGAIN) {
			poll(&wait, 1, -1);
		} else if (errno != EINTR) {
			return refuse(why, "cannot write to standard output: %s", strerror(errno));
		}
	}
	return true;
}

void text_print_json(const char *data, size_t size)
{
	putchar('"');
	for (size_t i = 0; i < size; i++) {
		unsigned char c = (unsigned char)data[i];
		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}
