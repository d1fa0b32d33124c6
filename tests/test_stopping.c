/* Stop strings: whatever way the text is cut, what is written is what the whole text says. */
#include "base/draw.h"
#include "model/stopping.h"
#include "support_test.h"

#define MOST 64

static stopping *make(const char *const *strings, size_t count)
{
	stopping *made;

	must(stopping_new(strings, count, &made, &err));
	return made;
}

/* How much of a text is written, by the definition: up to the beginning of the longest of the strings that are complete
 * first. */
static size_t oracle(const char *const *strings, size_t count, const char *text, size_t size)
{
	for (size_t end = 1; end <= size; end++) {
		size_t longest = 0;
		for (size_t i = 0; i < count; i++) {
			size_t length = strlen(strings[i]);
			if (length <= end && length > longest && memcmp(text + end - length, strings[i], length) == 0)
				longest = length;
		}
		if (longest)
			return end - longest;
	}
	return size;
}

TEST(cuts_do_not_matter)
{
	uint64_t n = 0;

	for (uint64_t trial = 0; trial < 20000; trial++) {
		char strings[3][8], text[MOST + 1], out[2 * MOST];
		const char *pointers[3] = {strings[0], strings[1], strings[2]};
		size_t count = draw(1, trial, n++) % 4, size = draw(1, trial, n++) % MOST, at = 0, written = 0;

		for (size_t i = 0; i < count; i++) {
			size_t length = 1 + draw(1, trial, n++) % 6;
			for (size_t j = 0; j < length; j++)
				strings[i][j] = (char)('a' + draw(1, trial, n++) % 2);
			strings[i][length] = '\0';
		}
		for (size_t i = 0; i < size; i++)
			text[i] = (char)('a' + (draw(1, trial, n++) % 16 == 0 ? 2 : draw(1, trial, n++) % 2));
		stopping *stopping = make(pointers, count);
		size_t wanted = oracle(pointers, count, text, size);
		while (at < size) {
			size_t piece = 1 + draw(1, trial, n++) % 9;
			piece = piece < size - at ? piece : size - at;
			written += stopping_take(stopping, text + at, piece, out + written);
			at += piece;
			assert_true(written <= wanted);
			/* Nothing is held back without need. */
			assert_true(written + stopping_longest(stopping) >= (at < wanted ? at : wanted));
		}
		assert_int_equal(stopping_done(stopping), wanted < size);
		written += stopping_finish(stopping, out + written);
		assert_int_equal(written, wanted);
		assert_memory_equal(out, text, written);
		assert_false(stopping_done(stopping));
		stopping_free(stopping);
	}
}

TEST(holds_back_only_what_may_match)
{
	const char *strings[] = {"\n\nQ:", "END"};
	stopping *stopping = make(strings, 2);
	char out[64];

	assert_int_equal(stopping_longest(stopping), 3);
	assert_int_equal(stopping_take(stopping, "one\n", 4, out), 3);
	assert_int_equal(stopping_take(stopping, "\n", 1, out), 0);
	assert_int_equal(stopping_take(stopping, "E", 1, out), 2);
	assert_memory_equal(out, "\n\n", 2);
	assert_int_equal(stopping_take(stopping, "N", 1, out), 0);
	assert_int_equal(stopping_finish(stopping, out), 2);
	assert_memory_equal(out, "EN", 2);
	/* After the end it begins anew: "D" completes nothing. */
	assert_int_equal(stopping_take(stopping, "D.", 2, out), 2);
	assert_int_equal(stopping_take(stopping, "x\n\nQ:y", 6, out), 1);
	assert_true(stopping_done(stopping));
	assert_int_equal(stopping_take(stopping, "more", 4, out), 0);
	assert_int_equal(stopping_finish(stopping, out), 0);
	stopping_free(stopping);
}

TEST(refuses_nothing_to_stop_at)
{
	const char *strings[] = {"a", ""};
	stopping *made;

	must_fail(stopping_new(strings, 2, &made, &err), ROSA_EINVAL, "empty");
	assert_null(made);
	stopping_free(NULL);
}
