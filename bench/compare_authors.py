#!/usr/bin/env python3
"""Times rosatune beside the retrieval kernel that the authors of ROSA-Tuning published, on the same symbols.

Needs numpy, numba and a checkout of github.com/zyaaa-ux/ROSA-Tuning. Of the authors' file only the compiled functions
of the retrieval are taken out and run, so that what else it imports (torch, transformers, datasets) is not needed.

What is timed of theirs is what their forward pass does between having symbols on the host and having results there:
run-length coding of the keys, the run in force at every step, and the scan that builds the automaton and fills in
destinations and counterfactual tables. Ours is rosa_retrieve with tables; the column "no tables" is the same without.
Both sides use the same number of threads, both are warm, they take turns, and the median of each is kept. With
--device cuda our retrieval on a GPU stands beside them: the search on symbols that are there, and with all copies.

    bench/compare_authors.py CHECKOUT --threads 0 --device cuda --program build-cuda/rosatune --routes 512 \\
        --tokens 16384 --streams uniform --repeat 3
"""

import ast
import os
import pathlib
import statistics
import sys
import tempfile
import time

import common

try:
    import numba
    import numpy as np
except ImportError as error:
    common.die(f"{error.name} is missing: pip install numpy numba")

FILE = "2025.12.29 qkv_update.py"
RUNS, RUN_IN_FORCE, SCAN = "_k_rle_batch_btr_nb", "_compute_k_runcap_brt_nb", "_q_prefix_scan_bits_nb"
DEVICE_COLUMNS = [
    ("device", "device", ".3f"), ("device_copied", "with copies", ".3f"), ("device_ratio", "theirs to it", ".1f"),
    ("device_no_tables", "no tables", ".3f"), ("device_no_tables_copied", "with copies", ".3f"),
    ("device_no_tables_ratio", "theirs to it", ".1f"), ("theirs_bits", "of M", "d")]
DENSE_BITS = 8  # a state of theirs holds 4 * 2^bits bytes of transitions: at 16 bits, 8 GB for 16,384 tokens of a route


def compiled_functions(body):
    """Functions by name, those inside `if` included (their compiled forms stand under `if _NUMBA_OK`)."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            found[node.name] = node
        elif isinstance(node, ast.If):
            found.update(compiled_functions(node.body))
    return found


def load_kernel(checkout):
    """The authors' functions, compiled; none of their other statements is run."""
    path = pathlib.Path(checkout) / FILE
    try:
        functions = compiled_functions(ast.parse(path.read_text(encoding="utf-8")).body)
    except OSError as error:
        common.die(f"{path}: {error.strerror}; give the path of a checkout of the authors' repository")
    wanted, missing = [], [RUNS, RUN_IN_FORCE, SCAN]
    while missing:
        name = missing.pop()
        if name not in functions:
            common.die(f"{path} has no function {name}: not the version that this script knows")
        wanted.append(name)
        used = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        missing += [other for other in used & functions.keys() if other not in wanted + missing]
    chosen = [node for name, node in functions.items() if name in wanted]
    for node in chosen:  # numba can cache only what it can find as a module on disk
        for decorator in node.decorator_list:
            decorator.keywords = [word for word in decorator.keywords if word.arg != "cache"]
    names = {"_np": np, "_nb": numba}
    exec(compile(ast.Module(chosen, []), str(path), "exec"), names)  # pylint: disable=exec-used
    return names


def run_theirs(kernel, query, key, bits):
    """Seconds and hit rate; query and key are int32 [1, T, routes], as their pipeline hands them over."""
    begin = time.perf_counter()
    starts, symbols, counts = kernel[RUNS](key)
    in_force = kernel[RUN_IN_FORCE](starts, counts, key.shape[1])
    destinations = kernel[SCAN](query, symbols, starts, counts, in_force, bits, 1 << bits)[0]
    return time.perf_counter() - begin, float(np.mean(destinations >= 0))


def make_stream(kind, routes, tokens, bits, seed):
    """Query and key symbols, [routes, tokens]."""
    random = np.random.default_rng(seed)
    shape, symbols = (routes, tokens), 1 << bits
    query, key = random.integers(0, symbols, shape), random.integers(0, symbols, shape)
    if kind == "sticky":  # the key keeps its symbol with probability 1/2; the query is the key 7 steps ago, 5 % noise
        fresh = random.random(shape) < 0.5
        fresh[:, 0] = True
        key = np.take_along_axis(key, np.maximum.accumulate(np.where(fresh, np.arange(tokens), 0), axis=1), axis=1)
        copied = random.random((routes, tokens - 7)) >= 0.05
        query[:, 7:] = np.where(copied, key[:, :-7], query[:, 7:])
    elif kind == "correlated":  # both come from the same token and differ in 10 % of the steps
        query = np.where(random.random(shape) < 0.9, key, query)
    return query.astype(np.uint16), key.astype(np.uint16)


