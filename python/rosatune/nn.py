"""ROSA as a module, and the state that generation keeps.

:class:`RosaAdapter` is what a decoder layer gains: a projection to v, whose signs are the value bits; where the layer
looks up by itself, projections to q and k; the read-out; and a projection back. A new adapter adds nothing: ``e0`` and
``e1`` are 0, so that the model computes what it did before.

    pending = adapter.launch(u)          # u: the normed hidden state that attention is given
    a = attention(u)                     # on CUDA the retrieval runs at the same time
    h = h + (a + adapter.collect(pending))

Places that all layers share, those of token ids and embeddings, are looked up before the layers run
(:class:`rosatune.sources.Lookup`) and given to every adapter: ``adapter.launch(u, found=found)``.

:class:`RosaState` is the past of one adapter while a text is generated: the value bits of every step, C / 8 bytes each,
and where the layer looks up by itself, the retrieval streams. A text in pieces of any size reads the same as at once,
bit for bit.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Union

import numpy as np
import torch
from torch import Tensor, nn

from . import _learnt
from . import torch as _torch
from ._watch import Watch
from .config import ADAPTER, DEFAULTS, RosaConfig, Source, chosen
from .errors import InvalidArgument
from .finder import READS, Places, Rule
from .retrieval import Retrieved, retrieve
from .sources import Learnt, Reads
from .state import RosaState
from .torch import _distinct, _gradients, _past, _places, _read, _settings
from .torch._places import TensorPlaces
from .values import V_NORM_EPS, Table, is_plain, normed_embeddings, product_dtype

__all__ = ["RosaAdapter", "RosaState", "V_NORM_EPS", "normed_embeddings"]


JOINED = ("cuda",)  # kinds of devices on which q and k are one product in training


class Gate(nn.Module):
    """A weight between 0 and 2 per step, 2 sigmoid(u . weight + bias); 1 at the start."""

    def __init__(self, channels: int, device: Any = None, dtype: Optional[torch.dtype] = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))

    def forward(self, u: Tensor) -> Tensor:
        """[B, T], float32, for u [B, T, C]."""
        return _read.gate(self.seen(u), self.weight, self.bias)

    @staticmethod
    def kind(u: Tensor) -> torch.dtype:
        """The dtype in which projections see u."""
        device = u.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else u.dtype

    @staticmethod
    def seen(u: Tensor) -> Tensor:
        """u as the projections see it, so that what they keep for the backward pass serves the gate too."""
        return u.to(Gate.kind(u))


class _Source(NamedTuple):
    """A source as an adapter reads it."""

    source: Source
    rule: Rule
    first: int  # the first of its reads among all of the adapter
    row: int  # the first of its rows in the table of gains

    @property
    def reads(self) -> slice:
        return slice(self.first, self.first + self.rule.links)

    @property
    def rows(self) -> slice:
        return slice(self.row, self.row + self.rule.links * self.rule.routes)


class _Launched(NamedTuple):
    """Between launch and collect."""

    u: Tensor
    v: Optional[Tensor] = None
    state: Optional[RosaState] = None
    valid: Optional[Tensor] = None
    found: Optional[Reads] = None
    order: Optional[Tensor] = None
    q: Optional[Tensor] = None
    k: Optional[Tensor] = None
    pending: Optional[_torch.Pending] = None


def _alike(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors can be in one product, memory included."""
    return x.dtype == y.dtype and x.device == y.device and x.is_contiguous() and y.is_contiguous()


def _is_weight(projection: Any) -> bool:
    """Whether a projection is a product with its weight and nothing else."""
    return is_plain(projection, nn.Linear) and projection.bias is None


