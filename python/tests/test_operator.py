"""The operator in parts: arrays in and out are the right ones, and bad ones are refused.

The numbers are compared with sums written straight from the definitions, step by step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oracle
import rosatune
from rosatune import RosaConfig, _c

BITS, ROUTES, STEPS = 3, 4, 40
CHANNELS = BITS * ROUTES


def activations(rng: np.random.Generator, batch: tuple[int, ...] = (2,)) -> tuple[np.ndarray, ...]:
    """q, k, v and dL/dy whose symbols repeat: rows are drawn from a few."""
    rows = rng.standard_normal((4, CHANNELS)).astype(np.float32)
    q, k = (rows[rng.integers(0, 4, (*batch, STEPS))] for _ in range(2))
    v, gy = (rng.standard_normal((*batch, STEPS, CHANNELS)).astype(np.float32) for _ in range(2))
    return q, k, v, gy


def parameters(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    e0, e1 = rng.standard_normal((2, CHANNELS)).astype(np.float32)
    return e0, e1


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def slope(x: np.ndarray) -> np.ndarray:
    return sigmoid(x) * (1 - sigmoid(x))


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of bfloat16, by cutting: good for numbers that fit."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("policy", ["readable", "literal", "inclusive"])
@pytest.mark.parametrize("fold", [True, False])
def test_find_is_retrieve(rng: np.random.Generator, policy: str, fold: bool) -> None:
    query, key = oracle.streams(rng, (2, 3, 50), BITS, 4, repeat=0.4)
    rule = RosaConfig(bits=BITS, policy=policy, fold=fold, max_match=4)
    expected = rosatune.retrieve(query, key, **rule.part("retrieval"), flips="runs")
    found = rosatune.find(query, key, rule, qk_grad="flips", training=True)
    assert found.read.dtype == np.uint16 and found.tau.dtype == np.int32
    np.testing.assert_array_equal(found.tau, expected.tau)
    table = np.where(found.flips == 65535, -1, found.flips.astype(np.int32))
    np.testing.assert_array_equal(table[:, 0], expected.flips.tau)
    np.testing.assert_array_equal(table[:, 1:], expected.flips.flip)
    in_use = rosatune.find(query, key, rule)
    np.testing.assert_array_equal(in_use.tau, expected.tau)
    assert in_use.flips is None


def test_find_beyond_16_bits(rng: np.random.Generator) -> None:
    query = rng.integers(0, 4, (1, 70_000))
    found = rosatune.find(query, query, bits=2)
    assert found.read.dtype == np.int32
    np.testing.assert_array_equal(found.tau, rosatune.retrieve(query, query, 2))


def test_find_explores(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (3, 50), BITS, 4, repeat=0.4)
    rule = RosaConfig(bits=BITS, explore=1.0)
    true = rosatune.find(query, key, rule).tau
    explored = rosatune.find(query, key, rule, training=True, seed=1).tau
    again = rosatune.find(query, key, rule, threads=1, training=True, seed=1).tau
    other = rosatune.find(query, key, rule, training=True, seed=2).tau
    np.testing.assert_array_equal(explored, again)
    assert (explored != true).any() and (explored != other).any()
    for row, k in zip(explored, key):
        starts = {start for _, start in oracle.runs_of(k, True)} - {0}
        assert all(d in starts and d < t for t, d in enumerate(row) if d >= 0)


def expected_read(value: np.ndarray, tau: np.ndarray, e0: np.ndarray, e1: np.ndarray) -> np.ndarray:
    """For [batch, routes, steps]."""
    y = np.zeros((tau.shape[0], tau.shape[2], CHANNELS), np.float32)
    for b, r, t in np.argwhere(tau >= 0):
        for j in range(BITS):
            c = r * BITS + j
            y[b, t, c] = e1[c] if value[b, r, tau[b, r, t]] >> j & 1 else e0[c]
    return y


def test_read(rng: np.random.Generator) -> None:
    q, k, v, _ = activations(rng)
    e0, e1 = parameters(rng)
    found = rosatune.find(rosatune.pack(q, BITS), rosatune.pack(k, BITS), bits=BITS)
    value = rosatune.pack(v, BITS)
    expected = expected_read(value, found.tau, e0, e1)
    y = rosatune.read(value, found.read, e0, e1, BITS)
    assert y.dtype == np.float32 and (found.tau >= 0).any()
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(rosatune.read(value, found.tau, e0, e1, BITS, threads=1), expected)
    np.testing.assert_array_equal(rosatune.read(value[0], found.read[0], e0, e1, BITS), expected[0])
    last = rosatune.read(value, found.read[..., -2:], e0, e1, BITS)
    np.testing.assert_array_equal(last, expected[:, -2:])
    short = np.round(e0 * 4) / 4, np.round(e1 * 4) / 4
    halves = rosatune.read(value, found.read, *short, BITS, dtype="bfloat16")
    assert halves.dtype == np.uint16
    np.testing.assert_array_equal(from_bfloat16(halves), expected_read(value, found.tau, *short))


def test_read_from_a_long_history(rng: np.random.Generator) -> None:
    value = rng.integers(0, 1 << BITS, (ROUTES, 70_000))
    e0, e1 = parameters(rng)
    tau = np.array([[0, 69_999, -1]] * ROUTES, np.int32)
    y = rosatune.read(value, tau, e0, e1, BITS)
    np.testing.assert_array_equal(y, expected_read(value[None], tau[None], e0, e1)[0])
    narrow = np.array([[0, 65534, 65535]] * ROUTES, np.uint16)
    y = rosatune.read(value, narrow, e0, e1, BITS)
    wide = np.array([[0, 65534, -1]] * ROUTES, np.int32)
    np.testing.assert_array_equal(y, expected_read(value[None], wide[None], e0, e1)[0])


def expected_gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, e0: np.ndarray, e1: np.ndarray, gy: np.ndarray, rule: RosaConfig
) -> dict[str, np.ndarray]:
    """For [batch, steps, channels], with explore, suffix and flip_share at rest."""
    grads = {name: np.zeros(q.shape) for name in "qkv"} | {name: np.zeros(CHANNELS) for name in ("e0", "e1")}
    p, theta = sigmoid(v), gy.astype(np.float64) * (e1.astype(np.float64) - e0)
    symbols = rosatune.pack(q, BITS), rosatune.pack(k, BITS)
    tau, _, tables = rosatune.retrieve(*symbols, BITS, flips=True)
    for b, r, t in np.ndindex(tau.shape):
        of_route = np.arange(r * BITS, (r + 1) * BITS)
        judged = np.arange(CHANNELS) if rule.credit == "all" else of_route
        d = tau[b, r, t]
        if d >= 0:
            for c in of_route:
                grads["e1" if v[b, d, c] > 0 else "e0"][c] += gy[b, t, c]
                grads["v"][b, d, c] += theta[b, t, c]
        starts = [start for _, start in oracle.runs_of(symbols[1][b, r], True)]
        if rule.qk_grad == "flips":
            first = max(start for _, start in oracle.runs_of(symbols[0][b, r], True) if start <= t)
            for j, c in enumerate(of_route):
                actual, flipped = tau[b, r, first], tables[b, r, t, j]
                branches = (flipped, actual) if q[b, t, c] > 0 else (actual, flipped)
                for sign, d in zip((-1, 1), branches):
                    if d >= 0:
                        amount = sign * (theta[b, t, of_route] * p[b, d, of_route]).sum()
                        grads["q"][b, t, c] += amount
                        back = 0 if rule.key_credit == "destination" else 1
                        grads["k"][b, starts[starts.index(d) - back], c] += amount
        elif rule.qk_grad in ("linear", "soft"):
            pairs = [(d, before) for before, d in zip(starts, starts[1:]) if d < t]
            if not pairs:
                continue
            bits_q = (symbols[0][b, r, t] >> np.arange(BITS)) & 1
            bits_k = np.array([(symbols[1][b, r, before] >> np.arange(BITS)) & 1 for _, before in pairs])
            judge = np.array([(theta[b, t, judged] * p[b, d, judged]).sum() for d, _ in pairs])
            steep = rule.slope if rule.qk_grad == "soft" else 0.0
            weights = np.exp(-steep * (bits_k != bits_q).sum(1))
            weights /= weights.sum()
            g = (rule.slope if rule.qk_grad == "soft" else 1.0) * weights * (judge - (weights * judge).sum())
            grads["q"][b, t, of_route] += g @ (2 * bits_k - 1)
            for (_, before), amount in zip(pairs, g):
                grads["k"][b, before, of_route] += amount * (2 * bits_q - 1)
    for name, x in (("q", q), ("k", k), ("v", v)):
        grads[name] *= slope(x)
    return grads


RULES = [
    RosaConfig(bits=BITS),
    RosaConfig(bits=BITS, credit="route"),
    RosaConfig(bits=BITS, qk_grad="soft", slope=0.7),
    RosaConfig(bits=BITS, qk_grad="soft", credit="route", slope=2.0),
    RosaConfig(bits=BITS, qk_grad="flips"),
    RosaConfig(bits=BITS, qk_grad="flips", key_credit="destination"),
    RosaConfig(bits=BITS, qk_grad="none"),
]


def close(actual: np.ndarray, expected: np.ndarray, relative: float) -> None:
    assert np.abs(actual - expected).max() <= relative * max(1e-30, np.abs(expected).max())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.qk_grad}-{rule.credit}-{rule.key_credit}")
def test_gradients_follow_the_definitions(rng: np.random.Generator, rule: RosaConfig) -> None:
    q, k, v, gy = activations(rng)
    e0, e1 = parameters(rng)
    expected = expected_gradients(q, k, v, e0, e1, gy, rule)
    found = rosatune.find(rosatune.pack(q, BITS), rosatune.pack(k, BITS), rule, training=True)
    grads = rosatune.read_backward(q, k, v, e0, e1, found, gy, rule)
    for name, actual in grads._asdict().items():
        assert actual.dtype == np.float32 and actual.shape == expected[name].shape
        close(actual, expected[name], 1e-5)
        assert np.abs(expected[name]).max() > 0 or (rule.qk_grad == "none" and name in "qk")
    one = rosatune.read_backward(q, k, v, e0, e1, found, gy, rule, threads=1)
    for a, b in zip(grads, one):
        np.testing.assert_array_equal(a, b)


def test_gradients_of_one_sequence_and_of_other_layouts(rng: np.random.Generator) -> None:
    q, k, v, gy = activations(rng, batch=())
    e0, e1 = parameters(rng)
    found = rosatune.find(rosatune.pack(q, BITS), rosatune.pack(k, BITS), bits=BITS)
    grads = rosatune.read_backward(q, k, v, e0, e1, found, gy, bits=BITS)
    assert grads.q.shape == (STEPS, CHANNELS)
    laid = rosatune.read_backward(np.asfortranarray(q), k, v.astype(">f4"), e0, e1, found, gy[::-1][::-1], bits=BITS)
    for a, b in zip(grads, laid):
        np.testing.assert_array_equal(a, b)


def test_gradients_in_bfloat16(rng: np.random.Generator) -> None:
    rounded = [from_bfloat16(to_bfloat16(x)) for x in activations(rng)]
    q, k, v, gy = rounded
    e0, e1 = parameters(rng)
    found = rosatune.find(rosatune.pack(q, BITS), rosatune.pack(k, BITS), bits=BITS)
    exact = rosatune.read_backward(q, k, v, e0, e1, found, gy, bits=BITS)
    q16, k16, v16, gy16 = (to_bfloat16(x) for x in rounded)
    grads = rosatune.read_backward(q16, k16, v16, e0, e1, found, gy16, bits=BITS, dtype="bfloat16")
    for name in "qkv":
        assert getattr(grads, name).dtype == np.uint16
        close(from_bfloat16(getattr(grads, name)), getattr(exact, name), 1e-2)
    close(grads.e0, exact.e0, 1e-5)
    close(grads.e1, exact.e1, 1e-5)


def test_no_steps_have_no_gradients() -> None:
    none = np.zeros((2, 0, CHANNELS), np.float32)
    e = np.zeros(CHANNELS, np.float32)
    found = rosatune.find(rosatune.pack(none, BITS), rosatune.pack(none, BITS), bits=BITS)
    assert rosatune.read(rosatune.pack(none, BITS), found.read, e, e, BITS).shape == (2, 0, CHANNELS)
    grads = rosatune.read_backward(none, none, none, e, e, found, none, bits=BITS)
    assert grads.q.shape == none.shape and not grads.e0.any()


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(qk_grad="hard"), ["qk_grad", "'hard'", "'linear'"]),
        (dict(credit="some"), ["credit", "'route'"]),
        (dict(key_credit="run"), ["key_credit", "'destination'"]),
        (dict(slope=0.0), ["slope"]),
        (dict(suffix=-1.0), ["suffix"]),
        (dict(explore=1.5), ["explore"]),
        (dict(flip_share=0.0), ["flip_share"]),
        (dict(explore=float("nan")), ["explore"]),
        (dict(seed=-1), ["seed is -1"]),
    ],
)
def test_learning_that_makes_no_sense(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(rosatune.InvalidArgument) as raised:
        rosatune.find([0, 1], [0, 1], training=True, **options)
    for word in words:
        assert word in str(raised.value)


def test_read_refuses(rng: np.random.Generator) -> None:
    value = np.zeros((ROUTES, 9), np.uint16)
    tau = np.zeros((ROUTES, 5), np.int32)
    e = np.zeros(CHANNELS, np.float32)
    bad: list[tuple[Any, ...]] = [
        ((value, tau[:2], e, e), {}, ValueError, ["[2, 5]", "[4, 9]"]),
        ((value, tau.astype(np.int64), e, e), {}, TypeError, ["int64"]),
        ((value, tau + 9, e, e), {}, ValueError, ["9"]),
        ((value, (tau + 9).astype(np.uint16), e, e), {}, ValueError, ["9"]),
        # numbers that a conversion to 16 bits would wrap into the range
        ((value, tau - 65536, e, e), {}, ValueError, ["-65536"]),
        ((value, tau - 2, e, e), {}, ValueError, ["-2"]),
        ((value, tau + 65536, e, e), {}, ValueError, ["65536"]),
        ((value, tau, e[:-1], e), {}, ValueError, ["e0", "[11]", "12 channels"]),
        ((value, tau, e, e[None]), {}, ValueError, ["e1", "[1, 12]"]),
        ((value[0], tau[0], e, e), {}, ValueError, ["value", "[9]"]),
        ((value, tau, e, e), {"dtype": "float16"}, ValueError, ["float16"]),
        ((value, tau, e, e), {"dtype": "int8"}, ValueError, ["int8"]),
    ]
    for arguments, options, error, words in bad:
        with pytest.raises(error) as raised:
            rosatune.read(*arguments, bits=BITS, **options)
        for word in words:
            assert word in str(raised.value)


def test_backward_refuses(rng: np.random.Generator) -> None:
    q, k, v, gy = activations(rng)
    e0, e1 = parameters(rng)
    found = rosatune.find(rosatune.pack(q, BITS), rosatune.pack(k, BITS), bits=BITS, qk_grad="flips", training=True)
    bad: list[tuple[dict[str, Any], Any, list[str]]] = [
        ({"k": k[:, :-1]}, ValueError, ["k has shape", "[2, 39, 12]"]),
        ({"v": v.astype(np.float64)}, TypeError, ["v is of kind float64"]),
        ({"q": q.astype(np.float16)}, TypeError, ["float16"]),
        ({"dtype": "bfloat16"}, TypeError, ["float32", "uint16"]),
        ({"e0": e0[1:]}, ValueError, ["e0", "[11]"]),
        ({"bits": 5}, ValueError, ["12 channels", "5"]),
        ({"bits": 4}, ValueError, ["found.read", "[2, 3, 40]"]),
        ({"found": found._replace(read=found.tau)}, ValueError, ["int32", "uint16"]),
        ({"found": found._replace(read=found.read[:1])}, ValueError, ["found.read", "[1, 4, 40]"]),
        ({"found": found._replace(read=np.full_like(found.read, 40))}, ValueError, ["40"]),
        ({"found": found._replace(flips=None), "qk_grad": "flips"}, ValueError, ["no flips"]),
        ({"found": found._replace(flips=found.flips[1:]), "qk_grad": "flips"}, ValueError, ["found.flips"]),
        (
            {"found": found._replace(flips=np.full_like(found.flips, 40)), "qk_grad": "flips"},
            ValueError,
            ["40"],
        ),
    ]
    good: dict[str, Any] = dict(q=q, k=k, v=v, e0=e0, e1=e1, found=found, gy=gy, bits=BITS)
    for change, error, words in bad:
        with pytest.raises(error) as raised:
            rosatune.read_backward(**{**good, **change})
        for word in words:
            assert word in str(raised.value)


# What Ctrl-C does: the library asks a callback whether to go on, and ends when it is told not to. That a signal makes
# the callback say so is tested in test_retrieve.py.


def told_to_stop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Long calls are told to stop the first time they ask; gives how often they asked."""
    asked = []

    def run(work: Any, _total: int) -> None:
        work(_c.rosa_progress(lambda _context, done, _total: asked.append(done) or 1))

    monkeypatch.setattr(rosatune.operator, "run", run)
    return asked


def test_find_can_be_stopped(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = oracle.streams(rng, (3, 50), BITS, 4, repeat=0.4)
    asked = told_to_stop(monkeypatch)
    with pytest.raises(rosatune.Cancelled):
        rosatune.find(query, key, bits=BITS, threads=1)
    assert len(asked) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.qk_grad}-{rule.credit}-{rule.key_credit}")
def test_read_backward_can_be_stopped(
    rng: np.random.Generator, rule: RosaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, gy = activations(rng)
    e0, e1 = parameters(rng)
    found = rosatune.find(rosatune.pack(q, BITS), rosatune.pack(k, BITS), rule, training=True)
    asked = told_to_stop(monkeypatch)
    with pytest.raises(rosatune.Cancelled):
        rosatune.read_backward(q, k, v, e0, e1, found, gy, rule, threads=1)
    assert len(asked) == 1
