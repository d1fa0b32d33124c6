/*
 * The operations of a decoder on a CPU.
 *
 * Most are loops that are defined elsewhere; here they are divided into pieces for the worker threads. A piece is some
 * whole rows, or some numbers where rows do not matter, so the division does not change the result. Decoding one token
 * makes hundreds of calls of about a microsecond, and waking other threads costs about as much: small calls stay on the
 * calling thread.
 */
#include "backend/angles.h"
#include "backend/attend.h"
#include "backend/backend.h"
#include "backend/cpu_backend.h"
#include "backend/cpu_parts.h"
#include "backend/elementwise.h"
#include "backend/kv_store.h"
#include "backend/multiply.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/sizes.h"

#include <stdlib.h>
#include <string.h>

#define PIECE     ((size_t)8192) /* numbers of a piece */
#define WORTH_IT  (4 * PIECE)    /* numbers from which on waking other threads pays */
#define ALIGNMENT ((size_t)64)

/* -------------------------------------------------------------------------------------------------------- pieces -- */

struct rows_call {
	struct cpu_backend *cpu;
	size_t rows, of_piece;
	cpu_rows_work *work;
	const void *arguments;
};

static void do_rows(void *context, size_t piece, unsigned worker)
{
	const struct rows_call *call = context;
	const size_t row = piece * call->of_piece;

	(void)worker;
	call->work(call->cpu, call->arguments, row, smaller(call->rows - row, call->of_piece));
}

void cpu_each_rows(struct cpu_backend *cpu, size_t rows, size_t width, cpu_rows_work *work, const void *arguments)
{
	struct rows_call call = {cpu, rows, width < PIECE ? PIECE / width : 1, work, arguments};

	if (cpu->threads > 1 && rows > call.of_piece && rows * width >= WORTH_IT)
		pool_run(cpu->pool, (rows + call.of_piece - 1) / call.of_piece, do_rows, &call, NULL);
	else if (rows)
		work(cpu, arguments, 0, rows);
}

/* -------------------------------------------------------------------------------------------------------- memory -- */

static void *cpu_take(struct backend *backend, size_t bytes)
{
	(void)backend;
	return bytes < SIZE_MAX / 2
		   ? aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + !bytes * ALIGNMENT)
		   : NULL;
}

static void cpu_give(struct backend *backend, void *pointer)
{
	(void)backend;
	free(pointer);
}

static void cpu_put(struct backend *backend, void *to, const void *host, size_t bytes)
{
	(void)backend;
	memcpy(to, host, bytes);
}

static void cpu_get(struct backend *backend, void *host, const void *from, size_t bytes)
{
	(void)backend;
	memcpy(host, from, bytes);
}

/* Weights are used in place. */
static rosa_status cpu_matrix_new(struct backend *backend, enum format format, size_t rows, size_t columns,
				  const void *host, struct matrix *matrix, rosa_error *err)
{
	(void)backend;
	*matrix = (struct matrix){0};
	if (!format_row_bytes(format, columns))
		return rosa_fail(err, ROSA_EINVAL, "rows of %zu numbers are no whole blocks of %s, which have %zu",
				 columns, format_info[format].name, format_info[format].numbers);
	if (format_is_fixed(format) && columns > MULTIPLY_MOST_FIXED)
		return rosa_fail(err, ROSA_EINVAL,
				 "rows of %zu numbers in format %s, which may have %zu; convert it to F16", columns,
				 format_info[format].name, MULTIPLY_MOST_FIXED);
	if ((uintptr_t)host % format_info[format].alignment)
		return rosa_fail(err, ROSA_EINVAL, "a weight of format %s must begin at a multiple of %zu bytes",
				 format_info[format].name, format_info[format].alignment);
	*matrix = (struct matrix){format, rows, columns, host};
	return ROSA_OK;
}

static void cpu_matrix_free(struct backend *backend, struct matrix *matrix)
{
	(void)backend;
	*matrix = (struct matrix){0};
}

/* ------------------------------------------------------------------------------------------------------- numbers -- */

static void cpu_multiply(struct backend *backend, size_t steps, const float *x, size_t count,
			 const struct product *products)
{
	struct cpu_backend *cpu = cpu_of(backend);

	multiply_on(cpu->isa, cpu->pool, cpu->multiply_scratch, steps, x, count, products);
}

struct embed_call {
	const struct matrix *weight;
	const uint32_t *tokens;
	float *y;
};

