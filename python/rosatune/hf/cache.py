"""What is kept between steps: keys and values of the window and the sinks, value bits, and the retrieval state.

The state of a layer's adapter is kept in that layer's entry of transformers' own `DynamicCache`. Transformers changes a
cache (reordering beams, cropping rejected drafts, repeating, selecting, resetting, copying) entry by entry, so the
state follows without another cache class, and a cache made by `generate` or by the user can be used: its empty entries
are replaced on first use. What all layers share, the look-up of token ids and embeddings, is kept in the first entry.

A window entry holds what the next step sees: the last W - 1 positions, and the first S of every row. Keys are stored
with their true rotary positions, so they need not be rotated again when the window moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from ..errors import InvalidArgument
from ..nn import RosaState
from ..sources import Lookup, LookupState
from ..torch._seen import SeenTimes
from .masks import Columns, Rows

if TYPE_CHECKING:
    from .patch import Plan

__all__ = ["Shared", "adopt"]

# Generation with drafts undoes the last few steps. This many of the positions that the latest update pushed out of the
# window are kept for that; to undo more, call `activate_past_recording` first.
SPARE = 64


class Shared:
    """What the entries of one cache have in common."""

    def __init__(self, plan: "Plan") -> None:
        self.plan = plan
        self.padded = False  # some row has held padding
        self.starts: Optional[Tensor] = None  # [batch], position of each row's first real token; None: 0
        self.latest = 0  # the greatest of them

    def follow(self, rows: Rows, seen: int) -> None:
        """Record where the rows begin, as long as sinks are still to be taken from them; `seen` steps came before."""
        self.padded = rows.padding is not None
        if self.plan.sinks and (seen == 0 or seen < self.latest + self.plan.sinks):
            self.starts = rows.starts
            self.latest = 0 if rows.starts is None else int(rows.starts.max())


class RetrievalEntry(DynamicLayer):
    """Keys and values of the whole past, and the retrieval state."""

    keys: Any  # [batch, heads, positions, width], or None before the first step
    values: Any
    state: Optional[RosaState] = None
    lookup_state: Optional[LookupState] = None  # of the first entry alone
    seen_state: Optional[SeenTimes] = None  # likewise, of a model with a seen-token head

    def retrieval(self, adapter: Any, batch: int) -> RosaState:
        """The state of the layer's adapter, made on first use."""
        if self.state is None:
            self.state = RosaState(adapter, batch)
        return self.state

    def lookups(self, lookup: Lookup, batch: int, by_token: bool = False) -> LookupState:
        """The state of the sources that all layers share, made on first use, for a text by token or by step."""
        if self.lookup_state is None:
            self.lookup_state = lookup.start(batch, by_token)
        return self.lookup_state

    def seen(self, batch: int, vocabulary: int, device: torch.device) -> SeenTimes:
        """The tokens that the texts have had, made on first use."""
        if self.seen_state is None:
            self.seen_state = SeenTimes(batch, vocabulary, device)
        return self.seen_state

    @property
    def by_token(self) -> bool:
        """Of the first entry: whether the text's values are found by token."""
        return self.lookup_state is not None and self.lookup_state.by_token

    @property
    def _states(self) -> "list[Any]":
        return [state for state in (self.state, self.lookup_state, self.seen_state) if state is not None]

    def reset(self) -> None:
        self.keys = self.values = None
        self.is_initialized = False
        self.state = self.lookup_state = self.seen_state = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        self._pick(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.keys is not None:
            batch = self.keys.shape[0]
            super().batch_repeat_interleave(repeats)
            self._pick([row for row in range(batch) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.keys is not None:
            rows = torch.arange(self.keys.shape[0], device=indices.device)[indices]
            super().batch_select_indices(indices)
            self._pick(rows.tolist())

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last ``-tokens_to_remove`` steps; a positive number is the length to cut to."""
        steps = self._steps_to_forget(tokens_to_remove)
        if steps:
            self.keys = self.keys[..., : self.keys.shape[-2] - steps, :]
            self.values = self.values[..., : self.values.shape[-2] - steps, :]
            self._forget(steps)

    def _pick(self, rows: Sequence[int]) -> None:
        for state in self._states:
            state.reorder(rows)

    def _steps_to_forget(self, tokens_to_remove: int) -> int:
        length = self.get_seq_length()
        tokens_to_remove = int(tokens_to_remove)  # drafts give a tensor of the device, which would make the length one
        steps = -tokens_to_remove if tokens_to_remove <= 0 else max(length - tokens_to_remove, 0)
        if steps > length:
            raise InvalidArgument(f"cannot crop {steps} steps from a cache that holds {length}")
        return steps

    def _forget(self, steps: int) -> None:
        for state in self._states:
            state.rewind(steps)


class WindowEntry(RetrievalEntry):
    """Keys and values of the window and the sinks, and the retrieval state."""

    is_sliding = True
    captured_by: Any = None  # the recorded step (recorded.py) whose buffers now hold the keys and values; else None

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared
        self.window = shared.plan.window
        self.sinks = shared.plan.sinks
        self.cumulative_length = 0
        self.record_past = False
        self.sink_keys: Any = None
        self.sink_values: Any = None

    # Access to keys and values first copies them back from a recorded step, so the methods below need no special case.

    @property
    def keys(self) -> Any:  # type: ignore[override]
        self._release_from_graph()
        return self._keys

    @keys.setter
    def keys(self, keys: Any) -> None:
        self._release_from_graph()
        self._keys = keys

    @property
    def values(self) -> Any:  # type: ignore[override]
        self._release_from_graph()
        return self._values

    @values.setter
    def values(self, values: Any) -> None:
        self._release_from_graph()
        self._values = values

    def _release_from_graph(self) -> None:
        if self.captured_by is not None:
            self.captured_by.leave()

    def __getstate__(self) -> dict:
        self._release_from_graph()
        return self.__dict__

    def lazy_initialization(self, key_states: Tensor, value_states: Optional[Tensor] = None) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        value_states = key_states if value_states is None else value_states
        self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        if self.sinks:
            self.sink_keys = key_states.new_zeros(*key_states.shape[:2], self.sinks, key_states.shape[-1])
            self.sink_values = value_states.new_zeros(*value_states.shape[:2], self.sinks, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[-2]
        columns = self.columns(new)
        self._keep_sinks(key_states, value_states)
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        self.cumulative_length += new
        self.keys, self.values = keys, values
        if not self.record_past:
            self._trim(spare=min(new, SPARE), copied=new > 1)
        keys, values = keys[..., -columns.length :, :], values[..., -columns.length :, :]
        if columns.sinks:
            keys = torch.cat([self.sink_keys, keys], dim=-2)
            values = torch.cat([self.sink_values, values], dim=-2)
        return keys, values

    def columns(self, queries: int) -> Columns:
        """The columns that `update` returns for `queries` new steps."""
        kept = min(self.cumulative_length, self.window - 1)
        offset = self.cumulative_length - kept
        return Columns(self.sinks if offset else 0, offset, kept + queries)

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        # Some versions of transformers pass the positions of the queries instead of their number.
        columns = self.columns(query_length if isinstance(query_length, int) else query_length.shape[0])
        return columns.sinks + columns.length, columns.offset

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_max_length(self) -> int:
        return self.window + self.sinks

    get_max_cache_shape = get_max_length

    def activate_past_recording(self) -> None:
        """Keep what leaves the window until the next `crop`, which may need it."""
        self.record_past = True

    def reset(self) -> None:
        super().reset()
        self.cumulative_length = 0
        self.sink_keys = self.sink_values = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._map_sinks(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._map_sinks(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._map_sinks(lambda x: x[indices])

    def crop(self, tokens_to_remove: int) -> None:
        steps = self._steps_to_forget(tokens_to_remove)
        left = self.cumulative_length - steps
        if self.is_initialized and self.keys.shape[-2] - steps < min(left, self.window - 1):
            raise RuntimeError(
                f"cannot crop {steps} steps: what they pushed out of the window of {self.window} was not kept; "
                f"call activate_past_recording() on the cache first"
            )
        super().crop(-steps)
        self.cumulative_length = left
        if self.is_initialized:
            self._trim(spare=0, copied=True)

    def _trim(self, spare: int, copied: bool) -> None:
        """Keep W - 1 positions and the spare ones; `copied`, as a view would keep the memory of a whole prompt."""
        surplus = self.keys.shape[-2] - (self.window - 1 + spare)
        if surplus > 0:
            self.keys, self.values = self.keys[..., surplus:, :], self.values[..., surplus:, :]
            if copied:
                self.keys, self.values = self.keys.clone(), self.values.clone()

    def _keep_sinks(self, keys: Tensor, values: Tensor) -> None:
        """Store those of each row's first S positions that are among the new ones."""
        if not self.sinks or self.cumulative_length >= self.shared.latest + self.sinks:
            return
        new = keys.shape[-2]
        place = torch.arange(self.sinks, device=keys.device)[None] - self.cumulative_length
        if self.shared.starts is not None:
            place = place + self.shared.starts[:, None].to(keys.device)
        place = place.expand(keys.shape[0], -1)[:, None, :, None]
        fresh = (place >= 0) & (place < new)
        place = place.clamp(0, new - 1)
        take = lambda new, old: torch.where(fresh, new.gather(2, place.expand_as(old)), old)  # noqa: E731
        self.sink_keys, self.sink_values = take(keys, self.sink_keys), take(values, self.sink_values)

    def _map_sinks(self, change: Any) -> None:
        if self.sink_keys is not None:
            self.sink_keys, self.sink_values = change(self.sink_keys), change(self.sink_values)


def adopt(cache: Any, plan: "Plan") -> Shared:
    """Make a cache ready for a patched model, or check that it is."""
    shared = getattr(cache, "rosatune", None)
    if isinstance(shared, Shared):
        if shared.plan != plan:
            raise InvalidArgument(
                f"this cache was filled by a model with {shared.plan}, not with {plan}: use a new cache"
            )
        return shared
    if not isinstance(cache, DynamicCache):
        raise TypeError(
            f"a model with ROSA adapters keeps its state in a DynamicCache, not in a {type(cache).__name__}: "
            f"leave cache_implementation at its default, or pass transformers.DynamicCache()"
        )
    if cache.get_seq_length() > 0:
        raise InvalidArgument(
            f"this cache holds {cache.get_seq_length()} steps that no retrieval state has seen: "
            f"fill it with the patched model, from the first step on"
        )
    shared = Shared(plan)
    cache.layers = [
        WindowEntry(shared) if layer >= plan.first_window_layer else RetrievalEntry() for layer in range(plan.layers)
    ]
    if hasattr(cache, "layer_class_to_replicate"):
        cache.layer_class_to_replicate = None
    cache.rosatune = shared  # type: ignore[attr-defined]
    return shared
