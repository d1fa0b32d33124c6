"""bench/plan.py: what fits is run, in order of value; what was made is kept; the plan that is shipped can be run."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench" / "plan.py"
SHIPPED = json.loads((ROOT / "bench" / "plan_gpu.json").read_text())
TOY = [
    {"name": "first", "command": "echo one; echo two >&2", "seconds": 1},
    {"name": "long", "command": "echo never", "seconds": 100},
    {"name": "bad", "command": "echo reason; exit 7", "seconds": 1},
    {"name": "numbers", "command": "bash -c 'echo [1]; echo table >&2' x --json", "seconds": 1},
    {"name": "given", "command": 'python3 -c \'import sys; print(sys.executable)\'; env', "seconds": 1},
]


@pytest.fixture
def plan(bench_script: Any) -> Any:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield bench_script("plan")
    for number, handler in before.items():
        signal.signal(number, handler)


def words_of(folder: Path, entries: list[dict[str, Any]], *more: str) -> list[str]:
    (folder / "toy.json").write_text(json.dumps(entries))
    return [str(folder / "toy.json"), "--out", str(folder / "out"), "--caches", str(folder / "caches"), *more]


def states(folder: Path) -> dict[str, tuple[str, Any]]:
    return {row["name"]: (row["state"], row["code"]) for row in json.loads((folder / "out" / "plan.json").read_text())}


def test_what_fits_is_run(
    plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # PyTorch sets the first where it compiles
        monkeypatch.delenv(name, raising=False)
    assert plan.main(words_of(tmp_path, TOY, "--minutes", "1.5")) == 1, "one failed"
    said = capsys.readouterr().out
    assert (out / "first.log").read_text() == "one\ntwo\n" and not (out / "long.log").exists()
    assert (out / "numbers.json").read_text() == "[1]\n" and (out / "numbers.log").read_text() == "table\n"
    well = ("done", 0)
    assert states(tmp_path) == {"first": well, "bad": ("failed", 7), "numbers": well, "given": well}
    assert re.search(r"^long +left$", said, re.M) and re.search(r"^bad +failed, exit code 7", said, re.M)
    assert "    reason" in said, "the end of the log of what failed"
    given = (out / "given.log").read_text()
    assert Path(given.splitlines()[0]).parent == Path(sys.executable).parent
    assert f"TRITON_CACHE_DIR={tmp_path / 'caches' / 'triton'}" in given and f"PLAN_OUT={out}" in given
    assert f"TORCHINDUCTOR_CACHE_DIR={tmp_path / 'caches' / 'inductor'}" in given

    (out / "first.log").unlink()
    mended = [{**entry, "command": "echo well"} if entry["name"] in ("long", "bad") else entry for entry in TOY]
    assert plan.main(words_of(tmp_path, mended)) == 0, "there is time for all of it now"
    assert not (out / "first.log").exists() and "first                  done before" in capsys.readouterr().out
    assert set(states(tmp_path).values()) == {("done", 0)} and (out / "bad.log").read_text() == "well\n"


def test_choosing(plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert plan.main(words_of(tmp_path, TOY, "--from", "bad", "--only", "numbers", "first")) == 0
    assert list(states(tmp_path)) == ["numbers"]
    assert plan.main(words_of(tmp_path, TOY, "--list")) == 0
    lines = capsys.readouterr().out.splitlines()[-len(TOY) :]
    assert [line.split()[0] for line in lines] == [entry["name"] for entry in TOY]
    assert [line.endswith("  done") for line in lines] == [False, False, False, True, False]
    with pytest.raises(SystemExit, match="the plan has no 'tain'; it has first, long"):
        plan.main(words_of(tmp_path, TOY, "--only", "tain"))
    for wrong, said in (
        ([{"name": "x", "command": "true"}], "has no name, command or seconds"),
        ([TOY[0], TOY[0]], "'first' is used twice"),
        ([{**TOY[0], "name": "a/b"}], "cannot name a file"),
    ):
        with pytest.raises(SystemExit, match=said):
            plan.main(words_of(tmp_path, wrong))
    (tmp_path / "broken.json").write_text("[")
    with pytest.raises(SystemExit, match="broken.json: "):
        plan.main([str(tmp_path / "broken.json")])


def test_what_takes_too_long_is_stopped(
    plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "GRACE", 0.1)
    slow = [{"name": "slow", "command": "echo begun; exec sleep 600", "seconds": 0}, {**TOY[0], "seconds": 0}]
    assert plan.main(words_of(tmp_path, slow, "--minutes", "0.01")) == 3
    assert {name: state for name, (state, _) in states(tmp_path).items()} == {"slow": "stopped"}
    assert (tmp_path / "out" / "slow.log").read_text() == "begun\n"
    assert re.search("^first +left$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_made(tmp_path: Path, number: int) -> None:
    pid = tmp_path / "pid"
    deaf = f"trap '' INT; echo $$ > {pid}.part; mv {pid}.part {pid}; sleep 600 & wait"
    words = words_of(tmp_path, [TOY[0], {"name": "slow", "command": deaf, "seconds": 1}, TOY[4]])
    command = [sys.executable, "-c", f"import sys; sys.argv = {[str(SCRIPT), *words]!r}; sys.path[0] = "
               f"{str(SCRIPT.parent)!r}; import plan; plan.GRACE = 0.1; sys.exit(plan.main())"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not pid.exists():
            assert process.poll() is None
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert states(tmp_path) == {"first": ("done", 0), "slow": ("stopped", -signal.SIGKILL)}
    assert re.search("^given +left$", said, re.M)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def script_and_words(command: str) -> "tuple[str, list[str]]":
    """What a command runs at last, without what is set before it."""
    words = shlex.split(re.sub(r"\$\{\w+:\?[^}]*\}|\$\w+", "/nowhere", command))
    while "=" in words[0]:
        words.pop(0)
    if words[0] == "compute-sanitizer":
        words = words[words.index("python3") :]
    return words[0], words[1:]


@pytest.mark.parametrize("entry", SHIPPED, ids=[entry["name"] for entry in SHIPPED])
def test_the_commands_of_the_plan_can_be_parsed(
    plan: Any, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """On a machine without a GPU each says that it wants one, or a checkout or package, and none is used wrongly."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    script, words = script_and_words(entry["command"])
    assert 0 < entry["seconds"] <= 540, "or it fits into no call of ten minutes"
    if script == "python3":
        assert words[:3] == ["-m", "pytest", "-q"]
        names = [word for word in words[3:] if word.startswith("python/tests/")]
        for file, _, name in (word.partition("::") for word in names):
            assert f"def {name}" in (ROOT / file).read_text()
        return
    if not script.startswith("bench/"):
        done = subprocess.run(["bash", "-n", "-c", entry["command"]], check=False)
        assert done.returncode == 0 and ("/" not in script or os.access(ROOT / script, os.X_OK))
        return
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert isinstance(ended.value.code, str), capsys.readouterr().err
    assert re.search("no CUDA device|checkout|is missing", ended.value.code)
