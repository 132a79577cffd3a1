#!/usr/bin/env python3
"""The policy study of docs/decisions/0002: handle size and slack against memory and driver time.

usage: handle_size.py [--nofrag build/release/bin/nofrag] [--sizes 4,8,16,32] [--slacks 0,0.01,0.03]

Replays the traces of bench/traces on sim:h100-80g, once a setting, and prints a Markdown table:
reserved over peak live at unlimited capacity, driver time as a share of the trace (second half in
brackets). Deterministic: the same program gives the same table.
"""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nofrag", default=str(ROOT / "build/release/bin/nofrag"))
    parser.add_argument("--sizes", default="4,8,16,32")
    parser.add_argument("--slacks", default="0,0.01,0.03")
    args = parser.parse_args()
    traces = sorted(str(path) for path in (ROOT / "bench/traces").glob("*.nofrag"))
    print("| handle | slack | " + " | ".join(pathlib.Path(trace).stem for trace in traces) + " |")
    print("|---" * (len(traces) + 2) + "|")
    for size in args.sizes.split(","):
        for slack in args.slacks.split(","):
            command = [args.nofrag, "replay", *traces, "--allocator", "nofrag", "--device", "sim:h100-80g"]
            command += ["--conf", f"handle_size:{size}MiB,reserve_slack:{slack}", "--json", "-", "--quiet"]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            cells = []
            for trace in json.loads(done.stdout)["traces"]:
                run = trace["runs"][0]
                steady = sum(run["driver_us_quarters"][2:]) / (trace["duration_us"] / 2) * 100
                share = run["driver_us_percent_of_trace"]
                cells.append(f"{run['reserved_over_live']:.3f}, {share:.2f} % ({steady:.2f})")
            print(f"| {size} MiB | {float(slack):.0%} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
