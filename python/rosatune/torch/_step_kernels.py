"""The Triton kernel of a text that grows: it appends value bits to blocks and reads them where they lie.

The bits may also be those of a vocabulary, one table for all rows, to which nothing is appended.

Decoding makes one call per layer and token, so that what counts is the number of launches: one kernel packs v, computes
the gate and reads at the places of the step. It takes the adapter's parameters as they are, in any dtype, so that
nothing has to be prepared. ``_past.py`` has the same by tensor operations, its definition.

Value bits are kept in blocks of ``BLOCK`` steps, in memory of the device or pinned memory of the host, which the kernel
reads and writes alike: a table holds their addresses. A block is [B, BLOCK, C / 8] bytes. They are read in units of 32
bits where C is a multiple of 32, so that a warp asks for whole cache lines, which the bus to the host wants; else in
bytes.

Programs of one launch run in any order. So a launch that appends must not read what it appends: ``_past.py`` asks for
both at once only where every place is older than the steps that come.

A step gives the same bits in pieces of any size, because the shape of a program does not depend on their number.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._kernels import _on, _power

__all__ = ["read_tokens", "step"]

ROWS = 8  # steps of a program
COLUMNS = 1024  # channels of a program, at most; a quarter where each has a place of its own
NO_BLOCKS = -1  # the shift of a table of tokens


@triton.jit
def _line(table, d, b, live, width, SHIFT: tl.constexpr, UNIT: tl.constexpr):
    """Pointers to the value bits of steps d in rows b of the batch; without blocks (SHIFT < 0) of tokens d."""
    if SHIFT < 0:
        return table + d.to(tl.int64) * width
    else:
        block = tl.load(table + (d >> SHIFT), mask=live, other=0)
        there = (b * (1 << SHIFT) + (d & ((1 << SHIFT) - 1))) * width
        if UNIT == 32:
            return block.to(tl.pointer_type(tl.int32)) + there
        else:
            return block.to(tl.pointer_type(tl.uint8)) + there


@triton.jit
def _gate(u, weight, bias, n, live, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """2 sigmoid(u . weight + bias) of rows n."""
    total = tl.zeros([ROWS], tl.float32)
    for begin in range(0, channels, COLUMNS):
        c = begin + tl.arange(0, COLUMNS)
        known = c < channels
        x = tl.load(u + n[:, None] * channels + c[None, :], mask=live[:, None] & known[None, :], other=0)
        total += tl.sum(x.to(tl.float32) * tl.load(weight + c, mask=known, other=0).to(tl.float32)[None, :], 1)
    return 2 * tl.sigmoid(total + tl.load(bias).to(tl.float32))


@triton.jit(do_not_specialize=["begin", "read", "row"])
def _step_kernel(
    u, v, table, tau, length, gain, weight, bias, e0, e1, y,
    scale, begin, read, row, batch, steps, routes, per, channels, width,
    APPEND: tl.constexpr, THERE: tl.constexpr, LINKS: tl.constexpr, GAIN: tl.constexpr, GATE: tl.constexpr,
    ROUTED: tl.constexpr, SHIFT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b, t = n // steps, n % steps
    live = n < batch * steps
    i = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    j = tl.arange(0, UNIT)
    c = i[:, None] * UNIT + j[None, :]
    known = c < channels
    inside = live[:, None, None] & known[None, :, :]
    at = n[:, None, None] * channels + c[None, :, :]
    if APPEND:
        if THERE:
            start = tl.load(begin)
        else:
            start = begin
        x = tl.load(v + at, mask=inside, other=0).to(tl.float32)
        new = tl.sum(tl.where(x > 0, (1 << j)[None, None, :], 0), 2)
        to = _line(table, start + t, b, live, width, SHIFT, UNIT)[:, None] + i[None, :]
        tl.store(to, new.to(to.dtype.element_ty), mask=live[:, None] & (i < width)[None, :])
    if LINKS > 0:
        if GATE:
            z = _gate(u, weight, bias, n, live, channels, ROWS, UNITS * UNIT)
        # the route: one of all channels, one of each unit, or of each channel; what follows has that shape
        if ROUTED == 0:
            r = tl.zeros([1, 1, 1], tl.int32)
        elif ROUTED == 1:
            r = (i * UNIT // per)[None, :, None]
        else:
            r = (c // per)[None, :, :]
        exists = live[:, None, None] & (r < routes)
        total = tl.zeros([ROWS, UNITS, UNIT], tl.float32)
        for link in tl.static_range(LINKS):  # unrolled, so that the loads of all links are under way at once
            place = ((link * batch + b[:, None, None]) * routes + r) * steps + t[:, None, None]
            d = tl.load(tau + place, mask=exists, other=-1)
            hit = d >= 0
            strength = tl.where(hit, scale, 0.0)
            if GAIN:
                long = tl.minimum(tl.load(length + place, mask=hit, other=0).to(tl.int32), 9)
                entry = gain + (row + link * routes + r) * 10 + long
                strength = tl.load(entry, mask=hit, other=0).to(tl.float32) * strength
            if GATE:
                strength = strength * z[:, None, None]
            line = _line(table, d, b[:, None, None], hit, width, SHIFT, UNIT)
            bits = tl.load(line + i[None, :, None], mask=hit & (i < width)[None, :, None], other=0).to(tl.int32)
            level = (read + link) * channels + c
            low = tl.load(e0 + level, mask=known, other=0).to(tl.float32)
            high = tl.load(e1 + level, mask=known, other=0).to(tl.float32)
            chosen = ((bits >> j[None, None, :]) & 1) == 1
            total += tl.where(chosen, high[None, :, :], low[None, :, :]) * strength
        tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


def read_tokens(
    u: Tensor, bits: Tensor, places: Tuple[Tensor, Tensor], gain: Optional[Tensor], weight: Optional[Tensor],
    bias: Optional[Tensor], e0: Tensor, e1: Tensor, scale: float, first: int, row: int,
) -> Any:  # fmt: skip
    """y [B, T, C] of the dtype of u, read at tokens ``places`` of a vocabulary's bits [V, C / 8]; see :func:`step`."""
    table = bits if u.shape[2] % 32 else bits.view(torch.int32)
    return step(u, u, table, NO_BLOCKS, 0, places, gain, weight, bias, e0, e1, scale, first, row, False)


