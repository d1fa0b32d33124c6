"""The package itself: what it declares of the C interface, what it finds and what importing it takes."""

from __future__ import annotations

import ctypes
import enum
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import rosatune
from rosatune import _c, _library

HEADER = Path(__file__).parents[2] / "include" / "rosatune.h"

needs_header = pytest.mark.skipif(not HEADER.is_file(), reason="include/rosatune.h is not beside the tests")


# ------------------------------------------------------------------------------------------- the header, taken apart


def header_text() -> str:
    text = re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.S)
    return re.sub(r"^#.*?(?<!\\)$", " ", text, flags=re.S | re.M)


def header_enums() -> dict[str, dict[str, int]]:
    found = {}
    for body, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", header_text(), flags=re.S):
        found[name] = {member: int(value) for member, value in re.findall(r"(\w+) = (\d+)", body)}
    return found


def header_structs() -> dict[str, list[str]]:
    """Names of the fields of every structure, in order."""
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", header_text(), flags=re.S):
        fields: list[str] = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            pointer = re.search(r"\(\*(\w+)\)", declaration)
            if pointer:
                fields.append(pointer[1])
                continue
            for declarator in declaration.split(","):
                named = re.search(r"(\w+)(\[\w+\])?$", declarator.strip())
                assert named, declaration
                fields.append(named[1])
        found[name] = fields
    return found


def header_functions() -> dict[str, tuple[str, list[str]]]:
    """Result and arguments of every function, as C types without names."""
    found = {}
    for result, name, arguments in re.findall(r"ROSA_API ([\w ]+?[ *]+)(\w+)\((.*?)\);", header_text(), flags=re.S):
        types = []
        for argument in (" ".join(part.split()) for part in arguments.split(",")):
            if argument != "void":
                types.append(re.sub(r"\w+$", "", argument).replace("const ", "").replace(" ", ""))
        found[name] = (result.replace("const ", "").replace(" ", ""), types)
    return found


def acceptable(c_type: str) -> list[Any]:
    """The ctypes that may stand for a C type: buffers are addresses, structures and handles have types."""
    by_value = {
        "int": ctypes.c_int,
        "size_t": ctypes.c_size_t,
        "uint32_t": ctypes.c_uint32,
        "uint64_t": ctypes.c_uint64,
        "float": ctypes.c_float,
        "void": None,
        **{name: ctypes.c_int for name in _c.ENUMS},
    }
    if c_type in by_value:
        return [by_value[c_type]]
    if c_type == "char*":
        return [ctypes.c_char_p]
    if c_type.endswith("**"):
        return [ctypes.POINTER(ctypes.c_void_p)]
    target = c_type[:-1]
    if target in ("rosa_stream", "rosa_tape"):
        return [ctypes.c_void_p]
    if hasattr(_c, target):
        return [ctypes.POINTER(getattr(_c, target))]
    return [ctypes.c_void_p, *([ctypes.POINTER(by_value[target])] if by_value.get(target) else [])]


@needs_header
def test_enums_are_those_of_the_header() -> None:
    declared = header_enums()
    assert sorted(declared) == sorted(_c.ENUMS) and len(declared) >= 7
    for name, members in declared.items():
        ours, prefix = _c.ENUMS[name]
        assert issubclass(ours, enum.IntEnum)
        assert {prefix + member.name: int(member) for member in ours} == members


@needs_header
def test_functions_are_those_of_the_header() -> None:
    declared = header_functions()
    assert sorted(declared) == sorted(_c.PROTOTYPES) and len(declared) >= 29
    for name, (result, arguments) in declared.items():
        ours_result, ours = _c.PROTOTYPES[name]
        assert ours_result in acceptable(result), name
        assert len(ours) == len(arguments), name
        for i, (our, their) in enumerate(zip(ours, arguments)):
            assert our in acceptable(their), f"argument {i} of {name}: {our} for {their}"


