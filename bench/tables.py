#!/usr/bin/env python3
"""Makes one of the tables of docs/RESULTS.md: data, results, Markdown.

The data are made by ruler.py and short_tasks.py, the results are appended to a file in results/ (what is there is not
made again, so a run that was stopped goes on), and `rosatune report` prints the table. Needs what these scripts need.
"""

import pathlib
import subprocess
import sys

import common

HERE = pathlib.Path(__file__).resolve().parent
ADAPTER = ["--adapter", "adapters/smollm2-135m-memory"]  # from the root of the sources, where this is to be run

# Each: the script that makes the data, its options, and those of `rosatune eval`.
TABLES = {
    "short": ("short_tasks.py", [], []),
    "needles": ("ruler.py", ["--task", "niah_single_1", "niah_single_2"], ADAPTER),
    "needles-words": ("ruler.py", ["--own-words", "--task", "niah_single_1"], [*ADAPTER, "--tokens", "16"]),
    "ruler": ("ruler.py", ["--task", "niah_multikey_1", "vt", "cwe", "qa_1"], ADAPTER),
}


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], report=False)
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("package", type=pathlib.Path, help="the unpacked wheel that the table's script reads")
    parser.add_argument("--model", required=True, help="SmolLM2-135M-Instruct as a .gguf file")
    parser.add_argument("--length", nargs="+", default=["4096"], help="of prompts, for tasks of RULER")
    parser.add_argument("--examples", nargs="+", default=["5"], help="as the script has it; for short tasks one number")
    parser.add_argument("--conditions", help="as `rosatune eval` has them (all that apply)")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("build/tables"), help="where the data go")
    parser.add_argument("--out", type=pathlib.Path, help="the file of results (results/smollm2-135m-TABLE.jsonl)")
    args = parser.parse_args()
    script, options, more = TABLES[args.table]
    data, out = args.data / args.table, args.out or f"results/smollm2-135m-{args.table}.jsonl"
    make = [sys.executable, str(HERE / script), str(args.package), "--out", str(data), *options]
    if script == "ruler.py":
        make += ["--program", args.program, "--model", args.model, "--length", *args.length]
    if subprocess.run([*make, "--examples", *args.examples], check=False).returncode != 0:
        common.die(f"{script} failed")
    conditions = ["--conditions", args.conditions] if args.conditions else []
    words = ["eval", "--model", args.model, *more, *conditions, "--out", out, *sorted(data.glob("*.jsonl"))]
    if subprocess.run([args.program, *map(str, words)], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        common.die("rosatune eval did not finish; the same command goes on from where it stopped")
    print(common.call(args.program, "report", out), end="")


if __name__ == "__main__":
    main()
