"""PYTORCH_CUDA_ALLOC_CONF, and settings that change while the program runs."""

import torch

from .common import ALLOCATOR, MIB, block, check, equal, expect, filled, holds, python

WORK = """
import torch
kept = [torch.full((1000 * one + 1,), float(one), device="cuda") for one in range(1, 60)]
del kept[::2]
big = torch.full((8 << 20,), 7.0, device="cuda")
assert all(bool((one == 2 * number + 2).all()) for number, one in enumerate(kept)) and bool((big == 7).all())
print(torch.cuda.get_allocator_backend(), torch.cuda.get_per_process_memory_fraction())
"""

ACCEPTED = ["expandable_segments:True", "max_split_size_mb:128,max_non_split_rounding_mb:30",
            "garbage_collection_threshold:0.8", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            "roundup_power2_divisions:4", "release_lock_on_cudamalloc:True",
            "pinned_use_cuda_host_register:True,pinned_num_register_threads:4", "pinned_use_background_threads:True",
            "graph_capture_record_stream_reuse:True", "large_segment_size_mb:64", "backend:native"]


def run_with(conf, variable):
    unset = {name: None for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    return python(WORK, timeout=120, **{**unset, variable: conf})


def accept(confs, variable="PYTORCH_CUDA_ALLOC_CONF"):
    for conf in confs:
        status, output, errors = run_with(conf, variable)
        equal((status, output.strip()), (0, "native 1.0"), f"{conf}: status and output ({errors[-200:]})")
        lines = [line for line in errors.splitlines() if line.startswith("nofrag:")]
        expect(len(lines) <= 1, f"{conf}: said more than once")


@check(timeout=120)
def keys_are_accepted_1():
    accept(ACCEPTED[:4])


@check(timeout=120)
def keys_are_accepted_2():
    accept(ACCEPTED[4:8])


@check(timeout=120)
def keys_are_accepted_3():
    accept(ACCEPTED[8:])
    accept(ACCEPTED[:1], "PYTORCH_ALLOC_CONF")


@check(timeout=60)
def a_fraction_in_the_environment():
    script = """
import torch
total = torch.cuda.mem_get_info()[1]
try:
    torch.empty(int(total * 0.08), dtype=torch.uint8, device="cuda")
    raise SystemExit("served more than the fraction")
except torch.OutOfMemoryError:
    kept = torch.zeros(int(total * 0.03), dtype=torch.uint8, device="cuda")
print(round(torch.cuda.get_per_process_memory_fraction(), 6))
"""
    status, output, errors = python(script, PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.05")
    equal((status, output.strip()), (0, "0.05"), f"status and output ({errors[-200:]})")


@check(timeout=60)
def unknown_keys_are_errors():
    status, _, errors = run_with("no_such_key:1", "PYTORCH_CUDA_ALLOC_CONF")
    expect("no_such_key" in errors, "the key is not named")
    if ALLOCATOR == "native":
        expect(status != 0, "it went on")


@check
def settings_change_at_run_time():
    kept = filled(8 * MIB, 3)
    for setting in ("expandable_segments:False", "expandable_segments:True", "roundup_power2_divisions:8",
                    "roundup_power2_divisions:1", "expandable_segments:False"):
        torch._C._accelerator_setAllocatorSettings(setting)
        more = filled(20 * MIB, 4)
        expect(holds(more, 4) and holds(kept, 3), f"{setting}: not what was written")
        del more
    shown = torch.cuda.memory._snapshot()["allocator_settings"]
    equal(shown["expandable_segments"], False, "expandable_segments in the snapshot")
    with_typo = False
    try:
        torch._C._accelerator_setAllocatorSettings("no_such_key:1")
    except (RuntimeError, ValueError):
        with_typo = True
    expect(with_typo, "a typing error was accepted")


@check
def sizes_are_rounded_as_asked():
    torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:4")
    kept, before = block(512), torch.cuda.memory_allocated()
    more = block(1024 * 1024 + 10)
    grown = torch.cuda.memory_allocated() - before
    equal(grown, 1024 * 1024 * 5 // 4, "memory_allocated for 1 MiB and 10 bytes in quarters of powers of two")
    torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:1")
    del kept, more
