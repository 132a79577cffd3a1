#!/usr/bin/env python3
"""Instructions an operation on the fast paths, beside those in counts.json.

usage: golden.py --program FAST_PATH --compiler NAME-VERSION --flags FLAGS [--update] [--counts FILE]

Exit status 1 if a count is off by more than 3 %, up or down: a better one is recorded too, with --update, so
that it cannot be lost again unseen. 77 if valgrind is missing, or what decides about the counts (compiler,
flags, C library) is not what the file was made with.
"""

import argparse
import json
import pathlib
import platform
import sys

import callgrind

TOLERANCE = 0.03
COUNTS = pathlib.Path(__file__).with_name("counts.json")


def counted(paths):
    """The instructions an operation by path; ends if a path has not come to rest."""
    counts = {}
    for path in paths:
        if path.name.startswith("checked/"):
            continue  # what the simulated driver costs
        if abs(path.instructions - path.before) > TOLERANCE / 3 * path.before:
            sys.exit(f"{path.name}: {path.before} instructions in one round, {path.instructions} in the next: "
                     "fast_path.cc must warm it up longer")
        counts[path.name] = round(path.instructions / path.operations, 1)
    return counts


def verdict(recorded, now):
    if recorded is None:
        return "not recorded"
    if now is None:
        return "gone"
    if now > recorded * (1 + TOLERANCE):
        return "MORE"
    if now < recorded * (1 - TOLERANCE):
        return "fewer"
    return ""


def compare(recorded, now):
    """Rows of (path, recorded, now, verdict); a verdict is empty where all is well."""
    names = list(now) + [name for name in recorded if name not in now]
    return [(name, recorded.get(name), now.get(name), verdict(recorded.get(name), now.get(name))) for name in names]


def print_table(rows):
    def number(value):
        return "-" if value is None else f"{value:.1f}"

    print(f"{'instructions an operation':46} {'recorded':>9} {'now':>9}")
    for name, recorded, now, said in rows:
        change = f"{100 * (now / recorded - 1):+6.1f} %" if recorded and now else ""
        print(f"{name:46} {number(recorded):>9} {number(now):>9} {change:>9} {said}".rstrip())


def read(file):
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--compiler", required=True, help="the build's, with its full version: GNU-12.2.0")
    parser.add_argument("--flags", required=True, help="the build type and its flags")
    parser.add_argument("--counts", type=pathlib.Path, default=COUNTS)
    parser.add_argument("--update", action="store_true", help="write what was counted to the file")
    arguments = parser.parse_args()

    callgrind.need_tools("valgrind")
    made_with = {"compiler": arguments.compiler.partition(".")[0], "flags": " ".join(arguments.flags.split()),
                 "library": " ".join(platform.libc_ver())}
    file = read(arguments.counts)
    if not arguments.update and file.get("made_with") != made_with:
        callgrind.skip(f"the counts are of {file.get('made_with')}, this is {made_with}")

    now = counted([path for mode in callgrind.MODES for path in callgrind.run(arguments.program, mode)])
    rows = compare(file.get("instructions", {}), now)
    print_table(rows)
    if arguments.update:
        text = json.dumps({"made_with": made_with, "instructions": now}, indent=2)
        arguments.counts.write_text(text + "\n", encoding="utf-8")
        return 0
    off = [row for row in rows if row[3]]
    if off:
        print(f"{len(off)} of {len(rows)} counts differ by more than {100 * TOLERANCE:.0f} %; if that is right, record them:\n"
              "  cmake --build build/release --target golden_update")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
