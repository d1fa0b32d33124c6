/*
 * The table of an adapter's options: its defaults are those of the public interface, every row is complete, and what is
 * written reads back as the same.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "cli/option_args.h"
#include "model/adapter_options.h"
#include "rosa/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct key_table *const tables[] = {&adapter_option_table, &learning_option_table};

static void defaults_are_the_library_s(void **state)
{
	const struct adapter_options options = adapter_options_default();
	const rosa_options retrieval = ROSA_OPTIONS_INIT;
	const rosa_learning learning = ROSA_LEARNING_INIT;

	(void)state;
	assert_int_equal(options.policy, retrieval.policy);
	assert_int_equal(options.fold, retrieval.fold != 0);
	assert_int_equal(options.max_match, retrieval.max_match);
	assert_int_equal(options.learning.size, learning.size);
	assert_int_equal(options.learning.qk_grad, learning.qk_grad);
	assert_int_equal(options.learning.credit, learning.credit);
	assert_int_equal(options.learning.key_credit, learning.key_credit);
	assert_true(options.learning.slope == learning.slope);
	assert_true(options.learning.suffix == learning.suffix);
	assert_true(options.learning.explore == learning.explore);
	assert_true(options.learning.flip_share == learning.flip_share);
}

/* Whatever the table allows, the library takes too, and of choices it takes no more than there are words. */
static void the_library_agrees(void **state)
{
	(void)state;
	for (size_t i = 0; i < learning_option_table.count; i++) {
		const struct key *row = &learning_option_table.rows[i];
		struct adapter_options options = adapter_options_default();
		void *value = (char *)&options + row->offset;
		rosa_learning full;

		if (row->type == KEY_CHOICE) {
			for (int word = 0; row->choices[word]; word++) {
				*(int *)value = word;
				assert_int_equal(learning_from_options(&options.learning, &full, NULL), ROSA_OK);
			}
			++*(int *)value;
			assert_int_not_equal(learning_from_options(&options.learning, &full, NULL), ROSA_OK);
			continue;
		}
		assert_int_equal(row->type, KEY_FLOAT);
		for (int end = 0; end < 2; end++) {
			*(float *)value = (float)(end ? row->most : row->least);
			assert_int_equal(learning_from_options(&options.learning, &full, NULL), ROSA_OK);
		}
		*(float *)value = row->least > 0 ? 0 : -1;
		assert_int_not_equal(learning_from_options(&options.learning, &full, NULL), ROSA_OK);
	}
}

/* A row has a name, help of one line, and a default that is among what it may be. */
static void rows_are_complete(void **state)
{
	(void)state;
	for (size_t t = 0; t < 2; t++) {
		for (size_t i = 0; i < tables[t]->count; i++) {
			const struct key *row = &tables[t]->rows[i];
			double words = 0;

			assert_true(row->name && *row->name && row->help && *row->help && !strchr(row->help, '\n'));
			for (; row->choices && row->choices[(int)words]; words++)
				;
			switch (row->type) {
			case KEY_CHOICE:
				assert_true(words > 1 && row->fallback >= 0 && row->fallback < words);
				break;
			case KEY_BOOL:
				assert_true(row->fallback == 0 || row->fallback == 1);
				break;
			case KEY_SIZE:
			case KEY_FLOAT:
				assert_true(row->least < row->most);
				assert_true(row->fallback >= row->least && row->fallback <= row->most);
				break;
			default:
				fail_msg("%s: this type has no command-line option", row->name);
			}
		}
	}
}

#ifdef ROSATUNE_JANSSON

/* Every row set to something else, written and read. */
static void what_is_written_reads_back(void **state)
{
	struct adapter_options options = adapter_options_default(), again = adapter_options_default();
	const struct key_place place = {.file = "text", .object = "options."};
	struct json_text first = {0}, second = {0};
	struct json root = {0};
	rosa_error err = {ROSA_OK, ""};

	(void)state;
	for (size_t t = 0; t < 2; t++) {
		for (size_t i = 0; i < tables[t]->count; i++) {
			const struct key *row = &tables[t]->rows[i];
			const struct key_place at = {.key = row->name};
			char text[40];

			if (row->type == KEY_CHOICE)
				snprintf(text, sizeof(text), "%s", row->choices[1]);
			else if (row->type == KEY_BOOL)
				snprintf(text, sizeof(text), "%s", row->fallback != 0 ? "false" : "true");
			else
				snprintf(text, sizeof(text), row->type == KEY_SIZE ? "7" : "0.3");
			if (keys_set(&adapter_option_keys, &options, text, &at, &err) != ROSA_OK)
				fail_msg("%s", err.message);
		}
	}
	json_text_add(&first, "{");
	keys_write(&adapter_option_keys, &options, 0, "  ", &first);
	json_text_add(&first, "}");
	if (json_read(first.data, first.size, "text", &root, &err) != ROSA_OK ||
	    keys_read(&adapter_option_keys, &again, root, &place, &err) != ROSA_OK)
		fail_msg("%s", err.message);
	json_text_add(&second, "{");
	keys_write(&adapter_option_keys, &again, 0, "  ", &second);
	json_text_add(&second, "}");
	assert_string_equal(first.data, second.data);
	assert_int_equal(again.bits, 7);
	assert_int_equal(again.learning.qk_grad, ROSA_QK_SOFT);
	assert_true(again.learning.slope == 0.3f);
	assert_false(again.fold);
	json_free(&root);
	json_text_free(&first);
	json_text_free(&second);
}

#endif

/* The command line sets every row too. */
static void options_set_rows(void **state)
{
	struct adapter_options options = adapter_options_default();
	struct option_args room = {.count = 0};
	struct arg all[2 * OPTION_ARGS_MOST];
	size_t count = option_args_add(&room, &adapter_option_table, &options, all);
	struct args args = {.command = "test", .usage = "", .summary = "", .options = all};
	char *words[] = {"--bits",  "4",   "--no-fold",   "--qk-grad", "flips",
			 "--slope", "0.5", "--max-match", "9",         "--first-global-layers=1"};

	(void)state;
	count += option_args_add(&room, &learning_option_table, &options, all + count);
	assert_int_equal(count, adapter_option_table.count + learning_option_table.count);
	args.count = count;
	assert_int_equal(args_parse(&args, (int)(sizeof(words) / sizeof(words[0])), words), ARGS_OK);
	option_args_apply(&room);
	assert_int_equal(options.bits, 4);
	assert_false(options.fold);
	assert_int_equal(options.learning.qk_grad, ROSA_QK_FLIPS);
	assert_true(options.learning.slope == 0.5f);
	assert_int_equal(options.max_match, 9);
	assert_int_equal(options.first_global_layers, 1);
	assert_string_equal(all[0].name, "bits");
	assert_non_null(strstr(all[0].help, "(default 16)"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(defaults_are_the_library_s), cmocka_unit_test(the_library_agrees),
	    cmocka_unit_test(rows_are_complete),
#ifdef ROSATUNE_JANSSON
	    cmocka_unit_test(what_is_written_reads_back),
#endif
	    cmocka_unit_test(options_set_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
