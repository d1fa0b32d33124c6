"""The units of the residual stream: how large a layer's input is, measured once when adapters are made.

The root mean square of the hidden state grows by two orders of magnitude over the layers of a model. What an adapter
adds is multiplied by a fixed number per layer, its *scale*: the option ``units`` times the median, over the positions
of a sample, of the root mean square of the state that enters the layer. So ``e0`` and ``e1`` mean the same everywhere.
The scales are kept in the adapter's configuration; nothing is measured when it is loaded.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from ..errors import InvalidArgument

__all__ = ["SCALES", "checked", "draw_sample", "measured"]

SCALES = "scales"  # the field of the adapter's configuration
STEPS, ROWS = 256, 2  # of a sample that is drawn
ROUNDS = 3
MOST = 4096  # tokens of a sample that are used


def checked(scales: Optional[Sequence[Any]], layers: int) -> "list[float]":
    """The scales of all layers; None: 1 everywhere."""
    if scales is None:
        return [1.0] * layers
    if not isinstance(scales, (list, tuple)) or len(scales) != layers:
        held = f"{len(scales)} numbers" if isinstance(scales, (list, tuple)) else repr(scales)
        raise InvalidArgument(f"{SCALES} is {held}; give a list of {layers}, one for each layer of the model")
    for number in scales:
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise InvalidArgument(f"{SCALES} has {number!r}; give numbers above 0")
    return [float(number) for number in scales]


@torch.no_grad()
def measured(model: Any, units: float, sample: Any = None, tokenizer: Any = None) -> "list[float]":
    """The scale of every layer of a model without adapters."""
    from .attach import stack_of

    stack = stack_of(model)
    if stack.embed_tokens.weight.is_meta:
        raise InvalidArgument(
            "units cannot be measured: the model has no weights yet (meta device); attach with scales="
        )
    ids = _ids(model, sample, tokenizer)
    return [units * rms for rms in _roots(stack, ids)]


def _ids(model: Any, sample: Any, tokenizer: Any) -> Tensor:
    """Token ids [rows, steps]."""
    from .attach import stack_of

    stack = stack_of(model)
    device = stack.embed_tokens.weight.device
    if sample is None:
        return draw_sample(model)
    if isinstance(sample, str):
        if tokenizer is None:
            raise InvalidArgument("sample is text; give its tokenizer too, or token ids")
        sample = tokenizer(sample)["input_ids"]
    ids = torch.as_tensor(sample).to(device)
    if ids.dtype.is_floating_point or ids.ndim not in (1, 2) or ids.numel() == 0:
        raise InvalidArgument(
            f"sample is {ids.dtype} of shape {list(ids.shape)}; give token ids [steps] or [rows, steps]"
        )
    vocabulary = stack.config.vocab_size
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise InvalidArgument(f"sample has token {int(ids.max())}; the model's vocabulary is 0 to {vocabulary - 1}")
    ids = ids.reshape(-1, ids.shape[-1])[:, :MOST]
    return ids[: max(1, MOST // ids.shape[1])]


def draw_sample(model: Any) -> Tensor:
    """Token ids that the model finds likely, the same every time for the same model.

    Random tokens are replaced, all at once, by what the model draws from its prediction for each of them, given those
    before; after a few rounds neighbours fit together as they do in text. This takes a few forward passes; to write a
    text token by token would take hundreds.
    """
    from .attach import stack_of

    stack = stack_of(model)
    device = stack.embed_tokens.weight.device
    source = torch.Generator().manual_seed(0)
    steps = min(STEPS, getattr(stack.config, "max_position_embeddings", None) or STEPS)
    ids = torch.randint(0, stack.config.vocab_size, (ROWS, steps), generator=source).to(device)
    head = getattr(model, "lm_head", None)
    if head is None:
        return ids  # a model without a head has no predictions
    for _ in range(ROUNDS):
        chances = torch.softmax(_called(model, ids).logits[:, :-1].float(), -1).flatten(0, 1).cpu()
        drawn = torch.multinomial(chances, 1, generator=source).view(ROWS, steps - 1)
        ids[:, 1:] = drawn.to(device)
    return ids


def _called(model: Any, ids: Tensor) -> Any:
    training = model.training
    model.eval()
    try:
        return model(input_ids=ids, use_cache=False)
    finally:
        model.train(training)


def _roots(stack: Any, ids: Tensor) -> "list[float]":
    """The median over positions of the root mean square of the state that enters each layer."""
    found: "list[float]" = []

    def enter(_: Any, args: tuple, kwargs: dict) -> None:
        state = args[0] if args else kwargs["hidden_states"]
        found.append(float(state.float().square().mean(-1).sqrt().median()))

    hooks = [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in stack.layers]
    try:
        _called(stack, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found
