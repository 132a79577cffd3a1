"""CUDA tensors and events between processes, workers, forks, and the way out."""

import os

import torch
import torch.multiprocessing as processes

from .common import MIB, GIB, Skip, block, check, equal, expect, filled, holds, python, settle


def receiver(inbox, outbox):
    """In the other process: adds 1 to what comes, in place, and tells its sum."""
    while True:
        got = inbox.get()
        if got is None:
            return
        outbox.put((int(got.sum(dtype=torch.int64)), got.numel()))
        got.add_(1)
        torch.cuda.synchronize()
        del got
        outbox.put("done")


def sender(outbox, stay):
    """In the other process: makes tensors and stays until they have been used."""
    made = [torch.full((4 * MIB + one,), one, dtype=torch.uint8, device="cuda") for one in range(1, 6)]
    for tensor in made:
        outbox.put(tensor)
    stay.wait(60)


class Other:
    """A spawned process with two queues."""

    def __init__(self):
        self.spawn = processes.get_context("spawn")
        self.to, self.back = self.spawn.SimpleQueue(), self.spawn.SimpleQueue()
        self.process = self.spawn.Process(target=receiver, args=(self.to, self.back), daemon=True)

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.to.put(None)
        self.process.join(30)
        if self.process.is_alive():
            self.process.kill()
            raise AssertionError("the other process does not end")
        equal(self.process.exitcode, 0, "exit code of the other process")


@check(timeout=90)
def tensors_are_shared():
    keep = [filled(2 * MIB, 200) for _ in range(3)]
    sizes = (100, 70_000, 3 * MIB, 50 * MIB)
    with Other() as other:
        for number, size in enumerate(sizes):
            tensor = filled(size, number + 1)
            torch.cuda.synchronize()
            other.to.put(tensor)
            equal(other.back.get(), ((number + 1) * size, size), "what the other process read")
            equal(other.back.get(), "done", "its answer")
            expect(holds(tensor, number + 2), "what the other process wrote is not here")
    expect(all(holds(one, 200) for one in keep), "other tensors have changed")
    torch.cuda.ipc_collect()


@check(timeout=90)
def views_and_parts_are_shared():
    with Other() as other:
        whole = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
        part = whole[5 * MIB : 6 * MIB]
        part.fill_(3)
        torch.cuda.synchronize()
        other.to.put(part)
        equal(other.back.get(), (3 * MIB, MIB), "what the other process read")
        other.back.get()
        expect(holds(part, 4), "the part is not what was written")
        expect(holds(whole[: 5 * MIB], 0) and holds(whole[6 * MIB :], 0), "the rest has changed")


@check(timeout=90)
def tensors_come_from_others():
    spawn = processes.get_context("spawn")
    inbox, stay = spawn.SimpleQueue(), spawn.Event()
    process = spawn.Process(target=sender, args=(inbox, stay), daemon=True)
    process.start()
    got = [inbox.get() for _ in range(5)]
    before = torch.cuda.memory_allocated()
    for number, tensor in enumerate(got):
        expect(holds(tensor, number + 1), f"tensor {number} is not what was sent")
        equal(tensor.numel(), 4 * MIB + number + 1, "its size")
    for tensor in got:
        tensor.record_stream(torch.cuda.Stream())  # not this allocator's: nothing to do
    del got, tensor
    equal(torch.cuda.memory_allocated(), before, "foreign memory was counted")
    stay.set()
    process.join(30)
    equal(process.exitcode, 0, "exit code of the other process")


@check(timeout=90)
def shared_memory_is_not_used_again_too_early():
    """The sender frees at once; the memory must stay as it is until the receiver is done."""
    settle()
    with Other() as other:
        for turn in range(4):
            tensor = filled(24 * MIB, turn + 10)
            torch.cuda.synchronize()
            other.to.put(tensor)
            del tensor
            noise = [filled(24 * MIB, 99) for _ in range(3)]
            torch.cuda.synchronize()
            equal(other.back.get(), ((turn + 10) * 24 * MIB, 24 * MIB), f"turn {turn}: what the other process read")
            other.back.get()
            expect(all(holds(one, 99) for one in noise), "the other process wrote into other tensors")
            del noise
    torch.cuda.ipc_collect()


def event_waiter(inbox, outbox):
    tensor, handle = inbox.get()
    event = torch.cuda.Event.from_ipc_handle(0, handle)
    event.wait()
    outbox.put(int(tensor.sum(dtype=torch.int64)))
    inbox.get()


@check(timeout=90)
def events_are_shared():
    spawn = processes.get_context("spawn")
    to, back = spawn.SimpleQueue(), spawn.SimpleQueue()
    process = spawn.Process(target=event_waiter, args=(to, back), daemon=True)
    process.start()
    event = torch.cuda.Event(enable_timing=False, interprocess=True)
    tensor = filled(MIB, 0)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    tensor.fill_(7)
    event.record()
    to.put((tensor, event.ipc_handle()))
    equal(back.get(), 7 * MIB, "what was read after the event")
    to.put(None)
    process.join(30)
    equal(process.exitcode, 0, "exit code of the other process")


