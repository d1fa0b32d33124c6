/* Fitting: positions drawn from a known pointer give its weights back, and no small change of a fit is better. */
#include "base/draw.h"
#include "train/pointer_fit.h"
#include "support_test.h"

#include <math.h>

#define WORDS         12
#define KNOWN_CLASSES 50 /* of 61: some never occur */

static double share_of(uint64_t a, uint64_t b, uint64_t c)
{
	return (double)(draw_long(a, b, c) >> 11) * 0x1p-53;
}

/* Positions whose next tokens are drawn from the mixture of a pointer with random logits. */
static void draw_positions(const struct pointer *pointer, size_t count, uint64_t seed,
			   struct pointer_positions *positions)
{
	for (size_t n = 0; n < count; n++) {
		struct pointer_links found = {.count = (uint8_t)(draw(seed, n, 0) % (pointer->links + 1))};
		float logits[WORDS], mixed[WORDS];
		uint8_t classes[WORDS], *seen = pointer->seeing ? classes : NULL;
		double left = share_of(seed, n, 1), sum;
		uint32_t target = 0;

		for (size_t x = 0; x < WORDS; x++) {
			mixed[x] = logits[x] = (float)(6 * share_of(seed, n, 10 + x));
			classes[x] = draw(seed, n, 150 + x) % 4 ? (uint8_t)(draw(seed, n, 130 + x) % KNOWN_CLASSES) : 0;
		}
		for (size_t i = 0; i < found.count; i++) {
			found.token[i] = (uint32_t)(draw(seed, n, 40 + i) % WORDS);
			found.length[i] = (uint8_t)(1 + draw(seed, n, 50 + i) % 3);
			found.alignment[i] = (uint8_t)(draw(seed, n, 70 + i) % 17);
			found.as_long[i] = (uint8_t)(1 + draw(seed, n, 90 + i) % 9);
			found.followed_by[i] = (uint8_t)(1 + draw(seed, n, 110 + i) % found.as_long[i]);
		}
		found.places = (uint8_t)(draw(seed, n, 2) % 97);
		found.different = (uint8_t)(1 + draw(seed, n, 3) % 20);
		found.success = (uint16_t)(draw(seed, n, 4) % 65536);
		pointer_mix(pointer, &found, seen, mixed, WORDS);
		sum = logits_summary(mixed, WORDS).sum;
		while (target + 1 < WORDS && (left -= exp((double)mixed[target] - sum)) > 0)
			target++;
		const struct pointer_sample sample = pointer_sample(&found, seen, logits, WORDS, target);
		must(pointer_positions_add(positions, &sample, n % 7 == 0, &err));
	}
}

static struct pointer known_pointer(bool confident)
{
	struct pointer pointer = {.delay = 5, .links = 2, .confident = confident};

	for (size_t l = 0; l < POINTER_LENGTHS; l++) {
		pointer.theta[0][l] = -1.5 + 0.8 * (double)l;
		pointer.theta[1][l] = -2 + 0.5 * (double)l;
	}
	if (confident) {
		pointer.agreeing = true; /* two different tokens, half the weight */
		pointer.agreement[0] = 0.35;
		pointer.agreement[1] = -0.35;
		pointer.slope[0][0] = 0.4;
		pointer.slope[0][1] = -0.6;
		pointer.slope[1][0] = 0.2;
	}
	return pointer;
}

