"""The operators as PyTorch sees them: schemas, shapes, derivatives.

``rosatune::find`` is the retrieval, ``rosatune::launch`` begins it early (see ``_device.py``), ``rosatune::rosa`` reads
what it found, and ``rosatune::rosa_backward`` is the backward pass of that. To compilers each is one opaque step, so
they cause no graph break. An operator has no hidden state, so the retrieval also returns what only the backward pass
needs, the counterfactual tables. What was found once may be read by any number of layers.

The number of a table's rows depends on the data. Eager code gets exactly the rows needed; traced code, which must know
shapes in advance, gets the largest possible number (``compact`` false).
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _device, _host
from ._settings import SCHEMA, Settings

__all__ = ["find", "launch", "rosa"]


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
    f"bool compact, {SCHEMA}) -> (Tensor, Tensor, Tensor)",
)
def find(
    q: Tensor,
    k: Tensor,
    seed: Optional[Tensor],
    ticket: Optional[Tensor],
    tables: bool,
    compact: bool,
    *given: Any,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Destinations [B R, T], the counterfactual table, of no rows unless ``tables``, and match lengths [B R, T]."""
    settings = Settings(*given)
    if q.is_cuda:
        with torch.autocast("cuda", enabled=False):
            return _device.collect(_number(ticket, 0), q, k, settings, tables, compact, _number(seed, 0))
    threads = torch.get_num_threads()
    query, key = _host.pack((q.contiguous(), k.contiguous()), settings.bits, threads)
    return _host.find(query, key, settings, tables, compact, _number(seed, 0), threads)


@find.register_fake
def _(
    q: Tensor,
    k: Tensor,
    seed: Optional[Tensor],
    ticket: Optional[Tensor],
    tables: bool,
    compact: bool,
    *given: Any,
) -> Tuple[Tensor, Tensor, Tensor]:
    bits = Settings(*given).bits
    batch, steps, channels = q.shape
    kind = _host.kept_dtype(steps)
    routes = batch * (channels // bits)
    rows: Union[int, torch.SymInt] = 0
    if tables:
        rows = torch.library.get_ctx().new_dynamic_size() if compact else routes * steps
    return (
        q.new_empty((routes, steps), dtype=kind),
        q.new_empty((rows, bits + 1), dtype=kind),
        q.new_empty((routes, steps), dtype=torch.uint8),
    )


# -------------------------------------------------------------------------------------------------------------- forward


@torch.library.custom_op(
    "rosatune::rosa",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor e0, Tensor e1, Tensor read, Tensor table, {SCHEMA}) -> Tensor",
)
def rosa(
    q: Tensor, k: Tensor, v: Tensor, e0: Tensor, e1: Tensor, read: Tensor, table: Tensor, *given: Any
) -> Tensor:
    """y [B, T, C] for the destinations that were found for q and k."""
    settings = Settings(*given)
    if q.is_cuda:
        with torch.autocast("cuda", enabled=False):
            return _device.read_out(read, v, e0, e1, settings)
    v, e0, e1, read = (x.contiguous() for x in (v, e0, e1, read))
    value = _host.pack((v,), settings.bits, torch.get_num_threads())[0]
    return _host.read_out(read, value, e0, e1, v, settings)


@rosa.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, e0: Tensor, e1: Tensor, read: Tensor, table: Tensor, *given: Any) -> Tensor:
    return v.new_empty(v.shape)


# ------------------------------------------------------------------------------------------------------------- backward


@torch.library.custom_op(
    "rosatune::rosa_backward",
    mutates_args=(),
    schema="(Tensor gy, Tensor q, Tensor k, Tensor v, Tensor e0, Tensor e1, Tensor read, Tensor table, "
    f"bool[] wanted, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def rosa_backward(
    gy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e0: Tensor,
    e1: Tensor,
    read: Tensor,
    table: Tensor,
    wanted: Sequence[bool],
    *given: Any,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dL/d(q, k, v, e0, e1); an empty tensor where it is not wanted."""
    settings = Settings(*given)
    found: Sequence[Optional[Tensor]]
    if q.is_cuda:
        with torch.autocast("cuda", enabled=False):
            found = _device.backward(gy, q, k, v, e0, e1, read, table, wanted, settings)
    else:
        gy, q, k, v, e0, e1, read, table = (x.contiguous() for x in (gy, q, k, v, e0, e1, read, table))
        found = _host.backward(gy, q, k, v, e0, e1, read, table, wanted, settings)
    results = [e0.new_empty(0) if x is None else x.contiguous() for x in found]
    return results[0], results[1], results[2], results[3], results[4]


@rosa_backward.register_fake
def _(
    gy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e0: Tensor,
    e1: Tensor,
    read: Tensor,
    table: Tensor,
    wanted: Sequence[bool],
    *given: Any,
) -> Tuple[Tensor, ...]:
    return tuple(
        x.new_empty(x.shape) if asked else e0.new_empty(0) for x, asked in zip((q, k, v, e0, e1), wanted)
    )


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.settings = inputs[7:]
    ctx.inputs = len(inputs)


def _backward(ctx: Any, gy: Tensor) -> Tuple[Optional[Tensor], ...]:
    wanted: List[bool] = list(ctx.needs_input_grad[:5])
    found = rosa_backward(gy, *ctx.saved_tensors, wanted, *ctx.settings)
    results = [x if asked else None for x, asked in zip(found, wanted)]
    return (*results, *[None] * (ctx.inputs - 5))


rosa.register_autograd(_backward, setup_context=_keep)
