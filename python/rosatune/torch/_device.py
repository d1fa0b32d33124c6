"""The operator on tensors in a GPU's memory: symbols go to the host, destinations come back, attention runs meanwhile.

    main stream   pack q, k ────── attention, or whatever the caller does ────── wait ── read-out
    side stream            └ copy to pinned                     copy back ┘
    worker thread                          └ wait, retrieve ────┘

What the GPU computes itself, symbols, read-out and gradients, is done by the kernels of ``_kernels.py`` where Triton is
installed and can build for the device, and by the tensor operations of ``_gradients.py`` elsewhere. Where the user
chose so (``_cuda.py``) it retrieves too: the worker queues the search on the side stream, and nothing is copied. While
a CUDA graph is recorded the main thread queues it there.

The main thread never waits for the copies, and for the retrieval only when it collects. One worker thread serves the
whole process: a single retrieval already uses all processors. The C library releases the interpreter's lock while it
works.

Pinned memory comes from PyTorch's caching host allocator. It keeps freed blocks and reuses one only when the copies
that used it are over, which is what is needed here.

A pending retrieval is identified by a ticket, a number in a tensor, so that compilers see a value that one operator
returns and another takes. If there is no retrieval for a ticket, it is done again with the same result. So a forward
pass that is recomputed, or a caller who collects twice, gets the right answer.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..errors import InvalidArgument
from . import _cuda, _distinct, _gradients, _host, _pinned, _strength, _triton
from ._settings import Settings
from ._strength import Strength

__all__ = ["Found", "Retrieval", "backward", "collect", "host_layout", "launch", "read_out", "record"]

KEPT = 256  # pending retrievals that are kept; beyond that the oldest is dropped

# Set to a list to record the times of every retrieval (bench/overlap.py draws them).
record: Optional[List[Dict[str, Any]]] = None

_lock = threading.Lock()
_numbers = itertools.count(1)
_under_way: "OrderedDict[int, Retrieval]" = OrderedDict()
_worker: Optional[ThreadPoolExecutor] = None
_streams: Dict[torch.device, Any] = {}


def _forget() -> None:
    """A forked process has neither its parent's threads nor its streams."""
    global _lock, _worker
    _lock = threading.Lock()
    _worker = None
    _under_way.clear()
    _streams.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _submit(*call: Any) -> "Future[Any]":
    global _worker
    with _lock:
        if _worker is None:
            _worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rosatune")
        return _worker.submit(*call)


def _answered(answer: Any) -> "Future[Any]":
    done: "Future[Any]" = Future()
    done.set_result(answer)
    return done


def _side_stream(device: torch.device) -> Any:
    with _lock:
        if device not in _streams:
            # Ahead of what the main stream queues: a search has few blocks and a long way, attention fills the rest.
            _streams[device] = torch.cuda.Stream(device, priority=-1)
        return _streams[device]


# ------------------------------------------------------------------------------------------------ what the GPU computes


def _by_step(kept: Tensor, batch: int) -> Tensor:
    """Destinations [B R, T] as they are kept, as int64 [B, T, R]."""
    return _gradients.wide(kept.view(batch, -1, kept.shape[-1]).transpose(1, 2).contiguous())


def host_layout(x: Tensor, bits: int) -> Tensor:
    """The symbols of [B, T, C] as the library reads them, int16 [B R, T]."""
    fused = _triton.module("_fused", x)
    if fused is not None:
        return fused.symbols(x, bits)
    found = _gradients.symbols(x, bits).to(torch.int16)
    return found.transpose(1, 2).reshape(x.shape[0] * found.shape[2], x.shape[1])


class Found(NamedTuple):
    """What a retrieval found: arrays of B R rows, of which R belong to an entry of the batch."""

    read: Tensor  # [B R, T], destinations as C keeps them
    table: Tensor  # counterfactuals
    length: Tensor  # [B R, T], uint8, match lengths cut at 255
    query: Tensor  # [B R, T], int16, symbols of q; of no rows on the host, where nobody reads them again
    key: Tensor


