#!/usr/bin/env python3
"""One small job under a framework, unmodified, whose numbers must not depend on the preload.

usage: jobs.py cupy|cupy-async|jax|jax-platform|numba|torch

Prints "VALUE ..." lines (compared between runs) and "RESULT {json}": what the device lost between two points of
the job, by the driver's own count, and what nofrag holds more at the second, if it is there.
"""

import ctypes
import json
import os
import subprocess
import sys

MIB = 1 << 20
SKIPPED = 77


def device_used():
    """Bytes in use on the device by the count of the driver's management library."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")

        class Memory(ctypes.Structure):
            _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

        library.nvmlInit_v2()
        device, memory = ctypes.c_void_p(), Memory()
        if library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0:
            if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0:
                return memory.used
    except OSError:
        pass
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) * MIB


def statistics():
    """What nofrag tells of this process; None where it is not preloaded."""
    program = ctypes.CDLL(None)
    if not hasattr(program, "nofrag_stats_json"):
        return None
    needed = ctypes.c_size_t()
    program.nofrag_stats_json(None, 0, ctypes.byref(needed))
    text = ctypes.create_string_buffer(needed.value + 4096)
    return json.loads(text.value.decode()) if program.nofrag_stats_json(text, len(text), None) == 0 else {"devices": []}


def nofrag_holds():
    """Bytes that nofrag holds in this process and those that it saw passing by (JAX creates its memory itself); None
    where it is not preloaded."""
    told = statistics()
    if told is None:
        return None
    held = sum(device["reserved_bytes"] for device in told["devices"][:1])
    return held + sum(passed["total_bytes"] for passed in told.get("passed_on", [])[:1])


class Account:
    def __init__(self):
        self.before = device_used()
        self.points = []

    def point(self):
        self.points.append((device_used(), nofrag_holds()))

    def result(self, job):
        (used_1, held_1), (used_2, held_2) = self.points[0], self.points[-1]
        foreign = None if held_1 is None else used_1 - self.before - held_1
        grown = None if held_1 is None else held_2 - held_1
        return {"job": job, "lost": used_2 - used_1, "ours": grown, "foreign_at_first": foreign}


def value(*numbers):
    print("VALUE", *(float(number).hex() for number in numbers), flush=True)


def cupy_job(account, asynchronous):
    import cupy

    if asynchronous:
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    random = cupy.random.RandomState(3)
    a = random.rand(2000, 2000)
    value((a @ a).sum(), cupy.sort(a.ravel())[::1000].sum(), cupy.unique(cupy.floor(a * 1000)).sum())
    cupy.cuda.Device().synchronize()
    account.point()
    keep = [cupy.full((n << 18,), n, dtype=cupy.float32) for n in range(1, 60)]
    for n in range(0, 59, 3):
        keep[n] = None
    keep += [cupy.full((n << 18,), n, dtype=cupy.float32) for n in range(60, 80)]
    value(sum(float(x.sum()) for x in keep if x is not None))
    account.point()
    free, total = cupy.cuda.runtime.memGetInfo()
    assert 0 < free <= total


def jax_job(account):
    import jax
    import jax.numpy as jnp

    key = jax.random.PRNGKey(0)
    a = jax.random.normal(key, (1024, 1024), dtype=jnp.float32)

    @jax.jit
    def step(x):
        return jnp.tanh(x @ x) * 0.5 + jnp.sort(x, axis=0)

    for _ in range(5):
        a = step(a)
    value(a.sum())
    account.point()
    keep = [jnp.full((n << 18,), n, dtype=jnp.float32) for n in range(1, 60)]
    for n in range(0, 59, 3):
        keep[n] = None
    value(sum(float(x.sum()) for x in keep if x is not None))
    account.point()


def numba_job(account):
    import numpy
    from numba import cuda

    @cuda.jit
    def add(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] += 2 * x[i]

    x = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float64))
    y = cuda.to_device(numpy.ones(1 << 20))
    add[4096, 256](x, y)
    value(y.copy_to_host().sum())
    account.point()
    keep = [cuda.to_device(numpy.full(n << 18, n, dtype=numpy.float32)) for n in range(1, 30)]
    value(sum(float(k.copy_to_host().sum()) for k in keep))
    account.point()


def torch_job(account):
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(8):
        x = torch.randn(256 + 64 * (step % 3), 1024, device="cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value(loss.item())
    account.point()
    keep = [torch.full((n << 18,), float(n), device="cuda") for n in range(1, 60)]
    value(sum(float(k.double().sum()) for k in keep))
    account.point()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total


def main():
    job = sys.argv[1]
    if job.startswith("jax"):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if job == "jax-platform":
            os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
        # Else it times several kernels for a product, and the fastest is another one from run to run.
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"
    account = Account()
    try:
        if job.startswith("cupy"):
            cupy_job(account, job == "cupy-async")
        else:
            {"jax": jax_job, "jax-platform": jax_job, "numba": numba_job, "torch": torch_job}[job](account)
    except ImportError as missing:
        print(f"{job}: {missing}")
        sys.exit(SKIPPED)
    print("RESULT", json.dumps(account.result(job)), flush=True)


if __name__ == "__main__":
    main()
