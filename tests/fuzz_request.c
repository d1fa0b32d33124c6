/*
 * Any bytes as a request.
 *
 * The first byte chooses the kind, or to let the body choose. What is accepted must hold what request.h promises; what
 * is refused must say why, in words that can be sent as JSON.
 */
#include "base/utf8.h"
#include "serve/request.h"
#include "support_fuzz.h"

static void check_accepted(const struct request *request)
{
	const struct sampler_options *sampling = &request->sampling;

	check(sampling->temperature >= 0 && sampling->top_p >= 0 && sampling->top_p <= 1 && sampling->min_p >= 0 &&
	      sampling->min_p <= 1 && sampling->repetition > 0);
	check(request->most <= ROSA_MAX_STEPS && request->top <= REQUEST_TOP && request->stop_count <= REQUEST_STOPS);
	for (size_t i = 0; i < request->stop_count; i++)
		check(*request->stops[i]);
	check(request->kind != REQUEST_EITHER);
	if (request->kind == REQUEST_CHAT) {
		check(request->conversation.count > 0 && !request->prompts);
		for (size_t i = 0; i < request->conversation.count; i++)
			check(*request->conversation.all[i].role && request->conversation.all[i].content);
		return;
	}
	check(request->prompt_count >= 1 && request->prompt_count <= REQUEST_PROMPTS);
	for (size_t i = 0; i < request->prompt_count; i++) {
		const struct prompt *prompt = &request->prompts[i];

		check(prompt->text ? utf8_valid(prompt->text, prompt->size) == prompt->size
				   : prompt->tokens.ids != NULL);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct request_defaults defaults = {{-1, -1, -1, -1, -1}, 99};
	static const enum request_kind kinds[] = {REQUEST_COMPLETION, REQUEST_CHAT, REQUEST_EITHER};
	struct request request;
	struct api_error error = {0};

	if (!size)
		return 0;
	if (request_parse(kinds[data[0] % 3], (const char *)data + 1, size - 1, &defaults, &request, &error)) {
		check_accepted(&request);
		request_free(&request);
		return 0;
	}
	check(error.status == 400 && *error.message && !request.prompts && !request.model);
	check(utf8_valid(error.message, strlen(error.message)) == strlen(error.message));
	return 0;
}
