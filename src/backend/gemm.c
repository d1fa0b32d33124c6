/*
 * Products of float32 matrices: by OpenBLAS where the build found it, else by plain C.
 *
 * The bits of a result must not depend on the number of threads. OpenBLAS divides a product by the number of its own
 * threads, so it is used with one thread only: every call runs on the calling thread, and gemm_parallel divides the
 * result into tiles that depend on its shape alone. The inner dimension is never divided.
 *
 * The number of OpenBLAS threads is one setting of the whole process, and the program may use OpenBLAS too. So it is
 * set to 1 while a product of ours runs and restored afterwards. Products overlap, from several workers and several
 * calls of the program: the first one to begin saves the setting, the last one to end restores it, both under a lock.
 * If the program changes the setting in between, its change stays. Its own products during that time are right, but use
 * one thread. This count is the only state that calls of the library share. Where OpenBLAS is built upon OpenMP, the
 * setting is OpenMP's; it belongs to a thread and is set around each product without a lock. Those functions are weak
 * references, which are defined exactly where they are needed.
 *
 * The plain product copies blocks of both operands, pads them with zeros to whole tiles, and multiplies tile by tile
 * with the sums of a tile in registers. The compiler vectorises the loops; the variants differ in the instruction set
 * and in the width of a tile. The plain product is always built, and tests compare the two.
 */
#include "backend/gemm.h"
#include "base/pool.h"
#include "base/sizes.h"

#include "rosatune.h"

#include <string.h>

#ifdef ROSATUNE_OPENBLAS
#include <cblas.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#endif

/* -------------------------------------------------------------------------------------------------------- plain -- */

#define BLOCK_K   128
#define BLOCK_N   64 /* a multiple of every width of a tile */
#define TILE_ROWS 4

struct matrix {
	const float *at;
	size_t row, column; /* numbers from one row, and column, to the next */
};

static struct matrix matrix_of(const float *at, size_t ld, bool turned)
{
	return turned ? (struct matrix){at, 1, ld} : (struct matrix){at, ld, 1};
}

/* c[i][j] += alpha * sum over k of a[k][i] b[k][j], for four rows, of which `rows` exist, and `width` columns, of which
 * `columns` exist. A tile is two vectors wide: eight sums in flight keep the multipliers busy. Rows are written out
 * because compilers unroll a loop over them differently. */
#define DEFINE_TILE(name, attribute, width)                                                                            \
	attribute static void name(size_t depth, float alpha, float(*a)[TILE_ROWS], float(*b)[BLOCK_N], float *c,      \
				   size_t ldc, size_t rows, size_t columns)                                            \
	{                                                                                                              \
		float s0[width] = {0}, s1[width] = {0}, s2[width] = {0}, s3[width] = {0};                              \
		const float *const sums[TILE_ROWS] = {s0, s1, s2, s3};                                                 \
                                                                                                                       \
		for (size_t k = 0; k < depth; k++) {                                                                   \
			for (size_t j = 0; j < width; j++) {                                                           \
				s0[j] += a[k][0] * b[k][j];                                                            \
				s1[j] += a[k][1] * b[k][j];                                                            \
				s2[j] += a[k][2] * b[k][j];                                                            \
				s3[j] += a[k][3] * b[k][j];                                                            \
			}                                                                                              \
		}                                                                                                      \
		for (size_t i = 0; i < rows; i++)                                                                      \
			for (size_t j = 0; j < columns; j++)                                                           \
				c[i * ldc + j] += alpha * sums[i][j];                                                  \
	}

DEFINE_TILE(tile_plain, , 8)
#if ROSA_X86_VARIANTS
DEFINE_TILE(tile_avx2, __attribute__((target("avx2"))), 16)
DEFINE_TILE(tile_avx512, __attribute__((target("avx512f"))), 32)
#endif

static const struct {
	void (*tile)(size_t depth, float alpha, float (*a)[TILE_ROWS], float (*b)[BLOCK_N], float *c, size_t ldc,
		     size_t rows, size_t columns);
	size_t width;
} variants[ROSA_ISA_COUNT] = {
    [ROSA_ISA_PLAIN] = {tile_plain, 8},
#if ROSA_X86_VARIANTS
    [ROSA_ISA_AVX2] = {tile_avx2, 16},
    [ROSA_ISA_AVX512] = {tile_avx512, 32},
#endif
};

void gemm_plain(rosa_isa isa, bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const float *a,
		size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
	const struct matrix left = matrix_of(a, lda, trans_a), right = matrix_of(b, ldb, trans_b);
	float block[BLOCK_K][BLOCK_N], rows[BLOCK_K][TILE_ROWS];

	for (size_t i = 0; i < m; i++) {
		if (beta == 0)
			memset(c + i * ldc, 0, n * sizeof(*c));
		else if (beta != 1)
			for (size_t j = 0; j < n; j++)
				c[i * ldc + j] *= beta;
	}
	for (size_t k0 = 0; k0 < k; k0 += BLOCK_K) {
		const size_t depth = smaller(k - k0, BLOCK_K);

		for (size_t j0 = 0; j0 < n; j0 += BLOCK_N) {
			const size_t columns = smaller(n - j0, BLOCK_N);

			memset(block, 0, sizeof(block));
			for (size_t x = 0; x < depth; x++)
				for (size_t j = 0; j < columns; j++)
					block[x][j] = right.at[(k0 + x) * right.row + (j0 + j) * right.column];
			for (size_t i0 = 0; i0 < m; i0 += TILE_ROWS) {
				const size_t some = smaller(m - i0, TILE_ROWS);

				memset(rows, 0, sizeof(rows));
				for (size_t i = 0; i < some; i++)
					for (size_t x = 0; x < depth; x++)
						rows[x][i] = left.at[(i0 + i) * left.row + (k0 + x) * left.column];
				for (size_t j = 0; j < columns; j += variants[isa].width)
					variants[isa].tile(depth, alpha, rows, (float(*)[BLOCK_N]) & block[0][j],
							   c + i0 * ldc + j0 + j, ldc, some,
							   smaller(columns - j, variants[isa].width));
			}
		}
	}
}

