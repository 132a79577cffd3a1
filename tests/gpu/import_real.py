#!/usr/bin/env python3
"""Files that PyTorch itself writes, through nofrag's importers: is the peak what PyTorch says?

usage: import_real.py --program NOFRAG [--out DIR]      (PyTorch with a GPU; exit 77 without)

A small training job runs several times, each recorded another way: the memory snapshot (native and expandable
segments, whole and cut by its ring), the profiler's Chrome trace, and its memory timeline in both JSON forms.
Each file is imported by `nofrag replay --json`, and its peak compared with PyTorch's own numbers and with what
Python makes of the same file by itself. Also: a snapshot that `nofrag convert` wrote must pass through
PyTorch's memory_viz. Prints a table, exit 1 if a number differs.
"""

import argparse
import gzip
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

SKIPPED = 77
UNIT = 512
BARE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

JOB = """
import json, sys
import torch

kind, path, entries = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
device = torch.device("cuda:0")
side = torch.cuda.Stream()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x

net = Net().to(device)
optimizer = torch.optim.Adam(net.parameters())

def step(i):
    x = torch.randn(64 + 37 * (i % 5), 512, device=device)
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.stream(side):
        y = x * 2
    y.record_stream(torch.cuda.current_stream())
    x.record_stream(side)

step(0)
torch.cuda.synchronize()
if kind == "snapshot":
    torch.cuda.memory._record_memory_history(max_entries=entries)
torch.cuda.reset_peak_memory_stats()

def run():
    for i in range(12):
        step(i)
    torch.cuda.synchronize()

if kind == "snapshot":
    run()
    try:
        torch.empty(1 << 42, device=device)
    except torch.OutOfMemoryError:
        pass
    stats = torch.cuda.memory_stats()
    torch.cuda.memory._dump_snapshot(path)
else:
    from torch.profiler import ProfilerActivity, profile
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        run()
    stats = torch.cuda.memory_stats()
    if kind == "kineto":
        profiler.export_chrome_trace(path)
    else:
        profiler.export_memory_timeline(path, device="cuda:0")
print("RESULT " + json.dumps({name: stats[name] for name in
      ("allocated_bytes.all.peak", "requested_bytes.all.peak", "reserved_bytes.all.peak")}
      | {"torch": torch.__version__}))
"""


