#!/usr/bin/env python3
r"""Makes an adapter anew by its recipe: token ids, instructions where the recipe has them, training, the folder to use.

    bench/recipe.py qwen2.5-coder-1.5b --model MODEL.gguf --novels NOVELS --code PACKAGES \
        --held-novels OTHERS --held-code MORE --out made

NOVELS and PACKAGES are folders of texts (.txt, .py) to train on; of those held out every second text fits the pointer
and the others judge what comes out, beside nothing read and random places. Needs a GPU, and what memory.py needs. A
step that was done is not done again.
"""

import pathlib
import shlex
import shutil
import subprocess
import sys

import common

HERE = pathlib.Path(__file__).resolve().parent

# Each: the list of runs, the run, options of quotes.py (None: no instructions), and those of memory.py.
RECIPES = {
    "smollm2-135m": ("memory_runs.json", "frozen, every third layer, tokens seen", None, []),
    "qwen2.5-coder-1.5b": ("memory_runs_qwen.json", "LoRA, ROSA",
                           ["--documents", "100", "--nearest", "5000", "--farthest", "20000", "--facts", "80",
                            "--several", "0"],
                           ["--pieces", "8", "--fit-pieces", "4"]),
}


def steps(args):
    """(the command, what it makes) of each step."""
    runs, run, quotes, measure = RECIPES[args.recipe]
    ids, found = args.out / "ids", []

    def tokenize(name, *words):
        words = ["token_ids.py", args.model, ids / name, *words, "--program", args.program]
        found.append((words, ids / name))

    tokenize("novels", args.novels)
    tokenize("code", args.code, "--least", "14000", "--every", str(args.every))
    kinds = ["novels", "code"]
    if quotes is not None:
        texts = sorted(args.novels.glob("*.txt"))
        found.append((["quotes.py", "--out", args.out / "quotes", "--texts", *texts, *quotes], args.out / "quotes"))
        tokenize("quotes", args.out / "quotes")
        kinds.append("quotes")
    tokenize("held-novels", args.held_novels)
    tokenize("held-code", args.held_code, "--least", "14000", "--every", str(args.every))
    train = ["memory.py", "--model", args.model, "--runs", HERE / runs, "--only", run, *measure]
    train += ["--train", *(f"{kind}={ids / kind}" for kind in kinds)]
    for word, odd in (("fit", 0), ("valid", 1)):
        train += [f"--{word}", *(f"{kind}={args.out / word / kind}" for kind in ("novels", "code"))]
        for kind in ("novels", "code"):
            found.append(((kind, odd), args.out / word / kind))
    found.append(([*train, "--save", args.out, "--out", args.out / "memory.json"], args.out / "memory.json"))
    return found


def take(command, made, dry_run):
    """One step; what it makes has its name only when it is whole."""
    script, *words = command
    part = made if script == "memory.py" else made.with_name(made.name + ".part")  # which knows how far it came
    words = [str(part if word == made else word) for word in words]
    print(shlex.join([f"bench/{script}", *words]), flush=True)
    if dry_run:
        return
    if part != made:
        shutil.rmtree(part, ignore_errors=True)
    if subprocess.run([sys.executable, str(HERE / script), *words], check=False).returncode:
        common.die(f"{script} did not finish; the same command goes on from there")
    if part != made:
        part.rename(made)


def share(source, target, odd):
    """Every second of the files in a folder, in another one."""
    files = sorted(source.glob("*.npy"))[odd::2]
    if not files:
        common.die(f"{source}: two texts or more are to be held out: one to fit the pointer on, one to judge")
    target.mkdir(parents=True)
    for file in files:
        (target / file.name).symlink_to(file.resolve())


def main(words=None):
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], report=False)
    parser.add_argument("recipe", choices=list(RECIPES))
    parser.add_argument("--model", required=True, help="a GGUF file")
    for name, text in (("novels", "texts to train on"), ("code", "sources to train on"),
                       ("held-novels", "texts that are not trained on"), ("held-code", "sources, likewise")):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True, metavar="DIR", help=text)
    parser.add_argument("--every", type=int, default=4, help="take every so many of the source files")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("made"), help="where everything goes")
    parser.add_argument("--dry-run", action="store_true", help="print the steps, and do nothing")
    args = parser.parse_args(words)
    for folder in (args.novels, args.code, args.held_novels, args.held_code):
        if not folder.is_dir():
            common.die(f"{folder}: is no folder")
    for command, made in steps(args):
        if made.exists() and made.suffix != ".json":  # which is written run by run
            print(f"{made}: is there")
        elif isinstance(command, tuple):
            kind, odd = command
            source = args.out / "ids" / f"held-{kind}"
            print(f"{made}: every second text of {source}, from the {'second' if odd else 'first'} on")
            if not args.dry_run:
                share(source, made, odd)
        else:
            take(command, made, args.dry_run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
