"""The operator in parts, on NumPy arrays: what a step finds, what it reads there, and the gradients.

:func:`rosatune.pack` makes symbols of q, k and v, :func:`find` says where every step reads, :func:`read` gives what it
reads, and :func:`read_backward` the gradients. PyTorch users have all of it in one call, ``rosatune.torch.rosa``. Each
function here is one of the C library, with arrays checked before and made after the call.

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
import math
from ctypes import byref
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from . import _c
from ._arrays import address, floats, routes_of, same_shape, symbols
from ._interrupt import run
from .config import DEFAULTS, OPERATOR, RosaConfig, chosen
from .errors import InvalidArgument
from .symbols import pack

__all__ = ["Found", "Gradients", "find", "read", "read_backward"]


class Found(NamedTuple):
    """Destinations as C keeps them: uint16 where the number of steps allows it, else int32; all bits set for none."""

    read: npt.NDArray[Any]  #: [..., routes, steps]
    flips: Optional[npt.NDArray[Any]] = None  #: [query runs, bits + 1]: as found, then with each bit flipped
    length: Optional[npt.NDArray[np.uint8]] = None  #: [..., routes, steps], match lengths cut at 255, where asked for

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
    config: Optional[RosaConfig] = None,
    *,
    training: bool = False,
    seed: int = 0,
    threads: int = 0,
    bits: Optional[int] = None,
    delay: int = 0,
    length: bool = False,
    **options: Any,
) -> Found:
    """Where every step of every route reads: symbols of shape [..., steps] to destinations of the same shape.

    ``config`` or ``options``: see :class:`rosatune.RosaConfig`. With ``training`` some steps read elsewhere
    (``explore``), and ``qk_grad="flips"`` also gives the counterfactuals; ``seed`` is of ``explore`` and
    ``flip_share``. ``bits`` may be up to 20 here, of ids that are only looked up; with a ``delay`` nothing younger is
    found, whatever the configuration says of its sources. With ``length`` the match lengths are given too, cut at 255;
    they are 0 where nothing was found, and at explored steps. Ctrl-C stops it.

    >>> found = find([[0, 1, 0, 1, 0]], [[0, 1, 0, 1, 0]], bits=1, qk_grad="flips", training=True)
    >>> found.tau
    array([[-1, -1,  1,  2,  3]], dtype=int32)
    >>> found.flips.shape
    (5, 2)
    """
    config = chosen("find", config, options, OPERATOR, ("training", "seed", "threads", "delay", "length"))
    given = _c.options(config, threads)
    given.bits = config.bits if bits is None else _c.integer("bits", bits, 1, _c.MAX_SYMBOL_BITS)
    given.delay = _c.integer("delay", delay, 0, 0xFFFFFFFF)
    rule = _c.learning(config, seed) if training else None
    q, k = symbols("query", query, given.bits), symbols("key", key, given.bits)
    same_shape("query", q, "key", k)
    routes, steps = routes_of(q.shape), q.shape[-1]
    kept = _kept(steps)
    destinations = np.empty(q.shape, kept)
    lengths = np.empty(q.shape, np.uint8) if length else None
    flips = None
    if rule is not None and rule.qk_grad == _c.QkGrad.FLIPS:
        runs = _c.lib.rosa_count_runs(routes, steps, address(q), given.bits, config.fold)
        flips = np.empty((runs, given.bits + 1), kept)

    def work(callback: Any) -> None:
        given.progress = callback
        _c.call(
            *("rosa_find", byref(given), None if rule is None else byref(rule), routes, steps),
            *(address(q), address(k), address(destinations), address(lengths), address(flips)),
        )

    if q.size:
        run(work, q.size)
    return Found(destinations, flips, lengths)


def read(
    value: npt.ArrayLike,
    read: npt.ArrayLike,
    e0: npt.ArrayLike,
    e1: npt.ArrayLike,
    bits: int = DEFAULTS.bits,
    dtype: str = "float32",
    threads: int = 0,
) -> npt.NDArray[Any]:
    """What the steps read: e0 or e1, by the bits of the value symbols at the destinations, 0 where nothing was found.

    ``value`` has shape [..., routes, value steps], which may be more steps than ``read``, [..., routes, steps], has.
    ``read`` comes from :func:`find`, or from :func:`rosatune.retrieve` or a stream (int32, -1 for none). The answer has
    shape [..., steps, channels].

    >>> read([[2, 1, 3]], np.array([[-1, 0, 1]], np.int32), [-1, -1], [1, 1], bits=2)
    array([[ 0.,  0.], [-1.,  1.], [ 1., -1.]], dtype=float32)
    """
    options = _c.options(RosaConfig(bits=bits), threads)
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
        # checked before the conversion, which would wrap what does not fit; C checks what is of its own kind
        given = _signed(given)
        for wrong in given[(given < -1) | (given >= history.shape[-1])].flat:
            raise InvalidArgument(
                f"read has the destination {wrong}; value has {history.shape[-1]} steps: give 0 to "
                f"{history.shape[-1] - 1}, or -1 where nothing was found"
            )
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
    config: Optional[RosaConfig] = None,
    *,
    threads: int = 0,
    dtype: Optional[str] = None,
    **options: Any,
) -> Gradients:
    """The gradients, given dL/dy in ``gy`` and the result of :func:`find`; ``config`` and ``options`` as there.

    ``q``, ``k``, ``v`` and ``gy`` have shape [..., steps, channels] and are of one type. Ctrl-C stops it.

    >>> x = np.array([[1, 1], [-1, 1], [1, 1], [-1, 1]], np.float32)
    >>> s = pack(x, bits=2)
    >>> found = find(s, s, bits=2)
    >>> found.tau
    array([[-1, -1,  1,  2]], dtype=int32)
    >>> read_backward(x, x, x, [0, 0], [1, 1], found, np.ones_like(x), bits=2).e1
    array([1., 2.], dtype=float32)
    """
    config = chosen("read_backward", config, options, OPERATOR, ("threads", "dtype"))
    given = _c.options(config, threads)
    rule = _c.learning(config)
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
    if channels % config.bits or not channels:
        raise InvalidArgument(f"q has {channels} channels; they must be a multiple of bits, {config.bits}")
    destinations = np.ascontiguousarray(found.read)
    expected = (*batch, channels // config.bits, steps)
    if destinations.shape != expected or destinations.dtype != _kept(steps):
        raise InvalidArgument(
            f"found.read is {destinations.dtype} of shape {list(destinations.shape)}; "
            f"find gives {_kept(steps)} of shape {list(expected)} for this q"
        )
    zero, one = _per_channel("e0", e0, channels), _per_channel("e1", e1, channels)
    flips = None
    if rule.qk_grad == _c.QkGrad.FLIPS:
        flips = _flips_of(found, rows["q"], kind, config)
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

        def work(callback: Any) -> None:
            given.progress = callback
            _c.call("rosa_read_backward", byref(given), byref(rule), byref(what))

        run(work, rows["q"].size * (steps if config.qk_grad == "soft" else 1))
    return grads


def _kept(steps: int) -> np.dtype[Any]:
    """The type in which C keeps destinations among this many steps."""
    return np.dtype(np.uint16 if _c.lib.rosa_width(steps) == 2 else np.int32)


def _signed(kept: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Destinations as int32, with -1 for none."""
    if kept.dtype == np.int32:
        return kept
    return np.where(kept == np.iinfo(np.uint16).max, np.int32(-1), kept.astype(np.int32))


def _per_channel(what: str, array: npt.ArrayLike, channels: int) -> npt.NDArray[np.float32]:
    """Parameters, one per channel."""
    given = np.ascontiguousarray(array, dtype=np.float32)
    if given.shape != (channels,):
        raise InvalidArgument(f"{what} has shape {list(given.shape)}; there are {channels} channels, one number each")
    return given


def _flips_of(found: Found, q: npt.NDArray[Any], kind: _c.Dtype, config: RosaConfig) -> npt.NDArray[Any]:
    """The counterfactual table. C does not know how long it is, so its length is checked here."""
    if found.flips is None:
        raise InvalidArgument('found has no flips; call find with qk_grad="flips" and training=True')
    flips = np.ascontiguousarray(found.flips)
    query = pack(q, config.bits, kind.name.lower())
    runs = _c.lib.rosa_count_runs(routes_of(query.shape), query.shape[-1], address(query), config.bits, config.fold)
    if flips.shape != (runs, config.bits + 1) or flips.dtype != found.read.dtype:
        raise InvalidArgument(
            f"found.flips is {flips.dtype} of shape {list(flips.shape)}; find gives {found.read.dtype} of shape "
            f"{[runs, config.bits + 1]} for this q"
        )
    return flips
