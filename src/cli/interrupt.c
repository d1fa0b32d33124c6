/*
 * Signals that ask the program to end: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal or a lost connection sends.
 *
 * The handler sets one variable; the code at work looks at it, cleans up after itself and returns. Little else than
 * writing a line is safe in a handler, and a half-written file can only be removed by the code that knows it. System
 * calls are not restarted, so a program that waits for a pipe notices. A signal that was ignored when the program was
 * started (nohup, a background job of a shell) stays ignored.
 */
#include "cli/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t seen, held;
static const char *volatile announced;

static void note(int number)
{
	const char *text = announced;
	const int before = errno;

	if (seen && !held)
		_exit(128 + number);
	if (!seen && text && write(STDERR_FILENO, text, strlen(text)) < 0)
		announced = NULL; /* nobody reads it */
	errno = before;
	seen = number;
}

static void watch(int number)
{
	struct sigaction action = {.sa_handler = note};
	struct sigaction before;

	if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN)
		return;
	sigemptyset(&action.sa_mask);
	sigaction(number, &action, NULL);
}

void interrupt_watch(void)
{
	watch(SIGINT);
	watch(SIGTERM);
	watch(SIGHUP);
}

void interrupt_announce(const char *text)
{
	announced = text;
}

void interrupt_hold(void)
{
	held++;
}

void interrupt_release(void)
{
	held--;
}

void interrupt_forget(void)
{
	seen = 0;
}

int interrupted(void)
{
	return seen ? 128 + (int)seen : 0;
}

int interrupt_progress(void *context, uint64_t done, uint64_t total)
{
	(void)context, (void)done, (void)total;
	return interrupted();
}

static int cancelled(void *context)
{
	(void)context;
	return interrupted();
}

static void hold(void *context)
{
	(void)context;
	interrupt_hold();
}

static void release(void *context)
{
	(void)context;
	interrupt_release();
}

const struct file_hooks interrupt_hooks = {.cancelled = cancelled, .hold = hold, .release = release};
const struct file_options program_files = {.hooks = &interrupt_hooks};
