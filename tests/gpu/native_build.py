"""Builds libnofrag_torch_2_N.so with one compiler call a file, for a machine that has PyTorch and a compiler but
not the packages that the whole project needs. The core, libnofrag.so, is taken as it is."""

import concurrent.futures
import importlib.util
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def torch_folder():
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.origin).parent if spec else None


def minor_of(folder):
    found = re.search(r"__version__ *= *['\"]2\.(\d+)\.", (folder / "version.py").read_text())
    return int(found[1])


def cuda_include(folder):
    candidates = [*sorted((folder.parent / "nvidia").glob("*/include")), pathlib.Path("/usr/local/cuda/include")]
    for candidate in candidates:
        # Some wheels have the headers of the runtime without those of the compiler that they include.
        if (candidate / "cuda_runtime_api.h").exists() and (candidate / "crt/host_config.h").exists():
            return candidate
    raise RuntimeError(f"cuda_runtime_api.h and crt/host_config.h are in none of {', '.join(map(str, candidates))}")


def build(core, target):
    """The path of the library, beside a copy of `core` in the folder `target`."""
    folder = torch_folder()
    minor = minor_of(folder)
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(core, target / "libnofrag.so")
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", f"-DNOFRAG_TORCH_MINOR={minor}"]
    flags += ["-I", str(ROOT), "-I", str(ROOT / "include")]
    flags += ["-isystem", str(folder / "include"), "-isystem", str(cuda_include(folder))]
    sources = sorted((ROOT / "torch_plugin/native").rglob("*.cc"))

    def compile_one(source):
        made = target / (source.stem + ".o")
        subprocess.run(["g++", *flags, "-c", str(source), "-o", str(made)], check=True)
        return str(made)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        objects = list(pool.map(compile_one, sources))
    library = target / f"libnofrag_torch_2_{minor}.so"
    libraries = [str(target / "libnofrag.so"), str(folder / "lib/libc10_cuda.so"), str(folder / "lib/libc10.so")]
    link = ["-shared", "-o", str(library), *objects, *libraries, "-Wl,-rpath,$ORIGIN", "-Wl,-z,nodelete"]
    link += [f"-Wl,--version-script={ROOT / 'torch_plugin/native/exports.map'}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["g++", *link], check=True)
    return library
