"""The operator in PyTorch: values, gradients, tracing, autocast, seeds, errors.

Gradients are those of objectives that autograd differentiates (surrogate.py), and those of tensor operations
(rosatune/torch/_gradients.py), which GPUs use, are those of C. CUDA tests skip where there is no such device.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import oracle  # noqa: E402
import surrogate  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import rosatune  # noqa: E402
from rosatune import _c, finder  # noqa: E402
from rosatune.torch import (  # noqa: E402
    _cuda,
    _device,
    _distinct,
    _gradients,
    _host,
    _operator,
    _pinned,
    _places,
    _settings,
    _strength,
    launch,
    retrieve_on,
    rosa,
)

CLOSE = 1e-5  # of the norm of the difference to the norm

RULES: list[dict[str, Any]] = [
    dict(qk_grad="none"),
    *(dict(qk_grad="flips", key_credit=credit) for credit in ("match", "destination")),
    *(
        dict(qk_grad=rule, credit=credit, suffix=suffix, **({"slope": 1.5} if rule == "soft" else {}))
        for rule in ("soft", "linear")
        for credit in ("all", "route")
        for suffix in (0.0, 0.6)
    ),
]
NAMES = ["-".join(str(value) for value in rule.values()) for rule in RULES]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def activations(
    rng: np.random.Generator, batch: int = 2, steps: int = 24, routes: int = 3, bits: int = 4, **kind: Any
) -> list[Tensor]:
    """q, k, v, e0, e1 whose symbols find each other; leaves that ask for gradients."""
    query, key = oracle.streams(rng, (batch, routes, steps), bits, letters=min(4, 1 << bits), repeat=0.3)
    found = []
    for symbols in (query, key):
        bit = (symbols.transpose(0, 2, 1)[..., None] >> np.arange(bits) & 1).reshape(batch, steps, -1)
        found.append(np.where(bit, 1, -1) * rng.uniform(0.1, 2, bit.shape))
    found += [rng.standard_normal(found[0].shape), *rng.standard_normal((2, routes * bits))]
    return [torch.tensor(x, dtype=torch.float32, **kind).requires_grad_() for x in found]


def direction(rng: np.random.Generator, like: Tensor) -> Tensor:
    return torch.tensor(rng.standard_normal(like.shape), dtype=like.dtype, device=like.device)


def gradients(inputs: list[Tensor], gy: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return torch.autograd.grad(rosa(*inputs, **options), inputs, gy)


def assert_close(found: Any, expected: Any, tolerance: float = CLOSE) -> None:
    for name, x, y in zip(("q", "k", "v", "e0", "e1"), found, expected):
        error = (x.double() - y.double()).norm()
        assert error <= tolerance * y.double().norm() + 1e-12, f"{name}: {error} of {y.norm()}"


def destinations(q: Tensor, k: Tensor, bits: int, **options: Any) -> np.ndarray:
    """[B, R, T], by the definition."""
    pairs = zip(surrogate.symbols(q, bits), surrogate.symbols(k, bits))
    return np.stack([oracle.retrieve(query, key, bits, **options).tau for query, key in pairs])


# --------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("policy", ["readable", "literal", "inclusive"])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("bits", [1, 4, 5, 16])
def test_values(rng: np.random.Generator, policy: str, fold: bool, bits: int) -> None:
    q, k, v, e0, e1 = activations(rng, bits=bits)
    y = rosa(q, k, v, e0, e1, bits=bits, policy=policy, fold=fold)
    tau = destinations(q, k, bits, policy=policy, fold=fold)
    assert (tau >= 0).mean() > 0.1
    expected = surrogate.read_out(v, e0, e1, tau, bits)
    torch.testing.assert_close(y, expected)
    assert torch.equal(y == 0, expected == 0)


def test_values_in_bfloat16_are_those_of_float32_rounded(rng: np.random.Generator) -> None:
    q, k, v, e0, e1 = activations(rng)
    half = [x.detach().bfloat16() for x in (q, k, v)]
    y = rosa(*half, e0, e1, bits=4)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, rosa(*(x.float() for x in half), e0, e1, bits=4).bfloat16())


def test_max_match_is_passed_on(rng: np.random.Generator) -> None:
    q, k, v, e0, e1 = activations(rng, steps=60)
    tau = destinations(q, k, 4, max_match=1)
    assert (tau != destinations(q, k, 4)).any()
    torch.testing.assert_close(rosa(q, k, v, e0, e1, bits=4, max_match=1), surrogate.read_out(v, e0, e1, tau, 4))


def test_rows_without_a_batch(rng: np.random.Generator) -> None:
    q, k, v, e0, e1 = activations(rng, batch=1)
    y = rosa(q, k, v, e0, e1, bits=4)
    alone = rosa(q[0], k[0], v[0], e0, e1, bits=4)
    assert torch.equal(y[0], alone)
    assert torch.equal(y[0], rosa(q[0], k[0], v[0], e0, e1, bits=4, pending=launch(q[0], k[0], bits=4)))


def test_views_are_taken_as_they_are(rng: np.random.Generator) -> None:
    q, k, v, e0, e1 = activations(rng)
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    assert not turned[0].is_contiguous()
    gy = direction(rng, q)
    assert torch.equal(rosa(q, k, v, e0, e1, bits=4), rosa(*turned, e0, e1, bits=4))
    assert_close(gradients([*turned, e0, e1], gy, bits=4), gradients([q, k, v, e0, e1], gy, bits=4), 0)


@pytest.mark.parametrize("batch, steps", [(0, 5), (2, 0), (1, 1)])
def test_next_to_nothing(batch: int, steps: int) -> None:
    inputs = [torch.zeros(batch, steps, 8, requires_grad=True) for _ in range(3)]
    inputs += [torch.ones(8, requires_grad=True) for _ in range(2)]
    for rule in ("linear", "soft", "flips", "none"):
        y = rosa(*inputs, bits=4, qk_grad=rule)
        assert y.shape == (batch, steps, 8) and not y.any()
        for x, g in zip(inputs, torch.autograd.grad(y.sum(), inputs)):
            assert g.shape == x.shape and not g.any()


def test_equal_levels_inject_nothing(rng: np.random.Generator) -> None:
    q, k, v, e0, _ = activations(rng)
    zero = torch.zeros_like(e0)
    assert not rosa(q, k, v, zero, zero, bits=4).any()


def test_destinations_are_as_wide_as_the_library_says() -> None:
    for steps in (0, 1, 65533, 65534, 65535, 65536, 1 << 20):
        assert _host.kept_dtype(steps).itemsize == _c.lib.rosa_width(steps)
    kept = torch.tensor([0, -1, 0x7FFF, -0x8000, -2], dtype=torch.int16)
    assert _gradients.wide(kept).tolist() == [0, -1, 0x7FFF, 0x8000, 0xFFFE]
    assert _gradients.wide(torch.tensor([-1, 70000], dtype=torch.int32)).tolist() == [-1, 70000]


def test_long_streams_keep_four_bytes(rng: np.random.Generator) -> None:
    steps = 65600
    q, k, v = (torch.tensor(rng.standard_normal((1, steps, 4)), dtype=torch.float32) for _ in range(3))
    inputs = [q.requires_grad_(), k, v, torch.zeros(4), torch.ones(4)]
    settings = _settings.make(bits=4, qk_grad="flips")
    there = _device.Found(*_operator.find(q, k, None, None, True, True, *settings))
    y, read, table = rosatune.torch.read(*inputs, there, settings), there.read, there.table
    assert read.dtype == table.dtype == torch.int32
    query, key = (surrogate.symbols(x, 4)[0].astype(np.uint16) for x in (q, k))
    np.testing.assert_array_equal(read.numpy(), rosatune.retrieve(query, key, bits=4))
    found = _gradients.read_out(_device._by_step(read, 1), v, inputs[3], inputs[4], 4)
    assert torch.equal(y, found)


# ------------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_gradients_are_those_of_the_objective(rng: np.random.Generator, rule: dict[str, Any], fold: bool) -> None:
    bits, policy = 4, "readable"
    inputs = activations(rng, bits=bits, routes=2)
    gy = direction(rng, inputs[0])
    found = gradients(inputs, gy, bits=bits, policy=policy, fold=fold, **rule)
    double = [x.detach().double().requires_grad_() for x in inputs]
    q, k, v, e0, e1 = double
    theta = (gy * (e1 - e0)).detach()
    objective = (surrogate.read_out(v, e0, e1, destinations(q, k, bits, fold=fold), bits) * gy).sum()
    if rule["qk_grad"] == "flips":
        objective = objective + surrogate.flips(q, k, v, theta, bits, fold, rule["key_credit"], policy)
    elif rule["qk_grad"] != "none":
        slope = rule.get("slope")
        objective = objective + surrogate.weighed(
            q, k, v, theta, bits, fold, rule["credit"], rule["suffix"], slope
        )
    expected = torch.autograd.grad(objective, double, allow_unused=True)
    if rule["qk_grad"] == "none":
        assert expected[0] is None and not found[0].any() and not found[1].any()
    else:
        assert found[0].any() and found[1].any()
    assert_close(found[2:] if expected[0] is None else found, expected[2:] if expected[0] is None else expected)


@pytest.mark.parametrize("bits", [1, 4, 16])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_tensor_operations_give_the_same(rng: np.random.Generator, rule: dict[str, Any], fold: bool, bits: int) -> None:
    """What GPUs compute, computed here, with exploration and a share of the flips."""
    inputs = [x.detach() for x in activations(rng, steps=70, bits=bits)]
    gy = direction(rng, inputs[0])
    settings = _settings.make(bits=bits, fold=fold, explore=0.2, flip_share=0.6, **rule)
    tables = rule["qk_grad"] == "flips"
    there = _device.Found(*_operator.find(*inputs[:2], torch.tensor(9), None, tables, True, *settings))
    y, read, table = rosatune.torch.read(*inputs, there, settings), there.read, there.table
    steps = _device._by_step(read, 2)
    assert torch.equal(y, _gradients.read_out(steps, *inputs[2:], bits))
    everything = (True,) * 5
    expected = _host.backward(gy, *inputs, read, table, everything, settings)
    # where one run takes nearly all the weight, `soft` is a small difference of large numbers in either
    tolerance = 1e-4 if rule["qk_grad"] == "soft" else CLOSE
    assert_close(_gradients.backward(gy, *inputs, steps, table, everything, settings), expected, tolerance)


def test_tensor_operations_carry_sums_from_chunk_to_chunk(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [x.detach() for x in activations(rng, steps=50)]
    gy = direction(rng, inputs[0])
    for rule in RULES:
        settings = _settings.make(bits=4, **rule)
        read, table, *_ = _operator.find(*inputs[:2], None, None, rule["qk_grad"] == "flips", True, *settings)
        arguments = (gy, *inputs, _device._by_step(read, 2), table, (True,) * 5, settings)
        whole = _gradients.backward(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(_gradients, "CHUNK", 7)
            patch.setattr(_gradients, "STRIP_BYTES", 1)
            assert_close(_gradients.backward(*arguments), whole)


def test_levels_by_finite_differences(rng: np.random.Generator) -> None:
    inputs = activations(rng)
    gy = direction(rng, inputs[0])
    found = gradients(inputs, gy, bits=4)
    q, k, v, e0, e1 = (x.detach() for x in inputs)
    for place, expected in ((3, found[3]), (4, found[4])):
        for c in range(len(e0)):
            values = []
            for step in (-0.5, 0.5):
                moved = [q, k, v, e0.clone(), e1.clone()]
                moved[place][c] += step
                values.append((rosa(*moved, bits=4).double() * gy).sum())
            assert abs(values[1] - values[0] - expected[c]) < 1e-4


def test_shared_q_and_k_sum_their_gradients(rng: np.random.Generator) -> None:
    _, k, v, e0, e1 = activations(rng)
    gy = direction(rng, k)
    separate = gradients([k.detach().clone().requires_grad_(), k, v, e0, e1], gy, bits=4)
    shared = torch.autograd.grad(rosa(k, k, v, e0, e1, bits=4), k, gy)[0]
    torch.testing.assert_close(shared, separate[0] + separate[1])


@pytest.mark.parametrize("rule", ["linear", "soft", "flips"])
def test_only_what_is_asked_for_is_computed(rng: np.random.Generator, rule: str) -> None:
    inputs = activations(rng)
    gy = direction(rng, inputs[0])
    everything = gradients(inputs, gy, bits=4, qk_grad=rule)
    for wanted in range(5):
        alone = [x.detach() for x in inputs]
        alone[wanted].requires_grad_()
        found = torch.autograd.grad(rosa(*alone, bits=4, qk_grad=rule), alone[wanted], gy)[0]
        torch.testing.assert_close(found, everything[wanted])


def test_gradients_keep_the_kind_of_what_they_belong_to(rng: np.random.Generator) -> None:
    inputs = activations(rng)
    for rule in RULES:
        half = [x.detach().bfloat16().requires_grad_() for x in inputs]
        gy = direction(rng, half[0])
        found = gradients(half, gy, bits=4, **rule)
        assert all(x.dtype == torch.bfloat16 for x in found)
        full = [x.detach().float().requires_grad_() for x in half]
        assert_close(found, gradients(full, gy.float(), bits=4, **rule), 0.01)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_threads_do_not_change_a_bit(rng: np.random.Generator, rule: dict[str, Any]) -> None:
    inputs = activations(rng, steps=100, routes=8)
    gy = direction(rng, inputs[0])
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(gradients(inputs, gy, bits=4, **rule))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(*found))


# ----------------------------------------------------------------------------------------- tracing, autocast, launching


@pytest.mark.parametrize("rule", ["linear", "soft", "flips", "none"])
@pytest.mark.parametrize("compact", [True, False])
def test_operator_is_well_formed(rng: np.random.Generator, rule: str, compact: bool) -> None:
    inputs = activations(rng)
    settings = _settings.make(bits=4, qk_grad=rule)
    q, k = (x.detach() for x in inputs[:2])
    torch.library.opcheck(_operator.find, (q, k, None, None, rule == "flips", compact, *settings))
    found = _operator.find(q, k, None, None, rule == "flips", compact, *settings)
    value = _operator.symbols(inputs[2].detach(), 4)
    torch.library.opcheck(_operator.symbols, (inputs[2].detach(), 4))
    gain, z = torch.rand(3, 10, requires_grad=True), torch.rand(2, 24, requires_grad=True)
    for strength, straight in (((None, None), False), ((gain, z), True)):
        scale = torch.tensor(0.3, dtype=torch.float64) if straight else None
        given = (*strength, *found, value, None, scale, straight, *settings)
        torch.library.opcheck(_operator.rosa, (*inputs, *given))
    inputs[2] = torch.randn(1, 5, inputs[2].shape[2], requires_grad=True)  # of distinct tokens
    token = torch.tensor(rng.integers(0, 5, (2, 24)), dtype=torch.int32)
    value = _distinct.symbols_by_step(_operator.symbols(inputs[2].detach(), 4), token)
    torch.library.opcheck(_operator.rosa, (*inputs, *strength, *found, value, token, *given[-2 - len(settings) :]))
    torch.library.opcheck(_operator.launch, (q, k, None, rule == "flips", compact, *settings))


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_values_of_distinct_tokens(rng: np.random.Generator, rule: dict[str, Any]) -> None:
    """What values gathered by step give; gradients of values are the same every time."""
    q, k, _, e0, e1 = activations(rng)
    v = torch.randn(1, 5, q.shape[2], requires_grad=True)
    token = torch.tensor(rng.integers(0, 5, (2, 24)), dtype=torch.int32)
    gain, z = torch.rand(3, 10, requires_grad=True), torch.rand(2, 24, requires_grad=True)
    strength = _strength.Strength(gain, z, torch.tensor(0.3, dtype=torch.float64))
    inputs, settings, gy = (q, k, v, e0, e1, gain, z), _settings.make(bits=4, **rule), direction(rng, q)
    found = rosatune.torch.find(q, k, launch(q, k, settings))
    results = []
    for values, by in ((v, token), (v, token), (v[0][token.long()], None)):
        y = rosatune.torch.read(q, k, values, e0, e1, found, settings, strength, True, by)
        results.append([y, *torch.autograd.grad(y, inputs, gy)])
    first, again, by_step = results
    assert all(torch.equal(x, y) for x, y in zip(first, again))
    gv, expected = first.pop(3), by_step.pop(3)
    assert all(torch.equal(x, y) for x, y in zip(first, by_step))
    assert expected.any()
    torch.testing.assert_close(gv, expected)


@pytest.mark.parametrize("rule", ["linear", "flips"])
def test_compiled_without_a_break(rng: np.random.Generator, rule: str) -> None:
    inputs = activations(rng)
    gy = direction(rng, inputs[0])

    def layer(q: Tensor, k: Tensor, v: Tensor, e0: Tensor, e1: Tensor) -> Tensor:
        pending = launch(q * 2, k * 2, bits=4, qk_grad=rule)
        return torch.tanh(rosa(q * 2, k * 2, v + 0.1, e0, e1, bits=4, qk_grad=rule, pending=pending))

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(layer(*inputs), inputs, gy)
    assert_close(torch.autograd.grad(compiled(*inputs), inputs, gy), expected, 1e-6)
    with torch.no_grad():
        assert torch.equal(compiled(*inputs), layer(*inputs))
    longer = activations(rng, steps=31)  # dynamic shapes
    assert torch.equal(compiled(*longer), layer(*longer))


def test_compiled_with_a_draw(rng: np.random.Generator) -> None:
    inputs = activations(rng)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: rosa(*x, bits=4, explore=1.0), fullgraph=True, backend="aot_eager")
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(compiled(*inputs))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_autocast(rng: np.random.Generator) -> None:
    u, _, _, e0, e1 = activations(rng)
    weights = [torch.eye(u.shape[-1], requires_grad=True) for _ in range(3)]
    gy = direction(rng, u).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = (torch.nn.functional.linear(u, weight) for weight in weights)
        assert q.dtype == torch.bfloat16
        y = rosa(q, k, v, e0, e1, bits=4)
    assert y.dtype == torch.bfloat16
    found = torch.autograd.grad(y, [*weights, e0, e1], gy)
    assert all(x.dtype == torch.float32 for x in found)
    half = [u.detach().bfloat16().requires_grad_() for _ in range(3)]
    assert torch.equal(y, rosa(*half, e0, e1, bits=4))
    assert_close(found[3:], gradients([*half, e0, e1], gy, bits=4)[3:])


def test_launched_or_not_is_the_same(rng: np.random.Generator) -> None:
    inputs = activations(rng)
    for options in (dict(), dict(qk_grad="flips"), dict(explore=0.5, seed=3)):
        pending = launch(*inputs[:2], bits=4, **options)
        y = rosa(*inputs, bits=4, **options)
        assert torch.equal(y, rosa(*inputs, bits=4, pending=pending, **options))
        assert torch.equal(y, rosa(*inputs, bits=4, pending=pending, **options)), "collected a second time"


def test_symbols_are_packed_alike(rng: np.random.Generator) -> None:
    for bits in (1, 3, 16):
        x = activations(rng, bits=bits)[0].detach()
        x[0, 0, 0], x[0, 1, 0], x[0, 2, 0] = 0.0, -0.0, torch.nan
        packed = _host.pack([x], bits, 1)[0]
        assert torch.equal(packed, _device.host_layout(x, bits))
        assert torch.equal(packed, _host.pack([x.clone()], bits, 2)[0])
        np.testing.assert_array_equal(
            packed.numpy().view(np.uint16), surrogate.symbols(x, bits).reshape(packed.shape)
        )


class _Nothing:
    """Stands in for streams and events where there is no GPU: everything has happened already."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    wait_event = synchronize = record


