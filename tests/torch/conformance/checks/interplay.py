"""The rest of PyTorch on top of the allocator: profiler, callbacks, libraries, autograd, storages."""

import copy
import io
import os
import tempfile

import torch

from .common import MIB, block, check, equal, expect, filled, holds, settle, stat


@check(timeout=60)
def the_profiler_sees_memory():
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True) as profile:
        kept = block(24 * MIB)
        more = kept + 1
        del kept
    usage = {one.key: one.self_device_memory_usage for one in profile.key_averages()}
    expect(usage.get("aten::empty", 0) >= 24 * MIB, f"aten::empty: {usage.get('aten::empty')} bytes of device memory")
    changes = [one.self_device_memory_usage for one in profile.events() if one.name == "[memory]"]
    expect(any(change <= -24 * MIB for change in changes), f"no free among {len(changes)} memory events")
    del more


@check(timeout=60)
def the_profilers_trace_has_totals():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = block(24 * MIB)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        with open(path) as file:
            text = file.read()
    expect("[memory]" in text and "Total Reserved" in text, "the trace has no memory events")
    expect('"Device Type": 1' in text, "no event of the GPU")
    del kept


@check
def callbacks_see_each_block():
    from torch.cuda import _gpu_trace as callbacks

    made, gone = [], []
    callbacks.register_callback_for_memory_allocation(made.append)
    callbacks.register_callback_for_memory_deallocation(gone.append)
    torch._C._activate_gpu_trace()
    kept = block(3 * MIB)
    address = kept.data_ptr()
    expect(address in made, "the allocation was not reported")
    expect(address not in gone, "the free was reported too early")
    del kept
    expect(address in gone, "the free was not reported")


@check(timeout=90)
def cudnn_benchmark():
    if not torch.backends.cudnn.is_available():
        return
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    layer = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
    for side in (32, 57, 96):
        x = torch.randn(8, 16, side, side, device="cuda", requires_grad=True)
        results = []
        for benchmark in (False, True):
            torch.backends.cudnn.benchmark = benchmark
            out = layer(x)
            (gradient,) = torch.autograd.grad(out.square().sum(), x)
            results.append((out.detach(), gradient))
        for plain, tuned in zip(*results):
            expect(torch.allclose(plain, tuned, rtol=1e-2, atol=1e-2), f"side {side}: results differ")


def train(steps=15):
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, generator = [], torch.Generator().manual_seed(3)
    for _ in range(steps):
        rows = int(torch.randint(16, 2000, (1,), generator=generator))
        x = torch.randn(rows, 512, generator=generator).cuda()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss).hex())
    return losses


@check(timeout=60)
def training_is_repeatable():
    torch.use_deterministic_algorithms(True)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    first = train()
    noise = [filled(one * 100_003 + 1, 1) for one in range(50)]
    del noise[::2]
    equal(train(), first, "losses of the same training in other memory")


@check
def nothing_leaks():
    train(3)
    settle()
    before, count = torch.cuda.memory_allocated(), stat("allocation.all.current")
    for _ in range(3):
        train(5)
    settle()
    equal(stat("allocation.all.current"), count, "allocations left by training")
    equal(torch.cuda.memory_allocated(), before, "bytes left by training")


@check
def activation_checkpointing():
    from torch.utils.checkpoint import checkpoint

    layers = [torch.nn.Linear(512, 512).cuda() for _ in range(6)]

    def run(recompute):
        x = torch.ones(2048, 512, device="cuda", requires_grad=True)
        out = x
        torch.cuda.reset_peak_memory_stats()
        for layer in layers:
            step = lambda y, layer=layer: torch.nn.functional.gelu(layer(y))  # noqa: E731
            out = checkpoint(step, out, use_reentrant=False) if recompute else step(out)
        out.sum().backward()
        return x.grad, torch.cuda.max_memory_allocated()

    run(False)  # workspaces of the libraries
    (plain, high), (recomputed, low) = run(False), run(True)
    expect(torch.allclose(plain, recomputed), "gradients differ")
    expect(low < high, f"recomputing needed as much: {low} and {high}")


@check
def storages_shrink_and_grow():
    before = torch.cuda.memory_allocated()
    kept = filled(16 * MIB, 4)
    kept.untyped_storage().resize_(0)
    equal(torch.cuda.memory_allocated(), before, "memory_allocated after resize_(0)")
    kept.untyped_storage().resize_(16 * MIB)
    kept.fill_(6)
    expect(holds(kept, 6), "not what was written")
    storage = torch.UntypedStorage(MIB, device="cuda")
    view = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
    view.fill_(2)
    expect(holds(view, 2), "not what was written through a storage")


