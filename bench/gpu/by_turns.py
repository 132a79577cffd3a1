#!/usr/bin/env python3
"""Steps of a job under PyTorch's own allocator and nofrag by turns in one process.

usage: by_turns.py [--library LIBNOFRAG] [--jobs JOB,...] [--turns N] [--steps N]
JOB: steps that the host paces: ops (tiny operations), eager (a small GPT), lora, compiled; and the very jobs of
torch_jobs.py: gpt-job, lora-job, mask-job, unet-job, moe-job, generate-job, compiled-job. (Graphs hold the memory of the allocator
that was there at their capture; they cannot change it by turns.)

From one process to the next a step's time scatters by 5 to 10 % on a shared host, which hides what an allocator
costs. Here the model, its data and the process are the same: only PyTorch's pointer to its allocator is
switched, between turns of a few steps whose shapes are the same under both. Blocks go back to the allocator they are from.
Prints for each job the milliseconds a step (median of the turns), nofrag over native (median of neighbours'
ratios, and the middle half of them), of the sums of all turns, of the time until a turn's last kernel was queued (and what
share of native's turns that is: what is less waits for the GPU), of the processor time of the whole process,
allocations a step, the share of nofrag's turns that its driver calls take (which no noise hides), and the first ratio between
native's own odd and even turns, which should be 1. Writes by_turns.json to $OUT (default build/by_turns). Where the
core has no library for this PyTorch beside it, one is built. 77 without a GPU or PyTorch.
"""

import argparse
import atexit
import collections
import ctypes
import gc
import importlib
import inspect
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(HERE / "jobs")]
POINTER = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"


def ops(torch):
    x, weight = torch.ones(256, device="cuda"), torch.ones(64, 64, device="cuda", requires_grad=True)

    def step(_index):
        y = x
        for _ in range(200):
            y = y + 1
        z = weight
        for _ in range(40):
            z = z @ weight
        z.sum().backward()
        weight.grad = None

    return step


