/* Results of tasks as tables, JSON and pictures. */
#pragma once

#include "cli/report.h"
#include "eval/results.h"

/* A table per task: a column per condition; rows for all examples, for each length and for each tenth of depth. */
void eval_print_tables(const struct eval_results *results);
/* The same as Markdown, one table for all tasks; the rows of depths are left out if that is asked for. */
void eval_print_markdown(const struct eval_results *results, bool depths);

/* One JSON object with the settings and all means. */
bool eval_print_json(const struct eval_results *results, rosa_error *why);

/* A heat map per condition, length by depth, over the needles of all tasks. */
bool eval_draw_depths(const struct eval_results *results, const char *path, rosa_error *why);
