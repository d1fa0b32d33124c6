/*
 * GGUF files.
 *
 * A file is a header with two counts, that many pairs of key and value, that many descriptions of tensors, and the
 * tensors' bytes. It does not say how long a part is, so it has to be read from the front, and no number in it can be
 * trusted. All reading goes through one cursor, which never moves beyond the end of the file. After the first failure
 * it stays where it is and returns zeros, so callers check its status once per step instead of once per number.
 *
 * Both lists are read twice: the first time to add up what has to be stored, the second time to store it. So memory is
 * allocated once, and only for what the file really holds: a count of 2^60 fails where the file ends. The tensors'
 * bytes are not read at all.
 */
#include "model/gguf.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 2^53: a double represents all integers up to here. */
#define FLOAT_INTEGER_MAX 9007199254740992.0

/* ----------------------------------------------------------------------------------------------- types by number -- */

/* Bytes of a value; 0: not fixed. */
static const size_t value_bytes[] = {
    [GGUF_UINT8] = 1,   [GGUF_INT8] = 1,   [GGUF_BOOL] = 1,    [GGUF_UINT16] = 2, [GGUF_INT16] = 2,
    [GGUF_UINT32] = 4,  [GGUF_INT32] = 4,  [GGUF_FLOAT32] = 4, [GGUF_UINT64] = 8, [GGUF_INT64] = 8,
    [GGUF_FLOAT64] = 8, [GGUF_STRING] = 0, [GGUF_ARRAY] = 0,
};
#define VALUE_TYPES (sizeof(value_bytes) / sizeof(*value_bytes))

/* The tensor types that are read. */
static const uint32_t format_types[FORMAT_COUNT] = {
    [FORMAT_F32] = 0,  [FORMAT_F16] = 1,  [FORMAT_BF16] = 30, [FORMAT_Q8_0] = 8,
    [FORMAT_Q4_0] = 2, [FORMAT_Q4_1] = 3, [FORMAT_Q4_K] = 12, [FORMAT_Q6_K] = 14,
    [FORMAT_Q5_0] = 6, [FORMAT_Q5_1] = 7, [FORMAT_Q5_K] = 13,
};

/* The names of all, for refusals. */
static const char *const type_names[] = {
    "F32",        "F16",        "Q4_0",       "Q4_1",  "Q4_2",     "Q4_3",     "Q5_0",     "Q5_1",    "Q8_0",
    "Q8_1",       "Q2_K",       "Q3_K",       "Q4_K",  "Q5_K",     "Q6_K",     "Q8_K",     "IQ2_XXS", "IQ2_XS",
    "IQ3_XXS",    "IQ1_S",      "IQ4_NL",     "IQ3_S", "IQ2_S",    "IQ4_XS",   "I8",       "I16",     "I32",
    "I64",        "F64",        "IQ1_M",      "BF16",  "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0",
    "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4", "NVFP4",    "Q1_0",
};
#define TYPE_NAMES (sizeof(type_names) / sizeof(*type_names))

/* -------------------------------------------------------------------------------------------------------- cursor -- */

struct cursor {
	const uint8_t *data;
	size_t size, at;
	const char *file, *part; /* for messages */
	rosa_status status;
	rosa_error *err;
};

static size_t left(const struct cursor *cursor)
{
	return cursor->size - cursor->at;
}

/* The next bytes, or NULL where there are not so many. */
static const uint8_t *take(struct cursor *cursor, uint64_t bytes)
{
	const uint8_t *at;

	if (cursor->status)
		return NULL;
	if (bytes > left(cursor)) {
		cursor->status =
		    rosa_fail(cursor->err, ROSA_EFORMAT,
			      "%s: the %s needs %llu bytes at byte %zu, but the file ends at %zu; it is "
			      "cut short or damaged",
			      cursor->file, cursor->part, (unsigned long long)bytes, cursor->at, cursor->size);
		return NULL;
	}
	at = cursor->data + cursor->at;
	cursor->at += (size_t)bytes;
	return at;
}

