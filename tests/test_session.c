/*
 * Session files: what is saved comes back, and whatever else may be in a file is refused.
 *
 * A file that was cut or altered by accident is detected by its checksums. Here the checksum of the head is corrected
 * after every change, as an attacker would do: each number must be checked by itself, and what is accepted must be a
 * session.
 */
#include "base/checksum.h"
#include "base/file.h"
#include "cli/models.h"
#include "model/session.h"
#include "support_decoder.h"
#include "support_folder.h"
#include "support_test.h"
#include "support_weights.h"

static const uint32_t tokens[7] = {3, 1, 4, 1, 5, 9, 2};

/* A model, and a file for its session. */
struct place {
	void *folder;
	const char *file;
	struct model model;
};

static int enter(void **state)
{
	struct tiny_model tiny = TINY_MODEL;
	struct model_args args = MODEL_ARGS_INIT;
	struct place *place = calloc(1, sizeof(*place));
	const struct folder *folder;

	if (!place || folder_enter(&place->folder))
		return -1;
	folder = place->folder;
	place->file = folder->file;
	tiny_model_save(&tiny, folder->other);
	args.model = folder->other;
	args.window = 4;
	args.threads = 1;
	*state = place;
	if (model_open(&place->model, &args, &err))
		return 0;
	print_error("%s\n", err.message);
	return -1;
}

static int leave(void **state)
{
	struct place *place = *state;

	model_close(&place->model);
	int result = folder_leave(&place->folder);
	free(place);
	return result;
}

/* A session of 7 tokens, 5 of which were read, with two messages. */
static void save(struct place *place)
{
	struct session session = {
	    .settings = {9, 2, 1, (char *)"/an/adapter", (char *)"/a/pointer.json"}, .draws = 77, .ended = true};
	rosa_error why;
	rosa_error err;
	sequence *sequence;

	session.tokens = (struct tokens){(uint32_t *)tokens, 7, 7};
	assert_int_equal(conversation_add(&session.conversation, "user", 4, "Who is there?", 13, &why), ROSA_OK);
	assert_int_equal(conversation_add(&session.conversation, "assistant", 9, "", 0, &why), ROSA_OK);
	must(sequence_new(place->model.decoder, &sequence, &err));
	struct piece piece = {sequence, tokens, 5, LOGITS_NONE, NULL};
	must(decoder_read(place->model.decoder, 1, &piece, NULL, NULL, &err));
	if (session_save(place->file, &session, (struct session_state){.sequence = sequence}, NULL, &why) != ROSA_OK)
		fail_msg("%s", why.message);
	sequence_free(sequence);
	conversation_free(&session.conversation);
}

/* The same, as the file has it. */
static struct bytes saved(struct place *place)
{
	struct bytes file = {0};

	save(place);
	must(file_read(place->file, NULL, &file.data, &file.size, &err));
	test_later(free, file.data);
	return file;
}

static void check_settings(const struct session_settings *settings)
{
	assert_int_equal(settings->window, 9);
	assert_int_equal(settings->sinks, 2);
	assert_int_equal(settings->first_global_layers, 1);
	assert_string_equal(settings->adapter, "/an/adapter");
	assert_string_equal(settings->pointer, "/a/pointer.json");
}

TEST_WITH(comes_back, enter, leave)
{
	struct place *place = *state;
	struct session_settings settings;
	struct session session;
	sequence *sequence;

	save(place);
	must(session_load(place->file, place->model.decoder, &session, &sequence, &err));
	check_settings(&session.settings);
	must(session_settings_read(place->file, &settings, &err));
	check_settings(&settings);
	session_settings_free(&settings);
	assert_int_equal(session.draws, 77);
	assert_true(session.ended);
	assert_int_equal(session.tokens.count, 7);
	assert_memory_equal(session.tokens.ids, tokens, sizeof(tokens));
	assert_int_equal(session.conversation.count, 2);
	assert_string_equal(session.conversation.all[0].role, "user");
	assert_string_equal(session.conversation.all[0].content, "Who is there?");
	assert_string_equal(session.conversation.all[1].role, "assistant");
	assert_string_equal(session.conversation.all[1].content, "");
	assert_int_equal(sequence_steps(sequence), 5);
	sequence_free(sequence);
	session_free(&session);
}

