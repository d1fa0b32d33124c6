"""Triton kernels for reading value bits at known places: what a layer does for a source that all layers share.

The tensor operations of ``_read.py`` are the definition that these are tested against, and are used where Triton is
missing. Shapes are those of that file: L links, B rows, T steps, R routes, C channels, S packed values of a row; a
route has C / R neighbouring channels, all of them where tokens are the source. N is B T, M is B S.

    kernel      reads                                        writes
    pack        v                                            a bit per channel, with its slope two
    read        places, one bit per link and channel, e      y
    levels      gy and one bit per channel, for each link    gradients of weights per block of channels, sums of e0 and
                                                             e1 per span of steps
    strength    gradients of weights                         gradient of the gate, sums of the gain per block of steps
    pieces      gy at each link                              sums of the further reads of places that have many
    values      gy at each link, these sums, slope's bits    gradient of v
    gate        u                                            z, and its gradient u's and the weight's sums

With c bytes per number (2 for bfloat16) that is, in bytes of device memory, M C (c + 1/4) for pack, N C (c + L/8) for
read, N C L (c + 1/8) for levels at most (neighbouring links find gy in the cache) and M C c + N C L c for values at
most; places, lengths and weights, 5 to 13 bytes per step and link, are small beside them. Nothing of the size of
activations is kept for the backward pass but two bits per channel.

Gradients of v are sums over the steps that read the same place. The places are sorted once per batch for all layers
(``_read.sort_places``); a program then sums the rows of one place in their order. So there are no atomic additions, and
the same inputs give the same bits. Where places are tokens, a frequent one is read by thousands of steps: all but the
first of its reads are cut into pieces of equal size, which programs of their own have summed before. Sums over all
steps are formed per block of steps, and those added in order.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import _read
from ._kernels import WIDE, _on, _power, _weighed
from ._strength import GAINS

__all__ = ["gate", "gate_backward", "pack", "read", "read_backward"]

BLOCK = 128  # steps of a program of strength
PARTS = 32  # sums of blocks of channels that it has in hand at once, so that their loads do not wait for one another
TILE = 1024  # numbers that a program of read has in hand at once, by two warps: the fastest on an H200
LEVELS = 512  # the same of levels, by one warp
SPAN = 128  # steps whose sums a program of levels keeps in registers
GATE = 4096  # numbers that a program of the gate has in hand at once
ENTRIES = 2  # reads that a program of values has in hand at once
MORE = 8  # the same of sums of pieces, of which a frequent token has some hundred
SKIP = True  # whether read and levels pass over tiles of steps in which nothing is found, which text has many of


def _columns(count: int, most: int) -> int:
    """The greatest power of two up to ``most`` that divides ``count``; if it is small, the next power instead."""
    divisor = count & -count
    return min(most, divisor if divisor >= 32 else _power(count))


# ------------------------------------------------------------------------------------------------------------- packing


@triton.jit
def _pack_kernel(
    v, values, slopes, rows, channels, width, SLOPE: tl.constexpr, ROWS: tl.constexpr, BYTES: tl.constexpr
):
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    j = tl.arange(0, 8)
    c = i[:, None] * 8 + j[None, :]
    exists = (n < rows)[:, None, None] & (c < channels)[None, :, :]
    x = tl.load(v + n[:, None, None] * channels + c[None, :, :], mask=exists, other=0).to(tl.float32)
    place = (1 << j)[None, None, :]
    at = n[:, None] * width + i[None, :]
    inside = (n < rows)[:, None] & (i < width)[None, :]
    tl.store(values + at, tl.sum(tl.where(x > 0, place, 0), 2).to(tl.uint8), mask=inside)
    if SLOPE:
        near = exists & (tl.abs(x) < 1)
        tl.store(slopes + at, tl.sum(tl.where(near, place, 0), 2).to(tl.uint8), mask=inside)


def pack(v: Tensor, slope: bool) -> Tuple[Tensor, Tensor]:
    """The bits of v > 0 and, where ``slope``, of |v| < 1: uint8 [B, T, C / 8]."""
    batch, steps, channels = v.shape
    width = (channels + 7) // 8
    values = torch.empty(batch, steps, width, dtype=torch.uint8, device=v.device)
    slopes = torch.empty_like(values) if slope else values.new_empty(0)
    wide = _columns(width, 64)
    high = max(1, 512 // wide)
    grid = (triton.cdiv(batch * steps, high), triton.cdiv(width, wide))
    with _on(v):
        _pack_kernel[grid](v, values, slopes, batch * steps, channels, width, slope, high, wide)
    return values, slopes


# ------------------------------------------------------------------------------------------------------------- reading


@triton.jit
def _bits(values, row, c, exists):
    """The bits of channels c in rows of packed values."""
    byte = tl.load(values + row[:, None] + (c // 8)[None, :], mask=exists, other=0).to(tl.int32)
    return (byte >> (c % 8)[None, :]) & 1


@triton.jit
def _read_kernel(
    values, tau, length, gain, z, e0, e1, y, scale, batch, routes, per, steps, kept, channels, width,
    LINKS: tl.constexpr, GAIN: tl.constexpr, GATE: tl.constexpr, SKIP: tl.constexpr, TIME: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    blocks = tl.cdiv(per, COLUMNS)
    r = tl.program_id(1) // blocks
    j = (tl.program_id(1) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    c = r * per + j
    known = j < per
    t = tl.program_id(0) * TIME + tl.arange(0, TIME)
    total = tl.zeros([TIME, COLUMNS], tl.float32)
    last = 0
    if SKIP:
        newest = tl.full([TIME], -1, tl.int32)
        for link in tl.static_range(LINKS):
            at = ((link * batch + b) * routes + r) * steps + t
            newest = tl.maximum(newest, tl.load(tau + at, mask=t < steps, other=-1))
        last = tl.max(newest, 0)
    if last >= 0:
        for link in tl.static_range(LINKS):  # unrolled, so that the loads of all links are under way at once
            at = ((link * batch + b) * routes + r) * steps + t
            d = tl.load(tau + at, mask=t < steps, other=-1)
            hit = d >= 0
            weight = _weighed(length, gain, z, scale, at, link * routes + r, b * steps + t, hit, GAIN, GATE)
            bit = _bits(values, (b * kept + d) * width, c, hit[:, None] & known[None, :])
            low = tl.load(e0 + link * channels + c, mask=known, other=0)
            high = tl.load(e1 + link * channels + c, mask=known, other=0)
            total += tl.where(bit == 1, high[None, :], low[None, :]) * weight[:, None]
    to = y + (b * steps + t)[:, None] * channels + c[None, :]
    tl.store(to, total.to(y.dtype.element_ty), mask=(t < steps)[:, None] & known[None, :])


def read(
    values: Tensor, tau: Tensor, length: Tensor, gain: Optional[Tensor], z: Optional[Tensor], e0: Tensor, e1: Tensor,
    scale: float, kind: torch.dtype,
) -> Tensor:  # fmt: skip
    """y [B, T, C] of dtype ``kind``."""
    links, batch, routes, steps = tau.shape
    channels, per = e0.shape[1], e0.shape[1] // routes
    y = torch.empty(batch, steps, channels, dtype=kind, device=tau.device)
    wide = _columns(per, 64)
    high = max(8, TILE // wide)
    grid = (triton.cdiv(steps, high), routes * triton.cdiv(per, wide), batch)
    with _on(y):
        _read_kernel[grid](
            values, tau, length, tau if gain is None else gain, tau if z is None else z, e0, e1, y, scale,
            batch, routes, per, steps, values.shape[1], channels, values.shape[2],
            links, gain is not None, z is not None, SKIP, high, wide, num_warps=2,
        )  # fmt: skip
    return y


# -------------------------------------------------------------------------------------------------- the backward pass


@triton.jit
def _level_kernel(
    gy, values, tau, length, gain, z, e0, e1, gweight, parts, scale,
    batch, routes, per, steps, kept, channels, width, links,
    GAIN: tl.constexpr, GATE: tl.constexpr, SKIP: tl.constexpr, STEPS: tl.constexpr, TIME: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    link, span = tl.program_id(0) % links, tl.program_id(0) // links
    blocks = tl.cdiv(per, COLUMNS)
    r, block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    b = tl.program_id(2).to(tl.int64)
    j = block * COLUMNS + tl.arange(0, COLUMNS)
    c = r * per + j
    known = j < per
    low = tl.load(e0 + link * channels + c, mask=known, other=0)
    high = tl.load(e1 + link * channels + c, mask=known, other=0)
    first = ((link * batch + b) * routes + r) * steps
    to = gweight + block * links * batch * routes * steps + first
    # Sums over steps stay in registers until the span is done: adding up columns takes a barrier, adding tiles none.
    lower = tl.zeros([TIME, COLUMNS], tl.float32)
    upper = tl.zeros([TIME, COLUMNS], tl.float32)
    for begin in range(span * STEPS, tl.minimum(span * STEPS + STEPS, steps), TIME):
        t = begin + tl.arange(0, TIME)
        d = tl.load(tau + first + t, mask=t < steps, other=-1)
        hit = d >= 0
        felt = tl.zeros([TIME], tl.float32)
        last = tl.max(d, 0) if SKIP else 0
        if last >= 0:
            weight = _weighed(length, gain, z, scale, first + t, link * routes + r, b * steps + t, hit, GAIN, GATE)
            exists = hit[:, None] & known[None, :]
            bit = _bits(values, (b * kept + d) * width, c, exists)
            g = tl.load(gy + (b * steps + t)[:, None] * channels + c[None, :], mask=exists, other=0).to(tl.float32)
            felt = tl.sum(g * tl.where(bit == 1, high[None, :], low[None, :]), 1)
            share = g * weight[:, None]
            lower += tl.where(bit == 1, 0.0, share)
            upper += tl.where(bit == 1, share, 0.0)
        tl.store(to + t, felt, mask=t < steps)
    spans = tl.num_programs(0) // links
    here = parts + (b * spans + span) * 2 * links * channels + link * channels + c
    tl.store(here, tl.sum(lower, 0), mask=known)
    tl.store(here + links * channels, tl.sum(upper, 0), mask=known)


@triton.jit
def _strength_kernel(
    gweight, length, gain, z, gz, parts, scale, batch, routes, steps, links, blocks,
    GAIN: tl.constexpr, GATE: tl.constexpr, TIME: tl.constexpr, WIDE: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * TIME + tl.arange(0, TIME)
    inside = t < steps
    k = tl.arange(0, WIDE)
    i = tl.arange(0, BLOCKS).to(tl.int64)
    gate = tl.zeros([TIME], tl.float32)
    to = parts + (b * tl.num_programs(0) + tl.program_id(0)) * links * routes * WIDE
    for row in range(links * routes):
        at = ((row // routes * batch + b) * routes + row % routes) * steps + t
        felt = tl.zeros([TIME], tl.float32)
        for block in range(0, blocks, BLOCKS):
            exists = (block + i < blocks)[:, None] & inside[None, :]
            here = (block + i)[:, None] * links * batch * routes * steps + at[None, :]
            felt += tl.sum(tl.load(gweight + here, mask=exists, other=0), 0)
        felt = felt * scale
        factor = felt
        if GAIN:
            long = tl.minimum(tl.load(length + at, mask=inside, other=0).to(tl.int32), 9)
            factor = tl.load(gain + row * 10 + long, mask=inside, other=0) * felt
            if GATE:
                felt = felt * tl.load(z + b * steps + t, mask=inside, other=0)
            tl.store(to + row * WIDE + k, tl.sum(tl.where(long[:, None] == k[None, :], felt[:, None], 0.0), 0))
        gate += factor
    if GATE:
        tl.store(gz + b * steps + t, gate, mask=inside)


@triton.jit
def _felt(
    gy, entry, length, gain, z, e0, e1, scale, begin, end, b, r, c, known, batch, routes, steps, channels, links,
    GAIN: tl.constexpr, GATE: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What the reads ``begin`` to ``end`` of a route, in the order of their places, give to the bits of channels c."""
    line = b * routes + r
    total = tl.zeros([COLUMNS], tl.float32)
    for some in range(begin, end, ENTRIES):
        i = some + tl.arange(0, ENTRIES)
        live = i < end
        n = tl.load(entry + line * links * steps + i, mask=live, other=0)
        link, t = n // steps, n % steps
        at = ((link * batch + b) * routes + r) * steps + t
        weight = _weighed(length, gain, z, scale, at, link * routes + r, b * steps + t, live, GAIN, GATE)
        exists = live[:, None] & known[None, :]
        g = tl.load(gy + (b * steps + t)[:, None] * channels + c[None, :], mask=exists, other=0).to(tl.float32)
        high = tl.load(e1 + (link * channels)[:, None] + c[None, :], mask=exists, other=0)
        low = tl.load(e0 + (link * channels)[:, None] + c[None, :], mask=exists, other=0)
        total += tl.sum(g * weight[:, None] * (high - low), 0)
    return total


