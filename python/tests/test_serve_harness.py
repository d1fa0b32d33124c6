"""lm-evaluation-harness through `rosatune serve`: its `local-completions` must measure what `rosatune eval` does.

Both get the same files. For choices the harness sends token ids and asks for the echo with log-probabilities; the sums
over each continuation must be those of `eval`, and so must the scores. For answers it sends stop strings, and what is
written must be the same.
"""

from __future__ import annotations

import contextlib
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

import lm_harness  # noqa: E402
import tiny  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402


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


@pytest.mark.parametrize("window", [[], ["--window", "8", "--sinks", "2"]])
@pytest.mark.parametrize("options", [dict(batch_size=1), dict(batch_size=3, num_concurrent=2)])
def test_choices(model: Path, tmp_path: Path, window: list[str], options: dict[str, int]) -> None:
    file = program.lines(tmp_path / "pick.jsonl", lm_harness.choices())
    task = lm_harness.task(
        "pick",
        file,
        output_type="multiple_choice",
        doc_to_text="{{context}}",
        doc_to_choice="{{continuations}}",
        doc_to_target="{{gold}}",
        target_delimiter="",
        metric_list=lm_harness.means("acc"),
    )
    with serving(model, *window) as address:
        theirs, samples = lm_harness.measure(client(address, model, **options), tmp_path, task)
    condition = "window" if window else "global"
    mine, records = lm_harness.evaluated(tmp_path, model, file, *window, condition=condition)
    sums = lm_harness.logarithms(samples)
    worst = lm_harness.same(sums, [record["logarithms"] for record in records], 1e-6)
    print(f"acc {theirs['acc,none']}, log-probabilities within {worst:.1e}")
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
    file = program.lines(tmp_path / "say.jsonl", lines)
    task = lm_harness.task(
        "say",
        file,
        output_type="generate_until",
        doc_to_text="{{input}}",
        doc_to_target="{{outputs[0]}}",
        generation_kwargs=dict(until=STOPS, max_gen_toks=24, do_sample=False, temperature=0),
        metric_list=lm_harness.means("exact_match"),
    )
    with serving(model, *window) as address:
        theirs, samples = lm_harness.measure(client(address, model, **options), tmp_path, task)
    # the harness stops at the end token of its tokenizer, too
    stops = [word for stop in [*STOPS, "~"] for word in ("--stop", stop)]
    words = [*window, "--metric", "exact", "--tokens", "24", *stops]
    mine, records = lm_harness.evaluated(tmp_path, model, file, *words, condition="window" if window else "global")
    answers = [sample["filtered_resps"][0] for sample in samples]
    assert answers == [record["answer"] for record in records]
    assert any(len(answer) < 12 for answer in answers)  # one was stopped
    assert mine["score"] == theirs["exact_match,none"]
