#!/usr/bin/env python3
"""What the program says about files: names that look like options, names that would break a line, inputs that are
nothing to explain.

usage: messages_test.py --nofrag PROGRAM [--line-mib N]
"""

import argparse
import gzip
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
LINE_MIB = 20  # with twice as much, part of the text is not kept
TRACE = "time_us,op,id,size,stream\n0,a,0,1000,0\n10,a,1,5000000,0\n20,f,0,1000,0\n"
ODD = "new\nline\x1b[31m\ttab\u009b\x7f"
SHOWN = r"new\nline\x1b[31m\ttab\xc2\x9b\x7f"


class Messages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.write("good.csv", TRACE)

    def write(self, name, content):
        content = content if isinstance(content, bytes) else content.encode()
        (self.folder / name).write_bytes(content)

    def nofrag(self, *words):
        return subprocess.run([PROGRAM, *words], cwd=self.folder, capture_output=True, text=True, errors="surrogateescape",
                              stdin=subprocess.DEVNULL, timeout=120)

    def refused(self, status, words, *texts):
        done = self.nofrag(*words)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Anofrag: [^\x00-\x1f\x7f]+\n\Z", words)
        for text in texts:
            self.assertIn(text, done.stderr, words)
        return done.stderr


class Sizes(Messages):
    def test_more_than_can_be_simulated(self):
        self.write("petabyte.csv", "time_us,op,id,size,stream\n0,a,1,1125899906842624,0\n1,f,1,1125899906842624,0\n")
        for command in (["replay", "good.csv"], ["explain", "good.csv"]):
            self.refused(2, [*command, "--capacity", "2000TiB"], "the largest device that can be simulated has 16 TiB")
        done = self.nofrag("replay", "petabyte.csv", "--min-capacity", "--allocator", "torch-native,driver,driver-async,nofrag")
        self.assertEqual((done.returncode, done.stderr), (4, ""))


