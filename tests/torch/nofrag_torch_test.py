#!/usr/bin/env python3
"""The Python package without PyTorch: a stand-in `torch` records what install() does with it.

usage: nofrag_torch_test.py LIBNOFRAG
"""

import ctypes
import pathlib
import subprocess
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "torch_plugin"
sys.path.insert(0, str(PACKAGE))
LIBRARY = sys.argv.pop(1) if len(sys.argv) > 1 else None

SETTERS = ["set_init_fn", "set_reset_fn", "set_memory_fraction_fn", "set_base_alloc_fn", "set_record_stream_fn",
           "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool"]


def stand_in(version="2.11.0+cu130", initialized=False, without=()):
    """A module with what install() touches of torch. `torch.given` holds what it was given."""
    torch = types.ModuleType("torch")
    torch.__version__ = version
    torch.version = types.SimpleNamespace(cuda="13.0")
    torch.given = {}
    inner = types.SimpleNamespace()
    for setter in SETTERS:
        if setter not in without:
            setattr(inner, setter, lambda address, name=setter: torch.given.__setitem__(name, address))

    class Plugin:
        def __init__(self, path, alloc, free):
            torch.given["constructor"] = (path, alloc, free)

        def allocator(self):
            return inner

    memory = types.SimpleNamespace(
        CUDAPluggableAllocator=Plugin,
        change_current_allocator=lambda plugin: torch.given.__setitem__("current", plugin),
    )
    torch.cuda = types.SimpleNamespace(memory=memory, is_initialized=lambda: initialized)
    return torch


class Install(unittest.TestCase):
    def install(self, torch):
        import nofrag_torch

        sys.modules["torch"] = torch
        try:
            return nofrag_torch.install(LIBRARY)
        finally:
            del sys.modules["torch"]

    def test_every_setter_gets_our_function(self):
        torch = stand_in()
        plugin = self.install(torch)
        self.assertIs(torch.given["current"], plugin)
        self.assertEqual(torch.given["constructor"], (LIBRARY, "nofrag_torch_alloc", "nofrag_torch_free"))
        self.assertEqual(sorted(set(torch.given) - {"current", "constructor"}), sorted(SETTERS))
        library = ctypes.CDLL(LIBRARY)
        expected = ctypes.cast(library.nofrag_torch_record_stream, ctypes.c_void_p).value
        self.assertEqual(torch.given["set_record_stream_fn"], expected)
        self.assertEqual(len({torch.given[name] for name in SETTERS}), len(SETTERS))

    def test_too_late(self):
        with self.assertRaisesRegex(RuntimeError, "came too late"):
            self.install(stand_in(initialized=True))

    def test_too_old(self):
        with self.assertRaisesRegex(RuntimeError, "needs PyTorch 2.1 or newer, and this is 2.0.1"):
            self.install(stand_in(version="2.0.1"))

    def test_without_cuda(self):
        torch = stand_in()
        torch.version.cuda = None
        with self.assertRaisesRegex(RuntimeError, "without CUDA"):
            self.install(torch)

    def test_missing_setter_that_safety_needs(self):
        torch = stand_in(without=["set_record_stream_fn"])
        with self.assertRaisesRegex(RuntimeError, "record_stream"):
            self.install(torch)
        self.assertNotIn("current", torch.given)

    def test_missing_setter_that_can_be_spared(self):
        torch = stand_in(without=["set_memory_fraction_fn"])
        with self.assertWarnsRegex(UserWarning, "set_memory_fraction_fn"):
            self.install(torch)
        self.assertIn("current", torch.given)


class Calls(unittest.TestCase):
    """In a process of its own: options are read once."""

    SCRIPT = """
import ctypes, nofrag_torch, sys
library = nofrag_torch.current(sys.argv[1])
malloc = library.lib.nofrag_malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
library.lib.nofrag_free.argtypes = [ctypes.c_void_p]
block = malloc(5 << 20, 0, None)
assert nofrag_torch.stats()["devices"][0]["live_bytes"] == 5 << 20
library.lib.nofrag_free(block)
reserved = nofrag_torch.stats()["devices"][0]["reserved_bytes"]
assert reserved >= 5 << 20
assert nofrag_torch.trim() == reserved
nofrag_torch.set_limit(1 << 20)
assert nofrag_torch.stats()["devices"][0]["limit_bytes"] == 1 << 20
nofrag_torch.set_limit(None)
assert "docs/stats.md" in nofrag_torch.stats_text()
assert library.version().count(".") == 2
try:
    nofrag_torch.trim(device=9)
except nofrag_torch.NofragError as error:
    assert error.status == 3 and "there is no device 9" in str(error), error
else:
    raise AssertionError("device 9 exists")
try:
    nofrag_torch.current("/elsewhere/libnofrag.so")
except nofrag_torch.NofragError:
    pass
else:
    raise AssertionError("two libraries")
"""

    def run_python(self, script, **environment):
        return subprocess.run([sys.executable, "-c", script, LIBRARY], capture_output=True, text=True,
                              env={"PYTHONPATH": str(PACKAGE), "NOFRAG_CONF": "driver:sim:h100-80g", **environment})

    def test_calls(self):
        result = self.run_python(self.SCRIPT)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_missing_library_is_named(self):
        result = self.run_python("import nofrag_torch; nofrag_torch.current()", NOFRAG_LIBRARY="/nowhere/libnofrag.so")
        self.assertIn("NOFRAG_LIBRARY names /nowhere/libnofrag.so, which does not exist", result.stderr)


if __name__ == "__main__":
    unittest.main()
