#!/usr/bin/env python3
"""Runs the checks, each in a process of its own (started by run.py, which sets the environment).

This process imports torch once and never touches the GPU, so that its children, forked, may.
usage: worker.py OUT JOBS ONLY
"""

import json
import os
import pathlib
import select
import signal
import sys
import time
import traceback

SKIPPED = 77


def run_check(entry, log, answer):
    """In the child: never returns."""
    os.setsid()  # so that a check that hangs goes with all that it started
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from checks import common

    outcome, text = "ok", ""
    try:
        reason = common.begin(entry)
        if reason is not None:
            outcome, text = reason
        else:
            entry.function()
            common.end(entry)
    except common.Skip as why:
        outcome, text = "skipped", str(why)
    except BaseException as error:  # noqa: BLE001 (SystemExit too: nothing of a check may end unseen)
        traceback.print_exc()
        last = str(error).strip().splitlines() or [""]
        outcome, text = "FAILED", f"{type(error).__name__}: {last[0]}"[:300]
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(answer, json.dumps({"outcome": outcome, "text": text}).encode())
    os._exit(0)


class Running:
    def __init__(self, entry, out):
        self.entry, self.started = entry, time.time()
        self.reader, writer = os.pipe()
        log = out / "logs" / f"{entry.name}.log"
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            run_check(entry, log, writer)
        os.close(writer)

    def overdue(self):
        return time.time() - self.started > self.entry.timeout

    def finish(self, killed=False):
        if killed:
            for target in (-self.pid, self.pid):
                try:
                    os.kill(target, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        said = b"" if killed else os.read(self.reader, 1 << 16)
        os.close(self.reader)
        _, status = os.waitpid(self.pid, 0)
        seconds = time.time() - self.started
        if said:
            result = json.loads(said)
        elif killed:
            result = {"outcome": "FAILED", "text": f"not done after {self.entry.timeout} s"}
        else:
            result = {"outcome": "FAILED", "text": f"the process died (status {status})"}
        return {"name": self.entry.name, "seconds": round(seconds, 2), **result}


def run_all(entries, out, jobs):
    """Yields results as they come: side by side, and at the end, one at a time, those that need it."""
    for alone in (False, True):
        waiting = [entry for entry in entries if entry.alone == alone]
        running = []
        while waiting or running:
            while waiting and len(running) < (1 if alone else jobs):
                running.append(Running(waiting.pop(0), out))
            ready, _, _ = select.select([one.reader for one in running], [], [], 0.2)
            for one in list(running):
                if one.reader in ready or one.overdue():
                    running.remove(one)
                    yield one.finish(killed=one.reader not in ready)


def gpu_name():
    """Asked in a child: this process must not touch the GPU."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        import torch

        name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
        os.write(writer, (name or "none").encode())
        os._exit(0)
    os.close(writer)
    name = os.read(reader, 1000).decode()
    os.waitpid(pid, 0)
    return name


def main():
    out, jobs, only = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed")
        sys.exit(SKIPPED)
    gpu = gpu_name()
    if gpu in ("none", ""):
        print("skipped: PyTorch sees no GPU")
        sys.exit(SKIPPED)
    from checks import common

    words = [word for word in only.split(",") if word]
    entries = [entry for entry in common.load() if not words or any(word in entry.name for word in words)]
    if torch.cuda.is_initialized():
        sys.exit("import torch has initialised CUDA")
    results = []
    for result in run_all(entries, out, jobs):
        results.append(result)
        if result["outcome"] == "FAILED":
            print(f"FAILED  {result['name']}: {result['text']}", flush=True)
    order = {entry.name: number for number, entry in enumerate(entries)}
    results.sort(key=lambda result: order[result["name"]])
    document = {"torch": torch.__version__, "gpu": gpu, "results": results}
    (out / "results.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
