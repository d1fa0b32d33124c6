#!/usr/bin/env python3
r"""Makes one of the tables of docs/RESULTS.md: data, results, Markdown.

    bench/tables.py ruler RULER --model MODEL --length 4096 8192

The data are made by ruler.py and short_tasks.py, the results are appended to a file in results/ (what is there is not
made again, so a run that was stopped goes on), and `rosatune report` prints the table. Needs what these scripts need.

Models that are too large for this machine are asked elsewhere, by answers.py, between two calls:

    bench/tables.py ruler RULER --model MODEL.gguf --length 4096 8192 --prepare prompts.xz
    bench/answers.py run --model MODEL --prompts prompts.xz --out answers.jsonl ...
    bench/tables.py ruler RULER --model MODEL.gguf --length 4096 8192 --answers answers.jsonl --out results/NAME.jsonl
"""

import json
import pathlib
import subprocess
import sys

import common

HERE = pathlib.Path(__file__).resolve().parent
ADAPTER = "adapters/smollm2-135m-memory"  # from the root of the sources, where this is to be run

# Each: the script that makes the data, its options, and the tokens of an answer at most (0: as the tasks have it).
NEEDLES = ["niah_single_1", "niah_single_2", "niah_single_3"]
TABLES = {
    "short": ("short_tasks.py", [], 0),
    "needles": ("ruler.py", ["--task", *NEEDLES], 0),
    "needles-words": ("ruler.py", ["--own-words", "--task", *NEEDLES], 48),  # niah_words_3 asks for 36 characters
    "ruler": ("ruler.py", ["--task", "niah_multikey_1", "niah_multivalue", "niah_multiquery", "vt", "cwe", "qa_1",
                           "qa_2"], 0),
}


def make_data(args, folder):
    """The files of the table's tasks; those that the same command made are taken as they are."""
    script, options, _ = TABLES[args.table]
    make = [script, str(args.package), "--out", str(folder), *options, "--examples", *args.examples]
    if args.task:
        make += ["--task", *args.task]
    if script == "ruler.py":
        make += ["--program", args.program, "--model", args.model, "--length", *args.length]
        make += ["--transformers"] if args.transformers else []
    made = folder / "made.json"
    if not made.exists() or json.loads(made.read_text()) != make:
        made.unlink(missing_ok=True)  # first: it must not vouch for what another command leaves when it is stopped
        for file in folder.glob("*.jsonl"):
            file.unlink()
        if subprocess.run([sys.executable, str(HERE / make[0]), *make[1:]], check=False).returncode != 0:
            common.die(f"{script} failed")
        made.write_text(json.dumps(make))
    return sorted(map(str, folder.glob("*.jsonl")))


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], report=False)
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("package", type=pathlib.Path, help="the unpacked wheel that the table's script reads")
    parser.add_argument("--model", required=True, help="SmolLM2-135M-Instruct as a .gguf file, or another model")
    parser.add_argument("--adapter", default=ADAPTER, help="of the model, or none")
    parser.add_argument("--window", help="of attention (the adapter's)")
    parser.add_argument("--sinks", help="beside the window (the adapter's, or 0)")
    parser.add_argument("--task", nargs="+", help="these tasks instead of the table's")
    parser.add_argument("--length", nargs="+", default=["4096"], help="of prompts, for tasks of RULER")
    parser.add_argument("--examples", nargs="+", default=["5"], help="as the script has it; for short tasks one number")
    parser.add_argument("--transformers", action="store_true", help="as ruler.py has it")
    parser.add_argument("--conditions", help="as `rosatune eval` has them (all that apply)")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("build/tables"), help="where the data go")
    parser.add_argument("--prepare", metavar="FILE", help="end with prompts for answers.py")
    parser.add_argument("--answers", metavar="FILE", help="take those of answers.py")
    parser.add_argument("--out", type=pathlib.Path, help="the file of results (results/smollm2-135m-TABLE.jsonl)")
    parser.add_argument("--plot", metavar="PICTURE", help="draw the depths and lengths of needles too")
    args = parser.parse_args()
    tokens = TABLES[args.table][2]
    files = make_data(args, args.data / args.table)
    words = ["--model", args.model, *(["--tokens", str(tokens)] if tokens else [])]
    if args.prepare:
        step = [sys.executable, str(HERE / "answers.py"), "prepare", "--program", args.program]
        return subprocess.run([*step, *words, "--out", args.prepare, *files], check=False).returncode
    out = str(args.out or f"results/smollm2-135m-{args.table}.jsonl")
    if args.answers:
        words += ["--answers", args.answers]
    else:
        words += ["--conditions", args.conditions] if args.conditions else []
        words += ["--adapter", args.adapter] if args.adapter != "none" else []
        words += ["--window", args.window] if args.window else []
        words += ["--sinks", args.sinks] if args.sinks else []
    done = subprocess.run([args.program, "eval", *words, "--out", out, *files], stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        common.die("rosatune eval did not finish; the same command goes on from where it stopped")
    picture = ["--plot", args.plot] if args.plot else []
    print(common.call(args.program, "report", "--no-depths", out, *picture), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
