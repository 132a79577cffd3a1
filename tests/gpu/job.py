"""What the GPU jobs share: the allocator under test, its limit, determinism, the loop over training
steps, and a result as one JSON line.

A job runs in its own process with `--allocator native|expandable|nofrag`. Importing this module does
not import torch: the choice of allocator must come first.
"""

import argparse
import gc
import gzip
import json
import os
import pathlib
import sys
import time

import oom

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
GIB = 2**30


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--allocator", choices=["native", "expandable", "nofrag"], default="nofrag")
    parser.add_argument("--library", help="libnofrag.so (default: build/release/lib)")
    parser.add_argument("--door", choices=["auto", "native", "hooks"], default="auto", help="nofrag's way into PyTorch")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--limit", type=float, metavar="GIB", help="most memory to take from the driver")
    parser.add_argument("--limit-of-peak", type=float, metavar="FACTOR", help="likewise, times the peak in --peak")
    parser.add_argument("--peak", metavar="FILE", help="peak of live memory: written by a run without a limit")
    parser.add_argument("--record", metavar="FILE", help="write the job's trace as csv.gz (with --allocator native)")
    return parser


def limit_bytes(args):
    if args.limit_of_peak is not None:
        return int(args.limit_of_peak * json.loads(pathlib.Path(args.peak).read_text())["peak_live_bytes"])
    return None if args.limit is None else int(args.limit * GIB)


def set_limit(torch, nofrag, limit):
    """Before the first allocation: the job lives under it from its first byte."""
    torch.cuda.init()
    if nofrag is not None:
        nofrag.set_limit(limit)
    else:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])


def await_turn():
    """Under run_all.py a job may start while another has the GPU: it waits here, all imports done."""
    path, _, number = os.environ.get("NOFRAG_TURN", "").rpartition(":")
    parent = os.getppid()
    while path and int(pathlib.Path(path).read_text() or -1) < int(number):
        time.sleep(0.02)
        if os.getppid() != parent:
            sys.exit("whoever gives turns has gone")


def import_torch(args):
    """torch with the allocator of args, and the module nofrag (None for PyTorch's own allocators)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.pop("PYTORCH_ALLOC_CONF", None)
    os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if args.allocator != "nofrag":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{args.allocator == 'expandable'}"
    os.environ["NOFRAG_TORCH"] = "0"  # installed here, not by the environment
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed")
        sys.exit(SKIPPED)
    torch.use_deterministic_algorithms(True)
    await_turn()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(SKIPPED)
    nofrag = None
    if args.allocator == "nofrag":
        sys.path.insert(0, str(ROOT / "torch_plugin"))
        import nofrag
        import nofrag_torch

        print(f"door: {nofrag_torch.install(args.library, args.door).door}")
    torch.manual_seed(args.seed)
    # It costs a kernel for each allocation and would hide reads of memory that nobody wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False
    limit = limit_bytes(args)
    if limit is not None:
        set_limit(torch, nofrag, limit)
    if args.record is not None:
        if args.allocator != "native":
            sys.exit("--record needs --allocator native: only PyTorch's own allocator keeps a history")
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000)
    return torch, nofrag


def write_trace(args, torch):
    """With --record: what PyTorch's history has of this process, as `nofrag replay` reads it."""
    if args.record is None:
        return
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    streams, ids, rows, last = {}, {}, [], 0
    for event in events:
        if event["action"] not in ("alloc", "free_requested"):
            continue
        stream = streams.setdefault(event["stream"], len(streams))
        last = max(last, event["time_us"] - events[0]["time_us"])  # threads may note their times out of order
        if event["action"] == "alloc":
            ids[event["addr"]] = len(rows)
            rows.append((last, "a", len(rows), event["size"], stream))
        elif event["addr"] in ids:
            rows.append((last, "f", ids.pop(event["addr"]), event["size"], stream))
    with gzip.open(args.record, "wt") as file:
        file.write("time_us,op,id,size,stream\n")
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def memory_numbers(torch, nofrag):
    """Peaks in bytes, and the driver's share where it is known."""
    if nofrag is None:
        return {
            "peak_live_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "driver_us": None,
            "driver_calls": None,
        }
    stats = nofrag.stats()
    device, driver = stats["devices"][0], stats["driver"]
    return {
        "peak_live_bytes": device["peak_live_bytes"],
        "peak_reserved_bytes": device["peak_reserved_bytes"],
        "driver_us": driver["total_microseconds"],
        "driver_calls": driver["total_calls"],
        "ledger": {"calls": driver["calls"], "microseconds": driver["microseconds"]},
        "device": device,
    }


class Clock:
    """Wall time of the steps after the first few, the GPU's queue drained at both ends; with `each`, at
    both ends of every step, and every step's time is kept."""

    def __init__(self, torch, warmup, each=False):
        self.torch, self.warmup, self.each = torch, warmup, each
        self.started, self.steps, self.driver_at_start, self.stamps = None, 0, None, []

    def before_step(self, index, nofrag):
        if self.each or index == self.warmup:
            self.torch.cuda.synchronize()
        if index == self.warmup:
            self.started = time.perf_counter()
            if nofrag is not None:
                self.driver_at_start = nofrag.stats()["driver"]["total_microseconds"]
        if index >= self.warmup:
            self.steps += 1
        if self.each:
            self.stamps.append(time.perf_counter())

    def result(self, nofrag):
        self.torch.cuda.synchronize()
        ended, result = time.perf_counter(), {"steps_per_s": None, "seconds": None, "driver_us_after_warmup": None}
        if self.started is not None:
            seconds = ended - self.started
            result.update(steps_per_s=self.steps / seconds, seconds=seconds)
            if nofrag is not None:
                result["driver_us_after_warmup"] = nofrag.stats()["driver"]["total_microseconds"] - self.driver_at_start
        if self.each:
            stamps = [*self.stamps, ended]
            result["step_s"] = [after - before for before, after in zip(stamps, stamps[1:])]
        return result


def training_arguments(parser, steps, warmup=8):
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--warmup", type=int, default=warmup, help="steps that no time is reported of")
    parser.add_argument("--step-times", action="store_true", help="wait for the GPU after each step, and time it")


def train(args, torch, nofrag, name, one_step):
    """Runs one_step(index) -> loss for every step, until it runs out of memory, and prints each loss
    exactly (hexadecimal)."""
    watch = oom.Watch(nofrag) if nofrag is not None else None
    losses, died, clock = [], None, Clock(torch, args.warmup, args.step_times)
    # No collection at a moment that depends on anything but the job.
    gc.collect()
    gc.freeze()
    gc.disable()
    for index in range(args.steps):
        clock.before_step(index, nofrag)
        try:
            losses.append(one_step(index))
        except torch.OutOfMemoryError as error:
            died = {"step": index, "message": str(error).splitlines()[0][:600], "report": watch and watch.last()}
            break
    timing = clock.result(nofrag)
    write_trace(args, torch)
    exact = [float(loss).hex() for loss in losses]
    for step, loss in enumerate(exact):
        print(f"step {step} loss {loss}")
    result = {"job": name, "allocator": args.allocator, "limit_bytes": limit_bytes(args), "warmup": args.warmup,
              "died": died, "exact": exact, **timing, **memory_numbers(torch, nofrag)}
    if args.peak is not None and args.limit_of_peak is None:
        pathlib.Path(args.peak).write_text(json.dumps({"job": name, "peak_live_bytes": result["peak_live_bytes"]}) + "\n")
    finish(result)
    if died is not None:
        print(f"out of memory at step {died['step']}: {died['message']}")


def finish(result):
    print("RESULT " + json.dumps(result))
