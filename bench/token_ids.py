#!/usr/bin/env python3
"""Token ids for training scripts: .npy files and shards of `rosatune data pack`, cut into pieces or drawn at random.

As a program it makes .npy files of texts, one each, by `rosatune tokenize`:

    bench/token_ids.py MODEL ids/train novels/*.txt
    bench/token_ids.py MODEL ids/code site-packages/sympy --least 14000 --every 4
"""

import json
import pathlib
import struct
import subprocess
import sys

import common
import numpy as np
import torch

EACH = 8  # pieces that are taken of one document at most


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
    """(book, ids) of `most` pieces, evenly spaced among the first EACH of all documents."""
    cut = [(name, np.asarray(ids[i * length:(i + 1) * length]).astype(np.int64))
           for name, ids in sorted(texts.items()) for i in range(min(EACH, len(ids) // length))]
    return cut if len(cut) <= most else [cut[i * len(cut) // most] for i in range(most)]


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


def texts_of(paths, suffixes):
    """Text files, and those in folders; lines of over 1,000 characters are data and not text."""
    for path in map(pathlib.Path, paths):
        files = sorted(x for x in path.rglob("*") if x.suffix in suffixes) if path.is_dir() else [path]
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace").replace("\0", "")
            if max(map(len, text.splitlines()), default=0) <= 1000:
                yield file, text


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], report=False)
    parser.add_argument("model", help="a GGUF file, or a folder with a tokenizer.json")
    parser.add_argument("out", type=pathlib.Path, help="a folder, made if need be")
    parser.add_argument("texts", nargs="+", help="text files, or folders of them")
    parser.add_argument("--suffixes", nargs="+", default=[".txt", ".py"], help="of files in folders")
    parser.add_argument("--least", type=int, default=1, help="bytes that a text has to have")
    parser.add_argument("--every", type=int, default=1, help="take every so many of these")
    args = parser.parse_args()
    found = [(file, text) for file, text in texts_of(args.texts, args.suffixes) if len(text.encode()) >= args.least]
    found = found[:: args.every]
    if not found:
        common.die(f"no text of {args.least} bytes or more is there")
    args.out.mkdir(parents=True, exist_ok=True)
    command = [args.program, "tokenize", "--model", args.model, "--file", "-", "--plain", "--null", "--json"]
    joined = "\0".join(text for _, text in found).encode()
    done = subprocess.run(command, input=joined, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        common.die(f"{' '.join(command)} ended with {done.returncode}")
    ids = json.loads(done.stdout)["ids"]
    width = np.uint16 if max(map(max, filter(None, ids))) < 1 << 16 else np.uint32
    plain = len({file.stem for file, _ in found}) == len(found)
    for (file, _), tokens in zip(found, ids):
        name = file.stem if plain else "-".join(file.with_suffix("").parts[-3:]).strip("/-")
        np.save(args.out / f"{name}.npy", np.array(tokens, width))
    print(f"{len(found)} texts, {sum(map(len, ids)):,} tokens in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
