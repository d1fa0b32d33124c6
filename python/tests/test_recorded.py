"""Recorded steps against steps that are launched one by one.

On a GPU they are recorded. Without one the same step is run as it is for every token, which tests the rest: the ring,
the mask, the look-up, a cache that comes and goes.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402

import rosatune.hf  # noqa: E402
from rosatune import values  # noqa: E402
from rosatune.nn import RosaState  # noqa: E402
from rosatune.torch import _past, _triton  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import tiny  # noqa: E402

module = sys.modules["rosatune.hf.recorded"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CLOSE = dict(rtol=1e-4, atol=1e-4)

SETTINGS = [
    dict(kind="llama", layers=()),
    dict(kind="qwen3", layers=(), sinks=3),
    dict(kind="llama"),
    dict(kind="qwen3", sinks=3, chain=3),
    dict(kind="qwen2", window=1, sinks=1, delay=0),
    dict(kind="llama", sinks=2, attn_implementation="eager", fusion="pre"),
    dict(kind="qwen3", sinks=2, source="embeddings", bits=16, chain=2, delay=0),
    dict(kind="llama", sinks=1, source="tokens+embeddings", layers=(0, 2), bits=4, gain=False, gate=False),
    dict(kind="llama", sinks=2, chain=2, v_from="layer"),
    dict(kind="qwen3", sinks=2, chain=2, seen=5),
]


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """What was recorded: whether with a mask. On the host nothing is recorded, the step runs as it is.

    Values are read by token on the host too.
    """
    made: list = []
    really = module._record

    def record(work: Any) -> Any:
        made.append(work.args[0])
        if DEVICE == "cuda":
            return really(work)
        return lambda: work().clone()

    monkeypatch.setattr(module, "_record", record)
    monkeypatch.setattr(module, "DEVICES", (DEVICE,))
    monkeypatch.setattr(values, "DEVICES", (DEVICE,))
    with torch.no_grad():
        yield made


def model_of(**options: Any) -> Any:
    return tiny.attached(**options).to(DEVICE)


@pytest.fixture(params=SETTINGS, ids=lambda s: " ".join(f"{k}={v}" for k, v in s.items()))
def model(request: Any) -> Any:
    return model_of(**request.param)


def walk(model: Any, ids: Any, prompt: int, cache: Any = None, **options: Any) -> Any:
    """Logits of a text that is read in two pieces and then token by token."""
    cache = DynamicCache() if cache is None else cache
    pieces = [prompt // 2, prompt - prompt // 2] + [1] * (ids.shape[1] - prompt)
    found, end = [], 0
    for steps in pieces:
        part = slice(end, end + steps)
        end += steps
        given = {name: x[:, :end] if name == "attention_mask" else x[:, part] for name, x in options.items()}
        found.append(model(ids[:, part], past_key_values=cache, use_cache=True, **given).logits)
    return torch.cat(found, 1)


def text(rows: int, steps: int) -> Any:
    """Passages that come again, so that there is something to find."""
    return tiny.tokens(rows, 11).repeat(1, steps // 11 + 1)[:, :steps].to(DEVICE)


@pytest.mark.parametrize("prompt", [4, 7, 21])
def test_steps(model: Any, prompt: int, recordings: list) -> None:
    """From a prompt shorter than the window and from a longer one; the recordings serve a second text."""
    for rows in (2, 1):
        ids = text(rows, 40)
        expected = walk(model, ids, prompt)
        del recordings[:]
        with rosatune.hf.recorded(model):
            for _ in range(2):
                torch.testing.assert_close(walk(model, ids, prompt), expected, **CLOSE)
        assert sorted(recordings) == sorted({False, prompt < 21}) or model.model.rosatune.plan.window == 1
    assert "forward" not in model.__dict__


def test_padding(model: Any, recordings: list) -> None:
    """On the left, and tokens of the text that are switched off on the way."""
    ids = text(3, 40)
    mask = torch.ones_like(ids)
    mask[0, :7] = mask[1, 30:33] = mask[1, 0] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    real = mask.bool()
    given = dict(attention_mask=mask, position_ids=positions)
    expected = walk(model, ids, 12, **given)
    with rosatune.hf.recorded(model):
        found = walk(model, ids, 12, **given)
    assert recordings == [True]
    torch.testing.assert_close(found[real], expected[real], **CLOSE)


@pytest.mark.parametrize("options", [
    dict(do_sample=False), dict(do_sample=True), dict(do_sample=False, num_beams=3),
    dict(do_sample=False, prompt_lookup_num_tokens=3),
], ids=str)  # fmt: skip
def test_generate(options: dict, recordings: list) -> None:
    """As without, token by token: greedy, sampled, by beams (rows change places), with drafts (steps taken back)."""
    model = model_of(kind="qwen3", sinks=2, chain=2)
    ids = text(1 if "prompt_lookup_num_tokens" in options else 2, 20)
    found = []
    for record in (False, True):
        torch.manual_seed(0)
        if not record:
            found.append(model.generate(ids, max_new_tokens=24, **options))
            continue
        with rosatune.hf.recorded(model) as same:
            assert same is model
            found.append(model.generate(ids, max_new_tokens=24, **options))
    assert torch.equal(*found) and recordings


def test_a_cache_comes_and_goes(recordings: list) -> None:
    """Two texts in turn, copies, several tokens at once, steps taken back, and the end of the recording between."""
    model = model_of(kind="llama", sinks=2, chain=2)
    ids = text(2, 60)
    expected = walk(model, ids, 12)
    caches = [DynamicCache() for _ in range(2)]
    with rosatune.hf.recorded(model):
        for cache in caches:
            walk(model, ids[:, :20], 12, cache)
        for begin in range(20, 26):
            for cache in caches:
                logits = model(ids[:, begin : begin + 1], past_key_values=cache).logits
                torch.testing.assert_close(logits, expected[:, begin : begin + 1], **CLOSE)
        twin = copy.deepcopy(caches[0])
        for cache in (twin, caches[0]):
            logits = model(ids[:, 26:27], past_key_values=cache).logits
            torch.testing.assert_close(logits, expected[:, 26:27], **CLOSE)
        several = model(ids[:, 27:31], past_key_values=twin).logits
        torch.testing.assert_close(several, expected[:, 27:31], **CLOSE)
        twin.crop(29)
        for begin in (29, 30):
            logits = model(ids[:, begin : begin + 1], past_key_values=twin).logits
            torch.testing.assert_close(logits, expected[:, begin : begin + 1], **CLOSE)
    logits = model(ids[:, 31:32], past_key_values=twin).logits
    torch.testing.assert_close(logits, expected[:, 31:32], **CLOSE)
    assert sorted(recordings) == [False]
    twin.reset()
    torch.testing.assert_close(walk(model, ids, 12, twin), expected, **CLOSE)


def test_what_is_read_may_change(recordings: list) -> None:
    model = model_of(kind="llama", sinks=2)
    ids = text(1, 50)
    kinds = ["found", "random", "nothing", "found"]

    def go() -> Any:
        cache, found = DynamicCache(), []
        walk(model, ids[:, :20], 20, cache)
        for number, kind in enumerate(kinds):
            for adapter in rosatune.hf.adapters(model).values():
                adapter.reads = kind
            for begin in range(20 + 5 * number, 25 + 5 * number):
                found.append(model(ids[:, begin : begin + 1], past_key_values=cache).logits)
        return torch.cat(found)

    expected = go()
    with rosatune.hf.recorded(model):
        torch.testing.assert_close(go(), expected, **CLOSE)
    assert recordings == [False] * 4


def test_weights_may_change_in_place(recordings: list) -> None:
    model = model_of(kind="llama", sinks=2)
    ids, found = text(1, 30), []
    for record in (True, False):
        cache = DynamicCache()
        walk(model, ids[:, :20], 20, cache)
        if record:
            with rosatune.hf.recorded(model):
                model(ids[:, 20:21], past_key_values=cache)
                tiny.stir(model, seed=9)
                found.append(model(ids[:, 21:22], past_key_values=cache).logits)
        else:
            tiny.stir(model)
            model(ids[:, 20:21], past_key_values=cache)
            tiny.stir(model, seed=9)
            found.append(model(ids[:, 21:22], past_key_values=cache).logits)
        tiny.stir(model)
    torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.parametrize("mode", [False, True])
def test_tables_are_made_anew(mode: bool, recordings: list) -> None:
    """Where they lie, when weights change in place; elsewhere, with another recording, after a change of mode."""
    model = model_of(kind="llama", sinks=2, chain=2)
    ids, cache = text(1, 40), DynamicCache()
    adapters = rosatune.hf.adapters(model).values()
    with rosatune.hf.recorded(model):
        walk(model, ids[:, :25], 22, cache)
        assert cache.layers[0].by_token and not any(entry.state.bytes for entry in cache.layers)
        held = [adapter.table.bits for adapter in adapters]
        for adapter in adapters:
            adapter.v_proj.weight.copy_(torch.randn_like(adapter.v_proj.weight))
        model.model.embed_tokens.weight.mul_(-1.5)
        if mode:
            model.train().eval()
        twin = copy.deepcopy(cache)
        found = model(ids[:, 25:26], past_key_values=cache).logits
        assert [adapter.table.bits is bits for adapter, bits in zip(adapters, held)] == [not mode] * 3
    assert len(recordings) == 1 + mode
    torch.testing.assert_close(found, model(ids[:, 25:26], past_key_values=twin).logits, **CLOSE)


def test_a_dropped_cache_is_freed() -> None:
    model = model_of(kind="llama", sinks=2)
    cache = DynamicCache()
    with rosatune.hf.recorded(model):
        walk(model, text(1, 30), 20, cache)
        held = weakref.ref(cache)
        del cache
        gc.collect()
        assert held() is None
        walk(model, text(1, 30), 20)


@pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="no CUDA device; it runs in the interpreter")
@pytest.mark.parametrize("room", [0, 2])
def test_value_bits_in_blocks(room: int, monkeypatch: pytest.MonkeyPatch, recordings: list) -> None:
    """Blocks of 16 steps that move to the host, tables that become too small, rows in another order."""
    monkeypatch.setattr(_past, "BLOCK_BYTES", 1)
    monkeypatch.setattr(module, "TABLE", 3)
    monkeypatch.setattr(RosaState, "device_bytes", room * 2 * 16 * 8)
    model = model_of(kind="llama", sinks=2, chain=2, v_from="layer")
    ids = text(2, 90)
    expected = walk(model, ids, 20)
    if INTERPRETED:
        monkeypatch.setattr(_triton, "module", lambda name, x: _past._kernels() if name == "_step_kernels" else None)
    cache = DynamicCache()
    with rosatune.hf.recorded(model):
        torch.testing.assert_close(walk(model, ids[:, :80], 20, cache), expected[:, :80], **CLOSE)
        cache.reorder_cache(torch.tensor([1, 0], device=DEVICE))
        for begin in range(80, 90):
            logits = model(ids[:, begin : begin + 1].flip(0), past_key_values=cache).logits
            torch.testing.assert_close(logits, expected[:, begin : begin + 1].flip(0), **CLOSE)
    blocks = cache.layers[0].state.past.blocks
    assert blocks.count == 6 and len(recordings) == 2  # tables of 4, then of 10


@pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="it runs as it is")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_value_bits_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "in_blocks", __file__]
    done = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if "0-dimensional arrays" in done.stdout:
        pytest.skip("this version of Triton's interpreter does not go with this version of NumPy")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("options, reason", [
    (dict(source="own"), "looked up by the layers themselves"),
    (dict(source="tokens+layer 1"), "looked up by the layers themselves"),
    (dict(first_global_layers=1), "global attention"),
    (dict(window=0), "global attention"),
], ids=str)  # fmt: skip
def test_what_cannot_be_recorded(options: dict, reason: str, recordings: list) -> None:
    """One warning, and the model runs as without."""
    model = model_of(**options)
    ids = text(1, 30)
    expected = walk(model, ids, 20)
    with pytest.warns(RuntimeWarning, match=reason) as seen, rosatune.hf.recorded(model):
        assert torch.equal(walk(model, ids, 20), expected)
    assert len(seen) == 1 and not recordings


def test_a_recording_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the step has happened by then."""

    def fail(work: Any) -> Any:
        work()
        raise RuntimeError("out of luck\nand more")

    monkeypatch.setattr(module, "_record", fail)
    model = model_of(kind="llama", sinks=2, chain=2)
    ids = text(2, 40)
    expected = walk(model, ids, 20)
    with pytest.warns(RuntimeWarning, match="RuntimeError: out of luck") as seen, rosatune.hf.recorded(model):
        torch.testing.assert_close(walk(model, ids, 20), expected, **CLOSE)
    assert len(seen) == 1


