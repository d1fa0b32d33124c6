"""The value bits of a text that grows, and reading in them: what one adapter keeps while a text is generated.

A step appends the bits of v and reads at the places of each source (``_read.py`` has the equation). :class:`Past` does
so by one of two classes that do the same. :class:`Whole` keeps all bits in one tensor and uses the operators of
``_read.py``; it is the definition. :class:`Blocks` is for GPUs: it keeps them in blocks of a fixed size, which are never
copied to make room, and one kernel does all of a step. The newest blocks stay on the device, as many as a budget
allows; older ones go to pinned memory of the host, where the kernel reads the few rows that a step needs. So the memory
of the device does not grow with the text, and nothing waits: a block is moved by a copy in the order of the other work.

Where value bits are a function of the token, nothing is kept: :func:`read_tokens` reads them in the adapter's table of
all tokens (``values.py``).
"""

from __future__ import annotations

import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Set, Union

import torch
from torch import Tensor

from . import _read, _triton
from ._places import TensorPlaces

__all__ = ["Blocks", "Lent", "Parts", "Past", "Whole", "read_tokens"]

BLOCK_BYTES = 1 << 20  # of a block, about


class Parts(NamedTuple):
    """The parameters that an adapter reads a source with; those of all its sources, in the adapter's dtype."""

    gain: Optional[Tensor]  # [rows, 10]; None: 1
    weight: Optional[Tensor]  # of the gate [C]; None: 1
    bias: Optional[Tensor]
    e0: Tensor  # [reads, C], or [C]
    e1: Tensor
    scale: Tensor  # a number of the host
    first: int  # the first read of this source
    row: int  # the first row of its gains


def _read_in(values: Tensor, u: Tensor, like: Tensor, places: Any, parts: Parts) -> Tensor:
    """y [B, T, C] of the dtype of ``like``, read in values [B, S, C / 8]."""
    links, _, routes, _ = places.tau.shape
    z = None if parts.weight is None or parts.bias is None else _read.gate(u, parts.weight, parts.bias)
    gain = None if parts.gain is None else parts.gain.float()[parts.row : parts.row + links * routes]
    e0, e1 = (x.float().view(-1, u.shape[2])[parts.first : parts.first + links] for x in (parts.e0, parts.e1))
    return _read.read_values(like, values, places, _read.Strength(gain, z, parts.scale), e0, e1)


