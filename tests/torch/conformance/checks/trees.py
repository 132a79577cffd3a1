"""CUDA graph trees: torch.compile with reduce-overhead, and the allocator calls it is made of."""

import torch

from .common import MIB, check, equal, expect, filled, holds, live_blocks, segments
from .graphs import capture


def compiled(function):
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    # Every replay is checked against the allocator's list of live blocks.
    inductor.triton.slow_path_cudagraph_asserts = True
    inductor.triton.fast_path_cudagraph_asserts = True
    return torch.compile(function, mode="reduce-overhead")


def private_pools():
    return {tuple(one["segment_pool_id"]) for one in segments()} - {(0, 0)}


@check(timeout=150)
def compiled_inference():
    weights = torch.randn(512, 512, device="cuda")

    def work(x):
        return (torch.relu(x @ weights) @ weights.t()).softmax(-1)

    fast = compiled(work)
    with torch.no_grad():
        for turn in range(8):
            x = torch.randn(64, 512, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            out = fast(x)
            expect(torch.allclose(out, work(x), rtol=1e-3, atol=1e-4), f"turn {turn} differs")
            noise = [filled(3 * MIB, 1) for _ in range(4)]
            del noise
    skips = torch._dynamo.utils.counters["inductor"].get("cudagraph_skips", 0)
    equal(skips, 0, "graphs that were skipped")
    expect(private_pools(), "no graph was made")


@check(timeout=180)
def compiled_training():
    def make():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128)).cuda()

    model, plain = make(), make()
    fast = compiled(model)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, plain)]
    for turn in range(6):
        x = torch.randn(32, 128, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        losses = []
        for network, optimizer in zip((fast, plain), optimizers):
            loss = network(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss))
        expect(abs(losses[0] - losses[1]) <= 1e-3 * abs(losses[1]), f"turn {turn}: losses {losses}")
    expect(private_pools(), "no graph was made")


