#!/usr/bin/env python3
"""What it costs a training job on a GPU that its metrics are scraped.

usage: scrape.py [--library LIBNOFRAG] [--steps N] [--rounds N] [--rate N]

A job with the metrics server on runs by turns unscraped and scraped, `--rate` times a second (200): so often
that the cost shows beside the noise. What one scrape a second costs is that, divided by the rate. Prints a
table and writes scrape.json to $OUT (default build/gpu/scrape); exit 1 if a bar is missed, 77 without a GPU or
PyTorch.
"""

import argparse
import http.client
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
MOST_SHARE = 0.001  # of a step, scraped once a second
PORT = 19400


class Scraper(threading.Thread):
    """Reads the page `rate` times a second while there is one."""

    def __init__(self, rate):
        super().__init__(daemon=True)
        self.rate, self.times, self.over, self.page = rate, [], threading.Event(), ""

    def run(self):
        due = time.perf_counter()
        while not self.over.wait(max(0.0, due - time.perf_counter())):
            due = max(due + 1 / self.rate, time.perf_counter() - 1)
            begin = time.perf_counter()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
                    page = answer.read().decode()
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)  # not there yet, or not any more
                continue
            if "nofrag_" not in page:
                time.sleep(0.05)
                continue
            self.page = page
            self.times.append(time.perf_counter() - begin)


def run_job(args, scraper=None):
    command = [sys.executable, "-u", str(HERE / "gpt_train.py"), "--allocator", "nofrag", "--library", args.library,
               "--steps", str(args.steps), "--layers", "8"]
    environment = {**os.environ, "NOFRAG_METRICS": str(PORT)}
    if scraper is not None:
        scraper.start()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    if scraper is not None:
        scraper.over.set()
        scraper.join()
    if done.returncode == SKIPPED:
        print(done.stdout.strip())
        sys.exit(SKIPPED)
    results = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode != 0 or not results:
        sys.exit(f"the job failed with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return json.loads(results[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/release/lib/libnofrag.so"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=200)
    args = parser.parse_args()
    if shutil.which("nvidia-smi") is None or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0:
        print("skipped: there is no GPU")
        return SKIPPED
    plain, scraped, times, page = [], [], [], ""
    for _ in range(args.rounds):
        plain.append(run_job(args))
        scraper = Scraper(args.rate)
        scraped.append(run_job(args, scraper))
        times += scraper.times
        page = scraper.page or page
    seconds = [statistics.median(result["seconds"] for result in results) for results in (plain, scraped)]
    per_run = len(times) / args.rounds
    rate = per_run / statistics.median(result["seconds"] for result in scraped)
    share = (seconds[1] / seconds[0] - 1) / min(rate, args.rate)
    identical = all(result["exact"] == plain[0]["exact"] for result in plain + scraped)
    found = "nofrag_" in page and len(times) > 100
    document = {"plain_s": [r["seconds"] for r in plain], "scraped_s": [r["seconds"] for r in scraped],
                "scrapes_a_run": per_run, "scrape_ms": 1000 * statistics.median(times) if times else None,
                "page_bytes": len(page), "share_at_one_a_second": share}
    out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "gpu" / "scrape")
    out.mkdir(parents=True, exist_ok=True)
    (out / "scrape.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"step time, scraped {per_run:.0f} times a run: {seconds[1] / seconds[0]:.4f} times the unscraped one "
          f"({min(r['seconds'] for r in plain):.3f} to {max(r['seconds'] for r in plain):.3f} s unscraped)")
    print(f"one scrape a second costs {100 * share:.4f} % of a step (at most {100 * MOST_SHARE} %)")
    print(f"a scrape takes {document['scrape_ms'] or 0:.2f} ms and brings {len(page)} bytes; results identical: {identical}")
    return 0 if found and identical and share <= MOST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
