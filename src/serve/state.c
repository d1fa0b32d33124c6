/* What the server reports about itself. Names are those of llama-server and vLLM where the meaning is the same. */
#include "serve/state.h"

#include <stdlib.h>

void answer_model(struct json_text *text, const struct served *model, int64_t created)
{
	json_text_add(text, "{\"id\": ");
	json_text_string(text, model->name);
	json_text_add(text, ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"rosatune\"}",
		      (long long)created);
}

void answer_models(struct json_text *text, const struct served *model, int64_t created)
{
	json_text_add(text, "{\"object\": \"list\", \"data\": [");
	answer_model(text, model, created);
	json_text_add(text, "]}");
}

void answer_props(struct json_text *text, const struct served *model, engine *engine)
{
	const struct engine_options *options = engine_options(engine);
	const char *template = tokenizer_template(model->tokenizer);

	json_text_add(text, "{\"model\": ");
	json_text_string(text, model->name);
	json_text_add(text, ", \"model_path\": ");
	json_text_string(text, model->path);
	json_text_add(
	    text,
	    ", \"total_slots\": %zu, \"context\": %zu, \"vocabulary\": %zu, \"window\": %zu, \"sinks\": %zu, "
	    "\"global_layers\": %zu, \"adapter\": %s, \"pointer\": %s, \"sessions\": %zu, \"memory_bytes\": %llu, "
	    "\"chat_template\": ",
	    options->parallel, model->config->context, model->config->vocabulary, model->options.window,
	    model->options.sinks, model->options.first_global_layers,
	    decoder_adapted(model->decoder) ? "true" : "false", model->pointer ? "true" : "false", options->sessions,
	    (unsigned long long)options->memory);
	json_text_string(text, template);
	json_text_add(text, "}");
}

void answer_slots(struct json_text *text, engine *engine)
{
	const size_t count = engine_options(engine)->parallel;
	struct engine_slot *slots = calloc(count, sizeof(*slots));
	struct engine_report report;

	text->failed = text->failed || !slots;
	if (!slots)
		return;
	engine_report(engine, &report, slots);
	json_text_add(text, "[");
	for (size_t i = 0; i < count; i++)
		json_text_add(text,
			      "%s{\"id\": %zu, \"is_processing\": %s, \"prompt_tokens\": %zu, \"cached_tokens\": %zu, "
			      "\"tokens_read\": %zu, \"tokens_predicted\": %zu, \"tokens_kept\": %zu}",
			      i ? ", " : "", i, slots[i].busy ? "true" : "false", slots[i].prompt, slots[i].cached,
			      slots[i].read, slots[i].made, slots[i].kept);
	json_text_add(text, "]");
	free(slots);
}

void answer_slot(struct json_text *text, const struct slot_request *request, const struct slot_result *result)
{
	const bool save = request->action == SLOT_SAVE;

	json_text_add(text, "{\"id_slot\": %zu, ", request->slot);
	if (request->action == SLOT_ERASE) {
		json_text_add(text, "\"n_erased\": %zu}", result->tokens);
		return;
	}
	json_text_add(text, "\"filename\": ");
	json_text_string(text, request->name);
	json_text_add(text, ", \"%s\": %zu, \"%s\": %llu, \"timings\": {\"%s\": %.3f}}",
		      save ? "n_saved" : "n_restored", result->tokens, save ? "n_written" : "n_read",
		      (unsigned long long)result->bytes, save ? "save_ms" : "restore_ms", result->seconds * 1e3);
}

void answer_metrics(struct json_text *text, engine *engine)
{
	struct engine_report r;

	engine_report(engine, &r, NULL);
	const struct {
		const char *name, *kind, *help;
		double value;
	} rows[] = {
	    {"prompt_tokens_total", "counter", "Tokens of prompts, those not read again included.",
	     (double)r.prompt_tokens},
	    {"cached_tokens_total", "counter", "Tokens of prompts that did not have to be read.",
	     (double)r.cached_tokens},
	    {"tokens_predicted_total", "counter", "Tokens generated.", (double)r.generated},
	    {"prompt_seconds_total", "counter", "Seconds of turns that read prompts.", r.reading_seconds},
	    {"tokens_predicted_seconds_total", "counter", "Seconds of turns that only generated.", r.writing_seconds},
	    {"n_decode_total", "counter", "Turns: forward passes for all prompts together.", (double)r.turns},
	    {"n_busy_slots_per_decode", "gauge", "Prompts in a turn, the mean.",
	     r.turns ? (double)r.slots_in_turns / (double)r.turns : 0},
	    {"requests_success_total", "counter", "Prompts answered.", (double)r.finished},
	    {"requests_failed_total", "counter", "Prompts that ended with an error.", (double)r.failed},
	    {"requests_cancelled_total", "counter", "Prompts whose client went away.", (double)r.cancelled},
	    {"requests_refused_total", "counter", "Requests refused because the queue was full.", (double)r.refused},
	    {"requests_processing", "gauge", "Prompts being read or answered.", (double)r.running},
	    {"requests_deferred", "gauge", "Prompts waiting for a slot.", (double)r.waiting},
	    {"sessions", "gauge", "Sessions kept in memory.", (double)r.sessions},
	    {"session_bytes", "gauge", "Memory of the sessions kept.", (double)r.session_bytes},
	    {"session_files", "gauge", "Sessions kept on disk.", (double)r.files},
	    {"session_file_bytes", "gauge", "Bytes of the sessions kept on disk.", (double)r.file_bytes},
	    {"running_bytes", "gauge", "Memory of the texts being read or answered.", (double)r.running_bytes},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		json_text_add(text, "# HELP rosatune:%s %s\n# TYPE rosatune:%s %s\nrosatune:%s %.17g\n", rows[i].name,
			      rows[i].help, rows[i].name, rows[i].kind, rows[i].name, rows[i].value);
}
