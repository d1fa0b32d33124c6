"""The Triton kernels against the tensor operations that define them.

On a CUDA device they run as they are. Elsewhere they run in Triton's interpreter, which has to be chosen before Triton
is loaded: the first test starts these tests once more, in a process where it is. Where Triton is missing, all skip.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
from typing import Any, Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

import oracle  # noqa: E402
from torch import Tensor  # noqa: E402

import rosatune.torch  # noqa: E402
from rosatune import RosaConfig  # noqa: E402
from rosatune.nn import RosaAdapter, RosaState  # noqa: E402
from rosatune.sources import Lookup  # noqa: E402
from rosatune.torch import _device, _distinct, _gradients, _host, _operator, _past  # noqa: E402
from rosatune.torch import _places, _read, _settings, _strength, _triton  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
here = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="no CUDA device; they run in the interpreter")

OLD = "this version of Triton's interpreter does not go with this version of NumPy"

if DEVICE == "cuda" or INTERPRETED:
    from rosatune.torch import _fused, _kernels, _read_kernels

    try:
        _kernels.running(torch.ones(1, 2, 2, device=DEVICE), torch.zeros(2, 2, device=DEVICE))
    except Exception as error:
        if "0-dimensional arrays" not in str(error):
            raise
        pytest.skip(OLD, allow_module_level=True)

CLOSE = 2e-5
RULES: list[dict[str, Any]] = [
    *(dict(qk_grad="flips", key_credit=credit) for credit in ("match", "destination")),
    *(dict(qk_grad="linear", credit=credit, suffix=suffix) for credit in ("all", "route") for suffix in (0.0, 0.6)),
    dict(qk_grad="soft"),
    dict(qk_grad="none"),
]
NAMES = ["-".join(str(value) for value in rule.values()) for rule in RULES]


@pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="the kernels run as they are")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if OLD in done.stdout:
        pytest.skip(OLD)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout


@pytest.fixture
def marked() -> Iterator[None]:
    """New memory holds NaN, so that what is read before it is written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def activations(rng: np.random.Generator, batch: int, steps: int, routes: int, bits: int, kind: Any) -> list[Tensor]:
    """q, k, v, e0, e1 and gy; q and k find each other, q's rows are apart, gy's channels are."""
    query, key = oracle.streams(rng, (batch, routes, steps), bits, letters=min(4, 1 << bits), repeat=0.3)
    found = []
    for symbols in (query, key):
        bit = (symbols.transpose(0, 2, 1)[..., None] >> np.arange(bits) & 1).reshape(batch, steps, -1)
        found.append(np.where(bit, 1, -1) * rng.uniform(0.1, 2, bit.shape))
    found += [rng.standard_normal(found[0].shape) for _ in range(2)]
    q, k, v, gy = (torch.tensor(x, dtype=kind, device=DEVICE) for x in found)
    e0, e1 = torch.tensor(rng.standard_normal((2, routes * bits)), dtype=torch.float32, device=DEVICE)
    apart = torch.cat([q, k], -1)[..., : q.shape[-1]]
    return [apart, k, v, e0, e1, gy.transpose(1, 2).contiguous().transpose(1, 2)]


def retrieved(inputs: list[Tensor], settings: Any) -> _device.Found:
    """What the host finds."""
    tensors = [x.cpu().contiguous() for x in inputs[:2]]
    tables = settings.qk_grad == "flips"
    found = _operator.find(*tensors, torch.tensor(9), None, tables, True, *settings)[:3]
    return _device.Found(*(x.to(DEVICE) for x in found), *(_kernels.pack(x, settings.bits) for x in inputs[:2]))


PLAIN = _strength.Strength(None, None, None)
ALL = (True,) * 7


def strong(rng: np.random.Generator, batch: int, steps: int, routes: int) -> list[Any]:
    """Strengths of each kind: with a table of gains and a gate, with one of them, with a scale alone, with none."""
    gain = torch.tensor(rng.standard_normal((routes, 10)), dtype=torch.float32, device=DEVICE)
    z = torch.tensor(rng.standard_normal((batch, steps)), dtype=torch.float32, device=DEVICE)
    scale = torch.tensor(0.3, dtype=torch.float64)
    some = (dict(gain=gain, z=z, scale=scale), dict(gain=gain), dict(z=z), dict(scale=scale), {})
    return [PLAIN._replace(**parts) for parts in some]


def by_kernels(
    gy: Tensor, inputs: list[Tensor], there: _device.Found, settings: Any, wanted: Any = ALL,
    strength: Any = PLAIN, straight: bool = False, token: Any = None,
) -> Any:  # fmt: skip
    value = _distinct.symbols_by_step(_kernels.pack(inputs[2], settings.bits), token)
    found = _fused.backward(gy, *inputs, there, value, strength, straight, wanted, settings, token)
    both = wanted[0] and wanted[1]  # then they come side by side
    return (*found[0].split(gy.shape[2], 2), *found[2:]) if both else found


def by_operations(
    gy: Tensor, inputs: list[Tensor], found: _device.Found, settings: Any, strength: Any = PLAIN, straight: bool = False
) -> Any:
    """The definition."""
    steps, value = _device._by_step(found.read, len(gy)), inputs[2]
    return _strength.backward(
        gy, value, found.length, strength, straight, ALL,
        lambda: _gradients.read_out(steps, *inputs[2:], settings.bits),
        lambda gy: _gradients.backward(gy, *inputs, steps, found.table, ALL[:5], settings),
    )  # fmt: skip


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    for name, x, y in zip(("q", "k", "v", "e0", "e1", "gain", "z"), found, expected):
        if x is None and name in ("gain", "z"):
            continue
        assert x.dtype == y.dtype and x.shape == y.shape, name
        error = (x.double() - y.double()).norm()
        assert error <= tolerance * y.double().norm() + 1e-12, f"{name}: {error} of {y.norm()}"


