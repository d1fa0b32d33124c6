/*
 * rosatune.h - exact suffix retrieval over binary symbols (ROSA), the public C interface.
 *
 * A route is a pair of symbol streams, query and key. At every step the library finds the place in the key's past that
 * best continues the query's context. Sections 1 to 3 of this file follow docs/design.md, "What is computed";
 * sections 4 and 5 are the operator that is added to a neural network, forward and backward.
 *
 * Conventions
 *   - Every function that can fail returns a rosa_status and, where `err` is not NULL, a message that names the value
 *     at fault and the remedy. On failure outputs may hold partial results; everything else is unchanged, and a stream
 *     is as it was before the call.
 *   - The library keeps no global state, never prints, never exits and installs no signal handlers.
 *   - Different objects may be used from different threads at once. One object belongs to one thread at a time.
 *   - Steps are counted from 0. A stream may hold at most ROSA_MAX_STEPS steps.
 *   - Symbols of up to 16 bits are arrays of uint16_t, those of more bits arrays of uint32_t. Functions that take both
 *     have `const void *` parameters; options.bits determines which of the two it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef ROSATUNE_H
#define ROSATUNE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROSA_VERSION_MAJOR 0
#define ROSA_VERSION_MINOR 1
#define ROSA_VERSION_PATCH 0

#if defined(ROSA_BUILDING) && defined(__GNUC__)
#define ROSA_API __attribute__((visibility("default")))
#else
#define ROSA_API
#endif

#define ROSA_MIN_BITS        1
#define ROSA_MAX_BITS        16                   /* of symbols that are made of channels */
#define ROSA_MAX_SYMBOL_BITS 20                   /* of symbols that are only looked up, such as token ids */
#define ROSA_MAX_LINKS       16                   /* of a chain */
#define ROSA_MAX_STEPS       ((size_t)0x7ffffff0) /* destinations are int32_t */

/* "0.1.0", the version of the library at run time. */
ROSA_API const char *rosa_version(void);

/* ------------------------------------------------------------------------------------------------------- status -- */

typedef enum rosa_status {
	ROSA_OK = 0,
	ROSA_EINVAL = 1,     /* an argument is out of range or missing */
	ROSA_ESYMBOL = 2,    /* a symbol is not below 2^bits */
	ROSA_ENOMEM = 3,     /* an allocation failed */
	ROSA_EIO = 4,        /* a file could not be opened, read or written */
	ROSA_EFORMAT = 5,    /* a saved state is truncated, altered or of an unknown version */
	ROSA_ECANCELLED = 6, /* the progress callback asked to stop */
	ROSA_EDEVICE = 7     /* a CUDA device, its driver or librosatune_cuda.so cannot be used */
} rosa_status;

typedef struct rosa_error {
	rosa_status status;
	char message[512]; /* always terminated */
} rosa_error;

/* A short name of a status ("invalid argument"); never NULL. */
ROSA_API const char *rosa_status_name(rosa_status status);

/* ------------------------------------------------------------------------------------------------------ options -- */

typedef enum rosa_policy {
	ROSA_READABLE = 0, /* candidates: runs whose successor began before the current step */
	ROSA_LITERAL = 1,  /* candidates: all runs; a winner that cannot be read yet gives -1 */
	ROSA_INCLUSIVE = 2 /* candidates: runs whose successor began at or before the current step */
} rosa_policy;

/* Memory for everything an object keeps. `resize` behaves like realloc, with size 0 meaning free (its result is then
 * ignored). It is called from worker threads too when threads > 1, and must outlive the object. */
typedef struct rosa_allocator {
	void *(*resize)(void *context, void *pointer, size_t size);
	void *context;
} rosa_allocator;

/* Called on the calling thread between pieces of work, with `done` rising to `total` (in route-steps). Returning
 * nonzero stops the call, which then returns ROSA_ECANCELLED. */
typedef int (*rosa_progress)(void *context, uint64_t done, uint64_t total);

/* Threads that calls share instead of each starting its own: useful where calls are short or many. */
typedef struct rosa_workers rosa_workers;

