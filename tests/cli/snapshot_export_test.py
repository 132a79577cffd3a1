#!/usr/bin/env python3
"""The PyTorch snapshot that `nofrag convert` writes, read by Python: is it what torch's own tools expect?

usage: snapshot_export_test.py --program NOFRAG --traces DIR --seeds DIR

memory_viz in a browser reads pickles by a small reader of its own: only its opcodes may stand in the file, and no
number of more than eight bytes. Segments must be tiled by their blocks, no two live blocks may overlap, and what
the events leave live must be what the segments say.
"""

import argparse
import pathlib
import pickle
import pickletools
import subprocess
import sys
import tempfile
import unittest

OPTIONS = argparse.Namespace()
# What PyTorch's MemoryViz.js understands.
KNOWN = """PROTO FRAME MARK STOP APPEND APPENDS LIST TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_TUPLE EMPTY_LIST EMPTY_DICT
    DICT SETITEM SETITEMS NEWTRUE NEWFALSE NONE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE
    MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET""".split()


class Refusing(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


class SnapshotTest(unittest.TestCase):
    def convert(self, source):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "out.pickle"
            command = [OPTIONS.program, "convert", str(source), "--to", "torch-snapshot", str(path)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            with open(path, "rb") as file:
                return path.read_bytes(), Refusing(file).load()

    def check_device(self, number, segments, events):
        live, ranges = {}, []
        for event in events:
            address, size = event.get("addr"), event["size"]
            if event["action"] == "alloc":
                self.assertNotIn(address, live)
                live[address] = size
            elif event["action"] == "free_requested":
                self.assertEqual(live.pop(address), size)
            elif event["action"] == "segment_alloc":
                ranges.append((address, address + size))
        blocks = {}
        for segment in segments:
            self.assertEqual(segment["device"], number)
            at = segment["address"]
            for block in segment["blocks"]:
                self.assertEqual(block["address"], at, "blocks tile their segment")
                at += block["size"]
                if block["state"] == "active_allocated":
                    blocks[block["address"]] = block["requested_size"]
            self.assertEqual(at, segment["address"] + segment["total_size"])
            self.assertIn((segment["address"], at), ranges)
            self.assertEqual(segment["requested_size"], sum(blocks.values()))
        self.assertEqual(blocks, live)

    def check_overlaps(self, events):
        """No two live blocks share a byte: sorted by address, each ends before the next begins."""
        live = {}
        for i, event in enumerate(events):
            if event["action"] == "alloc":
                live[event["addr"]] = event["size"]
            elif event["action"] == "free_requested":
                del live[event["addr"]]
            if i % max(1, len(events) // 20) == 0:
                end = 0
                for address in sorted(live):
                    self.assertGreaterEqual(address, end)
                    end = address + live[address]

    def test_recorded_job(self):
        content, data = self.convert(OPTIONS.traces / "gpt_varlen.nofrag")
        for opcode, argument, _ in pickletools.genops(content):
            self.assertIn(opcode.name, KNOWN)
            if opcode.name == "LONG1":
                self.assertLess(abs(argument), 1 << 63)
        self.assertEqual(len(data["device_traces"]), 1)
        self.check_device(0, data["segments"], data["device_traces"][0])
        self.check_overlaps(data["device_traces"][0])
        for event in data["device_traces"][0]:
            self.assertTrue({"action", "size", "stream", "time_us", "frames"} <= set(event))

    def test_devices_sites_and_out_of_memory(self):
        _, data = self.convert(OPTIONS.seeds / "torch_snapshot_fuzz" / "torch_two_devices.pickle.gz")
        self.assertEqual([bool(events) for events in data["device_traces"]], [True, False, True])
        for number, events in enumerate(data["device_traces"]):
            self.check_device(number, [s for s in data["segments"] if s["device"] == number], events)
        oom = [event for event in data["device_traces"][0] if event["action"] == "oom"]
        self.assertEqual([(event["size"], event["device_free"]) for event in oom], [(999 << 20, 123 << 20)])
        frames = [event["frames"] for event in data["device_traces"][0] if event["action"] == "alloc"]
        self.assertIn([{"name": "step", "filename": "job/train.py", "line": 77}], frames)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--traces", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=pathlib.Path, required=True)
    parser.parse_args(namespace=OPTIONS)
    unittest.main(argv=[sys.argv[0], "-v"])


if __name__ == "__main__":
    main()
