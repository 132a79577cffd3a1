#!/usr/bin/env python3
"""The page that `nofrag report` writes, in a headless browser: does it load, does the slider work, are its
numbers those of the JSON?

usage: report_test.py --program NOFRAG --traces DIR --seeds DIR      exit 77 where there is no browser

Without a browser the page is still looked at as text: nothing is loaded from anywhere, and the data in it are the
replay's. Those checks run everywhere; only the rest is skipped, and said to be.
"""

import argparse
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = argparse.Namespace()


class Page(html.parser.HTMLParser):
    """Attributes of <body> and of elements with an id, texts of elements with an id, and tables' cells."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.body, self.attributes, self.texts, self.tables = {}, {}, {}, {}
        self.outside, self.open_ids, self.table = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.outside += [values[name] for name in ("src", "href") if name in values]
        if tag == "body":
            self.body = values
        if "id" in values:
            self.attributes[values["id"]] = values
            self.open_ids.append((tag, values["id"]))
            self.texts[values["id"]] = ""
        if tag == "table":
            self.table = self.tables.setdefault(values.get("id"), [])
        if tag == "tr" and self.table is not None:
            self.table.append([])
        if tag in ("td", "th") and self.table:
            self.table[-1].append({"text": "", "value": values.get("data-value")})

    def handle_endtag(self, tag):
        if self.open_ids and self.open_ids[-1][0] == tag:
            self.open_ids.pop()
        if tag == "table":
            self.table = None

    def handle_data(self, data):
        for _, name in self.open_ids:
            self.texts[name] += data
        if self.table and self.table[-1]:
            self.table[-1][-1]["text"] += data


def browser():
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def report(self, trace, *options):
        """(page as text, the replay's JSON)"""
        page, result = self.folder / "report.html", self.folder / "replay.json"
        command = [OPTIONS.program, "report", str(trace), "-o", str(page), "--json", str(result), "--quiet", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "")
        return page.read_text(encoding="utf-8"), json.loads(result.read_text(encoding="utf-8"))

    def data(self, page, name):
        found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
        return json.loads(found[1])

    def rendered(self, moment=None):
        link = (self.folder / "report.html").as_uri() + (f"#moment={moment}" if moment is not None else "")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
        done = subprocess.run([browser(), *flags, f"--user-data-dir={self.folder / 'profile'}", link],
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        page = Page(done.stdout)
        self.assertEqual(page.body.get("data-ready"), "yes", page.body.get("data-error", done.stderr[-500:]))
        self.assertNotIn("data-error", page.body)
        return page

    def test_nothing_is_loaded_and_the_data_are_the_replays(self):
        text, result = self.report(OPTIONS.traces / "gpt_varlen.nofrag", "--allocator", "nofrag,torch-native")
        self.assertEqual(Page(re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)).outside, [])
        self.assertIn("default-src 'none'", text)
        self.assertEqual(self.data(text, "replay"), result)
        details, trace = self.data(text, "details")[0], result["traces"][0]
        self.assertEqual(max(details["live"]["highest"]), trace["peak_live_bytes"])
        self.assertEqual(details["live"]["last"][-1], trace["live_at_end_bytes"])
        self.assertEqual(sum(one["blocks"] for one in details["sizes"]), trace["allocations"])
        self.assertEqual(sum(one["blocks"] for one in details["lifetimes_us"]), trace["allocations"])
        peak = [moment for moment in details["map"]["moments"] if moment["is_peak"]]
        self.assertEqual([moment["live_bytes"] for moment in peak], [trace["peak_live_bytes"]])
        for run, told in zip(trace["runs"], details["runs"]):
            self.assertLessEqual(max(told["reserved"]), run["peak_reserved_bytes"])
            self.assertGreater(max(told["reserved"]), 0.9 * run["peak_reserved_bytes"])

    def test_a_name_cannot_end_the_script(self):
        trace = self.folder / "a<b>&.csv"
        trace.write_text("time_us,op,id,size,stream\n0,a,0,5000000,0\n9,f,0,5000000,0\n")
        text, result = self.report(trace)
        self.assertNotIn("a<b>", text)
        self.assertEqual(self.data(text, "replay"), result)

    @unittest.skipUnless(browser(), "no browser")
    def test_values_on_the_page_are_those_of_the_json(self):
        _, result = self.report(OPTIONS.traces / "gpt_varlen.nofrag")
        page, trace = self.rendered(), result["traces"][0]
        rows = page.tables["runs"][1:]
        shown = {row[0]["text"].split(" (")[0]: int(row[1]["value"]) for row in rows}
        expected = {run["allocator"]: run["peak_reserved_bytes"] for run in trace["runs"]}
        expected["peak live"] = trace["peak_live_bytes"]
        expected["whole granules"] = trace["granule_bound_bytes"]
        self.assertEqual(shown, expected)
        self.assertEqual({row[6]["text"] for row in rows[:3]}, {"completed"})
        self.assertEqual(int(page.attributes["now"]["data-live"]), trace["peak_live_bytes"])
        self.assertIn("(the peak)", page.texts["now"])
        self.assertGreater(len(page.tables["biggest"]), 10)

    @unittest.skipUnless(browser(), "no browser")
    def test_the_slider_shows_other_moments(self):
        text, _ = self.report(OPTIONS.seeds / "torch_snapshot_fuzz" / "torch_2.4.pickle", "--allocator", "nofrag")
        moments = self.data(text, "details")[0]["map"]["moments"]
        for number in (0, len(moments) - 1):
            page = self.rendered(number)
            self.assertEqual(int(page.attributes["now"]["data-live"]), moments[number]["live_bytes"])
            self.assertEqual(int(page.attributes["now"]["data-blocks"]), moments[number]["blocks"])
        self.assertNotEqual(moments[0]["live_bytes"], moments[-1]["live_bytes"])
        names = [row[0]["text"] for row in page.tables["groups"][1:]]
        self.assertIn("job/train.py:77 step", names)
        self.assertIn("there before the recording", page.texts["warnings"])
        self.assertIn("Recorded: out of memory", page.texts["oom"])

    @unittest.skipUnless(browser(), "no browser")
    def test_refusals_name_the_limit_and_none_is_passed_over(self):
        text, _ = self.report(OPTIONS.seeds / "torch_snapshot_fuzz" / "torch_2.4.pickle", "--allocator", "nofrag")
        details = self.data(text, "details")
        mark = {"event": 3, "time_us": 5, "requested_bytes": 6 << 20, "free_bytes": 75 << 30, "limit_bytes": 4 << 30}
        for marks, rest in ((11 * [mark], "1 more refusal after these 10, 11 in all."),
                            (1210 * [mark], "1,200 more refusals after these 10, 1,210 in all.")):  # fmt: skip
            details[0]["marks"] = marks
            changed = re.sub(r'(id="details">).*?(</script>)', lambda m: m[1] + json.dumps(details) + m[2], text, flags=re.DOTALL)
            (self.folder / "report.html").write_text(changed, encoding="utf-8")
            said = self.rendered().texts["oom"]
            self.assertEqual(said.count("6.00 MiB requested, refused by the job's own limit of 4.00 GiB, "
                                        "75.00 GiB free on the device."), 10, said)  # fmt: skip
            self.assertIn(rest, said)
            self.assertIn("is not in the numbers above", said)

    @unittest.skipUnless(browser(), "no browser")
    def test_out_of_memory_and_several_devices(self):
        trace = OPTIONS.seeds / "torch_snapshot_fuzz" / "torch_two_devices.pickle.gz"
        self.report(trace, "--capacity", "6MiB", "--allocator", "nofrag,driver")
        page = self.rendered()
        self.assertIn("nofrag ran out of memory at event", page.texts["oom"])
        self.assertIn("Why, for nofrag: ", page.texts["oom"])
        self.assertIn("device 2", page.texts["trace"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--traces", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=pathlib.Path, required=True)
    parser.parse_args(namespace=OPTIONS)
    result = unittest.main(argv=[sys.argv[0], "-v"], exit=False).result
    if result.skipped:
        print(f"{len(result.skipped)} of {result.testsRun} tests skipped: no browser ({', '.join(BROWSERS)})")
    if not result.wasSuccessful():
        return 1
    return SKIPPED if result.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