/* Start from ROSA_OPTIONS_INIT and change fields. `size` lets the structure grow in later versions: a library newer
 * than the caller uses its defaults for fields that the caller does not know. */
typedef struct rosa_options {
	size_t size;              /* sizeof(rosa_options) */
	int bits;                 /* M, bits per symbol, 1 to 20; 1 to 16 for the operator and counterfactuals */
	rosa_policy policy;       /* which runs may be found */
	int fold;                 /* nonzero: equal neighbours form one run; 0: every step is a run */
	uint32_t max_match;       /* matches are compared up to this length; 0: no limit */
	int threads;              /* worker threads, each computes whole routes; 0: one per processor */
	rosa_allocator allocator; /* {NULL, NULL}: malloc */
	rosa_progress progress;   /* NULL: none; used by rosa_retrieve, rosa_find and rosa_read_backward */
	void *progress_context;
	rosa_workers *workers; /* NULL: every call and every stream starts its own threads. Else these are used and
				  `threads` is ignored; they must outlive the streams and tapes made with them */
	uint32_t delay;        /* D: only places more than D steps old are found; 0: no delay */
} rosa_options;

#define ROSA_OPTIONS_INIT                                                                                              \
	{                                                                                                              \
		sizeof(rosa_options), 16, ROSA_READABLE, 1, 0, 1, {NULL, NULL}, NULL, NULL, NULL, 0                    \
	}

/* `threads` as in rosa_options; `allocator` NULL: malloc. Workers may be given to calls on several threads at once,
 * which then take turns. In a child of fork() the workers of the parent compute on the calling thread alone. */
ROSA_API rosa_status rosa_workers_new(int threads, const rosa_allocator *allocator, rosa_workers **workers,
				      rosa_error *err);

/* Safe on NULL. */
ROSA_API void rosa_workers_free(rosa_workers *workers);

/* ---------------------------------------------------------------------------------------------------- 1 symbols -- */

typedef enum rosa_dtype { ROSA_FLOAT32 = 0, ROSA_FLOAT16 = 1, ROSA_BFLOAT16 = 2 } rosa_dtype;

/* Pack `steps` rows of `channels` numbers into symbols. Bit j of route r is 1 where channel r*bits+j is > 0 (so 0, -0
 * and NaN give 0). channels must be a positive multiple of bits.
 * `rows` has `row_stride` elements from one row to the next (0: channels). `symbols` receives
 * symbols[r * route_stride + t] for route r and step t (route_stride 0: steps), the layout that retrieval reads. */
ROSA_API rosa_status rosa_pack(rosa_dtype dtype, const void *rows, size_t row_stride, size_t steps, size_t channels,
			       int bits, uint16_t *symbols, size_t route_stride, rosa_error *err);

/* The inverse, except for the numbers' size: values[t * channels + r*bits + j] = bit j of symbols[r * route_stride +
 * t], as 0 or 1. Symbols not below 2^bits fail with ROSA_ESYMBOL. */
ROSA_API rosa_status rosa_unpack(const uint16_t *symbols, size_t route_stride, size_t steps, size_t channels, int bits,
				 uint8_t *values, rosa_error *err);

/* The instruction set that rosa_pack uses on this machine: "avx512", "avx2" or "plain". */
ROSA_API const char *rosa_pack_isa(void);

/* ---------------------------------------------------------------------------------- 2 retrieval of whole streams -- */

/* Counterfactual tables per run. Route r has query runs first[r] .. first[r+1]-1. Run i starts at step start[i]; its
 * destination there is tau[i], and would be flip[i*bits + j] if bit j of its symbol were flipped. Allocated and filled
 * by rosa_retrieve; release with rosa_flips_free. */
typedef struct rosa_flips {
	size_t routes;
	int bits;
	size_t *first;  /* [routes + 1] */
	int32_t *start; /* [first[routes]] */
	int32_t *tau;   /* [first[routes]] */
	int32_t *flip;  /* [first[routes]][bits] */
	rosa_allocator allocator;
} rosa_flips;

