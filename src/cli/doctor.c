/*
 * rosatune doctor: what this machine and this build can do.
 *
 * One line per check: OK, missing (something optional is not there, and what would bring it), or FAILED. Only what no
 * command can do without fails: threads, a little memory, a folder for temporary files, and results that are right.
 * doctor_tests.c computes; this file looks and reports.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "cli/commands.h"

#include "base/cpu.h"
#include "cli/args.h"
#include "cli/doctor_tests.h"
#include "cli/features.h"
#include "cli/programs.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "cli/text_input.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LITTLE_MEMORY (1024.0 * 1024 * 1024) /* bytes: a small model and its text */
#define LITTLE_DISK   (1024.0 * 1024 * 1024)

enum outcome { GOOD, MISSING, BROKEN };
static const char *const outcome_words[] = {[GOOD] = "OK", [MISSING] = "missing", [BROKEN] = "FAILED"};
static const char *const outcome_names[] = {[GOOD] = "ok", [MISSING] = "missing", [BROKEN] = "failed"};

struct doctor {
	bool json;
	struct json_text text; /* for that */
	size_t counts[BROKEN + 1];
};

/* One line. The remedy is NULL where none is needed. */
static void tell(struct doctor *doctor, enum outcome outcome, const char *name, const char *remedy, const char *format,
		 ...)
{
	char detail[512];
	va_list arguments;
	struct json_text *text = &doctor->text;

	va_start(arguments, format);
	vsnprintf(detail, sizeof(detail), format, arguments);
	va_end(arguments);
	doctor->counts[outcome]++;
	if (!doctor->json) {
		printf("%-7s  %-12s  %s%s%s\n", outcome_words[outcome], name, detail, remedy ? "; " : "",
		       remedy ? remedy : "");
		return;
	}
	json_text_open(text, NULL, '{');
	json_text_put_string(text, "name", name);
	json_text_put_string(text, "status", outcome_names[outcome]);
	json_text_put_string(text, "detail", detail);
	json_text_put_string(text, "remedy", remedy);
	json_text_close(text, '}');
}

/* ------------------------------------------------------------------------------------------------------ machine -- */

static void check_processor(struct doctor *doctor)
{
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	rosa_workers *workers = NULL;
	cpu_set_t set;
	rosa_error err = {0};

	tell(doctor, GOOD, "processor",
	     rosa_isa_best() == ROSA_ISA_PLAIN ? "AVX2 or AVX-512 would make most commands several times faster" : NULL,
	     "instruction set %s", rosa_isa_name(rosa_isa_best()));
	if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) < online)
		tell(doctor, MISSING, "threads", "give --threads as many as that",
		     "%d of %ld processors may be used by this process", CPU_COUNT(&set), online);
	else if (rosa_workers_new(0, NULL, &workers, &err) != ROSA_OK)
		tell(doctor, BROKEN, "threads", "raise the limit of processes (ulimit -u)", "%s", err.message);
	else
		tell(doctor, GOOD, "threads", NULL, "%ld, one per processor", online);
	rosa_workers_free(workers);
}

/* A number of a file of lines "name: number kB", in bytes; 0: not there. */
static double read_meminfo(const char *name)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[256];
	double bytes = 0;

	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
			bytes = strtod(line + strlen(name) + 1, NULL) * 1024;
	}
	if (file)
		fclose(file);
	return bytes;
}

/* The limit of a container; 0: none. */
static double container_limit(void)
{
	FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
	char line[64] = "";

	if (file && !fgets(line, sizeof(line), file))
		line[0] = '\0';
	if (file)
		fclose(file);
	return strtod(line, NULL); /* "max" is no number, and gives 0 */
}

static void check_memory(struct doctor *doctor)
{
	double whole = read_meminfo("MemTotal"), free_now = read_meminfo("MemAvailable"), limit = container_limit();

	if (whole == 0) {
		tell(doctor, MISSING, "memory", NULL, "cannot read /proc/meminfo");
		return;
	}
	if (limit > 0 && limit < whole) {
		whole = limit;
		free_now = free_now < limit ? free_now : limit;
	}
	tell(doctor, free_now < LITTLE_MEMORY ? MISSING : GOOD, "memory",
	     free_now < LITTLE_MEMORY ? "models may not fit; end other programs, or use a smaller model" : NULL,
	     "%s of %s are free", quantity_bytes(free_now).text, quantity_bytes(whole).text);
}

static void check_disk(struct doctor *doctor)
{
	FILE *temporary = tmpfile();
	struct statvfs here;

	if (temporary && fputs("a line", temporary) >= 0 && fflush(temporary) == 0)
		tell(doctor, GOOD, "temporary", NULL, "temporary files can be written");
	else
		tell(doctor, BROKEN, "temporary", "/tmp must be writable and have space",
		     "no temporary file can be written: %s", strerror(errno));
	if (temporary)
		fclose(temporary);
	if (statvfs(".", &here) != 0) {
		tell(doctor, MISSING, "disk", NULL, "cannot tell how much is free: %s", strerror(errno));
		return;
	}
	double bytes = (double)here.f_bavail * (double)here.f_frsize;
	tell(doctor, bytes < LITTLE_DISK ? MISSING : GOOD, "disk",
	     bytes < LITTLE_DISK ? "checkpoints and sessions may not fit; free some" : NULL,
	     "%s are free in the current folder", quantity_bytes(bytes).text);
}

