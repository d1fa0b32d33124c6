"""The options of the operator as one tuple, in the order in which PyTorch's operators take them.

They are passed together: from the user to the operator, from the forward to the backward pass, from a module to its
operator. An operator of PyTorch takes no objects, so they are passed as ``*settings``; the order is that of the
operators' schemas (``_operator.py``). Values are checked where the configuration is made (``config.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union, get_type_hints

from ..config import OPERATOR, RosaConfig, chosen

__all__ = ["SCHEMA", "Settings", "make", "unexploring"]


class Settings(NamedTuple):
    """The options of :class:`rosatune.RosaConfig` that the operator uses; ``max_match`` 0 stands for no limit.

    ``delay`` is that of an adapter; the functions of this package that take q and k have none.
    """

    bits: int
    policy: str
    fold: bool
    max_match: int
    delay: int
    qk_grad: str
    credit: str
    key_credit: str
    slope: float
    suffix: float
    explore: float
    flip_share: float


# The tuple as the tail of an operator's schema.
SCHEMA = ", ".join(f"{kind.__name__} {name}" for name, kind in get_type_hints(Settings).items())

_EXPLORE = Settings._fields.index("explore")


def unexploring(settings: Settings) -> Settings:
    """The same without exploration. Every version of torch.compile traces this; older ones do not ``_replace``."""
    values: "list[Any]" = list(settings)
    values[_EXPLORE] = 0.0
    return Settings(*values)


def make(config: Union[RosaConfig, Settings, None] = None, function: str = "rosa", /, **options: Any) -> Settings:
    """The options that a function was given: as a configuration, by name, or both; settings pass as they are."""
    if isinstance(config, Settings):
        return config
    config = chosen(function, config, options, OPERATOR, ("seed", "pending"))
    return Settings(**{**config.part(*OPERATOR), "max_match": config.max_match or 0, "delay": 0})
