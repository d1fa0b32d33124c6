/* The options of a ROSA adapter: one table for configuration files, command lines, adapter files and help texts. */
#pragma once

#include "model/adapter_layers.h"
#include "model/adapter_sources.h"

extern const char *const fusion_names[], *const policy_names[]; /* by value; each ends with NULL */

/* How the projections of q and k start: q as a copy of k, each at random, or one matrix for both. */
enum qk_start { QK_ALIGNED, QK_SEPARATE, QK_SHARED };

/* How the projection of v starts: as the identity, so that value bits are the signs of the normed state, or at random
 * (the paper). */
enum v_start { V_IDENTITY, V_XAVIER };

/* What values are made of: the layer's normed hidden state (the paper), or the embeddings of the tokens, normed without
 * a weight. With embeddings every layer can tell which token stood at the place that is read. */
enum v_from { V_LAYER, V_EMBEDDINGS };

#define V_NORM_EPS 1e-5F /* of the norm of embeddings */

/* The options of an adapter: its structure, the attention that it is used with, and its training. */
struct adapter_options {
	uint64_t bits;
	rosa_fusion fusion;
	enum qk_start qk;
	float e_start;
	uint64_t window, sinks;
	uint64_t first_global_layers; /* so many lowest layers have global attention and no adapter */
	struct adapter_layers layers; /* that have an adapter, of the others */
	rosa_policy policy;
	bool fold;
	uint64_t max_match; /* 0: no cut */
	struct adapter_sources source;
	uint64_t delay; /* KEY_UNSET: the window; see adapter_delay */
	uint64_t chain; /* places that are read per source, if query = key */
	bool gain, gate;
	float units; /* 0: off */
	enum v_start v_start;
	enum v_from v_from;
	uint64_t source_seed; /* of the projection of SOURCE_EMBEDDINGS */
	uint64_t seen;        /* the rank of the seen-token head; 0: there is none */
	rosa_learning learning;
};

/* Rows over struct adapter_options: which layers have an adapter; what it is, which is fixed once it exists; and how it
 * learns, which may change while it is trained. */
extern const struct key_table adapter_layers_table, adapter_option_table, learning_option_table;

/* All tables, as the object "options" of adapter_config.json. */
extern const struct keys adapter_option_keys;

struct adapter_options adapter_options_default(void);
/* The paper's values of those options whose default differs: the layer's own q and k, no delay, one place, no strength.
 * Fields that are missing in adapter files of format 1 have these values. */
struct adapter_options adapter_options_paper(void);

/* The model that options are checked against. */
struct adapter_shape {
	size_t width, layers;
	size_t vocabulary; /* 0: not known */
};

/* Whether options fit together and fit the model. A message begins with `prefix`, which says where the options are
 * ("adapter_config.json: options." or "--"), and the option's name. `shape` NULL: only among themselves. */
rosa_status adapter_options_check(const struct adapter_options *options, const struct adapter_shape *shape,
				  const char *prefix, rosa_error *err);

/* The delay of retrieval: as given, or the window. */
uint32_t adapter_delay(const struct adapter_options *options);

/* Whether a source is matched by symbols of `bits` bits, or by token ids. */
bool adapter_source_has_bits(const struct adapter_source *source);

/* How many places of source number i are read: `chain` where its query is its key, else 1; 0 in layers that it does not
 * serve. */
size_t adapter_source_links(const struct adapter_options *options, size_t i, size_t layer);
/* The reads of a layer, if it has an adapter: the links of all its sources. A layer with none has no adapter. */
size_t adapter_links(const struct adapter_options *options, size_t layer);
/* Whether a layer has an adapter. */
bool adapter_covers(const struct adapter_options *options, size_t layer);
/* Whether a layer has projections of q and k. */
bool adapter_learns_qk(const struct adapter_options *options, size_t layer);
/* Routes of source number i in a model of width `width`. */
size_t adapter_source_routes(const struct adapter_options *options, size_t i, size_t width);
/* The rows of a layer's table of gains: the routes of all reads. */
size_t adapter_gain_rows(const struct adapter_options *options, size_t layer, size_t width);

#define ADAPTER_GAINS 10 /* columns of that table: match lengths 0 to 8, and 9 or more */

/* Converts the adapter's options to rosa_options for retrieval; fields without a corresponding option keep their
 * defaults. */
rosa_options adapter_options_retrieval(const struct adapter_options *options);
/* The same for source number i. Token ids below `vocabulary` are symbols of as many bits as they need, never folded. */
rosa_options adapter_source_retrieval(const struct adapter_options *options, size_t i, size_t vocabulary);
