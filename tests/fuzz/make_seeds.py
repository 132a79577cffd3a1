#!/usr/bin/env python3
"""Writes the small files of foreign formats that the importers' tests read and their fuzzers start from.

usage: make_seeds.py [--check]     into tests/fuzz/corpus/; --check only compares, exit 1 on a difference

Each file is laid out field by field as its tool writes it: PyTorch's snapshots of several versions by Python's
own pickle module, RMM's log by its pattern, Nsight Systems' table by sqlite3. Contents are made up and tell
one story a format, which tests/unit/importers knows.
"""

import argparse
import gzip
import json
import pathlib
import pickle
import sqlite3
import struct
import sys
import tempfile
import zlib

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
MIB = 1 << 20
BASE = 0x7F3A40000000
START = 1_700_000_000_000_000  # microseconds since 1970


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


TORCH_FRAME = frame("linear", "/usr/lib/python3/site-packages/torch/nn/functional.py", 114)
FORWARD = [TORCH_FRAME, frame("forward", "/home/me/job/model.py", 31)]
STEP = [frame("step", "/home/me/job/train.py", 77)]


def event(action, addr, size, time=None, stream=0, frames=(), **more):
    made = {"action": action, "addr": addr, "size": size, "stream": stream}
    if action == "oom":
        made["device_free"] = made.pop("addr")
    if time is not None:
        made["time_us"] = START + time
    made["frames"] = list(frames)
    made.update(more)
    return made


def block(address, size, requested, state, frames=()):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": list(frames)}


def segment(blocks, device=0, stream=0, **more):
    live = [b for b in blocks if b["state"] == "active_allocated"]
    made = {
        "device": device,
        "address": blocks[0]["address"],
        "total_size": sum(b["size"] for b in blocks),
        "allocated_size": sum(b["size"] for b in live),
        "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "requested_size": sum(b["requested_size"] for b in live),
        "stream": stream,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    made.update(more)
    return made


def settings():
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "roundup_power2_divisions": {"1": 0, "2": 0},
    }


def ring(timed=True, **more):
    """A ring that begins in the middle: A (4 MiB) is freed in it, B (2 MiB) lives throughout; C and D are its
    own; D waits for another stream; an out-of-memory error; E is live at the end."""

    def at(time):
        return time if timed else None

    a, b, c, d, e = (BASE + n * 4 * MIB for n in range(5))
    events = [
        event("segment_alloc", BASE, 20 * MIB, at(0)),
        event("alloc", c, 3 * MIB, at(10), frames=FORWARD, **more),
        event("free_requested", a, 4 * MIB, at(20)),
        event("free_completed", a, 4 * MIB, at(20)),
        event("alloc", d, 1 * MIB, at(30), stream=0x5581, frames=STEP, **more),
        event("free_requested", d, 1 * MIB, at(40), stream=0x5581),
        event("oom", 123 * MIB, 999 * MIB, at(45)),
        event("alloc", e, 4 * MIB - 100, at(50), frames=FORWARD, **more),
        event("free_completed", d, 1 * MIB, at(60), stream=0x5581),
        event("free_requested", c, 3 * MIB, at(70)),
        event("free_completed", c, 3 * MIB, at(71)),
        event("snapshot", 0, 0, at(80)),
    ]
    blocks = [
        block(a, 4 * MIB, 0, "inactive"),
        block(b, 4 * MIB, 2 * MIB, "active_allocated", STEP),
        block(c, 4 * MIB, 0, "inactive"),
        block(d, 4 * MIB, 0, "inactive"),
        block(e, 4 * MIB, 4 * MIB - 100, "active_allocated", FORWARD),
    ]
    return events, blocks


def without_address(blocks):
    return [{key: value for key, value in b.items() if key not in ("address", "requested_size")} for b in blocks]


