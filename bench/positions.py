#!/usr/bin/env python3
"""Perplexity by position, under each condition: what a window forgets as a text grows, and what an adapter gives back.

    bench/positions.py --model MODEL.gguf --adapter adapters/smollm2-135m-memory --context 8192 --tokens 16384 BOOK...

Texts are cut into pieces of --context tokens, each read from an empty state by `rosatune ppl`; window and sinks are the
adapter's. Means are over the tokens of all texts at these positions.
"""

import json
import math
import pathlib
import sys

import common


def conditions(program, adapter):
    """The options of `rosatune ppl` for each condition."""
    config = json.loads(common.call(program, "adapter", "info", adapter, "--json"))["options"]
    window, sinks = (str(config[name]) for name in ("window", "sinks"))
    near = ["--window", window, "--sinks", sinks]
    made = {"global": ["--window", "0"], "bare window": ["--window", window, "--sinks", "0"], "window": near}
    if (adapter / "pointer.json").exists():
        made["pointer"] = [*near, "--pointer", str(adapter)]
    made["adapter"] = ["--adapter", str(adapter), "--pointer", "none"]
    if "pointer" in made:
        made["adapter+pointer"] = ["--adapter", str(adapter)]
    return made


def main(words=None):
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("texts", nargs="+", help="files as `rosatune ppl` takes them")
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter", type=pathlib.Path, required=True, help="a folder with an adapter")
    parser.add_argument("--context", type=int, default=8192, help="tokens of a piece")
    parser.add_argument("--tokens", type=int, default=0, help="of each text; 0: all")
    parser.add_argument("--positions", type=int, default=8, help="stretches of a piece")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args(words)
    if not 0 < args.positions <= args.context:
        common.die(f"--positions {args.positions}, --context {args.context}: give at least one token for each stretch")
    made = conditions(args.program, args.adapter)
    report = common.Report("positions", args)
    begins = [-(-i * args.context // args.positions) for i in range(args.positions)]
    report.table([("condition", "condition", ""), ("all", "all", ".2f"), *((str(b), f"from {b:,}", ".2f") for b in begins)])
    for name, options in made.items():
        sums = {}
        for text in args.texts:
            found = json.loads(common.call(
                args.program, "ppl", "--model", args.model, "--file", text, "--context", args.context, "--tokens",
                args.tokens, "--positions", args.positions, "--threads", args.threads, "--json", *options))
            for part in [dict(found, **{"from": "all"}), *found["positions"]]:
                total, count = sums.get(part["from"], (0.0, 0))
                sums[part["from"]] = total + part["nll"] * part["tokens"], count + part["tokens"]
        report.add(condition=name, tokens={str(at): count for at, (_, count) in sums.items()},
                   **{str(at): math.exp(total / count) for at, (total, count) in sums.items()})
    report.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
