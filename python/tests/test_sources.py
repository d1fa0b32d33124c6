"""Adapters with every kind of source and with strength: values, gradients, pieces, compilers, by the definition."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import oracle  # noqa: E402
import surrogate  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from rosatune import RosaConfig, _draw  # noqa: E402
from rosatune.nn import V_NORM_EPS, RosaAdapter, RosaState, normed_embeddings  # noqa: E402
from rosatune.sources import Lookup, Reads  # noqa: E402
from rosatune.torch import _past, _places, _read, _triton  # noqa: E402

CHANNELS, BITS, BATCH, STEPS, VOCABULARY = 24, 4, 2, 30, 9
ON = dict(gain=True, gate=True, v_start="identity", v_grad="straight")
OFF = dict(gain=False, gate=False, v_start="xavier", v_grad="sigmoid")

SOURCES = [
    dict(source="tokens", chain=1, **ON),
    dict(source="tokens", chain=3, delay=4, **ON),
    dict(source="tokens", chain=2, **{**ON, "v_grad": "sigmoid", "gate": False}),
    dict(source="embeddings", chain=2, **{**ON, "gain": False}),
    dict(source="own", **OFF),
    dict(source="own", **ON),
    dict(source="own", qk="shared", chain=3, **ON),
    dict(source="own", qk="shared", chain=2, delay=4, **ON),
    dict(source="own", qk_grad="flips", **ON),
    dict(source="tokens+embeddings+own", chain=2, **ON),
    dict(source="tokens", chain=2, delay=4, v_from="embeddings", **ON),
    dict(source="tokens+own", v_from="embeddings", **OFF),
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


def config(**options: Any) -> RosaConfig:
    return RosaConfig.paper(**{**dict(bits=BITS, window=0, fold=True), **options})


def adapter(given: RosaConfig, layer: Optional[int] = None) -> RosaAdapter:
    """An adapter of which everything counts."""
    made = RosaAdapter(CHANNELS, given, layer=layer)
    made.scale = 0.7
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if not name.endswith("_proj.weight"):
                weight.copy_(torch.randn_like(weight) * 0.5 + (name == "gain"))
        made.v_proj.weight.add_(0.3 * torch.randn(CHANNELS, CHANNELS))
        made.out_proj.weight.add_(0.1 * torch.randn(CHANNELS, CHANNELS))
        if made.learns and made.qk != "shared":
            made.q_proj.weight.add_(0.1 * torch.randn(CHANNELS, CHANNELS))
    return made


class Text:
    """Token ids, their embeddings, and what a layer makes of them."""

    def __init__(self, batch: int = BATCH, steps: int = STEPS) -> None:
        self.ids = torch.randint(0, VOCABULARY, (batch, steps))
        self.embeds = torch.randn(VOCABULARY, CHANNELS)[self.ids]
        self.u = (self.embeds + 0.1 * torch.randn(batch, steps, CHANNELS)).requires_grad_()

    def look_up(self, given: RosaConfig, valid: Optional[Tensor] = None, part: Any = slice(None), **more: Any) -> Reads:
        valid = None if valid is None else valid[:, part]
        return Lookup(given, CHANNELS, VOCABULARY)(self.ids[:, part], self.embeds[:, part], valid, **more)

    def values(self, given: RosaConfig, part: Any = slice(None)) -> Optional[Tensor]:
        """What values are made of, where that is not u."""
        return normed_embeddings(self.embeds[:, part]) if given.v_from == "embeddings" else None


# ------------------------------------------------------------------------------------------------------ the definition


def embedding_symbols(embeds: np.ndarray, seed: int) -> np.ndarray:
    """[B, R, T], with whole numbers of Python."""
    batch, steps, channels = embeds.shape
    signs = [[1 if int(_draw.draw_long(seed, c, i // 64).ravel()[0]) >> i % 64 & 1 else -1 for i in range(channels)]
             for c in range(channels)]  # fmt: skip
    found = np.zeros((batch, channels // BITS, steps), int)
    for b, t in np.ndindex(batch, steps):
        x = embeds[b, t].astype(np.float32)
        m = np.abs(x).max()
        k = [int(n) for n in np.rint(x / m * np.float32(32767))] if m > 0 else [0] * channels
        for c in range(channels):
            if sum(s * n for s, n in zip(signs[c], k)) > 0:
                found[b, c // BITS, t] |= 1 << c % BITS
    return found


def chain(query: np.ndarray, key: np.ndarray, links: int, bits: int, fold: bool, delay: int) -> np.ndarray:
    """[2, links, B, R, T]: places and lengths."""
    found = np.full((2, links, *query.shape), -1)
    found[1] = 0
    for b, r in np.ndindex(query.shape[:2]):
        first = oracle.retrieve(query[b, r], key[b, r], bits, fold=fold, delay=delay)
        plain = oracle.retrieve(query[b, r], key[b, r], bits, fold=fold)
        for t in range(query.shape[2]):
            d, l = int(first.tau[t]), int(first.length[t])
            for link in range(links):
                if d < 0:
                    break
                found[:, link, b, r, t] = d, l
                d, l = (int(plain.tau[d - 1]), min(l, int(plain.length[d - 1]))) if d else (-1, 0)
    return found


def value_bits(v: Tensor, v_grad: str) -> Tensor:
    if v_grad == "sigmoid":
        return surrogate.bits_of(v)
    return (v > 0).to(v.dtype) + (v - v.detach()) * (v.detach().abs() < 1)


def objective(made: RosaAdapter, text: Text, u: Tensor, gout: Tensor, qk: Optional[tuple] = None) -> tuple[Tensor, Tensor]:
    """What an adapter adds, and a number whose derivatives its gradients are. ``made`` is of float64."""
    given, x = made.config, u
    if given.v_from == "embeddings":
        x = text.embeds.double()
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + V_NORM_EPS)
    v = x @ made.v_proj.weight.T
    bit = value_bits(v, given.v_grad)
    z = 2 * torch.sigmoid(u @ made.gate.weight + made.gate.bias) if given.gate else u.new_ones(u.shape[:2])
    e0, e1 = made.e0.view(-1, CHANNELS), made.e1.view(-1, CHANNELS)
    y, more, read, row = 0, 0, 0, 0
    gy = (gout @ made.out_proj.weight).detach()
    for source in given.sources:
        if source.learnt:
            q, k = qk or ((u @ (made.k_proj if made.qk == "shared" else made.q_proj).weight.T), u @ made.k_proj.weight.T)
            query, key, bits = surrogate.symbols(q, BITS), surrogate.symbols(k, BITS), BITS
        elif source.kind == "tokens":
            query = key = text.ids.numpy()[:, None]
            bits = 4
        else:
            query = key = embedding_symbols(text.embeds.numpy(), given.source_seed)
            bits = BITS
        fold = given.fold and source.kind != "tokens"
        routes, links = query.shape[1], given.links(source)
        tau, length = chain(query, key, links, bits, fold, given.delay_steps)
        for link in range(links):
            place = torch.from_numpy(tau[link]).transpose(1, 2).unsqueeze(-1)  # [B, T, R, 1]
            split = bit.view(*u.shape[:2], routes, -1)
            there = split.gather(1, place.clamp(min=0).expand_as(split)).reshape(u.shape)
            weight = u.new_full(tau[link].shape, made.scale)
            if given.gain:
                rows = torch.arange(row, row + routes).view(1, routes, 1)
                weight = weight * made.gain[rows, torch.from_numpy(np.minimum(length[link], 9))]
            strength = weight.transpose(1, 2).repeat_interleave(CHANNELS // routes, -1) * z.unsqueeze(-1)
            hit = (place >= 0).expand_as(split).reshape(u.shape)
            y = y + hit * strength * (e0[read] + (e1[read] - e0[read]) * there)
            if source.learnt and link == 0:
                theta = (gy * strength * (e1[read] - e0[read])).detach()
                if given.qk_grad == "flips":
                    more = more + surrogate.flips(q, k, v, theta, BITS, fold, given.key_credit, given.policy)
                else:
                    more = more + surrogate.weighed(q, k, v, theta, BITS, fold, given.credit, 0.0, None)
            read, row = read + 1, row + routes
    inj = y @ made.out_proj.weight.T
    return inj, (inj * gout).sum() + more


def assert_close(found: Any, expected: Any, names: Any, tolerance: float = 1e-5) -> None:
    for name, x, y in zip(names, found, expected):
        assert y.norm() > 0, name
        assert (x.double() - y).norm() <= tolerance * y.norm(), f"{name}: {(x.double() - y).norm()} of {y.norm()}"


@pytest.mark.parametrize("options", SOURCES, ids=str)
def test_values_and_gradients(options: dict) -> None:
    given = config(**options)
    made, text, gout = adapter(given), Text(), torch.randn(BATCH, STEPS, CHANNELS)
    names, weights = zip(*made.named_parameters())
    inj = made(text.u, found=text.look_up(given), embeds=text.values(given))
    found = torch.autograd.grad(inj, [text.u, *weights], gout)
    exact, u = copy.deepcopy(made).double(), text.u.detach().double().requires_grad_()
    expected, total = objective(exact, text, u, gout.double())
    torch.testing.assert_close(inj.double(), expected, rtol=1e-5, atol=1e-5)
    assert_close(found, torch.autograd.grad(total, [u, *exact.parameters()]), ("u", *names))


@pytest.mark.parametrize("options", SOURCES[:2], ids=str)
def test_strength_by_finite_differences(options: dict) -> None:
    """What is smooth: e0, e1, gain, gate and out; by differences of the outputs alone."""
    given = config(**options)
    made, text, gout = adapter(given), Text(), torch.randn(BATCH, STEPS, CHANNELS)
    found = text.look_up(given)
    (made(text.u, found=found) * gout).sum().backward()
    for name, weight in made.named_parameters():
        if name == "v_proj.weight":
            continue
        direction = torch.randn_like(weight)
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                weight.add_(direction, alpha=sign * 1e-2)
                sides.append(float((made(text.u, found=found).double() * gout).sum()))
                weight.add_(direction, alpha=-sign * 1e-2)
        slope = (sides[0] - sides[1]) / 2e-2
        assert slope == pytest.approx(float((weight.grad * direction).sum()), rel=2e-2, abs=2e-2), name


@pytest.mark.parametrize("chain_of", [1, 2])
def test_layer_n_learns_through_every_layer(chain_of: int) -> None:
    given = config(source="layer 1", qk="shared" if chain_of > 1 else "aligned", chain=chain_of, **ON)
    low, high = adapter(given, 1), adapter(given, 2)
    assert low.learns and not high.learns and not hasattr(high, "k_proj")
    text, gout = Text(), torch.randn(2, BATCH, STEPS, CHANNELS)
    names, weights = zip(*low.named_parameters(), *high.named_parameters())

    def both(u: Tensor, reads: Reads) -> Tensor:
        first = low(u, found=reads)
        return torch.stack([first, high(torch.tanh(u), found=reads)])

    out = both(text.u, text.look_up(given))
    found = torch.autograd.grad(out, [text.u, *weights], gout)
    exact = [copy.deepcopy(each).double() for each in (low, high)]
    u = text.u.detach().double().requires_grad_()
    q = u @ (exact[0].k_proj if chain_of > 1 else exact[0].q_proj).weight.T
    qk = (q, u @ exact[0].k_proj.weight.T)
    parts = [objective(each, text, x, g.double(), qk) for each, x, g in zip(exact, (u, torch.tanh(u)), gout)]
    torch.testing.assert_close(out.double(), torch.stack([part[0] for part in parts]), rtol=1e-5, atol=1e-5)
    all_weights = [*exact[0].parameters(), *exact[1].parameters()]
    assert_close(found, torch.autograd.grad(parts[0][1] + parts[1][1], [u, *all_weights]), ("u", *names))

    def alone(kept: Reads) -> Tensor:
        out = [checkpoint(lambda x: low(x, found=kept), text.u, use_reentrant=False)]
        out.append(checkpoint(lambda x: high(torch.tanh(x), found=kept), text.u, use_reentrant=False))
        return torch.stack(out)

    again = torch.autograd.grad(alone(text.look_up(given)), [text.u, *weights], gout)
    assert all(torch.equal(x, y) for x, y in zip(again, found)), "checkpointing changes nothing"
    kept = text.look_up(given)
    first = checkpoint(lambda x: low(x, found=kept), text.u, use_reentrant=True)
    second = checkpoint(lambda x: high(x, found=kept), text.u, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        (first + second).sum().backward()


def test_layer_n_needs_its_layer() -> None:
    given = config(source="layer 1")
    text = Text()
    with pytest.raises(RuntimeError, match="layer 1 has not run in this pass"):
        adapter(given, 2)(text.u, found=text.look_up(given))
    with pytest.raises(ValueError, match="say which layer this adapter is for"):
        RosaAdapter(CHANNELS, given)
    with pytest.raises(ValueError, match="layer 0 does not read; it needs no adapter"):
        RosaAdapter(CHANNELS, given, layer=0)
    with pytest.raises(ValueError, match="source 'tokens' is looked up for all layers at once: give found="):
        adapter(config(source="tokens"))(text.u)


@pytest.mark.parametrize("options", SOURCES, ids=str)
def test_starts_silent(options: dict) -> None:
    given = config(**options)
    made, text = RosaAdapter(CHANNELS, given), Text()
    made.scale = 3.0
    inj = made(text.u, found=text.look_up(given), embeds=text.values(given))
    assert not inj.any()
    inj.sum().backward()
    assert made.e0.grad.any() and made.e1.grad.any()
    has_qk = "own" in given.source
    assert made.learns == has_qk == hasattr(made, "k_proj")
    identity = torch.equal(made.v_proj.weight, torch.eye(CHANNELS))
    assert identity == (given.v_start == "identity")
    links = sum(given.links(source) for source in given.sources)
    assert made.e0.shape == ((CHANNELS,) if links == 1 else (links, CHANNELS))


@pytest.mark.parametrize("options", SOURCES, ids=str)
@torch.no_grad()
def test_pieces_are_the_whole(options: dict) -> None:
    """With padding, a rewind, and rows in another order on the way."""
    given = config(**options)
    made, text = adapter(given).eval(), Text()
    for projection in (made.v_proj, *([made.k_proj, made.q_proj] if made.learns and given.qk != "shared" else [])):
        projection.weight.copy_(torch.eye(CHANNELS))  # exact: see test_nn.py
    if given.qk == "shared":
        made.k_proj.weight.copy_(torch.eye(CHANNELS))
    valid = torch.rand(BATCH, STEPS) > 0.2
    valid[0, :5] = False
    u = text.embeds
    whole = made(u, valid=valid, found=text.look_up(given, valid), embeds=text.values(given))
    assert whole.any() and not whole[~valid].any()
    for row in range(BATCH):
        alone = copy.copy(text)
        alone.ids, alone.embeds = text.ids[row : row + 1, valid[row]], text.embeds[row : row + 1, valid[row]]
        mine = made(alone.embeds, found=alone.look_up(given), embeds=alone.values(given))
        torch.testing.assert_close(mine[0], whole[row, valid[row]])
    lookup = Lookup(given, CHANNELS, VOCABULARY)
    state, past, parts = RosaState(made, BATCH), lookup.start(BATCH), []

    def go(part: slice, order: Any = slice(None)) -> Tensor:
        nonlocal past
        marks = valid[order][:, part]
        found = lookup(text.ids[order][:, part], text.embeds[order][:, part], marks, past)
        embeds = text.values(given)
        if embeds is not None:
            embeds = embeds[order][:, part]
        return made(u[order][:, part], state=state, valid=marks, found=found, embeds=embeds)

    for part in (slice(0, 11), slice(11, 12), slice(12, 20)):
        parts.append(go(part))
    for each in (state, past):
        each.rewind(3)
    state, past = pickle.loads(pickle.dumps(state)), past.fork()
    parts[-1] = torch.cat([parts[-1][:, :-3], go(slice(17, 20))], 1)
    torch.testing.assert_close(torch.cat(parts, 1), whole[:, :20], rtol=0, atol=1e-6)
    order = [1, 0, 1]
    for each in (state, past):
        each.reorder(order)
    torch.testing.assert_close(go(slice(20, STEPS), order), whole[order][:, 20:], rtol=0, atol=1e-6)
    assert state.bytes > 0 and state.steps == STEPS


@torch.no_grad()
def test_pieces_are_the_whole_under_autocast() -> None:
    given = config(source="tokens", chain=2, **ON)
    made, text = adapter(given).eval(), Text()
    for projection in (made.v_proj, made.out_proj):
        projection.weight.copy_(torch.eye(CHANNELS))  # exact
    made.gate.weight.mul_(20)
    state, lookup = RosaState(made, BATCH), Lookup(given, CHANNELS, VOCABULARY)
    past, parts = lookup.start(BATCH), []
    with torch.autocast("cpu", torch.bfloat16):
        whole = made(text.embeds, found=text.look_up(given))
        for part in (slice(0, 11), slice(11, 12), slice(12, STEPS)):
            found = lookup(text.ids[:, part], text.embeds[:, part], None, past)
            parts.append(made(text.embeds[:, part], state=state, found=found))
    assert whole.dtype == torch.bfloat16 and whole.any() and torch.equal(torch.cat(parts, 1), whole)


@torch.no_grad()
def test_values_are_kept_in_an_eighth_of_a_byte() -> None:
    given = config(source="tokens")
    made, text = adapter(given), Text(1, 1000)
    state = RosaState(made.eval(), 1)
    made(text.u, state=state, found=text.look_up(given))
    assert state.bytes <= 1.3 * 1000 * CHANNELS / 8


@pytest.mark.parametrize("options", SOURCES, ids=str)
def test_compiled_is_eager(options: dict) -> None:
    given = config(**options)
    made, text = adapter(given), Text()
    lookup = Lookup(given, CHANNELS, VOCABULARY)

    def layer(u: Tensor, ids: Tensor, embeds: Tensor) -> Tensor:
        values = normed_embeddings(embeds) if given.v_from == "embeddings" else None
        pending = made.launch(u, found=lookup(ids, embeds), embeds=values)
        return torch.tanh(u) + made.collect(pending) * 2

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    inputs = [text.u, *made.parameters()]
    given_text = (text.u, text.ids, text.embeds)
    expected = torch.autograd.grad(layer(*given_text).square().sum(), inputs)
    found = torch.autograd.grad(compiled(*given_text).square().sum(), inputs)
    assert all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) and y.any() for x, y in zip(found, expected))


def test_the_same_every_time() -> None:
    given = config(source="tokens", chain=4, **ON)
    made, text = adapter(given), Text(2, 500)
    found = text.look_up(given)
    results = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        results.append(torch.autograd.grad(made(text.u, found=found).square().sum(), list(made.parameters())))
    assert all(torch.equal(x, y) for x, y in zip(results[1], results[2]))
    assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(results[0], results[1]))


def test_operators_are_well_formed() -> None:
    v, u = (torch.randn(2, steps, 12, requires_grad=True) for steps in (5, 7))
    tau = torch.randint(-1, 5, (3, 2, 4, 7), dtype=torch.int32)
    length = torch.randint(0, 20, (3, 2, 4, 7), dtype=torch.uint8)
    gain, z = torch.rand(12, 10, requires_grad=True), torch.rand(2, 7, requires_grad=True)
    e0, e1 = (torch.randn(3, 12, requires_grad=True) for _ in range(2))
    scale = torch.tensor(0.3, dtype=torch.float64)
    for straight, some in ((True, (gain, z)), (False, (None, None))):
        torch.library.opcheck(_read._pack, (v.detach(), straight))
        packed = _read._pack(v.detach(), straight)
        for order in (_read.sort_places(tau, 5), [None] * 4):
            torch.library.opcheck(_read._read, (v, *packed, tau, length, *order, *some, e0, e1, scale))
    weight, bias = torch.randn(12, requires_grad=True), torch.randn(1, requires_grad=True)
    torch.library.opcheck(_read._gate, (u, weight, bias))
    torch.library.opcheck(_places._embedding_symbols, (torch.randn(2, 7, 12), 3, 4))
    ids = torch.randint(0, 9, (2, 1, 7))
    torch.library.opcheck(_places._find, (ids, None, ["found", "random"], 1, 16, "readable", False, 0, 0, 3, 0))


@pytest.mark.parametrize("channels", [8, 24, 36])
@pytest.mark.parametrize("routes", [1, 4])
def test_packed_bits(channels: int, routes: int) -> None:
    v = torch.randn(2, 9, channels)
    tau = torch.randint(-1, 9, (2, routes, 5), dtype=torch.int32)
    packed = _read.pack_bits(v)
    assert packed.shape == (2, 9, (channels + 7) // 8)
    found = _read.bits_at(packed, tau, channels)
    for b, r, t in np.ndindex(2, routes, 5):
        if tau[b, r, t] >= 0:
            mine = slice(r * channels // routes, (r + 1) * channels // routes)
            assert torch.equal(found[b, t, mine], v[b, tau[b, r, t], mine] > 0)


def test_embedding_symbols_are_exact() -> None:
    embeds = torch.randn(2, 11, CHANNELS)
    embeds[0, 3] = 0
    for seed in (0, 2**40):
        expected = embedding_symbols(embeds.numpy(), seed)
        np.testing.assert_array_equal(_places.embedding_symbols(embeds, seed, BITS).numpy(), expected)
        with torch.autocast("cpu", torch.bfloat16):
            np.testing.assert_array_equal(_places.embedding_symbols(embeds, seed, BITS).numpy(), expected)
    half = embeds.bfloat16()
    np.testing.assert_array_equal(
        _places.embedding_symbols(half, 0, BITS).numpy(), embedding_symbols(half.float().numpy(), 0)
    )


@pytest.mark.parametrize("options", [SOURCES[1], SOURCES[6], SOURCES[9]], ids=str)
def test_random_reads(options: dict) -> None:
    given = config(**options)
    made, text = adapter(given).eval(), Text()
    found = text.look_up(given, reads=("found", "random"))
    plain = made(text.u, found=found)
    made.reads = "random"
    drawn = made(text.u, found=found)
    assert not torch.equal(drawn, plain) and torch.equal(made(text.u, found=found), drawn)
    assert torch.equal(drawn.any(-1), plain.any(-1))
    with torch.no_grad():
        state = RosaState(made, BATCH)
        torch.testing.assert_close(made(text.u, state=state, found=found), drawn)
    made.reads = "nothing"
    assert not made(text.u, found=found).any()
    if "tokens" in given.source:
        made.reads = "random"
        with pytest.raises(RuntimeError, match="set `reads` of all adapters before the model is called"):
            made(text.u, found=text.look_up(given))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_dtypes(kind: Any) -> None:
    given = config(source="tokens", chain=2, **ON)
    made, text = adapter(given).to(kind), Text()
    inj = made(text.u.to(kind), found=text.look_up(given))
    assert inj.dtype == kind
    inj.sum().backward()
    assert all(weight.grad.dtype == kind and weight.grad.isfinite().all() for weight in made.parameters())
    reference = copy.deepcopy(made).float()
    there = reference(text.u.to(kind).float(), found=text.look_up(given))
    assert (inj.float() - there).norm() < (0.05 if kind == torch.bfloat16 else 1e-6) * there.norm()


def test_diagnostics_of_shared_sources() -> None:
    given = config(source="tokens", chain=2)
    made, text = adapter(given), Text()
    valid = torch.ones(BATCH, STEPS, dtype=torch.bool)
    valid[0, :7] = False
    made.watch = True
    found = text.look_up(given, valid)
    made(text.u, valid=valid, found=found)
    numbers = made.diagnostics()
    hit = found.places["tokens", "found"].tau[0] >= 0
    assert numbers["steps"] == int(valid.sum()) and "agreement" not in numbers
    assert numbers["hit_rate"] == pytest.approx(int(hit.sum()) / int(valid.sum()))


def test_embeddings_are_needed() -> None:
    given, text = config(source="tokens", v_from="embeddings"), Text()
    made, found = adapter(given), text.look_up(given)
    with pytest.raises(ValueError, match="v_from is 'embeddings': give embeds=, from rosatune.nn.normed_embeddings"):
        made(text.u, found=found)
    with pytest.raises(ValueError, match=r"embeds has shape \[2, 1, 24\]; give \[2, 30, 24\]"):
        made(text.u, found=found, embeds=text.embeds[:, :1])
    with pytest.raises(ValueError, match="v_from is 'layer': leave embeds out"):
        adapter(config(source="tokens"))(text.u, found=found, embeds=text.embeds)


def test_ids_are_needed() -> None:
    text = Text()
    with pytest.raises(ValueError, match="inputs_embeds alone: pass input_ids beside them .*or attach with source="):
        Lookup(config(source="tokens"), CHANNELS, VOCABULARY)(None, text.embeds)
    assert Lookup(config(source="embeddings"), CHANNELS, VOCABULARY)(None, text.embeds).places


@pytest.mark.parametrize("calls", [0, 2])
@torch.no_grad()
def test_a_kernel_that_fails(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its first call or later: one warning, and the text goes on."""
    given = config(source="tokens", chain=2, **ON)
    made, text = adapter(given).eval(), Text()
    lookup, whole = Lookup(given, CHANNELS, VOCABULARY), _past.Whole()
    made.v_proj.weight.copy_(torch.eye(CHANNELS))  # exact: see test_nn.py
    expected = made(text.embeds, found=text.look_up(given))
    left = calls

    def step(u: Tensor, v: Tensor, table: Any, shift: int, begin: int, places: Any, *rest: Any) -> Any:
        """In the place of the kernel: it writes where the table says."""
        nonlocal left
        if left == 0:
            raise RuntimeError("no such instruction\nin line 1")
        left -= 1
        if rest[-1]:
            whole.append(v, begin)
            for block in state._past._kept._blocks:  # type: ignore[union-attr]
                block[:, : begin + v.shape[1]] = whole._values[:, : begin + v.shape[1]]  # type: ignore[index]
        return None if places is None else torch.full_like(v, torch.nan)

    monkeypatch.setattr(_past, "_failed", set())
    monkeypatch.setattr(_past, "_kernels", lambda: SimpleNamespace(step=step))
    monkeypatch.setattr(_triton, "module", lambda name, x: step if name == "_step_kernels" else None)
    state, past, parts = RosaState(made, BATCH), lookup.start(BATCH), []
    with pytest.warns(RuntimeWarning, match=r"cannot be used on cpu \(RuntimeError: no such instruction\)") as seen:
        for part in (slice(0, 6), slice(6, 7), slice(7, STEPS)):
            found = lookup(text.ids[:, part], text.embeds[:, part], None, past)
            parts.append(made(text.embeds[:, part], state=state, found=found))
        other = RosaState(made, BATCH)
        made(text.embeds, state=other, found=lookup(text.ids, text.embeds, None, lookup.start(BATCH)))
    assert len(seen) == 1 and all(isinstance(each._past._kept, _past.Whole) for each in (state, other))
    there = torch.cat(parts, 1)
    known = ~there.isnan().all(-1).all(0)
    assert known.sum() > STEPS - 8
    torch.testing.assert_close(there[:, known], expected[:, known], rtol=0, atol=1e-6)


