"""Adapters on disk: a folder with `adapter_config.json` and `adapter_model.safetensors`.

The configuration says how the adapters were attached and to what shape of model; the tensors are named
`layers.<number>.<parameter>`. Each file is written beside its place and then moved there, so a failed save leaves the
older file. As there are two of them, both carry a digest of the tensors: a pair torn apart by an interruption, or mixed
by hand, is noticed when it is loaded. Nothing is changed in a model before everything read has been found to fit.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Union

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .. import __version__
from ..errors import Error
from .attach import adapters, attach, attachment, detach, stack_of

__all__ = ["AdapterError", "from_pretrained", "load_adapter", "save_adapter"]

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
FORMAT = 1

# Options that say how an adapter starts and learns, not what it computes: these may differ from the saved ones.
LEARNING = {"qk", "e_start", "qk_grad", "credit", "key_credit", "suffix", "explore", "flip_share", "slope"}

Folder = Union[str, "os.PathLike[str]"]


class AdapterError(Error, ValueError):
    """A saved adapter is damaged, or does not fit the model."""


def save_adapter(model: Any, folder: Folder) -> None:
    """Write a model's adapters to a folder, which is made if need be.

    With a sharded model (FSDP2) every process has to call it; the first one writes.
    """
    tensors = {}
    for layer, adapter in adapters(model).items():
        for name, tensor in _tensors(adapter).items():
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            tensors[f"layers.{layer}.{name}"] = whole.detach().to("cpu").contiguous()
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    digest = _digest(tensors)
    config = {
        "format": FORMAT,
        "rosatune_version": __version__,
        "base_model": _shape(model),
        "options": attachment(model).options,
        "tensors": digest,
    }
    _write(folder / TENSORS, lambda path: save_file(tensors, path, metadata={"format": "pt", "tensors": digest}))
    _write(folder / CONFIG, lambda path: Path(path).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8"))


def load_adapter(model: Any, folder: Folder, stage: Union[str, None] = "adapter") -> Any:
    """Read adapters from a folder into a model of the shape they were trained with. Returns the model.

    A model without adapters gets them attached as the folder says, and `stage` set. One that has adapters must have
    been attached with the same options, but for those of learning.
    """
    folder = Path(folder)
    config = _read_config(folder / CONFIG)
    here = _shape(model)
    for name, saved in config["base_model"].items():
        if saved != here.get(name):
            raise AdapterError(
                f"{folder / CONFIG}: the adapter was trained for a model with {name} {saved!r}, "
                f"this model has {here.get(name)!r}"
            )
    tensors = _read_tensors(folder / TENSORS, config["tensors"])
    fresh = attachment(model) is None
    if fresh:
        try:
            attach(model, stage=stage, **config["options"])
        except (TypeError, ValueError) as error:
            raise AdapterError(f"{folder / CONFIG}: the options cannot be attached: {error}") from error
    else:
        _compare_options(folder / CONFIG, config["options"], attachment(model).options)
    try:
        _fill(model, tensors, folder / TENSORS)
    except BaseException:
        if fresh:
            detach(model)
        raise
    return model


def from_pretrained(folder: Folder, stage: Union[str, None] = "adapter", **options: Any) -> Any:
    """Load a model that was saved, adapters and all, with ``model.save_pretrained(folder)`` (as ``Trainer`` does).

    `options` go to ``AutoModelForCausalLM.from_pretrained``. A model whose backbone was trained needs this; where only
    the adapters were, :func:`save_adapter` and :func:`load_adapter` are smaller.
    """
    from transformers import AutoModelForCausalLM

    folder = Path(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    saved = getattr(model.config, "rosatune", None)
    if not isinstance(saved, dict):
        raise AdapterError(f"{folder / 'config.json'}: has no entry 'rosatune': no adapters were saved with the model")
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.is_file():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    tensors = {}
    for file in files:
        with safe_open(folder / file, framework="pt") as store:
            for name in store.keys():
                place, _, rest = name.partition(".rosa.")
                if rest:
                    tensors[f"layers.{place.rpartition('.')[2]}.{rest}"] = store.get_tensor(name)
    del model.config.rosatune
    attach(model, stage=stage, **saved)
    _fill(model, tensors, folder / files[0])
    return model


def _tensors(adapter: nn.Module) -> dict[str, Tensor]:
    """An adapter's tensors, each once: a shared projection has two names, of which the first is kept."""
    seen: set[int] = set()
    found = {}
    for name, tensor in adapter.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor
    return found


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
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _write(path: Path, write: Callable[[str], Any]) -> None:
    """Write beside the place, flush to disk, and move there."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    try:
        write(name)
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AdapterError(
            f"{path}: no such file; name a folder that rosatune.hf.save_adapter or `rosatune tune` wrote"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise AdapterError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise AdapterError(f"{path}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{path}: holds a {type(config).__name__}, not an object")
    version = config.get("format")
    if not isinstance(version, int) or version < 1:
        raise AdapterError(f"{path}: the field 'format' is {version!r}, not a version number")
    if version > FORMAT:
        raise AdapterError(
            f"{path}: is of format {version}, written by rosatune {config.get('rosatune_version')}; "
            f"this is rosatune {__version__}, which reads up to {FORMAT}: update it"
        )
    for name, kind in (("base_model", dict), ("options", dict), ("tensors", str)):
        if not isinstance(config.get(name), kind):
            raise AdapterError(f"{path}: the field {name!r} is missing or not a {kind.__name__}")
    return config


def _read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as store:
            saved = (store.metadata() or {}).get("tensors")
            if saved != digest:
                raise AdapterError(
                    f"{path}: belongs to another {CONFIG} (its digest is {saved}, the one named there {digest}); "
                    f"was a save interrupted, or a file exchanged?"
                )
            return {name: store.get_tensor(name) for name in store.keys()}
    except FileNotFoundError:
        raise AdapterError(f"{path}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{path}: cannot be read: {error}") from error


def _compare_options(path: Path, saved: dict, here: dict) -> None:
    for name in sorted((saved.keys() | here.keys()) - LEARNING):
        if saved.get(name) != here.get(name):
            raise AdapterError(
                f"{path}: {name} is {saved.get(name)!r} there and {here.get(name)!r} in this model; "
                f"detach the adapters first, or attach them with the same options"
            )


def _fill(model: Any, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy tensors into the adapters, once all of them are known to fit."""
    places = {
        f"layers.{layer}.{name}": place
        for layer, adapter in adapters(model).items()
        for name, place in _tensors(adapter).items()
    }
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
