#!/usr/bin/env python3
"""clang-tidy over allocator/ and torch_plugin/, several runs at a time.

usage: tidy.py [--jobs N] [--analyze] [--alone] [FILE...]

The files of a target are looked at together, up to 16 in one run, as they are compiled: most of a run's time is the
reading of headers. --alone, or naming files, looks at each file alone: only so is found what lacks an include, and a
constant, a constexpr function or a using-declaration of a file that nobody uses.
--analyze adds the static analyzer, which takes five times as long as all else.

The compile commands are those of trees of its own in build/tidy/, which are configured and not built. What passed is
not looked at again until it, any header of ours, its compile command or .clang-tidy changes; the record is there too.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
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
RECORD = ROOT / "build/tidy/passed"


def configure(alone):
    """The tree whose compile commands count."""
    tree = ROOT / "build/tidy" / ("alone" if alone else "together")
    done = subprocess.run(
        ["cmake", "--preset", "release", "-B", str(tree), f"-DCMAKE_UNITY_BUILD={'OFF' if alone else 'ON'}",
         "-DNOFRAG_TESTS=OFF", "-DNOFRAG_BENCH=OFF"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    # The compile commands are g++'s: without what clang does not know.
    commands = (tree / "compile_commands.json").read_text()
    for option in GCC_ONLY:
        commands = commands.replace(" " + option, "")
    (tree / "compile_commands.json").write_text(commands)
    return tree


def common_digest(flags):
    """What every file's result depends on: the program, the checks and all headers."""
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes() + " ".join([*CLANG_ONLY, *flags]).encode())
    digest.update(subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout)
    for folder in ("allocator", "include", "torch_plugin"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".def"):
                digest.update(path.read_bytes())
    return digest


def units(tree, only):
    """(what to say, the file to look at, all files that are compiled with it, compile command)"""
    for entry in json.loads((tree / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.suffix == ".c":
            continue
        together = [pathlib.Path(name) for name in re.findall(r'^#include "(.*)"', path.read_text(), re.M)
                    ] if path.parent.name == "Unity" else [path]
        ours = [file.relative_to(ROOT) for file in together if file.is_relative_to(ROOT)]
        ours = [file for file in ours if file.parts[0] in FOLDERS and file.suffix != ".c"]
        if not ours or (only and str(ours[0]) not in only):
            continue
        name = str(ours[0]) + (f" and {len(ours) - 1} more" if len(ours) > 1 else "")
        yield name, path, ours, entry["command"]


def check(tree, flags, name, path, stamp):
    start = time.monotonic()
    done = subprocess.run(
        [TIDY, "-p", str(tree), "--quiet", f"--config-file={ROOT / '.clang-tidy'}",
         *[f"--extra-arg={option}" for option in CLANG_ONLY], *flags, str(path)],
        capture_output=True, text=True, check=False,
    )
    if done.returncode == 0:
        stamp.touch()
    return name, done.returncode == 0, done.stdout + done.stderr, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--analyze", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    alone = arguments.alone or bool(arguments.files)
    off = [] if arguments.analyze else ["-clang-analyzer-*"]
    if not alone:
        off.append("-bugprone-suspicious-include")  # that is how files are put together
    flags = [f"--checks={','.join(off)}"] if off else []

    if not TIDY.exists():
        sys.exit(f"{TIDY.relative_to(ROOT)} is missing: scripts/setup.sh fetches it")
    RECORD.mkdir(parents=True, exist_ok=True)
    tree = configure(alone)
    common = common_digest(flags)
    todo = []
    clean = 0
    files = 0
    for name, path, ours, command in units(tree, arguments.files):
        files += len(ours)
        digest = common.copy()
        digest.update(command.encode())
        for file in ours:
            digest.update((ROOT / file).read_bytes())
        stamp = RECORD / digest.hexdigest()
        if stamp.exists():
            clean += 1
        else:
            todo.append((name, path, stamp))
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for future in [pool.submit(check, tree, flags, *item) for item in todo]:
            name, good, output, seconds = future.result()
            print(f"{'ok    ' if good else 'FAILED'} {name} ({seconds:.1f} s)", flush=True)
            if not good:
                bad += 1
                print(output, flush=True)
    print(f"clang-tidy: {files} files, {len(todo)} runs, {clean} more unchanged since they passed, {bad} with findings")
    sys.exit(1 if bad or not todo and not clean else 0)


if __name__ == "__main__":
    main()
