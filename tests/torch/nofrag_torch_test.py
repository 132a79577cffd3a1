#!/usr/bin/env python3
"""The package nofrag_torch without PyTorch: the entry point, the doors, and what is said when one is shut.

usage: nofrag_torch_test.py LIBNOFRAG NATIVE_DOUBLE LAYOUT
LAYOUT is build/.../share/nofrag/python. Each test runs `import torch` (tests/torch/stand_in) in a process of
its own.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY, NATIVE, LAYOUT = (sys.argv.pop(1) for _ in range(3)) if len(sys.argv) > 3 else (None, None, None)

TELL = """
import sys, torch
doors = sys.modules.get("nofrag_torch.doors")
done = doors and doors.installed()
print(done.door if done else "none", len(torch.given) if "current" in torch.given else 0)
"""


class Imported(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.library = pathlib.Path(shutil.copy(LIBRARY, self.folder / "libnofrag.so"))
        self.add_native()

    def add_native(self, name="libnofrag_torch_2_11.so", target=None):
        (self.folder / name).symlink_to(target or NATIVE)

    def remove_native(self):
        (self.folder / "libnofrag_torch_2_11.so").unlink()

    def python(self, script=TELL, **variables):
        """(status, stdout, stderr); NOFRAG_TORCH is 1 unless it is given."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{LAYOUT}{os.pathsep}{HERE / 'stand_in'}",
                       "NOFRAG_LIBRARY": str(self.library), "NOFRAG_TORCH": "1", "NOFRAG_CONF": "driver:sim:h100-80g",
                       "PYTHONDONTWRITEBYTECODE": "1", **variables}
        environment = {name: value for name, value in environment.items() if value is not None}
        result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        return result.returncode, result.stdout, result.stderr

    def said(self, wanted, *words, **variables):
        """stdout is `wanted`, and stderr is one line that has each of the words (no line if there are none)."""
        status, output, errors = self.python(**variables)
        self.assertEqual((status, output), (0, wanted + "\n"), errors)
        self.assertEqual(len(errors.splitlines()), 1 if words else 0, errors)
        for word in words:
            self.assertIn(word, errors)


