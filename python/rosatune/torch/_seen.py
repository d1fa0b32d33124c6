"""The seen-token head: what a text has had it has again, also where no context leads to it.

With h_t the normed hidden state that the model's head is given, e_x the row of token x in the head's matrix, and n how
often x stands among the tokens of the text before t - delay, every token with n > 0 has

    logit_t(x) += table[c][k] + gate . h_t + (query h_t) . (key e_x)

with c = min(floor(log2 n), 3) and k = floor(log2(x + 64)) - 6, the classes of a pointer's table (:mod:`rosatune.seen`).
Other logits stay. At first all of it is 0.

How often a token was seen before any step follows from four times: when it was seen first, and for the 2nd, 4th and 8th
time. :class:`SeenTimes` keeps them for texts that grow, on the device and without waiting for it. A step t looks only
at times before t - delay, so one set of times serves all steps of a text.

Logits are as wide as the vocabulary, so :func:`add` works on some rows at a time, in place, and keeps nothing for its
backward pass that is as wide. :func:`add_plain` is the same in plain operations: for compilers, which fuse it with the
loss, and for the tests.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..seen import COUNTS, RANKS, rank_classes

__all__ = ["Parts", "SeenHead", "SeenTimes", "add", "add_plain", "moved"]

NEVER = 2**31 - 1
LOGITS = 1 << 25  # so many are worked on at once


class Parts(NamedTuple):
    """What the logits of a batch get, in parts: of positions, of tokens, and of classes."""

    score: Tensor  # [B, T, r], query h
    bias: Tensor  # [B, T], gate . h
    rows: Tensor  # [V, r], key e
    steps: Tensor  # [4, V], by how much the table's number grows when a token was seen for the 1st, 2nd, 4th, 8th time


class SeenHead(nn.Module):
    """The numbers of the head, of rank ``rank``, for a model of ``channels`` channels and ``vocabulary`` tokens."""

    ranks: Tensor  # [V], the column of each token in the table

    def __init__(self, channels: int, rank: int, vocabulary: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.register_buffer("ranks", torch.from_numpy(rank_classes(vocabulary)).to(device), persistent=False)

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.table, self.gate = made(COUNTS, RANKS), made(channels)
        self.query, self.key = made(rank, channels), made(rank, channels)
        self._rows: Any = None  # of the last call without gradients, and what they were made of
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset all parameters to their starting values: nothing is added."""
        for zero in (self.table, self.gate, self.key):
            nn.init.zeros_(zero)
        nn.init.xavier_uniform_(self.query)

    def parts(self, hidden: Tensor, weight: Tensor) -> Parts:
        """What to add for hidden states [B, T, C] beside a head of weight [V, C]."""
        kind = hidden.dtype
        grown = torch.diff(self.table.float(), dim=0, prepend=self.table.new_zeros(1, RANKS).float())
        bias = functional.linear(hidden, self.gate.to(kind)[None])[..., 0].float()
        score = functional.linear(hidden, self.query.to(kind))
        return Parts(score, bias, self._rows_of(weight, score.dtype), grown.index_select(1, self.ranks))

    def _rows_of(self, weight: Tensor, kind: torch.dtype) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or weight.is_inference():
            return functional.linear(weight, self.key.to(weight.dtype)).to(kind)
        made_of = (kind, *((x.data_ptr(), x._version, x.dtype, x.device) for x in (weight, self.key)))
        if self._rows is None or self._rows[0] != made_of:
            self._rows = made_of, functional.linear(weight, self.key.to(weight.dtype)).to(kind)
        return self._rows[1]

    def train(self, mode: bool = True) -> "SeenHead":
        if mode != self.training:
            self._rows = None  # a replayed training step changes weights without a trace
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> "SeenHead":
        self._rows = None
        return super()._apply(fn, recurse)

    def __getstate__(self) -> "dict[str, Any]":
        return {**self.__dict__, "_rows": None}

    def forward(self, logits: Tensor, hidden: Tensor, weight: Tensor, times: Tensor, old: Tensor) -> Tensor:
        """Logits [B, T, V], changed in place, with times [B, 4, V] and old [B, T], before which a time has to be."""
        return add(logits, self.parts(hidden, weight), times, old)

    def extra_repr(self) -> str:
        return f"{self.query.shape[1]}, rank={self.query.shape[0]}"


