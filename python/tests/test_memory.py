"""bench/memory.py at toy size: every kind of run, resuming, what it reports."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))
import rosatune  # noqa: E402
import tiny  # noqa: E402
from tiny import one_thread  # noqa: E402, F401

BENCH = Path(__file__).parents[2] / "bench"

SMALL = dict(steps=3, batch=2, length=64, window=8, sinks=1, warmup=1, pointer=0)
RUNS: list[dict[str, Any]] = [
    dict(name="untrained", **{**SMALL, "steps": 0}),
    dict(name="window", asks=["window trained alike=as it is"], **SMALL),
    dict(name="global", attention="global", **SMALL),
    dict(name="chain", adapter=dict(chain=2), mix=dict(text=0.5, code=0.5), controls=["window", "global"], **SMALL),
    dict(name="neighbours", adapter=dict(chain=1, layers="0-2:2"), offsets=[0, -1, 1], train="lora", rank=2, **SMALL),
    dict(name="own place", adapter={}, reads="self", train="adapter", attention="global", **SMALL),
    dict(name="lora", adapter=dict(chain=2), asks=["adapter", "random", "adapter+pointer"], train="lora", **SMALL),
    dict(name="embeddings", adapter=dict(source="embeddings", bits=16), train="adapter", **SMALL),
    dict(name="broken", adapter={}, rate_backbone=1e30, rate_matrix=1e30, **SMALL),
]


@pytest.fixture(scope="module")
def memory(bench_script: Any) -> Any:
    return bench_script("memory")


def shard(path: Path, documents: list[np.ndarray]) -> None:
    """What `rosatune data pack` writes, but for the fingerprint and the checksum."""
    tokens = np.concatenate(documents).astype(np.uint16)
    starts = np.cumsum([0, *map(len, documents)]).astype(np.uint64)
    header = struct.pack("<8sII6Q", b"rosatok\n", 2, 2, len(tokens), len(documents), tiny.VOCABULARY, 0, 0, 0)
    data = tokens.tobytes()
    path.write_bytes(header + data + b"\0" * (-len(data) % 8) + starts.tobytes())


@pytest.fixture(scope="module")
def given(bench_script: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("memory")
    tiny.model().save_pretrained(folder / "model")
    rng = np.random.default_rng(1)

    def text(steps: int) -> np.ndarray:
        return np.tile(rng.integers(2, tiny.VOCABULARY, 40), steps // 40 + 1)[:steps].astype(np.uint16)

    (folder / "books").mkdir()
    for name in "ab":
        np.save(folder / "books" / f"{name}.npy", text(400))
    shard(folder / "code.tokens", [text(201), text(150)])
    np.save(folder / "fit.npy", text(200))
    (folder / "runs.json").write_text(json.dumps(RUNS))
    words = ["--model", str(folder / "model"), "--runs", str(folder / "runs.json"), "--device", "cpu"]
    words += ["--train", f"text={folder / 'books'}", f"code={folder / 'code.tokens'}", "--pieces", "4"]
    words += ["--fit", f"text={folder / 'fit.npy'}"]
    words += ["--valid", f"text={folder / 'books'}", f"code={folder / 'code.tokens'}"]
    lines = [{"prompts": {"vocabulary": tiny.VOCABULARY, "ends": [1]}}]
    lines += [{"task": "t", "example": i, "sum": str(i), "metric": "match-all", "ids": text(50).tolist(),
               "tokens": 3} for i in range(2)]
    bench_script("answers").pack(map(json.dumps, lines), folder / "asked.xz")
    words += ["--prompts", str(folder / "asked.xz"), "--answers", str(folder / "answers")]
    return [*words, "--save", str(folder / "saved"), "--out", str(folder / "out.json")]


def test_every_kind_of_run(memory: Any, given: list[str], capsys: Any) -> None:
    assert memory.main([*given, "--only", *(run["name"] for run in RUNS[:4])]) == 0
    out = Path(given[-1])
    first = json.loads(out.read_text())
    assert [entry["run"]["name"] for entry in first] == [run["name"] for run in RUNS[:4]]
    assert memory.main([*given, "--minutes", "1e9"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("is in") == 4, "what is there is not done again"
    found = {entry["run"]["name"]: entry for entry in json.loads(out.read_text())}
    assert [found[entry["run"]["name"]] for entry in first] == first
    expected = {
        "untrained": {"window", "window + pointer", "global"},
        "window": {"window", "window + pointer"},
        "global": {"global"},
        "chain": {"adapter", "adapter + pointer", "off", "random"},
        "neighbours": {"adapter", "adapter + pointer", "off", "random"},
        "own place": {"own place"},
        "lora": {"adapter", "adapter + pointer", "off", "random"},
        "embeddings": {"adapter", "adapter + pointer", "off", "random"},
    }
    for name, conditions in expected.items():
        assert "error" not in found[name], found[name].get("error")
        assert set(found[name]["kinds"]["text"]["conditions"]) == conditions, name
        assert set(found[name]["kinds"]) == {"text", "code"}
        row = found[name]["kinds"]["text"]["conditions"][next(iter(conditions))]
        assert row["ppl"] > 1 and row["far"] > 0 and row["far_error"] >= 0
    assert "the loss is nan at step" in found["broken"]["error"]
    saved = Path(given[-3]) / "embeddings"
    assert [x.name for x in saved.parent.iterdir()] == ["embeddings"], "the backbone of the others was not frozen"
    assert rosatune.RosaConfig.load(saved).source == "embeddings"
    assert rosatune.Pointer.load(saved).delay == SMALL["window"]
    asked = {"window": {"window trained alike"}, "lora": {"adapter", "random", "adapter+pointer"}}
    files = Path(given[given.index("--answers") + 1])
    assert {x.name for x in files.iterdir()} == {f"{name}.asked.jsonl" for name in asked}
    for name, conditions in asked.items():
        rows = [json.loads(line) for line in (files / f"{name}.asked.jsonl").read_text().splitlines()[1:]]
        assert {row["condition"] for row in rows} == conditions and len(rows) == 2 * len(conditions)
        assert all(1 <= len(row["ids"]) <= 3 for row in rows)
    shares = memory.given_back(list(found.values()), found["chain"], "text", "adapter")
    window, whole, here = (
        found[name]["kinds"]["text"]["conditions"][condition]["far"]
        for name, condition in (("window", "window"), ("global", "global"), ("chain", "adapter"))
    )
    assert shares[0][0] == pytest.approx((window - here) / (window - whole), rel=1e-6) and shares[0][1] >= 0
    assert memory.main([*given, "--table"]) == 0
    table = capsys.readouterr().out
    assert "chain, text: adapter + pointer" in table and "broken: failed, FloatingPointError" in table
    assert memory.main([*given, "--only", "broken", "--minutes", "0"]) == 0
    assert "skipped, needs about" in capsys.readouterr().out


def test_the_same_numbers_as_recall(memory: Any, given: list[str]) -> None:
    """The conditions of an adapter as rosatune.recall measures them."""
    from rosatune import hf

    bench = memory.Bench(memory.parse([*given, "--pieces", "99"]))
    run = memory.Run(name="x", adapter=dict(chain=2), **{**SMALL, "pointer": None})
    model = bench.model(run)
    tiny.stir(model)
    found = memory.judge(bench, run, model, print)["text"].conditions
    texts = {name: np.array(ids) for name, ids in bench.valid["text"].items()}
    expected = rosatune.recall(model.eval(), texts, context=64, batch=2)
    for condition in ("adapter", "off", "random"):
        for number in ("far", "rest", "ppl"):
            here, there = found[condition][number], expected.conditions[condition][number]
            assert here == pytest.approx(there, rel=1e-4), condition
    assert hf.attachment(model).config.chain == 2


@pytest.mark.parametrize("name", ["memory_runs.json", "memory_runs_qwen.json"])
def test_runs_of_the_list_are_valid(memory: Any, name: str) -> None:
    fields = json.loads((BENCH / name).read_text())
    runs = [memory.Run(**each) for each in fields]
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    for run in runs:
        run.config()
        assert all(control in names for control in run.controls), run.name
        for control, attention in zip(run.controls, ("window", "global")):
            other = runs[names.index(control)]
            assert other.attention == attention and (other.adapter is None or other.reads == "self")
            for alike in ("steps", "batch", "length", "window", "mix", "rate_backbone"):
                assert getattr(other, alike) == getattr(run, alike), (run.name, alike)


def test_a_run_that_reads_neighbours_is_not_asked(memory: Any) -> None:
    with pytest.raises(ValueError, match="no neighbours"):
        memory.Run(name="x", adapter={}, offsets=[0, 1], asks=["adapter"])


def test_pieces_are_spread_over_the_texts(memory: Any) -> None:
    texts = {f"book {i}": np.arange(10 * i, 10 * i + 100) for i in range(4)}
    found = memory.token_ids.pieces_of(texts, 10, 6)
    assert len(found) == 6 and {name for name, _ in found} == set(texts)
    assert [len(ids) for _, ids in found] == [10] * 6
    assert len(memory.token_ids.pieces_of(texts, 10, 99)) == 4 * memory.token_ids.EACH
