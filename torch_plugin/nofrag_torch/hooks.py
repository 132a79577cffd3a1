"""Makes nofrag PyTorch's CUDA allocator through the hooks of CUDAPluggableAllocator."""

import re
import warnings

from . import library

# PyTorch's setter -> our function. PyTorch calls each through its address.
_SETTERS = {
    "set_init_fn": "nofrag_torch_init",
    "set_reset_fn": "nofrag_torch_reset",
    "set_memory_fraction_fn": "nofrag_torch_memory_fraction",
    "set_base_alloc_fn": "nofrag_torch_base_alloc",
    "set_record_stream_fn": "nofrag_torch_record_stream",
    "set_begin_allocate_to_pool": "nofrag_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "nofrag_torch_end_allocate_to_pool",
    "set_release_pool": "nofrag_torch_release_pool",
}
# Without these, results could be wrong: memory in use on another stream, or held by a captured graph,
# would be handed out again.
_REQUIRED = {"set_record_stream_fn", "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool"}
_OLDEST = (2, 1)


def _version(torch):
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return (int(match[1]), int(match[2])) if match else _OLDEST


def install(path=None):
    """Makes nofrag the CUDA allocator of this process; returns PyTorch's allocator object.

    Must come before anything allocates on the GPU, because PyTorch does not change an allocator that
    is in use. `path` is libnofrag.so (default: library.find_library()).
    """
    import torch

    if _version(torch) < _OLDEST:
        raise RuntimeError(f"nofrag needs PyTorch 2.1 or newer, and this is {torch.__version__}")
    if not hasattr(torch.cuda.memory, "CUDAPluggableAllocator") or torch.version.cuda is None:
        raise RuntimeError(f"this PyTorch ({torch.__version__}) was built without CUDA")
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "nofrag_torch.install() came too late: CUDA is in use in this process already. "
            "Call it right after `import torch`."
        )
    opened = library.current(path)
    plugin = torch.cuda.memory.CUDAPluggableAllocator(opened.path, "nofrag_torch_alloc", "nofrag_torch_free")
    inner = plugin.allocator()
    for setter, function in _SETTERS.items():
        if hasattr(inner, setter):
            getattr(inner, setter)(opened.address(function))
        elif setter in _REQUIRED:
            raise RuntimeError(
                f"PyTorch {torch.__version__} does not let an allocator take part in {setter.removeprefix('set_')}; "
                "nofrag would not be safe under it"
            )
        else:
            warnings.warn(f"PyTorch {torch.__version__} has no {setter}; going on without it", stacklevel=2)
    torch.cuda.memory.change_current_allocator(plugin)
    return plugin
