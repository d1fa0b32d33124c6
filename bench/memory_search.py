#!/usr/bin/env python3
"""Which memory beside a window learns fastest: a search over adapters that retrieve by token ids, on a real model.

A Llama-like decoder is read from a GGUF file and its attention is cut to a window with a few sink tokens. An adapter
gives it back what lies further away: at each position the longest suffix of the text that occurred before, at least a
window ago, is looked up on the token ids (source `tokens`), and layers read bits of the states at the places found.
Everything is plain PyTorch, so that a variant is a few lines; only the look-up is C, compiled when the program starts.

    python bench/memory_search.py --model FILE.gguf --train novels=DIR --valid novels=DIR --runs runs.json

Directories hold .txt, .txt.xz or .py files, one document each. Several kinds of text may be given, each under a name of
its own; a run trains on the kinds that its `mix` names and is judged on all of `--valid`. `runs.json` is a list of
objects whose keys are the fields of the class Run below; what is left out has its default. The file of results is
written anew after each run, so that nothing is lost when the time (`--time-limit`) runs out.

What is measured: the mean loss (nats per token) over positions from 4 windows on, for *far* tokens and for the rest. A
token is far if it and the two before it occurred earlier in this order, the last time at least a window ago. Runs with
an adapter are judged with it, with it off, and with places drawn at random instead of looked up. On top of each stands
a *pointer*, which mixes the tokens found into the model's output and has only a small table to fit.

`--self-check` tests the look-up against brute force, the gradients of a read against automatic differentiation of a
smooth stand-in for the bits, and the patched model before training against the unpatched one.
"""

import argparse
import ctypes
import dataclasses
import json
import lzma
import math
import pathlib
import queue
import statistics
import struct
import subprocess
import tempfile
import threading
import time
import traceback

import numpy
import torch
import torch._dynamo
import torch.nn.functional as F

GAINS = 10       # entries of the gain table: match lengths 0 .. 9 and above
THETAS = 13      # entries of the pointer's table: match lengths 0 .. 12 and above
FAR_GRAM = 3     # a token is far together with the two before it


@dataclasses.dataclass
class Run:
    """One training run, or with steps = 0 the model as it is."""
    name: str
    steps: int = 0
    seed: int = 1
    attention: str = "window"                   # or "global"
    memory: str = "none"                        # "tokens"; "self" reads its own position, the control for style
    routes: tuple = ("tokens",)                 # "words": ids that forget case and a leading space
    chain: int = 1
    offsets: tuple = (0,)                       # (-1, 0, 1) reads the neighbours of each place too
    delay: int = -1                             # -1: the window
    layers: str = "all"                         # or "0-14", "15-29", "0-29:3" (every third)
    gain: bool = True
    gate: str = "token"                         # "none", "token", "place", "channel", "content"
    gate_heads: int = 9                         # of "content"
    units: float = 0.3                          # 0: no units
    v_start: str = "identity"                   # or "xavier"
    v_grad: str = "straight"                    # or "sigmoid"
    pointer: bool = False                       # a pointer learnt along with the rest
    pointer_gate: bool = True                   # its weights also hear the last hidden state
    train: str = "all"                          # or "adapter": the backbone is frozen
    batch: int = 4
    mix: dict = dataclasses.field(default_factory=lambda: {"novels": 1.0})
    rate_matrix: float = 1e-3
    rate_vector: float = 5e-3
    rate_backbone: float = 5e-5
    warmup: int = 20
    pointers: tuple = (4,)                      # chains of the pointers that are fitted afterwards
    fit_pieces: int = 16                        # training pieces on which they are
    note: str = ""

    def reads(self):
        return self.memory != "none"

    def looks_up(self):
        return self.memory == "tokens"


# ---------------------------------------------------------------------------------------------------------------------
# Look-up

LOOKUP = r"""
#include <stdint.h>

/* For each t: the newest of the longest earlier matches of the suffix x[..t], with delay 0 and with the delay given.
 * Matches are followed through the list of earlier places of each token: length[e] is the common suffix of x[..t] and
 * x[..e] if stamp[e] == t. Walking from new to old, length[e - 1] is still that of the step before at e. */
void longest_suffix(const int32_t *x, int32_t T, int32_t delay, int32_t *last, int32_t *previous, int32_t *stamp,
                    int32_t *length, int32_t *tau0, int32_t *len0, int32_t *tau, int32_t *len)
{
    for (int32_t t = 0; t < T; t++) {
        last[x[t]] = -1;
        stamp[t] = -1;
    }
    for (int32_t t = 0; t < T; t++) {
        tau0[t] = tau[t] = -1;
        len0[t] = len[t] = 0;
        previous[t] = last[x[t]];
        for (int32_t e = previous[t]; e >= 0; e = previous[e]) {
            int32_t l = 1 + (e > 0 && stamp[e - 1] == t - 1 ? length[e - 1] : 0);
            stamp[e] = t;
            length[e] = l;
            if (e + 1 < t && l > len0[t]) {
                len0[t] = l;
                tau0[t] = e + 1;
            }
            if (e + 1 < t - delay && l > len[t]) {
                len[t] = l;
                tau[t] = e + 1;
            }
        }
        last[x[t]] = t;
    }
}
"""


class Lookup:
    """longest_suffix on NumPy arrays, and the chain that follows from it."""

    def __init__(self, vocabulary, compiler="cc"):
        self.vocabulary = vocabulary
        self.folder = tempfile.TemporaryDirectory()
        library = pathlib.Path(self.folder.name) / "lookup.so"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)], input=LOOKUP,
                       text=True, check=True)
        self.function = ctypes.CDLL(str(library)).longest_suffix

    def __call__(self, ids, delay):
        """Destinations and match lengths without delay, and with it: four arrays."""
        ids = numpy.ascontiguousarray(ids, numpy.int32)
        arrays = [numpy.empty(n, numpy.int32) for n in [self.vocabulary] + 7 * [len(ids)]]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
        self.function(ctypes.c_void_p(ids.ctypes.data), len(ids), delay, *pointers)
        return arrays[4:]

    def chain(self, ids, delay, links):
        """Destinations and match lengths [T, links]: each place and the place that it had itself found."""
        tau0, len0, tau, length = self(ids, delay)
        places = numpy.full((len(ids), links), -1, numpy.int64)
        lengths = numpy.zeros((len(ids), links), numpy.int64)
        for i in range(links):
            places[:, i], lengths[:, i] = tau, length
            found = tau >= 1                      # a destination is at least 1, it follows a match
            before = numpy.where(found, tau - 1, 0)
            tau = numpy.where(found, tau0[before], -1)
            length = numpy.where(tau >= 0, numpy.minimum(length, len0[before]), 0)
        return places, lengths


