"""What a patched model computes.

Two things change. A hook before the decoder stack makes the masks, prepares the cache and looks up the places of the
sources that layers share (token ids, embeddings); what the layers need beyond their usual arguments is passed to them
as one more keyword argument, `rosa_step`. And the layers get a class derived
from their own, whose forward launches the layer's retrieval before attention and collects it after, so that both run at
the same time.

The reasons: the layers' class is replaced and not their forward attribute, because bound methods do not survive copying
and pickling; and hooks would have to keep state between launching and collecting, which one function does not. The
derived classes keep the names of their parents, because accelerate and FSDP find the layers to wrap by name. The
decoder stack has a hook and keeps its class, because transformers looks up by the exact class which outputs
(`output_hidden_states`) it can record. The step is an argument and not an attribute, because gradient checkpointing
passes arguments again when it recomputes a layer, and they are moved when layers are on several devices. A recomputed
layer therefore reads at the same places.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from ..config import RosaConfig
from ..errors import InvalidArgument
from ..sources import Lookup, LookupState, Reads
from ..torch import _distinct
from ..values import SLICE, Table, is_bare, normed_embeddings
from .cache import Shared, WindowEntry, adopt
from .masks import FLASH, Columns, Rows, build, for_steps
from .seen import note

__all__ = ["LAYERS", "PLACES", "Plan", "STACKS", "TOKENS", "note_seen", "prepare"]

# Arguments of the model beside transformers' own, all optional: places that were looked up ahead (ahead.py), the
# distinct tokens of the batch, which were found with them, and the ids on the host, so that a look-up has not to fetch
# them from the device, which would wait for all work before.
PLACES = "rosa_places"
TOKENS = "rosa_tokens"
HOST_IDS = "rosa_ids"


class Plan(NamedTuple):
    """What a step has to know of a patched model."""

    window: int  # 0: global
    sinks: int
    layers: int
    first_window_layer: int  # those before are global

    def windowed(self, layer: int) -> bool:
        return layer >= self.first_window_layer


class _RosaLayer:
    """The forward of a patched decoder layer."""

    rosa: Any  # the layer's RosaAdapter, or None
    rosa_window: int  # 0: this layer is global
    input_layernorm: Any
    self_attn: Any
    post_attention_layernorm: Any
    mlp: Any

    def forward(self, hidden_states: Tensor, rosa_step: Optional[dict] = None, **kwargs: Any) -> Tensor:
        if rosa_step is None:
            raise RuntimeError("a layer with a ROSA adapter was called by itself; call the model it belongs to")
        attention = self.self_attn
        kwargs["attention_mask"] = rosa_step["window_mask" if self.rosa_window else "global_mask"]
        if rosa_step["flash"] and not hasattr(attention, "sliding_window"):
            kwargs["sliding_window"] = self.rosa_window or None
        pending = None
        attended = self.input_layernorm(hidden_states)
        if self.rosa is not None:
            cache = kwargs.get("past_key_values", kwargs.get("past_key_value"))
            state = None
            if cache is not None:
                state = cache.layers[attention.layer_idx].retrieval(self.rosa, hidden_states.shape[0])
            # The adapter may have a finer dtype than the model, so that small updates are not lost.
            read = attended.to(self.rosa.out_proj.weight.dtype)
            made_of = rosa_step["embeds"] if self.rosa.config.v_from == "embeddings" else None
            pending = self.rosa.launch(
                read, state=state, valid=rosa_step["valid"], found=rosa_step["found"], embeds=made_of
            )
            if self.rosa.fusion == "pre":
                attended = self.input_layernorm(self.rosa.mix(hidden_states, self.rosa.collect(pending)))
        given = _attend(attention, rosa_step["instead"], hidden_states=attended, **kwargs)[0]
        if self.rosa is not None and self.rosa.fusion == "post":
            hidden_states = self.rosa.add_to(hidden_states, given, pending)
        else:
            hidden_states = hidden_states + given
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def _attend(attention: Any, instead: Optional[str], **given: Any) -> Any:
    """What an attention module computes, by another implementation where one is named."""
    if instead is None:
        return attention(**given)
    config = attention.config
    usual = config._attn_implementation
    config._attn_implementation = instead
    try:
        return attention(**given)
    finally:
        config._attn_implementation = usual


class LlamaDecoderLayer(_RosaLayer, modeling_llama.LlamaDecoderLayer):  # type: ignore[misc]
    """A Llama layer with a window and an adapter."""


class Qwen2DecoderLayer(_RosaLayer, modeling_qwen2.Qwen2DecoderLayer):  # type: ignore[misc]
    """A Qwen2 layer with a window and an adapter."""


class Qwen3DecoderLayer(_RosaLayer, modeling_qwen3.Qwen3DecoderLayer):  # type: ignore[misc]
    """A Qwen3 layer with a window and an adapter."""


# Decoder stacks that can be patched, and the classes that replace those of their layers.
STACKS = (modeling_llama.LlamaModel, modeling_qwen2.Qwen2Model, modeling_qwen3.Qwen3Model)
LAYERS = {
    modeling_llama.LlamaDecoderLayer: LlamaDecoderLayer,
    modeling_qwen2.Qwen2DecoderLayer: Qwen2DecoderLayer,
    modeling_qwen3.Qwen3DecoderLayer: Qwen3DecoderLayer,
}

# The positional arguments of a decoder stack's forward, as far as all versions of transformers agree on them.
ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds")


def prepare(stack: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Forward pre-hook of the decoder stack: cache, masks, and which steps are real."""
    if len(args) > len(ARGUMENTS):
        raise TypeError(f"{len(args)} positional arguments; pass those after {ARGUMENTS[-1]} by name")
    given = {**dict(zip(ARGUMENTS, args)), **kwargs}
    ids: Any = given.get("input_ids")
    if ids is None and given.get("inputs_embeds") is None:
        raise InvalidArgument("pass input_ids or inputs_embeds")
    if ids is not None and ids.ndim != 2:
        raise InvalidArgument(f"input_ids has shape {list(ids.shape)}; give [batch, steps]")
    by_ids = given.get("inputs_embeds") is None
    if by_ids:
        check_ids(ids, stack.config.vocab_size)
        given["inputs_embeds"] = stack.embed_tokens(ids)
    given["input_ids"] = None
    embeds = given["inputs_embeds"]
    batch, queries = embeds.shape[:2]
    if ids is not None and ids.shape != embeds.shape[:2]:
        raise InvalidArgument(f"input_ids is {list(ids.shape)} and inputs_embeds {list(embeds.shape)}; they must agree")
    plan: Plan = stack.rosatune.plan

    _refuse_packing(given)
    shared = _cache(stack, given, plan)
    seen = 0 if shared is None else given["past_key_values"].get_seq_length()
    notice_length(stack, seen + queries)
    padding = _padding(given, batch, seen + queries, embeds.device)
    rows = Rows(padding, _starts(padding) if plan.sinks and padding is not None else None)
    if shared is not None:
        if shared.padded and seen and given.get("attention_mask") is None:
            raise InvalidArgument(
                "the cache holds padding, but this step has no attention_mask: pass that of all positions"
            )
        shared.follow(rows, seen)

    note_seen(stack, given.get("past_key_values"), batch, ids, None if padding is None else padding[:, seen:])
    implementation = stack.config._attn_implementation
    instead = for_steps(implementation, queries)
    implementation = instead or implementation
    valid = None if padding is None else padding[:, seen:]
    found = _look_up(stack, given, ids, valid, by_ids)
    step = {
        "valid": valid,
        "found": found,
        "embeds": made_of(stack, embeds, found),
        "flash": implementation in FLASH,
        "instead": instead,
        "window_mask": None,
        "global_mask": None,
    }
    common = (batch, queries, seen)
    like = (rows, embeds.dtype, embeds.device)
    if plan.first_window_layer < plan.layers:
        columns = Columns(0, 0, queries)
        if shared is not None:
            entry: WindowEntry = given["past_key_values"].layers[plan.first_window_layer]
            columns = entry.columns(queries)
        step["window_mask"] = build(implementation, plan.window, plan.sinks, *common, columns, *like)
    if plan.first_window_layer > 0:
        step["global_mask"] = build(implementation, 0, 0, *common, Columns(0, 0, seen + queries), *like)

    # Four dimensions tell transformers that the mask is complete; it passes it on, and our layers ignore it.
    given["attention_mask"] = embeds.new_empty((0, 0, 0, 0))
    given["rosa_step"] = step
    return (), given


