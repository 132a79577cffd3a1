"""memory_stats and all that is made of it."""

import threading
import warnings

import torch

from .common import MIB, between, block, check, equal, expect, filled, holds, settle, sleep, stat

CORE = ["allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
        "inactive_split_bytes", "requested_bytes"]
POOLS = ["all", "small_pool", "large_pool"]
METRICS = ["current", "peak", "allocated", "freed"]
KEYS = {f"{core}.{pool}.{metric}" for core in CORE for pool in POOLS for metric in METRICS}
KEYS |= {f"{name}.{metric}" for name in ("oversize_allocations", "oversize_segments") for metric in METRICS}
KEYS |= {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size"}


def work():
    """Something of every size, some of it freed."""
    kept = []
    for turn in range(60):
        kept.append(block((turn * 7919 * 331) % (6 * MIB) + 1))
        if turn % 3 == 2:
            kept.pop(turn % len(kept))
    return kept


def difference(before, after):
    return {key: after[key] - before[key] for key in before}


@check
def every_key_is_there():
    stats = torch.cuda.memory_stats()
    equal(sorted(KEYS - set(stats)), [], "keys that are missing")
    # Newer versions have more.
    if torch.__version__.startswith("2.11"):
        equal(sorted(set(stats) - KEYS), [], "keys that 2.11 does not have")


@check
def values_are_counts():
    kept = work()
    for key, value in torch.cuda.memory_stats().items():
        expect(isinstance(value, int), f"{key} is a {type(value).__name__}")
        expect(value >= 0 or key == "max_split_size", f"{key} is {value}")
    del kept


@check
def current_is_allocated_less_freed():
    kept = work()
    stats = torch.cuda.memory_stats()
    for prefix in {key.rpartition(".")[0] for key in KEYS if "." in key}:
        current, allocated, freed = (stats[f"{prefix}.{metric}"] for metric in ("current", "allocated", "freed"))
        equal(current, allocated - freed, f"{prefix}.current against allocated - freed")
        expect(stats[f"{prefix}.peak"] >= current, f"{prefix}.peak is below current")
    del kept


@check
def all_is_small_and_large():
    kept = work()
    stats = torch.cuda.memory_stats()
    for core in CORE:
        for metric in ("current", "allocated", "freed"):
            parts = sum(stats[f"{core}.{pool}.{metric}"] for pool in POOLS[1:])
            equal(stats[f"{core}.all.{metric}"], parts, f"{core}.all.{metric}")
    del kept


@check
def sizes_are_in_their_order():
    kept = work()
    stats = torch.cuda.memory_stats()
    for metric in ("current", "peak"):
        names = ["requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"]
        values = [stats[f"{name}.all.{metric}"] for name in names]
        equal(values, sorted(values), f"{metric} of {', '.join(names)}")
    del kept


@check
def follow_each_allocation_and_free():
    settle()
    before = torch.cuda.memory_stats()
    kept = [block(size) for size in (1, 512, 4096, 300_000, 3 * MIB, 40 * MIB)]
    after = torch.cuda.memory_stats()
    change = difference(before, after)
    for metric in ("current", "allocated"):
        equal(change[f"allocation.all.{metric}"], 6, f"allocation.all.{metric}")
        equal(change[f"active.all.{metric}"], 6, f"active.all.{metric}")
    equal(change["allocation.small_pool.current"], 4, "small allocations")
    equal(change["allocation.large_pool.current"], 2, "large allocations")
    equal(change["requested_bytes.all.current"], 1 + 512 + 4096 + 300_000 + 43 * MIB, "requested bytes")
    del kept
    change = difference(before, torch.cuda.memory_stats())
    for name in ("allocation", "active", "requested_bytes", "allocated_bytes", "active_bytes"):
        equal(change[f"{name}.all.current"], 0, f"{name}.all.current after the frees")
        equal(change[f"{name}.all.freed"], change[f"{name}.all.allocated"], f"{name}.all.freed")


@check
def memory_allocated_is_rounded_to_512():
    kept, before = [], torch.cuda.memory_allocated()
    for size in (1, 511, 512, 513, 1000, 65_537, MIB, MIB + 1, 3 * MIB + 5, 9 * MIB + 511, 32 * MIB + 1):
        kept.append(block(size))
        after = torch.cuda.memory_allocated()
        equal(after - before, -(-size // 512) * 512, f"memory_allocated for {size} bytes")
        before = after


@check
def blocks_used_again_are_hardly_larger():
    for turn in range(300):
        size = (turn * 104_729) % (2 * MIB) + 1
        before = torch.cuda.memory_allocated()
        kept = block(size)
        between(torch.cuda.memory_allocated() - before, size, size + max(MIB, size // 8) + 512, f"block of {size}")
        del kept


@check
def nothing_for_empty_tensors():
    before = torch.cuda.memory_stats()
    empty = torch.empty(0, device="cuda")
    equal(empty.data_ptr(), 0, "address")
    equal(float((empty + 1).sum()), 0.0, "sum")
    change = difference(before, torch.cuda.memory_stats())
    equal(change["requested_bytes.all.current"], 0, "requested bytes")


@check
def one_mebibyte_is_small():
    for size, pool in ((MIB, "small_pool"), (MIB + 1, "large_pool")):
        before = torch.cuda.memory_stats()
        kept = block(size)
        change = difference(before, torch.cuda.memory_stats())
        for name in ("small_pool", "large_pool"):
            equal(change[f"allocation.{name}.current"], int(name == pool), f"{size} bytes in {name}")
        del kept


@check
def peaks_rise_and_are_reset():
    settle()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    big = block(64 * MIB)
    del big
    small = block(MIB)
    equal(torch.cuda.max_memory_allocated() - base, 64 * MIB, "peak above the base")
    expect(torch.cuda.max_memory_reserved() >= base + 64 * MIB, "the peak of reserved memory is too low")
    torch.cuda.reset_peak_memory_stats()
    stats = torch.cuda.memory_stats()
    for prefix in {key.rpartition(".")[0] for key in KEYS if key.endswith(".peak")}:
        equal(stats[f"{prefix}.peak"], stats[f"{prefix}.current"], f"{prefix}.peak after the reset")
    del small


@check
def sums_are_reset():
    kept = work()
    before = torch.cuda.memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    for key in KEYS:
        metric = key.rpartition(".")[2]
        if metric in ("allocated", "freed") or key.startswith("num_ooms"):
            equal(stats[key], 0, f"{key} after the reset")
        elif metric == "current":
            equal(stats[key], before[key], f"{key} after the reset")
    more = block(3 * MIB)
    equal(stat("allocation.all.allocated"), 1, "allocations since the reset")
    del kept, more


@check
def shorthands_agree():
    kept = work()
    stats = torch.cuda.memory_stats()
    equal(torch.cuda.memory_allocated(), stats["allocated_bytes.all.current"], "memory_allocated")
    equal(torch.cuda.max_memory_allocated(), stats["allocated_bytes.all.peak"], "max_memory_allocated")
    equal(torch.cuda.memory_reserved(), stats["reserved_bytes.all.current"], "memory_reserved")
    equal(torch.cuda.max_memory_reserved(), stats["reserved_bytes.all.peak"], "max_memory_reserved")
    nested = torch.cuda.memory_stats_as_nested_dict()
    equal(nested["allocated_bytes"]["all"]["current"], stats["allocated_bytes.all.current"], "nested")
    for device in (0, "cuda", "cuda:0", torch.device("cuda", 0), None):
        equal(torch.cuda.memory_allocated(device), torch.cuda.memory_allocated(), f"memory_allocated({device!r})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal(torch.cuda.memory_cached(), torch.cuda.memory_reserved(), "memory_cached")
        torch.cuda.reset_max_memory_allocated()
    equal(torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), "the peak after its old reset")
    del kept


@check
def summary_is_written():
    kept = work()
    for text in (torch.cuda.memory_summary(), torch.cuda.memory_summary(abbreviated=True)):
        for words in ("PyTorch CUDA memory summary", "Allocated memory", "GPU reserved memory", "CUDA OOMs: 0"):
            expect(words in text, f"the summary lacks {words!r}")
    expect("from large pool" in torch.cuda.memory_summary(), "the summary lacks the pools")
    del kept


@check
def empty_cache_gives_back():
    settle()
    kept = filled(3 * MIB, 9)
    big = block(512 * MIB)
    expect(torch.cuda.memory_reserved() >= 515 * MIB, "less reserved than live")
    del big
    before, freed = torch.cuda.memory_reserved(), stat("num_device_free")
    torch.cuda.empty_cache()
    expect(before - torch.cuda.memory_reserved() >= 448 * MIB, "empty_cache kept what was free")
    expect(stat("num_device_free") > freed, "num_device_free did not move")
    expect(holds(kept, 9), "what was live has changed")


@check(alone=True)
def empty_cache_reaches_the_driver():
    settle()
    big = block(1024 * MIB)
    during = torch.cuda.mem_get_info()[0]
    del big
    settle()
    expect(torch.cuda.mem_get_info()[0] - during >= 960 * MIB, "the driver did not get the memory back")


@check
def device_calls_are_counted():
    settle()
    before = stat("num_device_alloc")
    kept = block(100 * MIB)
    expect(stat("num_device_alloc") > before, "num_device_alloc did not move")
    del kept


@check
def waiting_blocks_are_active():
    settle()
    side = torch.cuda.Stream()
    before = torch.cuda.memory_stats()
    kept = block(8 * MIB)
    with torch.cuda.stream(side):
        sleep(300)
    kept.record_stream(side)
    del kept
    change = difference(before, torch.cuda.memory_stats())
    equal(change["allocated_bytes.all.current"], 0, "allocated bytes after the free")
    equal(change["active_bytes.all.current"], 8 * MIB, "active bytes while the side stream works")
    torch.cuda.synchronize()
    more = block(512)  # what is done is found by an allocation
    del more
    change = difference(before, torch.cuda.memory_stats())
    equal(change["active_bytes.all.current"], 0, "active bytes at the end")


@check
def threads_are_counted():
    before = torch.cuda.memory_stats()

    def run(seed):
        for turn in range(200):
            kept = block((turn * 7919 + seed) % 200_000 + 1)
            del kept

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    change = difference(before, torch.cuda.memory_stats())
    equal(change["allocation.all.allocated"], 800, "allocations")
    equal(change["allocation.all.freed"], 800, "frees")
    equal(change["allocated_bytes.all.current"], 0, "bytes left")


@check(initialise=False)
def nothing_before_cuda_begins():
    equal(dict(torch.cuda.memory_stats()), {}, "memory_stats")
    equal(torch.cuda.memory_allocated(), 0, "memory_allocated")
    torch.cuda.empty_cache()
    expect(not torch.cuda.is_initialized(), "asking has initialised CUDA")


@check
def accelerator_tells_the_same():
    accelerator = torch.accelerator
    kept = work()
    equal(accelerator.memory_allocated(), torch.cuda.memory_allocated(), "memory_allocated")
    equal(accelerator.max_memory_allocated(), torch.cuda.max_memory_allocated(), "max_memory_allocated")
    equal(accelerator.memory_reserved(), torch.cuda.memory_reserved(), "memory_reserved")
    own = accelerator.memory_stats()
    for key, value in torch.cuda.memory_stats().items():
        if key in own:
            equal(own[key], value, f"{key} of torch.accelerator")
    del kept
    accelerator.reset_peak_memory_stats()
    equal(accelerator.max_memory_allocated(), accelerator.memory_allocated(), "the peak after its reset")
    accelerator.reset_accumulated_memory_stats()
    equal(stat("allocation.all.allocated"), 0, "allocations after the reset")
    before = torch.cuda.memory_reserved()
    torch.cuda.synchronize()
    accelerator.empty_cache()
    expect(torch.cuda.memory_reserved() < before, "torch.accelerator.empty_cache gave nothing back")
    equal(accelerator.get_memory_info()[1], torch.cuda.mem_get_info()[1], "the device's memory")


@check
def host_memory_is_counted_apart():
    before, host = torch.cuda.memory_allocated(), torch.cuda.host_memory_stats()
    pinned = torch.arange(2 * MIB, dtype=torch.uint8).pin_memory()
    expect(pinned.is_pinned(), "not pinned")
    after = torch.cuda.host_memory_stats()
    grown = [key for key in after if key.endswith("bytes.current") and after[key] >= host.get(key, 0) + 2 * MIB]
    expect(grown, "host_memory_stats does not show pinned memory")
    equal(torch.cuda.memory_allocated(), before, "device memory")
    expect(torch.equal(pinned.to("cuda", non_blocking=True).cpu(), pinned), "the copy differs")


@check
def raw_blocks():
    before = torch.cuda.memory_allocated()
    for stream in (None, torch.cuda.Stream(), torch.cuda.Stream().cuda_stream):
        address = torch.cuda.caching_allocator_alloc(MIB, stream=stream)
        equal(torch.cuda.memory_allocated() - before, MIB, "memory_allocated")
        storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cuda", 0), MIB)
        view = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage, 0, (MIB,))
        view.fill_(7)
        torch.cuda.synchronize()
        expect(holds(view, 7), "what was written is not there")
        del view, storage
        torch.cuda.synchronize()
        torch.cuda.caching_allocator_delete(address)
        equal(torch.cuda.memory_allocated(), before, "memory_allocated after the delete")


@check
def switched_off():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.caching_allocator_enable(False)
    try:
        kept = filled(8 * MIB, 5)
        equal(torch.cuda.memory_allocated(), before, "memory_allocated while the allocator is off")
    finally:
        torch.cuda.caching_allocator_enable(True)
    expect(holds(kept, 5), "what was written is not there")
    del kept
    kept = filled(8 * MIB, 6)
    equal(torch.cuda.memory_allocated() - before, 8 * MIB, "memory_allocated when it is on again")
    expect(holds(kept, 6), "what was written is not there")


@check
def backend_is_native():
    equal(torch.cuda.get_allocator_backend(), "native", "get_allocator_backend")
