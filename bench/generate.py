#!/usr/bin/env python3
"""What reading a long prompt and generating from it takes: global attention, a window, and a window with ROSA.

Needs a CUDA device, torch, transformers and the rosatune package. The model has the shape of Qwen3-1.7B and random
weights, so that nothing has to be downloaded: time and memory do not depend on the weights. Adapters start with levels
of their own (e_start), so that what is read really flows on. Prompts are read in chunks. Peak memory is what the GPU
held at most beyond the weights; `host` is the retrieval state's bytes.
"""

import gc
import sys
import time

import common

try:
    import torch
    from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM
except ImportError as error:
    sys.exit(f"generate.py: {error.name} is missing: pip install torch transformers")

try:
    import rosatune
    import rosatune.hf
except ImportError as error:
    common.die(f"{error}; install the package with `pip install .`")

SHAPE = dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
             num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True,
             max_position_embeddings=1 << 20)


def state_bytes(cache):
    """Of the retrieval states that a cache holds."""
    states = (getattr(layer, "state", None) for layer in cache.layers)
    return sum(state.bytes for state in states if state is not None)


@torch.no_grad()
def run(model, tokens, chunk, steps):
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    prompt = torch.randint(0, 2000, (1, tokens), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    cache = DynamicCache(config=model.config)
    begin = time.perf_counter()
    for first in range(0, tokens, chunk):
        logits = model(prompt[:, first:first + chunk], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    torch.cuda.synchronize()
    read = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(steps):
        logits = model(logits.argmax(-1), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    torch.cuda.synchronize()
    return {"prefill": tokens / read, "step": (time.perf_counter() - begin) / steps * 1e3,
            "peak": (torch.cuda.max_memory_allocated() - before) / 1e9,
            "kept": (torch.cuda.memory_allocated() - before) / 1e9, "host": state_bytes(cache) / 1e9}


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        common.die("no CUDA device")
    device = torch.cuda.get_device_name()
    report = common.Report("generate", args, f"rosatune {rosatune.__version__}, torch {torch.__version__}, {device}")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(Qwen3Config(**{**SHAPE, "num_hidden_layers": args.layers})).eval()
    report.table([("setting", "setting", ""), ("tokens", "prompt", "d"), ("prefill", "tokens/s", ".0f"),
                  ("step", "ms per step", ".1f"), ("peak", "GPU peak, GB", ".2f"), ("kept", "GPU kept, GB", ".2f"),
                  ("host", "host, GB", ".2f")])
    for setting in ("global", "window", "window + ROSA"):
        if setting != "global":
            rosatune.hf.attach(model, window=args.window, sinks=4, layers=[] if setting == "window" else "all",
                               e_start=0.02)
        run(model, 2 * args.chunk, args.chunk, 2)
        for tokens in args.tokens:
            report.add(setting=setting, tokens=tokens, **run(model, tokens, args.chunk, args.steps))
        if setting != "global":
            rosatune.hf.detach(model)
    report.end()


if __name__ == "__main__":
    sys.exit(main())
