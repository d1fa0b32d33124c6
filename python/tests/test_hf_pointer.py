"""A pointer beside models of transformers: whatever the model is given, in whatever pieces, the logits are those of the
definition on the whole texts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiny  # noqa: E402

import rosatune.hf  # noqa: E402
from rosatune import Pointer  # noqa: E402
from rosatune.hf import PointerLogitsProcessor  # noqa: E402
from rosatune.torch import pointer as mixture  # noqa: E402

OLD = int(transformers.__version__.split(".")[0]) < 5

THETA = np.linspace(-1, 3, 3 * 13).reshape(3, 13).round(3)
POINTER = Pointer(THETA, 4)
SLOPED = Pointer(THETA, 4, [[0.5, -0.25], [0.25, 0.0], [0.0, 0.5]])
SEEN = (np.arange(60).reshape(4, 15) % 7 / 3 - 1).round(3)
BY_CONTEXTS = Pointer(THETA[1], 4, slopes={"token": 0.5, "entropy": -0.25, "share": 0.75, "success": 0.5}, seen=SEEN)
KINDS = {"table": POINTER, "slopes": SLOPED, "contexts": BY_CONTEXTS}


def gpt2(**options: Any) -> Any:
    torch.manual_seed(1)
    shape: Any = dict(vocab_size=tiny.VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=256)
    made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=1, eos_token_id=None, **options))
    made.generation_config.pad_token_id = 0
    return made.eval()


MODELS = {
    "llama": tiny.model,
    "gpt2": gpt2,
    "adapters": lambda: tiny.attached(sinks=1),
}


def texts(rows: int, steps: int, seed: int = 5) -> Any:
    """Texts of few different tokens, so that there is much to find."""
    return torch.randint(2, 7, (rows, steps), generator=torch.Generator().manual_seed(seed))


def expected(logits: Any, ids: Any, pointer: Pointer = POINTER) -> Any:
    """Log-probabilities from the logits [steps, vocabulary] of a model without pointer, after each token of ids."""
    found = pointer.look_up(np.asarray(ids))
    weights = [pointer.theta, pointer.confidence, pointer.agreement, pointer.slopes and list(pointer.slopes.values())]
    tokens, lengths, clues = map(torch.tensor, (found.tokens, found.lengths, found.clues))
    numbers = [None if x is None else torch.tensor(np.array(x, np.float64)) for x in weights]
    seen = dict(table=torch.tensor(pointer.seen), seen=found.seen) if pointer.seen is not None else {}
    return mixture(logits.double(), tokens, lengths, *numbers, clues=clues, **seen).float()


@torch.no_grad()
def plain(model: Any, ids: Any, **options: Any) -> Any:
    """Logits of a model without pointer."""
    return model(ids, use_cache=False, **options).logits


def distance(ours: Any, theirs: Any) -> float:
    return float((ours - theirs).detach().abs().max())


# ------------------------------------------------------------------------------------------------------------- attached


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("pointer", KINDS.values(), ids=KINDS)
def test_logits_and_loss(kind: str, pointer: Pointer) -> None:
    model, ids = MODELS[kind](), texts(2, 40)
    before = plain(model, ids)
    rosatune.hf.attach_pointer(model, pointer)
    with torch.no_grad():
        output = model(ids, labels=ids, use_cache=False)
    theirs = torch.stack([expected(before[row], ids[row], pointer) for row in range(2)])
    assert distance(output.logits.log_softmax(-1), theirs) < 1e-5
    assert distance(theirs, before.log_softmax(-1)) > 0.1
    loss = -theirs[:, :-1].gather(-1, ids[:, 1:, None]).mean()
    assert distance(output.loss, loss) < 1e-5 and output["loss"] is output.loss
    as_tuple = model(input_ids=ids, labels=ids, return_dict=False, use_cache=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], output.loss)
    assert torch.equal(as_tuple[1], output.logits)
    assert rosatune.hf.detach_pointer(model) == pointer
    assert torch.equal(plain(model, ids), before) and rosatune.hf.pointer_of(model) is None
    assert not hasattr(model.config, "rosatune_pointer")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("pointer", (POINTER, BY_CONTEXTS), ids=("table", "contexts"))
def test_steps_with_a_cache(kind: str, pointer: Pointer) -> None:
    model, ids = MODELS[kind](), texts(2, 60)
    theirs = torch.stack([expected(row, x, pointer) for row, x in zip(plain(model, ids), ids)])
    rosatune.hf.attach_pointer(model, pointer)
    cache, at = transformers.DynamicCache(), 0
    with torch.no_grad():
        for steps in (17, 1, 1, 15, 5):
            output = model(ids[:, at : at + steps], past_key_values=cache, use_cache=True)
            assert distance(output.logits.log_softmax(-1), theirs[:, at : at + steps]) < 1e-4
            at += steps
        # A copy goes its own way; a cropped cache goes back; rows are picked.
        other = copy.deepcopy(cache)
        output = model(ids[:, at:], past_key_values=other, use_cache=True)
        assert distance(output.logits.log_softmax(-1), theirs[:, at:]) < 1e-4
        cache.crop(-3)
        cache.batch_repeat_interleave(2)
        cache.reorder_cache(torch.tensor([3, 0, 0, 2]))
        cache.batch_select_indices(torch.tensor([0, 1, 3]))
        rows = [1, 0, 1]
        output = model(ids[rows][:, at - 3 : at], past_key_values=cache, use_cache=True, logits_to_keep=2)
        assert distance(output.logits.log_softmax(-1), theirs[rows][:, at - 2 : at]) < 1e-4
        output = model(ids[rows][:, at:], past_key_values=cache, logits_to_keep=torch.tensor([1, 3]))
        assert distance(output.logits.log_softmax(-1), theirs[rows][:, [at + 1, at + 3]]) < 1e-4


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("side", ("left", "right"))
@pytest.mark.parametrize("pointer", (POINTER, BY_CONTEXTS), ids=("table", "contexts"))
def test_padding(kind: str, side: str, pointer: Pointer) -> None:
    """Padding with a token that occurs in the texts is no text."""
    model, ids = MODELS[kind](), texts(1, 30)[0]
    alone = expected(plain(model, ids[None])[0], ids, pointer)
    rosatune.hf.attach_pointer(model, pointer)
    batch, mask = torch.full((2, 40), 3), torch.zeros(2, 40, dtype=torch.long)
    part = slice(10, 40) if side == "left" else slice(0, 30)
    batch[0, part], mask[0, part], mask[1] = ids, 1, 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        output = model(batch, attention_mask=mask, position_ids=positions, use_cache=False)
    assert distance(output.logits[0, part].log_softmax(-1), alone) < 1e-4


def test_wrapped_models() -> None:
    """Around a model there may be PEFT's, DistributedDataParallel or a compiled one: the pointer goes to the model."""
    model, ids = tiny.model(), np.asarray(texts(1, 200)[0])
    wrapped, shared, compiled = torch.nn.Module(), torch.nn.Module(), torch.compile(model, backend="eager")
    wrapped.get_base_model = lambda: model
    shared.module = wrapped
    for outside in (wrapped, shared, compiled):
        rosatune.hf.attach_pointer(outside, POINTER)
        assert rosatune.hf.pointer_of(model) == POINTER
        assert distance(compiled(torch.tensor(ids)[None]).logits, model(torch.tensor(ids)[None]).logits) < 1e-5
        assert list(rosatune.recall(outside, ids, window=8, context=100).conditions) == ["global", "window", "pointer"]
        rosatune.hf.detach_pointer(outside)
    with pytest.raises(TypeError, match="Linear is not a model of transformers"):
        rosatune.hf.attach_pointer(torch.nn.Linear(1, 1), POINTER)


