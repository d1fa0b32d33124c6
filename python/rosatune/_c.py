"""The C interface, declared once.

This file repeats ``include/rosatune.h`` in ctypes, under the same names; a test compares the two. It uses ctypes and
not a compiled extension, so that one wheel serves every version of Python and nothing has to be compiled against NumPy
or PyTorch. Buffers are plain addresses (``c_void_p``), so that both arrays (``array.ctypes.data``) and tensors
(``tensor.data_ptr()``) can be passed. The caller makes sure that they are dense, of the right type, and alive until the
call returns.

ctypes silently truncates integers that do not fit. So numbers that come from users are checked, by :func:`integer` or
in ``config.py``, before they become fields or arguments.

    options = _c.options(RosaConfig(bits=4))
    _c.call("rosa_find", byref(options), None, routes, steps, q.data_ptr(), k.data_ptr(), read.data_ptr(), None, None)
"""

from __future__ import annotations

import ctypes
import enum
import operator
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, TypeVar, Union

from . import _library
from .errors import Cancelled, DeviceError, Error, FileError, FormatError, InvalidArgument, OutOfMemory, SymbolError

MAX_BITS = 16
MAX_SYMBOL_BITS = 20
MAX_LINKS = 16
MAX_STEPS = 0x7FFFFFF0

# ------------------------------------------------------------------------------------------------------------- enums


class Status(enum.IntEnum):
    OK = 0
    EINVAL = 1
    ESYMBOL = 2
    ENOMEM = 3
    EIO = 4
    EFORMAT = 5
    ECANCELLED = 6
    EDEVICE = 7


class Policy(enum.IntEnum):
    READABLE = 0
    LITERAL = 1
    INCLUSIVE = 2


class Dtype(enum.IntEnum):
    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2


class QkGrad(enum.IntEnum):
    LINEAR = 0
    SOFT = 1
    FLIPS = 2
    NONE = 3


class Credit(enum.IntEnum):
    ALL = 0
    ROUTE = 1


class KeyCredit(enum.IntEnum):
    MATCH = 0
    DESTINATION = 1


class VGrad(enum.IntEnum):
    SIGMOID = 0
    STRAIGHT = 1


class Fusion(enum.IntEnum):
    POST = 0
    PRE = 1


# C name of the enumeration: ours, and what its members' names begin with in C.
ENUMS: dict[str, tuple[type[enum.IntEnum], str]] = {
    "rosa_status": (Status, "ROSA_"),
    "rosa_policy": (Policy, "ROSA_"),
    "rosa_dtype": (Dtype, "ROSA_"),
    "rosa_qk_grad": (QkGrad, "ROSA_QK_"),
    "rosa_credit": (Credit, "ROSA_CREDIT_"),
    "rosa_key_credit": (KeyCredit, "ROSA_KEY_"),
    "rosa_v_grad": (VGrad, "ROSA_V_"),
    "rosa_fusion": (Fusion, "ROSA_"),
}

_Enum = TypeVar("_Enum", bound=enum.IntEnum)


def named(kind: type[_Enum], name: Union[str, int, _Enum], what: str) -> _Enum:
    """The member of ``kind`` that a user calls ``name``, in any case; members and their numbers pass."""
    try:
        return kind[name.upper()] if isinstance(name, str) else kind(name)
    except (KeyError, ValueError):
        choices = ", ".join(repr(member.name.lower()) for member in kind)
        raise InvalidArgument(f"{what} is {name!r}; give one of {choices}") from None


# -------------------------------------------------------------------------------------------------------- structures

rosa_progress = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)
rosa_resize = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)


class rosa_error(Structure):
    _fields_ = [("status", c_int), ("message", c_char * 512)]


class rosa_allocator(Structure):
    _fields_ = [("resize", rosa_resize), ("context", c_void_p)]


class rosa_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("bits", c_int),
        ("policy", c_int),
        ("fold", c_int),
        ("max_match", c_uint32),
        ("threads", c_int),
        ("allocator", rosa_allocator),
        ("progress", rosa_progress),
        ("progress_context", c_void_p),
        ("workers", c_void_p),
        ("delay", c_uint32),
    ]


