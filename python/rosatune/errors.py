"""Exceptions.

Every failure of the library is an :class:`Error`, so that one ``except`` catches all of them. Each class is also the
built-in exception that a Python programmer expects: a bad value is a ``ValueError``, a file that cannot be opened an
``OSError``. Code that does not know rosatune then handles them correctly.
"""

from __future__ import annotations

__all__ = [
    "AdapterError",
    "Cancelled",
    "DeviceError",
    "Error",
    "FileError",
    "FormatError",
    "InvalidArgument",
    "OutOfMemory",
    "SymbolError",
]


class Error(Exception):
    """Anything that rosatune reports."""


class InvalidArgument(Error, ValueError):
    """An argument is out of range or missing."""


class SymbolError(Error, ValueError):
    """A symbol is not below ``2**bits``."""


class OutOfMemory(Error, MemoryError):
    """An allocation failed."""


class FileError(Error, OSError):
    """A file could not be opened, read or written."""


class FormatError(Error, ValueError):
    """A saved state is cut short, altered or of an unknown version."""


class AdapterError(Error, ValueError):
    """A saved adapter is damaged, or does not fit the model."""


class DeviceError(Error, RuntimeError):
    """A CUDA device, its driver or librosatune_cuda.so cannot be used."""


class Cancelled(Error):
    """The progress function asked to stop."""