@check
def other_frameworks_share_by_dlpack():
    kept = torch.arange(MIB, device="cuda", dtype=torch.int32)
    address = kept.data_ptr()
    capsule = torch.utils.dlpack.to_dlpack(kept)
    again = torch.utils.dlpack.from_dlpack(capsule)
    del kept
    equal(again.data_ptr(), address, "the address")
    noise = [filled(4 * MIB, 9) for _ in range(4)]
    expect(bool((again == torch.arange(MIB, device="cuda", dtype=torch.int32)).all()), "the tensor has changed")
    del noise, capsule


@check
def saved_loaded_and_copied():
    kept = {"a": torch.randn(1000, 100, device="cuda"), "b": [torch.arange(7, device="cuda")]}
    file = io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    back = torch.load(file, map_location="cuda")
    expect(torch.equal(back["a"], kept["a"]) and torch.equal(back["b"][0], kept["b"][0]), "loaded tensors differ")
    twin = copy.deepcopy(kept)
    expect(twin["a"].data_ptr() != kept["a"].data_ptr() and torch.equal(twin["a"], kept["a"]), "the copy")


@check
def library_workspaces():
    settle()
    a = torch.randn(512, 512, device="cuda")
    before = torch.cuda.memory_allocated()
    product = a @ a
    during = torch.cuda.memory_allocated()
    expect(during >= before + product.nbytes, "the product is not counted")
    del product
    torch._C._cuda_clearCublasWorkspaces()
    expect(torch.cuda.memory_allocated() <= before, "a workspace is still counted")
    expect(bool(torch.isfinite(a @ a).all()), "not finite")


@check
def kernels_with_temporary_memory():
    generator = torch.Generator(device="cuda").manual_seed(5)
    x = torch.randint(0, 1 << 20, (3 * MIB,), generator=generator, device="cuda")
    ordered = x.sort().values
    expect(bool((ordered[1:] >= ordered[:-1]).all()), "sort")
    equal(int(x.unique().numel()), len(set(x.tolist())), "unique")
    equal(int(x.cumsum(0)[-1]), int(x.sum()), "cumsum")
    chosen = x[x % 7 == 0]
    equal(int((chosen % 7).sum()), 0, "masked selection")
    matrix = torch.randn(64, 64, device="cuda", dtype=torch.float64) + 64 * torch.eye(64, device="cuda", dtype=torch.float64)
    expect(torch.allclose(torch.linalg.solve(matrix, matrix), torch.eye(64, device="cuda", dtype=torch.float64)), "solve")
    fourier = torch.fft.ifft(torch.fft.fft(torch.arange(1000.0, device="cuda"))).real
    expect(torch.allclose(fourier, torch.arange(1000.0, device="cuda"), atol=1e-2), "fft")


@check(timeout=90)
def collectives_of_one():
    import torch.distributed as distributed

    if not distributed.is_nccl_available():
        return
    with tempfile.NamedTemporaryFile() as file:
        os.unlink(file.name)
        distributed.init_process_group("nccl", init_method=f"file://{file.name}", world_size=1, rank=0)
        try:
            kept = torch.arange(4 * MIB, device="cuda", dtype=torch.float32)
            distributed.all_reduce(kept)
            out = torch.empty_like(kept)
            distributed.all_gather_into_tensor(out, kept)
            noise = [filled(16 * MIB, 1) for _ in range(4)]
            del noise
            torch.cuda.empty_cache()
            distributed.all_reduce(kept)
            torch.cuda.synchronize()
            expect(torch.equal(kept, out), "the collective changed the tensor")
        finally:
            distributed.destroy_process_group()
        open(file.name, "w").close()


@check(timeout=120)
def compiled_code():
    def work(x, y):
        return torch.nn.functional.gelu(x @ y).sum(-1) * 2

    fast = torch.compile(work)
    for rows in (64, 65, 200):
        x, y = torch.randn(rows, 256, device="cuda"), torch.randn(256, 256, device="cuda")
        expect(torch.allclose(fast(x, y), work(x, y), rtol=1e-3, atol=1e-2), f"{rows} rows differ")
