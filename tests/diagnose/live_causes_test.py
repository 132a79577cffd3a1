#!/usr/bin/env python3
"""The generated runs of generate.py through libnofrag.so itself (a simulated device with just so much memory, thread
caches and all): the error's own text must name the cause in at least 95 %.

usage: live_causes_test.py --library libnofrag.so [--seeds N] [--first SEED]
"""

import argparse
import collections
import concurrent.futures
import ctypes
import os
import subprocess
import sys
import tempfile
import time

import generate
from cards import card_of

LEAST_RIGHT = 0.95
LEAST_PAUSE_US = 500  # shorter ones are the job's own pace
SIDE_BY_SIDE = 4
CAUSES = ("model_too_large", "batch_too_large", "kv_cache_growth", "leak")


def play(library, cause, seed):
    """In a process of its own: the text of the failure, or nothing."""
    text, capacity = generate.CAUSES[cause](seed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NOFRAG_CONF"] = f"driver:sim:{card_of(capacity, folder)},share_status:false"
        return play_on_card(library, text)


def play_on_card(library, text):
    lib = ctypes.CDLL(library)
    lib.nofrag_malloc.restype = ctypes.c_void_p
    lib.nofrag_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    lib.nofrag_free.argtypes = [ctypes.c_void_p]
    blocks, before = {}, 0
    for line in text.splitlines()[1:]:
        at, op, block, size, _ = line.split(",")
        if before and int(at) - before >= LEAST_PAUSE_US:
            time.sleep((int(at) - before) / 1e6)
        before = int(at)
        if op == "f":
            lib.nofrag_free(blocks.pop(block))
            continue
        blocks[block] = lib.nofrag_malloc(int(size), 0, None)
        if not blocks[block]:
            message = ctypes.c_char_p()
            lib.nofrag_last_error(ctypes.byref(message))
            return message.value.decode()
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        print(play(arguments.library, arguments.play[0], int(arguments.play[1])))
        return 0
    right, runs, wrong = collections.Counter(), collections.Counter(), []

    def run(case):
        return subprocess.run([sys.executable, __file__, "--library", arguments.library, "--play", case[0], str(case[1])],
                              capture_output=True, text=True, timeout=120)

    cases = [(cause, seed) for cause in CAUSES for seed in range(arguments.first, arguments.first + arguments.seeds)]
    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for (cause, seed), done in zip(cases, pool.map(run, cases)):
            runs[cause] += 1
            if f"\ncause: {cause} (" in done.stdout:
                right[cause] += 1
            else:
                wrong.append(f"{cause}, seed {seed}: {done.stdout.partition('cause: ')[2].strip() or 'no failure ' + done.stderr}")
    for cause in runs:
        print(f"{cause:18} {right[cause]:3} of {runs[cause]:3} right")
    for line in wrong:
        print(line.replace("\n", " | "))
    share = sum(right.values()) / sum(runs.values())
    print(f"{100 * share:.1f} % right" + ("" if share >= LEAST_RIGHT else "; at least 95 % are asked for"))
    return 0 if share >= LEAST_RIGHT else 1


if __name__ == "__main__":
    sys.exit(main())
