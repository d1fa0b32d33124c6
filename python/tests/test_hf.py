"""The patched Hugging Face models: windows, caches, generation, files.

Two references are used. Where transformers has sliding layers of its own (Qwen2 and 3) the patched model must agree
with it to the last bit before training; elsewhere the window is given to the unpatched model as a mask. And whatever a
cache, a chunk, a beam or padding does, the logits must be those of one forward pass over the row alone.
"""

from __future__ import annotations

import copy
import json
import logging
import pickle
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers  # noqa: E402
from transformers import DynamicCache, StaticCache  # noqa: E402

import rosatune.hf as hf  # noqa: E402
from rosatune import Error, Pointer, RosaConfig  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import tiny  # noqa: E402

CLOSE = dict(rtol=1e-4, atol=1e-5)

# Earlier versions of transformers cannot take drafts back where no token ends a text, number the positions of padded
# rows in chunks otherwise than in steps, and have no recording of the past.
from_5 = pytest.mark.skipif(transformers.__version__ < "5", reason="needs transformers 5")


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def window_mask(steps: int, window: int, sinks: int) -> torch.Tensor:
    """The window by its definition, as an additive mask."""
    mask = torch.full((steps, steps), torch.finfo(torch.float32).min)
    for query in range(steps):
        for place in range(query + 1):
            if place > query - window or place < sinks:
                mask[query, place] = 0
    return mask[None, None]


def forward(model, ids, **options):
    return model(ids, use_cache=False, **options).logits


def set_retrieve(model, on: bool) -> None:
    for adapter in hf.adapters(model).values():
        adapter.retrieve = on


# ---------------------------------------------------------------------------------------------------- attach, detach


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
def test_fresh_adapters_equal_transformers_own_window(kind, implementation, padded):
    ids = tiny.tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[0, :5] = mask[1, 25:] = 0
    given = dict(attention_mask=mask) if padded else {}
    theirs = tiny.model(
        kind, attn_implementation=implementation, use_sliding_window=True, sliding_window=8, max_window_layers=0
    )
    ours = hf.attach(tiny.model(kind, attn_implementation=implementation), window=8, sinks=0)
    assert torch.equal(forward(ours, ids, **given), forward(theirs, ids, **given))


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("sinks", [0, 3])
def test_window_by_its_definition(kind, implementation, sinks):
    ids = tiny.tokens(2, 30)
    plain = tiny.model(kind, attn_implementation=implementation)
    ours = hf.attach(tiny.model(kind, attn_implementation=implementation), window=8, sinks=sinks, bits=8)
    mask = window_mask(30, 8, sinks)
    torch.testing.assert_close(forward(ours, ids), forward(plain, ids, attention_mask=mask), **CLOSE)
    # With the same kernels, the adapters add exactly nothing.
    bare = hf.attach(tiny.model(kind, attn_implementation=implementation), window=8, sinks=sinks, bits=8, layers=[])
    assert torch.equal(forward(ours, ids), forward(bare, ids))


def test_window_zero_is_global_and_exact():
    ids = tiny.tokens(2, 30)
    plain = forward(tiny.model(), ids)
    assert torch.equal(forward(hf.attach(tiny.model(), window=0, bits=16), ids), plain)


def test_fresh_pre_fusion_is_close():
    ids = tiny.tokens(2, 30)
    # The norm takes a constant factor away, but for its epsilon.
    post = hf.attach(tiny.model(rms_norm_eps=1e-12), window=8, bits=8)
    pre = hf.attach(tiny.model(rms_norm_eps=1e-12), window=8, bits=8, fusion="pre")
    torch.testing.assert_close(forward(pre, ids), forward(post, ids), **CLOSE)


def test_adapters_are_read():
    ids = tiny.tokens(2, 30)
    model = tiny.attached()
    read = forward(model, ids)
    set_retrieve(model, False)
    silent = forward(model, ids)
    assert (read - silent).abs().max() > 0.01
    assert torch.equal(silent, forward(hf.attach(tiny.model(), window=8, bits=8), ids))


def test_first_global_layers():
    ids = tiny.tokens(1, 30)
    model = hf.attach(tiny.model(), window=8, bits=8, first_global_layers=3)
    assert hf.adapters(model) == {}
    assert torch.equal(forward(model, ids), forward(tiny.model(), ids))
    model = hf.attach(tiny.model(), window=8, bits=8, first_global_layers=1)
    assert sorted(hf.adapters(model)) == [1, 2]
    model = hf.attach(tiny.model(), window=8, bits=8, layers=[2])
    assert sorted(hf.adapters(model)) == [2]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_detach_restores(kind):
    ids = tiny.tokens(2, 30)
    model = tiny.model(kind)
    model.model.norm.weight.requires_grad_(False)
    before, config, names = forward(model, ids), model.config.to_dict(), sorted(model.state_dict())
    flags = {name: weight.requires_grad for name, weight in model.named_parameters()}
    classes = [type(module) for module in model.modules()]
    hf.attach(model, window=8, bits=8)
    tiny.stir(model)
    assert not torch.equal(forward(model, ids), before)
    hf.detach(model)
    assert torch.equal(forward(model, ids), before)
    assert model.config.to_dict() == config
    assert sorted(model.state_dict()) == names
    assert {name: weight.requires_grad for name, weight in model.named_parameters()} == flags
    assert [type(module) for module in model.modules()] == classes
    hf.attach(model, window=8, bits=8)
    assert hf.attachment(model).plan.window == 8