def made_of(stack: Any, embeds: Tensor, found: Optional[Reads] = None) -> Optional[Tensor]:
    """What values are made of, where that is not the layer's input, as the layers' products take it.

    Converted once: a layer would do it anew, and keep what it made for its backward pass. For a text by token no values
    are made, and for distinct tokens those of one step each.
    """
    if stack.rosatune.config.v_from != "embeddings" or (found is not None and found.embedding is not None):
        return None
    if found is not None and found.distinct is not None:
        embeds = embeds.flatten(0, 1).index_select(0, found.distinct.step).unsqueeze(0)
    device = embeds.device.type
    if torch.is_autocast_enabled(device):
        return normed_embeddings(embeds).to(torch.get_autocast_dtype(device))
    kinds = {layer.rosa.v_proj.weight.dtype for layer in stack.layers if layer.rosa is not None}
    return normed_embeddings(embeds).to(kinds.pop() if len(kinds) == 1 else torch.float32)


def check_ids(ids: Tensor, vocabulary: int) -> None:
    """Refuse ids that are not in the vocabulary. Only on the host: elsewhere the question would wait for the device."""
    if ids.device.type != "cpu" or torch.compiler.is_compiling() or not ids.numel():
        return
    least, most = (int(x) for x in torch.aminmax(ids))
    if least < 0 or most >= vocabulary:
        raise InvalidArgument(
            f"input_ids has token {least if least < 0 else most}; the model's vocabulary is 0 to {vocabulary - 1}: use "
            f"the model's own tokenizer"
        )


