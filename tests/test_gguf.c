/*
 * GGUF files: all that is read, all that is refused and why.
 *
 * Good files come from the writer in support_weights.c. Bad ones are described here number by number, so that each has
 * one thing wrong with it; and a good file is cut at every byte and altered at every byte, where the outcome may be
 * either, but never a read outside of it.
 */
#include "model/gguf.h"

#include "support_test.h"
#include "support_trial.h"
#include "support_weights.h"

#define FILE_NAME "some.gguf"

static void close_gguf(void *gguf)
{
	gguf_free(gguf);
	gguf_free(gguf); /* twice does no harm */
}

/* A file read from memory of exactly its size. */
static const struct gguf *open_at(uint8_t **data, struct bytes file)
{
	struct gguf *gguf = test_zeros(1, sizeof(*gguf));

	*data = bytes_copy(&file, file.size);
	must(gguf_read(*data, file.size, FILE_NAME, gguf, &err));
	test_later(close_gguf, gguf);
	return gguf;
}

static const struct gguf *open_good(struct bytes file)
{
	uint8_t *data;

	return open_at(&data, file);
}

static rosa_status parse(const uint8_t *data, size_t size, const char *name, void *read, rosa_error *err)
{
	return gguf_read(data, size, name, read, err);
}

static void check_refused(struct bytes file, const char *what, const char *words)
{
	weights_check_refused(file, what, words, parse, sizeof(struct gguf));
}

/* ---------------------------------------------------------------------------------------------------- good files -- */

static struct bytes good_file(unsigned version, uint32_t alignment)
{
	static const char *const words[] = {"one", "", "drei \xc3\xa9\n"};
	static const int64_t integers[] = {-1, 0, 7};
	static const double numbers[] = {0.5, -2};
	static const size_t matrix[] = {3, 256}, vector[] = {5}, cube[] = {2, 3, 32}, four[] = {2, 1, 3, 4};
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	uint64_t state = 1;

	weights_set_version(writer, version);
	weights_set_string(writer, "general.architecture", "llama");
	weights_set_strings(writer, "words", COUNT(words), words);
	weights_set_integers(writer, "integers", GGUF_INT16, COUNT(integers), integers);
	weights_set_numbers(writer, "numbers", GGUF_FLOAT32, COUNT(numbers), numbers);
	weights_set_integers(writer, "nothing", GGUF_UINT8, 0, NULL);
	weights_set_strings(writer, "no words", 0, NULL);
	if (alignment)
		weights_set_alignment(writer, alignment);
	for (int format = 0; format < FORMAT_COUNT; format++) {
		char name[32];

		snprintf(name, sizeof(name), "matrix.%s", format_info[format].name);
		weights_add_random(writer, name, (enum format)format, 2, matrix, &state, 0, 1);
	}
	weights_add_random(writer, "vector", FORMAT_F32, 1, vector, &state, 0, 1);
	weights_add_random(writer, "cube", FORMAT_Q8_0, 3, cube, &state, 0, 1);
	weights_add_random(writer, "four", FORMAT_F16, 4, four, &state, 0, 1);
	weights_add_random(writer, "number", FORMAT_F32, 0, NULL, &state, 0, 1);
	weights_add_random(writer,
			   "gr\xc3\xb6\xc3\x9f"
			   "e \xe2\x82\xac \xf0\x9f\x98\x80",
			   FORMAT_BF16, 1, vector, &state, 0, 1);
	return weights_finish(writer);
}

static void check_shape(const struct gguf *gguf, const char *name, enum format format, int dims, const size_t *shape)
{
	const struct tensor *tensor = tensors_find(&gguf->tensors, name);
	const struct format_info *info = &format_info[format];
	size_t numbers = 1;

	assert_non_null(tensor);
	assert_string_equal(tensor->name, name);
	assert_string_equal(tensor->file, FILE_NAME);
	assert_int_equal(tensor->format, format);
	assert_int_equal(tensor->dims, dims);
	for (int i = 0; i < dims; i++) {
		assert_int_equal(tensor->shape[i], shape[i]);
		numbers *= shape[i];
	}
	assert_int_equal(tensor_numbers(tensor), numbers);
	assert_int_equal(tensor->bytes, numbers / info->numbers * info->bytes);
}