TEST(gives_the_weights_back)
{
	for (int confident = 0; confident < 2; confident++) {
		const struct pointer known = known_pointer(confident);
		struct pointer_positions positions = {0};
		struct pointer_fitted fitted = {
		    .pointer = {.delay = 5, .links = 2, .confident = known.confident, .agreeing = known.agreeing}};
		struct pointer_losses truth;

		draw_positions(&known, 60000, 3, &positions);
		must(pointer_fit_and_judge(&positions, &fitted, NULL, NULL, &err));
		truth = pointer_judge(&positions, fitted.fitted, positions.count, &known);
		assert_int_equal(fitted.fitted, 48000);
		assert_int_equal(fitted.before.count, 12000);
		assert_true(fitted.after.all < fitted.before.all - 0.2);
		assert_true(fabs(fitted.after.all - truth.all) < 0.002);
		const double shift = (fitted.pointer.agreement[0] + fitted.pointer.agreement[1]) / 2;
		if (confident)
			assert_true(fabs(fitted.pointer.agreement[0] - shift - 0.35) < 0.1);
		for (size_t i = 0; i < 2; i++) {
			for (size_t l = 1; l < 4; l++) /* theta and agreement may share what is common to both */
				assert_true(fabs(fitted.pointer.theta[i][l] + shift - known.theta[i][l]) < 0.3);
			for (size_t j = 0; j < 2; j++)
				assert_true(fabs(fitted.pointer.slope[i][j] - known.slope[i][j]) < 0.2);
			/* a length that never occurs stays where it starts */
			assert_true(fitted.pointer.theta[i][12] == -5 + 0.35 * 12);
		}
		/* no change of a variable is better, but for the pull towards the start */
		for (size_t k = 0; k < 2 * 4 + 4; k++) {
			struct pointer other = fitted.pointer;
			double *changed = k < 8 ? &other.theta[k / 4][k % 4] : &other.slope[(k - 8) / 2][k % 2];
			const double best = pointer_judge(&positions, 0, fitted.fitted, &other).all;

			if ((k < 8 && k % 4 == 0) || (k >= 8 && !confident))
				continue;
			for (double change = -0.02; change <= 0.02; change += 0.04) {
				*changed += change;
				assert_true(pointer_judge(&positions, 0, fitted.fitted, &other).all > best);
				*changed -= change;
			}
		}
		/* and the same again, bit for bit */
		struct pointer_fitted again = {
		    .pointer = {.delay = 5, .links = 2, .confident = known.confident, .agreeing = known.agreeing}};
		must(pointer_fit_and_judge(&positions, &again, NULL, NULL, &err));
		assert_memory_equal(again.pointer.theta, fitted.pointer.theta, sizeof(again.pointer.theta));
		pointer_positions_free(&positions);
	}
}

/* The slopes of a pointer by contexts come back too. */
TEST(gives_features_back)
{
	struct pointer known = {.delay = 5, .links = POINTER_LINKS, .contexts = true};
	struct pointer_positions positions = {0};
	struct pointer_fitted fitted = {.pointer = known};

	for (size_t l = 0; l < POINTER_LENGTHS; l++)
		known.theta[0][l] = -1 + 0.5 * (double)l;
	known.feature[FEATURE_TOKEN] = 0.4;
	known.feature[FEATURE_ENTROPY] = 0.3;
	known.feature[FEATURE_SHARE] = 0.8;
	known.feature[FEATURE_ALIGNMENT] = 1;
	draw_positions(&known, 30000, 8, &positions);
	must(pointer_fit_and_judge(&positions, &fitted, NULL, NULL, &err));
	const double truth = pointer_judge(&positions, fitted.fitted, positions.count, &known).all;
	assert_true(fitted.after.all < fitted.before.all - 0.1);
	assert_true(fabs(fitted.after.all - truth) < 0.003);
	for (size_t f = 0; f < POINTER_FEATURES; f++)
		if (f == FEATURE_TOKEN || f == FEATURE_SHARE || f == FEATURE_ALIGNMENT)
			assert_true(fabs(fitted.pointer.feature[f] - known.feature[f]) < 0.25);
	for (size_t k = 0; k < POINTER_FEATURES; k++) { /* no change of a slope is better */
		const double best = pointer_judge(&positions, 0, fitted.fitted, &fitted.pointer).all;

		for (double change = -0.05; change <= 0.05; change += 0.1) {
			struct pointer other = fitted.pointer;

			other.feature[k] += change;
			assert_true(pointer_judge(&positions, 0, fitted.fitted, &other).all > best);
		}
	}
	pointer_positions_free(&positions);
}

#define TABLE ((size_t)(SEEN_COUNTS * SEEN_RANKS))

/* The table, then the features and theta. */
static double *number(struct pointer *pointer, size_t k)
{
	if (k < TABLE)
		return &pointer->seen[k / SEEN_RANKS][k % SEEN_RANKS];
	k -= TABLE;
	return k < POINTER_FEATURES ? &pointer->feature[k] : &pointer->theta[0][k - POINTER_FEATURES];
}

/* What is minimised, for the positions that were fitted to: their loss, the pull towards the start, and what the table
 * costs. */
