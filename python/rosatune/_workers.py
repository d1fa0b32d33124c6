"""Threads of the C library, kept for all calls of a process.

A layer makes several calls and a model has a stream per layer: starting threads takes a millisecond where there are
many processors, and threads of each stream's own would be hundreds.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Dict

from . import _c

__all__ = ["kept"]

_lock = threading.Lock()
_workers: Dict[int, int] = {}  # by number of threads: the address of a pool


def _forget() -> None:
    """A forked process has none of its parent's threads. The memory of the pools is not reclaimed there."""
    global _lock
    _lock = threading.Lock()
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def kept(threads: int) -> int:
    """The address of a pool of this many threads (0: one per processor), which lives until the process ends."""
    with _lock:
        if threads not in _workers:
            made = ctypes.c_void_p()
            _c.call("rosa_workers_new", threads, None, ctypes.byref(made))
            _workers[threads] = made.value or 0
        return _workers[threads]
