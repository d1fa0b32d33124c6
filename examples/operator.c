/*
 * The operator as a layer: forward, backward, and a few steps of gradient descent.
 *
 * Letters of a text have random embeddings of 32 channels, each +1 or -1. The layer looks at every letter for the
 * longest earlier match of the text up to there, reads the letter that came next, and injects what it has read. Its
 * projections are the identity, so what is left to learn is how a bit that was read is to be spoken: between e0 and e1,
 * both 0 at the start, so that the layer begins by adding nothing. It is asked to inject the embedding of the letter
 * that really comes next, and learns it in a few steps, as far as the past tells.
 *
 *     cc operator.c $(pkg-config --cflags --libs rosatune) -o operator
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <rosatune.h>
#include <stdio.h>
#include <string.h>

#define CHANNELS 32
#define ROUNDS   8

static const char text[] = "a rose is a rose is a rose is a rose, is a rose";
#define STEPS (sizeof(text) - 1)

static float embedding[256][CHANNELS];
static float h[STEPS][CHANNELS], out[STEPS][CHANNELS], gout[STEPS][CHANNELS];
static float identity[CHANNELS][CHANNELS], ones[CHANNELS], e0[CHANNELS], e1[CHANNELS];

static void prepare(void)
{
	unsigned random = 1;

	for (int letter = 0; letter < 256; letter++) {
		for (int c = 0; c < CHANNELS; c++) {
			random = random * 1664525u + 1013904223u;
			embedding[letter][c] = random >> 31 ? 1.0f : -1.0f;
		}
	}
	for (size_t t = 0; t < STEPS; t++)
		memcpy(h[t], embedding[(unsigned char)text[t]], sizeof(h[t]));
	for (int c = 0; c < CHANNELS; c++)
		identity[c][c] = ones[c] = 1;
}

/* The mean squared error of `out` against the letters that come next; gout is its gradient, times half the channels. */
static double judge(void)
{
	double error = 0;

	for (size_t t = 0; t < STEPS; t++) {
		for (int c = 0; c < CHANNELS; c++) {
			float difference = t + 1 < STEPS ? out[t][c] - h[t + 1][c] : 0;

			gout[t][c] = difference / (STEPS - 1);
			error += (double)difference * (double)difference;
		}
	}
	return error / ((STEPS - 1) * CHANNELS);
}

/* The letter whose embedding is most like what is injected at step t; '_' where nothing is. */
static char spoken(size_t t)
{
	float best = 0;
	char letter = '_';

	for (const char *try = text; *try; try++) {
		float likeness = 0;

		for (int c = 0; c < CHANNELS; c++)
			likeness += out[t][c] * embedding[(unsigned char)*try][c];
		if (likeness > best) {
			best = likeness;
			letter = *try;
		}
	}
	return letter;
}

int main(void)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_learning learning = ROSA_LEARNING_INIT;
	rosa_layer layer = {.size = sizeof(layer),
			    .channels = CHANNELS,
			    .fusion = ROSA_POST,
			    .dtype = ROSA_FLOAT32,
			    .norm_eps = 1e-6f,
			    .norm = ones,
			    .wq = identity[0],
			    .wk = identity[0],
			    .wv = identity[0],
			    .e0 = e0,
			    .e1 = e1,
			    .wout = identity[0]};
	double first = 0, error = 0;

	prepare();
	for (int round = 0; round < ROUNDS; round++) {
		float ge0[CHANNELS] = {0}, ge1[CHANNELS] = {0};
		rosa_layer_grads grads = {.size = sizeof(grads), .e0 = ge0, .e1 = ge1};
		rosa_tape *tape = NULL;
		rosa_status status;
		rosa_error err;

		if (rosa_layer_forward(&options, &learning, &layer, 1, STEPS, h, out, &tape, &err) != ROSA_OK) {
			fprintf(stderr, "operator: %s\n", err.message);
			return 1;
		}
		error = judge();
		if (round == 0)
			first = error;
		printf("round %d  error %.3f\n", round, error);
		status = rosa_layer_backward(tape, &layer, gout, &grads, NULL, &err);
		if (round == 0)
			printf("         %zu bytes kept for the backward pass\n", rosa_tape_bytes(tape));
		rosa_tape_free(tape);
		if (status != ROSA_OK) {
			fprintf(stderr, "operator: %s\n", err.message);
			return 1;
		}
		for (int c = 0; c < CHANNELS; c++) {
			e0[c] -= ge0[c];
			e1[c] -= ge1[c];
		}
	}
	printf("text     %s\nnext     ", text);
	for (size_t t = 0; t < STEPS; t++)
		putchar(spoken(t));
	putchar('\n');
	return error < first / 2 ? 0 : 1;
}
