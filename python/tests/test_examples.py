"""The example of the README runs, and its model does what the text around it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import one_thread  # noqa: E402, F401

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "quickstart.py"


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE))
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"repeated half (\S+)", printed)]
    assert losses[0] > 3.5 and max(losses[2:]) < 1
    (text,), (continued,) = (re.findall(rf"{name} +(\[.*\])", printed) for name in ("the text", "continued"))
    assert text == continued
    assert sorted(path.name for path in (tmp_path / "quickstart-adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