TEST(reads_every_format)
{
	static const size_t matrix[] = {3, 256}, vector[] = {5}, cube[] = {2, 3, 32}, four[] = {2, 1, 3, 4};
	static const uint32_t alignments[] = {0, 8, 32, 64, 4096};

	for (unsigned version = 2; version <= 3; version++)
		for (size_t i = 0; i < COUNT(alignments); i++) {
			const size_t alignment = alignments[i] ? alignments[i] : 32;
			uint8_t *data;
			const struct gguf *gguf = open_at(&data, good_file(version, alignments[i]));

			assert_int_equal(gguf->version, version);
			assert_int_equal(gguf->tensors.count, FORMAT_COUNT + 5);
			for (int format = 0; format < FORMAT_COUNT; format++) {
				char name[32];

				snprintf(name, sizeof(name), "matrix.%s", format_info[format].name);
				check_shape(gguf, name, (enum format)format, 2, matrix);
			}
			check_shape(gguf, "vector", FORMAT_F32, 1, vector);
			check_shape(gguf, "cube", FORMAT_Q8_0, 3, cube);
			check_shape(gguf, "four", FORMAT_F16, 4, four);
			check_shape(gguf, "number", FORMAT_F32, 0, NULL);
			for (size_t k = 0; k < gguf->tensors.count; k++) {
				const struct tensor *tensor = &gguf->tensors.all[k];

				assert_int_equal(((const uint8_t *)tensor->data - data) % (ptrdiff_t)alignment, 0);
				assert_ptr_equal(tensors_find(&gguf->tensors, tensor->name), tensor);
			}
			assert_null(tensors_find(&gguf->tensors, "matrix"));
			assert_null(tensors_find(&gguf->tensors, ""));
		}
}

/* The bytes are those that were written. */
TEST(finds_the_bytes)
{
	static const float numbers[] = {1, -2.5f, 3, 0.125f, 1e30f, -0.0f};
	static const size_t shape[] = {2, 3};
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	const struct tensor *tensor;
	float got[6];

	weights_add_floats(writer, "b", FORMAT_F32, 2, shape, numbers);
	weights_add_floats(writer, "a", FORMAT_BF16, 2, shape, numbers);
	const struct gguf *gguf = open_good(weights_finish(writer));

	tensor = tensors_find(&gguf->tensors, "b");
	assert_memory_equal(tensor->data, numbers, sizeof(numbers));
	tensor = tensors_find(&gguf->tensors, "a");
	format_widen(tensor->format, tensor->data, 6, got);
	assert_memory_equal(got, numbers, 4 * sizeof(*numbers)); /* the fifth is rounded */
}

TEST(puts_shapes_into_words)
{
	static const struct {
		struct tensor tensor;
		const char *words;
	} cases[] = {
	    {{.dims = 0}, "[]"},
	    {{.dims = 1, .shape = {7}}, "[7]"},
	    {{.dims = 4, .shape = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX}},
	     "[18446744073709551615, 18446744073709551615, 18446744073709551615, 18446744073709551615]"},
	};
	char text[TENSOR_SHAPE_TEXT];

	for (size_t i = 0; i < COUNT(cases); i++)
		if (sizeof(size_t) == 8 || i < 2)
			assert_string_equal(tensor_shape_text(&cases[i].tensor, text), cases[i].words);
}

TEST(reads_files_without_tensors_or_metadata)
{

	const struct gguf *gguf = open_good(weights_finish(weights_new(WEIGHTS_GGUF)));

	assert_int_equal(gguf->tensors.count, 0);
	assert_int_equal(gguf->count, 0);
	assert_null(tensors_find(&gguf->tensors, "a"));
	assert_null(gguf_find(gguf, "a"));
}

/* ------------------------------------------------------------------------------------------------------ metadata -- */

