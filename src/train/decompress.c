/*
 * Decompression.
 *
 * Formats are recognised by the first bytes of a file and not by its name: standard input has no name, and a name may
 * be wrong. Each of the three formats allows several compressed files one after the other in a file, which is how
 * parallel compressors write and how logs are joined; so the end of one is the end only if nothing follows.
 *
 * Each library is optional. A format differs from the others in three functions; callers see no difference.
 */
#include "train/decompress.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#ifdef ROSATUNE_ZLIB
#include <zlib.h>
#endif
#ifdef ROSATUNE_LZMA
#include <lzma.h>
#endif
#ifdef ROSATUNE_ZSTD
#include <zstd.h>
#endif

enum outcome { GOES_ON, ENDED, BROKEN };

/* One format. `run` moves both spans on; ENDED: one compressed file is over, and another may follow. */
struct method {
	const char *name, *package;
	const uint8_t magic[COMPRESSION_MAGIC];
	size_t magic_size;
	bool (*begin)(struct decompressor *decompressor);
	enum outcome (*run)(struct decompressor *decompressor, struct byte_span *from, bool last, struct byte_span *to);
	void (*end)(struct decompressor *decompressor);
};

struct decompressor {
	const struct method *method;
	bool fresh; /* nothing has been read since the last end */
	const char *problem;
#ifdef ROSATUNE_ZLIB
	z_stream gzip;
#endif
#ifdef ROSATUNE_LZMA
	lzma_stream xz;
#endif
#ifdef ROSATUNE_ZSTD
	ZSTD_DStream *zstd;
#endif
};

#if defined(ROSATUNE_ZLIB) || defined(ROSATUNE_LZMA) || defined(ROSATUNE_ZSTD)
static void move_on(struct byte_span *span, size_t left)
{
	span->at += span->size - left;
	span->size = left;
}
#endif

/* ---------------------------------------------------------------------------------------------------------- gzip -- */

#ifdef ROSATUNE_ZLIB
static bool begin_gzip(struct decompressor *d)
{
	return inflateInit2(&d->gzip, 15 + 16) == Z_OK; /* the widest window, and gzip's header */
}

static enum outcome run_gzip(struct decompressor *d, struct byte_span *from, bool last, struct byte_span *to)
{
	int code;

	(void)last;
	d->gzip.next_in = from->at;
	d->gzip.avail_in = (uInt)from->size;
	d->gzip.next_out = to->at;
	d->gzip.avail_out = (uInt)to->size;
	code = inflate(&d->gzip, Z_NO_FLUSH);
	move_on(from, d->gzip.avail_in);
	move_on(to, d->gzip.avail_out);
	if (code == Z_STREAM_END)
		return inflateReset(&d->gzip) == Z_OK ? ENDED : BROKEN;
	d->problem = d->gzip.msg;
	return code == Z_OK || code == Z_BUF_ERROR ? GOES_ON : BROKEN;
}

static void end_gzip(struct decompressor *d)
{
	inflateEnd(&d->gzip);
}
#define GZIP_METHOD begin_gzip, run_gzip, end_gzip
#else
#define GZIP_METHOD NULL, NULL, NULL
#endif

/* ------------------------------------------------------------------------------------------------------------ xz -- */

#ifdef ROSATUNE_LZMA
#define XZ_MEMORY ((uint64_t)1 << 30) /* xz -9 needs 65 MB */

static bool begin_xz(struct decompressor *d)
{
	d->xz = (lzma_stream)LZMA_STREAM_INIT;
	return lzma_stream_decoder(&d->xz, XZ_MEMORY, LZMA_CONCATENATED) == LZMA_OK;
}

static enum outcome run_xz(struct decompressor *d, struct byte_span *from, bool last, struct byte_span *to)
{
	lzma_ret code;

	d->xz.next_in = from->at;
	d->xz.avail_in = from->size;
	d->xz.next_out = to->at;
	d->xz.avail_out = to->size;
	code = lzma_code(&d->xz, last ? LZMA_FINISH : LZMA_RUN);
	move_on(from, d->xz.avail_in);
	move_on(to, d->xz.avail_out);
	if (code == LZMA_MEMLIMIT_ERROR)
		d->problem = "it takes more than 1 GB of memory to read";
	if (code == LZMA_MEM_ERROR)
		d->problem = "no memory";
	return code == LZMA_STREAM_END ? ENDED : code == LZMA_OK || code == LZMA_BUF_ERROR ? GOES_ON : BROKEN;
}

