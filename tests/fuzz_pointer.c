/* Any bytes as a pointer's file: refused with a reason, or used for a mixture that is made of numbers. */
#include "model/pointer.h"
#include "support_fuzz.h"
#include "support_fuzz_file.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pointer pointer;
	rosa_error error = {ROSA_OK, ""};

	if (pointer_load(fuzz_file(data, size), &pointer, &error) != ROSA_OK) {
		check(error.message[0] != '\0' && pointer.links == 0);
		return 0;
	}
	check(pointer.links >= 1 && pointer.links <= POINTER_LINKS);
	struct pointer_links found = {.count = (uint8_t)pointer.links};
	float logits[4] = {1, -30, 7, 0};
	const uint8_t seen[4] = {0, 1, SEEN_CLASSES - 1, 20};

	for (size_t i = 0; i < pointer.links; i++) {
		found.token[i] = (uint32_t)(i % 5);
		found.length[i] = (uint8_t)(1 + 3 * i);
		found.alignment[i] = (uint8_t)(i % 17);
		found.as_long[i] = (uint8_t)(1 + 6 * i);
		found.followed_by[i] = (uint8_t)(1 + i);
	}
	found.places = 96;
	found.different = 16;
	const struct pointer_sample sample = pointer_sample(&found, seen, logits, 4, 1);
	check(pointer_loss(&pointer, &sample) >= (pointer.seeing ? -1e-6 : -1e-9)); /* masses are floats */
	pointer_mix(&pointer, &found, seen, logits, 4);
	for (size_t i = 0; i < 4; i++)
		check(isfinite(logits[i]));
	return 0;
}
