/*
 * The search of one route, for both widths of numbers, and what it needs of packed symbols; a call of a stream.
 *
 * Usable as CUDA and as plain C (team.h).
 */
#pragma once

#include "retrieval/cuda/plan.h"
#include "retrieval/cuda/team.h"

#define SEARCH_CHUNK 256   /* steps that are indexed and then answered together, by teams of up to so many */
#define SEARCH_CROWD 8     /* contexts in a chain, on average, that make a rung the highest */
#define SEARCH_LEAP  65536 /* work of one look-up, at most */

TEAM_CODE uint32_t search_symbol(const struct search_plan *plan, const void *symbols, size_t i)
{
	return plan->bits > 16 ? ((const uint32_t *)symbols)[i] : ((const uint16_t *)symbols)[i];
}

/* The word that ends with run `runs`-1 of a packed stream: the last symbol in its highest cell, those before below it,
 * zeros before the first. */
TEAM_CODE uint64_t search_word(const struct search_plan *plan, const uint64_t *words, uint32_t runs)
{
	const uint64_t bit = (uint64_t)runs << plan->cell_shift;
	const uint64_t *const at = words + bit / 64;
	const unsigned shift = bit % 64;

	return shift ? at[0] >> shift | at[1] << (64 - shift) : at[0];
}

/* The number of slots that the strings of a rung use. */
TEAM_CODE uint32_t search_slots(const struct search_plan *plan, uint32_t rung)
{
	const uint32_t bits = plan_rung(rung) * plan->cell;

	return 1u << (bits < plan->slot_bits ? bits : plan->slot_bits);
}

/* The slot of the string that ends with run `runs`-1, its highest cell changed by `flip`. Strings that have no more
 * bits than slots have are their own slots. */
TEAM_CODE uint32_t search_slot(const struct search_plan *plan, const uint64_t *words, uint32_t rung, uint32_t runs,
			       uint64_t flip)
{
	const uint32_t length = plan_rung(rung);
	uint64_t string = search_word(plan, words, runs) ^ flip;

	if (length < plan->word)
		string >>= 64 - length * plan->cell;
	if (length * plan->cell <= plan->slot_bits)
		return (uint32_t)string;
	string *= UINT64_C(0x9e3779b97f4a7c15);
	if (length > plan->word) {
		const uint32_t rest = length - plan->word;
		uint64_t before = runs > plan->word ? search_word(plan, words, runs - plan->word) : 0;

		if (rest < plan->word)
			before >>= 64 - rest * plan->cell;
		string = (string ^ string >> 32 ^ before) * UINT64_C(0xd6e8feb86659fd93);
	}
	return (uint32_t)(string >> (64 - plan->slot_bits));
}

#define NUMBER     uint16_t
#define NAME(name) search16_##name
#include "retrieval/cuda/search_template.h"
#undef NUMBER
#undef NAME

#define NUMBER     uint32_t
#define NAME(name) search32_##name
#include "retrieval/cuda/search_template.h"
#undef NUMBER
#undef NAME

/* ---- streams ---- */

/* Take the steps of a call, route r. */
TEAM_CODE void search_take(const struct search_plan *plan, const struct team *team, size_t r)
{
	const struct search32_route route =
	    search32_place(plan, plan->histories + r * plan->history_bytes, plan->scratches + r * plan->scratch_bytes);
	struct search_state state = plan->states[r];

	team_wait(); /* the route before is done with */
	if (state.gone)
		return;
	search32_take(&route, team, r, &state, plan->build ? plan->counts + (r << plan->slot_bits) : NULL);
	if (team->rank == 0)
		plan->states[r] = state;
}

/* Answer them, unless a symbol of any route was out of range. By now there is memory for the rungs that were chosen. */
TEAM_CODE void search_serve(const struct search_plan *plan, const struct team *team, size_t r)
{
	struct search32_route route =
	    search32_place(plan, plan->histories + r * plan->history_bytes, plan->scratches + r * plan->scratch_bytes);
	struct search_state state = plan->states[r];

	team_wait();
	if (*plan->bad_query != UINT64_MAX || *plan->bad_key != UINT64_MAX)
		return;
	if (state.gone) {
		if (team->rank == 0)
			plan->given_up[r] = 0; /* not by this call */
		return;
	}
	route.index.top = state.top;
	route.index.low = (uint32_t *)(plan->indexes + state.index);
	route.index.high = route.index.low + state.top * route.index.stride;
	search32_serve(&route, team, r, &state);
	if (team->rank == 0)
		plan->states[r] = state;
}