static void embed_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct embed_call *call = arguments;
	const struct matrix *weight = call->weight;
	const size_t bytes = format_row_bytes(weight->format, weight->columns);

	(void)cpu;
	for (size_t t = row; t < row + count; t++)
		format_widen(weight->format, (const char *)weight->data + call->tokens[t] * bytes, weight->columns,
			     call->y + t * weight->columns);
}

static void cpu_embed(struct backend *backend, const struct matrix *weight, size_t steps, const uint32_t *tokens,
		      float *y)
{
	const struct embed_call call = {weight, tokens, y};

	cpu_each_rows(cpu_of(backend), steps, weight->columns, embed_rows, &call);
}

struct norm_call {
	size_t width;
	const float *x, *weight;
	float eps, *y;
};

static void norm_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct norm_call *call = arguments;

	for (size_t t = row; t < row + count; t++)
		cpu->elementwise->rms_norm(call->width, call->x + t * call->width, call->weight, call->eps,
					   call->y + t * call->width);
}

static void cpu_rms_norm(struct backend *backend, size_t rows, size_t width, const float *x, const float *weight,
			 float eps, float *y)
{
	const struct norm_call call = {width, x, weight, eps, y};

	cpu_each_rows(cpu_of(backend), rows, width, norm_rows, &call);
}

struct rotate_call {
	size_t head_size, heads, first;
	void (*turn)(size_t half, const float *cosine, const float *sine, float *x);
	float *x;
};

static void rotate_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct rotate_call *call = arguments;
	const size_t half = call->head_size / 2;

	for (size_t t = row; t < row + count; t++) {
		const float *cosine = angles_row(cpu->angles, call->first + t);

		for (size_t h = 0; h < call->heads; h++)
			call->turn(half, cosine, cosine + half, call->x + (t * call->heads + h) * call->head_size);
	}
}

static void cpu_rotate(struct backend *backend, const struct rotary *rotary, size_t steps, size_t heads, size_t first,
		       float *x)
{
	struct cpu_backend *cpu = cpu_of(backend);
	struct rotate_call call = {
	    rotary->head_size, heads, first,
	    rotary->pairs == ROTARY_HALVES ? cpu->elementwise->turn_halves : cpu->elementwise->turn_neighbours, x};

	while (steps) {
		const size_t some =
		    angles_prepare(cpu->angles, rotary->head_size / 2, rotary->frequencies, call.first, steps);

		cpu_each_rows(cpu, some, heads * rotary->head_size, rotate_rows, &call);
		call.x += some * heads * rotary->head_size;
		call.first += some;
		steps -= some;
	}
}

struct pair_call {
	const float *a, *b;
	float *y;
};

static void swiglu_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct pair_call *call = arguments;

	cpu->elementwise->swiglu(count, call->a + row, call->b + row, call->y + row);
}

static void cpu_swiglu(struct backend *backend, size_t count, const float *gate, const float *up, float *y)
{
	const struct pair_call call = {gate, up, y};

	cpu_each_rows(cpu_of(backend), count, 1, swiglu_rows, &call);
}

static void add_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct pair_call *call = arguments;

	cpu->elementwise->add(count, call->a + row, call->y + row);
}

static void cpu_add(struct backend *backend, size_t count, const float *x, float *y)
{
	const struct pair_call call = {x, NULL, y};

	cpu_each_rows(cpu_of(backend), count, 1, add_rows, &call);
}

struct bias_call {
	size_t width;
	const float *bias;
	float *y;
};

static void bias_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct bias_call *call = arguments;

	for (size_t t = row; t < row + count; t++)
		cpu->elementwise->add(call->width, call->bias, call->y + t * call->width);
}

static void cpu_add_bias(struct backend *backend, size_t rows, size_t width, const float *bias, float *y)
{
	const struct bias_call call = {width, bias, y};

	cpu_each_rows(cpu_of(backend), rows, width, bias_rows, &call);
}

/* ----------------------------------------------------------------------------------------------------- attention -- */

static rosa_status cpu_cache_new(struct backend *backend, size_t heads, size_t head_size, size_t window, size_t sinks,
				 size_t chunk, struct kv_cache *cache, rosa_error *err)
{
	(void)backend;
	return kv_new(heads, head_size, window, sinks, chunk, cache, err);
}

static void cpu_cache_free(struct backend *backend, struct kv_cache *cache)
{
	(void)backend;
	kv_free(cache);
}

