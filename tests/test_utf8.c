/*
 * UTF-8: every code point forth and back, sequences that are not UTF-8, and texts from files made safe for a terminal,
 * alone and in the messages of errors.
 */
#include "base/status.h"
#include "base/utf8.h"
#include "support_test.h"

TEST(code_points_come_back)
{
	for (uint32_t point = 0; point <= 0x10ffff; point++) {
		char text[4];
		size_t size = utf8_put(point, text), length;
		int surrogate = point >= 0xd800 && point < 0xe000;

		assert_int_equal(utf8_next(text, size, &length), surrogate ? UTF8_BAD : point);
		assert_int_equal(length, surrogate ? 1 : size);
		assert_int_equal(utf8_valid(text, size), surrogate ? 0 : size);
		for (size_t part = 1; part < size && !surrogate; part++) {
			assert_int_equal(utf8_next(text, part, &length), UTF8_BAD);
			assert_int_equal(length, part);
			assert_true(utf8_unfinished(text, part));
		}
	}
}

TEST(overlong_and_stray_bytes_are_bad)
{
	static const char *const bad[] = {"\x80",
					  "\xbf",
					  "\xc0\x80",
					  "\xc1\xbf",
					  "\xe0\x9f\xbf",
					  "\xf0\x8f\xbf\xbf",
					  "\xf4\x90\x80\x80",
					  "\xf5\x80\x80\x80",
					  "\xfe",
					  "\xff"};
	size_t length;

	for (size_t i = 0; i < COUNT(bad); i++) {
		assert_int_equal(utf8_next(bad[i], strlen(bad[i]), &length), UTF8_BAD);
		assert_int_equal(length, 1);
		assert_false(utf8_unfinished(bad[i], strlen(bad[i])));
	}
}

static void check_printable(const char *text, size_t size, const char *expected)
{
	char once[256], twice[256];

	assert_int_equal(utf8_printable(once, sizeof(once), text, size), strlen(expected));
	assert_string_equal(once, expected);
	assert_int_equal(utf8_printable(twice, sizeof(twice), once, strlen(once)), strlen(expected));
	assert_string_equal(twice, expected);
}

TEST(what_a_terminal_obeys_is_escaped)
{
	check_printable("", 0, "");
	check_printable("plain \\d+ text", 14, "plain \\d+ text");
	check_printable("\x1b[31mred\x1b[0m", 12, "\\x1b[31mred\\x1b[0m");
	check_printable("a\nb\tc\rd\a\b\v\f", 11, "a\\nb\\tc\\rd\\a\\b\\v\\f");
	check_printable("\0\x7f", 2, "\\x00\\x7f");
	check_printable("\xc2\x9b"
			"2J",
			4, "\\u{9b}2J");
	check_printable("\xe2\x80\xae"
			"exe.txt",
			10, "\\u{202e}exe.txt");
	check_printable("\xe2\x80\xa8\xe2\x81\xa6\xd8\x9c", 8, "\\u{2028}\\u{2066}\\u{61c}");
	check_printable("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80", 15, "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80");
	check_printable("\xff\xe2\x82z\xc3", 5, "\\xff\\xe2\\x82z\\xc3");
}

TEST(copies_end_between_characters)
{
	static const char text[] = "a\x1b\xe2\x82\xacz";
	static const struct {
		size_t room;
		const char *expected;
	} cases[] = {{1, ""},
		     {2, "a"},
		     {5, "a"},
		     {6, "a\\x1b"},
		     {8, "a\\x1b"},
		     {9, "a\\x1b\xe2\x82\xac"},
		     {10, "a\\x1b\xe2\x82\xacz"}};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char copy[16];

		memset(copy, 'X', sizeof(copy));
		assert_int_equal(utf8_printable(copy, cases[i].room, text, strlen(text)), strlen(cases[i].expected));
		assert_string_equal(copy, cases[i].expected);
		assert_int_equal(copy[cases[i].room], 'X');
	}
}

TEST(messages_are_printable)
{
	char name[1200];

	assert_int_equal(rosa_fail(&err, ROSA_EFORMAT, "%s: '%s'", "model\n.gguf", "\x1b]0;title\a"), ROSA_EFORMAT);
	assert_int_equal(err.status, ROSA_EFORMAT);
	assert_string_equal(err.message, "model\\n.gguf: '\\x1b]0;title\\a'");
	/* a message may be built from itself */
	rosa_fail(&err, ROSA_EIO, "again: %s", err.message);
	assert_string_equal(err.message, "again: model\\n.gguf: '\\x1b]0;title\\a'");
	/* 600 two-byte characters: the message ends with a whole one */
	for (size_t i = 0; i < sizeof(name); i++)
		name[i] = i % 2 ? '\xa4' : '\xc3';
	rosa_fail(&err, ROSA_EINVAL, "%.*s", (int)sizeof(name), name);
	assert_int_equal(strlen(err.message), sizeof(err.message) - 2);
	assert_int_equal(utf8_valid(err.message, strlen(err.message)), strlen(err.message));
	assert_int_equal(rosa_fail(NULL, ROSA_EIO, "%s", "nowhere"), ROSA_EIO);
}
