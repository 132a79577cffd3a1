"""Runs `nofrag explain` and gives back its JSON. For the tests of this folder."""

import json
import subprocess

SCHEMA_KEYS = {"schema", "cause", "confidence", "evidence", "advice", "recoverable_by_remapping", "short_by_bytes"}
CAUSES = {"model_too_large", "batch_too_large", "kv_cache_growth", "fragmentation", "leak", "refused_below",
          "other_process", "limit", "host_memory", "unknown"}

# A message of PyTorch's about fragmentation.
WHOLE = ("CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacity of 6.00 GiB of which 0 bytes is free. "
         "Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by PyTorch but unallocated.")


def run(program, *arguments, text=b""):
    """The finished process; `text` is its standard input."""
    data = text.encode() if isinstance(text, str) else text
    return subprocess.run([program, "explain", *arguments], input=data, capture_output=True, timeout=300)


def explain(program, text="", *arguments):
    """The verdict on a text, or on the file named in the arguments; the contract's form is checked."""
    done = run(program, *(arguments or ["-"]), "--json", "-", text=text)
    assert done.returncode == 0, (done.returncode, done.stderr.decode(errors="replace"))
    verdict = json.loads(done.stdout)
    assert SCHEMA_KEYS <= verdict.keys(), verdict
    assert verdict["schema"] == "nofrag.explain/1" and verdict["cause"] in CAUSES, verdict
    assert 0 <= verdict["confidence"] <= 1 and verdict["short_by_bytes"] >= 0, verdict
    return verdict
