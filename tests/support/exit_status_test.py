#!/usr/bin/env python3
"""The exit statuses of test_main.cc: 77 only when every test skipped, 1 when none ran.

usage: exit_status_test.py PROBE     (built from skip_probe.cc)
"""

import subprocess
import sys

EXPECTED = {
    "Probe.Passes": 0,
    "Probe.Skips": 77,
    "Probe.Passes:Probe.Skips": 0,
    "Probe.Skips:Probe.Fails": 1,
    "Probe.Nothing": 1,
}

wrong = 0
for chosen, expected in EXPECTED.items():
    command = [sys.argv[1], f"--gtest_filter={chosen}", "--gtest_brief=1"]
    status = subprocess.run(command, check=False).returncode
    print(f"{chosen}: exit status {status}, expected {expected}")
    wrong += status != expected
sys.exit(1 if wrong else 0)