/* Find the destination of every step of every route: query and key are [routes][steps], tau is [routes][steps], -1
 * where nothing matches. `length`, if not NULL, receives the length of the match behind each destination (in runs, cut
 * at max_match; 0 where tau is -1). `flips`, if not NULL, is overwritten (not freed) with the counterfactual tables,
 * which need symbols of at most ROSA_MAX_BITS bits.
 * The result is a function of the inputs alone: the number of threads does not change a bit of it. */
ROSA_API rosa_status rosa_retrieve(const rosa_options *options, size_t routes, size_t steps, const void *query,
				   const void *key, int32_t *tau, int32_t *length, rosa_flips *flips, rosa_error *err);

/* The tables of one route per step: table[t*bits + j] for every step t < steps, that of the run which contains t.
 * `steps` must be the number given to rosa_retrieve. */
ROSA_API rosa_status rosa_flips_expand(const rosa_flips *flips, size_t route, size_t steps, int32_t *table,
				       rosa_error *err);

/* Release what rosa_retrieve put there. Safe on a zeroed structure, and on NULL. */
ROSA_API void rosa_flips_free(rosa_flips *flips);

/* Further places without another search, if query and key are the same stream. `tau` and `length` come from
 * rosa_retrieve with any delay, `tau0` and `length0` from the same streams without one; all are [routes][steps]. Link 1
 * is tau itself. The link after place d is tau0[d - 1], the place that retrieval without delay found for the context
 * that ends at step d - 1. Its match is as long as the shorter of the two. `places` and `lengths` are
 * [links][routes][steps], with -1 and 0 where a chain has ended. `lengths` may be NULL; then `length` and `length0` are
 * not read. */
ROSA_API rosa_status rosa_chain(size_t routes, size_t steps, int links, const int32_t *tau, const int32_t *length,
				const int32_t *tau0, const int32_t *length0, int32_t *places, int32_t *lengths,
				rosa_error *err);

/* ---------------------------------------------------------------------------------- 2b the same on a CUDA device -- */

/*
 * The same results as rosa_retrieve, bit for bit, by a GPU. CUDA is not needed to build or to load this library:
 * librosatune_cuda.so is searched when a device is opened, beside this library or program, in its lib folder, and
 * where the system keeps libraries.
 *
 * Streams on which the device's search would take much longer than usual ("hostile" streams, such as long periods with
 * defects) are detected on the device, route by route, and the CPU searches these routes with options.threads threads.
 */
typedef struct rosa_cuda rosa_cuda;

/* Open a device by its number, counted from 0. ROSA_EDEVICE: the message says what is missing. `allocator` as in
 * rosa_workers_new. */
ROSA_API rosa_status rosa_cuda_open(int device, const rosa_allocator *allocator, rosa_cuda **cuda, rosa_error *err);

/* Safe on NULL. */
ROSA_API void rosa_cuda_close(rosa_cuda *cuda);

/* As rosa_retrieve, with all pointers into ordinary memory, except that the tables are dense: flips is
 * [routes][steps][bits], at every step the table of the run it lies in. length and flips may be NULL. Of the options
 * progress is not used. */
ROSA_API rosa_status rosa_cuda_retrieve(rosa_cuda *cuda, const rosa_options *options, size_t routes, size_t steps,
					const void *query, const void *key, int32_t *tau, int32_t *length,
					int32_t *flips, rosa_error *err);

/* The same with all pointers into the device's memory. `stream` is a cudaStream_t, NULL being the default stream: the
 * search begins after what is queued there, and the call returns when it has ended. */
ROSA_API rosa_status rosa_cuda_retrieve_device(rosa_cuda *cuda, const rosa_options *options, size_t routes,
					       size_t steps, const void *query, const void *key, int32_t *tau,
					       int32_t *length, int32_t *flips, void *stream, rosa_error *err);

/* The same without waiting: the call returns once the search is queued on `stream`, so it can be recorded in a CUDA
 * graph. The search works in the caller's memory: with memory NULL, *bytes is set to how much it needs, and nothing
 * else is done; then pass at least so much device memory, for as long as the search may run. No route is handed to the
 * CPU, so hostile streams are searched on the device however long that takes. The caller makes sure that every symbol
 * is below 2^bits. rosa_cuda_describe does not report on such a search. */
