"""The gradients of the read-out as tensor operations, for devices where the C library cannot reach the tensors.

Each function computes what its namesake under ``src/rosa`` computes, on any device, and the tests compare the two. Only
the order of sums differs: on a GPU, ``index_add`` sums the contributions to one step, in an order that is not fixed
unless ``torch.use_deterministic_algorithms`` is on.

Shapes: B batch entries, T steps, R routes of M bits, C = R M channels. Activations are [B, T, C], which is also
[B, T, R, M]; what a route knows of a step (symbols, destinations, run starts) is [B, T, R]. Time therefore stands
before routes, so that a step's row of M numbers is one row of a matrix [B T R, M] and is fetched whole: ``Rows``
turns steps into such row numbers. Sums are float32 whatever the activations are.

The rules ``soft`` and ``linear`` weigh all starts d < t of key runs that have a run before them. With

    D_td = theta_t . P[d]      what step t would gain by reading at d
    X_d  = sgn(k_p(d))         the signs of the key that a query would have to show to be sent to d
    g_td = w_td (D_td - sum_d w_td D_td)

the query's gradient is ``sum_d g_td X_d`` and the key's ``sum_t g_td sgn(q_t)``. As ``g`` sums to zero over d, a
constant may be taken from P: ``sigmoid(v) - 1/2`` is used, whose products lose nothing to the large common part.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._settings import Settings

__all__ = ["Gradients", "backward", "read_out", "symbols", "wide"]

CHUNK = 512  # steps of `linear` whose pairs are formed at once; states are carried from chunk to chunk
STRIP_BYTES = 1 << 28  # of a strip of scores in `soft`, and of the rows that `flips` fetches at once


class Gradients(NamedTuple):
    """dL/d(q, k, v, e0, e1); None where it was not requested."""

    q: Optional[Tensor]
    k: Optional[Tensor]
    v: Optional[Tensor]
    e0: Optional[Tensor]
    e1: Optional[Tensor]


# ------------------------------------------------------------------------------------------------ symbols, destinations


def symbols(x: Tensor, bits: int) -> Tensor:
    """int32 [B, T, R]: bit j of route r is 1 where channel r M + j is above 0."""
    batch, steps, channels = x.shape
    place = 1 << torch.arange(bits, dtype=torch.int32, device=x.device)
    return ((x > 0).reshape(batch, steps, channels // bits, bits) * place).sum(-1, dtype=torch.int32)


def wide(kept: Tensor) -> Tensor:
    """Destinations as they are kept (two unsigned bytes or four, -1 as all ones) as int64 with -1."""
    if kept.dtype == torch.int16:
        low = kept.long() & 0xFFFF
        return torch.where(low == 0xFFFF, -1, low)
    return kept.long()


class Rows:
    """Row numbers of (b, step, r) in a matrix [B T R, M]."""

    def __init__(self, batch: int, steps: int, routes: int, device: torch.device) -> None:
        entry = torch.arange(batch, device=device).view(batch, 1, 1) * (steps * routes)
        self.base = entry + torch.arange(routes, device=device)
        self.routes = routes

    def of(self, steps: Tensor) -> Tensor:
        """For steps [B, *, R]; a step below 0 counts as 0, and the caller has to mask it."""
        return self.base + steps.clamp(min=0) * self.routes


def fetch(matrix: Tensor, rows: Tensor) -> Tensor:
    """Rows of [B T R, M], in the shape of ``rows`` with M at the end."""
    return matrix.index_select(0, rows.reshape(-1)).view(*rows.shape, matrix.shape[-1])


# ------------------------------------------------------------------------------------------------------------- read-out


def read_out(read: Tensor, v: Tensor, e0: Tensor, e1: Tensor, bits: int) -> Tensor:
    """y = m (e0 + (e1 - e0) b) for destinations [B, T, R]; of the kind of v."""
    batch, steps, channels = v.shape
    rows = Rows(batch, steps, channels // bits, v.device)
    bit = fetch(v.reshape(-1, bits), rows.of(read)) > 0
    y = torch.where(bit, e1.view(-1, bits), e0.view(-1, bits))
    return torch.where(read.unsqueeze(-1) >= 0, y, 0).to(v.dtype).view(batch, steps, channels)


def slope_of(x: Tensor) -> Tensor:
    """s'(x) = sigmoid(x) (1 - sigmoid(x)), float32."""
    p = torch.sigmoid(x.float())
    return p * (1 - p)


