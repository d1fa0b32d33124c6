"""Whether Triton's kernels can be used on a device."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from typing import Any

import torch
from torch import Tensor

__all__ = ["module"]

SLOWER = "slower tensor operations are used instead"


@functools.lru_cache(maxsize=None)
def _builds(device: torch.device) -> bool:
    """Triton needs a C compiler when a kernel is first built, and a GPU that it supports. Building the smallest kernel
    shows whether they are there."""
    if importlib.util.find_spec("triton") is None:
        warnings.warn(f"Triton is not installed (pip install triton); {SLOWER}", RuntimeWarning, stacklevel=2)
        return False
    try:
        kernels: Any = importlib.import_module("._kernels", __package__)
        kernels.pack(torch.zeros(1, 1, 1, dtype=torch.bfloat16, device=device), 1)
    except Exception as error:  # whatever a compiler may raise
        reason = (str(error).strip().splitlines() or [""])[0]
        warnings.warn(
            f"Triton cannot build kernels for {torch.cuda.get_device_name(device)} ({type(error).__name__}: {reason}); "
            f"{SLOWER}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def module(name: str, x: Tensor) -> Any:
    """A module of this folder that uses Triton, if it can serve tensors like x; None where tensor operations must."""
    if not (x.is_cuda and x.numel() and _builds(x.device)):
        return None
    return importlib.import_module(f".{name}", __package__)
