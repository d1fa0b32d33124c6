"""The examples run, and their models do what the text around them says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import one_thread  # noqa: E402, F401

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


def test_pointer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pointer.py", "--window", "16", "--context", "128"])
    runpy.run_path(str(EXAMPLES / "pointer.py"))
    printed = capsys.readouterr().out
    far = {name: float(loss) for name, loss in re.findall(r"^(\w+) +\S+ +(\S+) +\S+$", printed, re.M)}
    assert far["window"] > 5 and far["pointer"] < far["window"] - 2
    assert "attached and as a processor alike: True" in printed
    assert (tmp_path / "pointer.json").is_file()
