#!/usr/bin/env python3
r"""Answers of a Hugging Face model to tasks of `rosatune eval`, on a GPU, in three steps.

    bench/answers.py prepare --model MODEL.gguf --out prompts.xz TASK.jsonl...
    bench/answers.py run --model MODEL --prompts prompts.xz --adapter DIR --window 1024 --sinks 4 --out answers.jsonl
    bench/answers.py finish --model MODEL.gguf --answers answers.jsonl --out results/NAME.jsonl TASK.jsonl...

The program reads tasks, makes tokens of them and scores what comes back, so that there is one scorer and one format of
results, and the machine with the GPU needs neither the program nor a tokenizer. `run` is also a function for scripts
that have trained a model and go on to ask it:

    answers.run(model, answers.load("prompts.xz"), ["global", "window", "adapter"], out="answers.jsonl", minutes=10)

Conditions are those of `rosatune eval`:

    global            attention to everything
    window            window and sinks, without the adapters
    bare window       the same without sinks
    pointer           window, sinks and pointer
    adapter           window, sinks and adapters, which read what they find
    off, random       the same adapters, reading nothing, or at random places
    adapter+pointer   all of it

NAME=CONDITION gives one another name, for models that were trained as controls; "as it is" is the model as it was
given, "as it is+pointer" the same with the pointer.

Prompts of about the same length are read side by side, whatever their tasks, padded on the left, in pieces with a
cache, and continued greedily; one reading serves a condition and the same with the pointer. Texts of choices are read
whole. What was answered is appended to the file of answers at once, and nothing in it is made
again, so a run may be stopped by Ctrl-C or by --minutes and started again.
"""

import contextlib
import copy
import json
import lzma
import math
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
from typing import NamedTuple

import common
import numpy as np

COMPRESSED = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 26, "lc": 0, "lp": 2, "pb": 2}]

TEXTS = 1024  # of choices, read at once: for each a seen-token head has 16 bytes for every token of the vocabulary

# How a model is read, and whether its pointer takes part.
CONDITIONS = {
    "global": ("global", False),
    "bare window": ("bare window", False),
    "window": ("window", False),
    "adapter": ("adapter", False),
    "off": ("off", False),
    "random": ("random", False),
    "pointer": ("window", True),
    "adapter+pointer": ("adapter", True),
    "as it is": ("as it is", False),
    "as it is+pointer": ("as it is", True),
}


# ------------------------------------------------------------------------------------------------------------- prompts


class Example(NamedTuple):
    task: str
    number: int
    sum: str
    texts: list  # of token ids: the prompt, or each continuation after its context
    first: "list | None"  # of a choice: the first token of each continuation
    tokens: int  # at most written for an answer
    length: int  # the power of two that it fills; 0: not known
    metric: str
    expected: list  # of a prompt

    def key(self, condition):
        return self.task, self.number, condition


class Prompts(NamedTuple):
    vocabulary: int
    ends: tuple  # tokens that end an answer
    pieces: list  # the bytes of each token, as characters of these numbers
    examples: list

    def glance(self, some, written):
        """The mean score of answers to tasks of RULER as it will be, to be seen at once; None: of other tasks."""
        if not self.pieces or not all(x.metric in ("match-all", "match-part") for x in some):
            return None
        scores = []
        for example, ids in zip(some, written):
            answer = "".join(self.pieces[i] for i in ids if i not in self.ends and i < len(self.pieces))
            answer = answer.encode("latin-1").decode("utf-8", "replace").lower()
            found = [each.lower() in answer for each in example.expected]
            scores.append(max(found) if example.metric == "match-part" else sum(found) / len(found))
        return sum(scores) / len(scores)


