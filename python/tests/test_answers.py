"""bench/answers.py: the same answers and scores as those of the C program, whatever is read at once."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import program  # noqa: E402
import tiny  # noqa: E402

import rosatune.hf  # noqa: E402
from rosatune import Pointer  # noqa: E402

WINDOW, SINKS = 12, 2
POINTER = Pointer(np.linspace(-2, 2, 13).round(3), WINDOW, slopes={"token": 0.5, "entropy": -0.25, "share": 0.75})
C_CONDITIONS = ["global", "window", "adapter", "off", "pointer", "adapter+pointer"]  # random draws differ


@pytest.fixture(scope="module")
def answers(bench_script: Any) -> Any:
    return bench_script("answers")


def tasks(folder: Path) -> list[Path]:
    """Needles of several lengths, answers by first line, choices of several and of one continuation."""
    rng = np.random.default_rng(3)
    syllables = ["ba", "do ", "ke", "li", "mu ", "sa", "te", "ro "]

    def text(count: int) -> str:
        return "".join(rng.choice(syllables, count))

    needles, chosen = [], []
    for number in range(7):
        hidden, before = text(2), text(int(rng.integers(5, 60)))
        prompt = f"{before} the word is {hidden}. {text(8)} the word is"
        needles.append({"input": prompt[:-3], "outputs": [hidden, "o"], "answer_prefix": " is", "length": len(prompt)})
    for number in range(5):
        gold = int(rng.integers(3))
        each = [" " + text(int(rng.integers(1, 5))) for _ in range(3)]
        chosen.append({"context": text(int(rng.integers(3, 40))), "continuations": each, "gold": gold})
    solved = [{"input": "Q: do ", "context": text(9), "answers": ["ba"], "length": 9} for _ in range(2)]
    return [
        program.lines(folder / "niah_x.jsonl", needles),
        program.lines(folder / "choice.jsonl", chosen),
        program.lines(folder / "word.jsonl", [{**x, "continuations": x["continuations"][:1]} for x in chosen]),
        program.lines(folder / "triviaqa.jsonl", solved),
    ]


class Case:
    """A model with adapter and pointer, tasks, their prompts, and the results of the C program."""

    def __init__(self, answers: Any, folder: Path) -> None:
        self.answers, self.folder = answers, folder
        plain, self.base = tiny.folder_with_tokenizer(folder / "model", eos_token_id=37)
        self.model = rosatune.hf.attach(plain, window=WINDOW, sinks=SINKS, chain=2, seen=4)
        tiny.stir(self.model)
        rosatune.hf.attach_pointer(self.model, POINTER)
        rosatune.hf.save_adapter(self.model, folder / "adapter")
        self.tasks = tasks(folder)
        words = ["--program", program.path(), "--model", self.base, "--tokens", 9, *self.tasks]
        self.words = [str(word) for word in words]
        answers.main(["prepare", "--out", str(folder / "prompts.xz"), *self.words])
        self.prompts = answers.load(folder / "prompts.xz")
        options = ["--adapter", folder / "adapter", "--conditions", ",".join(C_CONDITIONS), "--tokens", 9]
        program.succeed("eval", "--model", self.base, *options, "--out", folder / "c.jsonl", *self.tasks)

    def records(self, name: str) -> "dict[tuple, dict[str, Any]]":
        lines = [json.loads(line) for line in (self.folder / name).read_text().splitlines()]
        assert list(lines[0]) == ["settings"]
        found = {(x["task"], x["example"], x["condition"]): x for x in lines[1:]}
        assert len(found) == len(lines) - 1
        return found

    def run(self, name: str, conditions: Any = None, **options: Any) -> bool:
        done: bool = self.answers.run(
            self.model, self.prompts, conditions, out=self.folder / name, log=lambda text: None, **options
        )
        return done

    def finish(self, name: str) -> None:
        out = ["--answers", str(self.folder / name), "--out", str(self.folder / f"{name}.results")]
        self.answers.main(["finish", *out, *self.words])


@pytest.fixture(scope="module")
def case(answers: Any, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(answers, tmp_path_factory.mktemp("answers"))


def same(ours: "dict[str, Any]", theirs: "dict[str, Any]") -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        if name in ("loss", "logarithms"):
            assert ours[name] == pytest.approx(value, abs=1e-3), (ours, theirs)
        else:
            assert ours[name] == value, (ours, theirs)


@pytest.mark.parametrize(
    "name, options", (("whole", dict(rows=8)), ("pieces", dict(rows=3, chunk=7, tokens=100)), ("single", dict(rows=1)))
)
def test_as_the_program(case: Case, name: str, options: "dict[str, Any]") -> None:
    assert case.run(name, C_CONDITIONS, **options)
    case.finish(name)
    theirs, ours = case.records("c.jsonl"), case.records(f"{name}.results")
    assert set(ours) == set(theirs)
    for key, record in theirs.items():
        same(ours[key], record)
    for condition in C_CONDITIONS:  # what is shown meanwhile
        some = [x for x in case.prompts.examples if x.task == "niah_x"]
        lines = [json.loads(line) for line in (case.folder / name).read_text().splitlines()[1:]]
        ids = {x["example"]: x["ids"] for x in lines if (x["task"], x["condition"]) == ("niah_x", condition)}
        scores = [record["score"] for key, record in ours.items() if (key[0], key[2]) == ("niah_x", condition)]
        assert case.prompts.glance(some, [ids[x.number] for x in some]) == pytest.approx(np.mean(scores))
    answered = {x["answer"] for x in ours.values() if "answer" in x}
    assert len(answered) > 10 and min(map(len, answered)) < 9  # the conditions differ; some end early


@pytest.mark.skipif(torch.cuda.is_available(), reason="a stand-in for recordings; on a GPU they are made as it is")
def test_recorded_steps(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every reading with a window, beside pointers, in batches with padding; recorded steps are run as they are."""
    module, made = sys.modules["rosatune.hf.recorded"], []

    def record(work: Any) -> Any:
        made.append(work)
        return lambda: work().clone()

    monkeypatch.setattr(module, "_record", record)
    monkeypatch.setattr(module, "DEVICES", ("cpu",))
    conditions = [*C_CONDITIONS, "random", "as it is+pointer", "bare window"]
    pieces = dict(rows=3, chunk=7, tokens=100)  # some end with a single token of the prompt
    assert case.run("launched", conditions, **pieces) and not made, "by default on a GPU alone"
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # as where steps cannot be recorded
        assert case.run("recorded", conditions, recorded=True, **pieces) and made
    launched, recorded = ((case.folder / name).read_text().splitlines() for name in ("launched", "recorded"))
    for one, other in zip(launched, recorded):
        same(json.loads(other), json.loads(one))


