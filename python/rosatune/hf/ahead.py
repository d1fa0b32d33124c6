"""Looking up ahead: the places of token ids, found while the device still works on the batch before.

Places of the source ``tokens`` depend on the ids alone, so nothing has to wait for them: they are looked up on the host
when a batch is made, and travel with it as one more tensor, ``rosa_places``. So does the list of the batch's distinct
tokens, ``rosa_tokens``, where values are made of embeddings: their values are made once (``torch/_distinct.py``).
Without that the model looks up itself, when it is called; ids that are on a GPU by then have to come back first, and
the GPU waits.

    for batch in rosatune.hf.prefetch(model, loader, device="cuda"):       # a loop of one's own
        model(**batch, labels=batch["input_ids"]).loss.backward()

    Trainer(model, data_collator=rosatune.hf.LookUpCollator(model, collator), ...)

An ``attention_mask`` without padding is left out of such batches: on a GPU, whether it holds any could only be asked by
waiting for it.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Deque, Iterable, Iterator, Mapping, Optional, Union

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ..finder import find
from ..torch import _distinct, _pinned, _places
from .attach import _attached
from .patch import PLACES, TOKENS, by_distinct

__all__ = ["LookUpCollator", "prefetch"]


class LookUpCollator:
    """A data collator that looks up the places of its batches.

    ``collate`` makes a batch, a dictionary with ``input_ids`` on the host, from examples; by default transformers'
    ``default_data_collator``. ``threads`` is how many a look-up may use, at most one per row of the batch; 0: one per
    processor. It keeps the model's rule, not the model: make it after the adapters, and again after other ones.

    Batches may be cut by rows later, but not joined: each has its own list of distinct tokens. Where they are (for
    datasets that cannot be indexed, ``accelerate`` joins those of all processes and cuts them again), set ``distinct``
    to False, and values are made by step.
    """

    def __init__(self, model: Any, collate: Optional[Callable[[Any], Any]] = None, threads: int = 0) -> None:
        if collate is None:
            from transformers import default_data_collator

            collate = default_data_collator
        self.collate, self.threads = collate, threads
        found = _attached(model)[1]
        self.rule, self.distinct = found.lookup.rules.get("tokens"), bool(found.layers) and by_distinct(found.config)

    def __call__(self, examples: Any) -> Any:
        return self.look_up(self.collate(examples))

    def look_up(self, batch: Any) -> Any:
        """The batch with its places; a new dictionary of the same tensors."""
        if not isinstance(batch, Mapping) or not isinstance(batch.get("input_ids"), Tensor):
            raise InvalidArgument("a batch is a dictionary with a tensor input_ids; this one is not")
        batch = dict(batch)
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        if mask is not None and mask.device.type == "cpu" and bool(mask.all()):
            del batch["attention_mask"]
            mask = None
        if self.rule is not None:
            symbols = ids.detach().cpu().numpy()[:, None]
            valid = None if mask is None else mask.detach().cpu().numpy().astype(bool)
            found = find(self.rule, symbols, symbols, valid, threads=self.threads)["found"]
            batch[PLACES] = _places.encode(found)
        tokens = _distinct.find(ids.detach().cpu().numpy()) if self.distinct else None
        if tokens is not None:
            batch[TOKENS] = tokens
        return batch


def prefetch(
    model: Any,
    batches: Iterable[Any],
    depth: int = 4,
    device: Union[torch.device, str, None] = None,
    look_up: Optional[Callable[[Any], Any]] = None,
) -> Iterator[Any]:
    """The same batches with their places, looked up by threads of their own while earlier ones are worked on.

    ``batches`` are dictionaries with ``input_ids`` on the host. ``depth`` are looked up ahead. With ``device`` their
    tensors are copied there, from pinned memory where it is a GPU, and without waiting. ``look_up`` takes the place of
    :meth:`LookUpCollator.look_up`, for experiments with other places.
    """
    if depth < 1:
        raise InvalidArgument(f"depth is {depth}; give 1 or more")
    look_up = look_up or LookUpCollator(model).look_up
    there = None if device is None else torch.device(device)
    to_gpu = there is not None and there.type == "cuda"

    def prepared(batch: Any) -> Any:
        batch = look_up(batch)
        return {name: _pinned.pinned(x) if to_gpu and isinstance(x, Tensor) else x for name, x in batch.items()}

    def arrived(batch: Any) -> Any:
        if there is None:
            return batch
        return {name: x.to(there, non_blocking=True) if isinstance(x, Tensor) else x for name, x in batch.items()}

    pool = ThreadPoolExecutor(2, thread_name_prefix="rosatune-ahead")
    under_way: "Deque[Future[Any]]" = deque()
    try:
        for batch in batches:
            under_way.append(pool.submit(prepared, batch))
            if len(under_way) > depth:
                yield arrived(under_way.popleft().result())
        while under_way:
            yield arrived(under_way.popleft().result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
