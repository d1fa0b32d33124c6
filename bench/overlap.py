#!/usr/bin/env python3
"""How much of the retrieval is hidden behind windowed attention on a GPU, with a picture of who works when.

Needs a CUDA device, torch and the rosatune package. First the CUDA path is compared with the CPU path, rule by rule, on
small shapes. Then one layer is timed: attention (projections, 16 heads of 128 in a window of 2048, projection back),
the adapter (launch and collect), one after the other, and overlapped as post fusion allows: launch, attention, collect.
The forward pass is that of training, in bfloat16.

Of the adapter's time, `hidden` is the part that overlapping saves: (one after the other - overlapped) / adapter. What
can be hidden at most is the time attention takes; where the retrieval takes longer, the GPU waits for the rest.

The timeline is drawn from events on the GPU and the clock of the worker thread, brought together at a common instant.
"""

import json
import pathlib
import statistics
import sys
import time

import common

try:
    import torch
    from clock import Clock
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as error:
    sys.exit(f"overlap.py: {error.name} is missing: pip install torch")

try:
    import rosatune
    from rosatune.nn import RosaAdapter
    from rosatune.torch import _device, launch, rosa
except ImportError as error:
    common.die(f"{error}; install the package with `pip install .`")

CHANNELS, HEADS, WINDOW = 2048, 16, 2048
SETTINGS = [("linear", 16), ("linear", 4), ("flips", 4)]
RULES = [{"qk_grad": "none"}, {"qk_grad": "flips"},
         {"qk_grad": "flips", "key_credit": "destination", "flip_share": 0.5},
         *({"qk_grad": rule, "credit": credit, "suffix": suffix}
           for rule in ("soft", "linear") for credit in ("all", "route") for suffix in (0.0, 0.5))]


# ---------------------------------------------------------------------------------------------------------- correctness


def text(tokens, channels, words=4096, batch=1):
    """Vectors of words that follow Zipf's law, with a little noise: [B, T, C], on the GPU."""
    share = 1 / torch.arange(1, words + 1, device="cuda").float()
    chosen = torch.multinomial(share, batch * tokens, replacement=True)
    u = torch.randn(words, channels, device="cuda")[chosen]
    return (u + 0.05 * torch.randn_like(u)).view(batch, tokens, channels)


def check_rule(rule, bits, kind):
    """y on both devices must be equal; the largest relative difference of a gradient is returned."""
    u = text(700, 64, 40)
    inputs = [(u + 0.3 * torch.randn_like(u)).to(kind) for _ in range(2)] + [torch.randn_like(u).to(kind)]
    inputs += [torch.randn(64, device="cuda") for _ in range(2)]
    there = [x.requires_grad_() for x in inputs]
    here = [x.detach().cpu().requires_grad_() for x in inputs]
    options = {"bits": bits, "explore": 0.1, "seed": 3, **rule}
    y = rosa(*there, **options, pending=launch(*there[:2], **options))
    expected = rosa(*here, **options)
    if not torch.equal(y.cpu(), expected):
        common.die(f"{options}, {kind}: y on the GPU is not y on the CPU")
    gy = torch.randn_like(expected)
    found = torch.autograd.grad(y, there, gy.cuda())
    wanted = torch.autograd.grad(expected, here, gy)
    differences = []
    for one, other in zip(found, wanted):
        one, other = one.cpu().double(), other.double()
        differences.append(float((one - other).norm() / other.norm().clamp(min=1e-30)))
    return max(differences)


def check_all(report):
    for kind, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        worst = 0.0
        for rule in RULES:
            for bits in (4, 16):
                difference = check_rule(rule, bits, kind)
                if not difference < tolerance:
                    common.die(f"{rule}, {bits} bits, {kind}: gradients differ by {difference:.1e} between GPU and CPU")
                worst = max(worst, difference)
        report.note(f"GPU and CPU agree in {kind}: y exactly, gradients of {len(RULES)} rules within {worst:.1e}")


# ---------------------------------------------------------------------------------------------------------------- layer


