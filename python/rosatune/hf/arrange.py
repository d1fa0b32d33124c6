"""Other arrangements of a model, for measurements: global attention, the window alone, the adapters' controls.

Each is made in place and undone. Parameters stay the objects that they are, so that an optimizer goes on with them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional


from .attach import Attachment, adapters, attach, attachment, detach, stack_of

__all__ = ["arranged", "is_attached", "why_no_window"]

# What the adapters read, by condition.
READS = {"adapter": "found", "off": "nothing", "random": "random"}


def _stack(model: Any) -> Any:
    try:
        return stack_of(model)
    except TypeError:
        return None


def is_attached(model: Any) -> Optional[Attachment]:
    """What is attached to a model; None also for a class of models that adapters cannot be attached to."""
    return None if _stack(model) is None else attachment(model)


def why_no_window(model: Any) -> Optional[str]:
    """Why the attention of a model cannot be limited to a window; None if it can."""
    if _stack(model) is not None:
        return None
    return f"{type(model).__name__} is not a class whose attention rosatune.hf limits (Llama, Qwen2 and Qwen3 are)."


@contextmanager
def arranged(model: Any, condition: str, window: int, sinks: int) -> Iterator[None]:
    """While it lasts a model is read under a condition: "global", "window", "adapter", "off" or "random"."""
    found = is_attached(model)
    if condition in READS:
        with _reading(model, READS[condition]):
            yield
    elif found is not None:
        with _bare(stack_of(model), found, window if condition == "window" else 0):
            yield
    elif _stack(model) is None or (condition == "global" and not _slides(model)):
        yield
    else:
        limits: Any = dict(window=window, sinks=sinks) if condition == "window" else dict(window=0, sinks=0)
        attach(model, **limits, layers=(), stage=None)
        try:
            yield
        finally:
            detach(model)


def _slides(model: Any) -> bool:
    """Whether some layers have a window of their own."""
    return any(getattr(layer.self_attn, "sliding_window", None) for layer in stack_of(model).layers)


@contextmanager
def _reading(model: Any, reads: str) -> Iterator[None]:
    """The adapters read what is found, nothing, or at random."""
    before = {adapter: adapter.reads for adapter in adapters(model).values()}
    for adapter in before:
        adapter.reads = reads
    try:
        yield
    finally:
        for adapter, value in before.items():
            adapter.reads = value


@contextmanager
def _bare(stack: Any, found: Attachment, window: int) -> Iterator[None]:
    """The model without its adapters, and with global attention if `window` is 0."""
    plan, config = found.plan, found.config
    removed = {layer: layer.rosa for layer in stack.layers}
    windows = {layer: (layer.rosa_window, getattr(layer.self_attn, "sliding_window", None)) for layer in stack.layers}
    found.config = config.replace(layers=())
    if not window:
        found.plan = plan._replace(window=0, sinks=0, first_window_layer=plan.layers)
    try:
        for layer in stack.layers:
            layer.rosa = None
            if not window:
                layer.rosa_window = 0
                if hasattr(layer.self_attn, "sliding_window"):
                    layer.self_attn.sliding_window = None
        yield
    finally:
        found.plan, found.config = plan, config
        for layer in stack.layers:
            layer.rosa = removed[layer]
            layer.rosa_window, sliding = windows[layer]
            if hasattr(layer.self_attn, "sliding_window"):
                layer.self_attn.sliding_window = sliding