static uint64_t little_endian(const uint8_t *bytes, size_t count)
{
	uint64_t number = 0;

	for (size_t i = 0; i < count; i++)
		number |= (uint64_t)bytes[i] << (8 * i);
	return number;
}

static uint32_t take_u32(struct cursor *cursor)
{
	const uint8_t *at = take(cursor, 4);

	return at ? (uint32_t)little_endian(at, 4) : 0;
}

static uint64_t take_u64(struct cursor *cursor)
{
	const uint8_t *at = take(cursor, 8);

	return at ? little_endian(at, 8) : 0;
}

static struct gguf_text take_text(struct cursor *cursor)
{
	const uint64_t length = take_u64(cursor);
	const uint8_t *at = take(cursor, length);

	return at ? (struct gguf_text){(const char *)at, (size_t)length} : (struct gguf_text){"", 0};
}

/* The name of an entry or a tensor. */
static struct gguf_text take_name(struct cursor *cursor)
{
	const struct gguf_text name = take_text(cursor);

	if (!cursor->status && !weight_name_is_valid(name.at, name.length))
		cursor->status = rosa_fail(cursor->err, ROSA_EFORMAT,
					   "%s: a name in the %s, before byte %zu, is %s; the file is damaged",
					   cursor->file, cursor->part, cursor->at,
					   name.length ? "no UTF-8 text or has control characters" : "empty");
	return name;
}

/* Stores a name, terminated, and moves on to where the next one goes. */
static const char *store_name(char **to, struct gguf_text name)
{
	const char *stored = *to;

	memcpy(*to, name.at, name.length);
	(*to)[name.length] = '\0';
	*to += name.length + 1;
	return stored;
}

/* A count from the header, if the file is large enough for it: elements have at least `least` bytes each. */
static size_t believe_count(struct cursor *cursor, uint64_t count, size_t least, const char *what)
{
	if (!cursor->status && count > left(cursor) / least)
		cursor->status =
		    rosa_fail(cursor->err, ROSA_EFORMAT,
			      "%s: %llu %s are more than the file's %zu bytes can hold; it is cut short or "
			      "damaged",
			      cursor->file, (unsigned long long)count, what, cursor->size);
	return cursor->status ? 0 : (size_t)count;
}

/* ------------------------------------------------------------------------------------------------------ metadata -- */

#define ENTRY_LEAST 14 /* a key of one letter and a value of one byte */
#define TEXT_LEAST  8  /* an empty string is its length */

static void refuse_entry(struct cursor *cursor, struct gguf_text key, const char *what, uint64_t number)
{
	cursor->status = rosa_fail(cursor->err, ROSA_EFORMAT, "%s: metadata %.*s: %s (%llu)", cursor->file,
				   key.length < 100 ? (int)key.length : 100, key.at, what, (unsigned long long)number);
}

static uint32_t take_type(struct cursor *cursor, struct gguf_text key)
{
	const uint32_t type = take_u32(cursor);

	if (!cursor->status && type >= VALUE_TYPES)
		refuse_entry(cursor, key, "a type of value that is not known", type);
	return cursor->status ? 0 : type;
}

/* The value itself, `count` of them. The strings' places go to `texts`, unless that is NULL. */
static void take_values(struct cursor *cursor, struct gguf_text key, struct gguf_entry *entry, struct gguf_text *texts)
{
	const enum gguf_type type = entry->element;
	const size_t bytes = value_bytes[type];

	entry->data = cursor->data + cursor->at;
	if (type == GGUF_ARRAY) {
		refuse_entry(cursor, key, "an array of arrays, which is not supported", type);
	} else if (type == GGUF_STRING) {
		entry->texts = texts;
		for (size_t i = 0; i < entry->count && !cursor->status; i++) {
			const struct gguf_text text = take_text(cursor);

			if (texts)
				texts[i] = text;
		}
	} else {
		take(cursor, entry->count * bytes);
	}
	for (size_t i = 0; type == GGUF_BOOL && i < entry->count && !cursor->status; i++)
		if (entry->data[i] > 1)
			refuse_entry(cursor, key, "a bool that is neither 0 nor 1", entry->data[i]);
}

