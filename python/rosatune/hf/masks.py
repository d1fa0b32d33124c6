"""Which positions attend to which: a causal window with sink tokens, for each way transformers computes attention.

Transformers makes the masks of its sliding layers itself, but only for model classes that have such layers (Llama has
none) and without sinks. One rule here serves all: position i sees position j if j is not later, and is either among the
last W or among the first S of its row. Rows of a batch may begin with padding; the first S are then counted from the
row's first real token, so that a padded row computes what it computes alone.

The rule works on positions, while attention works on columns of the keys it is given. With a cache these are the sinks
(once the window has moved past them) followed by an unbroken stretch of positions; `Columns` says which. A sink that
still lies inside the stretch is there already, and its own column is switched off.

Where a mask is not needed none is made, under the same conditions as in transformers: then the same kernels run, and
with S = 0 the result is the same to the last bit as that of a class with sliding layers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ..errors import InvalidArgument

__all__ = ["Columns", "Rows", "build", "check_implementation", "for_steps"]

DENSE = ("eager", "sdpa")
FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
FLEX = "flex_attention"

# Later than any query: the position of a column that no query sees.
NEVER = 1 << 30


class Columns(NamedTuple):
    """The key columns that attention is given."""

    sinks: int  # columns of sink tokens, before the stretch
    offset: Any  # position of the stretch's first column: a number, or a tensor of one
    length: int  # columns of the stretch


class Rows(NamedTuple):
    """What differs between the rows of a batch."""

    padding: Optional[Tensor]  # [batch, positions], True at real tokens; None: no padding
    starts: Optional[Tensor]  # [batch], position of the first real token; None: 0 everywhere


def check_implementation(implementation: str, sinks: int) -> None:
    """Refuse an attention implementation that cannot compute the window."""
    if implementation in FLASH and sinks:
        raise InvalidArgument(
            f"attention implementation {implementation!r} has no sink tokens (sinks is {sinks}): "
            f"use 'sdpa', 'eager' or 'flex_attention', or sinks=0"
        )
    if implementation not in DENSE + FLASH + (FLEX,):
        raise InvalidArgument(
            f"attention implementation {implementation!r} is not known to rosatune: "
            f"call model.set_attn_implementation with one of {', '.join(DENSE + (FLEX,) + FLASH)}"
        )


def for_steps(implementation: str, queries: int) -> Optional[str]:
    """The implementation to take instead for so many queries; None: the one that the model has.

    Flex attention computes blocks of queries. For a single one it has nothing to gain, and each of its calls costs the
    host a millisecond; scaled_dot_product_attention sees the same columns, mostly without a mask.
    """
    single = implementation == FLEX and queries == 1 and not torch.compiler.is_compiling()
    return "sdpa" if single else None


def build(
    implementation: str,
    window: int,
    sinks: int,
    batch: int,
    queries: int,
    seen: int,
    columns: Columns,
    rows: Rows,
    dtype: torch.dtype,
    device: torch.device,
) -> Any:
    """The mask of `queries` steps that follow `seen` others, in the form `implementation` takes; None: none needed."""
    check_implementation(implementation, sinks)
    if implementation in FLASH:
        return None if rows.padding is None else rows.padding[:, -columns.length :]
    if implementation == FLEX:
        return _block_mask(window, sinks, batch, queries, seen, columns, rows, device)
    if rows.padding is None and _needless(implementation, window, sinks, queries, seen, columns):
        return None
    width = columns.sinks + columns.length
    row = torch.arange(batch, device=device)[:, None, None, None]
    query = seen + torch.arange(queries, device=device)[None, None, :, None]
    column = torch.arange(width, device=device)[None, None, None, :]
    mask = _sees(window, sinks, columns, rows, row, query, column).expand(batch, 1, queries, width)
    if implementation == "eager":
        return torch.where(mask, torch.zeros((), dtype=dtype, device=device), torch.finfo(dtype).min)
    return mask


def _sees(window: int, sinks: int, columns: Columns, rows: Rows, row: Tensor, query: Tensor, column: Tensor) -> Tensor:
    """The rule, on indices that broadcast or on single indices."""
    first = 0 if rows.starts is None else rows.starts[row]
    place = column - columns.sinks + columns.offset
    if columns.sinks:
        sink = column + first
        place = torch.where(column < columns.sinks, torch.where(sink < columns.offset, sink, NEVER), place)
    seen = place <= query
    if window:
        near = place > query - window
        if sinks:
            near = near | ((place >= first) & (place < first + sinks))
        seen = seen & near
    if rows.padding is not None:
        seen = seen & rows.padding[row, place.clamp(max=rows.padding.shape[1] - 1)]
    return seen


def _needless(implementation: str, window: int, sinks: int, queries: int, seen: int, columns: Columns) -> bool:
    """Whether attention without a mask computes the same, no row being padded."""
    if queries == 1:
        return columns.sinks == 0 or columns.offset >= sinks
    return implementation == "sdpa" and seen == 0 and (window == 0 or columns.length < window)


def _block_mask(
    window: int, sinks: int, batch: int, queries: int, seen: int, columns: Columns, rows: Rows, device: torch.device
) -> Any:
    """The same rule in blocks, for flex attention."""
    from torch.nn.attention.flex_attention import create_block_mask

    if seen == 0 and rows.padding is None and columns == (0, 0, queries):
        return _first_block_mask(window, sinks, queries, device)
    # Numbers that grow with the text are tensors, so that one compiled kernel serves every step. They are filled in
    # there: a copy from the host would wait for the device.
    past = torch.full((), seen, device=device)
    moved = columns._replace(offset=torch.full((), columns.offset, device=device))

    def sees(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:
        return _sees(window, sinks, moved, rows, row, query + past, column)

    # Compiled, the T x T table of the rule is never stored.
    return create_block_mask(
        sees, batch, None, queries, columns.sinks + columns.length, device=device, _compile=device.type != "cpu"
    )


@functools.lru_cache(maxsize=8)
def _first_block_mask(window: int, sinks: int, queries: int, device: torch.device) -> Any:
    """The mask of whole texts without padding, the same for every batch of a length: made once."""
    from torch.nn.attention.flex_attention import create_block_mask

    columns, rows = Columns(0, 0, queries), Rows(None, None)

    def sees(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:
        return _sees(window, sinks, columns, rows, row, query, column)

    return create_block_mask(sees, None, None, queries, queries, device=device, _compile=device.type != "cpu")
