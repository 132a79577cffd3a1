#!/usr/bin/env python3
"""Standard streams that cannot be written, outputs that fail half-way, and those that cannot be replaced.

usage: streams_test.py --nofrag PROGRAM
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
TRACE = "time_us,op,id,size,stream\n" + "".join(f"{i},a,{i},2097152,0\n" for i in range(400))
MESSAGE = "CUDA out of memory. Tried to allocate 1.70 GiB."


class Streams(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "good.csv").write_text(TRACE)
        (self.folder / "oom.log").write_text(MESSAGE)

    def run_program(self, arguments, shell="", limit=None):
        """What `arguments` do, with `shell` behind them, and files of at most `limit` bytes."""
        def set_limit():
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.run(["sh", "-c", f'trap "" XFSZ; "$0" {arguments} {shell}', PROGRAM], cwd=self.folder,
                              preexec_fn=set_limit, capture_output=True, timeout=120)

    def test_stderr_that_cannot_be_written(self):
        for shell in ("2>/dev/full", "2>&-"):
            self.assertEqual(self.run_program("replay good.csv --capacity lots", shell).returncode, 2, shell)
            self.assertEqual(self.run_program("replay missing.csv", shell).returncode, 3, shell)
            done = self.run_program("replay good.csv --allocator driver --json -", shell)
            self.assertEqual(done.returncode, 0, shell)
            self.assertEqual(json.loads(done.stdout)["schema"], "nofrag.replay/1")
            self.assertEqual(self.run_program("convert good.csv --to minimalloc m.csv --force", shell).returncode, 0)

    def test_messages_do_not_reach_a_file_that_takes_the_place_of_stderr(self):
        self.assertEqual(self.run_program("convert good.csv --to csv out.csv", "2>&-").returncode, 0)
        self.assertEqual((self.folder / "out.csv").read_text(), TRACE)

    def test_a_failed_write_leaves_what_was_there(self):
        old = self.folder / "old"
        for arguments in ("report good.csv --quiet -o old", "replay good.csv --quiet --json old",
                          "replay good.csv --quiet --html old", "explain oom.log --json old",
                          "doctor --device sim:h100-80g --json old", "convert good.csv --to csv old --force"):
            precious = "<precious>" if " -o " in arguments or "--html" in arguments else '{"precious": 1}'
            old.write_text(precious)
            old.chmod(0o640)
            done = self.run_program(arguments, limit=64)
            self.assertEqual(done.returncode, 1, (arguments, done.stderr))
            self.assertIn(b"old: could not be written", done.stderr)
            self.assertEqual(old.read_text(), precious, arguments)
            self.assertEqual(self.run_program(arguments).returncode, 0, arguments)
            self.assertNotEqual(old.read_text(), precious, arguments)
            self.assertEqual(old.stat().st_mode & 0o777, 0o640, "its permissions stay")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["good.csv", "old", "oom.log"])

    def test_links_stay_links(self):
        for target in ("real.json", "there.json"):
            (self.folder / "link.json").symlink_to(target)
            if target == "there.json":
                (self.folder / target).write_text("{}")
            self.assertEqual(self.run_program("explain oom.log --json link.json").returncode, 0)
            self.assertTrue((self.folder / "link.json").is_symlink())
            self.assertEqual(json.loads((self.folder / target).read_text())["schema"], "nofrag.explain/1")
            (self.folder / "link.json").unlink()

    def test_what_cannot_be_replaced_is_written_in_place(self):
        for path in ("-", "/dev/stdout"):
            self.assertIn(b"<html", self.run_program(f"report good.csv --quiet -o {path}").stdout, path)
        os.mkfifo(self.folder / "pipe")
        done = self.run_program("report good.csv --quiet -o pipe & cat pipe")
        self.assertIn(b"<html", done.stdout)
        self.assertTrue((self.folder / "pipe").is_fifo())
        self.assertEqual(self.run_program("report good.csv --quiet -o /dev/null").returncode, 0)
        self.assertTrue(pathlib.Path("/dev/null").is_char_device())
        full = self.run_program("report good.csv --quiet -o /dev/full")
        self.assertEqual((full.returncode, full.stderr.count(b"\n")), (1, 1), full.stderr)
        self.assertEqual(self.run_program("report good.csv --quiet -o -", ">/dev/full").returncode, 1)
        self.assertEqual(self.run_program("--help", ">/dev/full").returncode, 1)
        self.assertEqual(self.run_program("replay --help", ">/dev/full").returncode, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    PROGRAM = os.path.abspath(ARGUMENTS.nofrag)
    unittest.main(argv=[sys.argv[0], *rest])
