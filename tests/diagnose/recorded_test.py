#!/usr/bin/env python3
"""Failures that a recording tells of: `nofrag explain` says why they were, `nofrag replay` that they were.

usage: recorded_test.py --nofrag PROGRAM [--library libnofrag.so]. Without the library: PyTorch's snapshots alone.
"""

import argparse
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from explain import explain, run

ARGUMENTS = None
MIB, GIB = 1 << 20, 1 << 30


def snapshot(devices):
    """A snapshot of PyTorch's: of each device (events, reserved bytes at the end), an event being ("alloc", address in
    MiB, MiB), ("free", address), ("segment_alloc", MiB), ("oom", MiB, free MiB)."""
    traces, segments = [], []
    for number, (events, reserved) in enumerate(devices):
        entries, live = [], {}
        for at, (action, *rest) in enumerate(events):
            entry = {"action": action, "addr": 0, "stream": 0, "time_us": 1000 * (at + 1) + number, "frames": []}
            if action == "alloc":
                entry.update(addr=rest[0] * MIB, size=rest[1] * MIB)
                live[entry["addr"]] = entry["size"]
            elif action == "free":
                entry.update(action="free_completed", addr=rest[0] * MIB, size=live.pop(rest[0] * MIB))
            elif action == "oom":
                entry.update(size=rest[0] * MIB, device_free=rest[1] * MIB)
            else:
                entry.update(size=rest[0] * MIB)
            entries.append(entry)
        traces.append(entries)
        segments.append({"device": number, "address": 0, "total_size": reserved * MIB, "stream": 0, "blocks": []})
    return pickle.dumps({"segments": segments, "device_traces": traces})


def in_pieces(free_mib):
    """1000 MiB in segments of their own, every second freed; then 400 MiB are asked for."""
    events = []
    for i in range(10):
        events += [("segment_alloc", 100), ("alloc", 1000 + 200 * i, 100)]
    events += [("free", 1000 + 200 * i) for i in range(0, 10, 2)]
    return events + [("oom", 400, free_mib)]


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def put(self, data, name="s.pickle"):
        path = self.folder / name
        path.write_bytes(data)
        return str(path)

    def replay(self, path, *more):
        done = subprocess.run([ARGUMENTS.nofrag, "replay", path, "--allocator", "nofrag", *more], capture_output=True,
                              text=True, timeout=300)
        return done


