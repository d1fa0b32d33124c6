"""Every option of ROSA in one object, with its default and the check of its value.

A :class:`RosaConfig` goes wherever a dozen options would: to ``rosatune.hf.attach``, ``rosatune.nn.RosaAdapter``,
``rosatune.torch.rosa`` and :func:`rosatune.find`. Each also takes the options by name, alone or beside a configuration,
of which they then change a few. This module is the only place in the package that knows the defaults.

>>> config = RosaConfig(window=1024, bits=8)
>>> config.bits, config.qk_grad
(8, 'linear')
>>> config.replace(bits=4).bits
4
>>> RosaConfig.paper(window=1024).source
'own'
>>> RosaConfig(windw=1024)
Traceback (most recent call last):
TypeError: RosaConfig has no option 'windw'; did you mean 'window'?

An adapter's folder keeps its configuration in ``adapter_config.json``, beside what else there is to say about the
tensors; :meth:`RosaConfig.load` reads one that :meth:`RosaConfig.save`, ``rosatune.hf.save_adapter`` or
``rosatune tune`` wrote.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple, Optional, Tuple, Union

from . import _c
from .errors import AdapterError, FileError, InvalidArgument

__all__ = [
    "ADAPTER",
    "ALL",
    "CONFIG_FILE",
    "DEFAULTS",
    "OPERATOR",
    "RosaConfig",
    "Source",
    "chosen",
    "make_folder",
    "read_file",
    "read_json",
    "replace_file",
]

CONFIG_FILE = "adapter_config.json"
FORMAT = 2  # of that file; format 1 has no sources, and the paper's values for all that came with them

Name = Union[str, "os.PathLike[str]"]


# --------------------------------------------------------------------------------------------------- checks of values

Check = Callable[[str, Any], Any]  # name of the option and its value, to the value in its usual form


def _whole(low: int, high: int) -> Check:
    """A whole number from low to high."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; give a whole number from {low} to {high}")
        return _c.integer(name, value, low, high)

    return check


def _at_most(name: str, value: Any) -> Optional[int]:
    """A length that cuts matches, or None."""
    return None if value is None else _whole(1, 0xFFFFFFFF)(f"{name} (None: no limit)", value)


def _number(low: float, high: float, least: bool = True) -> Check:
    """A number from low (itself only where ``least``) to high."""

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {value!r}; give a number")
        if not (low <= value <= high) or (value == low and not least) or not math.isfinite(value):
            span = f"from {low:g}" if least else f"above {low:g}"
            raise InvalidArgument(f"{name} is {value!r}; give a number {span} to {high:g}")
        return float(value)

    return check


def _word(*choices: str) -> Check:
    """One of a few words, in upper or lower case."""

    def check(name: str, value: Any) -> str:
        word = value.lower() if isinstance(value, str) else value
        if word not in choices:
            raise InvalidArgument(f"{name} is {value!r}; give one of {', '.join(map(repr, choices))}")
        return word

    return check


def _words(kind: Any) -> Check:
    """One of the names of a C enumeration."""
    return _word(*(member.name.lower() for member in kind))


def _truth(name: str, value: Any) -> bool:
    if value not in (True, False):
        raise TypeError(f"{name} is {value!r}; give True or False")
    return bool(value)


def _delay(name: str, value: Any) -> Optional[int]:
    """A number of steps, or None."""
    return None if value is None else _whole(0, _c.MAX_STEPS)(f"{name} (None: the window)", value)


SOURCES = 4  # at most
_SOURCE = re.compile(r"own|tokens|embeddings|layer (0|[1-9][0-9]{0,4})")


