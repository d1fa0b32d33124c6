/* Answers: what tokens become, and why an answer ended, against the definition on the whole of the tokens. */
#include "base/draw.h"
#include "model/answer.h"
#include "support_test.h"
#include "support_tokenizer.h"

enum { MOST = 40 };

static const struct recipe recipe = {.added = "[{\"id\": 256, \"content\": \"<end>\", \"special\": true}, "
					      "{\"id\": 257, \"content\": \"<other>\", \"special\": true}]"};
static const struct model_config config = {.vocabulary = 258, .eos = {256}, .eos_count = 1};

static void close_answer(void *answer)
{
	answer_close(answer);
}

static struct answer *make(const tokenizer *tokenizer, const char *const *stops, size_t count)
{
	const struct answer_options options = {.tokenizer = tokenizer,
					       .config = &config,
					       .end = 'Z',
					       .stops = stops,
					       .stop_count = count,
					       .sampling = SAMPLER_OPTIONS_INIT};
	struct answer *answer = test_zeros(1, sizeof(*answer));

	must(answer_open(answer, &options, &err));
	test_later(close_answer, answer);
	return answer;
}

/* One step with logits that leave one choice. */
static void step(struct answer *answer, uint32_t token, struct tokens *tokens)
{
	float logits[258] = {0};

	logits[token] = 1;
	must(answer_step(answer, logits, tokens, &err));
	assert_int_equal(tokens->ids[tokens->count - 1], token);
}

/* The text of an answer by the definition: all bytes as valid text, up to the first stop string that is complete. */
static enum answer_end whole(const uint32_t *ids, size_t count, const char *stop, struct text *text)
{
	enum answer_end end = ANSWER_LENGTH;
	char bytes[MOST];
	size_t size = 0;

	for (size_t i = 0; i < count && end == ANSWER_LENGTH; i++) {
		if (ids[i] == 256 || ids[i] == 'Z')
			end = ANSWER_END;
		else if (ids[i] < 256)
			bytes[size++] = (char)ids[i];
	}
	must(text_append(text, "text", bytes, size, true, &err));
	char *found = strstr(text->data, stop);

	if (!found)
		return end;
	*found = '\0';
	text->size = (size_t)(found - text->data);
	return ANSWER_STOP;
}

TEST(steps_give_the_text_and_its_end)
{
	static const char alphabet[] = "aab\xc3\xa9\xf0\x9f";
	const char *const stops[] = {"aab", "a\xef\xbf\xbd", "ba\xc3\xa9"};
	const tokenizer *tokenizer = recipe_make(&recipe);
	size_t ends[5] = {0};
	uint64_t n = 0;

	for (uint64_t trial = 0; trial < 2000; trial++) {
		const char *stop = stops[trial % COUNT(stops)];
		struct answer *answer = make(tokenizer, &stop, 1);
		struct tokens tokens = {0};
		struct text wanted = {0};
		uint32_t ids[MOST];

		for (size_t i = 0; i < MOST; i++) {
			const uint64_t drawn = draw(3, trial, n++) % 200;

			ids[i] = drawn < 3       ? (uint32_t)(drawn == 2 ? 'Z' : 256 + drawn)
				 : trial % 7 > 5 ? (uint32_t)'c'
						 : (uint8_t)alphabet[drawn % (sizeof(alphabet) - 1)];
		}
		for (int again = 0; again < 2; again++) { /* the second time after an answer that was left open */
			size_t shown = 0;

			answer_begin(answer);
			for (size_t i = 0; i < MOST && answer->end == ANSWER_OPEN; i++) {
				step(answer, ids[i], &tokens);
				assert_true(answer->text.size >= shown);
				shown = answer->text.size;
				if (again == 0 && i == trial % MOST)
					break;
			}
		}
		if (answer->end == ANSWER_OPEN)
			must(answer_finish(answer, ANSWER_LENGTH, &err));
		const enum answer_end end = whole(ids, MOST, stop, &wanted);

		assert_int_equal(answer->end, end);
		assert_string_equal(answer->text.data, wanted.data);
		assert_int_equal(answer->text.size, wanted.size);
		assert_true(answer->made <= tokens.count && answer->made > 0);
		assert_true(end != ANSWER_END || answer_is_end(answer, tokens.ids[tokens.count - 1]));
		ends[end]++;
		text_free(&wanted);
		tokens_free(&tokens);
	}
	assert_true(ends[ANSWER_LENGTH] > 200 && ends[ANSWER_END] > 100 && ends[ANSWER_STOP] > 500);
}

/* A prompt that is echoed is text of the answer, with special tokens; characters are counted as they become whole. */
TEST(an_echo_comes_first)
{
	const char *const stops[] = {"ab"};
	struct answer *answer = make(recipe_make(&recipe), stops, 1);
	struct tokens tokens = {0};

	answer_begin(answer);
	must(answer_echo(answer, 257, &err));
	must(answer_echo(answer, 'a', &err));
	must(answer_echo(answer, 'b', &err)); /* no stop string: the prompt is not made */
	must(answer_echo(answer, 0xc3, &err));
	assert_int_equal(answer->characters, 9);
	assert_int_equal(answer->made, 0);
	step(answer, 0xa9, &tokens);
	assert_int_equal(answer->characters, 10);
	step(answer, 257, &tokens); /* a special token has no text where it is made */
	step(answer, 'a', &tokens);
	assert_int_equal(answer->characters, 11);
	assert_string_equal(answer->text.data, "<other>ab\xc3\xa9");
	must(answer_finish(answer, ANSWER_INTERRUPTED, &err));
	assert_string_equal(answer->text.data, "<other>ab\xc3\xa9"
					       "a");
	assert_string_equal(answer_end_names[answer->end], "interrupted");
	assert_int_equal(answer->made, 3);
	answer_strip(answer);
	assert_int_equal(answer->text.size, 12);
	tokens_free(&tokens);
}

TEST(what_cannot_be_is_refused)
{
	const char *const stops[] = {""};
	struct answer_options options = {.tokenizer = recipe_make(&recipe),
					 .config = &config,
					 .end = -1,
					 .stops = stops,
					 .stop_count = 1,
					 .sampling = SAMPLER_OPTIONS_INIT};
	struct answer answer;

	must_fail(answer_open(&answer, &options, &err), ROSA_EINVAL, "empty");
	answer_close(&answer);
	options.stop_count = 0;
	options.sampling.temperature = -1;
	must_fail(answer_open(&answer, &options, &err), ROSA_EINVAL, "temperature");
	answer_close(&answer);
}

TEST_GROUP(recipe_needed, NULL)
