#!/usr/bin/env python3
r"""Trains adapters on a real model, run after run, and measures what each remembers beyond its window.

    bench/memory.py --model FILE.gguf --runs bench/memory_runs.json \
        --train novels=DIR --fit novels=FILE --valid novels=DIR

MODEL is a GGUF file (needs the package gguf) or a folder of Hugging Face. Texts are token ids: .npy files (one document
each) or shards of `rosatune data pack` (.tokens), files or folders of them, each under the name of its kind; a run
trains on the kinds that its `mix` names and is judged on all kinds of --valid. --fit is text to fit pointers on, which
no run trains on.

RUNS is a list of objects whose keys are the fields of the class Run below; what is left out has its default. They are
done in order. The file of results is written anew after every run, runs that are in it already, on the same texts, are
passed over, and those that would not end within --minutes are skipped, so the program can be stopped and started at
will. A run whose loss is not a number ends there and is recorded as failed.

Measured are the mean losses (nats per token) over positions from 4 windows on, for far tokens (see `rosatune recall`)
and for all others, under these conditions:

    window, global   a run without an adapter, as it was trained
    adapter          what was trained; `own place` for runs that read at their own position, which is the control for
                     adapters with a frozen backbone
    off, random      the same adapter, reading nothing, and at random places as old as the delay wants
    ... + pointer    with a pointer fitted to the model on top

With --prompts, files of `bench/answers.py prepare`, the trained model is then asked under the conditions that the run's
`asks` names, and its answers go to a file for each run and file of prompts in the folder --answers; `bench/answers.py
finish` scores them. A run that was not asked all of them is done again, and only what is missing is asked.

A run names its two controls, a window and global attention that were trained alike. What it gives back is
(window - run) / (window - global), with a standard error from leaving out one book at a time.
"""

import argparse
import contextlib
import copy
import dataclasses
import itertools
import json
import lzma
import math
import pathlib
import statistics
import sys
import time
import traceback
import warnings
import zlib

import answers
import common

try:
    import graph
    import numpy as np
    import token_ids
    import torch
    import torch._dynamo
    from torch import nn
    from torch.nn import functional
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging
except ImportError as error:
    sys.exit(f"memory.py: {error.name} is missing: pip install torch transformers gguf")

try:
    import rosatune.hf
    from rosatune import RosaConfig, finder
    from rosatune.far import RecallResult, Sums, far_distances
    from rosatune.hf import fit
    from rosatune.hf.seen import step_of
    from rosatune.hf.patch import by_distinct
    from rosatune.pointer import LENGTHS, Pointer
    from rosatune.seen import COUNTS, RANKS
    from rosatune.torch import _distinct, _places, _seen
    from rosatune.torch._pointer import Found
except ImportError as error:
    common.die(f"{error}; install the package with `pip install .`")

PLACES, TOKENS = "rosa_places", "rosa_tokens"
SLICE = 512  # positions whose logits are in memory at once


@dataclasses.dataclass
class Run:
    """One training run; with steps = 0 the model as it is."""

    name: str
    adapter: dict = None  # options of RosaConfig; None: no adapter
    attention: str = "window"  # or "global"
    reads: str = "found"  # "self": at its own position
    offsets: tuple = (0,)  # (0, -1, 1) reads the neighbours of each place too, as further links
    alike: int = 0  # so many further links by ids of tokens that are equal without case and leading space
    channel_gate: bool = False  # a gate for each channel beside that of the step, 2 sigmoid(a_c u_c + b_c)
    train: str = "all"  # "adapter": the backbone is frozen; "lora": a low-rank change of it learns
    rank: int = 16  # of "lora"
    steps: int = 500
    batch: int = 4
    length: int = 4096
    window: int = 256
    sinks: int = 4
    rate_matrix: float = 1e-3
    rate_vector: float = 5e-3
    rate_backbone: float = 5e-5  # also of "lora"
    rate_qk: "float | None" = None  # of the q and k of layers that look up by them; None: rate_matrix
    warmup: int = 20
    seed: int = 1
    mix: dict = dataclasses.field(default_factory=dict)  # kind: share; empty: the first kind
    pointer: "int | None" = 0  # links of the chain of the pointer that is fitted; 0: by contexts; null: no pointer
    controls: tuple = ()  # names of the runs: window, global
    asks: tuple = ()  # conditions of bench/answers.py under which the trained model is asked the --prompts
    minutes: "float | None" = None  # that it is expected to take alone on an H200, without the asking
    minutes_asked: float = 0.0  # and with it
    note: str = ""

    def __post_init__(self):
        for name, words in (("attention", ("window", "global")), ("reads", ("found", "self")),
                            ("train", ("all", "adapter", "lora"))):
            if getattr(self, name) not in words:
                raise ValueError(f"run {self.name!r}: {name} is {getattr(self, name)!r}; give {' or '.join(words)}")
        if self.train != "all" and self.adapter is None and self.train != "lora":
            raise ValueError(f"run {self.name!r}: train is 'adapter', and there is none")
        if self.asks and (self.changed or self.reads == "self"):
            raise ValueError(f"run {self.name!r}: a model that generates reads what is found, and no neighbours of it")

    @property
    def changed(self):
        """Whether the adapter is another than the package has."""
        return len(self.offsets) > 1 or self.alike > 0 or self.channel_gate

    def config(self):
        wide = self.window if self.attention == "window" else 0
        options = dict(window=wide, sinks=self.sinks if wide else 0)
        if self.adapter is None:
            return RosaConfig(layers=(), **options)
        options.update(self.adapter)
        options["chain"] = options.get("chain", RosaConfig().chain) * len(self.offsets) + self.alike
        if isinstance(options.get("layers"), str) and options["layers"] != "all":
            first, last, step = map(int, options["layers"].replace("-", ":").split(":"))  # "0-29:3"
            options["layers"] = tuple(range(first, last + 1, step))
        return RosaConfig(**options)


