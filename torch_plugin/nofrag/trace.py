"""Recording what the allocator does, for `nofrag replay` (docs/replay.md)."""

import contextlib

from .library import annotation, current


def trace_start(spec):
    """Records from now on; `spec` is what NOFRAG_TRACE takes: "[flight:]FILE[,max=SIZE][,keep=SIZE][,stacks=N]"."""
    if "\0" in str(spec):
        raise ValueError(f"no file has such a name: {spec!r}")
    library = current()
    library.check(library.function("nofrag_trace_start")(str(spec).encode()))


def trace_stop():
    """Completes the file."""
    library = current()
    library.check(library.function("nofrag_trace_stop")())


def trace_flush():
    """When it returns, the file has everything that happened before."""
    library = current()
    library.check(library.function("nofrag_trace_flush")())


def trace_mark(text):
    """An annotation at this moment, "step 100"; nothing where nothing is recorded."""
    library = current()
    library.check(library.function("nofrag_trace_mark")(annotation(text)))


@contextlib.contextmanager
def recording(spec):
    """`with nofrag.recording("job.nofrag"):` records what happens inside."""
    trace_start(spec)
    try:
        yield
    finally:
        trace_stop()
