#!/usr/bin/env python3
"""Do the judgements of bars.py and oom.py bite? Results are made up here: no GPU, no PyTorch."""

import argparse
import pathlib
import re
import tempfile
import unittest

import bars
import oom
import run_all

GIB = 2**30


def report(**changed):
    numbers = {"requested": 2 * GIB, "driver_free": 60 * GIB, "driver_total": 80 * GIB, "live": 11 * GIB, "pending": 0,
               "reserved": 12 * GIB, "limit": 13 * GIB, "free_handles": GIB // 2, "stranded": GIB // 2,
               "largest_free_run": 0, "free_ends": 3 * oom.GRANULE, "composable": 0, "limit_reached": 1}
    return oom.judge({**numbers, **changed})


class Verdicts(unittest.TestCase):
    def test_what_idle_handles_and_the_limit_cover_is_not_short(self):
        self.assertEqual(report(requested=GIB * 3 // 2)["verdict"], "not short")

    def test_one_byte_more_is_short(self):
        self.assertEqual(report(requested=GIB * 3 // 2 + 1)["verdict"], "short")

    def test_the_best_ends_of_two_handles_count_and_no_others(self):
        ends = 3 * oom.UNIT
        self.assertEqual(report(requested=GIB * 3 // 2 + ends, composable=ends)["verdict"], "not short")
        self.assertEqual(report(requested=GIB * 3 // 2 + ends + 1, composable=ends)["verdict"], "short")

    def test_a_request_counts_rounded_up(self):
        self.assertEqual(report(requested=GIB * 3 // 2 + 1, composable=oom.UNIT - 1)["verdict"], "short")
        self.assertEqual(report(requested=GIB * 3 // 2 + 1, composable=oom.UNIT)["verdict"], "not short")

    def test_the_driver_counts_where_it_has_less_than_the_limit_allows(self):
        self.assertEqual(report(requested=GIB * 3 // 2, driver_free=0)["verdict"], "short")
        self.assertEqual(report(requested=GIB, limit=oom.NO_LIMIT, driver_free=GIB)["verdict"], "not short")

    def test_room_counts_in_whole_granules(self):
        self.assertEqual(report(limit=12 * GIB + 1)["obtainable"], GIB // 2)

    def test_the_structure_is_that_of_the_header(self):
        header = (pathlib.Path(__file__).parents[2] / "include/nofrag/nofrag.h").read_text()
        body = header[header.index("typedef struct nofrag_oom_report {"):header.index("} nofrag_oom_report;")]
        fields = re.findall(r"^  \w+\*? (\w+)(?:\[\d\])?;", body, re.MULTILINE)
        ours = ["reserved" if name == "spare" else name + "_bytes" if name in oom._U64 else name
                for name, _ in oom.Report._fields_]
        self.assertEqual(fields, ours)


class Judgements(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.runner = object.__new__(run_all.Runner)
        self.runner.out = pathlib.Path(folder.name)
        self.runner.args = argparse.Namespace(quick=False, rounds=1, library="none")
        self.runner.rows, self.runner.problems, self.runner.skips = [], [], []

    def run_of(self, exact=("a", "b", "c"), died=None, step=1.0):
        return {"exact": list(exact), "died": died, "limit_bytes": None, "steps_per_s": 1.0 / step, "warmup": 1,
                "peak_live_bytes": GIB, "peak_reserved_bytes": GIB, "driver_us_after_warmup": 0.0, "step_s": [9, step, step]}

    def judge(self, **runs):
        free = {("nofrag", None): [self.run_of()]}
        made = {("nofrag", 1.02): runs.get("limited", [self.run_of()]), ("native", 1.02): runs.get("native", [self.run_of()])}
        bars.judge(self.runner, "limits", "gpt_train", {**free, **made}, bars.step_ratio)
        return self.runner.problems

    def test_equal_runs_have_no_problem_and_warm_up_is_not_timed(self):
        self.assertEqual(self.judge(limited=[self.run_of(step=1.5)]), [])
        row = next(row for row in self.runner.rows if (row["allocator"], row["factor"]) == ("nofrag", 1.02))
        self.assertEqual(row["over_free"]["median"], 1.5)

    def test_a_loss_that_differs_is_a_problem_under_any_allocator(self):
        self.assertIn("differ", self.judge(native=[self.run_of("abd")])[0])

    def test_a_death_is_a_problem_under_nofrag_alone(self):
        dead = self.run_of("a", {"step": 1, "message": "", "report": None})
        self.assertEqual(self.judge(native=[dead]), [])
        self.assertIn("out of memory at step 1", self.judge(limited=[dead])[0])

    def serve(self, allocator_of_loss, limit_of_loss, verdict="short", answers="xyz"):
        def series(runs, ahead=True):
            for name, _, _ in runs:
                lost = name.endswith(allocator_of_loss) and f"-{limit_of_loss}-" in name
                yield {"answers": list(answers if lost else "xyz"), "completed": 3 - lost, "lost": int(lost), "seconds": 1.0,
                       "truly_short": int(lost and verdict == "short"), "not_short": int(lost and verdict == "not short"),
                       "peak_live_bytes": GIB, "peak_reserved_bytes": GIB, "losses": []}

        self.runner.series = series
        bars.serve(self.runner)
        return self.runner.problems

    def test_a_request_truly_short_may_be_lost_below_the_ample_limit(self):
        self.assertEqual(self.serve("nofrag", 13, "short"), [])

    def test_one_that_could_have_been_composed_may_not(self):
        self.assertIn("could have been composed", self.serve("nofrag", 13, "not short")[0])

    def test_nothing_may_be_lost_under_the_ample_limit(self):
        self.assertIn("1 requests lost", self.serve("nofrag", 16, "short")[0])

    def test_peers_may_lose_but_answer_wrongly_nobody_may(self):
        self.assertEqual(self.serve("native", 16), [])
        self.assertIn("other answers", self.serve("expandable", 13, answers="xyw")[0])


if __name__ == "__main__":
    unittest.main()