def _source(name: str, value: Any) -> str:
    """One source, or several joined by +."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; give a string such as 'tokens' or 'tokens+embeddings'")
    words = [" ".join(word.split()) for word in value.lower().split("+")]
    for word in words:
        if not _SOURCE.fullmatch(word):
            raise InvalidArgument(
                f"{name} is {value!r}; choose from 'own', 'tokens', 'embeddings' and 'layer N' (such as 'layer 3'); "
                f"several are joined by +, as in 'tokens+embeddings'"
            )
    if len(set(words)) != len(words):
        raise InvalidArgument(f"{name} is {value!r}; name each source once")
    if len(words) > SOURCES:
        raise InvalidArgument(f"{name} is {value!r}; a layer has up to {SOURCES} sources")
    return "+".join(words)


def _layers(name: str, value: Any) -> Union[str, Tuple[int, ...]]:
    """``"all"``, or numbers of layers, in order."""
    if isinstance(value, str):
        if value != "all":
            raise InvalidArgument(f"{name} is {value!r}; give 'all' or the numbers of layers")
        return value
    try:
        numbers = sorted(_whole(0, 1 << 16)(name, layer) for layer in value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; give 'all' or the numbers of layers") from None
    if len(set(numbers)) != len(numbers):
        raise InvalidArgument(f"{name} names a layer twice: {numbers}")
    return tuple(numbers)


# -------------------------------------------------------------------------------------------------- the configuration

# Who uses an option: `attach` alone, the adapter of a layer, retrieval, or the gradients of the operator.
MODEL, SOURCE, LAYER, RETRIEVAL, LEARNING = "model", "source", "layer", "retrieval", "learning"

OPERATOR = (RETRIEVAL, LEARNING)
ADAPTER = (SOURCE, LAYER, *OPERATOR)
ALL = (MODEL, *ADAPTER)

_SAME = object()


def _option(part: str, default: Any, check: Check, paper: Any = _SAME) -> Any:
    """An option. ``paper``: its value in the paper's arrangement, where that differs."""
    paper = default if paper is _SAME else paper
    return dataclasses.field(default=default, metadata={"part": part, "check": check, "paper": paper})


class Source(NamedTuple):
    """One of the sources that the option ``source`` names."""

    kind: str  # own, tokens, embeddings or layer
    layer: int = 0  # whose q and k are used, where kind is layer

    @property
    def name(self) -> str:
        return f"layer {self.layer}" if self.kind == "layer" else self.kind

    @property
    def learnt(self) -> bool:
        """Whether its symbols are those of a learnt q and k."""
        return self.kind in ("own", "layer")

    def serves(self, layer: int) -> bool:
        """Whether this layer reads it."""
        return self.kind != "layer" or layer >= self.layer


def _by_name(init: Callable[..., None]) -> Callable[..., None]:
    """The dataclass's constructor with keyword arguments only; for an unknown name the error suggests the closest."""

    @functools.wraps(init)
    def checked(self: Any, *values: Any, **options: Any) -> None:
        if values:
            raise TypeError(f"RosaConfig was given {values[0]!r} without a name; name options: RosaConfig(window=2048)")
        _check_names("RosaConfig", options, ALL)
        init(self, **options)

    return checked


