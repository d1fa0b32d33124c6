/*
 * NumPy files: what is accepted, what is refused and why, and that what is written can be read.
 *
 * Headers are built from text, as any program might write them, so that each test shows the one thing that is wrong.
 */
#include "cli/npy.h"
#include "support_folder.h"
#include "support_test.h"

/* A file in memory: allocated exactly, so that a sanitizer sees a read beyond its end. */
struct image {
	uint8_t *data;
	size_t size;
};

static struct image make(int version, const char *header, const void *elements, size_t bytes)
{
	size_t prefix = version == 1 ? 10 : 12, length = strlen(header);
	struct image image = {NULL, prefix + length + bytes};

	image.data = test_alloc(image.size);
	memcpy(image.data, "\x93NUMPY", 6);
	image.data[6] = (uint8_t)version;
	image.data[7] = 0;
	for (size_t i = 8; i < prefix; i++)
		image.data[i] = (uint8_t)(length >> 8 * (i - 8));
	memcpy(image.data + prefix, header, length);
	if (bytes)
		memcpy(image.data + prefix + length, elements, bytes);
	return image;
}

static const uint8_t six[6] = {1, 0, 2, 0, 3, 1};

#define U1 "{'descr': '|u1', 'fortran_order': False, 'shape': (6,), }"
#define U2 "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }"

/* ------------------------------------------------------------------------------------------------------ accepted -- */

struct good {
	int version;
	const char *header;
	int dims;
	size_t routes, steps;
	uint32_t symbols[6];
};

static const struct good goods[] = {
    {1, U1 "\n", 1, 1, 6, {1, 0, 2, 0, 3, 1}},
    {1, U2, 1, 1, 3, {1, 2, 259}},
    {2, U2 "   \n", 1, 1, 3, {1, 2, 259}},
    {3, U2, 1, 1, 3, {1, 2, 259}},
    {1, "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }", 2, 2, 3, {1, 0, 2, 0, 3, 1}},
    {1, "{'shape':(3,2),\"descr\":\"u1\",'fortran_order':False}", 2, 3, 2, {1, 0, 2, 0, 3, 1}},
    {1, "{'descr': '>u1', 'fortran_order': False, 'shape': (6L,), }", 1, 1, 6, {1, 0, 2, 0, 3, 1}},
    {1, "{'descr': '|u2', 'fortran_order': False, 'shape': (3, 1), }", 2, 3, 1, {1, 2, 259}},
    {1, "{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }", 1, 1, 3, {1, 2, 259}},
};

TEST(accepts)
{
	for (size_t i = 0; i < COUNT(goods); i++) {
		const struct good *good = &goods[i];
		struct image image = make(good->version, good->header, six, sizeof(six));
		struct npy_rows symbols;
		rosa_error err = {0};

		if (!npy_read(image.data, image.size, NPY_SYMBOLS, &symbols, &err))
			fail_msg("%s: %s", good->header, err.message);
		assert_int_equal(symbols.dims, good->dims);
		assert_int_equal(symbols.rows, good->routes);
		assert_int_equal(symbols.steps, good->steps);
		assert_memory_equal(symbols.values, good->symbols, good->routes * good->steps * sizeof(uint32_t));
		free(symbols.values);
	}
}

/* ------------------------------------------------------------------------------------------------------- refused -- */

/* A header and a word that the reason must contain. */
static const struct bad {
	const char *header, *reason;
} bads[] = {
    {"{'descr': '>u2', 'fortran_order': False, 'shape': (3,), }", "big endian"},
    {"{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }", "'i2'"},
    {"{'descr': '<u6', 'fortran_order': False, 'shape': (1,), }", "'u6'"},
    {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }", "uint8, uint16 or uint32"},
    {"{'descr': '|b1', 'fortran_order': False, 'shape': (6,), }", "uint8, uint16 or uint32"},
    {"{'descr': '', 'fortran_order': False, 'shape': (6,), }", "'descr'"},
    {"{'descr': '<', 'fortran_order': False, 'shape': (6,), }", "'descr'"},
    {"{'descr': '|u0', 'fortran_order': False, 'shape': (6,), }", "'descr'"},
    {"{'descr': '|u1x', 'fortran_order': False, 'shape': (6,), }", "'descr'"},
    {"{'descr': '<u99999999999999999999', 'fortran_order': False, 'shape': (6,), }", "'descr'"},
    {"{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (6,), }", "'descr'"},
    {"{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", "'fortran_order'"},
    {"{'descr': '|u1', 'fortran_order': 0, 'shape': (6,), }", "'fortran_order'"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }", "one array per file"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }", "cut short"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (6), }", "'shape'"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': 6, }", "'shape'"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (-6,), }", "'shape'"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (6, 1, 1), }", "3 dimensions"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (6, 1, 1, 1, 1), }", "'shape'"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (2 3), }", "'shape'"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,), }", "'shape'"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "'shape'"},
    {"{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775811,), }", "'shape'"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (18446744073709551615,), }", "cut short"},
    {"{'descr': '|u1', 'shape': (6,), }", "'fortran_order' is missing"},
    {"{'fortran_order': False, 'shape': (6,), }", "'descr' is missing"},
    {"{'descr': '|u1', 'fortran_order': False}", "'shape' is missing"},
    {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (6,), }", "twice"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (6,), 'more': 1}", "'more'"},
    {"{'descr': '|u1' 'fortran_order': False, 'shape': (6,), }", "commas"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (6,), } x", "after"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (6,", "'shape'"},
    {"{'descr': '|u1", "'descr'"},
    {"{", "dictionary"},
    {"", "'{'"},
    {"not a dictionary", "'{'"},
};