ROSA_API rosa_status rosa_cuda_queue(rosa_cuda *cuda, const rosa_options *options, size_t routes, size_t steps,
				     const void *query, const void *key, int32_t *tau, int32_t *length, int32_t *flips,
				     void *memory, size_t *bytes, void *stream, rosa_error *err);

/* Describes a device and its last call. `size` is set by the caller, as in rosa_options. */
typedef struct rosa_cuda_info {
	size_t size;         /* sizeof(rosa_cuda_info) */
	char name[256];      /* of the device */
	double milliseconds; /* of the last call: the search itself, by the device's clock */
	uint64_t handed;     /* of the last call: routes that the CPU searched */
} rosa_cuda_info;

ROSA_API rosa_status rosa_cuda_describe(const rosa_cuda *cuda, rosa_cuda_info *info, rosa_error *err);

/* ------------------------------------------------------------------------------ 3 retrieval of streams that grow -- */

/* The retrieval state of a number of routes. Pushing the streams in any pieces gives, bit for bit, what rosa_retrieve
 * gives for the whole. options.progress is not used; options.threads and the allocator are kept. */
typedef struct rosa_stream rosa_stream;

ROSA_API rosa_status rosa_stream_new(const rosa_options *options, size_t routes, rosa_stream **stream, rosa_error *err);

/* Safe on NULL. */
ROSA_API void rosa_stream_free(rosa_stream *stream);

/* Append `steps` steps to every route and find their destinations. Step t of route r is query[r*stride + t] (likewise
 * key); the outputs tau and length have the same layout; flips is [routes][steps][bits], dense. Any of the three
 * outputs may be NULL. stride 0 means steps. Counterfactuals cost time: request them only when they are needed, but
 * then from the first step of a run on. Requesting them in the middle of a run whose start was pushed without them
 * fails with ROSA_EINVAL. */
ROSA_API rosa_status rosa_stream_push(rosa_stream *stream, size_t steps, const void *query, const void *key,
				      size_t stride, int32_t *tau, int32_t *length, int32_t *flips, rosa_error *err);

/* A second, independent state that continues from here. */
ROSA_API rosa_status rosa_stream_fork(const rosa_stream *stream, rosa_stream **copy, rosa_error *err);

/* Go back to the state after the first `steps` steps; more than were pushed is an error. The cost is that of the steps
 * undone, or of a rebuild where that is less, plus that of repeating the last query run kept. */
ROSA_API rosa_status rosa_stream_rewind(rosa_stream *stream, size_t steps, rosa_error *err);

/* Write the state to a file (atomically: a failed save leaves an older file as it was) or to memory, and make a stream
 * from it. Saved states are versioned and checksummed; unknown, truncated or modified ones are rejected. `threads` and
 * the allocator of a loaded stream come from `options` (NULL: defaults); its other fields are ignored.
 * *data from rosa_stream_save_memory is released with rosa_stream_free_memory. */
ROSA_API rosa_status rosa_stream_save(const rosa_stream *stream, const char *path, rosa_error *err);
ROSA_API rosa_status rosa_stream_load(const rosa_options *options, const char *path, rosa_stream **stream,
				      rosa_error *err);
ROSA_API rosa_status rosa_stream_save_memory(const rosa_stream *stream, void **data, size_t *size, rosa_error *err);
ROSA_API rosa_status rosa_stream_load_memory(const rosa_options *options, const void *data, size_t size,
					     rosa_stream **stream, rosa_error *err);
ROSA_API void rosa_stream_free_memory(const rosa_stream *stream, void *data);

/* Describes a stream. `size` is set by the caller, as in rosa_options. */
typedef struct rosa_stream_info {
	size_t size; /* sizeof(rosa_stream_info) */
	size_t routes;
	size_t steps;
	int bits;
	rosa_policy policy;
	int fold;
	uint32_t max_match;
	uint64_t key_runs;   /* over all routes */
	uint64_t query_runs; /* over all routes */
	uint64_t bytes;      /* every byte the state has allocated */
	uint64_t ordered;    /* routes that have moved to the ordered index (docs/design.md) */
	uint32_t delay;
} rosa_stream_info;

