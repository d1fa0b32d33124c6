/*
 * The few operations a decoder is made of, as a table.
 *
 * The model calls these and does not depend on what they run on. Activations are float32, row by row, in memory of the
 * backend; the model passes pointers to it and never reads through them. What it reads or writes itself (tokens,
 * symbols, logits) is in ordinary memory, called "host" below.
 *
 * An operation cannot fail: everything that can (memory, shapes) is settled by the functions that return a status. On a
 * backend with a queue, operations may still be running when they return; `get` waits for what it reads.
 *
 * The result of a row is the same, bit for bit, whatever other rows are in the call, however the steps before it were
 * divided into calls, and however many threads there are. A decoder with ROSA needs this: the sign of a number decides
 * what is read, and a different order of summation can change a sign.
 */
#pragma once

#include "backend/format.h"

#include "rosatune.h"

struct backend;

/* A weight, [rows][columns], row by row. A product takes `columns` numbers and gives `rows`. */
struct matrix {
	enum format format;
	size_t rows, columns;
	const void *data; /* in the backend's memory */
};

/* One of several products of the same x. */
struct product {
	const struct matrix *weight;
	float *y; /* [steps][weight->rows] */
	bool add; /* y += instead of y = */
};

/* y[i] (+)= x W_i^T for each of the products; no y may be x. */
typedef void backend_multiply(struct backend *backend, size_t steps, const float *x, size_t count,
			      const struct product *products);

/* What a layer reads at some steps: each of its reads, called links, gives a place to each of its routes, or none. A
 * row of value bits has (channels + 63) / 64 words, channel c being bit c % 64 of word c / 64. All of it is in host
 * memory. */
struct reads {
	size_t links;
	const size_t *routes; /* [links], divisors of the channels; route r of a read owns channels/routes of them */
	const uint64_t *bits; /* [links][steps][words]: the bits of every channel, at the place of its route */
	const float *weight;  /* [routes of all links][steps]: how much a read counts; 0: nothing was found */
};

static inline size_t bit_words(size_t channels)
{
	return (channels + 63) / 64;
}

/* Which numbers of a head form a pair that is rotated: i and i + head_size/2 (Hugging Face), or 2i and 2i+1 (Llama's
 * own, and GGUF files of that architecture). */
enum rotary_pairs { ROTARY_HALVES, ROTARY_NEIGHBOURS };

#define BACKEND_MOST_HEAD 4096 /* numbers of a head */

struct rotary {
	size_t head_size; /* even, at most BACKEND_MOST_HEAD */
	enum rotary_pairs pairs;
	const float *frequencies; /* host, [head_size / 2]: radians per position */
};

/* Keys and values of the positions that attention may still see, of one layer and one sequence: all of them where
 * window is 0, else a ring of the last ones, and the first `sinks`. `place` is private to the backend. */
struct kv_cache {
	size_t heads, head_size;
	size_t window, sinks;
	size_t steps; /* positions stored so far */
	size_t room;  /* capacity, in positions */
	size_t chunk; /* most steps of one `attend` */
	void *place;
};

struct training_ops;

struct backend_ops {
	const char *name;                    /* "cpu" */
	const struct training_ops *training; /* training.h; NULL: it cannot train */

	/* ------------------------------------------------------------------------------------------------ memory -- */

	/* Memory for activations; NULL: no memory. */
	void *(*take)(struct backend *backend, size_t bytes);
	void (*give)(struct backend *backend, void *pointer); /* safe on NULL */
	void (*put)(struct backend *backend, void *to, const void *host, size_t bytes);
	void (*get)(struct backend *backend, void *host, const void *from, size_t bytes);

	/* A weight from host memory, which stays where it is as long as the weight is used (it may be a mapped file).
	 */
	rosa_status (*matrix_new)(struct backend *backend, enum format format, size_t rows, size_t columns,
				  const void *host, struct matrix *matrix, rosa_error *err);
	void (*matrix_free)(struct backend *backend, struct matrix *matrix); /* safe on a zeroed one */

	/* ---------------------------------------------------------------------------------------------- numbers -- */

	backend_multiply *multiply;

	/* y[t] = row tokens[t] (host) of the weight. */
	void (*embed)(struct backend *backend, const struct matrix *weight, size_t steps, const uint32_t *tokens,
		      float *y);

	/* y = x / sqrt(mean(x^2) + eps) * weight, for rows of `width`; y may be x. weight: the backend's, [width];
	 * NULL: 1. */
	void (*rms_norm)(struct backend *backend, size_t rows, size_t width, const float *x, const float *weight,
			 float eps, float *y);

	/* Rotate the heads of x [steps][heads * head_size] in place; row t is at position first + t. */
	void (*rotate)(struct backend *backend, const struct rotary *rotary, size_t steps, size_t heads, size_t first,
		       float *x);