@dataclasses.dataclass(frozen=True)
class RosaConfig:
    """All options of adapters and of the operator. Values are checked here; a configuration never changes.

    Of the whole model (``rosatune.hf.attach``):

    ``window``               position t attends to the last ``window`` positions, itself included; 0: global attention
    ``sinks``                the first ``sinks`` positions stay visible too
    ``layers``               which layers have an adapter: ``"all"``, or their numbers
    ``first_global_layers``  this many lowest layers keep global attention and have no adapter
    ``seen``                 rank of the seen-token head, a learned bias towards tokens that already occurred in the
                             text (:mod:`rosatune.torch._seen`); it is trained with the adapters; 0: none

    Of the sources, the pairs of symbol streams in which places are looked up:

    ``source``      ``"tokens"``: token ids, looked up once for all layers; ``"embeddings"``: signs of a fixed random
                    projection of the tokens' embeddings, once for all layers; ``"own"``: q and k of each layer (the
                    paper); ``"layer N"``: q and k of layer N, for it and the layers above. Several are joined by ``+``
    ``delay``       only places more than ``delay`` steps old are found; None: as many as the window, 0: no delay
    ``chain``       number of places read per step: the match, then the match that was found at that place, and so on.
                    Only for sources whose query and key are the same stream (tokens and embeddings, the others with
                    ``qk="shared"``)
    ``source_seed`` seed of the projection of embeddings

    Of a layer's adapter (``rosatune.nn.RosaAdapter``):

    ``fusion``      ``"post"``: what is read is added beside attention; ``"pre"``: it is mixed into attention's input
    ``qk``          initial q and k: ``"aligned"``, with equal weights; ``"separate"``, each with its own (the paper);
                    ``"shared"``: one projection serves both
    ``e_start``     ``e0`` starts at -e_start and ``e1`` at e_start; at 0 a new adapter adds nothing
    ``gain``        whether what is read is scaled by a learnt table over the length of the match
    ``gate``        whether it is scaled by a learnt gate over the hidden state
    ``units``       what is read is scaled by ``units`` times the root mean square of the layer's input, measured once
                    when the adapter is made; 0: not scaled
    ``v_start``     initial v: ``"identity"``, so that value bits are the signs of the normed hidden state, or
                    ``"xavier"``, at random (the paper)
    ``v_from``      what values are made of: ``"layer"``, the layer's normed input (the paper), or ``"embeddings"``,
                    the normalised embedding of the token at the place read, so that every layer can tell which
                    token stood there
    ``v_grad``      the derivative of a value bit: ``"straight"``, 1 where v lies between -1 and 1, or ``"sigmoid"``,
                    that of the sigmoid (the paper)

    Of retrieval:

    ``bits``        bits per symbol, 1 to 16; the number of channels must be a multiple of it
    ``policy``      which past runs may be found: ``"readable"`` (those whose successor began before the current step),
                    ``"literal"`` (the paper) or ``"inclusive"``
    ``fold``        whether equal neighbouring symbols form one run
    ``max_match``   matches are compared up to this length; None: no limit

    Of the gradients of q and k:

    ``qk_grad``     ``"linear"`` (all past runs have equal weight), ``"soft"`` (weights are a softmax over the distance
                    of symbols; quadratic time), ``"flips"`` (the paper's counterfactuals) or ``"none"``
    ``credit``      linear, soft: how much a read reduced the loss is computed over the channels of ``"all"`` routes,
                    or of its own ``"route"``
    ``key_credit``  flips: the gradient of a key goes to the run that was matched, ``"match"``, or to the run that was
                    read, ``"destination"`` (the paper)
    ``slope``       soft: slope of the softmax
    ``suffix``      linear, soft: weight of the symbols one run earlier
    ``explore``     in training, the share of route-steps that read at a random past run instead
    ``flip_share``  flips: share of query runs whose counterfactuals are looked up; gradients are scaled accordingly
    """

    window: int = _option(MODEL, 2048, _whole(0, _c.MAX_STEPS))
    sinks: int = _option(MODEL, 4, _whole(0, _c.MAX_STEPS), paper=0)
    layers: Union[str, Iterable[int]] = _option(MODEL, "all", _layers)
    first_global_layers: int = _option(MODEL, 0, _whole(0, 1 << 16))
    seen: int = _option(MODEL, 0, _whole(0, 1 << 16), paper=0)

    source: str = _option(SOURCE, "tokens", _source, paper="own")
    delay: Optional[int] = _option(SOURCE, None, _delay, paper=0)
    chain: int = _option(SOURCE, 4, _whole(1, 16), paper=1)
    source_seed: int = _option(SOURCE, 0, _whole(0, 1 << 53))

    fusion: str = _option(LAYER, "post", _words(_c.Fusion))
    qk: str = _option(LAYER, "aligned", _word("aligned", "separate", "shared"))
    e_start: float = _option(LAYER, 0.0, _number(0, 1e6))
    gain: bool = _option(LAYER, True, _truth, paper=False)
    gate: bool = _option(LAYER, True, _truth, paper=False)
    units: float = _option(LAYER, 0.3, _number(0, 1e6), paper=0.0)
    v_start: str = _option(LAYER, "identity", _word("identity", "xavier"), paper="xavier")
    v_from: str = _option(LAYER, "embeddings", _word("layer", "embeddings"), paper="layer")
    v_grad: str = _option(LAYER, "straight", _word("sigmoid", "straight"), paper="sigmoid")

    bits: int = _option(RETRIEVAL, 16, _whole(1, _c.MAX_BITS))
    policy: str = _option(RETRIEVAL, "readable", _words(_c.Policy))
    fold: bool = _option(RETRIEVAL, True, _truth)
    max_match: Optional[int] = _option(RETRIEVAL, None, _at_most)

    qk_grad: str = _option(LEARNING, "linear", _words(_c.QkGrad))
    credit: str = _option(LEARNING, "all", _words(_c.Credit))
    key_credit: str = _option(LEARNING, "match", _words(_c.KeyCredit))
    slope: float = _option(LEARNING, 1.0, _number(0, 1e6, least=False))
    suffix: float = _option(LEARNING, 0.0, _number(0, 1e6))
    explore: float = _option(LEARNING, 0.0, _number(0, 1))
    flip_share: float = _option(LEARNING, 1.0, _number(0, 1, least=False))

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, field.metadata["check"](field.name, getattr(self, field.name)))
        if not self.window and self.sinks == type(self).sinks:
            object.__setattr__(self, "sinks", 0)  # the default belongs to a window
        if self.sinks and not self.window:
            raise InvalidArgument(
                f"sinks is {self.sinks}, but window=0 is global attention, which sees them anyway; use sinks=0"
            )
        numbers = [] if isinstance(self.layers, str) else list(self.layers)
        if numbers and min(numbers) < self.first_global_layers:
            raise InvalidArgument(
                f"layers names layer {min(numbers)}, but first_global_layers={self.first_global_layers} leaves "
                f"the layers before {self.first_global_layers} without an adapter"
            )
        if self.delay and self.delay < self.window:
            raise InvalidArgument(
                f"delay is {self.delay} beside a window of {self.window}: attention still sees what would be found; "
                f"use 0, or {self.window} or more"
            )

    @classmethod
    def paper(cls, **options: Any) -> "RosaConfig":
        """The paper's arrangement: each layer's own q and k, no delay, one place, no strength; with these changes."""
        _check_names("RosaConfig.paper", options, ALL)
        return cls(**{**_paper(), **options})

    # -------------------------------------------------------------------------------------------------------- sources

    @property
    def sources(self) -> Tuple[Source, ...]:
        """What ``source`` names, in order."""
        words = self.source.split("+")
        return tuple(Source("layer", int(word[6:])) if word.startswith("layer") else Source(word) for word in words)

    @property
    def delay_steps(self) -> int:
        """The delay of retrieval as a number: None stands for the window."""
        return self.window if self.delay is None else self.delay

    def links(self, source: Source) -> int:
        """How many places of a source a step reads."""
        return self.chain if not source.learnt or self.qk == "shared" else 1

    def replace(self, **options: Any) -> "RosaConfig":
        """A configuration that differs in these options."""
        return chosen("RosaConfig.replace", self, options)

    def part(self, *parts: str) -> "dict[str, Any]":
        """The options that these parts use, by name: ``config.part("retrieval")`` are those of ``retrieve``."""
        return {name: getattr(self, name) for name in _names(parts)}

    # ---------------------------------------------------------------------------------------------------------- files

    def to_dict(self) -> "dict[str, Any]":
        """All options as JSON has them."""
        options = self.part(*ALL)
        return {**options, "layers": options["layers"] if options["layers"] == "all" else list(options["layers"])}

    @classmethod
    def from_dict(cls, options: "dict[str, Any]") -> "RosaConfig":
        """The configuration of such a dictionary. Options that it lacks mean what they did when it was written.

        One without ``source`` was written before there were sources: what it lacks has the paper's value. Of others,
        ``v_from`` and ``seen`` have the paper's value where they are missing, and all else its default.
        """
        unknown = [name for name in options if name not in _names(ALL)]
        if unknown:
            from . import __version__

            near = _near(unknown[0], _names(ALL)) or ";"
            raise InvalidArgument(
                f"the option {unknown[0]!r} is not known to rosatune {__version__}{near} "
                f"Correct it, or update rosatune if a later version wrote it"
            )
        if "source" not in options:
            return cls.paper(**{"seen": 0, **options})
        return cls(**{"v_from": "layer", "seen": 0, **options})

    def save(self, folder: Name, **fields: Any) -> None:
        """Write ``adapter_config.json`` in a folder, which is made if need be. ``fields`` are further fields of it."""
        from . import __version__

        content = {"format": FORMAT, "rosatune_version": __version__, **fields, "options": self.to_dict()}
        text = json.dumps(content, indent=2) + "\n"
        replace_file(make_folder(folder) / CONFIG_FILE, lambda path: Path(path).write_text(text, encoding="utf-8"))

    @classmethod
    def load(cls, path: Name) -> "RosaConfig":
        """Read it from an adapter's folder, or from the file itself."""
        return read_file(path)[0]