SHAPES = [(2, 70, 3, 4), (1, 33, 5, 16), (1, 150, 2, 3), (2, 40, 9, 1)]  # B, T, R, M


@here
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_symbols_and_read_out(rng: np.random.Generator, shape: Any, kind: Any) -> None:
    bits = shape[-1]
    inputs = activations(rng, *shape, kind)
    q, _, v, e0, e1, _ = inputs
    q[0, 0, 0], q[0, 1, 0], q[0, 2, 0] = 0.0, -0.0, torch.nan
    for x in (q, v):
        assert torch.equal(_kernels.pack(x, bits).cpu(), _host.pack([x.cpu().contiguous()], bits, 1)[0])
    read, _, length, *_ = retrieved(inputs, _settings.make(bits=bits))
    assert (read == -1).any() and (read != -1).any() and length.max() > 1
    plain = _gradients.read_out(_device._by_step(read, shape[0]), v, e0, e1, bits)
    for strength in strong(rng, *shape[:3]):
        expected = _strength.weigh(plain, length, strength)
        for kept in (read, _gradients.wide(read).int()):
            found = _fused.read_out(kept, length, _kernels.pack(v, bits), e0, e1, strength, v, bits)
            if kind == torch.bfloat16 and strength.weighs:  # the interpreter rounds to zero
                assert_close([found], [expected], 1e-2)
            else:
                assert torch.equal(found, expected)


@here
@pytest.mark.parametrize("fold", [True, False])
def test_runs(rng: np.random.Generator, fold: bool) -> None:
    symbols = torch.tensor(rng.integers(0, 2, (3, 2100)), dtype=torch.int16, device=DEVICE)  # more than one block
    found = _kernels.runs(symbols, fold)
    expected = _gradients.Runs(symbols.T.unsqueeze(0).int(), fold)
    assert torch.equal(found.start.long(), expected.start[0].T)
    assert torch.equal(found.number.long(), expected.first[0].T.cumsum(1))


@here
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(rng: np.random.Generator, reverse: bool) -> None:
    x = torch.tensor(rng.integers(-9, 9, (2, 37, 150)), dtype=torch.float32, device=DEVICE)
    turned = x.flip(1) if reverse else x
    expected = turned.cumsum(1) - turned
    for carry in (None, torch.ones_like(x[:, 0])):
        out = torch.zeros(2 * 37, 160, device=DEVICE)[:, 5:155]  # rows that lie apart
        found = _kernels.running(x, out, carry, reverse).view(x.shape)
        assert torch.equal(found, (expected.flip(1) if reverse else expected) + (carry is not None))
        assert carry is None or torch.equal(carry, x.sum(1) + 1)
    for kind in (torch.bfloat16, torch.int32):  # sums are formed in float32, and in whole numbers
        out = torch.zeros(2 * 37, 150, device=DEVICE)
        found = _kernels.running((17 * x).to(kind), out, reverse=reverse).view(x.shape)
        assert torch.equal(found, 17 * (expected.flip(1) if reverse else expected))


@here
def test_clear() -> None:
    x = torch.ones(3, 100, 120, device=DEVICE)
    _kernels.clear(x[1:, :70, 10:80])
    expected = torch.ones_like(x)
    expected[1:, :70, 10:80].tril_(-1)
    assert torch.equal(x, expected)


