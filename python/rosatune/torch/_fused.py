"""The gradients of the read-out from the kernels of ``_kernels.py`` and matrix products.

This computes what ``_gradients.py`` defines by tensor operations, in as few passes over memory as possible: one for
each sum that must be complete before the next can begin. The results differ by rounding only, and are the same in every
run.

    e0, e1   one pass over gy, which also gives it its strength; that of gain and gate comes with it
    v        one pass that adds what landed on each step, one that turns it into the gradient
    flips    the same two passes, with the table's branches read on the way
    linear   columns of signs, products over the past and the future (see `_Matrices`), and a pass for each of q and k

`soft` uses the tensor operations.
"""

from __future__ import annotations

from typing import Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _distinct, _gradients, _kernels
from ._device import Found
from ._kernels import Chunks, Spread
from ._settings import Settings
from ._strength import Strength

__all__ = ["backward", "read_out", "symbols"]

read_out = _kernels.read_out

# Steps of `linear` whose pairs are formed at once, where all channels are one group. Operations on pairs grow with it,
# the memory of states shrinks; by their count both take the same on an H200 at some 24 sqrt(C). None: the nearest power.
CHUNK: Optional[int] = None
ROUTE_CHUNK = 64  # the same where each route is a group: its states are small, its pairs are not
STATE_BYTES = 1 << 29  # of the squares and states of `linear` that are held at once
TOTAL_BYTES = 1 << 24  # of the sums at destinations that are held at once: they stay in the cache until they are read


def symbols(x: Tensor, bits: int) -> Tensor:
    """The symbols of [B, T, C] as the library reads them, int16 [B R, T]."""
    return _kernels.pack(x, bits)