class Snapshots(Files):
    def test_what_was_there_in_pieces(self):
        verdict = explain(ARGUMENTS.nofrag, "", self.put(snapshot([(in_pieces(50), 1000)])))
        self.assertEqual((verdict["cause"], verdict["confidence"]), ("fragmentation", 0.95))
        self.assertEqual(verdict["numbers"]["requested_bytes"], 400 * MIB)
        self.assertEqual(verdict["numbers"]["live_bytes"], 500 * MIB)
        self.assertEqual(verdict["numbers"]["cached_bytes"], 500 * MIB)
        self.assertEqual(verdict["numbers"]["driver_free_bytes"], 50 * MIB)
        self.assertTrue(any("refused at event 15" in line for line in verdict["evidence"]), verdict["evidence"])

    def test_what_was_short_is_not_called_fragmentation(self):
        events = in_pieces(50)[:-1] + [("oom", 700, 50)]
        verdict = explain(ARGUMENTS.nofrag, "", self.put(snapshot([(events, 1000)])))
        self.assertNotEqual(verdict["cause"], "fragmentation")
        self.assertEqual(verdict["short_by_bytes"], 150 * MIB)

    def test_the_last_failure_and_what_was_held_then(self):
        # After the failure more was taken from the driver: 1000 MiB were held at it, 1300 at the end.
        events = [("oom", 9000, 50), *in_pieces(50), ("segment_alloc", 300), ("alloc", 9000, 300)]
        verdict = explain(ARGUMENTS.nofrag, "", self.put(snapshot([(events, 1300)])))
        self.assertEqual(verdict["numbers"]["cached_bytes"], 500 * MIB)
        self.assertTrue(any("the last of 2" in line for line in verdict["evidence"]))

    def test_the_device_that_failed_is_chosen(self):
        quiet = [("segment_alloc", 8000), ("alloc", 1, 8000)]
        path = self.put(snapshot([(quiet, 8000), (in_pieces(50), 1000)]))
        verdict = explain(ARGUMENTS.nofrag, "", path)
        self.assertEqual(verdict["cause"], "fragmentation")
        self.assertTrue(any("device 1" in line for line in verdict["evidence"]), verdict["evidence"])
        asked = explain(ARGUMENTS.nofrag, "", path, "--trace-device", "0")
        self.assertEqual(asked["cause"], "unknown", "nothing failed there")
        self.assertEqual(run(ARGUMENTS.nofrag, path, "--trace-device", "7").returncode, 2)

    def test_another_capacity_is_another_question(self):
        path = self.put(snapshot([(in_pieces(50), 1000)]))
        verdict = explain(ARGUMENTS.nofrag, "", path, "--capacity", "300MiB")
        self.assertEqual(verdict["numbers"]["requested_bytes"], 100 * MIB)
        self.assertNotEqual(verdict["cause"], "fragmentation")

    def test_any_numbers_give_an_answer(self):
        for size, free, held in ((1 << 40, 1 << 40, 1 << 40), (0, 0, 0), (1, 0, 1000), (1 << 43, 1 << 43, 1000),
                                 (400, 1 << 42, 1000), ((1 << 44) - 1, 5, (1 << 44) - 1)):
            events = in_pieces(0)[:-1] + [("oom", size, free)]
            verdict = explain(ARGUMENTS.nofrag, "", self.put(snapshot([(events, held)])))
            self.assertLess(verdict["confidence"], 1)
        # A clock that went back.
        traces = pickle.loads(snapshot([(in_pieces(50), 1000)]))
        traces["device_traces"][0][-1]["time_us"] = 1
        self.assertEqual(explain(ARGUMENTS.nofrag, "", self.put(pickle.dumps(traces)))["cause"], "fragmentation")

    def test_replay_says_that_it_failed(self):
        path = self.put(snapshot([(in_pieces(50), 1000)]))
        done = self.replay(path)
        self.assertIn("the recorded job ended out of memory: 400.00 MiB were refused at event 15", done.stdout)
        told = json.loads(self.replay(path, "--json", "-").stdout)["traces"][0]["recorded_oom"]
        self.assertEqual(told, {"event": 15, "requested_bytes": 400 * MIB, "count": 1, "largest_bytes": 400 * MIB,
                                "live_bytes": 500 * MIB})

    def test_what_was_refused_is_said_not_to_be_in_the_numbers(self):
        # 10 GiB live, and 6 GiB refused: all that is replayed completes, on a device of 10 GiB.
        events = [("segment_alloc", 10240), *[("alloc", 1024 * (i + 1), 1024) for i in range(10)], ("oom", 6144, 5120)]
        said = self.replay(self.put(snapshot([(events, 10240)])), "--min-capacity").stdout
        self.assertIn("\n  note: 1 request was refused when this was recorded (6.00 GiB,\n"
                      "    with 10.00 GiB live) and is not in these numbers; nofrag explain says why, and what helps\n", said)
        self.assertLess(said.index("lower bound"), said.index("  note: "), "under the table")
        path = self.put(snapshot([([("oom", 9000, 0), ("alloc", 1, 100), ("oom", 9000, 50), *events, ("oom", 7, 7)], 10240)]))
        self.assertIn("note: 4 requests were refused when this was recorded (the largest: 8.79 GiB,\n"
                      "    with 100.00 MiB live) and are not in these numbers; nofrag explain says why, and what helps\n",
                      self.replay(path).stdout)
        told = json.loads(self.replay(path, "--json", "-").stdout)["traces"][0]["recorded_oom"]
        self.assertEqual(told, {"event": 11, "requested_bytes": 7 * MIB, "count": 4, "largest_bytes": 9000 * MIB,
                                "live_bytes": 100 * MIB})
        quiet = self.put(snapshot([(events[:-1], 10240)]))
        self.assertNotIn("note: ", self.replay(quiet).stdout)
        self.assertNotIn("recorded_oom", json.loads(self.replay(quiet, "--json", "-").stdout)["traces"][0])


