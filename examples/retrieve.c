/*
 * Retrieval step by step: the smallest whole program.
 *
 * Two streams go in, one symbol of each at a time, as a decoder would deliver them. Here the symbols are letters, so
 * that the answers can be followed by eye: the key stream is what can be found, the query stream is what is looked
 * for. Once the query says "abra", the longest match is the "abra" at steps 0 to 3 of the key, and the destination is
 * the step after it.
 *
 *     cc retrieve.c $(pkg-config --cflags --libs rosatune) -o retrieve
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <rosatune.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	const char *query = "-------abra";
	const char *key = "abracadabra";
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_stream *stream = NULL;
	rosa_error err;

	options.bits = 8;
	if (rosa_stream_new(&options, 1, &stream, &err) != ROSA_OK)
		goto fail;

	for (size_t t = 0; t < strlen(key); t++) {
		uint16_t q = (unsigned char)query[t], k = (unsigned char)key[t];
		int32_t destination, length;

		if (rosa_stream_push(stream, 1, &q, &k, 0, &destination, &length, NULL, &err) != ROSA_OK)
			goto fail;
		if (destination < 0)
			printf("step %2zu  query %c  no match\n", t, query[t]);
		else
			printf("step %2zu  query %c  destination %d (%c), match of %d\n", t, query[t], (int)destination,
			       key[destination], (int)length);
	}
	rosa_stream_free(stream);
	return 0;

fail:
	fprintf(stderr, "retrieve: %s\n", err.message);
	rosa_stream_free(stream);
	return 1;
}