ROSA_API rosa_status rosa_stream_describe(const rosa_stream *stream, rosa_stream_info *info, rosa_error *err);

/* The same state on a CUDA device (2b), without counterfactuals. Pushing in any pieces gives, bit for bit, what
 * rosa_stream_push gives. It cannot be forked, rewound or saved; a rosa_stream can. The device
 * must stay open as long as the stream exists, and may serve any number of streams, one call at a time.
 *
 * Routes on which the device's search would take much longer than usual are given to the CPU, with options.threads
 * threads or options.workers, and stay there.
 *
 * The state is in the device's memory; docs/design.md has the bytes per step and route. A push that needs more than
 * there is fails with ROSA_ENOMEM, and the stream is as it was before. If host memory is exhausted (for routes that
 * move to the CPU), and after ROSA_EDEVICE, the stream can only be freed. */
typedef struct rosa_cuda_stream rosa_cuda_stream;

ROSA_API rosa_status rosa_cuda_stream_new(rosa_cuda *cuda, const rosa_options *options, size_t routes,
					  rosa_cuda_stream **stream, rosa_error *err);

/* Safe on NULL. */
ROSA_API void rosa_cuda_stream_free(rosa_cuda_stream *stream);

/* As rosa_stream_push, with all pointers into ordinary memory. length may be NULL. */
ROSA_API rosa_status rosa_cuda_stream_push(rosa_cuda_stream *stream, size_t steps, const void *query, const void *key,
					   size_t stride, int32_t *tau, int32_t *length, rosa_error *err);

/* The same with all pointers into the device's memory. `queue` is a cudaStream_t, NULL being the default one: the
 * search begins after what is queued there, and the call returns when it has ended. rosa_cuda_describe reports on
 * the last push as it does on the last batch. */
ROSA_API rosa_status rosa_cuda_stream_push_device(rosa_cuda_stream *stream, size_t steps, const void *query,
						  const void *key, size_t stride, int32_t *tau, int32_t *length,
						  void *queue, rosa_error *err);

/* As rosa_stream_describe; `ordered` counts the routes that the CPU has, and `bytes` what the device has allocated for
 * the stream, with the states of those routes. */
ROSA_API rosa_status rosa_cuda_stream_describe(const rosa_cuda_stream *stream, rosa_stream_info *info, rosa_error *err);

/* ----------------------------------------------------------------------------------- 3b what followed a context -- */

/*
 * Token ids of a growing text: which tokens followed earlier occurrences of its current last tokens?
 *
 * At step t the places are the steps e with x[e] = x[t] whose next token stands before t - delay (e + 1 < t - delay):
 * the 64 newest with x[e-1] = x[t-1] too, and those among the 32 newest of all that have not. The match of a place is
 * how many tokens, counted backwards, are equal to those that end at t, at most 32. Places are ordered by match,
 * longest first, and the newest of equals first. The different tokens that follow them, in this order, are the
 * candidates; the first 16 are given, each with its first place.
 *
 * `success` is a running mean of how often the first candidate was the next token, in 1/65535: from 0 at the start of
 * the text, at each step s += (65535 - s) / 32 if the first candidate of the step before is x[t], s -= s / 32 if it is
 * not or there is none, in whole numbers.
 *
 * The results are a function of the tokens alone: they are the same for pieces of any size.
 */
#define ROSA_CANDIDATES 16

typedef struct rosa_continuation {
	uint8_t count;                      /* candidates given */
	uint8_t places;                     /* places, at most 96 */
	uint8_t different;                  /* different tokens that follow them */
	uint8_t unused;                     /* 0 */
	uint16_t success;                   /* before step t + 1 is known */
	uint16_t unused2;                   /* 0 */
	uint32_t token[ROSA_CANDIDATES];    /* what follows the place */
	int32_t place[ROSA_CANDIDATES];     /* e + 1, where it stands */
	uint8_t length[ROSA_CANDIDATES];    /* of the match, 1 to 32 */
	uint8_t alignment[ROSA_CANDIDATES]; /* of the last 16 tokens, how many equal those before the place in order */
	uint8_t as_long[ROSA_CANDIDATES];   /* number of places whose match is at least as long */
	uint8_t followed_by[ROSA_CANDIDATES]; /* number of those that are followed by the token */
} rosa_continuation;

