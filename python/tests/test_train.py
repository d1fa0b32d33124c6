"""Training patched models: with a plain loop, with Trainer, with checkpointing, padding, compilation.

The task is recall: a row holds a random text twice, and only the second half counts. The window is far shorter than the
text, so what is to be copied can be reached by retrieval alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from torch.utils.data import Dataset  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

import rosatune.hf as hf  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import tiny  # noqa: E402


class Recall(Dataset):
    """Rows of a random text and its repetition; labels on the repetition alone."""

    def __init__(self, rows: int, half: int = 16, seed: int = 0) -> None:
        text = tiny.tokens(rows, half, seed)
        self.ids = torch.cat([text, text], 1)
        self.labels = torch.cat([torch.full_like(text, -100), text], 1)
        # The first token of the repetition cannot be known.
        self.labels[:, half] = -100

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict:
        ids = self.ids[row]
        return {"input_ids": ids, "labels": self.labels[row], "attention_mask": torch.ones_like(ids)}


def learner(kind: str = "llama", **options):
    """A model that can learn to recall: the window is 4, the distance 16."""
    made = tiny.model(kind, num_hidden_layers=2, tie_word_embeddings=True, initializer_range=0.1)
    return hf.attach(made, **{"window": 4, "bits": 16, "stage": "all", **options}).train()


def arguments(folder: Path, **options) -> TrainingArguments:
    return TrainingArguments(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "per_device_train_batch_size": 16,
            "lr_scheduler_type": "constant",
            "logging_steps": 5,
            "dataloader_pin_memory": False,
            **options,
        }
    )


def batch_of(data: Dataset) -> dict:
    return {"input_ids": data.ids, "labels": data.labels}


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("source", ["tokens", "own", "embeddings"])
def test_trainer_learns_to_recall(kind, source, tmp_path):
    model = learner(kind, source=source)
    groups = hf.parameter_groups(model, adapter_lr=1e-2, backbone_lr=3e-3)
    trainer = Trainer(
        model,
        arguments(tmp_path, max_steps=60),
        train_dataset=Recall(960),
        eval_dataset=Recall(64, seed=1),
        optimizers=(torch.optim.AdamW(groups), None),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    for adapter in hf.adapters(model).values():
        adapter.retrieve = False
    silent = trainer.evaluate()["eval_loss"]
    assert after < 0.5 * before
    assert silent > before - 0.2


def test_adapter_stage_leaves_the_backbone(tmp_path):
    model = learner(stage="adapter")
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer = Trainer(model, arguments(tmp_path, max_steps=3, learning_rate=1e-2), train_dataset=Recall(64))
    trainer.train()
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, start[name])}
    assert all(".rosa." in name for name in changed)
    parts = {name.rpartition("rosa.")[2] for name in changed}
    assert parts == {"e0", "e1", "gain", "gate.weight", "gate.bias", "v_proj.weight", "out_proj.weight"}


def test_trainer_resumes(tmp_path):
    def run(folder, resume=None):
        model = learner()
        options = arguments(folder, max_steps=6, save_strategy="steps", save_steps=3, learning_rate=1e-2)
        trainer = Trainer(model, options, train_dataset=Recall(96))
        trainer.train(resume_from_checkpoint=resume)
        return model

    whole = run(tmp_path / "whole")
    again = run(tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-3"))
    for (name, one), other in zip(whole.named_parameters(), again.parameters()):
        torch.testing.assert_close(other, one, msg=lambda text, name=name: f"{name}: {text}")
    saved = hf.from_pretrained(tmp_path / "whole" / "checkpoint-6").eval()
    ids = Recall(2, seed=4).ids
    with torch.no_grad():
        torch.testing.assert_close(saved(ids).logits, whole.eval()(ids).logits)


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(fusion="pre", source="embeddings"),
        dict(source="own", explore=0.3),
        dict(source="own", qk_grad="flips", flip_share=0.5),
        dict(source="layer 0"),
    ],
    ids=str,
)
def test_gradient_checkpointing_gives_the_same(options):
    model = learner(e_start=0.1, **options)
    batch = batch_of(Recall(4))
    loss, plain = tiny.gradients(model, batch)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again, recomputed = tiny.gradients(model, batch)
    assert torch.equal(loss, again)
    assert plain.keys() == recomputed.keys()
    for name, grad in plain.items():
        torch.testing.assert_close(recomputed[name], grad, msg=lambda text, name=name: f"{name}: {text}")
    learnt = options.get("source") in ("own", "layer 0")
    assert plain["model.layers.0.rosa." + ("q_proj.weight" if learnt else "gain")].abs().max() > 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_takes_no_part(side):
    model = learner(e_start=0.1, sinks=2)
    long, short = Recall(1, half=16), Recall(1, half=11, seed=3)
    lead = 10 if side == "left" else 0
    ids, labels, mask = (torch.full((2, 32), fill) for fill in (0, -100, 0))
    for row, (data, begin) in enumerate(((long, 0), (short, lead))):
        part = slice(begin, begin + data.ids.shape[1])
        ids[row, part], labels[row, part], mask[row, part] = data.ids, data.labels, 1
    joint = dict(input_ids=ids, labels=labels, attention_mask=mask)
    if side == "left":
        joint["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    loss, found = tiny.gradients(model, joint)
    parts = [tiny.gradients(model, batch_of(data)) for data in (long, short)]
    counts = [15, 10]
    total = sum(counts)
    torch.testing.assert_close(loss, sum(part[0] * count for part, count in zip(parts, counts)) / total)
    for name, grad in found.items():
        expected = sum(part[1][name] * count for part, count in zip(parts, counts)) / total
        torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_training_makes_no_cache():
    model = learner()
    found = model(**batch_of(Recall(2)))
    assert found.past_key_values is None
    with pytest.raises(ValueError, match="use_cache=False"):
        model(Recall(2).ids, use_cache=True)


@pytest.mark.parametrize("kind, adapter", [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32")])
def test_halves(kind, adapter):
    """Models in half precision, with adapters that are finer if asked for, or if they have to be."""
    kind, adapter = getattr(torch, kind), getattr(torch, adapter)
    ids = tiny.tokens(2, 20)
    dtype = adapter if kind == torch.bfloat16 else None
    model = hf.attach(tiny.model().to(kind), window=4, dtype=dtype)
    with torch.no_grad():
        bare = hf.attach(tiny.model().to(kind), window=4, layers=[])
        assert torch.equal(model(ids).logits, bare(ids).logits)
        assert all(weight.dtype == adapter for found in hf.adapters(model).values() for weight in found.parameters())
        tiny.stir(model)
        cached = [model(ids[:, :12], use_cache=True)]
        cached.append(model(ids[:, 12:], past_key_values=cached[0].past_key_values))
        assert torch.cat([part.logits for part in cached], 1).dtype == kind
    loss, grads = tiny.gradients(model.train(), {"input_ids": ids, "labels": ids})
    assert torch.isfinite(loss) and grads and all(torch.isfinite(grad).all() for grad in grads.values())


def test_autocast():
    model = hf.attach(tiny.model().train(), window=4)
    tiny.stir(model)
    ids = tiny.tokens(2, 20)
    with torch.autocast("cpu", torch.bfloat16):
        loss, grads = tiny.gradients(model, {"input_ids": ids, "labels": ids})
    assert torch.isfinite(loss) and grads and all(torch.isfinite(grad).all() for grad in grads.values())


def test_compile_gives_the_same():
    """Traced as one graph, forward and backward; the code generator is left out to save time."""
    model = learner(e_start=0.1, sinks=2)
    batch = batch_of(Recall(2))
    loss, plain = tiny.gradients(model, batch, use_cache=False)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    again, traced = tiny.gradients(compiled, batch, use_cache=False)
    torch.testing.assert_close(again, loss)
    for name, grad in plain.items():
        torch.testing.assert_close(traced[f"_orig_mod.{name}"], grad, msg=lambda text, name=name: f"{name}: {text}")
    assert hf.attachment(compiled) is hf.attachment(model)


def test_layers_are_compiled_alike():
    from rosatune.hf.compiled import OPTIONS

    model, plain = learner(), learner()
    batch = Recall(2)[0]
    batch = {name: x[None] for name, x in batch.items()}
    before = plain(**batch).loss
    assert hf.compile_layers(model, backend="aot_eager", options=None) is model
    assert all(layer._compiled_call_impl is not None for layer in model.model.layers)
    torch.testing.assert_close(model(**batch).loss, before)
    import torch._inductor.config as known

    assert all(hasattr(known, name) for name in OPTIONS)  # torch.compile refuses others when it compiles


def test_what_compiled_layers_keep_of_an_adapter():
    """Of what has the size of the layer's input, y alone is kept for the backward pass beside what the window keeps."""

    def kept(**options):
        model = hf.attach(tiny.model(num_hidden_layers=1).train(), window=4, sinks=1, **options).requires_grad_(True)
        layer, ids, found = model.model.layers[0], tiny.tokens(2, 21), {}
        compiled = torch.compile(layer.forward, backend="aot_eager_decomp_partition", dynamic=False)

        def keep(x):
            found[x.data_ptr()] = x
            return x

        def forward(*args, **given):
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
                return compiled(*args, **given)

        layer.forward = forward
        with torch.autocast("cpu", torch.bfloat16):
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        size = ids.numel() * model.config.hidden_size
        return sum(x.nbytes for x in found.values() if x.numel() == size) / size

    assert kept(layers=()) + 2 == kept(chain=2, stage="all"), "bytes per number"
