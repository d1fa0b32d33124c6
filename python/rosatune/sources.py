"""The sources of a model: what is looked up once per forward pass and read by many layers.

A :class:`Lookup` belongs to a model and knows its sources. For every forward pass it makes a :class:`Reads`, which is
passed from layer to layer: it holds the places of ``tokens`` and ``embeddings`` from the start, and those of ``layer N``
once that layer has run. While a text is generated, the finders of the shared sources are kept in a :class:`LookupState`.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterable, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from . import torch as _torch
from .config import RosaConfig, Source
from .errors import InvalidArgument
from .finder import Finder, Places, Rule
from .torch import _places, _read
from .torch._places import TensorPlaces
from .torch._settings import Settings

__all__ = ["Learnt", "Lookup", "LookupState", "Reads"]


class Learnt(NamedTuple):
    """What a layer looked up by its q and k, for the layers that read it: tokens stand before padding here."""

    q: Tensor
    k: Tensor
    found: _torch.Found
    settings: Settings
    links: TensorPlaces  # its chain, the first link included
    order: Optional[Tensor]  # [B, T], where each step stood before padding was moved; None: there is none
    learns: bool  # whether q and k are to get gradients


class Reads:
    """What the layers of one forward pass read, by the source's name and by what is read (``found`` or ``random``).

    It is one object for all layers, also where arguments are copied on their way: layer N leaves its places here.
    """

    def __init__(self, kinds: Tuple[str, ...] = ("found",)) -> None:
        self.kinds = kinds
        self.places: Dict[Tuple[str, str], TensorPlaces] = {}
        self.learnt: Dict[str, Learnt] = {}

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


class LookupState:
    """The finders of the shared sources while a batch of texts grows. It can be copied and pickled."""

    def __init__(self, finders: Dict[str, Finder]) -> None:
        self._finders = finders

    def __getitem__(self, name: str) -> Finder:
        return self._finders[name]

    @property
    def bytes(self) -> int:
        """Every byte that is kept."""
        return sum(finder.nbytes for finder in self._finders.values())

    def rewind(self, steps: int) -> None:
        """Forget the last ``steps`` steps."""
        for finder in self._finders.values():
            finder.rewind(steps)

    def reorder(self, indices: Iterable[int]) -> None:
        """Row i becomes a copy of what row ``indices[i]`` was."""
        chosen = [int(index) for index in indices]
        for finder in self._finders.values():
            finder.reorder(chosen)

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

    def start(self, batch: int) -> LookupState:
        """A state for ``batch`` rows."""
        return LookupState({name: Finder(rule, batch) for name, rule in self.rules.items()})

    def __call__(
        self,
        ids: Optional[Tensor],
        embeds: Optional[Tensor],
        valid: Optional[Tensor] = None,
        state: Optional[LookupState] = None,
        reads: Iterable[str] = ("found",),
        known: Optional[Tensor] = None,
    ) -> Reads:
        """Look up a batch: token ids [B, T] and their embeddings [B, T, C], of which the sources need one or both.

        valid: [B, T], False at padding. state: the past, to which the steps are appended. reads: what adapters read.
        known: the places of the token ids, if they were looked up before (``_places.encode``).
        """
        kinds = tuple(kind for kind in dict.fromkeys(reads) if kind != "nothing")
        made = Reads(kinds)
        for name, rule in self.rules.items():
            if known is not None and name == "tokens" and state is None and kinds == ("found",):
                made.places[name, "found"] = _sorted(self._known(known, rule, ids, embeds))
                continue
            symbols = self._symbols(name, rule, ids, embeds)
            if state is not None:
                found = _advance(state[name], symbols, valid, kinds, (symbols if embeds is None else embeds).device)
            else:
                found = _places.find_places(rule, symbols, valid, kinds) if kinds else []
                found = [x if embeds is None else TensorPlaces(*(y.to(embeds.device) for y in x[:2])) for x in found]
            for kind, places in zip(kinds, found):
                made.places[name, kind] = _sorted(places)
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
        for name, rule in self.rules.items():
            there = self._symbols(name, rule, ids, embeds).cpu().numpy()
            found.update({(name, kind): x for kind, x in state[name].push(there, there, valid, reads).items()})
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


def _sorted(places: TensorPlaces) -> TensorPlaces:
    """Places with their order, which the gradients of all layers share; only the kernels of a GPU need it."""
    if not (places.tau.is_cuda and torch.is_grad_enabled()):
        return places
    return places._replace(**dict(zip(("entry", "first"), _read.sort_places(places.tau))))


@torch.compiler.disable
def _advance(
    finder: Finder, symbols: Tensor, valid: Optional[Tensor], kinds: Tuple[str, ...], device: torch.device
) -> Any:
    there = symbols.cpu().numpy()
    marks: Optional[np.ndarray] = None if valid is None else valid.cpu().numpy()
    found = finder.push(there, there, marks, kinds)
    return [_places.to_tensors(found[kind], device) for kind in kinds]
