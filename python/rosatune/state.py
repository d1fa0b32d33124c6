"""What an adapter keeps of the text so far, while a text is generated."""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterable, List, Optional, Union

import numpy as np
import torch
from torch import Tensor

from ._watch import Watch
from .errors import InvalidArgument
from .finder import Finder, Places
from .torch import _read

__all__ = ["RosaState"]

ROUTES_PER_THREAD = 16


class RosaState:
    """What an adapter keeps of the text so far, for a batch of ``batch`` rows.

    Give it to the adapter with every piece of the text: ``adapter(u, state=state)``. It can be copied and pickled.

    Value bits stay on the GPU until they take more than ``device_bytes``. Then they move to pinned memory of the host,
    where kernels read the few rows that a step needs in place, so that the GPU's memory does not grow with the text.
    """

    device_bytes = 16 << 20  #: of one layer's values; set it on the class, before a text is begun

    def __init__(self, adapter: Any, batch: int) -> None:
        if batch < 1:
            raise InvalidArgument(f"batch is {batch}; give the number of rows, 1 or more")
        self._batch, self._steps = batch, 0
        self._values: Optional[Tensor] = None  # [B, capacity, C / 8], set for the steps taken
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
        values = 0 if self._values is None else self._values.nbytes
        return values + (0 if self._finder is None else self._finder.nbytes)

    def reset(self) -> None:
        """Forget everything."""
        self._steps, self._values = 0, None
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
        if self._values is not None:
            self._settle()
            self._values = self._values[torch.tensor(chosen, device=self._values.device)]
        self._batch = len(chosen)

    def fork(self) -> "RosaState":
        """A second, independent state that continues from here."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return f"<RosaState batch={self.batch} steps={self.steps} bytes={self.bytes}>"

    def append(self, v: Tensor) -> Tensor:
        """Append the value bits of v [B, t, C]; gives those of all steps so far, [B, steps or more, C / 8]."""
        if len(v) != self._batch:
            raise InvalidArgument(f"{len(v)} rows come to a state of {self._batch} rows; make a state for this batch")
        new = _read.pack_bits(v.detach())
        begin, end = self._steps, self._steps + v.shape[1]
        if self._values is None or end > self._values.shape[1]:
            self._grow(new, end)
        values = self._values
        assert values is not None
        if values.device == new.device:
            values[:, begin:end] = new
        else:
            if not values.is_pinned():  # a copy of a state
                self._values = values = values.pin_memory()
            for row in range(self._batch):  # each row is contiguous there, so that nothing waits for the copy
                values[row, begin:end].copy_(new[row], non_blocking=True)
        self._steps = end
        return values

    def _grow(self, new: Tensor, steps: int) -> None:
        """Room for this many steps."""
        # a quarter more than needed, so that the cost of growing is small per step
        shape = (self._batch, steps * 5 // 4 + 16, new.shape[2])
        on_host = new.is_cuda and self._batch * steps * new.shape[2] > self.device_bytes
        if on_host:
            shape = (self._batch, 2 * steps, new.shape[2])  # pinned memory is slow to get
            room = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        else:
            room = new.new_zeros(shape)
        if self._values is not None:
            self._settle()
            room[:, : self._steps] = self._values[:, : self._steps].to(room.device)
        self._values = room

    def _settle(self) -> None:
        """Wait for copies to the host that are under way, before the host reads what they bring."""
        if self._values is not None and self._values.device.type == "cpu" and self._values.is_pinned():
            torch.cuda.synchronize()

    def __getstate__(self) -> Dict[str, Any]:
        self._settle()
        return self.__dict__

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
