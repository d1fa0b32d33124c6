"""Model and adapter folders as the packages really write them, read by the C program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import program
import pytest
import tiny
import torch

import rosatune.hf


def info(*words: Any) -> Any:
    return json.loads(program.succeed("info", *words, "--json", "--tensors"))


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "60KB"}])
def test_models(tmp_path: Path, kind: str, tied: bool, shards: dict) -> None:
    model = tiny.model(kind, tie_word_embeddings=tied, eos_token_id=[3, 4])
    model.save_pretrained(tmp_path, **shards)
    found = info(tmp_path)
    assert found["architecture"] == kind
    assert found["parameters"] == model.num_parameters()
    assert found["tied"] is tied and found["eos"] == [3, 4] and found["bos"] == 1
    assert (len(found["files"]) > 1) == bool(shards)
    names = {entry["name"]: entry["shape"] for entry in found["tensors"]}
    assert names == {name: list(weight.shape) for name, weight in model.named_parameters()}


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(fusion="pre"),
        dict(qk="shared", source="own"),
        dict(qk="separate", policy="literal", fold=False, max_match=5, source="own+embeddings"),
        dict(layers=[0, 2], bits=4),
        dict(first_global_layers=1, sinks=3, bits=16),
        dict(first_global_layers=2, fusion="pre", qk="shared", dtype=torch.bfloat16),
        dict(window=0, qk_grad="soft", slope=0.5, suffix=0.25, explore=0.1, e_start=0.1),
    ],
)
def test_adapters(tmp_path: Path, kind: str, options: dict) -> None:
    options = {"window": 8, "bits": 8, **options}
    model = tiny.model(kind)
    model.save_pretrained(tmp_path / "model")
    rosatune.hf.attach(model, **options)
    rosatune.hf.save_adapter(model, tmp_path / "adapter")
    made = rosatune.hf.adapters(model)
    weights = [weight for adapter in made.values() for weight in adapter.parameters()]
    found = info(tmp_path / "model", "--adapter", tmp_path / "adapter")
    adapter = found["adapter"]
    assert adapter["parameters"] == sum(weight.numel() for weight in weights)
    assert adapter["bytes"] == sum(weight.numel() * weight.element_size() for weight in weights)
    assert adapter["layers"] == len(made) and adapter["bits"] == options["bits"]
    assert adapter["fusion"] == options.get("fusion", "post")
    assert found["global_layers"] == options.get("first_global_layers", 0)
    assert found["sinks"] == options.get("sinks", 4 if options["window"] else 0) and found["window"] == (options["window"] or 2048)


def refusal(*words: Any) -> str:
    done = program.run("info", *words)
    assert done.returncode == 1 and not done.stdout
    return done.stderr.decode()


def test_adapters_that_do_not_fit(tmp_path: Path) -> None:
    model = tiny.attached("llama")
    rosatune.hf.save_adapter(model, tmp_path / "adapter")
    for name, kind, change in (
        ("model_type", "qwen3", {}),
        ("num_hidden_layers", "llama", dict(num_hidden_layers=2)),
        ("hidden_size", "llama", dict(hidden_size=32)),
    ):
        tiny.model(kind, **change).save_pretrained(tmp_path / name)
        assert f"base_model.{name}" in refusal(tmp_path / name, "--adapter", tmp_path / "adapter")
    tiny.model("llama").save_pretrained(tmp_path / "model")
    rosatune.hf.save_adapter(tiny.attached("llama", bits=4, fusion="pre"), tmp_path / "other")
    (tmp_path / "other" / "adapter_config.json").rename(tmp_path / "adapter" / "adapter_config.json")
    assert "belongs to another" in refusal(tmp_path / "model", "--adapter", tmp_path / "adapter")


def test_adapters_inside_the_model(tmp_path: Path) -> None:
    tiny.attached("llama").save_pretrained(tmp_path)
    assert "config.json: rosatune: adapters were saved inside the model" in refusal(tmp_path)