def _portions(like: Tensor, bits: int) -> Iterator[Tuple[Tuple[int, int], Tensor]]:
    """Routes (from, to) with zeros to add up what lands on their steps, whole numbers [B, r, T, M], portion by portion.

    Half the width of the others is enough for gradients in bfloat16, and what is added up is most of what moves.
    """
    batch, steps, channels = like.shape
    routes = channels // bits
    kind = torch.int32 if like.dtype == torch.bfloat16 else torch.int64
    some = max(1, min(routes, TOTAL_BYTES // (kind.itemsize * batch * steps * bits)))
    for first in range(0, routes, some):
        last = min(first + some, routes)
        total = torch.zeros(batch, last - first, steps, bits, dtype=kind, device=like.device)
        yield (first, last), total


def _land(
    x: Tensor, place: Tensor, size: Tensor, factor: Tensor, like: Tensor, out: Tensor, bits: int,
    base: Optional[Tensor] = None, straight: bool = False, token: Optional[Tensor] = None,
) -> None:  # fmt: skip
    """out = s'(like) (base + factor * sum of the rows of x at their places, or at the tokens that stand there); no
    channel's magnitudes add up to over size."""
    for routes, total in _portions(like, bits):
        _kernels.land(x, place, size, total, routes, bits, token)
        _kernels.landed(total, size, factor, like, out, routes, bits, base, straight)


# --------------------------------------------------------------------------------------------------------------- flips


def flips(
    gy: Tensor, q: Tensor, k: Tensor, v: Tensor, level: Tensor, size: Tensor, found: Found, settings: Settings,
    gq: Tensor, gk: Tensor,
) -> None:  # fmt: skip
    """The paper's rule, into gq and gk. ``size`` [C] is the sum of the magnitudes of gy."""
    bits = settings.bits
    number = _kernels.runs(found.query, settings.fold).number
    start = _kernels.runs(found.key, settings.fold).start if settings.key_credit == "match" else None
    # a bit's key receives the true branch and the flipped one, neither above the sum of |theta|
    most = 2 * (size * level.abs()).view(-1, bits).sum(1)
    each, share = most.repeat_interleave(bits), torch.full_like(size, 1 / settings.flip_share)
    for routes, total in _portions(q, bits):
        _kernels.flip_gains(
            gy, level, q, v, found.query, found.table, number, start, most, gq, total, routes, 1 / settings.flip_share,
            bits,
        )  # fmt: skip
        _kernels.landed(total, each, share, k, gk, routes, bits)


# -------------------------------------------------------------------------------------------------------------- linear


class _Matrices:
    """The products of `linear`: one group of them for each batch entry, or for each route.

    The steps of a group are cut into chunks of L. Pairs inside a chunk are formed, what lies before or after it is a
    running sum over chunks: linear attention. A chunk has a square matrix in which its operands lie side by side, so
    that each sum is one product and nothing is added, masked or transposed afterwards:

        [ pairs | theta ]  L    pairs = theta value^T below the diagonal, 0 elsewhere
        [ value'|       ]  c    sums = [pairs | theta] [keys; value' keys of the chunks before]
            L       c           back = [pairs' | value] [queries; theta' queries of the chunks after]

    All chunks go through each step together, as many as there is room for: products of single chunks are too small to
    fill a GPU. Steps are padded with zeros to whole chunks, widths to 16 bytes, which matrix products want.
    """

    def __init__(
        self, gy: Tensor, level: Tensor, v: Tensor, settings: Settings, token: Optional[Tensor] = None
    ) -> None:
        self.gy, self.level, self.v, self.token, self.device = gy, level, v, token, v.device
        self.batch, self.steps, channels = gy.shape
        self.bits = settings.bits
        self.routes = channels // self.bits
        self.whole = settings.credit == "all"
        self.width = channels if self.whole else self.bits
        self.groups = self.batch if self.whole else self.batch * self.routes
        longest = (CHUNK or _kernels._power(int(17 * channels**0.5))) if self.whole else ROUTE_CHUNK
        self.chunk = min(longest, -(-self.steps // 16) * 16)
        self.chunks = -(-self.steps // self.chunk)
        self.padded = self.chunks * self.chunk
        self.deep = _wide(self.width)  # of a state
        self.side = self.chunk + self.deep
        # operands of products have the dtype of the activations where the device accumulates in float32
        known = v.is_cuda and hasattr(torch.ops.aten.bmm, "dtype")
        self.kind = v.dtype if known else torch.float32
        room = self.groups * self.side * self.kind.itemsize * (self.side + _wide(2 * self.width + self.routes))
        some = max(1, STATE_BYTES // room)
        self.parts = [(i, min(i + some, self.chunks)) for i in range(0, self.chunks, some)]
        self._squares: Optional[Tensor] = None

    def columns(self, terms: int, mask: bool) -> Tuple[Tensor, Spread, Chunks]:
        """The right-hand side for this many terms, with a column of candidates per route where ``mask``: the rows of
        each chunk and, below them, room for its state. Nothing is ever read of the columns that pad it."""
        at = terms * self.width
        wide = _wide(at + (0 if not mask else self.routes if self.whole else 1))
        high = self.side if self.chunks > 1 else self.chunk
        made = torch.empty(self.groups, self.chunks, high, wide, dtype=self.kind, device=self.device)
        return made, self.spread(made.stride(0), wide, at), Chunks(self.chunk, (high - self.chunk) * wide)

    def spread(self, group: int, step: int, mask: int, between: int = 1) -> Spread:
        """That of a matrix whose groups, steps and channels are so far apart."""
        if self.whole:
            return Spread(group, self.bits * between, step, self.width, mask, 1)
        return Spread(group * self.routes, group, step, self.width, mask, group)

    def squares(self, part: Tuple[int, int]) -> Tensor:
        """Those of the chunks from part[0] to before part[1]: [groups * chunks, side, side]."""
        if self._squares is not None:
            return self._squares
        count, chunk, side = part[1] - part[0], self.chunk, self.side
        make = torch.empty if self.deep == self.width else torch.zeros
        made = make(self.groups * count, side, side, dtype=self.kind, device=self.device)
        theta, value = made[:, :chunk, chunk:], made[:, chunk:, :chunk]
        steps, group, area = (part[0] * chunk, part[1] * chunk), count * side * side, side * side
        row, column = self.spread(group, side, 0), self.spread(group, 1, 0, side)
        _kernels.operands(self.gy, self.level, theta, steps, row, 1, Chunks(chunk, area - chunk * side), self.bits)
        values = (Chunks(chunk, area - chunk), self.bits, self.token)
        _kernels.operands(self.v, None, value, steps, column, side, *values)
        pairs = made[:, :chunk, :chunk]
        torch.bmm(theta, value, out=pairs)
        _kernels.clear(pairs)
        if len(self.parts) == 1:
            self._squares = made
        return made

    def sums(self, columns: Tensor, reverse: bool = False) -> Tensor:
        """sum over s < t of (theta_t . value_s) x_s or, where ``reverse``, over s > t of (value_t . theta_s) x_s, for
        columns x: float32 [groups, padded, n]."""
        chunk, wide = self.chunk, columns.shape[-1]
        carry = torch.zeros(self.groups, self.deep * wide, device=self.device) if len(self.parts) > 1 else None
        result = torch.empty(self.groups, self.padded, wide, device=self.device) if carry is not None else None
        for part in reversed(self.parts) if reverse else self.parts:
            square = self.squares(part)
            if reverse:
                square = square.transpose(1, 2)
            x = columns[:, part[0] : part[1]].flatten(0, 1)
            if self.chunks > 1:
                fresh = torch.bmm(square[:, chunk:, :chunk], x[:, :chunk])
                _kernels.running(fresh.view(self.groups, -1, self.deep * wide), x[:, chunk:], carry, reverse)
                del fresh
            sums = _gradients.product(square[:, :chunk, : x.shape[1]], x).view(self.groups, -1, wide)
            if result is None:
                return sums
            result[:, part[0] * chunk : part[1] * chunk] = sums
        assert result is not None
        return result


def _wide(columns: int) -> int:
    return -(-columns // 8) * 8


def linear(
    gy: Tensor, q: Tensor, k: Tensor, v: Tensor, level: Tensor, found: Found, settings: Settings,
    gq: Tensor, gk: Tensor, token: Optional[Tensor] = None,
) -> None:  # fmt: skip
    """Uniform weights, into gq and gk; the formulas are those of ``_gradients.linear``."""
    bits, fold, shape = settings.bits, settings.fold, q.shape
    weights = [1.0, settings.suffix] if settings.suffix else [1.0]
    several = len(weights) > 1
    key, query = found.key, found.query
    keys = _kernels.runs(key, fold)
    starts = _kernels.runs(query, fold).start if several else keys.start
    form = _Matrices(gy, level, v, settings, token)

    columns, there, chunks = form.columns(len(weights), True)
    counts: List[Tensor] = []
    for term in range(len(weights)):
        given = (form.padded, there, chunks, term, shape)
        counts.append(_kernels.key_columns(key, keys.start, columns, *given, fold, bits))
    sums = form.sums(columns)
    at_sums = form.spread(sums.stride(0), sums.stride(1), there.mask)
    del columns
    queries, there, chunks = form.columns(len(weights), False)
    for term in range(len(weights)):
        _kernels.query_columns(query, starts, keys.number, queries, form.padded, there, chunks, term, shape, bits)
    back = form.sums(queries, reverse=True)
    at_back = form.spread(back.stride(0), back.stride(1), 0)
    kind = form.kind
    del queries, form

    # with a second term, the sum of both is formed in float32
    found_k = torch.empty(shape, device=k.device) if several else gk
    found_q = [torch.empty(shape, device=q.device) for _ in weights] if several else [gq]
    for term, weight in enumerate(weights):
        parts = _kernels.query_gradient(
            sums, counts[term], key, keys, query, starts, q, found_q[term], at_sums, term, weight, not several, kind,
            fold, bits,
        )  # fmt: skip
        _kernels.deliver_keys(
            back, sums, parts, key, keys, query, starts, k, found_k, at_back, at_sums, term, weight, term > 0, kind,
            fold, bits,
        )  # fmt: skip
    if several:
        gk.copy_(found_k)
        # the second term is of the run before, whose gradient belongs to its first step
        before = torch.where(starts > 0, starts.gather(1, (starts - 1).clamp(min=0).long()), -1)
        size = found_q[1].abs().sum((0, 1))
        _land(found_q[1], before, size, torch.ones_like(size), q, gq, bits, base=found_q[0])


# ---------------------------------------------------------------------------------------------------------- all of them


def backward(
    gy: Tensor, q: Tensor, k: Tensor, v: Tensor, e0: Tensor, e1: Tensor, found: Found, value: Tensor,
    strength: Strength, straight: bool, wanted: Sequence[bool], settings: Settings, token: Optional[Tensor] = None,
) -> Tuple[Optional[Tensor], ...]:  # fmt: skip
    """dL/d(q, k, v, e0, e1, gain, z); ``wanted`` names them, ``value`` are the symbols of v by step. With ``token``
    [B, T], v has the values of distinct tokens, [1, U, C].

    Where both are wanted, those of q and k come side by side as the first, [B, T, 2 C]: one product then takes them on.
    """
    bits = settings.bits
    gq = gk = gv = ge0 = ge1 = ggain = gz = None
    level = e1 - e0
    size = level  # a placeholder until it is summed
    turned = (wanted[0] or wanted[1]) and settings.qk_grad
    if strength.weighs or any(wanted[2:]) or turned == "flips":
        gy, ge0, ge1, size, ggain, gz = _kernels.levels(
            gy, found.read, found.length, value, e0, e1, strength, bits
        )
    if wanted[2]:
        gv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        _land(gy, found.read, size, level, v, gv, bits, straight=straight, token=token)
    if turned:
        both = torch.empty(*q.shape[:2], 2 * q.shape[2], dtype=q.dtype, device=q.device)
        gq, gk = both.split(q.shape[2], 2)
        if turned == "none":
            both.zero_()
        elif turned == "flips":
            flips(gy, q, k, _distinct.by_step(v, token), level, size, found, settings, gq, gk)
        elif turned == "linear":
            linear(gy, q, k, v, level, found, settings, gq, gk, token)
        elif turned == "soft":
            parts = _gradients.soft(q, k, _distinct.by_step(v, token), gy.float() * level, settings)
            for to, x, g in zip((gq, gk), (q, k), parts):
                to.copy_(_gradients.slope_of(x) * g)
        if wanted[0] and wanted[1]:
            gq, gk = both, None
    results = (gq, gk, gv, ge0, ge1, ggain, gz)
    return tuple(given if asked else None for given, asked in zip(results, wanted))
