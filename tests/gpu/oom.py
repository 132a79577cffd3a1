"""What nofrag reports when an allocation fails, and whether the request was truly too large.

The promise (docs/design.md): a request fails only if what can be composed does not cover it: whole
idle handles, what the driver and the limit still allow in whole granules, and the best free back and
free front of two handles in use. The report counts all three.
"""

import ctypes as C
import threading

GRANULE = 2 << 20
UNIT = 512  # blocks are rounded up to it
NO_LIMIT = 2**64 - 1
_U64 = ["requested", "driver_free", "driver_total", "live", "pending", "reserved", "limit", "free_handles",
        "stranded", "largest_free_run", "free_ends", "composable"]


class Report(C.Structure):
    """nofrag_oom_report, version 1."""

    _fields_ = [("struct_size", C.c_uint32), ("version", C.c_uint32), ("device", C.c_int32), ("limit_reached", C.c_int32),
                ("stream", C.c_void_p), *[(name, C.c_uint64) for name in _U64], ("spare", C.c_uint64 * 4)]

    def numbers(self):
        return {**{name: getattr(self, name) for name in _U64}, "limit_reached": self.limit_reached}


_CALLBACK = C.CFUNCTYPE(None, C.c_int, C.POINTER(Report), C.c_void_p)


class Watch:
    """Keeps each thread's last report: with several threads, the device's last one may be another's."""

    def __init__(self, nofrag):
        self._reports = {}  # thread -> numbers, the newest last
        self._function = _CALLBACK(self._failed)  # must live as long as the library may call it
        library = nofrag.current()
        library.lib.nofrag_add_oom_callback.argtypes = [_CALLBACK, C.c_void_p]
        library.check(library.lib.nofrag_add_oom_callback(self._function, None))

    def _failed(self, _device, report, _user):
        self._reports.pop(threading.get_ident(), None)
        self._reports[threading.get_ident()] = report.contents.numbers()

    def last(self):
        """The report of the failure that this thread has just caught, judged; None if there is none. A
        backward pass fails in a thread of PyTorch's own: then the newest of all."""
        numbers = self._reports.pop(threading.get_ident(), None)
        if numbers is None and self._reports:
            _, numbers = self._reports.popitem()
        return None if numbers is None else judge(numbers)


def judge(numbers):
    """The report's numbers with `obtainable`, the largest request that had to be served, and a verdict."""
    room = numbers["driver_free"]
    if numbers["limit"] != NO_LIMIT:
        room = min(room, max(0, numbers["limit"] - numbers["reserved"]))
    obtainable = numbers["free_handles"] + numbers["composable"] + room // GRANULE * GRANULE
    size = -(-numbers["requested"] // UNIT) * UNIT
    return {**numbers, "obtainable": obtainable, "verdict": "not short" if size <= obtainable else "short"}
