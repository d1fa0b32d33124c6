#!/usr/bin/env python3
"""What ROSA with the source tokens costs beside a window alone: training steps, reading, decoding, single kernels.

    bench/gpu.py train read decode kernels --shapes smollm2-135m qwen3-0.6b qwen3-1.7b

Models have the shapes of real ones and random weights: time and memory do not depend on the weights. Adapters start
with levels of their own (e_start), so that what is read really flows on. Texts are token ids that follow Zipf's law,
with passages that return. Every ratio is to the window alone in the same run; the window is measured once more at the
end, and `again` is the ratio of the two, the noise.

train    a step (forward, backward, clipping, AdamW) in bfloat16 with float32 weights, layers compiled, look-ups ahead.
         `free`: everything learns. `frozen`: the adapters alone; the window's step is then forward and backward without
         gradients of weights. `products` has the adapter's two matrix products, both over all steps of the batch, and
         reads nothing; `beyond` is what ROSA costs beside them: (ROSA - products) / window. ROSA itself makes values of
         the batch's distinct tokens alone, so its own products cost less. `must` is what the products have to cost by
         counting their operations beside the model's.
read     a text in chunks with a cache, the ids known on the host: tokens per second, and memory beyond the weights:
         the device's at its peak, of that the tables of value bits, and what the states of the text hold.
decode   one token at a time after such a text: milliseconds per step, launched by Python and recorded as a CUDA graph
         (rosatune.hf.recorded), each beside the window's step of its kind. `equal` is the share of the tokens that both
         chose alike; random weights have near ties, and after the first difference the texts go apart.
kernels  every kernel of a layer that reads, replayed from a CUDA graph, with the bytes that it has to move, and the
         share of the bandwidth of a plain copy that it reaches; what fits into the cache may exceed 100 %. Needs a CUDA
         device; the rest runs anywhere, at the shape `tiny` for instance.
"""

import contextlib
import copy
import sys
import time
import traceback

import common

try:
    import graph
    import torch
    import torch._dynamo
    from clock import Clock
    from torch.nn import functional
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
except ImportError as error:
    sys.exit(f"gpu.py: {error.name} is missing: pip install torch transformers")

try:
    import rosatune
    import rosatune.hf
    from rosatune.torch import _distinct, _places, _read
except ImportError as error:
    common.die(f"{error}; install the package with `pip install .`")


def llama(hidden, inner, layers, heads, kv, head, vocabulary):
    return LlamaForCausalLM, LlamaConfig, (hidden, inner, layers, heads, kv, head, vocabulary)


def qwen(*sizes):
    return Qwen3ForCausalLM, Qwen3Config, sizes


NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim", "vocab_size")
SHAPES = {
    "tiny": llama(64, 96, 3, 4, 2, 16, 500),
    "smollm2-135m": llama(576, 1536, 30, 9, 3, 64, 49152),
    "qwen3-0.6b": qwen(1024, 3072, 28, 16, 8, 128, 151936),
    "qwen3-1.7b": qwen(2048, 6144, 28, 16, 8, 128, 151936),
}


def make(shape, args, dtype):
    kind, config, sizes = SHAPES[shape]
    torch.manual_seed(0)
    with torch.device(args.device):
        model = kind(config(**dict(zip(NAMES, sizes)), tie_word_embeddings=True, max_position_embeddings=1 << 21))
    return model.to(dtype)


def attach(model, setting, args, training):
    """The arrangement of a setting: global, window, products, rosa, rosa/3 (every third layer) or own."""
    cuda = model.device.type == "cuda"
    model.set_attn_implementation("flex_attention" if cuda and setting != "global" else "sdpa")
    layers = len(model.model.layers)
    options = dict(window=args.window, sinks=4, e_start=0.02, chain=args.chain)
    if setting in ("global", "window"):
        near = setting == "window"
        options = dict(window=args.window if near else 0, sinks=4 if near else 0, layers=())
    elif setting == "rosa/3":
        options["layers"] = tuple(range(0, layers, 3))
    elif setting == "products":
        options.update(gain=False, gate=False, chain=1)
    elif setting == "own":
        options.update(source="own", qk="aligned", bits=16)
    rosatune.hf.attach(model, stage="all", scales=[1.0] * layers, **options)
    model.train(training)