def test_copies_are_independent():
    ids = tiny.tokens(1, 20)
    model = tiny.attached()
    logits = forward(model, ids)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(forward(twin, ids), logits)
        hf.detach(twin)
        assert not torch.equal(forward(twin, ids), logits)
    assert torch.equal(forward(model, ids), logits)


def test_a_configuration_or_names_or_both():
    config = RosaConfig(window=8, bits=8, sinks=2)
    by_name = hf.attachment(hf.attach(tiny.model(), window=8, bits=8, sinks=2)).config
    assert hf.attachment(hf.attach(tiny.model(), config)).config == by_name == config.replace(layers=range(3))
    both = hf.attachment(hf.attach(tiny.model(), config, sinks=0, first_global_layers=1)).config
    assert both == config.replace(sinks=0, first_global_layers=1, layers=[1, 2])


def test_wrapped_models(tmp_path):
    """What is attached to PEFT's, DistributedDataParallel's or a compiled model goes to the model inside."""
    model, ids = tiny.model(), tiny.tokens(1, 20)
    wrapped, shared = torch.nn.Module(), torch.nn.Module()
    wrapped.base_model, wrapped.get_base_model = model, lambda: model
    shared.module = wrapped
    for number, outside in enumerate((wrapped, shared, torch.compile(model, backend="eager"))):
        hf.attach(outside, window=8, stage=None)
        tiny.stir(outside)
        assert hf.adapters(outside) == hf.adapters(model)
        hf.save_adapter(outside, tmp_path / str(number))
        expected = forward(model, ids)
        hf.detach(outside)
        hf.load_adapter(outside, tmp_path / str(number))
        assert torch.equal(forward(model, ids), expected)
        hf.detach(model)


def test_stages():
    model = hf.attach(tiny.model(), window=8, bits=8)
    ours = {name for name, _ in model.named_parameters() if ".rosa." in name}
    assert {name for name, weight in model.named_parameters() if weight.requires_grad} == ours
    hf.set_stage(model, "all")
    assert all(weight.requires_grad for weight in model.parameters())
    model = hf.attach(tiny.model().requires_grad_(False), window=8, bits=8, stage=None)
    assert {name for name, weight in model.named_parameters() if weight.requires_grad} == ours


def test_parameter_groups():
    model = hf.attach(tiny.model(), window=8, bits=8, stage="all")
    groups = {group["name"]: group for group in hf.parameter_groups(model, 3e-4, 1e-6, weight_decay=0.1)}
    assert {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()} == {
        "adapter matrices": (3e-4, 0.1),
        "adapter vectors": (5 * 3e-4, 0.0),
        "backbone matrices": (1e-6, 0.1),
        "backbone vectors": (1e-6, 0.0),
    }
    assert sum(len(group["params"]) for group in groups.values()) == len(list(model.parameters()))
    hf.set_stage(model, "adapter")
    assert [group["name"] for group in hf.parameter_groups(model)] == ["adapter matrices", "adapter vectors"]
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="set_stage"):
        hf.parameter_groups(model)


@pytest.mark.parametrize("qk, matrices", (("aligned", 2), ("shared", 1)))
def test_a_rate_for_q_and_k(qk: str, matrices: int) -> None:
    model = hf.attach(tiny.model(), window=8, bits=8, source="own", qk=qk)
    before = {id(weight) for group in hf.parameter_groups(model) for weight in group["params"]}
    groups = {group["name"]: group for group in hf.parameter_groups(model, 1e-2, weight_decay=0.1, qk_factor=0.005)}
    assert list(groups) == ["adapter matrices", "adapter vectors", "adapter q and k"]
    slow = groups["adapter q and k"]
    assert slow["lr"] == pytest.approx(5e-5) and slow["weight_decay"] == 0.1
    assert len(slow["params"]) == matrices * len(hf.adapters(model))
    named = {id(weight): name for name, weight in model.named_parameters()}
    assert all(named[id(weight)].split(".")[-2] in ("q_proj", "k_proj") for weight in slow["params"])
    assert {id(weight) for group in groups.values() for weight in group["params"]} == before