class Names(Messages):
    def test_convert_says_what_it_needs(self):
        example = "as in: nofrag convert trace.csv --to nofrag trace.nofrag"
        self.refused(2, ["convert", "good.csv"], "--to is missing", example)
        self.refused(2, ["convert", "good.csv", "--to", "csv"], "OUT is missing", example)
        for option in ("-o", "--output"):
            self.refused(2, ["convert", "good.csv", option, "out.csv"], f"unknown option '{option}'", example)

    def test_help_shows_examples_of_its_own_command(self):
        commands = ["replay", "report", "convert", "doctor", "explain", "run", "top"]
        whole = self.nofrag("--help").stdout
        for command in commands:
            self.assertIn(f"  nofrag {command}", whole)
            text = self.nofrag(command, "--help").stdout
            end = text[text.index("\nExample"):]
            self.assertIn(f"  nofrag {command}", end)
            self.assertIn("Exit codes: ", end)
            for other in commands:
                self.assertEqual(f"nofrag {other}" in end, other == command, (command, other))
        self.assertNotIn("127", self.nofrag("replay", "--help").stdout)

    def test_nothing_stands_before_a_command(self):
        for words in (["--limit", "20GiB", "run", "true"], ["--bogus", "run", "true"], ["foo", "run", "true"],
                      ["--quiet", "replay", "good.csv"]):
            command = "replay" if "replay" in words else "run"
            self.refused(2, words, f"'{words[0]}' stands before the command '{command}'; options go behind it: nofrag {command}")
        self.assertEqual(self.nofrag("--version").returncode, 0)

    def test_a_file_that_looks_like_an_option(self):
        for command in (["replay", "-x.csv"], ["explain", "-x.csv"], ["report", "-x.csv", "-o", "r.html"],
                        ["convert", "--to", "csv", "-x.csv", "out"], ["run", "-x.csv"]):
            self.refused(2, command, "unknown option '-x.csv'", "; a file called '-x.csv' is written './-x.csv'")
        self.assertNotIn("is written", self.refused(2, ["replay", "--jsn", "good.csv"], "did you mean '--json'?"))
        self.assertNotIn("is written", self.refused(2, ["top", "-n", "1"], "unknown option '-n'"), "top reads no files")
        self.write("--jsn", TRACE)
        self.refused(2, ["replay", "--jsn"], "a file called '--jsn' is written './--jsn'")
        done = self.nofrag("replay", "good.csv", "--allocator", "driver", "--json", "-x.json")
        self.assertEqual((done.returncode, (self.folder / "-x.json").exists()), (0, True), "a value may begin with a dash")
        self.write("-x.csv", TRACE)
        for words in (["./-x.csv"], ["--", "-x.csv"]):
            done = self.nofrag("replay", "--allocator", "driver", *words)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_names_that_would_break_a_line_are_shown_escaped(self):
        missing, nowhere = ODD + ".csv", ODD + "/x"
        for words in (["replay", missing], ["report", missing, "-o", "r.html"], ["explain", missing],
                      ["convert", missing, "--to", "csv", "out.csv"]):
            self.refused(3, words, SHOWN + ".csv: ")
        for words in (["replay", "good.csv", "--json", nowhere], ["replay", "good.csv", "--html", nowhere],
                      ["report", "good.csv", "-o", nowhere], ["convert", "good.csv", "--to", "csv", nowhere],
                      ["doctor", "--device", "sim:h100-80g", "--json", nowhere], ["explain", "good.csv", "--json", nowhere],
                      ["run", "--trace", nowhere, "true"]):
            self.refused(2, words, SHOWN)
        for words in (["replay", "good.csv", "--compare", missing], ["replay", "good.csv", "--device", "sim:" + missing],
                      ["doctor", "--device", "sim:" + missing], ["replay", ODD, "--trace-device", ODD], [ODD], ["-" + ODD]):
            self.refused(2, words, SHOWN)
        self.refused(127, ["run", ODD], SHOWN + ": no such program in PATH")
        self.write(missing, TRACE)
        self.refused(2, ["convert", "good.csv", "--to", "csv", missing], SHOWN + ".csv: exists already")
        self.refused(2, ["replay", missing, "--trace-device", "7"], SHOWN + ".csv has events of device 0\n")
        self.refused(2, ["convert", "good.csv", "--to", "csv", "."], ".: is a directory; name a file in it")
        self.refused(2, ["convert", "good.csv", "--to", "csv", ".", "--force"], ".: is a directory; name a file in it")
        done = self.nofrag("replay", missing, "--allocator", "driver", "--json", "before.json")
        self.assertIn(SHOWN + ".csv\n  3 events", self.nofrag("replay", missing, "--allocator", "driver").stdout)
        self.assertIn(SHOWN + ".csv\n",
                      self.nofrag("replay", missing, "--allocator", "driver", "--compare", "before.json").stdout)
        self.assertEqual(json.loads((self.folder / "before.json").read_text())["traces"][0]["path"], missing)
        self.assertEqual(done.returncode, 0)

    def test_a_name_longer_than_names_can_be(self):
        name = "a" * 251 + ".html"
        for words in (["report", "missing.csv", "-o", name], ["replay", "missing.csv", "--html", name],
                      ["replay", "missing.csv", "--json", "./" + name], ["convert", "missing.csv", "--to", "csv", name]):
            said = self.refused(2, words, "a file's name has at most 255 bytes, and this one has 256; name another")
            self.assertLess(len(said), 200, "not the whole name")
        done = self.nofrag("report", "good.csv", "--allocator", "driver", "-o", name[1:])
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_an_empty_value_takes_no_other_word(self):
        self.write("other.csv", TRACE)
        for option in ("--json", "--html", "--compare", "--capacity", "--device", "--format", "--allocator"):
            self.refused(2, ["replay", "good.csv", option + "=", "other.csv"], f"{option}: its value is empty")
        self.assertEqual((self.folder / "other.csv").read_text(), TRACE)
        done = self.nofrag("replay", "--allocator", "driver", "--conf=", "good.csv")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.refused(2, ["run", "--trace=", "true"], "--trace: its value is empty")

    def test_letters_of_all_languages_stay(self):
        self.refused(3, ["replay", "für-всех-全部.csv"], "für-всех-全部.csv: ")


