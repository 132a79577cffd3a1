"""_record_memory_history: modes, events, frames."""

import torch

from .common import MIB, block, check, equal, expect, raises, settle

memory = torch.cuda.memory


def events(*actions):
    trace = memory._snapshot()["device_traces"][0]
    return [event for event in trace if event["action"] in actions] if actions else trace


def alloc_of(tensor_address):
    return [event for event in events("alloc") if event["addr"] == tensor_address][-1]


@check
def every_action():
    settle()
    memory._record_memory_history(stacks="python")
    kept = block(24 * MIB)
    address, size = kept.data_ptr(), kept.nbytes
    del kept
    settle()
    with raises(torch.OutOfMemoryError):
        block(1 << 50)
    memory._snapshot()
    actions = [event["action"] for event in events()]
    for action in ("alloc", "free_requested", "free_completed", "oom", "snapshot"):
        expect(action in actions, f"no {action} among {sorted(set(actions))}")
    expect({"segment_alloc", "segment_map"} & set(actions), "nothing shows memory taken from the driver")
    expect({"segment_free", "segment_unmap"} & set(actions), "nothing shows memory given back to the driver")
    mine = [event for event in events("alloc", "free_requested", "free_completed") if event["addr"] == address]
    equal([event["action"] for event in mine][:3], ["alloc", "free_requested", "free_completed"], "the block's events")
    for event in mine:
        expect(event["size"] >= size, f"size {event['size']}")
        equal(event["stream"], 0, "stream")
    failure = events("oom")[-1]
    expect(failure["size"] >= 1 << 50, "the size of the failure")
    expect(0 < failure["device_free"] <= torch.cuda.mem_get_info()[1], "device_free of the failure")


@check
def times_do_not_run_back():
    memory._record_memory_history(context=None, stacks="python")
    for turn in range(100):
        kept = block(turn * 1000 + 1)
    times = [event["time_us"] for event in events()]
    expect(len(times) >= 200 and times == sorted(times), "times are not in order")
    del kept


@check
def allocations_balance():
    settle()
    memory._record_memory_history(context=None, stacks="python")
    kept = []
    for turn in range(400):
        kept.append(block(turn * 3571 % (2 * MIB) + 1))
        if len(kept) > 20:
            kept.pop(turn % 20)
    live = {}
    for event in events("alloc", "free_completed"):
        if event["action"] == "alloc":
            expect(event["addr"] not in live, "a block was allocated twice")
            live[event["addr"]] = event["size"]
        else:
            live.pop(event["addr"], None)
    equal(sorted(live), sorted(one.data_ptr() for one in kept), "what the trace says is live")


@check
def frames_name_the_caller():
    memory._record_memory_history(stacks="python")
    kept = block(3 * MIB)
    event = alloc_of(kept.data_ptr())
    names = [frame["name"] for frame in event["frames"]]
    expect("frames_name_the_caller" in names, f"the caller is not among {names[:5]}")
    expect(any(frame["filename"].endswith("history.py") and frame["line"] > 0 for frame in event["frames"]), "no file")
    blocks = [one for segment in memory._snapshot()["segments"] for one in segment["blocks"]]
    mine = next(one for one in blocks if one["address"] == kept.data_ptr())
    expect("frames_name_the_caller" in [frame["name"] for frame in mine["frames"]], "the block has no frames")
    del kept


@check
def context_none_has_no_frames():
    memory._record_memory_history(context=None, stacks="python")
    kept = block(3 * MIB)
    equal(alloc_of(kept.data_ptr())["frames"], [], "frames")
    del kept


@check
def context_alloc_has_frames_of_allocations():
    memory._record_memory_history(context="alloc", stacks="python")
    kept = block(3 * MIB)
    expect(alloc_of(kept.data_ptr())["frames"], "an allocation without frames")
    del kept


@check
def context_state_has_frames_of_live_blocks_only():
    memory._record_memory_history(context="state", stacks="python")
    kept = block(3 * MIB)
    equal(alloc_of(kept.data_ptr())["frames"], [], "frames of the event")
    blocks = [one for segment in memory._snapshot()["segments"] for one in segment["blocks"]]
    mine = next(one for one in blocks if one["address"] == kept.data_ptr())
    expect(mine["frames"], "the live block has no frames")
    del kept


