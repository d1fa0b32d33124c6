"""The options of the operator, as one value.

They travel together: from the user to the operator, from the forward to the backward pass, from a module to its
operator. The tuple's order is the order of the operators' schemas (``_operator.py``), so ``*settings`` is a list of
arguments. Everything is checked once, when the tuple is made.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional, Tuple

from .. import _c

__all__ = ["SCHEMA", "Settings", "make", "unexploring"]

POLICIES = tuple(member.name.lower() for member in _c.Policy)
QK_GRADS = tuple(member.name.lower() for member in _c.QkGrad)
CREDITS = tuple(member.name.lower() for member in _c.Credit)
KEY_CREDITS = tuple(member.name.lower() for member in _c.KeyCredit)


class Settings(NamedTuple):
    """See :func:`rosatune.torch.rosa`; ``max_match`` 0 stands for no cut."""

    bits: int
    policy: str
    fold: bool
    max_match: int
    qk_grad: str
    credit: str
    key_credit: str
    suffix: float
    explore: float
    flip_share: float
    slope: float


# The tuple as the tail of an operator's schema.
SCHEMA = (
    "int bits, str policy, bool fold, int max_match, str qk_grad, str credit, str key_credit, "
    "float suffix, float explore, float flip_share, float slope"
)


_EXPLORE = Settings._fields.index("explore")


def unexploring(settings: Settings) -> Settings:
    """The same without exploration. Every version of torch.compile traces this; older ones not ``_replace``."""
    values = list(settings)
    values[_EXPLORE] = 0.0
    return Settings(*values)


def _choice(what: str, value: Any, choices: Tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{what} is {value!r}; give one of {', '.join(map(repr, choices))}")
    return value


def _number(what: str, value: Any, low: float, high: float, least: bool) -> float:
    """A number from low (itself only where ``least``) to high."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is {value!r}; give a number")
    if not (low <= value <= high) or (value == low and not least) or not math.isfinite(value):
        span = f"from {low:g}" if least else f"above {low:g}"
        raise ValueError(f"{what} is {value!r}; give a number {span}{'' if high == math.inf else f' to {high:g}'}")
    return float(value)


def make(
    bits: int = 16,
    policy: str = "readable",
    fold: bool = True,
    max_match: Optional[int] = None,
    qk_grad: str = "linear",
    credit: str = "all",
    key_credit: str = "match",
    suffix: float = 0.0,
    explore: float = 0.0,
    flip_share: float = 1.0,
    slope: float = 1.0,
) -> Settings:
    """The options, checked; ValueError or TypeError names what is wrong."""
    if max_match is not None:
        max_match = _c.integer("max_match (None: no cut)", max_match, 1, 0xFFFFFFFF)
    return Settings(
        _c.integer("bits", bits, 1, _c.MAX_BITS),
        _choice("policy", policy, POLICIES),
        bool(fold),
        max_match or 0,
        _choice("qk_grad", qk_grad, QK_GRADS),
        _choice("credit", credit, CREDITS),
        _choice("key_credit", key_credit, KEY_CREDITS),
        _number("suffix", suffix, 0.0, math.inf, True),
        _number("explore", explore, 0.0, 1.0, True),
        _number("flip_share", flip_share, 0.0, 1.0, False),
        _number("slope", slope, 0.0, math.inf, False),
    )