@triton.jit
def _piece_kernel(
    gy, entry, first, extra, owner, length, gain, z, e0, e1, sums, scale, batch, routes, per, steps, kept, channels,
    links, GAIN: tl.constexpr, GATE: tl.constexpr, READS: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    blocks = tl.cdiv(per, COLUMNS)
    r = tl.program_id(1) // blocks
    j = (tl.program_id(1) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    c = r * per + j
    known = j < per
    line = b * routes + r
    piece = tl.program_id(0)
    pieces = tl.num_programs(0)
    d = tl.load(owner + line * pieces + piece)
    if d < kept:
        at = line * (kept + 1) + d
        begin = tl.load(first + at) + (piece - tl.load(extra + at) + 1) * READS
        end = tl.minimum(begin + READS, tl.load(first + at + 1))
        total = _felt(
            gy, entry, length, gain, z, e0, e1, scale, begin, end, b, r, c, known, batch, routes, steps, channels,
            links, GAIN, GATE, ENTRIES, COLUMNS,
        )  # fmt: skip
        tl.store(sums + (line * pieces + piece) * per + j, total, mask=known)


@triton.jit
def _value_kernel(
    gy, v, slopes, entry, first, extra, length, gain, z, e0, e1, sums, gv, scale,
    batch, routes, per, steps, kept, channels, width, links, pieces,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, GATE: tl.constexpr, READS: tl.constexpr, ENTRIES: tl.constexpr,
    MORE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    blocks = tl.cdiv(per, COLUMNS)
    r = tl.program_id(1) // blocks
    j = (tl.program_id(1) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    c = r * per + j
    known = j < per
    line = b * routes + r
    d = tl.program_id(0)
    at = line * (kept + 1) + d
    begin = tl.load(first + at)
    end = tl.minimum(begin + READS, tl.load(first + at + 1))
    total = _felt(
        gy, entry, length, gain, z, e0, e1, scale, begin, end, b, r, c, known, batch, routes, steps, channels, links,
        GAIN, GATE, ENTRIES, COLUMNS,
    )  # fmt: skip
    last = tl.load(extra + at + 1)
    for some in range(tl.load(extra + at), last, MORE):
        for part in tl.static_range(0, MORE, ENTRIES):  # in tiles like those of the reads: others take barriers
            i = some + part + tl.arange(0, ENTRIES)
            exists = (i < last)[:, None] & known[None, :]
            more = tl.load(sums + (line * pieces + i)[:, None] * per + j[None, :], mask=exists, other=0)
            total += tl.sum(more, 0)
    here = b * kept + d
    if SLOPE:
        byte = tl.load(slopes + here * width + c // 8, mask=known, other=0).to(tl.int32)
        total = tl.where(((byte >> (c % 8)) & 1) == 1, total, 0.0)
    else:
        p = tl.sigmoid(tl.load(v + here * channels + c, mask=known, other=0).to(tl.float32))
        total = total * (p * (1 - p))
    tl.store(gv + here * channels + c, total.to(gv.dtype.element_ty), mask=known)


def read_backward(
    gy: Tensor, v: Optional[Tensor], values: Tensor, slopes: Tensor, tau: Tensor, length: Tensor, order: Any,
    gain: Optional[Tensor], z: Optional[Tensor], e0: Tensor, e1: Tensor, scale: float, wanted: Any,
) -> Tuple[Optional[Tensor], ...]:  # fmt: skip
    """dL/d(v, gain, z, e0 and e1 [2, L, C]); None where it is not wanted.

    ``v`` is None where ``slopes`` serve; ``order`` is that of ``_read.sort_places``.
    """
    links, batch, routes, steps = tau.shape
    channels, per, kept = e0.shape[1], e0.shape[1] // routes, values.shape[1]
    tables = (tau if gain is None else gain, tau if z is None else z)
    uses = (gain is not None, z is not None)
    gv = ggain = gz = levels = None
    with _on(gy):
        if any(wanted[1:]):
            wide = _columns(per, 32)
            high = min(max(8, LEVELS // wide), SPAN)
            blocks, spans = triton.cdiv(per, wide), triton.cdiv(steps, SPAN)
            gweight = torch.empty(blocks, *tau.shape, device=gy.device)
            parts = torch.empty(batch * spans, 2, links, channels, device=gy.device)
            _level_kernel[spans * links, routes * blocks, batch](
                gy, values, tau, length, *tables, e0, e1, gweight, parts, scale, batch, routes, per, steps,
                kept, channels, values.shape[2], links, *uses, SKIP, SPAN, high, wide, num_warps=1,
            )  # fmt: skip
            levels = parts.sum(0)
            if wanted[1] or wanted[2]:
                gz = torch.empty(batch, steps, device=gy.device)
                parts = torch.empty(batch * triton.cdiv(steps, BLOCK), links * routes, WIDE, device=gy.device)
                _strength_kernel[triton.cdiv(steps, BLOCK), batch](
                    gweight, length, *tables, gz, parts, scale, batch, routes, steps, links, blocks,
                    *uses, BLOCK, WIDE, min(PARTS, _power(blocks)),
                )  # fmt: skip
                ggain = parts[..., :GAINS].sum(0) if uses[0] else None
        if wanted[0]:
            entry, first, extra, owner = order
            gv = torch.empty(batch, kept, channels, dtype=gy.dtype, device=gy.device)
            wide = min(1024, _power(per))
            grid = (routes * triton.cdiv(per, wide), batch)
            pieces = owner.shape[2]
            sums = torch.empty(batch, routes, pieces, per, device=gy.device)
            if pieces:
                _piece_kernel[(pieces, *grid)](
                    gy, entry, first, extra, owner, length, *tables, e0, e1, sums, scale,
                    batch, routes, per, steps, kept, channels, links, *uses, _read.READS, ENTRIES, wide,
                )  # fmt: skip
            _value_kernel[(kept, *grid)](
                gy, gy if v is None else v, slopes, entry, first, extra, length, *tables, e0, e1, sums, gv, scale,
                batch, routes, per, steps, kept, channels, values.shape[2], links, pieces,
                v is None, *uses, _read.READS, ENTRIES, MORE, wide,
            )  # fmt: skip
    return tuple(x if asked else None for x, asked in zip((gv, ggain, gz, levels), wanted))


# ---------------------------------------------------------------------------------------------------------------- gate


@triton.jit
def _gate_kernel(u, weight, bias, z, rows, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS], tl.float32)
    for begin in range(0, channels, COLUMNS):
        c = begin + tl.arange(0, COLUMNS)
        exists = (n < rows)[:, None] & (c < channels)[None, :]
        x = tl.load(u + n[:, None] * channels + c[None, :], mask=exists, other=0).to(tl.float32)
        total += tl.sum(x * tl.load(weight + c, mask=c < channels, other=0).to(tl.float32)[None, :], 1)
    tl.store(z + n, 2 * tl.sigmoid(total + tl.load(bias).to(tl.float32)), mask=n < rows)


@triton.jit
def _gate_back_kernel(
    gz, u, z, weight, gu, parts, rows, channels, WHOLE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    open = tl.load(z + n, mask=n < rows, other=0)
    felt = tl.load(gz + n, mask=n < rows, other=0) * open * (1 - open / 2)
    to = parts + tl.program_id(0).to(tl.int64) * (channels + 1)
    if tl.program_id(1) == 0:
        tl.store(to + channels, tl.sum(felt, 0))
        if not WHOLE:
            tl.store(gu + n, felt, mask=n < rows)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = c < channels
    exists = (n < rows)[:, None] & known[None, :]
    at = n[:, None] * channels + c[None, :]
    x = tl.load(u + at, mask=exists, other=0).to(tl.float32)
    if WHOLE:
        factor = tl.load(weight + c, mask=known, other=0).to(tl.float32)
        tl.store(gu + at, (felt[:, None] * factor[None, :]).to(gu.dtype.element_ty), mask=exists)
    tl.store(to + c, tl.sum(x * felt[:, None], 0), mask=known)


def gate(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """2 sigmoid(u . weight + bias), float32 [B, T], for u [B, T, C]."""
    batch, steps, channels = u.shape
    z = torch.empty(batch, steps, device=u.device)
    wide = min(_power(channels), 2048)  # a row at once where it fits: all its loads are under way together
    high = GATE // wide
    with _on(u):
        _gate_kernel[(triton.cdiv(batch * steps, high),)](u, weight, bias, z, batch * steps, channels, high, wide)
    return z


def gate_backward(gz: Tensor, u: Tensor, z: Tensor, weight: Tensor, whole: bool) -> Tuple[Tensor, Tensor]:
    """dL/d(u, weight and bias), those two in one [C + 1], float32.

    That of u is its factors of ``weight``, float32 [B, T], unless it shall be ``whole``.
    """
    batch, steps, channels = u.shape
    wide = _columns(channels, 64)
    high = max(16, GATE // wide)
    blocks = triton.cdiv(batch * steps, high)
    gu = torch.empty_like(u if whole else z)
    parts = torch.empty(blocks, channels + 1, device=u.device)
    with _on(u):
        _gate_back_kernel[(blocks, triton.cdiv(channels, wide))](
            gz, u, z, weight, gu, parts, batch * steps, channels, whole, high, wide
        )
    return gu, parts.sum(0)