/* One entry, all but its key stored in *entry. */
static struct gguf_text take_entry(struct cursor *cursor, struct gguf_entry *entry, struct gguf_text *texts)
{
	const struct gguf_text key = take_name(cursor);
	const uint32_t type = take_type(cursor, key);

	*entry = (struct gguf_entry){.type = (enum gguf_type)type, .element = (enum gguf_type)type, .count = 1};
	if (type == GGUF_ARRAY) {
		const uint32_t element = take_type(cursor, key);
		const uint64_t count = take_u64(cursor);
		const size_t bytes = value_bytes[element];

		if (!cursor->status && count > left(cursor) / (bytes ? bytes : TEXT_LEAST))
			refuse_entry(cursor, key, "an array of more elements than the file has bytes for", count);
		entry->element = (enum gguf_type)element;
		entry->count = cursor->status ? 0 : (size_t)count;
	}
	if (!cursor->status)
		take_values(cursor, key, entry, texts);
	return key;
}

static int compare_keys(const void *a, const void *b)
{
	return strcmp(((const struct gguf_entry *)a)->key, ((const struct gguf_entry *)b)->key);
}

static rosa_status sort_entries(struct gguf *gguf, const char *file, rosa_error *err)
{
	if (gguf->count > 1)
		qsort(gguf->entries, gguf->count, sizeof(*gguf->entries), compare_keys);
	for (size_t i = 1; i < gguf->count; i++)
		if (!compare_keys(&gguf->entries[i - 1], &gguf->entries[i]))
			return rosa_fail(err, ROSA_EFORMAT, "%s: metadata %.100s is there twice", file,
					 gguf->entries[i].key);
	return ROSA_OK;
}

static rosa_status read_entries(struct cursor *cursor, size_t count, struct gguf *gguf)
{
	const size_t begin = cursor->at;
	size_t key_bytes = 0, texts = 0, at = 0;
	char *keys;

	cursor->part = "metadata";
	for (size_t i = 0; i < count && !cursor->status; i++) {
		struct gguf_entry entry;

		key_bytes += take_entry(cursor, &entry, NULL).length + 1;
		texts += entry.element == GGUF_STRING ? entry.count : 0;
	}
	if (cursor->status)
		return cursor->status;
	/* one more of each, so that none is 0 bytes */
	gguf->entries = calloc(count + 1, sizeof(*gguf->entries));
	gguf->texts = calloc(texts + 1, sizeof(*gguf->texts));
	gguf->keys = malloc(key_bytes + 1);
	if (!gguf->entries || !gguf->texts || !gguf->keys)
		return rosa_fail(cursor->err, ROSA_ENOMEM, "%s: no memory for its metadata", cursor->file);
	gguf->count = count;
	cursor->at = begin;
	keys = gguf->keys;
	for (size_t i = 0; i < count; i++) {
		struct gguf_entry *entry = &gguf->entries[i];
		const struct gguf_text key = take_entry(cursor, entry, gguf->texts + at);

		entry->key = store_name(&keys, key);
		at += entry->element == GGUF_STRING ? entry->count : 0;
	}
	return sort_entries(gguf, cursor->file, cursor->err);
}

/* ------------------------------------------------------------------------------------------------------- tensors -- */

#define TENSOR_LEAST      25 /* a name of one letter and no dimensions */
#define ALIGNMENT_KEY     "general.alignment"
#define ALIGNMENT_PLAIN   32
#define ALIGNMENT_LARGEST (1 << 30)

