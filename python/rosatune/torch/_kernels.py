"""Triton kernels for what the operator does on a GPU beside matrix products, and the functions that launch them.

Each function makes one pass over memory where the tensor operations of ``_gradients.py`` make many. Those remain the
definition that the kernels are tested against, and are used where Triton is missing.

There are two layouts. Activations are [B, T, C], channels last. What belongs to a route and a step (symbols,
destinations, run starts) is [B R, T], time last, as on the host; sums over time are then contiguous in memory, and
random reads in a route stay within a few kilobytes. A kernel's tile has some steps of some routes, [TIME, ROUTES,
PLACES], with as many places as the bits of a route rounded up to a power of two: one side is read or written along the
channels, the other along time, with a transposition in between. The first axis of the grid is time, so that programs
that run at the same time share routes, and their random reads hit the cache.

Sums at steps chosen by the data are made in integers: floats times a power of two such that the sum of all magnitudes
stays below 2**60. Atomic additions of integers give the same result in any order, those of floats do not; sorting the
destinations first would also fix the order, at several times the memory traffic. The resolution of such a sum is 2**-60
of the largest possible one, far finer than float32. For gradients in bfloat16 the integers are half as wide and the sum
stays below 2**30: with n magnitudes of one size in a sum, 2**-30 n of each is lost at most, which is less than rounding
to bfloat16 loses for up to two million steps. Where the magnitudes are not finite, neither is the result.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, List, NamedTuple, Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._strength import GAINS, Strength

__all__ = [
    "Chunks",
    "Runs",
    "Spread",
    "clear",
    "deliver_keys",
    "flip_gains",
    "key_columns",
    "land",
    "landed",
    "levels",
    "operands",
    "pack",
    "query_columns",
    "query_gradient",
    "read_out",
    "running",
    "runs",
]

STEPS = 64  # steps of a tile within which sums over time are formed by a scan
WIDE = 16  # columns of a table of gains as a power of two


# ------------------------------------------------------------------------------------------------------------- helpers


def _on(x: Tensor) -> ContextManager[Any]:
    """The device of x as the current one, where Triton launches. Tensors of the host are for its interpreter."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def _rows(x: Tensor) -> Tensor:
    """x, copied unless its channels are contiguous; steps and batch entries may have any stride."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


class _Tile(NamedTuple):
    BITS: int
    PLACES: int
    ROUTES: int
    TIME: int


def _tile(bits: int, routes: int, columns: int, elements: int) -> _Tile:
    """A tile of this many elements, about this many channels wide."""
    places = _power(bits)
    wide = min(max(1, columns // places), _power(routes))
    return _Tile(bits, places, wide, max(8, elements // (wide * places)))


def _grid(batch: int, steps: int, routes: int, tile: _Tile) -> Tuple[int, int, int]:
    return triton.cdiv(steps, tile.TIME), triton.cdiv(routes, tile.ROUTES), batch


@triton.jit
def _wide(kept, NARROW: tl.constexpr):
    """Destinations as they are kept as int32 with -1."""
    found = kept.to(tl.int32)
    if NARROW:
        found = found & 0xFFFF
        found = tl.where(found == 0xFFFF, -1, found)
    return found


@triton.jit
def _slope(x):
    """s'(x) = sigmoid(x) (1 - sigmoid(x))."""
    p = tl.sigmoid(x)
    return p * (1 - p)


@triton.jit
def _strength(length, gain, z, at, row, step, live, GAIN: tl.constexpr, GATE: tl.constexpr):
    """The match lengths of reads up to 9, what the table of gains has for them, and the gate; 1 where one is missing.

    Reads are at ``at``, their row of the table is ``row``, their step is ``step``, numbered through the batch.
    """
    long, factor, open = 9, 1.0, 1.0
    if GAIN:
        long = tl.minimum(tl.load(length + at, mask=live, other=0).to(tl.int32), 9)
        factor = tl.load(gain + row * 10 + long, mask=live, other=0)
    if GATE:
        open = tl.load(z + step, mask=live, other=0)
    return long, factor, open


@triton.jit
def _weighed(length, gain, z, scale, at, row, step, live, GAIN: tl.constexpr, GATE: tl.constexpr):
    """The strength of reads; 0 where they are not ``live``."""
    _, factor, open = _strength(length, gain, z, at, row, step, live, GAIN, GATE)
    return factor * tl.where(live, scale, 0.0) * open


@triton.jit
def _scale(size, WHOLE: tl.constexpr):
    """The power of two to multiply by for sums of magnitudes up to ``size`` in whole numbers of this type, and its
    inverse; NaN if ``size`` is not finite."""
    room: tl.constexpr = 30 if WHOLE == tl.int32 else 60
    exponent = ((size.to(tl.int32, bitcast=True) >> 23) & 255) - 126  # size is below 2**exponent
    exponent = tl.minimum(room - exponent, 126)
    finite = size < float("inf")
    scale = tl.where(finite, ((127 + exponent) << 23).to(tl.float32, bitcast=True), float("nan"))
    return scale, tl.where(finite, ((127 - exponent) << 23).to(tl.float32, bitcast=True), float("nan"))


@triton.jit
def _place(first, routes, steps, TIME: tl.constexpr, ROUTES: tl.constexpr, PLACES: tl.constexpr):
    """Batch entry, routes and steps of a program's tile, and the first number of each route's row in [B R, T]."""
    b = tl.program_id(2).to(tl.int64)
    r = first + tl.program_id(1) * ROUTES + tl.arange(0, ROUTES)
    t = tl.program_id(0) * TIME + tl.arange(0, TIME)
    return b, r, t, tl.arange(0, PLACES), (b * routes + r) * steps


@triton.jit
def _inside(t, r, j, steps, routes, BITS: tl.constexpr):
    """Which elements of a tile [TIME, ROUTES, PLACES] exist."""
    return (t < steps)[:, None, None] & (r < routes)[None, :, None] & (j < BITS)[None, None, :]


