"""Adding adapters to a model, removing them, and choosing what is trained.

`attach` changes nothing until all options have been checked and all adapters have been made. It then records on the
decoder stack what `detach` needs, and in the model's configuration (`config.rosatune`) what a saved checkpoint needs to
be loaded again. The rest of the model's configuration stays as it was, because the window is made by the masks and not
by the model class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, cast

import torch
from torch import Tensor, nn

from ..config import ALL, RosaConfig, chosen
from ..errors import InvalidArgument
from ..finder import Rule
from ..nn import RosaAdapter
from ..sources import Lookup
from ..torch._seen import SeenHead
from .masks import check_implementation
from .patch import LAYERS, STACKS, Plan, prepare
from .pointer import HEAD, unwrapped
from .scales import SCALES, checked, measured
from .seen import attach_seen, detach_seen, pace

__all__ = [
    "Attachment",
    "adapters",
    "attach",
    "attachment",
    "detach",
    "learnt_tensors",
    "parameter_groups",
    "record",
    "scales_of",
    "set_stage",
    "stack_of",
]

STAGES = ("adapter", "all")
SLOW = ", of tokens seen"  # ends the names of groups that learn more slowly


@dataclass
class Attachment:
    """What was attached to a model."""

    plan: Plan
    config: RosaConfig  # its `layers` are the numbers of those that have an adapter
    lookup: Lookup  # the sources that layers share
    trained: dict = field(default_factory=dict)  # requires_grad of every parameter before
    windows: list = field(default_factory=list)  # sliding_window of the attention modules that have one
    recorded: Optional[dict] = None  # config.rosatune before
    warned: bool = False  # that a text is longer than the model was trained for
    seen: Optional[SeenHead] = None  # the seen-token head
    output: Any = None  # the module whose logits it changes

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the layers that have an adapter."""
        return cast("tuple[int, ...]", self.config.layers)


def stack_of(model: Any) -> Any:
    """The decoder stack of a model, also of one wrapped by DistributedDataParallel, torch.compile or PEFT."""
    inner = unwrapped(model)
    stack = inner if isinstance(inner, STACKS) else getattr(inner, "model", None)
    if not isinstance(stack, STACKS):
        known = ", ".join(kind.__name__.replace("Model", "ForCausalLM") for kind in STACKS)
        raise TypeError(f"{type(inner).__name__} is not a model that adapters can be attached to; known are: {known}")
    return stack


def attachment(model: Any) -> Optional[Attachment]:
    """What is attached to a model, or None."""
    return getattr(stack_of(model), "rosatune", None)


def _attached(model: Any) -> tuple[Any, Attachment]:
    stack = stack_of(model)
    found = getattr(stack, "rosatune", None)
    if found is None:
        raise InvalidArgument("no adapters are attached to this model; call rosatune.hf.attach first")
    return stack, found


def adapters(model: Any) -> dict[int, RosaAdapter]:
    """The adapters of a model, by layer.

    Use it to switch what is read, for comparisons, or to watch it::

        for adapter in rosatune.hf.adapters(model).values():
            adapter.reads = "nothing"  # or "random", or "found"
    """
    stack, found = _attached(model)
    return {layer: stack.layers[layer].rosa for layer in found.layers}


def learnt_tensors(model: Any) -> dict[str, Tensor]:
    """All that adapters learn, by the names that files have, each tensor once."""
    named = {f"layers.{layer}": adapter for layer, adapter in adapters(model).items()}
    head = _attached(model)[1].seen
    modules: dict[str, nn.Module] = {**named, **({} if head is None else {"seen": head})}
    found: dict[str, Tensor] = {}
    known: set[int] = set()
    for place, module in modules.items():
        for name, tensor in module.state_dict(keep_vars=True).items():
            if id(tensor) not in known:  # a shared projection has two names, of which the first is kept
                known.add(id(tensor))
                found[f"{place}.{name}"] = tensor
    return found


