#!/usr/bin/env python3
"""What retrieval costs on a real text beside independent uniform symbols: whole streams, and single decoding steps.

The text is cut into tokens by the program, and each route gives every token a symbol of its own: a hash of token and
route. So symbols come as words do, some often and most rarely, and strings of them come again, which is what an adapter
that has learnt to tell tokens apart makes of the text. Query and key are the same stream.
"""

import array
import json
import os
import sys
import tempfile

import common

COLUMNS = [("bits", "M", "d"), ("tokens", "T", "d"), ("flips_ns", "tables ns", ".1f"), ("plain_ns", "no tables", ".1f"),
           ("decode_ns", "a step ns", ".0f"), ("uniform_flips_ns", "uniform", ".1f"),
           ("uniform_plain_ns", "no tables", ".1f"), ("uniform_decode_ns", "a step ns", ".0f"),
           ("step", "step/uniform", ".2f")]


def read_tokens(args):
    longest = max(args.tokens)
    ids = json.loads(common.call(args.program, "tokenize", "--model", args.tokenizer, "--file", args.text, "--plain",
                                 "--lossy", "--json"))["ids"]
    if len(ids) < longest:
        common.die(f"{args.text} has {len(ids)} tokens; give a longer text, or --tokens of at most that")
    return ids[:longest]


def symbol(token, route, bits):
    """The first bits of a hash."""
    mixed = (token + 1) * 0x9e3779b97f4a7c15 + route * 0xd6e8feb86659fd93 & (1 << 64) - 1
    mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93 & (1 << 64) - 1
    return mixed >> (64 - bits)


def write_streams(path, ids, routes, bits):
    """A .npy file of [routes][len(ids)] symbols."""
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({routes}, {len(ids)}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    words = set(ids)
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        for route in range(routes):
            symbols = {token: symbol(token, route, bits) for token in words}
            row = array.array("H", map(symbols.__getitem__, ids))
            if sys.byteorder == "big":
                row.byteswap()
            row.tofile(file)


def measure(args, bits, where):
    """Nanoseconds per token and route, with tables and without, and those of a single step."""
    flips = common.measure(args.program, *where, "--bits", bits, "--repeat", args.repeat)["ns_per_token"]
    plain = common.measure(args.program, *where, "--bits", bits, "--repeat", args.repeat, "--no-flips")["ns_per_token"]
    step = common.measure(args.program, *where, "--bits", bits, "--decode")["step_us_median"]
    return flips, plain, step * 1000 / args.routes


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("tokenizer", help="a model, or its tokenizer.json")
    parser.add_argument("text", help="a file of text")
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1 << 14, 1 << 17])
    parser.add_argument("--routes", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    report = common.Report("text", args)
    ids = read_tokens(args)
    report.note(f"{len(set(ids))} different tokens among the first {len(ids)}; {args.routes} routes, one thread")
    report.table(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "symbols.npy")
        for bits in args.bits:
            for tokens in args.tokens:
                write_streams(path, ids[:tokens], args.routes, bits)
                flips, plain, step = measure(args, bits, ["--query", path, "--key", path])
                beside = measure(args, bits, ["--stream", "uniform", "--tokens", tokens, "--routes", args.routes])
                report.add(bits=bits, tokens=tokens, flips_ns=flips, plain_ns=plain, decode_ns=step,
                           uniform_flips_ns=beside[0], uniform_plain_ns=beside[1], uniform_decode_ns=beside[2],
                           step=step / beside[2])
    report.end()


if __name__ == "__main__":
    sys.exit(main())
