/*
 * Any bytes as a session file.
 *
 * An input is used twice: as a file, and as a list of changes to a good session of a tiny model, sealed with good
 * checksums, which gets further. The first byte chooses the window. Whatever is accepted must be usable: the decoder
 * reads one more token with it.
 */
#include "base/checksum.h"
#include "model/session.h"
#include "support_decoder.h"
#include "support_fuzz.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODELS 4

struct subject {
	decoder *decoder;
	uint8_t *image; /* a good session */
	size_t size;
};

static struct subject subjects[MODELS];

static void save_good(struct subject *s, const char *path)
{
	uint32_t tokens[30];
	struct session session = {.draws = 3, .tokens = {tokens, 30, 30}};
	struct piece piece = {NULL, tokens, 25, LOGITS_NONE, NULL};

	for (uint32_t i = 0; i < 30; i++)
		tokens[i] = i * 7 % 50;
	check(conversation_add(&session.conversation, "user", 4, "Hello", 5, NULL) == ROSA_OK);
	check(sequence_new(s->decoder, &piece.sequence, NULL) == ROSA_OK);
	check(decoder_read(s->decoder, 1, &piece, NULL, NULL, NULL) == ROSA_OK);
	check(session_save(path, &session, (struct session_state){.sequence = piece.sequence}, NULL, NULL) == ROSA_OK);
	check(file_read(path, NULL, &s->image, &s->size, NULL) == ROSA_OK);
	sequence_free(piece.sequence);
	conversation_free(&session.conversation);
	unlink(path);
}

/* A model with everything global, one with a window, and two with an adapter, of layers' own symbols and of tokens. */
static void make(struct subject *s, int kind)
{
	const struct tiny_model model = {LLAMA, FORMAT_F32, 2, 16, 2, 1, 8, 16, 50, true, 1};
	const struct tiny_adapter own = {.bits = 4, .window = 8, .sinks = 2, .seed = 1};
	const struct tiny_adapter shared = {.bits = 4,
					    .window = 8,
					    .sinks = 2,
					    .seed = 1,
					    .source = "tokens+embeddings+layer 1",
					    .chain = 2,
					    .late = true,
					    .gain = true};
	struct bench *b = bench_open(&model, kind < 2 ? NULL : kind == 2 ? &own : &shared);
	char path[] = "/tmp/fuzz_session-XXXXXX";
	const int file = mkstemp(path);

	check(file >= 0);
	close(file);
	b->options.window = kind ? 8 : 0;
	b->options.sinks = kind ? 2 : 0;
	bench_start(b, 32, 1);
	s->decoder = b->decoder;
	save_good(s, path);
}

static void try(const struct subject *s, const uint8_t *data, size_t size)
{
	struct session session;
	sequence *sequence;
	rosa_error err = {0};

	if (session_parse(data, size, "session", s->decoder, &session, &sequence, &err) != ROSA_OK) {
		check(!sequence && !session.tokens.ids && strstr(err.message, "session"));
		return;
	}
	check(sequence_steps(sequence) < session.tokens.count);
	struct piece piece = {sequence, session.tokens.ids + sequence_steps(sequence), 1, LOGITS_NONE, NULL};
	decoder_read(s->decoder, 1, &piece, NULL, NULL, &err);
	sequence_free(sequence);
	session_free(&session);
}

/* Where the sequence begins, as the header has it; 0: beyond the end. */
static size_t sequence_at(const uint8_t *data, size_t size)
{
	uint64_t numbers[11];

	if (size < 96 + 8)
		return 0;
	memcpy(numbers, data + 8, sizeof(numbers));
	if (numbers[3] > size || numbers[5] > size || numbers[9] > size || numbers[10] > size)
		return 0;
	const size_t head = 96 + (size_t)(numbers[9] + 7) / 8 * 8 + (size_t)(numbers[10] + 7) / 8 * 8 +
			    (size_t)(numbers[3] * 4 + 7) / 8 * 8 + (size_t)numbers[5];

	return head + 16 <= size ? head + 8 : 0;
}

static void seal(uint8_t *data, size_t size)
{
	const size_t at = sequence_at(data, size);
	uint64_t sum;

	if (!at)
		return;
	sum = checksum_of(data, at - sizeof(sum));
	memcpy(data + at - sizeof(sum), &sum, sizeof(sum));
	sum = checksum_of(data + at, size - at - sizeof(sum));
	memcpy(data + size - sizeof(sum), &sum, sizeof(sum));
}

/* Each change takes four bytes: what to do, a place (in words of 8 bytes), and a value. */
static void try_changes(const struct subject *s, const uint8_t *changes, size_t count)
{
	size_t size = s->size;
	uint8_t *data = malloc(size);

	check(data != NULL);
	memcpy(data, s->image, size);
	for (size_t i = 0; i + 4 <= count && size >= 64; i += 4) {
		const size_t at = (size_t)(changes[i + 1] | changes[i + 2] << 8) % (size / 8) * 8;
		uint64_t number = changes[i + 3];

		switch (changes[i] % 4) {
		case 0: /* a number */
			memcpy(data + at, &number, sizeof(number));
			break;
		case 1: /* a large one */
			number <<= changes[i] / 4;
			memcpy(data + at, &number, sizeof(number));
			break;
		case 2: /* a byte */
			data[at + changes[i] / 4 % 8] = changes[i + 3];
			break;
		case 3: /* something is missing */
			number = number * 8 < size - at ? number * 8 : size - at;
			memmove(data + at, data + at + number, size - at - number);
			size -= number;
			break;
		}
	}
	seal(data, size);
	/* a copy of just that size, so that a sanitizer sees what lies behind it */
	uint8_t *copy = malloc(size ? size : 1);

	check(copy != NULL);
	memcpy(copy, data, size);
	try(s, copy, size);
	free(copy);
	free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (int i = 0; i < MODELS && !subjects[i].decoder; i++)
		make(&subjects[i], i);
	if (!size)
		return 0;
	const struct subject *s = &subjects[data[0] % MODELS];

	try(s, data + 1, size - 1);
	try_changes(s, data + 1, size - 1);
	return 0;
}
