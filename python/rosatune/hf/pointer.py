"""A pointer beside a model of transformers (:mod:`rosatune.pointer` says what it computes).

:func:`attach_pointer` changes the logits that a model returns, and the loss that it computes from them. Two hooks do
it: the one before the model's forward takes the labels away and notes the token ids, the one after it looks up the
links, mixes them into the logits and computes the loss. Nothing inside the model changes, so it works with any causal
model, with or without adapters.

With a cache a step brings only its new tokens, so the texts so far are kept with the cache, one stream per row. The
cache's class is replaced by one derived from it, which makes the streams follow when rows are reordered (beams),
repeated or selected. Cropping (rejected drafts) and resetting show in the length of the cache.

:class:`PointerLogitsProcessor` needs no change of the model at all. It sees all token ids at every step, and finds the
state that belongs to a row by comparing the text.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, PreTrainedModel
from transformers.cache_utils import Cache

from ..errors import InvalidArgument
from ..pointer import Links, Name, Pointer, PointerStream
from ..seen import Seen
from ..torch import PointerHead
from ..torch._pointer import Found

__all__ = [
    "PointerLogitsProcessor",
    "attach_pointer",
    "detach_pointer",
    "pointer_head",
    "pointer_of",
    "unwrapped",
]

HEAD = "rosa_pointer"  # the name of the submodule
RECORD = "rosatune_pointer"  # the entry in the model's configuration, for models that are saved whole


# ------------------------------------------------------------------------------------------------------------ attaching


def attach_pointer(model: Any, pointer: Union[Pointer, Name], learn: bool = False) -> Any:
    """Let a pointer take part in a model's predictions. Returns the model, changed in place.

    Args:
        model: a causal model of transformers, with or without adapters.
        pointer: a :class:`rosatune.Pointer`, or the name of a file or folder that has one.
        learn: whether its numbers are trained along with the rest of the model.

    The logits that the model returns are those of the mixture, in float32, and so is the loss that it computes from
    labels: ``generate`` and ``Trainer`` need nothing else. Logits of tokens that were not found stay as they are.
    """
    inner = unwrapped(model)
    if pointer_head(inner) is not None:
        raise InvalidArgument("a pointer is already attached to this model; call rosatune.hf.detach_pointer first")
    if not isinstance(pointer, Pointer):
        pointer = Pointer.load(pointer)
    config = inner.config
    if getattr(config, "is_encoder_decoder", False) or inner.get_output_embeddings() is None:
        raise TypeError(
            f"{type(inner).__name__} does not predict the next token of a text; a pointer needs a causal model, such "
            f"as AutoModelForCausalLM loads"
        )
    head = PointerHead(pointer, inner.get_output_embeddings().weight.device)
    head.requires_grad_(learn)
    head.attached = Attached(tuple(inspect.signature(inner.forward).parameters))
    setattr(inner, HEAD, head)
    setattr(config, RECORD, pointer.to_dict())
    inner.register_forward_pre_hook(_before, with_kwargs=True)
    inner.register_forward_hook(_after, with_kwargs=True)
    return model


def detach_pointer(model: Any) -> Pointer:
    """Remove the pointer: the model computes what it did before. Returns the pointer, as it is by now."""
    inner = unwrapped(model)
    pointer = pointer_of(inner)
    if pointer is None:
        raise InvalidArgument("no pointer is attached to this model; call rosatune.hf.attach_pointer first")
    for hooks, ours in ((inner._forward_pre_hooks, _before), (inner._forward_hooks, _after)):
        for key in [key for key, hook in hooks.items() if hook is ours]:
            del hooks[key]
            inner._forward_pre_hooks_with_kwargs.pop(key, None)
            inner._forward_hooks_with_kwargs.pop(key, None)
    delattr(inner, HEAD)
    delattr(inner.config, RECORD)
    return pointer


def pointer_head(model: Any) -> Optional[PointerHead]:
    """The module that holds the numbers of a model's pointer as parameters, or None."""
    return getattr(unwrapped(model), HEAD, None)


def pointer_of(model: Any) -> Optional[Pointer]:
    """The pointer of a model, with the numbers as they are by now; None if it has none."""
    head = pointer_head(model)
    return None if head is None else head.pointer()


def unwrapped(model: Any) -> Any:
    """The model itself, of one wrapped by DistributedDataParallel, torch.compile or PEFT."""
    while not isinstance(model, PreTrainedModel):
        if hasattr(model, "get_base_model"):  # PEFT, whose `generate` calls the model inside
            inner = model.get_base_model()
        else:
            inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            raise TypeError(
                f"{type(model).__name__} is not a model of transformers, such as AutoModelForCausalLM loads"
            )
        model = inner
    return model


# ---------------------------------------------------------------------------------------------------------------- hooks


class Step(NamedTuple):
    """What the hook after a forward has to know of the call."""

    ids: Tensor  # [batch, new]
    real: Optional[npt.NDArray[np.bool_]]  # [batch, new], False at padding; None: no padding
    seen: int  # positions in the cache before
    labels: Optional[Tensor]
    as_tuple: bool