def test_the_way_over_a_device(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The course of a retrieval for a GPU: tickets, the worker, what it hands back."""
    for name in ("Stream", "Event", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, _Nothing)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **kind: empty(*shape, **kind))
    monkeypatch.setattr(_device, "KEPT", 2)
    inputs = [x.detach() for x in activations(rng)]
    q, k = inputs[:2]
    for options in (dict(), dict(qk_grad="flips", flip_share=0.5), dict(explore=0.5)):
        settings = _settings.make(bits=4, **options)
        tables = settings.qk_grad == "flips"
        rest = (settings, tables, True, 5)
        expected = _operator.find(q, k, torch.tensor(5), None, tables, True, *settings)
        tickets = [_device.launch(q, k, *rest) for _ in range(3)]
        for ticket in (tickets[2], tickets[2], tickets[0]):  # known, collected already, forgotten
            for found, wanted in zip(_device.collect(ticket, q, k, *rest)[:3], expected):
                assert torch.equal(found, wanted)
        with pytest.raises(ValueError, match=r"launched for q of shape \[2, 24, 12\]"):
            _device.collect(tickets[1], q[:, 1:], k[:, 1:], *rest)
    monkeypatch.setattr(_device, "record", [])
    same = _device.Retrieval(k, k, _settings.make(bits=4), False, True, 0).collect()[0]
    np.testing.assert_array_equal(_gradients.wide(same).numpy(), destinations(k, k, 4).reshape(same.shape))
    assert _device.record is not None and {"pack", "packed", "copied", "retrieve", "back"} <= set(_device.record[0])
    with pytest.raises(ValueError, match="policy"):  # the worker's errors come to the caller
        _device.Retrieval(q, k, settings._replace(policy="none"), False, True, 0).collect()
    _device._forget()


def by_the_host(name: str, *arguments: Any) -> None:
    """Stands in for a CUDA device whose memory is the host's."""
    if name == "rosa_cuda_open":
        arguments[2]._obj.value = 1
        return
    if name == "rosa_cuda_queue":
        memory, size = arguments[9], arguments[10]._obj
        if memory is None:
            size.value = 1000
            return
        arguments = (*arguments[:9], arguments[11])
        assert size.value == 1000
    else:
        assert name == "rosa_cuda_retrieve_device"
    assert arguments[0] == 1 and arguments[8] is None and arguments[9] == 77
    _c.call("rosa_retrieve", *arguments[1:8], None)


def test_retrieval_on_a_device(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device finds is kept as what the host finds, and passes that the device does not serve use the host."""
    for name in ("Stream", "Event", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, _Nothing)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(_Nothing, "cuda_stream", 77, raising=False)
    monkeypatch.setattr(_cuda, "_c", SimpleNamespace(call=by_the_host))
    monkeypatch.setattr(_cuda, "_opened", {})
    monkeypatch.setattr(_cuda, "_where", "host")
    with pytest.raises(ValueError, match="'host', 'device' or 'auto'"):
        retrieve_on("gpu")
    cpu = torch.device("cpu")
    for steps, options in ((24, dict()), (40000, dict(bits=1)), (70000, dict(bits=1, fold=False)), (0, dict())):
        settings = _settings.make(**{"bits": 4, **options})._replace(delay=2)
        q, k = torch.tensor(rng.standard_normal((2, 1, steps, 2 * settings.bits)), dtype=torch.float32)
        rest = (settings, False, True, 0)
        expected = _operator.find(q, k, None, None, False, True, *settings)
        retrieve_on("device")
        assert _cuda.serves(settings, False, (1, steps), cpu) == (True, None)
        for recorded in (False, True):
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda answer=recorded: answer)
            for found, wanted in zip(_device.Retrieval(q, k, *rest).collect()[:3], expected):
                assert found.dtype == wanted.dtype and torch.equal(found, wanted)
        retrieve_on("host")
    with pytest.raises(rosatune.InvalidArgument, match=r"cannot look up q and k on the host: call .*retrieve_on\('device'\)"):
        _device.Retrieval(q, k, *rest)
    retrieve_on("device")
    for given, tables in ((settings, True), (settings._replace(explore=0.5), False)):
        assert _cuda.serves(given, tables, (1, 9), cpu) == (False, None)
    retrieve_on("host")
    assert _cuda.serves(settings, False, (1, 9), cpu) == (False, None)
    _device._forget()


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_memory_that_cannot_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a driver: said once, and copies come from ordinary memory."""
    monkeypatch.setattr(_pinned, "_refused", False)
    x = torch.arange(3)
    with pytest.warns(RuntimeWarning, match="cannot be pinned .* are waited for instead"):
        assert _pinned.pinned(x) is x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = _pinned.empty((2, 3), torch.int32)
        assert made.shape == (2, 3) and made.dtype == torch.int32 and not made.is_pinned()
        found = finder.Places(np.ones((1, 1, 1, 4), np.int32), np.ones((1, 1, 1, 4), np.uint8))
        cuda = SimpleNamespace(type="cuda")
        monkeypatch.setattr(Tensor, "to", lambda staged, device, non_blocking: staged)
        for there, here in zip(_places.to_tensors(found, cuda), found):  # type: ignore[arg-type]
            assert there is None or np.array_equal(there.numpy(), here)


@pytest.mark.parametrize("faster", ["host", "device"])
def test_the_faster_of_host_and_device(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, faster: str
) -> None:
    """Both are tried, each result is used, and the faster is kept, for each shape."""
    for name in ("Stream", "Event", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, _Nothing)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(_Nothing, "cuda_stream", 77, raising=False)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **kind: empty(*shape, **kind))
    monkeypatch.setattr(_cuda, "_c", SimpleNamespace(call=by_the_host))
    monkeypatch.setattr(_cuda, "_opened", {})
    monkeypatch.setattr(_cuda, "_where", "host")
    ways = []
    note, find = _cuda.Costs.note, _cuda.find
    # a first try is slow, whatever comes after
    monkeypatch.setattr(_cuda.Costs, "note", lambda costs, kind, way, _: note(
        costs, kind, way, (9.0 if len(costs._seconds[kind][way]) == 0 else 1.0) + (way != faster)))  # fmt: skip
    monkeypatch.setattr(_cuda, "find", lambda *given: ways.append("device") or find(*given))
    settings = _settings.make(bits=4)
    retrieve_on("auto")
    for steps in (24, 30):
        q, k = torch.tensor(rng.standard_normal((2, 1, steps, 8)), dtype=torch.float32)
        expected = _operator.find(q, k, None, None, False, True, *settings)
        taken = []
        for _ in range(7):
            before = len(ways)
            for found, wanted in zip(_device.Retrieval(q, k, settings, False, True, 0).collect()[:3], expected):
                assert torch.equal(found, wanted)
            taken.append("device" if len(ways) > before else "host")
        assert taken == ["host", "device"] * 2 + [faster] * 3
    _device._forget()


def test_auto_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning, and the host from then on."""
    def missing(*_: Any) -> None:
        raise rosatune.DeviceError("librosatune_cuda.so is not there")

    monkeypatch.setattr(_cuda, "_c", SimpleNamespace(call=missing))
    monkeypatch.setattr(_cuda, "_opened", {})
    monkeypatch.setattr(_cuda, "_where", "host")
    retrieve_on("auto")
    with pytest.warns(RuntimeWarning, match="stays with the host: librosatune_cuda") as seen:
        for _ in range(3):
            assert _cuda.serves(_settings.make(bits=4), False, (1, 9), torch.device("cpu")) == (False, None)
    assert len(seen) == 1


@needs_cuda
def test_device_and_host_find_the_same(rng: np.random.Generator) -> None:
    inputs = [x.detach().cuda() for x in activations(rng, batch=3, steps=700, routes=40)]
    expected = rosa(*inputs, bits=4, qk_grad="linear")
    for where, passes in (("device", 1), ("auto", 6)):
        retrieve_on(where)
        try:
            for _ in range(passes):
                assert torch.equal(rosa(*inputs, bits=4, qk_grad="linear"), expected)
        except rosatune.DeviceError as missing:
            pytest.skip(str(missing))
        finally:
            retrieve_on("host")


@needs_cuda
def test_a_recorded_step_looks_up_on_the_device(rng: np.random.Generator) -> None:
    """Forward and backward in a CUDA graph: replayed with other symbols it finds what a launched pass finds."""
    shape = dict(batch=2, steps=600, routes=6)
    held = [x.detach().cuda().requires_grad_() for x in activations(rng, **shape)]

    def work() -> list[Tensor]:
        y = rosa(*held, bits=4, qk_grad="linear")
        return [y.detach(), *torch.autograd.grad(y.square().sum(), held)]

    retrieve_on("device")
    try:
        beside = torch.cuda.Stream()
        with torch.cuda.stream(beside):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            recorded = work()
        for _ in range(2):
            with torch.no_grad():
                for to, x in zip(held, activations(rng, **shape)):
                    to.copy_(x)
            graph.replay()
            for found, wanted in zip(recorded, work()):
                assert torch.equal(found, wanted)
    except rosatune.DeviceError as missing:
        pytest.skip(str(missing))
    finally:
        retrieve_on("host")


def test_packing_in_pieces(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (x.detach() for x in activations(rng, batch=3, steps=29)[:2])
    whole = _host.pack([x, y, x], 4, 1)
    assert whole[0] is whole[2]
    monkeypatch.setattr(_host, "PIECE", 60)
    for some, expected in zip(_host.pack([x, y, x], 4, 3), whole):
        assert torch.equal(some, expected)


# ---------------------------------------------------------------------------------------------------------------- draws


def explored(inputs: list[Tensor], **options: Any) -> np.ndarray:
    """The destinations really read, [B, R, T]."""
    settings = _settings.make(bits=4, **options)
    read = _operator.find(*inputs[:2], torch.tensor(4), None, False, True, *settings)[0]
    return _gradients.wide(read).numpy().reshape(2, -1, read.shape[-1])


def test_exploration(rng: np.random.Generator) -> None:
    inputs = activations(rng, steps=400)
    tau = destinations(inputs[0], inputs[1], 4)
    keys = surrogate.symbols(inputs[1], 4)
    np.testing.assert_array_equal(explored(inputs), tau)
    read = explored(inputs, explore=0.25)
    moved = (read != tau).mean()
    assert 0.15 < moved < 0.26
    everywhere = explored(inputs, explore=1.0)
    for b, r, t in np.ndindex(everywhere.shape):
        starts = surrogate.starts_of(keys[b, r], True)[1:]
        assert everywhere[b, r, t] in [start for start in starts if start < t] or not starts or t <= starts[0]


def test_exploration_belongs_to_learning(rng: np.random.Generator) -> None:
    inputs = activations(rng)
    plain = rosa(*inputs, bits=4)
    state = torch.get_rng_state()
    with torch.no_grad():
        assert torch.equal(rosa(*inputs, bits=4, explore=1.0), plain)
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn without gradients"
    drawn = rosa(*inputs, bits=4, explore=1.0)
    assert not torch.equal(drawn, plain)
    torch.set_rng_state(state)
    assert torch.equal(rosa(*inputs, bits=4, explore=1.0), drawn)
    seeded = rosa(*inputs, bits=4, explore=1.0, seed=7)
    with torch.no_grad():
        assert torch.equal(rosa(*inputs, bits=4, explore=1.0, seed=7), seeded)
    assert not torch.equal(rosa(*inputs, bits=4, explore=1.0, seed=8), seeded)


def test_share_of_flips_is_unbiased(rng: np.random.Generator) -> None:
    inputs = activations(rng, steps=12, routes=2)
    gy = direction(rng, inputs[0])
    whole = gradients(inputs, gy, bits=4, qk_grad="flips")
    trials = [gradients(inputs, gy, bits=4, qk_grad="flips", flip_share=0.5, seed=seed) for seed in range(400)]
    for wanted in (0, 1):
        values = torch.stack([trial[wanted] for trial in trials])
        error = (values.mean(0) - whole[wanted]).norm() / whole[wanted].norm()
        assert error < 0.15 and not torch.equal(values[0], values[1])
    assert_close([trials[0][2]] * 5, [whole[2]] * 5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_reproduces(rng: np.random.Generator, reentrant: bool) -> None:
    inputs = activations(rng)
    gy = direction(rng, inputs[0])

    def layer(*x: Tensor) -> Tensor:
        seed = torch.randint(0, 2**62, ())
        return rosa(*x, bits=4, explore=0.5, qk_grad="flips", flip_share=0.5, seed=seed)

    found = []
    for run in (layer, lambda *x: checkpoint(layer, *x, use_reentrant=reentrant)):
        torch.manual_seed(11)
        y = run(*inputs)
        y.backward(gy)
        found.append([y.detach(), *(x.grad for x in inputs)])
        for x in inputs:
            x.grad = None
    assert all(torch.equal(x, y) for x, y in zip(*found))


def test_checkpointing_reproduces_draws_of_its_own(rng: np.random.Generator) -> None:
    inputs = activations(rng)
    gy = direction(rng, inputs[0])
    options = dict(bits=4, explore=0.5, qk_grad="flips", flip_share=0.5)
    torch.manual_seed(11)
    expected = gradients(inputs, gy, **options)
    torch.manual_seed(11)
    y = checkpoint(lambda *x: rosa(*x, **options), *inputs, use_reentrant=False)
    assert_close(torch.autograd.grad(y, inputs, gy), expected, 0)


# --------------------------------------------------------------------------------------------------------------- errors


def test_errors(rng: np.random.Generator) -> None:
    q, k, v, e0, e1 = (x.detach() for x in activations(rng))
    good = dict(q=q, k=k, v=v, e0=e0, e1=e1, bits=4)

    def fails(kind: type, words: str, **changed: Any) -> None:
        with pytest.raises(kind, match=words):
            rosa(**{**good, **changed})

    rosa(**good)
    fails(ValueError, "12 channels.* 5 bits", bits=5)
    fails(ValueError, "bits", bits=0)
    fails(ValueError, "bits", bits=17)
    fails(TypeError, "bits", bits=4.0)
    fails(ValueError, r"k has shape \[2, 23, 12\]", k=k[:, 1:])
    fails(ValueError, "v has shape", v=v[0])
    fails(ValueError, "q has shape", q=q[None], k=k[None], v=v[None])
    fails(ValueError, r"e0 has shape \[11\]", e0=e0[1:])
    fails(TypeError, "float16.*bfloat16", q=q.half(), k=k.half(), v=v.half())
    fails(TypeError, "k is torch.bfloat16 and q torch.float32", k=k.bfloat16())
    fails(TypeError, "float64", v=v.double())
    fails(TypeError, "e1 is torch.int64", e1=e1.long())
    fails(TypeError, "q is a list", q=[1.0])
    fails(ValueError, "k is on meta", k=k.to("meta"))
    fails(ValueError, "e0 is on meta", e0=e0.to("meta"))
    fails(ValueError, "policy is 'newest'", policy="newest")
    fails(ValueError, "qk_grad is 'hard'", qk_grad="hard")
    fails(ValueError, "credit is 'none'", credit="none")
    fails(ValueError, "key_credit is 'all'", key_credit="all")
    fails(ValueError, "max_match", max_match=0)
    fails(ValueError, "explore is 1.5", explore=1.5)
    fails(ValueError, "explore is nan", explore=float("nan"))
    fails(ValueError, "flip_share is 0", flip_share=0)
    fails(ValueError, "suffix is -1", suffix=-1)
    fails(ValueError, "slope is 0", slope=0.0)
    fails(ValueError, "slope is inf", slope=float("inf"))
    fails(TypeError, "slope is '1'", slope="1")
    fails(ValueError, "seed is -1", explore=0.5, seed=-1)


def test_pending_of_something_else(rng: np.random.Generator) -> None:
    inputs = activations(rng)
    pending = launch(*inputs[:2], bits=4)
    with pytest.raises(ValueError, match="pending was launched with"):
        rosa(*inputs, bits=4, fold=False, pending=pending)
    with torch.no_grad():
        pending = launch(*inputs[:2], bits=4, qk_grad="flips")
    with pytest.raises(ValueError, match="without gradients"):
        rosa(*inputs, bits=4, qk_grad="flips", pending=pending)


def test_no_second_derivative(rng: np.random.Generator) -> None:
    inputs = activations(rng)
    y = rosa(*inputs, bits=4)
    first = torch.autograd.grad(y, inputs[2], torch.ones_like(y), create_graph=True)[0]
    with pytest.raises(RuntimeError):
        torch.autograd.grad(first.sum(), inputs[2])


# ----------------------------------------------------------------------------------------------------------------- CUDA


@needs_cuda
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_cuda_gives_the_same(rng: np.random.Generator, rule: dict[str, Any], kind: Any) -> None:
    inputs = [x.detach() for x in activations(rng, steps=300)]
    here = [x.to(kind).requires_grad_() for x in inputs[:3]] + [x.requires_grad_() for x in inputs[3:]]
    there = [x.detach().cuda().requires_grad_() for x in here]
    gy = direction(rng, here[0])
    options = dict(bits=4, explore=0.2, flip_share=0.6, seed=5, **rule)
    pending = launch(*there[:2], **options)
    y = rosa(*there, pending=pending, **options)
    assert torch.equal(y.cpu(), rosa(*here, **options))
    found = torch.autograd.grad(y, there, gy.cuda())
    tolerance = 2e-4 if kind == torch.float32 else 0.02
    assert_close([x.cpu() for x in found], gradients(here, gy, **options), tolerance)


@needs_cuda
def test_cuda_tickets(rng: np.random.Generator) -> None:
    inputs = [x.detach().cuda() for x in activations(rng)]
    expected = rosa(*inputs, bits=4)
    pending = [launch(*inputs[:2], bits=4) for _ in range(_device.KEPT + 8)]
    for each in (pending[0], pending[-1], pending[-1]):  # forgotten, known, collected already
        assert torch.equal(rosa(*inputs, bits=4, pending=each), expected)
    other = [x[:, :7] for x in inputs[:3]] + inputs[3:]
    with pytest.raises(ValueError, match="launched for q of shape"):
        rosa(*other, bits=4, pending=pending[-2])
    _device._under_way.clear()


@needs_cuda
def test_cuda_compiled(rng: np.random.Generator) -> None:
    inputs = activations(rng, device="cuda")
    gy = direction(rng, inputs[0])

    def layer(q: Tensor, k: Tensor, v: Tensor, e0: Tensor, e1: Tensor) -> Tensor:
        pending = launch(q * 2, k, bits=4)
        return rosa(q * 2, k, v, e0, e1, bits=4, pending=pending) * 3

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    expected = torch.autograd.grad(layer(*inputs), inputs, gy)
    assert_close(torch.autograd.grad(compiled(*inputs), inputs, gy), expected)
    with torch.inference_mode():
        assert torch.equal(layer(*inputs), compiled(*inputs))
