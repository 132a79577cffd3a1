#!/usr/bin/env python3
"""nofrag's hot path beside other allocators, on this machine's GPU: builds the program of peers.cc once a
family of allocators, runs it once an allocator, and writes a table.

usage: run.py [--library LIBNOFRAG] [--rmm DIR] [--peers NAME,...] [--patterns NAME,...] [--threads N,...]
              [--rounds N] [--passes N] [--round-ms X] [--seconds X]

PyTorch is that of this Python; RMM is the unpacked wheels of librmm and rapids-logger in DIR (or installed).
What is missing or does not build is skipped by name. Results go to $OUT (default build/peers): peers.csv,
rounds.csv (every round), peers.json, build.log. Exit 1 if a program failed; 77 if there is no GPU or no nvcc.
"""

import argparse
import csv
import ctypes
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
REFERENCE = "torch-native"
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF"
# name, family, environment; in the order of the table.
PEERS = [
    ("nofrag", "nofrag", {}),
    ("nofrag-torch-hooks", "nofrag", {}),
    ("torch-native", "torch", {EXPANDABLE: "expandable_segments:False"}),
    ("torch-expandable", "torch", {EXPANDABLE: "expandable_segments:True"}),
    ("cuda-malloc-async", "cuda", {}),
    ("cub-caching", "cuda", {}),
    ("rmm-pool", "rmm", {}),
    ("rmm-arena", "rmm", {}),
    ("rmm-cuda-async", "rmm", {}),
    ("none", "nofrag", {}),
]
SOURCES = {"nofrag": "nofrag_peer.cc", "torch": "torch_peer.cc", "cuda": "cuda_peer.cu", "rmm": "rmm_peer.cc"}
SHORT = {"nofrag-torch-hooks": "nofrag-hooks", "torch-expandable": "torch-expand.", "cuda-malloc-async": "malloc-async",
         "rmm-cuda-async": "rmm-async"}


def find_nvcc():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return nvcc if os.path.exists(nvcc) else None


def have_gpu():
    """Asked of the driver itself: nvidia-smi may be missing, and does not heed CUDA_VISIBLE_DEVICES."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def link_with(*libraries):
    """Options that link these files and find them again at run time. Paths go to the linker as they are: nvcc
    does not know libX.so.13. --no-as-needed, because one library may be there for another's sake."""
    options = ["-Xlinker", "--no-as-needed"]
    for library in libraries:
        folder = str(pathlib.Path(library).resolve().parent)
        options += ["-Xlinker", str(library), "-Xlinker", "-rpath", "-Xlinker", folder]
    return options


def system_includes(*folders):
    return [word for folder in folders for word in ("-isystem", str(folder))]


# ---- What each family needs: its options for nvcc, or a str with the reason for leaving it out.

def nofrag_options(args, nvcc):
    return link_with(args.library)


def cuda_options(args, nvcc):
    return []


def torch_options(args, nvcc):
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is not installed ({error})"
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    folder = pathlib.Path(torch.__file__).parent
    try:
        from torch.utils.cpp_extension import include_paths
        includes = include_paths()
    except Exception:  # it wants setuptools, and a toolkit where it expects one
        includes = [folder / "include"]
    # The very CUDA runtime that PyTorch runs on, so that the program has no second one.
    maps = pathlib.Path("/proc/self/maps").read_text()
    runtime = re.search(r"\S*/libcudart[^/\s]*\.so[.\d]*", maps)
    if runtime is None:
        return "no libcudart is loaded with PyTorch"
    return [*system_includes(*includes), f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            "-cudart", "none", *link_with(folder / "lib/libc10_cuda.so", folder / "lib/libc10.so", runtime.group())]


def rmm_options(args, nvcc):
    if args.rmm:
        folders = [pathlib.Path(args.rmm).resolve()]
    else:
        spec = importlib.util.find_spec("librmm")
        folders = [pathlib.Path(place).parent for place in spec.submodule_search_locations or []] if spec else []
    for folder in folders:
        rmm, logger = folder / "librmm", folder / "rapids_logger"
        if (rmm / "include/rmm").is_dir():
            # RMM brings the CCCL that it was built with: before the toolkit's.
            return [*system_includes(rmm / "include/rapids", rmm / "include", logger / "include"),
                    *link_with(rmm / "lib64/librmm.so", logger / "lib64/librapids_logger.so")]
    return "no librmm/include/rmm" + (" in --rmm" if args.rmm else "; --rmm names a folder with the unpacked wheels")


OPTIONS = {"nofrag": nofrag_options, "torch": torch_options, "cuda": cuda_options, "rmm": rmm_options}


