"""Where a batch of texts reads: the look-up of one source, at once or as the texts grow.

A *source* is a pair of symbol streams (query and key) per route. A *place* is a step that is read, with the length of
the match that led there. The places of a step form a *chain*: the first is what retrieval finds; the next is what that
place had itself found, without delay. Each place of a chain is a *link*. Only sources whose query is their key have
further links.

Rows of a batch may hold padding. It is neither looked up nor found: retrieval runs over each row's valid steps alone,
and places are given back as steps of the batch, so that a caller can index its activations with them.
"""

from __future__ import annotations

import bisect
import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np
import numpy.typing as npt

from . import _draw
from .config import RosaConfig, Source
from .errors import InvalidArgument
from .retrieval import Retrieved, chain, retrieve
from .stream import Stream

__all__ = ["Finder", "Places", "READS", "Rule", "find", "random_places"]

# What is read: what was found, nothing, or a random place in the stead of each that was found.
READS = ("found", "nothing", "random")

LENGTH = 255  # match lengths are cut here, so that they fit into a byte
SHARED_SEED = 1 << 32  # of random places of the first source that layers share; the program has the same
VOCABULARY = 1 << 20  # token ids are below this
TOGETHER = 1024  # steps whose two look-ups, with and without delay, are worth a thread
BEFORE = 2  # columns that hold nothing before what the steps of a row found, see _chain


class Places(NamedTuple):
    """Places of a batch: arrays [links, rows, routes, steps]."""

    tau: npt.NDArray[np.int32]  #: the step of the batch that is read; -1: none
    length: npt.NDArray[np.uint8]  #: the length of the match, cut at 255; 0 where nothing was found


class Rule(NamedTuple):
    """How the places of a source are looked up."""

    routes: int
    bits: int
    policy: str
    fold: bool
    max_match: Optional[int]
    delay: int
    links: int
    seed: int = 0  # of random places

    @classmethod
    def of(
        cls, config: RosaConfig, source: Source, channels: int, vocabulary: int = 1 << 16, layer: int = 0
    ) -> "Rule":
        """The rule of a source. ``channels`` and ``vocabulary`` are the model's; ``layer`` looks up its own symbols."""
        tokens = source.kind == "tokens"
        if tokens and vocabulary > VOCABULARY:
            raise InvalidArgument(
                f"source is 'tokens', and the vocabulary of {vocabulary} tokens is above {VOCABULARY}; "
                f"use source='embeddings'"
            )
        if not tokens and channels % config.bits:
            fitting = ", ".join(str(bits) for bits in range(1, 17) if channels % bits == 0)
            raise InvalidArgument(
                f"source is {source.name!r}, and {channels} channels are not a multiple of bits {config.bits}; "
                f"bits may be {fitting}"
            )
        return cls(
            1 if tokens else channels // config.bits,
            (16 if vocabulary <= 1 << 16 else 20) if tokens else config.bits,
            config.policy,
            config.fold and not tokens,
            config.max_match,
            config.delay_steps,
            config.links(source),
            layer if source.kind == "own" else SHARED_SEED + config.sources.index(source),
        )

    def retrieval(self, delay: int) -> Dict[str, Any]:
        """The options of ``retrieve`` and ``Stream``."""
        found = dict(bits=self.bits, policy=self.policy, fold=self.fold, max_match=self.max_match)
        return {**found, "delay": delay} if delay else found


# ------------------------------------------------------------------------------------------------------------- chains


