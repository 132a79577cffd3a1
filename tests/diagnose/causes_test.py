#!/usr/bin/env python3
"""Generated runs of each cause (generate.py, messages.py): the right cause in at least 95 %, and evidence that is true.

usage: causes_test.py --nofrag PROGRAM [--seeds N] [--first SEED]. Seeds are printed with what is wrong.
"""

import argparse
import collections
import pathlib
import re
import sys
import tempfile

import generate
import messages
from explain import explain

LEAST_RIGHT = 0.95
# Said of a job's blocks, they are true of contexts alone.
MADE_ANEW = ("made anew", "more came in its place")
# What a verdict says that may be another's: how sure it may be at most, and the words that name the other.
UNSURE = 0.5
MAY_BE_A_LEAK = "it is a leak if"
# The other way round, where there are many parts.
UNSURE_LEAK = 0.65
MAY_BE_A_STEP = "of so many like parts (layers, experts) would look the same"
FIRST_TO_LOOK_FOR = re.compile(r"blocks of ([\d.]+) (B|KiB|MiB|GiB) are the first to look for")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    parser.add_argument("--seeds", type=int, default=12, help="variants of each cause")
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    right, runs, wrong, untrue = collections.Counter(), collections.Counter(), [], []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "run.csv"
        for cause, make in [*generate.CAUSES.items(), *generate.MORE]:
            for seed in seeds:
                run = make(seed)
                verdict = judge(arguments.nofrag, cause, seed, of_run(path, run), "", right, runs, wrong)
                if cause == verdict["cause"] == "leak" and not names_what_stays(verdict, run[0]):
                    untrue.append(f"{make.__name__}, seed {seed}: {verdict['advice']}")
                if cause != "kv_cache_growth" and says_made_anew(verdict):
                    untrue.append(f"{make.__name__}, seed {seed}: {verdict['evidence']}")
        doubts = [(make, may_be_a_leak) for make in generate.UNTOLD]
        for make, doubted in doubts + [(make, may_be_a_step) for make in generate.STEP_UNTOLD]:
            for seed in seeds:
                verdict = explain(arguments.nofrag, "", *of_run(path, make(seed)))
                if not doubted(verdict):
                    untrue.append(f"{make.__name__}, seed {seed}: said {verdict['cause']} ({verdict['confidence']}): "
                                  f"{verdict['evidence']}")
    for cause, make in messages.CAUSES.items():
        for seed in seeds:
            judge(arguments.nofrag, cause, seed, (), make(seed), right, runs, wrong)
    for cause in runs:
        print(f"{cause:18} {right[cause]:3} of {runs[cause]:3} right")
    for line in wrong + untrue:
        print(line)
    false_fragmentation = [line for line in wrong if "said fragmentation" in line]
    least = min(right[cause] / runs[cause] for cause in runs)
    share = sum(right.values()) / sum(runs.values())
    ok = share >= LEAST_RIGHT and least >= 0.8 and not false_fragmentation
    print(f"{100 * share:.1f} % right" + ("" if ok else "; at least 95 % are asked for, and never a false fragmentation"))
    if untrue:
        print(f"{len(untrue)} runs were told for certain, or with evidence, that cannot be so")
    return 0 if ok and not untrue else 1


def of_run(path, run):
    """The arguments that explain a generated run."""
    text, capacity = run
    path.write_text(text)
    return str(path), "--capacity", f"{capacity}B"


def says_made_anew(verdict):
    return any(words in line for line in verdict["evidence"] for words in MADE_ANEW)


def names_what_stays(verdict, text):
    """The size to look for first is one of those that are never freed, of what is allocated once the work has begun."""
    said = [words for line in verdict["advice"] for words in FIRST_TO_LOOK_FOR.findall(line)]
    rows = [line.split(",") for line in text.splitlines()[1:]]
    begun = next((i for i, row in enumerate(rows) if row[1] == "f"), len(rows))
    freed = {row[2] for row in work_of(rows) if row[1] == "f"}
    stay = {-(-int(row[3]) // 512) * 512 for row in rows[begun:] if row[1] == "a" and row[2] not in freed}
    sizes = [float(number) * UNITS[unit] for number, unit in said]
    return bool(sizes) and all(any(abs(size - one) <= 0.01 * one for one in stay) for size in sizes)


def work_of(rows):
    """Without the frees at the end, where they are those of a process that ends and frees all it has."""
    last = max(i for i, row in enumerate(rows) if row[1] == "a")
    everything = len(rows) == 2 * sum(row[1] == "a" for row in rows)
    return rows[:last + 1] if everything else rows


def may_be_a_leak(verdict):
    if verdict["cause"] == "batch_too_large":
        return verdict["confidence"] <= UNSURE and any(MAY_BE_A_LEAK in line for line in verdict["evidence"])
    return verdict["cause"] == "leak"


def may_be_a_step(verdict):
    """For what is one step: a leak is no more than a doubt, or said with it."""
    if verdict["cause"] == "leak":
        return verdict["confidence"] <= UNSURE_LEAK and any(MAY_BE_A_STEP in line for line in verdict["evidence"])
    return verdict["cause"] == "batch_too_large"


def judge(program, cause, seed, arguments, text, right, runs, wrong):
    verdict = explain(program, text, *arguments)
    runs[cause] += 1
    if verdict["cause"] == cause and verdict["advice"] and verdict["evidence"]:
        right[cause] += 1
    else:
        wrong.append(f"{cause}, seed {seed}: said {verdict['cause']} ({verdict['confidence']}): {verdict['evidence']}")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