def test_all_conditions(case: Case, answers: Any, capsys: pytest.CaptureFixture) -> None:
    """Those that the program does not have, under names of their own, in the tables too."""
    assert case.run("all", [*answers.CONDITIONS, "alone=as it is"])
    case.finish("all")
    table = capsys.readouterr().out
    head = "global | window | adapter | off | random | pointer | adapter+pointer | bare window | as it is | "
    assert head + "as it is+pointer | alone |" in table
    found = case.records("all.results")

    def under(condition: str) -> list[Any]:
        return [x.get("answer", x.get("logarithms")) for key, x in sorted(found.items()) if key[2] == condition]

    assert under("as it is") == under("alone") == under("adapter") != under("window")
    assert under("as it is+pointer") == under("adapter+pointer") != under("adapter")
    assert under("bare window") != under("window") == under("off")
    assert under("random") not in (under("adapter"), under("off"))


def test_resuming(case: Case, capsys: pytest.CaptureFixture) -> None:
    """Nothing is made twice; what a killed run left is cut off; time that is over leaves the rest."""
    assert case.run("part", ["window"])
    whole = (case.folder / "part").read_text()
    lines = whole.splitlines(keepends=True)
    (case.folder / "part").write_text("".join(lines[:5]) + lines[5][:20])
    assert not case.run("part", ["window"], minutes=-1)
    assert (case.folder / "part").read_text() == "".join(lines[:5])
    assert case.run("part", ["window"])
    again = (case.folder / "part").read_text()
    assert sorted(again.splitlines()) == sorted(whole.splitlines())
    before = (case.folder / "part").read_text()
    assert case.run("part", ["window"]) and (case.folder / "part").read_text() == before
    case.finish("part")
    results = (case.folder / "part.results").read_text()
    case.finish("part")
    assert (case.folder / "part.results").read_text() == results
    with pytest.raises(ValueError, match="other settings"):
        case.run("part", ["window"], settings={"model": "another"})


