#!/usr/bin/env python3
"""Training on a CPU: the C trainer beside PyTorch, on the same model, batch and threads, in turns.

A step is forward, backward, clipping and AdamW, in float32. The model is a Llama with random weights, trained whole:
with global attention, with a window, and with a window and adapters in all layers. PyTorch runs transformers' own
class, the window and the adapters through rosatune.hf, so in the last case both sides are this project's.

    python bench/compare_training.py --width 256 --layers 4 --threads 2
"""

import json
import statistics
import tempfile
import time

import common
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rosatune
import rosatune.hf


def model_of(arguments):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=max(1, arguments.width // 64),
        num_key_value_heads=max(1, arguments.width // 64),
        max_position_embeddings=arguments.length,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def theirs(model, arguments, repeat):
    """Tokens per second of PyTorch."""
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6)
    shape = (arguments.batch, arguments.length)
    tokens, targets = torch.randint(arguments.vocabulary, (2, *shape))
    seconds = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        optimiser.zero_grad()
        logits = model(tokens, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        seconds.append(time.perf_counter() - begin)
    return tokens.numel() / statistics.median(seconds[1:])


def ours(folder, arguments, threads, window, rosa, repeat):
    words = ["bench", "train", "--model", folder, "--threads", threads, "--window", window, "--keep", "--json"]
    words += ["--batch", arguments.batch, "--length", arguments.length, "--repeat", repeat]
    words += ["--rosa", "--bits", arguments.bits] if rosa else []
    return json.loads(common.call(arguments.program, *words))["tokens_per_second"]


def main():
    parser = common.parser(__doc__.partition("\n\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--bits", type=int, default=16)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=5, help="steps of a round")
    arguments = parser.parse_args()
    report = common.Report(
        "training", arguments, f"rosatune {rosatune.__version__}, torch {torch.__version__}"
    )
    report.table(
        [
            ("kind", "tokens/s", ""),
            ("threads", "threads", "d"),
            ("torch", "PyTorch", ".0f"),
            ("ours", "rosatune", ".0f"),
            ("ratio", "ratio", ".2f"),
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        model_of(arguments).save_pretrained(folder)
        for kind, window, rosa in (("global", 0, False), ("window", arguments.window, False), ("rosa", arguments.window, True)):
            model = model_of(arguments).train()
            if window:
                layers = "all" if rosa else []
                rosatune.hf.attach(model, window=window, bits=arguments.bits, layers=layers, stage="all", e_start=0.1)
            for threads in arguments.threads:
                torch.set_num_threads(threads)
                pairs = [
                    (
                        theirs(model, arguments, arguments.repeat),
                        ours(folder, arguments, threads, window, rosa, arguments.repeat),
                    )
                    for _ in range(arguments.rounds)
                ]
                torch_side, our_side = (statistics.median(side) for side in zip(*pairs))
                ratio = statistics.median(b / a for a, b in pairs)
                report.add(kind=kind, threads=threads, torch=torch_side, ours=our_side, ratio=ratio)
    report.end()


if __name__ == "__main__":
    main()
