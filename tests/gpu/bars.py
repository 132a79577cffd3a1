"""What run_all.py asks of jobs under a limit: serving by eight threads, training with a capacity of
little more than its peak, and a job that the CPU paces. Each part runs its programs, judges them and
gives rows and problems to the runner.

Hard conditions (problems, exit 1) are nofrag's alone: a request lost although what could be composed
covered it, a loss of any kind with 16 GiB, a training job that dies within 1.01 of its peak, and any
number that differs by a bit. Times are printed, and judged by the reader.
"""

import json
import statistics

GIB = 2**30
ALLOCATORS = ["native", "expandable", "nofrag"]
FACTORS = [1.01, 1.02]


def median(values):
    return statistics.median(values) if values else None


def repeats(runner, usual):
    return 1 if runner.args.quick else min(usual, runner.args.rounds)


def keep(runner, name, results):
    """Every run in full, for whoever doubts a table."""
    (runner.out / f"{name}.json").write_text(json.dumps(results) + "\n")


# ---- Serving ----


def serve(runner):
    ample, short = (16, [14, 13]) if not runner.args.quick else (16, [14])
    plan = [ample] * repeats(runner, 5) + short
    more = ["--requests", "48"] if runner.args.quick else []
    asked = [(number, limit, allocator) for number, limit in enumerate(plan) for allocator in ALLOCATORS]
    series = runner.series([
        (f"serve-{limit}-{number}-{allocator}", "serve8.py", ["--allocator", allocator, "--limit", str(limit), *more])
        for number, limit, allocator in asked
    ])
    runs = {}
    for (_, limit, allocator), result in zip(asked, series):
        if result is not None:
            runs.setdefault((limit, allocator), []).append(result)
        if not runs:
            return  # no GPU here, or nothing works
    reference = next((result["answers"] for results in runs.values() for result in results), [])
    for (limit, allocator), results in runs.items():
        runner.rows.append(serve_row(limit, allocator, results))
        for result in results:
            name = f"serve8 with {limit} GiB under {allocator}"
            wrong = [i for i, (a, b) in enumerate(zip(reference, result["answers"])) if a and b and a != b]
            if wrong:
                runner.problems.append(f"{name}: request {wrong[0]} and {len(wrong) - 1} more have other answers")
            if allocator == "nofrag" and result["not_short"]:
                runner.problems.append(f"{name}: {result['not_short']} requests lost that could have been composed")
            if allocator == "nofrag" and limit == ample and result["lost"]:
                runner.problems.append(f"{name}: {result['lost']} requests lost")
    keep(runner, "serve", [result for results in runs.values() for result in results])


def serve_row(limit, allocator, results):
    def numbers(key):
        return [result[key] for result in results]

    return {"job": "serve8", "part": "serve", "allocator": allocator, "limit_gib": limit, "runs": len(results),
            "completed": numbers("completed"), "lost": numbers("lost"), "truly_short": numbers("truly_short"),
            "not_short": numbers("not_short"), "seconds": median(numbers("seconds")), "all_seconds": numbers("seconds"),
            "peak_live_bytes": max(numbers("peak_live_bytes")), "peak_reserved_bytes": max(numbers("peak_reserved_bytes")),
            "losses": [loss for result in results for loss in result["losses"]]}


# ---- Training with hardly more than its peak ----


def limits(runner):
    steps = {"gpt_train": 60, "lora_train": 32}
    for job in steps:
        options = ["--step-times", "--steps", str(16 if runner.args.quick else steps[job])]
        runs = training(runner, "limits", job, rounds(FACTORS, repeats(runner, 2)), options)
        if ("nofrag", None) not in runs:
            continue
        peers = [(allocator, FACTORS[-1]) for allocator in ("native", "expandable")]
        training(runner, "limits", job, peers, options, runs)
        # What dies with more cannot live with less.
        alive = [key for key in peers if key in runs and runs[key][0]["died"] is None]
        training(runner, "limits", job, [(allocator, FACTORS[0]) for allocator, _ in alive], options, runs)
        judge(runner, "limits", job, runs, step_ratio)


def small(runner):
    options = ["--steps", "120"] if runner.args.quick else []
    runs = training(runner, "small", "small_train", rounds(FACTORS[-1:], repeats(runner, 3)), options)
    if ("nofrag", None) in runs:
        judge(runner, "small", "small_train", runs, pace_ratio)


def rounds(factors, count):
    """One run natively, then nofrag's: without a limit and with each, by turns, so that a clock that
    drifts drifts for all."""
    return [("native", None)] + [("nofrag", factor) for _ in range(count) for factor in [None, *factors]]


def training(runner, part, job, asked, options, runs=None):
    """The results by (allocator, factor), added to `runs`. Stops if there is no peak to go by."""
    runs, named, peak = {} if runs is None else runs, [], str(runner.out / f"peak-{job}.json")
    for number, (allocator, factor) in enumerate(asked):
        extra = ["--allocator", allocator, *options]
        if factor is not None:
            extra += ["--limit-of-peak", str(factor), "--peak", peak]
        elif allocator == "nofrag":
            extra += ["--peak", peak]  # the same bytes each time, or a job is not deterministic
        named.append((f"{part}-{job}-{allocator}-{factor or 'free'}-{number}", f"{job}.py", extra))
    # Where the CPU sets the pace, nothing else may run.
    for key, result in zip(asked, runner.series(named, ahead=part != "small")):
        if result is not None:
            runs.setdefault(key, []).append(result)
        if key == ("nofrag", None) and key not in runs:
            break
    return runs