# ----------------------------------------------------------------------------------------------------------------- runs


class Runs:
    """The runs of symbols [B, T, R]. Every field is [B, T, R] and describes the run that contains the step.

    first:   whether the step begins a run
    start:   the step that began it
    before:  the step that began the run before it, -1 for a route's first run
    """

    def __init__(self, symbol: Tensor, fold: bool) -> None:
        batch, steps, routes = symbol.shape
        self.time = torch.arange(steps, device=symbol.device).view(1, steps, 1)
        self.first = torch.ones_like(symbol, dtype=torch.bool)
        if fold:
            self.first[:, 1:] = symbol[:, 1:] != symbol[:, :-1]
        begun = torch.where(self.first, self.time, 0)
        self.start = begun.cummax(1).values
        self.before = self.start_before(self.start)

    def start_before(self, start: Tensor) -> Tensor:
        """The start of the run before the one that starts there; -1 where there is none."""
        found = self.start.gather(1, (start - 1).clamp(min=0))
        return torch.where(start > 0, found, -1)

    def table_rows(self) -> Tensor:
        """The row of the counterfactual table that belongs to each step: runs are numbered route by route."""
        batch, steps, routes = self.first.shape
        number = self.first.transpose(1, 2).reshape(-1).cumsum(0) - 1
        return number.view(batch, routes, steps).transpose(1, 2)


# ---------------------------------------------------------------------------------------------------------------- flips


