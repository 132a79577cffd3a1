#!/usr/bin/env python3
"""One job many times: are its results the same to the last bit?

usage: repeat.py --library LIBNOFRAG [--times N] [--side-by-side N] [--more "ARGUMENTS"] JOB WAY...

JOB is one of torch_jobs.py's; a WAY is ALLOCATOR[:DOOR[:CONFIGURATION]], as native or nofrag:hooks:policy:lean.
Every run is compared with the first of the first way. Exit 1 if one differs or dies; 77 without a GPU.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

import torch_jobs


def run(args, way):
    """The job's results in their exact form, or what went wrong."""
    allocator, _, rest = way.partition(":")
    door, _, conf = rest.partition(":")
    command = [sys.executable, "-u", *map(str, torch_jobs.JOBS[args.job]), "--allocator", allocator, "--library", args.library,
               "--door", door or "auto", *args.more.split()]
    environment = {**os.environ, **({"NOFRAG_CONF": conf} if conf else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode == torch_jobs.SKIPPED:
        return torch_jobs.SKIPPED
    results = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(results[-1])["exact"] if results else f"exit {done.returncode}: {done.stderr[-800:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=torch_jobs.JOBS)
    parser.add_argument("ways", nargs="+", metavar="WAY")
    parser.add_argument("--library", required=True)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--more", default="", help="further arguments of the job")
    args = parser.parse_args()
    args.library = os.path.abspath(args.library)
    reference, wrong = run(args, args.ways[0]), 0
    if reference == torch_jobs.SKIPPED:
        print("skipped: no PyTorch, or it sees no GPU")
        return torch_jobs.SKIPPED
    with concurrent.futures.ThreadPoolExecutor(args.side_by_side) as pool:
        for way in args.ways:
            same = 0
            for number, exact in enumerate(pool.map(lambda _, way=way: run(args, way), range(args.times))):
                if exact == reference:
                    same += 1
                    continue
                wrong += 1
                if isinstance(exact, str):
                    print(f"{way}, run {number}: {exact}")
                    continue
                places = [step for step, pair in enumerate(zip(reference, exact)) if pair[0] != pair[1]]
                values = [(float.fromhex(reference[step]), float.fromhex(exact[step])) for step in places[:4]]
                print(f"{way}, run {number}: differs at steps {places} of {len(exact)}: {values}")
            print(f"{way}: {same} of {args.times} the same", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
