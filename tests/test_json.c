/*
 * JSON: values as C types, and error messages that name the place of a value of another type.
 */
#include "model/json.h"

#include "support_test.h"
#include "support_trial.h"
#include "support_weights.h"

#include <unistd.h>

#ifdef ROSATUNE_JANSSON

static const char text[] = "{\"size\": 576, \"whole\": 512.0, \"negative\": -3, \"real\": 1e-5, \"yes\": true,\n"
			   "\"no\": false, \"null\": null, \"word\": \"silu \\u00e9\", \"nul\": \"a\\u0000b\",\n"
			   "\"list\": [1, \"two\", [3], null], \"scaling\": {\"factor\": 8.0, \"type\": \"llama3\"},\n"
			   "\"empty\": {}, \"large\": 9223372036854775807, \"infinite\": 1e300}";

static struct json root;

static int enter(void **state)
{
	return json_read(text, strlen(text), "config.json", &root, NULL) != ROSA_OK;
}

static int leave(void **state)
{
	json_free(&root);
	json_free(&root); /* twice does no harm */
	return 0;
}

static void check_message(rosa_status status, const rosa_error *err, const char *wanted)
{
	assert_int_equal(status, ROSA_EFORMAT);
	assert_int_equal(err->status, status);
	assert_string_equal(err->message, wanted);
}

#define CHECK(call_, words_) check_message(call_, &err, "config.json: " words_)

/* -------------------------------------------------------------------------------------------------------- fields -- */

TEST_WITH(gets_what_is_there, enter, leave)
{
	rosa_error err = {ROSA_OK, ""};
	const char *word;
	int64_t integer;
	double number;
	size_t size;
	bool truth;

	must(json_get_size(root, "size", JSON_NEEDED, &size, &err));
	assert_int_equal(size, 576);
	must(json_get_size(root, "whole", JSON_NEEDED, &size, &err));
	assert_int_equal(size, 512);
	must(json_get_integer(root, "negative", JSON_OPTIONAL, &integer, &err));
	assert_int_equal(integer, -3);
	must(json_get_integer(root, "large", JSON_NEEDED, &integer, &err));
	assert_int_equal(integer, INT64_MAX);
	must(json_get_number(root, "real", JSON_NEEDED, &number, &err));
	assert_true(number == 1e-5);
	must(json_get_number(root, "size", JSON_NEEDED, &number, &err));
	assert_true(number == 576);
	must(json_get_bool(root, "yes", JSON_NEEDED, &truth, &err));
	assert_true(truth);
	must(json_get_bool(root, "no", JSON_NEEDED, &truth, &err));
	assert_false(truth);
	must(json_get_string(root, "word", JSON_NEEDED, &word, &err));
	assert_string_equal(word, "silu \xc3\xa9");
	assert_string_equal(err.message, "");
}

/* Missing, and null: the same. */
TEST_WITH(leaves_optional_values_alone, enter, leave)
{
	static const char *const names[] = {"missing", "null"};

	for (size_t i = 0; i < COUNT(names); i++) {
		const char *word = "before";
		int64_t integer = -7;
		double number = 0.5;
		size_t size = 7;
		bool truth = true;
		struct json value;

		assert_int_equal(json_get_size(root, names[i], JSON_OPTIONAL, &size, NULL), ROSA_OK);
		assert_int_equal(json_get_integer(root, names[i], JSON_OPTIONAL, &integer, NULL), ROSA_OK);
		assert_int_equal(json_get_number(root, names[i], JSON_OPTIONAL, &number, NULL), ROSA_OK);
		assert_int_equal(json_get_bool(root, names[i], JSON_OPTIONAL, &truth, NULL), ROSA_OK);
		assert_int_equal(json_get_string(root, names[i], JSON_OPTIONAL, &word, NULL), ROSA_OK);
		assert_true(size == 7 && integer == -7 && number == 0.5 && truth);
		assert_string_equal(word, "before");
		assert_int_equal(json_get_object(root, names[i], JSON_OPTIONAL, &value, NULL), ROSA_OK);
		assert_false(json_there(value));
		assert_int_equal(json_get_array(root, names[i], JSON_OPTIONAL, &value, NULL), ROSA_OK);
		assert_int_equal(json_count(value), 0);
	}
}

