#!/usr/bin/env python3
"""What the driver's memory calls cost, a handle, by the handle's size: the numbers of a device file.

usage: driver_prices.py [--device N] [--json FILE]

Four ways of mapping, because they differ:
  again  one handle after the other at the same addresses: created, mapped, access, unmapped, released
  fresh  each at addresses where nothing was mapped before, and all kept; then unmapped one by one
  batch  as fresh, with one set_access and one unmap over all of them (microseconds a mapping)
  alias  each at a second address too, with one set_access and one unmap over these; the rows are theirs
Each with and without the flag for GPUDirect RDMA, which nofrag asks for where it is offered. Medians
(batch, alias: means) in microseconds, less what a call through ctypes takes; of these, the median of
ROUNDS rounds, because the machine's speed drifts. Needs libcuda.so.1 alone.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time

MIB = 2**20
SIZES = [2, 8, 16, 32, 64, 256]
MOST_HANDLES, MOST_BYTES = 128, 16 << 30
ROUNDS = 7
WAYS = ["again", "fresh", "batch", "alias"]
U64, SIZE = ctypes.c_uint64, ctypes.c_size_t


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p),
                ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort),
                ("reserved", ctypes.c_ubyte * 4)]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Driver:
    def __init__(self, device):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.device = device
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        version = ctypes.c_int()
        self.idle = 0.0
        self.idle = statistics.median(self.call("cuDriverGetVersion", ctypes.byref(version)) for _ in range(2000))
        self.access = Access(Location(1, device), 3)

    def call(self, name, *arguments):
        """Microseconds. Ends the program if the driver refuses."""
        function = getattr(self.cuda, name)
        begin = time.perf_counter_ns()
        result = function(*arguments)
        spent = time.perf_counter_ns() - begin
        if result != 0:
            sys.exit(f"driver_prices: {name}: CUDA error {result}")
        return max(0.0, spent / 1000 - getattr(self, "idle", 0.0))

    def name(self):
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, 255, self.device)
        return text.value.decode()

    def create(self, size, rdma):
        handle = U64()
        properties = Properties(type=1, location=Location(1, self.device), rdma=int(rdma))
        return self.call("cuMemCreate", ctypes.byref(handle), SIZE(size), ctypes.byref(properties), U64(0)), handle

    def reserve(self, size):
        address = U64()
        self.call("cuMemAddressReserve", ctypes.byref(address), SIZE(size), SIZE(0), U64(0), U64(0))
        return address.value

    def map(self, address, size, handle):
        return self.call("cuMemMap", U64(address), SIZE(size), SIZE(0), handle, U64(0))

    def grant(self, address, size):
        return self.call("cuMemSetAccess", U64(address), SIZE(size), ctypes.byref(self.access), SIZE(1))

    def unmap(self, address, size):
        return self.call("cuMemUnmap", U64(address), SIZE(size))

    def release(self, handle):
        return self.call("cuMemRelease", handle)

    def free_range(self, address, size):
        self.call("cuMemAddressFree", U64(address), SIZE(size))


def again(driver, size, count, rdma):
    range_ = driver.reserve(size)
    spent = {"create": [], "map": [], "set_access": [], "unmap": [], "release": []}
    for _ in range(min(count, 64)):
        us, handle = driver.create(size, rdma)
        spent["create"].append(us)
        spent["map"].append(driver.map(range_, size, handle))
        spent["set_access"].append(driver.grant(range_, size))
        spent["unmap"].append(driver.unmap(range_, size))
        spent["release"].append(driver.release(handle))
    driver.free_range(range_, size)
    return {call: statistics.median(values) for call, values in spent.items()}


def alias(driver, size, count, rdma):
    first, second = driver.reserve(size * count), driver.reserve(size * count)
    handles = [driver.create(size, rdma)[1] for _ in range(count)]
    for i, handle in enumerate(handles):
        driver.map(first + i * size, size, handle)
    driver.grant(first, size * count)
    spent = {"create": 0.0}
    spent["map"] = statistics.mean([driver.map(second + i * size, size, handle) for i, handle in enumerate(handles)])
    spent["set_access"] = driver.grant(second, size * count) / count
    spent["unmap"] = driver.unmap(second, size * count) / count
    driver.unmap(first, size * count)
    spent["release"] = statistics.mean([driver.release(handle) for handle in handles])
    driver.free_range(first, size * count)
    driver.free_range(second, size * count)
    return spent


def fresh(driver, size, count, rdma, one_call):
    range_ = driver.reserve(size * count)
    spent = {"create": [], "map": [], "set_access": [], "unmap": [], "release": []}
    handles = []
    for i in range(count):
        us, handle = driver.create(size, rdma)
        handles.append(handle)
        spent["create"].append(us)
        spent["map"].append(driver.map(range_ + i * size, size, handle))
        if not one_call:
            spent["set_access"].append(driver.grant(range_ + i * size, size))
    if one_call:
        spent["set_access"].append(driver.grant(range_, size * count) / count)
        spent["unmap"].append(driver.unmap(range_, size * count) / count)
    else:
        spent["unmap"] = [driver.unmap(range_ + i * size, size) for i in range(count)]
    spent["release"] = [driver.release(handle) for handle in handles]
    driver.free_range(range_, size * count)
    middle = statistics.mean if one_call else statistics.median
    return {call: middle(values) for call, values in spent.items()}


def one_round(driver):
    """{(way, rdma, MiB): {call: microseconds}}"""
    costs = {}
    for mib in SIZES:
        size = mib * MIB
        count = min(MOST_HANDLES, MOST_BYTES // size)
        for rdma in (True, False):
            costs["again", rdma, mib] = again(driver, size, count, rdma)
            costs["fresh", rdma, mib] = fresh(driver, size, count, rdma, False)
            costs["batch", rdma, mib] = fresh(driver, size, count, rdma, True)
            costs["alias", rdma, mib] = alias(driver, size, count, rdma)
    return costs


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--json")
    args = parser.parse_args()
    try:
        driver = Driver(args.device)
    except OSError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    rounds = [one_round(driver) for _ in range(ROUNDS)]
    rows = []
    print(f"{driver.name()}; microseconds a handle, the median of {ROUNDS} rounds")
    print(f"{'way':6} {'rdma':5} {'MiB':>4} {'create':>8} {'map':>8} {'access':>8} {'unmap':>8} {'release':>8}")
    for rdma in (True, False):
        for way in WAYS:
            for mib in SIZES:
                seen = [costs[way, rdma, mib] for costs in rounds]
                row = {call: round(statistics.median(one[call] for one in seen), 2) for call in seen[0]}
                rows.append({"way": way, "rdma": rdma, "mib": mib, **row})
                print(f"{way:6} {str(rdma):5} {mib:4} " + " ".join(f"{value:8.1f}" for value in row.values()))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"card": driver.name(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
