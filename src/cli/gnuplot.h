/* Pictures by gnuplot. */
#pragma once

#include "cli/report.h"

#include <stddef.h>
#include <stdio.h>

/* Where a picture goes and how large it is. What kind it is follows from the name. */
struct picture {
	const char *path;     /* .png, .svg or .pdf; NULL: drawn in letters on standard output */
	size_t width, height; /* in pixels */
	size_t lines;         /* of letters, without a path */
};

/* Writes a text as a string of gnuplot's language, whatever is in it. Control characters become spaces. */
void picture_text(FILE *script, const char *text);

/* Whether a picture could be written there, to be called before long work. */
bool picture_can_be(const char *path, rosa_error *why);

/* Draws what `put` writes as a gnuplot script, after the lines that choose the kind of picture. A file of that name
 * is replaced once the picture is whole. */
bool picture_draw(const struct picture *picture, void (*put)(FILE *script, const void *context), const void *context,
		  rosa_error *why);