@needs_header
def test_structures_are_laid_out_as_the_header_says(tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler to ask for the layout of structures")
    declared = header_structs()
    ours: dict[str, Any] = {name: getattr(_c, name) for name in declared}
    assert len(declared) >= 9
    lines = []
    for name, fields in declared.items():
        assert [field[0] for field in ours[name]._fields_] == fields, name
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field in fields:
            where = f"offsetof({name}, {field}), sizeof((({name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {where});')
    lines.append('printf("enum %zu\\n", sizeof(rosa_policy));')
    source = tmp_path / "layout.c"
    source.write_text('#include "rosatune.h"\n#include <stdio.h>\nint main(void)\n{\n' + "\n".join(lines) + "\n}\n")
    program = tmp_path / "layout"
    subprocess.run([compiler, "-std=c11", f"-I{HEADER.parent}", str(source), "-o", str(program)], check=True)
    seen = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    expected = []
    for name in declared:
        expected.append(f"{name} {ctypes.sizeof(ours[name])}")
        for field in declared[name]:
            place = getattr(ours[name], field)
            expected.append(f"{name}.{field} {place.offset} {place.size}")
    expected.append(f"enum {ctypes.sizeof(ctypes.c_int)}")
    assert seen == expected


@needs_header
def test_limits_and_starting_values_are_those_of_the_header() -> None:
    text = HEADER.read_text()
    assert int(re.search(r"ROSA_MAX_BITS +(\d+)", text)[1]) == _c.MAX_BITS  # type: ignore[index]
    assert int(re.search(r"ROSA_MAX_SYMBOL_BITS +(\d+)", text)[1]) == _c.MAX_SYMBOL_BITS  # type: ignore[index]
    assert int(re.search(r"ROSA_MAX_LINKS +(\d+)", text)[1]) == _c.MAX_LINKS  # type: ignore[index]
    assert int(re.search(r"ROSA_MAX_STEPS +\(\(size_t\)(\w+)\)", text)[1], 16) == _c.MAX_STEPS  # type: ignore[index]
    starts = {
        name: [part.strip() for part in body.replace("{NULL, NULL}", "NULL").split(",")]
        for name, body in re.findall(r"#define (\w+_INIT).*?\{(.*?)\n\t\}", text.replace("\\", ""), flags=re.S)
    }
    # size, then field by field; threads is our own default
    assert starts["ROSA_OPTIONS_INIT"][1:5] == ["16", "ROSA_READABLE", "1", "0"]
    options = _c.options(rosatune.RosaConfig())
    assert [options.bits, options.policy, options.fold, options.max_match] == [16, _c.Policy.READABLE, 1, 0]
    assert options.size == ctypes.sizeof(options) and not options.progress and not options.allocator.resize
    assert starts["ROSA_LEARNING_INIT"][1:] == [
        *("ROSA_QK_LINEAR", "ROSA_CREDIT_ALL", "ROSA_KEY_MATCH", "1", "0", "0", "1", "0", "ROSA_V_SIGMOID"),
    ]
    learning = _c.learning(rosatune.RosaConfig())
    fields = [getattr(learning, field[0]) for field in learning._fields_[1:]]
    assert fields == [0, 0, 0, 1.0, 0.0, 0.0, 1.0, 0, 0]
    assert learning.size == ctypes.sizeof(learning)


# --------------------------------------------------------------------------------------------- library, version, errors


def test_the_library_has_every_function() -> None:
    for name in _c.PROTOTYPES:
        assert callable(getattr(_c.lib, name))
    with pytest.raises(AttributeError, match="rosa_nothing"):
        getattr(_c.lib, "rosa_" + "nothing")


def version_of_header() -> str:
    numbers = re.findall(r"#define ROSA_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", HEADER.read_text())
    return ".".join(numbers)


@needs_header
def test_versions_agree() -> None:
    assert rosatune.__version__ == version_of_header()
    if _library.VARIABLE not in os.environ:
        assert metadata.version("rosatune") == rosatune.__version__


def test_everything_promised_is_there() -> None:
    for name in rosatune.__all__:
        assert hasattr(rosatune, name)
    assert (Path(rosatune.__file__).parent / "py.typed").is_file()


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_import_needs_numpy_alone() -> None:
    done = run_python(
        "import sys, rosatune; print(rosatune.__version__)\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert done.stdout == f"{rosatune.__version__}\n[]\n", done.stderr


@pytest.mark.parametrize("named", ["nowhere/librosatune.so", "."])
def test_a_library_that_is_not_there(named: str) -> None:
    done = run_python("import rosatune", **{_library.VARIABLE: named})
    assert done.returncode == 1
    assert f"ImportError: {_library.VARIABLE} names '{named}', which is not a file" in done.stderr


def test_a_library_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "librosatune.so"
    file.write_bytes(b"something else")
    done = run_python("import rosatune", **{_library.VARIABLE: str(file)})
    assert done.returncode == 1
    assert f"ImportError: {file} cannot be loaded" in done.stderr


def test_a_package_without_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(_library.VARIABLE, raising=False)
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_library.py"))
    with pytest.raises(ImportError, match="pip install"):
        _library.path()


# --------------------------------------------------------------------------------------------------------- the program


def run_module(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rosatune", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def installed() -> bool:
    try:
        return any(file.name == "rosatune" for file in metadata.files("rosatune") or [])
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not installed(), reason="the package is not installed, so there is no program beside it")
def test_the_package_brings_the_program() -> None:
    done = run_module("--version", ROSATUNE_PROGRAM="")
    assert done.returncode == 0 and done.stdout.startswith(f"rosatune {rosatune.__version__}\n"), done.stderr
    wrong = run_module("no-such-command", ROSATUNE_PROGRAM="")
    assert wrong.returncode == 2 and "no-such-command" in wrong.stderr


def test_a_program_of_ones_own(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text('#!/bin/sh\necho "other $@"\n')
    refused = run_module(ROSATUNE_PROGRAM=str(other))
    assert refused.returncode == 1 and "Permission denied" in refused.stderr
    other.chmod(0o755)
    assert run_module("a", "b c", ROSATUNE_PROGRAM=str(other)).stdout == "other a b c\n"
    other.write_text('#!/bin/sh\necho "$ROSATUNE_PYTHON"\n')  # which `rosatune doctor` looks at
    assert run_module(ROSATUNE_PROGRAM=str(other)).stdout == sys.executable + "\n"
    missing = run_module(ROSATUNE_PROGRAM="nowhere")
    assert missing.returncode == 1
    assert missing.stderr.startswith("rosatune: ROSATUNE_PROGRAM names 'nowhere', which is not a file")


def test_a_package_without_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from rosatune import __main__ as module

    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setattr(module.metadata, "files", lambda _name: [])
    with pytest.raises(FileNotFoundError, match="pip install"):
        module.program()


@pytest.mark.parametrize(
    "status, error, base",
    [
        ("EINVAL", rosatune.InvalidArgument, ValueError),
        ("ESYMBOL", rosatune.SymbolError, ValueError),
        ("ENOMEM", rosatune.OutOfMemory, MemoryError),
        ("EIO", rosatune.FileError, OSError),
        ("EFORMAT", rosatune.FormatError, ValueError),
        ("ECANCELLED", rosatune.Cancelled, Exception),
        ("EDEVICE", rosatune.DeviceError, RuntimeError),
    ],
)
def test_every_status_has_its_exception(status: str, error: Any, base: Any) -> None:
    number = _c.Status[status]
    with pytest.raises(error, match="of this and that") as raised:
        _c.check(number, _c.rosa_error(number, b"of this and that"))
    assert isinstance(raised.value, rosatune.Error) and isinstance(raised.value, base)
    with pytest.raises(error) as raised:
        _c.check(number, _c.rosa_error())
    assert str(raised.value) == _c.lib.rosa_status_name(number).decode()


def test_no_status_is_no_exception() -> None:
    _c.check(_c.Status.OK, _c.rosa_error())
    with pytest.raises(rosatune.Error):
        _c.check(999, _c.rosa_error())


def test_out_of_memory_is_an_exception() -> None:
    # More address space than there is: C's own allocation fails, and Python goes on.
    with pytest.raises((rosatune.OutOfMemory, rosatune.InvalidArgument)):
        rosatune.Stream(routes=(1 << 48) - 1)
    assert rosatune.retrieve([0, 0], [0, 0]).tolist() == [-1, -1]


@needs_header  # the sources with their configuration are then there too
def test_annotations_hold() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=HEADER.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
