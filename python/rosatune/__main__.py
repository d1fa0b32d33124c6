"""``python -m rosatune``: the program that the package carries, as a command.

``pip install`` puts it beside ``python`` under the name ``rosatune``. It is found by the list of installed files, so
that it is the one of this package whatever ``PATH`` says. ``ROSATUNE_PROGRAM`` names another one, for those who work on
the program itself.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

__all__ = ["main", "program"]

VARIABLE = "ROSATUNE_PROGRAM"
PYTHON = "ROSATUNE_PYTHON"  # read by `rosatune doctor`, which looks at the interpreter that runs it


def program() -> Path:
    """The file of the program."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"{VARIABLE} names {named!r}, which is not a file; name the program or unset it")
        return Path(named)
    try:
        files = metadata.files("rosatune") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        found = Path(str(file.locate()))
        if file.name == "rosatune" and found.is_file():
            return found.resolve()
    raise FileNotFoundError(
        f"the program rosatune is not installed beside this package: install it with `pip install .`, which builds the "
        f"program too, or name one in the environment variable {VARIABLE}"
    )


def main() -> None:
    """Become the program, with the arguments of this process."""
    try:
        path = program()
        # `rosatune doctor` looks at the interpreter that runs it, and not at the one that PATH finds
        os.environ[PYTHON] = sys.executable or ""
        os.execv(path, ["rosatune", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"rosatune: {error}")


if __name__ == "__main__":
    main()
