/* The parts of the server that need no model: requests, the choice of a session, keys, scores, events. */
#include "serve/api_key.h"
#include "serve/host_name.h"
#include "serve/exchange.h"
#include "support_test.h"

#include <math.h>
#include <unistd.h>

static const struct request_defaults defaults = {{-1, -1, -1, -1, -1}, 77};

static void close_request(void *request)
{
	request_free(request);
}

static const struct request *parse_with(const struct request_defaults *given, enum request_kind kind, const char *body)
{
	struct request *request = test_zeros(1, sizeof(*request));
	struct api_error error = {0};

	if (!request_parse(kind, body, strlen(body), given, request, &error))
		fail_msg("%s: %s", body, error.message);
	test_later(close_request, request);
	return request;
}

static const struct request *parse_as(enum request_kind kind, const char *body)
{
	return parse_with(&defaults, kind, body);
}

TEST(a_completion_has_defaults)
{
	const struct request *request =
	    parse_as(REQUEST_COMPLETION, "{\"prompt\": \"a\\u0000b\", \"temperature\": null}");

	assert_int_equal(request->prompt_count, 1);
	assert_int_equal(request->prompts[0].size, 3);
	assert_memory_equal(request->prompts[0].text, "a\0b", 3);
	assert_int_equal(request->most, 16);
	assert_true(request->sampling.temperature == 1 && request->sampling.top_p == 1 &&
		    request->sampling.repetition == 1);
	assert_false(request->seeded || request->echo || request->scored || request->stream);
}

TEST(advice_counts_unless_the_likeliest_is_asked_for)
{
	const struct request_defaults advised = {{0.5, 40, 0.9, -1, 1.1}, 77};
	const struct request *request = parse_with(&advised, REQUEST_COMPLETION, "{\"prompt\": \"a\"}");

	assert_true(request->sampling.temperature == 0.5f && request->sampling.repetition == 1.1f);
	assert_int_equal(request->sampling.top_k, 40);
	request = parse_with(&advised, REQUEST_COMPLETION, "{\"prompt\": \"a\", \"temperature\": 0}");
	assert_true(request->sampling.temperature == 0 && request->sampling.repetition == 1);
}

TEST(prompts_have_four_forms)
{
	static const struct {
		const char *body;
		size_t count, ids;
	} forms[] = {{"{\"prompt\": \"a\"}", 1, 0},
		     {"{\"prompt\": [1, 2, 3.0]}", 1, 3},
		     {"{\"prompt\": [\"a\", \"b\"]}", 2, 0},
		     {"{\"prompt\": [[1, 2], [3]]}", 2, 2}};

	for (size_t i = 0; i < COUNT(forms); i++) {
		const struct request *request = parse_as(REQUEST_COMPLETION, forms[i].body);

		assert_int_equal(request->prompt_count, forms[i].count);
		assert_int_equal(request->prompts[0].tokens.count, forms[i].ids);
		assert_int_equal(request->prompts[0].text == NULL, forms[i].ids > 0);
	}
}

TEST(a_chat_has_messages)
{
	const struct request *request =
	    parse_as(REQUEST_CHAT,
		     "{\"messages\": [{\"role\": \"developer\", \"content\": \"x\"}, {\"role\": \"user\", "
		     "\"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}, "
		     "{\"role\": \"assistant\", \"content\": null}], \"stop\": \"q\", \"stream\": true, "
		     "\"stream_options\": {\"include_usage\": true}, \"seed\": -1, \"logprobs\": true, "
		     "\"chat_template_kwargs\": {\"enable_thinking\": false}, \"tools\": []}");

	assert_int_equal(request->conversation.count, 3);
	assert_string_equal(request->conversation.all[0].role, "system");
	assert_string_equal(request->conversation.all[1].content, "ab");
	assert_string_equal(request->conversation.all[2].content, "");
	assert_int_equal(request->most, 77);
	assert_int_equal(request->stop_count, 1);
	assert_true(request->stream && request->stream_usage && request->seeded && request->scored && !request->think);
}

TEST(what_only_this_server_has_is_asked_for)
{
	const struct request *request =
	    parse_as(REQUEST_EITHER, "{\"prompt\": \"a\", \"rosatune\": {\"places\": true, \"memory\": null}}");

	assert_int_equal(request->kind, REQUEST_COMPLETION);
	assert_true(request->places && !request->silent && !request->progress);
	request = parse_as(REQUEST_EITHER, "{\"messages\": [{\"role\": \"user\"}], \"rosatune\": {\"memory\": false, "
					   "\"progress\": true}}");
	assert_int_equal(request->kind, REQUEST_CHAT);
	assert_true(!request->places && request->silent && request->progress);
}

