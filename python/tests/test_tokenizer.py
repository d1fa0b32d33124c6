"""`rosatune tokenize` against Hugging Face's tokenizers: the same ids, for real vocabularies and for odd small ones.

The tokenizer of Qwen3 comes from its tokenizer.json. That of SmolLM2 is inside a GGUF file, from which transformers
makes one too, but without the step that cuts off digits before anything else, which the model was trained with and
which GGUF only names (tokenizer.ggml.pre = smollm). So the reference for the GGUF file is what transformers made with
that step put back, while what transformers made as it is, saved as tokenizer.json, must give its own ids.
"""

from __future__ import annotations

import json
import lzma
import random
import unicodedata
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import program

tokenizers = pytest.importorskip("tokenizers")

STRINGS = 10_000


# ------------------------------------------------------------------------------------------------------- references --


class Pair:
    """A reference, and the path from which the program reads the same tokenizer."""

    def __init__(self, reference: Any, model: Path, chat: Any = None) -> None:
        self.reference, self.model, self.chat = reference, model, chat

    def ids(self, texts: list[str], *options: str) -> list[list[int]]:
        data = "\0".join(texts).encode()
        printed = program.succeed(
            "tokenize", "--model", self.model, "--file", "-", "--null", "--json", *options, input=data
        )
        found = json.loads(printed)["ids"]
        assert len(found) == len(texts)
        return found

    def expect(self, texts: list[str], plains: tuple[bool, ...] = (False, True)) -> None:
        """The same ids for each text, special tokens recognised or not."""
        for plain in plains:
            self.reference.encode_special_tokens = plain
            expected = [encoding.ids for encoding in self.reference.encode_batch(texts, add_special_tokens=not plain)]
            self.reference.encode_special_tokens = False
            for text, ours, theirs in zip(texts, self.ids(texts, *["--plain"] * plain), expected):
                assert ours == theirs, f"{text!r}, plain={plain}"


def digits_first() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )


@pytest.fixture(scope="module")
def qwen3() -> Pair:
    transformers = pytest.importorskip("transformers")
    folder = program.data() / "qwen3"
    chat = transformers.AutoTokenizer.from_pretrained(folder)
    return Pair(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), folder, chat)


@pytest.fixture(scope="module")
def smollm2() -> Pair:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    file = program.smollm2()
    chat = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    chat.backend_tokenizer.pre_tokenizer = digits_first()
    return Pair(chat.backend_tokenizer, file, chat)


