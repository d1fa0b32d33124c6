"""The C trainer against PyTorch: the same model, the same tokens, the gradient of every parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np
import program
import pytest
import tiny
import torch
from safetensors.numpy import load_file
from test_logits import save, saved_pair

import rosatune.hf


def ours(folder: Path, model: Path, adapter: Optional[Path], tokens: torch.Tensor, *words: Any) -> tuple[float, dict]:
    np.save(folder / "ids.npy", tokens.numpy())
    more = ("--adapter", adapter) if adapter else ()
    out = folder / "gradients.safetensors"
    said = program.succeed(
        "gradients", "--model", model, *more, "--tokens", folder / "ids.npy", "--out", out, "--threads", 2, *words
    )
    return float(said.split()[1]), load_file(out)


def theirs(model: Any, tokens: torch.Tensor) -> tuple[float, dict]:
    model.zero_grad()
    logits = model(tokens[:, :-1], use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    found = {}
    for name, parameter in model.named_parameters():
        if ".rosa." in name:
            name = "rosa.layers." + name.partition("layers.")[2].replace(".rosa.", ".")
        name = name.replace("rosa_seen.", "rosa.seen.")
        found[name] = parameter.grad.numpy()
    return float(loss.detach()), found


def compare(mine: tuple[float, dict], other: tuple[float, dict], tolerance: float = 1e-4) -> None:
    assert mine[0] == pytest.approx(other[0], rel=1e-5)
    assert mine[1].keys() == other[1].keys()
    wrong = []
    for name, gradient in other[1].items():
        # a single number, such as the bias of a gate, may be a small difference of large sums
        least = 1e-4 if gradient.size == 1 else 1e-12
        error = np.linalg.norm(mine[1][name] - gradient) / max(np.linalg.norm(gradient), least)
        print(f"{name:50} {np.linalg.norm(gradient):10.3e} {error:10.1e}")
        assert np.linalg.norm(gradient) > 0, name
        if not error < tolerance:
            wrong.append((name, error))
    assert not wrong


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("tied", (False, True))
def test_decoder(kind: str, tied: bool, tmp_path: Path) -> None:
    model = tiny.model(kind, tie_word_embeddings=tied)
    tokens = tiny.tokens(3, 90)
    compare(ours(tmp_path, save(model, tmp_path), None, tokens), theirs(model, tokens))


@pytest.mark.parametrize("options", (*tiny.SOURCES, dict(paper=False)), ids=str)
def test_sources(options: dict, tmp_path: Path) -> None:
    model = tiny.attached(**{"paper": True, **options})
    folder, adapter = saved_pair(model, tmp_path)
    rosatune.hf.set_stage(model, "all")
    tokens = tiny.tokens(2, 131)
    mine = ours(tmp_path, folder, adapter, tokens, "--v-grad", rosatune.hf.attachment(model).config.v_grad)
    compare(mine, theirs(model, tokens))


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("qk_grad", ("linear", "soft", "flips"))
@pytest.mark.parametrize(
    "options",
    (
        dict(fusion="post", sinks=4, window=16),
        dict(fusion="pre", window=8),
        dict(fusion="post", bits=4, qk="shared", sinks=70, window=70),
        dict(fusion="post", bits=16, sinks=2, first_global_layers=1),
    ),
)
def test_adapter(kind: str, qk_grad: str, options: dict, tmp_path: Path) -> None:
    model = tiny.attached(kind, qk_grad=qk_grad, paper=True, **options)
    folder, adapter = saved_pair(model, tmp_path)
    rosatune.hf.set_stage(model, "all")
    tokens = tiny.tokens(2, 131)
    rule = ("--qk-grad", qk_grad, "--v-grad", "sigmoid")
    mine = ours(tmp_path, folder, adapter, tokens, *rule)
    compare(mine, theirs(model, tokens))
    kept = ours(tmp_path, folder, adapter, tokens, *rule, "--keep")
    assert mine[0] == kept[0] and all(np.array_equal(mine[1][name], kept[1][name]) for name in mine[1])
