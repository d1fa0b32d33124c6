"""Whole streams at once, and packing: against the definition, in every shape and kind that users bring."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

import oracle
import rosatune
from rosatune import _interrupt

POLICIES = ["readable", "literal", "inclusive"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("max_match", [None, 1, 2, 5])
@pytest.mark.parametrize("bits, letters", [(1, 2), (2, 4), (4, 3), (16, 5)])
def test_answers_follow_the_definition(
    rng: np.random.Generator, policy: str, fold: bool, max_match: Any, bits: int, letters: int
) -> None:
    query, key = oracle.streams(rng, (3, 40), bits, letters, repeat=0.4)
    expected = oracle.retrieve(query, key, bits, policy, fold, max_match)
    found = rosatune.retrieve(query, key, bits, policy, fold, max_match, length=True, flips=True)
    np.testing.assert_array_equal(found.tau, expected.tau)
    np.testing.assert_array_equal(found.length, expected.length)
    np.testing.assert_array_equal(found.flips, expected.flips)
    alone = rosatune.retrieve(query, key, bits, policy, fold, max_match)
    assert alone.dtype == np.int32
    np.testing.assert_array_equal(alone, expected.tau)
    assert (expected.tau >= 0).any(), "streams that never match test nothing"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("delay", [1, 2, 7, 39, 40, 2**32 - 1])
def test_a_delay_follows_the_definition(rng: np.random.Generator, policy: str, fold: bool, delay: int) -> None:
    query, key = oracle.streams(rng, (2, 40), 2, 3, repeat=0.3)
    expected = oracle.retrieve(query, key, 2, policy, fold, None, delay)
    found = rosatune.retrieve(query, key, 2, policy, fold, delay=delay, length=True, flips=True)
    for got, want in zip(found, expected):
        np.testing.assert_array_equal(got, want)
    kept = rosatune.find(query, key, bits=2, policy=policy, fold=fold, delay=delay, length=True)
    np.testing.assert_array_equal(kept.tau, expected.tau)
    np.testing.assert_array_equal(kept.length, expected.length)
    assert delay < 39 or (expected.tau < 0).all()


@pytest.mark.parametrize("bits", [17, 20])
@pytest.mark.parametrize("delay", [0, 3])
def test_token_ids(rng: np.random.Generator, bits: int, delay: int) -> None:
    ids = rng.integers(0, 2**bits, 6)
    query, key = (ids[part] for part in oracle.streams(rng, (2, 60), 3, 6, repeat=0.2) for part in [part % 6])
    expected = oracle.retrieve(query, key, 1, delay=delay)
    found = rosatune.retrieve(query, key, bits, delay=delay, length=True)
    np.testing.assert_array_equal(found.tau, expected.tau)
    np.testing.assert_array_equal(found.length, expected.length)
    kept = rosatune.find(query.astype(np.uint32), key, bits=bits, delay=delay, length=True)
    np.testing.assert_array_equal(kept.tau, expected.tau)
    np.testing.assert_array_equal(kept.length, expected.length)
    assert (expected.tau >= 0).any()
    with pytest.raises(rosatune.SymbolError, match=rf"query symbol {2**bits} at route 1, step 7"):
        query[1, 7] = 2**bits
        rosatune.retrieve(query, key, bits)
    with pytest.raises(rosatune.SymbolError, match="-1 at"):
        rosatune.retrieve([-1], [0], bits)
    with pytest.raises(rosatune.InvalidArgument, match="counterfactuals"):
        rosatune.retrieve(key, key, bits, flips=True)


def test_lengths_of_find_are_cut() -> None:
    text = np.tile(np.arange(300), 3)
    found = rosatune.find(text, text, bits=9, length=True)
    assert found.length is not None and found.length.dtype == np.uint8
    exact = rosatune.retrieve(text, text, bits=9, length=True).length
    np.testing.assert_array_equal(found.length, np.minimum(exact, 255))
    assert exact.max() > 255
    assert rosatune.find(text, text, bits=9).length is None
    explored = rosatune.find(text, text, bits=9, explore=0.5, training=True, length=True)
    elsewhere = explored.tau != found.tau
    assert elsewhere.any() and (explored.length[elsewhere] == 0).all()


def test_exploration_respects_the_delay() -> None:
    text = np.tile(np.arange(7), 30)
    found = rosatune.find(text, text, bits=3, explore=1.0, training=True, delay=50)
    steps = np.arange(len(text))
    assert (found.tau < steps - 50).all() or (found.tau[found.tau >= 0] < (steps - 50)[found.tau >= 0]).all()
    assert (found.tau >= 0).sum() > 100


def test_chains(rng: np.random.Generator) -> None:
    text = rng.integers(0, 3, (2, 80))
    late = rosatune.retrieve(text, text, bits=2, fold=False, delay=9, length=True)
    early = rosatune.retrieve(text, text, bits=2, fold=False, length=True)
    places = rosatune.chain(late, early, links=4)
    assert places.tau.shape == places.length.shape == (4, 2, 80)
    for row in range(2):
        for t in range(80):
            place, shared = late.tau[row, t], late.length[row, t]
            for link in range(4):
                assert places.tau[link, row, t] == place
                assert places.length[link, row, t] == (shared if place >= 0 else 0)
                if place >= 0:
                    shared = min(shared, early.length[row, place - 1])
                    place = early.tau[row, place - 1]
    assert (places.tau[3] >= 0).any() and (places.tau[3] < 0).any()
    with pytest.raises(rosatune.InvalidArgument, match="no lengths"):
        rosatune.chain(rosatune.Retrieved(late.tau), early)
    with pytest.raises(rosatune.InvalidArgument, match="must agree"):
        rosatune.chain(late, rosatune.Retrieved(early.tau[:, 1:], early.length[:, 1:]))
    with pytest.raises(rosatune.InvalidArgument, match="links is 17"):
        rosatune.chain(late, early, links=17)
    with pytest.raises(rosatune.InvalidArgument, match="leads to a place"):
        rosatune.chain(rosatune.Retrieved(late.tau + 80, late.length), early)


def test_tables_at_run_level(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (2, 3, 50), 4, 4, repeat=0.5)
    runs = rosatune.retrieve(query, key, bits=4, flips="runs").flips
    assert isinstance(runs, rosatune.FlipRuns)
    steps = rosatune.retrieve(query, key, bits=4, flips=True)
    assert steps.length is None
    rows = query.reshape(6, 50)
    assert runs.first[0] == 0 and len(runs.first) == 7
    for r, row in enumerate(rows):
        of_route = slice(runs.first[r], runs.first[r + 1])
        starts = [start for _, start in oracle.runs_of(row, True)]
        assert runs.start[of_route].tolist() == starts
        np.testing.assert_array_equal(runs.tau[of_route], steps.tau.reshape(6, 50)[r, starts])
        np.testing.assert_array_equal(runs.flip[of_route], steps.flips.reshape(6, 50, 4)[r, starts])


def test_threads_do_not_change_the_answer(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (64, 300), 4, 6, repeat=0.3)
    one = rosatune.retrieve(query, key, bits=4, threads=1, length=True, flips=True)
    for threads in (0, 2, 5):
        many = rosatune.retrieve(query, key, bits=4, threads=threads, length=True, flips=True)
        for a, b in zip(one, many):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(30,), (1, 30), (4, 30), (2, 3, 30), (2, 1, 2, 30), (5, 1)])
def test_shapes_are_kept(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    query, key = oracle.streams(rng, shape, 3, 4, repeat=0.2)
    found = rosatune.retrieve(query, key, bits=3, length=True, flips=True)
    assert found.tau.shape == found.length.shape == shape
    assert found.flips.shape == (*shape, 3)
    flat = rosatune.retrieve(query.reshape(-1, shape[-1]), key.reshape(-1, shape[-1]), bits=3)
    np.testing.assert_array_equal(found.tau.ravel(), flat.ravel())


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 5)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    none = np.zeros(shape, np.uint16)
    found = rosatune.retrieve(none, none, bits=3, length=True, flips=True)
    assert found.tau.shape == found.length.shape == shape
    assert found.flips.shape == (*shape, 3)
    runs = rosatune.retrieve(none, none, bits=3, flips="runs").flips
    assert runs.first.tolist() == [0] * (int(np.prod(shape[:-1])) + 1)
    assert runs.start.shape == runs.tau.shape == (0,) and runs.flip.shape == (0, 3)


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">u2", ">i4", "?"])
def test_kinds_of_integers(rng: np.random.Generator, kind: str) -> None:
    query, key = oracle.streams(rng, (2, 40), 1, 2, repeat=0.2)
    expected = rosatune.retrieve(query, key, bits=1)
    np.testing.assert_array_equal(rosatune.retrieve(query.astype(kind), key.astype(kind), bits=1), expected)


def test_lists_do(rng: np.random.Generator) -> None:
    assert rosatune.retrieve([0, 1, 0, 1], [0, 1, 0, 1], bits=1).tolist() == [-1, -1, 1, 2]


def test_slices_and_transposes(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (6, 60), 4, 5, repeat=0.2)
    expected = rosatune.retrieve(query[::2, 5:50:3].copy(), key[::2, 5:50:3].copy(), bits=4)
    np.testing.assert_array_equal(rosatune.retrieve(query[::2, 5:50:3], key[::2, 5:50:3], bits=4), expected)
    columns = np.asfortranarray(query)
    assert not columns.flags.c_contiguous
    np.testing.assert_array_equal(
        rosatune.retrieve(columns, key, bits=4, threads=2), rosatune.retrieve(query, key, bits=4)
    )
    backwards = query[:, ::-1]
    np.testing.assert_array_equal(
        rosatune.retrieve(backwards, key, bits=4), rosatune.retrieve(backwards.copy(), key, bits=4)
    )


def test_inputs_are_only_read(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (2, 50), 4, 4, repeat=0.2)
    before = query.copy(), key.copy()
    query.flags.writeable = key.flags.writeable = False
    rosatune.retrieve(query, key, bits=4)
    np.testing.assert_array_equal(query, before[0])
    np.testing.assert_array_equal(key, before[1])


ZEROS = np.zeros((2, 8), np.uint16)


@pytest.mark.parametrize(
    "query, key, options, error, words",
    [
        (ZEROS.astype(np.float32), ZEROS, {}, TypeError, ["query", "float32", "rosatune.pack"]),
        (ZEROS, ZEROS.astype(complex), {}, TypeError, ["key", "complex128"]),
        (ZEROS, ZEROS[:, :7], {}, ValueError, ["query", "key", "[2, 8]", "[2, 7]"]),
        (np.uint16(3), np.uint16(3), {}, ValueError, ["query", "single number"]),
        (ZEROS + 16, ZEROS, {"bits": 4}, rosatune.SymbolError, ["query", "16", "4 bits"]),
        (ZEROS, ZEROS + 65535, {"bits": 15}, rosatune.SymbolError, ["key", "65535"]),
        (ZEROS, ZEROS.astype(np.int32) - 1, {}, rosatune.SymbolError, ["key", "-1"]),
        (ZEROS.astype(np.int64) + 65536, ZEROS, {}, rosatune.SymbolError, ["query", "65536"]),
        (ZEROS, ZEROS, {"bits": 0}, rosatune.InvalidArgument, ["bits is 0"]),
        (ZEROS, ZEROS, {"bits": 21}, rosatune.InvalidArgument, ["bits is 21"]),
        (ZEROS, ZEROS, {"delay": -1}, rosatune.InvalidArgument, ["delay is -1"]),
        (ZEROS, ZEROS, {"bits": 2**32 + 4}, rosatune.InvalidArgument, ["bits is 4294967300"]),
        (ZEROS, ZEROS, {"bits": 4.0}, TypeError, ["bits is 4.0"]),
        (ZEROS, ZEROS, {"policy": "best"}, rosatune.InvalidArgument, ["'best'", "'readable'"]),
        (ZEROS, ZEROS, {"max_match": 0}, rosatune.InvalidArgument, ["max_match", "None"]),
        (ZEROS, ZEROS, {"max_match": 2**32}, rosatune.InvalidArgument, ["max_match"]),
        (ZEROS, ZEROS, {"threads": -1}, rosatune.InvalidArgument, ["threads"]),
        (ZEROS, ZEROS, {"threads": 100_000}, rosatune.InvalidArgument, ["threads is 100000"]),
        (ZEROS, ZEROS, {"flips": "steps"}, rosatune.InvalidArgument, ["'steps'", '"runs"']),
    ],
)
def test_bad_input_is_refused(query: Any, key: Any, options: dict[str, Any], error: Any, words: list[str]) -> None:
    with pytest.raises(error) as raised:
        rosatune.retrieve(query, key, **options)
    for word in words:
        assert word in str(raised.value)


def test_progress_is_told_and_ends_at_the_total(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (8, 100), 4, 4, repeat=0.2)
    told: list[tuple[int, int]] = []
    where: list[threading.Thread] = []

    def progress(done: int, total: int) -> bool:
        told.append((done, total))
        where.append(threading.current_thread())
        return True  # says nothing: progress bars return all kinds of things

    found = rosatune.retrieve(query, key, bits=4, progress=progress)
    np.testing.assert_array_equal(found, rosatune.retrieve(query, key, bits=4))
    assert told[-1] == (800, 800)
    assert told == sorted(told)
    assert set(where) == {threading.current_thread()}


def test_what_progress_raises_stops_the_work(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (8, 100), 4, 4, repeat=0.2)

    class Enough(Exception):
        pass

    def progress(done: int, total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        rosatune.retrieve(query, key, bits=4, flips=True, progress=progress)


def test_failures_pass_through_a_call_with_progress() -> None:
    with pytest.raises(rosatune.SymbolError, match="does not fit into 4 bits"):
        rosatune.retrieve(ZEROS + 16, ZEROS, bits=4, progress=lambda done, total: None)


@pytest.mark.parametrize("threads", [1, 2])
def test_interrupt_ends_retrieval(threads: int) -> None:
    # A child process, since the signal is for its main thread. It ends by the signal or not at all.
    program = textwrap.dedent(
        f"""
        import os, signal, threading
        import numpy as np
        import rosatune

        signal.signal(signal.SIGINT, signal.default_int_handler)
        streams = np.random.default_rng(1).integers(0, 16, (3000, 1000)).astype(np.uint16)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                rosatune.retrieve(streams, streams, bits=4, threads={threads})
        except KeyboardInterrupt:
            print("interrupted", [thread.name for thread in threading.enumerate() if thread.name == "rosatune"])
        print(rosatune.retrieve([0, 0, 0], [0, 0, 0], bits=4).tolist())
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "interrupted []\n[-1, -1, -1]\n", done.stderr
    assert done.stderr == ""


