"""Token shards against Hugging Face's tokenizers: novels in pieces, and the answers of conversations."""

from __future__ import annotations

import lzma
import struct
from pathlib import Path

import numpy as np
import program
import pytest

transformers = pytest.importorskip("transformers")


class Shard:
    """A shard, read by what the format is described to be."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        magic, _, width, tokens, documents, _, _, flags, _ = struct.unpack("<8sIIQQQQQQ", data[:64])
        assert magic == b"rosatok\n"
        self.tokens = np.frombuffer(data, f"<u{width}", tokens, 64)
        at = 64 + (width * tokens + 7) // 8 * 8
        self.starts = np.frombuffer(data, "<u8", documents + 1, at)
        at += 8 * (documents + 1)
        bits = np.frombuffer(data, np.uint8, (tokens + 7) // 8 if flags & 1 else 0, at)
        self.counts = np.unpackbits(bits, bitorder="little")[:tokens] if flags & 1 else None

    def document(self, i: int, what: np.ndarray | None = None) -> list[int]:
        return (self.tokens if what is None else what)[self.starts[i] : self.starts[i + 1]].tolist()


def pack(folder: Path, model: Path, inputs: list[Path], *words: str) -> Shard:
    out = folder / "out.tokens"
    program.succeed("data", "pack", "--force", "--model", model, "--out", out, *words, *inputs)
    return Shard(out)


def smollm2_tokenizer(file: Path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # transformers does not read from the file that this model has every digit alone
    steps = pytest.importorskip("tokenizers").pre_tokenizers
    tokenizer.backend_tokenizer.pre_tokenizer = steps.Sequence(
        [steps.Digits(individual_digits=True), steps.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def models():
    """Each: the model, its tokenizer by transformers, and the token that ends a text."""
    yield "smollm2", lambda: (program.smollm2(), smollm2_tokenizer(program.smollm2()), "<|endoftext|>")
    yield "qwen3", lambda: (
        program.data() / "qwen3",
        transformers.AutoTokenizer.from_pretrained(program.data() / "qwen3"),
        "<|endoftext|>",
    )


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in models()])
def model(request):
    return request.param()


def test_novels(model, tmp_path: Path) -> None:
    path, tokenizer, end = model
    books = sorted((program.data() / "books").glob("*/*.txt.xz"))[:3]
    if not books:
        pytest.skip("there are no books in ROSATUNE_DATA")
    shard = pack(tmp_path, path, books)
    for i, book in enumerate(books):
        text = lzma.open(book).read().decode("utf-8-sig")
        wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert shard.document(i) == [*wanted, tokenizer.convert_tokens_to_ids(end)], book.name


TALKS = [
    [("user", "What is 2 + 2?"), ("assistant", "Four.")],
    [
        ("system", "You are brief.\n"),
        ("user", " hi "),
        ("assistant", "Hello!\n\nYes?"),
        ("user", "No"),
        ("assistant", ""),
    ],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d\n"), ("user", "e")],
    [("user", "Newlines?"), ("assistant", "\n\n  indented"), ("user", "?"), ("assistant", "\u00e9t\u00e9 \U0001f642")],
]


def test_only_answers_count(model, tmp_path: Path) -> None:
    path, tokenizer, _ = model
    if tokenizer.chat_template is None:
        pytest.skip("the tokenizer came without a chat template")
    talks = [[{"role": role, "content": content} for role, content in talk] for talk in TALKS]
    lines = program.lines(tmp_path / "talks.jsonl", ({"messages": talk} for talk in talks))
    shard = pack(tmp_path, path, [lines], "--chat")
    for i, talk in enumerate(talks):
        whole = tokenizer.apply_chat_template(talk, tokenize=False)
        tokens = shard.document(i)
        assert tokens == tokenizer(whole, add_special_tokens=False)["input_ids"]
        counted = [token for token, counts in zip(tokens, shard.document(i, shard.counts)) if counts]
        # what the template wrote between the prompt and the end of every answer
        answers = [part.split("<|im_end|>")[0] + "<|im_end|>" for part in whole.split("<|im_start|>assistant\n")[1:]]
        if i == 3 and tokenizer.decode(tokens).count("assistant\n\n\n"):
            # one token may hold the prompt's line end and the answer's: the whole of it counts
            assert tokenizer.decode(counted).replace("\n", "") == "".join(answers).replace("\n", "")
        else:
            assert tokenizer.decode(counted) == "".join(answers)
