"""A stand-in for the module torch, as far as nofrag_torch touches it: it loads the entry points `torch.backends`
at the end of its import as PyTorch does, and says on stdout which allocator it was given."""

import os
import types
from importlib.metadata import entry_points

__version__ = os.environ.get("STAND_IN_VERSION", "2.11.0+cu130")
version = types.SimpleNamespace(cuda=os.environ.get("STAND_IN_CUDA", "13.0") or None)
_SETTERS = ["set_init_fn", "set_reset_fn", "set_memory_fraction_fn", "set_base_alloc_fn", "set_record_stream_fn",
            "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool"]
given = {}


class _Plugin:
    def __init__(self, path, alloc, free):
        given["constructor"] = (path, alloc, free)
        self._inner = types.SimpleNamespace()
        for name in _SETTERS:
            if name not in os.environ.get("STAND_IN_WITHOUT", "").split(","):
                setattr(self._inner, name, lambda address, name=name: given.__setitem__(name, address))

    def allocator(self):
        return self._inner


cuda = types.SimpleNamespace(
    memory=types.SimpleNamespace(CUDAPluggableAllocator=_Plugin,
                                 change_current_allocator=lambda plugin: given.__setitem__("current", plugin)),
    is_initialized=lambda: os.environ.get("STAND_IN_INITIALIZED") == "1",
)

if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
    for _entry in entry_points(group="torch.backends"):
        try:
            _entry.load()()
        except Exception as error:
            raise RuntimeError(f"Failed to load the backend extension: {_entry.name}") from error
