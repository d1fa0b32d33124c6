/* The internals of the CPU backend, shared by its files. */
#pragma once

#include "backend/angles.h"
#include "backend/attend.h"
#include "backend/elementwise.h"
#include "backend/multiply.h"
#include "base/pool.h"
#include "backend/training.h"

/* Cosines and sines of the first positions, which all layers and batches of training share. */
struct training_angles {
	size_t head_size, steps;
	float *table; /* [steps][head_size]: cosines, then sines; then the frequencies */
};

struct cpu_backend {
	struct backend backend;
	struct pool *pool;
	unsigned threads;
	rosa_isa isa; /* determined once: CPUID is slow */
	const struct elementwise *elementwise;
	struct attend_scratch *attend_scratch;
	struct multiply_scratch *multiply_scratch;
	struct angles *angles;
	struct training_angles training_angles;
	float *attention_scratch; /* of training, of all workers */
	size_t attention_room;    /* its size in numbers */
};

static inline struct cpu_backend *cpu_of(struct backend *backend)
{
	return (struct cpu_backend *)backend;
}

/* Call `work` for all of `rows` rows of `width` numbers, some rows at a time, on as many threads as it pays. */
typedef void cpu_rows_work(struct cpu_backend *cpu, const void *arguments, size_t row, size_t count);
void cpu_each_rows(struct cpu_backend *cpu, size_t rows, size_t width, cpu_rows_work *work, const void *arguments);

extern const struct training_ops cpu_training_ops;

/* A backend in the caller's memory, for the library's own calls. It owns nothing and is not to be freed. Operations
 * that need memory of the backend's own are not there: `multiply` (that of training is), rotations, attention. */
void cpu_backend_borrow(rosa_workers *workers, struct cpu_backend *cpu);

/* `count` activations of this type as float32, and back. */
void cpu_widen(struct cpu_backend *cpu, rosa_dtype dtype, size_t count, const void *from, float *to);
void cpu_narrow(struct cpu_backend *cpu, rosa_dtype dtype, size_t count, const float *from, void *to);