@check
def context_all_has_frames_of_frees():
    memory._record_memory_history(context="all", stacks="python")
    kept = block(3 * MIB)
    address = kept.data_ptr()
    del kept
    frees = [event for event in events("free_requested") if event["addr"] == address]
    expect(frees and frees[-1]["frames"], "a free without frames, or none")


@check
def state_keeps_no_trace():
    memory._record_memory_history("state", stacks="python")
    more = [block(1000) for _ in range(10)]
    kept = block(3 * MIB)
    expect(len(events()) <= 2, f"{len(events())} events")
    del more
    blocks = [one for segment in memory._snapshot()["segments"] for one in segment["blocks"]]
    mine = next(one for one in blocks if one["address"] == kept.data_ptr())
    expect("state_keeps_no_trace" in [frame["name"] for frame in mine["frames"]], "the live block has no frames")
    del kept


@check
def only_the_last_entries_are_kept():
    memory._record_memory_history(context=None, stacks="python", max_entries=50)
    for turn in range(200):
        kept = block(turn * 512 + 1)
    trace = events()
    expect(len(trace) <= 51, f"{len(trace)} entries")
    expect([event for event in trace if event["action"] == "alloc"][-1]["addr"] == kept.data_ptr(), "not the last ones")
    del kept


@check
def recording_stops():
    memory._record_memory_history(context=None, stacks="python")
    kept = block(MIB)
    expect(torch._C._cuda_isHistoryEnabled(), "isHistoryEnabled while recording")
    memory._record_memory_history(None)
    expect(not torch._C._cuda_isHistoryEnabled(), "isHistoryEnabled after recording")
    before = len(events("alloc"))
    more = [block(MIB) for _ in range(10)]
    equal(len(events("alloc")), before, "events after recording")
    del kept, more


@check
def history_is_cleared():
    memory._record_memory_history(context=None, stacks="python")
    kept = [block(MIB) for _ in range(10)]
    expect(len(events("alloc")) >= 10, "too few events")
    memory._record_memory_history(context=None, stacks="python", clear_history=True)
    expect(len(events("alloc")) < 10, "the history was not cleared")
    del kept


@check
def actions_are_skipped():
    memory._record_memory_history(context=None, stacks="python", skip_actions=["free_requested"])
    for turn in range(20):
        kept = block(turn * MIB + 1)
        del kept
    actions = {event["action"] for event in events()}
    expect("alloc" in actions and "free_completed" in actions, f"only {sorted(actions)}")
    expect("free_requested" not in actions, "free_requested was not skipped")


@check
def user_metadata_is_kept():
    memory._record_memory_history(context=None, stacks="python")
    memory._set_memory_metadata("step 7")
    equal(memory._get_memory_metadata(), "step 7", "the metadata")
    kept = block(3 * MIB)
    memory._set_memory_metadata("")
    other = block(3 * MIB)
    equal(alloc_of(kept.data_ptr()).get("user_metadata"), "step 7", "user_metadata of the event")
    equal(alloc_of(other.data_ptr()).get("user_metadata", ""), "", "user_metadata of the next one")
    del kept, other


@check
def old_form_still_works():
    memory._record_memory_history(True, trace_alloc_max_entries=1000, trace_alloc_record_context=True)
    kept = block(3 * MIB)
    expect(alloc_of(kept.data_ptr())["size"] >= 3 * MIB, "no event")
    memory._record_memory_history(False)
    expect(not torch._C._cuda_isHistoryEnabled(), "still recording")
    del kept


@check
def annotations_are_kept():
    memory._record_memory_history(context=None, stacks="python", global_record_annotations=True)
    with torch.profiler.record_function("the forward pass"):
        kept = block(MIB)
    snapshot = memory._snapshot()
    names = [str(one) for one in snapshot["external_annotations"]]
    expect(any("the forward pass" in name for name in names), f"{len(names)} annotations, not ours")
    del kept