typedef struct rosa_contexts rosa_contexts;

/* Of the options delay and allocator are used. */
ROSA_API rosa_status rosa_contexts_new(const rosa_options *options, rosa_contexts **made, rosa_error *err);

/* Safe on NULL. */
ROSA_API void rosa_contexts_free(rosa_contexts *contexts);

/* Append tokens. found[i], if `found` is not NULL, is what followed the context that ends with tokens[i]. */
ROSA_API rosa_status rosa_contexts_push(rosa_contexts *contexts, size_t steps, const uint32_t *tokens,
					rosa_continuation *found, rosa_error *err);

/* A second, independent state that continues from here. */
ROSA_API rosa_status rosa_contexts_fork(const rosa_contexts *contexts, rosa_contexts **copy, rosa_error *err);

/* Go back to the first `steps` tokens; more than there are is an error. Going back by no more than the delay is
 * cheap. */
ROSA_API rosa_status rosa_contexts_rewind(rosa_contexts *contexts, size_t steps, rosa_error *err);

ROSA_API size_t rosa_contexts_steps(const rosa_contexts *contexts);
ROSA_API uint64_t rosa_contexts_bytes(const rosa_contexts *contexts); /* allocated */

/* ------------------------------------------------------------------------------------------ 4 operator, by parts -- */

/*
 * The operator of a layer: symbols of q and k are looked up, the value bits found are read out between e0 and e1.
 *
 *     rosa_pack(q), rosa_pack(k), rosa_pack(v)  ->  rosa_find  ->  rosa_read  ->  y
 *     dL/dy  ->  rosa_read_backward  ->  dL/dq, dL/dk, dL/dv, dL/de0, dL/de1
 *
 * Rows of activations are [batch][steps][channels], dense, float32 or bfloat16; sums are float32. Symbols are
 * [batch * R][steps] with R = channels / bits, route r of batch entry b at row b*R + r. The same input gives the same
 * bits whatever options.threads is. Of rosa_options these functions use bits, policy, fold, max_match, threads and the
 * allocator; rosa_find reports progress, and rosa_read_backward asks whether to stop, with `done` 0 until the end.
 */

typedef enum rosa_qk_grad {
	ROSA_QK_LINEAR = 0, /* all readable runs have equal weights: linear time */
	ROSA_QK_SOFT = 1,   /* weights are a softmax over -slope * Hamming distance: quadratic time */
	ROSA_QK_FLIPS = 2,  /* the paper's counterfactuals: what would have been read with each bit flipped */
	ROSA_QK_NONE = 3    /* q and k get no gradient */
} rosa_qk_grad;

/* Over which channels `soft` and `linear` compute how much a destination reduces the loss: those of all routes, or of
 * the route alone. */
typedef enum rosa_credit { ROSA_CREDIT_ALL = 0, ROSA_CREDIT_ROUTE = 1 } rosa_credit;

/* Where `flips` puts the gradient of a key: at the run that was matched, or at the one after it, which is read (the
 * paper). */
typedef enum rosa_key_credit { ROSA_KEY_MATCH = 0, ROSA_KEY_DESTINATION = 1 } rosa_key_credit;

/* The derivative of a value's bit: that of the sigmoid (the paper), or 1 where |v| < 1 and 0 elsewhere. */
typedef enum rosa_v_grad { ROSA_V_SIGMOID = 0, ROSA_V_STRAIGHT = 1 } rosa_v_grad;

/* How q, k and v learn. Start from ROSA_LEARNING_INIT; `size` as in rosa_options. */
typedef struct rosa_learning {
	size_t size; /* sizeof(rosa_learning) */
	rosa_qk_grad qk_grad;
	rosa_credit credit;         /* soft, linear */
	rosa_key_credit key_credit; /* flips */
	float slope;                /* soft: of the softmax, > 0 */
	float suffix;               /* soft, linear: weight of the symbols one run earlier, >= 0; 0: not used */
	float explore;              /* share of route-steps read at a random past run instead, 0 to 1; training only */
	float flip_share;           /* flips: share of query runs whose counterfactuals are looked up, > 0 to 1 */
	uint64_t seed;              /* of explore and flip_share */
	rosa_v_grad v_grad;         /* the paper's unless set; adapters are made with ROSA_V_STRAIGHT */
} rosa_learning;

