#!/usr/bin/env python3
"""Looks for mutable global state in the layers' object files: only runtime and preload may have it.

usage: globals.py [--root DIR] LAYER=LIBRARY.a...     (built without sanitizers)

Reading the symbol tables misses nothing that reading sources would: namespace-scope variables,
function-local statics, static members, thread_locals and inline variables all land in .data, .bss,
.tdata or .tbss. Constants do not: they are in .rodata or .data.rel.ro.
"""

import argparse
import pathlib
import re
import subprocess
import sys

from source_tree import LayerTable

SYMBOL = re.compile(r"^[0-9a-f]+ (?P<flags>.{7}) (?P<section>\S+)\s+[0-9a-f]+ (?:\.hidden )?(?P<name>.+)$")
MEMBER = re.compile(r"^(\S+):\s+file format ")
# State of the libraries we use, which their headers put into our objects, and the compiler's marks.
NOT_OURS = re.compile(r"^(CLI|fmt|nlohmann|std|__gnu_cxx)::|^nvtx\w+|^(__dso_handle|DW\.ref\.\S+)$")


def mutable_sections(section):
    if section.startswith(".data.rel.ro"):
        return False
    return section.startswith((".data", ".bss", ".tdata", ".tbss", "*COM*"))


def library_problems(table, layer, library):
    if layer in table.settings["globals"]:
        return
    dump = subprocess.run(
        ["objdump", "--syms", "--demangle", library], check=True, capture_output=True, text=True
    ).stdout
    member = "?"
    for line in dump.splitlines():
        header = MEMBER.match(line)
        if header:
            member = header[1].removesuffix(".o")
            continue
        symbol = SYMBOL.match(line)
        if not symbol or symbol["flags"][-1] not in "O " or not mutable_sections(symbol["section"]):
            continue
        name = symbol["name"].strip().removeprefix("guard variable for ")
        if name.startswith(".") or NOT_OURS.match(name):  # section symbols
            continue
        allowed = any(
            pathlib.PurePath(file).name == member and name.split("::")[-1] == allowed_name
            for file, allowed_name in table.allowed_globals
            if file.partition("/")[0] == layer
        )
        if not allowed:
            may = " ".join(table.settings["globals"])
            section = symbol["section"]
            yield f"{layer}/{member}: mutable global '{name}' ({section}); layers that may have one: {may}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    parser.add_argument("libraries", nargs="+", metavar="LAYER=LIBRARY")
    arguments = parser.parse_args()
    table = LayerTable(arguments.root / "tests/lint/layers.txt")
    problems = [
        problem
        for layer, _, library in (entry.partition("=") for entry in arguments.libraries)
        for problem in library_problems(table, layer, library)
    ]
    print("\n".join(problems + [f"globals: {len(arguments.libraries)} libraries, {len(problems)} problems"]))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
