/*
 * rosatune demo: what retrieval does, for people.
 *
 * A text is both query and key, with one step per character. At each step the longest suffix of the text so far that
 * also occurs earlier is looked up, and the character that followed it there is the guess for the next one. Runs are
 * not folded, since "ll" and "l" differ for a reader, and the policy is "readable", so that every destination is a
 * character that has already been read.
 *
 * Text in Latin letters is reduced to 32 symbols, so that "The" matches "the". In other scripts almost every character
 * would become the symbol for "other"; for them every byte is a symbol.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/demo_text.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCENES 5  /* steps shown */
#define BEFORE 34 /* columns of context */
#define AFTER  24 /* columns of what follows */

struct demo {
	const char *path; /* NULL: the built-in text */
	uint64_t order;   /* longest context; 0: any */
	uint8_t *text;
	size_t size;
	int bits;
	uint16_t *symbols;
	int32_t *tau, *length;
	bool utf8;
	bool colour;
};

/* ---------------------------------------------------------------------------------------------- text to symbols -- */

static uint16_t fold_character(uint8_t c)
{
	if (isalpha(c) && c < 0x80)
		return (uint16_t)(tolower(c) - 'a');
	if (isspace(c))
		return 26;
	if (strchr(".!?", c) && c)
		return 27;
	if (strchr(",;:", c) && c)
		return 28;
	if (c == '\'' || c == '"')
		return 29;
	return isdigit(c) ? 30 : 31;
}

/* At most one byte in ten is not ASCII. */
static bool is_latin(const struct demo *demo)
{
	size_t other = 0;

	for (size_t i = 0; i < demo->size; i++)
		other += demo->text[i] >= 0x80;
	return other <= demo->size / 10;
}

/* Whether bytes from 0x80 on form UTF-8: a leading byte and one to three continuation bytes. */
static bool is_utf8(const struct demo *demo)
{
	int due = 0;

	for (size_t i = 0; i < demo->size; i++) {
		uint8_t c = demo->text[i];
		if ((c & 0xc0) == 0x80 ? due-- == 0 : due != 0)
			return false;
		if (c >= 0xc0)
			due = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
	}
	return due == 0;
}

static void make_symbols(struct demo *demo)
{
	demo->bits = is_latin(demo) ? 5 : 8;
	demo->utf8 = is_utf8(demo);
	for (size_t i = 0; i < demo->size; i++)
		demo->symbols[i] = demo->bits == 5 ? fold_character(demo->text[i]) : demo->text[i];
}

static const char *unit(const struct demo *demo)
{
	return demo->bits == 5 ? "characters" : "bytes";
}

static bool load_text(struct demo *demo, rosa_error *why)
{
	if (demo->path) {
		if (file_read(demo->path, &program_files, &demo->text, &demo->size, why) != ROSA_OK)
			return false;
	} else {
		demo->size = sizeof(demo_text) - 1;
		demo->text = get_memory(demo->size, 1, "the text", why);
		if (!demo->text)
			return false;
		memcpy(demo->text, demo_text, demo->size);
	}
	if (demo->size < 2)
		return refuse(why, "%s has %zu characters; give a text with at least two", demo->path, demo->size);
	return true;
}

static bool retrieve(struct demo *demo, rosa_error *why)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	struct progress progress;

	options.bits = demo->bits;
	options.policy = ROSA_READABLE;
	options.fold = 0;
	options.max_match = (uint32_t)demo->order;
	options.progress = progress_tick;
	options.progress_context = &progress;
	progress_begin(&progress, "reading", 0);
	rosa_status status =
	    rosa_retrieve(&options, 1, demo->size, demo->symbols, demo->symbols, demo->tau, demo->length, NULL, why);
	progress_end(&progress);
	return status == ROSA_OK;
}

/* ------------------------------------------------------------------------------------------- choosing the scenes -- */

static bool guessed(const struct demo *demo, size_t t)
{
	return demo->tau[t] >= 0 && demo->symbols[demo->tau[t]] == demo->symbols[t + 1];
}

/* How much a step is worth showing: the more, the longer its match is and, after a right guess, the longer the text
 * continues as it did there. A match that ends between words is easier to read. */
static int interest(const struct demo *demo, size_t t, bool right)
{
	int score = demo->length[t] < BEFORE ? demo->length[t] : BEFORE;
	int ahead = 0;

	if (demo->tau[t] < 0 || guessed(demo, t) != right || (demo->text[t + 1] & 0xc0) == 0x80 ||
	    (demo->text[demo->tau[t]] & 0xc0) == 0x80)
		return -1;
	while (right && ahead < AFTER && t + 1 + (size_t)ahead < demo->size &&
	       demo->symbols[demo->tau[t] + ahead] == demo->symbols[t + 1 + (size_t)ahead])
		ahead++;
	return score + ahead + (demo->text[t] == ' ' ? 6 : 0);
}