def read_out(
    read: Tensor, length: Tensor, value: Tensor, q: Tensor, v: Tensor, e0: Tensor, e1: Tensor, strength: Strength,
    settings: Settings, token: Optional[Tensor] = None,
) -> Tensor:  # fmt: skip
    """y for destinations [B R, T] as rosa_find keeps them and ``value``, the symbols of v by step."""
    fused = _triton.module("_fused", q)
    if fused is not None:
        return fused.read_out(read, length, value, e0, e1, strength, q, settings.bits)
    y = _gradients.read_out(_by_step(read, len(q)), _distinct.by_step(v, token), e0, e1, settings.bits)
    return _strength.weigh(y, length, strength)


def backward(
    gy: Tensor, q: Tensor, k: Tensor, v: Tensor, e0: Tensor, e1: Tensor, found: Found, value: Tensor,
    strength: Strength, straight: bool, wanted: Sequence[bool], settings: Settings, token: Optional[Tensor] = None,
) -> Sequence[Optional[Tensor]]:  # fmt: skip
    """dL/d(q, k, v, e0, e1, gain, z); where both are wanted, those of q and k side by side as the first."""
    fused = _triton.module("_fused", q)
    if fused is not None:
        return fused.backward(gy, q, k, v, e0, e1, found, value, strength, straight, wanted, settings, token)
    read = _by_step(found.read, q.shape[0])
    kept, v = v.shape[1], _distinct.by_step(v, token)
    gq, gk, gv, *rest = _strength.backward(
        gy, v, found.length, strength, straight, wanted,
        lambda: _gradients.read_out(read, v, e0, e1, settings.bits),
        lambda gy: _gradients.backward(gy, q, k, v, e0, e1, read, found.table, wanted[:5], settings),
    )  # fmt: skip
    if gq is not None and gk is not None:
        gq, gk = torch.cat([gq, gk], 2), None
    return gq, gk, _distinct.by_token(gv, token, kept), *rest


# -------------------------------------------------------------------------------------------------------- the retrieval


class _Answer(NamedTuple):
    read: Tensor
    table: Tensor
    length: Tensor
    back: Any  # an event: all have arrived