# --------------------------------------------------------------------------------------------------------------- model


class Lora(nn.Module):
    """A linear layer that stays as it is, with a change of low rank."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        where = dict(device=base.weight.device, dtype=base.weight.dtype)
        self.down = nn.Parameter(torch.randn(rank, base.in_features, **where) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, **where))

    def forward(self, x):
        return self.base(x) + functional.linear(functional.linear(x, self.down), self.up)

    def whole(self):
        """The weight of one linear layer that does the same."""
        return (self.base.weight + self.up @ self.down).detach()


def merge(model):
    """Plain layers in place of those with a change of low rank, which take two more products each."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, Lora):
                module.base.weight.data = module.whole()
                setattr(parent, name, module.base)


class ChannelGated(rosatune.nn.RosaAdapter):
    """An adapter that also has a gate for each channel; at the start it does nothing."""

    def _read_all(self, launched, v, z, mine):
        y = super()._read_all(launched, v, z, mine)
        return y * (2 * torch.sigmoid(self.channel_gate[0] * launched.u + self.channel_gate[1])).to(y.dtype)

    @classmethod
    def become(cls, adapter):
        adapter.__class__ = cls
        adapter.channel_gate = nn.Parameter(torch.zeros(2, adapter.channels, device=adapter.v_proj.weight.device))


def folded_ids(tokenizer, size):
    """For each id the least id of the tokens that are equal without case and leading space."""
    first, found = {}, np.arange(size)
    for token, i in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1]):
        if i < size:
            found[i] = first.setdefault(token.replace("\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}", "").lower(), i)
    return found


class Looker:
    """The places that a run reads, as the model takes them, and the distinct tokens of a batch where values are made of
    them; nothing where the model has to look up itself."""

    def __init__(self, run, model, folded=None):
        found = rosatune.hf.attachment(model)
        self.run, self.config, self.folded = run, found.config, folded
        self.rules = {} if run.adapter is None else found.lookup.rules  # of sources looked up before the layers
        self.rule = self.rules.get("tokens")
        # Beside other sources only what adapters really read is known ahead; controls are the adapters' own.
        self.alone = self.rule is not None and all(source.kind == "tokens" for source in self.config.sources)
        if not self.alone and run.adapter is not None and (run.reads == "self" or len(run.offsets) > 1 or run.alike):
            raise ValueError("reads, offsets and alike are for the source tokens alone")

    def recordable(self, retrieve_on):
        """Whether a training step waits for nothing on the host, so that it can be recorded as a CUDA graph."""
        learnt = self.run.adapter is not None and any(source.learnt for source in self.config.sources)
        there = retrieve_on == "device" and self.config.qk_grad != "flips" and not self.config.explore
        return set(self.rules) <= {"tokens"} and (not learnt or there)

    def __call__(self, ids, condition):
        rows, steps = ids.shape
        links = (self.rule.links - self.run.alike) // len(self.run.offsets)
        if condition == "off":
            shape = (self.rule.links, rows, 1, steps)
            return _places.encode(finder.Places(np.full(shape, -1, np.int32), np.zeros(shape, np.uint8)))
        if self.run.reads == "self":
            shape = (self.rule.links, rows, 1, steps)
            tau = np.broadcast_to(np.arange(steps, dtype=np.int32), shape)
            return _places.encode(finder.Places(tau, np.ones(shape, np.uint8)))
        kind = "random" if condition == "random" else "found"

        def looked_up(symbols, links):
            return finder.find(self.rule._replace(links=links), symbols, symbols, reads=(kind,), threads=rows)[kind]

        symbols = ids.numpy()[:, None]
        tau, length = looked_up(symbols, links)
        last = np.arange(steps)
        taus = [np.where(tau >= 0, np.clip(tau + offset, 0, last), -1) for offset in self.run.offsets]
        many = [np.concatenate(taus).astype(np.int32), np.concatenate([length] * len(taus))]
        if self.run.alike:
            more = looked_up(self.folded[symbols], self.run.alike)
            many = [np.concatenate(both) for both in zip(many, more)]
        many = finder.Places(*many)
        return _places.encode(many)

    def add(self, batch, condition="adapter"):
        if self.run.adapter is None or not (self.alone or condition == "adapter"):
            return batch
        ids, found = batch["input_ids"], {}
        if self.rule is not None:
            found[PLACES] = self(ids, condition)
        tokens = _distinct.find(ids.numpy()) if by_distinct(self.config) else None
        if tokens is not None:
            found[TOKENS] = tokens
        return {**batch, **found}


