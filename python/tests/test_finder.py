"""The look-up of a source: chains, padding, pieces, random places, against the definition."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Optional

import numpy as np
import oracle
import pytest

from rosatune import RosaConfig, _draw
from rosatune import finder as module
from rosatune.finder import Finder, Places, Rule, find

ROWS, STEPS = 3, 60


def rule(**options: Any) -> Rule:
    return Rule(**{**dict(routes=2, bits=4, policy="readable", fold=True, max_match=None, delay=0, links=1), **options})


def text(rng: np.random.Generator, routes: int = 2, steps: int = STEPS) -> np.ndarray:
    return rng.integers(0, 4, (ROWS, routes, steps)).astype(np.uint16)


def expected(by: Rule, query: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The chain of one row of one route, [links, t], by the definition."""
    options = dict(policy=by.policy, fold=by.fold, max_match=by.max_match)
    first = oracle.retrieve(query, key, by.bits, **options, delay=by.delay)
    plain = oracle.retrieve(query, key, by.bits, **options)
    tau, length = np.full((by.links, len(query)), -1), np.zeros((by.links, len(query)), int)
    for t in range(len(query)):
        d, l = int(first.tau[t]), int(first.length[t])
        for link in range(by.links):
            if d < 0:
                break
            tau[link, t], length[link, t] = d, min(l, 255)
            if d == 0:
                break
            d, l = int(plain.tau[d - 1]), min(l, int(plain.length[d - 1]))
    return tau, length


def check(by: Rule, found: Places, query: np.ndarray, key: np.ndarray, valid: Optional[np.ndarray] = None) -> None:
    for row in range(len(query)):
        mine = np.arange(query.shape[2]) if valid is None else np.flatnonzero(valid[row])
        rest = np.setdiff1d(np.arange(query.shape[2]), mine)
        for route in range(query.shape[1]):
            tau, length = expected(by, query[row, route, mine], key[row, route, mine])
            there = np.where(tau >= 0, mine[np.maximum(tau, 0)] if len(mine) else -1, -1)
            np.testing.assert_array_equal(found.tau[:, row, route][:, mine], there)
            np.testing.assert_array_equal(found.length[:, row, route][:, mine], length)
            assert (found.tau[:, row, route][:, rest] == -1).all() and not found.length[:, row, route][:, rest].any()


RULES = [
    dict(),
    dict(links=3),
    dict(links=4, fold=False),
    dict(links=2, policy="inclusive", max_match=3),
    dict(links=2, policy="literal"),
    dict(delay=7),
    dict(delay=7, links=3),
    dict(delay=5, links=4, fold=False),
    dict(delay=STEPS, links=2),
]


