"""From the arrays that users have to those that C reads.

C takes dense rows of one type. NumPy users have slices, transposes, other byte orders and whatever integers their
tokenizer gave them. What can be converted without loss is converted; the rest is refused, with the remedy. An array
that is already right is not copied.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from . import _c
from .errors import InvalidArgument, SymbolError

__all__ = ["address", "floats", "routes_of", "same_shape", "symbols"]

# How NumPy stores each type of number. It has no bfloat16, whose bits are passed as uint16.
_STORED = {_c.Dtype.FLOAT32: np.float32, _c.Dtype.FLOAT16: np.float16, _c.Dtype.BFLOAT16: np.uint16}


def symbols(what: str, array: npt.ArrayLike, bits: int = _c.MAX_BITS) -> npt.NDArray[Any]:
    """Symbols as C takes them, dense, in one dimension or more: uint16, or uint32 where they have more than 16 bits.

    C checks that they are below ``2**bits``.
    """
    kind, most = (np.uint16, 0xFFFF) if bits <= _c.MAX_BITS else (np.uint32, 0xFFFFFFFF)
    given = np.asarray(array)
    if given.dtype.kind not in "bui":
        raise TypeError(f"{what} is of kind {given.dtype}; symbols are whole numbers (rosatune.pack makes them)")
    if given.ndim == 0:
        raise InvalidArgument(f"{what} is a single number; give an array of shape [steps] or [..., steps]")
    if given.size and (given.min() < 0 or given.max() > most):
        place = tuple(int(i) for i in np.argwhere((given < 0) | (given > most))[0])
        raise SymbolError(f"{what} symbol {given[place]} at {list(place)} is out of range; symbols are 0 to {most}")
    return np.ascontiguousarray(given, dtype=kind)


def same_shape(what: str, array: npt.NDArray[Any], other: str, model: npt.NDArray[Any]) -> None:
    """Refuse two arrays whose shapes differ."""
    if array.shape != model.shape:
        raise InvalidArgument(f"{what} has shape {list(array.shape)} and {other} {list(model.shape)}; they must agree")


def routes_of(shape: tuple[int, ...]) -> int:
    """The number of rows of steps in an array of this shape."""
    return math.prod(shape[:-1])


def floats(what: str, array: npt.ArrayLike, dtype: Optional[str]) -> tuple[_c.Dtype, npt.NDArray[Any]]:
    """Numbers as a dense array of a type that C knows, and that type. ``dtype`` None: the type of the array."""
    given = np.asarray(array)
    name = given.dtype.name if dtype is None else dtype
    if dtype is None and name.upper() not in _c.Dtype.__members__:
        raise TypeError(
            f"{what} is of kind {name}; convert it to float32 or float16, or give the bits of bfloat16 as uint16 "
            f'with dtype="bfloat16"'
        )
    kind = _c.named(_c.Dtype, name, "dtype")
    stored = np.dtype(_STORED[kind])
    if kind == _c.Dtype.BFLOAT16 and given.dtype.kind == "V" and given.dtype.itemsize == 2:
        given = given.view(np.uint16)  # bfloat16 of another package, such as ml_dtypes
    if given.dtype.newbyteorder("=") != stored:
        raise TypeError(f"{what} is of kind {given.dtype}; {name} is given as {stored}")
    return kind, np.ascontiguousarray(given, dtype=stored)


def address(array: Optional[npt.NDArray[Any]]) -> Optional[int]:
    """The address of an array for C; NULL for none."""
    return None if array is None else array.ctypes.data