def pack(lines, path):
    """Writes the lines of `rosatune eval --prepare` to one compressed file: what is known of them, then all ids."""
    head, examples, ids = json.loads(next(lines))["prompts"], [], []
    for line in map(json.loads, lines):
        texts = line.pop("texts") if "texts" in line else [line.pop("ids")]
        ids += [np.array(text, "<u4") for text in texts]
        examples.append({**line, "counts": [len(text) for text in texts]})
    with lzma.open(path, "wb", filters=COMPRESSED) as file:
        file.write(json.dumps({**head, "examples": examples}).encode() + b"\n")
        file.write(np.concatenate(ids).tobytes())
    return len(examples), sum(map(len, ids))


def load(path, task=(), length=(), limit=0):
    """The prompts in a file, in the order of the names in `task` and of the lengths; at most `limit` of each."""
    with lzma.open(path, "rb") as file:
        head, ids = json.loads(file.readline()), np.frombuffer(file.read(), "<u4")
    at, cells = 0, {}
    for row in head["examples"]:
        texts = []
        for count in row["counts"]:
            texts.append(ids[at:at + count].astype(np.int64))
            at += count
        group = 1 << max(row["length"] - 1, 0).bit_length() if row.get("length") else 0
        example = Example(row["task"], row["example"], row["sum"], texts, row.get("first"), row.get("tokens", 0), group,
                          row["metric"], row.get("expected", []))
        cells.setdefault((example.task, group), []).append(example)
    names = list(dict.fromkeys(name for name, _ in cells))
    unknown = [name for name in task if name not in names]
    if unknown:
        raise ValueError(f"{path}: has no task {unknown[0]}; it has {', '.join(names)}")
    lengths = [*length, 0] if length else sorted({group for _, group in cells})
    chosen = [cells.get((name, group), []) for name in task or names for group in lengths]
    examples = [x for cell in chosen for x in cell[:limit or len(cell)]]
    return Prompts(head["vocabulary"], tuple(head["ends"]), head.get("pieces", []), examples)


# ------------------------------------------------------------------------------------------------------------- answers


