"""Pointers by contexts: the look-up and the mixture from their definitions, texts that grow, files, fitting."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rosatune
from rosatune import Pointer
from rosatune.pointer import FEATURES

THETA = np.linspace(-3, 1, 13).round(3)
SLOPES = dict(zip(FEATURES, (0.5, -0.2, 0.3, 1.0, 0.7, -0.4, 0.2, 0.6)))


def text(rng: np.random.Generator, steps: int) -> npt.NDArray[np.int64]:
    ids = rng.integers(0, 9, steps)
    ids[steps // 2 :] = np.where(rng.random(steps - steps // 2) < 0.1, 3, ids[: steps - steps // 2])
    return ids


def brute(ids: npt.NDArray[np.int64], delay: int) -> list[list[tuple]]:
    """Per step: place, token, length and clues of each candidate."""
    x, found, success = ids.tolist(), [], 0
    for t in range(len(x)):
        hit = t > 0 and found[-1] and found[-1][0][1] == x[t]
        success = success + (65535 - success) // 32 if hit else success - success // 32
        ends = [e for e in range(t - delay - 2, -1, -1) if x[e] == x[t]]
        two = [e for e in ends if e > 0 and t > 0 and x[e - 1] == x[t - 1]][:64]
        places = two + [e for e in ends[:32] if not (e > 0 and t > 0 and x[e - 1] == x[t - 1])]

        def same(e: int, back: int) -> bool:
            return back <= e and x[e - back] == x[t - back]

        match = {e: next((n for n in range(32) if not same(e, n)), 32) for e in places}
        places.sort(key=lambda e: (-match[e], -e))
        tokens = list(dict.fromkeys(x[e + 1] for e in places))
        row = []
        for token in tokens[:16]:
            first = next(e for e in places if x[e + 1] == token)
            alike = [e for e in places if match[e] >= match[first]]
            n = sum(x[e + 1] == token for e in alike)
            alignment = sum(same(first, back) for back in range(16)) / 16
            clues = (np.log(1 + len(places)), np.log(len(tokens)), np.log(0.01 + success / 65535))
            row.append((first + 1, token, match[first], alignment, np.log((n + 0.3) / (len(alike) + 1)), *clues))
        found.append(row)
    return found


def check(links: Any, expected: list[list[tuple]]) -> None:
    for t, row in enumerate(expected):
        count = len(row)
        assert (links.tokens[t, count:] == -1).all() and (links.lengths[t, count:] == 0).all()
        assert (links.places[t, count:] == -1).all()
        ours = [links.places[t, :count], links.tokens[t, :count], links.lengths[t, :count]]
        assert [x.tolist() for x in ours] == [[entry[i] for entry in row] for i in range(3)]
        if row:
            assert np.abs(links.clues[t, :count] - np.array([entry[3:] for entry in row])).max() < 1e-12


@pytest.mark.parametrize("delay", [0, 20])
def test_links_are_those_of_the_definition(delay: int, rng: np.random.Generator) -> None:
    ids = text(rng, 300)
    pointer = Pointer(THETA, delay, slopes=SLOPES)
    expected = brute(ids, delay)
    check(pointer.look_up(ids), expected)
    stream, at = pointer.stream(), 0
    while at < len(ids):
        piece = ids[at : at + rng.integers(0, 40)]
        check(stream.push(piece), expected[at : at + len(piece)])
        at += len(piece)
    other = stream.fork()
    pickled = pickle.loads(pickle.dumps(copy.deepcopy(stream)))
    other.push([1, 2, 3])
    for state in stream, pickled, other:
        state.rewind(250)
        check(state.push(ids[250:]), expected[250:])


def test_batches_with_padding(rng: np.random.Generator) -> None:
    texts = [text(rng, 90), text(rng, 60)]
    pointer = Pointer(THETA, 5, slopes=SLOPES)
    ids = np.stack([texts[0], np.concatenate([np.full(30, 7), texts[1]])])
    valid = np.ones(ids.shape, bool)
    valid[1, :30] = False
    stream = pointer.stream(2)
    parts = [stream.push(ids[:, a:b], valid[:, a:b]) for a, b in ((0, 40), (40, 90))]
    found = rosatune.pointer.Links(*(np.concatenate(x, 1) for x in zip(*(part[:4] for part in parts))))
    for row, skipped in ((0, 0), (1, 30)):
        alone = pointer.look_up(texts[row])
        assert (found.tokens[row, :skipped] == -1).all()
        assert np.array_equal(found.tokens[row, skipped:], alone.tokens)
        assert np.array_equal(found.clues[row, skipped:], alone.clues)
        places = np.where(alone.places >= 0, alone.places + skipped, -1)
        assert np.array_equal(found.places[row, skipped:], places)
    stream.reorder([1, 1, 0])  # beams
    grown = stream.push(np.full((3, 1), 3))
    for row, source in enumerate((1, 1, 0)):
        alone = pointer.look_up(np.append(texts[source], 3))
        assert np.array_equal(grown.tokens[row, 0], alone.tokens[-1])


def test_file(tmp_path: Path) -> None:
    pointer = Pointer(THETA, 256, slopes={"share": 0.25})
    pointer.save(tmp_path)
    read = Pointer.load(tmp_path)
    assert read == pointer and read.contexts and read.links == 16 and read.delay == 256
    assert read.slopes == {**dict.fromkeys(FEATURES, 0.0), "share": 0.25}
    assert "contexts" in repr(read)
    for change, message in (
        ({"slopes": {"mood": 1}}, "'mood' is not a feature"),
        ({"slopes": {"share": 51}}, "'share' is 51"),
        ({"slopes": 3}, "must be an object"),
        ({"links": 8}, "'links' is not a field"),
        ({"theta": [[0.0] * 13]}, "theta"),
    ):
        with pytest.raises(rosatune.InvalidArgument, match=message):
            Pointer.from_dict({**pointer.to_dict(), **change})
    with pytest.raises(rosatune.InvalidArgument, match="no confidence"):
        Pointer(THETA, 0, confidence=[[0, 0]], slopes={})


def test_mixture(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    from rosatune.torch import PointerHead
    from rosatune.torch import pointer as mixture

    ids = text(rng, 120)
    pointer = Pointer(THETA, 4, slopes=SLOPES)
    found = pointer.look_up(ids)
    logits = rng.normal(size=(120, 12)) * 3
    model = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = model.copy()
    for t in range(120):
        total = 1.0
        entropy = -(model[t] * np.log(model[t])).sum()
        for i in np.flatnonzero(found.lengths[t]):
            token = found.tokens[t, i]
            features = (np.log(model[t, token]), np.log(model[t].max()), entropy, *found.clues[t, i])
            a = np.exp(THETA[min(found.lengths[t, i], 12)] + np.dot(list(SLOPES.values()), features))
            expected[t, token] += a
            total += a
        expected[t] /= total
    tensors = [torch.from_numpy(x) for x in (found.tokens, found.lengths, found.clues)]
    theta, slopes = torch.tensor(THETA), torch.tensor(list(SLOPES.values()), dtype=torch.float64)
    ours = mixture(torch.from_numpy(logits), *tensors[:2], theta, slopes=slopes, clues=tensors[2])
    assert np.abs(ours.exp().numpy() - expected).max() < 1e-12
    head = PointerHead(pointer)
    loss = -head(torch.from_numpy(logits).float(), *tensors)[:-1].gather(1, torch.from_numpy(ids)[1:, None]).mean()
    loss.backward()
    assert head.pointer() == pointer and head.slopes.grad.abs().min() > 0 and torch.isfinite(head.theta.grad).all()
    with pytest.raises(ValueError, match="clues"):
        mixture(torch.from_numpy(logits), *tensors[:2], theta, slopes=slopes)


def test_the_shipped_one_is_read() -> None:
    file = Path(__file__).parents[2] / "examples" / "smollm2-135m-pointer.json"
    if not file.is_file():
        pytest.skip("the examples are not beside the tests")
    pointer = Pointer.load(file)
    assert pointer.contexts and pointer.delay == 256 and all(pointer.slopes.values())


# ---------------------------------------------------------------------------------------------------- tokens seen before

TABLE = (np.arange(60).reshape(4, 15) % 7 / 5 - 0.6).round(3)


def bonus(ids: npt.NDArray[np.int64], t: int, delay: int, vocabulary: int) -> npt.NDArray[np.float64]:
    """b(x) of every token after the one at t, from the definition."""
    made = np.zeros(vocabulary)
    old = ids[: max(t - delay, 0)].tolist()
    for token in set(old):
        often = min(int(np.floor(np.log2(old.count(token)))), 3)
        made[token] = TABLE[often, int(np.floor(np.log2(token + 64))) - 6]
    return made


def test_tokens_seen_change_the_mixture_as_defined(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    from rosatune.torch import pointer as mixed

    vocabulary, delay = 300, 20
    ids = np.where(rng.random(120) < 0.5, text(rng, 120), rng.integers(0, vocabulary, 120))
    logits = torch.from_numpy(rng.normal(size=(120, vocabulary)))
    with_table, without = (Pointer(THETA, delay, slopes=SLOPES, seen=seen) for seen in (TABLE, None))
    numbers = [torch.tensor(THETA), None, None, torch.tensor(list(SLOPES.values()), dtype=torch.float64)]
    found = with_table.look_up(ids)
    assert without.look_up(ids).seen is None
    plain, ours = (
        mixed(logits, *(torch.from_numpy(x) for x in found[1:3]), *numbers, torch.from_numpy(found.clues), *more).exp()
        for more in ((), (torch.tensor(TABLE), found.seen))
    )
    assert torch.equal(plain[: delay + 1], ours[: delay + 1])  # nothing has been seen yet
    for t in range(120):
        p = logits[t].softmax(-1).numpy()
        tilted = p * np.exp(bonus(ids, t, delay, vocabulary))
        # plain = (p + a) / (1 + sum a), so what the links add is known from it
        alone = np.setdiff1d(np.arange(vocabulary), found.tokens[t])[0]
        whole = p[alone] / plain[t, alone].item()
        expected = (tilted / tilted.sum() + plain[t].numpy() * whole - p) / whole
        assert np.abs(ours[t].numpy() - expected).max() < 1e-12
    assert (ours.sum(-1) - 1).abs().max() < 1e-12


def test_tokens_seen_in_texts_that_grow(rng: np.random.Generator) -> None:
    pytest.importorskip("torch")
    from rosatune.torch._pointer import seen_counts

    def counts(seen: Any) -> Any:
        return seen_counts(seen, 300, "cpu").numpy()

    texts = [rng.integers(0, 300, 90), rng.integers(0, 300, 60)]
    pointer = Pointer(THETA, 5, slopes=SLOPES, seen=TABLE)
    ids = np.stack([texts[0], np.concatenate([np.full(30, 7), texts[1]])])
    valid = np.ones(ids.shape, bool)
    valid[1, :30] = False
    alone = [counts(pointer.look_up(given).seen) for given in texts]
    assert all((alone[0][t] == np.bincount(texts[0][: max(t - 5, 0)], minlength=300)).all() for t in range(90))
    stream = pointer.stream(2)
    parts = [counts(stream.push(ids[:, a:b], valid[:, a:b]).seen) for a, b in ((0, 40), (40, 40), (40, 90))]
    found = np.concatenate(parts, 1)
    assert np.array_equal(found[0], alone[0]) and np.array_equal(found[1, 30:], alone[1])
    copies = stream.fork(), pickle.loads(pickle.dumps(stream))
    stream.reorder([1, 1, 0])  # beams
    assert np.array_equal(counts(stream.push(np.full((3, 2), 3)).seen[:, 0])[[1, 2]], found[[1, 0], -1] + [
        np.bincount([text[-5 - 1]], minlength=300) for text in (texts[1], texts[0])])
    for state in copies:
        state.rewind(50)  # a draft was refused
        again = counts(state.push(ids[:, 50:70]).seen)
        assert np.array_equal(again, found[:, 50:70])


def test_a_table_of_tokens_seen_in_a_file(tmp_path: Path) -> None:
    pointer = Pointer(THETA, 256, slopes={}, seen=TABLE)
    pointer.save(tmp_path)
    read = Pointer.load(tmp_path)
    assert read == pointer and np.array_equal(read.seen, TABLE) and "seen" in repr(read)
    assert "seen" not in Pointer(THETA, 256, slopes={}).to_dict()
    for seen, message in (([[0.0] * 15] * 3, "seen has shape"), ([[51.0] * 15] * 4, "51"), (["a"], "seen must be")):
        with pytest.raises(rosatune.InvalidArgument, match=message):
            Pointer.from_dict({**pointer.to_dict(), "seen": seen})
    with pytest.raises(rosatune.InvalidArgument, match="by contexts"):
        Pointer([THETA], 0, seen=TABLE)
