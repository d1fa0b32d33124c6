"""Reading value bits at known places, with a strength per place, as PyTorch operators.

Destinations of a shared source (token ids, embeddings) are known before a layer runs; what is left for the layer is

    y_c(t) = sum over links i of  weight_i(t, route of c) * (bit c of v at tau_i(t) ? e1_i,c : e0_i,c)
    weight_i(t, r) = scale * gain_i[r][min(length_i(t, r), 9)] * z(t), and 0 where nothing was found

and its derivatives. Shapes: L links, B rows, T steps, R routes, C channels; a route has C / R neighbouring channels. v
is [B, S, C], with S = T where every step has a value of its own; places and lengths are [L, B, R, T], the table of
gains is [L R, 10], the gate z is [B, T], e0 and e1 are [L, C]. Value bits are packed first: channel c of a value is bit
c % 8 of byte c / 8.

Each pass is a custom operator: to compilers it is one opaque step, and the backward pass says what it computes instead
of relying on what autograd would make of a comparison. On a GPU the kernels of ``_read_kernels.py`` do the work; the
tensor operations here are their definition, and do it elsewhere. Sums are float32. They are done in a fixed order on
every device, so that the same inputs give the same bits.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _triton
from ._strength import GAINS, Strength, gradients, strengths

__all__ = ["GAINS", "Strength", "bits_at", "gate", "pack_bits", "read", "read_values", "sort_places"]

PIECE = 1 << 24  # numbers that are formed at once when value bits are fetched byte by byte
READS = 32  # of one place that are summed one after the other


# -------------------------------------------------------------------------------------------------------------- helpers


def _lean(operator: Any, work: Any) -> Any:
    """What an operator runs, where no gradient and no compiler asks for the operator itself: a step of decoding makes
    some hundred calls, and PyTorch's way to an operator takes longer than the work."""
    return operator if torch.is_grad_enabled() or torch.compiler.is_compiling() else work


def _by_step(x: Tensor) -> Tensor:
    """[B, R, T] as [B, T, R]."""
    return x.transpose(1, 2)


def _rows(tau: Tensor, kept: int) -> Tensor:
    """Rows of a matrix [B S R, C / R] that places [B, R, T] of one link name, as [B T R]; ``kept`` is S.

    A place of -1 becomes one of its step; its weight is 0. One common row for all of them would have to take as many
    sums, one after the other.
    """
    batch, routes, steps = tau.shape
    time = torch.arange(steps, device=tau.device) % kept
    there = torch.where(tau >= 0, tau.long(), time)
    first = torch.arange(batch, device=tau.device).view(batch, 1, 1) * kept
    rows = (first + there) * routes + torch.arange(routes, device=tau.device).view(1, routes, 1)
    return _by_step(rows).reshape(-1)


def _add_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """target[rows] += values, in a fixed order."""
    if target.is_cuda:
        target.index_put_((rows,), values, accumulate=True)  # sorts the rows: no atomic sums
    else:
        target.index_add_(0, rows, values)  # one row after the other


