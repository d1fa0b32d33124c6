"""The pointer on logits (:mod:`rosatune.pointer` defines it).

The mixture is written as logits. With ``L = log sum exp(logits)`` the logit of a token found becomes
``L + log(p(x) + a_x)`` and all others stay: the softmax over that is the mixture, since the sum of the exponentials has
grown by exactly the factor ``1 + sum a``. So a few logits per position change, and what works on logits finds the
scale that the model gave them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..pointer import FEATURES, LEAST, LENGTHS, Links, Pointer
from ..seen import Seen, rank_classes

__all__ = ["Found", "PointerHead", "pointer"]


class Found(NamedTuple):
    """Links as tensors: tokens, match lengths and clues by position, and what has been seen there."""

    tokens: Tensor
    lengths: Tensor
    clues: Tensor
    seen: Optional[Seen] = None

    @classmethod
    def of(cls, links: Links) -> "Found":
        tokens, lengths, clues = map(torch.from_numpy, (links.tokens, links.lengths, links.clues))
        return cls(tokens, lengths, clues, links.seen)

    def at(self, key: Any, device: Any) -> "Found":
        """Those of some positions, on a device."""
        tokens, lengths, clues = (x[key].to(device) for x in (self.tokens, self.lengths, self.clues))
        return Found(tokens, lengths, clues, None if self.seen is None else self.seen[key])


def pointer(
    logits: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    theta: Tensor,
    confidence: Optional[Tensor] = None,
    agreement: Optional[Tensor] = None,
    slopes: Optional[Tensor] = None,
    clues: Optional[Tensor] = None,
    table: Optional[Tensor] = None,
    seen: Optional[Seen] = None,
) -> Tensor:
    """Log-probabilities of the next token, [..., vocabulary], the tokens found mixed in.

    ``logits`` is [..., vocabulary], ``tokens`` and ``lengths`` are [..., links] as :meth:`rosatune.Pointer.look_up`
    gives them, ``theta`` is [links, 13], ``confidence`` [links, 2] and ``agreement`` [links]. By contexts ``theta`` is
    [13], ``slopes`` [8] in the order of ``FEATURES``, and ``clues`` [..., links, 5]; with a table of tokens seen
    ``table`` is [4, 15], and ``seen`` what look_up gives. Differentiable in logits and in these numbers.
    A token that the model excludes, whose logit is -inf, stays excluded. Results are float32, or float64 if logits are.
    """
    mixed, total, grown = mix(logits, tokens, lengths, theta, confidence, agreement, slopes, clues, table, seen)
    return mixed.sub_(total + grown)


def mix(
    logits: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    theta: Tensor,
    confidence: Optional[Tensor] = None,
    agreement: Optional[Tensor] = None,
    slopes: Optional[Tensor] = None,
    clues: Optional[Tensor] = None,
    table: Optional[Tensor] = None,
    seen: Optional[Seen] = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the mixture; log sum exp of those given; and by how much the former's is greater, both [..., 1]."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    total = logits.logsumexp(-1, keepdim=True)
    token = tokens.clamp(min=0)
    share = logits.gather(-1, token) - total
    there = (lengths > 0) & torch.isfinite(share)
    share = share.where(there, 0)
    length = lengths.clamp(max=LENGTHS - 1).long()
    weight = theta[length] if theta.ndim == 1 else theta[torch.arange(len(theta), device=theta.device), length]
    weight = weight.to(logits.dtype)
    if confidence is not None:
        slope = confidence.to(logits.dtype)
        sure = logits.amax(-1, keepdim=True) - total
        weight = weight + slope[:, 0] * share.clamp(min=LEAST) + slope[:, 1] * sure.clamp(min=LEAST)
    if slopes is not None:
        if clues is None:
            raise ValueError("slopes are of a pointer by contexts; give the clues that look_up found too")
        sure = (logits.amax(-1, keepdim=True) - total).clamp(min=LEAST)
        of_model = (share.clamp(min=LEAST), sure.expand_as(share), _entropy(logits, total).expand_as(share))
        features = torch.cat([torch.stack(of_model, -1), clues.to(logits.dtype)], -1)
        weight = weight + features @ slopes.to(logits.dtype)
    same = (token[..., :, None] == token[..., None, :]) & there[..., None, :]
    first = there & ~same.tril(-1).any(-1)
    if agreement is not None:
        different = first.sum(-1, keepdim=True).clamp(min=1)
        weight = weight + agreement.to(logits.dtype)[different - 1]
    nothing = weight.new_tensor(-torch.inf)
    weight = weight.where(there, nothing)
    grown = torch.cat([torch.zeros_like(total), weight], -1).logsumexp(-1, keepdim=True)

    # The weight of a link's token is that of all links with this token. The first of them changes the logit. Where
    # there is no link zeros stand in, as the gradient of an empty sum of exponentials would not be a number.
    of_token = weight[..., None, :].where(same, nothing).where(there[..., :, None], 0).logsumexp(-1)
    if table is not None and seen is not None:
        # The sum of the exponentials stays what it was.
        logits = logits + seen_bonus(seen, table.to(logits.dtype), logits.shape[-1])
        logits = logits + (total - logits.logsumexp(-1, keepdim=True))
        share = (logits.gather(-1, token) - total).where(there, 0)
    change = functional.softplus(of_token - share, threshold=40).where(first, 0)
    return logits.scatter_add(-1, token, change), total, grown


def seen_counts(seen: Seen, vocabulary: int, device: Any) -> Tensor:
    """How often each token has been seen at some positions, [..., vocabulary]."""
    row, old = (torch.from_numpy(np.array(x).reshape(-1)).to(device) for x in (seen.row, seen.old))
    longest = int(seen.old.max()) if seen.old.size else 0
    counts = torch.zeros(len(row), vocabulary, dtype=torch.int32, device=device)
    if seen.before is not None and seen.before.size:
        known = torch.from_numpy(seen.before[:, :vocabulary]).to(device)
        counts[:, : known.shape[1]] = known[row]
    tokens = torch.from_numpy(seen.tokens[:, :longest].astype(np.int64)).to(device)
    there = torch.arange(longest, device=device) < old[:, None]
    counts.scatter_add_(1, tokens[row], there.to(torch.int32))
    return counts.view(*seen.shape, vocabulary)


def seen_bonus(seen: Seen, table: Tensor, vocabulary: int) -> Tensor:
    """b(x) of the table at some positions, [..., vocabulary]."""
    counts = seen_counts(seen, vocabulary, table.device)
    by_token = table[:, torch.from_numpy(rank_classes(vocabulary)).to(table.device)]
    bonus = table.new_zeros(()).expand_as(counts)
    for number, row in enumerate(by_token):
        bonus = torch.where(counts >= 1 << number, row, bonus)
    return bonus


def _entropy(logits: Tensor, total: Tensor) -> Tensor:
    """Of the softmax of logits, in nats, [..., 1]. A logit of -inf has no part."""
    p = (logits - total).exp()
    return total - (p * logits.where(p > 0, 0)).sum(-1, keepdim=True)


class PointerHead(nn.Module):
    """A pointer whose numbers are parameters."""

    attached: Any  # what rosatune.hf keeps of the present call

    def __init__(self, pointer: Pointer, device: Any = None) -> None:
        super().__init__()
        options: Any = dict(dtype=torch.float32, device=device)
        self.delay, self.links, self.contexts = pointer.delay, pointer.links, pointer.contexts
        self.theta = nn.Parameter(torch.tensor(pointer.theta, **options))
        self.confidence: Optional[nn.Parameter] = None
        if pointer.confidence is not None:
            self.confidence = nn.Parameter(torch.tensor(pointer.confidence, **options))
        self.agreement: Optional[nn.Parameter] = None
        if pointer.agreement is not None:
            self.agreement = nn.Parameter(torch.tensor(pointer.agreement, **options))
        self.slopes: Optional[nn.Parameter] = None
        if pointer.slopes is not None:
            self.slopes = nn.Parameter(torch.tensor([pointer.slopes[name] for name in FEATURES], **options))
        self.seen: Optional[nn.Parameter] = None
        if pointer.seen is not None:
            self.seen = nn.Parameter(torch.tensor(pointer.seen, **options))

    def pointer(self) -> Pointer:
        """The pointer with the present values of the parameters."""

        def numbers(parameter: Optional[Tensor]) -> Any:
            if parameter is None:
                return None
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            # The shortest decimal numbers that read back as the same float32.
            table = whole.detach().float().cpu().numpy()
            return np.reshape([float(str(x)) for x in table.flat], table.shape)

        if self.slopes is not None:
            slopes = dict(zip(FEATURES, numbers(self.slopes).tolist()))
            return Pointer(numbers(self.theta), self.delay, slopes=slopes, seen=numbers(self.seen))
        return Pointer(numbers(self.theta), self.delay, numbers(self.confidence), numbers(self.agreement))

    def mix(
        self,
        logits: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        clues: Optional[Tensor] = None,
        seen: Optional[Seen] = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the mixture, and the two sums of :func:`mix`."""
        numbers = self.theta, self.confidence, self.agreement, self.slopes
        return mix(logits, tokens, lengths, *numbers, clues, self.seen, seen)

    def forward(self, logits: Tensor, *found: Any) -> Tensor:
        """Log-probabilities, as :func:`pointer` gives them; ``found`` as for :meth:`mix`."""
        mixed, total, grown = self.mix(logits, *found)
        return mixed - (total + grown)

    def extra_repr(self) -> str:
        slopes = "" if self.confidence is None else ", confidence"
        slopes += "" if self.agreement is None else ", agreement"
        slopes += "" if self.seen is None else ", seen"
        kind = "contexts" if self.contexts else f"links={self.links}"
        return f"{kind}, delay={self.delay}{slopes}"
