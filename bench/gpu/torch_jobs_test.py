#!/usr/bin/env python3
"""Do the judgements of torch_jobs.py bite? With made-up runs: no PyTorch, no GPU."""

import argparse
import os
import tempfile
import unittest

import torch_jobs

GIB = 2**30


def run_of(exact=("0x1p+0", "0x1p+1"), seconds=1.0, reserved=2 * GIB, died=None):
    return {"exact": list(exact), "seconds": seconds, "peak_live_bytes": GIB, "peak_reserved_bytes": reserved, "died": died}


class Judged(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.environ["OUT"] = folder.name
        self.addCleanup(os.environ.pop, "OUT")
        self.runner = torch_jobs.Runner(argparse.Namespace(rounds=1, library="", door="auto", step_times=False))

    def row(self, native, nofrag, expandable=()):
        return self.runner.row("job", {"native": native, "nofrag": nofrag, "expandable": list(expandable)})

    def test_the_same(self):
        row = self.row([run_of()], [run_of(seconds=0.9)], [run_of(reserved=GIB)])
        self.assertEqual(self.runner.problems, [])
        self.assertTrue(row["identical"])
        self.assertAlmostEqual(row["time_ratio"], 0.9)
        self.assertEqual(row["expandable"]["peak_reserved_bytes"], GIB)

    def test_one_bit(self):
        row = self.row([run_of()], [run_of(), run_of(exact=("0x1p+0", "0x1.0000000000001p+1"))])
        self.assertFalse(row["identical"])
        self.assertEqual(self.runner.problems, ["job under nofrag: differs from native at 1 of 2 steps: "
                                                "[(1, 2.0, 2.0000000000000004)]"])
        self.assertEqual(row["differs"], [{"allocator": "nofrag", "steps": 2, "pairs": [(1, 2.0, 2.0000000000000004)]}])

    def test_a_step_is_missing(self):
        self.row([run_of()], [run_of(exact=("0x1p+0",))])
        self.assertEqual(self.runner.problems, ["job under nofrag: differs from native at 0 of 2 steps: the length"])

    def test_slower(self):
        self.row([run_of(seconds=1.0), run_of(seconds=9.0), run_of(seconds=1.0)], [run_of(seconds=1.02)] * 3)
        self.assertEqual(self.runner.problems, ["job: 1.020 times native's time"])

    def test_just_fast_enough(self):
        self.row([run_of()], [run_of(seconds=1.009)])
        self.assertEqual(self.runner.problems, [])

    def test_steps_are_compared_by_their_least_times(self):
        def steps(*times):
            return {**run_of(seconds=99.0), "warmup": 1, "step_s": [50.0, *times]}

        row = self.row([steps(1.0, 9.0), steps(8.0, 2.0)], [run_of(seconds=1.0) | steps(1.5, 2.5), steps(1.6, 2.4)])
        self.assertAlmostEqual(row["time_ratio"], (1.5 + 2.4) / (1.0 + 2.0))
        self.assertEqual(self.runner.problems, ["job: 1.300 times native's time"])

    def test_least_is_the_smallest_that_completes(self):
        for needed in (*torch_jobs.FACTORS, 99.0):
            tried = []

            def run(job, allocator, name, *options, needed=needed, tried=tried):
                factor = float(options[1])
                tried.append(factor)
                return run_of(died=None if factor >= needed - 1e-5 else {"step": 3})

            self.runner.run = run
            wanted = needed if needed in torch_jobs.FACTORS else None
            self.assertEqual(self.runner.least("job", "native", GIB), wanted)
            self.assertLessEqual(len(tried), 4)


if __name__ == "__main__":
    unittest.main()
