"""Messages of failures whose cause no trace shows; each function takes a seed and makes another variant."""

import random

from oom_numbers_test import size


def torch_message(requested, capacity, free, in_use, allocated, cached, processes=()):
    others = "".join(f"Process {pid} has {size(gib)} memory in use. " for pid, gib in processes)
    return (f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size(requested)}. GPU 0 has a total capacity "
            f"of {size(capacity)} of which {size(free)} is free. {others}Including non-PyTorch memory, this process has "
            f"{size(in_use)} memory in use. Of the allocated memory {size(allocated)} is allocated by PyTorch, and "
            f"{size(cached)} is reserved by PyTorch but unallocated.")


def refused_below(seed):
    """The driver says no with far more free than was asked for: quotas, shims, broken installations."""
    r = random.Random(seed)
    capacity = r.choice([6.0, 15.9, 23.65, 44.4, 79.15])
    allocated = capacity * r.uniform(0.02, 0.4)
    cached = allocated * r.uniform(0.0, 0.1)
    in_use = allocated + cached + 0.5
    free = capacity - in_use
    requested = r.uniform(0.02, 0.3) * free
    if seed % 2:
        return torch_message(requested, capacity, free, in_use, allocated, cached)
    return (f"RuntimeError: CUDA out of memory. Tried to allocate {size(requested)} (GPU 0; {size(capacity)} total capacity; "
            f"{size(allocated)} already allocated; {size(free)} free; {size(allocated + cached)} reserved in total by "
            "PyTorch)")


def other_process(seed):
    """Named neighbours, or a card that is full of what this process does not hold."""
    r = random.Random(seed)
    capacity = r.choice([15.9, 23.65, 44.4, 79.15])
    allocated = capacity * r.uniform(0.05, 0.3)
    cached = allocated * 0.02
    in_use = allocated + cached + 0.6
    free = capacity * r.uniform(0.002, 0.02)
    requested = free + cached + capacity * r.uniform(0.02, 0.15)
    others = capacity - in_use - free
    if seed % 3 == 0:
        processes = [(4242, others)]
    elif seed % 3 == 1:
        processes = [(4242, others * 0.6), (77, others * 0.4)]
    else:
        processes = []
    return torch_message(requested, capacity, free, in_use, allocated, cached, processes)


CAUSES = {f.__name__: f for f in (refused_below, other_process)}