def torch_snapshots():
    events, blocks = ring()
    plain = {"segments": [segment(blocks)], "device_traces": [events], "allocator_settings": settings()}
    yield "torch_2.4.pickle", pickle.dumps({**plain, "external_annotations": []}, 4)
    newest, blocks = ring(compile_context="0/0", user_metadata="", pool_id=(0, 0))
    blocks[3]["state"] = "active_pending_free"
    yield "torch_2.14.pickle", pickle.dumps(
        {
            "segments": [segment(blocks, is_expandable=True)],
            "device_traces": [newest, []],
            "allocator_settings": {**settings(), "graph_capture_record_stream_reuse": False},
            "external_annotations": [{"stage": "START", "name": "step", "device": 0, "time_us": START}],
            "host_segments": [],
            "host_traces": [],
        },
        5,
    )
    # 2.0: no requested sizes, blocks with a history, addresses only of segments.
    old_blocks = without_address(blocks)
    old_blocks[3]["state"] = "inactive"
    for made, requested in ((old_blocks[1], 2 * MIB), (old_blocks[4], 4 * MIB - 100)):
        made["history"] = [{"addr": 0, "real_size": requested, "frames": made.pop("frames")}]
    old_segment = segment(blocks)
    for key in ("segment_pool_id", "is_expandable", "requested_size", "frames"):
        del old_segment[key]
    old_segment["blocks"] = old_blocks
    yield "torch_2.0.pickle", pickle.dumps({"segments": [old_segment], "device_traces": [events]}, 2)
    # 1.13: the list of segments is all there is.
    yield "torch_1.13.pickle", pickle.dumps([old_segment], 2)
    untimed, blocks = ring(timed=False)
    yield "torch_no_times.pickle", pickle.dumps({"segments": [segment(blocks)], "device_traces": [untimed]}, 4)
    second = [event("alloc", BASE, 5 * MIB, 5, frames=STEP), event("alloc", BASE + 8 * MIB, 512, 6)]
    yield "torch_two_devices.pickle.gz", gzip.compress(
        pickle.dumps({"segments": [segment(blocks)], "device_traces": [events, [], second]}, 4), mtime=0
    )

    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    yield "torch_evil.pickle", pickle.dumps({"segments": [Evil()], "device_traces": []}, 4)


def memory(ts, addr, size, total, index, device=0, kind=1):
    args = {
        "Total Reserved": 64 * MIB,
        "Total Allocated": total,
        "Bytes": size,
        "Addr": addr,
        "Device Id": device,
        "Device Type": kind,
        "Ev Idx": index,
    }
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 4242,
        "tid": 4242,
        "ts": ts,
        "args": args,
    }


def kineto():
    """6 MiB are live before: 4 are freed in the trace, 2 are not. Peak 11 MiB."""
    ts = 1_694_039_445_123_456
    listed = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 4242, "tid": 4242, "ts": ts, "dur": 3, "args": {}},
        memory(ts + 10, BASE, 3 * MIB, 9 * MIB, 7),
        memory(ts + 30, BASE + 64 * MIB, -4 * MIB, 7 * MIB, 13),
        memory(ts + 20, BASE + 8 * MIB, 2 * MIB, 11 * MIB, 9),
        memory(ts + 25, 94_000_000_000_000, 4096, 4096, 11, device=-1, kind=0),
        memory(ts + 40, BASE, -3 * MIB, 4 * MIB, 15),
    ]
    top = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000}],
        "profile_memory": 1,
        "with_stack": 0,
        "traceEvents": listed,
        "traceName": "./trace.json",
    }
    yield "kineto.json", json.dumps(top, indent=1).encode()
    for one in listed:
        one["ts"] = one["ts"] - ts + 0.125 + 5_000_000_000
    yield "kineto_fractions.json.gz", gzip.compress(json.dumps({"traceEvents": listed}).encode(), mtime=0)
    host = [memory(ts, 94_000_000_000_000, 4096, 4096, 1, device=-1, kind=0)]
    yield "kineto_host_only.json", json.dumps({"traceEvents": host}).encode()


def timelines():
    ns = 1_700_000_000_000_000_000
    rows = [
        [-1, 1, 4 * MIB, 0],
        [ns, 2, 2 * MIB, 4],
        [ns + 1000, 2, 2 * MIB, 7],
        [ns + 2000, 3, -2 * MIB, 7],
        [ns + 2000, 3, 2 * MIB, 5],
        [ns + 3000, 4, -2 * MIB, 4],
        [ns + 4000, 2, 1536, 3],
        [ns + 4000, 4, -1536, 3],
        [ns + 5000, 4, -2 * MIB, 5],
    ]
    yield "timeline.raw.json.gz", gzip.compress(json.dumps(rows).encode(), mtime=0)
    us = ns // 1000
    sizes = [
        [0, 4 * MIB, 0, 0, 0, 0, 0, 0, 0],
        [0, 4 * MIB, 0, 0, 0, 2 * MIB, 0, 0, 0],
        [0, 4 * MIB, 0, 0, 0, 2 * MIB, 0, 0, 3 * MIB],
        [0, 4 * MIB, 0, 0, 0, 0, 0, 0, 1 * MIB],
    ]
    yield "timeline.json", json.dumps([[us, us, us + 1, us + 2], sizes]).encode()


