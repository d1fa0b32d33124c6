"""bench/tables.py: data are taken again only where the same command made all of them; what the program is given."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def tables(bench_script: Any) -> Any:
    return bench_script("tables")


def test_data_of_a_command_that_was_stopped(tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A done, B stopped, A again: what B left is not taken as A's."""
    made: list[str] = []

    def make(command: list[str], check: bool) -> subprocess.CompletedProcess:
        number = command[command.index("--examples") + 1]
        made.append(number)
        (tmp_path / "task.jsonl").write_text(number)
        if number == "2":
            raise KeyboardInterrupt
        return subprocess.CompletedProcess(command, 0)

    def data(number: str) -> str:
        args = argparse.Namespace(table="short", package="x", examples=[number], task=None)
        (file,) = tables.make_data(args, tmp_path)
        return Path(file).read_text()

    monkeypatch.setattr(tables.subprocess, "run", make)
    assert data("1") == data("1") == "1" and made == ["1"]
    with pytest.raises(KeyboardInterrupt):
        data("2")
    assert data("1") == "1" and made == ["1", "2", "1"]


def test_a_window_without_an_adapter(tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess:
        called.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(tables.subprocess, "run", run)
    monkeypatch.setattr(tables.common, "call", lambda *words: "")
    monkeypatch.setattr(tables, "make_data", lambda *args: ["task.jsonl"])
    words = ["tables.py", "short", "OLMO", "--model", "m.gguf", "--adapter", "none", "--window", "256", "--sinks", "4"]
    monkeypatch.setattr(sys, "argv", words)
    assert tables.main() == 0
    (command,) = called
    assert command[command.index("--window") + 1] == "256" and command[command.index("--sinks") + 1] == "4"
    assert "--adapter" not in command
