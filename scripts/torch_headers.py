#!/usr/bin/env python3
"""Fetches what torch_plugin/native is compiled and tested against: PyTorch's c10 headers and libraries.

usage: scripts/torch_headers.py [--headers-only] VERSION...      e.g. 2.11.0

A wheel of PyTorch is half a gigabyte and more; the c10 headers and the two c10 libraries are 2 MB of it.
pip's own reader of remote wheels takes just those out. They land, as in an environment's site-packages, in
build/deps/torch-X.Y: torch/include, torch/lib, torch/version.py and, from NVIDIA's wheel, the CUDA runtime's
headers and library in nvidia/cu13. A folder that is complete is left as it is. Exit 1 where nothing can be
had (no network, a pip without that reader): the library is then not built, and its tests are skipped.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
import zipfile

DEPS = pathlib.Path(__file__).resolve().parents[1] / "build" / "deps"
HEADERS = ("torch/include/c10/", "torch/include/torch/headeronly/", "torch/include/torch/csrc/api/include/torch/version.h")
LIBRARIES = ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so")
RUNTIME = "nvidia-cuda-runtime==13.0.96"  # what PyTorch 2.11 for CUDA 13 asks for; the headers serve all
CHUNK = 1 << 20
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(34, 4, -1)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
]


class Index:
    """The package index, as pip is set up to use it."""

    def __init__(self):
        from pip._internal.commands import create_command

        self.command = create_command("download")
        self.options, _ = self.command.parse_args([])
        self.session = self.command._build_session(self.options)
        from pip._internal.models.target_python import TargetPython

        self.target = TargetPython(
            platforms=PLATFORMS, py_version_info=(3, 11), abis=["cp311"], implementation="cp"
        )

    def open(self, requirement):
        """The wheel as an open zip file of which only what is read is transferred."""
        from pip._internal.network.lazy_wheel import LazyZipOverHTTP
        from pip._internal.req.constructors import install_req_from_line

        wanted = install_req_from_line(requirement)
        finder = self.command._build_package_finder(
            options=self.options, session=self.session, target_python=self.target
        )
        found = finder.find_best_candidate(wanted.name, wanted.specifier).best_candidate
        if found is None:
            raise RuntimeError(f"the package index has no {requirement} for Linux on x86-64")
        return zipfile.ZipFile(LazyZipOverHTTP(found.link.url_without_fragment, self.session, CHUNK))


def extract(archive, wanted, target):
    names = sorted(
        (entry for entry in archive.infolist() if not entry.is_dir() and wanted(entry.filename)),
        key=lambda entry: entry.header_offset,
    )
    for entry in names:
        path = target / entry.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.read(entry))
    return len(names)


def fetch(index, version, headers_only):
    """Nothing is left half done: the folder appears under its name when it is complete."""
    target = DEPS / ("torch-" + ".".join(version.split(".")[:2]))
    if (target / "complete").exists() and (headers_only or (target / LIBRARIES[1]).exists()):
        return
    print(f"fetching the c10 headers of PyTorch {version}", flush=True)
    DEPS.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(dir=DEPS, prefix=target.name + "."))  # another setup may be at it too
    try:
        fill(index, version, headers_only, scratch)
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def fill(index, version, headers_only, scratch):

    def of_torch(name):
        return name.startswith(HEADERS) or name == "torch/version.py" or (name in LIBRARIES and not headers_only)

    def of_runtime(name):
        return "/include/" in name or ("/libcudart.so" in name and not headers_only)

    if extract(index.open(f"torch=={version}"), of_torch, scratch) < 100:
        raise RuntimeError(f"the wheel of torch {version} does not hold its headers where they were expected")
    if extract(index.open(RUNTIME), of_runtime, scratch) == 0:
        raise RuntimeError(f"the wheel of {RUNTIME} holds no headers")
    (scratch / "complete").write_text(version + "\n")
    scratch.chmod(0o755)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headers-only", action="store_true", help="for a compile check: no libraries")
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    arguments = parser.parse_args()
    index = None
    for version in arguments.versions:
        try:
            index = index or Index()
            fetch(index, version, arguments.headers_only)
        except Exception as problem:  # pip's own reader raises whatever its network layer does
            print(f"torch_headers: PyTorch {version} could not be fetched: {problem!r}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
