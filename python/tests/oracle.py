"""Retrieval by its definition, for the tests to compare with.

Every answer is found by trying every past run. Nothing here is clever, shares code with the library, or is ever to be
made faster.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np
import numpy.typing as npt


class Answer(NamedTuple):
    tau: npt.NDArray[np.int32]
    length: npt.NDArray[np.int32]
    flips: npt.NDArray[np.int32]


def runs_of(stream: npt.NDArray[np.integer], fold: bool) -> list[tuple[int, int]]:
    """(symbol, first step) of every run."""
    return [(int(s), t) for t, s in enumerate(stream) if not fold or t == 0 or s != stream[t - 1]]


def common_ending(query: list[int], key: list[int], most: Optional[int]) -> int:
    """How many symbols two sequences share, counted from their ends."""
    shared = 0
    while shared < min(len(query), len(key)) and query[-1 - shared] == key[-1 - shared] and shared != most:
        shared += 1
    return shared


def destination(
    query: list[int], keys: list[tuple[int, int]], t: int, policy: str, max_match: Optional[int]
) -> tuple[int, int]:
    """Where the query's runs lead at step t, among key runs begun by then; and how long the match is."""
    best, winner = 0, -1
    for e in range(len(keys)):
        successor = keys[e + 1][1] if e + 1 < len(keys) else None
        if policy == "readable" and (successor is None or successor >= t):
            continue
        if policy == "inclusive" and successor is None:
            continue
        shared = common_ending(query, [symbol for symbol, _ in keys[: e + 1]], max_match)
        if shared >= 1 and shared >= best:
            best, winner = shared, e
    if winner < 0 or winner + 1 >= len(keys) or (policy == "literal" and keys[winner + 1][1] >= t):
        return -1, 0
    return keys[winner + 1][1], best


def retrieve(
    query: npt.NDArray[np.integer],
    key: npt.NDArray[np.integer],
    bits: int,
    policy: str = "readable",
    fold: bool = True,
    max_match: Optional[int] = None,
    delay: int = 0,
) -> Answer:
    """Destinations, lengths and tables of one route, [steps], or of several, [..., steps]."""
    if query.ndim > 1:
        parts = [retrieve(q, k, bits, policy, fold, max_match, delay) for q, k in zip(query, key)]
        return Answer(*(np.stack(of_all) for of_all in zip(*parts)))
    steps = len(query)
    answer = Answer(np.zeros(steps, np.int32), np.zeros(steps, np.int32), np.zeros((steps, bits), np.int32))
    query_runs, key_runs = runs_of(query, fold), runs_of(key, fold)
    for t in range(steps):
        seen = [symbol for symbol, start in query_runs if start <= t]
        late = t - delay
        keys = [run for run in key_runs if run[1] <= late]
        answer.tau[t], answer.length[t] = destination(seen, keys, late, policy, max_match)
        if query_runs[len(seen) - 1][1] == t:
            for j in range(bits):
                flipped = [*seen[:-1], seen[-1] ^ (1 << j)]
                answer.flips[t, j], _ = destination(flipped, keys, late, policy, max_match)
        else:
            answer.flips[t] = answer.flips[t - 1]
    return answer


def streams(
    rng: np.random.Generator, shape: tuple[int, ...], bits: int, letters: int, repeat: float
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    """A query and a key that are worth matching: few letters, runs, and a query that follows the key."""
    alphabet = rng.choice(1 << bits, letters, replace=False)
    key = alphabet[rng.integers(0, letters, shape)]
    other = alphabet[rng.integers(0, letters, shape)]
    for t in range(1, shape[-1]):
        stay = rng.random(shape[:-1]) < repeat
        key[..., t] = np.where(stay, key[..., t - 1], key[..., t])
        other[..., t] = np.where(stay, other[..., t - 1], other[..., t])
    late = np.roll(key, 3, axis=-1)
    query = np.where(rng.random(shape) < 0.8, late, other)
    return query.astype(np.uint16), key.astype(np.uint16)
