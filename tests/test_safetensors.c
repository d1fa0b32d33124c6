/*
 * safetensors files: what is read, what is refused and why.
 *
 * A bad file is a header in plain sight and a number of bytes after it, so that each shows the one thing wrong with it.
 * Without a JSON reader in the build there is one thing to test: that this is said.
 */
#include "model/safetensors.h"

#include "support_test.h"
#include "support_trial.h"
#include "support_weights.h"

#define FILE_NAME "some.safetensors"

#ifdef ROSATUNE_JANSSON

static struct bytes make_as(const char *header, size_t length, size_t data)
{
	struct bytes file = {NULL, 0, 0};

	bytes_number(&file, length, 8);
	bytes_put(&file, header, strlen(header));
	for (size_t i = 0; i < data; i++)
		bytes_number(&file, i, 1);
	return file;
}

/* The header filled up with spaces, so that what follows is aligned. */
static struct bytes make(const char *header, size_t data)
{
	char padded[2048];

	snprintf(padded, sizeof(padded), "%s%*s", header, (int)(-strlen(header) % 8), "");
	return make_as(padded, strlen(padded), data);
}

static rosa_status parse(const uint8_t *data, size_t size, const char *name, void *read, rosa_error *err)
{
	return safetensors_read(data, size, name, read, err);
}

static void check_refused(struct bytes file, const char *what, const char *words)
{
	weights_check_refused(file, what, words, parse, sizeof(struct safetensors));
}

/* ---------------------------------------------------------------------------------------------------- good files -- */

static void close_file(void *file)
{
	safetensors_free(file);
	safetensors_free(file); /* twice does no harm */
}

static const struct safetensors *open_good(struct bytes bytes)
{
	struct safetensors *file = test_zeros(1, sizeof(*file));

	must(safetensors_read(bytes_copy(&bytes, bytes.size), bytes.size, FILE_NAME, file, &err));
	test_later(close_file, file);
	return file;
}

static const float numbers[] = {1, -2.5f, 3, 0.125f, -0.0f, 64};

static struct bytes good_file(void)
{
	static const size_t matrix[] = {2, 3}, four[] = {1, 2, 1, 3};
	struct weights_writer *writer = weights_new(WEIGHTS_SAFETENSORS);

	weights_set_string(writer, "format", "pt");
	weights_set_string(writer, "a \"quoted\" key", "a\nvalue \xc3\xa9");
	weights_add_floats(writer, "wide", FORMAT_F32, 2, matrix, numbers);
	weights_add_floats(writer, "number", FORMAT_F32, 0, NULL, numbers);
	weights_add_floats(writer, "half", FORMAT_F16, 1, (const size_t[]){6}, numbers);
	weights_add_floats(writer, "brain", FORMAT_BF16, 4, four, numbers);
	return weights_finish(writer);
}

static void check_tensor(const struct safetensors *file, const char *name, enum format format, int dims)
{
	const struct tensor *tensor = tensors_find(&file->tensors, name);
	float got[6];

	assert_non_null(tensor);
	assert_string_equal(tensor->name, name);
	assert_string_equal(tensor->file, FILE_NAME);
	assert_int_equal(tensor->format, format);
	assert_int_equal(tensor->dims, dims);
	assert_int_equal(tensor->bytes, tensor_numbers(tensor) * format_info[format].bytes);
	format_widen(format, tensor->data, tensor_numbers(tensor), got);
	assert_memory_equal(got, numbers, tensor_numbers(tensor) * sizeof(*got));
}

TEST(reads_every_format)
{
	const struct safetensors *file = open_good(good_file());

	assert_int_equal(file->tensors.count, 4);
	check_tensor(file, "wide", FORMAT_F32, 2);
	check_tensor(file, "number", FORMAT_F32, 0);
	check_tensor(file, "half", FORMAT_F16, 1);
	check_tensor(file, "brain", FORMAT_BF16, 4);
	assert_int_equal(tensors_find(&file->tensors, "wide")->shape[0], 2);
	assert_int_equal(tensors_find(&file->tensors, "wide")->shape[1], 3);
	assert_null(tensors_find(&file->tensors, "__metadata__"));
	assert_string_equal(file->tensors.all[0].name, "brain");
}

