/*
 * Options of other programs.
 *
 * People come from llama.cpp, ollama, vLLM and transformers, and type what they know. Such a name is not an alias: one
 * option should have one name, or scripts become hard to read. But the error message can say which option does the same
 * here. A row fits if the command has our option, and the operand if the row names one; the first that fits counts.
 */
#include "cli/args.h"

#include <string.h>

#define ON_CPU "models are computed on the CPU; leave it out"

/* An option that is a key of the configuration in a command with --set. */
#define KEY(name, setting)                                                                                             \
	{                                                                                                              \
		name, "set", "it is a key of CONFIG; give --set " setting, NULL                                        \
	}

static const struct args_foreign table[] = {
    /* how much to generate */
    {"max-tokens", "tokens", NULL, NULL},
    {"max-new-tokens", "tokens", NULL, NULL},
    {"max-length", "tokens", NULL, NULL},
    {"n-predict", "tokens", NULL, NULL},
    {"num-predict", "tokens", NULL, NULL},
    {"predict", "tokens", NULL, NULL},
    /* sampling */
    {"temp", "temperature", NULL, NULL},
    {"repeat-penalty", "repetition-penalty", NULL, NULL},
    {"penalty", "repetition-penalty", NULL, NULL},
    {"repeat-last-n", "repeat-last", NULL, NULL},
    {"rng-seed", "seed", NULL, NULL},
    {"s", "seed", NULL, NULL},
    {"reverse-prompt", "stop", NULL, NULL},
    {"r", "stop", NULL, NULL},
    {"stop-sequence", "stop", NULL, NULL},
    /* how much of the text attention sees: context is not limited here, so the window is the nearest thing */
    {"ctx-size", "window", NULL, NULL},
    {"n-ctx", "window", NULL, NULL},
    {"num-ctx", "window", NULL, NULL},
    {"context-length", "window", NULL, NULL},
    {"context", "window", NULL, NULL},
    {"ctx", "window", NULL, NULL},
    {"max-model-len", "window", NULL, NULL},
    {"sliding-window", "window", NULL, NULL},
    {"c", "context", NULL, NULL},
    {"c", "window", NULL, NULL},
    {"ctx-size", "context", NULL, NULL},
    {"n-ctx", "context", NULL, NULL},
    {"keep", "sinks", NULL, NULL},
    /* files */
    {"lora", "adapter", NULL, NULL},
    {"adapter-path", "adapter", NULL, NULL},
    {"hf-repo", "model", NULL, NULL},
    {"model-path", "model", NULL, NULL},
    {"model-name", "model", NULL, NULL},
    {"tokenizer", "model", NULL, NULL},
    {"input", "file", NULL, NULL},
    {"i", "file", NULL, NULL},
    {"text", "prompt", NULL, NULL},
    {"prompt", "text", NULL, NULL},
    {"output", "out", NULL, NULL},
    {"output-dir", "out", NULL, NULL},
    {"overwrite", "force", NULL, NULL},
    {"replace", "force", NULL, NULL},
    {"session", "load-session", NULL, NULL},
    {"prompt-cache", "save-session", NULL, NULL},
    /* conversations */
    {"conversation", "chat", NULL, NULL},
    {"cnv", "chat", NULL, NULL},
    {"interactive", "chat", NULL, NULL},
    {"chat-template", "chat", NULL, NULL},
    {"system-prompt", "system", NULL, NULL},
    {"sys", "system", NULL, NULL},
    {"sp", "system", NULL, NULL},
    /* machine */
    {"t", "threads", NULL, NULL},
    {"num-threads", "threads", NULL, NULL},
    {"n-threads", "threads", NULL, NULL},
    {"jobs", "threads", NULL, NULL},
    {"j", "threads", NULL, NULL},
    {"batch-size", "batch", NULL, NULL},
    {"b", "batch", NULL, NULL},
    {"batch-size", "chunk", NULL, NULL},
    {"b", "chunk", NULL, NULL},
    {"ubatch-size", "chunk", NULL, NULL},
    {"ub", "chunk", NULL, NULL},
    {"ngl", "device", NULL, NULL},
    {"n-gpu-layers", "device", NULL, NULL},
    {"gpu-layers", "device", NULL, NULL},
    {"gpu", "device", NULL, NULL},
    {"cuda", "device", NULL, NULL},
    {"ngl", NULL, ON_CPU, NULL},
    {"n-gpu-layers", NULL, ON_CPU, NULL},
    {"gpu-layers", NULL, ON_CPU, NULL},
    {"gpu", NULL, ON_CPU, NULL},
    {"cuda", NULL, ON_CPU, NULL},
    /* training */
    {"learning-rate", "rate", NULL, NULL},
    {"lr", "rate", NULL, NULL},
    {"num-epochs", "epochs", NULL, NULL},
    {"resume-from-checkpoint", "resume", NULL, NULL},
    KEY("model", "model=PATH"),
    KEY("m", "model=PATH"),
    KEY("seed", "seed=N"),
    KEY("adapter", "adapter.path=DIR"),
    KEY("window", "adapter.window=W"),
    KEY("sinks", "adapter.sinks=S"),
    KEY("data", "stage.1.data=PATH"),
    KEY("valid", "stage.1.valid=PATH"),
    KEY("steps", "stage.1.steps=N"),
    KEY("max-steps", "stage.1.steps=N"),
    KEY("tokens", "stage.1.tokens=N"),
    KEY("max-tokens", "stage.1.tokens=N, or stage.1.steps=N"),
    KEY("batch", "stage.1.batch=N"),
    KEY("batch-size", "stage.1.batch=N"),
    KEY("length", "stage.1.length=N"),
    KEY("lr", "stage.1.adapter_rate.max=R"),
    KEY("learning-rate", "stage.1.adapter_rate.max=R"),
    /* options of our other commands that are plain words here */
    {"model", NULL, NULL, "PATH"},
    {"m", NULL, NULL, "PATH"},
    {"adapter", NULL, NULL, "DIR"},
    {"file", NULL, NULL, "FILE"},
    {"f", NULL, NULL, "FILE"},
    {"file", NULL, NULL, "TEXT"},
    {"f", NULL, NULL, "TEXT"},
    {"file", NULL, NULL, "INPUT"},
    {"f", NULL, NULL, "INPUT"},
    {"file", NULL, NULL, "LOG"},
    {"f", NULL, NULL, "LOG"},
    {"config", NULL, NULL, "CONFIG"},
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
		const struct args_foreign *row = &table[i];

		if (strcmp(row->theirs, name) == 0 && (!row->ours || has(args, row->ours)) &&
		    (!row->operand || (args->operand_name && strcmp(row->operand, args->operand_name) == 0)))
			return row;
	}
	return NULL;
}
