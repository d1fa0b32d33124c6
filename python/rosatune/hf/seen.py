"""The seen-token head (:mod:`rosatune.torch._seen`) beside a model of transformers.

It is part of the adapters, option ``seen``. The hook before the decoder stack (``patch.py``) knows the token ids, and
leaves what was seen with the module of the output head; the hook after that module adds to its logits. So whatever the
model computes from logits, its loss included, has the change, and nothing inside the model differs.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ..torch import _seen

__all__ = ["NAME", "SeenStep", "attach_seen", "detach_seen", "note", "pace", "seen_head", "step_of"]

NAME = "rosa_seen"  # of the submodule
STEP = "rosa_seen_step"  # of what a call leaves with the output head
KEPT = "rosa_seen_kept"

# The sum of the final norm's weights in SmolLM2-135M, where the rates were found; 7,101 in Qwen2.5-Coder-1.5B.
USUAL_NORM = 1045.0


class SeenStep(NamedTuple):
    """What the output head has to know of a call of the model."""

    head: _seen.SeenHead
    times: Tensor  # [B, 4, V]
    old: Tensor  # [B, T]
    kept: Union[int, Tensor]  # which positions get logits: transformers' logits_to_keep

    def at(self, positions: int) -> Tensor:
        """``old`` of those that get logits."""
        if isinstance(self.kept, Tensor):
            return self.old[:, self.kept.to(self.old.device)]
        return self.old[:, self.old.shape[1] - positions :]


def attach_seen(inner: Any, rank: int, channels: int, dtype: Optional[torch.dtype]) -> _seen.SeenHead:
    """Give a model, which has none, a seen-token head."""
    output = _output(inner)
    if output is None:
        raise InvalidArgument(
            f"seen is {rank}, and {type(inner).__name__} has no output head; attach to a causal model, such as "
            f"AutoModelForCausalLM loads, or leave seen at 0"
        )
    if rank > channels:
        raise InvalidArgument(f"seen is {rank}, above the model's hidden size of {channels}; 64 is a usual rank")
    weight = output.weight
    kind = dtype or (torch.float32 if weight.dtype == torch.float16 else weight.dtype)
    head = _seen.SeenHead(channels, rank, len(weight), device=weight.device, dtype=kind)
    head.train(inner.training)
    setattr(inner, NAME, head)
    inner.register_forward_pre_hook(_before, with_kwargs=True)
    output.register_forward_hook(_after)
    return head


def detach_seen(inner: Any) -> None:
    """Remove it, if there is one."""
    if not hasattr(inner, NAME):
        return
    output = _output(inner)
    for key in [key for key, hook in inner._forward_pre_hooks.items() if hook is _before]:
        del inner._forward_pre_hooks[key]
        inner._forward_pre_hooks_with_kwargs.pop(key, None)
    for key in [key for key, hook in output._forward_hooks.items() if hook is _after]:
        del output._forward_hooks[key]
    for name in (STEP, KEPT):
        output.__dict__.pop(name, None)
    delattr(inner, NAME)


def seen_head(inner: Any) -> Optional[_seen.SeenHead]:
    """The module that holds its numbers, or None."""
    return getattr(inner, NAME, None)


def _output(inner: Any) -> Any:
    return inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None


def note(
    output: Any,
    head: _seen.SeenHead,
    ids: Optional[Tensor],
    valid: Optional[Tensor],
    state: Optional[_seen.SeenTimes],
    delay: int,
    reads: str,
) -> None:
    """Count tokens [B, T] that are to be read, and leave what was seen before each with the output head.

    state: the past, to which they are appended; None: the texts begin here.
    """
    if ids is None:
        raise InvalidArgument(
            "the seen-token head counts token ids, and the model was given inputs_embeds alone: pass input_ids "
            "beside them, or attach with seen=0"
        )
    device, vocabulary = output.weight.device, output.weight.shape[0]
    ids = ids.to(device)
    valid = None if valid is None else valid.to(device)
    texts = _seen.SeenTimes(len(ids), vocabulary, device) if state is None else state
    time = texts.push(ids, valid, keep=state is not None)
    if reads == "nothing":
        output.__dict__.pop(STEP, None)
        return
    times = _seen.moved(texts.times) if reads == "random" else texts.times
    step = SeenStep(head, times, (time - delay).clamp(min=0), output.__dict__.get(KEPT, 0))
    output.__dict__[STEP] = step


def pace(norm: Tensor) -> float:
    """How fast the head's query and gate learn, beside others of their kind, after a final norm of these weights.

    Hidden states have the size of these weights. AdamW moves each number by about its rate whatever the gradient, so
    with larger states a step moves logits by as much more.
    """
    whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return min(1.0, USUAL_NORM / max(float(whole.detach().float().abs().sum()), 1.0))


def step_of(model: Any) -> Optional[SeenStep]:
    """What the last call of a model's decoder stack left, taken away: for loops that compute logits themselves."""
    output = _output(model)
    return None if output is None else output.__dict__.pop(STEP, None)


def _before(inner: Any, args: tuple, kwargs: dict) -> None:
    """Forward pre-hook of the model: note which positions get logits."""
    output = _output(inner)
    output.__dict__.pop(STEP, None)
    output.__dict__[KEPT] = kwargs.get("logits_to_keep", 0)


def _after(output: Any, args: tuple, logits: Tensor) -> Optional[Tensor]:
    """Forward hook of the output head."""
    step: Optional[SeenStep] = output.__dict__.pop(STEP, None)
    output.__dict__.pop(KEPT, None)
    if step is None:
        return None
    hidden = args[0]
    return step.head(logits, hidden, output.weight, step.times, step.at(hidden.shape[1]))