static void check_refused(struct image image, const char *what, const char *reason)
{
	struct npy_rows symbols;
	rosa_error err = {0};

	if (npy_read(image.data, image.size, NPY_SYMBOLS, &symbols, &err))
		fail_msg("accepted: %s", what);
	must_say(reason);
	assert_null(symbols.values);
}

TEST(refuses_headers)
{
	for (size_t i = 0; i < COUNT(bads); i++)
		check_refused(make(1, bads[i].header, six, sizeof(six)), bads[i].header, bads[i].reason);
}

TEST(refuses_emptiness)
{
	check_refused(make(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (0,), }", NULL, 0), "no steps",
		      "of 0");
	/* The huge dimension is no overflow, since the product is 0. */
	check_refused(
	    make(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (18446744073709551615, 0), }", NULL, 0),
	    "no steps", "of 0");
	check_refused(make(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (), }", six, 1), "a number",
		      "0 dimensions");
}

TEST(refuses_versions)
{
	struct image image;

	image = make(1, U1, six, sizeof(six));
	image.data[6] = 4;
	check_refused(image, "version 4", "version");
	image = make(1, U1, six, sizeof(six));
	image.data[7] = 1;
	check_refused(image, "version 1.1", "version");
	image = make(1, U1, six, sizeof(six));
	image.data[0] = 'x';
	check_refused(image, "another magic", "not a NumPy file");
	image = make(2, U1, six, sizeof(six));
	image.data[11] = 0xff;
	check_refused(image, "a header longer than the file", "header length");
}

/* Every beginning of a good file is a bad one. */
TEST(refuses_every_truncation)
{
	struct image whole = make(2, U2, six, sizeof(six));

	for (size_t size = 0; size < whole.size; size++) {
		struct image part = {test_alloc(size), size};

		memcpy(part.data, whole.data, size);
		check_refused(part, "a beginning", "");
	}
}

/* -------------------------------------------------------------------------------------------------------- tokens -- */

static const uint8_t eight[8] = {1, 2, 0, 0, 0xfe, 0xff, 0xff, 0xff};

static const struct tokens_case {
	const char *header;
	int dims;
	size_t texts, steps;
	uint32_t tokens[4];
	const char *reason; /* NULL: accepted */
} tokens_cases[] = {
    {"{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }", 1, 1, 2, {513, 4294967294u}, NULL},
    {"{'descr': '<u4', 'fortran_order': False, 'shape': (2, 1), }", 2, 2, 1, {513, 4294967294u}, NULL},
    {"{'descr': '<u2', 'fortran_order': False, 'shape': (1, 4), }", 2, 1, 4, {513, 0, 65534, 65535}, NULL},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", 0, 0, 0, {0}, "element 1 is -2"},
    {"{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", 0, 0, 0, {0}, "element 0 is -8589934079"},
    {"{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }", 0, 0, 0, {0}, "'u8', tokens must be uint16, int32"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 0, 0, 0, {0}, "convert with .astype('int32')"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (8,), }", 0, 0, 0, {0}, "'u1'"},
    {"{'descr': '>i4', 'fortran_order': False, 'shape': (2,), }", 0, 0, 0, {0}, "convert with .astype('<i4')"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1, 1), }", 0, 0, 0, {0}, "3 dimensions, tokens"},
};

TEST(reads_tokens)
{
	for (size_t i = 0; i < COUNT(tokens_cases); i++) {
		const struct tokens_case *c = &tokens_cases[i];
		struct image image = make(1, c->header, eight, sizeof(eight));
		struct npy_rows tokens;
		rosa_error err = {0};

		bool done = npy_read(image.data, image.size, NPY_TOKENS, &tokens, &err);
		if (done == (c->reason != NULL) || (c->reason && !strstr(err.message, c->reason)))
			fail_msg("%s: %s '%s'", c->header, done ? "accepted" : "refused", err.message);
		assert_int_equal(tokens.dims, c->dims);
		assert_int_equal(tokens.rows, c->texts);
		assert_int_equal(tokens.steps, c->steps);
		if (done)
			assert_memory_equal(tokens.values, c->tokens, c->texts * c->steps * sizeof(uint32_t));
		else
			assert_null(tokens.values);
		free(tokens.values);
	}
}