static void check_integer(const struct gguf *gguf, const char *key, int64_t wanted)
{
	const struct gguf_entry *entry = gguf_find(gguf, key);
	struct gguf_text text;
	int64_t value = 0;

	assert_non_null(entry);
	assert_int_equal(entry->count, 1);
	assert_true(gguf_integer(entry, 0, &value));
	assert_int_equal(value, wanted);
	assert_false(gguf_integer(entry, 1, &value));
	assert_false(gguf_string(entry, 0, &text));
}

static void check_number(const struct gguf *gguf, const char *key, double wanted)
{
	double value = 0;

	assert_true(gguf_number(gguf_find(gguf, key), 0, &value));
	if (value != wanted)
		fail_msg("%s is %.17g, not %.17g", key, value, wanted);
}

static void check_text(const struct gguf_entry *entry, size_t i, const char *wanted)
{
	struct gguf_text text;

	assert_true(gguf_string(entry, i, &text));
	assert_int_equal(text.length, strlen(wanted));
	assert_memory_equal(text.at, wanted, text.length);
}

TEST(reads_every_type_of_value)
{
	static const struct {
		enum gguf_type type;
		int64_t least, most;
	} integers[] = {
	    {GGUF_UINT8, 0, 255},
	    {GGUF_INT8, -128, 127},
	    {GGUF_UINT16, 0, 65535},
	    {GGUF_INT16, -32768, 32767},
	    {GGUF_UINT32, 0, 4294967295},
	    {GGUF_INT32, -2147483647 - 1, 2147483647},
	    {GGUF_UINT64, 0, INT64_MAX},
	    {GGUF_INT64, INT64_MIN, INT64_MAX},
	    {GGUF_BOOL, 0, 1},
	};
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	char key[32];

	for (size_t i = 0; i < COUNT(integers); i++) {
		snprintf(key, sizeof(key), "%d.least", (int)integers[i].type);
		weights_set_integer(writer, key, integers[i].type, integers[i].least);
		snprintf(key, sizeof(key), "%d.most", (int)integers[i].type);
		weights_set_integer(writer, key, integers[i].type, integers[i].most);
	}
	const struct gguf *gguf = open_good(weights_finish(writer));

	assert_int_equal(gguf->count, 2 * COUNT(integers));
	for (size_t i = 0; i < COUNT(integers); i++) {
		snprintf(key, sizeof(key), "%d.least", (int)integers[i].type);
		check_integer(gguf, key, integers[i].least);
		if (integers[i].type != GGUF_BOOL)
			check_number(gguf, key, (double)integers[i].least);
		snprintf(key, sizeof(key), "%d.most", (int)integers[i].type);
		check_integer(gguf, key, integers[i].most);
	}
}

/* What is a number of one kind and what is none. */
TEST(converts_values)
{
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	struct gguf_text text;
	int64_t integer;
	double number;

	weights_set_integer(writer, "huge", GGUF_UINT64, -1);
	weights_set_number(writer, "whole", GGUF_FLOAT32, -100000);
	weights_set_number(writer, "fraction", GGUF_FLOAT32, 0.25);
	weights_set_number(writer, "double", GGUF_FLOAT64, 1e300);
	weights_set_integer(writer, "nan", GGUF_FLOAT64, INT64_C(0x7ff8000000000000));
	weights_set_integer(writer, "true", GGUF_BOOL, 1);
	weights_set_string(writer, "string", "7");
	const struct gguf *gguf = open_good(weights_finish(writer));

	assert_false(gguf_integer(gguf_find(gguf, "huge"), 0, &integer));
	check_number(gguf, "huge", 18446744073709551615.0);
	check_integer(gguf, "whole", -100000);
	check_number(gguf, "whole", -100000);
	assert_false(gguf_integer(gguf_find(gguf, "fraction"), 0, &integer));
	check_number(gguf, "fraction", 0.25);
	assert_false(gguf_integer(gguf_find(gguf, "double"), 0, &integer));
	check_number(gguf, "double", 1e300);
	assert_false(gguf_integer(gguf_find(gguf, "nan"), 0, &integer));
	assert_false(gguf_number(gguf_find(gguf, "true"), 0, &number));
	assert_false(gguf_integer(gguf_find(gguf, "string"), 0, &integer));
	assert_false(gguf_number(gguf_find(gguf, "string"), 0, &number));
	check_text(gguf_find(gguf, "string"), 0, "7");
	assert_false(gguf_string(gguf_find(gguf, "string"), 1, &text));
	assert_null(gguf_find(gguf, "missing"));
	assert_false(gguf_integer(NULL, 0, &integer));
	assert_false(gguf_number(NULL, 0, &number));
	assert_false(gguf_string(NULL, 0, &text));
}

