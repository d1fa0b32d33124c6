"""Places that are looked up ahead of the model: in a collator, beside a loop; and layers that are compiled."""

from __future__ import annotations

import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from functorch.compile import make_boxed_func  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402

import rosatune.hf as hf  # noqa: E402
from rosatune.torch import _places  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import tiny  # noqa: E402


def padded_batches():
    """Batches with padding and without, and a mask that holds none."""
    for number in range(3):
        ids = tiny.tokens(2, 24, seed=number)
        mask = torch.ones_like(ids)
        if number == 1:
            mask[0, 17:] = 0
        yield {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


KINDS = [dict(chain=3), dict(source="tokens+embeddings", bits=4), dict(source="own")]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_prefetched_batches_give_the_same(options):
    model = hf.attach(tiny.model().train(), window=4, sinks=1, stage="all", **options)
    tiny.stir(model)
    looked_up = []
    lookup = hf.attachment(model).lookup
    plain = [tiny.gradients(model, batch) for batch in padded_batches()]
    for batch in hf.prefetch(model, padded_batches(), depth=2, device="cpu"):
        assert ("rosa_places" in batch) == ("tokens" in lookup.rules)
        looked_up.append(tiny.gradients(model, batch))
        assert ("attention_mask" in batch) == (len(looked_up) == 2), "a mask without padding is left out"
    assert len(plain) == len(looked_up) == 3
    for (loss, grads), (again, others) in zip(plain, looked_up):
        assert torch.equal(loss, again)
        assert all(torch.equal(grad, others[name]) for name, grad in grads.items())


def test_prefetched_places_are_used(monkeypatch):
    model = hf.attach(tiny.model().train(), window=4, sinks=1, chain=2)
    batch = next(iter(hf.prefetch(model, padded_batches())))
    monkeypatch.setattr(_places, "find_places", lambda *given: pytest.fail("looked up again"))
    model(**batch)
    with pytest.raises(ValueError, match=r"rosa_places is \[2, 2, 1, 24\], which is not \[1, 2, 1, 24\]"):
        model(**{**batch, "input_ids": batch["input_ids"][:1], "labels": batch["labels"][:1]})
    for bad in (dict(labels=1), [1]):
        with pytest.raises(ValueError, match="a batch is a dictionary with a tensor input_ids"):
            next(iter(hf.prefetch(model, [bad])))


def test_prefetch_passes_on_errors_and_ends_its_threads():
    model = hf.attach(tiny.model(), window=4)

    def failing():
        yield from padded_batches()
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        list(hf.prefetch(model, failing(), depth=1))
    stopped = hf.prefetch(model, padded_batches(), depth=1)
    next(stopped)
    stopped.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rosatune-ahead")]


def test_collator_for_trainer(tmp_path):
    model = hf.attach(tiny.model().train(), window=4, sinks=1, chain=2, stage="all")
    examples = [{"input_ids": row, "labels": row} for row in tiny.tokens(4, 24).tolist()]
    collator = pickle.loads(pickle.dumps(hf.LookUpCollator(model)))
    assert collator(examples)["rosa_places"].shape == (4, 2, 1, 24)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=examples, data_collator=collator)
    found = trainer.train()
    assert np.isfinite(found.training_loss)


def test_compiled_layers_are_one_function():
    """Layers of different scales share one compiled function, and its gradients are the eager ones."""
    model = hf.attach(tiny.model().train(), window=4, sinks=1, chain=2, stage="all")
    tiny.stir(model)
    for number, adapter in enumerate(hf.adapters(model).values()):
        adapter.scale = 0.5 + number
    batches = list(hf.prefetch(model, padded_batches()))
    plain = [tiny.gradients(model, batch) for batch in (batches[0], batches[2])]
    torch._dynamo.reset()
    seen = []

    def count(graph, inputs):
        seen.append(graph)
        return make_boxed_func(graph)

    backend = aot_autograd(fw_compiler=count)
    for layer in model.model.layers:
        layer.compile(backend=backend, dynamic=False, fullgraph=True)
    for (loss, grads), batch in zip(plain, (batches[0], batches[2])):
        again, others = tiny.gradients(model, batch)
        torch.testing.assert_close(again, loss)
        for name, grad in grads.items():
            torch.testing.assert_close(others[name], grad, msg=lambda text, name=name: f"{name}: {text}")
    assert len(seen) == 2, "one graph for the forward pass of all layers, one for the backward pass"
    (gate,) = (x for x in seen[1].graph.nodes if x.op == "call_function" and "gate_backward" in str(x.target))
    assert gate.args[-1] is False, "the gradient of the gate's input is left to the compiler"


@torch.no_grad()
def test_ids_of_the_host():
    """A text in pieces, its ids given a second time for the look-up."""
    model = hf.attach(tiny.model(), window=4, sinks=1, chain=2)
    tiny.stir(model)
    ids = tiny.tokens(2, 24)
    plain, told = (model(ids[:, :15], use_cache=True, **more) for more in ({}, {"rosa_ids": ids[:, :15]}))
    assert torch.equal(plain.logits, told.logits)
    rest = [
        model(ids[:, 15:], past_key_values=each.past_key_values, **more).logits
        for each, more in ((plain, {}), (told, {"rosa_ids": ids[:, 15:]}))
    ]
    assert torch.equal(*rest)
    with pytest.raises(ValueError, match="rosa_ids is a copy of input_ids on the host"):
        model(ids, rosa_ids=ids[:1])
