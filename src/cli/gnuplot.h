/* Pictures by gnuplot. */
#ifndef ROSATUNE_GNUPLOT_H
#define ROSATUNE_GNUPLOT_H

#include "report.h"

#include <stdio.h>

/* A script in the making: written to with fprintf, and gone when it is closed. NULL: it could not be made. */
FILE *gnuplot_script(struct failure *why);

/* Runs a script that was written, and closes it; what gnuplot puts out goes to `descriptor`. */
bool gnuplot_run(FILE *script, int descriptor, struct failure *why);

#endif