TEST(reads_arrays)
{
	const struct gguf_entry *entry;
	int64_t integer;
	double number;

	const struct gguf *gguf = open_good(good_file(3, 0));

	entry = gguf_find(gguf, "words");
	assert_non_null(entry);
	assert_int_equal(entry->type, GGUF_ARRAY);
	assert_int_equal(entry->element, GGUF_STRING);
	assert_int_equal(entry->count, 3);
	check_text(entry, 0, "one");
	check_text(entry, 1, "");
	check_text(entry, 2, "drei \xc3\xa9\n");
	entry = gguf_find(gguf, "integers");
	assert_int_equal(entry->count, 3);
	assert_true(gguf_integer(entry, 0, &integer));
	assert_int_equal(integer, -1);
	assert_true(gguf_integer(entry, 2, &integer));
	assert_int_equal(integer, 7);
	assert_false(gguf_integer(entry, 3, &integer));
	assert_true(gguf_number(gguf_find(gguf, "numbers"), 1, &number));
	assert_true(number == -2);
	assert_int_equal(gguf_find(gguf, "nothing")->count, 0);
	assert_false(gguf_integer(gguf_find(gguf, "nothing"), 0, &integer));
	assert_int_equal(gguf_find(gguf, "no words")->count, 0);
}

/* ------------------------------------------------------------------------------------------------------- refused -- */

static struct bytes begin(uint32_t version, uint64_t tensors, uint64_t entries)
{
	struct bytes file = {NULL, 0, 0};

	bytes_put(&file, "GGUF", 4);
	bytes_number(&file, version, 4);
	bytes_number(&file, tensors, 8);
	bytes_number(&file, entries, 8);
	return file;
}

TEST(refuses_other_files)
{
	struct bytes file = {NULL, 0, 0};

	check_refused(file, "nothing", "not a GGUF file");
	bytes_put(&file, "GGU", 3);
	check_refused(file, "three bytes", "not a GGUF file");
	file = (struct bytes){NULL, 0, 0};
	bytes_put(&file, "version https://git", 19);
	check_refused(file, "a pointer to a file", "not a GGUF file");
	check_refused(begin(1, 0, 0), "version 1", "GGUF version 1;");
	check_refused(begin(4, 0, 0), "version 4", "GGUF version 4;");
	check_refused(begin(0, 0, 0), "version 0", "GGUF version 0;");
	check_refused(begin(0x03000000, 0, 0), "big-endian", "big-endian GGUF file (version 3)");
	check_refused(begin(0x02000000, 0, 0), "big-endian", "big-endian GGUF file (version 2)");
}

TEST(refuses_counts_that_cannot_be)
{
	static const uint64_t counts[] = {1, 1000, UINT64_C(1) << 32, UINT64_C(1) << 60, UINT64_MAX};

	for (size_t i = 0; i < COUNT(counts); i++) {
		check_refused(begin(3, counts[i], 0), "tensors", "tensors are more than");
		check_refused(begin(3, 0, counts[i]), "entries", "metadata entries are more than");
	}
}

/* An entry: its key, and then what `rest` numbers say, as pairs of number and width, ended by a width of 0. */
struct odd_entry {
	const char *what, *words, *key;
	struct {
		uint64_t number;
		size_t width;
	} rest[6];
};

