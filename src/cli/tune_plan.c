/* What `rosatune tune --dry-run` prints: a line for the model, a few for each stage, one for all of it. */
#include "cli/tune_plan.h"

#include "cli/quantities.h"
#include "cli/text_input.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* How often all of the data would be read. */
static double epochs(const struct tune_stage *stage, const struct stage_plan *plan)
{
	return (double)(plan->steps * stage->batch) / (double)plan->data_samples;
}

static void print_stage(const struct tune_config *config, const struct training_plan *whole, size_t i)
{
	const struct tune_stage *stage = &config->stages[i];
	const struct stage_plan *plan = &whole->stages[i];

	if (plan->positions) {
		printf("\nstage %zu of %zu, %s: fitted to %s positions at most\n", i + 1, config->stage_count,
		       stage->name, quantity_grouped(plan->positions).text);
		printf("  %-12s%s tokens, %s samples of %" PRIu64 "\n", "data",
		       quantity_grouped(plan->data_tokens).text, quantity_grouped(plan->data_samples).text,
		       stage->length);
		printf("  %-12s%s\n", "memory", quantity_bytes((double)plan->memory).text);
		return;
	}
	if (!plan->steps) {
		printf("\nstage %zu of %zu, %s (%s): done\n", i + 1, config->stage_count, stage->name,
		       tune_kind_words[stage->kind]);
		return;
	}
	printf("\nstage %zu of %zu, %s (%s): %s steps of %" PRIu64 " x %" PRIu64 " tokens, %s in all\n", i + 1,
	       config->stage_count, stage->name, tune_kind_words[stage->kind], quantity_grouped(plan->steps).text,
	       stage->batch, stage->length, quantity_grouped(plan->tokens).text);
	printf("  %-12s%s of %s parameters\n", "trained", quantity_short((double)plan->trained).text,
	       quantity_short((double)whole->parameters).text);
	printf("  %-12s%s tokens, %s samples, read %.3g times\n", "data", quantity_grouped(plan->data_tokens).text,
	       quantity_grouped(plan->data_samples).text, epochs(stage, plan));
	if (plan->cut)
		printf("  %-12s%s conversations are longer than a sequence; %s of them lose all answers\n", "cut",
		       quantity_grouped(plan->cut).text, quantity_grouped(plan->no_answer).text);
	if (plan->valid_samples)
		printf("  %-12s%s samples of %s tokens\n", "valid", quantity_grouped(plan->valid_samples).text,
		       quantity_grouped(plan->valid_tokens).text);
	printf("  %-12s%s\n", "memory", quantity_bytes((double)plan->memory).text);
	if (isfinite(plan->seconds))
		printf("  %-12s%s at %.0f tokens/s, estimated from one sequence of %zu tokens\n", "time",
		       quantity_time(plan->seconds).text, plan->tokens_per_second, plan->measured);
	else
		printf("  %-12snot measured: this machine has less memory than it takes\n", "time");
	printf("  %-12s%s each\n", "checkpoints", quantity_bytes((double)plan->checkpoint).text);
}

/* A new adapter is described by what is matched; one from a folder has `rosatune adapter info` for that. */
static void print_adapter(const struct tune_config *config, const struct training_plan *plan)
{
	const struct adapter_options *o = &config->options;
	char source[SOURCE_TEXT];

	printf("adapter     %s: %s parameters\n", config->adapter ? config->adapter : "a new one",
	       quantity_short((double)plan->adapter).text);
	if (config->adapter)
		return;
	sources_text(&o->source, source);
	printf("            source %s, delay %s, chain %" PRIu64 ", window %s, %" PRIu64 " sinks\n", source,
	       quantity_grouped(adapter_delay(o)).text, o->chain, quantity_grouped(o->window).text, o->sinks);
}

void tune_plan_print(const struct tune_config *config, const struct training_plan *plan, const struct ranks *ranks)
{
	printf("model       %s: %s parameters\n", config->model,
	       quantity_short((double)(plan->parameters - plan->adapter)).text);
	if (plan->adapter)
		print_adapter(config, plan);
	printf("folder      %s", config->out);
	if (plan->resumed != UINT64_MAX)
		printf(", to continue after step %s", quantity_grouped(plan->resumed).text);
	printf("\n");
	for (size_t i = 0; i < config->stage_count; i++)
		print_stage(config, plan, i);
	printf("\nin all %s steps, %s tokens, up to %s of memory%s", quantity_grouped(plan->steps).text,
	       quantity_grouped(plan->tokens).text, quantity_bytes((double)plan->memory).text,
	       ranks->count > 1 ? " per process" : "");
	if (isfinite(plan->seconds) && plan->steps)
		printf(", about %s", quantity_time(plan->seconds).text);
	printf("; nothing was trained (--dry-run)\n");
}

static void print_json_stage(const struct tune_stage *stage, const struct stage_plan *plan, struct json_text *text)
{
	json_text_open(text, NULL, '{');
	json_text_put_string(text, "name", stage->name);
	json_text_put_string(text, "kind", tune_kind_words[stage->kind]);
	json_text_put_size(text, "positions", plan->positions);
	json_text_put_size(text, "steps", plan->steps);
	json_text_put_size(text, "tokens", plan->tokens);
	json_text_put_size(text, "trained", plan->trained);
	json_text_put_size(text, "data_tokens", plan->data_tokens);
	json_text_put_size(text, "data_samples", plan->data_samples);
	json_text_put_size(text, "cut", plan->cut);
	json_text_put_size(text, "silent", plan->no_answer);
	json_text_put_size(text, "valid_tokens", plan->valid_tokens);
	json_text_put_size(text, "valid_samples", plan->valid_samples);
	json_text_put_size(text, "memory", plan->memory);
	json_text_put_size(text, "checkpoint", plan->checkpoint);
	json_text_put_number(text, "seconds", plan->seconds);
	json_text_put_number(text, "tokens_per_second", plan->tokens_per_second);
	json_text_close(text, '}');
}

bool tune_plan_print_json(const struct tune_config *config, const struct training_plan *plan, rosa_error *why)
{
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_size(&text, "parameters", plan->parameters);
	json_text_put_size(&text, "adapter", plan->adapter);
	json_text_put_size(&text, "steps", plan->steps);
	json_text_put_size(&text, "tokens", plan->tokens);
	json_text_put_size(&text, "memory", plan->memory);
	json_text_put_number(&text, "seconds", plan->seconds);
	if (plan->resumed == UINT64_MAX)
		json_text_put_string(&text, "resumed", NULL);
	else
		json_text_put_size(&text, "resumed", plan->resumed);
	json_text_open(&text, "stages", '[');
	for (size_t i = 0; i < config->stage_count; i++)
		print_json_stage(&config->stages[i], &plan->stages[i], &text);
	json_text_add(&text, "]}\n");
	return json_print(&text, why);
}