def test_interrupt_reaches_work_that_is_under_way() -> None:
    # The work goes on until it is told to stop, so the signal can only come while it is under way.
    asked = 0

    def endless(callback: Any) -> None:
        nonlocal asked
        while not callback(None, asked, 1 << 40):
            asked += 1
        raise rosatune.Cancelled("told to stop")

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            _interrupt.run(endless, 1 << 40, None)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
    assert asked > 0
    assert "rosatune" not in [thread.name for thread in threading.enumerate()]


def test_other_threads_may_retrieve(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (16, 200), 4, 4, repeat=0.2)
    expected = rosatune.retrieve(query, key, bits=4)
    answers: list[Any] = [None] * 6

    def work(i: int) -> None:
        answers[i] = rosatune.retrieve(query, key, bits=4, threads=2)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        np.testing.assert_array_equal(answer, expected)


# ---------------------------------------------------------------------------------------------------------- symbols


def packed_by_definition(x: np.ndarray, bits: int) -> np.ndarray:
    *batch, steps, channels = x.shape
    set_bits = (x > 0).reshape(*batch, steps, channels // bits, bits)
    return np.moveaxis((set_bits << np.arange(bits)).sum(-1), -1, -2).astype(np.uint16)


@pytest.mark.parametrize("bits", [1, 3, 4, 8, 16])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_pack_and_unpack(rng: np.random.Generator, bits: int, kind: Any, batch: tuple[int, ...]) -> None:
    x = rng.standard_normal((*batch, 17, 6 * bits)).astype(kind)
    x[..., :3, :2] = [0.0, -0.0]
    x[..., 3, 0] = np.nan
    symbols = rosatune.pack(x, bits)
    assert symbols.shape == (*batch, 6, 17) and symbols.dtype == np.uint16
    np.testing.assert_array_equal(symbols, packed_by_definition(x, bits))
    values = rosatune.unpack(symbols, bits)
    assert values.dtype == np.uint8
    np.testing.assert_array_equal(values, x > 0)


def test_pack_bfloat16(rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, 32)).astype(np.float32)
    halves = (x.view(np.uint32) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(rosatune.pack(halves, 16, dtype="bfloat16"), rosatune.pack(x, 16))


def test_pack_takes_any_layout(rng: np.random.Generator) -> None:
    x = rng.standard_normal((12, 64)).astype(np.float32)
    expected = packed_by_definition(x[::2, 16:48], 16)
    np.testing.assert_array_equal(rosatune.pack(x[::2, 16:48], 16), expected)
    np.testing.assert_array_equal(rosatune.pack(x.T.copy().T[::2, 16:48], 16), expected)
    np.testing.assert_array_equal(rosatune.pack(x.astype(">f4")[::2, 16:48], 16), expected)


def test_pack_nothing() -> None:
    assert rosatune.pack(np.zeros((0, 8), np.float32), 4).shape == (2, 0)
    assert rosatune.pack(np.zeros((0, 5, 8), np.float32), 4).shape == (0, 2, 5)
    assert rosatune.unpack(np.zeros((2, 0), np.uint16), 4).shape == (0, 8)
    assert rosatune.unpack(np.zeros((0, 2, 3), np.uint16), 4).shape == (0, 3, 8)


@pytest.mark.parametrize(
    "x, options, error, words",
    [
        (np.zeros((4, 10), np.float32), {"bits": 4}, ValueError, ["10 channels", "multiple of bits, 4"]),
        (np.zeros((4, 0), np.float32), {"bits": 4}, ValueError, ["0 channels"]),
        (np.zeros((4, 8), np.float64), {"bits": 4}, TypeError, ["float64", "float32"]),
        (np.zeros((4, 8), np.uint16), {"bits": 4}, TypeError, ["uint16", "bfloat16"]),
        (np.zeros((4, 8), np.float32), {"bits": 4, "dtype": "bfloat16"}, TypeError, ["float32", "uint16"]),
        (np.zeros((4, 8), np.float32), {"bits": 4, "dtype": "int8"}, ValueError, ["'int8'", "'float16'"]),
        (np.zeros(8, np.float32), {"bits": 4}, ValueError, ["[8]", "[steps, channels]"]),
        (np.zeros((4, 8), np.float32), {"bits": 17}, ValueError, ["bits is 17"]),
    ],
)
def test_pack_refuses(x: Any, options: dict[str, Any], error: Any, words: list[str]) -> None:
    with pytest.raises(error) as raised:
        rosatune.pack(x, **options)
    for word in words:
        assert word in str(raised.value)


def test_unpack_refuses_what_is_no_symbol() -> None:
    with pytest.raises(rosatune.SymbolError, match="16"):
        rosatune.unpack(np.full((2, 3), 16), bits=4)
    with pytest.raises(rosatune.InvalidArgument, match="routes, steps"):
        rosatune.unpack(np.zeros(3, np.uint16), bits=4)