class Retrieval:
    """One pending retrieval, of q and k on one GPU."""

    def __init__(self, q: Tensor, k: Tensor, settings: Settings, tables: bool, compact: bool, seed: int) -> None:
        self.shape, self.settings, self.tables, self.compact = q.shape, settings, tables, compact
        self.device = q.device
        self.times: Optional[Dict[str, Any]] = None
        if record is not None:
            self.times = {"launched": time.perf_counter()}
            record.append(self.times)
        side, main = _side_stream(q.device), torch.cuda.current_stream(q.device)
        self._mark("pack", main)
        packed = [host_layout(q, settings.bits)]
        if not (q.data_ptr() == k.data_ptr() and q.stride() == k.stride()):
            packed.append(host_layout(k, settings.bits))
        self.symbols = packed[0], packed[1] if len(packed) > 1 else packed[0].clone()
        self.packed = self._mark("packed", main)
        side.wait_event(self.packed)
        there, self.kind = _cuda.serves(settings, tables, tuple(packed[0].shape), q.device)
        if torch.cuda.is_current_stream_capturing():
            self.answer = _answered(self._queue(packed, side, there))
            return
        if there:
            for x in packed:
                x.record_stream(side)
            self.answer = _submit(self._retrieve_there, packed, side, torch.get_num_threads())
            return
        host = [_pinned.empty(x.shape, x.dtype) for x in packed]
        with torch.cuda.stream(side):
            self._mark("out", side)
            for to, x in zip(host, packed):
                to.copy_(x, non_blocking=True)
                x.record_stream(side)
            copied = self._mark("copied", side)
        # read here: in the worker's thread the number set by torch.set_num_threads is not visible
        self.answer = _submit(self._retrieve, host, copied, side, seed, torch.get_num_threads())

    def _mark(self, name: str, stream: Any) -> Any:
        """An event at the current end of a stream."""
        event = torch.cuda.Event(enable_timing=self.times is not None)
        event.record(stream)
        if self.times is not None:
            self.times[name] = event
        return event

    def _retrieve(self, host: List[Tensor], copied: Any, side: Any, seed: int, threads: int) -> _Answer:
        if self.kind is not None:
            self.packed.synchronize()
        asked = time.perf_counter()
        copied.synchronize()
        begun = time.perf_counter()
        found = _host.find(
            host[0], host[-1], self.settings, self.tables, self.compact, seed, threads, pinned=True
        )
        if self.times is not None:
            self.times["retrieve"] = (begun, time.perf_counter())
        with torch.cuda.stream(side):
            self._mark("return", side)
            read, table, length = (x.to(self.device, non_blocking=True) for x in found)
            answer = _Answer(read, table, length, self._mark("back", side))
        self._note("host", asked, answer)
        return answer

    def _note(self, way: str, begun: float, answer: _Answer) -> None:
        """Note what a way took, where that is asked."""
        if self.kind is not None:
            answer.back.synchronize()
            _cuda.costs.note(self.kind, way, time.perf_counter() - begun)

    def _retrieve_there(self, packed: List[Tensor], side: Any, threads: int) -> _Answer:
        if self.kind is not None:
            self.packed.synchronize()  # so that the time is that of the search
        with torch.cuda.stream(side):
            begun = time.perf_counter()
            found = _cuda.find(packed[0], packed[-1], self.settings, threads, side.cuda_stream)
            if self.times is not None:
                self.times["retrieve"] = (begun, time.perf_counter())
            answer = _Answer(*found, self._mark("back", side))
        self._note("device", begun, answer)
        return answer

    def _queue(self, packed: List[Tensor], side: Any, there: bool) -> _Answer:
        """Record the search beside what follows on the main stream; nothing waits while a graph is recorded."""
        if not there:
            raise InvalidArgument(
                "a step that is recorded as a CUDA graph cannot look up q and k on the host: call "
                "rosatune.torch.retrieve_on('device') before, with neither explore nor qk_grad='flips', or do not record it"
            )
        with torch.cuda.stream(side):
            found = _cuda.queue(packed[0], packed[-1], self.settings, side.cuda_stream)
            return _Answer(*found, self._mark("back", side))

    def collect(self) -> Found:
        """What was found, on the device. What follows on the current stream waits for it there."""
        answer = self.answer.result()
        main = torch.cuda.current_stream(self.device)
        main.wait_event(answer.back)
        for x in answer[:3]:
            x.record_stream(main)
        return Found(answer.read, answer.table, answer.length, *self.symbols)


def launch(q: Tensor, k: Tensor, settings: Settings, tables: bool, compact: bool, seed: int) -> int:
    """Begin a retrieval and return its ticket."""
    retrieval = Retrieval(q, k, settings, tables, compact, seed)
    with _lock:
        ticket = next(_numbers)
        _under_way[ticket] = retrieval
        if len(_under_way) > KEPT:
            _under_way.popitem(last=False)
    return ticket


def collect(
    ticket: int, q: Tensor, k: Tensor, settings: Settings, tables: bool, compact: bool, seed: int
) -> Found:
    """The result of the ticket's retrieval, which is made now if there is none."""
    with _lock:
        retrieval = _under_way.pop(ticket, None)
    if retrieval is not None:
        known = (retrieval.shape, retrieval.device, retrieval.settings, retrieval.tables, retrieval.compact)
        if known != (q.shape, q.device, settings, tables, compact):
            raise ValueError(
                f"pending was launched for q of shape {list(retrieval.shape)} on {retrieval.device} and "
                f"{retrieval.settings}, not for {list(q.shape)} on {q.device} and {settings}; launch and collect alike"
            )
    else:
        retrieval = Retrieval(q, k, settings, tables, compact, seed)
    return retrieval.collect()