TEST(what_is_wrong_is_named)
{
	static const struct {
		const char *body, *param, *words;
	} wrong[] = {{"{\"prompt\": 1}", "prompt", "must be a string"},
		     {"{\"prompt\": \"a\", \"top_p\": 7}", "top_p", "from 0 to 1"},
		     {"{\"prompt\": \"a\", \"stop\": [\"b\", 5]}", "stop", "must be a string"},
		     {"{\"prompt\": [\"a\", {}]}", "prompt", "must be a string"},
		     {"{\"prompt\": [[1], [\"x\"]]}", "prompt", "whole number"},
		     {"{\"prompt\": \"a\", \"prompt\": \"b\"}", NULL, "duplicate"},
		     {"{\"prompt\": \"a\", \"rosatune\": []}", "rosatune", "must be an object"},
		     {"{\"prompt\": \"a\", \"rosatune\": {\"x\": 1}}", "rosatune", "rosatune.x is not known"},
		     {"[7]", NULL, "JSON"},
		     {"", NULL, "the request"}};

	for (size_t i = 0; i < COUNT(wrong); i++) {
		struct request request;
		struct api_error error;

		assert_false(request_parse(REQUEST_COMPLETION, wrong[i].body, strlen(wrong[i].body), &defaults,
					   &request, &error));
		assert_int_equal(error.status, 400);
		if (!strstr(error.message, wrong[i].words))
			fail_msg("%s: \"%s\"", wrong[i].body, error.message);
		assert_true(wrong[i].param ? error.param && !strcmp(error.param, wrong[i].param) : !error.param);
	}
}

/* ------------------------------------------------------------------------------------------------------ sessions -- */

TEST(the_longest_beginning_that_can_be_reached_is_chosen)
{
	uint32_t one[] = {1, 2, 3, 4, 5, 6}, two[] = {1, 2, 3, 9, 9, 9, 9, 9}, three[] = {1, 2};
	struct kept kept[] = {{.tokens = {one, 6, 6}, .floor = 5},
			      {.tokens = {two, 8, 8}, .floor = 0},
			      {.tokens = {three, 2, 2}, .floor = 2}};
	const struct sessions sessions = {.all = kept, .count = 3};
	static const struct {
		uint32_t ids[8];
		size_t count, index, steps;
	} cases[] = {
	    {{1, 2, 3, 4, 5, 6, 7}, 7, 0, 6}, /* goes on from all of it */
	    {{1, 2, 3, 4, 5, 7}, 6, 0, 5},    /* goes back as far as it can */
	    {{1, 2, 3, 4, 7}, 5, 1, 3},       /* one that has more in common cannot go back so far */
	    {{1, 2, 3, 9}, 4, 1, 4},          {{1, 2, 7}, 3, 1, 2}, {{7}, 1, 0, 0}, {{0}, 0, 0, 0},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct session_choice choice = sessions_choose(&sessions, false, cases[i].ids, cases[i].count);

		assert_int_equal(choice.steps, cases[i].steps);
		if (choice.steps)
			assert_int_equal(choice.index, cases[i].index);
	}
}

/* A sequence that is there and is not looked at. */
static sequence *some_sequence(void)
{
	static char place;

	return (sequence *)(void *)&place;
}

TEST(a_file_is_loaded_if_that_saves_a_share_of_it)
{
	uint32_t ids[200], other[200];
	struct kept kept[] = {{.tokens = {ids, 200, 200}, .saved = 200}, {.tokens = {other, 200, 200}}};
	struct sessions sessions = {.all = kept, .count = 2, .clock = 7};

	for (uint32_t i = 0; i < 200; i++) {
		ids[i] = i;
		other[i] = i < 100 ? i : 1000 + i;
	}
	kept[1].sequence = some_sequence();
	/* Of those that save as much, the one in memory. */
	assert_int_equal(sessions_choose(&sessions, false, ids, 100).index, 1);
	assert_int_equal(sessions_choose(&sessions, false, ids, 100).steps, 100);
	/* The file saves 5 tokens more, then 6. */
	assert_int_equal(sessions_choose(&sessions, false, ids, 105).steps, 100);
	assert_int_equal(sessions_choose(&sessions, false, ids, 106).steps, 106);
	assert_int_equal(sessions_choose(&sessions, false, ids, 106).index, 0);
	/* One that has just failed to load is left out, until something else has happened. */
	kept[0].failed = 7;
	assert_int_equal(sessions_choose(&sessions, false, ids, 200).steps, 100);
	sessions.clock++;
	assert_int_equal(sessions_choose(&sessions, false, ids, 200).steps, 200);
}

