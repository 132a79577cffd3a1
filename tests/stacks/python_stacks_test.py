#!/usr/bin/env python3
"""Python's part of recorded call stacks: what is found with the GIL and without it, and that Python never notices.

usage: python_stacks_test.py --probe LIBPROBE --library LIBNOFRAG --program NOFRAG [--jobs PYTHON...]
"""

import argparse
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest

ARGUMENTS = None
READ, ASK = 0, 1
KNOWN = sys.implementation.name == "cpython" and (3, 9) <= sys.version_info < (3, 14)

JOB = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])  # gives up the GIL around each call, as PyTorch does
library.nofrag_malloc.restype = ctypes.c_void_p
library.nofrag_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

def allocate(size):
    return library.nofrag_malloc(size, 0, None)

class Model:
    def forward(self):
        return allocate(64 << 20)

def deep(n):
    return allocate(2 << 20) if n == 0 else deep(n - 1)

Model().forward()
deep(200)
"""


def walk(library, way, most=100):
    buffer = ctypes.create_string_buffer(65536)
    count = library.probe_python(way, most, buffer, len(buffer))
    lines = buffer.value.decode().splitlines()
    assert count == len([line for line in lines if line != "cut"]), (count, lines)
    return lines


def functions(lines):
    return [line.split(" ", 1)[1] for line in lines]


@unittest.skipUnless(KNOWN, "no layout of this interpreter is known")
class Frames(unittest.TestCase):
    def setUp(self):
        self.held = ctypes.PyDLL(ARGUMENTS.probe)
        self.given_up = ctypes.CDLL(ARGUMENTS.probe)

    def ways(self):
        return {"read, held": (self.held, READ), "read, given up": (self.given_up, READ), "asked": (self.held, ASK)}

    def all_ways(self):
        """What every way says of one stack, made alike by the loop that asks."""
        found = {}
        for name, (library, way) in self.ways().items():
            found[name] = walk(library, way)
        return found

    def test_all_ways_see_what_python_sees(self):
        found = self.all_ways()
        self.assertEqual(len(set(map(tuple, found.values()))), 1, found)
        lines = found["asked"]
        # The innermost is walk() itself; then come this file's own, as the traceback module has them.
        expected = [(frame.filename, frame.name) for frame in reversed(traceback.extract_stack())]
        seen = [(line.rsplit(":", 1)[0], line.split(" ", 1)[1].split(".")[-1]) for line in lines[2:]]
        self.assertEqual(seen, expected)

    def test_lines_are_those_of_the_calls(self):
        def first():
            return walk(self.given_up, READ)

        def second():
            lines = first()
            return lines

        lines = second()
        numbers = [int(re.search(r":(\d+) ", line)[1]) for line in lines]
        start = first.__code__.co_firstlineno
        self.assertEqual(numbers[1], start + 1)
        self.assertEqual(numbers[2], start + 4)
        self.assertEqual(numbers[3], start + 7)

    def test_generators_classes_and_comprehensions(self):
        class Thing:
            def method(self):
                return [walk(library, way) for library, way in ways]

        ways = list(self.ways().values())

        def generate():
            yield Thing().method()

        for lines in next(generate()):
            names = functions(lines)
            self.assertTrue(any(name.endswith("generate") for name in names), names)
            self.assertTrue(any(name.endswith("method") for name in names), names)

    def test_a_class_that_is_called_again_and_again(self):
        """3.12 and later specialise the call, and put a frame between that Python itself does not show."""

        class Thing:
            def __init__(self, library):
                self.lines = walk(library, READ)

        def make():
            return Thing(self.given_up)

        seen = {tuple(functions(make().lines)[1:3]) for _ in range(100)}
        self.assertEqual(len(seen), 1, seen)
        (inner, outer), = seen
        self.assertTrue(inner.endswith("__init__") and outer.endswith("make"), seen)

    def test_depth_is_bounded_and_said(self):
        def deep(n, library, way):
            return walk(library, way, 32) if n == 0 else deep(n - 1, library, way)

        for name, (library, way) in self.ways().items():
            lines = deep(300, library, way)
            self.assertEqual((len(lines), lines[-1]), (33, "cut"), name)

    def test_names_that_are_not_ascii(self):
        scope = {"walk": walk, "library": self.given_up, "READ": READ}
        exec(compile("def größe():\n  return walk(library, READ)\n", "straße.py", "exec"), scope)
        self.assertEqual(scope["größe"]()[1], "?:2 ?")
        scope["library"], scope["READ"] = self.held, ASK
        self.assertEqual(scope["größe"]()[1], "straße.py:2 größe")

    def test_asking_without_the_gil_finds_nothing(self):
        self.assertEqual(walk(self.given_up, ASK), [])

    def test_a_thread_of_its_own(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(self.all_ways()))
        thread.start()
        thread.join()
        for lines in found[0].values():
            self.assertIn("_bootstrap", lines[-1])

    def test_references_are_balanced(self):
        def count():
            code = walk.__code__
            return [sys.getrefcount(one) for one in (code, code.co_filename, code.co_name, sys._getframe().f_code)]

        for name, (library, way) in self.ways().items():
            walk(library, way)
            before = count()
            for _ in range(1000):
                walk(library, way)
            self.assertEqual(count(), before, name)

    def test_no_exception_is_lost_or_made(self):
        for library, way in self.ways().values():
            try:
                raise KeyError("mine")
            except KeyError as error:
                walk(library, way)
                self.assertIs(sys.exc_info()[1], error)
            self.assertEqual(sys.exc_info(), (None, None, None))

    def test_collection_goes_on_as_it_was(self):
        self.assertTrue(gc.isenabled())
        walk(self.held, ASK)
        self.assertTrue(gc.isenabled())
        gc.disable()
        try:
            walk(self.held, ASK)
            self.assertFalse(gc.isenabled())
        finally:
            gc.enable()

    def test_in_a_finalizer_that_a_collection_runs(self):
        found = []

        class Cycle:
            def __init__(cycle):
                cycle.self = cycle

            def __del__(cycle):
                found.append(self.all_ways())

        Cycle()
        gc.collect()
        self.assertEqual(len(found), 1)
        self.assertEqual(len(set(map(tuple, found[0].values()))), 1)

    def test_while_other_threads_run(self):
        stop = threading.Event()

        def busy(n=0):
            while not stop.is_set():
                sys._current_frames()
                sum(range(n % 50))

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        expected = walk(self.given_up, READ)[2:]
        for _ in range(3000):
            lines = walk(self.given_up, READ)
            self.assertEqual(lines[2:], expected)
        stop.set()
        for thread in threads:
            thread.join()


class Recorded(unittest.TestCase):
    """Through the library: a job that knows nothing of it."""

    def details(self, trace):
        page = trace + ".html"
        subprocess.run([ARGUMENTS.program, "report", trace, "-o", page], check=True, capture_output=True)
        with open(page, encoding="utf-8") as file:
            found = re.search(r'<script[^>]*id="details"[^>]*>(.*?)</script>', file.read(), re.DOTALL)
        return json.loads(found[1])

    def record(self, python, folder, script, *words):
        trace = os.path.join(folder, "t.nofrag")
        job = os.path.join(folder, "job", "train.py")
        os.makedirs(os.path.dirname(job), exist_ok=True)
        with open(job, "w", encoding="utf-8") as file:
            file.write(script)
        environment = dict(os.environ, NOFRAG_TRACE=trace + ",stacks=1", NOFRAG_CONF="driver:sim:h100-80g")
        result = subprocess.run([python, job, ARGUMENTS.library, *words], env=environment, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return trace

    def test_a_job_by_call_site(self):
        for python in [sys.executable, *ARGUMENTS.jobs]:
            with self.subTest(python), tempfile.TemporaryDirectory() as folder:
                details = json.dumps(self.details(self.record(python, folder, JOB)))
                self.assertIn("job/train.py:8 allocate", details)
                self.assertRegex(details, r"train.py:12 (Model\.)?forward")
                self.assertIn("!ffi_call", details)

    def test_the_interpreter_ends_while_memory_is_taken(self):
        script = JOB + "\nimport atexit\natexit.register(allocate, 3 << 20)\nclass Last:\n" \
            "    def __del__(self, call=library.nofrag_malloc): call(4 << 20, 0, None)\nkept = Last()\n"
        with tempfile.TemporaryDirectory() as folder:
            self.details(self.record(sys.executable, folder, script))


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--jobs", nargs="*", default=[])
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