class Attention(nn.Module):
    """Causal attention in a window, from projections to projection."""

    def __init__(self, flex):
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(CHANNELS, CHANNELS, bias=False) for _ in range(4))
        self.flex = flex
        self.masks = {}

    def forward(self, u):
        tokens = u.shape[1]
        q, k, v = (weight(u).view(1, tokens, HEADS, -1).transpose(1, 2) for weight in self.weights[:3])
        found = self.flexible(q, k, v) if self.flex else self.blocks(q, k, v)
        return self.weights[3](found.transpose(1, 2).reshape(u.shape))

    def flexible(self, q, k, v):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        tokens = q.shape[2]
        if tokens not in self.masks:
            self.masks[tokens] = create_block_mask(
                lambda b, h, t, s: (s <= t) & (t - s < WINDOW), None, None, tokens, tokens, device="cuda")
            self.kernel = torch.compile(flex_attention, dynamic=False)
        return self.kernel(q, k, v, block_mask=self.masks[tokens])

    def blocks(self, q, k, v):
        """Each block of W queries sees its own block of keys and the one before."""
        tokens = q.shape[2]
        if tokens % WINDOW:
            common.die(f"T = {tokens} is no multiple of the window {WINDOW}")
        q, k, v = (x.view(HEADS, tokens // WINDOW, WINDOW, -1).transpose(0, 1) for x in (q, k, v))
        k, v = (torch.cat([torch.cat([x.new_zeros(x[:1].shape), x[:-1]]), x], 2) for x in (k, v))
        t, s = torch.arange(WINDOW, device=q.device)[:, None] + WINDOW, torch.arange(2 * WINDOW, device=q.device)
        mask = ((s <= t) & (t - s < WINDOW)).expand(len(q), 1, -1, -1).clone()
        mask[0, :, :, :WINDOW] = False  # nothing is before the first block
        found = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return found.transpose(0, 1).reshape(1, HEADS, tokens, -1)


def make_attention(report):
    """With FlexAttention where it can be compiled, in blocks elsewhere."""
    made = Attention(True).cuda().bfloat16()
    try:
        made(torch.randn(1, WINDOW, CHANNELS, device="cuda", dtype=torch.bfloat16))
        report.note("attention: FlexAttention, compiled")
    except Exception as error:  # pylint: disable=broad-exception-caught
        made.flex = False
        report.note(f"attention: scaled_dot_product_attention in blocks (FlexAttention: {str(error).splitlines()[0]})")
    return made


def milliseconds(work, repeat):
    """The median of several runs, in wall-clock time, after two that warm up."""
    return 1e3 * Clock("cuda").seconds(work, repeat, 2)


def measure(attention, adapter, u, repeat):
    def overlapped():
        launched = adapter.launch(u)
        attended = attention(u)
        return attended + adapter.collect(launched)

    def backward():
        inj = adapter(u)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        inj.backward(inj.detach())
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    row = {
        "attention": milliseconds(lambda: attention(u), repeat),
        "adapter": milliseconds(lambda: adapter(u), repeat),
        "sequence": milliseconds(lambda: adapter(u) + attention(u), repeat),
        "overlapped": milliseconds(overlapped, repeat),
    }
    row["hidden"] = (row["sequence"] - row["overlapped"]) / row["adapter"]
    row["most"] = min(1.0, row["attention"] / row["adapter"])
    row["backward"] = statistics.median([backward() for _ in range(repeat + 1)][1:])
    return row


# ------------------------------------------------------------------------------------------------------------- timeline


def timeline(attention, adapter, u):
    """Spans (lane, name, begin, end) of one overlapped layer, in milliseconds from its start."""
    marks = {}

    def mark(name):
        marks[name] = torch.cuda.Event(enable_timing=True)
        marks[name].record()

    torch.cuda.synchronize()
    mark("zero")
    marks["zero"].synchronize()
    zero = time.perf_counter()
    _device.record = []
    try:
        launched = adapter.launch(u)
        mark("attention")
        attended = attention(u)
        mark("attended")
        begin = time.perf_counter()
        inj = adapter.collect(launched)
        collected = time.perf_counter()
        mark("collected")
        torch.cuda.synchronize()
        times = _device.record[0]
    finally:
        _device.record = None
    del attended, inj

    def on_gpu(event):
        return marks["zero"].elapsed_time(event)

    def on_host(moment):
        return (moment - zero) * 1e3

    back = on_gpu(times["back"])
    return [
        ("GPU", "projections", 0.0, on_gpu(times["pack"])),
        ("GPU", "symbols", on_gpu(times["pack"]), on_gpu(times["packed"])),
        ("GPU", "attention", on_gpu(marks["attention"]), on_gpu(marks["attended"])),
        ("GPU", "read-out", max(back, on_gpu(marks["attended"])), on_gpu(marks["collected"])),
        ("copies", "to the host", on_gpu(times["out"]), on_gpu(times["copied"])),
        ("copies", "back", on_gpu(times["return"]), back),
        ("processors", "retrieval", *map(on_host, times["retrieve"])),
        ("main thread", "waits", on_host(begin), on_host(collected)),
    ]


COLOURS = {"projections": "#b7c9e2", "symbols": "#7fa8d9", "attention": "#3b6fb6", "read-out": "#14406f",
           "to the host": "#e0a34e", "back": "#c77f1e", "retrieval": "#5d9b6b", "waits": "#c9c9c9"}


LANES = ("GPU", "copies", "processors", "main thread")


def draw(timelines, lanes=LANES, colours=COLOURS, light=("waits", "projections"), longest=None):
    """All timelines as one SVG, each with its own scale or, with `longest`, all with that many milliseconds."""
    left, width, height, gap = 110, 760, 22, 8
    block = len(lanes) * (height + gap) + 64
    parts = []
    for number, (title, spans) in enumerate(timelines):
        top = number * block + 34
        end = longest or max(span[3] for span in spans)
        parts.append(f'<text x="{left}" y="{top - 14}" font-weight="bold">{title}</text>')
        for row, lane in enumerate(lanes):
            y = top + row * (height + gap)
            parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{lane}</text>')
            parts.append(f'<rect x="{left}" y="{y}" width="{width}" height="{height}" fill="#f4f4f4"/>')
            for _, name, begin, stop in (span for span in spans if span[0] == lane):
                x, wide = left + width * begin / end, max(width * (stop - begin) / end, 0.6)
                parts.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{height}" fill="{colours[name]}">'
                             f"<title>{name}: {begin:.2f} to {stop:.2f} ms</title></rect>")
                if wide > 7 * len(name):
                    ink = "#000" if name in light else "#fff"
                    parts.append(f'<text x="{x + 4:.1f}" y="{y + 15}" fill="{ink}">{name}</text>')
        axis = top + len(lanes) * (height + gap) + 8
        for tick in range(5):
            x = left + width * tick / 4
            label = f"{end * tick / 4:.2f} ms"
            parts.append(f'<text x="{x:.1f}" y="{axis}" text-anchor="middle" fill="#555">{label}</text>')
    size = (left + width + 50, len(timelines) * block)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" font-family="sans-serif" '
            f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n')


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384, 32768])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where overlap.json and overlap.svg go")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        common.die("no CUDA device")
    torch.manual_seed(args.seed)
    device = torch.cuda.get_device_name()
    report = common.Report("overlap", args, f"rosatune {rosatune.__version__}, torch {torch.__version__}, {device}")
    report.result["threads"] = torch.get_num_threads()
    check_all(report)
    attention = make_attention(report)
    report.note(f"milliseconds, C = {CHANNELS}, window {WINDOW}, {torch.get_num_threads()} threads retrieve")
    report.table([
        ("setting", "setting", ""), ("tokens", "T", "d"), ("attention", "attention", ".2f"),
        ("adapter", "adapter", ".2f"), ("sequence", "in sequence", ".2f"), ("overlapped", "overlapped", ".2f"),
        ("hidden", "hidden", ".0%"), ("most", "at most", ".0%"), ("backward", "adapter's grads", ".2f")])
    timelines = []
    for rule, bits in SETTINGS:
        config = rosatune.RosaConfig.paper(bits=bits, qk_grad=rule, e_start=0.1)
        adapter = RosaAdapter(CHANNELS, config, device="cuda", dtype=torch.bfloat16)
        for tokens in args.tokens:
            u = text(tokens, CHANNELS).bfloat16()
            name = f"{rule}, M = {bits}"
            report.add(setting=name, tokens=tokens, **measure(attention, adapter, u, args.repeat))
            timelines.append((f"{name}, T = {tokens}", timeline(attention, adapter, u)))
    folder = pathlib.Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    report.result["timelines"] = [{"name": name, "spans": spans} for name, spans in timelines]
    (folder / "overlap.json").write_text(json.dumps(report.result, indent=1), encoding="utf-8")
    (folder / "overlap.svg").write_text(draw(timelines), encoding="utf-8")
    report.note(f"{folder / 'overlap.json'} and {folder / 'overlap.svg'} are written")
    report.end()


if __name__ == "__main__":
    sys.exit(main())