@here
@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize(
    "shape, kind, fold",
    [
        ((2, 40, 3, 4), torch.float32, True),
        ((1, 33, 1, 5), torch.float32, False),
        ((1, 33, 2, 16), torch.bfloat16, True),
    ],
    ids=["float32", "unfolded", "bfloat16"],
)
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_gradients(
    rng: np.random.Generator, rule: dict[str, Any], shape: Any, kind: Any, fold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the tensor operations, with chunks, portions and blocks small enough to be several."""
    monkeypatch.setattr(_fused, "CHUNK", 32)
    monkeypatch.setattr(_fused, "ROUTE_CHUNK", 16)
    if shape[0] > 1:
        monkeypatch.setattr(_fused, "STATE_BYTES", 1)  # one chunk at once
    monkeypatch.setattr(_fused, "TOTAL_BYTES", 8 * shape[0] * shape[1] * shape[3] * 2)
    inputs = activations(rng, *shape, kind)
    gy = inputs.pop()
    settings = _settings.make(bits=shape[-1], fold=fold, explore=0.2, flip_share=0.6, **rule)
    there = retrieved(inputs, settings)
    strengths = strong(rng, *shape[:3])
    for strength, straight in ((PLAIN, False), (strengths[0], True)):
        given = (gy, inputs, there, settings)
        expected = by_operations(*given, strength, straight)
        found = by_kernels(*given, strength=strength, straight=straight)
        assert_close(found, expected, CLOSE if kind == torch.float32 else 0.02)


def of_tokens(rng: np.random.Generator, inputs: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The inputs with the values of 11 distinct tokens, and which of them each step has."""
    token = torch.tensor(rng.integers(0, 11, inputs[0].shape[:2]), dtype=torch.int32, device=DEVICE)
    return [*inputs[:2], inputs[2][:1, :11], *inputs[3:]], token


@here
@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_values_of_distinct_tokens(
    rng: np.random.Generator, rule: dict[str, Any], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is bit for bit what it is with values by step, but the gradient of values, which is added up by token."""
    monkeypatch.setattr(_fused, "CHUNK", 32)
    monkeypatch.setattr(_fused, "ROUTE_CHUNK", 16)
    monkeypatch.setattr(_fused, "STATE_BYTES", 1)
    monkeypatch.setattr(_fused, "TOTAL_BYTES", 8 * 11 * 4 * 2)
    inputs = activations(rng, 2, 40, 3, 4, kind)
    gy = inputs.pop()
    inputs, token = of_tokens(rng, inputs)
    by_step = [*inputs[:2], _distinct.by_step(inputs[2], token), *inputs[3:]]
    assert torch.equal(by_step[2][1, 3], inputs[2][0, int(token[1, 3])])
    value = _distinct.symbols_by_step(_kernels.pack(inputs[2], 4), token)
    assert torch.equal(value, _kernels.pack(by_step[2], 4))
    settings, strength = _settings.make(bits=4, **rule), strong(rng, 2, 40, 3)[0]
    there = retrieved(inputs, settings)
    found = by_kernels(gy, inputs, there, settings, ALL, strength, True, token)
    expected = by_kernels(gy, by_step, there, settings, ALL, strength, True)
    assert all(torch.equal(x, y) for name, x, y in zip("qkv01gz", found, expected) if name != "v")
    tolerance = CLOSE if kind == torch.float32 else 0.02
    assert_close(found[2:3], [_distinct.by_token(expected[2], token, 11)], tolerance)
    monkeypatch.setattr(_triton, "module", lambda name, x: None)  # the definition
    plain = _device.backward(gy, *inputs, there, value, strength, True, ALL, settings, token)
    assert_close(found, [*plain[0].split(gy.shape[2], 2), *plain[2:]], tolerance)


@here
def test_sums_by_token_are_those_by_step(rng: np.random.Generator) -> None:
    inputs = activations(rng, 2, 40, 3, 4, torch.float32)
    gy = inputs.pop()
    _, token = of_tokens(rng, inputs)
    read, size = retrieved(inputs, _settings.make(bits=4)).read, gy.abs().sum((0, 1))
    by_step = torch.zeros(2, 3, 40, 4, dtype=torch.int64, device=DEVICE)
    by_token = torch.zeros(1, 3, 11, 4, dtype=torch.int64, device=DEVICE)
    _kernels.land(gy, read, size, by_step, (0, 3), 4)
    _kernels.land(gy, read, size, by_token, (0, 3), 4, token)
    expected = torch.zeros_like(by_token)
    expected[0].index_add_(1, token.flatten(), by_step.transpose(0, 1).flatten(1, 2))
    assert expected.any() and torch.equal(by_token, expected)


@here
@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("credit", ["all", "route"])
def test_linear_with_whole_tiles_of_padding(
    rng: np.random.Generator, credit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fused, "CHUNK", 112)
    monkeypatch.setattr(_fused, "ROUTE_CHUNK", 112)
    inputs = activations(rng, 3, 120, 2, 4, torch.float32)
    gy = inputs.pop()
    settings = _settings.make(bits=4, credit=credit)
    given = (gy, inputs, retrieved(inputs, settings), settings)
    assert_close(by_kernels(*given), by_operations(*given), CLOSE)


@here
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_strengths(rng: np.random.Generator, shape: Any, kind: Any) -> None:
    """With each part of a strength that there may be, over several spans of steps."""
    shape = (shape[0], 150, *shape[2:])
    inputs = activations(rng, *shape, kind)
    gy = inputs.pop()
    settings = _settings.make(bits=shape[-1], qk_grad="none")
    there = retrieved(inputs, settings)
    for strength in strong(rng, *shape[:3]):
        given = (gy, inputs, there, settings)
        expected, found = by_operations(*given, strength, True), by_kernels(*given, strength=strength, straight=True)
        assert [x is None for x in found[5:]] == [x is None for x in strength[:2]]
        assert_close(found, expected, CLOSE if kind == torch.float32 else 0.02)


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device; elsewhere nothing runs at the same time")
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_same_every_time(rng: np.random.Generator, rule: dict[str, Any], distinct: bool) -> None:
    inputs = activations(rng, 2, 1500, 24, 4, torch.bfloat16)
    gy = inputs.pop()
    settings, token = _settings.make(bits=4, **rule), None
    if distinct:
        inputs, token = of_tokens(rng, inputs)
    there, strength = retrieved(inputs, settings), strong(rng, 2, 1500, 24)[0]
    found = [by_kernels(gy, inputs, there, settings, ALL, strength, True, token) for _ in range(4)]
    for again in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], again))


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device; the operator is that of the host")
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("joined", [True, False])
def test_the_operator_of_a_device_is_that_of_the_host(
    rng: np.random.Generator, kernels: bool, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients with strength, for q and k apart and side by side."""
    if not kernels:
        monkeypatch.setattr(_triton, "module", lambda name, x: None)
    q, k, v, e0, e1, gy = activations(rng, 2, 150, 3, 16, torch.float32)
    strength, settings = strong(rng, 2, 150, 3)[0], _settings.make(bits=16)
    results = []
    for device in ("cpu", DEVICE):
        given = (torch.cat([q, k], 2), v, e0, e1, strength.gain, strength.z)
        leaves = [x.detach().to(device).requires_grad_() for x in given]
        both, *rest, gain, z = leaves
        parts = both.split_with_sizes([q.shape[2]] * 2, 2) if joined else [x.clone() for x in both.chunk(2, 2)]
        found = rosatune.torch.find(*parts, rosatune.torch.launch(*parts, settings))
        y = rosatune.torch.read(*parts, *rest, found, settings, _strength.Strength(gain, z, strength.scale), True)
        results.append([x.cpu() for x in (y, *torch.autograd.grad(y, leaves, gy.to(device)))])
    for one, other in zip(*results):
        assert one.any() and (one - other).norm() <= CLOSE * one.norm()


@here
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("wanted", [ALL, (True,) + (False,) * 6, (False, True) + (False,) * 5], ids=["all", "q", "k"])
def test_compilers_know_what_a_device_gives(
    rng: np.random.Generator, kernels: bool, wanted: Any, distinct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes and dtypes of y and of all gradients are what the operators say of tensors on a CUDA device."""
    monkeypatch.setattr(_triton, "module", lambda name, x: _fused if kernels else None)
    inputs = activations(rng, 2, 40, 3, 4, torch.bfloat16)
    gy = inputs.pop()
    settings, strength = _settings.make(bits=4), strong(rng, 2, 40, 3)[0]
    found, value, token = retrieved(inputs, settings), _device.host_layout(inputs[2], 4), None
    if distinct:
        inputs, token = of_tokens(rng, inputs)
        value = _distinct.symbols_by_step(_device.host_layout(inputs[2], 4), token)
    y = _device.read_out(found.read, found.length, value, inputs[0], *inputs[2:], strength, settings, token)
    made = _device.backward(gy, *inputs, found, value, strength, True, wanted, settings, token)
    with torch._subclasses.FakeTensorMode():
        tensors = (*inputs, *strength[:2], *found, value, token)
        fake = [None if x is None else torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in tensors]
        given = (*fake, torch.empty((), dtype=torch.float64, device="cpu"))
        known = _operator.rosa(*given, True, *settings)
        gradients = _operator.rosa_backward(known, *given, wanted, True, *settings)
    owned = {x.untyped_storage().data_ptr() for x in made if x is not None}
    assert len(owned) == sum(x is not None for x in made)  # no two share memory
    for x, like in zip((y, *made), (known, *gradients)):
        assert like.device.type == "cuda"
        assert like.numel() == 0 if x is None else (x.shape == like.shape and x.dtype == like.dtype)


@here
def test_only_what_is_wanted(rng: np.random.Generator) -> None:
    inputs = activations(rng, 1, 12, 1, 2, torch.float32)
    gy = inputs.pop()
    for rule in ("linear", "flips"):
        settings = _settings.make(bits=2, qk_grad=rule)
        there = retrieved(inputs, settings)
        strength = strong(rng, 1, 12, 1)[0]
        everything = by_kernels(gy, inputs, there, settings, strength=strength)
        for place in range(7):
            wanted = tuple(place == other for other in range(7))
            found = by_kernels(gy, inputs, there, settings, wanted, strength)
            assert all((x is not None) == asked for x, asked in zip(found, wanted))
            assert torch.equal(found[place], everything[place])


@here
def test_magnitudes(rng: np.random.Generator) -> None:
    """Gradients of any size add up alike; such that are not finite show."""
    inputs = activations(rng, 1, 40, 2, 4, torch.float32)
    gy = inputs.pop()
    settings = _settings.make(bits=4, qk_grad="flips")
    there = retrieved(inputs, settings)

    def found(gy: Tensor) -> Any:
        return by_kernels(gy, inputs, there, settings)[:5]

    plain = found(gy)
    for power in (-90, 60):
        scaled = found(gy * 2.0**power)
        assert_close([x * 2.0**-power for x in scaled], plain, 1e-6)
    assert all(not x.any() for x in found(gy * 0))
    gy[0, 3, 1] = torch.inf
    _, k, v, *_ = found(gy)
    assert v[0, :, 1].isnan().all() and v[0, :, 2].isfinite().all()
    assert k[0, :, :4].isnan().all() and k[0, :, 4:].isfinite().all()


@here
@pytest.mark.parametrize("factor", [1.0, 2.0**20])
def test_half_as_wide_sums_are_fine_enough(rng: np.random.Generator, factor: float) -> None:
    """Each gradient in bfloat16 is right up to its own rounding, also beside a step that is a million times as large:
    there, up to the unit of the channel's sums for each step that is added."""
    inputs = activations(rng, 1, 300, 2, 4, torch.bfloat16)
    gy = inputs.pop()
    settings = _settings.make(bits=4, qk_grad="none")
    there = retrieved(inputs, settings)
    gy[0, int((there.read[0] != -1).nonzero()[-1]), :4] *= factor
    found, expected = (f(gy, inputs, there, settings)[2].double() for f in (by_kernels, by_operations))
    unit = gy.abs().double().sum((0, 1)) * (inputs[4] - inputs[3]).abs() * 2.0**-29
    assert expected.any() and ((found - expected).abs() <= 2.0**-7 * expected.abs() + 32 * unit).all()


# ------------------------------------------------------------------------------- reading at places that layers share

# B, T, S (values), R, C, L: odd sizes, more columns than a block, routes of few channels, values of distinct tokens
# instead of steps, more steps than a span has; dtype of v; gain, gate, straight. Every value of one meets every value
# of most others.
READS: list[Any] = [
    ((2, 19, 19, 1, 72, 4), torch.float32, True, True, True),
    ((1, 18, 18, 1, 300, 1), torch.bfloat16, False, True, False),
    ((2, 12, 12, 6, 24, 3), torch.bfloat16, True, False, True),
    ((1, 13, 13, 2, 10, 2), torch.float32, False, False, False),
    ((1, 45, 11, 1, 40, 3), torch.bfloat16, True, True, True),
    ((1, 40, 7, 3, 12, 2), torch.float32, True, True, False),
    ((2, 150, 9, 1, 40, 2), torch.float32, True, True, True),
]
each_read = pytest.mark.parametrize(
    "shape, kind, gain, gate, straight",
    READS,
    ids=["tokens", "one", "routes", "plain", "distinct", "distinct-routes", "spans"],
)


class Reading:
    """The inputs of a read, and of its backward pass."""

    def __init__(self, rng: np.random.Generator, shape: Any, kind: Any, gain: bool, gate: bool) -> None:
        batch, steps, kept, routes, channels, links = shape

        def normal(*size: int, kind: Any = torch.float32) -> Tensor:
            return torch.tensor(rng.standard_normal(size), dtype=kind, device=DEVICE)

        self.v, self.gy = normal(batch, kept, channels, kind=kind), normal(batch, steps, channels, kind=kind)
        self.v[0, 0, :3] = torch.tensor([0.0, -0.0, torch.nan])
        tau = rng.integers(-1, kept // 2, (links, batch, routes, steps))
        tau[:, 0, 0, : steps // 2] = 3  # a place that many steps read, and many that none does
        if steps > 64:  # whole tiles that find nothing: between others, and where a row is shorter than another
            tau[:, :, :, 35:100] = -1
            tau[:, -1, :, 110:] = -1
        self.tau = torch.tensor(tau, dtype=torch.int32, device=DEVICE)
        self.length = torch.tensor(rng.integers(0, 14, tau.shape), dtype=torch.uint8, device=DEVICE)
        self.gain = normal(links * routes, 10) if gain else None
        self.z = normal(batch, steps).abs() if gate else None
        self.e0, self.e1 = normal(links, channels), normal(links, channels)

    @property
    def strength(self) -> tuple:
        return (self.gain, self.z, self.e0, self.e1, 0.7)


@here
@each_read
def test_packing_and_reading(
    rng: np.random.Generator, shape: Any, kind: Any, gain: bool, gate: bool, straight: bool
) -> None:
    given = Reading(rng, shape, kind, gain, gate)
    values, slopes = _read_kernels.pack(given.v, straight)
    assert torch.equal(values, _read._packed(given.v > 0))
    assert torch.equal(slopes, _read._packed(given.v.abs() < 1)) if straight else not slopes.numel()
    arguments = (values[:, :-1].contiguous(), given.tau, given.length, *given.strength, kind)  # S is not T
    found, expected = _read_kernels.read(*arguments), _read._plain_read(*arguments)
    assert_close([found], [expected], 1e-6 if kind == torch.float32 else 1e-2)


@here
@pytest.mark.parametrize("reads", [_read.READS, 3])
@each_read
def test_gradients_of_reads(
    rng: np.random.Generator, shape: Any, kind: Any, gain: bool, gate: bool, straight: bool, reads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(_read, "READS", reads)  # of a place that are summed at once
    if reads == 3:
        monkeypatch.setattr(_read_kernels, "PARTS", 2)  # several of the blocks of channels, but not all of them
    given = Reading(rng, shape, kind, gain, gate)
    given.v.nan_to_num_(0.5)
    values, slopes = _read._packed(given.v > 0), _read._packed(given.v.abs() < 1)
    order = _read.sort_places(given.tau, shape[2])
    assert reads > 3 or bool((order[3] < shape[2]).any()), "some places have more reads than a piece has"
    wanted = [True, gain, gate, True]
    places = (given.tau, given.length, order)
    arguments = (given.gy, None if straight else given.v, values, slopes, *places, *given.strength)
    found = _read_kernels.read_backward(*arguments, wanted)
    expected = _read._plain_read_backward(*arguments, wanted)
    for name, asked, x, y in zip(("v", "gain", "z", "levels"), wanted, found, expected):
        assert (x is not None) == (y is not None) == asked, name
        if asked:
            assert y.any() and x.dtype == y.dtype, name
            error = (x.double() - y.double()).norm()
            assert error <= (1e-2 if x.dtype == torch.bfloat16 else CLOSE) * y.double().norm(), name
    for number, asked in enumerate(wanted):
        if asked:  # alone, and the same every time
            alone = _read_kernels.read_backward(*arguments, [number == other for other in range(4)])
            assert torch.equal(alone[number], found[number]) and sum(x is not None for x in alone) == 1


@here
@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("case", [READS[0], READS[6]], ids=["some", "whole tiles"])
def test_steps_that_find_nothing(rng: np.random.Generator, case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read 0 and take no part in any sum; passing over whole tiles of them changes no bit."""
    given = Reading(rng, *case[:4])
    given.tau[:, :, :, 5] = -1
    nothing = (given.tau < 0).all(0).all(1)  # [B, T]; of routes there is one
    given.gy[nothing] = torch.nan
    values, slopes = _read._packed(given.v > 0), _read._packed(given.v.abs() < 1)
    order = _read.sort_places(given.tau, values.shape[1])
    results = []
    for skip in (True, False):
        monkeypatch.setattr(_read_kernels, "SKIP", skip)
        y = _read_kernels.read(values, given.tau, given.length, *given.strength, torch.float32)
        places = (given.tau, given.length, order)
        found = _read_kernels.read_backward(given.gy, None, values, slopes, *places, *given.strength, [True] * 4)
        assert not y[nothing].any() and not found[2][nothing].any()
        assert y[~nothing].all(-1).any() and all(x.isfinite().all() and x.any() for x in (y, *found))
        results.append((y, *found))
    assert all(torch.equal(x, y) for x, y in zip(*results))


@here
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 20, 72), (1, 9, 300)])
def test_gate(rng: np.random.Generator, shape: Any, kind: Any) -> None:
    u = torch.tensor(rng.standard_normal(shape), dtype=kind, device=DEVICE)
    weight = torch.tensor(0.1 * rng.standard_normal(shape[2]), dtype=torch.float32, device=DEVICE)
    bias = torch.tensor([0.3], device=DEVICE)
    z = _read_kernels.gate(u, weight, bias)
    assert_close([z], [_read._plain_gate(u, weight, bias)], CLOSE)
    gz = torch.tensor(rng.standard_normal(shape[:2]), dtype=torch.float32, device=DEVICE)
    for whole in (True, False):
        given = (gz, u, z, weight, whole)
        found, expected = (f(*given) for f in (_read_kernels.gate_backward, _read._plain_gate_backward))
        assert_close(found, expected, CLOSE if kind == torch.float32 or not whole else 1e-2)


@here
@pytest.mark.parametrize("shape", [READS[0][0], READS[4][0]], ids=["by step", "distinct"])
def test_operators_use_the_kernels(rng: np.random.Generator, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of the whole, with kernels and without."""
    given = Reading(rng, shape, torch.float32, True, True)
    given.v.nan_to_num_(0.5)
    places = _places.TensorPlaces(given.tau, given.length)
    inputs = [x.requires_grad_() for x in (given.v, given.gain, given.z, given.e0, given.e1)]
    scale = torch.tensor(0.7, dtype=torch.float64)
    results = []
    for kernels in (_read_kernels, None):
        monkeypatch.setattr(_triton, "module", lambda name, x, kernels=kernels: kernels)
        y = _read.read(given.v, places, _read.Strength(given.gain, given.z, scale), given.e0, given.e1)
        results.append([y, *torch.autograd.grad(y, inputs, given.gy)])
        fixed = _read.Strength(given.gain.detach(), None, scale)
        y = _read.read(given.v.detach(), places, fixed, given.e0.detach(), given.e1)  # where little else learns
        results[-1] += torch.autograd.grad(y, given.e1, given.gy)
    for one, other in zip(*results):
        assert other.any() and (one - other).norm() <= CLOSE * other.norm()


# ------------------------------------------------------------------------------------------------ a text that grows

# B, R, C, L: units of bytes and of words, one route, routes of whole units and of parts, more columns than a program;
# dtype; gain, gate; how many blocks of 16 steps the device may hold.
GROWING: list[Any] = [
    ((2, 1, 72, 4), torch.float32, True, True, 2),
    ((1, 1, 1056, 1), torch.bfloat16, False, True, 0),
    ((2, 66, 264, 3), torch.bfloat16, True, False, 1),
    ((1, 3, 96, 2), torch.float32, False, False, 9),
    ((2, 4, 32, 2), torch.float32, True, True, 1),
    ((1, 1, 10, 2), torch.float32, True, True, 9),
]


def growing_parts(rng: np.random.Generator, shape: Any, kind: Any, gain: bool, gate: bool) -> tuple[Any, _past.Parts]:
    """What makes random numbers, and what a source is read with, the second of an adapter's."""
    _, routes, channels, links = shape

    def normal(*size: int, kind: Any = torch.float32) -> Tensor:
        return torch.tensor(rng.standard_normal(size), dtype=kind, device=DEVICE)

    return normal, _past.Parts(
        normal(1 + links * routes, 10, kind=kind) if gain else None,
        *((0.1 * normal(channels, kind=kind), normal(1, kind=kind)) if gate else (None, None)),
        *(normal(1 + links, channels, kind=kind) for _ in range(2)), torch.tensor(0.7, dtype=torch.float64), 1, 1,
    )  # fmt: skip


@here
@pytest.mark.parametrize("shape, kind, gain, gate, room", GROWING, ids=str)
def test_growing(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, shape: Any, kind: Any, gain: bool, gate: bool, room: int
) -> None:
    """In pieces, with a rewind, rows in another order and copies on the way; two sources read one past."""
    batch, routes, channels, links = shape
    monkeypatch.setattr(_past, "BLOCK_BYTES", 1)
    monkeypatch.setattr(_triton, "module", lambda name, x: None)  # for the definition
    normal, parts = growing_parts(rng, shape, kind, gain, gate)
    other = parts._replace(first=0, row=0)
    whole: Any = _past.Whole()
    blocks: Any = _past.Blocks(normal(batch, 1, channels, kind=kind), room * batch * 16 * ((channels + 7) // 8))
    begin, delay = 0, 5
    for steps, back in ((6, 0), (1, 0), (40, 0), (1, 2), (5, 0), (2, 30), (19, 0)):
        begin -= back
        u, v = (normal(batch, steps, channels, kind=kind) for _ in range(2))
        v[0, 0, :3] = torch.tensor([0.0, -0.0, torch.nan])
        ends = begin + np.arange(steps) - delay if steps <= delay else begin + np.arange(1, steps + 1)
        tau = rng.integers(-2, np.maximum(ends, 0), (links, batch, routes, steps)).clip(-1)
        tau = torch.tensor(tau, dtype=torch.int32, device=DEVICE)
        length = torch.tensor(rng.integers(0, 14, tau.shape), dtype=torch.uint8, device=DEVICE)
        places = _places.TensorPlaces(tau, length)
        further = _places.TensorPlaces(tau[:1, :, :1].contiguous(), length[:1, :, :1].contiguous())
        for given, there, first in ((parts, places, True), (other, further, False)):
            found, expected = (x.step(u, v, begin, there, given, first, delay) for x in (blocks, whole))
            assert expected.any() or steps < 6
            assert_close([found], [expected], 1e-6 if kind == torch.float32 else 1e-2)
        begin += steps
        held = [block for block in blocks._blocks if block.is_cuda]
        assert len(held) <= room
        if steps == 6:
            blocks = copy.deepcopy(blocks)
        if steps == 40:
            order = [1, 0, 1] if batch == 2 else [0, 0]
            blocks.reorder(order), whole.reorder(order)
            batch, room = len(order), 9
    for steps in (3, 60):  # alone
        v = normal(batch, steps, channels, kind=kind)
        blocks.append(v, begin), whole.append(v, begin)
        begin += steps
    blocks._settle()  # what the host reads may still be on its way
    kept = torch.cat([block.cpu() for block in blocks._blocks], 1)[:, :begin]
    assert torch.equal(kept, whole._values[:, :begin].cpu())
    assert pickle.loads(pickle.dumps(blocks)).nbytes == blocks.nbytes


@here
@pytest.mark.parametrize("shape, kind, gain, gate", [each[:4] for each in GROWING], ids=str)
@torch.no_grad()
def test_reading_by_token(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, shape: Any, kind: Any, gain: bool, gate: bool
) -> None:
    """In the bits of a vocabulary, one step and several; a kernel that fails is replaced."""
    batch, routes, channels, links = shape
    normal, parts = growing_parts(rng, shape, kind, gain, gate)
    bits = _read.pack_bits(normal(1, 37, channels))[0]
    for steps in (1, 21):
        u = normal(batch, steps, channels, kind=kind)
        tau = torch.tensor(rng.integers(-1, 37, (links, batch, routes, steps)), dtype=torch.int32, device=DEVICE)
        length = torch.tensor(rng.integers(0, 14, tau.shape), dtype=torch.uint8, device=DEVICE)
        places, found = _places.TensorPlaces(tau, length), []
        for kernels in (None, _past._kernels()):
            monkeypatch.setattr(_triton, "module", lambda name, x: kernels if name == "_step_kernels" else None)
            found.append(_past.read_tokens(bits, u, places, parts))
        by_step = _past._read_in(bits.expand(batch, -1, -1), u, u, places, parts)
        assert by_step.any() and torch.equal(found[0], by_step)
        assert_close([found[1]], [found[0]], 1e-6 if kind == torch.float32 else 1e-2)
    monkeypatch.setattr(_past, "_failed", set())
    monkeypatch.setattr(_past, "_kernels", lambda: None)
    with pytest.warns(RuntimeWarning, match="the kernel of generation cannot be used"):
        assert torch.equal(_past.read_tokens(bits, u, places, parts), by_step)


@here
@pytest.mark.parametrize("source", ["tokens", "embeddings", "tokens+own"])
@torch.no_grad()
def test_adapters_in_pieces(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """An adapter whose steps are the kernel's gives what it gives for the text at once, also beside padding."""
    monkeypatch.setattr(_past, "BLOCK_BYTES", 1)
    monkeypatch.setattr(RosaState, "device_bytes", 2 * 16 * 2 * 4)  # two blocks
    torch.manual_seed(3)
    config = RosaConfig(source=source, v_from="layer", window=6, bits=4, chain=3, e_start=0.3)
    made = RosaAdapter(32, config, device=DEVICE).eval()
    for x in (made.e0, made.e1, made.gain, made.gate.weight, made.gate.bias):
        x.copy_(torch.randn_like(x))
    for projection in (made.v_proj, *((made.q_proj, made.k_proj) if made.learns else ())):
        projection.weight.copy_(torch.eye(32))  # exact, in pieces of any size
    ids = torch.randint(0, 4, (2, 70), device=DEVICE)
    u = torch.randn(4, 32, device=DEVICE)[ids]
    valid = torch.rand(2, 70, device=DEVICE) > 0.2
    lookup = Lookup(config, 32, 4)
    monkeypatch.setattr(_triton, "module", lambda name, x: None)
    whole = made(u, valid=valid, found=lookup(ids, u, valid))
    assert whole[:, 8:].any()
    monkeypatch.setattr(_triton, "module", lambda name, x: _past._kernels() if name == "_step_kernels" else None)
    state, past, begin = RosaState(made, 2), lookup.start(2), 0
    for steps in (1, 20, 3, 1, 45):
        part = slice(begin, begin + steps)
        found = lookup(ids[:, part], u[:, part], valid[:, part], past)
        y = made(u[:, part], state=state, valid=valid[:, part], found=found)
        torch.testing.assert_close(y, whole[:, part], rtol=1e-5, atol=1e-5)
        begin += steps
    assert isinstance(state._past._kept, _past.Blocks) and len(state._past._kept._blocks) == 5


# -------------------------------------------------------------------------------------------- what is not here to run

KINDS = {
    **{name: "*bf16" for name in ("v", "y", "gy", "gv", "u", "gu", "x", "q", "k", "gq", "out", "weighed")},
    **{name: "*u8" for name in ("values", "slopes", "length")},
    **{name: "*i16" for name in ("symbol", "qsym", "ksym", "place")},
    **{name: "*i32" for name in ("tau", "entry", "first", "extra", "owner", "begin")},
    **{name: "*i32" for name in ("start", "kstart", "qstart", "number", "counts", "total", "token")},
    **{name: "*fp32" for name in ("gain", "z", "gz", "e0", "e1", "gweight", "parts", "sums", "weight", "bias")},
    **{name: "*fp32" for name in ("level", "size", "factor", "base", "gates", "back", "carry")},
    **{"scale": "fp32", "share": "fp32", "table": "*i64", "line": "*i64"},
}
# Of the read-out in routes, where names mean other things: destinations and symbols in two bytes, numbers of routes.
ROUTED = {"read": "*i16", "value": "*i16", "table": "*i16", "weight": "fp32"}
ROUTED.update(first="i32", last="i32", begin="i32")
STEP = dict(LINKS=4, GAIN=True, GATE=True, ROUTED=0, UNIT=32, ROWS=8, UNITS=32)
USES = dict(GAIN=True, GATE=True, SKIP=True)
PIECES = dict(READS=32, ENTRIES=2, COLUMNS=1024)
STRONG = dict(NARROW=True, WEIGHS=True, GAIN=True, GATE=True)


def tile(routes: int, steps: int) -> dict[str, int]:
    """Of 16 bits."""
    return dict(BITS=16, PLACES=16, ROUTES=routes, TIME=steps)


# Kernels with the constants that they have for SmolLM2's 576 channels, what their arguments are beside `KINDS`, and
# their warps.
BUILT: list[Any] = [
    ("_read_kernels", "_pack_kernel", dict(SLOPE=True, ROWS=64, BYTES=8), {}, 4),
    ("_read_kernels", "_read_kernel", dict(LINKS=4, TIME=16, COLUMNS=64, **USES), {}, 2),
    ("_read_kernels", "_level_kernel", dict(STEPS=128, TIME=16, COLUMNS=32, **USES), {}, 1),
    ("_read_kernels", "_strength_kernel", dict(GAIN=True, GATE=True, TIME=128, WIDE=16, BLOCKS=32), {}, 4),
    ("_read_kernels", "_piece_kernel", dict(GAIN=True, GATE=True, **PIECES), {}, 4),
    ("_read_kernels", "_value_kernel", dict(SLOPE=True, GAIN=True, GATE=True, MORE=8, **PIECES), {}, 4),
    ("_read_kernels", "_gate_kernel", dict(ROWS=4, COLUMNS=1024), {}, 4),
    ("_read_kernels", "_gate_back_kernel", dict(WHOLE=True, ROWS=64, COLUMNS=64), {}, 4),
    ("_read_kernels", "_gate_back_kernel", dict(WHOLE=False, ROWS=64, COLUMNS=64), {"gu": "*fp32"}, 4),
    ("_step_kernels", "_step_kernel", dict(APPEND=True, THERE=True, SHIFT=14, **STEP), {}, 4),
    ("_step_kernels", "_step_kernel", dict(APPEND=False, THERE=False, SHIFT=-1, **STEP), {"table": "*i32"}, 4),
    ("_kernels", "_pack_kernel", tile(8, 64), {"out": "*i16"}, 4),
    ("_kernels", "_read_kernel", dict(**STRONG, **tile(8, 32)), {"e0": "*bf16", "e1": "*bf16"}, 4),
    ("_kernels", "_level_kernel", dict(WIDE=16, **STRONG, **tile(4, 32)), {}, 8),
    ("_kernels", "_land_kernel", dict(NARROW=True, TOKENS=False, **tile(4, 32)), {}, 4),
    ("_kernels", "_land_kernel", dict(NARROW=True, TOKENS=True, **tile(4, 32)), {}, 4),
    ("_kernels", "_landed_kernel", dict(BASE=False, STRAIGHT=True, **tile(4, 32)), {}, 4),
    ("_kernels", "_landed_kernel", dict(BASE=True, STRAIGHT=False, **tile(4, 32)), {"total": "*i64"}, 4),
    ("_kernels", "_runs_kernel", dict(FOLD=True, BLOCK=2048), {}, 8),
    ("_kernels", "_flip_kernel", dict(NARROW=True, MATCH=True, **tile(4, 16)), {}, 4),
    ("_kernels", "_running_kernel", dict(CARRY=False, REVERSE=True, ROWS=8, COLUMNS=256), {}, 1),
    ("_kernels", "_clear_kernel", dict(TILE=64), {}, 4),
    ("_kernels", "_operand_kernel", dict(VALUE=False, TOKENS=False, o_c=1, BITS=16, STEPS=32, COLUMNS=128), {}, 4),
    ("_kernels", "_operand_kernel", dict(VALUE=True, TOKENS=False, o_t=1, BITS=16, STEPS=32, COLUMNS=128), {}, 4),
    ("_kernels", "_operand_kernel", dict(VALUE=True, TOKENS=True, o_t=1, BITS=16, STEPS=32, COLUMNS=128), {}, 4),
    ("_kernels", "_key_kernel", dict(FOLD=True, TERM=0, **tile(4, 64)), {}, 8),
    ("_kernels", "_query_kernel", dict(TERM=0, **tile(4, 64)), {}, 8),
    ("_kernels", "_query_gradient_kernel", dict(FOLD=True, TERM=0, SLOPE=True, KIND="bf16", **tile(4, 64)), {}, 8),
    ("_kernels", "_key_gradient_kernel", dict(FOLD=True, TERM=1, ADD=True, KIND="bf16", **tile(4, 64)), {}, 8),
]
# Numbers that are multiples of 16 there; of the others, the routes and the tiles for instance, nothing is known.
EVEN = {"channels", "per", "steps", "padded", "columns", "pitch", "area", "chunk", "gap", "x_b", "x_t", "gy_b", "gy_t"}
EVEN |= {"kept", "total_b"}
EVEN |= {"q_b", "q_t", "k_b", "k_t", "v_b", "v_t", "o_b", "o_r", "o_t", "o_c", "s_b", "s_r", "g_b", "g_r", "g_t"}


@pytest.mark.skipif(INTERPRETED, reason="the interpreter builds nothing")
@pytest.mark.parametrize("module, name, constants, kinds, warps", BUILT, ids=lambda x: x if isinstance(x, str) else "")
def test_kernels_build_for_hopper(module: str, name: str, constants: Any, kinds: Any, warps: int) -> None:
    """Without a device: down to machine code, with the wide accesses that memory wants."""
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    kernel = getattr(importlib.import_module(f"rosatune.torch.{module}"), name)
    names = kernel.arg_names
    kinds = {**KINDS, **(ROUTED if module == "_kernels" else {}), **kinds}
    constants = {each: tl.bfloat16 if value == "bf16" else value for each, value in constants.items()}
    signature = {each: "constexpr" if each in constants else kinds.get(each, "i32") for each in names}
    even = [each for each, kind in signature.items() if kind[0] == "*" or (kind == "i32" and each in EVEN)]
    source = ASTSource(
        kernel,
        signature,
        constexprs={(names.index(each),): value for each, value in constants.items()},
        attrs={(names.index(each),): [["tt.divisibility", 16]] for each in even},
    )
    try:
        built = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    except RuntimeError as error:
        if "ptxas" in str(error) and "Cannot find" in str(error):
            pytest.skip("Triton has no assembler here")
        raise
    assert ".global.v4" in built.asm["ptx"] and len(built.asm["cubin"]) > 0
