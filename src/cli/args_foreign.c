/*
 * Options of other programs.
 *
 * People come from llama.cpp, ollama, vLLM and transformers, and type what they know. Such a name is not an alias: one
 * option should have one name, or scripts become hard to read. But the error message can say which option does the same
 * here. The first row whose option the command has counts.
 */
#include "cli/args.h"

#include <string.h>

#define ON_CPU "models are computed on the CPU; leave it out"

static const struct args_foreign table[] = {
    /* how much to generate */
    {"max-tokens", "tokens", NULL},
    {"max-new-tokens", "tokens", NULL},
    {"max-length", "tokens", NULL},
    {"n-predict", "tokens", NULL},
    {"num-predict", "tokens", NULL},
    {"predict", "tokens", NULL},
    /* sampling */
    {"temp", "temperature", NULL},
    {"repeat-penalty", "repetition-penalty", NULL},
    {"penalty", "repetition-penalty", NULL},
    {"repeat-last-n", "repeat-last", NULL},
    {"rng-seed", "seed", NULL},
    {"s", "seed", NULL},
    {"reverse-prompt", "stop", NULL},
    {"r", "stop", NULL},
    {"stop-sequence", "stop", NULL},
    /* how much of the text attention sees: context is not limited here, so the window is the nearest thing */
    {"ctx-size", "window", NULL},
    {"n-ctx", "window", NULL},
    {"num-ctx", "window", NULL},
    {"context-length", "window", NULL},
    {"max-model-len", "window", NULL},
    {"sliding-window", "window", NULL},
    {"c", "context", NULL},
    {"c", "window", NULL},
    {"ctx-size", "context", NULL},
    {"n-ctx", "context", NULL},
    {"keep", "sinks", NULL},
    /* files */
    {"lora", "adapter", NULL},
    {"adapter-path", "adapter", NULL},
    {"hf-repo", "model", NULL},
    {"model-path", "model", NULL},
    {"model-name", "model", NULL},
    {"tokenizer", "model", NULL},
    {"input", "file", NULL},
    {"i", "file", NULL},
    {"text", "prompt", NULL},
    {"prompt", "text", NULL},
    {"output", "out", NULL},
    {"o", "out", NULL},
    {"output-dir", "out", NULL},
    {"overwrite", "replace", NULL},
    {"force", "replace", NULL},
    {"session", "load-session", NULL},
    {"prompt-cache", "save-session", NULL},
    /* conversations */
    {"conversation", "chat", NULL},
    {"cnv", "chat", NULL},
    {"interactive", "chat", NULL},
    {"chat-template", "chat", NULL},
    {"system-prompt", "system", NULL},
    {"sys", "system", NULL},
    {"sp", "system", NULL},
    /* machine */
    {"t", "threads", NULL},
    {"num-threads", "threads", NULL},
    {"n-threads", "threads", NULL},
    {"jobs", "threads", NULL},
    {"j", "threads", NULL},
    {"batch-size", "batch", NULL},
    {"b", "batch", NULL},
    {"batch-size", "chunk", NULL},
    {"b", "chunk", NULL},
    {"ubatch-size", "chunk", NULL},
    {"ub", "chunk", NULL},
    {"ngl", "device", NULL},
    {"n-gpu-layers", "device", NULL},
    {"gpu-layers", "device", NULL},
    {"gpu", "device", NULL},
    {"cuda", "device", NULL},
    {"ngl", NULL, ON_CPU},
    {"n-gpu-layers", NULL, ON_CPU},
    {"gpu-layers", NULL, ON_CPU},
    {"gpu", NULL, ON_CPU},
    {"cuda", NULL, ON_CPU},
    /* training */
    {"learning-rate", "rate", NULL},
    {"lr", "rate", NULL},
    {"num-epochs", "epochs", NULL},
    {"config", "set", NULL},
    {"resume-from-checkpoint", "resume", NULL},
};

static bool has(const struct args *args, const char *name)
{
	for (size_t i = 0; i < args->count; i++) {
		if (strcmp(args->options[i].name, name) == 0)
			return true;
	}
	return false;
}

const struct args_foreign *args_foreign(const struct args *args, const char *name)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (strcmp(table[i].theirs, name) == 0 && (!table[i].ours || has(args, table[i].ours)))
			return &table[i];
	}
	return NULL;
}
