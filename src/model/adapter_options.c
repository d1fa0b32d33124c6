/*
 * The options of a ROSA adapter.
 *
 * These rows are the only place where an option's name, range, default and meaning are written. `rosatune tune` reads
 * them as adapter.NAME and learning.NAME, `rosatune mqar` as --NAME, adapter_config.json as a field of "options";
 * `rosatune adapter options` prints them. A new option is a member of struct adapter_options and a row here.
 */
#include "model/adapter_options.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

const char *const fusion_names[] = {[ROSA_POST] = "post", [ROSA_PRE] = "pre", NULL};
const char *const policy_names[] = {
    [ROSA_READABLE] = "readable", [ROSA_LITERAL] = "literal", [ROSA_INCLUSIVE] = "inclusive", NULL};
static const char *const starts[] = {
    [QK_ALIGNED] = "aligned", [QK_SEPARATE] = "separate", [QK_SHARED] = "shared", NULL};
static const char *const rules[] = {
    [ROSA_QK_LINEAR] = "linear", [ROSA_QK_SOFT] = "soft", [ROSA_QK_FLIPS] = "flips", [ROSA_QK_NONE] = "none", NULL};
static const char *const credits[] = {[ROSA_CREDIT_ALL] = "all", [ROSA_CREDIT_ROUTE] = "route", NULL};
static const char *const key_credits[] = {[ROSA_KEY_MATCH] = "match", [ROSA_KEY_DESTINATION] = "destination", NULL};
static const char *const v_starts[] = {[V_IDENTITY] = "identity", [V_XAVIER] = "xavier", NULL};
static const char *const v_froms[] = {[V_LAYER] = "layer", [V_EMBEDDINGS] = "embeddings", NULL};
static const char *const v_grads[] = {[ROSA_V_SIGMOID] = "sigmoid", [ROSA_V_STRAIGHT] = "straight", NULL};

#define AT(member)  offsetof(struct adapter_options, member)
#define ROWS(array) (sizeof(array) / sizeof((array)[0]))

/* Name, type, place, least, most, default, words, marks, help. */
static const struct key layers_rows[] = {
    {"layers", KEY_CUSTOM, AT(layers), 0, 0, 0, NULL, 0,
     "which layers have an adapter: all, or a list of their numbers", &layers_key},
};

