"""What the benchmark scripts share: running the program, printing tables as they grow, naming the machine.

The program measures; the scripts choose what to measure and compare. Tables go to standard output, or to standard
error when --json asks for the raw numbers there. JSON is one object: "what" names the measurement (bench/plot.py goes
by it), "machine" where it was made, "rows" holds the numbers.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys


def parser(description, program=True, report=True):
    """An argument parser with the options of scripts that run the program, and of those that make a Report."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    if program:
        made.add_argument("--program", default="build/rosatune", metavar="PATH", help="the rosatune to measure")
    if report:
        made.add_argument("--json", action="store_true", help="raw numbers on stdout, the table on stderr")
    return made


def die(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def call(program, *words):
    """The standard output of a run of the program."""
    command = [program, *map(str, words)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        die(f"{program}: {error.strerror}; build it with `make build` or name another with --program")
    if done.returncode != 0:
        die(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def pretrained(model):
    """What `from_pretrained` of transformers is given for a model: a folder, or a GGUF file."""
    path = pathlib.Path(model)
    if path.suffix != ".gguf":
        return {"pretrained_model_name_or_path": path}
    return {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}


def measure(program, *words):
    """The JSON of one `bench retrieve`."""
    return json.loads(call(program, "bench", "retrieve", *words, "--json"))


def commit():
    """The commit that the sources are of; None: not known."""
    words = ["git", "-C", str(pathlib.Path(__file__).resolve().parent)]
    words += ["describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine(version):
    """Where a measurement was made, and by which version of what."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": name, "processors": os.cpu_count(), "program": version}


class Report:
    """A table that is printed row by row, and the same rows as JSON at the end.

    columns: (key of the row, heading, format); a missing or None value prints as "-".
    version: of what is measured; None: of the program that `args` names.
    """

    def __init__(self, what, args, version=None):
        self.args = args
        self.columns = []
        self.out = sys.stderr if args.json else sys.stdout
        version = version or call(args.program, "--version").split("\n")[0]
        self.result = {"what": what, "machine": machine(version), "rows": []}
        print("{processor}, {processors} processors, {program}".format(**self.result["machine"]), file=self.out)

    def table(self, columns):
        """Begin a table; the rows that follow belong to it."""
        self.columns = columns
        self._print([heading for _, heading, _ in columns])

    def add(self, **row):
        self.result["rows"].append(row)
        values = ((row.get(key), form) for key, _, form in self.columns)
        self._print(["-" if value is None else format(value, form) for value, form in values])

    def note(self, text):
        print(text, file=self.out, flush=True)

    def end(self):
        if self.args.json:
            json.dump(self.result, sys.stdout, indent=1)
            print()

    def _print(self, cells):
        # Text to the left, numbers to the right; a heading is at least as wide as what stands under it.
        padded = []
        for cell, (_, heading, form) in zip(cells, self.columns):
            width = max(len(heading), 24 if form == "" else 8)
            padded.append(cell.ljust(width) if form == "" else cell.rjust(width))
        print("  ".join(padded).rstrip(), file=self.out, flush=True)


def queries_and_keys(kind, tokens, channels):
    """q and k, [1, tokens, channels], drawn by PyTorch.

    uniform: independent numbers. text: q = k + noise, from vectors of 4,096 words that follow Zipf's law.
    """
    import torch  # most scripts do without

    if kind == "uniform":
        return torch.randn(2, 1, tokens, channels)
    words = 1 / torch.arange(1, 4097).float()
    k = torch.randn(4096, channels)[torch.multinomial(words, tokens, replacement=True)].unsqueeze(0)
    return k + 0.1 * torch.randn(k.shape), k