def attach(
    model: Any,
    config: Optional[RosaConfig] = None,
    *,
    stage: Optional[str] = "adapter",
    dtype: Optional[torch.dtype] = None,
    sample: Any = None,
    tokenizer: Any = None,
    scales: Optional[Sequence[float]] = None,
    **options: Any,
) -> Any:
    """Narrow a model's attention to a window and add ROSA adapters to its layers. Returns the model, changed in place.

    Args:
        model: a Llama, Qwen2 or Qwen3 model of transformers, such as ``LlamaForCausalLM``.
        config: a :class:`rosatune.RosaConfig`.
        stage: what is trained afterwards, see :func:`set_stage`; None leaves every parameter as it is.
        dtype: of the adapters' parameters, float32 or bfloat16; by default that of the layers, or float32 if they are
            float16. In a bfloat16 model float32 adapters learn better: bfloat16 loses small updates.
        sample: what ``units`` is measured on: token ids [steps] or [rows, steps], or text, with its ``tokenizer``. A
            few hundred tokens of the kind the model will read are enough. None: the model makes a sample itself
            (:func:`rosatune.hf.scales.draw_sample`).
        tokenizer: of the text in ``sample``.
        scales: the scale of what is read for each of the model's layers, in the place of a measurement.
        options: options of :class:`rosatune.RosaConfig` by name, such as ``window=2048, sinks=4``; beside ``config``
            they change it.

    In post fusion the logits are at first exactly those of the model with the window alone.
    """
    stack = stack_of(model)
    if getattr(stack, "rosatune", None) is not None:
        raise InvalidArgument("adapters are already attached to this model; call rosatune.hf.detach first")
    others = ("stage", "dtype", "sample", "tokenizer", "scales")
    config, numbers = _fitting(chosen("attach", config, options, ALL, others), stack)
    lookup = Lookup(config, stack.config.hidden_size, stack.config.vocab_size)
    _check_stage(stage)
    if dtype not in (None, torch.float32, torch.bfloat16):
        raise InvalidArgument(f"dtype is {dtype}; adapters are torch.float32 or torch.bfloat16")
    check_implementation(stack.config._attn_implementation, config.sinks)
    strange = [type(layer).__name__ for layer in stack.layers if type(layer) not in LAYERS]
    if strange:
        raise TypeError(f"layers of class {strange[0]} cannot be patched; attach before wrapping or sharding the model")

    if scales is None:
        scales = measured(model, config.units, sample, tokenizer) if config.units and numbers else None
    scales = checked(scales, len(stack.layers))

    made = {}
    for index in numbers:
        norm = stack.layers[index].input_layernorm.weight
        kind = dtype or (torch.float32 if norm.dtype == torch.float16 else norm.dtype)
        made[index] = RosaAdapter(stack.config.hidden_size, config, layer=index, device=norm.device, dtype=kind)
        made[index].scale = scales[index]

    total = len(stack.layers)
    plan = Plan(config.window, config.sinks, total, config.first_global_layers if config.window else total)
    found = Attachment(
        plan,
        config,
        lookup,
        {name: weight.requires_grad for name, weight in model.named_parameters()},
        recorded=getattr(stack.config, "rosatune", None),
    )
    if config.seen and numbers:
        inner = unwrapped(model)
        found.seen = attach_seen(inner, config.seen, stack.config.hidden_size, dtype)
        found.output = inner.get_output_embeddings()
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
    record(model)
    stack.register_forward_pre_hook(prepare, with_kwargs=True)
    if stage is not None:
        set_stage(model, stage)
    return model


def record(model: Any) -> None:
    """Put what is attached into the model's configuration, which ``save_pretrained`` writes."""
    stack, found = _attached(model)
    stack.config.rosatune = {**found.config.to_dict(), SCALES: scales_of(model)}


