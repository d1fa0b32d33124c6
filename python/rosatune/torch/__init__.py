"""ROSA as a PyTorch operator.

:func:`rosa` is the read-out of a layer: the symbols of q and k are looked up, the value bits found there are read out
between e0 and e1. It is a differentiable function of tensors, on the CPU and on CUDA devices, and one opaque step for
``torch.compile``. :func:`launch` begins the retrieval early, so that attention can run at the same time.

>>> import torch
>>> from rosatune.torch import rosa
>>> q, k, v = torch.randn(3, 2, 100, 64, requires_grad=True).unbind()
>>> e0, e1 = torch.full((64,), -0.1), torch.full((64,), 0.1)
>>> rosa(q, k, v, e0, e1, bits=4).shape
torch.Size([2, 100, 64])
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from ..config import RosaConfig
from ..errors import InvalidArgument
from . import _distinct, _operator
from ._cuda import retrieve_on
from ._device import Found
from ._pointer import PointerHead, pointer
from ._settings import Settings, make, unexploring
from ._strength import Strength

__all__ = ["Pending", "PointerHead", "launch", "pointer", "retrieve_on", "rosa"]

_DTYPES = (torch.float32, torch.bfloat16)


class Pending(NamedTuple):
    """A retrieval that :func:`launch` has begun, to be given to :func:`rosa`."""

    ticket: Optional[Tensor]
    seed: Optional[Tensor]
    settings: Settings
    tables: bool


def _check(name: str, x: Tensor, like: Tensor, bits: int) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; give a tensor")
    if x.dtype not in _DTYPES:
        hint = "; float16 overflows where gradients are summed, bfloat16 does not" if x.dtype == torch.float16 else ""
        raise TypeError(f"{name} is {x.dtype}; give torch.float32 or torch.bfloat16{hint}")
    if x.dtype != like.dtype:
        raise TypeError(f"{name} is {x.dtype} and q {like.dtype}; give both in one dtype")
    if x.device != like.device:
        raise InvalidArgument(f"{name} is on {x.device} and q on {like.device}; bring them together")
    if x.shape != like.shape:
        raise InvalidArgument(f"{name} has shape {list(x.shape)} and q {list(like.shape)}; they must be equal")
    if x.dim() not in (2, 3):
        raise InvalidArgument(f"{name} has shape {list(x.shape)}; give [batch, steps, channels] or [steps, channels]")
    if x.shape[-1] == 0 or x.shape[-1] % bits != 0:
        raise InvalidArgument(
            f"{name} has {x.shape[-1]} channels, which do not divide into routes of {bits} bits; "
            "choose bits that divide them"
        )
    if x.device.type not in ("cpu", "cuda", "meta"):
        raise InvalidArgument(f"{name} is on {x.device}; rosa runs on cpu and cuda")


def _check_level(name: str, x: Tensor, like: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; give a tensor")
    if not x.is_floating_point():
        raise TypeError(f"{name} is {x.dtype}; give floating point, best torch.float32")
    if x.shape != like.shape[-1:]:
        raise InvalidArgument(f"{name} has shape {list(x.shape)}; give one number per channel, [{like.shape[-1]}]")
    if x.device != like.device:
        raise InvalidArgument(f"{name} is on {x.device} and q on {like.device}; bring them together")


def _draw(settings: Settings, tables: bool, seed: Union[int, Tensor, None]) -> Optional[Tensor]:
    """The seed as a tensor, so that tracing keeps the draw; None where nothing is drawn."""
    if not settings.explore and not (tables and settings.flip_share < 1):
        return None
    if seed is None:
        return torch.randint(0, 2**62, (), dtype=torch.int64, device="cpu")
    if isinstance(seed, Tensor):
        return seed
    if not 0 <= seed < 2**63:
        raise InvalidArgument(f"seed is {seed}; give a whole number from 0 to 2**63 - 1")
    return torch.tensor(seed, dtype=torch.int64, device="cpu")


def _needs_tables(q: Tensor, k: Tensor) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)


def _begin(q: Tensor, k: Tensor, settings: Settings, seed: Union[int, Tensor, None]) -> Pending:
    """What this pass needs: exploration while learning, tables where q or k needs a gradient."""
    _check("q", q, q, settings.bits)
    _check("k", k, q, settings.bits)
    if settings.explore and not torch.is_grad_enabled() and seed is None:
        settings = unexploring(settings)
    tables = settings.qk_grad == "flips" and _needs_tables(q, k)
    return Pending(None, _draw(settings, tables, seed), settings, tables)


def _batched(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.unsqueeze(0)


def launch(
    q: Tensor,
    k: Tensor,
    config: Union[RosaConfig, Settings, None] = None,
    *,
    seed: Union[int, Tensor, None] = None,
    **options: Any,
) -> Pending:
    """Begin the retrieval of a later ``rosa(q, k, ..., pending=...)`` with the same q, k and options.

    On CUDA it runs in the background, on the host's processors, while the GPU executes what follows;
    :func:`retrieve_on` chooses the GPU itself. On CPU tensors the retrieval happens in ``rosa``: all processors are busy
    with the model anyway. A launched retrieval need not be used.
    """
    pending = _begin(q, k, make(config, "launch", **options), seed)
    ticket = _operator.launch(
        _batched(q), _batched(k), pending.seed, pending.tables, not torch.compiler.is_compiling(), *pending.settings
    )
    return Pending(ticket, pending.seed, pending.settings, pending.tables)


def rosa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e0: Tensor,
    e1: Tensor,
    config: Optional[RosaConfig] = None,
    *,
    seed: Union[int, Tensor, None] = None,
    pending: Optional[Pending] = None,
    **options: Any,
) -> Tensor:
    """Look up the symbols of q and k and read out the value bits found: y [B, T, C] (or [T, C]), of the dtype of v.

    Channel ``r * bits + j`` is bit j of route r, 1 where it is above 0. Where a route finds a past step d, y has ``e1``
    in the channels whose v is above 0 at d and ``e0`` in the others; where it finds nothing, 0.

    q, k, v: [B, T, C] or [T, C], float32 or bfloat16, of one dtype and device; C is a multiple of ``bits``.
    e0, e1: [C], converted to float32. Autocast changes nothing here: y has the dtype of v.
    config, options: a :class:`rosatune.RosaConfig`, or its options by name: those of retrieval and of gradients.
    seed: of ``explore`` and ``flip_share``. None: drawn from PyTorch's default generator, so that
        ``torch.manual_seed`` and checkpointing reproduce it, and only where gradients are enabled. With a seed given,
        exploration always happens.
    pending: what :func:`launch` returned for the same q, k and options; its seed is used.
    """
    settings = make(config, "rosa", **options)
    if pending is None:
        pending = _begin(q, k, settings, seed)
    else:
        _check("q", q, q, settings.bits)
        _check("k", k, q, settings.bits)
        if unexploring(pending.settings) != unexploring(settings):
            raise InvalidArgument(
                f"pending was launched with {pending.settings}, not {settings}; launch and collect alike"
            )
        if settings.qk_grad == "flips" and not pending.tables and _needs_tables(q, k):
            raise InvalidArgument(
                "pending was launched without gradients; launch where rosa is called, not under no_grad"
            )
    _check("v", v, q, settings.bits)
    _check_level("e0", e0, q)
    _check_level("e1", e1, q)
    y = read(q, k, v, e0, e1, find(q, k, pending), pending.settings)
    return y if q.dim() == 3 else y.squeeze(0)


def find(q: Tensor, k: Tensor, pending: Pending) -> Found:
    """The result of a retrieval that was launched."""
    compact = not torch.compiler.is_compiling()
    given = (pending.seed, pending.ticket, pending.tables, compact, *pending.settings)
    return Found(*_operator.find(_batched(q).detach(), _batched(k).detach(), *given))


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e0: Tensor,
    e1: Tensor,
    found: Found,
    settings: Settings,
    strength: Strength = Strength(None, None, None),
    straight: bool = False,
    token: Optional[Tensor] = None,
) -> Tensor:
    """y [B, T, C] for what was found for q and k. Arguments are checked by :func:`rosa`.

    strength: what a place is weighted by; where nothing was found, y is 0, but the gradient of q and k has it too.
    straight: the derivative of a value bit is 1 where v lies between -1 and 1, not that of the sigmoid.
    token: [B, T], where v has the values of distinct tokens, [1, U, C]: the one that each step has.
    """
    q, k, v = (_batched(x) for x in (q, k, v))
    value = _distinct.symbols_by_step(_operator.symbols(v.detach(), settings.bits), token)
    given = (strength.gain, strength.z, *found, value, token, strength.scale, straight)
    return _operator.rosa(q, k, v, e0.float(), e1.float(), *given, *settings)