def _given(lengths: Optional[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """Match lengths that were asked for."""
    assert lengths is not None
    return lengths


def _chain(
    links: int, first: Retrieved, known: npt.NDArray[np.int32]
) -> Tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The links of a text's last steps, [links, routes, t], from what they found and what all steps found without delay.

    ``known`` is [2, routes, capacity], places and lengths from column ``BEFORE`` on: what step d - 1 found, which is the
    link after place d, is in column d + 1, and nothing at all is there for d = -1 and d = 0. So a link takes four
    operations, which is what counts where a token is looked up while a device waits. :func:`rosatune.chain` is the same
    for all steps.
    """
    tau, length = (np.empty((links, *first.tau.shape), np.int32) for _ in range(2))
    tau[0], length[0] = first.tau, _given(first.length)
    _, routes, width = known.shape
    lane = np.arange(1, 1 + routes * width, width)[:, None]
    known_tau, known_length = known.reshape(2, -1)
    for link in range(1, links):
        before = tau[link - 1] + lane
        known_tau.take(before, out=tau[link], mode="clip")
        np.minimum(length[link - 1], known_length.take(before), out=length[link])
    return tau, length


def random_places(rule: Rule, tau: npt.NDArray[np.int32], begin: int) -> npt.NDArray[np.int32]:
    """A random place, as old as the delay wants, for each place [links, ..., routes, t]; ``begin``: time of the first.

    The draw is a function of the source, the link, the route and the time, the same as in the program.
    """
    links, *rows, routes, steps = tau.shape
    time = np.arange(begin, begin + steps)
    lane = np.arange(links * routes).reshape(links, *(1 for _ in rows), routes, 1)
    drawn = _draw.draw_long(rule.seed, lane, time) % np.maximum(time - rule.delay, 1).astype(np.uint64)
    return np.where(tau >= 0, drawn.astype(np.int64), -1).astype(np.int32)


# -------------------------------------------------------------------------------------------------------- whole texts


def find(
    rule: Rule,
    query: npt.NDArray[Any],
    key: npt.NDArray[Any],
    valid: Optional[npt.NDArray[np.bool_]] = None,
    reads: Iterable[str] = ("found",),
    threads: int = 0,
) -> Dict[str, Places]:
    """The places of whole texts, by what is to be read: query and key [rows, routes, steps], valid [rows, steps]."""
    rows, routes, steps = query.shape
    same = key is query
    order = None
    if valid is not None and not valid.all():
        # Valid steps first: what follows a step does not change what it finds.
        order = np.argsort(~valid, axis=1, kind="stable").astype(np.int32)
        query = np.take_along_axis(query, order[:, None], 2)
        key = query if same else np.take_along_axis(key, order[:, None], 2)
    if query.size:
        first = retrieve(query, key, length=True, threads=threads, **rule.retrieval(rule.delay))
    else:
        first = Retrieved(np.full(query.shape, -1, np.int32), np.zeros(query.shape, np.int32))
    known = first
    if rule.links > 1 and rule.delay and query.size:
        known = retrieve(query, key, length=True, threads=threads, **rule.retrieval(0))
    tau, lengths, _ = chain(first, known, rule.links)
    length = np.minimum(_given(lengths), LENGTH).astype(np.uint8)
    found = {}
    for kind in reads:
        there = tau
        if kind == "random":
            there = random_places(rule, tau, 0)
        found[kind] = _spread(there, length, valid, order)
    return found


def _spread(
    tau: npt.NDArray[np.int32],
    length: npt.NDArray[np.uint8],
    valid: Optional[npt.NDArray[np.bool_]],
    order: Optional[npt.NDArray[np.int32]],
) -> Places:
    """Places of valid steps, which stand first in each row, as places among all steps of the batch."""
    if order is None or valid is None:
        return Places(tau, length)
    all_tau, all_length = np.full_like(tau, -1), np.zeros_like(length)
    for row, mine in enumerate(valid):
        count = int(mine.sum())
        there = tau[:, row, :, :count]
        all_tau[:, row][..., mine] = np.where(there >= 0, order[row][there], -1)
        all_length[:, row][..., mine] = length[:, row, :, :count]
    return Places(all_tau, all_length)


# ------------------------------------------------------------------------------------------------------ growing texts


def _nothing(routes: int, columns: int) -> npt.NDArray[np.int32]:
    """[2, routes, columns]: places of -1, lengths of 0."""
    found = np.zeros((2, routes, columns), np.int32)
    found[0] = -1
    return found


class _Row:
    """The past of one row."""

    def __init__(self, rule: Rule, threads: int) -> None:
        self.stream = Stream(rule.routes, threads=threads, **rule.retrieval(rule.delay))
        self.padding: List[int] = []  # steps of the batch that were padding in this row
        self.plain: Optional[Stream] = None  # the same without delay, where chains need it
        self.known: Optional[npt.NDArray[np.int32]] = None  # [2, routes, capacity]: what it found, and the lengths
        if rule.links > 1:
            self.known = _nothing(rule.routes, BEFORE)
            if rule.delay:
                self.plain = Stream(rule.routes, threads=threads, **rule.retrieval(0))

    @property
    def nbytes(self) -> int:
        plain = 0 if self.plain is None else self.plain.nbytes
        return self.stream.nbytes + plain + (0 if self.known is None else self.known.nbytes)

    def push(self, rule: Rule, query: npt.NDArray[Any], key: npt.NDArray[Any]) -> "tuple[Any, Any]":
        """Append steps [routes, t]; gives their places and lengths [links, routes, t], counted in valid steps."""
        begin, count = self.stream.steps, query.shape[1]
        if self.plain is None or count < TOGETHER:
            first = self.stream.push(query, key, length=True)
            plain = first if self.plain is None else self.plain.push(query, key, length=True)
        else:
            with ThreadPoolExecutor(1) as beside:  # the two know nothing of each other
                later = beside.submit(self.plain.push, query, key, length=True)
                first = self.stream.push(query, key, length=True)
            plain = later.result()
        if self.known is None:
            return first.tau[None], _given(first.length)[None]
        begin += BEFORE
        if begin + count > self.known.shape[2]:
            # a quarter more than needed, so that the cost of growing is small per step
            room = _nothing(rule.routes, (begin + count) * 5 // 4 + 16)
            room[..., :begin] = self.known[..., :begin]
            self.known = room
        self.known[0, :, begin : begin + count] = plain.tau
        self.known[1, :, begin : begin + count] = _given(plain.length)
        return _chain(rule.links, first, self.known)

    def rewind(self, steps: int) -> None:
        """Back to the first ``steps`` steps of the batch."""
        del self.padding[bisect.bisect_left(self.padding, steps) :]
        for stream in (self.stream, self.plain):
            if stream is not None:
                stream.rewind(steps - len(self.padding))

    def batch_steps(self, steps: int) -> Optional[npt.NDArray[np.int32]]:
        """The steps of the batch that this row's valid steps are, of the first ``steps``; None: all of them."""
        if not self.padding:
            return None
        mine = np.ones(steps, np.bool_)
        mine[self.padding] = False
        return np.flatnonzero(mine).astype(np.int32)


class Finder:
    """The look-up of one source for rows of text that grow. In pieces of any size it finds what :func:`find` does.

    It can be copied and pickled.
    """

    def __init__(self, rule: Rule, batch: int, threads: int = 1) -> None:
        if batch < 1:
            raise InvalidArgument(f"batch is {batch}; give the number of rows, 1 or more")
        self.rule, self._threads = rule, threads
        self._steps = 0
        self._rows = [_Row(rule, threads) for _ in range(batch)]

    @property
    def batch(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def steps(self) -> int:
        """Steps taken, padding counted."""
        return self._steps

    @property
    def lengths(self) -> List[int]:
        """Steps of each row, padding not counted."""
        return [row.stream.steps for row in self._rows]

    @property
    def nbytes(self) -> int:
        """Every byte that is kept."""
        return sum(row.nbytes for row in self._rows)

    def push(
        self,
        query: npt.NDArray[Any],
        key: npt.NDArray[Any],
        valid: Optional[npt.NDArray[np.bool_]] = None,
        reads: Iterable[str] = ("found",),
    ) -> Dict[str, Places]:
        """Append steps: query and key are [rows, routes, t]. Steps that ``valid`` [rows, t] excludes find nothing."""
        if query.shape[:2] != (self.batch, self.rule.routes):
            raise InvalidArgument(
                f"{query.shape[0]} rows of {query.shape[1]} routes come to a state of {self.batch} rows of "
                f"{self.rule.routes}; make a state for this adapter and batch"
            )
        steps = query.shape[2]
        shape = (self.rule.links, *query.shape)
        found = {kind: Places(np.full(shape, -1, np.int32), np.zeros(shape, np.uint8)) for kind in reads}
        for number, row in enumerate(self._rows):
            mine: Any = slice(None)
            if valid is not None and not valid[number].all():
                mine = np.flatnonzero(valid[number])
                row.padding += (np.flatnonzero(~valid[number]) + self._steps).tolist()
            begin = row.stream.steps
            q = np.ascontiguousarray(query[number][:, mine])
            k = q if key is query else np.ascontiguousarray(key[number][:, mine])
            if q.shape[1] == 0:
                continue
            tau, length = row.push(self.rule, q, k)
            batch_steps = row.batch_steps(self._steps + steps)
            for kind, places in found.items():
                there = random_places(self.rule, tau, begin) if kind == "random" else tau
                if batch_steps is not None:
                    there = np.where(there >= 0, batch_steps[there], -1)
                places.tau[:, number][..., mine] = there
                places.length[:, number][..., mine] = np.minimum(length, LENGTH)
        self._steps += steps
        return found

    def reset(self) -> None:
        """Forget everything."""
        self._steps = 0
        self._rows = [_Row(self.rule, self._threads) for _ in self._rows]

    def rewind(self, steps: int) -> None:
        """Forget the last ``steps`` steps."""
        if not 0 <= steps <= self._steps:
            raise InvalidArgument(f"steps is {steps}; the state holds {self._steps}, more cannot be forgotten")
        self._steps -= steps
        for row in self._rows:
            row.rewind(self._steps)

    def reorder(self, indices: Iterable[int]) -> None:
        """Row i becomes a copy of what row ``indices[i]`` was: beam search, and batches that grow or shrink."""
        self._rows = reordered(self._rows, indices)

    def fork(self) -> "Finder":
        """A second, independent one that continues from here."""
        return copy.deepcopy(self)


def reordered(rows: List[Any], indices: Iterable[int]) -> List[Any]:
    """Rows in a new order; one that is named twice is copied."""
    chosen = [int(index) for index in indices]
    for index in chosen:
        if not 0 <= index < len(rows):
            raise InvalidArgument(f"indices has {index}; there are rows 0 to {len(rows) - 1}")
    if not chosen:
        raise InvalidArgument("indices is empty; a state has one row at least")
    taken = set()
    found = []
    for index in chosen:
        found.append(copy.deepcopy(rows[index]) if index in taken else rows[index])
        taken.add(index)
    return found
