/* Tiny models and adapters on disk, and the decoder written out plainly, in double precision. */
#pragma once

#include "model/decoder.h"

struct tiny_model {
	enum architecture architecture;
	enum format format; /* of the matrices */
	size_t layers, width, heads, kv_heads, head_size, mlp_width, vocabulary;
	bool tied;
	uint64_t seed;
};

#define TINY_MODEL                                                                                                     \
	{                                                                                                              \
		LLAMA, FORMAT_F32, 3, 64, 4, 2, 16, 96, 50, false, 1                                                   \
	}

/* A GGUF file with random weights, without a tokenizer. */
void tiny_model_save(const struct tiny_model *model, const char *path);

struct tiny_adapter {
	int bits;
	rosa_fusion fusion;
	size_t window, sinks, first_global_layers;
	bool shared; /* one projection for q and k */
	uint64_t seed;
	const char
	    *source; /* NULL: a folder of format 1, which has what is above; else of format 2, which has the rest */
	size_t chain;
	bool late; /* the delay is the window, else there is none */
	bool gain, gate, units;
	size_t seen; /* the rank of its seen-token head */
};

/* An adapter folder for that model, with e0 and e1 that count. The folder must be there. */
void tiny_adapter_save(const struct tiny_model *model, const struct tiny_adapter *adapter, const char *folder);

/* The logits of a text, [steps][vocabulary]: every equation as it stands, nothing kept between steps, retrieval by its
 * definition. Of the options' reads only the seen-token head takes notice. */
void oracle_decoder(const struct checkpoint *checkpoint, const struct adapter *adapter,
		    const struct decoder_options *options, const uint32_t *tokens, size_t steps, double *logits);

/* Everything of a run, closed with the test's memory. Its files are gone. */
struct bench {
	struct checkpoint checkpoint;
	struct adapter adapter;
	bool adapted;
	struct decoder_options options; /* an adapter's at first */
	rosa_workers *workers;
	struct backend *backend;
	decoder *decoder;
};

/* A model, with an adapter or NULL. */
struct bench *bench_open(const struct tiny_model *model, const struct tiny_adapter *adapter);
/* A decoder by its options; another one each time. */
void bench_start(struct bench *b, size_t chunk, int threads);
/* TINY_MODEL, with a decoder. */
struct bench *bench_tiny(const struct tiny_adapter *adapter, size_t chunk, int threads);
sequence *bench_sequence(struct bench *b);
