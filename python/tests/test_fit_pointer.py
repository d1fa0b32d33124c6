"""Fitting a pointer to a frozen model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiny  # noqa: E402

import rosatune.hf  # noqa: E402
from rosatune import Pointer  # noqa: E402
from rosatune.hf import fit  # noqa: E402
from rosatune.torch import pointer as mixture  # noqa: E402


def text(rng: np.random.Generator, steps: int, right: float = 0.8) -> Any:
    """A text that repeats itself 40 tokens later, now and then with another token."""
    ids = rng.integers(2, 50, steps)
    for t in range(40, steps):
        if rng.random() < right:
            ids[t] = ids[t - 40]
    return ids


@pytest.mark.parametrize("kind", ("plain", "window", "adapters", "gpt2"))
@pytest.mark.parametrize("confidence", (False, True))
def test_fit(kind: str, confidence: bool, rng: np.random.Generator) -> None:
    texts = [text(rng, 500), text(rng, 300)]
    options: Any = dict(links=2, confidence=confidence, context=200)
    if kind == "adapters":
        model = tiny.attached(sinks=1)
    elif kind == "gpt2":
        torch.manual_seed(1)
        shape: Any = dict(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=256)
        model, options["delay"] = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)), 8
    else:
        model = tiny.model()
        if kind == "window":
            options.update(window=8, sinks=1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    grads = {name: weight.requires_grad for name, weight in model.named_parameters()}
    made = rosatune.hf.fit_pointer(model, texts, **options)
    assert made.delay == (0 if kind == "plain" else 8) and made.links == 2
    assert (made.confidence is not None) == confidence
    first = 1 if kind == "plain" else 32
    count = sum(n - first for n in (200, 200, 200, 100, 100))
    assert made.fit.positions == count - count // 5
    assert made.fit.after < made.fit.before - 1 and made.fit.far_after < made.fit.far_before - 1
    # Longer matches are right more often.
    assert made.theta[0, 12] > made.theta[0, 1] + 1
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert grads == {name: weight.requires_grad for name, weight in model.named_parameters()}
    assert rosatune.hf.fit_pointer(model, texts, **options) == made


@pytest.mark.parametrize(
    "options", [dict(links=3, confidence=True), {}, dict(seen=False)], ids=["chain", "contexts", "without seen"]
)
def test_losses_are_those_of_the_pointer(options: Any, rng: np.random.Generator) -> None:
    """The losses that are minimised against those that recall measures with the same pointer."""
    model, ids = tiny.model(), text(rng, 200)
    made = rosatune.hf.fit_pointer(model, [ids], window=10, sinks=2, context=200, **options)
    with rosatune.hf.reading.frozen(model), rosatune.hf.arrange.arranged(model, "window", 10, 2):
        observed = fit._observe(model, {"": ids}, made, 200, 1000, None)
    ours = fit.losses_with(made, observed)
    assert (made.seen is not None) == (options == {})
    result = rosatune.recall(model, ids, window=10, sinks=2, context=200, pointer=made)
    assert result.total("window").loss == pytest.approx(-float(observed.target.mean()), abs=1e-5)
    assert result.total("pointer").loss == pytest.approx(float(ours.mean()), abs=1e-5)
    assert result.conditions["pointer"]["far"] == pytest.approx(float(ours[observed.far].mean()), abs=1e-5)
    # The report is on the last fifth.
    held = slice(made.fit.positions, None)
    assert made.fit.positions == 128 and made.fit.after == pytest.approx(float(ours[held].mean()), abs=1e-6)
    assert made.fit.before == pytest.approx(-float(observed.target[held].mean()), abs=1e-6)
    assert made.fit.far_after == pytest.approx(float(ours[held][observed.far[held]].mean()), abs=1e-6)


def test_a_text_of_tokens_seen_alone() -> None:
    """The model's whole mass on tokens that were seen, a little more by rounding, and the least table there can be."""
    one = torch.ones(1, dtype=torch.float64)
    none = torch.zeros(1, 16, dtype=torch.long)
    mass = torch.zeros(1, 60, dtype=torch.float64)
    mass[0, 3] = 1 + 1e-7
    observed = fit.Observed(
        -one, none.double(), -one, none, none.bool(), torch.zeros(1, 16, 8).double(), mass, none[0, :1] + 3, one.bool()
    )
    theta, table = torch.zeros(13, dtype=torch.float64), torch.full((4, 15), -50.0, dtype=torch.float64)
    loss = fit.losses(observed, theta, torch.zeros(8, dtype=torch.float64), table)
    assert float(loss) == pytest.approx(1, abs=1e-6)  # all of them fall alike


