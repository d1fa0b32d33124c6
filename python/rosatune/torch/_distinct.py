"""The distinct tokens of a batch, so that a layer makes their values once.

With ``v_from="embeddings"`` a value is a function of its token, and a batch of 16,384 steps has some 4,000 different
ones. So where texts are read at once, layers project and pack those alone, and a place is the number of a token among
them instead of a step. All rows of the batch read in this one list: to a read they are the steps of one row. Where
layers look up q and k themselves, places stay steps: what needs a value takes the row of the token that stands there,
and symbols, which are small, are brought into the order of the steps.

The list is made on the host, with the look-up, and travels with the batch: only its size has to be known there, which
is one of few, so that compiled layers and recorded steps see few shapes. Everything else is found on the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ._places import TensorPlaces

__all__ = ["Distinct", "by_step", "by_token", "find", "locate", "most_parts", "rows_at", "symbols_by_step"]

PARTS = 8  # a list has a multiple of this part of the steps
most_parts = 7  #: of the steps, in such parts: a longer list is not worth it, and values are made by step; 0: always


class Distinct(NamedTuple):
    """The distinct tokens of a batch on a device."""

    step: Tensor  # [U], where each stands first, counted over all rows; 0 for one that stands nowhere
    token: Tensor  # int32 [B, T], which of them a step has


def find(ids: npt.NDArray[Any]) -> Optional[Tensor]:
    """The distinct tokens of ids [B, T] in order, int32 [B, U]; None where values are better made by step.

    The last one is repeated up to one of few sizes. Every row has the whole list, so that a batch may be cut by rows.
    """
    if not ids.size or not most_parts:
        return None
    found = np.unique(ids)
    part = -(-ids.size // PARTS)
    parts = -(-len(found) // part)
    if parts > most_parts:
        return None
    padded = np.pad(found.astype(np.int32), (0, parts * part - len(found)), mode="edge")
    return torch.from_numpy(np.tile(padded, (len(ids), 1)))


def locate(ids: Tensor, tokens: Tensor) -> Distinct:
    """Where the distinct tokens of ids [B, T] stand; ``tokens`` is their list as :func:`find` gives it."""
    table, flat = tokens[0], ids.reshape(-1).to(tokens.dtype)
    token = torch.searchsorted(table, flat).clamp(max=len(table) - 1)
    # not by an exception: the host would have to wait for the answer
    torch._assert_async(
        (table[token] == flat).all(), "rosa_tokens are not those of input_ids: batches were joined after their look-up"
    )
    time = torch.arange(len(flat), device=ids.device)
    step = torch.zeros(len(table), dtype=time.dtype, device=ids.device)
    step = step.scatter_reduce(0, token, time, "amin", include_self=False)
    return Distinct(step, token.view(ids.shape).int())


def rows_at(places: TensorPlaces, token: Tensor) -> TensorPlaces:
    """Places [L, B, R, T], which are steps, as places [L, 1, R, B T], which are numbers of distinct tokens."""
    links, batch, routes, steps = places.tau.shape
    there = token.view(1, batch, 1, steps).expand(links, -1, routes, -1)
    tau = torch.where(places.tau >= 0, there.gather(3, places.tau.clamp(min=0).long()), -1)
    one = (x.transpose(1, 2).reshape(links, 1, routes, batch * steps) for x in (tau, places.length))
    return TensorPlaces(*one)


# ---------------------------------------------------------------------------- where layers look up q and k themselves


def by_step(v: Tensor, token: Optional[Tensor]) -> Tensor:
    """Values [1, U, C] of distinct tokens as those of steps, [B, T, C]; what is given, where ``token`` is None."""
    return v if token is None else v[0].index_select(0, token.reshape(-1)).view(*token.shape, -1)


def symbols_by_step(symbols: Tensor, token: Optional[Tensor]) -> Tensor:
    """The same of their symbols: [R, U] as [B R, T]."""
    if token is None:
        return symbols
    there = token.long().unsqueeze(1).expand(-1, len(symbols), -1)
    return symbols.expand(len(token), -1, -1).gather(2, there).flatten(0, 1)


def by_token(gv: Optional[Tensor], token: Optional[Tensor], kept: int) -> Optional[Tensor]:
    """The gradient of values by step, [B, T, C], as that of the values of ``kept`` tokens, [1, U, C]."""
    if gv is None or token is None:
        return gv
    # an embedding's: it adds in a fixed order, which index_add has not on a GPU
    sums = torch.ops.aten.embedding_dense_backward(gv.float().flatten(0, 1), token.flatten(), kept, -1, False)
    return sums.to(gv.dtype).unsqueeze(0)