/* A tensor as the file describes it. */
struct description {
	struct gguf_text name;
	uint32_t dims, type;
	uint64_t sizes[TENSOR_MAX_DIMS]; /* fastest first */
	uint64_t offset;
};

static void take_description(struct cursor *cursor, struct description *description)
{
	*description = (struct description){.dims = 0};
	description->name = take_name(cursor);
	description->dims = take_u32(cursor);
	if (!cursor->status && description->dims > TENSOR_MAX_DIMS)
		cursor->status =
		    rosa_fail(cursor->err, ROSA_EFORMAT, "%s: tensor %.*s: %u dimensions; at most %d are supported",
			      cursor->file, description->name.length < 100 ? (int)description->name.length : 100,
			      description->name.at, (unsigned)description->dims, TENSOR_MAX_DIMS);
	for (uint32_t i = 0; i < description->dims && !cursor->status; i++)
		description->sizes[i] = take_u64(cursor);
	description->type = take_u32(cursor);
	description->offset = take_u64(cursor);
}

static rosa_status set_format(struct tensor *tensor, uint32_t type, rosa_error *err)
{
	for (int i = 0; i < FORMAT_COUNT; i++)
		if (format_types[i] == type) {
			tensor->format = (enum format)i;
			return ROSA_OK;
		}
	if (type >= TYPE_NAMES)
		return rosa_fail(err, ROSA_EFORMAT, "%s: tensor %.100s: type %u is not known", tensor->file,
				 tensor->name, (unsigned)type);
	return rosa_fail(err, ROSA_EFORMAT,
			 "%s: tensor %.80s: type %s is not supported; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
			 "Q4_K, Q5_K and Q6_K are",
			 tensor->file, tensor->name, type_names[type]);
}

static rosa_status set_shape(struct tensor *tensor, const struct description *description, rosa_error *err)
{
	tensor->dims = (int)description->dims;
	for (uint32_t i = 0; i < description->dims; i++) {
		const uint64_t size = description->sizes[description->dims - 1 - i];

		if (size > SIZE_MAX)
			return rosa_fail(err, ROSA_EFORMAT, "%s: tensor %.100s: a size of %llu is larger than memory",
					 tensor->file, tensor->name, (unsigned long long)size);
		tensor->shape[i] = (size_t)size;
	}
	return ROSA_OK;
}

/* From a description to a tensor, but for its place. */
static rosa_status describe(struct tensor *tensor, const struct description *description, rosa_error *err)
{
	rosa_status status = set_format(tensor, description->type, err);

	if (!status)
		status = set_shape(tensor, description, err);
	if (!status)
		status = tensor_measure(tensor, err);
	return status;
}

static rosa_status find_alignment(const struct gguf *gguf, const char *file, size_t *alignment, rosa_error *err)
{
	const struct gguf_entry *entry = gguf_find(gguf, ALIGNMENT_KEY);
	int64_t wish = ALIGNMENT_PLAIN;

	if (entry && (entry->type == GGUF_ARRAY || !gguf_integer(entry, 0, &wish)))
		return rosa_fail(err, ROSA_EFORMAT, "%s: metadata %s is no integer", file, ALIGNMENT_KEY);
	if (wish < 1 || wish > ALIGNMENT_LARGEST || (wish & (wish - 1)))
		return rosa_fail(err, ROSA_EFORMAT, "%s: metadata %s is %lld; it must be a power of 2 up to %d", file,
				 ALIGNMENT_KEY, (long long)wish, ALIGNMENT_LARGEST);
	*alignment = (size_t)wish;
	return ROSA_OK;
}

/* Where the bytes of tensors begin: the next multiple of the alignment. */
static size_t data_begin(const struct cursor *cursor, size_t alignment)
{
	const size_t over = cursor->at % alignment;

	return cursor->at + (over ? alignment - over : 0);
}