RosaConfig.__init__ = _by_name(RosaConfig.__init__)  # type: ignore[method-assign]


def _paper() -> "dict[str, Any]":
    """The options whose value in the paper is not the default, and their values there."""
    fields = dataclasses.fields(RosaConfig)
    return {field.name: field.metadata["paper"] for field in fields if field.metadata["paper"] != field.default}


_PARTS = {field.name: field.metadata["part"] for field in dataclasses.fields(RosaConfig)}


def _names(parts: Tuple[str, ...]) -> Tuple[str, ...]:
    """The options that these parts use."""
    return tuple(name for name, part in _PARTS.items() if part in parts)


def _near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _check_names(function: str, options: "dict[str, Any]", parts: Tuple[str, ...], others: Iterable[str] = ()) -> None:
    """Refuse options that do not exist or that this function does not use."""
    known = _names(parts)
    for name in options:
        if name in known:
            continue
        if name in _names(ALL):
            raise TypeError(f"{function} does not use the option {name!r}; its options are {', '.join(known)}")
        near = _near(name, (*known, *others))
        raise TypeError(f"{function} has no option {name!r}{near or '; its options are ' + ', '.join(known)}")


DEFAULTS = RosaConfig()


def chosen(
    function: str,
    config: Optional[RosaConfig],
    options: "dict[str, Any]",
    parts: Tuple[str, ...] = ALL,
    others: Iterable[str] = (),
) -> RosaConfig:
    """The configuration that a function was given: an object, options by name, or an object and changes to it.

    ``parts`` are those whose options the function takes by name, ``others`` names of its further arguments.
    """
    if config is not None and not isinstance(config, RosaConfig):
        first = _names(parts)[0]
        raise TypeError(f"{function} was given {config!r} for config; give a RosaConfig, or name the option: {first}=")
    _check_names(function, options, parts, others)
    if not options:
        return DEFAULTS if config is None else config
    return RosaConfig(**{**(DEFAULTS if config is None else config).part(*ALL), **options})


