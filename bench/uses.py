#!/usr/bin/env python3
"""Times retrieval as it is used: whole streams with and without tables, in pieces, and single decoding steps.

Streams with wide and narrow alphabets, easy and hard ones, at several lengths. Processor time is compared, the least of
several runs, so that other programs on the machine show as little as possible.
"""

import sys

import common

EASY = [("uniform", 0), ("sticky", 0), ("correlated", 0), ("text-like", 0), ("skewed", 0)]
NARROW = [("uniform", 4), ("uniform", 16), ("uniform", 64), ("uniform", 256), ("skewed", 16), ("text-like", 64)]
HARD = [("sorted", 0), ("sorted-deep", 0), ("de-bruijn", 0), ("fibonacci-alternating", 0), ("halves", 0), ("period-mix", 0)]


def label(stream, alphabet):
    return f"{stream}, {alphabet} of them" if alphabet else stream


def whole(args, report):
    report.table([("stream", "stream", ""), ("bits", "M", "d"), ("tokens", "tokens", "d"), ("tables", "tables", ".1f"),
                  ("plain", "no tables", ".1f"), ("pieces", "pieces", ".1f"), ("bytes", "bytes/run", ".1f"),
                  ("tables_ratio", "/uniform", ".2f"), ("plain_ratio", "/uniform", ".2f"),
                  ("pieces_ratio", "/batch", ".2f")])
    for bits in args.bits:
        for tokens in args.tokens:
            uniform = None
            for stream, alphabet in EASY + NARROW + HARD:
                if alphabet >= 1 << bits or (args.streams and stream not in args.streams):
                    continue
                words = ["--stream", stream, "--bits", bits, "--tokens", tokens, "--repeat", args.repeat]
                words += ["--routes", args.routes or max(1, min(8, (1 << 16) // tokens))]
                words += ["--alphabet", alphabet] if alphabet else []
                row = {"stream": label(stream, alphabet), "bits": bits, "tokens": tokens}
                measured = common.measure(args.program, *words)
                row["bytes"] = measured["bytes_per_run"]
                row["tables"] = measured["processor_ns_per_token_min"]
                row["plain"] = common.measure(args.program, *words, "--no-flips")["processor_ns_per_token_min"]
                row["pieces"] = common.measure(args.program, *words, "--chunk", args.chunk)["processor_ns_per_token_min"]
                uniform = uniform or row
                row["tables_ratio"] = row["tables"] / uniform["tables"]
                row["plain_ratio"] = row["plain"] / uniform["plain"]
                row["pieces_ratio"] = row["pieces"] / row["plain"]
                report.add(**row)


def steps(args, report):
    report.table([("stream", "stream", ""), ("bits", "M", "d"), ("routes", "routes", "d"), ("tokens", "tokens", "d"),
                  ("us", "us/step", ".1f"), ("per_route", "ns/route", ".1f"), ("bytes", "bytes/run", ".1f")])
    for bits in args.bits:
        for stream, alphabet in [("uniform", 0), ("uniform", 4), ("skewed", 0)]:
            for routes in args.step_routes:
                for tokens in args.histories:
                    if alphabet and tokens > 1 << 17 or alphabet >= 1 << bits:
                        continue
                    words = ["--decode", "--stream", stream, "--bits", bits, "--routes", routes, "--tokens", tokens]
                    words += ["--alphabet", alphabet] if alphabet else []
                    measured = common.measure(args.program, *words)
                    report.add(stream=label(stream, alphabet), bits=bits, routes=routes, tokens=tokens,
                               us=measured["step_us_median"], per_route=measured["step_us_median"] * 1e3 / routes,
                               bytes=measured["bytes_per_run"])


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--streams", nargs="+", metavar="KIND", help="instead of all there are")
    parser.add_argument("--routes", type=int, help="instead of one to eight, by length")
    parser.add_argument("--chunk", type=int, default=512, help="steps of a piece")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--histories", type=int, nargs="*", default=[1024, 65536, 1048576], help="before single steps")
    parser.add_argument("--step-routes", type=int, nargs="*", default=[1, 32, 512])
    args = parser.parse_args()
    report = common.Report("uses", args)
    if args.tokens:
        whole(args, report)
    if args.histories:
        steps(args, report)
    report.end()


if __name__ == "__main__":
    sys.exit(main())
