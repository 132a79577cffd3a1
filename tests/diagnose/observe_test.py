#!/usr/bin/env python3
"""Metrics, status pages, `nofrag top`, reports and headroom of live processes on the simulated device.

usage: observe_test.py --nofrag PROGRAM --library libnofrag.so. Metrics are read by the parser of
prometheus_client (Debian: python3-prometheus-client); without it those tests are skipped.
"""

import argparse
import fcntl
import json
import os
import pathlib
import pty
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.request

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    text_string_to_metric_families = None

from cards import card_of
from explain import explain

ARGUMENTS = None
MIB = 1 << 20
FOLDER = pathlib.Path(f"/dev/shm/nofrag-{os.geteuid()}")


class Process:
    """process.py, driven."""

    def __init__(self, conf="", device="h100-80g", **environment):
        conf = f"driver:sim:{device}" + ("," + conf if conf else "")
        self.child = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).with_name("process.py")), ARGUMENTS.library],
            env=dict(os.environ, NOFRAG_CONF=conf, **environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pid = self.child.pid

    def __call__(self, command):
        self.child.stdin.write(command + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        assert line, self.child.stderr.read()
        return json.loads(line)

    def close(self):
        """Ends it as a program ends; its stderr."""
        if self.child.poll() is None:
            self("exit")
        _, errors = self.child.communicate(timeout=60)
        assert self.child.returncode == 0, (self.child.returncode, errors)
        return errors


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return page.read().decode()


def eventually(what, seconds=10):
    """The first true answer of `what`."""
    end = time.monotonic() + seconds
    while True:
        try:
            answer = what()
        except OSError:
            answer = None
        if answer or time.monotonic() > end:
            return answer
        time.sleep(0.05)


def samples(text):
    """{(name, the label beside device, pool and pid): value} by Prometheus' own parser."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert {"device", "pool", "pid"} <= labels.keys(), sample
            more = [labels[name] for name in ("cause", "rung", "call", "kind") if name in labels]
            key = (sample.name, *more)
            assert key not in found, key
            found[key] = sample.value
    return found


def top():
    done = subprocess.run([ARGUMENTS.nofrag, "top", "--once", "--json"], capture_output=True, text=True, check=True)
    return {process["pid"]: process for process in json.loads(done.stdout)["processes"]}


@unittest.skipIf(text_string_to_metric_families is None, "no python3-prometheus-client")
class Metrics(unittest.TestCase):
    def test_counters_are_the_sums_of_what_happened(self):
        port = free_port()
        process = Process("limit:4GiB", NOFRAG_METRICS=str(port))
        for _ in range(20):
            self.assertTrue(process("alloc 100"))
        for _ in range(7):
            process("alloc 0.01")
        process("free 9")
        for _ in range(3):
            self.assertFalse(process("fail 8000"))
        stats = process("stats")
        seen = samples(eventually(lambda: scrape(port)))
        process.close()
        device = stats["devices"][0]
        self.assertEqual(seen[("nofrag_allocations_total",)], 27)
        self.assertEqual(seen[("nofrag_frees_total",)], 9)
        self.assertEqual(seen[("nofrag_live_blocks",)], 18)
        self.assertEqual(seen[("nofrag_live_bytes",)], 18 * 100 * MIB)
        self.assertEqual(seen[("nofrag_live_bytes",)], device["live_bytes"])
        self.assertEqual(seen[("nofrag_reserved_bytes",)], device["reserved_bytes"])
        self.assertEqual(seen[("nofrag_pending_bytes",)], device["pending_bytes"])
        self.assertEqual(seen[("nofrag_limit_bytes",)], 4 << 30)
        self.assertEqual(sum(v for k, v in seen.items() if k[0] == "nofrag_oom_total"), 3)
        rungs = {k[1]: v for k, v in seen.items() if k[0] == "nofrag_rung_total"}
        self.assertEqual(sum(rungs.values()), 30)
        self.assertEqual(rungs["failed"], 3)
        for name, count in rungs.items():
            self.assertEqual(count, 3 if name == "failed" else device["rung_" + name], name)
        calls = stats["driver"]["calls"]
        self.assertEqual({k[1]: v for k, v in seen.items() if k[0] == "nofrag_driver_calls_total"}, calls)
        seconds = sum(v for k, v in seen.items() if k[0] == "nofrag_driver_seconds_total")
        self.assertAlmostEqual(seconds, stats["driver"]["total_microseconds"] / 1e6, delta=1e-5)
        self.assertTrue(0 <= seen[("nofrag_fragmentation_ratio",)] <= 1)
        self.assertNotIn(("nofrag_headroom_seconds",), seen, "no trend, no sample")

    def test_a_taken_port(self):
        port = free_port()
        first = Process(NOFRAG_METRICS=str(port))
        first("alloc 1")
        self.assertIn(f'pid="{first.pid}"', eventually(lambda: scrape(port)))
        second = Process(NOFRAG_METRICS=str(port))
        second("alloc 1")
        found = eventually(lambda: [p for p in range(port + 1, port + 32) if self.pid_at(p) == second.pid])
        self.assertTrue(found)
        self.assertIn(f"on port {found[0]}", second.close())
        self.assertEqual(first.close(), "")

    @staticmethod
    def pid_at(port):
        try:
            return int(scrape(port).split('pid="')[1].split('"')[0])
        except OSError:
            return None

    def test_a_port_that_cannot_be_had_harms_nobody(self):
        unreadable = {address: f'NOFRAG_METRICS: option metrics: "{address}" ' for address in ("not a port", "99999", "file:")}
        for address in (*unreadable, "203.0.113.7:9400", "file:/nonexistent/folder/metrics"):
            process = Process(NOFRAG_METRICS=address)
            self.assertTrue(process("alloc 10"))
            time.sleep(0.2)
            self.assertTrue(process("alloc 10"))
            errors = process.close()
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn(unreadable.get(address, "metrics:" + address), errors)

    def test_a_pipe_or_a_device_is_not_replaced_by_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "metrics")
            os.mkfifo(path)
            process = Process(NOFRAG_METRICS=f"file:{path}")
            self.assertTrue(process("alloc 10"))
            time.sleep(0.2)
            self.assertTrue(process("alloc 10"))
            self.assertIn(f"metrics:file:{path} cannot be written; there are none", process.close())
            self.assertTrue(path.is_fifo())
            self.assertEqual([entry.name for entry in pathlib.Path(folder).iterdir()], ["metrics"])

    def test_nothing_but_its_page(self):
        port = free_port()
        process = Process(NOFRAG_METRICS=str(port))
        process("alloc 1")
        self.assertIn("nofrag_live_bytes", eventually(lambda: scrape(port)))
        for path, status, text in (("/", 200, "/metrics"), ("/metrics?x=1", 200, "nofrag_live_bytes"),
                                   ("/metricsx", 404, "/metrics"), ("/favicon.ico", 404, "/metrics")):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()
            self.assertTrue(answer.startswith(f"HTTP/1.0 {status} "), answer)
            self.assertIn(text, answer.split("\r\n\r\n", 1)[1])
            self.assertEqual("nofrag_live_bytes" in answer, path.startswith("/metrics?"), path)
        process.close()

    def test_zero_is_off_and_any_port_is_told(self):
        for off in ("0", "off"):
            process = Process("log:info", NOFRAG_METRICS=off)
            process("alloc 1")
            time.sleep(0.2)
            self.assertNotIn("metrics", process.close(), off)
        process = Process(NOFRAG_METRICS="127.0.0.1:0")
        process("alloc 1")
        time.sleep(0.3)
        errors = process.close()
        self.assertRegex(errors, r"^nofrag: metrics are served on port [1-9]\d+\n$")

    def test_slow_rude_and_absent_clients(self):
        port = free_port()
        process = Process(NOFRAG_METRICS=str(port))
        process("alloc 1")
        eventually(lambda: scrape(port))
        silent = socket.create_connection(("127.0.0.1", port))
        gone = socket.create_connection(("127.0.0.1", port))
        gone.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        gone.close()
        rude = socket.create_connection(("127.0.0.1", port))
        rude.sendall(b"\x00\xff" * 5000)
        started = time.monotonic()
        for _ in range(50):
            self.assertTrue(process("alloc 1"))
        self.assertLess(time.monotonic() - started, 5, "clients never hold up the process")
        self.assertIn("nofrag_live_bytes", eventually(lambda: scrape(port)))
        silent.close()
        rude.close()
        process.close()

    def test_textfile(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "nofrag.prom"
            process = Process(NOFRAG_METRICS=f"file:{path}")
            process("alloc 1")
            self.assertTrue(eventually(lambda: path.exists() and samples(path.read_text())[("nofrag_allocations_total",)] == 1))
            process.close()

    def test_a_fork_leaves_the_parent_its_port(self):
        port = free_port()
        process = Process(NOFRAG_METRICS=str(port))
        process("alloc 1")
        eventually(lambda: scrape(port))
        self.assertEqual(process("fork"), 0)
        self.assertIn("nofrag_live_bytes", scrape(port))
        self.assertIn(process.pid, top())
        process.close()


@unittest.skipUnless(os.access("/dev/shm", os.W_OK), "no /dev/shm")
class Top(unittest.TestCase):
    def test_sees_processes_until_they_end(self):
        process = Process("limit:1GiB")
        process("alloc 512")
        process("fail 600")
        seen = eventually(lambda: (top().get(process.pid) or {}).get("devices"))
        eventually(lambda: top()[process.pid]["devices"][0]["last_oom_cause"])
        device = top()[process.pid]["devices"][0]
        self.assertTrue(seen)
        self.assertEqual(device["live_bytes"], 512 * MIB)
        self.assertEqual(device["limit_bytes"], 1 << 30)
        self.assertEqual(device["failed_allocations"], 1)
        self.assertIsNotNone(device["last_oom_cause"])
        self.assertEqual((FOLDER / str(process.pid)).stat().st_mode & 0o777, 0o600)
        self.assertEqual(FOLDER.stat().st_mode & 0o777, 0o700)
        command = top()[process.pid]["command"]
        self.assertEqual(command, command.strip())
        self.assertNotEqual(command, "")
        table = subprocess.run([ARGUMENTS.nofrag, "top", "--once"], capture_output=True, text=True, check=True).stdout
        line = next(line for line in table.splitlines() if line.split()[:1] == [str(process.pid)])
        program, _, rest = command.partition(" ")
        self.assertTrue(line.rstrip().endswith((os.path.basename(program) + " " + rest).strip()[:60].rstrip()), line)
        process.close()
        self.assertFalse((FOLDER / str(process.pid)).exists())
        self.assertNotIn(process.pid, top())

    def test_a_killed_process_is_swept_away(self):
        process = Process()
        process("alloc 1")
        self.assertTrue(eventually(lambda: process.pid in top()))
        process.child.send_signal(signal.SIGKILL)
        process.child.communicate()
        self.assertNotIn(process.pid, top())
        self.assertFalse((FOLDER / str(process.pid)).exists())

    def test_hostile_pages(self):
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        page = FOLDER / str(os.getpid())
        real = Process()
        real("alloc 1")
        eventually(lambda: real.pid in top())
        good = (FOLDER / str(real.pid)).read_bytes()
        contents = [b"", b"\xff" * 4096, b"x" * 100, good, good[:-1], bytes(8) + b"\x41" * 8000, good * 100]
        try:
            for data in contents:
                page.write_bytes(data)
                self.assertNotIn(os.getpid(), top())
            page.unlink()
            page.symlink_to("/etc/passwd")
            top()
            page.unlink()
            os.mkfifo(page)
            top()
        finally:
            page.unlink()
        (FOLDER / "not-a-pid").write_text("?")
        top()
        (FOLDER / "not-a-pid").unlink()
        real.close()

    def frame(self, columns, rows):
        """The last but one screen that `nofrag top` shows on a terminal of this size, as lines."""
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        shown = subprocess.Popen([ARGUMENTS.nofrag, "top", "--interval", "0.1"], stdout=its, stderr=subprocess.PIPE)
        os.close(its)
        text = b""
        while text.count(b"\x1b[H\x1b[J") < 3:
            text += os.read(ours, 65536)
        shown.send_signal(signal.SIGINT)
        self.assertEqual((shown.wait(10), shown.stderr.read()), (-signal.SIGINT, b""), "Ctrl-C ends it as it ends others")
        shown.stderr.close()
        os.close(ours)
        lines = text.split(b"\x1b[H\x1b[J")[-2].decode(errors="replace").split("\r\n")
        self.assertEqual(lines.pop(), "")
        return lines

    def test_a_small_terminal_shows_what_fits(self):
        processes = [Process() for _ in range(4)]
        for process in processes:
            process("alloc 1")
            eventually(lambda: process.pid in top())
        sizes = (400, 50), (40, 50), (400, 5), (400, 50)

        def frames():
            """None while other processes of this user, other tests' perhaps, come and go."""
            shown = [self.frame(*size) for size in sizes]
            first, last = ([line.split()[0] for line in shown[i]] for i in (0, -1))
            return shown[:-1] if first == last and len(shown[1]) == len(first) else None

        shown = eventually(frames)
        self.assertTrue(shown, "one row each, without wrapping")
        whole, narrow, low = shown
        self.assertGreaterEqual(len(whole), 5)
        self.assertIn("command", whole[0])
        self.assertEqual([len(line) for line in narrow], [40] * len(whole), "one row each, without wrapping")
        self.assertEqual(narrow[0], whole[0][:40])
        self.assertEqual((len(low), low[0]), (4, whole[0]), "the heading stays in sight, and the last row is free")
        self.assertEqual(low[-1], f"... and {len(whole) - 3} more")
        for process in processes:
            process.close()

    def test_share_status_false_leaves_nothing(self):
        process = Process("share_status:false")
        process("alloc 1")
        time.sleep(0.3)
        self.assertFalse((FOLDER / str(process.pid)).exists())
        process.close()


class Reports(unittest.TestCase):
    def test_three_lines_that_explain_reads_back(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        process = Process("share_status:false", device=card_of(2 << 30, folder.name))
        while process("alloc 64"):
            pass
        text = process("error")
        lines = text.splitlines()
        self.assertEqual([line.split(":")[0] for line in lines[1:]], ["cause", "why", "do"])
        self.assertIn("model_too_large", lines[1])
        verdict = explain(ARGUMENTS.nofrag, text)
        self.assertEqual(verdict["cause"], "model_too_large")
        self.assertEqual(verdict["short_by_bytes"], 64 * MIB)
        self.assertFalse(any("nofrag, which joins" in advice for advice in verdict["advice"]))
        process.close()

    def test_the_full_report(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "oom.txt"
            process = Process(f"limit:1GiB,share_status:false,oom_report:{path}")
            process("alloc 512")
            process("fail 600")
            process("fail 700")
            process.close()
            text = path.read_text()
            self.assertEqual(text.count("==== nofrag: out of memory"), 2)
            for part in ("cause: ", "what to do", "largest holders", "1 blocks of 512.00 MiB", "last rung", "to play it again"):
                self.assertIn(part, text)
        process = Process("limit:1GiB,share_status:false,oom_report:stderr")
        for _ in range(15):
            process("fail 2000")
        self.assertEqual(process.close().count("==== nofrag: out of memory"), 10)
        process = Process("limit:1GiB,share_status:false,oom_report:/nonexistent/x")
        process("fail 2000")
        process("fail 2000")
        self.assertEqual(process.close().count("cannot be written"), 1)


class HeadroomCalls(unittest.TestCase):
    def test_bytes_and_silence(self):
        process = Process("limit:4GiB,share_status:false")
        process("alloc 1024")
        status, left, seconds, confidence = process("headroom")
        self.assertEqual((status, left), (0, 3 << 30))
        self.assertLess(seconds, 0)
        self.assertEqual(confidence, 0)
        process.close()

    def test_a_growing_process_is_told_in_time(self):
        process = Process("limit:4GiB,share_status:false")
        for _ in range(16):
            process("alloc 64")
        process("callback set 0 3600")
        self.assertEqual(process("calls"), [])
        forecast = None
        for _ in range(60):
            process("alloc 32")
            process("alloc 160")
            process("free 1")
            time.sleep(0.02)
            if process("headroom")[2] >= 0:
                forecast = process("headroom")
        self.assertIsNotNone(forecast)
        self.assertGreater(forecast[3], 0.5)
        calls = eventually(lambda: process("calls"))
        self.assertTrue(calls)
        self.assertEqual(calls[0][0], 1)
        process("callback none 0 0")
        process.close()

    def test_low_bytes_begin_and_end(self):
        process = Process("limit:4GiB,share_status:false")
        process("alloc 1024")
        process(f"callback set {1 << 30} 0")
        time.sleep(0.4)
        self.assertEqual(process("calls"), [])
        process("alloc 2500")
        self.assertTrue(eventually(lambda: [c for c in process("calls") if c[0] == 1]))
        process("free 2")
        for _ in range(400):  # so that what was high is past
            process("alloc 1")
            process("free 1")
        self.assertTrue(eventually(lambda: process("calls")[-1][0] == 0))
        process("callback none 0 0")
        process.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    parser.add_argument("--library", required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
