"""What every byte that nofrag holds is used for, at one moment."""

import ctypes

from .library import NofragError, current, ordinal

_STATES = ["live", "kept", "pending", "free", "unusable"]
_BUFFER_TOO_SMALL = 14  # nofrag_status


class _Span(ctypes.Structure):
    """nofrag_span, version 1."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("version", ctypes.c_uint32), ("address", ctypes.c_void_p),
                ("size", ctypes.c_uint64), ("requested_size", ctypes.c_uint64), ("stream", ctypes.c_void_p),
                ("pool_first", ctypes.c_uint64), ("pool_second", ctypes.c_uint64), ("state", ctypes.c_uint32),
                ("device", ctypes.c_int32)]


def _spans(device):
    call = current().function("nofrag_spans")
    call.argtypes = [ctypes.c_int, ctypes.POINTER(_Span), ctypes.POINTER(ctypes.c_size_t)]
    count = ctypes.c_size_t(1024)
    while True:
        spans = (_Span * count.value)()
        try:
            current().check(call(ordinal(device), spans, ctypes.byref(count)))
            return spans[: count.value]
        except NofragError as error:
            if error.status != _BUFFER_TOO_SMALL:
                raise
        count.value += count.value // 8  # there may be more by then


def snapshot(device=0):
    """A list of dicts, one a piece of memory, in the order of addresses: address, size, requested_size, stream,
    pool and state: "live" (a block), "kept" (free, by a thread for its next requests), "pending" (freed, but
    another stream may still touch it), "free" or "unusable". The sizes add up to what is reserved."""
    return [
        {"address": one.address or 0, "size": one.size, "requested_size": one.requested_size, "stream": one.stream or 0,
         "pool": (one.pool_first, one.pool_second), "state": _STATES[min(one.state, len(_STATES) - 1)]}
        for one in sorted(_spans(device), key=lambda one: one.address or 0)
    ]