def step_ratio(limited, free):
    """Time of a step with a limit over the time of the same step without, each the best of its runs: what
    else the host does only ever adds time."""
    first = free[0]["warmup"]
    over = [list(zip(*(run["step_s"] for run in runs)))[first:] for runs in (limited, free)]
    with_limit, without = ([min(times) for times in runs] for runs in over)
    ratios = sorted(a / b for a, b in zip(with_limit, without))
    quarter = len(ratios) // 4
    return {"median": median(ratios), "low": ratios[quarter], "high": ratios[-1 - quarter],
            "total": sum(with_limit) / sum(without)}


def pace_ratio(limited, free):
    """The same for a job timed as a whole: run by run, in the order they ran."""
    ratios = sorted(b["steps_per_s"] / a["steps_per_s"] for a, b in zip(limited, free))
    return {"median": median(ratios), "low": ratios[0], "high": ratios[-1],
            "total": median([run["steps_per_s"] for run in free]) / median([run["steps_per_s"] for run in limited])}


def judge(runner, part, job, runs, ratio):
    free = runs["nofrag", None]
    reference = free[0]["exact"]
    for (allocator, factor), results in runs.items():
        row = {"job": job, "part": part, "allocator": allocator, "factor": factor, "runs": len(results)}
        runner.rows.append(row)
        if not results:
            continue
        died = next((result["died"] for result in results if result["died"] is not None), None)
        same = all(result["exact"] == reference[: len(result["exact"])] for result in results)
        row.update({"died": died, "identical": same, "limit_bytes": results[0]["limit_bytes"],
                    "steps_per_s": median([result["steps_per_s"] for result in results if result["steps_per_s"]]),
                    "peak_live_bytes": max(result["peak_live_bytes"] for result in results),
                    "peak_reserved_bytes": max(result["peak_reserved_bytes"] for result in results)})
        if allocator == "nofrag":
            row["driver_us_after_warmup"] = median([result["driver_us_after_warmup"] or 0 for result in results])
        if died is None:
            repeat = (allocator, factor) == ("nofrag", None)
            # Nothing with nothing: how far two equal runs differ.
            compared = (results[1:], free[:1]) if repeat else (results, free)
            row["over_free"] = ratio(*compared) if compared[0] else None
        name = f"{job} under {allocator} with " + ("no limit" if factor is None else f"{factor} of its peak")
        if not same:
            runner.problems.append(f"{name}: losses differ from those of nofrag without a limit")
        if allocator == "nofrag" and died is not None:
            verdict = (died["report"] or {}).get("verdict", "no report")
            runner.problems.append(f"{name}: out of memory at step {died['step']} ({verdict})")
    keep(runner, f"{part}-{job}", [result for results in runs.values() for result in results])


# ---- Tables ----


def table(rows):
    serving = [row for row in rows if row.get("part") == "serve"]
    if serving:
        print(f"\n{'serve8':12} {'GiB':>4} {'runs':>4} {'completed':>10} {'lost':>6} {'short':>6} {'not short':>9} "
              f"{'seconds':>8} {'peak live':>10} {'peak reserved':>14}")
    for row in serving:
        done = f"{min(row['completed'])}-{max(row['completed'])}"
        print(f"{row['allocator']:12} {row['limit_gib']:4} {row['runs']:4} {done:>10} {sum(row['lost']):6} "
              f"{sum(row['truly_short']):6} {sum(row['not_short']):9} {row['seconds']:8.2f} "
              f"{row['peak_live_bytes'] / GIB:9.3f}G {row['peak_reserved_bytes'] / GIB:13.3f}G")
    training = [row for row in rows if row.get("part") in ("limits", "small")]
    if training:
        print(f"\n{'job':12} {'allocator':11} {'limit':>5} {'runs':>4} {'identical':9} {'died at':>7} {'time/free':>9} "
              f"{'quartiles':>13} {'total':>6} {'peak live':>10} {'peak reserved':>14} {'driver ms':>9}")
    for row in training:
        print(training_line(row))


def training_line(row):
    limit = "none" if row["factor"] is None else f"{row['factor']:.2f}"
    start = f"{row['job']:12} {row['allocator']:11} {limit:>5} {row['runs']:4}"
    if not row["runs"]:
        return f"{start} not run: it dies with more"
    died = "-" if row["died"] is None else str(row["died"]["step"])
    over, times = row.get("over_free"), f"{'-':>9} {'-':>13} {'-':>6}"
    if over is not None:
        times = f"{over['median']:9.4f} {over['low']:6.3f}-{over['high']:6.3f} {over['total']:6.3f}"
    driver = row.get("driver_us_after_warmup")
    return (f"{start} {str(row['identical']):9} {died:>7} {times} {row['peak_live_bytes'] / GIB:9.3f}G "
            f"{row['peak_reserved_bytes'] / GIB:13.3f}G {'-' if driver is None else f'{driver / 1000:.1f}':>9}")
