#!/usr/bin/env python3
"""`nofrag run`: the environment it arranges, the program it becomes, and what it says when it cannot.

usage: run_test.py --program NOFRAG --library LIBNOFRAG --bin DIR --fake DIR [unittest arguments]
"""

import argparse
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

ARGUMENTS = None
SHOW = ["LD_PRELOAD", "NOFRAG_CONF", "NOFRAG_TRACE", "NOFRAG_METRICS", "NOFRAG_TORCH", "NOFRAG_LIBRARY", "PYTHONPATH",
        "NVTX_INJECTION64_PATH"]


def run(*words, program=None, cwd=None, **more):
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ARGUMENTS.fake, **more}
    environment = {key: value for key, value in environment.items() if value is not None}
    return subprocess.run([program or ARGUMENTS.program, "run", *words], env=environment, capture_output=True, text=True,
                          timeout=60, cwd=cwd)


class Installed(unittest.TestCase):
    """bin/nofrag with lib/ and share/ beside it, as it is installed."""

    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for part in ("bin", "lib", "share/nofrag/python"):
            os.makedirs(os.path.join(self.folder, part))
        self.program = shutil.copy(ARGUMENTS.program, os.path.join(self.folder, "bin/nofrag"))
        self.library = shutil.copy(ARGUMENTS.library, os.path.join(self.folder, "lib/libnofrag.so"))

    def shown(self, *words, **more):
        script = "; ".join(f'echo "{name}=${{{name}-}}"' for name in SHOW)
        result = run(*words, "sh", "-c", script, program=self.program, **more)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return dict(line.split("=", 1) for line in result.stdout.splitlines())

    def test_the_environment(self):
        shown = self.shown()
        self.assertEqual(shown["LD_PRELOAD"], self.library)
        self.assertEqual((shown["NOFRAG_CONF"], shown["NOFRAG_TRACE"], shown["NOFRAG_METRICS"]), ("", "", ""))
        self.assertEqual((shown["NOFRAG_TORCH"], shown["NOFRAG_LIBRARY"]), ("1", self.library))
        self.assertEqual(shown["PYTHONPATH"], f"{self.folder}/share/nofrag/python")

    def test_what_is_there_already_is_kept(self):
        libc = "/usr/lib/x86_64-linux-gnu/libm.so.6"
        shown = self.shown("--conf", "policy:lean", "--limit", "20GiB", LD_PRELOAD=libc if os.path.exists(libc) else "",
                           NOFRAG_CONF="log:silent", PYTHONPATH="/mine", NOFRAG_TORCH="0")
        self.assertEqual(shown["LD_PRELOAD"].split(":")[0], self.library)
        if os.path.exists(libc):
            self.assertEqual(shown["LD_PRELOAD"].split(":")[1], libc)
        self.assertEqual(shown["NOFRAG_CONF"], "log:silent,policy:lean,limit:20GiB")
        self.assertEqual(shown["PYTHONPATH"], f"{self.folder}/share/nofrag/python:/mine")
        self.assertEqual(shown["NOFRAG_TORCH"], "0")

    def test_trace_metrics_summary(self):
        relative = os.path.join(os.path.relpath(self.folder), "b.nofrag")
        shown = self.shown("--trace", relative, "--metrics", "9400", "--summary")
        self.assertEqual(shown["NOFRAG_TRACE"], os.path.join(os.getcwd(), relative))
        self.assertEqual((shown["NOFRAG_METRICS"], shown["NOFRAG_CONF"]), ("9400", "stats:summary"))

        for place in ("off", "0", "127.0.0.1:0", f"file:{self.folder}/m.prom"):
            self.assertEqual(self.shown("--metrics", place)["NOFRAG_METRICS"], place)
        self.assertEqual(self.shown("--metrics", "file:m.prom")["NOFRAG_METRICS"], f"file:{os.getcwd()}/m.prom")

        shown = self.shown("--trace", "c.nofrag,stacks=100,stacks_from=4MiB")
        self.assertEqual(shown["NOFRAG_TRACE"], os.path.join(os.getcwd(), "c.nofrag,stacks=100,stacks_from=4MiB"))

        shown = self.shown("--trace", "flight:b.nofrag")
        self.assertEqual(shown["NOFRAG_TRACE"], "flight:" + os.path.join(os.getcwd(), "b.nofrag"))

    def test_the_programs_own_ranges_are_listened_to(self):
        self.assertEqual(self.shown()["NVTX_INJECTION64_PATH"], "")
        self.assertEqual(self.shown("--trace", "b.nofrag")["NVTX_INJECTION64_PATH"], self.library)
        tool = "/opt/tool/libToolsInjection64.so"
        shown = self.shown("--trace", "b.nofrag", NVTX_INJECTION64_PATH=tool)
        self.assertEqual(shown["NVTX_INJECTION64_PATH"], tool, "a tool stays in place")

    def test_run_in_run(self):
        result = run(self.program, "run", "sh", "-c", "echo $LD_PRELOAD $PYTHONPATH", program=self.program)
        self.assertEqual(result.stdout, f"{self.library} {self.folder}/share/nofrag/python\n")

    def test_without_the_python_package(self):
        shutil.rmtree(os.path.join(self.folder, "share"))
        shown = self.shown()
        self.assertEqual((shown["NOFRAG_TORCH"], shown["NOFRAG_LIBRARY"], shown["PYTHONPATH"]), ("", "", ""))

    def test_without_the_library(self):
        os.unlink(self.library)
        result = run("true", program=self.program)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn(f"{self.library}; set NOFRAG_LIBRARY to its path", result.stderr)
        result = run("true", program=self.program, NOFRAG_LIBRARY="/no/such.so")
        self.assertEqual(result.returncode, 2)
        self.assertIn("NOFRAG_LIBRARY names /no/such.so, which does not exist", result.stderr)
        self.assertEqual(run("true", program=self.program, NOFRAG_LIBRARY=ARGUMENTS.library).returncode, 0)

    def test_a_library_that_is_none(self):
        junk = os.path.join(self.folder, "junk.so")
        with open(junk, "w") as file:
            file.write("no library\n")
        other = shutil.copy(self.program, os.path.join(self.folder, "other.so"))
        static = os.path.join(self.folder, "static.so")  # the same without PT_INTERP
        with open(other, "rb") as file, open(static, "wb") as without:
            elf = bytearray(file.read())
            (first,), (count,) = struct.unpack_from("<Q", elf, 32), struct.unpack_from("<H", elf, 56)
            for at in range(first, first + 56 * count, 56):
                if struct.unpack_from("<I", elf, at) == (3,):
                    struct.pack_into("<I", elf, at, 0)
            without.write(elf)
        libm = "/usr/lib/x86_64-linux-gnu/libm.so.6"
        for path, problem in ((junk, "no shared library"), (self.folder, "which is no file"), (libm, "not libnofrag.so"),
                              (other, "no shared library"), (static, "no shared library")):
            if os.path.exists(path):
                result = run("echo", "started", program=self.program, NOFRAG_LIBRARY=path)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(f"NOFRAG_LIBRARY names {path}", result.stderr)
                self.assertIn(problem, result.stderr)

    def test_a_path_that_the_loader_cannot_take(self):
        odd = os.path.join(self.folder, "a b.so")
        shutil.copy(ARGUMENTS.library, odd)
        result = run("true", program=self.program, NOFRAG_LIBRARY=odd)
        self.assertEqual(result.returncode, 2)
        self.assertIn("space or colon", result.stderr)


