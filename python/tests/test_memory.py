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
import rosatune.hf  # noqa: E402
import tiny  # noqa: E402

BENCH = Path(__file__).parents[2] / "bench"

# Runs whose controls read their own place with other adapters, and in what they differ.
UNLIKE = {
    "frozen, chain 4, every third layer": {"layers", "rate_matrix", "rate_vector"},
    "frozen, chain 4, rates x3": {"v_from", "rate_matrix", "rate_vector"},
}

SMALL = dict(steps=3, batch=2, length=64, window=8, sinks=1, warmup=1, pointer=0)
ASKS = ["adapter", "random", "adapter+pointer"]
RUNS: list[dict[str, Any]] = [
    dict(name="untrained", **{**SMALL, "steps": 0}),
    dict(name="window", asks=["window trained alike=as it is"], **SMALL),
    dict(name="global", attention="global", **SMALL),
    dict(name="chain", adapter=dict(chain=2), mix=dict(text=0.5, code=0.5), controls=["window", "global"], **SMALL),
    dict(name="neighbours", adapter=dict(chain=1, layers="0-2:2"), offsets=[0, -1, 1], train="lora", rank=2, **SMALL),
    dict(name="own place", adapter={}, reads="self", train="adapter", attention="global", **SMALL),
    dict(name="lora", adapter=dict(chain=2, seen=4), train="lora", asks=ASKS, **SMALL),
    dict(name="embeddings", adapter=dict(source="embeddings", bits=16), train="adapter", **SMALL),
    dict(name="own", adapter=dict(source="own", bits=16, v_from="layer"), rate_qk=0.0, **SMALL),
    dict(name="gated", adapter=dict(chain=2), channel_gate=True, **SMALL),
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


def test_every_kind_of_run(memory: Any, given: list[str], tmp_path: Path, capsys: Any) -> None:
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
        "own": {"adapter", "adapter + pointer", "off", "random"},
        "gated": {"adapter", "adapter + pointer", "off", "random"},
    }
    for name, conditions in expected.items():
        assert "error" not in found[name], found[name].get("error")
        assert set(found[name]["kinds"]["text"]["conditions"]) == conditions, name
        assert set(found[name]["kinds"]) == {"text", "code"}
        row = found[name]["kinds"]["text"]["conditions"][next(iter(conditions))]
        assert row["ppl"] > 1 and row["far"] > 0 and row["far_error"] >= 0
    assert "the loss is nan at step" in found["broken"]["error"]
    saved = Path(given[-3]) / "embeddings"
    assert {x.name for x in saved.parent.iterdir()} == {"embeddings", "lora"}, "all of the others' backbones learnt"
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
    noted = words_of(given, tmp_path, [{**run, "note": "x", "minutes": 1, "minutes_asked": 2} for run in RUNS[:4]])
    assert memory.main([*noted, "--out", str(out)]) == 0
    assert capsys.readouterr().out.count("is in") == 4, "a note and minutes do not make another run"
    assert memory.main([*given, "--table"]) == 0
    table = capsys.readouterr().out
    assert "chain, text: adapter + pointer" in table and "broken: failed, FloatingPointError" in table
    assert memory.main([*given, "--only", "broken", "--minutes", "0"]) == 0
    assert "skipped, needs about" in capsys.readouterr().out


class Letters:
    """A tokenizer, as far as it is asked."""

    def get_vocab(self) -> dict[str, int]:
        return {"\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}The": 1, "cat": 2, "the": 3, "far": 99}

    def save_pretrained(self, folder: Path) -> None:
        pass


def test_links_by_tokens_that_are_alike(memory: Any, given: list[str]) -> None:
    assert memory.folded_ids(Letters(), 5).tolist() == [0, 1, 2, 1, 4]
    bench = memory.Bench(memory.parse(given))
    bench.folded = np.arange(tiny.VOCABULARY) // 2 * 2  # 6 and 7 are alike
    run = memory.Run(name="alike", adapter=dict(chain=1), alike=1, **SMALL)
    looker = bench.looker(run, bench.model(run))
    ids = torch.tensor([[6, 20, *range(26, 38), 7, 21, 6, 22]])
    tau = memory._places.decode(looker(ids, "adapter")).tau[:, 0, 0].tolist()
    nothing = [-1] * 14
    assert tau[0] == nothing + [-1, -1, 1, -1], "the same token"
    assert tau[1] == nothing + [1, 2, 1, -1], "and one that is alike"


