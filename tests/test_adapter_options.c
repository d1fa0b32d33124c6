/*
 * The table of an adapter's options: its defaults are those of the public interface, every row is complete, and what is
 * written reads back as the same.
 */
#include "cli/option_args.h"
#include "model/adapter_options.h"
#include "rosa/arguments.h"
#include "support_test.h"

static const struct key_table *const tables[] = {&adapter_layers_table, &adapter_option_table, &learning_option_table};

TEST(defaults_are_the_library_s)
{
	const struct adapter_options options = adapter_options_default();
	const rosa_options retrieval = ROSA_OPTIONS_INIT;
	const rosa_learning learning = ROSA_LEARNING_INIT;

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
TEST(the_library_agrees)
{
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
TEST(rows_are_complete)
{
	for (size_t t = 0; t < COUNT(tables); t++) {
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
				assert_true((row->fallback >= row->least && row->fallback <= row->most) ||
					    (row->marks & KEY_NULL && row->fallback == -1));
				break;
			case KEY_CUSTOM:
				assert_true(row->custom == &source_key || row->custom == &layers_key);
				break;
			default:
				fail_msg("%s: this type has no command-line option", row->name);
			}
		}
	}
}

#ifdef ROSATUNE_JANSSON

/* Every row set to something else, written and read. */
TEST(what_is_written_reads_back)
{
	struct adapter_options options = adapter_options_default(), again = adapter_options_default();
	const struct key_place place = {.file = "text", .object = "options."};
	struct json_text first = {0}, second = {0};
	struct json root = {0};
	rosa_error err = {ROSA_OK, ""};

	for (size_t t = 0; t < COUNT(tables); t++) {
		for (size_t i = 0; i < tables[t]->count; i++) {
			const struct key *row = &tables[t]->rows[i];
			const struct key_place at = {.key = row->name};
			char text[40];

			if (row->type == KEY_CHOICE)
				snprintf(text, sizeof(text), "%s", row->choices[1]);
			else if (row->type == KEY_BOOL)
				snprintf(text, sizeof(text), "%s", row->fallback != 0 ? "false" : "true");
			else if (row->type == KEY_CUSTOM)
				snprintf(text, sizeof(text),
					 row->custom == &source_key ? "layer 3+tokens+layer 65535" : "3,0,1023");
			else
				snprintf(text, sizeof(text), row->type == KEY_SIZE ? "7" : "0.3");
			must(keys_set(&adapter_option_keys, &options, text, &at, &err));
		}
	}
	json_text_add(&first, "{");
	keys_write(&adapter_option_keys, &options, 0, "  ", &first);
	json_text_add(&first, "}");
	must(json_read(first.data, first.size, "text", &root, &err));
	must(keys_read(&adapter_option_keys, &again, root, &place, &err));
	json_text_add(&second, "{");
	keys_write(&adapter_option_keys, &again, 0, "  ", &second);
	json_text_add(&second, "}");
	assert_string_equal(first.data, second.data);
	assert_int_equal(again.bits, 7);
	assert_non_null(strstr(first.data, "\"layers\": [0, 3, 1023],"));
	assert_true(layers_have(&again.layers, 3) && layers_have(&again.layers, 1023));
	assert_false(layers_have(&again.layers, 1) || layers_have(&again.layers, 1024));
	assert_int_equal(again.source.count, 3);
	assert_int_equal(again.source.all[2].layer, 65535);
	assert_int_equal(again.delay, 7);
	assert_int_equal(again.learning.qk_grad, ROSA_QK_SOFT);
	assert_true(again.learning.slope == 0.3f);
	assert_false(again.fold);
	json_free(&root);
	json_text_free(&first);
	json_text_free(&second);
}

#endif

