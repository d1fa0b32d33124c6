"""The C decoder against transformers: the same weights, the same tokens, the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import program
import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rosatune.hf

LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)


def error(ours: np.ndarray, theirs: Any) -> float:
    """The distance of all logits, relative to their size."""
    theirs = np.asarray(theirs, np.float64)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def worst(ours: np.ndarray, theirs: Any) -> float:
    """The same of the worst position."""
    theirs = np.asarray(theirs, np.float64)
    return float((np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)).max())


@torch.no_grad()
def expected(model: Any, tokens: torch.Tensor) -> np.ndarray:
    return model(tokens, use_cache=False).logits.float().numpy()


def save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder / "model", **options)
    return folder / "model"


# ----------------------------------------------------------------------------------------------------------- safetensors


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("tied", (False, True))
def test_random_model(kind: str, tied: bool, tmp_path: Path) -> None:
    model = tiny.model(kind, tie_word_embeddings=tied)
    tokens = tiny.tokens(2, 90)
    ours = program.logits(tmp_path, save(model, tmp_path), tokens.numpy())
    assert ours.dtype == np.float32 and ours.shape == (2, 90, tiny.VOCABULARY)
    assert worst(ours, expected(model, tokens)) < 1e-5


@pytest.mark.parametrize("scaling", (LLAMA3, dict(rope_type="linear", rope_theta=10000.0, factor=2.0)))
def test_rope_scaling(scaling: dict, tmp_path: Path) -> None:
    model = tiny.model("llama", rope_parameters=scaling)
    tokens = tiny.tokens(1, 120)
    plain = tiny.model("llama")
    assert error(expected(plain, tokens), expected(model, tokens)) > 1e-3
    ours = program.logits(tmp_path, save(model, tmp_path), tokens.numpy())
    assert worst(ours, expected(model, tokens)) < 1e-5


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_narrow_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = save(tiny.model("qwen3").to(dtype), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = tiny.tokens(1, 40)
    assert worst(program.logits(tmp_path, folder, tokens.numpy()), expected(model, tokens)) < 1e-5


def test_sharded(tmp_path: Path) -> None:
    model = tiny.model("llama")
    folder = save(model, tmp_path, max_shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    tokens = tiny.tokens(1, 20)
    assert worst(program.logits(tmp_path, folder, tokens.numpy()), expected(model, tokens)) < 1e-5


@pytest.mark.parametrize("window, sinks", ((1, 0), (7, 0), (16, 4), (200, 2)))
def test_window(window: int, sinks: int, tmp_path: Path) -> None:
    model = tiny.model("llama")
    folder = save(model, tmp_path)
    rosatune.hf.attach(model, window=window, sinks=sinks, bits=8)  # silent adapters: the window alone
    tokens = tiny.tokens(1, 100)
    ours = program.logits(tmp_path, folder, tokens.numpy(), "--window", window, "--sinks", sinks)
    assert worst(ours, expected(model, tokens)) < 1e-5


@pytest.mark.parametrize("words", (("--chunk", 1), ("--chunk", 13), ("--batch", 3), ("--threads", 1), ("--threads", 3)))
def test_same_bits(words: tuple, tmp_path: Path) -> None:
    model = tiny.attached("qwen3", window=16, sinks=4, bits=8)
    folder, adapter = saved_pair(model, tmp_path)
    tokens = tiny.tokens(4, 150).numpy()
    once = program.logits(tmp_path, folder, tokens, "--adapter", adapter)
    again = program.logits(tmp_path, folder, tokens, "--adapter", adapter, *words)
    assert np.array_equal(once.view(np.uint32), again.view(np.uint32))


# ------------------------------------------------------------------------------------------------------------ adapters


def saved_pair(model: Any, folder: Path) -> tuple[Path, Path]:
    """The model without its adapters, and these, in folders."""
    rosatune.hf.save_adapter(model, folder / "adapter")
    bare = type(model)(model.config.__class__.from_dict({**model.config.to_dict(), "rosatune": None}))
    bare.load_state_dict({n: t for n, t in model.state_dict().items() if ".rosa." not in n and "rosa_seen" not in n})
    del bare.config.rosatune
    return save(bare, folder), folder / "adapter"


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize(
    "options",
    (
        dict(fusion="post"),
        dict(fusion="pre", sinks=4),
        dict(fusion="post", bits=4, qk="shared"),
        dict(fusion="post", bits=16, sinks=2, first_global_layers=1),
        dict(fusion="pre", bits=1, qk="separate", window=0),
        *tiny.SOURCES,
        dict(paper=False, sinks=4),
    ),
    ids=str,
)
def test_adapter(kind: str, options: dict, tmp_path: Path) -> None:
    model = tiny.attached(kind, **{"paper": True, **options})
    tokens = tiny.tokens(2, 200)
    theirs = expected(model, tokens)
    folder, adapter = saved_pair(model, tmp_path)
    ours = program.logits(tmp_path, folder, tokens.numpy(), "--adapter", adapter)
    assert worst(ours, theirs) < 1e-4
    window = options.get("window", 8)
    silent = program.logits(tmp_path, folder, tokens.numpy(), "--window", window, "--sinks", options.get("sinks", 0))
    assert error(silent, theirs) > 1e-2  # what is read matters


# ---------------------------------------------------------------------------------------------------------------- GGUF


# Where the float16 scales of a block lie, in formats that the gguf package reads but does not write.
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def quantized(weight: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """A matrix in a format; random blocks where nothing here can make it."""
    if kind.name not in SCALES:
        return gguf.quants.quantize(weight, kind)
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    source = np.random.default_rng(weight.size)
    blocks = source.integers(0, 256, (weight.size // numbers, size), np.uint8)
    for place in SCALES[kind.name]:
        scales = (2e-4 * source.uniform(0.5, 1, len(blocks))).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(len(weight), -1)


def write_gguf(model: Any, path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """A model as a GGUF file, its matrices in the given format; the model's own weights become those in the file."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_vocab_size(config.vocab_size)
    architecture = gguf.MODEL_ARCH[config.model_type.upper()]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        short = names.get_name(name, try_suffixes=(".weight", ".bias"))
        weight = tensor.detach().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if weight.ndim == 2:
            packed = quantized(weight, kind)
            tensor.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind).copy()))
            if config.model_type == "llama" and heads:  # Llama's own order of a head: pairs are neighbours
                rows = packed.reshape(heads, 2, -1, packed.shape[-1])
                packed = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(packed.shape)
            writer.add_tensor(short, packed, raw_dtype=kind)
        else:
            writer.add_tensor(short, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("form", ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"))
def test_gguf(kind: str, form: str, tmp_path: Path) -> None:
    model = tiny.model(kind)
    write_gguf(model, tmp_path / "model.gguf", gguf.GGMLQuantizationType[form])
    tokens = tiny.tokens(1, 70)
    ours = program.logits(tmp_path, tmp_path / "model.gguf", tokens.numpy())
    assert worst(ours, expected(model, tokens)) < 1e-5


@pytest.mark.parametrize("form", SCALES)
def test_gguf_large_blocks(form: str, tmp_path: Path) -> None:
    model = tiny.model("qwen2", hidden_size=256, intermediate_size=512, head_dim=64)
    write_gguf(model, tmp_path / "model.gguf", gguf.GGMLQuantizationType[form])
    tokens = tiny.tokens(1, 70)
    ours = program.logits(tmp_path, tmp_path / "model.gguf", tokens.numpy())
    assert worst(ours, expected(model, tokens)) < 1e-3  # activations are rounded to 16 bits (fixed.h)


# ------------------------------------------------------------------------------------------------------------- SmolLM2


TEXT = """It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of
a wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this
truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property of some
one or other of their daughters. """


@pytest.fixture(scope="module")
def smollm2() -> tuple[Path, Any, torch.Tensor]:
    file = program.smollm2()
    program.path()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    return file, model, torch.tensor(tokenizer(TEXT)["input_ids"])[None]


@pytest.mark.parametrize("window, sinks", ((0, 0), (32, 0), (24, 4)))
def test_smollm2(smollm2: tuple, window: int, sinks: int, tmp_path: Path) -> None:
    file, model, tokens = smollm2
    if window:
        rosatune.hf.attach(model, window=window, sinks=sinks, bits=16, layers=[])
    try:
        theirs = expected(model, tokens)
    finally:
        if window:
            rosatune.hf.detach(model)
    ours = program.logits(tmp_path, file, tokens.numpy(), "--window", window, "--sinks", sinks)
    assert worst(ours, theirs) < 1e-3


def test_smollm2_greedy(smollm2: tuple) -> None:
    file, model, tokens = smollm2
    prompt = tokens[:, :24]
    with torch.no_grad():
        theirs = model.generate(prompt, max_new_tokens=64, min_new_tokens=64, do_sample=False)[0, 24:].tolist()
    text = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).decode(prompt[0])
    said = json.loads(program.succeed("generate", "--model", file, "--prompt", text, "--tokens", 64, "--json"))
    assert said["tokens"] == theirs


def test_smollm2_perplexity(smollm2: tuple, tmp_path: Path) -> None:
    file, model, tokens = smollm2
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    losses = []
    for first in range(0, tokens.shape[1], 48):
        piece = tokens[:, first : first + 48]
        if piece.shape[1] > 1:
            logits = torch.from_numpy(expected(model, piece))[0, :-1].double()
            losses.append(torch.nn.functional.cross_entropy(logits, piece[0, 1:], reduction="none"))
    theirs = torch.cat(losses)
    said = json.loads(
        program.succeed("ppl", "--model", file, "--file", tmp_path / "text.txt", "--context", 48, "--json")
    )
    assert said["tokens"] == len(theirs)
    assert said["perplexity"] == pytest.approx(float(theirs.mean().exp()), rel=1e-4)