class Attached:
    """What the hooks keep on the head. It is no part of the model's state."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self.arguments = arguments  # of the model's forward
        self.active = True
        self.step: Optional[Step] = None


def _before(model: Any, args: tuple, kwargs: dict) -> Optional[tuple[tuple, dict]]:
    """Forward pre-hook: take the labels away, note the token ids."""
    attached: Attached = getattr(model, HEAD).attached
    attached.step = None
    if not attached.active:
        return None
    given = {**dict(zip(attached.arguments, args)), **kwargs}
    ids = given.get("input_ids")
    if ids is None:
        raise InvalidArgument(
            "the model's pointer looks up token ids, but only inputs_embeds were passed: pass input_ids, or call "
            "rosatune.hf.detach_pointer"
        )
    cache = given.get("past_key_values")
    seen = 0 if cache is None else int(cache.get_seq_length())
    wish = given.get("return_dict")
    as_tuple = not (getattr(model.config, "return_dict", True) if wish is None else wish)
    attached.step = Step(ids, _real(given, seen), seen, given.pop("labels", None), as_tuple)
    if as_tuple:
        given["return_dict"] = True
    return (), given


def _real(given: dict, seen: int) -> Optional[npt.NDArray[np.bool_]]:
    """Which of the new positions are tokens and not padding."""
    mask, ids = given.get("attention_mask"), given["input_ids"]
    if mask is None:
        positions = given.get("position_ids")
        if positions is not None and seen == 0 and bool((positions.diff(dim=-1) != 1).any()):
            raise InvalidArgument(
                "position_ids jump within a row, as in packed batches; the pointer would look across the texts: "
                "give every text a row of its own, padded, with an attention_mask"
            )
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[1] < ids.shape[1]:
        what = f"shape {list(mask.shape)}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        raise InvalidArgument(
            f"attention_mask has {what}; the model's pointer takes a mask [batch, positions] that tells padding from "
            f"tokens. Caches of fixed size make others: leave cache_implementation at its default, or use "
            f"PointerLogitsProcessor"
        )
    real = mask[:, -ids.shape[1] :].to("cpu").numpy().astype(bool)
    return None if real.all() else real


def _after(model: Any, args: tuple, kwargs: dict, output: Any) -> Any:
    """Forward hook: mix what is found into the logits, and compute the loss."""
    head: PointerHead = getattr(model, HEAD)
    step = head.attached.step
    if step is None:
        return None
    head.attached.step = None
    found = _look_up(head, step, getattr(output, "past_key_values", None))
    count, device = output.logits.shape[1], output.logits.device
    kept = kwargs.get("logits_to_keep", 0)
    places = kept.cpu() if isinstance(kept, Tensor) else slice(found.tokens.shape[1] - count, None)
    logits, _, _ = head.mix(output.logits, *found.at((slice(None), places), device))
    fields = {**output, "logits": logits}
    if step.labels is not None:
        known = (*head.attached.arguments, "return_dict")
        rest = {name: value for name, value in kwargs.items() if name not in known}
        fields["loss"] = model.loss_function(logits=logits, labels=step.labels, vocab_size=logits.shape[-1], **rest)
        if fields.get("aux_loss") is not None:  # of the routers of a mixture of experts
            fields["loss"] = fields["loss"] + model.router_aux_loss_coef * fields["aux_loss"].to(device)
    output = type(output)(**fields)
    return output.to_tuple() if step.as_tuple else output


@torch.compiler.disable
def _look_up(head: PointerHead, step: Step, cache: Any) -> Found:
    """What is found at all new positions, [batch, new]."""
    texts = _texts(head, step, cache)
    return Found.of(texts.push(step.ids.detach().to("cpu").numpy(), step.real))


# ------------------------------------------------------------------------------------------------- texts beside a cache


class _Following:
    """A cache beside which texts are kept."""

    rosa_texts: PointerStream

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[misc]
        self.rosa_texts.reorder(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]
        self.rosa_texts.reorder(row for row in range(self.rosa_texts.batch) for _ in range(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)  # type: ignore[misc]
        self.rosa_texts.reorder(torch.arange(self.rosa_texts.batch)[indices.cpu()].tolist())


@functools.lru_cache(maxsize=None)
def _following(kind: type) -> type:
    return type(kind.__name__, (_Following, kind), {"__module__": kind.__module__})


def _texts(head: PointerHead, step: Step, cache: Any) -> PointerStream:
    """The texts that a step continues."""
    batch = step.ids.shape[0]
    if cache is None or step.seen == 0:
        texts = PointerStream(head.delay, head.links, batch, head.contexts, head.seen is not None)
        if cache is None:
            return texts
        if not isinstance(cache, Cache):
            raise TypeError(
                f"the model's pointer keeps its state beside a cache of transformers, not beside a "
                f"{type(cache).__name__}: use rosatune.hf.PointerLogitsProcessor, or use_cache=False"
            )
        if not isinstance(cache, _Following):
            cache.__class__ = _following(type(cache))  # type: ignore[arg-type]
        cache.rosa_texts = texts  # type: ignore[attr-defined]
        return texts
    if not isinstance(cache, _Following):
        raise InvalidArgument(
            f"this cache holds {step.seen} positions that the pointer has not seen: fill it from the first position "
            f"on with the pointer attached"
        )
    texts = cache.rosa_texts
    if len(texts) < step.seen or texts.batch != batch:
        raise InvalidArgument(
            f"this cache holds {batch} rows of {step.seen} positions, and the pointer has seen {texts.batch} rows of "
            f"{len(texts)}: fill a cache with the pointer attached throughout"
        )
    if len(texts) > step.seen:  # the cache was cropped
        texts.rewind(step.seen)
    return texts


# ----------------------------------------------------------------------------------------------------- logits processor


class PointerLogitsProcessor(LogitsProcessor):
    """A pointer for ``generate`` of any causal model of transformers, which stays as it is::

        processor = PointerLogitsProcessor(Pointer.load("pointer.json"))
        model.generate(**prompt, logits_processor=[processor])

    Greedy, sampling, beams, drafts, batches. Make one per call of ``generate``, or use one again: what it keeps of a
    text is used only where the text agrees. Links are looked up for new tokens alone.

    ``attention_mask`` is that of the prompts. It is needed where rows are padded with a token that also occurs in the
    texts; other padding is never found.
    """

    supports_continuous_batching = False  # rows are whole texts

    def __init__(self, pointer: Union[Pointer, Name], attention_mask: Optional[Tensor] = None) -> None:
        self.pointer = pointer if isinstance(pointer, Pointer) else Pointer.load(pointer)
        self._head = PointerHead(self.pointer).requires_grad_(False)
        self._real = None if attention_mask is None else attention_mask.to("cpu").numpy().astype(bool)
        self._texts: list[PointerStream] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        found = self._look_up(input_ids.to("cpu").numpy()).at(slice(None), scores.device)
        mixed, _, grown = self._head.to(scores.device).mix(scores, *found)
        # Log-probabilities, which beams have, stay log-probabilities.
        return (mixed - grown).to(scores.dtype)

    def _look_up(self, ids: npt.NDArray[np.int64]) -> Found:
        """What is found at each row's last position, [batch]."""
        texts = [np.ascontiguousarray(self._text(ids, row)) for row in range(len(ids))]
        streams, found = self._texts, {}
        # Rows of one content share a stream; several contents that go on from one stream need forks of it.
        distinct = {text.tobytes(): text for text in texts if text.size}
        source = {content: self._nearest(text, streams) for content, text in distinct.items()}
        users = [stream for stream, _ in source.values()]
        self._texts = []
        for place, (content, text) in enumerate(distinct.items()):
            stream, common = source[content]
            if stream is None:
                stream = self.pointer.stream()
            elif any(other is stream for other in users[place + 1 :]):
                stream = stream.fork()
            if len(stream) > common:
                stream.rewind(common)
            found[content] = stream.push(text[common:])
            self._texts.append(stream)
        nothing = self.pointer.look_up(np.zeros(1, np.int64))
        rows = [found.get(text.tobytes(), nothing) for text in texts]
        last: Any = zip(*((row.places[-1], row.tokens[-1], row.lengths[-1], row.clues[-1]) for row in rows))
        places, tokens, lengths, clues = map(np.stack, last)
        seen = [row.seen[-1] for row in rows if row.seen is not None]
        return Found.of(Links(places, tokens, lengths, clues, Seen.stacked(seen) if seen else None))

    def _text(self, ids: npt.NDArray[np.int64], row: int) -> npt.NDArray[np.int64]:
        """The tokens of a row without its padding."""
        if self._real is None:
            return ids[row]
        if len(ids) % len(self._real) or ids.shape[1] < self._real.shape[1]:
            raise InvalidArgument(
                f"the texts are {list(ids.shape)}, and the attention_mask of the prompts {list(self._real.shape)}: "
                f"make a PointerLogitsProcessor with the mask of these prompts"
            )
        # Several beams or sequences of one prompt are neighbours.
        real = self._real[row // (len(ids) // len(self._real))]
        return np.concatenate([ids[row, : len(real)][real], ids[row, len(real) :]])

    @staticmethod
    def _nearest(text: npt.NDArray[np.int64], streams: list[PointerStream]) -> tuple[Optional[PointerStream], int]:
        """The stream that shares the longest beginning with a text, and its length, less than that of the text."""
        best: tuple[Optional[PointerStream], int] = None, 0
        for stream in streams:
            common = min(len(stream), len(text) - 1)
            differ = stream.ids[0, :common] != text[:common]
            if differ.any():
                common = int(differ.argmax())
            if common > best[1]:
                best = stream, common
        return best