@contextlib.contextmanager
def reading(setting):
    """Without the reading itself for `products`, whose values are those of all steps."""
    before = _read.read, _distinct.most_parts
    if setting == "products":
        _read.read, _distinct.most_parts = lambda v, *rest: v, 0
    try:
        yield
    finally:
        _read.read, _distinct.most_parts = before


def ids_of(batch, tokens, vocabulary, seed=1):
    """[batch, tokens] by Zipf's law; half of it passages of 64 tokens that stood before."""
    source = torch.Generator().manual_seed(seed)
    share = 1 / torch.arange(1, vocabulary + 1).float()
    ids = torch.multinomial(share, batch * tokens, replacement=True, generator=source).view(batch, tokens)
    for begin in range(128, tokens - 64, 128):
        back = int(torch.randint(0, begin - 64, (), generator=source))
        ids[:, begin:begin + 64] = ids[:, back:back + 64].clone()
    return ids


@contextlib.contextmanager
def measuring(report, what):
    """A measurement that fails is reported, and the next one is made: time on a GPU is scarce."""
    try:
        yield
    except Exception:  # of any kind: out of memory, a compiler, a driver
        report.note(f"FAILED: {what}\n{traceback.format_exc()}")
        report.result.setdefault("failed", []).append(what)


# -------------------------------------------------------------------------------------------------------------- train


def must(shape, layers, tokens, window):
    """What the adapters' products have to cost: their operations beside those of the window's step."""
    hidden, inner, total, heads, kv, head, vocabulary = SHAPES[shape][2]
    products = hidden * head * (2 * heads + 2 * kv) + 3 * hidden * inner
    attention = 2 * heads * head * min(window, tokens)
    return layers * 2 * hidden * hidden / (total * (products + attention) + hidden * vocabulary)


def train_step(model, setting, frozen, batch, length, args, clock):
    """Seconds of a step, and peak gigabytes beyond the weights, gradients and moments."""
    ours = [x for adapter in rosatune.hf.adapters(model).values() for x in adapter.parameters()]
    if frozen:
        model.requires_grad_(False)
        for x in ours:
            x.requires_grad_(True)
    weights = [x for x in model.parameters() if x.requires_grad]
    made = dict(lr=1e-6, fused=clock.cuda, capturable=clock.cuda)
    optimizer = torch.optim.AdamW(weights, **made) if weights else None
    vocabulary = model.config.vocab_size
    given = [{"input_ids": ids_of(batch, length, vocabulary, seed)} for seed in range(2)]
    endless = (given[i % 2] for i in range(1 << 30))
    batches = rosatune.hf.prefetch(model, endless, device=args.device)
    loss_of = torch.compile(token_loss, dynamic=False) if args.compile else token_loss
    if frozen:
        model.model.register_forward_pre_hook(through_all, with_kwargs=True)

    def work(found):
        with torch.autocast("cuda", torch.bfloat16) if clock.cuda else contextlib.nullcontext():
            hidden = model.model(use_cache=False, **found).last_hidden_state
            loss = loss_of(hidden, model.lm_head.weight, found["input_ids"])
        loss.backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss

    take = graph.Recorded(work) if args.graph else work

    def step():
        take(next(batches))

    with reading(setting):
        if args.compile:
            rosatune.hf.compile_layers(model)
        for _ in range(len(given) * (graph.WARM + 1 if args.graph else 1)):  # their lists of tokens may differ in size
            step()
        held = clock.clear()
        seconds = clock.seconds(lambda: [step() for _ in range(args.steps)], args.repeat, 1) / args.steps
    peak = clock.peak() - held
    batches.close()
    return seconds, peak


def through_all(stack, args, kwargs):
    """After the hook of the adapters: gradients go through all layers, as they do to the first adapter."""
    kwargs["inputs_embeds"].requires_grad_(True)


