"""The operator by its parts, on NumPy arrays: what a step finds, what is read there, and the way back.

:func:`rosatune.pack` makes symbols of q, k and v, :func:`find` says where every step reads, :func:`read` gives what it
reads, and :func:`read_backward` the gradients. PyTorch users have all of it in one call, ``rosatune.torch.rosa``; this
is for the others, and for looking at the parts. Each function is one of C, with arrays checked before and made after.

Activations have shape [..., steps, channels], symbols and destinations [..., routes, steps] with routes = channels /
bits. Numbers are float32, or the bits of bfloat16 as uint16, with ``dtype="bfloat16"``.

>>> rng = np.random.default_rng(1)
>>> q, k, v, gy = rng.standard_normal((4, 100, 8), np.float32)
>>> e0, e1 = np.full(8, -1, np.float32), np.full(8, 1, np.float32)
>>> found = find(pack(q, bits=4), pack(k, bits=4), bits=4)
>>> y = read(pack(v, bits=4), found.read, e0, e1, bits=4)
>>> y.shape, y.dtype
((100, 8), dtype('float32'))
>>> gradients = read_backward(q, k, v, e0, e1, found, gy, bits=4)
>>> gradients.q.shape, gradients.e0.shape
((100, 8), (8,))
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from ctypes import byref
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from . import _c
from ._arrays import address, floats, routes_of, same_shape, symbols
from .errors import InvalidArgument
from .symbols import pack

__all__ = ["Found", "Gradients", "Learning", "find", "read", "read_backward"]


@dataclasses.dataclass(frozen=True)
class Learning:
    """How q and k learn. The same goes to :func:`find` and to :func:`read_backward`.

    ``qk_grad``     ``"linear"`` (all past runs weigh alike), ``"soft"`` (they weigh by a softmax over the distance of
                    their symbols, at quadratic cost), ``"flips"`` (the paper's counterfactuals) or ``"none"``
    ``credit``      linear, soft: judge a read over the channels of ``"all"`` routes or of the ``"route"`` alone
    ``key_credit``  flips: a key's gradient goes to the run that was matched, ``"match"``, or to the one that is read,
                    ``"destination"`` (the paper)
    ``slope``       soft: slope of the softmax
    ``suffix``      linear, soft: weight of the symbols one run earlier
    ``explore``     share of route-steps that read at a random past run instead
    ``flip_share``  flips: share of query runs whose counterfactuals are looked up
    ``seed``        of ``explore`` and ``flip_share``
    """

    qk_grad: str = "linear"
    credit: str = "all"
    key_credit: str = "match"
    slope: float = 1.0
    suffix: float = 0.0
    explore: float = 0.0
    flip_share: float = 1.0
    seed: int = 0

    def _c(self) -> _c.rosa_learning:
        return _c.learning(**dataclasses.asdict(self))


class Found(NamedTuple):
    """Destinations as they are kept: in uint16 where the number of steps allows it, else int32; all ones for none."""

    read: npt.NDArray[Any]  #: [..., routes, steps]
    flips: Optional[npt.NDArray[Any]] = None  #: [query runs, bits + 1]: the true one, then with each bit flipped

    @property
    def tau(self) -> npt.NDArray[np.int32]:
        """The destinations as int32, -1 for none."""
        return _signed(self.read)


class Gradients(NamedTuple):
    """dL/dq, dL/dk, dL/dv in the shape and kind of q, and dL/de0, dL/de1 in float32."""

    q: npt.NDArray[Any]
    k: npt.NDArray[Any]
    v: npt.NDArray[Any]
    e0: npt.NDArray[np.float32]
    e1: npt.NDArray[np.float32]


def find(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    bits: int = 16,
    policy: str = "readable",
    fold: bool = True,
    max_match: Optional[int] = None,
    threads: int = 0,
    learning: Optional[Learning] = None,
) -> Found:
    """Where every step of every route reads: symbols of shape [..., steps] to destinations of the same shape.

    Without ``learning`` as in use, otherwise as in training: explored, and with counterfactuals for ``"flips"``.

    >>> found = find([[0, 1, 0, 1, 0]], [[0, 1, 0, 1, 0]], bits=1, learning=Learning("flips"))
    >>> found.tau
    array([[-1, -1,  1,  2,  3]], dtype=int32)
    >>> found.flips.shape
    (5, 2)
    """
    options = _c.options(bits, policy, fold, max_match, threads)
    rule = None if learning is None else learning._c()
    q, k = symbols("query", query), symbols("key", key)
    same_shape("query", q, "key", k)
    routes, steps = routes_of(q.shape), q.shape[-1]
    kept = _kept(steps)
    destinations = np.empty(q.shape, kept)
    flips = None
    if rule is not None and rule.qk_grad == _c.QkGrad.FLIPS:
        runs = _c.lib.rosa_count_runs(routes, steps, address(q), options.fold)
        flips = np.empty((runs, options.bits + 1), kept)
    if q.size:
        _c.call(
            *("rosa_find", byref(options), None if rule is None else byref(rule), routes, steps),
            *(address(q), address(k), address(destinations), address(flips)),
        )
    return Found(destinations, flips)


def read(
    value: npt.ArrayLike,
    read: npt.ArrayLike,
    e0: npt.ArrayLike,
    e1: npt.ArrayLike,
    bits: int = 16,
    dtype: str = "float32",
    threads: int = 0,
) -> npt.NDArray[Any]:
    """What the steps read: e0 or e1, by the bits of the value symbols at the destinations, 0 where nothing was found.

    ``value`` has shape [..., routes, value steps], which may be more steps than ``read``, [..., routes, steps], has.
    ``read`` comes from :func:`find`; destinations of :func:`rosatune.retrieve` or a stream, int32, will do as well. The
    answer has shape [..., steps, channels].

    >>> read([[2, 1, 3]], np.array([[-1, 0, 1]], np.int32), [-1, -1], [1, 1], bits=2)
    array([[ 0.,  0.], [-1.,  1.], [ 1., -1.]], dtype=float32)
    """
    options = _c.options(bits, threads=threads)
    kind = _c.named(_c.Dtype, dtype, "dtype")
    if kind == _c.Dtype.FLOAT16:
        raise InvalidArgument('dtype is "float16"; read gives "float32" or "bfloat16"')
    history = symbols("value", value)
    if history.ndim < 2:
        raise InvalidArgument(f"value has shape {list(history.shape)}; give [..., routes, value steps]")
    given = np.asarray(read)
    if given.shape[:-1] != history.shape[:-1]:
        raise InvalidArgument(
            f"read has shape {list(given.shape)} and value {list(history.shape)}; all but the last must agree"
        )
    if given.dtype not in (np.uint16, np.int32):
        raise TypeError(f"read is of kind {given.dtype}; destinations are uint16, from find, or int32")
    kept = _kept(history.shape[-1])
    if given.dtype != kept:
        given = _signed(given)
        if given.size and given.max() >= history.shape[-1]:
            raise InvalidArgument(f"read has the destination {given.max()}; value has {history.shape[-1]} steps")
    destinations = np.ascontiguousarray(given, dtype=kept)
    *batch, routes, steps = destinations.shape
    channels = routes * options.bits
    zero, one = _per_channel("e0", e0, channels), _per_channel("e1", e1, channels)
    y = np.empty((*batch, steps, channels), np.float32 if kind == _c.Dtype.FLOAT32 else np.uint16)
    if y.size:
        _c.call(
            *("rosa_read", byref(options), kind, math.prod(batch), steps, channels),
            *(address(history), history.shape[-1], address(destinations), address(zero), address(one), address(y)),
        )
    return y


def read_backward(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    e0: npt.ArrayLike,
    e1: npt.ArrayLike,
    found: Found,
    gy: npt.ArrayLike,
    bits: int = 16,
    fold: bool = True,
    threads: int = 0,
    learning: Learning = Learning(),
    dtype: Optional[str] = None,
) -> Gradients:
    """The gradients, given dL/dy in ``gy`` and what :func:`find` gave; ``bits``, ``fold`` and ``learning`` as there.

    ``q``, ``k``, ``v`` and ``gy`` have shape [..., steps, channels] and are of one kind.

    >>> x = np.array([[1, 1], [-1, 1], [1, 1], [-1, 1]], np.float32)
    >>> s = pack(x, bits=2)
    >>> found = find(s, s, bits=2)
    >>> found.tau
    array([[-1, -1,  1,  2]], dtype=int32)
    >>> read_backward(x, x, x, [0, 0], [1, 1], found, np.ones_like(x), bits=2).e1
    array([1., 2.], dtype=float32)
    """
    options = _c.options(bits, fold=fold, threads=threads)
    rule = learning._c()
    rows: dict[str, npt.NDArray[Any]] = {}
    for name, array in (("q", q), ("k", k), ("v", v), ("gy", gy)):
        kind, rows[name] = floats(name, array, dtype)
        if kind == _c.Dtype.FLOAT16:
            raise TypeError(f"{name} is of kind float16; give float32 or bfloat16")
        same_shape(name, rows[name], "q", rows["q"])
        if rows[name].dtype != rows["q"].dtype:
            raise TypeError(f"{name} is of kind {rows[name].dtype} and q {rows['q'].dtype}; they must be of one kind")
    if rows["q"].ndim < 2:
        raise InvalidArgument(f"q has shape {list(rows['q'].shape)}; give [..., steps, channels]")
    *batch, steps, channels = rows["q"].shape
    if channels % options.bits or not channels:
        raise InvalidArgument(f"q has {channels} channels; they must be a multiple of bits, {options.bits}")
    destinations = np.ascontiguousarray(found.read)
    expected = (*batch, channels // options.bits, steps)
    if destinations.shape != expected or destinations.dtype != _kept(steps):
        raise InvalidArgument(
            f"found.read is {destinations.dtype} of shape {list(destinations.shape)}; "
            f"find gives {_kept(steps)} of shape {list(expected)} for this q"
        )
    zero, one = _per_channel("e0", e0, channels), _per_channel("e1", e1, channels)
    flips = None
    if rule.qk_grad == _c.QkGrad.FLIPS:
        flips = _flips_of(found, rows["q"], kind, options)
    grads = Gradients(
        *(np.zeros_like(rows["q"]) for _ in range(3)), *(np.zeros(channels, np.float32) for _ in range(2))
    )
    if rows["q"].size:
        what = _c.rosa_read_pass(
            size=ctypes.sizeof(_c.rosa_read_pass),
            dtype=kind,
            batch=math.prod(batch),
            steps=steps,
            channels=channels,
            read=address(destinations),
            flips=address(flips),
            e0=address(zero),
            e1=address(one),
            **{name: address(array) for name, array in rows.items()},
            **{"g" + name: address(array) for name, array in grads._asdict().items()},
        )
        _c.call("rosa_read_backward", byref(options), byref(rule), byref(what))
    return grads


def _kept(steps: int) -> np.dtype[Any]:
    """The kind in which destinations among so many steps are kept."""
    return np.dtype(np.uint16 if _c.lib.rosa_width(steps) == 2 else np.int32)


def _signed(kept: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Destinations with -1 for all ones."""
    if kept.dtype == np.int32:
        return kept
    return np.where(kept == np.iinfo(np.uint16).max, np.int32(-1), kept.astype(np.int32))


def _per_channel(what: str, array: npt.ArrayLike, channels: int) -> npt.NDArray[np.float32]:
    """Parameters, one a channel."""
    given = np.ascontiguousarray(array, dtype=np.float32)
    if given.shape != (channels,):
        raise InvalidArgument(f"{what} has shape {list(given.shape)}; there are {channels} channels, one number each")
    return given


def _flips_of(found: Found, q: npt.NDArray[Any], kind: _c.Dtype, options: _c.rosa_options) -> npt.NDArray[Any]:
    """The counterfactual table, which C takes on trust, as long as it must be."""
    if found.flips is None:
        raise InvalidArgument('found has no flips; give learning=Learning("flips") to find too')
    flips = np.ascontiguousarray(found.flips)
    query = pack(q, options.bits, kind.name.lower())
    runs = _c.lib.rosa_count_runs(routes_of(query.shape), query.shape[-1], address(query), options.fold)
    if flips.shape != (runs, options.bits + 1) or flips.dtype != found.read.dtype:
        raise InvalidArgument(
            f"found.flips is {flips.dtype} of shape {list(flips.shape)}; find gives {found.read.dtype} of shape "
            f"{[runs, options.bits + 1]} for this q"
        )
    return flips
