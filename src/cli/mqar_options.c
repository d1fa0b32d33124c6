/*
 * The options of rosatune mqar.
 *
 * An experiment is its options, so there are many, and each has a default: together the defaults are a demonstration of
 * two minutes. Those of the adapter come from its own table (adapter_options.c); the others are here. The parser fills
 * plain numbers, which set_up then puts where they belong.
 */
#include "cli/mqar_options.h"

#include "cli/option_args.h"

#include <stdlib.h>
#include <string.h>

/* As the parser leaves them. */
struct words {
	uint64_t pairs, length, vocabulary, names, name_tokens, data_seed;
	float power;
	int filler;
	bool rename;

	uint64_t layers, heads, width, mlp_width;
	float deviation;
	bool tied;
	struct adapter_options adapter;
	const char *adapter_layers;

	uint64_t examples, epochs, batch, held_out, warmup, seed;
	float rate, adapter_rate, vector_factor, decay, clip;
};

static const char *const filler_names[] = {"none", "random", "without-keys", NULL};
static const char *const mode_names[] = {"global", "window", "rosa", "all", NULL};

#define NUMBER(place, word, what, low, high, text)  OPTION_SIZE(word, &(place), what, low, high, text)
#define DECIMAL(place, word, what, low, high, text) OPTION_DECIMAL(word, &(place), what, low, high, text)
#define CHOICE(place, word, what, names, text)      OPTION_CHOICE(word, &(place), what, names, text)
#define FLAG(place, word, text)                     OPTION_FLAG(word, &(place), text)
#define TEXT(place, word, what, text)               OPTION_TEXT(word, &(place), what, text)

/* The table. */
static enum args_result read_words(struct words *w, struct mqar_options *o, int count, char **words)
{
	const struct arg own[] = {
	    NUMBER(w->pairs, "pairs", "N", 1, 1 << 24, "pairs of key and value (default 32)"),
	    NUMBER(w->length, "length", "T", 4, ROSA_MAX_STEPS, "tokens per example (default 256)"),
	    NUMBER(w->vocabulary, "vocabulary", "V", 4, 1 << 24, "tokens in the vocabulary (default 1024)"),
	    CHOICE(w->filler, "filler", "F", filler_names,
		   "between queries: without-keys (default), random, or none (token 0)"),
	    DECIMAL(w->power, "power", "P", 1e-6, 1, "exponent of the power law of gaps (default 0.01)"),
	    FLAG(w->rename, "rename", "queries use a second name of each key"),
	    NUMBER(w->name_tokens, "name-tokens", "N", 1, MQAR_NAME_TOKENS, "tokens per name (default 1)"),
	    NUMBER(w->names, "names", "N", 0, 1 << 24, "tokens that names are made of (default 0: a half or a third)"),
	    NUMBER(w->data_seed, "data-seed", "S", 0, UINT64_MAX, "seed of the examples (default 1)"),
	    CHOICE(o->mode, "mode", "M", mode_names,
		   "attention: global, window, rosa (a window and adapters) or all (default)"),
	    NUMBER(w->width, "dim", "D", 2, 65536, "width of the decoder (default 64)"),
	    NUMBER(w->layers, "layers", "L", 1, MQAR_MOST_LAYERS, "layers of the decoder (default 2)"),
	    NUMBER(w->heads, "heads", "H", 1, 1024, "attention heads (default 2)"),
	    NUMBER(w->mlp_width, "mlp", "D", 0, 1 << 20, "width of its MLPs (default 0: twice the decoder's)"),
	    FLAG(w->tied, "tied", "the embedding serves as the head"),
	    DECIMAL(w->deviation, "deviation", "X", 0, 100,
		    "standard deviation of the first weights (default 0: 1 / sqrt(width))"),
	    TEXT(w->adapter_layers, "adapter-layers", "LIST", "layers with an adapter, from 0: 0,1 (default: all)"),
	    NUMBER(w->examples, "examples", "N", 1, UINT32_MAX, "examples per epoch (default 1024)"),
	    NUMBER(w->epochs, "epochs", "E", 1, 100000, "epochs, each with examples of its own (default 4)"),
	    NUMBER(w->batch, "batch", "B", 1, 1 << 20, "examples per step (default 32)"),
	    NUMBER(w->held_out, "held-out", "N", 1, 1 << 24, "examples that accuracy is measured on (default 128)"),
	    DECIMAL(w->rate, "rate", "R", 0, 10, "learning rate (default 0.01)"),
	    DECIMAL(w->adapter_rate, "adapter-rate", "R", 0, 10, "learning rate of the adapters (default: the same)"),
	    DECIMAL(w->vector_factor, "vector-factor", "X", 0, 1000,
		    "rate of the adapters' vectors, times --adapter-rate (default 1)"),
	    NUMBER(w->warmup, "warmup", "N", 0, UINT32_MAX, "steps until the rate is reached (default 10)"),
	    DECIMAL(w->decay, "decay", "X", 0, 10, "weight decay (default 0.01)"),
	    DECIMAL(w->clip, "clip", "X", 0, 1e9, "gradients of a larger norm are scaled down (default 1; 0: none)"),
	    OPTION_TEXTS("freeze", &o->frozen, "WORD",
			 "parameters with this word in their name do not learn; may be repeated"),
	    NUMBER(w->seed, "seed", "S", 0, UINT64_MAX, "seed of the weights and the order (default 1)"),
	    TEXT(o->log, "log", "FILE", "write one line of JSON per step"),
	    TEXT(o->plot, "plot", "FILE", "draw accuracy by epoch, .png, .svg or .pdf (needs gnuplot)"),
	    NUMBER(o->threads, "threads", "N", 0, 1024, "worker threads (default 0: one per processor)"),
	    FLAG(o->json, "json", "print one JSON object instead of text"),
	};
	const size_t count_own = sizeof(own) / sizeof(own[0]);
	struct arg options[sizeof(own) / sizeof(own[0]) + OPTION_ARGS_MOST];
	struct option_args room = {.count = 0};
	rosa_error why;
	size_t added;