class Recordings(Files):
    """Of live processes (process.py)."""

    def setUp(self):
        super().setUp()
        if not ARGUMENTS.library:
            self.skipTest("no library")
        self.path = str(self.folder / "job.nofrag")

    def process(self, conf, commands, kill=False, then=None):
        """Runs the commands; with `then`, up to the first that fails, and that one behind it."""
        child = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).with_name("process.py")), ARGUMENTS.library],
            env=dict(os.environ, NOFRAG_CONF="driver:sim:h100-80g,share_status:false" + conf, NOFRAG_TRACE=self.path),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        answers = []
        for command in commands:
            child.stdin.write(command + "\n")
            child.stdin.flush()
            answers.append(json.loads(child.stdout.readline()))
            if then and answers[-1] is False:
                break
        if then:
            child.stdin.write(then + "\n")
            child.stdin.flush()
            answers.append(json.loads(child.stdout.readline()))
        if kill:
            time.sleep(0.25)
            child.send_signal(signal.SIGKILL)
            _, errors = child.communicate(timeout=60)
        else:
            _, errors = child.communicate("exit\n", timeout=60)
        return answers, errors

    def test_a_limit_is_named(self):
        answers, _ = self.process(",limit:1GiB", ["alloc 600", "alloc 600"])
        self.assertEqual(answers, [True, False])
        verdict = explain(ARGUMENTS.nofrag, "", self.path)
        self.assertEqual(verdict["cause"], "limit")
        self.assertEqual(verdict["numbers"]["limit_bytes"], GIB)
        self.assertEqual(verdict["short_by_bytes"], 176 * MIB)
        self.assertGreater(verdict["numbers"]["driver_free_bytes"], 70 * GIB)
        self.assertIn("raise the limit of 1.00 GiB", verdict["advice"][0])
        self.assertIn("ended out of memory: 600.00 MiB were refused at event 1", self.replay(self.path).stdout)

    def test_the_errors_own_text_says_the_same(self):
        # A card that is filled, one step too large, and a leak, which no limit is to blame for.
        jobs = {"limit": [["alloc 64"] * 17, ["alloc 600", "alloc 600"]],
                "leak": [["alloc 2", "alloc 100", "alloc 100", "free 2"] * 460]}
        for cause, variants in jobs.items():
            for commands in variants:
                answers, _ = self.process(",limit:1GiB", commands, then="error")
                told = explain(ARGUMENTS.nofrag, answers[-1])
                recorded = explain(ARGUMENTS.nofrag, "", self.path)
                self.assertEqual((told["cause"], recorded["cause"]), (cause, cause), answers[-1])
                if cause == "limit":
                    self.assertIn("what ran into it: ", answers[-1])
                    self.assertAlmostEqual(told["confidence"], recorded["confidence"], places=2)

    def test_a_full_card(self):
        self.process("", ["alloc 50000", "alloc 50000"])
        verdict = explain(ARGUMENTS.nofrag, "", self.path)
        self.assertEqual(verdict["cause"], "model_too_large")
        self.assertIsNone(verdict["numbers"]["limit_bytes"])
        self.assertEqual(verdict["numbers"]["live_bytes"], 50000 * MIB)
        self.assertGreater(verdict["short_by_bytes"], 0)

    def test_the_very_first_request(self):
        self.process("", ["alloc 100000"])
        verdict = explain(ARGUMENTS.nofrag, "", self.path)
        self.assertEqual(verdict["cause"], "batch_too_large")
        self.assertIn("larger than the card's", verdict["evidence"][0])
        done = self.replay(self.path)
        self.assertEqual(done.returncode, 3)
        self.assertIn("there is nothing to play", done.stderr)

    def test_killed_in_its_first_second(self):
        self.process(",limit:1GiB", ["alloc 600", "alloc 600"], kill=True)
        self.assertEqual(explain(ARGUMENTS.nofrag, "", self.path)["cause"], "limit")
        done = self.replay(self.path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("killed", done.stderr)

    def test_killed_before_anything(self):
        self.process("", ["stats"], kill=True)
        verdict = explain(ARGUMENTS.nofrag, "", self.path)
        self.assertEqual(verdict["cause"], "unknown")
        self.assertIn("ended before its first block", verdict["evidence"][0])
        done = self.replay(self.path)
        self.assertEqual(done.returncode, 3)
        self.assertIn("ended before its first block", done.stderr)

    def test_a_file_of_somebody_elses_stays(self):
        pathlib.Path(self.path).write_text("a thesis")
        answers, errors = self.process("", ["alloc 100", "alloc 100"])
        self.assertEqual(answers, [True, True])
        self.assertEqual(errors, f"nofrag: nothing is recorded: {self.path}: exists and is no recording of nofrag's; "
                                 "it is left as it is\n")
        self.assertEqual(pathlib.Path(self.path).read_text(), "a thesis")
        self.assertEqual(self.process("", ["alloc 100", "error"])[0], [True, ""], "no call has failed")
        os.unlink(self.path)
        for size in (100, 200):
            self.assertEqual(self.process("", [f"alloc {size}"])[1], "")
        self.assertIn("peak live 200.00 MiB", self.replay(self.path).stdout, "an earlier recording makes room")

    def test_what_another_stream_used_comes_back(self):
        # 200 blocks of 100 MiB, one after the other, each used on a second stream.
        answers, _ = self.process(",limit:4GiB", ["shared 200 100", "stats"])
        self.assertEqual(answers[0], 200)
        self.assertLess(answers[1]["devices"][0]["peak_reserved_bytes"], GIB)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    parser.add_argument("--library")
    ARGUMENTS, others = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *others])
