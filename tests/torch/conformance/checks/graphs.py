"""CUDA graphs: private pools, what a replay reads and writes, pools that graphs share."""

import threading

import torch

from .common import (MIB, allow, block, check, equal, expect, filled, holds, live_blocks, raises, segments, settle, sleep)


def capture(function, pool=None, warm=True, **options):
    """(graph, what the function returned), after a warm-up on a side stream as PyTorch asks for it."""
    if warm:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, **options):
        out = function()
    return graph, out


def pool_segments(pool):
    return [one for one in segments() if tuple(one["segment_pool_id"]) == tuple(pool)]


@check
def replays_are_right():
    weights, static = torch.randn(1024, 1024, device="cuda"), torch.zeros(256, 1024, device="cuda")

    def work(x):
        return (torch.relu(x @ weights) @ weights.t()).softmax(-1)

    graph, out = capture(lambda: work(static))
    for turn in range(12):
        noise = [filled((turn + 1) * MIB + one, 5) for one in range(4)]
        fresh = torch.randn(256, 1024, device="cuda")
        static.copy_(fresh)
        graph.replay()
        expect(torch.equal(out, work(fresh)), f"replay {turn} differs")
        expect(all(holds(one, 5) for one in noise), f"replay {turn} wrote into other tensors")
        del noise, fresh
        torch.cuda.empty_cache()


@check
def a_graph_has_a_pool_of_its_own():
    static = filled(4 * MIB, 1)
    graph, out = capture(lambda: (static + 1) * 2)
    pool = graph.pool()
    expect(tuple(pool) != (0, 0), "the pool of the graph is the default one")
    expect(out.data_ptr() in live_blocks(pool), "the result is not in the graph's pool")
    expect(static.data_ptr() not in live_blocks(pool), "a tensor from before is in the graph's pool")
    outside = block(4 * MIB)
    expect(outside.data_ptr() not in live_blocks(pool), "a tensor from after is in the graph's pool")
    del out, graph, outside


@check
def memory_of_a_graph_is_not_given_away():
    """What a graph used and freed while captured is still its own: its replays write there."""
    settle()
    static = torch.zeros(8 * MIB, device="cuda")

    def work():
        temporary = static + 1
        more = temporary * 3
        del temporary
        return more - 1

    graph, out = capture(work)
    ranges = [(one["address"], one["address"] + one["total_size"]) for one in pool_segments(graph.pool())]
    outside = [filled(4 * MIB, 7) for _ in range(40)]
    for one in outside:
        place = one.data_ptr()
        expect(not any(start <= place < end for start, end in ranges), "memory of the graph was given to others")
    for turn in range(4):
        static.fill_(turn)
        graph.replay()
        expect(holds(out, 3 * (turn + 1) - 1), "the replay is wrong")
    expect(all(holds(one, 7) for one in outside), "a replay wrote into other tensors")


@check
def two_graphs_share_a_pool():
    static, pool = torch.zeros(MIB, device="cuda"), torch.cuda.graph_pool_handle()
    first, one = capture(lambda: static * 2, pool=pool)
    second, two = capture(lambda left=one: left + 5, pool=pool)
    equal(tuple(first.pool()), tuple(pool), "the first graph's pool")
    equal(tuple(second.pool()), tuple(pool), "the second graph's pool")
    for turn in range(5):
        static.fill_(turn)
        first.replay()
        second.replay()
        expect(holds(one, 2 * turn) and holds(two, 2 * turn + 5), f"turn {turn} is wrong")
    del first, one
    static.fill_(50)
    second.replay()  # it reads what the first left, which must still be there
    expect(holds(two, 13), "the second graph alone is wrong")


@check
def three_graphs_and_their_results():
    static, pool, made = torch.zeros(MIB, device="cuda"), torch.cuda.graph_pool_handle(), []
    for factor in (2.0, 3.0, 5.0):
        made.append(capture(lambda factor=factor: static * factor, pool=pool))
    static.fill_(7)
    for graph, _ in made:
        graph.replay()
    equal([float(out[0]) for _, out in made], [14.0, 21.0, 35.0], "results")
    expect(len({out.data_ptr() for _, out in made}) == 3, "two live results have one address")


@check
def a_result_outlives_its_graph():
    settle()
    before = torch.cuda.memory_allocated()
    static = filled(2 * MIB, 3)
    graph, out = capture(lambda x=static: x + 4, warm=False)
    graph.replay()
    torch.cuda.synchronize()
    graph.reset()
    del graph, static
    noise = [filled(2 * MIB, 9) for _ in range(8)]
    expect(holds(out, 7), "the result has changed")
    del noise
    expect(torch.cuda.memory_allocated() - before >= 2 * MIB, "the result is not counted")
    del out
    equal(torch.cuda.memory_allocated(), before, "memory_allocated at the end")


@check
def a_graphs_memory_comes_back():
    settle()
    static = filled(64 * MIB, 1)
    before = torch.cuda.memory_reserved()
    graph, out = capture(lambda: (static + 1) + (static + 2), warm=False)
    expect(torch.cuda.memory_reserved() > before, "the graph took no memory")
    del graph, out
    settle()
    expect(torch.cuda.memory_reserved() <= before, "the graph's memory is still held")


@check
def captured_again():
    static, graph = torch.zeros(MIB, device="cuda"), torch.cuda.CUDAGraph()
    for turn in range(3):
        with torch.cuda.graph(graph):
            out = static + turn
        graph.replay()
        expect(holds(out, turn), f"capture {turn} is wrong")
        graph.reset()