@check(timeout=180)
def paths_that_part():
    """One graph, then one of two others on its result: recording the second goes back to a checkpoint."""

    def first(x):
        return torch.sin(x) * 2

    def second(y):
        return torch.cos(y) + 1

    def third(y):
        return (y * y).cumsum(-1)

    a, b, c = compiled(first), torch.compile(second, mode="reduce-overhead"), torch.compile(third, mode="reduce-overhead")
    with torch.no_grad():
        for turn in range(9):
            x = torch.randn(256, 256, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            middle = a(x)
            out = b(middle) if turn % 3 != 2 else c(middle)
            wanted = second(first(x)) if turn % 3 != 2 else third(first(x))
            expect(torch.allclose(out, wanted, rtol=1e-3, atol=1e-3), f"turn {turn} differs")
            expect(torch.allclose(middle, first(x), rtol=1e-4, atol=1e-5), f"turn {turn}: the first result has changed")
    expect(private_pools(), "no graph was made")


def describe(tensor):
    storage = tensor.untyped_storage()
    return {"nbytes": storage.nbytes(), "data_ptr": storage.data_ptr(), "size": tensor.shape, "stride": tensor.stride(),
            "dtype": tensor.dtype, "device": tensor.device, "storage_offset": 0}


def rebuild(description):
    """A tensor over memory that it does not own, as the trees build the results of a replay."""
    storage = torch._C._construct_storage_from_data_pointer(description["data_ptr"], description["device"],
                                                            description["nbytes"])
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(description, storage)


def restore(state, stale=(), owners=()):
    torch._C._cuda_setCheckpointPoolState(0, state, [one.untyped_storage()._cdata for one in stale],
                                          [one.untyped_storage()._cdata for one in owners])


@check
def a_checkpoint_brings_blocks_back():
    one = torch.ones(1, device="cuda")
    graph, outs = capture(lambda: [torch.zeros(size, device="cuda") + one for size in (100, 300_000, 3 * MIB)], warm=False)
    pool = graph.pool()
    addresses = {out.data_ptr() for out in outs}
    equal(set(live_blocks(pool)), addresses, "live blocks at first")
    state = torch._C._cuda_getCheckpointState(0, pool)
    del outs
    equal(len(live_blocks(pool)), 0, "live blocks after the results died")
    restore(state)
    equal(set(live_blocks(pool)), addresses, "live blocks after the checkpoint was restored")
    for number, address in enumerate(sorted(addresses)):
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        equal(len(live_blocks(pool)), len(addresses) - number - 1, "live blocks after a delete")


@check
def a_checkpoint_gives_tensors_their_blocks():
    value = torch.ones(1, device="cuda")
    graph, outs = capture(lambda: [torch.zeros(size, device="cuda") + value for size in (1000, 2000, 4 * MIB)], warm=False)
    pool, descriptions = graph.pool(), [describe(out) for out in outs]
    state = torch._C._cuda_getCheckpointState(0, pool)
    graph.replay()
    expect(all(holds(out, 1.0) for out in outs), "the first replay is wrong")
    del outs
    outs = [rebuild(description) for description in descriptions]
    value.add_(1)
    graph.replay()
    expect(all(holds(out, 2.0) for out in outs), "the second replay is wrong")
    restore(state, owners=outs[:2])
    equal(len(live_blocks(pool)), 3, "live blocks")
    outs[0] = None
    equal(len(live_blocks(pool)), 2, "live blocks after an owner died")
    outs[1] = None
    equal(len(live_blocks(pool)), 1, "live blocks after two owners died")
    outs[2] = None
    equal(len(live_blocks(pool)), 1, "live blocks after one died that owns nothing")


@check
def a_checkpoint_forgets_what_came_later():
    value = torch.ones(1, device="cuda")
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        first = torch.zeros(MIB, device="cuda") + value
    pool = graph.pool()
    state = torch._C._cuda_getCheckpointState(0, pool)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=pool, stream=side):
        later = first * 3
    place = later.data_ptr()
    expect(place in live_blocks(pool), "the second result is not in the pool")
    restore(state, stale=[later])
    equal(set(live_blocks(pool)), {first.data_ptr()}, "live blocks after the checkpoint was restored")
    third = torch.cuda.CUDAGraph()
    with torch.cuda.graph(third, pool=pool, stream=side):
        again = first * 5
    graph.replay()
    third.replay()
    expect(holds(first, 1.0) and holds(again, 5.0), "the other path is wrong")
    equal(set(live_blocks(pool)), {first.data_ptr(), again.data_ptr()}, "live blocks at the end")


@check
def checkpoints_are_exact_about_addresses():
    """Restored many times, the same request gets the same address each time, as graphs rely on it."""
    value, side = torch.ones(1, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        first = torch.zeros(700_000, device="cuda") + value
    pool, places = graph.pool(), set()
    state = torch._C._cuda_getCheckpointState(0, pool)
    for _ in range(4):
        following = torch.cuda.CUDAGraph()
        with torch.cuda.graph(following, pool=pool, stream=side):
            out = first * 2
        graph.replay()
        following.replay()
        expect(holds(out, 2.0), "the replay is wrong")
        places.add(out.data_ptr())
        restore(state, stale=[out])
        del out, following
    equal(len(places), 1, "addresses of the second result")


@check
def live_blocks_are_checked():
    graph, outs = capture(lambda: [torch.zeros(size, device="cuda") + 1 for size in (1000, 2 * MIB)], warm=False)
    pool, live = graph.pool(), {out.untyped_storage().data_ptr() for out in outs}
    expect(torch._C._cuda_checkPoolLiveAllocations(0, pool, live), "the true set is denied")
    expect(not torch._C._cuda_checkPoolLiveAllocations(0, pool, set(list(live)[:1])), "a set too small is accepted")
    expect(not torch._C._cuda_checkPoolLiveAllocations(0, pool, live | {4096}), "a set too large is accepted")
    outs.pop()
    expect(not torch._C._cuda_checkPoolLiveAllocations(0, pool, live), "a dead block is taken for a live one")
