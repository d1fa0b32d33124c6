#!/usr/bin/env python3
"""Retrieval beside attention as texts grow: one route on one core, the retrieval of a layer, one attention kernel.

    bench/efficiency.py --program build-cuda/rosatune --json > efficiency.json
    bench/plot.py efficiency.json --out pictures

attention   causal scaled_dot_product_attention on a GPU, 1,024 channels in 16 heads, bfloat16, forward
route       one route on one core, M = 4 with counterfactual tables and M = 16 without
layer       all routes of 2,048 channels: 512 of M = 4 with tables, 128 of M = 16 without, on all processors and on the
            GPU (its search alone, on symbols that are there)

Milliseconds of a whole text, the median of --repeat; the longest texts are timed once. Without a GPU its columns stay
empty. All of it takes about a minute on a machine with 16 cores and an H200.
"""

import sys

import common

CHANNELS, HEADS = 1024, 16
LAYER = 2048
SETTINGS = [(4, []), (16, ["--no-flips"])]
LONG = 1 << 18  # tokens from which on once is enough


def gpu():
    """torch, if it sees a GPU."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def attention(torch, tokens, repeat):
    """Milliseconds; None if the device has not enough memory."""
    from clock import Clock

    try:
        q, k, v = torch.randn(3, 1, HEADS, tokens, CHANNELS // HEADS, device="cuda", dtype=torch.bfloat16)
        attend = torch.nn.functional.scaled_dot_product_attention
        return 1e3 * Clock("cuda").seconds(lambda: attend(q, k, v, is_causal=True), repeat, 1)
    except torch.cuda.OutOfMemoryError:
        return None


def retrieval(args, tokens, repeat, with_device):
    """Milliseconds of all settings, by name."""
    row = {}
    for bits, more in SETTINGS:
        words = ["--stream", args.stream, "--tokens", tokens, "--bits", bits, "--repeat", repeat, *more]
        found = common.measure(args.program, *words, "--routes", 1, "--threads", 1)
        row[f"route_{bits}"] = found["ns_per_token"] * tokens / 1e6
        if tokens > args.most_layer:
            continue
        words += ["--routes", LAYER // bits, "--threads", 0]
        if with_device:
            found = common.measure(args.program, *words, "--device", "cuda")
            if not found["equal"]:
                common.die(f"the device found other destinations than the CPU: {found}")
            row[f"layer_{bits}"], row[f"device_{bits}"] = found["cpu_ms"], found["device_ms"]
        else:
            row[f"layer_{bits}"] = common.measure(args.program, *words)["ns_per_token"] * tokens * LAYER / bits / 1e6
    return row


def main(words=None):
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1 << i for i in range(10, 21, 2)])
    parser.add_argument("--most-layer", type=int, default=1 << 16, help="the longest text of a whole layer")
    parser.add_argument("--stream", default="uniform", help="a kind of stream that the program makes")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--require-gpu", action="store_true", help="end at once where there is none")
    args = parser.parse_args(words)
    torch = gpu()
    if torch is None and args.require_gpu:
        common.die("no CUDA device, or no torch")
    report = common.Report("efficiency", args)
    report.result["gpu"] = torch.cuda.get_device_name() if torch else None
    report.note(f"GPU: {report.result['gpu'] or 'none'}; milliseconds")
    report.table([
        ("tokens", "T", "d"), ("attention", "attention, GPU", ".3f"), ("route_4", "route, M = 4", ".3f"),
        ("route_16", "route, M = 16", ".3f"), ("layer_4", "512 routes, M = 4", ".2f"), ("device_4", "GPU", ".3f"),
        ("layer_16", "128 routes, M = 16", ".2f"), ("device_16", "GPU", ".3f")])
    for tokens in args.tokens:
        repeat = 1 if tokens >= LONG else args.repeat
        row = {"tokens": tokens, **retrieval(args, tokens, repeat, torch is not None)}
        if torch:
            row["attention"] = attention(torch, tokens, repeat)
        report.add(**row)
    report.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