/* The best step of one part of the text, or demo->size if there is none. The second last part shows a wrong guess,
 * since guesses can fail; all others show a right one. */
static size_t choose(const struct demo *demo, size_t part)
{
	size_t parts = SCENES + 1, best = demo->size;
	size_t from = demo->size / parts * (part + 1),
	       to = part + 1 == SCENES ? demo->size - 1 : from + demo->size / parts;
	int most = 0;

	for (size_t t = from; t < to && t + 1 < demo->size; t++) {
		int score = interest(demo, t, part + 2 != SCENES);
		if (score > most) {
			most = score;
			best = t;
		}
	}
	return best;
}

/* ----------------------------------------------------------------------------------------------------- printing -- */

static void colour(const struct demo *demo, const char *code)
{
	if (demo->colour)
		printf("\033[%sm", code);
}

#define MATCHED "32"
#define RIGHT   "1;32"
#define WRONG   "1;31"
#define FAINT   "2"
#define PLAIN   "0"

/* Whether the byte begins a control character from U+0080 to U+009F. */
static bool begins_control(const struct demo *demo, size_t i)
{
	return demo->utf8 && demo->text[i] == 0xc2 && i + 1 < demo->size && demo->text[i + 1] < 0xa0;
}

/* Prints a byte of the text. Control characters, which a terminal would obey, become a space. */
static void print_character(const struct demo *demo, size_t i)
{
	uint8_t c = demo->text[i];

	if (i > 0 && begins_control(demo, i - 1))
		return;
	if (c < 0x20 || c == 0x7f || begins_control(demo, i))
		putchar(' ');
	else
		putchar(c >= 0x80 && !demo->utf8 ? '?' : c);
}

static bool begins_character(const struct demo *demo, size_t i)
{
	return !demo->utf8 || (demo->text[i] & 0xc0) != 0x80;
}

static int columns(const struct demo *demo, size_t from, size_t to)
{
	int count = 0;

	for (; from < to; from++)
		count += begins_character(demo, from);
	return count;
}

/* The index some characters before or after another, within the text. */
static size_t back(const struct demo *demo, size_t from, int characters)
{
	while (from > 0 && characters > 0)
		characters -= begins_character(demo, --from);
	return from;
}

static size_t forth(const struct demo *demo, size_t from, int characters)
{
	while (from < demo->size && (characters > 0 || !begins_character(demo, from)))
		characters -= begins_character(demo, from++);
	return from;
}

static void print_piece(const struct demo *demo, size_t from, size_t to, const char *code)
{
	colour(demo, code);
	for (; from < to; from++)
		print_character(demo, from);
	colour(demo, PLAIN);
}

/* Prints the text around an index; the bar before it is always in the same column. */
static void print_line(const struct demo *demo, size_t place, size_t matched, const char *next)
{
	size_t first = back(demo, place, BEFORE), second = forth(demo, place, 1);
	size_t lit = matched < place - first ? place - matched : first;

	printf("%8zu  %*s", place, BEFORE - columns(demo, first, place), "");
	print_piece(demo, first, lit, PLAIN);
	print_piece(demo, lit, place, MATCHED);
	putchar('|');
	print_piece(demo, place, second, next);
	print_piece(demo, second, forth(demo, place, AFTER), FAINT);
	putchar('\n');
}

static void print_scene(const struct demo *demo, size_t t)
{
	size_t place = (size_t)demo->tau[t], matched = (size_t)demo->length[t];
	bool right = guessed(demo, t);
	const char *next = right ? RIGHT : WRONG;
	int shown = columns(demo, t + 1 - matched, t + 1);

	if (shown > BEFORE)
		shown = BEFORE;
	print_line(demo, place, matched, next);
	print_line(demo, t + 1, matched, next);
	printf("%*s", 10 + BEFORE - shown, "");
	colour(demo, FAINT);
	for (int i = 0; i < shown; i++)
		putchar('^');
	colour(demo, next);
	printf(" %s", right ? "right" : "wrong");
	colour(demo, PLAIN);
	printf(": %zu %s match\n\n", matched, unit(demo));
}