def scales_of(model: Any) -> list[float]:
    """The scale of every layer's adapter; 1 where there is none."""
    stack, _ = _attached(model)
    return [1.0 if layer.rosa is None else layer.rosa.scale for layer in stack.layers]


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
    detach_seen(unwrapped(model))
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

    It does not change whether an attached pointer is trained; that is set in :func:`attach_pointer`.
    The paper trains the adapters first (4 B tokens), then everything (26 B tokens), then on answers (7 B tokens).
    """
    _check_stage(stage)
    ours = {id(weight) for weight in learnt_tensors(model).values()}
    for name, weight in model.named_parameters():
        if HEAD not in name.split("."):
            weight.requires_grad_(stage == "all" or id(weight) in ours)
    return model


def parameter_groups(
    model: Any,
    adapter_lr: float = 2e-3,
    backbone_lr: float = 1e-4,
    weight_decay: float = 0.0,
    vector_lr: Optional[float] = None,
    qk_factor: float = 1.0,
) -> list[dict]:
    """Parameter groups for an optimizer: separate rates for adapters and backbone, no weight decay for vectors.

    Only parameters that :func:`set_stage` left trainable are listed. The vectors of adapters (``e0``, ``e1``, ``gain``,
    ``gate``, ``a0``) have the rate ``vector_lr``, by default 5 times ``adapter_lr``. The q and k of layers with symbols
    of their own (sources ``own`` and ``layer N``) have the rate ``qk_factor * adapter_lr``: with 0.005 ``own``
    recovered memory on a real model (docs/experiments.md), with 0 they keep their start values. The query and gate of
    a seen-token head have a lower rate if the model's final hidden states are large. The defaults were best on a real model, with
    all parameters trained: AdamW with betas (0.9, 0.95), 20 steps of warm-up, cosine to a tenth, gradients
    clipped at 1. The paper starts stage 2 with ``adapter_lr=1e-4, vector_lr=1e-4, backbone_lr=5e-6``::

        groups = rosatune.hf.parameter_groups(model)
        Trainer(model, arguments, optimizers=(torch.optim.AdamW(groups, betas=(0.9, 0.95)), None), ...)
    """
    ours, slow = {}, 1.0
    for name, weight in learnt_tensors(model).items():
        is_matrix = name.endswith(("_proj.weight", "seen.query", "seen.key"))
        ours[id(weight)] = "adapter matrices" if is_matrix else "adapter vectors"
        if qk_factor != 1 and name.endswith(("q_proj.weight", "k_proj.weight")):
            ours[id(weight)] = "adapter q and k"
        if name in ("seen.query", "seen.gate"):
            slow = pace(stack_of(model).norm.weight)
            ours[id(weight)] += SLOW if slow < 1 else ""
    rates = {
        "adapter matrices": (adapter_lr, weight_decay),
        "adapter vectors": (5 * adapter_lr if vector_lr is None else vector_lr, 0.0),
        "backbone matrices": (backbone_lr, weight_decay),
        "backbone vectors": (backbone_lr, 0.0),
    }
    rates.update({f"{name}{SLOW}": (slow * rates[name][0], rates[name][1]) for name in list(rates)[:2]})
    rates["adapter q and k"] = (qk_factor * adapter_lr, weight_decay)
    groups: dict[str, dict[str, Any]] = {
        name: {"params": [], "lr": lr, "weight_decay": decay, "name": name} for name, (lr, decay) in rates.items()
    }
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            other = "backbone matrices" if weight.ndim > 1 else "backbone vectors"
            if HEAD in name.split("."):
                other = "adapter vectors"  # a pointer's numbers
            groups[ours.get(id(weight), other)]["params"].append(weight)
    used = [group for group in groups.values() if group["params"]]
    if not used:
        raise InvalidArgument("nothing is trainable; call rosatune.hf.set_stage(model, 'adapter') or 'all' first")
    return used


def _fitting(config: RosaConfig, stack: Any) -> tuple[RosaConfig, list[int]]:
    """The configuration with its layers by number, and these, once it is known to fit the model."""
    total, width = len(stack.layers), stack.config.hidden_size
    if config.first_global_layers > total:
        raise InvalidArgument(f"first_global_layers is {config.first_global_layers}, but the model has {total} layers")
    everywhere = range(config.first_global_layers, total)
    chosen_layers: Sequence[int] = everywhere if config.layers == "all" else cast("tuple[int, ...]", config.layers)
    if chosen_layers and max(chosen_layers) >= total:
        raise InvalidArgument(f"layers names layer {max(chosen_layers)}, but the model's layers are 0 to {total - 1}")
    for source in config.sources:
        if source.kind == "layer" and source.layer not in chosen_layers:
            raise InvalidArgument(
                f"source is {config.source!r}, and layer {source.layer} has no adapter; name one that has, "
                f"of {list(chosen_layers)}"
            )
        Rule.of(config, source, width, stack.config.vocab_size)
    reading = [layer for layer in chosen_layers if any(source.serves(layer) for source in config.sources)]
    if config.layers != "all" and len(reading) < len(chosen_layers):
        idle = next(layer for layer in chosen_layers if layer not in reading)
        raise InvalidArgument(f"layers names layer {idle}, which reads no source of {config.source!r}; leave it out")
    return config.replace(layers=reading), reading


def _check_stage(stage: Optional[str]) -> None:
    if stage is not None and stage not in STAGES:
        raise InvalidArgument(f"stage must be one of {', '.join(map(repr, STAGES))}; it is {stage!r}")
