#!/usr/bin/env python3
"""The paper's two theorems as small experiments.

Theorem 1: of all ways to cut C numbers into a symbol of K values, one bit per channel is least likely to give the same
content different symbols under noise, at the least chance of collisions, 1/K. A channel that is normally distributed is
cut into L equally likely levels, log2(K) / log2(L) channels make a symbol; a second draw of each has noise added.

Theorem 2: attention whose score is whether symbols match becomes, as its scale beta grows, the plain mean of the values
at all matching places. With the length of the match as the score only the longest remain; retrieval reads the newest of
them. `rosatune retrieve` gives its places. Needs numpy.
"""

import pathlib
import tempfile

import common

try:
    import numpy as np
except ImportError:
    common.die("numpy is missing: pip install numpy")


def levels_of(values, edges):
    return np.searchsorted(edges, values)


def stability(report, args, random):
    """How often a symbol changes under noise, and how often two independent ones are equal."""
    report.note("\nTheorem 1: symbols of K values from channels of L levels")
    report.table([("alphabet", "K", "d"), ("levels", "L", "d"), ("channels", "channels", "d"), ("noise", "noise", ".2f"),
                  ("changed", "changed", ".4f"), ("collisions", "equal by chance", ".4f"), ("least", "1 / K", ".4f")])
    for bits in args.bits:
        for level_bits in (b for b in range(1, bits + 1) if bits % b == 0):
            channels = bits // level_bits
            sample = random.standard_normal(200000)
            edges = np.quantile(sample, np.arange(1, 2**level_bits) / 2**level_bits)
            weights = 2 ** (level_bits * np.arange(channels))
            content = random.standard_normal((args.draws, channels))
            symbols = levels_of(content, edges) @ weights
            shares = np.bincount(symbols, minlength=2**bits) / args.draws
            for noise in args.noise:
                again = levels_of(content + noise * random.standard_normal(content.shape), edges) @ weights
                report.add(theorem=1, alphabet=2**bits, levels=2**level_bits, channels=channels, noise=noise,
                           changed=float((again != symbols).mean()), collisions=float((shares**2).sum()),
                           least=1 / 2**bits)


def match_lengths(symbols):
    """lengths[t][e]: how many symbols before and at t, and before and at e, are equal in a row, for e < t."""
    steps = len(symbols)
    lengths = np.zeros((steps, steps), int)
    for t in range(steps):
        for e in range(t):
            if symbols[t] == symbols[e]:
                lengths[t, e] = 1 + (lengths[t - 1, e - 1] if e > 0 else 0)
    return lengths


def places(program, symbols, bits):
    """What retrieval reads at every step, or -1."""
    with tempfile.TemporaryDirectory() as folder:
        stream, out = (pathlib.Path(folder) / name for name in ("symbols.npy", "places.npy"))
        np.save(stream, symbols.astype(np.uint16))
        common.call(program, "retrieve", "--query", stream, "--key", stream, "--bits", bits, "--no-fold", "--out", out)
        return np.load(out)


def attention(report, args, random):
    """Attention over what followed earlier places, against the mean it tends to."""
    symbols = random.integers(0, 2**args.symbol_bits, args.steps)
    values = random.standard_normal((args.steps, 16))
    lengths = match_lengths(symbols)
    found = places(args.program, symbols, args.symbol_bits)
    report.note(f"\nTheorem 2: {args.steps} symbols of {args.symbol_bits} bits; distance of attention's output to its limit")
    report.table([("score", "score", ""), ("beta", "beta", "d"), ("furthest", "furthest", ".1e"), ("mean", "mean", ".1e"),
                  ("same", "limit = retrieval", ".3f")])
    for score, scores in ("match", np.minimum(lengths, 1)), ("length", lengths):
        for beta in args.beta:
            away, same = [], []
            for t in range(2, args.steps):
                here = scores[t, :t - 1]  # the place after each was read before t
                if not here.any():
                    assert found[t] < 0
                    continue
                weights = np.exp(beta * (here - here.max()).astype(float))
                output = weights @ values[1:t] / weights.sum()
                best = np.flatnonzero(here == here.max())
                away.append(np.abs(output - values[best + 1].mean(0)).max())
                # retrieval: the newest place among the longest matches
                longest = np.flatnonzero(lengths[t, :t - 1] == lengths[t, :t - 1].max())
                assert found[t] == longest[-1] + 1
                same.append(len(best) == 1)
            report.add(theorem=2, score=score, beta=beta, furthest=float(max(away)), mean=float(np.mean(away)),
                       same=float(np.mean(same)))


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--draws", type=int, default=200000, help="symbols drawn for theorem 1")
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8], help="bits of a symbol, log2 of K")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.3], help="its deviation")
    parser.add_argument("--steps", type=int, default=512, help="of the stream for theorem 2")
    parser.add_argument("--symbol-bits", type=int, default=4, help="of its symbols")
    parser.add_argument("--beta", type=int, nargs="+", default=[0, 2, 4, 8, 16, 32], help="scales of attention")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    report = common.Report("theorems", args)
    stability(report, args, random)
    attention(report, args, random)
    report.end()


if __name__ == "__main__":
    main()
