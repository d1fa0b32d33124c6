"""Values by token: adapters read in tables of all tokens' bits, and a text keeps none.

Tables are for GPUs, so they are switched on here for the host. What is read is compared with texts that keep their
values by step, and with a text at once.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402

import rosatune.hf  # noqa: E402
from rosatune import values  # noqa: E402
from rosatune.torch import _read  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import tiny  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = dict(rtol=1e-4, atol=1e-4)
SETTINGS = [
    dict(chain=3, sinks=2),
    dict(kind="qwen3", delay=0, chain=2, layers=(0, 2)),
    dict(kind="qwen2", fusion="pre", gain=False, gate=False),
    dict(source="embeddings", bits=4, chain=2),
    dict(source="tokens+embeddings", bits=16, chain=2, sinks=1),
]


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(values, "DEVICES", (DEVICE,))
    with torch.no_grad():
        yield


def model_of(**options: Any) -> Any:
    made = tiny.attached(**options).to(DEVICE)
    with torch.no_grad():
        for adapter in rosatune.hf.adapters(made).values():  # else the bits would be the signs of the embeddings
            adapter.v_proj.weight.add_(0.3 * torch.randn_like(adapter.v_proj.weight))
    return made


def text(rows: int, steps: int, period: int = 11) -> Any:
    return tiny.tokens(rows, period).repeat(1, steps // period + 1)[:, :steps].to(DEVICE)


def walk(model: Any, ids: Any, cache: Any, sizes: Any, **options: Any) -> Any:
    """Logits of a text in pieces."""
    found, end = [], cache.get_seq_length()
    for steps in sizes:
        part = slice(end, end + steps)
        end += steps
        given = {name: x[:, :end] if name == "attention_mask" else x[:, part] for name, x in options.items()}
        found.append(model(ids[:, part], past_key_values=cache, use_cache=True, **given).logits)
    return torch.cat(found, 1)


def value_bytes(cache: Any) -> int:
    """What the layers keep of a text, the common look-up left out."""
    return sum(entry.state.bytes for entry in cache.layers if entry.state is not None)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_reads_the_same(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, by step and by token: with padding on both sides, steps taken back, rows in another order, copies."""
    model = model_of(**options)
    ids = text(3, 50)
    mask = torch.ones_like(ids)
    mask[0, :9] = mask[1, 40:] = mask[2, 20:23] = 0
    given = dict(attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    real = mask.bool()
    whole = model(ids, use_cache=False, **given).logits

    def go() -> Any:
        cache = DynamicCache()
        found = [walk(model, ids, cache, (13, 1, 10), **given)]
        cache.crop(20)
        found = [found[0][:, :20], walk(model, ids, cache, (4, 1, 11), **given)]
        cache = pickle.loads(pickle.dumps(cache))
        order = torch.tensor([2, 0, 2, 1], device=DEVICE)
        cache.batch_select_indices(order)
        mine = {name: x[order] for name, x in given.items()}
        twin = copy.deepcopy(cache)
        rest = walk(model, ids[order], cache, (1, 13), **mine)
        assert torch.equal(walk(model, ids[order], twin, (1, 13), **mine), rest)
        torch.testing.assert_close(rest[real[order][:, 36:]], whole[order][:, 36:][real[order][:, 36:]], **CLOSE)
        return cache, torch.cat(found, 1)

    cache, found = go()
    assert cache.layers[0].by_token and value_bytes(cache) == 0
    torch.testing.assert_close(found[real[:, :36]], whole[:, :36][real[:, :36]], **CLOSE)
    monkeypatch.setattr(values.Table, "most_bytes", 0)
    cache, kept = go()
    assert not cache.layers[0].by_token and value_bytes(cache) > 0
    torch.testing.assert_close(found[real[:, :36]], kept[real[:, :36]], **CLOSE)


@pytest.mark.parametrize("options", [dict(num_beams=3), dict(do_sample=True), dict(prompt_lookup_num_tokens=3)],
                         ids=str)  # fmt: skip
def test_generate(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(chain=2, sinks=2)
    ids, found = text(1, 20), []
    for most in (values.Table.most_bytes, 0):
        monkeypatch.setattr(values.Table, "most_bytes", most)
        torch.manual_seed(0)
        found.append(model.generate(ids, max_new_tokens=24, **{"do_sample": False, **options}))
    assert torch.equal(*found)


def test_what_is_kept_does_not_grow_with_the_layers() -> None:
    """Per token: its id and the index of ids, whatever the layers and their width."""
    model = model_of(chain=2)
    cache = DynamicCache()
    walk(model, text(1, 100), cache, (100,))
    tables = [adapter.table.bits for adapter in rosatune.hf.adapters(model).values()]
    assert value_bytes(cache) == 0 and [tuple(x.shape) for x in tables] == [(tiny.VOCABULARY, 8)] * 3
    walk(model, text(1, 200), cache, (100,))
    assert value_bytes(cache) == 0 and cache.layers[0].state.steps == 200
    assert all(adapter.table.bits is x for adapter, x in zip(rosatune.hf.adapters(model).values(), tables))


def changed(model: Any, how: str) -> None:
    """Other values, in one of the ways in which weights change."""
    adapter = rosatune.hf.adapters(model)[0]
    other = torch.randn_like(adapter.v_proj.weight)
    if how == "in place":
        adapter.v_proj.weight.copy_(other)
    elif how == "embeddings":
        model.model.embed_tokens.weight.normal_()
    elif how == "data":
        adapter.v_proj.weight.data = other
    elif how == "load_state_dict":
        adapter.load_state_dict({**adapter.state_dict(), "v_proj.weight": other})
    elif how == "dtype":
        adapter.double()
    elif how == "another parameter":
        adapter.v_proj.weight = torch.nn.Parameter(other)
    elif how == "optimizer":
        adapter.v_proj.weight.grad = other
        torch.optim.SGD([adapter.v_proj.weight], lr=1.0).step()
    elif how == "behind its back":  # as a replayed step of training does
        adapter.train()
        adapter.v_proj.weight.data.copy_(other)
        adapter.eval()


@pytest.mark.parametrize("how", ["in place", "embeddings", "data", "load_state_dict", "dtype", "another parameter",
                                 "optimizer", "behind its back"])  # fmt: skip
def test_made_anew_when_weights_change(how: str) -> None:
    model = model_of(chain=2)
    ids = text(1, 40)
    adapter = rosatune.hf.adapters(model)[0]
    walk(model, ids, DynamicCache(), (40,))
    before = adapter.table.bits.clone()
    changed(model, how)
    walk(model, ids, DynamicCache(), (20, 1, 19))
    embeds = values.normed_embeddings(model.model.embed_tokens.weight).to(adapter.v_proj.weight.dtype)
    expected = _read.pack_bits(adapter.v_proj(embeds)[None])[0]
    assert torch.equal(adapter.table.bits, expected)
    assert torch.equal(before, expected) == (how == "dtype")


def test_not_made_anew_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(chain=2)
    made = []
    really = values.Table._make
    monkeypatch.setattr(values.Table, "_make", lambda self, *given: (made.append(self), really(self, *given)))
    for _ in range(2):
        walk(model, text(1, 40), DynamicCache(), (20, 1, 19))
        model.eval()
    tiny.stir(model, seed=8)  # levels and strengths are no part of the bits
    with torch.inference_mode():
        walk(model, text(1, 40), DynamicCache(), (20, 1, 19))
    assert len(made) == 3


def test_slices_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = rosatune.hf.adapters(model_of())[0]
    embedding = torch.nn.Embedding(50, 64, device=DEVICE)
    whole = adapter.table.of(embedding, adapter.v_proj).clone()
    adapter.table.clear()
    monkeypatch.setattr(values, "SLICE", 7)
    assert torch.equal(adapter.table.of(embedding, adapter.v_proj), whole) and whole.any()


def test_under_autocast() -> None:
    """The bits are those of products in the dtype of autocast."""
    model = model_of(chain=2)
    ids, adapter = text(1, 40), rosatune.hf.adapters(model)[0]
    with torch.autocast(DEVICE, torch.bfloat16):
        found = walk(model, ids, DynamicCache(), (20, 20))
        low = adapter.table.bits.clone()
        torch.testing.assert_close(found, model(ids, use_cache=False).logits, rtol=0.1, atol=0.1)
        embeds = values.normed_embeddings(model.model.embed_tokens.weight).bfloat16()
        assert torch.equal(low, _read.pack_bits(adapter.v_proj(embeds)[None])[0])
    expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(walk(model, ids, DynamicCache(), (20, 20)), expected, **CLOSE)


def test_tables_are_not_saved() -> None:
    model = model_of(chain=2)
    names = set(model.state_dict())
    walk(model, text(1, 40), DynamicCache(), (40,))
    adapter = rosatune.hf.adapters(model)[0]
    assert set(model.state_dict()) == names and adapter.table.nbytes == tiny.VOCABULARY * 8
    twin = copy.deepcopy(adapter)
    assert twin.table is not adapter.table and twin.table.nbytes == 0
    file = io.BytesIO()
    torch.save(adapter, file)
    file.seek(0)
    assert torch.load(file, weights_only=False).table.nbytes == 0
    adapter.to(torch.bfloat16)
    assert adapter.table.nbytes == 0


def test_training_makes_no_table() -> None:
    model = model_of(chain=2)
    ids = text(2, 30)
    walk(model, ids, DynamicCache(), (30,))
    model.train()
    assert not any(adapter.table.nbytes for adapter in rosatune.hf.adapters(model).values())
    with torch.enable_grad():
        model(ids, labels=ids).loss.backward()
    adapter = rosatune.hf.adapters(model)[0]
    assert adapter.v_proj.weight.grad.any() and adapter.table.nbytes == 0


def test_embeddings_of_the_caller() -> None:
    """No table has them: such a text is kept by step, from the start or from there on."""
    model = model_of(chain=2, delay=0, source="tokens+embeddings", bits=16)
    ids = text(2, 40)
    embeds = model.model.embed_tokens(ids)
    embeds[:, 15:] += 0.3 * torch.randn_like(embeds[:, 15:])
    whole = model(input_ids=ids, inputs_embeds=embeds, use_cache=False).logits

    def go_on(cache: Any, begin: int, end: int) -> Any:
        part = slice(begin, end)
        return model(input_ids=ids[:, part], inputs_embeds=embeds[:, part], past_key_values=cache).logits

    begun, fresh = DynamicCache(), DynamicCache()
    torch.testing.assert_close(walk(model, ids, begun, (14, 1)), whole[:, :15], **CLOSE)
    assert begun.layers[0].by_token
    for cache, begin in ((begun, 15), (fresh, 0)):
        for end in (25, 26, 40):
            torch.testing.assert_close(go_on(cache, begin, end), whole[:, begin:end], **CLOSE)
            begin = end
        assert not cache.layers[0].by_token and value_bytes(cache) > 0


def test_what_is_kept_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of layers, sources that layers look up, modules that are more than a weight, tables that are too large."""

    def by_token(made: Any) -> bool:
        cache = DynamicCache()
        expected = made(ids, use_cache=False).logits
        torch.testing.assert_close(walk(made, ids, cache, (20, 1, 19)), expected, **CLOSE)
        return cache.layers[0].by_token

    class Other(torch.nn.Linear):
        pass

    ids = text(1, 40)
    assert by_token(model_of()) and not by_token(model_of(v_from="layer"))
    assert not any(by_token(model_of(source=source)) for source in ("own", "tokens+layer 1"))
    hooked, replaced = model_of(), model_of()
    hooked.model.embed_tokens.register_forward_hook(lambda module, given, found: 2 * found)
    rosatune.hf.adapters(replaced)[1].v_proj.__class__ = Other
    assert not by_token(hooked) and not by_token(replaced)
    monkeypatch.setattr(values.Table, "most_bytes", tiny.VOCABULARY * 8 - 1)
    assert not by_token(model_of())
    monkeypatch.setattr(values.Table, "most_bytes", tiny.VOCABULARY * 8)
    assert by_token(model_of())
    monkeypatch.setattr(values, "DEVICES", ())
    assert not by_token(model_of())


@pytest.mark.parametrize("bias", [False, True])
def test_what_is_read_is_added_in_place(bias: bool) -> None:
    """To nothing that anybody else holds; a projection that is more than a weight does it in two steps."""
    model = model_of(chain=2)
    ids = text(2, 40)
    if bias:
        for adapter in rosatune.hf.adapters(model).values():
            adapter.out_proj.bias = torch.nn.Parameter(torch.randn(64, device=DEVICE))
    expected = model(ids, use_cache=False, output_hidden_states=True).hidden_states
    cache, found = DynamicCache(), []
    for part in (slice(0, 20), slice(20, 21), slice(21, 40)):
        found.append(model(ids[:, part], past_key_values=cache, output_hidden_states=True).hidden_states)
    for mine, whole in zip(zip(*found), expected):
        torch.testing.assert_close(torch.cat(mine, 1), whole, **CLOSE)


def test_diagnostics_are_of_steps() -> None:
    model = model_of(chain=2)
    ids = text(2, 50)
    found = []
    for cached in (False, True):
        for adapter in rosatune.hf.adapters(model).values():
            adapter.watch = True
        if cached:
            walk(model, ids, DynamicCache(), (20, 1, 29))
        else:
            model(ids, use_cache=False)
        found.append(rosatune.hf.adapters(model)[1].diagnostics())
    assert found[0] == found[1] and found[0]["distance_mean"] > 0


@pytest.mark.parametrize("kind", ["random", "nothing"])
def test_other_reads(kind: str) -> None:
    model = model_of(chain=2)
    ids = text(1, 40)
    for adapter in rosatune.hf.adapters(model).values():
        adapter.reads = kind
    expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(walk(model, ids, DynamicCache(), (20, 1, 19)), expected, **CLOSE)
