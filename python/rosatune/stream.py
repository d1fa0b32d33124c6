"""Retrieval as the steps come.

A :class:`Stream` is the state of a number of routes. Whatever pieces it is fed in, the answers are those of
:func:`rosatune.retrieve` on the whole.

Four things are added to what C does. A stream is locked during a call, because C leaves locking to its caller. A long
push goes to C in pieces, so that Ctrl-C takes effect between them; an interrupted push is undone. All streams of a
process share their threads. And a fork waits for calls that are under way on other threads, as the child would inherit
a stream that is half changed; it inherits the streams but not the threads, and goes on with these streams on the thread
that calls.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Literal, Optional, Union, overload

import numpy as np
import numpy.typing as npt

from . import _c, _workers
from ._arrays import address, routes_of, same_shape, symbols
from .config import DEFAULTS
from .errors import InvalidArgument
from .retrieval import Retrieved, options_of

__all__ = ["Stream"]

# Route-steps that go to C at once: some tenths of a second.
_PIECE = 1 << 22

# Streams, whose locks a fork takes; the locks it has taken; and a lock for both, which a fork holds from begin to end.
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()
_forking = threading.Lock()
_taken: list[Any] = []


def _before_fork() -> None:
    _forking.acquire()
    for stream in list(_streams):
        stream._lock.acquire()
        _taken.append(stream._lock)


def _after_fork() -> None:
    while _taken:
        _taken.pop().release()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _sharing(options: _c.rosa_options) -> _c.rosa_options:
    if options.threads != 1:
        options.workers = _workers.kept(options.threads)
    return options


class Stream:
    """Retrieval over ``routes`` pairs of streams that grow.

    The options are those of :func:`rosatune.retrieve`. Streams may be used from several threads, one call at a time:
    a second call waits for the first. They can be pickled and copied; ``len()`` is the number of steps taken so far.

    >>> query, key = np.frombuffer(b"-------abra", np.uint8), np.frombuffer(b"abracadabra", np.uint8)
    >>> with Stream(routes=1, bits=8) as stream:
    ...     first = stream.push(query[:9], key[:9])
    ...     last = stream.push(query[9:], key[9:], length=True)
    >>> first
    array([-1, -1, -1, -1, -1, -1, -1,  6,  2], dtype=int32)
    >>> last.tau, last.length
    (array([3, 4], dtype=int32), array([3, 4], dtype=int32))
    """

    def __init__(
        self,
        routes: int,
        bits: int = DEFAULTS.bits,
        policy: str = DEFAULTS.policy,
        fold: bool = DEFAULTS.fold,
        max_match: Optional[int] = DEFAULTS.max_match,
        threads: int = 0,
        *,
        delay: int = 0,
    ) -> None:
        options = _sharing(options_of(bits, policy, fold, max_match, delay, threads))
        routes = _c.integer("routes", routes, 1, (1 << 48) - 1)
        handle = c_void_p()
        _c.call("rosa_stream_new", byref(options), routes, byref(handle))
        self._adopt(handle, options.threads)

    def _adopt(self, handle: c_void_p, threads: int) -> None:
        self._lock = threading.RLock()
        self._handle: Optional[c_void_p] = handle
        self._threads = threads
        self._free = _c.lib.rosa_stream_free
        with _forking:
            _streams.add(self)
        info = self._describe()
        self._steps: int = info.steps
        self._routes: int = info.routes
        self._bits: int = info.bits
        self._policy = _c.Policy(info.policy).name.lower()
        self._fold = bool(info.fold)
        self._max_match: Optional[int] = info.max_match or None
        self._delay: int = info.delay

    @classmethod
    def _made(cls, handle: c_void_p, threads: int) -> Stream:
        stream = cls.__new__(cls)
        stream._adopt(handle, threads)
        return stream

    def _c_stream(self) -> c_void_p:
        """The stream's handle in C. The caller holds the lock."""
        if self._handle is None:
            raise InvalidArgument("the stream is closed; make a new one")
        return self._handle

    # ------------------------------------------------------------------------------------------------------- steps

    @overload
    def push(
        self, query: npt.ArrayLike, key: npt.ArrayLike, *, length: Literal[False] = ..., flips: Literal[False] = ...
    ) -> npt.NDArray[np.int32]: ...

    @overload
    def push(
        self, query: npt.ArrayLike, key: npt.ArrayLike, *, length: Literal[True], flips: bool = ...
    ) -> Retrieved: ...

    @overload
    def push(
        self, query: npt.ArrayLike, key: npt.ArrayLike, *, length: bool = ..., flips: Literal[True]
    ) -> Retrieved: ...

    def push(
        self, query: npt.ArrayLike, key: npt.ArrayLike, *, length: bool = False, flips: bool = False
    ) -> Union[npt.NDArray[np.int32], Retrieved]:
        """Append steps to all routes and give their destinations, counted from the stream's first step.

        ``query`` and ``key`` have shape [routes, steps], or any with as many rows before the last axis; with one route
        [steps] is enough. With ``length`` or ``flips`` the answer is a :class:`Retrieved`. Flips must be requested from
        the first step of a query run on. A push that fails or is interrupted leaves the stream as it was.

        >>> stream = Stream(routes=2, bits=1)
        >>> stream.push([[0, 1, 0, 1], [1, 1, 1, 1]], [[0, 1, 0, 1], [0, 1, 0, 1]])
        array([[-1, -1,  1,  2],
               [-1, -1, -1,  2]], dtype=int32)
        """
        q = symbols("query", query, self._bits)
        k = q if key is query else symbols("key", key, self._bits)
        same_shape("query", q, "key", k)
        if routes_of(q.shape) != self._routes:
            raise InvalidArgument(
                f"query has shape {list(q.shape)}; give [..., steps] with {self._routes} rows before the last axis, "
                f"one per route"
            )
        steps = q.shape[-1]
        tau = np.empty((self._routes, steps), np.int32)
        lengths = np.empty(tau.shape, np.int32) if length else None
        tables = np.empty((*tau.shape, self._bits), np.int32) if flips else None
        with self._lock:
            self._push(q.reshape(tau.shape), k.reshape(tau.shape), tau, lengths, tables)
        if not length and not flips:
            return tau.reshape(q.shape)
        return Retrieved(
            tau.reshape(q.shape),
            None if lengths is None else lengths.reshape(q.shape),
            None if tables is None else tables.reshape(*q.shape, self._bits),
        )

    def _push(
        self,
        query: npt.NDArray[Any],
        key: npt.NDArray[Any],
        tau: npt.NDArray[np.int32],
        lengths: Optional[npt.NDArray[np.int32]],
        tables: Optional[npt.NDArray[np.int32]],
    ) -> None:
        stream, before, steps = self._c_stream(), self._steps, query.shape[1]
        most = max(1, _PIECE // self._routes)
        try:
            for begin in range(0, steps, most):
                end = min(begin + most, steps)
                flips = tables
                if tables is not None and end - begin < steps:
                    # C writes a dense table, so the table of a piece has to be copied to its place.
                    flips = np.empty((len(tables), end - begin, self._bits), np.int32)
                now: list[Any] = [None if a is None else address(a[:, begin:]) for a in (query, key, tau, lengths)]
                _c.call("rosa_stream_push", stream, end - begin, *now[:2], steps, *now[2:], address(flips))
                if flips is not tables and flips is not None and tables is not None:
                    tables[:, begin:end] = flips
        except BaseException:
            _c.call("rosa_stream_rewind", stream, before)
            raise
        self._steps = before + steps

    def rewind(self, steps: int) -> None:
        """Go back to the state after the first ``steps`` steps.

        >>> stream = Stream(routes=1, bits=2)
        >>> _ = stream.push([0, 1, 2, 3], [0, 1, 2, 3])
        >>> stream.rewind(1)
        >>> len(stream)
        1
        """
        steps = _c.integer("steps", steps, 0, _c.MAX_STEPS)
        with self._lock:
            _c.call("rosa_stream_rewind", self._c_stream(), steps)
            self._steps = steps

    def fork(self) -> Stream:
        """A second, independent stream that continues from here.

        >>> stream = Stream(routes=1, bits=2)
        >>> _ = stream.push([0, 1], [0, 1])
        >>> other = stream.fork()
        >>> _ = other.push([2], [2])
        >>> len(stream), len(other)
        (2, 3)
        """
        handle = c_void_p()
        with self._lock:
            _c.call("rosa_stream_fork", self._c_stream(), byref(handle))
        return self._made(handle, self._threads)

    def __copy__(self) -> Stream:
        return self.fork()

    def __deepcopy__(self, _memo: Any) -> Stream:
        return self.fork()

    # ------------------------------------------------------------------------------------------------------ saving

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Write the state to a file. A save that fails leaves an older file as it was."""
        with self._lock:
            _c.call("rosa_stream_save", self._c_stream(), _encoded(path))

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]], threads: int = 0) -> Stream:
        """A stream from a file written by :meth:`save`, here or by another program with the library.

        >>> import os, tempfile
        >>> stream = Stream(routes=1, bits=2)
        >>> _ = stream.push([0, 1, 2], [0, 1, 2])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stream.save(os.path.join(folder, "state"))
        ...     again = Stream.load(os.path.join(folder, "state"))
        >>> len(again), again.bits
        (3, 2)
        """
        options = _sharing(_c.options(DEFAULTS, threads))
        handle = c_void_p()
        _c.call("rosa_stream_load", byref(options), _encoded(path), byref(handle))
        return cls._made(handle, options.threads)

    def to_bytes(self) -> bytes:
        """The state as bytes, the same as :meth:`save` writes."""
        data, size = c_void_p(), c_size_t()
        with self._lock:
            stream = self._c_stream()
            _c.call("rosa_stream_save_memory", stream, byref(data), byref(size))
            try:
                return ctypes.string_at(data.value or 0, size.value)
            finally:
                _c.lib.rosa_stream_free_memory(stream, data)

    @classmethod
    def from_bytes(cls, data: Union[bytes, bytearray, memoryview], threads: int = 0) -> Stream:
        """A stream from what :meth:`to_bytes` gave.

        >>> stream = Stream(routes=1, bits=2)
        >>> _ = stream.push([0, 1, 2], [0, 1, 2])
        >>> len(Stream.from_bytes(stream.to_bytes()))
        3
        """
        options = _sharing(_c.options(DEFAULTS, threads))
        block = np.frombuffer(data, np.uint8)
        handle = c_void_p()
        _c.call("rosa_stream_load_memory", byref(options), address(block), block.size, byref(handle))
        return cls._made(handle, options.threads)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (self.to_bytes(), self._threads)

    # ------------------------------------------------------------------------------------------------- properties

    def _describe(self) -> _c.rosa_stream_info:
        info = _c.rosa_stream_info(size=ctypes.sizeof(_c.rosa_stream_info))
        with self._lock:
            _c.call("rosa_stream_describe", self._c_stream(), byref(info))
        return info

    @property
    def routes(self) -> int:
        """How many pairs of streams there are."""
        return self._routes

    @property
    def bits(self) -> int:
        """Bits per symbol."""
        return self._bits

    @property
    def policy(self) -> str:
        """Which past runs may be found."""
        return self._policy

    @property
    def fold(self) -> bool:
        """Whether equal neighbours form one run."""
        return self._fold

    @property
    def max_match(self) -> Optional[int]:
        """The length up to which matches are compared; None: no limit."""
        return self._max_match

    @property
    def delay(self) -> int:
        """How many steps late the key is seen."""
        return self._delay

    @property
    def threads(self) -> int:
        """Worker threads as requested; 0: one per processor."""
        return self._threads

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self._steps

    def __len__(self) -> int:
        return self.steps

    def __bool__(self) -> bool:
        return True  # an empty stream is still a stream

    @property
    def key_runs(self) -> int:
        """Runs of the key, over all routes."""
        return int(self._describe().key_runs)

    @property
    def query_runs(self) -> int:
        """Runs of the query, over all routes."""
        return int(self._describe().query_runs)

    @property
    def nbytes(self) -> int:
        """Every byte that the state has allocated."""
        return int(self._describe().bytes)

    @property
    def ordered(self) -> int:
        """Routes that have moved to the index for hostile streams."""
        return int(self._describe().ordered)

    @property
    def closed(self) -> bool:
        """Whether the stream has been closed."""
        return self._handle is None

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"steps={self.steps}"
        return (
            f"<rosatune.Stream routes={self._routes} bits={self._bits} policy={self._policy!r} fold={self._fold} "
            f"max_match={self._max_match} delay={self._delay} {state}>"
        )

    # --------------------------------------------------------------------------------------------------- release

    def close(self) -> None:
        """Release the memory now. A closed stream can only be closed again."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._free(handle)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


def _encoded(path: Union[str, os.PathLike[str]]) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise InvalidArgument(f"path is {path!r}; a path has no NUL in it")
    return encoded