class Wanted(Imported):
    def test_one_is_the_native_library(self):
        self.said("native 0")

    def test_hooks_are_the_hooks(self):
        self.said("hooks 10", NOFRAG_TORCH="hooks")

    def test_zero_and_nothing_are_nothing(self):
        self.said("none 0", NOFRAG_TORCH="0")
        self.said("none 0", NOFRAG_TORCH=None)
        self.said("none 0", NOFRAG_TORCH="")

    def test_preloaded_means_wanted(self):
        self.said("native 0", NOFRAG_TORCH=None, LD_PRELOAD=str(self.library))
        self.said("none 0", NOFRAG_TORCH="0", LD_PRELOAD=str(self.library))

    def test_another_word(self):
        self.said("none 0", "NOFRAG_TORCH is 'yes', not one of 1, hooks, 0", NOFRAG_TORCH="yes")

    def test_autoload_off(self):
        self.said("none 0", TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    def test_without_cuda_nothing_is_said(self):
        self.said("none 0", STAND_IN_CUDA="")

    def test_importing_alone_does_nothing(self):
        script = "import nofrag, nofrag_torch, sys; print('torch' in sys.modules, nofrag_torch.installed())"
        self.assertEqual(self.python(script), (0, "False None\n", ""))


class FallBacks(Imported):
    def test_no_native_library(self):
        self.remove_native()
        self.said("hooks 10", "C hooks", "no library for PyTorch 2.11", "does not exist")

    def test_another_version(self):
        self.said("hooks 10", "no library for PyTorch 2.12", STAND_IN_VERSION="2.12.0a0+git")

    def test_a_library_of_another_version(self):
        self.add_native("libnofrag_torch_2_12.so")
        self.said("hooks 10", "was built for PyTorch 2.11, and this is 2.12", STAND_IN_VERSION="2.12.1")

    def test_a_file_that_is_no_library(self):
        self.remove_native()
        (self.folder / "libnofrag_torch_2_11.so").write_text("not a library")
        self.said("hooks 10", "cannot be used")

    def test_a_library_that_is_not_ours(self):
        self.remove_native()
        self.add_native(target=LIBRARY)
        self.said("hooks 10", "cannot be used", "nofrag_torch_native_version")

    def test_an_installation_that_fails(self):
        self.said("hooks 10", "an allocator is in use already", NATIVE_DOUBLE_FAILS="1")

    def test_no_library_at_all(self):
        self.said("none 0", "PyTorch keeps its own allocator", "/nowhere/libnofrag.so, which does not exist",
                  NOFRAG_LIBRARY="/nowhere/libnofrag.so")

    def test_too_old(self):
        self.said("none 0", "needs PyTorch 2.1 or newer, and this is 2.0.1", STAND_IN_VERSION="2.0.1")

    def test_too_late(self):
        self.said("none 0", "came too late", STAND_IN_INITIALIZED="1")

    def test_setters_that_safety_needs(self):
        self.said("none 0", "record_stream", "would not be safe", NOFRAG_TORCH="hooks",
                  STAND_IN_WITHOUT="set_record_stream_fn")

    def test_a_setter_that_can_be_spared(self):
        status, output, errors = self.python(NOFRAG_TORCH="hooks", STAND_IN_WITHOUT="set_memory_fraction_fn")
        self.assertEqual((status, output), (0, "hooks 9\n"))
        self.assertIn("no set_memory_fraction_fn", errors)

    def test_silence(self):
        self.remove_native()
        self.said("hooks 10", NOFRAG_LOG="silent")
        self.said("hooks 10", NOFRAG_CONF="driver:sim:h100-80g, log:silent")


class Install(Imported):
    def run_python(self, script, **variables):
        status, output, errors = self.python("import torch, nofrag_torch\n" + script, NOFRAG_TORCH="0", **variables)
        self.assertEqual((status, errors), (0, ""))
        return output.splitlines()

    def test_every_setter_gets_our_function(self):
        script = """
nofrag_torch.install(door="hooks")
library = nofrag_torch.current()
print(torch.given["constructor"][1:], torch.given["current"] is nofrag_torch.installed().allocator)
addresses = [torch.given[name] for name in torch._SETTERS]
print(len(set(addresses)), torch.given["set_record_stream_fn"] == library.address("nofrag_torch_record_stream"))
"""
        wanted = ["('nofrag_torch_alloc', 'nofrag_torch_free') True", "8 True"]
        self.assertEqual(self.run_python(script), wanted)

    def test_twice_is_once(self):
        script = """
first = nofrag_torch.install()
print(first is nofrag_torch.install(), first is nofrag_torch.install(door="hooks"), first.door, first.torch)
import ctypes
print(ctypes.CDLL(first.native_library).nofrag_torch_native_installed())
"""
        self.assertEqual(self.run_python(script), ["True True native 2.11.0+cu130", "1"])

    def test_native_or_nothing(self):
        self.remove_native()
        script = """
try: nofrag_torch.install(door="native")
except RuntimeError as error: print(error)
try: nofrag_torch.install(door="window")
except ValueError as error: print(error)
print(nofrag_torch.installed(), len(torch.given))
"""
        said = self.run_python(script)
        self.assertIn("no library for PyTorch 2.11", said[0])
        self.assertEqual(said[1:], ["door is 'window', not one of auto, native, hooks", "None 0"])

    def test_one_library_a_process(self):
        script = """
nofrag_torch.current()
try: nofrag_torch.install("/elsewhere/libnofrag.so")
except nofrag_torch.NofragError as error: print("in use already" in str(error), error.status)
"""
        self.assertEqual(self.run_python(script), ["True 10"])


class AllocConf(Imported):
    def test_without_effect_is_said_once(self):
        self.said("native 0", "PYTORCH_CUDA_ALLOC_CONF: expandable_segments and max_split_size_mb have no effect",
                  PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,max_split_size_mb:64")
        self.said("native 0", "PYTORCH_ALLOC_CONF: expandable_segments has", PYTORCH_ALLOC_CONF="expandable_segments:True")

    def test_the_cuda_variable_is_the_stronger(self):
        self.said("native 0", PYTORCH_CUDA_ALLOC_CONF="backend:native", PYTORCH_ALLOC_CONF="expandable_segments:True")

    def test_rounding_is_the_native_librarys(self):
        self.said("native 0", PYTORCH_CUDA_ALLOC_CONF="roundup_power2_divisions:[256:1,>:8]")
        self.said("hooks 10", "roundup_power2_divisions has no effect", NOFRAG_TORCH="hooks",
                  PYTORCH_CUDA_ALLOC_CONF="roundup_power2_divisions:[256:1,>:8]")

    def test_another_backend_keeps_nofrag_out(self):
        self.said("none 0", "PyTorch keeps its own allocator", "backend:cudaMallocAsync",
                  PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")

    def test_unknown_keys(self):
        self.said("native 0", 'unknown key "expandable_segment"; did you mean expandable_segments?',
                  PYTORCH_CUDA_ALLOC_CONF="expandable_segment:True")

    def test_the_fraction_holds_from_the_start(self):
        script = """
import torch, nofrag
nofrag.free(nofrag.malloc(1))
print(round(nofrag.limit() / 2**30, 2))
"""
        conf = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.25"}
        self.assertEqual(self.python(script, **conf), (0, "19.8\n", ""))
        # NOFRAG_CONF is the stronger.
        stronger = {**conf, "NOFRAG_CONF": "driver:sim:h100-80g,memory_fraction:0.5"}
        self.assertEqual(self.python(script, **stronger), (0, "39.59\n", ""))

    def test_after_the_start_it_is_too_late(self):
        script = """
import nofrag
nofrag.free(nofrag.malloc(1))
import torch, nofrag_torch
print(nofrag_torch.installed())
"""
        status, output, errors = self.python(script, PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.25")
        self.assertEqual((status, output), (0, "None\n"))
        self.assertIn("started without PYTORCH_CUDA_ALLOC_CONF", errors)


if __name__ == "__main__":
    unittest.main()