def build(args, nvcc, families, out):
    """({family: program}, {family: reason why not}). All at once: a compiler each."""
    programs, reasons, running = {}, {}, {}
    for family in families:
        options = OPTIONS[family](args, nvcc)
        if isinstance(options, str):
            reasons[family] = options
            continue
        program = out / f"peers-{family}"
        sources = [str(HERE / name) for name in ("peers.cc", "loads.cc", "cuda_device.cc", SOURCES[family])]
        command = [nvcc, "-O2", "-std=c++20", "-I", str(HERE.parent), "-I", str(ROOT / "include"), *sources, *options,
                   "-o", str(program)]
        running[family] = (program, command, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"))
    with open(out / "build.log", "w") as log:
        for family, (program, command, process) in running.items():
            output = process.communicate()[0]
            log.write(f"$ {shlex.join(command)}\n{output}-- exit {process.returncode}\n\n")
            if process.returncode == 0:
                programs[family] = program
            else:
                told = [line for line in output.splitlines() if "error" in line] or output.splitlines() or [""]
                reasons[family] = f"does not build, see build.log: {told[0][:160]}"
    return programs, reasons


def measure(program, peer, environment, args, rounds, seconds):
    """(rounds as dictionaries, {key: value} of the program's info lines, exit status, last words)."""
    command = [str(program), "--peer", peer, "--rounds", str(rounds), "--round-ms", str(args.round_ms),
               "--threads", args.threads, "--seconds", f"{seconds:.1f}"]
    if args.patterns:
        command += ["--patterns", args.patterns]
    setting = {key: value for key, value in os.environ.items() if key not in (EXPANDABLE, "PYTORCH_ALLOC_CONF")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                               env={**setting, **environment})
    try:
        output, errors = process.communicate(timeout=2 * seconds + 15)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        status, errors = -1, errors + "\ntimed out"
    found, info = parse(output)
    words = (errors.strip() or output.strip()).splitlines() or [""]
    return found, info, status, words[-1] if status == -1 else words[0]


def parse(output):
    found, info = [], {}
    for line in output.splitlines():
        kind, _, rest = line.partition(",")
        if kind == "round":
            pattern, threads, streams, number, ns, pairs = rest.split(",")
            found.append({"pattern": pattern, "threads": int(threads), "streams": streams, "round": int(number),
                          "ns_per_pair": float(ns), "pairs": int(pairs)})
        elif kind == "info":
            key, _, value = rest.partition(",")
            info[key] = value
    return found, info


def summarise(rounds):
    """One dictionary a (peer, pattern, threads, streams), in order of appearance, from rounds of all passes."""
    groups = {}
    for row in rounds:
        key = (row["peer"], row["pattern"], row["threads"], row["streams"])
        groups.setdefault(key, []).append(row["ns_per_pair"])
    medians = {key: statistics.median(values) for key, values in groups.items()}
    cells = []
    for key, values in groups.items():
        reference = medians.get((REFERENCE, *key[1:]))
        cells.append({**dict(zip(("peer", "pattern", "threads", "streams"), key)), "rounds": len(values),
                      "median_ns": round(medians[key], 2), "lowest_ns": min(values), "highest_ns": max(values),
                      "mpairs_per_s": round((1 if key[1] == "producer-consumer" else key[2]) * 1000 / medians[key], 4),
                      "ratio_to_torch_native": round(medians[key] / reference, 4) if reference else None})
    return cells


def table(cells, skipped):
    """Lines: a row a pattern, a column a peer, skipped ones too."""
    by_key = {(c["peer"], c["pattern"], c["threads"], c["streams"]): c for c in cells}
    rows = list(dict.fromkeys((c["pattern"], c["threads"], c["streams"]) for c in cells))
    order = [name for name, _, _ in PEERS]
    peers = sorted({c["peer"] for c in cells} | set(skipped), key=order.index)
    lines = [f"{'ns a pair (times torch-native)':34}" + "".join(f"{SHORT.get(peer, peer):>15}" for peer in peers)]
    for pattern, threads, streams in rows:
        what = f"{pattern}, {threads} thread{'s' if threads > 1 else ''}, {streams}"
        texts = []
        for peer in peers:
            cell = by_key.get((peer, pattern, threads, streams))
            if cell is None:
                texts.append("skipped" if peer in skipped else "-")
                continue
            ratio = cell["ratio_to_torch_native"]
            texts.append(f"{cell['median_ns']:.0f}" + ("" if ratio is None else f" ({ratio:.2f})"))
        lines.append(f"{what:34}" + "".join(f"{text:>15}" for text in texts))
    return lines


def arguments():
    """As given, but no path of this machine: results are committed."""
    return [os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:]]


def environment():
    found = {"cores": os.cpu_count()}
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        lines = subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines()
        if lines:
            found["gpu"] = lines[0]
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.__version__
    if os.environ.get("NOFRAG_CONF"):
        found["nofrag_conf"] = os.environ["NOFRAG_CONF"]
    return found