def sort_places(tau: Tensor, kept: int) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reads in the order of their places among ``kept`` values, for the gradient of v; once per batch, for all layers.

    Gives for each row and route

        entry [B, R, L T]           the numbers link * T + step of all its reads, sorted by place; those that found
                                    nothing come last
        first [B, R, S + 1]         where those of each place begin among them
        extra [B, R, S + 1]         a place has so many reads that they are cut into pieces of ``READS``: how many
                                    pieces beside the first one of each place stand before its own
        owner [B, R, L T / READS]   the place of each of these further pieces; S: there is none
    """
    links, batch, routes, steps = tau.shape
    place = tau.permute(1, 2, 0, 3).reshape(batch, routes, links * steps)
    place, entry = torch.sort(torch.where(place >= 0, place, kept), dim=-1, stable=True)
    bounds = torch.arange(kept + 1, dtype=place.dtype, device=tau.device).expand(batch, routes, -1).contiguous()
    first = torch.searchsorted(place, bounds, out_int32=True)
    pieces = ((first.diff(dim=-1) - 1).clamp(min=0) // READS).cumsum(-1, dtype=torch.int32)
    numbers = torch.arange(links * steps // READS, dtype=torch.int32, device=tau.device)
    owner = torch.searchsorted(pieces, numbers.expand(batch, routes, -1).contiguous(), right=True, out_int32=True)
    return entry.int(), first, torch.nn.functional.pad(pieces, (1, 0)), owner


# ---------------------------------------------------------------------------------------------------------- packed bits


def _packed(bits: Tensor) -> Tensor:
    """Booleans [B, T, C] in bytes [B, T, C / 8]."""
    batch, steps, channels = bits.shape
    if channels % 8:
        bits = torch.nn.functional.pad(bits, (0, -channels % 8))
    place = (1 << torch.arange(8, device=bits.device)).to(torch.uint8)
    return (bits.view(batch, steps, (channels + 7) // 8, 8).to(torch.uint8) * place).sum(-1, dtype=torch.uint8)


def _pack_now(v: Tensor, slope: bool) -> Tuple[Tensor, Tensor]:
    kernels = _triton.module("_read_kernels", v)
    if kernels is not None:
        return kernels.pack(v.contiguous(), slope)
    values = _packed(v > 0)
    return values, _packed(v.abs() < 1) if slope else values.new_empty(0)


_pack = torch.library.custom_op(
    "rosatune::pack_bits", _pack_now, mutates_args=(), schema="(Tensor v, bool slope) -> (Tensor, Tensor)"
)


@_pack.register_fake
def _(v: Tensor, slope: bool) -> Tuple[Tensor, Tensor]:
    batch, steps, channels = v.shape
    values = v.new_empty((batch, steps, (channels + 7) // 8), dtype=torch.uint8)
    return values, values.new_empty(values.shape if slope else (0,))


def pack_bits(v: Tensor) -> Tensor:
    """The bits of v [B, T, C] in bytes [B, T, C / 8]: channel c is bit c % 8 of byte c / 8."""
    return _lean(_pack, _pack_now)(v.detach(), False)[0]


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


# --------------------------------------------------------------------------------------------- by tensor operations


def _weights(tau: Tensor, length: Tensor, gain: Optional[Tensor], z: Optional[Tensor], scale: float) -> Tensor:
    """[L, B, R, T]"""
    return torch.where(tau >= 0, strengths(length, gain, z, scale), 0)


def _plain_read(
    values: Tensor, tau: Tensor, length: Tensor, gain: Optional[Tensor], z: Optional[Tensor], e0: Tensor, e1: Tensor,
    scale: float, kind: torch.dtype,
) -> Tensor:  # fmt: skip
    links, batch, routes, steps = tau.shape
    channels = e0.shape[1]
    weight = _weights(tau, length, gain, z, scale)
    y = torch.zeros(batch, steps, routes, channels // routes, device=tau.device)
    for link in range(links):
        bits = bits_at(values, tau[link].to(values.device), channels).to(tau.device)
        level = torch.where(bits, e1[link], e0[link]).view(y.shape)
        y += level * _by_step(weight[link]).unsqueeze(-1)
    return y.view(batch, steps, channels).to(kind)


def _plain_read_backward(
    gy: Tensor, v: Optional[Tensor], values: Tensor, slopes: Tensor, tau: Tensor, length: Tensor, order: Any,
    gain: Optional[Tensor], z: Optional[Tensor], e0: Tensor, e1: Tensor, scale: float, wanted: Sequence[bool],
) -> Tuple[Optional[Tensor], ...]:  # fmt: skip
    links, batch, routes, steps = tau.shape
    channels, kept = e0.shape[1], values.shape[1]
    shape = (batch, steps, routes, channels // routes)
    g = gy.float().reshape(shape)
    weight = _weights(tau, length, gain, z, scale)
    gv = torch.zeros(batch * kept * routes, shape[-1], device=gy.device) if wanted[0] else None
    felt: List[Tensor] = []
    ge: Tuple[List[Tensor], List[Tensor]] = ([], [])
    for link in range(links):
        low, high = e0[link].view(routes, -1), e1[link].view(routes, -1)
        weighed = g * _by_step(weight[link]).unsqueeze(-1)
        if any(wanted[1:]):
            bit = bits_at(values, tau[link], channels).view(shape)
            felt.append(_by_step((g * torch.where(bit, high, low)).sum(-1)))
            upper = (weighed * bit).sum((0, 1)).reshape(-1)
            ge[0].append(weighed.sum((0, 1)).reshape(-1) - upper)
            ge[1].append(upper)
        if gv is not None:
            _add_rows(gv, _rows(tau[link], kept), (weighed * (high - low)).reshape(-1, shape[-1]))
    found: List[Optional[Tensor]] = [None] * 4
    if gv is not None:
        if v is None:
            each = torch.arange(kept, device=gy.device).expand(batch, 1, kept)
            slope = bits_at(slopes, each, channels).float()
        else:
            p = torch.sigmoid(v.float())
            slope = p * (1 - p)
        found[0] = (gv.view(batch, kept, channels) * slope).to(gy.dtype)
    if wanted[1] or wanted[2]:
        gweight = torch.where(tau >= 0, torch.stack(felt), 0)
        found[1], found[2] = gradients(gweight, length, gain, z, scale)
    if wanted[3]:
        found[3] = torch.stack([torch.stack(x) for x in ge])
    return tuple(x if asked else None for x, asked in zip(found, wanted))


# ----------------------------------------------------------------------------------------------------------------- read

_READ = (
    "Tensor tau, Tensor length, Tensor? entry, Tensor? first, Tensor? extra, Tensor? owner, Tensor? gain, Tensor? z, "
    "Tensor e0, Tensor e1, Tensor scale"
)


def _read_now(
    v: Tensor, values: Tensor, slopes: Tensor, tau: Tensor, length: Tensor, entry: Optional[Tensor],
    first: Optional[Tensor], extra: Optional[Tensor], owner: Optional[Tensor], gain: Optional[Tensor],
    z: Optional[Tensor], e0: Tensor, e1: Tensor, scale: Tensor,
) -> Tensor:  # fmt: skip
    """y for packed values; v gives its dtype, and has the gradient."""
    if tau.numel() == 0:
        return _like_y(v, tau)
    kernels = _triton.module("_read_kernels", tau)  # values may be in pinned memory of the host
    work: Callable[..., Tensor] = _plain_read if kernels is None else kernels.read
    dense = (None if x is None else x.contiguous() for x in (values, tau, length, gain, z, e0, e1))
    return work(*dense, float(scale), v.dtype)


_read = torch.library.custom_op(
    "rosatune::read",
    _read_now,
    mutates_args=(),
    schema=f"(Tensor v, Tensor values, Tensor slopes, {_READ}) -> Tensor",
)


def _like_y(v: Tensor, tau: Tensor) -> Tensor:
    """Memory for y."""
    return v.new_empty((tau.shape[1], tau.shape[3], v.shape[2]))


@_read.register_fake
def _(v: Tensor, values: Tensor, slopes: Tensor, tau: Tensor, *rest: Any) -> Tensor:
    return _like_y(v, tau)


@torch.library.custom_op(
    "rosatune::read_backward",
    mutates_args=(),
    schema=f"(Tensor gy, Tensor? v, Tensor values, Tensor slopes, {_READ}, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def _read_backward(
    gy: Tensor, v: Optional[Tensor], values: Tensor, slopes: Tensor, tau: Tensor, length: Tensor,
    entry: Optional[Tensor], first: Optional[Tensor], extra: Optional[Tensor], owner: Optional[Tensor],
    gain: Optional[Tensor], z: Optional[Tensor], e0: Tensor, e1: Tensor, scale: Tensor, wanted: Sequence[bool],
) -> Tuple[Tensor, ...]:  # fmt: skip
    """dL/d(v, gain, z, e0 and e1 [2, L, C]); an empty tensor where it is not wanted.

    Those of e0 and e1 come in one: what an operator gives must not share memory, and two tensors would be two sums.
    """
    none = e0.new_empty(0)
    if gy.numel() == 0:
        shapes = (_like_v(gy, values), gain, z, _like_levels(e0))
        return tuple(torch.zeros_like(x) if asked else none.clone() for x, asked in zip(shapes, wanted))  # type: ignore
    kernels = _triton.module("_read_kernels", gy)
    work: Callable[..., Sequence[Optional[Tensor]]] = (
        _plain_read_backward if kernels is None else kernels.read_backward
    )
    order = (entry, first, extra, owner)
    if kernels is not None and wanted[0] and entry is None:
        order = sort_places(tau, values.shape[1])
    before, after = (
        [None if x is None else x.contiguous() for x in some]
        for some in ((gy, v, values, slopes, tau, length), (gain, z, e0, e1))
    )
    found = work(*before, order, *after, float(scale), wanted)
    return tuple(none.clone() if x is None else x for x in found)


def _like_v(gy: Tensor, values: Tensor) -> Tensor:
    """Memory for the gradient of v, which has as many rows as there are packed values."""
    return gy.new_empty((values.shape[0], values.shape[1], gy.shape[2]))


def _like_levels(e0: Tensor) -> Tensor:
    """Memory for the gradients of e0 and e1."""
    return e0.new_empty((2, *e0.shape))


@_read_backward.register_fake
def _(
    gy: Tensor, v: Optional[Tensor], values: Tensor, slopes: Tensor, tau: Tensor, length: Tensor,
    entry: Optional[Tensor], first: Optional[Tensor], extra: Optional[Tensor], owner: Optional[Tensor],
    gain: Optional[Tensor], z: Optional[Tensor], e0: Tensor, e1: Tensor, scale: Tensor, wanted: Sequence[bool],
) -> Tuple[Tensor, ...]:  # fmt: skip
    found = []
    for x, asked in zip((_like_v(gy, values), gain, z, _like_levels(e0)), wanted):
        found.append(e0.new_empty(x.shape, dtype=x.dtype) if asked and x is not None else e0.new_empty(0))
    return tuple(found)


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    v, values, slopes, *rest = inputs
    ctx.save_for_backward(None if slopes.numel() or not v.numel() else v, values, slopes, *rest)


def _backward(ctx: Any, gy: Tensor) -> Tuple[Optional[Tensor], ...]:
    needs = ctx.needs_input_grad
    wanted = [needs[0], needs[9], needs[10], needs[11] or needs[12]]
    found = _read_backward(gy.contiguous(), *ctx.saved_tensors, wanted)
    gv, ggain, gz, levels = (x if asked else None for x, asked in zip(found, wanted))
    ge = [None if levels is None or not asked else levels[i] for i, asked in enumerate(needs[11:13])]
    return (gv, *[None] * 8, ggain, gz, *ge, None)


_read.register_autograd(_backward, setup_context=_keep)


def read(v: Tensor, places: Any, strength: Strength, e0: Tensor, e1: Tensor, v_grad: str = "straight") -> Tensor:
    """y [B, T, C], of the dtype of v [B, S, C], read at ``places`` (a ``TensorPlaces``).

    v_grad: the derivative of a value bit, ``"straight"`` (1 where v lies between -1 and 1) or ``"sigmoid"`` (that of
    the sigmoid).
    """
    values, slopes = _pack(v.detach(), v_grad == "straight")
    return _read(v, values, slopes, *places, *strength[:2], e0, e1, strength.scale)


def read_values(like: Tensor, values: Tensor, places: Any, strength: Strength, e0: Tensor, e1: Tensor) -> Tensor:
    """y [B, t, C] of the dtype of ``like``, read in values [B, S, C / 8] that were packed before; has no gradient."""
    given = (like.detach(), values, values[:0, :0], *places, *strength[:2], e0, e1, strength.scale)
    return _lean(_read, _read_now)(*given)


# ----------------------------------------------------------------------------------------------------------------- gate


def _plain_gate(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return 2 * torch.sigmoid((u.float() * weight.float()).sum(-1) + bias.float())


def _spread(felt: Tensor, u: Tensor, weight: Tensor) -> Tensor:
    """The gradient of u [B, T, C] of that of its product with the gate's weight, [B, T]."""
    return (felt.unsqueeze(-1) * weight.float()).to(u.dtype)


