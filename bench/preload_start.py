#!/usr/bin/env python3
"""What the preload adds to the start of a program that has nothing to do with CUDA.

usage: preload_start.py [--library LIBNOFRAG] [--runs N]; prints medians in milliseconds; exit 1 above --most.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--most", type=float, default=3.0, help="most milliseconds more for /bin/true")
    args = parser.parse_args()
    programs = {"/bin/true": ["/bin/true"], "bash": ["bash", "-c", "true"], "python3": [sys.executable, "-S", "-c", ""]}
    worst = 0.0
    for name, command in programs.items():
        times = {False: [], True: []}
        for _ in range(args.runs):
            for preload in (False, True):
                environment = {"LD_PRELOAD": args.library} if preload else {}
                begin = time.perf_counter()
                subprocess.run(command, env={"PATH": "/usr/bin:/bin", **environment}, check=True)
                times[preload].append(1000 * (time.perf_counter() - begin))
        plain, ours = statistics.median(times[False]), statistics.median(times[True])
        print(f"{name:10} {plain:7.2f} ms, preloaded {ours:7.2f}: {ours - plain:.2f} more")
        if name == "/bin/true":
            worst = ours - plain
    sys.exit(1 if worst > args.most else 0)


if __name__ == "__main__":
    main()
