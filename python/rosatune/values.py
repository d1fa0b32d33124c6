"""What values are made of, and the value bits of a whole vocabulary.

With ``v_from="embeddings"`` the value bits of a step are a function of its token alone. So during generation on a GPU
nothing is stored per step: every adapter has a :class:`Table` of the bits of all tokens, and places are token ids, the
rows of that table. It is made when it is first needed, and rebuilt when the weights it was made of have changed.

A table takes vocabulary * C / 8 bytes. Making it takes as long as reading a text of as many tokens as the vocabulary
has: some milliseconds on a GPU, minutes on a CPU. So on a CPU, and where the table would exceed ``Table.most_bytes``,
values are stored by step (``torch/_past.py``).
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from .torch import _read

__all__ = ["Table", "V_NORM_EPS", "normed_embeddings"]

V_NORM_EPS = 1e-5  # of the norm of embeddings; the C library has the same
DEVICES = ("cuda",)  # where tables are used
SLICE = 4096  # tokens whose values are computed at once


def normed_embeddings(embeds: Tensor) -> Tensor:
    """What values are made of with ``v_from="embeddings"``: embeddings over their root mean square, float32."""
    x = embeds.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + V_NORM_EPS)


def product_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which a product with a weight is computed now."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def is_bare(module: Any, kind: Any) -> bool:
    """Whether a module computes what its kind does: no other class, no hooks."""
    changed = "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks
    return type(module) is kind and not changed


def is_plain(module: Any, kind: Any) -> bool:
    """Whether a module is a weight of its kind and nothing else: bare, and nothing sharded or packed."""
    return is_bare(module, kind) and type(module.weight) is nn.Parameter


class Table:
    """The value bits of every token, uint8 [vocabulary, C / 8], for one adapter. Copies and pickles of it are empty."""

    most_bytes = 64 << 20  #: of a layer's table; larger ones: values by step. Set it on the class; 0: always by step

    def __init__(self) -> None:
        self.bits: Optional[Tensor] = None
        self._made_of: Any = None

    @classmethod
    def serves(cls, embedding: Any, projection: Any) -> bool:
        """Whether a table can be kept for these modules: any change to them must be a change of weights."""
        if not (is_plain(embedding, nn.Embedding) and is_plain(projection, nn.Linear)):
            return False
        for weight in (embedding.weight, projection.weight):
            if weight.device.type not in DEVICES or weight.is_inference():
                return False
        plain = embedding.max_norm is None  # else the forward pass changes its weight
        return plain and embedding.num_embeddings * _width(projection) <= cls.most_bytes

    def of(self, embedding: nn.Embedding, projection: nn.Linear) -> Tensor:
        """The bits of the tokens' embeddings by this projection. Rebuilt bits reuse the same memory if they fit."""
        weights = [x for x in (embedding.weight, projection.weight, projection.bias) if x is not None]
        kind = product_dtype(projection.weight)
        made_of = (kind, *((x.data_ptr(), x._version, x.dtype, x.device) for x in weights))
        if self.bits is None or self._made_of != made_of:
            self._make(embedding, projection, kind)
            self._made_of = made_of
        assert self.bits is not None
        return self.bits

    @torch.inference_mode(False)
    @torch.no_grad()
    def _make(self, embedding: nn.Embedding, projection: nn.Linear, kind: torch.dtype) -> None:
        shape, device = (embedding.num_embeddings, _width(projection)), projection.weight.device
        if self.bits is None or self.bits.shape != shape or self.bits.device != device:
            self.bits = torch.empty(shape, dtype=torch.uint8, device=device)
        for begin in range(0, shape[0], SLICE):
            part = slice(begin, begin + SLICE)
            x = normed_embeddings(embedding.weight[part].to(device)).to(kind)
            self.bits[part] = _read.pack_bits(projection(x).unsqueeze(0))[0]

    def clear(self) -> None:
        """Free the bits; they are made again when they are needed."""
        self.bits = self._made_of = None

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return 0 if self.bits is None else self.bits.nbytes

    def __reduce__(self) -> Any:
        return Table, ()


def _width(projection: nn.Linear) -> int:
    return (projection.out_features + 7) // 8
