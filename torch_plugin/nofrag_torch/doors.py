"""Which way nofrag goes into PyTorch: the native library built for its version, or the C hooks."""

import ctypes
import dataclasses
import os
import re

from nofrag import library

from . import hooks
from .autoload import say

_OLDEST = (2, 1)

_installed = None


@dataclasses.dataclass(frozen=True)
class Installed:
    """What install() did: the door ("native" or "hooks") and the files in use."""

    door: str
    torch: str
    library: str
    native_library: str = None
    allocator: object = None  # PyTorch's object, of the hooks


class Unusable(Exception):
    """Why the native library cannot be used; the C hooks can."""


def installed():
    """What is installed in this process, or None."""
    return _installed


def torch_version(torch):
    """(2, 11) of "2.11.0+cu130"."""
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return (int(match[1]), int(match[2])) if match else _OLDEST


def native_path(opened, version):
    """The native library for a version of PyTorch lies beside libnofrag.so."""
    return os.path.join(os.path.dirname(opened.path), f"libnofrag_torch_{version[0]}_{version[1]}.so")


def open_native(path, version):
    """The native library, opened and checked; Unusable says why not."""
    if not os.path.exists(path):
        raise Unusable(f"no library for PyTorch {version[0]}.{version[1]} ({path} does not exist)")
    try:
        native = ctypes.CDLL(path)
        for name in ("nofrag_torch_native_version", "nofrag_torch_native_error"):
            getattr(native, name).restype = ctypes.c_char_p
            getattr(native, name).argtypes = []
        built_for = native.nofrag_torch_native_version().decode()
        native.nofrag_torch_native_install.argtypes = []
    except (OSError, AttributeError) as error:
        raise Unusable(f"{path} cannot be used: {error}") from error
    if built_for != f"{version[0]}.{version[1]}":
        raise Unusable(f"{path} was built for PyTorch {built_for}, and this is {version[0]}.{version[1]}")
    return native


def install_native(torch, opened, native, path):
    if native.nofrag_torch_native_install() != 0:
        raise Unusable(f"{path}: {(native.nofrag_torch_native_error() or b'').decode(errors='replace')}")
    return Installed("native", torch.__version__, opened.path, path)


def install_hooks(torch, opened):
    return Installed("hooks", torch.__version__, opened.path, allocator=hooks.install(torch, opened))


def alloc_conf():
    """(variable, text) of PyTorch's allocator configuration, as PyTorch reads it."""
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if variable in os.environ:
            return variable, os.environ[variable]
    return None, ""


def read_alloc_conf(opened, native):
    """PyTorch's own configuration: what nofrag honours is noted, what it does not is said once, and what
    asks for another allocator is refused (NofragError). The table of keys is in docs/pytorch.md."""
    variable, text = alloc_conf()
    if text and opened.has("nofrag_torch_configure"):
        for line in opened.text("nofrag_torch_configure", text.encode(), int(native)).splitlines():
            say(f"{variable}: {line}")


def check_torch(torch):
    if torch_version(torch) < _OLDEST:
        raise RuntimeError(f"nofrag needs PyTorch 2.1 or newer, and this is {torch.__version__}")
    if not hasattr(torch.cuda.memory, "CUDAPluggableAllocator") or torch.version.cuda is None:
        raise RuntimeError(f"this PyTorch ({torch.__version__}) was built without CUDA")
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "nofrag came too late: CUDA is in use in this process already. Install it right after `import torch`."
        )


def install(path=None, door="auto"):
    """Makes nofrag the CUDA allocator of this process; returns what is Installed.

    Must come before anything allocates on the GPU, because PyTorch does not change an allocator that
    is in use; a second call changes nothing. `path` is libnofrag.so (default: nofrag.find_library());
    `door` is "auto" (the native library for this PyTorch, else the C hooks, which is said), "native"
    (or an error) or "hooks".
    """
    global _installed
    import torch

    if door not in ("auto", "native", "hooks"):
        raise ValueError(f"door is {door!r}, not one of auto, native, hooks")
    opened = library.current(path)
    if _installed is not None:
        return _installed
    check_torch(torch)
    native, why = None, None
    path = native_path(opened, torch_version(torch))
    if door != "hooks":
        try:
            native = open_native(path, torch_version(torch))
        except Unusable as error:
            why = error
    if door == "native" and native is None:
        raise RuntimeError(str(why)) from why
    read_alloc_conf(opened, native is not None)
    if native is not None:
        try:
            _installed = install_native(torch, opened, native, path)
            return _installed
        except Unusable as error:
            why = error
            if door == "native":
                raise RuntimeError(str(why)) from why
    if why is not None:
        say(f"going through PyTorch's C hooks, without memory_stats and more (docs/pytorch.md): {why}")
    _installed = install_hooks(torch, opened)
    return _installed