def token_loss(hidden, weight, ids):
    logits = functional.linear(hidden[:, :-1], weight).float()
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def train(shape, args, report, clock):
    report.table([("shape", "shape", ""), ("size", "size", ""), ("setting", "setting", ""), ("ms", "ms/step", ".2f"),
                  ("ratio", "ratio", ".3f"), ("beyond", "beyond", ".1%"), ("must", "must", ".1%"),
                  ("memory", "memory", ".2f"), ("tokens", "tokens/s", ".0f")])
    for size in args.sizes:
        length, _, batch = size.partition("x")
        length, batch = int(length), int(batch or 1)
        for frozen in [x == "frozen" for x in ("free", "frozen") if args.only in (None, x)]:
            known = {}
            for setting in ("window", *args.settings, "window again"):
                kind = "frozen" if frozen else "free"
                with measuring(report, f"train, {shape}, {size} {kind}, {setting}"):
                    name, model = setting.split()[0], None
                    clock.clear()
                    model = make(shape, args, torch.float32)
                    attach(model, name, args, True)
                    seconds, peak = train_step(model, name, frozen, batch, length, args, clock)
                    if setting == "window again":
                        report.note(f"again: {seconds / known['window'][0]:.3f}")
                        continue
                    known[setting] = seconds, peak
                    window = known.get("window")
                    row = {} if window is None else {"ratio": seconds / window[0]}
                    if window is not None and window[1]:
                        row["memory"] = peak / window[1]
                    if name.startswith("rosa"):
                        layers = SHAPES[shape][2][2]
                        adapted = layers if name == "rosa" else (layers + 2) // 3
                        row["must"] = must(shape, adapted, length, args.window)
                    if name == "rosa" and "products" in known and window is not None:
                        row["beyond"] = (seconds - known["products"][0]) / window[0]
                    report.add(shape=shape, size=f"{size} {kind}", setting=setting, ms=seconds * 1e3,
                               tokens=batch * length / seconds, **row)
                del model


# ---------------------------------------------------------------------------------------------------- read and decode


@torch.no_grad()
def read_text(model, ids, chunk, clock, args):
    """(seconds, cache, logits, peak gigabytes) of reading a text in chunks."""
    there, cache = ids.to(args.device), DynamicCache(config=model.config)
    clock.clear()
    begin = time.perf_counter()
    for first in range(0, ids.shape[1], chunk):
        part = slice(first, first + chunk)
        more = {"rosa_ids": ids[:, part]} if hasattr(model.model, "rosatune") else {}
        logits = model(there[:, part], past_key_values=cache, use_cache=True, logits_to_keep=1, **more).logits
    clock.wait()
    return time.perf_counter() - begin, cache, logits, clock.peak()


def kept_bytes(cache):
    """Of the retrieval states that a cache holds."""
    states = (state for layer in cache.layers for state in getattr(layer, "_states", []))
    return sum(state.bytes for state in states)


def table_bytes(model):
    """Of the adapters' tables of value bits, which a model has once for all texts."""
    return sum(adapter.table.nbytes for adapter in rosatune.hf.adapters(model).values())


