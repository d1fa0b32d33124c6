/*
 * Products of matrices, against three loops in double precision: by the library of the build, by every plain variant
 * that runs here, and on several workers, which must agree to the bit. Shapes stand around the sizes of tiles and
 * blocks; rows have gaps between them, which must not be touched.
 */
#include "backend/gemm.h"
#include "base/pool.h"

#include "support_test.h"
#include "support_trial.h"

#include <math.h>
#include <pthread.h>

#ifdef ROSATUNE_OPENBLAS
#include <cblas.h>
#endif

static const rosa_allocator plain_memory = {NULL, NULL};

struct product {
	bool trans_a, trans_b;
	size_t m, n, k, lda, ldb, ldc;
	float alpha, beta;
	float *a, *b, *c; /* c before */
	double *want;     /* [m][n] */
	double size;      /* what a number may come to, for judging errors */
	char text[160];
};

static float *random_matrix(size_t rows, size_t ld, uint64_t *state)
{
	float *x = test_alloc(rows * ld * sizeof(*x));

	for (size_t i = 0; i < rows * ld; i++)
		x[i] = (float)test_random(state, 2001) / 1000 - 1;
	return x;
}

static void make_product(struct product *p, uint64_t seed)
{
	uint64_t state = seed;

	p->lda = (p->trans_a ? p->m : p->k) + test_random(&state, 4);
	p->ldb = (p->trans_b ? p->k : p->n) + test_random(&state, 4);
	p->ldc = p->n + test_random(&state, 4);
	p->a = random_matrix(p->trans_a ? p->k : p->m, p->lda, &state);
	p->b = random_matrix(p->trans_b ? p->n : p->k, p->ldb, &state);
	p->c = random_matrix(p->m, p->ldc, &state);
	p->want = test_alloc(p->m * p->n * sizeof(*p->want));
	p->size = fabs((double)p->alpha) * sqrt((double)p->k) + fabs((double)p->beta);
	for (size_t i = 0; i < p->m; i++) {
		for (size_t j = 0; j < p->n; j++) {
			double sum = 0;

			for (size_t x = 0; x < p->k; x++)
				sum += (double)p->a[p->trans_a ? x * p->lda + i : i * p->lda + x] *
				       (double)p->b[p->trans_b ? j * p->ldb + x : x * p->ldb + j];
			p->want[i * p->n + j] = p->alpha * sum;
			if (p->beta != 0)
				p->want[i * p->n + j] += (double)p->beta * (double)p->c[i * p->ldc + j];
			else
				p->c[i * p->ldc + j] = NAN; /* which must not be read */
		}
	}
	snprintf(p->text, sizeof(p->text), "%zu x %zu x %zu, trans %d %d, alpha %g, beta %g, seed %llu", p->m, p->n,
		 p->k, p->trans_a, p->trans_b, (double)p->alpha, (double)p->beta, (unsigned long long)seed);
}

static void expect_product(const struct product *p, const char *how, const float *got)
{
	for (size_t i = 0; i < p->m; i++) {
		for (size_t j = 0; j < p->ldc; j++) {
			const float *number = &got[i * p->ldc + j];

			if (j < p->n ? !(fabs((double)*number - p->want[i * p->n + j]) <= 2e-6 * p->size)
				     : memcmp(number, &p->c[i * p->ldc + j], sizeof(*number)) != 0)
				fail_msg("%s by %s: row %zu, column %zu is %.9g, want %.9g", p->text, how, i, j,
					 (double)*number, j < p->n ? p->want[i * p->n + j] : 0);
		}
	}
}

