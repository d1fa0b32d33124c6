"""Fitting a pointer: maximum likelihood of its few dozen numbers, with the model frozen.

Give texts that the model was not trained on: what it knows by heart needs no pointer, and the weights would come out
too small.

Of every position only a few numbers are needed: the logarithms of the probabilities that the model gives to the next
token, to the tokens of the links and to its favourite, and the match lengths. So the logits are read once, slice by
slice, and the fit itself takes seconds.

Some combinations of rank and length are rare. Two weak penalties keep their numbers sensible: neighbouring lengths of
one rank prefer similar numbers, as if each pair had been seen to agree some ten times, and all prefer -3.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidArgument
from ..far import far_distances
from ..pointer import FEATURES, LARGEST, LEAST, LENGTHS, Pointer
from ..seen import COUNTS, RANKS, Seen, rank_classes
from ..torch._pointer import seen_counts
from .arrange import arranged, is_attached, why_no_window
from .pointer import unwrapped
from .reading import frozen, links_of, pieces_of, read_texts, slices

__all__ = ["Fit", "fit_pointer"]

START = -3.0
SMOOTH = 1.0  # nats per squared difference of neighbouring lengths
SHRINK = 0.01  # nats per squared difference from START
SEEN_SMOOTH = 1.0  # the same for neighbours in the table of tokens seen, in both directions
SEEN_SHRINK = 0.05  # nats per square of a number in it


class Fit(NamedTuple):
    """What a pointer is worth, in nats per token, on the last fifth of the positions, which it was not fitted to."""

    positions: int  #: those that it was fitted to
    before: float  #: the model alone
    after: float  #: with the pointer
    far_before: float  #: the same over far tokens; NaN if there are none
    far_after: float


class Observed(NamedTuple):
    """What a fit needs of the positions, in float64."""

    target: Tensor  # [positions], log p_model of the next token
    share: Tensor  # [positions, links], log p_model of the tokens of the links
    sure: Tensor  # [positions], the greatest log p_model
    lengths: Tensor  # [positions, links], match lengths, cut at 12; 0: no link
    right: Tensor  # [positions, links], whether the link's token is the next token
    features: Tensor  # [positions, links, 8] of a pointer by contexts; of a chain [positions, links, 0]
    mass: Tensor  # [positions, 60], p_model of the tokens of each class of the table seen; [positions, 0]: no table
    own: Tensor  # [positions], the class of the next token; -1: not seen
    far: Tensor  # [positions]


def fit_pointer(
    model: Any,
    texts: Any,
    *,
    delay: Optional[int] = None,
    window: Optional[int] = None,
    sinks: int = 4,
    links: Optional[int] = None,
    confidence: bool = False,
    seen: bool = True,
    context: Optional[int] = None,
    positions: int = 16384,
    tokenizer: Any = None,
    progress: Any = None,
) -> Pointer:
    """Fit a pointer to a model, which stays as it is. Some minutes on a CPU for a small model; deterministic.

    Args:
        model: a causal model of transformers, with or without adapters.
        texts: names of files, or token ids; a list of them. Take texts of the kind that the pointer is for, which the
            model was not trained on.
        delay: only places at least this far back are found; by default the window, or 0 where there is none.
        window, sinks: limit the attention of a model without adapters to a window while the pointer is fitted; by
            default it is read as it is. Adapters have brought their own.
        links: the length of a chain, 1 to 16; by default the pointer is one by contexts (:mod:`rosatune.pointer`).
        confidence: whether the weights of a chain also depend on the model's own probabilities.
        seen: whether a pointer by contexts also has a table that makes likelier what the text has had.
        context: texts are cut into pieces of so many tokens; by default 4096, or what the model was trained for if that
            is less. The first four windows of each, or its first quarter, are read but not used.
        positions: how many positions are used, at most; pieces are taken from all texts in turn. The last fifth of them
            is held back to measure the pointer on.
        tokenizer: for files; by default that of the model's folder.
        progress: called as ``progress(done, total)`` in positions.

    Returns:
        A pointer. Its attribute ``fit`` (:class:`rosatune.hf.fit.Fit`) has the losses without it and with it.
    """
    model = unwrapped(model)
    found = is_attached(model)
    if found is not None:
        if window is not None and window != found.config.window:
            raise InvalidArgument(
                f"window is {window}, but the adapters were attached with {found.config.window}; leave it out"
            )
        window = found.config.window
    elif window and why_no_window(model) is not None:
        raise InvalidArgument(f"window is {window}, but {why_no_window(model)} Leave it out, and give delay=")
    delay = (window or 0) if delay is None else delay
    if links is None and confidence:
        raise InvalidArgument("confidence is an option of chains, and links is None; give links=8, or leave it out")
    if links is None:
        table = np.zeros((COUNTS, RANKS)) if seen else None
        start = Pointer(np.full(LENGTHS, START), delay, slopes={}, seen=table)
    else:
        start = Pointer(np.full((links, LENGTHS), START), delay, np.zeros((links, 2)) if confidence else None)
    if context is None:
        context = min(4096, getattr(model.config, "max_position_embeddings", None) or 4096)
    if context < 8 or positions < 1:
        raise InvalidArgument(f"context is {context} and positions {positions}; give at least 8 and 1")
    with frozen(model), arranged(model, "window", window, sinks) if window and found is None else nullcontext():
        observed = _observe(model, read_texts(model, texts, tokenizer), start, context, positions, progress)
    return _fitted(start, observed)


def _observe(
    model: Any, texts: dict[str, Any], pointer: Pointer, context: int, positions: int, progress: Any
) -> Observed:
    first = max(1, min(4 * pointer.delay, context // 4))
    cut = [[piece for piece in pieces_of(ids, context, rest=True) if len(piece) > first] for ids in texts.values()]
    turns = [pieces[turn] for turn in range(max(map(len, cut))) for pieces in cut if turn < len(pieces)]
    if not turns:
        raise InvalidArgument(f"no text has more than {first} tokens, after which positions are used; give longer ones")
    total = min(positions, sum(len(piece) - first for piece in turns))
    device = model.get_input_embeddings().weight.device
    parts: list[tuple[Tensor, ...]] = []
    done = 0
    for piece in turns:
        if done >= total:
            break
        ids = torch.from_numpy(piece[: first + total - done]).to(device)[None]
        found: Any = links_of(pointer, ids)
        far = torch.from_numpy(far_distances(piece)[: ids.shape[1]])
        far = (far > 0) & (far >= pointer.delay)
        for begin, logits in slices(model, ids, first):
            end = begin + logits.shape[1]
            links = found.at((0, slice(begin - 1, end - 1)), logits.device)
            part = observed_at(logits[0], ids[0, begin:end].to(logits.device), *links)
            parts.append((*(x.cpu() for x in part), far[begin:end]))
            done += end - begin
            if progress is not None:
                progress(done, total)
    return Observed(*(torch.cat(part) for part in zip(*parts)))


def observed_at(
    logits: Tensor, target: Tensor, token: Tensor, length: Tensor, clues: Tensor, seen: Optional[Seen] = None
) -> tuple[Tensor, ...]:
    """What a fit needs of positions, in the order of Observed, without ``far``, from logits [..., vocabulary]."""
    norm = logits.logsumexp(-1, keepdim=True)
    share = (logits.gather(-1, token.clamp(min=0)) - norm).double()
    sure = (logits.amax(-1, keepdim=True) - norm).double()
    features = share.new_zeros(*share.shape, 0)
    if clues.shape[-1]:
        entropy = (norm - ((logits - norm).exp() * logits).sum(-1, keepdim=True)).double()
        ours = (share.clamp(min=LEAST), sure.clamp(min=LEAST).expand_as(share), entropy.expand_as(share))
        features = torch.cat([torch.stack(ours, -1), clues.to(share)], -1)
    own = (logits.gather(-1, target[..., None]) - norm)[..., 0].double()
    right = (token == target[..., None]) & (length > 0)
    mass, which = _seen_at(logits - norm, target, seen)
    return own, share, sure[..., 0], length.clamp(max=LENGTHS - 1), right, features, mass, which


def _seen_at(logs: Tensor, target: Tensor, seen: Optional[Seen]) -> tuple[Tensor, Tensor]:
    """Of the classes of the table of tokens seen the model's mass [..., 60], and that of the target [...]."""
    if seen is None:
        return logs.new_zeros(*target.shape, 0).double(), torch.full_like(target, -1)
    vocabulary = logs.shape[-1]
    ranks = torch.from_numpy(rank_classes(vocabulary)).to(logs.device)
    sizes = ranks.bincount(minlength=RANKS).tolist()  # classes are ranges of ids
    counts = seen_counts(seen, vocabulary, logs.device)
    p, masses, number = logs.exp().where(counts > 0, 0), [], torch.zeros_like(counts, dtype=torch.uint8)
    for least in range(1, COUNTS):
        number += counts >= 1 << least
    for each in range(COUNTS):
        masses += [part.sum(-1).double() for part in p.where(number == each, 0).split(sizes, -1)]
    seen_once, often = (x.gather(-1, target[..., None])[..., 0] for x in (counts > 0, number))
    return torch.stack(masses, -1), torch.where(seen_once, RANKS * often.long() + ranks[target], -1)


