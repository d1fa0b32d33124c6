"""The operator on tensors in the host's memory: the C library, called on their addresses.

No tensor is copied. Destinations of two bytes are kept in int16 tensors, since PyTorch's uint16 has few operations; the
bits are the same. The library's calls release the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _c, _workers
from .._interrupt import run
from . import _pinned
from ._settings import Settings

__all__ = ["backward", "find", "kept_dtype", "library_options", "pack", "read_out"]

DTYPES = {torch.float32: _c.Dtype.FLOAT32, torch.bfloat16: _c.Dtype.BFLOAT16}
NARROW = 0xFFFF  # below this many steps a destination is kept in two bytes

PIECE = 1 << 21  # numbers packed by one thread at a time; less than that is not worth a second thread


def kept_dtype(steps: int) -> torch.dtype:
    """The type that keeps destinations among this many steps, like rosa_width() but for symbolic sizes too."""
    return torch.int16 if steps < NARROW else torch.int32


def library_options(settings: Settings, threads: int) -> _c.rosa_options:
    options = _c.options(settings, threads)
    options.delay = settings.delay
    if threads > 1:
        options.workers = _workers.kept(threads)
    return options


def _learning(settings: Settings, tables: bool, seed: int) -> _c.rosa_learning:
    # flips needs its tables; a pass without them computes no gradient of q and k
    return _c.learning(settings if tables or settings.qk_grad != "flips" else settings._replace(qk_grad="none"), seed)


def pack(tensors: Sequence[Tensor], bits: int, threads: int) -> List[Tensor]:
    """The symbols of each of the dense tensors [B, T, C], as int16 [B R, T]. A tensor given twice is packed once."""
    packed: dict[int, Tensor] = {}
    work: List[Callable[[], None]] = []
    for x in tensors:
        if x.data_ptr() in packed:
            continue
        batch, steps, channels = x.shape
        routes = channels // bits
        made = packed[x.data_ptr()] = torch.empty(batch * routes, steps, dtype=torch.int16, device="cpu")
        piece = max(1, PIECE // channels)
        for entry in range(batch):
            for begin in range(0, steps, piece):
                rows = x.data_ptr() + (entry * steps + begin) * channels * x.element_size()
                place = made.data_ptr() + (entry * routes * steps + begin) * 2
                arguments = (DTYPES[x.dtype], rows, 0, min(piece, steps - begin), channels, bits, place, steps)
                work.append(functools.partial(_c.call, "rosa_pack", *arguments))
    if threads > 1 and sum(x.numel() for x in tensors) > PIECE:
        with ThreadPoolExecutor(min(threads, len(work))) as pool:
            for done in [pool.submit(job) for job in work]:
                done.result()
    else:
        for job in work:
            job()
    return [packed[x.data_ptr()] for x in tensors]


def find(
    query: Tensor,
    key: Tensor,
    settings: Settings,
    tables: bool,
    compact: bool,
    seed: int,
    threads: int,
    pinned: bool = False,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Destinations [B R, T] of symbols [B R, T], the counterfactual table, of no rows unless ``tables``, and the match
    lengths [B R, T], cut at 255.

    The table has a row per query run. Without ``compact`` it has one per step, the most there can be, so that its size
    does not depend on the data, as compilers need. Rows beyond the runs hold -1.
    """
    routes, steps = query.shape
    kind = kept_dtype(steps)
    read = _pinned.empty((routes, steps), kind, pinned)
    runs = 0
    if tables and read.numel():
        runs = _c.lib.rosa_count_runs(routes, steps, query.data_ptr(), settings.bits, settings.fold)
    rows = routes * steps if tables and not compact else runs
    table = _pinned.empty((rows, settings.bits + 1), kind, pinned)
    table[runs:].fill_(-1)
    length = _pinned.empty((routes, steps), torch.uint8, pinned)
    if query.numel() == 0:
        return read, table, length
    learning = None
    if tables or settings.explore:
        learning = ctypes.byref(_learning(settings, tables, seed))
    options = library_options(settings, threads)

    def work(callback: Any) -> None:
        options.progress = callback
        _c.call(
            "rosa_find",
            ctypes.byref(options),
            learning,
            routes,
            steps,
            query.data_ptr(),
            key.data_ptr(),
            read.data_ptr(),
            length.data_ptr(),
            table.data_ptr() if tables else None,
        )

    run(work, query.numel())
    return read, table, length


def read_out(read: Tensor, value: Tensor, e0: Tensor, e1: Tensor, like: Tensor, settings: Settings) -> Tensor:
    """y for destinations and value symbols, both [B R, T]; of the shape and dtype of ``like`` [B, T, C]."""
    batch, steps, channels = like.shape
    y = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    if y.numel():
        _c.call(
            "rosa_read",
            ctypes.byref(library_options(settings, torch.get_num_threads())),
            DTYPES[like.dtype],
            batch,
            steps,
            channels,
            value.data_ptr(),
            steps,
            read.data_ptr(),
            e0.data_ptr(),
            e1.data_ptr(),
            y.data_ptr(),
        )
    return y


def backward(
    gy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e0: Tensor,
    e1: Tensor,
    read: Tensor,
    table: Tensor,
    wanted: Sequence[bool],
    settings: Settings,
) -> List[Optional[Tensor]]:
    """The gradients of q, k, v, e0 and e1 by rosa_read_backward; None where not wanted. All tensors are dense."""
    batch, steps, channels = q.shape
    results = [torch.empty_like(x) if asked else None for x, asked in zip((q, k, v, e0, e1), wanted)]
    if q.numel() == 0:
        return [None if result is None else result.zero_() for result in results]
    places = [None if result is None else result.data_ptr() for result in results]
    done = _c.rosa_read_pass(
        ctypes.sizeof(_c.rosa_read_pass),
        DTYPES[q.dtype],
        batch,
        steps,
        channels,
        *(x.data_ptr() for x in (q, k, v, e0, e1, read)),
        table.data_ptr() if settings.qk_grad == "flips" and table.numel() else None,
        gy.data_ptr(),
        *places,
    )
    options = library_options(settings, torch.get_num_threads())
    learning = _learning(settings, table.numel() > 0, 0)

    def work(callback: Any) -> None:
        options.progress = callback
        _c.call("rosa_read_backward", ctypes.byref(options), ctypes.byref(learning), ctypes.byref(done))

    run(work, q.numel() * (steps if settings.qk_grad == "soft" else 1))
    return results
