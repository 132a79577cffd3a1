#!/usr/bin/env python3
"""Prints "PASSED FAILED SKIPPED" for the JUnit file that ctest wrote; zeros where there is none.

A lane without tests of its own (format, tidy) writes no file. A test that ctest could not run at
all (its program is missing) counts as failed.
"""

import pathlib
import sys
import xml.etree.ElementTree


def count(path):
    if not path.exists():
        return 0, 0, 0
    passed = failed = skipped = 0
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None:
            failed += 1
        elif case.get("status") == "disabled":
            skipped += 1
        elif skip is None:
            passed += 1
        elif "SKIP" in skip.get("message", ""):
            skipped += 1
        else:
            failed += 1
    return passed, failed, skipped


if __name__ == "__main__":
    print(*count(pathlib.Path(sys.argv[1])))
