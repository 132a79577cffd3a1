#!/usr/bin/env python3
"""run.py and its program where there is no GPU: the program without a device, on nofrag's simulated driver.

usage: run_test.py PEERS_WITHOUT_DEVICE LIBNOFRAG
"""

import os
import pathlib
import subprocess
import sys
import unittest

import run

HERE = pathlib.Path(__file__).parent
LIBRARY, PROGRAM = (sys.argv.pop(), sys.argv.pop()) if len(sys.argv) > 2 else (None, None)


def script(*options):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "NVIDIA_VISIBLE_DEVICES": "none"}
    return subprocess.run([sys.executable, str(HERE / "run.py"), *options], capture_output=True, text=True, env=environment)


def program(*options):
    environment = {**os.environ, "NOFRAG_CONF": "driver:sim:h100-80g"}
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True, env=environment)


class Script(unittest.TestCase):
    def test_help(self):
        result = script("--help")
        self.assertEqual(result.returncode, 0, result.stderr)
        for peer, family, _ in run.PEERS:
            self.assertIn(peer, "".join(result.stdout.split()))  # the help is wrapped at hyphens
            self.assertTrue((HERE / run.SOURCES[family]).exists())

    def test_without_a_gpu_it_is_skipped(self):
        result = script("--library", LIBRARY)
        self.assertEqual(result.returncode, run.SKIPPED, result.stdout + result.stderr)
        self.assertTrue(result.stdout.startswith("skipped: "), result.stdout)

    def test_an_unknown_peer_is_refused(self):
        self.assertEqual(script("--peers", "nofrag,jemalloc").returncode, 2)


class Program(unittest.TestCase):
    def test_lists_the_peers_of_its_family(self):
        self.assertEqual(program("--list").stdout.split(), [name for name, family, _ in run.PEERS if family == "nofrag"])

    def test_every_peer_gives_every_figure(self):
        for peer in program("--list").stdout.split():
            with self.subTest(peer=peer):
                result = program("--peer", peer, "--rounds", "2", "--round-ms", "1", "--threads", "1,2")
                self.assertEqual(result.returncode, 0, result.stderr)
                rounds, info = run.parse(result.stdout)
                cells = run.summarise([{"peer": peer, **row} for row in rounds])
                self.assertEqual({(c["pattern"], c["threads"], c["streams"]): c["rounds"] for c in cells}, dict.fromkeys([
                    ("pair-4k", 1, "own"), ("mixed", 1, "own"), ("large-repeat", 1, "own"), ("large-cycle", 1, "own"),
                    ("producer-consumer", 2, "one"), ("pair-4k", 2, "own"), ("pair-4k", 2, "one"), ("mixed", 2, "own"),
                    ("mixed", 2, "one"), ("large-cycle", 1, "many"), ("holes", 1, "own")], 2))
                self.assertTrue(all(row["ns_per_pair"] > 0 and row["pairs"] > 0 for row in rounds))
                self.assertGreater(int(info["holes"]), 0)

    def test_patterns_can_be_chosen(self):
        rounds, _ = run.parse(program("--peer", "none", "--rounds", "1", "--round-ms", "1", "--patterns", "mixed,holes").stdout)
        self.assertEqual({row["pattern"] for row in rounds}, {"mixed", "holes"})

    def test_time_bounds_the_rounds(self):
        rounds, _ = run.parse(program("--peer", "none", "--rounds", "1000", "--threads", "1", "--seconds", "0.5").stdout)
        self.assertLess(len(rounds), 100)

    def test_what_it_does_not_know_is_refused(self):
        self.assertEqual(program("--peer", "jemalloc").returncode, 1)
        self.assertEqual(program("--peer").returncode, 2)
        self.assertEqual(program("--peer", "none", "--threads", "1,x").returncode, 2)


class Tables(unittest.TestCase):
    def rows(self, peer, *figures):
        return [{"peer": peer, "pattern": "mixed", "threads": 4, "streams": "own", "ns_per_pair": ns} for ns in figures]

    def test_medians_of_all_rounds_and_the_ratio(self):
        cells = run.summarise(self.rows("nofrag", 30, 10, 20) + self.rows("torch-native", 100, 200, 50))
        nofrag = cells[0]
        self.assertEqual((nofrag["median_ns"], nofrag["lowest_ns"], nofrag["highest_ns"], nofrag["rounds"]), (20, 10, 30, 3))
        self.assertEqual(nofrag["ratio_to_torch_native"], 0.2)
        self.assertEqual(nofrag["mpairs_per_s"], 200)

    def test_what_was_skipped_is_in_the_table(self):
        lines = run.table(run.summarise(self.rows("nofrag", 20)), {"torch-native": "PyTorch is not installed"})
        self.assertIn("torch-native", lines[0])
        self.assertEqual(lines[1].split()[-2:], ["20", "skipped"])


if __name__ == "__main__":
    unittest.main()
