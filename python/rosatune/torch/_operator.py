"""The operators as PyTorch sees them: schemas, shapes, derivatives.

``rosatune::find`` is the retrieval, ``rosatune::launch`` begins it early (see ``_device.py``), ``rosatune::rosa`` reads
what it found, and ``rosatune::rosa_backward`` is the backward pass of that. To compilers each is one opaque step, so
they cause no graph break. An operator has no hidden state, so the retrieval also returns what only the backward pass
needs, the counterfactual tables and, on a GPU, the symbols of q and k. What was found once may be read by any number of
layers.

The number of a table's rows depends on the data. Eager code gets exactly the rows needed; traced code, which must know
shapes in advance, gets the largest possible number (``compact`` false).
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _device, _distinct, _host, _strength
from ._settings import SCHEMA, Settings
from ._strength import Strength

__all__ = ["find", "launch", "rosa", "symbols"]


def _number(x: Optional[Tensor], otherwise: int) -> int:
    return otherwise if x is None else int(x)


# --------------------------------------------------------------------------------------------------------------- launch


@torch.library.custom_op(
    "rosatune::launch",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor? seed, bool tables, bool compact, {SCHEMA}) -> Tensor",
)
def launch(q: Tensor, k: Tensor, seed: Optional[Tensor], tables: bool, compact: bool, *settings: Any) -> Tensor:
    """The ticket of a retrieval that has begun; 0 on the host, where the same processors do everything, so that
    beginning early gains nothing."""
    ticket = 0
    if q.is_cuda:
        with torch.autocast("cuda", enabled=False):
            ticket = _device.launch(q, k, Settings(*settings), tables, compact, _number(seed, 0))
    return torch.tensor(ticket, device="cpu")


@launch.register_fake
def _(q: Tensor, k: Tensor, seed: Optional[Tensor], tables: bool, compact: bool, *settings: Any) -> Tensor:
    return torch.empty((), dtype=torch.int64, device="cpu")


# ----------------------------------------------------------------------------------------------------------------- find


@torch.library.custom_op(
    "rosatune::find",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor? seed, Tensor? ticket, bool tables, "
    f"bool compact, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def find(
    q: Tensor,
    k: Tensor,
    seed: Optional[Tensor],
    ticket: Optional[Tensor],
    tables: bool,
    compact: bool,
    *given: Any,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Destinations [B R, T], the counterfactual table, of no rows unless ``tables``, match lengths [B R, T], and the
    symbols of q and k on a GPU, where the gradients are made of them."""
    settings = Settings(*given)
    if q.is_cuda:
        with torch.autocast("cuda", enabled=False):
            there = _device.collect(_number(ticket, 0), q, k, settings, tables, compact, _number(seed, 0))
            return there.read, there.table, there.length, there.query, there.key
    threads = torch.get_num_threads()
    query, key = _host.pack((q.contiguous(), k.contiguous()), settings.bits, threads)
    read, table, length = _host.find(query, key, settings, tables, compact, _number(seed, 0), threads)
    return read, table, length, query[:0].clone(), key[:0].clone()


