"""What _snapshot() shows of memory, and the tools that read it."""

import pickle
import re
import tempfile

import torch

from .common import MIB, block, check, equal, expect, filled, live_blocks, segments, settle, sleep

SEGMENT_KEYS = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
                "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames"}
STATES = {"active_allocated", "active_pending_free", "inactive"}


def some():
    return [block(size) for size in (100, 5000, 70_000, 2 * MIB, 9 * MIB, 30 * MIB)]


@check
def its_parts():
    kept = some()
    snapshot = torch.cuda.memory._snapshot()
    equal(sorted({"segments", "device_traces", "allocator_settings", "external_annotations"} - set(snapshot)), [], "missing")
    equal(len(snapshot["device_traces"]), torch.cuda.device_count(), "traces")
    for segment in snapshot["segments"]:
        equal(sorted(SEGMENT_KEYS - set(segment)), [], "a segment lacks")
        expect(segment["segment_type"] in ("small", "large"), f"segment type {segment['segment_type']!r}")
        equal(len(segment["segment_pool_id"]), 2, "numbers of a pool")
        for one in segment["blocks"]:
            equal(sorted(BLOCK_KEYS - set(one)), [], "a block lacks")
            expect(one["state"] in STATES, f"state {one['state']!r}")
    settings = snapshot["allocator_settings"]
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments"):
        expect(name in settings, f"the settings lack {name}")
    del kept


@check
def blocks_tile_their_segments():
    kept = some()
    del kept[1::2]
    previous = 0
    for segment in segments():
        expect(segment["address"] >= previous, "segments are not in order, or overlap")
        previous = segment["address"] + segment["total_size"]
        place = segment["address"]
        for one in segment["blocks"]:
            equal(one["address"], place, "the address of a block")
            expect(one["size"] > 0, "an empty block")
            place += one["size"]
        equal(place, previous, "the end of the last block")
    del kept


@check
def sums_of_a_segment():
    kept = some()
    del kept[::2]
    for segment in segments():
        live = [one for one in segment["blocks"] if one["state"] == "active_allocated"]
        active = [one for one in segment["blocks"] if one["state"] != "inactive"]
        equal(segment["allocated_size"], sum(one["size"] for one in live), "allocated_size")
        equal(segment["active_size"], sum(one["size"] for one in active), "active_size")
        equal(segment["requested_size"], sum(one["requested_size"] for one in active), "requested_size")
    del kept


@check
def sums_of_all_are_the_statistics():
    settle()
    kept = some()
    all_segments = segments()
    equal(sum(one["allocated_size"] for one in all_segments), torch.cuda.memory_allocated(), "allocated")
    equal(sum(one["total_size"] for one in all_segments), torch.cuda.memory_reserved(), "reserved")
    equal(sum(one["requested_size"] for one in all_segments),
          torch.cuda.memory_stats()["requested_bytes.all.current"], "requested")
    del kept


@check
def every_tensor_is_in_it():
    kept = [filled(size, 1) for size in (100, 5000, 70_000, 2 * MIB, 9 * MIB, 30 * MIB)]
    live = live_blocks()
    for tensor in kept:
        expect(tensor.data_ptr() in live, f"no live block at the address of the tensor of {tensor.nbytes}")
        equal(live[tensor.data_ptr()]["requested_size"], tensor.nbytes, "requested_size")
        expect(live[tensor.data_ptr()]["size"] >= tensor.nbytes, "the block is smaller than its tensor")
    del tensor  # the loop's name for the last one
    gone = kept.pop().data_ptr()
    expect(gone not in live_blocks(), "a freed tensor is live")


@check
def streams_of_segments():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept = block(30 * MIB)
    mine = [one for one in segments() if any(part["address"] == kept.data_ptr() for part in one["blocks"])]
    equal(len(mine), 1, "segments with the tensor")
    equal(mine[0]["stream"], side.cuda_stream, "its stream")
    del kept


@check
def waiting_blocks_are_pending():
    settle()
    side, kept = torch.cuda.Stream(), block(4 * MIB)
    address = kept.data_ptr()
    with torch.cuda.stream(side):
        sleep(400)
    kept.record_stream(side)
    del kept
    states = {one["address"]: one["state"] for segment in segments() for one in segment["blocks"]}
    equal(states.get(address), "active_pending_free", "the state while the side stream works")
    torch.cuda.synchronize()
    small = block(512)
    states = {one["address"]: one["state"] for segment in segments() for one in segment["blocks"]}
    expect(states.get(address) != "active_pending_free", "still pending")
    del small


@check
def memory_snapshot_is_its_segments():
    kept = some()
    plain, light = torch.cuda.memory_snapshot(), torch.cuda.memory_snapshot(include_traces=False)
    equal([one["address"] for one in plain], [one["address"] for one in segments()], "addresses")
    equal([one["total_size"] for one in light], [one["total_size"] for one in plain], "sizes without traces")
    del kept


@check
def dump_can_be_read_back():
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = some()
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        torch.cuda.memory._dump_snapshot(file.name)
        with open(file.name, "rb") as read:
            snapshot = pickle.load(read)
    expect(snapshot["segments"] and snapshot["device_traces"][0], "the dump is empty")
    actions = {event["action"] for event in snapshot["device_traces"][0]}
    expect("alloc" in actions, f"the dump has no alloc among {sorted(actions)}")
    del kept


@check
def memory_viz_draws_it():
    from torch.cuda import _memory_viz as viz

    torch.cuda.memory._record_memory_history(stacks="python")
    kept = some()
    before = torch.cuda.memory._snapshot()
    del kept[::2]
    kept.append(block(50 * MIB))
    snapshot = torch.cuda.memory._snapshot()
    text = viz.segsum(snapshot)  # checks the sums of every segment itself
    expect("total_allocated" in text, "segsum")
    expect(re.search(r"[a-z]\d* = \S+\[", viz.trace(snapshot)), "trace shows no allocation")
    for page in (viz.trace_plot(snapshot), viz.trace_plot(snapshot, plot_segments=True), viz.segment_plot(snapshot)):
        expect("MemoryViz.js" in page and len(page) > 1000, "a plot is empty")

    def plain(lines, flamegraph_script=None):
        return lines

    expect("active_allocated" in viz.segments(snapshot, format_flamegraph=plain), "segments")
    expect("active_allocated" in viz.memory(snapshot, format_flamegraph=plain), "memory")
    viz.compare(before["segments"], snapshot["segments"], format_flamegraph=plain)
    del kept
