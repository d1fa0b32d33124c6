/*
 * Any bytes as a NumPy file.
 *
 * Besides the sanitizers' own checks, what is accepted must be consistent: the elements fill the file exactly, and what
 * is refused comes with a reason and without memory to release.
 *
 * Random bytes hardly ever get past the magic and the length, so an input is tried twice: as it is, and as the header
 * of a file that is right up to there.
 */
#include "cli/npy.h"
#include "support_fuzz.h"

static void try(const uint8_t *data, size_t size)
{
	struct npy_header header;
	struct npy_rows symbols;
	rosa_error why = {0};

	if (npy_parse(data, size, &header, &why)) {
		check(header.dims >= 0 && header.dims <= NPY_MAX_DIMS && header.width > 0);
		check(header.offset <= size && header.count * header.width == size - header.offset);
	} else {
		check(why.message[0] != '\0');
	}
	why.message[0] = '\0';
	if (npy_read(data, size, NPY_SYMBOLS, &symbols, &why)) {
		check(symbols.rows > 0 && symbols.steps > 0);
		check(symbols.rows * symbols.steps <= size);
		check(header.width == 4 || symbols.values[symbols.rows * symbols.steps - 1] >> 8 * header.width == 0);
		free(symbols.values);
	} else {
		check(why.message[0] != '\0' && symbols.values == NULL);
	}
	struct npy_rows tokens;
	why.message[0] = '\0';
	if (npy_read(data, size, NPY_TOKENS, &tokens, &why)) {
		check(tokens.rows > 0 && tokens.steps > 0);
		check(tokens.rows * tokens.steps <= size / 2);
		free(tokens.values);
	} else {
		check(why.message[0] != '\0' && tokens.values == NULL);
	}
}

/* The input as a header, with the rest of it, from the first '}' on, as elements. */
static void try_as_header(const uint8_t *data, size_t size)
{
	const uint8_t *close = memchr(data, '}', size);
	size_t length = close ? (size_t)(close - data) + 1 : size;
	uint8_t *file = malloc(12 + size);

	check(file != NULL);
	memcpy(file, "\x93NUMPY\x02\x00", 8);
	for (size_t i = 0; i < 4; i++)
		file[8 + i] = (uint8_t)(length >> 8 * i);
	memcpy(file + 12, data, size);
	try(file, 12 + size);
	free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try(data, size);
	if (size > 0)
		try_as_header(data, size);
	return 0;
}
