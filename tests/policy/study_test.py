#!/usr/bin/env python3
"""bench/policy: the generator gives the same traces everywhere, the study searches and judges rightly.

usage: study_test.py NOFRAG
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import Future

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench/policy"))
import replays  # noqa: E402
import study  # noqa: E402
import synthetic  # noqa: E402

NOFRAG = ""

# SHA-256, first 16 digits. Another digest is another trace, whose figures compare with none before.
DIGESTS = {
    "rand": "78863be0a18e5ec8",
    "kv": "02baeaa5cdb9936c",
    "phase": "a43d169d08e61fe8",
    "streams": "82259da23b905478",
    "medium": "2ea285b4e90faa13",
}


class Fake:
    """A runner whose trace completes at the grid steps given."""

    def __init__(self, completing, reserved=1.0):
        self.completing = completing
        self.reserved = reserved

    def submit(self, _trace, _allocator, _conf, capacity):
        future = Future()
        if capacity == "min":
            future.set_result({"over_live": 1.4})
            return future
        step = round((float(capacity[:-1]) - 1) * 1000) if capacity else None
        run = {"completed": step is None or step >= 31 or step in self.completing}
        run.update(reserved_over_live=self.reserved, peak_reserved_bytes=2 * 2**30, streams=1, duration_us=1000)
        run["driver_us_quarters"] = [3000, 1000, 4, 1]
        future.set_result(run)
        return future


def figures(completing, group="real", reserved=1.0):
    trace = replays.Trace(group, "job", pathlib.Path("job"), "")
    return study.Figures(Fake(completing, reserved), trace, "nofrag", "").settle()


class Generator(unittest.TestCase):
    def test_traces_are_the_same_everywhere(self):
        for kind, generate in synthetic.KINDS.items():
            digest = hashlib.sha256(generate().text().encode()).hexdigest()[:16]
            self.assertEqual(digest, DIGESTS[kind], kind)

    def test_traces_are_valid(self):
        with tempfile.TemporaryDirectory() as folder:
            for kind, generate in synthetic.KINDS.items():
                path = pathlib.Path(folder, f"{kind}.csv")
                path.write_text(generate().text(), encoding="utf-8")
                packed = path.with_suffix(".nofrag")
                subprocess.run([NOFRAG, "convert", str(path), "--to", "nofrag", str(packed)], check=True)

    def test_scaled_keeps_multiples_of_512_and_empty_blocks(self):
        csv = "time_us,op,id,size,stream\n1,a,0,1048576,0\n2,a,1,0,0\n3,a,2,1000,0\n4,f,0,1048576,0\n5,a,3,512,0\n"
        sizes = [line.split(",")[3] for line in synthetic.scaled(csv, 0.97).splitlines()[1:]]
        self.assertEqual(sizes, ["1016832", "0", "970", "1016832", "512"])


class Search(unittest.TestCase):
    def test_both_sides_agree_where_completing_is_monotonic(self):
        found = figures(range(4, 31))
        self.assertEqual((found.below, found.above), (1.004, 1.004))

    def test_both_sides_differ_around_a_hole(self):
        found = figures(set(range(4, 31)) - {9})
        self.assertEqual((found.below, found.above), (1.004, 1.010))

    def test_beyond_the_grid_the_program_searches(self):
        found = figures(())
        self.assertEqual((found.below, found.above), (1.4, 1.4))
        self.assertEqual(figures({3}).above, 1.031, "completes once, then not up to the end")

    def test_growth_and_steady_share(self):
        found = figures(range(4, 31))
        self.assertAlmostEqual(found.growth, 2.0)
        self.assertAlmostEqual(found.steady(""), 1.0)
        self.assertIsNone(figures(()).steady("1.020x"))


class Bars(unittest.TestCase):
    def verdict(self, ours, expandable):
        rows = study.judge([(ours, expandable, expandable)]).rows
        return {what: held for _, what, _, _, held in rows}

    def test_what_meets_every_bar_but_one(self):
        held = self.verdict(figures(range(4, 31)), figures(range(2, 31)))
        self.assertEqual([what for what, ok in held.items() if not ok], ["steady half at unlimited at most 0.5 %"])

    def test_a_minimum_above_expandables_misses(self):
        held = self.verdict(figures(range(5, 31)), figures(range(2, 31)))
        self.assertFalse(held["minimum at most 0.002 above expandable's"])

    def test_reserved_is_judged_on_recorded_jobs_only(self):
        high = self.verdict(figures(range(31), reserved=1.03), figures(range(31)))
        self.assertFalse(high["the same, worst"])
        self.assertNotIn("the same, worst", self.verdict(figures(range(31), "synthetic", 1.03), figures(range(31))))

    def test_configurations_are_every_combination(self):
        found = study.configurations(["a:1"], ["b:2,3", "c:4,5"])
        self.assertEqual(found, ["a:1,b:2,c:4", "a:1,b:2,c:5", "a:1,b:3,c:4", "a:1,b:3,c:5"])
        self.assertEqual(study.configurations([], []), [""])


class WholeProgram(unittest.TestCase):
    def test_quick_prints_a_cell_for_each_recorded_job(self):
        command = [sys.executable, str(ROOT / "bench/policy/study.py"), "--nofrag", NOFRAG, "--quick"]
        done = subprocess.run([*command, "--only", "gpt|lora"], capture_output=True, text=True, check=True)
        self.assertRegex(done.stdout.splitlines()[-1], r"^\| default( \| \d\.\d{3}, \d+\.\d\d % \(\d+\.\d\d\)){2} \|$")


if __name__ == "__main__":
    NOFRAG = sys.argv.pop(1)
    unittest.main()
