"""What the gradients are the gradients of, written so that PyTorch can differentiate it.

Each function is an objective whose derivative, taken by autograd, is what a rule promises. Bits are straight-through:
their value is the bit, their slope that of the sigmoid. Pairs of steps are formed one by one or as whole T x T arrays:
nothing here is fast, and nothing is shared with the package.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import oracle
import torch
from torch import Tensor


def bits_of(x: Tensor) -> Tensor:
    """0 or 1, with the sigmoid's slope."""
    soft = torch.sigmoid(x)
    return (x > 0).to(x.dtype) + soft - soft.detach()


def symbols(x: Tensor, bits: int) -> np.ndarray:
    """[B, R, T]"""
    batch, steps, channels = x.shape
    found = (x.detach().numpy() > 0).reshape(batch, steps, channels // bits, bits)
    return (found << np.arange(bits)).sum(-1).transpose(0, 2, 1)


def read_out(v: Tensor, e0: Tensor, e1: Tensor, tau: np.ndarray, bits: int) -> Tensor:
    """y for destinations [B, R, T]."""
    batch, steps, channels = v.shape
    bit = bits_of(v).view(batch, steps, -1, bits)
    index = torch.from_numpy(tau).long().transpose(1, 2).unsqueeze(-1)
    found = bit.gather(1, index.clamp(min=0).expand(-1, -1, -1, bits))
    y = (e0.view(-1, bits) + (e1 - e0).view(-1, bits) * found) * (index >= 0)
    return y.reshape(v.shape)


def starts_of(stream: np.ndarray, fold: bool) -> list[int]:
    return [start for _, start in oracle.runs_of(stream, fold)]


def flips(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, bits: int, fold: bool, key_credit: str, policy: str
) -> Tensor:
    """Every bit of a query chooses between what its two branches read; a key's bit gates what lands on its run."""
    batch, steps, channels = q.shape
    qs, ks = symbols(q, bits), symbols(k, bits)
    q_bit, k_bit, p = bits_of(q), bits_of(k), torch.sigmoid(v).detach()
    total = q.new_zeros(())
    for b in range(batch):
        for r in range(channels // bits):
            found = oracle.retrieve(qs[b, r], ks[b, r], bits, policy, fold)
            query_starts, key_starts = starts_of(qs[b, r], fold), starts_of(ks[b, r], fold)
            c = slice(r * bits, (r + 1) * bits)
            for t in range(steps):
                true = int(found.tau[max(start for start in query_starts if start <= t)])
                for j in range(bits):
                    ends = [true, int(found.flips[t, j])]
                    if qs[b, r, t] >> j & 1:
                        ends.reverse()
                    for branch, end in enumerate(ends):
                        if end < 0:
                            continue
                        gain = theta[b, t, c] @ p[b, end, c]
                        run = key_starts.index(end) - (key_credit == "match")
                        for bit in (q_bit[b, t, r * bits + j], k_bit[b, key_starts[run], r * bits + j]):
                            total = total + gain * (bit if branch else 1 - bit)
    return total


def weighed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    theta: Tensor,
    bits: int,
    fold: bool,
    credit: str,
    suffix: float,
    slope: Optional[float],
) -> Tensor:
    """The soft read-out: all past runs, weighed by a softmax over distances. slope None: at uniform weights."""
    batch, steps, channels = q.shape
    qs, ks = symbols(q, bits), symbols(k, bits)
    q_bit, k_bit, p = bits_of(q), bits_of(k), torch.sigmoid(v).detach()
    total = q.new_zeros(())
    for b in range(batch):
        for r in range(channels // bits):
            c = slice(r * bits, (r + 1) * bits)
            judged: Any = slice(None) if credit == "all" else c
            query_starts, key_starts = starts_of(qs[b, r], fold), starts_of(ks[b, r], fold)
            for t in range(steps):
                runs = [i for i in range(1, len(key_starts)) if key_starts[i] < t]
                if not runs:
                    continue
                run = max(i for i, start in enumerate(query_starts) if start <= t)
                scores, gains = [], []
                for i in runs:
                    score = -distance(q_bit[b, t, c], k_bit[b, key_starts[i - 1], c])
                    if suffix and run >= 1 and i >= 2:
                        earlier = q_bit[b, query_starts[run - 1], c]
                        score = score - suffix * distance(earlier, k_bit[b, key_starts[i - 2], c])
                    scores.append(score)
                    gains.append(theta[b, t, judged] @ p[b, key_starts[i], judged])
                score = torch.stack(scores)
                score = score - score.detach() if slope is None else slope * score
                total = total + torch.softmax(score, 0) @ torch.stack(gains)
    return total


def distance(x: Tensor, y: Tensor) -> Tensor:
    """Hamming distance of bits, differentiable."""
    return (x + y - 2 * x * y).sum()
