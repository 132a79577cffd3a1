#!/usr/bin/env python3
"""Recorded real jobs on cards that are too small for them: none of them leaks, and no verdict says so.

usage: real_jobs_test.py --nofrag PROGRAM --traces bench/traces [--shares S,...]. Each job is explained whole, where what follows the
failure shows what becomes of the blocks, and cut off at it, as the job would have died.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from explain import explain

ARGUMENTS = None
JOBS = ["gpt_varlen", "llm_serve", "lora_ckpt", "multistream8"]
SHARES = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
GIVEN_BACK = "are freed again where the trace goes on"


def trace_of(job):
    return str(ARGUMENTS.traces / f"{job}.nofrag")


def failure_of(job, share):
    """(event, capacity in bytes) of the failure at that share of the job's peak."""
    done = subprocess.run([ARGUMENTS.nofrag, "replay", trace_of(job), "--allocator", "nofrag", "--capacity", f"{share}x",
                           "--json", "-", "--quiet"], capture_output=True, text=True, timeout=300)
    run = json.loads(done.stdout)["traces"][0]["runs"][0]
    return run["oom"]["event"], run["capacity_bytes"]


def rows_of(job):
    done = subprocess.run([ARGUMENTS.nofrag, "convert", trace_of(job), "-", "--to", "csv"], capture_output=True, text=True,
                          timeout=300)
    return done.stdout.splitlines(keepends=True)


class RealJobs(unittest.TestCase):
    def test_none_of_them_leaks(self):
        for job in JOBS:
            for share in SHARES:
                verdict = explain(ARGUMENTS.nofrag, "", trace_of(job), "--capacity", f"{share}x")
                with self.subTest(job=job, share=share, evidence=verdict["evidence"]):
                    self.assertEqual(verdict["cause"], "batch_too_large")
                    self.assertGreaterEqual(verdict["confidence"], 0.6)
                    self.assertFalse(any("it is a leak" in line for line in verdict["evidence"]), "it is seen that it is none")

    def test_what_is_given_back_is_said(self):
        for job, share in (("llm_serve", 0.8), ("lora_ckpt", 0.6), ("gpt_varlen", 0.5), ("multistream8", 0.5)):
            verdict = explain(ARGUMENTS.nofrag, "", trace_of(job), "--capacity", f"{share}x")
            self.assertTrue(any(GIVEN_BACK in line for line in verdict["evidence"]), (job, verdict["evidence"]))

    def test_a_job_that_died_there_is_no_leak_either(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "died.csv"
            for job in JOBS:
                rows = rows_of(job)
                for share in SHARES:
                    event, capacity = failure_of(job, share)
                    path.write_text("".join(rows[:event + 2]))  # the names of the columns, and the request that fails
                    verdict = explain(ARGUMENTS.nofrag, "", str(path), "--capacity", f"{capacity}B")
                    with self.subTest(job=job, share=share, evidence=verdict["evidence"]):
                        self.assertEqual(verdict["cause"], "batch_too_large")
                        self.assertFalse(any(GIVEN_BACK in line for line in verdict["evidence"]), "nobody knows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    parser.add_argument("--traces", type=pathlib.Path, required=True)
    parser.add_argument("--shares", help="of each job's peak; all that are checked if not given")
    ARGUMENTS, rest = parser.parse_known_args()
    if ARGUMENTS.shares:
        SHARES = [float(share) for share in ARGUMENTS.shares.split(",")]
    unittest.main(argv=[sys.argv[0], *rest])