def rmm_log(point):
    lines = [
        ("11111", f"23:59:59{point}999990", "allocate", "0x7f5b7c000000", 1000, "0"),
        ("22222", f"00:00:00{point}000010", "allocate", "0x7f5b7c000400", 2 * MIB, "0x55d0a1b2c3d0"),
        ("11111", f"00:00:00{point}000020", "allocate", "(nil)", 0, "0"),
        ("11111", f"00:00:00{point}000030", "allocate failure", "(nil)", 99 * MIB, "0x2"),
        # The free of the first was written late: the address is in use again.
        ("22222", f"00:00:00{point}000040", "allocate", "0x7f5b7c000000", 1024, "0x1"),
        ("11111", f"00:00:00{point}000041", "free", "0x7f5b7c000000", 1000, "0"),
        ("22222", f"00:00:00{point}000050", "free", "0x7f5b7c000400", 2 * MIB, "0x55d0a1b2c3d0"),
        ("22222", f"00:00:00{point}000060", "free", "0x7f5b7d000000", 512, "0"),
        ("22222", f"00:00:00{point}000070", "free", "0x7f5b7c000000", 1024, "0x1"),
    ]
    text = "Thread,Time,Action,Pointer,Size,Stream\n"
    return (text + "".join(",".join(map(str, line)) + "\n" for line in lines)).encode()


def rmm():
    yield "rmm.csv", rmm_log(".")
    yield "rmm_old.dev0.csv", rmm_log(":")


