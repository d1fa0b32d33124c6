"""Places of shared sources as PyTorch operators: token ids or embeddings in, places and match lengths out.

The look-up itself is done on the host (``finder.py``), once per forward pass for all layers. To compilers it is one
opaque step.

The symbols of embeddings are exact: each embedding is rounded to whole numbers of 16 bits, relative to its largest
entry, and the sums of these with random signs are whole numbers too. So every device, any order of summation, and the C
program find the same bits.
"""

from __future__ import annotations

import functools
from typing import List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from .. import _draw
from ..errors import InvalidArgument
from ..finder import Places, Rule, find
from . import _pinned

__all__ = ["TensorPlaces", "decode", "embedding_symbols", "encode", "find_places", "to_tensors"]

TAU_BITS = 24  # of a place in one number with its length


class TensorPlaces(NamedTuple):
    """Places on a device: [links, batch, routes, steps]."""

    tau: Tensor  # int32, the step that is read; -1: none
    length: Tensor  # uint8, the length of the match; 0 where nothing was found
    entry: Optional[Tensor] = None  # the rest is for gradients, see _read.sort_places
    first: Optional[Tensor] = None
    extra: Optional[Tensor] = None
    owner: Optional[Tensor] = None


def to_tensors(places: Places, device: torch.device) -> TensorPlaces:
    """Places of the host on a device."""
    if device.type != "cuda":
        return TensorPlaces(*(torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in places))
    # both in one copy, from pinned memory, so that nothing waits for it; lengths begin where kernels like it
    shape, size = places.tau.shape, places.tau.nbytes
    begin = -(-size // 16) * 16
    staged = _pinned.empty((begin + places.length.nbytes,), torch.uint8)
    host = staged.numpy()
    host[:size].view(np.int32)[:] = places.tau.reshape(-1)
    host[begin:] = places.length.reshape(-1)
    there = staged.to(device, non_blocking=True)
    return TensorPlaces(there[:size].view(torch.int32).view(shape), there[begin:].view(shape))


def encode(places: Places) -> Tensor:
    """Places and lengths as one tensor, rows first, int32 [batch, links, routes, steps], for one copy to a device."""
    tau, length = (np.moveaxis(x, 0, 1) for x in places)
    if tau.shape[-1] >= 1 << TAU_BITS:
        raise InvalidArgument(f"a row of {tau.shape[-1]} tokens is too long to be looked up ahead; cut it")
    return torch.from_numpy((tau + 1) | (length.astype(np.int32) << TAU_BITS))


def decode(code: Tensor) -> TensorPlaces:
    """What :func:`encode` was given."""
    code = code.transpose(0, 1).contiguous()
    return TensorPlaces((code & ((1 << TAU_BITS) - 1)) - 1, ((code >> TAU_BITS) & 255).to(torch.uint8))


@torch.library.custom_op(
    "rosatune::find_places",
    mutates_args=(),
    schema="(Tensor symbols, Tensor? valid, str[] reads, int routes, int bits, str policy, bool fold, int max_match, "
    "int delay, int links, int seed) -> Tensor[]",
)
def _find(
    symbols: Tensor,
    valid: Optional[Tensor],
    reads: List[str],
    routes: int,
    bits: int,
    policy: str,
    fold: bool,
    max_match: int,
    delay: int,
    links: int,
    seed: int,
) -> List[Tensor]:
    rule = Rule(routes, bits, policy, fold, max_match or None, delay, links, seed)
    there = symbols.cpu().numpy()
    marks = None if valid is None else valid.cpu().numpy()
    found = find(rule, there, there, marks, reads, torch.get_num_threads())
    made = [x for kind in reads for x in to_tensors(found[kind], symbols.device)[:2] if x is not None]
    return [x.clone() for x in made] if symbols.is_cuda else made  # what an operator gives must not share memory


@_find.register_fake
def _(
    symbols: Tensor, valid: Optional[Tensor], reads: List[str], routes: int, bits: int, policy: str, fold: bool,
    max_match: int, delay: int, links: int, seed: int,
) -> List[Tensor]:  # fmt: skip
    shape = (links, *symbols.shape)
    kinds = (torch.int32, torch.uint8)
    return [symbols.new_empty(shape, dtype=kind) for _ in reads for kind in kinds]


def find_places(rule: Rule, symbols: Tensor, valid: Optional[Tensor], reads: Tuple[str, ...]) -> List[TensorPlaces]:
    """The places of symbols [B, R, T], which are query and key, for each kind of read; valid is [B, T]."""
    given = (*rule[:4], rule.max_match or 0, *rule[5:])
    found = _find(symbols, valid, list(reads), *given)
    return [TensorPlaces(*found[2 * i : 2 * i + 2]) for i in range(len(reads))]


# ----------------------------------------------------------------------------------------------------------- embeddings


@functools.lru_cache(maxsize=4)
def _projection(seed: int, channels: int, device: torch.device) -> Tensor:
    """Random signs, float32 [channels, channels]; the row is the channel that comes out."""
    return torch.from_numpy(_draw.signs(seed, channels, channels)).to(device=device, dtype=torch.float32)


@torch.library.custom_op(
    "rosatune::embedding_symbols", mutates_args=(), schema="(Tensor embeds, int seed, int bits) -> Tensor"
)
def _embedding_symbols(embeds: Tensor, seed: int, bits: int) -> Tensor:
    with torch.autocast(embeds.device.type, enabled=False):
        x = embeds.detach().float()
        most = x.abs().amax(-1, keepdim=True)
        k = torch.where(most > 0, torch.round(x / most * 32767), 0.0)
        # Two halves of 8 bits: their products and sums are exact in float32, even where it is computed as TF32.
        high = torch.floor(k / 256)
        low = k - high * 256
        signs = _projection(seed, x.shape[-1], x.device)
        total = (high @ signs.T).double() * 256 + (low @ signs.T).double()
        batch, steps, channels = x.shape
        place = 1 << torch.arange(bits, dtype=torch.int32, device=x.device)
        found = ((total > 0).view(batch, steps, channels // bits, bits) * place).sum(-1, dtype=torch.int32)
        return found.transpose(1, 2).contiguous()


@_embedding_symbols.register_fake
def _(embeds: Tensor, seed: int, bits: int) -> Tensor:
    batch, steps, channels = embeds.shape
    return embeds.new_empty((batch, channels // bits, steps), dtype=torch.int32)


def embedding_symbols(embeds: Tensor, seed: int, bits: int) -> Tensor:
    """The symbols, int32 [B, C / bits, T], of embeddings [B, T, C]: signs of a random projection made from ``seed``."""
    return _embedding_symbols(embeds.detach(), seed, bits)