static void check_terminal(struct doctor *doctor)
{
	const char *kind = getenv("TERM");
	struct winsize size = {0};

	if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
		tell(doctor, MISSING, "terminal", "run it in one to chat with line editing and to see progress",
		     "standard input or standard error is not a terminal");
	else if (!kind || strcmp(kind, "dumb") == 0)
		tell(doctor, MISSING, "terminal", "set TERM to have line editing", "TERM is %s",
		     kind ? kind : "not set");
	else if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
		tell(doctor, GOOD, "terminal", NULL, "%s, %d columns", kind, size.ws_col);
	else
		tell(doctor, GOOD, "terminal", NULL, "%s", kind);
}

/* ------------------------------------------------------------------------------------------- libraries, programs -- */

static const struct {
	const char *name, *use, *remedy;
} libraries[] = {
    {"openblas", "multiplies matrices", "install libopenblas-dev and build again, or training is several times slower"},
    {"jansson", "reads JSON: model folders, tokenizer.json, configurations",
     "install libjansson-dev and build again, or only GGUF models can be read"},
    {"pcre2", "splits text for tokenizers", "install libpcre2-dev and build again, or most models cannot read text"},
    {"utf8proc", "normalises text for tokenizers", "install libutf8proc-dev and build again"},
    {"zlib", "reads .gz", "install zlib1g-dev and build again"},
    {"lzma", "reads .xz", "install liblzma-dev and build again"},
    {"zstd", "reads .zst", "install libzstd-dev and build again"},
    {"mpi", "trains with several processes", "install libopenmpi-dev and openmpi-bin and build again"},
    {"libedit", "edits lines in a chat", "install libedit-dev and build again"},
    {"microhttpd", "serves models over HTTP", "install libmicrohttpd-dev and build again"},
};

static void check_libraries(struct doctor *doctor)
{
	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
		bool there = features_has(libraries[i].name);
		tell(doctor, there ? GOOD : MISSING, libraries[i].name, there ? NULL : libraries[i].remedy, "%s",
		     libraries[i].use);
	}
}

static void check_programs(struct doctor *doctor)
{
	static const char *const ask_gnuplot[] = {"gnuplot", "--version", NULL};
	static const char script[] =
	    "import importlib.util as u, rosatune; print(rosatune.__version__, *("
	    "('with ' if u.find_spec(m) else 'without ') + m for m in ('torch', 'transformers')))";
	const char *const named = getenv("ROSATUNE_PYTHON"); /* the one that runs this: python -m rosatune */
	char line[256], path[512];
	const char *const ask_python[] = {path, "-c", script, NULL};
	bool found = named && *named;

	if (found)
		snprintf(path, sizeof(path), "%s", named);
	else
		found = program_find("python3", path, sizeof(path));

	if (!program_find("gnuplot", NULL, 0))
		tell(doctor, MISSING, "gnuplot", "install gnuplot-nox", "draws curves: plot, mqar --plot");
	else
		tell(doctor, GOOD, "gnuplot", NULL, "%s",
		     program_ask(ask_gnuplot, line, sizeof(line)) ? line : "found, but it does not start");
	if (!found)
		tell(doctor, MISSING, "python", "install python3", "runs the Python package");
	else if (program_ask(ask_python, line, sizeof(line)))
		tell(doctor, GOOD, "python", NULL, "the package rosatune %s, in %s", line, path);
	else
		tell(doctor, MISSING, "python", "'pip install .' in the source folder puts it there",
		     "%s has no package rosatune", path);
}

/* -------------------------------------------------------------------------------------------------------- tests -- */

static void check_results(struct doctor *doctor)
{
	char detail[256];

	tell(doctor, doctor_test_retrieval(detail, sizeof(detail)) ? GOOD : BROKEN, "retrieval", NULL, "%s", detail);
	tell(doctor, doctor_test_products(detail, sizeof(detail)) ? GOOD : BROKEN, "products", NULL, "%s", detail);
}

int doctor_command(int count, char **words)
{
	struct doctor doctor = {0};
	rosa_error why = {0};
	struct arg options[] = {
	    OPTION_FLAG("json", &doctor.json, "print one JSON object"),
	};
	struct args args = {
	    .command = "doctor",
	    .usage = "[options]",
	    .summary = "Checks what this machine and this build can do: processor, memory, libraries, programs, and\n"
		       "whether retrieval and products of matrices give the right results.",
	    ARGS_OPTIONS(options),
	    .notes = "One line per check: OK, missing (optional, with the remedy), or FAILED. Exit code 1: one failed.",
	};
	enum args_result parsed = args_parse(&args, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	json_text_open(&doctor.text, NULL, '{');
	json_text_put_string(&doctor.text, "version", rosa_version());
	json_text_open(&doctor.text, "checks", '[');
	check_processor(&doctor);
	check_memory(&doctor);
	check_disk(&doctor);
	check_terminal(&doctor);
	check_libraries(&doctor);
	check_programs(&doctor);
	check_results(&doctor);
	bool good = doctor.counts[BROKEN] == 0;
	if (!doctor.json) {
		printf("\n%zu OK, %zu missing, %zu failed: %s\n", doctor.counts[GOOD], doctor.counts[MISSING],
		       doctor.counts[BROKEN], good ? "ready" : "not ready");
		json_text_free(&doctor.text);
		return good ? DONE : FAILED;
	}
	json_text_close(&doctor.text, ']');
	json_text_put_bool(&doctor.text, "ok", good);
	json_text_add(&doctor.text, "}\n");
	if (!json_print(&doctor.text, &why))
		return command_end("doctor", false, &why);
	return good ? DONE : FAILED;
}