static const struct key adapter_rows[] = {
    {"bits", KEY_SIZE, AT(bits), ROSA_MIN_BITS, ROSA_MAX_BITS, 16, NULL, 0, "bits per symbol", NULL},
    {"fusion", KEY_CHOICE, AT(fusion), 0, 0, ROSA_POST, fusion_names, 0,
     "post: added beside attention; pre: mixed into its input", NULL},
    {"qk", KEY_CHOICE, AT(qk), 0, 0, QK_ALIGNED, starts, 0,
     "initial q and k: aligned (q copies k), separate, shared (one matrix for both)", NULL},
    {"e_start", KEY_FLOAT, AT(e_start), 0, 1e6, 0, NULL, 0,
     "initial size A of the read-out: e0 = -A, e1 = A; 0: a new adapter adds nothing", NULL},
    {"window", KEY_SIZE, AT(window), 0, (double)ROSA_MAX_STEPS, 2048, NULL, 0, "positions that attention sees; 0: all",
     NULL},
    {"sinks", KEY_SIZE, AT(sinks), 0, (double)ROSA_MAX_STEPS, 4, NULL, 0, "first positions that attention always sees",
     NULL},
    {"first_global_layers", KEY_SIZE, AT(first_global_layers), 0, 65536, 0, NULL, 0,
     "number of lowest layers with global attention and no adapter", NULL},
    {"policy", KEY_CHOICE, AT(policy), 0, 0, ROSA_READABLE, policy_names, 0,
     "which matches count: readable, literal (the paper's equation), inclusive", NULL},
    {"fold", KEY_BOOL, AT(fold), 0, 0, 1, NULL, 0, "equal neighbouring symbols form one run", NULL},
    {"max_match", KEY_SIZE, AT(max_match), 0, UINT32_MAX, 0, NULL, KEY_NULL_0,
     "compare matches up to this length; 0: no limit", NULL},
    {"source", KEY_CUSTOM, AT(source), 0, 0, 0, NULL, 0,
     "what is matched: own (q and k), tokens, embeddings, layer N; joined by +", &source_key},
    {"delay", KEY_SIZE, AT(delay), 0, (double)ROSA_MAX_STEPS, -1, NULL, KEY_NULL,
     "find only places older than this, in steps; null: the window", NULL},
    {"chain", KEY_SIZE, AT(chain), 1, 16, 4, NULL, 0,
     "places read per step: the match, then the match found there, ...; needs query = key", NULL},
    {"gain", KEY_BOOL, AT(gain), 0, 0, 1, NULL, 0, "scale what is read by a learnt table over the match length", NULL},
    {"gate", KEY_BOOL, AT(gate), 0, 0, 1, NULL, 0, "scale what is read by a learnt gate over the hidden state", NULL},
    {"units", KEY_FLOAT, AT(units), 0, 1e6, 0.3, NULL, 0,
     "scale what is read by this times the rms of the layer's input; 0: off", NULL},
    {"v_start", KEY_CHOICE, AT(v_start), 0, 0, V_IDENTITY, v_starts, 0,
     "initial v: identity, or xavier (random, the paper)", NULL},
    {"v_from", KEY_CHOICE, AT(v_from), 0, 0, V_EMBEDDINGS, v_froms, 0,
     "values are made of: embeddings (of the tokens), or layer (its input, the paper)", NULL},
    {"source_seed", KEY_SIZE, AT(source_seed), 0, KEY_EXACT, 0, NULL, 0, "seed of the projection of embeddings", NULL},
    {"seen", KEY_SIZE, AT(seen), 0, 65536, 0, NULL, 0,
     "rank of the seen-token head, a bias towards tokens that already occurred; 0: off", NULL},
};

static const struct key learning_rows[] = {
    {"qk_grad", KEY_CHOICE, AT(learning.qk_grad), 0, 0, ROSA_QK_LINEAR, rules, 0,
     "gradient of q and k: linear, soft, flips (the paper) or none", NULL},
    {"credit", KEY_CHOICE, AT(learning.credit), 0, 0, ROSA_CREDIT_ALL, credits, 0,
     "linear, soft: a read gets credit from all channels, or those of its route", NULL},
    {"key_credit", KEY_CHOICE, AT(learning.key_credit), 0, 0, ROSA_KEY_MATCH, key_credits, 0,
     "flips: the key's gradient goes to the matched run, or the one read", NULL},
    {"suffix", KEY_FLOAT, AT(learning.suffix), 0, 1e6, 0, NULL, 0,
     "linear, soft: weight of the symbols one run earlier", NULL},
    {"explore", KEY_FLOAT, AT(learning.explore), 0, 1, 0, NULL, 0,
     "share of reads that go to a random past run, in training only", NULL},
    {"flip_share", KEY_FLOAT, AT(learning.flip_share), KEY_ABOVE_0, 1, 1, NULL, 0,
     "flips: share of query runs whose counterfactuals are looked up", NULL},
    {"slope", KEY_FLOAT, AT(learning.slope), KEY_ABOVE_0, 1e6, 1, NULL, 0, "soft: slope of the softmax", NULL},
    {"v_grad", KEY_CHOICE, AT(learning.v_grad), 0, 0, ROSA_V_STRAIGHT, v_grads, 0,
     "gradient of v: straight (where |v| < 1), or sigmoid (the paper)", NULL},
};

const struct key_table adapter_layers_table = {layers_rows, ROWS(layers_rows)};
const struct key_table adapter_option_table = {adapter_rows, ROWS(adapter_rows)};
const struct key_table learning_option_table = {learning_rows, ROWS(learning_rows)};

static const struct key_section sections[] = {
    {&adapter_layers_table, "", 0, 0}, {&adapter_option_table, "", 0, 0}, {&learning_option_table, "", 0, 0}};

