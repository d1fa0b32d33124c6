"""Recall: does a model know what lies beyond its window?

A token is *far* for a window W if it and the two tokens before it stood in that order before, the last time W or more
tokens ago: only a memory beyond the window can know it. Losses are averaged separately over far tokens and over all
others. A memory shows on far tokens, and it vanishes when the adapter reads at random places; a gain that random reads
keep is style.

This module is the arithmetic and the result, on NumPy arrays; ``rosatune/hf/recall.py`` runs the models. The numbers
and the JSON are those of ``rosatune recall``.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any, Iterable, Optional, Union

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument

__all__ = ["CONDITIONS", "RecallResult", "Sums", "far_distances", "recall"]

# Every condition, in the order of tables. "window" is the window with its sinks; "pointer" and what follows a plus are
# the pointer's mixture on top of it. A model whose attention cannot be limited has "global+pointer" instead.
CONDITIONS = ("global", "window", "adapter", "off", "random", "pointer", "adapter+pointer", "global+pointer")

BINS = 32  # bin b holds distances from 2**b to 2**(b+1) - 1


def far_distances(ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """How many tokens before t the three tokens t-2, t-1, t last stood in that order; 0 if they never did.

    >>> far_distances([1, 2, 3, 9, 1, 2, 3, 1, 2, 3])
    array([0, 0, 0, 0, 0, 0, 4, 0, 0, 3])
    """
    tokens = np.asarray(ids)
    if tokens.ndim != 1:
        raise InvalidArgument(f"ids have shape {list(tokens.shape)}; give one text, [steps]")
    distance = np.zeros(len(tokens), np.int64)
    if len(tokens) >= 3:
        # Equal triples become neighbours, in the order of time: the sort is stable.
        order = np.lexsort((tokens[2:], tokens[1:-1], tokens[:-2]))
        triples = np.stack([tokens[:-2], tokens[1:-1], tokens[2:]])[:, order]
        same = (triples[:, 1:] == triples[:, :-1]).all(axis=0)
        distance[2 + order[1:]] = np.where(same, np.diff(order), 0)
    return distance


@dataclass
class Sums:
    """Sums of losses of some tokens. Two are added with ``+``."""

    far: float = 0.0
    rest: float = 0.0
    far_count: int = 0
    rest_count: int = 0
    by_distance: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(BINS))
    distance_count: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, losses: npt.NDArray[np.float64], distance: npt.NDArray[np.int64], window: int) -> None:
        """Add the losses of some tokens, and how long ago each stood before (:func:`far_distances`)."""
        known = distance > 0
        far = known & (distance >= window)
        self.far += float(losses[far].sum())
        self.rest += float(losses[~far].sum())
        self.far_count += int(far.sum())
        self.rest_count += int((~far).sum())
        bins = np.frexp(distance[known])[1] - 1
        self.by_distance += np.bincount(bins, losses[known], BINS)
        self.distance_count += np.bincount(bins, minlength=BINS)

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def count(self) -> int:
        return self.far_count + self.rest_count

    @property
    def far_share(self) -> float:
        return _ratio(self.far_count, self.count)

    @property
    def loss(self) -> float:
        """Mean over all tokens, in nats per token."""
        return _ratio(self.far + self.rest, self.count)

    def means(self) -> "dict[str, float]":
        """Perplexity over all tokens; mean losses on far tokens and on all others. NaN where there are none."""
        return {
            "ppl": math.exp(self.loss),
            "far": _ratio(self.far, self.far_count),
            "rest": _ratio(self.rest, self.rest_count),
        }

    def distances(self) -> "dict[str, dict[str, Any]]":
        """The mean loss by distance to the last occurrence; a bin is named by its least distance."""
        return {
            str(1 << b): {"tokens": int(self.distance_count[b]), "loss": self.by_distance[b] / self.distance_count[b]}
            for b in range(BINS)
            if self.distance_count[b]
        }


def _ratio(total: float, count: int) -> float:
    return total / count if count else math.nan


def standard_error(books: Iterable[Sums], far: bool) -> float:
    """The standard error, over books, of the mean loss on far tokens or on all.

    It is that of a ratio of sums, each book being one draw; NaN for fewer than two books that have such tokens.
    """
    pairs = [(book.far, book.far_count) if far else (book.far + book.rest, book.count) for book in books]
    tokens = sum(count for _, count in pairs)
    used = sum(count > 0 for _, count in pairs)
    if used < 2:
        return math.nan
    whole = sum(loss for loss, _ in pairs) / tokens
    squares = sum((loss - whole * count) ** 2 for loss, count in pairs)
    return math.sqrt(squares * used / (used - 1)) / tokens


@dataclass
class RecallResult:
    """What :func:`recall` measured. ``print(result)`` shows a table."""

    window: int
    sinks: int
    context: int
    sums: "dict[str, dict[str, Sums]]"  #: by condition, by book
    pointer: Optional[str] = None  #: its file, or where else it came from
    notes: "list[str]" = field(default_factory=list)  #: what could not be measured, and why

    def total(self, condition: str) -> Sums:
        """All books under one condition."""
        if condition not in self.sums:
            raise InvalidArgument(f"{condition!r} was not measured; there are {', '.join(map(repr, self.sums))}")
        return sum(self.sums[condition].values(), Sums())

    def _any(self) -> Sums:
        return self.total(next(iter(self.sums)))

    @property
    def far_share(self) -> float:
        """The share of far tokens."""
        return self._any().far_share

    @property
    def conditions(self) -> "dict[str, dict[str, Any]]":
        """By condition: ``ppl``, ``far``, ``rest``, their standard errors over books, and ``distance``."""
        return {
            name: {
                **self.total(name).means(),
                "far_error": standard_error(books.values(), True),
                "loss_error": standard_error(books.values(), False),
                "distance": self.total(name).distances(),
            }
            for name, books in self.sums.items()
        }

    @property
    def books(self) -> "dict[str, dict[str, dict[str, float]]]":
        """By book and condition: ``ppl``, ``far``, ``rest``."""
        return {
            book: {name: books[book].means() for name, books in self.sums.items()}
            for book in next(iter(self.sums.values()))
        }

    def recovered(self, condition: str = "adapter") -> "tuple[float, float]":
        """The share of what the window loses that a condition returns: on far tokens, and of all loss.

        This compares with the same model untrained. A trained adapter has to be compared with a window and with global
        attention that were trained alike.
        """
        window, whole, here = (self.total(name) for name in ("window", "global", condition))
        far = [sums.means()["far"] for sums in (window, whole, here)]
        return (far[0] - far[2]) / (far[0] - far[1]), (window.loss - here.loss) / (window.loss - whole.loss)

    # --------------------------------------------------------------------------------------------------------- output

    def to_dict(self) -> "dict[str, Any]":
        """What ``rosatune recall --json`` prints. Where there are no tokens, means are None."""
        fields: dict[str, Any] = {
            "window": self.window,
            "sinks": self.sinks,
            "context": self.context,
            "tokens": self._any().count,
        }
        fields.update(far_share=self.far_share, pointer=self.pointer, conditions=self.conditions, books=self.books)
        return _finite(fields)

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        books = next(iter(self.sums.values()))
        lines = [
            f"{self._any().count} tokens of {len(books)} text{'s' if len(books) != 1 else ''}, from position "
            f"{4 * self.window} of pieces of {self.context}; {100 * self.far_share:.2f} % are far: the same three",
            f"tokens last stood {self.window} or more before.",
            "",
            f"{'':15} {'perplexity':>10} {'loss on far tokens':>20} {'on all others':>20}",
        ]
        for name, row in self.conditions.items():
            error = "" if math.isnan(row["far_error"]) else f" +- {row['far_error']:.4f}"
            far = f"{row['far']:.4f}{error}"
            lines.append(f"{name:15} {row['ppl']:10.3f} {far:>20} {row['rest']:20.4f}")
        lines += self._told()
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)

    def _told(self) -> "list[str]":
        """What the adapter and the pointer return of what the window loses."""
        if "window" not in self.sums or "global" not in self.sums:
            return []
        if not self.total("window").means()["far"] > self.total("global").means()["far"]:
            return ["", "The window loses nothing on far tokens here, so there is nothing to return."]
        told = {
            "adapter": "the adapter",
            "random": "the same, reading at random",
            "pointer": "the pointer",
            "adapter+pointer": "the adapter and the pointer",
        }
        lines = []
        for name, what in told.items():
            if name in self.sums:
                far, loss = self.recovered(name)
                lines.append(f"{what:28} {100 * far:5.1f} % on far tokens, {100 * loss:5.1f} % of all loss")
        if lines:
            lines = ["", "Of what the window loses against global attention, this returns:", *lines]
        if "random" in self.sums:
            lines += [
                "What random reads keep is style, not memory. A trained adapter has to be compared with a window",
                "and with global attention trained alike.",
            ]
        return lines

    def plot(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Draw the loss against the distance to the last occurrence, a curve per condition. Needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
        figure = Figure(figsize=(9, 5.6), layout="constrained")
        axes = figure.subplots()
        for name, row in self.conditions.items():
            # The middle of a bin on the logarithmic axis.
            points = [(math.sqrt(2) * int(least), bin["loss"]) for least, bin in row["distance"].items()]
            axes.plot(*zip(*points), marker="o", markersize=4, label=name) if points else None
        axes.axvline(self.window, color="grey", linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens since the same three tokens last stood there")
        axes.set_ylabel("loss, nats per token")
        axes.grid(True, alpha=0.3)
        axes.legend()
        figure.savefig(path)


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def recall(
    model: Any,
    texts: Any,
    *,
    window: Optional[int] = None,
    sinks: Optional[int] = None,
    context: int = 4096,
    pieces: Optional[int] = None,
    pointer: Any = None,
    conditions: Union[str, Iterable[str], None] = None,
    tokenizer: Any = None,
    batch: int = 1,
    progress: Any = None,
) -> RecallResult:
    """Measure whether a model of transformers knows what lies beyond its window.

    Args:
        model: a causal model of transformers, with adapters, a pointer, both or neither.
        texts: names of files, or token ids; a list of them, or a dictionary by name.
        window, sinks: what attention sees; by default those that the adapters were attached with, and 4 sinks.
        context: each text is cut into pieces of this many tokens, each read from an empty state. Positions from four
            windows on are scored.
        pieces: take only the first so many pieces of each text; None: all.
        pointer: a :class:`rosatune.Pointer` or the name of its file; by default the one that is attached to the model.
        conditions: which to measure; by default all that apply: ``global`` attention, ``window`` and sinks,
            ``adapter``, the same adapter ``off`` (nothing injected) and reading at ``random``, and with a pointer
            ``pointer`` (beside the window alone) and ``adapter+pointer``.
        tokenizer: for files; by default that of the model's folder.
        batch: pieces that are read side by side.
        progress: called as ``progress(done, total)`` in tokens.

    The window of a model without adapters is made for the measurement where the model's class allows it; otherwise the
    result says so. The model is left as it was.
    """
    from .hf.recall import measure

    return measure(model, texts, window, sinks, context, pieces, pointer, conditions, tokenizer, batch, progress)