class Results:
    def __init__(self, out):
        self.out = out
        self.rounds, self.info, self.skipped, self.problems = [], {}, {}, []

    def add(self, peer, number, found, info):
        self.rounds += [{"peer": peer, "pass": number, **row} for row in found]
        self.info.setdefault(peer, {}).update(info)

    def write(self):
        cells = summarise(self.rounds)
        for name, rows in (("peers.csv", cells), ("rounds.csv", self.rounds)):
            with open(self.out / name, "w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]) if rows else ["peer"])
                writer.writeheader()
                writer.writerows(rows)
        document = {"schema": "nofrag.peers/1", "date": time.strftime("%Y-%m-%d"), **environment(),
                    "command": " ".join(["bench/peers/run.py", *arguments()]), "peers": self.info, "cells": cells,
                    "skipped": self.skipped, "problems": self.problems}
        (self.out / "peers.json").write_text(json.dumps(document, indent=1) + "\n")
        return cells


def run_passes(args, plan, results):
    """Every peer once a pass, in the other order every other time, so that a machine that slows down or warms up
    shows in nobody's figures alone."""
    deadline = time.monotonic() + args.seconds
    left = args.passes * len(plan)
    gone = set()  # no second try: it would cost the others' time
    for number in range(args.passes):
        rounds = args.rounds // args.passes + (number < args.rounds % args.passes)
        for peer, program, setting in plan if number % 2 == 0 else reversed(plan):
            remaining = deadline - time.monotonic()
            share = max(4.0, 2 * remaining / left)
            left -= 1
            if peer in gone or rounds == 0:
                continue
            if remaining <= 0:
                results.problems.append(f"{peer}: no time left in pass {number + 1}")
                continue
            began = time.monotonic()
            found, info, status, words = measure(program, peer, setting, args, rounds, share)
            print(f"-- pass {number + 1}, {peer}: exit {status}, {len(found)} figures, "
                  f"{time.monotonic() - began:.1f} s", flush=True)
            results.add(peer, number + 1, found, info)
            if status == SKIPPED:
                results.skipped[peer] = words.removeprefix("skipped: ")
            elif status != 0:
                results.problems.append(f"{peer}: exit {status}: {words}")
            if status != 0:
                gone.add(peer)


def parse_arguments():
    names = [name for name, _, _ in PEERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--rmm", metavar="DIR", help="folder with the unpacked wheels of librmm and rapids-logger")
    parser.add_argument("--peers", default=",".join(names), help="some of " + ", ".join(names))
    parser.add_argument("--patterns", help="some of pair-4k, mixed, large-repeat, large-cycle, producer-consumer, holes")
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--rounds", type=int, default=11, help="of each figure, over all passes")
    parser.add_argument("--passes", type=int, default=2, help="over all peers; the rounds are shared out among them")
    parser.add_argument("--round-ms", type=float, default=30)
    parser.add_argument("--seconds", type=float, default=210, help="for all measurements; slow peers get fewer rounds")
    args = parser.parse_args()
    args.library = os.path.abspath(args.library)
    args.wanted = args.peers.split(",")
    if set(args.wanted) - set(names):
        parser.error(f"--peers takes {', '.join(names)}")
    if args.passes < 1 or args.rounds < args.passes:
        parser.error("--passes is at least 1, --rounds at least --passes")
    return args


def main():
    args = parse_arguments()
    nvcc = find_nvcc()
    if nvcc is None or not have_gpu():
        print("skipped: " + ("nvcc is not installed" if nvcc is None else "there is no GPU"))
        sys.exit(SKIPPED)
    if not os.path.exists(args.library):
        sys.exit(f"{args.library} does not exist: build it, or give --library")
    out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "peers")
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out)
    wanted = [peer for peer in PEERS if peer[0] in args.wanted]
    began = time.monotonic()
    programs, reasons = build(args, nvcc, list(dict.fromkeys(family for _, family, _ in wanted)), out)
    print(f"-- built {', '.join(programs) or 'nothing'} in {time.monotonic() - began:.1f} s", flush=True)
    results.skipped = {peer: reasons[family] for peer, family, _ in wanted if family in reasons}
    if "nofrag" in reasons:
        results.problems.append(f"nofrag: {reasons['nofrag']}")
    run_passes(args, [(peer, programs[family], setting) for peer, family, setting in wanted if family in programs], results)
    cells = results.write()
    for program in programs.values():
        program.unlink()
    print("\n".join(["", *table(cells, results.skipped), ""]))
    for peer, info in results.info.items():
        if not info:
            continue
        held = int(info["held_bytes"]) / 2**30 if "held_bytes" in info else float("nan")
        print(f"{peer}: {info.get('settings', '')}; held {held:.2f} GiB before the holes; {info.get('holes', 'no')} holes")
    for peer, reason in results.skipped.items():
        print(f"skipped {peer}: {reason}")
    for problem in results.problems:
        print(f"PROBLEM {problem}")
    print(f"{len(cells)} figures, {len(results.problems)} problems, {len(results.skipped)} skipped; written to {out}")
    sys.exit(1 if results.problems else 0 if cells else SKIPPED)


if __name__ == "__main__":
    main()
