"""How the allocator comes into a process. Those marked "nofrag" are about its own ways in and its fall-backs."""

import os
import pathlib
import shutil
import tempfile

import torch

from .common import LIBRARY, MIB, check, equal, expect, filled, holds, python

USE = """
import torch
kept = torch.full((1 << 20,), 3.0, device="cuda")
assert bool((kept == 3).all())
import sys
doors = sys.modules.get("nofrag_torch.doors")
print(doors.installed().door if doors and doors.installed() else "none", torch.cuda.get_allocator_backend())
"""


@check(initialise=False)
def import_does_not_touch_the_gpu():
    script = """
import os, torch
opened = []
for one in os.listdir("/proc/self/fd"):
    try: opened.append(os.readlink("/proc/self/fd/" + one))
    except OSError: pass
print(torch.cuda.is_initialized(), [one for one in opened if "nvidia" in one])
"""
    equal(python(script), (0, "False []\n", ""), "status, output and errors")


@check(initialise=False)
def without_a_gpu():
    script = "import torch; x = torch.ones(100, 100); print(torch.cuda.is_available(), float((x @ x).sum()))"
    equal(python(script, CUDA_VISIBLE_DEVICES=""), (0, "False 1000000.0\n", ""), "status, output and errors")


@check(initialise=False)
def imported_twice():
    script = """
import importlib, torch
import torch
kept = torch.full((1000,), 3.0, device="cuda")
entries = importlib.metadata.entry_points(group="torch.backends")
for entry in entries: entry.load()()
import torch.cuda.memory
assert bool((kept + torch.full((1000,), 4.0, device="cuda") == 7).all())
print(torch.cuda.memory_allocated() >= 4096)
"""
    equal(python(script), (0, "True\n", ""), "status, output and errors")


@check(initialise=False)
def a_fork_before_cuda_begins_may_use_the_gpu():
    script = """
import os, torch
child = os.fork()
kept = torch.full((1000,), 3.0, device="cuda")
assert bool((kept == 3).all())
if child == 0:
    del kept
    torch.cuda.synchronize()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    equal(python(script), (0, "7\n", ""), "status, output and errors")


@check
def many_processes_at_once():
    import torch.multiprocessing as processes

    context = processes.start_processes(one_of_many, nprocs=3, start_method="spawn", join=False)
    while not context.join(60):
        pass
    expect(holds(filled(MIB, 3), 3), "this process")


def one_of_many(rank):
    kept = [filled(MIB * (rank + 1) + one, rank + 1) for one in range(20)]
    del kept[::2]
    kept.append(filled(30 * MIB, rank + 1))
    expect(all(holds(one, rank + 1) for one in kept), f"process {rank}")


@check(only="nofrag", initialise=False)
def nofrag_is_in_use():
    import nofrag
    import nofrag_torch

    done = nofrag_torch.installed()
    equal(done.door, "native", "the door")
    equal(os.path.realpath(done.library), os.path.realpath(LIBRARY), "the library")
    expect(not torch.cuda.is_initialized(), "installing has initialised CUDA")
    kept = filled(64 * MIB, 3)
    numbers = nofrag.stats()["devices"][0]
    expect(numbers["live_bytes"] >= 64 * MIB, f"nofrag knows of {numbers['live_bytes']} bytes")
    equal(torch.cuda.memory_reserved(), numbers["reserved_bytes"], "memory_reserved against nofrag's number")
    del kept
    torch.cuda.synchronize()
    expect(nofrag.trim() >= 32 * MIB, "trim gave nothing back")
    equal(nofrag_torch.install().door, "native", "the door of a second install()")


@check(only="nofrag", initialise=False)
def switched_off_by_the_environment():
    equal(python(USE, NOFRAG_TORCH="0"), (0, "none native\n", ""), "NOFRAG_TORCH=0")
    equal(python(USE, NOFRAG_TORCH=None), (0, "none native\n", ""), "without NOFRAG_TORCH")
    equal(python(USE, TORCH_DEVICE_BACKEND_AUTOLOAD="0"), (0, "none native\n", ""), "without autoload")


@check(only="nofrag", initialise=False)
def without_the_native_library():
    with tempfile.TemporaryDirectory() as folder:
        library = shutil.copy(LIBRARY, folder)
        status, output, errors = python(USE, NOFRAG_LIBRARY=library)
    equal((status, output), (0, "hooks pluggable\n"), "status and output")
    equal(len(errors.splitlines()), 1, f"lines on stderr ({errors!r})")
    expect("no library for PyTorch" in errors and "C hooks" in errors, f"it says {errors!r}")


@check(only="nofrag", initialise=False)
def with_a_library_that_is_not_one():
    version = "_".join(torch.__version__.split(".")[:2])
    with tempfile.TemporaryDirectory() as folder:
        library = shutil.copy(LIBRARY, folder)
        shutil.copy(LIBRARY, pathlib.Path(folder) / f"libnofrag_torch_{version}.so")
        status, output, errors = python(USE, NOFRAG_LIBRARY=library)
    equal((status, output), (0, "hooks pluggable\n"), "status and output")
    equal(len(errors.splitlines()), 1, f"lines on stderr ({errors!r})")
    expect("cannot be used" in errors, f"it says {errors!r}")


@check(only="nofrag", initialise=False)
def with_another_pytorch():
    """The native library of this PyTorch, under a name that says it is for another, and the other way round."""
    native = pathlib.Path(LIBRARY).parent / f"libnofrag_torch_{'_'.join(torch.__version__.split('.')[:2])}.so"
    expect(native.exists(), f"{native} does not exist")
    script = """
