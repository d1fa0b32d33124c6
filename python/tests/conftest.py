"""What the tests share. Every random number comes from a generator seeded by the test's own name, so that a failure
comes back when the test is run alone."""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"

# Some virtual machines offer AMX and half-precision instructions that end in an illegal instruction inside PyTorch's
# products of bfloat16. No test here is about those; read when the first product is made, so after this.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, and lose much where the processors are busy."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bench_script() -> Iterator[Callable[[str], Any]]:
    """Scripts of bench/ as modules, by their names."""

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[f"bench_{name}"] = module
        spec.loader.exec_module(module)
        return module

    sys.path.insert(0, str(BENCH))
    yield load
    sys.path.remove(str(BENCH))
