#!/usr/bin/env python3
"""What one allocation costs in a PyTorch loop, by allocator: native, expandable, nofrag (C hooks).

usage: torch_loop.py --allocator native|expandable|nofrag [--library LIBNOFRAG] [--rounds N]

Prints one JSON line: nanoseconds for an empty tensor made and dropped (small, large and mixed sizes)
and for a tiny in-order operation (an addition of 256 numbers, whose result is a new tensor). Medians of
`rounds` rounds, with the lowest and the highest.
"""

import gc
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "gpu"))
import job  # noqa: E402


def timed(rounds, count, body):
    samples = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        body()
        samples.append((time.perf_counter_ns() - started) / count)
    return {"median": statistics.median(samples), "lowest": min(samples), "highest": max(samples)}


def main():
    parser = job.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    torch.use_deterministic_algorithms(False)
    count = 20000
    empty = torch.empty

    def pairs(size):
        def body():
            for _ in range(count):
                empty(size, dtype=torch.uint8, device="cuda")

        return body

    def mixed():
        held = [None] * 256
        state = 12345
        for _ in range(count):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            held[state % 256] = empty(512 << (state >> 8) % 12, dtype=torch.uint8, device="cuda")

    x = torch.ones(256, device="cuda")

    def tiny():
        y = x
        for _ in range(count):
            y = x + y
        torch.cuda.synchronize()

    gc.disable()
    result = {"bench": "torch_loop", "allocator": args.allocator, "ns": {}}
    for name, body in [
        ("pair 4 KiB", pairs(4096)),
        ("pair 32 MiB", pairs(32 << 20)),
        ("mixed 512 B-1 MiB, 256 live", mixed),
        ("tiny operation", tiny),
    ]:
        body()  # warm-up
        result["ns"][name] = timed(args.rounds, count, body)
    if nofrag is not None:
        result["driver"] = nofrag.stats()["driver"]["calls"]
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