static void print_share(const struct demo *demo, const char *label, double share)
{
	int filled = (int)(share * 30 + 0.5);

	printf("  %-42s ", label);
	colour(demo, MATCHED);
	printf("%.*s", filled, "##############################");
	colour(demo, FAINT);
	printf("%.*s", 30 - filled, "..............................");
	colour(demo, PLAIN);
	printf(" %5.1f %%\n", share * 100);
}

static uint16_t most_frequent(const struct demo *demo, size_t *times)
{
	size_t counts[256] = {0}, best = 0;

	for (size_t i = 1; i < demo->size; i++)
		counts[demo->symbols[i]]++;
	for (size_t i = 1; i < 256; i++) {
		if (counts[i] > counts[best])
			best = i;
	}
	*times = counts[best];
	return (uint16_t)best;
}

/* The name of a symbol, for a sentence. */
static void name_symbol(const struct demo *demo, uint16_t symbol, char *into, size_t room)
{
	static const char *const folded[] = {"a space", "the end of a sentence", "a comma", "a quote",
					     "a digit", "an unusual character"};

	if (demo->bits == 5 && symbol >= 26)
		snprintf(into, room, "%s", folded[symbol - 26]);
	else if (demo->bits == 5)
		snprintf(into, room, "'%c'", 'a' + symbol);
	else if (symbol == ' ')
		snprintf(into, room, "a space");
	else
		snprintf(into, room, "byte 0x%02x", symbol);
}

static void print_summary(const struct demo *demo)
{
	size_t hits = 0, right = 0, times, steps = demo->size - 1;
	double matched = 0;
	char name[32], label[64];

	for (size_t t = 0; t < steps; t++) {
		hits += demo->tau[t] >= 0;
		right += guessed(demo, t);
		matched += demo->length[t];
	}
	name_symbol(demo, most_frequent(demo, &times), name, sizeof(name));
	snprintf(label, sizeof(label), "right if the guess were always %s", name);
	printf("Of %zu steps, with %.1f matching %s on average where there was a match:\n", steps,
	       hits ? matched / (double)hits : 0, unit(demo));
	print_share(demo, "a match was found", (double)hits / (double)steps);
	print_share(demo, "what followed it was what came next", (double)right / (double)steps);
	print_share(demo, label, (double)times / (double)steps);
}

static void print_introduction(const struct demo *demo)
{
	printf("Retrieval at work on %s: %zu %s, a symbol of %d bits each\n(%s).\n\n",
	       demo->path ? demo->path : "a tale", demo->size, unit(demo), demo->bits,
	       demo->bits == 5 ? "letters without case, space, four groups of signs, the rest"
			       : "the bytes as they are");
	puts("Below, pairs of lines: an earlier place, and a later one whose text up to the bar | ends in the\n"
	     "same characters, as many as possible. What followed then is the guess at what comes now.\n");
}

static void print_demo(const struct demo *demo)
{
	print_introduction(demo);
	for (size_t part = 0; part < SCENES; part++) {
		size_t t = choose(demo, part);
		if (t < demo->size)
			print_scene(demo, t);
	}
	print_summary(demo);
}

/* -------------------------------------------------------------------------------------------------- the command -- */

static enum args_result parse(struct demo *demo, int count, char **words)
{
	struct arg options[] = {
	    OPTION_TEXT("file", &demo->path, "TEXT", "read this text instead of the built-in tale", .short_name = 'f'),
	    OPTION_SIZE("order", &demo->order, "N", 0, UINT32_MAX,
			"look at no more than N characters of context (default 0: all)"),
	};
	struct args args = {
	    .command = "demo",
	    .usage = "[--file TEXT] [--order N]",
	    .summary = "Shows on a text what retrieval finds, how long the matches are, and what follows them.",
	    ARGS_OPTIONS(options),
	};

	return args_parse(&args, count, words);
}

static bool run(struct demo *demo, rosa_error *why)
{
	if (!load_text(demo, why))
		return false;
	demo->symbols = get_memory(demo->size, sizeof(uint16_t), "the symbols", why);
	demo->tau = demo->symbols ? get_memory(demo->size, sizeof(int32_t), "the destinations", why) : NULL;
	demo->length = demo->tau ? get_memory(demo->size, sizeof(int32_t), "the match lengths", why) : NULL;
	if (!demo->length)
		return false;
	make_symbols(demo);
	if (!retrieve(demo, why))
		return false;
	print_demo(demo);
	return true;
}

int demo_command(int count, char **words)
{
	struct demo demo = {.colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR")};
	rosa_error why = {0};
	enum args_result parsed = parse(&demo, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = run(&demo, &why);
	free(demo.text);
	free(demo.symbols);
	free(demo.tau);
	free(demo.length);
	return command_end("demo", done, &why);
}