#define ROSA_LEARNING_INIT                                                                                             \
	{                                                                                                              \
		sizeof(rosa_learning), ROSA_QK_LINEAR, ROSA_CREDIT_ALL, ROSA_KEY_MATCH, 1, 0, 0, 1, 0, ROSA_V_SIGMOID  \
	}

/* Bytes per stored destination: 2 (unsigned) where `steps` allows it, else 4. -1 is stored as all ones. */
ROSA_API int rosa_width(size_t steps);

/* The number of runs in a [routes][steps] array of symbols of `bits` bits. It is the number of rows of the
 * counterfactual table. */
ROSA_API size_t rosa_count_runs(size_t routes, size_t steps, const void *symbols, int bits, int fold);

/* Find what every step of every route reads. `read` receives [routes][steps] destinations of rosa_width(steps) bytes;
 * `length`, if not NULL, the match lengths, [routes][steps], cut at 255: 0 where nothing was found, and at explored
 * steps. `learning` NULL: inference, without exploration and counterfactuals. With ROSA_QK_FLIPS `flips` receives one
 * row of bits + 1 destinations per query run, route by route: the true destination at the run's first step, then that
 * with each bit flipped. Runs left out by flip_share repeat the true one. Otherwise `flips` is not written. */
ROSA_API rosa_status rosa_find(const rosa_options *options, const rosa_learning *learning, size_t routes, size_t steps,
			       const void *query, const void *key, void *read, uint8_t *length, void *flips,
			       rosa_error *err);

/* y = m (e0 + (e1 - e0) b): m is 1 where something was found, else 0; b are the bits of the value symbol there. `value`
 * is [batch * R][value_steps], which may be a longer history than the `steps` rows of `read` and `y`; destinations in
 * `read` have rosa_width(value_steps) bytes and are below value_steps. e0 and e1 are [channels]. */
ROSA_API rosa_status rosa_read(const rosa_options *options, rosa_dtype dtype, size_t batch, size_t steps,
			       size_t channels, const uint16_t *value, size_t value_steps, const void *read,
			       const float *e0, const float *e1, void *y, rosa_error *err);

/* Inputs and outputs of the backward pass of the read-out. */
typedef struct rosa_read_pass {
	size_t size; /* sizeof(rosa_read_pass) */
	rosa_dtype dtype;
	size_t batch, steps, channels;
	const void *q, *k, *v; /* [batch][steps][channels]; q and k may be NULL with ROSA_QK_NONE */
	const float *e0, *e1;  /* [channels] */
	const void *read;      /* from rosa_find, of rosa_width(steps) bytes */
	const void *flips;     /* from rosa_find; ROSA_QK_FLIPS only */
	const void *gy;        /* dL/dy, [batch][steps][channels] */
	void *gq, *gk, *gv;    /* overwritten; any may be NULL */
	float *ge0, *ge1;      /* overwritten; any may be NULL */
} rosa_read_pass;

/* The gradients of the read-out; docs/design.md, "Gradients", has the equations. */
ROSA_API rosa_status rosa_read_backward(const rosa_options *options, const rosa_learning *learning,
					const rosa_read_pass *pass, rosa_error *err);

/* ---------------------------------------------------------------------------------------- 5 operator, as a layer -- */

/*
 * Everything that ROSA adds to a decoder layer:
 *
 *     U = rmsnorm(H),  q, k, v = Wq U, Wk U, Wv U,  inj = Wout y, all of them per step
 *     y = z * sum over the reads that found something of  s * g[l] * (e0 + (e1 - e0) b)
 *     g: gain, by the length l of the match;  z = 2 sigmoid(U . w + b): gate;  s: scale
 *     post fusion:  out = inj, which the caller adds to H + Attention(norm(H))
 *     pre fusion:   out = (1 - a) H + a inj with a = sigmoid(a0), which the caller's attention takes in place of H
 *
 * Activations are float32 or bfloat16, parameters and their gradients float32. Matrices are dense, row by row,
 * [out][in] as in PyTorch's linear layers and in adapter files: q_t = Wq u_t.
 */