static rosa_status place(struct tensor *tensor, const struct cursor *cursor, size_t begin, size_t alignment,
			 uint64_t offset)
{
	uint64_t at;

	if (offset % alignment)
		return rosa_fail(cursor->err, ROSA_EFORMAT,
				 "%s: tensor %.100s: offset %llu is no multiple of the file's alignment, %zu",
				 tensor->file, tensor->name, (unsigned long long)offset, alignment);
	if (__builtin_add_overflow(offset, begin, &at))
		return rosa_fail(cursor->err, ROSA_EFORMAT, "%s: tensor %.100s: offset %llu is larger than any file",
				 tensor->file, tensor->name, (unsigned long long)offset);
	return tensor_place(tensor, cursor->data, cursor->size, at, cursor->err);
}

/* The second walk; `begin` is where the bytes are, which only the first one could tell. */
static rosa_status store_tensors(struct cursor *cursor, struct tensors *tensors, char *names, size_t begin,
				 size_t alignment)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < tensors->count && !status; i++) {
		struct tensor *tensor = &tensors->all[i];
		struct description description;

		take_description(cursor, &description);
		*tensor = (struct tensor){.name = store_name(&names, description.name), .file = cursor->file};
		status = describe(tensor, &description, cursor->err);
		if (!status)
			status = place(tensor, cursor, begin, alignment, description.offset);
	}
	return status;
}

static rosa_status read_tensors(struct cursor *cursor, size_t count, struct gguf *gguf)
{
	const size_t begin = cursor->at;
	size_t name_bytes = 0, alignment = ALIGNMENT_PLAIN, data;
	char *names;
	rosa_status status = find_alignment(gguf, cursor->file, &alignment, cursor->err);

	if (status)
		return status;
	cursor->part = "list of tensors";
	for (size_t i = 0; i < count && !cursor->status; i++) {
		struct description description;

		take_description(cursor, &description);
		name_bytes += description.name.length + 1;
	}
	status = cursor->status;
	data = data_begin(cursor, alignment);
	if (!status)
		status = tensors_new(&gguf->tensors, count, name_bytes, &names, cursor->file, cursor->err);
	if (status)
		return status;
	cursor->at = begin;
	status = store_tensors(cursor, &gguf->tensors, names, data, alignment);
	if (!status)
		status = tensors_sort_by_place(&gguf->tensors, cursor->err);
	if (!status)
		status = tensors_sort_by_name(&gguf->tensors, cursor->err);
	return status;
}

/* --------------------------------------------------------------------------------------------------------- whole -- */

static rosa_status check_version(const struct cursor *cursor, uint32_t version)
{
	if (version == 2 || version == 3)
		return ROSA_OK;
	if (version && !(version & 0xffffff))
		return rosa_fail(cursor->err, ROSA_EFORMAT,
				 "%s: a big-endian GGUF file (version %u); only little-endian ones are supported",
				 cursor->file, (unsigned)(version >> 24));
	return rosa_fail(cursor->err, ROSA_EFORMAT, "%s: GGUF version %u; versions 2 and 3 are supported%s",
			 cursor->file, (unsigned)version, version == 1 ? ": convert the model again" : "");
}

static rosa_status read_all(struct cursor *cursor, struct gguf *gguf)
{
	const uint8_t *magic = take(cursor, 4);
	size_t tensors, entries;
	uint64_t said;
	rosa_status status;

	if (cursor->status || memcmp(magic, "GGUF", 4) != 0)
		return rosa_fail(cursor->err, ROSA_EFORMAT, "%s: is not a GGUF file: it does not begin with \"GGUF\"",
				 cursor->file);
	gguf->version = take_u32(cursor);
	if (!cursor->status)
		cursor->status = check_version(cursor, gguf->version);
	said = take_u64(cursor);
	tensors = believe_count(cursor, said, TENSOR_LEAST, "tensors");
	said = take_u64(cursor);
	entries = believe_count(cursor, said, ENTRY_LEAST, "metadata entries");
	if (cursor->status)
		return cursor->status;
	status = read_entries(cursor, entries, gguf);
	return status ? status : read_tensors(cursor, tensors, gguf);
}

