"""The gradients of the read-out from the kernels of ``_kernels.py`` and matrix products.

This computes what ``_gradients.py`` defines by tensor operations, in as few passes over memory as possible: one for
each sum that must be complete before the next can begin. The results differ by rounding only, and are the same in every
run.

    e0, e1   one pass over gy
    v        one pass that adds what landed on each step, one that turns it into the gradient
    flips    the same two passes, with the table's branches read on the way
    linear   columns of signs, two products over the past (see `past_sums`), and a pass for each of q and k

`soft` uses the tensor operations.
"""

from __future__ import annotations

from typing import Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _gradients, _kernels
from ._gradients import Gradients
from ._kernels import Spread
from ._settings import Settings

__all__ = ["backward", "past_sums", "read_out", "symbols"]

CHUNK = 1024  # steps of `linear` whose pairs are formed at once, where all channels are one group
ROUTE_CHUNK = 64  # the same where each route is a group: its states are small, its pairs are not
STATE_BYTES = 1 << 29  # of the states of `linear` that are held at once
TOTAL_BYTES = 1 << 28  # of the sums at destinations that are held at once


def symbols(x: Tensor, bits: int) -> Tensor:
    """The symbols of [B, T, C] as the library reads them, int16 [B R, T]."""
    return _kernels.pack(x, bits)


def read_out(read: Tensor, value: Tensor, e0: Tensor, e1: Tensor, like: Tensor, bits: int) -> Tensor:
    """y for destinations and value symbols, both [B R, T]; of the shape and kind of ``like`` [B, T, C]."""
    return _kernels.read_out(read, value, e0, e1, like, bits)


