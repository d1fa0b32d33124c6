/*
 * gnuplot, connected through two temporary files.
 *
 * It reads the script, data included, from a file that was removed as soon as it was made, and writes the picture to a
 * descriptor of ours. So there is nothing to clean up whatever happens, no shell that would interpret a name, and no
 * pipe on which both programs could wait for each other. What it prints on stderr is held back and shown if it fails.
 *
 * It is started with -d, which skips ~/.gnuplot and the system's gnuplotrc: a picture must not depend on them, and they
 * may run any command.
 */
#include "cli/gnuplot.h"

#include "cli/interrupt.h"
#include "cli/programs.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

/* The first line of what it said that says something. */
static void first_message(FILE *messages, char *text, size_t size)
{
	rewind(messages);
	while (fgets(text, (int)size, messages)) {
		text[strcspn(text, "\n")] = '\0';
		if (text[strspn(text, " \t^")])
			return;
	}
	snprintf(text, size, "it gave no reason");
}

/* Runs a script that was written; what gnuplot puts out goes to `descriptor`. */
static bool run(FILE *script, int descriptor, rosa_error *why)
{
	static const char *const words[] = {"gnuplot", "-d", "-", NULL};
	FILE *messages = tmpfile();
	char text[256];
	int code, status = -1;
	bool good = false;

	if (!messages || fflush(script) != 0 || fseek(script, 0, SEEK_SET) != 0) {
		refuse(why, "cannot write a temporary file: %s", strerror(errno));
	} else if ((code = program_run(words, (const int[]){fileno(script), descriptor, fileno(messages)}, &status))) {
		if (code == ENOENT)
			refuse(why, "gnuplot is not installed; it draws the curves (Debian: gnuplot-nox)");
		else
			refuse(why, "cannot start gnuplot: %s", strerror(code));
	} else {
		good = WIFEXITED(status) && WEXITSTATUS(status) == 0 && !interrupted();
		first_message(messages, text, sizeof(text));
		if (!good)
			refuse(why, "gnuplot failed: %s", interrupted() ? "interrupted" : text);
	}
	if (messages)
		fclose(messages);
	return good;
}

/* ----------------------------------------------------------------------------------------------------- pictures -- */

/* gnuplot's word for a kind of picture, by the ending of the file's name; NULL: not known. */
static const char *terminal_of(const char *path)
{
	static const char *const known[][2] = {{".png", "pngcairo"}, {".svg", "svg"}, {".pdf", "pdfcairo"}};
	const size_t length = strlen(path);

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (length > 4 && strcasecmp(path + length - 4, known[i][0]) == 0)
			return known[i][1];
	}
	return NULL;
}

bool picture_can_be(const char *path, rosa_error *why)
{
	if (!terminal_of(path))
		return refuse(why, "%s: the name of a picture must end in .png, .svg or .pdf", path);
	return file_can_create(path, why) == ROSA_OK;
}

/*
 * In double quotes, with octal escapes. Single quotes would need no escapes, but gnuplot reads a doubled quote at the
 * beginning of a string as an empty string. Backquotes would run a command even within double quotes.
 */
void picture_text(FILE *script, const char *text)
{
	fputc('"', script);
	for (; *text; text++) {
		if ((unsigned char)*text < ' ')
			fputc(' ', script);
		else if (strchr("\"\\`", *text))
			fprintf(script, "\\%03o", (unsigned)*text);
		else
			fputc(*text, script);
	}
	fputc('"', script);
}

static void put_terminal(const struct picture *picture, FILE *script)
{
	const char *terminal = picture->path ? terminal_of(picture->path) : NULL;

	if (!terminal)
		fprintf(script, "set terminal dumb noenhanced size 100,%zu\n", picture->lines);
	else if (strcmp(terminal, "pdfcairo") == 0)
		fprintf(script, "set terminal pdfcairo noenhanced size %.2fin,%.2fin\n", (double)picture->width / 100,
			(double)picture->height / 100);
	else
		fprintf(script, "set terminal %s noenhanced size %zu,%zu background rgb 'white'\n", terminal,
			picture->width, picture->height);
}

static bool draw(const struct picture *picture, void (*put)(FILE *script, const void *context), const void *context,
		 int descriptor, rosa_error *why)
{
	FILE *script = tmpfile();
	bool good = script != NULL;

	if (good) {
		put_terminal(picture, script);
		put(script, context);
		good = !ferror(script);
	}
	if (!good)
		refuse(why, "cannot write a temporary file for gnuplot; is there room in the temporary folder?");
	good = good && run(script, descriptor, why);
	if (script)
		fclose(script);
	return good;
}

bool picture_draw(const struct picture *picture, void (*put)(FILE *script, const void *context), const void *context,
		  rosa_error *why)
{
	struct file_writer writer = FILE_WRITER_INIT;

	if (!picture->path)
		return draw(picture, put, context, STDOUT_FILENO, why);
	if (file_create(&writer, picture->path, &program_files, why) == ROSA_OK &&
	    draw(picture, put, context, writer.descriptor, why) && file_finish(&writer, ROSA_OK, why) == ROSA_OK)
		return true;
	file_discard(&writer);
	return false;
}