class Whole:
    """All bits in one tensor."""

    def __init__(self) -> None:
        self._values: Optional[Tensor] = None  # [B, capacity, C / 8]

    @property
    def nbytes(self) -> int:
        return 0 if self._values is None else self._values.nbytes

    def append(self, v: Tensor, begin: int) -> None:
        """Keep the bits of v [B, T, C] as those of the steps from ``begin`` on."""
        new = _read.pack_bits(v)
        end = begin + v.shape[1]
        if self._values is None or end > self._values.shape[1]:
            # a quarter more than needed, so that the cost of growing is small per step
            room = new.new_zeros((len(new), end * 5 // 4 + 16, new.shape[2]))
            if self._values is not None:
                room[:, :begin] = self._values[:, :begin]
            self._values = room
        self._values[:, begin:end] = new

    def step(
        self, u: Tensor, v: Tensor, begin: int, places: Any, parts: Parts, append: bool = True, delay: int = 0
    ) -> Tensor:
        """y [B, T, C] of steps from ``begin`` on, read at ``places``; with ``append`` their own bits are kept first.

        delay: places of a step are at least so many steps older than it.
        """
        if append:
            self.append(v, begin)
        assert self._values is not None
        return _read_in(self._values, u, v, places, parts)

    def reorder(self, rows: List[int]) -> None:
        """Row i becomes a copy of what row ``rows[i]`` was."""
        if self._values is not None:
            self._values = self._values[torch.tensor(rows, device=self._values.device)]


class Blocks:
    """Bits in blocks, on the device up to ``device_bytes`` and beyond that in memory of the host."""

    def __init__(self, v: Tensor, device_bytes: int) -> None:
        width = (v.shape[2] + 7) // 8
        self._shift = max(4, (BLOCK_BYTES // (len(v) * width)).bit_length() - 1)
        self._shape = (len(v), 1 << self._shift, width)
        self._device, self._device_bytes = v.device, device_bytes
        self._blocks: List[Tensor] = []
        self._oldest = 0  # the number of the first block on the device
        self._table: Optional[Tensor] = None  # the addresses of the blocks, int64; None: to be made

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def append(self, v: Tensor, begin: int) -> None:
        """Keep the bits of v [B, T, C] as those of the steps from ``begin`` on."""
        if v.numel():
            none = v.new_empty(0)
            self._run(v, v, begin, None, Parts(None, None, None, none, none, torch.tensor(1.0), 0, 0), True)

    def step(
        self, u: Tensor, v: Tensor, begin: int, places: Any, parts: Parts, append: bool = True, delay: int = 0
    ) -> Tensor:
        """As that of :class:`Whole`."""
        if not v.numel():
            return torch.zeros_like(v)
        if append and v.shape[1] > delay:  # places may lie among the steps themselves: their bits come first
            self.append(v, begin)
            append = False
        return self._run(u, v, begin, places, parts, append)

    def _run(self, u: Tensor, v: Tensor, begin: Any, places: Any, parts: Parts, append: bool) -> Any:
        table = self.room(begin, v.shape[1])
        gain, weight, bias, e0, e1, scale, first, row = parts
        given = None if places is None else places[:2]
        return _kernels().step(
            u.contiguous(), v.contiguous(), table, self._shift, begin, given, gain, weight, bias, e0, e1,
            float(scale), first, row, append,
        )  # fmt: skip

    def room(self, begin: int, steps: int) -> Tensor:
        """The table of blocks, with room for some steps from ``begin`` on, which hold nothing yet."""
        needed = ((begin + steps - 1) >> self._shift) + 1
        table = self._table
        if table is None:
            # blocks of a copied state: the host's are to be pinned again
            self._blocks = [self._pinned(x) if x.device != self._device else x for x in self._blocks]
            table = self._filled(torch.zeros(len(self._blocks) + 16, dtype=torch.int64, device=self._device))
        if needed > len(self._blocks):
            if needed > len(table):
                table = torch.cat([table, table.new_zeros(needed + len(table))])
            while len(self._blocks) < needed:
                block = self._next(table, begin)
                table[len(self._blocks)].fill_(block.data_ptr())
                self._blocks.append(block)
        self._table = table
        return table

    def _filled(self, table: Tensor) -> Tensor:
        table[: len(self._blocks)] = torch.tensor([block.data_ptr() for block in self._blocks], dtype=torch.int64)
        return table

    def lend(self, table: Optional[Tensor]) -> None:
        """Keep the addresses of the blocks in ``table`` from now on, as long as it has room; None: no longer."""
        self._table = None
        if table is not None:
            self.room(0, 1)  # blocks of a copied state are pinned again
            self._table = self._filled(table)

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self._blocks)

    @property
    def steps(self) -> int:
        """Of a block."""
        return 1 << self._shift

    def _next(self, table: Tensor, begin: int) -> Tensor:
        """A new block, on the device; where that would be too many there, the memory of the oldest, which moves."""
        size = self._shape[0] * self._shape[1] * self._shape[2]
        most = self._device_bytes // size
        if most == 0:
            self._oldest = len(self._blocks) + 1
            return self._host()
        if len(self._blocks) - self._oldest < most:
            return torch.empty(self._shape, dtype=torch.uint8, device=self._device)
        old, block = self._oldest, self._blocks[self._oldest]
        moved = self._host()
        if old << self._shift < begin:
            moved.copy_(block, non_blocking=True)
        table[old].fill_(moved.data_ptr())
        self._blocks[old] = moved
        self._oldest += 1
        return block

    def _host(self) -> Tensor:
        return torch.empty(self._shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

    @staticmethod
    def _pinned(block: Tensor) -> Tensor:
        return block if block.is_pinned() else block.pin_memory()

    def whole(self) -> Whole:
        """The same bits in one tensor."""
        self._settle()
        made = Whole()
        if self._blocks:
            made._values = torch.cat([block.to(self._device) for block in self._blocks], 1)
        return made

    def reorder(self, rows: List[int]) -> None:
        """Row i becomes a copy of what row ``rows[i]`` was."""
        if rows == list(range(self._shape[0])):
            return
        self._settle()
        self._blocks = [block[torch.tensor(rows, device=block.device)] for block in self._blocks]
        self._shape = (len(rows), *self._shape[1:])
        self._table = None

    def _settle(self) -> None:
        """Wait for copies to the host that are under way, before the host reads what they bring."""
        if self._oldest and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def __getstate__(self) -> Dict[str, Any]:
        self._settle()
        return {**self.__dict__, "_table": None}


class Lent(Blocks):
    """Blocks as a recorded step sees them: their table at one address, and the step a number on the device."""

    def __init__(self, like: Blocks, table: Tensor) -> None:
        self._shift, self._table = like._shift, table

    def room(self, begin: Any, steps: int) -> Tensor:
        """The table; whoever replays the step sees to it that there is room."""
        assert self._table is not None
        return self._table


def _kernels() -> Any:
    from . import _step_kernels

    return _step_kernels


_failed: Set[torch.device] = set()  # where the kernel could not be used


def _fused(x: Tensor) -> bool:
    """Whether the kernel serves tensors like x."""
    return x.device not in _failed and _triton.module("_step_kernels", x) is not None


def _do_without(device: torch.device, error: Exception) -> None:
    """From now on; said once."""
    if device not in _failed:
        _failed.add(device)
        reason = (str(error).strip().splitlines() or [""])[0]
        warnings.warn(
            f"the kernel of generation cannot be used on {device} ({type(error).__name__}: {reason}); slower ones are "
            f"used instead, and values that are kept by step stay on the device",
            RuntimeWarning,
            stacklevel=3,
        )


class Past:
    """The value bits of one adapter: in blocks where the kernel can be used, else whole. It can be copied and pickled.

    A kernel is built when it is first called, with arguments of some types and sizes, and a compiler may fail then. So
    what was kept in blocks by then becomes whole, and the text goes on.
    """

    def __init__(self, device_bytes: int) -> None:
        self._device_bytes = device_bytes
        self._kept: Union[Whole, Blocks, None] = None

    @property
    def nbytes(self) -> int:
        return 0 if self._kept is None else self._kept.nbytes

    @property
    def blocks(self) -> Optional[Blocks]:
        """What is kept, if it is in blocks."""
        return self._kept if isinstance(self._kept, Blocks) else None

    def append(self, v: Tensor, begin: int) -> None:
        """Keep the bits of v [B, T, C] as those of the steps from ``begin`` on."""
        self._do("append", v, v, begin)

    def step(
        self, u: Tensor, v: Tensor, begin: int, places: Any, parts: Parts, append: bool = True, delay: int = 0
    ) -> Tensor:
        """As that of :class:`Whole`."""
        return self._do("step", v, u, v, begin, places, parts, append, delay)

    def reorder(self, rows: List[int]) -> None:
        """Row i becomes a copy of what row ``rows[i]`` was."""
        if self._kept is not None:
            self._kept.reorder(rows)

    def _do(self, what: str, v: Tensor, *given: Any) -> Any:
        if self._kept is None:
            self._kept = Blocks(v, self._device_bytes) if _fused(v) else Whole()
        try:
            return getattr(self._kept, what)(*given)
        except Exception as error:  # whatever a compiler may raise
            if not isinstance(self._kept, Blocks) or isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            _do_without(v.device, error)
            self._kept = self._kept.whole()
            return getattr(self._kept, what)(*given)


def read_tokens(bits: Tensor, u: Tensor, places: Any, parts: Parts) -> Tensor:
    """y [B, T, C] of the dtype of u, read in the bits [V, C / 8] of a vocabulary; ``places`` are tokens."""
    if _fused(u):
        gain, weight, bias, e0, e1, scale, first, row = parts
        given = (gain, weight, bias, e0, e1, float(scale), first, row)
        try:
            return _kernels().read_tokens(u.contiguous(), bits, places[:2], *given)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler may raise
            _do_without(u.device, error)
    # all rows read in one table: they are the steps of one row
    one = [x.transpose(1, 2).flatten(2).unsqueeze(1) for x in places[:2]]
    flat = u.flatten(0, 1).unsqueeze(0)
    return _read_in(bits.unsqueeze(0), flat, flat, TensorPlaces(*one), parts).view(u.shape)
