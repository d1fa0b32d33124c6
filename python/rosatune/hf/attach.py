"""Adding adapters to a model, removing them, and choosing what is trained.

`attach` changes nothing until all options have been checked and all adapters have been made. It then records on the
decoder stack what `detach` needs, and in the model's configuration (`config.rosatune`) what a saved checkpoint needs to
be loaded again. The rest of the model's configuration stays as it was, because the window is made by the masks and not
by the model class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import nn

from ..config import ALL, RosaConfig, chosen
from ..nn import RosaAdapter
from .masks import check_implementation
from .patch import LAYERS, STACKS, Plan, prepare

__all__ = ["Attachment", "adapters", "attach", "attachment", "detach", "parameter_groups", "set_stage", "stack_of"]

STAGES = ("adapter", "all")


@dataclass
class Attachment:
    """What was attached to a model."""

    plan: Plan
    config: RosaConfig  # its `layers` are the numbers of those that have an adapter
    trained: dict = field(default_factory=dict)  # requires_grad of every parameter before
    windows: list = field(default_factory=list)  # sliding_window of the attention modules that have one
    recorded: Optional[dict] = None  # config.rosatune before
    warned: bool = False  # that a text is longer than the model was trained for


def stack_of(model: Any) -> nn.Module:
    """The decoder stack of a model, also of one wrapped by DistributedDataParallel or torch.compile."""
    while not hasattr(model, "get_decoder") and not isinstance(model, STACKS):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    stack = model if isinstance(model, STACKS) else getattr(model, "model", None)
    if not isinstance(stack, STACKS):
        known = ", ".join(kind.__name__.replace("Model", "ForCausalLM") for kind in STACKS)
        raise TypeError(f"{type(model).__name__} is not a model that adapters can be attached to; known are: {known}")
    return stack


def attachment(model: Any) -> Optional[Attachment]:
    """What is attached to a model, or None."""
    return getattr(stack_of(model), "rosatune", None)


def _attached(model: Any) -> tuple[nn.Module, Attachment]:
    stack = stack_of(model)
    found = getattr(stack, "rosatune", None)
    if found is None:
        raise ValueError("no adapters are attached to this model; call rosatune.hf.attach first")
    return stack, found


def adapters(model: Any) -> dict[int, RosaAdapter]:
    """The adapters of a model, by layer.

    Use it to switch retrieval off and on, or to watch it::

        for adapter in rosatune.hf.adapters(model).values():
            adapter.retrieve = False
    """
    stack, found = _attached(model)
    return {layer: stack.layers[layer].rosa for layer in found.config.layers}


def attach(
    model: Any,
    config: Optional[RosaConfig] = None,
    *,
    stage: Optional[str] = "adapter",
    dtype: Optional[torch.dtype] = None,
    **options: Any,
) -> Any:
    """Narrow a model's attention to a window and add ROSA adapters to its layers. Returns the model, changed in place.

    Args:
        model: a Llama or Qwen3 model of transformers, such as ``LlamaForCausalLM``.
        config: a :class:`rosatune.RosaConfig`.
        stage: what is trained afterwards, see :func:`set_stage`; None leaves every parameter as it is.
        dtype: of the adapters' parameters, float32 or bfloat16; by default that of the layers, or float32 if they are
            float16. In a bfloat16 model float32 adapters learn better: bfloat16 loses small updates.
        options: options of :class:`rosatune.RosaConfig` by name, such as ``window=2048, sinks=4``; beside ``config``
            they change it.

    In post fusion the logits are at first exactly those of the model with the window alone.
    """
    stack = stack_of(model)
    if getattr(stack, "rosatune", None) is not None:
        raise ValueError("adapters are already attached to this model; call rosatune.hf.detach first")
    config = _fitting(chosen("attach", config, options, ALL, ("stage", "dtype")), stack)
    _check_stage(stage)
    if dtype not in (None, torch.float32, torch.bfloat16):
        raise ValueError(f"dtype is {dtype}; adapters are torch.float32 or torch.bfloat16")
    check_implementation(stack.config._attn_implementation, config.sinks)
    strange = [type(layer).__name__ for layer in stack.layers if type(layer) not in LAYERS]
    if strange:
        raise TypeError(f"layers of class {strange[0]} cannot be patched; attach before wrapping or sharding the model")

    made = {}
    for index in config.layers:
        norm = stack.layers[index].input_layernorm.weight
        kind = dtype or (torch.float32 if norm.dtype == torch.float16 else norm.dtype)
        made[index] = RosaAdapter(stack.config.hidden_size, config, device=norm.device, dtype=kind)

    total = len(stack.layers)
    plan = Plan(config.window, config.sinks, total, config.first_global_layers if config.window else total)
    found = Attachment(
        plan,
        config,
        {name: weight.requires_grad for name, weight in model.named_parameters()},
        recorded=getattr(stack.config, "rosatune", None),
    )
    for index, layer in enumerate(stack.layers):
        attention = layer.self_attn
        found.windows.append(getattr(attention, "sliding_window", None))
        layer.__class__ = LAYERS[type(layer)]
        layer.rosa = made.get(index)
        layer.rosa_window = config.window if plan.windowed(index) else 0
        if hasattr(attention, "sliding_window"):
            attention.sliding_window = layer.rosa_window or None
        if layer.rosa is not None:
            layer.rosa.train(layer.training)
    stack.rosatune = found
    stack.config.rosatune = config.to_dict()
    stack.register_forward_pre_hook(prepare, with_kwargs=True)
    if stage is not None:
        set_stage(model, stage)
    return model


def detach(model: Any) -> Any:
    """Remove the adapters: the model computes what it did before. Returns the model."""
    stack, found = _attached(model)
    originals = {patched: original for original, patched in LAYERS.items()}
    strange = [type(layer).__name__ for layer in stack.layers if type(layer) not in originals]
    if strange:
        raise TypeError(f"layers of class {strange[0]} cannot be restored; undo the wrapping or sharding first")
    for key in [key for key, hook in stack._forward_pre_hooks.items() if hook is prepare]:
        del stack._forward_pre_hooks[key]
        stack._forward_pre_hooks_with_kwargs.pop(key, None)
    for layer, sliding in zip(stack.layers, found.windows):
        layer.__class__ = originals[type(layer)]
        del layer.rosa, layer.rosa_window
        if hasattr(layer.self_attn, "sliding_window"):
            layer.self_attn.sliding_window = sliding
    for name, weight in model.named_parameters():
        weight.requires_grad_(found.trained.get(name, weight.requires_grad))
    del stack.rosatune, stack.config.rosatune
    if found.recorded is not None:
        stack.config.rosatune = found.recorded
    return model


def set_stage(model: Any, stage: str) -> Any:
    """Choose what is trained: ``"adapter"`` the adapters alone, ``"all"`` everything. Returns the model.

    The paper trains the adapters first (4 B tokens), then everything (26 B tokens), then on answers (7 B tokens).
    """
    _check_stage(stage)
    ours = {id(weight) for adapter in adapters(model).values() for weight in adapter.parameters()}
    for weight in model.parameters():
        weight.requires_grad_(stage == "all" or id(weight) in ours)
    return model


def parameter_groups(
    model: Any, adapter_lr: float = 1e-4, backbone_lr: float = 5e-6, weight_decay: float = 0.0
) -> list[dict]:
    """Parameter groups for an optimizer: separate rates for adapters and backbone, no weight decay for vectors.

    Only what :func:`set_stage` left trainable is listed. The defaults are those with which the paper's stage 2 starts
    (backbone 5e-6 to 1e-6, adapters 1e-4 to 5e-6, cosine, 20 steps of warm-up); for the first stage the authors use
    ``adapter_lr`` 3e-4 to 5e-5::

        groups = rosatune.hf.parameter_groups(model, adapter_lr=3e-4)
        Trainer(model, arguments, optimizers=(torch.optim.AdamW(groups), None), ...)
    """
    ours = {id(weight) for adapter in adapters(model).values() for weight in adapter.parameters()}
    groups = {
        f"{part} {kind}": {"params": [], "lr": lr, "weight_decay": decay, "name": f"{part} {kind}"}
        for part, lr in (("adapter", adapter_lr), ("backbone", backbone_lr))
        for kind, decay in (("matrices", weight_decay), ("vectors", 0.0))
    }
    for weight in model.parameters():
        if weight.requires_grad:
            part = "adapter" if id(weight) in ours else "backbone"
            groups[f"{part} {'matrices' if weight.ndim > 1 else 'vectors'}"]["params"].append(weight)
    used = [group for group in groups.values() if group["params"]]
    if not used:
        raise ValueError("nothing is trainable; call rosatune.hf.set_stage(model, 'adapter') or 'all' first")
    return used


def _fitting(config: RosaConfig, stack: nn.Module) -> RosaConfig:
    """The configuration with its layers by number, once it is known to fit the model."""
    total, width = len(stack.layers), stack.config.hidden_size
    if config.first_global_layers > total:
        raise ValueError(f"first_global_layers is {config.first_global_layers}, but the model has {total} layers")
    if width % config.bits:
        fitting = ", ".join(str(bits) for bits in range(1, 17) if width % bits == 0)
        raise ValueError(f"the hidden size {width} is not a multiple of bits {config.bits}; bits may be {fitting}")
    if config.layers == "all":
        return config.replace(layers=range(config.first_global_layers, total))
    if config.layers and max(config.layers) >= total:
        raise ValueError(f"layers names layer {max(config.layers)}, but the model's layers are 0 to {total - 1}")
    return config


def _check_stage(stage: Optional[str]) -> None:
    if stage is not None and stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(map(repr, STAGES))}; it is {stage!r}")
