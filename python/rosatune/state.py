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
from .torch import _cuda, _device
from .torch._past import Past
from .torch._places import TensorPlaces

__all__ = ["RosaState"]

ROUTES_PER_THREAD = 16


class RosaState:
    """What an adapter keeps of the text so far, for a batch of ``batch`` rows.

    Give it to the adapter with every piece of the text: ``adapter(u, state=state)``. It can be copied and pickled.

    The newest value bits stay on the GPU, as many as ``device_bytes`` allows. Older ones move to pinned memory of the
    host, where kernels read the few rows that a step needs, so that the GPU's memory does not grow with the text. Where
    the adapter has a table of all tokens' bits (``values.py``), none are kept here.
    """

    device_bytes = 16 << 20  #: of one layer's values; set it on the class, before a text is begun

    def __init__(self, adapter: Any, batch: int) -> None:
        if batch < 1:
            raise InvalidArgument(f"batch is {batch}; give the number of rows, 1 or more")
        self._batch, self._steps = batch, 0
        self._past = Past(self.device_bytes)
        self._finder: Optional[Finder] = None
        self._growing: Optional[_cuda.Growing] = None  # in the finder's stead, where the device looks up
        rule = adapter.learnt_rule
        if rule is not None:
            threads = max(1, min(torch.get_num_threads(), rule.routes // ROUTES_PER_THREAD))
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
        if self._finder is None or self._growing is not None:
            return [self._steps] * self._batch
        return self._finder.lengths

    @property
    def bytes(self) -> int:
        """Every byte that is kept."""
        there = 0 if self._growing is None else self._growing.nbytes
        return self._past.nbytes + there + (0 if self._finder is None else self._finder.nbytes)

    def reset(self) -> None:
        """Forget everything."""
        self._steps, self._past, self._growing = 0, Past(self.device_bytes), None
        if self._finder is not None:
            self._finder.reset()

    def rewind(self, steps: int) -> None:
        """Forget the last ``steps`` steps."""
        if not 0 <= steps <= self._steps:
            raise InvalidArgument(f"steps is {steps}; the state holds {self._steps}, more cannot be forgotten")
        if self._growing is not None and steps:
            self._growing.refuse("cannot be rewound")
        self._steps -= steps
        if self._finder is not None and self._growing is None:
            self._finder.rewind(steps)

    def reorder(self, indices: Union[Tensor, Iterable[int]]) -> None:
        """Row i becomes a copy of what row ``indices[i]`` was: beam search, and batches that grow or shrink."""
        chosen = [int(index) for index in indices]
        for index in chosen:
            if not 0 <= index < self._batch:
                raise InvalidArgument(f"indices has {index}; there are rows 0 to {self._batch - 1}")
        if not chosen:
            raise InvalidArgument("indices is empty; a state has one row at least")
        if self._growing is not None and chosen != list(range(self._batch)):
            self._growing.refuse("has rows that cannot be copied or moved")
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

    def take(self, u: Tensor) -> Tuple[Past, int]:
        """Count the steps of u [B, t, C]; gives what is to keep their value bits, and how many steps came before."""
        if len(u) != self._batch:
            raise InvalidArgument(f"{len(u)} rows come to a state of {self._batch} rows; make a state for this batch")
        begin = self._steps
        self._steps += u.shape[1]
        return self._past, begin

    def find_there(
        self, q: Tensor, k: Tensor, bits: int, valid: Optional[np.ndarray], reads: Iterable[str], watched: bool
    ) -> Optional[TensorPlaces]:
        """The places of q and k [B, t, C] by the device that holds them; None where :meth:`find` is to be asked.

        A text begins on the device where that was chosen (:func:`rosatune.torch.retrieve_on`) and can do all that the
        first piece asks for; then it stays.
        """
        assert self._finder is not None
        plain = (valid is None or bool(valid.all())) and set(reads) <= {"found", "nothing"} and not watched
        if self._growing is None:
            if self._finder.steps or not plain or not _cuda.grows(q, self._finder.rule.links):
                return None
            self._growing = _cuda.Growing(self._finder.rule, self._batch, q.device)
        elif not plain:
            self._growing.refuse("has no padding, random places or diagnostics")
        packed = [_device.host_layout(x.detach(), bits) for x in ([q] if q is k else [q, k])]
        return self._growing.push(packed[0], packed[-1], torch.cuda.current_stream(q.device).cuda_stream)

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
