"""Checks of native_torch.py: blocks, statistics, snapshots, history. Each takes torch and returns a remark."""

import collections
import gc
import pickle
import random
import tempfile

MIB = 1 << 20
CHECKS = {}
EXPECTED_KEYS = [
    f"{stat}.{pool}.{what}"
    for stat in ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes")
    + ("active_bytes", "inactive_split_bytes", "requested_bytes")
    for pool in ("all", "small_pool", "large_pool")
    for what in ("current", "peak", "allocated", "freed")
] + [
    "oversize_allocations.current",
    "oversize_segments.current",
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "max_split_size",
]


def check(function):
    CHECKS[function.__name__] = function
    return function


@check
def keys_of_memory_stats(torch):
    torch.empty(MIB, device="cuda")
    stats = torch.cuda.memory_stats()
    missing = [key for key in EXPECTED_KEYS if key not in stats]
    assert not missing, missing
    assert torch.cuda.memory.get_allocator_backend() == "native"
    assert "Allocated memory" in torch.cuda.memory_summary()
    return f"{len(stats)} keys"


@check
def counters(torch):
    base = torch.cuda.memory_allocated()
    a = torch.empty(1000, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - base == 1024
    b = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.small_pool.current"] == base + 1024
    assert stats["allocated_bytes.large_pool.current"] == 64 * MIB
    assert stats["requested_bytes.all.current"] == base + 1000 + 64 * MIB
    assert torch.cuda.memory_reserved() >= 64 * MIB
    del b
    assert torch.cuda.max_memory_allocated() == base + 1024 + 64 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 64 * MIB
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.memory_stats()["num_device_alloc"] == 0
    accelerator = getattr(torch, "accelerator", None)
    if hasattr(accelerator, "memory_allocated"):
        assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    return f"{a.numel()} bytes live"


def expect_consistent(torch):
    expected = collections.defaultdict(int)
    for segment in torch.cuda.memory_snapshot():
        pool = segment["segment_type"] + "_pool"
        for name, size in (
            ("allocated_bytes", segment["allocated_size"]),
            ("reserved_bytes", segment["total_size"]),
            ("active_bytes", segment["active_size"]),
            ("requested_bytes", segment["requested_size"]),
        ):
            expected[f"{name}.all.current"] += size
            expected[f"{name}.{pool}.current"] += size
        for block in segment["blocks"]:
            for name, counts in (
                ("allocation", block["state"] == "active_allocated"),
                ("active", block["state"].startswith("active_")),
            ):
                expected[f"{name}.all.current"] += counts
                expected[f"{name}.{pool}.current"] += counts
    stats = torch.cuda.memory_stats()
    for key, value in expected.items():
        assert stats[key] == value, (key, stats[key], value)


@check
def snapshot_agrees_with_counters(torch):
    generator = random.Random(7)
    held = []
    other = torch.cuda.Stream()
    for step in range(3000):
        what = generator.random()
        if what < 0.55:
            held.append(torch.empty(int(2 ** generator.uniform(0, 26)), dtype=torch.uint8, device="cuda"))
        elif held and what < 0.95:
            held.pop(generator.randrange(len(held)))
        elif held:
            held[-1].record_stream(other)
        if step % 100 == 0:
            expect_consistent(torch)
    held.clear()
    torch.cuda.empty_cache()
    expect_consistent(torch)


@check
def streams(torch):
    stream = torch.cuda.Stream()
    a = torch.full((8 * MIB,), 7, dtype=torch.uint8, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        copy = a.clone()
    a.record_stream(stream)
    address = a.data_ptr()
    del a
    b = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    assert b.data_ptr() != address, "a block in use on another stream was handed out"
    torch.cuda.synchronize()
    assert int(copy.sum()) == 7 * 8 * MIB
    assert int(b.sum()) == 0


@check
def out_of_memory(torch):
    torch.cuda.init()  # before, PyTorch's statistics have no keys at all
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: told.append(numbers))
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        raise AssertionError("4 TiB were served")
    except torch.OutOfMemoryError as error:
        text = str(error)
    assert text.startswith("CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has a total capacity of"), text
    assert len(told) == 1 and told[0][0] == 0 and told[0][1] == 1 << 42, told
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1
    try:
        torch.empty(1024**3 * 8000000000, dtype=torch.int8, device="cuda")
    except RuntimeError as error:
        assert "Tried to allocate more than 1EB memory" in str(error)
    x = torch.ones(100, device="cuda")
    assert int(x.sum()) == 100
    return text.splitlines()[-1][:60]


@check
def memory_fraction(torch):
    for fraction in (1.0, 0.25, 0.5):
        torch.cuda.set_per_process_memory_fraction(fraction)
        assert torch.cuda.get_per_process_memory_fraction() == fraction
    total = torch.cuda.mem_get_info()[1]
    a = torch.empty(int(total * 0.45), dtype=torch.int8, device="cuda")
    try:
        torch.empty(int(total * 0.1), dtype=torch.int8, device="cuda")
        raise AssertionError("more than the fraction was served")
    except torch.OutOfMemoryError as error:
        assert "allowed" in str(error)
    del a
    b = torch.empty(int(total * 0.49), dtype=torch.int8, device="cuda")
    del b
    torch.cuda.set_per_process_memory_fraction(1.0)


@check
def history_in_all_modes(torch):
    from torch.cuda._memory_viz import profile_plot, segment_plot, segsum, trace, trace_plot

    for context in ("alloc", "all", "state", None):
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(context=context, stacks="python")
        x = torch.rand(311, 411, device="cuda")
        y = torch.rand(1024, 1024, 3, device="cuda")
        del y
        torch.cuda.empty_cache()
        snapshot = torch.cuda.memory._snapshot()
        block = next(
            b for s in snapshot["segments"] for b in s["blocks"] if b["requested_size"] == x.numel() * 4
        )
        assert block["address"] == x.untyped_storage().data_ptr()
        named = any("native_checks" in frame["filename"] for frame in block.get("frames", []))
        assert named == (context is not None), (context, block)
        entries = snapshot["device_traces"][0]
        actions = [entry["action"] for entry in entries]
        assert "alloc" in actions and "free_requested" in actions and "free_completed" in actions, actions
        assert actions[-1] in ("segment_free", "segment_unmap"), actions[-5:]
        # An entry whose stack was not taken has no key for it.
        stacks = {bool(entry.get("frames")) for entry in entries if entry["action"] == "alloc"}
        assert stacks == {context in ("alloc", "all")}, (context, entries)
        in_empty_cache = any(frame["name"] == "empty_cache" for entry in entries for frame in entry.get("frames", []))
        assert in_empty_cache == (context == "all"), context
        for page in (trace_plot, segment_plot):
            assert "html" in page(snapshot)
        assert "segments" in segsum(snapshot) or segsum(snapshot)
        trace(snapshot)
        with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
            torch.cuda.memory._dump_snapshot(file.name)
            assert len(pickle.load(file)["segments"]) == len(snapshot["segments"])
        del x
        torch.cuda.memory._record_memory_history(None)
    return profile_plot.__name__


@check
def history_ring_and_metadata(torch):
    torch.cuda.memory._record_memory_history(max_entries=10)
    for _ in range(50):
        torch.empty(1000, device="cuda")
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    assert len(entries) == 10
    assert sorted(entry["time_us"] for entry in entries) == [entry["time_us"] for entry in entries]
    if hasattr(torch.cuda.memory, "_set_memory_metadata"):
        torch.cuda.memory._set_memory_metadata("phase one")
        x = torch.empty(1000, device="cuda")
        assert torch.cuda.memory._get_memory_metadata() == "phase one"
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        assert entries[-1]["user_metadata"] == "phase one" or entries[-2]["user_metadata"] == "phase one"
        torch.cuda.memory._set_memory_metadata("")
        del x
    torch.cuda.memory._record_memory_history(None)
    torch.empty(10, device="cuda")
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == 0


@check
def profiler_sees_memory(torch):
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True
    ) as profile:
        x = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
        del x
    bytes_seen = [event.device_memory_usage for event in profile.key_averages()]
    assert max(bytes_seen) >= 10 * MIB, bytes_seen
    return f"{max(bytes_seen)} bytes"