rosa_status gguf_read(const uint8_t *data, size_t size, const char *name, struct gguf *gguf, rosa_error *err)
{
	struct cursor cursor = {data, size, 0, name, "header", ROSA_OK, err};
	rosa_status status;

	*gguf = (struct gguf){.version = 0};
	status = read_all(&cursor, gguf);
	if (status)
		gguf_free(gguf);
	return status;
}

void gguf_free(struct gguf *gguf)
{
	free(gguf->entries);
	free(gguf->keys);
	free(gguf->texts);
	tensors_free(&gguf->tensors);
	*gguf = (struct gguf){.version = 0};
}

/* -------------------------------------------------------------------------------------------------------- values -- */

size_t gguf_value_bytes(enum gguf_type type)
{
	return value_bytes[type];
}

const struct gguf_entry *gguf_find(const struct gguf *gguf, const char *key)
{
	const struct gguf_entry wanted = {.key = key};

	if (!gguf->count)
		return NULL;
	return bsearch(&wanted, gguf->entries, gguf->count, sizeof(*gguf->entries), compare_keys);
}

/* An element's bits; false if there is none, or it is a string. */
static bool element_bits(const struct gguf_entry *entry, size_t i, uint64_t *bits)
{
	const size_t bytes = entry ? value_bytes[entry->element] : 0;

	if (!bytes || i >= entry->count)
		return false;
	*bits = little_endian(entry->data + i * bytes, bytes);
	return true;
}

static bool is_signed(enum gguf_type type)
{
	return type == GGUF_INT8 || type == GGUF_INT16 || type == GGUF_INT32 || type == GGUF_INT64;
}

static bool is_float(enum gguf_type type)
{
	return type == GGUF_FLOAT32 || type == GGUF_FLOAT64;
}

static int64_t signed_number(uint64_t bits, enum gguf_type type)
{
	switch (value_bytes[type]) {
	case 1:
		return (int8_t)bits;
	case 2:
		return (int16_t)bits;
	case 4:
		return (int32_t)bits;
	default:
		return (int64_t)bits;
	}
}

static double float_number(uint64_t bits, enum gguf_type type)
{
	const uint32_t low = (uint32_t)bits;
	float narrow;
	double wide;

	memcpy(&narrow, &low, sizeof(narrow));
	memcpy(&wide, &bits, sizeof(wide));
	return type == GGUF_FLOAT32 ? (double)narrow : wide;
}

bool gguf_integer(const struct gguf_entry *entry, size_t i, int64_t *value)
{
	uint64_t bits;

	if (!element_bits(entry, i, &bits))
		return false;
	if (is_float(entry->element)) {
		const double number = float_number(bits, entry->element);

		if (!(fabs(number) <= FLOAT_INTEGER_MAX) || number != floor(number))
			return false;
		*value = (int64_t)number;
		return true;
	}
	if (!is_signed(entry->element) && bits > INT64_MAX)
		return false;
	*value = is_signed(entry->element) ? signed_number(bits, entry->element) : (int64_t)bits;
	return true;
}

bool gguf_number(const struct gguf_entry *entry, size_t i, double *value)
{
	uint64_t bits;

	if (!element_bits(entry, i, &bits) || entry->element == GGUF_BOOL)
		return false;
	if (is_float(entry->element))
		*value = float_number(bits, entry->element);
	else
		*value = is_signed(entry->element) ? (double)signed_number(bits, entry->element) : (double)bits;
	return true;
}

bool gguf_string(const struct gguf_entry *entry, size_t i, struct gguf_text *text)
{
	if (!entry || entry->element != GGUF_STRING || i >= entry->count)
		return false;
	*text = entry->texts[i];
	return true;
}