TEST_WITH(says_which_field_is_wrong, enter, leave)
{
	struct json value, scaling = json_find(root, "scaling"), list = json_find(root, "list");
	const char *word;
	int64_t integer;
	double number;
	size_t size;
	bool truth;

	CHECK(json_get_size(root, "width", JSON_NEEDED, &size, &err), "width: is missing");
	CHECK(json_get_size(root, "null", JSON_NEEDED, &size, &err), "null: is null");
	CHECK(json_get_size(root, "word", JSON_OPTIONAL, &size, &err), "word: is a string; it must be a whole number");
	CHECK(json_get_size(root, "negative", JSON_NEEDED, &size, &err), "negative: is -3; it must be 0 or more");
	CHECK(json_get_size(root, "real", JSON_NEEDED, &size, &err), "real: is 1e-05; it must be a whole number");
	CHECK(json_get_integer(root, "infinite", JSON_NEEDED, &integer, &err),
	      "infinite: is 1e+300; it must be a whole number");
	CHECK(json_get_number(root, "yes", JSON_NEEDED, &number, &err), "yes: is true; it must be a number");
	CHECK(json_get_bool(root, "size", JSON_NEEDED, &truth, &err), "size: is a number; it must be true or false");
	CHECK(json_get_string(root, "nul", JSON_NEEDED, &word, &err), "nul: has a NUL character inside");
	CHECK(json_get_size(scaling, "type", JSON_NEEDED, &size, &err),
	      "scaling.type: is a string; it must be a whole number");
	CHECK(json_get_object(root, "list", JSON_NEEDED, &value, &err), "list: is an array; it must be an object");
	CHECK(json_get_array(root, "scaling", JSON_OPTIONAL, &value, &err),
	      "scaling: is an object; it must be an array");
	CHECK(json_as_size(json_at(list, 1), &size, &err), "list[1]: is a string; it must be a whole number");
	CHECK(json_as_size(json_at(list, 9), &size, &err), "list[9]: is missing; it must be a whole number");
	CHECK(json_get_size(list, "a", JSON_OPTIONAL, &size, &err), "list: is an array; it must be an object");
	CHECK(json_refuse(json_find(scaling, "factor"), &err, "is %d", 8), "scaling.factor: is 8");
	CHECK(json_refuse(root, &err, "is odd"), "is odd");
}

/* -------------------------------------------------------------------------------------------------------- values -- */

TEST_WITH(knows_kinds, enter, leave)
{
	static const struct {
		const char *name;
		enum json_kind kind;
	} cases[] = {
	    {"size", JSON_IS_NUMBER},     {"real", JSON_IS_NUMBER},  {"yes", JSON_IS_BOOL},
	    {"no", JSON_IS_BOOL},         {"null", JSON_IS_NOTHING}, {"word", JSON_IS_STRING},
	    {"missing", JSON_IS_NOTHING}, {"list", JSON_IS_ARRAY},   {"empty", JSON_IS_OBJECT},
	    {"scaling", JSON_IS_OBJECT},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(json_kind(json_find(root, cases[i].name)), cases[i].kind);
		assert_int_equal(json_there(json_find(root, cases[i].name)), cases[i].kind != JSON_IS_NOTHING);
	}
	assert_int_equal(json_count(json_find(root, "list")), 4);
	assert_int_equal(json_count(json_find(root, "scaling")), 2);
	assert_int_equal(json_count(json_find(root, "word")), 0);
	assert_false(json_there(json_find(json_find(root, "word"), "deeper")));
	assert_false(json_there(json_at(root, 0)));
}

TEST_WITH(walks_in_the_files_order, enter, leave)
{
	struct json_walk walk = {NULL, false}, none = {NULL, false};
	struct json value;
	const char *name;

	assert_true(json_next(json_find(root, "scaling"), &walk, &name, &value));
	assert_string_equal(name, "factor");
	assert_int_equal(json_kind(value), JSON_IS_NUMBER);
	assert_string_equal(value.outer, "scaling");
	assert_true(json_next(json_find(root, "scaling"), &walk, &name, &value));
	assert_string_equal(name, "type");
	assert_false(json_next(json_find(root, "scaling"), &walk, &name, &value));
	assert_false(json_next(json_find(root, "empty"), &none, &name, &value));
	assert_false(json_next(json_find(root, "list"), &none, &name, &value));
}

