"""Checks of native_torch.py: CUDA graphs, trees of graphs, MemPools."""

import ctypes
import gc
import pathlib
import subprocess
import tempfile

MIB = 1 << 20
CHECKS = {}

# A pool's own allocator: the driver's plain one, counted.
OWN_ALLOCATOR = r"""
#include <cuda_runtime_api.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
int allocations = 0;
int frees = 0;
void* own_alloc(size_t size, int device, void* stream) {
  (void)device; (void)stream;
  void* p = 0;
  ++allocations;
  return cudaMalloc(&p, size) == cudaSuccess ? p : 0;
}
void own_free(void* p, size_t size, int device, void* stream) {
  (void)size; (void)device; (void)stream;
  ++frees;
  cudaFree(p);
}
#ifdef __cplusplus
}
#endif
"""


def check(function):
    CHECKS[function.__name__] = function
    return function


@check
def graphs(torch):
    x = torch.arange(MIB, dtype=torch.float32, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        (x * 2 + 1).sum()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
        z = y.sum()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        w = (y - 1) / 2
    for factor in (1, 3):
        x.copy_(torch.arange(MIB, device="cuda") * factor)
        graph.replay()
        second.replay()
        assert float(z) == float((x.double() * 2 + 1).float().sum()), float(z)
        assert torch.equal(w, x)
        torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] >= 3 * 4 * MIB
    del y, z, w, graph, second
    gc.collect()
    torch.cuda.empty_cache()
    return f"{torch.cuda.memory_reserved() // MIB} MiB held in the end"


@check
def graphed_callables(torch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
    x = torch.randn(32, 256, device="cuda")
    expected = model(x)
    expected.sum().backward()
    gradient = model[0].weight.grad.clone()
    model.zero_grad(set_to_none=True)
    # Else its graph keeps the nodes that add up gradients, and with them the stream they were made on.
    expected = expected.detach()
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    y = graphed(x)
    y.sum().backward()
    assert torch.allclose(y, expected) and torch.allclose(model[0].weight.grad, gradient)


@check
def capture_out_of_memory_ends_cleanly(torch):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            torch.zeros(1 << 42, dtype=torch.uint8, device="cuda")
        raise AssertionError("4 TiB were served")
    except torch.OutOfMemoryError:
        pass
    assert int(torch.ones(1000, device="cuda").sum()) == 1000


@check
def trees_of_graphs(torch):
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(512, 512)
            self.second = torch.nn.Linear(512, 512)

        def forward(self, x):
            return self.second(torch.relu(self.first(x))) + x

    model = Model().cuda()
    fast = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for step in range(12):
        x = torch.randn(64 if step % 3 else 32, 512, device="cuda")
        with torch.no_grad():
            expected = model(x).square().mean()
        loss = fast(x).square().mean()
        assert torch.allclose(loss, expected, rtol=1e-3), (step, float(loss), float(expected))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss))
    with torch.no_grad():
        kept = [fast(torch.ones(32, 512, device="cuda")).clone() for _ in range(4)]
    assert all(torch.equal(kept[0], each) for each in kept)
    return f"loss {losses[0]:.4f} -> {losses[-1]:.4f}"


@check
def checkpoints_of_pools(torch):
    """As trees of graphs use them: what was live at the checkpoint comes back at its addresses."""
    device = torch.cuda.current_device()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = torch.full((MIB,), 1.0, device="cuda")
        b = torch.full((3 * MIB,), 2.0, device="cuda")
    pool = graph.pool()
    graph.replay()
    state = torch._C._cuda_getCheckpointState(device, pool)
    addresses = {a.data_ptr(), b.data_ptr()}
    assert torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses)
    assert not torch._C._cuda_checkPoolLiveAllocations(device, pool, {a.data_ptr()})
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=pool):
        c = torch.full((2 * MIB,), 3.0, device="cuda")
    second.replay()
    torch.cuda.synchronize()
    # Every block of the pool is another one afterwards: no tensor from before may free its own.
    stale = [t.untyped_storage()._cdata for t in (a, b, c)]
    torch._C._cuda_setCheckpointPoolState(device, state, stale, [])
    assert torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses)
    graph.replay()
    assert float(a.sum()) == MIB and float(b.sum()) == 6 * MIB


