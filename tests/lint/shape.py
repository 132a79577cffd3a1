#!/usr/bin/env python3
"""Holds the shape of files: their sizes, the headers' banners, #pragma once, the first include.

usage: shape.py [--root DIR]. The limits are here, with no exceptions list: a file that outgrows its
limit hides a second concept, which wants a name and a file. (The length of functions is clang-tidy's
readability-function-size.)
"""

import argparse
import collections
import pathlib
import re

from source_tree import report, sources

# What it is, how a path shows that, most lines. The first that matches counts.
LIMITS = [
    ("the public C header", re.compile(r"^include/nofrag/nofrag\.h$"), 400),
    ("a test file", re.compile(r"^tests/.*\.(cc|cu|c|h|py)$"), 600),
    ("a header", re.compile(r"\.h$"), 250),
    ("a source file", re.compile(r"\.(cc|cu|c|py|sh)$"), 500),
    ("a documentation page", re.compile(r"^(docs/.*|README)\.md$"), 200),
]
SOURCES_PER_FOLDER = 12  # .cc files of one folder of allocator/ or torch_plugin/
BANNER_LINES = 4  # least: what it owns, layer, threads, failure


def size_problem(path, lines):
    for what, pattern, limit in LIMITS:
        if pattern.search(path.as_posix()):
            if lines > limit:
                return f"{path}:{limit + 1}: {lines} lines; {what} has at most {limit}"
            return None
    return None


def banner_problems(path, text):
    """A header opens with a comment "Name: what it owns" that also names its layer."""
    lines = text.splitlines()
    is_public = path.parts[0] == "include"
    if is_public:
        end = text.find("*/")
        banner = text[:end].splitlines() if text.startswith("/*") and end > 0 else []
        opening = re.compile(r"/\*\s*\S+")
    else:
        banner = []
        for line in lines:
            if not line.startswith("//"):
                break
            banner.append(line)
        opening = re.compile(r"// \S.*[:.]")
    if len(banner) < (1 if is_public else BANNER_LINES) or not opening.match("\n".join(banner)):
        yield (
            f"{path}:1: no banner; a header opens with at least {BANNER_LINES} comment lines: "
            '"// Name: what it owns.", its layer, units, invariants, threads, failure, cost'
        )
    elif path.parts[0] == "allocator" and not re.search(r"\bLayer: \w+", "\n".join(banner)):
        yield f'{path}:1: the banner does not name the layer ("Layer: ...")'
    if not is_public and "#pragma once" not in lines:
        yield f"{path}:1: no #pragma once"


def first_include_problem(root, path, text):
    """NAME.cc begins with NAME.h, and so proves that it compiles alone (the target header_check does the rest)."""
    header = path.with_suffix(".h")
    if not (root / header).exists():
        return None
    spelled = header.relative_to("allocator") if header.parts[0] == "allocator" else header
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#include"):
            if line.split()[1] == f'"{spelled.as_posix()}"':
                return None
            return f'{path}:{number}: the first include is not "{spelled.as_posix()}", so nothing shows that it compiles alone'
    return f'{path}:1: does not include "{spelled.as_posix()}"'


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    root = parser.parse_args().root
    problems = []
    checked = 0
    per_folder = collections.Counter()
    for path, text in sources(root, "allocator", "torch_plugin", "include", "tests", "bench"):
        checked += 1
        problems.append(size_problem(path, text.count("\n")))
        if path.suffix == ".h" and path.parts[0] in ("allocator", "torch_plugin", "include"):
            problems.extend(banner_problems(path, text))
        if path.suffix in (".cc", ".cu") and path.parts[0] in ("allocator", "torch_plugin"):
            per_folder[path.parent] += 1
            problems.append(first_include_problem(root, path, text))
    for pattern in ("scripts/*", "tests/**/*.py", "torch_plugin/**/*.py", "bench/**/*.py", "docs/**/*.md", "README.md"):
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                checked += 1
                lines = path.read_text(encoding="utf-8").count("\n")
                problems.append(size_problem(path.relative_to(root), lines))
    for folder, count in sorted(per_folder.items()):
        if count > SOURCES_PER_FOLDER:
            problems.append(f"{folder}:1: {count} source files; a folder has at most {SOURCES_PER_FOLDER}")
    report("shape", [problem for problem in problems if problem], checked)


if __name__ == "__main__":
    main()
