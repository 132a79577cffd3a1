"""Checks of native_torch.py: training as on PyTorch's own allocator, other processes, start and end."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

MIB = 1 << 20
CHECKS = {}
HERE = pathlib.Path(__file__).resolve().parent


def check(function):
    CHECKS[function.__name__] = function
    return function


def door():
    """The library of the run this process belongs to, or None: PyTorch's own allocator."""
    return os.environ.get("NOFRAG_TORCH_LIBRARY") or None


def python(code, library, **variables):
    """The last line of what a fresh interpreter prints, as JSON."""
    prelude = f"import sys; sys.path.insert(0, {str(HERE)!r}); import native_torch, json\n"
    prelude += f"torch = native_torch.install({str(library) if library else None!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, env=dict(os.environ, **variables)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


TRAINING = """
import native_process_checks
print(json.dumps(native_process_checks.train(torch)))
"""


def train(torch):
    """A small transformer with sequences of changing length. Its losses and weights, to the last bit."""
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True)
    # The other kernels of attention add up gradients in whatever order their blocks finish.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, times = [], []
    for step in range(60):
        length = 64 + (step * 37) % 192
        x = torch.randn(16, length, 256, device="cuda")
        begin = time.perf_counter()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return {
        "losses": [loss.hex() for loss in losses],
        "weights": digest.hexdigest(),
        "step_ms": sorted(times[20:])[20] * 1e3,
        "reserved": torch.cuda.max_memory_reserved(),
        "requested": torch.cuda.memory_stats()["requested_bytes.all.peak"],
        "allocated": torch.cuda.max_memory_allocated(),
    }


@check
def training_is_bit_identical(torch):
    settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    native, _ = python(TRAINING, None, **settings)
    ours, _ = python(TRAINING, door(), **settings)
    pairs = enumerate(zip(native["losses"], ours["losses"]))
    differ = [(step, float.fromhex(a), float.fromhex(b)) for step, (a, b) in pairs if a != b]
    assert not differ, f"{len(differ)} losses differ, at first (step, native's, ours): {differ[0]}"
    assert ours["weights"] == native["weights"], "weights differ"
    assert ours["requested"] == native["requested"], (ours["requested"], native["requested"])
    # Native's blocks may be larger than what was asked for by what it does not split off.
    assert ours["requested"] <= ours["allocated"] <= native["allocated"], (ours["allocated"], native["allocated"])
    return (
        f"step {native['step_ms']:.2f} ms natively, {ours['step_ms']:.2f} here; reserved "
        f"{native['reserved'] // MIB} and {ours['reserved'] // MIB} MiB"
    )


@check
def keys_are_pytorchs_own(torch):
    code = "torch.empty(1, device='cuda'); print(json.dumps(sorted(torch.cuda.memory_stats())))"
    native, _ = python(code, None)
    ours, _ = python(code, door())
    assert ours == native, set(ours) ^ set(native)
    code = "torch.empty(1, device='cuda'); s = torch.cuda.memory._snapshot(); print(json.dumps([sorted(s), "
    code += "sorted(s['segments'][0]), sorted(s['segments'][0]['blocks'][0]), sorted(s['allocator_settings'])]))"
    native, _ = python(code, None)
    ours, _ = python(code, door())
    assert ours == native, (ours, native)
    return f"{len(native[3])} settings"


def receive(library, wanted, results):
    """In another process: reads what it is sent, writes into it, and says what it read."""
    import native_torch

    torch = native_torch.install(library)
    torch.cuda.init()
    for _ in range(wanted.get()):
        tensor = wanted.get()
        results.put(float(tensor.double().sum()))
        tensor.add_(1)
        torch.cuda.synchronize()
        results.put("written")
        wanted.get()  # the sender has looked
        del tensor


@check
def tensors_between_processes(torch):
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    wanted, results = context.Queue(), context.Queue()
    child = context.Process(target=receive, args=(door(), wanted, results))
    child.start()
    sizes = [1, 1000, MIB, 3 * MIB + 77, 100 * MIB]
    wanted.put(2 * len(sizes))
    for size in [*sizes, *sizes]:
        around = [torch.empty(size, device="cuda") for _ in range(3)]
        tensor = torch.full((size,), 2.0, device="cuda")
        wanted.put(tensor)
        assert results.get(timeout=60) == 2.0 * size
        assert results.get(timeout=60) == "written"
        assert float(tensor.double().sum()) == 3.0 * size, size
        wanted.put("next")
        del tensor, around
    child.join(60)
    assert child.exitcode == 0, child.exitcode
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    return f"{len(sizes)} sizes, up to 400 MiB"


@check
def ends_cleanly_with_live_tensors(torch):
    code = "x = [torch.empty(1000, device='cuda') for _ in range(100)]; print(json.dumps(1))"
    _, errors = python(code, door())
    assert "terminate" not in errors and "Error" not in errors, errors
    code = """
import os
x = torch.ones(1000, device='cuda')
child = os.fork()
if child == 0:
    del x
    os._exit(0)
status = os.waitpid(child, 0)[1]
print(json.dumps([status, float(x.sum())]))
"""
    said, _ = python(code, door())
    assert said == [0, 1000.0], said


@check
def forked_data_loaders(torch):
    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return torch.full((1000,), float(index))

    torch.ones(1, device="cuda")
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    total = sum(float(batch.cuda(non_blocking=True).sum()) for batch in loader)
    assert total == 1000 * 64 * 63 / 2


@check
def importing_starts_nothing(torch):
    code = "import native_torch; print(json.dumps(torch.cuda.is_initialized()))"
    said, _ = python(code, door())
    assert said is False
    code = """
import ctypes
if %r:
    again = ctypes.CDLL(%r)
    assert again.nofrag_torch_native_install() == 0, "a second time is no fault"
x = torch.ones(10, device='cuda')
print(json.dumps(float(x.sum())))
""" % (bool(door()), door())
    said, _ = python(code, door())
    assert said == 10.0