class rosa_flips(Structure):
    _fields_ = [
        ("routes", c_size_t),
        ("bits", c_int),
        ("first", POINTER(c_size_t)),
        ("start", POINTER(c_int32)),
        ("tau", POINTER(c_int32)),
        ("flip", POINTER(c_int32)),
        ("allocator", rosa_allocator),
    ]


class rosa_stream_info(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("routes", c_size_t),
        ("steps", c_size_t),
        ("bits", c_int),
        ("policy", c_int),
        ("fold", c_int),
        ("max_match", c_uint32),
        ("key_runs", c_uint64),
        ("query_runs", c_uint64),
        ("bytes", c_uint64),
        ("ordered", c_uint64),
        ("delay", c_uint32),
    ]


class rosa_cuda_info(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char * 256),
        ("milliseconds", c_double),
        ("handed", c_uint64),
    ]


CANDIDATES = 16


class rosa_continuation(Structure):
    _fields_ = [
        ("count", c_uint8),
        ("places", c_uint8),
        ("different", c_uint8),
        ("unused", c_uint8),
        ("success", c_uint16),
        ("unused2", c_uint16),
        ("token", c_uint32 * CANDIDATES),
        ("place", c_int32 * CANDIDATES),
        ("length", c_uint8 * CANDIDATES),
        ("alignment", c_uint8 * CANDIDATES),
        ("as_long", c_uint8 * CANDIDATES),
        ("followed_by", c_uint8 * CANDIDATES),
    ]


class rosa_learning(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("qk_grad", c_int),
        ("credit", c_int),
        ("key_credit", c_int),
        ("slope", c_float),
        ("suffix", c_float),
        ("explore", c_float),
        ("flip_share", c_float),
        ("seed", c_uint64),
        ("v_grad", c_int),
    ]


class rosa_read_pass(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("dtype", c_int),
        ("batch", c_size_t),
        ("steps", c_size_t),
        ("channels", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("e0", c_void_p),
        ("e1", c_void_p),
        ("read", c_void_p),
        ("flips", c_void_p),
        ("gy", c_void_p),
        ("gq", c_void_p),
        ("gk", c_void_p),
        ("gv", c_void_p),
        ("ge0", c_void_p),
        ("ge1", c_void_p),
    ]


class rosa_places(Structure):
    _fields_ = [
        ("routes", c_size_t),
        ("links", c_size_t),
        ("tau", c_void_p),
        ("length", c_void_p),
    ]


class rosa_layer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("channels", c_size_t),
        ("fusion", c_int),
        ("dtype", c_int),
        ("norm_eps", c_float),
        ("norm", c_void_p),
        ("wq", c_void_p),
        ("wk", c_void_p),
        ("wv", c_void_p),
        ("e0", c_void_p),
        ("e1", c_void_p),
        ("wout", c_void_p),
        ("a0", c_void_p),
        ("sources", c_size_t),
        ("places", POINTER(rosa_places)),
        ("gain", c_void_p),
        ("gate_w", c_void_p),
        ("gate_b", c_void_p),
        ("scale", c_float),
    ]


class rosa_layer_grads(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("norm", c_void_p),
        ("wq", c_void_p),
        ("wk", c_void_p),
        ("wv", c_void_p),
        ("e0", c_void_p),
        ("e1", c_void_p),
        ("wout", c_void_p),
        ("a0", c_void_p),
        ("gain", c_void_p),
        ("gate_w", c_void_p),
        ("gate_b", c_void_p),
    ]


# --------------------------------------------------------------------------------------------------------- functions

_error = POINTER(rosa_error)
_options = POINTER(rosa_options)
_learning = POINTER(rosa_learning)
_handle = POINTER(c_void_p)  # where a function leaves the address of what it made

