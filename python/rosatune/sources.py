"""The sources of a model: what is looked up once per forward pass and read by many layers.

A :class:`Lookup` belongs to a model and knows its sources. For every forward pass it makes a :class:`Reads`, which is
passed from layer to layer: it holds the places of ``tokens`` and ``embeddings`` from the start, and those of ``layer N``
once that layer has run. While a text is generated, the finders of the shared sources are kept in a :class:`LookupState`.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from . import torch as _torch
from .config import RosaConfig, Source
from .errors import InvalidArgument
from .finder import Finder, Places, Rule
from .torch import _distinct, _places, _read
from .torch._places import TensorPlaces
from .torch._settings import Settings

__all__ = ["Learnt", "Lookup", "LookupState", "Reads"]


class Learnt(NamedTuple):
    """A layer's look-up by its q and k, for the layers that reuse it. In each row real tokens precede padding."""

    q: Tensor
    k: Tensor
    found: _torch.Found
    settings: Settings
    links: TensorPlaces  # its chain, the first link included
    order: Optional[Tensor]  # [B, T], position of each step before padding was moved; None: no padding
    learns: bool  # whether q and k get gradients


class Reads:
    """What the layers of one forward pass read, by the source's name and by what is read (``found`` or ``random``).

    It is one object for all layers, even if arguments are copied between them: layer N stores its places here.
    """

    def __init__(self, kinds: Tuple[str, ...] = ("found",)) -> None:
        self.kinds = kinds
        self.places: Dict[Tuple[str, str], TensorPlaces] = {}
        self.learnt: Dict[str, Learnt] = {}
        self.distinct: Optional[_distinct.Distinct] = None  # the distinct tokens that shared places index
        self.embedding: Any = None  # the model's embedding module, where places are token ids (values by token)
        self.steps: Dict[Tuple[str, str], Places] = {}  # the places of such a text as steps, on the host

    def of(self, source: Source, reads: str, device: torch.device) -> TensorPlaces:
        """The places of a source that is looked up before the layers run."""
        try:
            places = self.places[source.name, reads]
        except KeyError:
            raise RuntimeError(
                f"the places of source {source.name!r} ({reads}) were not looked up in this pass; set `reads` of all "
                f"adapters before the model is called"
            ) from None
        if places.tau.device == device:
            return places
        return TensorPlaces._make(None if x is None else x.to(device) for x in places)