static rosa_status cpu_cache_reserve(struct backend *backend, struct kv_cache *cache, size_t steps, rosa_error *err)
{
	const rosa_status status = kv_reserve(cache, steps, err);

	return status ? status : attend_scratch_reserve(cpu_of(backend)->attend_scratch, cache, steps, err);
}

static size_t cpu_cache_kept(struct backend *backend, const struct kv_cache *cache)
{
	(void)backend;
	return kv_kept(cache);
}

static void cpu_cache_save(struct backend *backend, const struct kv_cache *cache, float *keys, float *values)
{
	(void)backend;
	kv_save(cache, keys, values);
}

static rosa_status cpu_cache_load(struct backend *backend, struct kv_cache *cache, size_t steps, const float *keys,
				  const float *values, rosa_error *err)
{
	(void)backend;
	return kv_load(cache, steps, keys, values, err);
}

static size_t cpu_cache_floor(struct backend *backend, const struct kv_cache *cache)
{
	(void)backend;
	return kv_floor(cache);
}

static void cpu_cache_rewind(struct backend *backend, struct kv_cache *cache, size_t steps)
{
	(void)backend;
	kv_rewind(cache, steps);
}

static rosa_status cpu_cache_fork(struct backend *backend, const struct kv_cache *cache, size_t steps,
				  struct kv_cache *copy, rosa_error *err)
{
	(void)backend;
	return kv_fork(cache, steps, copy, err);
}

static void cpu_attend(struct backend *backend, struct kv_cache *cache, size_t steps, size_t heads, const float *q,
		       const float *k, const float *v, float *y)
{
	struct cpu_backend *cpu = cpu_of(backend);

	attend(cpu->isa, cpu->pool, cpu->attend_scratch, cache, steps, heads, q, k, v, y);
}

/* ---------------------------------------------------------------------------------------------------------- ROSA -- */

struct symbols_call {
	size_t channels, stride;
	int bits;
	const float *x;
	uint16_t *symbols;
};

static void symbols_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct symbols_call *call = arguments;

	(void)cpu;
	rosa_pack(ROSA_FLOAT32, call->x + row * call->channels, 0, count, call->channels, call->bits,
		  call->symbols + row, call->stride, NULL);
}

static void cpu_symbols(struct backend *backend, size_t steps, size_t channels, int bits, const float *x,
			uint16_t *symbols, size_t stride)
{
	const struct symbols_call call = {channels, stride, bits, x, symbols};

	cpu_each_rows(cpu_of(backend), steps, channels, symbols_rows, &call);
}

struct pack_call {
	size_t channels;
	const float *x;
	uint64_t *bits;
};

static void pack_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct pack_call *call = arguments;

	cpu->elementwise->pack(count, call->channels, call->x + row * call->channels,
			       call->bits + row * bit_words(call->channels));
}

static void cpu_pack(struct backend *backend, size_t steps, size_t channels, const float *x, uint64_t *bits)
{
	const struct pack_call call = {channels, x, bits};

	cpu_each_rows(cpu_of(backend), steps, channels, pack_rows, &call);
}

struct read_call {
	size_t steps, channels;
	const struct reads *reads;
	const float *e0, *e1;
	float *y;
};

static void read_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct read_call *call = arguments;
	const struct reads *reads = call->reads;
	const size_t channels = call->channels, words = bit_words(channels);
	const float *weight = reads->weight + row;

	for (size_t i = 0; i < reads->links; i++) {
		cpu->elementwise->read(count, channels, reads->routes[i], reads->bits + (i * call->steps + row) * words,
				       weight, call->steps, call->e0 + i * channels, call->e1 + i * channels, i > 0,
				       call->y + row * channels);
		weight += reads->routes[i] * call->steps;
	}
}

static void cpu_read(struct backend *backend, size_t steps, size_t channels, const struct reads *reads, const float *e0,
		     const float *e1, float *y)
{
	const struct read_call call = {steps, channels, reads, e0, e1, y};

	cpu_each_rows(cpu_of(backend), steps, channels, read_rows, &call);
}

struct gate_call {
	size_t channels;
	const float *u, *w, *b;
	float *z, *y;
};

static void gate_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct gate_call *call = arguments;

	for (size_t t = row; t < row + count; t++)
		call->z[t] = cpu->elementwise->gate(call->channels, call->u + t * call->channels, call->w, *call->b,
						    call->y + t * call->channels);
}

static void cpu_gate(struct backend *backend, size_t steps, size_t channels, const float *u, const float *w,
		     const float *b, float *z, float *y)
{
	const struct gate_call call = {channels, u, w, b, z, y};

	cpu_each_rows(cpu_of(backend), steps, channels, gate_rows, &call);
}