class Commands(unittest.TestCase):
    def refused(self, status, words, *texts, **more):
        result = run(*words, **more)
        self.assertEqual((result.returncode, result.stdout), (status, ""), result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for text in texts:
            self.assertIn(text, result.stderr)

    def test_the_commands_own_status_and_streams(self):
        result = run("sh", "-c", "cat; echo err >&2; exit 7")
        self.assertEqual((result.returncode, result.stderr), (7, "err\n"))
        self.assertEqual(run("sh", "-c", "kill -9 $$").returncode, -9)

    def test_its_options_are_its_own(self):
        result = run("--conf", "log:silent", "echo", "--conf", "x", "--summary", "--help", "-n", "--", "-z")
        self.assertEqual((result.returncode, result.stdout), (0, "--conf x --summary --help -n -- -z\n"))
        self.assertEqual(run("--", "echo", "a").stdout, "a\n")
        self.assertEqual(run("--conf=", "echo", "--json=", "a=", "--").stdout, "--json= a= --\n")

    def test_not_found(self):
        self.refused(127, ["no-such-program-here"], "no-such-program-here: no such program in PATH")
        self.refused(127, ["./no/such"], "./no/such: no such program")

    def test_not_executable(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plain")
            with open(path, "w") as file:
                file.write("text")
            self.refused(126, [path], path, "no permission to execute it")
            self.refused(126, [folder], "a directory")
            self.refused(126, ["plain"], "no permission", PATH=folder)

    def test_what_may_have_been_meant_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("train.py", "start", "noexec.py"):
                with open(os.path.join(folder, name), "w") as file:
                    file.write("#!/no/such/interpreter\n")
            os.chmod(os.path.join(folder, "start"), stat.S_IRWXU)
            here = {"cwd": folder}
            self.refused(127, ["train.py", "--steps", "5"], "train.py: no such program in PATH; write: nofrag run python3 "
                         "train.py\n", **here)
            self.refused(126, ["./noexec.py"], "no permission to execute it); write: nofrag run python3 ./noexec.py", **here)
            self.refused(127, ["start"], "no such program in PATH; the file of that name in this folder is ./start", **here)
            self.refused(126, ["./start"], "./start: cannot be run (its interpreter or loader is not there)", **here)
            self.refused(127, ["A=1", "true"], "A=1: no such program in PATH; variables come first: A=1 nofrag run ...",
                         **here)
            self.refused(2, [""], "run: the command's name is empty", **here)
            self.refused(2, ["--trace", "-", "true"], "--trace: a recording is a file, and never standard output", **here)
            self.refused(2, ["--trace", folder, "true"], f"--trace: {folder} is a folder; name a file in it", **here)

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a file to somebody else")
    def test_a_program_that_takes_on_other_rights(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            program = shutil.copy(shutil.which("true"), os.path.join(folder, "privileged"))
            os.chown(program, 65534, 65534)
            for bit in (stat.S_ISUID, stat.S_ISGID):
                os.chmod(program, 0o755 | bit)
                result = run(program)
                self.assertEqual(result.returncode, 0)
                self.assertIn("takes on another user's or group's rights, and nothing can be preloaded", result.stderr)
            os.chmod(program, 0o755)
            self.assertEqual(run(program).stderr, "")

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a file capabilities")
    def test_a_program_with_capabilities_of_its_file(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            program = shutil.copy(shutil.which("true"), os.path.join(folder, "capable"))
            script = os.path.join(folder, "script")
            with open(script, "w") as file:
                file.write("#!/bin/sh\ntrue\n")
            os.chmod(script, 0o755)
            nofrag = shutil.copy(ARGUMENTS.program, os.path.join(folder, "nofrag"))
            library = shutil.copy(ARGUMENTS.library, os.path.join(folder, "libnofrag.so"))
            environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ARGUMENTS.fake, "NOFRAG_LIBRARY": library}

            def said(path, user):
                done = subprocess.run([nofrag, "run", path], env=environment, capture_output=True, text=True, timeout=60,
                                      user=user, cwd=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                return done.stderr

            for path in (program, script):
                self.assertEqual(said(path, 65534), "")
                try:  # cap_net_raw, permitted
                    os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000000, 1 << 13, 0, 0, 0))
                except OSError as problem:
                    self.skipTest(f"no capabilities of files here: {problem}")
            self.assertIn(f"{program} takes on capabilities of its file (getcap {program}), and nothing can be preloaded",
                          said(program, 65534))
            self.assertEqual(said(script, 65534), "", "its interpreter has none")
            self.assertEqual(said(program, 0), "", "to root they give nothing new")

    def test_a_script(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "script")
            with open(path, "w") as file:
                file.write("#!/bin/sh\necho script $1\n")
            os.chmod(path, stat.S_IRWXU)
            self.assertEqual(run(path, "a").stdout, "script a\n")
            self.assertEqual(run("script", "b", PATH=f"{folder}:{os.environ['PATH']}").stdout, "script b\n")

    def test_a_static_program(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
            with open(source, "w") as file:
                file.write("int main(void) { return 5; }\n")
            if subprocess.run(["gcc", "-static", source, "-o", program], capture_output=True).returncode != 0:
                self.skipTest("no static C library here")
            result = run(program)
            self.assertEqual(result.returncode, 5)
            self.assertIn("linked statically", result.stderr)

    def test_bad_usage(self):
        self.refused(2, [], "no command")
        self.refused(2, ["--conf", "no_such:1", "true"], "--conf", "no_such")
        self.refused(2, ["--limit", "plenty", "true"], "--limit", "plenty")
        self.refused(2, ["--metrics", "70000", "true"], '--metrics: option metrics: "70000" is no port (1 to 65535)')
        self.refused(2, ["--metrics", "file:", "true"], '--metrics: option metrics: "file:" names no file')
        for nothing in ("0", "0B", "0GiB"):
            self.refused(2, ["--limit", nothing, "true"], "--limit: a limit of 0 bytes would refuse every allocation")
        self.refused(2, ["--limit", "20", "true"], "--limit: a limit of 20 bytes would refuse", "2.00 MiB", "20GiB")
        self.assertEqual(run("--limit", "2MiB", "true").returncode, 0)
        self.refused(2, ["--trace", "x,mx=3", "true"], '--trace: "mx=3" is not known')
        self.refused(2, ["--trace", "no/such/folder/x.nofrag", "true"], "--trace: there is no folder", "no/such/folder")
        self.refused(2, ["--trace", "flight:/nowhere/x.nofrag,max=1MiB", "true"], "--trace: there is no folder /nowhere;")
        self.assertEqual(run("--trace", "%p/x.nofrag", "true").returncode, 0)
        self.refused(2, ["--sumary", "true"], "unknown option '--sumary'; did you mean '--summary'?")

    def test_bad_variables_are_refused_before_the_command_starts(self):
        said = ["sh", "-c", "echo started"]
        self.refused(2, said, 'NOFRAG_CONF: unknown option "limt"; did you mean limit?', NOFRAG_CONF="limt:1GiB")
        self.refused(2, said, "NOFRAG_CONF: option handle_size", NOFRAG_CONF="handle_size:huge")
        self.refused(2, said, "NOFRAG_CONF: a limit of 0 bytes", NOFRAG_CONF="limit:0")
        self.refused(2, said, "NOFRAG_STATS: option stats", NOFRAG_STATS="loud")
        self.refused(2, said, 'NOFRAG_METRICS: option metrics: "nonsense" is no port (1 to 65535)', NOFRAG_METRICS="nonsense")
        self.refused(2, said, 'NOFRAG_METRICS: option metrics: "file:" names no file', NOFRAG_METRICS="file:")
        self.refused(2, said, 'NOFRAG_CONF: option metrics: "99999" is no port (1 to 65535)', NOFRAG_CONF="metrics:99999")
        self.refused(2, said, "NOFRAG_CONF: driver:cud", NOFRAG_CONF="driver:cud")
        self.refused(2, said, "NOFRAG_CONF: driver:sim:nothing", NOFRAG_CONF="driver:sim:nothing")
        for good in ("off", "0", "9400", "127.0.0.1:0", "file:m.prom"):
            self.assertEqual(run(*said, NOFRAG_METRICS=good).stdout, "started\n", good)
        self.refused(2, said, 'NOFRAG_TRACE: "mx=3" is not known', NOFRAG_TRACE="x,mx=3")
        self.assertEqual(run("--limit", "1GiB", *said, NOFRAG_CONF="limit:0").stdout, "started\n", "the stronger holds")

    def test_what_could_not_be_written_is_refused_before_the_command_starts(self):
        said = ["sh", "-c", "echo started"]
        for place in ("/no/such/folder/x", "/dev/null/x"):
            folder = os.path.dirname(place)
            missing = f"there is no folder {folder}; make it first"
            self.refused(2, ["--metrics", f"file:{place}", *said], f"--metrics: {missing}")
            self.refused(2, said, f"NOFRAG_METRICS: {missing}", NOFRAG_METRICS=f"file:{place}")
            self.refused(2, said, f"NOFRAG_TRACE: {missing}", NOFRAG_TRACE=f"flight:{place},max=1MiB")
            self.refused(2, said, f"NOFRAG_CONF: {missing}", NOFRAG_CONF=f"trace:{place}")
            self.refused(2, ["--conf", f"metrics:file:{place}", *said], f"--conf: {missing}")
            self.assertEqual(run("--metrics", "off", *said, NOFRAG_METRICS=f"file:{place}").stdout, "started\n")
            self.assertEqual(run("--trace", "/tmp/%p.nofrag", *said, NOFRAG_TRACE=place).stdout, "started\n")
        with tempfile.TemporaryDirectory() as folder:
            self.refused(2, ["--metrics", f"file:{folder}", *said], f"--metrics: {folder} is a folder; name a file in it")
            if os.geteuid() != 0:
                os.chmod(folder, 0o555)
                self.refused(2, said, f"the folder {folder} may not be written", NOFRAG_TRACE=f"{folder}/x")
        self.refused(2, ["--metrics", "file:later/m.prom", *said], "--metrics: there is no folder", "/later; make it first")

    def test_what_could_not_be_written_and_is_overridden_is_not_refused(self):
        metrics, trace = "metrics:file:/no/such/m.prom", "trace:/no/such/x.nofrag"
        command = ["echo", "started"]
        for conf, words, more in (
                (metrics, ["--metrics", "0"], {}), (metrics, ["--conf", "metrics:off"], {}),
                (metrics, [], {"NOFRAG_METRICS": "off"}), (trace, ["--trace", "/tmp/%p.nofrag"], {}),
                (trace, ["--conf", "trace:off"], {}), (trace, [], {"NOFRAG_TRACE": "/tmp/%p.nofrag"}),
                ("driver:cud", ["--conf", "driver:cuda"], {})):
            result = run(*words, *command, NOFRAG_CONF=conf, **more)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "started\n", ""), (conf, words, more))
        self.assertEqual(run("--metrics", "0", "--conf", metrics, *command).stdout, "started\n")
        self.refused(2, ["--conf", metrics, *command], "--conf: there is no folder /no/such;", NOFRAG_CONF="metrics:off",
                     NOFRAG_METRICS="", NOFRAG_TRACE="/tmp/%p.nofrag")
        self.refused(2, command, "NOFRAG_CONF: there is no folder /no/such;", NOFRAG_CONF=trace, NOFRAG_TRACE="",
                     NOFRAG_METRICS="off")

    def test_relative_names_are_the_programs_to_look_up(self):
        metrics, trace = "file:later/m.prom", "later/x.nofrag"
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "elsewhere/later"))
            for more in ({"NOFRAG_METRICS": metrics}, {"NOFRAG_TRACE": trace}, {"NOFRAG_CONF": f"metrics:{metrics}"},
                         {"NOFRAG_CONF": f"trace:{trace}"}):
                result = run("sh", "-c", "cd elsewhere && echo started", cwd=folder, **more)
                self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "started\n", ""), more)
                doctor = subprocess.run([ARGUMENTS.program, "doctor", "--device", "sim:h100-80g"], cwd=folder, timeout=60,
                                        env={"PATH": os.environ["PATH"], **more}, capture_output=True, text=True)
                self.assertEqual(doctor.returncode, 0, doctor.stderr)
                self.assertIn("".join(f"  {name}={value}\n" for name, value in more.items()), doctor.stdout)
                self.assertNotIn("there is no folder", doctor.stdout)
            self.assertEqual(run("--conf", f"metrics:{metrics}", "echo", "started", cwd=folder).stdout, "started\n")

    def test_addresses_of_ipv6_are_refused_with_the_forms_there_are(self):
        for place in ("[::1]:9400", "::1:9400", "[::]:0", "::1", "[fe80::1%eth0]:9400", "2001:db8::7:9400"):
            self.refused(2, ["--metrics", place, "true"], f'--metrics: option metrics: "{place}" has an address of IPv6',
                         "127.0.0.1:9400", "0.0.0.0:9400", "file:PATH", "off")
        for place in ("a:b:c", "127.0.0.1:9400:", "http://127.0.0.1:9400", "[]:1", "["):
            self.refused(2, ["--metrics", place, "true"], f'--metrics: option metrics: "{place}" is no port (1 to 65535)')

    def test_variables_that_look_like_nofrags_own(self):
        known = {"NOFRAG_CNF": "did you mean NOFRAG_CONF?", "NOFRAG_LIMIT": "limit is an option: write NOFRAG_CONF=limit:",
                 "nofrag_trace": "did you mean NOFRAG_TRACE?", "NOFRAG_METRIC": "did you mean NOFRAG_METRICS?",
                 "NOFRAG_POLICYS": "did you mean the option policy", "NOFRAG_QWXZ": "(known: NOFRAG_CONF, "}
        for name, said in known.items():
            result = run("echo", "started", **{name: "x"})
            self.assertEqual((result.returncode, result.stdout), (0, "started\n"), "it may be anybody's")
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(f"nofrag: {name} is set: nofrag knows no such variable", result.stderr)
            self.assertIn(said, result.stderr)
        self.assertEqual(run("true", NOFRAGMENT="1", MY_NOFRAG_CONF="1", NOFRAG_TORCH="0").stderr, "")

    def test_a_bad_value_of_nofrag_torch(self):
        said = ["sh", "-c", "echo started"]
        for value, meant in (("maybe", ""), ("true", "did you mean 1?"), ("off", "did you mean 0?"), ("hook", "mean hooks?")):
            self.refused(2, said, f'NOFRAG_TORCH: "{value}" is not one of 1', meant, NOFRAG_TORCH=value)
        for value in ("0", "1", "hooks", " 1 ", ""):
            self.assertEqual(run(*said, NOFRAG_TORCH=value).stdout, "started\n", value)

    def test_doctor_lists_the_variables(self):
        environment = {"PATH": os.environ["PATH"], "NOFRAG_CNF": "x", "NOFRAG_LOG": "loud", "NOFRAG_TRACE": "/no/such/x",
                       "NOFRAG_CONF": "policy:lean"}
        doctor = [ARGUMENTS.program, "doctor", "--device", "sim:h100-80g"]
        page = subprocess.run(doctor, env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((page.returncode, page.stderr), (0, ""))
        for line in ("  NOFRAG_CONF=policy:lean\n", "  NOFRAG_CNF=x\n    WARNING: nofrag knows no such variable; did you mean "
                     "NOFRAG_CONF?", "  NOFRAG_LOG=loud\n    WARNING: option log", "WARNING: there is no folder /no/such;"):
            self.assertIn(line, page.stdout)
        found = json.loads(subprocess.run([*doctor, "--json", "-"], env=environment, capture_output=True, timeout=60).stdout)
        self.assertEqual([one["name"] for one in found["environment"]], sorted(name for name in environment if name != "PATH"))
        self.assertEqual([one["problem"] is None for one in found["environment"]], [False, True, False, False])

    def test_help_names_the_command(self):
        text = run("--help").stdout
        self.assertIn("Usage: nofrag run [OPTION...] COMMAND [ARGUMENT...]", text)
        self.assertIn("--limit", text)

    def test_the_summary(self):
        client = os.path.join(ARGUMENTS.bin, "preload_suite")
        result = run("--summary", "--limit", "512MiB", client, "dlsym", "contents", "reset", FAKE_CUDA_MIB="1024")
        self.assertEqual(result.returncode, 0, result.stderr)
        first, second = result.stderr.splitlines()
        self.assertRegex(first, r"^nofrag: process \d+, device 0: peak live [\d.]+ [KM]iB, peak reserved [\d.]+ MiB "
                                r"\([\d.]+ of it\); [\d.]+ ms in \d+ driver calls$")
        self.assertRegex(second, r"^nofrag: process \d+, device 0: \d+ allocations, served by: own free \d+.*grown \d+")
        quiet = run(client, "dlsym", "contents", FAKE_CUDA_MIB="1024")
        self.assertEqual((quiet.returncode, quiet.stderr), (0, ""))


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    for name in ("--program", "--library", "--bin", "--fake"):
        parser.add_argument(name, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