def flips(q: Tensor, k: Tensor, v: Tensor, theta: Tensor, table: Tensor, settings: Settings) -> Tuple[Tensor, Tensor]:
    """The paper's rule: what each bit's flip would have read, against what was read.

    With branch u of bit j going to tau_u, q gets theta . (P[tau_1] - P[tau_0]); k gets the same two terms, each at its
    own destination. One of the branches is the true one, so both are a difference between true and flipped, signed
    by the bit.
    """
    batch, steps, channels = q.shape
    bits = settings.bits
    routes = channels // bits
    rows = Rows(batch, steps, routes, q.device)
    probability = torch.sigmoid(v.float()).view(-1, bits)
    query = Runs(symbols(q, bits), settings.fold).table_rows()
    keys = Runs(symbols(k, bits), settings.fold)
    sign = torch.where(q > 0, 1.0, -1.0).view(batch, steps, routes, bits) / settings.flip_share
    theta = theta.view(batch, steps, routes, bits)
    gq = torch.empty_like(theta)
    gk = torch.zeros(batch * steps * routes, bits, device=q.device)
    bit = torch.arange(bits, device=q.device)
    piece = max(1, STRIP_BYTES // (4 * batch * routes * bits * (bits + 1)))
    for begin in range(0, steps, piece):
        part = slice(begin, min(begin + piece, steps))
        ends = wide(table.index_select(0, query[:, part].reshape(-1))).view(batch, -1, routes, bits + 1)
        # Rows.of needs routes last, so the branch joins the time axis
        sides = ends.permute(0, 1, 3, 2).reshape(batch, -1, routes)
        read = fetch(probability, rows.of(sides)).view(batch, -1, bits + 1, routes, bits)
        gain = (read * theta[:, part].unsqueeze(2)).sum(-1).transpose(2, 3)
        gain = torch.where(ends >= 0, gain, 0)  # [B, t, R, 1 + M]
        gq[:, part] = sign[:, part] * (gain[..., :1] - gain[..., 1:])
        if settings.key_credit == "match":
            sides = keys.start_before(sides.clamp(min=0))
        place = rows.of(sides).view(batch, -1, bits + 1, routes).transpose(2, 3)
        gk.index_add_(0, place[..., 0].reshape(-1), (sign[:, part] * gain[..., :1]).reshape(-1, bits))
        flipped = (place[..., 1:] * bits + bit).reshape(-1)
        gk.view(-1).index_add_(0, flipped, -(sign[:, part] * gain[..., 1:]).reshape(-1))
    return gq.view_as(q), gk.view_as(k)


# --------------------------------------------------------------------------------------------- what soft and linear see


class Term(NamedTuple):
    """One of the symbols that a score compares: signs of the query at each step and of the key at each candidate.

    Zero rows stand where there is no symbol to compare. Gradients go to the steps that the symbols came from.
    """

    weight: float
    query: Tensor  # [B, T, R, M]
    query_at: Tensor  # [B, T, R], -1: none
    key: Tensor  # [B, T, R, M]
    key_at: Tensor


class Candidates(NamedTuple):
    """The starts that may be weighed, and the terms of the score."""

    mask: Tensor  # float [B, T, R]: 1 where a key run starts that has a run before it
    terms: List[Term]


def candidates(q: Tensor, k: Tensor, settings: Settings) -> Candidates:
    batch, steps, channels = q.shape
    bits = settings.bits
    rows = Rows(batch, steps, channels // bits, q.device)
    queries = Runs(symbols(q, bits), settings.fold)
    keys = Runs(symbols(k, bits), settings.fold)
    is_start = keys.first & (keys.before >= 0)

    def sign(bit: Tensor) -> Tensor:
        return torch.where(bit, 1.0, -1.0)

    def signs(x: Tensor, at: Tensor) -> Tensor:
        return sign(fetch((x > 0).view(-1, bits), rows.of(at))) * (at >= 0).unsqueeze(-1)

    at_query = queries.time.expand_as(queries.start)
    at_key = torch.where(is_start, keys.before, -1)
    terms = [Term(1.0, sign(q > 0).view(*at_key.shape, bits), at_query, signs(k, at_key), at_key)]
    if settings.suffix:
        at_query = queries.before
        at_key = torch.where(at_key >= 0, keys.start_before(at_key.clamp(min=0)), -1)
        terms.append(Term(settings.suffix, signs(q, at_query), at_query, signs(k, at_key), at_key))
    return Candidates(is_start.float(), terms)


def deliver(found: List[Tensor], places: List[Tensor], like: Tensor, bits: int) -> Tensor:
    """Add the terms' gradients [B, T, R, M] at the steps they belong to; places below 0 receive nothing."""
    batch, steps, channels = like.shape
    rows = Rows(batch, steps, channels // bits, like.device)
    total = torch.zeros(like.numel() // bits, bits, device=like.device)
    for gradient, place in zip(found, places):
        gradient = torch.where(place.unsqueeze(-1) >= 0, gradient, 0)
        total.index_add_(0, rows.of(place).reshape(-1), gradient.reshape(-1, bits))
    return total.view_as(like)


# --------------------------------------------------------------------------------------------------------------- linear


def product(a: Tensor, b: Tensor) -> Tensor:
    """A batch of matrix products with float32 results."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=torch.float32)


def past_sums(a: Tensor, b: Tensor, x: Tensor, reverse: bool = False) -> Tensor:
    """sum over s < t of (a_t . b_s) x_s, or over s > t: [G, T, n] for a, b [G, T, c] and x [G, T, n].

    Linear attention: pairs inside a chunk are formed, what lies before it is carried in a state [c, n].
    """
    groups, steps, _ = a.shape
    result = torch.empty(groups, steps, x.shape[-1], device=a.device)
    state: Optional[Tensor] = None
    begins = range(0, steps, CHUNK)
    for begin in reversed(begins) if reverse else begins:
        part = slice(begin, min(begin + CHUNK, steps))
        pairs = product(a[:, part], b[:, part].transpose(1, 2))
        pairs = pairs.triu(1) if reverse else pairs.tril(-1)
        sums = product(pairs.to(x.dtype), x[:, part])
        if state is not None:
            sums += product(a[:, part], state.to(a.dtype))
        result[:, part] = sums
        fresh = product(b[:, part].transpose(1, 2), x[:, part])
        state = fresh if state is None else state.add_(fresh)
    return result


def past_counts(x: Tensor) -> Tensor:
    """Sums over the steps before each of whole numbers, along dimension 1."""
    x = x.int()
    return (x.cumsum(1, dtype=torch.int32) - x).float()


def future(x: Tensor) -> Tensor:
    """Sums over the steps after each, along dimension 1. Not by cumsum, which on a GPU has no fixed order of sums."""
    one = torch.ones(len(x), x.shape[1], 1, device=x.device)
    return past_sums(one, one, x.flatten(2), reverse=True).view(x.shape)


def linear(q: Tensor, k: Tensor, v: Tensor, theta: Tensor, settings: Settings) -> Tuple[Tensor, Tensor]:
    """Uniform weights w_td = 1 / n_t: sums over the past replace the pairs."""
    batch, steps, channels = q.shape
    bits = settings.bits
    routes = channels // bits
    mask, terms = candidates(q, k, settings)
    # operands of products have the dtype of the activations where the device accumulates in float32
    kind = q.dtype if q.is_cuda and hasattr(torch.ops.aten.bmm, "dtype") else torch.float32
    value = (torch.sigmoid(v.float()) - 0.5).to(kind)
    theta = theta.to(kind)

    def grouped(x: Tensor) -> Tensor:
        """Activations [B, T, C], by routes where each is judged by its own channels."""
        if settings.credit == "all":
            return x
        return x.view(batch, steps, routes, bits).transpose(1, 2).reshape(batch * routes, steps, bits)

    def columns(x: Tensor) -> Tensor:
        """[B, T, R, n] as the right-hand side of past_sums."""
        if settings.credit == "all":
            return x.flatten(2).to(kind)
        return x.transpose(1, 2).reshape(batch * routes, steps, -1).to(kind)

    def routed(x: Tensor, count: int) -> Tensor:
        """The inverse of columns."""
        if settings.credit == "all":
            return x.view(batch, steps, routes, count)
        return x.view(batch, routes, steps, count).transpose(1, 2)

    theta, value = grouped(theta), grouped(value)
    count = past_counts(mask).unsqueeze(-1)  # n_t
    share = torch.where(count > 0, 1 / count.clamp(min=1), 0)

    keys = torch.cat([mask.unsqueeze(-1), *(term.key for term in terms)], -1)
    sums = routed(past_sums(theta, value, columns(keys)), keys.shape[-1])
    mean = share * sums[..., :1]  # of D_td over the candidates
    against = past_counts(keys)
    queries = torch.cat([term.query for term in terms], -1) * share
    back = routed(past_sums(value, theta, columns(queries), reverse=True), queries.shape[-1])
    back = back - future(queries * mean)
    found_q, found_k = [], []
    for index, term in enumerate(terms):
        at = 1 + index * bits
        exists = (term.query_at >= 0).unsqueeze(-1)
        gradient = share * (sums[..., at : at + bits] - mean * against[..., at : at + bits])
        found_q.append(term.weight * torch.where(exists, gradient, 0))
        found_k.append(term.weight * back[..., at - 1 : at - 1 + bits])
    gq = deliver(found_q, [term.query_at for term in terms], q, bits)
    gk = deliver(found_k, [term.key_at for term in terms], k, bits)
    return gq, gk


# ----------------------------------------------------------------------------------------------------------------- soft


def soft(q: Tensor, k: Tensor, v: Tensor, theta: Tensor, settings: Settings) -> Tuple[Tensor, Tensor]:
    """Weights by a softmax over -slope * Hamming distance, in strips of query steps against their whole past."""
    batch, steps, channels = q.shape
    bits = settings.bits
    routes = channels // bits
    mask, terms = candidates(q, k, settings)
    value = torch.sigmoid(v.float()) - 0.5

    def by_route(x: Tensor) -> Tensor:
        """[B, T, R, n] as [B, R, T, n]."""
        return x.transpose(1, 2).contiguous()

    # -Hamming = (signs . signs - M) / 2. The constant matters only where a term is missing for some pairs, so each term
    # has it as one more column: whether there is a symbol.
    left, right = [], []
    for term in terms:
        scale = settings.slope * term.weight / 2
        left += [term.query * scale, (term.query_at >= 0).unsqueeze(-1) * (-scale * bits)]
        right += [term.key, (term.key_at >= 0).unsqueeze(-1).float()]
    score_q, score_k = by_route(torch.cat(left, -1)), by_route(torch.cat(right, -1))
    sign_q = by_route(torch.cat([term.query for term in terms], -1))
    sign_k = by_route(torch.cat([term.key for term in terms], -1))
    theta_r = by_route(theta.view(batch, steps, routes, bits))
    value_r = by_route(value.view(batch, steps, routes, bits))
    barred = by_route(mask.unsqueeze(-1)).squeeze(-1) == 0  # [B, R, T]
    time = torch.arange(steps, device=q.device)

    grad_q, grad_k = torch.zeros_like(sign_q), torch.zeros_like(sign_k)
    height = max(1, min(steps, 128))
    width = max(1, STRIP_BYTES // (4 * height * steps))
    for entry in range(batch):
        for begin in range(0, steps, height):
            part, seen = slice(begin, min(begin + height, steps)), slice(0, min(begin + height, steps))
            later = time[seen] >= time[part].unsqueeze(1)
            gain = theta[entry, part] @ value[entry, seen].T if settings.credit == "all" else None
            for route in range(0, routes, width):
                some = (entry, slice(route, route + width))
                score = score_q[some][:, part] @ score_k[some][:, seen].transpose(1, 2)
                shut = barred[some][:, None, seen] | later
                weight = torch.softmax(score.masked_fill_(shut, -torch.inf), -1).masked_fill_(shut, 0)
                part_gain = theta_r[some][:, part] @ value_r[some][:, seen].transpose(1, 2) if gain is None else gain
                mean = (weight * part_gain).sum(-1, keepdim=True)
                credit = weight * (part_gain - mean) * settings.slope
                grad_q[some][:, part] = credit @ sign_k[some][:, seen]
                grad_k[some][:, seen] += credit.transpose(1, 2) @ sign_q[some][:, part]
    found_q, found_k = [], []
    for index, term in enumerate(terms):
        at = slice(index * bits, (index + 1) * bits)
        found_q.append(term.weight * grad_q[..., at].transpose(1, 2))
        found_k.append(term.weight * grad_k[..., at].transpose(1, 2))
    gq = deliver(found_q, [term.query_at for term in terms], q, bits)
    gk = deliver(found_k, [term.key_at for term in terms], k, bits)
    return gq, gk


# ---------------------------------------------------------------------------------------------------------- all of them


def backward(
    gy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e0: Tensor,
    e1: Tensor,
    read: Tensor,
    table: Tensor,
    wanted: Sequence[bool],
    settings: Settings,
) -> Gradients:
    """All gradients. ``read`` [B, T, R] is int64, ``table`` as rosa_find keeps it; ``wanted`` names q, k, v, e0, e1."""
    batch, steps, channels = q.shape
    bits = settings.bits
    q, k, v = (x.contiguous() for x in (q, k, v))
    gy = gy.float().contiguous()
    theta = gy * (e1 - e0)
    rows = Rows(batch, steps, channels // bits, q.device)
    hit = (read >= 0).unsqueeze(-1)
    results: List[Optional[Tensor]] = [None] * 5

    if wanted[3] or wanted[4]:
        bit = (fetch(v.reshape(-1, bits), rows.of(read)) > 0) & hit
        felt = gy.view(-1, channels // bits, bits)
        ones = torch.where(bit.view(felt.shape), felt, 0).sum(0).view(-1)
        results[3] = torch.where(hit.view(*felt.shape[:2], 1), felt, 0).sum(0).view(-1) - ones
        results[4] = ones
    if wanted[2]:
        landed = torch.zeros(v.numel() // bits, bits, device=v.device)
        source = torch.where(hit, theta.view(batch, steps, -1, bits), 0)
        landed.index_add_(0, rows.of(read).reshape(-1), source.reshape(-1, bits))
        results[2] = (slope_of(v) * landed.view_as(v)).to(v.dtype)
    if wanted[0] or wanted[1]:
        if settings.qk_grad == "flips":
            gq, gk = flips(q, k, v, theta, table, settings)
        elif settings.qk_grad == "none":
            gq, gk = torch.zeros_like(theta), torch.zeros_like(theta)
        else:
            gq, gk = (soft if settings.qk_grad == "soft" else linear)(q, k, v, theta, settings)
        results[0] = (slope_of(q) * gq).to(q.dtype)
        results[1] = (slope_of(k) * gk).to(k.dtype)
    return Gradients(*(given if asked else None for given, asked in zip(results, wanted)))
