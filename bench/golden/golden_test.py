#!/usr/bin/env python3
"""golden.py and no_lock.py without a program: that they find what they look for."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import callgrind
import golden
import no_lock

PROFILE = """\
ob=/lib/a.so
fl=???
fn=caller()
0x10 0 32
0x14 0 32
cob=/lib/b.so
cfn=callee
calls=32 0x90 0
0x14 0 640
0x19 0 32

ob=/lib/b.so
fn=callee
0x90 0 640
"""


def path(name, instructions, before=None):
    return callgrind.Path(name, 10, instructions, before or instructions, {})


class Profile(unittest.TestCase):
    def test_what_a_callee_costs_is_counted_once(self):
        costs = callgrind.parse_profile(PROFILE)
        self.assertEqual(sum(costs.values()), 3 * 32 + 640)
        self.assertEqual(costs["/lib/a.so", "caller()", 0x14], 32)
        self.assertEqual(costs["/lib/b.so", "callee", 0x90], 640)


class Counts(unittest.TestCase):
    def test_more_fewer_new_and_gone(self):
        rows = golden.compare({"same": 100, "up": 100, "down": 100, "gone": 1}, {"same": 103, "up": 104, "down": 96, "new": 1})
        self.assertEqual({row[0]: row[3] for row in rows},
                         {"same": "", "up": "MORE", "down": "fewer", "new": "not recorded", "gone": "gone"})

    def test_a_path_that_has_not_come_to_rest_is_refused(self):
        self.assertEqual(golden.counted([path("caches/a", 1000)]), {"caches/a": 100})
        with self.assertRaises(SystemExit):
            golden.counted([path("caches/a", 1000, before=1100)])


class Script(unittest.TestCase):
    """golden.py as ctest runs it, with counts of our own."""

    def golden(self, counted, *options):
        arguments = ["golden.py", "--program", "none", "--compiler", "GNU-12.2.0", "--flags", "Release", "--counts",
                     str(self.file), *options]
        out = io.StringIO()
        with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(out), \
                mock.patch.object(callgrind, "need_tools"), \
                mock.patch.object(callgrind, "run", lambda program, mode: [path(mode, counted)]):
            try:
                return golden.main()
            except SystemExit as end:
                return end.code

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "counts.json"

    def test_recorded_counts_hold_within_three_percent(self):
        self.assertEqual(self.golden(1000, "--update"), 0)
        self.assertEqual([self.golden(count) for count in (1000, 1029, 971, 1031, 969)], [0, 0, 0, 1, 1])
        self.assertEqual(self.golden(1031, "--update"), 0)
        self.assertEqual(self.golden(1031), 0)

    def test_another_compiler_is_skipped(self):
        self.assertEqual(self.golden(1000), callgrind.SKIPPED)  # nothing is recorded
        self.assertEqual(self.golden(1000, "--update"), 0)
        recorded = json.loads(self.file.read_text())
        recorded["made_with"]["compiler"] = "GNU-13"
        self.file.write_text(json.dumps(recorded))
        self.assertEqual(self.golden(2000), callgrind.SKIPPED)

    def test_without_valgrind_it_is_skipped(self):
        with mock.patch.object(callgrind.shutil, "which", lambda tool: None), self.assertRaises(SystemExit) as end, \
                contextlib.redirect_stdout(io.StringIO()):
            callgrind.need_tools("valgrind")
        self.assertEqual(end.exception.code, callgrind.SKIPPED)


class Instructions(unittest.TestCase):
    def test_kinds(self):
        for text, kind in {
            "lock cmpxchg %rdx,(%rdi)": "atomic",
            "lock xadd %rax,0x98(%rip)        # 1f0 <last>": "atomic",
            "xchg   %al,0x0(%r13)": "atomic",
            "xchg   %rax,(%rsi,%rcx,8)": "atomic",
            "xchg   %ax,%ax": None,
            "mfence": "fence",
            "syscall": "system call",
            "mov    %rax,(%rdi)": None,
            "call   4c540 <pthread_mutex_lock@plt>": None,
        }.items():
            with self.subTest(text):
                self.assertEqual(no_lock.kind_of(text), kind)

    def test_a_path_is_found_out_by_instruction_and_by_name(self):
        code = {"a.so": mock.Mock(instruction={1: "nop", 2: "lock incl (%rax)"}.get)}
        lines = {("a.so", "plain", 1): 1, ("a.so", "plain", 2): 1, ("a.so", "pthread_mutex_lock@@GLIBC_2.2.5", 1): 1,
                 ("a.so", "nofrag::SimulatedDriver::stream_is(int)", 1): 1}
        found = no_lock.look_at(path("p", 4)._replace(lines=lines), code)
        self.assertEqual({kind for kind, _ in found}, {"atomic", "lock", "driver"})

    def test_an_address_between_instructions_is_refused(self):
        text = "  3a14f:\txchg   %al,0x0(%r13)\n  3a153:\tjmp    3a03f <x+0x5f>\n"
        self.assertEqual(no_lock.parse_disassembly(text), {0x3A14F: "xchg   %al,0x0(%r13)", 0x3A153: "jmp    3a03f <x+0x5f>"})
        code = no_lock.Disassembly.__new__(no_lock.Disassembly)
        code.file, code.at = "a.so", no_lock.parse_disassembly(text)
        with self.assertRaises(SystemExit):
            code.instruction(0x3A150)


if __name__ == "__main__":
    unittest.main()