@pytest.mark.parametrize("options", RULES, ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sizes", [[STEPS], [1] * STEPS, [17, 0, 1, 42]], ids=["whole", "steps", "pieces"])
def test_places(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, options: dict, padded: bool, sizes: list[int]
) -> None:
    monkeypatch.setattr(module, "TOGETHER", 17)
    by = rule(**options)
    query = text(rng)
    key = query if by.links > 1 else text(rng)
    valid = None
    if padded:
        valid = rng.random((ROWS, STEPS)) > 0.3
        valid[0, :20], valid[1, 30:] = False, False
    check(by, find(by, query, key, valid)["found"], query, key, valid)
    finder, parts, begin = Finder(by, ROWS), [], 0
    for size in sizes:
        part = slice(begin, begin + size)
        parts.append(finder.push(query[..., part], key[..., part], None if valid is None else valid[:, part])["found"])
        begin += size
    whole = Places(*(np.concatenate(kind, -1) for kind in zip(*parts)))
    check(by, whole, query, key, valid)
    assert finder.steps == STEPS and finder.nbytes > 0
    assert finder.lengths == ([STEPS] * ROWS if valid is None else valid.sum(1).tolist())


@pytest.mark.parametrize("options", [dict(), dict(links=3, delay=6)], ids=str)
def test_rewinding_copies_and_beams(rng: np.random.Generator, options: dict) -> None:
    by, query = rule(**options), text(rng)
    whole = find(by, query, query)["found"]
    finder = Finder(by, ROWS)
    finder.push(query, query)
    finder.rewind(25)
    finder.push(*[text(rng, steps=3)] * 2)  # a draft that is thrown away
    finder.rewind(3)
    twins = [finder.fork(), copy.deepcopy(finder), pickle.loads(pickle.dumps(finder))]
    finder.reset()
    assert finder.steps == 0
    for twin in twins:
        twin.reorder([2, 0, 0, 1])
        rows, rest = [2, 0, 0, 1], slice(STEPS - 25, None)
        found = twin.push(*[query[rows][..., rest]] * 2)["found"]
        assert all(np.array_equal(x, y[:, rows][..., rest]) for x, y in zip(found, whole))
    with pytest.raises(ValueError, match="the state holds 0"):
        finder.rewind(1)
    with pytest.raises(ValueError, match="indices has 3"):
        finder.reorder([3])
    with pytest.raises(ValueError, match="2 rows of 2 routes come to a state of 3 rows of 2"):
        finder.push(query[:2], query[:2])


@pytest.mark.parametrize("options", [dict(), dict(links=3, delay=6)], ids=str)
def test_random_places_are_as_old_as_the_delay_wants(rng: np.random.Generator, options: dict) -> None:
    by, query = rule(**options), text(rng)
    valid = rng.random((ROWS, STEPS)) > 0.2
    both = find(by, query, query, valid, ("found", "random"))
    found, drawn = both["found"], both["random"]
    assert np.array_equal(found.length, drawn.length) and not np.array_equal(found.tau, drawn.tau)
    assert np.array_equal(found.tau >= 0, drawn.tau >= 0)
    number = valid.cumsum(1) - 1  # of a step among the valid ones of its row
    links, row, route, step = np.nonzero(drawn.tau >= 0)
    there = drawn.tau[links, row, route, step]
    assert valid[row, there].all() and (number[row, there] < number[row, step] - by.delay).all()
    assert len(np.unique(number[row, there])) > STEPS // 4
    finder, parts = Finder(by, ROWS), []
    for part in (slice(0, 13), slice(13, STEPS)):
        parts.append(finder.push(query[..., part], query[..., part], valid[:, part], ("random",))["random"])
    assert np.array_equal(np.concatenate([part.tau for part in parts], -1), drawn.tau)


@pytest.mark.parametrize("vocabulary", [50_000, 151_936, 1 << 20])
def test_token_ids(rng: np.random.Generator, vocabulary: int) -> None:
    config = RosaConfig(source="tokens", chain=3, window=8, delay=None)
    by = Rule.of(config, config.sources[0], 64, vocabulary)
    ids = np.sort(rng.integers(0, vocabulary, 5))[rng.integers(0, 5, (ROWS, 1, STEPS))]
    ids[0, 0, 0] = vocabulary - 1
    check(by, find(by, ids, ids)["found"], ids, ids)
    finder = Finder(by, ROWS)
    parts = [finder.push(ids[..., part], ids[..., part])["found"] for part in (slice(0, 31), slice(31, STEPS))]
    check(by, Places(*(np.concatenate(kind, -1) for kind in zip(*parts))), ids, ids)


def test_no_steps() -> None:
    nothing = np.zeros((2, 2, 0), np.uint16)
    assert find(rule(links=3), nothing, nothing)["found"].tau.shape == (3, 2, 2, 0)


def test_rules_of_sources() -> None:
    config = RosaConfig(source="tokens+own+embeddings", chain=3, bits=8, window=16, delay=None, fold=True)
    tokens, own, embeddings = (Rule.of(config, source, 64, 50000) for source in config.sources)
    assert tokens == Rule(1, 16, "readable", False, None, 16, 3, 1 << 32)
    assert own == Rule(8, 8, "readable", True, None, 16, 1, 0)
    assert embeddings == own._replace(links=3, seed=(1 << 32) + 2)
    assert Rule.of(config, config.sources[1], 64, layer=5).seed == 5
    assert Rule.of(config, config.sources[0], 64, 151936).bits == 20
    with pytest.raises(ValueError, match="vocabulary of 1048577 tokens is above 1048576; use source='embeddings'"):
        Rule.of(config, config.sources[0], 64, (1 << 20) + 1)
    with pytest.raises(ValueError, match="60 channels are not a multiple of bits 8; bits may be 1, 2, 3"):
        Rule.of(config, config.sources[1], 60)


def test_draws_are_those_of_the_library() -> None:
    """Values of draw_long in src/base/draw.h, computed by hand with whole numbers of Python."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    for seed, route, step in ((0, 0, 0), (7, 3, 1000), (2**53, 2**20, 2**31)):
        expected = mix((mix((mix((seed + 0x9E3779B97F4A7C15) % 2**64) + route) % 2**64) + step) % 2**64)
        assert int(_draw.draw_long(seed, route, step).ravel()[0]) == expected
    signs = _draw.signs(5, 70, 130)
    assert signs.shape == (70, 130) and set(np.unique(signs)) == {-1, 1} and abs(signs.mean()) < 0.05
    assert signs[3, 65] == (1 if int(_draw.draw_long(5, 3, 1).ravel()[0]) >> 1 & 1 else -1)