import torch
torch.__version__ = "2.99.0"
import nofrag_torch
print(nofrag_torch.install().door)
"""
    with tempfile.TemporaryDirectory() as folder:
        library = shutil.copy(LIBRARY, folder)
        shutil.copy(native, pathlib.Path(folder) / "libnofrag_torch_2_99.so")
        status, output, errors = python(script, NOFRAG_LIBRARY=library, NOFRAG_TORCH="0")
    equal((status, output), (0, "hooks\n"), "status and output")
    expect("was built for PyTorch" in errors and "this is 2.99" in errors, f"it says {errors!r}")


@check(only="nofrag", initialise=False)
def without_any_library():
    status, output, errors = python(USE, NOFRAG_LIBRARY="/nowhere/libnofrag.so")
    equal((status, output), (0, "none native\n"), "status and output")
    equal(len(errors.splitlines()), 1, f"lines on stderr ({errors!r})")
    expect("/nowhere/libnofrag.so, which does not exist" in errors, f"it says {errors!r}")


@check(only="nofrag", initialise=False)
def too_late():
    script = """
import torch
kept = torch.ones(1, device="cuda")
import nofrag_torch
try:
    nofrag_torch.install()
except RuntimeError as error:
    print("too late" in str(error), float(kept))
"""
    equal(python(script, NOFRAG_TORCH="0"), (0, "True 1.0\n", ""), "status, output and errors")


@check(only="nofrag", initialise=False)
def another_backend_is_respected():
    status, output, errors = python(USE, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    equal((status, output), (0, "none cudaMallocAsync\n"), "status and output")
    expect("cudaMallocAsync" in errors, f"it says {errors!r}")


@check(only="nofrag", initialise=False)
def said_at_most_once():
    status, _, errors = python(USE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,max_split_size_mb:64")
    equal(status, 0, "status")
    equal(len(errors.splitlines()), 1, f"lines on stderr ({errors!r})")
    expect("expandable_segments" in errors and "max_split_size_mb" in errors, f"it says {errors!r}")
    _, _, errors = python(USE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", NOFRAG_LOG="silent")
    equal(errors, "", "with NOFRAG_LOG=silent")
