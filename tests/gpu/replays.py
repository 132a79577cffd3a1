"""The recorded jobs of bench/traces on the GPU, for run_all.py.

replay-canary  every byte of every block written and read by kernels (replay_canary.cu), with all the
               memory there is and with 1.02 times what the job needs; then once with a planted fault
sanitizer      the first events of two of them under compute-sanitizer's memcheck
replay-model   `nofrag replay` on the GPU (the median of three, by driver time) against the same on the
               simulated H100: memory, which must agree, and driver time by kind of call, which is printed
"""

import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACES = ["gpt_varlen", "lora_ckpt", "llm_serve", "multistream8"]
TIGHT = "1.02x"
MOST_APART = 0.005  # of peak reserved, between the card and the model
CARD_RUNS = 3
CONTEXTS_MIB = 2048
MIB, GIB = 2**20, 2**30
RUNGS = ["own_free", "own_mappable", "grow", "other_pools", "device_wait", "pressure_callbacks"]


def packed(name):
    return str(ROOT / "bench" / "traces" / f"{name}.nofrag")


def as_csv(runner, name):
    """The trace's csv, or None (a problem of `nofrag convert` is noted by the runner)."""
    path = runner.out / f"{name}.csv"
    if not path.exists():
        status, _ = runner.run(f"convert-{name}", [runner.args.program, "convert", packed(name), "--to", "csv", str(path)])
        if status != 0:
            return None
    return path


def last_json(output):
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def play(runner, program, name, label, *options, expect=0):
    trace = as_csv(runner, name)
    if trace is None:
        return None
    status, output = runner.run(f"replay-canary-{label}", [program, str(trace), *options], expect=expect)
    result = last_json(output)
    if result is None:
        return None
    report = result.pop("nofrag")
    device = report["devices"][0]
    result["rungs"] = {rung: device.get(f"rung_{rung}") for rung in RUNGS}
    result["driver"] = {kind: report["driver"][kind] for kind in ("calls", "microseconds")}
    return {"job": "replay-canary", "run": label, **result}


def replay_canary(runner):
    program = runner.build("replay_canary")
    if program is None:
        return
    first = ["--events", "20000"] if runner.args.quick else []
    rows = []
    for name in TRACES:
        for label, limit in ((name, []), (f"{name}-{TIGHT}", ["--limit", TIGHT])):
            rows.append(play(runner, program, name, label, *limit, *first))
    # The blocks of a job of one stream on several, and hardly any memory pending.
    rows.append(play(runner, program, "gpt_varlen", "gpt_varlen-4-streams", "--streams", "4", *first))
    rows.append(play(runner, program, "lora_ckpt", "lora_ckpt-8-streams", "--streams", "8", "--limit", "1.2x", *first))
    rows.append(play(runner, program, "multistream8", "multistream8-lag-8", "--limit", TIGHT, "--lag", "8", *first))
    runner.rows += [row for row in rows if row is not None]
    # The counter-proof: a word written by somebody else is found.
    planted = play(runner, program, "gpt_varlen", "planted", "--events", "4000", "--plant", "3000", expect=1)
    if planted is not None and planted["wrong_words"] == 0:
        runner.problems.append("replay-canary-planted: the planted word was not found")


def sanitizer(runner):
    tool = shutil.which("compute-sanitizer")
    for folder in ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"):
        path = os.path.join(folder, "compute-sanitizer")
        tool = tool or (path if os.access(path, os.X_OK) else None)
    if tool is None:
        runner.skips.append("sanitizer: compute-sanitizer is not installed")
        return
    program = runner.build("replay_canary")
    if program is None:
        return
    for name in ("gpt_varlen", "multistream8"):
        trace = as_csv(runner, name)
        if trace is None:
            continue
        command = [tool, "--tool", "memcheck", "--error-exitcode", "99", program, str(trace), "--events", "4000", "--limit", TIGHT]
        status, output = runner.run(f"sanitizer-{name}", command)
        if status != 0 and "Device not supported" in output:
            runner.problems.pop()
            runner.skips.append(f"sanitizer-{name}: compute-sanitizer does not support this device")
            continue
        result = last_json(output)
        if status == 0 and "ERROR SUMMARY: 0 errors" not in output:
            runner.problems.append(f"sanitizer-{name}: no summary of compute-sanitizer")
        elif status == 0 and result is not None:
            runner.rows.append({"job": "sanitizer", "trace": name, "events": result["events"], "errors": 0,
                                "wrong_words": result["wrong_words"], "bytes_verified": result["bytes_verified"]})


