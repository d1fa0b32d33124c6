/* Following links. The overview is in links.h. */
#include "retrieval/links.h"
#include "base/status.h"

/* One route: link i of step t goes to places[i * stride + t], and its length to lengths, which may be NULL along with
 * the lengths given. Link 0 is tau. tau0 and length0 are what was found without a delay. Returns `steps`, or the first
 * step whose tau is not -1 and not from 1 to steps - 1. */
static size_t links_follow(int links, size_t steps, const int32_t *tau, const int32_t *length, const int32_t *tau0,
			   const int32_t *length0, size_t stride, int32_t *places, int32_t *lengths)
{
	for (size_t t = 0; t < steps; t++) {
		struct link link = {tau[t], lengths && tau[t] >= 0 ? length[t] : 0};

		for (size_t i = 0; i < (size_t)links; i++) {
			/* nothing precedes step 0, so it is never a destination */
			if (link.place != -1 && (link.place < 1 || (size_t)link.place >= steps))
				return t;
			places[i * stride + t] = link.place;
			if (lengths)
				lengths[i * stride + t] = link.length;
			if (link.place >= 0) {
				const size_t before = (size_t)link.place - 1;

				link = link_next(link, (struct link){tau0[before], lengths ? length0[before] : 0});
			}
		}
	}
	return steps;
}

rosa_status rosa_chain(size_t routes, size_t steps, int links, const int32_t *tau, const int32_t *length,
		       const int32_t *tau0, const int32_t *length0, int32_t *places, int32_t *lengths, rosa_error *err)
{
	const size_t cells = routes * steps;

	if (!routes || !steps || steps > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL,
				 "%zu routes of %zu steps; there must be one of each, and at most %zu steps", routes,
				 steps, ROSA_MAX_STEPS);
	if (links < 1 || links > ROSA_MAX_LINKS)
		return rosa_fail(err, ROSA_EINVAL, "%d links; a chain has 1 to %d", links, ROSA_MAX_LINKS);
	if (!tau || !tau0 || !places)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", !tau ? "tau" : tau0 ? "places" : "tau0");
	if (lengths && (!length || !length0))
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL, and lengths are wanted", length ? "length0" : "length");
	for (size_t r = 0; r < routes; r++) {
		const size_t at = r * steps;
		const size_t done =
		    links_follow(links, steps, tau + at, lengths ? length + at : NULL, tau0 + at,
				 lengths ? length0 + at : NULL, cells, places + at, lengths ? lengths + at : NULL);

		if (done < steps)
			return rosa_fail(err, ROSA_EINVAL,
					 "the chain of route %zu at step %zu leads to a place that is neither -1 nor "
					 "from 1 to %zu; give destinations of rosa_retrieve",
					 r, done, steps - 1);
	}
	return ROSA_OK;
}
