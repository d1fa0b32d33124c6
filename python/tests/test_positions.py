"""bench/positions.py on a tiny model: every condition, and means over all texts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import program  # noqa: E402
import tiny  # noqa: E402

import rosatune.hf  # noqa: E402
from rosatune import Pointer  # noqa: E402


def test_conditions_by_position(bench_script: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    plain, base = tiny.folder_with_tokenizer(tmp_path / "model")
    model = rosatune.hf.attach(plain, window=6, sinks=2)
    tiny.stir(model)
    rosatune.hf.save_adapter(model, tmp_path / "adapter")
    texts = [tmp_path / "one.txt", tmp_path / "two.txt"]
    texts[0].write_text("ba do ke li ba do ke mu sa te ro ba do ke li mu sa te ro " * 3)
    texts[1].write_text("te ro sa mu li ke do ba " * 5)
    words = ["--program", program.path(), "--model", base, "--adapter", tmp_path / "adapter", "--context", 32]
    words = [str(word) for word in [*words, "--positions", 2, "--json", *texts]]
    positions = bench_script("positions")
    assert positions.main(words) == 0
    rows = {row["condition"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["global", "bare window", "window", "adapter"]
    assert len({row["16"] for row in rows.values()}) == 4 and len({row["all"] for row in rows.values()}) == 4
    ppl = ["ppl", "--model", base, "--window", "6", "--sinks", "2", "--context", "32", "--json"]
    found = [json.loads(program.succeed(*ppl, "--file", text, "--positions", "2")) for text in texts]
    for at in range(2):
        parts = [each["positions"][at] for each in found]
        count = sum(part["tokens"] for part in parts)
        mean = sum(part["nll"] * part["tokens"] for part in parts) / count
        assert rows["window"][str(16 * at)] == pytest.approx(math.exp(mean), rel=1e-6)
        assert rows["window"]["tokens"][str(16 * at)] == count

    rosatune.hf.attach_pointer(model, Pointer([[0.5] * 13], 6))
    rosatune.hf.save_adapter(model, tmp_path / "adapter")
    assert positions.main(words) == 0
    again = {row["condition"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert set(again) - set(rows) == {"pointer", "adapter+pointer"}
    assert {name: again[name]["all"] for name in rows} == {name: row["all"] for name, row in rows.items()}
    assert again["pointer"]["16"] != rows["window"]["16"] != again["adapter+pointer"]["16"]
