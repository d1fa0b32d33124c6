/*
 * A writer of GGUF and safetensors files, as small as one can be.
 *
 * It shares nothing with the parsers but the table of formats, so that a mistake in reading is not cancelled by the
 * same mistake in writing; that others write the same is checked against their own libraries elsewhere. Nothing is
 * refused here: most tests of a parser want a file with something wrong in it.
 */
#include "support_weights.h"
#include "support_folder.h"

#include "support_test.h"
#include "support_trial.h"

#include <math.h>

#define MOST_TENSORS 4096

/* --------------------------------------------------------------------------------------------------------- bytes -- */

void bytes_put(struct bytes *bytes, const void *data, size_t size)
{
	if (size > bytes->room - bytes->size) {
		uint8_t *larger = test_alloc(2 * (bytes->size + size));

		if (bytes->size)
			memcpy(larger, bytes->data, bytes->size);
		bytes->data = larger;
		bytes->room = 2 * (bytes->size + size);
	}
	if (size)
		memcpy(bytes->data + bytes->size, data, size);
	bytes->size += size;
}

void bytes_words(struct bytes *bytes, const char *words)
{
	bytes_put(bytes, words, strlen(words));
}

void bytes_number(struct bytes *bytes, uint64_t number, size_t width)
{
	for (size_t i = 0; i < width; i++)
		bytes_put(bytes, &(uint8_t){(uint8_t)(number >> (8 * i))}, 1);
}

void bytes_text(struct bytes *bytes, const char *text)
{
	bytes_number(bytes, strlen(text), 8);
	bytes_words(bytes, text);
}

void bytes_fill(struct bytes *bytes, size_t multiple)
{
	while (bytes->size % multiple)
		bytes_number(bytes, 0, 1);
}

uint8_t *bytes_copy(const struct bytes *bytes, size_t size)
{
	uint8_t *copy = test_alloc(size);

	if (size)
		memcpy(copy, bytes->data, size);
	return copy;
}

void bytes_save(const struct bytes *bytes, const char *path)
{
	file_put(path, bytes->data, bytes->size);
}

/* -------------------------------------------------------------------------------------------------------- writer -- */

struct tensor_entry {
	char *name;
	enum format format;
	int dims;
	size_t shape[TENSOR_MAX_DIMS];
	struct bytes data;
};

struct weights_writer {
	enum weights_kind kind;
	unsigned version;
	uint32_t alignment;
	struct tensor_entry tensors[MOST_TENSORS];
	size_t count;
	struct bytes metadata; /* as the file has it, without what is around all of it */
	size_t metadata_count;
};

struct weights_writer *weights_new(enum weights_kind kind)
{
	struct weights_writer *writer = test_alloc(sizeof(*writer));

	memset(writer, 0, sizeof(*writer));
	writer->kind = kind;
	writer->version = 3;
	writer->alignment = 32;
	return writer;
}

void weights_set_version(struct weights_writer *writer, unsigned version)
{
	writer->version = version;
}

static size_t numbers_in(int dims, const size_t *shape)
{
	size_t numbers = 1;

	for (int i = 0; i < dims; i++)
		numbers *= shape[i];
	return numbers;
}

void weights_add(struct weights_writer *writer, const char *name, enum format format, int dims, const size_t *shape,
		 const void *data)
{
	const struct format_info *info = &format_info[format];
	struct tensor_entry *entry = &writer->tensors[writer->count];

	assert_true(writer->count++ < MOST_TENSORS && dims <= TENSOR_MAX_DIMS);
	entry->name = test_alloc(strlen(name) + 1);
	memcpy(entry->name, name, strlen(name) + 1);
	entry->format = format;
	entry->dims = dims;
	if (dims)
		memcpy(entry->shape, shape, (size_t)dims * sizeof(*shape));
	bytes_put(&entry->data, data, numbers_in(dims, shape) / info->numbers * info->bytes);
}

/* float32 to float16, to nearest, ties to even. */
static uint16_t half_of(float number)
{
	const uint16_t sign = signbit(number) ? 0x8000 : 0;
	double part = fabs((double)number);
	int exponent;

	if (isnan(number))
		return (uint16_t)(sign | 0x7e00);
	if (part >= 65520) /* halfway from the greatest number to what would be the next */
		return (uint16_t)(sign | 0x7c00);
	frexp(part, &exponent);
	if (exponent < -13 || part == 0)
		exponent = -13; /* subnormal numbers and 0 share the least exponent */
	/* in units of the last place; a carry out of the fraction moves the exponent, as it should */
	return (uint16_t)(sign + ((exponent + 13) << 10) + (int)nearbyint(ldexp(part, 11 - exponent)));
}