# name: (result, arguments)
PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "rosa_version": (c_char_p, []),
    "rosa_status_name": (c_char_p, [c_int]),
    "rosa_workers_new": (c_int, [c_int, POINTER(rosa_allocator), _handle, _error]),
    "rosa_workers_free": (None, [c_void_p]),
    "rosa_pack": (
        c_int,
        [c_int, c_void_p, c_size_t, c_size_t, c_size_t, c_int, c_void_p, c_size_t, _error],
    ),
    "rosa_unpack": (c_int, [c_void_p, c_size_t, c_size_t, c_size_t, c_int, c_void_p, _error]),
    "rosa_pack_isa": (c_char_p, []),
    "rosa_retrieve": (
        c_int,
        [_options, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(rosa_flips), _error],
    ),
    "rosa_flips_expand": (c_int, [POINTER(rosa_flips), c_size_t, c_size_t, c_void_p, _error]),
    "rosa_flips_free": (None, [POINTER(rosa_flips)]),
    "rosa_chain": (
        c_int,
        [
            *[c_size_t, c_size_t, c_int, c_void_p, c_void_p],
            *[c_void_p, c_void_p, c_void_p, c_void_p, _error],
        ],
    ),
    "rosa_cuda_open": (c_int, [c_int, POINTER(rosa_allocator), _handle, _error]),
    "rosa_cuda_close": (None, [c_void_p]),
    "rosa_cuda_retrieve": (
        c_int,
        [
            *[c_void_p, _options, c_size_t, c_size_t, c_void_p, c_void_p],
            *[c_void_p, c_void_p, c_void_p, _error],
        ],
    ),
    "rosa_cuda_retrieve_device": (
        c_int,
        [
            *[c_void_p, _options, c_size_t, c_size_t, c_void_p, c_void_p],
            *[c_void_p, c_void_p, c_void_p, c_void_p, _error],
        ],
    ),
    "rosa_cuda_queue": (
        c_int,
        [
            *[c_void_p, _options, c_size_t, c_size_t, c_void_p, c_void_p],
            *[c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_void_p, _error],
        ],
    ),
    "rosa_cuda_describe": (c_int, [c_void_p, POINTER(rosa_cuda_info), _error]),
    "rosa_cuda_stream_new": (c_int, [c_void_p, _options, c_size_t, _handle, _error]),
    "rosa_cuda_stream_free": (None, [c_void_p]),
    "rosa_cuda_stream_push": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, _error]),
    "rosa_cuda_stream_push_device": (
        c_int,
        [c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, _error],
    ),
    "rosa_cuda_stream_describe": (c_int, [c_void_p, POINTER(rosa_stream_info), _error]),
    "rosa_stream_new": (c_int, [_options, c_size_t, _handle, _error]),
    "rosa_stream_free": (None, [c_void_p]),
    "rosa_stream_push": (
        c_int,
        [c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, _error],
    ),
    "rosa_stream_fork": (c_int, [c_void_p, _handle, _error]),
    "rosa_stream_rewind": (c_int, [c_void_p, c_size_t, _error]),
    "rosa_stream_save": (c_int, [c_void_p, c_char_p, _error]),
    "rosa_stream_load": (c_int, [_options, c_char_p, _handle, _error]),
    "rosa_stream_save_memory": (c_int, [c_void_p, _handle, POINTER(c_size_t), _error]),
    "rosa_stream_load_memory": (c_int, [_options, c_void_p, c_size_t, _handle, _error]),
    "rosa_stream_free_memory": (None, [c_void_p, c_void_p]),
    "rosa_stream_describe": (c_int, [c_void_p, POINTER(rosa_stream_info), _error]),
    "rosa_contexts_new": (c_int, [_options, _handle, _error]),
    "rosa_contexts_free": (None, [c_void_p]),
    "rosa_contexts_push": (c_int, [c_void_p, c_size_t, c_void_p, POINTER(rosa_continuation), _error]),
    "rosa_contexts_fork": (c_int, [c_void_p, _handle, _error]),
    "rosa_contexts_rewind": (c_int, [c_void_p, c_size_t, _error]),
    "rosa_contexts_steps": (c_size_t, [c_void_p]),
    "rosa_contexts_bytes": (c_uint64, [c_void_p]),
    "rosa_width": (c_int, [c_size_t]),
    "rosa_count_runs": (c_size_t, [c_size_t, c_size_t, c_void_p, c_int, c_int]),
    "rosa_find": (
        c_int,
        [_options, _learning, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, _error],
    ),
    "rosa_read": (
        c_int,
        [
            *[_options, c_int, c_size_t, c_size_t, c_size_t],
            *[c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, _error],
        ],
    ),
    "rosa_read_backward": (c_int, [_options, _learning, POINTER(rosa_read_pass), _error]),
    "rosa_layer_forward": (
        c_int,
        [
            *[_options, _learning, POINTER(rosa_layer), c_size_t, c_size_t],
            *[c_void_p, c_void_p, _handle, _error],
        ],
    ),
    "rosa_layer_backward": (
        c_int,
        [c_void_p, POINTER(rosa_layer), c_void_p, POINTER(rosa_layer_grads), c_void_p, _error],
    ),
    "rosa_tape_bytes": (c_size_t, [c_void_p]),
    "rosa_tape_free": (None, [c_void_p]),
    "rosa_blas": (c_char_p, []),
}