class SeenTimes:
    """When each token stood in texts that grow for the 1st, 2nd, 4th and 8th time; times are numbers of tokens."""

    def __init__(self, batch: int, vocabulary: int, device: Any) -> None:
        # One more column than there are tokens: for padding, and for what is not to be written.
        self._times = torch.full((batch, COUNTS, vocabulary + 1), NEVER, dtype=torch.int32, device=device)
        self._counts = torch.zeros((batch, vocabulary + 1), dtype=torch.int32, device=device)
        self._lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self._ids = torch.zeros((batch, 0), dtype=torch.int32, device=device)  # with spare room
        self._steps = 0

    @property
    def times(self) -> Tensor:
        """int32 [rows, 4, vocabulary]; NEVER where a token was not seen so often."""
        return self._times[..., :-1]

    @property
    def bytes(self) -> int:
        return sum(x.nbytes for x in (self._times, self._counts, self._lengths, self._ids))

    @torch.no_grad()
    def push(self, ids: Tensor, valid: Optional[Tensor] = None, keep: bool = True) -> Tensor:
        """Append tokens [rows, t]; gives the time of each position's last token, [rows, t].

        valid: False at padding, which is not counted. keep: remember the tokens, so that they can be taken back.
        """
        padding = self._counts.shape[1] - 1
        tokens = ids.to(torch.int64) if valid is None else ids.to(torch.int64).masked_fill(~valid, padding)
        real = (tokens != padding).to(torch.int32)
        time = self._lengths[:, None] + real.cumsum(1, dtype=torch.int32) - 1
        token, order = tokens.sort(dim=1, stable=True)
        at = torch.arange(ids.shape[1], device=ids.device, dtype=torch.int32).expand_as(token)
        begins = torch.ones_like(token, dtype=torch.bool)
        begins[:, 1:] = token[:, 1:] != token[:, :-1]
        first = at.where(begins, 0).cummax(1).values
        number = self._counts.gather(1, token) + at - first + 1  # 1 for the first occurrence of a token, 2 for the second, ...
        when = time.gather(1, order)
        for row in range(COUNTS):
            here = number == 1 << row
            self._times[:, row].scatter_(1, token.where(here, padding), when.where(here, NEVER))
        self._counts.scatter_add_(1, token, torch.ones_like(at).contiguous())
        self._lengths = time[:, -1] + 1 if ids.shape[1] else self._lengths
        if keep:
            self._keep(tokens)
        return time

    def _keep(self, tokens: Tensor) -> None:
        end = self._steps + tokens.shape[1]
        if end > self._ids.shape[1]:
            room = self._ids.new_zeros((len(tokens), end * 5 // 4 + 16))
            room[:, : self._steps] = self._ids[:, : self._steps]
            self._ids = room
        self._ids[:, self._steps : end] = tokens
        self._steps = end

    def rewind(self, steps: int) -> None:
        """Forget the last ``steps`` steps."""
        gone = self._ids[:, self._steps - steps : self._steps].to(torch.int64)
        real = (gone != self._counts.shape[1] - 1).to(torch.int32)
        self._counts.scatter_add_(1, gone, -torch.ones_like(gone, dtype=torch.int32))
        self._lengths = self._lengths - real.sum(1, dtype=torch.int32)
        self._times = self._times.masked_fill(self._times >= self._lengths[:, None, None], NEVER)
        self._steps -= steps

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i becomes a copy of what row ``rows[i]`` was."""
        chosen = torch.tensor(list(rows), dtype=torch.int64, device=self._counts.device)
        self._times, self._counts = self._times[chosen], self._counts[chosen]
        self._lengths, self._ids = self._lengths[chosen], self._ids[chosen]


def moved(times: Tensor) -> Tensor:
    """Times of other tokens, for the control ``random``: each id has those of one half its class away."""
    vocabulary = times.shape[-1]
    ids = torch.arange(vocabulary, device=times.device)
    low = 2 ** (torch.from_numpy(rank_classes(vocabulary)).to(times.device) + 6) - 64
    size = (2 * low + 64).clamp(max=vocabulary) - low
    return times[..., low + (ids - low + size // 2) % size]


def add_plain(logits: Tensor, parts: Parts, times: Tensor, old: Tensor) -> Tensor:
    """Logits [B, T, V] with what tokens seen before ``old`` [B, T] get; times are [B, 4, V]."""
    more = functional.linear(parts.score, parts.rows).float() + parts.bias[..., None] + parts.steps[0]
    total = torch.where(times[:, 0, None] < old[..., None], more, 0.0)
    for row in range(1, COUNTS):
        total = total + torch.where(times[:, row, None] < old[..., None], parts.steps[row], 0.0)
    return (logits.float() + total).to(logits.dtype)


def add(logits: Tensor, parts: Parts, times: Tensor, old: Tensor) -> Tensor:
    """The same in place, some rows at a time."""
    return _Add.apply(logits, *parts, times, old)  # type: ignore[no-any-return]


def _blocks(old: Tensor, vocabulary: int) -> "list[Tuple[int, slice]]":
    """Rows of the batch, and some positions of them."""
    some = max(1, LOGITS // vocabulary)
    return [(b, slice(t, t + some)) for b in range(old.shape[0]) for t in range(0, old.shape[1], some)]


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, *given: Tensor) -> Tensor:
        score, bias, rows, steps, times, old = given
        ctx.save_for_backward(*given)
        ctx.mark_dirty(logits)
        for b, part in _blocks(old, logits.shape[-1]):
            more = torch.mm(score[b, part], rows.t()).float().add_(bias[b, part, None]).add_(steps[0])
            before = old[b, part, None]
            total = more.masked_fill_(times[b, 0] >= before, 0.0)
            for row in range(1, COUNTS):
                total += steps[row].where(times[b, row] < before, 0.0)
            logits[b, part] = (logits[b, part].float() + total).to(logits.dtype)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> "tuple[Optional[Tensor], ...]":
        score, bias, rows, steps, times, old = ctx.saved_tensors
        (grad,) = gradients
        g_score, g_bias = torch.empty_like(score), torch.empty_like(bias)
        g_rows, g_steps = torch.zeros_like(rows, dtype=torch.float32), torch.zeros_like(steps)
        for b, part in _blocks(old, grad.shape[-1]):
            here, before = grad[b, part].float(), old[b, part, None]
            for row in range(1, COUNTS):
                g_steps[row] += here.masked_fill(times[b, row] >= before, 0.0).sum(0)
            here = here.masked_fill(times[b, 0] >= before, 0.0)
            g_steps[0] += here.sum(0)
            g_bias[b, part] = here.sum(1)
            narrow = here.to(rows.dtype)
            g_score[b, part] = torch.mm(narrow, rows)
            g_rows += torch.mm(narrow.t(), score[b, part]).float()
        return grad, g_score, g_bias, g_rows.to(rows.dtype), g_steps, None, None