const struct keys adapter_option_keys = {sections, ROWS(sections), NULL, "was it written by a later version?", 0};

struct adapter_options adapter_options_default(void)
{
	struct adapter_options options = {.learning = ROSA_LEARNING_INIT};

	keys_defaults(&adapter_option_keys, &options);
	return options;
}

struct adapter_options adapter_options_paper(void)
{
	struct adapter_options options = adapter_options_default();

	options.source = (struct adapter_sources){1, {{SOURCE_OWN, 0}}};
	options.delay = 0;
	options.chain = 1;
	options.gain = options.gate = false;
	options.units = 0;
	options.v_start = V_XAVIER;
	options.v_from = V_LAYER;
	options.learning.v_grad = ROSA_V_SIGMOID;
	options.source_seed = 0;
	options.sinks = 0;
	options.seen = 0;
	return options;
}

/* ------------------------------------------------------------------------------------------------------ sources -- */

uint32_t adapter_delay(const struct adapter_options *options)
{
	return (uint32_t)(options->delay == KEY_UNSET ? options->window : options->delay);
}

bool adapter_source_has_bits(const struct adapter_source *source)
{
	return source->kind != SOURCE_TOKENS;
}

/* Whether a source matches projections of q and k, which learn. */
static bool learns(const struct adapter_source *source)
{
	return source->kind == SOURCE_OWN || source->kind == SOURCE_LAYER;
}

size_t adapter_source_links(const struct adapter_options *options, size_t i, size_t layer)
{
	const struct adapter_source *source = &options->source.all[i];

	if (layer < source->layer)
		return 0;
	return !learns(source) || options->qk == QK_SHARED ? (size_t)options->chain : 1;
}

size_t adapter_links(const struct adapter_options *options, size_t layer)
{
	size_t links = 0;

	for (size_t i = 0; i < options->source.count; i++)
		links += adapter_source_links(options, i, layer);
	return links;
}

bool adapter_covers(const struct adapter_options *options, size_t layer)
{
	return layer >= options->first_global_layers && layers_have(&options->layers, layer) &&
	       adapter_links(options, layer) > 0;
}

bool adapter_learns_qk(const struct adapter_options *options, size_t layer)
{
	for (size_t i = 0; i < options->source.count; i++) {
		const struct adapter_source *source = &options->source.all[i];

		if (source->kind == SOURCE_OWN || (source->kind == SOURCE_LAYER && source->layer == layer))
			return true;
	}
	return false;
}

size_t adapter_source_routes(const struct adapter_options *options, size_t i, size_t width)
{
	return adapter_source_has_bits(&options->source.all[i]) ? width / (size_t)options->bits : 1;
}

size_t adapter_gain_rows(const struct adapter_options *options, size_t layer, size_t width)
{
	size_t rows = 0;

	for (size_t i = 0; i < options->source.count; i++)
		rows += adapter_source_links(options, i, layer) * adapter_source_routes(options, i, width);
	return rows;
}

/* ------------------------------------------------------------------------------------------------------- checks -- */

#define MOST_VOCABULARY ((size_t)1 << 20)

/* Where a message belongs. */
struct refusal {
	const char *prefix;
	rosa_error *err;
};

__attribute__((format(printf, 3, 4))) static rosa_status refuse(const struct refusal *to, const char *option,
								const char *format, ...)
{
	char what[sizeof(to->err->message)];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	return rosa_fail(to->err, ROSA_EINVAL, "%.150s%s: %s", to->prefix, option, what);
}

static rosa_status check_delay(const struct adapter_options *o, const struct refusal *to)
{
	const unsigned long long window = o->window;

	if (o->delay == KEY_UNSET || o->delay == 0 || o->delay >= o->window)
		return ROSA_OK;
	return refuse(to, "delay",
		      "is %llu beside a window of %llu: attention still sees what would be found; use 0, or %llu or "
		      "more",
		      (unsigned long long)o->delay, window, window);
}