static const struct odd_entry odd_entries[] = {
    {"a type beyond the last", "metadata k: a type of value that is not known (13)", "k", {{13, 4}, {0, 8}}},
    {"a huge type", "(4294967295)", "k", {{UINT32_MAX, 4}, {0, 8}}},
    {"an array of arrays", "metadata k: an array of arrays", "k", {{9, 4}, {9, 4}, {1, 8}, {4, 4}, {0, 8}}},
    {"an empty array of arrays", "metadata k: an array of arrays", "k", {{9, 4}, {9, 4}, {0, 8}}},
    {"an array of an unknown type", "metadata k: a type of value", "k", {{9, 4}, {77, 4}, {1, 8}, {4, 4}, {0, 8}}},
    {"an array that is too long", "metadata k: an array of more elements", "k", {{9, 4}, {0, 4}, {9, 8}, {0, 8}}},
    {"an array whose size overflows", "metadata k: an array of more elements", "k",
     LIST({9, 4}, {10, 4}, {UINT64_C(1) << 61, 8}, {0, 8})},
    {"very many strings", "metadata k: an array of more elements", "k",
     LIST({9, 4}, {8, 4}, {UINT64_C(1) << 60, 8}, {0, 8})},
    {"two strings of which one is there", "cut short", "k", {{9, 4}, {8, 4}, {2, 8}, {8, 8}, {0, 8}}},
    {"a string that is too long", "the metadata needs 9 bytes", "k", {{8, 4}, {9, 8}, {0, 8}}},
    {"a string of any length", "the metadata needs 18446744073709551615 bytes", "k", {{8, 4}, {UINT64_MAX, 8}, {0, 8}}},
    {"a bool of 2", "metadata k: a bool that is neither", "k", {{7, 4}, {2, 1}}},
    {"a bool of 255 in an array", "metadata k: a bool", "k", {{9, 4}, {7, 4}, {3, 8}, {0xff0001, 3}}},
    {"an empty key", "is empty", "", {{0, 4}, {0, 8}}},
    {"a key with a control character", "control characters", "a\nb", {{0, 4}, {0, 8}}},
    {"a key with an escape", "control characters", "\x1b[2J", {{0, 4}, {0, 8}}},
    {"a key with a C1 control character",
     "control characters",
     "\xc2\x9b"
     "2J",
     {{0, 4}, {0, 8}}},
    {"a key with DEL", "control characters", "\x7f", {{0, 4}, {0, 8}}},
    {"a key with a stray byte", "no UTF-8", "a\x80", {{0, 4}, {0, 8}}},
    {"a key that ends within a character", "no UTF-8", "a\xe2\x82", {{0, 4}, {0, 8}}},
    {"a key with a long form", "no UTF-8", "\xc0\xaf", {{0, 4}, {0, 8}}},
    {"a key with a long form of three", "no UTF-8", "\xe0\x80\xaf", {{0, 4}, {0, 8}}},
    {"a key with a long form of four", "no UTF-8", "\xf0\x80\x80\xaf", {{0, 4}, {0, 8}}},
    {"a key with a surrogate", "no UTF-8", "\xed\xa0\x80", {{0, 4}, {0, 8}}},
    {"a key beyond Unicode", "no UTF-8", "\xf4\x90\x80\x80", {{0, 4}, {0, 8}}},
    {"a key with 0xff", "no UTF-8", "\xff", {{0, 4}, {0, 8}}},
};

TEST(refuses_odd_metadata)
{
	for (size_t i = 0; i < COUNT(odd_entries); i++) {
		struct bytes file = begin(3, 0, 1);

		bytes_text(&file, odd_entries[i].key);
		for (size_t k = 0; k < COUNT(odd_entries[i].rest) && odd_entries[i].rest[k].width; k++)
			bytes_number(&file, odd_entries[i].rest[k].number, odd_entries[i].rest[k].width);
		check_refused(file, odd_entries[i].what, odd_entries[i].words);
	}
}