static void check_product(const struct product *p)
{
	static const unsigned threads[] = {1, 2, 3, 5};
	const size_t bytes = p->m * p->ldc * sizeof(*p->c);
	float *c = test_alloc(bytes), *first = test_alloc(bytes);

	for (int isa = 0; isa < ROSA_ISA_COUNT; isa++) {
		if (!rosa_isa_available((rosa_isa)isa))
			continue;
		memcpy(c, p->c, bytes);
		gemm_plain((rosa_isa)isa, p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b,
			   p->ldb, p->beta, c, p->ldc);
		expect_product(p, rosa_isa_name((rosa_isa)isa), c);
	}
	memcpy(c, p->c, bytes);
	gemm(p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b, p->ldb, p->beta, c, p->ldc);
	expect_product(p, rosa_blas(), c);
	for (size_t i = 0; i < COUNT(threads); i++) {
		struct pool *pool = pool_new(&plain_memory, threads[i]);

		assert_non_null(pool);
		memcpy(c, p->c, bytes);
		gemm_parallel(pool, p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b, p->ldb,
			      p->beta, c, p->ldc);
		expect_product(p, "a pool", c);
		if (i == 0)
			memcpy(first, c, bytes);
		for (size_t x = 0; x < p->m; x++)
			if (memcmp(first + x * p->ldc, c + x * p->ldc, p->n * sizeof(*c)))
				fail_msg("%s: %u threads give other bits than 1", p->text, threads[i]);
		pool_free(pool, &plain_memory);
	}
}

TEST(test_products)
{
	static const size_t sizes[] = {1, 2, 3, 7, 8, 17, 33, 64, 65, 128, 130, 257, 300, 520};
	static const float factors[] = {1, 0, 0.5f, -2};
	const size_t rounds = test_rounds(60);

	for (uint64_t i = 0, mark = test_mark(); i < rounds; i++, test_release(mark)) {
		uint64_t turn = i * 31 + 7;
		struct product p = {.trans_a = i & 1, .trans_b = i >> 1 & 1};

		p.m = sizes[test_random(&turn, COUNT(sizes))];
		p.n = sizes[test_random(&turn, COUNT(sizes))];
		p.k = i % 10 == 9 ? 0 : sizes[test_random(&turn, COUNT(sizes) - 2)];
		p.alpha = factors[test_random(&turn, COUNT(factors))];
		p.beta = factors[test_random(&turn, COUNT(factors))];
		make_product(&p, i);
		check_product(&p);
	}
}

TEST(test_nothing)
{
	float x = 3;

	gemm(false, false, 0, 1, 1, 1, &x, 1, &x, 1, 0, &x, 1);
	gemm(false, false, 1, 0, 1, 1, &x, 1, &x, 1, 0, &x, 1);
	gemm_plain(ROSA_ISA_PLAIN, false, false, 0, 1, 1, 1, &x, 1, &x, 1, 0, &x, 1);
	assert_true(x == 3);
}

/* Products of several threads at once leave OpenBLAS with the number of threads that the program gave it, and do not
 * see that number. */
#ifdef ROSATUNE_OPENBLAS
static void *many_products(void *context)
{
	const struct product *p = context;
	float *c = test_alloc(p->m * p->ldc * sizeof(*c));

	for (int i = 0; i < 50; i++) {
		memcpy(c, p->c, p->m * p->ldc * sizeof(*c));
		gemm(p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b, p->ldb, p->beta, c,
		     p->ldc);
	}
	return c;
}

TEST(test_threads_of_openblas)
{
	const int had = openblas_get_num_threads();
	struct product p = {.m = 150, .n = 90, .k = 200, .alpha = 1};

	make_product(&p, 1);
	for (int number = 1; number <= 2; number++) {
		pthread_t threads[4];

		openblas_set_num_threads(number);
		for (size_t i = 0; i < COUNT(threads); i++)
			assert_int_equal(pthread_create(&threads[i], NULL, many_products, &p), 0);
		for (size_t i = 0; i < COUNT(threads); i++) {
			void *c;

			assert_int_equal(pthread_join(threads[i], &c), 0);
			expect_product(&p, "several threads", c);
		}
		assert_int_equal(openblas_get_num_threads(), number);
	}
	openblas_set_num_threads(had);
}
#else
TEST(test_threads_of_openblas)
{
	assert_string_equal(rosa_blas(), "plain");
	skip();
}
#endif
