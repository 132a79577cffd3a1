#!/usr/bin/env python3
"""Proves that the lint scripts can fail: each rule is broken once in a copy of the tree.

usage: lint_bites_test.py COMPILER   (the C++ compiler, for the object file that globals.py reads)
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = "c++"
BANNER = "// Planted: a header for the lint's own test.\n// Layer: {}.\n//\n//\n#pragma once\n"


class LintBites(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        for folder in ("allocator", "torch_plugin", "include", "docs", "tests", "scripts", "bench", "sim"):
            if (ROOT / folder).exists():
                ignored = shutil.ignore_patterns("*.gz", "*.zst", "corpus", "__pycache__")
                shutil.copytree(ROOT / folder, self.tree / folder, ignore=ignored)
        for page in [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "LICENSE", ROOT / "CMakePresets.json"]:
            shutil.copy(page, self.tree / page.name)

    def lint(self, script, *arguments):
        command = [sys.executable, str(ROOT / "tests/lint" / script), "--root", str(self.tree), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def plant(self, path, text):
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def expect_bite(self, script, path, line, words):
        status, output = self.lint(script)
        self.assertEqual(status, 1, output)
        complaints = [row for row in output.splitlines() if "planted" in row.partition(":")[0]]
        self.assertEqual(len(complaints), 1, output)
        self.assertTrue(complaints[0].startswith(f"{path}:{line}:"), complaints)
        self.assertIn(words, complaints[0])

    def test_the_tree_as_it_is_passes(self):
        for script in ("layering.py", "shape.py", "docs.py"):
            with self.subTest(script):
                status, output = self.lint(script)
                self.assertEqual(status, 0, output)

    def test_an_empty_tree_fails(self):
        shutil.rmtree(self.tree / "allocator")
        shutil.rmtree(self.tree / "torch_plugin")
        self.assertEqual(self.lint("layering.py")[0], 1)

    def test_upward_includes(self):
        cases = {
            "base": "driver/driver.h",
            "index": "driver/driver.h",
            "driver": "physical/handle.h",
            "physical": "range/range.h",
            "range": "heap/heap.h",
            "stream": "range/range.h",
            "heap": "device/device_allocator.h",
            "device": "runtime/runtime.h",
            "runtime": "api/c_api.h",
            "api": "cli/main.h",
            "cli": "preload/ipc/exports.h",
        }
        for layer, target in cases.items():
            with self.subTest(layer):
                path = f"allocator/{layer}/planted.cc"
                self.plant(path, f'#include "base/units.h"\n#include "{target}"\n')
                self.expect_bite("layering.py", path, 2, f'layer "{layer}" must not include "{target}"')
                (self.tree / path).unlink()

    def test_the_core_does_not_see_the_trace(self):
        self.plant("allocator/device/planted.cc", '\n#include "trace/writer.h"\n')
        self.expect_bite("layering.py", "allocator/device/planted.cc", 2, 'must not include "trace/writer.h"')

    def test_stats_reads_only_the_device_headers_it_may(self):
        self.plant("allocator/stats/planted.cc", '#include "device/device_stats.h"\n#include "heap/heap.h"\n')
        self.expect_bite("layering.py", "allocator/stats/planted.cc", 2, 'must not include "heap/heap.h"')

    def test_the_core_does_not_see_the_public_headers(self):
        self.plant("allocator/heap/planted.cc", "#include <nofrag/nofrag.h>\n")
        self.expect_bite("layering.py", "allocator/heap/planted.cc", 1, "must not include the public C headers")

    def test_a_folder_outside_the_table(self):
        self.plant("allocator/extra/planted.cc", "int f();\n")
        self.expect_bite("layering.py", "allocator/extra/planted.cc", 1, "not in tests/lint/layers.txt")

    def test_includes_are_written_from_the_top(self):
        self.plant("allocator/heap/planted.cc", '#include "neighbour.h"\n')
        self.expect_bite("layering.py", "allocator/heap/planted.cc", 1, '"heap/neighbour.h"')

    def test_cuda_headers(self):
        self.plant("allocator/driver/real/planted.cc", "\n\n#include <cuda.h>\n")
        self.expect_bite("layering.py", "allocator/driver/real/planted.cc", 3, "only driver/real/driver_api.h")

    def test_driver_names(self):
        self.plant("allocator/range/planted.cc", "int f() {\n  // cuMemMap here is fine\n  return cuMemMap(0);\n}\n")
        self.expect_bite("layering.py", "allocator/range/planted.cc", 3, "'cuMemMap' names the CUDA driver")

    def test_environment(self):
        self.plant("allocator/config/planted.cc", 'const char* f() { return std::getenv("A"); }\n')
        self.expect_bite("layering.py", "allocator/config/planted.cc", 1, "'getenv' reads or writes the environment")

    def test_exceptions(self):
        self.plant("allocator/device/planted.cc", "void f() {\n  throw 1;\n}\n")
        self.expect_bite("layering.py", "allocator/device/planted.cc", 2, "'throw' is an exception")

    def test_words_in_comments_and_strings_are_free(self):
        self.plant(
            "allocator/heap/planted.cc",
            '// throw, getenv, cuMemMap\n/* try\n#include "device/x.h" */\n'
            'const char* f() { return "catch getenv cuMemMap \\" throw"; }\n'
            'const char* g() { return R"(throw " getenv)"; }\nconstexpr int kTry = 1\'000;\n',
        )
        status, output = self.lint("layering.py")
        self.assertEqual(status, 0, output)

    def test_sizes(self):
        cases = {
            "allocator/heap/planted.h": (BANNER.format("heap") + "\n" * 246, 251),
            "allocator/heap/planted.cc": ("\n" * 501, 501),
            "tests/unit/heap/planted_test.cc": ("\n" * 601, 601),
            "docs/planted.md": ("\n" * 201, 201),
        }
        for path, (text, line) in cases.items():
            with self.subTest(path):
                self.plant(path, text)
                self.expect_bite("shape.py", path, line, "lines;")
                (self.tree / path).unlink()

    def test_crowded_folders(self):
        for number in range(13):
            self.plant(f"allocator/heap/planted_{number}.cc", "")
        status, output = self.lint("shape.py")
        self.assertEqual(status, 1)
        self.assertIn("a folder has at most 12", output)

    def test_banners(self):
        self.plant("allocator/heap/planted.h", "#pragma once\n")
        self.expect_bite("shape.py", "allocator/heap/planted.h", 1, "no banner")
        self.plant("allocator/heap/planted.h", "// Planted: x.\n//\n//\n//\n#pragma once\n")
        self.expect_bite("shape.py", "allocator/heap/planted.h", 1, "does not name the layer")
        self.plant("allocator/heap/planted.h", "// Planted: x.\n// Layer: heap.\n//\n//\n")
        self.expect_bite("shape.py", "allocator/heap/planted.h", 1, "no #pragma once")

    def test_own_header_first(self):
        self.plant("allocator/heap/planted.h", "// Planted: x.\n// Layer: heap.\n//\n//\n#pragma once\n")
        self.plant("allocator/heap/planted.cc", '#include <vector>\n\n#include "heap/planted.h"\n')
        self.expect_bite("shape.py", "allocator/heap/planted.cc", 1, "the first include is not")
        self.plant("allocator/heap/planted.cc", "int planted;\n")
        self.expect_bite("shape.py", "allocator/heap/planted.cc", 1, "does not include")

    def test_dead_links_anchors_and_targets(self):
        cases = {
            "[a](nowhere.md)": "there is no such file",
            "[a](#no-such-heading)": "no heading makes",
            "[a](../../outside.md)": "there is no such file",
            "`make nonsense`": "the Makefile has no such target",
        }
        for text, words in cases.items():
            with self.subTest(text):
                self.plant("docs/planted.md", f"# A heading\n\n{text} and [good](#a-heading)\n")
                self.expect_bite("docs.py", "docs/planted.md", 3, words)

    def globals_of(self, layer, code):
        source = self.tree / "planted.cc"
        source.write_text(code, encoding="utf-8")
        item = self.tree / "planted.cc.o"
        archive = self.tree / "libplanted.a"
        subprocess.run([COMPILER, "-std=c++20", "-fPIC", "-O1", "-c", source, "-o", item], check=True)
        archive.unlink(missing_ok=True)
        subprocess.run(["ar", "rcs", archive, item], check=True)
        return self.lint("globals.py", f"{layer}={archive}")

    def test_mutable_globals(self):
        cases = {
            "namespace scope": "int planted = 1;",
            "anonymous namespace": "namespace { int planted; } int f() { return ++planted; }",
            "function static": "int f() { static int planted; return ++planted; }",
            "thread_local": "thread_local int planted = 1; int f() { return ++planted; }",
            "static member": "struct S { inline static int planted = 1; }; int f() { return ++S::planted; }",
        }
        for name, code in cases.items():
            with self.subTest(name):
                status, output = self.globals_of("heap", code)
                self.assertEqual(status, 1, output)
                self.assertIn("planted'", output)
        status, output = self.globals_of("runtime", cases["namespace scope"])
        self.assertEqual(status, 0, output)

    def test_constants_are_not_mutable_globals(self):
        code = 'extern const char* const kNames[] = {"a"}; struct S { virtual ~S(); }; S::~S() = default;'
        status, output = self.globals_of("heap", code)
        self.assertEqual(status, 0, output)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        COMPILER = sys.argv.pop(1)
    unittest.main(verbosity=2)