def card_memory():
    """--capacity with nearly all of the card's memory, which a replay is laid out by: contexts take some of it, on the card
    alone, and both are to see the same. Nothing if it is not known."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    asked = subprocess.run(query, capture_output=True, text=True) if shutil.which("nvidia-smi") else None
    lines = asked.stdout.split() if asked is not None and asked.returncode == 0 else []
    return ["--capacity", f"{int(lines[0]) - CONTEXTS_MIB}MiB"] if lines else []


def replayed(runner, label, name, device, *options):
    # What the work of streams that run nothing has to wait for: nothing.
    lag = ["--stream-lag", "0"] if device.startswith("sim:") else []
    command = [runner.args.program, "replay", packed(name), "--device", device, "--allocator", "nofrag", "--quiet", *lag, *options]
    path = runner.out / "logs" / f"replay-model-{label}.json"
    status, output = runner.run(f"replay-model-{label}", [*command, "--json", str(path)])
    if status != 0:
        return output
    return json.loads(path.read_text())["traces"][0]["runs"][0]


def replay_model(runner):
    for name in TRACES:
        for limit in ([], ["--capacity", TIGHT]):
            run = name + "".join(f"-{word}" for word in limit[1:])
            memory = limit or card_memory()
            reals = [replayed(runner, f"{run}-cuda-{i}", name, "cuda:0", *memory) for i in range(CARD_RUNS)]
            failed = [real for real in reals if isinstance(real, str)]
            if failed:
                real = failed[0]
                if "CUDA device" in real or "libcuda" in real or "driver does not start" in real:
                    del runner.problems[-len(failed) :]
                    runner.skips.append(f"replay-model: {real.strip().splitlines()[-1]}")
                    return
                continue
            real = sorted(reals, key=lambda one: one["driver_us"])[CARD_RUNS // 2]
            model = replayed(runner, f"{run}-sim", name, "sim:h100-80g", *memory)
            if isinstance(model, str):
                continue
            keys = ("peak_reserved_bytes", "reserved_over_live", "driver_us", "driver_us_quarters", "driver_us_by_call")
            runner.rows.append({"job": "replay-model", "run": run, "cuda": {key: real[key] for key in keys},
                                "sim": {key: model[key] for key in keys}})
            apart = real["peak_reserved_bytes"] / model["peak_reserved_bytes"] - 1
            if abs(apart) > MOST_APART:
                runner.problems.append(f"replay-model-{run}: peak reserved differs from the model's by {apart:+.2%}")


def cost_lines(row):
    """Measured against modelled: calls, microseconds, microseconds a call, for each kind of call."""
    real, model = row["cuda"]["driver_us_by_call"], row["sim"]["driver_us_by_call"]
    for call in sorted({*real, *model}, key=lambda name: -real.get(name, {"us": 0})["us"]):
        a, b = (by_call.get(call, {"calls": 0, "us": 0.0}) for by_call in (real, model))
        each = [f"{side['us'] / side['calls']:8.2f}" if side["calls"] else "       -" for side in (a, b)]
        yield f"  {call:20} calls {a['calls']:6} {b['calls']:6}  us {a['us']:10.0f} {b['us']:10.0f}  us a call {each[0]} {each[1]}"


def table(rows):
    for row in rows:
        if row["job"] == "replay-canary":
            print(f"{row['run']:22} events {row['events']:6} streams {row['streams']} filled {row['bytes_filled'] / GIB:6.0f} GiB "
                  f"verified {row['bytes_verified'] / GIB:6.0f} GiB wrong {row['wrong_words']} failed {row['failures']} "
                  f"live {row['peak_live_bytes'] / GIB:.3f} G reserved/live {row['peak_reserved_bytes'] / row['peak_live_bytes']:.4f} "
                  f"{row['seconds']:.1f} s (host {row['seconds_queueing']:.1f}) rungs {'/'.join(str(row['rungs'][rung]) for rung in RUNGS)}")
        elif row["job"] == "sanitizer":
            print(f"sanitizer {row['trace']}: {row['events']} events, {row['errors']} errors, {row['wrong_words']} wrong words")
        elif row["job"] == "replay-model":
            real, model = row["cuda"], row["sim"]
            print(f"{row['run']:22} reserved MiB card {real['peak_reserved_bytes'] / MIB:.0f} model {model['peak_reserved_bytes'] / MIB:.0f}; "
                  f"driver ms card {real['driver_us'] / 1000:.1f} model {model['driver_us'] / 1000:.1f} "
                  f"({real['driver_us'] / model['driver_us'] - 1:+.0%}); card, then model:")
            print("\n".join(cost_lines(row)))


CHECKS = {"replay-canary": replay_canary, "sanitizer": sanitizer, "replay-model": replay_model}