/* The command line sets every row too. */
TEST(options_set_rows)
{
	struct adapter_options options = adapter_options_paper();
	struct option_args room = {.count = 0};
	struct arg all[2 * OPTION_ARGS_MOST];
	size_t count = option_args_add(&room, &adapter_option_table, &options, all);
	struct args args = {.command = "test", .usage = "", .summary = "", .options = all};
	char *words[] = {"--bits",  "4",        "--no-fold",   "--qk-grad", "flips",
			 "--slope", "0.5",      "--max-match", "9",         "--first-global-layers=1",
			 "--gain",  "--source", "tokens+own",  "--delay",   "12"};
	rosa_error err = {ROSA_OK, ""};

	count += option_args_add(&room, &learning_option_table, &options, all + count);
	assert_int_equal(count, adapter_option_table.count + learning_option_table.count);
	args.count = count;
	assert_int_equal(args_parse(&args, (int)(COUNT(words)), words), ARGS_OK);
	must(option_args_apply(&room, &err));
	assert_int_equal(options.bits, 4);
	assert_true(options.gain);
	assert_false(options.gate);
	assert_int_equal(options.source.count, 2);
	assert_int_equal(options.source.all[0].kind, SOURCE_TOKENS);
	assert_int_equal(options.source.all[1].kind, SOURCE_OWN);
	assert_int_equal(options.delay, 12);
	assert_false(options.fold);
	assert_int_equal(options.learning.qk_grad, ROSA_QK_FLIPS);
	assert_true(options.learning.slope == 0.5f);
	assert_int_equal(options.max_match, 9);
	assert_int_equal(options.first_global_layers, 1);
	assert_string_equal(all[0].name, "bits");
	assert_non_null(strstr(all[0].help, "(default 16)"));
}

TEST(refused_word)
{
	struct adapter_options options = adapter_options_paper();
	struct option_args room = {.count = 0};
	struct arg all[OPTION_ARGS_MOST];
	struct args args = {.command = "test", .usage = "", .summary = "", .options = all};
	char *words[] = {"--source", "words"};
	rosa_error err = {ROSA_OK, ""};

	args.count = option_args_add(&room, &adapter_option_table, &options, all);
	assert_int_equal(args_parse(&args, 2, words), ARGS_OK);
	assert_int_equal(option_args_apply(&room, &err), ROSA_EINVAL);
	assert_string_equal(err.message, "--source: is words; choose from: own, tokens, embeddings, layer N; several "
					 "are joined by +, as in tokens+embeddings");
}

/* ------------------------------------------------------------------------------------------------------ sources -- */

TEST(sources_are_parsed)
{
	static const struct {
		const char *text, *says; /* NULL: taken */
	} words[] = {
	    {"own", NULL},
	    {"tokens", NULL},
	    {"embeddings", NULL},
	    {"layer 0", NULL},
	    {"layer 65535", NULL},
	    {"tokens+embeddings+own+layer 7", NULL},
	    {"layer 3+layer 4", NULL},
	    {"", "is ; choose from"},
	    {"layer", "is layer; choose from"},
	    {"layer ", "choose from"},
	    {"layer 65536", "choose from"},
	    {"layer x", "choose from"},
	    {"layer 3k", "choose from"},
	    {"tokens+", "is tokens+; choose from"},
	    {"+tokens", "choose from"},
	    {"Tokens", "choose from"},
	    {"tokens+tokens", "name each source once"},
	    {"layer 3+layer 3", "name each source once"},
	    {"tokens+own+embeddings+layer 3+layer 4", "a layer has up to 4 sources"},
	    {"ooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo", "choose"},
	};

	for (size_t i = 0; i < COUNT(words); i++) {
		struct adapter_options options = adapter_options_default();
		const struct key_place place = {.key = "source"};
		rosa_error err = {ROSA_OK, ""};
		const rosa_status status = keys_set(&adapter_option_keys, &options, words[i].text, &place, &err);
		char text[SOURCE_TEXT];

		if (words[i].says) {
			assert_int_equal(status, ROSA_EINVAL);
			must_say(words[i].says);
			continue;
		}
		assert_int_equal(status, ROSA_OK);
		sources_text(&options.source, text);
		assert_string_equal(text, words[i].text);
	}
}

