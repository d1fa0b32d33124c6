"""The adapter and its state: starts, gradients, pieces, padding, beams, copies, numbers to watch."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import rosatune  # noqa: E402
from rosatune import RosaConfig, _c  # noqa: E402
from rosatune.nn import Gate, RosaAdapter, RosaState  # noqa: E402
from rosatune.torch import _cuda, retrieve_on, rosa  # noqa: E402

CHANNELS, BITS, BATCH, STEPS = 24, 4, 3, 40


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


def adapter(**options: Any) -> RosaAdapter:
    """An adapter of the paper's kind that reads something; test_sources.py has the others."""
    kind = {name: options.pop(name) for name in ("device", "dtype") if name in options}
    return RosaAdapter(CHANNELS, RosaConfig.paper(**{"bits": BITS, "e_start": 0.5, **options}), **kind)


def exact(**options: Any) -> RosaAdapter:
    """The same with projections that only pick and negate channels, so that they never round.

    Products of other matrices may differ in their last bits between a whole text and its pieces, and a bit of a symbol
    with them.
    """
    made = adapter(**options)
    with torch.no_grad():
        for projection in (made.k_proj, made.v_proj):
            order = torch.randperm(CHANNELS)
            sign = torch.where(torch.rand(CHANNELS) < 0.5, -1.0, 1.0)
            projection.weight.copy_(torch.diag(sign)[order])
        if made.qk != "shared":
            made.q_proj.weight.copy_(made.k_proj.weight)
    return made.eval()


def text(batch: int = BATCH, steps: int = STEPS) -> Tensor:
    """Rows of a few different vectors: there is something to find."""
    return torch.randn(6, CHANNELS)[torch.randint(0, 6, (batch, steps))]


def in_pieces(made: RosaAdapter, u: Tensor, state: RosaState, sizes: list[int], valid: Any = None) -> Tensor:
    parts, begin = [], 0
    for size in sizes:
        part = slice(begin, begin + size)
        parts.append(made(u[:, part], state=state, valid=None if valid is None else valid[:, part]))
        begin += size
    return torch.cat(parts, 1)


# -------------------------------------------------------------------------------------------------------------- adapter


def test_starts_silent() -> None:
    made = adapter(e_start=0)
    inj = made(text())
    assert inj.shape == (BATCH, STEPS, CHANNELS) and not inj.any()
    assert torch.equal(made.q_proj.weight, made.k_proj.weight)
    assert torch.equal(made.out_proj.weight, torch.eye(CHANNELS))
    assert not made.e0.any() and not made.e1.any()
    inj.sum().backward()
    assert made.e0.grad.any() and made.e1.grad.any(), "silent, but it learns"


def test_starts() -> None:
    names = {"k_proj.weight", "v_proj.weight", "out_proj.weight", "e0", "e1"}
    assert set(dict(adapter(qk="shared").named_parameters())) == names
    separate = adapter(qk="separate", fusion="pre")
    assert set(dict(separate.named_parameters())) == names | {"q_proj.weight", "a0"}
    assert not torch.equal(separate.q_proj.weight, separate.k_proj.weight)
    assert (separate.e0 == -0.5).all() and (separate.e1 == 0.5).all()
    bound = (6 / (2 * CHANNELS)) ** 0.5
    for projection in (separate.q_proj, separate.k_proj, separate.v_proj):
        assert 0.9 * bound < projection.weight.abs().max() <= bound
    kept = copy.deepcopy(separate.state_dict())
    with torch.no_grad():
        for weight in separate.parameters():
            weight.fill_(7)
    torch.manual_seed(1)
    separate.reset_parameters()
    again = separate.state_dict()
    assert all(torch.equal(again[name], kept[name]) for name in ("out_proj.weight", "e0", "e1", "a0"))
    assert separate.k_proj.weight.abs().max() <= bound
    typed = adapter(dtype=torch.bfloat16, device="cpu")
    assert all(weight.dtype == torch.bfloat16 for weight in typed.parameters())
    assert typed(text().bfloat16()).dtype == torch.bfloat16


