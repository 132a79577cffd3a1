#!/usr/bin/env python3
"""The preload over the fake driver, and in programs that have nothing to do with CUDA.

usage: preload_test.py --bin DIR --library LIBNOFRAG --fake DIR --plugin PATH [--entries FILE] [--sanitized=RUNTIME]
                       [unittest arguments]
--sanitized: all of it was built for a sanitizer, whose shared runtime (or nothing) comes before the library; the library
then has no hooks of the loader, and programs come to the driver by being linked.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ARGUMENTS = None
WAYS = ["link", "dlsym", "default", "next", "proc1", "proc2", "proc-nested", "private", "deepbind"]
WAYS_WITHOUT_LOADER_HOOKS = ["link", "default", "proc1", "proc2"]


def run(*command, preload=True, conf=None, timeout=120, cwd=None, **more):
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ARGUMENTS.fake, "PRELOAD_PLUGIN": ARGUMENTS.plugin,
                   "FAKE_CUDA_MIB": "4096", "HOME": os.environ.get("HOME", "/")}
    if preload:
        environment["LD_PRELOAD"] = " ".join(filter(None, (ARGUMENTS.sanitized, ARGUMENTS.library)))
    if conf is not None:
        environment["NOFRAG_CONF"] = conf
    if ARGUMENTS.sanitized is not None:
        command = ["link" if word == "dlsym" else word for word in command]
        environment["PRELOAD_WAY"] = "link"
        environment.update({name: os.environ[name] for name in os.environ if name.endswith("SAN_OPTIONS")})
    environment.update(more)
    return subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True,
                          timeout=timeout, cwd=cwd)


def client(name, *words, **options):
    return run(os.path.join(ARGUMENTS.bin, f"preload_{name}"), *words, **options)


def entries():
    with open(ARGUMENTS.entries) as file:
        return re.findall(r"^NOFRAG_(?:HOOK|RETRY|ACROSS)\((\w+)", file.read(), re.MULTILINE)


class Ways(unittest.TestCase):
    """Every entry, in every way in which programs find entries."""

    def test_every_way_leads_to_nofrag(self):
        for way in WAYS:
            with self.subTest(way):
                for preload, library in ((False, "libcuda.so.1"), (True, "libnofrag.so")):
                    result = client("where", way, preload=preload)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertEqual(result.stdout.splitlines(), [f"{symbol} {library}" for symbol in entries()])

    def test_switched_off_the_driver_is_found(self):
        for way in ("dlsym", "proc1", "proc2", "private", "deepbind"):
            libraries = {line.split()[1] for line in client("where", way, conf="preload:off").stdout.splitlines()}
            self.assertEqual(libraries, {"libcuda.so.1"}, way)

    def test_a_program_that_calls_nofrag_itself_starts_it_under_the_preload(self):
        for conf in (None, "preload:native", "preload:vmm", "preload:off"):
            with self.subTest(conf):
                result = client("own_calls", conf=conf, timeout=30)
                self.assertEqual((result.returncode, result.stdout), (0, "allocated: 1 \nfreed: 0\n"), result.stderr)

    def test_not_preloaded_but_linked_in_front_it_passes_on(self):
        # Before libcuda in the order of the program, as in one that links both.
        result = client("linked_in_front", preload=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_versions_from_before_and_after(self):
        result = client("checks", "versions")
        self.assertEqual(result.returncode, 0, result.stderr)
        before, _, after = result.stderr.partition("-- before\n")
        self.assertEqual(before, "")
        self.assertIn("a version of cuMemGetAddressRange that nofrag does not know", after)

    def test_the_loader_keeps_its_rules(self):
        for preload in (False, True):
            result = run(os.path.join(ARGUMENTS.bin, "preload_loader"), preload=preload, LD_LIBRARY_PATH="")
            self.assertEqual((result.returncode, result.stderr), (0, ""))


class Passed(unittest.TestCase):
    """Memory that programs take from the driver past nofrag is counted for as long as it lives."""

    def test_what_is_counted(self):
        for name in ("created", "values-again", "ours", "blocks", "outlived", "contexts", "arrays", "threads", "table"):
            with self.subTest(name):
                result = client("passed", name)
                self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_the_summary_tells_of_it(self):
        result = client("passed", "left", conf="stats:summary")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr.splitlines()[-1],
                         r"^nofrag: process \d+, device 0: passed on to the driver: peak 32\.00 MiB; now created 32\.00 MiB, "
                         r"managed 1\.00 MiB$")
        self.assertNotIn("passed on", client("passed", "ours", conf="stats:summary").stderr)


class Semantics(unittest.TestCase):
    """What a program sees is what it sees without us."""

    def same(self, *words, program="suite", said=None, **options):
        plain = client(program, *words, preload=False, **options)
        ours = client(program, *words, **options)
        self.assertEqual((plain.returncode, plain.stderr), (0, ""))
        self.assertEqual(ours.returncode, 0, ours.stderr)
        self.assertEqual(ours.stdout.splitlines(), plain.stdout.splitlines())
        if said is None:
            self.assertEqual(ours.stderr, "")
        else:
            self.assertRegex(ours.stderr, said)
            self.assertEqual(len(ours.stderr.splitlines()), 1, ours.stderr)

    def test_the_suite_in_every_way(self):
        for way in WAYS if ARGUMENTS.sanitized is None else WAYS_WITHOUT_LOADER_HOOKS:
            with self.subTest(way):
                self.same(way)

    def test_contexts_that_end(self):
        for group in ("reset", "release"):
            with self.subTest(group):
                self.same("dlsym", group)

    def test_blocks_that_outlive_their_context(self):
        # On this card the third context gets the first one's addresses, if they were given back.
        for end in ("reset", "release"):
            with self.subTest(end):
                self.same("dlsym", end, program="ended", FAKE_CUDA_MIB="143360")
        for name in ("captures", "exit"):
            with self.subTest(name):
                self.same("dlsym", name, program="ended")
        self.same("dlsym", "many", program="ended", said="ended 16 times .*the driver serves device 0 from here on")
        # A card of which 16 ranges would be more addresses than a process has.
        said = r"ended \d times .*the driver serves device 0 from here on"
        self.same("dlsym", "many", program="ended", said=said, FAKE_CUDA_MIB="283648")
        self.same("dlsym", "before", program="ended")
        self.same("dlsym", "broken", program="ended", said="from here on the driver serves alone")
        for conf in ("preload:native", "backend:plain"):
            with self.subTest(conf):
                self.same("dlsym", "reset", program="ended", conf=conf)
        for name in ("fork", *["threads"] * 3):
            with self.subTest(name):
                result = client("ended", "dlsym", name)
                self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_a_small_card(self):
        self.same("dlsym", FAKE_CUDA_MIB="420")

    def test_configurations(self):
        for conf in ("preload:off", "preload:native", "preload:vmm", "thread_caches:false", "policy:lean",
                     "shareable_handles:none"):
            with self.subTest(conf):
                self.same("dlsym", conf=conf)
        # Memory that waits for its last user is not free yet.
        self.same("dlsym", "sizes", "frees", "contents", "streams", "pools", "captures", conf="preload_free_waits:false")

    def test_several_gpus(self):
        for conf in (None, "preload:vmm", "preload:native"):
            with self.subTest(conf):
                self.same("dlsym", FAKE_CUDA_DEVICES="2", conf=conf)
                self.same("dlsym", "second", FAKE_CUDA_DEVICES="2", conf=conf)
                self.same("dlsym", "peers", FAKE_CUDA_DEVICES="2", conf=conf)
        # The third access that is set is the peer's to what was there: what comes later is the driver's, and right.
        refused = client("suite", "dlsym", "peers", FAKE_CUDA_DEVICES="2", FAKE_CUDA_FAIL="cuMemSetAccess:3:1")
        self.assertEqual(refused.returncode, 0, refused.stderr)
        self.assertEqual(refused.stderr.count("the driver refuses that for what nofrag maps"), 1, refused.stderr)
        self.assertEqual(refused.stdout.count("byte: 7"), 3, refused.stdout)

    def test_gpus_without_a_way_to_each_others_memory_are_the_drivers(self):
        for group in ((), ("second",), ("peers",)):  # said once, not for each
            self.same("dlsym", *group, FAKE_CUDA_DEVICES="2", FAKE_CUDA_APART="1",
                      said="device 0 cannot use the memory of device 1.*the driver serves alone")
        self.same("dlsym", FAKE_CUDA_DEVICES="2", FAKE_CUDA_FAIL="cuDeviceCanAccessPeer:2:801",
                  said="device 1 cannot use the memory of device 0")
        self.same("dlsym", "second", FAKE_CUDA_DEVICES="2", FAKE_CUDA_APART="1", conf="preload:vmm")

    def test_copies_between_gpus(self):
        for way in ("dlsym", "proc2"):
            for words in ((), ("late",)):
                with self.subTest(f"{way} {words}"):
                    self.same(way, *words, program="across", FAKE_CUDA_DEVICES="2")
        self.same("dlsym", "at-once", program="across", FAKE_CUDA_DEVICES="2")
        self.same("dlsym", "elsewhere", program="across", FAKE_CUDA_DEVICES="3")
        how = client("across", "dlsym", "how", FAKE_CUDA_DEVICES="2")
        self.assertEqual((how.returncode, how.stderr), (0, ""))
        # Where a way needs access and the driver refuses it, so are the copies: the test has something to see.
        refused = client("across", "dlsym", FAKE_CUDA_DEVICES="2", FAKE_CUDA_FAIL="cuMemSetAccess:7:1")
        self.assertRegex(refused.stdout, r"copy \d+ from \d, current \d: 1\n")
        self.assertEqual(refused.stderr.count("the driver refuses that for what nofrag maps"), 1, refused.stderr)

    def test_an_order_that_cannot_be_kept_is_waited_for(self):
        for call in ("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"):
            # Before the first fenced copy, and behind it. (nofrag's couriers have recorded two before.)
            for nth in (1, 2) if call == "cuStreamWaitEvent" else (3, 4):
                with self.subTest(f"{call} {nth}"):
                    waited = client("across", "dlsym", "how", FAKE_CUDA_DEVICES="2", FAKE_CUDA_FAIL=f"{call}:{nth}:999")
                    self.assertEqual(waited.returncode, 1)
                    self.assertRegex(waited.stderr, "^to the other, default stream: 0 named, .*, waited 1 times;")

    def test_a_gpu_without_virtual_memory(self):
        self.same("dlsym", FAKE_CUDA_NO_VMM="1", said="no virtual memory")

    def test_under_a_memory_tool_it_stands_aside(self):
        self.same("dlsym", CUDA_INJECTION64_PATH="/no/tool.so", said="CUDA_INJECTION64_PATH is set")
        result = client("checks", "passed-on", CUDA_INJECTION64_PATH="/no/tool.so")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_simulated_driver_is_none_for_others(self):
        self.same("dlsym", conf="driver:sim:h100-80g", said="not the real one")

    def test_ipc_between_two_preloaded_processes(self):
        for size in (100, 5 << 20, 300 << 20):
            result = client("ipc", "dlsym", size)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            lines = dict(line.rsplit(": ", 1) for line in result.stdout.splitlines())
            self.assertEqual(lines["open one's own"], "201")
            self.assertEqual(lines["child: read"], "0")
            for finding in ("same", "child: same place", "child: base", "child: size",
                            "child: closings that fail, or come during a capture", "child: close a third time",
                            "child: open what was freed", "child: open nonsense", "handle of what was freed"):
                self.assertEqual(lines[finding], "1", finding)
            self.assertEqual(re.findall(r"^child: byte: (\d+)$", result.stdout, re.MULTILINE), ["42", "42"])

    def test_imports_end_with_their_context(self):
        for end in ("reset", "release"):
            with self.subTest(end):
                self.same("dlsym", end, program="ipc_ends")
        for name in ("failures", *["threads"] * 3):
            with self.subTest(name):
                result = client("ipc_ends", "dlsym", name)
                self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_exports_end_with_their_context(self):
        result = client("ipc_ends", "dlsym", "exporter")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout.count("open what ended: 1\n"), 3)
        self.assertEqual(re.findall(r"^byte: (\d+)$", result.stdout, re.MULTILINE), ["42", "43", "44"] * 2)

    def test_what_was_imported_is_every_gpus(self):
        for peers in ("", "1"):
            result = client("ipc", "dlsym", FAKE_CUDA_DEVICES="2", IPC_OTHER_DEVICE="1", IPC_PEERS=peers)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(re.findall(r"^child: byte: (\d+)$", result.stdout, re.MULTILINE), ["42"] * 4)
            self.assertEqual(set(re.findall(r"^child: (?:copy|other|back): (\d+)$", result.stdout, re.MULTILINE)), {"0"})

    def test_ipc_of_memory_that_cannot_be_shared_says_what_to_do(self):
        result = client("ipc", "dlsym", conf="shareable_handles:none")
        self.assertIn("preload:native", result.stderr)


class Checks(unittest.TestCase):
    """What only the fake can show (clients/checks.cc)."""

    def check(self, name, conf=None, **more):
        result = client("checks", name, conf=conf, **more)
        self.assertEqual((result.returncode, result.stderr), (0, ""), name)

    def test_owned(self):
        self.check("owned")
        self.check("owned", conf="preload_with_tools:true", CUDA_INJECTION64_PATH="/no/tool.so")

    def test_passed_on(self):
        for conf in ("preload:off", "preload:native"):
            self.check("passed-on", conf=conf)

    def test_free(self):
        self.check("free-waits")
        self.check("free-does-not-wait", conf="preload_free_waits:false")
        self.check("memory-is-ready", conf="limit:64MiB")
        for name in ("per-thread-streams", "failed-frees", "set-aside"):
            self.check(name)

    def test_memory_for_others(self):
        self.check("retries")
        self.check("no-retry-in-capture")

    def test_limit(self):
        self.check("limit", conf="limit:256MiB")
        self.check("limit", conf="memory_fraction:0.0625")

    def test_streams(self):
        self.check("stream-ends")

    def test_contexts_end(self):
        self.check("reset-forgets")
        for _ in range(4):  # a race, if there is one
            self.check("contexts-end")

    def test_exports_pin(self):
        self.check("exports-pin")

    def test_processes_and_threads(self):
        for name in ("fork", "quick-exit", "closes", "threads"):
            # A program that this one starts has no sanitizer's runtime of its own for the library.
            if (name, ARGUMENTS.sanitized) != ("fork", ""):
                self.check(name)
        for _ in range(5):
            self.check("exits")


class Failures(unittest.TestCase):
    """A failure of ours at any step leaves the program the driver, and is said in one line at most."""

    STEPS = ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuMemCreate",
             "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuEventCreate",
             "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuStreamCreate", "cuStreamQuery"]
    # Errors of the program's own calls, which it must see.
    OWN = {"cuInit": 1, "cuDevicePrimaryCtxRetain": 1, "cuStreamCreate": 0}

    def test_every_step(self):
        groups = ["sizes", "frees", "contents", "pitches"]
        plain = client("suite", "dlsym", *groups, preload=False).stdout.splitlines()
        for step in self.STEPS:
            for code in (2, 999):
                for nth in (1, 2, 3, 9):
                    if nth <= self.OWN.get(step, 0):
                        continue
                    with self.subTest(step=step, code=code, nth=nth):
                        result = client("suite", "dlsym", *groups, FAKE_CUDA_FAIL=f"{step}:{nth}:{code}")
                        self.assertEqual(result.returncode, 0, result.stderr)
                        differs = [(a, b) for a, b in zip(plain, result.stdout.splitlines()) if a != b]
                        # Waiting for a stream is the program's business, too: it is told of that error.
                        if step != "cuStreamQuery":
                            self.assertEqual(differs, [])
                        self.assertLessEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_it_says_what_failed(self):
        result = client("suite", "dlsym", "sizes", FAKE_CUDA_FAIL="cuStreamCreate:1:999")
        self.assertRegex(result.stderr, r"^nofrag: preload: .+ failed \(.+\); from here on the driver serves alone\n$")

    def test_a_bad_configuration_is_told_and_the_program_runs(self):
        result = client("suite", "dlsym", "sizes", conf="no_such_key:1")
        self.assertEqual(result.returncode, 0)
        self.assertIn("no_such_key", result.stderr)


class OrdinaryPrograms(unittest.TestCase):
    """Programs without CUDA run as ever, also with a configuration that would be complained about if it were read."""

    def quiet(self, *command, expected=None, **options):
        result = run(*command, conf="bad", LD_LIBRARY_PATH="", **options)
        self.assertEqual((result.returncode, result.stderr), (0, ""), command)
        if expected is not None:
            self.assertEqual(result.stdout, expected)
        return result

    def test_shell(self):
        self.quiet("bash", "-c", "for i in 1 2 3; do echo $i; done | sort -r | head -1; (exit 0); true & wait", expected="3\n")

    def test_compiler(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "a.c")
            with open(source, "w") as file:
                file.write("#include <stdio.h>\nint main(void) { puts(\"compiled\"); return 0; }\n")
            self.quiet("gcc", "-O2", source, "-o", os.path.join(folder, "a"))
            self.quiet(os.path.join(folder, "a"), expected="compiled\n")

    def test_python(self):
        self.quiet(sys.executable, "-c", "import ctypes, json, subprocess, threading\n"
                   "subprocess.run(['true'], check=True)\n"
                   "t = threading.Thread(target=lambda: None); t.start(); t.join()\n"
                   "print(json.dumps([1]), bool(ctypes.CDLL(None).dlsym))", expected="[1] True\n")

    def test_git(self):
        with tempfile.TemporaryDirectory() as folder:
            self.quiet("git", "init", "--quiet", folder)
            self.quiet("git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "--quiet", "--allow-empty", "-m", "m")
            self.assertIn("m", self.quiet("git", "-C", folder, "log", "--oneline").stdout)

    def test_setuid_program(self):
        if shutil.which("setpriv") is None or os.getuid() != 0:
            self.skipTest("needs root and setpriv to become somebody else first")
        program = shutil.which("mount") or shutil.which("su")
        command = ["setpriv", "--reuid", "65534", "--clear-groups", program, "--version"]
        plain = run(*command, preload=False)
        ours = run(*command, conf="bad")
        # The loader leaves out a preload that is not on its trusted path, and may say so.
        said = [line for line in ours.stderr.splitlines() if "cannot be preloaded" not in line]
        self.assertEqual((ours.returncode, ours.stdout, said), (plain.returncode, plain.stdout, plain.stderr.splitlines()))


class PythonProcesses(unittest.TestCase):
    """The constructor switches PyTorch's door on, by environment only, where its package lies beside the library."""

    SHOW = "import os; print([os.environ.get(k) for k in ('NOFRAG_TORCH', 'NOFRAG_LIBRARY', 'PYTHONPATH')])"

    def install(self, folder, package=True):
        os.makedirs(os.path.join(folder, "lib"))
        library = os.path.join(folder, "lib", "libnofrag.so")
        shutil.copy(ARGUMENTS.library, library)
        if package:
            os.makedirs(os.path.join(folder, "share/nofrag/python"))
        return library

    def show(self, library, **more):
        result = run(sys.executable, "-c", self.SHOW, LD_PRELOAD=library, **more)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return eval(result.stdout)  # a list of strings that the line above printed

    def test_with_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            library = self.install(folder)
            torch, path, search = self.show(library, PYTHONPATH="/before")
            self.assertEqual((torch, path), ("1", library))
            self.assertEqual([os.path.realpath(part) for part in search.split(":")],
                             [os.path.realpath(f"{folder}/share/nofrag/python"), "/before"])
            self.assertEqual(self.show(library, NOFRAG_TORCH="0")[0], "0")
            self.assertEqual(self.show(library, NOFRAG_CONF="preload:off"), [None, None, None])
            shell = run("sh", "-c", "echo ${NOFRAG_TORCH-unset}", LD_PRELOAD=library)
            self.assertEqual(shell.stdout, "unset\n")

    def test_without_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.show(self.install(folder, package=False)), [None, None, None])


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    for name in ("--bin", "--library", "--fake", "--plugin", "--entries"):
        parser.add_argument(name, required=True)
    parser.add_argument("--sanitized", metavar="RUNTIME")
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
