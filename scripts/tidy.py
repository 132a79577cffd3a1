#!/usr/bin/env python3
"""clang-tidy over allocator/ and torch_plugin/, several files at a time, each file alone.

usage: tidy.py [--jobs N] [--analyze] [FILE...]

--analyze adds the static analyzer, which takes five times as long as all else.

The compile commands are those of a tree of its own in build/tidy/, which is configured and not built. A file that
passed is not looked at again until it, any header of ours, its compile command or .clang-tidy changes; the record is
there too.
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
# From its wheel (scripts/setup.sh): what does not look into the system's headers is three times as fast.
TIDY = ROOT / "build/deps/clang-tidy/clang_tidy/data/bin/clang-tidy"
FOLDERS = ("allocator", "torch_plugin")
GCC_ONLY = ("-mtls-dialect=gnu2",)
# g++ has a warning that clang has not heard of; std::stable_sort of libstdc++ 12 uses what it deprecates itself.
CLANG_ONLY = ("-Wno-unknown-warning-option", "-Wno-deprecated-declarations")
TREE = ROOT / "build/tidy/tree"
RECORD = ROOT / "build/tidy/passed"


def configure():
    done = subprocess.run(
        ["cmake", "--preset", "release", "-B", str(TREE), "-DCMAKE_UNITY_BUILD=OFF", "-DNOFRAG_TESTS=OFF", "-DNOFRAG_BENCH=OFF"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    # The compile commands are g++'s: without what clang does not know.
    commands = (TREE / "compile_commands.json").read_text()
    for option in GCC_ONLY:
        commands = commands.replace(" " + option, "")
    (TREE / "compile_commands.json").write_text(commands)


def common_digest(flags):
    """What every file's result depends on: the program, the checks and all headers."""
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes() + " ".join([*CLANG_ONLY, *flags]).encode())
    digest.update(subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout)
    for folder in ("allocator", "include", "torch_plugin"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".def"):
                digest.update(path.read_bytes())
    return digest


def units(only):
    """(path in the repository, compile command)"""
    for entry in json.loads((TREE / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT) or path.suffix == ".c":
            continue
        relative = path.relative_to(ROOT)
        if relative.parts[0] in FOLDERS and (not only or str(relative) in only):
            yield relative, entry["command"]


def check(flags, relative, stamp):
    start = time.monotonic()
    done = subprocess.run(
        [TIDY, "-p", str(TREE), "--quiet", f"--config-file={ROOT / '.clang-tidy'}",
         *[f"--extra-arg={option}" for option in CLANG_ONLY], *flags, str(ROOT / relative)],
        capture_output=True, text=True, check=False,
    )
    if done.returncode == 0:
        stamp.touch()
    return relative, done.returncode == 0, done.stdout + done.stderr, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--analyze", action="store_true")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    flags = [] if arguments.analyze else ["--checks=-clang-analyzer-*"]

    if not TIDY.exists():
        sys.exit(f"{TIDY.relative_to(ROOT)} is missing: scripts/setup.sh fetches it")
    RECORD.mkdir(parents=True, exist_ok=True)
    configure()
    common = common_digest(flags)
    todo = []
    clean = 0
    for relative, command in units(arguments.files):
        digest = common.copy()
        digest.update(command.encode() + (ROOT / relative).read_bytes())
        stamp = RECORD / digest.hexdigest()
        if stamp.exists():
            clean += 1
        else:
            todo.append((relative, stamp))
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for future in [pool.submit(check, flags, *item) for item in todo]:
            relative, good, output, seconds = future.result()
            print(f"{'ok    ' if good else 'FAILED'} {relative} ({seconds:.1f} s)", flush=True)
            if not good:
                bad += 1
                print(output, flush=True)
    print(f"clang-tidy: {len(todo)} files checked, {clean} unchanged since they passed, {bad} with findings")
    sys.exit(1 if bad or not todo and not clean else 0)


if __name__ == "__main__":
    main()
