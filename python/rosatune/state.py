"""What an adapter keeps of the text so far, while a text is generated."""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from ._watch import Watch
from .errors import InvalidArgument
from .finder import Finder, Places
from .torch._past import Past

__all__ = ["RosaState"]

ROUTES_PER_THREAD = 16


class RosaState:
    """What an adapter keeps of the text so far, for a batch of ``batch`` rows.

    Give it to the adapter with every piece of the text: ``adapter(u, state=state)``. It can be copied and pickled.

    The newest value bits stay on the GPU, as many as ``device_bytes`` allows. Older ones move to pinned memory of the
    host, where kernels read the few rows that a step needs, so that the GPU's memory does not grow with the text.
    """

    device_bytes = 16 << 20  #: of one layer's values; set it on the class, before a text is begun

    def __init__(self, adapter: Any, batch: int) -> None:
        if batch < 1:
            raise InvalidArgument(f"batch is {batch}; give the number of rows, 1 or more")
        self._batch, self._steps = batch, 0
        self._past = Past(self.device_bytes)
        self._finder: Optional[Finder] = None
        rule = adapter.learnt_rule
        if rule is not None:
            # Every stream has its own threads, and a model has a state per layer: few threads, each with enough work.
            threads = max(1, min(torch.get_num_threads(), rule.routes // ROUTES_PER_THREAD) // batch)
            self._finder = Finder(rule, batch, threads)

    @property
    def batch(self) -> int:
        """The number of rows."""
        return self._batch

    @property
    def steps(self) -> int:
        """Steps taken, padding counted."""
        return self._steps

    @property
    def lengths(self) -> List[int]:
        """Steps of each row; padding is not counted where the adapter looks up by itself."""
        return [self._steps] * self._batch if self._finder is None else self._finder.lengths

    @property
    def bytes(self) -> int:
        """Every byte that is kept."""
        return self._past.nbytes + (0 if self._finder is None else self._finder.nbytes)

    def reset(self) -> None:
        """Forget everything."""
        self._steps, self._past = 0, Past(self.device_bytes)
        if self._finder is not None:
            self._finder.reset()

    def rewind(self, steps: int) -> None:
        """Forget the last ``steps`` steps."""
        if not 0 <= steps <= self._steps:
            raise InvalidArgument(f"steps is {steps}; the state holds {self._steps}, more cannot be forgotten")
        self._steps -= steps
        if self._finder is not None:
            self._finder.rewind(steps)

    def reorder(self, indices: Union[Tensor, Iterable[int]]) -> None:
        """Row i becomes a copy of what row ``indices[i]`` was: beam search, and batches that grow or shrink."""
        chosen = [int(index) for index in indices]
        for index in chosen:
            if not 0 <= index < self._batch:
                raise InvalidArgument(f"indices has {index}; there are rows 0 to {self._batch - 1}")
        if not chosen:
            raise InvalidArgument("indices is empty; a state has one row at least")
        if self._finder is not None:
            self._finder.reorder(chosen)
        self._past.reorder(chosen)
        self._batch = len(chosen)

    def fork(self) -> "RosaState":
        """A second, independent state that continues from here."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return f"<RosaState batch={self.batch} steps={self.steps} bytes={self.bytes}>"

    @property
    def past(self) -> Past:
        """What keeps the value bits."""
        return self._past

    def advance(self) -> None:
        """Count a step whose value bits were kept by other means."""
        self._steps += 1

    def take(self, v: Tensor) -> Tuple[Past, int]:
        """Count the steps of v [B, t, C]; gives what is to keep their value bits, and how many steps came before."""
        if len(v) != self._batch:
            raise InvalidArgument(f"{len(v)} rows come to a state of {self._batch} rows; make a state for this batch")
        begin = self._steps
        self._steps += v.shape[1]
        return self._past, begin

    def find(
        self, symbols: np.ndarray, valid: Optional[np.ndarray], reads: Iterable[str], watch: Optional[Watch] = None
    ) -> Dict[str, Places]:
        """Append symbols [2, B, R, t] of q and k to what the adapter looks up by itself; gives their places."""
        assert self._finder is not None
        before = self._finder.steps
        kinds = {*reads, "found"} - {"nothing"}
        found = self._finder.push(symbols[0], symbols[1], valid, kinds)
        if watch is not None:
            for row in range(self._batch):
                mine = slice(None) if valid is None else valid[row]
                query, key = (np.ascontiguousarray(kind[row][:, mine]) for kind in symbols)
                tau, length = (x[0, row][:, mine] for x in found["found"])
                time = np.arange(before, before + symbols.shape[3], dtype=np.int32)[mine]
                watch.add(query, key, tau, length.astype(np.int32), time)
        return found
