#!/usr/bin/env python3
"""The policy study: memory and driver time of an engine under one or more configurations.

usage: study.py [--nofrag build/release/bin/nofrag] [--conf k:v,..]... [--sweep key:v1,v2,..]...
                [--only REGEX] [--quick] [--no-cases] [TRACE...]

Replays on sim:h100-80g the recorded traces of bench/traces, the same with sizes scaled, those of
synthetic.py and any TRACE given, and prints Markdown; the same program gives the same tables.
  reserved/live      at unlimited capacity
  minimum            smallest capacity over live, in steps of 0.1 %, from both sides: the first that
                     completes, and the first from which all up to 1.030 do
  growth             driver ms of the trace's first half for each GiB of peak reserved
  steady             driver time of its second half, as a share, at unlimited capacity, 1.05 and 1.02
A **bold** figure misses a bar. --sweep makes a configuration for every combination of values.
--quick: recorded traces only, no minimum; one row a configuration, in each cell reserved/live, driver
time as a share of the trace, and in brackets that of its second half.
"""

import argparse
import itertools
import pathlib
import re
import sys

from replays import ROOT, STEPS, UNLIMITED, Aborted, Runner, all_traces

sys.path.append(str(ROOT / "tests/cases"))
import cases_test  # noqa: E402

PEERS = ("torch-native", "torch-expandable")
# Bars: most that a figure may be.
RESERVED_MEAN, RESERVED_WORST, RESERVED_STREAMS = 1.010, 1.020, 1.040
MINIMUM_MEAN, MINIMUM_STREAMS, MINIMUM_OVER_EXPANDABLE = 1.006, 1.020, 0.002
GROWTH_MS_PER_GIB = 6.0
STEADY_PERCENT = {UNLIMITED: 0.5, "1.050x": 1.0, "1.020x": 2.5}
EPSILON = 1e-9


def grid_point(step):
    return f"{1 + step / 1000:.3f}x"


class Figures:
    """What one allocator does with one trace."""

    def __init__(self, runner, trace, allocator, conf):
        self.trace, self.allocator = trace, allocator
        self.runner, self.conf = runner, conf
        capacities = dict.fromkeys([*STEADY_PERCENT, *map(grid_point, STEPS)])
        self.futures = {capacity: runner.submit(trace, allocator, conf, capacity) for capacity in capacities}
        self.below = self.above = None  # minimum capacity over live, from either side

    def settle(self):
        self.runs = {capacity: future.result() for capacity, future in self.futures.items()}
        done = [self.runs[grid_point(step)]["completed"] for step in STEPS]
        if any(done):
            self.below = 1 + done.index(True) / 1000
        else:
            self.below = self.runner.submit(self.trace, self.allocator, self.conf, "min").result()["over_live"]
        failed = [step for step in STEPS if not done[step]]
        first = failed[-1] + 1 if failed else 0
        self.above = 1 + first / 1000 if first in STEPS else max(self.below, 1.031)
        return self

    @property
    def several_streams(self):
        return self.runs[UNLIMITED]["streams"] > 1

    @property
    def reserved(self):
        return self.runs[UNLIMITED]["reserved_over_live"]

    @property
    def growth(self):
        run = self.runs[UNLIMITED]
        return sum(run["driver_us_quarters"][:2]) / 1000 / (run["peak_reserved_bytes"] / 2**30)

    def steady(self, capacity):
        """Percent of the second half; None where the run did not complete."""
        run = self.runs[capacity]
        if not run["completed"]:
            return None
        return sum(run["driver_us_quarters"][2:]) / (run["duration_us"] / 2) * 100


class Verdict:
    """Collects the bars of one configuration."""

    def __init__(self):
        self.rows = []

    def most(self, bar, what, value, limit, digits):
        self.rows.append((bar, what, f"{value:.{digits}f}", f"{limit:.{digits}f}", value <= limit + EPSILON))

    def all_of(self, bar, what, misses, count):
        shown = "none" if not misses else ", ".join(misses)
        self.rows.append((bar, what, f"{count - len(misses)} of {count}; missing: {shown}", "all", not misses))

    def print(self):
        print("\n| bar | figure | value | at most | |\n|---|---|---|---|---|")
        for bar, what, value, limit, held in self.rows:
            print(f"| {bar} | {what} | {value} | {limit} | {'holds' if held else '**misses**'} |")


