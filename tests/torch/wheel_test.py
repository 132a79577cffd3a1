#!/usr/bin/env python3
"""The wheel: built from the libraries of this build, installed into a fresh environment, used there.

usage: wheel_test.py SOURCE LIBRARIES WORK. Exit 77 where pip or venv are missing, or no package index is reached
(the build backend comes from there).
"""

import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77
USE = """
import nofrag, nofrag_torch, pathlib
from importlib.metadata import entry_points, version
assert [entry.value for entry in entry_points(group="torch.backends")] == ["nofrag_torch.autoload:autoload"]
assert version("nofrag") == nofrag.version(), (version("nofrag"), nofrag.version())
path = pathlib.Path(nofrag.current().path)
assert path.parent == pathlib.Path(nofrag.__file__).parent / "lib", path
block = nofrag.malloc(5 << 20)
assert nofrag.device_stats()["live_bytes"] == 5 << 20
nofrag.free(block)
print("works")
"""


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        print(result.stdout[-3000:] + result.stderr[-3000:])
    return result


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def main():
    source, libraries, work = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
    shutil.rmtree(work, ignore_errors=True)
    environment = work / "environment"
    if run(sys.executable, "-m", "venv", environment).returncode != 0:
        skip("python3 -m venv does not work here")
    python = environment / "bin" / "python"
    if run(python, "-m", "pip", "download", "-q", "--no-deps", "-d", work / "index", "scikit-build-core").returncode != 0:
        skip("no package index is reached")
    built = run(python, "-m", "pip", "wheel", source, "--no-deps", "-w", work / "wheels",
                "-C", f"cmake.define.NOFRAG_PREBUILT={libraries}", "-C", f"build-dir={work / 'build'}")
    assert built.returncode == 0, "the wheel is not built"
    (wheel,) = (work / "wheels").glob("nofrag-*.whl")
    print(wheel.name)
    assert "-py3-none-linux_" in wheel.name, "a wheel for one version of Python, or for every machine"
    assert run(python, "-m", "pip", "install", "-q", "--no-index", wheel).returncode == 0, "the wheel is not installed"
    used = run(python, "-c", USE, cwd="/", env={"NOFRAG_CONF": "driver:sim:h100-80g"})
    assert used.stdout == "works\n" and used.stderr == "", "the installed package does not work"
    gone = run(python, "-m", "pip", "uninstall", "-q", "-y", "nofrag")
    left = list((environment / "lib").glob("python*/site-packages/nofrag*"))
    assert gone.returncode == 0 and not left, f"uninstalling leaves {left}"


if __name__ == "__main__":
    main()
