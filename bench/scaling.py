#!/usr/bin/env python3
"""How the cost grows: with the length of the streams, with the history behind one decoding step, with threads.

Three measurements, each also alone by --only:
  tokens   nanoseconds per token and route for T = 4k to 4M in powers of four; the column "growth" is the time beside that
           of the shortest, "log" what a cost proportional to log T would give
  decode   microseconds of one step of 512 routes, median and 99th percentile, at several histories and thread counts
  threads  the same work with one thread and with more, taking turns
"""

import math
import statistics
import sys

import common

WHERE = [("stream", "stream", ""), ("bits", "M", "d"), ("tokens", "T", "d"), ("routes", "routes", "d")]
COLUMNS = {
    "tokens": [*WHERE, ("ns", "ns/token", ".1f"), ("bytes_per_run", "bytes/run", ".1f"), ("growth", "growth", ".2f"),
               ("log", "log", ".2f")],
    "decode": [*WHERE, ("threads", "threads", "d"), ("step_us_median", "step us", ".1f"),
               ("step_us_p99", "p99 us", ".1f"), ("bytes_per_run", "bytes/run", ".1f"), ("growth", "growth", ".2f")],
    "threads": [*WHERE, ("threads", "threads", "d"), ("ns", "ns/token", ".1f"), ("speedup", "speed-up", ".2f")],
}
BUDGET = 1 << 22  # tokens over all routes: the longest streams are measured with one route


def flips(args):
    return ["--no-flips"] if args.no_flips else []


def measure_tokens(args, report):
    for bits in args.bits:
        for stream in args.streams:
            first = None
            for tokens in args.tokens:
                routes = max(1, min(args.routes, BUDGET // tokens))
                result = common.measure(args.program, "--stream", stream, "--tokens", tokens, "--routes", routes,
                                        "--bits", bits, "--repeat", args.repeat, *flips(args))
                first = first or (result["ns_per_token"], tokens)
                report.add(part="tokens", stream=stream, bits=bits, tokens=tokens, routes=routes, threads=1,
                           ns=result["ns_per_token"], bytes_per_run=result["bytes_per_run"],
                           growth=result["ns_per_token"] / first[0], log=math.log(tokens) / math.log(first[1]))


def measure_decode(args, report):
    for bits in args.bits:
        for threads in args.threads:
            first = None
            for history in args.histories:
                result = common.measure(args.program, "--decode", "--stream", args.decode_stream, "--tokens", history,
                                        "--routes", args.decode_routes, "--bits", bits, "--threads", threads)
                first = first or result["step_us_median"]
                report.add(part="decode", stream=args.decode_stream, bits=bits, tokens=history,
                           routes=args.decode_routes, threads=threads, growth=result["step_us_median"] / first,
                           **{key: result[key] for key in ("step_us_median", "step_us_p99", "bytes_per_run")})


def measure_threads(args, report):
    tokens, routes = 16384, 64
    for bits in args.bits:
        for stream in args.streams:
            samples = {threads: [] for threads in args.threads}
            for _ in range(args.repeat):
                for threads, times in samples.items():
                    times.append(common.measure(args.program, "--stream", stream, "--tokens", tokens, "--routes",
                                                routes, "--bits", bits, "--threads", threads, "--repeat", 1,
                                                *flips(args))["ns_per_token"])
            medians = {threads: statistics.median(times) for threads, times in samples.items()}
            for threads, median in medians.items():
                report.add(part="threads", stream=stream, bits=bits, tokens=tokens, routes=routes, threads=threads,
                           ns=median, speedup=medians[args.threads[0]] / median, samples=samples[threads])


PARTS = {"tokens": measure_tokens, "decode": measure_decode, "threads": measure_threads}


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--streams", nargs="+", metavar="KIND", default=["uniform", "sticky", "correlated", "periodic"])
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4 ** power for power in range(6, 12)])
    parser.add_argument("--routes", type=int, default=8, help="at most; fewer for long streams")
    parser.add_argument("--histories", type=int, nargs="+", default=[1 << 10, 1 << 14, 1 << 17, 1 << 20])
    parser.add_argument("--decode-stream", metavar="KIND", default="uniform")
    parser.add_argument("--decode-routes", type=int, default=512)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-flips", action="store_true", help="without counterfactual tables, as decoding always is")
    args = parser.parse_args()
    report = common.Report("scaling", args)
    for part in args.only:
        report.note("")
        report.table(COLUMNS[part])
        PARTS[part](args, report)
    report.end()


if __name__ == "__main__":
    sys.exit(main())
