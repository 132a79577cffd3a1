#!/usr/bin/env python3
"""libnofrag_torch_2_N.so as the Python package loads it: it installs under the PyTorch it was built for, once, and
says why where it does not. Every case is a process of its own; no PyTorch runs, only its libc10 and libc10_cuda.

usage: install_test.py LIBNOFRAG_TORCH TORCH_LIBRARIES      e.g. build/release/lib/... .../torch/lib
"""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LIBRARY, TORCH = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
OPEN = """
import ctypes, sys
ctypes.CDLL(sys.argv[2])
door = ctypes.CDLL(sys.argv[1])
door.nofrag_torch_native_error.restype = ctypes.c_char_p
door.nofrag_torch_native_version.restype = ctypes.c_char_p
"""
INSTALL = OPEN + """
status = door.nofrag_torch_native_install()
print(status, door.nofrag_torch_native_installed(), door.nofrag_torch_native_error().decode())
"""


def run(code, torch=TORCH, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTORCH_")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(LIBRARY), str(torch / "libc10_cuda.so")],
        capture_output=True,
        text=True,
        env=dict(environment, **variables),
    )
    return done.returncode, done.stdout.strip() + done.stderr.strip()


class InstallTest(unittest.TestCase):
    def another_torch(self, version):
        """The same libraries in a PyTorch that says it is `version`."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.enterContext(tempfile.TemporaryDirectory())))
        (folder / "lib").mkdir()
        for name in ("libc10.so", "libc10_cuda.so"):
            (folder / "lib" / name).symlink_to(TORCH / name)
        if version:
            (folder / "version.py").write_text(f"__version__ = '{version}'\n")
        return folder / "lib"

    def enterContext(self, context):  # noqa: N802 (unittest's name; older ones do not have it)
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def test_installs_once(self):
        code = INSTALL + "print(door.nofrag_torch_native_install(), door.nofrag_torch_native_installed())"
        status, said = run(code)
        self.assertEqual((status, said.split("\n")), (0, ["0 1 ", "0 1"]))

    def test_says_what_it_serves(self):
        status, said = run(OPEN + "print(door.nofrag_torch_native_version().decode())")
        self.assertEqual(status, 0, said)
        self.assertIn(said.replace(".", "_"), LIBRARY.name)

    def test_starts_nothing(self):
        # A driver that cannot be opened is no matter until somebody allocates.
        status, said = run(INSTALL, NOFRAG_CONF="driver:sim:no-such-card")
        self.assertEqual((status, said), (0, "0 1"))

    def test_refuses_another_release(self):
        for version in ("2.1.0", "2.110.0", "3.11.0", "1.11.0", "2.99.1+cu130"):
            with self.subTest(version):
                status, said = run(INSTALL, self.another_torch(version))
                self.assertEqual(status, 0, said)
                self.assertTrue(said.startswith("1 0 this library was built for PyTorch"), said)
                self.assertIn(f"and this is PyTorch {version}", said)

    def test_refuses_a_release_that_it_cannot_tell(self):
        status, said = run(INSTALL, self.another_torch(None))
        self.assertIn("1 0 ", said)
        self.assertIn("whose version is not to be found", said)

    def test_serves_patch_releases_and_builds(self):
        served = LIBRARY.name.removeprefix("libnofrag_torch_").removesuffix(".so").replace("_", ".")
        for version in (f"{served}.7", f"{served}.0a0+git12345", f"{served}.1+cu130"):
            with self.subTest(version):
                status, said = run(INSTALL, self.another_torch(version))
                self.assertEqual((status, said), (0, "0 1"))

    def test_leaves_a_backend_that_was_asked_for(self):
        status, said = run(INSTALL, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
        self.assertEqual(status, 0, said)
        self.assertIn('1 0 PyTorch runs its backend "cudaMallocAsync"', said)

    def test_cannot_be_loaded_without_pytorch(self):
        code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
        status, said = run(code)
        self.assertNotEqual(status, 0)
        self.assertIn("libc10", said)

    def test_shows_its_own_names_only(self):
        shown = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True)
        names = [line.split()[-1] for line in shown.stdout.splitlines()]
        self.assertEqual(
            sorted(names),
            sorted(f"nofrag_torch_native_{name}" for name in ("error", "install", "installed", "version")),
        )


if __name__ == "__main__":
    ctypes.CDLL(None)
    unittest.main(argv=sys.argv[:1])