static uint16_t test_bfloat16(float number)
{
	int exponent;
	const double part = frexp((double)number, &exponent);
	const float rounded = isfinite(number) ? (float)ldexp(nearbyint(ldexp(part, 8)), exponent - 8) : number;
	uint32_t bits;

	memcpy(&bits, &rounded, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

/* A number in a plain format. */
static void put_float(struct bytes *bytes, enum format format, float number)
{
	uint32_t bits;

	memcpy(&bits, &number, sizeof(bits));
	switch (format) {
	case FORMAT_F32:
		bytes_number(bytes, bits, 4);
		break;
	case FORMAT_F16:
		bytes_number(bytes, half_of(number), 2);
		break;
	case FORMAT_BF16:
		bytes_number(bytes, test_bfloat16(number), 2);
		break;
	default:
		fail_msg("%s has blocks", format_info[format].name);
	}
}

void weights_add_floats(struct weights_writer *writer, const char *name, enum format format, int dims,
			const size_t *shape, const float *numbers)
{
	struct bytes data = {NULL, 0, 0};

	for (size_t i = 0; i < numbers_in(dims, shape); i++)
		put_float(&data, format, numbers[i]);
	weights_add(writer, name, format, dims, shape, data.data);
}

/* -------------------------------------------------------------------------------------------------------- random -- */

/* About normal: a sum of four, each with variance 1/12. */
static double random_normal(uint64_t *state)
{
	double sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (double)test_random(state, 1 << 20) / (1 << 20) - 0.5;
	return sum * sqrt(3);
}

static void put_half(uint8_t *at, double number)
{
	const uint16_t half = half_of((float)number);

	at[0] = (uint8_t)half;
	at[1] = (uint8_t)(half >> 8);
}

/* Any bytes are a block; only the scales must be made, so that numbers get a deviation of about `scale`. Even integers
 * -n .. n have one of about n / 1.7. */
static void make_block(uint8_t *block, enum format format, uint64_t *state, double scale)
{
	for (size_t i = 0; i < format_info[format].bytes; i++)
		block[i] = (uint8_t)test_random(state, 256);
	switch (format) {
	case FORMAT_Q8_0: /* d, 32 of -128 .. 127 */
		put_half(block, scale * 1.7 / 128);
		break;
	case FORMAT_Q4_0: /* d, 32 of -8 .. 7 */
		put_half(block, scale * 1.7 / 8);
		break;
	case FORMAT_Q4_1: /* d, m, 32 of 0 .. 15 */
		put_half(block, scale * 1.7 / 8);
		put_half(block + 2, -scale * 1.7);
		break;
	case FORMAT_Q5_0: /* d, 32 of -16 .. 15 */
		put_half(block, scale * 1.7 / 16);
		break;
	case FORMAT_Q5_1: /* d, m, 32 of 0 .. 31 */
		put_half(block, scale * 1.7 / 16);
		put_half(block + 2, -scale * 1.7);
		break;
	case FORMAT_Q4_K: /* d, dmin, 12 bytes of factors up to 63, 256 of 0 .. 15; minima half as great as the rest */
	case FORMAT_Q5_K: /* the same with 256 of 0 .. 31 */
		put_half(block, scale * 1.7 / (format == FORMAT_Q4_K ? 8 : 16) / 32);
		put_half(block + 2, scale * 1.7 / 32);
		break;
	case FORMAT_Q6_K: /* 256 of -32 .. 31, 16 factors -128 .. 127, d */
		put_half(block + 208, scale * 1.7 * 1.7 / 32 / 128);
		break;
	default:
		break;
	}
}

void weights_add_random(struct weights_writer *writer, const char *name, enum format format, int dims,
			const size_t *shape, uint64_t *state, double mean, double scale)
{
	const struct format_info *info = &format_info[format];
	struct bytes data = {NULL, 0, 0};
	uint8_t block[256];

	assert_true(info->bytes <= sizeof(block) && (mean == 0 || info->numbers == 1));
	for (size_t i = 0; i < numbers_in(dims, shape) / info->numbers; i++) {
		if (info->numbers == 1) {
			put_float(&data, format, (float)(mean + scale * random_normal(state)));
		} else {
			make_block(block, format, state, scale);
			bytes_put(&data, block, info->bytes);
		}
	}
	weights_add(writer, name, format, dims, shape, data.data);
}

/* ------------------------------------------------------------------------------------------------------ metadata -- */

static size_t width_of(enum gguf_type type)
{
	switch (type) {
	case GGUF_UINT8:
	case GGUF_INT8:
	case GGUF_BOOL:
		return 1;
	case GGUF_UINT16:
	case GGUF_INT16:
		return 2;
	case GGUF_UINT32:
	case GGUF_INT32:
	case GGUF_FLOAT32:
		return 4;
	default:
		return 8;
	}
}

static void put_number(struct bytes *bytes, enum gguf_type type, double number)
{
	const float narrow = (float)number;
	uint32_t narrow_bits;
	uint64_t bits;

	memcpy(&narrow_bits, &narrow, sizeof(narrow_bits));
	memcpy(&bits, &number, sizeof(bits));
	if (type != GGUF_FLOAT32 && type != GGUF_FLOAT64)
		bits = (uint64_t)(int64_t)number;
	bytes_number(bytes, type == GGUF_FLOAT32 ? narrow_bits : bits, width_of(type));
}

/* A key and the type of its value; for an array also the elements' type and count. */
static struct bytes *begin_entry(struct weights_writer *writer, const char *key, enum gguf_type type)
{
	assert_int_equal(writer->kind, WEIGHTS_GGUF);
	writer->metadata_count++;
	bytes_text(&writer->metadata, key);
	bytes_number(&writer->metadata, (uint64_t)type, 4);
	return &writer->metadata;
}

static struct bytes *begin_array(struct weights_writer *writer, const char *key, enum gguf_type element, size_t count)
{
	struct bytes *bytes = begin_entry(writer, key, GGUF_ARRAY);

	bytes_number(bytes, (uint64_t)element, 4);
	bytes_number(bytes, count, 8);
	return bytes;
}

static void put_quoted(struct bytes *bytes, const char *text)
{
	char escape[8];

	bytes_put(bytes, "\"", 1);
	for (; *text; text++) {
		if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\') {
			snprintf(escape, sizeof(escape), "\\u%04x", (unsigned char)*text);
			bytes_words(bytes, escape);
		} else {
			bytes_put(bytes, text, 1);
		}
	}
	bytes_put(bytes, "\"", 1);
}

void weights_set_string(struct weights_writer *writer, const char *key, const char *value)
{
	if (writer->kind == WEIGHTS_GGUF) {
		bytes_text(begin_entry(writer, key, GGUF_STRING), value);
		return;
	}
	bytes_words(&writer->metadata, writer->metadata_count++ ? "," : "");
	put_quoted(&writer->metadata, key);
	bytes_words(&writer->metadata, ":");
	put_quoted(&writer->metadata, value);
}

void weights_set_integer(struct weights_writer *writer, const char *key, enum gguf_type type, int64_t value)
{
	bytes_number(begin_entry(writer, key, type), (uint64_t)value, width_of(type));
}

void weights_set_number(struct weights_writer *writer, const char *key, enum gguf_type type, double value)
{
	put_number(begin_entry(writer, key, type), type, value);
}

void weights_set_strings(struct weights_writer *writer, const char *key, size_t count, const char *const *values)
{
	struct bytes *bytes = begin_array(writer, key, GGUF_STRING, count);

	for (size_t i = 0; i < count; i++)
		bytes_text(bytes, values[i]);
}

void weights_set_integers(struct weights_writer *writer, const char *key, enum gguf_type element, size_t count,
			  const int64_t *values)
{
	struct bytes *bytes = begin_array(writer, key, element, count);

	for (size_t i = 0; i < count; i++)
		bytes_number(bytes, (uint64_t)values[i], width_of(element));
}

void weights_set_numbers(struct weights_writer *writer, const char *key, enum gguf_type element, size_t count,
			 const double *values)
{
	struct bytes *bytes = begin_array(writer, key, element, count);

	for (size_t i = 0; i < count; i++)
		put_number(bytes, element, values[i]);
}

void weights_set_alignment(struct weights_writer *writer, uint32_t alignment)
{
	writer->alignment = alignment;
	weights_set_integer(writer, "general.alignment", GGUF_UINT32, alignment);
}

/* --------------------------------------------------------------------------------------------------------- files -- */

static void finish_gguf(const struct weights_writer *writer, struct bytes *file)
{
	static const uint32_t types[FORMAT_COUNT] = {
	    [FORMAT_F32] = 0,  [FORMAT_F16] = 1,  [FORMAT_BF16] = 30, [FORMAT_Q8_0] = 8,
	    [FORMAT_Q4_0] = 2, [FORMAT_Q4_1] = 3, [FORMAT_Q4_K] = 12, [FORMAT_Q6_K] = 14,
	    [FORMAT_Q5_0] = 6, [FORMAT_Q5_1] = 7, [FORMAT_Q5_K] = 13};
	size_t offset = 0;

	bytes_words(file, "GGUF");
	bytes_number(file, writer->version, 4);
	bytes_number(file, writer->count, 8);
	bytes_number(file, writer->metadata_count, 8);
	bytes_put(file, writer->metadata.data, writer->metadata.size);
	for (size_t i = 0; i < writer->count; i++) {
		const struct tensor_entry *entry = &writer->tensors[i];

		bytes_text(file, entry->name);
		bytes_number(file, (uint64_t)entry->dims, 4);
		for (int d = entry->dims; d > 0; d--)
			bytes_number(file, entry->shape[d - 1], 8);
		bytes_number(file, types[entry->format], 4);
		bytes_number(file, offset, 8);
		offset += (entry->data.size + writer->alignment - 1) / writer->alignment * writer->alignment;
	}
	for (size_t i = 0; i < writer->count; i++) {
		bytes_fill(file, writer->alignment);
		bytes_put(file, writer->tensors[i].data.data, writer->tensors[i].data.size);
	}
}

static void put_tensor_json(struct bytes *header, const struct tensor_entry *entry, size_t offset)
{
	char text[128];

	put_quoted(header, entry->name);
	snprintf(text, sizeof(text), ":{\"dtype\":\"%s\",\"shape\":[", format_info[entry->format].name);
	bytes_words(header, text);
	for (int d = 0; d < entry->dims; d++) {
		snprintf(text, sizeof(text), "%s%zu", d ? "," : "", entry->shape[d]);
		bytes_words(header, text);
	}
	snprintf(text, sizeof(text), "],\"data_offsets\":[%zu,%zu]}", offset, offset + entry->data.size);
	bytes_words(header, text);
}

static void finish_safetensors(const struct weights_writer *writer, struct bytes *file)
{
	struct bytes header = {NULL, 0, 0};
	size_t offset = 0;

	bytes_words(&header, "{");
	if (writer->metadata_count) {
		bytes_words(&header, "\"__metadata__\":{");
		bytes_put(&header, writer->metadata.data, writer->metadata.size);
		bytes_words(&header, "}");
	}
	for (size_t i = 0; i < writer->count; i++) {
		bytes_words(&header, i || writer->metadata_count ? "," : "");
		put_tensor_json(&header, &writer->tensors[i], offset);
		offset += writer->tensors[i].data.size;
	}
	bytes_words(&header, "}");
	while (header.size % 8)
		bytes_words(&header, " ");
	bytes_number(file, header.size, 8);
	bytes_put(file, header.data, header.size);
	for (size_t i = 0; i < writer->count; i++)
		bytes_put(file, writer->tensors[i].data.data, writer->tensors[i].data.size);
}

struct bytes weights_finish(struct weights_writer *writer)
{
	struct bytes file = {NULL, 0, 0};

	if (writer->kind == WEIGHTS_GGUF)
		finish_gguf(writer, &file);
	else
		finish_safetensors(writer, &file);
	return file;
}

void weights_save(struct weights_writer *writer, const char *path)
{
	struct bytes file = weights_finish(writer);

	bytes_save(&file, path);
}

/* ------------------------------------------------------------------------------------------------------ refusals -- */

void weights_check_refused(struct bytes file, const char *what, const char *words, weights_parser *parser,
			   size_t read_size)
{
	static const char name[] = "weights.bin";
	void *read = test_alloc(read_size), *nothing = test_zeros(1, read_size);
	uint8_t *data = bytes_copy(&file, file.size);
	rosa_error err = {ROSA_OK, ""};

	const rosa_status status = parser(data, file.size, name, read, &err);
	if (!status)
		fail_msg("accepted: %s", what);
	expect_status(what, status, ROSA_EFORMAT, &err);
	if (!strstr(err.message, words) || strncmp(err.message, "weights.bin: ", strlen(name) + 2) != 0)
		fail_msg("%s: the reason is '%s', without '%s'", what, err.message, words);
	assert_memory_equal(read, nothing, read_size);
	assert_int_equal(parser(data, file.size, name, read, NULL), ROSA_EFORMAT);
}

void weights_check_damage(struct bytes file, weights_parser *parser, size_t read_size, weights_accepted *accepted)
{
	static const uint8_t changes[] = {0x01, 0x02, 0x10, 0x20, 0x80, 0xff};
	uint8_t *data = bytes_copy(&file, file.size);
	void *read = test_alloc(read_size);
	size_t count = 0;

	for (size_t size = 0; size < file.size; size++)
		weights_check_refused((struct bytes){bytes_copy(&file, size), size, size}, "a beginning", "", parser,
				      read_size);
	for (size_t at = 0; at < file.size; at++)
		for (size_t i = 0; i < COUNT(changes); i++) {
			rosa_error err = {ROSA_OK, ""};

			data[at] = file.data[at] ^ changes[i];
			if (!parser(data, file.size, "weights.bin", read, &err)) {
				accepted(read, data, file.size);
				count++;
			} else {
				assert_true(err.message[0] != '\0');
			}
			data[at] = file.data[at];
		}
	/* the tensors' own bytes are nobody's business here */
	assert_true(count > 0 && count < COUNT(changes) * file.size);
}