TEST(reads_metadata)
{
	const struct safetensors *file = open_good(good_file());

	assert_string_equal(safetensors_metadata(file, "format"), "pt");
	assert_string_equal(safetensors_metadata(file, "a \"quoted\" key"), "a\nvalue \xc3\xa9");
	assert_null(safetensors_metadata(file, "wide"));
	file = open_good(make("{}", 0));
	assert_int_equal(file->tensors.count, 0);
	assert_null(safetensors_metadata(file, "format"));
}

#define A16 "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}"

TEST(accepts_other_ways_of_writing)
{
	static const struct {
		const char *header;
		size_t data;
	} cases[] = {
	    {"{" A16 "}", 16},
	    {"{ \"a\" : { \"shape\" : [ 4 ],\n\"data_offsets\" : [ 0 , 16 ], \"dtype\" : \"F32\" } }\n", 16},
	    {"{" A16 ",\"__metadata__\":{}}", 16},
	    {"{\"__metadata__\":null," A16 "}", 16},
	    {"{\"b\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[16,18]}," A16 "}", 18},
	    {"{\"\\u0061\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8],\"more\":1}}", 8},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct safetensors *file = open_good(make(cases[i].header, cases[i].data));

		assert_non_null(tensors_find(&file->tensors, "a"));
	}
}

/* ------------------------------------------------------------------------------------------------------- refused -- */

