"""Values of distinct tokens: what a batch computes and learns with them is what it does with values by step.

The two ways are compared on a CUDA device where there is one, with its kernels, and on the host elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import rosatune.hf as hf  # noqa: E402
import rosatune.torch  # noqa: E402
from rosatune import values  # noqa: E402
from rosatune.torch import _distinct, _places, _read  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import tiny  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Where it applies, and where values stay by step.
SERVED: list[dict] = [
    dict(chain=3, sinks=2),
    dict(chain=2, kind="qwen3", v_grad="sigmoid", layers=(0, 2)),
    dict(chain=1, kind="qwen2", fusion="pre", gain=False, gate=False),
    dict(source="embeddings", bits=4, chain=2),
    dict(source="tokens+embeddings", bits=16, chain=2),
    dict(chain=2, tie_word_embeddings=True),
    dict(source="own", chain=1),
    dict(source="own", qk_grad="flips", chain=3, fusion="pre", v_grad="sigmoid"),
    dict(source="tokens+own", bits=16, chain=2, qk="shared"),
    dict(source="tokens+layer 1", chain=2, layers=(0, 1, 2)),
]
UNSERVED: list[dict] = [dict(v_from="layer"), dict(source="tokens+own", v_from="layer")]
BOTH = pytest.mark.parametrize("options", [dict(chain=2), dict(source="tokens+own", bits=16, chain=2)], ids=str)


def learner(stage: str = "all", **options: Any) -> Any:
    made = tiny.attached(**options).to(DEVICE).train()
    made.set_attn_implementation("eager")  # whose sums have a fixed order on every device
    with torch.no_grad():
        for adapter in hf.adapters(made).values():  # else the bits would be the signs of the embeddings
            adapter.v_proj.weight.add_(0.3 * torch.randn_like(adapter.v_proj.weight))
    return hf.set_stage(made, stage)


def batch_of(padded: bool, rows: int = 3, steps: int = 40) -> dict:
    """Texts of which parts return; ids that one row alone has."""
    ids = tiny.tokens(rows, 13).repeat(1, steps // 13 + 1)[:, :steps].clone()
    ids[1, ::7] = 1
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :9] = mask[1, 30:] = 0
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    return {name: x.to(DEVICE) for name, x in given.items()}


class Sizes(list):
    """How many values the layers read from, read by read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        packed, read = _read._pack, rosatune.torch.read

        def watched(v: Any, slope: bool) -> Any:
            self.append(tuple(v.shape[:2]))
            return packed(v, slope)

        def learnt(q: Any, k: Any, v: Any, *rest: Any) -> Any:
            self.append(tuple(v.shape[:2]))
            return read(q, k, v, *rest)

        monkeypatch.setattr(_read, "_pack", watched)
        monkeypatch.setattr(rosatune.torch, "read", learnt)


