"""nofrag for PyTorch.

    import nofrag_torch
    nofrag_torch.install()          # before the first CUDA call
    ...
    print(nofrag_torch.stats()["devices"][0]["peak_reserved_bytes"])

What works under these hooks, and what PyTorch does not offer to any such allocator, is listed in
docs/pytorch.md.
"""

from .hooks import install
from .library import Library, NofragError, current, find_library, set_limit, stats, stats_text, trim

__all__ = [
    "Library",
    "NofragError",
    "current",
    "find_library",
    "install",
    "set_limit",
    "stats",
    "stats_text",
    "trim",
]
