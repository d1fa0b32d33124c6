"""How often each token has been seen: the table ``seen`` of a pointer (:mod:`rosatune.pointer`).

What was seen is known by a text and a position in it, so nothing is counted before it is asked for: :class:`Seen` names
positions of texts, and can be indexed by them as the arrays of links are.
"""

from __future__ import annotations

from typing import Any, Iterable, List, Optional

import numpy as np
import numpy.typing as npt

__all__ = ["COUNTS", "RANKS", "Seen", "SeenStream", "rank_classes"]

COUNTS = 4  # classes of how often: once; 2, 3; 4 to 7; 8 times and more
RANKS = 15  # classes of ids, by the binary logarithm
FIRST = 64  # ids below this are one class


class Seen:
    """Positions of texts. What has been seen at one: what ``before`` counts, and the first ``old`` of ``tokens``."""

    __slots__ = ("before", "old", "row", "tokens")

    def __init__(self, before: Optional[npt.NDArray[np.int32]], tokens: npt.NDArray[Any], row: Any, old: Any) -> None:
        self.before = before  # [rows, ids], how often each id was seen before the first position; None: never
        self.tokens = tokens  # [rows, n], the tokens that follow those, in the order of the text
        self.row = row  # [...], the row of each position
        self.old = old  # [...], how many of the row's tokens have been seen there

    @classmethod
    def whole(cls, ids: npt.NDArray[Any], delay: int) -> "Seen":
        """All positions of whole texts [rows, steps]."""
        rows, steps = ids.shape
        old = np.broadcast_to(np.maximum(np.arange(steps) - delay, 0), ids.shape)
        return cls(None, ids, np.broadcast_to(np.arange(rows)[:, None], ids.shape), old)

    @classmethod
    def stacked(cls, some: "List[Seen]") -> "Seen":
        """Single positions, one after the other."""
        ids = max((x.before.shape[1] for x in some if x.before is not None), default=0)
        longest = max(x.tokens.shape[1] for x in some)
        before = np.zeros((len(some), ids), np.int32)
        tokens = np.zeros((len(some), longest), np.int64)
        for place, x in enumerate(some):
            row = int(x.row)
            if x.before is not None:
                before[place, : x.before.shape[1]] = x.before[row]
            tokens[place, : x.tokens.shape[1]] = x.tokens[row]
        return cls(before, tokens, np.arange(len(some)), np.array([int(x.old) for x in some]))

    def __getitem__(self, key: Any) -> "Seen":
        return Seen(self.before, self.tokens, self.row[key], self.old[key])

    def reshape(self, *shape: int) -> "Seen":
        return Seen(self.before, self.tokens, self.row.reshape(shape), self.old.reshape(shape))

    @property
    def shape(self) -> "tuple[int, ...]":
        return tuple(self.row.shape)


class SeenStream:
    """The counts of texts that grow. Copying it copies the counts."""

    def __init__(self, delay: int, batch: int) -> None:
        self._delay = delay
        self._counts = np.zeros((batch, 0), np.int32)
        self._counted = np.zeros(batch, np.int64)  # so many tokens of each row are in them

    def push(self, texts: "List[npt.NDArray[Any]]", real: npt.NDArray[np.bool_]) -> Seen:
        """What has been seen at the new positions of texts that have grown, or were cut and have grown again.

        ``texts`` are the tokens of each row, without padding; ``real`` [rows, new] tells which new positions are
        tokens.
        """
        places = np.array([len(text) for text in texts])[:, None] - real[:, ::-1].cumsum(1)[:, ::-1]
        places = np.where(real, places, places - 1)  # of each position's last token
        old = np.maximum(places - self._delay, 0)
        begin, end = (old[:, 0], old[:, -1]) if old.size else (self._counted, self._counted)
        tokens = np.zeros((len(texts), int((end - begin).max(initial=0))), np.int64)
        for row, text in enumerate(texts):
            self._count(row, text, int(begin[row]))
            tokens[row, : end[row] - begin[row]] = text[begin[row] : end[row]]
        rows = np.broadcast_to(np.arange(len(texts))[:, None], old.shape)
        return Seen(self._counts.copy(), tokens, rows, old - begin[:, None])

    def reorder(self, rows: Iterable[int]) -> None:
        """Row i becomes a copy of what row ``rows[i]`` was."""
        chosen = list(rows)
        self._counts, self._counted = self._counts[chosen], self._counted[chosen]

    def _count(self, row: int, text: npt.NDArray[Any], end: int) -> None:
        """Make the counts of a row those of the first ``end`` tokens of its text."""
        if end < self._counted[row]:
            self._counts[row], self._counted[row] = 0, 0
        new = text[self._counted[row] : end]
        if new.size:
            highest = int(new.max()) + 1
            if highest > self._counts.shape[1]:
                wider = np.zeros((len(self._counts), highest * 5 // 4 + 16), np.int32)
                wider[:, : self._counts.shape[1]] = self._counts
                self._counts = wider
            np.add.at(self._counts[row], new, 1)
            self._counted[row] = end


def rank_classes(vocabulary: int) -> npt.NDArray[np.int64]:
    """[vocabulary]: floor(log2(id + 64)) - 6."""
    return np.frexp(np.arange(vocabulary) + float(FIRST))[1].astype(np.int64) - int(FIRST).bit_length()