def test_few_texts_of_choices_at_once(case: Case, answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short they are: what the seen-token head keeps of each is as wide as the vocabulary."""
    texts, many = answers.Reader._texts, []
    prompts = answers.load(case.folder / "prompts.xz", ["choice"])
    monkeypatch.setattr(answers, "TEXTS", 4)
    monkeypatch.setattr(
        answers.Reader, "_texts", lambda self, rows, *more: many.append(len(rows)) or texts(self, rows, *more)
    )
    assert answers.run(case.model, prompts, ["window"], out=case.folder / "few", tokens=10**6, log=lambda text: None)
    assert many == [4, 4, 4, 3]
    case.finish("few")
    theirs = case.records("c.jsonl")
    for key, record in case.records("few.results").items():
        same(record, theirs[key])


def test_choices_that_are_stopped(case: Case, answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C, which the caller hears of, or by the time: what was read until then is kept."""
    texts, clock, path = answers.Reader._texts, [0.0], case.folder / "stopped"
    calls: list[Any] = []
    prompts = answers.load(case.folder / "prompts.xz", ["choice"])
    options = dict(out=path, tokens=1, log=lambda text: None)  # five examples of three texts, each read alone

    def slow(self: Any, *more: Any) -> None:
        calls.append(more)
        if len(calls) == 8:
            raise KeyboardInterrupt
        clock[0] += 40
        texts(self, *more)

    def kept() -> int:
        return len(path.read_text().splitlines()) - 1

    monkeypatch.setattr(answers.Reader, "_texts", slow)
    monkeypatch.setattr(answers.time, "monotonic", lambda: clock[0])
    with pytest.raises(KeyboardInterrupt):
        answers.run(case.model, prompts, ["window"], **options)
    assert kept() == 2
    assert not answers.run(case.model, prompts, ["window"], minutes=1.5, **options)
    assert len(calls) == 11 and kept() == 3
    assert answers.run(case.model, prompts, ["window"], **options) and kept() == 5
    case.finish("stopped")
    theirs = case.records("c.jsonl")
    for key, record in case.records("stopped.results").items():
        same(record, theirs[key])

    def stopped(*given: Any, **more: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(answers, "run", stopped)
    words = ["run", "--model", str(case.base), "--prompts", str(case.folder / "prompts.xz"), "--out", "x"]
    assert answers.main(words) == 130


def test_no_control_without_what_it_is_for(case: Case, answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time is too short for the first condition of some prompts, the others are not asked either."""
    example = next(x for x in case.prompts.examples if x.first is None)
    few = case.prompts._replace(examples=[example, example._replace(task="another")])
    clock, asked = [0.0], []

    def slow(self: Any, some: list[Any], ends: Any, ways: list[bool], log: Any) -> dict[bool, list[list[int]]]:
        asked.append(some[0].task)
        clock[0] += 60 if len(asked) == 1 else 10
        return {way: [[1]] * len(some) for way in ways}

    monkeypatch.setattr(answers.Reader, "answers", slow)
    monkeypatch.setattr(answers.time, "monotonic", lambda: clock[0])
    options = dict(out=case.folder / "short", minutes=2, rows=1, log=lambda text: None)
    assert not answers.run(case.model, few, ["window", "global"], **options)
    assert asked == [example.task] * 2


@pytest.mark.parametrize("text", ["[{}]", "[\n{}]\n", '{"run": 1}\n', "\xff\n"])
def test_another_file_is_left_alone(case: Case, text: str) -> None:
    path = case.folder / "other"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="other: holds no answers"):
        case.run("other", ["window"])
    assert path.read_bytes() == text.encode("latin-1")


def test_plain_model(case: Case, answers: Any) -> None:
    """Without adapters; the window is given, and the model is left as it was."""
    model = transformers.AutoModelForCausalLM.from_pretrained(case.base).eval()
    with pytest.raises(ValueError, match="give the window"):
        answers.run(model, case.prompts, ["window"], log=lambda text: None)
    with pytest.raises(ValueError, match="no condition 'adopter'"):
        answers.run(model, case.prompts, ["adopter"], log=lambda text: None)
    options = dict(window=WINDOW, sinks=SINKS, pointer=POINTER, out=case.folder / "plain", log=lambda text: None)
    assert answers.run(model, case.prompts, None, **options)
    case.finish("plain")
    theirs, ours = case.records("c.jsonl"), case.records("plain.results")
    assert {key[2] for key in ours} == {"global", "bare window", "window", "pointer"}
    for key, record in ours.items():
        if key[2] != "bare window":
            same(record, theirs[key])
    assert rosatune.hf.attachment(model) is None and rosatune.hf.pointer_of(model) is None


def test_failures(case: Case, answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many rows become fewer; what fails in one cell leaves the others."""
    assert case.run("good", ["window"])
    answer, choices, said = answers.Reader.answer, answers.Reader.choices, []

    def scarce(self: Any, some: list, *more: Any) -> Any:
        if len(some) > 1:
            raise torch.OutOfMemoryError("too many rows")
        return answer(self, some, *more)

    def broken(self: Any, *more: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(answers.Reader, "answer", scarce)
    monkeypatch.setattr(answers.Reader, "choices", broken)
    out = case.folder / "scarce"
    assert not answers.run(case.model, case.prompts, ["window"], out=out, rows=5, log=said.append)
    assert any("too many rows" in text for text in said) and any("RuntimeError: broken" in text for text in said)
    monkeypatch.setattr(answers.Reader, "choices", choices)
    assert case.run("scarce", ["window"])
    assert sorted(out.read_text().splitlines()) == sorted((case.folder / "good").read_text().splitlines())


def test_selection(case: Case, answers: Any) -> None:
    path = case.folder / "prompts.xz"
    chosen = answers.load(path, ["word", "niah_x"], limit=2)
    assert [x.task for x in chosen.examples[:2]] == ["word"] * 2
    groups = {x.length for x in chosen.examples if x.task == "niah_x"}
    assert len(groups) > 1 and all(group & (group - 1) == 0 for group in groups)
    longest = max(groups)
    assert {x.length for x in answers.load(path, ["niah_x"], [longest]).examples} == {longest}
    with pytest.raises(ValueError, match="has no task niah_y"):
        answers.load(path, ["niah_y"])


def test_refusals(case: Case, tmp_path: Path) -> None:
    """Answers that do not belong to the tasks."""
    case.run("good", ["global"])
    lines = (case.folder / "good").read_text().splitlines()
    first = json.loads(lines[1])
    wrong = [
        (0, None, "has no settings"),
        (1, {**first, "sum": "0" * 16}, "is that of another example"),
        (1, {**first, "example": 99}, "is 99; niah_x has 7 examples"),
        (1, {**first, "condition": "a'b"}, "is no name of a condition"),
        (1, {**first, "ids": [5000]}, "is 5000; the vocabulary has"),
        (1, {**first, "ids": None}, "ids"),
        (1, {key: first[key] for key in first if key != "task"}, "task"),
    ]
    for place, line, said in wrong:
        changed = list(lines)
        changed[place : place + 1] = [] if line is None else [json.dumps(line)]
        (tmp_path / "bad").write_text("\n".join(changed) + "\n")
        words = ["--model", case.base, "--tokens", 9, "--answers", tmp_path / "bad", *case.tasks]
        done = program.run("eval", *words)
        assert done.returncode == 1 and said in done.stderr.decode(), (said, done.stderr)