@torch.no_grad()
def decoding(model, cache, logits, steps, clock):
    """Seconds of a step, and the tokens that were chosen."""
    chosen = [logits.argmax(-1)]

    def go():
        found = model(chosen[-1], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        chosen.append(found.argmax(-1))

    return clock.seconds(go, steps, 3), torch.cat(chosen, 1)


def decode(model, setting, cache, logits, steps, clock):
    """The columns of both ways to decode."""
    records = clock.cuda and setting not in ("global", "own")
    twin = copy.deepcopy(cache) if records else None
    seconds, expected = decoding(model, cache, logits, steps, clock)
    row = {"ms": 1e3 * seconds}
    if records:
        with rosatune.hf.recorded(model):
            seconds, found = decoding(model, twin, logits, steps, clock)
        row.update(recorded=1e3 * seconds, equal=float((found == expected).float().mean()))
    return row


def read(shape, args, report, clock, what):
    columns = [("shape", "shape", ""), ("setting", "setting", ""), ("tokens", "tokens", "d")]
    if "read" in what:
        columns += [("speed", "tokens/s", ".0f"), ("read_ratio", "of window", ".3f"), ("peak", "GPU peak, GB", ".2f"),
                    ("tables", "tables, GB", ".3f"), ("kept", "states, GB", ".3f")]
    if "decode" in what:
        columns += [("ms", "ms/step", ".2f"), ("step_ratio", "of window", ".3f"), ("recorded", "recorded", ".2f"),
                    ("recorded_ratio", "of window", ".3f"), ("equal", "equal", ".0%")]
    report.table(columns)
    windows = {}
    for setting in ("window", *(x for x in args.settings if x != "products"), "global"):
        lengths = [x for x in args.tokens if setting != "global" or x <= args.most_global]
        with measuring(report, f"read, {shape}, {setting}"):
            if lengths:
                read_setting(shape, setting, lengths, windows, args, report, clock, what)


def read_setting(shape, setting, lengths, windows, args, report, clock, what):
    """The rows of a setting; those of the window are kept in `windows`, by length."""
    model = make(shape, args, torch.bfloat16 if clock.cuda else torch.float32)
    attach(model, setting, args, False)
    weights = clock.clear()
    read_text(model, ids_of(1, 2 * args.chunk, 400), args.chunk, clock, args)  # warms up
    for tokens in lengths:
        ids = ids_of(1, tokens, model.config.vocab_size)
        seconds, cache, logits, peak = read_text(model, ids, args.chunk, clock, args)
        row = {"speed": tokens / seconds, "peak": peak - weights, "kept": kept_bytes(cache) / 1e9,
               "tables": table_bytes(model) / 1e9}
        if "decode" in what:
            row.update(decode(model, setting, cache, logits, args.decode_steps, clock))
        if setting == "window":
            windows[tokens] = row
        base = windows.get(tokens, {})
        for ratio, of in (("read_ratio", "speed"), ("step_ratio", "ms"), ("recorded_ratio", "recorded")):
            if of in row and of in base:
                row[ratio] = row[of] / base[of]
        report.add(shape=shape, setting=setting, tokens=tokens, **row)
        del cache, logits


# ------------------------------------------------------------------------------------------------------------ kernels


def kernels(shape, args, report, clock):
    from rosatune.torch import _read_kernels
    from triton.testing import do_bench_cudagraph

    hidden = SHAPES[shape][2][0]
    length, _, batch = args.sizes[0].partition("x")
    batch, length = int(batch or 1), int(length)
    rows, links = batch * length, args.chain
    ids = ids_of(batch, length, 49152)
    config = rosatune.RosaConfig(window=args.window, chain=links)
    rule = rosatune.finder.Rule.of(config, config.sources[0], hidden)
    places = _places.find_places(rule, ids.unsqueeze(1), None, ("found",))[0]
    steps = _places.TensorPlaces(*(x.to(args.device) for x in places[:2]))
    ids, tokens = ids.to(args.device), _distinct.find(ids.numpy()).to(args.device)
    distinct = _distinct.locate(ids, tokens)
    found = float((steps.tau >= 0).float().mean())
    u = torch.randn(batch, length, hidden, device=args.device, dtype=torch.bfloat16)
    gain, z = torch.rand(links, 10, device=args.device), torch.rand(batch, length, device=args.device)
    e0, e1 = torch.randn(2, links, hidden, device=args.device)
    weight, bias = torch.randn(hidden, device=args.device), torch.zeros(1, device=args.device)
    row = hidden * 2  # bytes of a row of activations

    def of_values(places, kept, kind):
        """Those whose values are [rows, kept]."""
        tau, long = places[:2]
        some = tau.shape[1], tau.shape[3]
        v = torch.randn(some[0], kept, hidden, device=args.device, dtype=torch.bfloat16)
        gy = torch.randn(*some, hidden, device=args.device, dtype=torch.bfloat16)
        values, slopes = _read_kernels.pack(v, True)
        strength = (gain, z.view(some), e0, e1, 0.3)
        back = (gy, None, values, slopes, tau, long, _read.sort_places(tau, kept), *strength)
        kept_rows, bits = some[0] * kept, found * links * hidden / 8
        return {
            f"pack{kind}": (lambda: _read_kernels.pack(v, True), kept_rows * (row + hidden / 4)),
            f"read{kind}": (lambda: _read_kernels.read(values, tau, long, *strength, torch.bfloat16),
                            rows * (row + bits)),
            f"levels and strength{kind}": (lambda: _read_kernels.read_backward(*back, [False, True, True, True]),
                                           rows * (row + bits)),
            f"values{kind}": (lambda: _read_kernels.read_backward(*back, [True, False, False, False]),
                              kept_rows * row + rows * found * links * row),
            f"sort, once for all layers{kind}": (lambda: _read.sort_places(tau, kept), None),
        }

    work = {
        **of_values(_distinct.rows_at(steps, distinct.token), tokens.shape[1], ""),
        **of_values(steps, length, ", by step"),
        "gate": (lambda: _read_kernels.gate(u, weight, bias), rows * row),
        "gate, backward": (lambda: _read_kernels.gate_backward(z, u, z, weight, False), rows * row),
        "distinct tokens, once for all layers": (
            lambda: _distinct.rows_at(steps, _distinct.locate(ids, tokens).token), None
        ),
    }
    big = torch.empty(1 << 30, dtype=torch.uint8, device=args.device)
    copy = 2 * big.numel() / clock.seconds(lambda: big.clone(), 10, 3)
    report.note(f"{shape}, {args.sizes[0]}, {links} links, {found:.0%} of the places found; a copy moves "
                f"{copy / 1e12:.2f} TB/s; values of {tokens.shape[1]} distinct tokens, and by step")
    report.table([("shape", "shape", ""), ("kernel", "kernel", ""), ("us", "microseconds", ".1f"), ("mb", "MB", ".1f"),
                  ("share", "of a copy", ".0%")])
    for name, (go, moved) in work.items():
        seconds = do_bench_cudagraph(go, rep=50, return_mode="median") / 1e3
        row = {} if moved is None else {"mb": moved / 1e6, "share": moved / seconds / copy}
        report.add(shape=shape, kernel=name, us=seconds * 1e6, **row)


def main(words=None):
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False)
    parser.add_argument("what", nargs="+", choices=["train", "read", "decode", "kernels"])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["smollm2-135m"])
    parser.add_argument("--sizes", nargs="+", default=["4096x4", "16384x1"], metavar="TxB", help="batches of training")
    parser.add_argument("--settings", nargs="+", default=["products", "rosa", "rosa/3"],
                        choices=["products", "rosa", "rosa/3", "own"], help="beside the window")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 131072], help="lengths of reading")
    parser.add_argument("--most-global", type=int, default=131072, help="the longest that global attention reads")
    parser.add_argument("--chunk", type=int, default=4096, help="tokens read at once")
    parser.add_argument("--retrieve-on", choices=["host", "device"], default="host", help="where q and k are looked up")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--chain", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="training steps timed together")
    parser.add_argument("--decode-steps", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    compiled = dict(action=common.argparse.BooleanOptionalAction, help="compile layers; on a GPU by default")
    parser.add_argument("--compile", default=None, **compiled)
    parser.add_argument("--graph", action="store_true", help="record training steps as CUDA graphs")
    parser.add_argument("--only", choices=["free", "frozen"], help="of the two kinds of training")
    args = parser.parse_args(words)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        common.die(f"--device {args.device}: no CUDA device")
    clock = Clock(args.device)
    if args.compile is None:
        args.compile = clock.cuda
    if "kernels" in args.what and not clock.cuda:
        common.die("kernels are measured on a CUDA device; leave `kernels` out")
    if args.graph and not clock.cuda:
        common.die("--graph: steps are recorded on a CUDA device; leave it out")
    if args.graph and "train" in args.what and "own" in args.settings and args.retrieve_on != "device":
        common.die("--graph: a recorded step of `own` cannot ask the host; give --retrieve-on device as well")
    torch._dynamo.config.recompile_limit = 64
    torch.set_float32_matmul_precision("high")
    rosatune.torch.retrieve_on(args.retrieve_on)
    where = torch.cuda.get_device_name() if clock.cuda else "the host"
    report = common.Report("gpu", args, f"rosatune {rosatune.__version__}, torch {torch.__version__}, {where}")
    for shape in args.shapes:
        if "kernels" in args.what:
            with measuring(report, f"kernels, {shape}"):
                kernels(shape, args, report, clock)
        if "train" in args.what:
            train(shape, args, report, clock)
        some = [what for what in args.what if what in ("read", "decode")]
        if some:
            read(shape, args, report, clock, some)
    report.end()
    return 1 if "failed" in report.result else 0


if __name__ == "__main__":
    sys.exit(main())
