"""Out of memory, limits, and what the program sees of them."""

import threading

import torch

from .common import (GIB, MIB, ALLOCATOR, allow, between, block, check, equal, expect, filled, holds, limit_to, raises,
                     settle, stat)


@check
def error_is_torchs_own():
    keep = filled(MIB, 3)
    for _ in range(3):
        with raises(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 1048576.00 GiB") as caught:
            block(1 << 50)
        expect(isinstance(caught[0], RuntimeError), "not a RuntimeError")
        expect("GPU 0" in str(caught[0]), "the message does not name the GPU")
        expect("total capacity" in str(caught[0]), "the message does not tell the capacity")
    expect(torch.cuda.OutOfMemoryError is torch.OutOfMemoryError, "two types of out-of-memory errors")
    expect(holds(keep, 3), "what was live has changed")


@check
def more_than_an_exbibyte():
    with raises(RuntimeError, "1EB"):
        block((1 << 60) + 1)


@check
def failures_are_counted():
    before, live = stat("num_ooms"), torch.cuda.memory_allocated()
    for _ in range(3):
        with raises(torch.OutOfMemoryError):
            block(1 << 50)
    equal(stat("num_ooms") - before, 3, "num_ooms")
    equal(torch.cuda.memory_allocated(), live, "memory_allocated after the failures")
    torch.cuda.reset_accumulated_memory_stats()
    equal(stat("num_ooms"), 0, "num_ooms after the reset")


@check
def observers_are_called():
    seen, order = [], []

    def observe(device, allocated, device_total, device_free):
        seen.append((device, allocated, device_total, device_free))
        # An observer's usual work: it looks at the allocator.
        order.append(len(torch.cuda.memory._snapshot()["segments"]))

    torch._C._cuda_attach_out_of_memory_observer(observe)
    keep = block(8 * MIB)
    with raises(torch.OutOfMemoryError):
        block(1 << 50)
    equal(len(seen), 1, "calls of the observer")
    device, allocated, device_total, device_free = seen[0]
    equal(device, 0, "device")
    between(allocated, 1 << 50, (1 << 50) + MIB, "allocated")
    total = torch.cuda.mem_get_info()[1]
    equal(device_total, total, "total")
    between(device_free, 0, total, "free")
    expect(order[0] > 0, "the snapshot in the observer is empty")
    del keep


@check
def fraction_is_a_limit():
    total = torch.cuda.mem_get_info()[1]
    equal(torch.cuda.get_per_process_memory_fraction(), 1.0, "the fraction at first")
    torch.cuda.set_per_process_memory_fraction(0.05)
    between(torch.cuda.get_per_process_memory_fraction(), 0.0499, 0.0501, "the fraction")
    with raises(torch.OutOfMemoryError, "out of memory"):
        block(int(total * 0.06))
    kept = block(int(total * 0.04))
    del kept
    torch.cuda.set_per_process_memory_fraction(1.0)
    kept = block(int(total * 0.06))
    expect(torch.cuda.memory_reserved() >= total * 0.06, "not reserved")
    del kept


@check
def bad_fractions_are_refused():
    for value, kind in ((1.5, ValueError), (-0.1, ValueError), (1, TypeError), ("1", TypeError)):
        with raises(kind):
            torch.cuda.set_per_process_memory_fraction(value)
    equal(torch.cuda.get_per_process_memory_fraction(), 1.0, "the fraction")


@check
def full_is_full_and_room_is_room():
    settle()
    allow(256 * MIB)
    held = []
    with raises(torch.OutOfMemoryError):
        while len(held) < 100:
            held.append(filled(32 * MIB, len(held) + 1))
    between(len(held), 5, 8, "blocks of 32 MiB in 256 MiB")
    equal([index for index, one in enumerate(held) if one[0] != index + 1 or one[-1] != index + 1], [], "blocks that changed")
    held.pop(0)
    held.append(filled(32 * MIB, 77))
    expect(bool(held[-1][0] == 77) and bool(held[-1][-1] == 77), "the new block is not what was written")
    held.clear()
    kept = filled(128 * MIB, 5)
    expect(bool(kept[0] == 5), "the large block is not what was written")


@check
def free_memory_of_another_size_is_used():
    settle()
    allow(200 * MIB)
    kept = block(120 * MIB)
    del kept
    # Fits only if what the first one left is given up or used.
    kept = filled(150 * MIB, 4)
    expect(bool(kept[0] == 4) and bool(kept[-1] == 4), "not what was written")


@check(only="nofrag")
def scattered_free_memory_is_used():
    settle()
    allow(512 * MIB)
    # Of every four blocks three go: 45 pieces of free memory beside each other by threes, none larger than
    # 24 MiB. (By ones they would not do: whole physical pieces and two ends make up a block, and a block of 8 MiB
    # that does not begin where a piece does leaves no whole one.)
    held = [(turn, filled(8 * MIB, turn)) for turn in range(60)]
    held = held[::4]
    kept = filled(200 * MIB, 9)
    for turn, one in held:
        expect(bool(one[0] == turn) and bool(one[-1] == turn), f"block {turn} has changed")
    expect(bool(kept[0] == 9) and bool(kept[-1] == 9), "the large block is not what was written")


@check
def backward_may_run_out():
    settle()
    leaf = torch.ones(8 * MIB, device="cuda", requires_grad=True)  # 32 MiB
    out = (leaf * 2).exp().sum()
    settle()
    allow(24 * MIB)
    with raises(torch.OutOfMemoryError):
        out.backward(retain_graph=True)  # needs 32 MiB at once, in PyTorch's own thread
    expect(leaf.grad is None, "a gradient came of it")
    torch.cuda.set_per_process_memory_fraction(1.0)
    out.backward()
    wanted = 2 * torch.exp(torch.tensor(2.0))
    expect(torch.allclose(leaf.grad.cpu(), wanted.expand(8 * MIB)), "the gradient is wrong")


@check
def a_thread_may_run_out():
    caught = []

    def run():
        try:
            block(1 << 50)
        except torch.OutOfMemoryError as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    equal(len(caught), 1, "errors in the thread")


@check
def batch_size_finders_work():
    settle()
    allow(600 * MIB)
    weight = torch.randn(4096, 4096, device="cuda")
    best, batch = 0, 1024
    while batch < 1 << 20:
        try:
            out = torch.relu(torch.randn(batch, 4096, device="cuda") @ weight)
            expect(bool(torch.isfinite(out).all()), "not finite")
            best, batch = batch, batch * 2
        except torch.OutOfMemoryError:
            break
        finally:
            out = None
    between(best, 1024, 1 << 15, "the largest batch")
    torch.cuda.empty_cache()
    expect(bool(torch.isfinite(torch.randn(best, 4096, device="cuda") @ weight).all()), "not finite afterwards")


@check
def failed_requests_leave_nothing_behind():
    settle()
    allow(64 * MIB)
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(20):
        with raises(torch.OutOfMemoryError):
            block(GIB)
    equal(torch.cuda.memory_allocated(), before, "memory_allocated")
    expect(torch.cuda.memory_reserved() <= reserved, "reserved memory has grown by failing")


@check
def fraction_can_be_lowered_below_what_is_held():
    kept = filled(64 * MIB, 8)
    limit_to(16 * MIB)
    with raises(torch.OutOfMemoryError):
        block(128 * MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    expect(holds(kept, 8), "what was live has changed")


@check(alone=True)
def the_whole_card_and_one_byte_more():
    settle()
    free = torch.cuda.mem_get_info()[0]
    most = block(int(free * 0.9))
    most[:MIB] = 1
    most[-MIB:] = 2
    with raises(torch.OutOfMemoryError) as caught:
        block(int(free * 0.2))
    if ALLOCATOR == "native":
        expect("is allocated by PyTorch" in str(caught[0]), "the message has no numbers")
    torch.cuda.synchronize()
    equal((int(most[0]), int(most[-1])), (1, 2), "the ends of the large block")
    del most
    half = block(int(free * 0.5))
    del half
    larger = block(int(free * 0.6))  # there is room only if what is cached is used
    larger[-1] = 3
    equal(int(larger[-1]), 3, "the last byte")
