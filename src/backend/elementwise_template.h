/*
 * One variant of the functions of elementwise.h, made by including this file after vectors.h.
 *
 * Plain loops are vectorised by the compiler. No sum is reordered.
 */
V_TARGET static void V_FUNC(rms_norm_)(size_t width, const float *x, const float *weight, float eps, float *y)
{
	double lane[LANES] = {0};
	size_t i = 0;
	float scale;

	for (; i + LANES <= width; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += (double)x[i + j] * (double)x[i + j];
	for (size_t j = 0; i + j < width; j++)
		lane[j] += (double)x[i + j] * (double)x[i + j];
	scale = rms_scale(lanes_sum(lane), width, eps);
	for (i = 0; i < width; i++)
		y[i] = weight ? weight[i] * (x[i] * scale) : x[i] * scale;
}

V_INLINE void V_FUNC(swiglu_one_)(const float *gate, const float *up, float *y)
{
	const V x = V_LOAD(gate);

	V_STORE(y, V_MUL(V_MUL(x, V_SIGMOID(x)), V_LOAD(up)));
}

V_TARGET static void V_FUNC(swiglu_)(size_t count, const float *gate, const float *up, float *y)
{
	float rest[3][V_LANES] = {{0}};
	size_t i = 0;

	for (; i + V_LANES <= count; i += V_LANES)
		V_FUNC(swiglu_one_)(gate + i, up + i, y + i);
	if (i == count)
		return;
	memcpy(rest[0], gate + i, (count - i) * sizeof(*gate));
	memcpy(rest[1], up + i, (count - i) * sizeof(*up));
	V_FUNC(swiglu_one_)(rest[0], rest[1], rest[2]);
	memcpy(y + i, rest[2], (count - i) * sizeof(*y));
}

V_TARGET static void V_FUNC(add_)(size_t count, const float *x, float *y)
{
	for (size_t i = 0; i < count; i++)
		y[i] += x[i];
}

/* The gates of some channels, then these channels of all rows: a gate is computed once, with little memory. */
V_TARGET static void V_FUNC(mix_)(size_t steps, size_t channels, const float *a0, const float *h, const float *x,
				  float *y)
{
	float a[GATES] = {0};

	for (size_t c = 0; c < channels; c += GATES) {
		const size_t count = channels - c < GATES ? channels - c : GATES;

		memcpy(a, a0 + c, count * sizeof(*a));
		for (size_t i = 0; i < GATES; i += V_LANES)
			V_STORE(a + i, V_SIGMOID(V_LOAD(a + i)));
		for (size_t t = 0; t < steps; t++) {
			const size_t at = t * channels + c;

			for (size_t i = 0; i < count; i++)
				y[at + i] = (1 - a[i]) * h[at + i] + a[i] * x[at + i];
		}
	}
}

V_TARGET static void V_FUNC(turn_halves_)(size_t half, const float *cosine, const float *sine, float *x)
{
	for (size_t i = 0; i < half; i++) {
		const float a = x[i], b = x[half + i];

		x[i] = a * cosine[i] - b * sine[i];
		x[half + i] = b * cosine[i] + a * sine[i];
	}
}

V_TARGET static void V_FUNC(turn_neighbours_)(size_t half, const float *cosine, const float *sine, float *x)
{
	for (size_t i = 0; i < half; i++) {
		const float a = x[2 * i], b = x[2 * i + 1];

		x[2 * i] = a * cosine[i] - b * sine[i];
		x[2 * i + 1] = b * cosine[i] + a * sine[i];
	}
}

/* Bit c % 64 of word c / 64 of a row is 1 where channel c is > 0. */
V_TARGET static void V_FUNC(pack_)(size_t steps, size_t channels, const float *x, uint64_t *bits)
{
	for (size_t t = 0; t < steps; t++) {
		const float *row = x + t * channels;

		for (size_t c = 0; c < channels; c += WORD) {
			uint64_t word = 0;
			size_t j = 0;

			for (; j < WORD && c + j + V_LANES <= channels; j += V_LANES)
				word |= (uint64_t)V_POSITIVE(V_LOAD(row + c + j)) << j;
			for (; j < WORD && c + j < channels; j++)
				word |= (uint64_t)one_positive(row[c + j]) << j;
			*bits++ = word;
		}
	}
}

/* `count` channels from channel c on, at most 32; inlined with `count` a constant for the usual widths. */
V_INLINE void V_FUNC(read_some_)(size_t steps, size_t channels, size_t c, size_t count, const uint64_t *bits,
				 const float *weight, const float *e0, const float *e1, bool add, float *y)
{
	const size_t words = (channels + WORD - 1) / WORD;

	for (size_t t = 0; t < steps; t++) {
		const uint32_t some = bits_from(bits + t * words, words, c);
		float *to = y + t * channels + c;

		if (weight[t] == 0) {
			if (!add)
				memset(to, 0, count * sizeof(*to));
		} else if (add) {
			for (size_t j = 0; j < count; j++)
				to[j] += weight[t] * (some & bit_masks[j] ? e1[c + j] : e0[c + j]);
		} else {
			for (size_t j = 0; j < count; j++)
				to[j] = weight[t] * (some & bit_masks[j] ? e1[c + j] : e0[c + j]);
		}
	}
}

/* READ_STEPS steps of a route at a time. Rows of `weight` are often a power of two apart, so that their cache lines
 * compete for the same sets: a line is used completely while it is in the cache. */
V_TARGET static void V_FUNC(read_)(size_t steps, size_t channels, size_t routes, const uint64_t *bits,
				   const float *weight, size_t stride, const float *e0, const float *e1, bool add,
				   float *y)
{
	const size_t words = (channels + WORD - 1) / WORD, width = channels / routes;

	for (size_t t = 0; t < steps; t += READ_STEPS) {
		const size_t count = steps - t < READ_STEPS ? steps - t : READ_STEPS;
		const uint64_t *picks = bits + t * words;
		float *to = y + t * channels;

		for (size_t c = 0, some; c < channels; c += some) {
			const size_t route = c / width, left = (route + 1) * width - c;
			const float *w = weight + route * stride + t;

			some = left < 32 ? left : 32;
			if (some == 32)
				V_FUNC(read_some_)(count, channels, c, 32, picks, w, e0, e1, add, to);
			else if (some == 16)
				V_FUNC(read_some_)(count, channels, c, 16, picks, w, e0, e1, add, to);
			else if (some == 8)
				V_FUNC(read_some_)(count, channels, c, 8, picks, w, e0, e1, add, to);
			else if (some == 4)
				V_FUNC(read_some_)(count, channels, c, 4, picks, w, e0, e1, add, to);
			else
				V_FUNC(read_some_)(count, channels, c, some, picks, w, e0, e1, add, to);
		}
	}
}

/* z = 2 sigmoid(u . w + b) and y *= z, one row. */
V_TARGET static float V_FUNC(gate_)(size_t channels, const float *u, const float *w, float b, float *y)
{
	double lane[LANES] = {0};
	size_t i = 0;
	float z;

	for (; i + LANES <= channels; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += (double)u[i + j] * (double)w[i + j];
	for (size_t j = 0; i + j < channels; j++)
		lane[j] += (double)u[i + j] * (double)w[i + j];
	z = 2 * sigmoid((float)(lanes_sum(lane) + (double)b));
	for (i = 0; i < channels; i++)
		y[i] *= z;
	return z;
}