def fingerprints(texts):
    """{kind: documents, tokens and their checksum}, by which texts are known again."""
    found = {}
    for kind, some in texts.items():
        check = 0
        for _, ids in sorted(some.items()):
            check = zlib.crc32(np.ascontiguousarray(ids, "<u4"), check)
        found[kind] = [len(some), sum(map(len, some.values())), f"{check:08x}"]
    return found


class Bench:
    """What all runs share: the model as it was, texts, prompts, device."""

    def __init__(self, args):
        self.args, self.device = args, torch.device(args.device)
        self.prompts = {}
        for path in map(pathlib.Path, args.prompts):
            try:
                loaded = answers.load(path, args.ask_task, args.ask_length, args.ask_limit)
            except (OSError, ValueError, lzma.LZMAError) as error:
                common.die(f"--prompts {path}: {error}")
            if args.ask_tokens:
                few = [example._replace(tokens=min(example.tokens, args.ask_tokens)) for example in loaded.examples]
                loaded = loaded._replace(examples=few)
            self.prompts[path.stem] = loaded
        self.cuda = self.device.type == "cuda"
        logging.disable_progress_bar()
        self.start = AutoModelForCausalLM.from_pretrained(**common.pretrained(args.model), dtype=torch.float32)
        self.train, self.fit, self.valid = (token_ids.documents(x) for x in (args.train, args.fit, args.valid))
        self.known = {name: fingerprints(getattr(self, name)) for name in ("train", "fit", "valid")}
        self.folded = None
        self.compiled = args.compile if args.compile is not None else self.cuda
        self.token_loss = torch.compile(token_loss, dynamic=False) if self.compiled else token_loss

    def tokenizer(self):
        return AutoTokenizer.from_pretrained(**common.pretrained(self.args.model))

    def looker(self, run, model):
        if run.alike and self.folded is None:
            self.folded = folded_ids(self.tokenizer(), self.start.config.vocab_size)
        return Looker(run, model, self.folded)

    def texts(self, run):
        """Fingerprints of what a run trains on, and of what all are fitted and judged on."""
        kinds = run.mix or list(self.train)[:1]
        return {**self.known, "train": {kind: self.known["train"][kind] for kind in kinds}}

    def model(self, run):
        """A fresh model for a run, and what its optimizer gets."""
        torch.manual_seed(run.seed)
        model = copy.deepcopy(self.start).to(self.device)
        flex = self.cuda and run.attention == "window"
        model.set_attn_implementation("flex_attention" if flex else "sdpa")
        kind = next(iter(run.mix or self.train))
        sample = np.asarray(next(iter(self.train[kind].values()))[:4096]).astype(np.int64)
        stage = "adapter" if run.train == "adapter" or (run.train == "lora" and run.adapter) else "all"
        rosatune.hf.attach(model, run.config(), stage=stage, sample=sample)
        model.train()
        if run.train == "lora":
            if run.adapter is None:
                model.requires_grad_(False)
            for layer in model.model.layers:
                for part in (layer.self_attn, layer.mlp):
                    for name, module in list(part.named_children()):
                        if isinstance(module, nn.Linear):
                            setattr(part, name, Lora(module, run.rank))
        if run.channel_gate:
            for adapter in rosatune.hf.adapters(model).values():
                ChannelGated.become(adapter)
        if self.compiled:
            rosatune.hf.compile_layers(model)
        return model

    def hidden(self, model, batch):
        found = {name: batch[name] for name in (PLACES, TOKENS) if name in batch}
        return model.model(input_ids=batch["input_ids"], use_cache=False, **found).last_hidden_state

    def autocast(self):
        return torch.autocast("cuda", torch.bfloat16) if self.cuda else contextlib.nullcontext()


