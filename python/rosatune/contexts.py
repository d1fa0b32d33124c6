"""What followed earlier occurrences of a text's ending: the search of a pointer by contexts (``rosatune.h``, 3b).

A batch of texts that grow. Rows may hold padding, which is neither looked up nor found: each row's valid tokens are a
text of their own, and places are given back as positions of the batch.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_void_p
from typing import Any, Iterable, List, Optional

import numpy as np
import numpy.typing as npt

from . import _c

__all__ = ["Contexts"]

CANDIDATES = _c.CANDIDATES
ENTRY = np.dtype(_c.rosa_continuation)


class Contexts:
    """The contexts of a batch of texts. It can be copied and pickled."""

    def __init__(self, delay: int, batch: int = 1) -> None:
        self._delay = delay
        self._handles: List[c_void_p] = []
        self._ids = np.zeros((batch, 0), np.uint32)  # with spare room
        self._valid = np.zeros((batch, 0), np.bool_)
        self.steps = 0
        self._handles = [self._new() for _ in range(batch)]

    @property
    def batch(self) -> int:
        """How many texts there are."""
        return len(self._ids)

    def push(self, ids: npt.NDArray[np.uint32], valid: Optional[npt.NDArray[np.bool_]] = None) -> Any:
        """Append tokens [batch, steps]. The entries of ``rosa_continuation``, [batch, steps]; 0 at padding."""
        before, after = self.steps, self.steps + ids.shape[1]
        if after > self._ids.shape[1]:
            room = (self.batch, after * 5 // 4 + 16)
            grown: List[Any] = [np.zeros(room, np.uint32), np.zeros(room, np.bool_)]
            for array, old in zip(grown, (self._ids, self._valid)):
                array[:, :before] = old[:, :before]
            self._ids, self._valid = grown
        self._ids[:, before:after] = ids
        self._valid[:, before:after] = True if valid is None else valid
        found = np.zeros(ids.shape, ENTRY)
        found["place"] = -1
        for row, handle in enumerate(self._handles):
            here = self._valid[row, before:after]
            tokens = np.ascontiguousarray(ids[row, here])
            if not tokens.size:
                continue
            entries = np.zeros(tokens.size, ENTRY)
            target = entries.ctypes.data_as(POINTER(_c.rosa_continuation))
            _c.call("rosa_contexts_push", handle, tokens.size, tokens.ctypes.data, target)
            there = np.arange(CANDIDATES) < entries["count"][:, None]
            positions = np.flatnonzero(self._valid[row, :after]).astype(np.int32)
            entries["place"] = np.where(there, positions[entries["place"]], -1)
            found[row, here] = entries
        self.steps = after
        return found

    def texts(self) -> "List[npt.NDArray[np.uint32]]":
        """The tokens of each row, without padding."""
        return [ids[valid] for ids, valid in zip(self._ids[:, : self.steps], self._valid[:, : self.steps])]

    def rewind(self, steps: int) -> None:
        """Go back by so many positions."""
        kept = self.steps - steps
        for row, handle in enumerate(self._handles):
            _c.call("rosa_contexts_rewind", handle, int(self._valid[row, :kept].sum()))
        self.steps = kept

    def reorder(self, rows: Iterable[int]) -> None:
        """Row i becomes a copy of what row ``rows[i]`` was."""
        chosen = list(rows)
        made, used = [], set()
        for row in chosen:
            made.append(self._fork(self._handles[row]) if row in used else self._handles[row])
            used.add(row)
        for row, handle in enumerate(self._handles):
            if row not in used:
                _c.lib.rosa_contexts_free(handle)
        self._handles = made
        self._ids, self._valid = self._ids[chosen], self._valid[chosen]

    def _new(self) -> c_void_p:
        options = _c.rosa_options(size=ctypes.sizeof(_c.rosa_options), bits=16, fold=0, threads=1, delay=self._delay)
        handle = c_void_p()
        _c.call("rosa_contexts_new", byref(options), byref(handle))
        return handle

    @staticmethod
    def _fork(handle: c_void_p) -> c_void_p:
        copy = c_void_p()
        _c.call("rosa_contexts_fork", handle, byref(copy))
        return copy

    def __deepcopy__(self, memo: Any) -> "Contexts":
        made = Contexts(self._delay, 0)
        made._handles = [self._fork(handle) for handle in self._handles]
        made._ids, made._valid, made.steps = self._ids.copy(), self._valid.copy(), self.steps
        return made

    def __getstate__(self) -> Any:
        return self._delay, self._ids[:, : self.steps].copy(), self._valid[:, : self.steps].copy()

    def __setstate__(self, state: Any) -> None:
        delay, ids, valid = state
        self.__init__(delay, len(ids))  # type: ignore[misc]
        self.push(ids, valid)

    def __del__(self) -> None:
        for handle in getattr(self, "_handles", []):
            _c.lib.rosa_contexts_free(handle)
