#!/usr/bin/env python3
"""Does the conformance suite notice? Its runner with made-up checks, and its checks read as text: no PyTorch, no GPU."""

import ast
import collections
import contextlib
import io
import os
import pathlib
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "stand_in")]

import run  # noqa: E402 (the path comes first)
import worker  # noqa: E402
from checks import common  # noqa: E402

LEAST = 60  # checks that count under both allocators
WORDS = {"expect", "equal", "between", "raises", "accept"}


def entry(function, timeout=20, alone=False, only=None):
    return common.Entry(function, timeout, alone, 1, only, False)


def passes():
    print("said by the check")


def fails():
    common.equal(1, 2, "one")


def leaves():
    raise SystemExit(0)


def dies():
    os._exit(0)


def hangs():
    time.sleep(60)


def skips():
    raise common.Skip("not here")


def starts_and_hangs():
    if os.fork() == 0:
        time.sleep(60)
    time.sleep(60)


class Runner(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        (self.out / "logs").mkdir()
        self.kept = common.begin, common.end
        common.begin = lambda one: ("n/a", f"about {one.only}") if one.only else None
        common.end = lambda one: None

    def tearDown(self):
        common.begin, common.end = self.kept

    def results(self, *entries):
        return {one["name"].partition(".")[2]: one for one in worker.run_all(list(entries), self.out, 3)}

    def test_each_end_is_told(self):
        found = self.results(entry(passes), entry(fails), entry(leaves), entry(dies), entry(hangs, timeout=1), entry(skips),
                             entry(passes, alone=True), entry(fails, only="nofrag"))
        outcomes = {name: (one["outcome"], one["text"]) for name, one in found.items()}
        self.assertEqual(outcomes["passes"], ("ok", ""))
        self.assertEqual(outcomes["leaves"], ("FAILED", "SystemExit: 0"))
        self.assertEqual(outcomes["dies"], ("FAILED", "the process died (status 0)"))
        self.assertEqual(outcomes["hangs"], ("FAILED", "not done after 1 s"))
        self.assertEqual(outcomes["skips"], ("skipped", "not here"))
        self.assertEqual(outcomes["fails"], ("n/a", "about nofrag"))

    def test_a_failure_has_its_text_and_log(self):
        found = self.results(entry(fails))["fails"]
        self.assertEqual((found["outcome"], found["text"]), ("FAILED", "AssertionError: one: 1, not 2"))
        self.assertIn("Traceback", (self.out / "logs" / f"{found['name']}.log").read_text())

    def test_what_a_check_started_ends_with_it(self):
        started = time.time()
        self.assertEqual(self.results(entry(starts_and_hangs, timeout=1))["starts_and_hangs"]["outcome"], "FAILED")
        self.assertLess(time.time() - started, 10)

    def test_the_table_counts(self):
        results = [{"name": "a.b", "outcome": outcome, "text": "", "seconds": 1.0} for outcome in ("ok", "FAILED", "n/a", "ok")]
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            counts = run.table(results)
        self.assertEqual(shown.getvalue().splitlines()[-1], "2 passed, 1 failed, 1 skipped")
        self.assertEqual(counts["FAILED"], 1)


class Checks(unittest.TestCase):
    """Every check can fail: it says what must hold. And none hides another."""

    def setUp(self):
        self.functions = []  # (module, function, decorator)
        for name in common.MODULES:
            for node in ast.parse((HERE / "checks" / f"{name}.py").read_text()).body:
                marks = [one for one in getattr(node, "decorator_list", []) if "check" in ast.dump(one)]
                if isinstance(node, ast.FunctionDef) and marks:
                    self.functions.append((name, node, marks[0]))

    def test_there_are_enough(self):
        both = [node for _, node, mark in self.functions if "nofrag" not in ast.dump(mark)]
        self.assertGreaterEqual(len(both), LEAST)

    def test_no_name_is_used_twice(self):
        names = collections.Counter(f"{module}.{node.name}" for module, node, _ in self.functions)
        self.assertEqual([name for name, count in names.items() if count > 1], [])

    def test_each_says_what_must_hold(self):
        silent = []
        for module, node, _ in self.functions:
            called = {one.func.id for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)}
            if not called & WORDS:
                silent.append(f"{module}.{node.name}")
        self.assertEqual(silent, [])


if __name__ == "__main__":
    unittest.main()
