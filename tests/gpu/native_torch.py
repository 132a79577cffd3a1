#!/usr/bin/env python3
"""PyTorch on the native allocator, on a GPU: every check in a process of its own, and a table.

usage: native_torch.py [--core build/release/lib/libnofrag.so] [--library LIBNOFRAG_TORCH] [--only NAME,...]
                       [--native] [--list]

Builds libnofrag_torch_2_N.so for the PyTorch of this python3 unless --library names one (native_build.py).
--native runs the same checks on PyTorch's own allocator: what fails there is the check's fault. Exit 1 if a
check failed, 77 without a GPU or PyTorch.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

import native_build

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
MODULES = ("native_checks", "native_pool_checks", "native_process_checks")


def checks():
    found = {}
    for name in MODULES:
        found.update(__import__(name).CHECKS)
    return found


def install(library):
    """Puts nofrag in PyTorch's place, as the Python package does; None: leaves PyTorch's own."""
    import torch

    if not library:
        return torch
    door = ctypes.CDLL(library)
    door.nofrag_torch_native_error.restype = ctypes.c_char_p
    if door.nofrag_torch_native_install() != 0:
        raise RuntimeError(door.nofrag_torch_native_error().decode())
    assert door.nofrag_torch_native_installed() == 1
    assert not torch.cuda.is_initialized(), "installing must not start CUDA"
    return torch


def run_one(name, library):
    """In the process of one check."""
    check = checks()[name]
    try:
        torch = install(library)
        said = check(torch)
    except Exception:
        traceback.print_exc()
        return 1
    print("SAID", json.dumps(said))
    return 0


def run_check(name, library, timeout):
    """(name, exit status, output, seconds)"""
    started = time.time()
    command = [sys.executable, "-u", __file__, "--check", name]
    if library:
        command += ["--library", str(library)]
    environment = dict(os.environ, NOFRAG_TORCH_LIBRARY=str(library or ""))
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, env=environment
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, output = -1, (late.stdout or b"").decode(errors="replace") + "\nTIMED OUT"
    return name, status, output, time.time() - started


def run_all(names, library, timeout, jobs):
    failed = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, status, output, seconds in pool.map(lambda name: run_check(name, library, timeout), names):
            said = [line[5:] for line in output.splitlines() if line.startswith("SAID ")]
            verdict = "ok" if status == 0 and said else f"FAILED ({status})"
            what = json.loads(said[-1]) if said else ""
            print(f"{name:34} {verdict:12} {seconds:6.1f} s  {what or ''}", flush=True)
            if verdict != "ok":
                failed.append(name)
                print("\n".join("    " + line for line in output.splitlines()[-40:]), flush=True)
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--core", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--library")
    parser.add_argument("--only", default="")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="checks at a time (times then say little)")
    parser.add_argument("--timeout", type=float, default=240)
    parser.add_argument("--check", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if arguments.check:
        return run_one(arguments.check, arguments.library)
    names = [name for name in arguments.only.split(",") if name] or list(checks())
    if arguments.list:
        print("\n".join(names))
        return 0
    if native_build.torch_folder() is None:
        print("skipped: this python3 has no PyTorch")
        return SKIPPED
    if subprocess.run([sys.executable, "-c", "import torch,sys; sys.exit(not torch.cuda.is_available())"]).returncode:
        print("skipped: no GPU")
        return SKIPPED
    library = arguments.library
    if not library and not arguments.native:
        library = native_build.build(arguments.core, pathlib.Path(tempfile.mkdtemp(prefix="nofrag-torch-")))
    return run_all(names, None if arguments.native else library, arguments.timeout, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