def eager(torch):
    import gpt_train

    model = gpt_train.build_model(torch, 8000, 256, 6, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(3)
    batches = [torch.randint(0, 8000, (2, 65 + 16 * i), generator=generator).cuda() for i in range(6)]

    def step(index):
        ids = batches[index % len(batches)]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def lora(torch):
    import llama
    from lora_train import Adapted

    llama.flash_attention_only(torch)
    model = Adapted(torch, 8000, 512, 8, 4, 2, inner=1376, made_on="cuda", fused=True)
    optimizer = torch.optim.AdamW(model.add_adapters(rank=16), lr=1e-3)
    generator = torch.Generator().manual_seed(4)
    batches = [torch.randint(0, 8000, (1, 129 + 32 * i), generator=generator).cuda() for i in range(6)]

    def step(index):
        ids = batches[index % len(batches)]
        logits = model.trained_logits(ids[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def compiled(torch):
    from compiled_train import build_model

    model = build_model(torch, 256)
    fast = torch.compile(model, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.randn(*shape, 256, device="cuda") for shape in ((8, 64), (4, 128), (16, 32))]

    def step(index):
        x = batches[index % 3]
        (fast(x) - x.roll(1, dims=1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def very(module, *arguments):
    """The step of the job in that file, as torch_jobs.py runs it."""

    def build(torch):
        import job

        found, real = {}, (job.import_torch, job.train, sys.argv)
        job.import_torch = lambda _args: (torch, None)
        job.train = lambda _args, _torch, _nofrag, _name, one_step: found.update(step=one_step)
        sys.argv = [module, *arguments]
        try:
            importlib.import_module(module).main()
        finally:
            job.import_torch, job.train, sys.argv = real
        return found["step"]

    return build


def generation(torch):
    """A request of generate.py's kind a step."""
    import llama

    model = llama.Model(torch, 32000, width=2048, layers=16, heads=16, kv_heads=8)
    generator = torch.Generator().manual_seed(1234)

    def step(_index):
        batch, prompt = (int(torch.randint(least, most, (1,), generator=generator)) for least, most in ((2, 17), (32, 1025)))
        ids, caches = torch.randint(0, 32000, (batch, prompt), generator=generator).cuda(), [None] * len(model.layers)
        with torch.inference_mode():
            for _ in range(48):
                ids = model.step(ids, caches).float().argmax(-1, keepdim=True)

    return step


SMALL = {"ops": ops, "eager": eager, "lora": lora, "compiled": compiled}
VERY = {"gpt-job": very("gpt_train"), "lora-job": very("lora_train"), "mask-job": very("mask_train"), "unet-job": very("unet_train"),
        "moe-job": very("moe_train"), "generate-job": generation, "compiled-job": very("compiled_train")}
JOBS = SMALL | VERY


ORDER = ["native", "nofrag", "nofrag", "native"]  # a round: drift weighs the same on both


class Draws:
    """What a step draws its shapes from, so that the four turns of a round draw the same."""

    def __init__(self, step):
        self.generator = inspect.getclosurevars(step).nonlocals.get("generator")
        self.state = None

    def new_round(self):
        self.state = self.generator and self.generator.get_state()

    def again(self):
        if self.generator is not None:
            self.generator.set_state(self.state)


def spread(ratios):
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": middle, "quarter": low, "three_quarters": high}


def measure(torch, nofrag, pointer, owners, step, turns, steps):
    """{name: seconds of each turn}, {name: processor seconds of all}, {name: seconds until all was queued},
    seconds of nofrag's turns in the driver by kind of call, and allocations a step."""
    seconds, cpu, draws = {name: [] for name in owners}, dict.fromkeys(owners, 0.0), Draws(step)
    queued = dict.fromkeys(owners, 0.0)
    in_driver = collections.Counter()
    draws.new_round()
    for name in ORDER * 2:
        pointer.value = owners[name]
        draws.again()
        for index in range(2 * steps):
            step(index)
    torch.cuda.synchronize()
    gc.collect()
    gc.freeze()
    gc.disable()
    before = nofrag.stats()["devices"][0]["allocations"]
    for turn in range(turns):
        if turn % len(ORDER) == 0:
            # What a shape costs when it is seen first (cuDNN's plans) is no allocator's: once, unmeasured.
            pointer.value = owners[ORDER[turn // len(ORDER) % 2]]
            draws.new_round()
            for index in range(steps + 1):
                step(max(index - 1, 0))
        name = ORDER[turn % len(ORDER)]
        pointer.value = owners[name]
        draws.again()
        step(0)
        torch.cuda.synchronize()
        driver = nofrag.stats()["driver"]["microseconds"]
        started, processor = time.perf_counter(), time.process_time()
        for index in range(steps):
            step(index)
        queued[name] += (time.perf_counter() - started) / steps
        torch.cuda.synchronize()
        seconds[name].append((time.perf_counter() - started) / steps)
        cpu[name] += time.process_time() - processor
        if name == "nofrag":
            for kind, spent in nofrag.stats()["driver"]["microseconds"].items():
                in_driver[kind] += (spent - driver[kind]) / 1e6
    gc.enable()
    gc.unfreeze()
    made = nofrag.stats()["devices"][0]["allocations"] - before
    return seconds, cpu, queued, in_driver, made / (turns * 5 / 8) / (steps + 1)  # of a round's four turns two, and every other round's first pass


def with_native_door(core):
    import native_build

    minor = native_build.minor_of(native_build.torch_folder())
    if (pathlib.Path(core).parent / f"libnofrag_torch_2_{minor}.so").exists():
        return core
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nofrag-torch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(native_build.build(core, folder).parent / "libnofrag.so")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--jobs", default=",".join(SMALL))
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    unknown = [job for job in args.jobs.split(",") if job not in JOBS]
    if unknown:
        parser.error(f"no job {' '.join(unknown)}; jobs: {' '.join(JOBS)}")
    os.environ["NOFRAG_TORCH"] = "0"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed")
        return 77
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return 77
    pointer = ctypes.c_void_p.in_dll(ctypes.CDLL("libc10_cuda.so"), POINTER)
    owners = {"native": pointer.value}
    sys.path.insert(0, str(ROOT / "torch_plugin"))
    import nofrag
    import nofrag_torch

    nofrag_torch.install(with_native_door(args.library), "native")
    torch.cuda.init()
    torch.use_deterministic_algorithms(True)  # as job.py has it
    torch.utils.deterministic.fill_uninitialized_memory = False
    owners["nofrag"] = pointer.value
    assert owners["native"] != owners["nofrag"], "the native door is not installed"
    out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "by_turns")
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    for job in args.jobs.split(","):
        torch.manual_seed(1)
        step = JOBS[job](torch)  # the last one's memory goes, and what was kept of it
        gc.collect()
        for owner in owners.values():
            pointer.value = owner
            torch.cuda.empty_cache()
        seconds, cpu, queued, in_driver, made = measure(torch, nofrag, pointer, owners, step, args.turns // len(ORDER) * len(ORDER), args.steps)
        native, ours = seconds["native"], seconds["nofrag"]
        result = {"native_ms": 1e3 * statistics.median(native), "nofrag_ms": 1e3 * statistics.median(ours),
                  "allocations_a_step": made, "ratio": spread([b / a for a, b in zip(native, ours)]),
                  "native_to_itself": spread([b / a for a, b in zip(native[::2], native[1::2])]),
                  "sum": sum(ours) / sum(native), "least": min(ours) / min(native), "processor": cpu["nofrag"] / cpu["native"],
                  "queued": queued["nofrag"] / queued["native"], "queued_share": queued["native"] / sum(native),
                  "driver": {kind: spent / (sum(ours) * args.steps) for kind, spent in in_driver.items() if spent}}
        results[job] = result
        print(f"{job:12} native {result['native_ms']:8.3f} ms  nofrag {result['nofrag_ms']:8.3f} ms  {made:6.0f} allocations a step  ratio "
              f"{result['ratio']['median']:.4f} ({result['ratio']['quarter']:.4f} to {result['ratio']['three_quarters']:.4f}), of the sums "
              f"{result['sum']:.4f}, queued {result['queued']:.4f} ({100 * result['queued_share']:.0f} %), processor {result['processor']:.4f}, driver {100 * sum(result['driver'].values()):.2f} %; "
              f"native to itself {result['native_to_itself']['median']:.4f}", flush=True)
        (out / "by_turns.json").write_text(json.dumps(results, indent=1) + "\n")
    pointer.value = owners["nofrag"]
    return 0


if __name__ == "__main__":
    sys.exit(main())
