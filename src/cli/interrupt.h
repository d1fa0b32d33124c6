/* Ctrl-C as a question that long work asks now and then. */
#ifndef ROSATUNE_INTERRUPT_H
#define ROSATUNE_INTERRUPT_H

/* From now on SIGINT and SIGTERM only leave a note. A second one ends the program at once, in case the work does not
 * come round to asking. */
void interrupt_watch(void);

/* Between these two calls, which may be nested, there are files to clean up, and a second signal is a note as well. */
void interrupt_hold(void);
void interrupt_release(void);

/* Takes the note back: whoever asked knows of it, and the program goes on, be it only to save what there is. */
void interrupt_forget(void);

/* The exit code to end with, 128 + the signal's number, or 0 if no signal came. */
int interrupted(void);

#endif