def _look_up(
    stack: Any, given: dict, ids: Optional[Tensor], valid: Optional[Tensor], by_ids: bool
) -> Optional[Reads]:
    """What the layers read of the sources that they share; ``by_ids``: the embeddings are those of the ids."""
    lookup: Lookup = stack.rosatune.lookup
    known, host, tokens = (given.pop(name, None) for name in (PLACES, HOST_IDS, TOKENS))
    there = ids
    if host is not None:
        if ids is None or host.shape != ids.shape or host.device.type != "cpu":
            raise InvalidArgument(f"{HOST_IDS} is a copy of input_ids on the host; this is not")
        ids = host
    kinds = {layer.rosa.reads for layer in stack.layers if layer.rosa is not None}
    if not kinds:
        return None
    embeds, cache = given["inputs_embeds"], given.get("past_key_values")
    state = None
    if cache is not None:
        first = cache.layers[0]
        begins = first.lookup_state is None
        state = first.lookups(lookup, embeds.shape[0], begins and by_ids and values_by_token(stack))
        if state.by_token and not by_ids:
            _go_on_by_step(stack, cache, state)
    distinct = None
    asked = by_ids and state is None and kinds != {"nothing"}
    if asked and ids is not None and there is not None and values_of_tokens(stack):
        waits = known is None and bool(lookup.rules)
        if tokens is None and not torch.compiler.is_compiling() and (waits or ids.device.type == "cpu"):
            tokens = _distinct.find(ids.detach().cpu().numpy())  # waits for a device only where the look-up will
        if tokens is not None:
            distinct = _distinct.locate(there.to(embeds.device), tokens.to(embeds.device))
    found = lookup(ids, embeds, valid, state, sorted(kinds), known, distinct)
    if state is not None and state.by_token:
        found.embedding = stack.embed_tokens
    return found


def values_of_tokens(stack: Any) -> bool:
    """Whether the values of texts that are read at once are functions of their tokens in all adapters.

    Adapters that are watched name steps.
    """
    made = [layer.rosa for layer in stack.layers if layer.rosa is not None]
    bare = is_bare(stack.embed_tokens, nn.Embedding) and all(is_bare(x.v_proj, nn.Linear) for x in made)
    return bare and by_distinct(stack.rosatune.config) and not any(x.watch for x in made)


def by_distinct(config: RosaConfig) -> bool:
    """Whether adapters of a configuration can read values of distinct tokens."""
    return config.v_from == "embeddings"


