#!/usr/bin/env python3
"""Draws PNGs from the JSON files of the other scripts.

One picture a measurement, named after it: authors.png, hostile.png, tokens.png, decode.png, threads.png,
efficiency.png, mqar.png, theorems.png.
"""

import json
import os
import sys

import common

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    common.die("matplotlib is missing: pip install matplotlib")


def distinct(rows, *keys):
    """The different values of some keys, in the order in which they come."""
    return list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))


def select(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def thousands(count):
    return f"{count >> 20}M" if count >= 1 << 20 else f"{count >> 10}k" if count >= 1 << 10 else str(count)


def bars(axes, labels, series):
    """Groups of horizontal bars, the first group on top; a missing value leaves a gap."""
    height = 0.8 / len(series)
    for i, (name, values) in enumerate(series):
        places = [group + i * height for group in range(len(labels))]
        axes.barh(places, [value or 0 for value in values], height, label=name)
    axes.set_yticks([group + 0.4 - height / 2 for group in range(len(labels))], labels)
    axes.invert_yaxis()
    axes.legend()


def draw_authors(rows):
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.45 * len(rows)))
    labels = [f"{row['stream']}, T = {thousands(row['tokens'])}, M = {row['bits']}" for row in rows]
    names = {"theirs": "authors' kernel", "ours": "rosatune", "no_tables": "rosatune, no tables"}
    bars(axes, labels, [(name, [row[key] for row in rows]) for key, name in names.items()])
    axes.set_xscale("log")
    axes.set_xlabel("ns per token and route, one thread")
    return {"authors": figure}


def draw_hostile(rows):
    streams = [stream for (stream,) in distinct(rows, "stream")]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.3 * len(streams)))
    series = []
    for (bits,) in distinct(rows, "bits"):
        ratios = {row["stream"]: row["ratio"] for row in select(rows, bits=bits)}
        series.append((f"M = {bits}", [ratios.get(stream) for stream in streams]))
    bars(axes, streams, series)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.axvline(3, color="red", linewidth=0.8)
    axes.set_xlabel(f"time beside uniform symbols, T = {thousands(rows[0]['tokens'])}")
    return {"hostile": figure}


def lines(rows, keys, y, xlabel, ylabel, label):
    """One line for each different value of `keys`, over the number of tokens."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for values in distinct(rows, *keys):
        some = select(rows, **dict(zip(keys, values)))
        line, = axes.plot([row["tokens"] for row in some], [row[y[0]] for row in some], marker="o",
                          label=label.format(*values))
        for other in y[1:]:
            axes.plot([row["tokens"] for row in some], [row[other] for row in some], linestyle=":",
                      color=line.get_color())
    ticks = sorted({row["tokens"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [thousands(tick) for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.legend()
    return figure


def draw_scaling(rows):
    figures = {}
    tokens, decode, threads = (select(rows, part=part) for part in ("tokens", "decode", "threads"))
    if tokens:
        figures["tokens"] = lines(tokens, ("stream", "bits"), ["ns"], "T", "ns per token and route", "{}, M = {}")
    if decode:
        figures["decode"] = lines(decode, ("bits", "threads"), ["step_us_median", "step_us_p99"], "history",
                                  f"us a step of {decode[0]['routes']} routes; dotted: 99th percentile",
                                  "M = {}, threads {}")
    if threads:
        groups = distinct(threads, "stream", "bits")
        figures["threads"], axes = pyplot.subplots(figsize=(8, 1 + 0.5 * len(groups)))
        series = [(f"threads {count}", [select(threads, stream=stream, bits=bits, threads=count)[0]["speedup"]
                                        for stream, bits in groups])
                  for (count,) in distinct(threads, "threads")]
        bars(axes, [f"{stream}, M = {bits}" for stream, bits in groups], series)
        axes.set_xlabel("speed-up")
    return figures


def draw_efficiency(rows):
    """Milliseconds of a whole text by its length; what was not measured has no line."""
    names = {"attention": "attention, 1,024 channels, GPU", "route_4": "one route, M = 4, one core",
             "route_16": "one route, M = 16, one core", "layer_4": "512 routes, M = 4, all cores",
             "device_4": "512 routes, M = 4, GPU", "layer_16": "128 routes, M = 16, all cores",
             "device_16": "128 routes, M = 16, GPU"}
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for key, name in names.items():
        some = [row for row in rows if row.get(key) is not None]
        if some:
            style = "-" if key == "attention" else ":" if key.startswith("device") else "--"
            axes.plot([row["tokens"] for row in some], [row[key] for row in some], style, marker="o", label=name)
    ticks = [row["tokens"] for row in rows]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [thousands(tick) for tick in ticks])
    axes.set_yscale("log")
    axes.set_xlabel("T")
    axes.set_ylabel("milliseconds of the whole text")
    axes.legend()
    return {"efficiency": figure}


def draw_mqar(rows):
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for fusion, bits in distinct(rows, "fusion", "bits"):
        each = select(rows, fusion=fusion, bits=bits)
        label = f"M = {bits}, right {each[-1]['right']:.0%}" + (", pre fusion" if fusion == "pre" else "")
        axes.plot([row["steps"] for row in each], [row["accuracy"] for row in each], marker="o", label=label)
    axes.set_xlabel("steps")
    axes.set_ylabel("accuracy")
    axes.legend()
    return {"mqar": figure}


def draw_theorems(rows):
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    symbols = select(rows, theorem=1, alphabet=max(row["alphabet"] for row in select(rows, theorem=1)))
    for (levels,) in distinct(symbols, "levels"):
        each = select(symbols, levels=levels)
        left.plot([row["noise"] for row in each], [row["changed"] for row in each], marker="o", label=f"{levels} levels")
    left.set_xscale("log")
    left.set_xlabel("noise")
    left.set_ylabel(f"symbols that change, K = {symbols[0]['alphabet']}")
    left.legend()
    for (score,) in distinct(select(rows, theorem=2), "score"):
        each = select(rows, theorem=2, score=score)
        right.plot([row["beta"] for row in each], [row["mean"] for row in each], marker="o", label=f"score: {score}")
    right.set_yscale("log")
    right.set_xlabel("beta")
    right.set_ylabel("distance of attention to its limit")
    right.legend()
    return {"theorems": figure}


DRAW = {"authors": draw_authors, "efficiency": draw_efficiency, "hostile": draw_hostile, "scaling": draw_scaling,
        "mqar": draw_mqar, "theorems": draw_theorems}


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False, report=False)
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where the pictures go")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for path in args.files:
        try:
            with open(path, encoding="utf-8") as file:
                result = json.load(file)
            draw, rows, where = DRAW[result["what"]], result["rows"], result["machine"]["processor"]
        except (OSError, ValueError, KeyError, TypeError):
            common.die(f"{path}: not a result of the scripts here")
        if not rows:
            common.die(f"{path}: holds no rows")
        for name, figure in draw(rows).items():
            figure.suptitle(where, fontsize="small")
            figure.tight_layout()
            target = os.path.join(args.out, f"{name}.png")
            figure.savefig(target, dpi=120)
            print(target)


if __name__ == "__main__":
    sys.exit(main())