TEST(layers_are_parsed)
{
	static const struct {
		const char *text, *says; /* NULL: taken */
	} words[] = {
	    {"all", NULL},
	    {"0", NULL},
	    {"1023,7", NULL},
	    {"", "layers: is ; give all, or numbers of layers such as 0,3,6"},
	    {"every", "is every; give all"},
	    {"1,", "give all"},
	    {",1", "give all"},
	    {"1,,2", "give all"},
	    {"-1", "give all"},
	    {"1k", "give all"},
	    {"11111111111111111111111", "give all"},
	    {"3,3", "layers: names layer 3 twice"},
	    {"1024", "names layer 1024; layers with an adapter are below 1024"},
	};

	for (size_t i = 0; i < COUNT(words); i++) {
		struct adapter_options options = adapter_options_default();
		const struct key_place place = {.key = "layers"};
		rosa_error err = {ROSA_OK, ""};

		if (keys_set(&adapter_option_keys, &options, words[i].text, &place, &err) == ROSA_OK)
			assert_null(words[i].says);
		else
			must_say(words[i].says ? words[i].says : "taken");
	}
}

static void name_layers(struct adapter_options *options, const char *text)
{
	const struct key_place place = {.key = "layers"};

	assert_int_equal(keys_set(&adapter_option_keys, options, text, &place, NULL), ROSA_OK);
}

static struct adapter_options with_source(const char *text)
{
	struct adapter_options options = adapter_options_paper();
	const struct key_place place = {.key = "source"};

	assert_int_equal(keys_set(&adapter_option_keys, &options, text, &place, NULL), ROSA_OK);
	return options;
}

/* What a layer reads follows from sources, chain and qk. */
TEST(reads_of_a_layer)
{
	struct adapter_options options = with_source("tokens+embeddings+layer 3+own");

	options.chain = 4;
	options.bits = 8;
	assert_int_equal(adapter_links(&options, 2), 4 + 4 + 1);
	assert_int_equal(adapter_links(&options, 3), 4 + 4 + 1 + 1);
	assert_int_equal(adapter_gain_rows(&options, 2, 64), 4 + 4 * 8 + 8);
	options.qk = QK_SHARED;
	assert_int_equal(adapter_links(&options, 2), 12);
	assert_int_equal(adapter_links(&options, 3), 16);
	assert_true(adapter_learns_qk(&options, 0));
	options = with_source("tokens+layer 3");
	assert_false(adapter_learns_qk(&options, 2));
	assert_true(adapter_learns_qk(&options, 3));
	assert_false(adapter_learns_qk(&options, 4));
	options = with_source("layer 3");
	assert_int_equal(adapter_links(&options, 2), 0);
	options.window = 128;
	options.delay = KEY_UNSET;
	assert_int_equal(adapter_delay(&options), 128);
	options.delay = 0;
	assert_int_equal(adapter_delay(&options), 0);
	options.window = 0;
	options.delay = KEY_UNSET;
	assert_int_equal(adapter_delay(&options), 0);
}

/* A layer has an adapter where it may have one, is named, and has something to read. */
TEST(layers_with_an_adapter)
{
	struct adapter_options options = with_source("layer 3");

	assert_true(!adapter_covers(&options, 2) && adapter_covers(&options, 3) && adapter_covers(&options, 4));
	options.first_global_layers = 4;
	assert_true(!adapter_covers(&options, 3) && adapter_covers(&options, 4));
	name_layers(&options, "5,7");
	assert_true(!adapter_covers(&options, 4) && adapter_covers(&options, 5) && !adapter_covers(&options, 6));
}

