#!/usr/bin/env python3
"""The paper's ablations on associative recall: the width of a symbol, and pre against post fusion.

Each row is an epoch of `rosatune mqar --mode rosa`: accuracy where a value is asked for, and the share of routes of the
first adapter that find the right place.
"""

import json

import common

TASK = ["--pairs", 16, "--length", 128, "--vocabulary", 1024, "--window", 16, "--dim", 64, "--examples", 1024,
        "--held-out", 256]


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[2, 4, 8, 16], help="of a symbol, with post fusion")
    parser.add_argument("--fusion-bits", type=int, default=16, help="of a symbol, with pre fusion")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    report = common.Report("mqar", args)
    report.table([("fusion", "fusion", ""), ("bits", "M", "d"), ("steps", "steps", "d"),
                  ("accuracy", "accuracy", ".4f"), ("right", "right", ".4f")])
    for fusion, bits in [("post", bits) for bits in args.bits] + [("pre", args.fusion_bits)]:
        words = [*TASK, "--mode", "rosa", "--fusion", fusion, "--bits", bits, "--epochs", args.epochs]
        words += ["--seed", args.seed]
        (run,) = json.loads(common.call(args.program, "mqar", *words, "--json"))["runs"]
        for epoch in run["epochs"]:
            report.add(fusion=fusion, bits=bits, steps=epoch["steps"], accuracy=epoch["accuracy"],
                       right=epoch["layers"][0]["right"])
    report.end()


if __name__ == "__main__":
    main()
