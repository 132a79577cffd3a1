#!/usr/bin/env python3
"""clang-tidy over allocator/ and torch_plugin/, several files at a time.

usage: tidy.py --build DIR [--jobs N] [--quick | --deep] [FILE...]     (DIR has a compile_commands.json)

The static analyzer inside clang-tidy explores at most a few paths of each function ("shallow"),
which halves the time; --deep lets it look as far as it would by itself, and --quick leaves it out, with the one
check that takes a sixth of the rest: a third of the time.

Files named in scripts/tidy_pending.txt have findings, or have not been through it yet: they are left out and
counted, unless they are named. That list may only become shorter.

A file that passed is not looked at again until it, any header of ours, its compile command or
.clang-tidy changes; the record is in build/tidy/.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIDY = "clang-tidy-14"
FOLDERS = ("allocator", "torch_plugin")
GCC_ONLY = ("-mtls-dialect=gnu2",)
PENDING = ROOT / "scripts/tidy_pending.txt"
QUICK = ["--checks=-clang-analyzer-*,-bugprone-reserved-identifier"]
SHALLOW = [f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "mode=shallow")]


def common_digest():
    """What every file's result depends on: the checks and all headers."""
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    for folder in ("allocator", "include", "torch_plugin"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".def"):
                digest.update(path.read_bytes())
    return digest


def without_gcc_options(build, folder):
    """A copy of the compile commands, which are g++'s, without what clang does not know."""
    folder.mkdir(parents=True, exist_ok=True)
    commands = (build / "compile_commands.json").read_text()
    for option in GCC_ONLY:
        commands = commands.replace(" " + option, "")
    (folder / "compile_commands.json").write_text(commands)
    return folder


def units(build, only):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT) or path.suffix == ".c":
            continue
        relative = path.relative_to(ROOT)
        if relative.parts[0] in FOLDERS and (not only or str(relative) in only):
            yield relative, entry["command"]


def check(build, flags, relative, stamp):
    start = time.monotonic()
    done = subprocess.run(
        # The compile commands are g++'s, which has a warning that clang has not heard of.
        [TIDY, "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", *flags, str(ROOT / relative)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        stamp.touch()
        return relative, True, "", time.monotonic() - start
    return relative, False, done.stdout + done.stderr, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    flags = [] if arguments.deep else QUICK if arguments.quick else SHALLOW

    record = ROOT / "build/tidy"
    record.mkdir(parents=True, exist_ok=True)
    arguments.build = without_gcc_options(arguments.build, ROOT / "build/tidy-commands")
    common = common_digest()
    todo = []
    clean = 0
    pending = set() if arguments.files else set(PENDING.read_text().split())
    for relative, command in units(arguments.build, arguments.files):
        if str(relative) in pending:
            continue
        digest = common.copy()
        digest.update((command + " ".join(flags)).encode())
        digest.update((ROOT / relative).read_bytes())
        stamp = record / digest.hexdigest()
        if stamp.exists():
            clean += 1
        else:
            todo.append((relative, stamp))
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for future in [pool.submit(check, arguments.build, flags, *item) for item in todo]:
            relative, good, output, seconds = future.result()
            print(f"{'ok    ' if good else 'FAILED'} {relative} ({seconds:.0f} s)", flush=True)
            if not good:
                bad += 1
                print(output, flush=True)
    print(
        f"clang-tidy: {len(todo)} files checked, {clean} unchanged since they passed, {bad} with findings; "
        f"{len(pending)} not looked at (scripts/tidy_pending.txt)"
    )
    sys.exit(1 if bad or not todo and not clean else 0)


if __name__ == "__main__":
    main()
