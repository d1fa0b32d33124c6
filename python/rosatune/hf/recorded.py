"""Single steps recorded as a CUDA graph, so that a token does not wait for Python.

A decoding step of a model of a billion weights takes a GPU two or three milliseconds, and Python many times that to
launch its kernels one by one. :func:`recorded` records one step, head included, and replays it for every token. The
host only looks up the token's places and copies a few numbers.

A recording has fixed addresses. So while a cache is *attached* to the recording, the keys and values of its window are
in ring buffers that the recording owns: position p has column p modulo W, after those of the sinks. Value bits are read
from the adapters' tables; those that are stored by step stay in the cache's own blocks, and only the table of their
addresses is the recording's. Other code can use the cache as usual: any access to an entry's keys (reordering of beams,
cropping, copying, a step of several tokens) detaches the cache, with everything that was computed, and the next single
step attaches it again. A seen-token head is added to the recorded logits afterwards.

The recorded step runs the same modules as any other, with two replacements: the ring for the cache, and an attention
function that takes all columns of the ring. Columns are summed in another order than in a step that is not recorded, so
logits agree up to rounding. There are two recordings: with a mask for texts shorter than the window and for padding,
without one for all other texts.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..errors import InvalidArgument
from ..sources import Reads
from ..torch import _pinned
from ..torch._past import Lent
from ..torch._places import TensorPlaces
from .attach import attachment, stack_of
from .cache import Shared
from .masks import NEVER
from .patch import HOST_IDS, check_ids, made_of, note_seen, notice_length
from .pointer import unwrapped
from .seen import step_of

__all__ = ["recorded"]

STEP = "rosatune_step"  # the attention function of a recorded step
DEVICES = ("cuda",)  # where steps can be recorded
WARM = 2  # steps before the recording: what is built or allocated once is there by then
TABLE = 1024  # blocks of value bits that a table has room for at least

# Arguments of a step that can be replayed; those that are not here must be absent or None.
KNOWN = {"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "return_dict",
         "cache_position", HOST_IDS}  # fmt: skip


@contextmanager
def recorded(model: Any) -> Iterator[Any]:
    """While it lasts, single steps of a model with a window are recorded once as a CUDA graph and replayed::

        with rosatune.hf.recorded(model):
            model.generate(**inputs, max_new_tokens=500)

    ``generate`` and calls of the model with a cache work as before, with any sampling; prompts, and all calls that are
    not a single step without gradients, run as they always do. The recording is made at the first step of a batch
    size, which takes some tenths of a second, and serves all texts of that size until the end of the block; leave the
    model's weights where they are until then (their numbers may change). Logits are those of the model without it up
    to rounding.

    It works with adapters and with a window alone (``attach(model, window=..., layers=())``). Models with global layers
    and sources that layers look up themselves (``own``, ``layer N``) cannot be recorded; a warning says so, and the
    model runs as without.
    """
    inner = unwrapped(model)
    if attachment(inner) is None:
        raise InvalidArgument("only a model with a window can be recorded; call rosatune.hf.attach first")
    if inner is stack_of(inner):
        raise TypeError(f"{type(inner).__name__} has no head; give the causal model that it belongs to")
    before, usual = inner.__dict__.get("forward"), inner.forward
    recorder = _Recorder(inner, usual)

    @functools.wraps(usual)  # generate looks at its signature
    def forward(*args: Any, **kwargs: Any) -> Any:
        return recorder.forward(*args, **kwargs)

    inner.forward = forward
    try:
        yield model
    finally:
        recorder.leave()
        if before is None:
            del inner.forward
        else:
            inner.forward = before


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], scaling: Any = None, **__: Any
) -> "tuple[Tensor, None]":
    """Attention of one query per row; the heads that share a key head are the rows of one product."""
    batch, heads, _, width = query.shape
    found = scaled_dot_product_attention(
        query.reshape(batch, key.shape[1], -1, width), key, value, attn_mask=mask, scale=scaling
    )
    return found.reshape(batch, 1, heads, -1), None


AttentionInterface.register(STEP, _attend)


def _record(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Record work that gives a tensor; gives what replays it."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = work()

    def replay() -> Tensor:
        graph.replay()
        return found.clone()

    return replay


class _Inputs:
    """Arrays of the host that are brought to fixed addresses of a device by one copy."""

    def __init__(self, fields: "dict[Any, tuple[tuple[int, ...], type]]", device: torch.device) -> None:
        begins, size = {}, 0
        for name, (shape, kind) in fields.items():
            begins[name] = size
            size += -(-int(np.prod(shape)) * np.dtype(kind).itemsize // 16) * 16
        host = torch.zeros(size, dtype=torch.uint8)
        self._from = _pinned.pinned(host) if device.type == "cuda" else host
        self._to = torch.zeros(size, dtype=torch.uint8, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self.host: dict[Any, Any] = {}
        self.there: dict[Any, Tensor] = {}
        for name, (shape, kind) in fields.items():
            end = begins[name] + int(np.prod(shape)) * np.dtype(kind).itemsize
            self.host[name] = self._from.numpy()[begins[name] : end].view(kind).reshape(shape)
            like = torch.from_numpy(np.zeros((), kind)).dtype
            self.there[name] = self._to[begins[name] : end].view(like).view(shape)

    def wait(self) -> None:
        """Until the arrays may be written again."""
        if self._copied is not None:
            self._copied.synchronize()

    def send(self) -> None:
        """Bring the arrays to the device."""
        self._to.copy_(self._from, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class _Layer:
    """Takes the place of a layer's entry of the cache in a recorded step."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values  # [batch, heads, sinks and window, width]
        self.table: Optional[Tensor] = None  # of its value bits, where they are in blocks
        self.past: Any = None
        self.begin: Any = None

    def retrieval(self, adapter: Any, batch: int) -> "_Layer":
        return self

    def take(self, v: Tensor) -> "tuple[Any, Any]":
        """As that of :class:`rosatune.nn.RosaState`."""
        return self.past, self.begin()


