"""nofrag from Python: what it holds, what it may hold, and what it did.

    import nofrag
    nofrag.stats()["devices"][0]["peak_reserved_bytes"]
    nofrag.trim()                       # idle memory back to the driver
    nofrag.set_limit(24 << 30)          # most bytes to hold on device 0
    with nofrag.pool() as pool: ...     # blocks that share memory only with each other
    with nofrag.recording("job.nofrag"): ...   # for `nofrag replay`

Everything speaks to the libnofrag.so of this process (NOFRAG_LIBRARY, or beside this package); nothing
here imports PyTorch. How PyTorch comes to run on nofrag: docs/pytorch.md.
"""

import ctypes
import json

from .library import (Library, NofragError, block_address, block_size, current, find_library, number_of_bytes, ordinal,
                      stream_handle)
from .pools import PoolHandle, pool
from .snapshot import snapshot
from .trace import recording, trace_flush, trace_mark, trace_start, trace_stop

__all__ = [
    "Library",
    "NofragError",
    "PoolHandle",
    "check",
    "current",
    "device_count",
    "device_stats",
    "find_library",
    "free",
    "limit",
    "malloc",
    "oom_message",
    "pool",
    "record_stream",
    "recording",
    "reset_peaks",
    "set_limit",
    "set_memory_fraction",
    "snapshot",
    "stats",
    "stats_text",
    "trace_flush",
    "trace_mark",
    "trace_start",
    "trace_stop",
    "trim",
    "version",
]

_NO_LIMIT = 2**64 - 1


def version():
    """The library's version, as "0.1.0"."""
    return current().version()


def device_count():
    count = ctypes.c_int()
    library = current()
    library.check(library.lib.nofrag_device_count(ctypes.byref(count)))
    return count.value


# ---- What it holds ----


def stats():
    """Statistics of this process as a dict (docs/stats.md)."""
    return json.loads(current().text("nofrag_stats_json"))


def stats_text():
    """The same for people."""
    return current().text("nofrag_stats_text")


def device_stats(device=0):
    """The numbers of one device; None if it has not been used."""
    return next((numbers for numbers in stats()["devices"] if numbers["device"] == device), None)


def reset_peaks(device=0):
    """Peaks start again from the present values."""
    library = current()
    library.check(library.lib.nofrag_reset_peaks(ordinal(device)))


def oom_message(device=0):
    """Why the last allocation that failed on the device failed; "" if none did."""
    return current().text("nofrag_oom_message", ordinal(device))


def check(device=0):
    """Walks every structure of the device; ends the process on a broken invariant. Slow."""
    library = current()
    library.check(library.lib.nofrag_check(ordinal(device)))


# ---- What it may hold ----


def trim(device=0, keep=0):
    """Gives idle memory back to the driver until at most `keep` bytes are held; returns the bytes."""
    library, given_back = current(), ctypes.c_uint64()
    library.check(library.lib.nofrag_trim(ordinal(device), number_of_bytes(keep, "what is kept"), ctypes.byref(given_back)))
    return given_back.value


def set_limit(limit, device=0):
    """Most physical memory to hold, in bytes; None = no limit."""
    library = current()
    library.check(library.lib.nofrag_set_limit(ordinal(device), _NO_LIMIT if limit is None else number_of_bytes(limit, "a limit")))


def limit(device=0):
    """The limit that holds (bytes and fraction, the lower); None if there is none."""
    numbers = device_stats(device)
    return numbers["limit_bytes"] if numbers and numbers["limit_bytes"] < _NO_LIMIT else None


def set_memory_fraction(fraction, device=0):
    """The same as a fraction (0 to 1) of the device's memory; the lower of both limits holds."""
    library = current()
    library.check(library.lib.nofrag_set_memory_fraction(ordinal(device), fraction))


# ---- Blocks, for code that brings its own arrays ----


def malloc(size, device=0, stream=None):
    """The address of a block of at least `size` bytes, for work queued on `stream`; None for size 0."""
    library = current()
    return library.block(library.lib.nofrag_malloc(block_size(size), ordinal(device), stream_handle(stream)))


def free(address):
    """Gives a block back: `address` is what malloc returned."""
    library = current()
    library.check(library.lib.nofrag_free(block_address(address)))


def record_stream(address, stream):
    """Work on `stream` uses this block: it is not reused before what is queued there until its free is done."""
    library = current()
    library.check(library.lib.nofrag_record_stream(block_address(address), stream_handle(stream)))