/* All but the state, which may even be damaged, as long as there is a header. */
TEST_WITH(a_look_tells_what_there_is, enter, leave)
{
	struct place *place = *state;
	struct session session;
	const struct bytes file = saved(place);
	size_t steps;

	must(session_look(place->file, place->model.decoder, &session, &steps, &err));
	assert_int_equal(steps, 5);
	assert_int_equal(session.tokens.count, 7);
	assert_memory_equal(session.tokens.ids, tokens, sizeof(tokens));
	session_free(&session);
	for (size_t cut = 0; cut < file.size; cut += 8) {
		must(file_save(place->file, file.data, cut, NULL, &err));
		if (session_look(place->file, place->model.decoder, &session, &steps, &err) == ROSA_OK)
			session_free(&session);
		else
			assert_null(session.tokens.ids);
	}
	file.data[16] ^= 1;
	must(file_save(place->file, file.data, file.size, NULL, &err));
	assert_int_equal(session_look(place->file, place->model.decoder, &session, &steps, &err), ROSA_EFORMAT);
}

/* Loads what lies in the file; refused, it leaves nothing behind and says why. */
static bool try(struct place *place)
{
	struct session session;
	rosa_error err = {0};
	sequence *sequence;

	if (session_load(place->file, place->model.decoder, &session, &sequence, &err) != ROSA_OK) {
		must_say(place->file);
		assert_null(sequence);
		assert_null(session.tokens.ids);
		assert_null(session.conversation.all);
		return false;
	}
	assert_true(sequence_steps(sequence) < session.tokens.count);
	sequence_free(sequence);
	session_free(&session);
	return true;
}

/* Where the head ends: magic and ten numbers, the adapter's path, tokens, messages. The checksum follows. */
static size_t head_size(const uint8_t *data)
{
	uint64_t numbers[11];

	memcpy(numbers, data + 8, sizeof(numbers));
	return 96 + (size_t)(numbers[9] + 7) / 8 * 8 + (size_t)(numbers[10] + 7) / 8 * 8 +
	       (size_t)(numbers[3] * 4 + 7) / 8 * 8 + (size_t)numbers[5];
}

TEST_WITH(refuses_what_was_cut, enter, leave)
{
	struct place *place = *state;
	const struct bytes file = saved(place);

	for (size_t cut = 0; cut < file.size; cut += cut < 400 || file.size - cut < 64 ? 1 : 97) {
		file_put(place->file, file.data, cut);
		assert_false(try(place));
	}
	file_put(place->file, file.data, file.size);
	assert_true(try(place));
}

TEST_WITH(refuses_what_was_altered, enter, leave)
{
	struct place *place = *state;
	const struct bytes file = saved(place);

	for (size_t at = 0; at < file.size; at += at < 400 ? 1 : 53) {
		file.data[at] ^= 0x10;
		file_put(place->file, file.data, file.size);
		assert_false(try(place));
		file.data[at] ^= 0x10;
	}
}

/* Any byte of the head changed, and the checksum with it. */
TEST_WITH(believes_no_number, enter, leave)
{
	static const uint8_t masks[] = {0x01, 0x80, 0xff};
	struct place *place = *state;
	const struct bytes file = saved(place);
	const size_t head = head_size(file.data);
	size_t refused = 0, tried = 0;

	assert_true(head + 8 < file.size);
	for (size_t at = 8; at < head; at++) {
		for (size_t i = 0; i < sizeof(masks); i++) {
			file.data[at] ^= masks[i];
			uint64_t sum = checksum_of(file.data, head);
			memcpy(file.data + head, &sum, sizeof(sum));
			file_put(place->file, file.data, file.size);
			refused += !try(place);
			tried++;
			file.data[at] ^= masks[i];
		}
	}
	/* Draws, letters and tokens that are tokens may be anything; counts and sizes may not. */
	assert_in_range(refused, 3 * 8 * 4, tried - 1);
}
