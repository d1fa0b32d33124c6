/*
 * One variant of the packing of symbols.c, made by including this file with these macros defined (all but PACK_NAME
 * have a plain default; all are undefined again at the end):
 *
 *   PACK_NAME           suffix of the functions
 *   PACK_TARGET         function attribute that allows the instructions
 *   PACK_WORD_4(p, inf) 64 bits from 64 numbers of 4 bytes at p, `inf` being the pattern of infinity
 *   PACK_WORD_2(p, inf) the same for 2 bytes
 *   PACK_CUT(x, bits, out)               four symbols from the low 4*bits bits of x
 *   PACK_TURN(rows, routes, out, stride) PACK_STEPS rows of symbols, transposed into `routes` rows of the output;
 *                                        returns how many routes it did (a plain loop does the rest)
 */
#define PACK_PASTE_(a, b) a##b
#define PACK_PASTE(a, b)  PACK_PASTE_(a, b)
#define PACK_FUNC(name)   PACK_PASTE(name, PACK_NAME)

#ifndef PACK_TARGET
#define PACK_TARGET
#endif
#ifndef PACK_WORD_4
#define PACK_WORD_4(p, inf) word_4_plain(p, inf)
#endif
#ifndef PACK_WORD_2
#define PACK_WORD_2(p, inf) word_2_plain(p, inf)
#endif
#ifndef PACK_CUT
#define PACK_CUT(x, bits, out) cut_plain(x, bits, out)
#endif
#ifndef PACK_TURN
#define PACK_TURN(rows, routes, out, stride) 0
#endif

/* The bits of `count` channels, and a word of zeros behind them. */
PACK_TARGET static void PACK_FUNC(row_bits_)(const struct pack_job *job, const unsigned char *row, size_t count,
					     uint64_t *words)
{
	const size_t width = job->width, whole = count / 64, rest = count % 64;
	const uint32_t infinity = job->infinity;
	unsigned char tail[64 * 4];

	if (width == 4)
		for (size_t w = 0; w < whole; w++)
			words[w] = PACK_WORD_4(row + w * 64 * 4, infinity);
	else
		for (size_t w = 0; w < whole; w++)
			words[w] = PACK_WORD_2(row + w * 64 * 2, infinity);
	words[whole] = 0;
	if (rest) {
		/* Zeros pack to 0, and nothing behind the row is touched. */
		memcpy(tail, row + whole * 64 * width, rest * width);
		memset(tail + rest * width, 0, (64 - rest) * width);
		words[whole] = width == 4 ? PACK_WORD_4(tail, infinity) : PACK_WORD_2(tail, infinity);
		words[whole + 1] = 0;
	}
}

/* Cut `routes` symbols, the first being route `first` of the strings, out of each of `steps` strings, and hand them out
 * transposed. */
PACK_TARGET static void PACK_FUNC(tile_)(const struct pack_job *job, uint64_t (*strings)[PACK_WORDS], size_t first,
					 size_t steps, size_t routes, uint16_t *out)
{
	const unsigned bits = job->bits;
	uint16_t rows[PACK_STEPS][PACK_ROUTES];
	size_t done = 0;

	for (size_t t = 0; t < steps; t++) {
		for (size_t r = 0; r < routes; r += 4) {
			const size_t at = (first + r) * bits;
			const unsigned shift = at % 64;
			const uint64_t *word = strings[t] + at / 64;

			/* Two shifts, since one of 64 would be undefined where `shift` is 0. */
			PACK_CUT(word[0] >> shift | word[1] << 1 << (63 - shift), bits, rows[t] + r);
		}
	}
	if (steps == PACK_STEPS)
		done = PACK_TURN(rows, routes, out, job->route_stride);
	for (size_t r = done; r < routes; r++)
		for (size_t t = 0; t < steps; t++)
			out[r * job->route_stride + t] = rows[t][r];
}

/* `steps` rows from step `t` on, `routes` routes from route `first` on. */
PACK_TARGET static void PACK_FUNC(block_)(const struct pack_job *job, size_t t, size_t steps, size_t first,
					  size_t routes)
{
	const unsigned char *row = job->rows + t * job->row_bytes + first * job->bits * job->width;
	uint16_t *out = job->symbols + first * job->route_stride + t;
	uint64_t strings[PACK_STEPS][PACK_WORDS];

	for (size_t i = 0; i < steps; i++)
		PACK_FUNC(row_bits_)(job, row + i * job->row_bytes, routes * job->bits, strings[i]);
	for (size_t r = 0; r < routes; r += PACK_ROUTES) {
		const size_t some = routes - r < PACK_ROUTES ? routes - r : PACK_ROUTES;

		PACK_FUNC(tile_)(job, strings, r, steps, some, out + r * job->route_stride);
	}
}

PACK_TARGET static void PACK_FUNC(pack_)(const struct pack_job *job)
{
	const size_t block = PACK_CHANNELS / job->bits / PACK_ROUTES * PACK_ROUTES;

	for (size_t t = 0; t < job->steps; t += PACK_STEPS) {
		const size_t steps = job->steps - t < PACK_STEPS ? job->steps - t : PACK_STEPS;

		for (size_t r = 0; r < job->routes; r += block)
			PACK_FUNC(block_)(job, t, steps, r, job->routes - r < block ? job->routes - r : block);
	}
}

#undef PACK_PASTE_
#undef PACK_PASTE
#undef PACK_FUNC
#undef PACK_NAME
#undef PACK_TARGET
#undef PACK_WORD_4
#undef PACK_WORD_2
#undef PACK_CUT
#undef PACK_TURN