def test_hidden_states_and_attentions_are_recorded():
    model = tiny.attached(attn_implementation="eager", sinks=0)
    found = model(tiny.tokens(1, 12), output_hidden_states=True, output_attentions=True)
    assert len(found.hidden_states) == 4 and len(found.attentions) == 3
    assert found.attentions[0][0, 0, 11, :4].abs().max() == 0


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(bits=7, source="own"), "64 channels are not a multiple of bits 7"),
        (dict(bits=0), "bits is 0; give a whole number from 1 to 16"),
        (dict(window=-1), "window is -1; give a whole number"),
        (dict(sinks=-1), "sinks is -1; give a whole number"),
        (dict(window=0, sinks=2), "sinks is 2"),
        (dict(first_global_layers=4), "first_global_layers is 4"),
        (dict(layers=[3]), "layers names layer 3"),
        (dict(layers=[-1]), "layers is -1"),
        (dict(source="layer 3"), "layer 3 has no adapter; name one that has, of .0, 1, 2."),
        (dict(source="layer 1", layers=[0, 1]), "layers names layer 0, which reads no source of 'layer 1'"),
        (dict(scales=[1.0]), "scales is 1 numbers; give a list of 3"),
        (dict(scales=[1.0, 0.0, 1.0]), "scales has 0.0; give numbers above 0"),
        (dict(units=0.3, sample=[50]), "sample has token 50; the model's vocabulary is 0 to 49"),
        (dict(units=0.3, sample="text"), "sample is text; give its tokenizer too"),
        (dict(units=0.3, sample=[0.5]), "sample is torch.float32 of shape"),
        (dict(layers=[0], first_global_layers=1), "first_global_layers=1"),
        (dict(layers=[1, 1]), "twice"),
        (dict(layers="some"), "'all'"),
        (dict(stage="sft"), "stage must be"),
        (dict(dtype=torch.float16), "dtype is torch.float16"),
    ],
)
def test_bad_options(options, message):
    model = tiny.model()
    with pytest.raises(ValueError, match=message):
        hf.attach(model, **{"window": 8, "bits": 8, **options})
    assert hf.attachment(model) is None


def test_bad_models():
    with pytest.raises(TypeError, match="Linear is not a model of transformers"):
        hf.attach(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="GPT2LMHeadModel .* LlamaForCausalLM"):
        hf.attach(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)))
    model = tiny.model()
    with pytest.raises(Error, match="no adapters"):
        hf.detach(model)
    with pytest.raises(TypeError, match="attach has no option 'windw'; did you mean 'window'"):
        hf.attach(model, windw=8, bits=8)
    with pytest.raises(TypeError, match="attach has no option 'stag'; did you mean 'stage'"):
        hf.attach(model, stag="all")
    with pytest.raises(TypeError, match="attach was given 2048 for config; give a RosaConfig"):
        hf.attach(model, 2048)
    with pytest.raises(TypeError, match="window is 8.5; give a whole number"):
        hf.attach(model, window=8.5)
    assert hf.attachment(model) is None
    hf.attach(model, window=8, bits=8)
    with pytest.raises(ValueError, match="already attached"):
        hf.attach(model)
    with pytest.raises(RuntimeError, match="call the model"):
        model.model.layers[0](torch.zeros(1, 2, 64))


