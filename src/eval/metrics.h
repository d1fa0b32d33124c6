/* How well what a model wrote or preferred fits what was expected. Scores lie between 0 and 1. */
#pragma once

#include "rosatune.h"

enum eval_metric {
	METRIC_MATCH_ALL,  /* RULER: the share of the expected strings that occur in the answer, in any case */
	METRIC_MATCH_PART, /* RULER: whether at least one of them does */
	METRIC_EXACT,      /* SQuAD: the same words as one of them, but for case, punctuation and articles */
	METRIC_F1,         /* SQuAD: harmonic mean of precision and recall over these words, the best of them */
	METRIC_ROUGE_L,    /* the same over the longest common subsequence of words, the best of them */
	METRIC_CLASS,  /* LongBench: one over the number of classes that the answer names, if the right one is named */
	METRIC_CODE,   /* LongBench: likeness of the first line of code, by the longest common subsequence of letters */
	METRIC_CHOICE, /* whether the right one of several continuations is the likeliest */
	METRIC_WORD,   /* whether every token of the only continuation is the likeliest */
	METRICS
};
extern const char *const eval_metric_names[]; /* by eval_metric; ends with NULL */

struct eval_strings {
	char **all;
	size_t count;
};

/* The score of an answer under one of the metrics before METRIC_CHOICE. There is at least one expected string; classes
 * are used by METRIC_CLASS alone, and may be NULL else. Fails without memory, or without classes where there must be
 * some. */
rosa_status answer_score(enum eval_metric metric, const char *answer, const struct eval_strings *expected,
			 const struct eval_strings *classes, double *score, rosa_error *err);

/* The first line of an answer, after line ends at its beginning; from malloc, NULL without memory. */
char *answer_line(const char *answer);
