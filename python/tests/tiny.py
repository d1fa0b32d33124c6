"""Models small enough for tests: random weights, two or three layers, width 64."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import rosatune.hf

CLASSES = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}
KINDS = tuple(CLASSES)
VOCABULARY = 50
NAMES = {field.name for field in dataclasses.fields(rosatune.RosaConfig)}

# Arrangements of adapters beside the default and the paper's.
STRENGTH = dict(gain=True, gate=True, units=0.3, v_start="identity", v_grad="straight")
SOURCES = (
    dict(source="tokens", chain=3, delay=None, sinks=2, **STRENGTH),
    dict(source="tokens", chain=1, delay=20, fusion="pre", gate=True),
    dict(source="embeddings", chain=2, delay=0, bits=16, gain=True, source_seed=7),
    dict(source="own", delay=None, sinks=2, **STRENGTH),
    dict(source="own", qk="shared", chain=3, delay=None, bits=16, **STRENGTH),
    dict(source="tokens+layer 1", qk="shared", chain=2, delay=None, fusion="pre", sinks=2, **STRENGTH),
    dict(source="embeddings+own", chain=2, units=0.5),
    dict(source="layer 2+layer 1", first_global_layers=1, gain=True),
    dict(source="tokens", chain=2, delay=None, sinks=2, v_from="embeddings", **STRENGTH),
    dict(source="own", fusion="pre", v_from="embeddings"),
    dict(source="tokens", chain=2, delay=None, sinks=2, v_from="embeddings", seen=5, **STRENGTH),
)


def model(kind: str = "llama", seed: int = 1, **options: Any) -> Any:
    """A model of the given kind; the same for the same seed."""
    torch.manual_seed(seed)
    shape = dict(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    shape.update(options)
    made, config = CLASSES[kind]
    found = made(config(**shape)).eval()
    with torch.no_grad():
        for name, parameter in found.named_parameters():  # transformers starts these with 0 or 1: they would not show
            if name.endswith(".bias"):
                parameter.uniform_(-0.5, 0.5)
            elif name.endswith((".q_norm.weight", ".k_norm.weight")):
                parameter.uniform_(0.5, 1.5)
    return found


def folder_with_tokenizer(folder: Path, **options: Any) -> tuple[Any, Path]:
    """A random model with a tokenizer of letters, which the C program reads too."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    random = model(vocab_size=len(letters), bos_token_id=None, pad_token_id=None, **options)
    random.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval(), folder


def attached(kind: str = "llama", window: int = 8, bits: int = 8, paper: bool = False, **options: Any) -> Any:
    """A model with adapters that have learnt something: what they read counts. paper: in the paper's arrangement."""
    ours = {name: options.pop(name) for name in list(options) if name in NAMES}
    start = rosatune.RosaConfig.paper if paper else rosatune.RosaConfig
    made = rosatune.hf.attach(model(kind, **options), start(window=window, bits=bits, **ours))
    stir(made)
    return made


def stir(made: Any, seed: int = 3) -> None:
    """Give e0 and e1 random values, and those of the strength and of the seen-token head that are there."""
    source = torch.Generator().manual_seed(seed)
    head = rosatune.hf.attachment(made).seen
    with torch.no_grad():
        for weight in () if head is None else head.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=source))
        for adapter in rosatune.hf.adapters(made).values():
            for vector in (adapter.e0, adapter.e1):
                vector.copy_(0.3 * torch.randn(vector.shape, generator=source))
            if adapter.config.gain:
                adapter.gain.copy_(1 + 0.5 * torch.randn(adapter.gain.shape, generator=source))
            if adapter.config.gate:
                adapter.gate.weight.copy_(0.1 * torch.randn(adapter.gate.weight.shape, generator=source))
                adapter.gate.bias.fill_(0.2)


def tokens(rows: int, steps: int, seed: int = 5) -> torch.Tensor:
    """Random tokens, none of them padding."""
    return torch.randint(2, VOCABULARY, (rows, steps), generator=torch.Generator().manual_seed(seed))


def gradients(made: Any, batch: "dict[str, Any]", **options: Any) -> "tuple[torch.Tensor, dict[str, torch.Tensor]]":
    """The loss of a batch, and its gradients by name, as float32."""
    made.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    loss = made(**batch, **options).loss
    loss.backward()
    return loss.detach(), {name: x.grad.float() for name, x in made.named_parameters() if x.grad is not None}