@pytest.fixture(scope="module")
def smollm2_json(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    file = program.smollm2()
    made = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    path = tmp_path_factory.mktemp("smollm2") / "tokenizer.json"
    made.backend_tokenizer.save(str(path))
    return Pair(tokenizers.Tokenizer.from_file(str(path)), path)


@pytest.fixture(params=["qwen3", "smollm2", "smollm2_json"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return request.getfixturevalue(request.param)


# ----------------------------------------------------------------------------------------------------------- strings --


def pools() -> dict[str, list[str]]:
    """Characters by category: all that are assigned, some that are not, some of private use; no NUL."""
    found: dict[str, list[str]] = {}
    for point in range(1, 0x110000):
        kind = unicodedata.category(chr(point))
        if kind == "Cs" or (kind == "Cn" and point % 7) or (kind == "Co" and point % 50):
            continue
        found.setdefault(kind, []).append(chr(point))
    return found


SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff"
EMOJI = ["👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "🇩🇪", "👍🏽", "❤\ufe0f", "1\ufe0f\u20e3", "🫠", "🪿"]
WORDS = (
    "the of don't DON'T I'LL we're you'VE it's IT'S l'été naïve 12345 3.14 1,000 http://x.y/z?q=1 foo_bar camelCase "
    "==> ## /* */ \\n éàü 中文字符 日本語 한국어 العربية हिन्दी ไทย Привет Ελλάδα שלום 'ſ 'K ﬁ ẞ İ ı ǅ \u212b A\u030a ά "
    "ＡＢ ① ½ Ⅷ ๓ ४ 𝟘 𐐀 \u1100\u1161\u11a8 \u0958 \u2126 \ufb1d \U0001e4d0 \ua7dc \U0001e4f0 x\u0898\u0334"
).split(" ")
MARKS = (
    "<|im_start|> <|im_end|> <|endoftext|> <think> </think> <tool_call> <|fim_prefix|> <file_sep> <repo_name> "
    "<|im_start <<|im_end|>> <| |> <"
).split(" ")
ENDS = ["\r\n", "\n\r", "\n\n", "\r", "\r\n\r\n", " \n", " \r\n ", "\n ", "\t\n"]


def pieces(draw: random.Random) -> list[Callable[[], str]]:
    kinds = pools()
    names = list(kinds)
    marks = [mark for kind in ("Mn", "Mc", "Me") for mark in kinds[kind]]

    def some(most: int, one: Callable[[], str]) -> str:
        return "".join(one() for _ in range(draw.randrange(1, most)))

    def anything() -> str:
        point = draw.randrange(1, 0x110000)
        return "x" if 0xD800 <= point < 0xE000 else chr(point)

    return [
        lambda: some(12, lambda: draw.choice(kinds[draw.choice(names)])),
        lambda: draw.choice("aeé ") + some(8, lambda: draw.choice(marks)),
        lambda: some(8, lambda: draw.choice(SPACES)),
        lambda: draw.choice(EMOJI) * draw.randrange(1, 3),
        lambda: draw.choice(WORDS),
        lambda: draw.choice(MARKS),
        lambda: some(6, lambda: draw.choice(kinds[draw.choice(["Nd", "Nl", "No"])])),
        lambda: draw.choice(ENDS) * draw.randrange(1, 4),
        lambda: draw.choice("aA1 .\n\r\té中") * draw.randrange(1, 200),
        lambda: " " * draw.randrange(1, 4) + draw.choice(WORDS),
        lambda: chr(draw.randrange(1, 0x20)) * draw.randrange(1, 3),
        anything,
        lambda: draw.choice(WORDS) + " " + draw.choice(WORDS),
    ]


@pytest.fixture(scope="module")
def strings() -> list[str]:
    draw = random.Random(2024)
    kinds = pieces(draw)
    return ["".join(draw.choice(kinds)() for _ in range(draw.randrange(1, 14))) for _ in range(STRINGS)]


def batches(texts: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


# --------------------------------------------------------------------------------------------------------------- ids --


def test_random_strings(pair: Pair, strings: list[str]) -> None:
    pair.expect(strings)


def test_every_character(pair: Pair) -> None:
    """Alone, after a letter, between digits, after an apostrophe, and among marks of low and high class."""
    points = [chr(point) for point in range(1, 0x110000) if not 0xD800 <= point < 0xE000]
    texts = [
        "".join(f"{c} a{c}1 '{c}q{c}\u0334 q\u0345{c} e{c}\u0301" for c in few) for few in batches(points, 512)
    ]
    for few in batches(texts, 500):
        pair.expect(few, plains=(False,))


def test_novels(pair: Pair) -> None:
    books = sorted((program.data() / "books").glob("*/*.txt.xz"))
    if not books:
        pytest.skip("there are no books in ROSATUNE_DATA")
    for book in books:
        pair.expect([lzma.open(book, "rt", encoding="utf-8", newline="").read()], plains=(False,))


def test_long_runs(pair: Pair) -> None:
    pair.expect([letter * 100_000 for letter in ("a", " ", "\n", "é", "7", "!", "'", " \n", "ab")])


def test_nul_and_nothing(pair: Pair) -> None:
    for text in ("", "\0", "a\0\0b <|im_end|>"):
        printed = program.succeed(
            "tokenize", "--model", pair.model, "--file", "-", "--json", input=text.encode()
        )
        assert json.loads(printed)["ids"] == pair.reference.encode(text).ids


# ------------------------------------------------------------------------------------------------------------- back --


def decode(pair: Pair, ids: list[int], *options: str) -> str:
    data = json.dumps({"ids": ids}).encode()
    return program.succeed("tokenize", "--model", pair.model, "--decode", "--file", "-", *options, input=data).decode()


def test_round_trip(pair: Pair, strings: list[str]) -> None:
    """What comes back is the text, or its normal form. Characters with a byte that SmolLM2 has no token for are lost,
    as they are in the reference."""
    vocabulary = pair.reference.get_vocab()
    alphabet = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def whole(letter: str) -> bool:
        return all(spelled in vocabulary for piece, _ in alphabet.pre_tokenize_str(letter) for spelled in piece)

    text = "".join(letter for letter in "\n".join(strings[:2000]) if whole(letter))
    expected = pair.reference.normalizer.normalize_str(text) if pair.reference.normalizer else text
    assert decode(pair, pair.ids([text])[0], "--special") == expected


def test_decoding_any_ids(pair: Pair) -> None:
    """Tokens in an order that no text gives: characters cut anywhere."""
    draw = random.Random(5)
    for _ in range(5):
        ids = [draw.randrange(pair.reference.get_vocab_size()) for _ in range(20_000)]
        assert decode(pair, ids) == pair.reference.decode(ids)
        assert decode(pair, ids, "--special") == pair.reference.decode(ids, skip_special_tokens=False)


def test_bad_bytes(smollm2: Pair) -> None:
    data = b"caf\xe9 \xe2\x82 \xf0\x9f\x98\x80 \xed\xa0\x80\xff"
    words = ["tokenize", "--model", smollm2.model, "--file", "-", "--json"]
    refused = program.run(*words, input=data)
    assert refused.returncode == 1 and b"byte 3" in refused.stderr and not refused.stdout
    lossy = json.loads(program.succeed(*words, "--lossy", input=data))["ids"]
    assert lossy == smollm2.reference.encode(data.decode(errors="replace")).ids


# ------------------------------------------------------------------------------------------------- small tokenizers --


def small(folder: Path, **parts: Any) -> Pair:
    """Bytes and a few merges, with parts of the pipeline."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = pre_tokenizers.ByteLevel.alphabet()
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ"), ("a", "a"), ("aa", "aa"), ("c", "at"), ("a", "t")]
    vocabulary = {letter: place for place, letter in enumerate(sorted(letters))}
    for left, right in [("a", "t"), *merges]:
        vocabulary.setdefault(left + right, len(vocabulary))
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=parts.get("ignore_merges", False)))
    made.normalizer = parts.get("normalizer")
    made.pre_tokenizer = parts.get("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False))
    made.decoder = decoders.ByteLevel()
    if "post_processor" in parts:
        made.post_processor = parts["post_processor"](vocabulary)
    for token in parts.get("added", []):
        made.add_tokens([token]) if not token.special else made.add_special_tokens([token])
    made.save(str(folder / "tokenizer.json"))
    return Pair(made, folder / "tokenizer.json")


def odd_texts(words: list[str]) -> list[str]:
    draw = random.Random(9)
    return ["".join(draw.choice(words) for _ in range(draw.randrange(1, 10))) for _ in range(1500)]


def test_added_tokens(tmp_path: Path) -> None:
    from tokenizers import AddedToken, normalizers

    added = [
        AddedToken("<l>", lstrip=True, normalized=False),
        AddedToken("<r>", rstrip=True, normalized=False),
        AddedToken("<b>", lstrip=True, rstrip=True, normalized=True),
        AddedToken("cat", single_word=True, normalized=True),
        AddedToken("<l><r>", normalized=False),
        AddedToken("e\u0301x", normalized=True),
        AddedToken("e\u0301y", normalized=False),
        AddedToken("<s>", special=True, normalized=False),
        AddedToken(" <t>", special=True, lstrip=True, normalized=False),
        AddedToken("<s><l>", special=True, normalized=False),
    ]
    words = (
        "<l>|<r>|<b>|cat|<s>| <t>| |\n|\u3000|\x85|a|é|e\u0301x|e\u0301y|éx|éy|_|1|²|Ⅷ|ⓐ|\u200d|\u0301|.|the| the|<|l>|"
        "cats|中|\u0345"
    ).split("|")
    pair = small(tmp_path, normalizer=normalizers.NFC(), added=added)
    pair.expect(odd_texts(words))


@pytest.mark.parametrize("behavior", ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"])
@pytest.mark.parametrize("invert", [False, True])
def test_splits(tmp_path: Path, behavior: str, invert: bool) -> None:
    from tokenizers import Regex, pre_tokenizers

    for pattern in (Regex(r"\s+|\p{N}"), Regex(r"(?<=a)t|[^\s\p{L}]{1,2}|the(?!\S)"), " "):
        steps = [
            pre_tokenizers.Split(pattern, behavior, invert),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=invert),
        ]
        pair = small(tmp_path, pre_tokenizer=pre_tokenizers.Sequence(steps), ignore_merges=invert)
        pair.expect(odd_texts("the|cat|aaaa| |  |\n|1|22|!|?!|é|中|a|t".split("|")))


def test_begin_of_text(tmp_path: Path) -> None:
    from tokenizers import processors

    def begin(vocabulary: dict[str, int]) -> Any:
        return processors.TemplateProcessing(single="! $A", special_tokens=[("!", vocabulary["!"])])

    pair = small(tmp_path, post_processor=begin)
    pair.expect(["", "the cat", "!"])
    assert pair.ids(["a"]) == [[0, pair.reference.token_to_id("a")]]


# ---------------------------------------------------------------------------------------------------- conversations --

CONVERSATIONS = [
    [("user", "Hello")],
    [("user", "")],
    [("system", "Be short."), ("user", "Why 2 + 2?\n\n  1) x\n")],
    [("user", "Hi"), ("assistant", "Hello!"), ("user", "And  now? ")],
    [("user", "Hi"), ("assistant", "<think>\nhm\n\n</think>\n\nHello!"), ("user", "And?")],
    [("user", "Hi"), ("assistant", "<think>\n\n\nhm</think>\n\nHello!\n")],
    [("user", "Hi"), ("assistant", "Hello!")],
    [("user", "Hi"), ("assistant", "a</think>b</think>\n c")],
    [("user", "Hi"), ("assistant", "A"), ("assistant", "<think>x</think>B"), ("assistant", "C")],
    [("assistant", "I begin."), ("user", "x"), ("system", "late"), ("user", "y")],
    [("user", "<tool_response>1</tool_response>"), ("assistant", "Y")],
    [
        ("user", "a"),
        ("assistant", "<think>q</think>Y"),
        ("user", "<tool_response>\n1\n</tool_response>"),
        ("assistant", "Z"),
    ],
]


@pytest.mark.parametrize("model", ["qwen3", "smollm2"])
@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("think", [True, False])
def test_conversations(request: pytest.FixtureRequest, model: str, answer: bool, think: bool) -> None:
    pair = request.getfixturevalue(model)
    texts, expected = [], []
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        texts.append(json.dumps(messages))
        options = {"add_generation_prompt": answer, "enable_thinking": think, "tokenize": True, "return_dict": False}
        expected.append(list(pair.chat.apply_chat_template(messages, **options)))
    found = pair.ids(texts, "--chat", *["--no-answer"] * (not answer), *["--no-think"] * (not think))
    for text, ours, theirs in zip(texts, found, expected):
        assert ours == theirs, text
