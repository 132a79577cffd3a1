"""libnofrag.so through ctypes: finding it, opening it once, and turning its errors into exceptions."""

import ctypes
import os
import pathlib

NAME = "libnofrag.so"

_NOT_SUPPORTED = 5  # nofrag_status
_ALREADY_INITIALIZED = 10
_BUFFER_TOO_SMALL = 14

_current = None  # the library that this process uses


class NofragError(RuntimeError):
    """A call of the C interface failed; `status` is its nofrag_status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Pool(ctypes.Structure):
    """nofrag_pool."""

    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


def stream_handle(stream):
    """The handle of a stream: an int or None as it is, or what an object of torch or cupy holds."""
    for attribute in ("cuda_stream", "ptr"):
        stream = getattr(stream, attribute, stream)
    if stream is not None and (not isinstance(stream, int) or not 0 <= stream < 1 << 64):
        raise TypeError(f"{stream!r} is no stream: wanted is a handle, None, or an object that holds one")
    return stream


def number_of_bytes(size, what):
    """`size` as the library takes it: ctypes would cut off what does not fit."""
    if not isinstance(size, int):
        raise TypeError(f"{what} is a whole number of bytes, not {size!r}")
    if not 0 <= size < 1 << 64:
        raise ValueError(f"{what} cannot have {size} bytes")
    return size


def block_size(size):
    return number_of_bytes(size, "a block")


def ordinal(device):
    """A device's number as the library takes it."""
    if not isinstance(device, int):
        raise TypeError(f"a device is its number (0 for the first), not {device!r}")
    if not 0 <= device < 1 << 31:
        raise ValueError(f"there is no device {device}")
    return device


def block_address(address):
    """What malloc returned; None for what it returns for size 0."""
    if address is not None and not isinstance(address, int):
        raise TypeError(f"a block is given by the address that malloc returned, not {address!r}")
    if address is not None and not 0 <= address < 1 << 64:
        raise ValueError(f"no block has the address {address}")
    return address


def annotation(text):
    if not isinstance(text, str):
        raise TypeError(f"an annotation is text, not {text!r}")
    if "\0" in text:
        raise ValueError(f"an annotation ends at a NUL: {text!r}")
    return text.encode()