TEST(what_was_read_silently_is_apart)
{
	uint32_t ids[] = {1, 2, 3};
	struct kept kept[] = {{.tokens = {ids, 3, 3}}, {.tokens = {ids, 2, 2}, .silent = true}};
	const struct sessions sessions = {.all = kept, .count = 2};

	assert_int_equal(sessions_choose(&sessions, false, ids, 3).steps, 3);
	assert_int_equal(sessions_choose(&sessions, true, ids, 3).steps, 2);
	assert_int_equal(sessions_choose(&sessions, true, ids, 3).index, 1);
}

/* ------------------------------------------------------------------------------------------------------- scores -- */

TEST(scores_are_logarithms_of_probabilities)
{
	const float logits[] = {0, logf(3), 1000 - 1000, logf(2), -1e30f};
	const double sum = 1 + 3 + 1 + 2;
	struct scores scores = {0};

	must(scores_add(&scores, 4, 0, NULL, 5, 3, &err));
	for (size_t i = 0; i < 100; i++)
		must(scores_add(&scores, 3, 7, logits, 5, 3, &err));
	assert_int_equal(scores.count, 101);
	assert_false(scores.all[0].known);
	assert_true(fabs(scores.all[100].logprob - log(2 / sum)) < 1e-7);
	const struct likely_token *top = scores.top + 100 * 3;

	assert_int_equal(top[0].id, 1);
	assert_int_equal(top[1].id, 3);
	assert_int_equal(top[2].id, 0); /* of equals the lower id */
	assert_true(fabs(top[0].logprob - log(3 / sum)) < 1e-7);
	scores_free(&scores);
}

/* ------------------------------------------------------------------------------------------------------- places -- */

static void must_read(struct json_text *text, const char *wanted)
{
	assert_false(text->failed);
	assert_string_equal(text->data ? text->data : "", wanted);
	json_text_free(text);
}

TEST(places_are_told_by_token)
{
	const uint32_t ids[] = {7, 8, 9, 8};
	struct step_places step = {.found = {.count = 1}, .reads = 1, .shares = {0.5}, .read = {{2, 3, 0.25f}}};
	const struct step_places nothing = {.reads = 0};
	struct answer_places places = {0};
	struct json_text text = {0};

	step.found.token[0] = 8;
	step.found.place[0] = 1;
	step.found.length[0] = 4;
	for (size_t i = 0; i < 100; i++)
		must(answer_places_add(&places, &nothing, ids, 3, i, &err));
	must(answer_places_add(&places, &step, ids, 4, 5, &err));
	answer_places_put(&places, 99, &text);
	must_read(&text, "[{\"id\": 9, \"position\": 2, \"offset\": 99, \"places\": []}, "
			 "{\"id\": 8, \"position\": 3, \"offset\": 5, \"places\": [{\"position\": 1, \"length\": 4, "
			 "\"by\": \"pointer\", \"weight\": 0.5, \"hit\": true}, {\"position\": 2, \"length\": 3, "
			 "\"by\": \"adapter\", \"weight\": 0.25, \"hit\": false}]}]");
	answer_places_put(&places, 101, &text);
	must_read(&text, "[]");
	answer_places_free(&places);
}

/* ------------------------------------------------------------------------------------------------------- events -- */

/* An exchange of one task without a model behind it. */
static struct exchange scene(struct serve_task *task, struct serve_task **tasks, enum request_kind kind,
			     struct served *served)
{
	struct exchange x = {.model = served, .tasks = tasks, .count = 1, .id = "id", .created = 5};

	*served = (struct served){.name = "m"};
	memset(task, 0, sizeof(*task));
	task->prompt = 3;
	tasks[0] = task;
	x.request.kind = kind;
	x.sent = test_zeros(1, sizeof(*x.sent));
	return x;
}

static void put(struct serve_task *task, const char *text)
{
	must(text_append(&task->answer.text, "text", text, strlen(text), false, &err));
	task->answer.made++;
}

TEST(events_have_what_is_new)
{
	struct served served;
	struct serve_task task, *tasks[1];
	struct exchange x = scene(&task, tasks, REQUEST_COMPLETION, &served);
	struct json_text text = {0};

#define HEAD "data: {\"id\": \"id\", \"object\": \"text_completion\", \"created\": 5, \"model\": \"m\", \"choices\": ["
	exchange_stream(&x, &text);
	must_read(&text, "");
	put(&task, "one\n\n");
	exchange_stream(&x, &text);
	must_read(&text, HEAD "{\"index\": 0, \"text\": \"one\\u000a\\u000a\", \"logprobs\": null, \"finish_reason\": "
			      "null}]}\n\n");
	exchange_stream(&x, &text);
	must_read(&text, "");
	put(&task, "\"");
	task.state = SERVE_OVER;
	x.request.stream_usage = true;
	exchange_stream(&x, &text);
	must_read(&text,
		  HEAD "{\"index\": 0, \"text\": \"\\\"\", \"logprobs\": null, \"finish_reason\": null}]}\n\n" HEAD
		       "{\"index\": 0, \"text\": \"\", \"logprobs\": null, \"finish_reason\": \"length\"}]}\n\n" HEAD
		       "], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 2, \"total_tokens\": 5, "
		       "\"prompt_tokens_details\": {\"cached_tokens\": 0}}}\n\ndata: [DONE]\n\n");
	assert_true(x.closed);
	exchange_stream(&x, &text);
	must_read(&text, "");
	text_free(&task.answer.text);
#undef HEAD
}

