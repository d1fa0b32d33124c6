"""Retrieval of whole streams at once, on NumPy arrays.

The last axis is time. All axes before it number routes, which are independent of each other and run on several threads.
docs/design.md, in the source folder, defines what is computed ("What is computed").
"""

from __future__ import annotations

from ctypes import byref
from typing import Any, Literal, NamedTuple, Optional, Union, overload

import numpy as np
import numpy.typing as npt

from . import _c
from ._arrays import address, routes_of, same_shape, symbols
from ._interrupt import Progress, run
from .config import DEFAULTS, RosaConfig
from .errors import InvalidArgument

__all__ = ["FlipRuns", "Retrieved", "chain", "options_of", "retrieve"]


class FlipRuns(NamedTuple):
    """Counterfactual tables at run level, all routes one after the other.

    Route ``r`` (rows counted over all axes but the last) has the runs ``first[r]`` to ``first[r + 1] - 1``.
    """

    first: npt.NDArray[np.int64]  #: [routes + 1], where a route's runs begin
    start: npt.NDArray[np.int32]  #: [runs], the first step of each query run
    tau: npt.NDArray[np.int32]  #: [runs], the destination there
    flip: npt.NDArray[np.int32]  #: [runs, bits], the destination if one bit of the run's symbol were flipped


class Retrieved(NamedTuple):
    """What :func:`retrieve` and :meth:`Stream.push` return when ``length`` or ``flips`` is requested."""

    tau: npt.NDArray[np.int32]  #: [..., steps], destinations, -1 where nothing matches
    length: Optional[npt.NDArray[np.int32]] = None  #: [..., steps], runs that match, 0 where nothing does
    flips: Any = None  #: [..., steps, bits], destinations with a bit flipped; or :class:`FlipRuns`


def options_of(
    bits: int, policy: str, fold: bool, max_match: Optional[int], delay: int, threads: int
) -> _c.rosa_options:
    """The options of a retrieval, checked. Symbols may be wider than those of :class:`RosaConfig`."""
    options = _c.options(RosaConfig(policy=policy, fold=fold, max_match=max_match), threads)
    options.bits = _c.integer("bits", bits, 1, _c.MAX_SYMBOL_BITS)
    options.delay = _c.integer("delay", delay, 0, 0xFFFFFFFF)
    return options


@overload
def retrieve(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    bits: int = ...,
    policy: str = ...,
    fold: bool = ...,
    max_match: Optional[int] = ...,
    threads: int = ...,
    *,
    delay: int = ...,
    length: Literal[False] = ...,
    flips: Literal[False] = ...,
    progress: Optional[Progress] = ...,
) -> npt.NDArray[np.int32]: ...


@overload
def retrieve(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    bits: int = ...,
    policy: str = ...,
    fold: bool = ...,
    max_match: Optional[int] = ...,
    threads: int = ...,
    *,
    delay: int = ...,
    length: Literal[True],
    flips: Union[bool, Literal["runs"]] = ...,
    progress: Optional[Progress] = ...,
) -> Retrieved: ...


@overload
def retrieve(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    bits: int = ...,
    policy: str = ...,
    fold: bool = ...,
    max_match: Optional[int] = ...,
    threads: int = ...,
    *,
    delay: int = ...,
    length: bool = ...,
    flips: Literal[True, "runs"],
    progress: Optional[Progress] = ...,
) -> Retrieved: ...