TEST(refuses_keys_that_occur_twice)
{
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	struct bytes file = begin(3, 0, 1);

	weights_set_integer(writer, "same", GGUF_UINT8, 1);
	weights_set_integer(writer, "other", GGUF_UINT8, 1);
	weights_set_integer(writer, "same", GGUF_UINT8, 1);
	check_refused(weights_finish(writer), "a key twice", "metadata same is there twice");
	bytes_number(&file, 3, 8);
	bytes_put(&file, "a\0b", 3);
	bytes_number(&file, GGUF_UINT8, 4);
	bytes_number(&file, 0, 8);
	check_refused(file, "a key with NUL", "control characters");
}

/* Up to two tensors: in the file's own terms. */
struct odd_tensors {
	const char *what, *words;
	int64_t alignment; /* 0: not said */
	size_t data;       /* bytes after the list and the padding */
	struct {
		const char *name;
		uint32_t dims;
		uint64_t sizes[5];
		uint32_t type;
		uint64_t offset;
	} tensors[2];
};

static const struct odd_tensors odd_tensors[] = {
    {"data beyond the end", "16 bytes at", 0, 15, {{"a", 1, {4}, 0, 0}}},
    {"an offset beyond the end", "bytes at", 0, 64, {{"a", 1, {4}, 0, 64}}},
    {"an offset far beyond", "bytes at", 0, 64, {{"a", 1, {4}, 0, UINT64_C(1) << 62}}},
    {"an offset that overflows", "larger than any file", 0, 64, {{"a", 1, {4}, 0, UINT64_MAX - 31}}},
    {"an offset off the alignment", "offset 16 is no multiple of the file's alignment, 32", 0, 64,
     LIST({"a", 1, {4}, 0, 16})},
    {"an offset off a wide alignment", "alignment, 64", 64, 256, {{"a", 1, {4}, 0, 32}}},
    {"an alignment of 0", "general.alignment is 0", -1, 64, {{"a", 1, {4}, 0, 0}}},
    {"an alignment of 24", "general.alignment is 24", 24, 64, {{"a", 1, {4}, 0, 0}}},
    {"an alignment of 2^31", "general.alignment is 2147483648", INT64_C(1) << 31, 64, {{"a", 1, {4}, 0, 0}}},
    {"an alignment that is too fine", "tensor a: F32 data at byte", 2, 64, {{"a", 1, {4}, 0, 0}}},
    {"a size of 0", "tensor a: a size in its shape [4, 0] is 0", 0, 64, {{"a", 2, {0, 4}, 0, 0}}},
    {"a first size of 0", "is 0", 0, 64, {{"a", 2, {4, 0}, 0, 0}}},
    {"five dimensions", "tensor a: 5 dimensions", 0, 64, {{"a", 5, {1, 1, 1, 1, 1}, 0, 0}}},
    {"very many dimensions", "4294967295 dimensions", 0, 64, {{"a", UINT32_MAX, {1, 1, 1, 1, 1}, 0, 0}}},
    {"a shape that overflows", "larger than any file", 0, 64, {{"a", 2, {UINT64_C(1) << 32, UINT64_C(1) << 32}, 0, 0}}},
    {"a shape that is 0 after overflow", "larger than any file", 0, 64,
     LIST({"a", 4, {UINT64_C(1) << 32, UINT64_C(1) << 32, 2, 2}, 0, 0})},
    {"bytes that overflow", "larger than any file", 0, 64, {{"a", 1, {UINT64_C(1) << 62}, 0, 0}}},
    {"numbers that overflow", "larger than any file", 0, 64, {{"a", 2, {256, UINT64_C(1) << 56}, 12, 0}}},
    {"a long row", "bytes at", 0, 64, {{"a", 1, {UINT64_C(1) << 40}, 0, 0}}},
    {"a row of no whole blocks", "tensor a: rows of 33 numbers; Q8_0 has blocks of 32", 0, 64, {{"a", 1, {33}, 8, 0}}},
    {"a row that only all rows make whole", "rows of 16 numbers; Q4_0", 0, 64, {{"a", 2, {16, 2}, 2, 0}}},
    {"a single number of a block format", "rows of 1 numbers; Q4_1", 0, 64, {{"a", 0, {0}, 3, 0}}},
    {"a row of half a large block", "rows of 128 numbers; Q4_K", 0, 256, {{"a", 1, {128}, 12, 0}}},
    {"the same for Q6_K", "rows of 32 numbers; Q6_K has blocks of 256", 0, 256, {{"a", 1, {32}, 14, 0}}},
    {"Q3_K", "tensor a: type Q3_K is not supported", 0, 256, {{"a", 1, {256}, 11, 0}}},
    {"IQ4_NL", "type IQ4_NL", 0, 256, {{"a", 1, {32}, 20, 0}}},
    {"I32", "type I32", 0, 256, {{"a", 1, {32}, 26, 0}}},
    {"MXFP4", "type MXFP4", 0, 256, {{"a", 1, {32}, 39, 0}}},
    {"a type without a name", "type 1000 is not known", 0, 256, {{"a", 1, {32}, 1000, 0}}},
    {"the last type there can be", "type 4294967295 is not known", 0, 256, {{"a", 1, {32}, UINT32_MAX, 0}}},
    {"one of two not supported", "tensor b: type Q2_K", 0, 256, {{"a", 1, {4}, 0, 0}, {"b", 1, {256}, 10, 32}}},
    {"the same name twice", "tensor a is there twice", 0, 64, {{"a", 1, {4}, 0, 0}, {"a", 1, {4}, 0, 32}}},
    {"the same place twice", "overlap", 0, 64, {{"a", 1, {4}, 0, 0}, {"b", 1, {4}, 0, 0}}},
    {"places that overlap", "tensors b and a overlap", 0, 64, {{"a", 1, {4}, 0, 32}, {"b", 1, {9}, 0, 0}}},
    {"an empty name", "is empty", 0, 64, {{"", 1, {4}, 0, 0}}},
    {"a name with an escape", "control characters", 0, 64, {{"\x1b[2J", 1, {4}, 0, 0}}},
    {"a name that is no UTF-8", "no UTF-8", 0, 64, {{"a\xff", 1, {4}, 0, 0}}},
};

