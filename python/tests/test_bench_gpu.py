"""bench/gpu.py at toy size: every setting runs and is reported, and the count of operations is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rosatune import values  # noqa: E402


@pytest.fixture(scope="module")
def gpu(bench_script: Any) -> Any:
    return bench_script("gpu")


def test_every_setting_is_reported(
    gpu: Any, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "DEVICES", ("cpu",))  # as on a GPU
    words = ["train", "read", "decode", "--shapes", "tiny", "--sizes", "64x1", "--tokens", "64", "--chunk", "32"]
    words += ["--window", "8", "--steps", "1", "--repeat", "1", "--decode-steps", "1", "--device", "cpu", "--json"]
    assert gpu.main([*words, "--settings", "products", "rosa", "rosa/3", "own"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    trained = {(row["size"], row["setting"]): row for row in rows if "size" in row}
    assert {setting for _, setting in trained} == {"window", "products", "rosa", "rosa/3", "own"} and len(trained) == 10
    for row in trained.values():
        base = trained[row["size"], "window"]
        assert row["ratio"] == pytest.approx(row["ms"] / base["ms"])
        assert row["tokens"] == pytest.approx(64e3 / row["ms"])
    rosa, products = trained["64x1 free", "rosa"], trained["64x1 free", "products"]
    assert rosa["beyond"] == pytest.approx(rosa["ratio"] - products["ratio"])
    read = {row["setting"]: row for row in rows if "speed" in row}
    assert set(read) == {"window", "rosa", "rosa/3", "own", "global"}
    assert read["rosa"]["kept"] > read["window"]["kept"] == 0
    assert read["rosa"]["tables"] == pytest.approx(3 * 500 * 8 / 1e9) and read["window"]["tables"] == 0
    assert read["rosa"]["step_ratio"] == pytest.approx(read["rosa"]["ms"] / read["window"]["ms"])
    with pytest.raises(SystemExit, match="kernels are measured on a CUDA device"):
        gpu.main(["kernels", "--device", "cpu"])


def test_what_fails_does_not_end_the_rest(
    gpu: Any, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting without memory for it is said, and the others are measured."""
    words = ["train", "read", "--shapes", "tiny", "--sizes", "64x1", "--tokens", "64", "--chunk", "32", "--window", "8"]
    words += ["--steps", "1", "--repeat", "1", "--device", "cpu", "--json", "--only", "free", "--most-global", "0"]
    attach, made = gpu.attach, []

    def short(model: Any, setting: str, *rest: Any) -> None:
        made.append(setting)
        if setting == "rosa":
            raise torch.OutOfMemoryError("no room")
        attach(model, setting, *rest)

    monkeypatch.setattr(gpu, "attach", short)
    assert gpu.main([*words, "--settings", "rosa", "rosa/3"]) == 1
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["failed"] == ["train, tiny, 64x1 free, rosa", "read, tiny, rosa"]
    assert told.err.count("OutOfMemoryError: no room") == 2 and "again: " in told.err
    assert [row["setting"] for row in found["rows"]] == ["window", "rosa/3"] * 2
    assert all(row["read_ratio"] > 0 for row in found["rows"] if "speed" in row)
    assert "global" not in made, "a model of which nothing is measured is not made"


def test_what_cannot_be_recorded_is_said_first(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="--graph: steps are recorded on a CUDA device"):
        gpu.main(["train", "--device", "cpu", "--graph"])
    monkeypatch.setattr(gpu.Clock, "__init__", lambda clock, device: setattr(clock, "cuda", True))
    with pytest.raises(SystemExit, match="own.* give --retrieve-on device"):
        gpu.main(["train", "--graph", "--settings", "own"])


def test_operations_are_counted(gpu: Any) -> None:
    """Against the weights of the model itself; the head is tied, so that its product is that of the embeddings."""
    class Args:
        device = "cpu"

    model = gpu.make("tiny", Args, torch.float32)
    weights = sum(x.numel() for x in model.parameters() if x.ndim == 2)
    attention = 3 * 2 * 4 * 16 * 8  # layers, scores and sums, heads, their width, window
    assert gpu.must("tiny", 3, 100, 8) == pytest.approx(3 * 2 * 64 * 64 / (weights + attention))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device; elsewhere nothing is recorded")
def test_steps_are_recorded_by_shape(bench_script: Any) -> None:
    """Batches of two shapes, in turn; each has its own recording, and the weights are common to both."""
    weight = torch.ones(4, device="cuda")
    calls = []

    def work(batch: Any) -> Any:
        calls.append(len(batch["x"]))
        weight.add_(1)
        return (weight * batch["x"]).sum()

    take = bench_script("graph").Recorded(work)
    for number in range(12):
        rows = 2 + number % 2
        found = take({"x": torch.full((rows, 4), float(number), device="cuda")})
        assert float(found) == (2 + number) * 4 * rows * number
    assert len(calls) == 2 * (3 + 1), "the rest was replayed"


def test_texts_return(gpu: Any) -> None:
    ids = gpu.ids_of(1, 1024, 500)
    assert ids.shape == (1, 1024) and torch.equal(ids, gpu.ids_of(1, 1024, 500))
    triples = ids[0].unfold(0, 3, 1)
    assert len({tuple(x) for x in triples.tolist()}) < 0.8 * len(triples)
