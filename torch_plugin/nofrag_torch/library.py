"""libnofrag.so through ctypes: finding it, and the calls that a Python user wants."""

import ctypes
import json
import os
import pathlib

_current = None  # the library that install() or current() opened


class NofragError(RuntimeError):
    """A call of the C interface failed; `status` is its nofrag_status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def find_library():
    """The path of libnofrag.so: NOFRAG_LIBRARY, beside this package, or a release build of the checkout."""
    named = os.environ.get("NOFRAG_LIBRARY")
    if named:
        if not os.path.exists(named):
            raise FileNotFoundError(f"NOFRAG_LIBRARY names {named}, which does not exist")
        return os.path.abspath(named)
    here = pathlib.Path(__file__).resolve().parent
    candidates = [here / "libnofrag.so", here.parents[1] / "build" / "release" / "lib" / "libnofrag.so"]
    for candidate in candidates:
        if candidate.exists():
            return str(candidate)
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise FileNotFoundError(f"libnofrag.so was not found (looked at {looked}); set NOFRAG_LIBRARY to its path")


class Library:
    """One opened libnofrag.so. Opening it starts nothing; the first allocation does."""

    def __init__(self, path=None):
        self.path = path or find_library()
        lib = self.lib = ctypes.CDLL(self.path)
        text_call = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
        lib.nofrag_stats_json.argtypes = text_call
        lib.nofrag_stats_text.argtypes = text_call
        lib.nofrag_trim.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
        lib.nofrag_set_limit.argtypes = [ctypes.c_int, ctypes.c_uint64]
        lib.nofrag_reset_peaks.argtypes = [ctypes.c_int]
        lib.nofrag_last_error.argtypes = [ctypes.POINTER(ctypes.c_char_p)]
        lib.nofrag_status_name.restype = ctypes.c_char_p
        lib.nofrag_version.restype = ctypes.c_char_p

    def address(self, name):
        """The address of an exported function, for PyTorch's setters."""
        return ctypes.cast(getattr(self.lib, name), ctypes.c_void_p).value

    def check(self, status):
        if status != 0:
            message = ctypes.c_char_p()
            self.lib.nofrag_last_error(ctypes.byref(message))
            name = self.lib.nofrag_status_name(status).decode()
            raise NofragError(status, f"{name}: {(message.value or b'').decode(errors='replace')}")

    def _text(self, call):
        needed = ctypes.c_size_t()
        self.check(call(None, 0, ctypes.byref(needed)))
        # Numbers may grow between the two calls.
        buffer = ctypes.create_string_buffer(needed.value + 4096)
        self.check(call(buffer, len(buffer), None))
        return buffer.value.decode()

    def version(self):
        return self.lib.nofrag_version().decode()

    def stats(self):
        return json.loads(self._text(self.lib.nofrag_stats_json))

    def stats_text(self):
        return self._text(self.lib.nofrag_stats_text)

    def trim(self, device=0, keep=0):
        given_back = ctypes.c_uint64()
        self.check(self.lib.nofrag_trim(device, keep, ctypes.byref(given_back)))
        return given_back.value

    def set_limit(self, limit, device=0):
        self.check(self.lib.nofrag_set_limit(device, 2**64 - 1 if limit is None else limit))

    def reset_peaks(self, device=0):
        self.check(self.lib.nofrag_reset_peaks(device))


def current(path=None):
    """The library in use, opened if need be. One process has one."""
    global _current
    if _current is None:
        _current = Library(path)
    elif path is not None and os.path.realpath(path) != os.path.realpath(_current.path):
        raise NofragError(10, f"{_current.path} is in use already; a process cannot use {path} beside it")
    return _current


def stats():
    """Statistics of this process as a dict (docs/stats.md)."""
    return current().stats()


def stats_text():
    return current().stats_text()


def trim(device=0, keep=0):
    """Gives idle memory back to the driver until at most `keep` bytes are held; returns the bytes."""
    return current().trim(device, keep)


def set_limit(limit, device=0):
    """Most physical memory to hold, in bytes; None = no limit."""
    current().set_limit(limit, device)
