#!/usr/bin/env python3
"""Generated runs of each cause (generate.py, messages.py): the right cause in at least 95 %.

usage: causes_test.py --nofrag PROGRAM [--seeds N] [--first SEED]. Seeds are printed with what is wrong.
"""

import argparse
import collections
import pathlib
import sys
import tempfile

import generate
import messages
from explain import explain

LEAST_RIGHT = 0.95


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    parser.add_argument("--seeds", type=int, default=12, help="variants of each cause")
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    right, runs, wrong = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "run.csv"
        for cause, make in [*generate.CAUSES.items(), *generate.MORE]:
            for seed in range(arguments.first, arguments.first + arguments.seeds):
                text, capacity = make(seed)
                path.write_text(text)
                judge(arguments.nofrag, cause, seed, (str(path), "--capacity", f"{capacity}B"), "", right, runs, wrong)
    for cause, make in messages.CAUSES.items():
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            judge(arguments.nofrag, cause, seed, (), make(seed), right, runs, wrong)
    for cause in runs:
        print(f"{cause:18} {right[cause]:3} of {runs[cause]:3} right")
    for line in wrong:
        print(line)
    false_fragmentation = [line for line in wrong if "said fragmentation" in line]
    least = min(right[cause] / runs[cause] for cause in runs)
    share = sum(right.values()) / sum(runs.values())
    ok = share >= LEAST_RIGHT and least >= 0.8 and not false_fragmentation
    print(f"{100 * share:.1f} % right" + ("" if ok else "; at least 95 % are asked for, and never a false fragmentation"))
    return 0 if ok else 1


def judge(program, cause, seed, arguments, text, right, runs, wrong):
    verdict = explain(program, text, *arguments)
    runs[cause] += 1
    if verdict["cause"] == cause and verdict["advice"] and verdict["evidence"]:
        right[cause] += 1
    else:
        wrong.append(f"{cause}, seed {seed}: said {verdict['cause']} ({verdict['confidence']}): {verdict['evidence']}")


if __name__ == "__main__":
    sys.exit(main())