def test_forward_is_the_operator_between_projections() -> None:
    u = text()
    for qk in ("aligned", "separate", "shared"):
        made = adapter(qk=qk, qk_grad="soft", suffix=0.5, credit="route")
        q = made.k_proj(u) if qk == "shared" else made.q_proj(u)
        y = rosa(q, made.k_proj(u), made.v_proj(u), made.e0, made.e1, bits=BITS, qk_grad="soft", suffix=0.5,
                 credit="route")  # fmt: skip
        inj, gout = made.out_proj(y), torch.randn(u.shape)
        expected = torch.autograd.grad(inj, list(made.parameters()), gout)
        found = made.collect(made.launch(u))
        assert torch.equal(found, inj) and found.any()
        for one, other in zip(torch.autograd.grad(found, list(made.parameters()), gout), expected):
            torch.testing.assert_close(one, other)


def test_pre_fusion_starts_at_the_hidden_state() -> None:
    made = adapter(e_start=0, fusion="pre")
    h = torch.randn(BATCH, STEPS, CHANNELS)
    mixed = made.mix(h, made(nn.functional.rms_norm(h, (CHANNELS,))))
    assert torch.equal(mixed, h / 2)
    torch.testing.assert_close(nn.functional.rms_norm(mixed, (CHANNELS,)), nn.functional.rms_norm(h, (CHANNELS,)))
    mixed.sum().backward()
    assert made.a0.grad.any()
    with pytest.raises(ValueError, match="pre fusion"):
        adapter().mix(h, h)


def test_retrieval_can_be_switched_off() -> None:
    made, u = adapter(), text()
    assert made(u).any()
    made.retrieve = False
    assert not made(u).any()
    state = RosaState(made, BATCH)
    with torch.no_grad():
        assert not made(u, state=state).any() and state.steps == STEPS
    assert "reads='nothing'" in repr(made) and made.reads == "nothing"
    made.retrieve = True
    assert made.reads == "found" and made(u).any()
    with pytest.raises(ValueError, match="reads is 'all'; give one of 'found', 'nothing', 'random'"):
        made.reads = "all"


def test_repr_names_what_was_chosen() -> None:
    made = adapter(policy="literal", suffix=0.5, max_match=9)
    assert "bits=4" in repr(made) and "policy='literal'" in repr(made) and "suffix=0.5" in repr(made)
    assert "max_match=9" in repr(made) and "explore" not in repr(made)


def test_exploration_follows_the_mode() -> None:
    made, u = adapter(explore=1.0), text()
    plain = made.eval()(u)
    assert torch.equal(made(u), plain)
    made.train()
    torch.manual_seed(5)
    drawn = made(u)
    assert not torch.equal(drawn, plain)
    torch.manual_seed(5)
    assert torch.equal(made(u), drawn)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("rule", ["linear", "flips"])
