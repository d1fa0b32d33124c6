#!/usr/bin/env python3
"""Times every kind of stream the program can make against independent uniform symbols.

The claim under test: no stream, however made, costs more than three times uniform symbols. Uniform is measured again
beside every stream, and the least processor time of each counts: other programs on the machine only ever add to it.
"""

import sys

import common


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--routes", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--streams", nargs="+", metavar="KIND", help="instead of all there are")
    parser.add_argument("--no-flips", action="store_true", help="without counterfactual tables")
    args = parser.parse_args()
    streams = args.streams or common.call(args.program, "bench", "retrieve", "--list-streams").split()
    report = common.Report("hostile", args)
    report.table([
        ("stream", "stream", ""), ("bits", "M", "d"), ("ns", "ns/token", ".1f"), ("uniform", "uniform", ".1f"),
        ("ratio", "ratio", ".2f"), ("runs_per_token", "runs/token", ".3f"), ("bytes_per_run", "bytes/run", ".1f"),
        ("hit_rate", "hits", ".1%"), ("mean_match", "match", ".1f")])
    for bits in args.bits:
        rows = []
        for stream in streams:
            common_words = ["--tokens", args.tokens, "--bits", bits, "--routes", args.routes, "--repeat", 3]
            common_words += ["--no-flips"] if args.no_flips else []
            mine, uniform, last = [], [], {}
            for _ in range(args.repeat):
                for kind, times in ("uniform", uniform), (stream, mine):
                    last = common.measure(args.program, "--stream", kind, *common_words)
                    times.append(last["processor_ns_per_token_min"])
            row = {key: last.get(key) for key in ("runs_per_token", "bytes_per_run", "hit_rate", "mean_match")}
            row.update(stream=stream, bits=bits, tokens=args.tokens, ns=min(mine),
                       uniform=min(uniform), samples={"ns": mine, "uniform": uniform})
            row["ratio"] = row["ns"] / row["uniform"]
            report.add(**row)
            rows.append(row)
        worst = max(rows, key=lambda row: row["ratio"])
        report.note(f"M = {bits}: the worst of {len(rows)} is {worst['stream']}, {worst['ratio']:.2f} times uniform")
    report.end()


if __name__ == "__main__":
    sys.exit(main())
