"""Retrieval by the GPU that holds the symbols: the C library's way to CUDA devices, called on tensors' addresses.

It finds the same destinations as the host's processors, bit for bit. Symbols and destinations stay on the device; only
routes that its search gives up are searched by the host. Counterfactual tables and explored steps are the host's: what
is asked here is which passes need neither, and whether the device was chosen (:func:`retrieve_on`), by the user or by
the time that both took (:class:`Costs`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

import torch
from torch import Tensor

from .. import _c
from ..errors import DeviceError, InvalidArgument
from . import _host
from ._places import TensorPlaces
from ._settings import Settings

__all__ = ["Costs", "Growing", "costs", "find", "grows", "queue", "retrieve_on", "serves"]

WAYS = ("host", "device")
TRIES = 2  # of each way; the first is slower, as memory and kernels are not there yet

_where = "host"
_lock = threading.RLock()
_opened: Dict[int, int] = {}  # by number of the device: the address of its state, kept until the process ends
_streams: Dict[int, int] = {}  # the same for texts that grow, which any thread may look up that holds the lock


def _forget() -> None:
    """A forked process cannot use its parent's devices, and nobody may be left to release a lock."""
    global _lock
    _lock = threading.RLock()
    _opened.clear()
    _streams.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _device(number: int) -> int:
    """The state of a device."""
    with _lock:
        if number not in _opened:
            made = ctypes.c_void_p()
            _c.call("rosa_cuda_open", number, None, ctypes.byref(made))
            _opened[number] = made.value or 0
        return _opened[number]


class Costs:
    """Which way is faster for work of a kind: each is tried, all tries count as work, and then the faster is kept."""

    def __init__(self) -> None:
        self._begun: Dict[Any, int] = {}  # tries, by kind of work
        self._seconds: Dict[Any, Dict[str, List[float]]] = {}
        self._lock = threading.Lock()

    def way(self, kind: Any) -> Tuple[str, bool]:
        """The way to take now, and whether its time is to be noted."""
        with self._lock:
            known = self._seconds.setdefault(kind, {way: [] for way in WAYS})
            begun = self._begun.get(kind, 0)
            if begun < TRIES * len(WAYS):
                self._begun[kind] = begun + 1
                return WAYS[begun % len(WAYS)], True
            if any(not known[way] for way in WAYS):  # some have not ended yet
                return WAYS[0], False
            return min(WAYS, key=lambda way: min(known[way])), False

    def note(self, kind: Any, way: str, seconds: float) -> None:
        """What a try took."""
        with self._lock:
            if kind in self._seconds:  # else it was begun before the last `retrieve_on`
                self._seconds[kind][way].append(seconds)


costs = Costs()


def retrieve_on(where: str) -> None:
    """Where the symbols of q and k on CUDA devices are looked up from now on: ``"host"`` (the default), ``"device"`` or
    ``"auto"``.

    On the host, processors work while the GPU does something else. On the device nothing is copied, and many routes
    take a tenth of the time, but the GPU does it. Results are equal. Passes that need counterfactual tables
    (``qk_grad="flips"``) or explore use the host in any case. A text that is begun with the device
    (:class:`rosatune.nn.RosaState`) stays there; its state cannot be copied, rewound or given padding, so begin it with
    the host where that is needed, as beam search does. Without librosatune_cuda.so, which is built where nvcc is
    found, a retrieval on the device raises :class:`rosatune.DeviceError`. A step that is recorded as a CUDA graph can
    only look up on the device.

    ``"auto"`` takes the first passes of each shape by turns, times them from the symbols on the device to the
    destinations there, and keeps the faster way. It does not know what else the GPU or the processors could have done
    meanwhile. Texts in pieces are the host's. Without librosatune_cuda.so it warns once and stays with the host.
    """
    global _where, costs
    if where not in (*WAYS, "auto"):
        raise InvalidArgument(f"retrieve_on({where!r}): give 'host', 'device' or 'auto'")
    _where, costs = where, Costs()


def serves(
    settings: Settings, tables: bool, shape: Tuple[int, ...], device: torch.device
) -> Tuple[bool, Optional[Any]]:
    """Whether the device is to retrieve for such a pass of symbols [routes, steps], and the kind of work to note the
    time of, if it is to be noted."""
    if tables or settings.explore or _where == "host":
        return False, None
    if _where == "device":
        return True, None
    if not _can_open(device.index or 0):
        return False, None
    kind = (device, shape, settings)
    way, timed = costs.way(kind)
    return way == "device", kind if timed else None


