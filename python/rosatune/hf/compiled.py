"""Compiling the layers of a model."""

from __future__ import annotations

from typing import Any

from .attach import stack_of

__all__ = ["compile_layers"]

# The gate of an adapter is a fourth consumer of the layer's normed input, beside q, k and v. By default Inductor then
# writes the sum of the gradients of that input to memory, in float32, and reads it again. docs/benchmarks.md has what
# that takes.
OPTIONS = {"realize_reads_threshold": 8, "realize_opcount_threshold": 60}


def compile_layers(model: Any, **options: Any) -> Any:
    """Compile each layer of a model by itself, with adapters or without, in place. Returns the model.

    Much faster to compile than the whole model, since all layers are one function; for training on a GPU. ``options``
    go to ``torch.compile``; batches of different shapes are compiled each, unless they say ``dynamic=True``.
    """
    for layer in stack_of(model).layers:
        layer.compile(**{"dynamic": False, "options": OPTIONS, **options})
    return model