def test_it_is_the_maximum(rng: np.random.Generator) -> None:
    """No number of the table can be moved to a greater likelihood, but for what the penalties ask."""
    model, ids = tiny.model(), text(rng, 4000)
    with rosatune.hf.reading.frozen(model):
        start = Pointer(np.full((2, 13), -3.0), 0)
        observed = fit._observe(model, {"": ids}, start, 250, 10000, None)
    made = fit._fitted(start, observed)
    observed = fit.Observed(*(x[: made.fit.positions] for x in observed))
    best = float(fit.losses(observed, torch.tensor(made.theta), None).sum())
    for i in range(2):
        for length in range(1, 13):
            for step in (-0.3, 0.3):
                moved = made.theta.copy()
                moved[i, length] += step
                gain = best - float(fit.losses(observed, torch.tensor(moved), None).sum())
                around = np.abs(np.diff(made.theta[i, max(1, length - 1) : length + 2])).sum()
                assert gain < 2 * 0.3 * around + 0.3


def test_observed_numbers(rng: np.random.Generator) -> None:
    model, ids = tiny.model(), text(rng, 120)
    theta = rng.normal(size=(3, 13))
    pointer = Pointer(theta, 5)
    with rosatune.hf.reading.frozen(model):
        observed = fit._observe(model, {"": ids}, pointer, 120, 50, None)
        logits = model(torch.tensor(ids)[None]).logits[0].double()
    found = pointer.look_up(ids)
    theirs = mixture(logits, torch.tensor(found.tokens), torch.tensor(found.lengths), torch.tensor(theta))
    theirs = -theirs[19:69].gather(-1, torch.tensor(ids)[20:70, None])[:, 0]
    assert (fit.losses(observed, torch.tensor(theta), None) - theirs).abs().max() < 1e-5


def test_a_pointer_of_a_model_that_has_one(rng: np.random.Generator) -> None:
    """An attached pointer takes no part in fitting another."""
    model, ids = tiny.model(), text(rng, 300)
    alone = rosatune.hf.fit_pointer(model, [ids], context=100)
    rosatune.hf.attach_pointer(model, alone)
    calls = []
    again = rosatune.hf.fit_pointer(model, [ids], context=100, progress=lambda *given: calls.append(given))
    assert again == alone and calls[-1] == (297, 297)
    assert rosatune.hf.pointer_head(model).attached.active


@pytest.mark.parametrize(
    "options, message",
    (
        (dict(links=17), "1 to 16 links"),
        (dict(delay=-1), "delay"),
        (dict(context=4), "context is 4"),
        (dict(delay=300, context=2000), "no text has more than 500 tokens"),
    ),
)
def test_errors(options: dict, message: str, rng: np.random.Generator) -> None:
    with pytest.raises(rosatune.InvalidArgument, match=message):
        rosatune.hf.fit_pointer(tiny.model(), [text(rng, 100)], **options)


def test_window_errors(rng: np.random.Generator) -> None:
    config: Any = dict(vocab_size=50, n_embd=32, n_layer=1, n_head=2, n_positions=128)
    with pytest.raises(rosatune.InvalidArgument, match="window is 8, but GPT2LMHeadModel.*give delay="):
        rosatune.hf.fit_pointer(
            transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)), [text(rng, 100)], window=8
        )
    with pytest.raises(rosatune.InvalidArgument, match="attached with 8; leave it out"):
        rosatune.hf.fit_pointer(tiny.attached(), [text(rng, 100)], window=16)
