/* Command line options, described by a table that the parser, the help text, the manual and the completions read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum arg_kind {
	ARG_FLAG,    /* bool *, set to true */
	ARG_TEXT,    /* const char ** */
	ARG_TEXTS,   /* struct arg_texts *; may be given several times */
	ARG_NUMBER,  /* uint64_t *, from min to max */
	ARG_SIZE,    /* the same, with k, M and G (powers of 1024) allowed: 16k is 16384 */
	ARG_DECIMAL, /* float *, from least to most */
	ARG_CHOICE   /* int *, the place of the word among the choices */
};

#define ARG_TEXTS_MOST 32

struct arg_texts {
	const char *all[ARG_TEXTS_MOST];
	size_t count;
};

struct arg_words {
	char **all;
	size_t count;
};

struct arg {
	const char *name; /* without the dashes */
	char short_name;  /* 'm' for -m; 0: none */
	enum arg_kind kind;
	void *target;
	const char *value; /* how the help calls the value */
	const char *help;
	uint64_t min, max;
	double least, most;
	const char *const *choices; /* ends with NULL */
	bool required;
	bool given; /* set by args_parse */
};

/* Rows of a table of options. What follows the help are further members, such as .short_name and .required. */
#define OPTION_FLAG(name_, target_, ...)          OPTION_(ARG_FLAG, name_, target_, NULL, __VA_ARGS__)
#define OPTION_TEXT(name_, target_, value_, ...)  OPTION_(ARG_TEXT, name_, target_, value_, __VA_ARGS__)
#define OPTION_TEXTS(name_, target_, value_, ...) OPTION_(ARG_TEXTS, name_, target_, value_, __VA_ARGS__)
#define OPTION_NUMBER(name_, target_, value_, min_, max_, ...)                                                         \
	OPTION_(ARG_NUMBER, name_, target_, value_, __VA_ARGS__, .min = (min_), .max = (max_))
#define OPTION_SIZE(name_, target_, value_, min_, max_, ...)                                                           \
	OPTION_(ARG_SIZE, name_, target_, value_, __VA_ARGS__, .min = (min_), .max = (max_))
#define OPTION_DECIMAL(name_, target_, value_, least_, most_, ...)                                                     \
	OPTION_(ARG_DECIMAL, name_, target_, value_, __VA_ARGS__, .least = (least_), .most = (most_))
#define OPTION_CHOICE(name_, target_, value_, choices_, ...)                                                           \
	OPTION_(ARG_CHOICE, name_, target_, value_, __VA_ARGS__, .choices = (choices_))
#define OPTION_(kind_, name_, target_, value_, ...)                                                                    \
	{                                                                                                              \
		.name = (name_), .kind = (kind_), .target = (target_), .value = (value_), .help = __VA_ARGS__          \
	}

struct args {
	const char *command; /* "retrieve"; NULL for the program itself */
	const char *summary; /* what it does, one line or more */
	const char *usage;   /* what follows the command's name */
	struct arg *options;
	size_t count;
	const char *notes;    /* below the options in the help; NULL: none */
	const char **operand; /* receives the one word that is no option and must be there; NULL: there is none */
	const char *operand_name;
	struct arg_words *operands; /* or one or more of them, "-" too; they move to the front of the words */
};

/* A whole table of them, in an initialiser. */
#define ARGS_OPTIONS(table_) .options = (table_), .count = sizeof(table_) / sizeof((table_)[0])

enum args_result { ARGS_OK, ARGS_HELP, ARGS_WRONG };

/* Reads the words after the command's name. ARGS_HELP: the help was asked for and is printed; ARGS_WRONG: the mistake
 * is explained on stderr. */
enum args_result args_parse(struct args *args, int count, char **words);

bool args_given(const struct args *args, const char *name);

/* What --help does from now on instead of printing the help. The manual and the shell completions are made this way: a
 * command builds its table whenever it runs, so running it with --help is how another function gets to see the table.
 */
void args_on_help(void (*describe)(const struct args *args, void *context), void *context);

/* Of an option of another program: what does the same here. The name is without dashes. One of the three is there: the
 * option's name, for example "tokens" for "max-tokens"; a sentence; or the operand that is given without an option. */
struct args_foreign {
	const char *theirs, *ours, *remark, *operand;
};

/* NULL: the name is not known. */
const struct args_foreign *args_foreign(const struct args *args, const char *name);
