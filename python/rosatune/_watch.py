"""What retrieval did, in a few numbers that tell whether it works.

Counts are kept, not samples: histograms of lengths and distances give exact means and medians however many passes are
added, and a table of marks tells how many different symbols a route uses. It shows symbols that collapse to a few,
queries and keys that drift apart, and matches by chance (length 1, short distances), before the loss does.
"""

from __future__ import annotations

from typing import Dict, Optional

import numpy as np
import numpy.typing as npt

__all__ = ["Watch"]


class _Histogram:
    """Counts of whole numbers from 0 on."""

    def __init__(self) -> None:
        self.counts = np.zeros(0, np.int64)

    def add(self, numbers: npt.NDArray[np.int32]) -> None:
        more = np.bincount(numbers.ravel())
        if len(more) < len(self.counts):
            more = np.pad(more, (0, len(self.counts) - len(more)))
        else:
            self.counts = np.pad(self.counts, (0, len(more) - len(self.counts)))
        self.counts += more

    def mean(self) -> float:
        total = self.counts.sum()
        return float((self.counts * np.arange(len(self.counts))).sum() / total) if total else float("nan")

    def median(self) -> float:
        """The lower median, where there are two."""
        total = self.counts.sum()
        return float(np.searchsorted(np.cumsum(self.counts), (total + 1) // 2)) if total else float("nan")


class Watch:
    """Statistics of retrievals, summed over all that are added."""

    def __init__(self) -> None:
        self._used: Optional[npt.NDArray[np.bool_]] = None  # [2, routes, 2**16]
        self._steps = self._compared = self._equal = 0
        self._lengths, self._distances = _Histogram(), _Histogram()

    def add(
        self,
        query: Optional[npt.NDArray[np.uint16]],
        key: Optional[npt.NDArray[np.uint16]],
        tau: npt.NDArray[np.int32],
        length: npt.NDArray[np.int32],
        time: npt.NDArray[np.int32],
    ) -> None:
        """One row's steps, arrays [routes, t], and ``time`` [t], each step's number as ``tau`` counts them.

        The symbols are None where query and key are one and are not learnt.
        """
        if query is not None and key is not None:
            route = np.arange(len(query))[:, None]
            if self._used is None:
                self._used = np.zeros((2, len(query), 1 << 16), np.bool_)
            for used, symbols in zip(self._used, (query, key)):
                used[route, symbols] = True
            self._compared += query.size
            self._equal += int((query == key).sum())
        self._steps += tau.size
        hit = tau >= 0
        self._lengths.add(length[hit])
        self._distances.add((time - tau)[hit])

    def summary(self) -> Dict[str, float]:
        """See :meth:`rosatune.nn.RosaAdapter.diagnostics`."""
        if not self._steps:
            return {}
        learnt = {}
        if self._used is not None:
            queries, keys = self._used.sum(2).mean(1)
            learnt = {
                "agreement": self._equal / self._compared,
                "query_symbols": float(queries),
                "key_symbols": float(keys),
            }
        return {
            "steps": self._steps,
            "hit_rate": float(self._lengths.counts.sum() / self._steps),
            **learnt,
            "length_mean": self._lengths.mean(),
            "length_median": self._lengths.median(),
            "distance_mean": self._distances.mean(),
            "distance_median": self._distances.median(),
        }