class _Recorder:
    """The recordings of a model, and the cache that is attached."""

    def __init__(self, model: Any, usual: Callable[..., Any]) -> None:
        self._model, self._usual = model, usual
        self._names = tuple(inspect.signature(usual).parameters)
        self._stack = stack_of(model)
        self._plan = self._stack.rosatune.plan
        self._refused = False
        self._cache: Any = lambda: None
        self._settings: Any = None  # of the adapters
        self._block = NEVER  # steps of a block of value bits
        self._tables: list = []  # of adapters that read by token: the adapter, and the bits that are recorded
        self._weights: list = []  # what the tables are made of
        self._versions: list = []
        self._made: Any = None  # what the recordings depend on
        self._replays: dict[bool, Callable[[], Tensor]] = {}  # with a mask, and without
        self._hidden: dict[bool, Tensor] = {}  # what the head is given by each of them

    # ------------------------------------------------------------------------------------------------------------ steps

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward: replayed if it is a single step, else as usual."""
        given = {**dict(zip(self._names, args)), **kwargs}
        if self._refused or not self._fits(given):
            return self._usual(*args, **kwargs)
        try:
            with torch.inference_mode(False), torch.no_grad():
                self._prepare(given)
        except InvalidArgument:
            raise
        except Exception as error:  # whatever a driver, a compiler or a model may raise
            self._refuse(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
        if self._refused:
            self.leave()
            return self._usual(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return CausalLMOutputWithPast(logits=self._step(given), past_key_values=given["past_key_values"])

    def _fits(self, given: dict) -> bool:
        """Whether a call is a single step that continues a cache."""
        ids, cache, mask = (given.get(name) for name in ("input_ids", "past_key_values", "attention_mask"))
        shared = getattr(cache, "rosatune", None)
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.shape[1] != 1:
            return False
        if cache is None or not isinstance(shared, Shared):
            return False
        seen = cache.get_seq_length()
        started = seen > 0 and seen >= shared.latest + self._plan.sinks and shared.plan == self._plan
        plain = not (torch.is_grad_enabled() or self._model.training or torch.is_autocast_enabled(ids.device.type))
        config = self._model.config
        asked = given.get("use_cache") is not False and isinstance(given.get("logits_to_keep", 0), int)
        asked = asked and given.get("return_dict") is not False
        more = ("output_hidden_states", "output_attentions")
        asked = asked and not any(getattr(config, name, False) for name in more)
        asked = asked and all(value is None or value is False for name, value in given.items() if name not in KNOWN)
        shaped = mask is None and not shared.padded
        if isinstance(mask, Tensor):
            shaped = tuple(mask.shape) == (len(ids), seen + 1)
        return started and plain and asked and shaped and not torch.compiler.is_compiling()

    def _prepare(self, given: dict) -> None:
        """Attach the cache, and record what this step needs, before the step changes anything."""
        cache, ids = given["past_key_values"], given["input_ids"]
        adapters = [layer.rosa for layer in self._stack.layers]
        self._adapted = any(x is not None for x in adapters)
        settings = tuple(None if x is None else (x.reads, x.watch, id(x._scale)) for x in adapters)
        if self._cache() is not cache or self._settings != settings or not self._tables_stand():
            self.leave()
            reason = self._hindrance(cache, ids)
            if reason:
                self._refuse(reason)
                return
            self._settings = settings
            self._capture(cache, len(ids), given.get("attention_mask"))
        seen = cache.get_seq_length()
        if seen % self._block == 0 and not self._has_room(cache, seen):
            self._capture(cache, len(ids), given.get("attention_mask"))  # with larger tables
            self._has_room(cache, seen)

        # one copy to the host, which waits until the token is known
        mask, host = given.get("attention_mask"), given.get(HOST_IDS)
        fetched = ids if host is None else host
        if mask is not None:
            fetched = torch.cat([fetched, mask[:, -1:].to(device=fetched.device, dtype=fetched.dtype)], 1)
        fetched = fetched.cpu()
        self._ids = fetched[:, :1]
        check_ids(self._ids, self._stack.config.vocab_size)
        valid = np.ones(len(ids), np.bool_) if mask is None else fetched[:, 1].numpy() != 0
        self._valid = None if valid.all() else valid[:, None]
        if self._valid is not None:
            self._padded = cache.rosatune.padded = True
        notice_length(self._stack, seen + 1)

        plan, inputs = self._plan, self._inputs
        inputs.wait()
        inputs.host["ids"][:] = self._ids.numpy()
        inputs.host["valid"][:, 0] = valid
        inputs.host["positions"][:] = seen
        inputs.host["time"][:] = inputs.host["begin"][:] = seen
        inputs.host["slot"][:] = seen % plan.window
        inputs.host["column"][:] = plan.sinks + seen % plan.window
        self._masked = self._padded or seen < plan.window + plan.sinks - 1
        if self._masked not in self._replays:
            # It finds nothing and writes where the step will: nothing is lost.
            for key in self._reads.places:
                inputs.host[key, "tau"][:] = -1
            inputs.send()
            self._replays[self._masked] = _record(functools.partial(self._run, self._masked))

    def _step(self, given: dict) -> Tensor:
        """Look up, bring what was found, replay."""
        cache, inputs, stack = given["past_key_values"], self._inputs, self._stack
        lookup = stack.rosatune.lookup
        if self._adapted:
            embeds = stack.embed_tokens(given["input_ids"]) if "embeddings" in lookup.rules else None
            state = cache.layers[0].lookups(lookup, len(self._ids))
            found = lookup.advance(self._ids, embeds, self._valid, state, self._reads.kinds)
            for key, places in found.items():
                inputs.host[key, "tau"][:] = places.tau
                inputs.host[key, "length"][:] = places.length
        inputs.send()
        positions = given.get("position_ids")
        if positions is not None:
            inputs.there["positions"].copy_(positions)
        logits = self._add_seen(given, self._replays[self._masked]())
        for entry in cache.layers:
            entry.cumulative_length += 1
            if entry.state is not None:
                entry.state.advance()
        return logits

    def _add_seen(self, given: dict, logits: Tensor) -> Tensor:
        """What tokens seen get. It is launched: counts are the cache's own, and have no fixed address."""
        valid = None if self._valid is None else torch.from_numpy(self._valid)
        note_seen(self._stack, given["past_key_values"], len(logits), given["input_ids"], valid)
        step = step_of(self._model)
        if step is None:
            return logits
        hidden, weight = self._hidden[self._masked], self._model.get_output_embeddings().weight
        return step.head(logits, hidden, weight, step.times, step.old)

    # ------------------------------------------------------------------------------------------ attaching and detaching

    def _hindrance(self, cache: Any, ids: Tensor) -> Optional[str]:
        """Why steps of this model and cache cannot be recorded."""
        adapters = [layer.rosa for layer in self._stack.layers if layer.rosa is not None]
        devices = {x.device for x in self._model.parameters()}
        if len(devices) > 1 or ids.device not in devices or ids.device.type not in DEVICES:
            return f"it is on {', '.join(sorted(map(str, devices)))}; one CUDA device is needed"
        if self._plan.first_window_layer:
            return "layers with global attention keep more with every step"
        learnt = [source.name for source in self._stack.rosatune.config.sources if source.learnt]
        if learnt and adapters:
            return f"source {learnt[0]!r} is looked up by the layers themselves, which the host does"
        if any(adapter.watch for adapter in adapters):
            return "an adapter is watched, which the host does"
        whole = [entry for entry in cache.layers if entry.state is not None and entry.state.past.blocks is None]
        if whole and ids.is_cuda and not cache.layers[0].by_token:
            return "the kernel of generation cannot be used"
        return None

    def _refuse(self, reason: str) -> None:
        self._refused = True
        warnings.warn(
            f"steps of this model cannot be recorded ({reason}); they are launched one by one",
            RuntimeWarning,
            stacklevel=4,
        )

    def _capture(self, cache: Any, batch: int, mask: Optional[Tensor]) -> None:
        """Attach a cache: copy keys and values to the ring, addresses of value bits to the recording's tables."""
        self.leave()
        plan, seen = self._plan, cache.get_seq_length()
        blocks = [None if entry.state is None else entry.state.past.blocks for entry in cache.layers]
        most = max((x.count for x in blocks if x is not None), default=0)
        self._take_tables(cache.layers[0].by_token)
        depends = (
            batch, cache.layers[0].keys.dtype, self._settings,
            tuple(x.data_ptr() for x in self._model.parameters()),
            tuple(None if x is None else x.steps for x in blocks),
            tuple(bits.data_ptr() for _, bits in self._tables),
        )  # fmt: skip
        if self._made is None or self._made[0] != depends or self._made[1] <= most:
            self._made = None  # frees the old buffers before larger ones are allocated
            room = max(TABLE, 2 * most)
            self._build(cache, batch, blocks, room)
            self._made = depends, room
        self._block = next((x.steps for x in blocks if x is not None), NEVER)

        device = self._open.device
        there = torch.arange(max(seen - plan.window + 1, 0), seen, device=device)
        self._open.fill_(False)
        self._open[:, there % plan.window] = True
        first = torch.zeros(batch, dtype=torch.int64, device=device)
        if cache.rosatune.starts is not None:
            first = cache.rosatune.starts.to(device)
        sinks = first[:, None] + torch.arange(plan.sinks, device=device)
        self._padded = mask is not None and not bool(mask[:, :seen].all())
        if mask is not None and self._padded:
            real = mask.to(device=device, dtype=torch.bool)
            self._open[:, there % plan.window] = real[:, there]
            sinks = torch.where(real.gather(1, sinks.clamp(max=seen)), sinks, NEVER)
        self._sinks.copy_(sinks)
        slots = plan.sinks + there % plan.window
        for layer, entry, mine in zip(self.layers, cache.layers, blocks):
            kept = slice(entry.keys.shape[-2] - len(there), None)
            layer.keys.index_copy_(2, slots, entry.keys[..., kept, :])
            layer.values.index_copy_(2, slots, entry.values[..., kept, :])
            if plan.sinks:
                layer.keys[..., : plan.sinks, :] = entry.sink_keys
                layer.values[..., : plan.sinks, :] = entry.sink_values
            if mine is not None:
                mine.lend(layer.table)
            elif entry.state is not None:
                layer.past = entry.state.past
        for entry in cache.layers:
            entry.keys = entry.values = None
            entry.captured_by = self
        self._cache = weakref.ref(cache)

    def _take_tables(self, by_token: bool) -> None:
        """Get the tables of adapters that read by token, and remember the versions of their weights."""
        embedding = self._stack.embed_tokens
        adapters = [layer.rosa for layer in self._stack.layers if layer.rosa is not None and by_token]
        self._tables = [(x, x.table.of(embedding, x.v_proj)) for x in adapters]
        self._weights = [y for x in (embedding, *(x.v_proj for x in adapters)) for y in x.parameters() if adapters]
        self._versions = [x._version for x in self._weights]

    def _tables_stand(self) -> bool:
        """Whether the recorded tables are still the adapters' own. Changed ones are rebuilt in place."""
        versions = [x._version for x in self._weights]
        if versions != self._versions:
            self._versions = versions
            for adapter, _ in self._tables:
                adapter.table.of(self._stack.embed_tokens, adapter.v_proj)
        return all(adapter.table.bits is bits for adapter, bits in self._tables)

    def leave(self) -> None:
        """Detach the cache: copy keys and values of the window back to it."""
        cache = self._cache()
        self._cache = lambda: None
        if cache is None:
            return
        seen, window = cache.layers[0].cumulative_length, self._plan.window
        there = torch.arange(max(seen - window + 1, 0), seen, device=self._open.device)
        slots = self._plan.sinks + there % window
        for layer, entry in zip(self.layers, cache.layers):
            entry.captured_by = None
            entry.keys, entry.values = (x.index_select(2, slots) for x in (layer.keys, layer.values))
            if entry.state is not None and entry.state.past.blocks is not None:
                entry.state.past.blocks.lend(None)

    def _has_room(self, cache: Any, seen: int) -> bool:
        """Whether the tables of the recording could take what the next step needs."""
        found = True
        for layer, entry in zip(self.layers, cache.layers):
            if layer.table is not None:
                found = entry.state.past.blocks.room(seen, 1) is layer.table and found
        return found

    # -------------------------------------------------------------------------------------------------------- recording

    def _build(self, cache: Any, batch: int, blocks: list, room: int) -> None:
        """Make everything that has a fixed address."""
        plan, lookup = self._plan, self._stack.rosatune.lookup
        device = cache.layers[0].keys.device
        self._replays = {}
        kinds = {layer.rosa.reads for layer in self._stack.layers if layer.rosa is not None} - {"nothing"}
        self._reads = Reads(tuple(sorted(kinds)))
        self._reads.embedding = self._stack.embed_tokens if self._tables else None
        fields: dict[Any, Any] = {
            "ids": ((batch, 1), np.int64), "positions": ((batch, 1), np.int64), "valid": ((batch, 1), np.bool_),
            "time": ((1,), np.int64), "slot": ((1,), np.int64), "column": ((1,), np.int64), "begin": ((1,), np.int32),
        }  # fmt: skip
        keys = [(name, kind) for name in lookup.rules for kind in self._reads.kinds]
        for name, kind in keys:
            shape = (lookup.rules[name].links, batch, lookup.rules[name].routes, 1)
            fields[(name, kind), "tau"], fields[(name, kind), "length"] = (shape, np.int32), (shape, np.uint8)
        inputs = self._inputs = _Inputs(fields, device)
        for key in keys:
            self._reads.places[key] = TensorPlaces(inputs.there[key, "tau"], inputs.there[key, "length"])
        self._open = torch.zeros(batch, plan.window, dtype=torch.bool, device=device)  # columns that are seen
        self._sinks = torch.zeros(batch, plan.sinks, dtype=torch.int64, device=device)  # positions of the sinks
        self.layers = []
        for entry, mine in zip(cache.layers, blocks):
            shapes = ((*x.shape[:2], plan.sinks + plan.window, x.shape[3]) for x in (entry.keys, entry.values))
            layer = _Layer(*(entry.keys.new_zeros(shape) for shape in shapes))
            layer.begin = functools.partial(inputs.host["begin"].item, 0)
            if mine is not None:
                layer.table = torch.zeros(room, dtype=torch.int64, device=device)
                layer.past = Lent(mine, layer.table)
                layer.begin = functools.partial(inputs.there.__getitem__, "begin")
            self.layers.append(layer)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> "tuple[Tensor, Tensor]":
        """As that of a cache: all columns of the ring, the new one included."""
        mine, column = self.layers[layer], self._inputs.there["column"]
        mine.keys.index_copy_(2, column, keys)
        mine.values.index_copy_(2, column, values)
        return mine.keys, mine.values

    def _run(self, masked: bool) -> Tensor:
        """The step: logits of the token in the inputs."""
        there = self._inputs.there
        self._open.index_copy_(1, there["slot"], there["valid"])
        step: dict[str, Any] = {"valid": None, "found": self._reads, "flash": False, "instead": STEP}
        step["window_mask"] = None
        if masked:
            gone = self._sinks <= there["time"] - self._plan.window  # a sink inside the window is there already
            step["window_mask"] = torch.cat([gone, self._open], 1)[:, None, None]
        embeds = self._stack.embed_tokens(there["ids"])
        step["embeds"] = made_of(self._stack, embeds, self._reads)
        # the method itself, as hooks would prepare the step again
        found = type(self._stack).forward(
            self._stack, inputs_embeds=embeds, position_ids=there["positions"], past_key_values=self, use_cache=True,
            attention_mask=embeds.new_empty((0, 0, 0, 0)), rosa_step=step,
        )  # fmt: skip
        self._hidden[masked] = found.last_hidden_state
        return self._model.get_output_embeddings()(found.last_hidden_state)
