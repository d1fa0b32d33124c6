/*
 * One variant of the inner loops of attend.c, made by including this file after vectors.h with ATTEND_ROWS (queries of
 * a tile) and ATTEND_REGISTERS (vector registers) defined; both are undefined again at the end.
 *
 * The scores of a tile are stored in panels, [panel][ATTEND_ROWS][16], and its queries transposed,
 * [head_size][ATTEND_ROWS]. So all addresses of an inner loop are one pointer plus constants.
 *
 * Loops over rows and vectors have constant bounds once they are inlined, and their arrays then live in registers. The
 * products of one number are summed in the order of channels (scores) or of positions (values), whatever the shape of
 * the tile, so the choice of shapes does not change the result.
 */
#define V_OF_PANEL (KV_LANES / V_LANES)

/* How many panels, or groups of 16 channels of values, a tile of so many rows takes at once. Registers are needed for
 * one vector of them, for one sum per row and for the number of the current row. Four groups keep enough additions in
 * flight. */
#define ATTEND_FIT(rows)  ((ATTEND_REGISTERS - 1) / V_OF_PANEL / ((rows) + 1))
#define ATTEND_WIDE(rows) (ATTEND_FIT(rows) < 1 ? 1 : ATTEND_FIT(rows) > 4 ? 4 : ATTEND_FIT(rows))

/* Scores of `rows` queries with the keys of `panels` panels, both constant. */
V_INLINE void V_FUNC(score_tile_)(const size_t rows, const size_t panels, size_t head_size, const float *q,
				  const float *keys, float *scores)
{
	const size_t vectors = panels * V_OF_PANEL;
	V sums[ATTEND_ROWS][4 * V_OF_PANEL];

	for (size_t r = 0; r < rows; r++)
		for (size_t j = 0; j < vectors; j++)
			sums[r][j] = V_ZERO();
	for (size_t c = 0; c < head_size; c++) {
		V key[4 * V_OF_PANEL];

		for (size_t j = 0; j < vectors; j++)
			key[j] = V_LOAD(keys + (j / V_OF_PANEL * head_size + c) * KV_LANES + j % V_OF_PANEL * V_LANES);
		for (size_t r = 0; r < rows; r++)
			for (size_t j = 0; j < vectors; j++)
				sums[r][j] = V_FMA(V_SET(q[c * ATTEND_ROWS + r]), key[j], sums[r][j]);
	}
	for (size_t r = 0; r < rows; r++)
		for (size_t j = 0; j < vectors; j++)
			V_STORE(scores + (j / V_OF_PANEL * ATTEND_ROWS + r) * KV_LANES + j % V_OF_PANEL * V_LANES,
				sums[r][j]);
}

/* The same for any number of panels. */
V_INLINE void V_FUNC(score_rows_)(const size_t rows, size_t head_size, const float *q, const float *keys, size_t panels,
				  float *scores)
{
	const size_t wide = ATTEND_WIDE(rows), keys_of = head_size * KV_LANES, scores_of = ATTEND_ROWS * KV_LANES;
	size_t p = 0;

	for (; p + wide <= panels; p += wide)
		V_FUNC(score_tile_)(rows, wide, head_size, q, keys + p * keys_of, scores + p * scores_of);
	for (; p < panels; p++)
		V_FUNC(score_tile_)(rows, 1, head_size, q, keys + p * keys_of, scores + p * scores_of);
}

/* acc[row][0 .. width-1] += weights of `rows` rows times the values of lanes `lane` .. `end`-1, counted from the first
 * lane of the first panel. */
V_INLINE void V_FUNC(value_tile_)(const size_t rows, const size_t width, const float *weights, size_t lane, size_t end,
				  const float *values, size_t stride, float *acc)
{
	const size_t vectors = width / V_LANES;
	V sums[ATTEND_ROWS][4 * V_OF_PANEL];

	for (size_t r = 0; r < rows; r++)
		for (size_t j = 0; j < vectors; j++)
			sums[r][j] = V_LOAD(acc + r * stride + j * V_LANES);
	while (lane < end) {
		const size_t stop = lane / KV_LANES * KV_LANES + KV_LANES;
		const float *w = weights + lane / KV_LANES * ATTEND_ROWS * KV_LANES + lane % KV_LANES,
			    *v = values + lane * stride;

		for (; lane < end && lane < stop; lane++, w++, v += stride) {
			V value[4 * V_OF_PANEL];

			for (size_t j = 0; j < vectors; j++)
				value[j] = V_LOAD(v + j * V_LANES);
			for (size_t r = 0; r < rows; r++)
				for (size_t j = 0; j < vectors; j++)
					sums[r][j] = V_FMA(V_SET(w[r * KV_LANES]), value[j], sums[r][j]);
		}
	}
	for (size_t r = 0; r < rows; r++)
		for (size_t j = 0; j < vectors; j++)
			V_STORE(acc + r * stride + j * V_LANES, sums[r][j]);
}