@torch.compiler.disable
def values_by_token(stack: Any) -> bool:
    """Whether all adapters can read the values of tokens in tables.

    Places that layers look up themselves may be known to the device alone, so such sources are read by step.
    """
    config = stack.rosatune.config
    if config.v_from != "embeddings" or any(source.learnt for source in config.sources):
        return False
    made = [layer.rosa for layer in stack.layers if layer.rosa is not None]
    return all(Table.serves(stack.embed_tokens, adapter.v_proj) for adapter in made)


def note_seen(stack: Any, cache: Any, batch: int, ids: Optional[Tensor], valid: Optional[Tensor]) -> None:
    """Count the tokens of a call, and leave what was seen with the output head, where the model has such a head."""
    found = stack.rosatune
    if found.seen is None:
        return
    kinds = {layer.rosa.reads for layer in stack.layers if layer.rosa is not None}
    weight = found.output.weight
    state = None if cache is None else cache.layers[0].seen(batch, len(weight), weight.device)
    reads = kinds.pop() if len(kinds) == 1 else "found" if kinds else "nothing"
    note(found.output, found.seen, ids, valid, state, found.config.delay_steps, reads)


@torch.no_grad()
def _go_on_by_step(stack: Any, cache: Any, state: LookupState) -> None:
    """A text by token goes on with embeddings that no table has: the values of all its steps are kept from now on."""
    ids = state.by_step()
    for layer, entry in zip(stack.layers, cache.layers):
        if layer.rosa is None:
            continue
        for begin in range(0, ids.shape[1], SLICE):
            part = ids[:, begin : begin + SLICE].to(stack.embed_tokens.weight.device)
            embeds = normed_embeddings(stack.embed_tokens(part)).to(layer.rosa.v_proj.weight.device)
            layer.rosa.keep(embeds, entry.retrieval(layer.rosa, len(ids)), begin)


def notice_length(stack: Any, positions: int) -> None:
    """Say once that a text has more positions than the model was trained for."""
    most = getattr(stack.config, "max_position_embeddings", None)
    if most is None or positions <= most or stack.rosatune.warned or torch.compiler.is_compiling():
        return
    stack.rosatune.warned = True
    warnings.warn(
        f"the text has {positions} positions, and the model was trained for {most} (max_position_embeddings); "
        f"beyond that its quality is not known",
        stacklevel=2,
    )


def _cache(stack: Any, given: dict, plan: Plan) -> Optional[Shared]:
    """Decide whether there is a cache, and prepare it."""
    if given.get("past_key_values") is None:
        wanted = given.get("use_cache")
        if wanted is None:
            # The configuration wants a cache by default, also in training, where it would only cost time.
            wanted = stack.config.use_cache and not torch.is_grad_enabled()
        if stack.training and getattr(stack, "gradient_checkpointing", False):
            wanted = False
        given["use_cache"] = bool(wanted)
        if not wanted:
            return None
        given["past_key_values"] = DynamicCache()
    return adopt(given["past_key_values"], plan)


def _padding(given: dict, batch: int, positions: int, device: torch.device) -> Optional[Tensor]:
    """The two-dimensional attention mask as booleans, or None where nothing is padded."""
    mask = given.get("attention_mask")
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        what = f"{mask.ndim} dimensions" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        raise InvalidArgument(
            f"attention_mask has {what}; a model with ROSA adapters makes its own window and takes a mask "
            f"[batch, positions] that tells padding from tokens"
        )
    if tuple(mask.shape) != (batch, positions):
        raise InvalidArgument(
            f"attention_mask is {list(mask.shape)}, but there are {batch} rows of {positions} positions "
            f"(those in the cache counted)"
        )
    mask = mask.to(device=device, dtype=torch.bool)
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return mask


def _starts(padding: Tensor) -> Tensor:
    """The position of each row's first token; the number of positions where there is none yet."""
    first = padding.long().argmax(dim=1)
    return torch.where(padding.any(dim=1), first, padding.shape[1])


def _refuse_packing(given: dict) -> None:
    """Refuse several texts in one row, whose positions start again: retrieval would read across them."""
    positions = given.get("position_ids")
    if positions is None or given.get("attention_mask") is not None or given.get("past_key_values") is not None:
        return
    if not torch.compiler.is_compiling() and bool((positions.diff(dim=-1) != 1).any()):
        raise InvalidArgument(
            "position_ids jump within a row, as in packed batches; retrieval would read across the texts: "
            "give every text a row of its own, padded, with an attention_mask"
        )
