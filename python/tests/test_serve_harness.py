"""lm-evaluation-harness through `rosatune serve`: its `local-completions` must measure what `rosatune eval` does.

Both get the same files. For choices the harness sends token ids and asks for the echo with log-probabilities; the sums
over each continuation must be those of `eval`, and so must the scores. For answers it sends stop strings, and what is
written must be the same.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any, Iterator

import program
import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytest.importorskip("tenacity", reason="lm-eval needs tenacity for servers (lm-eval[api])")
pytest.importorskip("aiohttp", reason="lm-eval needs aiohttp for servers (lm-eval[api])")

import tiny  # noqa: E402
from lm_eval import evaluator, tasks  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402

CHOICES = [
    ("the old ferryman sang of the river and of the", [" bell", " river. the old river", " ferry"], 1),
    ("a bell rang", [" twice", " for the ferry"], 0),
    ("water, and the bell, and water, and the", [" bell", " b", " herring and the bell", " water"], 3),
    ("who sang of the river?", [" nobody sang of the river", " the ferryman"], 1),
]


@contextlib.contextmanager
def serving(model: Path, *words: str) -> Iterator[str]:
    """The address of a server that runs for as long."""
    command = [str(program.path()), "serve", "--model", str(model), "--port", "0", "--name", "tiny", *words]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # else a server whose test was killed would keep the test's output open
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/v1", line)
            if not found:
                pytest.skip("the program has no HTTP server")
            yield found[0]
        finally:
            server.terminate()
            server.wait(60)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program.path()
    _, folder = tiny.folder_with_tokenizer(tmp_path_factory.mktemp("tiny"))
    # the harness wants a token that ends texts; this one stands in none
    transformers.AutoTokenizer.from_pretrained(folder, eos_token="~").save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def no_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness lists every package of the machine in its results, which takes longer than all tests here."""
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None, raising=False)


def client(address: str, model: Path, **options: Any) -> LocalCompletionsAPI:
    return LocalCompletionsAPI(
        base_url=address + "/completions",
        model="tiny",
        tokenizer=str(model),
        tokenizer_backend="huggingface",
        tokenized_requests=True,
        timeout=60,  # a server that does not answer fails the test
        max_retries=1,
        **options,
    )


def measure(client: LocalCompletionsAPI, folder: Path, task: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The scores of a task by the harness, and its samples in order."""
    (folder / "task.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML
    measured = evaluator.simple_evaluate(
        model=client,
        tasks=[task["task"]],
        task_manager=tasks.TaskManager(include_path=str(folder), include_defaults=False),
        num_fewshot=0,
        bootstrap_iters=0,
        random_seed=None,
    )
    name = task["task"]
    return measured["results"][name], sorted(measured["samples"][name], key=lambda sample: sample["doc_id"])


def local(name: str, lines: list[dict[str, Any]], folder: Path, **more: Any) -> tuple[Path, dict[str, Any]]:
    """A file of `rosatune eval`, and a task of the harness on it."""
    file = program.lines(folder / f"{name}.jsonl", lines)
    data = dict(dataset_path="json", dataset_kwargs=dict(data_files=dict(test=str(file))), test_split="test")
    return file, dict(task=name, **data, **more)


@pytest.mark.parametrize("window", [[], ["--window", "8", "--sinks", "2"]])
@pytest.mark.parametrize("options", [dict(batch_size=1), dict(batch_size=3, num_concurrent=2)])
def test_choices(model: Path, tmp_path: Path, window: list[str], options: dict[str, int]) -> None:
    lines = [dict(context=context, continuations=choices, gold=gold) for context, choices, gold in CHOICES]
    file, task = local(
        "pick",
        lines,
        tmp_path,
        output_type="multiple_choice",
        doc_to_text="{{context}}",
        doc_to_choice="{{continuations}}",
        doc_to_target="{{gold}}",
        target_delimiter="",
        metric_list=[dict(metric="acc", aggregation="mean", higher_is_better=True)],
    )
    with serving(model, *window) as address:
        theirs, samples = measure(client(address, model, **options), tmp_path, task)
    out = tmp_path / "results.jsonl"
    conditions = "window" if window else "global"
    said = program.succeed("eval", "--model", model, *window, "--conditions", conditions, "--out", out, "--json", file)
    mine = json.loads(said)["tasks"]["pick"]["conditions"][conditions]
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()[1:]]
    sums = [[float(logarithm) for logarithm, _ in sample["filtered_resps"]] for sample in samples]
    assert [len(each) for each in sums] == [len(choices) for _, choices, _ in CHOICES]
    worst = max(abs(a - b) for one, record in zip(sums, records) for a, b in zip(one, record["logarithms"]))
    print(f"acc {theirs['acc,none']}, log-probabilities within {worst:.1e}")
    assert worst < 1e-6
    assert mine["score"] == theirs["acc,none"]


QUESTIONS = [
    ("the old ferryman sang of the river and of the", "bell"),
    ("a bell rang for the ferry. who sang?", "the ferryman"),
    ("water, and the bell, and water, and the", "water"),
    ("the old river. the old ferry. the old", "herring"),
]
STOPS = ["Q", "-"]  # they stand in some answers


@pytest.mark.parametrize("window", [[], ["--window", "8", "--sinks", "2"]])
@pytest.mark.parametrize("options", [dict(batch_size=1), dict(batch_size=3, num_concurrent=2)])
def test_answers(model: Path, tmp_path: Path, window: list[str], options: dict[str, int]) -> None:
    """Answers that are written: those of `eval`, letter by letter, with the harness's stop strings."""
    lines = [dict(index=i, input=question, outputs=[answer]) for i, (question, answer) in enumerate(QUESTIONS)]
    file, task = local(
        "say",
        lines,
        tmp_path,
        output_type="generate_until",
        doc_to_text="{{input}}",
        doc_to_target="{{outputs[0]}}",
        generation_kwargs=dict(until=STOPS, max_gen_toks=24, do_sample=False, temperature=0),
        metric_list=[dict(metric="exact_match", aggregation="mean", higher_is_better=True)],
    )
    with serving(model, *window) as address:
        theirs, samples = measure(client(address, model, **options), tmp_path, task)
    out = tmp_path / "results.jsonl"
    conditions = "window" if window else "global"
    # the harness stops at the end token of its tokenizer, too
    stops = [word for stop in [*STOPS, "~"] for word in ("--stop", stop)]
    words = ["--conditions", conditions, "--metric", "exact", "--tokens", "24", *stops, "--out", out, "--json"]
    said = program.succeed("eval", "--model", model, *window, *words, file)
    mine = json.loads(said)["tasks"]["say"]["conditions"][conditions]
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()[1:]]
    answers = [sample["filtered_resps"][0] for sample in samples]
    assert answers == [record["answer"] for record in records]
    assert any(len(answer) < 12 for answer in answers)  # one was stopped
    assert mine["score"] == theirs["exact_match,none"]
