#!/usr/bin/env python3
"""When the GPU works in a layer of a decoding step: kernels launched by Python, and recorded as a CUDA graph.

    bench/timeline.py --out docs/pictures

A model of the shape of Qwen3-1.7B with a window and adapters that read token ids (see gpu.py) decodes after a text.
torch.profiler tells when each kernel ran and when the host launched something; one layer in the middle of the model,
from one reading kernel to the next, is drawn for both ways on the same scale (decoding.svg).
"""

import json
import pathlib
import re
import sys
import tempfile

import common
import gpu
import overlap
import rosatune
import rosatune.hf
import torch
from torch.profiler import ProfilerActivity, profile

READ = "_step_kernel"  # one per layer
KINDS = [("reading", READ), ("attention", "flash|fmha|attention|softmax"),
         ("products", "gemm|gemv|cutlass|nvjet|splitk"), ("other kernels", "")]
COLOURS = {"reading": "#c77f1e", "attention": "#3b6fb6", "products": "#5d9b6b", "other kernels": "#b7c9e2",
           "launches": "#8a8a8a"}
LANES = ("GPU", "host")


def kind_of(name):
    return next(kind for kind, words in KINDS if re.search(words, name, re.IGNORECASE))


def spans_of(trace, layer):
    """Spans (lane, name, begin, end) in milliseconds of one layer of the last step of a trace."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    kernels = sorted((e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")), key=lambda e: e["ts"])
    reads = [event["ts"] for event in kernels if READ in event["name"]]
    if len(reads) < layer + 2:
        common.die(f"the trace has {len(reads)} reading kernels, too few for layer {layer}")
    begin, end = reads[layer], reads[layer + 1]
    spans = [("GPU", kind_of(e["name"]), e["ts"], e["ts"] + e["dur"]) for e in kernels if begin <= e["ts"] < end]
    for event in events:
        if event.get("cat") == "cuda_runtime" and "Launch" in event["name"]:
            if event["ts"] + event["dur"] > begin and event["ts"] < end:
                spans.append(("host", "launches", max(event["ts"], begin), min(event["ts"] + event["dur"], end)))
    moved = [(lane, name, (a - begin) / 1e3, (min(b, end) - begin) / 1e3) for lane, name, a, b in spans]
    return moved, (end - begin) / 1e3


@torch.no_grad()
def traced(model, cache, ids):
    """The trace of a step, after some that warm up."""
    for _ in range(4):
        ids = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False)
    parser.add_argument("--shape", choices=list(gpu.SHAPES), default="qwen3-1.7b")
    parser.add_argument("--tokens", type=int, default=8192, help="length of the text before")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--chain", type=int, default=4)
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where decoding.svg goes")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        common.die("no CUDA device")
    args.device = "cuda"
    device = torch.cuda.get_device_name()
    report = common.Report("timeline", args, f"rosatune {rosatune.__version__}, torch {torch.__version__}, {device}")
    model = gpu.make(args.shape, args, torch.bfloat16)
    gpu.attach(model, "rosa", args, False)
    ids = gpu.ids_of(1, args.tokens, model.config.vocab_size)
    _, cache, logits, _ = gpu.read_text(model, ids, 4096, gpu.Clock("cuda"), args)
    layer = len(model.model.layers) // 2
    report.table([("way", "way", ""), ("ms", "layer, ms", ".3f"), ("busy", "GPU busy, ms", ".3f"),
                  ("kernels", "kernels", "d")])
    timelines, longest = [], 0
    for way in ("launched by Python", "recorded"):
        if way == "recorded":
            with rosatune.hf.recorded(model):
                trace = traced(model, cache, logits.argmax(-1))
        else:
            trace = traced(model, cache, logits.argmax(-1))
        spans, length = spans_of(trace, layer)
        mine = [span for span in spans if span[0] == "GPU"]
        busy = sum(end - begin for _, _, begin, end in mine)
        report.add(way=way, ms=length, busy=busy, kernels=len(mine))
        timelines.append((f"{way}: layer {layer} of {args.shape}, {length:.3f} ms, GPU busy {busy:.3f} ms", spans))
        longest = max(longest, length)
    folder = pathlib.Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    picture = overlap.draw(timelines, LANES, COLOURS, ("other kernels",), longest)
    (folder / "decoding.svg").write_text(picture, encoding="utf-8")
    report.note(f"{folder / 'decoding.svg'} is written")
    report.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
