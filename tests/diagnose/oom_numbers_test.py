#!/usr/bin/env python3
"""The numbers of public out-of-memory reports, in every wording of PyTorch: the verdict must be right.

usage: oom_numbers_test.py --nofrag PROGRAM. The table is oom_numbers.csv; what each expected verdict
means for the answer is in check().
"""

import argparse
import csv
import pathlib
import sys
import unittest

from explain import explain

PROGRAM = None
GIB = 1 << 30
ROWS = list(csv.DictReader((pathlib.Path(__file__).parent / "oom_numbers.csv").open()))
SHORTAGES = {"model_too_large", "batch_too_large", "kv_cache_growth", "leak", "other_process"}


def size(gib):
    """As PyTorch prints it: two decimals of the largest unit that gives at least 1."""
    value = float(gib)
    if value >= 1:
        return f"{value:.2f} GiB"
    if value * 1024 >= 1:
        return f"{value * 1024:.2f} MiB"
    return f"{value * GIB:.0f} bytes" if value * GIB < 1024 else f"{value * 1024 * 1024:.2f} KiB"


def wordings(row):
    """The row as PyTorch 1.4, 2.0, 2.1 and 2.4 would have printed it, in a traceback, in a log."""
    requested, capacity, free = size(row["requested_gib"]), size(row["capacity_gib"]), size(row["free_gib"])
    allocated, cached = float(row["allocated_gib"]), row["cached_unallocated_gib"]
    known = cached != ""
    reserved = size(allocated + float(cached or 0))
    in_use = size(float(row["capacity_gib"]) - float(row["free_gib"]))
    old = (f"CUDA out of memory. Tried to allocate {requested} (GPU 0; {capacity} total capacity; {size(allocated)} "
           f"already allocated; {free} free" + (f"; {reserved} reserved in total by PyTorch" if known else "") + ")")
    texts = {"1.4": "RuntimeError: " + old,
             "2.0": "torch.cuda.OutOfMemoryError: " + old + " If reserved memory is >> allocated memory try setting "
                    "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
                    "PYTORCH_CUDA_ALLOC_CONF"}
    if known and float(cached) < allocated:
        texts["1.2"] = "RuntimeError: " + old.replace(f"{reserved} reserved in total by PyTorch", f"{size(cached)} cached")
    for version, spelling, hint in (("2.1", "capacty", "max_split_size_mb"),
                                    ("2.4", "capacity", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")):
        texts[version] = (
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total {spelling} "
            f"of {capacity} of which {free} is free. Including non-PyTorch memory, this process has {in_use} memory in "
            f"use. Of the allocated memory {size(allocated)} is allocated by PyTorch"
            + (f", and {size(cached)} is reserved by PyTorch but unallocated" if known else "")
            + f". If reserved but unallocated memory is large try setting {hint} to avoid fragmentation.")
    if not known:
        texts = {"async": "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
                          f"Currently allocated     : {size(allocated)}\nRequested               : {requested}\n"
                          f"Device limit            : {capacity}\nFree (according to CUDA): {free}\n"
                          "PyTorch limit (set by user-supplied memory fraction)\n"
                          "                        : 17179869184.00 GiB\n", **texts}
    texts["log"] = "step 12 loss 3.4\n" * 50 + "Traceback (most recent call last):\n" + texts["2.4"] + "\nwandb: synced\n" * 9
    return texts


def check(row, verdict):
    """Says what is wrong with the answer, or nothing."""
    expected = row["expected_verdict"]
    cause, recoverable, short = verdict["cause"], verdict["recoverable_by_remapping"], verdict["short_by_bytes"]
    missing = float(row["requested_gib"]) - float(row["free_gib"]) - float(row["cached_unallocated_gib"] or 0)
    if expected.startswith("fragmentation"):
        right = cause == "fragmentation" and recoverable and short == 0 and verdict["confidence"] >= 0.7
    elif expected.startswith("possible-fragmentation"):
        right = cause == "fragmentation" and recoverable and verdict["confidence"] < 0.6
        right = right and any("2 MiB granules" in line for line in verdict["evidence"])
    elif expected.startswith(("capacity", "too-large-for-card")):
        right = cause in SHORTAGES and not recoverable and abs(short / GIB - missing) <= 0.011 * max(1.0, missing)
        if expected.startswith("too-large"):
            right = right and verdict["confidence"] >= 0.8 and "larger than the card" in verdict["evidence"][0]
    elif expected.startswith("refused-below-us"):
        right = cause == "refused_below" and short == 0
    elif expected.startswith("borderline"):
        right = cause == "unknown" and recoverable and short == 0
    else:
        assert expected == "cached-amount-unknown", expected
        right = cause == "unknown" and not recoverable and any("allocator held" in m for m in verdict["missing"])
    return None if right else f"{row['id']} ({expected}): {verdict}"


class OomNumbers(unittest.TestCase):
    def test_every_case_in_every_wording(self):
        wrong = []
        for row in ROWS:
            for wording, text in wordings(row).items():
                problem = check(row, explain(PROGRAM, text))
                if problem:
                    wrong.append(f"{wording}: {problem}")
        self.assertEqual(wrong, [], f"{len(wrong)} wrong")
        self.assertGreaterEqual(len(ROWS), 18)

    def test_never_fragmentation_where_memory_was_short(self):
        """The same reports with requests that all free memory together does not cover."""
        for row in ROWS:
            free = float(row["free_gib"]) + float(row["cached_unallocated_gib"] or 0)
            for factor in (1.05, 1.5, 4):
                short = dict(row, requested_gib=f"{free * factor + 0.02:.4f}")
                for wording, text in wordings(short).items():
                    verdict = explain(PROGRAM, text)
                    self.assertNotEqual(verdict["cause"], "fragmentation", (wording, short))
                    self.assertFalse(verdict["recoverable_by_remapping"], (wording, short))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.nofrag
    unittest.main(argv=[sys.argv[0], *rest])
