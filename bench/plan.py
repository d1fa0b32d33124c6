#!/usr/bin/env python3
"""Runs the commands of a plan, the most valuable first, as many as fit into some minutes: time on a GPU is scarce.

    bench/plan.py bench/plan_gpu.json --list
    bench/plan.py bench/plan_gpu.json --minutes 9 --out measured

A plan is a JSON list of {"name", "command", "seconds"} in order of value; `seconds` is what the command is expected to
take. A command that would not end within --minutes is left and the next one that would is begun; one that takes longer
than expected is stopped when the minutes are over. Commands are run by bash in the root of the sources, with this
Python before others on the path and --out as PLAN_OUT, and share the caches of compiled kernels in --caches, so that
only the first call pays for compiling.

Everything that NAME prints goes to NAME.log in --out; the standard output of a command with --json goes to NAME.json.
plan.json there has what was run, with exit codes and seconds; what ended with 0 is not run again by the next call.
Ctrl-C stops the command that is running and keeps what was made.

Exit status: 0 all ended with 0, 1 a command failed, 3 some were left or stopped, 130 Ctrl-C.
"""

import json
import math
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import common

ROOT = pathlib.Path(__file__).resolve().parent.parent
GRACE = 10  # seconds that a command has to end by itself once it was interrupted
POLL = 0.1
TAIL = 12  # lines of the log of a command that failed


def load(path):
    """The entries of a plan."""
    try:
        entries = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        common.die(f"{path}: {error}")
    names = []
    for entry in entries:
        if not isinstance(entry, dict) or not {"name", "command", "seconds"} <= set(entry):
            common.die(f"{path}: {entry!r} has no name, command or seconds")
        if not re.fullmatch(r"[\w.-]+", entry["name"]) or entry["name"] in [*names, "plan"]:
            common.die(f"{path}: {entry['name']!r} is used twice, or cannot name a file")
        names.append(entry["name"])
    return entries


def chosen(entries, first, only):
    """Those that --from and --only leave."""
    names = [entry["name"] for entry in entries]
    for name in [first] * (first is not None) + (only or []):
        if name not in names:
            common.die(f"the plan has no {name!r}; it has {', '.join(names)}")
    found = entries[names.index(first):] if first else entries
    return [entry for entry in found if not only or entry["name"] in only]


def stop(process):
    """Ends a command and all that it has started; its exit code."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)  # also what it has started and not waited for
    except ProcessLookupError:
        pass
    return process.wait()


def run(entry, folder, environment, seconds, interrupted):
    """(exit code, whether it was stopped: as the seconds were over, or as `interrupted` was set)"""
    log, out = folder / f"{entry['name']}.log", folder / f"{entry['name']}.json"
    apart, end = "--json" in shlex.split(entry["command"]), time.monotonic() + seconds
    with open(log, "wb") as said, open(out if apart else os.devnull, "wb") as numbers:
        process = subprocess.Popen(["bash", "-c", entry["command"]], cwd=ROOT, stdin=subprocess.DEVNULL,
                                   stdout=numbers if apart else said, stderr=said, env=environment,
                                   start_new_session=True)  # Ctrl-C comes here alone
        while True:
            try:
                return process.wait(POLL), False
            except subprocess.TimeoutExpired:
                if interrupted.is_set() or time.monotonic() > end:
                    return stop(process), True


class Record:
    """plan.json: an entry with its state, exit code and seconds for each command that was begun."""

    def __init__(self, folder):
        self.path = folder / "plan.json"
        self.rows = json.loads(self.path.read_text()) if self.path.exists() else []

    def is_done(self, entry):
        return any((row["name"], row["command"], row["state"]) == (entry["name"], entry["command"], "done")
                   for row in self.rows)

    def add(self, row):
        self.rows = [old for old in self.rows if old["name"] != row["name"]] + [row]
        part = self.path.with_name("plan.json.part")
        part.write_text(json.dumps(self.rows, indent=1) + "\n")
        part.replace(self.path)


def show(entries, record):
    total = 0
    for entry in entries:
        total += entry["seconds"]
        done = "  done" if record is not None and record.is_done(entry) else ""
        print(f"{entry['name']:22} {entry['seconds']:5} s {total / 60:6.1f} min  {entry['command']}{done}")


def main(words=None):
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False, report=False)
    parser.add_argument("plan", help="a JSON file")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for all of this call")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("measured"), metavar="DIR",
                        help="where logs and numbers go")
    parser.add_argument("--caches", type=pathlib.Path, default=ROOT / "build-caches", metavar="DIR",
                        help="of compiled kernels")
    parser.add_argument("--from", dest="first", metavar="NAME", help="leave those before it")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these, in the order of the plan")
    parser.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    args, begun = parser.parse_args(words), time.monotonic()
    entries = chosen(load(args.plan), args.first, args.only)
    if args.list:
        show(entries, Record(args.out) if args.out.is_dir() else None)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    record, states = Record(args.out), {}
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    for name, folder in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        environment.setdefault(name, str(args.caches.resolve() / folder))
    environment["PLAN_OUT"] = str(args.out.resolve())
    interrupted = threading.Event()  # and no exception, which could come while a command is being started
    for number in (signal.SIGINT, signal.SIGTERM):  # limits of time send the second
        signal.signal(number, lambda *_: interrupted.set())

    def left():
        return 60 * args.minutes - (time.monotonic() - begun)

    def log(text):
        print(f"[{time.monotonic() - begun:6.1f}] {text}", flush=True)

    made_by = common.commit()
    for entry in entries:
        name = entry["name"]
        if record.is_done(entry):
            states[name] = "done before"
            continue
        if interrupted.is_set() or entry["seconds"] > left():
            states[name] = "left"
            continue
        log(f"{name}: {entry['command']}")
        since = time.monotonic()
        code, stopped = run(entry, args.out, environment, left(), interrupted)
        state = "stopped" if stopped else "done" if code == 0 else "failed"
        seconds = time.monotonic() - since
        record.add({**entry, "state": state, "code": code, "took": seconds, "commit": made_by})
        states[name] = f"{state}, exit code {code}, {seconds:.0f} s of {entry['seconds']}"
        log(f"{name}: {states[name]}")
        if state != "done":
            lines = (args.out / f"{name}.log").read_text(errors="replace").splitlines()
            print("\n".join(f"    {line}" for line in lines[-TAIL:]), flush=True)
    print(f"\nin {args.out}:")
    for name, state in states.items():
        print(f"{name:22} {state}")
    found = {state.partition(",")[0] for state in states.values()}
    return 130 if interrupted.is_set() else 1 if "failed" in found else 3 if found & {"left", "stopped"} else 0


if __name__ == "__main__":
    sys.exit(main())