def test_calls_that_run_as_usual(recordings: list) -> None:
    model = model_of(kind="llama", sinks=2)
    ids = text(1, 30)
    cache = DynamicCache()
    with rosatune.hf.recorded(model):
        walk(model, ids[:, :20], 20, cache)
        assert len(model(ids[:, 20:21], past_key_values=cache, output_hidden_states=True).hidden_states) == 4
        assert isinstance(model(ids[:, 21:22], past_key_values=cache, return_dict=False), tuple)
        with torch.enable_grad():
            assert model(ids[:, 22:], labels=ids[:, 22:]).loss.requires_grad
        with pytest.raises(rosatune.InvalidArgument, match="attention_mask is"):
            model(ids[:, 22:23], past_key_values=cache, attention_mask=torch.ones(1, 5, device=DEVICE))
        assert not recordings
        with pytest.raises(rosatune.InvalidArgument, match="token 50"):
            model(torch.tensor([[50]], device=DEVICE), past_key_values=cache)
        with torch.inference_mode():
            model(ids[:, 22:23], past_key_values=cache)
        model(ids[:, 23:24], past_key_values=cache)
        assert recordings == [False] and cache.get_seq_length() == 24


def test_bad_models() -> None:
    with pytest.raises(rosatune.InvalidArgument, match="attach first"), rosatune.hf.recorded(tiny.model()):
        pass
    with pytest.raises(TypeError, match="no head"), rosatune.hf.recorded(tiny.attached().model):
        pass


def test_a_pointer_beside_it() -> None:
    model = model_of(kind="llama", sinks=2)
    rosatune.hf.attach_pointer(model, rosatune.Pointer(theta=[[1.0] * 13], delay=2))
    ids = text(1, 40)
    expected = walk(model, ids, 20)
    with rosatune.hf.recorded(model):
        torch.testing.assert_close(walk(model, ids, 20), expected, **CLOSE)


@pytest.mark.skipif(DEVICE != "cuda", reason="no CUDA device")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_a_replay_has_the_bits_of_the_step(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed, and the same step run as it is."""
    model = model_of(kind="qwen3", sinks=3, chain=3).to(kind)
    ids, found = text(2, 60), []
    for direct in (False, True):
        if direct:
            monkeypatch.setattr(module, "_record", lambda work: lambda: work().clone())
        with rosatune.hf.recorded(model):
            found.append(walk(model, ids, 5))
    assert torch.equal(*found)
    assert torch.equal(found[0][:, 20:].argmax(-1), walk(model, ids, 5)[:, 20:].argmax(-1)) or kind == torch.bfloat16
