"""Reading texts with a model: token ids of files, and logits in slices that fit into memory."""

from __future__ import annotations

import gzip
import inspect
import lzma
import os
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoTokenizer

from ..errors import FileError, InvalidArgument
from ..pointer import Pointer
from ..torch._pointer import Found
from .pointer import pointer_head

__all__ = ["frozen", "links_of", "read_texts", "slices"]

LOGITS_BYTES = 64 << 20  # of logits in memory, about

Ids = npt.NDArray[np.int64]


def read_texts(model: Any, texts: Any, tokenizer: Any = None) -> dict[str, Ids]:
    """The token ids of texts, by name: files, lists of ids, arrays or tensors."""
    if isinstance(texts, (str, os.PathLike)) or (isinstance(texts, (np.ndarray, Tensor)) and texts.ndim == 1):
        texts = [texts]
    elif isinstance(texts, (list, tuple)) and texts and isinstance(texts[0], (int, np.integer)):
        texts = [texts]
    named = dict(texts) if isinstance(texts, dict) else {}
    if not named:
        for number, text in enumerate(texts):
            named[os.fspath(text) if isinstance(text, (str, os.PathLike)) else f"text {number + 1}"] = text
    if not named:
        raise InvalidArgument("there are no texts; give names of files, or token ids")
    found = {}
    for name, text in named.items():
        if isinstance(text, (str, os.PathLike)):
            content = _content(Path(text))
            tokenizer = tokenizer or _tokenizer(model)
            text = tokenizer(content, verbose=False)["input_ids"]
        ids = np.asarray(text.cpu() if isinstance(text, Tensor) else text)
        if ids.ndim != 1 or ids.dtype.kind not in "ui":
            raise InvalidArgument(f"{name}: token ids are one list of whole numbers; they are {list(ids.shape)}")
        size = model.get_input_embeddings().num_embeddings
        if ids.size and (ids.min() < 0 or ids.max() >= size):
            wrong = ids[(ids < 0) | (ids >= size)][0]
            raise InvalidArgument(f"{name}: token id {wrong} is not in the model's vocabulary of {size}")
        found[name] = ids.astype(np.int64)
    return found


def _tokenizer(model: Any) -> Any:
    name = getattr(model.config, "_name_or_path", "")
    if not name:
        raise InvalidArgument("the model was not loaded by name, so its tokenizer is not known; give tokenizer=")
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # what it raises depends on what is missing
        raise InvalidArgument(
            f"the tokenizer of the model {name} cannot be loaded; give tokenizer= ({error})"
        ) from error


def _content(path: Path) -> str:
    """A text file, decompressed if it is .gz or .xz."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"{path}: no such file; to give a text itself, give its token ids") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    for magic, decompress in ((b"\x1f\x8b", gzip.decompress), (b"\xfd7zXZ\0", lzma.decompress)):
        if content.startswith(magic):
            try:
                content = decompress(content)
            except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
                raise FileError(f"{path}: cannot be decompressed: {error}") from error
    if content.startswith(b"\x28\xb5\x2f\xfd"):
        raise FileError(f"{path}: is compressed by zstd, which is not read here; decompress it first (zstd -d)")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: is not UTF-8 text: {error}") from None


def pieces_of(ids: Ids, context: int, rest: bool = False) -> list[Ids]:
    """Consecutive stretches of `context` tokens; with `rest` also the shorter one at the end."""
    end = len(ids) if rest else len(ids) // context * context
    return [ids[begin : min(begin + context, end)] for begin in range(0, end, context)]


@contextmanager
def frozen(model: Any) -> Iterator[None]:
    """While it lasts the model is evaluated: no dropout, no gradients, and its pointer is silent."""
    modes = {module: module.training for module in model.modules()}
    head = pointer_head(model)
    model.eval()
    if head is not None:
        head.attached.active = False
    try:
        with torch.no_grad():
            yield
    finally:
        if head is not None:
            head.attached.active = True
        for module, mode in modes.items():
            module.training = mode


def slices(model: Any, ids: Tensor, first: int) -> Iterator[tuple[int, Tensor]]:
    """The logits that predict the tokens `first` to the last of [batch, steps] ids, some positions at a time.

    Gives (token that the first row of the slice predicts, float32 logits [batch, positions, vocabulary]). With a cache
    the text is read in pieces, so that neither logits nor masks of the whole are ever in memory.
    """
    arguments = inspect.signature(model.forward).parameters
    batch, steps = ids.shape
    vocabulary = model.get_output_embeddings().weight.shape[0]
    stride = max(1, LOGITS_BYTES // 4 // vocabulary // batch)
    if "past_key_values" not in arguments:
        logits = model(ids[:, :-1]).logits
        for begin in range(first - 1, steps - 1, stride):
            yield begin + 1, logits[:, begin : begin + stride].float()
        return
    past: Any = {}  # the model makes the kind of cache that it needs
    if first > 1:
        last: Any = {"logits_to_keep": 1} if "logits_to_keep" in arguments else {}
        past["past_key_values"] = model(ids[:, : first - 1], use_cache=True, **last).past_key_values
    for begin in range(first - 1, steps - 1, stride):
        output = model(ids[:, begin : min(begin + stride, steps - 1)], use_cache=True, **past)
        past["past_key_values"] = output.past_key_values
        yield begin + 1, output.logits.float()


def links_of(pointer: Pointer, ids: Tensor) -> Found:
    """What a pointer finds after each token of [batch, steps] ids."""
    return Found.of(pointer.look_up(ids.cpu().numpy()))
