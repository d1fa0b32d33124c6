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
 * links of the position: places that agree are right more often.
 *
 * A pointer of the other kind, by *contexts*, looks at all places of the last two tokens (rosa_contexts in rosatune.h).
 * Its links are the different tokens found there, so their order means little, and one row of theta serves them all.
 * The exponent has in addition a slope for each of the features below.
 *
 * It may also have a table `seen`: a token that a text has had tends to come again, after other tokens too. A token
 * that stands n times where places can be found, before t - delay for the last token t, belongs to one of 60 classes,
 * by n and by how rare its id says it is. With b(x) the number of its class, 0 for tokens not seen, the mixture begins
 * with
 *
 *     p_0(x) = p_model(x) exp(b(x)) / (sum over all y of p_model(y) exp(b(y)))
 *
 * in place of p_model(x). The weights are still those from p_model.
 *
 * The numbers of either kind, a few dozen, are fitted with the model frozen (train/pointer_fit.h).
 */
#pragma once

#include "base/file.h"
#include "model/seen.h"
#include "rosatune.h"

#include <stdbool.h>

#define POINTER_FILE    "pointer.json" /* its name in an adapter's folder */
#define POINTER_LENGTHS 13             /* match lengths 0 to 11, and 12 or more */
#define POINTER_LINKS   16             /* at most */
#define POINTER_LARGEST 50.0           /* of a number in the file: exp() of a few of them stays finite */
#define POINTER_LEAST   (-50.0)        /* of a logarithm of a probability */

/* What the weight of a token found depends on beside the length of its match, in a pointer by contexts. */
enum pointer_feature {
	FEATURE_TOKEN,     /* ln p_model(token), cut at POINTER_LEAST */
	FEATURE_GREATEST,  /* ln max p_model, likewise */
	FEATURE_ENTROPY,   /* of p_model, in nats */
	FEATURE_ALIGNMENT, /* of the last 16 tokens, the share that equals those before the place */
	FEATURE_SHARE,  /* ln((n + 0.3) / (N + 1)): n of the N places with as long a match are followed by the token */
	FEATURE_PLACES, /* ln(1 + places found) */
	FEATURE_DIFFERENT, /* ln(different tokens that follow them) */
	FEATURE_SUCCESS,   /* ln(0.01 + running mean of how often the first token found was right) */
	POINTER_FEATURES
};
extern const char *const pointer_feature_names[POINTER_FEATURES + 1]; /* in the file; ends with NULL */

struct pointer {
	size_t delay; /* only places this many positions back are found: the window beside which it was fitted */
	size_t links; /* places per chain; by contexts POINTER_LINKS */
	bool contexts;
	double theta[POINTER_LINKS][POINTER_LENGTHS]; /* by contexts only the first row */
	double feature[POINTER_FEATURES];             /* the slopes of a pointer by contexts; of a chain 0 */
	bool confident;                               /* the slopes are used */
	double slope[POINTER_LINKS][2];
	bool agreeing; /* the next is used */
	double agreement[POINTER_LINKS];
	bool seeing; /* the next is used; only by contexts */
	double seen[SEEN_COUNTS][SEEN_RANKS];
};

/* `path` is a file, a folder that has one under the name POINTER_FILE, or a run's folder with a final one. What is
 * missing, unknown, of another shape or not a number in range is refused, naming file and field. */
rosa_status pointer_load(const char *path, struct pointer *pointer, rosa_error *err);
/* Replaces the file at once; `files` may be NULL. */
rosa_status pointer_save(const char *path, const struct pointer *pointer, const struct file_options *files,
			 rosa_error *err);

/* What was found for one position: the tokens at the places, and their match lengths (cut at 255). The rest is for
 * pointers by contexts, as in rosa_continuation. */
struct pointer_links {
	uint8_t count, length[POINTER_LINKS];
	uint32_t token[POINTER_LINKS];
	int32_t place[POINTER_LINKS]; /* where the token stands */
	uint8_t alignment[POINTER_LINKS], as_long[POINTER_LINKS], followed_by[POINTER_LINKS], places, different;
	uint16_t success;
};

struct logits_summary {
	double sum, greatest, entropy; /* ln sum exp; the greatest logit; of the softmax, in nats */
};
struct logits_summary logits_summary(const float *logits, size_t count);

/* Turns the model's logits into logits of the mixture. `seen` has the class of each token of the vocabulary
 * (pointer_past_seen); NULL: nothing has been seen, or the pointer has no table. Without it only the logits of the
 * tokens found change, and where nothing was found, none does. */
void pointer_mix(const struct pointer *pointer, const struct pointer_links *found, const uint8_t *seen, float *logits,
		 size_t vocabulary);

/* The share of the mixture that each link has, a_i / (1 + sum of all a), from the model's logits. Returns the number of
 * links. */
size_t pointer_shares(const struct pointer *pointer, const struct pointer_links *found, const float *logits,
		      size_t vocabulary, double shares[POINTER_LINKS]);

/* All that matters of a position whose next token is known: logarithms of the model's probabilities. */
struct pointer_sample {
	double target, greatest;     /* of the next token, and of the likeliest */
	double token[POINTER_LINKS]; /* of the token of each link */
	uint8_t count, length[POINTER_LINKS];
	uint8_t different;                                     /* how many different tokens the links have */
	bool hit[POINTER_LINKS];                               /* the link's token is the next token */
	double entropy, places, various, success;              /* features that all links share */
	double alignment[POINTER_LINKS], share[POINTER_LINKS]; /* and those of each */
	float mass[SEEN_CLASSES];                              /* the probability of each class */
	uint8_t target_class;
};

/* The features of link i of a sample. */
void pointer_features(const struct pointer_sample *sample, size_t i, double *features);

/* `seen` as for pointer_mix. */
struct pointer_sample pointer_sample(const struct pointer_links *found, const uint8_t *seen, const float *logits,
				     size_t vocabulary, uint32_t target);

/* ln a_i of each link of a sample, which must have been found with this many links; returns ln(1 + sum a_i). */
double pointer_weigh(const struct pointer *pointer, const struct pointer_sample *sample, double *weights);

/* exp(b) of each class. */
void pointer_factors(const struct pointer *pointer, double factors[SEEN_CLASSES]);

/* ln p_0(next token). *raised is the sum of the masses times their factors. */
double pointer_base(const struct pointer_sample *sample, const double factors[SEEN_CLASSES], double *raised);

/* -ln p(next token) of the mixture. */
double pointer_loss(const struct pointer *pointer, const struct pointer_sample *sample);

/* ln(e^a + e^b); either may be -infinity. */
double log_add(double a, double b);