static double objective(const struct pointer_positions *positions, size_t count, const struct pointer *pointer)
{
	double sum = pointer_judge(positions, 0, count, pointer).all * (double)count;

	for (size_t l = 0; l < POINTER_LENGTHS; l++)
		sum += 0.15 * pow(pointer->theta[0][l] + 5 - 0.35 * (double)l, 2);
	for (size_t f = 0; f < POINTER_FEATURES; f++)
		sum += 0.15 * pow(pointer->feature[f], 2);
	for (size_t c = 0; c < SEEN_COUNTS; c++) {
		for (size_t r = 0; r < SEEN_RANKS; r++) {
			const double here = pointer->seen[c][r];

			sum += 0.05 * here * here;
			sum += r ? pow(here - pointer->seen[c][r - 1], 2) : 0;
			sum += c ? pow(here - pointer->seen[c - 1][r], 2) : 0;
		}
	}
	return sum;
}

/* A table comes back too, from positions with links and without. */
TEST(gives_a_table_back)
{
	struct pointer known = {.delay = 5, .links = POINTER_LINKS, .contexts = true, .seeing = true};
	struct pointer_positions positions = {0};
	struct pointer_fitted fitted = {.pointer = known}, without = {.pointer = known};
	double square = 0;
	size_t bare = 0;

	for (size_t l = 0; l < POINTER_LENGTHS; l++)
		known.theta[0][l] = -4 + 0.5 * (double)l;
	known.feature[FEATURE_SHARE] = 0.8;
	for (size_t k = 0; k < TABLE; k++) /* rare tokens and those seen often have more */
		*number(&known, k) = -0.6 + 0.15 * (double)(k % SEEN_RANKS) + 0.3 * (double)(k / SEEN_RANKS);
	draw_positions(&known, 15000, 9, &positions);
	for (size_t n = 0; n < positions.count; n++)
		bare += positions.samples[n].count == 0;
	assert_true(bare > 500);
	must(pointer_fit_and_judge(&positions, &fitted, NULL, NULL, &err));
	const double truth = pointer_judge(&positions, fitted.fitted, positions.count, &known).all,
		     best = objective(&positions, fitted.fitted, &fitted.pointer);
	without.pointer.seeing = false;
	must(pointer_fit_and_judge(&positions, &without, NULL, NULL, &err));
	assert_true(fitted.after.all < without.after.all - 0.02);
	assert_true(fabs(fitted.after.all - truth) < 0.003);
	for (size_t k = 0; k < TABLE; k++) {
		const double away = *number(&fitted.pointer, k) - *number(&known, k);

		assert_true(*number(&without.pointer, k) == 0);
		if (k + 1 < KNOWN_CLASSES)
			square += away * away / (KNOWN_CLASSES - 1);
	}
	assert_true(square < 0.15 * 0.15);
	/* By differences: the least of what is minimised is next to nothing away, whichever number changes. */
	for (size_t k = 0; k < TABLE + POINTER_FEATURES + 4; k += 3) {
		struct pointer less = fitted.pointer, more = fitted.pointer;

		*number(&less, k) -= 1e-3;
		*number(&more, k) += 1e-3;
		const double up = objective(&positions, fitted.fitted, &more) - best,
			     down = objective(&positions, fitted.fitted, &less) - best;
		const double slope = (up - down) / 2e-3, curve = (up + down) / 1e-6;
		assert_true(fabs(slope) < 0.05 * curve);
	}
	pointer_positions_free(&positions);
}

TEST(judges_far_and_rest_apart)
{
	const struct pointer known = known_pointer(true);
	struct pointer_positions positions = {0};
	struct pointer_losses losses;
	double sums[2] = {0, 0};

	draw_positions(&known, 700, 4, &positions);
	for (size_t n = 100; n < 700; n++)
		sums[n % 7 == 0] += pointer_loss(&known, &positions.samples[n]);
	losses = pointer_judge(&positions, 100, 700, &known);
	assert_int_equal(losses.far_count, 85);
	assert_true(fabs(losses.far - sums[1] / 85) < 1e-12 && fabs(losses.rest - sums[0] / 515) < 1e-12);
	assert_true(fabs(losses.all - (sums[0] + sums[1]) / 600) < 1e-12);
	assert_true(isnan(pointer_judge(&positions, 1, 2, NULL).far));
	struct pointer_fitted fitted = {.pointer = known};
	must_fail(pointer_fit_and_judge(&positions, &fitted, NULL, NULL, &err), ROSA_EINVAL, "700 positions");
	pointer_positions_free(&positions);
}
