"""bench/recipe.py: the steps by which an adapter is made anew, and what is held out."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

FOLDERS = ("novels", "code", "held-novels", "held-code")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    (tmp_path / "novels" / "a.txt").write_text("A novel.")
    given = [word for name in FOLDERS for word in (f"--{name}", str(tmp_path / name))]
    return ["--model", "x.gguf", *given, "--out", str(tmp_path / "made")]


@pytest.mark.parametrize("name, quotes", [("smollm2-135m", False), ("qwen2.5-coder-1.5b", True)])
def test_steps(bench_script: Any, words: list[str], capsys: Any, name: str, quotes: bool) -> None:
    recipe, memory = bench_script("recipe"), bench_script("memory")
    assert recipe.main([name, *words, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("bench/quotes.py") for line in lines) == quotes
    assert not Path(words[-1]).exists(), "nothing was done"
    runs, run, _, options = recipe.RECIPES[name]
    found = {each["name"]: memory.Run(**each) for each in memory.json.loads((recipe.HERE / runs).read_text())}
    assert memory.saves(found[run]), "or there is nothing to use"
    trained = lines[-1].partition("--train ")[2].partition(" --fit")[0]
    assert all(f"{kind}=" in trained for kind in found[run].mix)
    assert "--fit" in lines[-1] and "--valid" in lines[-1]


def test_another_recipe_is_other_options(
    bench_script: Any, words: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instructions of other distances and a run with a seen-token head need no other steps."""
    recipe, memory = bench_script("recipe"), bench_script("memory")
    runs, _, _, measure = recipe.RECIPES["qwen2.5-coder-1.5b"]
    options = ["--documents", "100", "--nearest", "500", "--farthest", "16000", "--facts", "80", "--several", "0.25"]
    made = runs, "LoRA, ROSA, tokens seen", options, measure
    monkeypatch.setitem(recipe.RECIPES, "qwen2.5-coder-1.5b", made)
    assert recipe.main(["qwen2.5-coder-1.5b", *words, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {each["name"]: memory.Run(**each) for each in memory.json.loads((recipe.HERE / runs).read_text())}
    assert memory.saves(found[made[1]]) and f"--only '{made[1]}'" in lines[-1]
    assert any(line.startswith("bench/quotes.py") and "--nearest 500" in line for line in lines)


def test_a_step_is_whole_or_is_done_again(
    bench_script: Any, words: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, out, done = bench_script("recipe"), Path(words[-1]), []

    def run(command: list[str], check: bool) -> Any:
        done.append(Path(command[1]).name)
        if done[-1] == "token_ids.py":
            target = Path(command[3])
            target.mkdir(parents=True)
            for i in range(3):
                np.save(target / f"{i}.npy", np.arange(4))
        return subprocess.CompletedProcess(command, 1 if len(done) == 2 else 0)

    monkeypatch.setattr(recipe.subprocess, "run", run)
    with pytest.raises(SystemExit, match="token_ids.py did not finish"):
        recipe.main(["smollm2-135m", *words])
    assert sorted(x.name for x in (out / "ids").iterdir()) == ["code.part", "novels"]
    assert recipe.main(["smollm2-135m", *words]) == 0
    assert "novels: is there" in capsys.readouterr().out
    assert done == ["token_ids.py"] * 5 + ["memory.py"]
    for kind in ("novels", "code"):
        fit, valid = ({x.name for x in (out / word / kind).iterdir()} for word in ("fit", "valid"))
        assert fit == {"0.npy", "2.npy"} and valid == {"1.npy"}, "what fits the pointer does not judge it"


def test_bad_input(bench_script: Any, words: list[str], tmp_path: Path) -> None:
    recipe = bench_script("recipe")
    with pytest.raises(SystemExit, match="nowhere: is no folder"):
        recipe.main(["smollm2-135m", *words, "--code", str(tmp_path / "nowhere")])
    (tmp_path / "one").mkdir()
    np.save(tmp_path / "one" / "only.npy", np.arange(4))
    with pytest.raises(SystemExit, match="two texts or more"):
        recipe.share(tmp_path / "one", tmp_path / "target", 1)