	memcpy(options, own, sizeof(own));
	added = option_args_add(&room, &adapter_option_table, &w->adapter, options + count_own);
	added += option_args_add(&room, &learning_option_table, &w->adapter, options + count_own + added);
	struct args args = {
	    .command = "mqar",
	    .usage = "[--pairs N] [--length T] [--window W] [--dim D] [--bits M] [--mode M] [options]",
	    .summary = "Trains a small decoder on associative recall (MQAR): pairs of key and value, then keys again,\n"
		       "whose values must be named. Reports accuracy on held-out examples after every epoch, and for\n"
		       "adapters the share of routes that read the right value at a query, how often the symbol of a\n"
		       "query equals that of its key (meets) and that of the key stream at its own step (agrees), and\n"
		       "how many different symbols are in use.",
	    .options = options,
	    .count = count_own + added,
	    .notes =
		"Everything is a function of the options: two runs give the same numbers, with any number of threads.",
	};
	enum args_result parsed = args_parse(&args, count, words);

	if (parsed == ARGS_OK && option_args_apply(&room, &why) != ROSA_OK) {
		complain("mqar", "%s", why.message);
		return ARGS_WRONG;
	}
	if (parsed == ARGS_OK && !args_given(&args, "adapter-rate"))
		w->adapter_rate = w->rate;
	return parsed;
}

/* "0,1,3" as bits. */
static bool read_layers(const char *text, uint32_t *bits, rosa_error *why)
{
	const char *at = text;

	*bits = 0;
	while (*at) {
		char *end;
		const unsigned long layer = strtoul(at, &end, 10);

		if (end == at || *at < '0' || *at > '9' || layer >= MQAR_MOST_LAYERS || (*end && *end != ',') ||
		    (*end && !end[1]))
			return refuse(why, "--adapter-layers %s: give numbers of layers, from 0, with commas between",
				      text);
		*bits |= (uint32_t)1 << layer;
		at = *end ? end + 1 : end;
	}
	return *bits ? true : refuse(why, "--adapter-layers is empty; give numbers of layers, or leave it out");
}

static bool set_up(const struct words *w, struct mqar_options *o, rosa_error *why)
{
	o->setup = (struct mqar_setup){
	    .task = {(size_t)w->vocabulary, (size_t)w->pairs, (size_t)w->length, (size_t)w->name_tokens,
		     (size_t)w->names, (double)w->power, (enum mqar_filler)w->filler, w->rename, w->data_seed},
	    .layers = (size_t)w->layers,
	    .heads = (size_t)w->heads,
	    .width = (size_t)w->width,
	    .mlp_width = (size_t)w->mlp_width,
	    .deviation = w->deviation,
	    .tied = w->tied,
	    .network = {.rosa = true, .adapter = w->adapter},
	    .frozen = o->frozen.all,
	    .frozen_count = o->frozen.count,
	    .examples = (size_t)w->examples,
	    .epochs = (size_t)w->epochs,
	    .batch = (size_t)w->batch,
	    .held_out = (size_t)w->held_out,
	    .rate = (double)w->rate,
	    .adapter_rate = (double)w->adapter_rate,
	    .vector_factor = (double)w->vector_factor,
	    .decay = (double)w->decay,
	    .clip = (double)w->clip,
	    .warmup = w->warmup,
	    .seed = w->seed,
	};
	return !w->adapter_layers || read_layers(w->adapter_layers, &o->setup.adapters, why);
}

enum args_result mqar_parse(struct mqar_options *options, int count, char **words)
{
	struct words w = {.pairs = 32,
			  .length = 256,
			  .vocabulary = 1024,
			  .name_tokens = 1,
			  .data_seed = 1,
			  .power = 0.01f,
			  .filler = MQAR_WITHOUT_KEYS,
			  .layers = 2,
			  .heads = 2,
			  .width = 64,
			  .adapter = adapter_options_paper(),
			  .examples = 1024,
			  .epochs = 4,
			  .batch = 32,
			  .held_out = 128,
			  .warmup = 10,
			  .seed = 1,
			  .rate = 0.01f,
			  .vector_factor = 1,
			  .decay = 0.01f,
			  .clip = 1};
	rosa_error why = {0};
	enum args_result parsed;

	w.adapter.window = 16;
	w.adapter.qk = QK_SHARED; /* a decoder that starts from nothing: docs/experiments.md has what these gain */
	w.adapter.e_start = 0.5f;
	*options = (struct mqar_options){.mode = MQAR_MODES};
	parsed = read_words(&w, options, count, words);
	if (parsed == ARGS_OK && !set_up(&w, options, &why)) {
		complain("mqar", "%s", why.message);
		return ARGS_WRONG;
	}
	return parsed;
}