def token_loss(hidden, weight, targets, head=None, times=None, old=None):
    """The mean loss; head, times and old are those of a seen-token head."""
    logits = functional.linear(hidden, weight).float()
    if head is not None:
        logits = _seen.add_plain(logits, head.parts(hidden, weight), times, old)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def schedule(step, run):
    """Warm-up, then a cosine to a tenth."""
    if step < run.warmup:
        return (step + 1) / run.warmup
    return 0.55 + 0.45 * math.cos(math.pi * (step - run.warmup) / max(1, run.steps - run.warmup))


def train(bench, run, model, log):
    """Train; the losses along the way, and the speed."""
    rates = dict(adapter_lr=run.rate_matrix, vector_lr=run.rate_vector, backbone_lr=run.rate_backbone)
    if run.rate_qk is not None:
        rates["qk_factor"] = run.rate_qk / run.rate_matrix
    groups = rosatune.hf.parameter_groups(model, **rates)
    weights = [weight for group in groups for weight in group["params"]]
    full = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = torch.tensor(group["lr"], device=bench.device)  # a recorded step reads it there
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=bench.cuda, capturable=bench.cuda)

    def work(batch):
        with bench.autocast():
            hidden, weight = bench.hidden(model, batch), model.lm_head.weight
            step = step_of(model)
            seen = () if step is None else (step.head, step.times, step.old)
            loss = bench.token_loss(hidden, weight, batch["targets"], *seen)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    looker, losses = bench.looker(run, model), []
    recorded = bench.cuda and bench.args.graph and looker.recordable(bench.args.retrieve_on)
    take = graph.Recorded(work) if recorded else work
    mix = run.mix or {next(iter(bench.train)): 1.0}
    batches = token_ids.drawn(bench.train, mix, run.length, run.batch, run.seed)
    limited = (next(batches) for _ in range(run.steps))
    begun = shown = time.monotonic()
    warm = None
    for step, batch in enumerate(rosatune.hf.prefetch(model, limited, device=bench.device, look_up=looker.add)):
        for group, rate in zip(optimizer.param_groups, full):
            group["lr"].fill_(rate * schedule(step, run))
        loss = take(batch)
        losses.append(loss.detach())
        if step % 25 == 0 or step + 1 == run.steps:
            now = loss.item()
            if not math.isfinite(now):
                raise FloatingPointError(f"the loss is {now} at step {step + 1}")
            if warm is None and step:
                warm = (step, time.monotonic())
            if time.monotonic() - shown > 10 or step + 1 == run.steps:
                shown = time.monotonic()
                log(f"{run.name}: step {step + 1} of {run.steps}, loss {torch.stack(losses[-50:]).mean().item():.4f}")
    seconds = time.monotonic() - begun
    first, since = warm or (-1, begun)
    pace = (run.steps - 1 - first) * run.batch * run.length / max(time.monotonic() - since, 1e-9)
    if run.steps - 1 == first:
        pace = run.steps * run.batch * run.length / seconds
    every = max(1, run.steps // 20)
    curve = [torch.stack(losses[i:i + every]).mean().item() for i in range(0, len(losses), every)]
    memory = {"peak_bytes": torch.cuda.max_memory_allocated()} if bench.cuda else {}
    return {"train_seconds": seconds, "tokens_per_second": pace, "training_loss": curve, **memory}


# ----------------------------------------------------------------------------------------------------------- measuring


def unfitted(run):
    """The pointer that a fit begins with."""
    if run.pointer:
        return Pointer(np.full((run.pointer, LENGTHS), fit.START), run.window)
    return Pointer(np.full(LENGTHS, fit.START), run.window, slopes={}, seen=np.zeros((COUNTS, RANKS)))


def observe(bench, run, model, looker, pieces, condition):
    """What is to be known of the positions from 4 windows on, a list of (book, ids, fit.Observed) by piece.

    Gradients stay switched on, so that what was compiled for training serves here too; nothing is kept.
    """
    first, found = 4 * run.window, []
    pointer = unfitted(run)
    reading = {"off": "nothing", "random": "random"}.get(condition, "found")
    if not looker.alone and run.adapter is not None:
        for adapter in rosatune.hf.adapters(model).values():
            adapter.reads = reading
    for begin in range(0, len(pieces), run.batch):
        some = pieces[begin:begin + run.batch]
        ids = np.stack([piece for _, piece in some] + [some[0][1]] * (run.batch - len(some)))  # one compiled shape
        batch = looker.add({"input_ids": torch.from_numpy(ids)}, condition)
        batch = {name: x.to(bench.device) for name, x in batch.items()}
        links = Found.of(pointer.look_up(ids))
        with bench.autocast():
            hidden = bench.hidden(model, batch).detach()
        step = step_of(model) if condition != "off" else None
        if step is not None and condition == "random" and looker.alone:
            step = step._replace(times=_seen.moved(step.times))  # the places were drawn here, and not by the adapters
        parts = []
        with torch.no_grad(), bench.autocast():
            for at in range(first - 1, run.length - 1, SLICE):
                end = min(at + SLICE, run.length - 1)
                logits = functional.linear(hidden[:, at:end], model.lm_head.weight).float()
                if step is not None:
                    step.head(logits, hidden[:, at:end], model.lm_head.weight, step.times, step.old[:, at:end])
                target = batch["input_ids"][:, at + 1:end + 1]
                here = links.at((slice(None), slice(at, end)), bench.device)
                parts.append(fit.observed_at(logits, target, *here))
        whole = [torch.cat(part, 1) for part in zip(*parts)]
        for row, (book, piece) in enumerate(some):
            distance = far_distances(piece)[first:]
            far = torch.from_numpy((distance > 0) & (distance >= run.window)).to(bench.device)
            found.append((book, distance, fit.Observed(*(x[row] for x in whole), far)))
    return found


def fitted(bench, run, model, looker, kinds, condition):
    """A pointer fitted to the text of some kinds."""
    cut = [token_ids.pieces_of(bench.fit[kind], run.length, bench.args.fit_pieces) for kind in kinds]
    # In turn: the last fifth, which a fit measures itself on, is then of all kinds.
    given = [piece for turn in itertools.zip_longest(*cut) for piece in turn if piece is not None]
    seen = observe(bench, run, model, looker, given, condition)
    return fit._fitted(unfitted(run), fit.Observed(*(torch.cat(part) for part in zip(*(x for _, _, x in seen)))))


def saves(run):
    """Whether --save keeps what a run learnt: adapters, and a low-rank change of the backbone if there is one."""
    return run.adapter is not None and run.train != "all" and run.reads == "found" and not run.changed


def backbone(bench, model):
    """A model with the backbone that LoRA has made of the one at the start, and without adapters, in bfloat16."""
    config = bench.start.config.to_dict()
    config.pop("quantization_config", None)  # of a GGUF file, whose weights are numbers now; it forbids saving
    plain = AutoModelForCausalLM.from_config(type(bench.start.config).from_dict(config), dtype=torch.bfloat16)
    plain.load_state_dict(bench.start.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, Lora):
            plain.get_submodule(name).weight.data.copy_(module.whole())
    return plain


def save(bench, run, model, log):
    """The adapters in bfloat16 and a pointer fitted to all texts, as a folder to be used.

    A backbone that was changed goes into the folder `model` there, without adapters, in bfloat16 as well.
    """
    if run.pointer is not None and bench.fit:
        pointer = fitted(bench, run, model, bench.looker(run, model), list(bench.fit), "adapter")
        rosatune.hf.attach_pointer(model, pointer)
    for adapter in rosatune.hf.adapters(model).values():
        adapter.to(torch.bfloat16)
    folder = pathlib.Path(bench.args.save) / named(run)
    with warnings.catch_warnings():  # of weights that learn and are no adapters: they follow
        warnings.simplefilter("ignore")
        rosatune.hf.save_adapter(model, folder)
    if run.train == "lora":
        backbone(bench, model).save_pretrained(folder / "model")
        try:
            bench.tokenizer().save_pretrained(folder / "model")
        except Exception as error:  # of many kinds, by the libraries that are there; the weights are worth keeping
            log(f"{folder / 'model'} has no tokenizer ({error}); put the model's tokenizer.json there")


def judge(bench, run, model, log):
    """{kind: RecallResult} of a trained model."""
    looker, results = bench.looker(run, model), {}
    if run.adapter is None:
        conditions = [run.attention] if run.steps else ["window", "global"]
    else:
        conditions = ["own place"] if run.reads == "self" else ["adapter", "off", "random"]
    for kind, texts in bench.valid.items():
        pieces, sums = token_ids.pieces_of(texts, run.length, bench.args.pieces), {}
        if not pieces:
            log(f"{kind}: no text has {run.length} tokens; not judged")
            continue
        for condition in conditions:
            here, look = model, looker
            if condition == "global" and run.attention == "window":
                changed = dataclasses.replace(run, attention="global")
                here = bench.model(changed)
                look = bench.looker(changed, here)
            pointer = None
            if run.pointer is not None and kind in bench.fit and condition in ("window", "adapter"):
                pointer = fitted(bench, run, here, look, [kind], condition)
            for book, distance, seen in observe(bench, run, here, look, pieces, condition):
                losses = {condition: -seen.target}
                if pointer is not None:
                    losses[condition + " + pointer"] = fit.losses_with(pointer, seen)
                for name, loss in losses.items():
                    sums.setdefault(name, {}).setdefault(book, Sums()).add(loss.cpu().numpy(), distance, run.window)
        results[kind] = RecallResult(run.window, run.sinks, run.length, sums)
    return results


def asks_pointer(run):
    """Whether a run is asked with a pointer."""
    return any(pointed for _, pointed in answers.parsed(run.asks).values())


def asking(bench, run):
    """What the answers of a run depend on, as their file has it."""
    return {"model": pathlib.Path(bench.args.model).name, "adapter": run.name if run.adapter else None,
            "pointer": "fitted" if asks_pointer(run) else None, "run": described_run(run), "texts": bench.texts(run),
            "tokens": bench.args.ask_tokens}


def answers_of(bench, run, stem):
    """Where the answers of a run to a file of prompts go."""
    return pathlib.Path(bench.args.answers) / f"{named(run)}.{stem}.jsonl"


def check(bench, runs):
    """Ends the program where one of the runs could train, but not be asked."""
    for run in runs if bench.prompts else []:
        try:
            if asks_pointer(run) and not bench.fit:
                raise ValueError("it is asked with a pointer; give --fit, the text to fit it on")
            for stem in bench.prompts if run.asks else []:
                path = answers_of(bench, run, stem)
                before, now = answers.settings_in(path), asking(bench, run)
                if before is not None and any(before.get(key) != value for key, value in now.items()):
                    raise ValueError(f"{path} holds answers of other texts or options; give another --answers")
        except ValueError as error:
            common.die(f"run {run.name!r}: {error}")


def ask(bench, run, model, log):
    """Appends the answers of a trained model, in bfloat16 on a GPU; the names of prompts to which all were given.

    The model is not to be trained any more.
    """
    pointer = None
    if asks_pointer(run):
        condition = "adapter" if run.adapter else "window"
        pointer = fitted(bench, run, model, bench.looker(run, model), list(bench.fit), condition)
    merge(model)  # only now: what fits and judges was compiled with the layers that learnt
    if bench.cuda:
        for weight in model.parameters():  # buffers, such as the rotary frequencies, stay as they are
            weight.data, weight.grad = weight.data.to(torch.bfloat16), None
        torch.cuda.empty_cache()  # what training had is free for others on the same GPU
    pathlib.Path(bench.args.answers).mkdir(parents=True, exist_ok=True)
    whole = []
    for stem, prompts in bench.prompts.items():
        if answers.run(model, prompts, run.asks, out=answers_of(bench, run, stem), pointer=pointer, window=run.window,
                       sinks=run.sinks, minutes=bench.args.ask_minutes, gigabytes=bench.args.ask_gigabytes,
                       recorded=bench.args.ask_recorded, settings=asking(bench, run), log=log):
            whole.append(stem)
        else:
            log(f"{run.name}: was not asked all of {stem}; the same command goes on")
    return whole


def described_run(run):
    """A run as the file of results has it, by which it is known again; fields that are newer than an entry have their
    defaults there. What is expected of a run, and a note, are the list's alone."""
    found = json.loads(json.dumps(dataclasses.asdict(run)))
    return {name: value for name, value in found.items() if name not in ("minutes", "minutes_asked", "note")}


def earlier(results, entry):
    """What the file of results has of the same run on the same texts; older entries do not say which, and count."""
    return [old for old in results if described_run(Run(**old["run"])) == entry["run"]
            and old.get("texts", entry["texts"]) == entry["texts"]]


def comparable(one, other):
    """Whether two entries were trained and judged on the same texts, as far as both say which a kind was."""
    pairs = [[entry.get("texts", {}).get(part, {}) for entry in (one, other)] for part in ("train", "valid")]
    return all(a[kind] == b[kind] for a, b in pairs for kind in set(a) & set(b))


def expected(bench, run, seconds):
    """Seconds that a run takes: as the list says, or, on a slower machine, by what the runs before took."""
    listed = 0.0 if run.minutes is None else run.minutes
    if run.asks and bench.prompts:
        listed += min(run.minutes_asked, bench.args.ask_minutes * len(bench.prompts))
    return max(seconds, 60 * listed)


def is_done(bench, entry):
    """Whether a run need not be done again: it did not fail, and was asked all prompts where that is recorded."""
    return "error" not in entry and set(bench.prompts) <= set(entry.get("asked", bench.prompts))


def named(run):
    """The name of a run as part of a path."""
    return run.name.replace(" ", "-").replace(",", "")


def described(result):
    """What goes into the file: means with their errors, and the sums of every book."""
    whole = result.to_dict()
    for row in whole["conditions"].values():
        row.pop("distance")
    whole.pop("books")
    whole["sums"] = {name: {book: [x.far, x.far_count, x.rest, x.rest_count] for book, x in books.items()}
                     for name, books in result.sums.items()}
    return whole


def given_back(results, entry, kind, condition):
    """((share of the far loss, its error), (of all)) that a condition gives back beside the run's controls, or None."""
    by_name = {other["run"]["name"]: other for other in results if "error" not in other and comparable(other, entry)}
    controls = [by_name.get(name) for name in entry["run"]["controls"]]
    if len(controls) != 2 or None in controls or any(kind not in control["kinds"] for control in controls):
        return None
    books = [next(iter(control["kinds"][kind]["sums"].values())) for control in controls]
    books.append(entry["kinds"][kind]["sums"][condition])
    names = sorted(set(books[0]) & set(books[1]) & set(books[2]))

    def share(kept, far):
        def mean(which):
            rows = np.array([which[name] for name in kept])
            loss, count = (rows[:, 0], rows[:, 1]) if far else (rows[:, 0] + rows[:, 2], rows[:, 1] + rows[:, 3])
            return loss.sum() / count.sum()

        window, whole, here = map(mean, books)
        return (window - here) / (window - whole)

    found = []
    for far in (True, False):
        left_out = [share([name for name in names if name != out], far) for out in names] if len(names) > 1 else []
        count = len(left_out)
        error = math.sqrt((count - 1) * statistics.pvariance(left_out)) if count else math.nan
        found.append((share(names, far), error))
    return found


def table(results):
    lines = [f"{'':52} {'perplexity':>10} {'far':>8} {'rest':>8}   far and all given back"]
    for entry in results:
        if "error" in entry:
            lines.append(f"{entry['run']['name']}: failed, {entry['error'].strip().splitlines()[-1]}")
            continue
        for kind, measured in entry["kinds"].items():
            for condition, row in measured["conditions"].items():
                name = f"{entry['run']['name']}, {kind}: {condition}"
                back = given_back(results, entry, kind, condition)
                told = "" if back is None else "   " + ", ".join(f"{100 * x:.1f} +- {100 * e:.1f} %" for x, e in back)
                ppl, far, rest = (math.nan if row[key] is None else row[key] for key in ("ppl", "far", "rest"))
                lines.append(f"{name:52} {ppl:10.3f} {far:8.4f} {rest:8.4f}{told}")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------- main


def kept(out, results, entry, same):
    """The results with an entry in place of those in `same` and of its own state before, which has no `seconds` yet.

    They are in the file then.
    """
    entry = json.loads(json.dumps(entry))
    before = [x for x in results if "seconds" not in x and (x["run"], x["texts"]) == (entry["run"], entry["texts"])]
    results = [*(x for x in results if x not in same and x not in before), entry]
    temporary = out.with_name(out.name + ".part")
    temporary.write_text(json.dumps(results))
    temporary.replace(out)
    return results


def parse(words):
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False, report=False)
    parser.add_argument("--model", required=True, help="a GGUF file or a folder")
    texts = dict(nargs="+", metavar="KIND=PATH", default=[])
    parser.add_argument("--train", help="token ids to train on", **texts)
    parser.add_argument("--fit", help="token ids to fit pointers on", **texts)
    parser.add_argument("--valid", help="token ids to judge on", **{**texts, "required": True})
    parser.add_argument("--runs", required=True, help="a JSON list of runs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these names")
    parser.add_argument("--out", default="memory.json", help="where results are appended")
    parser.add_argument("--save", metavar="DIR", help="keep what runs with train = adapter or lora have learnt there")
    parser.add_argument("--minutes", type=float, default=math.inf, help="runs that would not end by then are skipped")
    parser.add_argument("--pieces", type=int, default=32, help="pieces of each kind that runs are judged on")
    parser.add_argument("--fit-pieces", type=int, default=16, help="pieces that a pointer is fitted on")
    parser.add_argument("--prompts", nargs="+", default=[], help="what trained models are asked")
    parser.add_argument("--answers", metavar="DIR", default="answers", help="where their answers go")
    parser.add_argument("--ask-minutes", type=float, default=math.inf, help="for each run and file of prompts")
    parser.add_argument("--ask-gigabytes", type=float, default=40, help="GPU memory for the keys and values of prompts")
    parser.add_argument("--ask-recorded", action=argparse.BooleanOptionalAction,
                        help="replay single steps as CUDA graphs; on a GPU by default")
    parser.add_argument("--ask-task", nargs="+", default=[], help="these tasks, in this order")
    parser.add_argument("--ask-tokens", type=int, default=0, help="answers of at most so many tokens")
    parser.add_argument("--ask-length", type=int, nargs="+", default=[], help="prompts of these lengths, in this order")
    parser.add_argument("--ask-limit", type=int, default=0, help="at most so many of each task and length")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="compile layers; on a GPU by default")
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True,
                        help="record training steps as CUDA graphs, on a GPU")
    parser.add_argument("--retrieve-on", choices=["host", "device"], default="host", help="where q and k are looked up")
    parser.add_argument("--table", action="store_true", help="print the table of the results so far, and run nothing")
    return parser.parse_args(words)


