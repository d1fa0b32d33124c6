#!/usr/bin/env python3
"""Times one layer's operator, forward and backward, beside the one that the authors of ROSA-Tuning published.

From q, k and v to y, and from the gradient of y to those of q, k, v, e0 and e1, on the CPU, all processors on both
sides. Needs torch, numpy, numba, the rosatune package and a checkout of github.com/zyaaa-ux/ROSA-Tuning.

Of theirs, the compiled functions of the retrieval and the autograd function are taken from their file and run; their
training script is not. Their own forward pass refuses tensors that are not on a GPU, so the few steps around these
functions (symbols, the read-out) are done here in the cheapest way that keeps their results; what they spend on copies
to and from a GPU is left out. So the comparison errs in their favour.

Ours is measured twice: `flips` with M = 4 and the paper's settings, which is the same work, and the defaults, M = 16
and `linear`, which is what a user of ours runs in its place. All three are warm and take turns; medians count.
"""

import ast
import os
import pathlib
import statistics
import sys
import time

try:
    import numba  # before compare_authors, which holds it to one thread
    import numpy as np
    import torch
except ImportError as error:
    sys.exit(f"compare_operator.py: {error.name} is missing: pip install torch numpy numba")

import common
import compare_authors

os.environ.pop("NUMBA_NUM_THREADS", None)

try:
    import rosatune
    from rosatune.torch import rosa
except ImportError as error:
    common.die(f"{error}; install the package with `pip install .`")

FUNCTION = "MultiRouteBinaryROSAFunction"
BITS = 4  # the paper's
# What their file sets these to by default: plain sigmoids, and probabilities in place of bits.
CONSTANTS = {"BINARY_TEMP_Q": 1.0, "BINARY_TEMP_K": 1.0, "BINARY_TEMP_V": 1.0,
             "ROSA_Q_CONTRAST_USE_V_PROB": 1, "ROSA_K_CONTRAST_USE_V_PROB": 1}
PAPER = {"bits": BITS, "policy": "literal", "qk_grad": "flips", "key_credit": "destination"}
DEFAULTS = {"bits": 16}


def load_function(checkout):
    """Their autograd function; none of the file's other statements is run."""
    path = pathlib.Path(checkout) / compare_authors.FILE
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == FUNCTION:
            names = {"torch": torch, **CONSTANTS}
            exec(compile(ast.Module([node], []), str(path), "exec"), names)  # pylint: disable=exec-used
            return names[FUNCTION]
    common.die(f"{path} has no class {FUNCTION}: not the version that this script knows")


class Theirs:
    """Their operator on the CPU."""

    def __init__(self, checkout):
        self.kernel = compare_authors.load_kernel(checkout)
        self.function = load_function(checkout)

    def symbols(self, x):
        """int32 [B, T, R]"""
        packed = torch.from_numpy(rosatune.pack(x.detach().numpy(), BITS).astype(np.int32))
        return np.ascontiguousarray(packed.transpose(1, 2))

    def __call__(self, q, k, v, e0, e1):
        query, key, value = (self.symbols(x) for x in (q, k, v))
        starts, symbols, counts = self.kernel[compare_authors.RUNS](key)
        in_force = self.kernel[compare_authors.RUN_IN_FORCE](starts, counts, key.shape[1])
        found = self.kernel[compare_authors.SCAN](query, symbols, starts, counts, in_force, BITS, 1 << BITS)
        read, run, _, table = (torch.from_numpy(x) for x in found)
        at = read.clamp(min=0).long()
        symbol = torch.from_numpy(value).transpose(1, 2).gather(2, at).transpose(1, 2).unsqueeze(-1)
        bit = (symbol >> torch.arange(BITS, dtype=torch.int32) & 1).reshape(q.shape)
        hit = (read >= 0).transpose(1, 2).repeat_interleave(BITS, 2)
        y = torch.where(bit.bool(), e1, e0) * hit
        delta, starts = (e1 - e0).detach(), torch.from_numpy(starts)
        return self.function.apply(y, q, k, v, read, run, starts, table, delta, BITS, None)


def make_inputs(kind, tokens, channels, seed):
    """q, k, v, e0, e1 and the gradient of y."""
    torch.manual_seed(seed)
    q, k = common.queries_and_keys(kind, tokens, channels)
    v, gy = torch.randn(2, 1, tokens, channels)
    e0, e1 = 0.1 * torch.randn(2, channels)
    return [x.clone().requires_grad_() for x in (q, k, v, e0, e1)], gy


def timed(operator, inputs, gy):
    """Seconds of the forward and of the backward pass."""
    begin = time.perf_counter()
    y = operator(*inputs)
    middle = time.perf_counter()
    torch.autograd.grad(y, inputs, gy)
    return middle - begin, time.perf_counter() - middle


def agreement(theirs, inputs):
    """How much of y is equal where both find something. Less than all: their automaton follows no match length."""
    with torch.no_grad():
        y = [operator(*inputs) for operator in (theirs, lambda *x: rosa(*x, **PAPER))]
    both = (y[0] != 0) & (y[1] != 0)
    return float((y[0] == y[1])[both].float().mean()) if both.any() else None


def compare(args, theirs, kind, tokens, channels):
    inputs, gy = make_inputs(kind, tokens, channels, args.seed)
    sides = {"theirs": theirs, "same": lambda *x: rosa(*x, **PAPER), "ours": lambda *x: rosa(*x, **DEFAULTS)}
    samples = {name: [] for name in sides}
    for turn in range(args.repeat + 1):
        for name, operator in sides.items():
            seconds = timed(operator, inputs, gy)
            if turn:  # the first one warms up
                samples[name].append(seconds)
    row = {"kind": kind, "tokens": tokens, "channels": channels, "samples": samples,
           "agree": agreement(theirs, inputs)}
    for name, pairs in samples.items():
        forward, backward = (statistics.median(column) * 1e3 for column in zip(*pairs))
        row |= {f"{name}_forward": forward, f"{name}_backward": backward,
                f"{name}_ms": statistics.median(sum(pair) for pair in pairs) * 1e3}
    row |= {"ratio_same": row["theirs_ms"] / row["same_ms"], "ratio": row["theirs_ms"] / row["ours_ms"]}
    return row


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False)
    parser.add_argument("checkout", help="a checkout of the authors' repository")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--channels", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--inputs", nargs="+", choices=["uniform", "text"], default=["uniform", "text"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="on both sides; 0: what numba and torch choose")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
        numba.set_num_threads(args.threads)
    theirs = Theirs(args.checkout)
    report = common.Report("operator", args, f"rosatune {rosatune.__version__}, torch {torch.__version__}")
    report.note(f"milliseconds of forward + backward; {torch.get_num_threads()} threads of torch, "
                f"{numba.get_num_threads()} of numba")
    report.table([
        ("kind", "inputs", ""), ("channels", "C", "d"), ("tokens", "T", "d"), ("theirs_forward", "theirs: y", ".0f"),
        ("theirs_backward", "grads", ".0f"), ("same_forward", "flips M=4: y", ".0f"), ("same_backward", "grads", ".0f"),
        ("ratio_same", "ratio", ".2f"), ("ours_forward", "linear M=16: y", ".0f"), ("ours_backward", "grads", ".0f"),
        ("ratio", "ratio", ".2f"), ("agree", "equal y", ".1%")])
    for kind in args.inputs:
        for channels in args.channels:
            for tokens in args.tokens:
                report.add(**compare(args, theirs, kind, tokens, channels))
    report.end()


if __name__ == "__main__":
    sys.exit(main())