class RosaAdapter(nn.Module):
    """What ROSA adds to a decoder layer of ``channels`` channels.

    The options are those of :class:`rosatune.RosaConfig`, as an object or by name; those of the whole model (``window``
    and so on) are not used here, except that ``window`` is the delay where ``delay`` is None. ``layer`` is the number
    of the layer, which a source ``layer N`` needs. With pre fusion, :meth:`mix` is to be called. Exploration happens in
    training mode only.

    Parameters: ``v_proj.weight``, ``out_proj.weight``, ``e0`` and ``e1``, [C] or, where there are several reads,
    [reads, C]; where the layer looks up by itself, ``k_proj.weight`` and ``q_proj.weight`` (not with ``"shared"``);
    with ``gain`` the table ``gain`` [routes of all reads, 10]; with ``gate`` ``gate.weight`` and ``gate.bias``; and for
    pre fusion ``a0``, whose sigmoid is the share of what is read. ``a0`` starts at 0. The norm that follows cancels a
    factor common to all channels, so only a / (1 - a) matters, which is 1 at the start: what is read has the scale of
    the hidden state, as in post fusion. Halving is exact in floating point, so at the start the mixed state differs
    from the hidden state by the norm's epsilon alone.

    ``scale`` is the fixed factor of all that is read; ``rosatune.hf.attach`` sets it to ``units`` times the root mean
    square of the layer's input.

    For comparisons, set ``reads`` to ``"nothing"`` to read nothing, or to ``"random"`` to read at a random place, as
    old as the delay wants, instead of each that was found. ``retrieve = False`` is ``reads = "nothing"``. Set ``watch``
    to True to gather :meth:`diagnostics`.
    """

    def __init__(
        self,
        channels: int,
        config: Optional[RosaConfig] = None,
        *,
        layer: Optional[int] = None,
        device: Union[torch.device, str, None] = None,
        dtype: Optional[torch.dtype] = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.config = config = chosen("RosaAdapter", config, options, ADAPTER, ("layer", "device", "dtype"))
        self.settings = _settings.make(config)._replace(delay=config.delay_steps)
        self.channels, self.bits, self.fusion, self.qk = channels, config.bits, config.fusion, config.qk
        self.layer = layer
        if channels < 1:
            raise InvalidArgument(f"channels is {channels}; give 1 or more")
        self.sources: List[_Source] = []
        reads = rows = 0
        for source in config.sources:
            if layer is None and source.kind == "layer":
                raise InvalidArgument(f"source is {source.name!r}; say which layer this adapter is for: layer=")
            if source.serves(layer or 0):
                rule = Rule.of(config, source, channels, layer=layer or 0)
                self.sources.append(_Source(source, rule, reads, rows))
                reads, rows = reads + rule.links, rows + rule.links * rule.routes
        if not self.sources:
            raise InvalidArgument(
                f"source is {config.source!r}, which layer {layer} does not read; it needs no adapter"
            )
        self.scale = 1.0
        self.reads = "found"
        self.watch = False
        self._watched: Optional[Watch] = None
        self.table = Table()  # of a text by token

        def projection() -> nn.Linear:
            return nn.Linear(channels, channels, bias=False, device=device, dtype=dtype)

        def table(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        if self.learns:
            if config.qk != "shared":
                self.q_proj = projection()
            self.k_proj = projection()
        self.v_proj, self.out_proj = projection(), projection()
        shape = (channels,) if reads == 1 else (reads, channels)
        self.e0, self.e1 = table(*shape), table(*shape)
        if config.gain:
            self.gain = table(rows, _read.GAINS)
        if config.gate:
            self.gate = Gate(channels, device, dtype)
        if config.fusion == "pre":
            self.a0 = table(channels)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset all parameters to their starting values."""
        if self.learns:
            nn.init.xavier_uniform_(self.k_proj.weight)
            if self.qk == "aligned":
                self.q_proj.weight.copy_(self.k_proj.weight)
            elif self.qk == "separate":
                nn.init.xavier_uniform_(self.q_proj.weight)
        if self.config.v_start == "identity":
            nn.init.eye_(self.v_proj.weight)
        else:
            nn.init.xavier_uniform_(self.v_proj.weight)
        nn.init.eye_(self.out_proj.weight)
        nn.init.constant_(self.e0, -self.config.e_start)
        nn.init.constant_(self.e1, self.config.e_start)
        if self.config.gain:
            nn.init.ones_(self.gain)
        if self.config.gate:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)
        if self.fusion == "pre":
            nn.init.zeros_(self.a0)

    def train(self, mode: bool = True) -> "RosaAdapter":
        if mode != self.training:
            self.table.clear()  # a replayed training step changes weights without a trace
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> "RosaAdapter":
        self.table.clear()  # a model that moves leaves nothing behind
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        words = [str(self.channels)]
        for name, value in self.config.part(*ADAPTER).items():
            if name in ("source", "fusion", "qk", "bits") or value != getattr(DEFAULTS, name):
                words.append(f"{name}={value!r}")
        if self.scale != 1:
            words.append(f"scale={self.scale:.4g}")
        return ", ".join(words + ([] if self.reads == "found" else [f"reads={self.reads!r}"]))

    # ---------------------------------------------------------------------------------------------------------- sources

    @property
    def learns(self) -> bool:
        """Whether this layer has a q and a k: for itself, or for a source ``layer N`` of which it is layer N."""
        return any(self._mine(each.source) for each in self.sources)

    def _mine(self, source: Source) -> bool:
        return source.kind == "own" or (source.kind == "layer" and source.layer == self.layer)

    @property
    def learnt_rule(self) -> Optional[Rule]:
        """How this layer's own q and k are looked up; None: it has none."""
        return next((each.rule for each in self.sources if self._mine(each.source)), None)

    @property
    def reads(self) -> str:
        """What is read: ``"found"``, ``"nothing"`` or ``"random"``."""
        return self._reads

    @reads.setter
    def reads(self, value: str) -> None:
        if value not in READS:
            raise InvalidArgument(f"reads is {value!r}; give one of {', '.join(map(repr, READS))}")
        self._reads = value

    @property
    def retrieve(self) -> bool:
        """Whether anything is read."""
        return self._reads != "nothing"

    @retrieve.setter
    def retrieve(self, value: bool) -> None:
        self._reads = "found" if value else "nothing"

    @property
    def scale(self) -> float:
        """The fixed factor of all that is read."""
        return float(self._scale)

    @scale.setter
    def scale(self, value: float) -> None:
        # A tensor of the host: to compilers a number would make each layer a function of its own.
        self._scale = torch.tensor(value, dtype=torch.float64, device="cpu")

    def _levels(self, reads: slice) -> "tuple[Tensor, Tensor]":
        """e0 and e1 of some reads, float32 [reads, C]."""
        e0, e1 = (x.float().view(-1, self.channels)[reads] for x in (self.e0, self.e1))
        return e0, e1

    def _strength(self, each: _Source, z: Optional[Tensor], links: slice) -> _read.Strength:
        """What places of some links of a source are weighted by."""
        gain = None
        if self.config.gain:
            routes = each.rule.routes
            gain = self.gain.float()[each.row + links.start * routes : each.row + links.stop * routes]
        return _read.Strength(gain, z, self._scale)

    # ---------------------------------------------------------------------------------------------------------- forward

    def launch(
        self,
        u: Tensor,
        state: Optional[RosaState] = None,
        valid: Optional[Tensor] = None,
        found: Optional[Reads] = None,
        embeds: Optional[Tensor] = None,
    ) -> _Launched:
        """Begin: u [B, T, C] is the normed hidden state that attention is given. See :meth:`forward`."""
        self._check(u, valid, found, embeds)
        serves = any(each.source.kind == "layer" and self._mine(each.source) for each in self.sources)
        if self.reads == "nothing" and state is None and not serves:
            return _Launched(u)
        if found is not None and found.embedding is not None:
            return _Launched(u, None, state, valid, found)
        if embeds is not None and embeds.dtype != Gate.kind(u):  # under autocast they may have its dtype already
            embeds = embeds.to(u.dtype)
        made_of = u if embeds is None else embeds
        if not self.learns:
            return _Launched(u, self.v_proj(made_of), state, valid, found)
        order, there = None, u
        if valid is not None and state is None:
            # Move tokens to the front and padding behind them, where no token can find it.
            order = torch.argsort(valid.logical_not().byte(), dim=1, stable=True)
            there = torch.take_along_dim(u, order.unsqueeze(-1), 1)
        q, k = self._query_and_key(there)
        if state is not None:
            return _Launched(u, self.v_proj(made_of), state, valid, found, None, q, k)
        explore = self.settings.explore if self.training else 0.0
        draws = explore > 0 or (self.settings.qk_grad == "flips" and self.settings.flip_share < 1)
        seed = None
        if self.training and draws:
            # Drawn with and without gradients: a pass that is computed again must draw the same numbers.
            seed = torch.randint(0, 2**62, (), dtype=torch.int64, device="cpu")
        pending = _torch.launch(q, k, self._settings(explore), seed=seed)
        if self.watch and not torch.compiler.is_compiling():
            self._observe(q, k, valid)
        # after the launch, so that its product runs beside the retrieval
        return _Launched(u, self.v_proj(made_of), None, valid, found, order, q, k, pending)

    def _query_and_key(self, u: Tensor) -> "tuple[Tensor, Tensor]":
        """q and k of u, of one product where they learn on a device: u is read once, and so are their gradients."""
        if self.qk == "shared":
            k = self.k_proj(u)
            return k, k
        both = self.q_proj, self.k_proj
        if u.device.type in JOINED and torch.is_grad_enabled() and all(_is_weight(x) for x in both):
            joined = nn.functional.linear(u, torch.cat([x.weight for x in both]))
            q, k = joined.split_with_sizes([self.channels] * 2, 2)
            return q, k
        return self.q_proj(u), self.k_proj(u)

    def collect(self, launched: _Launched) -> Tensor:
        """What is to be added (post fusion) or mixed in (:meth:`mix`): [B, T, C]."""
        y = self._y(launched)
        return torch.zeros_like(launched.u) if y is None else self.out_proj(y)

    def add_to(self, h: Tensor, a: Tensor, launched: _Launched) -> Tensor:
        """Post fusion: h [B, T, C] with a, what attention gives, and what is read added."""
        if launched.state is None or torch.is_grad_enabled():
            # The products first: where h is finer than they, the norm that follows then keeps their sum and h for its
            # backward pass, and not each of the products.
            return h + (a + self.collect(launched).to(a.dtype))
        h = h + a
        y, out = self._y(launched), self.out_proj
        if y is None:
            return h
        if _is_weight(out) and all(_alike(h, x) for x in (y, out.weight)):
            h.view(-1, self.channels).addmm_(y.view(-1, self.channels), out.weight.t())  # one kernel instead of two
            return h
        return h + out(y).to(h.dtype)

    def _y(self, launched: _Launched) -> Optional[Tensor]:
        """What is read, before it is projected back; None: nothing."""
        if launched.state is not None:
            return self._continue(launched)
        if launched.v is None:
            return None
        reads = self.reads != "nothing"
        z = self.gate(launched.u) if reads and self.config.gate else None  # while the look-up may still be under way
        mine = self._look_up(launched) if launched.pending is not None else None
        return self._read_all(launched, launched.v, z, mine) if reads else None

    def forward(
        self,
        u: Tensor,
        state: Optional[RosaState] = None,
        valid: Optional[Tensor] = None,
        found: Optional[Reads] = None,
        embeds: Optional[Tensor] = None,
    ) -> Tensor:
        """What is read for u [B, T, C], the normed hidden state that attention is given: [B, T, C].

        state: the past, when a text comes in pieces. The steps of u are appended to it and read from all of it. This is
            for generation: no gradient passes through a state.
        valid: [B, T], False at padding. Such steps are neither looked up nor found, and read nothing, so that each row
            gets the result that it would get alone.
        found: the places of the sources that layers share, from a :class:`rosatune.sources.Lookup`.
        embeds: [B, T, C], with ``v_from="embeddings"``: the tokens' embeddings as :func:`normed_embeddings` makes them;
            where ``found`` names distinct tokens, those of them, [1, U, C].
        """
        return self.collect(self.launch(u, state, valid, found, embeds))

    def mix(self, h: Tensor, inj: Tensor) -> Tensor:
        """Pre fusion: (1 - a) h + a inj, to be normed and given to attention."""
        if self.fusion != "pre":
            raise InvalidArgument(
                "mix belongs to pre fusion; add what a post adapter gives to attention's output instead"
            )
        a = torch.sigmoid(self.a0.float()).to(h.dtype)
        return (1 - a) * h + a * inj.to(h.dtype)

    def _settings(self, explore: float) -> _settings.Settings:
        return self.settings if explore else _settings.unexploring(self.settings)

    def _check(
        self, u: Tensor, valid: Optional[Tensor], found: Optional[Reads], embeds: Optional[Tensor]
    ) -> None:
        if u.dim() != 3 or u.shape[-1] != self.channels:
            raise InvalidArgument(f"u has shape {list(u.shape)}; give [batch, steps, {self.channels}]")
        if valid is not None and (valid.shape != u.shape[:2] or valid.dtype != torch.bool):
            raise InvalidArgument(
                f"valid is {valid.dtype} of shape {list(valid.shape)}; give torch.bool of {list(u.shape[:2])}"
            )
        by_token = found is not None and found.embedding is not None
        wanted = u.shape if found is None or found.distinct is None else (1, len(found.distinct.step), self.channels)
        if not by_token and (embeds is not None) != (self.config.v_from == "embeddings"):
            raise InvalidArgument(
                f"v_from is {self.config.v_from!r}: "
                + ("leave embeds out" if embeds is not None else "give embeds=, from rosatune.nn.normed_embeddings")
            )
        if embeds is not None and embeds.shape != wanted:
            raise InvalidArgument(f"embeds has shape {list(embeds.shape)}; give {list(wanted)}")
        if found is None and self.reads != "nothing":
            shared = [each.source.name for each in self.sources if each.source.kind != "own"]
            if shared:
                raise InvalidArgument(
                    f"source {shared[0]!r} is looked up for all layers at once: give found=, from a "
                    f"rosatune.sources.Lookup"
                )

    # ---------------------------------------------------------------------------------------------------- a text at once

    def _look_up(self, launched: _Launched) -> Learnt:
        """What this layer's q and k find, left for the layers above where they read it too."""
        q, k, pending, rule = launched.q, launched.k, launched.pending, self.learnt_rule
        assert q is not None and k is not None and pending is not None and rule is not None
        found = _torch.find(q, k, pending)
        shape = (1, len(q), rule.routes, q.shape[1])
        tau, length = _gradients.wide(found.read).view(shape), found.length.view(shape)
        if rule.links > 1:
            known = found
            if rule.delay or pending.settings.explore:
                plain = _settings.unexploring(pending.settings)._replace(delay=0)
                known = _torch.find(q, k, _torch.Pending(None, None, plain, False))
            tau, length = _learnt.chain(rule.links, tau, length, _gradients.wide(known.read).view(shape[1:]),
                                 known.length.view(shape[1:]))  # fmt: skip
        trained = self.k_proj.weight.requires_grad
        learnt = Learnt(q, k, found, pending.settings, TensorPlaces(tau, length), launched.order, trained)
        for each in self.sources:
            if each.source.kind == "layer" and self._mine(each.source) and launched.found is not None:
                launched.found.learnt[each.source.name] = learnt
        return learnt

    def _of_layer(self, source: Source, found: Optional[Reads]) -> Learnt:
        """What layer N found."""
        learnt = None if found is None else found.learnt.get(source.name)
        if learnt is None:
            raise RuntimeError(
                f"source {source.name!r} was not looked up: layer {source.layer} has not run in this pass"
            )
        if self.training and torch.is_grad_enabled() and learnt.learns and not learnt.k.requires_grad:
            raise RuntimeError(
                f"the q and k of source {source.name!r} get no gradient from this layer, as layer {source.layer} ran "
                f"without: use gradient checkpointing with use_reentrant=False"
            )
        return learnt

    def _read_all(self, launched: _Launched, v: Tensor, z: Optional[Tensor], mine: Optional[Learnt]) -> Tensor:
        """y of all sources."""
        y = None
        for each in self.sources:
            if self._mine(each.source):
                assert mine is not None
                part = self._read_learnt(each, mine, launched, v, z)
            elif each.source.learnt:
                part = self._read_learnt(each, self._of_layer(each.source, launched.found), launched, v, z)
            else:
                part = self._read_shared(each, launched, v, z)
            y = part if y is None else y + part
        assert y is not None
        return y

    def _read_shared(self, each: _Source, launched: _Launched, v: Tensor, z: Optional[Tensor]) -> Tensor:
        """y of a source whose places were looked up before the layers ran."""
        assert launched.found is not None
        places = launched.found.of(each.source, self.reads, v.device)
        if self.watch and not torch.compiler.is_compiling():
            self._watch_places(places, launched.valid, 0)
        return self._read_at(each, places, v, z, slice(0, each.rule.links)).view(launched.u.shape)

    def _read_at(self, each: _Source, places: TensorPlaces, v: Tensor, z: Optional[Tensor], links: slice) -> Tensor:
        """y of some links of a source at their places; those of distinct tokens are of one row that has all steps."""
        if z is not None:
            z = z.view(places.tau.shape[1], -1)
        e0, e1 = self._levels(each.reads)
        return _read.read(v, places, self._strength(each, z, links), e0[links], e1[links], self.config.v_grad)

    def _read_learnt(
        self, each: _Source, learnt: Learnt, launched: _Launched, v: Tensor, z: Optional[Tensor]
    ) -> Tensor:
        """y of a source of q and k."""
        if self.reads == "random":
            learnt = _learnt.randomised(learnt, each.rule)
        order, valid, found = learnt.order, launched.valid, launched.found
        token = None if found is None or found.distinct is None else found.distinct.token.to(v.device)
        if order is not None:
            if token is None:
                v = torch.take_along_dim(v, order.unsqueeze(-1), 1)
            else:
                token = torch.take_along_dim(token, order, 1)
            z = None if z is None else torch.take_along_dim(z, order, 1)
        e0, e1 = self._levels(each.reads)
        given = (self._strength(each, z, slice(0, 1)), self.config.v_grad == "straight", token)
        y = _torch.read(learnt.q, learnt.k, v, e0[0], e1[0], learnt.found, learnt.settings, *given)
        if each.rule.links > 1:
            further = TensorPlaces(learnt.links.tau[1:], learnt.links.length[1:])
            if token is not None:
                further = _distinct.rows_at(further, token)
            y = y + self._read_at(each, further, v, z, slice(1, each.rule.links)).view(y.shape)
        if order is not None and valid is not None:
            y = torch.take_along_dim(y, torch.argsort(order, dim=1).unsqueeze(-1), 1)
            y = y.masked_fill(valid.logical_not().unsqueeze(-1), 0)
        return y

    # --------------------------------------------------------------------------------------------------- a text in pieces

    @torch.compiler.disable
    def _continue(self, launched: _Launched) -> Optional[Tensor]:
        """y of steps that continue a state."""
        if self.training and torch.is_grad_enabled():
            raise InvalidArgument(
                "a state is for generation, nothing is learnt through it; train without (use_cache=False)"
            )
        u, v, state, found = launched.u, launched.v, launched.state, launched.found
        assert state is not None
        past, begin = state.take(u)
        mine = self._find_in(launched) if self.learns else None
        if self.reads == "nothing":
            if v is not None:
                past.append(v, begin)
            return None
        bits = None
        if v is None:  # by token
            assert found is not None
            bits = self.table.of(found.embedding, self.v_proj)
        u, y = Gate.seen(u), None
        for each in self.sources:
            if self._mine(each.source):
                assert mine is not None
                places = mine
            else:
                assert found is not None
                places = found.of(each.source, self.reads, u.device)
                if self.watch:
                    steps = found.steps.get((each.source.name, self.reads), places)
                    self._watch_places(steps, launched.valid, begin)
            if bits is not None:
                part = _past.read_tokens(bits, u, places, self._parts(each))
            else:
                assert v is not None
                part = past.step(u, v, begin, places, self._parts(each), y is None, each.rule.delay)
            y = part if y is None else y + part
        return y

    @torch.no_grad()
    def keep(self, embeds: Tensor, state: RosaState, begin: int) -> None:
        """Keep the values of steps from ``begin`` on in a state, which has counted them: those of a text by token."""
        state.past.append(self.v_proj(embeds.to(product_dtype(self.v_proj.weight))), begin)

    def _parts(self, each: _Source) -> _past.Parts:
        """What a source is read with, as it is."""
        gate = self.gate if self.config.gate else None
        weight, bias = (None, None) if gate is None else (gate.weight, gate.bias)
        gain = self.gain if self.config.gain else None
        return _past.Parts(gain, weight, bias, self.e0, self.e1, self._scale, each.first, each.row)

    def _find_in(self, launched: _Launched) -> Optional[TensorPlaces]:
        """The places that this layer's q and k find in a state, left for the layers above where they read them too."""
        q, k, state, found = launched.q, launched.k, launched.state, launched.found
        assert q is not None and k is not None and state is not None
        kinds = {self.reads} if found is None else {self.reads, *found.kinds}
        marks = None if launched.valid is None else launched.valid.cpu().numpy()
        there = state.find_there(q, k, self.bits, marks, kinds, self.watch)
        if there is not None:
            made = {"found": there}
        else:
            places = state.find(_learnt.symbols([q, k], self.bits), marks, kinds, self._watching())
            made = {kind: _places.to_tensors(each, q.device) for kind, each in places.items()}
        for each in self.sources:
            if each.source.kind == "layer" and self._mine(each.source) and found is not None:
                found.places.update({(each.source.name, kind): there for kind, there in made.items()})
        return made.get(self.reads)

    # ------------------------------------------------------------------------------------------------------ diagnostics

    def _watching(self) -> Optional[Watch]:
        if not self.watch:
            return None
        if self._watched is None:
            self._watched = Watch()
        return self._watched

    @torch.compiler.disable
    def _observe(self, q: Tensor, k: Tensor, valid: Optional[Tensor]) -> None:
        """Retrieve once more, with match lengths, for the statistics alone."""
        watch, rule = self._watching(), self.learnt_rule
        assert watch is not None and rule is not None
        symbols = _learnt.symbols([q.detach(), k.detach()], self.bits)
        counts = [q.shape[1]] * len(q) if valid is None else valid.sum(1).tolist()
        for number, count in enumerate(counts):
            query, key = (np.ascontiguousarray(kind[number][:, :count]) for kind in symbols)
            found = retrieve(query, key, length=True, threads=torch.get_num_threads(), **rule.retrieval(rule.delay))
            assert isinstance(found, Retrieved) and found.length is not None
            watch.add(query, key, found.tau, found.length, np.arange(count, dtype=np.int32))

    @torch.compiler.disable
    def _watch_places(self, places: Union[TensorPlaces, Places], valid: Optional[Tensor], begin: int) -> None:
        """Add the first links of a source that was looked up elsewhere to the statistics."""
        watch = self._watching()
        assert watch is not None
        tau, length = (torch.as_tensor(x[0]).cpu().numpy().astype(np.int32) for x in places[:2])
        marks = np.ones((len(tau), tau.shape[2]), np.bool_) if valid is None else valid.cpu().numpy()
        time = np.arange(begin, begin + tau.shape[2], dtype=np.int32)
        for row, mine in enumerate(marks):
            watch.add(None, None, tau[row][:, mine], length[row][:, mine], time[mine])

    def diagnostics(self, reset: bool = True) -> Dict[str, float]:
        """What retrieval did in the forward passes since the last call, while ``watch`` was True; empty if none.

        steps, hit_rate: route-steps seen, and the share of them that found something;
        agreement: share of them whose q and k symbols are equal, where the layer has a q and a k;
        query_symbols, key_symbols: different symbols in use, on average over the routes, where it has;
        length_mean, length_median: of the matches, in runs;
        distance_mean, distance_median: from a step back to what it read.
        """
        watched = self._watched
        if reset:
            self._watched = None
        return {} if watched is None else watched.summary()