@triton.jit
def _found(read, value, row, t, inside, NARROW: tl.constexpr):
    """The value symbols found, [TIME, ROUTES]; -1 where nothing was. ``inside`` is [ROUTES, TIME]."""
    d = _wide(tl.load(read + row[:, None] + t[None, :], mask=inside, other=-1), NARROW)
    symbol = tl.load(value + row[:, None] + d, mask=inside & (d >= 0), other=0).to(tl.int32) & 0xFFFF
    return tl.trans(tl.where(inside & (d >= 0), symbol, -1))


# ------------------------------------------------------------------------------------------------------------- symbols


@triton.jit
def _pack_kernel(
    x, out, steps, routes, x_b, x_t,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(0, routes, steps, TIME, ROUTES, PLACES)
    at = x + b * x_b + t.to(tl.int64)[:, None, None] * x_t + (r * BITS)[None, :, None] + j[None, None, :]
    given = tl.load(at, mask=_inside(t, r, j, steps, routes, BITS), other=0).to(tl.float32)
    symbol = tl.sum(tl.where(given > 0, (1 << j)[None, None, :], 0), 2)
    inside = (r < routes)[:, None] & (t < steps)[None, :]
    tl.store(out + row[:, None] + t[None, :], tl.trans(symbol).to(tl.int16), mask=inside)


def pack(x: Tensor, bits: int) -> Tensor:
    """The symbols of [B, T, C] as the library reads them, int16 [B R, T]."""
    x = _rows(x)
    batch, steps, channels = x.shape
    routes = channels // bits
    out = torch.empty(batch * routes, steps, dtype=torch.int16, device=x.device)
    tile = _tile(bits, routes, 128, 8192)
    with _on(x):
        _pack_kernel[_grid(batch, steps, routes, tile)](x, out, steps, routes, x.stride(0), x.stride(1), *tile)
    return out


# ------------------------------------------------------------------------------------------------------------ read-out


@triton.jit
def _read_kernel(
    read, value, length, gain, z, e0, e1, y, scale, steps, routes,
    NARROW: tl.constexpr, WEIGHS: tl.constexpr, GAIN: tl.constexpr, GATE: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(0, routes, steps, TIME, ROUTES, PLACES)
    inside = (r < routes)[:, None] & (t < steps)[None, :]
    symbol = _found(read, value, row, t, inside, NARROW)
    channel = (r * BITS)[:, None] + j[None, :]
    exists = (r < routes)[:, None] & (j < BITS)[None, :]
    low = tl.load(e0 + channel, mask=exists, other=0).to(tl.float32)
    high = tl.load(e1 + channel, mask=exists, other=0).to(tl.float32)
    bit = (symbol[:, :, None] >> j[None, None, :]) & 1
    picked = tl.where(bit == 1, high[None, :, :], low[None, :, :])
    picked = tl.where(symbol[:, :, None] >= 0, picked, 0.0)
    if WEIGHS:
        at, step = row[:, None] + t[None, :], (b * steps + t)[None, :] + (r * 0)[:, None]
        picked *= tl.trans(_weighed(length, gain, z, scale, at, r[:, None], step, inside, GAIN, GATE))[:, :, None]
    at = y + (b * steps + t)[:, None, None] * (routes * BITS) + channel[None, :, :]
    tl.store(at, picked.to(y.dtype.element_ty), mask=_inside(t, r, j, steps, routes, BITS))


def read_out(
    read: Tensor, length: Tensor, value: Tensor, e0: Tensor, e1: Tensor, strength: Strength, like: Tensor, bits: int
) -> Tensor:
    """y for destinations, match lengths and value symbols [B R, T]; of the shape and kind of ``like`` [B, T, C]."""
    batch, steps, channels = like.shape
    routes = channels // bits
    y = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    low, high = (level.to(like.dtype).contiguous() for level in (e0, e1))  # rounded once, not at every step
    tables, uses, scale = _tables(strength, read)
    tile = _tile(bits, routes, 128, 4096)
    with _on(y):
        _read_kernel[_grid(batch, steps, routes, tile)](
            read, value, length, *tables, low, high, y, scale, steps, routes, read.dtype == torch.int16, *uses, *tile
        )
    return y


def _tables(strength: Strength, any: Tensor) -> Tuple[List[Tensor], Tuple[bool, bool, bool], float]:
    """The gains and the gate, what there is of a strength, and its scale."""
    gain, z = strength.gain, strength.z
    tables = [any if x is None else x.contiguous() for x in (gain, z)]
    return tables, (strength.weighs, gain is not None, z is not None), strength.factor


# ------------------------------------------------------------------------------------------------------ sums of levels


@triton.jit
def _level_kernel(
    gy, read, value, length, gain, z, e0, e1, weighed, parts, gates, scale, steps, routes, width, gy_b, gy_t,
    NARROW: tl.constexpr, WEIGHS: tl.constexpr, GAIN: tl.constexpr, GATE: tl.constexpr, WIDE: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(0, routes, steps, TIME, ROUTES, PLACES)
    inside = (r < routes)[:, None] & (t < steps)[None, :]
    here = _inside(t, r, j, steps, routes, BITS)
    channels = routes * BITS
    channel = (r * BITS)[:, None] + j[None, :]
    exists = (r < routes)[:, None] & (j < BITS)[None, :]
    symbol = _found(read, value, row, t, inside, NARROW)
    at = gy + b * gy_b + t.to(tl.int64)[:, None, None] * gy_t + channel[None, :, :]
    g = tl.load(at, mask=here, other=0).to(tl.float32)
    hit = (symbol >= 0)[:, :, None]
    bit = (symbol[:, :, None] >> j[None, None, :]) & 1
    parts += (b * tl.num_programs(0) + tl.program_id(0)) * width
    if WEIGHS:
        at, step = row[:, None] + t[None, :], (b * steps + t)[None, :] + (r * 0)[:, None]
        long, factor, open = _strength(length, gain, z, at, r[:, None], step, inside, GAIN, GATE)
        if GAIN or GATE:
            low = tl.load(e0 + channel, mask=exists, other=0)
            high = tl.load(e1 + channel, mask=exists, other=0)
            picked = tl.where(bit == 1, high[None, :, :], low[None, :, :])
            felt = tl.trans(tl.sum(tl.where(hit, g * picked, 0.0), 2)) * scale
            if GATE:
                to = gates + (tl.program_id(1) * tl.num_programs(2) + b) * steps + t
                tl.store(to, tl.sum(felt * factor, 0), mask=t < steps)
            if GAIN:
                entry = tl.arange(0, WIDE)
                shares = tl.where(long[:, :, None] == entry[None, None, :], (felt * open)[:, :, None], 0.0)
                to = parts + 3 * channels + (r * WIDE)[:, None] + entry[None, :]
                tl.store(to, tl.sum(shares, 1), mask=(r < routes)[:, None])
        g *= tl.trans(factor * tl.where(inside, scale, 0.0) * open)[:, :, None]
        to = weighed + (b * steps + t)[:, None, None] * channels + channel[None, :, :]
        tl.store(to, g.to(weighed.dtype.element_ty), mask=here)
    to = parts + channel
    tl.store(to, tl.sum(tl.where(hit & (bit == 0), g, 0.0), 0), mask=exists)
    tl.store(to + channels, tl.sum(tl.where(hit & (bit == 1), g, 0.0), 0), mask=exists)
    tl.store(to + 2 * channels, tl.sum(tl.abs(g), 0), mask=exists)


class Levels(NamedTuple):
    """What one pass over the gradient of y gives."""

    gy: Tensor  # with its strength
    e0: Tensor  # [C], its sums over batch and time where e0 was read, where e1 was, and of its magnitude
    e1: Tensor
    size: Tensor
    gain: Optional[Tensor]
    z: Optional[Tensor]


def levels(
    gy: Tensor, read: Tensor, length: Tensor, value: Tensor, e0: Tensor, e1: Tensor, strength: Strength, bits: int
) -> Levels:
    """For destinations, match lengths and value symbols [B R, T]."""
    gy = _rows(gy)
    batch, steps, channels = gy.shape
    routes = channels // bits
    tables, uses, scale = _tables(strength, read)
    weighs, gain, gate = uses
    tile = _tile(bits, routes, 64, 2048)
    if gain:  # room for shares of each entry of the table
        tile = tile._replace(TIME=min(tile.TIME, max(8, 8192 // (tile.ROUTES * WIDE))))
    grid = _grid(batch, steps, routes, tile)
    width = 3 * channels + (routes * WIDE if gain else 0)
    parts = torch.empty(batch * grid[0], width, device=gy.device)
    gates = torch.empty(grid[1], batch, steps, device=gy.device) if gate else parts
    weighed = torch.empty(gy.shape, dtype=gy.dtype, device=gy.device) if weighs else gy
    with _on(gy):
        _level_kernel[grid](
            gy, read, value, length, *tables, e0, e1, weighed, parts, gates, scale, steps, routes, width,
            gy.stride(0), gy.stride(1), read.dtype == torch.int16, *uses, WIDE, *tile, num_warps=8,
        )  # fmt: skip
    sums = parts.sum(0)
    ge0, ge1, size = sums[: 3 * channels].view(3, channels)
    # in memory of their own, as an operator has to give them
    ggain = sums[3 * channels :].view(routes, WIDE)[:, :GAINS].clone() if gain else None
    return Levels(weighed, ge0.clone(), ge1.clone(), size, ggain, gates.sum(0) if gate else None)


# ------------------------------------------------------------------------------------------- sums at destinations


@triton.jit
def _land_kernel(
    x, place, token, size, total, first, last, steps, kept, routes, x_b, x_t, total_b,
    NARROW: tl.constexpr, TOKENS: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(first, routes, steps, TIME, ROUTES, PLACES)
    inside = (r < last)[:, None] & (t < steps)[None, :]
    d = tl.trans(_wide(tl.load(place + row[:, None] + t[None, :], mask=inside, other=-1), NARROW))
    channel = (r * BITS)[:, None] + j[None, :]
    exists = _inside(t, r, j, steps, last, BITS) & (d >= 0)[:, :, None]
    most = tl.load(size + channel, mask=(r < last)[:, None] & (j < BITS)[None, :], other=0)
    factor, _ = _scale(most, total.dtype.element_ty)
    at = x + b * x_b + t.to(tl.int64)[:, None, None] * x_t + channel[None, :, :]
    whole = (tl.load(at, mask=exists, other=0).to(tl.float32) * factor[None, :, :]).to(total.dtype.element_ty)
    if TOKENS:
        d = tl.load(token + b * steps + d, mask=d >= 0, other=0)
    line = total + b * total_b + ((r - first)[None, :] * kept + d) * BITS
    tl.atomic_add(line[:, :, None] + j[None, None, :], whole, mask=exists, sem="relaxed")


def land(
    x: Tensor, place: Tensor, size: Tensor, total: Tensor, routes: Tuple[int, int], bits: int,
    token: Optional[Tensor] = None,
) -> None:  # fmt: skip
    """Add the rows of x [B, T, C] at the steps ``place`` [B R, T] says (below 0: nowhere), in whole numbers.

    size: [C], what the magnitudes of a channel add up to. ``total`` is int64 or int32 [B, r, T, M] and receives the
    routes from the first to before the last. With ``token`` [B, T] it is [1, r, U, M], and a row is added at the token
    that stands at its step.
    """
    x = _rows(x)
    batch, steps, channels = x.shape
    first, last = routes
    tile = _tile(bits, last - first, 64, 2048)
    with _on(x):
        _land_kernel[_grid(batch, steps, last - first, tile)](
            x, place, place if token is None else token, size, total, first, last, steps, total.shape[2],
            channels // bits, x.stride(0), x.stride(1), total.stride(0) if token is None else 0,
            place.dtype == torch.int16, token is not None, *tile,
        )  # fmt: skip


@triton.jit
def _landed_kernel(
    total, size, factor, base, x, out, first, last, steps, routes, x_b, x_t, pitch,
    BASE: tl.constexpr, STRAIGHT: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(first, routes, steps, TIME, ROUTES, PLACES)
    exists = _inside(t, r, j, steps, last, BITS)
    channel = (r * BITS)[:, None] + j[None, :]
    line = (b * (last - first) + (r - first))[None, :] * steps + t[:, None]
    whole = tl.load(total + line[:, :, None] * BITS + j[None, None, :], mask=exists, other=0)
    known = (r < last)[:, None] & (j < BITS)[None, :]
    _, unit = _scale(tl.load(size + channel, mask=known, other=0), total.dtype.element_ty)
    unit *= tl.load(factor + channel, mask=known, other=0)
    found = whole.to(tl.float32) * unit[None, :, :]
    if BASE:
        at = base + (b * steps + t)[:, None, None] * (routes * BITS) + channel[None, :, :]
        found += tl.load(at, mask=exists, other=0)
    here = x + b * x_b + t.to(tl.int64)[:, None, None] * x_t + channel[None, :, :]
    own = tl.load(here, mask=exists, other=0).to(tl.float32)
    if STRAIGHT:
        found = tl.where(tl.abs(own) < 1, found, 0.0)
    else:
        found *= _slope(own)
    to = out + (b * steps + t)[:, None, None] * pitch + channel[None, :, :]
    tl.store(to, found.to(out.dtype.element_ty), mask=exists)


def landed(
    total: Tensor, size: Tensor, factor: Tensor, x: Tensor, out: Tensor, routes: Tuple[int, int], bits: int,
    base: Optional[Tensor] = None, straight: bool = False,
) -> None:  # fmt: skip
    """out = s'(x) (base + factor * what landed) for the routes of ``total``, see :func:`land`; ``factor`` is [C].

    straight: 1 where x lies between -1 and 1, and 0 elsewhere, in the place of s'(x).
    """
    x = _rows(x)
    batch, steps, channels = x.shape
    first, last = routes
    tile = _tile(bits, last - first, 64, 2048)
    with _on(x):
        _landed_kernel[_grid(batch, steps, last - first, tile)](
            total, size, factor, x if base is None else base, x, out, first, last, steps, channels // bits,
            x.stride(0), x.stride(1), out.stride(1), base is not None, straight, *tile,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- runs


@triton.jit
def _greater(a, b):
    return tl.maximum(a, b)


@triton.jit
def _runs_kernel(symbol, start, number, steps, FOLD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * steps
    begun = 0
    count = 0
    for begin in range(0, steps, BLOCK):
        t = begin + tl.arange(0, BLOCK)
        inside = t < steps
        first = inside
        if FOLD:
            here = tl.load(symbol + row + t, mask=inside, other=0)
            before = tl.load(symbol + row + t - 1, mask=inside & (t > 0), other=0)
            first = inside & ((here != before) | (t == 0))
        starts = tl.maximum(tl.associative_scan(tl.where(first, t, 0), 0, _greater), begun)
        numbers = tl.cumsum(first.to(tl.int32), 0) + count
        tl.store(start + row + t, starts, mask=inside)
        tl.store(number + row + t, numbers, mask=inside)
        begun = tl.max(starts, 0)
        count = tl.max(numbers, 0)


class Runs(NamedTuple):
    """Of symbols [B R, T], int32 of the same shape, of the run that holds each step."""

    start: Tensor  # the step that began it
    number: Tensor  # the number of runs up to and including this one


def runs(symbol: Tensor, fold: bool) -> Runs:
    """The runs of symbols [B R, T]."""
    rows, steps = symbol.shape
    start = torch.empty(rows, steps, dtype=torch.int32, device=symbol.device)
    number = torch.empty_like(start)
    with _on(symbol):
        _runs_kernel[(rows,)](symbol, start, number, steps, fold, min(2048, _power(steps)), num_warps=8)
    return Runs(start, number)


# --------------------------------------------------------------------------------------------------------------- flips


@triton.jit
def _gain(theta, far, ends, start, row, valid, exists, v_t, NARROW: tl.constexpr, MATCH: tl.constexpr):
    """theta . P at the steps that ``ends`` point to, the steps whose keys that speaks of, and whether there are any."""
    d = _wide(tl.load(ends, mask=valid, other=-1), NARROW)
    hit = valid & (d >= 0)
    read = tl.load(far + d.to(tl.int64)[:, :, None] * v_t, mask=exists & hit[:, :, None], other=0).to(tl.float32)
    gain = tl.where(hit, tl.sum(theta * tl.sigmoid(read), 2), 0.0)
    place = d
    if MATCH:
        hit = hit & (d > 0)
        place = tl.load(start + row[None, :] + d - 1, mask=hit, other=0)
    return gain, place, hit


@triton.jit
def _flip_kernel(
    gy, level, qsym, v, table, line, number, start, size, gq, total, q,
    share, first, last, steps, routes, gy_b, gy_t, v_b, v_t, q_b, q_t, pitch,
    NARROW: tl.constexpr, MATCH: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(first, routes, steps, TIME, ROUTES, PLACES)
    inside = (r < last)[:, None] & (t < steps)[None, :]
    exists = _inside(t, r, j, steps, last, BITS)
    channel = (r * BITS)[:, None] + j[None, :]
    known = (r < last)[:, None] & (j < BITS)[None, :]
    # [TIME, ROUTES]: the step's symbol and its row of the table
    symbol = tl.trans(tl.load(qsym + row[:, None] + t[None, :], mask=inside, other=0).to(tl.int32))
    runs_before = tl.load(line + b * routes + r, mask=r < last, other=0)
    entry = tl.trans(tl.load(number + row[:, None] + t[None, :], mask=inside, other=1)) - 1
    entry = (runs_before[None, :] + entry) * (BITS + 1)
    felt = gy + b * gy_b + t.to(tl.int64)[:, None, None] * gy_t + channel[None, :, :]
    theta = tl.load(felt, mask=exists, other=0).to(tl.float32)
    theta *= tl.load(level + channel, mask=known, other=0)[None, :, :]
    unit, _ = _scale(tl.load(size + r, mask=r < last, other=0), total.dtype.element_ty)
    unit = unit[None, :]
    here = (b * (last - first) + (r - first))[None, :] * steps
    valid = (t < steps)[:, None] & (r < last)[None, :]
    sign = tl.where(((symbol[:, :, None] >> j[None, None, :]) & 1) == 1, 1.0, -1.0)
    far = v + b * v_b + channel[None, :, :]
    actual, place, hit = _gain(theta, far, table + entry, start, row, valid, exists, v_t, NARROW, MATCH)
    all_bits = (sign * (actual * unit)[:, :, None]).to(total.dtype.element_ty)
    at = total + (here + place)[:, :, None] * BITS + j[None, None, :]
    tl.atomic_add(at, all_bits, mask=exists & hit[:, :, None], sem="relaxed")
    change = tl.zeros([TIME, ROUTES, PLACES], tl.float32)
    for bit in range(0, BITS):
        gain, place, hit = _gain(theta, far, table + entry + (bit + 1), start, row, valid, exists, v_t, NARROW, MATCH)
        whole = (tl.where(((symbol >> bit) & 1) == 1, -gain, gain) * unit).to(total.dtype.element_ty)
        tl.atomic_add(total + (here + place) * BITS + bit, whole, mask=hit, sem="relaxed")
        change = tl.where((j == bit)[None, None, :], (actual - gain)[:, :, None], change)
    own = q + b * q_b + t.to(tl.int64)[:, None, None] * q_t + channel[None, :, :]
    found = _slope(tl.load(own, mask=exists, other=0).to(tl.float32)) * sign * change * share
    to = gq + (b * steps + t)[:, None, None] * pitch + channel[None, :, :]
    tl.store(to, found.to(gq.dtype.element_ty), mask=exists)


def flip_gains(
    gy: Tensor,
    level: Tensor,
    q: Tensor,
    v: Tensor,
    symbols: Tensor,
    table: Tensor,
    number: Tensor,
    start: Optional[Tensor],
    size: Tensor,
    gq: Tensor,
    total: Tensor,
    routes: Tuple[int, int],
    share: float,
    bits: int,
) -> None:
    """q's gradient by flips, into gq, and k's, into ``total`` (see :func:`land`, but ``size`` is [R]), for some routes.

    level: e1 - e0. symbols, number: of q and of its runs. start: of k's runs, where credit goes to the run before the
    one that is read. share: what q's gradient is multiplied by.
    """
    gy, q, v = _rows(gy), _rows(q), _rows(v)
    batch, steps, channels = q.shape
    first, last = routes
    counts = number[:, -1].long()
    line = counts.cumsum(0) - counts
    tile = _tile(bits, last - first, 64, 1024)
    with _on(q):
        _flip_kernel[_grid(batch, steps, last - first, tile)](
            gy, level, symbols, v, table, line, number, number if start is None else start, size, gq, total, q,
            share, first, last, steps, channels // bits,
            gy.stride(0), gy.stride(1), v.stride(0), v.stride(1), q.stride(0), q.stride(1), gq.stride(1),
            table.dtype == torch.int16, start is not None, *tile,
        )  # fmt: skip


# -------------------------------------------------------------------------------------------------- sums over the past


@triton.jit
def _running_kernel(
    x, out, carry, rows, columns, pitch,
    CARRY: tl.constexpr, REVERSE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    kind: tl.constexpr = tl.int32 if x.dtype.element_ty == tl.int32 else tl.float32
    state = tl.zeros([COLUMNS], kind)
    if CARRY:
        state = tl.load(carry + b * columns + c, mask=c < columns, other=0)
    for begin in range(0, rows, ROWS):
        i = begin + tl.arange(0, ROWS)
        row = b * rows + i
        if REVERSE:
            row = b * rows + rows - 1 - i
        inside = (i < rows)[:, None] & (c < columns)[None, :]
        given = tl.load(x + row[:, None] * columns + c[None, :], mask=inside, other=0).to(kind)
        before = tl.cumsum(given, 0) - given + state[None, :]
        tl.store(out + row[:, None] * pitch + c[None, :], before.to(out.dtype.element_ty), mask=inside)
        state += tl.sum(given, 0)
    if CARRY:
        tl.store(carry + b * columns + c, state, mask=c < columns)


def running(x: Tensor, out: Tensor, carry: Optional[Tensor] = None, reverse: bool = False) -> Tensor:
    """The sums of the rows before each row of [B, N, n], or after it, on top of ``carry`` [B, n], which moves on.

    ``out`` is [B N, ...] with n neighbouring numbers in each of its rows, which may lie apart.
    """
    batch, rows, columns = x.shape
    # A warp's threads lie side by side and load 16 bytes of each of some rows at once: the sums down a column are then
    # a thread's own, and many loads are on their way.
    wide = 512 // x.element_size()
    high = min(2048 // wide, _power(rows))
    grid = (triton.cdiv(columns, wide), batch)
    with _on(x):
        _running_kernel[grid](
            x, out, x if carry is None else carry, rows, columns, out.stride(0), carry is not None, reverse, high, wide,
            num_warps=1,
        )  # fmt: skip
    return out


@triton.jit
def _clear_kernel(x, area, pitch, steps, TILE: tl.constexpr):
    i, j = tl.program_id(0), tl.program_id(1)
    row, column = (i * TILE + tl.arange(0, TILE))[:, None], (j * TILE + tl.arange(0, TILE))[None, :]
    at = x + tl.program_id(2).to(tl.int64) * area + row.to(tl.int64) * pitch + column
    zeros = tl.zeros([TILE, TILE], x.dtype.element_ty)
    inside = (row < steps) & (column < steps)
    if j > i:
        tl.store(at, zeros, mask=inside)
    if j == i:  # apart, so that the stores of all other tiles are wide
        tl.store(at, zeros, mask=inside & (column >= row))


def clear(x: Tensor) -> None:
    """Zeros on and above the diagonals of [N, t, t]. Nothing is read, and what lies below is not written."""
    count, steps, _ = x.shape
    tiles = triton.cdiv(steps, 64)
    with _on(x):
        _clear_kernel[(tiles, tiles, count)](x, x.stride(0), x.stride(1), steps, 64)


# -------------------------------------------------------------------------------------------------------------- linear


class Spread(NamedTuple):
    """Where a matrix [B, T, R, n] lies whose columns are one matrix for all routes, or one for each.

    batch, route, step: distances between these. term: between the terms of a score. mask, mask_route: where the column
    of candidates is, and how far that of the next route.
    """

    batch: int
    route: int
    step: int
    term: int = 0
    mask: int = 0
    mask_route: int = 0


class Chunks(NamedTuple):
    """How a matrix that is written is cut: after ``steps`` steps the next chunk begins ``gap`` numbers further on."""

    steps: int
    gap: int


@triton.jit
def _signs(symbol, exists, j):
    """sgn of the bits of symbols [ROUTES, TIME], [TIME, ROUTES, PLACES]; 0 where there is no symbol."""
    symbol = tl.trans(tl.where(exists, symbol.to(tl.int32) & 0xFFFF, -1))[:, :, None]
    return tl.where(symbol >= 0, ((symbol >> j[None, None, :]) & 1) * 2 - 1, 0)


@triton.jit
def _key_signs(symbol, start, row, t, j, inside, FOLD: tl.constexpr, TERM: tl.constexpr):
    """sgn of the key that belongs to each candidate, [TIME, ROUTES, PLACES], and whether there is one, [ROUTES, TIME].

    The run before a candidate d ends at d - 1, and all its steps have one symbol.
    """
    at = row[:, None] + t[None, :]
    exists = inside & (t > 0)[None, :]
    key = tl.load(symbol + at - 1, mask=exists, other=0)
    if FOLD:
        exists = exists & (tl.load(symbol + at, mask=exists, other=0) != key)
    if TERM == 1:
        before = tl.load(start + at - 1, mask=exists, other=0)
        exists = exists & (before > 0)
        key = tl.load(symbol + row[:, None] + before - 1, mask=exists, other=0)
    return _signs(key, exists, j), exists


@triton.jit
def _query_column(symbol, start, number, row, t, j, inside, TERM: tl.constexpr, KIND: tl.constexpr):
    """sgn(q) / n_t of each step, [TIME, ROUTES, PLACES], or that of the run before, as a product sees it; and 1 / n_t,
    [TIME, ROUTES], n_t being the number of candidates before t. 0 where there is no query or no candidate."""
    at = row[:, None] + t[None, :]
    count = tl.load(number + at - 1, mask=inside & (t > 0)[None, :], other=1) - 1
    share = tl.trans(tl.where(count > 0, 1.0 / tl.maximum(count, 1).to(tl.float32), 0.0))
    exists = inside
    if TERM == 1:
        before = tl.load(start + at, mask=exists, other=0) - 1
        exists = exists & (before >= 0)
        at = row[:, None] + before
    sign = _signs(tl.load(symbol + at, mask=exists, other=0), exists, j)
    return (sign.to(tl.float32) * share[:, :, None]).to(KIND), share


@triton.jit
def _line(t, o_t, chunk, gap):
    """Where a step's row begins in a matrix that is cut into chunks."""
    return t.to(tl.int64) * o_t + (t // chunk).to(tl.int64) * gap


@triton.jit
def _operand_kernel(
    x, token, level, out, begin, steps, padded, channels, x_b, x_t, o_b, o_r, o_t, o_c, chunk, gap,
    VALUE: tl.constexpr, TOKENS: tl.constexpr,
    BITS: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    t = (tl.program_id(0) * STEPS + tl.arange(0, STEPS))[:, None]
    c = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    there = begin + t
    inside = (there < steps) & (c < channels)
    line = there
    if TOKENS:
        line = tl.load(token + b * steps + there, mask=there < steps, other=0)
    given = tl.load(x + b * x_b + line.to(tl.int64) * x_t + c, mask=inside, other=0).to(tl.float32)
    if VALUE:
        given = tl.where(inside, tl.sigmoid(given) - 0.5, 0.0)
    else:
        given *= tl.load(level + c, mask=c < channels, other=0)
    to = out + b * o_b + (c // BITS).to(tl.int64) * o_r + _line(t, o_t, chunk, gap) + (c % BITS) * o_c
    tl.store(to, given.to(out.dtype.element_ty), mask=(t < padded) & (c < channels))


def operands(
    x: Tensor, level: Optional[Tensor], out: Tensor, part: Tuple[int, int], spread: Spread, between: int,
    chunks: Chunks, bits: int, token: Optional[Tensor] = None,
) -> None:  # fmt: skip
    """theta = x ``level`` [C] or, where that is None, sigmoid(x) - 1/2, into ``out``, for the steps from part[0] to
    before part[1]; zeros from T on. Neighbouring channels are ``between`` numbers apart. With ``token`` [B, T], x is
    [1, U, C], and this is the row of each step."""
    x = _rows(x)
    batch, steps = x.shape[:2] if token is None else token.shape
    channels = x.shape[2]
    begin, padded = part[0], part[1] - part[0]
    grid = (triton.cdiv(padded, 32), triton.cdiv(channels, 128), batch)
    with _on(x):
        _operand_kernel[grid](
            x, x if token is None else token, x if level is None else level, out, begin, steps, padded, channels,
            x.stride(0) if token is None else 0, x.stride(1), *spread[:3], between, *chunks,
            level is None, token is not None, bits, 32, 128,
        )  # fmt: skip


@triton.jit
def _key_kernel(
    symbol, start, out, counts, steps, padded, routes, o_b, o_r, o_t, o_term, o_mask, o_mask_r, chunk, gap,
    FOLD: tl.constexpr, TERM: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(0, routes, steps, TIME, ROUTES, PLACES)
    sign, exists = _key_signs(symbol, start, row, t, j, (r < routes)[:, None] & (t < steps)[None, :], FOLD, TERM)
    line, far = (out + b * o_b + _line(t, o_t, chunk, gap))[:, None], r.to(tl.int64)[None, :]
    to = (line + far * o_r)[:, :, None] + TERM * o_term + j[None, None, :]
    tl.store(to, sign.to(out.dtype.element_ty), mask=_inside(t, r, j, padded, routes, BITS))
    if TERM == 0:
        mark = tl.trans(tl.where(exists, 1.0, 0.0)).to(out.dtype.element_ty)
        tl.store(line + o_mask + far * o_mask_r, mark, mask=(t < padded)[:, None] & (r < routes)[None, :])
    to = counts + (b * tl.num_programs(0) + tl.program_id(0)) * routes * BITS + (r * BITS)[:, None] + j[None, :]
    tl.store(to, tl.sum(sign, 0), mask=(r < routes)[:, None] & (j < BITS)[None, :])


def _scan(steps: int, routes: int, batch: int, bits: int) -> Tuple[Tuple[int, int, int], _Tile]:
    """The grid and the tile of kernels that form sums over the steps of their tile."""
    tile = _tile(bits, routes, 64, 4096)._replace(TIME=STEPS)
    return _grid(batch, steps, routes, tile), tile


def key_columns(
    symbol: Tensor, start: Tensor, out: Tensor, padded: int, spread: Spread, chunks: Chunks, term: int, shape: Any,
    fold: bool, bits: int,
) -> Tensor:  # fmt: skip
    """The signs of one term of the keys, and the mask of candidates with the first, into ``out``.

    Returned are the sums of the signs over the past of each tile of STEPS steps, int32 [B, tiles, C].
    """
    batch, steps, channels = shape
    grid, tile = _scan(padded, channels // bits, batch, bits)
    counts = torch.empty(batch, grid[0], channels, dtype=torch.int32, device=symbol.device)
    with _on(symbol):
        _key_kernel[grid](
            symbol, start, out, counts, steps, padded, channels // bits, *spread, *chunks, fold, term, *tile,
            num_warps=8,
        )  # fmt: skip
    return running(counts, torch.empty_like(counts).flatten(0, 1)).view_as(counts)


@triton.jit
def _query_kernel(
    symbol, start, number, out, steps, padded, routes, o_b, o_r, o_t, o_term, chunk, gap, TERM: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(0, routes, steps, TIME, ROUTES, PLACES)
    inside = (r < routes)[:, None] & (t < steps)[None, :]
    query, _ = _query_column(symbol, start, number, row, t, j, inside, TERM, out.dtype.element_ty)
    to = (out + b * o_b + _line(t, o_t, chunk, gap))[:, None] + r.to(tl.int64)[None, :] * o_r
    tl.store(to[:, :, None] + TERM * o_term + j[None, None, :], query, mask=_inside(t, r, j, padded, routes, BITS))


def query_columns(
    symbol: Tensor, start: Tensor, number: Tensor, out: Tensor, padded: int, spread: Spread, chunks: Chunks, term: int,
    shape: Any, bits: int,
) -> None:  # fmt: skip
    """sgn(q) / n_t of one term into ``out``. ``start`` is of q's runs, ``number`` of k's."""
    batch, steps, channels = shape
    grid, tile = _scan(padded, channels // bits, batch, bits)
    with _on(symbol):
        _query_kernel[grid](
            symbol, start, number, out, steps, padded, channels // bits, *spread[:4], *chunks, term, *tile, num_warps=8
        )


@triton.jit
def _mean_part(
    sums, qsym, qstart, number, b, r, row, t, j, steps, routes, s_b, s_t, s_mask, s_mask_r,
    TERM: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """1 / n_t, the mean of D_td over the candidates, and its product with the query's column."""
    inside = (r < routes)[:, None] & (t < steps)[None, :]
    query, share = _query_column(qsym, qstart, number, row, t, j, inside, TERM, KIND)
    at = sums + b * s_b + (t.to(tl.int64) * s_t)[:, None] + s_mask + (r.to(tl.int64) * s_mask_r)[None, :]
    mean = tl.load(at, mask=(t < steps)[:, None] & (r < routes)[None, :], other=0) * share
    return share, mean, mean[:, :, None] * query.to(tl.float32)


@triton.jit
def _query_gradient_kernel(
    sums, counts, ksym, kstart, number, qsym, qstart, q, out, parts, weight,
    steps, routes, tiles, pitch, q_b, q_t, s_b, s_r, s_t, s_term, s_mask, s_mask_r,
    FOLD: tl.constexpr, TERM: tl.constexpr, SLOPE: tl.constexpr, KIND: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(0, routes, steps, TIME, ROUTES, PLACES)
    inside = _inside(t, r, j, steps, routes, BITS)
    channel = (r * BITS)[:, None] + j[None, :]
    known = (r < routes)[:, None] & (j < BITS)[None, :]
    share, mean, part = _mean_part(
        sums, qsym, qstart, number, b, r, row, t, j, steps, routes, s_b, s_t, s_mask, s_mask_r, TERM, KIND
    )
    at = (b * tiles + tl.program_id(0)) * routes * BITS + channel
    tl.store(parts + at, tl.sum(part, 0), mask=known)
    sign, _ = _key_signs(ksym, kstart, row, t, j, (r < routes)[:, None] & (t < steps)[None, :], FOLD, TERM)
    against = tl.cumsum(sign, 0) - sign + tl.load(counts + at, mask=known, other=0)[None, :, :]
    far = (sums + b * s_b + t.to(tl.int64) * s_t)[:, None, None] + (r.to(tl.int64) * s_r)[None, :, None]
    far = tl.load(far + TERM * s_term + j[None, None, :], mask=inside, other=0)
    found = share[:, :, None] * (far - mean[:, :, None] * against.to(tl.float32)) * weight
    if SLOPE:
        own = q + b * q_b + (t.to(tl.int64) * q_t)[:, None, None] + channel[None, :, :]
        found *= _slope(tl.load(own, mask=inside, other=0).to(tl.float32))
    to = out + (b * steps + t)[:, None, None] * pitch + channel[None, :, :]
    tl.store(to, found.to(out.dtype.element_ty), mask=inside)


_KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


def query_gradient(
    sums: Tensor, counts: Tensor, key: Tensor, keys: Runs, query: Tensor, starts: Tensor, q: Tensor, out: Tensor,
    spread: Spread, term: int, weight: float, slope: bool, kind: torch.dtype, fold: bool, bits: int,
) -> Tensor:  # fmt: skip
    """The gradient of q by one term, into ``out``, times s'(q) where ``slope``.

    sums: the products of theta and value with the keys' columns. key, keys: k's symbols and runs. query, starts: q's
    symbols and the starts of its runs. Returned are the sums over each tile that :func:`deliver_keys` carries on.
    """
    q = _rows(q)
    batch, steps, channels = q.shape
    grid, tile = _scan(steps, channels // bits, batch, bits)
    parts = torch.zeros(batch, counts.shape[1], channels, device=q.device)
    with _on(q):
        _query_gradient_kernel[grid](
            sums, counts, key, keys.start, keys.number, query, starts, q, out, parts, weight,
            steps, channels // bits, parts.shape[1], out.stride(1), q.stride(0), q.stride(1), *spread,
            fold, term, slope, _KINDS[kind], *tile, num_warps=8,
        )  # fmt: skip
    return parts


@triton.jit
def _key_gradient_kernel(
    back, sums, parts, ksym, kstart, number, qsym, qstart, k, out, weight,
    steps, routes, tiles, pitch, k_b, k_t, g_b, g_r, g_t, g_term, s_b, s_t, s_mask, s_mask_r,
    FOLD: tl.constexpr, TERM: tl.constexpr, ADD: tl.constexpr, KIND: tl.constexpr,
    BITS: tl.constexpr, PLACES: tl.constexpr, ROUTES: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    b, r, t, j, row = _place(0, routes, steps, TIME, ROUTES, PLACES)
    # from the last step of the tile to the first: the sums are over what comes later
    t = tl.program_id(0) * TIME + TIME - 1 - tl.arange(0, TIME)
    inside = (r < routes)[:, None] & (t < steps)[None, :]
    channel = (r * BITS)[:, None] + j[None, :]
    known = (r < routes)[:, None] & (j < BITS)[None, :]
    _, _, part = _mean_part(
        sums, qsym, qstart, number, b, r, row, t, j, steps, routes, s_b, s_t, s_mask, s_mask_r, TERM, KIND
    )
    after = parts + (b * tiles + tl.program_id(0)) * routes * BITS + channel
    later = tl.cumsum(part, 0) - part + tl.load(after, mask=known, other=0)[None, :, :]
    _, candidate = _key_signs(ksym, kstart, row, t, j, inside, FOLD, TERM)
    place = tl.load(kstart + row[:, None] + t[None, :] - 1, mask=candidate, other=0)
    if TERM == 1:
        place = tl.load(kstart + row[:, None] + place - 1, mask=candidate, other=0)
    place = tl.trans(tl.where(candidate, place, -1)).to(tl.int64)[:, :, None]
    exists = (place >= 0) & known[None, :, :]
    far = (back + b * g_b + t.to(tl.int64) * g_t)[:, None, None] + (r.to(tl.int64) * g_r)[None, :, None]
    found = (tl.load(far + TERM * g_term + j[None, None, :], mask=exists, other=0) - later) * weight
    own = tl.load(k + b * k_b + place * k_t + channel[None, :, :], mask=exists, other=0)
    found *= _slope(own.to(tl.float32))
    to = out + (b * steps + place) * pitch + channel[None, :, :]
    if ADD:
        found += tl.load(to, mask=exists, other=0).to(tl.float32)
    else:
        # 0 for what no candidate reaches: steps that do not begin a run, and the last run
        at = row[:, None] + t[None, :]
        begins = tl.load(kstart + at, mask=inside, other=0) == t[None, :]
        last = tl.load(number + row + steps - 1, mask=r < routes, other=0)[:, None]
        idle = inside & ((begins == 0) | (tl.load(number + at, mask=inside, other=0) == last))
        idle = (tl.trans(idle.to(tl.int32)) == 1)[:, :, None] & known[None, :, :]
        own = out + (b * steps + t)[:, None, None] * pitch + channel[None, :, :]
        tl.store(own, tl.zeros([TIME, ROUTES, PLACES], out.dtype.element_ty), mask=idle)
    tl.store(to, found.to(out.dtype.element_ty), mask=exists)


def deliver_keys(
    back: Tensor, sums: Tensor, parts: Tensor, key: Tensor, keys: Runs, query: Tensor, starts: Tensor, k: Tensor,
    out: Tensor, spread: Spread, sums_spread: Spread, term: int, weight: float, add: bool, kind: torch.dtype,
    fold: bool, bits: int,
) -> None:  # fmt: skip
    """The gradient of k by one term into ``out``, or on top of what is there where ``add``.

    back: the products of value and theta with the queries' columns, as ``spread``. The rest as in
    :func:`query_gradient`. No two candidates have the same run before them, so that every step is written at most once.
    """
    k = _rows(k)
    batch, steps, channels = k.shape
    after = running(parts, torch.empty_like(parts).flatten(0, 1), reverse=True)
    grid, tile = _scan(steps, channels // bits, batch, bits)
    with _on(k):
        _key_gradient_kernel[grid](
            back, sums, after, key, keys.start, keys.number, query, starts, k, out, weight,
            steps, channels // bits, parts.shape[1], out.stride(1), k.stride(0), k.stride(1), *spread[:4],
            sums_spread.batch, sums_spread.step, *sums_spread[4:], fold, term, add, _KINDS[kind], *tile, num_warps=8,
        )  # fmt: skip