def reference_greedy(model: Any, ids: Any, steps: int, pointer: Pointer = POINTER) -> list[int]:
    """Greedy decoding, everything computed anew at every step, with a model without pointer."""
    text = ids.tolist()
    for _ in range(steps):
        logits = plain(model, torch.tensor([text]))[0]
        text.append(int(expected(logits, text, pointer)[-1].argmax()))
    return text


def unpadded_prompts() -> list[Any]:
    return [texts(1, 25, 1)[0], texts(1, 13, 2)[0], texts(1, 25, 3)[0]]


def padded(prompts: list[Any], pad: int) -> dict[str, Any]:
    width = max(map(len, prompts))
    ids, mask = torch.full((len(prompts), width), pad), torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = prompt, 1
    return dict(input_ids=ids, attention_mask=mask)


def how(model: Any, way: str, batch: dict[str, Any], pointer: Pointer = POINTER) -> dict[str, Any]:
    """The options of `generate` that bring a pointer in."""
    if way == "attached":
        rosatune.hf.attach_pointer(model, pointer)
        return {}
    return dict(logits_processor=[PointerLogitsProcessor(pointer, batch["attention_mask"])])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", ("attached", "processor"))
@pytest.mark.parametrize("pointer", (POINTER, BY_CONTEXTS), ids=("table", "contexts"))
def test_greedy_batch_with_left_padding(kind: str, way: str, pointer: Pointer) -> None:
    model, prompts = MODELS[kind](), unpadded_prompts()
    theirs = [reference_greedy(model, prompt, 12, pointer) for prompt in prompts]
    batch = padded(prompts, pad=3)
    ours = model.generate(**batch, **how(model, way, batch, pointer), max_new_tokens=12, do_sample=False)
    for row, prompt, text in zip(ours.tolist(), prompts, theirs):
        assert row[-12 - len(prompt) :] == text


