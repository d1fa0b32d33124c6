"""What the tests share. Every random number comes from a generator seeded by the test's own name, so that a failure
comes back when the test is run alone."""

from __future__ import annotations

import zlib

import numpy as np
import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