class _Functions:
    """The library's functions as attributes, each given its types at its first use."""

    def __getattr__(self, name: str) -> Any:
        if name not in PROTOTYPES:
            raise AttributeError(f"rosatune.h declares no {name}")
        try:
            function = getattr(_library.load(), name)
        except AttributeError:
            raise Error(f"{_library.path()} has no {name}: it is older than this package; build it again") from None
        function.restype, function.argtypes = PROTOTYPES[name]
        setattr(self, name, function)
        return function


lib = _Functions()

# ----------------------------------------------------------------------------------------------------------- failure

_EXCEPTIONS: dict[int, type[Error]] = {
    Status.EINVAL: InvalidArgument,
    Status.ESYMBOL: SymbolError,
    Status.ENOMEM: OutOfMemory,
    Status.EIO: FileError,
    Status.EFORMAT: FormatError,
    Status.ECANCELLED: Cancelled,
    Status.EDEVICE: DeviceError,
}


def check(status: int, err: rosa_error) -> None:
    """Raise the exception that a status and its message stand for; none where all went well."""
    if status != Status.OK:
        message = err.message.decode("utf-8", "replace") or lib.rosa_status_name(status).decode()
        raise _EXCEPTIONS.get(status, Error)(message)


def call(name: str, *arguments: Any) -> None:
    """Call a function that returns a status and takes a ``rosa_error`` last, which is not to be given."""
    err = rosa_error()
    check(getattr(lib, name)(*arguments, byref(err)), err)


# --------------------------------------------------------------------------------------------------- numbers, options


def integer(what: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int between ``low`` and ``high``, both allowed."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}; give a whole number from {low} to {high}") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{what} is {number}; give a whole number from {low} to {high}")
    return number


def options(rule: Any, threads: int = 0) -> rosa_options:
    """The options of retrieval by ``rule``, a RosaConfig or what has its fields; ``threads`` 0: one per processor."""
    return rosa_options(
        size=ctypes.sizeof(rosa_options),
        bits=rule.bits,
        policy=named(Policy, rule.policy, "policy"),
        fold=rule.fold,
        max_match=rule.max_match or 0,
        threads=integer("threads (0: one per processor)", threads, 0, 0x7FFFFFFF),
    )


def learning(rule: Any, seed: int = 0) -> rosa_learning:
    """How q and k learn by ``rule``, a RosaConfig or what has its fields."""
    return rosa_learning(
        size=ctypes.sizeof(rosa_learning),
        qk_grad=named(QkGrad, rule.qk_grad, "qk_grad"),
        credit=named(Credit, rule.credit, "credit"),
        key_credit=named(KeyCredit, rule.key_credit, "key_credit"),
        slope=rule.slope,
        suffix=rule.suffix,
        explore=rule.explore,
        flip_share=rule.flip_share,
        seed=integer("seed", seed, 0, 0xFFFFFFFFFFFFFFFF),
    )
