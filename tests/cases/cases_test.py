#!/usr/bin/env python3
"""Replays the field cases of manifest.json, each at its capacity, and judges how it ends.

usage: cases_test.py [--nofrag build/release/bin/nofrag] [--conf k:v,..] [--table] [ID...]

A case must complete within its rules (reserved over live, driver calls), or run out of memory at the
right event with the right shortfall. Those in `expected_failures` of the manifest must fail: one that
passes has to be taken off the list, which keeps the list true. --table prints how each case ended, as
Markdown, and judges nothing.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BLOCK_UNIT = 512  # live bytes count each block rounded up to this


def replay(nofrag, case, conf):
    """The one run of the case's trace, as nofrag.replay/1 has it; exits where the program breaks."""
    command = [nofrag, "replay", str(HERE / "traces" / case["file"]), "--allocator", "nofrag"]
    command += ["--device", "sim:h100-80g", "--capacity", f"{case['capacity_bytes']}B", "--json", "-", "--quiet"]
    if conf:
        command += ["--conf", conf]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4):
        raise SystemExit(f"case {case['id']}: exit code {done.returncode}: {done.stderr.strip()}")
    trace = json.loads(done.stdout)["traces"][0]
    if trace["events"] != case["events"]:
        raise SystemExit(f"case {case['id']}: {trace['events']} events; the manifest says {case['events']}")
    return trace["runs"][0]


def missing_bytes(case, oom):
    """By how much the request exceeded what the capacity leaves beside live blocks; negative: it fitted."""
    request = -(-oom["requested_bytes"] // BLOCK_UNIT) * BLOCK_UNIT
    return oom["live_bytes"] + request - case["capacity_bytes"]


def broken_rules(case, run):
    """Everything in which the run differs from what the manifest demands, in words."""
    problems = []
    oom = run["oom"]
    if case["expect"] == "completes":
        if not run["completed"]:
            fits = -missing_bytes(case, oom)
            problems.append(f"out of memory at event {oom['event']} with {fits / 2**20:.1f} MiB to spare")
    elif run["completed"]:
        problems.append(f"completed; event {case['event']} cannot be served")
    else:
        if oom["event"] != case["event"]:
            problems.append(f"out of memory at event {oom['event']}, not at {case['event']}")
        elif missing_bytes(case, oom) != -case["margin_bytes"]:
            problems.append(f"short of {missing_bytes(case, oom)} bytes, not of {-case['margin_bytes']}")
        if oom["cause"] != "capacity":
            problems.append(f"cause {oom['cause']}, not capacity")
    most = case["reserved_over_live_max"]
    if most is not None and run["reserved_over_live"] > most:
        problems.append(f"reserved/live {run['reserved_over_live']:.4f} above {most}")
    for call, limit in (case["max_driver_calls"] or {}).items():
        if run["driver_calls"][call] > limit:
            problems.append(f"{run['driver_calls'][call]} {call} calls, more than {limit}")
    return problems


def outcomes(nofrag, conf, cases):
    """[(case, run, problems)] in the manifest's order."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda case: replay(nofrag, case, conf), cases))
    return [(case, run, broken_rules(case, run)) for case, run in zip(cases, runs)]


def print_table(results):
    print("| case | source | reserved/live | maps | driver ms | ends |")
    print("|---|---|---|---|---|---|")
    for case, run, problems in results:
        ends = "as it must" if not problems else "; ".join(problems)
        print(
            f"| {case['id']} | {case['source']} | {run['reserved_over_live']:.4f} | {run['driver_calls']['map']} "
            f"| {run['driver_us'] / 1000:.1f} | {ends} |"
        )
    kept = sum(not problems for _, _, problems in results)
    print(f"\n{kept} of {len(results)} cases end as they must.")


def judge(results, expected_failures):
    """Prints what is wrong; True if nothing is."""
    wrong = 0
    for case, _, problems in results:
        expected = case["id"] in expected_failures
        if problems and not expected:
            wrong += 1
            print(f"FAILED {case['id']} ({case['source']}): {'; '.join(problems)}")
        elif expected and not problems:
            wrong += 1
            print(f"PASSES {case['id']} ({case['source']}): take it off expected_failures in {HERE / 'manifest.json'}")
    held = sum(case["id"] in expected_failures for case, _, _ in results)
    print(f"{len(results)} cases, {wrong} wrong, {held} expected to fail")
    return wrong == 0


def checked_manifest():
    manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
    ids = [case["id"] for case in manifest["cases"]]
    files = sorted(case["file"] for case in manifest["cases"])
    unknown = set(manifest["expected_failures"]) - set(ids)
    if unknown or len(set(ids)) != len(ids):
        raise SystemExit(f"manifest.json: ids twice, or expected failures that are no cases: {sorted(unknown)}")
    if files != sorted(path.name for path in (HERE / "traces").iterdir()):
        raise SystemExit("manifest.json and traces/ do not name the same files")
    return manifest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nofrag", default=str(ROOT / "build/release/bin/nofrag"))
    parser.add_argument("--conf", default="")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("ids", nargs="*", metavar="ID")
    args = parser.parse_args()
    manifest = checked_manifest()
    cases = [case for case in manifest["cases"] if not args.ids or case["id"] in args.ids]
    if not cases or set(args.ids) - {case["id"] for case in cases}:
        raise SystemExit(f"no such case among {' '.join(args.ids)}")
    results = outcomes(args.nofrag, args.conf, cases)
    if args.table:
        print_table(results)
        return
    sys.exit(0 if judge(results, manifest["expected_failures"]) else 1)


if __name__ == "__main__":
    main()