@check
def gpu_trace_callbacks(torch):
    from torch.cuda import _gpu_trace

    torch._C._activate_gpu_trace()
    seen = []
    _gpu_trace.register_callback_for_memory_allocation(lambda address: seen.append(("alloc", address)))
    _gpu_trace.register_callback_for_memory_deallocation(lambda address: seen.append(("free", address)))
    x = torch.empty(MIB, device="cuda")
    address = x.data_ptr()
    del x
    gc.collect()
    assert seen[-2:] == [("alloc", address), ("free", address)], seen[-4:]


@check
def cudnn_benchmark(torch):
    torch.backends.cudnn.benchmark = True
    layer = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
    y = layer(torch.randn(8, 16, 64, 64, device="cuda"))
    y.sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


@check
def allocator_settings(torch):
    torch.cuda.init()  # before, PyTorch's statistics have no keys at all
    torch.cuda.empty_cache()
    start = torch.cuda.memory_stats()["active_bytes.all.allocated"]
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")
    x = torch.empty(84 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["active_bytes.all.allocated"] - start == 96 * MIB
    torch.cuda.memory._set_allocator_settings("expandable_segments:True,max_split_size_mb:40")
    torch.cuda.memory._set_allocator_settings("backend:native")
    del x
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert settings["PYTORCH_CUDA_ALLOC_CONF"] == "backend:native", settings


@check
def speed_of_a_pair(torch):
    import time

    def pairs(size, count):
        torch.empty(size, dtype=torch.uint8, device="cuda")
        begin = time.perf_counter()
        for _ in range(count):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        return (time.perf_counter() - begin) / count * 1e9

    times = {size: min(pairs(size, 20000) for _ in range(5)) for size in (1024, MIB, 16 * MIB)}
    return ", ".join(f"{size} B: {nanoseconds:.0f} ns" for size, nanoseconds in times.items())