static struct bytes make_odd(const struct odd_tensors *odd)
{
	const size_t count = odd->tensors[1].name ? 2 : 1;
	const uint64_t alignment = odd->alignment < 0 ? 0 : (uint64_t)odd->alignment;
	struct bytes file = begin(3, count, odd->alignment != 0);

	if (odd->alignment) {
		bytes_text(&file, "general.alignment");
		bytes_number(&file, GGUF_UINT32, 4);
		bytes_number(&file, alignment, 4);
	}
	for (size_t i = 0; i < count; i++) {
		bytes_text(&file, odd->tensors[i].name);
		bytes_number(&file, odd->tensors[i].dims, 4);
		for (uint32_t d = 0; d < odd->tensors[i].dims && d < 5; d++)
			bytes_number(&file, odd->tensors[i].sizes[d], 8);
		bytes_number(&file, odd->tensors[i].type, 4);
		bytes_number(&file, odd->tensors[i].offset, 8);
	}
	bytes_fill(&file, alignment && alignment <= 4096 ? alignment : 32);
	for (size_t i = 0; i < odd->data; i++)
		bytes_number(&file, i, 1);
	return file;
}

TEST(refuses_odd_tensors)
{
	for (size_t i = 0; i < COUNT(odd_tensors); i++)
		check_refused(make_odd(&odd_tensors[i]), odd_tensors[i].what, odd_tensors[i].words);
}