def test_checkpointing(rule: str, reentrant: bool) -> None:
    made = adapter(explore=0.5, qk_grad=rule, flip_share=0.5)
    drop = nn.Dropout(0.5)  # draws after the adapter, in the same pass
    u, gout = text().requires_grad_(), torch.randn(BATCH, STEPS, CHANNELS)
    found = []
    for run in (lambda x: drop(made(x)), lambda x: checkpoint(lambda x: drop(made(x)), x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        u.grad = None
        made.zero_grad()
        inj = run(u)
        inj.backward(gout)
        found.append([inj.detach(), u.grad, *(weight.grad for weight in made.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found))


def test_compiled() -> None:
    made, u = adapter(), text()
    valid = torch.rand(BATCH, STEPS) > 0.2

    def layer(u: Tensor, valid: Tensor) -> Tensor:
        pending = made.launch(u, valid=valid)
        attended = torch.tanh(u)
        return u + attended + made.collect(pending)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u, valid), layer(u, valid))
    weights = list(made.parameters())
    expected = torch.autograd.grad(layer(u, valid).square().sum(), weights)
    for one, other in zip(torch.autograd.grad(compiled(u, valid).square().sum(), weights), expected):
        torch.testing.assert_close(one, other)


def test_copies_and_pickles() -> None:
    made, u = adapter(suffix=0.5), text()
    made.watch = True
    expected = made(u)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(twin(u), expected) and twin.settings == made.settings
    fresh = adapter(suffix=0.5)
    fresh.load_state_dict(made.state_dict())
    assert torch.equal(fresh(u), expected)


def test_errors() -> None:
    for words, options in (
        ("24 channels are not a multiple of bits 5; bits may be 1, 2, 3, 4, 6, 8, 12", dict(bits=5)),
        ("fusion is 'mid'", dict(fusion="mid")),
        ("qk is 'tied'", dict(qk="tied")),
        ("qk_grad is 'hard'", dict(qk_grad="hard")),
        ("policy", dict(policy="newest")),
    ):
        with pytest.raises(ValueError, match=words):
            adapter(**options)
    made, u = adapter(), text()
    with pytest.raises(ValueError, match=r"u has shape \[40, 24\]"):
        made(u[0])
    with pytest.raises(ValueError, match="u has shape"):
        made(u[..., :20])
    with pytest.raises(ValueError, match=r"valid is torch.bool of shape \[3, 39\]"):
        made(u, valid=torch.ones(BATCH, STEPS - 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="valid is torch.int64"):
        made(u, valid=torch.ones(BATCH, STEPS, dtype=torch.int64))
    with pytest.raises(ValueError, match="nothing is learnt"):
        made(u, state=RosaState(made, BATCH))
    with torch.no_grad(), pytest.raises(ValueError, match="3 rows come to a state of 4 rows"):
        made(u, state=RosaState(made, BATCH + 1))
    with pytest.raises(ValueError, match="batch is 0"):
        RosaState(made, 0)


# -------------------------------------------------------------------------------------------------------------- padding


def test_padding_is_not_there() -> None:
    made, u = exact(), text()
    valid = torch.rand(BATCH, STEPS) > 0.3
    inj = made(u, valid=valid)
    for row in range(BATCH):
        alone = made(u[row : row + 1, valid[row]])[0]
        assert alone.any() and torch.equal(inj[row, valid[row]], alone)
        assert not inj[row, ~valid[row]].any()


def test_padding_has_no_part_in_gradients() -> None:
    made = adapter()
    u = text()
    gout = torch.randn(u.shape)
    valid = torch.ones(BATCH, STEPS, dtype=torch.bool)
    valid[0, :7], valid[1, -9:], valid[2, 3::4] = False, False, False
    weights = list(made.parameters())
    found = torch.autograd.grad((made(u, valid=valid) * gout).sum(), weights)
    total = sum((made(u[row : row + 1, valid[row]]) * gout[row, valid[row]]).sum() for row in range(BATCH))
    for one, other in zip(found, torch.autograd.grad(total, weights)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("qk", ["aligned", "shared"])
@pytest.mark.parametrize("sizes", [[STEPS], [1] * STEPS, [17, 1, 1, 1, 20], [0, 13, 27]])
@torch.no_grad()
def test_pieces_are_the_whole(sizes: list[int], qk: str) -> None:
    made, u = exact(qk=qk), text()
    state = RosaState(made, BATCH)
    assert torch.equal(in_pieces(made, u, state, sizes), made(u))
    assert state.steps == STEPS and state.lengths == [STEPS] * BATCH and state.bytes > 0
    assert "steps=40" in repr(state)


@torch.no_grad()
def test_padding_in_pieces() -> None:
    made, u = exact(), text()
    valid = torch.rand(BATCH, STEPS) > 0.3
    valid[0, :12] = False  # padding to the left, whole pieces of it
    whole = made(u, valid=valid)
    state = RosaState(made, BATCH)
    assert torch.equal(in_pieces(made, u, state, [10, 1, 1, 28], valid), whole)
    assert state.lengths == valid.sum(1).tolist() and state.steps == STEPS
    for steps in (1, 5, 20):
        state.rewind(steps)
        rest = slice(STEPS - steps, None)
        assert state.lengths == valid[:, : STEPS - steps].sum(1).tolist()
        assert torch.equal(made(u[:, rest], state=state, valid=valid[:, rest]), whole[:, rest])


@torch.no_grad()
def test_rewinding() -> None:
    made, u = exact(), text()
    whole = made(u)
    state = RosaState(made, BATCH)
    made(u, state=state)
    for steps in (0, 1, 7, STEPS):
        state.rewind(steps)
        assert state.steps == STEPS - steps
        made(text(steps=2), state=state)  # a draft that is thrown away
        state.rewind(2)
        rest = slice(STEPS - steps, None)
        assert torch.equal(made(u[:, rest], state=state), whole[:, rest])
    for steps in (-1, STEPS + 1):
        with pytest.raises(ValueError, match="the state holds 40"):
            state.rewind(steps)
    state.reset()
    assert state.steps == 0 and torch.equal(made(u, state=state), whole)


@torch.no_grad()
def test_beams() -> None:
    made, u = exact(), text(2, 30)
    state = RosaState(made, 2)
    made(u, state=state)
    state.reorder([0, 0, 0, 1, 1, 1])
    assert state.batch == 6
    history = u.repeat_interleave(3, 0)
    for step in range(6):
        more = text(6, 1)
        history = torch.cat([history, more], 1)
        assert torch.equal(made(more, state=state), made(history)[:, -1:])
        order = torch.tensor([1, 1, 0, 5, 3, 3]) if step % 2 else torch.tensor([0, 2, 1, 4, 4, 4])
        state.reorder(order)
        history = history[order]
    state.reorder([4, 0])
    more = text(2, 3)
    assert torch.equal(made(more, state=state), made(torch.cat([history[[4, 0]], more], 1))[:, -3:])
    for wrong in ([2], [-1], []):
        with pytest.raises(ValueError, match="indices"):
            state.reorder(wrong)


@torch.no_grad()
def test_copies_of_a_state_go_their_own_way() -> None:
    made, u = exact(), text()
    whole = made(u)
    state = RosaState(made, BATCH)
    made(u[:, :20], state=state)
    twins = [state.fork(), copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
    made(text(steps=5), state=state)
    for twin in twins:
        assert twin.steps == 20 and torch.equal(made(u[:, 20:], state=twin), whole[:, 20:])
    assert state.steps == 25


# ---------------------------------------------------------------------------------------------------------- diagnostics


def test_diagnostics() -> None:
    made, u = exact(), text()
    assert made.diagnostics() == {}
    made.watch = True
    made(u)
    query = np.stack([rosatune.pack(row.numpy(), BITS) for row in made.q_proj(u).detach()])
    found = rosatune.retrieve(query, query, BITS, length=True)
    hit = found.tau >= 0
    distances = (np.arange(STEPS) - found.tau)[hit]
    numbers = made.diagnostics(reset=False)
    assert numbers["steps"] == query.size and numbers["agreement"] == 1
    assert numbers["hit_rate"] == pytest.approx(hit.mean())
    assert numbers["length_mean"] == pytest.approx(found.length[hit].mean())
    assert numbers["distance_mean"] == pytest.approx(distances.mean())
    assert numbers["length_median"] == np.sort(found.length[hit])[(hit.sum() - 1) // 2]
    assert numbers["distance_median"] == np.sort(distances)[(hit.sum() - 1) // 2]
    used = [len(np.unique(query[:, route])) for route in range(query.shape[1])]
    assert numbers["query_symbols"] == numbers["key_symbols"] == np.mean(used)
    with torch.no_grad():
        in_pieces(made, u, RosaState(made, BATCH), [10, 30])
    twice = made.diagnostics()
    assert twice.pop("steps") == 2 * numbers.pop("steps")
    assert twice == pytest.approx(numbers)
    assert made.diagnostics() == {}


def test_diagnostics_leave_padding_out() -> None:
    made, u = exact(), text()
    valid = torch.rand(BATCH, STEPS) > 0.4
    made.watch = True
    made(u, valid=valid)
    whole = made.diagnostics()
    for row in range(BATCH):
        made(u[row : row + 1, valid[row]])
    assert whole == made.diagnostics()
    made.watch = False
    made(u)
    assert made.diagnostics() == {}


def test_diagnostics_where_nothing_is_found() -> None:
    made = adapter()
    made.watch = True
    made(text(steps=1))
    numbers = made.diagnostics()
    assert numbers["hit_rate"] == 0 and np.isnan(numbers["length_mean"]) and np.isnan(numbers["distance_median"])


def test_query_and_key_in_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device in training: the same values and gradients, and a projection that is more than a weight is asked."""
    made, u, asked = exact(qk="separate", qk_grad="linear"), text().requires_grad_(), []
    results = []
    for joined in ((), ("cpu",)):
        monkeypatch.setattr("rosatune.nn.JOINED", joined)
        q, k = made._query_and_key(u)
        assert (q._base is not None and q._base is k._base) == bool(joined)
        y = made(u)
        results.append([y, *torch.autograd.grad(y.square().sum(), [u, *made.parameters()])])
    assert results[0][0].any() and all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(*results))
    made.q_proj.register_forward_hook(lambda module, given, y: asked.append(y))
    assert torch.equal(made._query_and_key(u)[0], asked[0])
    with torch.no_grad():
        assert made._query_and_key(u)[1]._base is None


def test_gate_keeps_what_the_projections_keep() -> None:
    """Under autocast it is computed from u as the projections see it, and keeps that and not a second, wider copy."""
    gate, u = Gate(32), torch.randn(2, 5, 32, requires_grad=True)
    torch.nn.init.normal_(gate.weight)
    kept = []
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(kept.append, lambda x: x):
        z = gate(u)
    assert z.dtype == torch.float32 and [x.dtype for x in kept if x.shape == u.shape] == [torch.bfloat16]
    assert torch.equal(z, gate(u.detach().bfloat16()))


# -------------------------------------------------------------------------------------------------- a state on a device


@torch.no_grad()
def test_a_state_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that the device looks up: the host's stream stands in for the device's."""

    def call(name: str, *given: Any) -> None:
        if name == "rosa_cuda_open":
            given[2]._obj.value = 1
        elif name == "rosa_cuda_stream_new":
            assert given[0] == 1
            _c.call("rosa_stream_new", *given[1:])
        elif name == "rosa_cuda_stream_push_device":
            assert given[-1] == 77
            _c.call("rosa_stream_push", *given[:-1], None)
        else:
            _c.call(name.replace("_cuda", ""), *given)

    there = SimpleNamespace(
        call=call,
        options=_c.options,
        rosa_stream_info=_c.rosa_stream_info,
        lib=SimpleNamespace(rosa_cuda_stream_free=_c.lib.rosa_stream_free),
    )
    for qk in ("shared", "aligned"):
        made, u = exact(qk=qk), text()
        expected = made(u)
        with monkeypatch.context() as patched:
            patched.setattr(_cuda, "_c", there)
            patched.setattr(_cuda, "_streams", {})
            patched.setattr(_cuda, "grows", lambda q, links: links == 1)
            patched.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
            state = RosaState(made, BATCH)
            assert torch.equal(in_pieces(made, u, state, [10, 1, 1, 20, 8]), expected)
            assert state.steps == STEPS and state.lengths == [STEPS] * BATCH and state.bytes > 0
            state.reorder(range(BATCH))
            state.rewind(0)
            for refused in (
                lambda: state.rewind(1),
                lambda: state.reorder([1, 0, 2]),
                lambda: state.fork(),
                lambda: pickle.dumps(state),
                lambda: made(u, state=state, valid=torch.zeros(BATCH, STEPS, dtype=torch.bool)),
            ):
                with pytest.raises(ValueError, match=r"retrieve_on\('host'\) before it begins"):
                    refused()
            state.reset()
            assert torch.equal(in_pieces(made, u, state, [STEPS]), expected)
            # padding in the first piece: the host's from the beginning
            valid = torch.ones(BATCH, STEPS, dtype=torch.bool)
            valid[1, :3] = False
            state = RosaState(made, BATCH)
            in_pieces(made, u, state, [10, 30], valid)
            assert state.lengths == [STEPS, STEPS - 3, STEPS]
            state.rewind(2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("bits, channels", [(4, 2048), (16, 2048)])
@torch.no_grad()
def test_a_state_finds_the_same_on_device_and_host(bits: int, channels: int) -> None:
    made = RosaAdapter(channels, RosaConfig.paper(bits=bits, e_start=0.5), device="cuda").eval()
    u = torch.randn(60, channels, device="cuda")[torch.randint(0, 60, (2, 700), device="cuda")]
    sizes = [256, 1, 1, 300, 1, 141]
    expected = in_pieces(made, u, RosaState(made, 2), sizes)
    retrieve_on("device")
    try:
        found = in_pieces(made, u, RosaState(made, 2), sizes)
    except rosatune.DeviceError as missing:
        pytest.skip(str(missing))
    finally:
        retrieve_on("host")
    assert torch.equal(found, expected)
