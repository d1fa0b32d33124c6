/*
 * rosatune info: what a model is, and what it would take to run it.
 *
 * Only headers are read. Memory is estimated from what this program keeps: weights as they are in the file, keys and
 * values as the decoder stores them; of an adapter, the retrieval index and the value bits of each layer. Of these only
 * the index depends on the text, by the number of its runs. The estimate assumes one run per step.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "backend/kv_store.h"
#include "base/words.h"
#include "cli/info.h"
#include "cli/report.h"
#include "model/decoder.h"

#include <math.h>
#include <string.h>

/* Bytes of a stream per step and route: links, roots and tables of the index, and two symbols of M bits. Measured: 10.9
 * to 11.4 at M = 4 and 13.6 to 15.1 at M = 16, to which the numbers below are fitted. Token ids of a text take more,
 * since a few of them are most of it: 14 bytes of the first 2,000 tokens of a novel, 23 of 65,000. A chain also keeps
 * what was found at every step. */
#define INDEX_BASE       10.4
#define INDEX_PER_BIT    0.25
#define INDEX_OF_IDS     23.0
#define INDEX_PER_ROUTE  600.0
#define INDEX_CHAIN      5.0
#define DEFAULT_WINDOW   2048
#define DEFAULT_CONTEXTS "8k,64k,256k,1M"

struct job {
	const char *model_path, *adapter_path, *contexts;
	uint64_t bits, window, sinks;
	bool window_given, sinks_given, bits_given, tensors, json;
	struct checkpoint checkpoint;
	struct adapter adapter;
};

/* -------------------------------------------------------------------------------------------------- the command -- */

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    OPTION_TEXT("adapter", &job->adapter_path, "DIR",
			"describe this adapter, instead of one that could be added"),
	    OPTION_NUMBER("bits", &job->bits, "M", ROSA_MIN_BITS, ROSA_MAX_BITS,
			  "one to be added has q and k of its own, as in the paper, and symbols of M bits"),
	    OPTION_SIZE("window", &job->window, "W", 1, ROSA_MAX_STEPS,
			"attention window of the table (default: the adapter's, or 2048)"),
	    OPTION_SIZE("sinks", &job->sinks, "S", 0, ROSA_MAX_STEPS,
			"first positions that stay visible (default: the adapter's, or 4)"),
	    OPTION_TEXT("contexts", &job->contexts, "N,N,...",
			"lengths of the memory table (default " DEFAULT_CONTEXTS ")"),
	    OPTION_FLAG("tensors", &job->tensors, "list every tensor"),
	    OPTION_FLAG("json", &job->json, "print one JSON object"),
	};
	struct args args = {
	    .command = "info",
	    .usage = "PATH [options]",
	    .summary = "Describes a model, what a ROSA adapter adds to it, and the memory that reading takes.\n"
		       "PATH is a .gguf file, or a folder with config.json and safetensors.",
	    ARGS_OPTIONS(options),
	    .notes = "Sizes may end in k, M or G (powers of 1024).",
	    .operand = &job->model_path,
	    .operand_name = "PATH",
	};
	enum args_result result = args_parse(&args, count, words);

	job->bits_given = args_given(&args, "bits");
	job->window_given = args_given(&args, "window");
	job->sinks_given = args_given(&args, "sinks");
	return result;
}

static bool read_contexts(const char *text, struct info *info)
{
	while (*text) {
		size_t length = strcspn(text, ",");
		char word[32];
		uint64_t number;

		if (info->context_count == INFO_CONTEXTS || length >= sizeof(word))
			return false;
		memcpy(word, text, length);
		word[length] = '\0';
		if (!words_number(word, true, &number) || number < 1 || number > ROSA_MAX_STEPS)
			return false;
		info->contexts[info->context_count++] = number;
		text += length;
		if (*text == ',' && !*++text)
			return false;
	}
	return info->context_count > 0;
}

