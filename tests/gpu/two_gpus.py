#!/usr/bin/env python3
"""Training over two GPUs: under nofrag the same losses, to the last bit, as under PyTorch's own allocators.

usage: two_gpus.py [--library LIBNOFRAG] [--only JOB,...] [--allocators NAME,...] [--steps N]
JOB: ddp         two processes, gradients averaged by NCCL
     fsdp        two processes, parameters sharded: gathered and freed block by block on NCCL's own streams
     registered  ddp, and NCCL registers the memory of every segment (PyTorch's allocator hook)
     pipeline    one process, half of the layers on each GPU

Steps are of changing lengths, other ones on each rank. Prints a table with the peaks of each GPU; two_gpus.json goes to
$OUT (default build/two_gpus). Exit 1 if a loss differs or a process fails; 77 without two GPUs or PyTorch.
"""

import argparse
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import time

import job

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOBS = {"ddp": 2, "fsdp": 2, "registered": 2, "pipeline": 1}  # processes
ALLOCATORS = ["native", "expandable", "nofrag"]
MIB = 1 << 20
TIMEOUT = 150
VOCABULARY, WIDTH, LAYERS, HEADS = 16000, 768, 8, 12


# ---- in a process of a job


def batch(torch, generator, device):
    length = int(torch.randint(64, 769, (1,), generator=generator))
    return torch.randint(0, VOCABULARY, (4, length + 1), generator=generator).to(device)


def loss_of(torch, logits, ids):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def distributed(torch, args):
    """A step of this rank, and what tells at the end that both have the same parameters."""
    import gpt_train

    torch.cuda.set_device(args.rank)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", args.rank))
    model = gpt_train.build_model(torch, VOCABULARY, WIDTH, LAYERS, HEADS)
    if args.job == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        wrapped = fully_shard(model)
    else:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.rank])
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(args.seed + args.rank)

    def step():
        ids = batch(torch, generator, f"cuda:{args.rank}")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(torch, wrapped(ids[:, :-1]), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def digest():
        full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        return [float(p.double().sum()).hex() for p in full]

    return step, digest


def pipeline(torch, args):
    import gpt_train

    model = gpt_train.build_model(torch, VOCABULARY, WIDTH, LAYERS, HEADS)
    for module in (*model.blocks[LAYERS // 2:], model.norm, model.head):
        module.to("cuda:1")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(args.seed)

    def step():
        ids = batch(torch, generator, "cuda:0")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = model.tokens(ids[:, :-1]) + model.places(torch.arange(ids.shape[1] - 1, device=ids.device))
            for index, block in enumerate(model.blocks):
                x = block(x.to("cuda:1") if index == LAYERS // 2 else x)
            loss = loss_of(torch, model.head(model.norm(x)), ids.to("cuda:1"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step, lambda: [float(p.double().sum()).hex() for p in model.parameters()]


def work(args):
    torch, nofrag = job.import_torch(args)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    step, digest = (pipeline if args.job == "pipeline" else distributed)(torch, args)
    losses, started = [], time.perf_counter()
    with sdpa_kernel(SDPBackend.MATH):
        for _ in range(args.steps):
            losses.append(step())
    devices = [args.rank] if args.job != "pipeline" else [0, 1]
    assert all(math.isfinite(float(loss)) for loss in losses), "a loss that is no number"
    if nofrag is not None:
        served = {d["device"] for d in nofrag.stats()["devices"] if d["peak_live_bytes"] > 0}
        assert served >= set(devices), f"nofrag served {served} of {devices}"
    exact = [float(loss).hex() for loss in losses]
    result = {"exact": exact, "digest": digest(), "seconds": time.perf_counter() - started,
              "live": [torch.cuda.max_memory_allocated(d) for d in devices],
              "reserved": [torch.cuda.max_memory_reserved(d) for d in devices]}
    if args.job != "pipeline":
        torch.distributed.destroy_process_group()
    job.finish(result)


# ---- the comparison


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(args, name, allocator, out):
    """The results of all ranks; None if one failed."""
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(JOBS[name]),
                                "NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"}
    if name == "registered":
        environment["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "1"
    logs, processes = [], []
    for rank in range(JOBS[name]):
        command = [sys.executable, str(HERE / "two_gpus.py"), "--job", name, "--rank", str(rank), "--allocator", allocator,
                   "--steps", str(args.steps), *(["--library", args.library] if args.library else [])]
        logs.append(out / f"{name}-{allocator}-{rank}.log")
        with open(logs[-1], "w") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT,
                                              env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
    deadline, good = time.time() + TIMEOUT, True
    for process in processes:
        try:
            good &= process.wait(max(1, deadline - time.time())) == 0
        except subprocess.TimeoutExpired:
            good = False
    for process in processes:
        process.kill()
        process.wait()
    lines = [[line for line in log.read_text(errors="replace").splitlines() if line.startswith("RESULT ")] for log in logs]
    if not good or not all(lines):
        for log in logs:
            print(f"    {log.name}: " + "\n    ".join(log.read_text(errors="replace").splitlines()[-6:]))
        return None
    return [json.loads(found[-1][len("RESULT "):]) for found in lines]


def compare(args, out):
    results, problems = {}, 0
    for name in args.only.split(","):
        reference = None
        for allocator in args.allocators.split(","):
            ranks = run(args, name, allocator, out)
            results[f"{name} {allocator}"] = ranks
            if ranks is None:
                verdict = "FAILED"
            else:
                found = [(rank["exact"], rank["digest"]) for rank in ranks]
                reference = reference or found
                apart = JOBS[name] == 2 and ranks[0]["digest"] != ranks[1]["digest"]
                verdict = "ranks differ" if apart else "same" if found == reference else "DIFFERS"
            problems += verdict != "same"
            memory = "" if ranks is None else "  ".join(
                f"{reserved / MIB:.0f} MiB for {live / MIB:.0f}" for rank in ranks
                for live, reserved in zip(rank["live"], rank["reserved"]))
            seconds = "" if ranks is None else f"{max(rank['seconds'] for rank in ranks):6.1f} s"
            print(f"{name:11} {allocator:11} {verdict:8} {seconds}  {memory}", flush=True)
    (out / "two_gpus.json").write_text(json.dumps(results, indent=1) + "\n")
    return 1 if problems else 0


def main():
    parser = job.arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        work(args)
        return 0
    unknown = [name for name in args.only.split(",") if name not in JOBS]
    if unknown:
        parser.error(f"no job {' '.join(unknown)}; jobs: {' '.join(JOBS)}")
    if len(args.allocators.split(",")) < 2:
        parser.error("--allocators: one alone has nothing to be compared with")
    asked = [sys.executable, "-c", "import sys, torch; sys.exit(torch.cuda.device_count() < 2)"]
    if subprocess.run(asked, stderr=subprocess.DEVNULL).returncode != 0:
        print("skipped: needs PyTorch and two GPUs")
        return job.SKIPPED
    out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "two_gpus")
    out.mkdir(parents=True, exist_ok=True)
    return compare(args, out)


if __name__ == "__main__":
    sys.exit(main())