def mean(values):
    return sum(values) / len(values)


def cell(value, digits, misses):
    text = f"{value:.{digits}f}"
    return f"**{text}**" if misses else text


def reserved_bar(ours):
    if ours.trace.group != "real":
        return None
    return RESERVED_STREAMS if ours.several_streams else RESERVED_WORST


def above_expandable(ours, expandable):
    most = MINIMUM_OVER_EXPANDABLE + EPSILON
    return ours.below > expandable.below + most or ours.above > expandable.above + most


def steady_misses(ours, capacity):
    value = ours.steady(capacity)
    return value is None or value > STEADY_PERCENT[capacity] + EPSILON


def table_row(ours, native, expandable):
    bar = reserved_bar(ours)
    cells = [ours.trace.group, ours.trace.name]
    cells.append(cell(ours.reserved, 4, bar is not None and ours.reserved > bar + EPSILON))
    worse = above_expandable(ours, expandable)
    cells += [cell(ours.below, 3, worse), cell(ours.above, 3, worse)]
    cells.append(cell(ours.growth, 2, ours.growth > GROWTH_MS_PER_GIB + EPSILON))
    for capacity in STEADY_PERCENT:
        value = ours.steady(capacity)
        cells.append("**fails**" if value is None else cell(value, 2, steady_misses(ours, capacity)))
    cells += [f"{native.reserved:.3f}", f"{native.below:.3f}"]
    cells += [f"{expandable.reserved:.3f}", f"{expandable.below:.3f}", f"{expandable.above:.3f}"]
    cells += [f"{expandable.growth:.2f}"]
    return "| " + " | ".join(cells) + " |"


def judge(figures):
    verdict = Verdict()
    ours = [row[0] for row in figures]
    real = [f for f in ours if f.trace.group == "real"]
    single = [f for f in real if not f.several_streams]
    if single:
        verdict.most(1, "reserved/live, mean of the recorded single-stream jobs", mean([f.reserved for f in single]), RESERVED_MEAN, 4)
        verdict.most(1, "the same, worst", max(f.reserved for f in single), RESERVED_WORST, 4)
        verdict.most(2, "minimum from below, their mean", mean([f.below for f in single]), MINIMUM_MEAN, 4)
        verdict.most(2, "minimum from above, their mean", mean([f.above for f in single]), MINIMUM_MEAN, 4)
    for f in real:
        if f.several_streams:
            verdict.most(1, f"reserved/live of {f.trace.name}", f.reserved, RESERVED_STREAMS, 4)
            verdict.most(2, f"minimum from above of {f.trace.name}", f.above, MINIMUM_STREAMS, 3)
    worse = [own.trace.name for own, _, expandable in figures if above_expandable(own, expandable)]
    verdict.all_of(2, "minimum at most 0.002 above expandable's", worse, len(ours))
    verdict.most(3, "growth, worst, ms a GiB", max(f.growth for f in ours), GROWTH_MS_PER_GIB, 2)
    for capacity, most in STEADY_PERCENT.items():
        where = capacity or "unlimited"
        misses = [f.trace.name for f in ours if steady_misses(f, capacity)]
        verdict.all_of(3, f"steady half at {where} at most {most} %", misses, len(ours))
    return verdict


def print_groups(figures):
    print("\n| group | traces | reserved/live | minimum from below | from above | growth |\n|---|---|---|---|---|---|")
    for group in dict.fromkeys(row[0].trace.group for row in figures):
        rows = [row[0] for row in figures if row[0].trace.group == group]
        means = [mean([getattr(f, name) for f in rows]) for name in ("reserved", "below", "above", "growth")]
        print(f"| {group}, mean | {len(rows)} | {means[0]:.4f} | {means[1]:.4f} | {means[2]:.4f} | {means[3]:.2f} |")


def settle(rows):
    """Prints each row once its runs are done: the rows, and the traces at which the program broke."""
    settled, aborted = [], []
    for row in rows:
        trace = row[0].trace
        try:
            settled.append([figures.settle() for figures in row])
            print(table_row(*settled[-1]), flush=True)
        except Aborted as error:
            aborted.append(trace.name)
            print(f"| {trace.group} | {trace.name} | **aborts** |" + " |" * 12, flush=True)
            print(error, file=sys.stderr)
    return settled, aborted