def test_bad_calls():
    model = tiny.attached(sinks=2)
    ids = tiny.tokens(2, 10)
    with pytest.raises(ValueError, match="4 dimensions"):
        model(ids, attention_mask=torch.ones(2, 1, 10, 10))
    with pytest.raises(ValueError, match=r"\[2, 9\].* 10 positions"):
        model(ids, attention_mask=torch.ones(2, 9))
    with pytest.raises(ValueError, match="packed"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]))
    with pytest.raises(ValueError, match="pass input_ids or inputs_embeds"):
        model()
    with pytest.raises(Error, match=r"input_ids has shape \[10\]; give \[batch, steps\]"):
        model(ids[0])
    for wrong in (-1, tiny.VOCABULARY):
        with pytest.raises(Error, match=f"input_ids has token {wrong}; the model's vocabulary is 0 to 49.*tokenizer"):
            model(torch.full((1, 3), wrong))
    with pytest.raises(TypeError, match="DynamicCache, not in a StaticCache"):
        model(ids, past_key_values=StaticCache(config=model.config, max_cache_len=20))
    filled = DynamicCache()
    tiny.model()(ids, past_key_values=filled)
    with pytest.raises(ValueError, match="10 steps that no retrieval state has seen"):
        model(ids, past_key_values=filled)
    other = model(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="use a new cache"):
        tiny.attached(window=9)(ids, past_key_values=other)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="has no sink tokens"):
        model(ids)
    model.config._attn_implementation = "paged|sdpa"
    with pytest.raises(ValueError, match="not known to rosatune"):
        model(ids)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_flash_attention_gets_the_window(kind, monkeypatch):
    """The kernels are not at hand on a CPU; what they would be told is."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    told = []

    def kernel(module, query, key, value, attention_mask, **options):
        told.append((options.get("sliding_window"), attention_mask, key.shape[-2]))
        return query.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", kernel)
    model = tiny.attached(kind, first_global_layers=1, sinks=0)
    model.config._attn_implementation = "flash_attention_2"
    ids = tiny.tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    cache = model(ids, attention_mask=mask, use_cache=True).past_key_values
    assert [window for window, _, _ in told] == [None, 8, 8]
    assert all(torch.equal(seen, mask.bool()) for _, seen, _ in told)
    told.clear()
    mask = torch.cat([mask, mask[:, -1:]], 1)
    model(ids[:, :1], attention_mask=mask, past_key_values=cache)
    assert [keys for _, _, keys in told] == [13, 8, 8]
    assert [seen.shape[1] for _, seen, _ in told] == [13, 8, 8]


# ---------------------------------------------------------------------------------------------------- cache, generation


SETTINGS = [
    dict(kind="llama"),
    dict(kind="qwen3", sinks=3, paper=True),
    dict(kind="llama", sinks=3, fusion="pre", first_global_layers=1, paper=True),
    dict(kind="qwen3", window=0),
    dict(kind="qwen2", window=1, sinks=1),
    dict(kind="llama", sinks=2, attn_implementation="eager", paper=True),
    dict(kind="qwen3", sinks=2, fusion="pre", source="embeddings+own", delay=0),
    dict(kind="qwen2", sinks=1, source="tokens+layer 1", qk="shared", chain=2, first_global_layers=1),
]


@pytest.fixture(params=SETTINGS, ids=lambda s: " ".join(f"{k}={v}" for k, v in s.items()))
def model(request):
    return tiny.attached(**request.param)


def test_pieces_give_the_whole(model):
    ids = tiny.tokens(2, 40)
    whole = forward(model, ids)
    cache = DynamicCache()
    pieces = [model(piece, past_key_values=cache).logits for piece in ids.split([2, 1, 9, 1, 1, 26], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, **CLOSE)


def test_left_padding_changes_nothing(model):
    ids = tiny.tokens(2, 40)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    ids[0, :7] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    alone = torch.cat([forward(model, ids[:1, 7:]), forward(model, ids[1:])[:, 7:]])
    whole = forward(model, ids, attention_mask=mask, position_ids=positions)
    torch.testing.assert_close(whole[:, 7:], alone, **CLOSE)
    cache, pieces, end = DynamicCache(), [], 0
    for steps in (4, 1, 4, 1, 13, 1, 16):
        part = slice(end, end + steps)
        end += steps
        given = dict(attention_mask=mask[:, :end], position_ids=positions[:, part])
        pieces.append(model(ids[:, part], past_key_values=cache, **given).logits)
    torch.testing.assert_close(torch.cat(pieces, 1)[:, 7:], alone, **CLOSE)


def test_right_padding_changes_nothing(model):
    ids = tiny.tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[0, 20:] = 0
    logits = forward(model, ids, attention_mask=mask)
    torch.testing.assert_close(logits[:1, :20], forward(model, ids[:1, :20]), **CLOSE)
    torch.testing.assert_close(logits[1:], forward(model, ids[1:]), **CLOSE)


def greedy(model, ids, steps):
    """Generation without a cache, by definition."""
    for _ in range(steps):
        ids = torch.cat([ids, forward(model, ids)[:, -1:].argmax(-1)], 1)
    return ids


def test_generate_greedy_and_chunked(model):
    ids = tiny.tokens(2, 20)
    expected = greedy(model, ids, 8)
    options = dict(max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(ids, **options), expected)
    assert torch.equal(model.generate(ids, use_cache=False, **options), expected)
    assert torch.equal(model.generate(ids, prefill_chunk_size=6, **options), expected)


@from_5
def test_generate_with_left_padding():
    model = tiny.attached("qwen3", sinks=2)
    long, short = tiny.tokens(1, 20), tiny.tokens(1, 13, seed=9)
    ids = torch.cat([long, torch.cat([torch.zeros(1, 7, dtype=torch.long), short], 1)])
    mask = (ids != 0).long()
    for options in (dict(), dict(prefill_chunk_size=5)):
        found = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, **options)
        assert torch.equal(found[:1], greedy(model, long, 8))
        assert torch.equal(found[1:, 7:], greedy(model, short, 8))


def test_generate_sampling():
    model = tiny.attached(sinks=2)
    ids = tiny.tokens(1, 20)
    options = dict(max_new_tokens=8, do_sample=True, num_return_sequences=3)
    found = []
    for cached in (True, False):
        torch.manual_seed(0)
        found.append(model.generate(ids, use_cache=cached, **options))
    assert torch.equal(*found)


def test_generate_beams():
    model = tiny.attached(sinks=2)
    ids = tiny.tokens(2, 20)
    options = dict(max_new_tokens=10, do_sample=False, num_beams=4, return_dict_in_generate=True, output_scores=True)
    with_cache, without = (model.generate(ids, use_cache=cached, **options) for cached in (True, False))
    assert torch.equal(with_cache.sequences, without.sequences)
    torch.testing.assert_close(with_cache.sequences_scores, without.sequences_scores, **CLOSE)
    # The beams did cross: otherwise reordering was not put to the test.
    assert (with_cache.beam_indices[:, 1:] != with_cache.beam_indices[:, :1]).any()


def test_generate_continues_from_a_cache():
    model = tiny.attached(sinks=2)
    ids = tiny.tokens(1, 20)
    options = dict(max_new_tokens=5, do_sample=False)
    cache = DynamicCache()
    first = model.generate(ids, past_key_values=cache, **options)
    more = torch.cat([first, tiny.tokens(1, 6, seed=8)], 1)
    assert torch.equal(model.generate(more, past_key_values=cache, **options), greedy(model, more, 5))


def test_one_prompt_many_continuations():
    model = tiny.attached(sinks=2)
    prompt = tiny.tokens(1, 20)
    cache = model(prompt, use_cache=True).past_key_values
    for seed in (1, 2):
        ids = torch.cat([prompt, tiny.tokens(1, 4, seed)], 1)
        found = model.generate(ids, past_key_values=copy.deepcopy(cache), max_new_tokens=4, do_sample=False)
        assert torch.equal(found, greedy(model, ids, 4))
    assert cache.get_seq_length() == 20


@from_5
def test_prompt_lookup_takes_rejected_drafts_back():
    model = tiny.attached(sinks=2)
    ids = tiny.tokens(1, 6).repeat(1, 4)
    found = model.generate(ids, prompt_lookup_num_tokens=3, max_new_tokens=12, do_sample=False)
    assert torch.equal(found, greedy(model, ids, 12))


def test_cache_holds_the_window_alone():
    model = tiny.attached(window=8, sinks=2, first_global_layers=1)
    cache = DynamicCache()
    model.generate(tiny.tokens(2, 40), past_key_values=cache, max_new_tokens=5, do_sample=False)
    assert cache.layers[0].keys.shape[-2] == 44
    for entry in cache.layers[1:]:
        assert entry.keys.shape[-2] == entry.values.shape[-2] == 8
        assert entry.keys.untyped_storage().nbytes() <= 9 * 2 * 2 * 16 * 4
        assert entry.sink_keys.shape[-2] == 2
        assert entry.get_seq_length() == 44


@from_5
def test_cache_crop_select_repeat_reset():
    model = tiny.attached(sinks=2)
    ids = tiny.tokens(3, 24)
    whole = forward(model, ids)
    cache = DynamicCache()
    model(ids[:, :5], past_key_values=cache)
    cache.activate_past_recording()
    model(tiny.tokens(3, 10, seed=8), past_key_values=cache)
    cache.crop(-10)
    torch.testing.assert_close(model(ids[:, 5:20], past_key_values=cache).logits, whole[:, 5:20], **CLOSE)
    with pytest.raises(ValueError, match="cannot crop 21 steps"):
        cache.crop(-21)
    cache.crop(torch.tensor(-2))  # as drafts do
    assert type(cache.get_seq_length()) is int
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    rows = [2, 2, 0, 0]
    torch.testing.assert_close(model(ids[rows, 18:], past_key_values=cache).logits, whole[rows, 18:], **CLOSE)
    cache.reset()
    torch.testing.assert_close(model(ids, past_key_values=cache).logits, whole, **CLOSE)
    cache.crop(-3)
    torch.testing.assert_close(model(ids[:, 21:], past_key_values=cache).logits, whole[:, 21:], **CLOSE)
    with pytest.raises(RuntimeError, match="activate_past_recording"):
        cache.crop(-9)


def test_padding_must_not_be_forgotten():
    model = tiny.attached(sinks=2)
    ids = tiny.tokens(2, 10)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    cache = model(ids, attention_mask=mask, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="pass that of all positions"):
        model(ids[:, :1], past_key_values=cache)
    # Where the padded rows are gone, a mask says so.
    cache.batch_select_indices(torch.tensor([1]))
    found = model(ids[1:, :1], past_key_values=cache, attention_mask=torch.ones(1, 11)).logits
    torch.testing.assert_close(found, forward(model, torch.cat([ids[1:], ids[1:, :1]], 1))[:, -1:], **CLOSE)


def test_static_cache_is_refused_by_name():
    model = tiny.attached()
    with pytest.raises(TypeError, match="cache_implementation"):
        model.generate(tiny.tokens(1, 10), cache_implementation="static", max_new_tokens=2)


def test_single_steps_do_without_flex_attention():
    """The same bits as by scaled_dot_product_attention, and the model keeps its implementation."""
    model = tiny.attached(sinks=2)
    ids, found = tiny.tokens(2, 24), []
    for implementation in ("sdpa", "flex_attention"):
        model.set_attn_implementation("sdpa")
        cache = model(ids[:, :20], use_cache=True).past_key_values
        model.set_attn_implementation(implementation)
        steps = [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(20, 24)]
        found.append(torch.cat(steps))
        assert model.config._attn_implementation == implementation
    assert torch.equal(*found)


def test_flex_attention_rule():
    """The blocks of flex attention follow the same rule as the dense masks."""
    from rosatune.hf.masks import Columns, Rows, build

    padding = torch.ones(2, 12, dtype=torch.bool)
    padding[0, :3] = False
    rows = Rows(padding, torch.tensor([3, 0]))
    for seen, columns in ((0, Columns(0, 0, 12)), (8, Columns(2, 4, 8))):
        given = (4, 2, 2, 12 - seen, seen, columns, rows, torch.float32, torch.device("cpu"))
        dense, blocks = build("sdpa", *given), build("flex_attention", *given)
        for row in range(2):
            for query in range(12 - seen):
                for column in range(columns.sinks + columns.length):
                    index = [torch.tensor(value) for value in (row, 0, query, column)]
                    assert bool(blocks.mask_mod(*index)) == bool(dense[row, 0, query, column])


# ---------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("options", [dict(), dict(qk="shared", fusion="pre", sinks=2, first_global_layers=1)])
def test_save_and_load(tmp_path, options):
    ids = tiny.tokens(2, 30)
    model = tiny.attached(**options)
    hf.save_adapter(model, tmp_path / "a" / "b")
    bare = hf.load_adapter(tiny.model(), tmp_path / "a" / "b")
    assert torch.equal(forward(bare, ids), forward(model, ids))
    assert hf.attachment(bare).config == hf.attachment(model).config
    config = json.loads((tmp_path / "a" / "b" / "adapter_config.json").read_text())
    assert {"window", "sinks", "bits", "fusion", "layers", "first_global_layers"} < config["options"].keys()
    assert {"qk", "e_start", "policy", "fold", "max_match", "qk_grad", "explore"} < config["options"].keys()
    assert config["base_model"] == {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3}
    tiny.stir(bare, seed=7)
    assert not torch.equal(forward(bare, ids), forward(model, ids))
    hf.load_adapter(bare, tmp_path / "a" / "b")
    assert torch.equal(forward(bare, ids), forward(model, ids))
    # Saving again over the older files leaves those two and nothing else.
    hf.save_adapter(bare, tmp_path / "a" / "b")
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def edit_config(folder: Path, **changes) -> None:
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps(config))


def rewrite_tensors(folder: Path, change) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = folder / "adapter_model.safetensors"
    with safe_open(path, framework="pt") as store:
        metadata, tensors = store.metadata(), {name: store.get_tensor(name) for name in store.keys()}
    change(tensors)
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json: no such file"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "adapter_model.safetensors: no such file"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "adapter_config.json: is not JSON"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "adapter_config.json: holds a list"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"xx"), "adapter_model.safetensors: cannot be read"),
        (lambda f: edit_config(f, format=99), "format 99.*update"),
        (lambda f: edit_config(f, format="x"), "'format' is 'x'"),
        (lambda f: edit_config(f, options=3), "'options' is missing"),
        (lambda f: edit_config(f, options={"bits": 5, "source": "own"}), "cannot be attached.*multiple of bits 5"),
        (lambda f: edit_config(f, options={"bitz": 5}), "option 'bitz' is not known to.*'bits'.*update rosatune"),
        (lambda f: edit_config(f, options={"window": "8"}), "adapter_config.json: window is '8'"),
        (lambda f: edit_config(f, base_model=None), "'base_model' is missing"),
        (lambda f: edit_config(f, peft_type="LORA"), "an adapter of PEFT .LORA.*PeftModel"),
        (lambda f: edit_config(f, scales=[1.0]), "scales is 1 numbers; give a list of 3"),
        (lambda f: edit_config(f, scales=[1.0, "x", 1.0]), "scales has 'x'; give numbers above 0"),
        (lambda f: edit_config(f, tensors="0"), "belongs to another adapter_config.json"),
        (lambda f: rewrite_tensors(f, lambda t: t.pop("layers.1.e0")), "1 tensors are missing, such as layers.1.e0"),
        (lambda f: rewrite_tensors(f, lambda t: t.update(x=torch.zeros(1))), "1 tensors have no place.*such as x"),
        (
            lambda f: rewrite_tensors(f, lambda t: t.update({"layers.0.e0": torch.zeros(3)})),
            r"layers.0.e0 is \[3\], this model's \[4, 64\]",
        ),
    ],
)
def test_damaged_files(tmp_path, damage, message):
    hf.save_adapter(tiny.attached(), tmp_path)
    damage(tmp_path)
    model = tiny.model()
    with pytest.raises(hf.AdapterError, match=message):
        hf.load_adapter(model, tmp_path)
    assert hf.attachment(model) is None


def test_adapter_of_another_model(tmp_path):
    hf.save_adapter(tiny.attached(), tmp_path)
    with pytest.raises(hf.AdapterError, match="model_type 'llama'.*'qwen3'"):
        hf.load_adapter(tiny.model("qwen3"), tmp_path)
    with pytest.raises(hf.AdapterError, match="num_hidden_layers 3.*has 2"):
        hf.load_adapter(tiny.model(num_hidden_layers=2), tmp_path)
    with pytest.raises(hf.AdapterError, match="hidden_size 64.*has 128"):
        hf.load_adapter(tiny.model(hidden_size=128), tmp_path)
    for name, there, here in (("window", 8, 16), ("chain", 4, 2), ("source", "tokens", "embeddings"), ("delay", 8, 9)):
        with pytest.raises(hf.AdapterError, match=f"{name} is {there!r} there and {here!r} in this model"):
            hf.load_adapter(tiny.attached(**{name: here}), tmp_path)
    learning = hf.attach(tiny.model(), window=8, bits=8, delay=8, explore=0.1, v_grad="sigmoid", units=0)
    hf.load_adapter(learning, tmp_path)
    assert hf.adapters(learning)[0].settings.explore == 0.1
    hf.save_adapter(tiny.attached(paper=True), tmp_path)
    with pytest.raises(hf.AdapterError, match="3 tensors have no place"):
        hf.load_adapter(tiny.attached(paper=True, qk="shared"), tmp_path)


def test_adapters_of_format_1_are_the_paper_s(tmp_path):
    """As written before there were sources: the new options are not there, nor are scales."""
    ids = tiny.tokens(2, 30)
    model = tiny.attached(paper=True, sinks=2)
    hf.save_adapter(model, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    new = ("source", "delay", "chain", "source_seed", "gain", "gate", "units", "v_start", "v_from", "v_grad")
    options = {name: value for name, value in config["options"].items() if name not in new}
    config.pop("scales")
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "format": 1, "options": options}))
    again = hf.load_adapter(tiny.model(), tmp_path)
    assert hf.attachment(again).config == hf.attachment(model).config
    assert torch.equal(forward(again, ids), forward(model, ids))
    # and the entry of a model that was saved whole
    model.config.rosatune = options
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(forward(hf.from_pretrained(tmp_path / "model"), ids), forward(model, ids))


def test_units_are_measured():
    model, sample = tiny.model(), tiny.tokens(3, 40)
    states = model(sample, output_hidden_states=True, use_cache=False).hidden_states[:3]
    expected = [0.5 * float(state.square().mean(-1).sqrt().median()) for state in states]
    hf.attach(model, window=8, units=0.5, sample=sample)
    assert [adapter.scale for adapter in hf.adapters(model).values()] == pytest.approx(expected)
    hf.detach(model)
    hf.attach(model, window=8, units=0, sample=sample)
    assert [adapter.scale for adapter in hf.adapters(model).values()] == [1, 1, 1]
    hf.detach(model)

    class Tokenizer:
        def __call__(self, text):
            return {"input_ids": [int(word) for word in text.split()]}

    text = " ".join(map(str, sample[0].tolist()))
    found = []
    for given in (dict(sample=sample[0]), dict(sample=text, tokenizer=Tokenizer()), dict(sample=sample[0].tolist())):
        found.append([adapter.scale for adapter in hf.adapters(hf.attach(model, window=8, **given)).values()])
        hf.detach(model)
    assert found[0] == found[1] == found[2]


def test_a_sample_is_drawn_where_none_is_given():
    found = []
    for _ in range(2):
        model = tiny.model().train()
        found.append([adapter.scale for adapter in hf.adapters(hf.attach(model, window=8)).values()])
        assert model.training and all(layer.training for layer in model.modules())
        assert not any(layer._forward_pre_hooks for layer in model.model.layers)
    assert found[0] == found[1] and all(scale > 0 for scale in found[0])
    ids = hf.scales.draw_sample(tiny.model())
    assert ids.shape == (2, 256) and ids.max() < tiny.VOCABULARY and len(ids.unique()) > 10
    with torch.device("meta"):
        empty = tiny.model()
    with pytest.raises(ValueError, match="no weights yet .meta device.; attach with scales="):
        hf.attach(empty, window=8)
    assert hf.adapters(hf.attach(empty, window=8, scales=[1.0, 2.0, 3.0]))[2].scale == 3.0


def test_token_ids_reach_the_adapters():
    model, ids = tiny.attached(), tiny.tokens(2, 30)
    whole = forward(model, ids)
    embeds = model.get_input_embeddings()(ids)
    with pytest.raises(ValueError, match="inputs_embeds alone: pass input_ids beside them .*or attach with source="):
        model(inputs_embeds=embeds, use_cache=False)
    with pytest.raises(ValueError, match="generate passes on one of the two: give it input_ids"):
        model.generate(inputs_embeds=embeds, max_new_tokens=2)
    assert torch.equal(model(input_ids=ids, inputs_embeds=embeds, use_cache=False).logits, whole)
    with pytest.raises(ValueError, match=r"input_ids is \[2, 29\] and inputs_embeds \[2, 30, 64\]"):
        model(input_ids=ids[:, 1:], inputs_embeds=embeds)
    for source in ("own", "embeddings", "layer 0"):
        other = tiny.attached(source=source, delay=0)
        assert torch.equal(other(inputs_embeds=embeds, use_cache=False).logits, forward(other, ids))


def test_one_look_up_serves_all_layers(monkeypatch):
    from rosatune import finder

    calls = []
    retrieve = finder.retrieve
    monkeypatch.setattr(finder, "retrieve", lambda *a, **o: calls.append(a[0].shape) or retrieve(*a, **o))
    forward(tiny.attached(), tiny.tokens(2, 30))
    assert calls == [(2, 1, 30)] * 2, "with the delay, and without for the chain"


def test_random_reads_are_a_control():
    model, ids = tiny.attached(), tiny.tokens(2, 60)
    plain = forward(model, ids)
    found = {}
    for reads in ("random", "nothing", "found"):
        for adapter in hf.adapters(model).values():
            adapter.reads = reads
        found[reads] = forward(model, ids)
        torch.testing.assert_close(model(ids, use_cache=True).logits, found[reads], **CLOSE)
    assert torch.equal(found["found"], plain)
    assert (found["random"] - plain).abs().max() > 0.01 and (found["nothing"] - plain).abs().max() > 0.01
    # the first 9 tokens have nothing that is older than the window
    assert torch.equal(found["random"][:, :9], plain[:, :9])


def test_adapters_name_their_base_model(tmp_path, recwarn):
    model = tiny.attached()
    hf.save_adapter(model, tmp_path / "nameless")
    assert "base_model_name_or_path" not in json.loads((tmp_path / "nameless" / "adapter_config.json").read_text())
    model.config._name_or_path = "Company/Base-135M"
    hf.save_adapter(model, tmp_path / "a")
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["base_model_name_or_path"] == (
        "Company/Base-135M"
    )
    other = tiny.model()
    cached = "/x/models--Company--Base-135M/snapshots/0a1b"
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "base-135m.Q4_1.gguf").write_bytes(b"")
    for same in ("", "Company/Base-135M", "/models/Base-135M/", cached, str(tmp_path / "a"), str(tmp_path / "files")):
        other.config._name_or_path = same
        hf.detach(hf.load_adapter(other, tmp_path / "a"))
    assert not recwarn.list
    (tmp_path / "files" / "base-135m.Q4_1.gguf").rename(tmp_path / "files" / "base-360m.Q4_1.gguf")
    for another in ("Company/Base-360M", str(tmp_path / "files")):
        other.config._name_or_path = another
        with pytest.warns(UserWarning, match="trained with the model Company/Base-135M, and is loaded into "):
            hf.detach(hf.load_adapter(other, tmp_path / "a"))


def test_a_text_longer_than_the_model_was_trained_for(recwarn):
    model = tiny.attached(max_position_embeddings=20)
    cache = model(tiny.tokens(1, 20), use_cache=True).past_key_values
    assert not recwarn.list
    with pytest.warns(UserWarning, match="has 21 positions, and the model was trained for 20"):
        model(tiny.tokens(1, 1), past_key_values=cache)
    recwarn.clear()
    model(tiny.tokens(1, 30))
    assert not recwarn.list, "it is said once"


def test_failed_save_leaves_the_older_files(tmp_path, monkeypatch):
    model = tiny.attached()
    hf.save_adapter(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    tiny.stir(model, seed=8)

    def fail(tensors, path, metadata=None):
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("rosatune.hf.files.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        hf.save_adapter(model, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "file").touch()
    with pytest.raises(Error, match="cannot make the folder .*/file/deep: Not a directory"):
        hf.save_adapter(model, tmp_path / "file" / "deep")
    with pytest.raises(Error, match="cannot write .*/none/pointer.json: No such file or directory"):
        Pointer([[0.0] * 13], 4).save(tmp_path / "none" / "pointer.json")


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(hf.AdapterError, match="none: no such folder; name one that model.save_pretrained wrote"):
        hf.from_pretrained(tmp_path / "none")


def test_a_trained_backbone_is_not_forgotten(tmp_path, recwarn):
    """Who trained everything is told that an adapter's folder does not have it all."""
    model = tiny.attached()
    hf.save_adapter(model, tmp_path)
    assert not recwarn
    hf.set_stage(model, "all")
    with pytest.warns(UserWarning, match="other weights of the model are trained too.*save_pretrained"):
        hf.save_adapter(model, tmp_path)
    model.save_pretrained(tmp_path)
    recwarn.clear()
    hf.save_adapter(model, tmp_path)
    assert not recwarn


def test_save_pretrained_keeps_everything(tmp_path, caplog, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    ids = tiny.tokens(2, 30)
    model = tiny.attached("qwen3", sinks=2)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["rosatune"]["window"] == 8
    again = hf.from_pretrained(tmp_path)
    assert torch.equal(forward(again, ids), forward(model, ids))
    assert hf.attachment(again).config == hf.attachment(model).config
    # The tensors of the adapters are expected here, and nowhere else.
    assert "rosa" not in caplog.text + "".join(capfd.readouterr())
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert "rosa.e0" in caplog.text + "".join(capfd.readouterr())
    config["rosatune"]["windw"] = config["rosatune"].pop("window")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(hf.AdapterError, match="config.json: .*'windw'.* did you mean 'window'"):
        hf.from_pretrained(tmp_path)
    tiny.model("qwen3").save_pretrained(tmp_path / "bare")
    with pytest.raises(hf.AdapterError, match="no adapters and no pointer were saved"):
        hf.from_pretrained(tmp_path / "bare")