def losses_with(pointer: Pointer, observed: Observed) -> Tensor:
    """The loss at each position with a pointer."""
    slope = pointer.confidence if pointer.slopes is None else list(pointer.slopes.values())
    tables = (
        None if numbers is None else torch.tensor(numbers, dtype=torch.float64, device=observed.target.device)
        for numbers in (pointer.theta, slope, pointer.seen)
    )
    return losses(observed, *tables)  # type: ignore[arg-type]


def losses(
    observed: Observed, theta: Tensor, slope: Optional[Tensor] = None, seen: Optional[Tensor] = None
) -> Tensor:
    """The loss at each position, from the definition; ``slope`` is that of confidence, or of the features."""
    length = observed.lengths.long()
    weight = theta[length] if theta.ndim == 1 else theta[torch.arange(len(theta), device=theta.device), length]
    if theta.ndim == 1 and slope is not None:
        weight = weight + observed.features @ slope
    elif slope is not None:
        weight = weight + slope[:, 0] * observed.share.clamp(min=LEAST)
        weight = weight + slope[:, 1] * observed.sure[:, None].clamp(min=LEAST)
    weight = weight.masked_fill(observed.lengths == 0, -torch.inf)
    right = weight.masked_fill(~observed.right, -torch.inf)
    target = observed.target
    if seen is not None:
        bonus = seen.flatten()
        own = torch.where(observed.own >= 0, bonus[observed.own.clamp(min=0)], 0.0)
        unseen = (1 - observed.mass.sum(1)).clamp(min=0)  # masses are sums of float32: all of them may exceed 1
        target = target + own - (unseen + observed.mass @ bonus.exp()).log()
    mixed = torch.cat([target[:, None], right], 1).logsumexp(1)
    return torch.cat([torch.zeros_like(mixed)[:, None], weight], 1).logsumexp(1) - mixed


