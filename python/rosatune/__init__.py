"""Exact suffix retrieval over binary symbols (ROSA), on NumPy arrays.

>>> import numpy as np, rosatune
>>> key = np.frombuffer(b"abracadabra", np.uint8)
>>> query = np.frombuffer(b"-------abra", np.uint8)
>>> rosatune.retrieve(query, key, bits=8)
array([-1, -1, -1, -1, -1, -1, -1,  6,  2,  3,  4], dtype=int32)

At step 10 the query ends in ``abra``. The key had that at steps 0 to 3, so the answer is 4, the step that followed.

This module needs NumPy alone. ``rosatune.torch``, ``rosatune.nn`` and ``rosatune.hf`` are imported by name and need
PyTorch (``pip install rosatune[torch]``) and Transformers (``pip install rosatune[hf]``).
"""

from ._c import lib as _lib
from .config import RosaConfig
from .errors import (
    AdapterError,
    Cancelled,
    DeviceError,
    Error,
    FileError,
    FormatError,
    InvalidArgument,
    OutOfMemory,
    SymbolError,
)
from .far import RecallResult, far_distances, recall
from .operator import Found, Gradients, find, read, read_backward
from .pointer import Links, Pointer, PointerStream
from .retrieval import FlipRuns, Retrieved, chain, retrieve
from .stream import Stream
from .symbols import pack, pack_isa, unpack

__version__: str = _lib.rosa_version().decode()

__all__ = [
    "AdapterError",
    "Cancelled",
    "DeviceError",
    "Error",
    "FileError",
    "FlipRuns",
    "FormatError",
    "Found",
    "Gradients",
    "InvalidArgument",
    "Links",
    "OutOfMemory",
    "Pointer",
    "PointerStream",
    "RecallResult",
    "Retrieved",
    "RosaConfig",
    "Stream",
    "SymbolError",
    "__version__",
    "chain",
    "far_distances",
    "find",
    "pack",
    "pack_isa",
    "read",
    "read_backward",
    "recall",
    "retrieve",
    "unpack",
]
