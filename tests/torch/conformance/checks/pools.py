"""torch.cuda.MemPool: a pool of one's own, nested, lent, unsplit, with another allocator, in a graph."""

import ctypes
import gc
import threading

import torch

from .common import (MIB, allow, between, block, check, equal, expect, filled, holds, live_blocks, raises, segments, settle)

use = torch.cuda.use_mem_pool


def pool_bytes(pool):
    return sum(one["total_size"] for one in segments() if tuple(one["segment_pool_id"]) == tuple(pool.id))


@check
def ids_and_uses():
    one, two = torch.cuda.MemPool(), torch.cuda.MemPool()
    expect(tuple(one.id) != (0, 0) and tuple(one.id) != tuple(two.id), f"ids {one.id} and {two.id}")
    equal(one.use_count(), 1, "use_count at first")
    with use(one):
        equal(one.use_count(), 2, "use_count inside")
    equal(one.use_count(), 1, "use_count after")


@check
def allocations_go_to_it():
    pool = torch.cuda.MemPool()
    before = block(3 * MIB)
    with use(pool):
        inside = filled(3 * MIB, 4)
    after = block(3 * MIB)
    live = live_blocks(pool.id)
    expect(inside.data_ptr() in live, "a tensor made inside is not in the pool")
    expect(before.data_ptr() not in live and after.data_ptr() not in live, "a tensor made outside is in the pool")
    expect(holds(inside, 4), "not what was written")
    del inside, before, after


@check
def nested_pools():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with use(outer):
        one = block(3 * MIB)
        with use(inner):
            two = block(3 * MIB)
        three = block(3 * MIB)
    equal(set(live_blocks(outer.id)), {one.data_ptr(), three.data_ptr()}, "the outer pool")
    equal(set(live_blocks(inner.id)), {two.data_ptr()}, "the inner pool")
    del one, two, three


@check
def it_is_used_by_this_thread_only():
    pool, made = torch.cuda.MemPool(), []
    with use(pool):
        thread = threading.Thread(target=lambda: made.append(block(3 * MIB)))
        thread.start()
        thread.join()
        inside = block(3 * MIB)
    equal(set(live_blocks(pool.id)), {inside.data_ptr()}, "what is in the pool")
    expect(made[0].data_ptr() in live_blocks((0, 0)), "the other thread's tensor is not in the default pool")
    del inside


@check
def two_threads_with_a_pool_each():
    pools, faults = [torch.cuda.MemPool() for _ in range(4)], []

    def run(number):
        for turn in range(20):
            with use(pools[number]):
                kept = filled((number + 1) * MIB + turn, number * 20 + turn)
            if kept.data_ptr() not in live_blocks(pools[number].id) or not holds(kept, number * 20 + turn):
                faults.append((number, turn))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(faults, [], "tensors in the wrong pool, or changed")


@check
def memory_of_a_pool_is_its_own():
    settle()
    pool = torch.cuda.MemPool()
    with use(pool):
        inside = block(24 * MIB)
    address = inside.data_ptr()
    del inside
    outside = block(24 * MIB)
    expect(outside.data_ptr() != address, "freed memory of the pool went to the default pool")
    with use(pool):
        again = block(24 * MIB)
    expect(again.data_ptr() in live_blocks(pool.id), "not in the pool")
    equal(again.data_ptr(), address, "the address of the same request")
    del again, outside


@check
def a_tensor_outlives_its_pool():
    settle()
    pool = torch.cuda.MemPool()
    with use(pool):
        kept = filled(8 * MIB, 6)
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    noise = [filled(8 * MIB, 1) for _ in range(6)]
    expect(holds(kept, 6), "the tensor has changed")
    del kept, noise


@check
def a_pools_memory_comes_back():
    settle()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with use(pool):
        kept = block(256 * MIB)
    expect(torch.cuda.memory_reserved() - before >= 256 * MIB, "the pool holds nothing")
    del kept, pool
    settle()
    between(torch.cuda.memory_reserved(), 0, before + 4 * MIB, "reserved at the end")


