"""Numbers to symbols and back.

A symbol is what retrieval compares: ``bits`` neighbouring channels of a row, one bit each, set where the channel is
greater than 0. Time is the last axis of symbols and the last but one of numbers. That is how a neural network leaves
its activations and how retrieval reads its streams, so packing also transposes.
"""

from __future__ import annotations

import math
from typing import Optional

import numpy as np
import numpy.typing as npt

from . import _c
from ._arrays import floats
from ._arrays import symbols as as_symbols
from .config import DEFAULTS, RosaConfig
from .errors import InvalidArgument

__all__ = ["pack", "pack_isa", "unpack"]


def pack(x: npt.ArrayLike, bits: int = DEFAULTS.bits, dtype: Optional[str] = None) -> npt.NDArray[np.uint16]:
    """Pack numbers of shape [..., steps, channels] into symbols of shape [..., channels / bits, steps].

    Bit ``j`` of route ``r`` is 1 where channel ``r * bits + j`` is greater than 0; 0, -0 and NaN give 0. Numbers are
    float32 or float16; for bfloat16 give its bits as uint16, with ``dtype="bfloat16"``.

    >>> x = np.array([[0.5, -1.0, 2.0, 3.0], [-0.5, 1.0, 0.0, 3.0]], np.float32)
    >>> pack(x, bits=2)
    array([[1, 2],
           [3, 2]], dtype=uint16)
    """
    kind, rows = floats("x", x, dtype)
    bits = RosaConfig(bits=bits).bits
    if rows.ndim < 2:
        raise InvalidArgument(f"x has shape {list(rows.shape)}; give [steps, channels] or [..., steps, channels]")
    *batch, steps, channels = rows.shape
    if channels % bits or not channels:
        raise InvalidArgument(f"x has {channels} channels; they must be a multiple of bits, {bits}")
    out = np.empty((*batch, channels // bits, steps), np.uint16)
    if out.size:
        flat = rows.reshape(-1, steps, channels)
        for row, packed in zip(flat, out.reshape(len(flat), -1)):
            _c.call("rosa_pack", kind, row.ctypes.data, 0, steps, channels, bits, packed.ctypes.data, 0)
    return out


def unpack(symbols: npt.ArrayLike, bits: int = DEFAULTS.bits) -> npt.NDArray[np.uint8]:
    """The bits, 0 or 1, of symbols of shape [..., routes, steps], in shape [..., steps, routes * bits].

    >>> unpack(np.array([[1, 2], [3, 2]], np.uint16), bits=2)
    array([[1, 0, 1, 1],
           [0, 1, 0, 1]], dtype=uint8)
    """
    packed = as_symbols("symbols", symbols)
    bits = RosaConfig(bits=bits).bits
    if packed.ndim < 2:
        raise InvalidArgument(f"symbols has shape {list(packed.shape)}; give [routes, steps] or [..., routes, steps]")
    *batch, routes, steps = packed.shape
    out = np.empty((*batch, steps, routes * bits), np.uint8)
    if out.size:
        flat = packed.reshape(math.prod(batch), routes, steps)
        for row, values in zip(flat, out.reshape(len(flat), -1)):
            _c.call("rosa_unpack", row.ctypes.data, 0, steps, routes * bits, bits, values.ctypes.data)
    return out


def pack_isa() -> str:
    """The instruction set that :func:`pack` uses on this machine: ``"avx512"``, ``"avx2"`` or ``"plain"``.

    >>> pack_isa() in ("avx512", "avx2", "plain")
    True
    """
    return str(_c.lib.rosa_pack_isa().decode())
