#!/usr/bin/env python3
"""`nofrag explain` on inputs of hundreds of megabytes, and on what never ends. (Shorter ones: bad_input_test.py)

usage: long_input_test.py --nofrag PROGRAM
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from explain import WHOLE, explain

PROGRAM = None


class LongInput(unittest.TestCase):
    def test_huge_file(self):
        line = b"2026-01-01 step 1 loss 0.5 all is well and the line is long enough to fill the file up quickly\n"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "huge.log"
            with path.open("wb") as file:
                for _ in range(60):
                    file.write(line * (1 << 20 >> 6 << 0))
                file.write(WHOLE.encode() + b"\n" + line * 1000)
            self.assertGreater(path.stat().st_size, 60 << 20)
            self.assertEqual(explain(PROGRAM, "", str(path))["cause"], "fragmentation")

    def test_other_programs_words_in_the_middle_of_a_long_log(self):
        filler = b"2026-01-01 step 1 loss 0.5 all is well and the line is long enough to fill the file up quickly\n" * 130_000
        for source, words in {"a compiler": "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
                              "PaddlePaddle": "Cannot malloc 49.0002 MB GPU memory.",
                              "Ollama": "model requires more system memory (164.8 GiB) than is available (13.4 GiB)"}.items():
            self.assertEqual(explain(PROGRAM, filler + words.encode() + b"\n" + filler)["source"], source)

    def test_what_never_ends_is_given_up(self):
        for path in ("/dev/zero", "/dev/urandom"):
            for arguments, standard in (([path], subprocess.DEVNULL), (["-"], path)):
                with open(os.devnull if standard == subprocess.DEVNULL else standard, "rb") as file:
                    done = subprocess.run([PROGRAM, "explain", *arguments], stdin=file, capture_output=True, timeout=120)
                name = path if arguments == [path] else "standard input"
                self.assertEqual((done.returncode, done.stdout), (3, b""), done.stderr)
                self.assertRegex(done.stderr.decode(), rf"\Anofrag: {name}: more than 256.00 MiB of it were read, which are no "
                                                       r"text and no trace, [^\n]*; give the message, a log or a trace\n\Z")

    def test_a_file_that_begins_with_zeros_is_read_to_its_end(self):
        """A log that was cut to nothing while its writer went on at the old place."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rotated.log"
            with path.open("wb") as file:
                file.truncate(300 << 20)
                file.seek(300 << 20)
                file.write(b"\n" + WHOLE.encode() + b"\n")
            self.assertEqual(explain(PROGRAM, "", str(path))["cause"], "fragmentation")
            with path.open("rb") as file:
                done = subprocess.run([PROGRAM, "explain", "-", "--json", "-"], stdin=file, capture_output=True, timeout=120)
            self.assertEqual((done.returncode, json.loads(done.stdout)["cause"]), (0, "fragmentation"), done.stderr)

    def test_a_long_log_through_a_pipe(self):
        line = b"2026-01-01 step 1 loss 0.5 all is well and the line is long enough to fill the pipe up quickly\n" * 10000
        with subprocess.Popen([PROGRAM, "explain", "-", "--json", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            for _ in range(300):
                reader.stdin.write(line)
            reader.stdin.write(WHOLE.encode() + b"\n")
            reader.stdin.close()
            self.assertEqual(json.loads(reader.stdout.read())["cause"], "fragmentation")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.nofrag
    unittest.main(argv=[sys.argv[0], *rest])
