"""The pointer: tokens that followed earlier occurrences of the present context get more probability.

Retrieval over token ids finds, for every position of a text, the places of a chain (*links*): where the longest match
of the text's ending went on, then where that place's own longest match went on, and so on. Each link has the token that
stands there and a match length ``l``. With ``a_i = exp(theta[i][min(l_i, 12)])`` the model's distribution of the next
token becomes

    p(x) = (p_model(x) + sum of a_i over the links whose token is x) / (1 + sum of all a_i)

Links that do not exist are left out. With *confidence slopes* ``(b, c)`` per link the exponent has in addition
``b log p_model(token of the link) + c log max p_model``, so that the weight depends on how sure the model is; both
logarithms are cut at -50. With *agreement* it has ``agreement[u - 1]``, u being the number of different tokens among
the links of the position: places that agree are right more often.

A pointer *by contexts* looks at all places of the last two tokens instead of a chain: the 64 newest, and those among
the 32 newest of the last token that share only that one. Its links are the different tokens found there, at most 16, so
one row of theta serves them all, and the exponent has in addition ``slopes[name] * feature`` for each of these:

    token      log p_model(token of the link), cut at -50
    greatest   log max p_model, likewise
    entropy    of p_model, in nats
    alignment  of the last 16 tokens, the share that equals those before the place, one by one
    share      log((n + 0.3) / (N + 1)): n of the N places whose match is as long or longer are followed by the token
    places     log(1 + the number of places)
    different  log of the number of different tokens that follow them
    success    log(0.01 + s), s a running mean of how often the first token found was the next one

With a table *seen* it also remembers which tokens the text has had at all. A token x that stands at n of the positions
that may be found (those before the delay) has ``b(x) = seen[c][r]``, where ``c = min(floor(log2 n), 3)`` says how often
it was seen, and ``r = floor(log2(x + 64)) - 6`` how rare it is elsewhere: ids of byte-pair vocabularies are ordered by
frequency. Then ``p_model(x) exp(b(x)) / Z`` takes the place of ``p_model(x)`` in the mixture, with the Z that makes it
a distribution; tokens that were not seen have b = 0. Features are those of p_model still.

The numbers are fitted with the model frozen (``rosatune.hf.fit_pointer``) and kept in a file, ``pointer.json``, which
the program reads too.

This module is the table, its file and the look-up, on NumPy arrays. ``rosatune.torch.pointer`` mixes the tokens found
into logits, and ``rosatune.hf`` adds a pointer to a model of transformers.
"""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from typing import Any, Iterable, NamedTuple, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _c
from .config import read_json, replace_file
from .contexts import CANDIDATES, Contexts
from .errors import AdapterError, InvalidArgument, SymbolError
from .finder import Finder, Places, Rule, find
from .seen import COUNTS, RANKS, Seen, SeenStream

__all__ = ["FEATURES", "LEAST", "LENGTHS", "Links", "POINTER_FILE", "Pointer", "PointerStream"]

POINTER_FILE = "pointer.json"  # its name in an adapter's folder
FORMAT = 1  # of that file, for chains
FORMAT_CONTEXTS = 2
FEATURES = ("token", "greatest", "entropy", "alignment", "share", "places", "different", "success")
OF_MODEL = 3  # so many of them come from the model, the others from the text alone
LENGTHS = 13  # match lengths 0 to 11, and 12 or more
LINKS = 16  # at most
LARGEST = 50.0  # of a number in a table: exp() of a few of them stays finite
LEAST = -50.0  # of the logarithm of a probability that a slope multiplies
BITS = 20  # of a token id

Name = Union[str, "os.PathLike[str]"]


class Links(NamedTuple):
    """What a pointer finds at each position of a text, for the token that comes next."""

    places: npt.NDArray[np.int32]  #: [..., steps, links], positions; -1 where the chain has ended
    tokens: npt.NDArray[np.int64]  #: [..., steps, links], the ids that stand there; -1 where the chain has ended
    lengths: npt.NDArray[np.int32]  #: [..., steps, links], match lengths, cut at 255; 0 where the chain has ended
    #: [..., steps, links, 5], of pointers by contexts: the features from alignment on; of chains [..., steps, links, 0]
    clues: npt.NDArray[np.float64]
    seen: Optional[Seen] = None  #: [..., steps], of pointers with a table seen


