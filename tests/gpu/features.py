#!/usr/bin/env python3
"""What a PyTorch job relies on besides memory: out-of-memory errors, streams, graphs, trimming.

Every check compares values on the GPU. Exit 1 if one fails.
"""

import gc
import sys
import traceback

import job

MIB = 1 << 20
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def reserved(nofrag):
    return nofrag.stats()["devices"][0]["reserved_bytes"]


@check
def out_of_memory_is_torchs_own_error(torch, nofrag):
    keep = torch.arange(1000, device="cuda")
    for _ in range(3):
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
            raise AssertionError("a PiB was served")
        except torch.OutOfMemoryError as error:
            assert isinstance(error, RuntimeError)
            assert "CUDA out of memory. Tried to allocate 1048576.00 GiB" in str(error), str(error)
    assert int(keep.sum()) == 499500


@check
def limit_is_an_out_of_memory_error_and_the_job_goes_on(torch, nofrag):
    gc.collect()
    torch.cuda.empty_cache()
    nofrag.set_limit(reserved(nofrag) + 256 * MIB)
    held = []
    try:
        while True:
            held.append(torch.full((8 * MIB,), len(held) + 1.0, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    assert 4 <= len(held) <= 8, len(held)
    # All that was served holds what was written (the comparison itself needs memory), and room freed
    # is room to use.
    nofrag.set_limit(reserved(nofrag) + 64 * MIB)
    for index, tensor in enumerate(held):
        assert bool((tensor == index + 1).all()), index
    held.pop(0)
    held.append(torch.full((8 * MIB,), 77.0, device="cuda"))
    assert bool((held[-1] == 77).all())
    nofrag.set_limit(None)


@check
def per_process_memory_fraction(torch, nofrag):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        torch.empty(total // 3, dtype=torch.uint8, device="cuda")
        raise AssertionError("a third was served under a quarter")
    except torch.OutOfMemoryError:
        pass
    torch.cuda.set_per_process_memory_fraction(1.0)
    block = torch.empty(total // 3, dtype=torch.uint8, device="cuda")
    del block


@check
def record_stream_keeps_a_block_from_reuse(torch, nofrag):
    side = torch.cuda.Stream()
    elements = 16 * MIB
    for recorded in (True, False):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # so that the block is what lies free, not one of many
        source = torch.full((elements,), 1.0, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000_000)  # about half a second before the copy may start
            copy = source.clone()
        if recorded:
            source.record_stream(side)
        del source
        # On the stream that owned the block, which does not wait for the side stream.
        others = [torch.full((elements,), 2.0, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        # By its words: the memory of a block may come again at another address.
        wrong = int((copy != 1).sum())
        if recorded:
            assert wrong == 0, f"the memory was handed out while the side stream still read it: {wrong} words"
        else:
            # The counter-proof: without the record the memory is reused at once, and what is read is what came later.
            assert wrong != 0, "this check cannot fail: the memory was not reused even unrecorded"
        del copy, others


@check
def record_stream_under_a_limit(torch, nofrag):
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    nofrag.set_limit(reserved(nofrag) + 200 * MIB)
    side = torch.cuda.Stream()
    source = torch.full((24 * MIB,), 1.0, device="cuda")  # 96 MiB
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
        copy = source.sum()
    source.record_stream(side)
    del source
    # Does not fit beside the block that is still read: it must wait for it, not overwrite it.
    fresh = torch.full((32 * MIB,), 3.0, device="cuda")
    torch.cuda.synchronize()
    assert float(copy) == float(24 * MIB), float(copy)
    assert bool((fresh == 3).all())
    nofrag.set_limit(None)


@check
def streams_by_turns(torch, nofrag):
    streams = [torch.cuda.Stream() for _ in range(4)]
    totals = []
    for turn in range(200):
        stream = streams[turn % 4]
        with torch.cuda.stream(stream):
            block = torch.full((1 + (turn * 7919) % (4 * MIB),), float(turn), device="cuda")
            totals.append((block == turn).all())
            del block
    torch.cuda.synchronize()
    assert all(bool(total) for total in totals)


@check
def graph_capture_and_replay(torch, nofrag):
    weights = torch.randn(1024, 1024, device="cuda")
    static = torch.zeros(256, 1024, device="cuda")

    def work(x):
        hidden = torch.relu(x @ weights)
        return (hidden @ weights.t()).softmax(-1)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work(static)
    for turn in range(20):
        # Memory comes and goes around the graph, whose own must stay where it was captured.
        noise = [torch.full(((turn + 1) * MIB + i,), 5.0, device="cuda") for i in range(4)]
        fresh = torch.randn(256, 1024, device="cuda")
        static.copy_(fresh)
        graph.replay()
        assert torch.equal(result, work(fresh)), f"replay {turn} differs"
        assert all(bool((block == 5).all()) for block in noise)
        del noise, fresh
        torch.cuda.empty_cache()
    graph.reset()
    del graph, result


@check
def two_graphs_share_a_pool(torch, nofrag):
    static = torch.zeros(1 << 20, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    graphs, results = [], []
    for factor in (2.0, 3.0):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            results.append((static * factor).sum())
        graphs.append(graph)
    static.fill_(1.0)
    for graph, result, factor in zip(graphs, results, (2.0, 3.0)):
        graph.replay()
        assert float(result) == factor * (1 << 20)
    for graph in graphs:
        graph.reset()


@check
def empty_cache_gives_memory_back(torch, nofrag):
    gc.collect()
    torch.cuda.synchronize()
    keep = torch.full((3 * MIB,), 9.0, device="cuda")
    big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert reserved(nofrag) >= 1 << 30
    del big
    before, free_before = reserved(nofrag), torch.cuda.mem_get_info()[0]
    torch.cuda.empty_cache()
    after, free_after = reserved(nofrag), torch.cuda.mem_get_info()[0]
    assert before - after >= (1 << 30) - 64 * MIB, (before, after)
    assert free_after - free_before >= (1 << 30) - 64 * MIB, "the driver did not get it back"
    assert bool((keep == 9).all())


@check
def empty_tensors(torch, nofrag):
    empty = torch.empty(0, device="cuda")
    assert empty.numel() == 0 and float((empty + 1).sum()) == 0.0


def main():
    args = job.arguments(__doc__).parse_args()
    args.allocator = "nofrag"
    torch, nofrag = job.import_torch(args)
    torch.use_deterministic_algorithms(False)
    torch.zeros(1, device="cuda")
    failed = []
    for function in CHECKS:
        try:
            function(torch, nofrag)
            torch.cuda.synchronize()
            print(f"ok      {function.__name__}", flush=True)
        except Exception:
            failed.append(function.__name__)
            print(f"FAILED  {function.__name__}\n{traceback.format_exc()}", flush=True)
            nofrag.set_limit(None)
    stats = nofrag.stats()
    job.finish({"job": "features", "allocator": "nofrag", "checks": len(CHECKS), "failed": failed,
                "driver": stats["driver"], "device": stats["devices"][0]})
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