/* ----------------------------------------------------------------------------------------------------- numbers -- */

static void count_formats(struct info *info)
{
	const struct tensors *tensors = &info->checkpoint->tensors;

	for (size_t i = 0; i < tensors->count; i++) {
		struct info_format *format = &info->formats[tensors->all[i].format];
		format->tensors++;
		format->numbers += tensor_numbers(&tensors->all[i]);
		format->bytes += tensors->all[i].bytes;
		info->bytes += tensors->all[i].bytes;
	}
	info->parameters = checkpoint_parameters(info->checkpoint);
}

/* The most bits per symbol that this width can have. */
static size_t fitting_bits(size_t width)
{
	size_t bits = ROSA_MAX_BITS;

	while (width % bits != 0)
		bits--;
	return bits;
}

static void describe_adapter(struct info *info)
{
	const struct adapter *adapter = info->adapter;
	struct info_adapter *added = &info->added;

	added->there = true;
	added->options = adapter->options;
	added->parameters = adapter->parameters;
	for (size_t i = 0; i < adapter->layer_count; i++)
		added->layers += adapter_has(adapter, i);
	for (size_t i = 0; i < adapter->file.tensors.count; i++)
		added->bytes += adapter->file.tensors.all[i].bytes;
}

/* One with the default options in every layer, or with the paper's and so many bits, in float32. */
static bool imagine_adapter(struct info *info, const struct job *job, rosa_error *why)
{
	const struct model_config *config = &info->checkpoint->config;
	struct info_adapter *added = &info->added;

	added->options = job->bits_given ? adapter_options_paper() : adapter_options_default();
	added->options.bits = job->bits_given ? job->bits : fitting_bits(config->width);
	if (config->width % added->options.bits != 0)
		return refuse(why, "--bits %llu: the model's width %zu is no multiple of it; %zu would fit",
			      (unsigned long long)added->options.bits, config->width, fitting_bits(config->width));
	added->layers = config->layers;
	for (size_t i = 0; i < config->layers; i++)
		added->parameters += adapter_layer_parameters(&added->options, i, config->width);
	added->bytes = added->parameters * sizeof(float);
	return true;
}

/* What the adapter keeps of a text, per token. */
static void describe_past(struct info *info)
{
	const struct model_config *config = &info->checkpoint->config;
	struct info_adapter *added = &info->added;
	const struct adapter_options *o = &added->options;

	for (size_t i = 0; i < o->source.count; i++) {
		const rosa_options retrieval = adapter_source_retrieval(o, i, config->vocabulary);
		const bool own = o->source.all[i].kind == SOURCE_OWN;
		const double routes =
		    (double)adapter_source_routes(o, i, config->width) * (double)(own ? added->layers : 1);
		const bool chain = adapter_source_links(o, i, config->layers) > 1;
		const double streams = chain && retrieval.delay ? 2 : 1;
		const double stream = adapter_source_has_bits(&o->source.all[i])
					  ? INDEX_BASE + INDEX_PER_BIT * retrieval.bits
					  : INDEX_OF_IDS;

		added->index += routes * (streams * stream + (chain ? INDEX_CHAIN : 0));
		added->index_fixed += routes * streams * INDEX_PER_ROUTE;
	}
	added->values = (double)added->layers * (double)bit_words(config->width) * sizeof(uint64_t);
	if (!o->seen)
		return;
	/* the tokens; of each of the vocabulary a count, a class and a place in the list; a key, if the text has it */
	added->index += sizeof(uint32_t);
	added->index_fixed += (double)config->vocabulary * (2 * sizeof(uint32_t) + sizeof(uint8_t));
	added->keys = (double)config->vocabulary * (double)(o->seen * sizeof(float));
}

int info_activation_bits(const struct info *info)
{
	for (int format = 0; format < FORMAT_COUNT; format++)
		if (info->formats[format].tensors && format_is_fixed((enum format)format))
			return 16;
	return 32;
}