def far_tokens(ids, window):
    """Whether the token and the two before it occurred earlier, the last time at least a window ago."""
    last, far = {}, numpy.zeros(len(ids), bool)
    for t in range(FAR_GRAM - 1, len(ids)):
        gram = tuple(ids[t - FAR_GRAM + 1:t + 1])
        far[t] = gram in last and t - last[gram] >= window
        last[gram] = t
    return far


# ---------------------------------------------------------------------------------------------------------------------
# Weights and tokenizer from a GGUF file

GGUF_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    """Metadata and tensors of a GGUF file; types F32, F16, Q8_0 and Q4_1."""

    def __init__(self, path):
        self.data = numpy.memmap(path, numpy.uint8, "r")
        self.at = 0
        magic, _, tensors, entries = self.unpack("IIQQ")
        if magic != 0x46554747:
            raise SystemExit(f"{path} is no GGUF file")
        self.meta = {}
        for _ in range(entries):
            key = self.text()
            self.meta[key] = self.value(*self.unpack("I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.text()
            shape = self.unpack(f"{self.unpack('I')[0]}Q")[::-1]
            self.tensors[name] = (shape, *self.unpack("IQ"))
        align = self.meta.get("general.alignment", 32)
        self.start = (self.at + align - 1) // align * align

    def unpack(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def text(self):
        length, = self.unpack("Q")
        self.at += length
        return bytes(self.data[self.at - length:self.at]).decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, count = self.unpack("IQ")
            return [self.value(kind) for _ in range(count)]
        return self.unpack(GGUF_SCALARS[kind])[0]

    def tensor(self, name):
        shape, kind, offset = self.tensors[name]
        count, data = math.prod(shape), self.data[self.start + offset:]
        if kind == 0:
            flat = data[:4 * count].view(numpy.float32)
        elif kind == 1:
            flat = data[:2 * count].view(numpy.float16)
        elif kind == 8:                           # Q8_0: a scale and 32 signed bytes
            blocks = data[:count // 32 * 34].reshape(-1, 34)
            flat = blocks[:, 2:].view(numpy.int8) * blocks[:, :2].copy().view(numpy.float16).astype(numpy.float32)
        elif kind == 3:                           # Q4_1: a scale, a minimum, 16 low and 16 high halves of bytes
            blocks = data[:count // 32 * 20].reshape(-1, 20)
            scale = blocks[:, :4].copy().view(numpy.float16).astype(numpy.float32)
            halves = numpy.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
            flat = halves * scale[:, :1] + scale[:, 1:]
        else:
            raise SystemExit(f"tensor {name}: type {kind} is not known here")
        return torch.from_numpy(flat.astype(numpy.float32).reshape(shape))

    def tokenizer(self):
        import tokenizers
        words = self.meta["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in self.meta["tokenizer.ggml.merges"]]
        model = tokenizers.models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges)
        tokenizer = tokenizers.Tokenizer(model)
        digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
        pieces = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, pieces])
        return tokenizer

    def canonical(self):
        """For each token id the least id that is the same but for case and a leading space."""
        first, same = {}, []
        for i, word in enumerate(self.meta["tokenizer.ggml.tokens"]):
            same.append(first.setdefault(word.removeprefix("\u0120").lower() or word, i))
        return numpy.array(same, numpy.int32)


@dataclasses.dataclass
class Shape:
    layers: int
    width: int
    heads: int
    kv_heads: int
    base: float
    epsilon: float

    @property
    def head(self):
        return self.width // self.heads


def load_model(gguf):
    """The decoder's weights by name. Projections that read the same input are stacked."""
    llama = {key.removeprefix("llama."): value for key, value in gguf.meta.items() if key.startswith("llama.")}
    shape = Shape(llama["block_count"], llama["embedding_length"], llama["attention.head_count"],
                  llama["attention.head_count_kv"], llama.get("rope.freq_base", 10000.0),
                  llama["attention.layer_norm_rms_epsilon"])

    def halves(name, heads):
        """GGUF stores rotary pairs side by side; here they are the two halves of a head."""
        w = gguf.tensor(name)
        return w.view(heads, shape.head // 2, 2, shape.width).transpose(1, 2).reshape(w.shape)

    weights = {"embedding": gguf.tensor("token_embd.weight"), "norm": gguf.tensor("output_norm.weight")}
    for i in range(shape.layers):
        name = f"blk.{i}."
        weights[f"{i}.norm1"] = gguf.tensor(name + "attn_norm.weight")
        weights[f"{i}.norm2"] = gguf.tensor(name + "ffn_norm.weight")
        weights[f"{i}.qkv"] = torch.cat([halves(name + "attn_q.weight", shape.heads),
                                         halves(name + "attn_k.weight", shape.kv_heads),
                                         gguf.tensor(name + "attn_v.weight")])
        weights[f"{i}.out"] = gguf.tensor(name + "attn_output.weight")
        weights[f"{i}.up"] = torch.cat([gguf.tensor(name + "ffn_gate.weight"), gguf.tensor(name + "ffn_up.weight")])
        weights[f"{i}.down"] = gguf.tensor(name + "ffn_down.weight")
    return shape, weights


# ---------------------------------------------------------------------------------------------------------------------
# Text

def read_documents(folder):
    for path in sorted(pathlib.Path(folder).iterdir()):
        if path.suffix == ".xz":
            yield path.name, lzma.open(path, "rt", encoding="utf-8").read()
        elif path.suffix in (".txt", ".py"):
            yield path.name, path.read_text(encoding="utf-8")


def load_texts(args, gguf):
    """{"train": {kind: {name: ids}}, "valid": ...}, from the directories or from the file of ids made before."""
    texts = {"train": {}, "valid": {}}
    if args.ids and pathlib.Path(args.ids).exists():
        for key, ids in numpy.load(args.ids).items():
            part, kind, name = key.split("/", 2)
            texts[part].setdefault(kind, {})[name] = ids
        return texts
    tokenizer = gguf.tokenizer()
    for part, folders in ("train", args.train), ("valid", args.valid):
        for folder in folders:
            kind, _, folder = folder.rpartition("=")
            names, documents = zip(*read_documents(folder))
            encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
            found = {name: numpy.array(text.ids, numpy.uint16) for name, text in zip(names, encoded)}
            texts[part].setdefault(kind or "novels", {}).update(found)
    if args.ids:
        numpy.savez(args.ids, **{f"{part}/{kind}/{name}": ids for part, kinds in texts.items()
                                 for kind, documents in kinds.items() for name, ids in documents.items()})
    return texts


def held_out(documents, context, pieces, most):
    """(name, ids) of the first pieces of each document, `most` in all, from evenly spaced documents."""
    cut = [(name, ids[i * context:(i + 1) * context].astype(numpy.int64))
           for name, ids in sorted(documents.items()) for i in range(min(pieces, len(ids) // context))]
    return [cut[i * len(cut) // most] for i in range(most)] if len(cut) > most else cut


def drawn_pieces(texts, mix, seed, length):
    """Training pieces without end: a kind by its share, a document by its length, a start at random."""
    random = numpy.random.default_rng(seed)
    kinds = sorted(mix)
    shares = numpy.array([mix[kind] for kind in kinds], float)
    documents = {kind: [ids for _, ids in sorted(texts[kind].items()) if len(ids) > length] for kind in kinds}
    lengths = {kind: numpy.array([len(ids) - length for ids in documents[kind]], float) for kind in kinds}
    while True:
        kind = kinds[random.choice(len(kinds), p=shares / shares.sum())]
        ids = documents[kind][random.choice(len(lengths[kind]), p=lengths[kind] / lengths[kind].sum())]
        start = random.integers(len(ids) - length)
        yield ids[start:start + length].astype(numpy.int64)


class Batch:
    """Token ids, what is to be predicted, and the places to read, for pieces of equal length, as flat arrays.

    index [N, P]         place of each read in the flattened batch; a read that finds nothing stays where it is
    gains [N, P, 10]     one-hot match length; all zero where nothing was found, so that nothing is read
    found [N, n]         tokens at the links of the chain, for the pointer
    thetas [N, n, 13]    one-hot match length of those; all zero where there is no link
    """

    def __init__(self, run, tools, pieces, targets, places="lookup", seed=0):
        ids = numpy.stack(pieces)
        B, T = ids.shape
        delay = tools.window if run.delay < 0 else run.delay
        taus, lengths = [], []
        for route in run.routes:
            streams = ids if route == "tokens" else tools.canonical[ids]
            found = [tools.lookup.chain(stream, delay, run.chain) for stream in streams]
            taus.append(numpy.stack([tau for tau, _ in found]))
            lengths.append(numpy.stack([length for _, length in found]))
        tau, length = numpy.concatenate(taus, 2), numpy.concatenate(lengths, 2)
        t = numpy.arange(T)[None, :, None]
        if places == "random":
            drawn = numpy.random.default_rng(seed).random(tau.shape)
            tau = numpy.where(tau >= 0, 1 + (drawn * numpy.maximum(t - delay - 1, 1)).astype(numpy.int64), -1)
        elif places == "off":
            tau, length = numpy.full_like(tau, -1), numpy.zeros_like(length)
        self.ids, self.targets = torch.from_numpy(ids), torch.from_numpy(numpy.stack(targets)).flatten()

        exists = tau >= 0
        at = numpy.where(exists, tau, t)
        base = T * numpy.arange(B)[:, None, None]
        self.found = torch.from_numpy(numpy.take_along_axis(ids, at.reshape(B, -1), 1).reshape(B * T, -1))
        self.thetas = torch.from_numpy(numpy.where(exists, length.clip(max=THETAS - 1), -1).reshape(B * T, -1))
        if run.memory == "self":
            at, exists, length = numpy.broadcast_to(t, at.shape), numpy.ones_like(exists), numpy.ones_like(length)
        reads = [numpy.where(exists, at + offset, t) for offset in run.offsets]
        self.index = torch.from_numpy(numpy.concatenate([read + base for read in reads], 2).reshape(B * T, -1))
        gains = torch.from_numpy(numpy.where(exists, length.clip(max=GAINS - 1), -1).reshape(B * T, -1))
        self.gains = gains.repeat(1, len(run.offsets))

    def to(self, device):
        """There; match lengths become one-hot on the way."""
        for name, value in vars(self).items():
            setattr(self, name, value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value)
        self.thetas = one_hot(self.thetas, THETAS)
        self.gains = one_hot(self.gains, GAINS)
        return self


def one_hot(length, entries):
    return (length[..., None] == torch.arange(entries, device=length.device)).float()


def training_batches(run, tools):
    """Batches in the order of the seed, looked up by a thread of their own."""
    pieces = drawn_pieces(tools.texts["train"], run.mix, run.seed, tools.context + 1)
    ready = queue.Queue(8)

    def work():
        for _ in range(run.steps):
            drawn = [next(pieces) for _ in range(run.batch)]
            ready.put(Batch(run, tools, [piece[:-1] for piece in drawn], [piece[1:] for piece in drawn]))

    threading.Thread(target=work, daemon=True).start()
    for _ in range(run.steps):
        yield ready.get().to(tools.device)


# ---------------------------------------------------------------------------------------------------------------------
# Decoder

def rms_norm(x, weight, epsilon, dtype):
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight).to(dtype)


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def rotate(x, cos, sin):
    """x [B, heads, T, head]; the pairs are (i, i + head/2)."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


@torch.library.custom_op("memory_search::take", mutates_args=())
def take(v: torch.Tensor, index: torch.Tensor, straight: bool) -> torch.Tensor:
    """The bits of v [N, C], 1 where v > 0, at the places index [N, P] names: [N, P, C]."""
    return (v > 0).to(v.dtype)[index]


@take.register_fake
def _(v, index, straight):
    return v.new_empty(*index.shape, v.shape[1])


@torch.library.custom_op("memory_search::give_back", mutates_args=())
def give_back(v: torch.Tensor, index: torch.Tensor, credit: torch.Tensor, straight: bool) -> torch.Tensor:
    """The gradient of take: what was read from a place is summed there, times the slope that stands in for a step."""
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    total = torch.zeros(v.shape, dtype=wide, device=v.device)
    for p in range(index.shape[1]):
        total.index_add_(0, index[:, p], credit[:, p].to(wide))
    if straight:
        return (total * (v.abs() < 1)).to(v.dtype)
    return (total * torch.sigmoid(v.to(wide)) * torch.sigmoid(-v.to(wide))).to(v.dtype)


@give_back.register_fake
def _(v, index, credit, straight):
    return torch.empty_like(v)


def keep_for_give_back(ctx, inputs, output):
    v, index, ctx.straight = inputs
    ctx.save_for_backward(v, index)


def taken_backward(ctx, credit):
    return give_back(*ctx.saved_tensors, credit.contiguous(), ctx.straight), None, None


take.register_autograd(taken_backward, setup_context=keep_for_give_back)


def read(bits, weight, e0, e1):
    """y = sum over places p of weight_p (e0_p + (e1_p - e0_p) b_p). bits [N, P, C], weight [N, P, H] (H groups of
    channels share a weight), e0 and e1 [P, C]."""
    N, P, C = bits.shape
    H, y = weight.shape[2], 0
    for p in range(P):
        value = e0[p] + (e1[p] - e0[p]) * bits[:, p]
        y = y + (value.view(N, H, C // H) * weight[:, p, :, None]).view(N, C)
    return y.to(bits.dtype)


def inject(u, a, index, gains, gate, straight):
    """What an adapter adds to the residual stream. u [B, T, C] is the normed state, a the adapter's parameters."""
    u = u.flatten(0, 1)
    N, C = u.shape
    bits = take(linear(u, a["v"]), index, straight)
    weight = a["units"] * (gains * a["gain"] if "gain" in a else gains).sum(-1)[..., None]
    if gate == "place":
        weight = weight * 2 * torch.sigmoid(F.linear(u, a["gate"].to(u.dtype)).float() + a["bias"])[..., None]
    elif gate == "content":                       # the gate hears what it would let through, group by group
        H = a["bias"].shape[1]
        ask = linear(u, a["ask"]).float().view(N, H, C // H)
        scores = [(ask * (2 * bits[:, p].detach() - 1).view(N, H, C // H)).sum(-1) for p in range(index.shape[1])]
        scores = torch.stack(scores, 1) * (C // H) ** -0.5
        weight = weight * 2 * torch.sigmoid(scores + a["bias"])
    y = read(bits, weight, a["e0"], a["e1"])
    if gate == "token":
        y = y * (2 * torch.sigmoid((u.float() * a["gate"]).sum(-1, keepdim=True) + a["bias"])).to(y.dtype)
    elif gate == "channel":
        y = y * (2 * torch.sigmoid(linear(u, a["gate"]).float() + a["bias"])).to(y.dtype)
    return linear(y, a["out"])


def decoder_layer(h, w, adapter, batch, attend, rotary, shape, gate, straight):
    """h [B, T, C], float32 between layers. rotary: cosines, sines, and the dtype of matrix products."""
    B, T, C = h.shape
    dtype = rotary[2]
    u = rms_norm(h, w["norm1"], shape.epsilon, dtype)
    q, k, v = linear(u, w["qkv"]).view(B, T, -1, shape.head).transpose(1, 2).split(
        [shape.heads, shape.kv_heads, shape.kv_heads], 1)
    k, v = (x.repeat_interleave(shape.heads // shape.kv_heads, 1) for x in (rotate(k, *rotary[:2]), v))
    mixed = attend(rotate(q, *rotary[:2]), k, v)
    mixed = linear(mixed.transpose(1, 2).reshape(B, T, C), w["out"])
    h = h + mixed
    if adapter is not None:
        h = h + inject(u, adapter, batch[0], batch[1], gate, straight).view(B, T, C)
    u = rms_norm(h, w["norm2"], shape.epsilon, dtype)
    gated, up = linear(u, w["up"]).chunk(2, -1)
    return h + linear(F.silu(gated) * up, w["down"])


def token_losses(h, norm, embedding, targets, found, epsilon, dtype):
    """Loss of each target, and if asked for, log-probabilities of the tokens found and of the likeliest token."""
    u = rms_norm(h, norm, epsilon, dtype).flatten(0, 1)
    logits = linear(u, embedding).float()
    total = logits.logsumexp(-1)
    loss = total - logits.gather(1, targets[:, None]).squeeze(1)
    if found is None:
        return loss, u
    return loss, u, (logits.gather(1, found) - total[:, None]).detach(), (logits.amax(-1) - total).detach()


class Decoder:
    """The model with its adapters; all parameters are in `weights`, `adapters` and `pointer`."""

    def __init__(self, run, tools, units=None, theta=None):
        self.run, self.shape, self.tools = run, tools.shape, tools
        device = tools.device
        learns = run.train == "all"
        self.weights = {name: w.to(device, copy=True).requires_grad_(learns) for name, w in tools.weights.items()}
        self.adapters = self.new_adapters(units) if run.reads() else {}
        self.pointer = {}
        if run.pointer:
            self.pointer["theta"] = theta.clone()
            if run.pointer_gate:
                self.pointer["gate"] = torch.zeros(len(theta), self.shape.width, device=device)
        for parameter in self.pointer.values():
            parameter.requires_grad_(run.steps > 0)

    def new_adapters(self, units):
        run, C, device = self.run, self.shape.width, self.tools.device
        P = run.chain * len(run.routes) * len(run.offsets)
        random = torch.Generator().manual_seed(run.seed)
        adapters = {}
        for i in adapted_layers(run.layers, self.shape.layers):
            v = torch.eye(C)
            if run.v_start == "xavier":
                v = torch.empty(C, C).uniform_(-1, 1, generator=random) * math.sqrt(3 / C)
            a = {"v": v, "out": torch.eye(C), "e0": torch.zeros(P, C), "e1": torch.zeros(P, C)}
            if run.gain:
                a["gain"] = torch.ones(P, GAINS)
            if run.gate == "token":
                a |= {"gate": torch.zeros(C), "bias": torch.zeros(1)}
            elif run.gate == "place":
                a |= {"gate": torch.zeros(P, C), "bias": torch.zeros(P)}
            elif run.gate == "channel":
                a |= {"gate": torch.zeros(C, C), "bias": torch.zeros(C)}
            elif run.gate == "content":
                a |= {"ask": torch.zeros(C, C), "bias": torch.zeros(P, run.gate_heads)}
            a = {name: x.to(device).requires_grad_(run.steps > 0) for name, x in a.items()}
            a["units"] = torch.tensor(run.units * units[i] if run.units else 1.0, device=device)
            adapters[i] = a
        return adapters

    def hidden(self, batch, attention=None, rms=None):
        """The last layer's output. `rms`, a list, receives the median size of what enters each layer."""
        tools, run = self.tools, self.run
        attend = tools.attention(attention or run.attention, batch.ids.shape[1])
        h = F.embedding(batch.ids, self.weights["embedding"]).float()
        for i in range(self.shape.layers):
            if rms is not None:
                rms.append(h.square().mean(-1).sqrt().median().item())
            w = {name: self.weights[f"{i}.{name}"] for name in ("norm1", "norm2", "qkv", "out", "up", "down")}
            h = tools.layer(h, w, self.adapters.get(i), (batch.index, batch.gains), attend,
                            tools.rotary(batch.ids.shape[1]), self.shape, run.gate, run.v_grad == "straight")
        return h

    def losses(self, batch, attention=None, found=None):
        h = self.hidden(batch, attention)
        return self.tools.head(h, self.weights["norm"], self.weights["embedding"], batch.targets, found,
                               self.shape.epsilon, self.tools.dtype)

    def loss(self, batch):
        """Loss of each target, through the learnt pointer where there is one."""
        loss, u = self.losses(batch)
        return self.point(loss, u, batch) if self.pointer else loss

    def point(self, loss, u, batch):
        score = (batch.thetas * self.pointer["theta"]).sum(-1)
        if "gate" in self.pointer:
            score = score + linear(u, self.pointer["gate"]).float()
        return pointed(loss, score, batch)

    def parameter_groups(self):
        """(parameters, rate): the backbone, the adapter's matrices, its vectors."""
        run = self.run
        own = [x for a in self.adapters.values() for name, x in a.items() if name != "units"]
        own += list(self.pointer.values())
        matrices = [x for x in own if x.dim() == 2 and min(x.shape) >= 64]
        vectors = [x for x in own if not (x.dim() == 2 and min(x.shape) >= 64)]
        groups = [(matrices, run.rate_matrix), (vectors, run.rate_vector)]
        if run.train == "all":
            groups.append((list(self.weights.values()), run.rate_backbone))
        return [group for group in groups if group[0]]


def adapted_layers(text, layers):
    """"all", or ranges "a-b" or "a-b:step" with commas between."""
    if text == "all":
        return list(range(layers))
    chosen = set()
    for part in text.split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        chosen.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return sorted(i for i in chosen if i < layers)


class Tools:
    """What all runs share: device, look-up, text, weights at the start, attention masks, compiled functions."""

    def __init__(self, args):
        self.device = torch.device(args.device)
        self.window, self.sinks, self.context = args.window, args.sinks, args.context
        cuda = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if cuda else torch.float32
        gguf = Gguf(args.model)
        self.shape, self.weights = load_model(gguf)
        self.canonical = gguf.canonical()
        self.lookup = Lookup(len(self.canonical))
        self.texts = load_texts(args, gguf)
        self.valid = {kind: held_out(documents, self.context, args.pieces, args.most_pieces)
                      for kind, documents in self.texts["valid"].items()}
        self.layer, self.head = decoder_layer, token_losses
        if args.compile if args.compile is not None else cuda:
            self.layer = torch.compile(decoder_layer, dynamic=False)
            self.head = torch.compile(token_losses, dynamic=False)
        self.cached = {}

    def rotary(self, T):
        if ("rotary", T) not in self.cached:
            half = self.shape.head // 2
            speed = self.shape.base ** -(torch.arange(half, dtype=torch.float64) / half)
            angle = torch.arange(T, dtype=torch.float64)[:, None] * speed
            self.cached["rotary", T] = (angle.cos().float().to(self.device), angle.sin().float().to(self.device),
                                        self.dtype)
        return self.cached["rotary", T]

    def attention(self, kind, T):
        """A function of q, k, v: causal, the last `window` positions and the sinks, or all positions."""
        if (kind, T) not in self.cached:
            reach = torch.tensor(self.window if kind == "window" else T, device=self.device)
            sinks = self.sinks
            if self.device.type == "cuda":
                from torch.nn.attention.flex_attention import create_block_mask, flex_attention

                def visible(b, h, q, k):
                    return (k <= q) & ((q - k < reach) | (k < sinks))

                mask = create_block_mask(visible, None, None, T, T, device=self.device)

                def attend(q, k, v):
                    return flex_attention(q, k, v, block_mask=mask)
            else:
                q, k = torch.arange(T)[:, None], torch.arange(T)[None, :]
                mask = (k <= q) & ((q - k < reach) | (k < sinks))

                def attend(q, k, v):
                    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            self.cached[kind, T] = attend
        return self.cached[kind, T]


# ---------------------------------------------------------------------------------------------------------------------
# Pointer

def pointed(loss, score, batch):
    """-log of (p(x) + sum of a_i [x = found_i]) / (1 + sum of a_i), a_i = exp(score_i) where link i exists."""
    a = torch.exp(score.clamp(max=15)) * batch.thetas.sum(-1)
    right = (a * (batch.found == batch.targets[:, None])).sum(-1)
    return torch.log1p(a.sum(-1)) - torch.log(torch.exp(-loss) + right + 1e-30)


class Pointer:
    """A pointer fitted to a model that stays as it is: a table over rank and match length. A *confident* one also
    hears the log-probabilities that the model gives to the token found and to the likeliest token."""

    def __init__(self, links, confident, device):
        self.theta = torch.full((links, THETAS), -2.0, device=device, requires_grad=True)
        self.slope = torch.zeros(links, 2, device=device, requires_grad=True)
        self.links, self.confident = links, confident

    def __call__(self, sample):
        loss, found, best, batch = sample
        score = (batch.thetas[:, :self.links] * self.theta).sum(-1)
        if self.confident:
            score = score + found[:, :self.links] * self.slope[:, 0] + best[:, None] * self.slope[:, 1]
        return pointed(loss, score, batch.first(self.links))

    def fit(self, samples, steps=200, rate=0.1):
        links = [sample[3] for sample in samples]
        loss, found, best = (torch.cat([sample[i] for sample in samples]) for i in range(3))
        sample = loss, found, best, Links.joined(links)
        optimiser = torch.optim.Adam([self.theta, self.slope], lr=rate, betas=(0.9, 0.98))
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            optimiser.zero_grad()
            self(sample).mean().backward()
            optimiser.step()
        return self


class Links:
    """The part of a batch that a pointer looks at."""

    def __init__(self, batch, links=None):
        self.targets, self.found, self.thetas = batch.targets, batch.found[:, :links], batch.thetas[:, :links]

    def first(self, links):
        return Links(self, links)

    @staticmethod
    def joined(parts):
        whole = Links(parts[0])
        for name in vars(whole):
            setattr(whole, name, torch.cat([getattr(part, name) for part in parts]))
        return whole


# ---------------------------------------------------------------------------------------------------------------------
# Training and evaluation

def schedule(step, run):
    """Warm-up, then a cosine to a tenth."""
    if step < run.warmup:
        return (step + 1) / run.warmup
    part = (step - run.warmup) / max(1, run.steps - run.warmup)
    return 0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2


def train(decoder, tools, log):
    run = decoder.run
    groups = decoder.parameter_groups()
    optimiser = torch.optim.AdamW([{"params": parameters, "lr": rate, "rate": rate} for parameters, rate in groups],
                                  betas=(0.9, 0.95), weight_decay=0, fused=tools.device.type == "cuda")
    parameters = [x for group, _ in groups for x in group]
    losses, begun, warm = [], time.time(), None
    for step, batch in enumerate(training_batches(run, tools)):
        for group in optimiser.param_groups:
            group["lr"] = group["rate"] * schedule(step, run)
        loss = decoder.loss(batch).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if step % 50 == 49 and not math.isfinite(loss.item()):
            raise FloatingPointError(f"the loss is {loss.item()} at step {step + 1}")
        if step == 9:                             # compiled by now
            loss.item()
            warm = time.time()
        if (step + 1) % 250 == 0 or step + 1 == run.steps:
            mean = torch.stack(losses[-250:]).mean().item()
            log(f"{run.name}: step {step + 1}, loss {mean:.4f}, {time.time() - begun:.0f} s")
    seconds = time.time() - (warm or begun)
    result = {"seconds": time.time() - begun,
              "tokens_per_second": run.batch * tools.context * max(run.steps - 10, 1) / seconds}
    every = max(1, run.steps // 20)
    result["training_loss"] = [torch.stack(losses[i:i + every]).mean().item() for i in range(0, len(losses), every)]
    return result


def grouped(pieces, size):
    for i in range(0, len(pieces), size):
        yield pieces[i:i + size]


def shifted(piece):
    return numpy.append(piece[1:], 0)             # the last target of a piece is not judged


class Tally:
    """Sums of the loss over far tokens and over the rest, piece by piece."""

    def __init__(self):
        self.rows = []

    def add(self, name, losses, far, first):
        """losses[i] is the loss of token i + 1."""
        judged, far = losses[first - 1:-1].double().cpu().numpy(), far[first:]
        self.rows.append((name, int(far.sum()), judged[far].sum(), int((~far).sum()), judged[~far].sum()))

    def summary(self):
        far_n, far, rest_n, rest = (numpy.array([row[i] for row in self.rows], float) for i in range(1, 5))
        result = {"far": far.sum() / far_n.sum(), "rest": rest.sum() / rest_n.sum(),
                  "all": (far + rest).sum() / (far_n + rest_n).sum()}
        result["ppl"] = math.exp(result["all"])
        result["pieces"] = [[name, a, round(b, 3), c, round(d, 3)] for name, a, b, c, d in self.rows]
        return result


def evaluate(decoder, tools, conditions):
    """{kind: {condition: summary}} for all texts held out."""
    run, results = decoder.run, {}
    links = dataclasses.replace(run, chain=max(run.pointers), routes=("tokens",), offsets=(0,))
    first = 4 * tools.window
    for kind, pieces in tools.valid.items():
        tallies = {}
        fitted = fit_pointers(decoder, tools, conditions, kind, links)
        for number, group in enumerate(grouped(pieces, run.batch)):
            ids = [piece for _, piece in group]
            targets = [shifted(piece) for piece in ids]
            while len(ids) < run.batch:           # keep the shape that was compiled
                ids.append(ids[0])
                targets.append(targets[0])
            linked = Batch(links, tools, ids, targets).to(tools.device)
            far = [far_tokens(piece, tools.window) for _, piece in group]
            for condition in conditions:
                sample, learnt = sampled(decoder, tools, condition, ids, targets, linked, number)
                scored = {condition: sample[0]}
                if learnt is not None:
                    scored[condition] = learnt
                    scored[condition + ", pointer off"] = sample[0]
                for name, pointer in fitted.get(condition, {}).items():
                    scored[name] = pointer(sample).detach()
                for name, losses in scored.items():
                    losses = losses.view(run.batch, -1)
                    for (book, _), row, is_far in zip(group, losses, far):
                        tallies.setdefault(name, Tally()).add(book, row, is_far, first)
        results[kind] = {name: tally.summary() for name, tally in tallies.items()}
        count = sum(row[1] for row in next(iter(tallies.values())).rows)
        results[kind]["far_share"] = count / sum(row[1] + row[3] for row in next(iter(tallies.values())).rows)
        for condition, pointers in fitted.items():
            for name, pointer in pointers.items():
                results[kind][name]["theta"] = pointer.theta.tolist()
                if pointer.confident:
                    results[kind][name]["slope"] = pointer.slope.tolist()
    return results


def sampled(decoder, tools, condition, ids, targets, linked, seed):
    """((loss, log-probabilities, links) without the learnt pointer, loss with it or None) under one condition."""
    attention = condition if condition in ("window", "global") else decoder.run.attention
    places = condition if condition in ("random", "off") else "lookup"
    # Gradients stay switched on so that the graph compiled for training serves here too; nothing is kept.
    batch = Batch(decoder.run, tools, ids, targets, places, seed).to(tools.device)
    loss, u, logp, best = (x.detach() for x in decoder.losses(batch, attention, found=linked.found))
    learnt = decoder.point(loss, u, batch).detach() if decoder.pointer else None
    return (loss, logp, best, Links(linked)), learnt


def fit_pointers(decoder, tools, conditions, kind, links):
    """{condition: {name: Pointer}}, fitted on training text of the same kind."""
    run = decoder.run
    if kind not in tools.texts["train"] or not run.fit_pieces:
        return {}
    pieces = drawn_pieces(tools.texts["train"], {kind: 1.0}, run.seed + 1000, tools.context)
    samples = {condition: [] for condition in conditions if condition in ("window", "adapter")}
    for number in range(max(1, run.fit_pieces // run.batch)):
        ids = [next(pieces) for _ in range(run.batch)]
        targets = [shifted(piece) for piece in ids]
        linked = Batch(links, tools, ids, targets).to(tools.device)
        for condition in samples:
            samples[condition].append(sampled(decoder, tools, condition, ids, targets, linked, number)[0])
    fitted = {}
    for condition, sample in samples.items():
        fitted[condition] = {}
        for n in run.pointers:
            fitted[condition][f"{condition}+pointer {n}"] = Pointer(n, False, tools.device).fit(sample)
        n = max(run.pointers)
        fitted[condition][f"{condition}+confident pointer {n}"] = Pointer(n, True, tools.device).fit(sample)
    return fitted


def measured_units(tools, run):
    """Median size of the residual stream entering each layer, on the first pieces of the training text."""
    key = "units", json.dumps(run.mix)
    if key not in tools.cached:
        plain = Run("plain", batch=run.batch, mix=run.mix)
        pieces = drawn_pieces(tools.texts["train"], run.mix, 0, tools.context)
        ids = [next(pieces) for _ in range(run.batch)]
        tools.cached[key] = []
        Decoder(plain, tools).hidden(Batch(plain, tools, ids, ids).to(tools.device), rms=tools.cached[key])
    return tools.cached[key]


def fitted_start(tools, run):
    """The learnt pointer starts as one fitted to the untrained model."""
    links = dataclasses.replace(run, memory="none", pointer=False, train="all", steps=0)
    plain, samples = Decoder(links, tools), []
    pieces = drawn_pieces(tools.texts["train"], run.mix, 0, tools.context)
    for number in range(max(1, run.fit_pieces // run.batch)):
        ids = [next(pieces) for _ in range(run.batch)]
        targets = [shifted(piece) for piece in ids]
        batch = Batch(links, tools, ids, targets).to(tools.device)
        samples.append(sampled(plain, tools, run.attention, ids, targets, batch, number)[0])
    return Pointer(run.chain * len(run.routes), False, tools.device).fit(samples).theta.detach()


def do_run(run, tools, log):
    """Train and judge; returns what goes into the file of results."""
    torch.manual_seed(run.seed)
    begun = time.time()
    units = measured_units(tools, run) if run.reads() else None
    decoder = Decoder(run, tools, units, fitted_start(tools, run) if run.pointer else None)
    result = {"run": dataclasses.asdict(run)}
    if units:
        result["residual_rms"] = units
    if run.steps:
        result |= train(decoder, tools, log)
    if run.steps == 0 and not run.reads():
        conditions = ["window", "global"]
    elif run.looks_up():
        conditions = ["adapter", "off", "random"]
    else:
        conditions = ["adapter"] if run.reads() else [run.attention]
    result["conditions"] = evaluate(decoder, tools, conditions)
    result["total_seconds"] = time.time() - begun
    return result


def describe(result):
    lines = []
    for kind, conditions in result["conditions"].items():
        for name, summary in conditions.items():
            if name != "far_share":
                lines.append(f"  {kind:8} {name:30} far {summary['far']:.4f}  rest {summary['rest']:.4f}  "
                             f"all {summary['all']:.4f}  ppl {summary['ppl']:.3f}")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------------
# Checks

def check_lookup(lookup, trials=200):
    random = numpy.random.default_rng(0)
    for _ in range(trials):
        T, delay = int(random.integers(1, 60)), int(random.integers(0, 12))
        x = random.integers(0, random.integers(1, 6) + 1, T)
        tau0, len0, tau, length = lookup(x, delay)
        for t in range(T):
            for D, place, found in (0, tau0[t], len0[t]), (delay, tau[t], length[t]):
                best = (0, -1)
                for e in range(T):
                    if e + 1 < t - D:
                        l = 0
                        while l <= e and x[e - l] == x[t - l]:
                            l += 1
                        best = max(best, (l, e))
                want = (best[0], best[1] + 1) if best[0] else (0, -1)
                assert (found, place) == want, (x, t, D, want, (found, place))
        places, lengths = lookup.chain(x, delay, 4)
        for t in range(T):
            d, l = tau[t], length[t]
            for i in range(4):
                assert (places[t, i], lengths[t, i]) == (d, l)
                d, l = (tau0[d - 1], min(l, len0[d - 1])) if d >= 1 else (-1, 0)
    print("look-up: equal to brute force")


def check_gradients():
    """take and read, with bits replaced by their straight-through stand-in, against automatic differentiation."""
    torch.manual_seed(0)
    N, P, C, H = 20, 3, 8, 2
    index = torch.randint(0, N, (N, P))
    leaves = [torch.randn(N, C), torch.randn(N, P, H), torch.randn(P, C), torch.randn(P, C)]
    v, weight, e0, e1 = (x.double().requires_grad_() for x in leaves)
    direction = torch.randn(N, C).double()
    for straight in True, False:
        soft = v.clamp(-1, 1) if straight else torch.sigmoid(v)
        bits = (v > 0).double() + soft - soft.detach()
        values = e0 + (e1 - e0) * bits[index]
        want = torch.autograd.grad(((values.view(N, P, H, -1) * weight[..., None]).sum(1).reshape(N, C)
                                    * direction).sum(), [v, weight, e0, e1])
        got = torch.autograd.grad((read(take(v, index, straight), weight, e0, e1) * direction).sum(),
                                  [v, weight, e0, e1])
        for a, b in zip(want, got):
            assert torch.allclose(a, b, atol=1e-5), (a - b).abs().max()
    print("read: gradients equal those of the stand-in")


def check_start(tools):
    ids = [next(drawn_pieces(tools.texts["train"], {next(iter(tools.texts["train"])): 1.0}, 5, tools.context))]
    targets = [shifted(piece) for piece in ids]
    plain = Run("plain")
    with torch.no_grad():
        want = Decoder(plain, tools).losses(Batch(plain, tools, ids, targets).to(tools.device))[0]
        for gate in "token", "place", "channel", "content":
            run = Run("patched", memory="tokens", chain=4, offsets=(-1, 0, 1), routes=("tokens", "words"), gate=gate)
            batch = Batch(run, tools, ids, targets).to(tools.device)
            got = Decoder(run, tools, [1.0] * tools.shape.layers).losses(batch)[0]
            assert torch.equal(want, got)
        reached = Decoder(plain, tools).losses(Batch(plain, tools, ids, targets).to(tools.device), "global")[0]
    print(f"start: patched equals unpatched; mean loss window {want[:-1].mean():.4f}, global {reached[:-1].mean():.4f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file of the Llama architecture with tied embeddings")
    parser.add_argument("--train", action="append", default=[], metavar="[KIND=]DIR", help="text to train on")
    parser.add_argument("--valid", action="append", default=[], metavar="[KIND=]DIR", help="text held out")
    parser.add_argument("--ids", metavar="FILE.npz", help="keep the token ids here, and read them when it exists")
    parser.add_argument("--runs", help="a JSON file: a list of runs")
    parser.add_argument("--out", default="memory_search.json", help="file of results, added to if it exists")
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds; runs that do not fit are skipped")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--context", type=int, default=4096, help="tokens of a piece")
    parser.add_argument("--pieces", type=int, default=8, help="pieces of each document held out")
    parser.add_argument("--most-pieces", type=int, default=32, help="pieces of each kind held out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on a GPU")
    parser.add_argument("--self-check", action="store_true", help="check, and run nothing")
    return parser.parse_args()


def main():
    args, begun = parse(), time.time()
    torch._dynamo.config.recompile_limit = 64     # one compiled layer for each kind of run
    torch.set_float32_matmul_precision("high")
    tools = Tools(args)

    def log(text):
        print(f"[{time.time() - begun:6.1f}] {text}", flush=True)

    sizes = {f"{part} {kind}": sum(map(len, documents.values()))
             for part, kinds in tools.texts.items() for kind, documents in kinds.items()}
    log(f"tokens: {sizes}; held out: { {kind: len(pieces) for kind, pieces in tools.valid.items()} }")
    if args.self_check:
        check_lookup(tools.lookup)
        check_gradients()
        check_start(tools)
        return
    out = pathlib.Path(args.out)
    results = json.loads(out.read_text()) if out.exists() else []
    pace, overhead = [], []
    for fields in json.loads(pathlib.Path(args.runs).read_text()):
        run = Run(**fields)
        left = args.time_limit - (time.time() - begun)
        need = run.steps * run.batch * tools.context / min(pace, default=2e5) + statistics.median(overhead or [40.0])
        if need > left:
            log(f"{run.name}: skipped, needs about {need:.0f} s of {left:.0f}")
            continue
        try:
            result = do_run(run, tools, log)
            if run.steps:
                pace.append(result["tokens_per_second"])
                overhead.append(result["total_seconds"] - run.steps * run.batch * tools.context / pace[-1])
                log(f"{run.name}: {pace[-1]:.0f} tokens/s, {result['total_seconds']:.0f} s in all")
            log(run.name + "\n" + describe(result))
        except Exception:
            result = {"run": fields, "error": traceback.format_exc()}
            log(result["error"])
        results.append(result)
        temporary = out.with_suffix(".part")
        temporary.write_text(json.dumps(results))
        temporary.replace(out)


if __name__ == "__main__":
    main()
