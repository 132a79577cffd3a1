"""The entry point `torch.backends`: PyTorch calls it at the end of `import torch`.

It reads the environment and nothing else unless asked to install. It never raises, because PyTorch would
then refuse to be imported: whatever goes wrong is one line on stderr, and PyTorch keeps its own allocator.

NOFRAG_TORCH=1      install: the native library for this PyTorch, else the C hooks
NOFRAG_TORCH=hooks  install the C hooks
NOFRAG_TORCH=0      do nothing
not set             install where libnofrag.so is preloaded, else do nothing
"""

import os
import sys

_CHOICES = {"1": "auto", "hooks": "hooks", "0": None}


def say(sentence):
    """One line on stderr, unless the user wants none."""
    conf = [item.strip() for item in os.environ.get("NOFRAG_CONF", "").split(",")]
    if os.environ.get("NOFRAG_LOG", "") != "silent" and "log:silent" not in conf:
        print(f"nofrag: {' '.join(sentence.split())}", file=sys.stderr)


def preloaded():
    words = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return any(os.path.basename(word) == "libnofrag.so" for word in words)


def wanted():
    """The door that the environment asks for: "auto", "hooks" or None."""
    value = os.environ.get("NOFRAG_TORCH", "").strip()
    if value == "":
        return "auto" if preloaded() else None
    if value not in _CHOICES:
        say(f"NOFRAG_TORCH is {value!r}, not one of {', '.join(_CHOICES)}; nofrag is not installed")
        return None
    return _CHOICES[value]


def autoload():
    door = wanted()
    if door is None:
        return
    try:
        import torch

        # A PyTorch without CUDA has nothing to replace, and its user nothing to read.
        if torch.version.cuda is None:
            return
        from . import doors

        doors.install(door=door)
    except Exception as error:  # noqa: BLE001 (see above)
        say(f"not installed, PyTorch keeps its own allocator: {error}")
