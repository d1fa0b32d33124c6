/* JSON that is written: what reads it gets the same characters, and what shows it no control characters. */
#include "base/json_text.h"
#include "base/utf8.h"
#include "support_test.h"

#include <math.h>

/* A control character in any of its forms: C0, DEL, C1. */
static bool is_control(uint32_t point)
{
	return point < 0x20 || (point >= 0x7f && point < 0xa0);
}

TEST(characters_are_escaped_where_needed)
{
	for (uint32_t point = 0; point < 0x3000; point++) {
		char given[8] = "a", wanted[16] = "\"a";
		struct json_text text = {0};
		const size_t size = 1 + utf8_put(point, given + 1);

		given[size] = 'b';
		if (is_control(point))
			snprintf(wanted + 2, sizeof(wanted) - 2, "\\u%04xb\"", (unsigned)point);
		else
			snprintf(wanted + 2, sizeof(wanted) - 2, "%s%.*sb\"", point == '"' || point == '\\' ? "\\" : "",
				 (int)size - 1, given + 1);
		json_text_bytes(&text, given, size + 1);
		assert_false(text.failed);
		assert_string_equal(text.data, wanted);
		json_text_free(&text);
	}
}

/* Names of files may have any bytes; what is no UTF-8 stays as it is, even at the end. */
TEST(other_bytes_stay)
{
	static const char *const strings[] = {"\xc2", "a\xc2", "\xc2\xc2\xa9", "\xff\x80", "\xe2\x82", ""};

	for (size_t i = 0; i < COUNT(strings); i++) {
		struct json_text text = {0};
		char wanted[16];

		snprintf(wanted, sizeof(wanted), "\"%s\"", strings[i]);
		json_text_string(&text, strings[i]);
		assert_string_equal(text.data, wanted);
		json_text_free(&text);
	}
}

TEST(members_get_their_commas)
{
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_string(&text, "a", NULL);
	json_text_open(&text, "b", '[');
	json_text_put_size(&text, NULL, 1);
	json_text_put_number(&text, NULL, 0.1);
	json_text_close(&text, ']');
	json_text_put_bool(&text, "c", true);
	json_text_put_number(&text, "d", INFINITY);
	json_text_close(&text, '}');
	assert_string_equal(text.data, "{\"a\": null, \"b\": [1, 0.1], \"c\": true, \"d\": null}");
	json_text_free(&text);
}
