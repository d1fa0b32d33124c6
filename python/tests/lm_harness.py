"""What the tests with lm-evaluation-harness share: tasks on files of our own, what it measures, and what eval does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import program
import pytest

evaluator = pytest.importorskip("lm_eval.evaluator", reason="lm-eval is not installed")
tasks = pytest.importorskip("lm_eval.tasks")

# Context, continuations after a space, and which is right.
CHOICES = [
    ("the old ferryman sang of the river and of the", ["bell", "river. the old river", "ferry"], 1),
    ("a bell rang", ["twice", "for the ferry"], 0),
    ("water, and the bell, and water, and the", ["bell", "b", "herring and the bell", "water"], 3),
    ("who sang of the river?", ["nobody sang of the river", "the ferryman"], 1),
]


def choices() -> list[dict[str, Any]]:
    """The lines of `rosatune eval` for them."""
    return [dict(context=c, continuations=[" " + each for each in some], gold=gold) for c, some, gold in CHOICES]


def task(name: str, file: Path, **more: Any) -> dict[str, Any]:
    """A task of the harness on a file of our own."""
    data = dict(dataset_path="json", dataset_kwargs=dict(data_files=dict(test=str(file))), test_split="test")
    return dict(task=name, **data, **more)


def means(*names: str) -> list[dict[str, Any]]:
    return [dict(metric=name, aggregation="mean", higher_is_better=True) for name in names]


def measure(model: Any, folder: Path, given: dict[str, Any], **more: Any) -> tuple[dict[str, Any], list[Any]]:
    """The scores of a task by the harness, and its samples in order."""
    (folder / "task.yaml").write_text(json.dumps(given), encoding="utf-8")  # JSON is YAML
    # It lists every package of the machine in its results, which takes longer than a test.
    with mock.patch.object(evaluator, "add_env_info", lambda results: None, create=True):
        measured = evaluator.simple_evaluate(
            model=model,
            tasks=[given["task"]],
            task_manager=tasks.TaskManager(include_path=str(folder), include_defaults=False),
            num_fewshot=0,
            bootstrap_iters=0,
            random_seed=None,
            **more,
        )
    name = given["task"]
    return measured["results"][name], sorted(measured["samples"][name], key=lambda sample: sample["doc_id"])


def logarithms(samples: list[Any]) -> list[list[float]]:
    """Of each example the log-probabilities of its continuations."""
    return [[float(logarithm) for logarithm, _ in sample["filtered_resps"]] for sample in samples]


def evaluated(
    folder: Path, model: Path, file: Path, *words: Any, condition: str = "global"
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scores of `rosatune eval` for a file with one task, and its results one by one."""
    out = folder / "results.jsonl"
    said = program.succeed("eval", "--model", model, "--conditions", condition, *words, "--out", out, "--json", file)
    (measured,) = json.loads(said)["tasks"].values()
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()[1:]]
    return measured["conditions"][condition], records


def same(one: list[list[float]], other: list[list[float]], within: float) -> float:
    """The greatest difference of log-probabilities."""
    assert [len(each) for each in one] == [len(each) for each in other]
    worst = max(abs(a - b) for mine, theirs in zip(one, other) for a, b in zip(mine, theirs))
    assert worst < within
    return worst
