#!/usr/bin/env python3
"""No lock and no driver call where a thread allocates and frees on one stream: every instruction that these
paths execute, as callgrind sees them, is looked up in the disassembly.

usage: no_lock.py --program FAST_PATH

Allowed is none that is atomic (lock prefix, xchg with memory), no fence, no system call, no function of a lock
and none of the driver. Paths that must be found out (they take the lock; they ask the driver) are looked at in
the same way, so that a check which sees nothing fails. 77 if valgrind or objdump is missing.
"""

import argparse
import pathlib
import re
import subprocess
import sys

import callgrind

CLEAN = [f"caches/{door}/{path}" for door in ("c_api", "device") for path in ("alloc_4k", "free_4k", "pair_1m", "pair_64m")]
# Paths and what must be found on them.
FOUND_OUT = {
    **{f"locked/{door}/{path}": {"atomic", "lock"} for door in ("c_api", "device") for path in ("alloc_4k", "free_4k")},
    "checked/device/alloc_4k": {"atomic", "lock", "driver"},
}
LOCK = re.compile(r"pthread_(mutex|rwlock|spin|cond)|lll_|futex|RankedMutex|std::mutex")
DRIVER = re.compile(r"\w*Driver::")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$")


def kind_of(instruction):
    """What is wrong with an instruction as objdump writes it, or None."""
    words = instruction.split()
    if "lock" in words:
        return "atomic"
    name = next((i for i, word in enumerate(words) if word.startswith("xchg")), None)
    if name is not None and not re.fullmatch(r"%\w+,%\w+", "".join(words[name + 1:])):
        return "atomic"
    if words and words[0] in ("mfence", "syscall", "sysenter", "int"):
        return "fence" if words[0] == "mfence" else "system call"
    return None


def parse_disassembly(text):
    return {int(m[1], 16): m[2].strip() for m in map(INSTRUCTION.match, text.splitlines()) if m}


class Disassembly:
    """The instructions of an object between two addresses."""

    def __init__(self, file, first, last):
        if not pathlib.Path(file).is_file():
            sys.exit(f"instructions of {file} were executed, which cannot be disassembled")
        command = ["objdump", "--disassemble", "--no-show-raw-insn", f"--start-address={first:#x}",
                   f"--stop-address={last + 16:#x}", file]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        self.file = file
        self.at = parse_disassembly(result.stdout)

    def instruction(self, address):
        if address not in self.at:
            sys.exit(f"{self.file}: no instruction begins at {address:#x}, where one was executed")
        return self.at[address]


def disassemble(paths):
    """Everything that was executed, by object."""
    spans = {}
    for path in paths:
        for file, _, address in path.lines:
            first, last = spans.get(file, (address, address))
            spans[file] = min(first, address), max(last, address)
    return {file: Disassembly(file, *span) for file, span in spans.items()}


def look_at(path, code):
    """What is wrong with a path: {(kind, where)}."""
    found = set()
    for file, function, address in path.lines:
        instruction = code[file].instruction(address)
        if (kind := kind_of(instruction)) is not None:
            found.add((kind, f"{instruction}  at {address:#x} in {function}"))
        for kind, names in (("lock", LOCK), ("driver", DRIVER)):
            if names.search(function):
                found.add((kind, function))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    arguments = parser.parse_args()
    callgrind.need_tools("valgrind", "objdump")

    wanted = {*CLEAN, *FOUND_OUT}
    paths = {path.name: path for mode in callgrind.MODES for path in callgrind.run(arguments.program, mode)
             if path.name in wanted}
    if missing := wanted - set(paths):
        sys.exit(f"fast_path has no {', '.join(sorted(missing))}")
    code = disassemble(paths.values())

    failed = 0
    for name, path in paths.items():
        found = look_at(path, code)
        kinds = {kind for kind, _ in found}
        expected = FOUND_OUT.get(name, set())
        right = not kinds if name not in FOUND_OUT else expected <= kinds
        failed += not right
        print(f"{'ok' if right else 'FAILED':6} {name:28} {len(path.lines):4} instructions, "
              f"{'must have' if expected else 'must have no'} {', '.join(sorted(expected)) or 'lock'}: "
              f"{', '.join(sorted(kinds)) or 'nothing'} found")
        if not right:
            for kind, where in sorted(found):
                print(f"         {kind}: {where}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
