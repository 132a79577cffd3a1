#!/usr/bin/env python3
"""Conformance: what PyTorch promises of its CUDA allocator, checked under PyTorch's own and under nofrag.

usage: run.py --allocator native|nofrag [--library DIR] [--out DIR] [--only WORD,...] [--jobs N]

DIR holds libnofrag.so and libnofrag_torch_*.so (default: build/release/lib). The checks are the same under
both; those of checks/doors.py marked "nofrag" are about nofrag's way in and are not counted under native.
Each check is a process of its own, forked from one that has imported torch (and not touched the GPU). Prints
a table; results.json and logs/NAME.log go to --out (default build/conformance/ALLOCATOR). Exit 1 if a check
failed, 77 if there is no GPU or no PyTorch.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SKIPPED = 77


def lay_out(out):
    """A folder with the entry point `torch.backends`, as build/release/share/nofrag/python has it, over the
    packages of this checkout."""
    info = out / "python" / "nofrag-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nofrag\nVersion: 0\n")
    (info / "entry_points.txt").write_text((ROOT / "torch_plugin/package/entry_points.txt").read_text())
    return [str(out / "python"), str(ROOT / "torch_plugin")]


def environment(args):
    made = {name: value for name, value in os.environ.items() if not name.startswith(("NOFRAG_", "PYTORCH_"))}
    paths = [made["PYTHONPATH"]] if made.get("PYTHONPATH") else []
    made["PYTHONPATH"] = os.pathsep.join(lay_out(args.out) + paths)
    made["NOFRAG_LIBRARY"] = str(args.library / "libnofrag.so")
    made["NOFRAG_TORCH"] = "1" if args.allocator == "nofrag" else "0"
    made["CONFORMANCE_ALLOCATOR"] = args.allocator
    made.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    made["TORCHINDUCTOR_CACHE_DIR"] = str(args.out / "inductor")
    made["PYTHONUNBUFFERED"] = "1"
    return made


def table(results):
    for result in results:
        line = f"{result['outcome']:7} {result['seconds']:6.1f} s  {result['name']}"
        print(line + (f": {result['text']}" if result["text"] else ""))
    counts = collections.Counter(result["outcome"] for result in results)
    # "N passed, N failed" closes the output, whatever else there was.
    print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skipped'] + counts['n/a']} skipped")
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=["native", "nofrag"], required=True)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build/release/lib", metavar="DIR")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--only", default="", help="checks whose name has one of these words")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="checks at a time")
    args = parser.parse_args()
    args.library = args.library.resolve()
    args.out = (args.out or ROOT / "build/conformance" / args.allocator).resolve()
    (args.out / "logs").mkdir(parents=True, exist_ok=True)
    if args.allocator == "nofrag" and not (args.library / "libnofrag.so").exists():
        parser.error(f"there is no libnofrag.so in {args.library}: build it, or give --library")
    started = time.time()
    command = [sys.executable, str(HERE / "worker.py"), str(args.out), str(args.jobs), args.only]
    status = subprocess.run(command, env=environment(args)).returncode
    results_file = args.out / "results.json"
    if status == SKIPPED:
        sys.exit(SKIPPED)
    if status != 0:
        sys.exit(f"the worker ended with status {status}")
    document = json.loads(results_file.read_text())
    print(f"\n{args.allocator}, torch {document['torch']}, {document['gpu']}, {time.time() - started:.0f} s in all")
    counts = table(document["results"])
    if counts["FAILED"]:
        sys.exit(1)
    sys.exit(0 if counts["ok"] else SKIPPED)


if __name__ == "__main__":
    main()
