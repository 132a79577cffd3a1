#!/usr/bin/env python3
"""Live jobs that end out of memory, one a cause: does the report name it?

usage: oom_causes.py [--only NAME,...] [--library libnofrag.so] [--nofrag PROGRAM] [--json FILE]

Each job runs in a process of its own with 4 GiB at most, but those that no growth brings to an end: a limit would be
their cause, so they fill the whole card (or run beside one that holds it). Prints a table, and the texts; exits with 1 if a cause is wrong, with 77 where there is no GPU or no PyTorch. Takes about
two minutes on an H100.
"""

import argparse
import ctypes as C
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
GIB, MIB = 1 << 30, 1 << 20
LIMIT_GIB = 4


class Headroom(C.Structure):
    """nofrag_headroom, version 1."""

    _fields_ = [("struct_size", C.c_uint32), ("version", C.c_uint32), ("device", C.c_int32), ("low", C.c_int32),
                ("bytes", C.c_uint64), ("seconds", C.c_double), ("rate", C.c_double), ("confidence", C.c_double),
                ("spare", C.c_uint64 * 4)]


class Job:
    """What a scenario needs of its process: torch, and headroom on the way (nofrag only)."""

    def __init__(self, allocator):
        if allocator == "nofrag":
            sys.path.insert(0, str(ROOT / "torch_plugin"))
            import nofrag_torch

            nofrag_torch.install()
            self.lib = nofrag_torch.current().lib
        else:
            self.lib = None
        import torch

        self.torch = torch
        self.limited = allocator != "nofrag" or "limit:" in os.environ.get("NOFRAG_CONF", "")
        self.started = time.monotonic()
        self.forecasts = []  # (seconds into the job, seconds forecast)
        torch.cuda.init()
        if allocator != "nofrag":
            torch.cuda.set_per_process_memory_fraction(LIMIT_GIB * GIB / torch.cuda.mem_get_info()[1])
        torch.manual_seed(1)

    def turn(self):
        """A unit of work is done."""
        self.torch.cuda.synchronize()
        if self.lib is None:
            return
        headroom = Headroom()
        headroom.struct_size = C.sizeof(headroom)
        if self.lib.nofrag_get_headroom(0, C.byref(headroom)) == 0 and headroom.seconds >= 0:
            self.forecasts.append((time.monotonic() - self.started, headroom.seconds))


def linears(job, layers, width):
    return [job.torch.nn.Linear(width, width, bias=False, device="cuda") for _ in range(layers)]


