#include "cli/replay/torch_process.h"

namespace nofrag {

// Arguments: device, expandable (0 or 1). Standard input: u64 events, u64 blocks, u64 streams, then
// for each event u64 size, u32 block, u32 stream with the free bit on top; then one line a run: the
// capacity in bytes, 0 for none. Standard output: one line of JSON for "ready" and for each run.
const char* const kTorchReplayScript = R"py(
import json, os, struct, sys, time

device, expandable = int(sys.argv[1]), sys.argv[2] == "1"
conf = "expandable_segments:True" if expandable else "expandable_segments:False"
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
os.environ["PYTORCH_ALLOC_CONF"] = conf
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

def answer(**fields):
    answers.write(json.dumps(fields) + "\n")
    answers.flush()

try:
    import torch
    if not torch.cuda.is_available() or device >= torch.cuda.device_count():
        raise RuntimeError("PyTorch %s sees no CUDA device %d" % (torch.__version__, device))
    torch.cuda.set_device(device)
    torch.cuda.init()
    torch.empty(1, device="cuda")
    torch.cuda.empty_cache()
except Exception as problem:
    answer(error=str(problem) or type(problem).__name__)
    sys.exit(0)
answer(torch=torch.__version__)

events, blocks, streams = struct.unpack("<QQQ", source.read(24))
FREE = 1 << 31
trace = []
for size, block, stream in struct.iter_unpack("<QII", source.read(16 * events)):
    trace.append((size, block, stream & (FREE - 1), stream >= FREE))
handles = [0] + [torch.cuda.Stream(device).cuda_stream for _ in range(streams - 1)]
total = torch.cuda.get_device_properties(device).total_memory
allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
release = torch._C._cuda_cudaCachingAllocator_raw_delete
OutOfMemory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
UNIT, GRANULE = 512, 2 << 20

def play(allocate, release, live):
    for index, (size, block, stream, is_free) in enumerate(trace):
        if size == 0:
            continue
        if is_free:
            release(live.pop(block))
        else:
            try:
                live[block] = allocate(size, handles[stream])
            except OutOfMemory:
                return index
    return None

def nothing(*_):
    return 1

def free_granules():
    found = 0
    for segment in torch.cuda.memory_snapshot():
        at = segment["address"]
        for block in segment["blocks"]:
            end = at + block["size"]
            if block["state"] == "inactive":
                found += max(0, end // GRANULE - -(-at // GRANULE)) * GRANULE
            at = end
    return found

started = time.process_time_ns()
play(nothing, nothing, {})
overhead = time.process_time_ns() - started
sizes = {}
for size, block, stream, is_free in trace:
    if not is_free:
        sizes[block] = -(-size // UNIT) * UNIT

for line in source:
    capacity = int(line)
    fraction = min(1.0, (capacity + 0.5) / total) if capacity else 1.0
    torch.cuda.set_per_process_memory_fraction(fraction, device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)
    live = {}
    started = time.process_time_ns()
    failed = play(allocate, release, live)
    spent = time.process_time_ns() - started
    after = torch.cuda.memory_stats(device)
    done = len(trace) if failed is None else failed
    fields = dict(
        completed=failed is None,
        peak_reserved=after["reserved_bytes.all.peak"],
        events=done,
        host_ns=max(0, spent - overhead * done // len(trace)),
    )
    for name in ("num_device_alloc", "num_device_free"):
        if name in after:
            fields[name] = after[name] - before.get(name, 0)
    if failed is not None:
        fields["oom"] = dict(
            event=failed,
            requested=trace[failed][0],
            live=sum(sizes[block] for block in live),
            reserved=after["reserved_bytes.all.current"],
            free_granules=free_granules(),
            driver_free=torch.cuda.mem_get_info(device)[0],
        )
    for pointer in live.values():
        release(pointer)
    torch.cuda.empty_cache()  # the memory is another allocator's now
    answer(**fields)
)py";

}  // namespace nofrag
