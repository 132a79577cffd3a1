#!/usr/bin/env python3
"""Thread caches cost the recorded jobs no memory: not what they hold, nor the least they need.

usage: cache_memory_test.py NOFRAG

Where a job is mostly large requests on several streams, caches change nothing at all.
"""

import json
import pathlib
import subprocess
import sys
import unittest

TRACES = pathlib.Path(__file__).resolve().parents[2] / "bench/traces"
MOST = 1.003  # reserved/live, with caches to without

NOFRAG = ""


def replay(trace, caches, *more):
    command = [NOFRAG, "replay", TRACES / f"{trace}.nofrag", "--device", "sim:h100-80g", "--allocator", "nofrag"]
    command += ["--quiet", "--json", "-", "--conf", f"thread_caches:{caches}", *more]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 4):
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)["traces"][0]


def needs(trace, caches):
    played = replay(trace, caches, "--min-capacity")
    return played["runs"][0]["reserved_over_live"], played["min_capacity"][0]["bytes"]


class CacheMemory(unittest.TestCase):
    def test_recorded_jobs_need_no_more(self):
        for path in sorted(TRACES.glob("*.nofrag")):
            with self.subTest(path.stem):
                reserved, least = needs(path.stem, "true")
                reserved_without, least_without = needs(path.stem, "false")
                self.assertLessEqual(reserved, reserved_without * MOST)
                self.assertLessEqual(least, least_without)

    def test_large_requests_on_several_streams_find_what_they_would_without(self):
        for lag in ("100", "500", "800"):
            for capacity in ((), ("--capacity", "1.05x"), ("--capacity", "1.02x")):
                with self.subTest(lag=lag, capacity=capacity):
                    run, without = (
                        replay("multistream8", caches, "--stream-lag", lag, *capacity)["runs"][0]
                        for caches in ("true", "false")
                    )
                    for what in ("completed", "peak_reserved_bytes", "driver_calls", "driver_us"):
                        self.assertEqual(run[what], without[what], what)


if __name__ == "__main__":
    NOFRAG = sys.argv.pop()
    unittest.main()