def nsys_database(columns, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.sqlite"
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA page_size=512")
            names = ", ".join(f"{name} {kind}" for name, kind in columns)
            database.execute(f"CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS ({names})")
            marks = ", ".join("?" for _ in columns)
            database.executemany(f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES ({marks})", rows)
        database.close()
        return path.read_bytes()


def nsys():
    old = [("start", "INTEGER NOT NULL"), ("globalPid", "INTEGER NOT NULL"), ("deviceId", "INTEGER NOT NULL")]
    old += [("contextId", "INTEGER NOT NULL"), ("address", "INTEGER NOT NULL"), ("pc", "INTEGER NOT NULL")]
    old += [("bytes", "INTEGER NOT NULL"), ("memKind", "INTEGER NOT NULL")]
    old += [("memoryOperationType", "INTEGER NOT NULL"), ("name", "TEXT"), ("correlationId", "INTEGER")]
    new = old + [("streamId", "INTEGER"), ("localMemoryPoolAddress", "INTEGER")]
    new += [("localMemoryPoolReleaseThreshold", "INTEGER"), ("localMemoryPoolSize", "INTEGER")]
    new += [("localMemoryPoolUtilizedSize", "INTEGER"), ("importedMemoryPoolAddress", "INTEGER")]
    new += [("importedMemoryPoolProcessId", "INTEGER")]
    pid = (0x1 << 56) | (4242 << 24)
    rows = [
        (2000, pid, 0, 1, BASE, 0, 4 * MIB, 2, 0, None, 1),
        (5000, pid, 0, 1, BASE + 4 * MIB, 0, 2 * MIB, 2, 0, None, 2),
        (3000, pid, 0, 1, 0x7000, 0, 1 * MIB, 1, 0, None, 3),
        (9000, pid, 0, 1, BASE, 0, 4 * MIB, 2, 1, None, 4),
    ]
    yield "nsys_old.sqlite", nsys_database(old, rows)
    yield "nsys.sqlite", nsys_database(new, [(*row, 7, *[None] * 6) for row in rows])
    other = [(r[0], (0x1 << 56) | (4243 << 24), *r[2:]) for r in rows]
    yield "nsys_two_processes.sqlite", nsys_database(old, rows + other)


def umpire():
    def old(event, payload, result=None):
        line = {"kind": "replay", "uid": 77, "timestamp": 1655746034824594357, "event": event, "payload": payload}
        return {**line, "result": result} if result is not None else line

    def ref(key, **more):
        return {"allocator_ref": key, **more}

    lines = [
        old("version", {"major": 2022, "minor": 3, "patch": 1, "rc": "x"}),
        old("makeMemoryResource", {"name": "HOST"}, "0x10"),
        old("makeMemoryResource", {"name": "DEVICE"}, "0x20"),
        old("makeAllocator", {"type": "QuickPool", "allocator_name": "pool", "args": ["DEVICE"]}),
        old("makeAllocator", {"allocator_name": "pool", "args": ["DEVICE"]}, {"allocator_ref": "0x30"}),
        old("makeAllocator", {"allocator_name": "hpool", "args": ["HOST"]}, {"allocator_ref": "0x40"}),
        old("allocate", ref("0x30", size=4096)),
        old("allocate", ref("0x30", size=4096), {"memory_ptr": "0x7000"}),
        old("allocate", ref("0x20", size=1 * MIB), {"memory_ptr": "0x100000"}),
        old("allocate", ref("0x40", size=64), {"memory_ptr": "0x5550"}),
        old("reallocate", ref("0x30", ptr="0x7000", size=8192)),
        old("reallocate", ref("0x30", ptr="0x7000", size=8192), {"memory_ptr": "0x9000"}),
        old("deallocate", ref("0x20", memory_ptr="0x100000")),
        old("deallocate", ref("0x40", memory_ptr="0x5550")),
    ]
    yield "umpire_old.replay", "".join(json.dumps(line) + "\n" for line in lines).encode()

    def new(name, texts, size=None, **tags):
        numbers = {} if size is None else {"size": size}
        tags = {"replay": "true", **tags}
        line = {"category": "operation", "name": name, "numeric_args": numbers, "string_args": texts, "tags": tags}
        return {**line, "timestamp": 1655746034824594357}

    lines = [
        {"category": "metadata", "name": "version", "numeric_args": {"major": 2025}, "string_args": {}, "tags": {},
         "timestamp": 1655746034824594000},
        new("make_memory_resource", {"allocator_ref": "0x20"}, allocator_name="DEVICE::0"),
        new("allocate", {"allocator_ref": "0x20", "pointer": "0x7000"}, 4096),
        new("allocate", {"allocator_ref": "0x20", "pointer": "0x9000"}, 100),
        new("deallocate", {"allocator_ref": "0x20", "pointer": "0x7000"}),
    ]  # fmt: skip
    yield "umpire.replay", "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()


def minimalloc():
    yield "minimalloc.4096.csv", b"id,lower,upper,size\n0,0,3,1024\n1,3,9,2048\n2,5,9,1024\n"
    yield "telamalloc.csv", b"buffer_id,start,end,size,gaps\nb1,0,2,1024,\nb2,3,8,2048,4-5 6-7@0:9\n"


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return varint(len(value)) + value


def recording_block(kind, payload, items, flags=0):
    header = struct.pack("<4sHHIII", b"NFBK", kind, flags, len(payload), len(payload), items)
    return header + struct.pack("<I", zlib.crc32(header)) + payload


def packed_column(kind, content):
    return bytes([kind]) + text(content)


def packed_files():
    """A recording with call stacks, nothing of it packed (include/nofrag/trace_format.h)."""
    modules = varint(1) + text("/opt/job/libjob.so") + text(b"\x01\x02\x03\x04")
    modules += varint(2) + text("/usr/bin/job") + text("")
    python = text("/home/me/job/model.py") + varint(31) + text("Model.forward")
    stacks = varint(1) + varint(0) + varint(2) + varint(1) + varint(0x1234) + varint(0) + varint(0x7F0000001000)
    stacks += varint(1) + python
    stacks += varint(2) + varint(3) + varint(1) + varint(2) + varint(0x40) + varint(0)
    # Two allocations with their sites, a third without, a free.
    events = packed_column(1, bytes([1, 1, 1, 2])) + packed_column(2, bytes([2, 2, 2, 2]))
    events += packed_column(4, varint(0x2000) * 3) + packed_column(5, bytes([0, 1, 2, 0]))  # address
    events += packed_column(6, varint(512) + varint(0)) + packed_column(7, bytes([0, 0, 0, 1]))  # size
    events += packed_column(22, varint(1) + varint(2) + varint(0)) + packed_column(23, bytes([0, 1, 2, 2]))  # site
    info = text("clock") + text("monotonic") + text("stacks") + text("100")
    content = b"\x8eNFTRC\r\n" + struct.pack("<HHI", 1, 16, 0)
    content += recording_block(3, info, 2) + recording_block(8, modules, 2) + recording_block(9, stacks, 2)
    content += recording_block(2, events, 4, flags=2) + recording_block(7, struct.pack("<QQQQ", 4, 0, 0, 0), 0, flags=2)
    yield "stacks.nofrag", content
    # By its first byte the fuzzer makes a block of six stacks of it; all frames are in module 1.
    one = varint(0) + varint(2) + varint(1) + varint(0x1234) + varint(0) + varint(0x7F00) + varint(1) + python
    yield "stacks_payload", bytes([6]) + b"".join(varint(site) + one for site in range(1, 7))


FORMATS = {
    "packed_fuzz": packed_files,
    "torch_snapshot_fuzz": torch_snapshots,
    "kineto_fuzz": kineto,
    "torch_timeline_fuzz": timelines,
    "rmm_fuzz": rmm,
    "nsys_fuzz": nsys,
    "umpire_fuzz": umpire,
    "minimalloc_fuzz": minimalloc,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    different = []
    for folder, make in FORMATS.items():
        for name, content in make():
            path = CORPUS / folder / name
            if arguments.check:
                if not path.exists() or path.read_bytes() != content:
                    different.append(path)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in different:
        print(f"{path}: not what this script writes")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