/* Token ids are matched as they are: with as many bits as the vocabulary needs, and never folded. */
TEST(what_retrieval_is_told)
{
	static const struct {
		size_t vocabulary;
		int bits;
	} sizes[] = {{2, 1}, {3, 2}, {49152, 16}, {65536, 16}, {65537, 17}, {1 << 20, 20}};
	struct adapter_options options = with_source("tokens+own");

	options.bits = 8;
	options.window = 100;
	options.delay = KEY_UNSET;
	options.max_match = 5;
	for (size_t i = 0; i < COUNT(sizes); i++) {
		const rosa_options tokens = adapter_source_retrieval(&options, 0, sizes[i].vocabulary);
		const rosa_options own = adapter_source_retrieval(&options, 1, sizes[i].vocabulary);

		assert_int_equal(tokens.bits, sizes[i].bits);
		assert_false(tokens.fold);
		assert_int_equal(own.bits, 8);
		assert_true(own.fold);
		assert_int_equal(tokens.delay, 100);
		assert_int_equal(own.delay, 100);
		assert_int_equal(tokens.max_match, 5);
	}
}

TEST(checks_name_the_option)
{
	static const struct {
		const char *source, *layers;
		uint64_t window, delay, bits, global;
		size_t vocabulary;
		const char *says; /* NULL: right */
	} cases[] = {
	    {"own", "1,3", 16, 0, 4, 0, 0, NULL},
	    {"own", "1,3", 16, 16, 4, 0, 0, NULL},
	    {"own", "1,3", 16, 17, 4, 0, 0, NULL},
	    {"own", "1,3", 0, 17, 4, 0, 0, NULL},
	    {"own", "1,3", 16, KEY_UNSET, 4, 0, 0, NULL},
	    {"own", "1,3", 16, 15, 4, 0, 0,
	     "--delay: is 15 beside a window of 16: attention still sees what would be found; use 0, or 16 or more"},
	    {"own", "1,3", 16, 0, 3, 0, 0, "--bits: is 3, of which the model's width 64 is no multiple"},
	    {"embeddings", "1,3", 16, 0, 3, 0, 0, "--bits: is 3"},
	    {"tokens", "1,3", 16, 0, 3, 0, 0, NULL},
	    {"tokens", "1,3", 16, 0, 3, 0, 1 << 20, NULL},
	    {"tokens", "1,3", 16, 0, 3, 0, (1 << 20) + 1,
	     "--source: is tokens, and the model's vocabulary of 1048577 is above 1048576; use embeddings"},
	    {"layer 3", "3", 16, 0, 4, 0, 0, NULL},
	    {"layer 4", "1,3", 16, 0, 4, 0, 0, "--source: is layer 4; the model has layers 0 to 3"},
	    {"layer 2", "1,3", 16, 0, 4, 0, 0, "--source: is layer 2, which has no adapter; name one that has"},
	    {"tokens+layer 0", "all", 16, 0, 4, 1, 0, "--source: is layer 0, which has no adapter"},
	    {"own", "1,3", 16, 0, 4, 5, 0, "--first_global_layers: is 5; the model has 4 layers"},
	    {"tokens", "1,4", 16, 0, 4, 0, 0, "--layers: names layer 4; the model has layers 0 to 3"},
	    {"tokens", "1,3", 16, 0, 4, 2, 0, "--layers: names layer 1, which first_global_layers (2) leaves without"},
	    {"layer 3", "1,3", 16, 0, 4, 0, 0,
	     "--layers: names layer 1, which has nothing to read: its only source is"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct adapter_options options = with_source(cases[i].source);
		const struct adapter_shape shape = {64, 4, cases[i].vocabulary};
		rosa_error err = {ROSA_OK, ""};

		options.window = cases[i].window;
		options.delay = cases[i].delay;
		options.bits = cases[i].bits;
		options.first_global_layers = cases[i].global;
		name_layers(&options, cases[i].layers);
		if (adapter_options_check(&options, &shape, "--", &err) == ROSA_OK) {
			assert_null(cases[i].says);
			continue;
		}
		if (!cases[i].says || strncmp(err.message, cases[i].says, strlen(cases[i].says)) != 0)
			fail_msg("%s: %s", cases[i].source, err.message);
	}
}