TEST(reading_is_told_until_something_is_written)
{
	struct served served;
	struct serve_task task, *tasks[1];
	struct exchange x = scene(&task, tasks, REQUEST_COMPLETION, &served);
	struct json_text text = {0};

#define READ(n)                                                                                                        \
	"data: {\"id\": \"id\", \"object\": \"text_completion\", \"created\": 5, \"model\": \"m\", \"choices\": "      \
	"[], \"rosatune\": {\"index\": 0, \"prompt_tokens\": 3, \"cached_tokens\": 1, \"tokens_read\": " n "}}\n\n"
	x.request.progress = true;
	exchange_stream(&x, &text);
	must_read(&text, "");
	task.begun = true;
	task.cached = 1;
	exchange_stream(&x, &text);
	must_read(&text, READ("0"));
	exchange_stream(&x, &text);
	must_read(&text, "");
	task.read = 1;
	exchange_stream(&x, &text);
	must_read(&text, READ("1"));
	task.read = 2;
	task.answer.made = 1;
	exchange_stream(&x, &text);
	must_read(&text, "");
	x.sent[0].read = 0; /* if it was too quick to be seen reading */
	exchange_stream(&x, &text);
	must_read(&text, READ("2"));
#undef READ
}

TEST(a_stream_that_fails_says_so)
{
	struct served served;
	struct serve_task task, *tasks[1];
	struct exchange x = scene(&task, tasks, REQUEST_COMPLETION, &served);
	struct json_text text = {0};

	api_fail(&task.error, 500, NULL, NULL, "no %s", "memory");
	task.state = SERVE_OVER;
	exchange_stream(&x, &text);
	must_read(&text, "data: {\"error\": {\"message\": \"no memory\", \"type\": \"server_error\", \"param\": null, "
			 "\"code\": null}}\n\ndata: [DONE]\n\n");
}

/* ---------------------------------------------------------------------------------------------------------- keys -- */

TEST(keys_must_be_whole)
{
	static const struct {
		const char *given;
		bool fits;
	} cases[] = {{"Bearer abc", true},   {"bearer abc", true}, {"Bearer ab", false},
		     {"Bearer abcd", false}, {"Bearer ", false},   {"abc", false},
		     {"Bearer abd", false},  {NULL, false},        {"Basic abc", false}};

	for (size_t i = 0; i < COUNT(cases); i++)
		assert_int_equal(api_key_fits("abc", cases[i].given), cases[i].fits);
}

TEST(names_of_other_sites_are_told)
{
	static const struct {
		const char *given;
		bool plain;
	} cases[] = {{NULL, true},
		     {"127.0.0.1", true},
		     {"127.0.0.1:8080", true},
		     {"10.1.2.3:1", true},
		     {"[::1]:8080", true},
		     {"[::1]", true},
		     {"localhost", true},
		     {"LocalHost:80", true},
		     {"a.localhost:80", true},
		     {"evil.example", false},
		     {"evil.example:8080", false},
		     {"127.0.0.1.evil.example", false},
		     {"evillocalhost", false},
		     {"localhost.evil.example", false},
		     {"[evil.example]", false},
		     {"[127.0.0.1]", false},
		     {"[", false},
		     {"", false},
		     {":80", false}};
	char longest[400];

	for (size_t i = 0; i < COUNT(cases); i++)
		assert_int_equal(host_is_plain(cases[i].given), cases[i].plain);
	memset(longest, 'a', sizeof(longest));
	longest[sizeof(longest) - 1] = 0;
	assert_false(host_is_plain(longest));
	assert_true(host_is_loopback("127.0.0.1") && host_is_loopback("::1") && host_is_loopback("localhost"));
	assert_true(host_is_loopback("127.0.0.2") && host_is_loopback("127.255.1.1") && host_is_loopback("127.1"));
	assert_false(host_is_loopback("0.0.0.0") || host_is_loopback("::") || host_is_loopback("128.0.0.1"));
	assert_false(host_is_loopback("127.0.0.1.evil.example"));
}
