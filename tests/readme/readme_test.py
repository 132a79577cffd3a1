#!/usr/bin/env python3
"""Runs what README.md tells people to type, and compares the sample output with the real one.

usage: readme_test.py [--update]      (after a release build; runs in the repository's root)
--update writes the real output into README.md instead.

Blocks of ```sh are run whole, by bash. Blocks of ```python run where PyTorch and a GPU are there and
are compiled elsewhere. A ```text block that follows `<!-- output of: COMMAND -->` must be what that
command prints, but for spacing and for columns of measured time.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^(?:<!-- output of: (?P<of>.*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)

# Commands that this test cannot run, with the reason.
NOT_RUN_HERE = {"make test": "this test is a part of it"}


# Appended to README's Python: PyTorch computes, and nofrag saw it allocate.
CHECK_TORCH = """
import torch
assert torch.ones(8, device="cuda").sum().item() == 8
assert nofrag_torch.stats()["devices"][0]["allocations"] > 0
"""


def blocks(kind):
    return [match for match in BLOCK.finditer(README) if match["kind"] == kind]


def bash(script):
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )


@contextlib.contextmanager
def nothing_left_behind():
    """Removes the files that the commands made in the root (README's my_job.csv)."""
    before = set(os.listdir(ROOT))
    try:
        yield
    finally:
        for name in set(os.listdir(ROOT)) - before:
            (ROOT / name).unlink()


def gpu_and_torch():
    probe = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 1)"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0


def stable(line):
    """A line without what differs between runs: spacing, and the host's time an event (ns/event)."""
    return re.sub(r" \d+ (completed|out of memory)", r" \1", re.sub(r"\s+", " ", line).strip())


class Readme(unittest.TestCase):
    def test_shell_blocks(self):
        self.assertGreaterEqual(len(blocks("sh")), 4)
        with nothing_left_behind():
            for block in blocks("sh"):
                script = block["text"].strip()
                if script in NOT_RUN_HERE:
                    continue
                with self.subTest(script):
                    done = bash(script)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_command_is_in_a_block_that_runs(self):
        commands = " ".join(block["text"] for block in blocks("sh"))
        prose = BLOCK.sub("", README)
        for command in re.findall(r"`((?:make|nofrag) [^`]+)`", prose):
            self.assertIn(command, commands)

    def test_options_in_the_prose_exist(self):
        usage = bash("build/release/bin/nofrag replay --help")
        self.assertEqual(usage.returncode, 0, usage.stderr)
        for option in re.findall(r"`(--[\w-]+)", BLOCK.sub("", README)):
            self.assertIn(option, usage.stdout)

    def test_what_the_recorded_jobs_need(self):
        stated = re.search(r"recorded jobs run to the end on a device ([\d.]+) to ([\d.]+) % larger", README)
        traces = " ".join(f"bench/traces/{path.name}" for path in sorted((ROOT / "bench/traces").glob("*.nofrag")))
        done = bash(f"build/release/bin/nofrag replay {traces} --allocator nofrag --min-capacity --quiet --json -")
        self.assertEqual(done.returncode, 0, done.stderr)
        more = [100 * (trace["min_capacity"][0]["over_live"] - 1) for trace in json.loads(done.stdout)["traces"]]
        self.assertEqual((f"{min(more):.1f}", f"{max(more):.1f}"), stated.groups())

    def test_sample_output(self):
        samples = [block for block in blocks("text") if block["of"]]
        self.assertEqual(len(samples), 1)
        for sample in samples:
            done = bash(sample["of"])
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            printed = {stable(line) for line in done.stdout.splitlines()}
            lines = [stable(line) for line in sample["text"].splitlines() if line.strip()]
            self.assertGreater(len(lines), 3, "the sample is empty")
            for line in lines:
                self.assertIn(line, printed, f"`{sample['of']}` does not print this line any more (--update)")

    def test_python_blocks(self):
        self.assertGreaterEqual(len(blocks("python")), 1)
        for block in blocks("python"):
            compile(block["text"], "README.md", "exec")

    @unittest.skipUnless(gpu_and_torch(), "needs PyTorch and a GPU")
    def test_python_blocks_run(self):
        for block in blocks("python"):
            script = block["text"] + CHECK_TORCH
            done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


def update():
    (sample,) = [block for block in blocks("text") if block["of"]]
    done = bash(sample["of"])
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    # The table is what follows the last command that the target echoes.
    table = re.split(r"^build/release/bin/nofrag .*\n", done.stdout, flags=re.MULTILINE)[-1]
    start, end = sample.span("text")
    (ROOT / "README.md").write_text(README[:start] + table.rstrip() + "\n" + README[end:], encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
        sys.exit()
    unittest.main(verbosity=2)