@check
def a_capture_runs_out():
    settle()
    static = torch.ones(MIB, device="cuda")
    allow(128 * MIB)
    for _ in range(2):
        with raises(RuntimeError, "out of memory"):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = static + 1
                block(1 << 40)
        torch.cuda.synchronize()
        graph = out = None
    torch.cuda.set_per_process_memory_fraction(1.0)
    graph, out = capture(lambda: static + 41)
    graph.replay()
    expect(holds(out, 42), "the next capture is wrong")
    kept = filled(32 * MIB, 3)
    expect(holds(kept, 3), "the next allocation is wrong")


@check
def side_streams_in_a_capture():
    static, side = torch.zeros(4 * MIB, device="cuda"), torch.cuda.Stream()

    def work():
        left = static + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            right = left * 10
            left.record_stream(side)
        del left
        other = static + 5
        torch.cuda.current_stream().wait_stream(side)
        right.record_stream(torch.cuda.current_stream())
        return right + other

    graph, out = capture(work, warm=False)
    for turn in range(5):
        static.fill_(turn)
        graph.replay()
        expect(holds(out, 10 * (turn + 1) + turn + 5), f"replay {turn} is wrong")
    kept = filled(8 * MIB, 1)
    expect(holds(kept, 1), "the next allocation is wrong")


@check
def another_thread_allocates_meanwhile():
    static, faults, go, stop = torch.ones(MIB, device="cuda"), [], threading.Event(), threading.Event()
    warm = [filled(MIB, 1) for _ in range(8)]
    del warm

    def run():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            go.wait()
            for turn in range(200):
                kept = filled(turn * 997 % MIB + 1, turn % 251)
                if not holds(kept, turn % 251):
                    faults.append(turn)
        stop.set()

    thread = threading.Thread(target=run)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        go.set()
        out = static
        while not stop.is_set():
            out = out + 1
            stop.wait(0.01)
        inside = out.data_ptr()
    thread.join()
    expect(inside in live_blocks(graph.pool()), "the result is not in the graph's pool")
    equal(faults, [], "blocks of the other thread that changed")
    graph.replay()
    torch.cuda.synchronize()


@check(timeout=60)
def training_in_a_graph():
    """Forward, backward and optimizer in one graph, against the same steps without."""

    def make():
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).cuda()
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    def one_step(model, optimizer, x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    batches = [torch.randn(64, 256, generator=torch.Generator().manual_seed(turn)).cuda() for turn in range(12)]
    model, optimizer = make()
    plain = [float(one_step(model, optimizer, x)) for x in batches]
    model, optimizer = make()
    static = torch.zeros(64, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    losses = []
    with torch.cuda.stream(side):
        for x in batches[:3]:
            losses.append(float(one_step(model, optimizer, x)))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = one_step(model, optimizer, static)
    for x in batches[3:]:
        noise = torch.full((MIB,), 3.0, device="cuda")
        static.copy_(x)
        graph.replay()
        losses.append(float(loss))
        expect(holds(noise, 3.0), "a replay wrote into other tensors")
    for turn, (a, b) in enumerate(zip(plain, losses)):
        expect(abs(a - b) <= 1e-5 * max(1.0, abs(a)), f"step {turn}: {b} in the graph, {a} without")


@check(timeout=60)
def graphed_callables():
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
    plain = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
    plain.load_state_dict(model.state_dict())
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(32, 128, device="cuda", requires_grad=True),))
    for turn in range(6):
        x = torch.randn(32, 128, device="cuda")
        one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
        for network, data in ((graphed, one), (plain, two)):
            network(data).square().sum().backward()
        expect(torch.allclose(one.grad, two.grad, rtol=1e-4, atol=1e-5), f"turn {turn}: gradients differ")
        noise = [filled(MIB, 1) for _ in range(5)]
        del noise
    for a, b in zip(model.parameters(), plain.parameters()):
        expect(torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-4), "gradients of a parameter differ")


@check
def frees_inside_a_capture_are_reused_inside():
    """Two temporaries that do not live at once may share memory: the pool does not grow with each."""
    settle()
    static = torch.zeros(8 * MIB, device="cuda")  # 32 MiB
    before = torch.cuda.memory_reserved()

    def work():
        out = static
        for _ in range(20):
            out = out + 1
        return out

    graph, out = capture(work, warm=False)
    expect(torch.cuda.memory_reserved() - before <= 160 * MIB, "20 temporaries of 32 MiB are all kept")
    graph.replay()
    expect(holds(out, 20), "the replay is wrong")


@check
def freed_during_a_capture():
    """Tensors from before that die while a capture is under way, some with other streams' work."""
    side = torch.cuda.Stream()
    static, old = torch.zeros(MIB, device="cuda"), [filled(4 * MIB, 1) for _ in range(6)]
    with torch.cuda.stream(side):
        sleep(50)
    for one in old[:3]:
        one.record_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = static + 1
        old.clear()
        out = out * 2
    torch.cuda.synchronize()
    fresh = [filled(4 * MIB, 9) for _ in range(8)]
    static.fill_(4)
    graph.replay()
    expect(holds(out, 10), "the replay is wrong")
    expect(all(holds(one, 9) for one in fresh), "the replay wrote into other tensors")