/* The greatest token, and the least number of 64 bits that is none. */
TEST(reads_long_tokens)
{
	const uint8_t most[16] = {255, 255, 255, 255, 0, 0, 0, 0, 7}, more[16] = {0, 0, 0, 0, 1};
	const char *header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
	struct image image = make(1, header, most, sizeof(most));
	struct npy_rows tokens;
	rosa_error err = {0};

	assert_true(npy_read(image.data, image.size, NPY_TOKENS, &tokens, &err));
	assert_int_equal(tokens.values[0], UINT32_MAX);
	assert_int_equal(tokens.values[1], 7);
	free(tokens.values);
	image = make(1, header, more, sizeof(more));
	assert_false(npy_read(image.data, image.size, NPY_TOKENS, &tokens, &err));
	must_say("element 0 is 4294967296");
	assert_null(tokens.values);
}

/* --------------------------------------------------------------------------------------------------------- files -- */

static void put(const char *path, struct image image)
{
	file_put(path, image.data, image.size);
}

TEST_WITH(loads_and_names_the_file, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	struct npy_rows symbols;

	put(folder->file, make(1, U2 "\n", six, sizeof(six)));
	assert_true(npy_load(folder->file, NPY_SYMBOLS, &symbols, &err));
	assert_int_equal(symbols.steps, 3);
	assert_int_equal(symbols.values[2], 259);
	free(symbols.values);
	put(folder->file, make(1, U2 "\n", six, 5));
	assert_false(npy_load(folder->file, NPY_SYMBOLS, &symbols, &err));
	must_say(folder->file);
	must_say("cut short");
	assert_false(npy_load(folder->other, NPY_SYMBOLS, &symbols, &err));
	must_say(folder->other);
	assert_false(npy_load(folder->path, NPY_SYMBOLS, &symbols, &err));
	must_say("folder");
}

static const int32_t values[6] = {-1, 0, 1, 2147483647, -2147483647 - 1, 7};

/* The bits of each element are those of `bits`. */
static void check_elements(const char *path, char kind, int dims, const size_t *shape, const void *bits)
{
	struct npy_header header;
	uint8_t *data;
	size_t size;

	must(file_read(path, NULL, &data, &size, &err));
	assert_true(npy_parse(data, size, &header, &err));
	assert_int_equal(header.kind, kind);
	assert_int_equal(header.width, 4);
	assert_int_equal(header.order, '<');
	assert_false(header.fortran);
	assert_int_equal(header.dims, dims);
	assert_memory_equal(header.shape, shape, (size_t)dims * sizeof(size_t));
	assert_int_equal(header.offset % 64, 0);
	assert_int_equal(data[header.offset - 1], '\n');
	for (size_t i = 0; i < header.count; i++) {
		const uint8_t *at = data + header.offset + 4 * i;
		uint32_t got = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
		assert_memory_equal(&got, (const uint8_t *)bits + 4 * i, 4);
	}
	free(data);
}

static void check_written(const char *path, int dims, const size_t *shape)
{
	check_elements(path, 'i', dims, shape, values);
}

TEST_WITH(writes_what_it_reads, folder_enter, folder_leave)
{
	static const size_t shapes[][3] = {{6}, {2, 3}, {1, 3, 2}};
	struct folder *folder = *state;

	for (int dims = 1; dims <= 3; dims++) {
		struct file_writer writer;

		assert_true(npy_create(&writer, folder->file, "<i4", dims, shapes[dims - 1], &err));
		must(file_write(&writer, values, 2 * sizeof(*values), &err));
		must(file_write(&writer, values + 2, 4 * sizeof(*values), &err));
		must(file_finish(&writer, ROSA_OK, &err));
		check_written(folder->file, dims, shapes[dims - 1]);
		assert_int_equal(folder_entries(folder), 1);
	}
}

TEST_WITH(writes_floats, folder_enter, folder_leave)
{
	static const float numbers[6] = {0, -0.0f, 1.5f, -3e38f, 1e-40f, 7};
	static const size_t shape[2] = {3, 2};
	struct folder *folder = *state;
	struct file_writer writer;

	assert_true(npy_create(&writer, folder->file, "<f4", 2, shape, &err));
	must(file_write(&writer, numbers, 5 * sizeof(*numbers), &err));
	must(file_write(&writer, numbers + 5, 1 * sizeof(*numbers), &err));
	must(file_finish(&writer, ROSA_OK, &err));
	check_elements(folder->file, 'f', 2, shape, numbers);
}

TEST_WITH(loads_tokens_and_names_the_file, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	struct npy_rows tokens;

	put(folder->file, make(1, tokens_cases[0].header, eight, sizeof(eight)));
	assert_true(npy_load(folder->file, NPY_TOKENS, &tokens, &err));
	assert_int_equal(tokens.values[0], 513);
	free(tokens.values);
	put(folder->file, make(1, tokens_cases[0].header, eight, 7));
	assert_false(npy_load(folder->file, NPY_TOKENS, &tokens, &err));
	must_say(folder->file);
	assert_null(tokens.values);
	assert_false(npy_load(folder->other, NPY_TOKENS, &tokens, &err));
	assert_null(tokens.values);
}
