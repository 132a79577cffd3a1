#!/usr/bin/env python3
"""clang-tidy over allocator/ and torch_plugin/, several files at a time.

usage: tidy.py --build DIR [--jobs N] [--quick | --deep] [FILE...]     (DIR has a compile_commands.json)

The static analyzer inside clang-tidy explores at most a few paths of each function ("shallow"),
which halves the time; --deep lets it look as far as it would by itself.

--quick leaves the analyzer out, which looks only at functions of the file that it is given, and so gives
clang-tidy up to TOGETHER files that are compiled alike as one: what it takes to read and to search the headers
is most of a file's time. Files that do not pass together are looked at one by one, and those results count.
What else looks only at the file that is given (ALONE) is asked of each.

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
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIDY = "clang-tidy-14"
FOLDERS = ("allocator", "torch_plugin")
GCC_ONLY = ("-mtls-dialect=gnu2",)
PENDING = ROOT / "scripts/tidy_pending.txt"
QUICK = ["--checks=-clang-analyzer-*"]
TOGETHER = 16
ALONE = ["--checks=-*,clang-diagnostic-*,misc-unused-using-decls"]
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
    """(path in the repository, entry of the compile commands)"""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT) or path.suffix == ".c":
            continue
        relative = path.relative_to(ROOT)
        if relative.parts[0] in FOLDERS and (not only or str(relative) in only):
            yield relative, entry


def without_files(command):
    """What two files must have in common to be compiled as one."""
    words = command.split()
    return " ".join(word for word, before in zip(words, ["", *words]) if before not in ("-o", "-c") and word not in ("-o", "-c"))


def target_of(command):
    """nofrag_base of ... -o allocator/base/CMakeFiles/nofrag_base.dir/checks.cc.o ..."""
    return command.partition("CMakeFiles/")[2].partition(".dir/")[0]


def in_groups(todo):
    """Lists of at most TOGETHER files that are compiled alike, for one target: those may be one file in the quick
    builds too (NOFRAG_QUICK_BUILD)."""
    alike = {}
    for item in todo:
        entry = item[1]
        alike.setdefault((entry["directory"], target_of(entry["command"]), without_files(entry["command"])), []).append(item)
    for files in alike.values():
        pieces = -(-len(files) // TOGETHER)
        size = -(-len(files) // pieces)
        for first in range(0, len(files), size):
            yield files[first : first + size]


def run(build, flags, path):
    done = subprocess.run(
        # The compile commands are g++'s, which has a warning that clang has not heard of.
        [TIDY, "-p", str(build), "--quiet", f"--config-file={ROOT / '.clang-tidy'}",
         "--extra-arg=-Wno-unknown-warning-option", *flags, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


def check_alone(build, flags, item):
    start = time.monotonic()
    relative, _, stamp = item
    good, output = run(build, flags, ROOT / relative)
    if good:
        stamp.touch()
    return [(relative, good, output, time.monotonic() - start)]


def check_together(build, flags, group):
    """The same for a group: (path, passed?, what was said, seconds) a file."""
    if len(group) == 1:
        return check_alone(build, flags, group[0])
    start = time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(dir=build))
    try:
        source = folder / "together.cc"
        source.write_text("".join(f'#include "{ROOT / relative}"  // NOLINT(bugprone-suspicious-include)\n' for relative, *_ in group))
        entry = group[0][1]
        command = f"{without_files(entry['command'])} -c {source}"
        (folder / "compile_commands.json").write_text(
            json.dumps([{"directory": entry["directory"], "file": str(source), "command": command}]))
        good, _ = run(folder, flags, source)
    finally:
        shutil.rmtree(folder)
    if not good:
        return [result for item in group for result in check_alone(build, flags, item)]
    results = [run(build, ALONE, ROOT / relative) for relative, *_ in group]
    for (good, _), (_, _, stamp) in zip(results, group):
        if good:
            stamp.touch()
    seconds = (time.monotonic() - start) / len(group)
    return [(relative, good, output, seconds) for (good, output), (relative, *_) in zip(results, group)]


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
    for relative, entry in units(arguments.build, arguments.files):
        if str(relative) in pending:
            continue
        digest = common.copy()
        digest.update((entry["command"] + " ".join(flags)).encode())
        digest.update((ROOT / relative).read_bytes())
        stamp = record / digest.hexdigest()
        if stamp.exists():
            clean += 1
        else:
            todo.append((relative, entry, stamp))
    bad = 0
    groups = list(in_groups(todo)) if arguments.quick else [[item] for item in todo]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for future in [pool.submit(check_together, arguments.build, flags, group) for group in groups]:
            for relative, good, output, seconds in future.result():
                print(f"{'ok    ' if good else 'FAILED'} {relative} ({seconds:.1f} s)", flush=True)
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