class Replay(Messages):
    def test_a_peer_that_fails_as_itself_would_is_no_fault_of_the_replay(self):
        # Expandable segments take 9/8 of the device in addresses for each stream.
        self.write("streams.csv", "time_us,op,id,size,stream\n" + "".join(f"{i},a,{i},4194304,{i}\n" for i in range(1500)))
        done = self.nofrag("replay", "streams.csv", "--json", "out.json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("\n  torch-expandable failed: driver failure (driver code 2) at event 1", done.stdout)
        why = "like PyTorch it takes 89.10 GiB of addresses for each stream and pool, and none are left"
        self.assertIn(f"\n    {why}\n", done.stdout)
        runs = json.loads((self.folder / "out.json").read_text())["traces"][0]["runs"]
        self.assertEqual([run["completed"] for run in runs], [True, True, False])
        self.assertIn(why, runs[2]["error"])
        self.assertEqual(self.nofrag("replay", "streams.csv", "--conf", "limit:2MiB", "--quiet").returncode, 4)
        done = self.nofrag("replay", "streams.csv", "--allocator", "torch-expandable", "--quiet")
        self.assertEqual(done.returncode, 1, "there is no other result")
        self.assertIn("torch-expandable on sim:h100-80g: driver failure", done.stderr)


    def test_a_report_blames_no_allocator_for_what_nofrag_cannot_serve_either(self):
        trace = pathlib.Path(__file__).parents[2] / "bench/traces/gpt_varlen.nofrag"
        self.assertEqual(self.nofrag("report", str(trace), "--capacity", "1x", "-o", "r.html").returncode, 0)
        page = (self.folder / "r.html").read_text()
        found = re.findall(r'"allocator":"([a-z-]+)","explain":\{[^{}]*?"cause":"(\w+)"', page)
        self.assertEqual([name for name, _ in found], ["nofrag", "torch-native", "torch-expandable"])
        self.assertEqual(len({cause for _, cause in found}), 1, found)
        self.assertNotIn("fragmentation", found[0][1])
        self.assertIn("torch-native fails at the same request", page)

    def test_what_cannot_be_compared(self):
        compare = ["replay", "good.csv", "--allocator", "driver", "--compare"]
        self.refused(2, [*compare, "none.json"], "--compare none.json: cannot be read (No such file or directory)")
        self.refused(2, [*compare, "."], "--compare .: cannot be read (Is a directory)")
        run = {"allocator": "driver", "peak_reserved_bytes": 1, "completed": True, "driver_us": None}
        bad = ([5], [{}], [{"path": 5, "runs": []}], [{"path": "a", "runs": {}}], [{"path": "a", "runs": [5]}],
               [{"path": "a", "runs": [{}]}], [{"path": "a", "trace_device": "x", "runs": []}],
               [{"path": "a", "runs": [run | {"allocator": 1}]}], [{"path": "a", "runs": [run | {"completed": "yes"}]}],
               [{"path": "a", "runs": [run | {"peak_reserved_bytes": -1}]}])
        for traces in bad:
            self.write("bad.json", json.dumps({"schema": "nofrag.replay/1", "traces": traces}))
            self.refused(2, [*compare, "bad.json"], "--compare bad.json: traces[0] is not as replay writes it")
        for text in ("", "{", "[]", "5", json.dumps({"schema": 5}), json.dumps({"schema": "nofrag.replay/1", "traces": 1})):
            self.write("bad.json", text)
            self.refused(2, [*compare, "bad.json"], "--compare bad.json: expected the JSON of an earlier replay")

    def test_what_an_earlier_replay_lacks_is_said_with_what_it_has(self):
        self.write("other.csv", TRACE)
        self.nofrag("replay", "good.csv", "--allocator", "nofrag,driver", "--json", "old.json")
        done = self.nofrag("replay", "other.csv", "--allocator", "driver", "--compare", "old.json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("\nother.csv\n  not in the earlier replay; traces there: good.csv\n", done.stdout)
        done = self.nofrag("replay", "good.csv", "--allocator", "cub-caching", "--compare", "old.json")
        self.assertIn("\n  cub-caching      not in the earlier replay; allocators there: nofrag, driver\n", done.stdout)


class Explain(Messages):
    ADVICE = "Give it the message whole, with the lines around it, or a trace.\n"

    def nothing(self, name, found, missing):
        done = self.nofrag("explain", name)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"unknown: {found}.\n{self.ADVICE}")
        verdict = json.loads(self.nofrag("explain", name, "--json", "-").stdout)
        self.assertEqual((verdict["cause"], verdict["source"]), ("unknown", None))
        self.assertIn(missing, verdict["missing"][0])

    def test_what_is_nothing_to_explain(self):
        self.write("empty", "")
        self.nothing("empty", "empty is empty", "the input is empty")
        self.nothing("-", "standard input is empty", "the input is empty")
        self.write(ODD, "")
        self.nothing(ODD, SHOWN + " is empty", "the input is empty")
        self.write("no.log", "all is well\n")
        self.nothing("no.log", "there is no out-of-memory message in no.log that nofrag knows", "message that is known")

    def test_a_trace_that_does_not_fail(self):
        done = self.nofrag("explain", "good.csv")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "==== nofrag: no failure found ====\nwhat there is\n"
                         "  - the trace ends without a failure under torch-native with 79.19 GiB; "
                         "its live memory peaks at 4.77 MiB\n"
                         "what would tell more\n  - the capacity at which it failed (--capacity)\n")
        self.assertIn("==== nofrag: out of memory ====", self.nofrag("explain", "good.csv", "--capacity", "4MiB").stdout)

    def test_binary_data(self):
        program = "is no text, and no trace that nofrag knows"
        self.nothing("/bin/true", f"/bin/true {program}", "neither")
        self.write("tiny", b"\x00\x01\x02\x03\x04\x05\x00")
        self.nothing("tiny", f"tiny {program}", "neither")
        # UTF-16, as some shells write logs, is text; with a byte order mark or without.
        for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
            self.write("wide.log", "all is well\n".encode(encoding))
            self.nothing("wide.log", "there is no out-of-memory message in wide.log that nofrag knows", "message")
        self.write("zipped", gzip.compress(bytes(range(256)) * 100))
        self.nothing("zipped", f"zipped {program}", "neither")

    def test_a_folder(self):
        self.refused(3, ["explain", "."], ".: cannot be read (it is a directory)")

    def test_at_a_terminal_it_says_what_it_waits_for(self):
        ours, its = pty.openpty()
        waiting = subprocess.Popen([PROGRAM, "explain"], stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        os.close(its)
        self.assertEqual(waiting.stderr.readline(), "nofrag: paste the message, then press Enter and Ctrl-D\n")
        os.write(ours, b"CUDA out of memory. Tried to allocate 1.75 GiB.\n\x04")
        said, errors = waiting.communicate(timeout=60)
        os.close(ours)
        self.assertEqual((waiting.returncode, errors), (0, ""))
        self.assertIn("==== nofrag: out of memory ====", said)

    def test_a_message_in_the_middle_of_a_long_log(self):
        if LINE_MIB < 20:
            self.skipTest("long texts take minutes under sanitizers")
        said = "RuntimeError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 0 has 2.00 GiB free.\n"
        mib = (64 * "INFO step 17 loss 0.123 memory 71 %\n" * 512)[: 1 << 20]
        for before in (7, 8, 9, 16, 17, 30):
            for cut in (0, 40):  # also across what is let go at once
                self.write("log", mib * before + mib[:cut] + said + mib * 40)
                done = self.nofrag("explain", "log", "--json", "-")
                self.assertEqual(json.loads(done.stdout)["numbers"]["requested_bytes"], 7 << 28, (before, cut))
        # Messages without a word of memory running out.
        for words, cause in (("rmm::out_of_memory: RMM failure at:limiting_resource_adaptor.hpp:143: Exceeded memory limit", "limit"),
                             ("max seq len (9) is larger than the maximum number of tokens that can be stored in KV cache (5)",
                              "kv_cache_growth")):
            self.write("log", mib * 17 + words + "\n" + mib * 40)
            self.assertEqual(json.loads(self.nofrag("explain", "log", "--json", "-").stdout)["cause"], cause)
        self.write("log", mib * 40)
        self.assertIn("of its middle only passages about memory were read", self.nofrag("explain", "log").stdout)

    def test_a_damaged_device_file(self):
        for text in ("[", "]", "{", '{"a":', "NaN", "\0", "\n", '{"name": "x"'):
            self.write("device.json", text)
            for command in (["doctor", "--device", "sim:device.json"], ["replay", "good.csv", "--device", "sim:device.json"]):
                done = self.nofrag(*command)
                self.assertEqual(done.returncode, 2, (text, command, done.stderr))
                self.assertIn("device.json: ", done.stderr)

    def test_a_process_that_is_killed_leaves_nothing_of_its_output(self):
        self.write("many.csv", "time_us,op,id,size,stream\n" + "".join(f"{i},a,{i},512,0\n" for i in range(20000)))
        before = sorted(path.name for path in self.folder.iterdir())
        limit = ["sh", "-c", 'ulimit -f 16; exec "$@"', "sh"]
        done = subprocess.run([*limit, PROGRAM, "convert", "many.csv", "--to", "perfetto", "out.json"],
                              cwd=self.folder, capture_output=True, check=False)
        self.assertEqual(done.returncode, -signal.SIGXFSZ)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before)
        longest = "a" * 250 + ".json"
        self.assertEqual(self.nofrag("convert", "good.csv", "--to", "perfetto", longest).returncode, 0)
        self.assertTrue((self.folder / longest).exists())

    def test_one_endless_line(self):
        self.write("line", "a" * (2 * LINE_MIB << 20))
        long = " (of its middle only passages about memory were read)" if 2 * LINE_MIB > 24 else ""
        self.nothing("line", "there is no out-of-memory message in line that nofrag knows" + long, "message")
        self.write("line", "a" * (LINE_MIB << 20) + " CUDA out of memory. Tried to allocate 1.75 GiB. " + "b" * (1 << 20))
        done = self.nofrag("explain", "line", "--json", "-")
        self.assertEqual(json.loads(done.stdout)["numbers"]["requested_bytes"], 7 << 28)


def main():
    global PROGRAM, LINE_MIB
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofrag", required=True)
    parser.add_argument("--line-mib", type=int, default=LINE_MIB)
    arguments, rest = parser.parse_known_args()
    LINE_MIB = arguments.line_mib
    PROGRAM = os.path.abspath(arguments.nofrag)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