def loaded_library():
    """The path of a libnofrag.so that is in this process already (LD_PRELOAD, a program linked with it), or
    None. It must be the one that is used: a second copy would be a second allocator."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")
                if path[1] and pathlib.PurePath("/" + path[2]).name == NAME:
                    return "/" + path[2]
    except OSError:
        pass
    return None


def candidates():
    """Where libnofrag.so is looked for when nothing names it: in a wheel, in an installed prefix or a build
    tree (share/nofrag/python/nofrag), in a checkout (torch_plugin/nofrag)."""
    here = pathlib.Path(__file__).resolve().parent
    prefix, checkout = here / "../../../..", here / "../.."
    return [(folder / "lib" / NAME).resolve() for folder in (here, prefix, checkout / "build" / "release")]


def find_library():
    """The path of libnofrag.so: the one loaded already, NOFRAG_LIBRARY, or the first of candidates()."""
    loaded = loaded_library()
    if loaded is not None:
        return loaded
    named = os.environ.get("NOFRAG_LIBRARY")
    if named:
        if not os.path.exists(named):
            raise FileNotFoundError(f"NOFRAG_LIBRARY names {named}, which does not exist")
        return os.path.abspath(named)
    for candidate in candidates():
        if candidate.exists():
            return str(candidate)
    looked = ", ".join(str(candidate) for candidate in candidates())
    raise FileNotFoundError(f"{NAME} was not found (looked at {looked}); set NOFRAG_LIBRARY to its path")


# Function -> (result, arguments).
_SIGNATURES = {
    "nofrag_version": (ctypes.c_char_p, []),
    "nofrag_status_name": (ctypes.c_char_p, [ctypes.c_int]),
    "nofrag_last_error": (ctypes.c_int, [ctypes.POINTER(ctypes.c_char_p)]),
    "nofrag_device_count": (ctypes.c_int, [ctypes.POINTER(ctypes.c_int)]),
    "nofrag_malloc": (ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]),
    "nofrag_free": (ctypes.c_int, [ctypes.c_void_p]),
    "nofrag_record_stream": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "nofrag_pool_begin": (ctypes.c_int, [ctypes.c_int, Pool, ctypes.c_void_p, ctypes.c_void_p]),
    "nofrag_pool_end": (ctypes.c_int, [ctypes.c_int, Pool]),
    "nofrag_pool_release": (ctypes.c_int, [ctypes.c_int, Pool]),
    "nofrag_pool_malloc": (ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, Pool]),
    "nofrag_trim": (ctypes.c_int, [ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]),
    "nofrag_set_limit": (ctypes.c_int, [ctypes.c_int, ctypes.c_uint64]),
    "nofrag_set_memory_fraction": (ctypes.c_int, [ctypes.c_int, ctypes.c_double]),
    "nofrag_reset_peaks": (ctypes.c_int, [ctypes.c_int]),
    "nofrag_check": (ctypes.c_int, [ctypes.c_int]),
    "nofrag_trace_start": (ctypes.c_int, [ctypes.c_char_p]),
    "nofrag_trace_stop": (ctypes.c_int, []),
    "nofrag_trace_flush": (ctypes.c_int, []),
    "nofrag_trace_mark": (ctypes.c_int, [ctypes.c_char_p]),
}
_TEXT_CALL = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
_SIGNATURES |= {name: (ctypes.c_int, _TEXT_CALL) for name in ("nofrag_stats_json", "nofrag_stats_text")}
_SIGNATURES["nofrag_oom_message"] = (ctypes.c_int, [ctypes.c_int, *_TEXT_CALL])
_SIGNATURES["nofrag_torch_configure"] = (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int, *_TEXT_CALL])


class Library:
    """One opened libnofrag.so. Opening it starts nothing; the first call that needs the driver does."""

    def __init__(self, path=None):
        self.path = os.path.abspath(path) if path else find_library()
        self.lib = ctypes.CDLL(self.path)
        for name, (result, arguments) in _SIGNATURES.items():
            if self.has(name):
                function = getattr(self.lib, name)
                function.restype, function.argtypes = result, arguments

    def has(self, name):
        return hasattr(self.lib, name)

    def function(self, name):
        """An exported function; NofragError if this library is too old to have it."""
        if not self.has(name):
            raise NofragError(_NOT_SUPPORTED, f"{self.path} ({self.version()}) has no {name}")
        return getattr(self.lib, name)

    def address(self, name):
        """The address of an exported function, for those that take a pointer."""
        return ctypes.cast(getattr(self.lib, name), ctypes.c_void_p).value

    def last_error(self):
        """(status, sentence) of this thread's last failing call."""
        message = ctypes.c_char_p()
        status = self.lib.nofrag_last_error(ctypes.byref(message))
        return status, (message.value or b"").decode(errors="replace")

    def check(self, status):
        if status != 0:
            name = self.lib.nofrag_status_name(status).decode()
            raise NofragError(status, f"{name}: {self.last_error()[1]}")

    def block(self, address):
        """What an allocating call returned, or its error."""
        if address is None:
            status, sentence = self.last_error()
            if status != 0:  # else it was asked for 0 bytes
                raise NofragError(status, f"{self.lib.nofrag_status_name(status).decode()}: {sentence}")
        return address

    def text(self, name, *arguments):
        """What a call that fills a buffer has to say."""
        call, needed = self.function(name), ctypes.c_size_t()
        self.check(call(*arguments, None, 0, ctypes.byref(needed)))
        while True:
            # Numbers may grow between two calls.
            buffer = ctypes.create_string_buffer(needed.value + 4096)
            status = call(*arguments, buffer, len(buffer), ctypes.byref(needed))
            if status != _BUFFER_TOO_SMALL:
                self.check(status)
                return buffer.value.decode(errors="replace")

    def version(self):
        return self.lib.nofrag_version().decode()


def current(path=None):
    """The library in use, opened if need be. One process has one."""
    global _current
    if _current is None:
        loaded = loaded_library()
        if path is not None and loaded is not None and os.path.realpath(path) != os.path.realpath(loaded):
            raise _second(loaded, path)
        _current = Library(path)
    elif path is not None and os.path.realpath(path) != os.path.realpath(_current.path):
        raise _second(_current.path, path)
    return _current


def _second(used, path):
    return NofragError(_ALREADY_INITIALIZED, f"{used} is in use already; a process cannot use {path} beside it")
