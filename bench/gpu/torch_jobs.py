#!/usr/bin/env python3
"""PyTorch jobs under each allocator: the same results to the last bit, step times, peaks, least memory.

usage: torch_jobs.py [--library LIBNOFRAG] [--only JOB,...] [--rounds N] [--door auto|native|hooks] [--limits] [--step-times] [--no-ahead]

Each job runs in a process of its own, native and nofrag by turns (`--rounds` each, 3), expandable once. With
--limits it also looks for the smallest memory, as a multiple of the job's peak of live memory and as a
fraction of the card, that each job completes with under each allocator (four runs by four at a time).
With --step-times every step is waited for and timed: a step's time under an allocator is the least of its runs,
and the steps' sum is what is compared, which a host's noise hardly moves.
Results go to $OUT (default build/torch_jobs): jobs.json, and a log each run. Exit 1 if a result differs by one
bit, a job dies, or a step is more than 1 % slower than native; 77 without a GPU or PyTorch.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests" / "gpu"
SKIPPED = 77
GIB = 2**30
SLOWER = 1.01
ALLOCATORS = ["native", "expandable", "nofrag"]
# What --limits tries: so many times the peak of live memory.
FACTORS = [1.0, 1.003, 1.006, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0]
SIDE_BY_SIDE = 4

JOBS = {
    # Timed once their memory has hardly anything left to grow by.
    "gpt": [TESTS / "gpt_train.py", "--steps", "40", "--warmup", "20", "--layers", "8"],
    "lora": [TESTS / "lora_train.py", "--steps", "40", "--warmup", "20", "--layers", "8"],
    "mask": [HERE / "jobs/mask_train.py"],
    "unet": [HERE / "jobs/unet_train.py"],
    "moe": [HERE / "jobs/moe_train.py"],
    "generate": [TESTS / "generate.py", "--requests", "4", "--tokens", "64"],
    "compiled": [HERE / "jobs/compiled_train.py"],
    "reduce-overhead": [HERE / "jobs/compiled_train.py", "--mode", "reduce-overhead"],
    "graphs": [HERE / "jobs/graph_train.py"],
}

WITHOUT_STEPS = {"generate"}


def sum_of_steps(runs):
    """Seconds of the timed steps, each the least of all runs; None where steps were not timed."""
    timed = [run["step_s"][run["warmup"]:] for run in runs if run.get("step_s")]
    return sum(map(min, zip(*timed))) if timed else None


class Runner:
    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "torch_jobs")
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        self.problems, self.skipped, self.turn = [], False, self.out / "turn"
        self.environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.out / "inductor")}

    def begin(self, job, allocator, name, *options, turn=None):
        """Starts a run. With `turn` it imports what it needs and then waits until it is its turn."""
        command = [sys.executable, "-u", *map(str, JOBS[job]), "--allocator", allocator, "--library", self.args.library,
                   "--door", self.args.door, *options]
        log = self.out / "logs" / f"{job}-{allocator}-{name}.log"
        if self.args.step_times and job not in WITHOUT_STEPS:
            command.append("--step-times")
        environment = self.environment if turn is None else {**self.environment, "NOFRAG_TURN": f"{self.turn}:{turn}"}
        with open(log, "w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        return job, allocator, name, process, log

    def end(self, begun):
        """What the job said of itself; None if it ended otherwise than by finishing or running out of memory."""
        (job, allocator, name, process, log), started = begun, time.time()
        try:
            status = process.wait(180)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        text = log.read_text(errors="replace")
        print(f"-- {job} {allocator} {name}: exit {status}, {time.time() - started:.1f} s", flush=True)
        if status == SKIPPED:
            self.skipped = True
        lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
        if lines:
            return json.loads(lines[-1].removeprefix("RESULT "))
        if status != SKIPPED and "out of memory" not in text:
            self.problems.append(f"{job} under {allocator}: exit {status} (see {log.name})")
            print("\n".join(text.splitlines()[-15:]), flush=True)
        return None

    def run(self, job, allocator, name, *options):
        return self.end(self.begin(job, allocator, name, *options))

    def series(self, runs):
        """The results of (job, allocator, name), one after the other on the GPU; each imports what it needs while
        the one before is at work."""
        waiting = None
        self.turn.write_text("-1")
        try:
            for number, one in enumerate(runs):
                current, waiting = waiting or self.begin(*one, turn=number), None
                self.turn.write_text(str(number))
                if number + 1 < len(runs) and not self.args.no_ahead:
                    waiting = self.begin(*runs[number + 1], turn=number + 1)
                yield self.end(current)
        finally:
            if waiting is not None:
                waiting[3].kill()
                waiting[3].wait()

    def jobs(self, names):
        """A row for each job that could be run."""
        runs = [(job, allocator, str(number)) for job in names for number in range(self.args.rounds)
                for allocator in (("native", "nofrag") if number else ALLOCATORS)]
        results = {job: {allocator: [] for allocator in ALLOCATORS} for job in names}
        for (job, allocator, _), result in zip(runs, self.series(runs)):
            if self.skipped:
                return []
            if result is not None:
                results[job][allocator].append(result)
                if result.get("died"):
                    self.problems.append(f"{job} under {allocator}: out of memory without a limit")
        return [self.row(job, found) for job, found in results.items() if found["native"] and found["nofrag"]]

    def row(self, job, runs):
        reference = runs["native"][0]["exact"]
        row = {"job": job, "identical": True, "steps": len(reference)}
        for allocator, results in runs.items():
            for result in results:
                if result["exact"] != reference:
                    row["identical"] = False
                    pairs = enumerate(zip(reference, result["exact"]))
                    differs = [(step, float.fromhex(a), float.fromhex(b)) for step, (a, b) in pairs if a != b]
                    row.setdefault("differs", []).append({"allocator": allocator, "steps": len(result["exact"]), "pairs": differs})
                    self.problems.append(f"{job} under {allocator}: differs from native at {len(differs)} of {len(reference)} "
                                         f"steps: {differs[:3] or 'the length'}")
            if results:
                times = [result["seconds"] for result in results if result.get("seconds")]
                row[allocator] = {"peak_live_bytes": max(result["peak_live_bytes"] for result in results),
                                  "peak_reserved_bytes": max(result["peak_reserved_bytes"] for result in results),
                                  "seconds": statistics.median(times) if times else None, "all_seconds": times,
                                  "least_steps_s": sum_of_steps(results)}
        if row["native"]["seconds"] and row["nofrag"]["seconds"]:
            row["time_ratio"] = (row["nofrag"]["least_steps_s"] / row["native"]["least_steps_s"] if row["native"]["least_steps_s"]
                                 else row["nofrag"]["seconds"] / row["native"]["seconds"])
            if row["time_ratio"] > SLOWER:
                self.problems.append(f"{job}: {row['time_ratio']:.3f} times native's time")
        return row

    def least(self, job, allocator, peak):
        """The smallest of FACTORS that the job completes with, by bisection; None if none will do."""
        low, high = 0, len(FACTORS)  # the answer is an index from low to high; high is "none"
        while low < high:
            middle = (low + high) // 2
            limit = FACTORS[middle] * peak / GIB
            result = self.run(job, allocator, f"limit-{FACTORS[middle]}", "--limit", f"{limit:.6f}")
            if result is not None and not result.get("died"):
                high = middle
            else:
                low = middle + 1
        return FACTORS[low] if low < len(FACTORS) else None

    def limits(self, rows, total):
        wanted = [(row, allocator) for row in rows for allocator in ALLOCATORS]
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            tasks = [pool.submit(self.least, row["job"], allocator, row["native"]["peak_live_bytes"]) for row, allocator in wanted]
            for (row, allocator), task in zip(wanted, tasks):
                factor = task.result()
                row.setdefault("least_factor", {})[allocator] = factor
                row.setdefault("least_fraction", {})[allocator] = (
                    None if factor is None else factor * row["native"]["peak_live_bytes"] / total)


def gpu():
    """(name, bytes), or None where nothing can be run."""
    script = "import torch; print(torch.cuda.get_device_name(0)); print(torch.cuda.get_device_properties(0).total_memory)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if result.returncode != 0:
        return None
    name, total = result.stdout.splitlines()
    return name, int(total)


def table(rows):
    print(f"\n{'job':16} {'identical':9} {'time':>7} {'live GiB':>9} {'native':>8} {'expand.':>8} {'nofrag':>8}   reserved/live")
    for row in rows:
        peaks = [row.get(allocator, {}).get("peak_reserved_bytes") for allocator in ALLOCATORS]
        live = row["native"]["peak_live_bytes"]
        shown = " ".join(f"{peak / GIB:8.3f}" if peak else "       -" for peak in peaks)
        over = " ".join(f"{peak / live:6.3f}" if peak else "     -" for peak in peaks)
        ratio = f"{row['time_ratio']:7.3f}" if "time_ratio" in row else "      -"
        print(f"{row['job']:16} {str(row['identical']):9} {ratio} {live / GIB:9.3f} {shown}   {over}")
    print("time: nofrag over native, medians of runs by turns, or sums of steps; the rest: peak reserved, GiB")
    if any("least_factor" in row for row in rows):
        print(f"\nleast memory to complete with\n{'job':16} " + " ".join(f"{one:>20}" for one in ALLOCATORS))
        for row in rows:
            cells = []
            for allocator in ALLOCATORS:
                factor, fraction = row["least_factor"][allocator], row["least_fraction"][allocator]
                cells.append(f"{factor:8.3f}x ({fraction:8.4f})" if factor else f"{'more than all':>20}")
            print(f"{row['job']:16} " + " ".join(cells))
        print("times the peak of live memory (as a fraction of the card)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--door", choices=["auto", "native", "hooks"], default="auto")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--step-times", action="store_true")
    parser.add_argument("--no-ahead", action="store_true", help="no run imports anything while another is timed")
    args = parser.parse_args()
    args.library = os.path.abspath(args.library)
    if not os.path.exists(args.library):
        parser.error(f"{args.library} does not exist: build it, or give --library")
    wanted = args.only.split(",")
    if set(wanted) - set(JOBS):
        parser.error(f"--only takes {', '.join(JOBS)}")
    found = gpu()
    if found is None:
        print("skipped: no PyTorch, or it sees no GPU")
        sys.exit(SKIPPED)
    runner = Runner(args)
    rows = runner.jobs(wanted)
    if args.limits:
        runner.limits(rows, found[1])
    document = {"schema": "nofrag.torch-jobs/1", "date": time.strftime("%Y-%m-%d"), "gpu": found[0], "rows": rows,
                "problems": runner.problems}
    (runner.out / "jobs.json").write_text(json.dumps(document, indent=1) + "\n")
    table(rows)
    for problem in runner.problems:
        print(f"PROBLEM {problem}")
    sys.exit(1 if runner.problems else 0 if rows else SKIPPED)


if __name__ == "__main__":
    main()
