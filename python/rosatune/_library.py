"""Where the shared library is.

A wheel carries it, beside this file, so that package and library are always of one build. The environment variable
``ROSATUNE_LIBRARY`` names another one, for work on the library itself. The system's folders are not searched: a library
found there may be of another version, with other structures.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

__all__ = ["VARIABLE", "load", "path"]

VARIABLE = "ROSATUNE_LIBRARY"


def path() -> Path:
    """The file that is loaded."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ImportError(f"{VARIABLE} names {named!r}, which is not a file; name a librosatune.so or unset it")
        return Path(named)
    packed = Path(__file__).parent / "_lib" / "librosatune.so"
    if not packed.is_file():
        raise ImportError(
            f"rosatune's library is not at {packed}: install the package with `pip install .`, which builds it, "
            f"or name one in the environment variable {VARIABLE}"
        )
    return packed


@functools.cache
def load() -> ctypes.CDLL:
    """The library, loaded once. Calls into it release the interpreter's lock."""
    file = path()
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise ImportError(f"{file} cannot be loaded: {error}") from error
