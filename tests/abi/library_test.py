#!/usr/bin/env python3
"""What libnofrag.so shows and needs, and that it is harmless where nobody calls it.

usage: library_test.py --library PATH [--nm NM] [--readelf READELF]
"""

import argparse
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
ARGUMENTS = None

# The C library and the dynamic loader: what every program on the system has.
ALLOWED_NEEDED = re.compile(r"^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64|ld-linux-aarch64)\.so(\.\d+)?$")


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def exported():
    lines = output(ARGUMENTS.nm, "-D", "--defined-only", "--with-symbol-versions", ARGUMENTS.library).splitlines()
    return sorted(line.split()[-1] for line in lines)


class Symbols(unittest.TestCase):
    def test_exactly_the_golden_list(self):
        golden = [line for line in (HERE / "symbols.golden").read_text().splitlines() if not line.startswith("#")]
        self.assertEqual(exported(), sorted(golden), "review the change, then update tests/abi/symbols.golden")

    def test_no_version_node(self):
        # A preloaded library with one would not catch versioned references.
        self.assertEqual([name for name in exported() if "@" in name], [])

    def test_every_symbol_is_declared_in_a_header(self):
        headers = "".join(path.read_text() for path in sorted((ROOT / "include/nofrag").glob("*.h")))
        headers += (ROOT / "torch_plugin/hooks.h").read_text()
        declared = set(re.findall(r"\b(nofrag_\w+)\(", headers)) | {"dlsym", "dlopen", "InitializeInjectionNvtx2"}
        entries = (ROOT / "allocator/preload/entries.def").read_text()
        declared |= set(re.findall(r"^NOFRAG_(?:HOOK|RETRY|ACROSS)\((\w+)", entries, re.MULTILINE))
        self.assertEqual(set(exported()) - declared, set())


class Needs(unittest.TestCase):
    def setUp(self):
        self.dynamic = output(ARGUMENTS.readelf, "-d", "-W", ARGUMENTS.library)

    def test_only_the_c_library(self):
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", self.dynamic)
        self.assertEqual([name for name in needed if not ALLOWED_NEEDED.match(name)], [])

    def test_stays_loaded(self):
        self.assertRegex(self.dynamic, r"FLAGS_1.*NODELETE")

    def test_no_executable_stack_and_no_text_relocations(self):
        self.assertNotIn("TEXTREL", self.dynamic)
        segments = output(ARGUMENTS.readelf, "-l", "-W", ARGUMENTS.library)
        self.assertRegex(segments, r"GNU_STACK.* RW ")


class Harmless(unittest.TestCase):
    def preload(self, *command):
        # A configuration that would warn if anything read it.
        environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": ARGUMENTS.library, "NOFRAG_CONF": "bad"}
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def test_preloaded_into_programs_without_a_gpu(self):
        for command in (["/bin/true"], ["/bin/sh", "-c", "echo a | cat; /bin/true"], ["/bin/ls", "/"]):
            result = self.preload(*command)
            self.assertEqual((result.returncode, result.stderr), (0, ""), command)

    def test_opened_closed_and_opened_again(self):
        os.environ["NOFRAG_CONF"] = "driver:sim:h100-80g"
        for _ in range(3):
            library = ctypes.CDLL(ARGUMENTS.library)
            library.nofrag_malloc.restype = ctypes.c_void_p
            library.nofrag_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
            library.nofrag_free.argtypes = [ctypes.c_void_p]
            block = library.nofrag_malloc(1 << 20, 0, None)
            self.assertIsNotNone(block)
            self.assertEqual(library.nofrag_free(block), 0)
            close = ctypes.CDLL(None).dlclose
            close.argtypes = [ctypes.c_void_p]
            close(library._handle)


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--readelf", default="readelf")
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