class Pointer:
    """A fitted pointer.

    ``theta``       [links][13] numbers: the logarithm of a link's weight by its rank in the chain and its match length
    ``delay``       only places at least this many positions back are found. Beside a window of attention it is the
                    window: what attention still sees need not be found
    ``confidence``  [links][2] slopes, or None
    ``agreement``   [links] numbers, or None
    ``slopes``      of a pointer by contexts: numbers by name of feature, those left out being 0; ``theta`` is then
                    [13], and there is neither confidence nor agreement
    ``seen``        [4][15] numbers of a pointer by contexts, or None

    The attribute ``fit`` of one that ``rosatune.hf.fit_pointer`` made has the losses before and after; it is not saved.

    >>> pointer = Pointer(theta=[[-1.0] * 13] * 2, delay=0)
    >>> found = pointer.look_up([7, 8, 5, 7, 8, 9, 7, 8])
    >>> found.tokens[-1], found.lengths[-1]
    (array([9, 5]), array([2, 2], dtype=int32))
    """

    __slots__ = ("_agreement", "_confidence", "_delay", "_seen", "_slopes", "_theta", "fit")

    def __init__(
        self,
        theta: npt.ArrayLike,
        delay: int,
        confidence: Optional[npt.ArrayLike] = None,
        agreement: Optional[npt.ArrayLike] = None,
        slopes: "Optional[dict[str, float]]" = None,
        seen: Optional[npt.ArrayLike] = None,
    ) -> None:
        self._delay = _c.integer("delay", delay, 0, _c.MAX_STEPS)
        self._slopes = None if slopes is None else _slopes(slopes)
        if slopes is not None and (confidence is not None or agreement is not None):
            raise InvalidArgument("a pointer with slopes is one by contexts; it has no confidence and no agreement")
        if slopes is not None:
            self._theta = _table("theta", [theta], 1, LENGTHS)[0]
        else:
            self._theta = _table("theta", theta, None, LENGTHS)
        self._confidence = None if confidence is None else _table("confidence", confidence, self.links, 2)
        self._agreement = None if agreement is None else _table("agreement", [agreement], None, self.links)[0]
        if seen is not None and slopes is None:
            raise InvalidArgument("seen is a table of pointers by contexts; give slopes too, or leave it out")
        self._seen = None if seen is None else _table("seen", seen, COUNTS, RANKS)
        self.fit: Any = None

    @property
    def delay(self) -> int:
        """Places are at least this many positions back."""
        return self._delay

    @property
    def links(self) -> int:
        """The number of links in a chain; by contexts how many tokens may be found."""
        return CANDIDATES if self.contexts else len(self._theta)

    @property
    def contexts(self) -> bool:
        """Whether it looks at contexts and not at a chain."""
        return self._slopes is not None

    @property
    def slopes(self) -> "Optional[dict[str, float]]":
        """By name of feature, all of them, of a pointer by contexts; else None."""
        return None if self._slopes is None else dict(self._slopes)

    @property
    def theta(self) -> npt.NDArray[np.float64]:
        """[links, 13], by contexts [13]; read-only."""
        return self._theta

    @property
    def confidence(self) -> Optional[npt.NDArray[np.float64]]:
        """[links, 2], read-only, or None."""
        return self._confidence

    @property
    def agreement(self) -> Optional[npt.NDArray[np.float64]]:
        """[links], read-only, or None."""
        return self._agreement

    @property
    def seen(self) -> Optional[npt.NDArray[np.float64]]:
        """[4, 15], read-only, or None."""
        return self._seen

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pointer):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict()))

    def __repr__(self) -> str:
        slopes = "" if self._confidence is None else " confidence"
        slopes += "" if self._agreement is None else " agreement"
        seen = "" if self._seen is None else " seen"
        kind = f"contexts{seen}" if self.contexts else f"links={self.links}{slopes}"
        return f"<rosatune.Pointer delay={self._delay} {kind}>"

    # -------------------------------------------------------------------------------------------------------- look-up

    def look_up(self, ids: npt.ArrayLike, threads: int = 0) -> Links:
        """The links of every position of whole texts: token ids below 2**20, [steps] or [..., steps]."""
        tokens = _tokens(ids)
        if self.contexts:
            flat = tokens.reshape(math.prod(tokens.shape[:-1]), tokens.shape[-1])
            links = _continuations(Contexts(self._delay, len(flat)).push(flat))
            if self._seen is not None:
                links = links._replace(seen=Seen.whole(flat, self._delay))
            return _reshaped(links, tokens.shape)
        rows = tokens.reshape(math.prod(tokens.shape[:-1]), 1, tokens.shape[-1])
        found = _links(rows[:, 0], find(_rule(self._delay, self.links), rows, rows, threads=threads)["found"])
        return _reshaped(found, tokens.shape)

    def stream(self, batch: int = 1) -> "PointerStream":
        """The look-up of texts that grow."""
        return PointerStream(self._delay, self.links, batch, self.contexts, self._seen is not None)

    # ---------------------------------------------------------------------------------------------------------- files

    def to_dict(self) -> "dict[str, Any]":
        """The fields of the file."""
        from . import __version__

        if self._slopes is not None:
            seen = {} if self._seen is None else {"seen": self._seen.tolist()}
            return {
                "format": FORMAT_CONTEXTS,
                "rosatune_version": __version__,
                "delay": self._delay,
                "theta": self._theta.tolist(),
                "slopes": dict(self._slopes),
                **seen,
            }
        fields: dict[str, Any] = {"format": FORMAT, "rosatune_version": __version__}
        fields.update(delay=self._delay, links=self.links, theta=self._theta.tolist())
        if self._confidence is not None:
            fields["confidence"] = self._confidence.tolist()
        if self._agreement is not None:
            fields["agreement"] = self._agreement.tolist()
        return fields

    def save(self, path: Name) -> None:
        """Write it to a file, or to ``pointer.json`` in a folder that exists. A failed save leaves the older file."""
        lines = []
        for name, value in self.to_dict().items():
            text = json.dumps(value)
            if isinstance(value, list) and isinstance(value[0], list):
                rows = ",\n    ".join(json.dumps(row) for row in value)
                text = f"[\n    {rows}\n  ]"
            lines.append(f"  {json.dumps(name)}: {text}")
        content = "{\n" + ",\n".join(lines) + "\n}\n"
        replace_file(_file(path), lambda name: Path(name).write_text(content, encoding="utf-8"))

    @classmethod
    def load(cls, path: Name) -> "Pointer":
        """Read it from a file that :meth:`save` or ``rosatune tune`` wrote, or from ``pointer.json`` in a folder."""
        file = _file(path)
        fields = read_json(file, "rosatune.hf.fit_pointer makes a pointer, and its method save writes it")
        try:
            return cls.from_dict(fields)
        except (TypeError, ValueError) as error:
            raise AdapterError(f"{file}: {error}") from error

    @classmethod
    def from_dict(cls, fields: "dict[str, Any]") -> "Pointer":
        """A pointer from the fields of its file."""
        version = fields.get("format")
        if type(version) is not int or version not in (FORMAT, FORMAT_CONTEXTS):
            raise InvalidArgument(
                f"the field 'format' is {version!r}; this version reads {FORMAT} and {FORMAT_CONTEXTS}: "
                f"update rosatune?"
            )
        needed = ("delay", "links", "theta") if version == FORMAT else ("delay", "theta", "slopes")
        more = ("confidence", "agreement") if version == FORMAT else ("seen",)
        known = ("format", "rosatune_version", *needed, *more)
        for name in fields:
            if name not in known:
                raise InvalidArgument(f"{name!r} is not a field of a pointer; was it written by a later version?")
        for name in needed:
            if name not in fields:
                raise InvalidArgument(f"the field {name!r} is missing")
        for name in ("delay", "links"):
            if name in needed and type(fields[name]) is not int:
                raise InvalidArgument(f"the field {name!r} is {fields[name]!r}; it must be a whole number")
        if version == FORMAT_CONTEXTS:
            if not isinstance(fields["slopes"], dict):
                raise InvalidArgument("the field 'slopes' must be an object of numbers by name of feature")
            return cls(fields["theta"], fields["delay"], slopes=fields["slopes"], seen=fields.get("seen"))
        made = cls(fields["theta"], fields["delay"], fields.get("confidence"), fields.get("agreement"))
        if made.links != fields["links"]:
            raise InvalidArgument(f"the field 'links' is {fields['links']}, but 'theta' has {made.links} rows")
        return made


