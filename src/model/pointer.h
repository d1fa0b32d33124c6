/*
 * The pointer: tokens that followed earlier occurrences of the present context get more probability.
 *
 * Retrieval over token ids finds the places of a chain (pointer_past.h), each with the token that stands there and a
 * match length l. With a_i = exp(theta[i][min(l_i, 12)]) for link i the model's distribution becomes
 *
 *     p(x) = (p_model(x) + sum_i a_i [x is the token of link i]) / (1 + sum_i a_i)
 *
 * where links that do not exist are left out. With confidence slopes (b_i, c_i) the exponent has in addition
 * b_i ln p_model(token of link i) + c_i ln max_x p_model(x), so that the weight depends on how sure the model is. Both
 * logarithms are cut at POINTER_LEAST. With agreement it has d[u - 1], u being the number of different tokens among the
 * links of the position: places that agree are right more often. The few dozen numbers are fitted with the model frozen
 * (train/pointer_fit.h).
 */
#ifndef ROSATUNE_POINTER_H
#define ROSATUNE_POINTER_H

#include "base/file.h"
#include "rosatune.h"

#include <stdbool.h>

#define POINTER_FILE    "pointer.json" /* its name in an adapter's folder */
#define POINTER_LENGTHS 13             /* match lengths 0 to 11, and 12 or more */
#define POINTER_LINKS   16             /* at most */
#define POINTER_LARGEST 50.0           /* of a number in the file: exp() of a few of them stays finite */
#define POINTER_LEAST   (-50.0)        /* of a logarithm of a probability */

struct pointer {
	size_t delay; /* only places this many positions back are found: the window beside which it was fitted */
	size_t links; /* places per chain */
	double theta[POINTER_LINKS][POINTER_LENGTHS];
	bool confident; /* the slopes are used */
	double slope[POINTER_LINKS][2];
	bool agreeing; /* the next is used */
	double agreement[POINTER_LINKS];
};

/* `path` is a file, a folder that has one under the name POINTER_FILE, or a run's folder with a final one. What is
 * missing, unknown, of another shape or not a number in range is refused, naming file and field. */
rosa_status pointer_load(const char *path, struct pointer *pointer, rosa_error *err);
/* The same from memory; `name` is for messages. */
rosa_status pointer_parse(const char *text, size_t size, const char *name, struct pointer *pointer, rosa_error *err);
/* Replaces the file at once; `files` may be NULL. */
rosa_status pointer_save(const char *path, const struct pointer *pointer, const struct file_options *files,
			 rosa_error *err);

/* What a chain found for one position: the tokens at its places, and their match lengths (cut at 255). */
struct pointer_links {
	uint8_t count, length[POINTER_LINKS];
	uint32_t token[POINTER_LINKS];
};

/* ln sum exp of a row of logits, in double; *greatest is the greatest one. */
double log_sum_exp(const float *logits, size_t count, double *greatest);

/* Turns the model's logits into logits of the mixture. Only those of the tokens found change; where nothing was found,
 * none does. */
void pointer_mix(const struct pointer *pointer, const struct pointer_links *found, float *logits, size_t vocabulary);

/* All that matters of a position whose next token is known: logarithms of the model's probabilities. */
struct pointer_sample {
	double target, greatest;     /* of the next token, and of the likeliest */
	double token[POINTER_LINKS]; /* of the token of each link */
	uint8_t count, length[POINTER_LINKS];
	uint8_t different;       /* how many different tokens the links have */
	bool hit[POINTER_LINKS]; /* the link's token is the next token */
};

struct pointer_sample pointer_sample(const struct pointer_links *found, const float *logits, size_t vocabulary,
				     uint32_t target);

/* ln a_i of each link of a sample, which must have been found with this many links; returns ln(1 + sum a_i). */
double pointer_weigh(const struct pointer *pointer, const struct pointer_sample *sample, double *weights);

/* -ln p(next token) of the mixture. */
double pointer_loss(const struct pointer *pointer, const struct pointer_sample *sample);

/* ln(e^a + e^b); either may be -infinity. */
double log_add(double a, double b);

#endif
