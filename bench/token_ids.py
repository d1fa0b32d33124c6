"""Token ids for training scripts: .npy files and shards of `rosatune data pack`, cut into pieces or drawn at random."""

import pathlib
import struct

import common
import numpy as np
import torch


def shard(path):
    """The documents of a file of `rosatune data pack`."""
    with open(path, "rb") as file:
        magic, version, width, tokens, documents, *_ = struct.unpack("<8sII6Q", file.read(64))
        if magic != b"rosatok\n" or version != 2:
            common.die(f"{path}: is no token shard of version 2; make it with `rosatune data pack`")
        padded = (tokens * width + 7) // 8 * 8
        ids = np.fromfile(file, np.uint16 if width == 2 else np.uint32, tokens)
        file.seek(64 + padded)
        starts = np.fromfile(file, np.uint64, documents + 1).astype(int)
    return {f"{path.name} {i}": ids[a:b] for i, (a, b) in enumerate(zip(starts[:-1], starts[1:]))}


def documents(words):
    """{kind: {name: token ids}} of "KIND=PATH" arguments."""
    found = {}
    for word in words:
        kind, separator, path = word.partition("=")
        path = pathlib.Path(path)
        if not separator or not path.exists():
            common.die(f"{word}: give KIND=PATH, with a file or folder that is there")
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            if file.suffix == ".npy":
                found.setdefault(kind, {})[file.stem] = np.load(file, mmap_mode="r")
            elif file.suffix == ".tokens":
                found.setdefault(kind, {}).update(shard(file))
        if not found.get(kind):
            common.die(f"{word}: no .npy and no .tokens files are there")
    return found


def pieces_of(texts, length, most):
    """(book, ids) of the first pieces of each document, `most` in all."""
    each = max(1, most // max(1, len(texts)))
    cut = [(name, np.asarray(ids[i * length:(i + 1) * length]).astype(np.int64))
           for name, ids in sorted(texts.items()) for i in range(min(each, len(ids) // length))]
    return cut[:most]


def drawn(texts, mix, length, batch, seed):
    """Batches without end: a kind by its share in `mix`, a document by its length, a start at random."""
    random = np.random.default_rng(seed)
    unknown = [kind for kind in mix if kind not in texts]
    if unknown:
        raise ValueError(f"mix names {unknown[0]!r}; --train has {', '.join(texts)}")
    kinds, shares = list(mix), np.array(list(mix.values()), float)
    long = {kind: [ids for ids in texts[kind].values() if len(ids) > length + 1] for kind in kinds}
    lengths = {kind: np.array([len(ids) - length - 1 for ids in long[kind]], float) for kind in kinds}
    for kind in kinds:
        if not long[kind]:
            raise ValueError(f"no text of kind {kind!r} has more than {length} tokens")
    while True:
        rows = []
        for _ in range(batch):
            kind = kinds[random.choice(len(kinds), p=shares / shares.sum())]
            ids = long[kind][random.choice(len(lengths[kind]), p=lengths[kind] / lengths[kind].sum())]
            start = random.integers(len(ids) - length - 1)
            rows.append(np.asarray(ids[start:start + length + 1]).astype(np.int64))
        both = torch.from_numpy(np.stack(rows))
        yield {"input_ids": both[:, :-1].contiguous(), "targets": both[:, 1:].contiguous()}