static rosa_status check_source(const struct adapter_options *o, const struct adapter_source *source,
				const struct adapter_shape *shape, const struct refusal *to)
{
	if (adapter_source_has_bits(source) && shape->width % o->bits != 0)
		return refuse(to, "bits",
			      "is %llu, of which the model's width %zu is no multiple; choose a divisor of it",
			      (unsigned long long)o->bits, shape->width);
	if (source->kind == SOURCE_TOKENS && shape->vocabulary > MOST_VOCABULARY)
		return refuse(to, "source", "is tokens, and the model's vocabulary of %zu is above %zu; use embeddings",
			      shape->vocabulary, MOST_VOCABULARY);
	if (source->kind != SOURCE_LAYER)
		return ROSA_OK;
	if (source->layer >= shape->layers)
		return refuse(to, "source", "is layer %u; the model has layers 0 to %zu", source->layer,
			      shape->layers - 1);
	if (!adapter_covers(o, source->layer))
		return refuse(to, "source", "is layer %u, which has no adapter; name one that has", source->layer);
	return ROSA_OK;
}

/* `count`: of the model; SIZE_MAX: not known. */
static rosa_status check_layers(const struct adapter_options *o, size_t count, const struct refusal *to)
{
	const size_t first = (size_t)o->first_global_layers;

	for (size_t i = 0; o->layers.named && i < ADAPTED_MOST; i++) {
		if (!layers_have(&o->layers, i))
			continue;
		if (i < first)
			return refuse(to, "layers",
				      "names layer %zu, which first_global_layers (%zu) leaves without an adapter", i,
				      first);
		if (i >= count)
			return refuse(to, "layers", "names layer %zu; the model has layers 0 to %zu", i, count - 1);
		if (!adapter_links(o, i))
			return refuse(to, "layers",
				      "names layer %zu, which has nothing to read: its only source is a layer above it",
				      i);
	}
	if (!o->layers.named && count != SIZE_MAX && count > ADAPTED_MOST)
		return refuse(to, "layers", "is all, of %zu; name those that are to have an adapter, up to layer %d",
			      count, ADAPTED_MOST - 1);
	return ROSA_OK;
}

rosa_status adapter_options_check(const struct adapter_options *o, const struct adapter_shape *shape,
				  const char *prefix, rosa_error *err)
{
	const struct refusal to = {prefix, err};
	rosa_status status = check_delay(o, &to);

	if (status == ROSA_OK && shape && o->first_global_layers > shape->layers)
		return refuse(&to, "first_global_layers", "is %llu; the model has %zu layers",
			      (unsigned long long)o->first_global_layers, shape->layers);
	if (status == ROSA_OK && shape && o->seen > shape->width)
		return refuse(&to, "seen", "is %llu; it is at most the model's width, %zu", (unsigned long long)o->seen,
			      shape->width);
	if (status == ROSA_OK && shape && o->seen && shape->vocabulary > MOST_VOCABULARY)
		return refuse(&to, "seen", "is %llu, and the model's vocabulary of %zu is above %zu; use 0",
			      (unsigned long long)o->seen, shape->vocabulary, MOST_VOCABULARY);
	for (size_t i = 0; shape && i < o->source.count && status == ROSA_OK; i++)
		status = check_source(o, &o->source.all[i], shape, &to);
	return status == ROSA_OK ? check_layers(o, shape ? shape->layers : SIZE_MAX, &to) : status;
}

rosa_options adapter_options_retrieval(const struct adapter_options *options)
{
	rosa_options retrieval = ROSA_OPTIONS_INIT;

	retrieval.bits = (int)options->bits;
	retrieval.policy = options->policy;
	retrieval.fold = options->fold;
	retrieval.max_match = (uint32_t)options->max_match;
	retrieval.delay = adapter_delay(options);
	return retrieval;
}

rosa_options adapter_source_retrieval(const struct adapter_options *options, size_t i, size_t vocabulary)
{
	rosa_options retrieval = adapter_options_retrieval(options);

	if (adapter_source_has_bits(&options->source.all[i]))
		return retrieval;
	retrieval.fold = 0;
	for (retrieval.bits = 1; vocabulary > (size_t)1 << retrieval.bits;)
		retrieval.bits++;
	return retrieval;
}
