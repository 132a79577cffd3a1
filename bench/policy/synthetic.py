#!/usr/bin/env python3
"""Synthetic traces for the policy study, the same on every machine.

usage: synthetic.py DIR [KIND...]          writes DIR/KIND.csv

  rand      lifetimes at random, sizes log-uniform from 1 MiB to 2 GiB, 95 % of 64 GiB kept live
  kv        key and value caches of a batch of sequences that grow by a token a step, layer by layer
  phase     rounds of many 20 MiB blocks, of which some survive, then of few 1 GiB blocks
  streams   eight streams in bursts, last in mostly first out, at most 24 GiB live
  medium    lifetimes at random, sizes from 1 to 10 MiB, 16 GiB kept live

scaled() makes a variant of a recorded trace with every size multiplied.
"""

import argparse
import pathlib

MIB = 1 << 20
GIB = 1 << 30
UNIT = 512


class Random:
    """SplitMix64: no Python release and no platform changes what it gives."""

    def __init__(self, seed):
        self.state = seed

    def word(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return mixed ^ (mixed >> 31)

    def below(self, bound):
        return self.word() % bound

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def real(self, low=0.0, high=1.0):
        return low + (high - low) * (self.word() >> 11) / 2**53

    def bell(self):
        """About normal: mean 0, deviation 1."""
        return sum(self.real() for _ in range(12)) - 6

    def one_of(self, values):
        return values[self.below(len(values))]


def take_any(random, blocks):
    """Removes and returns one of the list, in no order."""
    at = random.below(len(blocks))
    blocks[at], blocks[-1] = blocks[-1], blocks[at]
    return blocks.pop()


class Job:
    """Writes events; every size is a multiple of 512."""

    def __init__(self):
        self.lines = ["time_us,op,id,size,stream"]
        self.time = 0
        self.count = 0
        self.live_bytes = 0

    def allocate(self, size, after_us, stream=0):
        size = max(UNIT, int(size) // UNIT * UNIT)
        self.time += after_us
        block = (self.count, size, stream)
        self.lines.append(f"{self.time},a,{self.count},{size},{stream}")
        self.count += 1
        self.live_bytes += size
        return block

    def free(self, block, after_us):
        number, size, stream = block
        self.time += after_us
        self.live_bytes -= size
        self.lines.append(f"{self.time},f,{number},{size},{stream}")

    def text(self):
        return "\n".join(self.lines) + "\n"


def held_near(job, random, size_of, target, allocations, alloc_us, free_us):
    """Blocks at random; whatever stands in the way of the next one's fitting the target is freed."""
    blocks = []
    for _ in range(allocations):
        size = size_of()
        while job.live_bytes + size > target:
            job.free(take_any(random, blocks), free_us)
        blocks.append(job.allocate(size, alloc_us))


def rand():
    job, random = Job(), Random(101)
    held_near(job, random, lambda: MIB * 2 ** random.real(0, 11), 64 * GIB * 95 // 100, 6000, 800, 200)
    return job


def medium():
    job, random = Job(), Random(105)
    held_near(job, random, lambda: MIB * random.real(1, 10), 16 * GIB, 20000, 150, 50)
    return job


def kv():
    job, random = Job(), Random(102)
    layers = 16
    for _ in range(10):
        batch = random.between(4, 32)
        tokens = random.between(100, 4000)
        token_bytes = batch * 2048 * 2
        caches = [job.allocate(tokens * token_bytes, 30) for _ in range(2 * layers)]
        for _ in range(random.between(20, 79)):
            tokens += 1
            for index, old in enumerate(caches):
                caches[index] = job.allocate(tokens * token_bytes, 60)
                job.free(old, 5)
            for _ in range(6):
                job.free(job.allocate(token_bytes * random.one_of((1, 3, 4)), 10), 10)
        for cache in caches:
            job.free(cache, 5)
    return job


def phase():
    job, random = Job(), Random(103)
    survivors = []
    for _ in range(12):
        small = [job.allocate(20 * MIB * random.real(0.8, 1.2), 100) for _ in range(1500)]
        for _ in range(30):
            survivors.append(take_any(random, small))
        while small:
            job.free(take_any(random, small), 20)
        large = [job.allocate(GIB * random.real(0.9, 1.1), 2000) for _ in range(28)]
        while large:
            job.free(take_any(random, large), 500)
        while len(survivors) > 60:
            job.free(take_any(random, survivors), 10)
    return job


def streams():
    job, random = Job(), Random(104)
    stacks = [[] for _ in range(8)]
    for _ in range(400):
        stream = random.below(8)
        mine = stacks[stream]
        scale = random.one_of((4, 16, 64, 160)) * MIB
        for _ in range(random.between(20, 119)):
            size = min(GIB, max(MIB // 2, scale * 2.718281828 ** (0.8 * random.bell())))
            while job.live_bytes + size > 24 * GIB:
                fullest = max(stacks, key=lambda stack: sum(block[1] for block in stack))
                job.free(fullest.pop(), 10)
            mine.append(job.allocate(size, random.between(20, 149), stream))
            if random.below(100) < 35 and len(mine) > 3:
                job.free(mine.pop(len(mine) - 1 - random.below(3)), 5)
        for _ in range(int(len(mine) * random.real(0.6, 1.0))):
            job.free(mine.pop(), 5)
        job.time += random.below(3000)
    return job


KINDS = {"rand": rand, "kv": kv, "phase": phase, "streams": streams, "medium": medium}


def scaled(csv, factor):
    """The trace with every size multiplied; multiples of 512 stay multiples."""
    lines = csv.splitlines()
    out = [lines[0]]
    for line in lines[1:]:
        time, op, number, size, stream = line.split(",")
        old = int(size)
        new = int(old * factor)
        if old % UNIT == 0 and old:
            new = max(UNIT, new // UNIT * UNIT)
        out.append(f"{time},{op},{number},{new},{stream}")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for kind in args.kinds or KINDS:
        (args.folder / f"{kind}.csv").write_text(KINDS[kind]().text(), encoding="utf-8")


if __name__ == "__main__":
    main()
