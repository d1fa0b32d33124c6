"""The models behind :func:`rosatune.recall`: each condition arranged, each piece read under it.

A condition with a pointer needs no reading of its own: its loss comes from the same logits.
"""

from __future__ import annotations

from typing import Any, Iterable, Optional, Union

import numpy as np
import torch
from torch import Tensor

from .. import _c
from ..errors import InvalidArgument
from ..far import CONDITIONS, RecallResult, Sums, far_distances
from ..pointer import Pointer
from ..torch import PointerHead
from .arrange import arranged, is_attached, why_no_window
from .pointer import pointer_of, unwrapped
from .reading import frozen, links_of, pieces_of, read_texts, slices

__all__ = ["measure"]

# By condition of a reading: the one with the pointer on top of it.
WITH_POINTER = {"window": "pointer", "adapter": "adapter+pointer", "global": "global+pointer"}


def measure(
    model: Any,
    texts: Any,
    window: Optional[int],
    sinks: Optional[int],
    context: int,
    pieces: Optional[int],
    pointer: Any,
    conditions: Union[str, Iterable[str], None],
    tokenizer: Any,
    batch: int,
    progress: Any,
) -> RecallResult:
    """See :func:`rosatune.recall`."""
    model = unwrapped(model)
    context = _c.integer("context", context, 1, _c.MAX_STEPS)
    batch = _c.integer("batch", batch, 1, _c.MAX_STEPS)
    pieces = None if pieces is None else _c.integer("pieces (None: all)", pieces, 1, _c.MAX_STEPS)
    window, sinks = _window(model, window, sinks)
    first = 4 * window
    if context <= first:
        raise InvalidArgument(f"context is {context}: positions from four windows ({first}) on are scored; give more")
    origin = None
    if pointer is None:
        pointer = pointer_of(model)
        origin = None if pointer is None else "attached"
    elif isinstance(pointer, Pointer):
        origin = "given"
    else:
        pointer, origin = Pointer.load(pointer), str(pointer)
    notes: list[str] = []
    readings = _readings(model, pointer, conditions, notes)

    books = {}
    for name, ids in read_texts(model, texts, tokenizer).items():
        books[name] = pieces_of(ids, context)[:pieces]
        if not books[name]:
            notes.append(f"{name} has {len(ids)} tokens, less than one piece of {context}; it is left out.")
            del books[name]
    if not books:
        raise InvalidArgument(f"no text has a whole piece of {context} tokens; lower context")

    sums: dict[str, dict[str, Sums]] = {}
    total = len(readings) * sum(len(cut) for cut in books.values()) * (context - 1)
    done = 0
    with frozen(model):
        head = None if pointer is None else PointerHead(pointer, _device(model))
        for reading, wanted in readings.items():
            with arranged(model, reading, window, sinks):
                for name, cut in books.items():
                    for begin in range(0, len(cut), batch):
                        rows = np.stack(cut[begin : begin + batch])
                        losses = _losses(model, rows, first, head, pointer, wanted)
                        for condition, values in losses.items():
                            into = sums.setdefault(condition, {}).setdefault(name, Sums())
                            for row, row_losses in zip(rows, values):
                                into.add(row_losses, far_distances(row)[first:], window)
                        done += len(rows) * (context - 1)
                        if progress is not None:
                            progress(done, total)
    ordered = {name: sums[name] for name in CONDITIONS if name in sums}
    return RecallResult(window, sinks, context, ordered, origin, notes)


def _device(model: Any) -> torch.device:
    return model.get_input_embeddings().weight.device


def _losses(
    model: Any,
    rows: np.ndarray,
    first: int,
    head: Optional[PointerHead],
    pointer: Optional[Pointer],
    wanted: list[str],
) -> dict[str, np.ndarray]:
    """Losses of the tokens from `first` on, by condition, [batch, steps - first]; `wanted`: plain, with pointer."""
    ids = torch.from_numpy(rows).to(_device(model))
    links: Any = links_of(pointer, ids) if pointer is not None and "pointer" in " ".join(wanted) else None
    parts: dict[str, list[Tensor]] = {condition: [] for condition in wanted}
    for begin, logits in slices(model, ids, first):
        end = begin + logits.shape[1]
        target = ids[:, begin:end, None].to(logits.device)
        for condition, part in parts.items():
            if head is not None and "pointer" in condition:
                here = links.at((slice(None), slice(begin - 1, end - 1)), logits.device)
                part.append(-head.to(logits.device)(logits, *here).gather(-1, target)[..., 0])
            else:
                part.append(logits.logsumexp(-1) - logits.gather(-1, target)[..., 0])
    return {condition: torch.cat(part, 1).double().cpu().numpy() for condition, part in parts.items()}


def _window(model: Any, window: Optional[int], sinks: Optional[int]) -> tuple[int, int]:
    """The window and the sinks that are compared with what lies beyond."""
    found = is_attached(model)
    if found is not None and found.config.window:
        for name, given in (("window", window), ("sinks", sinks)):
            if given is not None and given != getattr(found.config, name):
                raise InvalidArgument(
                    f"{name} is {given}, but the adapters were attached with {getattr(found.config, name)}; leave it "
                    f"out, or attach them with {name}={given}"
                )
        return found.config.window, found.config.sinks
    if not window:
        raise InvalidArgument("recall compares a window with what lies beyond it; give window=")
    return window, 4 if sinks is None else sinks


def _readings(
    model: Any, pointer: Optional[Pointer], conditions: Union[str, Iterable[str], None], notes: list[str]
) -> dict[str, list[str]]:
    """How the model has to be read, and which conditions each reading serves."""
    asked = [conditions] if isinstance(conditions, str) else None if conditions is None else list(conditions)
    for name in asked or ():
        if name not in CONDITIONS:
            raise InvalidArgument(f"there is no condition {name!r}; they are {', '.join(CONDITIONS)}")
    no_window = why_no_window(model)
    possible = {"global": ["global"]}
    if no_window is None:
        possible["window"] = ["window"]
    else:
        notes.append(f"window, adapter and pointer beside a window were not measured: {no_window}")
    if is_attached(model) is not None:
        possible.update({name: [name] for name in ("adapter", "off", "random")})
    if pointer is not None:
        for name in ("window", "adapter") if no_window is None else ("global",):
            if name in possible:
                possible[name].append(WITH_POINTER[name])
    offered = [condition for served in possible.values() for condition in served]
    for name in asked or ():
        if name not in offered:
            need = "a pointer" if "pointer" in name and pointer is None else no_window or "attached adapters"
            raise InvalidArgument(f"the condition {name!r} cannot be measured with this model: it needs {need}")
    chosen = {
        reading: [condition for condition in served if asked is None or condition in asked]
        for reading, served in possible.items()
    }
    return {reading: served for reading, served in chosen.items() if served}