@check
def its_snapshot_is_its_own():
    pool = torch.cuda.MemPool()
    others = block(40 * MIB)
    with use(pool):
        kept = block(6 * MIB)
    shown = pool.snapshot()
    expect(shown, "the snapshot is empty")
    equal({tuple(one["segment_pool_id"]) for one in shown}, {tuple(pool.id)}, "pools in the snapshot")
    addresses = {one["address"] for segment in shown for one in segment["blocks"] if one["state"] == "active_allocated"}
    equal(addresses, {kept.data_ptr()}, "live blocks in the snapshot")
    equal(len(pool.snapshot(include_traces=False)), len(shown), "segments without traces")
    del kept, others


@check
def it_is_lent_when_memory_is_short():
    settle()
    pool = torch.cuda.MemPool(use_on_oom=True)
    with use(pool):
        kept = block(200 * MIB)
    del kept
    allow(40 * MIB)
    borrowed = filled(150 * MIB, 3)
    expect(bool(borrowed[0] == 3) and bool(borrowed[-1] == 3), "not what was written")
    with raises(torch.OutOfMemoryError):
        block(400 * MIB)
    del borrowed
    torch.cuda.set_per_process_memory_fraction(1.0)
    with use(pool):
        again = filled(180 * MIB, 5)
    expect(holds(again[:MIB], 5), "the pool does not work afterwards")
    del again


@check
def unsplit_pools():
    settle()
    pool = torch.cuda.MemPool(no_split=True)
    with use(pool):
        one, two = block(3 * MIB), block(3 * MIB)
    holders = [segment for segment in pool.snapshot() if any(part["state"] == "active_allocated" for part in segment["blocks"])]
    equal([len(segment["blocks"]) for segment in holders], [1, 1], "blocks of each segment in use")
    expect(one.data_ptr() != two.data_ptr(), "one address for both")
    del one, two


@check
def other_allocators_serve_a_pool():
    """A pool over cudaMalloc, called from Python: its segments come from there and go back there."""
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcudart.so" in line)
    runtime, taken = ctypes.CDLL(path), {}

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    def allocate(size, device, stream):
        address = ctypes.c_void_p()
        if runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) != 0:
            return None
        taken[address.value] = size
        return address.value

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def give_back(address, size, device, stream):
        runtime.cudaFree(ctypes.c_void_p(address))
        taken.pop(address, None)

    inner = torch._C._cuda_customAllocator(ctypes.cast(allocate, ctypes.c_void_p).value,
                                           ctypes.cast(give_back, ctypes.c_void_p).value)
    pool = torch.cuda.MemPool(inner)
    with use(pool):
        kept = filled(6 * MIB, 9)
        more = filled(1000, 8)
    expect(taken, "the other allocator was not asked")
    inside = any(start <= kept.data_ptr() < start + size for start, size in taken.items())
    expect(inside, "the tensor does not lie in what the other allocator gave")
    outside = filled(6 * MIB, 1)
    expect(not any(start <= outside.data_ptr() < start + size for start, size in taken.items()), "a stranger lies there")
    expect(holds(kept, 9) and holds(more, 8), "not what was written")
    del kept, more, outside
    del pool
    settle()
    equal(taken, {}, "what the other allocator has not got back")


@check
def pools_of_graphs():
    settle()
    pool, static = torch.cuda.MemPool(), torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        out = static + 3
    equal(tuple(graph.pool()), tuple(pool.id), "the graph's pool")
    expect(out.data_ptr() in live_blocks(pool.id), "the result is not in the pool")
    with use(pool):
        beside = filled(4 * MIB, 2)
    static.fill_(4)
    graph.replay()
    expect(holds(out, 7) and holds(beside, 2), "the replay is wrong")
    del graph, out, beside


@check
def many_short_pools():
    settle()
    before = torch.cuda.memory_reserved()
    for turn in range(60):
        pool = torch.cuda.MemPool()
        with use(pool):
            kept = filled(8 * MIB, turn)
        expect(holds(kept, turn), "not what was written")
        del kept, pool
    settle()
    between(torch.cuda.memory_reserved(), 0, before + 4 * MIB, "reserved at the end")


@check
def pools_and_streams():
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with use(pool):
        one = filled(4 * MIB, 1)
        with torch.cuda.stream(side):
            two = filled(4 * MIB, 2)
    equal(set(live_blocks(pool.id)), {one.data_ptr(), two.data_ptr()}, "what is in the pool")
    torch.cuda.synchronize()
    expect(holds(one, 1) and holds(two, 2), "not what was written")
    equal(pool_bytes(pool) >= 8 * MIB, True, "the pool is large enough")
    del one, two
