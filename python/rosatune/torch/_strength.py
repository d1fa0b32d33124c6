"""What is read is weighted by its strength: a number per link, route and step.

    strength(t, r) = scale * gain[r][min(length(t, r), 9)] * z(t)

The tensor operations here are the definition of what the kernels compute on a GPU, and do it elsewhere.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

__all__ = ["GAINS", "Strength", "backward", "gradients", "straight", "strengths", "weigh"]

GAINS = 10  # columns of a table of gains: match lengths 0 to 8, and 9 or more


class Strength(NamedTuple):
    """What the places of a read are weighted by; a part that is None is 1."""

    gain: Optional[Tensor]  # float32 [L R, 10]
    z: Optional[Tensor]  # float32 [B, T]
    scale: Optional[Tensor]  # a number of the host: a tensor, so that layers of different scales are one function

    @property
    def factor(self) -> float:
        return 1.0 if self.scale is None else float(self.scale)

    @property
    def weighs(self) -> bool:
        return self.gain is not None or self.z is not None or self.factor != 1


def _entries(gain: Tensor, length: Tensor) -> Tensor:
    links, batch, routes, steps = length.shape
    table = gain.view(links, 1, routes, GAINS).expand(-1, batch, -1, -1)
    return table.gather(3, length.clamp(max=GAINS - 1).long())


def _entry_sums(gweight: Tensor, length: Tensor) -> Tensor:
    # A table this narrow is summed entry by entry, in a fixed order.
    entries = torch.arange(GAINS, dtype=length.dtype, device=length.device)
    here = length.clamp(max=GAINS - 1).unsqueeze(-2) == entries.unsqueeze(-1)
    return torch.where(here, gweight.unsqueeze(-2), 0).sum((1, 4)).reshape(-1, GAINS)


def strengths(length: Tensor, gain: Optional[Tensor], z: Optional[Tensor], scale: float) -> Tensor:
    """Those of match lengths [L, B, R, T], of the same shape."""
    weight = torch.full(length.shape, scale, device=length.device)
    if gain is not None:
        weight = _entries(gain, length) * weight
    if z is not None:
        weight = weight * z.unsqueeze(1)
    return weight


def gradients(
    gweight: Tensor, length: Tensor, gain: Optional[Tensor], z: Optional[Tensor], scale: float
) -> Tuple[Optional[Tensor], Tensor]:
    """dL/d(gain, z) for that of the strengths [L, B, R, T], which is 0 where nothing is read."""
    ggain = None
    gweight = gweight * scale
    if gain is not None:
        ggain = _entry_sums(gweight if z is None else gweight * z.unsqueeze(1), length)
        gweight = gweight * _entries(gain, length)
    return ggain, gweight.sum((0, 2))


# ------------------------------------------------------------------------------ around a read-out that knows no strength


def _given(length: Tensor, batch: int, strength: Strength) -> tuple:
    """The arguments of `strengths` for lengths [B R, T] of one link."""
    return length.view(1, batch, -1, length.shape[1]), strength.gain, strength.z, strength.factor


def _by_step(weight: Tensor) -> Tensor:
    """[1, B, R, T] as [B, T, R, 1]."""
    return weight[0].transpose(1, 2).unsqueeze(-1)


def weigh(y: Tensor, length: Tensor, strength: Strength) -> Tensor:
    """y [B, T, C], read without strength, with it."""
    if not strength.weighs or not y.numel():
        return y
    weight = _by_step(strengths(*_given(length, len(y), strength)))
    return (y.view(*weight.shape[:3], -1) * weight).view(y.shape).to(y.dtype)


def straight(v: Tensor) -> Tensor:
    """What turns the slope of a sigmoid at v into 1 where v lies between -1 and 1, and into 0 elsewhere.

    The operator's gradient of v has the factor s'(v), which is 0.19 or more there, so that dividing by it is safe.
    """
    p = torch.sigmoid(v.float())
    return torch.where(v.abs() < 1, 1 / (p * (1 - p)).clamp(min=0.1), 0).to(v.dtype)


def backward(
    gy: Tensor, v: Tensor, length: Tensor, strength: Strength, straightens: bool, wanted: Sequence[bool],
    read: Callable[[], Tensor], work: Callable[[Tensor], Sequence[Optional[Tensor]]],
) -> Sequence[Optional[Tensor]]:  # fmt: skip
    """dL/d(q, k, v, e0, e1, gain, z): ``work`` gives the first five for a gradient of what ``read`` gives, y without
    strength."""
    ggain = gz = None
    if strength.weighs and gy.numel():
        given = _given(length, len(gy), strength)
        weight = _by_step(strengths(*given))
        split = (*weight.shape[:3], -1)
        felt = gy.float().reshape(split)
        if wanted[5] or wanted[6]:
            gweight = (felt * read().view(split)).sum(-1).transpose(1, 2).unsqueeze(0)
            ggain, gz = gradients(gweight, *given)
        gy = (felt * weight).view(gy.shape).to(gy.dtype)
    elif not gy.numel():
        ggain, gz = (None if x is None else torch.zeros_like(x) for x in strength[:2])
    gq, gk, gv, *levels = work(gy)
    if gv is not None and straightens:
        gv = gv * straight(v)
    return gq, gk, gv, *levels, ggain, gz
