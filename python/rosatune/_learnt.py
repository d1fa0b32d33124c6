"""Sources of learnt q and k in PyTorch: their symbols, and the chain of what they find."""

from __future__ import annotations

from typing import List

import numpy as np
import torch
from torch import Tensor

from .finder import Rule, random_places
from .sources import Learnt
from .torch import _device, _host

__all__ = ["chain", "randomised", "symbols"]


def symbols(tensors: List[Tensor], bits: int) -> np.ndarray:
    """Symbols on the host, [len(tensors), B, R, T]."""
    if tensors[0].device.type == "cpu":
        packed = _host.pack([x.detach().contiguous() for x in tensors], bits, torch.get_num_threads())
    else:
        packed = list(torch.stack([_device.host_layout(x.detach(), bits) for x in tensors]).cpu())
    shape = (len(tensors[0]), tensors[0].shape[2] // bits, tensors[0].shape[1])
    return np.stack([x.numpy().view(np.uint16).reshape(shape) for x in packed])


def chain(links: int, tau: Tensor, length: Tensor, known_tau: Tensor, known_length: Tensor) -> "tuple[Tensor, Tensor]":
    """All links [links, B, R, T] from the first [1, B, R, T] and what every step found without delay [B, R, T]."""
    taus, lengths = [tau[0]], [length[0]]
    for _ in range(1, links):
        before = (taus[-1] - 1).clamp(min=0)
        there = torch.where(taus[-1] > 0, known_tau.gather(-1, before), -1)
        shorter = torch.minimum(lengths[-1], known_length.gather(-1, before))
        taus.append(there)
        lengths.append(torch.where(there >= 0, shorter, 0))
    return torch.stack(taus), torch.stack(lengths)


@torch.compiler.disable
def randomised(learnt: Learnt, rule: Rule) -> Learnt:
    """The same with random places."""
    there = torch.from_numpy(random_places(rule, learnt.links.tau.cpu().numpy(), 0)).to(learnt.links.tau)
    read = there[0].reshape(learnt.found.read.shape).to(learnt.found.read.dtype)
    return learnt._replace(found=learnt.found._replace(read=read), links=learnt.links._replace(tau=there))
