/* A model on disk: its shape, its weights by their part in the decoder, and the files they are in. */
#pragma once

#include "backend/backend.h"
#include "model/gguf.h"
#include "base/mapping.h"
#include "base/paths.h"
#include "model/safetensors.h"

enum architecture { LLAMA, QWEN3, QWEN2 };
#define ARCHITECTURES 3

/* What tells them apart. */
struct architecture_info {
	const char *name;             /* of a config.json's model_type and a GGUF file's general.architecture */
	const char *class_name;       /* of transformers */
	bool head_norms;              /* the heads of q and k are normed */
	bool qkv_biases;              /* the projections to q, k and v have biases */
	size_t head_size;             /* where the configuration has none; 0: width / heads */
	enum rotary_pairs gguf_pairs; /* how GGUF files order the rows of q and k */
};

extern const struct architecture_info architectures[ARCHITECTURES];

/* Llama 3's change of the rotary frequencies; factor 1: none. Linear scaling divides all of them by the factor. */
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };
extern const char *const rope_scaling_names[]; /* in config.json */

struct model_config {
	enum architecture architecture;
	size_t layers, width, heads, kv_heads, head_size, mlp_width, vocabulary;
	size_t context; /* positions it was trained for; 0: not said */
	float norm_eps;
	double rope_base;
	enum rope_scaling rope_scaling;
	double rope_factor, rope_low, rope_high, rope_context; /* of ROPE_LLAMA3; the factor of ROPE_LINEAR too */
	enum rotary_pairs rotary_pairs;
	bool tied;      /* the embedding serves as the head */
	int64_t bos;    /* -1: none */
	int64_t eos[8]; /* tokens that end a text */
	size_t eos_count;
};

struct layer_weights {
	const struct tensor *attention_norm, *q, *k, *v, *o;
	const struct tensor *q_norm, *k_norm;          /* NULL: none */
	const struct tensor *q_bias, *k_bias, *v_bias; /* NULL: none */
	const struct tensor *mlp_norm, *gate, *up, *down;
};

struct checkpoint {
	struct path path;
	struct model_config config;
	const struct tensor *embedding, *norm, *head; /* head == embedding where tied */
	const struct tensor *rope_factors;            /* how GGUF stores ROPE_LLAMA3: [head_size / 2]; else NULL */
	struct layer_weights *layers;
	struct tensors tensors; /* of all files */
	uint64_t fingerprint;   /* of the config and the names, shapes, formats and first bytes of all tensors: quick */

	/* Behind it: */
	bool is_gguf;
	struct gguf gguf;
	struct safetensors *shards;
	struct mapping *mappings;
	struct path *files; /* names of the mapped files */
	size_t files_count;
};

/* PATH is a .gguf file, a folder with config.json and model.safetensors (or model.safetensors.index.json and its
 * shards), or a .safetensors file beside its config.json. Nothing is read but the headers. What is not supported is
 * refused by name: another architecture, other biases, a rope scaling or activation unknown here, tensors missing or of
 * another shape. */
rosa_status checkpoint_open(const char *path, struct checkpoint *checkpoint, rosa_error *err);
void checkpoint_close(struct checkpoint *checkpoint); /* safe on a zeroed one */

/* Radians per position, for each pair of a head: [head_size / 2]. */
void checkpoint_frequencies(const struct checkpoint *checkpoint, float *frequencies);

/* As the fingerprint, of every byte of the tensors: any change shows, and all of the model is read. */
uint64_t checkpoint_checksum(const struct checkpoint *checkpoint);

/* Parameters of the model: the numbers in all of its tensors. */
uint64_t checkpoint_parameters(const struct checkpoint *checkpoint);