def model_too_large(job):
    """5.6 GiB where a limit is set, else by a half more than the card, whose memory it fills."""
    if job.limited:
        job.torch.nn.Sequential(*[job.torch.nn.Linear(4096, 4096) for _ in range(90)]).to("cuda")
    else:
        linears(job, job.torch.cuda.mem_get_info()[1] * 3 // 2 // GIB, 16384)


def batch_too_large(job):
    """A model of 1.5 GiB, on any card, and a first step that wants all of it."""
    layers = linears(job, 24, 4096)
    job.torch.cuda.synchronize()
    time.sleep(0.5)
    # Each layer keeps two of these.
    rows = max(16384, job.torch.cuda.mem_get_info()[0] // 20 // (4 * 4096))
    x = job.torch.randn(rows, 4096, device="cuda", requires_grad=True)
    for layer in layers:
        x = job.torch.relu(layer(x))
    x.sum().backward()


def batch_after_a_load(job):
    """A sixth of the memory is the model, whatever the card; then a first step that wants more than the rest."""
    total = 4 * GIB if job.limited else job.torch.cuda.mem_get_info()[1]
    width = int((total / 6 / 24 / 4) ** 0.5) // 512 * 512
    layers = linears(job, 24, width)
    job.torch.cuda.synchronize()
    time.sleep(0.5)
    # Each layer keeps two of these.
    x = job.torch.randn(total // 20 // (4 * width), width, device="cuda", requires_grad=True)
    for layer in layers:
        x = job.torch.relu(layer(x))
    x.sum().backward()


def step_of_chat(job, layers, caches, tokens):
    torch = job.torch
    heads, width = 16, 2048
    x = torch.randn(tokens, width, device="cuda", dtype=torch.float16)
    for i, layer in enumerate(layers):
        hidden = layer(x)
        key = hidden.view(tokens, heads, -1).transpose(0, 1).contiguous()
        if caches[i] is None:
            caches[i] = [key, key.clone()]
        else:
            caches[i] = [torch.cat([old, key], dim=1) for old in caches[i]]
        attention = torch.softmax(key @ caches[i][0].transpose(1, 2), dim=-1) @ caches[i][1]
        x = x + attention.transpose(0, 1).reshape(tokens, width)


def half_linears(job):
    return [job.torch.nn.Linear(2048, 2048, bias=False, device="cuda", dtype=job.torch.float16) for _ in range(16)]


def chat(job):
    layers, caches = half_linears(job), [None] * 16
    time.sleep(0.3)
    with job.torch.no_grad():
        for _ in range(400):
            step_of_chat(job, layers, caches, 256)
            job.turn()
            time.sleep(0.02)


def agents(job):
    layers = half_linears(job)
    contexts = [[None] * 16 for _ in range(8)]
    time.sleep(0.3)
    with job.torch.no_grad():
        for turn in range(800):
            step_of_chat(job, layers, contexts[(turn * 5) % 8], 128 + 16 * (turn % 7))
            job.turn()
            time.sleep(0.01)


def train(job, keep, steps):
    torch = job.torch
    layers = linears(job, 8, 2048)
    optimizer = torch.optim.SGD([layer.weight for layer in layers], lr=1e-4)
    kept = []
    time.sleep(0.3)
    for _ in range(steps):
        x = torch.randn(4096, 2048, device="cuda")
        for layer in layers:
            x = torch.relu(layer(x))
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if keep:
            kept.append(x.detach())
        job.turn()
        time.sleep(0.02)


def leak(job):
    train(job, True, 400)


def steady(job):
    train(job, False, 150)


def fragmentation(job):
    torch = job.torch
    blocks = [torch.empty(8 * MIB, dtype=torch.uint8, device="cuda") for _ in range(370)]
    del blocks[::2]
    torch.cuda.synchronize()
    torch.empty(GIB, dtype=torch.uint8, device="cuda")


def six_gib(job):
    """Needs 6 GiB in all; another process leaves 3."""
    blocks = []
    for _ in range(48):
        blocks.append(job.torch.empty(128 * MIB, dtype=job.torch.uint8, device="cuda"))


# name: (scenario, allocator, cause that must be named; None: must complete)
CASES = {
    "model_too_large": (model_too_large, "nofrag", "model_too_large"),
    "batch_at_first_step": (batch_too_large, "nofrag", "batch_too_large"),
    "batch_after_a_load": (batch_after_a_load, "nofrag", "batch_too_large"),
    "limit": (model_too_large, "nofrag", "limit"),
    "chat": (chat, "nofrag", "kv_cache_growth"),
    "agents": (agents, "nofrag", "kv_cache_growth"),
    "leak": (leak, "nofrag", "leak"),
    "fragmentation_native": (fragmentation, "native", "fragmentation"),
    "fragmentation_nofrag": (fragmentation, "nofrag", None),
    "second_process": (six_gib, "nofrag", "other_process"),
    "steady": (steady, "nofrag", None),
}
# Without a limit.
WHOLE_CARD = {"model_too_large", "batch_at_first_step", "batch_after_a_load", "second_process"}


def child(name):
    """Runs one scenario and prints what came of it as JSON."""
    scenario, allocator, _ = CASES[name]
    job = Job(allocator)
    outcome = {"message": None}
    try:
        outcome.update(scenario(job) or {})
    except job.torch.OutOfMemoryError as error:
        outcome["message"] = str(error)
    outcome["seconds"] = time.monotonic() - job.started
    outcome["forecasts"] = job.forecasts
    print("OUTCOME " + json.dumps(outcome), flush=True)


def hold_the_card():
    """Takes all but 3 GiB of the card, says so, and waits for its end."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    held = [torch.empty(256 * MIB, dtype=torch.uint8, device="cuda") for _ in range((free - 3 * GIB) // (256 * MIB))]
    print(f"HOLDS {len(held) * 256 * MIB}", flush=True)
    sys.stdin.read()


def start(*arguments, **options):
    return subprocess.Popen([sys.executable, __file__, *arguments], text=True, stdout=subprocess.PIPE, stdin=subprocess.PIPE,
                            **options)


def run_case(name, args):
    _, allocator, _ = CASES[name]
    environment = dict(os.environ, NOFRAG_LIBRARY=args.library)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if allocator == "nofrag" and name not in WHOLE_CARD:
        environment["NOFRAG_CONF"] = f"limit:{LIMIT_GIB}GiB"
    holder = None
    if name == "second_process":
        holder = start("--hold")
        assert holder.stdout.readline().startswith("HOLDS")
    job = start("--child", name, env=environment)
    output, _ = job.communicate(timeout=300)
    if holder is not None:
        holder.communicate(timeout=60)
    lines = [line for line in output.splitlines() if line.startswith("OUTCOME ")]
    return json.loads(lines[0][8:]) if lines else {"message": None, "problem": f"it ended with {job.returncode}"}


def explained(args, message):
    done = subprocess.run([args.nofrag, "explain", "-", "--json", "-"], input=message, capture_output=True, text=True)
    return json.loads(done.stdout)["cause"] if done.returncode == 0 else f"explain failed: {done.stderr}"


def forecast_note(outcome):
    """When the first forecast came, as a share of the job, and how far those from half of the job on were off."""
    if not outcome.get("forecasts"):
        return "no forecast", None
    end = outcome["seconds"]
    first = outcome["forecasts"][0][0] / end
    late = [abs(at + left - end) / max(end - at, 1e-9) for at, left in outcome["forecasts"] if 0.5 <= at / end <= 0.8]
    off = sorted(late)[len(late) // 2] if late else None
    return f"forecast from {100 * first:.0f} % of the run on" + (f", {100 * off:.0f} % off" if off is not None else ""), first


def judge(name, outcome, args):
    """(what was found, what is wrong or empty)"""
    _, allocator, cause = CASES[name]
    if outcome.get("problem"):
        return outcome["problem"], outcome["problem"]
    if cause is None:
        if outcome["message"] is not None:
            return "out of memory", "it had to complete: " + outcome["message"]
        note, first = forecast_note(outcome)
        return "completed; " + note, "a false alarm" if name == "steady" and first is not None else ""
    if outcome["message"] is None:
        return "completed", "it had to run out of memory"
    found = explained(args, outcome["message"])
    wrong = "" if found == cause else f"said {found}, not {cause}"
    if allocator == "nofrag" and f"cause: {cause} (" not in outcome["message"]:
        wrong = wrong or "the error's own text does not name the cause"
    note = ""
    if name in ("chat", "leak"):
        note, first = forecast_note(outcome)
        note = "; " + note
        if first is None or first > 0.8:
            wrong = wrong or "no forecast in the first 80 % of the run"
    return found + note, wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--library", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--nofrag", default=str(ROOT / "build/release/bin/nofrag"))
    parser.add_argument("--json", help="write the outcomes, with the reports' texts")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child)
    if args.hold:
        return hold_the_card()
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch")
        return SKIPPED
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return SKIPPED
    outcomes, failures = {}, 0
    print(f"{'job':22} {'asked for':18} found")
    for name in args.only.split(","):
        outcome = outcomes[name] = run_case(name, args)
        found, wrong = judge(name, outcome, args)
        failures += bool(wrong)
        print(f"{name:22} {CASES[name][2] or 'completes':18} {found}" + (f"   WRONG: {wrong}" if wrong else ""), flush=True)
    for name, outcome in outcomes.items():
        if outcome["message"]:
            print(f"\n---- {name}\n{outcome['message']}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(outcomes, indent=1))
    print(f"\n{len(outcomes) - failures} of {len(outcomes)} right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