@find.register_fake
def _(
    q: Tensor,
    k: Tensor,
    seed: Optional[Tensor],
    ticket: Optional[Tensor],
    tables: bool,
    compact: bool,
    *given: Any,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    bits = Settings(*given).bits
    batch, steps, channels = q.shape
    kind = _host.kept_dtype(steps)
    routes = batch * (channels // bits)
    rows: Union[int, torch.SymInt] = 0
    if tables:
        rows = torch.library.get_ctx().new_dynamic_size() if compact else routes * steps
    kept = routes if q.is_cuda else 0
    return (
        q.new_empty((routes, steps), dtype=kind),
        q.new_empty((rows, bits + 1), dtype=kind),
        q.new_empty((routes, steps), dtype=torch.uint8),
        q.new_empty((kept, steps), dtype=torch.int16),
        q.new_empty((kept, steps), dtype=torch.int16),
    )


# -------------------------------------------------------------------------------------------------------------- forward


@torch.library.custom_op("rosatune::symbols", mutates_args=(), schema="(Tensor x, int bits) -> Tensor")
def symbols(x: Tensor, bits: int) -> Tensor:
    """The symbols [B R, T] of [B, T, C]."""
    if x.is_cuda:
        return _device.host_layout(x, bits)
    return _host.pack((x.contiguous(),), bits, torch.get_num_threads())[0]


@symbols.register_fake
def _(x: Tensor, bits: int) -> Tensor:
    batch, steps, channels = x.shape
    return x.new_empty((batch * (channels // bits), steps), dtype=torch.int16)


# The first seven are what has a gradient; `value` are the symbols of v, by step. With `token`, v has the values of
# distinct tokens, [1, U, C], and `token` [B, T] is the one that a step has.
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor e0, Tensor e1, Tensor? gain, Tensor? z, "
    "Tensor read, Tensor table, Tensor length, Tensor query, Tensor key, Tensor value, Tensor? token, Tensor? scale"
)


@torch.library.custom_op(
    "rosatune::rosa", mutates_args=(), schema=f"({_INPUTS}, bool straight, {SCHEMA}) -> Tensor"
)
def rosa(
    q: Tensor, k: Tensor, v: Tensor, e0: Tensor, e1: Tensor, gain: Optional[Tensor], z: Optional[Tensor],
    read: Tensor, table: Tensor, length: Tensor, query: Tensor, key: Tensor, value: Tensor, token: Optional[Tensor],
    scale: Optional[Tensor], straight: bool, *given: Any,
) -> Tensor:  # fmt: skip
    """y [B, T, C] for the destinations that were found for q and k."""
    settings, strength = Settings(*given), Strength(gain, z, scale)
    if q.is_cuda:
        with torch.autocast("cuda", enabled=False):
            return _device.read_out(read, length, value, q, v, e0, e1, strength, settings, token)
    value, e0, e1, read = (x.contiguous() for x in (value, e0, e1, read))
    return _strength.weigh(_host.read_out(read, value, e0, e1, q, settings), length, strength)


@rosa.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> Tensor:
    return q.new_empty(q.shape)


# ------------------------------------------------------------------------------------------------------------- backward


@torch.library.custom_op(
    "rosatune::rosa_backward",
    mutates_args=(),
    schema=f"(Tensor gy, {_INPUTS}, bool[] wanted, bool straight, {SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def rosa_backward(
    gy: Tensor, q: Tensor, k: Tensor, v: Tensor, e0: Tensor, e1: Tensor, gain: Optional[Tensor], z: Optional[Tensor],
    read: Tensor, table: Tensor, length: Tensor, query: Tensor, key: Tensor, value: Tensor, token: Optional[Tensor],
    scale: Optional[Tensor], wanted: Sequence[bool], straight: bool, *given: Any,
) -> Tuple[Tensor, ...]:  # fmt: skip
    """dL/d(q, k, v, e0, e1, gain, z); an empty tensor where it is not wanted. See :func:`_side_by_side`."""
    settings, strength = Settings(*given), Strength(gain, z, scale)
    if q.is_cuda:
        found = _device.Found(read, table, length, query, key)
        with torch.autocast("cuda", enabled=False):
            options = (strength, straight, wanted, settings, token)
            results = _device.backward(gy, q, k, v, e0, e1, found, value, *options)
    else:
        kept, v = v.shape[1], _distinct.by_step(v, token)
        gy, q, k, v, e0, e1, read, table = (x.contiguous() for x in (gy, q, k, v, e0, e1, read, table))
        gq, gk, gv, *rest = _strength.backward(
            gy, v, length, strength, straight, wanted,
            lambda: _host.read_out(read, symbols(v, settings.bits), e0, e1, v, settings),
            lambda gy: _host.backward(gy, q, k, v, e0, e1, read, table, wanted[:5], settings),
        )  # fmt: skip
        results = (gq, gk, _distinct.by_token(gv, token, kept), *rest)
    none = e0.new_empty(0)
    return tuple(x.contiguous() if asked and x is not None else none.clone() for x, asked in zip(results, wanted))


@rosa_backward.register_fake
def _(gy: Tensor, *given: Any) -> Tuple[Tensor, ...]:
    inputs, wanted = given[:7], given[15]
    e0 = inputs[3]
    found = [x.new_empty(x.shape) if asked else e0.new_empty(0) for x, asked in zip(inputs, wanted)]
    if _side_by_side(gy, wanted):
        batch, steps, channels = gy.shape
        found[:2] = inputs[0].new_empty((batch, steps, 2 * channels)), e0.new_empty(0)
    return tuple(found)


def _side_by_side(gy: Tensor, wanted: Sequence[bool]) -> bool:
    """Whether the gradients of q and k come as one, [B, T, 2 C]: where one product has made q and k of their input, one
    product takes the gradients back, without a copy that puts them together."""
    return gy.is_cuda and wanted[0] and wanted[1]


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    kept = list(inputs[:15])
    if not inputs[0].is_cuda:
        kept[12] = kept[12][:0]  # the host packs v anew, rather than keep its symbols
    ctx.save_for_backward(*kept)
    ctx.settings = inputs[15:]


def _backward(ctx: Any, gy: Tensor) -> Tuple[Optional[Tensor], ...]:
    wanted: List[bool] = list(ctx.needs_input_grad[:7])
    found = rosa_backward(gy, *ctx.saved_tensors, wanted, *ctx.settings)
    if _side_by_side(gy, wanted):
        found = (*found[0].split_with_sizes([gy.shape[2]] * 2, 2), *found[2:])
    results = [x if asked else None for x, asked in zip(found, wanted)]
    return (*results, *[None] * (8 + len(ctx.settings)))


rosa.register_autograd(_backward, setup_context=_keep)
