#!/usr/bin/env python3
"""`nofrag explain` on what is no message: unknown, what was missing, exit 0; unreadable files: exit 3.

usage: bad_input_test.py --nofrag PROGRAM
"""

import argparse
import gzip
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import unittest

from explain import WHOLE, explain, run

PROGRAM = None


class BadInput(unittest.TestCase):
    def unknown(self, text):
        verdict = explain(PROGRAM, text)
        self.assertEqual(verdict["cause"], "unknown", text[:60])
        self.assertTrue(verdict["missing"])
        return verdict

    def test_garbage(self):
        self.unknown("")
        self.unknown("hello world\n")
        self.unknown(random.Random(7).randbytes(100_000))
        self.unknown(b"\x00" * 5000)
        self.unknown("{")
        self.unknown("[1, 2, 3]")
        self.unknown(b"\x80\x04\x95 not a pickle")

    def test_half_a_message(self):
        for end in range(0, WHOLE.index("2.30 GiB is"), 7):
            verdict = explain(PROGRAM, WHOLE[:end])
            self.assertNotEqual(verdict["cause"], "fragmentation", WHOLE[:end])
        self.assertEqual(explain(PROGRAM, WHOLE)["cause"], "fragmentation")

    def test_wrong_encoding(self):
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1"):
            self.assertEqual(explain(PROGRAM, ("schön: " + WHOLE).encode(encoding))["cause"], "fragmentation", encoding)

    def test_unreadable(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in (folder, os.path.join(folder, "none")):
                done = run(PROGRAM, path)
                self.assertEqual(done.returncode, 3, path)
                self.assertIn(path.encode(), done.stderr)
            torn = pathlib.Path(folder) / "torn.csv"
            torn.write_text("time_us,op,id,size,stream\n1,a,1\n")
            self.assertEqual(run(PROGRAM, str(torn)).returncode, 3)

    def test_damaged_recordings(self):
        whole = pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": n, "size": 512, "stream": 0}
                                                                  for n in range(4000)]]}, protocol=4)
        damaged = {"torn.pickle": whole[:len(whole) // 2], "old.pickle": pickle.dumps({"segments": [{"a": "b"}]}, protocol=2),
                   "no_history.pickle": pickle.dumps({"segments": []}, protocol=4),
                   "torn.gz": gzip.compress(whole)[:200], "packed.gz": gzip.compress(whole[:len(whole) // 2]),
                   "torn.json": b'{"schemaVersion": 1, "traceEvents": [{"name": "[memory]", "ph": "i", "ts"',
                   "torn.log": b"Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate\n"}
        with tempfile.TemporaryDirectory() as folder:
            for name, data in damaged.items():
                path = pathlib.Path(folder) / name
                path.write_bytes(data)
                for done in (run(PROGRAM, str(path)), run(PROGRAM, "-", text=data)):
                    self.assertEqual((done.returncode, done.stdout), (3, b""), (name, done.stderr))
                    self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
                self.assertNotIn(b"out-of-memory message", done.stderr)

    def test_a_message_in_what_looks_like_a_trace(self):
        line = '{"traceEvents": [], "text": "' + WHOLE + '"'
        self.assertEqual(explain(PROGRAM, line)["cause"], "fragmentation")

    def test_a_packed_text(self):
        packed = gzip.compress(WHOLE.encode())
        self.assertEqual(explain(PROGRAM, packed)["cause"], "fragmentation")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "oom.log.gz"
            path.write_bytes(packed)
            self.assertEqual(explain(PROGRAM, "", str(path))["cause"], "fragmentation")
            path.write_bytes(gzip.compress(b"nothing of that kind"))
            self.assertEqual(explain(PROGRAM, "", str(path))["cause"], "unknown")

    def test_a_packed_text_that_comes_once(self):
        """Through a named pipe, as a path and as standard input: what was read of it does not come again."""
        packed = gzip.compress(WHOLE.encode())
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            for data, arguments in ((packed, [pipe]), (packed, ["-"]), (WHOLE.encode(), [pipe])):
                writer = threading.Thread(target=pathlib.Path(pipe).write_bytes, args=(data,))
                writer.start()
                with open(pipe if arguments == ["-"] else os.devnull, "rb") as standard:
                    done = subprocess.run([PROGRAM, "explain", *arguments, "--json", "-"], stdin=standard,
                                          capture_output=True, timeout=60)
                writer.join()
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["cause"], "fragmentation", (len(data), arguments))

    def test_bad_usage(self):
        self.assertEqual(run(PROGRAM, "--trace-device", "-1", "-", text=WHOLE).returncode, 2)
        self.assertEqual(run(PROGRAM, "--allocator", "none").returncode, 2)
        self.assertEqual(run(PROGRAM, "--jsn", "-").returncode, 2)

    def test_a_trace_that_does_not_fail(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "fine.csv"
            path.write_text("time_us,op,id,size,stream\n1,a,1,1048576,0\n2,f,1,1048576,0\n")
            verdict = explain(PROGRAM, "", str(path))
            self.assertEqual(verdict["cause"], "unknown")
            self.assertIn("--capacity", " ".join(verdict["missing"]))
            self.assertEqual(explain(PROGRAM, path.read_bytes())["cause"], "unknown")

    def test_the_page_for_people(self):
        done = run(PROGRAM, "-", text=WHOLE)
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"cause: fragmentation (90 %)", done.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.nofrag
    unittest.main(argv=[sys.argv[0], *rest])