@check
def handles_name_the_place():
    """What _share_cuda_ says: the offset of the tensor in the allocation that is shared."""
    kept = [filled(3 * MIB, one) for one in range(3)]
    for tensor in kept:
        device, handle, size, offset = tensor.untyped_storage()._share_cuda_()[:4]
        equal(device, 0, "device")
        expect(isinstance(handle, bytes) and len(handle) > 16, "the handle")
        equal(size, tensor.nbytes, "size")
        expect(offset >= 0, "offset")
    torch.cuda.ipc_collect()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1000,), float(index))


@check(timeout=60)
def forked_loader_workers():
    kept = filled(MIB, 5)  # the workers are forked from a process that uses the GPU
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True,
                                         multiprocessing_context="fork")
    for _ in range(2):
        total = sum(float(batch.cuda(non_blocking=True).sum()) for batch in loader)
        equal(total, 1000.0 * 63 * 64 / 2, "the sum of all batches")
    expect(holds(kept, 5), "a tensor has changed")


@check(timeout=90)
def spawned_loader_workers():
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=16, num_workers=1, multiprocessing_context="spawn")
    total = sum(float(batch.cuda().sum()) for batch in loader)
    equal(total, 1000.0 * 63 * 64 / 2, "the sum of all batches")


@check
def a_fork_cannot_use_the_gpu_and_frees_quietly():
    kept = filled(MIB, 5)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"no error"
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as error:
            said = str(error).encode()
        kept = None  # frees in the child what the parent owns
        os.write(writer, said)
        os._exit(0)
    said = os.read(reader, 4000).decode()
    _, status = os.waitpid(child, 0)
    equal(status, 0, "status of the child")
    expect("Cannot re-initialize CUDA in forked subprocess" in said, f"the child was told {said[:100]!r}")
    expect(holds(kept, 5), "the parent's tensor has changed")


LEAVE = """
import torch, threading
live = [torch.full((1 << 20,), 3.0, device="cuda") for _ in range(8)]
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(50_000_000)
    more = live[0] * 2
live[0].record_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = live[1] + 1
graph.replay()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.ones(1000, device="cuda")
class Late:
    def __init__(self): self.tensor = torch.ones(1000, device="cuda")
    def __del__(self): self.tensor = None
late = Late()
print("bye")
"""


@check(timeout=60)
def leaving_with_live_tensors():
    equal(python(LEAVE), (0, "bye\n", ""), "status, output and errors")


@check(timeout=60)
def leaving_by_an_error():
    status, _, errors = python("import torch; x = torch.ones(1 << 20, device='cuda'); raise SystemExit(3)")
    equal((status, errors), (3, ""), "status and errors")


@check(gpus=2)
def copies_between_gpus():
    one = torch.full((8 * MIB,), 3, dtype=torch.uint8, device="cuda:0")
    for turn in range(6):
        there = one.to("cuda:1")
        expect(bool((there == 3).all()), "the copy is not the same")
        back = (there + turn).to("cuda:0")
        expect(bool((back == 3 + turn).all()), "the copy back is not the same")
        del there, back
    expect(torch.cuda.memory_allocated(1) == 0, "memory on the second GPU is still counted")
    with torch.cuda.device(1):
        kept = torch.zeros(5 * MIB, dtype=torch.uint8, device="cuda")
        expect(torch.cuda.memory_allocated() >= 5 * MIB, "the second GPU's statistics")
    equal(kept.device.index, 1, "the device")
    with torch.cuda.device(0):
        del kept  # freed while another device is the current one
    equal(torch.cuda.memory_allocated(1), 0, "memory on the second GPU")


@check(gpus=2)
def peers_read_each_other():
    if not torch.cuda.can_device_access_peer(0, 1):
        raise Skip("the GPUs are not peers")
    one, two = torch.full((MIB,), 2.0, device="cuda:0"), torch.zeros(MIB, device="cuda:1")
    two.copy_(one)
    for _ in range(20):  # memory of both is mapped anew around the copies
        more = torch.full((16 * MIB,), 1.0, device="cuda:0")
        two.copy_(more[:MIB])
        del more
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    expect(bool((two == 1).all()), "the copy is not the same")


@check(alone=True)
def more_than_four_gibibytes():
    free = torch.cuda.mem_get_info()[0]
    if free < 14 * GIB:
        raise Skip("needs 14 GiB")
    big = block(5 * GIB + 12345)
    big.fill_(1)
    big[-1] = 9
    big[4 * GIB + 7] = 8
    equal(int(big.sum(dtype=torch.int64)), 5 * GIB + 12345 + 8 + 7, "the sum")
    half = big[: 5 * GIB : 2].clone()
    equal(half.numel(), (5 * GIB) // 2, "the copy")
    expect(bool(half[-1] == 1), "the end of the copy")