struct mix_call {
	size_t channels;
	const float *a0, *h, *x;
	float *y;
};

static void mix_rows(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count)
{
	const struct mix_call *call = arguments;
	const size_t at = row * call->channels;

	cpu->elementwise->mix(count, call->channels, call->a0, call->h + at, call->x + at, call->y + at);
}

static void cpu_mix(struct backend *backend, size_t steps, size_t channels, const float *a0, const float *h,
		    const float *x, float *y)
{
	const struct mix_call call = {channels, a0, h, x, y};

	cpu_each_rows(cpu_of(backend), steps, channels, mix_rows, &call);
}

/* -------------------------------------------------------------------------------------------------------- making -- */

static const struct backend_ops cpu_ops = {
    .name = "cpu",
    .training = &cpu_training_ops,
    .take = cpu_take,
    .give = cpu_give,
    .put = cpu_put,
    .get = cpu_get,
    .matrix_new = cpu_matrix_new,
    .matrix_free = cpu_matrix_free,
    .multiply = cpu_multiply,
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .rotate = cpu_rotate,
    .swiglu = cpu_swiglu,
    .add = cpu_add,
    .add_bias = cpu_add_bias,
    .cache_new = cpu_cache_new,
    .cache_free = cpu_cache_free,
    .cache_reserve = cpu_cache_reserve,
    .cache_kept = cpu_cache_kept,
    .cache_save = cpu_cache_save,
    .cache_load = cpu_cache_load,
    .cache_floor = cpu_cache_floor,
    .cache_rewind = cpu_cache_rewind,
    .cache_fork = cpu_cache_fork,
    .attend = cpu_attend,
    .symbols = cpu_symbols,
    .pack = cpu_pack,
    .read = cpu_read,
    .gate = cpu_gate,
    .mix = cpu_mix,
};

bool cpu_backend_available(rosa_isa isa)
{
	return attend_isa_available(isa) && multiply_isa_available(isa);
}

static rosa_isa best_isa(void)
{
	int isa = ROSA_ISA_COUNT - 1;

	while (isa > ROSA_ISA_PLAIN && !cpu_backend_available((rosa_isa)isa))
		isa--;
	return (rosa_isa)isa;
}

rosa_status cpu_backend_new(rosa_workers *workers, struct backend **backend, rosa_error *err)
{
	return cpu_backend_new_on(best_isa(), workers, backend, err);
}

static void begin(struct cpu_backend *cpu, rosa_isa isa, rosa_workers *workers)
{
	rosa_options options = ROSA_OPTIONS_INIT;

	options.workers = workers;
	*cpu = (struct cpu_backend){.backend = {&cpu_ops},
				    .isa = isa,
				    .pool = pool_for(&options, 0),
				    .threads = pool_kept_threads(workers),
				    .elementwise = elementwise_for(isa)};
}

void cpu_backend_borrow(rosa_workers *workers, struct cpu_backend *cpu)
{
	begin(cpu, best_isa(), workers);
}

rosa_status cpu_backend_new_on(rosa_isa isa, rosa_workers *workers, struct backend **backend, rosa_error *err)
{
	struct cpu_backend *cpu;
	rosa_status status;

	*backend = NULL;
	if (!workers)
		return rosa_fail(err, ROSA_EINVAL, "workers is NULL; make them with rosa_workers_new");
	cpu = malloc(sizeof(*cpu));
	if (!cpu)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a backend");
	begin(cpu, isa, workers);
	cpu->angles = angles_new();
	status = cpu->angles ? attend_scratch_new(cpu->threads, &cpu->attend_scratch, err)
			     : rosa_fail(err, ROSA_ENOMEM, "no memory for rotary positions");
	if (!status)
		status = multiply_scratch_new(cpu->threads, &cpu->multiply_scratch, err);
	if (status)
		cpu_backend_free(&cpu->backend);
	else
		*backend = &cpu->backend;
	return status;
}

void cpu_backend_free(struct backend *backend)
{
	struct cpu_backend *cpu = backend ? cpu_of(backend) : NULL;

	if (!cpu)
		return;
	angles_free(cpu->angles);
	free(cpu->training_angles.table);
	free(cpu->attention_scratch);
	attend_scratch_free(cpu->attend_scratch);
	multiply_scratch_free(cpu->multiply_scratch);
	free(cpu);
}
