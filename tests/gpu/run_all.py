#!/usr/bin/env python3
"""Runs the GPU programs, compares the allocators, and writes a table.

usage: run_all.py [--library LIBNOFRAG] [--program NOFRAG] [--only NAME,...] [--quick] [--rounds N]
NAME: training generation features streams canary, replay-canary sanitizer replay-model (replays.py), and
serve limits small (bars.py)

Without --only: all but serve, limits and small (bars.py), which take eight minutes. Results go to $OUT
(default build/gpu): results.json, results.csv and logs/, one a run. Exit 1 if a program failed, a result
differs by one bit or a hard condition of bars.py is broken; 77 if there is no GPU (or, for what needs it,
no PyTorch or nvcc) and nothing could be run.
"""

import argparse
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import bars
import replays

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
GIB = 2**30
JOBS = {"training": "gpt_train.py", "generation": "generate.py"}
ALLOCATORS = bars.ALLOCATORS
USUAL = [*JOBS, "features", "streams", "canary", *replays.CHECKS]
BARS = {"serve": bars.serve, "limits": bars.limits, "small": bars.small}


class Runner:
    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        self.rows, self.problems, self.skips = [], [], []

    def run(self, name, command, timeout=240, expect=0):
        """(exit status, output). Any other status than `expect` is a problem."""
        return self.end(self.begin(name, command), timeout, expect)

    def begin(self, name, command, environment=None):
        log = self.out / "logs" / f"{name}.log"
        with open(log, "w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        return name, process, log

    def end(self, begun, timeout=240, expect=0):
        """(exit status, output). The output stays in the log."""
        name, process, log = begun
        started = time.time()
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = -1
            with open(log, "a") as file:
                file.write("\nTIMED OUT\n")
        output = log.read_text(errors="replace")
        print(f"-- {name}: exit {status}, {time.time() - started:.1f} s", flush=True)
        if status == SKIPPED:
            self.skips.append(f"{name}: {output.strip().splitlines()[-1] if output.strip() else 'skipped'}")
        elif status != expect:
            self.problems.append(f"{name}: exit {status}")
            print("\n".join(output.splitlines()[-40:]), flush=True)
        return status, output

    def command(self, script, options):
        return [sys.executable, "-u", str(HERE / script), "--library", self.args.library, *options]

    @staticmethod
    def result(output):
        results = [line[len("RESULT ") :] for line in output.splitlines() if line.startswith("RESULT ")]
        return json.loads(results[-1]) if results else None

    def python(self, name, script, *options):
        return self.result(self.run(name, self.command(script, options))[1])

    def series(self, runs, ahead=True):
        """Yields the result of each (name, script, options), one after the other on the GPU. With `ahead`
        each starts while the one before is at work, imports what it needs and waits for its turn."""
        turn, waiting = self.out / "turn", None
        turn.write_text("-1")

        def begin(number):
            name, script, options = runs[number]
            return self.begin(name, self.command(script, options), {**os.environ, "NOFRAG_TURN": f"{turn}:{number}"})

        try:
            for number in range(len(runs)):
                current, waiting = waiting or begin(number), None
                turn.write_text(str(number))
                waiting = begin(number + 1) if ahead and number + 1 < len(runs) else None
                yield self.result(self.end(current)[1])
        finally:
            if waiting is not None:
                waiting[1].kill()
                waiting[1].wait()
            turn.unlink()

    def job(self, name):
        """One job under each allocator; all must give the same numbers to the last bit."""
        quick = {"training": ["--steps", "24"], "generation": ["--requests", "3", "--tokens", "48"]}
        results = {}
        for allocator in ALLOCATORS:
            options = ["--allocator", allocator] + (quick[name] if self.args.quick else [])
            result = self.python(f"{name}-{allocator}", JOBS[name], *options)
            if result is None:
                continue
            results[allocator] = result
            self.rows.append(result)
            if result.get("died") is not None:
                self.problems.append(f"{name}-{allocator}: out of memory at step {result['died']['step']}")
        reference = results.get("native")
        for allocator, result in results.items():
            result["identical_to_native"] = reference is not None and result["exact"] == reference["exact"]
            if reference is not None and not result["identical_to_native"]:
                first = next((i for i, (a, b) in enumerate(zip(reference["exact"], result["exact"])) if a != b), "length")
                self.problems.append(f"{name}-{allocator}: differs from native at {first}")

    def features(self):
        result = self.python("features", "features.py")
        if result is not None:
            self.rows.append(result)

    def streams(self):
        result = self.python("streams", "streams.py")
        if result is not None:
            self.rows.append(result)

    def build(self, name):
        """The path of the program built from NAME.cu, or None with the reason noted."""
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        if not os.path.exists(nvcc):
            self.skips.append(f"{name}: nvcc is not installed")
            return None
        folder = str(pathlib.Path(self.args.library).parent)
        program = str(self.out / name)
        build = [nvcc, "-O2", "-lineinfo", "-std=c++17", "-arch=native", "-Werror", "all-warnings", "-I", str(ROOT / "include"),
                 str(HERE / f"{name}.cu"), "-L", folder, "-lnofrag", "-Xlinker", "-rpath", "-Xlinker", folder, "-o", program]
        status, output = self.run(f"{name}-build", build)
        if status != 0 and "Unsupported gpu architecture" in output:
            self.skips.append(f"{name}: nvcc sees no GPU to build for")
            self.problems.pop()
        return program if status == 0 else None

    def canary(self):
        program = self.build("canary")
        if program is None:
            return
        for seed in ("1",) if self.args.quick else ("1", "2"):
            rows = self.out / "logs" / f"canary-{seed}.json"
            command = [program, "--seed", seed, "--json", str(rows), "--rounds", "20" if self.args.quick else "40"]
            status, _ = self.run(f"canary-{seed}", command)
            if status == 0:
                self.rows += [{"job": "canary", "seed": int(seed), **row} for row in json.loads(rows.read_text())]
        os.unlink(program)

    def jobs_table(self):
        if not any("exact" in row for row in self.rows):
            return
        print(f"\n{'job':12} {'allocator':11} {'identical':9} {'steps/s':>8} {'peak live':>10} {'peak reserved':>14} "
              f"{'res/live':>8} {'driver ms':>10} {'after warm-up':>14}")
        for row in self.rows:
            if "exact" not in row:
                continue
            live, held = row["peak_live_bytes"] / GIB, row["peak_reserved_bytes"] / GIB
            driver, steady = ("-" if us is None else f"{us / 1000:.1f}" for us in (row["driver_us"], row["driver_us_after_warmup"]))
            print(f"{row['job']:12} {row['allocator']:11} {str(row['identical_to_native']):9} {row['steps_per_s'] or 0:8.2f} "
                  f"{live:9.3f}G {held:13.3f}G {held / live:8.4f} {driver:>10} {steady:>14}")

    def table(self):
        self.jobs_table()
        for row in self.rows:
            if row["job"] == "canary":
                print(f"canary seed {row['seed']} {row['phase']:6} rounds {row['rounds']} blocks {row['most_live_blocks']} "
                      f"verified {row['verified_gib']} GiB wrong {row['wrong_words']} moved {row['moved']} "
                      f"from others {row['from_other_streams']} refused {row['refused']} in {row['seconds']} s")
            elif row["job"] == "features":
                print(f"features: {row['checks'] - len(row['failed'])} of {row['checks']} checks")
        replays.table(self.rows)
        bars.table(self.rows)

    @staticmethod
    def arguments():
        """As given, but no path of this machine: results are committed."""
        return [os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:]]

    def write(self):
        environment = {}
        if shutil.which("nvidia-smi"):
            query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
            environment["gpu"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
        document = {"schema": "nofrag.gpu-jobs/1", "date": time.strftime("%Y-%m-%d"), **environment,
                    "command": " ".join(["tests/gpu/run_all.py", *self.arguments()]), "rows": self.rows,
                    "problems": self.problems, "skipped": self.skips}
        (self.out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
        columns = ["job", "allocator", "identical_to_native", "steps_per_s", "peak_live_bytes", "peak_reserved_bytes",
                   "driver_us", "driver_us_after_warmup", "driver_calls"]
        with open(self.out / "results.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(row for row in self.rows if "exact" in row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--program", help="nofrag; else bin/nofrag beside the library's folder")
    parser.add_argument("--only", default=",".join(USUAL))
    parser.add_argument("--rounds", type=int, default=5, help="most repetitions of a run in serve, limits and small")
    parser.add_argument("--quick", action="store_true", help="fewer steps; for a test run")
    args = parser.parse_args()
    args.library = os.path.abspath(args.library)
    if not os.path.exists(args.library):
        parser.error(f"{args.library} does not exist: build it, or give --library")
    args.program = os.path.abspath(args.program or pathlib.Path(args.library).parents[1] / "bin" / "nofrag")
    wanted = args.only.split(",")
    if set(wanted) - {*USUAL, *BARS}:
        parser.error(f"--only takes {', '.join([*USUAL, *BARS])}")
    runner = Runner(args)
    for name in wanted:
        if name in BARS:
            BARS[name](runner)
        elif name in replays.CHECKS:
            replays.CHECKS[name](runner)
        elif name in JOBS:
            runner.job(name)
        else:
            getattr(runner, name)()
    runner.write()
    runner.table()
    for skip in runner.skips:
        print(f"skipped {skip}")
    for problem in runner.problems:
        print(f"PROBLEM {problem}")
    print(f"{len(runner.rows)} results, {len(runner.problems)} problems, {len(runner.skips)} skipped; written to {runner.out}")
    if runner.problems:
        sys.exit(1)
    sys.exit(0 if runner.rows else SKIPPED)


if __name__ == "__main__":
    main()