class PointerStream:
    """The look-up of a text that grows, or of a batch of them. In pieces of any size it finds what
    :meth:`Pointer.look_up` does. It can be copied and pickled; ``len()`` is the number of positions so far.

    >>> stream = PointerStream(delay=0, links=1)
    >>> _ = stream.push([7, 8, 9])
    >>> stream.push([7, 8]).tokens.tolist()
    [[8], [9]]
    """

    def __init__(self, delay: int, links: int, batch: int = 1, contexts: bool = False, seen: bool = False) -> None:
        self._finder: Union[Finder, Contexts]
        self._finder = Contexts(delay, batch) if contexts else Finder(_rule(delay, links), batch)
        self._seen = SeenStream(delay, batch) if seen else None
        self._ids = np.zeros((batch, 0), np.uint32)  # the texts, with spare room

    def push(self, ids: npt.ArrayLike, valid: Optional[npt.NDArray[np.bool_]] = None) -> Links:
        """Append tokens, [batch, steps] or for one text [steps], and give their links.

        Where ``valid``, of the same shape, is False there is padding: it is neither looked up nor found.
        """
        tokens = _tokens(ids)
        rows = tokens[None] if tokens.ndim == 1 else tokens
        if rows.ndim != 2 or len(rows) != self.batch:
            raise InvalidArgument(f"ids have shape {list(tokens.shape)}; {self.batch} texts grow by [batch, steps]")
        before, after = len(self), len(self) + rows.shape[1]
        there = None if valid is None else valid.reshape(rows.shape)
        found: Any
        if isinstance(self._finder, Contexts):
            found = self._finder.push(rows, there)
        else:
            found = self._finder.push(rows[:, None], rows[:, None], there)["found"]
        if after > self._ids.shape[1]:
            room = np.zeros((self.batch, after * 5 // 4 + 16), np.uint32)
            room[:, :before] = self._ids[:, :before]
            self._ids = room
        self._ids[:, before:after] = rows
        links = _continuations(found) if isinstance(self._finder, Contexts) else _links(self._ids, found)
        if self._seen is not None and isinstance(self._finder, Contexts):
            real = np.ones(rows.shape, np.bool_) if there is None else there
            links = links._replace(seen=self._seen.push(self._finder.texts(), real))
        return _reshaped(links, tokens.shape) if tokens.ndim == 1 else links

    def rewind(self, steps: int) -> None:
        """Go back to the first ``steps`` positions."""
        self._finder.rewind(len(self) - steps)

    def reorder(self, rows: Iterable[int]) -> None:
        """Row i becomes a copy of what row ``rows[i]`` was: beam search, and batches that grow or shrink."""
        chosen = list(rows)
        self._finder.reorder(chosen)
        if self._seen is not None:
            self._seen.reorder(chosen)
        self._ids = self._ids[chosen]

    def fork(self) -> "PointerStream":
        """A second, independent state that continues from here."""
        return copy.deepcopy(self)

    @property
    def ids(self) -> npt.NDArray[np.uint32]:
        """The texts so far, [batch, positions]."""
        return self._ids[:, : len(self)]

    @property
    def batch(self) -> int:
        """How many texts there are."""
        return self._finder.batch

    def __len__(self) -> int:
        return self._finder.steps


def _rule(delay: int, links: int) -> Rule:
    """Token ids are matched one by one, and matches of any length count."""
    return Rule(routes=1, bits=BITS, policy="readable", fold=False, max_match=None, delay=delay, links=links)


def _links(texts: npt.NDArray[np.uint32], places: Places) -> Links:
    """What stands at places [links, rows, 1, steps] of texts [rows, positions]."""
    tau = np.moveaxis(places.tau[:, :, 0], 0, -1)
    rows = np.arange(len(texts))[:, None, None]
    tokens = np.full(tau.shape, -1, np.int64)
    if tau.size:
        tokens = np.where(tau >= 0, texts[rows, np.maximum(tau, 0)].astype(np.int64), -1)
    lengths = np.moveaxis(places.length[:, :, 0], 0, -1).astype(np.int32)
    return Links(np.ascontiguousarray(tau), tokens, lengths, np.zeros((*tau.shape, 0)))


def _continuations(found: Any) -> Links:
    """Links from what :class:`Contexts` found, entries [rows, steps]."""
    there = np.arange(CANDIDATES) < found["count"][..., None]
    tokens = np.where(there, found["token"].astype(np.int64), -1)
    alike = [
        np.log(1.0 + found["places"]),
        np.log(np.maximum(found["different"], 1).astype(np.float64)),
        np.log(0.01 + found["success"] / 65535.0),
    ]
    own = [found["alignment"] / 16.0, np.log((found["followed_by"] + 0.3) / (found["as_long"] + 1.0))]
    clues = np.stack([*own, *(np.broadcast_to(x[..., None], tokens.shape) for x in alike)], -1)
    return Links(found["place"].copy(), tokens, found["length"].astype(np.int32), clues)


def _reshaped(links: Links, shape: "tuple[int, ...]") -> Links:
    """Links of rows as those of texts of this shape."""
    shaped: Any = (None if x is None else x.reshape(*shape, *x.shape[2:]) for x in links)
    return Links(*shaped)


def _tokens(ids: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    given = np.asarray(ids)
    if not given.size and given.dtype.kind == "f":
        given = given.astype(np.int64)  # an empty list
    if given.dtype.kind not in "bui":
        raise TypeError(f"ids are of kind {given.dtype}; token ids are whole numbers")
    if given.ndim == 0:
        raise InvalidArgument("ids is a single number; give an array of shape [steps] or [..., steps]")
    if given.size and (given.min() < 0 or given.max() >= 1 << BITS):
        place = tuple(int(i) for i in np.argwhere((given < 0) | (given >= 1 << BITS))[0])
        raise SymbolError(
            f"token id {given[place]} at {list(place)} is out of range; a pointer finds ids from 0 to {(1 << BITS) - 1}"
        )
    return np.ascontiguousarray(given, dtype=np.uint32)


def _file(path: Name) -> Path:
    path = Path(path)
    return path / POINTER_FILE if path.is_dir() else path


def _slopes(given: "dict[str, float]") -> "dict[str, float]":
    """A slope for every feature, checked."""
    for name, value in given.items():
        if name not in FEATURES:
            raise InvalidArgument(f"{name!r} is not a feature of a pointer; they are {', '.join(FEATURES)}")
        if isinstance(value, bool) or not isinstance(value, (int, float, np.floating)) or not abs(value) <= LARGEST:
            raise InvalidArgument(f"the slope of {name!r} is {value!r}; give a number from {-LARGEST:g} to {LARGEST:g}")
    return {name: float(given.get(name, 0.0)) for name in FEATURES}


def _table(name: str, given: Any, rows: Optional[int], columns: int) -> npt.NDArray[np.float64]:
    """A table of one row per link, checked."""
    try:
        table = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} must be a table of numbers, {columns} per link") from None
    if name == "agreement" and (table.ndim != 2 or table.shape[1] != columns):
        raise InvalidArgument(f"agreement must be a list of {columns} numbers, one for each link")
    if name == "seen" and table.shape != (rows, columns):
        raise InvalidArgument(f"seen has shape {list(table.shape)}; give {rows} rows of {columns} numbers")
    if table.ndim != 2 or table.shape[1] != columns or not 1 <= len(table) <= LINKS:
        raise InvalidArgument(
            f"{name} has shape {list(table.shape)}; give {columns} numbers for each of 1 to {LINKS} links"
        )
    if rows is not None and len(table) != rows:
        raise InvalidArgument(f"{name} has {len(table)} rows, and theta {rows}; each link has one in both")
    wrong = [x for x in table.flat if not (math.isfinite(x) and abs(x) <= LARGEST)]
    if wrong:
        raise InvalidArgument(f"{name} has the number {wrong[0]}; they are from {-LARGEST:g} to {LARGEST:g}")
    table.setflags(write=False)
    return table