def main(words=None):
    args, begun = parse(words), time.monotonic()
    out = pathlib.Path(args.out)
    results = json.loads(out.read_text()) if out.exists() else []
    if args.table:
        print(table(results))
        return 0
    runs = [Run(**fields) for fields in json.loads(pathlib.Path(args.runs).read_text())]
    if args.only:
        runs = [run for run in runs if run.name in args.only]
    if not out.parent.is_dir():
        common.die(f"--out {out}: {out.parent} is no folder; make it, or name another file")
    torch._dynamo.config.recompile_limit = 256  # compiled layers of each kind of run: some 60 for all of the list
    torch.set_float32_matmul_precision("high")
    rosatune.torch.retrieve_on(args.retrieve_on)
    bench = Bench(args)

    for run in runs:
        unknown = [kind for kind in run.mix if kind not in bench.train]
        if unknown:
            kind = unknown[0]
            common.die(f"run {run.name!r} trains on {kind!r}; give --train {kind}=PATH, or choose runs by --only")
    made_by = common.commit()
    entries = [{"run": described_run(run), "texts": bench.texts(run), "commit": made_by} for run in runs]
    check(bench, [run for run, entry in zip(runs, entries)
                  if not any(is_done(bench, old) for old in earlier(results, entry))])

    def log(text):
        print(f"[{time.monotonic() - begun:6.1f}] {text}", flush=True)

    sizes = {kind: sum(map(len, texts.values())) for kind, texts in bench.train.items()}
    log(f"{len(runs)} runs on {args.device}; tokens to train on: {sizes}")
    pace, others = [], []  # tokens per second, and seconds for what is not training
    for run, entry in zip(runs, entries):
        same = earlier(results, entry)
        if any(is_done(bench, old) for old in same):
            log(f"{run.name}: is in {out} already")
            continue
        work = run.steps * run.batch * run.length
        need = expected(bench, run, work / min(pace, default=1e5) + statistics.median(others or [60.0]))
        left = 60 * args.minutes - (time.monotonic() - begun)
        if need > left:
            log(f"{run.name}: skipped, needs about {need:.0f} s of {left:.0f}")
            continue
        since = time.monotonic()
        try:
            model = bench.model(run)
            if run.steps:
                entry |= train(bench, run, model, log)
                pace.append(entry["tokens_per_second"])
            entry["kinds"] = {kind: described(result) for kind, result in judge(bench, run, model, log).items()}
            if args.save and saves(run):
                save(bench, run, model, log)
            if run.asks:
                entry["asked"] = []
                if bench.prompts:
                    results = kept(out, results, entry, [])  # asking takes long, and may be stopped
                    log(table(results[-1:]))
                    entry["asked"] = ask(bench, run, model, log)
            others.append(time.monotonic() - since - (work / pace[-1] if run.steps else 0))
        except KeyboardInterrupt:
            log(f"{run.name}: stopped; the runs before are in {out}")
            return 130
        except Exception:  # a run that fails is recorded, and the next one is done
            entry["error"] = traceback.format_exc()
            log(entry["error"])
        model = None
        entry["seconds"] = time.monotonic() - since
        if "error" in entry:  # what was measured before the asking was cut is worth more
            same = [old for old in same if "error" in old]
        results = kept(out, results, entry, same)
        speed = f", {entry['tokens_per_second']:.0f} tokens/s" if "tokens_per_second" in entry else ""
        log(f"{run.name}: {entry['seconds']:.0f} s{speed}\n{table(results[-1:])}")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