def _plain_gate_backward(gz: Tensor, u: Tensor, z: Tensor, weight: Tensor, whole: bool) -> Tuple[Tensor, Tensor]:
    felt = gz * z * (1 - z / 2)
    sums = torch.cat([(felt.unsqueeze(-1) * u.float()).sum((0, 1)), felt.sum().view(1)])
    return _spread(felt, u, weight) if whole else felt, sums


def _gate_now(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    kernels = _triton.module("_read_kernels", u)
    return (_plain_gate if kernels is None else kernels.gate)(u.contiguous(), weight, bias)


_gate = torch.library.custom_op(
    "rosatune::gate", _gate_now, mutates_args=(), schema="(Tensor u, Tensor weight, Tensor bias) -> Tensor"
)


@_gate.register_fake
def _(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return u.new_empty(u.shape[:2], dtype=torch.float32)


@torch.library.custom_op(
    "rosatune::gate_backward",
    mutates_args=(),
    schema="(Tensor gz, Tensor u, Tensor z, Tensor weight, bool whole) -> (Tensor, Tensor)",
)
def _gate_backward(gz: Tensor, u: Tensor, z: Tensor, weight: Tensor, whole: bool) -> Tuple[Tensor, Tensor]:
    """dL/d(u, weight and bias), those two in one, as those of e0 and e1; without ``whole`` what `_spread` is given
    instead of the first."""
    kernels = _triton.module("_read_kernels", u)
    work = _plain_gate_backward if kernels is None else kernels.gate_backward
    gu, sums = work(gz.contiguous(), u.contiguous(), z, weight, whole)
    return gu, sums.to(weight.dtype)


@_gate_backward.register_fake
def _(gz: Tensor, u: Tensor, z: Tensor, weight: Tensor, whole: bool) -> Tuple[Tensor, Tensor]:
    gu = torch.empty_like(u if whole else z, memory_format=torch.contiguous_format)
    return gu, weight.new_empty(len(weight) + 1)


def _keep_gate(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output, inputs[1])


def _gate_grad(ctx: Any, gz: Tensor) -> Tuple[Optional[Tensor], ...]:
    u, z, weight = ctx.saved_tensors
    traced = type(gz) is not Tensor  # compilers trace with classes of their own
    gu, sums = _gate_backward(gz, u, z, weight, not traced)
    if traced:  # formed where the compiler adds up the gradients of u, instead of being written and read
        gu = _spread(gu, u, weight)
    found = (gu, sums[:-1], sums[-1:])
    return tuple(x if asked else None for x, asked in zip(found, ctx.needs_input_grad))


_gate.register_autograd(_gate_grad, setup_context=_keep_gate)


def gate(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """z = 2 sigmoid(u . weight + bias), float32 [B, T], for u [B, T, C]; nothing of the size of u is kept but u."""
    return _lean(_gate, _gate_now)(u, weight, bias)
