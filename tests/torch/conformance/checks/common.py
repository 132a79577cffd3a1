"""What the checks share: their list, and the words they are written in."""

import contextlib
import gc
import importlib
import os
import subprocess
import sys

import torch

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MODULES = ["stats", "limits", "snapshots", "history", "streams", "graphs", "trees", "pools", "sharing", "interplay",
           "settings", "doors"]
ALLOCATOR = os.environ.get("CONFORMANCE_ALLOCATOR", "native")
LIBRARY = os.environ.get("NOFRAG_LIBRARY", "")

_CHECKS = []


class Skip(Exception):
    """Raised by a check that finds it cannot be made here."""


class Entry:
    def __init__(self, function, timeout, alone, gpus, only, initialise):
        self.function, self.timeout, self.alone, self.gpus, self.only = function, timeout, alone, gpus, only
        self.initialise = initialise
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def check(function=None, *, timeout=40, alone=False, gpus=1, only=None, initialise=True):
    """Marks a check. `alone`: no other may use the GPU beside it. `only="nofrag"`: about nofrag's way in.
    `initialise=False`: CUDA is not initialised when it begins."""

    def mark(marked):
        _CHECKS.append(Entry(marked, timeout, alone, gpus, only, initialise))
        return marked

    return mark if function is None else mark(function)


def load():
    for name in MODULES:
        importlib.import_module(f"checks.{name}")
    return _CHECKS


def begin(entry):
    """(outcome, reason) if the check is not for this run, else None."""
    if entry.only is not None and entry.only != ALLOCATOR:
        return "n/a", f"about {entry.only}"
    if entry.gpus > 1 and torch.cuda.device_count() < entry.gpus:
        return "skipped", f"needs {entry.gpus} GPUs"
    torch.manual_seed(1234)
    if entry.initialise:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    return None


def end(entry):
    """Whatever a check did, the GPU must be well, and nofrag's structures sound."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        if ALLOCATOR == "nofrag":
            import nofrag

            nofrag.check()


# ---- Words ----


def expect(truth, text):
    if not truth:
        raise AssertionError(text)


def equal(found, wanted, what):
    expect(found == wanted, f"{what}: {found!r}, not {wanted!r}")


def between(found, least, most, what):
    expect(least <= found <= most, f"{what}: {found!r}, not {least!r} to {most!r}")


@contextlib.contextmanager
def raises(kind, text=""):
    """The block must raise `kind` with `text` in its message; yields a list that gets the exception."""
    caught = []
    try:
        yield caught
    except kind as error:
        expect(text in str(error), f"{type(error).__name__} says {str(error)[:200]!r}, without {text!r}")
        caught.append(error)
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def block(size, **options):
    """A tensor of `size` bytes, not written."""
    return torch.empty(size, dtype=torch.uint8, device=options.pop("device", "cuda"), **options)


def filled(size, value):
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def holds(tensor, value):
    return bool((tensor == value).all())


def stat(key):
    return torch.cuda.memory_stats()[key]


def settle():
    """Nothing pending, nothing cached."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def limit_to(size):
    """At most `size` bytes for this process."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(size / total)


_small = []


def allow(more):
    """At most `more` bytes beyond what is reserved now, with room for the few small tensors that a look at the
    large ones takes."""
    _small.append(block(512))
    limit_to(torch.cuda.memory_reserved() + more)


def sleep(milliseconds):
    """Keeps the current stream busy, on the GPU."""
    torch.cuda._sleep(int(milliseconds * 1.7e6))


def segments():
    return torch.cuda.memory._snapshot()["segments"]


def live_blocks(pool=None):
    """{address: block} of every live block, of one pool if it is given."""
    return {one["address"]: one for segment in segments() for one in segment["blocks"]
            if one["state"] == "active_allocated" and (pool is None or tuple(segment["segment_pool_id"]) == tuple(pool))}


def python(script, *arguments, timeout=60, **variables):
    """(status, stdout, stderr) of a fresh Python; a variable that is None is taken away."""
    made = {**os.environ, **{name: value for name, value in variables.items() if value is not None}}
    for name, value in variables.items():
        if value is None:
            made.pop(name, None)
    result = subprocess.run([sys.executable, "-c", script, *arguments], env=made, capture_output=True, text=True,
                            timeout=timeout)
    print(f"-- child: status {result.returncode}\n{result.stdout}{result.stderr}")
    return result.returncode, result.stdout, result.stderr
