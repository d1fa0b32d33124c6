"""Reading value bits at known places, with a weight per place, as PyTorch operators.

Destinations of a shared source (token ids, embeddings) are known before a layer runs; what is left for the layer is

    y_c(t) = sum over links i of  weight_i(t, route of c) * (bit c of v at tau_i(t) ? e1_i,c : e0_i,c)

and its derivatives. Shapes: L links, B rows, T steps, R routes, C channels; a route has C / R neighbouring channels. v
is [B, T, C], places and weights are [L, B, R, T], e0 and e1 [L, C].

Both passes are custom operators: to compilers each is one opaque step, and the backward pass says what it computes
instead of relying on what autograd would make of a comparison. Sums are float32. They are done in a fixed order on
every device, so that the same inputs give the same bits.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

__all__ = ["GAINS", "bits_at", "combine", "gains", "pack_bits", "read"]

GAINS = 10  # columns of a table of gains: match lengths 0 to 8, and 9 or more

PIECE = 1 << 24  # numbers that are formed at once when value bits are fetched byte by byte


# -------------------------------------------------------------------------------------------------------------- helpers


def _by_step(x: Tensor) -> Tensor:
    """[B, R, T] as [B, T, R]."""
    return x.transpose(1, 2)


def _rows(tau: Tensor) -> Tensor:
    """Rows of a matrix [B T R, C / R] that places [B, R, T] of one link name, as [B T R].

    A place of -1 becomes the step itself; its weight is 0. One common row for all of them would have to take as many
    sums, one after the other.
    """
    batch, routes, steps = tau.shape
    time = torch.arange(steps, device=tau.device)
    there = torch.where(tau >= 0, tau.long(), time)
    first = torch.arange(batch, device=tau.device).view(batch, 1, 1) * steps
    rows = (first + there) * routes + torch.arange(routes, device=tau.device).view(1, routes, 1)
    return _by_step(rows).reshape(-1)


def combine(bits: Sequence[Tensor], weight: Tensor, e0: Tensor, e1: Tensor) -> Tensor:
    """y, float32 [B, T, C], for the value bits [B, T, C] at each link's places."""
    links, batch, routes, steps = weight.shape
    channels = e0.shape[-1]
    y = None
    for link in range(links):
        level = torch.where(bits[link], e1[link], e0[link]).view(batch, steps, routes, channels // routes)
        part = level * _by_step(weight[link]).unsqueeze(-1)
        y = part if y is None else y + part
    assert y is not None
    return y.reshape(batch, steps, channels)


def _fetch(v: Tensor, tau: Tensor) -> Tensor:
    """The bits of v [B, T, C] at places [B, R, T], as [B, T, C]."""
    routes = tau.shape[1]
    bits = (v > 0).reshape(-1, v.shape[-1] // routes)
    return bits.index_select(0, _rows(tau)).view(v.shape)


def _add_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """target[rows] += values, in a fixed order."""
    if target.is_cuda:
        target.index_put_((rows,), values, accumulate=True)  # sorts the rows: no atomic sums
    else:
        target.index_add_(0, rows, values)  # one row after the other


# ----------------------------------------------------------------------------------------------------------------- read


@torch.library.custom_op(
    "rosatune::read",
    mutates_args=(),
    schema="(Tensor v, Tensor tau, Tensor weight, Tensor e0, Tensor e1, bool straight) -> Tensor",
)
def _read(v: Tensor, tau: Tensor, weight: Tensor, e0: Tensor, e1: Tensor, straight: bool) -> Tensor:
    if v.numel() == 0:
        return torch.zeros_like(v)
    return combine([_fetch(v, tau[link]) for link in range(len(tau))], weight, e0, e1).to(v.dtype)


@_read.register_fake
def _(v: Tensor, tau: Tensor, weight: Tensor, e0: Tensor, e1: Tensor, straight: bool) -> Tensor:
    return v.new_empty(v.shape)


@torch.library.custom_op(
    "rosatune::read_backward",
    mutates_args=(),
    schema="(Tensor gy, Tensor v, Tensor tau, Tensor weight, Tensor e0, Tensor e1, bool straight, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def _read_backward(
    gy: Tensor, v: Tensor, tau: Tensor, weight: Tensor, e0: Tensor, e1: Tensor, straight: bool, wanted: Sequence[bool]
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """dL/d(v, weight, e0, e1); an empty tensor where it is not wanted."""
    links, batch, routes, steps = tau.shape
    shape = (batch, steps, routes, v.shape[-1] // routes)
    g = gy.float().reshape(shape)
    want_v, want_weight, want_e0, want_e1 = wanted
    gv = torch.zeros(batch * steps * routes, shape[-1], device=v.device) if want_v else None
    gweight: List[Tensor] = []
    ge: Tuple[List[Tensor], List[Tensor]] = ([], [])
    for link in range(links):
        bit = _fetch(v, tau[link]).view(shape)
        low, high = e0[link].view(routes, -1), e1[link].view(routes, -1)
        if want_weight:
            gweight.append(_by_step((g * torch.where(bit, high, low)).sum(-1)))
        weighed = g * _by_step(weight[link]).unsqueeze(-1)
        if want_e0 or want_e1:
            upper = (weighed * bit).sum((0, 1)).reshape(-1)
            ge[1].append(upper)
            ge[0].append(weighed.sum((0, 1)).reshape(-1) - upper if want_e0 else upper)
        if gv is not None:
            _add_rows(gv, _rows(tau[link]), (weighed * (high - low)).reshape(-1, shape[-1]))
    none = e0.new_empty(0)
    found = none
    if gv is not None:
        x = v.float()
        slope = (x.abs() < 1).float() if straight else torch.sigmoid(x) * (1 - torch.sigmoid(x))
        found = (gv.view(v.shape) * slope).to(v.dtype)
    return (
        found,
        torch.stack(gweight) if want_weight else none,
        torch.stack(ge[0]) if want_e0 else none,
        torch.stack(ge[1]) if want_e1 else none,
    )


@_read_backward.register_fake
def _(
    gy: Tensor, v: Tensor, tau: Tensor, weight: Tensor, e0: Tensor, e1: Tensor, straight: bool, wanted: Sequence[bool]
) -> Tuple[Tensor, ...]:
    return tuple(
        x.new_empty(x.shape) if asked else e0.new_empty(0) for x, asked in zip((v, weight, e0, e1), wanted)
    )


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.straight = inputs[5]


def _backward(ctx: Any, gy: Tensor) -> Tuple[Optional[Tensor], ...]:
    needs = ctx.needs_input_grad
    wanted = [needs[0], needs[2], needs[3], needs[4]]
    v, tau, weight, e0, e1 = ctx.saved_tensors
    found = _read_backward(gy.contiguous(), v, tau, weight, e0, e1, ctx.straight, wanted)
    gv, gweight, ge0, ge1 = (x if asked else None for x, asked in zip(found, wanted))
    return gv, None, gweight, ge0, ge1, None


_read.register_autograd(_backward, setup_context=_keep)


def read(v: Tensor, tau: Tensor, weight: Tensor, e0: Tensor, e1: Tensor, v_grad: str = "straight") -> Tensor:
    """y [B, T, C], of the dtype of v, for places ``tau`` and their weights, both [L, B, R, T].

    v_grad: the derivative of a value bit, ``"straight"`` (1 where v lies between -1 and 1) or ``"sigmoid"`` (that of
    the sigmoid).
    """
    return _read(v.contiguous(), tau, weight, e0, e1, v_grad == "straight")


# ---------------------------------------------------------------------------------------------------------------- gains


@torch.library.custom_op("rosatune::gains", mutates_args=(), schema="(Tensor gain, Tensor length) -> Tensor")
def _gains(gain: Tensor, length: Tensor) -> Tensor:
    links, batch, routes, steps = length.shape
    table = gain.view(links, 1, routes, GAINS).expand(-1, batch, -1, -1)
    return table.gather(3, length.clamp(max=GAINS - 1).long())


@_gains.register_fake
def _(gain: Tensor, length: Tensor) -> Tensor:
    return gain.new_empty(length.shape)


@torch.library.custom_op(
    "rosatune::gains_backward", mutates_args=(), schema="(Tensor gweight, Tensor length) -> Tensor"
)
def _gains_backward(gweight: Tensor, length: Tensor) -> Tensor:
    # A table this narrow is summed column by column, in a fixed order.
    column = length.clamp(max=GAINS - 1)
    sums = [torch.where(column == each, gweight, 0).sum((1, 3)) for each in range(GAINS)]
    return torch.stack(sums, -1).reshape(-1, GAINS)


@_gains_backward.register_fake
def _(gweight: Tensor, length: Tensor) -> Tensor:
    return gweight.new_empty(length.shape[0] * length.shape[2], GAINS)


def _keep_length(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _gains_grad(ctx: Any, gweight: Tensor) -> Tuple[Optional[Tensor], None]:
    return _gains_backward(gweight.contiguous(), *ctx.saved_tensors) if ctx.needs_input_grad[0] else None, None


_gains.register_autograd(_gains_grad, setup_context=_keep_length)


def gains(gain: Tensor, length: Tensor) -> Tensor:
    """The entries of a table [L R, 10] that belong to match lengths [L, B, R, T]."""
    return _gains(gain.contiguous(), length)


# ---------------------------------------------------------------------------------------------------------- packed bits


def pack_bits(v: Tensor) -> Tensor:
    """The bits of v [B, T, C] in bytes [B, T, C / 8]: channel c is bit c % 8 of byte c / 8."""
    batch, steps, channels = v.shape
    bits = v > 0
    if channels % 8:
        bits = torch.nn.functional.pad(bits, (0, -channels % 8))
    place = (1 << torch.arange(8, device=v.device)).to(torch.uint8)
    return (bits.view(batch, steps, (channels + 7) // 8, 8).to(torch.uint8) * place).sum(-1, dtype=torch.uint8)


def bits_at(values: Tensor, tau: Tensor, channels: int) -> Tensor:
    """The bits [B, t, C] at places [B, R, t] of packed values [B, S, C / 8]; anything where a place is -1."""
    batch, routes, steps = tau.shape
    there = tau.clamp(min=0).long()
    first = torch.arange(batch, device=values.device).view(batch, 1, 1) * values.shape[1]
    rows = _by_step(first + there)  # [B, t, R]
    shift = torch.arange(8, dtype=torch.uint8, device=values.device)
    if routes == 1:
        taken = values.reshape(-1, values.shape[-1]).index_select(0, rows.reshape(-1))
        bits = (taken.unsqueeze(-1) >> shift) & 1
        return bits.view(batch, steps, 8 * values.shape[-1])[..., :channels].bool()
    channel = torch.arange(channels, device=values.device)
    byte, shift, flat = channel // 8, shift[channel % 8], values.reshape(-1)
    parts = []
    piece = max(1, PIECE // (batch * channels))
    for some in rows.split(piece, 1):
        place = some.repeat_interleave(channels // routes, -1) * values.shape[-1] + byte
        parts.append((flat[place] >> shift) & 1)
    return torch.cat(parts, 1).bool() if parts else torch.zeros(batch, 0, channels, dtype=torch.bool, device=tau.device)
