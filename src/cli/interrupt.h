/* Ctrl-C as a question that long work asks now and then. */
#ifndef ROSATUNE_INTERRUPT_H
#define ROSATUNE_INTERRUPT_H

/* From now on SIGINT and SIGTERM only leave a note. */
void interrupt_watch(void);

/* The exit code to end with, 128 + the signal's number, or 0 if no signal came. */
int interrupted(void);

#endif