def reference_beams(model: Any, prompt: Any, steps: int, beams: int, pointer: Pointer) -> tuple[list[int], float]:
    """Beam search without an end token, everything computed anew at every step; the best text and its score."""
    kept = [(0.0, prompt.tolist())]
    for _ in range(steps):
        grown = []
        for score, text in kept:
            last = expected(plain(model, torch.tensor([text]))[0], text, pointer)[-1]
            grown += [(score + float(p), [*text, token]) for token, p in enumerate(last)]
        kept = sorted(grown, key=lambda pair: -pair[0])[:beams]
    return kept[0][1], kept[0][0]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", ("attached", "processor"))
@pytest.mark.parametrize("pointer", (POINTER, BY_CONTEXTS), ids=("table", "contexts"))
def test_beams(kind: str, way: str, pointer: Pointer) -> None:
    model, prompts = MODELS[kind](), unpadded_prompts()
    theirs = [reference_beams(model, prompt, 10, 3, pointer) for prompt in prompts]
    batch = padded(prompts, pad=3)
    ours = model.generate(
        **batch,
        **how(model, way, batch, pointer),
        max_new_tokens=10,
        num_beams=3,
        do_sample=False,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for row, (prompt, (text, score)) in enumerate(zip(prompts, theirs)):
        assert ours.sequences[row].tolist()[-10 - len(prompt) :] == text
        assert abs(float(ours.sequences_scores[row]) - score) < 1e-3


@pytest.mark.parametrize("way", ("attached", "processor"))
def test_sampling_draws_from_the_mixture(way: str) -> None:
    """With the same random numbers, the texts that sampling from the definition gives."""
    model, prompts = tiny.model(), unpadded_prompts()
    texts, generator = [prompt.tolist() for prompt in (prompts[0], prompts[2])], torch.Generator().manual_seed(3)
    for _ in range(12):
        last = [expected(plain(model, torch.tensor([text]))[0], text)[-1] for text in texts]
        drawn = torch.multinomial((torch.stack(last) / 0.8).softmax(-1), 1, generator=generator)
        for text, token in zip(texts, drawn[:, 0].tolist()):
            text.append(token)
    batch = padded([prompts[0], prompts[2]], pad=0)
    options = how(model, way, batch)
    torch.manual_seed(3)
    ours = model.generate(**batch, **options, max_new_tokens=12, do_sample=True, temperature=0.8, top_k=0, top_p=1.0)
    assert ours.tolist() == texts


@pytest.mark.skipif(OLD, reason="needs transformers 5")
@pytest.mark.parametrize("way", ("attached", "processor"))
def test_drafts(way: str) -> None:
    """Prompt lookup proposes several tokens at once and takes some of them back."""
    model, prompt = tiny.model(), unpadded_prompts()[0]
    theirs = reference_greedy(model, prompt, 20)
    batch = padded([prompt], 0)
    assert 1 not in theirs
    ours = model.generate(
        **batch,
        **how(model, way, batch),
        max_new_tokens=20,
        do_sample=False,
        prompt_lookup_num_tokens=4,
        eos_token_id=1,
    )
    assert ours[0].tolist() == theirs


@pytest.mark.skipif(OLD, reason="needs transformers 5")
def test_chunks_of_a_prompt() -> None:
    model, prompt = tiny.attached(), unpadded_prompts()[0]
    theirs = reference_greedy(model, prompt, 8)
    rosatune.hf.attach_pointer(model, POINTER)
    ours = model.generate(prompt[None], max_new_tokens=8, do_sample=False, prefill_chunk_size=7)
    assert ours[0].tolist() == theirs


# ------------------------------------------------------------------------------------------------------------ processor


def test_processor_looks_up_new_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = []
    push = rosatune.PointerStream.push
    monkeypatch.setattr(rosatune.PointerStream, "push", lambda self, ids: (pushed.append(len(ids)), push(self, ids))[1])
    model, prompts = tiny.model(), unpadded_prompts()
    batch = padded(prompts, 0)
    processor = PointerLogitsProcessor(POINTER)
    model.generate(**batch, logits_processor=[processor], max_new_tokens=10, num_beams=4, do_sample=False)
    assert sorted(pushed, reverse=True)[:3] == [25] * 3 and set(pushed) == {25, 1}
    assert pushed.count(25) == 3 and len(pushed) <= 3 + 9 * 12
    # Used again, from the same prompts and from others.
    first = model.generate(**batch, logits_processor=[processor], max_new_tokens=6, do_sample=False)
    fresh = PointerLogitsProcessor(POINTER)
    assert torch.equal(first, model.generate(**batch, logits_processor=[fresh], max_new_tokens=6, do_sample=False))


def test_processor_on_any_rows(rng: np.random.Generator) -> None:
    """Rows in any order, longer and shorter ones, equal ones: always as if computed from scratch."""
    processor = PointerLogitsProcessor(SLOPED)
    rows = rng.integers(2, 5, (6, 90))
    rows[3:, :40] = rows[:3, :40]
    for _ in range(60):
        length = rng.integers(1, 91)
        ids = torch.tensor(rows[rng.integers(0, 6, rng.integers(1, 7))][:, :length])
        logits = torch.tensor(rng.standard_normal((len(ids), tiny.VOCABULARY)), dtype=torch.float32)
        whole = torch.zeros(length, tiny.VOCABULARY)
        ours = processor(ids, logits)
        for row in range(len(ids)):
            whole[-1] = logits[row]
            theirs = expected(whole, ids[row], SLOPED)[-1]
            assert distance(ours[row].log_softmax(-1), theirs) < 1e-5
            # The sum of the exponentials stays.
            assert distance(ours[row].logsumexp(-1), logits[row].logsumexp(-1)) < 1e-5


def test_processor_obeys_earlier_ones() -> None:
    model, prompt = tiny.model(), torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]])
    sure = PointerLogitsProcessor(Pointer(np.full((1, 13), 20.0), 0))
    options: Any = dict(max_new_tokens=6, do_sample=False, logits_processor=[sure])
    assert model.generate(prompt, **options)[0, 12:].tolist() == [7, 8, 9, 5, 6, 7]
    assert 7 not in model.generate(prompt, suppress_tokens=[7], **options)[0, 12:].tolist()
    half = sure(prompt, torch.zeros(1, 50, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16 and half.argmax() == 7


def test_processor_without_history() -> None:
    scores = torch.randn(2, 50)
    assert torch.equal(PointerLogitsProcessor(POINTER)(torch.zeros(2, 0, dtype=torch.long), scores), scores)


def test_processor_refuses_a_mask_of_other_prompts() -> None:
    processor = PointerLogitsProcessor(POINTER, torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"\[3, 9\].*\[2, 5\].*make a PointerLogitsProcessor"):
        processor(torch.ones(3, 9, dtype=torch.long), torch.zeros(3, 50))


# ------------------------------------------------------------------------------------------------------------- learning


def test_pointer_learns() -> None:
    """A model that knows nothing and a text that repeats: the pointer alone takes the loss down."""
    model = tiny.model()
    model.requires_grad_(False)
    rosatune.hf.attach_pointer(model, Pointer(np.full((2, 13), -3.0), 0), learn=True)
    head = rosatune.hf.pointer_head(model)
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["rosa_pointer.theta"]
    optimizer = torch.optim.Adam(head.parameters(), lr=0.3)
    ids = tiny.tokens(2, 20).repeat(1, 3)
    losses = []
    for _ in range(30):
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1
    learnt = rosatune.hf.pointer_of(model)
    assert learnt.theta[0, 12] > 0 and learnt.theta[0, 0] == -3


@pytest.mark.skipif(OLD, reason="its Trainer counts labels in another way")
@pytest.mark.parametrize("kind", ("llama", "adapters"))
def test_trainer(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model = MODELS[kind]().train()
    rosatune.hf.attach_pointer(model, POINTER, learn=True)
    rows = [dict(input_ids=row, labels=row) for row in tiny.tokens(4, 20).repeat(1, 2)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=20, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    theirs = np.mean([float(model.eval()(**{k: v[None] for k, v in row.items()}).loss.detach()) for row in rows])
    assert abs(before - theirs) < 1e-4
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.1
    assert rosatune.hf.pointer_of(model) != POINTER


# --------------------------------------------------------------------------------------------------------------- errors


def test_errors(tmp_path: Path) -> None:
    model, ids = tiny.model(), texts(1, 10)
    with pytest.raises(ValueError, match="no pointer is attached"):
        rosatune.hf.detach_pointer(model)
    with pytest.raises(rosatune.AdapterError, match="no such file"):
        rosatune.hf.attach_pointer(model, tmp_path)
    with pytest.raises(TypeError, match="LlamaModel does not predict"):
        rosatune.hf.attach_pointer(model.model, POINTER)
    cache = transformers.DynamicCache()
    model(ids, past_key_values=cache, use_cache=True)
    rosatune.hf.attach_pointer(model, POINTER)
    with pytest.raises(ValueError, match="already attached"):
        rosatune.hf.attach_pointer(model, POINTER)
    with pytest.raises(ValueError, match="holds 10 positions that the pointer has not seen"):
        model(ids, past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="pass input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, 64))
    with pytest.raises(ValueError, match="attention_mask has shape"):
        model(ids, attention_mask=torch.ones(1, 1, 10, 10))
    with pytest.raises(ValueError, match="packed batches"):
        model(ids, position_ids=torch.arange(5).repeat(1, 2))


# --------------------------------------------------------------------------------------------------------------- files


def test_pointer_in_the_adapter_folder(tmp_path: Path) -> None:
    model, ids = tiny.attached(), texts(1, 40)
    rosatune.hf.save_adapter(model, tmp_path / "without")
    rosatune.hf.attach_pointer(model, SLOPED)
    rosatune.hf.save_adapter(model, tmp_path / "with")
    assert sorted(path.name for path in (tmp_path / "with").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "pointer.json",
    ]
    assert not (tmp_path / "without" / "pointer.json").exists()
    fresh = rosatune.hf.load_adapter(tiny.model(), tmp_path / "with")
    assert rosatune.hf.pointer_of(fresh) == SLOPED and torch.equal(plain(fresh, ids), plain(model, ids))
    silent = rosatune.hf.load_adapter(tiny.model(), tmp_path / "with", pointer=False)
    assert rosatune.hf.pointer_of(silent) is None
    # A pointer that the model has is replaced by that of the folder, and kept where the folder has none.
    rosatune.hf.load_adapter(rosatune.hf.attach_pointer(silent, POINTER), tmp_path / "without")
    assert rosatune.hf.pointer_of(silent) == POINTER
    rosatune.hf.load_adapter(silent, tmp_path / "with")
    assert rosatune.hf.pointer_of(silent) == SLOPED
    (tmp_path / "with" / "pointer.json").write_text("{}")
    with pytest.raises(rosatune.AdapterError, match="pointer.json: .*'format' is None"):
        rosatune.hf.load_adapter(tiny.model(), tmp_path / "with")


@pytest.mark.parametrize("kind", ("llama", "adapters"))
@pytest.mark.parametrize("pointer", KINDS.values(), ids=KINDS)
def test_model_saved_whole(kind: str, pointer: Pointer, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    model, ids = MODELS[kind](), texts(1, 40)
    rosatune.hf.attach_pointer(model, pointer, learn=True)
    with torch.no_grad():  # as if it had learnt
        rosatune.hf.pointer_head(model).theta += 0.5
    model.save_pretrained(tmp_path)
    again = rosatune.hf.from_pretrained(tmp_path).eval()
    assert rosatune.hf.pointer_of(again) == rosatune.hf.pointer_of(model) != pointer
    assert distance(plain(again, ids), plain(model, ids)) < 1e-6
    rosatune.hf.detach_pointer(model)
    rosatune.hf.detach_pointer(again)
    assert distance(plain(again, ids), plain(model, ids)) < 1e-6


def test_stages_and_groups() -> None:
    model = rosatune.hf.attach_pointer(tiny.attached(), POINTER, learn=True)
    theta = rosatune.hf.pointer_head(model).theta
    for stage in ("all", "adapter"):
        rosatune.hf.set_stage(model, stage)
        assert theta.requires_grad
    groups = {group["name"]: group["params"] for group in rosatune.hf.parameter_groups(model)}
    assert any(weight is theta for weight in groups["adapter vectors"]) and "backbone matrices" not in groups
    theta.requires_grad_(False)
    rosatune.hf.set_stage(model, "all")
    assert not theta.requires_grad
