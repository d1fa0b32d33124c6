/*
 * The options of a ROSA adapter.
 *
 * These rows are the only place where an option's name, range, default and meaning are written. `rosatune tune` reads
 * them as adapter.NAME and learning.NAME, `rosatune mqar` as --NAME, adapter_config.json as a field of "options";
 * `rosatune adapter options` prints them. A new option is a member of struct adapter_options and a row here.
 */
#include "model/adapter_options.h"

static const char *const fusions[] = {[ROSA_POST] = "post", [ROSA_PRE] = "pre", NULL};
static const char *const policies[] = {
    [ROSA_READABLE] = "readable", [ROSA_LITERAL] = "literal", [ROSA_INCLUSIVE] = "inclusive", NULL};
static const char *const starts[] = {
    [QK_ALIGNED] = "aligned", [QK_SEPARATE] = "separate", [QK_SHARED] = "shared", NULL};
static const char *const rules[] = {
    [ROSA_QK_LINEAR] = "linear", [ROSA_QK_SOFT] = "soft", [ROSA_QK_FLIPS] = "flips", [ROSA_QK_NONE] = "none", NULL};
static const char *const credits[] = {[ROSA_CREDIT_ALL] = "all", [ROSA_CREDIT_ROUTE] = "route", NULL};
static const char *const key_credits[] = {[ROSA_KEY_MATCH] = "match", [ROSA_KEY_DESTINATION] = "destination", NULL};

#define AT(member)  offsetof(struct adapter_options, member)
#define ROWS(array) (sizeof(array) / sizeof((array)[0]))

/* Name, type, place, least, most, default, words, marks, help. */
static const struct key adapter_rows[] = {
    {"bits", KEY_SIZE, AT(bits), ROSA_MIN_BITS, ROSA_MAX_BITS, 16, NULL, 0, "bits per symbol", NULL},
    {"fusion", KEY_CHOICE, AT(fusion), 0, 0, ROSA_POST, fusions, 0,
     "post: added beside attention; pre: mixed into its input", NULL},
    {"qk", KEY_CHOICE, AT(qk), 0, 0, QK_ALIGNED, starts, 0,
     "start of q and k: aligned (q copies k), separate, shared (one matrix)", NULL},
    {"e_start", KEY_FLOAT, AT(e_start), 0, 1e6, 0, NULL, 0, "start of the read-out: e0 = -A, e1 = A", NULL},
    {"window", KEY_SIZE, AT(window), 0, (double)ROSA_MAX_STEPS, 2048, NULL, 0, "positions that attention sees; 0: all",
     NULL},
    {"sinks", KEY_SIZE, AT(sinks), 0, (double)ROSA_MAX_STEPS, 0, NULL, 0, "first positions that it always sees", NULL},
    {"first_global_layers", KEY_SIZE, AT(first_global_layers), 0, 65536, 0, NULL, 0,
     "layers at the front with global attention and no adapter", NULL},
    {"policy", KEY_CHOICE, AT(policy), 0, 0, ROSA_READABLE, policies, 0,
     "which matches count: readable, literal (the paper's equation), inclusive", NULL},
    {"fold", KEY_BOOL, AT(fold), 0, 0, 1, NULL, 0, "equal neighbouring symbols form one run", NULL},
    {"max_match", KEY_SIZE, AT(max_match), 0, UINT32_MAX, 0, NULL, KEY_NULL_0,
     "compare matches up to this length; 0: no limit", NULL},
};

static const struct key learning_rows[] = {
    {"qk_grad", KEY_CHOICE, AT(learning.qk_grad), 0, 0, ROSA_QK_LINEAR, rules, 0,
     "gradient of q and k: linear, soft, flips (the paper) or none", NULL},
    {"credit", KEY_CHOICE, AT(learning.credit), 0, 0, ROSA_CREDIT_ALL, credits, 0,
     "linear, soft: a read is judged over all channels or those of its route", NULL},
    {"key_credit", KEY_CHOICE, AT(learning.key_credit), 0, 0, ROSA_KEY_MATCH, key_credits, 0,
     "flips: the key's gradient goes to the matched run, or the one read", NULL},
    {"suffix", KEY_FLOAT, AT(learning.suffix), 0, 1e6, 0, NULL, 0,
     "linear, soft: weight of the symbols one run earlier", NULL},
    {"explore", KEY_FLOAT, AT(learning.explore), 0, 1, 0, NULL, 0,
     "share of reads at a random past run, in training only", NULL},
    {"flip_share", KEY_FLOAT, AT(learning.flip_share), KEY_ABOVE_0, 1, 1, NULL, 0,
     "flips: share of query runs whose counterfactuals are looked up", NULL},
    {"slope", KEY_FLOAT, AT(learning.slope), KEY_ABOVE_0, 1e6, 1, NULL, 0, "soft: slope of the softmax", NULL},
};

const struct key_table adapter_option_table = {adapter_rows, ROWS(adapter_rows)};
const struct key_table learning_option_table = {learning_rows, ROWS(learning_rows)};

static const struct key_section sections[] = {{&adapter_option_table, "", 0, 0}, {&learning_option_table, "", 0, 0}};

const struct keys adapter_option_keys = {sections, ROWS(sections), "layers", "was it written by a later version?", 0};

struct adapter_options adapter_options_default(void)
{
	struct adapter_options options = {.learning = ROSA_LEARNING_INIT};

	keys_defaults(&adapter_option_keys, &options);
	return options;
}

rosa_options adapter_options_retrieval(const struct adapter_options *options)
{
	rosa_options retrieval = ROSA_OPTIONS_INIT;

	retrieval.bits = (int)options->bits;
	retrieval.policy = options->policy;
	retrieval.fold = options->fold;
	retrieval.max_match = (uint32_t)options->max_match;
	return retrieval;
}
