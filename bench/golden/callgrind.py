"""Runs fast_path under callgrind: what golden.py and no_lock.py share.

A path is one of those that fast_path.cc announces; its profile is that of its cheapest round but the first.
"""

import collections
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
REGION = "nofrag_golden_region"
ROUNDS = 8  # kRounds of fast_path.cc
MODES = ("caches", "locked")

# Self cost by (object, function, address); the address is the object's own, as objdump has it.
Path = collections.namedtuple("Path", "name operations instructions before lines")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def need_tools(*tools):
    """Skips where the processor or a tool is another than what is measured with."""
    if platform.machine() != "x86_64":
        skip(f"instructions are counted on x86_64, this is {platform.machine()}")
    for tool in tools:
        if shutil.which(tool) is None:
            skip(f"{tool} is not installed (scripts/setup.sh installs it)")


def parse_profile(text):
    """The self costs of one profile, which was written without compression."""
    costs = collections.Counter()
    where = {"ob": "???", "fn": "???"}
    inclusive = False  # the line behind calls= is what the callee cost
    for line in text.splitlines():
        if line.startswith(("0x", "0X")):
            if not inclusive:
                address, _, cost = line.split()
                costs[where["ob"], where["fn"], int(address, 16)] += int(cost)
            inclusive = False
        elif line.startswith("calls="):
            inclusive = True
        elif line.startswith(("ob=", "fn=")):
            key, _, value = line.partition("=")
            where[key] = value
    return costs


def profiles(folder):
    """In the order in which they were written; without the last, that of the program's end."""
    files = sorted(folder.glob("profile.*"), key=lambda path: int(path.suffix[1:]))
    return [parse_profile(file.read_text(encoding="utf-8")) for file in files]


def run(program, mode):
    """The paths of one mode, as a list of Path."""
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("NOFRAG_", "LD_", "GLIBC_", "VALGRIND_"))}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        command = ["valgrind", "--tool=callgrind", "--quiet", "--collect-atstart=no", f"--toggle-collect={REGION}",
                   f"--dump-after={REGION}", "--dump-instr=yes", "--compress-strings=no", "--compress-pos=no",
                   f"--callgrind-out-file={folder / 'profile'}", program, mode]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
        rounds = profiles(folder)
    announced = [line.split() for line in result.stdout.splitlines() if line.startswith("path ")]
    if not announced or len(rounds) != ROUNDS * len(announced):
        sys.exit(f"{len(announced)} paths, but {len(rounds)} profiles: does {REGION} still exist in {program}?")
    paths = []
    for i, (_, name, operations) in enumerate(announced):
        # The two least, which must agree: now and then a round has work that comes by the clock (base/timeline.h).
        least, next_least = sorted(rounds[ROUNDS * i + 1: ROUNDS * (i + 1)], key=lambda costs: sum(costs.values()))[:2]
        paths.append(Path(name, int(operations), sum(least.values()), sum(next_least.values()), least))
    return paths