/* ----------------------------------------------------------------------------------------------------- OpenBLAS -- */

#ifdef ROSATUNE_OPENBLAS
#define MOST_K ((size_t)1 << 30) /* rows of one product: OpenBLAS counts in int */

extern int omp_get_max_threads(void) __attribute__((weak));
extern void omp_set_num_threads(int threads) __attribute__((weak));

static pthread_mutex_t alone_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t alone_users;
static int alone_found; /* the number of threads to restore */

/* From here to alone_end, OpenBLAS works on the calling thread only. Returns the argument of alone_end. */
static int alone_begin(void)
{
	int found = 1;

	switch (openblas_get_parallel()) {
	case OPENBLAS_SEQUENTIAL:
		break;
	case OPENBLAS_OPENMP:
		if (!omp_get_max_threads || !omp_set_num_threads)
			break;
		found = omp_get_max_threads();
		if (found != 1)
			omp_set_num_threads(1);
		break;
	default:
		pthread_mutex_lock(&alone_lock);
		if (alone_users++ == 0) {
			alone_found = openblas_get_num_threads();
			openblas_set_num_threads(1);
		}
		pthread_mutex_unlock(&alone_lock);
	}
	return found;
}

static void alone_end(int found)
{
	switch (openblas_get_parallel()) {
	case OPENBLAS_SEQUENTIAL:
		break;
	case OPENBLAS_OPENMP:
		if (found != 1)
			omp_set_num_threads(found);
		break;
	default:
		pthread_mutex_lock(&alone_lock);
		if (--alone_users == 0 && openblas_get_num_threads() == 1)
			openblas_set_num_threads(alone_found);
		pthread_mutex_unlock(&alone_lock);
	}
}

/* Whether OpenBLAS will find memory. For its first product on a thread it maps a buffer of 128 MiB, and if there is no
 * room it tries again for ever. Room runs out only under a limit. */
static bool blas_has_room(void)
{
	const size_t room = (size_t)256 << 20; /* another thread may take one at the same time */
	struct rlimit space, data;
	void *probe;

	if (getrlimit(RLIMIT_AS, &space) != 0 || getrlimit(RLIMIT_DATA, &data) != 0 ||
	    (space.rlim_cur == RLIM_INFINITY && data.rlim_cur == RLIM_INFINITY))
		return true;
	probe = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (probe == MAP_FAILED)
		return false;
	munmap(probe, room);
	return true;
}

void gemm(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
	  const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
	const struct matrix left = matrix_of(a, lda, trans_a), right = matrix_of(b, ldb, trans_b);
	int found;

	if (!m || !n)
		return;
	if (!blas_has_room()) {
		gemm_plain(rosa_isa_best(), trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
		return;
	}
	found = alone_begin();
	for (size_t k0 = 0; k0 == 0 || k0 < k; k0 += MOST_K)
		cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans,
			    (blasint)m, (blasint)n, (blasint)smaller(k - k0, MOST_K), alpha, a + k0 * left.column,
			    (blasint)lda, b + k0 * right.row, (blasint)ldb, k0 ? 1 : beta, c, (blasint)ldc);
	alone_end(found);
}

const char *rosa_blas(void)
{
	return "openblas";
}
#else
void gemm(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
	  const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
	gemm_plain(rosa_isa_best(), trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

const char *rosa_blas(void)
{
	return "plain";
}
#endif

/* ----------------------------------------------------------------------------------------------------- parallel -- */

#define TILE_M 256
#define TILE_N 256

struct product {
	bool trans_a, trans_b;
	size_t m, n, k;
	float alpha;
	struct matrix a, b;
	size_t lda, ldb;
	float beta;
	float *c;
	size_t ldc;
	size_t across; /* tiles side by side */
};

static void do_tile(void *context, size_t tile, unsigned worker)
{
	const struct product *p = context;
	const size_t i = tile / p->across * TILE_M, j = tile % p->across * TILE_N;

	(void)worker;
	gemm(p->trans_a, p->trans_b, smaller(p->m - i, TILE_M), smaller(p->n - j, TILE_N), p->k, p->alpha,
	     p->a.at + i * p->a.row, p->lda, p->b.at + j * p->b.column, p->ldb, p->beta, p->c + i * p->ldc + j, p->ldc);
}

void gemm_parallel(struct pool *pool, bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha,
		   const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
	struct product product = {.trans_a = trans_a,
				  .trans_b = trans_b,
				  .m = m,
				  .n = n,
				  .k = k,
				  .alpha = alpha,
				  .a = matrix_of(a, lda, trans_a),
				  .b = matrix_of(b, ldb, trans_b),
				  .lda = lda,
				  .ldb = ldb,
				  .beta = beta,
				  .c = c,
				  .ldc = ldc,
				  .across = (n + TILE_N - 1) / TILE_N};
	const size_t tiles = (m + TILE_M - 1) / TILE_M * product.across;

	if (tiles == 1)
		do_tile(&product, 0, 0);
	else
		pool_run(pool, tiles, do_tile, &product, NULL);
}
