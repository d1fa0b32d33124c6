"""Streams: any pieces give what the whole gives, and states can be copied, wound back, kept and passed on."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oracle
import rosatune
import rosatune.stream
from rosatune import _c

POLICIES = ["readable", "literal", "inclusive"]


def pieces_of(rng: np.random.Generator, steps: int, most: int) -> list[slice]:
    edges = [0]
    while edges[-1] < steps:
        edges.append(min(steps, edges[-1] + int(rng.integers(1, most + 1))))
    return [slice(a, b) for a, b in zip(edges, edges[1:])]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("bits, max_match", [(1, None), (4, None), (4, 2), (16, 3)])
@pytest.mark.parametrize("most", [1, 7])
def test_pieces_give_what_the_whole_gives(
    rng: np.random.Generator, policy: str, fold: bool, bits: int, max_match: Any, most: int
) -> None:
    query, key = oracle.streams(rng, (3, 40), bits, 2 if bits == 1 else 4, repeat=0.4)
    expected = oracle.retrieve(query, key, bits, policy, fold, max_match)
    stream = rosatune.Stream(3, bits, policy, fold, max_match, threads=2)
    for piece in pieces_of(rng, 40, most):
        found = stream.push(query[:, piece], key[:, piece], length=True, flips=True)
        np.testing.assert_array_equal(found.tau, expected.tau[:, piece])
        np.testing.assert_array_equal(found.length, expected.length[:, piece])
        np.testing.assert_array_equal(found.flips, expected.flips[:, piece])
    assert len(stream) == 40


def test_a_push_that_goes_to_c_in_pieces(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = oracle.streams(rng, (5, 200), 4, 4, repeat=0.4)
    whole = rosatune.retrieve(query, key, bits=4, length=True, flips=True)
    monkeypatch.setattr(rosatune.stream, "_PIECE", 5 * 17)
    found = rosatune.Stream(5, bits=4).push(query, key, length=True, flips=True)
    for a, b in zip(found, whole):
        np.testing.assert_array_equal(a, b)


def test_what_fails_late_in_a_push_undoes_all_of_it(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = oracle.streams(rng, (2, 300), 4, 4, repeat=0.4)
    whole = rosatune.retrieve(query, key, bits=4, flips=True)
    monkeypatch.setattr(rosatune.stream, "_PIECE", 2 * 10)
    stream = rosatune.Stream(2, bits=4)
    stream.push(query[:, :50], key[:, :50], flips=True)
    broken = key.copy()
    broken[1, 250] = 16
    with pytest.raises(rosatune.SymbolError, match="route 1, step 250"):
        stream.push(query[:, 50:], broken[:, 50:], flips=True)
    assert len(stream) == 50
    rest = stream.push(query[:, 50:], key[:, 50:], flips=True)
    np.testing.assert_array_equal(rest.tau, whole.tau[:, 50:])
    np.testing.assert_array_equal(rest.flips, whole.flips[:, 50:])


@pytest.mark.parametrize("shape", [(30,), (1, 30), (1, 1, 30)])
def test_one_route_in_any_shape(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    query, key = oracle.streams(rng, shape, 4, 4, repeat=0.2)
    stream = rosatune.Stream(1, bits=4)
    found = stream.push(query, key, flips=True)
    assert found.tau.shape == shape and found.flips.shape == (*shape, 4) and found.length is None
    np.testing.assert_array_equal(found.tau, rosatune.retrieve(query, key, bits=4))


def test_rows_in_any_shape_and_layout(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (2, 3, 80), 4, 4, repeat=0.2)
    expected = rosatune.retrieve(query[..., ::2].copy(), key[..., ::2].copy(), bits=4)
    stream = rosatune.Stream(6, bits=4)
    np.testing.assert_array_equal(stream.push(query[..., ::2], key[..., ::2]), expected)
    stream.rewind(0)
    np.testing.assert_array_equal(stream.push(query[..., ::2].astype(">i8"), key[..., ::2].astype(np.uint8)), expected)


def test_token_ids_one_by_one(rng: np.random.Generator) -> None:
    ids = rng.integers(1 << 16, 1 << 18, 5)[rng.integers(0, 5, 60)]
    expected = oracle.retrieve(ids, ids, 1, fold=False, delay=4)
    with rosatune.Stream(1, bits=18, fold=False, delay=4) as stream:
        found = [stream.push(ids[t : t + 1], ids[t : t + 1], length=True) for t in range(60)]
        with pytest.raises(rosatune.SymbolError, match="step 60"):
            stream.push([1 << 18], [0])
        with pytest.raises(rosatune.InvalidArgument, match="counterfactuals"):
            stream.push([1], [0], flips=True)
    assert [int(step.tau[0]) for step in found] == expected.tau.tolist()
    assert [int(step.length[0]) for step in found] == expected.length.tolist()


def test_no_steps_are_fine() -> None:
    stream = rosatune.Stream(2, bits=4)
    found = stream.push(np.zeros((2, 0), int), np.zeros((2, 0), int), length=True, flips=True)
    assert found.tau.shape == found.length.shape == (2, 0) and found.flips.shape == (2, 0, 4)
    assert len(stream) == 0 and stream


def test_fork_and_copies_are_independent(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (2, 60), 4, 4, repeat=0.2)
    whole = rosatune.retrieve(query, key, bits=4)
    stream = rosatune.Stream(2, bits=4, policy="readable", threads=2)
    stream.push(query[:, :30], key[:, :30])
    others = [stream.fork(), copy.copy(stream), copy.deepcopy(stream)]
    stream.push(key[:, 30:50], query[:, 30:50])
    for other in others:
        assert len(other) == 30
        np.testing.assert_array_equal(other.push(query[:, 30:], key[:, 30:]), whole[:, 30:])
    stream.rewind(30)
    np.testing.assert_array_equal(stream.push(query[:, 30:], key[:, 30:]), whole[:, 30:])


def test_rewind_and_on(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (3, 120), 2, 4, repeat=0.5)
    whole = rosatune.retrieve(query, key, bits=2, length=True, flips=True)
    stream = rosatune.Stream(3, bits=2)
    stream.push(query, key, flips=True)
    for step in (119, 77, 1, 0, 60):
        stream.rewind(min(step, len(stream)))
        now = len(stream)
        found = stream.push(query[:, now:], key[:, now:], length=True, flips=True)
        np.testing.assert_array_equal(found.tau, whole.tau[:, now:])
        np.testing.assert_array_equal(found.length, whole.length[:, now:])
        np.testing.assert_array_equal(found.flips, whole.flips[:, now:])


def keep_in_file(stream: rosatune.Stream, folder: Path) -> rosatune.Stream:
    stream.save(folder / "état.rosa")
    stream.save(str(folder / "état.rosa"))  # over the older one
    return rosatune.Stream.load(folder / "état.rosa")


def keep_in_bytes(stream: rosatune.Stream, folder: Path) -> rosatune.Stream:
    return rosatune.Stream.from_bytes(memoryview(stream.to_bytes()), threads=1)


def keep_in_pickle(stream: rosatune.Stream, folder: Path) -> rosatune.Stream:
    return pickle.loads(pickle.dumps(stream))


@pytest.mark.parametrize("keep", [keep_in_file, keep_in_bytes, keep_in_pickle])
@pytest.mark.parametrize(
    "policy, fold, max_match, delay",
    [("readable", True, None, 0), ("literal", False, 3, 0), ("readable", True, None, 9)],
)
def test_kept_states_go_on(
    rng: np.random.Generator, tmp_path: Path, keep: Any, policy: str, fold: bool, max_match: Any, delay: int
) -> None:
    query, key = oracle.streams(rng, (3, 70), 4, 4, repeat=0.4)
    whole = rosatune.retrieve(query, key, 4, policy, fold, max_match, delay=delay, flips=True)
    stream = rosatune.Stream(3, 4, policy, fold, max_match, threads=2, delay=delay)
    stream.push(query[:, :33], key[:, :33], flips=True)
    again = keep(stream, tmp_path)
    assert (again.routes, again.bits, again.policy, again.fold, again.max_match, again.delay, len(again)) == (
        *(3, 4, policy, fold, max_match, delay),
        33,
    )
    found = again.push(query[:, 33:], key[:, 33:], flips=True)
    np.testing.assert_array_equal(found.tau, whole.tau[:, 33:])
    np.testing.assert_array_equal(found.flips, whole.flips[:, 33:])
    assert len(stream) == 33


def test_file_and_bytes_are_the_same(rng: np.random.Generator, tmp_path: Path) -> None:
    query, key = oracle.streams(rng, (2, 40), 4, 4, repeat=0.2)
    stream = rosatune.Stream(2, bits=4)
    stream.push(query, key)
    stream.save(tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == stream.to_bytes()


def test_pickle_keeps_the_threads() -> None:
    assert pickle.loads(pickle.dumps(rosatune.Stream(1, threads=3))).threads == 3


def test_states_that_are_not_whole_are_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    query, key = oracle.streams(rng, (2, 40), 4, 4, repeat=0.2)
    stream = rosatune.Stream(2, bits=4)
    stream.push(query, key)
    data = stream.to_bytes()
    altered = bytearray(data)
    altered[len(altered) // 2] ^= 1
    for broken in (data[:-1], data[:10], bytes(altered), b"", b"not a state at all, but long enough to be one" * 9):
        with pytest.raises(rosatune.FormatError):
            rosatune.Stream.from_bytes(broken)
        (tmp_path / "broken").write_bytes(broken)
        with pytest.raises(rosatune.FormatError):
            rosatune.Stream.load(tmp_path / "broken")


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    stream = rosatune.Stream(1)
    with pytest.raises(rosatune.FileError, match="nowhere") as raised:
        rosatune.Stream.load(tmp_path / "nowhere")
    assert isinstance(raised.value, OSError)
    with pytest.raises(OSError, match="nowhere"):
        stream.save(tmp_path / "nowhere" / "state")
    with pytest.raises(ValueError, match="NUL"):
        stream.save("a\0b")
    with pytest.raises(TypeError):
        stream.save(3)  # type: ignore[arg-type]


def test_what_a_stream_says_of_itself(rng: np.random.Generator) -> None:
    query, key = oracle.streams(rng, (2, 50), 4, 4, repeat=0.5)
    stream = rosatune.Stream(2, bits=4, policy="inclusive", fold=True, max_match=9, threads=1, delay=6)
    empty = stream.nbytes
    stream.push(query, key)
    assert (stream.routes, stream.bits, stream.policy, stream.fold) == (2, 4, "inclusive", True)
    assert (stream.max_match, stream.delay, stream.threads, stream.steps, len(stream)) == (9, 6, 1, 50, 50)
    assert stream.key_runs == sum(len(oracle.runs_of(row, True)) for row in key)
    assert stream.query_runs == sum(len(oracle.runs_of(row, True)) for row in query)
    assert stream.nbytes > empty > 0
    assert stream.ordered == 0
    assert repr(stream) == (
        "<rosatune.Stream routes=2 bits=4 policy='inclusive' fold=True max_match=9 delay=6 steps=50>"
    )
    for name in ("routes", "bits", "steps"):
        with pytest.raises(AttributeError):
            setattr(stream, name, 1)


def test_closed_streams() -> None:
    with rosatune.Stream(1, bits=4) as stream:
        stream.push([1, 2], [1, 2])
        assert not stream.closed
    assert stream.closed and "closed" in repr(stream)
    stream.close()
    for use in (
        lambda: stream.push([1], [1]),
        lambda: stream.rewind(0),
        lambda: stream.fork(),
        lambda: stream.to_bytes(),
        lambda: stream.save("never-written"),
        lambda: stream.key_runs,
        lambda: stream.nbytes,
        lambda: pickle.dumps(stream),
    ):
        with pytest.raises(rosatune.InvalidArgument, match="closed"):
            use()
    assert not os.path.exists("never-written")


@pytest.mark.parametrize(
    "use, error, words",
    [
        (lambda s: s.push(np.zeros((2, 4), int), np.zeros((2, 5), int)), ValueError, ["[2, 4]", "[2, 5]"]),
        (lambda s: s.push(np.zeros((3, 4), int), np.zeros((3, 4), int)), ValueError, ["[3, 4]", "2 rows"]),
        (lambda s: s.push([1, 2], [1, 2]), ValueError, ["[2]", "2 rows"]),
        (lambda s: s.push(1, 1), ValueError, ["single number"]),
        (lambda s: s.push(np.zeros((2, 4)), np.zeros((2, 4))), TypeError, ["query", "float64"]),
        (lambda s: s.push([[1], [16]], [[1], [1]]), rosatune.SymbolError, ["query symbol 16 at route 1, step 3"]),
        (lambda s: s.push([[1], [1]], [[1], [-1]]), rosatune.SymbolError, ["key symbol -1"]),
        (lambda s: s.push([[2], [1]], [[1], [1]], flips=True), rosatune.InvalidArgument, ["without flips"]),
        (lambda s: s.rewind(4), rosatune.InvalidArgument, ["step 4", "3"]),
        (lambda s: s.rewind(-1), rosatune.InvalidArgument, ["steps is -1"]),
        (lambda s: s.rewind(1.5), TypeError, ["1.5"]),
    ],
)
def test_bad_use_is_refused_and_changes_nothing(use: Any, error: Any, words: list[str]) -> None:
    stream = rosatune.Stream(2, bits=4)
    stream.push([[1, 2, 2], [1, 2, 3]], [[1, 2, 3], [3, 2, 1]])
    before = stream.to_bytes()
    with pytest.raises(error) as raised:
        use(stream)
    for word in words:
        assert word in str(raised.value)
    assert stream.to_bytes() == before


@pytest.mark.parametrize(
    "options, error",
    [
        ({"routes": 0}, ValueError),
        ({"routes": -1}, ValueError),
        ({"routes": 2.0}, TypeError),
        ({"routes": 1 << 60}, ValueError),
        ({"routes": 1, "bits": 21}, ValueError),
        ({"routes": 1, "delay": 1 << 32}, ValueError),
        ({"routes": 1, "policy": "newest"}, ValueError),
        ({"routes": 1, "max_match": -3}, ValueError),
        ({"routes": 1, "threads": -1}, ValueError),
    ],
)
def test_streams_that_cannot_be(options: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        rosatune.Stream(**options)
    gc.collect()  # what was begun must not trouble the collector


def test_threads_share_a_stream_one_call_at_a_time() -> None:
    stream = rosatune.Stream(4, bits=4, threads=2)
    symbols = np.ones((4, 5), np.uint16)

    def work() -> None:
        for _ in range(50):
            stream.push(symbols, symbols)
            stream.fork().close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stream) == 4 * 50 * 5


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads cannot be counted here")
def test_streams_share_their_threads() -> None:
    program = textwrap.dedent(
        """
        import os
        import rosatune

        def threads():
            return len(os.listdir("/proc/self/task"))

        before = threads()
        streams = [rosatune.Stream(64, bits=2, threads=3) for _ in range(5)]
        streams += [streams[0].fork(), rosatune.Stream.from_bytes(streams[0].to_bytes(), threads=3)]
        for stream in streams:
            stream.push([[0, 1]] * 64, [[0, 1]] * 64)
        print(threads() - before)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "2\n", done.stderr  # the third is the one that calls


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork() here")
def test_a_forked_process_goes_on_with_a_stream() -> None:
    # The child inherits the stream, but none of its worker threads.
    program = textwrap.dedent(
        """
        import os
        import numpy as np
        import rosatune

        symbols = np.random.default_rng(1).integers(0, 4, (256, 20)).astype(np.uint16)
        whole = rosatune.retrieve(symbols, symbols, bits=2)
        stream = rosatune.Stream(256, bits=2, threads=2)
        stream.push(symbols[:, :10], symbols[:, :10])
        child = os.fork()
        last = stream.push(symbols[:, 10:], symbols[:, 10:])
        good = (last == whole[:, 10:]).all() and len(stream) == 20
        stream.close()
        if child == 0:
            os._exit(0 if good else 1)
        _, status = os.waitpid(child, 0)
        print("parent", bool(good), "child", status)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "parent True child 0\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork() here")
def test_a_fork_waits_for_a_push_on_another_thread() -> None:
    # A child that inherited a stream in the middle of a push, and its lock, would wait for ever; an alarm ends it.
    program = textwrap.dedent(
        """
        import os, signal, threading
        import rosatune

        stream = rosatune.Stream(1, bits=2)
        begun, forked, call = threading.Event(), threading.Event(), rosatune._c.call

        def slow(*arguments):
            begun.set()
            forked.wait(0.2)  # at most: with the fork waiting for this push, it cannot come
            call(*arguments)

        rosatune.stream._c.call = slow
        pushing = threading.Thread(target=stream.push, args=([0, 1], [0, 1]))
        pushing.start()
        begun.wait()
        child = os.fork()
        forked.set()
        if child == 0:
            signal.alarm(20)
            stream.push([0], [0])
            os._exit(len(stream))
        pushing.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(stream))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "3 2\n", done.stderr


def test_interrupt_takes_a_push_back(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = oracle.streams(rng, (2, 100), 4, 4, repeat=0.4)
    stream = rosatune.Stream(2, bits=4)
    stream.push(query[:, :10], key[:, :10])
    before = stream.to_bytes()
    monkeypatch.setattr(rosatune.stream, "_PIECE", 2 * 10)
    calls = 0

    def interrupted_call(name: str, *arguments: Any) -> None:
        nonlocal calls
        call(name, *arguments)
        calls += name == "rosa_stream_push"
        if calls == 3 and name == "rosa_stream_push":
            raise KeyboardInterrupt

    call = _c.call
    monkeypatch.setattr(_c, "call", interrupted_call)
    with pytest.raises(KeyboardInterrupt):
        stream.push(query[:, 10:], key[:, 10:])
    assert calls == 3 and len(stream) == 10 and stream.to_bytes() == before
