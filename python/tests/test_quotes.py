"""bench/quotes.py: what is asked was said before, of the same thing, far enough away, and answers quote it."""

from __future__ import annotations

import bisect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rosatune import RosaConfig, finder

SCRIPT = Path(__file__).parents[2] / "bench" / "quotes.py"
ANSWER = re.compile(r"as the text says: (.+)\n")


def made(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    text = tmp_path / "text.txt"
    marks = ".!?"
    text.write_text(" ".join(f"Sentence number {i} of a plain and quiet book{marks[i * i % 3]}" for i in range(500)))
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out"), "--texts", str(text), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_answers_quote_what_was_said_far_before(tmp_path: Path, bench_script: Any) -> None:
    words = ["--documents", "4", "--facts", "30", "--nearest", "2000", "--farthest", "6000", "--several", "0"]
    assert made(tmp_path, *words).returncode == 0
    files = sorted((tmp_path / "out").glob("*.txt"))
    assert len(files) == 4
    quoted, things = 0, bench_script("quotes").THINGS
    for file in files:
        text = file.read_text()
        assert "magic number" not in text
        for answer in ANSWER.finditer(text):
            question = text.rindex("\n\n", 0, answer.start())
            for part in re.findall(r"\S[^.]*\.", answer[1]):
                said = text.index(part)
                assert 1500 < question - said < 20000, part
                asked = text[question:answer.start()]
                assert part.split()[0].rstrip(":") in asked, "the question names it"
                thing = next(thing for thing in things if thing in asked)
                assert thing in re.split(r"[.?]\s", text[:said])[-1].lower(), "asked for together: of one thing"
                quoted += 1
    assert quoted == 4 * 30, "every fact is asked for once"
    before = [file.read_bytes() for file in files]
    assert made(tmp_path, *words).returncode == 0
    assert [file.read_bytes() for file in files] == before, "a seed gives the same text again"


def test_all_values_of_a_name_are_quoted_the_newest_first(tmp_path: Path) -> None:
    assert made(tmp_path, "--documents", "2", "--facts", "20", "--several", "1").returncode == 0
    answers = 0
    for file in (tmp_path / "out").glob("*.txt"):
        text = file.read_text()
        for answer in ANSWER.finditer(text):
            parts = re.findall(r"\S[^.]*\.", answer[1])
            places = [text.index(part) for part in parts]
            assert 2 <= len(parts) <= 4 and places == sorted(places, reverse=True)
            name = re.match(r"[\w-]+", parts[0])[0]  # type: ignore[index]
            assert all(part.startswith(name) for part in parts)
            assert len(re.findall(rf"\b{name}\b", text[: answer.start()].rpartition("\n\n")[0])) == len(parts)
            answers += 1
    assert answers == 2 * 20


def test_a_chain_leads_to_all_values_of_a_name(tmp_path: Path) -> None:
    """At each name of an answer the links of a chain are its values, the newest first, whatever stands around them."""
    words = ["--documents", "3", "--facts", "40", "--several", "1", "--nearest", "2500", "--farthest", "9000"]
    assert made(tmp_path, *words).returncode == 0
    answered = 0
    for file in (tmp_path / "out").glob("*.txt"):
        text = file.read_text()
        tokens = list(re.finditer(r"\w+|[^\w\s]", text))
        begins, known = [token.start() for token in tokens], {}
        ids = np.array([known.setdefault(token[0], len(known)) for token in tokens])[None, None]
        rule = finder.Rule.of(RosaConfig(window=300, chain=4), RosaConfig().sources[0], 64)
        tau = finder.find(rule, ids, ids, reads=("found",))["found"].tau[:, 0, 0]
        for answer in ANSWER.finditer(text):
            parts = list(re.finditer(r"\S[^.]*\.", answer[1]))
            for link, part in enumerate(parts):
                last = re.match(r"[\w-]+( is:|:| is| was| equals| reads| has been set to| =) ", part[0])
                assert last
                said = bisect.bisect_left(begins, text.index(part[0]) + last.end())
                here = bisect.bisect_left(begins, answer.start(1) + part.start() + last.end())
                assert tau[link, here - 1] == said, part[0]
            answered += len(parts)
    assert answered > 3 * 40


def test_a_wrong_distance_is_refused(tmp_path: Path) -> None:
    done = made(tmp_path, "--nearest", "100", "--farthest", "10")
    assert done.returncode != 0 and "--nearest 100 --farthest 10" in done.stderr