double info_total(const struct info_memory *memory)
{
	return memory->weights + memory->cache + memory->adapter + memory->index + memory->values;
}

/* Bytes of keys and values: `global` layers keep all positions, the others what the window needs. */
static double cache_bytes(const struct info *info, size_t steps, size_t global)
{
	const struct model_config *config = &info->checkpoint->config;
	const double position = 2.0 * (double)config->kv_heads * (double)config->head_size * sizeof(float),
		     all = (double)kv_room(0, 0, DECODER_CHUNK, steps),
		     some = (double)kv_room(info->window, info->sinks, DECODER_CHUNK, steps);

	return position * (all * (double)global + some * (double)(config->layers - global));
}

static void estimate(struct info *info, size_t count, struct info_memory memory[INFO_WAYS])
{
	const size_t layers = info->checkpoint->config.layers;
	const double steps = (double)count;

	for (int way = 0; way < INFO_WAYS; way++) {
		memory[way] = (struct info_memory){.weights = (double)info->bytes};
		memory[way].cache = cache_bytes(info, count, way == INFO_GLOBAL ? layers : info->global_layers);
	}
	memory[INFO_ROSA].adapter = (double)info->added.bytes + info->added.keys;
	memory[INFO_ROSA].index = round(steps * info->added.index + info->added.index_fixed);
	memory[INFO_ROSA].values = steps * info->added.values;
}

static bool gather(struct job *job, struct info *info, rosa_error *why)
{
	const struct adapter *adapter = info->adapter;
	const struct model_config *config = &info->checkpoint->config;

	count_formats(info);
	if (adapter)
		describe_adapter(info);
	else if (!imagine_adapter(info, job, why))
		return false;
	info->window = adapter && adapter->options.window ? (size_t)adapter->options.window : DEFAULT_WINDOW;
	info->sinks = (size_t)info->added.options.sinks;
	info->global_layers = adapter ? (size_t)adapter->options.first_global_layers : 0;
	if (job->window_given)
		info->window = (size_t)job->window;
	if (job->sinks_given)
		info->sinks = (size_t)job->sinks;
	info->list = job->tensors;
	info->added.options.window = info->window; /* a delay may follow it */
	describe_past(info);
	info->kv_bytes = 2.0 * 2 * (double)config->layers * (double)config->kv_heads * (double)config->head_size;
	for (size_t i = 0; i < info->context_count; i++)
		estimate(info, (size_t)info->contexts[i], info->memory[i]);
	return true;
}

static bool open_files(struct job *job, struct info *info, rosa_error *why)
{
	if (checkpoint_open(job->model_path, &job->checkpoint, why) != ROSA_OK)
		return false;
	info->checkpoint = &job->checkpoint;
	if (!job->adapter_path)
		return true;
	if (adapter_open(job->adapter_path, &job->checkpoint, &job->adapter, why) != ROSA_OK)
		return false;
	info->adapter = &job->adapter;
	return true;
}

int info_command(int count, char **words)
{
	struct job job = {.contexts = DEFAULT_CONTEXTS};
	struct info info = {0};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (job.adapter_path && job.bits_given) {
		complain("info", "--bits is for an adapter to be added; that of --adapter has its own");
		return MISUSED;
	}
	if (!read_contexts(job.contexts, &info)) {
		complain("info", "--contexts %s: give up to %d lengths with commas between them, such as 8k,64k",
			 job.contexts, INFO_CONTEXTS);
		return MISUSED;
	}
	bool done = open_files(&job, &info, &why) && gather(&job, &info, &why);
	if (done && job.json)
		done = info_print_json(&info, &why);
	else if (done)
		info_print_text(&info);
	if (!done)
		complain("info", "%s", why.message);
	adapter_close(&job.adapter);
	checkpoint_close(&job.checkpoint);
	return done ? DONE : FAILED;
}
