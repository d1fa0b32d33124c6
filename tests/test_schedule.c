/*
 * Learning rates: where they begin, where they peak, where they end, and that they never jump.
 */
#include "train/schedule.h"
#include "support_test.h"

#include <math.h>

TEST(rises_to_max_and_falls_to_min)
{
	const struct schedule schedule = {3e-4, 5e-5, 20, 1000};

	assert_true(schedule_rate(&schedule, 0) == 3e-4 / 20);
	assert_true(schedule_rate(&schedule, 9) == 3e-4 / 2);
	assert_true(schedule_rate(&schedule, 19) == 3e-4);
	assert_true(schedule_rate(&schedule, 999) == 5e-5);
	assert_true(schedule_rate(&schedule, 5000) == 5e-5);
	for (uint64_t step = 1; step < 1000; step++) {
		const double before = schedule_rate(&schedule, step - 1), now = schedule_rate(&schedule, step);

		assert_true(step < 20 ? now > before : now < before);
		assert_true(fabs(now - before) < 3e-4 / 20 + 1e-12);
	}
}

TEST(is_half_way_down_in_the_middle)
{
	const struct schedule schedule = {1, 0, 0, 101};

	assert_true(schedule_rate(&schedule, 0) == 1);
	assert_true(fabs(schedule_rate(&schedule, 50) - 0.5) < 1e-12);
	assert_true(fabs(schedule_rate(&schedule, 25) - (0.5 + 0.25 * sqrt(2))) < 1e-12);
	assert_true(schedule_rate(&schedule, 100) == 0);
}

TEST(short_stages_have_sensible_rates)
{
	const struct schedule one = {2, 1, 0, 1}, two = {2, 1, 1, 2}, all_warmup = {2, 1, 20, 5}, flat = {2, 2, 3, 9};

	assert_true(schedule_rate(&one, 0) == 2);
	assert_true(schedule_rate(&two, 0) == 2);
	assert_true(schedule_rate(&two, 1) == 1);
	assert_true(schedule_rate(&all_warmup, 4) == 0.5);
	for (uint64_t step = 2; step < 9; step++)
		assert_true(schedule_rate(&flat, step) == 2);
}
