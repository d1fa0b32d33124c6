"""Random numbers that are a function of their place, as in ``src/base/draw.h``: the same numbers, bit for bit.

There is no generator with a state: the finaliser of splitmix64 mixes seed and place into a number. So a text in pieces
draws what it draws at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["draw_long", "signs"]


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw_long(seed: int, route: Any, step: Any) -> npt.NDArray[np.uint64]:
    """64 bits for a place; routes and steps are arrays that broadcast."""
    with np.errstate(over="ignore"):  # numbers wrap round at 2**64
        first = _mix(np.asarray([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        return _mix(_mix(first + np.asarray(route).astype(np.uint64)) + np.asarray(step).astype(np.uint64))


def signs(seed: int, rows: int, columns: int) -> npt.NDArray[np.int8]:
    """A matrix of +1 and -1: row r, column c is +1 where bit c % 64 of the draw for (r, c / 64) is set."""
    drawn = draw_long(seed, np.arange(rows)[:, None], np.arange((columns + 63) // 64)[None])
    bits = (drawn[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    return (bits.reshape(rows, -1)[:, :columns].astype(np.int8) * 2 - 1).astype(np.int8)
