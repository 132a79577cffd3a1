"""Memory and streams: what may be used again, and when. Every check reads the contents back."""

import threading

import torch

from .common import MIB, allow, block, check, equal, expect, filled, holds, settle, sleep


def overwritten(recorded, view=False):
    """A side stream reads a block, late; the block is freed at once and others are written. (did the copy
    change, was the address used again)"""
    settle()
    side = torch.cuda.Stream()
    source = filled(64 * MIB, 1)
    address = source.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sleep(300)
        copy = source.clone()
    if recorded:
        (source[MIB:] if view else source).record_stream(side)
    del source
    others = [filled(64 * MIB, 2) for _ in range(3)]
    again = any(one.data_ptr() == address for one in others)
    torch.cuda.synchronize()
    return not holds(copy, 1), again


@check
def record_stream_keeps_a_block():
    changed, again = overwritten(recorded=True)
    expect(not changed, "the side stream read what was written later")
    expect(not again, "the block was handed out while the side stream used it")


@check
def without_record_stream_it_is_used_at_once():
    _, again = overwritten(recorded=False)
    expect(again, "the block was not used again, so the other checks prove nothing")


@check
def record_stream_of_a_view():
    changed, again = overwritten(recorded=True, view=True)
    expect(not changed and not again, "a view's record does not keep its block")


