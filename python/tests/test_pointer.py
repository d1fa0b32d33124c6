"""The pointer: its file, its look-up, and what it makes of logits, against the definition."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import oracle
import pytest

import rosatune
from rosatune import Pointer

THETA = np.linspace(-3, 1, 4 * 13).reshape(4, 13).round(3)
SLOPES = [[0.5, -0.25], [0.25, 0.0], [0.0, 0.5], [-0.5, 0.25]]
AGREEMENT = [1.0, 0.25, -0.5, -2.0]


def text(rng: np.random.Generator, steps: int, letters: int = 3) -> npt.NDArray[np.int64]:
    """Few letters, of large ids: long matches and many of them."""
    return rng.choice([49151, 7, 0, 300, 12345], letters, replace=False)[rng.integers(0, letters, steps)]


def chain(ids: npt.NDArray[np.int64], t: int, delay: int, links: int) -> list[tuple[int, int]]:
    """The links of position t by the definition: (place, length)."""

    def best(t: int, delay: int) -> tuple[int, int]:
        found = (-1, 0)
        for end in range(t - delay - 1):
            shared = oracle.common_ending(ids[: t + 1].tolist(), ids[: end + 1].tolist(), None)
            if shared and shared >= found[1]:
                found = (end + 1, shared)
        return found

    found = [best(t, delay)]
    while len(found) < links and found[-1][0] >= 0:
        place, length = best(found[-1][0] - 1, 0)
        found.append((place, min(length, found[-1][1]) if place >= 0 else 0))
    return found + [(-1, 0)] * (links - len(found))


# -------------------------------------------------------------------------------------------------------------- look-up


@pytest.mark.parametrize("delay", (0, 1, 9, 200))
def test_links_are_those_of_the_definition(delay: int, rng: np.random.Generator) -> None:
    ids = text(rng, 120)
    found = Pointer(THETA, delay).look_up(ids)
    for t in range(len(ids)):
        expected = chain(ids, t, delay, 4)
        assert list(zip(found.places[t].tolist(), found.lengths[t].tolist())) == expected
        assert found.tokens[t].tolist() == [ids[place] if place >= 0 else -1 for place, _ in expected]
    assert (found.places[:, 3] >= 0).any() == (delay < 200)


@pytest.mark.parametrize("delay", (0, 9))
def test_growing_text(delay: int, rng: np.random.Generator) -> None:
    ids = text(rng, 700)
    pointer = Pointer(THETA, delay)
    whole = pointer.look_up(ids)
    stream, at = pointer.stream(), 0
    while at < len(ids):
        piece = ids[at : at + rng.integers(0, 40)]
        found = stream.push(piece)
        for ours, theirs in zip(found[:4], whole):
            assert np.array_equal(ours, theirs[at : at + len(piece)])
        at += len(piece)
    assert len(stream) == 700 and np.array_equal(stream.ids, [ids])


def test_rewind_and_fork(rng: np.random.Generator) -> None:
    ids, other = text(rng, 300), text(rng, 300)
    pointer = Pointer(THETA, 5)
    stream = pointer.stream()
    stream.push(ids)
    second = copy.deepcopy(stream)
    stream.rewind(100)
    changed = np.concatenate([ids[:100], other])
    for mine, all_ids, begin, piece in ((stream, changed, 100, other), (second, np.append(ids, 7), 300, [7])):
        for ours, theirs in zip(mine.push(piece)[:4], pointer.look_up(all_ids)):
            assert np.array_equal(ours, theirs[begin:])
    assert len(stream) == 400 and len(second) == 301


def test_rows(rng: np.random.Generator) -> None:
    ids = np.stack([text(rng, 80), text(rng, 80, 5)])
    pointer = Pointer(THETA[:2], 3)
    found = pointer.look_up(ids)
    assert found.tokens.shape == (2, 80, 2)
    for row in range(2):
        for ours, theirs in zip(found[:4], pointer.look_up(ids[row])):
            assert np.array_equal(ours[row], theirs)
    assert pointer.look_up(np.zeros((2, 0), int)).tokens.shape == (2, 0, 2)
    assert pointer.look_up([]).tokens.shape == (0, 2)


def test_ids_are_checked() -> None:
    pointer = Pointer(THETA, 0)
    with pytest.raises(rosatune.SymbolError, match=r"token id 1048576 at \[2\].*0 to 1048575"):
        pointer.look_up([1, 2, 1 << 20])
    with pytest.raises(rosatune.SymbolError, match=r"token id -100 at \[0, 1\]"):
        pointer.look_up([[1, -100]])
    with pytest.raises(TypeError, match="whole numbers"):
        pointer.look_up([0.5])
    with pytest.raises(rosatune.InvalidArgument, match=r"ids have shape \[1, 2\]; 3 texts grow by \[batch, steps\]"):
        pointer.stream(batch=3).push([[1, 2]])


def test_growing_batch_with_padding(rng: np.random.Generator) -> None:
    """Rows that begin at different positions, go back, and are reordered: as each text alone."""
    pointer, valid = Pointer(THETA, 5), np.ones((3, 150), bool)
    ids = np.stack([text(rng, 150) for _ in range(3)])
    valid[1, :20] = valid[2, 60:75] = False
    alone = [pointer.look_up(ids[row][valid[row]]) for row in range(3)]
    stream = pointer.stream(batch=3)
    for begin, end in ((0, 30), (30, 31), (31, 110)):
        stream.push(ids[:, begin:end], valid[:, begin:end])
    stream.rewind(40)
    rows = [2, 0, 1, 2]
    stream.reorder(rows)
    found = stream.push(ids[rows][:, 40:], valid[rows][:, 40:])
    assert stream.batch == 4 and np.array_equal(stream.ids, ids[rows])
    for mine, row in enumerate(rows):
        real, before = valid[row, 40:], valid[row, :40].sum()
        assert np.array_equal(found.tokens[mine][real], alone[row].tokens[before:])
        assert np.array_equal(found.lengths[mine][real], alone[row].lengths[before:])
        assert (found.tokens[mine][~real] == -1).all() and (found.lengths[mine][~real] == 0).all()


# ----------------------------------------------------------------------------------------------------------------- file


@pytest.mark.parametrize("slopes, agreement", ((None, None), (SLOPES, None), (SLOPES, AGREEMENT)))
def test_file(slopes: Any, agreement: Any, tmp_path: Path) -> None:
    pointer = Pointer(THETA, 256, slopes, agreement)
    pointer.save(tmp_path)
    fields = json.loads((tmp_path / "pointer.json").read_text())
    assert fields["format"] == 1 and fields["delay"] == 256 and fields["links"] == 4
    assert fields["theta"] == THETA.tolist() and fields.get("confidence") == slopes
    assert fields.get("agreement") == agreement and ("agreement" in repr(pointer)) == (agreement is not None)
    assert fields["rosatune_version"] == rosatune.__version__
    pointer.save(tmp_path / "other.json")
    for path in (tmp_path, tmp_path / "pointer.json", tmp_path / "other.json"):
        assert Pointer.load(path) == pointer
    assert Pointer(THETA, 255, slopes, agreement) != pointer and Pointer(THETA, 256, slopes, [0.0] * 4) != pointer
    with pytest.raises(ValueError):
        pointer.theta[0, 0] = 1


@pytest.mark.parametrize(
    "change, message",
    (
        ({"format": 3}, "'format' is 3"),
        ({"format": None}, "'format' is None"),
        ({"entropy": 1}, "'entropy' is not a field of a pointer"),
        ({"delay": -1}, "delay"),
        ({"delay": 1.5}, "'delay' is 1.5; it must be a whole number"),
        ({"delay": True}, "'delay' is True"),
        ({"links": 3}, "'links' is 3, but 'theta' has 4 rows"),
        ({"theta": [[0.0] * 12] * 4}, r"theta has shape \[4, 12\]; give 13 numbers"),
        ({"theta": [[0.0] * 13] * 17}, r"1 to 16 links"),
        ({"theta": [[0.0] * 13, [0.0]]}, "theta must be a table of numbers"),
        ({"theta": [["a"] * 13] * 4}, "theta must be a table of numbers"),
        ({"theta": [[51.0] * 13] * 4}, "theta has the number 51.0; they are from -50 to 50"),
        ({"theta": [[float("nan")] * 13] * 4}, "theta has the number nan"),
        ({"confidence": [[0.0, 0.0]] * 3}, "confidence has 3 rows, and theta 4"),
        ({"confidence": [[0.0]] * 4}, r"confidence has shape \[4, 1\]; give 2 numbers"),
        ({"agreement": [0.0] * 3}, "agreement must be a list of 4 numbers"),
        ({"agreement": [[0.0] * 4]}, "agreement must be a list of 4 numbers"),
        ({"agreement": [0.0, 0.0, 0.0, 51.0]}, "agreement has the number 51.0"),
    ),
)
def test_bad_file(change: dict, message: str, tmp_path: Path) -> None:
    fields = {**Pointer(THETA, 8).to_dict(), **change}
    (tmp_path / "pointer.json").write_text(json.dumps(fields))
    with pytest.raises(rosatune.AdapterError, match=f"pointer.json: .*{message}"):
        Pointer.load(tmp_path)


def test_missing_and_broken_file(tmp_path: Path) -> None:
    with pytest.raises(rosatune.AdapterError, match="pointer.json: no such file; rosatune.hf.fit_pointer"):
        Pointer.load(tmp_path)
    for content, message in (
        ("[1]", "holds a list, not an object"),
        ("{", "is not JSON"),
        ('{"format": 1}', "'delay' is"),
    ):
        (tmp_path / "p.json").write_text(content)
        with pytest.raises(rosatune.AdapterError, match=message):
            Pointer.load(tmp_path / "p.json")


# --------------------------------------------------------------------------------------------------------------- logits

torch = pytest.importorskip("torch")
from rosatune.torch import PointerHead, pointer as mixture  # noqa: E402


def expected(pointer: Pointer, logits: Any, tokens: Any, lengths: Any) -> npt.NDArray[np.float64]:
    """log p by the definition, for [steps, vocabulary] logits."""
    result = np.zeros(logits.shape)
    for t, row in enumerate(np.asarray(logits, np.float64)):
        p = np.exp(row - row.max())
        p /= p.sum()
        weights = np.zeros(len(row))
        for i in range(pointer.links):
            if lengths[t, i] > 0:
                exponent = pointer.theta[i, min(lengths[t, i], 12)]
                if pointer.confidence is not None:
                    token, greatest = np.log(p[tokens[t, i]]), np.log(p.max())
                    exponent += pointer.confidence[i] @ [max(token, -50), max(greatest, -50)]
                if pointer.agreement is not None:
                    exponent += pointer.agreement[len(set(tokens[t][lengths[t] > 0])) - 1]
                weights[tokens[t, i]] += np.exp(exponent)
        with np.errstate(divide="ignore"):
            result[t] = np.log(p + weights) - np.log1p(weights.sum())
    return result


def example(rng: np.random.Generator, steps: int = 60) -> tuple[Any, Any, Any]:
    """Logits over 6 tokens, so that links often agree, and links of all lengths."""
    ids = rng.integers(0, 6, steps)
    ids[30:50] = ids[5:25]
    found = Pointer(THETA, 2).look_up(ids)
    assert found.lengths.max() > 12 and (found.lengths == 0).any()
    logits = torch.tensor(3 * rng.standard_normal((steps, 6)))
    return logits, torch.tensor(found.tokens), torch.tensor(found.lengths)


@pytest.mark.parametrize("slopes, agreement", ((None, None), (SLOPES, None), (None, AGREEMENT), (SLOPES, AGREEMENT)))
def test_mixture(slopes: Any, agreement: Any, rng: np.random.Generator) -> None:
    logits, tokens, lengths = example(rng)
    pointer = Pointer(THETA, 2, slopes, agreement)
    more = [None if x is None else torch.tensor(x, dtype=torch.float64) for x in (slopes, agreement)]
    ours = mixture(logits, tokens, lengths, torch.tensor(THETA), *more)
    theirs = expected(pointer, logits.numpy(), tokens.numpy(), lengths.numpy())
    assert ours.dtype == torch.float64 and np.abs(ours.numpy() - theirs).max() < 1e-12
    head = PointerHead(pointer)
    assert np.abs(head(logits.float(), tokens, lengths).detach().numpy() - theirs).max() < 1e-5
    assert head.pointer() == pointer
    # Logits of the mixture: only those of the tokens found change.
    mixed, total, grown = head.mix(logits, tokens, lengths)
    assert np.abs((mixed - total - grown).detach().numpy() - theirs).max() < 1e-6
    for t in range(len(logits)):
        still = [x for x in range(6) if x not in tokens[t]]
        assert torch.equal(mixed[t, still], logits[t, still])


@pytest.mark.parametrize("given", ([THETA], [THETA, SLOPES], [THETA, SLOPES, AGREEMENT]))
def test_gradients(given: Any, rng: np.random.Generator) -> None:
    logits, tokens, lengths = (x[40:54] for x in example(rng))
    numbers = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in given]
    assert torch.autograd.gradcheck(
        lambda *given: mixture(given[0], tokens, lengths, *given[1:]), (logits.requires_grad_(), *numbers)
    )


def test_excluded_tokens_stay_excluded(rng: np.random.Generator) -> None:
    logits, tokens, lengths = example(rng)
    logits[:, 2] = -torch.inf
    theta = torch.tensor(THETA, requires_grad=True)
    ours = mixture(logits.requires_grad_(), tokens, lengths, theta)
    assert (ours[:, 2] == -torch.inf).all() and not ours.isnan().any()
    rest = [x for x in range(6) if x != 2]
    theirs = mixture(logits[:, rest], tokens - (tokens > 2).long(), lengths.where(tokens != 2, 0), theta)
    assert (ours[:, rest] - theirs).abs().max() < 1e-12
    ours[:, rest].sum().backward()
    assert theta.grad.isfinite().all() and logits.grad[:, rest].isfinite().all()


def test_nothing_found_changes_nothing(rng: np.random.Generator) -> None:
    logits, tokens, lengths = example(rng)
    ours = mixture(logits, torch.full_like(tokens, -1), torch.zeros_like(lengths), torch.tensor(THETA))
    assert (ours - logits.log_softmax(-1)).abs().max() < 1e-12