def study(runner, traces, conf, cases):
    print(f"\n## `{conf or 'default'}`\n")
    rows = [[Figures(runner, trace, name, conf if name == "nofrag" else "") for name in ("nofrag", *PEERS)] for trace in traces]
    print("| group | trace | reserved/live | minimum | from above | growth | steady | at 1.05 | at 1.02 | native | its minimum ", end="")
    print("| expandable | its minimum | from above | growth |\n" + "|---" * 15 + "|")
    rows, aborted = settle(rows)
    runner.save()
    if not rows:
        raise SystemExit("no trace came to its end")
    print_groups(rows)
    verdict = judge(rows)
    verdict.all_of(0, "the program stays up", aborted, len(rows) + len(aborted))
    ended = []
    if cases:
        manifest = cases_test.checked_manifest()["cases"]
        ended = cases_test.outcomes(runner.nofrag, conf, manifest)
        verdict.all_of(4, "field cases end as they must", [case["id"] for case, _, wrong in ended if wrong], len(ended))
    verdict.print()
    if ended:
        print("\nThe field cases:\n")
        cases_test.print_table(ended)
    return verdict


def compare(verdicts):
    """The bars of several configurations, a column each."""
    print("\n## Side by side\n\n| bar | figure | at most | " + " | ".join(f"`{conf or 'default'}`" for conf in verdicts) + " |")
    print("|---" * (3 + len(verdicts)) + "|")
    figures = dict.fromkeys((bar, what, limit) for verdict in verdicts.values() for bar, what, _, limit, _ in verdict.rows)
    for bar, what, limit in figures:
        cells = []
        for verdict in verdicts.values():
            found = [(value, held) for _, name, value, _, held in verdict.rows if name == what] or [("-", True)]
            value, held = found[0]
            cells.append(value if held else f"**{value}**")
        print(f"| {bar} | {what} | {limit} | " + " | ".join(cells) + " |")


def quick(runner, traces, confs):
    print("| configuration | " + " | ".join(trace.name for trace in traces) + " |")
    print("|---" * (len(traces) + 1) + "|")
    for conf in confs:
        runs = [runner.submit(trace, "nofrag", conf, UNLIMITED) for trace in traces]
        cells = []
        for run in (future.result() for future in runs):
            share = run["driver_us"] / run["duration_us"] * 100
            steady = sum(run["driver_us_quarters"][2:]) / (run["duration_us"] / 2) * 100
            cells.append(f"{run['reserved_over_live']:.3f}, {share:.2f} % ({steady:.2f})")
        print(f"| {conf or 'default'} | " + " | ".join(cells) + " |", flush=True)


def configurations(confs, sweeps):
    """Every --conf with every combination of the swept values."""
    axes = []
    for sweep in sweeps:
        key, _, values = sweep.partition(":")
        axes.append([f"{key}:{value}" for value in values.split(",")])
    found = []
    for conf in confs or [""]:
        for combination in itertools.product(*axes):
            found.append(",".join(filter(None, [conf, *combination])))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nofrag", default=str(ROOT / "build/release/bin/nofrag"))
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--sweep", action="append", default=[], metavar="key:v1,v2,..")
    parser.add_argument("--only", default="", metavar="REGEX", help="traces whose name it matches")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-cases", action="store_true")
    parser.add_argument("traces", nargs="*", type=pathlib.Path, metavar="TRACE")
    args = parser.parse_args()
    traces = all_traces(args.nofrag, args.quick, args.traces)
    traces = [trace for trace in traces if re.search(args.only, trace.name)]
    if not traces:
        raise SystemExit(f"no trace's name matches {args.only!r}")
    runner = Runner(args.nofrag)
    confs = configurations(args.conf, args.sweep)
    if args.quick:
        quick(runner, traces, confs)
        return
    verdicts = {conf: study(runner, traces, conf, not args.no_cases) for conf in confs}
    if len(verdicts) > 1:
        compare(verdicts)


if __name__ == "__main__":
    try:
        main()
    except Aborted as problem:
        raise SystemExit(str(problem)) from None