	/* y = silu(gate) * up; y may be either. */
	void (*swiglu)(struct backend *backend, size_t count, const float *gate, const float *up, float *y);

	/* y += x */
	void (*add)(struct backend *backend, size_t count, const float *x, float *y);

	/* y[t] += bias, for rows of `width`. */
	void (*add_bias)(struct backend *backend, size_t rows, size_t width, const float *bias, float *y);

	/* -------------------------------------------------------------------------------------------- attention -- */

	/* A cache without positions, for calls of up to `chunk` steps. */
	rosa_status (*cache_new)(struct backend *backend, size_t heads, size_t head_size, size_t window, size_t sinks,
				 size_t chunk, struct kv_cache *cache, rosa_error *err);
	void (*cache_free)(struct backend *backend, struct kv_cache *cache); /* safe on a zeroed one */

	/* Memory for `steps` more positions (only a global cache grows). */
	rosa_status (*cache_reserve)(struct backend *backend, struct kv_cache *cache, size_t steps, rosa_error *err);

	/* The positions still kept, as plain numbers in host memory: keys and values [kept][heads * head_size] each, in
	 * the order of positions (first the sinks that have left the window, then the last ones). They are what the
	 * next position will see besides itself. `cache_kept` gives their number, which depends on window, sinks and
	 * steps alone; so it may be called on a copy of a cache with another number of steps. `cache_load` fills a new
	 * cache so that it continues as the saved one would. */
	size_t (*cache_kept)(struct backend *backend, const struct kv_cache *cache);
	void (*cache_save)(struct backend *backend, const struct kv_cache *cache, float *keys, float *values);
	rosa_status (*cache_load)(struct backend *backend, struct kv_cache *cache, size_t steps, const float *keys,
				  const float *values, rosa_error *err);

	/* Going back: as if the cache had been filled with its first `steps` positions alone. `cache_floor` is the
	 * least number of positions that this can be done to: a ring has lost the oldest ones. `cache_rewind` does it
	 * in place, `cache_fork` in a new cache, for any number from there to cache->steps. */
	size_t (*cache_floor)(struct backend *backend, const struct kv_cache *cache);
	void (*cache_rewind)(struct backend *backend, struct kv_cache *cache, size_t steps);
	rosa_status (*cache_fork)(struct backend *backend, const struct kv_cache *cache, size_t steps,
				  struct kv_cache *copy, rosa_error *err);

	/* Store k and v [steps][cache->heads * head_size] as the next positions, and let q [steps][heads * head_size]
	 * attend: position t sees t-window+1 .. t and the sinks (window 0: 0 .. t); scores are q.k / sqrt(head_size).
	 * Query head h reads key head h / (heads / cache->heads). Memory must have been reserved. */
	void (*attend)(struct backend *backend, struct kv_cache *cache, size_t steps, size_t heads, const float *q,
		       const float *k, const float *v, float *y);

	/* ------------------------------------------------------------------------------------------------- ROSA -- */

	/* Symbols of x [steps][channels], to host memory [channels / bits][stride]. */
	void (*symbols)(struct backend *backend, size_t steps, size_t channels, int bits, const float *x,
			uint16_t *symbols, size_t stride);

	/* The sign bits of x [steps][channels], 1 where > 0, to host memory [steps][bit_words(channels)]. Bits behind
	 * the last channel are 0. */
	void (*pack)(struct backend *backend, size_t steps, size_t channels, const float *x, uint64_t *bits);

	/* y [steps][channels] = the sum over the links, in their order, of weight * (bit ? e1 : e0), or 0 where the
	 * weight is 0; e0 and e1 are [links][channels]. e0 or e1 is selected, not computed: e0 + (e1 - e0) would round,
	 * and not always give e1. */
	void (*read)(struct backend *backend, size_t steps, size_t channels, const struct reads *reads, const float *e0,
		     const float *e1, float *y);

	/* z[t] = 2 sigmoid(u[t] . w + b[0]) and y[t] *= z[t], for rows of `channels`. */
	void (*gate)(struct backend *backend, size_t steps, size_t channels, const float *u, const float *w,
		     const float *b, float *z, float *y);

	/* y = (1 - a) h + a x with a = sigmoid(a0) per channel; y may be h or x. */
	void (*mix)(struct backend *backend, size_t steps, size_t channels, const float *a0, const float *h,
		    const float *x, float *y);
};

/* The first member of every backend's own structure. */
struct backend {
	const struct backend_ops *ops;
};

/* The CPU; `workers` are its threads and must outlive it. */
rosa_status cpu_backend_new(rosa_workers *workers, struct backend **backend, rosa_error *err);
void cpu_backend_free(struct backend *backend); /* safe on NULL */
