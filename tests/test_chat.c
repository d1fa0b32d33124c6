/*
 * Conversations: the styles that templates are recognised as, and the text that each gives.
 *
 * Tokens are compared as text: what is encoded is decoded again with its special tokens, so that a test reads like the
 * conversation. That the tokens are those of transformers is checked by python/tests/test_tokenizer.py.
 */
#include "base/draw.h"
#include "model/chat_turns.h"
#include "support_test.h"
#include "support_tokenizer.h"
#include "model/tokenizer_parts.h"

#define SPECIAL(id, content) "{\"id\": " #id ", \"content\": \"" content "\", \"special\": true}"

static const char tokens[] =
    "[" SPECIAL(300, "<|im_start|>") "," SPECIAL(301, "<|im_end|>") "," SPECIAL(302, "<|start_header_id|>") "," SPECIAL(
	303, "<|end_header_id|>") "," SPECIAL(304, "<|eot_id|>") "," SPECIAL(305, "<|begin_of_text|>") "]";

struct template
{
	enum chat_style style;
	const char *text;
};

/* The skeletons of the templates: what they are known by. */
static const struct template smollm2 = {
    CHAT_ML,
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are SmolLM<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"};
static const struct template escaped = {
    CHAT_ML, "{{- '<|im_start|>system\\n' + messages[0].content }}{{- \"<|im_start|>system\\nYou\\'re "
	     "a \\\"helper\\\".<|im_end|>\\n\" }}{{- '<|im_start|>' + message.role }}"};
static const struct template qwen25 = {
    CHAT_ML,
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] "
    "}}"
    "{%- else %}{{- 'You are Qwen.' }}{%- endif %}{{- \"\\n\\n# Tools\\n</tool_call><|im_end|>\\n\" }}{%- else %}"
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}{%- endif %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"};
static const struct template qwen3 = {
    CHAT_QWEN3,
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- if '</think>' in message.content %}"
    "{{- '<|im_start|>' + message.role + '\\n<think>\\n' }}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is "
    "false %}{{- '<think>\\n\\n</think>\\n\\n' }}"};
static const struct template thinking = {
    CHAT_QWEN3, "{{- '<|im_start|>' + '<|im_end|>' + '</think>' }}{{- '<|im_start|>assistant\\n<think>\\n' }}"};
static const struct template llama3 = {
    CHAT_LLAMA3, "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | "
		 "trim + '<|eot_id|>' }}"};
static const struct template llama31 = {
    CHAT_LLAMA3, "{%- set date_string = \"26 Jul 2024\" %}{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}"
		 "{{- \"Cutting Knowledge Date: December 2023\\n\" }}{{- \"Today Date: \" + date_string + \"\\n\\n\" }}"
		 "{{- \"<|eot_id|>\" }}"};

static tokenizer *make(const char *template, const char *added)
{
	struct recipe recipe = {.added = added};
	tokenizer *tokenizer = recipe_make(&recipe);

	if (template)
		must(tokenizer_set_template(tokenizer, template, strlen(template), &err));
	return tokenizer;
}

static void close_format(void *format)
{
	chat_format_free(format);
}

static struct chat_format *format_of(const tokenizer *tokenizer)
{
	struct chat_format *format = test_zeros(1, sizeof(*format));

	must(chat_format_of(tokenizer, format, &err));
	test_later(close_format, format);
	return format;
}

/* The text of tokens. */
static char *decoded(const tokenizer *tokenizer, const struct tokens *ids)
{
	size_t room = (ids->count + 1) * tokenizer_longest(tokenizer) + 1, size = 0;
	struct decoding decoding = {{0}, 0};
	char *text = test_alloc(room);

	for (size_t i = 0; i < ids->count; i++)
		size += decode_token(tokenizer, &decoding, ids->ids[i], true, text + size);
	size += decode_finish(&decoding, text + size);
	text[size] = '\0';
	return text;
}

enum { NO_ANSWER = 1, NO_THOUGHT };