TEST_WITH(gives_text_with_its_length, enter, leave)
{
	const char *at;
	size_t length;

	assert_int_equal(json_as_text(json_find(root, "nul"), &at, &length, NULL), ROSA_OK);
	assert_int_equal(length, 3);
	assert_memory_equal(at, "a\0b", 4);
}

/* --------------------------------------------------------------------------------------------------------- files -- */

static void refuse_text(const char *json, const char *words)
{
	struct json got;
	rosa_error err = {ROSA_OK, ""};

	if (!json_read(json, strlen(json), "a.json", &got, &err))
		fail_msg("accepted: %s", json);
	assert_int_equal(err.status, ROSA_EFORMAT);
	if (!strstr(err.message, words) || strncmp(err.message, "a.json: line ", 13) != 0)
		fail_msg("%s: the reason is '%s', without '%s'", json, err.message, words);
	for (const char *c = err.message; *c; c++)
		assert_false((unsigned char)*c < ' ');
	assert_false(json_there(got));
	json_free(&got);
}

TEST(says_where_text_is_wrong)
{
	refuse_text("", "line 1, column 0");
	refuse_text("{\n\"a\": 1,\n\"b\" 2}", "line 3");
	refuse_text("{\"a\": 1, \"a\": 2}", "duplicate");
	refuse_text("{\"a\": \x1b[2J}", "line 1");
	refuse_text("{\"a\": \"\xff\"}", "line 1");
	refuse_text("{\"a\": 1e999}", "line 1");
	refuse_text("{} {}", "line 1");
	refuse_text("{\"a\": NaN}", "line 1");
}

/* Python's "no limit" exceeds 64 bits. */
TEST(reads_integers_of_any_size)
{
	static const char json[] = "{\"limit\": 1000000000000000019884624838656, \"id\": 151643, \"odd\": "
				   "9007199254740993}";
	struct json got;
	int64_t integer;
	double number;

	must(json_read(json, strlen(json), "a.json", &got, &err));
	must(json_get_number(got, "limit", JSON_NEEDED, &number, &err));
	assert_true(number == 1e30);
	must(json_get_integer(got, "id", JSON_NEEDED, &integer, &err));
	assert_int_equal(integer, 151643);
	check_message(json_get_integer(got, "limit", JSON_NEEDED, &integer, &err), &err,
		      "a.json: limit: is 1e+30; it must be a whole number");
	json_free(&got);
}

TEST(loads_files)
{
	char path[] = "/tmp/test_json-XXXXXX";
	int descriptor = mkstemp(path);
	struct bytes bytes = {NULL, 0, 0};
	struct json got;
	size_t size;

	assert_true(descriptor >= 0);
	close(descriptor);
	bytes_put(&bytes, text, strlen(text));
	bytes_save(&bytes, path);
	must(json_load(path, &got, &err));
	must(json_get_size(got, "size", JSON_NEEDED, &size, &err));
	assert_int_equal(size, 576);
	must_fail(json_get_size(got, "none", JSON_NEEDED, &size, &err), ROSA_EFORMAT, path);
	json_free(&got);
	assert_int_equal(truncate(path, 0), 0);
	must_fail(json_load(path, &got, &err), ROSA_EFORMAT, path);
	unlink(path);
	must_fail(json_load(path, &got, &err), ROSA_EIO, path);
	assert_false(json_there(got));
}

#else

TEST(names_the_missing_library)
{
	struct json got;
	size_t size;

	must_fail(json_read("{}", 2, "a.json", &got, &err), ROSA_EINVAL, "libjansson-dev");
	must_say("a.json");
	assert_false(json_there(json_find(got, "a")));
	assert_int_equal(json_get_size(got, "a", JSON_NEEDED, &size, &err), ROSA_EFORMAT);
	json_free(&got);
}

#endif
