#!/usr/bin/env python3
"""`import nofrag` on the simulated device, in one process.

usage: nofrag_package_test.py LIBNOFRAG LAYOUT
"""

import os
import subprocess
import sys
import tempfile
import unittest

LIBRARY, LAYOUT = (sys.argv.pop(1) for _ in range(2)) if len(sys.argv) > 2 else (None, None)
sys.path.insert(0, LAYOUT)
os.environ["NOFRAG_LIBRARY"] = LIBRARY
os.environ["NOFRAG_CONF"] = "driver:sim:h100-80g"

import nofrag  # noqa: E402 (the environment comes first)

MIB, GIB = 1 << 20, 1 << 30


def device():
    return nofrag.device_stats(0)


class Package(unittest.TestCase):
    def tearDown(self):
        nofrag.set_limit(None)
        nofrag.set_memory_fraction(1.0)
        nofrag.check()
        self.assertEqual(device()["live_bytes"], 0)

    def test_what_it_is(self):
        self.assertEqual(nofrag.version().count("."), 2)
        self.assertEqual(nofrag.device_count(), 1)
        self.assertEqual(nofrag.find_library(), os.path.realpath(LIBRARY))

    def test_blocks_and_numbers(self):
        block = nofrag.malloc(5 * MIB)
        self.assertEqual(device()["live_bytes"], 5 * MIB)
        self.assertGreaterEqual(device()["peak_live_bytes"], 5 * MIB)
        nofrag.free(block)
        nofrag.reset_peaks()
        self.assertEqual(device()["peak_live_bytes"], 0)
        self.assertIn("docs/stats.md", nofrag.stats_text())
        self.assertIsNone(nofrag.malloc(0))
        for size in (-1, 1 << 64, (1 << 64) + 1024):
            with self.assertRaisesRegex(ValueError, f"a block cannot have {size} bytes"):
                nofrag.malloc(size)
        self.assertIsNone(nofrag.device_stats(7))

    def test_trim(self):
        nofrag.free(nofrag.malloc(64 * MIB))
        held = device()["reserved_bytes"]
        self.assertGreaterEqual(held, 64 * MIB)
        self.assertEqual(nofrag.trim(), held)
        self.assertEqual(device()["reserved_bytes"], 0)
        nofrag.free(nofrag.malloc(64 * MIB))
        held = device()["reserved_bytes"]
        for wrong in (-1, 1 << 64):
            self.assertRaises(ValueError, nofrag.trim, keep=wrong)
        self.assertEqual(device()["reserved_bytes"], held, "what is wrong changes nothing")

    def test_numbers_that_would_be_cut_off(self):
        block = nofrag.malloc(MIB)
        for wrong in (block + (1 << 64), 1 << 64, -1):
            self.assertRaises(ValueError, nofrag.free, wrong)
            self.assertRaises(ValueError, nofrag.record_stream, wrong, None)
        for wrong in (1 << 32, -1):
            for call in (nofrag.check, nofrag.reset_peaks, nofrag.oom_message, nofrag.snapshot, nofrag.PoolHandle):
                self.assertRaises(ValueError, call, wrong)
            self.assertRaises(ValueError, nofrag.malloc, MIB, device=wrong)
            self.assertRaises(ValueError, nofrag.set_limit, GIB, device=wrong)
            self.assertRaises(ValueError, nofrag.set_memory_fraction, 0.5, device=wrong)
            self.assertRaises(ValueError, nofrag.trim, device=wrong)
        self.assertRaises(TypeError, nofrag.malloc, MIB, device="cuda:0")
        self.assertRaises(TypeError, nofrag.free, "x")
        self.assertIsNone(nofrag.limit())
        nofrag.free(block)

    def test_limits(self):
        self.assertIsNone(nofrag.limit())
        nofrag.set_limit(GIB)
        self.assertEqual(nofrag.limit(), GIB)
        with self.assertRaisesRegex(nofrag.NofragError, "limit") as caught:
            nofrag.malloc(2 * GIB)
        self.assertEqual(caught.exception.status, 2)
        self.assertIn("2.00 GiB", nofrag.oom_message())
        for wrong in (-1, 1 << 64, (1 << 64) + GIB):
            self.assertRaises(ValueError, nofrag.set_limit, wrong)
        for wrong in ("24GiB", 1.5e9):
            self.assertRaises(TypeError, nofrag.set_limit, wrong)
        self.assertEqual(nofrag.limit(), GIB, "what is wrong changes nothing")
        nofrag.set_limit(None)
        nofrag.set_memory_fraction(0.5)
        self.assertAlmostEqual(nofrag.limit() / GIB, 39.6, delta=0.5)

    def test_what_is_no_stream(self):
        for wrong in ("x", -1, 1 << 64, 1.5):
            self.assertRaises(TypeError, nofrag.malloc, 10, stream=wrong)
        self.assertRaises(ValueError, nofrag.trace_start, "a\0b")
        self.assertRaises(ValueError, nofrag.trace_mark, "a\0b")

    def test_pools(self):
        with nofrag.pool() as pool:
            inside = nofrag.malloc(3 * MIB)
            with nofrag.pool() as other:
                deeper = nofrag.malloc(3 * MIB)
        more = pool.malloc(MIB)
        self.assertNotEqual(pool.id, other.id)
        with nofrag.pool(pool):
            again = nofrag.malloc(MIB)
        for block in (inside, deeper, more, again):
            nofrag.free(block)
        pool.release()
        pool.release()  # nothing is left to undo
        other.release()
        with self.assertRaises(nofrag.NofragError):
            pool.malloc(MIB)

    def test_streams_of_others(self):
        class OfTorch:
            cuda_stream = 0x200

        class OfCupy:
            ptr = 0x300

        block = nofrag.malloc(MIB, stream=OfTorch())
        nofrag.record_stream(block, OfCupy())
        nofrag.free(block)

    def test_snapshot(self):
        with nofrag.pool() as pool:
            inside = nofrag.malloc(3 * MIB, stream=0x200)
        blocks = [nofrag.malloc(1000) for _ in range(3000)]  # more than one call has room for
        del_me = nofrag.malloc(40 * MIB)
        nofrag.free(del_me)
        shown = nofrag.snapshot()
        live = {one["address"]: one for one in shown if one["state"] == "live"}
        self.assertEqual(set(live), {inside, *blocks})
        self.assertEqual((live[inside]["pool"], live[inside]["stream"]), (pool.id, 0x200))
        self.assertEqual((live[blocks[0]]["requested_size"], live[blocks[0]]["size"]), (1000, 1024))
        self.assertEqual(sum(one["size"] for one in shown), device()["reserved_bytes"])
        addresses = [one["address"] for one in shown]
        self.assertEqual(addresses, sorted(addresses))
        self.assertTrue(any(one["state"] in ("free", "kept") for one in shown))
        for block in (inside, *blocks):
            nofrag.free(block)
        pool.release()
        with self.assertRaisesRegex(nofrag.NofragError, "there is no device 9"):
            nofrag.snapshot(9)
        self.assertEqual(nofrag.current().lib.nofrag_spans(0, None, None), 3)  # NOFRAG_INVALID_ARGUMENT

    def test_recording(self):
        if not nofrag.current().has("nofrag_trace_start"):
            with self.assertRaisesRegex(nofrag.NofragError, "has no nofrag_trace_start"):
                nofrag.trace_start("x")
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.nofrag")
            with nofrag.recording(path):
                nofrag.trace_mark("step 1")
                nofrag.free(nofrag.malloc(5 * MIB))
                nofrag.trace_flush()
                with self.assertRaises(nofrag.NofragError):
                    nofrag.trace_start(os.path.join(folder, "other.nofrag"))
            self.assertGreater(os.path.getsize(path), 100)
            with self.assertRaises(nofrag.NofragError):
                nofrag.trace_start(os.path.join(folder, "nowhere", "job.nofrag"))
        with self.assertRaises(nofrag.NofragError):
            nofrag.trace_stop()

    def test_errors_have_status_and_sentence(self):
        with self.assertRaisesRegex(nofrag.NofragError, "there is no device 9") as caught:
            nofrag.trim(device=9)
        self.assertEqual(caught.exception.status, 3)
        with self.assertRaises(nofrag.NofragError) as caught:
            nofrag.free(4096)
        self.assertEqual(caught.exception.status, 4)
        with self.assertRaisesRegex(nofrag.NofragError, "in use already"):
            nofrag.current("/elsewhere/libnofrag.so")


class Finding(unittest.TestCase):
    def python(self, **variables):
        environment = {"PYTHONPATH": LAYOUT, "PYTHONDONTWRITEBYTECODE": "1", **variables}
        script = "import nofrag; print(nofrag.current().path)"
        return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)

    def test_beside_the_layout(self):
        result = self.python()
        self.assertEqual(result.stdout.strip(), os.path.realpath(LIBRARY), result.stderr)

    def test_a_missing_one_is_named(self):
        result = self.python(NOFRAG_LIBRARY="/nowhere/libnofrag.so")
        self.assertIn("NOFRAG_LIBRARY names /nowhere/libnofrag.so, which does not exist", result.stderr)

    def test_the_preloaded_one_is_it(self):
        result = self.python(LD_PRELOAD=LIBRARY, NOFRAG_LIBRARY="/nowhere/libnofrag.so")
        self.assertEqual(result.stdout.strip(), os.path.realpath(LIBRARY), result.stderr)


if __name__ == "__main__":
    unittest.main()
