#!/usr/bin/env python3
"""Holds the layer table (layers.txt) over the sources: includes, CUDA, environment, exceptions.

usage: layering.py [--root DIR]. Problems go to stdout as FILE:LINE: what, and what would be allowed.
"""

import argparse
import pathlib
import re

from source_tree import LayerTable, blank_comments_and_strings, report, sources

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
CUDA_HEADER = re.compile(r"^(cuda|cuda_runtime|cuda_runtime_api|cudaTypedefs|driver_types|cuda_\w+)\.h$")
DRIVER_NAME = re.compile(r"\b(cu[A-Z]\w*|CU[a-z]\w*|CU_[A-Z]\w*|CUDA_[A-Z]\w*)\b")
ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv|setenv|unsetenv|putenv|environ)\b")
EXCEPTION = re.compile(r"\b(throw|try|catch)\b")


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def in_folder(path, folders):
    inside = path.relative_to("allocator") if path.parts[0] == "allocator" else path
    return any(inside.is_relative_to(folder) for folder in folders)


def include_problem(table, layer, path, quoted, angled):
    """Why this #include is not allowed, or None."""
    target = quoted or angled
    allowed = table.may_include[layer]
    named = target.partition("/")[0]
    if CUDA_HEADER.match(target):
        if in_folder(path, table.settings["cuda_header"]):
            return None
        return f"<{target}>: only {' '.join(table.settings['cuda_header'])} may include CUDA headers"
    if named == "nofrag" and "/" in target:
        if layer == "public" or "public" in allowed:
            return None
        return f'layer "{layer}" must not include the public C headers ({target})'
    if named in table.may_include and "/" in target:
        if named == layer or named in allowed or target in allowed:
            return None
        may = " ".join([layer, *allowed])
        return f'layer "{layer}" must not include "{target}"; it may include: {may}'
    if quoted and "/" not in target:
        return f'"{target}": write project includes from the folder allocator/ ("{layer}/{target}")'
    return None


def check_file(table, path, text):
    layer = table.layer_of(path)
    if layer not in table.may_include:
        yield f"{path}:1: folder '{layer}' is not in tests/lint/layers.txt"
        return
    code = blank_comments_and_strings(text)
    for match in INCLUDE.finditer(code):
        problem = include_problem(table, layer, path, *match.groups())
        if problem:
            yield f"{path}:{line_of(code, match.start(1) if match[1] else match.start(2))}: {problem}"
    code = INCLUDE.sub(lambda match: " " * len(match.group()), code)
    rules = [
        (DRIVER_NAME, "driver_calls", [], "names the CUDA driver; allowed only in"),
        (ENVIRONMENT, "environment", [], "reads or writes the environment; allowed only in"),
        (
            EXCEPTION,
            "exceptions",
            table.exception_files,
            "is an exception; below the edges use Result (base/result.h). The edges",
        ),
    ]
    for pattern, setting, exempt, what in rules:
        folders = table.settings[setting]
        if in_folder(path, folders + exempt) or layer in folders:
            continue
        for match in pattern.finditer(code):
            yield f"{path}:{line_of(code, match.start())}: '{match[1]}' {what}: {' '.join(folders)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    root = parser.parse_args().root
    table = LayerTable(root / "tests/lint/layers.txt")
    problems = []
    checked = 0
    for path, text in sources(root, "allocator", "torch_plugin"):
        if table.layer_of(path) is None:
            continue
        checked += 1
        problems.extend(check_file(table, path, text))
    report("layering", problems, checked)


if __name__ == "__main__":
    main()