def assert_alike(one: tuple, other: tuple) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=1e-5, atol=1e-6)
    assert one[1].keys() == other[1].keys()
    for name, grad in one[1].items():
        scale = float(other[1][name].abs().max())
        torch.testing.assert_close(
            grad, other[1][name], rtol=1e-3, atol=1e-4 * scale + 1e-9,
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("options", SERVED, ids=str)
def test_learns_what_values_by_step_learn(options: dict, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = learner(**options), batch_of(padded)
    sizes = Sizes(monkeypatch)
    found = tiny.gradients(model, batch)
    # the first links of what layers look up themselves are read apart
    sources = [each for adapter in hf.adapters(model).values() for each in adapter.sources]
    reads = sum(2 if each.source.learnt and each.rule.links > 1 else 1 for each in sources)
    unit = 15  # of 120 steps
    different = len(batch["input_ids"].unique())
    assert sizes == [(1, -(-different // unit) * unit)] * reads and different < 90
    again = tiny.gradients(model, batch)
    assert all(torch.equal(x, again[1][name]) for name, x in found[1].items()), "the same every time"
    monkeypatch.setattr(_distinct, "most_parts", 0)
    sizes.clear()
    by_step = tiny.gradients(model, batch)
    assert sizes == [(3, 40)] * reads
    assert_alike(found, by_step)
    projected = [x for name, x in found[1].items() if "v_proj" in name and "rosa" in name]
    assert len(projected) == len(hf.adapters(model)) and all(x.any() for x in projected)


@BOTH
@pytest.mark.parametrize("reads", ["random", "nothing"])
def test_other_reads(options: dict, reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = learner(**options), batch_of(True)
    for adapter in list(hf.adapters(model).values())[:2]:
        adapter.reads = reads
    found = tiny.gradients(model, batch)
    monkeypatch.setattr(_distinct, "most_parts", 0)
    assert_alike(found, tiny.gradients(model, batch))
    for adapter in hf.adapters(model).values():
        adapter.reads = reads
    by_step = tiny.gradients(model, batch)[0]
    monkeypatch.undo()
    torch.testing.assert_close(tiny.gradients(model, batch)[0], by_step)


@pytest.mark.parametrize("options", UNSERVED, ids=str)
def test_where_values_stay_by_step(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = learner(**options), batch_of(True)
    monkeypatch.setattr(_distinct, "locate", lambda *given: pytest.fail("distinct tokens"))
    assert "rosa_tokens" not in hf.LookUpCollator(model).look_up({"input_ids": batch["input_ids"].cpu()})
    tiny.gradients(model, batch)


def test_what_keeps_values_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings of the caller, modules that are more than their class, adapters that are watched."""
    model, batch = learner(chain=2), batch_of(False)
    expected = tiny.gradients(model, batch)
    sizes = Sizes(monkeypatch)
    adapters = hf.adapters(model)

    def by_step(batch: dict) -> None:
        sizes.clear()
        assert_alike(tiny.gradients(model, batch), expected)
        assert set(sizes) == {(3, 40)}

    by_step({**batch, "inputs_embeds": model.model.embed_tokens(batch["input_ids"])})
    for module in (model.model.embed_tokens, adapters[0].v_proj):
        hook = module.register_forward_hook(lambda module, given, found: found)
        by_step(batch)
        hook.remove()
    adapters[1].watch = True
    by_step(batch)
    assert adapters[1].diagnostics()["distance_mean"] >= 8
    adapters[1].watch = False
    sizes.clear()
    tiny.gradients(model, batch)
    assert set(sizes) == {(1, 45)}


def test_a_frozen_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = learner("adapter", chain=3), batch_of(True)
    found = tiny.gradients(model, batch)
    assert all(".rosa." in name for name in found[1])
    monkeypatch.setattr(_distinct, "most_parts", 0)
    assert_alike(found, tiny.gradients(model, batch))


@BOTH
def test_gradient_checkpointing(options: dict) -> None:
    model, batch = learner(**options), batch_of(True)
    expected = tiny.gradients(model, batch)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert_alike(tiny.gradients(model, batch), expected)


@BOTH
def test_compiled_layers(options: dict) -> None:
    """As one function, for each size of the list."""
    model, batch = learner(**options), batch_of(False)
    other = {**batch, "input_ids": batch["input_ids"] % 9 + 2}
    expected = [tiny.gradients(model, each) for each in (batch, other)]
    torch._dynamo.reset()
    for layer in model.model.layers:
        layer.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    for each, before in zip((batch, other), expected):
        assert_alike(tiny.gradients(model, each), before)


@BOTH
def test_without_gradients(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text at once, beside the same with a cache."""
    model, batch = learner(sinks=1, **options).eval(), batch_of(False)
    sizes = Sizes(monkeypatch)
    with torch.no_grad():
        found = model(batch["input_ids"], use_cache=False).logits
        assert set(sizes) == {(1, 45)}
        torch.testing.assert_close(found, model(batch["input_ids"], use_cache=True).logits, rtol=1e-4, atol=1e-4)


def test_lists() -> None:
    """Sorted, padded to few sizes by their last token; none where it would be nearly as long as the batch."""
    ids = np.array([[5, 3, 5, 900, 3, 3, 5, 3], [7, 7, 7, 7, 7, 7, 7, 3]])
    tokens = _distinct.find(ids)
    assert tokens is not None and tokens.tolist() == [[3, 5, 7, 900]] * 2 and tokens.dtype == torch.int32
    assert _distinct.find(ids[:, :5]).tolist() == [[3, 5, 7, 900]] * 2
    assert _distinct.find(np.array([[4, 4, 4, 4]])).tolist() == [[4]]
    assert _distinct.find(np.arange(32).reshape(2, 16)) is None and _distinct.find(ids[:, :0]) is None
    many = np.random.default_rng(1).integers(0, 999, (4, 999))
    assert {_distinct.find(many % most).shape[1] for most in range(2, 990, 50)} == {500, 1000}
    assert _distinct.find(np.array([[1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3]])).tolist() == [[1, 2, 3]]


def test_a_list_serves_rows_that_were_cut() -> None:
    ids = torch.tensor([[5, 3, 5, 9], [7, 7, 3, 3]], device=DEVICE)
    tokens = _distinct.find(np.tile(ids.cpu().numpy(), 4)).to(DEVICE)
    found = _distinct.locate(ids[1:], tokens[1:])
    assert found.token.tolist() == [[2, 2, 0, 0]] and found.step.tolist() == [2, 0, 0, 0]
    tau = torch.tensor([[1, -1, 2, 0]], device=DEVICE).view(1, 1, 1, 4).int()
    places = _distinct.rows_at(_places.TensorPlaces(tau, tau.byte()), found.token)
    assert places.tau.tolist() == [[[[2, -1, 0, 2]]]]
    if DEVICE == "cpu":  # on a GPU a failed assertion ends the process
        with pytest.raises(RuntimeError, match="batches were joined after their look-up"):
            _distinct.locate(ids + 1, tokens)


@BOTH
def test_lists_travel_with_batches(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked up ahead, they are not made again; places without a list on a device are read by step."""
    model, batch = learner(**options), batch_of(True)
    expected = tiny.gradients(model, batch)
    host = {name: x.cpu() for name, x in batch.items()}
    found = next(iter(hf.prefetch(model, [host], device=DEVICE)))
    assert found["rosa_tokens"].shape == (3, 45)
    monkeypatch.setattr(_distinct, "find", lambda *given: pytest.fail("made again"))
    monkeypatch.setattr(_places, "find_places", lambda *given: pytest.fail("looked up again"))
    again = tiny.gradients(model, found)
    assert torch.equal(again[0], expected[0])
    assert all(torch.equal(x, expected[1][name]) for name, x in again[1].items())
    cut = {name: x[1:] for name, x in found.items()}
    monkeypatch.undo()
    assert_alike(tiny.gradients(model, cut), tiny.gradients(model, {name: x[1:] for name, x in batch.items()}))


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device; elsewhere nothing has to be waited for")
def test_a_list_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that look up themselves leave the ids on the device."""
    model, batch = learner(source="own"), batch_of(False)
    monkeypatch.setattr(_distinct, "find", lambda *given: pytest.fail("waited"))
    tiny.gradients(model, batch)


def test_bare_modules() -> None:
    linear = torch.nn.Linear(2, 2)
    assert values.is_bare(linear, torch.nn.Linear) and values.is_plain(linear, torch.nn.Linear)
    assert not values.is_bare(linear, torch.nn.Embedding)
    linear.register_forward_hook(lambda *given: None)
    assert not values.is_bare(linear, torch.nn.Linear)