/* The same for rows of `width` numbers, a multiple of 16, and some rows at once. */
V_INLINE void V_FUNC(value_span_)(const size_t rows, const float *weights, size_t lane, size_t end, const float *values,
				  size_t stride, size_t width, float *acc)
{
	const size_t wide = ATTEND_WIDE(rows) * KV_LANES;
	size_t c = 0;

	for (; c + wide <= width; c += wide)
		V_FUNC(value_tile_)(rows, wide, weights, lane, end, values + c, stride, acc + c);
	for (; c < width; c += KV_LANES)
		V_FUNC(value_tile_)(rows, KV_LANES, weights, lane, end, values + c, stride, acc + c);
}

/* The same in the order that suits the number of rows. With many rows, sums stay in registers as long as possible. With
 * few, the loop is bound by memory, which is read fastest in sequence: panel after panel. Once read, a panel is in the
 * cache and can be read again for every row. */
V_INLINE void V_FUNC(value_rows_)(const size_t rows, const float *weights, size_t lane, size_t end, const float *values,
				  size_t stride, size_t width, float *acc)
{
	const size_t at_once = ATTEND_WIDE(rows) < 4 ? 1 : rows;

	if (rows > 4) {
		V_FUNC(value_span_)(rows, weights, lane, end, values, stride, width, acc);
		return;
	}
	for (size_t stop; lane < end; lane = stop) {
		stop = lane / KV_LANES * KV_LANES + KV_LANES;
		if (stop > end)
			stop = end;
		for (size_t r = 0; r < rows; r += at_once) {
			const float *w = weights + r * KV_LANES;

			V_FUNC(value_span_)(at_once, w, lane, stop, values, stride, width, acc + r * stride);
		}
	}
}

/* Both for any number of rows, in tiles of a constant number. */
#define ATTEND_CASE(n, call)                                                                                           \
	if (ATTEND_ROWS >= (n) && count - row >= (n)) {                                                                \
		const size_t rows = (n);                                                                               \
		call;                                                                                                  \
		row += (n);                                                                                            \
		continue;                                                                                              \
	}
#define ATTEND_CASES(call)                                                                                             \
	for (size_t row = 0; row < count;) {                                                                           \
		ATTEND_CASE(12, call)                                                                                  \
		ATTEND_CASE(6, call)                                                                                   \
		ATTEND_CASE(4, call)                                                                                   \
		ATTEND_CASE(3, call)                                                                                   \
		ATTEND_CASE(2, call)                                                                                   \
		ATTEND_CASE(1, call)                                                                                   \
	}

V_TARGET static void V_FUNC(score_)(size_t count, size_t head_size, const float *q, const float *keys, size_t panels,
				    float *scores){
    ATTEND_CASES(V_FUNC(score_rows_)(rows, head_size, q + row, keys, panels, scores + row * KV_LANES))}

V_TARGET
    static void V_FUNC(value_)(size_t count, const float *weights, size_t lane, size_t end, const float *values,
			       size_t stride, size_t width,
			       float *acc){ATTEND_CASES(V_FUNC(value_rows_)(rows, weights + row * KV_LANES, lane, end,
									    values, stride, width, acc + row * stride))}

/* Turn the scores of one row into weights, the greatest into 1, and return their sum. It is summed by lane, that is by
 * position modulo 16, and the lanes in a fixed order; masked positions add zeros. */
V_TARGET static float V_FUNC(soften_)(const float *scores, size_t panels, float *weights)
{
	const size_t stride = (size_t)ATTEND_ROWS * KV_LANES;
	V greatest[V_OF_PANEL], sums[V_OF_PANEL];
	float lane[KV_LANES], most;

	for (size_t j = 0; j < V_OF_PANEL; j++) {
		greatest[j] = V_LOAD(scores + j * V_LANES);
		sums[j] = V_ZERO();
	}
	for (size_t p = 1; p < panels; p++)
		for (size_t j = 0; j < V_OF_PANEL; j++)
			greatest[j] = V_MAX(greatest[j], V_LOAD(scores + p * stride + j * V_LANES));
	for (size_t j = 0; j < V_OF_PANEL; j++)
		V_STORE(lane + j * V_LANES, greatest[j]);
	most = lane[0];
	for (size_t i = 1; i < KV_LANES; i++)
		most = lane[i] > most ? lane[i] : most;
	for (size_t p = 0; p < panels; p++) {
		for (size_t j = 0; j < V_OF_PANEL; j++) {
			const size_t at = p * stride + j * V_LANES;
			const V weight = V_EXP(V_SUB(V_LOAD(scores + at), V_SET(most)));

			V_STORE(weights + at, weight);
			sums[j] = V_ADD(sums[j], weight);
		}
	}
	for (size_t j = 0; j < V_OF_PANEL; j++)
		V_STORE(lane + j * V_LANES, sums[j]);
	for (size_t half = KV_LANES / 2; half; half /= 2)
		for (size_t i = 0; i < half; i++)
			lane[i] += lane[i + half];
	return lane[0];
}

#undef V_OF_PANEL
#undef ATTEND_FIT
#undef ATTEND_WIDE
#undef ATTEND_CASE
#undef ATTEND_CASES
#undef ATTEND_ROWS
#undef ATTEND_REGISTERS
