"""The seen-token head: whatever the model is given, in whatever pieces, its logits are those of the definition."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiny  # noqa: E402

import rosatune.hf  # noqa: E402
from rosatune.errors import InvalidArgument  # noqa: E402
from rosatune.hf.seen import seen_head  # noqa: E402
from rosatune.torch import _seen  # noqa: E402

VOCABULARY, WINDOW, RANK = 300, 6, 5


def made(seen: int = RANK, **options: Any) -> Any:
    """A model whose adapters say nothing, and whose seen-token head does."""
    model = tiny.model(vocab_size=VOCABULARY)
    rosatune.hf.attach(model, window=WINDOW, sinks=1, units=0, seen=seen, **options)
    if seen:
        torch.manual_seed(3)
        with torch.no_grad():
            for weight in seen_head(model).parameters():
                weight.normal_(0, 0.5)
    return model


def texts(rows: int, steps: int, seed: int = 5) -> Any:
    """Some tokens come often, others once."""
    source = torch.Generator().manual_seed(seed)
    return (VOCABULARY * torch.rand(rows, steps, generator=source) ** 3).long().clamp(1, VOCABULARY - 1)


def moved_id(token: int) -> int:
    """The token whose count the control `random` gives to this one."""
    low = 2 ** int(math.log2(token + 64)) - 64
    size = min(2 * low + 64, VOCABULARY) - low
    return low + (token - low + size // 2) % size


def expected(model: Any, ids: Any, hidden: Any, reads: str = "found") -> Any:
    """Logits [steps, vocabulary] of one text from its last hidden states, by the equation, one token at a time."""
    head, weight = seen_head(model), model.lm_head.weight.double()
    table, gate, query, key = (x.detach().double() for x in (head.table, head.gate, head.query, head.key))
    hidden = hidden.double()
    logits = hidden @ weight.t()
    for t in range(len(ids)):
        before = ids[: max(t - WINDOW, 0)].tolist()
        for x in range(VOCABULARY):
            n = before.count(moved_id(x) if reads == "random" else x)
            if n:
                c, k = min(int(math.log2(n)), 3), int(math.log2(x + 64)) - 6
                score = (query @ hidden[t]) @ (key @ weight[x])
                logits[t, x] += table[c, k] + gate @ hidden[t] + score
    return logits


def read(model: Any, ids: Any, **options: Any) -> tuple[Any, Any]:
    """Logits, and the hidden states that the output head was given."""
    kept = []
    hook = model.lm_head.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    with torch.no_grad():
        logits = model(ids, **options).logits
    hook.remove()
    return logits, kept[0]


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_a_new_head_changes_nothing() -> None:
    ids = texts(2, 40)
    model, plain = tiny.model(vocab_size=VOCABULARY), made(seen=0)
    rosatune.hf.attach(model, window=WINDOW, sinks=1, units=0, seen=RANK)
    assert torch.equal(read(model, ids)[0], read(plain, ids)[0])


def test_the_definition() -> None:
    model, ids = made(), texts(2, 60)
    logits, hidden = read(model, ids, use_cache=False)
    for row in range(2):
        close(logits[row], expected(model, ids[row], hidden[row]))
    assert not torch.allclose(logits, hidden @ model.lm_head.weight.t())


@pytest.mark.parametrize("cuts", [[1] * 60, [30, 1, 29], [7, 50, 3]])
def test_a_text_in_pieces(cuts: list[int]) -> None:
    model, ids = made(), texts(2, 60)
    whole, _ = read(model, ids, use_cache=False)
    cache, parts, at = None, [], 0
    with torch.no_grad():
        for cut in cuts:
            output = model(ids[:, at : at + cut], past_key_values=cache, use_cache=True)
            cache, at = output.past_key_values, at + cut
            parts.append(output.logits)
    close(torch.cat(parts, 1), whole.double())


def test_padding_is_not_counted() -> None:
    model, ids = made(), texts(1, 40)
    alone, _ = read(model, ids, use_cache=False)
    mask = torch.ones(2, 52, dtype=torch.long)
    mask[0, :12] = 0
    both = torch.cat([torch.cat([torch.full((1, 12), 7), ids], 1), texts(1, 52, seed=6)])
    padded, _ = read(model, both, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False)
    close(padded[:1, 12:], alone.double())


@pytest.mark.parametrize("kept", [3, torch.tensor([0, 20, 39])])
def test_logits_of_some_positions(kept: Any) -> None:
    model, ids = made(), texts(2, 40)
    whole, _ = read(model, ids, use_cache=False)
    some, _ = read(model, ids, use_cache=False, logits_to_keep=kept)
    wanted = whole[:, -kept:] if isinstance(kept, int) else whole[:, kept]
    close(some, wanted.double())


def test_controls() -> None:
    model, ids = made(), texts(1, 60)
    for adapter in rosatune.hf.adapters(model).values():
        adapter.reads = "nothing"
    logits, hidden = read(model, ids, use_cache=False)
    assert torch.equal(logits, hidden @ model.lm_head.weight.t())
    for adapter in rosatune.hf.adapters(model).values():
        adapter.reads = "random"
    logits, hidden = read(model, ids, use_cache=False)
    close(logits[0], expected(model, ids[0], hidden[0], "random"))


def test_ids_are_moved_within_their_class() -> None:
    times = torch.arange(VOCABULARY).expand(1, 4, -1)
    assert _seen.moved(times)[0, 0].tolist() == [moved_id(x) for x in range(VOCABULARY)]
    assert sorted(_seen.moved(times)[0, 0].tolist()) == list(range(VOCABULARY))


def test_times_that_are_taken_back_and_reordered() -> None:
    ids, valid = texts(2, 50), torch.ones(2, 50, dtype=torch.bool)
    valid[1, :9] = False
    texts_so_far = _seen.SeenTimes(2, VOCABULARY, "cpu")
    texts_so_far.push(ids[:, :40], valid[:, :40])
    texts_so_far.push(texts(2, 10, seed=9))
    texts_so_far.rewind(10)
    twin = copy.deepcopy(texts_so_far)
    twin.reorder([1, 1, 0])
    for state, rows in ((texts_so_far, [0, 1]), (twin, [1, 1, 0])):
        time = state.push(ids[rows, 40:], valid[rows, 40:])
        fresh = _seen.SeenTimes(len(rows), VOCABULARY, "cpu")
        wanted = fresh.push(ids[rows], valid[rows])
        assert torch.equal(state.times, fresh.times) and torch.equal(time, wanted[:, 40:])


def test_beams_and_samples() -> None:
    model, ids = made(), texts(2, 30)
    options: Any = dict(max_new_tokens=12, num_beams=3, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_gradients_in_blocks(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_seen, "LOGITS", 7 * VOCABULARY)
    torch.manual_seed(1)
    head, ids = _seen.SeenHead(16, RANK, VOCABULARY), texts(2, 30)
    state = _seen.SeenTimes(2, VOCABULARY, "cpu")
    old = (state.push(ids) - WINDOW).clamp(min=0)
    with torch.no_grad():
        for x in head.parameters():
            x.normal_()
    found = []
    for how in (_seen.add, _seen.add_plain):
        hidden = torch.randn(2, 30, 16, generator=torch.Generator().manual_seed(2)).to(kind).requires_grad_()
        weight = torch.randn(VOCABULARY, 16, generator=torch.Generator().manual_seed(3)).to(kind).requires_grad_()
        head.zero_grad()
        logits = torch.nn.functional.linear(hidden, weight)
        logits = how(logits, head.parts(hidden, weight), state.times, old)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
        loss.backward()
        found.append([loss.detach(), hidden.grad, weight.grad, *(x.grad.clone() for x in head.parameters())])
    close_enough = dict(rtol=1e-4, atol=1e-6) if kind == torch.float32 else dict(rtol=0.1, atol=3e-3)
    for one, other in zip(*found):
        assert float(one.abs().max()) > 0
        torch.testing.assert_close(one, other, **close_enough)


def test_large_states_slow_it_down() -> None:
    """A step moves logits by about its rate times the size of the hidden states, which is that of the final norm."""
    model = made()
    rosatune.hf.set_stage(model, "adapter")
    model.model.norm.weight.data.fill_(-2090 / len(model.model.norm.weight))
    groups = {group["name"]: group for group in rosatune.hf.parameter_groups(model, 0.01, vector_lr=0.07)}
    head = seen_head(model)
    matrices, vectors = groups["adapter matrices, of tokens seen"], groups["adapter vectors, of tokens seen"]
    assert [id(x) for x in matrices["params"]] == [id(head.query)] and matrices["lr"] == pytest.approx(0.005)
    assert [id(x) for x in vectors["params"]] == [id(head.gate)] and vectors["lr"] == pytest.approx(0.035)
    assert groups["adapter matrices"]["lr"] == 0.01 and groups["adapter vectors"]["lr"] == 0.07


def test_it_learns_with_the_adapters() -> None:
    model, ids = made(), texts(2, 60)
    rosatune.hf.set_stage(model, "adapter")
    names = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {"rosa_seen.table", "rosa_seen.gate", "rosa_seen.query", "rosa_seen.key"} < names
    assert all("rosa" in name for name in names)
    groups = {group["name"]: group for group in rosatune.hf.parameter_groups(model)}
    matrices = {id(x) for x in groups["adapter matrices"]["params"]}
    head = seen_head(model)
    assert id(head.query) in matrices and id(head.key) in matrices and id(head.table) not in matrices
    assert set(groups) == {"adapter matrices", "adapter vectors"}
    optimizer = torch.optim.AdamW(list(groups.values()))
    model.train()
    losses = []
    for _ in range(30):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


def test_files(tmp_path: Path) -> None:
    model, ids = made(), texts(2, 40)
    wanted, _ = read(model, ids)
    rosatune.hf.save_adapter(model, tmp_path / "adapter")
    other = rosatune.hf.load_adapter(tiny.model(vocab_size=VOCABULARY), tmp_path / "adapter")
    assert torch.equal(read(other, ids)[0], wanted)
    model.save_pretrained(tmp_path / "whole")
    assert torch.equal(read(rosatune.hf.from_pretrained(tmp_path / "whole"), ids)[0], wanted)
    rosatune.hf.detach(other)
    assert torch.equal(read(other, ids)[0], read(tiny.model(vocab_size=VOCABULARY), ids)[0])
    assert seen_head(other) is None
    with pytest.raises(rosatune.hf.AdapterError, match="seen is 5 there and 0"):
        rosatune.hf.load_adapter(made(seen=0), tmp_path / "adapter")


def test_recall_has_the_head_in_its_conditions() -> None:
    model, ids = made(), texts(1, 120)[0].numpy()
    found = rosatune.recall(model, ids, context=60)
    losses = {name: sum(x.far + x.rest for x in books.values()) for name, books in found.sums.items()}
    assert losses["off"] == losses["window"]
    assert losses["adapter"] != losses["off"] and losses["random"] not in (losses["adapter"], losses["off"])


def refused(what: str) -> Any:
    return pytest.raises(InvalidArgument, match=what)


def test_bad_input() -> None:
    with refused("hidden size of 64"):
        made(seen=65)
    with refused("no output head"):
        rosatune.hf.attach(tiny.model(vocab_size=VOCABULARY).model, window=WINDOW, units=0, seen=4)
    model = made(source="own", bits=8)
    with refused("inputs_embeds alone"):
        model(inputs_embeds=model.model.embed_tokens(texts(1, 10)))
    with pytest.raises(TypeError, match="seen"):
        rosatune.RosaConfig(seen="much")