def step(
    u: Tensor, v: Tensor, table: Tensor, shift: int, begin: Union[int, Tensor], places: Optional[Tuple[Tensor, Tensor]],
    gain: Optional[Tensor], weight: Optional[Tensor], bias: Optional[Tensor], e0: Tensor, e1: Tensor, scale: float,
    first: int, row: int, append: bool,
) -> Optional[Tensor]:  # fmt: skip
    """y [B, T, C] read at ``places`` (None: nothing is read) and, with ``append``, the bits of v written at ``begin``.

    begin: a number, or a tensor of one int32 on the device, so that a recorded launch can be replayed at other steps.
    table: addresses of the blocks, of 2^shift steps. gain, e0, e1: those of all reads of the adapter, this source's
    from read ``first`` and row ``row`` on.
    """
    batch, steps, channels = v.shape
    unit = 8 if channels % 32 else 32
    tau, length = (v, v) if places is None else places
    links, routes = (0, 1) if places is None else (tau.shape[0], tau.shape[2])
    per = channels // routes
    routed = 0 if routes == 1 else 1 if per % unit == 0 else 2
    units = min(COLUMNS // unit // (4 if routed == 2 else 1), _power(-(-channels // unit)))
    y: Any = None if places is None else torch.empty_like(v)
    grid = (triton.cdiv(batch * steps, ROWS), triton.cdiv(channels, units * unit))
    with _on(v):
        _step_kernel[grid](
            u, v, table, tau, length, tau if gain is None else gain, tau if weight is None else weight,
            tau if bias is None else bias, e0, e1, v if y is None else y,
            scale, begin, first, row, batch, steps, routes, per, channels, -(-channels // unit),
            append, isinstance(begin, Tensor), links, gain is not None, weight is not None, routed, shift, unit, ROWS,
            units, num_warps=8,
        )  # fmt: skip
    return y