@check
def memory_pools(torch):
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        a = torch.full((MIB,), 1.0, device="cuda")
        assert pool.use_count() == 2
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            inner = torch.full((MIB,), 2.0, device="cuda")
        b = torch.full((MIB,), 3.0, device="cuda")
    outside = torch.full((MIB,), 4.0, device="cuda")
    addresses = {t.data_ptr() for t in (a, b)}
    in_pool = {
        block["address"] for s in pool.snapshot() for block in s["blocks"] if block["state"] == "active_allocated"
    }
    assert in_pool == addresses, (in_pool, addresses)
    assert float(a.sum() + inner.sum() + b.sum() + outside.sum()) == 10 * MIB
    del a, b, inner, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert float(outside.sum()) == 4 * MIB


@check
def memory_pool_kinds(torch):
    import inspect

    arguments = inspect.signature(torch.cuda.MemPool.__init__).parameters
    remarks = []
    if "no_split" in arguments:
        pool = torch.cuda.MemPool(no_split=True)
        with torch.cuda.use_mem_pool(pool):
            held = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        assert len(pool.snapshot()) >= 3
        assert all(len(s["blocks"]) == 1 for s in pool.snapshot() if s["allocated_size"])
        del held, pool
        remarks.append("no_split")
    if "use_on_oom" in arguments:
        total = torch.cuda.mem_get_info()[1]
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            a = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
        address = a.data_ptr()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 4 * MIB) / total)
        try:
            torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
            raise AssertionError("served beyond the limit")
        except torch.OutOfMemoryError:
            pass
        del a
        c = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
        assert c.data_ptr() == address
        torch.cuda.set_per_process_memory_fraction(1.0)
        remarks.append("use_on_oom")
        del c, pool
    return ", ".join(remarks)


@check
def memory_pool_with_its_own_allocator(torch):
    import native_build

    folder = pathlib.Path(tempfile.mkdtemp(prefix="nofrag-pool-"))
    (folder / "own.cc").write_text(OWN_ALLOCATOR)
    include = native_build.cuda_include(native_build.torch_folder())
    runtime = next(iter((native_build.torch_folder().parent / "nvidia").glob("*/lib/libcudart.so.*")), None)
    command = ["g++", "-shared", "-fPIC", "-I", str(include), str(folder / "own.cc"), "-o", str(folder / "own.so")]
    subprocess.run([*command, str(runtime)] if runtime else [*command, "-lcudart"], check=True)
    counts = ctypes.CDLL(str(folder / "own.so"))
    allocations, frees = (ctypes.c_int.in_dll(counts, name) for name in ("allocations", "frees"))
    own = torch.cuda.memory.CUDAPluggableAllocator(str(folder / "own.so"), "own_alloc", "own_free")
    pool = torch.cuda.MemPool(own.allocator())
    quarter = MIB // 4
    with torch.cuda.use_mem_pool(pool):
        a = torch.full((quarter,), 1.0, device="cuda")
    assert allocations.value == 1
    with torch.cuda.use_mem_pool(pool):
        assert len(pool.snapshot()) == 1
        b = torch.full((quarter,), 2.0, device="cuda")
        assert len(pool.snapshot()) == 1
        c = torch.full((quarter,), 3.0, device="cuda")
        assert len(pool.snapshot()) == 2
    stream = torch.cuda.Stream()
    c.record_stream(stream)
    assert float(a.sum() + b.sum() + c.sum()) == 6 * quarter
    del a, b, c, pool
    gc.collect()
    assert frees.value == 2, frees.value
    return "2 segments"