class _Ids:
    """The token ids of rows of text that grow. A column before them holds -1, so that a place of -1 stays what it is."""

    def __init__(self, batch: int) -> None:
        self._kept, self._steps = np.full((batch, 1), -1, np.int32), 0

    @property
    def all(self) -> np.ndarray:
        """[rows, steps]"""
        return self._kept[:, 1 : 1 + self._steps]

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes

    def push(self, ids: np.ndarray) -> None:
        """Append ids [rows, t]."""
        end = self._steps + ids.shape[1]
        if end >= self._kept.shape[1]:
            # a quarter more than needed, so that the cost of growing is small per step
            room = np.full((len(ids), end * 5 // 4 + 16), -1, np.int32)
            room[:, 1 : 1 + self._steps] = self.all
            self._kept = room
        self._kept[:, 1 + self._steps : 1 + end] = ids
        self._steps = end

    def at(self, places: Places) -> Places:
        """Places [links, rows, routes, t] with the ids that stand there in the place of the steps."""
        rows, width = self._kept.shape
        first = np.arange(1, rows * width, width)[:, None, None]
        return places._replace(tau=self._kept.reshape(-1).take(places.tau + first))

    def rewind(self, steps: int) -> None:
        self._steps -= steps

    def reorder(self, rows: List[int]) -> None:
        self._kept = self._kept[rows]


class LookupState:
    """The finders of the shared sources while a batch of texts grows. It can be copied and pickled.

    A text *by token* keeps its token ids too, and its places are ids: rows of the adapters' tables (``values.py``).
    """

    def __init__(self, finders: Dict[str, Finder], ids: Optional[_Ids] = None) -> None:
        self._finders, self._ids = finders, ids

    @property
    def by_token(self) -> bool:
        """Whether places are token ids."""
        return self._ids is not None

    @property
    def bytes(self) -> int:
        """Every byte that is kept."""
        return sum(each.nbytes for each in self._parts)

    @property
    def _parts(self) -> List[Any]:
        return [*self._finders.values(), *([] if self._ids is None else [self._ids])]

    def begin(self, ids: Optional[Tensor]) -> None:
        """Steps are to come, of these token ids [B, t]."""
        if self._ids is not None:
            assert ids is not None
            self._ids.push(ids.cpu().numpy())

    def push(
        self, name: str, symbols: Tensor, valid: Optional[np.ndarray], kinds: Iterable[str]
    ) -> Tuple[Dict[str, Places], Dict[str, Places]]:
        """Append symbols [B, R, t] to a source: what they find, as adapters read it and as steps."""
        there = symbols.cpu().numpy()
        steps = self._finders[name].push(there, there, valid, kinds)
        return (steps if self._ids is None else {kind: self._ids.at(x) for kind, x in steps.items()}), steps

    def rewind(self, steps: int) -> None:
        """Forget the last ``steps`` steps."""
        for each in self._parts:
            each.rewind(steps)

    def reorder(self, indices: Iterable[int]) -> None:
        """Row i becomes a copy of what row ``indices[i]`` was."""
        chosen = [int(index) for index in indices]
        for each in self._parts:
            each.reorder(chosen)

    def by_step(self) -> Tensor:
        """The text is no longer one by token; gives its ids so far, [B, steps]."""
        assert self._ids is not None
        ids, self._ids = self._ids.all, None
        return torch.from_numpy(ids)

    def fork(self) -> "LookupState":
        """A second, independent state that continues from here."""
        return copy.deepcopy(self)


class Lookup:
    """The shared sources of a model of ``channels`` channels and ``vocabulary`` tokens."""

    def __init__(self, config: RosaConfig, channels: int, vocabulary: int) -> None:
        self.config = config
        self.rules = {
            source.name: Rule.of(config, source, channels, vocabulary) for source in config.sources if not source.learnt
        }

    def start(self, batch: int, by_token: bool = False) -> LookupState:
        """A state for ``batch`` rows; ``by_token``: places are to be token ids."""
        finders = {name: Finder(rule, batch) for name, rule in self.rules.items()}
        return LookupState(finders, _Ids(batch) if by_token else None)

    def __call__(
        self,
        ids: Optional[Tensor],
        embeds: Optional[Tensor],
        valid: Optional[Tensor] = None,
        state: Optional[LookupState] = None,
        reads: Iterable[str] = ("found",),
        known: Optional[Tensor] = None,
        distinct: Optional[_distinct.Distinct] = None,
    ) -> Reads:
        """Look up a batch: token ids [B, T] and their embeddings [B, T, C], of which the sources need one or both.

        valid: [B, T], False at padding. state: the past, to which the steps are appended. reads: what adapters read.
        known: the places of the token ids, if they were looked up before (``_places.encode``).
        distinct: the distinct tokens of the batch; places are then their numbers. Not beside a state.
        """
        kinds = tuple(kind for kind in dict.fromkeys(reads) if kind != "nothing")
        made = Reads(kinds)
        made.distinct = distinct
        if state is not None:
            device = (ids if embeds is None else embeds).device  # type: ignore[union-attr]
            symbols = {name: self._symbols(name, rule, ids, embeds) for name, rule in self.rules.items()}
            _advance(state, ids, symbols, valid, device, made)
            return made
        for name, rule in self.rules.items():
            if known is not None and name == "tokens" and state is None and kinds == ("found",):
                made.places[name, "found"] = _ready(self._known(known, rule, ids, embeds), distinct)
                continue
            found = _places.find_places(rule, self._symbols(name, rule, ids, embeds), valid, kinds) if kinds else []
            found = [x if embeds is None else TensorPlaces(*(y.to(embeds.device) for y in x[:2])) for x in found]
            for kind, places in zip(kinds, found):
                made.places[name, kind] = _ready(places, distinct)
        return made

    def advance(
        self,
        ids: Tensor,
        embeds: Optional[Tensor],
        valid: Optional[np.ndarray],
        state: LookupState,
        reads: Iterable[str],
    ) -> Dict[Tuple[str, str], Places]:
        """Append steps to a state; their places on the host, by the source's name and by what is read."""
        found = {}
        state.begin(ids)
        for name, rule in self.rules.items():
            there, _ = state.push(name, self._symbols(name, rule, ids, embeds), valid, reads)
            found.update({(name, kind): x for kind, x in there.items()})
        return found

    def _known(self, code: Tensor, rule: Rule, ids: Optional[Tensor], embeds: Optional[Tensor]) -> TensorPlaces:
        batch, steps = (ids if ids is not None else embeds).shape[:2]  # type: ignore[union-attr]
        if tuple(code.shape) != (batch, rule.links, rule.routes, steps):
            raise InvalidArgument(
                f"rosa_places is {list(code.shape)}, which is not {[batch, rule.links, rule.routes, steps]}: the batch "
                f"was cut or joined after its look-up, or looked up for other adapters"
            )
        return _places.decode(code)

    def _symbols(self, name: str, rule: Rule, ids: Optional[Tensor], embeds: Optional[Tensor]) -> Tensor:
        """[B, R, T]"""
        if name == "embeddings":
            if embeds is None:
                raise InvalidArgument("source 'embeddings' needs the embeddings of the tokens")
            return _places.embedding_symbols(embeds, self.config.source_seed, rule.bits)
        if ids is None:
            raise InvalidArgument(
                "source 'tokens' needs token ids, and the model was given inputs_embeds alone: pass input_ids beside "
                "them (generate passes on one of the two: give it input_ids), or attach with source='embeddings' or "
                "'own', which need none"
            )
        return ids.unsqueeze(1)


def _ready(places: TensorPlaces, distinct: Optional[_distinct.Distinct]) -> TensorPlaces:
    """Prepare places for the layers. On a GPU, add the sort order that the backward kernels share."""
    kept = places.tau.shape[3]
    if distinct is not None:
        places, kept = _distinct.rows_at(places, distinct.token), len(distinct.step)
    if not (places.tau.is_cuda and torch.is_grad_enabled()):
        return places
    return TensorPlaces(*places[:2], *_read.sort_places(places.tau, kept))


@torch.compiler.disable
def _advance(
    state: LookupState,
    ids: Optional[Tensor],
    symbols: Dict[str, Tensor],
    valid: Optional[Tensor],
    device: torch.device,
    made: Reads,
) -> None:
    """Append steps to a state, and the places found to ``made``."""
    marks: Optional[np.ndarray] = None if valid is None else valid.cpu().numpy()
    state.begin(ids)
    for name, each in symbols.items():
        found, steps = state.push(name, each, marks, made.kinds)
        for kind in made.kinds:
            made.places[name, kind] = _places.to_tensors(found[kind], device)
            if state.by_token:
                made.steps[name, kind] = steps[kind]
