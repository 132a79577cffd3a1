"""What the GPU jobs share: the allocator under test, determinism, and a result as one JSON line.

A job runs in its own process with `--allocator native|expandable|nofrag`. Importing this module does
not import torch: the choice of allocator must come first.
"""

import argparse
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--allocator", choices=["native", "expandable", "nofrag"], default="nofrag")
    parser.add_argument("--library", help="libnofrag.so (default: build/release/lib)")
    parser.add_argument("--seed", type=int, default=1234)
    return parser


def import_torch(args):
    """torch with the allocator of args, and nofrag's library (None for PyTorch's own allocators)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.pop("PYTORCH_ALLOC_CONF", None)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{args.allocator == 'expandable'}"
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed")
        sys.exit(SKIPPED)
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(SKIPPED)
    nofrag = None
    if args.allocator == "nofrag":
        sys.path.insert(0, str(ROOT / "torch_plugin"))
        import nofrag_torch

        nofrag_torch.install(args.library)
        nofrag = nofrag_torch.current()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    # It costs a kernel for each allocation and would hide reads of memory that nobody wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False
    return torch, nofrag


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
    """Wall time of the steps after the first few, the GPU's queue drained at both ends."""

    def __init__(self, torch, warmup):
        self.torch, self.warmup, self.started, self.steps, self.driver_at_start = torch, warmup, None, 0, None

    def before_step(self, index, nofrag):
        if index == self.warmup:
            self.torch.cuda.synchronize()
            self.started = time.perf_counter()
            if nofrag is not None:
                self.driver_at_start = nofrag.stats()["driver"]["total_microseconds"]
        if index >= self.warmup:
            self.steps += 1

    def result(self, nofrag):
        self.torch.cuda.synchronize()
        seconds = time.perf_counter() - self.started
        steady = None
        if nofrag is not None:
            steady = nofrag.stats()["driver"]["total_microseconds"] - self.driver_at_start
        return {"steps_per_s": self.steps / seconds, "seconds": seconds, "driver_us_after_warmup": steady}


def finish(result):
    print("RESULT " + json.dumps(result))
