"""ROSA as a module, and the state that generation keeps.

:class:`RosaAdapter` is what a decoder layer gains: projections to q, k and v, the operator of :mod:`rosatune.torch`,
and a projection back. A new adapter adds nothing: ``e0`` and ``e1`` are 0, so that the model computes what it did
before.

    pending = adapter.launch(u)          # u: the normed hidden state that attention is given
    a = attention(u)                     # on CUDA the retrieval runs at the same time
    h = h + a + adapter.collect(pending)

:class:`RosaState` is the past of one adapter while a text is generated. It holds a retrieval stream and the value
symbols of every row of the batch, on the host. A text in pieces of any size reads the same as at once, bit for bit.
"""

from __future__ import annotations

import bisect
import copy
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Union

import numpy as np
import torch
from torch import Tensor, nn

from . import torch as _torch
from ._watch import Watch
from .config import ADAPTER, DEFAULTS, RosaConfig, chosen
from .retrieval import Retrieved, retrieve
from .stream import Stream
from .torch import _device, _host, _settings

__all__ = ["RosaAdapter", "RosaState"]

ROUTES_PER_THREAD = 16


# ---------------------------------------------------------------------------------------------------------------- state


class _Row:
    """The past of one row: its retrieval stream, and its value symbols [R, capacity], set for the steps taken."""

    def __init__(self, routes: int, config: RosaConfig, threads: int) -> None:
        self.stream = Stream(routes, threads=threads, **config.part("retrieval"))
        self.values = np.empty((routes, 0), np.uint16)
        self.padding: List[int] = []  # steps of the batch that were padding in this row

    def push(self, query: np.ndarray, key: np.ndarray, value: np.ndarray, length: bool) -> Any:
        begin, count = self.stream.steps, query.shape[1]
        found = self.stream.push(query, key, length=length)
        if begin + count > self.values.shape[1]:
            # a quarter more than needed, so that the cost of growing is small per step
            room = np.empty((len(self.values), (begin + count) * 5 // 4 + 16), np.uint16)
            room[:, :begin] = self.values[:, :begin]
            self.values = room
        self.values[:, begin : begin + count] = value
        return found

    def read(self, tau: np.ndarray) -> np.ndarray:
        return np.take_along_axis(self.values, np.maximum(tau, 0), 1)


class RosaState:
    """What an adapter keeps of the text so far, for a batch of ``batch`` rows.

    Give it to the adapter with every piece of the text: ``adapter(u, state=state)``. It can be copied and pickled.
    """

    def __init__(self, adapter: "RosaAdapter", batch: int) -> None:
        if batch < 1:
            raise ValueError(f"batch is {batch}; give the number of rows, 1 or more")
        self._routes = adapter.channels // adapter.bits
        self._config = adapter.config
        # Every stream has its own threads, and a model has a state per layer: few threads, each with enough work.
        self._threads = max(1, min(torch.get_num_threads(), self._routes // ROUTES_PER_THREAD) // batch)
        self._steps = 0
        self._rows = [self._new_row() for _ in range(batch)]

    def _new_row(self) -> _Row:
        return _Row(self._routes, self._config, self._threads)

    @property
    def batch(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def steps(self) -> int:
        """Steps taken, padding counted."""
        return self._steps

    @property
    def lengths(self) -> List[int]:
        """Steps of each row, padding not counted."""
        return [row.stream.steps for row in self._rows]

    @property
    def bytes(self) -> int:
        """Every byte that is kept."""
        return sum(row.stream.nbytes + row.values.nbytes for row in self._rows)

    def reset(self) -> None:
        """Forget everything."""
        self._steps = 0
        self._rows = [self._new_row() for _ in self._rows]

    def rewind(self, steps: int) -> None:
        """Forget the last ``steps`` steps."""
        if not 0 <= steps <= self._steps:
            raise ValueError(f"steps is {steps}; the state holds {self._steps}, more cannot be forgotten")
        self._steps -= steps
        for row in self._rows:
            del row.padding[bisect.bisect_left(row.padding, self._steps) :]
            row.stream.rewind(self._steps - len(row.padding))

    def reorder(self, indices: Union[Tensor, Iterable[int]]) -> None:
        """Row i becomes a copy of what row ``indices[i]`` was: beam search, and batches that grow or shrink."""
        chosen = [int(index) for index in indices]
        for index in chosen:
            if not 0 <= index < len(self._rows):
                raise ValueError(f"indices has {index}; there are rows 0 to {len(self._rows) - 1}")
        if not chosen:
            raise ValueError("indices is empty; a state has one row at least")
        taken = set()
        rows = []
        for index in chosen:
            rows.append(copy.deepcopy(self._rows[index]) if index in taken else self._rows[index])
            taken.add(index)
        self._rows = rows

    def fork(self) -> "RosaState":
        """A second, independent state that continues from here."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return f"<RosaState batch={self.batch} steps={self.steps} routes={self._routes} bits={self._config.bits}>"

    def push(
        self, symbols: np.ndarray, valid: Optional[np.ndarray], watch: Optional[Watch] = None
    ) -> "tuple[np.ndarray, np.ndarray]":
        """Append symbols [3, B, R, t] of q, k and v. Gives the value symbols read and whether any were, [B, R, t].

        Steps that ``valid`` [B, t] excludes are not appended and read nothing.
        """
        if symbols.shape[1:3] != (self.batch, self._routes):
            raise ValueError(
                f"{symbols.shape[1]} rows of {symbols.shape[2]} routes come to a state of "
                f"{self.batch} rows of {self._routes}; make a state for this adapter and batch"
            )
        read, hit = np.zeros(symbols.shape[1:], np.uint16), np.zeros(symbols.shape[1:], np.bool_)
        for number, row in enumerate(self._rows):
            mine: Any = slice(None)
            if valid is not None and not valid[number].all():
                mine = np.flatnonzero(valid[number])
                row.padding += (np.flatnonzero(~valid[number]) + self._steps).tolist()
            query, key, value = (np.ascontiguousarray(kind[number][:, mine]) for kind in symbols)
            if query.shape[1] == 0:
                continue
            begin = row.stream.steps
            found = row.push(query, key, value, watch is not None)
            tau = found.tau if isinstance(found, Retrieved) else found
            if watch is not None:
                watch.add(query, key, tau, found.length, begin)
            read[number][:, mine] = row.read(tau)
            hit[number][:, mine] = tau >= 0
        self._steps += symbols.shape[3]
        return read, hit


# -------------------------------------------------------------------------------------------------------------- adapter


class _Launched(NamedTuple):
    """Between launch and collect: q, k, v and the pending retrieval, or y where it is already known."""

    q: Optional[Tensor] = None
    k: Optional[Tensor] = None
    v: Optional[Tensor] = None
    pending: Optional[_torch.Pending] = None
    explore: float = 0.0
    order: Optional[Tensor] = None
    valid: Optional[Tensor] = None
    y: Optional[Tensor] = None


class RosaAdapter(nn.Module):
    """What ROSA adds to a decoder layer of ``channels`` channels.

    The options are those of :class:`rosatune.RosaConfig`, as an object or by name; those of the whole model (``window``
    and so on) are not used here. With pre fusion, :meth:`mix` is to be called. Exploration happens in training mode
    only.

    Parameters: ``q_proj.weight`` (not with ``"shared"``), ``k_proj.weight``, ``v_proj.weight``, ``out_proj.weight``,
    ``e0``, ``e1`` and, for pre fusion, ``a0``, whose sigmoid is the share of what is read. ``a0`` starts at 0. The norm
    that follows cancels a factor common to all channels, so only a / (1 - a) matters, which is 1 at the start: what is
    read has the scale of the hidden state, as in post fusion. Halving is exact in floating point, so at the start the
    mixed state differs from the hidden state by the norm's epsilon alone.

    Set ``retrieve`` to False to read nothing, for comparisons, and ``watch`` to True to gather :meth:`diagnostics`.
    """

    def __init__(
        self,
        channels: int,
        config: Optional[RosaConfig] = None,
        *,
        device: Union[torch.device, str, None] = None,
        dtype: Optional[torch.dtype] = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.config = config = chosen("RosaAdapter", config, options, ADAPTER, ("device", "dtype"))
        self.settings = _settings.make(config)
        if channels < 1 or channels % config.bits:
            fitting = ", ".join(str(bits) for bits in range(1, 17) if channels > 0 and channels % bits == 0)
            raise ValueError(f"channels is {channels}, not a multiple of bits ({config.bits}); bits may be {fitting}")
        self.channels, self.bits, self.fusion, self.qk = channels, config.bits, config.fusion, config.qk
        self.retrieve = True
        self.watch = False
        self._watched: Optional[Watch] = None

        def projection() -> nn.Linear:
            return nn.Linear(channels, channels, bias=False, device=device, dtype=dtype)

        def level() -> nn.Parameter:
            return nn.Parameter(torch.empty(channels, device=device, dtype=dtype))

        if config.qk != "shared":
            self.q_proj = projection()
        self.k_proj, self.v_proj, self.out_proj = projection(), projection(), projection()
        self.e0, self.e1 = level(), level()
        if config.fusion == "pre":
            self.a0 = level()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset all parameters to their starting values."""
        nn.init.xavier_uniform_(self.k_proj.weight)
        if self.qk == "aligned":
            self.q_proj.weight.copy_(self.k_proj.weight)
        elif self.qk == "separate":
            nn.init.xavier_uniform_(self.q_proj.weight)
        nn.init.xavier_uniform_(self.v_proj.weight)
        nn.init.eye_(self.out_proj.weight)
        nn.init.constant_(self.e0, -self.config.e_start)
        nn.init.constant_(self.e1, self.config.e_start)
        if self.fusion == "pre":
            nn.init.zeros_(self.a0)

    def extra_repr(self) -> str:
        words = [str(self.channels)]
        for name, value in self.config.part(*ADAPTER).items():
            if name in ("fusion", "qk", "bits") or value != getattr(DEFAULTS, name):
                words.append(f"{name}={value!r}")
        return ", ".join(words + ([] if self.retrieve else ["retrieve=False"]))

    # ---------------------------------------------------------------------------------------------------------- forward

    def launch(self, u: Tensor, state: Optional[RosaState] = None, valid: Optional[Tensor] = None) -> _Launched:
        """Begin: u [B, T, C] is the normed hidden state that attention is given. See :meth:`forward`."""
        self._check(u, valid)
        if not self.retrieve and state is None:
            return _Launched(y=torch.zeros_like(u))
        order = None
        if valid is not None and state is None:
            # Move tokens to the front and padding behind them, where no token can find it.
            order = torch.argsort(valid.logical_not().byte(), dim=1, stable=True)
            u = torch.take_along_dim(u, order.unsqueeze(-1), 1)
        k, v = self.k_proj(u), self.v_proj(u)
        q = k if self.qk == "shared" else self.q_proj(u)
        if state is not None:
            return _Launched(y=self._continue(q, k, v, state, valid))
        explore = self.settings.explore if self.training else 0.0
        draws = explore > 0 or (self.settings.qk_grad == "flips" and self.settings.flip_share < 1)
        seed = None
        if self.training and draws:
            # Drawn with and without gradients: a pass that is computed again must draw the same numbers.
            seed = torch.randint(0, 2**62, (), dtype=torch.int64, device="cpu")
        pending = _torch.launch(q, k, self._settings(explore), seed=seed)
        if self.watch and not torch.compiler.is_compiling():
            self._observe(q, k, valid)
        return _Launched(q, k, v, pending, explore, order, valid)

    def collect(self, launched: _Launched) -> Tensor:
        """What is to be added (post fusion) or mixed in (:meth:`mix`): [B, T, C]."""
        y = launched.y
        if y is None:
            q, k, v, pending, explore, order, valid, _ = launched
            y = _torch.rosa(q, k, v, self.e0, self.e1, self._settings(explore), pending=pending)
            if order is not None and valid is not None:
                y = torch.take_along_dim(y, torch.argsort(order, dim=1).unsqueeze(-1), 1)
                y = y.masked_fill(valid.logical_not().unsqueeze(-1), 0)
        elif not self.retrieve:
            return torch.zeros_like(y)
        return self.out_proj(y)

    def forward(self, u: Tensor, state: Optional[RosaState] = None, valid: Optional[Tensor] = None) -> Tensor:
        """What is read for u [B, T, C], the normed hidden state that attention is given: [B, T, C].

        state: the past, when a text comes in pieces. The steps of u are appended to it and read from all of it. This is
            for generation: no gradient passes through a state.
        valid: [B, T], False at padding. Such steps are neither looked up nor found, and read nothing, so that each row
            gets the result that it would get alone.
        """
        return self.collect(self.launch(u, state, valid))

    def mix(self, h: Tensor, inj: Tensor) -> Tensor:
        """Pre fusion: (1 - a) h + a inj, to be normed and given to attention."""
        if self.fusion != "pre":
            raise ValueError("mix belongs to pre fusion; add what a post adapter gives to attention's output instead")
        a = torch.sigmoid(self.a0.float()).to(h.dtype)
        return (1 - a) * h + a * inj.to(h.dtype)

    def _settings(self, explore: float) -> _settings.Settings:
        return self.settings if explore else _settings.unexploring(self.settings)

    def _check(self, u: Tensor, valid: Optional[Tensor]) -> None:
        if u.dim() != 3 or u.shape[-1] != self.channels:
            raise ValueError(f"u has shape {list(u.shape)}; give [batch, steps, {self.channels}]")
        if valid is not None and (valid.shape != u.shape[:2] or valid.dtype != torch.bool):
            raise ValueError(
                f"valid is {valid.dtype} of shape {list(valid.shape)}; give torch.bool of {list(u.shape[:2])}"
            )

    @torch.compiler.disable
    def _continue(self, q: Tensor, k: Tensor, v: Tensor, state: RosaState, valid: Optional[Tensor]) -> Tensor:
        """y of steps that continue a state."""
        if self.training and torch.is_grad_enabled():
            raise ValueError("a state is for generation, nothing is learnt through it; train without (use_cache=False)")
        marks = None if valid is None else valid.cpu().numpy()
        read, hit = state.push(_symbols([q, k, v], self.bits), marks, self._watching())
        symbol = torch.from_numpy(read.astype(np.int32)).to(v.device).transpose(1, 2).unsqueeze(-1)
        found = torch.from_numpy(hit).to(v.device).transpose(1, 2).unsqueeze(-1)
        bit = (symbol >> torch.arange(self.bits, device=v.device, dtype=torch.int32)) & 1
        e0, e1 = (x.detach().float().view(-1, self.bits) for x in (self.e0, self.e1))
        y = torch.where(bit.bool(), e1, e0) * found
        return y.to(v.dtype).reshape(v.shape)

    # ------------------------------------------------------------------------------------------------------ diagnostics

    def _watching(self) -> Optional[Watch]:
        if not self.watch:
            return None
        if self._watched is None:
            self._watched = Watch(self.channels // self.bits, self.bits)
        return self._watched

    @torch.compiler.disable
    def _observe(self, q: Tensor, k: Tensor, valid: Optional[Tensor]) -> None:
        """Retrieve once more, with match lengths, for the statistics alone."""
        watch = self._watching()
        assert watch is not None
        symbols = _symbols([q.detach(), k.detach()], self.bits)
        counts = [q.shape[1]] * len(q) if valid is None else valid.sum(1).tolist()
        for number, count in enumerate(counts):
            query, key = (np.ascontiguousarray(kind[number][:, :count]) for kind in symbols)
            found = retrieve(query, key, length=True, threads=torch.get_num_threads(), **self.config.part("retrieval"))
            assert isinstance(found, Retrieved) and found.length is not None
            watch.add(query, key, found.tau, found.length, 0)

    def diagnostics(self, reset: bool = True) -> Dict[str, float]:
        """What retrieval did in the forward passes since the last call, while ``watch`` was True; empty if none.

        steps, hit_rate: route-steps seen, and the share of them that found something;
        agreement: share of them whose q and k symbols are equal;
        query_symbols, key_symbols: different symbols in use, on average over the routes;
        length_mean, length_median: of the matches, in runs;
        distance_mean, distance_median: from a step back to what it read.
        """
        watched = self._watched
        if reset:
            self._watched = None
        return {} if watched is None else watched.summary()


def _symbols(tensors: List[Tensor], bits: int) -> np.ndarray:
    """Symbols on the host, [len(tensors), B, R, T]."""
    if tensors[0].device.type == "cpu":
        packed = _host.pack([x.detach().contiguous() for x in tensors], bits, torch.get_num_threads())
    else:
        packed = list(torch.stack([_device.host_layout(x.detach(), bits) for x in tensors]).cpu())
    shape = (len(tensors[0]), tensors[0].shape[2] // bits, tensors[0].shape[1])
    return np.stack([x.numpy().view(np.uint16).reshape(shape) for x in packed])