/* The descriptions above are good but for what is wrong with them. */
TEST(accepts_what_is_only_near_to_odd)
{
	static const struct odd_tensors fine[] = {
	    {"neighbours", "", 0, 48, {{"a", 1, {4}, 0, 32}, {"b", 1, {8}, 0, 0}}},
	    {"a fine alignment", "", 4, 64, {{"a", 1, {4}, 0, 4}}},
	    {"a single number", "", 0, 4, {{"a", 0, {0}, 0, 0}}},
	    {"a gap", "", 0, 1024, {{"a", 1, {4}, 0, 96}}},
	    {"ones", "", 0, 4, {{"a", 4, {1, 1, 1, 1}, 0, 0}}},
	};

	for (size_t i = 0; i < COUNT(fine); i++) {

		const struct gguf *gguf = open_good(make_odd(&fine[i]));

		assert_non_null(tensors_find(&gguf->tensors, "a"));
	}
}

TEST(refuses_an_alignment_that_is_no_integer)
{
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	static const int64_t list[] = {32};

	weights_set_string(writer, "general.alignment", "32");
	check_refused(weights_finish(writer), "a string", "general.alignment is no integer");
	writer = weights_new(WEIGHTS_GGUF);
	weights_set_integers(writer, "general.alignment", GGUF_UINT32, 1, list);
	check_refused(weights_finish(writer), "an array", "general.alignment is no integer");
}

/* A name as long as the message must not hide what is wrong. */
TEST(names_of_any_length_leave_room_for_the_reason)
{
	struct odd_tensors odd = {"a long name", "type Q3_K is not supported", 0, 256, {{NULL, 1, {256}, 11, 0}}};
	char name[1001];

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	odd.tensors[0].name = name;
	check_refused(make_odd(&odd), odd.what, odd.words);
}

/* ----------------------------------------------------------------------------------------------- cut and altered -- */

/* Whatever is accepted lies inside the file. */
static void check_inside(void *read, const uint8_t *data, size_t size)
{
	struct gguf *gguf = read;

	for (size_t i = 0; i < gguf->tensors.count; i++) {
		const struct tensor *tensor = &gguf->tensors.all[i];
		const uint8_t *at = tensor->data;

		assert_true(at >= data && tensor->bytes <= (size_t)(data + size - at));
		assert_true(tensor->bytes > 0 && tensor_numbers(tensor) > 0);
	}
	gguf_free(gguf);
}

TEST(survives_damage)
{
	weights_check_damage(good_file(3, 0), parse, sizeof(struct gguf), check_inside);
}

/* -------------------------------------------------------------------------------------------------- joined lists -- */

TEST(joins_lists)
{
	const struct tensor first[] = {{.name = "a", .file = "1"}, {.name = "c", .file = "1"}};
	const struct tensor second[] = {{.name = "b", .file = "2"}, {.name = "d", .file = "2"}};
	const struct tensors one = {(struct tensor *)first, 2}, two = {(struct tensor *)second, 2}, none = {NULL, 0};
	const struct tensors *const parts[] = {&two, &none, &one}, *const twice[] = {&one, &two, &one};
	struct tensors joined;

	must(tensors_join(parts, COUNT(parts), &joined, &err));
	assert_int_equal(joined.count, 4);
	assert_string_equal(tensors_find(&joined, "a")->file, "1");
	assert_string_equal(tensors_find(&joined, "d")->file, "2");
	assert_string_equal(joined.all[1].name, "b");
	tensors_free(&joined);
	must_fail(tensors_join(twice, COUNT(twice), &joined, &err), ROSA_EFORMAT, "twice");
	assert_null(joined.all);
	must(tensors_join(NULL, 0, &joined, &err));
	assert_int_equal(joined.count, 0);
	tensors_free(&joined);
}

TEST(names_both_files_of_a_tensor_that_two_have)
{
	const struct tensor first[] = {{.name = "w", .file = "one.safetensors"}},
			    second[] = {{.name = "w", .file = "two.safetensors"}};
	const struct tensors one = {(struct tensor *)first, 1}, two = {(struct tensor *)second, 1};
	const struct tensors *const parts[] = {&one, &two};
	struct tensors joined;

	must_fail(tensors_join(parts, COUNT(parts), &joined, &err), ROSA_EFORMAT, "one.safetensors");
	must_say("two.safetensors");
	must_say("tensor w");
}