# -------------------------------------------------------------------------------------------------------------- files


def replace_file(path: Path, write: Callable[[str], Any]) -> None:
    """Write a file beside its place, flush it to disk, and move it there: a failed save leaves the older file.

    As the C library does: a symbolic link is followed, and the file at its end is replaced and keeps its permissions.
    A pipe or a device is refused, since a file cannot take its place.
    """
    name = None
    try:
        target = Path(os.path.realpath(path))
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            mask = os.umask(0)
            os.umask(mask)
            mode = stat.S_IFREG | 0o666 & ~mask
        if not stat.S_ISREG(mode):
            kind = "folder" if stat.S_ISDIR(mode) else "pipe or a device"
            raise FileError(f"cannot write {path}: it is a {kind}; give the name of a file")
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(descriptor)
        write(name)
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(name, mode & 0o777)
        os.replace(name, target)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def make_folder(folder: Name) -> Path:
    """A folder that exists, made if need be."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    return Path(folder)


def read_json(path: Path, where_from: str) -> "dict[str, Any]":
    """The object in a JSON file. ``where_from`` tells a user who has no such file how to get one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise AdapterError(f"{path}: no such file; {where_from}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise AdapterError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise AdapterError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise AdapterError(f"{path}: holds a {type(content).__name__}, not an object")
    return content


def read_file(path: Name) -> "tuple[RosaConfig, dict[str, Any]]":
    """An adapter's configuration, and all fields of its file as they stand there."""
    from . import __version__

    path = Path(path)
    if path.name != CONFIG_FILE:
        path = path / CONFIG_FILE
    content = read_json(path, "name a folder that rosatune.hf.save_adapter or `rosatune tune` wrote")
    if "peft_type" in content:
        raise AdapterError(
            f"{path}: is an adapter of PEFT ({content['peft_type']}), not of rosatune; "
            f"load it with peft.PeftModel.from_pretrained"
        )
    version = content.get("format")
    if not isinstance(version, int) or version < 1:
        raise AdapterError(f"{path}: the field 'format' is {version!r}, not a version number")
    if version > FORMAT:
        raise AdapterError(
            f"{path}: is of format {version}, written by rosatune {content.get('rosatune_version')}; "
            f"this is rosatune {__version__}, which reads up to {FORMAT}: update it"
        )
    if not isinstance(content.get("options"), dict):
        raise AdapterError(f"{path}: the field 'options' is missing or not an object")
    options = content["options"] if version == 1 else {"source": DEFAULTS.source, **content["options"]}
    try:
        return RosaConfig.from_dict(options), content
    except (TypeError, ValueError) as error:
        raise AdapterError(f"{path}: {error}") from error
