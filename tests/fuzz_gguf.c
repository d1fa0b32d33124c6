/*
 * Any bytes as a GGUF file.
 *
 * What is accepted must hold what tensors.h and gguf.h promise: bytes inside the file, names sorted and found again,
 * values that can be asked for in every way. All of it is read once, so that a sanitizer sees what lies outside. What
 * is refused comes with a reason and leaves nothing behind.
 *
 * An input is used twice: as a file, and as a list of changes to a good one, which gets further than most files do.
 */
#include "model/gguf.h"

#include "support_fuzz.h"
#include "support_weights.h"

static volatile uint64_t sink;

static void touch(const void *data, size_t size)
{
	const uint8_t *bytes = data;
	uint64_t sum = 0;

	for (size_t i = 0; i < size; i++)
		sum += bytes[i];
	sink += sum;
}

static void check_tensor(const struct tensors *tensors, size_t i, const uint8_t *data, size_t size)
{
	const struct tensor *tensor = &tensors->all[i];
	const struct format_info *format = &format_info[tensor->format];
	const size_t at = (size_t)((const uint8_t *)tensor->data - data);
	char text[TENSOR_SHAPE_TEXT];

	check((unsigned)tensor->format < FORMAT_COUNT && tensor->dims >= 0 && tensor->dims <= TENSOR_MAX_DIMS);
	check(at <= size && tensor->bytes <= size - at && tensor->bytes > 0 && at % format->alignment == 0);
	check(tensor_numbers(tensor) / format->numbers * format->bytes == tensor->bytes);
	check(!tensor->dims || tensor->shape[tensor->dims - 1] % format->numbers == 0);
	check(tensors_find(tensors, tensor->name) == tensor && tensor->name[0]);
	check(!i || strcmp(tensors->all[i - 1].name, tensor->name) < 0);
	touch(tensor->data, tensor->bytes);
	touch(tensor_shape_text(tensor, text), strlen(text));
}

static void check_entry(const struct gguf *gguf, size_t i)
{
	const struct gguf_entry *entry = &gguf->entries[i];
	struct gguf_text text;
	int64_t integer;
	double number;

	check(gguf_find(gguf, entry->key) == entry && entry->key[0]);
	check(!i || strcmp(gguf->entries[i - 1].key, entry->key) < 0);
	for (size_t k = 0; k < entry->count; k++) {
		if (gguf_string(entry, k, &text))
			touch(text.at, text.length);
		else
			check(gguf_integer(entry, k, &integer) || gguf_number(entry, k, &number));
	}
	check(!gguf_integer(entry, entry->count, &integer) && !gguf_number(entry, entry->count, &number) &&
	      !gguf_string(entry, entry->count, &text));
}

static bool try(const uint8_t *data, size_t size)
{
	struct gguf gguf;
	rosa_error err = {ROSA_OK, ""};

	if (gguf_read(data, size, "file", &gguf, &err)) {
		check(err.status == ROSA_EFORMAT && !strncmp(err.message, "file: ", 6));
		check(!gguf.entries && !gguf.keys && !gguf.texts && !gguf.tensors.all);
		return false;
	}
	for (size_t i = 0; i < gguf.tensors.count; i++)
		check_tensor(&gguf.tensors, i, data, size);
	for (size_t i = 0; i < gguf.count; i++)
		check_entry(&gguf, i);
	gguf_free(&gguf);
	return true;
}

static struct bytes good_file(void)
{
	static const char *const words[] = {"a", "bc"};
	static const int64_t integers[] = {1, 2, 3};
	static const size_t small[] = {3}, matrix[] = {2, 32};
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	uint64_t state = 0;

	weights_set_string(writer, "s", "text");
	weights_set_strings(writer, "t", 2, words);
	weights_set_integers(writer, "i", GGUF_UINT16, 3, integers);
	weights_set_number(writer, "f", GGUF_FLOAT32, 0.5);
	weights_set_integer(writer, "b", GGUF_BOOL, 1);
	weights_set_alignment(writer, 8);
	weights_add_random(writer, "x", FORMAT_F32, 1, small, &state, 0, 1);
	weights_add_random(writer, "y", FORMAT_Q4_0, 2, matrix, &state, 0, 1);
	weights_add_random(writer, "z", FORMAT_BF16, 0, NULL, &state, 0, 1);
	return weights_finish(writer);
}

/* Each change: two bytes of place, one of value. */
static void try_changes(const uint8_t *data, size_t size)
{
	static struct bytes good; /* made once; it stays until the end */
	uint8_t *file;
	size_t mark;

	if (!good.data) {
		good = good_file();
		check(try(good.data, good.size));
	}
	mark = test_mark();
	file = bytes_copy(&good, good.size);
	for (size_t i = 0; i + 3 <= size; i += 3)
		file[(data[i] | (size_t)data[i + 1] << 8) % good.size] = data[i + 2];
	try(file, good.size);
	test_release(mark);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try(data, size);
	try_changes(data, size);
	return 0;
}
