"""Adapters on disk: a folder with `adapter_config.json`, `adapter_model.safetensors` and perhaps `pointer.json`.

The configuration (`config.py`) says how the adapters were attached, to what shape of model, the name of that model, and
the scale of each layer; the tensors are named `layers.<number>.<parameter>`, and `seen.<parameter>` of the head of
tokens seen. Each file is written beside its place and then moved there, so a failed save leaves the older file. Both
files carry a digest of the tensors: if a save was interrupted between the two, or one was exchanged, loading reports
it. A model is changed only when everything read fits it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Union

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from ..config import CONFIG_FILE, RosaConfig, make_folder, read_file, replace_file
from ..errors import AdapterError
from ..pointer import FEATURES, POINTER_FILE, Pointer
from .attach import _attached, adapters, attach, attachment, detach, learnt_tensors, record, scales_of, stack_of
from .pointer import HEAD, RECORD, attach_pointer, detach_pointer, pointer_of
from .scales import SCALES, checked
from .seen import NAME as SEEN

__all__ = ["AdapterError", "from_pretrained", "load_adapter", "save_adapter"]

TENSORS = "adapter_model.safetensors"
WHOLE = ("model.safetensors", "model.safetensors.index.json")  # of a model that was saved whole
BASE = "base_model_name_or_path"  # the field that PEFT uses too

Folder = Union[str, "os.PathLike[str]"]


def save_adapter(model: Any, folder: Folder) -> None:
    """Write a model's adapters, and its pointer if it has one, to a folder, which is made if need be.

    This is all that was trained where the backbone is frozen. Where it learns too (``stage="all"``) a warning says so:
    ``model.save_pretrained(folder)`` keeps everything, and :func:`from_pretrained` loads it.

    With a sharded model (FSDP2) every process has to call it; the first one writes.
    """
    tensors = {}
    for name, tensor in learnt_tensors(model).items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        tensors[name] = whole.detach().to("cpu").contiguous()
    pointer = pointer_of(model)
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    folder = make_folder(folder)
    digest = _digest(tensors)
    replace_file(folder / TENSORS, lambda path: save_file(tensors, path, metadata={"format": "pt", "tensors": digest}))
    base = {BASE: name} if (name := _base_name(model)) else {}
    fields = {"base_model": _shape(model), **base, "tensors": digest, SCALES: scales_of(model)}
    _attached(model)[1].config.save(folder, **fields)
    if pointer is not None:
        pointer.save(folder)
    ours = {id(weight) for weight in learnt_tensors(model).values()}
    others = [
        name
        for name, weight in model.named_parameters()
        if weight.requires_grad and id(weight) not in ours and HEAD not in name.split(".")
    ]
    if others and not any((folder / name).is_file() for name in WHOLE):
        warnings.warn(
            f"{folder} has the adapters alone, and {len(others)} other weights of the model are trained too, such as "
            f"{others[0]}; model.save_pretrained(folder) keeps those, and rosatune.hf.from_pretrained loads them",
            stacklevel=2,
        )


def load_adapter(model: Any, folder: Folder, stage: Union[str, None] = "adapter", pointer: bool = True) -> Any:
    """Read adapters from a folder into a model of the shape they were trained with. Returns the model.

    A pointer in the folder (`pointer.json`) is attached too, in place of one that the model has; not with
    ``pointer=False``.

    A model without adapters gets them attached as the folder says, and `stage` set. One that has adapters must have
    been attached with the same options, except for those that say how an adapter starts and learns. A model of another
    name than the one the adapters were trained with is worth a warning.
    """
    folder = Path(folder)
    config, fields = read_file(folder)
    for name, kind in (("base_model", dict), ("tensors", str)):
        if not isinstance(fields.get(name), kind):
            raise AdapterError(f"{folder / CONFIG_FILE}: the field {name!r} is missing or not a {kind.__name__}")
    here = _shape(model)
    for name, saved in fields["base_model"].items():
        if saved != here.get(name):
            raise AdapterError(
                f"{folder / CONFIG_FILE}: the adapter was trained for a model with {name} {saved!r}, "
                f"this model has {here.get(name)!r}"
            )
    tensors = _read_tensors(folder / TENSORS, fields["tensors"])
    try:
        scales = checked(fields.get(SCALES), here["num_hidden_layers"])
    except ValueError as error:
        raise AdapterError(f"{folder / CONFIG_FILE}: {error}") from error
    found = Pointer.load(folder) if pointer and (folder / POINTER_FILE).is_file() else None
    fresh = attachment(model) is None
    if fresh:
        try:
            attach(model, config, stage=stage, scales=scales)
        except (TypeError, ValueError) as error:
            raise AdapterError(f"{folder / CONFIG_FILE}: cannot be attached to this model: {error}") from error
    else:
        _compare(folder / CONFIG_FILE, config, _attached(model)[1].config)
    try:
        _fill(model, tensors, folder / TENSORS)
        for layer, adapter in adapters(model).items():
            adapter.scale = scales[layer]
        record(model)
    except BaseException:
        if fresh:
            detach(model)
        raise
    if found is not None:
        if pointer_of(model) is not None:
            detach_pointer(model)
        attach_pointer(model, found)
    trained, used = fields.get(BASE), _base_name(model)
    # A run that trained the whole model saves it beside the adapter.
    if trained and used and not _is_named(used, _last_part(trained)) and Path(used).resolve() != folder.resolve():
        warnings.warn(
            f"{folder}: the adapter was trained with the model {trained}, and is loaded into {used}; "
            f"with another model it reads at random",
            stacklevel=2,
        )
    return model


def from_pretrained(folder: Folder, stage: Union[str, None] = "adapter", **options: Any) -> Any:
    """Load a model that was saved, adapters and all, with ``model.save_pretrained(folder)`` (as ``Trainer`` does).

    `options` go to ``AutoModelForCausalLM.from_pretrained``. A model whose backbone was trained needs this; where only
    the adapters were, :func:`save_adapter` and :func:`load_adapter` are smaller.
    """
    from transformers import AutoModelForCausalLM

    folder = Path(folder)
    if not folder.is_dir():
        raise AdapterError(f"{folder}: no such folder; name one that model.save_pretrained wrote")
    with _expecting_adapters():
        model = AutoModelForCausalLM.from_pretrained(folder, **options)
    saved, pointer = getattr(model.config, "rosatune", None), getattr(model.config, RECORD, None)
    if not isinstance(saved, dict) and not isinstance(pointer, dict):
        raise AdapterError(
            f"{folder / 'config.json'}: has neither an entry 'rosatune' nor '{RECORD}': no adapters and no pointer "
            f"were saved with the model"
        )
    files, index = [WHOLE[0]], folder / WHOLE[1]
    if index.is_file():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    tensors, numbers = {}, {}
    for file in files:
        with safe_open(folder / file, framework="pt") as store:
            for name in store.keys():
                place, _, rest = name.partition(".rosa.")
                if rest:
                    tensors[f"layers.{place.rpartition('.')[2]}.{rest}"] = store.get_tensor(name)
                elif name.startswith(f"{SEEN}."):
                    tensors[f"seen.{name.partition('.')[2]}"] = store.get_tensor(name)
                elif name.startswith(f"{HEAD}."):
                    numbers[name.partition(".")[2]] = store.get_tensor(name).tolist()
    if isinstance(pointer, dict):
        if "slopes" in numbers:  # as a tensor they have no names
            numbers["slopes"] = dict(zip(FEATURES, numbers["slopes"]))
        try:
            attach_pointer(model, Pointer.from_dict({**pointer, **numbers}))
        except ValueError as error:
            raise AdapterError(f"{folder / 'config.json'}: the entry '{RECORD}': {error}") from error
    if not isinstance(saved, dict):
        return model
    del model.config.rosatune
    options = {name: value for name, value in saved.items() if name != SCALES}
    try:
        scales = checked(saved.get(SCALES), model.config.num_hidden_layers)
        attach(model, RosaConfig.from_dict(options), stage=stage, scales=scales)
    except (TypeError, ValueError) as error:
        raise AdapterError(f"{folder / 'config.json'}: the entry 'rosatune' cannot be attached: {error}") from error
    _fill(model, tensors, folder / files[0])
    return model


@contextmanager
def _expecting_adapters() -> Iterator[None]:
    """While it lasts, loading a model does not report tensors of adapters and of a pointer as unexpected.

    They are read afterwards. Outside of this the report is right: a model loaded without its adapters is not whole.
    """
    before = PreTrainedModel._keys_to_ignore_on_load_unexpected
    PreTrainedModel._keys_to_ignore_on_load_unexpected = [*(before or []), r"\.rosa\.", rf"^({HEAD}|{SEEN})\."]
    try:
        yield
    finally:
        PreTrainedModel._keys_to_ignore_on_load_unexpected = before


def _base_name(model: Any) -> str:
    """The name or path that a model was loaded by; empty for one made on the spot."""
    return getattr(stack_of(model).config, "_name_or_path", "") or ""


def _last_part(name: str) -> str:
    """What is the same of a model's name on the Hub, of its folder in the Hub's cache, and of a copy elsewhere."""
    cached = re.search(r"models--[^/]*?--([^/]+)/snapshots/", name)
    return cached[1] if cached else name.rstrip("/").rpartition("/")[2]


def _is_named(model: str, name: str) -> bool:
    """Whether a model that was loaded by a name or path may be the one of a name.

    Of a GGUF file transformers keeps the folder, whose name tells nothing; the files in it are named after models.
    """
    files = [file.stem.lower() for file in Path(model).glob("*.gguf")] if Path(model).is_dir() else []
    return _last_part(model) == name or any(file.startswith(name.lower().removesuffix(".gguf")) for file in files)


def _shape(model: Any) -> dict[str, Any]:
    config = stack_of(model).config
    return {
        "model_type": config.model_type,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
    }


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as store:
            saved = (store.metadata() or {}).get("tensors")
            if saved != digest:
                raise AdapterError(
                    f"{path}: belongs to another {CONFIG_FILE} (its digest is {saved}, the one named there {digest}); "
                    f"was a save interrupted, or a file exchanged?"
                )
            return {name: store.get_tensor(name) for name in store.keys()}
    except FileNotFoundError:
        raise AdapterError(f"{path}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{path}: cannot be read: {error}") from error


def _compare(path: Path, saved: RosaConfig, here: RosaConfig) -> None:
    """Refuse adapters that do not compute the same. How they start and learn may differ; tensors are compared later."""
    free = ("qk", "e_start", "units", "v_start", "v_grad")
    for name, value in saved.part("model", "source", "layer", "retrieval").items():
        if name == "delay":
            value, other = saved.delay_steps, here.delay_steps
        else:
            other = getattr(here, name)
        if name not in free and value != other:
            raise AdapterError(
                f"{path}: {name} is {value!r} there and {other!r} in this model; "
                f"detach the adapters first, or attach them with the same options"
            )


def _fill(model: Any, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy tensors into the adapters, once all of them are known to fit."""
    places = learnt_tensors(model)
    missing, extra = sorted(places.keys() - tensors.keys()), sorted(tensors.keys() - places.keys())
    if missing:
        raise AdapterError(f"{path}: {len(missing)} tensors are missing, such as {missing[0]}")
    if extra:
        raise AdapterError(f"{path}: {len(extra)} tensors have no place in this model, such as {extra[0]}")
    for name, place in places.items():
        if hasattr(place, "full_tensor"):
            raise AdapterError(f"{path}: cannot be loaded into a sharded model; load the adapter before sharding")
        if place.shape != tensors[name].shape:
            raise AdapterError(f"{path}: {name} is {list(tensors[name].shape)}, this model's {list(place.shape)}")
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(tensors[name])
