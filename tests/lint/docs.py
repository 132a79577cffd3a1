#!/usr/bin/env python3
"""Checks the documentation's relative links, with their #anchors, and that every `make TARGET` that a
page mentions exists.

usage: docs.py [--root DIR]. What README's commands do is tested by running them (tests/readme).
"""

import argparse
import pathlib
import re

from source_tree import report

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$", re.MULTILINE)
MAKE_COMMAND = re.compile(r"(?:`|^\$?\s*)make ([a-z][a-z-]*)", re.MULTILINE)
MAKE_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)


def anchors(text):
    """The #anchors of a page's headings, made as GitHub makes them."""
    for heading in HEADING.findall(CODE_FENCE.sub("", text)):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def page_problems(root, page, targets):
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(root)
    prose = CODE_FENCE.sub(blank, text)
    for match in LINK.finditer(prose):
        link = match[1]
        if re.match(r"[a-z]+:", link):
            continue
        where = f"{name}:{prose.count(chr(10), 0, match.start()) + 1}"
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield f"{where}: link to {link}: there is no such file"
        elif not target.is_relative_to(root.resolve()):
            yield f"{where}: link to {link} leaves the repository"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield f"{where}: link to {link}: no heading makes #{anchor}"
    for match in MAKE_COMMAND.finditer(text):
        if match[1] not in targets:
            where = f"{name}:{text.count(chr(10), 0, match.start(1)) + 1}"
            yield f"{where}: `make {match[1]}`: the Makefile has no such target"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    root = parser.parse_args().root.resolve()
    targets = set(MAKE_TARGET.findall((root / "Makefile").read_text(encoding="utf-8")))
    pages = sorted(root.glob("*.md"))
    for folder in ("docs", "bench", "tests", "allocator", "torch_plugin", "include"):
        pages += sorted((root / folder).rglob("*.md"))
    problems = [problem for page in pages for problem in page_problems(root, page, targets)]
    report("docs", problems, len(pages))


if __name__ == "__main__":
    main()