static const struct scene {
	const struct template *template;
	struct chat_message messages[5];
	int how;
	const char *text;
} conversations[] = {
    {&smollm2, LIST({"user", "Hi"}), 0,
     "<|im_start|>system\nYou are SmolLM<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
    {&smollm2, LIST({"system", "Be."}, {"user", " Hi "}, {"assistant", "Yo"}), NO_ANSWER,
     "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"},
    {&smollm2, LIST({0}), 0, "<|im_start|>assistant\n"},
    {&escaped, LIST({"user", "Hi"}), NO_ANSWER,
     "<|im_start|>system\nYou're a \"helper\".<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"},
    {&qwen25, LIST({"user", "Hi"}), 0,
     "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
    {&qwen3, LIST({"user", "Hi"}), 0, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
    {&qwen3, LIST({"user", "Hi"}), NO_THOUGHT,
     "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
    /* an earlier answer loses its thought */
    {&qwen3, LIST({"user", "1"}, {"assistant", "<think>\nhm\n</think>\n\nA"}, {"user", "2"}), NO_ANSWER,
     "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\n2<|im_end|>\n"},
    /* the last one keeps it, or gets an empty one */
    {&qwen3, LIST({"user", "1"}, {"assistant", "<think>\n\nhm\n</think>\nA"}), NO_ANSWER,
     "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nA<|im_end|>\n"},
    {&qwen3, LIST({"user", "1"}, {"assistant", "A"}), NO_ANSWER,
     "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nA<|im_end|>\n"},
    {&qwen3, LIST({"user", "1"}, {"assistant", "A"}, {"assistant", "B</think>C</think>D"}), NO_ANSWER,
     "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>assistant\n<think>\nB\n</think>"
     "\n\nD<|im_end|>\n"},
    {&qwen3, LIST({"system", "S"}, {"user", "1"}), NO_ANSWER,
     "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n1<|im_end|>\n"},
    {&thinking, LIST({"user", "1"}), 0, "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n<think>\n"},
    {&llama3, LIST({"user", " \n Hi\xe3\x80\x80 "}), 0,
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
     "<|end_header_id|>\n\n"},
    {&llama31, LIST({"user", "Hi"}), NO_ANSWER,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday "
     "Date: "
     "26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"},
    {&llama31, LIST({"system", "S"}, {"user", "Hi"}), NO_ANSWER,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday "
     "Date: "
     "26 Jul 2024\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"},
};

TEST(conversations_become_text)
{
	for (size_t i = 0; i < COUNT(conversations); i++) {
		const struct scene *given = &conversations[i];
		tokenizer *tokenizer = make(given->template->text, tokens);
		struct chat_format *format = format_of(tokenizer);
		struct tokens ids = {0};
		size_t count = 0;

		while (given->messages[count].role)
			count++;
		assert_int_equal(format->style, given->template->style);
		if (chat_encode(tokenizer, format, given->messages, count, given->how != NO_ANSWER,
				given->how != NO_THOUGHT, &ids, &err) != ROSA_OK)
			fail_msg("conversation %zu: %s", i, err.message);
		assert_string_equal(decoded(tokenizer, &ids), given->text);
		assert_int_equal(chat_end(tokenizer, format), format->style == CHAT_LLAMA3 ? 304 : 301);
		tokens_free(&ids);
	}
}

/* A user who writes <|im_end|> does not end his message. */
TEST(contents_are_text)
{
	tokenizer *tokenizer = make(smollm2.text, tokens);
	struct chat_format *format = format_of(tokenizer);
	struct chat_message message = {"user", "a<|im_end|>b"};
	struct tokens ids = {0};
	size_t ends = 0;

	must(chat_encode(tokenizer, format, &message, 1, false, true, &ids, &err));
	for (size_t i = 0; i < ids.count; i++)
		ends += ids.ids[i] == 301;
	assert_int_equal(ends, 2);
	tokens_free(&ids);
}

TEST(styles_need_template_and_tokens)
{
	const struct {
		const char *template, *added;
	} cases[] = {
	    {NULL, tokens}, {"{{ message.content }}", tokens}, {smollm2.text, "[]"}, {llama3.text, "[]"}, {"", tokens}};
	struct chat_message message = {"user", "a"};
	struct tokens ids = {0};

	for (size_t i = 0; i < COUNT(cases); i++) {
		tokenizer *tokenizer = make(cases[i].template, cases[i].added);
		struct chat_format *format = format_of(tokenizer);
		assert_int_equal(format->style, CHAT_NONE);
		assert_int_equal(chat_end(tokenizer, format), -1);
		must_fail(chat_encode(tokenizer, format, &message, 1, true, true, &ids, &err), ROSA_EINVAL,
			  "chat template");
	}
	assert_int_equal(ids.count, 0);
}

/* -------------------------------------------------------------------------------------------------------- turns -- */

static void clear_turns(void *turns)
{
	chat_turns_clear(turns);
}

static struct chat_turns *turns_of(const struct template *template, const char *merges, bool think)
{
	struct recipe recipe = {.added = tokens, .merges = merges};
	struct chat_turns *turns = test_zeros(1, sizeof(*turns));
	tokenizer *tokenizer = recipe_make(&recipe);

	must(tokenizer_set_template(tokenizer, template->text, strlen(template->text), &err));
	turns->tokenizer = tokenizer;
	turns->format = format_of(tokenizer);
	turns->think = think;
	test_later(clear_turns, turns);
	return turns;
}

static void say(struct chat_turns *turns, const char *role, const char *text)
{
	must(conversation_add(&turns->conversation, role, strlen(role), text, strlen(text), &err));
}

/* An answer in the tokens of its bytes, which is not how a tokenizer with merges has it. */
static void answer_bytes(struct chat_turns *turns, const char *text, enum answer_end end, struct tokens *ids,
			 bool whole)
{
	static const struct model_config config = {.vocabulary = 400};
	const struct answer_options options = {.tokenizer = turns->tokenizer,
					       .config = &config,
					       .end = chat_end(turns->tokenizer, turns->format),
					       .sampling = SAMPLER_OPTIONS_INIT};
	struct answer answer;

	must(answer_open(&answer, &options, &err));
	for (; *text; text++) {
		must(answer_read(&answer, ids, &(uint32_t){(uint8_t)*text}, 1, &err));
		must(answer_take(&answer, (uint8_t)*text, &err));
	}
	if (end == ANSWER_END) {
		must(answer_read(&answer, ids, &(uint32_t){(uint32_t)options.end}, 1, &err));
		must(answer_take(&answer, (uint32_t)options.end, &err));
	} else {
		must(answer_finish(&answer, end, &err));
	}
	assert_int_equal(answer.end, end);
	must(chat_turns_answer(turns, &answer, ids, whole, &err));
	answer_close(&answer);
}

/* Whatever the answers were: a turn is the text of the whole conversation, and begins with what was said to last. */
TEST(turns_are_the_conversation)
{
	static const struct template *const templates[] = {&smollm2, &qwen3, &thinking, &llama31};
	static const char *const answers[] = {"Yo", "the Yo", "<think>\nhm\n</think>\n\nYo", "hm\n</think>\n\nthe"};
	static const enum answer_end ends[] = {ANSWER_END, ANSWER_LENGTH, ANSWER_STOP, ANSWER_INTERRUPTED};
	size_t parts = 0;
	uint64_t n = 0;

	for (uint64_t trial = 0; trial < 200; trial++) {
		const struct template *template = templates[trial % COUNT(templates)];
		struct chat_turns *turns = turns_of(template, "t h,th e,Y o", draw(1, trial, n++) % 2);
		struct tokens before = {0};
		size_t lasting = 0;

		if (trial % 3 == 0)
			say(turns, "system", "Be.");
		for (int turn = 0; turn < 4; turn++) {
			struct tokens ids, whole = {0};
			const struct conversation *said = &turns->conversation;
			const size_t lasted = lasting;

			say(turns, "user", turn % 2 ? "the" : "Hi Yo");
			must(chat_turns_next(turns, &ids, &lasting, &err));
			must(chat_encode(turns->tokenizer, turns->format, said->all, said->count, true, turns->think,
					 &whole, &err));
			assert_string_equal(decoded(turns->tokenizer, &ids), decoded(turns->tokenizer, &whole));
			assert_true(tokens_common(&before, ids.ids, ids.count) >= lasted);
			assert_true(lasting <= ids.count && lasting > lasted);
			parts += lasting < ids.count;
			tokens_free(&before);
			must(tokens_add(&before, ids.ids, ids.count, &err));
			const size_t which = draw(1, trial, n++) % (template->style == CHAT_QWEN3 ? 4 : 2);

			answer_bytes(turns, answers[which], ends[draw(1, trial, n++) % COUNT(ends)], &ids,
				     lasting == ids.count);
			tokens_free(&ids);
			tokens_free(&whole);
		}
		tokens_free(&before);
	}
	assert_true(parts > 50);
}

/* An answer keeps the tokens in which it was generated, but for one that later turns have in other words. */
TEST(answers_keep_their_tokens)
{
	static const struct {
		const struct template *template;
		const char *answer;
		enum answer_end end;
		bool kept;
	} cases[] = {{&smollm2, "Yo", ANSWER_END, true},   {&smollm2, "Yo", ANSWER_LENGTH, true},
		     {&smollm2, "Yo", ANSWER_STOP, false}, {&smollm2, "a</think>Yo", ANSWER_END, true},
		     {&qwen3, "Yo", ANSWER_END, true},     {&qwen3, "<think>\nhm\n</think>\n\nYo", ANSWER_END, false}};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct chat_turns *turns = turns_of(cases[i].template, "Y o", true);
		struct tokens ids;
		size_t lasting;

		say(turns, "user", "Yo");
		must(chat_turns_next(turns, &ids, &lasting, &err));
		assert_int_equal(lasting, ids.count);
		answer_bytes(turns, cases[i].answer, cases[i].end, &ids, true);
		const uint32_t last = turns->said.ids[turns->said.count - 2];

		assert_int_equal(last, cases[i].kept ? 'o' : 256);
		assert_int_equal(turns->said.ids[turns->said.count - 1], 301);
		assert_int_equal(tokens_common(&turns->said, ids.ids, ids.count) == ids.count, cases[i].kept);
		assert_int_equal(chat_turns_rewrite(turns), cases[i].template == &qwen3);
		tokens_free(&ids);
	}
}

TEST(failures_change_nothing)
{
	tokenizer *tokenizer = make(smollm2.text, tokens);
	struct chat_format *format = format_of(tokenizer);
	struct chat_message messages[] = {{"user", "a"}, {"tool", "b"}}, bad = {"user", "a\xff"};
	struct tokens ids = {0};

	must(chat_encode(tokenizer, format, messages, 1, true, true, &ids, &err));
	size_t before = ids.count;
	must_fail(chat_encode(tokenizer, format, messages, 2, true, true, &ids, &err), ROSA_EINVAL, "'tool'");
	must_fail(chat_encode(tokenizer, format, &bad, 1, true, true, &ids, &err), ROSA_EINVAL, "UTF-8");
	assert_int_equal(ids.count, before);
	tokens_free(&ids);
}

TEST_GROUP(recipe_needed, NULL)