# ----------------------------------------------------------------------------------------------------------------- CUDA


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", SOURCES, ids=str)
def test_cuda_gives_the_same(options: dict, kind: Any) -> None:
    given = config(**options)
    here, text, gout = adapter(given).to(kind), Text(2, 300), torch.randn(2, 300, CHANNELS)
    there = copy.deepcopy(here).cuda()
    u = text.u.detach().to(kind)
    results = []
    for made, device in ((here, "cpu"), (there, "cuda"), (there, "cuda")):
        x = u.to(device).requires_grad_()
        found = Lookup(given, CHANNELS, VOCABULARY)(text.ids.to(device), text.embeds.to(device))
        embeds = text.values(given)
        inj = made(x, found=found, embeds=None if embeds is None else embeds.to(device))
        gradients = torch.autograd.grad(inj, [x, *made.parameters()], gout.to(device, kind))
        results.append([each.cpu().float() for each in (inj, *gradients)])
    tolerance = 2e-4 if kind == torch.float32 else 0.03
    for name, x, y in zip(("inj", "u", *dict(here.named_parameters())), *results[:2]):
        assert (x - y).norm() <= tolerance * x.norm(), name
    if "own" not in given.source:
        assert all(torch.equal(x, y) for x, y in zip(*results[1:])), "the same every time"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("room", [1 << 24, BATCH * 16 * CHANNELS // 8, 0])
def test_cuda_state(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values on the GPU, moving to the host on the way, and there from the start."""
    monkeypatch.setattr(RosaState, "device_bytes", room)
    monkeypatch.setattr(_past, "BLOCK_BYTES", 1)  # blocks of 16 steps
    given = config(source="tokens+own", chain=2, **ON)
    made, text = adapter(given).cuda().eval(), Text()
    lookup = Lookup(given, CHANNELS, VOCABULARY)
    u, ids, embeds = (x.cuda() for x in (text.embeds, text.ids, text.embeds))
    with torch.no_grad():
        made.k_proj.weight.copy_(torch.eye(CHANNELS))
        made.q_proj.weight.copy_(torch.eye(CHANNELS))
        made.v_proj.weight.copy_(torch.eye(CHANNELS))
        whole = made(u, found=lookup(ids, embeds))
        state, past, parts = RosaState(made, BATCH), lookup.start(BATCH), []
        for part in (slice(0, 11), slice(11, 12), slice(12, STEPS)):
            found = lookup(ids[:, part], embeds[:, part], None, past)
            parts.append(made(u[:, part], state=state, found=found))
            state = state.fork()
    blocks: Any = state._past._kept._blocks  # type: ignore[union-attr]
    assert len(blocks) > 1 and sum(block.is_cuda for block in blocks) == min(len(blocks), room // blocks[0].nbytes)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)
