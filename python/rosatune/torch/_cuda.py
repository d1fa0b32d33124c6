"""Retrieval by the GPU that holds the symbols: the C library's way to CUDA devices, called on tensors' addresses.

It finds the same destinations as the host's processors, bit for bit. Symbols and destinations stay on the device; only
routes that its search gives up are searched by the host. Counterfactual tables and explored steps are the host's: what
is asked here is which passes need neither, and whether the device was chosen (:func:`retrieve_on`).
"""

from __future__ import annotations

import ctypes
import os
from typing import Dict, Tuple

import torch
from torch import Tensor

from .. import _c
from ..errors import InvalidArgument
from . import _host
from ._settings import Settings

__all__ = ["find", "retrieve_on", "serves"]

_on_device = False
_opened: Dict[int, int] = {}  # by number of the device: the address of its state, kept until the process ends


def _forget() -> None:
    """A forked process cannot use its parent's devices."""
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _device(number: int) -> int:
    """The state of a device. Called by the one thread that retrieves (``_device.py``)."""
    if number not in _opened:
        made = ctypes.c_void_p()
        _c.call("rosa_cuda_open", number, None, ctypes.byref(made))
        _opened[number] = made.value or 0
    return _opened[number]


def retrieve_on(where: str) -> None:
    """Where the symbols of q and k on CUDA devices are looked up from now on: ``"host"`` (the default) or ``"device"``.

    On the host, processors work while the GPU does something else. On the device nothing is copied, and many routes
    take a tenth of the time, but the GPU does it. Results are equal. Passes that need counterfactual tables
    (``qk_grad="flips"``) or explore use the host in any case. Without librosatune_cuda.so, which is built where nvcc is
    found, a retrieval on the device raises :class:`rosatune.DeviceError`.
    """
    global _on_device
    if where not in ("host", "device"):
        raise InvalidArgument(f"retrieve_on({where!r}): give 'host' or 'device'")
    _on_device = where == "device"


def serves(settings: Settings, tables: bool) -> bool:
    """Whether the device is to retrieve for such a pass."""
    return _on_device and not tables and not settings.explore


def find(query: Tensor, key: Tensor, settings: Settings, threads: int, stream: int) -> Tuple[Tensor, Tensor, Tensor]:
    """Destinations, an empty table and match lengths as ``_host.find`` gives them, for symbols on a device.

    ``stream`` is the address of the current stream. Routes that the device gives up use ``threads`` of the host.
    """
    routes, steps = query.shape
    query, key = query.contiguous(), key.contiguous()
    kind = _host.kept_dtype(steps)
    tau, length = (torch.empty(routes, steps, dtype=torch.int32, device=query.device) for _ in range(2))
    if query.numel():
        options = _host.library_options(settings, threads)
        _c.call(
            "rosa_cuda_retrieve_device",
            _device(query.device.index or 0),
            ctypes.byref(options),
            routes,
            steps,
            query.data_ptr(),
            key.data_ptr(),
            tau.data_ptr(),
            length.data_ptr(),
            None,
            stream,
        )
    table = torch.empty(0, settings.bits + 1, dtype=kind, device=query.device)
    # in two bytes the numbers from 32,768 on wrap, and -1 is all ones, as C keeps them
    return tau.to(kind), table, length.clamp_(max=255).to(torch.uint8)