def test_gates_of_channels(memory: Any, given: list[str]) -> None:
    bench = memory.Bench(memory.parse(given))
    run = memory.Run(**next(run for run in RUNS if run["name"] == "gated"))
    gated, plain = (bench.model(each) for each in (run, memory.dataclasses.replace(run, channel_gate=False)))
    ids = torch.arange(2, 66)[None] % 20
    batch = bench.looker(run, gated).add({"input_ids": ids})
    for model in gated, plain:
        for adapter in rosatune.hf.adapters(model).values():
            adapter.e0.data.fill_(-0.1)
            adapter.e1.data.fill_(0.1)
    alike, gates = bench.hidden(plain, batch), [x.channel_gate for x in rosatune.hf.adapters(gated).values()]
    assert torch.equal(bench.hidden(gated, batch), alike), "at the start it changes nothing"
    bench.hidden(gated, batch).square().sum().backward()
    assert gates and all(gate.grad.abs().sum(1).min() > 0 for gate in gates)
    gates[0].data[1] = -1
    assert not torch.equal(bench.hidden(gated, batch), alike)


def test_a_recorded_step_asks_the_host_for_nothing(
    memory: Any, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside q and k the places of tokens come with the batch, and its list of distinct tokens; a run that cannot
    have that is not recorded."""
    bench = memory.Bench(memory.parse(given))
    asked: list[str] = []
    find = memory._places.find_places
    monkeypatch.setattr(memory._places, "find_places", lambda *words: asked.append("asked") or find(*words))
    for adapter, where in (
        (None, {"host": True, "device": True}),
        (dict(chain=2), {"host": True, "device": True}),
        (dict(source="own", bits=16), {"host": False, "device": True}),
        (dict(source="tokens+own", bits=16), {"host": False, "device": True}),
        (dict(source="tokens+layer 1", qk="shared", qk_grad="none", bits=16), {"host": False, "device": True}),
        (dict(source="own", bits=8, qk_grad="flips"), {"host": False, "device": False}),
        (dict(source="own", bits=8, explore=0.1), {"host": False, "device": False}),
        (dict(source="tokens+embeddings", bits=16), {"host": False, "device": False}),
    ):
        run = memory.Run(name="x", adapter=adapter, **SMALL)
        model = bench.model(run)
        looker = bench.looker(run, model)
        assert {place: looker.recordable(place) for place in where} == where, adapter
        asked.clear()
        batch = looker.add({"input_ids": torch.arange(32)[None] % 20 + 2})
        assert (memory.TOKENS in batch) == (adapter is not None)
        bench.hidden(model, batch)
        assert bool(asked) == (adapter is not None and "embeddings" in adapter.get("source", "")), adapter


def test_an_adapter_of_defaults_reads_its_own_place(memory: Any, given: list[str]) -> None:
    bench = memory.Bench(memory.parse(given))
    run = memory.Run(**next(run for run in RUNS if run["name"] == "own place"))
    assert run.adapter == {}
    batch = bench.looker(run, bench.model(run)).add({"input_ids": torch.arange(2, 12)[None]})
    assert (memory._places.decode(batch[memory.PLACES]).tau == torch.arange(10)).all()


def test_q_and_k_have_a_rate_of_their_own(memory: Any, given: list[str]) -> None:
    bench = memory.Bench(memory.parse(given))
    run = memory.Run(**next(run for run in RUNS if run["name"] == "own"))
    model = bench.model(run)
    before = {name: weight.clone() for name, weight in model.named_parameters() if "proj.weight" in name}
    memory.train(bench, run, model, lambda text: None)
    after = dict(model.named_parameters())
    still = {name for name, weight in before.items() if torch.equal(weight, after[name])}
    assert still == {name for name in before if "rosa" in name and name.split(".")[-2] in ("q_proj", "k_proj")} != set()


def test_what_lora_learnt_is_saved(memory: Any, given: list[str]) -> None:
    """As a model of its own and its adapters, which together compute what was trained."""
    bench = memory.Bench(memory.parse(given))
    run = memory.Run(**next(run for run in RUNS if run["name"] == "lora"))
    model, folder, told = bench.model(run), Path(bench.args.save) / "lora", []
    dice = torch.Generator().manual_seed(7)
    for module in model.modules():
        if isinstance(module, memory.Lora):
            module.up.data.normal_(0, 0.5, generator=dice)
    for weight in model.parameters():  # embeddings and head too are saved so
        weight.data = weight.data.to(torch.bfloat16).float()
    memory.save(bench, run, model, told.append)
    assert len(told) == 1 and "tokenizer.json" in told[0], "the tiny model has none"
    plain = memory.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    lora = {name: module for name, module in model.named_modules() if isinstance(module, memory.Lora)}
    assert len(lora) == 7 * len(plain.model.layers)
    for name, module in lora.items():
        found, wanted = plain.get_submodule(name).weight, module.base.weight + module.up @ module.down
        assert torch.equal(found, wanted.to(torch.bfloat16).float()) and not torch.equal(found, module.base.weight)
        module.base.weight.data, module.up.data = found.data, torch.zeros_like(module.up)
    rosatune.hf.load_adapter(plain, folder)
    for adapter in (*rosatune.hf.adapters(plain).values(), *rosatune.hf.adapters(model).values()):
        adapter.float()
    ids = torch.arange(2, 42).repeat(2)[None, :64]
    with torch.no_grad():
        assert torch.allclose(plain(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-4)


def test_a_model_is_asked_without_the_products_of_lora(memory: Any, given: list[str], tmp_path: Path) -> None:
    """Its low-rank changes become part of the weights, and the answers stay."""
    bench = memory.Bench(memory.parse([*given, "--answers", str(tmp_path)]))
    run = memory.Run(**{**next(run for run in RUNS if run["name"] == "lora"), "asks": ["adapter", "random", "off"]})
    model = bench.model(run)
    lora = {name: module for name, module in model.named_modules() if isinstance(module, memory.Lora)}
    dice = torch.Generator().manual_seed(7)
    for module in lora.values():
        module.up.data.normal_(0, 0.5, generator=dice)
    ids = torch.arange(2, 42).repeat(2)[None, :64]
    with torch.no_grad():
        expected = model.eval()(input_ids=ids).logits
    prompts, options = bench.prompts["asked"], dict(log=lambda text: None, settings=memory.asking(bench, run))
    assert memory.answers.run(model, prompts, run.asks, out=tmp_path / "before", **options)
    assert memory.ask(bench, run, model, lambda text: None) == ["asked"]
    assert [type(model.get_submodule(name)) for name in lora] == [torch.nn.Linear] * 7 * 3
    with torch.no_grad():
        assert torch.allclose(model(input_ids=ids).logits, expected, atol=1e-4)
    before, after = ((tmp_path / name).read_text().splitlines() for name in ("before", "lora.asked.jsonl"))
    assert after == before and len(after) == 1 + 2 * 3


def words_of(given: list[str], folder: Path, runs: list[dict[str, Any]]) -> list[str]:
    """The same command with other runs, results and answers."""
    (folder / "runs.json").write_text(json.dumps(runs))
    return [*given, "--runs", str(folder / "runs.json"), "--answers", str(folder), "--out", str(folder / "out.json")]


def test_asking_that_was_cut_goes_on(
    memory: Any, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """What was measured is kept when Ctrl-C or the time ends the asking, and the same command asks on."""
    run = memory.answers.run
    words = words_of(given, tmp_path, [{**RUNS[1], "steps": 1}])
    out, answers = tmp_path / "out.json", tmp_path / "window.asked.jsonl"

    def stopped(*args: Any, **options: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(memory.answers, "run", stopped)
    assert memory.main(words) == 130
    assert [(entry["asked"], "kinds" in entry) for entry in json.loads(out.read_text())] == [([], True)]
    monkeypatch.setattr(memory.answers, "run", run)
    assert memory.main([*words, "--ask-minutes", "0"]) == 0
    assert [entry["asked"] for entry in json.loads(out.read_text())] == [[]]
    assert len(answers.read_text().splitlines()) == 1
    monkeypatch.setattr(memory.answers, "run", lambda *args, **options: 1 / 0)
    assert memory.main(words) == 0
    assert ["error" in entry for entry in json.loads(out.read_text())] == [False, True]
    monkeypatch.setattr(memory.answers, "run", run)
    assert memory.main(words) == 0
    assert [entry["asked"] for entry in json.loads(out.read_text())] == [["asked"]]
    assert len(answers.read_text().splitlines()) == 3
    assert "is in" not in capsys.readouterr().out
    assert memory.main(words) == 0 and "is in" in capsys.readouterr().out


def test_a_run_is_begun_if_it_would_end(memory: Any, given: list[str], tmp_path: Path, capsys: Any) -> None:
    """By the minutes of the list, with those of asking where there are prompts, or by what runs took before."""
    run = {**RUNS[1], "minutes": 3, "minutes_asked": 4}
    bench = memory.Bench(memory.parse([*given, "--ask-minutes", "2.5"]))
    assert memory.expected(bench, memory.Run(**run), 50.0) == 60 * (3 + 2.5)
    assert memory.expected(bench, memory.Run(**run), 500.0) == 500
    assert memory.expected(bench, memory.Run(**{**run, "asks": []}), 50.0) == 60 * 3
    bench.prompts = {}
    assert memory.expected(bench, memory.Run(**run), 50.0) == 60 * 3
    assert memory.main([*words_of(given, tmp_path, [run]), "--minutes", "6.9"]) == 0
    assert "skipped, needs about 420 s" in capsys.readouterr().out


def test_other_texts_are_another_run(memory: Any, given: list[str], tmp_path: Path, capsys: Any) -> None:
    controls = ["window", "global"]
    runs = [{**run, "asks": [], "steps": 1, "controls": controls} for run in RUNS if run["name"] in controls]
    words = words_of(given, tmp_path, runs)
    assert memory.main(words) == 0
    out, books = tmp_path / "out.json", Path(given[given.index("--train") + 1].partition("=")[2])
    (tmp_path / "books").mkdir()
    for file in books.iterdir():
        np.save(tmp_path / "books" / file.name, np.load(file)[::-1])
    others = [*words, "--train", f"text={tmp_path / 'books'}"]
    assert memory.main(others) == 0 and "is in" not in capsys.readouterr().out
    first, whole, second, _ = entries = json.loads(out.read_text())
    assert first["run"] == second["run"] and first["texts"]["train"] != second["texts"]["train"]
    assert first["texts"]["valid"] == second["texts"]["valid"] and "commit" in first
    assert memory.given_back([first, whole], second, "text", "window") is None, "no controls on these texts"
    assert memory.given_back(entries, second, "text", "window") is not None
    assert memory.main(words) == memory.main(others) == 0
    assert capsys.readouterr().out.count("is in") == 4
    old = [{key: entry[key] for key in entry if key not in ("texts", "commit")} for entry in (first, whole)]
    out.write_text(json.dumps(old))
    assert memory.main(others) == 0 and capsys.readouterr().out.count("is in") == 2, "from before texts were recorded"
    assert memory.given_back(old, second, "text", "window") is not None


def test_what_cannot_be_finished_is_not_begun(
    memory: Any, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "train", lambda *args: pytest.fail("trains"))
    words = words_of(given, tmp_path, [{**RUNS[1], "asks": ["x=as it is+pointer"]}])
    at = words.index("--fit")
    (tmp_path / "window.asked.jsonl").write_text('{"settings": {"tokens": 7}}\n')
    for command, said in (
        ([*words, "--prompts", str(tmp_path / "none.xz")], "No such file.*none.xz"),
        ([*words, "--prompts", str(tmp_path / "runs.json")], "--prompts .*runs.json: "),
        ([*words, "--ask-task", "u"], "has no task u; it has t"),
        ([*words[:at], *words[at + 2 :]], "run 'window': it is asked with a pointer; give --fit"),
        (words, "window.asked.jsonl holds answers of other texts or options"),
        ([*words, "--out", str(tmp_path / "none" / "out.json")], "none is no folder"),
    ):
        with pytest.raises(SystemExit, match=said):
            memory.main(command)
    with pytest.raises(SystemExit, match="run 'window': there is no condition 'windy'"):
        memory.main(words_of(given, tmp_path, [{**RUNS[1], "asks": ["windy"]}]))


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


def test_kinds_are_judged_alike(memory: Any, given: list[str]) -> None:
    """Of a model that was not trained each kind has its window, in whatever order they come."""
    bench = memory.Bench(memory.parse(given))
    run = memory.Run(name="x", **{**SMALL, "steps": 0, "pointer": None})
    first = memory.judge(bench, run, bench.model(run), print)
    bench.valid = dict(reversed(bench.valid.items()))
    second = memory.judge(bench, run, bench.model(run), print)
    for kind in ("text", "code"):
        assert first[kind].conditions == second[kind].conditions
        assert first[kind].conditions["window"] != first[kind].conditions["global"]


@pytest.mark.parametrize("name", ["memory_runs.json", "memory_runs_qwen.json"])
def test_runs_of_the_list_are_valid(memory: Any, name: str) -> None:
    fields = json.loads((BENCH / name).read_text())
    runs = [memory.Run(**each) for each in fields]
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    for run in runs:
        run.config()
        memory.answers.parsed(run.asks)
        assert 0 < run.minutes < 9 and (run.minutes_asked > 0) == bool(run.asks), "so that one can choose"
        assert all(control in names for control in run.controls), run.name
        for control, attention in zip(run.controls, ("window", "global")):
            other = runs[names.index(control)]
            assert other.attention == attention and (other.adapter is None or other.reads == "self")
            for alike in ("steps", "batch", "length", "window", "mix", "rate_backbone"):
                assert getattr(other, alike) == getattr(run, alike), (run.name, alike)
            unlike: set[str] = set()
            if other.adapter is not None:
                both = other.config(), run.config()
                unlike = {key for key in ("layers", "v_from", "chain") if len({getattr(x, key) for x in both}) > 1}
                unlike |= {key for key in ("rate_matrix", "rate_vector") if getattr(other, key) != getattr(run, key)}
            assert unlike == UNLIKE.get(run.name, set()), (run.name, control)


def shrunk(run: dict[str, Any]) -> dict[str, Any]:
    """A run of the lists for the tiny model: all its options, other sizes."""
    run = {**run, "steps": min(2, run.get("steps", 2)), "batch": 1, "sinks": 1, "rank": 2}
    run["window"], run["length"] = {256: (8, 64), 512: (16, 128), 1024: (16, 128)}[run.get("window", 256)]
    adapter = dict(run.get("adapter") or {})
    if "layers" in adapter:
        adapter["layers"] = "0-2:2" if adapter["layers"].endswith(":3") else "0-1:1"
    adapter["seen"] = min(adapter.get("seen", 0), 4)
    if "source" in adapter:
        adapter["source"] = adapter["source"].replace("layer 20", "layer 1")
    return {**run, "adapter": adapter if run.get("adapter") else None, "asks": []}


@pytest.mark.parametrize("name", ["memory_runs.json", "memory_runs_qwen.json"])
def test_runs_of_the_list_end(
    memory: Any, given: list[str], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trains and is judged: time on a GPU is too scarce to find there that one cannot."""
    books = given[given.index("--train") + 1].partition("=")[2]
    runs = [shrunk(run) for run in json.loads((BENCH / name).read_text())]
    words = words_of(given, tmp_path, runs)
    kinds = [f"{kind}={books}" for kind in ("novels", "code", "quotes")]
    words += ["--train", *kinds, "--fit", kinds[0], "--valid", kinds[0], "--pieces", "1", "--fit-pieces", "1"]
    monkeypatch.setattr(memory.Bench, "tokenizer", lambda bench: Letters())
    assert memory.main([*words, "--save", str(tmp_path / "saved")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert [entry["run"]["name"] for entry in found] == [run["name"] for run in runs]
    assert [entry["run"]["name"] for entry in found if "error" in entry] == []


def test_the_released_adapter_has_controls_to_run(memory: Any) -> None:
    """Trained wholly alike, but for where they read."""
    runs = {run["name"]: memory.Run(**run) for run in json.loads((BENCH / "memory_runs.json").read_text())}
    released = runs["frozen, chain 4, every third layer, values of embeddings"]
    for attention in ("window", "global"):
        control = runs[f"frozen, {attention}, own place, every third layer, values of embeddings"]
        own = dict(name=control.name, attention=attention, reads="self", controls=())
        assert memory.described_run(control) == memory.described_run(memory.dataclasses.replace(released, **own))


def test_a_run_that_reads_neighbours_is_not_asked(memory: Any) -> None:
    with pytest.raises(ValueError, match="no neighbours"):
        memory.Run(name="x", adapter={}, offsets=[0, 1], asks=["adapter"])


def test_pieces_are_spread_over_the_texts(memory: Any) -> None:
    texts = {f"book {i}": np.arange(10 * i, 10 * i + 100) for i in range(4)}
    found = memory.token_ids.pieces_of(texts, 10, 6)
    assert len(found) == 6 and {name for name, _ in found} == set(texts)
    assert [len(ids) for _, ids in found] == [10] * 6
    assert len(memory.token_ids.pieces_of(texts, 10, 99)) == 4 * memory.token_ids.EACH