def up(size):
    return -(-size // UNIT) * UNIT


def peak(changes):
    """Highest sum of (bytes, ...) over time."""
    most = now = 0
    for change in changes:
        now += change
        most = max(most, now)
    return most


class Refusing(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} in a snapshot")


def snapshot_peak(path):
    """By walking the ring backwards from the segments, as no line of nofrag does it."""
    with open(path, "rb") as file:
        data = Refusing(file).load()
    live = {}
    for segment in data["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                live[block.get("address", at)] = block.get("requested_size", block["size"])
            at += block["size"]
    now = most = sum(up(size) for size in live.values())
    events = [e for trace in data["device_traces"] for e in trace if e["action"] in ("alloc", "free_requested")]
    for event in reversed(events):
        now += up(event["size"]) if event["action"] == "free_requested" else -up(event["size"])
        most = max(most, now)
    return most, len(events)


def kineto_peak(path):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 1]
    return max(totals), len(totals)


def raw_timeline_peak(path):
    with gzip.open(path, "rt") as file:
        rows = json.load(file)
    changes = [(size > 0) - (size < 0) for _, _, size, _ in rows]
    return peak(sign * up(abs(row[2])) for sign, row in zip(changes, rows)), sum(1 for row in rows if row[1] != 3)


def totals_timeline_peak(path):
    with open(path) as file:
        _, sizes = json.load(file)
    return max(sum(moment) for moment in sizes), len(sizes)


CASES = [
    # name, kind, file, ring entries, expandable segments, the same peak by Python
    ("snapshot", "snapshot", "native.pickle", 1_000_000, False, snapshot_peak),
    ("snapshot-expandable", "snapshot", "expandable.pickle", 1_000_000, True, snapshot_peak),
    ("snapshot-ring", "snapshot", "ring.pickle", 200, False, snapshot_peak),
    ("kineto", "kineto", "trace.json", 0, False, kineto_peak),
    ("kineto.gz", "kineto", "trace.json.gz", 0, False, kineto_peak),
    ("timeline-raw", "timeline", "timeline.raw.json.gz", 0, False, raw_timeline_peak),
    ("timeline", "timeline", "timeline.json", 0, False, totals_timeline_peak),
]
FORMAT = {"snapshot": "torch", "kineto": "kineto", "timeline": "torch-timeline"}


class Checks:
    def __init__(self, arguments):
        self.program = arguments.program
        self.out = pathlib.Path(arguments.out or tempfile.mkdtemp(prefix="import_real_"))
        self.out.mkdir(parents=True, exist_ok=True)
        self.problems = []

    def record(self, kind, path, entries, expandable):
        environment = {**os.environ, **BARE, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}
        command = [sys.executable, "-c", JOB, kind, str(path), str(entries)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        results = [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if done.returncode != 0 or not results:
            raise RuntimeError(done.stderr[-2000:])
        return json.loads(results[0])

    def imported(self, path):
        command = [self.program, "replay", str(path), "--allocator", "nofrag", "--json", "-", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"nofrag replay: exit {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)["traces"][0]

    def case(self, name, kind, file, entries, expandable, by_python):
        path = self.out / file
        stats = self.record(kind, path, entries, expandable)
        trace = self.imported(path)
        expected, events = by_python(str(path))
        found = trace["peak_live_bytes"]
        allocated, requested = stats["allocated_bytes.all.peak"], stats["requested_bytes.all.peak"]
        row = (name, trace["format"], trace["events"], found, expected, allocated, requested)
        print("{:<20} {:<15} {:>8} {:>14,} {:>14,} {:>14,} {:>14,}".format(*row), flush=True)
        self.expect(name, trace["format"] == FORMAT[kind], "recognised as " + trace["format"])
        # Of totals, pieces are rounded that were no blocks.
        slack = UNIT * events if file == "timeline.json" else 0
        self.expect(name, expected <= found <= expected + slack, f"peak {found}, by Python {expected}")
        least = 1 if file == "timeline.json" else events
        self.expect(name, trace["events"] >= least, f"{trace['events']} events of {events}")
        if kind == "kineto":
            self.expect(name, found == allocated, f"peak {found}, PyTorch allocated {allocated}")
        elif kind == "snapshot" and entries > 1000:
            # Sizes as requested: between what was asked for and what PyTorch's blocks took for it.
            self.expect(name, requested <= found <= allocated, f"peak {found} not in [{requested}, {allocated}]")
        return stats

    def expect(self, name, holds, what):
        if not holds:
            self.problems.append(f"{name}: {what}")

    def back_to_torch(self):
        """A snapshot of ours through PyTorch's own tool, and back."""
        ours = self.out / "ours.pickle"
        convert = [self.program, "convert", str(self.out / "native.pickle"), "--to", "torch-snapshot", "--force", str(ours)]
        subprocess.run(convert, check=True, capture_output=True, timeout=120)
        before, after = self.imported(self.out / "native.pickle"), self.imported(ours)
        for key in ("events", "allocations", "frees", "streams", "peak_live_bytes", "live_at_end_bytes"):
            self.expect("back to torch", before[key] == after[key], f"{key}: {before[key]}, then {after[key]}")
        for command, least in (("segsum", 50), ("trace", 1000), ("trace_plot", 10000), ("segment_plot", 10000)):
            page = self.out / f"{command}.out"
            extra = ["-o", str(page)] if command.endswith("plot") else []
            viz = [sys.executable, "-m", "torch.cuda._memory_viz", command, str(ours), *extra]
            done = subprocess.run(viz, env={**os.environ, **BARE}, capture_output=True, text=True, timeout=120)
            size = page.stat().st_size if extra and page.exists() else len(done.stdout)
            print(f"memory_viz {command:<12} exit {done.returncode}, {size:,} bytes", flush=True)
            good = done.returncode == 0 and size >= least
            self.expect(f"memory_viz {command}", good, done.stderr[-500:] or f"{size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/bin/nofrag")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("no PyTorch")
        return SKIPPED
    if not torch.cuda.is_available():
        print("no GPU that PyTorch can use")
        return SKIPPED
    checks = Checks(arguments)
    header = ("file", "format", "events", "peak live", "by Python", "allocated", "requested")
    print("{:<20} {:<15} {:>8} {:>14} {:>14} {:>14} {:>14}".format(*header))
    for case in CASES:
        try:
            checks.case(*case)
        except (RuntimeError, subprocess.SubprocessError, KeyError, ValueError) as problem:
            checks.problems.append(f"{case[0]}: {problem}")
    try:
        checks.back_to_torch()
    except (RuntimeError, subprocess.SubprocessError) as problem:
        checks.problems.append(f"back to torch: {problem}")
    for problem in checks.problems:
        print("PROBLEM", problem)
    print(f"{len(CASES)} files, {len(checks.problems)} problems; files are in {checks.out}")
    return 1 if checks.problems else 0


if __name__ == "__main__":
    sys.exit(main())