def _portions(like: Tensor, bits: int) -> Iterator[Tuple[Tuple[int, int], Tensor]]:
    """Routes (from, to) with zeros to add up what lands on their steps, int64 [B, r, T, M], portion by portion."""
    batch, steps, channels = like.shape
    routes = channels // bits
    some = max(1, min(routes, TOTAL_BYTES // (8 * batch * steps * bits)))
    for first in range(0, routes, some):
        last = min(first + some, routes)
        total = torch.zeros(batch, last - first, steps, bits, dtype=torch.int64, device=like.device)
        yield (first, last), total


def _land(
    x: Tensor, place: Tensor, size: Tensor, factor: Tensor, like: Tensor, bits: int, base: Optional[Tensor] = None
) -> Tensor:
    """s'(like) (base + factor * sum of the rows of x at their places); no channel's magnitudes add up to over size."""
    out = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    scale, inverse = _kernels.scale_for(size)
    for routes, total in _portions(like, bits):
        _kernels.land(x, place, scale, total, routes, bits)
        _kernels.landed(total, factor * inverse, like, out, routes, bits, base)
    return out


# --------------------------------------------------------------------------------------------------------------- flips


def flips(
    gy: Tensor, q: Tensor, k: Tensor, v: Tensor, level: Tensor, size: Tensor, table: Tensor, settings: Settings
) -> Tuple[Tensor, Tensor]:
    """The paper's rule. ``size`` [C] is the sum of the magnitudes of gy."""
    bits = settings.bits
    symbols = _kernels.pack(q, bits)
    number = _kernels.runs(symbols, settings.fold).number
    start = _kernels.runs(_kernels.pack(k, bits), settings.fold).start if settings.key_credit == "match" else None
    gq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    gk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    # a bit's key receives the true branch and the flipped one, neither above the sum of |theta|
    scale, inverse = _kernels.scale_for(2 * (size * level.abs()).view(-1, bits).sum(1))
    factor = (inverse / settings.flip_share).repeat_interleave(bits)
    for routes, total in _portions(q, bits):
        _kernels.flip_gains(
            gy, level, q, v, symbols, table, number, start, scale, gq, total, routes, 1 / settings.flip_share, bits
        )
        _kernels.landed(total, factor, k, gk, routes, bits, None)
    return gq, gk


# -------------------------------------------------------------------------------------------------------------- linear


def past_sums(a: Tensor, b: Tensor, x: Tensor, chunk: int, reverse: bool = False) -> Tensor:
    """sum over s < t of (a_t . b_s) x_s, or over s > t: [G, T, n] for a, b [G, T, c] and x [G, T, n].

    Linear attention. T is a multiple of ``chunk``; pairs inside a chunk are formed, what lies before it is a state
    [c, n]. All chunks go through each step together, as many as there is room for states: products of single chunks
    are too small to fill a GPU.
    """
    groups, steps, width = a.shape
    chunks, columns = steps // chunk, x.shape[-1]
    room = 4 * groups * (2 * width * columns + chunk * chunk)
    some = max(1, min(chunks, STATE_BYTES // room))
    carry = torch.zeros(groups, width * columns, device=a.device)
    result = torch.empty(groups, steps, columns, device=a.device) if some < chunks else None
    begins = range(0, chunks, some)
    for begin in reversed(begins) if reverse else begins:
        part = slice(begin * chunk, min(begin + some, chunks) * chunk)
        left, right, given = (y[:, part].reshape(-1, chunk, y.shape[-1]) for y in (a, b, x))
        pairs = torch.bmm(left, right.transpose(1, 2))
        pairs = pairs.triu_(1) if reverse else pairs.tril_(-1)
        sums = _gradients.product(pairs, given)
        if chunks > 1:
            fresh = _gradients.product(right.transpose(1, 2), given)
            before = _kernels.running(fresh.view(groups, -1, width * columns), carry, a.dtype, reverse)
            del fresh
            sums += _gradients.product(left, before.view(-1, width, columns))
        if result is None:
            return sums.view(groups, steps, columns)
        result[:, part] = sums.view(groups, -1, columns)
    assert result is not None
    return result


class _Matrices:
    """How activations and columns are laid out for `past_sums`: one group for each batch entry, or for each route.

    Rows are padded with zeros to whole chunks, widths to 16 bytes, which matrix products want.
    """

    def __init__(self, like: Tensor, settings: Settings, terms: int) -> None:
        self.batch, self.steps, channels = like.shape
        self.bits, self.terms = settings.bits, terms
        self.routes = channels // self.bits
        self.whole = settings.credit == "all"
        self.width = channels if self.whole else self.bits
        longest = CHUNK if self.whole else ROUTE_CHUNK
        self.chunk = min(longest, -(-self.steps // 16) * 16)
        self.padded = -(-self.steps // self.chunk) * self.chunk
        self.device = like.device
        # operands of products have the dtype of the activations where the device accumulates in float32
        known = like.is_cuda and hasattr(torch.ops.aten.bmm, "dtype")
        self.kind = like.dtype if known else torch.float32

    def make(self, terms: int, mask: bool) -> Tuple[Tensor, Spread]:
        """An empty matrix for this many terms, with a column of candidates per route where ``mask``."""
        used = terms * self.width + (0 if not mask else self.routes if self.whole else 1)
        columns = -(-used // 8) * 8
        groups = self.batch if self.whole else self.batch * self.routes
        make = torch.empty if columns == used else torch.zeros
        made = make(groups, self.padded, columns, dtype=self.kind, device=self.device)
        entry, at = self.padded * columns, terms * self.width
        if self.whole:
            return made, Spread(entry, self.bits, columns, self.width, at, 1)
        return made, Spread(entry * self.routes, entry, columns, self.width, at, entry)

    def operand(self, x: Tensor, level: Optional[Tensor]) -> Tensor:
        made, spread = self.make(1, False)
        _kernels.operands(x, level, made, self.padded, spread, self.bits)
        return made


def linear(q: Tensor, k: Tensor, v: Tensor, gy: Tensor, level: Tensor, settings: Settings) -> Tuple[Tensor, Tensor]:
    """Uniform weights; the formulas are those of ``_gradients.linear``."""
    bits, fold, shape = settings.bits, settings.fold, q.shape
    weights = [1.0, settings.suffix] if settings.suffix else [1.0]
    several = len(weights) > 1
    key, query = _kernels.pack(k, bits), _kernels.pack(q, bits)
    keys = _kernels.runs(key, fold)
    starts = _kernels.runs(query, fold).start if several else keys.start
    form = _Matrices(q, settings, len(weights))
    theta, value = form.operand(gy, level), form.operand(v, None)

    columns, at_sums = form.make(len(weights), True)
    counts: List[Tensor] = []
    for term in range(len(weights)):
        counts.append(_kernels.key_columns(key, keys.start, columns, form.padded, at_sums, term, shape, fold, bits))
    sums = past_sums(theta, value, columns, form.chunk)
    del columns
    queries, at_back = form.make(len(weights), False)
    for term in range(len(weights)):
        _kernels.query_columns(query, starts, keys.number, queries, form.padded, at_back, term, shape, bits)
    back = past_sums(value, theta, queries, form.chunk, reverse=True)
    del queries, theta, value

    gq: List[Tensor] = []
    gk = torch.zeros(shape, dtype=torch.float32 if several else k.dtype, device=k.device)
    for term, weight in enumerate(weights):
        out = torch.empty(shape, dtype=torch.float32 if several else q.dtype, device=q.device)
        parts = _kernels.query_gradient(
            sums, counts[term], key, keys, query, starts, q, out, at_sums, term, weight, not several, form.kind, fold,
            bits,
        )  # fmt: skip
        gq.append(out)
        _kernels.deliver_keys(
            back, sums, parts, key, keys, query, starts, k, gk, at_back, at_sums, term, weight, term > 0, form.kind,
            fold, bits,
        )  # fmt: skip
    if not several:
        return gq[0], gk
    # the second term is of the run before, whose gradient belongs to its first step
    before = torch.where(starts > 0, starts.gather(1, (starts - 1).clamp(min=0).long()), -1)
    size = gq[1].abs().sum((0, 1))
    return _land(gq[1], before, size, torch.ones_like(size), q, bits, base=gq[0]), gk.to(k.dtype)


# ---------------------------------------------------------------------------------------------------------- all of them


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
) -> Gradients:
    """All gradients. ``read`` [B R, T] and ``table`` as rosa_find keeps them; ``wanted`` names q, k, v, e0, e1."""
    bits = settings.bits
    results: List[Optional[Tensor]] = [None] * 5
    level = e1 - e0
    size = level  # a placeholder until it is summed
    turned = (wanted[0] or wanted[1]) and settings.qk_grad
    if any(wanted[2:]) or turned == "flips":
        results[3], results[4], size = _kernels.level_sums(gy, read, _kernels.pack(v, bits), bits)
    if wanted[2]:
        results[2] = _land(gy, read, size, level, v, bits)
    if turned == "none":
        results[0], results[1] = torch.zeros_like(q), torch.zeros_like(k)
    elif turned == "flips":
        results[0], results[1] = flips(gy, q, k, v, level, size, table, settings)
    elif turned == "linear":
        results[0], results[1] = linear(q, k, v, gy, level, settings)
    elif turned == "soft":
        gq, gk = _gradients.soft(q, k, v, gy.float() * level, settings)
        results[0] = (_gradients.slope_of(q) * gq).to(q.dtype)
        results[1] = (_gradients.slope_of(k) * gk).to(k.dtype)
    return Gradients(*(given if asked else None for given, asked in zip(results, wanted)))
