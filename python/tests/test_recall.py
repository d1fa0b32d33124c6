"""Recall: far tokens against a brute force, the result's arithmetic, and the numbers of the C program."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rosatune
from rosatune import InvalidArgument, RecallResult, far_distances
from rosatune.far import Sums

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import program  # noqa: E402
import tiny  # noqa: E402

import rosatune.hf  # noqa: E402
from rosatune import Pointer  # noqa: E402

WINDOW, SINKS, CONTEXT = 16, 2, 150
POINTER = Pointer(np.linspace(-2, 2, 3 * 13).reshape(3, 13).round(3), WINDOW)
SEEN = (np.arange(60).reshape(4, 15) % 7 / 3 - 1).round(3)
BY_CONTEXTS = Pointer(
    np.linspace(-2, 2, 13).round(3),
    WINDOW,
    slopes={"token": 0.5, "entropy": -0.25, "share": 0.75, "success": 0.5},
    seen=SEEN,
)
SLOPED = Pointer(POINTER.theta, WINDOW, [[0.5, -0.25], [0.25, 0.0], [0.0, 0.5]])


def brute_distance(ids: Any, t: int) -> int:
    for distance in range(1, t - 1):
        if list(ids[t - 2 : t + 1]) == list(ids[t - 2 - distance : t + 1 - distance]):
            return distance
    return 0


@pytest.mark.parametrize("letters", (1, 2, 5, 1 << 40))
@pytest.mark.parametrize("steps", (0, 1, 2, 3, 4, 200))
def test_far_distances(letters: int, steps: int, rng: np.random.Generator) -> None:
    ids = rng.integers(0, letters, steps)
    assert far_distances(ids).tolist() == [brute_distance(ids, t) for t in range(steps)]


def test_sums(rng: np.random.Generator) -> None:
    losses, distance = rng.random(500), rng.choice([0, 1, 2, 7, 15, 16, 17, 100], 500)
    sums = Sums()
    sums.add(losses[:200], distance[:200], 16)
    other = Sums()
    other.add(losses[200:], distance[200:], 16)
    sums = sums + other
    far = distance >= 16
    assert sums.far_count == far.sum() and sums.count == 500
    means = sums.means()
    assert means["far"] == pytest.approx(losses[far].mean()) and means["rest"] == pytest.approx(losses[~far].mean())
    assert means["ppl"] == pytest.approx(math.exp(losses.mean()))
    bins = {"1": (1, 1), "2": (2, 3), "4": (4, 7), "8": (8, 15), "16": (16, 31), "64": (64, 127)}
    assert list(sums.distances()) == list(bins)
    for name, (low, high) in bins.items():
        inside = (distance >= low) & (distance <= high)
        assert sums.distances()[name] == {"tokens": inside.sum(), "loss": pytest.approx(losses[inside].mean())}
    assert math.isnan(Sums().means()["far"])


# ------------------------------------------------------------------------------------------------------------- a model


def books(folder: Path, rng: np.random.Generator) -> list[Path]:
    """Texts of syllables, which repeat; one is compressed, one too short."""
    folder.mkdir(exist_ok=True)
    syllables = ["ba", "do ", "ke", "li", "mu ", "sa", "te", "ro "]
    paths = []
    for number, length in enumerate((400, 250, 30)):
        text = "".join(rng.choice(syllables, length)).encode()
        paths.append(folder / f"book{number}.txt{'.xz' if number == 1 else ''}")
        paths[-1].write_bytes(lzma.compress(text) if number == 1 else text)
    return paths


def same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal names and whole numbers; numbers to 1e-3."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict) and list(ours) == list(theirs), where
        for name in theirs:
            same(ours[name], theirs[name], f"{where} {name}")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-3), where
    else:
        assert ours == theirs, where


def expected(model: Any, pieces: list[Any], pointer: Any = None, **options: Any) -> dict[str, float]:
    """Means from the definition, each piece read at once by a model arranged by the caller."""
    far, rest = [], []
    for ids in pieces:
        with torch.no_grad():
            logits = model(torch.tensor(ids)[None], use_cache=False).logits[0].double()
        if pointer is not None:
            found = pointer.look_up(np.asarray(ids))
            links = torch.tensor(found.tokens), torch.tensor(found.lengths)
            logits = rosatune.torch.pointer(logits, *links, torch.tensor(pointer.theta))
        losses = -logits.log_softmax(-1)
        for t in range(4 * WINDOW, len(ids)):
            (far if brute_distance(ids, t) >= WINDOW else rest).append(float(losses[t - 1, ids[t]]))
    return {"ppl": math.exp(np.mean(far + rest)), "far": np.mean(far), "rest": np.mean(rest)}


def pieces_of(model: Any, paths: list[Path], count: int) -> list[Any]:
    texts = rosatune.hf.reading.read_texts(model, paths)
    return [ids[i * CONTEXT : (i + 1) * CONTEXT] for ids in texts.values() for i in range(count)][: 2 * count]


def test_plain_model(tmp_path: Path, rng: np.random.Generator) -> None:
    model, folder = tiny.folder_with_tokenizer(tmp_path / "model")
    paths = books(tmp_path, rng)
    result = rosatune.recall(
        model, paths, window=WINDOW, sinks=SINKS, context=CONTEXT, pieces=2, pointer=POINTER, batch=2
    )
    cut = pieces_of(model, paths, 2)
    assert list(result.conditions) == ["global", "window", "pointer"]
    whole = expected(model, cut)
    assert rosatune.hf.attachment(model) is None
    rosatune.hf.attach(model, window=WINDOW, sinks=SINKS, layers=())
    window, pointed = expected(model, cut), expected(model, cut, POINTER)
    for name, theirs in (("global", whole), ("window", window), ("pointer", pointed)):
        assert {key: result.conditions[name][key] for key in theirs} == pytest.approx(theirs, abs=1e-4)
    assert len({row["far"] for row in result.conditions.values()}) == 3
    share = np.mean([brute_distance(ids, t) >= WINDOW for ids in cut for t in range(4 * WINDOW, CONTEXT)])
    assert result.far_share == share
    assert any("book2.txt has" in note and "left out" in note for note in result.notes)
    shown = str(result)
    for word in ("perplexity", "+-", "2 texts", "book2.txt"):
        assert word in shown
    far, loss = result.recovered("pointer")
    assert far == pytest.approx((window["far"] - pointed["far"]) / (window["far"] - whole["far"]), abs=1e-2)


@pytest.mark.parametrize("pointer", (None, POINTER, SLOPED, BY_CONTEXTS), ids=("none", "table", "slopes", "contexts"))
@pytest.mark.parametrize("adapter", (None, "paper", "tokens", "tokens seen", "embeddings", "tokens+layer 1"))
def test_the_c_program_agrees(adapter: Any, pointer: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    model, folder = tiny.folder_with_tokenizer(tmp_path / "model")
    paths = books(tmp_path, rng)
    words = ["--context", CONTEXT, "--pieces", 2, "--threads", 1, "--json", *paths]
    if adapter:
        options = dict(source="tokens", seen=4) if adapter == "tokens seen" else dict(source=adapter)
        made = rosatune.RosaConfig.paper() if adapter == "paper" else rosatune.RosaConfig(chain=3, **options)
        rosatune.hf.attach(model, made.replace(window=WINDOW, sinks=SINKS, bits=8))
        tiny.stir(model)
        rosatune.hf.save_adapter(model, tmp_path / "adapter")
        words = ["--adapter", tmp_path / "adapter", *words]
    else:
        words = ["--window", WINDOW, "--sinks", SINKS, *words]
    if pointer is not None:
        pointer.save(tmp_path / "p.json")
        words = ["--pointer", tmp_path / "p.json", *words]
        pointer = tmp_path / "p.json"
    theirs = json.loads(program.succeed("recall", "--model", folder, *words))
    ours = rosatune.recall(model, paths, window=WINDOW, sinks=SINKS, context=CONTEXT, pieces=2, pointer=pointer)
    assert ours.far_share == theirs["far_share"] and 0.05 < ours.far_share < 0.95
    ours = json.loads(ours.to_json())
    assert ("random" in ours["conditions"]) == (adapter is not None)
    same(ours, theirs)  # random reads too: both sides draw the same places


@pytest.mark.parametrize("fusion", ("post", "pre"))
def test_model_with_adapters(fusion: str, tmp_path: Path, rng: np.random.Generator) -> None:
    model, ids = tiny.attached(window=WINDOW, sinks=SINKS, fusion=fusion), rng.integers(2, 6, 2 * CONTEXT)
    before = {name: (weight, weight.requires_grad) for name, weight in model.named_parameters()}
    rosatune.hf.adapters(model)[1].reads = "nothing"
    rosatune.hf.attach_pointer(model, POINTER)
    result = rosatune.recall(model, ids, context=CONTEXT)
    # The model is as it was: the same parameters, the same plan.
    after = {name: (weight, weight.requires_grad) for name, weight in model.named_parameters() if "pointer" not in name}
    assert all(after[name][0] is weight and after[name][1] == grad for name, (weight, grad) in before.items())
    assert [adapter.reads for adapter in rosatune.hf.adapters(model).values()] == ["found", "nothing", "found"]
    rosatune.hf.adapters(model)[1].reads = "found"
    rosatune.hf.detach_pointer(model)

    cut = [ids[:CONTEXT], ids[CONTEXT:]]
    theirs = {"adapter": expected(model, cut), "adapter+pointer": expected(model, cut, POINTER)}
    for adapter in rosatune.hf.adapters(model).values():
        adapter.reads = "nothing"
    theirs["off"] = expected(model, cut)
    rosatune.hf.detach(model)
    theirs["global"] = expected(model, cut)
    rosatune.hf.attach(model, window=WINDOW, sinks=SINKS, layers=())
    theirs["window"], theirs["pointer"] = expected(model, cut), expected(model, cut, POINTER)
    names = ["global", "window", "adapter", "off", "random", "pointer", "adapter+pointer"]
    assert list(result.conditions) == names
    for name, means in theirs.items():
        assert {key: result.conditions[name][key] for key in means} == pytest.approx(means, abs=1e-4), name
    different = [result.conditions[name]["far"] for name in names if name != "off"]
    assert len(set(different)) == len(different)
    with pytest.raises(rosatune.InvalidArgument, match="window is 9, but the adapters were attached with 0|9"):
        rosatune.recall(tiny.attached(window=8), ids, window=9, context=CONTEXT)


def test_token_ids_and_names(rng: np.random.Generator) -> None:
    model, ids = tiny.model(), rng.integers(2, 8, 400)
    options: Any = dict(window=8, context=100, pieces=1)
    whole = rosatune.recall(model, ids, **options)
    named = rosatune.recall(model, {"a": ids.tolist(), "b": torch.tensor(ids)}, **options)
    assert list(whole.books) == ["text 1"] and list(named.books) == ["a", "b"]
    assert named.books["a"] == named.books["b"] == whole.books["text 1"]
    assert rosatune.recall(model, ids.tolist(), **options).books == whole.books
    assert whole.sinks == 4 and list(whole.conditions) == ["global", "window"]
    assert math.isnan(whole.conditions["window"]["far_error"]) and named.conditions["window"]["far_error"] < 1e-9
    assert json.loads(whole.to_json())["conditions"]["window"]["far_error"] is None
    only = rosatune.recall(model, ids, conditions=["window"], **options)
    assert only.conditions["window"] == named.conditions["window"] | only.conditions["window"]
    assert list(only.conditions) == ["window"] and "returns" not in str(only)


def test_progress_and_modes(rng: np.random.Generator) -> None:
    model, calls = tiny.model().train(), []
    model.model.layers[0].eval()
    ids = rng.integers(2, 8, 320)
    rosatune.recall(model, ids, window=8, context=80, batch=3, progress=lambda *given: calls.append(given))
    assert calls == [(237, 632), (316, 632), (553, 632), (632, 632)]
    assert model.training and not model.model.layers[0].training


def test_model_whose_attention_cannot_be_limited(rng: np.random.Generator) -> None:
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=128)
    model, ids = transformers.GPT2LMHeadModel(config).eval(), rng.integers(2, 8, 300)
    result = rosatune.recall(model, ids, window=8, context=100, pointer=POINTER)
    assert list(result.conditions) == ["global", "global+pointer"]
    assert "GPT2LMHeadModel is not a class whose attention rosatune.hf limits" in str(result)
    with pytest.raises(rosatune.InvalidArgument, match="'window' cannot be measured.*GPT2"):
        rosatune.recall(model, ids, window=8, context=100, conditions=["window"])


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model = tiny.model()
    result = rosatune.recall(model, tiny.tokens(1, 200)[0] % 6, window=8, context=100)
    result.plot(tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text()
    assert "<svg" in drawn and len(drawn) > 5000


@pytest.mark.parametrize(
    "options, message",
    (
        (dict(), "give window="),
        (dict(window=30), "context is 100.*four windows .120."),
        (dict(window=8, context=4096), "no text has a whole piece of 4096 tokens"),
        (dict(window=8, context=0), "context is 0; give a whole number from 1"),
        (dict(window=8, batch=0), "batch is 0; give a whole number from 1"),
        (dict(window=8, pieces=0), "pieces .None: all. is 0; give a whole number from 1"),
        (dict(window=8, conditions="memory"), "no condition 'memory'; they are global, window"),
        (dict(window=8, conditions=["adapter"]), "'adapter' cannot be measured.*attached adapters"),
        (dict(window=8, conditions=["pointer"]), "'pointer' cannot be measured.*a pointer"),
        (dict(window=8, conditions=["memory"]), "no condition 'memory'; they are global, window"),
        (dict(window=8, texts="no-such-file.txt"), "no-such-file.txt: no such file; to give a text itself"),
        (dict(window=8, texts=[[1, 2, 50]]), "text 1: token id 50 is not in the model's vocabulary of 50"),
        (dict(window=8, texts=[]), "there are no texts"),
    ),
)
def test_errors(options: dict, message: str) -> None:
    options = {"context": 100, "texts": tiny.tokens(1, 200)[0], **options}
    with pytest.raises(rosatune.Error, match=message):
        rosatune.recall(tiny.model(), options.pop("texts"), **options)


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    model = tiny.model()
    model.config._name_or_path = str(tmp_path)
    (tmp_path / "text").write_text("some words")
    with pytest.raises(InvalidArgument, match=f"tokenizer of the model {tmp_path} cannot be loaded; give tokenizer="):
        rosatune.recall(model, tmp_path / "text", window=8, context=100)


def test_files_are_checked(tmp_path: Path) -> None:
    model, _ = tiny.folder_with_tokenizer(tmp_path / "model")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(rosatune.InvalidArgument, match="is not UTF-8"):
        rosatune.recall(model, [tmp_path / "bytes"], window=8, context=100)
    half = lzma.compress(b"some words" * 100)[:-9]
    for content, message in ((half, "cannot be decompressed"), (b"\x28\xb5\x2f\xfd", "by zstd.*decompress it first")):
        (tmp_path / "bytes").write_bytes(content)
        with pytest.raises(rosatune.FileError, match=message):
            rosatune.recall(model, [tmp_path / "bytes"], window=8, context=100)
    (tmp_path / "text").write_text("some words")
    with pytest.raises(rosatune.InvalidArgument, match="give tokenizer="):
        rosatune.recall(tiny.model(), [tmp_path / "text"], window=8, context=100)


def test_table() -> None:
    """What is returned, of losses made up so that the shares are round."""
    far = {"global": 1.0, "window": 2.0, "adapter": 1.25, "random": 2.1, "pointer": 1.5, "adapter+pointer": 1.1}
    sums = {
        name: {book: Sums(loss * 10, 30.0, 10, 10) for book, loss in (("a", x - 0.5), ("b", x + 0.5))}
        for name, x in far.items()
    }
    result = RecallResult(16, 4, 100, sums)
    assert result.recovered("adapter") == pytest.approx((0.75, 0.75)) and result.far_share == 0.5
    shown = str(result).splitlines()
    assert shown[0].startswith("40 tokens of 2 texts, from position 64 of pieces of 100; 50.00 % are far")
    assert next(line for line in shown if line.startswith("window")).split() == [
        "window",
        "12.182",
        "2.0000",
        "+-",
        "0.5000",
        "3.0000",
    ]
    assert "the adapter                   75.0 % on far tokens,  75.0 % of all loss" in shown
    assert "the same, reading at random  -10.0 % on far tokens, -10.0 % of all loss" in shown
    assert "the adapter and the pointer   90.0 % on far tokens,  90.0 % of all loss" in shown
    assert "trained alike" in shown[-1]
    none = RecallResult(16, 4, 100, {name: sums["global"] for name in ("global", "window", "pointer")})
    assert "The window loses nothing" in str(none)


def test_result_without_pointer_tells_what_there_is() -> None:
    result = RecallResult(8, 4, 100, {"window": {"a": Sums()}})
    with pytest.raises(rosatune.InvalidArgument, match="'adapter' was not measured; there are 'window'"):
        result.total("adapter")