@check
def recorded_blocks_come_back():
    settle()
    side = torch.cuda.Stream()
    for _ in range(40):
        one = filled(64 * MIB, 1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            one.add_(1)
        one.record_stream(side)
        del one
        torch.cuda.synchronize()
    expect(torch.cuda.memory_reserved() < 400 * MIB, f"{torch.cuda.memory_reserved() >> 20} MiB reserved for 64")


@check
def record_stream_at_the_limit():
    settle()
    allow(200 * MIB)
    side = torch.cuda.Stream()
    source = filled(96 * MIB, 1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sleep(300)
        copy = source[: 16 * MIB].clone()  # (a sum in int64 would take eight times as much as its input)
    source.record_stream(side)
    del source
    fresh = filled(128 * MIB, 3)  # does not fit beside the other: it must wait for it
    torch.cuda.synchronize()
    expect(holds(copy[: 8 * MIB], 1), "the side stream read what was written later")
    expect(holds(fresh[:32 * MIB], 3), "the new block is not what was written")


@check
def own_stream_is_ignored():
    kept = block(8 * MIB)
    address = kept.data_ptr()
    kept.record_stream(torch.cuda.current_stream())
    del kept
    again = block(8 * MIB)
    equal(again.data_ptr(), address, "the address (nothing to wait for)")


@check
def another_stream_waits_or_takes_other_memory():
    settle()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for turn in range(6):
        with torch.cuda.stream(first):
            source = filled(32 * MIB, 1)
            sleep(60)
            copy = source.clone()
            del source  # on its own stream: `first` may use it at once, `second` not before the copy
        with torch.cuda.stream(second):
            others = [filled(32 * MIB, 2) for _ in range(2)]
        torch.cuda.synchronize()
        expect(holds(copy, 1), f"turn {turn}: what a stream had queued read another stream's data")
        expect(all(holds(one, 2) for one in others), f"turn {turn}: another stream's data was overwritten")
        del others, copy


@check
def the_same_at_the_limit():
    settle()
    allow(260 * MIB)
    streams = [torch.cuda.Stream() for _ in range(3)]
    copies = []
    for turn in range(12):
        with torch.cuda.stream(streams[turn % 3]):
            source = filled(40 * MIB, turn + 1)
            sleep(15)
            copies.append((turn + 1, source[: 4 * MIB].clone()))
            del source
    torch.cuda.synchronize()
    for value, copy in copies:
        expect(holds(copy, value), f"copy {value} has changed")


@check
def streams_by_turns():
    streams, totals = [torch.cuda.Stream() for _ in range(4)], []
    for turn in range(300):
        with torch.cuda.stream(streams[turn % 4]):
            one = filled(1 + turn * 7919 % (4 * MIB), turn % 251)
            totals.append((one == turn % 251).all())
            del one
    torch.cuda.synchronize()
    expect(all(bool(total) for total in totals), "a block has changed")


@check(timeout=60)
def random_program_on_four_streams():
    """Blocks of random sizes live for random times on four streams; each is checked when it goes."""
    allow(900 * MIB)
    generator = torch.Generator().manual_seed(77)

    def draw(most):
        return int(torch.randint(0, most, (1,), generator=generator))

    streams, live, wrong = [torch.cuda.Stream() for _ in range(4)], [], []
    for turn in range(1500):
        stream = draw(4)
        with torch.cuda.stream(streams[stream]):
            live.append((stream, turn % 251, filled(1 + draw(1 << draw(25)), turn % 251)))
        if len(live) > 24:
            stream, value, one = live.pop(draw(len(live)))
            with torch.cuda.stream(streams[stream]):
                wrong.append((one != value).any())
        if turn % 400 == 399:
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    expect(not any(bool(one) for one in wrong), "a block has changed")


@check
def freed_by_another_thread():
    settle()
    before, given = torch.cuda.memory_allocated(), []

    def make():
        for turn in range(200):
            given.append((turn % 251, filled(turn * 3001 + 1, turn % 251)))

    for _ in range(3):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        expect(all(holds(one, value) for value, one in given), "a block has changed")
        given.clear()
    equal(torch.cuda.memory_allocated(), before, "memory_allocated at the end")


@check
def eight_threads_with_a_stream_each():
    faults = []

    def run(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(150):
                value = (number * 31 + turn) % 251
                kept = [filled((turn * 7919 + number * 104_729) % MIB + 1, value) for _ in range(3)]
                if not all(holds(one, value) for one in kept):
                    faults.append((number, turn))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(faults, [], "blocks that changed")


@check
def external_streams():
    owner = torch.cuda.Stream()
    external = torch.cuda.ExternalStream(owner.cuda_stream)
    with torch.cuda.stream(external):
        kept = filled(8 * MIB, 6)
        expect(holds(kept, 6), "not what was written")
    kept.record_stream(torch.cuda.default_stream())
    del kept
    torch.cuda.synchronize()


@check
def priorities_and_events():
    high, low = torch.cuda.Stream(priority=-1), torch.cuda.Stream(priority=0)
    event, kept = torch.cuda.Event(), filled(8 * MIB, 1)
    low.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(low):
        sleep(50)
        kept.add_(1)
        event.record()
    high.wait_event(event)
    with torch.cuda.stream(high):
        copy = kept.clone()
    kept.record_stream(high)
    kept.record_stream(low)
    del kept
    others = [filled(8 * MIB, 9) for _ in range(4)]
    torch.cuda.synchronize()
    expect(holds(copy, 2), "the copy is not what was written")
    del others


@check
def backward_on_side_streams():
    """Autograd runs backward on the streams of the forward pass; gradients cross them."""
    side = torch.cuda.Stream()
    leaf = torch.full((4 * MIB,), 2.0, device="cuda", requires_grad=True)
    for _ in range(5):
        leaf.grad = None
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            part = leaf * 3
            sleep(20)
            square = part * part
        torch.cuda.current_stream().wait_stream(side)
        square.record_stream(torch.cuda.current_stream())
        (square.sum() + leaf.sum()).backward()
        torch.cuda.synchronize()
        expect(bool((leaf.grad == 37.0).all()), "the gradient is wrong")


@check
def pinned_copies_overlap():
    settle()
    side = torch.cuda.Stream()
    host = [torch.full((16 * MIB,), value, dtype=torch.uint8).pin_memory() for value in range(1, 7)]
    sums = []
    for one in host:
        with torch.cuda.stream(side):
            there = one.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        there.record_stream(torch.cuda.current_stream())
        sums.append(there.sum(dtype=torch.int64))
        del there
    equal([int(one) for one in sums], [value * 16 * MIB for value in range(1, 7)], "sums")
