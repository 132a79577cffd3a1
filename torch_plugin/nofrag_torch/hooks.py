"""The portable door: the hooks of CUDAPluggableAllocator, in every PyTorch since 2.1."""

import warnings

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


def install(torch, opened):
    """Makes `opened` (nofrag.Library) the current allocator; returns PyTorch's object."""
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
