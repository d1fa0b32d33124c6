"""bench/compare_soft.py: both sides look for the same, and what is missing is said."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

NAMED = "ROSATUNE_ROSA_SOFT"
CASES = [(7, 4, 1, 3), (50, 16, 4, 3), (200, 12, 4, 32), (120, 32, 16, 32), (40, 8, 2, 1)]  # steps, channels, M, cut


@pytest.fixture
def soft(bench_script: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delitem(sys.modules, "rosa_soft", raising=False)
    return bench_script("compare_soft")


def inputs_of(soft: Any, kind: str, steps: int, channels: int) -> list[Any]:
    """q, k and v with few different symbols, so that long suffixes come again; some of q are found nowhere."""
    q, k, v, _ = soft.make_inputs(kind, steps, channels, "cpu", torch.float32)
    again, own = torch.arange(steps) // 3 % 5, torch.arange(steps)[:, None] % 7 == 0
    return [torch.where(own, q, k[:, again]), k[:, again], v]


def by_definition(q: Any, k: Any, v: Any, bits: int, most: int) -> Any:
    """Of the positions a <= t the newest with the longest common suffix of q up to t and k up to a - 1."""
    q, k = ((x[0] > 0).unflatten(-1, (-1, bits)) for x in (q, k))
    y = torch.zeros_like(v)
    for route in range(q.shape[1]):
        channels = slice(route * bits, (route + 1) * bits)
        for t in range(len(q)):
            best, place = 0, None
            for a in range(1, t + 1):
                length = 0
                while length < min(most, a) and (q[t - length, route] == k[a - 1 - length, route]).all():
                    length += 1
                if length and length >= best:
                    best, place = length, a
            if place is not None:
                y[0, t, channels] = (v[0, place, channels] > 0) * 2.0 - 1
    return y


@pytest.mark.parametrize("kind", ["uniform", "text"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_our_settings_are_their_rule(soft: Any, kind: str, case: tuple[int, ...]) -> None:
    steps, channels, bits, most = case
    inputs = inputs_of(soft, kind, steps, channels)
    expected = by_definition(*inputs, bits, most)
    assert torch.equal(soft.ours(bits, most)(*inputs), expected)
    assert 0 < (expected == 0).float().mean() < 1 and (expected > 0).any() and (expected < 0).any()


@pytest.mark.skipif(NAMED not in os.environ, reason=f"{NAMED} names no checkout of wjie98/rosa_soft")
@pytest.mark.parametrize("kind", ["uniform", "text"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_their_reference_agrees(soft: Any, kind: str, case: tuple[int, ...]) -> None:
    steps, channels, bits, most = case
    module = soft.load(os.environ[NAMED])
    both = soft.theirs(module.rosa_soft_reference, bits, most), soft.ours(bits, most)
    assert soft.agreement(*both, inputs_of(soft, kind, steps, channels)) == 1


def test_both_ways_are_timed(soft: Any) -> None:
    *inputs, gy = soft.make_inputs("text", 40, 32, "cpu", torch.float32)
    clock = soft.Clock("cpu")
    assert all(x > 0 for x in soft.timed(soft.ours(4, 32, "linear"), inputs, gy, clock, 1))
    assert soft.timed(soft.ours(4, 32), inputs, None, clock, 1)[1] is None


def checkout(folder: Path, setup: str) -> Path:
    (folder / "rosa_soft").mkdir(parents=True)
    (folder / "rosa_soft" / "__init__.py").write_text("class BUILD_CAPABILITIES:\n    rosa_soft_cuda = True\n")
    (folder / "setup.py").write_text(setup)
    return folder


def test_what_is_missing_is_said(soft: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import cpp_extension

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        soft.main([str(tmp_path)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SystemExit, match="give the path of a checkout of wjie98/rosa_soft"):
        soft.main([str(tmp_path), "--build", str(tmp_path / "built")])
    broken = checkout(tmp_path / "broken", "raise SystemExit('no compiler')")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    with pytest.raises(SystemExit, match="no nvcc"):
        soft.main([str(broken), "--build", str(tmp_path / "built")])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="cannot be built here; setup.py ended with 1:\nno compiler"):
        soft.main([str(broken), "--build", str(tmp_path / "built")])
    good = checkout(tmp_path / "good", "import sys; assert sys.argv[1:] == ['build_ext', '--inplace']\n"
                    "open('rosa_soft/_C.x.so', 'w')")
    assert soft.built(good, tmp_path / "built").BUILD_CAPABILITIES.rosa_soft_cuda
    assert not list((good / "rosa_soft").glob("*.so")), "the checkout stays as it was"
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.delitem(sys.modules, "rosa_soft")
    assert soft.built(good, tmp_path / "built"), "it is built once"