/* One tensor `a` with these three values, and 16 bytes after the header. */
#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct bad {
	const char *header, *words;
} bads[] = {
    {ONE("\"I64\"", "[2]", "[0,16]"), "tensor a: type I64 is not supported; F32, F16 and BF16 are"},
    {ONE("\"BOOL\"", "[16]", "[0,16]"), "type BOOL"},
    {ONE("\"f32\"", "[4]", "[0,16]"), "type f32"},
    {ONE("\"Q8_0\"", "[4]", "[0,16]"), "type Q8_0"},
    {ONE("\"\"", "[4]", "[0,16]"), "type  is not supported"},
    {ONE("32", "[4]", "[0,16]"), "a.dtype: is a number; it must be a string"},
    {ONE("null", "[4]", "[0,16]"), "a.dtype: is null"},
    {ONE("\"F32\"", "4", "[0,16]"), "a.shape: is a number; it must be an array"},
    {ONE("\"F32\"", "[4.5]", "[0,16]"), "a.shape[0]: is 4.5"},
    {ONE("\"F32\"", "[-4]", "[0,16]"), "a.shape[0]: is -4"},
    {ONE("\"F32\"", "[\"4\"]", "[0,16]"), "a.shape[0]: is a string"},
    {ONE("\"F32\"", "[4,0]", "[0,16]"), "tensor a: a size in its shape [4, 0] is 0"},
    {ONE("\"F32\"", "[0]", "[0,0]"), "is 0"},
    {ONE("\"F32\"", "[1,1,1,1,4]", "[0,16]"), "a.shape: 5 dimensions"},
    {ONE("\"F32\"", "[3]", "[0,16]"), "from 0 to 16, but its shape and type make 12 bytes"},
    {ONE("\"F16\"", "[4]", "[0,16]"), "make 8 bytes"},
    {ONE("\"F32\"", "[4294967296,4294967296]", "[0,16]"), "larger than any file"},
    {ONE("\"F32\"", "[4611686018427387904]", "[0,16]"), "larger than any file"},
    {ONE("\"F32\"", "[9223372036854775808]", "[0,16]"), "a.shape[0]: is 9.22337e+18"},
    {ONE("\"F32\"", "[99999999999999999999999]", "[0,16]"), "a.shape[0]: is 1e+23"},
    {ONE("\"F32\"", "[4]", "[0]"), "a.data_offsets: 1 numbers"},
    {ONE("\"F32\"", "[4]", "[0,16,32]"), "a.data_offsets: 3 numbers"},
    {ONE("\"F32\"", "[4]", "[16,0]"), "from 16 to 0"},
    {ONE("\"F32\"", "[4]", "[-16,0]"), "a.data_offsets[0]: is -16"},
    {ONE("\"F32\"", "[4]", "[0,-16]"), "a.data_offsets[1]: is -16"},
    {ONE("\"F32\"", "[4]", "{}"), "a.data_offsets: is an object"},
    {ONE("\"F32\"", "[4]", "[16,32]"), "but the file has"},
    {ONE("\"F32\"", "[4]", "[9223372036854775791,9223372036854775807]"), "but the file has"},
    {ONE("\"F32\"", "[5]", "[0,20]"), "but the file has"},
    {ONE("\"F32\"", "[3]", "[0,12]"), "4 bytes at its end belong to no tensor"},
    {ONE("\"F32\"", "[3]", "[4,16]"), "4 bytes before tensor a belong to no tensor"},
    {ONE("\"F32\"", "[3]", "[2,14]"), "tensor a: F32 data at byte"},
    {"{}", "16 bytes at its end belong to no tensor"},
    {"{\"__metadata__\":{\"a\":\"b\"}}", "16 bytes at its end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}",
     "4 bytes before tensor b"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
     "tensors a and b overlap"},
    {"{" A16 ",\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "overlap"},
    {"{" A16 "," A16 "}", "line 1"},
    {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "a.dtype: is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "a.shape: is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", "a.data_offsets: is missing"},
    {"{\"a\":[]}", "a: is an array; it must be an object"},
    {"{\"a\":null}", "a: is null; it must be an object"},
    {"{\"\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "the name of tensor 0 is empty"},
    {"{\"\\u001b[2J\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "control characters"},
    {"{\"\\u009b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "control characters"},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "line 1"},
    {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "line 1"},
    {"{" A16 ",\"__metadata__\":[]}", "__metadata__: is an array"},
    {"{" A16 ",\"__metadata__\":{\"epoch\":3}}", "__metadata__.epoch: is a number; it must be a string"},
    {"{" A16 ",\"__metadata__\":{\"epoch\":\"\\u0000\"}}", "__metadata__.epoch: has a NUL"},
    {"{" A16, "line 1"},
    {"{" A16 "} x", "line 1"},
    {"{" A16 ",}", "line 1"},
    {"[" A16 "]", "does not begin with '{'"},
    {" {" A16 "}", "does not begin with '{'"},
};

TEST(refuses_headers)
{
	for (size_t i = 0; i < COUNT(bads); i++)
		check_refused(make(bads[i].header, 16), bads[i].header, bads[i].words);
}

TEST(refuses_lengths)
{
	check_refused((struct bytes){NULL, 0, 0}, "nothing", "too few");
	check_refused(make_as("", 0, 0), "a length alone", "too few");
	check_refused(make_as("{}", 3, 0), "one byte more than there is", "a header of 3 bytes");
	check_refused(make_as("{}", (size_t)1 << 40, 0), "a long header", "a header of 1099511627776 bytes");
	check_refused(make_as("{}", SIZE_MAX, 0), "the longest header", "a header of 18446744073709551615 bytes");
	check_refused(make_as("{}", 1, 0), "half an object", "line 1");
	check_refused(make_as("{}", 0, 0), "an empty header", "line");
}

/* Data that would not be aligned is refused and not read byte by byte. */
TEST(refuses_headers_of_odd_length)
{
	static const char header[] = "{" A16 "} ";

	check_refused(make_as(header, strlen(header) - (strlen(header) % 2 == 0), 16), "an odd length",
		      "save the file again");
}

/* ----------------------------------------------------------------------------------------------- cut and altered -- */

static void check_inside(void *read, const uint8_t *data, size_t size)
{
	const struct safetensors *file = read;

	for (size_t k = 0; k < file->tensors.count; k++)
		assert_true((const uint8_t *)file->tensors.all[k].data + file->tensors.all[k].bytes <= data + size);
	safetensors_free(read);
}

TEST(survives_damage)
{
	weights_check_damage(good_file(), parse, sizeof(struct safetensors), check_inside);
}

#else

TEST(names_the_missing_library)
{
	struct bytes file = weights_finish(weights_new(WEIGHTS_SAFETENSORS));
	struct safetensors got;

	must_fail(safetensors_read(file.data, file.size, FILE_NAME, &got, &err), ROSA_EINVAL, "libjansson-dev");
}

#endif