def compare(args, kernel, kind, tokens, bits, folder):
    query, key = make_stream(kind, args.routes, tokens, bits, args.seed)
    files = []
    for name, symbols in (("query", query), ("key", key)):
        path = os.path.join(folder, f"{name}.npy")
        np.save(path, symbols)
        files += [f"--{name}", path]
    ours = [*files, "--bits", bits, "--threads", args.threads, "--repeat", 5]  # each run warms up by itself
    theirs = None
    if bits <= DENSE_BITS:
        theirs = [np.ascontiguousarray(symbols.astype(np.int32).T[None]) for symbols in (query, key)]
        run_theirs(kernel, *theirs, bits)
    scale = 1e9 / (args.routes * tokens)
    samples = {"theirs": [], "ours": [], "no_tables": []}
    hits_theirs = full = None
    device = on_device(args, ours, bits, scale) if args.device else {}
    for _ in range(args.repeat):
        if theirs:
            seconds, hits_theirs = run_theirs(kernel, *theirs, bits)
            samples["theirs"].append(seconds * scale)
        full = common.measure(args.program, *ours)
        samples["ours"].append(full["ns_per_token"])
        samples["no_tables"].append(common.measure(args.program, *ours, "--no-flips")["ns_per_token"])
    medians = {side: statistics.median(values) if values else None for side, values in samples.items()}
    return {
        "stream": kind,
        "tokens": tokens,
        "bits": bits,
        **medians,
        "ratio": medians["theirs"] / medians["ours"] if theirs else None,
        "lookup": medians["ours"] / full["lookups_per_token"],
        "hits_theirs": hits_theirs,
        "hits_ours": full["hit_rate"],
        "samples": samples,
        **device,
    }


def on_device(args, ours, bits, scale):
    """Our retrieval on a GPU, with tables where theirs has them, and without."""
    row = {}
    for name, more in [("device", [])] * (bits <= DENSE_BITS) + [("device_no_tables", ["--no-flips"])]:
        found = common.measure(args.program, *ours, "--device", args.device, *more)
        if not found["equal"]:
            common.die(f"the device found other destinations than the CPU: {found}")
        row[name] = found["device_ms"] / 1e3 * scale
        row[f"{name}_copied"] = found["device_copies_ms"] / 1e3 * scale
    return row


def against_theirs(row, theirs):
    """How many times as long theirs takes as the device; `theirs` was measured at the widest M that it can hold."""
    return {f"{name}_ratio": theirs / row[name] for name in ("device", "device_no_tables") if theirs and name in row}


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("checkout", help="a checkout of the authors' repository")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 65536])
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--streams", nargs="+", choices=["uniform", "sticky", "correlated"],
                        default=["uniform", "sticky", "correlated"])
    parser.add_argument("--routes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="of both sides; 0: one per processor")
    parser.add_argument("--device", choices=["cuda"], help="measure our retrieval on a GPU too")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if min(args.tokens) < 8:
        common.die("--tokens: give at least 8")
    threads = args.threads or numba.config.NUMBA_NUM_THREADS
    if not 1 <= threads <= numba.config.NUMBA_NUM_THREADS:
        common.die(f"--threads: give 0 to {numba.config.NUMBA_NUM_THREADS}")
    numba.set_num_threads(threads)
    kernel = load_kernel(args.checkout)
    report = common.Report("authors", args)
    report.table([
        ("stream", "stream", ""), ("tokens", "T", "d"), ("bits", "M", "d"), ("theirs", "theirs", ".1f"),
        ("ours", "ours", ".1f"), ("ratio", "ratio", ".2f"), ("no_tables", "no tables", ".1f"),
        ("lookup", "a look-up", ".1f"), ("lookup_to_4", "to M = 4", ".2f"), ("hits_theirs", "their hits", ".1%"),
        ("hits_ours", "our hits", ".1%")] + (DEVICE_COLUMNS if args.device else []))
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.streams:
            for tokens in args.tokens:
                narrow = theirs = wide = None
                for bits in sorted(args.bits):
                    row = compare(args, kernel, kind, tokens, bits, folder)
                    narrow = row["lookup"] if bits == 4 else narrow
                    if row["theirs"]:
                        theirs, wide = row["theirs"], bits
                    row.update(against_theirs(row, theirs), theirs_bits=wide, threads=threads)
                    report.add(**row, lookup_to_4=row["lookup"] / narrow if narrow else None)
    report.note(f"ns per token and route, threads: {threads}, {args.routes} routes, median of {args.repeat}; theirs "
                f"cannot hold M > {DENSE_BITS}: at M = 16 a route of 16,384 tokens would take it 8 GB")
    if args.device:
        report.note("device: the search on symbols that are there; `theirs to it` beside M > 8 is with theirs at the M "
                    "that `of M` names")
    report.end()


if __name__ == "__main__":
    sys.exit(main())