static void end_xz(struct decompressor *d)
{
	lzma_end(&d->xz);
}
#define XZ_METHOD begin_xz, run_xz, end_xz
#else
#define XZ_METHOD NULL, NULL, NULL
#endif

/* ---------------------------------------------------------------------------------------------------------- zstd -- */

#ifdef ROSATUNE_ZSTD
static bool begin_zstd(struct decompressor *d)
{
	d->zstd = ZSTD_createDStream();
	/* corpora are packed with --long=31 */
	return d->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(d->zstd, ZSTD_d_windowLogMax, 31));
}

static enum outcome run_zstd(struct decompressor *d, struct byte_span *from, bool last, struct byte_span *to)
{
	ZSTD_inBuffer in = {from->at, from->size, 0};
	ZSTD_outBuffer out = {to->at, to->size, 0};
	size_t code = ZSTD_decompressStream(d->zstd, &out, &in);

	(void)last;
	move_on(from, in.size - in.pos);
	move_on(to, out.size - out.pos);
	if (ZSTD_isError(code)) {
		d->problem = ZSTD_getErrorName(code);
		return BROKEN;
	}
	return code == 0 ? ENDED : GOES_ON;
}

static void end_zstd(struct decompressor *d)
{
	ZSTD_freeDStream(d->zstd);
}
#define ZSTD_METHOD begin_zstd, run_zstd, end_zstd
#else
#define ZSTD_METHOD NULL, NULL, NULL
#endif

/* ----------------------------------------------------------------------------------------------------------- all -- */

static const struct method methods[] = {
    [COMPRESSION_NONE] = {"nothing", "", {0}, 0, NULL, NULL, NULL},
    [COMPRESSION_GZIP] = {"gzip", "zlib1g-dev", {0x1f, 0x8b, 8}, 3, GZIP_METHOD},
    [COMPRESSION_XZ] = {"xz", "liblzma-dev", {0xfd, '7', 'z', 'X', 'Z', 0}, 6, XZ_METHOD},
    [COMPRESSION_ZSTD] = {"zstd", "libzstd-dev", {0x28, 0xb5, 0x2f, 0xfd}, 4, ZSTD_METHOD},
};

enum compression compression_of(const uint8_t *first, size_t size)
{
	for (int i = COMPRESSION_GZIP; i <= COMPRESSION_ZSTD; i++) {
		if (size >= methods[i].magic_size && memcmp(first, methods[i].magic, methods[i].magic_size) == 0)
			return (enum compression)i;
	}
	return COMPRESSION_NONE;
}

rosa_status decompressor_new(enum compression compression, struct decompressor **made, rosa_error *err)
{
	const struct method *method = &methods[compression];
	struct decompressor *decompressor;

	*made = NULL;
	if (!method->begin)
		return rosa_fail(err, ROSA_EINVAL, "this build cannot read %s: install %s and build again",
				 method->name, method->package);
	decompressor = calloc(1, sizeof(*decompressor));
	if (!decompressor)
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory to read %s", method->name);
	decompressor->method = method;
	decompressor->fresh = true;
	if (!method->begin(decompressor)) {
		method->end(decompressor);
		free(decompressor);
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory to read %s", method->name);
	}
	*made = decompressor;
	return ROSA_OK;
}

void decompressor_free(struct decompressor *decompressor)
{
	if (decompressor)
		decompressor->method->end(decompressor);
	free(decompressor);
}

rosa_status decompress(struct decompressor *decompressor, struct byte_span *from, bool last, struct byte_span *to,
		       rosa_error *err)
{
	const struct method *method = decompressor->method;
	size_t had = from->size, room = to->size;
	enum outcome outcome;

	if (had == 0 && decompressor->fresh)
		return ROSA_OK;
	decompressor->problem = NULL;
	outcome = method->run(decompressor, from, last, to);
	if (outcome == BROKEN)
		return rosa_fail(err, ROSA_EFORMAT, "is damaged: what looks like %s cannot be read%s%s", method->name,
				 decompressor->problem ? ": " : "", decompressor->problem ? decompressor->problem : "");
	decompressor->fresh = outcome == ENDED;
	if (outcome == GOES_ON && last && from->size == had && to->size == room)
		return rosa_fail(err, ROSA_EFORMAT, "is cut short: its %s does not end", method->name);
	return ROSA_OK;
}
