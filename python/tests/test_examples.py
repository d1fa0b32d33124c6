"""The examples run, and their models do what the text around them says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "quickstart.py"))
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"repeated half (\S+)", printed)]
    assert losses[0] > 3.5 and max(losses[2:]) < 1
    (text,), (continued,) = (re.findall(rf"{name} +(\[.*\])", printed) for name in ("the text", "continued"))
    assert text == continued
    assert (tmp_path / "quickstart-model" / "model.safetensors").is_file()


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines, a third of the steps."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    (lines,) = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(lines.replace("range(61)", "range(21)"), names)
    assert names["step"] == 20 and names["loss"].item() < 1
    assert (tmp_path / "quickstart-model" / "model.safetensors").is_file()


def test_python_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """The steps for a model of transformers, with a tiny model, texts and numbers to fit."""
    lines = (EXAMPLES.parent / "python" / "README.md").read_text()
    blocks = re.findall(r"```python\n(import torch, rosatune.hf.*?|[^>]*?)```", lines, re.S)
    assert len(blocks) == 6
    monkeypatch.chdir(tmp_path)
    tiny.folder_with_tokenizer(tmp_path / "model")
    for name in ("novel.txt", "unseen.txt", "other.txt"):
        Path(name).write_text("".join(rng.choice(["ba", "do ", "ke", "li", "mu ", "sa"], 300)))
    code = "\n".join(blocks)
    smaller = {"HuggingFaceTB/SmolLM2-135M": "model", "range(500)": "range(2)"}
    smaller.update({"4096": "90", "=256": "=8", "=100": "=4"})
    for large, small in smaller.items():
        assert large in code
        code = code.replace(large, small)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["step"] == 1 and names["text"].shape[1] == names["prompt"]["input_ids"].shape[1] + 4
    assert sorted(path.name for path in Path("my-adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "pointer.json",
    ]


def test_pointer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pointer.py", "--window", "16", "--context", "128"])
    runpy.run_path(str(EXAMPLES / "pointer.py"))
    printed = capsys.readouterr().out
    far = {name: float(loss) for name, loss in re.findall(r"^(\w+) +\S+ +(\S+) +\S+$", printed, re.M)}
    assert far["window"] > 5 and far["pointer"] < far["window"] - 2
    assert "attached and as a processor alike: True" in printed
    assert (tmp_path / "pointer.json").is_file()
