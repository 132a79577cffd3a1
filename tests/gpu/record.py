#!/usr/bin/env python3
"""Recording on a GPU: what it costs a training job, whether its replay is the job, what a kill leaves, and
whether compute-sanitizer sees our blocks through NVTX.

usage: record.py [--library LIBNOFRAG] [--program NOFRAG] [--steps N] [--rounds N] [--only cost,kill,sanitizer]

Prints a table; exit 1 if a bar is missed, 77 without a GPU, PyTorch or (sanitizer) nvcc. Files go to $OUT
(default build/gpu/record).
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
MIB = 2**20
# The bars.
MOST_SLOWER = 1.01  # step time, recorded against not
MOST_APART = 0.01  # peak reserved, replayed against the job
MOST_LIVE_APART = 0.001  # peak live: the job's own counter reads several threads one after the other
MOST_BYTES_AN_EVENT = 12.0


class Check:
    def __init__(self, args):
        self.args, self.rows, self.failed = args, [], False
        self.out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "gpu" / "record")
        self.out.mkdir(parents=True, exist_ok=True)

    def row(self, what, value, bar, good):
        self.rows.append((what, value, bar, "ok" if good else "MISSED"))
        self.failed = self.failed or not good

    def table(self):
        widths = [max(len(row[i]) for row in self.rows) for i in range(4)]
        for row in self.rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())

    def job(self, steps, trace=None):
        environment = {**os.environ, "NOFRAG_STATS": "off"}
        environment.pop("NOFRAG_TRACE", None)
        if trace is not None:
            environment["NOFRAG_TRACE"] = str(trace)
        command = [sys.executable, "-u", str(HERE / "gpt_train.py"), "--allocator", "nofrag", "--steps", str(steps)]
        command += ["--library", self.args.library, "--warmup", str(min(8, max(1, steps // 4)))]
        return command, environment

    def run_job(self, steps, trace=None):
        command, environment = self.job(steps, trace)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        if done.returncode == SKIPPED:
            print(done.stdout.strip())
            sys.exit(SKIPPED)
        results = [line[len("RESULT ") :] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if done.returncode != 0 or not results:
            print(done.stdout[-4000:], done.stderr[-4000:])
            sys.exit(f"the job failed with {done.returncode}")
        result = json.loads(results[-1])
        if result["died"] or not result["seconds"]:
            sys.exit(f"the job did not come to its end: {result['died'] or 'no step was timed'}")
        return result

    def replay(self, trace):
        """The JSON of the trace under nofrag on the simulated H100, and what was said on stderr."""
        command = [self.args.program, "replay", str(trace), "--allocator", "nofrag", "--device", "sim:h100-80g"]
        done = subprocess.run([*command, "--json", "-", "--quiet"], capture_output=True, text=True, timeout=400)
        if done.returncode != 0:
            print(done.stdout[-2000:], done.stderr[-2000:])
            sys.exit(f"replay of {trace} failed with {done.returncode}")
        return json.loads(done.stdout)["traces"][0], done.stderr


def cost(check):
    steps, rounds = check.args.steps, check.args.rounds
    trace = check.out / "job.nofrag"
    plain, recorded = [], []
    for _ in range(rounds):
        plain.append(check.run_job(steps))
        recorded.append(check.run_job(steps, trace))
    times = [statistics.median(result["seconds"] for result in results) for results in (plain, recorded)]
    ratio = times[1] / times[0]
    spread = max(result["seconds"] for result in plain) / min(result["seconds"] for result in plain)
    check.row("step time, recorded / not", f"{ratio:.4f} (spread {spread:.4f})", f"<= {MOST_SLOWER}", ratio <= MOST_SLOWER)
    same = all(result["exact"] == plain[0]["exact"] for result in plain + recorded)
    check.row("losses equal to the last bit", str(same), "True", same)

    job = recorded[-1]
    told, said = check.replay(trace)
    check.row("warnings of the reader", said.strip() or "none", "none", not said.strip())
    events = told["events"]
    size = trace.stat().st_size / events
    check.row("bytes an event in the file", f"{size:.2f} ({events} events)", f"<= {MOST_BYTES_AN_EVENT}", size <= MOST_BYTES_AN_EVENT)
    record = told["recorded"]
    live = record["peak_live_bytes"] / job["peak_live_bytes"] - 1
    check.row(
        "peak live, recording / job", f"{live:+.5%} ({job['peak_live_bytes'] / MIB:.1f} MiB)",
        f"within {MOST_LIVE_APART:.1%}", abs(live) <= MOST_LIVE_APART,
    )
    exact = record["peak_reserved_bytes"] == job["peak_reserved_bytes"]
    check.row("peak reserved, recording = job", str(exact), "True", exact)
    run = told["runs"][0]
    reserved = run["peak_reserved_bytes"] / job["peak_reserved_bytes"] - 1
    check.row(
        "peak reserved, replay / job", f"{reserved:+.3%} ({job['peak_reserved_bytes'] / MIB:.1f} MiB)",
        f"within {MOST_APART:.0%}", run["completed"] and abs(reserved) <= MOST_APART,
    )


def kill(check):
    trace = check.out / "killed.nofrag"
    trace.unlink(missing_ok=True)
    command, environment = check.job(100000, trace)
    with open(check.out / "killed.log", "w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        # Until it has trained for a while: the file grows once a second.
        deadline = time.time() + 240
        sizes = set()
        while time.time() < deadline and process.poll() is None and len(sizes) < 8:
            time.sleep(0.5)
            if trace.exists() and trace.stat().st_size > 0:
                sizes.add(trace.stat().st_size)
        process.send_signal(signal.SIGKILL)
        status = process.wait()
    check.row("kill -9: the job was killed", str(status), "-9", status == -signal.SIGKILL)
    told, said = check.replay(trace)
    good = told["events"] > 1000 and not told["recorded"]["whole"] and "no end" in said
    check.row("kill -9: the file is read, with a warning", f"{told['events']} events", "> 1000", good)


def find(name):
    tool = shutil.which(name)
    for folder in ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"):
        if tool is None and os.path.exists(f"{folder}/{name}"):
            tool = f"{folder}/{name}"
    return tool


def sanitizer(check):
    nvcc, tool = find("nvcc"), find("compute-sanitizer")
    if nvcc is None or tool is None:
        print("sanitizer: skipped, there is no nvcc or no compute-sanitizer")
        return
    library = pathlib.Path(check.args.library).resolve()
    program = check.out / "overrun"
    build = [nvcc, "-O1", "-std=c++17", "-lineinfo", "-arch=native", f"-I{ROOT / 'include'}", str(HERE / "overrun.cu"), "-o", str(program)]
    build += [str(library), "-Xlinker", f"-rpath={library.parent}"]
    subprocess.run(build, check=True)

    def look(argument, conf):
        environment = {**os.environ, "NOFRAG_CONF": conf}
        command = [tool, "--tool", "memcheck", "--nvtx", "yes", "--error-exitcode", "9", str(program), argument]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        text = done.stdout + done.stderr
        (check.out / f"sanitizer-{argument}-{'nvtx' if conf else 'plain'}.log").write_text(text)
        if "Device not supported" in text:
            return None, False
        return done.returncode, "Invalid __global__ write" in text

    status, found = look("clean", "nvtx:memory")
    if status is None:
        print("sanitizer: skipped, compute-sanitizer does not support this device")
        return
    check.row("compute-sanitizer, nvtx:memory, clean code", f"exit {status}", "exit 0", status == 0 and not found)
    status, found = look("overrun", "nvtx:memory")
    check.row("compute-sanitizer, nvtx:memory, write past a block", f"exit {status}, found {found}", "found", found)
    status, found = look("overrun", "")
    check.row("the same without nvtx (shows that it matters)", f"exit {status}, found {found}", "not found", not found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/nofrag"))
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="cost,kill,sanitizer")
    args = parser.parse_args()
    if shutil.which("nvidia-smi") is None:
        print("skipped: there is no GPU")
        return SKIPPED
    check = Check(args)
    parts = {"cost": cost, "kill": kill, "sanitizer": sanitizer}
    for name in args.only.split(","):
        parts[name](check)
    check.table()
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
