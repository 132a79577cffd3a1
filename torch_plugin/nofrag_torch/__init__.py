"""nofrag as PyTorch's CUDA allocator.

With this package in the environment (pip install, or `nofrag run`), `NOFRAG_TORCH=1` is all it takes:
`import torch` then ends with nofrag in place. By hand:

    import torch, nofrag_torch
    nofrag_torch.install()          # before the first CUDA call

What works through which door: docs/pytorch.md. Numbers and limits: `import nofrag`.
"""

from nofrag import NofragError, current, find_library, set_limit, stats, stats_text, trim

from .doors import Installed, install, installed

__all__ = [
    "Installed",
    "NofragError",
    "current",
    "find_library",
    "install",
    "installed",
    "set_limit",
    "stats",
    "stats_text",
    "trim",
]