def _fitted(start: Pointer, observed: Observed) -> Pointer:
    where: Any = dict(dtype=torch.float64, device=observed.target.device, requires_grad=True)
    theta = torch.tensor(start.theta, **where)
    slope = None if start.confidence is None else torch.tensor(start.confidence, **where)
    if start.contexts:
        slope = torch.zeros(len(FEATURES), **where)
    seen = None if start.seen is None else torch.tensor(start.seen, **where)
    fitted = len(observed.target) - len(observed.target) // 5
    matters = (observed.lengths[:fitted] > 0).any(1)
    if seen is not None:
        matters |= (observed.mass[:fitted] > 0).any(1)
    used = Observed(*(x[:fitted][matters] for x in observed))
    parameters = [x for x in (theta, slope, seen) if x is not None]
    optimizer = torch.optim.LBFGS(parameters, max_iter=300, tolerance_change=1e-10, line_search_fn="strong_wolfe")
    count = max(1, len(used.target))

    def objective() -> Tensor:
        optimizer.zero_grad()
        penalty = SMOOTH * (theta[..., 2:] - theta[..., 1:-1]).square().sum() + SHRINK * (theta - START).square().sum()
        if slope is not None:
            penalty = penalty + SHRINK * slope.square().sum()
        if seen is not None:
            uneven = seen.diff(dim=0).square().sum() + seen.diff(dim=1).square().sum()
            penalty = penalty + SEEN_SMOOTH * uneven + SEEN_SHRINK * seen.square().sum()
        objective = (losses(used, theta, slope, seen).sum() + penalty) / count
        objective.backward()
        return objective

    if len(used.target):
        optimizer.step(objective)

    def rounded(numbers: Optional[Tensor]) -> Any:
        return None if numbers is None else numbers.detach().clamp(-LARGEST, LARGEST).cpu().numpy().round(4)

    if start.contexts:
        slopes = dict(zip(FEATURES, rounded(slope).tolist()))
        made = Pointer(rounded(theta), start.delay, slopes=slopes, seen=rounded(seen))
    else:
        made = Pointer(rounded(theta), start.delay, rounded(slope))
    held = Observed(*(x[fitted:] for x in observed))
    before, after, far = -held.target, losses_with(made, held), held.far
    made.fit = Fit(fitted, *(float(x.mean()) for x in (before, after, before[far], after[far])))
    return made