def _can_open(number: int) -> bool:
    global _where
    try:
        _device(number)
    except DeviceError as error:
        _where = "host"
        warnings.warn(f"retrieve_on('auto') stays with the host: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


def find(query: Tensor, key: Tensor, settings: Settings, threads: int, stream: int) -> Tuple[Tensor, Tensor, Tensor]:
    """Destinations, an empty table and match lengths as ``_host.find`` gives them, for symbols on a device.

    ``stream`` is the address of the current stream. Routes that the device gives up use ``threads`` of the host.
    """

    def search(given: Tuple[Any, ...]) -> None:
        _c.call("rosa_cuda_retrieve_device", *given, stream)

    return _found(search, query, key, settings, threads)


def queue(query: Tensor, key: Tensor, settings: Settings, stream: int) -> Tuple[Tensor, Tensor, Tensor]:
    """The same, queued: nothing waits for the search, so it can be recorded in a CUDA graph.

    The device gives up no route: symbols on which its search takes long take long.
    """

    def search(given: Tuple[Any, ...]) -> None:
        size = ctypes.c_size_t()
        _c.call("rosa_cuda_queue", *given, None, ctypes.byref(size), stream)
        memory = torch.empty(size.value, dtype=torch.uint8, device=query.device)
        _c.call("rosa_cuda_queue", *given, memory.data_ptr(), ctypes.byref(size), stream)

    return _found(search, query, key, settings, 1)


def _found(
    search: Callable[[Tuple[Any, ...]], None], query: Tensor, key: Tensor, settings: Settings, threads: int
) -> Tuple[Tensor, Tensor, Tensor]:
    """What a search finds, as it is kept; it is given the first arguments of the library's functions."""
    routes, steps = query.shape
    query, key = query.contiguous(), key.contiguous()
    kind = _host.kept_dtype(steps)
    tau, length = (torch.empty(routes, steps, dtype=torch.int32, device=query.device) for _ in range(2))
    if query.numel():
        options = _host.library_options(settings, threads)
        device = _device(query.device.index or 0)
        places = (x.data_ptr() for x in (query, key, tau, length))
        search((device, ctypes.byref(options), routes, steps, *places, None))
    table = torch.empty(0, settings.bits + 1, dtype=kind, device=query.device)
    # in two bytes the numbers from 32,768 on wrap, and -1 is all ones, as C keeps them
    return tau.to(kind), table, length.clamp_(max=255).to(torch.uint8)


# ------------------------------------------------------------------------------------------------------ growing texts


def grows(q: Tensor, links: int) -> bool:
    """Whether a text that begins with such a q is to be looked up on the device."""
    return _where == "device" and q.is_cuda and links == 1


class Growing:
    """The look-up of q and k of rows of text that grow, by the device that holds them."""

    def __init__(self, rule: Any, batch: int, device: torch.device) -> None:
        self.rule, self.batch, self.steps = rule, batch, 0
        options = _c.options(rule, torch.get_num_threads())
        options.delay = rule.delay
        made = ctypes.c_void_p()
        number = device.index or 0
        with _lock:
            if number not in _streams:
                opened = ctypes.c_void_p()
                _c.call("rosa_cuda_open", number, None, ctypes.byref(opened))
                _streams[number] = opened.value or 0
            _c.call(
                "rosa_cuda_stream_new", _streams[number], ctypes.byref(options), batch * rule.routes, ctypes.byref(made)
            )
        self._handle = made
        weakref.finalize(self, _free, made, os.getpid())

    @property
    def nbytes(self) -> int:
        info = _c.rosa_stream_info(size=ctypes.sizeof(_c.rosa_stream_info))
        with _lock:
            _c.call("rosa_cuda_stream_describe", self._handle, ctypes.byref(info))
        return int(info.bytes)

    def push(self, query: Tensor, key: Tensor, stream: int) -> TensorPlaces:
        """Append symbols [batch * routes, t]; ``stream`` is the address of the current stream."""
        rows, steps = query.shape
        query, key = query.contiguous(), key.contiguous()
        tau, length = (torch.empty(rows, steps, dtype=torch.int32, device=query.device) for _ in range(2))
        if query.numel():
            given = (query.data_ptr(), key.data_ptr(), steps, tau.data_ptr(), length.data_ptr(), stream)
            with _lock:
                _c.call("rosa_cuda_stream_push_device", self._handle, steps, *given)
        self.steps += steps
        shape = (1, self.batch, self.rule.routes, steps)
        return TensorPlaces(tau.view(shape), length.clamp_(max=255).to(torch.uint8).view(shape))

    def refuse(self, what: str) -> NoReturn:
        raise InvalidArgument(
            f"a text that is looked up on the device {what}; call rosatune.torch.retrieve_on('host') before it begins"
        )

    def __reduce__(self) -> NoReturn:
        self.refuse("cannot be copied or pickled")


def _free(handle: ctypes.c_void_p, process: int) -> None:
    if process == os.getpid():
        with _lock:
            _c.lib.rosa_cuda_stream_free(handle)
