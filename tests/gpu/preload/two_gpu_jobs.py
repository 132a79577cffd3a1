#!/usr/bin/env python3
"""One small job over two GPUs, unmodified, whose numbers must not depend on the preload.

usage: two_gpu_jobs.py cupy|jax|torch|nccl

cupy   one process: arrays go to and fro, with the other device current, and kernels read the other's memory
jax    one process: an array that lies on both devices is summed and multiplied
torch  one process: tensors go to and fro, half of a model lies on each device
nccl   two processes that see both devices, each training on its own: gradients are summed by NCCL, rows exchanged

Prints "VALUE ..." lines (compared between runs) and "RESULT {json}": the devices whose memory nofrag gave out.
"""

import json
import os
import socket
import subprocess
import sys

from jobs import SKIPPED, statistics, value


def cupy_job():
    import cupy

    with cupy.cuda.Device(0):
        a = cupy.random.RandomState(3).rand(1500, 1500)
    for step in range(12):
        with cupy.cuda.Device(1):
            b = cupy.asarray(a) * 1.5 + step  # a copy between the devices
            value(b.sum())
        with cupy.cuda.Device(0):
            a = cupy.asarray(b) % 7.0  # the second's memory, the first is current
            value(cupy.sort(a.ravel())[::1000].sum())
    host = a.get()
    with cupy.cuda.Device(1):
        c = cupy.empty((1500, 1500))
    c.set(host)  # whichever device is current
    value(c.sum())
    with cupy.cuda.Device(1):
        value((a + c).sum())  # a kernel that reads the other device's memory, where CuPy enables that


def jax_job():
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rows = NamedSharding(Mesh(jax.devices()[:2], ("d",)), PartitionSpec("d", None))
    a = jax.device_put(jax.random.normal(jax.random.PRNGKey(0), (2048, 1024), dtype=jnp.float32), rows)

    @jax.jit
    def step(x):
        return jnp.tanh(x @ (x.T @ x) * 1e-3) + x.sum() * 1e-6

    for _ in range(6):
        a = step(a)
        value(a.sum())
    value(jax.device_put(a, jax.devices()[1]).sum())


def torch_job():
    import torch

    torch.manual_seed(1)
    halves = [torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).to(f"cuda:{d}") for d in range(2)]
    optimizer = torch.optim.Adam([p for half in halves for p in half.parameters()])
    for step in range(10):
        x = torch.randn(256 + 64 * (step % 3), 1024).cuda(0)
        loss = halves[1](halves[0](x).to("cuda:1")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value(loss.item())
    kept = [torch.full((n << 16,), float(n), device=f"cuda:{n % 2}") for n in range(1, 40)]
    for n, tensor in enumerate(kept):
        with torch.cuda.device(n % 2):
            moved = tensor.to(f"cuda:{1 - tensor.device.index}", non_blocking=True)
            value(moved.double().sum())
    into = torch.empty(1 << 20, device="cuda:0")
    for n in (3, 17, 30):
        into[:n << 10].copy_(kept[n][:n << 10])
    value(into[:17 << 10].double().sum())


def nccl_rank(rank):
    import torch
    import torch.distributed

    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(5)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda(), device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(8):
        x = torch.randn(128 + 32 * (step % 3), 1024, device="cuda") * (rank + 1)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    value(sum(float(p.double().sum()) for p in model.parameters()))
    for size in (1000, 1 << 16, 5 << 20):
        mine = torch.full((2, size), float(rank + 1), device="cuda")
        theirs = torch.empty_like(mine)
        torch.distributed.all_to_all_single(theirs, mine)
        parts = [torch.empty_like(mine) for _ in range(2)]
        torch.distributed.all_gather(parts, mine)
        torch.distributed.all_reduce(mine)
        value(theirs.double().sum(), mine.double().sum(), *(part.double().sum() for part in parts))
    torch.cuda.synchronize()


def nccl_job():
    import torch  # noqa: F401  (skipped without it)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = []
    for buffers in ("1", "0"):  # NCCL's own buffers: of cuMemCreate; of cudaMalloc, and shared by legacy IPC
        environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
                                    "NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_ENABLE": buffers}
        ranks = [subprocess.Popen([sys.executable, __file__, "nccl", str(rank)], env=environment | {"RANK": str(rank)},
                                  stdout=subprocess.PIPE, text=True) for rank in range(2)]
        outputs = [rank.communicate(timeout=150)[0] for rank in ranks]
        if any(rank.returncode != 0 for rank in ranks):
            sys.exit(f"a rank failed with NCCL_CUMEM_ENABLE={buffers}")
        values += [line for output in outputs for line in output.splitlines() if line.startswith("VALUE")]
        port += 1
        if buffers == "0":
            served = {device for output in outputs for line in output.splitlines() if line.startswith("RESULT")
                      for device in json.loads(line[len("RESULT "):])["served"] or []}
    print("\n".join(values))
    return sorted(served)


JOBS = {"cupy": cupy_job, "jax": jax_job, "torch": torch_job, "nccl": nccl_job}


def served_devices():
    """None where nofrag is not in the process."""
    told = statistics()
    return None if told is None else sorted(d["device"] for d in told["devices"] if d["peak_live_bytes"] > 0)


def main():
    job = sys.argv[1]
    if job == "jax":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"
    served = None
    try:
        if len(sys.argv) == 3:
            nccl_rank(int(sys.argv[2]))
        else:
            served = JOBS[job]()
    except ImportError as missing:
        print(f"{job}: {missing}")
        sys.exit(SKIPPED)
    print("RESULT", json.dumps({"served": served or served_devices()}), flush=True)


if __name__ == "__main__":
    main()