def retrieve(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    bits: int = DEFAULTS.bits,
    policy: str = DEFAULTS.policy,
    fold: bool = DEFAULTS.fold,
    max_match: Optional[int] = DEFAULTS.max_match,
    threads: int = 0,
    *,
    delay: int = 0,
    length: bool = False,
    flips: Union[bool, Literal["runs"]] = False,
    progress: Optional[Progress] = None,
) -> Union[npt.NDArray[np.int32], Retrieved]:
    """The destination of every step: where in the key's past the best match for the query's ending went on.

    ``query`` and ``key`` are whole numbers below ``2**bits``, of one shape, [steps] or [..., steps]. The answer has the
    same shape, -1 where nothing matches. It depends on the two arrays alone: ``threads`` (0: one per processor) does
    not change it. ``bits``, ``policy``, ``fold`` and ``max_match`` are explained in :class:`rosatune.RosaConfig`; those
    of a configuration are ``**config.part("retrieval")``. Token ids may have up to 20 bits; flips need 16 or fewer.

    ``delay``      find nothing younger: at step t the key counts as far as it was at step t - delay
    ``length``     also give the length of the match behind each destination
    ``flips``      also give the destinations if a bit of the query's last symbol were flipped: True for a table per
                   step, ``"runs"`` for one per query run, which is smaller (:class:`FlipRuns`)
    ``progress``   called as ``progress(done, total)`` now and then, in route-steps; an exception it raises stops the
                   work

    With ``length`` or ``flips`` the answer is a :class:`Retrieved`, otherwise the destinations alone.

    >>> query = np.array([2, 2, 2, 3, 3, 0, 0, 0, 1, 1, 1])
    >>> key = np.array([0, 0, 1, 2, 0, 1, 3, 0, 1, 2, 2])
    >>> retrieve(query, key, bits=2)
    array([-1, -1, -1, -1, -1,  2,  5,  5,  6,  6,  9], dtype=int32)
    >>> found = retrieve(query, key, bits=2, length=True, flips=True)
    >>> found.length
    array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3], dtype=int32)
    >>> found.flips[8]
    array([5, 7], dtype=int32)
    """
    options = options_of(bits, policy, fold, max_match, delay, threads)
    q, k = symbols("query", query, options.bits), symbols("key", key, options.bits)
    same_shape("query", q, "key", k)
    if not isinstance(flips, (bool, np.bool_)) and flips != "runs":
        raise InvalidArgument(f'flips is {flips!r}; give True (a table per step), "runs" (per query run) or False')
    routes, steps = routes_of(q.shape), q.shape[-1]
    tau = np.empty(q.shape, np.int32)
    lengths = np.empty(q.shape, np.int32) if length else None
    tables = _Tables() if flips else None

    def work(callback: Any) -> None:
        options.progress = callback
        _c.call(
            *("rosa_retrieve", byref(options), routes, steps, address(q), address(k), address(tau)),
            *(address(lengths), byref(tables.c) if tables else None),
        )

    if q.size:
        run(work, q.size, progress)
    if not length and tables is None:
        return tau
    if tables is None:
        return Retrieved(tau, lengths)
    return Retrieved(tau, lengths, (_runs if flips == "runs" else _expanded)(tables.c, q.shape, options.bits))


def chain(found: Retrieved, undelayed: Retrieved, links: int = 4) -> Retrieved:
    """Further places without a further search, where query and key are the same stream.

    ``found`` comes from :func:`retrieve` with ``length=True`` and any delay, ``undelayed`` from the same streams
    without one. The first link is ``found`` itself. After the place d of a link comes what was found at step d - 1,
    where the symbols before d had occurred before; its match is as long as the shorter of the two. The answer has one
    more axis in front, [links, ..., steps], with -1 and 0 where a chain has ended.

    >>> text = np.frombuffer(b"abcabdabcabe", np.uint8)
    >>> found = retrieve(text, text, bits=8, length=True)
    >>> chain(found, found, links=3).tau[:, -2]
    array([ 5,  2, -1], dtype=int32)
    """
    links = _c.integer("links", links, 1, _c.MAX_LINKS)
    arrays: list[npt.NDArray[np.int32]] = []
    for name, given in (("found", found), ("undelayed", undelayed)):
        if given.length is None:
            raise InvalidArgument(f"{name} has no lengths; call retrieve with length=True")
        for part in (given.tau, given.length):
            array = np.ascontiguousarray(part, dtype=np.int32)
            same_shape(name, array, "found.tau", arrays[0] if arrays else array)
            arrays.append(array)
    shape = arrays[0].shape
    places, lengths = (np.empty((links, *shape), np.int32) for _ in range(2))
    if places.size:
        _c.call(
            *("rosa_chain", routes_of(shape), shape[-1], links),
            *(address(array) for array in (*arrays, places, lengths)),
        )
    return Retrieved(places, lengths)


class _Tables:
    """Owns tables that C allocated. The work holds a reference too, so they are not freed while they are written."""

    def __init__(self) -> None:
        self.c = _c.rosa_flips()
        self._free = _c.lib.rosa_flips_free

    def __del__(self) -> None:
        self._free(byref(self.c))


def _runs(tables: _c.rosa_flips, shape: tuple[int, ...], bits: int) -> FlipRuns:
    """The tables as arrays that own their memory."""
    routes = routes_of(shape)
    if not tables.first:
        none = np.zeros(0, np.int32)
        return FlipRuns(np.zeros(routes + 1, np.int64), none, none, np.zeros((0, bits), np.int32))
    first = np.ctypeslib.as_array(tables.first, (routes + 1,)).astype(np.int64)
    runs = int(first[-1])
    return FlipRuns(
        first,
        np.ctypeslib.as_array(tables.start, (runs,)).copy(),
        np.ctypeslib.as_array(tables.tau, (runs,)).copy(),
        np.ctypeslib.as_array(tables.flip, (runs, bits)).copy(),
    )


def _expanded(tables: _c.rosa_flips, shape: tuple[int, ...], bits: int) -> npt.NDArray[np.int32]:
    """The tables at every step."""
    table = np.empty((*shape, bits), np.int32)
    if table.size:
        for route, rows in enumerate(table.reshape(routes_of(shape), -1)):
            _c.call("rosa_flips_expand", byref(tables), route, shape[-1], address(rows))
    return table
