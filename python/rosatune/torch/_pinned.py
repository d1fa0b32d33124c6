"""Memory of the host that a GPU reads and writes by itself, so that copies to and from it are not waited for.

A driver gives such *pinned* memory as far as there is some. Without it everything works, by copies that wait, and one
warning says so.
"""

from __future__ import annotations

import warnings
from typing import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["empty", "pinned"]

_refused = False  # by the driver; not asked again


def empty(shape: Sequence[int], dtype: torch.dtype, wanted: bool = True) -> Tensor:
    """Memory of the host, pinned if that is wanted and can be had."""

    def made(pin: bool) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=pin)

    return _pinned_or(lambda: made(True), lambda: made(False)) if wanted else made(False)


def pinned(x: Tensor) -> Tensor:
    """A tensor of the host in pinned memory; the tensor itself if that cannot be had."""
    return _pinned_or(x.pin_memory, lambda: x)


def _pinned_or(asked: Callable[[], Tensor], instead: Callable[[], Tensor]) -> Tensor:
    global _refused
    if _refused:
        return instead()
    try:
        return asked()
    except RuntimeError as error:
        _refused = True
        reason = (str(error).strip().splitlines() or [""])[0]
        warnings.warn(
            f"memory of the host cannot be pinned ({type(error).__name__}: {reason}); copies to and from the GPU are "
            f"waited for instead",
            RuntimeWarning,
            stacklevel=4,
        )
        return instead()