def whole_lines(path):
    """The lines of a file of answers, without the end of one that a killed run left; none where there is no file.

    Any other file is refused: what has no end would be cut off.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = data[:data.rfind(b"\n") + 1].splitlines(keepends=True)
    try:
        first = json.loads(whole[0]) if whole else None
    except ValueError:
        first = None
    if data and not (isinstance(first, dict) and "settings" in first):
        raise ValueError(f"{path}: holds no answers; give another file")
    return whole


def settings_in(path):
    """The settings of a file of answers; None: it has none yet."""
    whole = whole_lines(path)
    return json.loads(whole[0])["settings"] if whole else None


class Answers:
    """A file of answers that grows; without a name they are only counted."""

    def __init__(self, path, settings):
        self.path, self.done, self.file = path, {}, None
        if path is None:
            return
        path = pathlib.Path(path)
        whole = whole_lines(path)
        for line in map(json.loads, whole):
            if "settings" in line and line["settings"] != json.loads(json.dumps(settings)):
                raise ValueError(f"{path}: was made with other settings, {line['settings']}; give another file")
            if "task" in line:
                self.done[line["task"], line["example"], line["condition"]] = line["sum"]
        self.file = open(path, "a", encoding="utf-8")
        self.file.truncate(sum(map(len, whole)))
        if not whole:
            self._write({"settings": settings})

    def has(self, example, condition):
        found = self.done.get(example.key(condition))
        if found not in (None, example.sum):
            raise ValueError(f"{self.path}: example {example.number} of {example.task} was another; give another file")
        return found is not None

    def add(self, example, condition, **answer):
        self.done[example.key(condition)] = example.sum
        if self.file is not None:
            self._write({"task": example.task, "example": example.number, "sum": example.sum, "condition": condition,
                         **answer})

    def _write(self, line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def close(self):
        if self.file is not None:
            self.file.close()


# --------------------------------------------------------------------------------------------------------- the model


def torch_and_hf():
    """Only `run` needs them."""
    import rosatune.hf
    import torch

    return torch, rosatune.hf


@contextlib.contextmanager
def usual(model):
    """While it lasts a model is evaluated plainly: nothing compiled, no gradients, dense attention, no pointer."""
    from rosatune.hf.reading import frozen

    attention = model.config._attn_implementation
    compiled = {}
    for module in model.modules():
        if getattr(module, "_compiled_call_impl", None) is not None:
            compiled[module], module._compiled_call_impl = module._compiled_call_impl, None
    if attention not in ("eager", "sdpa"):
        model.set_attn_implementation("sdpa")
    try:
        with frozen(model):
            yield
    finally:
        if attention not in ("eager", "sdpa"):
            model.set_attn_implementation(attention)
        for module, call in compiled.items():
            module._compiled_call_impl = call


@contextlib.contextmanager
def arranged(model, reading, window, sinks):
    """While it lasts a model is read as a condition says; the pointer is not concerned."""
    from rosatune.hf import arrange

    found = arrange.is_attached(model)
    if reading == "as it is":
        yield
    elif reading != "bare window":
        with arrange.arranged(model, reading, window, sinks):
            yield
    elif found is None:
        with arrange.arranged(model, "window", window, 0):
            yield
    else:
        plan = found.plan
        found.plan = plan._replace(sinks=0)
        try:
            with arrange.arranged(model, "window", window, 0):
                yield
        finally:
            found.plan = plan


class Text:
    """What a model has read, in rows side by side."""

    checked = False  # its logits are numbers

    def __init__(self, reader, mask):
        self.reader, self.mask, self.cache, self.seen = reader, mask, None, 0  # mask None: no row is padded

    def copy(self):
        other = Text(self.reader, self.mask)
        other.cache, other.seen = copy.deepcopy(self.cache), self.seen
        return other

    def read(self, ids):
        """Reads on; the logits of the next token."""
        end, device, given = self.seen + ids.shape[1], self.reader.device, {}
        if self.reader.attached:
            given["rosa_ids"] = ids
        if self.mask is not None:
            more = end - self.mask.shape[1]
            if more > 0:
                self.mask = self.reader.torch.nn.functional.pad(self.mask, (0, more), value=1)
            given["attention_mask"] = self.mask[:, :end]
            given["position_ids"] = (self.mask[:, :end].cumsum(1) - 1).clamp(min=0)[:, self.seen:]
        if self.cache is not None:
            given["past_key_values"] = self.cache
        output = self.reader.model(input_ids=ids.to(device), use_cache=True, logits_to_keep=1, **given)
        self.cache, self.seen = output.past_key_values, end
        return output.logits[:, -1]


class Reader:
    """A model in one arrangement, and how much of it is done at once."""

    def __init__(self, model, options, pointer=None):
        self.torch, self.hf = torch_and_hf()
        self.model, self.options, self.pointer = model, options, pointer
        self.device = model.get_input_embeddings().weight.device
        found = self.hf.attachment(model)
        self.attached = found is not None
        # what layers look up on the device themselves cannot be copied
        self.copies = found is None or self.device.type == "cpu" or not any(x.learnt for x in found.config.sources)

    @contextlib.contextmanager
    def pointing(self, wanted):
        """While it lasts the model's own pointer takes part, or the one that was given."""
        head = self.hf.pointer_head(self.model)
        if not wanted:
            yield
        elif head is not None:
            head.attached.active = True
            try:
                yield
            finally:
                head.attached.active = False
        else:
            self.hf.attach_pointer(self.model, self.pointer)
            try:
                yield
            finally:
                self.hf.detach_pointer(self.model)

    def batches(self, examples):
        """Prompts of similar length side by side, so many that their past fits into memory."""
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        each = 2 * config.num_hidden_layers * heads * width * self.model.dtype.itemsize
        some = []
        for example in sorted(examples, key=lambda x: len(x.texts[0])):
            longest = len(example.texts[0]) + example.tokens
            if some and (len(some) == self.options["rows"]
                         or (len(some) + 1) * longest * each > self.options["gigabytes"] * 1e9):
                yield some
                some = []
            some.append(example)
        if some:
            yield some

    def limited(self):
        """Whether every layer has a window."""
        found = self.hf.attachment(self.model)
        return found is not None and bool(found.plan.window) and not found.plan.first_window_layer

    def width(self, longest, chunk):
        """Positions that a piece of a prompt sees at most."""
        if not self.limited():
            return longest
        plan = self.hf.attachment(self.model).plan
        return min(longest, plan.window + plan.sinks + chunk)

    def answers(self, some, ends, ways, log):
        """What `answer` gives; of fewer rows at a time where these are too many."""
        torch, reason = self.torch, None
        try:
            return self.answer(some, ends, ways)
        except (FloatingPointError, torch.OutOfMemoryError) as error:  # the first: of padding
            if len(some) == 1:
                raise
            reason = str(error).splitlines()[0]
        # not in the handler, where the failed call would keep its memory
        log(f"length {some[0].length}: {reason}; {len(some)} rows become fewer")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        parts = [self.answers(part, ends, ways, log) for part in (some[:len(some) // 2], some[len(some) // 2:])]
        return {way: [ids for part in parts for ids in part[way]] for way in ways}

    def answer(self, some, ends, ways):
        """What the model writes after some prompts: {with pointer: token ids of each}, for each of the ways.

        All but the last token of the prompts is read once for all ways, where that can be copied.
        """
        torch, options = self.torch, self.options
        if len(ways) > 1 and not self.copies:
            return {way: self.answer(some, ends, [way])[way] for way in ways}
        longest = max(len(x.texts[0]) for x in some)
        ids, mask = np.zeros((len(some), longest), np.int64), np.zeros((len(some), longest), np.int64)
        for row, example in enumerate(some):
            ids[row, longest - len(example.texts[0]):] = example.texts[0]
            mask[row, longest - len(example.texts[0]):] = 1
        ids, mask = torch.from_numpy(ids), None if mask.all() else torch.from_numpy(mask).to(self.device)
        chunk = min(options["chunk"], options["tokens"] // len(some) + 1)
        # a mask has an entry for each row, token and position
        chunk = min(chunk, options["entries"] // (len(some) * self.width(longest, chunk)) + 1)
        text = Text(self, mask)
        with self.pointing(any(ways)):
            for begin in range(0, longest - 1, chunk):
                text.read(ids[:, begin:min(begin + chunk, longest - 1)])
        found = {}
        for number, way in enumerate(ways):
            with self.pointing(way):
                mine = text if number + 1 == len(ways) else text.copy()
                found[way] = self._write(mine, ids[:, -1:], some, ends)
        return found

    def _write(self, text, token, some, ends):
        written, unfinished = [[] for _ in some], set(range(len(some)))
        while unfinished:
            logits = text.read(token)
            if not text.checked and not bool(self.torch.isfinite(logits).all()):
                raise FloatingPointError("a logit is not a number")
            text.checked = True
            token = logits.argmax(-1)[:, None].cpu()
            for row in list(unfinished):
                written[row].append(int(token[row]))
                if written[row][-1] in ends or len(written[row]) == some[row].tokens:
                    unfinished.discard(row)
        return written

    def choices(self, examples, head, pointer):
        """Lists of (example, {with pointer: (logarithms, written)}) of choices, whose texts are read side by side.

        A list has the examples whose last text was just read. The texts of one stay together, so that little is lost
        where a run is stopped. Texts are padded at their end, which nothing before it sees: no mask is needed.
        """
        shortest = sorted(examples, key=lambda x: max(map(len, x.texts)))
        rows = [(x, i, text, x.first[i]) for x in shortest for i, text in enumerate(x.texts)]
        found, begin = {}, 0
        while begin < len(rows):
            end, width = begin + 1, len(rows[begin][2])
            while end < len(rows):
                width = max(width, len(rows[end][2]))
                if end - begin == TEXTS or (end + 1 - begin) * width > self.options["tokens"]:
                    break
                end += 1
            self._texts(rows[begin:end], head, pointer, found)
            some = []
            for example in [x for x, i, _, _ in rows[begin:end] if i + 1 == len(x.texts)]:
                parts = [found.pop((example.task, example.number, i)) for i in range(len(example.texts))]
                some.append((example, {way: ([x[way][0] for x in parts], parts[0][way][1]) for way in parts[0]}))
            yield some
            begin = end

    def _texts(self, rows, head, pointer, found):
        """Adds {with pointer: (ln p of the continuation, whether each of its tokens is likeliest)} of each text."""
        from rosatune.hf.seen import step_of

        torch = self.torch
        longest = max(len(text) for _, _, text, _ in rows)
        ids = np.zeros((len(rows), longest), np.int64)
        for row, (_, _, text, _) in enumerate(rows):
            ids[row, :len(text)] = text
        row, place = (np.concatenate(x) for x in zip(*(
            (np.full(len(text) - first, row), np.arange(first - 1, len(text) - 1))
            for row, (_, _, text, first) in enumerate(rows))))
        links = None
        if head is not None:
            from rosatune.torch._pointer import Found

            links = Found.of(pointer.look_up(ids)).at((row, place), self.device)
        target = torch.from_numpy(ids[row, place + 1]).to(self.device)
        on_device = torch.from_numpy(ids).to(self.device)
        hidden = self.model.get_decoder()(input_ids=on_device, use_cache=False).last_hidden_state
        step, output = step_of(self.model), self.model.get_output_embeddings()  # of a seen-token head, if any
        hidden = hidden[torch.from_numpy(row).to(self.device), torch.from_numpy(place).to(self.device)]
        stride = max(1, (1 << 28) // output.weight.shape[0])
        parts = []
        for at in range(0, len(target), stride):
            here = slice(at, at + stride)
            logits = output(hidden[here]).float()
            if step is not None:
                for text in np.unique(row[here]):
                    mine = np.flatnonzero(row[here] == text)
                    some, mine = slice(at + mine[0], at + mine[-1] + 1), slice(mine[0], mine[-1] + 1)
                    logits[mine] = step.head(logits[None, mine].clone(), hidden[None, some], output.weight,
                                             step.times[text:text + 1], step.old[text:text + 1, place[some]])[0]
            ways = {False: logits.log_softmax(-1)}
            if head is not None:
                ways[True] = head(logits, *links.at(here, self.device))
            parts.append({way: (x.gather(-1, target[here, None])[:, 0].double().cpu(),
                                (x.argmax(-1) == target[here]).cpu()) for way, x in ways.items()})
        for way in parts[0]:
            sums = np.concatenate([x[way][0].numpy() for x in parts])
            likeliest = np.concatenate([x[way][1].numpy() for x in parts])
            for number, (example, i, _, _) in enumerate(rows):
                mine = row == number
                answer = float(sums[mine].sum()), bool(likeliest[mine].all())
                found.setdefault((example.task, example.number, i), {})[way] = answer


# ----------------------------------------------------------------------------------------------------------------- run


def parsed(conditions):
    """{name: (reading, with pointer)} of the names of conditions."""
    found = {}
    for word in conditions:
        name, _, what = word.partition("=")
        what = what or name
        if what not in CONDITIONS:
            raise ValueError(f"there is no condition {what!r}; they are {', '.join(CONDITIONS)}")
        found[name] = CONDITIONS[what]
    return found


def possible(model, pointer):
    """The conditions that a model can be asked under."""
    from rosatune.hf import arrange

    found = arrange.is_attached(model)
    adapted = found is not None and bool(found.layers)
    return [name for name, (reading, pointed) in CONDITIONS.items() if not name.startswith("as it is")
            and (pointer is not None or not pointed) and (adapted or reading not in ("adapter", "off", "random"))]


def described(model, window, sinks, more):
    """Settings that answers depend on, as far as the model shows them."""
    torch, _ = torch_and_hf()
    import rosatune
    import transformers

    device = model.get_input_embeddings().weight.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else common.machine("")["processor"]
    return {"model": str(getattr(model.config, "_name_or_path", "") or type(model).__name__), "adapter": None,
            "pointer": None, "window": window or 0, "sinks": sinks or 0, "device": name,
            "dtype": str(model.dtype).removeprefix("torch."), "torch": torch.__version__,
            "transformers": transformers.__version__, "rosatune": rosatune.__version__, **more}


def cells_of(examples, rows):
    """Lists of examples that are asked together: prompts of one length, at most `rows` of them, since a step takes as
    long for many rows as for few; choices of one task."""
    cells = {}
    for example in examples:
        cells.setdefault(example.length if example.first is None else example.task, []).append(example)
    for cell in cells.values():
        if cell[0].first is not None:
            yield cell
            continue
        cell.sort(key=lambda x: len(x.texts[0]))  # little padding
        yield from (cell[i:i + rows] for i in range(0, len(cell), rows))


def run(model, prompts, conditions=None, *, out=None, pointer=None, window=None, sinks=None, minutes=math.inf,
        rows=None, chunk=4096, tokens=None, gigabytes=40, entries=1 << 29, recorded=None, settings=None, log=print):
    """Asks a model under some conditions (None: all that it can be asked under) and appends to the file of answers.

    model: causal, of transformers, perhaps with adapters and a pointer; window and sinks are theirs where it has any.
    rows: prompts read side by side; tokens: computed at once, in all rows; chunk: at most so many of a row.
    gigabytes: for what the rows remember; entries: of a mask.
    recorded: single steps of a window are replayed as CUDA graphs; None: on a GPU.
    settings: what is to be written beside what the model shows ("model", "adapter", "commit", ...).

    Returns whether all was done; False if time was over, or something failed, which is said. Ctrl-C keeps what was
    answered and goes on to the caller.
    """
    torch, hf = torch_and_hf()
    from rosatune.pointer import Pointer
    from rosatune.torch import PointerHead

    begun = time.monotonic()
    found = hf.attachment(model)
    if found is not None and found.config.window:
        window, sinks = found.config.window, found.config.sinks
    sinks = 4 if sinks is None else sinks
    if pointer is None:
        pointer = hf.pointer_of(model)
    elif not isinstance(pointer, Pointer):
        pointer = Pointer.load(pointer)
    wanted = parsed(possible(model, pointer) if conditions is None else conditions)
    if not window:
        for name, (reading, _) in wanted.items():
            if reading in ("window", "bare window"):
                raise ValueError(f"{name}: give the window")
    if pointer is None and any(pointed for _, pointed in wanted.values()):
        raise ValueError("a condition needs a pointer; give one")
    if model.get_output_embeddings().weight.shape[0] < prompts.vocabulary:
        raise ValueError(f"the model has {model.get_output_embeddings().weight.shape[0]} tokens, the prompts' "
                   f"{prompts.vocabulary}; they were made for another model")
    gpu = model.get_input_embeddings().weight.is_cuda
    options = dict(rows=rows or (32 if gpu else 4), chunk=chunk, tokens=tokens or (65536 if gpu else 8192),
                   gigabytes=gigabytes, entries=entries)
    answers = Answers(out, described(model, window, sinks, settings or {}))
    complete, pace = True, {}

    def left():
        return 60 * minutes - (time.monotonic() - begun)

    def tell(what, name, count, since, more=""):
        log(f"[{time.monotonic() - begun:6.1f}] {what}, {name}: {count} in {time.monotonic() - since:.1f} s{more}")

    def glanced(some, written):
        """The mean score of each task among some answers, where it can be known here."""
        shown = []
        for task in dict.fromkeys(x.task for x in some):
            mine = [i for i, x in enumerate(some) if x.task == task]
            score = prompts.glance([some[i] for i in mine], [written[i] for i in mine])
            shown += [] if score is None else [f"{task} {100 * score:.1f}"]
        return ", ".join(shown)

    def ask(cell, reading, names):
        """Answers to prompts of a length under the conditions that one reading serves; False: time is over."""
        length, what = cell[0].length, " and ".join(names)
        due = [example for example in cell if not all(answers.has(example, name) for name in names)]
        if not due:
            return True
        with contextlib.ExitStack() as stack:
            stack.enter_context(arranged(model, reading, window, sinks))
            reader = Reader(model, options, pointer)
            if (gpu if recorded is None else recorded) and reader.limited():
                stack.enter_context(hf.recorded(model))
            for some in reader.batches(due):
                if left() <= pace.get((length, what), 0) * len(some):
                    return False
                since = time.monotonic()
                ways = [False, True] if len({wanted[name][1] for name in names}) > 1 else [wanted[names[0]][1]]
                written = reader.answers(some, prompts.ends, ways, log)
                for name in names:
                    for example, ids in zip(some, written[wanted[name][1]]):
                        if not answers.has(example, name):
                            answers.add(example, name, ids=ids)
                pace[length, what] = (time.monotonic() - since) / len(some)
                read, made = sum(len(x.texts[0]) for x in some), sum(len(ids) for way in ways for ids in written[way])
                tell(f"length {length}", what, len(some), since, f", {read} tokens read, {made} written")
                for name in names:
                    scores = glanced(some, written[wanted[name][1]])
                    if scores:
                        log(f"         {name}: {scores}")
        return True

    def choose(cell, reading, names):
        """Choices likewise."""
        due = [example for example in cell if not all(answers.has(example, name) for name in names)]
        if not due or left() <= 0:
            return not due
        since, count = time.monotonic(), 0
        with arranged(model, reading, window, sinks):
            reader = Reader(model, options)
            head = PointerHead(pointer, reader.device) if any(wanted[name][1] for name in names) else None
            for some in reader.choices(due, head, pointer):
                for example, ways in some:
                    for name in names:
                        if not answers.has(example, name):
                            logarithms, written = ways[wanted[name][1]]
                            answers.add(example, name, logarithms=logarithms, written=written)
                count += len(some)
                if left() <= 0:
                    break
        tell(cell[0].task, " and ".join(names), count, since)
        return count == len(due)

    try:
        with usual(model):
            for cell in cells_of(prompts.examples, options["rows"]):
                work = ask if cell[0].first is None else choose
                for reading in dict.fromkeys(reading for reading, _ in wanted.values()):
                    names = [name for name, how in wanted.items() if how[0] == reading]
                    try:
                        done = work(cell, reading, names)
                    except Exception:  # the next one may go well
                        what = f"length {cell[0].length}" if work is ask else cell[0].task
                        log(f"{what}, {' and '.join(names)}: failed\n{traceback.format_exc()}")
                        complete = False
                        continue
                    complete = done and complete
                    if not done:  # no time for it: what is asked beside it tells nothing alone
                        break
    except KeyboardInterrupt:
        log("stopped; the answers so far are kept")
        raise  # a script that asks more than once must not go on
    finally:
        answers.close()
    return complete


# -------------------------------------------------------------------------------------------------------------- steps


def prepare(args):
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "prompts.jsonl"
        words = ["--tokens", args.tokens] if args.tokens else []
        common.call(args.program, "eval", "--model", args.model, *words, "--prepare", lines, *args.tasks)
        with open(lines, encoding="utf-8") as file:
            examples, tokens = pack(file, args.out)
    print(f"{args.out}: {examples} examples, {tokens} tokens, {pathlib.Path(args.out).stat().st_size} bytes")


def loaded(args):
    """The model that the arguments name, with its adapter."""
    torch, hf = torch_and_hf()
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    kind = torch.bfloat16 if args.device.startswith("cuda") else torch.float32
    model = AutoModelForCausalLM.from_pretrained(**common.pretrained(args.model), dtype=kind).to(args.device).eval()
    if args.adapter:
        hf.load_adapter(model, args.adapter, stage=None, pointer=args.pointer is None)
    return model


def ask(args):
    torch, _ = torch_and_hf()
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    said = {"model": pathlib.Path(args.model).name, "adapter": args.adapter, "pointer": args.pointer or args.adapter}
    said |= dict(word.split("=", 1) for word in args.note)
    try:
        done = run(loaded(args), load(args.prompts, args.task, args.length, args.limit), args.conditions or None,
                   out=args.out, pointer=args.pointer, window=args.window, sinks=args.sinks, minutes=args.minutes,
                   rows=args.rows, chunk=args.chunk, recorded=args.recorded, settings=said)
    except KeyboardInterrupt:
        return 130
    print("all done" if done else "not all was done; the same command goes on")
    return 0 if done else 3


def finish(args):
    words = ["eval", "--model", args.model, "--answers", args.answers, "--out", args.out, *args.tasks]
    if args.tokens:
        words[1:1] = ["--tokens", args.tokens]
    if subprocess.run([args.program, *map(str, words)], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        common.die("the answers could not be scored")
    print(common.call(args.program, "report", args.out), end="")


def main(words=None):
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False, report=False)
    steps = parser.add_subparsers(dest="step", required=True)

    step = steps.add_parser("prepare", help="make token ids of tasks")
    step.set_defaults(work=prepare)
    step.add_argument("--out", required=True, help="the prompts, a file NAME.xz")

    step = steps.add_parser("run", help="ask a model")
    step.set_defaults(work=ask)
    step.add_argument("--model", required=True, help="a folder, or a GGUF file (needs the package gguf)")
    step.add_argument("--prompts", required=True, help="what `prepare` made")
    step.add_argument("--out", required=True, help="answers, which are appended there")
    step.add_argument("--adapter", help="a folder of save_adapter; its pointer is used too")
    step.add_argument("--pointer", help="another pointer")
    step.add_argument("--window", type=int, help="of attention, without an adapter")
    step.add_argument("--sinks", type=int, help="likewise (4)")
    step.add_argument("--conditions", nargs="+", default=[], help="by default all that apply")
    step.add_argument("--task", nargs="+", default=[], help="these, in this order")
    step.add_argument("--length", nargs="+", type=int, default=[], help="these, in this order")
    step.add_argument("--limit", type=int, default=0, help="at most so many examples of each task and length")
    step.add_argument("--minutes", type=float, default=math.inf, help="what would not end by then is left out")
    step.add_argument("--device", help="cuda where there is one")
    step.add_argument("--rows", type=int, help="prompts read side by side")
    step.add_argument("--chunk", type=int, default=4096, help="tokens of a prompt that are read at once")
    step.add_argument("--recorded", action=common.argparse.BooleanOptionalAction,
                      help="replay single steps as CUDA graphs; on a GPU by default")
    step.add_argument("--note", nargs="+", default=[], metavar="KEY=VALUE", help="to be written into the settings")

    step = steps.add_parser("finish", help="score answers, append the results to a file and print its table")
    step.set_defaults(work=finish)
    step.add_argument("--answers", required=True, help="what `run` made")
    step.add_argument("--out", required=True, help="results, as those of `rosatune eval`")

    for name in ("prepare", "finish"):
        step = steps.choices[name]
        step.add_argument("--program", default="build/rosatune", metavar="PATH", help="the rosatune that does it")
        step.add_argument("--model", required=True, help="whose tokenizer is used: a GGUF file or a folder")
        step.add_argument("--tokens", type=int, default=0, help="of an answer at most (by the task's name)")
        step.add_argument("tasks", nargs="+", help="files of `rosatune eval`")
    args = parser.parse_args(words)
    try:
        return args.work(args)
    except ValueError as error:
        common.die(error)


if __name__ == "__main__":
    sys.exit(main())
