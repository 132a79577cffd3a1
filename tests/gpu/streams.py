#!/usr/bin/env python3
"""Stream handles and contexts on the real driver, through the C interface: no torch needed.

usage: streams.py --library LIBNOFRAG [--check NAME]

Each check runs in a process of its own: the second breaks a rule of the interface on purpose (a stream is
destroyed without a word), and a dead handle may crash the driver when anybody asks about it later.

1. A stream is destroyed while its work runs, with and without nofrag_retire_stream; the driver gives its
   handle to the next one. What the new stream writes must stay.
2. A green context is current while memory is trimmed that a stream of the primary context still writes:
   nothing may be unmapped under it.
3. A stream of a context of its own gets memory, and what it frees is never passed on.
4. What the checks in the allocator cost: the identity of a stream, nanoseconds a call.

Prints one RESULT line; exit 1 if a check fails, 77 without a GPU.
"""

import argparse
import ctypes as C
import json
import os
import subprocess
import sys
import time

GIB = 1 << 30


class Cuda:
    def __init__(self):
        try:
            self.lib = C.CDLL("libcuda.so.1")
        except OSError:
            sys.exit(77)
        if self.lib.cuInit(0) != 0:
            sys.exit(77)
        self.primary = C.c_void_p()
        self.ok("cuDevicePrimaryCtxRetain", C.byref(self.primary), 0)
        self.ok("cuCtxSetCurrent", self.primary)
        self.work = C.c_uint64()
        self.ok("cuMemAlloc_v2", C.byref(self.work), C.c_size_t(8 * GIB))

    def ok(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    def stream(self):
        stream = C.c_void_p()
        self.ok("cuStreamCreate", C.byref(stream), 1)
        return stream

    def busy(self, stream, rounds=300):
        for _ in range(rounds):
            self.ok("cuMemsetD8Async", self.work, C.c_ubyte(0), C.c_size_t(8 * GIB), stream)

    def fill(self, address, value, stream):
        self.ok("cuMemsetD8Async", C.c_uint64(address), C.c_ubyte(value), C.c_size_t(GIB), stream)

    def read(self, address):
        byte = C.c_ubyte()
        self.ok("cuMemcpyDtoH_v2", C.byref(byte), C.c_uint64(address), C.c_size_t(1))
        return byte.value


class Pool(C.Structure):
    _fields_ = [("first", C.c_uint64), ("second", C.c_uint64)]


def handle_comes_back(cuda, nofrag, retire):
    old = cuda.stream()
    block = nofrag.nofrag_malloc(C.c_size_t(GIB), 0, old)
    cuda.busy(old)
    cuda.fill(block, 1, old)
    nofrag.nofrag_free(C.c_void_p(block))
    if retire:
        assert nofrag.nofrag_retire_stream(0, old) == 0
    cuda.ok("cuStreamDestroy_v2", old)
    new = cuda.stream()
    again = nofrag.nofrag_malloc(C.c_size_t(GIB), 0, new)
    cuda.fill(again, 2, new)
    cuda.ok("cuStreamSynchronize", new)
    cuda.ok("cuCtxSynchronize")
    read = cuda.read(again)
    nofrag.nofrag_free(C.c_void_p(again))
    nofrag.nofrag_retire_stream(0, new)
    cuda.ok("cuStreamDestroy_v2", new)
    assert read == 2, f"the destroyed stream's work wrote {read} over it"
    return {"same_handle": old.value == new.value, "same_memory": block == again}


def trim_in_a_green_context(cuda, nofrag):
    lib = cuda.lib
    if not hasattr(lib, "cuGreenCtxCreate"):
        return {"skipped": "no green contexts in this driver"}
    resource, part, left = ((C.c_ubyte * 4096)() for _ in range(3))
    count, description, green, context = C.c_uint(1), C.c_void_p(), C.c_void_p(), C.c_void_p()
    made = [
        lib.cuDeviceGetDevResource(0, resource, 1),
        lib.cuDevSmResourceSplitByCount(part, C.byref(count), resource, left, 0, 16),
        lib.cuDevResourceGenerateDesc(C.byref(description), part, 1),
        lib.cuGreenCtxCreate(C.byref(green), description, 0, 1),
        lib.cuCtxFromGreenCtx(C.byref(context), green),
    ]
    if any(made):
        return {"skipped": f"green context: {made}"}
    stream = cuda.stream()
    block = nofrag.nofrag_malloc(C.c_size_t(GIB), 0, stream)
    cuda.busy(stream)
    cuda.fill(block, 1, stream)
    nofrag.nofrag_free(C.c_void_p(block))
    cuda.ok("cuCtxSetCurrent", context)
    pool = Pool(1, 1)
    nofrag.nofrag_pool_begin(0, pool, None, None)
    nofrag.nofrag_pool_end(0, pool)
    nofrag.nofrag_pool_release(0, pool)
    given_back = C.c_uint64()
    started = time.perf_counter()
    assert nofrag.nofrag_trim(0, C.c_uint64(0), C.byref(given_back)) == 0
    seconds = time.perf_counter() - started
    cuda.ok("cuCtxSetCurrent", cuda.primary)
    cuda.ok("cuCtxSynchronize")  # 700 if anything was unmapped under the kernels
    assert given_back.value >= GIB, given_back.value
    return {"waited_s": round(seconds, 3), "given_back_mib": given_back.value >> 20}


def stream_of_another_context(cuda, nofrag):
    other, stream = C.c_void_p(), C.c_void_p()
    if cuda.lib.cuCtxCreate_v2(C.byref(other), 0, 0) != 0:
        return {"skipped": "cuCtxCreate"}
    cuda.ok("cuStreamCreate", C.byref(stream), 1)
    block = nofrag.nofrag_malloc(C.c_size_t(GIB), 0, stream)
    assert block, "a stream of another context got no memory"
    for _ in range(50):
        cuda.fill(block, 1, stream)
    nofrag.nofrag_free(C.c_void_p(block))
    cuda.ok("cuCtxSetCurrent", cuda.primary)
    mine = cuda.stream()
    again = nofrag.nofrag_malloc(C.c_size_t(GIB), 0, mine)
    assert again != block, "memory that the other context may still write was passed on"
    cuda.ok("cuCtxSetCurrent", other)
    cuda.ok("cuCtxSynchronize")
    cuda.ok("cuCtxSetCurrent", cuda.primary)
    nofrag.nofrag_free(C.c_void_p(again))
    return {"passed_on": False}


def identity_cost(cuda):
    if not hasattr(cuda.lib, "cuStreamGetId"):
        return {"skipped": "no cuStreamGetId in this driver"}
    stream, number = cuda.stream(), C.c_uint64()

    def loop(name, *arguments):
        function = getattr(cuda.lib, name)
        started = time.perf_counter_ns()
        for _ in range(200000):
            function(*arguments)
        return (time.perf_counter_ns() - started) / 200000

    version = C.c_int()
    # What ctypes itself costs is in both.
    return {
        "get_id_ns_with_ctypes": round(loop("cuStreamGetId", stream, C.byref(number))),
        "driver_version_ns_with_ctypes": round(loop("cuDriverGetVersion", C.byref(version), None)),
    }


CHECKS = {
    "handle_comes_back_after_retire": lambda cuda, nofrag: handle_comes_back(cuda, nofrag, True),
    "handle_comes_back_unannounced": lambda cuda, nofrag: handle_comes_back(cuda, nofrag, False),
    "trim_in_a_green_context": trim_in_a_green_context,
    "stream_of_another_context": stream_of_another_context,
    "identity_cost": lambda cuda, _: identity_cost(cuda),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--check", choices=CHECKS)
    args = parser.parse_args()
    if args.check:
        cuda = Cuda()
        nofrag = C.CDLL(args.library)
        nofrag.nofrag_malloc.restype = C.c_void_p
        print("ANSWER " + json.dumps(CHECKS[args.check](cuda, nofrag)), flush=True)
        os._exit(0)
    result, failed = {"job": "streams"}, []
    for name in CHECKS:
        command = [sys.executable, __file__, "--library", args.library, "--check", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        if done.returncode == 77:
            sys.exit(77)
        answers = [line[7:] for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        if done.returncode == 0 and answers:
            result[name] = json.loads(answers[-1])
            print(f"ok      {name} {result[name]}", flush=True)
        else:
            failed.append(name)
            result[name] = {"failed": done.stdout[-500:], "exit": done.returncode}
            print(f"FAILED  {name}: exit {done.returncode}\n{done.stdout[-2000:]}", flush=True)
    result["failed"] = failed
    print("RESULT " + json.dumps(result))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