typedef enum rosa_fusion { ROSA_POST = 0, ROSA_PRE = 1 } rosa_fusion;

/* One source of what a layer reads: at every step a chain of `links` places for each of `routes` routes, of which each
 * owns channels / routes channels. tau NULL: the layer's own source, looked up from its q and k; routes is then
 * channels / bits, and links is above 1 only where wq == wk. Else places that were looked up before, as rosa_retrieve
 * and rosa_chain give them, such as those of token ids; they serve any number of layers. */
typedef struct rosa_places {
	size_t routes, links;  /* at most ROSA_MAX_LINKS */
	const int32_t *tau;    /* [links][batch * routes][steps]; -1: nothing; a place is below its sequence's steps */
	const int32_t *length; /* the same: of the matches; may be NULL without gain */
} rosa_places;

#define ROSA_MAX_SOURCES 4
#define ROSA_GAINS       10 /* columns of gain: matches of 0, 1, .. 8, and of 9 runs or more */

typedef struct rosa_layer {
	size_t size; /* sizeof(rosa_layer) */
	size_t channels;
	rosa_fusion fusion;
	rosa_dtype dtype;          /* of activations */
	float norm_eps;            /* added to the mean square */
	const float *norm;         /* [channels] */
	const float *wq, *wk, *wv; /* [channels][channels]; wq == wk: shared; NULL, both: no source of its own */
	const float *e0, *e1; /* [reads][channels]; the reads are the links of the first source, then of the next */
	const float *wout;    /* [channels][channels] */
	const float *a0;      /* [channels]; ROSA_PRE only */
	size_t sources;       /* 0: one, the layer's own, with one link */
	const rosa_places *places; /* [sources]; NULL only with 0 of them */
	const float *gain; /* [rows][ROSA_GAINS]: rows are the routes of the first read, then of the next; NULL: 1 */
	const float *gate_w, *gate_b; /* [channels], [1]; NULL, both: no gate */
	float scale;                  /* s; 0 means 1 */
} rosa_layer;

/* Gradients are accumulated; NULL: not computed. With a shared projection wq receives the sum of both. */
typedef struct rosa_layer_grads {
	size_t size; /* sizeof(rosa_layer_grads) */
	float *norm, *wq, *wk, *wv, *e0, *e1, *wout, *a0;
	float *gain, *gate_w, *gate_b;
} rosa_layer_grads;

/* What the forward pass keeps for the backward pass: input, q, k, v and destinations. */
typedef struct rosa_tape rosa_tape;

/* The forward pass. `h` and `out` are [batch][steps][channels] and may not overlap. `learning` NULL: the defaults. If
 * `tape` is not NULL, *tape receives what rosa_layer_backward needs; release it with rosa_tape_free. */
ROSA_API rosa_status rosa_layer_forward(const rosa_options *options, const rosa_learning *learning,
					const rosa_layer *layer, size_t batch, size_t steps, const void *h, void *out,
					rosa_tape **tape, rosa_error *err);

/* The backward pass, with the same `layer` as forward. `gout` is dL/dout. `grads` may be NULL. If `gh` is not NULL, it
 * receives dL/dh, as far as it comes through this function: in post fusion the caller adds those of attention and of
 * the residual connection. */
ROSA_API rosa_status rosa_layer_backward(const rosa_tape *tape, const rosa_layer *layer, const void *gout,
					 const rosa_layer_grads *grads, void *gh, rosa_error *err);

/* The bytes that a tape has allocated, and its release. Both are safe on NULL. */
ROSA_API size_t rosa_tape_bytes(const rosa_tape *tape);
ROSA_API void rosa_tape_free(rosa_tape *tape);

/* The matrix product of this build: "openblas" or "plain". */
ROSA_API const char *rosa_blas(void);

#ifdef __cplusplus
}
#endif
#endif
